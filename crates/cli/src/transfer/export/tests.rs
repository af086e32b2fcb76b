//! Single entries, on targets that tests play.

use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::RenameFlags;
use varve_device::{Device, MemoryDevice};
use varve_engine::{FamilyId, Store, Transaction, TreeId, VersionKey};
use varve_format::record::inode::{InodeRecord, inode_key};
use varve_format::record::name::NameRecord;
use varve_format::record::subvolume::FIRST_SUBVOLUME;
use varve_fs::{Caller, ROOT_INODE, SetAttr, SetTime, StoreOptions, Timestamp, XattrMode};

use super::*;
use crate::transfer::tally::Summary;
use crate::transfer::test_pool;

/// A pool in memory.
fn pool() -> Filesystem {
    test_pool::open(test_pool::format())
}

/// A file in its root whose contents are its name and which all have one time.
fn file(pool: &Filesystem, name: &str) -> InodeId {
    let ino = pool.create(Caller::ROOT, ROOT_INODE, name.as_bytes(), 0o644).expect("a file").ino;
    pool.write(Caller::ROOT, ino, 0, name.as_bytes()).expect("contents");
    let mtime = Some(SetTime::At(Timestamp { seconds: 1, nanoseconds: 0 }));
    pool.setattr(Caller::ROOT, ino, SetAttr { mtime, ..SetAttr::default() }).expect("a time");
    ino
}

/// An export to `out` and its level.
fn begin<'a>(pool: &'a Filesystem, out: &'a Path, fresh: bool) -> (Export<'a>, Level) {
    let root = host::open_directory(out).expect("a directory");
    let target = root.try_clone().expect("a descriptor");
    let mut export = Export::new(pool, out, root, Tally::start("export", String::new(), String::new()));
    assert!(export.begin().is_ok());
    let level = export.level(pool.getattr(ROOT_INODE).expect("a root"), target, fresh);
    (export, level.unwrap_or_else(|_| panic!("a level")))
}

/// Exports one entry. False: it was left out.
fn entry(export: &mut Export<'_>, level: &Level, name: &str, ino: InodeId) -> bool {
    export.entry(level, Path::new(name), name.as_bytes(), ino).is_ok()
}

// Goal: where a target takes two names for one, the first of two files or directories stays what it is, in a directory that is made, in one
// that was there, and when the export is run again. Method: what has been exported is renamed to the other name before that is.
#[test]
fn names_that_a_target_takes_for_one() {
    let pool = pool();
    let (upper, lower) = (file(&pool, "A"), file(&pool, "a"));
    let directory = |name: &[u8]| pool.mkdir(Caller::ROOT, ROOT_INODE, name, 0o755).expect("a directory").ino;
    let (big, small) = (directory(b"D"), directory(b"d"));
    let linked = file(&pool, "L");
    pool.link(linked, ROOT_INODE, b"x").expect("a link");
    for fresh in [true, false] {
        let scratch = tempfile::tempdir().expect("a directory");
        let out = scratch.path();
        let fold = |from: &str, to: &str| std::fs::rename(out.join(from), out.join(to)).expect("it is there");
        for run in 0..2 {
            let (mut export, level) = begin(&pool, out, fresh && run == 0);
            assert!(entry(&mut export, &level, "A", upper));
            fold("A", "a");
            assert!(!entry(&mut export, &level, "a", lower), "{fresh} {run}");
            assert_eq!(std::fs::read(out.join("a")).expect("it is there"), b"A");
            fold("a", "A");
            assert!(entry(&mut export, &level, "D", big));
            fold("D", "d");
            assert!(!entry(&mut export, &level, "d", small), "{fresh} {run}");
            fold("d", "D");
            // Another name of a file in the place of a copy.
            assert!(entry(&mut export, &level, "L", linked));
            fold("A", "x");
            assert!(!entry(&mut export, &level, "x", linked), "{fresh} {run}");
            fold("x", "A");
            assert!(export.finish_waiting().is_ok());
            assert_eq!(export.tally.summary.files_equal_count, 2 * run);
        }
    }
}

