//! Flags of chattr: who sets them, what they refuse, and where they stay.

use super::*;

const I: FileFlags = FileFlags::IMMUTABLE;
const A: FileFlags = FileFlags::APPEND_ONLY;
const USER: Caller = Caller { uid: 7, gid: 8 };

type Done = Result<(), FsError>;
/// What is tried on a file, a directory and another file, and whether what is only added to takes it.
type Try = (&'static str, bool, fn(&Filesystem, InodeId, InodeId, InodeId) -> Done);

fn set(fs: &Filesystem, ino: InodeId, set: SetAttr) -> Done {
    fs.setattr(Caller::ROOT, ino, set).map(drop)
}

fn at(seconds: i64) -> Option<SetTime> {
    Some(SetTime::At(Timestamp { seconds, nanoseconds: 0 }))
}

fn write(fs: &Filesystem, ino: InodeId, offset: u64) -> Done {
    fs.write(Caller::ROOT, ino, offset, b"x").map(drop)
}

const TRIES: [Try; 29] = [
    ("write inside", false, |fs, file, _, _| write(fs, file, 3)),
    ("write beyond", false, |fs, file, _, _| write(fs, file, 100)),
    ("append", true, |fs, file, _, _| write(fs, file, fs.getattr(file)?.size)),
    ("truncate", false, |fs, file, _, _| set(fs, file, SetAttr { size: Some(5), ..SetAttr::default() })),
    ("grow", false, |fs, file, _, _| set(fs, file, SetAttr { size: Some(500), ..SetAttr::default() })),
    ("open to cut", false, |fs, file, _, _| fs.open_inode(Caller::ROOT, file, true)),
    ("chmod", false, |fs, file, _, _| set(fs, file, SetAttr { mode: Some(0o600), ..SetAttr::default() })),
    ("touch", true, |fs, file, _, _| {
        set(fs, file, SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() })
    }),
    ("set nothing", true, |fs, file, _, _| set(fs, file, SetAttr::default())),
    ("touch one time", false, |fs, file, _, _| {
        set(fs, file, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() })
    }),
    ("touch the other", false, |fs, _, dir, _| {
        set(fs, dir, SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() })
    }),
    ("set a time", false, |fs, file, _, _| set(fs, file, SetAttr { mtime: at(5), ..SetAttr::default() })),
    ("reserve", true, |fs, file, _, _| {
        fs.fallocate(Caller::ROOT, file, 0, 50_000, Allocate::Reserve { keep_size: true })
    }),
    ("punch", false, |fs, file, _, _| fs.fallocate(Caller::ROOT, file, 0, 4096, Allocate::Punch)),
    ("insert", false, |fs, file, _, _| fs.insert_range(Caller::ROOT, file, 0, 4096)),
    ("copy into", false, |fs, file, _, other| {
        fs.copy_range(Caller::ROOT, (other, 0), (file, 0), 8192).map(drop)
    }),
    ("clone into", false, |fs, file, _, other| fs.clone_range(Caller::ROOT, (other, 0), (file, 0), 8192)),
    ("set an attribute", false, |fs, file, _, _| fs.setxattr(file, b"user.y", b"y", XattrMode::Set)),
    ("remove an attribute", false, |fs, file, _, _| fs.removexattr(file, b"user.x")),
    ("link", false, |fs, file, _, _| fs.link(file, ROOT, b"second").map(drop)),
    ("rename", false, |fs, _, _, _| fs.rename(ROOT, b"file", ROOT, b"new", RenameMode::Replace)),
    ("rename over", false, |fs, _, _, _| fs.rename(ROOT, b"other", ROOT, b"file", RenameMode::Replace)),
    ("exchange", false, |fs, _, _, _| fs.rename(ROOT, b"other", ROOT, b"file", RenameMode::Exchange)),
    ("unlink", false, |fs, _, _, _| fs.unlink(ROOT, b"file")),
    ("make in it", true, |fs, _, dir, _| fs.create(Caller::ROOT, dir, b"new", 0o644).map(drop)),
    ("move into it", true, |fs, _, dir, _| fs.rename(ROOT, b"other", dir, b"moved", RenameMode::Replace)),
    ("unlink in it", false, |fs, _, dir, _| fs.unlink(dir, b"inside")),
    ("rename in it", false, |fs, _, dir, _| fs.rename(dir, b"inside", dir, b"n", RenameMode::Replace)),
    ("remove it", false, |fs, _, _, _| fs.rmdir(ROOT, b"dir")),
];

