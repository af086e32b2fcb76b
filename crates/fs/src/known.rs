//! Names that were found lately, and where they lead: a lookup of one of these reads two lines of memory, where a descent of the tree
//! of names reads some ten, each told by the one before.
//!
//! A table of sets of [`WAYS`] entries, each guarded by a **guard** word: how many changes of names that belong there are under way
//! ([`Changing`]), and, above [`COUNT_BITS`], a number that grows with each that ended. Entries are read as under a sequence lock (Boehm, "Can
//! seqlocks get along with programming language memory models?", 2012): what was read counts if nothing was under way before, and the guard is
//! the same afterwards.
//!
//! What makes it right:
//! - Whoever changes where a name leads begins a [`Changing`] before his transaction is applied and ends it afterwards. Meanwhile nothing
//!   is found in that set and nothing comes in.
//! - Who has looked in the tree brings in what he found only if the guard is what it was before he looked ([`Unknown`]): then nobody
//!   has changed that name since.
//! - One at a time brings something in: he takes the guard from "nobody" to "one", and if he cannot take it back from there, since a
//!   change has begun meanwhile, the entry goes again before he lets go.
//! - An entry has the number of its subvolume beside the slot, which another may get.
//!
//! Names of more than [`NAME_BYTES`] are not kept, nor are those that are not there.
//!
//! The table is far larger than what few names need, and they lie anywhere in it: the kernel would have to find a page of memory for
//! nearly each of the first, which takes a third as long as making the name. So who makes a name where there was none passes a page to
//! which nobody has written yet ([`Table::used`]): nobody brings in what he saw of it before, since a name that is not there is not kept.
//! Pages are written to by those who bring in what they found, and by those who take a name away.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use varve_engine::InodeId;
use varve_format::record::inode::InodeKind;
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::LOCAL_INODE_BITS;
use zerocopy::FromZeros;

use crate::hash::mixed;
use crate::subvolume::{Slot, local};

/// Longest name that is kept.
const NAME_BYTES: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 8;
/// An entry: the directory's number (0: there is none), that of its subvolume, the inode's own number with the name's length
/// and the kind above it, and the name.
const ENTRY_WORDS: usize = 3 + NAME_WORDS;
/// Entries of a set.
const WAYS: usize = 2;
/// A guard and two entries, in two lines of memory side by side.
const SET_WORDS: usize = 16;
/// Sets in a page of memory.
const SETS_TOGETHER: usize = 4096 / (SET_WORDS * size_of::<u64>());
/// Bits of the guard that count who is there.
const COUNT_BITS: u32 = 16;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// One is gone, and something may be different.
const ENDED: u64 = (1 << COUNT_BITS) - 1;
/// Where the length of the name and the kind are in the third word, above the inode's own number.
const LENGTH_SHIFT: u32 = LOCAL_INODE_BITS;
const LENGTH_BITS: u64 = 0xff << LENGTH_SHIFT;
const KIND_SHIFT: u32 = u64::BITS - 8;

/// A name in a directory of a subvolume.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    /// The number of the subvolume.
    pub subvolume: u64,
    /// The directory.
    pub dir: InodeId,
    /// Where the name's hash puts it.
    pub base: NamePosition,
    /// Its bytes.
    pub name: &'a [u8],
}

impl Name<'_> {
    /// Whether such a name is kept.
    pub(crate) fn is_kept(name: &[u8]) -> bool {
        name.len() <= NAME_BYTES
    }

    /// The words of its entry. The name is one of those that are kept.
    fn key(&self) -> Key {
        let mut bytes = [0; NAME_BYTES];
        bytes[..self.name.len()].copy_from_slice(self.name);
        let mut key = [self.dir.0, self.subvolume, (self.name.len() as u64) << LENGTH_SHIFT, 0, 0, 0, 0];
        for (word, bytes) in key[3..].iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        key
    }
}

