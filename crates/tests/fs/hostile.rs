//! Records that lead where they must not, and clocks and background work that do what they should not.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use varve_engine::{Transaction, TreeId};
use varve_format::record::held::decode_held_key;
use varve_format::record::inode::{INODE_FLAG_STALE_TAIL, InodeRecord};
use varve_format::record::name::NameRecord;

use super::*;
use varve_fs::internals::subvolume::local;
use varve_fs::internals::writeback::ahead::AheadThread;

/// Longer than anything here takes; whoever has not ended by then hangs.
const LONG: Duration = Duration::from_secs(120);
/// Between two looks.
const SHORT: Duration = Duration::from_millis(20);

/// Changes each value of a tree for which `change` has another.
pub(super) fn forge(fs: &Filesystem, tree: TreeId, change: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let mut tx = Transaction::new();
    let mut each = |key: &[u8], value: &[u8]| {
        if let Some(other) = change(value) {
            tx.put(tree, key, &other);
        }
        true
    };
    fs.core().store.view().scan(tree, &[], &mut each).unwrap();
    assert!(!tx.is_empty());
    fs.core().apply(tx).unwrap();
}

/// Makes every entry `wanted` lead to `ino`.
fn lead(fs: &Filesystem, wanted: &[u8], ino: InodeId) {
    forge(fs, TreeId::NAMES, |value| match NameRecord::decode(value) {
        Ok(NameRecord::Entry { kind, name, chained, .. }) if name == wanted => {
            Some(NameRecord::Entry { kind, ino, name, chained }.encode())
        }
        _ => None,
    });
}

// Goal: an entry of a directory that leads to the directory itself is damage, and keeps nobody waiting. Method: every verb that takes
// a name away or gives it, each with a limit of time.
#[test]
fn an_entry_that_leads_to_its_own_directory() {
    for kind in [FileKind::Directory, FileKind::File] {
        let f = Fixture::new(64 * MIB);
        let dir = f.mkdir(ROOT, b"dir");
        if kind == FileKind::Directory {
            f.mkdir(dir, b"inside");
        } else {
            f.fs.create(Caller::ROOT, dir, b"inside", 0o644).unwrap();
        }
        f.create(b"other");
        f.fs.sync().unwrap();
        lead(&f.fs, b"inside", local(dir));
        let (told, tell) = mpsc::channel();
        std::thread::spawn(move || {
            let fs = &f.fs;
            told.send(fs.rmdir(dir, b"inside").is_err()).unwrap();
            told.send(fs.unlink(dir, b"inside").is_err()).unwrap();
            // As of anything that is there once more, a move makes nothing worse.
            drop(fs.rename(dir, b"inside", ROOT, b"moved", RenameMode::Replace));
            drop(fs.rename(ROOT, b"other", dir, b"inside", RenameMode::Replace));
            told.send(true).unwrap();
        });
        for _ in 0..3 {
            assert!(tell.recv_timeout(LONG).expect("it ends"));
        }
    }
}

// Goal: an entry cannot lead into another subvolume. Method: a file of a read-only snapshot, named with its slot by an entry of the
// source; looking at it, reading, writing and removing.
#[test]
fn an_entry_leads_into_no_other_subvolume() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let kept = f.fs.create(Caller::ROOT, sub, b"kept", 0o644).unwrap().ino;
    f.write(kept, 0, &pattern(1, 20_000));
    f.fs.create(Caller::ROOT, sub, b"forged", 0o644).unwrap();
    let snapshot = f.fs.snapshot(sub, ROOT, b"snapshot", true, true).unwrap();
    let shown = f.fs.lookup(snapshot, b"kept").unwrap().ino;
    assert!(shown.0 > u64::from(u32::MAX), "the number names the slot");
    f.fs.create(Caller::ROOT, sub, b"forged as well", 0o644).unwrap();
    lead(&f.fs, b"forged as well", shown);
    // Where it led before is known from lately.
    f.reopen();
    refused(f.fs.lookup(sub, b"forged as well"), 5);
    refused(f.fs.unlink(sub, b"forged as well"), 5);
    assert_eq!(f.read_all(shown), pattern(1, 20_000));
    assert_eq!(f.read_all(kept), pattern(1, 20_000));
}

