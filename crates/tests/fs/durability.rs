//! What an acknowledgement says when another thread is at work on the same data, and when its work fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_device::Operation;
use varve_engine::{FamilyId, TreeId};
use varve_sim::{Fault, FaultRule, FaultyDevice, Trigger};

use super::*;
use varve_fs::internals::subvolume::local;
use varve_fs::internals::table::orphans;
use varve_fs::internals::writeback::{Group, Ride};

/// Longer than anything here takes; whoever has not ended by then hangs.
const LONG: Duration = Duration::from_secs(120);
/// Long enough for a thread to get to where it waits. Too short is no false alarm.
const SHORT: Duration = Duration::from_millis(100);
/// Groups of writes of this many bytes and more wait at the gate: data, never the log or nodes of these small pools.
const HELD_BYTES: usize = 2 * MIB as usize;

#[derive(Default)]
struct State {
    arrived: usize,
    /// What becomes of each large write, in the order of their arrival: whether it fails.
    verdicts: Vec<bool>,
}

/// A device that holds up large writes until it is told what becomes of them.
struct Gate {
    inner: FaultyDevice<MemoryDevice>,
    on: AtomicBool,
    /// Large writes panic instead of waiting.
    panics: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn wait_for_arrivals(&self, count: usize) {
        let mut state = self.state.lock();
        while state.arrived < count {
            assert!(!self.changed.wait_for(&mut state, LONG).timed_out(), "no write has come");
        }
    }
    fn decide(&self, fails: bool) {
        self.state.lock().verdicts.push(fails);
        self.changed.notify_all();
    }
}

impl Between for Gate {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let written = |r: &Request<'_>| if let Request::Write { buf, .. } = r { buf.len() } else { 0 };
        let large = requests.iter().map(written).sum::<usize>() >= HELD_BYTES;
        if large && self.on.load(Ordering::SeqCst) {
            assert!(!self.panics.load(Ordering::SeqCst), "planted in the device");
            let mut state = self.state.lock();
            let mine = state.arrived;
            state.arrived += 1;
            self.changed.notify_all();
            while state.verdicts.len() <= mine {
                assert!(!self.changed.wait_for(&mut state, LONG).timed_out(), "nobody decides");
            }
            if state.verdicts[mine] {
                drop(state);
                let rule = FaultRule::new(Operation::Write, Trigger::From(1), Fault::Error);
                self.inner.set_rules(vec![rule]);
                let results = self.inner.run(requests);
                self.inner.set_rules(Vec::new());
                return results;
            }
        }
        self.inner.run(requests)
    }
}

/// A filesystem of three files on a gate that is shut; everything in it is durable.
fn gated() -> (Arc<Through<Gate>>, Arc<Filesystem>, [InodeId; 3]) {
    let f = Fixture::new(64 * MIB);
    let files = [f.create(b"a"), f.create(b"b"), f.create(b"c")];
    f.fs.close().unwrap();
    let gate = Arc::new(Through(Gate {
        inner: FaultyDevice::new(f.device.snapshot(), 1, Vec::new()),
        on: AtomicBool::new(false),
        panics: AtomicBool::new(false),
        state: Mutex::default(),
        changed: Condvar::new(),
    }));
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 32 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Arc::new(Filesystem::open(vec![gate.clone()], options).unwrap().0);
    fs.sync().unwrap();
    gate.on.store(true, Ordering::SeqCst);
    (gate, fs, files)
}

/// Runs `f` on a thread of its own; what it gives comes through the channel.
fn on_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(f());
    });
    receiver
}

