//! Tests from a review of the engine: each shows an error that was found by reading, or that a guard holds.
//!
//! They go through the store's door, over simulated devices; some wrap a device to stop or fail one request.
#![allow(
    clippy::disallowed_methods,
    reason = "tests with threads give up after a time; what the engine does is decided without a clock"
)]

mod crashes;
mod damaged;
mod failures;
mod foreign;
mod hostile;
mod keyframes;
mod limits;
mod namespaces;
mod slots;
mod stress;
mod trees;
mod trim;
mod unreadable;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use varve_device::{
    AlignedBuf, Device, DeviceError, Discarded, MemoryDevice, Operation, Request, StatsSnapshot,
};
use varve_engine::{
    Data, EngineError, FormatOptions, Lsn, PoolAddr, Profile, RecoveryReport, Reservation, Run, Store,
    StoreOptions, Transaction, TreeId,
};
use varve_format::root::RootBlock;
use varve_format::superblock::{Superblock, slot_offset};
use varve_sim::{
    CrashPolicy, Fate, Fault, FaultRule, FaultyDevice, RecordingDevice, Rng, SectorSet, Trigger,
};

const TREE: TreeId = TreeId::NAMES;
const EXTENTS: TreeId = TreeId::EXTENTS;
const POOL_BYTES: u64 = 64 << 20;
/// Longer than anything here takes, on any machine; what has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const RING_START: u64 = 1 << 20;
const RING_BYTES: u64 = 8 << 20;
/// Where pool address 0 lies on a device of one copy.
const DATA_START: u64 = RING_START + RING_BYTES;

fn format(device: &Arc<impl Device>, data: Profile, metadata: Profile) {
    let options = FormatOptions { data, metadata, pool_id: *b"0123456789abcdef", hash_seed: 7, force: false };
    Store::format(&[device.clone() as Arc<dyn Device>], &options).expect("format");
}

fn try_open(device: &Arc<impl Device>) -> Result<(Arc<Store>, RecoveryReport), EngineError> {
    let options =
        StoreOptions { read_only: false, cache_bytes: 1 << 20, background: false, ..StoreOptions::default() };
    Store::open(vec![device.clone() as Arc<dyn Device>], options)
}

fn open(device: &Arc<impl Device>) -> Arc<Store> {
    try_open(device).expect("opens").0
}

/// The newest superblock of a pool.
fn superblock_of(device: &Hooked) -> Superblock {
    let mut slot = AlignedBuf::new(64 << 10);
    let all = (0..8).filter_map(|i| {
        device.inner.read_at(slot_offset(i, POOL_BYTES), &mut slot).expect("reads");
        Superblock::decode(&slot).ok()
    });
    all.max_by_key(|s| s.generation).expect("a superblock")
}

/// The root block of the newest checkpoint.
fn root_of(device: &Hooked) -> RootBlock {
    let mut block = AlignedBuf::new(4096);
    let at = DATA_START + superblock_of(device).root.addr[0].0;
    device.inner.read_at(at, &mut block).expect("reads");
    RootBlock::decode(&block).expect("a root")
}

fn block_data(fill: u8, blocks: u32) -> Data {
    let mut buf = AlignedBuf::new(blocks as usize * 4096);
    buf.fill(fill);
    Data { len: buf.len(), buf: Arc::new(buf), offset: 0 }
}

fn put(store: &Store, key: &[u8], value: &[u8]) -> Lsn {
    let mut tx = Transaction::new();
    tx.put(TREE, key, value);
    store.apply(tx, None).expect("applies")
}

/// Places a block of `fill` under `key`, riding with the log.
fn place(store: &Store, key: &[u8], fill: u8) -> Result<(Run, Lsn), EngineError> {
    let mut r = store.reserve(1, 1, 60)?;
    let run = store.allocate(&mut r, 1, PoolAddr::NULL)?[0];
    let mut tx = Transaction::new();
    tx.place_riding(run, block_data(fill, 1));
    tx.put(EXTENTS, key, &run.addr.0.to_le_bytes());
    Ok((run, store.apply(tx, Some(&mut r))?))
}

