//! Values at the edges of what there is: times, names.

use super::*;

// Goal: a time is kept to the nanosecond, from before 1970 to after 2106. Method: edges of what people and other
// filesystems take for the end of time, set, killed, read.
#[test]
fn times_have_no_end() {
    let mut f = Fixture::new(64 * MIB);
    let time = |seconds: i64, nanoseconds: u32| Timestamp { seconds, nanoseconds };
    let times = [
        time(0, 0),
        time(-1, 999_999_999),
        time(i64::from(i32::MIN) - 1, 1),
        time(i64::from(i32::MAX) + 1, 2),
        time(i64::from(u32::MAX) + 1, 3),
        time(-62_135_596_800, 4),
        time(253_402_300_800, 5),
        time(1 << 40, 6),
        time(i64::MIN, 0),
        time(i64::MAX, 999_999_999),
    ];
    for (number, at) in times.into_iter().enumerate() {
        let ino = f.create(format!("{number}").as_bytes());
        let set = SetAttr {
            atime: Some(SetTime::At(at)),
            mtime: Some(SetTime::At(times[times.len() - 1 - number])),
            ..SetAttr::default()
        };
        f.fs.setattr(Caller::ROOT, ino, set).unwrap();
    }
    f.fs.sync().unwrap();
    f.kill();
    for (number, at) in times.into_iter().enumerate() {
        let attr = f.fs.lookup(ROOT, format!("{number}").as_bytes()).unwrap();
        assert_eq!((attr.atime, attr.mtime), (at, times[times.len() - 1 - number]));
    }
    let ino = f.create(b"wrong");
    let set = SetAttr { mtime: Some(SetTime::At(time(0, 1_000_000_000))), ..SetAttr::default() };
    refused(f.fs.setattr(Caller::ROOT, ino, set), 22);
    f.check();
}

// Goal: a name may be any 255 bytes but NUL and the slash. Method: every byte value in names of the full length, found,
// listed and removed after a kill; one byte more is refused.
#[test]
fn names_are_any_bytes() {
    let mut f = Fixture::new(64 * MIB);
    let names: Vec<Vec<u8>> = (1..=255u8)
        .filter(|byte| *byte != b'/')
        .map(|byte| (0..255).map(|at| if at % 2 == 0 { byte } else { b'a' + (at % 26) as u8 }).collect())
        .collect();
    for name in &names {
        f.create(name);
    }
    refused(f.fs.create(Caller::ROOT, ROOT, &[b'x'; 256], 0o644), 36);
    f.fs.sync().unwrap();
    f.kill();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(f.list(ROOT), sorted);
    for name in &names {
        f.fs.unlink(ROOT, name).unwrap();
    }
    f.check();
}

// Goal: a pool that cannot be opened is let go of at once: nobody writes to the device any more, or holds its lock. Method: a
// pool without a filesystem, opened for writing with the background on; who else has the device afterwards, several times,
// because the background's thread begins when it likes.
#[test]
fn what_cannot_be_opened_is_let_go_of() {
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    varve_engine::Store::format(&devices, &FORMAT).unwrap();
    drop(devices);
    for _ in 0..20 {
        let options = OpenOptions {
            store: StoreOptions { background: true, ..StoreOptions::default() },
            dirty_bytes_max: 8 * MIB,
            clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
            on_data_logged: None,
        };
        let refused = Filesystem::open(vec![device.clone()], options).map(drop);
        assert!(refused.unwrap_err().to_string().contains("holds no filesystem"));
        assert_eq!(Arc::strong_count(&device), 1);
    }
}

// Goal: of a change of size and bits together nothing has happened when it is refused, and both when not. Method: a size that no file
// has, a size of a directory, and one that is right, with a time of its own and without.
#[test]
fn size_and_bits_change_together() {
    let f = Fixture::new(64 * MIB);
    let (ino, dir) = (f.create(b"f"), f.mkdir(ROOT, b"dir"));
    let set = |size| SetAttr { mode: Some(0o600), uid: Some(5), size: Some(size), ..SetAttr::default() };
    for (ino, size, errno) in [(ino, (1 << 62) + 1, 27), (dir, 0, 21)] {
        let before = f.fs.getattr(ino).unwrap();
        refused(f.fs.setattr(Caller::ROOT, ino, set(size)), errno);
        assert_eq!(f.fs.getattr(ino).unwrap(), before);
    }
    let before = f.fs.getattr(ino).unwrap();
    let attr = f.fs.setattr(Caller::ROOT, ino, set(100)).unwrap();
    assert_eq!((attr.mode, attr.uid, attr.size), (0o600, 5, 100));
    assert!(attr.mtime > before.mtime);
    let at = Timestamp { seconds: 7, nanoseconds: 8 };
    let attr = f.fs.setattr(Caller::ROOT, ino, SetAttr { mtime: Some(SetTime::At(at)), ..set(200) }).unwrap();
    assert_eq!((attr.mtime, attr.size), (at, 200));
}

// Goal: when all numbers of subvolumes have been given out, the error says what to do, and that helps. Method: all slots marked as given
// out; a subvolume and a snapshot are refused and leave nothing; then the pool is opened again.
#[test]
fn who_is_out_of_subvolumes_is_told_what_to_do() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    (1..1 << 20)
        .for_each(|slot| f.fs.core().subvolumes.keep_slot(varve_fs::internals::subvolume::Slot(slot)));
    let snapshot = f.fs.snapshot(sub, ROOT, b"snapshot", false, false);
    let made = f.fs.create_subvolume(Caller::ROOT, ROOT, b"another", 0o755);
    for error in [snapshot.unwrap_err(), made.unwrap_err()] {
        assert_eq!(error.errno(), 28);
        assert!(error.to_string().contains("close the pool and open it again"), "{error}");
    }
    f.check();
    f.reopen();
    f.fs.snapshot(sub, ROOT, b"snapshot", false, false).unwrap();
    f.fs.create_subvolume(Caller::ROOT, ROOT, b"another", 0o755).unwrap();
    f.check();
}
