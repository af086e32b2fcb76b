//! Nobody is refused what is there, waits without an end for who does not stop, or pays for how much there is of something else.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Condvar;
use varve_device::Operation;
use varve_engine::BLOCK_BYTES;

use super::*;
use varve_fs::internals::subvolume::Slot;

const BLOCK: u64 = BLOCK_BYTES as u64;

// Goal: what an unlink has freed is there for who needs it next, also where that one looks at the pool while it asks. Method: all space
// is taken; a file that is on the disk goes, and a link whose target needs a block comes, or a file is moved out of what it shares.
#[test]
fn what_has_been_freed_is_there_for_the_next() {
    let f = Fixture::new(64 * MIB);
    let shared = f.create(b"shared");
    for block in (0..2_000).step_by(2) {
        f.write(shared, block * BLOCK, &[1; 4096]);
    }
    for (name, len) in [(b"a", 400_000), (b"b", 4_000_000)] {
        let ino = f.create(name);
        f.write(ino, 0, &pattern(1, len));
    }
    f.fs.clone_file(Caller::ROOT, shared, ROOT, b"clone").unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let taken = f.take_all();
    assert_eq!(f.fs.symlink(Caller::ROOT, ROOT, b"link", &[b'x'; 4000]).unwrap_err().errno(), 28);
    f.fs.unlink(ROOT, b"a").unwrap();
    f.fs.symlink(Caller::ROOT, ROOT, b"link", &[b'x'; 4000]).unwrap();
    let _rest = f.take_all();
    assert_eq!(f.fs.insert_range(Caller::ROOT, shared, BLOCK, BLOCK).unwrap_err().errno(), 28);
    f.fs.unlink(ROOT, b"b").unwrap();
    f.fs.insert_range(Caller::ROOT, shared, BLOCK, BLOCK).unwrap();
    drop(taken);
}

// Goal: who writes a part of a block waits for no picture of his own when he looks for space. Method: all space is taken and a file on the disk
// goes; a byte of another, which has a clone, is written that is not in memory; the store looks for space once.
#[test]
fn a_write_into_a_block_keeps_no_space_from_itself() {
    let mut f = Fixture::new(64 * MIB);
    for (name, len) in [(b"a", 400_000), (b"b", 4096)] {
        let ino = f.create(name);
        f.write(ino, 0, &pattern(1, len));
    }
    let ino = f.fs.lookup(ROOT, b"b").unwrap().ino;
    f.fs.clone_file(Caller::ROOT, ino, ROOT, b"clone").unwrap();
    f.fs.sync().unwrap();
    f.reopen();
    f.fs.maintain().unwrap();
    let _taken = f.take_all();
    let ino = f.fs.lookup(ROOT, b"b").unwrap().ino;
    f.fs.unlink(ROOT, b"a").unwrap();
    let reclaims = || f.fs.core().store.stats().reclaims_count;
    let before = reclaims();
    assert_eq!(f.fs.write(Caller::ROOT, ino, 100, b"x").unwrap(), 1);
    // Twice while what it was to read was kept.
    assert_eq!(reclaims() - before, 1);
    let mut expected = pattern(1, 4096);
    expected[100] = b'x';
    assert!(f.read_all(ino) == expected);
    f.fs.sync().unwrap();
    f.check();
}

// Goal: two ranges that are the same share their bytes on a full pool, if something has been deleted: what is kept while they are compared keeps
// that from nobody. Method: all space is taken, so that it is refused; a file on the disk goes.
#[test]
fn same_bytes_are_shared_with_what_has_been_freed() {
    let f = Fixture::new(64 * MIB);
    let [a, b, _] =
        [(b"a", 1, 1 << 20), (b"b", 1, 1 << 20), (b"c", 2, 4_000_000)].map(|(name, seed, len)| {
            let ino = f.create(name);
            f.write(ino, 0, &pattern(seed, len));
            ino
        });
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let _taken = f.take_all();
    let dedupe = || f.fs.dedupe_range((a, 0), (b, 0), MIB);
    refused(dedupe(), 28);
    let _rest = f.take_all();
    f.fs.unlink(ROOT, b"c").unwrap();
    assert_eq!(dedupe().unwrap(), Deduped::Same(MIB));
    assert!(f.read_all(b) == pattern(1, 1 << 20));
    f.fs.sync().unwrap();
    f.check();
}