// Goal: what is a further name of a file in the target, and of none in the pool, is replaced, and the file stays. Method: two names in a
// directory that was there.
#[test]
fn names_of_one_file_part() {
    let pool = pool();
    let (first, second) = (file(&pool, "p"), file(&pool, "q"));
    pool.link(first, ROOT_INODE, b"r").expect("a link");
    let scratch = tempfile::tempdir().expect("a directory");
    let out = scratch.path();
    let (mut export, level) = begin(&pool, out, true);
    assert!(entry(&mut export, &level, "p", first));
    assert!(export.finish_waiting().is_ok());
    std::fs::hard_link(out.join("p"), out.join("q")).expect("a link");
    let (mut export, level) = begin(&pool, out, false);
    assert!(entry(&mut export, &level, "p", first) && entry(&mut export, &level, "q", second));
    assert_eq!((export.tally.summary.files_equal_count, export.tally.summary.files_copied_count), (1, 1));
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect("it is there");
    assert_eq!((read("p"), read("q")), ("p".to_owned(), "q".to_owned()));
}

// Goal: a file that has lost its name gives what has it by then none of its attributes. Method: another thread exchanges the two as soon as
// the name is there.
#[test]
fn what_takes_a_name_gets_no_attributes() {
    if !gives_to_others("what_takes_a_name_gets_no_attributes") {
        return;
    }
    let pool = pool();
    let from = theirs(&pool, file(&pool, "f"));
    for _ in 0..300 {
        let scratch = tempfile::tempdir().expect("a directory");
        let out = scratch.path();
        let others = others(&out.join("others"));
        let (mut export, level) = begin(&pool, out, true);
        let dir = host::open_directory(out).expect("a directory");
        let exchange = move || {
            let begun = Instant::now();
            while rustix::fs::renameat_with(&dir, "others", &dir, "f", RenameFlags::EXCHANGE).is_err() {
                assert!(begun.elapsed() < Duration::from_secs(20), "it gets no name");
            }
        };
        let exchange = std::thread::spawn(exchange);
        let _ = entry(&mut export, &level, "f", from);
        exchange.join().expect("it has its name, at the latest now");
        let _ = export.finish_waiting();
        assert_others(&others);
    }
}

// Goal: somebody else's file is given to nobody for looking like the copy, nor does it get the times of what it has replaced. Method: one of the
// size and time of the pool's in its place, before the export; then one that comes there while the copy waits for its times.
#[test]
fn what_looks_alike_is_not_given_away() {
    if !gives_to_others("what_looks_alike_is_not_given_away") {
        return;
    }
    let pool = pool();
    let from = theirs(&pool, file(&pool, "f"));
    let attr = pool.getattr(from).expect("it is there");
    let scratch = tempfile::tempdir().expect("a directory");
    let out = scratch.path();
    let alike = || {
        let others = others(&out.join("others"));
        others.set_len(attr.size).expect("room");
        rustix::fs::futimens(&others, &host::times(attr.atime, attr.mtime)).expect("its times");
        std::fs::rename(out.join("others"), out.join("f")).expect("its name");
        others
    };
    let before = alike();
    let (mut export, level) = begin(&pool, out, false);
    assert!(entry(&mut export, &level, "f", from));
    assert_others(&before);
    assert_eq!(std::fs::metadata(out.join("f")).expect("a copy").uid(), 1234);
    let late = alike();
    let moved = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 2, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 2, tv_nsec: 0 },
    };
    rustix::fs::futimens(&late, &moved).expect("its times");
    assert!(export.finish_waiting().is_ok());
    assert_eq!(late.metadata().expect("it is open").mtime(), 2);
    assert_eq!(export.tally.summary.errors_count, 1);
    // Nor its flags, which come last.
    let had = host::flags(late.as_fd());
    export.flag_at(Path::new("f"), FileFlags::NO_DUMP, attr.uid);
    assert_eq!((host::flags(late.as_fd()), export.tally.summary.errors_count), (had, 2));
    // Where the target keeps no owners, that of a copy says nothing.
    let have = HostStat { size: attr.size, mtime: attr.mtime, ..host::stat_of(&late).expect("it is open") };
    assert!(!export.is_equal(&attr, &have, &level, b"f"));
    export.ownerless.insert(have.id.0);
    assert!(export.is_equal(&attr, &have, &level, b"f"));
}

/// Whether files can be given to others; says loudly that `test` is skipped when not.
fn gives_to_others(test: &str) -> bool {
    let can = rustix::process::geteuid().is_root();
    if !can {
        crate::tell(&format!("*** SKIPPED {test}: only root gives files to others ***"));
    }
    can
}

