//! A regular file or a block device as a [`Device`]: direct I/O where the filesystem below has it, one
//! writer at a time.
//!
//! Invariants: requests are checked before they reach the kernel; a partial transfer is carried on to its
//! end or reported; the lock is held as long as the `FileDevice` lives (or one that was made of it by reopening); the process that
//! opened it uses it, and no child that was forked from that.
//! Must not know: what is stored.

mod holder;
mod host;
mod lock;
mod loops;
mod open;
mod reopen;
mod state;
mod uring;
mod whole;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::Operation;
use crate::request::check_range;
use crate::{Counters, Device, DeviceError, Discarded, Process, Request, StatsSnapshot};
use lock::Lock;
pub use loops::{FileId, file_of_storage};
pub use state::FileState;
use state::Origin;
use uring::RingPool;

/// How groups of requests reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// io_uring: a group is in flight all at once.
    Uring,
    /// pread and pwrite, one request after the other.
    Pread,
}

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading, beside other readers; refused while a writer has it.
    ReadOnly,
    /// Reading whatever is there, also while a writer changes it: for inspection only.
    ReadOnlyUnlocked,
    /// Reading and writing, alone.
    ReadWrite,
    /// Makes a sparse regular file of this size (mode 0600), then as `ReadWrite`. Refused if the file exists, unless
    /// [`FileOptions::reuse_existing`].
    Create {
        /// Size of the file in bytes.
        size_bytes: u64,
    },
}

/// Details of opening that have good defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOptions {
    /// Which backend; `None` takes io_uring if the kernel allows it. Asking for [`Backend::Uring`] where it is
    /// not to be had is an error.
    pub backend: Option<Backend>,
    /// Try direct I/O (the default). Without it, and on filesystems that refuse it, the page cache is used.
    pub direct: bool,
    /// With [`OpenMode::Create`]: take an existing regular file, keep its bytes, set its size.
    pub reuse_existing: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { backend: None, direct: true, reuse_existing: false }
    }
}

/// Name of the environment variable that forces a backend: `uring` or `pread`.
const BACKEND_VARIABLE: &str = "VARVE_DEVICE_BACKEND";

impl FileOptions {
    /// The defaults, with the backend named by the environment variable `VARVE_DEVICE_BACKEND` (`uring` or
    /// `pread`) if it is set.
    #[must_use]
    pub fn from_env() -> Self {
        let backend = match std::env::var(BACKEND_VARIABLE).as_deref() {
            Ok("uring") => Some(Backend::Uring),
            Ok("pread") => Some(Backend::Pread),
            Ok(other) => {
                tracing::warn!(value = other, "{BACKEND_VARIABLE} is neither uring nor pread: ignored");
                None
            }
            Err(_) => None,
        };
        Self { backend, ..Self::default() }
    }
}

/// A regular file or block device, opened and locked.
pub struct FileDevice {
    file: File,
    /// Open files with the locks that it has, or that it shares with what it was reopened from; they go with it.
    locks: Vec<Lock>,
    /// Others may have written to it since it was opened for reading.
    lock_lost: AtomicBool,
    /// The one that has opened it.
    process: Process,
    path: PathBuf,
    /// How it was when it was opened first.
    origin: Arc<Origin>,
    size_bytes: u64,
    is_block_device: bool,
    writable: bool,
    direct: bool,
    /// `None`: the fallback backend.
    rings: Option<RingPool>,
    /// One flush at a time goes through each of these, and none through two descriptors at once: the kernel reports a
    /// failed write once on every open file, so that of two flushes that overlap on one file only one would learn of it.
    flush_turns: Vec<FlushTurn>,
    counters: Counters,
    /// How long a write waits for the filesystem below.
    patience_ms: AtomicU64,
}

/// An open file for one flush at a time; `None`: the device's own.
struct FlushTurn(Mutex<Option<File>>);

