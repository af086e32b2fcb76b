//! Keyframes in a filesystem: made in the background where somebody looked, durable, and gone with what they are made of.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{OnceLock, Weak};

use varve_device::Operation;
use varve_engine::TreeId;

use super::*;
use varve_fs::internals::reaper::Task;
use varve_fs::internals::subvolume::Subvolume;

const BLOCK: usize = 4096;
const LEN: usize = 256 * BLOCK;

fn pieces(f: &Fixture) -> usize {
    let mut found = 0;
    let all = &mut |_: &[u8], _: &[u8]| {
        found += 1;
        true
    };
    f.fs.core().store.view().scan(TreeId::KEYFRAMES, &[], all).unwrap();
    found
}

/// What is mapped of a file: data by offset and address, and whether others see it.
fn mapped(f: &Fixture, ino: InodeId) -> Vec<(u64, u64, Option<u64>, bool)> {
    let map = f.fs.map(ino, 0, usize::MAX).unwrap();
    map.pieces.iter().map(|piece| (piece.offset, piece.len, piece.address, piece.shared)).collect()
}

// Goal: keyframes appear where old versions were looked at, survive a crash and a reopening, change nothing of what is read and
// mapped, and are gone when the snapshots are. Method: 12 snapshots of a file with three random
// blocks written between two; all of it read and mapped before and after.
#[test]
fn of_snapshots() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    let (mut rng, mut contents) = (varve_sim::Rng::new(5), pattern(1, LEN));
    f.write(ino, 0, &contents);
    let mut snapshots = Vec::new();
    for n in 0..12u64 {
        let name = format!("snapshot {n}").into_bytes();
        f.fs.snapshot(sub, ROOT, &name, true, false).unwrap();
        snapshots.push((name, contents.clone()));
        for _ in 0..3 {
            let at = rng.below(256) as usize * BLOCK;
            let block = pattern(rng.below(1 << 40), BLOCK);
            f.write(ino, at as u64, &block);
            contents[at..at + BLOCK].copy_from_slice(&block);
        }
        f.fs.flush_all().unwrap();
    }
    let compare = |f: &Fixture| {
        let mut maps = Vec::new();
        for (name, contents) in &snapshots {
            let dir = f.fs.lookup(ROOT, name).unwrap().ino;
            let ino = f.fs.lookup(dir, b"file").unwrap().ino;
            assert!(f.read_all(ino) == *contents, "{}", String::from_utf8_lossy(name));
            maps.push(mapped(f, ino));
        }
        let sub = f.fs.lookup(ROOT, b"sub").unwrap().ino;
        let ino = f.fs.lookup(sub, b"file").unwrap().ino;
        assert!(f.read_all(ino) == contents);
        maps.push(mapped(f, ino));
        maps
    };
    f.fs.maintain().unwrap();
    f.fs.core().store.keyframes().forget();
    assert_eq!(pieces(&f), 0, "nobody has looked");
    let maps = compare(&f);
    f.fs.maintain().unwrap();
    let made = pieces(&f);
    assert!(made > 1, "{made} pieces");
    f.check();
    assert_eq!(compare(&f), maps);
    f.fs.sync().unwrap();
    f.kill();
    assert_eq!(pieces(&f), made, "after a crash");
    assert_eq!(compare(&f), maps);
    f.check();
    f.reopen();
    assert_eq!(compare(&f), maps);
    // All but the source go.
    for (name, _) in &snapshots {
        f.fs.delete_subvolume(ROOT, name).unwrap();
    }
    f.fs.maintain().unwrap();
    assert_eq!(pieces(&f), 0, "they go with what they are made of");
    f.check();
    let sub = f.fs.lookup(ROOT, b"sub").unwrap().ino;
    assert!(f.read_all(f.fs.lookup(sub, b"file").unwrap().ino) == contents);
}