// Goal: the target of a link takes no more memory than one can have. Method: its record says 2^62 bytes, and one more than there can be.
#[test]
fn a_target_of_any_length_is_refused() {
    for size in [4096, 1 << 62] {
        let mut f = Fixture::new(64 * MIB);
        let link = f.fs.symlink(Caller::ROOT, ROOT, b"link", b"target").unwrap().ino;
        f.fs.sync().unwrap();
        forge(&f.fs, TreeId::INODES, |value| {
            let record = InodeRecord::decode(value).ok()?;
            let is_link = record.kind == FileKind::Symlink;
            is_link.then(|| InodeRecord { size, ..record }.encode())
        });
        f.reopen();
        refused(f.fs.readlink(link), 5);
    }
}

/// A clock that is set.
struct Set(AtomicI64);

impl Clock for Set {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0.load(Ordering::SeqCst), nanoseconds: 0 }
    }
}

fn open_with(f: &Fixture, clock: Arc<dyn Clock>, background: bool) -> Filesystem {
    f.fs.close().unwrap();
    let options = OpenOptions {
        store: StoreOptions { background, ..StoreOptions::default() },
        dirty_bytes_max: 8 * MIB,
        clock,
        on_data_logged: None,
    };
    Filesystem::open(vec![f.device.clone()], options).unwrap().0
}

// Goal: data is written back when it has waited, also if the clock is set back meanwhile. Method: a file that becomes dirty an hour
// before another, by the clock, and after it in truth; a minute later both are logged. Without a step neither is at once.
#[test]
fn a_clock_that_is_set_back_keeps_nothing_waiting() {
    for step in [0, 3600] {
        let f = Fixture::new(64 * MIB);
        let (a, b) = (f.create(b"a"), f.create(b"b"));
        let clock = Arc::new(Set(AtomicI64::new(1_700_000_000)));
        let fs = open_with(&f, clock.clone(), false);
        fs.write(Caller::ROOT, a, 0, &[1; 4096]).unwrap();
        fs.maintain().unwrap();
        assert_eq!(fs.core().dirty.bytes(), 4096, "it may wait for some seconds");
        clock.0.fetch_sub(step, Ordering::SeqCst);
        fs.write(Caller::ROOT, b, 0, &[1; 4096]).unwrap();
        clock.0.fetch_add(60, Ordering::SeqCst);
        fs.maintain().unwrap();
        assert_eq!(fs.core().dirty.bytes(), 0);
    }
}

/// A clock that panics once in the thread that does the background work.
struct Panics(AtomicBool);

impl Clock for Panics {
    fn now(&self) -> Timestamp {
        let here = std::thread::current().name() == Some("varve-background");
        assert!(!here || self.0.swap(true, Ordering::SeqCst), "planted");
        Timestamp { seconds: 1_700_000_000, nanoseconds: 0 }
    }
}

// Goal: when the thread of the background ends by a panic, the pool says so and takes nothing more. Method: its clock panics.
#[test]
fn a_panic_in_the_background_stops_the_pool() {
    let f = Fixture::new(64 * MIB);
    let a = f.create(b"a");
    let fs = open_with(&f, Arc::new(Panics(AtomicBool::new(false))), true);
    fs.write(Caller::ROOT, a, 0, &[1; 4096]).unwrap();
    let (_never, tell) = mpsc::channel::<()>();
    let told = (0..LONG.as_millis() / SHORT.as_millis()).any(|_| {
        let _ = tell.recv_timeout(SHORT);
        fs.stopped().is_some()
    });
    assert!(told, "nobody says so");
    refused(fs.write(Caller::ROOT, a, 0, &[1; 4096]).and(fs.fsync(a)), 5);
    assert!(fs.close().is_err());
}

/// A device that panics in writes of all threads but one.
struct PanicsElsewhere(Arc<MemoryDevice>, std::thread::ThreadId);

impl Between for PanicsElsewhere {
    fn behind(&self) -> &dyn Device {
        &*self.0
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let writes = requests.iter().any(|request| matches!(request, Request::Write { .. }));
        assert!(!writes || std::thread::current().id() == self.1, "planted");
        self.0.run(requests)
    }
}

