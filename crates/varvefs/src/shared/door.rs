//! The way into an open pool, and its end: what a call holds while it lasts, and closing waits for.
//!
//! It outlives the handles where a thread of the library's own still commits; that thread has this alone, and no handle.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

use crate::error::{Error, Fault, Reason, Result};

pub(super) enum State {
    Open {
        fs: Arc<varve_fs::Filesystem>,
        /// The file that the pool lies in, if it is one.
        file: Option<Arc<varve_device::FileDevice>>,
    },
    /// Closed.
    Closed {
        /// Everything had become durable.
        clean: bool,
        /// Up to where the log was, in any case.
        durable: varve_fs::Lsn,
    },
}

/// The filesystem, for the duration of one verb. A verb that panics stops the pool: what it has left half done in memory must not
/// be taken for done by a later sync, and the program may well go on.
pub(crate) struct Entered<'s> {
    fs: MappedRwLockReadGuard<'s, varve_fs::Filesystem>,
    /// The thread was unwinding before the verb began: one of a destructor's.
    unwinding: bool,
}

impl Deref for Entered<'_> {
    type Target = varve_fs::Filesystem;

    fn deref(&self) -> &varve_fs::Filesystem {
        &self.fs
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.fs.stop("a call of the library has panicked");
        }
    }
}

/// A pool that is open, or was.
pub(crate) struct Door {
    /// What to call it in messages.
    pub name: String,
    state: RwLock<State>,
    /// The one that has opened it.
    pub process: varve_device::Process,
}

impl Door {
    pub(super) fn new(
        name: String,
        fs: varve_fs::Filesystem,
        file: Option<Arc<varve_device::FileDevice>>,
    ) -> Arc<Door> {
        let state = RwLock::new(State::Open { fs: Arc::new(fs), file });
        Arc::new(Door { name, state, process: varve_device::Process::current() })
    }

    /// Until the close has the filesystem alone it is found as it was.
    pub(crate) fn enter(&self) -> std::result::Result<Entered<'_>, Fault> {
        self.require_own()?;
        Door::found(self.state.read_recursive())
    }

    /// The same, but no longer than `until` beside somebody who is just closing the pool. `None`: the time has passed.
    pub(crate) fn enter_until(
        &self,
        until: Option<Instant>,
    ) -> Option<std::result::Result<Entered<'_>, Fault>> {
        let Some(until) = until else { return Some(self.enter()) };
        if let Err(fault) = self.require_own() {
            return Some(Err(fault));
        }
        self.state.try_read_recursive_until(until).map(Door::found)
    }

    fn found(state: RwLockReadGuard<'_, State>) -> std::result::Result<Entered<'_>, Fault> {
        let fs = RwLockReadGuard::try_map(state, |state| match state {
            State::Open { fs, .. } => Some(&**fs),
            State::Closed { .. } => None,
        })
        .map_err(|_| Reason::Closed)?;
        Ok(Entered { fs, unwinding: std::thread::panicking() })
    }

    /// Looks at what is open, to take something of it along: closing does not wait for who has that.
    pub(super) fn look<T>(
        &self,
        look: impl FnOnce(&Arc<varve_fs::Filesystem>, &Option<Arc<varve_device::FileDevice>>) -> T,
    ) -> std::result::Result<T, Fault> {
        match &*self.state.read_recursive() {
            State::Open { fs, file } => Ok(look(fs, file)),
            State::Closed { .. } => Err(Reason::Closed.into()),
        }
    }

    /// Refuses a forked child, before any lock is taken.
    pub(super) fn require_own(&self) -> std::result::Result<(), Fault> {
        if self.process.is_current() {
            return Ok(());
        }
        let whose =
            "the pool was opened by the process that this one was forked from, which alone can use it";
        Err(Reason::InUse(whose.to_owned()).into())
    }

    /// Whether what has this place in the log was durable when the pool had been closed, with or without an error. To be asked by whom
    /// [`Door::enter`] has refused.
    pub(crate) fn was_durable(&self, upto: varve_fs::Lsn) -> bool {
        let is_durable = |state: &State| match state {
            State::Open { .. } => false,
            State::Closed { clean, durable } => *clean || *durable >= upto,
        };
        self.process.is_current() && is_durable(&self.state.read_recursive())
    }

    /// Waits for the verbs that have begun, makes everything durable and closes.
    pub(super) fn close(&self) -> Result<()> {
        let mut state = self.state.write();
        // Lets go of the device, as soon as those who have borrowed it have ended.
        let durable = match &*state {
            State::Open { fs, .. } => fs.durable_position(),
            State::Closed { clean: true, .. } => return Ok(()),
            State::Closed { clean: false, .. } => {
                return Err(Error::pool("close", &self.name, Reason::Closed));
            }
        };
        let closed = State::Closed { clean: false, durable };
        let State::Open { fs, file } = std::mem::replace(&mut *state, closed) else {
            unreachable!("it was open above, under the same lock");
        };
        drop(file);
        let result = fs.close();
        *state = State::Closed { clean: result.is_ok(), durable: fs.durable_position() };
        result.map_err(|error| Error::pool("close", &self.name, error))
    }

    /// Closes what nobody has a handle of any more, unless that has been done.
    pub(super) fn close_at_last(&self) {
        let closed = State::Closed { clean: false, durable: varve_fs::Lsn(0) };
        let State::Open { fs, file } = std::mem::replace(&mut *self.state.write(), closed) else {
            return;
        };
        drop(file);
        if let Err(error) = fs.close() {
            // Nobody is left to be told; what was synced is safe, and opening recovers the rest as far as it got.
            tracing::error!(pool = %self.name, %error, "closing the pool failed");
        }
    }
}
