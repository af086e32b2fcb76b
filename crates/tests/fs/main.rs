//! Tests of the filesystem on a real store in memory. Crashes are the torture crate's.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_device::{AlignedBuf, Device, DeviceError, Discarded, MemoryDevice, Request, StatsSnapshot};
use varve_engine::{FormatOptions, InodeId, Profile, Reservation, StoreOptions};
use varve_format::record::subvolume::HASH_KIND_SIPHASH13;
use varve_sim::SimClock;

use varve_fs::internals::Inside;
use varve_fs::internals::api::*;
use varve_fs::{DataSums, ExtentSums, Filesystem, FsError};

mod accepted;
mod access;
mod allocate;
mod check;
mod chunks;
mod clones;
mod concurrent;
mod counting;
mod damage;
mod data;
mod deleting;
mod diff;
mod durability;
mod edges;
mod exchanges;
mod first_stretch;
mod flags;
mod float;
mod flushes;
mod forks;
mod frozen;
mod hostile;
mod kept;
mod keyframes;
mod map;
mod nameless;
mod names;
mod nodes;
mod numbers;
mod passing;
mod ranges;
mod reaper;
mod reaping;
mod rmdir;
mod short;
mod space;
mod stalls;
mod streams;
mod stuck;
mod subvolumes;
mod verifying;
mod versions;
mod waiting;
mod whole;
mod xattrs;
mod zeros;

pub(crate) const ROOT: InodeId = ROOT_INODE;
pub(crate) const MIB: u64 = 1 << 20;

/// Something between a filesystem and its device that has a say in each group of requests.
pub(crate) trait Between: Send + Sync + 'static {
    /// Where everything goes in the end.
    fn behind(&self) -> &dyn Device;
    /// A group of requests: answered, by the device behind or in its stead.
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>>;
}

/// It, as a device.
pub(crate) struct Through<B>(pub B);

impl<B> Deref for Through<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.0
    }
}

impl<B: Between> Device for Through<B> {
    fn size_bytes(&self) -> u64 {
        self.behind().size_bytes()
    }
    fn name(&self) -> String {
        self.behind().name()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        self.pass(requests)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.behind().flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.behind().discard(offset, len_bytes)
    }
    fn stats(&self) -> StatsSnapshot {
        self.behind().stats()
    }
}

struct TestClock(SimClock);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let (seconds, nanoseconds) = self.0.now();
        Timestamp { seconds, nanoseconds }
    }
}

/// How pools of tests are made.
pub(crate) const FORMAT: FormatOptions = FormatOptions {
    data: Profile::Single,
    metadata: Profile::Dup,
    pool_id: *b"a pool for tests",
    hash_seed: 7,
    force: false,
};

/// A filesystem on a device in memory.
pub(crate) struct Fixture {
    pub device: Arc<MemoryDevice>,
    pub fs: Filesystem,
    pub logged: Arc<Mutex<Vec<DataLogged>>>,
    clock: Arc<TestClock>,
    dirty_bytes_max: u64,
}

impl Fixture {
    pub(crate) fn new(size_bytes: u64) -> Fixture {
        Self::with(size_bytes, HASH_KIND_SIPHASH13, 8 * MIB)
    }

    pub(crate) fn with(size_bytes: u64, hash_kind: u8, dirty_bytes_max: u64) -> Fixture {
        let device = Arc::new(MemoryDevice::new(size_bytes));
        let clock = Arc::new(TestClock(SimClock::new(1_700_000_000, 1000)));
        let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
        varve_fs::internals::open::format(&devices, &FORMAT, Caller::ROOT, &*clock, hash_kind).unwrap();
        let logged = Arc::default();
        let fs = Self::open(&device, &clock, &logged, dirty_bytes_max);
        Fixture { device, fs, logged, clock, dirty_bytes_max }
    }

    fn open(
        device: &Arc<MemoryDevice>,
        clock: &Arc<TestClock>,
        logged: &Arc<Mutex<Vec<DataLogged>>>,
        dirty_bytes_max: u64,
    ) -> Filesystem {
        varve_fs::internals::lower_bounds();
        let logged = logged.clone();
        let options = OpenOptions {
            // Keyframes wherever versions meet.
            store: StoreOptions { background: false, keyframe_entries: 1, ..StoreOptions::default() },
            dirty_bytes_max,
            clock: clock.clone(),
            on_data_logged: Some(Arc::new(move |event| logged.lock().push(event))),
        };
        Filesystem::open(vec![device.clone()], options).unwrap().0
    }