/// A pool that is closed, with keyframes of a snapshot `old`, and what that shows: contents and map of its file. And where the nodes
/// of the keyframes' tree lie.
fn closed_with_keyframes() -> (Fixture, Shown, Vec<u64>) {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    let contents = pattern(1, LEN);
    f.write(ino, 0, &contents);
    f.fs.snapshot(sub, ROOT, b"middle", true, false).unwrap();
    for at in (0..LEN).step_by(8 * BLOCK) {
        f.write(ino, at as u64, &pattern(2, BLOCK));
    }
    f.fs.snapshot(sub, ROOT, b"old", true, false).unwrap();
    f.write(ino, 0, &pattern(3, BLOCK));
    f.fs.flush_all().unwrap();
    let before = look(&f.fs);
    f.fs.maintain().unwrap();
    assert!(pieces(&f) > 0);
    f.fs.close().unwrap();
    let nodes = nodes_of(&f.device, TreeId::KEYFRAMES);
    assert!(!nodes.is_empty());
    (f, before, nodes)
}

/// Where nodes of a tree lie, or lay.
pub(crate) fn nodes_of(device: &MemoryDevice, tree: TreeId) -> Vec<u64> {
    let (mut block, mut nodes) = (AlignedBuf::new(BLOCK), Vec::new());
    for at in (0..device.size_bytes()).step_by(BLOCK) {
        device.read_at(at, &mut block).unwrap();
        let is_node = block[..4] == varve_format::node::NODE_MAGIC.to_le_bytes();
        if is_node && block[4..6] == tree.0.to_le_bytes() {
            nodes.push(at);
        }
    }
    nodes
}

/// Contents and map of a file.
type Shown = (Vec<u8>, Vec<(u64, u64, Option<u64>, bool)>);

fn look(fs: &Filesystem) -> Shown {
    let dir = fs.lookup(ROOT, b"old").unwrap().ino;
    let ino = fs.lookup(dir, b"file").unwrap().ino;
    let map = fs.map(ino, 0, usize::MAX).unwrap();
    let mapped = map.pieces.iter().map(|piece| (piece.offset, piece.len, piece.address, piece.shared));
    (fs.read(ino, 0, LEN).unwrap(), mapped.collect())
}

// Goal: keyframes that are lost keep nobody from reading what they were made of. Method: every node of their tree is spoilt in a pool
// that is closed; an old snapshot is read and mapped as before.
#[test]
fn that_are_lost_are_done_without() {
    let (mut f, before, nodes) = closed_with_keyframes();
    for at in nodes {
        f.device.write_at(at, &AlignedBuf::new(BLOCK)).unwrap();
    }
    f.kill();
    assert!(look(&f.fs) == before);
}

/// A device that cannot read some blocks, and says how often it was asked for them, and how often with the lock that orders
/// all logging of shared data held, or with a subvolume held alone.
pub(super) struct Failing {
    inner: Arc<MemoryDevice>,
    bad: Vec<u64>,
    pub(super) fails: AtomicBool,
    pub(super) asked: AtomicUsize,
    pub(super) locked: AtomicUsize,
    pub(super) core: OnceLock<Weak<varve_fs::internals::core::Core>>,
    /// Somebody finds this to be reaped while it fails.
    pub(super) found: OnceLock<Task>,
}

impl Failing {
    /// It fails when it is told to.
    pub(super) fn new(inner: Arc<MemoryDevice>, bad: Vec<u64>) -> Arc<Through<Failing>> {
        let (fails, asked, locked, core, found) = Default::default();
        Arc::new(Through(Failing { inner, bad, fails, asked, locked, core, found }))
    }
}

