//! What closing does about a verb of another thread that is in the middle of something.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use super::*;
use crate::filesystem::Filesystem;

const CALLER: varve_fs::Caller = varve_fs::Caller::ROOT;
/// Longer than anything here takes; whoever has not ended by then hangs.
const LONG: Duration = Duration::from_secs(120);
/// Long enough for a thread to get to where it waits. Too short is no false alarm.
const SHORT: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Held {
    shut: bool,
    arrived: bool,
}

/// What holds up whoever comes while it is shut.
#[derive(Default)]
struct Gate {
    held: Mutex<Held>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut held = self.held.lock();
        held.arrived = true;
        self.changed.notify_all();
        while held.shut {
            assert!(!self.changed.wait_for(&mut held, LONG).timed_out(), "nobody opens the gate");
        }
    }
    fn shut(&self) {
        *self.held.lock() = Held { shut: true, arrived: false };
    }
    fn open(&self) {
        self.held.lock().shut = false;
        self.changed.notify_all();
    }
    /// Waits until somebody has come, or so long.
    fn somebody_comes(&self, within: Duration) -> bool {
        let mut held = self.held.lock();
        self.changed.wait_while_for(&mut held, |held| !held.arrived, within);
        held.arrived
    }
}

/// A device whose flushes go through a gate.
struct Gated {
    inner: Arc<varve_device::MemoryDevice>,
    flushes: Arc<Gate>,
    /// What the next flush lets go of.
    goes: Arc<Mutex<Option<Arc<Shared>>>>,
}

impl varve_device::Device for Gated {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn run(
        &self,
        requests: &mut [varve_device::Request<'_>],
    ) -> Vec<std::result::Result<(), varve_device::DeviceError>> {
        self.inner.run(requests)
    }
    fn flush(&self) -> std::result::Result<(), varve_device::DeviceError> {
        self.flushes.pass();
        let goes = self.goes.lock().take();
        drop(goes);
        self.inner.flush()
    }
    fn discard(
        &self,
        offset: u64,
        len_bytes: u64,
    ) -> std::result::Result<varve_device::Discarded, varve_device::DeviceError> {
        self.inner.discard(offset, len_bytes)
    }
    fn stats(&self) -> varve_device::StatsSnapshot {
        self.inner.stats()
    }
}

/// A clock that stands still, and whose readers go through a gate.
struct Clock(Arc<Gate>);

impl varve_fs::Clock for Clock {
    fn now(&self) -> varve_fs::Timestamp {
        self.0.pass();
        varve_fs::Timestamp { seconds: 1, nanoseconds: 0 }
    }
}

fn open(device: Arc<dyn varve_device::Device>, clock: Clock) -> varve_fs::Filesystem {
    let options = varve_fs::OpenOptions {
        store: varve_fs::StoreOptions { background: false, ..varve_fs::StoreOptions::default() },
        dirty_bytes_max: 8 << 20,
        clock: Arc::new(clock),
        on_data_logged: None,
    };
    varve_fs::Filesystem::open(vec![device], options).unwrap().0
}

/// An open pool, its device, and the gates of that and of the clock.
struct Fixture {
    shared: Arc<Shared>,
    device: Arc<varve_device::MemoryDevice>,
    flushes: Arc<Gate>,
    goes: Arc<Mutex<Option<Arc<Shared>>>>,
    clock: Arc<Gate>,
}

impl Fixture {
    fn new() -> Fixture {
        let device = Arc::new(varve_device::MemoryDevice::new(256 << 20));
        let (flushes, clock) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let format = varve_fs::FormatOptions {
            data: varve_fs::Profile::Single,
            metadata: varve_fs::Profile::Single,
            pool_id: [1; 16],
            hash_seed: 1,
            force: true,
        };
        let devices: [Arc<dyn varve_device::Device>; 1] = [device.clone()];
        varve_fs::Filesystem::format(&devices, &format, CALLER, &Clock(clock.clone())).unwrap();
        let goes = Arc::default();
        let gated = Gated { inner: device.clone(), flushes: flushes.clone(), goes: Arc::clone(&goes) };
        let fs = open(Arc::new(gated), Clock(clock.clone()));
        let shared =
            Shared::new("gated".to_owned(), fs, varve_fs::RecoveryReport::default(), None, Vec::new());
        Fixture { shared, device, flushes, goes, clock }
    }

