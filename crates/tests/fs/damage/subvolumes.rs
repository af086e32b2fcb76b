//! Damage of a pool with subvolumes and snapshots.

use varve_format::record::subvolume::SubvolumePlace;

use super::single::Plant;
use super::*;

/// A subvolume in a directory, a snapshot of it in the first subvolume, both changed since, and one in the snapshot.
pub fn build() -> World {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let file = f.create(b"file");
    f.write(file, 0, &pattern(1, 10_000));
    let small = f.create(b"small");
    let link = f.fs.symlink(Caller::ROOT, ROOT, b"link", b"file").unwrap().ino;
    let inner = f.fs.create_subvolume(Caller::ROOT, dir, b"inner", 0o755).unwrap().ino;
    let big = f.fs.create(Caller::ROOT, inner, b"big", 0o644).unwrap().ino;
    f.write(big, 0, &pattern(3, 2 << 20));
    let below = f.fs.mkdir(Caller::ROOT, inner, b"below", 0o755).unwrap().ino;
    let taken = f.fs.snapshot(inner, ROOT, b"taken", false, false).unwrap();
    f.write(big, 4096, &pattern(4, 5000));
    f.fs.create(Caller::ROOT, taken, b"new", 0o644).unwrap();
    f.fs.unlink(taken, b"big").unwrap();
    let deep = f.fs.lookup(taken, b"below").unwrap().ino;
    f.fs.create_subvolume(Caller::ROOT, deep, b"deepest", 0o755).unwrap();
    assert_ne!(below, deep, "the snapshot shows its own numbers");
    f.fs.close().unwrap();
    let image = Image::of(&f.device);
    let hasher = NameHasher::new(HASH_KIND_SIPHASH13, image.superblock.hash_seed).unwrap();
    World { image, hasher, dir, inner, file, small, link, big }
}

/// The record of the subvolume with this name, and its key.
fn find(w: &World, name: &[u8]) -> (Vec<u8>, SubvolumeRecord) {
    let named = |record: &SubvolumeRecord| record.place.as_ref().is_some_and(|place| place.name == name);
    let all = w.image.entries(TreeId::SUBVOLUMES).into_iter();
    let mut all = all.map(|(key, value)| (key, SubvolumeRecord::decode(&value).unwrap()));
    all.find(|(_, record)| named(record)).expect("there is one of that name")
}

fn edit(w: &mut World, name: &[u8], edit: impl FnOnce(&mut SubvolumeRecord)) {
    let (key, mut record) = find(w, name);
    edit(&mut record);
    w.image.put(TreeId::SUBVOLUMES, &key, &record.encode());
}

fn place(w: &mut World, name: &[u8], change: impl FnOnce(&mut SubvolumePlace)) {
    edit(w, name, |record| change(record.place.as_mut().unwrap()));
}

fn id(w: &World, name: &[u8]) -> u64 {
    u64::from_be_bytes(find(w, name).0[..].try_into().unwrap())
}

/// Damage whose checksums are redone.
pub const FORKED: &[(Kind, Plant)] = &[
    (Kind::SubvolumeMalformed, |w| {
        let (key, record) = find(w, b"taken");
        w.image.put(TreeId::SUBVOLUMES, &key, &record.encode()[1..]);
    }),
    (Kind::SubvolumeMalformed, |w| edit(w, b"taken", |record| record.hash_kind = 200)),
    (Kind::SubvolumeMalformed, |w| edit(w, b"inner", |record| record.root = InodeId(12))),
    (Kind::SubvolumeVersion, |w| edit(w, b"taken", |record| record.version = VersionId(1 << 30))),
    (Kind::SubvolumeSlot, |w| {
        let slot = find(w, b"inner").1.slot;
        edit(w, b"taken", |record| record.slot = slot);
    }),
    (Kind::SubvolumeSlot, |w| edit(w, b"taken", |record| record.slot = 0)),
    (Kind::SubvolumePlace, |w| edit(w, b"taken", |record| record.place = None)),
    (Kind::SubvolumePlace, |w| place(w, b"taken", |place| place.parent = 1 << 30)),
    (Kind::SubvolumePlace, |w| place(w, b"taken", |place| place.directory = InodeId(1 << 30))),
    (Kind::SubvolumePlace, |w| {
        let file = w.file;
        place(w, b"taken", |place| place.directory = file);
    }),
    (Kind::SubvolumePlace, |w| place(w, b"taken", |place| place.position.0 += 1 << 8)),
    (Kind::SubvolumePlace, |w| {
        let there = find(w, b"taken").1.place;
        edit(w, b"inner", |record| record.place = there);
    }),
    (Kind::SubvolumePlace, |w| {
        // Where a file is.
        let position = NamePosition::new(w.hasher.hash(b"small"), 0);
        place(w, b"taken", |place| (place.name, place.position) = (b"small".to_vec(), position));
    }),
    (Kind::SubvolumePlace, |w| {
        // In a directory of the one that is in it.
        let deepest = id(w, b"deepest");
        place(w, b"taken", |place| (place.parent, place.directory) = (deepest, ROOT));
    }),
    (Kind::VersionHolders, |w| {
        let (key, _) = find(w, b"taken");
        w.image.delete(TreeId::SUBVOLUMES, &key);
    }),
    // Of the names: nothing of data is.
    (Kind::KeyframeMalformed, World::keyframe_of_names),
    (Kind::ExtentOwnerless, World::extent_of_names),
];

