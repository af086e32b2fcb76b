//! Many threads at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Condvar;
use varve_device::Operation;
use varve_sim::Rng;

use super::*;
use varve_fs::internals::writeback::Group;

// Goal: no deadlock, no lost update, and nothing wrong at the end. Method: threads rename, link, unlink, write, sync and
// list in three directories of few names; then check, and check again after a kill.
#[test]
fn verbs_from_many_threads() {
    let mut f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, MIB);
    let dirs = [ROOT, f.mkdir(ROOT, b"d1"), f.mkdir(ROOT, b"d2")];
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (f, dirs, done) = (&f, &dirs, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..1500 {
                    let (a, b) = (*rng.pick(dirs).unwrap(), *rng.pick(dirs).unwrap());
                    let name = |rng: &mut Rng| vec![b'a' + rng.below(6) as u8];
                    let (x, y) = (name(&mut rng), name(&mut rng));
                    let fs = &f.fs;
                    let result = match rng.below(12) {
                        0 | 1 => fs.create(Caller::ROOT, a, &x, 0o644).map(drop),
                        2 => fs.mkdir(Caller::ROOT, a, &x, 0o755).map(drop),
                        3 => fs.unlink(a, &x),
                        4 => fs.rmdir(a, &x),
                        5 => fs.rename(a, &x, b, &y, RenameMode::Replace),
                        6 => fs.rename(a, &x, b, &y, RenameMode::Exchange),
                        7 => fs.lookup(a, &x).and_then(|attr| fs.link(attr.ino, b, &y)).map(drop),
                        8 | 9 => fs.lookup(a, &x).and_then(|attr| {
                            fs.open_inode(Caller::ROOT, attr.ino, false)?;
                            let data = pattern(rng.next_u64(), rng.below(20_000) as usize + 1);
                            let wrote = fs.write(Caller::ROOT, attr.ino, rng.below(50_000), &data);
                            let read = fs.read(attr.ino, rng.below(50_000), 5000);
                            let size = SetAttr { size: Some(rng.below(40_000)), ..SetAttr::default() };
                            let cut = fs.setattr(Caller::ROOT, attr.ino, size);
                            fs.release_inode(attr.ino)?;
                            wrote?;
                            read?;
                            cut.map(drop)
                        }),
                        10 => fs.lookup(a, &x).and_then(|attr| fs.fsync(attr.ino)),
                        _ => fs.readdir(a, 0, &mut |_| true).and_then(|()| fs.maintain()),
                    };
                    match result {
                        Ok(()) => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(FsError::Engine(error)) => panic!("thread {thread}: {error}"),
                        Err(_) => {}
                    }
                }
            });
        }
    });
    assert!(done.load(Ordering::Relaxed) > 1000);
    f.check();
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    f.check();
}

// Goal: one file written, cut, synced and read by many threads keeps its bytes. Method: each thread owns every fourth
// page and rereads what it wrote.
#[test]
fn one_file_from_many_threads() {
    let mut f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, 256 << 10);
    let ino = f.create(b"f");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let f = &f;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..400 {
                    let page = rng.below(64) * 4 + thread;
                    let at = page * 4096 + rng.below(1000);
                    let data = pattern(rng.next_u64(), 3000);
                    f.write(ino, at, &data);
                    if rng.chance(0.1) {
                        f.fs.fsync(ino).unwrap();
                    }
                    assert!(f.fs.read(ino, at, 3000).unwrap() == data, "thread {thread} page {page}");
                }
            });
        }
    });
    let bytes = f.read_all(ino);
    f.fs.sync().unwrap();
    f.kill();
    assert!(f.read_all(ino) == bytes);
    f.check();
}

// Goal: a sync does not acknowledge data that another thread has taken for write-back and then failed to write. Method:
// take a file's pages as a write-back does; sync from another thread; let the write-back fail; after a kill the data is
// there.
#[test]
fn a_sync_waits_for_what_others_write_back() {
    let mut f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    let data = pattern(3, 20_000);
    f.write(ino, 0, &data);
    let core = f.fs.core();
    let mut group = Group::default();
    assert!(core.take(core.state(ino).turn(), u64::MAX, &mut group).unwrap().is_none(), "nothing was taken");
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| f.fs.sync());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!sync.is_finished(), "a sync returned while a file's data was in flight");
        let failed: varve_fs::internals::Result<()> =
            Err(FsError::Engine(varve_engine::EngineError::NoSpace));
        drop(core.finish(group, failed));
        sync.join().unwrap().unwrap();
    });
    f.kill();
    let ino = f.fs.lookup(ROOT, b"file").unwrap().ino;
    assert_eq!(f.read_all(ino), data);
    f.check();
}