    fn filesystem(&self) -> Filesystem {
        Filesystem::new(self.shared.clone(), (0, 0))
    }

    /// What is in the pool when it is opened once more.
    fn reopened(self) -> Filesystem {
        Fixture::reopen(self.device)
    }

    fn reopen(device: Arc<varve_device::MemoryDevice>) -> Filesystem {
        let fs = open(device, Clock(Arc::default()));
        let shared =
            Shared::new("reopened".to_owned(), fs, varve_fs::RecoveryReport::default(), None, Vec::new());
        Filesystem::new(shared, (0, 0))
    }

    /// Closes while `verb`, which has come to read the clock, is in the middle of something.
    fn close_during<T: Send>(&self, verb: impl FnOnce() -> T + Send) -> T {
        self.clock.shut();
        thread::scope(|scope| {
            let verb = scope.spawn(verb);
            assert!(self.clock.somebody_comes(LONG));
            let close = scope.spawn(|| self.shared.close());
            while !self.shared.closing.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            assert!(!close.is_finished(), "the close did not wait");
            self.clock.open();
            close.join().unwrap().unwrap();
            verb.join().unwrap()
        })
    }
}

// Goal: what a verb says it has done is there after a close that says Ok, whenever the two meet. Method: a verb has begun,
// and writes only when the close's first flush has come to the device (or after a while, when it waits for the verb); the
// flush is held up meanwhile.
#[test]
fn closing_waits_for_a_verb_that_has_begun() {
    let f = Fixture::new();
    let fs = f.shared.enter().unwrap();
    let ino = fs.create(CALLER, varve_fs::ROOT_INODE, b"file", 0o644).unwrap().ino;
    fs.sync().unwrap();
    drop(fs);
    f.flushes.shut();
    let data = vec![7; 100_000];
    let (begun, has_begun) = mpsc::channel();
    let (go, told) = mpsc::channel::<()>();
    let (accepted, closed) = thread::scope(|scope| {
        let (f, data) = (&f, &data);
        let verb = scope.spawn(move || {
            let fs = f.shared.enter().unwrap();
            begun.send(()).unwrap();
            told.recv_timeout(LONG).unwrap();
            fs.write(CALLER, ino, 0, data).is_ok()
        });
        has_begun.recv_timeout(LONG).unwrap();
        let close = scope.spawn(|| f.shared.close());
        f.flushes.somebody_comes(SHORT);
        go.send(()).unwrap();
        let accepted = verb.join().unwrap();
        f.flushes.open();
        (accepted, close.join().unwrap())
    });
    closed.unwrap();
    assert!(f.shared.door.was_durable(varve_fs::Lsn(u64::MAX)));
    assert!(accepted, "a verb that had begun was refused");
    assert!(f.reopened().read("/file").unwrap() == data, "what was accepted is gone");
}

// Goal: a handle may go inside of a verb while a close waits for that. Method: a verb that has begun lets go of a file when the close
// waits for it; the file, which has no name any more, is deleted, and other verbs are refused meanwhile.
#[test]
fn a_handle_may_go_inside_of_a_verb_while_the_pool_closes() {
    let f = Fixture::new();
    let (fs, file) = (f.filesystem(), f.filesystem().create("/file").unwrap());
    fs.remove_file("/file").unwrap();
    let (begun, has_begun) = mpsc::channel();
    thread::scope(|scope| {
        let (f, fs) = (&f, &fs);
        let verb = scope.spawn(move || {
            let inside = f.shared.enter().unwrap();
            begun.send(()).unwrap();
            while fs.exists("/file").is_ok() {
                thread::yield_now();
            }
            assert_eq!(*fs.exists("/file").unwrap_err().reason(), Reason::Closed);
            thread::sleep(SHORT);
            drop(file);
            drop(inside);
        });
        has_begun.recv_timeout(LONG).unwrap();
        f.shared.close().unwrap();
        verb.join().unwrap();
    });
    assert_eq!(f.reopened().statfs().unwrap().files_count, 1);
}

// Goal: a large write keeps a close waiting for one piece only, says how much it has written, and that is there. Method: the close
// begins during the first piece; once by `write_at`, once by `write_all_at`, which fails.
#[test]
fn a_large_write_ends_early_when_the_pool_closes() {
    let data: Vec<u8> = (0..24 << 20).map(|n: u32| (n / 4096 % 251) as u8 + 1).collect();
    for all in [false, true] {
        let f = Fixture::new();
        let file = f.filesystem().create("/file").unwrap();
        let written = f.close_during(|| match all {
            false => file.write_at(&data, 0),
            true => file.write_all_at(&data, 0).map(|()| 0),
        });
        match all {
            false => assert_eq!(written.unwrap(), 8 << 20),
            true => assert_eq!(*written.unwrap_err().reason(), Reason::Closed),
        }
        assert_eq!(*file.read_at(&mut [0], 0).unwrap_err().reason(), Reason::Closed);
        assert!(f.reopened().read("/file").unwrap() == data[..8 << 20]);
    }
}

// Goal: so do a large copy and the removal of a tree. Method: the close begins at the first piece, or at the first name that goes.
#[test]
fn a_large_copy_and_a_removal_end_early_when_the_pool_closes() {
    let data: Vec<u8> = (0..80 << 20).map(|n: u32| (n / 4096 % 251) as u8 + 1).collect();
    let f = Fixture::new();
    f.filesystem().write("/file", &data).unwrap();
    let (from, to) = (f.filesystem().open("/file").unwrap(), f.filesystem().create("/copy").unwrap());
    let copied = f.close_during(|| from.copy_range(1, &to, 0, u64::MAX)).unwrap() as usize;
    assert!(0 < copied && copied < data.len() - 1, "{copied} bytes were copied");
    assert!(f.reopened().read("/copy").unwrap() == data[1..1 + copied]);

    let f = Fixture::new();
    let fs = f.filesystem();
    fs.create_dir_all("/tree/within").unwrap();
    fs.write("/tree/within/file", "").unwrap();
    let removed = f.close_during(|| fs.remove_dir_all("/tree"));
    assert_eq!(*removed.unwrap_err().reason(), Reason::Closed);
    let fs = f.reopened();
    assert!(fs.exists("/tree").unwrap() && !fs.exists("/tree/within/file").unwrap());
}

// Goal: so does a deduplication. Method: the close begins when it writes back the first of two equal files.
#[test]
fn a_deduplication_ends_early_when_the_pool_closes() {
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 4096 % 251) as u8 + 1).collect();
    let f = Fixture::new();
    let fs = f.filesystem();
    fs.write("/one", &data).unwrap();
    fs.write("/two", &data).unwrap();
    let write = crate::OpenOptions::new().write(true).clone();
    let (one, two) = (fs.open("/one").unwrap(), write.open(&fs, "/two").unwrap());
    let shared = f.close_during(|| one.dedupe_range(0, &two, 0, 3 << 20));
    assert_eq!(shared.unwrap(), Some(1 << 20));
    assert!(f.reopened().read("/two").unwrap() == data);
}

