//! Nobody waits for others' work on a file where he has nothing to do with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use parking_lot::Condvar;
use varve_device::Operation;

use super::*;
use varve_fs::internals::inode::InodeState;
use varve_fs::internals::subvolume::Slot;

const BLOCK: u64 = 4096;

/// Whether `op` comes to its end while somebody else has the turn of `ino`. It has, when this returns, in any case.
fn needs_no_turn(f: &Fixture, ino: InodeId, op: impl FnOnce() + Send) -> bool {
    let turn = f.fs.core().state(ino).turn();
    let (told, tell) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            op();
            told.send(()).unwrap();
        });
        let ended = tell.recv_timeout(Duration::from_secs(20)).is_ok();
        drop(turn);
        ended
    })
}

// Goal: setting space aside in a file that has extents waits for no write-back of it, and so keeps nobody waiting for one who asks for it
// under a lock of his own. Method: the turn is held, as a write-back does; beside that, space inside the file and behind its end.
#[test]
fn reserving_waits_for_no_write_back() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"table");
    f.write(ino, 0, &pattern(1, 1 << 20));
    f.fs.sync().unwrap();
    let reserve = |offset, len, keep_size| {
        let how = Allocate::Reserve { keep_size };
        needs_no_turn(&f, ino, || f.fs.fallocate(Caller::ROOT, ino, offset, len, how).unwrap())
    };
    assert!(reserve(MIB, MIB, true), "behind the end");
    assert!(reserve(0, MIB, true), "where there is data");
    assert!(reserve(MIB / 2, MIB / 2, false), "up to the end");
    f.fs.sync().unwrap();
    assert!(f.read_all(ino) == pattern(1, 1 << 20));
    f.check();
}

// Goal: a file whose growth is logged becomes longer without waiting for the write-back of what it has, and loses nothing of that.
// Method: the turn is held; then pages are in flight, of which the last ends in the middle of a block, while the file grows within that
// block and beyond; some are written to meanwhile; a kill, and all is compared.
#[test]
fn growing_waits_for_no_write_back() {
    const SIZE: usize = (1 << 20) + 100;
    for (grown, twice) in [(SIZE + 50, false), (3 << 20, true)] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"table");
        let mut bytes = pattern(1, SIZE);
        f.write(ino, 0, &bytes);
        f.fs.sync().unwrap();
        let grow = |f: &Fixture, size: usize| {
            let how = Allocate::Reserve { keep_size: false };
            assert!(needs_no_turn(f, ino, || f
                .fs
                .fallocate(Caller::ROOT, ino, 0, size as u64, how)
                .unwrap()));
        };
        grow(&f, SIZE + 7);
        let new = pattern(2, 300_000);
        bytes.resize(SIZE + 7, 0);
        for at in [0, SIZE + 7 - new.len()] {
            bytes[at..at + new.len()].copy_from_slice(&new);
            f.write(ino, at as u64, &new);
        }
        let core = f.fs.core();
        let mut group = varve_fs::internals::writeback::Group::default();
        assert!(core.take(core.state(ino).turn(), u64::MAX, &mut group).unwrap().is_none());
        // Its turn is held by the group.
        f.truncate(ino, grown as u64);
        bytes.resize(grown, 0);
        if twice {
            f.truncate(ino, grown as u64 + 1);
            bytes.resize(grown + 1, 0);
            bytes[SIZE - 9..SIZE + 91].fill(9);
            f.write(ino, SIZE as u64 - 9, &[9; 100]);
        }
        assert!(f.read_all(ino) == bytes);
        let written = core.write_group(&mut group, varve_fs::internals::writeback::Ride::Allowed);
        core.finish(group, written).unwrap();
        assert!(f.read_all(ino) == bytes);
        f.fs.sync().unwrap();
        f.kill();
        assert!(f.read_all(ino) == bytes, "after a kill");
        f.check();
    }
}

