//! The filesystem behind a mount. One that was opened for writing stays until the end. In the place of one that was opened
//! for reading the same pool can be put, opened for writing, while the mount is in use:
//!
//! 1. What came through the control socket is waited for; requests of the kernel are answered as before.
//! 2. The device is opened for writing as well, and its lock becomes a writer's. *Looking for who has it locked may look at
//!    files of this very mount, so the kernel must still get its answers.*
//! 3. The pool must be as it was when it was mounted: there are programs that heed no lock, and for a moment of step 2 the device
//!    was not locked at all. Looked at before anything is written.
//! 4. Requests of the kernel wait. The pool is opened (and recovered) for writing, and what the kernel has open is counted as
//!    open there. Inode numbers, places in directories and contents are those that the kernel knows.
//! 5. From here on requests go there, and the other is let go of.
//!
//! Whatever fails, the filesystem that was opened for reading goes on. Its lock is a reader's again; where somebody who writes
//! was faster, nothing more is read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use varve_device::{AlignedBuf, Device, DeviceError, FileDevice, OpenMode};
use varve_fs::{Caller, EngineError, Filesystem, FsError, OpenOptions, RecoveryReport, StoreOptions};
use varve_mount::{Exchange, Outside};

use crate::clock::SystemClock;
use crate::names::Shown;
use crate::options::Options;
use crate::pool;
use crate::versions::PANICKED;

/// What begins the error for a change that is done and could not be made durable; what keeps it from that follows.
pub const NOT_DURABLE: &str = "it is done, but not durable";

/// How the pool of a mount is opened.
pub struct Opening {
    pub pool: PathBuf,
    pub options: Options,
    /// Where everything that happens on the device is written down, if it is written to.
    pub record_log: Option<PathBuf>,
}

/// The filesystem that is mounted.
pub struct Current {
    state: RwLock<State>,
    /// What the filesystem lies on; `None`: no file. Apart from the state, which an exchange keeps for long.
    file: Mutex<Option<Arc<FileDevice>>>,
    /// Held by who changes something for the control socket, so that it is not closed beside that.
    changing: RwLock<()>,
    closing: AtomicBool,
    /// How closing it went, in words if it failed.
    outcome: OnceLock<std::result::Result<(), String>>,
}

struct State {
    filesystem: Arc<Filesystem>,
    /// `None`: it can be written to.
    reading: Option<Reading>,
    closed: bool,
}

/// What it takes to begin writing.
struct Reading {
    device: Arc<FileDevice>,
    exchange: Arc<Exchange<Filesystem>>,
    opening: Opening,
    /// What is lost, so that what came last is not shown.
    log_ended_reason: Option<String>,
    /// An attempt to begin has written to the device before it failed: what has changed since then was not another process.
    written: AtomicBool,
}

/// How long writing waits for somebody to make room on the filesystem that holds the pool's file. systemd waits for longer when it
/// stops the unit.
const HOST_PATIENCE: Duration = Duration::from_secs(120);

impl Opening {
    fn open(&self, file: Arc<FileDevice>, read_only: bool) -> Result<(Filesystem, RecoveryReport)> {
        let device: Arc<dyn Device> =
            if read_only { file.clone() } else { recorded(self.record_log.as_deref(), file.clone())? };
        let store = StoreOptions {
            read_only,
            cache_bytes: self.options.cache_bytes,
            background: true,
            ..StoreOptions::default()
        };
        let options = OpenOptions {
            store,
            dirty_bytes_max: self.options.dirty_bytes_max,
            clock: Arc::new(SystemClock),
            on_data_logged: None,
        };
        let opened = pool::open(&self.pool, device, options)?;
        // Opening that finds no space to recover in says so at once.
        file.wait_for_host(HOST_PATIENCE);
        Ok(opened)
    }
}

fn tell(recovery: &RecoveryReport) {
    if let Some(text) = pool::describe_recovery(recovery) {
        tracing::info!("{text}");
    }
}

impl Current {
    /// Opens the pool, for reading if the mount is to be read-only. Who has it still open is waited for while somebody wants it.
    pub fn open(opening: Opening, is_wanted: &dyn Fn() -> bool) -> Result<Current> {
        let read_only = opening.options.flags.read_only;
        let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let device = Arc::new(pool::open_device_to_mount(&opening.pool, mode, is_wanted)?);
        let (filesystem, recovery) = opening.open(device.clone(), read_only)?;
        tell(&recovery);
        let filesystem = Arc::new(filesystem);
        let reading = read_only.then(|| Reading {
            device: device.clone(),
            exchange: Arc::new(Exchange::new(filesystem.clone())),
            opening,
            log_ended_reason: recovery.replay_ended_by,
            written: AtomicBool::new(false),
        });
        let state = RwLock::new(State { filesystem, reading, closed: false });
        Ok(Current { file: Mutex::new(Some(device)), ..Current::new(state) })
    }

