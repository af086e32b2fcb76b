//! Write-back: how data that waits in memory takes its place in the log.
//!
//! A round takes the dirty pages of one or many files ([`take`]), allocates space for all of them together, writes
//! them in few large writes (or lets little data ride with the log), and logs each file's extents with its new size
//! and times ([`job`]). Files small enough go into their inode record instead.
//!
//! Invariants:
//! - Pages are logged in ascending order, so that the logged size can follow them: it never covers a page whose data
//!   still waits.
//! - No inode lock is held while data is written. Pages stay in memory until they are logged, and what is overwritten
//!   meanwhile stays dirty.
//! - A file's [`Turn`](crate::inode::Turn) is held from taking its pages to logging the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use varve_engine::planted::{Planted, is};
use varve_engine::{BLOCK_BYTES, EngineError, Reservation, Store, Wanted};

use crate::Result;
use crate::core::Core;
use crate::inode::{InodeState, Turn};

pub mod ahead;
mod batch;
pub(crate) mod buffers;
pub mod frozen;
mod job;
pub(crate) mod list;
pub(crate) mod order;
mod page_map;
pub(crate) mod pages;
mod take;

pub use job::Group;
use list::DirtyFile;

/// What logging one page may add to the extents: its entry, and the second half of one that it splits.
pub(crate) const ENTRIES_PER_PAGE: u64 = 2;
/// Bytes of such an entry, key and value.
pub(crate) const ENTRY_BYTES: u64 = 96;
/// What rewriting the inode record with contents inside may add, in entries of [`ENTRY_BYTES`].
pub(crate) const ENTRIES_PER_FILE: u64 = 20;
/// Data that may ride with the log, in pages.
pub(crate) const RIDING_PAGES_MAX: u64 = (1 << 20) / BLOCK_BYTES as u64;
/// Data written together, in pages.
const PIECE_PAGES_MAX: usize = (4 << 20) / BLOCK_BYTES;
/// Data taken together, in pages.
const GROUP_PAGES_MAX: usize = (16 << 20) / BLOCK_BYTES;
/// Files written together.
const GROUP_FILES_MAX: usize = 4096;
/// Seconds that data waits before the background writes it back.
const AGE_SECONDS: i64 = 5;

/// Whether data may ride with the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ride {
    /// If there is little of it.
    Allowed,
    /// No: it has reached the device (though not a flush) when its extents are logged.
    Never,
}

/// Lets concurrent syncs share rounds: who waits while a whole round goes by that began after he came is done.
#[derive(Default)]
pub struct SyncRounds {
    /// Number of the last round that has begun.
    begun: AtomicU64,
    /// Held by the round that runs; the number of the last that has succeeded.
    succeeded: Mutex<u64>,
}

/// Sets aside space for `pages` pages, which begin so many `runs` ([`wanted`]), for a file that had none dirty if `first`.
pub(crate) fn reserve(
    store: &Store,
    pages: u64,
    runs: u64,
    first: bool,
) -> std::result::Result<Reservation, EngineError> {
    store.reserve_for(wanted(pages, runs, first))
}

/// The same on top of `reservation`, if the space is there at once; else nothing has changed.
pub(crate) fn reserve_more(
    store: &Store,
    reservation: &mut Option<Reservation>,
    pages: u64,
    runs: u64,
    first: bool,
) -> std::result::Result<bool, EngineError> {
    store.reserve_more(reservation, wanted(pages, runs, first))
}

/// The same for pages that give back as much as they take ([`Store::reserve_float`]).
pub(crate) fn reserve_float(
    store: &Store,
    pages: u64,
    runs: u64,
    first: bool,
    grows: bool,
) -> std::result::Result<Option<Reservation>, EngineError> {
    store.reserve_float(wanted(pages, runs, first), grows)
}

/// What pages that wait take when they are logged. `runs`: pages of which the one in front does not wait. Each run may land in a full
/// node of the extents and divide it; the entries of its other pages lie side by side with its first one's.
fn wanted(pages: u64, runs: u64, first: bool) -> Wanted {
    Wanted { data_blocks: pages, entries: entries(pages, first), entry_bytes: ENTRY_BYTES, splits: runs }
}

fn entries(pages: u64, first: bool) -> u64 {
    pages * ENTRIES_PER_PAGE + if first { ENTRIES_PER_FILE } else { 0 }
}

impl Core {
    /// Writes back one file.
    pub(crate) fn write_back(&self, state: &Arc<InodeState>, ride: Ride) -> Result<()> {
        if state.inner.read().pages.is_empty() {
            return Ok(());
        }
        drop(self.write_back_in_turn(state.turn(), u64::MAX, ride)?);
        state.set_stuck(false);
        Ok(())
    }

    /// Writes back the pages of one file up to `size_max`, as if the file ended there; the caller has its turn, and
    /// gets it back.
    pub fn write_back_in_turn(&self, turn: Turn, size_max: u64, ride: Ride) -> Result<Turn> {
        let state = turn.state().clone();
        let written = self.try_in_turn(turn, size_max, ride);
        if written.is_err() {
            // Taking its pages has made it one that was not tried, whoever tried it.
            state.set_stuck(true);
        }
        written
    }