// Goal: when the thread that writes ahead ends by a panic, the pool says so and takes nothing more. Method: the device panics in its first
// write; no other thread of the filesystem runs, and nobody has to write for lack of room.
#[test]
fn a_panic_in_writing_ahead_stops_the_pool() {
    let f = Fixture::new(64 * MIB);
    let a = f.create(b"a");
    f.fs.close().unwrap();
    let device = Arc::new(Through(PanicsElsewhere(f.device.clone(), std::thread::current().id())));
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 8 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device], options).unwrap().0;
    let ahead = AheadThread::start(&fs.weak_core().upgrade().unwrap());
    let data = pattern(1, 3 * MIB as usize);
    fs.write(Caller::ROOT, a, 0, &data).unwrap();
    let (_never, tell) = mpsc::channel::<()>();
    let told = (0..LONG.as_millis() / SHORT.as_millis()).any(|_| {
        let _ = tell.recv_timeout(SHORT);
        fs.stopped().is_some_and(|(why, _)| why.contains("panicked"))
    });
    assert!(told, "nobody says so");
    drop(ahead);
    refused(fs.write(Caller::ROOT, a, 0, &[1; 4096]).and(fs.fsync(a)), 5);
    refused(fs.sync(), 5);
    assert!(fs.read(a, 0, data.len()).unwrap() == data, "what is in memory can be read");
    assert!(fs.close().is_err());
}

// Goal: what a record says of the bytes behind a file's end means nothing where the file ends with its block, and keeps nobody waiting.
// Method: such a record, and each verb that lets a file grow or looks behind its end, with a limit of time.
#[test]
fn a_stale_tail_behind_whole_blocks() {
    type Verb = fn(&Filesystem, InodeId) -> Result<(), FsError>;
    let verbs: [(&str, Verb); 6] = [
        ("setattr", |fs, ino| {
            fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(10_000), ..Default::default() }).map(drop)
        }),
        ("write", |fs, ino| fs.write(Caller::ROOT, ino, 20_000, &[2; 100]).map(drop)),
        ("reserve", |fs, ino| {
            fs.fallocate(Caller::ROOT, ino, 8192, 8192, Allocate::Reserve { keep_size: false })
        }),
        ("punch", |fs, ino| fs.fallocate(Caller::ROOT, ino, 4096, 8192, Allocate::Punch)),
        ("insert", |fs, ino| fs.insert_range(Caller::ROOT, ino, 0, 4096)),
        ("clone", |fs, ino| fs.clone_file(Caller::ROOT, ino, ROOT, b"clone").map(drop)),
    ];
    for (what, verb) in verbs {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"f");
        f.write(ino, 0, &[1; 4096]);
        f.fs.sync().unwrap();
        forge(&f.fs, TreeId::INODES, |value| {
            let record = InodeRecord::decode(value).ok()?;
            let flags = record.flags | INODE_FLAG_STALE_TAIL;
            (record.size == 4096).then(|| InodeRecord { flags, ..record }.encode())
        });
        f.reopen();
        let (told, tell) = mpsc::channel();
        std::thread::spawn(move || {
            let done = verb(&f.fs, ino);
            let grown = f.fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(30_000), ..Default::default() });
            let data = f.fs.read(ino, if what == "insert" { 4096 } else { 0 }, 4096);
            let synced = f.fs.sync();
            f.check();
            told.send((done.is_ok(), grown.is_ok(), data.is_ok_and(|d| d == [1; 4096]), synced.is_ok()))
                .unwrap();
        });
        assert_eq!(tell.recv_timeout(LONG).expect(what), (true, true, true, true), "{what}");
    }
}

// Goal: directories that lie in each other have no way to the root, and a diff does not go round in them. Method: a file that has changed
// below two such, against a snapshot of before; paths that were found, with a limit of time.
#[test]
fn a_ring_of_directories_in_a_diff() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let d = f.fs.mkdir(Caller::ROOT, sub, b"d", 0o711).unwrap().ino;
    let e = f.mkdir(d, b"e");
    f.fs.create(Caller::ROOT, e, b"x", 0o644).unwrap();
    let file = f.fs.create(Caller::ROOT, e, b"f", 0o644).unwrap().ino;
    f.fs.sync().unwrap();
    let old = f.fs.snapshot(sub, ROOT, b"old", true, true).unwrap();
    f.write(file, 0, b"changed");
    f.fs.sync().unwrap();
    lead(&f.fs, b"x", local(d));
    forge(&f.fs, TreeId::INODES, |value| {
        let record = InodeRecord::decode(value).ok()?;
        (record.mode == 0o711).then(|| InodeRecord { parent: local(e), ..record }.encode())
    });
    f.reopen();
    let (told, tell) = mpsc::channel();
    std::thread::spawn(move || {
        let mut longest = 0;
        if let Ok(page) = f.fs.diff(old, sub, &[], 100) {
            longest = page.new_paths.iter().map(|(_, path)| path.len()).max().unwrap_or(0);
        }
        told.send(longest).unwrap();
    });
    assert!(tell.recv_timeout(LONG).expect("it ends") < 1_000);
}