// Goal: a sync that has begun is waited for while a close waits for somebody else. Method: a verb is in the middle of something, and
// a close waits for it.
#[test]
fn a_sync_that_has_begun_ends_while_a_close_waits() {
    let f = Fixture::new();
    let fs = f.filesystem();
    let (file, other) = (fs.create("/file").unwrap(), fs.create("/other").unwrap());
    file.write_at(b"synced", 0).unwrap();
    let pending = [file.start_sync().unwrap(), file.start_sync().unwrap()];
    f.clock.shut();
    thread::scope(|scope| {
        let verb = scope.spawn(|| other.write_at(b"other", 0));
        assert!(f.clock.somebody_comes(LONG));
        let close = scope.spawn(|| f.shared.close());
        while !f.shared.closing.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let [first, second] = pending;
        first.wait().unwrap();
        assert!(second.is_durable());
        f.clock.open();
        verb.join().unwrap().unwrap();
        close.join().unwrap().unwrap();
        assert!(second.is_durable());
        second.wait().unwrap();
    });
}

// Goal: a program can go on making and deleting snapshots, however few numbers there are; while somebody goes by numbers that he does not have open
// none is given to another. Method: eight numbers; a diff of two snapshots that stays while they and others are deleted; then it goes.
#[test]
fn numbers_of_subvolumes_come_back() {
    let pool = crate::PoolOptions::new().background(false).in_memory(64 << 20).unwrap();
    pool.shared().enter().unwrap().limit_subvolumes(8, 1);
    let fs = pool.filesystem();
    fs.create_subvolume("/source").unwrap();
    fs.write("/source/file", b"contents").unwrap();
    let one = |name: &str| {
        fs.snapshot("/source", name, crate::SnapshotOptions::default()).and_then(|()| {
            assert_eq!(fs.read(format!("{name}/file")).unwrap(), b"contents");
            fs.delete_subvolume(name).unwrap();
            pool.maintain()
        })
    };
    for _ in 0..30 {
        one("/one").unwrap();
    }
    fs.snapshot("/source", "/old", crate::SnapshotOptions::default()).unwrap();
    let diff = fs.diff("/old", "/source").unwrap();
    fs.delete_subvolume("/old").unwrap();
    pool.maintain().unwrap();
    let refused = (0..8).find_map(|_| one("/one").err()).expect("there are eight");
    assert!(matches!(refused.reason(), crate::Reason::Refused(_)), "{refused}");
    drop(diff);
    fs.create_subvolume("/gone").unwrap();
    let gone = fs.read_dir("/").unwrap().map(Result::unwrap).find(|entry| entry.name() == b"gone").unwrap();
    fs.delete_subvolume("/gone").unwrap();
    pool.maintain().unwrap();
    for _ in 0..30 {
        one("/one").unwrap();
        fs.snapshot("/source", "/two", crate::SnapshotOptions::default()).unwrap();
        assert!(gone.metadata().is_err(), "its number is another's");
        fs.delete_subvolume("/two").unwrap();
        pool.maintain().unwrap();
    }
    assert!(pool.check(true).unwrap().is_clean());
}

