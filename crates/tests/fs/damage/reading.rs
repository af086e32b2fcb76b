//! What is said of damage that has valid checksums by whoever reads it, without a check.

use super::*;

// Goal: a node whose keys are outside the range that the node above gives it is an error for who reads it, each time, and not
// an inode that is not there. Method: the last key of a leaf of inodes is changed; its first inode is asked for, in a pool that
// is opened read-only and in one that is opened to be written.
#[test]
fn keys_outside_their_range_are_refused() {
    let world = build();
    for read_only in [true, false] {
        let mut damaged = world.again();
        let key = damaged.middle(TreeId::INODES);
        let mut first = None;
        damaged.image.edit_entries(TreeId::INODES, &key, |entries| {
            entries.truncate(4);
            let number: [u8; 8] = entries[0].0[8..16].try_into().unwrap();
            first = Some(InodeId(u64::from_be_bytes(number)));
            entries[3].0 = inode_key(FAMILY, InodeId(1 << 40), KEY).to_vec();
        });
        let options = OpenOptions {
            store: StoreOptions { read_only, background: false, ..StoreOptions::default() },
            dirty_bytes_max: 0,
            clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
            on_data_logged: None,
        };
        let device: Arc<dyn Device> = damaged.image.device.clone();
        let (fs, _) = Filesystem::open(vec![device], options).unwrap();
        let ino = first.unwrap();
        for _ in 0..2 {
            refused(fs.getattr(ino), 5);
        }
        if !read_only {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            refused(fs.setattr(Caller::ROOT, ino, set), 5);
        }
    }
}

// Goal: a pool of which only the bitmap is damaged can be read, all of it, and is not written to. Method: the bitmap is garbage
// in all copies, or marks blocks that there are not, in a pool that was closed and in one with a log that places, frees and
// uses again; every file of it and of a snapshot is read; opening it for writing is refused, says what to do, and writes
// nothing.
#[test]
fn a_pool_without_its_bitmap_can_be_read() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let files: Vec<InodeId> = (0..12u8)
        .map(|n| {
            let ino = f.fs.create(Caller::ROOT, sub, &[b'a' + n], 0o644).unwrap().ino;
            f.write(ino, 0, &pattern(n.into(), 100_000));
            ino
        })
        .collect();
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    for round in 0..3u8 {
        for (n, ino) in files.iter().enumerate().skip(4) {
            f.write(*ino, 8192 * n as u64, &pattern(u64::from(round) + 40, 20_000));
        }
        f.fs.sync().unwrap();
    }
    f.fs.snapshot(sub, ROOT, b"snap", false, true).unwrap();
    f.fs.unlink(sub, b"a").unwrap();
    f.fs.clone_file(Caller::ROOT, files[1], sub, b"clone").unwrap();
    f.write(files[2], 4096, &pattern(50, 30_000));
    f.fs.setattr(Caller::ROOT, files[3], SetAttr { size: Some(5000), ..SetAttr::default() }).unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let contents = |fs: &Filesystem| {
        let mut all = Vec::new();
        for place in [b"sub" as &[u8], b"snap"] {
            let root = fs.lookup(ROOT, place).unwrap().ino;
            let mut names = Vec::new();
            let each = &mut |entry: DirEntry| {
                names.push(entry.name);
                true
            };
            fs.readdir(root, 0, each).unwrap();
            for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
                let attr = fs.lookup(root, &name).unwrap();
                all.push((place.to_vec(), name, fs.read(attr.ino, 0, attr.size as usize).unwrap()));
            }
        }
        all.sort();
        all
    };
    let before = contents(&f.fs);
    assert_eq!(before.len(), 24);
    let open_log = f.device.snapshot();
    f.fs.close().unwrap();
    for (pool, clean) in [(&open_log, false), (&*f.device, true)] {
        for beyond in [false, true] {
            let mut image = Image::of(pool);
            if beyond {
                image.edit_array(Array::Bitmap, 0, |page| page[BLOCK_BYTES - 1] ^= 0x80);
                image.commit();
            } else {
                image.root.bitmap.ptr.copies().for_each(|addr| image.write(addr, &[0x5a; BLOCK_BYTES]));
            }
            let bytes = || {
                let mut all = AlignedBuf::new(image.device.size_bytes() as usize);
                image.device.read_at(0, &mut all).unwrap();
                all
            };
            let open = |read_only: bool| {
                let options = OpenOptions {
                    store: StoreOptions { read_only, background: false, ..StoreOptions::default() },
                    dirty_bytes_max: 0,
                    clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
                    on_data_logged: None,
                };
                Filesystem::open(vec![image.device.clone() as Arc<dyn Device>], options)
            };
            let as_found = bytes();
            let (fs, report) = open(true).unwrap();
            assert_eq!(report.clean, clean);
            assert!(contents(&fs) == before, "clean: {clean}, beyond: {beyond}");
            refused(fs.create(Caller::ROOT, ROOT, b"new", 0o644), 30);
            assert_eq!(fs.space().free_bytes, 0, "what is free is not known");
            let mut kinds: Vec<Kind> =
                fs.check(true).unwrap().problems.iter().map(|problem| problem.kind).collect();
            kinds.dedup();
            let expected = if beyond { Kind::BitmapBeyondPool } else { Kind::ArrayUnreadable };
            assert_eq!(kinds, [expected], "clean: {clean}");
            fs.close().unwrap();
            let why = open(false).map(|_| ()).unwrap_err().to_string();
            for word in ["which blocks of the pool are in use", "varve check", "varve export", "-o ro"] {
                assert!(why.contains(word), "no {word:?} in: {why}");
            }
            assert!(as_found[..] == bytes()[..], "looking at it has changed it");
            let found = check(&image.device);
            assert!(found.iter().any(|problem| problem.kind == expected), "{found:?}");
            assert!(!found.iter().any(|problem| problem.kind == Kind::LogSenseless), "{found:?}");
        }
    }
}

