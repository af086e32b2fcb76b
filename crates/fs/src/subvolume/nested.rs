//! Where subvolumes are: not directory entries, but looked up beside them.
//!
//! A subvolume's record says in which directory of which subvolume it is and at which position, so that a snapshot of
//! the outer one does not contain it. Here all of them are in memory, in the order in which listings show them.
//! Positions count down from the highest sequence of their name's hash, where no names of a sane directory are.

use std::collections::hash_map::Entry as Slotted;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use varve_engine::InodeId;
use varve_format::record::name::NamePosition;

use super::Slot;

/// A place in a directory of a subvolume.
type Key = (InodeId, NamePosition);

/// What is there.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// The subvolume; `None` while it is being made: the name is taken, and leads nowhere yet.
    pub slot: Option<Slot>,
}

#[derive(Default)]
struct Places {
    entries: BTreeMap<Key, Entry>,
    /// How many are in each directory that has any: stat asks for it.
    in_directory: HashMap<InodeId, usize>,
}

/// All places. Changed under the directory's own lock.
#[derive(Default)]
pub(crate) struct Nested {
    places: RwLock<Places>,
    count: AtomicUsize,
}

impl Nested {
    /// Whether there are any at all: most pools have none.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// What has this name, which hashes to `hash`.
    pub(crate) fn find(&self, dir: InodeId, hash: u64, name: &[u8]) -> Option<(NamePosition, Entry)> {
        if !self.any() {
            return None;
        }
        let (first, last) = (NamePosition::new(hash, 0), NamePosition::new(hash, 255));
        let places = self.places.read();
        let mut range = places.entries.range((dir, first)..=(dir, last));
        range.find(|(_, entry)| entry.name == name).map(|((_, position), entry)| (*position, entry.clone()))
    }

    /// A position for a name that hashes to `hash`. `None` if all are taken.
    pub(crate) fn free(&self, dir: InodeId, hash: u64) -> Option<NamePosition> {
        let places = self.places.read();
        let positions = (0..=255).rev().map(|sequence| NamePosition::new(hash, sequence));
        positions.into_iter().find(|position| !places.entries.contains_key(&(dir, *position)))
    }

    /// Those in `dir` behind `after`, in order; without those that are being made.
    pub(crate) fn list(&self, dir: InodeId, after: u64) -> Vec<(NamePosition, Vec<u8>, Slot)> {
        if !self.any() {
            return Vec::new();
        }
        let places = self.places.read();
        let from = (dir, NamePosition(after.saturating_add(1)));
        let range = places.entries.range(from..=(dir, NamePosition(u64::MAX)));
        range.filter_map(|((_, at), entry)| Some((*at, entry.name.clone(), entry.slot?))).collect()
    }

    /// How many are in `dir`, those that are being made included.
    pub(crate) fn count_in(&self, dir: InodeId) -> usize {
        if !self.any() {
            return 0;
        }
        self.places.read().in_directory.get(&dir).copied().unwrap_or(0)
    }

    /// Whether any is in a directory of the subvolume in `slot`.
    pub(crate) fn within(&self, slot: Slot) -> bool {
        let (first, last) = (slot.full(InodeId(0)), slot.full(InodeId((1 << 43) - 1)));
        let places = self.places.read();
        places.entries.range((first, NamePosition(0))..=(last, NamePosition(u64::MAX))).next().is_some()
    }

    /// Puts one there.
    pub(crate) fn put(&self, dir: InodeId, position: NamePosition, entry: Entry) {
        let mut places = self.places.write();
        if places.entries.insert((dir, position), entry).is_none() {
            *places.in_directory.entry(dir).or_default() += 1;
        }
        self.count.store(places.entries.len(), Ordering::Release);
    }

    /// Takes it away.
    pub(crate) fn remove(&self, dir: InodeId, position: NamePosition) {
        let mut places = self.places.write();
        if places.entries.remove(&(dir, position)).is_some()
            && let Slotted::Occupied(mut count) = places.in_directory.entry(dir)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.count.store(places.entries.len(), Ordering::Release);
    }
}