// Goal: a sync answers for data that another thread was writing back when that fails. Method: an fsync of another thread
// is held up at the device while a sync waits for it, and then fails; before that everything was durable, so that the
// log itself has nothing to complain of.
#[test]
fn a_sync_does_not_pass_over_the_failure_of_another() {
    let (gate, fs, [a, ..]) = gated();
    fs.write(Caller::ROOT, a, 0, &pattern(1, HELD_BYTES)).unwrap();
    let other = on_thread({
        let fs = fs.clone();
        move || fs.fsync(a)
    });
    gate.wait_for_arrivals(1);
    let synced = on_thread({
        let fs = fs.clone();
        move || fs.sync()
    });
    assert!(synced.recv_timeout(SHORT).is_err(), "a sync returned while data was on its way");
    gate.decide(true);
    other.recv_timeout(LONG).expect("it ends").expect_err("its write failed");
    synced.recv_timeout(LONG).expect("it ends").expect_err("the data is nowhere");
}

// Goal: a sync waits for those who were before it and for nobody else. Method: two write-backs are held up, the second
// begun after the sync; the first goes on, and the sync must end while the second is still held.
#[test]
fn a_sync_does_not_wait_for_those_who_come_later() {
    let (gate, fs, [a, b, _]) = gated();
    fs.write(Caller::ROOT, a, 0, &pattern(1, HELD_BYTES)).unwrap();
    let fsync = |ino| {
        let fs = fs.clone();
        on_thread(move || fs.fsync(ino))
    };
    let first = fsync(a);
    gate.wait_for_arrivals(1);
    let synced = on_thread({
        let fs = fs.clone();
        move || fs.sync()
    });
    assert!(synced.recv_timeout(SHORT).is_err(), "a sync returned while data was on its way");
    fs.write(Caller::ROOT, b, 0, &pattern(2, HELD_BYTES)).unwrap();
    let second = fsync(b);
    gate.wait_for_arrivals(2);
    gate.decide(false);
    first.recv_timeout(LONG).expect("it ends").unwrap();
    synced.recv_timeout(LONG).expect("a sync waits for a write-back that began after it").unwrap();
    assert!(second.try_recv().is_err());
    gate.decide(false);
    second.recv_timeout(LONG).expect("it ends").unwrap();
}

// Goal: a rename over a file waits for the source's data when another thread has taken it, and fails with it. Method: an
// fsync of the source is held up; once it goes on, once it fails.
#[test]
fn a_rename_over_a_file_waits_for_data_that_another_writes() {
    for fails in [false, true] {
        let (gate, fs, [a, ..]) = gated();
        fs.write(Caller::ROOT, a, 0, &pattern(1, HELD_BYTES)).unwrap();
        let other = on_thread({
            let fs = fs.clone();
            move || fs.fsync(a)
        });
        gate.wait_for_arrivals(1);
        let renamed = on_thread({
            let fs = fs.clone();
            move || fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::Replace)
        });
        assert!(renamed.recv_timeout(SHORT).is_err(), "renamed before the data was logged");
        gate.decide(fails);
        assert_eq!(other.recv_timeout(LONG).expect("it ends").is_err(), fails);
        assert_eq!(renamed.recv_timeout(LONG).expect("it ends").is_err(), fails);
        assert_eq!(fs.lookup(ROOT, b"a").is_ok(), fails);
    }
}

// Goal: a file that was cut and written anew is not empty after a crash, once whoever did that has closed it, though only others have synced:
// it is as it was or as it is. Method: contents of a record, of some blocks and of more than may ride with the log; cut when it is opened, by
// its number before, and to less than all of it; readers that close it before anything is written and in the middle; a sync of another file
// after the end of the handle, and a kill.
#[test]
fn what_is_cut_and_written_anew_is_logged_when_it_is_closed() {
    for (len, way) in [100, 50_000, 3 << 20].into_iter().flat_map(|len| (0..3).map(move |way| (len, way))) {
        let mut f = Fixture::new(64 * MIB);
        let (file, other) = (f.create(b"f"), f.create(b"other"));
        let (old, new) = (pattern(1, len + 300), pattern(2, len));
        f.write(file, 0, &old);
        f.fs.sync().unwrap();
        match way {
            0 => f.fs.open_inode(Caller::ROOT, file, true).unwrap(),
            _ => {
                f.truncate(file, [0, 50][way - 1]);
                f.fs.open_inode(Caller::ROOT, file, false).unwrap();
                f.fs.open_inode(Caller::ROOT, file, false).unwrap();
                f.fs.release_inode(file).unwrap();
            }
        }
        f.write(file, 0, &new[..len / 2]);
        f.fs.open_inode(Caller::ROOT, file, false).unwrap();
        f.fs.release_inode(file).unwrap();
        f.write(file, len as u64 / 2, &new[len / 2..]);
        f.fs.release_inode(file).unwrap();
        f.write(other, 0, b"x");
        f.fs.fsync(other).unwrap();
        f.kill();
        let seen = f.read_all(f.fs.lookup(ROOT, b"f").unwrap().ino);
        assert!(seen == new, "{len}, {way}: {} bytes", seen.len());
        f.check();
    }
}

