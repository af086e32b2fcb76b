//! Where subvolumes are: not directory entries, but looked up beside them.
//!
//! A subvolume's record says in which directory of which subvolume it is and at which position, so that a snapshot of
//! the outer one does not contain it. Here all of them are in memory, in the order in which listings show them.
//! Positions count down from the highest sequence of their name's hash, where no names of a sane directory are.

use std::collections::BTreeMap;
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

/// All places. Changed under the directory's own lock.
#[derive(Default)]
pub(crate) struct Nested {
    places: RwLock<BTreeMap<Key, Entry>>,
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
        let mut range = places.range((dir, first)..=(dir, last));
        range.find(|(_, entry)| entry.name == name).map(|((_, position), entry)| (*position, entry.clone()))
    }

    /// A position for a name that hashes to `hash`. `None` if all are taken.
    pub(crate) fn free(&self, dir: InodeId, hash: u64) -> Option<NamePosition> {
        let places = self.places.read();
        let positions = (0..=255).rev().map(|sequence| NamePosition::new(hash, sequence));
        positions.into_iter().find(|position| !places.contains_key(&(dir, *position)))
    }

    /// Those in `dir` behind `after`, in order; without those that are being made.
    pub(crate) fn list(&self, dir: InodeId, after: u64) -> Vec<(NamePosition, Vec<u8>, Slot)> {
        if !self.any() {
            return Vec::new();
        }
        let places = self.places.read();
        let from = (dir, NamePosition(after.saturating_add(1)));
        let range = places.range(from..=(dir, NamePosition(u64::MAX)));
        range.filter_map(|((_, at), entry)| Some((*at, entry.name.clone(), entry.slot?))).collect()
    }

    /// How many are in `dir`, those that are being made included.
    pub(crate) fn count_in(&self, dir: InodeId) -> usize {
        if !self.any() {
            return 0;
        }
        self.places.read().range((dir, NamePosition(0))..=(dir, NamePosition(u64::MAX))).count()
    }

    /// Whether any is in a directory of the subvolume in `slot`.
    pub(crate) fn within(&self, slot: Slot) -> bool {
        let (first, last) = (slot.full(InodeId(0)), slot.full(InodeId((1 << 43) - 1)));
        self.places.read().range((first, NamePosition(0))..=(last, NamePosition(u64::MAX))).next().is_some()
    }

    /// Puts one there.
    pub(crate) fn put(&self, dir: InodeId, position: NamePosition, entry: Entry) {
        let mut places = self.places.write();
        places.insert((dir, position), entry);
        self.count.store(places.len(), Ordering::Release);
    }

    /// Takes it away.
    pub(crate) fn remove(&self, dir: InodeId, position: NamePosition) {
        let mut places = self.places.write();
        places.remove(&(dir, position));
        self.count.store(places.len(), Ordering::Release);
    }
}