fn sound(store: &Store, runs: &[Run]) {
    let report = store.check(&mut runs.iter().copied(), true).expect("check runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

/// Runs `f` on a thread and fails if it has not ended after [`PATIENCE`].
fn within<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(f);
    let end = Instant::now() + PATIENCE;
    while !thread.is_finished() {
        assert!(Instant::now() < end, "{what} has not ended after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    thread.join().expect("no panic")
}

/// Called before a flush with its number from 1 on; an error is what the flush gives.
type FlushHook = Box<dyn Fn(u64) -> bool + Send + Sync>;
/// Called before every read or write with its offset and whether it is a write.
type RequestHook = Box<dyn Fn(u64, bool) + Send + Sync>;

/// Called before a discard with its offset; false: the device does not know how.
type DiscardHook = Box<dyn Fn(u64) -> Result<bool, DeviceError> + Send + Sync>;

/// Memory with hooks.
struct Hooked {
    inner: MemoryDevice,
    flushes: AtomicU64,
    on_flush: Mutex<Option<Arc<FlushHook>>>,
    on_request: Mutex<Option<Arc<RequestHook>>>,
    on_discard: Mutex<Option<Arc<DiscardHook>>>,
}

impl Hooked {
    fn new() -> Arc<Hooked> {
        Arc::new(Hooked {
            inner: MemoryDevice::new(POOL_BYTES),
            flushes: AtomicU64::new(0),
            on_flush: Mutex::new(None),
            on_request: Mutex::new(None),
            on_discard: Mutex::new(None),
        })
    }
    /// It holds what `from` does.
    fn copy_from(&self, from: &MemoryDevice) {
        let mut piece = AlignedBuf::new(1 << 20);
        for at in (0..POOL_BYTES).step_by(1 << 20) {
            from.read_at(at, &mut piece).expect("reads");
            self.inner.write_at(at, &piece).expect("writes");
        }
    }
    fn on_flush(&self, hook: impl Fn(u64) -> bool + Send + Sync + 'static) {
        self.flushes.store(0, SeqCst);
        *self.on_flush.lock().expect("lock") = Some(Arc::new(Box::new(hook)));
    }
    fn on_request(&self, hook: impl Fn(u64, bool) + Send + Sync + 'static) {
        *self.on_request.lock().expect("lock") = Some(Arc::new(Box::new(hook)));
    }
    fn on_discard(&self, hook: impl Fn(u64) -> Result<bool, DeviceError> + Send + Sync + 'static) {
        *self.on_discard.lock().expect("lock") = Some(Arc::new(Box::new(hook)));
    }
}

impl Device for Hooked {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn name(&self) -> String {
        "hooked memory".into()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let hook = self.on_request.lock().expect("lock").clone();
        if let Some(hook) = hook {
            for r in requests.iter() {
                match r {
                    Request::Read { offset, .. } => hook(*offset, false),
                    Request::Write { offset, .. } => hook(*offset, true),
                }
            }
        }
        self.inner.run(requests)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        let number = self.flushes.fetch_add(1, SeqCst) + 1;
        let hook = self.on_flush.lock().expect("lock").clone();
        if hook.is_some_and(|hook| !hook(number)) {
            // The error of a device that fails its only flush.
            let rules = vec![FaultRule::new(Operation::Flush, Trigger::Nth(1), Fault::Error)];
            return FaultyDevice::new(MemoryDevice::new(1 << 20), 0, rules).flush();
        }
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        let hook = self.on_discard.lock().expect("lock").clone();
        match hook.map_or(Ok(true), |hook| hook(offset))? {
            true => self.inner.discard(offset, len_bytes),
            false => Ok(Discarded::NotSupported),
        }
    }
    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}