// Goal: who is refused finds what others have given back meanwhile, and not only what he gives back himself. Method: all space is taken, and
// what a file had that is gone is still read; between the refusal and the wait for that read it ends, and another gives the space back.
#[test]
fn what_others_give_back_is_there_too() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    f.write(ino, 0, &pattern(1, 400_000));
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let _taken = f.take_all();
    let core = f.fs.core();
    let reader = Cell::new(Some(core.store.view()));
    f.fs.unlink(ROOT, b"file").unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let tries = Cell::new(0);
    let got = core.with_space(|| {
        tries.set(tries.get() + 1);
        let got = core.store.reserve(1, 0, 0);
        if got.is_err() {
            drop(reader.take());
            core.store.maintain()?;
        }
        Ok(got?)
    });
    assert!(got.is_ok(), "refused {} times", tries.get());
    assert_eq!(tries.get(), 2);
}

// Goal: a subvolume that moves, and a range that is shared into a file that lies in its record, find the space of what is deleted and
// not yet reaped. Method: all space is taken, and a snapshot goes that alone has a file.
#[test]
fn what_is_not_yet_reaped_is_there_for_all() {
    type Verb<'a> = &'a dyn Fn(&Fixture, InodeId) -> varve_fs::internals::Result<()>;
    let verbs: [Verb<'_>; 2] =
        [&|f, dir| f.fs.rename(ROOT, b"sub", dir, b"moved", RenameMode::Replace), &|f, dir| {
            let [from, to] = [b"from".as_slice(), b"to"].map(|name| f.fs.lookup(dir, name).unwrap().ino);
            f.fs.clone_range(Caller::ROOT, (from, 0), (to, BLOCK), 4 * BLOCK)
        }];
    for (number, verb) in verbs.into_iter().enumerate() {
        let f = Fixture::new(64 * MIB);
        let dir = f.mkdir(ROOT, b"dir");
        f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap();
        for (name, len) in [(b"from".as_slice(), 8 << 12), (b"to", 100)] {
            let ino = f.fs.create(Caller::ROOT, dir, name, 0o644).unwrap().ino;
            f.write(ino, 0, &pattern(1, len));
        }
        let big = f.create(b"big");
        f.write(big, 0, &pattern(1, 4 << 20));
        f.fs.snapshot(ROOT, ROOT, b"snapshot", true, true).unwrap();
        f.fs.unlink(ROOT, b"big").unwrap();
        f.fs.sync().unwrap();
        f.fs.maintain().unwrap();
        // Each adds up to some blocks of nodes, and what earlier ones have left is there, too.
        let taken = f.take_all();
        f.fs.sync().unwrap();
        let rest = f.take_all();
        f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
        assert!(f.fs.core().reap.has_work(), "nothing is reaped yet");
        verb(&f, dir).unwrap_or_else(|error| panic!("verb {number}: {error}"));
        drop((taken, rest));
        f.check();
    }
}

// Goal: zeroing a range that finds no space for its holes leaves the data in it as it is. Method: a range far longer than the pool over
// a file with data.
#[test]
fn refused_zeroing_changes_nothing() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    let data = pattern(3, 1 << 20);
    f.write(ino, 0, &data);
    for sync in [false, true] {
        if sync {
            f.fs.sync().unwrap();
        }
        for keep_size in [false, true] {
            let zero = Allocate::Zero { keep_size };
            assert_eq!(f.fs.fallocate(Caller::ROOT, ino, 100, 10 << 30, zero).unwrap_err().errno(), 28);
            assert!(f.read_all(ino) == data);
        }
    }
    f.fs.fallocate(Caller::ROOT, ino, 0, 1 << 20, Allocate::Zero { keep_size: false }).unwrap();
    assert!(f.read_all(ino) == vec![0; 1 << 20]);
    f.check();
}