// Goal: so it is when somebody else is writing the data back just then: whoever closes the file waits for that. Method: its pages taken by
// a group that is not written before the close has begun; a sync of another file behind it, and a kill.
#[test]
fn who_closes_what_is_being_written_back_waits_for_it() {
    let mut f = Fixture::new(64 * MIB);
    let (file, other) = (f.create(b"f"), f.create(b"other"));
    f.write(file, 0, &pattern(1, 60_000));
    f.fs.sync().unwrap();
    f.fs.open_inode(Caller::ROOT, file, true).unwrap();
    let new = pattern(2, 50_000);
    f.write(file, 0, &new);
    let core = f.fs.core();
    let mut group = Group::default();
    assert!(core.take(core.state(file).turn(), u64::MAX, &mut group).unwrap().is_none());
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            f.fs.release_inode(file).unwrap();
            closed.store(true, Ordering::SeqCst);
        });
        Condvar::new().wait_for(&mut Mutex::new(()).lock(), SHORT);
        assert!(!closed.load(Ordering::SeqCst), "it was closed while its data waited");
        let result = core.write_group(&mut group, Ride::Allowed);
        drop(core.finish(group, result).unwrap());
    });
    f.write(other, 0, b"x");
    f.fs.fsync(other).unwrap();
    f.kill();
    assert!(f.read_all(f.fs.lookup(ROOT, b"f").unwrap().ino) == new);
    f.check();
}

// Goal: an exchange, too, shows whole files under both names after a crash, synced or not. Method: a new file and an old one that has
// been written to change places, in one directory and between two, also in a snapshot that is pending; another file is synced, and a kill.
#[test]
fn an_exchange_shows_whole_files() {
    for (across, frozen) in [(false, false), (true, false), (true, true)] {
        let mut f = Fixture::new(64 * MIB);
        let dir = if across { f.mkdir(ROOT, b"dir") } else { ROOT };
        let (current, synced) = (f.create(b"current"), f.create(b"synced"));
        f.write(current, 0, &pattern(1, 50_000));
        f.fs.sync().unwrap();
        f.write(current, 20_000, &pattern(2, 50_000));
        let new = f.fs.create(Caller::ROOT, dir, b"new", 0o644).unwrap().ino;
        f.write(new, 0, &pattern(3, 70_000));
        if frozen {
            f.fs.snapshot(ROOT, dir, b"snapshot", true, false).unwrap();
        }
        f.fs.rename(dir, b"new", ROOT, b"current", RenameMode::Exchange).unwrap();
        f.write(synced, 0, b"synced");
        f.fs.fsync(synced).unwrap();
        f.kill();
        assert!(f.read_all(f.fs.lookup(ROOT, b"current").unwrap().ino) == pattern(3, 70_000), "{across}");
        let dir = if across { f.fs.lookup(ROOT, b"dir").unwrap().ino } else { ROOT };
        let old = f.read_all(f.fs.lookup(dir, b"new").unwrap().ino);
        assert!(old == [&pattern(1, 50_000)[..20_000], &pattern(2, 50_000)].concat(), "{across}");
        f.check();
    }
}

/// Makes write-back of `ino`, which has data outside its record, fail for good; gives what was there.
pub(super) fn spoil(f: &Fixture, ino: InodeId) -> reaping::Entries {
    reaping::spoil(&f.fs, TreeId::EXTENTS, FamilyId(local(ino).0))
}