// Goal: what was replaced since it was looked at gets no attributes of the copy that was there. Method: a file and a link that others are
// renamed over.
#[test]
fn what_was_replaced_is_not_mended() {
    if !gives_to_others("what_was_replaced_is_not_mended") {
        return;
    }
    let pool = pool();
    let from = theirs(&pool, file(&pool, "f"));
    let link = pool.symlink(Caller::ROOT, ROOT_INODE, b"l", b"there").expect("a link").ino;
    let link = theirs(&pool, link);
    let scratch = tempfile::tempdir().expect("a directory");
    let out = scratch.path();
    let (mut export, level) = begin(&pool, out, true);
    assert!(entry(&mut export, &level, "f", from) && entry(&mut export, &level, "l", link));
    let others = others(&out.join("others"));
    std::os::unix::fs::symlink("there", out.join("another")).expect("a link");
    for (name, with, ino) in [("f", "others", from), ("l", "another", link)] {
        let looked_at = host::stat_at(level.target.as_fd(), name.as_bytes()).expect("it is there");
        std::fs::rename(out.join(with), out.join(name)).expect("its name");
        let attr = pool.getattr(ino).expect("it is there");
        let mended = export.mend(&level, Path::new(name), name.as_bytes(), &attr, &looked_at);
        assert!(matches!(mended, Err(Trouble::Entry(_))), "{name}");
    }
    assert_others(&others);
    assert_eq!(std::fs::symlink_metadata(out.join("l")).expect("it is there").uid(), 0);
}

/// Gives an inode of the pool to somebody.
fn theirs(pool: &Filesystem, ino: InodeId) -> InodeId {
    pool.setattr(Caller::ROOT, ino, SetAttr { uid: Some(1234), ..SetAttr::default() }).expect("an owner");
    if pool.getattr(ino).expect("it is there").kind == FileKind::File {
        pool.setattr(Caller::ROOT, ino, SetAttr { mode: Some(0o666), ..SetAttr::default() }).expect("bits");
        pool.setxattr(ino, b"user.given", b"1", XattrMode::Set).expect("an attribute");
    }
    ino
}

/// A private file, of root.
fn others(path: &Path) -> std::fs::File {
    let file = std::fs::File::create(path).expect("a file");
    file.set_permissions(Permissions::from_mode(0o600)).expect("bits");
    file
}

/// Nobody has touched it.
fn assert_others(file: &std::fs::File) {
    let have = file.metadata().expect("it is open");
    assert_eq!((have.uid(), have.mode() & 0o7777), (0, 0o600));
    let given = rustix::fs::fgetxattr(file, "user.given", &mut [0; 8][..]);
    assert!(matches!(given, Err(Errno::NODATA | Errno::OPNOTSUPP)));
}

// Goal: a directory takes a file's place when it is there, and not before. Method: a target that is full, for which there is room later.
#[test]
fn a_directory_takes_a_place_when_it_is_there() {
    let Some(target) = small_tmpfs(3) else {
        crate::tell("*** SKIPPED a_directory_takes_a_place_when_it_is_there: no tmpfs can be made here ***");
        return;
    };
    let pool = pool();
    let ino = pool.mkdir(Caller::ROOT, ROOT_INODE, b"d", 0o755).expect("a directory").ino;
    let out = PathBuf::from(format!("/proc/self/fd/{}", target.as_raw_fd()));
    std::fs::write(out.join("d"), "older").expect("a file");
    std::fs::write(out.join("other"), "").expect("a file");
    let (mut export, level) = begin(&pool, &out, false);
    assert!(!entry(&mut export, &level, "d", ino), "there is no room");
    assert_eq!(std::fs::read(out.join("d")).expect("it is there"), b"older");
    std::fs::remove_file(out.join("other")).expect("it is there");
    let (mut export, level) = begin(&pool, &out, false);
    assert!(entry(&mut export, &level, "d", ino));
    assert!(out.join("d").is_dir());
    assert_eq!(std::fs::read_dir(&out).expect("a directory").count(), 1);
}

/// A tmpfs for so many inodes, mounted nowhere.
fn small_tmpfs(inodes: u32) -> Option<OwnedFd> {
    unmounted("tmpfs", &[("nr_inodes", inodes.to_string())])
}