/// What an entry says of where its name leads, if it is that of `key`.
fn leads_to(entry: &[AtomicU64], key: &Key) -> Option<u64> {
    let word = |i: usize| entry[i].load(Ordering::Relaxed);
    let leads_to = word(2);
    let same = word(0) == key[0] && word(1) == key[1] && leads_to & LENGTH_BITS == key[2];
    (same && (3..ENTRY_WORDS).all(|i| word(i) == key[i])).then_some(leads_to)
}

/// See the module.
pub struct KnownNames {
    /// Sets.
    count: usize,
    /// `None`: there was no memory for it.
    table: OnceLock<Option<Table>>,
}

struct Table {
    words: Box<[AtomicU64]>,
    /// Where the first set begins, so that sets begin where lines do.
    first: usize,
    /// A bit for each [`SETS_TOGETHER`] sets: whether anybody has written there. The others are as they were made.
    used: Box<[AtomicU64]>,
}

/// The guard, and the entries behind it.
#[derive(Clone, Copy)]
struct Set<'a>(&'a [AtomicU64; SET_WORDS]);

/// A set, and the bit that tells whether anybody has written to it or near it.
#[derive(Clone, Copy)]
struct Place<'a> {
    set: Set<'a>,
    used: &'a AtomicU64,
    bit: u64,
}

/// A name that was not found here, and how that was seen.
pub struct Unknown<'a>(Option<(Place<'a>, u64)>);

/// Somebody changes where names lead. While this is held none of them is found.
pub struct Changing<'a>([Option<Begun<'a>>; 2]);

/// A change of one name: its set, what its entry begins with, and the guard when it had begun.
struct Begun<'a> {
    set: Set<'a>,
    key: Key,
    guard: u64,
}

/// What an entry begins with, and its name; without the inode's number and kind.
type Key = [u64; ENTRY_WORDS];

impl KnownNames {
    /// A table that takes `bytes` of memory when it is full. Nothing as long as nobody looks for a name.
    pub(crate) fn new(bytes: u64) -> KnownNames {
        let count = (bytes as usize / (SET_WORDS * size_of::<u64>())).clamp(64, 1 << 24);
        KnownNames { count, table: OnceLock::new() }
    }

    /// Where an entry of `name`, which is kept, would be.
    fn place(&self, name: &Name) -> Option<Place<'_>> {
        let table = self.table.get_or_init(|| Table::new(self.count)).as_ref()?;
        let hash = mixed(name.base.0 ^ name.dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let at = ((u128::from(hash) * self.count as u128) >> 64) as usize;
        let set = table.words[table.first + at * SET_WORDS..].first_chunk().map(Set)?;
        let page = at / SETS_TOGETHER;
        let used = &table.used[page / u64::BITS as usize];
        Some(Place { set, used, bit: 1 << (page % u64::BITS as usize) })
    }

    /// Where a name leads, if that is known.
    pub(crate) fn find(&self, name: &Name) -> Result<(InodeId, InodeKind), Unknown<'_>> {
        let Some(place) = self.place(name) else { return Err(Unknown(None)) };
        if !place.is_used() {
            // If anything has happened here or is under way, the guard is not 0, nor will it be again.
            return Err(Unknown(Some((place, 0))));
        }
        let set = place.set;
        let guard = set.guard().load(Ordering::Acquire);
        if guard & COUNT > 0 {
            return Err(Unknown(None));
        }
        let key = name.key();
        let found = set.entries().find_map(|entry| leads_to(entry, &key));
        fence(Ordering::Acquire);
        let same = set.guard().load(Ordering::Relaxed) == guard;
        let found = found.and_then(|word| {
            let kind = InodeKind::from_code((word >> KIND_SHIFT) as u8)?;
            Some((Slot::of(name.dir).full(InodeId(word)), kind))
        });
        match found {
            Some(found) if same => Ok(found),
            _ => Err(Unknown(same.then_some((place, guard)))),
        }
    }

    /// Begins a change of where `names`, two at most, lead.
    pub(crate) fn change(&self, names: [Option<Name>; 2]) -> Changing<'_> {
        Changing(names.map(|name| {
            let name = name?;
            Some(self.place(&name)?.begin(&name))
        }))
    }

    /// The same for a name that leads nowhere, where somebody is about to make it. Where nobody has written yet nothing begins, and the
    /// end does not bring it in.
    pub(crate) fn creation(&self, name: Option<Name>) -> Changing<'_> {
        let begun = name.and_then(|name| {
            let place = self.place(&name)?;
            place.is_used().then(|| place.begin(&name))
        });
        Changing([begun, None])
    }
}

