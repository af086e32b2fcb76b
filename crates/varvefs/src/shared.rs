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
//! Lock order: `state`, shared; then [`OpenInode::order`]; then `open`, under which nothing else is taken. A handle that goes
//! enters once more inside of a verb, past whoever waits to close: so `state` is only ever taken recursively, and what keeps
//! verbs that begin from keeping the close waiting is `closing`.

use std::collections::hash_map::Entry;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use crate::error::{Error, Fault, Reason, Result};

mod commits;

use commits::Commits;

enum State {
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
    /// What to call it in messages.
    pub name: String,
    /// What opening it found.
    pub recovery: varve_fs::RecoveryReport,
    /// What its devices had done before it was opened: one that was made by the same call has been written to.
    pub devices_before: Vec<varve_device::StatsSnapshot>,
    walks: Walks,
    state: RwLock<State>,
    /// A close has begun: no verb begins any more.
    closing: AtomicBool,
    /// The one that has opened it.
    process: varve_device::Process,
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
        let state = RwLock::new(State::Open { fs: Arc::new(fs), file });
        let closing = AtomicBool::new(false);
        let process = varve_device::Process::current();
        let (open, commits) = (Mutex::default(), Commits::default());
        Arc::new(Shared { name, recovery, devices_before, walks, state, closing, process, open, commits })
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
        self.require_own()?;
        let fs = RwLockReadGuard::try_map(self.state.read_recursive(), |state| match state {
            State::Open { fs, .. } => Some(&**fs),
            State::Closed { .. } => None,
        })
        .map_err(|_| Reason::Closed)?;
        Ok(Entered { fs, unwinding: std::thread::panicking() })
    }

    /// Refuses a forked child, before any lock is taken.
    fn require_own(&self) -> std::result::Result<(), Fault> {
        if self.process.is_current() {
            return Ok(());
        }
        let whose =
            "the pool was opened by the process that this one was forked from, which alone can use it";
        Err(Reason::InUse(whose.to_owned()).into())
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
        self.require_own()?;
        self.go_on()?;
        let fs = match &*self.state.read_recursive() {
            State::Open { fs, .. } => fs.clone(),
            State::Closed { .. } => return Err(Reason::Closed.into()),
        };
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
        self.require_own()?;
        self.go_on()?;
        let file = match &*self.state.read_recursive() {
            State::Open { file, .. } => file.clone(),
            State::Closed { .. } => return Err(Reason::Closed.into()),
        };
        Ok(file.map(|file| look(&file)))
    }

    /// Whether what has this place in the log was durable when the pool had been closed, with or without an error. To be asked by whom
    /// [`Shared::enter_again`] has refused.
    pub(crate) fn was_durable(&self, upto: varve_fs::Lsn) -> bool {
        let is_durable = |state: &State| match state {
            State::Open { .. } => false,
            State::Closed { clean, durable } => *clean || *durable >= upto,
        };
        self.process.is_current() && is_durable(&self.state.read_recursive())
    }

    /// Waits for the verbs that have begun, makes everything durable and closes.
    pub(crate) fn close(&self) -> Result<()> {
        self.require_own().map_err(|fault| Error::pool("close", &self.name, fault))?;
        self.closing.store(true, Ordering::Relaxed);
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
        // Nobody is left to ask what was durable.
        let closed = State::Closed { clean: false, durable: varve_fs::Lsn(0) };
        let State::Open { fs, file } = std::mem::replace(self.state.get_mut(), closed) else {
            return;
        };
        if !self.process.is_current() {
            // It would write, and wait for threads that there are in the parent only.
            std::mem::forget((fs, file));
            return;
        }
        if let Err(error) = fs.close() {
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
        if !self.shared.process.is_current() {
            return;
        }
        if let Ok(fs) = self.shared.enter_again()
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

#[cfg(test)]
mod tests;