    fn new(state: RwLock<State>) -> Current {
        Current {
            state,
            file: Mutex::new(None),
            changing: RwLock::new(()),
            closing: AtomicBool::new(false),
            outcome: OnceLock::new(),
        }
    }

    /// What the kernel's requests go to: the filesystem, if it stays; else what it can be exchanged in.
    pub fn verbs(&self) -> std::result::Result<Arc<Filesystem>, Arc<Exchange<Filesystem>>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        match &state.reading {
            None => Ok(state.filesystem.clone()),
            Some(reading) => Err(reading.exchange.clone()),
        }
    }

    /// The file or block device that the pool lies on.
    pub fn file(&self) -> Option<Arc<FileDevice>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores what programs have changed through mmap and could not be stored before, as far as it can be now. `None`: there has been a panic.
    pub fn store_unstored(&self, outside: &Outside) -> Option<()> {
        let write = |filesystem: &Filesystem, ino, offset, bytes: &[u8]| {
            let mut buf = AlignedBuf::from_slice(bytes);
            filesystem.write_whole(Caller::ROOT, ino, offset, &mut buf, bytes.len())
        };
        outside.change("sync", || {
            outside.store_unstored(|ino, offset, bytes| {
                self.with(|filesystem| write(filesystem, ino, offset, bytes))
            });
        })
    }

    /// What is lost, so that the pool is shown without what came last; never of one that can be written to.
    pub fn log_ended_reason(&self) -> Option<String> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.reading.as_ref()?.log_ended_reason.clone()
    }

    /// Asks the filesystem for something.
    pub fn with<T>(&self, ask: impl FnOnce(&Filesystem) -> T) -> T {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let filesystem = state.filesystem.clone();
        // One that can be written to stays: nobody who waits for this request is kept from anything.
        let _kept = state.reading.is_some().then_some(state);
        ask(&filesystem)
    }

    /// To be kept while something is changed that the kernel has not asked for: closing waits for it.
    pub fn begin_change(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let changing = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        // Not by the state, which whoever asks may have already.
        if self.closing.load(Ordering::SeqCst) {
            bail!("it is being unmounted");
        }
        Ok(changing)
    }

    /// Makes everything durable and closes the pool. Nobody changes anything by way of the kernel any more.
    pub fn close(&self) -> std::result::Result<(), FsError> {
        let filesystem = {
            let mut state = self.write();
            state.closed = true;
            state.filesystem.clone()
        };
        self.closing.store(true, Ordering::SeqCst);
        drop(self.changing.write());
        let bug = |what: &str| Err(FsError::Engine(EngineError::Stopped(what.to_owned())));
        // Whoever asks again hears the same: a filesystem that has begun to close has nothing more to say.
        let closed = match self.outcome.get() {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => return bug(error),
            None => catch_unwind(AssertUnwindSafe(|| filesystem.close()))
                .unwrap_or_else(|_| bug("a bug in VarveFS was hit while it was closed")),
        };
        let _ = self.outcome.set(closed.as_ref().copied().map_err(ToString::to_string));
        closed
    }

    /// Something has been changed while [`Current::begin_change`] was kept: makes that durable. If closing has come between the two, that does
    /// it, and is waited for.
    pub fn settle(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let settled = match self.begin_change() {
            Ok(_changing) => sync(),
            // Nobody waits here who keeps the filesystem from being exchanged, which closing waits for: that is open for reading, and
            // nothing has been changed in it.
            Err(_) => self.outcome.wait().clone().map_err(|error| {
                anyhow!("the pool was unmounted meanwhile, and closing it failed: {error}; mount it again and look")
            }),
        };
        settled.context(NOT_DURABLE)
    }

    /// Opens the pool for writing, if it is not. After an error the mount goes on as it was.
    pub fn make_writable(&self, outside: &Outside) -> Result<()> {
        let mut state = self.write();
        if state.closed {
            bail!("it is being unmounted");
        }
        let Some(reading) = &state.reading else { return Ok(()) };
        let device = match outside.change("remount", || reading.begin_writing()) {
            Some(begun) => begun?,
            // If that was just now, the lock stays a writer's: nobody else is to touch what may still be written to.
            None => bail!("{PANICKED}"),
        };
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
        tracing::info!("{} is open for writing now", reading.opening.pool.shown());
        let now = reading.exchange.current();
        let before = std::mem::replace(&mut state.filesystem, now);
        state.reading = None;
        drop(state);
        // Nobody asks it any more, and it has written nothing: what fails here is lost on nobody.
        if let Err(error) = before.close() {
            tracing::warn!("ending the filesystem that was open for reading: {error}");
        }
        Ok(())
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// The device that is written to from now on.
    fn begin_writing(&self) -> Result<Arc<FileDevice>> {
        if self.written.load(Ordering::Acquire) {
            bail!("an earlier remount that failed {BEGUN}; {STAYS}");
        }
        let device = self.device.reopen_for_writing().map_err(|error| self.refused(&error))?;
        let device = Arc::new(device);
        // From here on nobody writes who heeds locks; whoever has must be noticed before the first byte is written.
        let unchanged = self.exchange.current().is_unchanged().map_err(anyhow::Error::from);
        let alone = unchanged.and_then(|unchanged| if unchanged { Ok(()) } else { Err(Changed.into()) });
        let exchanged = alone.and_then(|()| self.exchange(&device));
        let Err(error) = exchanged else { return Ok(device) };
        let written = device.stats().writes_count > 0;
        self.written.store(written, Ordering::Release);
        drop(device);
        let pool = self.opening.pool.shown();
        let advice = if written {
            format!("opening it {BEGUN}")
        } else if error.is::<Changed>() {
            AGAIN.to_owned()
        } else {
            format!("varve check {pool} says what is wrong with it")
        };
        let why = match &self.log_ended_reason {
            Some(_) if error.is::<Changed>() => format!("{error:#}, or more of its log can be read now"),
            _ => format!("{error:#}"),
        };
        match self.device.share_again() {
            Ok(()) => Err(anyhow!("{why}; {advice}; {STAYS}")),
            Err(faster) => Err(anyhow!("{error:#}; {}", lost(&faster))),
        }
    }

    fn exchange(&self, device: &Arc<FileDevice>) -> Result<()> {
        self.exchange.exchange(|before| {
            let (filesystem, recovery) = self.opening.open(device.clone(), false)?;
            tell(&recovery);
            if let Err(error) = continues(&filesystem, &recovery, before) {
                // It is as it is, whoever made it so: leave it closed.
                filesystem.close()?;
                return Err(error);
            }
            Ok(Arc::new(filesystem))
        })
    }

    /// What is said when the device cannot be opened for writing.
    fn refused(&self, error: &DeviceError) -> anyhow::Error {
        if self.device.has_lost_lock() {
            return anyhow!("{}", lost(error));
        }
        let error = explain(&self.opening.pool, error);
        // The lock may have been somebody else's for a moment, before it was had back.
        match self.exchange.current().is_unchanged() {
            Ok(false) => anyhow!("{error}; {Changed}; {AGAIN}; {STAYS}"),
            _ => anyhow!("{error}; {STAYS}"),
        }
    }
}