impl Changing<'_> {
    /// Ends it: the first of the names leads to an inode now.
    pub(crate) fn leads_to(mut self, ino: InodeId, kind: InodeKind) {
        if let Some(begun) = self.0[0].take_if(|begun| begun.guard & COUNT == 1) {
            begun.set.put(begun.guard, begun.key, ino, kind);
        }
    }
}

impl<'a> Place<'a> {
    fn is_used(self) -> bool {
        self.used.load(Ordering::Relaxed) & self.bit != 0
    }

    /// From here on it is.
    fn touch(self) {
        if !self.is_used() {
            self.used.fetch_or(self.bit, Ordering::Relaxed);
        }
    }

    fn begin(self, name: &Name) -> Begun<'a> {
        self.touch();
        let guard = self.set.guard().fetch_add(1, Ordering::AcqRel) + 1;
        Begun { set: self.set, key: name.key(), guard }
    }
}

impl<'a> Set<'a> {
    fn guard(self) -> &'a AtomicU64 {
        &self.0[0]
    }

    fn entries(self) -> impl Iterator<Item = &'a [AtomicU64]> {
        self.0[1..].chunks_exact(ENTRY_WORDS)
    }

    /// Brings an entry in and lets go of the set, by who has it alone with this guard: if he still has, or there is nothing.
    fn put(self, guard: u64, mut key: Key, ino: InodeId, kind: InodeKind) {
        // Whoever sees one of the words that follow sees that the set is taken.
        fence(Ordering::Release);
        let before = self.entries().position(|entry| leads_to(entry, &key).is_some());
        let free = || self.entries().position(|entry| entry[0].load(Ordering::Relaxed) == 0);
        // With none free by turns, as the number of what has ended says: of a creation it grows by one, of a search too.
        let at = before.or_else(free).unwrap_or((guard >> COUNT_BITS) as usize % WAYS);
        let Some(entry) = self.entries().nth(at) else { return };
        key[2] |= u64::from(kind as u8) << KIND_SHIFT | local(ino).0;
        entry.iter().zip(key).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        if self.guard().compare_exchange(guard, guard + ENDED, Ordering::Release, Ordering::Relaxed).is_err()
        {
            entry[0].store(0, Ordering::Relaxed);
            self.guard().fetch_add(ENDED, Ordering::Release);
        }
    }
}

impl Table {
    /// Of memory that nobody has touched yet.
    fn new(count: usize) -> Option<Table> {
        let words = <[AtomicU64]>::new_box_zeroed_with_elems((count + 1) * SET_WORDS).ok()?;
        let before = words.as_ptr().addr() / size_of::<u64>() % SET_WORDS;
        let used =
            <[AtomicU64]>::new_box_zeroed_with_elems(count.div_ceil(SETS_TOGETHER * u64::BITS as usize));
        Some(Table { words, first: (SET_WORDS - before) % SET_WORDS, used: used.ok()? })
    }
}