// Goal: zeroing on a full pool is done or changes nothing, whoever else sees the data; what is set aside in the range stays so. Method: of a
// pool without space so much is given back, a block after the other, until a range is zeroed that only its file has, whole blocks or not, that
// is set aside, or was, that has a few bytes, that a snapshot shows too, or another file in part.
#[test]
fn zeroing_is_refused_before_anything_is_zeroed() {
    type Setup<'a> = &'a dyn Fn(&Fixture, InodeId, InodeId);
    const LEN: u64 = 8 * MIB;
    // Zeros are written over what is there where none can be set aside.
    const NEED_NOTHING: [&str; 4] =
        ["alone", "parts of blocks", "parts of blocks once set aside", "set aside"];
    let cases: [(&str, u64, Setup<'_>); 7] = [
        ("alone", 0, &|f, _, ino| f.write(ino, 0, &pattern(3, LEN as usize))),
        ("parts of blocks", 0, &|f, _, ino| f.write(ino, 0, &pattern(3, LEN as usize))),
        ("parts of blocks once set aside", 0, &|f, _, ino| {
            f.fs.fallocate(Caller::ROOT, ino, 0, LEN, Allocate::Reserve { keep_size: false }).unwrap();
            f.write(ino, 0, &pattern(3, LEN as usize));
        }),
        ("set aside", 0, &|f, _, ino| {
            f.fs.fallocate(Caller::ROOT, ino, 0, LEN, Allocate::Reserve { keep_size: false }).unwrap();
        }),
        ("small", 2_000, &|f, _, ino| f.write(ino, 0, &pattern(3, 1_000))),
        ("with a snapshot", 2_000, &|f, sub, ino| {
            f.write(ino, 0, &pattern(3, LEN as usize));
            f.fs.snapshot(sub, ROOT, b"snapshot", true, true).unwrap();
        }),
        ("with another file", 1_000, &|f, sub, ino| {
            f.write(ino, 0, &pattern(3, LEN as usize));
            let other = f.fs.create(Caller::ROOT, sub, b"other", 0o644).unwrap().ino;
            f.fs.clone_range(Caller::ROOT, (ino, 0), (other, 0), LEN / 2).unwrap();
        }),
    ];
    for (what, free_blocks, setup) in cases {
        let f = Fixture::new(64 * MIB);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
        setup(&f, sub, ino);
        f.fs.sync().unwrap();
        f.fs.maintain().unwrap();
        f.fs.checkpoint().unwrap();
        let data = f.read_all(ino);
        let free = f.fs.core().store.reserve(free_blocks, 0, 0).unwrap();
        let mut taken: Vec<_> = (0..300).map(|_| f.fs.core().store.reserve(1, 0, 0).unwrap()).collect();
        let rest = f.take_all();
        drop(free);
        let zero = Allocate::Zero { keep_size: true };
        let (start, end) = if what.starts_with("parts of blocks") { (100, LEN - 100) } else { (0, LEN) };
        let mut expected = data.clone();
        let reach = |at: u64| data.len().min(at as usize);
        expected[reach(start)..reach(end)].fill(0);
        while let Err(error) = f.fs.fallocate(Caller::ROOT, ino, start, end - start, zero) {
            assert_eq!(error.errno(), 28, "{what}: {error}");
            assert!(f.read_all(ino) == data, "{what}: refused with {} blocks taken", taken.len());
            assert!(taken.pop().is_some(), "{what}");
        }
        assert!(f.read_all(ino) == expected);
        assert_eq!(taken.len() == 300, NEED_NOTHING.contains(&what), "{what}: {} blocks taken", taken.len());
        drop((taken, rest));
        f.fs.sync().unwrap();
        f.check();
        let reserved = f.fs.space().reserved_bytes;
        let all = (LEN..LEN + MIB).contains(&reserved);
        assert!(all || NEED_NOTHING.contains(&what), "{what}: {reserved}");
    }
}

// Goal: a range of which a snapshot shows a part is not refused with more space where it is zeroed with less. Method: half of a file is
// written again after a snapshot; around what all of the range takes, each number of free blocks.
#[test]
fn zeroing_takes_no_more_where_there_is_more() {
    const LEN: u64 = MIB;
    let done = |blocks: u64| {
        let f = Fixture::new(64 * MIB);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
        f.write(ino, 0, &pattern(3, LEN as usize));
        f.fs.snapshot(sub, ROOT, b"snapshot", true, true).unwrap();
        f.write(ino, 0, &pattern(4, LEN as usize / 2));
        f.fs.sync().unwrap();
        f.fs.maintain().unwrap();
        f.fs.checkpoint().unwrap();
        let free = f.fs.core().store.reserve(blocks, 0, 0).unwrap();
        let rest = f.take_all();
        drop(free);
        let zero = Allocate::Zero { keep_size: true };
        let done = f.fs.fallocate(Caller::ROOT, ino, 100, LEN - 200, zero).is_ok();
        drop(rest);
        done
    };
    let done: Vec<bool> = (130..300).map(done).collect();
    assert!(done.is_sorted() && done[done.len() - 1] && !done[0], "{done:?}");
}

// Goal: nothing stays in memory of a subvolume that has come and gone. Method: some, with a file each, made, deleted and reaped; every other
// one with a snapshot, and every other one of these changed where the reaper is told, as the snapshot is.
#[test]
fn subvolumes_that_are_gone_leave_no_gates() {
    let f = Fixture::new(64 * MIB);
    let gates = || f.fs.core().subvolumes.gates_count();
    let before = gates();
    for i in 0..50 {
        let name = format!("{i}").into_bytes();
        let root = f.fs.create_subvolume(Caller::ROOT, ROOT, &name, 0o755).unwrap().ino;
        let make = |root: InodeId, name: &[u8]| f.fs.create(Caller::ROOT, root, name, 0o644).unwrap();
        make(root, b"file");
        if i % 2 == 0 {
            // Two of one family.
            let snapshot = f.fs.snapshot(root, ROOT, b"snapshot", false, false).unwrap();
            if i % 4 == 0 {
                for (root, name) in [(snapshot, b"a"), (root, b"a"), (root, b"b")] {
                    make(root, name);
                }
            }
            f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
        }
        f.fs.delete_subvolume(ROOT, &name).unwrap();
    }
    f.fs.maintain().unwrap();
    assert_eq!((f.fs.core().reap.backlog(), gates()), (0, before));
    f.check();
}

// Goal: a listing shows subvolumes among names, each once and in its place, and takes no more of them along than it needs. Method: more
// of both than are fetched at once, listed in pieces.
#[test]
fn subvolumes_are_listed_some_at_a_time() {
    const COUNT: usize = 1_100;
    let f = Fixture::new(64 * MIB);
    let mut expected = Vec::new();
    for i in 0..COUNT {
        let name = format!("sub{i}").into_bytes();
        f.fs.create_subvolume(Caller::ROOT, ROOT, &name, 0o755).unwrap();
        expected.push(name);
        if i % 3 == 0 {
            let name = format!("file{i}").into_bytes();
            f.create(&name);
            expected.push(name);
        }
    }
    expected.sort_unstable();
    for piece in [1_000_000, 611, 512, 50] {
        let (mut found, mut cookie, mut last) = (Vec::new(), 2, false);
        while !last {
            let (mut left, from) = (piece, cookie);
            last = true;
            let mut each = |entry: DirEntry| {
                assert!(entry.cookie > cookie, "in order");
                if left == 0 {
                    last = false;
                    return false;
                }
                (left, cookie) = (left - 1, entry.cookie);
                found.push(entry.name);
                true
            };
            f.fs.readdir(ROOT, from, &mut each).unwrap();
        }
        found.sort_unstable();
        assert!(found == expected, "in pieces of {piece}: {} of {}", found.len(), expected.len());
    }
    assert_eq!(f.fs.core().subvolumes.nested.list(ROOT, 2, 512).len(), 512);
}

// Goal: the background is not held up by who changes the number of files, however long: it counts another time. Method: one who holds the
// right to, when a count is due after a crash.
#[test]
fn counting_waits_for_nobody() {
    let mut f = Fixture::new(64 * MIB);
    for i in 0..20 {
        f.create(format!("{i}").as_bytes());
    }
    f.fs.sync().unwrap();
    f.kill();
    let core = f.fs.core();
    let holding = core.counting().unwrap();
    core.count_files(true).unwrap();
    drop(holding);
    core.count_files(true).unwrap();
    // The root, too.
    assert_eq!(f.fs.statfs().unwrap().files, 21);
}

// Goal: who only looks does not go before who waits to have a subvolume alone, so that looking without a pause keeps nobody from it. Method:
// one holds the gate, one waits for it alone, and then one looks for a name: the last is not done before the second.
#[test]
fn who_looks_waits_behind_who_waits() {
    let f = Fixture::new(64 * MIB);
    let core = f.fs.core();
    let subvolume = core.subvolumes.get(Slot::FIRST).unwrap();
    let (alone, looked) = (AtomicBool::new(false), AtomicBool::new(false));
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let first = core.names_first(ROOT).unwrap();
        scope.spawn(|| {
            let _gate = subvolume.gate.write();
            assert!(!looked.load(Ordering::SeqCst), "who came later was first");
            alone.store(true, Ordering::SeqCst);
        });
        // It waits as soon as another who is no second look of the same is not let in.
        while subvolume.gate.try_read().is_some() {
            std::thread::yield_now();
        }
        scope.spawn(|| {
            // One that is known from lately asks nobody.
            refused(f.fs.lookup(ROOT, b"no file"), 2);
            looked.store(true, Ordering::SeqCst);
            told.send(()).unwrap();
        });
        tell.recv_timeout(Duration::from_millis(50)).expect_err("it waits");
        assert!(!looked.load(Ordering::SeqCst) && !alone.load(Ordering::SeqCst));
        drop(first);
    });
}

