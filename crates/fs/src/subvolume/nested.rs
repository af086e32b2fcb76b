//! Where subvolumes are: not directory entries, but looked up beside them.
//!
//! A subvolume's record says in which directory of which subvolume it is and at which position, so that a snapshot of
//! the outer one does not contain it. Here all of them are in memory, in the order in which listings show them.
//! Positions count down from the highest sequence of their name's hash, where no names of a sane directory are.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::RwLock;
use varve_engine::InodeId;
use varve_format::record::name::NamePosition;

use super::Slot;

/// What is in a place.
struct Entry {
    name: Name,
    slot: Option<Slot>,
}

/// Bytes of a name that need no memory of their own.
const SHORT_BYTES: usize = 22;

/// A name. There may be a hundred thousand, and most are short.
enum Name {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

impl Name {
    fn new(name: &[u8]) -> Name {
        if name.len() > SHORT_BYTES {
            return Name::Long(name.into());
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..name.len()].copy_from_slice(name);
        Name::Short { len: name.len() as u8, bytes }
    }
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Name::Short { len, bytes } => &bytes[..usize::from(*len)],
            Name::Long(name) => name,
        }
    }
}

/// Whether a name is free, but for names of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vacancy {
    /// It is not.
    Taken,
    /// It is, and this position, too: the highest that is.
    At(NamePosition),
    /// It is, but all positions of its hash are taken.
    Full,
}

/// What is in one directory.
type Directory = BTreeMap<NamePosition, Entry>;

/// Directories are told apart by this many remainders of their hash when somebody asks whether anything is in them.
const REMAINDERS: usize = 256;

/// All places. Changed under the topology's lock, where a name comes also under that of its directory.
pub struct Nested {
    directories: RwLock<BTreeMap<InodeId, Directory>>,
    count: AtomicUsize,
    /// How many are in directories with each remainder: of most directories this says, without a lock, that none is.
    counts: [AtomicU32; REMAINDERS],
}

impl Default for Nested {
    fn default() -> Nested {
        Nested {
            directories: RwLock::default(),
            count: AtomicUsize::new(0),
            counts: [const { AtomicU32::new(0) }; REMAINDERS],
        }
    }
}