impl Unknown<'_> {
    /// It is `name`, and was found to lead to `(ino, kind)`.
    pub(crate) fn is(self, name: &Name, (ino, kind): (InodeId, InodeKind)) {
        let Some((place, guard)) = self.0 else { return };
        place.touch();
        let set = place.set;
        let taken = set.guard().compare_exchange(guard, guard + 1, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            set.put(guard + 1, name.key(), ino, kind);
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        for Begun { set, key, .. } in self.0.iter().flatten() {
            // One that somebody is bringing in right now goes by himself.
            for entry in set.entries().filter(|entry| leads_to(entry, key).is_some()) {
                entry[0].store(0, Ordering::Relaxed);
            }
            set.guard().fetch_add(ENDED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::hash::NameHasher;
    use varve_format::record::subvolume::HASH_KIND_SIPHASH13;

    fn name<'n>(subvolume: u64, dir: u64, text: &'n str, hasher: &NameHasher) -> Name<'n> {
        Name { subvolume, dir: InodeId(dir), base: hasher.base(text.as_bytes()), name: text.as_bytes() }
    }

    fn hasher() -> NameHasher {
        NameHasher::new(HASH_KIND_SIPHASH13, 7).expect("a kind that is known")
    }

    const FILE: InodeKind = InodeKind::File;

    // Goal: what is found is what was brought in last, under the same subvolume, directory and name, and nothing that was changed since.
    // Method: a table that is far too small, names of which some are the beginning of others and some too long, brought in, changed and
    // looked for at random, beside a map that keeps all; most of what is asked for again at once is found.
    #[test]
    fn only_what_leads_there_is_found() {
        let (hasher, known) = (hasher(), KnownNames::new(0));
        let texts: Vec<String> = (0..40_usize).map(|n| "n".repeat(n % 35) + &(n / 35).to_string()).collect();
        let (mut all, mut seed, mut hits) = (HashMap::new(), 1, 0);
        for step in 0..200_000_u64 {
            seed = mixed(seed);
            let (subvolume, dir, text) =
                (seed % 2, seed >> 8 & 7, &texts[(seed >> 16) as usize % texts.len()]);
            let key = (subvolume, dir, text.as_str());
            let name = name(subvolume, 1 + dir, text, &hasher);
            if !Name::is_kept(name.name) {
                assert!(text.len() > NAME_BYTES);
                continue;
            }
            match seed >> 40 & 3 {
                0 if !all.contains_key(&key) => {
                    let is_used = known.place(&name).expect("a table").is_used();
                    let changing = known.creation(Some(name));
                    assert!(known.find(&name).is_err(), "it is being changed");
                    all.insert(key, step + 1);
                    changing.leads_to(InodeId(step + 1), FILE);
                    assert_eq!(known.find(&name).ok(), is_used.then_some((InodeId(step + 1), FILE)));
                }
                1 => {
                    let changing = known.change([Some(name), Some(name)]);
                    all.remove(&key);
                    assert!(known.find(&name).is_err(), "it is being changed");
                    drop(changing);
                    assert!(known.find(&name).is_err(), "it leads nowhere");
                }
                _ => match (known.find(&name), all.get(&key)) {
                    (Ok(found), there) => {
                        hits += 1;
                        assert_eq!(Some(found.0.0), there.copied(), "step {step}");
                    }
                    (Err(unknown), Some(there)) => {
                        unknown.is(&name, (InodeId(*there), FILE));
                        assert_eq!(known.find(&name).ok(), Some((InodeId(*there), FILE)));
                    }
                    (Err(_), None) => {}
                },
            }
        }
        assert!(hits > 20_000, "{hits}");
    }

    // Goal: nobody brings in what he saw before a change that has begun since, and nobody finds half of two entries, also where names go
    // and come where nothing was ever brought in. Method: threads that change where names lead, each to a larger number under a lock of the name's
    // own as a directory's (an even one: it is not there), and threads that look, all in tables of few sets, each new: who looks finds
    // nothing older than what was there when he began, nothing newer than what is there afterwards, and nothing that is not there.
    #[test]
    fn changes_beside_searches() {
        let hasher = hasher();
        let texts: Vec<String> = (0..300).map(|n| format!("name-{n}")).collect();
        let found = AtomicU64::new(0);
        for round in 0..30 {
            let known = KnownNames::new(if round % 2 == 0 { 0 } else { 64 << 10 });
            let there: Vec<_> =
                texts.iter().map(|_| (parking_lot::Mutex::new(()), AtomicU64::new(round % 3 % 2))).collect();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (known, texts, there, found, hasher) = (&known, &texts, &there, &found, &hasher);
                    scope.spawn(move || {
                        let mut seed = round * 4 + thread;
                        for _ in 0..5_000 {
                            seed = mixed(seed);
                            let at = seed as usize % texts.len();
                            let name = name(1, 5, &texts[at], hasher);
                            let (lock, value) = &there[at];
                            if seed >> 32 & 7 == 0 {
                                let _alone = lock.lock();
                                let old = value.load(Ordering::Relaxed);
                                let goes = old % 2 == 1 && seed >> 43 & 1 == 0;
                                let new = old + if old.is_multiple_of(2) || goes { 1 } else { 2 };
                                let changing = if old.is_multiple_of(2) {
                                    known.creation(Some(name))
                                } else {
                                    known.change([Some(name), None])
                                };
                                value.store(new, Ordering::Release);
                                if seed >> 41 & 3 == 0 {
                                    std::thread::yield_now();
                                }
                                if !goes && seed >> 40 & 1 == 0 {
                                    changing.leads_to(InodeId(new), FILE);
                                }
                            } else {
                                let before = value.load(Ordering::Acquire);
                                match known.find(&name) {
                                    Ok((ino, kind)) => {
                                        let after = value.load(Ordering::Acquire);
                                        assert!((before..=after).contains(&ino.0) && kind == FILE);
                                        assert!(ino.0 % 2 == 1, "it is not there");
                                        found.fetch_add(1, Ordering::Relaxed);
                                    }
                                    Err(unknown) => {
                                        let seen = value.load(Ordering::Acquire);
                                        if seed >> 40 & 3 == 0 {
                                            std::thread::yield_now();
                                        }
                                        if seen % 2 == 1 {
                                            unknown.is(&name, (InodeId(seen), FILE));
                                        }
                                    }
                                }
                            }
                        }
                    });
                }
            });
        }
        assert!(found.into_inner() > 10_000);
    }

    // Goal: who makes names that nobody looks for touches no memory of the table, and once something was found near it a new name is known
    // at once. Method: a large table, names made in it, and its words; then one name that is looked for, and others near it.
    #[test]
    fn a_creation_alone_touches_nothing() {
        let (hasher, known) = (hasher(), KnownNames::new(8 << 20));
        let texts: Vec<String> = (0..20_000).map(|n| format!("name-{n}")).collect();
        let names: Vec<_> = texts.iter().map(|text| name(1, 5, text, &hasher)).collect();
        for (ino, name) in names.iter().enumerate() {
            known.creation(Some(*name)).leads_to(InodeId(1 + ino as u64), FILE);
            assert!(known.find(name).is_err());
        }
        let table = known.table.get().and_then(Option::as_ref).expect("memory for 8 MiB");
        assert!(table.words.iter().chain(&table.used).all(|word| word.load(Ordering::Relaxed) == 0));
        known.find(&names[0]).expect_err("nothing yet").is(&names[0], (InodeId(1), FILE));
        assert_eq!(known.find(&names[0]).ok(), Some((InodeId(1), FILE)));
        let (mut near, first) = (0, known.place(&names[0]).expect("a table"));
        for (ino, name) in names.iter().enumerate().skip(1) {
            let place = known.place(name).expect("a table");
            known.creation(Some(*name)).leads_to(InodeId(1 + ino as u64), FILE);
            let is_near = std::ptr::eq(place.used, first.used) && place.bit == first.bit;
            assert_eq!(known.find(name).is_ok(), is_near);
            near += usize::from(is_near);
        }
        assert!(near > 0);
    }
}
