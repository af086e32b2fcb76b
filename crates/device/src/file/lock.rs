//! The locks of a device: its own, and that of the file under a loop device, so that one file is not written to under two names.
//!
//! Each lock is a `flock` and belongs to an open file; all of a device's are shared or all are exclusive. Order: the device that
//! was named first, then the file under it. Whoever finds one taken lets go of all.
//! A file that cannot be opened (deleted, or in another mount namespace) cannot be locked: then the other loop devices over it
//! are locked in its place, and so they are by who opens such a file by a name that is left.
//!
//! A process that is killed may leave requests in flight, which write later and keep nothing but the open file that they go
//! through. So what is written to is locked by just that open file; and where that is a loop device, the file under it is not locked
//! any more: whoever has a file's lock asks once for those of all loop devices over it. (Not of loop devices on these.)

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::OpenMode;
use super::holder::{describe_holder, held_by_living, lock_holder};
use super::loops::{self, Bottom, FileId};
use crate::error::Operation;
use crate::{DeviceError, Process};

/// Others look at block devices for a moment when they appear (they take a shared lock), and the lock of a process
/// that was killed with I/O in flight outlives it until the kernel has taken its io_uring apart in the background: a
/// lock is asked for again this often before it is given up.
pub(super) const LOCK_ATTEMPTS: u32 = 80;
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// An open file with a lock, and what to call it. Copies are of one lock, which ends with the last of them.
#[derive(Clone)]
pub(super) struct Lock {
    held: Arc<Held>,
    /// Path of the device that was asked for, and of what is under it.
    path: PathBuf,
    under: Option<PathBuf>,
    is_block_device: bool,
}

/// An open file whose lock ends with this. Closing it would not do: a process that another thread starts has a copy of every
/// descriptor until its program begins, and the lock would live as long.
struct Held {
    file: File,
    /// What it was opened once more as, to be written to: if there is one, that has the lock.
    writer: Mutex<Option<File>>,
    process: Process,
}

impl Held {
    fn new(file: File) -> Arc<Held> {
        Arc::new(Held { file, writer: Mutex::new(None), process: Process::current() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A forked child would let go of its parent's lock.
        if self.process.is_current() {
            // If it has none, nothing is lost; and closing is what is left.
            for file in self.writer.get_mut().iter().chain([&self.file]) {
                let _ = flock(file, FlockOperation::Unlock);
            }
        }
    }
}

impl Lock {
    /// Asks once.
    fn ask(&self, operation: FlockOperation) -> Result<(), Errno> {
        flock(&self.held.file, operation)
    }

    /// Asks once for a shared one, also where a writer has it: that lets go of it, and there is no moment without a lock.
    pub(super) fn ask_shared(&self) -> Result<(), Errno> {
        let mut writer = self.held.writer.lock();
        if let Some(writer) = &*writer {
            flock(writer, FlockOperation::NonBlockingLockShared)?;
        }
        self.ask(FlockOperation::NonBlockingLockShared)?;
        if let Some(writer) = writer.take() {
            // Closing it would not do, as above; else it has none.
            let _ = flock(&writer, FlockOperation::Unlock);
        }
        Ok(())
    }

    /// From shared to exclusive, asked once; with `writer`, the same file opened once more, it is that one's from then on. An error
    /// leaves nobody with a lock that is good for anything: ask for the shared one again.
    pub(super) fn ask_alone(&self, writer: Option<&File>) -> Result<(), Errno> {
        let Some(writer) = writer else { return self.ask(FlockOperation::NonBlockingLockExclusive) };
        let kept = writer.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        // Shared by both, then by the new one alone, whom nobody is in the way of: there is no moment without a lock.
        flock(writer, FlockOperation::NonBlockingLockShared)?;
        let alone = self
            .ask(FlockOperation::Unlock)
            .and_then(|()| flock(writer, FlockOperation::NonBlockingLockExclusive));
        match alone {
            Ok(()) => *self.held.writer.lock() = Some(kept),
            // The kernel's own locks are gone then, others may be shared still: who asked hears of it when asking for the shared one.
            Err(_) => {
                let _ = self.ask(FlockOperation::NonBlockingLockShared);
                let _ = flock(writer, FlockOperation::Unlock);
            }
        }
        alone
    }

    /// Whether a writer has it, made by reopening, that has not shared it again.
    pub(super) fn is_writers(&self) -> bool {
        self.held.writer.lock().is_some()
    }

    /// Whether it is of use to ask again: not if a living process has a file, of whose locks `own_locks` are ours, or has a block
    /// device alone.
    pub(super) fn may_become_free(&self, own_locks: usize) -> bool {
        if self.is_block_device {
            !is_had_alone(self.held.file.metadata())
        } else {
            !held_by_living(&self.held.file, own_locks)
        }
    }

    /// Somebody else has it.
    pub(super) fn refused(&self) -> DeviceError {
        match &self.under {
            None => locked_error(&self.path, Some(&self.held.file)),
            Some(under) => {
                let how = if self.is_block_device { "the same file as " } else { "" };
                let what = format!("{} is stored in {how}{}, which", self.path.display(), under.display());
                DeviceError::LockedBy(sentence(&what, describe_holder(under, Some(&self.held.file))))
            }
        }
    }

    fn take(&self, operation: FlockOperation) -> Result<(), DeviceError> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.ask(operation) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) if !self.may_become_free(0) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => {
                    let name = self.path.display().to_string();
                    return Err(DeviceError::from_os(Operation::Open, name, 0, 0, &errno.into()));
                }
            }
        }
        Err(self.refused())
    }
}

