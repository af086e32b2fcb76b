//! Counters that somebody has forged, with all checksums redone: what is given out next, and how far it can be counted.

use super::*;
use varve_fs::internals::subvolume::local;

fn open(image: &Image, read_only: bool) -> Result<Filesystem, FsError> {
    let options = OpenOptions {
        store: StoreOptions { read_only, background: false, ..StoreOptions::default() },
        dirty_bytes_max: 0,
        clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
        on_data_logged: None,
    };
    Filesystem::open(vec![image.device.clone() as Arc<dyn Device>], options).map(|(fs, _)| fs)
}

/// Makes something below the second directory.
type Verb = fn(&Filesystem, InodeId) -> Result<(), FsError>;

const VERBS: [Verb; 6] = [
    |fs, dir| fs.create(Caller::ROOT, dir, b"made", 0o644).map(drop),
    |fs, dir| fs.mkdir(Caller::ROOT, dir, b"made", 0o755).map(drop),
    |fs, dir| {
        let new = NewNameless { mode: 0o644, umask: 0, linkable: true, set_gid_judged: false };
        fs.tmpfile(Caller::ROOT, dir, new).map(drop)
    },
    |fs, dir| {
        let mode = RenameMode::Whiteout { caller: Caller::ROOT, replace: true };
        fs.rename(ROOT, b"small", dir, b"moved", mode)
    },
    |fs, dir| {
        let small = fs.lookup(ROOT, b"small")?.ino;
        fs.clone_file(Caller::ROOT, small, dir, b"made").map(drop)
    },
    |fs, dir| fs.create_subvolume(Caller::ROOT, dir, b"made", 0o755).map(drop),
];

/// Runs `verb` in `dir` of the pool, when it can be opened for writing; says whether it was refused, and why.
fn refused_by(image: &Image, dir: InodeId, verb: Verb) -> Option<String> {
    let (tell, told) = mpsc::channel();
    let image = Image::of(&image.device);
    std::thread::spawn(move || {
        let result = open(&image, false).and_then(|fs| {
            // What it would replace is in memory.
            let _ = (fs.lookup(ROOT, b"small"), fs.lookup(ROOT, b"dir"), fs.getattr(dir));
            verb(&fs, dir)
        });
        let _ = tell.send(result.err().map(|why| why.to_string()));
    });
    told.recv_timeout(LONG).expect("it ends")
}

// Goal: no number that is in use is given out, which would have a file replace another, or a directory wait for itself. Method: root
// blocks whose counter is at the first number, a directory's, a file's, a subvolume's and the last one that is in use; each opened
// for writing, and something made, with a limit of time; opened for reading all is there.
#[test]
fn numbers_in_use_are_not_given_out() {
    let plain = build();
    let contents = |world: &World| {
        let fs = open(&world.image, true).unwrap();
        let read = |ino| fs.read(ino, 0, 3 << 20).unwrap();
        (read(world.small), read(world.file), read(world.link.min(world.small)))
    };
    let before = contents(&plain);
    let forked = subvolumes::build();
    let of_plain = [0, 1, 2, plain.dir.0, plain.small.0, plain.image.root.next_id - 1];
    let big = local(forked.big).0;
    let of_forked = [2, forked.dir.0, big, big + 2];
    for (world, floors) in [(&plain, &of_plain[..]), (&forked, &of_forked)] {
        for floor in floors {
            let mut damaged = world.again();
            damaged.image.root.next_id = *floor;
            damaged.image.commit();
            for verb in VERBS {
                let why = refused_by(&damaged.image, damaged.dir, verb);
                let why = why.unwrap_or_else(|| panic!("{floor} is given out"));
                assert!(why.contains("given out again") && why.contains("varve check"), "{floor}: {why}");
            }
            if std::ptr::eq(world, &plain) {
                assert!(contents(&damaged) == before);
            }
            assert!(check(&damaged.image.device).iter().any(|problem| problem.kind == Kind::IdNotTaken));
        }
        let sound = world.again();
        for verb in VERBS {
            assert_eq!(refused_by(&sound.image, sound.dir, verb), None);
        }
    }
}

fn opens_and_is_named(world: &World) {
    open(&world.image, false).map(drop).expect("opening sees nothing of it");
    let problems = check(&world.image.device);
    assert!(problems.iter().any(|problem| problem.kind == Kind::IdNotTaken), "{problems:?}");
}

// Goal: the check finds a forged counter that only the family of a file in its record contradicts: the next file would have the same
// family, and each would take the other's data away when it grows. Method: a small file that a snapshot shows is written to, and the counter put at the
// number which that gave it.
#[test]
fn the_family_of_a_file_in_its_record_is_taken() {
    let f = Fixture::new(64 * MIB);
    let inner = f.fs.create_subvolume(Caller::ROOT, ROOT, b"inner", 0o755).unwrap().ino;
    let small = f.fs.create(Caller::ROOT, inner, b"small", 0o644).unwrap().ino;
    f.write(small, 0, b"contents");
    f.fs.snapshot(inner, ROOT, b"taken", false, false).unwrap();
    f.write(small, 0, b"others");
    f.fs.close().unwrap();
    let image = Image::of(&f.device);
    let hasher = NameHasher::new(HASH_KIND_SIPHASH13, image.superblock.hash_seed).unwrap();
    let mut world = World { image, hasher, dir: inner, inner, file: small, small, link: small, big: small };
    assert_eq!(check(&world.image.device), []);
    let records = world.image.entries(TreeId::INODES).into_iter();
    let family = records.filter_map(|(_, value)| Some(InodeRecord::decode(&value).ok()?.data.family.0)).max();
    assert_eq!(family, Some(world.image.root.next_id - 1), "it is the newest");
    world.image.root.next_id -= 1;
    world.image.commit();
    opens_and_is_named(&world);
}