// Goal: numbers of records that nothing checks, and that are as large as numbers get, make no sum go astray: what is asked for is done
// or refused, and the space of others stays what it is. Method: each number alone, in a pool that is opened and written to.
#[test]
fn numbers_without_a_bound_are_survived() {
    let world = build();
    let plants: [(&str, Plant); 5] = [
        ("reserved", |w| w.subvolume(|record| record.reserved_blocks = u64::MAX)),
        ("reserved, some", |w| w.subvolume(|record| record.reserved_blocks = 1 << 62)),
        ("attributes", |w| {
            let file = w.file;
            w.change(file, |record| (record.xattr_count, record.xattr_bytes) = (u32::MAX, u32::MAX));
        }),
        ("changes", |w| {
            let file = w.file;
            w.change(file, |record| record.change = u64::MAX);
        }),
        ("entries", |w| {
            let dir = w.dir;
            w.change(dir, |record| record.size = 1 << 62);
        }),
    ];
    for (what, plant) in plants {
        let mut damaged = world.again();
        plant(&mut damaged);
        let options = OpenOptions {
            store: StoreOptions { background: false, ..StoreOptions::default() },
            dirty_bytes_max: 0,
            clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
            on_data_logged: None,
        };
        let device: Arc<dyn Device> = damaged.image.device.clone();
        let (fs, _) = Filesystem::open(vec![device.clone()], options.clone()).unwrap();
        let full = what.starts_with("reserved");
        let how = Allocate::Reserve { keep_size: true };
        let set = fs.fallocate(Caller::ROOT, damaged.big, 4 << 20, 65536, how);
        assert_eq!(set.is_ok(), !full, "{what}: {set:?}");
        let set = fs.setxattr(damaged.file, b"user.new", &[1; 3000], XattrMode::Set);
        assert_eq!(set.is_ok(), matches!(what, "changes" | "entries"), "{what}: {set:?}");
        for name in [b"one", b"two"] {
            let made = fs.create(Caller::ROOT, damaged.dir, name, 0o644);
            assert_eq!(made.is_ok(), !full, "{what}: {made:?}");
        }
        fs.close().unwrap();
        let (fs, _) = Filesystem::open(vec![device], options).unwrap();
        assert_eq!(fs.lookup(ROOT, b"dir").unwrap().ino, damaged.dir, "{what}");
        assert_eq!(fs.lookup(damaged.dir, b"two").is_ok(), !full, "{what}");
        fs.unlink(damaged.dir, b"file").unwrap();
        fs.close().unwrap();
        assert_eq!(check(&damaged.image.device).is_empty(), !full && what != "entries", "{what}");
    }
}
