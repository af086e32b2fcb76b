//! The dirty files of one filesystem, oldest first, and how much they hold.
//!
//! A file is in the list from its first dirty page until its last is logged, also while it is being written back: a
//! sync that finds it here and cannot have its turn waits, and learns what became of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use varve_engine::{BLOCK_BYTES, Numbered};

use super::ahead::Ahead;
use crate::api::Timestamp;
use crate::inode::InodeState;
use crate::subvolume::Slot;

/// A file that has data to be logged.
#[derive(Clone)]
pub struct DirtyFile {
    /// Which.
    pub state: Arc<InodeState>,
    /// Since when.
    pub since: Timestamp,
}

/// How many files of a subvolume are in the list.
#[derive(Clone, Copy, Default)]
struct Share {
    files: u64,
    /// The place that the last of them got when it came.
    newest: u64,
}

#[derive(Default)]
struct Listed {
    next: u64,
    files: BTreeMap<u64, DirtyFile>,
    shares: Numbered<Slot, Share>,
}

/// All dirty files. A leaf in the lock order. Bounded by the dirty limit: a file in it has at least one page.
#[derive(Default)]
pub struct DirtyList {
    listed: Mutex<Listed>,
    pages: AtomicU64,
    /// [`varve_engine::Store::nodes_read`] when extents were last logged.
    pub nodes_read: AtomicU64,
    /// Wakes the thread that writes back before the bound is reached.
    pub ahead: Ahead,
}

impl DirtyList {
    /// Adds a file at the young end; returns its place.
    pub(crate) fn add(&self, state: Arc<InodeState>, since: Timestamp) -> u64 {
        let mut listed = self.listed.lock();
        listed.next += 1;
        let place = listed.next;
        let share = listed.shares.entry(Slot::of(state.ino)).or_default();
        (share.files, share.newest) = (share.files + 1, place);
        // Under this lock, so that it is known of every file whether it came before a snapshot.
        state.set_dirty_from(place);
        state.set_stuck(false);
        listed.files.insert(place, DirtyFile { state, since });
        place
    }

    /// Of a subvolume: the place of the file that became dirty last, perhaps clean since; `None` if none is dirty. With
    /// the place behind which files come that become dirty from now on, which is given to `divide` before any can.
    pub(crate) fn divide<T>(&self, slot: Slot, divide: impl FnOnce(Option<u64>, u64) -> T) -> T {
        let listed = self.listed.lock();
        divide(listed.shares.get(&slot).map(|share| share.newest), listed.next)
    }

    /// Its pages have been taken: moves the file at `place` to the young end; returns its place there. At no instant is it in
    /// neither.
    pub(crate) fn renew(&self, place: u64, since: Timestamp) -> u64 {
        let mut listed = self.listed.lock();
        listed.next += 1;
        let next = listed.next;
        if let Some(file) = listed.files.remove(&place) {
            file.state.set_stuck(false);
            listed.files.insert(next, DirtyFile { since, ..file });
        }
        next
    }

    /// Takes the file at `place` out.
    pub(crate) fn remove(&self, place: u64) {
        let mut listed = self.listed.lock();
        let Some(file) = listed.files.remove(&place) else { return };
        file.state.set_dirty_from(0);
        let slot = Slot::of(file.state.ino);
        if let Some(share) = listed.shares.get_mut(&slot) {
            share.files -= 1;
            if share.files == 0 {
                listed.shares.remove(&slot);
            }
        }
    }

    /// The oldest `count_max` files that `wanted` accepts, oldest first; stops at the first it does not.
    pub(crate) fn oldest(&self, count_max: usize, wanted: impl Fn(&DirtyFile) -> bool) -> Vec<DirtyFile> {
        self.listed.lock().files.values().take(count_max).take_while(|file| wanted(file)).cloned().collect()
    }

    /// For who makes room: the oldest `count_max` files, oldest first, but for those that could not be written back when that
    /// was last tried. The background tries those again when they are old, and whoever needs them does.
    pub(crate) fn oldest_to_write(&self, count_max: usize) -> Vec<DirtyFile> {
        let listed = self.listed.lock();
        listed.files.values().filter(|file| !file.state.is_stuck()).take(count_max).cloned().collect()
    }

    /// All files, oldest first.
    pub fn all(&self) -> Vec<DirtyFile> {
        self.oldest(usize::MAX, |_| true)
    }

    /// Pages have entered memory.
    pub(crate) fn pages_added(&self, pages: u64) {
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Pages have left memory.
    pub(crate) fn pages_removed(&self, pages: u64) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// What all dirty pages hold.
    pub fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * BLOCK_BYTES as u64
    }
}