/// A pool in which a dirty file cannot be written back, and a snapshot waits for it. With what its extents were.
fn with_a_bad_file() -> (Fixture, InodeId, reaping::Entries) {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let bad = f.fs.create(Caller::ROOT, sub, b"bad", 0o644).unwrap().ino;
    f.write(bad, 0, &pattern(9, 50_000));
    f.fs.sync().unwrap();
    let extents = spoil(&f, bad);
    f.write(bad, 0, &pattern(8, 20_480));
    f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
    (f, bad, extents)
}

/// Deleted files that wait to be reaped: what has reservations is not deleted at once.
fn delete_later(f: &Fixture, files: u64, bytes: u64) {
    let names = || (0..files).map(|number| format!("deleted{number}").into_bytes());
    for name in names() {
        let ino = f.create(&name);
        f.fs.fallocate(Caller::ROOT, ino, 0, bytes, Allocate::Reserve { keep_size: true }).unwrap();
    }
    names().for_each(|name| f.fs.unlink(ROOT, &name).unwrap());
    assert_eq!(f.fs.reap_backlog(), files);
}

// Goal: a file that cannot be written back keeps the background from nothing else, and from no more of it. Method: such a file,
// also frozen, beside an old dirty one, deleted ones and reservations without space; one turn of the background, which says
// that there is more to reap, and then all.
#[test]
fn the_background_goes_on_past_a_bad_file() {
    let (f, bad, extents) = with_a_bad_file();
    let reserved = f.create(b"reserved");
    f.fs.fallocate(Caller::ROOT, reserved, 0, MIB, Allocate::Reserve { keep_size: true }).unwrap();
    let good = f.create(b"good");
    f.write(good, 0, &pattern(7, 20_480));
    delete_later(&f, 300, 4096);
    let core = f.fs.core();
    core.forget_reserved();
    f.clock.0.advance(10_000_000_000);
    let (all_reaped, result) = core.maintain_some();
    refused(result, 5);
    assert!(!all_reaped && (1..300).contains(&f.fs.reap_backlog()), "{}", f.fs.reap_backlog());
    refused(f.fs.maintain(), 5);
    assert_eq!((f.fs.reap_backlog(), core.reserved_is_short()), (0, false));
    assert_eq!(core.dirty.bytes(), 20_480, "what was old and could be written");
    reaping::mend(&f.fs, TreeId::EXTENTS, &extents);
    f.fs.maintain().unwrap();
    assert!(f.read_all(bad)[..20_480] == pattern(8, 20_480));
    assert_eq!(core.dirty.bytes(), 0);
    f.check();
}

// Goal: who needs space has that of what was deleted, though a dirty file cannot be written back. Method: all space is taken,
// but for what a deleted file had reserved.
#[test]
fn space_is_found_past_a_bad_file() {
    let (f, ..) = with_a_bad_file();
    delete_later(&f, 1, MIB);
    let store = &f.fs.core().store;
    let mut taken = f.take_all();
    assert_eq!(f.fs.reap_backlog(), 1);
    let ino = f.create(b"new");
    f.write(ino, 0, &pattern(1, 100_000));
    assert_eq!(f.fs.reap_backlog(), 0);
    // When there is nothing left it is space that is missing.
    while let Ok(reservation) = store.reserve(1, 0, 0) {
        taken.push(reservation);
    }
    let create = |n: u64| f.fs.create(Caller::ROOT, ROOT, format!("{n:0200}").as_bytes(), 0o644).map(drop);
    let write = |n: u64| f.fs.write(Caller::ROOT, ino, MIB + n * 4096, &[1; 4096]).map(drop);
    let verbs: [&dyn Fn(u64) -> varve_fs::internals::Result<()>; 2] = [&create, &write];
    for verb in verbs {
        let refusal = (0..1000).find_map(|n| verb(n).err());
        assert_eq!(refusal.map(|error| error.errno()), Some(28));
    }
    drop(taken);
    f.fs.fsync(ino).unwrap();
}

