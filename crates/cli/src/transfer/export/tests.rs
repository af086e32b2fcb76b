//! Single entries, on targets that tests play.

use std::path::Path;
use varve_fs::{Caller, ROOT_INODE, SetAttr, SetTime, Timestamp};

use super::*;
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
fn begin<'a>(pool: &'a Filesystem, out: &Path, fresh: bool) -> (Export<'a>, Level) {
    let root = host::open_directory(out).expect("a directory");
    let target = root.try_clone().expect("a descriptor");
    let mut export = Export::new(pool, root, Tally::start("export", String::new(), String::new()));
    assert!(export.begin(out).is_ok());
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
