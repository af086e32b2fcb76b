//! What all handles of one open pool share: the filesystem below, and which files are open.
//!
//! Invariants:
//! - A verb has begun and not ended exactly as long as its [`Entered`] lives, and closing waits for all that have begun: what a
//!   verb says it has done, a close makes durable. Those that could take long end early ([`Shared::go_on`]). [`Shared::borrow`] is
//!   for what changes nothing, may take hours or calls its user: nobody waits for that.
//! - A child that was forked from the process that opened the pool does nothing to it: neither by a verb nor when its copies of the
//!   handles go. Of what is in memory it has a copy, perhaps in the middle of a change and with locks of threads that it has not.
//! - An inode is open below exactly as long as its [`OpenInode`] lives, and there is at most one of those an inode.
//!
//! Lock order: the door's, shared; then [`OpenInode::order`]; then `open`, under which nothing else is taken. A handle that goes
//! enters once more inside of a verb, past whoever waits to close: so that is only ever taken recursively, and what keeps
//! verbs that begin from keeping the close waiting is `closing`.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Fault, Reason, Result};

mod commits;
mod door;

use commits::Commits;
pub(crate) use door::{Door, Entered};

/// How many go on for long with numbers of inodes that they do not have open: as long as there are any, numbers of subvolumes that have been
/// deleted meanwhile are not given to others.
#[derive(Default)]
struct Walks(Arc<AtomicUsize>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Walk(Arc<AtomicUsize>);

impl Drop for Walk {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An open pool.
pub(crate) struct Shared {
    pub door: Arc<Door>,
    /// What opening it found.
    pub recovery: varve_fs::RecoveryReport,
    /// What its devices had done before it was opened: one that was made by the same call has been written to.
    pub devices_before: Vec<varve_device::StatsSnapshot>,
    walks: Walks,
    /// A close has begun: no verb begins any more.
    closing: AtomicBool,
    open: Mutex<varve_engine::Numbered<varve_fs::InodeId, Weak<OpenInode>>>,
    /// For who waits with a limit.
    pub commits: Commits,
}

impl Shared {
    pub(crate) fn new(
        name: String,
        fs: varve_fs::Filesystem,
        recovery: varve_fs::RecoveryReport,
        file: Option<Arc<varve_device::FileDevice>>,
        devices_before: Vec<varve_device::StatsSnapshot>,
    ) -> Arc<Shared> {
        let walks = Walks::default();
        fs.reuse_numbers({
            let walks = walks.0.clone();
            move |_| walks.load(Ordering::SeqCst) > 0
        });
        let (door, closing) = (Door::new(name, fs, file), AtomicBool::new(false));
        let (open, commits) = (Mutex::default(), Commits::default());
        Arc::new(Shared { door, recovery, devices_before, walks, closing, open, commits })
    }

    /// Somebody goes on with numbers for long, until this is dropped. Before the first of them is looked for.
    pub(crate) fn walk(&self) -> Walk {
        self.walks.0.fetch_add(1, Ordering::SeqCst);
        Walk(self.walks.0.clone())
    }

    /// Begins a verb.
    pub(crate) fn enter(&self) -> std::result::Result<Entered<'_>, Fault> {
        self.go_on()?;
        self.enter_again()
    }

    /// The same for a handle that goes, which may be inside of another verb and while the pool closes, and for a sync that has begun:
    /// until the close has the filesystem alone they find it as it was.
    pub(crate) fn enter_again(&self) -> std::result::Result<Entered<'_>, Fault> {
        self.door.enter()
    }

    /// Refuses to go on when the pool is being closed, between two parts of a verb.
    pub(crate) fn go_on(&self) -> std::result::Result<(), Fault> {
        // One that does not see it yet ends before the close, or is refused after it.
        if self.closing.load(Ordering::Relaxed) { Err(Reason::Closed.into()) } else { Ok(()) }
    }

    /// Runs what nobody waits for: closing may overtake it, and then it is refused whatever it still wants to write.
    pub(crate) fn borrow<T>(
        &self,
        verb: impl FnOnce(&varve_fs::Filesystem) -> std::result::Result<T, Fault>,
    ) -> std::result::Result<T, Fault> {
        self.door.require_own()?;
        self.go_on()?;
        let fs = self.door.look(|fs, _| fs.clone())?;
        verb(&fs).map_err(|fault| match fault.reason {
            Reason::Stopped(_) => self.go_on().err().unwrap_or(fault),
            _ => fault,
        })
    }

    /// Runs what looks at the file that the pool lies in, if it is one. It may wait for the filesystem that holds the file: closing does not
    /// wait for it, as for [`Shared::borrow`].
    pub(crate) fn with_file<T>(
        &self,
        look: impl FnOnce(&varve_device::FileDevice) -> T,
    ) -> std::result::Result<Option<T>, Fault> {
        self.door.require_own()?;
        self.go_on()?;
        let file = self.door.look(|_, file| file.clone())?;
        Ok(file.map(|file| look(&file)))
    }

    /// Waits for the verbs that have begun, makes everything durable and closes.
    pub(crate) fn close(&self) -> Result<()> {
        self.door.require_own().map_err(|fault| Error::pool("close", &self.door.name, fault))?;
        self.closing.store(true, Ordering::Relaxed);
        self.door.close()
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
        if !self.door.process.is_current() {
            // It would write, and wait for threads that there are in the parent only.
            std::mem::forget(self.door.clone());
            return;
        }
        // Who still commits for somebody who has waited does that first. Is it the very thread that this goes on, it closes itself.
        if self.commits.end() {
            self.door.close_at_last();
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
        if !self.shared.door.process.is_current() {
            return;
        }
        if let Ok(fs) = self.shared.enter_again()
            && let Err(error) = fs.release_inode(self.ino)
        {
            // If it was unlinked, it is deleted when the pool is opened again.
            tracing::warn!(pool = %self.shared.door.name, inode = self.ino.0, %error, "releasing a file failed");
        }
        let mut open = self.shared.open.lock();
        if let Entry::Occupied(left) = open.entry(self.ino)
            && left.get().strong_count() == 0
        {
            left.remove();
        }
    }
}

#[cfg(test)]
mod tests;
