//! Whether the mount may still change anything.
//!
//! A panic in a verb is a bug of ours. The request it belonged to is answered with EIO, and from then on nothing more
//! is written, nor in the background: what is in memory can no longer be trusted, what is on disk can. The pool is left as after a
//! crash.
//!
//! Who ends a mount that is still in use has changes end first ([`Health::end_changes`]): what is accepted while the pool is closed
//! could be lost.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use parking_lot::{RwLock, RwLockReadGuard};
use rustix::io::Errno;

use crate::unstored::Unstored;
use varve_fs::{InodeId, shown_number};

/// Errors beyond these are logged only once in [`ERRORS_LOGGED_EVERY`].
const ERRORS_LOGGED_FIRST: u64 = 20;
const ERRORS_LOGGED_EVERY: u64 = 1000;

/// Shared between the threads of a mount and its owner.
#[derive(Default)]
pub struct Health {
    panicked: AtomicBool,
    errors_count: AtomicU64,
    /// How often a file has begun to be one of which something is not stored.
    unstored_count: AtomicU64,
    /// Changes are refused.
    ending: AtomicBool,
    /// Held by whoever changes something for the kernel: for as long as the verb takes, which must not wait for another change that the
    /// kernel asks for.
    changing: RwLock<()>,
    /// Ends all writing.
    stop: OnceLock<Stop>,
    /// What the kernel shows and the pool has not.
    pub(crate) unstored: Unstored,
}

type Stop = Box<dyn Fn(&str) + Send + Sync>;

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Health { panicked, errors_count, unstored_count, ending, changing: _, stop: _, unstored } = self;
        f.debug_struct("Health")
            .field("panicked", panicked)
            .field("errors_count", errors_count)
            .field("unstored_count", unstored_count)
            .field("ending", ending)
            .field("unstored", unstored)
            .finish()
    }
}

thread_local! {
    /// This thread changes something.
    static CHANGES: Cell<bool> = const { Cell::new(false) };
}

/// Something is being changed by this thread.
pub(crate) struct Changing<'h> {
    _changing: RwLockReadGuard<'h, ()>,
}

impl<'h> Changing<'h> {
    fn begin(changing: RwLockReadGuard<'h, ()>) -> Changing<'h> {
        let nested = CHANGES.replace(true);
        debug_assert!(!nested, "whoever ends changes waits for the first, and the second for him");
        Changing { _changing: changing }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        CHANGES.set(false);
    }
}

impl Health {
    /// Whether a verb has panicked. Such a filesystem must not be closed cleanly: let the next mount recover it.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Relaxed)
    }

    /// Has changes refused from now on, and waits for those that are being made.
    pub fn end_changes(&self) {
        self.ending.store(true, SeqCst);
        drop(self.changing.write());
    }

    /// To be kept while something is changed. `None`: the mount ends. Not by a thread that has one already: it would wait for who waits for it.
    pub(crate) fn begin_change(&self) -> Option<Changing<'_>> {
        let may = || !self.ending.load(SeqCst);
        // First without the lock: who comes late does not wait for who is still at it.
        may().then(|| Changing::begin(self.changing.read())).filter(|_| may())
    }

    /// Has `stop` called when something panics, once, with what it was.
    pub(crate) fn on_panic(&self, stop: Stop) {
        let _ = self.stop.set(stop);
    }

    /// Remembers that `verb` has panicked, ends all writing and says so.
    pub(crate) fn note_panic(&self, verb: &str) {
        if !self.panicked.swap(true, Relaxed) {
            if let Some(stop) = self.stop.get() {
                stop(&format!("{verb} has panicked"));
            }
            tracing::error!(
                "{verb} panicked: a bug in VarveFS. Nothing more is written from now on. Unmount and mount again: \
                 everything that was synced is there. Please report the message above this one."
            );
        }
    }

    /// Of a file what the kernel shows could not be written.
    pub(crate) fn note_unstored(&self, ino: u64, offset: u64, bytes: &[u8], error: Errno) {
        if !self.unstored.note(ino, offset, bytes, error) {
            return;
        }
        let count = self.unstored_count.fetch_add(1, Relaxed) + 1;
        let ino = shown_number(InodeId(ino));
        if count <= ERRORS_LOGGED_FIRST || count.is_multiple_of(ERRORS_LOGGED_EVERY) {
            tracing::warn!(
                "what was changed through mmap in inode {ino} cannot be stored: {}; each sync of the file fails until it is, or is written \
                 over or cut off (file {count} of this mount)",
                std::io::Error::from(error)
            );
        }
    }

    /// Logs an error that the caller sees as EIO only: the first few, then one in a thousand.
    pub(crate) fn note_error(&self, verb: &str, ino: u64, error: &varve_fs::FsError) {
        let count = self.errors_count.fetch_add(1, Relaxed) + 1;
        let ino = shown_number(InodeId(ino));
        if count <= ERRORS_LOGGED_FIRST || count.is_multiple_of(ERRORS_LOGGED_EVERY) {
            tracing::error!("{verb} of inode {ino} failed: {error} (error {count} of this mount)");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    // Goal: changes that have begun are waited for, and others are refused at once meanwhile. Method: one is kept while another thread
    // ends them.
    #[test]
    fn who_comes_late_does_not_wait() {
        let health = Health::default();
        thread::scope(|scope| {
            let change = health.begin_change();
            assert!(change.is_some() && scope.spawn(|| health.begin_change().is_some()).join().unwrap());
            let end = scope.spawn(|| health.end_changes());
            while !health.ending.load(SeqCst) {
                thread::yield_now();
            }
            assert!(health.begin_change().is_none() && !end.is_finished());
            drop(change);
            end.join().unwrap();
        });
        assert!(health.begin_change().is_none());
    }
}