impl FileDevice {
    /// Opens `path` with [`FileOptions::from_env`].
    ///
    /// Errors: [`DeviceError::NotFound`], [`DeviceError::AlreadyExists`], [`DeviceError::LockedBy`],
    /// [`DeviceError::NotPermitted`], [`DeviceError::Unsupported`] for what is neither a regular file nor a
    /// block device, [`DeviceError::Io`].
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, DeviceError> {
        Self::open_with(path, mode, FileOptions::from_env())
    }

    /// The backend in use.
    #[must_use]
    pub fn backend(&self) -> Backend {
        if self.rings.is_some() { Backend::Uring } else { Backend::Pread }
    }

    /// Whether I/O bypasses the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether this is a block device (else a regular file).
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path, kind, size and how I/O is done, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} ({}, {} bytes, {}, {}, {})",
            self.path.display(),
            if self.is_block_device { "block device" } else { "regular file" },
            self.size_bytes,
            if self.writable { "read-write" } else { "read-only" },
            if self.direct { "direct" } else { "buffered" },
            match self.backend() {
                Backend::Uring => "io_uring",
                Backend::Pread => "pread/pwrite",
            },
        )
    }

    /// A forked child would write where its parent does, and change the lock and the rings that it shares with it.
    fn require_own(&self) -> Result<(), DeviceError> {
        if self.process.is_current() {
            return Ok(());
        }
        let whose = "was opened by the process that this one was forked from, which alone can use it";
        Err(DeviceError::LockedBy(format!("{} {whose}", self.path.display())))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), DeviceError> {
        if !self.writable {
            if request.operation() == Operation::Write {
                return Err(self.read_only_error(Operation::Write));
            }
            if self.lock_lost.load(Relaxed) {
                return Err(self.lost_error());
            }
        }
        request.check(self.size_bytes, || self.name())
    }

    fn read_only_error(&self, operation: Operation) -> DeviceError {
        DeviceError::NotPermitted { operation, device: self.name(), text: "it is open read-only".to_owned() }
    }

    fn os_error(&self, operation: Operation, offset: u64, len_bytes: u64, error: &io::Error) -> DeviceError {
        DeviceError::from_os(operation, self.name(), offset, len_bytes, error)
    }

    /// One request by pread or pwrite, from byte `done` of it on, until all is transferred.
    fn transfer(&self, request: &mut Request<'_>, mut done: usize) -> Result<(), DeviceError> {
        let (operation, offset, len_bytes) = (request.operation(), request.offset(), request.len_bytes());
        while (done as u64) < len_bytes {
            let at = offset + done as u64;
            let moved = match request {
                Request::Read { buf, .. } => self.file.read_at(&mut buf[done..], at),
                Request::Write { buf, .. } => self.file.write_at(&buf[done..], at),
            };
            match moved {
                Ok(0) => return Err(self.short_error(operation, offset, len_bytes, done)),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.transfer_error(operation, offset, len_bytes, done, &error)),
            }
        }
        Ok(())
    }

    /// What has failed after `done` bytes. Behind the end of a block device the kernel says that there is no space.
    fn transfer_error(
        &self,
        operation: Operation,
        offset: u64,
        len_bytes: u64,
        done: usize,
        error: &io::Error,
    ) -> DeviceError {
        let is_behind_end = Errno::from_io_error(error) == Some(Errno::NOSPC)
            && self.is_block_device
            && open::block_size_bytes(self.file.as_fd()).is_ok_and(|now| now < offset + len_bytes);
        if is_behind_end {
            return self.short_error(operation, offset, len_bytes, done);
        }
        self.os_error(operation, offset, len_bytes, error)
    }

    fn short_error(&self, operation: Operation, offset: u64, len_bytes: u64, done: usize) -> DeviceError {
        DeviceError::Short { operation, device: self.name(), offset, len_bytes, done_bytes: done as u64 }
    }

    fn record(
        &self,
        operation: Operation,
        len_bytes: u64,
        latency: Duration,
        result: &Result<(), DeviceError>,
    ) {
        self.counters.record(operation, len_bytes, latency, result.is_ok());
    }

    fn run_one_by_one(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let started = Instant::now();
        requests
            .iter_mut()
            .map(|request| {
                let result = self.check(request).and_then(|()| self.transfer(request, 0));
                self.record(request.operation(), request.len_bytes(), started.elapsed(), &result);
                result
            })
            .collect()
    }

    /// The group through io_uring; what the ring could not carry is done by pread and pwrite.
    fn run_in_flight(&self, rings: &RingPool, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let started = Instant::now();
        let mut results: Vec<_> = requests.iter().map(|request| self.check(request)).collect();
        let Some(outcomes) = rings.run(&self.file, requests, &results, started) else {
            return self.run_one_by_one(requests);
        };
        for ((request, result), outcome) in requests.iter_mut().zip(&mut results).zip(outcomes) {
            let (operation, offset, len_bytes) = (request.operation(), request.offset(), request.len_bytes());
            let mut latency = outcome.latency;
            if result.is_ok() {
                match outcome.error {
                    Some(errno) => {
                        let error = io::Error::from_raw_os_error(errno);
                        *result = Err(self.transfer_error(operation, offset, len_bytes, 0, &error));
                    }
                    // A short or interrupted transfer is rare: carry it on the simple way, which also finds out
                    // whether the device has become shorter.
                    None if (outcome.done_bytes as u64) < len_bytes => {
                        *result = self.transfer(request, outcome.done_bytes);
                        latency = started.elapsed();
                    }
                    None => {}
                }
            }
            self.record(operation, len_bytes, latency, result);
        }
        results
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        if let Err(error) = self.require_own() {
            return vec![Err(error); requests.len()];
        }
        let mut results = match &self.rings {
            // A single request gains nothing from a ring: one system call either way.
            Some(rings) if requests.len() > 1 => self.run_in_flight(rings, requests),
            _ => self.run_one_by_one(requests),
        };
        if results.iter().any(Result::is_err) {
            self.outlast(requests, &mut results);
        }
        results
    }

    fn rewrite_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.require_own()?;
        self.run_one_by_one(&mut [Request::Write { offset, buf }]).pop().unwrap_or(Ok(()))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.require_own()?;
        let started = Instant::now();
        let free = self.flush_turns.iter().find_map(|turn| turn.0.try_lock());
        // A third flush waits for one of the others: nobody else is kept from anything meanwhile.
        let turn = free.unwrap_or_else(|| self.flush_turns[0].0.lock());
        let file = turn.as_ref().unwrap_or(&self.file);
        // No retry after a failure: the kernel may have dropped the dirty pages or the drive its cache, and a
        // second call would report success for bytes that are gone.
        let result = loop {
            match file.sync_data() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|error| self.os_error(Operation::Flush, 0, 0, &error)),
            }
        };
        self.record(Operation::Flush, 0, started.elapsed(), &result);
        result
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.require_own()?;
        if !self.writable {
            return Err(self.read_only_error(Operation::Discard));
        }
        check_range(Operation::Discard, offset, len_bytes, self.size_bytes, || self.name())?;
        if len_bytes == 0 {
            return Ok(Discarded::Done);
        }
        let started = Instant::now();
        let done = loop {
            let attempt = if self.is_block_device {
                open::block_discard(self.file.as_fd(), offset, len_bytes)
            } else {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, offset, len_bytes)
            };
            if attempt != Err(Errno::INTR) {
                break attempt;
            }
        };
        let result = match done {
            Ok(()) => Ok(()),
            // A device that cannot discard loses nothing by not doing it: neither a discard nor an error to count.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => return Ok(Discarded::NotSupported),
            Err(errno) => Err(self.os_error(Operation::Discard, offset, len_bytes, &errno.into())),
        };
        self.record(Operation::Discard, len_bytes, started.elapsed(), &result);
        result.map(|()| Discarded::Done)
    }

    fn stats(&self) -> StatsSnapshot {
        self.counters.snapshot()
    }
}