impl Between for Failing {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let bad = |request: &Request<'_>| match request {
            Request::Read { offset, buf } => {
                self.bad.iter().any(|at| (*offset..*offset + buf.len() as u64).contains(at))
            }
            Request::Write { .. } => false,
        };
        if !self.fails.load(Ordering::SeqCst) || !requests.iter().any(bad) {
            return self.inner.run(requests);
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        let core = self.core.get().and_then(Weak::upgrade);
        if let (Some(core), Some(found)) = (&core, self.found.get()) {
            core.reap.push(*found);
        }
        let locked = core.is_some_and(|core| {
            let alone = |subvolume: &Subvolume| subvolume.gate.try_read_recursive().is_none();
            core.families.try_lock().is_none() || core.subvolumes.all().iter().any(|one| alone(one))
        });
        self.locked.fetch_add(usize::from(locked), Ordering::SeqCst);
        let error =
            || DeviceError::from_os(Operation::Read, "failing", 0, 0, &std::io::Error::other("bad block"));
        requests.iter().map(|_| Err(error())).collect()
    }
}

// Goal: a device that fails to read keyframes is asked for few of them, never with the lock of shared data, and for them again when
// some time has passed. Method: the file is read and mapped, and the background works, many times while the device fails; then
// it is well; all that on a pool that is only read, too.
#[test]
fn a_device_that_fails_is_left_alone() {
    is_left_alone(false);
    is_left_alone(true);
}

fn is_left_alone(read_only: bool) {
    let (f, before, nodes) = closed_with_keyframes();
    let count = nodes.len();
    let device = Failing::new(f.device.clone(), nodes);
    let options = OpenOptions {
        store: StoreOptions { background: false, read_only, keyframe_entries: 1, ..StoreOptions::default() },
        dirty_bytes_max: MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    device.core.set(fs.weak_core()).unwrap();
    device.fails.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        assert!(look(&fs) == before);
        fs.maintain().unwrap();
    }
    let asked = device.asked.load(Ordering::SeqCst);
    assert!((1..=2 * count).contains(&asked), "asked {asked} times for {count} blocks");
    assert_eq!(device.locked.load(Ordering::SeqCst), 0);
    // Well again, and after a while they are read.
    device.fails.store(false, Ordering::SeqCst);
    for _ in 0..200 {
        fs.maintain().unwrap();
    }
    device.fails.store(true, Ordering::SeqCst);
    assert!(look(&fs) == before);
    assert!(device.asked.load(Ordering::SeqCst) > asked);
}

// Goal: a device that fails to read what a file's keyframes are made of is no reason to do without those that there are. Method: all nodes
// of extents fail while somebody reads, and while a keyframe is made; then they are well.
#[test]
fn extents_that_fail_make_no_keyframes_rest() {
    let (mut f, before, _) = closed_with_keyframes();
    f.fs = Fixture::open(&f.device, &f.clock, &f.logged, 8 * MIB);
    // So that their tree has more than its root, which is read when the pool is opened.
    let scattered = f.create(b"scattered");
    (0..2_000).for_each(|block| f.write(scattered, block * 8192, &[1; BLOCK]));
    f.fs.close().unwrap();
    let device = Failing::new(f.device.clone(), nodes_of(&f.device, TreeId::EXTENTS));
    let options = OpenOptions {
        store: StoreOptions { background: false, keyframe_entries: 1, ..StoreOptions::default() },
        dirty_bytes_max: MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    let (core, asked) = (fs.core(), || device.asked.load(Ordering::SeqCst));
    let file = |dir: &[u8]| fs.lookup(fs.lookup(ROOT, dir).unwrap().ino, b"file").unwrap().ino;
    let (old, sub) = (file(b"old"), file(b"sub"));
    device.fails.store(true, Ordering::SeqCst);
    refused(fs.read(old, 0, LEN), 5);
    let reading = asked();
    assert!(reading > 0 && !core.store.keyframes().is_resting());
    let data = core.state(sub).inner.read().record.data;
    let (view, mut tx) = (core.store.view(), varve_engine::Transaction::new());
    varve_engine::version::make_keyframes(&view, &mut tx, data.family, data.version, &[0]).unwrap_err();
    assert!(asked() > reading && !core.store.keyframes().is_resting());
    drop(view);
    device.fails.store(false, Ordering::SeqCst);
    assert!(look(&fs) == before);
}