// Goal: a sync makes durable what it can, though it tells of a file that cannot be written back. Method: such a file, also frozen,
// beside another that is dirty, one that a snapshot waits for, and one whose access was noted; a kill after the sync.
#[test]
fn a_sync_goes_on_past_a_bad_file() {
    let (mut f, ..) = with_a_bad_file();
    let good = f.create(b"good");
    f.write(good, 0, &pattern(7, 20_480));
    let other = f.fs.create_subvolume(Caller::ROOT, ROOT, b"other", 0o755).unwrap().ino;
    let frozen = f.fs.create(Caller::ROOT, other, b"frozen", 0o644).unwrap().ino;
    f.write(frozen, 0, &pattern(6, 20_480));
    f.fs.snapshot(other, ROOT, b"complete", true, false).unwrap();
    let read = f.create(b"read");
    f.fs.note_access(read, AccessRule::Always).unwrap();
    let accessed = f.fs.getattr(read).unwrap().atime;
    refused(f.fs.sync(), 5);
    f.kill();
    assert!(f.read_all(good) == pattern(7, 20_480) && f.read_all(frozen) == pattern(6, 20_480));
    assert_eq!(f.list(f.fs.lookup(ROOT, b"complete").unwrap().ino), [b"frozen"]);
    assert_eq!(f.fs.getattr(read).unwrap().atime, accessed);
    // What was not complete is gone.
    refused(f.fs.lookup(ROOT, b"snapshot"), 2);
}

// Goal: what can be written ahead is, beside a file that cannot, frozen or not. Method: such a file that is larger than what
// this begins at, beside one that can be written; the thread's work is done here, twice.
#[test]
fn writing_ahead_goes_on_past_a_bad_file() {
    for frozen in [true, false] {
        let f = Fixture::new(128 * MIB);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let bad = f.fs.create(Caller::ROOT, sub, b"bad", 0o644).unwrap().ino;
        f.write(bad, 0, &pattern(9, 53_248));
        f.fs.sync().unwrap();
        spoil(&f, bad);
        f.write(bad, 53_248, &pattern(8, 3 * MIB as usize));
        if frozen {
            f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
        }
        let core = f.fs.core();
        for n in 0..2 {
            let good = f.create(format!("good{n}").as_bytes());
            f.write(good, 0, &pattern(n, MIB as usize));
            let result = core.write_ahead();
            // Who has been told of the file is told again by who needs it.
            assert_eq!(result.is_err(), frozen || n == 0);
            assert_eq!(core.dirty.bytes(), 3 * MIB);
        }
    }
}

// Goal: a file that cannot be written back keeps nobody else's data from the pool, neither in a sync nor in closing, and
// both report it. Method: the extents of the oldest of three dirty files are garbage.
#[test]
fn one_bad_file_does_not_hold_up_the_others() {
    for close in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        let files: Vec<InodeId> = [b"a", b"b", b"c"].iter().map(|name| f.create(*name)).collect();
        f.write(files[0], 0, &pattern(9, 50_000));
        f.fs.sync().unwrap();
        spoil(&f, files[0]);
        for (seed, ino) in files.iter().enumerate() {
            f.write(*ino, 0, &pattern(seed as u64, 20_480));
        }
        let result = if close { f.fs.close() } else { f.fs.sync() };
        assert_eq!(result.unwrap_err().errno(), 5);
        if !close {
            assert_eq!(f.fs.fsync(files[0]).unwrap_err().errno(), 5);
            f.fs.fsync(files[1]).unwrap();
        }
        f.kill();
        for seed in [1, 2] {
            assert!(f.read_all(files[seed]) == pattern(seed as u64, 20_480), "file {seed} was lost");
        }
    }
}