// Goal: what a record says of the directory it is in is not believed for ever. Method: a file that has changed and says that it is in
// itself, or in another one that says the same of it, while its name is where it was; the path is found by its name.
#[test]
fn files_that_are_in_themselves_in_a_diff() {
    for other in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let files = [b"f", b"g"].map(|name| f.fs.create(Caller::ROOT, sub, name, 0o711).unwrap().ino);
        f.fs.sync().unwrap();
        let old = f.fs.snapshot(sub, ROOT, b"old", true, true).unwrap();
        files.iter().for_each(|file| f.write(*file, 0, b"changed"));
        f.fs.sync().unwrap();
        forge(&f.fs, TreeId::INODES, |value| {
            let record = InodeRecord::decode(value).ok()?;
            let at = files.iter().position(|file| record.data.family.0 == local(*file).0)?;
            Some(InodeRecord { parent: local(files[(at + usize::from(other)) % 2]), ..record }.encode())
        });
        f.reopen();
        let (told, tell) = mpsc::channel();
        std::thread::spawn(move || {
            let page = f.fs.diff(old, sub, &[], 100).unwrap();
            told.send(page.new_paths.len()).unwrap();
        });
        assert_eq!(tell.recv_timeout(LONG).expect("it ends"), 2);
    }
}

// Goal: an entry of the index whose place is none of its tree is damage, and no diff takes it apart. Method: beside each that a snapshot
// has caused, one whose place is longer, and one whose place is shorter.
#[test]
fn places_of_the_wrong_length_in_a_diff() {
    for tree in [TreeId::INODES, TreeId::NAMES, TreeId::XATTRS] {
        for longer in [true, false] {
            let f = Fixture::new(64 * MIB);
            let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
            let old = f.fs.snapshot(sub, ROOT, b"old", true, true).unwrap();
            let file = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
            f.fs.setxattr(file, b"user.a", b"value", XattrMode::Set).unwrap();
            assert!(f.fs.diff(old, sub, &[], 100).is_ok());
            let mut tx = Transaction::new();
            let mut each = |key: &[u8], _: &[u8]| {
                if decode_held_key(key).is_ok_and(|(_, _, of, _)| of == tree) {
                    let other = if longer { [key, &[1]].concat() } else { key[..key.len() - 1].to_vec() };
                    tx.put(TreeId::HELD, &other, &[]);
                }
                true
            };
            f.fs.core().store.view().scan(TreeId::HELD, &[], &mut each).unwrap();
            assert!(!tx.is_empty());
            f.fs.core().apply(tx).unwrap();
            refused(f.fs.diff(old, sub, &[], 100), 5);
        }
    }
}

// Goal: what comes from outside as the place where a diff is to go on is refused where there is no such place, and nothing else happens.
// Method: each phase, with places of all lengths up to one that no key of a tree would take.
#[test]
fn a_diff_goes_on_at_no_place_that_cannot_be() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let old = f.fs.snapshot(sub, ROOT, b"old", true, true).unwrap();
    f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap();
    for (phase, len) in (0..=u8::MAX).flat_map(|phase| [0, 1, 8, 16, 18, 19, 40, 300].map(|len| (phase, len)))
    {
        for byte in [0, u8::MAX] {
            let cursor = [vec![phase], vec![byte; len]].concat();
            match f.fs.diff(old, sub, &cursor, 3) {
                Ok(_) => assert!(len < 19, "{cursor:?}"),
                Err(error) => assert_eq!(error.errno(), 22, "{error}"),
            }
        }
    }
}