/// Takes the locks that `mode` asks for: those of `file`, which was opened as `path`, and of what is under it.
pub(super) fn take(
    file: &File,
    path: &Path,
    mode: OpenMode,
    is_block_device: bool,
) -> Result<Vec<Lock>, DeviceError> {
    let operation = match mode {
        OpenMode::ReadOnlyUnlocked => return Ok(Vec::new()),
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        OpenMode::ReadWrite | OpenMode::Create { .. } => FlockOperation::NonBlockingLockExclusive,
    };
    let os_error = |error| DeviceError::from_os(Operation::Open, path.display().to_string(), 0, 0, &error);
    let held = Held::new(file.try_clone().map_err(os_error)?);
    let lock = Lock { held, path: path.to_owned(), under: None, is_block_device };
    lock.take(operation)?;
    let mut locks = vec![lock];
    let under = |(file, under), is_block_device| Lock {
        held: Held::new(file),
        path: path.to_owned(),
        under: Some(under),
        is_block_device,
    };
    // Asked for when all others are had, and let go of: a device that is open cannot be taken away.
    let mut asked = Vec::new();
    if !is_block_device {
        let id = FileId::of(&file.metadata().map_err(os_error)?);
        for over in loops::devices_over(id, None) {
            let list = if over.is_hidden { &mut locks } else { &mut asked };
            list.push(under((over.file, over.path), true));
        }
    } else {
        match loops::bottom(file) {
            Bottom::Device => {}
            Bottom::File(file, path, directory) => {
                let id = FileId::of(&file.metadata().map_err(os_error)?);
                locks.push(under((file, path), false));
                let others = loops::devices_over(id, Some(&directory));
                asked.extend(others.into_iter().map(|over| under((over.file, over.path), true)));
            }
            Bottom::OutOfReach(id, directory) => {
                let others = loops::devices_over(id, Some(&directory));
                locks.extend(others.into_iter().map(|over| under((over.file, over.path), true)));
                // Who had the file before its name was gone has locked the file alone.
                let alone = operation == FlockOperation::NonBlockingLockExclusive;
                if let Some(holder) = lock_holder(id, alone) {
                    let what = format!("the file under {}", path.display());
                    return Err(DeviceError::LockedBy(sentence(&what, Some(holder))));
                }
            }
        }
    }
    for lock in locks[1..].iter().chain(&asked) {
        lock.take(operation)?;
    }
    Ok(locks)
}

/// Whether a living process has an exclusive lock on it, as those have who write to a pool: who looks at a device that has appeared has
/// a shared one.
pub(super) fn is_had_alone(metadata: io::Result<Metadata>) -> bool {
    metadata.is_ok_and(|metadata| lock_holder(FileId::of(&metadata), false).is_some())
}

pub(super) fn locked_error(path: &Path, file: Option<&File>) -> DeviceError {
    DeviceError::LockedBy(sentence(&path.display().to_string(), describe_holder(path, file)))
}

fn sentence(what: &str, holder: Option<String>) -> String {
    match holder {
        Some(holder) => format!("{what} is in use by {holder}"),
        None => format!("{what} is in use by another process or mounted"),
    }
}