    /// Closes and opens again.
    pub(crate) fn reopen(&mut self) {
        self.fs.close().unwrap();
        self.fs = Self::open(&self.device, &self.clock, &self.logged, self.dirty_bytes_max);
    }

    /// What a kill leaves: the device as it is, nothing from memory.
    pub(crate) fn kill(&mut self) {
        let device = Arc::new(self.device.snapshot());
        self.fs = Self::open(&device, &self.clock, &self.logged, self.dirty_bytes_max);
        self.device = device;
    }

    /// Nothing is wrong.
    pub(crate) fn check(&self) {
        let (report, looks) = self.fs.core().check_as(true, false).unwrap();
        assert!(report.problems.is_empty(), "check found: {:#?}", report.problems);
        // A subvolume in which nothing is wrong is told by that in which it differs from another of its family.
        let subvolumes = self.fs.core().subvolumes.all();
        let families: std::collections::BTreeSet<_> = subvolumes.iter().map(|one| one.family).collect();
        assert_eq!((looks.whole, looks.whole + looks.differences), (families.len(), subvolumes.len()));
    }

    /// Bytes in the blocks that may be handed out. One that nothing will ever refer to and nobody gives back is missing here
    /// alone: the check knows nothing of it.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.fs.trim(0..u64::MAX, 0, &mut |_| true).unwrap().discarded_bytes
    }

    /// All space that an ordinary request may take, as long as what is given lives.
    pub(crate) fn take_all(&self) -> Vec<Reservation> {
        let (store, mut taken) = (&self.fs.core().store, Vec::new());
        for blocks in [1024, 64, 1] {
            while let Ok(reservation) = store.reserve(blocks, 0, 0) {
                taken.push(reservation);
            }
        }
        taken
    }

    pub(crate) fn create(&self, name: &[u8]) -> InodeId {
        self.fs.create(Caller::ROOT, ROOT, name, 0o644).unwrap().ino
    }

    pub(crate) fn mkdir(&self, parent: InodeId, name: &[u8]) -> InodeId {
        self.fs.mkdir(Caller::ROOT, parent, name, 0o755).unwrap().ino
    }

    pub(crate) fn write(&self, ino: InodeId, offset: u64, data: &[u8]) {
        assert_eq!(self.fs.write(Caller::ROOT, ino, offset, data).unwrap(), data.len());
    }

    /// In a buffer that the filesystem may keep; what is in it afterwards is no concern of the file's.
    pub(crate) fn write_owned(&self, ino: InodeId, offset: u64, data: &[u8]) {
        let mut buf = AlignedBuf::new(data.len().next_power_of_two());
        buf[..data.len()].copy_from_slice(data);
        let len = buf.len();
        let written = self.fs.write_owned(Caller::ROOT, ino, offset, &mut buf, data.len());
        assert_eq!((written.unwrap(), buf.len()), (data.len(), len));
        buf.fill(0xee);
    }

    pub(crate) fn truncate(&self, ino: InodeId, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(self.fs.setattr(Caller::ROOT, ino, set).unwrap().size, size);
    }

    pub(crate) fn read_all(&self, ino: InodeId) -> Vec<u8> {
        let size = self.fs.getattr(ino).unwrap().size;
        self.fs.read(ino, 0, size as usize + 10).unwrap()
    }

    /// Names of a directory without the two dots, sorted.
    pub(crate) fn list(&self, ino: InodeId) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        self.fs
            .readdir(ino, 2, &mut |entry| {
                names.push(entry.name);
                true
            })
            .unwrap();
        names.sort();
        names
    }
}

/// Bytes that depend on `seed` and position and are never all zero.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = varve_sim::Rng::new(seed);
    let mut out = vec![0; len];
    rng.fill(&mut out);
    out
}

/// As `bytes.resize(size, 0)`, which goes byte by byte where it is not optimised.
pub(crate) fn resize(bytes: &mut Vec<u8>, size: usize) {
    bytes.extend_from_slice(&vec![0; size.saturating_sub(bytes.len())]);
    bytes.truncate(size);
}

/// Whether all of them are 0, likewise.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 65_536] = [0; 65_536];
    bytes.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()])
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, FsError>, errno: i32) {
    match result {
        Err(error) => assert_eq!(error.errno(), errno, "{error}"),
        Ok(value) => panic!("should have been refused with {errno}: {value:?}"),
    }
}