// Goal: who waits with a limit hears when it has passed, may ask again, and hears when it is durable; then no thread keeps the pool
// open. Method: flushes that somebody holds up, two syncs that are waited for in turn and at once.
#[test]
fn a_sync_is_waited_for_with_a_limit() {
    let f = Fixture::new();
    let fs = f.filesystem();
    let file = fs.create("/file").unwrap();
    file.write_at(b"first", 0).unwrap();
    let first = file.start_sync().unwrap();
    f.flushes.shut();
    assert!(!first.wait_timeout(Duration::ZERO).unwrap());
    assert!(f.flushes.somebody_comes(LONG), "somebody flushes, although nobody waits");
    assert!(!first.wait_timeout(SHORT).unwrap() && !first.is_durable());
    file.write_at(b"second", 0).unwrap();
    let second = file.start_sync().unwrap();
    thread::scope(|scope| {
        let waits = [&first, &second].map(|one| scope.spawn(move || one.wait_timeout(Duration::MAX)));
        assert!(!second.wait_timeout(SHORT).unwrap() && !second.is_durable());
        f.flushes.open();
        for wait in waits {
            assert!(wait.join().unwrap().unwrap());
        }
    });
    assert!(first.is_durable() && second.is_durable());
    assert!(second.wait_timeout(Duration::ZERO).unwrap(), "without a flush");
    first.wait().unwrap();
    // Once it is durable no thread keeps the pool open.
    let third = file.start_sync().unwrap();
    assert!(third.wait_timeout(LONG).unwrap());
    drop((file, second, third, fs));
    assert_eq!(Arc::strong_count(&f.shared), 1);
    assert_eq!(f.reopened().read("/file").unwrap(), b"second");
}

