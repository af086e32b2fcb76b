//! Access times: noted in memory, logged when there is a better reason to log.
//!
//! Reading must not cost a write. A note lives in [`Inner::accessed`]; the inode is put on a bounded list, and the notes
//! are logged when the list is full, at [`crate::Filesystem::sync`] and at close. A crash loses the notes that were not
//! logged and nothing else; fsync does not wait for them.
//!
//! Lock order: the list is taken last, and never held while an inode is locked.

use std::sync::Arc;

use parking_lot::Mutex;
use varve_engine::Transaction;
use varve_format::record::inode::Time;

use crate::api::{AccessRule, FileFlags};
use crate::core::Core;
use crate::inode::{Inner, InodeState, Presence};
use crate::subvolume::Slot;
use crate::writeback::Ride;
use crate::{FsError, Result};

/// Inodes whose notes wait, at most.
const WAITING_MAX: usize = 1024;
/// With [`AccessRule::Relative`] an access is noted at least this often, in seconds.
const RELATIVE_SECONDS: i64 = 24 * 60 * 60;

/// The inodes whose access times are to be logged.
#[derive(Default)]
pub struct Accesses {
    waiting: Mutex<Vec<Arc<InodeState>>>,
}

/// Whether the rule wants this access noted.
fn is_due(inner: &Inner, now: Time, rule: AccessRule) -> bool {
    let before = inner.access_time();
    let (mtime, ctime) = inner.times();
    match rule {
        AccessRule::Always => before != now,
        AccessRule::Relative => {
            before <= mtime.max(ctime) || now.seconds.saturating_sub(before.seconds) >= RELATIVE_SECONDS
        }
    }
}

impl Core {
    /// Notes that `state` was read now, if the rule wants it noted.
    pub(crate) fn note_access(&self, state: &Arc<InodeState>, rule: AccessRule) -> Result<()> {
        if self.read_only || self.require_changeable(state.ino).is_err() {
            return Ok(());
        }
        let now = self.now();
        {
            let inner = self.read_lock(state)?;
            let never = FileFlags::of(&inner.record).intersects(FileFlags::NO_ACCESS_TIME);
            if never || !is_due(&inner, now, rule) {
                return Ok(());
            }
        }
        let first = self.hold(state)?.accessed.replace(now).is_none();
        if first {
            let full = {
                let mut waiting = self.accesses.waiting.lock();
                waiting.push(state.clone());
                waiting.len() >= WAITING_MAX
            };
            if full {
                self.log_accesses()?;
            }
        }
        Ok(())
    }

    /// Logs the access times that were noted. One that cannot be logged is forgotten, so that it is noted again at the next access,
    /// and keeps no other from it; the error is the first, but for lack of space.
    pub(crate) fn log_accesses(&self) -> Result<()> {
        let waiting = std::mem::take(&mut *self.accesses.waiting.lock());
        let mut result = Ok(());
        for state in waiting {
            let logged = self.log_access(&state);
            if logged.is_err() {
                state.inner.write().accessed = None;
            }
            result = result.and(logged);
        }
        result
    }

    /// Forgets those in a subvolume that is gone.
    pub(crate) fn forget_accesses(&self, slot: Slot) {
        self.accesses.waiting.lock().retain(|state| Slot::of(state.ino) != slot);
    }

    fn log_access(&self, state: &Arc<InodeState>) -> Result<()> {
        let change = loop {
            let change = self.change(state.ino);
            if change.is_err() || self.frozen_at(state).is_none() {
                break change;
            }
            // The access came after what a snapshot waits for.
            drop(change);
            self.write_back(state, Ride::Allowed)?;
        };
        let change = match change {
            Ok(change) => change,
            // Its subvolume is gone.
            Err(FsError::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut inner = state.inner.write();
        let Some(accessed) = inner.accessed.take() else { return Ok(()) };
        if !matches!(inner.presence, Presence::Live | Presence::Orphan) {
            return Ok(());
        }
        // What a write has changed is logged with its data; this is only about the access.
        let mut record = inner.record.clone();
        record.atime = accessed;
        let mut tx = Transaction::new();
        self.put_record(&change, &mut tx, state.ino, &inner, &mut record)?;
        match self.apply(tx) {
            Ok(_) => inner.logged(&change, record),
            Err(FsError::Engine(varve_engine::EngineError::NoSpace)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