/// The pool is not what is mounted any more.
#[derive(Debug)]
struct Changed;

impl std::fmt::Display for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another process has written to the pool since it was mounted")
    }
}

impl std::error::Error for Changed {}

const BEGUN: &str = "has begun to write to it: unmount it and mount it again";
const AGAIN: &str = "unmount it, and mount it again to see what is there now";
const STAYS: &str = "the mount stays read-only";

/// What is said when the lock was let go of, and somebody else was faster.
fn lost(faster: &DeviceError) -> String {
    format!(
        "{faster}, and was faster: what this mount has read may have changed, so that it reads nothing more; unmount it, and \
         mount it again when that has ended"
    )
}

/// What the kernel knows of the one must be so in the other: it is not told to forget anything.
fn continues(filesystem: &Filesystem, recovery: &RecoveryReport, before: &Filesystem) -> Result<()> {
    if filesystem.pool_id() != before.pool_id() || recovery.end != before.position() {
        return Err(Changed.into());
    }
    Ok(filesystem.take_over_handles(before)?)
}

fn explain(pool: &Path, error: &DeviceError) -> anyhow::Error {
    let shown = pool.shown();
    match error {
        DeviceError::LockedBy(who) => {
            anyhow!("{who}; who writes to a pool must be alone with it: end that, then try again")
        }
        DeviceError::NotPermitted { text, .. } => {
            anyhow!("{shown} cannot be opened for writing: {text}; let it be written to, then try again")
        }
        error => anyhow!("{error}; unmount it, mount it again"),
    }
}

