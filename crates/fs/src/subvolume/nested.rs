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

/// What is in a place.
struct Entry {
    name: Box<[u8]>,
    slot: Option<Slot>,
}

/// What is in one directory.
type Directory = BTreeMap<NamePosition, Entry>;

/// All places. Changed under the directory's own lock.
#[derive(Default)]
pub(crate) struct Nested {
    directories: RwLock<BTreeMap<InodeId, Directory>>,
    count: AtomicUsize,
}

impl Nested {
    /// Whether there are any at all: most pools have none.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Where this name is, which hashes to `hash`, and the subvolume it leads to; `None` while that is being made: the name
    /// is taken, and leads nowhere yet.
    pub(crate) fn find(&self, dir: InodeId, hash: u64, name: &[u8]) -> Option<(NamePosition, Option<Slot>)> {
        if !self.any() {
            return None;
        }
        let directories = self.directories.read();
        let mut range =
            directories.get(&dir)?.range(NamePosition::new(hash, 0)..=NamePosition::new(hash, 255));
        range.find(|(_, entry)| *entry.name == *name).map(|(position, entry)| (*position, entry.slot))
    }

    /// A position for a name that hashes to `hash`. `None` if all are taken.
    pub(crate) fn free(&self, dir: InodeId, hash: u64) -> Option<NamePosition> {
        let directories = self.directories.read();
        let taken = directories.get(&dir);
        let mut positions = (0..=255).rev().map(|sequence| NamePosition::new(hash, sequence));
        positions.find(|position| taken.is_none_or(|taken| !taken.contains_key(position)))
    }

    /// Those in `dir` behind `after`, in order; without those that are being made.
    pub(crate) fn list(&self, dir: InodeId, after: u64) -> Vec<(NamePosition, Vec<u8>, Slot)> {
        if !self.any() {
            return Vec::new();
        }
        let directories = self.directories.read();
        let Some(directory) = directories.get(&dir) else { return Vec::new() };
        let range = directory.range(NamePosition(after.saturating_add(1))..);
        range.filter_map(|(at, entry)| Some((*at, entry.name.to_vec(), entry.slot?))).collect()
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
        let entry = Entry { name: name.into(), slot };
        if self.directories.write().entry(dir).or_default().insert(position, entry).is_none() {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes it away.
    pub(crate) fn remove(&self, dir: InodeId, position: NamePosition) {
        let mut directories = self.directories.write();
        let Some(directory) = directories.get_mut(&dir) else { return };
        if directory.remove(&position).is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
        if directory.is_empty() {
            directories.remove(&dir);
        }
    }
}