    fn try_in_turn(&self, turn: Turn, size_max: u64, ride: Ride) -> Result<Turn> {
        let mut group = Group::default();
        // What has been taken is neither dirty nor logged until all is finished: who waits for a turn gets it when the pool has stopped.
        let panics = self.store.stop_on_panic("writing data back");
        let taken = self.take(turn, size_max, &mut group);
        if group.files() == 0 {
            panics.done();
            return Ok(taken?.expect("a turn that was not taken comes back"));
        }
        let result = self.write_group(&mut group, ride);
        let finished = self.finish(group, result);
        panics.done();
        let mut turns = finished?;
        Ok(turns.pop().expect("a group of one file gives its turn back"))
    }

    /// Writes back all data that is dirty now.
    pub(crate) fn write_back_all(&self) -> Result<()> {
        // Files that others are writing back just now are in the list too: their turn is waited for, and what failed to
        // be written is dirty again and is tried again.
        self.write_back_files(self.dirty.all())
    }

    /// Writes back many files, packed. A file that cannot be written keeps none of the others from it; the error is
    /// the first that is met.
    pub(crate) fn write_back_files(&self, mut files: Vec<DirtyFile>) -> Result<()> {
        self.order.order(&mut files);
        // Files to be written one by one: others have their turn, or their group has failed.
        let mut alone = Vec::new();
        let mut files = files.into_iter().peekable();
        while files.peek().is_some() {
            let mut group = Group::default();
            let panics = self.store.stop_on_panic("writing data back");
            let mut tried = Vec::new();
            let mut result = Ok(());
            while group.pages() < GROUP_PAGES_MAX && group.files() < GROUP_FILES_MAX {
                let Some(file) = files.next() else { break };
                let Some(turn) = file.state.try_turn() else {
                    alone.push(file.state);
                    continue;
                };
                tried.push(file.state);
                if let Err(error) = self.take(turn, u64::MAX, &mut group) {
                    result = Err(error);
                    break;
                }
            }
            let result = result.and_then(|()| self.write_group(&mut group, Ride::Allowed));
            let finished = self.finish(group, result);
            panics.done();
            if finished.is_err() {
                alone.append(&mut tried);
            }
        }
        let mut result = Ok(());
        for state in alone {
            let written = self.write_back(&state, Ride::Allowed);
            result = result.and(written);
        }
        result
    }

    /// Keeps dirty data within its bound: the writer that exceeds it writes back the oldest files, if the thread that
    /// writes ahead ([`ahead`]) does not keep up. `large`: what has been written lies in chunks, in a long file.
    ///
    /// His own data has been accepted, and he hears nothing of others' that cannot be written back: what waits for that is
    /// bounded by [`Core::require_room`].
    pub(crate) fn throttle(&self, large: bool) -> Result<()> {
        self.dirty.ahead.written(large, self.dirty.bytes(), self.dirty_bytes_max);
        // Bounded: each turn writes back everything of the oldest file, and other writers run into the bound too.
        for _ in 0..64 {
            if self.dirty.bytes() <= self.dirty_bytes_max {
                break;
            }
            // Half of the bound in one go, so that there is something to pack.
            let files = self.dirty.oldest_to_write(GROUP_FILES_MAX / 8);
            if files.is_empty() {
                break;
            }
            if let Err(error) = self.write_back_files(files) {
                self.require_running()?;
                tracing::debug!(%error, "writing back to make room failed");
            }
        }
        Ok(())
    }

    /// Refuses a write, before anything of it is accepted, to a file that cannot be written back while more is dirty than may
    /// be. So each such file is over the bound by no more than what was accepted before that was known. When all that cannot be
    /// written back comes to twice the bound, it refuses any write: only what is left when all else has been written back counts.
    pub(crate) fn require_room(&self, state: &Arc<InodeState>) -> Result<()> {
        if self.dirty.bytes() <= self.dirty_bytes_max {
            return Ok(());
        }
        if state.is_stuck() {
            self.write_back(state, Ride::Allowed)?;
        }
        let is_full = || self.dirty.bytes() > self.dirty_bytes_max.saturating_mul(2);
        if is_full() {
            let made = self.write_back_files(self.dirty.oldest(GROUP_FILES_MAX / 8, |_| true));
            self.require_running()?;
            if is_full() {
                made?;
            }
        }
        Ok(())
    }

    /// Writes back what has waited long enough.
    pub(crate) fn write_back_old(&self) -> Result<()> {
        let now = self.now().seconds;
        // What will only be dirty in the time to come was so before the clock was set back.
        let waits = now.saturating_sub(AGE_SECONDS) + 1..=now;
        let files = self.dirty.oldest(usize::MAX, |file| !waits.contains(&file.since.seconds));
        self.write_back_files(files)
    }

    /// Logs all data that is dirty now, and completes the snapshots that wait for some of it.
    pub(crate) fn flush_all(&self) -> Result<()> {
        let written = self.write_back_all();
        written.and(self.complete(|_| true))
    }

    /// Makes everything durable. What fails keeps the rest from nothing; the error is the first.
    pub(crate) fn sync(&self) -> Result<()> {
        let seen = self.rounds.begun.load(Ordering::Acquire);
        let mut succeeded = self.rounds.succeeded.lock();
        let mut result = Ok(());
        // A round with a larger number began after this call and covers all that was dirty then.
        if *succeeded <= seen {
            let round = self.rounds.begun.fetch_add(1, Ordering::AcqRel) + 1;
            result = self.flush_all();
            if !is(Planted::AccessesForgotten) {
                result = result.and(self.log_accesses());
            }
            if result.is_ok() {
                *succeeded = round;
            }
        }
        drop(succeeded);
        result.and(self.commit(self.store.position()))
    }
}