/// Memory whose writes take until the number has risen by two, or for a while.
struct Slow {
    inner: MemoryDevice,
    number: Arc<AtomicU64>,
    slow: AtomicBool,
    waiting: Mutex<()>,
    turn: Condvar,
    /// Groups of requests with writes in them that have begun.
    begun: AtomicU64,
}

impl Slow {
    /// Over a copy of the fixture's device, not slow yet.
    fn over(f: &Fixture, number: &Arc<AtomicU64>) -> Slow {
        Slow {
            inner: f.device.snapshot(),
            number: number.clone(),
            slow: AtomicBool::new(false),
            waiting: Mutex::default(),
            turn: Condvar::new(),
            begun: AtomicU64::new(0),
        }
    }
}

/// The fixture's filesystem on another device.
fn opened(f: &Fixture, device: Arc<dyn Device>, dirty_bytes_max: u64) -> Filesystem {
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    Filesystem::open(vec![device], options).unwrap().0
}

impl Between for Slow {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let first = self.number.load(Ordering::Relaxed);
        if requests.iter().any(|request| request.operation() == Operation::Write) {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        let mut left = 300;
        while self.slow.load(Ordering::Relaxed)
            && requests.iter().any(|request| request.operation() == Operation::Write)
            && self.number.load(Ordering::Relaxed) < first + 2
            && left > 0
        {
            self.turn.wait_for(&mut self.waiting.lock(), Duration::from_millis(1));
            left -= 1;
        }
        self.inner.run(requests)
    }
}

// Goal: a file can be cloned while it is written to without a pause, and the clone is what it was at one instant. Method: a
// thread writes all of it again and again, each time with the next number, and has done so when a write-back ends. All of a
// clone has one number, of about that time; writing goes on after each clone.
#[test]
fn a_file_that_is_always_written_to_is_cloned() {
    // More than rides with the log.
    let len = 5 << 18;
    // So much that the writer never waits for space.
    let f = Fixture::new(512 * MIB);
    let source = f.create(b"source");
    f.fs.close().unwrap();
    let next = Arc::new(AtomicU64::new(1));
    let device = Arc::new(Through(Slow::over(&f, &next)));
    let fs = opened(&f, device.clone(), 8 * MIB);
    let contents = |number: u64| number.to_le_bytes().repeat(len / 8);
    fs.write(Caller::ROOT, source, 0, &contents(0)).unwrap();
    fs.sync().unwrap();
    device.slow.store(true, Ordering::Relaxed);
    let stop = AtomicBool::new(false);
    let clones = || -> varve_fs::internals::Result<()> {
        for n in 0..4 {
            let before = next.load(Ordering::Relaxed);
            let clone = fs.clone_file(Caller::ROOT, source, ROOT, format!("clone{n}").as_bytes())?;
            let bytes = fs.read(clone.ino, 0, len + 1)?;
            assert_eq!(bytes.len(), len);
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(bytes == contents(number), "clone {n} is of more than one instant");
            // What had been begun last may not have been written.
            assert!(number + 2 >= before, "clone {n} is of {number}, and {before} comes next");
            while next.load(Ordering::Relaxed) < before + 2 {
                std::thread::yield_now();
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut bytes = contents(0);
            while !stop.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                bytes.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&number.to_le_bytes()));
                assert_eq!(fs.write(Caller::ROOT, source, 0, &bytes).unwrap(), len);
            }
        });
        let cloned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(clones));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        cloned.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap();
    });
    device.slow.store(false, Ordering::Relaxed);
    let report = fs.check(true).unwrap();
    assert!(report.problems.is_empty(), "check found: {:#?}", report.problems);
}

// Goal: holes, shifts and growth come to an end beside somebody who makes the file grow without a pause. Method: a thread appends more
// than rides with the log for each write that the device gets, which waits for it, until the file is so large that nobody would
// wait for more; another thread does each, and is done before.
#[test]
fn a_file_that_always_grows_can_be_changed() {
    const APPENDED_MAX: u64 = 300;
    let f = Fixture::new(512 * MIB);
    let ino = f.create(b"file");
    f.fs.close().unwrap();
    let appended = Arc::new(AtomicU64::new(0));
    let device = Arc::new(Through(Slow::over(&f, &appended)));
    let fs = opened(&f, device.clone(), 64 * MIB);
    let part = vec![7; 5 << 18];
    fs.write(Caller::ROOT, ino, 0, &part).unwrap();
    fs.sync().unwrap();
    device.slow.store(true, Ordering::Relaxed);
    let stop = AtomicBool::new(false);
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let made = appended.load(Ordering::Relaxed);
                if made < APPENDED_MAX && made < 2 * device.begun.load(Ordering::Relaxed) + 2 {
                    let at = fs.getattr(ino).unwrap().size;
                    fs.write(Caller::ROOT, ino, at, &part).unwrap();
                    appended.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| {
            let done = fs
                .fallocate(Caller::ROOT, ino, 0, 4096, Allocate::Punch)
                .and_then(|()| fs.collapse_range(Caller::ROOT, ino, 4096, 4096))
                .and_then(|()| {
                    fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(420 << 20), ..SetAttr::default() })
                });
            told.send(done.map(|_| appended.load(Ordering::Relaxed))).unwrap();
        });
        let done = tell.recv_timeout(Duration::from_secs(300));
        stop.store(true, Ordering::Relaxed);
        device.slow.store(false, Ordering::Relaxed);
        let beside = done.expect("it comes to an end").unwrap();
        assert!(beside < APPENDED_MAX, "it ended when others did");
    });
    assert_eq!(fs.read(ino, 0, 4096).unwrap(), [0; 4096]);
    let report = fs.check(true).unwrap();
    assert!(report.problems.is_empty(), "check found: {:#?}", report.problems);
}