// Goal: so is that of a version which nobody stands at any more. Method: one, and the counter in front of it, and behind it.
#[test]
fn a_version_that_goes_is_taken() {
    let mut world = build();
    let (family, going) = (FamilyId(world.big.0), VersionId(world.image.root.next_id));
    let root = VersionRecord { children: 1, children_xor: going.0, ..VersionRecord::implicit(family) };
    let leaf = VersionRecord {
        parent: Some(VersionId(family.0)),
        key: VersionKey(going.0),
        refs: 0,
        ..VersionRecord::implicit(family)
    };
    world.image.put(TreeId::VERSIONS, &encode_key(family, VersionId(family.0)), &root.encode());
    world.image.put(TreeId::VERSIONS, &encode_key(family, going), &leaf.encode());
    world.image.put(TreeId::REAP, &reap_key(family, Work::Going(going)), &[]);
    world.change(world.big, |record| record.data.has_versions = true);
    let mut sound = world.again();
    sound.image.root.next_id += 1;
    sound.image.commit();
    assert_eq!(check(&sound.image.device), []);
    opens_and_is_named(&world);
}

// Goal: where opening cannot see which numbers are in use, an inode in memory is not replaced all the same. Method: the same with the
// last leaves of inodes and of data lost; the pool can be written to, and each verb that makes an inode with the number of the directory it is
// made in, or of a file that is known, ends, those that try it once with an error.
#[test]
fn an_inode_in_memory_is_not_replaced() {
    let world = build();
    for floor in [world.dir, world.small] {
        let mut damaged = world.again();
        damaged.image.root.next_id = floor.0;
        damaged.image.commit();
        for tree in [TreeId::INODES, TreeId::EXTENTS] {
            let (key, _) = damaged.image.entries(tree).pop().unwrap();
            damaged.spoil_leaf(tree, &key, 2);
        }
        for (at, verb) in VERBS[..5].iter().enumerate() {
            match refused_by(&damaged.image, damaged.dir, *verb) {
                // Whoever renames tries once more past damage, with the next number.
                None => assert_eq!(at, 3, "{floor:?} is given out"),
                Some(why) => assert!(why.contains("number of a new inode that is in use"), "{why}"),
            }
        }
    }
}

// Goal: no number is counted up to where the pool is never opened again. Method: each counter of the superblock and the root block far
// below, at, and beyond the bound of who writes, and at that of who reads: refused for writing, and read, or written to, left by a
// crash and closed, and opened again.
#[test]
fn no_number_is_counted_until_the_pool_cannot_be_opened() {
    const BOUND: u64 = 1 << 61;
    type Set = fn(&mut World, u64);
    let numbers: [(&str, Set); 7] = [
        ("generation", |w, n| w.image.superblock.generation = n),
        ("epoch", |w, n| w.image.superblock.epoch = n),
        ("sequence", |w, n| w.image.superblock.log_sequence = n),
        ("start", |w, n| w.image.superblock.log_start = n & !4095),
        ("position", |w, n| {
            (w.image.superblock.position, w.image.root.position) = (Lsn(n), Lsn(n));
        }),
        ("checkpoint", |w, n| w.image.root.generation = n),
        ("next", |w, n| w.image.root.next_id = n),
    ];
    let world = build();
    let read = |fs: &Filesystem, name: &[u8]| {
        let ino = fs.lookup(ROOT, name).unwrap().ino;
        fs.read(ino, 0, 100).unwrap()
    };
    for (what, set) in numbers {
        for number in [BOUND / 2, BOUND - 1, BOUND, BOUND + 4096, 2 * BOUND] {
            let mut damaged = world.again();
            set(&mut damaged, number);
            damaged.image.commit();
            let fs = match open(&damaged.image, false) {
                Ok(fs) => fs,
                Err(why) => {
                    assert!(number >= BOUND - 1, "{what} {number}: {why}");
                    assert!(why.to_string().contains("varve export"), "{what} {number}: {why}");
                    let fs = open(&damaged.image, true).unwrap();
                    assert_eq!(read(&fs, b"small"), b"contents", "{what} {number}");
                    continue;
                }
            };
            assert!(number <= BOUND, "{what} {number} is written to");
            let small = fs.lookup(ROOT, b"small").unwrap().ino;
            for round in 0..3 {
                fs.write(Caller::ROOT, small, round, b"new contents").unwrap();
                fs.sync().unwrap();
                fs.checkpoint().unwrap();
            }
            fs.write(Caller::ROOT, small, 0, b"new contents").unwrap();
            fs.sync().unwrap();
            let crashed = damaged.image.device.snapshot();
            fs.close().unwrap();
            for device in [Arc::new(crashed), damaged.image.device.clone()] {
                let fs = open(&Image::of(&device), true).unwrap();
                assert_eq!(read(&fs, b"small")[..12], *b"new contents", "{what} {number}");
            }
        }
    }
}
