//! Single entries, in a pool whose power fails.

use std::time::Duration;

use varve_fs::{SetAttr, SetTime};

use super::*;
use crate::transfer::test_pool;

/// An import of `tree` to the root of a pool, and its level.
fn begin(pool: &Arc<Filesystem>, tree: &Path) -> (Import, Level) {
    let source = host::open_directory(tree).expect("a directory");
    let stat = host::stat_of(&source).expect("a directory");
    let mut import = Import {
        filesystem: pool.clone(),
        tally: Tally::start("import", String::new(), String::new()),
        stop: Stop::default(),
        finisher: Finisher::start(pool.clone(), Duration::MAX).expect("a thread"),
        links: Links::default(),
        claimed: HashSet::new(),
        flags_last: Vec::new(),
        pool_file: None,
        one_file_system: None,
        settled: HashMap::new(),
        buffer: vec![0; PIECE_BYTES],
        room: Vec::new(),
        unusable: None,
    };
    let level = import.open_level(source, stat, Target { ino: ROOT_INODE, fresh: false });
    (import, level.unwrap_or_else(|_| panic!("a level")))
}

// Goal: a file that takes the place of an older copy by a further name, its first being nobody's before, has its bytes in the log before.
// Method: the log is made durable as it is then, and the power cut.
#[test]
fn a_further_name_takes_a_place_with_its_bytes() {
    let (older, newer) = (vec![1; 100_000], vec![2; 300_000]);
    let device = test_pool::format();
    let pool = Arc::new(test_pool::open(device.clone()));
    let old = pool.create(Caller::ROOT, ROOT_INODE, b"y", 0o644).expect("a file").ino;
    pool.write(Caller::ROOT, old, 0, &older).expect("contents");
    pool.sync().expect("synced");
    let scratch = tempfile::tempdir().expect("a directory");
    let tree = scratch.path();
    std::fs::write(tree.join("x"), &newer).expect("a file");
    std::fs::hard_link(tree.join("x"), tree.join("y")).expect("a link");
    let (mut import, level) = begin(&pool, tree);
    for name in [b"x", b"y"] {
        assert!(import.entry(&level, name).is_ok());
    }
    assert_eq!(import.tally.summary.hard_links_count, 1);
    pool.commit(pool.position()).expect("the log is durable");
    let left = test_pool::open(Arc::new(device.snapshot()));
    let file = left.lookup(ROOT_INODE, b"y").expect("one of the two").ino;
    assert!([older, newer].contains(&left.read(file, 0, 1 << 20).expect("it can be read")));
}

// Goal: further names of a file get its contents, though its first is another file's by the time it is opened. Method: a file is put over
// the first of three names after that has been looked at; the same of a symbolic link.
#[test]
fn a_name_that_is_replaced_gives_its_file_no_further_names() {
    let pool = Arc::new(test_pool::open(test_pool::format()));
    let scratch = tempfile::tempdir().expect("a directory");
    let tree = scratch.path();
    std::fs::write(tree.join("x"), b"three names").expect("a file");
    std::os::unix::fs::symlink("three names", tree.join("l")).expect("a link");
    for (of, names) in [("x", ["y", "z"]), ("l", ["m", "n"])] {
        for name in names {
            std::fs::hard_link(tree.join(of), tree.join(name)).expect("a link");
        }
    }
    let (mut import, level) = begin(&pool, tree);
    let [file, link] =
        [b"x", b"l"].map(|name| host::stat_at(level.source.as_fd(), name).expect("it is there"));
    std::fs::write(tree.join("other"), b"one name").expect("a file");
    std::fs::rename(tree.join("other"), tree.join("x")).expect("its name");
    std::os::unix::fs::symlink("one name", tree.join("other")).expect("a link");
    std::fs::rename(tree.join("other"), tree.join("l")).expect("its name");
    assert!(import.file(&level, b"x", &file, None).is_ok());
    let replaced = import.special(&level, b"l", &link, None);
    assert!(matches!(replaced, Err(Trouble::Entry(_))));
    for name in [b"y", b"z", b"m", b"n"] {
        assert!(import.entry(&level, name).is_ok());
    }
    let ino = |name: &[u8]| pool.lookup(ROOT_INODE, name).expect("it is there").ino;
    let [x, y, z] = [b"x", b"y", b"z"].map(|name| pool.read(ino(name), 0, 100).expect("it can be read"));
    assert_eq!((&x[..], &y[..], &z[..]), (&b"one name"[..], &b"three names"[..], &b"three names"[..]));
    assert_eq!((ino(b"y"), ino(b"m")), (ino(b"z"), ino(b"n")));
    assert_eq!(pool.readlink(ino(b"m")).expect("a link"), b"three names");
    assert_eq!(import.tally.summary.hard_links_count, 2);
}

// Goal: two names of a file stay names of one, though a third is met between them under which something else had been looked at. Method:
// that name becomes one of the file after the look at it.
#[test]
fn a_name_that_comes_late_takes_no_names_from_the_first() {
    let pool = Arc::new(test_pool::open(test_pool::format()));
    let scratch = tempfile::tempdir().expect("a directory");
    let tree = scratch.path();
    std::fs::write(tree.join("p"), b"two names").expect("a file");
    std::fs::hard_link(tree.join("p"), tree.join("q")).expect("a link");
    std::fs::write(tree.join("x"), b"one name").expect("a file");
    let (mut import, level) = begin(&pool, tree);
    assert!(import.entry(&level, b"p").is_ok());
    let looked_at = host::stat_at(level.source.as_fd(), b"x").expect("it is there");
    std::fs::remove_file(tree.join("x")).expect("its name");
    std::fs::hard_link(tree.join("p"), tree.join("x")).expect("a link");
    assert!(import.file(&level, b"x", &looked_at, None).is_ok());
    assert!(import.entry(&level, b"q").is_ok());
    let ino = |name: &[u8]| pool.lookup(ROOT_INODE, name).expect("it is there").ino;
    assert_eq!(ino(b"p"), ino(b"q"));
    assert_eq!(pool.read(ino(b"x"), 0, 100).expect("it can be read"), b"two names");
}