/// A disk whose reads last, while `slow`, until a number has gone up by two, or not for ever.
struct SlowToRead(Slow);

impl Between for SlowToRead {
    fn behind(&self) -> &dyn Device {
        &self.0.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let reads = requests.iter().any(|request| request.operation() == Operation::Read);
        let (first, mut left) = (self.0.number.load(Ordering::Relaxed), 300);
        while reads
            && self.0.slow.load(Ordering::Relaxed)
            && self.0.number.load(Ordering::Relaxed) < first + 2
            && left > 0
        {
            self.0.turn.wait_for(&mut self.0.waiting.lock(), Duration::from_millis(1));
            left -= 1;
        }
        self.0.inner.run(requests)
    }
}

/// Writes into the middle of a block that is not in memory, beside somebody who does `other` without a pause: that counts how often.
fn write_a_part_beside(other: impl Fn(&Filesystem, InodeId, &AtomicU64) + Sync) {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    f.write(ino, 0, &[7; 40960]);
    f.fs.close().unwrap();
    let times = Arc::new(AtomicU64::new(0));
    let device = Arc::new(Through(SlowToRead(Slow::over(&f, &times))));
    let fs = opened(&f, device.clone(), 8 * MIB);
    assert_eq!(fs.read(ino, 36864, 1).unwrap(), [7]);
    device.0.0.slow.store(true, Ordering::Relaxed);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                other(&fs, ino, &times);
            }
        });
        let (told, tell) = std::sync::mpsc::channel();
        let fs = &fs;
        scope.spawn(move || told.send(fs.write(Caller::ROOT, ino, 100, b"part")).unwrap());
        let written = tell.recv_timeout(Duration::from_secs(300));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(written.expect("it comes to an end").unwrap(), 4);
    });
    device.0.0.slow.store(false, Ordering::Relaxed);
    assert_eq!(fs.read(ino, 98, 8).unwrap(), *b"\x07\x07part\x07\x07");
}

// Goal: a write into the middle of a block that is not in memory comes to an end beside somebody who writes and syncs another block of the
// file without a pause. Method: each read of the device lasts until the other has synced once more.
#[test]
fn a_part_of_a_block_is_written_beside_who_syncs() {
    write_a_part_beside(|fs, ino, synced| {
        fs.write(Caller::ROOT, ino, 36864, &[1; 4096]).unwrap();
        fs.flush_file(ino).unwrap();
        synced.fetch_add(1, Ordering::Relaxed);
    });
}

// Goal: as above, beside somebody who makes the file longer without a pause, which waits for nobody. Method: as above.
#[test]
fn a_part_of_a_block_is_written_beside_who_grows() {
    write_a_part_beside(|fs, ino, grown| {
        let size = 40960 + grown.fetch_add(1, Ordering::Relaxed);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(Caller::ROOT, ino, set).unwrap();
    });
}

// Goal: a hole that is punched while the file is cut makes it no longer than it was cut to. Method: a hole that ends in the
// middle of the only block, and a cut to nothing, at the same time, again and again, of a file whose data is logged or not.
#[test]
fn a_hole_does_not_grow_what_is_cut() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    let begin = std::sync::Barrier::new(2);
    for round in 0..2000 {
        f.write(ino, 0, &[1; 4000]);
        if round % 2 == 0 {
            f.fs.flush_file(ino).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                f.fs.fallocate(Caller::ROOT, ino, 10, 3990, Allocate::Punch).unwrap();
            });
            begin.wait();
            f.truncate(ino, 0);
        });
        assert_eq!(f.fs.getattr(ino).unwrap().size, 0, "round {round}");
    }
    f.check();
}

