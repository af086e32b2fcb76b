//! What all handles of one open pool share: the filesystem below, and which files are open.
//!
//! Invariants:
//! - The filesystem is there until [`Shared::close`] or until the last handle goes. A verb takes a share of it for its
//!   own duration, so closing never pulls it away from under one.
//! - An inode is open below exactly as long as its [`OpenInode`] lives, and there is at most one of those an inode.
//!
//! Lock order: `state`, then nothing; `open`, then nothing.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Fault, Reason, Result};

enum State {
    Open(Arc<varve_fs::Filesystem>),
    /// Closed; whether everything had become durable.
    Closed {
        clean: bool,
    },
}

/// An open pool.
pub(crate) struct Shared {
    /// What to call it in messages.
    pub name: String,
    /// What opening it found.
    pub recovery: varve_fs::RecoveryReport,
    state: RwLock<State>,
    open: Mutex<varve_engine::Numbered<varve_fs::InodeId, Weak<OpenInode>>>,
}

impl Shared {
    pub(crate) fn new(
        name: String,
        fs: varve_fs::Filesystem,
        recovery: varve_fs::RecoveryReport,
    ) -> Arc<Shared> {
        let state = RwLock::new(State::Open(Arc::new(fs)));
        Arc::new(Shared { name, recovery, state, open: Mutex::default() })
    }

    /// The filesystem, for one verb.
    pub(crate) fn enter(&self) -> std::result::Result<Arc<varve_fs::Filesystem>, Fault> {
        match &*self.state.read() {
            State::Open(fs) => Ok(fs.clone()),
            State::Closed { .. } => Err(Reason::Closed.into()),
        }
    }

    /// Whether the pool has been closed with everything durable.
    pub(crate) fn closed_cleanly(&self) -> bool {
        matches!(&*self.state.read(), State::Closed { clean: true })
    }

    /// Makes everything durable and closes. Verbs that begin meanwhile wait and are then refused.
    pub(crate) fn close(&self) -> Result<()> {
        let mut state = self.state.write();
        let result = match &*state {
            State::Open(fs) => fs.close(),
            State::Closed { clean: true } => return Ok(()),
            State::Closed { clean: false } => {
                return Err(Error::pool("close", &self.name, Reason::Closed));
            }
        };
        // Lets go of the device, as soon as verbs that still run have ended.
        *state = State::Closed { clean: result.is_ok() };
        result.map_err(|error| Error::pool("close", &self.name, error))
    }

    /// Makes sure that `ino` is open.
    pub(crate) fn open_inode(
        self: &Arc<Self>,
        fs: &varve_fs::Filesystem,
        ino: varve_fs::InodeId,
    ) -> std::result::Result<Arc<OpenInode>, Fault> {
        if let Some(found) = self.open.lock().get(&ino).and_then(Weak::upgrade) {
            return Ok(found);
        }
        // Outside the lock: it may have to be read.
        fs.open_inode(varve_fs::Caller::ROOT, ino, false)?;
        let new = Arc::new(OpenInode { shared: self.clone(), ino, order: RwLock::new(()) });
        // Somebody else may have come first: then there are two for a moment, which must be one. `new` goes only after
        // the lock, because it takes it.
        let mut open = self.open.lock();
        match open.entry(ino) {
            Entry::Occupied(mut entry) => match entry.get().upgrade() {
                Some(found) => {
                    drop(open);
                    Ok(found)
                }
                None => {
                    entry.insert(Arc::downgrade(&new));
                    Ok(new)
                }
            },
            Entry::Vacant(entry) => {
                entry.insert(Arc::downgrade(&new));
                Ok(new)
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let State::Open(fs) = self.state.get_mut()
            && let Err(error) = fs.close()
        {
            // Nobody is left to be told; what was synced is safe, and opening recovers the rest as far as it got.
            tracing::error!(pool = %self.name, %error, "closing the pool failed");
        }
    }
}

/// An inode that is open: while this lives, it lives, whatever happens to its names.
pub(crate) struct OpenInode {
    shared: Arc<Shared>,
    pub ino: varve_fs::InodeId,
    /// Taken alone by appends, and shared by all other changes of contents and size: so the end at which an append
    /// writes is the end. Held while data is written into memory, which may wait for room there.
    pub order: RwLock<()>,
}

impl OpenInode {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for OpenInode {
    fn drop(&mut self) {
        if let Ok(fs) = self.shared.enter()
            && let Err(error) = fs.release_inode(self.ino)
        {
            // If it was unlinked, it is deleted when the pool is opened again.
            tracing::warn!(pool = %self.shared.name, inode = self.ino.0, %error, "releasing a file failed");
        }
        let mut open = self.shared.open.lock();
        if let Entry::Occupied(left) = open.entry(self.ino)
            && left.get().strong_count() == 0
        {
            left.remove();
        }
    }
}