// Goal: a deleted file that cannot be reaped keeps neither the others from being reaped nor the pool from being opened
// and closed. Method: of three files deleted while open the first has garbage for extents; after a kill and in a clean
// life only that one is left.
#[test]
fn one_bad_orphan_does_not_hold_up_the_others() {
    let mut f = Fixture::new(64 * MIB);
    let files: Vec<InodeId> = [b"a", b"b", b"c"].iter().map(|name| f.create(*name)).collect();
    for (seed, ino) in files.iter().enumerate() {
        f.write(*ino, 0, &pattern(seed as u64, 50_000));
        f.fs.open_inode(Caller::ROOT, *ino, false).unwrap();
    }
    for name in [b"a", b"b", b"c"] {
        f.fs.unlink(ROOT, name).unwrap();
    }
    f.fs.sync().unwrap();
    spoil(&f, files[0]);
    f.fs.sync().unwrap();
    let left = |f: &Fixture| -> Vec<InodeId> {
        let there = |ino: &&InodeId| orphans::get(&f.fs.core().store, **ino).unwrap().is_some();
        files.iter().filter(there).copied().collect()
    };
    assert_eq!(left(&f), files);
    f.kill();
    assert_eq!(left(&f), files[..1]);
    f.fs.maintain().unwrap();
    f.reopen();
    assert_eq!(left(&f), files[..1]);
}

// Goal: growing, punching and reserving end on a full pool, where bringing dirty data home would have to wait for the
// turn of the very file that is being changed. Method: all space but very little is taken, in small steps; each verb
// works on a file that has dirty pages and needs a page more; a verb that does not end hangs here.
#[test]
fn verbs_that_hold_a_turn_end_on_a_full_pool() {
    for verb in 0..3 {
        for left in 0..4 {
            let f = Fixture::new(64 * MIB);
            let ino = f.create(b"f");
            f.write(ino, 0, &pattern(1, 100_000));
            f.fs.sync().unwrap();
            f.truncate(ino, 90_001);
            f.fs.checkpoint().unwrap();
            let mut taken = f.take_all();
            // Room for one dirty page of a clean file, and a little more.
            for _ in 0..5 + left {
                taken.pop();
            }
            let wrote = f.fs.write(Caller::ROOT, ino, 8192, &pattern(2, 4096));
            let fs = Arc::new(f.fs);
            let ended = on_thread({
                let fs = fs.clone();
                move || match verb {
                    0 => {
                        let set = SetAttr { size: Some(500_000), ..SetAttr::default() };
                        fs.setattr(Caller::ROOT, ino, set).map(drop)
                    }
                    1 => fs.fallocate(Caller::ROOT, ino, 100, 60_000, Allocate::Punch),
                    _ => {
                        fs.fallocate(Caller::ROOT, ino, 100, 600_000, Allocate::Reserve { keep_size: false })
                    }
                }
            });
            let result = ended.recv_timeout(LONG);
            assert!(result.is_ok(), "verb {verb} hangs; {left} blocks more, wrote {wrote:?}");
        }
    }
}

// Goal: what a thread that panicked was writing back is not taken for written. Method: a device that panics in the write of
// the data, once; everything else was durable, so that the log itself has nothing to complain of.
#[test]
fn nobody_believes_what_a_panic_left() {
    for sync in [false, true] {
        let (gate, fs, [a, b, _]) = gated();
        let data = pattern(1, HELD_BYTES);
        fs.write(Caller::ROOT, a, 0, &data).unwrap();
        gate.panics.store(true, Ordering::SeqCst);
        let panicked = std::thread::spawn({
            let fs = fs.clone();
            move || if sync { fs.sync() } else { fs.fsync(a) }
        });
        assert!(panicked.join().is_err());
        gate.on.store(false, Ordering::SeqCst);
        refused(fs.fsync(a), 5);
        refused(fs.fsync(b), 5);
        refused(fs.sync(), 5);
        assert!(fs.read(a, 0, data.len()).unwrap() == data);
        let (done, answer) = mpsc::channel();
        fs.fsync_then(a, Box::new(move |result| done.send(result).unwrap()));
        refused(answer.recv_timeout(LONG).unwrap(), 5);
        assert!(fs.close().is_err());
    }
}