// Goal: who looks for a name does not wait for who changes the directory, found or not, so that threads that make files in one
// directory meet at its lock once a file. Method: its lock is held by a thread that goes on only when all has been looked for.
#[test]
fn looking_for_names_waits_for_no_change_of_the_directory() {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"d");
    let file = f.fs.create(Caller::ROOT, dir, b"there", 0o644).unwrap().ino;
    let core = f.fs.core();
    let state = core.state(dir);
    let held = core.hold(&state).unwrap();
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let fs = &f.fs;
        scope.spawn(move || {
            let found = [
                fs.find(ROOT, b"d"),
                fs.find(dir, b"there"),
                fs.lookup(dir, b"there").map(|a| (a.ino, a.kind)),
            ];
            let missing = [fs.find(dir, b"not").is_err(), fs.lookup(dir, b"not").is_err()];
            told.send((found.map(Result::unwrap), missing)).expect("the test listens");
        });
        let seen = tell.recv_timeout(Duration::from_secs(120));
        drop(held);
        let (found, missing) = seen.expect("it waited for the directory");
        let expected = [(dir, FileKind::Directory), (file, FileKind::File), (file, FileKind::File)];
        assert_eq!(found, expected);
        assert_eq!(missing, [true, true]);
    });
}

// Goal: who deletes a subvolume hears that it is done, though its directory goes at the same moment. Method: one that makes and deletes
// one, over and over, beside one that removes the directory whenever it is empty.
#[test]
fn a_directory_goes_with_its_last_subvolume() {
    let f = Fixture::new(64 * MIB);
    let over = AtomicBool::new(false);
    /// Ends the other thread, whatever happens to this one.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let mut deleted = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = f.fs.rmdir(ROOT, b"dir");
            }
        });
        let _over = Over(&over);
        for round in 0..30_000 {
            let dir = match f.fs.mkdir(Caller::ROOT, ROOT, b"dir", 0o755) {
                Ok(attr) => attr.ino,
                Err(FsError::Exists) => f.fs.lookup(ROOT, b"dir").map_or(ROOT, |attr| attr.ino),
                Err(error) => panic!("{error}"),
            };
            if f.fs.create_subvolume(Caller::ROOT, dir, b"s", 0o755).is_ok() {
                f.fs.delete_subvolume(dir, b"s").unwrap();
                deleted += 1;
            }
            if round % 1_000 == 0 {
                f.fs.maintain().unwrap();
            }
        }
    });
    assert!(deleted > 100, "{deleted} of them");
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: who removes a name, or renames over it, does not wait for who clones the file, who waits for him. Method: an open file that a
// snapshot has as well loses its name, both ways in turn, while another clones it; 10,000 times, and nobody hangs.
#[test]
fn a_name_goes_while_its_file_is_cloned() {
    let f = std::sync::Arc::new(Fixture::new(128 * MIB));
    let dir = f.fs.create_subvolume(Caller::ROOT, ROOT, b"dir", 0o755).unwrap().ino;
    let present = std::sync::Arc::new(AtomicU64::new(0));
    let (cloner, remover) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let of_cloner = (f.clone(), present.clone());
    std::thread::spawn(move || {
        let (f, present) = of_cloner;
        let (mut cloned, mut ino) = (0, 0);
        while ino != u64::MAX {
            ino = present.load(Ordering::Relaxed);
            if f.fs.clone_file(Caller::ROOT, InodeId(ino), ROOT, b"clone").is_ok() {
                f.fs.unlink(ROOT, b"clone").unwrap();
                cloned += 1;
            }
        }
        cloner.0.send(cloned).unwrap();
    });
    let of_remover = f.clone();
    std::thread::spawn(move || {
        let f = of_remover;
        for round in 0..10_000 {
            let ino = f.fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap().ino;
            f.write(ino, 0, &pattern(round, 20_000));
            f.fs.flush_file(ino).unwrap();
            f.fs.snapshot(dir, ROOT, b"snapshot", false, false).unwrap();
            f.fs.open_inode(Caller::ROOT, ino, false).unwrap();
            present.store(ino.0, Ordering::Relaxed);
            if round % 2 == 0 {
                f.fs.create(Caller::ROOT, dir, b"new", 0o644).unwrap();
                f.fs.rename(dir, b"new", dir, b"file", RenameMode::Replace).unwrap();
            }
            f.fs.unlink(dir, b"file").unwrap();
            f.fs.release_inode(ino).unwrap();
            f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
            f.fs.maintain().unwrap();
        }
        present.store(u64::MAX, Ordering::Relaxed);
        remover.0.send(()).unwrap();
    });
    let long = Duration::from_secs(600);
    remover.1.recv_timeout(long).expect("who removes waits for who clones, who waits for him");
    assert!(cloner.1.recv_timeout(long).expect("it ends") > 10);
    f.check();
}
