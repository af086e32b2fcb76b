//! From reading to writing: what is open is opened once more, and its lock becomes a writer's.
//!
//! A lock belongs to the open file that has it, and what is written to must be locked by the one that the writes go through
//! (`lock` says why): the new one shares the lock, the old one lets go, the new one's becomes exclusive. Those of what is under a loop
//! device stay where they are. flock(2) lets go of a shared lock before it looks whether there can be an exclusive one: who is refused
//! takes the shared one again, and if a writer was faster, nothing is read any more, for nobody could say what it means.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::lock::{LOCK_ATTEMPTS, LOCK_PAUSE, Lock, locked_error};
use super::open::{is_same, open_unclaimed};
use super::{Backend, FileDevice, FileOptions};
use crate::DeviceError;
use crate::error::Operation;

impl FileDevice {
    /// The same file or block device, opened for writing as well, alone. For one that was opened with
    /// [`super::OpenMode::ReadOnly`], which can be read from as before; its name may lead elsewhere by now. If what this
    /// gives is not going to be used: drop it, then [`FileDevice::share_again`]; until then there can be no other.
    ///
    /// Errors as [`FileDevice::open`]; nothing has changed then.
    pub fn reopen_for_writing(&self) -> Result<FileDevice, DeviceError> {
        self.require_own()?;
        if let Some(lock) = self.locks.first()
            && lock.is_writers()
        {
            return Err(lock.refused());
        }
        let file = self.open_again()?;
        if !is_same(&file, &self.file) {
            let text = "its name leads to something else now".to_owned();
            return Err(DeviceError::Unsupported { device: self.path.display().to_string(), text });
        }
        // What was not to be had then is not asked for now, and what was is not asked for by name.
        let backend = self.rings.is_none().then_some(Backend::Pread);
        let options = FileOptions { backend, direct: self.direct, reuse_existing: false };
        let mut device =
            FileDevice::on(file, self.locks.clone(), self.path.clone(), self.is_block_device, true, options)?;
        device.origin = self.origin.clone();
        // Last: all that can fail for another reason has not.
        self.lock_alone(&device.file)?;
        Ok(device)
    }

    /// Others may read, too. The error: somebody writes to it already, and this device gives errors from now on.
    pub fn share_again(&self) -> Result<(), DeviceError> {
        self.require_own()?;
        self.locks.iter().try_for_each(|lock| self.share_lock(lock))
    }

    /// Whether somebody else may write to what this was opened to read: its lock was let go of to become a writer's, and is not
    /// to be had back. Reads give errors from then on.
    pub fn has_lost_lock(&self) -> bool {
        self.lock_lost.load(Relaxed)
    }

    fn share_lock(&self, lock: &Lock) -> Result<(), DeviceError> {
        loop {
            match lock.ask_shared() {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.lock_lost.store(true, Relaxed);
                    return Err(lock.refused());
                }
            }
        }
    }

    pub(super) fn lost_error(&self) -> DeviceError {
        DeviceError::LockedBy(format!(
            "{} may have been written to by another process since it was opened for reading; close it and open it again",
            self.path.display()
        ))
    }

    fn open_again(&self) -> Result<File, DeviceError> {
        let exclusive = if self.is_block_device { OFlags::EXCL } else { OFlags::empty() };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags((exclusive | OFlags::NOCTTY).bits().cast_signed());
        let again = match open_unclaimed(&options, format!("/proc/self/fd/{}", self.file.as_raw_fd())) {
            // No /proc.
            Err(error) if error.kind() == io::ErrorKind::NotFound => open_unclaimed(&options, &self.path),
            again => again,
        };
        again.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => locked_error(&self.path, None),
            _ => self.os_error(Operation::Open, 0, 0, &error),
        })
    }

    /// Makes all locks exclusive, or none: the same ones are shared again, those that have been made exclusive too.
    /// That of this very file becomes `writer`'s.
    fn lock_alone(&self, writer: &File) -> Result<(), DeviceError> {
        for (i, lock) in self.locks.iter().enumerate() {
            if let Err(error) = self.take_alone(lock, (i == 0).then_some(writer)) {
                self.share_again()?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn take_alone(&self, lock: &Lock, writer: Option<&File>) -> Result<(), DeviceError> {
        for _ in 0..LOCK_ATTEMPTS {
            let refused = match lock.ask_alone(writer) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            self.share_lock(lock)?;
            match refused {
                Errno::WOULDBLOCK if !lock.may_become_free(1) => break,
                Errno::WOULDBLOCK | Errno::INTR => std::thread::sleep(LOCK_PAUSE),
                // Over a network, who reads gets no exclusive lock (BADF).
                _ => {
                    let text = format!("it cannot be locked by who began with reading it: {refused}");
                    return Err(DeviceError::Unsupported { device: self.path.display().to_string(), text });
                }
            }
        }
        Err(lock.refused())
    }
}