// Goal: of batches that are being written at once none is logged after one has failed, and no space is lost. Method: a file
// of six batches whose nth write fails, in a filesystem with its threads, for each n; it is read from memory, and after opening
// again there is a beginning of it, without the part that failed; written again it is whole; removed, it leaves nothing.
#[test]
fn a_batch_that_fails_beside_others() {
    const BYTES: usize = 24 << 20;
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    f.fs.close().unwrap();
    let data = pattern(9, BYTES);
    for nth in [1, 2, 4, 5, 8, 9, 13, 17, 23, 24] {
        let device = Arc::new(FaultyDevice::new(f.device.snapshot(), 1, Vec::new()));
        let options = OpenOptions {
            store: StoreOptions::default(),
            // So much that none of it is written ahead: the nth write is the nth of the sync.
            dirty_bytes_max: 1024 * MIB,
            clock: f.clock.clone(),
            on_data_logged: None,
        };
        let write = |fs: &Filesystem| {
            for at in (0..BYTES).step_by(1 << 20) {
                fs.write(Caller::ROOT, ino, at as u64, &data[at..at + (1 << 20)]).unwrap();
            }
        };
        let fs = Filesystem::open(vec![device.clone()], options.clone()).unwrap().0;
        fs.sync().unwrap();
        write(&fs);
        device.set_rules(vec![FaultRule::new(Operation::Write, Trigger::Nth(nth), Fault::Error)]);
        refused(fs.fsync(ino), 5);
        device.set_rules(Vec::new());
        assert!(fs.read(ino, 0, BYTES).unwrap() == data, "write {nth}");
        assert!(fs.close().is_err(), "write {nth}");
        drop(fs);

        let fs = Filesystem::open(vec![device.clone()], options.clone()).unwrap().0;
        let kept = fs.read(ino, 0, BYTES).unwrap();
        assert!(kept.len() < BYTES && kept == data[..kept.len()], "write {nth}: {} bytes", kept.len());
        assert!(fs.check(true).unwrap().problems.is_empty(), "write {nth}");
        write(&fs);
        fs.fsync(ino).unwrap();
        fs.close().unwrap();
        let fs = Filesystem::open(vec![device], options).unwrap().0;
        assert!(fs.read(ino, 0, BYTES).unwrap() == data, "write {nth}, again");
        let free = fs.statfs().unwrap().free_bytes;
        fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        fs.sync().unwrap();
        fs.maintain().unwrap();
        let freed = fs.statfs().unwrap().free_bytes - free;
        // But for a few nodes of trees.
        assert!(freed + (64 << 10) >= BYTES as u64, "write {nth}: {freed} bytes are free again");
        assert!(fs.check(true).unwrap().problems.is_empty(), "write {nth}, at the end");
        fs.close().unwrap();
    }
}

// Goal: after a stop (a bug was met) nothing is written any more, by anybody, who asks for more is told why, and what had been
// synced is there the next time. Method: stop with dirty data; writes, syncs and background work; count what the device is told.
#[test]
fn nothing_is_written_after_a_stop() {
    let mut f = Fixture::new(64 * MIB);
    let ino = f.create(b"file");
    f.write(ino, 0, b"synced");
    f.fs.sync().unwrap();
    f.write(ino, 0, b"later!");
    f.fs.stop("a test has panicked");
    let written = f.device.stats().writes_count;
    for error in [
        f.fs.sync().unwrap_err(),
        f.fs.fsync(ino).unwrap_err(),
        f.fs.maintain().unwrap_err(),
        f.fs.unlink(ROOT, b"file").unwrap_err(),
        f.fs.write(Caller::ROOT, ino, 0, b"over it").unwrap_err(),
        f.fs.fallocate(Caller::ROOT, ino, 0, 4, Allocate::Punch).unwrap_err(),
        f.fs.write(Caller::ROOT, ino, 0, &[1; 4096]).unwrap_err(),
    ] {
        assert!(error.to_string().contains("a test has panicked"), "{error}");
    }
    assert_eq!(f.fs.read(ino, 0, 6).unwrap(), b"later!");
    assert_eq!(f.device.stats().writes_count, written);
    f.kill();
    let ino = f.fs.lookup(ROOT, b"file").unwrap().ino;
    assert_eq!(f.fs.read(ino, 0, 6).unwrap(), b"synced");
}