/// A filesystem in memory, mounted nowhere.
fn unmounted(kind: &str, options: &[(&str, String)]) -> Option<OwnedFd> {
    use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};
    let context = mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    for (option, value) in options {
        mount::fsconfig_set_string(&context, *option, value).ok()?;
    }
    mount::fsconfig_create(&context).ok()?;
    mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
}

/// Gives an inode of the pool bits, those of the group being the mask, and a list that names user 1000 and lets the group do `group`.
fn listed(pool: &Filesystem, ino: InodeId, mode: u32, group: u16) {
    pool.setattr(Caller::ROOT, ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).expect("bits");
    let class = |shift: u32| (mode >> shift & 7) as u16;
    let entries = [
        (0x01, class(6), u32::MAX),
        (0x02, 7, 1000),
        (0x04, group, u32::MAX),
        (0x10, class(3), u32::MAX),
        (0x20, class(0), u32::MAX),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(u32::to_le_bytes(id));
    }
    pool.setxattr(ino, b"system.posix_acl_access", &list, XattrMode::Set).expect("a list");
    assert_eq!(pool.getattr(ino).expect("it is there").mode, mode);
}

// Goal: where a target takes no access lists nobody may do what the list kept from him: the group has what the list gives it, within its
// mask, and the rest its bits. Method: files, a pipe and directories onto a ramfs, which takes none; again, with bits that an older export
// gave; a directory that keeps out its owner, who is not root.
#[test]
fn a_list_that_is_left_out_lets_nobody_in() {
    let Some(target) = unmounted("ramfs", &[]) else {
        crate::tell("*** SKIPPED a_list_that_is_left_out_lets_nobody_in: no ramfs can be made here ***");
        return;
    };
    let pool = pool();
    let wanted = [("none", 0o660, 0, 0o600), ("some", 0o674, 5, 0o654), ("masked", 0o640, 7, 0o640)];
    for (name, mode, group, _) in wanted {
        listed(&pool, file(&pool, name), mode, group);
    }
    let pipe = pool.mknod(Caller::ROOT, ROOT_INODE, b"pipe", FileKind::Fifo, 0o600, 0).expect("a pipe").ino;
    listed(&pool, pipe, 0o662, 0);
    for (name, mode) in [(&b"open"[..], 0o775), (b"closed", 0o575)] {
        let ino = pool.mkdir(Caller::ROOT, ROOT_INODE, name, 0o700).expect("a directory").ino;
        listed(&pool, ino, mode, 1);
    }
    let out = PathBuf::from(format!("/proc/self/fd/{}", target.as_raw_fd()));
    let bits = |name: &str| std::fs::metadata(out.join(name)).expect("it is there").mode() & 0o7777;
    for run in 0..2 {
        let (mut export, _) = begin(&pool, &out, false);
        export.superuser = false;
        let from = pool.getattr(ROOT_INODE).expect("a root");
        assert!(export.tree(from).is_ok() && export.finish_waiting().is_ok());
        for (path, mode) in std::mem::take(&mut export.bits_last) {
            export.bits_at(&path, mode);
        }
        let summary = &export.tally.summary;
        assert_eq!((summary.errors_count, summary.xattrs_left_out_count), (0, 6));
        assert_eq!(summary.files_equal_count, 3 * run);
        let expected = wanted.iter().map(|(name, .., expected)| (*name, *expected));
        for (name, expected) in expected.chain([("pipe", 0o602), ("open", 0o715), ("closed", 0o515)]) {
            assert_eq!(bits(name), expected, "{name}: {:o}", bits(name));
            std::fs::set_permissions(out.join(name), Permissions::from_mode(0o777)).expect("its bits");
        }
    }
}