/// A disk whose reads are held up while it is told to, and that counts those during which a file is locked for changing it.
struct WatchedReads {
    inner: MemoryDevice,
    held: AtomicBool,
    waiting: Mutex<usize>,
    changed: Condvar,
    file: OnceLock<Arc<InodeState>>,
    reads: AtomicU64,
    reads_locked: AtomicU64,
}

impl Between for WatchedReads {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        if requests.iter().any(|request| request.operation() == Operation::Read) {
            self.reads.fetch_add(1, Ordering::SeqCst);
            if self.file.get().is_some_and(|file| file.inner.try_read().is_none()) {
                self.reads_locked.fetch_add(1, Ordering::SeqCst);
            }
            let mut waiting = self.waiting.lock();
            *waiting += 1;
            self.changed.notify_all();
            while self.held.load(Ordering::SeqCst) {
                self.changed.wait_for(&mut waiting, Duration::from_millis(10));
            }
            *waiting -= 1;
        }
        self.inner.run(requests)
    }
}

/// What is on the fixture's device, with so little of it in memory, on one whose reads are watched.
fn watched_reads(f: &Fixture, cache_bytes: u64) -> (Arc<Through<WatchedReads>>, Filesystem) {
    f.fs.close().unwrap();
    let device = Arc::new(Through(WatchedReads {
        inner: f.device.snapshot(),
        held: AtomicBool::new(false),
        waiting: Mutex::default(),
        changed: Condvar::new(),
        file: OnceLock::new(),
        reads: AtomicU64::new(0),
        reads_locked: AtomicU64::new(0),
    }));
    let options = OpenOptions {
        store: StoreOptions { background: false, cache_bytes, ..StoreOptions::default() },
        dirty_bytes_max: 64 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    (device, fs)
}

// Goal: who looks for data behind which much space is set aside keeps nobody from the file, and finds what he has passed once. Method: a
// file with one block of space in each MiB, of which little is in memory; a look for data is held up at the device while the file is
// locked; looks from farther behind read nothing, until the file changes.
#[test]
fn looking_for_data_keeps_nobody_waiting() {
    const MIBS: u64 = 6_000;
    let f = Fixture::new(128 * MIB);
    let ino = f.create(b"image");
    f.write(ino, 0, &[1; 4096]);
    f.truncate(ino, MIBS * MIB);
    for at in 1..MIBS {
        f.fs.fallocate(Caller::ROOT, ino, at * MIB, BLOCK, Allocate::Reserve { keep_size: true }).unwrap();
    }
    let (device, fs) = watched_reads(&f, 1 << 16);
    let state = fs.core().state(ino);
    let data = |from: u64| fs.seek(ino, from, SeekTo::Data).unwrap();
    assert_eq!(data(1), Some(1));
    device.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| data(BLOCK));
        let mut waiting = device.waiting.lock();
        while *waiting == 0 {
            assert!(!looking.is_finished(), "it is read from the device");
            device.changed.wait_for(&mut waiting, Duration::from_millis(10));
        }
        drop(waiting);
        let free = state.inner.try_write_for(Duration::from_millis(50)).is_some();
        device.held.store(false, Ordering::SeqCst);
        assert_eq!(looking.join().unwrap(), None);
        assert!(free, "it is in the way of who changes the file");
    });
    let reads = || device.reads.load(Ordering::SeqCst);
    let before = reads();
    for at in (1..MIBS).step_by(10) {
        assert_eq!(data(at * MIB + 5), None);
    }
    assert_eq!(reads(), before, "what has been passed once is read again");
    fs.write(Caller::ROOT, ino, 4_000 * MIB, b"x").unwrap();
    assert_eq!(data(17 * MIB), Some(4_000 * MIB), "in memory");
    fs.sync().unwrap();
    assert_eq!(data(17 * MIB), Some(4_000 * MIB), "logged");
    assert_eq!(data(4_000 * MIB + 7), Some(4_000 * MIB + 7));
    assert_eq!(data(4_001 * MIB), None);
    fs.fallocate(Caller::ROOT, ino, 4_000 * MIB, BLOCK, Allocate::Punch).unwrap();
    assert_eq!(data(17 * MIB), None);
    assert_eq!(data(0), Some(0));
}