// Goal: who waits with a limit is told that a flush has failed, each time, and that the pool has been closed meanwhile. Method: a pool that stops while a flush
// is held up; a close that fails after that.
#[test]
fn a_sync_with_a_limit_that_fails() {
    let f = Fixture::new();
    let fs = f.filesystem();
    let file = fs.create("/file").unwrap();
    file.write_at(b"lost", 0).unwrap();
    let pending = fs.start_sync().unwrap();
    f.shared.enter().unwrap().stop("a test");
    for _ in 0..2 {
        let error = pending.wait_timeout(LONG).unwrap_err();
        assert!(matches!(error.reason(), crate::Reason::Stopped(_)), "{error}");
    }
    assert!(f.shared.close().is_err());
    assert_eq!(pending.wait_timeout(LONG).unwrap_err().reason(), &crate::Reason::Closed);
    assert_eq!(pending.wait().unwrap_err().reason(), &crate::Reason::Closed);
}

/// A sync that has been waited for in vain, since somebody holds up the flushes: it goes on. What was written has not been synced.
fn waited_in_vain(f: &Fixture) -> crate::Pending {
    let fs = f.filesystem();
    let file = fs.create("/file").unwrap();
    file.write_at(b"synced", 0).unwrap();
    let pending = file.start_sync().unwrap();
    f.flushes.shut();
    assert!(!pending.wait_timeout(Duration::ZERO).unwrap());
    assert!(f.flushes.somebody_comes(LONG));
    file.write_at(b"closed", 0).unwrap();
    pending
}

// Goal: the last handle that goes waits for who still commits, and closes the pool: a program that ends then has lost nothing. Method: it
// goes while a flush is held up.
#[test]
fn the_last_handle_waits_for_a_sync_with_a_limit() {
    let f = Fixture::new();
    let pending = waited_in_vain(&f);
    let Fixture { shared, device, flushes, .. } = f;
    drop(shared);
    thread::scope(|scope| {
        let last = scope.spawn(|| drop(pending));
        thread::park_timeout(SHORT);
        let went = last.is_finished();
        flushes.open();
        assert!(!went, "it did not wait");
    });
    assert_eq!(Arc::strong_count(&device), 1, "the pool is closed");
    assert_eq!(Fixture::reopen(device).read("/file").unwrap(), b"closed");
}

// Goal: the last handle may go on the very thread that commits, in the middle of that: the pool is closed all the same. Method: a device
// lets go of it in a flush.
#[test]
fn the_last_handle_goes_on_the_thread_that_commits() {
    let f = Fixture::new();
    drop(waited_in_vain(&f));
    let Fixture { shared, device, flushes, goes, .. } = f;
    *goes.lock() = Some(shared);
    flushes.open();
    for _ in 0..LONG.as_millis() {
        if Arc::strong_count(&device) == 1 {
            break;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(&device), 1, "the pool is closed");
    assert_eq!(Fixture::reopen(device).read("/file").unwrap(), b"closed");
}

// Goal: who waits with a limit waits no longer than that where another thread is just closing the pool, and hears what came of it then.
// Method: a close whose flush is held up.
#[test]
fn a_limit_holds_beside_who_closes() {
    let f = Fixture::new();
    let fs = f.filesystem();
    let file = fs.create("/file").unwrap();
    file.write_at(b"closed", 0).unwrap();
    let pending = file.start_sync().unwrap();
    f.flushes.shut();
    let (answer, answered) = mpsc::channel();
    thread::scope(|scope| {
        let close = scope.spawn(|| f.shared.close());
        assert!(f.flushes.somebody_comes(LONG));
        let pending = &pending;
        scope.spawn(move || {
            for limit in [Duration::ZERO, SHORT] {
                answer.send(pending.wait_timeout(limit)).unwrap();
            }
        });
        let heard = [(); 2].map(|()| answered.recv_timeout(LONG / 12));
        f.flushes.open();
        for heard in heard {
            assert!(!heard.expect("it waits longer").unwrap());
        }
        close.join().unwrap().unwrap();
    });
    assert!(pending.wait_timeout(Duration::ZERO).unwrap());
}