// Goal: who is named in a list, to do less than others may or nothing at all, may do no more without it. Method: lists of one entry beside the
// usual ones, and what is left of a mode.
#[test]
fn who_is_named_in_a_list_gets_no_more_without_it() {
    let left = |mode: u32, named: (u16, u16), mask: u16| {
        let entries = [(0x01, 6), named, (0x04, 4), (0x10, mask), (0x20, 4)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions) in entries {
            list.extend([tag.to_le_bytes(), u16::to_le_bytes(permissions)].concat());
            list.extend(1000u32.to_le_bytes());
        }
        mode & attributes::bits_without(&list)
    };
    assert_eq!(left(0o644, (0x02, 0), 4), 0o600, "a user, who may be in the group or not");
    assert_eq!(left(0o644, (0x08, 0), 4), 0o640, "a group: who is in both may do what either may");
    assert_eq!(left(0o644, (0x02, 7), 4), 0o644);
    assert_eq!(left(0o664, (0x02, 6), 6), 0o644);
    assert_eq!(left(0o604, (0x02, 7), 0), 0o600, "the mask holds for him, too");
    assert_eq!(0o6755 & attributes::bits_without(b"no list"), 0o6700);
}

// Goal: a target that is full is told as that, and not as one that takes no attributes; one with room that says it is full of large ones is
// one that does not take them. Method: a tmpfs with room for a file and none for its attribute; then numbers.
#[test]
fn a_full_target_is_no_poor_one() {
    let Some(target) = small_tmpfs(3) else {
        crate::tell("*** SKIPPED a_full_target_is_no_poor_one: no tmpfs can be made here ***");
        return;
    };
    let pool = pool();
    let ino = file(&pool, "f");
    pool.setxattr(ino, b"user.large", &[7; 1500], XattrMode::Set).expect("an attribute");
    let out = PathBuf::from(format!("/proc/self/fd/{}", target.as_raw_fd()));
    let (mut export, level) = begin(&pool, &out, true);
    match export.entry(&level, Path::new("f"), b"f", ino) {
        Err(Trouble::Entry(error)) => assert!(error.contains("make room"), "{error}"),
        _ => panic!("there is no room"),
    }
    assert_eq!(export.tally.summary.xattrs_left_out_count, 0);
    assert_eq!(std::fs::read(out.join("f")).expect("its contents count for more"), b"f");

    let mut room = rustix::fs::fstatvfs(&target).expect("it has some");
    (room.f_bsize, room.f_frsize, room.f_bavail) = (4096, 4096, 4096);
    (room.f_files, room.f_favail) = (0, 0);
    assert!(attributes::is_too_large(4000, &room) && !attributes::is_too_large(2000, &room));
    room.f_bavail -= 1;
    assert!(!attributes::is_too_large(4000, &room));
    (room.f_bavail, room.f_files) = (4096, 9);
    assert!(!attributes::is_too_large(4000, &room));
}

// Goal: an export of a forged pool ends, with each directory once and all else told. Method: entries of a directory that lead to itself, to
// the one above and, from there, to it once more; then the directory that is exported lies in one that lies in it, by all records.
#[test]
fn directories_in_each_other_are_told() {
    let device = test_pool::format();
    let pool = test_pool::open(device.clone());
    let mkdir = |dir, name: &[u8]| pool.mkdir(Caller::ROOT, dir, name, 0o755).expect("a directory").ino;
    let outer = mkdir(ROOT_INODE, b"outer");
    let inner = mkdir(outer, b"inner");
    mkdir(outer, b"twin");
    for name in [&b"self"[..], b"self again", b"up"] {
        mkdir(inner, name);
    }
    pool.create(Caller::ROOT, inner, b"kept", 0o644).expect("a file");
    pool.close().expect("closed");
    drop(pool);
    forge(&device, |name| match name {
        b"self" | b"self again" | b"twin" => Some(inner),
        b"up" => Some(outer),
        _ => None,
    });
    let scratch = tempfile::tempdir().expect("a directory");
    let summary = whole(&test_pool::open(device.clone()), scratch.path());
    assert_eq!((summary.errors_count, summary.directories_count, summary.files_copied_count), (4, 3, 1));

    // One whose record names another as the one above is there all the same.
    move_directory(&device, inner, ROOT_INODE);
    let scratch = tempfile::tempdir().expect("a directory");
    let summary = whole(&test_pool::open(device.clone()), scratch.path());
    assert_eq!((summary.errors_count, summary.directories_count, summary.files_copied_count), (4, 3, 1));
    move_directory(&device, inner, outer);

    move_directory(&device, outer, inner);
    let pool = test_pool::open(device);
    let scratch = tempfile::tempdir().expect("a directory");
    let (mut export, _) = begin(&pool, scratch.path(), false);
    let from = pool.getattr(outer).expect("it is there");
    assert!(export.tree(from).is_ok());
    assert_eq!((export.tally.summary.errors_count, export.tally.summary.directories_count), (4, 2));
}

