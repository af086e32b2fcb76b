//! Opening a filesystem the way the harness needs it: no background work, a clock that is told when to move, and
//! every transaction that logs data reported.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use varve_device::Device;
use varve_fs::{
    Caller, Clock, DataLogged, Filesystem, FsError, OpenOptions, RecoveryReport, StoreOptions, Timestamp,
};

use crate::disk::Disk;

/// A clock that moves when the harness says so.
#[derive(Default)]
pub struct StepClock(AtomicI64);

impl StepClock {
    /// Starts at `seconds`.
    pub fn new(seconds: i64) -> Arc<Self> {
        Arc::new(StepClock(AtomicI64::new(seconds)))
    }
    /// Now, as the clock says.
    pub fn last(&self) -> Timestamp {
        self.now()
    }
    /// One second later.
    pub fn step(&self) -> Timestamp {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.now()
    }
}

impl Clock for StepClock {
    fn now(&self) -> Timestamp {
        let seconds = self.0.load(Ordering::Relaxed);
        Timestamp { seconds, nanoseconds: (seconds * 7_919 % 1_000_000_000) as u32 }
    }
}

/// How a session opens its filesystem.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Memory for nodes, in bytes.
    pub cache_bytes: u64,
    /// Dirty data kept in memory, in bytes.
    pub dirty_bytes_max: u64,
    /// Who makes the calls.
    pub caller: Caller,
    /// Whether a refusal for lack of space is to be expected.
    pub tight: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { cache_bytes: 8 << 20, dirty_bytes_max: 8 << 20, caller: Caller::ROOT, tight: false }
    }
}

pub(super) type Logged = Arc<Mutex<Vec<DataLogged>>>;

/// A filesystem that has been opened for the harness, and what it logs.
pub struct Opened {
    /// The filesystem.
    pub fs: Filesystem,
    /// What opening found.
    pub report: RecoveryReport,
    pub(super) logged: Logged,
}

impl Opened {
    /// Opens the filesystem on `disk`.
    pub fn open(
        disk: &Disk,
        setup: &Setup,
        clock: &Arc<StepClock>,
        read_only: bool,
    ) -> Result<Opened, FsError> {
        Opened::open_on(disk.device(), setup, clock, read_only)
    }

    /// Opens the filesystem on `device`.
    pub fn open_on(
        device: Arc<dyn Device>,
        setup: &Setup,
        clock: &Arc<StepClock>,
        read_only: bool,
    ) -> Result<Opened, FsError> {
        let logged = Logged::default();
        let sink = logged.clone();
        let options = OpenOptions {
            store: StoreOptions {
                read_only,
                cache_bytes: setup.cache_bytes,
                background: false,
                // Wherever versions meet, so that keyframes are made and used all the time.
                keyframe_entries: 1,
                ..StoreOptions::default()
            },
            dirty_bytes_max: setup.dirty_bytes_max,
            clock: clock.clone(),
            on_data_logged: Some(Arc::new(move |event| sink.lock().expect("no panic holds it").push(event))),
        };
        let (fs, report) = Filesystem::open(vec![device], options)?;
        Ok(Opened { fs, report, logged })
    }
}