// Goal: each verb that would change what must not change is refused with EPERM and changes nothing, and what is only added to takes
// what Linux lets it take. Method: a file and a directory with either flag, each verb once; then without flags, once more.
#[test]
fn what_flags_refuse() {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let file = f.create(b"file");
    let other = f.create(b"other");
    f.write(file, 0, b"twelve bytes");
    f.write(other, 0, &pattern(1, 20_000));
    f.fs.create(Caller::ROOT, dir, b"inside", 0o644).unwrap();
    f.fs.setxattr(file, b"user.x", b"x", XattrMode::Set).unwrap();
    // A rename over something logs what waits of its source before it looks.
    f.fs.sync().unwrap();
    for (flag, what_it_is) in [(I, "immutable"), (A, "only added to")] {
        for ino in [file, dir] {
            f.fs.set_flags(Caller::ROOT, ino, flag).unwrap();
        }
        for (what, taken, change) in TRIES {
            let before = f.fs.position();
            match change(&f.fs, file, dir, other) {
                Ok(()) if taken && flag == A => {}
                Err(FsError::NotPermitted) if !taken || flag == I => {
                    assert_eq!(f.fs.position(), before, "{what}");
                }
                result => panic!("{what} of what is {what_it_is}: {result:?}"),
            }
        }
        // A directory has no bytes, at whatever place.
        for offset in [0, 1, 4096] {
            refused(write(&f.fs, dir, offset), if flag == A { 21 } else { 1 });
        }
        let appended: &[u8] = if flag == A { b"twelve bytesx" } else { b"twelve bytes" };
        assert_eq!(f.fs.read(file, 0, 100).unwrap(), appended);
    }
    for ino in [file, dir] {
        f.fs.set_flags(Caller::ROOT, ino, FileFlags::NONE).unwrap();
    }
    write(&f.fs, file, 0).unwrap();
    f.fs.unlink(dir, b"inside").unwrap();
    f.fs.rename(ROOT, b"file", dir, b"file", RenameMode::Replace).unwrap();
    f.check();
}

// Goal: flags are set by those who may, are kept, by snapshots too, and new inodes begin with what Linux gives them. Method: an owner
// and the superuser; a kill; a snapshot, which is changed; a clone; new inodes of each kind in a directory with all flags.
#[test]
fn where_flags_stay() {
    let mut f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let file = f.fs.create(USER, ROOT, b"file", 0o644).unwrap().ino;
    f.write(file, 0, &pattern(1, 20_000));
    let flags = |f: &Fixture, ino| f.fs.getattr(ino).unwrap().flags;
    refused(f.fs.set_flags(Caller { uid: 9, gid: 9 }, file, FileFlags::NO_DUMP), 1);
    refused(f.fs.set_flags(USER, file, I), 1);
    refused(f.fs.set_flags(USER, dir, FileFlags::NO_DUMP), 1);
    refused(f.fs.set_flags(USER, file, FileFlags::DURABLE_NAMES), 95);
    let link = f.fs.symlink(Caller::ROOT, ROOT, b"link", b"x").unwrap().ino;
    refused(f.fs.set_flags(Caller::ROOT, link, FileFlags::NO_DUMP), 95);
    assert!(!f.fs.core().flagged(), "nobody has to look yet");
    f.fs.set_flags(USER, file, FileFlags::NO_DUMP | FileFlags::DURABLE).unwrap();
    f.fs.set_flags(Caller::ROOT, file, FileFlags::NO_DUMP | I).unwrap();
    refused(f.fs.set_flags(USER, file, FileFlags::NO_DUMP), 1);
    f.fs.set_flags(USER, file, I).unwrap();
    f.fs.set_flags(Caller::ROOT, dir, FileFlags::ALL).unwrap();
    f.fs.sync().unwrap();
    f.kill();
    assert!(f.fs.core().flagged());
    assert_eq!((flags(&f, file), flags(&f, dir), flags(&f, ROOT)), (I, FileFlags::ALL, FileFlags::NONE));
    refused(f.fs.write(Caller::ROOT, file, 0, b"x"), 1);

    let snapshot = f.fs.snapshot(ROOT, ROOT, b"snapshot", false, false).unwrap();
    let there = f.fs.lookup(snapshot, b"file").unwrap();
    assert_eq!(there.flags, I);
    refused(f.fs.unlink(snapshot, b"file"), 1);
    f.fs.set_flags(Caller::ROOT, there.ino, FileFlags::NONE).unwrap();
    f.fs.write(Caller::ROOT, there.ino, 0, b"x").unwrap();
    assert_eq!(flags(&f, file), I);
    assert_eq!(f.fs.clone_file(Caller::ROOT, file, ROOT, b"clone").unwrap().flags, FileFlags::NONE);

    f.fs.set_flags(Caller::ROOT, dir, FileFlags::ALL ^ I).unwrap();
    let few = FileFlags::NO_DUMP | FileFlags::NO_ACCESS_TIME;
    let below = f.fs.mkdir(Caller::ROOT, dir, b"below", 0o755).unwrap();
    assert_eq!(below.flags, few | FileFlags::DURABLE | FileFlags::DURABLE_NAMES);
    assert_eq!(f.fs.create(USER, dir, b"new", 0o644).unwrap().flags, few | FileFlags::DURABLE);
    assert_eq!(f.fs.symlink(USER, dir, b"link", b"x").unwrap().flags, few);
    for (ino, asked) in [(dir, true), (below.ino, true), (file, false)] {
        assert_eq!((f.fs.wants_durable(ino, true), f.fs.wants_durable(ino, false)), (asked, asked));
    }
    f.fs.set_flags(Caller::ROOT, below.ino, FileFlags::DURABLE_NAMES).unwrap();
    assert_eq!((f.fs.wants_durable(below.ino, true), f.fs.wants_durable(below.ino, false)), (true, false));
    f.check();
}

