//! Where names are that the next pages of a diff will ask for. Pages go by the numbers of inodes, and names lie by their hashes: who
//! reads a directory for the names of a page passes those of the pages that follow, and each of these would read it anew. Where names
//! have come or gone pages go by these, and ask for the inodes behind them in any order: so nothing is let go of before there are too many.
//! Then those go first that lie below what the page asks for, which pages that go by number have behind them, and after these the highest.
//!
//! Only a hint, and bounded: who finds a place here looks there, and reads the directory if that is not what he seeks. Knows nothing of
//! views.

use std::collections::BTreeMap;

use varve_engine::InodeId;
use varve_format::record::name::NamePosition;

/// Names that are remembered of inodes that come next, some 40 bytes each. A directory with more of them is read once for so many.
const NEXT_MAX: usize = 1 << 18;
/// The same for directories on the way to the root.
const ABOVE_MAX: usize = 1 << 16;
/// Diffs whose hints are kept at a time.
const DIFFS_MAX: usize = 4;
/// So many looks of the background (two a second) those stay that nobody goes on with.
const TIRED: u32 = 120;

/// A directory, and a place in it.
pub type Place = (u64, NamePosition);

/// What the pages of one diff leave for the next ones, of each side.
#[derive(Default)]
pub struct Hints {
    of: Option<(InodeId, InodeId)>,
    /// Looks of the background since the last page.
    idle: u32,
    pub(super) old: Places,
    pub(super) new: Places,
}

/// Those of the diffs that are under way.
#[derive(Default)]
pub struct AllHints(Vec<Hints>);

impl AllHints {
    /// Takes those of a diff that has come to `cursor`.
    pub(crate) fn take(&mut self, old: InodeId, new: InodeId, cursor: &[u8]) -> Hints {
        let of = Some((old, new));
        let found = self.0.iter().position(|hints| hints.of == of).map(|at| self.0.remove(at));
        found.filter(|_| !cursor.is_empty()).unwrap_or(Hints { of, ..Hints::default() })
    }
    /// Keeps them for the next page, in place of those that have waited longest.
    pub(crate) fn put(&mut self, mut hints: Hints) {
        hints.idle = 0;
        if self.0.len() >= DIFFS_MAX {
            self.0.remove(0);
        }
        self.0.push(hints);
    }
    /// The background looks: lets go of those of diffs that were given up.
    pub(crate) fn tire(&mut self) {
        self.0.iter_mut().for_each(|hints| hints.idle += 1);
        self.0.retain(|hints| hints.idle < TIRED);
    }
    /// Names that pages have passed.
    #[cfg(feature = "internals")]
    pub(crate) fn looks(&self) -> u64 {
        self.0.iter().map(|hints| hints.old.looks + hints.new.looks).sum()
    }
}

/// Places, `max` at most: of those that are added the ones with the lowest numbers from `first` on, and those below it that there is room for.
pub struct Lowest {
    places: BTreeMap<u64, Place>,
    first: u64,
    max: usize,
}

impl Lowest {
    pub(super) fn new(max: usize) -> Lowest {
        Lowest { places: BTreeMap::new(), first: u64::MAX, max }
    }
    /// They begin at `first`, if that is lower.
    pub(super) fn begin_lower(&mut self, first: u64) {
        self.first = self.first.min(first);
    }
    pub(super) fn add(&mut self, inode: u64, place: Place) {
        if self.places.contains_key(&inode) {
            // Of several names the first, as who reads the directory finds it.
            return;
        }
        if self.places.len() >= self.max {
            let lowest = self.places.first_key_value().map(|(lowest, _)| *lowest);
            let last = self.places.last_key_value().map(|(last, _)| *last);
            let goes = match lowest.filter(|lowest| *lowest < self.first) {
                Some(lowest) => Some(lowest).filter(|lowest| inode > *lowest),
                None => last.filter(|last| (self.first..*last).contains(&inode)),
            };
            let Some(goes) = goes else { return };
            self.places.remove(&goes);
        }
        self.places.insert(inode, place);
    }
}

/// Places of one side.
pub struct Places {
    /// Of what pages ask for.
    pub next: Lowest,
    /// Of directories on the way to the root.
    above: BTreeMap<u64, Place>,
    /// Names that were passed.
    #[cfg(feature = "internals")]
    pub looks: u64,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            next: Lowest::new(NEXT_MAX),
            above: BTreeMap::new(),
            #[cfg(feature = "internals")]
            looks: 0,
        }
    }
}

impl Places {
    /// A page begins that asks for nothing below `first`.
    pub(super) fn begin(&mut self, first: u64) {
        self.next.first = first;
    }
    /// A name is passed.
    pub(super) fn look(&mut self) {
        #[cfg(feature = "internals")]
        {
            self.looks += 1;
        }
    }
    pub(super) fn get(&self, inode: u64) -> Option<Place> {
        self.next.places.get(&inode).or_else(|| self.above.get(&inode)).copied()
    }
    /// There is another name at that place by now, or none.
    pub(super) fn forget(&mut self, inode: u64) {
        self.next.places.remove(&inode);
        self.above.remove(&inode);
    }
    /// Directories on the way to the root that a page has passed: neighbours of those it needed.
    pub(super) fn passed() -> Lowest {
        Lowest::new(ABOVE_MAX / 2)
    }
    /// A page ends that has passed these directories and `needed` those.
    pub(super) fn end(&mut self, passed: Lowest, needed: impl Iterator<Item = (u64, Place)>) {
        let mut met = passed.places;
        met.extend(needed);
        if self.above.len() + met.len() > ABOVE_MAX {
            self.above.clear();
        }
        self.above.extend(met.into_iter().take(ABOVE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what is left of a diff that was given up goes after a minute, and that of one that goes on stays. Method: two of them, and
    // looks of the background with pages of one between them.
    #[test]
    fn diffs_that_were_given_up_are_forgotten() {
        let mut all = AllHints::default();
        let (left, under_way) = ((InodeId(1), InodeId(2)), (InodeId(3), InodeId(4)));
        all.put(Hints { of: Some(left), ..Hints::default() });
        for _ in 0..TIRED + 5 {
            let hints = all.take(under_way.0, under_way.1, &[1]);
            all.put(hints);
            all.tire();
        }
        assert_eq!(all.0.iter().map(|hints| hints.of).collect::<Vec<_>>(), [Some(under_way)]);
    }

    // Goal: pages in any order find all that there is room for; where there is not, those that go by number find the next ones, and no more is
    // kept than may be. Method: the same names passed in a mixed order, with room for all, and with room for a few, from page to page.
    #[test]
    fn the_next_ones_are_kept() {
        let place = (1, NamePosition(0));
        let passed = |kept: &mut Lowest| (0..1000).for_each(|i| kept.add(i * 7 % 1000, place));
        let mut all = Lowest { first: 900, ..Lowest::new(1000) };
        passed(&mut all);
        assert_eq!(all.places.len(), 1000);
        let mut some = Lowest::new(100);
        for first in [0, 50, 500, 949, 20] {
            some.first = first;
            passed(&mut some);
            let from = first.min(900);
            assert!(
                some.places.keys().copied().eq(from..from + 100),
                "from {first} on: {:?}",
                some.places.keys()
            );
        }
    }
}