fn remainder(dir: InodeId) -> usize {
    (dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % REMAINDERS
}

impl Nested {
    /// Whether there are any at all: most pools have none.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Where this name is, whose hash has its positions from `base` on, and the subvolume it leads to; `None` while that is
    /// being made: the name is taken, and leads nowhere yet.
    pub(crate) fn find(
        &self,
        dir: InodeId,
        base: NamePosition,
        name: &[u8],
    ) -> Option<(NamePosition, Option<Slot>)> {
        if self.counts[remainder(dir)].load(Ordering::Acquire) == 0 {
            return None;
        }
        let directories = self.directories.read();
        let mut range = directories.get(&dir)?.range(base..=base.with_sequence(255));
        range.find(|(_, entry)| *entry.name == *name).map(|(position, entry)| (*position, entry.slot))
    }

    /// Whether this name is free, whose hash has its positions from `base` on.
    pub(crate) fn vacancy(&self, dir: InodeId, base: NamePosition, name: &[u8]) -> Vacancy {
        let mut free = Some(255);
        let directories = self.directories.read();
        if let Some(directory) = directories.get(&dir) {
            for (position, entry) in directory.range(base..=base.with_sequence(255)).rev() {
                if *entry.name == *name {
                    return Vacancy::Taken;
                }
                if free == Some(position.sequence()) {
                    free = position.sequence().checked_sub(1);
                }
            }
        }
        free.map_or(Vacancy::Full, |sequence| Vacancy::At(base.with_sequence(sequence)))
    }

    /// Up to `count_max` of those in `dir` behind `after`, in order; without those that are being made.
    pub fn list(&self, dir: InodeId, after: u64, count_max: usize) -> Vec<(NamePosition, Vec<u8>, Slot)> {
        if !self.any() {
            return Vec::new();
        }
        let directories = self.directories.read();
        let Some(directory) = directories.get(&dir) else { return Vec::new() };
        let range = directory.range(NamePosition(after.saturating_add(1))..);
        let there = range.filter_map(|(at, entry)| Some((*at, entry.name.to_vec(), entry.slot?)));
        there.take(count_max).collect()
    }

    /// The name at a place.
    pub(crate) fn name(&self, dir: InodeId, position: NamePosition) -> Option<Vec<u8>> {
        Some(self.directories.read().get(&dir)?.get(&position)?.name.to_vec())
    }

    /// How many are in `dir`, those that are being made included: stat asks for it.
    pub(crate) fn count_in(&self, dir: InodeId) -> usize {
        if !self.any() {
            return 0;
        }
        self.directories.read().get(&dir).map_or(0, BTreeMap::len)
    }

    /// Whether any is in a directory of the subvolume in `slot`.
    pub(crate) fn within(&self, slot: Slot) -> bool {
        let (first, last) = (slot.full(InodeId(0)), slot.full(InodeId((1 << 43) - 1)));
        self.directories.read().range(first..=last).next().is_some()
    }

    /// Puts one there.
    pub(crate) fn put(&self, dir: InodeId, position: NamePosition, name: &[u8], slot: Option<Slot>) {
        let entry = Entry { name: Name::new(name), slot };
        let mut directories = self.directories.write();
        if directories.entry(dir).or_default().insert(position, entry).is_none() {
            self.counts[remainder(dir)].fetch_add(1, Ordering::Release);
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// The names at two places lead to each other's subvolumes, from one moment to the next.
    pub(crate) fn exchange(&self, one: (InodeId, NamePosition), other: (InodeId, NamePosition)) {
        let mut directories = self.directories.write();
        let mut lead = |(dir, position): (InodeId, NamePosition), slot: Option<Slot>| {
            let entry = directories.get_mut(&dir)?.get_mut(&position)?;
            std::mem::replace(&mut entry.slot, slot)
        };
        let slot = lead(one, None);
        let other_slot = lead(other, slot);
        lead(one, other_slot);
    }

    /// Takes it away.
    pub(crate) fn remove(&self, dir: InodeId, position: NamePosition) {
        let mut directories = self.directories.write();
        let Some(directory) = directories.get_mut(&dir) else { return };
        if directory.remove(&position).is_some() {
            self.counts[remainder(dir)].fetch_sub(1, Ordering::Release);
            self.count.fetch_sub(1, Ordering::Release);
        }
        if directory.is_empty() {
            directories.remove(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: names of every length are found, are taken, and go; what is free is the highest position of a hash that is.
    // Method: names of 1 to 255 bytes with one hash, against what was put; the last of 256 has no position left.
    #[test]
    fn names_of_every_length() {
        let (nested, dir, base) = (Nested::default(), InodeId(7), NamePosition::new(5, 0));
        let name = |len: usize| vec![b'a' + (len % 26) as u8; len];
        for len in 1..=255 {
            let position = base.with_sequence(256u16.wrapping_sub(len as u16) as u8);
            assert_eq!(nested.vacancy(dir, base, &name(len)), Vacancy::At(position));
            nested.put(dir, position, &name(len), Some(Slot(len as u32)));
            assert_eq!(nested.vacancy(dir, base, &name(len)), Vacancy::Taken);
            assert_eq!(nested.find(dir, base, &name(len)), Some((position, Some(Slot(len as u32)))));
            assert_eq!(nested.name(dir, position), Some(name(len)));
        }
        nested.put(dir, base, b"last", None);
        assert_eq!(nested.find(dir, base, b"last"), Some((base, None)));
        assert_eq!(nested.vacancy(dir, base, b"new"), Vacancy::Full);
        assert_eq!(nested.vacancy(InodeId(8), base, b"new"), Vacancy::At(base.with_sequence(255)));
        nested.remove(dir, base.with_sequence(77));
        assert_eq!(nested.vacancy(dir, base, b"new"), Vacancy::At(base.with_sequence(77)));
        assert_eq!((nested.find(dir, base, &name(256 - 77)), nested.count_in(dir)), (None, 255));
    }
}
