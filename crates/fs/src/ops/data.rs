//! Handles and durability: open, release, fsync.

use varve_engine::planted::{Planted, is};
use varve_engine::{EngineError, InodeId, Lsn, Transaction};
use varve_format::record::orphan::OrphanState;

use crate::api::{Caller, SetAttr};
use crate::core::Core;
use crate::inode::{InodeState, Presence};
use crate::reaper::Task;
use crate::table::orphans;
use crate::writeback::{RIDING_PAGES_MAX, Ride};
use crate::{FsError, Result};

impl Core {
    pub(crate) fn open_inode(&self, caller: Caller, ino: InodeId, truncate: bool) -> Result<()> {
        if truncate {
            self.admit(ino)?;
        }
        let state = self.state(ino);
        self.hold(&state)?.opens += 1;
        if truncate {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            if let Err(error) = self.setattr(caller, ino, set) {
                if self.release_inode(ino)? {
                    let _ = self.log_anew(ino);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether [`Core::log_anew`] is to be called of it now.
    pub(crate) fn release_inode(&self, ino: InodeId) -> Result<bool> {
        let state = self.state(ino);
        // Only the end of an orphan is a change: anything else can be let go of in a read-only subvolume, in one that has
        // been deleted, and in a fresh snapshot without giving that a version of its own.
        {
            let mut inner = state.inner.write();
            inner.opens = inner.opens.checked_sub(1).ok_or(FsError::Invalid)?;
            if inner.opens > 0 || inner.presence != Presence::Orphan {
                // Also what somebody is writing back just now, which is not logged yet.
                let anew = inner.cut && !inner.pages.is_empty();
                // Whoever else has it open may be the one who writes it anew.
                inner.cut &= !anew || inner.opens > 0;
                return Ok(anew);
            }
        }
        let ended = self.end_orphan(&state);
        if ended.is_err() && !is(Planted::LetGoForgotten) {
            // The handle has ended all the same, and nobody will ask for this again: what is left is the reaper's.
            let mut inner = state.inner.write();
            if inner.opens == 0 && inner.presence == Presence::Orphan {
                self.forget(&mut inner);
                self.reap.push(Task::Orphan(ino));
            }
        }
        self.part_with(state);
        ended.map(|()| false)
    }

    /// Logs a file that was cut, written anew and closed. The cut is in the log, and the data would come there some seconds later: until
    /// then any commit, of whatever else, would leave an empty file after a crash. So ext4 (`auto_da_alloc`), XFS and btrfs do. What
    /// little may ride with the log costs no write of its own; of more the thread that writes ahead is told, if there is one.
    ///
    /// What fails stays dirty, and whoever waits for it hears of that.
    pub(crate) fn log_anew(&self, ino: InodeId) -> Result<()> {
        let state = self.state(ino);
        let pages = state.inner.read().pages.map.len() as u64;
        if pages > RIDING_PAGES_MAX && self.dirty.ahead.write_soon(&state) {
            return Ok(());
        }
        self.write_back(&state, Ride::Allowed)
    }

    /// The last handle of an inode without a name has ended: it goes, or as much of it as one transaction can take.
    fn end_orphan(&self, state: &InodeState) -> Result<()> {
        let change = match self.change(state.ino) {
            // Its subvolume has been deleted just now, and takes it along.
            Err(FsError::Stale) => return Ok(()),
            change => change?,
        };
        let mut inner = state.inner.write();
        if inner.opens > 0 || inner.presence != Presence::Orphan {
            // It has been opened once more, by its number.
            return Ok(());
        }
        let mut tx = Transaction::new();
        let done = self.dispose_step(&change, &mut tx, state.ino, &inner.record)?;
        if done {
            orphans::delete(&mut tx, state.ino);
        } else {
            orphans::put(&mut tx, state.ino, OrphanState::Deleting, &inner.record);
        }
        tx.privileged();
        tx.spares_nothing();
        self.apply(tx)?;
        self.forget(&mut inner);
        if !done {
            self.reap.push(Task::Orphan(state.ino));
        }
        Ok(())
    }

    pub(crate) fn take_over_handles(&self, from: &Core) -> Result<()> {
        for (ino, opens) in from.inodes.open() {
            self.hold(&self.state(ino))?.opens = opens;
        }
        Ok(())
    }

    /// Logs a file's data. The inode must exist.
    pub(crate) fn flush_file(&self, ino: InodeId) -> Result<()> {
        let state = self.state(ino);
        drop(self.read_lock(&state)?);
        self.write_back(&state, Ride::Allowed)
    }

    pub(crate) fn fsync(&self, ino: InodeId) -> Result<()> {
        self.flush_file(ino)?;
        self.complete_with(ino)?;
        self.commit(self.store.position())
    }

    /// Makes the log durable up to `upto`.
    pub(crate) fn commit(&self, upto: Lsn) -> Result<()> {
        self.require_running()?;
        if is(Planted::OvertakenUnflushed) && upto < self.store.position() {
            return Ok(());
        }
        if upto > self.store.durable_position() {
            self.store.commit(upto)?;
        }
        Ok(())
    }

    /// A pool that has stopped may have lost what was to be written, although everything in the log is durable.
    pub(crate) fn require_running(&self) -> Result<()> {
        self.store.stopped().map_or(Ok(()), |why| Err(why.into()))
    }

    pub(crate) fn fsync_then(&self, ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) {
        let logged = self.thawing(|| self.flush_file(ino)).and_then(|()| self.complete_with(ino));
        let logged = logged.and_then(|()| self.require_running());
        if let Err(error) = logged {
            return done(Err(error));
        }
        let upto = self.store.position();
        if upto <= self.store.durable_position() {
            return done(Ok(()));
        }
        let done = move |result: std::result::Result<(), EngineError>| done(result.map_err(FsError::from));
        self.store.commit_then(upto, Box::new(done));
    }
}