// Goal: who deletes a subvolume deletes that one or none, whatever takes its name while what came after it is logged. Method: the
// deletion is held up at the device, where it completes a younger snapshot; meanwhile the one that is meant gets another name, and an
// older one gets its.
#[test]
fn what_takes_the_name_meanwhile_is_not_deleted() {
    let (gate, fs, [a, ..]) = gated();
    let [other, meant] = [b"s0", b"s1"].map(|name| fs.snapshot(ROOT, ROOT, name, false, true).unwrap());
    fs.write(Caller::ROOT, a, 0, &pattern(1, HELD_BYTES)).unwrap();
    fs.snapshot(ROOT, ROOT, b"younger", true, false).unwrap();
    let deleted = on_thread({
        let fs = fs.clone();
        move || fs.delete_subvolume_at(ROOT, b"s1", meant)
    });
    gate.wait_for_arrivals(1);
    fs.rename(ROOT, b"s1", ROOT, b"kept", RenameMode::NoReplace).unwrap();
    fs.rename(ROOT, b"s0", ROOT, b"s1", RenameMode::NoReplace).unwrap();
    gate.on.store(false, Ordering::SeqCst);
    gate.decide(false);
    refused(deleted.recv_timeout(LONG).expect("it ends"), 2);
    let names = [b"s1".as_slice(), b"kept"];
    assert_eq!(names.map(|name| fs.lookup(ROOT, name).unwrap().ino), [other, meant]);
    // What is no root of a subvolume is none that could be meant.
    refused(fs.delete_subvolume_at(ROOT, b"s1", InodeId(other.0 + 1)), 22);
    fs.delete_subvolume_at(ROOT, b"s1", other).unwrap();
    refused(fs.lookup(ROOT, b"s1"), 2);
    assert!(fs.check(true).unwrap().problems.is_empty());
}

// Goal: a number that a crash has taken back, and that is given again, is not the inode that had it: handles compare the generation.
// Method: a file that is not durable, a kill, the next file has its number.
#[test]
fn numbers_given_again_have_another_generation() {
    let mut f = Fixture::new(64 * MIB);
    let mut seen = std::collections::BTreeSet::new();
    let mut number = None;
    for round in 0..5 {
        f.kill();
        let made = f.fs.create(Caller::ROOT, ROOT, b"made", 0o644).unwrap();
        assert_eq!(*number.get_or_insert(made.ino), made.ino, "the number is given again");
        assert!(seen.insert(made.generation), "round {round}: generation {}", made.generation);
        assert!((1..1 << 32).contains(&made.generation));
        let subvolume = f.fs.create_subvolume(Caller::ROOT, ROOT, b"subvolume", 0o755).unwrap();
        assert!(seen.insert(subvolume.generation), "round {round}: generation {}", subvolume.generation);
    }
}

// Goal: who closes a second time is told what came of the first. Method: the last flush fails; then a pool that closes well.
#[test]
fn closing_again_says_what_came_of_the_first() {
    let f = Fixture::new(64 * MIB);
    let device = Arc::new(FaultyDevice::new(f.device.snapshot(), 1, Vec::new()));
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 8 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    f.fs.close().unwrap();
    f.fs.close().unwrap();
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    let ino = fs.create(Caller::ROOT, ROOT, b"f", 0o644).unwrap().ino;
    fs.write(Caller::ROOT, ino, 0, &[1; 4096]).unwrap();
    device.set_rules(vec![FaultRule::new(Operation::Flush, Trigger::From(1), Fault::Error)]);
    let first = fs.close().unwrap_err().to_string();
    device.set_rules(Vec::new());
    assert_eq!(fs.close().unwrap_err().to_string(), first);
}