// Goal: reading leaves the access time of a file with the flag as it is. Method: two files, one with it.
#[test]
fn reading_is_not_noted() {
    let f = Fixture::new(64 * MIB);
    let (noted, not) = (f.create(b"noted"), f.create(b"not"));
    f.fs.set_flags(Caller::ROOT, not, FileFlags::NO_ACCESS_TIME).unwrap();
    for (ino, changes) in [(noted, true), (not, false)] {
        let before = f.fs.getattr(ino).unwrap().atime;
        f.fs.note_access(ino, AccessRule::Always).unwrap();
        assert_eq!(f.fs.getattr(ino).unwrap().atime != before, changes);
    }
}

// Goal: a subvolume whose root must not lose its name keeps it, whoever asks in whatever way, and only for as long; what is immutable
// in it does not keep it, nor do the flags of what cannot be changed. Method: either flag on a root with something in it, without, and
// with a subvolume in it; then without flags; a read-only snapshot of an immutable one.
#[test]
fn flags_of_roots_of_subvolumes() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let empty = f.fs.create_subvolume(Caller::ROOT, ROOT, b"empty", 0o755).unwrap().ino;
    let full = f.fs.create_subvolume(Caller::ROOT, ROOT, b"full", 0o755).unwrap().ino;
    f.fs.create_subvolume(Caller::ROOT, full, b"inner", 0o755).unwrap();
    let file = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    f.fs.set_flags(Caller::ROOT, file, I).unwrap();
    let names = [b"sub".to_vec(), b"empty".to_vec(), b"full".to_vec()];
    let kept = |f: &Fixture| {
        for name in &names {
            refused(f.fs.delete_subvolume(ROOT, name), 1);
            refused(f.fs.rmdir(ROOT, name), 1);
            refused(f.fs.rename(ROOT, name, ROOT, b"moved", RenameMode::Replace), 1);
        }
    };
    for flag in [A, I] {
        [sub, empty, full].iter().for_each(|root| f.fs.set_flags(Caller::ROOT, *root, flag).unwrap());
        kept(&f);
    }
    let frozen = f.fs.snapshot(sub, ROOT, b"frozen", true, true).unwrap();
    f.fs.snapshot(sub, ROOT, b"copy", false, true).unwrap();
    f.fs.sync().unwrap();
    f.kill();
    kept(&f);
    refused(f.fs.delete_subvolume(ROOT, b"copy"), 1);
    assert_eq!(f.fs.getattr(frozen).unwrap().flags, I);
    refused(f.fs.set_flags(Caller::ROOT, frozen, FileFlags::NONE), 30);
    f.fs.rename(ROOT, b"frozen", ROOT, b"still", RenameMode::Replace).unwrap();
    f.fs.delete_subvolume(ROOT, b"still").unwrap();
    let roots = names.iter().map(|name| name.as_slice()).chain([&b"copy"[..]]);
    for name in roots.clone() {
        let root = f.fs.lookup(ROOT, name).unwrap().ino;
        f.fs.set_flags(Caller::ROOT, root, FileFlags::NONE).unwrap();
    }
    refused(f.fs.delete_subvolume(ROOT, b"full"), 39);
    f.fs.delete_subvolume(f.fs.lookup(ROOT, b"full").unwrap().ino, b"inner").unwrap();
    f.fs.rmdir(ROOT, b"empty").unwrap();
    roots.filter(|name| *name != b"empty").for_each(|name| f.fs.delete_subvolume(ROOT, name).unwrap());
    f.fs.maintain().unwrap();
    f.check();
    assert_eq!(f.list(ROOT), Vec::<Vec<u8>>::new());
}