/// Exports all of the pool.
fn whole(pool: &Filesystem, out: &Path) -> Summary {
    let (mut export, _) = begin(pool, out, false);
    let from = pool.getattr(ROOT_INODE).expect("a root");
    assert!(export.tree(from).is_ok());
    assert!(export.finish_waiting().is_ok());
    export.tally.end(true)
}

/// Makes entries of a closed pool lead where `wanted` says.
fn forge(device: &Arc<MemoryDevice>, wanted: impl Fn(&[u8]) -> Option<InodeId>) {
    change(device, TreeId::NAMES, |_, value| match NameRecord::decode(value).expect("an entry") {
        NameRecord::Entry { kind, name, chained, .. } => {
            wanted(&name).map(|ino| NameRecord::Entry { kind, ino, name, chained }.encode())
        }
        _ => None,
    });
}

/// Makes the record of a directory say that it lies in another.
fn move_directory(device: &Arc<MemoryDevice>, ino: InodeId, parent: InodeId) {
    let wanted = inode_key(FamilyId(FIRST_SUBVOLUME), ino, VersionKey(FIRST_SUBVOLUME));
    change(device, TreeId::INODES, |key, value| {
        let record = InodeRecord::decode(value).expect("an inode");
        (key == wanted).then(|| InodeRecord { parent, ..record }.encode())
    });
}

/// Puts what `other` gives in the place of what is in a tree of a closed pool.
fn change(device: &Arc<MemoryDevice>, tree: TreeId, other: impl Fn(&[u8], &[u8]) -> Option<Vec<u8>>) {
    let options = StoreOptions { background: false, ..StoreOptions::default() };
    let (store, _) = Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("opens");
    let mut transaction = Transaction::new();
    let mut each = |key: &[u8], value: &[u8]| {
        if let Some(other) = other(key, value) {
            transaction.put(tree, key, &other);
        }
        true
    };
    store.view().scan(tree, &[], &mut each).expect("it can be read");
    assert!(!transaction.is_empty());
    store.apply(transaction, None).expect("there is room");
    store.close().expect("closed");
}

// Goal: a file whose names all lie deeper than paths of calls go has them all. Method: two names in a directory at 4,500 bytes.
#[test]
fn further_names_deep_down() {
    let pool = pool();
    let mut dir = ROOT_INODE;
    for _ in 0..18 {
        dir = pool.mkdir(Caller::ROOT, dir, &[b'd'; 250], 0o755).expect("a directory").ino;
    }
    let ino = pool.create(Caller::ROOT, dir, b"first", 0o644).expect("a file").ino;
    pool.link(ino, dir, b"second").expect("a link");
    let scratch = tempfile::tempdir().expect("a directory");
    let summary = whole(&pool, scratch.path());
    assert_eq!((summary.errors_count, summary.hard_links_count), (0, 1));
}

// Goal: whatever fails, and however late, is told by the whole path of what it is about. Method: a copy that is gone when it is to get its times,
// then bits, and that is somebody else's when it is to get flags; something of the target itself; the paths of `--json`.
#[test]
fn late_problems_name_whole_paths() {
    let pool = pool();
    let from = file(&pool, "f");
    let scratch = tempfile::tempdir().expect("a directory");
    let out = scratch.path();
    let (mut export, level) = begin(&pool, out, true);
    assert!(entry(&mut export, &level, "f", from));
    std::fs::remove_file(out.join("f")).expect("it is there");
    assert!(export.finish_waiting().is_ok());
    export.bits_at(Path::new("d/e"), 0o755);
    std::fs::write(out.join("g"), "").expect("a file");
    let uid = std::fs::metadata(out.join("g")).expect("it is there").uid();
    export.flag_at(Path::new("g"), FileFlags::NO_DUMP, uid + 1);
    export.problem(Path::new(""), "it is full".to_owned());
    let json = serde_json::to_value(export.tally.end(true)).expect("it is JSON");
    let told = [0, 1, 2, 3].map(|index| json["errors"][index]["path"].as_str());
    let wanted = [out.join("f"), out.join("d/e"), out.join("g"), out.to_path_buf()];
    assert_eq!(told, wanted.each_ref().map(|path| path.to_str()));
}