// Goal: a pool in which one snapshot cannot be had is not used as if nothing were, nor is anything written to it. Method:
// each damage that makes a subvolume unusable; opening says which, or, where only its version is missing, its first user
// hears of it and the others have theirs.
#[test]
fn who_opens_hears_which_subvolume_is_damaged() {
    let world = build();
    let unusable = [Kind::SubvolumeMalformed, Kind::SubvolumeVersion, Kind::SubvolumeSlot];
    for (kind, plant) in FORKED.iter().filter(|(kind, _)| unusable.contains(kind)) {
        let mut damaged = world.again();
        plant(&mut damaged);
        let writes = damaged.image.device.stats().writes_count;
        let options = OpenOptions {
            store: StoreOptions {
                cache_bytes: 1 << 20,
                background: false,
                read_only: true,
                ..StoreOptions::default()
            },
            dirty_bytes_max: 0,
            clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
            on_data_logged: None,
        };
        let opened = Filesystem::open(vec![damaged.image.device.clone()], options);
        let said = match opened {
            Err(error) => error.to_string(),
            Ok((fs, _)) => {
                assert_eq!(*kind, Kind::SubvolumeVersion, "a pool with {} is opened", kind.name());
                assert_eq!(fs.getattr(damaged.big).unwrap().size, 2 << 20);
                fs.lookup(ROOT, b"taken").expect_err("it has no version").to_string()
            }
        };
        assert!(said.contains("subvolume") || said.contains("version"), "{}: {said}", kind.name());
        assert_eq!(damaged.image.device.stats().writes_count, writes);
    }
}

// Goal: a pool that says that nothing in it is shared, and in which a snapshot has just been taken, is not taken for sound: what is
// written to the source would show in the snapshot. Method: the flag is cleared; without that nothing is found.
#[test]
fn what_is_shared_is_said_to_be() {
    let f = Fixture::new(64 * MIB);
    let inner = f.fs.create_subvolume(Caller::ROOT, ROOT, b"inner", 0o755).unwrap().ino;
    let file = f.fs.create(Caller::ROOT, inner, b"file", 0o644).unwrap().ino;
    f.write(file, 0, &pattern(1, 10_000));
    f.fs.sync().unwrap();
    f.fs.snapshot(inner, ROOT, b"taken", false, false).unwrap();
    f.fs.close().unwrap();
    let image = Image::of(&f.device);
    let hasher = NameHasher::new(HASH_KIND_SIPHASH13, image.superblock.hash_seed).unwrap();
    let mut world = World { image, hasher, dir: inner, inner, file, small: file, link: file, big: file };
    let kinds = |world: &World| -> Vec<Kind> {
        check(&world.image.device).iter().map(|problem| problem.kind).collect()
    };
    assert_eq!(kinds(&world), []);
    world.subvolume(|record| record.flags &= !varve_format::record::subvolume::SUBVOLUME_SHARING);
    world.image.commit();
    assert!(kinds(&world).contains(&Kind::SubvolumeVersion), "{:?}", kinds(&world));
}

// Goal: a subvolume that is in use and marked as being deleted, which the next opening would delete, is reported. Method: one that was never
// forked, and a snapshot that has changed since; and what is really being deleted is not reported, whatever is left of it.
#[test]
fn what_is_marked_as_deleted_and_is_not() {
    let deleting = varve_format::record::subvolume::SUBVOLUME_DELETING;
    for name in [&b"deepest"[..], b"taken"] {
        let mut world = build();
        assert_eq!(check(&world.image.device).len(), 0);
        edit(&mut world, name, |record| record.flags |= deleting);
        world.image.commit();
        let kinds: Vec<Kind> = check(&world.image.device).iter().map(|problem| problem.kind).collect();
        assert!(!kinds.is_empty(), "{}", name.escape_ascii());
        assert!(name != b"deepest" || kinds.contains(&Kind::SubvolumeVersion), "{kinds:?}");
    }
    let mut f = Fixture::new(64 * MIB);
    for (n, snapshot) in [false, true].into_iter().enumerate() {
        let name = format!("sub{n}");
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, name.as_bytes(), 0o755).unwrap().ino;
        for i in 0..300 {
            f.fs.create(Caller::ROOT, sub, format!("{i}").as_bytes(), 0o644).unwrap();
        }
        if snapshot {
            f.fs.snapshot(sub, ROOT, b"snapshot", false, false).unwrap();
            f.fs.create(Caller::ROOT, sub, b"after", 0o644).unwrap();
            f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
        }
        f.fs.delete_subvolume(ROOT, name.as_bytes()).unwrap();
    }
    // Some of it is reaped, step by step, and a crash may come after each.
    for _ in 0..200 {
        f.fs.sync().unwrap();
        let device = Arc::new(f.device.snapshot());
        assert_eq!(check(&device).iter().map(|problem| problem.kind).collect::<Vec<_>>(), []);
        if f.fs.core().reap.backlog() == 0 {
            break;
        }
        f.fs.core().reap_at_once(3).unwrap();
    }
    assert_eq!(f.fs.core().reap.backlog(), 0);
    f.reopen();
    f.check();
}

// Goal: what is lost in a subvolume is said by its path from the pool's root. Method: a block of a file in one is spoilt.
#[test]
fn what_is_lost_in_a_subvolume_has_a_path() {
    let world = build();
    let family = varve_fs::internals::subvolume::local(world.big).0.to_be_bytes();
    let of_big = world.image.entries(TreeId::EXTENTS).into_iter().find(|(key, _)| key.starts_with(&family));
    let extent = Extent::decode(&of_big.expect("the file has extents").1).unwrap();
    world.image.write(extent.addr, &[0x5a; BLOCK_BYTES]);
    let problems = check(&world.image.device);
    let path = problems.iter().find_map(|p| p.path.clone()).expect("a problem with a path");
    assert!([&b"/dir/inner/big"[..], b"/taken/big"].contains(&&path[..]), "{problems:?}");
    assert_eq!(problems[0].kind, Kind::DataUnreadable);
}
