//! Clones of files: what they share, and what a crash leaves of one.

use super::subvolumes::{content, file, make};
use super::*;

// Goal: a clone shares all data until either side is written to, small or large, dirty or not, also from a read-only
// snapshot; copying a whole file clones it. Method: clones of each kind, changes on either side, space used.
#[test]
fn clones() {
    let mut f = Fixture::new(64 * MIB);
    let before = f.fs.space().free_bytes;
    let (large, small) = (pattern(1, 8 << 20), pattern(2, 900));
    let sub = make(&f, ROOT, b"sub");
    let source = file(&f, sub, b"large", &large);
    let little = file(&f, sub, b"small", &small);
    let copy = f.fs.clone_file(Caller::ROOT, source, ROOT, b"clone").unwrap().ino;
    let short = f.fs.clone_file(Caller::ROOT, little, sub, b"clone").unwrap().ino;
    let target = f.create(b"copied");
    assert_eq!(f.fs.copy_range(Caller::ROOT, (source, 0), (target, 0), 1 << 40).unwrap(), 8 << 20);
    let used = before - f.fs.space().free_bytes;
    assert!(used < 9 << 20, "three files of 8 MiB take {used} bytes");
    let frozen = f.fs.snapshot(sub, ROOT, b"frozen", true, false).unwrap();
    let old = f.fs.lookup(frozen, b"large").unwrap().ino;
    f.fs.clone_file(Caller::ROOT, old, sub, b"of old").unwrap();
    refused(f.fs.clone_file(Caller::ROOT, source, frozen, b"new"), 30);
    refused(f.fs.clone_file(Caller::ROOT, sub, sub, b"new"), 21);
    refused(f.fs.clone_file(Caller::ROOT, source, sub, b"clone"), 17);
    f.check();
    f.write(source, 100, b"source");
    f.write(copy, 200, b"copy");
    f.truncate(target, 5000);
    f.write(short, 0, b"short");
    f.fs.flush_all().unwrap();
    f.fs.maintain().unwrap();
    f.check();
    for round in 0..2 {
        let mut changed = large.clone();
        changed[100..106].copy_from_slice(b"source");
        assert!(content(&f, sub, b"large") == changed);
        changed = large.clone();
        changed[200..204].copy_from_slice(b"copy");
        assert!(content(&f, ROOT, b"clone") == changed);
        assert!(content(&f, sub, b"of old") == large && content(&f, frozen, b"large") == large);
        assert_eq!(content(&f, ROOT, b"copied"), large[..5000]);
        assert_eq!(content(&f, sub, b"small"), small);
        assert_eq!(content(&f, sub, b"clone"), [b"short", &small[5..]].concat());
        if round == 0 {
            f.reopen();
            f.check();
        }
    }
    f.fs.delete_subvolume(ROOT, b"frozen").unwrap();
    f.fs.unlink(sub, b"large").unwrap();
    f.fs.unlink(ROOT, b"clone").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    assert!(content(&f, sub, b"of old") == large);
    f.fs.delete_subvolume(ROOT, b"sub").unwrap();
    f.fs.unlink(ROOT, b"copied").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.fs.checkpoint().unwrap();
    let left = before.saturating_sub(f.fs.space().free_bytes);
    assert!(left <= 64 << 10, "{left} bytes of {before} have not come back");
}

// Goal: a clone is one step of the log, so that a crash leaves all of it or nothing, also when its source has to be logged
// first. Method: positions around clones of files with large, small and dirty contents; the directory sees one change.
#[test]
fn a_clone_is_one_transaction() {
    let mut f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let contents = [pattern(3, 8 << 20), pattern(4, 900), Vec::new()];
    for (n, bytes) in contents.iter().enumerate() {
        for (kind, parent) in [(b'a', ROOT), (b'b', sub)] {
            let source = file(&f, ROOT, &[b's', kind, b'0' + n as u8], bytes);
            f.fs.flush_all().unwrap();
            let before = f.fs.position();
            let clone = f.fs.clone_file(Caller::ROOT, source, parent, &[kind, b'0' + n as u8]).unwrap();
            assert_eq!(f.fs.position().0, before.0 + 1, "{n}, {kind}");
            assert_eq!((clone.size, clone.mode, clone.links), (bytes.len() as u64, 0o644, 1));
            // What waits in memory is part of the clone, and in the log before it.
            f.write(source, 10, b"dirty");
            f.fs.clone_file(Caller::ROOT, source, parent, &[kind, b'0' + n as u8, b'2']).unwrap();
            f.write(source, 10, b"later");
        }
    }
    f.check();
    for round in 0..2 {
        for (n, bytes) in contents.iter().enumerate() {
            let mut changed = bytes.clone();
            changed.resize(bytes.len().max(15), 0);
            changed[10..15].copy_from_slice(b"dirty");
            for (kind, parent) in [(b'a', ROOT), (b'b', sub)] {
                assert!(content(&f, parent, &[kind, b'0' + n as u8]) == *bytes, "round {round}");
                assert!(content(&f, parent, &[kind, b'0' + n as u8, b'2']) == changed, "round {round}");
            }
        }
        f.reopen();
        f.check();
    }
}