// Goal: what write-back has to read to log scattered pages, it reads before it locks the file for that, where nobody waits for it. Method: a
// file in many pieces, and one of a pool in which files are shared, of which nothing is in memory; pages in all parts of it are
// written and logged, in one half and then in the other, and the reads that are made meanwhile under the file's lock are counted.
#[test]
fn logging_reads_before_it_locks() {
    const MIBS: u64 = 16_000;
    for shared in [false, true] {
        let f = Fixture::new(256 * MIB);
        let ino = f.create(b"image");
        for at in 0..MIBS {
            f.write(ino, at * MIB, &[1; 4096]);
        }
        f.fs.sync().unwrap();
        if shared {
            f.fs.clone_file(Caller::ROOT, ino, ROOT, b"clone").unwrap();
            for at in (0..MIBS).step_by(2) {
                f.write(ino, at * MIB, &[2; 4096]);
            }
            f.fs.sync().unwrap();
        }
        let (device, fs) = watched_reads(&f, 4 << 20);
        device.file.set(fs.core().state(ino)).ok().unwrap();
        let (mut reads_before, mut locked_before) = (device.reads.load(Ordering::SeqCst), 0);
        // The second time less than what is logged at once, and a leaf for each page.
        for (pages, step) in [(0..MIBS / 2, 16), (MIBS / 2..MIBS, 160)] {
            for at in pages.step_by(step) {
                fs.write(Caller::ROOT, ino, at * MIB, &[3; 4096]).unwrap();
            }
            fs.flush_file(ino).unwrap();
            let reads = device.reads.load(Ordering::SeqCst);
            let locked = device.reads_locked.load(Ordering::SeqCst);
            let (these, under) = (reads - reads_before, locked - locked_before);
            println!("shared {shared}, every {step}: {these} reads, {under} under the lock");
            assert!(these > 0 && under <= 8, "shared {shared}: {under} of {these} reads under the lock");
            (reads_before, locked_before) = (reads, locked);
        }
        fs.close().unwrap();
    }
}

// Goal: who has an inode and looks for what its subvolume shows waits for nobody who waits for that inode, whoever has the gate alone in
// between. Method: two that have the gate alone all the time, one that has the inode and looks, and one that has the gate and waits for the
// inode, until each has had its turn many times.
#[test]
fn who_has_an_inode_waits_at_no_gate_for_good() {
    const TURNS: u64 = 2_000;
    let f = Fixture::new(64 * MIB);
    let core = f.fs.core();
    let gate = core.subvolumes.get(Slot::of(ROOT)).unwrap().gate.clone();
    let (inode, stuck, turns) = (Mutex::new(()), AtomicBool::new(false), [(); 3].map(|()| AtomicU64::new(0)));
    let turn = |who: usize| turns[who].fetch_add(1, Ordering::Relaxed);
    let goes_on =
        || turns.iter().any(|turns| turns.load(Ordering::Relaxed) < TURNS) && !stuck.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while goes_on() {
                    let alone = gate.write();
                    // So long that others queue.
                    (0..500).for_each(|_| std::hint::spin_loop());
                    drop(alone);
                    turn(0);
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                let held = inode.lock();
                drop(core.names(ROOT).unwrap());
                drop(held);
                turn(1);
            }
        });
        while goes_on() {
            let shown = gate.read();
            // A test that fails ends.
            match inode.try_lock_for(Duration::from_secs(20)) {
                Some(_) => _ = turn(2),
                None => stuck.store(true, Ordering::Relaxed),
            }
            drop(shown);
        }
    });
    assert!(
        !stuck.into_inner(),
        "who has the inode waits for who waits for it, after these turns: {turns:?}"
    );
}