#[cfg(feature = "record")]
fn recorded(record_log: Option<&Path>, device: Arc<FileDevice>) -> Result<Arc<dyn Device>> {
    use anyhow::Context;
    match record_log {
        None => Ok(device),
        Some(path) => {
            let device = varve_sim::LoggingDevice::create(device, path)
                .with_context(|| format!("cannot record to {}", path.shown()))?;
            Ok(Arc::new(device))
        }
    }
}

#[cfg(not(feature = "record"))]
fn recorded(_: Option<&Path>, device: Arc<FileDevice>) -> Result<Arc<dyn Device>> {
    Ok(device)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::transfer::test_pool;

    // Goal: closing waits for a change of the control socket, and others are refused. Method: one is being made, in a file, when the close
    // comes.
    #[test]
    fn closing_waits_for_a_change() {
        let memory = test_pool::format();
        let filesystem = Arc::new(test_pool::open(memory.clone()));
        let current = Current::new(RwLock::new(State { filesystem, reading: None, closed: false }));
        thread::scope(|scope| {
            let change = current.begin_change().expect("nobody closes it");
            let close = scope.spawn(|| current.close());
            while !current.closing.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let caller = varve_fs::Caller::ROOT;
            let made = current.with(|fs| fs.create_subvolume(caller, varve_fs::ROOT_INODE, b"made", 0o755));
            made.expect("it is open");
            assert!(!close.is_finished());
            drop(change);
            close.join().expect("no panic").expect("it closes");
        });
        assert!(current.begin_change().is_err());
        let fs = test_pool::open(memory);
        assert!(fs.lookup(varve_fs::ROOT_INODE, b"made").is_ok());
    }

    /// A device that panics once it is told to: a bug as good as any.
    struct Bug(Arc<varve_device::MemoryDevice>, AtomicBool);

    impl Device for Bug {
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn name(&self) -> String {
            self.0.name()
        }
        fn run(&self, requests: &mut [varve_device::Request<'_>]) -> Vec<Result<(), DeviceError>> {
            assert!(!self.1.swap(false, Ordering::SeqCst), "a bug");
            self.0.run(requests)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, len_bytes: u64) -> Result<varve_device::Discarded, DeviceError> {
            self.0.discard(offset, len_bytes)
        }
        fn stats(&self) -> varve_device::StatsSnapshot {
            self.0.stats()
        }
    }

    // Goal: of a close that meets a bug nobody hears that all is durable, however often it is asked for. Method: a device that panics once
    // while a pool is closed, and somebody whose change the close was to make durable.
    #[test]
    fn a_close_that_meets_a_bug_has_failed() {
        let device = Arc::new(Bug(test_pool::format(), AtomicBool::new(false)));
        let filesystem = Arc::new(test_pool::open(device.clone()));
        let caller = varve_fs::Caller::ROOT;
        filesystem.create_subvolume(caller, varve_fs::ROOT_INODE, b"made", 0o755).expect("it is open");
        let current = Current::new(RwLock::new(State { filesystem, reading: None, closed: false }));
        device.1.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let failed = current.close().expect_err("there was a bug");
            assert!(failed.to_string().contains("a bug in VarveFS"), "{failed}");
        }
        let failed = current.settle(|| Ok(())).expect_err("it is not durable");
        assert!(format!("{failed:#}").contains("a bug in VarveFS"), "{failed:#}");
    }

    // Goal: a change that is done before closing, and was to be made durable after that has begun, is as durable as closing makes it, and so it
    // is said. Method: closing ends, well and badly, while somebody waits for that.
    #[test]
    fn closing_settles_a_change() {
        for outcome in [Ok(()), Err("no flush".to_owned())] {
            let filesystem = Arc::new(test_pool::open(test_pool::format()));
            let current = Current::new(RwLock::new(State { filesystem, reading: None, closed: false }));
            current.settle(|| Ok(())).expect("nobody closes it");
            let failed = current.settle(|| bail!("no power")).expect_err("it failed");
            assert_eq!(format!("{failed:#}"), "it is done, but not durable: no power");
            let settled = thread::scope(|scope| {
                current.closing.store(true, Ordering::SeqCst);
                let settled = scope.spawn(|| current.settle(|| bail!("it is closed")));
                thread::sleep(std::time::Duration::from_millis(20));
                assert!(!settled.is_finished());
                match &outcome {
                    Ok(()) => current.close().expect("it closes"),
                    failed => current.outcome.set(failed.clone()).expect("once"),
                }
                settled.join().expect("no panic")
            });
            match (settled, outcome) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(why)) => {
                    let text = format!("{error:#}");
                    assert!(text.starts_with(NOT_DURABLE) && text.contains(&why), "{text}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