// Goal: what was changed while it was read takes the place of nothing. Method: a file that grows between the look at it and the copying,
// where the pool has an older one.
#[test]
fn what_is_changed_while_it_is_read_leaves_the_older_copy() {
    let pool = Arc::new(test_pool::open(test_pool::format()));
    let old = pool.create(Caller::ROOT, ROOT_INODE, b"y", 0o644).expect("a file");
    pool.write(Caller::ROOT, old.ino, 0, b"older").expect("contents");
    let scratch = tempfile::tempdir().expect("a directory");
    let tree = scratch.path();
    std::fs::write(tree.join("y"), b"newer").expect("a file");
    let (mut import, level) = begin(&pool, tree);
    let source = host::open_at(level.source.as_fd(), b"y", OFlags::empty()).expect("it is there");
    let stat = host::stat_of(&source).expect("a file");
    std::fs::write(tree.join("y"), b"newer still").expect("a file");
    let placed = import.in_place_of(&level, b"y", old, &source, &stat);
    assert!(matches!(placed, Err(Trouble::Entry(_))));
    let left = pool.lookup(ROOT_INODE, b"y").expect("it is there");
    assert_eq!(left.ino, old.ino);
    assert_eq!(pool.read(left.ino, 0, 100).expect("it can be read"), b"older");
}

// Goal: a file that has contents and says that it has none does not come in empty, nor is an empty copy of it taken for whole. Method: one of
// /proc, where the pool has nothing, and where it has an empty file with its time.
#[test]
fn what_goes_on_behind_its_size_is_refused() {
    let pool = Arc::new(test_pool::open(test_pool::format()));
    let (mut import, level) = begin(&pool, Path::new("/proc/sys/kernel"));
    let stat = host::stat_at(level.source.as_fd(), b"ostype").expect("it is there");
    assert_eq!(stat.size, 0);
    let mut refused = || match import.entry(&level, b"ostype") {
        Err(Trouble::Entry(error)) => error.contains("has 0 bytes"),
        _ => false,
    };
    assert!(refused());
    assert!(matches!(pool.lookup(ROOT_INODE, b"ostype"), Err(FsError::NotFound)));
    let ino = pool.create(Caller::ROOT, ROOT_INODE, b"ostype", 0o444).expect("a file").ino;
    let set = SetAttr { mtime: Some(SetTime::At(stat.mtime)), ..SetAttr::default() };
    pool.setattr(Caller::ROOT, ino, set).expect("its time");
    assert!(refused());
    assert_eq!((import.tally.summary.files_equal_count, import.tally.summary.files_copied_count), (0, 0));
}

// Goal: what cannot be used through a mount because of its access list is imported, and that is said, each time. Method: lists of 511 and of 512
// entries, of a file and a directory, imported twice.
#[test]
fn access_lists_that_no_mount_shows_are_told() {
    // Other filesystems take no such lists.
    let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else { return };
    let tree = scratch.path();
    let list = |entries: usize| {
        let named = (0..entries as u32 - 4).map(|id| (0x02u16, 4u16, 1000 + id));
        let entries = [(0x01, 6, u32::MAX)].into_iter().chain(named).chain([
            (0x04, 4, u32::MAX),
            (0x10, 6, u32::MAX),
            (0x20, 4, u32::MAX),
        ]);
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend(u16::to_le_bytes(tag));
            list.extend(u16::to_le_bytes(permissions));
            list.extend(u32::to_le_bytes(id));
        }
        list
    };
    std::fs::create_dir(tree.join("dir")).expect("a directory");
    for (name, kind, entries) in [
        ("few", "access", 511),
        ("many", "access", 512),
        ("dir/many", "access", 512),
        ("dir", "default", 512),
    ] {
        if name != "dir" {
            std::fs::write(tree.join(name), name).expect("a file");
        }
        let (path, attribute) = (tree.join(name), format!("system.posix_acl_{kind}"));
        let set = rustix::fs::setxattr(&path, &attribute, &list(entries), rustix::fs::XattrFlags::empty());
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            return;
        }
        set.expect("a list");
    }
    let pool = Arc::new(test_pool::open(test_pool::format()));
    for _ in 0..2 {
        let (mut import, level) = begin(&pool, tree);
        let target = Target { ino: ROOT_INODE, fresh: false };
        assert!(import.tree(tree, level.source, level.stat, target).is_ok());
        import.finisher.end().expect("all is finished");
        let said = serde_json::to_value(&import.tally.summary).expect("JSON")["errors"].clone();
        let mut said: Vec<_> = said
            .as_array()
            .expect("a list")
            .iter()
            .map(|problem| {
                assert!(
                    problem["error"].as_str().is_some_and(|error| error.contains("more than 511 entries"))
                );
                let path = Path::new(problem["path"].as_str().expect("a path"));
                path.strip_prefix(tree).expect("in the tree").to_owned()
            })
            .collect();
        said.sort();
        assert_eq!(said, ["dir", "dir/many", "many"].map(PathBuf::from));
    }
    let file = pool.lookup(ROOT_INODE, b"many").expect("it is there").ino;
    assert_eq!(pool.getxattr(file, b"system.posix_acl_access").expect("it is kept"), list(512));
    assert_eq!(pool.read(file, 0, 100).expect("it can be read"), b"many");
}