/// A disk whose reads are held up while it is told to.
struct HeldReads {
    inner: MemoryDevice,
    held: AtomicBool,
    waiting: Mutex<usize>,
    changed: Condvar,
}

impl HeldReads {
    fn wait_for_a_read(&self, is_over: &dyn Fn() -> bool) {
        let mut waiting = self.waiting.lock();
        while *waiting == 0 {
            assert!(!is_over(), "it is read from the device");
            self.changed.wait_for(&mut waiting, Duration::from_millis(10));
        }
    }
}

/// What is on the fixture's device, with little of it in memory, on one whose reads can be held up.
fn held_reads(f: &Fixture) -> (Arc<Through<HeldReads>>, Filesystem) {
    let device = Arc::new(Through(HeldReads {
        inner: f.device.snapshot(),
        held: AtomicBool::new(false),
        waiting: Mutex::default(),
        changed: Condvar::new(),
    }));
    let options = OpenOptions {
        store: StoreOptions { background: false, cache_bytes: 1 << 20, ..StoreOptions::default() },
        dirty_bytes_max: 8 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    (device, fs)
}

impl Between for HeldReads {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        if requests.iter().any(|request| request.operation() == Operation::Read) {
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

// Goal: a list of subvolumes that reads large directories keeps nobody from having their subvolume alone, and so keeps nobody from looking
// there. Method: a directory that is not in memory is held up at the device while the ways to ten directories in it are looked for.
#[test]
fn who_lists_subvolumes_keeps_nobody_waiting() {
    let f = Fixture::new(256 * MIB);
    let dirs: Vec<_> = (0..10).map(|i| f.mkdir(ROOT, format!("dir{i}").as_bytes())).collect();
    for i in 0..20_000 {
        f.create(format!("{i}{}", "x".repeat(200)).as_bytes());
    }
    f.fs.close().unwrap();
    let (device, fs) = held_reads(&f);
    // What they are in is known, and not what it calls them.
    dirs.iter().for_each(|dir| assert_eq!(fs.getattr(*dir).unwrap().kind, FileKind::Directory));
    device.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let listing = scope.spawn(|| {
            let mut ways = varve_fs::internals::ops::listing::Ways::default();
            ways.find(fs.core(), dirs.iter().copied())
        });
        device.wait_for_a_read(&|| listing.is_finished());
        let alone = fs.core().subvolumes.first.gate.try_write_for(Duration::from_millis(50)).is_some();
        device.held.store(false, Ordering::SeqCst);
        listing.join().unwrap().unwrap();
        assert!(alone, "the list is in its way");
    });
}

// Goal: looking at a large range that is to be zeroed keeps nobody from having the subvolume alone. Method: the map of a file that is not
// in memory is held up at the device.
#[test]
fn who_looks_at_what_he_zeroes_keeps_nobody_waiting() {
    const BLOCKS: u64 = 6_000;
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    // Backwards: no two lie side by side.
    for block in (0..BLOCKS).rev().step_by(2).chain((0..BLOCKS).rev().skip(1).step_by(2)) {
        f.write(ino, block * BLOCK, &[1; 4096]);
    }
    f.fs.close().unwrap();
    let (device, fs) = held_reads(&f);
    assert_eq!(fs.getattr(ino).unwrap().size, BLOCKS * BLOCK);
    device.held.store(true, Ordering::SeqCst);
    let zero = Allocate::Zero { keep_size: true };
    std::thread::scope(|scope| {
        let zeroing = scope.spawn(|| fs.fallocate(Caller::ROOT, ino, 0, BLOCKS * BLOCK, zero));
        device.wait_for_a_read(&|| zeroing.is_finished());
        let alone = fs.core().subvolumes.first.gate.try_write_for(Duration::from_millis(50)).is_some();
        device.held.store(false, Ordering::SeqCst);
        zeroing.join().unwrap().unwrap();
        assert!(alone, "it is in their way");
    });
}

// Goal: looking for what is to be set aside in a large range keeps nobody from the file. Method: as above, with the file's lock.
#[test]
fn who_looks_where_to_reserve_keeps_nobody_waiting() {
    const BLOCKS: u64 = 6_000;
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    for block in (0..BLOCKS).rev().step_by(2).chain((0..BLOCKS).rev().skip(1).step_by(2)) {
        f.write(ino, block * BLOCK, &[1; 4096]);
    }
    f.fs.close().unwrap();
    let (device, fs) = held_reads(&f);
    assert_eq!(fs.getattr(ino).unwrap().size, BLOCKS * BLOCK);
    let state = fs.core().state(ino);
    device.held.store(true, Ordering::SeqCst);
    let reserve = Allocate::Reserve { keep_size: true };
    std::thread::scope(|scope| {
        let reserving = scope.spawn(|| fs.fallocate(Caller::ROOT, ino, 0, BLOCKS * BLOCK, reserve));
        device.wait_for_a_read(&|| reserving.is_finished());
        let alone = state.inner.try_write_for(Duration::from_millis(50)).is_some();
        device.held.store(false, Ordering::SeqCst);
        reserving.join().unwrap().unwrap();
        assert!(alone, "it is in their way");
    });
}

// Goal: where a file's data ends is found, however many extents it has, in memory and logged. Method: a file of very many, whole, with a
// hole near its end, and with data in memory over that, behind it and behind a hole of its own.
#[test]
fn the_next_hole_is_found_behind_many_extents() {
    const BLOCKS: u64 = 6_000;
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    // Backwards: no two lie side by side.
    for block in (0..BLOCKS).rev().step_by(2).chain((0..BLOCKS).rev().skip(1).step_by(2)) {
        f.write(ino, block * BLOCK, &[1; 4096]);
    }
    f.fs.sync().unwrap();
    let hole = |from: u64| f.fs.seek(ino, from, SeekTo::Hole).unwrap();
    assert_eq!(hole(0), Some(BLOCKS * BLOCK));
    assert_eq!(hole(17), Some(BLOCKS * BLOCK));
    f.fs.fallocate(Caller::ROOT, ino, 5_000 * BLOCK, BLOCK, Allocate::Punch).unwrap();
    assert_eq!(hole(0), Some(5_000 * BLOCK));
    assert_eq!(hole(5_000 * BLOCK + 1), Some(5_000 * BLOCK + 1));
    f.write(ino, 5_000 * BLOCK + 7, &[1]);
    assert_eq!(hole(0), Some(BLOCKS * BLOCK), "what waits in memory is data");
    f.write(ino, BLOCKS * BLOCK, &[1; 10_000]);
    assert_eq!(hole(3), Some(BLOCKS * BLOCK + 10_000));
    f.write(ino, (BLOCKS + 9) * BLOCK, &[1]);
    assert_eq!(hole(3), Some((BLOCKS + 3) * BLOCK), "behind what waits in memory");
    f.fs.sync().unwrap();
    assert_eq!(hole(3), Some((BLOCKS + 3) * BLOCK));
    assert_eq!(hole((BLOCKS + 9) * BLOCK), Some((BLOCKS + 9) * BLOCK + 1));
}

// Goal: on a full pool whose protected part is half used, and stays so, not every change pays for a checkpoint: only those that get
// something back by it. Method: all space is taken, and names go that a snapshot still shows, so that each adds something.
#[test]
fn a_full_pool_writes_no_checkpoint_for_nothing() {
    const FILES: usize = 12_000;
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let name = |i: usize| format!("{i:05}{}", "x".repeat(150)).into_bytes();
    for i in 0..FILES {
        f.fs.create(Caller::ROOT, dir, &name(i), 0o644).unwrap();
    }
    f.fs.snapshot(ROOT, ROOT, b"snapshot", true, true).unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let _taken = f.take_all();
    let core = f.fs.core();
    let checkpoints = || core.store.stats().checkpoints_count;
    let (before, mut squeezed) = (checkpoints(), 0);
    for i in 0..FILES {
        if f.fs.unlink(dir, &name(i)).is_err() {
            break;
        }
        let space = core.store.space();
        squeezed += usize::from(space.free_bytes == 0);
    }
    assert!(squeezed > 1_000, "{squeezed}");
    // 323; 3,228 when the state of the protected part was all that counted.
    assert!(checkpoints() - before < 600, "{} for {squeezed} changes", checkpoints() - before);
}

// Goal: a step of the reaper looks at so many places and no more, also where those that it compares have nothing in common. Method: a
// version of a file that has every other MiB, and whose witnesses both have the others; it is looked at again when a clone of it goes.
#[test]
fn a_step_looks_at_so_many_places() {
    const MIBS: u64 = 30_000;
    let f = Fixture::new(512 * MIB);
    let file = f.create(b"file");
    f.write(file, 0, &[1; 4096]);
    f.fs.sync().unwrap();
    let clone = |name: &[u8]| f.fs.clone_file(Caller::ROOT, file, ROOT, name).unwrap().ino;
    clone(b"kept");
    (1..MIBS).step_by(2).for_each(|mib| f.write(file, mib * MIB, &[2; 4096]));
    f.fs.sync().unwrap();
    let other = clone(b"other");
    clone(b"gone");
    for ino in [other, file] {
        (2..MIBS).step_by(2).for_each(|mib| f.write(ino, mib * MIB, &[3; 4096]));
    }
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    f.fs.unlink(ROOT, b"gone").unwrap();
    f.fs.sync().unwrap();
    let core = f.fs.core();
    let mut turns = 0;
    while !core.reap_at_once(1).unwrap() {
        turns += 1;
        assert!(turns < 1_000, "it never ends");
    }
    assert!(turns > 5, "{turns} steps for {MIBS} places");
    f.check();
}

/// Steps that the reaper takes until nothing is left to do.
fn steps_of_the_reaper(f: &Fixture) -> u32 {
    let mut steps = 1;
    while !f.fs.core().reap_at_once(1).unwrap() {
        steps += 1;
        assert!(steps < 10_000, "it never ends");
    }
    steps
}

// Goal: deleting one of many copies that were taken of something on its way, each of which has been written to, costs what it had, not what
// all older ones have. Method: a hundred snapshots of a directory, or clones of a file, each with many changes of its own, and one of the
// source between two; the last goes, then one in the middle; the reaper's steps are counted.
#[test]
fn one_of_many_copies_goes_at_the_cost_of_one() {
    const COPIES: usize = 100;
    let f = Fixture::new(256 * MIB);
    let base = f.fs.create_subvolume(Caller::ROOT, ROOT, b"base", 0o755).unwrap().ino;
    let name = |i: usize| format!("{i}").into_bytes();
    for i in 0..COPIES {
        let copy = f.fs.snapshot(base, ROOT, &name(i), false, false).unwrap();
        for n in 0..150 {
            f.fs.create(Caller::ROOT, copy, format!("own{n}").as_bytes(), 0o644).unwrap();
        }
        f.fs.create(Caller::ROOT, base, &name(i), 0o644).unwrap();
    }
    f.fs.maintain().unwrap();
    for i in [COPIES - 1, COPIES / 2] {
        f.fs.delete_subvolume(ROOT, &name(i)).unwrap();
        let steps = steps_of_the_reaper(&f);
        // 16 and 17; 304 and 160 when each older copy was looked at in turn.
        assert!(steps < 30, "{steps} steps");
    }
    f.check();

    let f = Fixture::new(256 * MIB);
    let file = f.create(b"file");
    f.write(file, 0, &[1; 4096]);
    for i in 0..COPIES {
        f.fs.sync().unwrap();
        let copy = f.fs.clone_file(Caller::ROOT, file, ROOT, &name(i)).unwrap().ino;
        (0..200).for_each(|n| f.write(copy, n * MIB, &[2; 4096]));
        f.write(file, MIB * i as u64, &[3; 4096]);
    }
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    for i in [COPIES - 1, COPIES / 2] {
        f.fs.unlink(ROOT, &name(i)).unwrap();
        f.fs.sync().unwrap();
        let steps = steps_of_the_reaper(&f);
        assert!(steps < 30, "{steps} steps");
    }
    f.check();
}

// Goal: each step of a recheck gets further, also where what it looks for lies far apart and has no index. Method: a small file with two clones,
// one of which has grown by very much; the file goes, so that its version is looked at where the grown clone has something.
#[test]
fn a_recheck_gets_past_a_clone_that_has_grown() {
    const MIBS: u64 = 12_000;
    let f = Fixture::new(256 * MIB);
    let file = f.create(b"file");
    f.write(file, 0, &[1; 4096]);
    f.fs.sync().unwrap();
    let [a, b] = [b"a", b"b"].map(|name| f.fs.clone_file(Caller::ROOT, file, ROOT, name).unwrap().ino);
    (1..MIBS).for_each(|mib| f.write(a, mib * MIB, &[2; 4096]));
    f.fs.sync().unwrap();
    f.write(b, MIB, &[3; 4096]);
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    f.fs.unlink(ROOT, b"file").unwrap();
    f.fs.sync().unwrap();
    let steps = steps_of_the_reaper(&f);
    assert!(steps < 100, "{steps} steps");
    f.check();
}
