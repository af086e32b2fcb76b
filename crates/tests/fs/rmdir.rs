//! rmdir(2) and rename(2) of subvolumes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::subvolumes::{content, file, make, snapshot};
use super::*;

// Goal: rmdir deletes a subvolume if nothing is in it, and takes nothing else away. Method: each rule once: a file, a
// subvolume, a removed file that is open, a snapshot that was emptied, and one that cannot be; then all is gone, also of the
// space.
#[test]
fn rmdir_of_subvolumes() {
    let mut f = Fixture::new(64 * MIB);
    f.fs.maintain().unwrap();
    let before = f.fs.space().used_bytes;
    let sub = make(&f, ROOT, b"sub");
    let open = file(&f, sub, b"file", &pattern(1, 300_000));
    let frozen = f.fs.snapshot(sub, ROOT, b"frozen", true, true).unwrap();
    let copy = snapshot(&f, sub, b"copy");
    refused(f.fs.rmdir(ROOT, b"sub"), 39);
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    f.fs.unlink(sub, b"file").unwrap();
    let inner = make(&f, sub, b"inner");
    refused(f.fs.rmdir(ROOT, b"sub"), 39);
    // Also where what is in it was made in this moment, or is only there in memory.
    file(&f, inner, b"new", b"");
    refused(f.fs.rmdir(sub, b"inner"), 39);
    f.fs.unlink(inner, b"new").unwrap();
    f.fs.rmdir(sub, b"inner").unwrap();
    refused(f.fs.rmdir(sub, b"inner"), 2);
    f.fs.rmdir(ROOT, b"sub").unwrap();
    refused(f.fs.getattr(open), 116);
    refused(f.fs.create(Caller::ROOT, sub, b"late", 0o644), 116);
    f.fs.release_inode(open).unwrap();
    // What the others have stays.
    assert_eq!(content(&f, frozen, b"file"), pattern(1, 300_000));
    refused(f.fs.rmdir(ROOT, b"copy"), 39);
    f.fs.unlink(copy, b"file").unwrap();
    f.fs.rmdir(ROOT, b"copy").unwrap();
    // A read-only one is deleted by its own command alone, empty or not.
    let empty = make(&f, ROOT, b"empty");
    let bare = f.fs.snapshot(empty, ROOT, b"bare", true, false).unwrap();
    for name in [b"frozen" as &[u8], b"bare"] {
        refused(f.fs.rmdir(ROOT, name), 1);
    }
    assert_eq!(f.list(bare), Vec::<Vec<u8>>::new());
    f.check();
    f.reopen();
    assert_eq!(f.list(ROOT), [b"bare".to_vec(), b"empty".to_vec(), b"frozen".to_vec()]);
    f.fs.rmdir(ROOT, b"empty").unwrap();
    f.fs.delete_subvolume(ROOT, b"bare").unwrap();
    f.fs.delete_subvolume(ROOT, b"frozen").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.reopen();
    assert!(f.fs.space().used_bytes <= before + (64 << 10));
    assert_eq!(f.list(ROOT), Vec::<Vec<u8>>::new());
}

// Goal: of rmdir of a subvolume and whoever puts something into it, one comes first. Method: both at once, many times: never
// do both succeed.
#[test]
fn rmdir_while_names_come() {
    let f = Fixture::new(64 * MIB);
    for round in 0..300 {
        let sub = make(&f, ROOT, b"sub");
        let both = std::sync::Barrier::new(2);
        let (put, removed) = std::thread::scope(|scope| {
            let put = scope.spawn(|| {
                both.wait();
                match round % 3 {
                    0 => f.fs.create(Caller::ROOT, sub, b"file", 0o644).is_ok(),
                    1 => f.fs.create_subvolume(Caller::ROOT, sub, b"inner", 0o755).is_ok(),
                    _ => f.fs.mkdir(Caller::ROOT, sub, b"dir", 0o755).is_ok(),
                }
            });
            both.wait();
            let removed = f.fs.rmdir(ROOT, b"sub").is_ok();
            (put.join().unwrap(), removed)
        });
        assert!(put != removed, "round {round}: {put}, {removed}");
        if put && round % 3 == 1 {
            f.fs.rmdir(sub, b"inner").unwrap();
        }
        if put {
            f.fs.delete_subvolume(ROOT, b"sub").unwrap();
        }
    }
    f.fs.maintain().unwrap();
    f.check();
}

/// The paths of all subvolumes, with the number of each.
fn paths(f: &Fixture) -> Vec<(u64, Vec<u8>)> {
    f.fs.list_subvolumes().unwrap().into_iter().map(|info| (info.id, info.path)).collect()
}

const X: RenameMode = RenameMode::Exchange;

// Goal: two subvolumes are exchanged in one step of the log: names, `..`, paths, what is in them and the times of the directories
// follow, and nothing else changes. Method: two in one directory, then across directories and across subvolumes, one with another
// inside; after each, all of it, also after a kill and after closing.
#[test]
fn subvolumes_are_exchanged() {
    let mut f = Fixture::new(64 * MIB);
    let (live, old) = (make(&f, ROOT, b"live"), make(&f, ROOT, b"old"));
    let inner = make(&f, live, b"inner");
    file(&f, live, b"file", b"new");
    file(&f, old, b"file", b"from before");
    f.fs.sync().unwrap();
    let numbers: Vec<u64> = paths(&f).into_iter().map(|(id, _)| id).collect();
    let (before, position) = (f.fs.getattr(ROOT).unwrap(), f.fs.position());
    f.fs.rename(ROOT, b"live", ROOT, b"old", X).unwrap();
    assert_eq!(f.fs.position().0, position.0 + 1, "one step");
    f.fs.commit(f.fs.position()).unwrap();
    let after = f.fs.getattr(ROOT).unwrap();
    assert!(before.mtime < after.mtime && before.ctime < after.ctime);
    assert_eq!((before.size, before.links), (after.size, after.links));
    for round in 0..3 {
        assert_eq!(f.fs.lookup(ROOT, b"live").unwrap().ino, old);
        assert_eq!(f.fs.lookup(ROOT, b"old").unwrap().ino, live);
        assert_eq!(content(&f, old, b"file"), b"from before");
        assert_eq!(content(&f, live, b"file"), b"new");
        assert_eq!(f.fs.lookup(inner, b"..").unwrap().ino, live);
        assert_eq!(f.list(ROOT), [b"live".to_vec(), b"old".to_vec()]);
        let expected: Vec<(u64, Vec<u8>)> = numbers
            .iter()
            .copied()
            .zip([&b"/"[..], b"/old", b"/live", b"/old/inner"].map(<[u8]>::to_vec))
            .collect();
        assert_eq!(paths(&f), expected);
        f.check();
        if round == 0 { f.kill() } else { f.reopen() }
    }
    // Across directories and subvolumes, with one inside.
    let shelf = f.mkdir(ROOT, b"shelf");
    let (box_, deep) = (make(&f, shelf, b"box"), f.mkdir(inner, b"deep"));
    let other = make(&f, box_, b"other");
    f.fs.rename(ROOT, b"live", shelf, b"box", X).unwrap();
    f.fs.rename(ROOT, b"live", shelf, b"box", X).unwrap();
    let before = [f.fs.getattr(deep).unwrap().mtime, f.fs.getattr(box_).unwrap().mtime];
    let leaf = make(&f, deep, b"leaf");
    f.fs.rename(deep, b"leaf", box_, b"other", X).unwrap();
    f.fs.commit(f.fs.position()).unwrap();
    let after = [f.fs.getattr(deep).unwrap().mtime, f.fs.getattr(box_).unwrap().mtime];
    assert!(before[0] < after[0] && before[1] < after[1]);
    for round in 0..3 {
        assert_eq!(f.fs.lookup(deep, b"leaf").unwrap().ino, other);
        assert_eq!(f.fs.lookup(box_, b"other").unwrap().ino, leaf);
        assert_eq!(f.fs.lookup(other, b"..").unwrap().ino, deep);
        assert_eq!(f.fs.lookup(leaf, b"..").unwrap().ino, box_);
        assert_eq!((f.fs.getattr(deep).unwrap().links, f.fs.getattr(box_).unwrap().links), (3, 3));
        let found: Vec<Vec<u8>> = paths(&f).into_iter().map(|(_, path)| path).collect();
        let expected =
            ["/", "/old", "/live", "/old/inner", "/shelf/box", "/old/inner/deep/leaf", "/shelf/box/other"];
        assert_eq!(found, expected.map(|path| path.as_bytes().to_vec()));
        f.check();
        if round == 0 { f.kill() } else { f.reopen() }
    }
    // What is in one keeps it, wherever that came from.
    refused(f.fs.delete_subvolume(shelf, b"box"), 39);
    refused(f.fs.rmdir(inner, b"deep"), 39);
    f.fs.delete_subvolume(box_, b"other").unwrap();
    refused(f.fs.getattr(leaf), 116);
    f.fs.delete_subvolume(shelf, b"box").unwrap();
    f.fs.rmdir(deep, b"leaf").unwrap();
    f.fs.rmdir(inner, b"deep").unwrap();
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: a subvolume exchanges its place with another one alone, does not come into itself, and heeds flags and what is read-only; nor does it
// take a place by a rename, or give its own. Each refusal says why, and changes nothing. Method: each once.
#[test]
fn what_subvolumes_are_not_exchanged_with() {
    let f = Fixture::new(64 * MIB);
    let (one, two) = (make(&f, ROOT, b"one"), make(&f, ROOT, b"two"));
    let inner = make(&f, one, b"inner");
    let deep = f.mkdir(inner, b"deep");
    make(&f, deep, b"leaf");
    let (empty, full) = (f.mkdir(ROOT, b"empty"), f.mkdir(ROOT, b"full"));
    file(&f, ROOT, b"file", b"");
    file(&f, full, b"file", b"");
    f.mkdir(one, b"dir");
    let frozen = f.fs.snapshot(two, ROOT, b"frozen", true, true).unwrap();
    f.fs.sync().unwrap();
    let before = (f.fs.position(), paths(&f));
    refused(f.fs.rename(ROOT, b"one", ROOT, b"none", X), 2);
    refused(f.fs.rename(ROOT, b"none", ROOT, b"one", X), 2);
    for name in [b"file" as &[u8], b"empty", b"full"] {
        refused(f.fs.rename(ROOT, b"one", ROOT, name, X), 95);
        refused(f.fs.rename(ROOT, name, ROOT, b"one", X), 95);
        refused(f.fs.rename(one, b"inner", ROOT, name, X), 18);
        refused(f.fs.rename(ROOT, name, one, b"inner", X), 18);
    }
    // Into itself, from above and from below, a level or two.
    refused(f.fs.rename(ROOT, b"one", one, b"inner", X), 22);
    refused(f.fs.rename(one, b"inner", ROOT, b"one", X), 22);
    refused(f.fs.rename(ROOT, b"one", deep, b"leaf", X), 22);
    refused(f.fs.rename(deep, b"leaf", ROOT, b"one", X), 22);
    refused(f.fs.rename(ROOT, b"one", frozen, b"none", X), 30);
    f.fs.rename(ROOT, b"one", ROOT, b"one", X).unwrap();
    refused(f.fs.rename(ROOT, b"one", ROOT, b"two", RenameMode::NoReplace), 17);
    // By a rename: what Linux says first, then whether there is something in it.
    let r = RenameMode::Replace;
    refused(f.fs.rename(ROOT, b"one", ROOT, b"file", r), 20);
    refused(f.fs.rename(ROOT, b"file", ROOT, b"two", r), 21);
    refused(f.fs.rename(ROOT, b"two", ROOT, b"full", r), 39);
    refused(f.fs.rename(ROOT, b"two", ROOT, b"one", r), 39);
    refused(f.fs.rename(ROOT, b"empty", ROOT, b"one", r), 39);
    refused(f.fs.rename(ROOT, b"two", deep, b"leaf", r), 1);
    refused(f.fs.rename(ROOT, b"one", ROOT, b"two", r), 1);
    refused(f.fs.rename(ROOT, b"two", ROOT, b"empty", r), 1);
    refused(f.fs.rename(ROOT, b"full", ROOT, b"two", r), 1);
    assert_eq!((f.fs.position(), paths(&f)), before);
    // Flags of a root, and of either directory.
    let set = |ino, flags| f.fs.set_flags(Caller::ROOT, ino, flags).unwrap();
    let third = make(&f, empty, b"third");
    for protected in [FileFlags::IMMUTABLE, FileFlags::APPEND_ONLY] {
        for ino in [two, third, ROOT, empty] {
            set(ino, protected);
            refused(f.fs.rename(ROOT, b"two", empty, b"third", X), 1);
            refused(f.fs.rename(empty, b"third", ROOT, b"two", X), 1);
            set(ino, FileFlags::NONE);
        }
    }
    f.fs.rename(ROOT, b"two", empty, b"third", X).unwrap();
    // A read-only one has a name that can be changed.
    f.fs.rename(ROOT, b"frozen", empty, b"third", X).unwrap();
    assert_eq!(f.fs.lookup(empty, b"third").unwrap().ino, frozen);
    assert_eq!(f.fs.lookup(ROOT, b"frozen").unwrap().ino, two);
    f.check();
}

// Goal: a name that was there before an exchange with a snapshot is there after any crash behind it, and leads to one that is whole. Method: a
// snapshot for which dirty data waits, exchanged with its source at once, and a kill right behind that; also where one of the two is in such
// a snapshot.
#[test]
fn subvolumes_exchanged_with_new_snapshots_are_whole() {
    for inside in [false, true] {
        let mut f = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
        let live = make(&f, ROOT, b"live");
        let home = make(&f, ROOT, b"home");
        f.fs.sync().unwrap();
        let data = pattern(3, 5 << 20);
        let changed = file(&f, live, b"file", &data);
        file(&f, home, b"file", &data);
        let (to, name) =
            if inside { (snapshot(&f, home, b"copy"), &b"base"[..]) } else { (ROOT, &b"base"[..]) };
        let base = f.fs.snapshot(live, to, name, false, false).unwrap();
        f.write(changed, 0, b"spoilt");
        assert!(f.fs.core().frozen.has(|_| true), "nothing waits");
        f.fs.rename(to, name, ROOT, b"live", X).unwrap();
        // The exchange, and no more of what is dirty.
        f.fs.commit(f.fs.position()).unwrap();
        f.kill();
        assert_eq!(f.fs.lookup(ROOT, b"live").unwrap().ino, base);
        assert!(content(&f, base, b"file") == data);
        assert_eq!(f.fs.lookup(to, name).unwrap().ino, live);
        if inside {
            assert!(content(&f, to, b"file") == data);
        }
        f.check();
    }
}

// Goal: while two are exchanged again and again each name leads to one of them at every instant, and a listing shows both. Method: a thread
// that exchanges, one that looks names up, lists and writes to whatever the name leads to, and one that makes and moves others.
#[test]
fn names_of_subvolumes_that_are_exchanged_stay() {
    let f = Fixture::new(64 * MIB);
    let shelf = f.mkdir(ROOT, b"shelf");
    let (one, two) = (make(&f, ROOT, b"one"), make(&f, shelf, b"two"));
    let (ended, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (f, ended, count) = (&f, &ended, &seen);
        let watcher = scope.spawn(move || {
            let mut seen = std::collections::BTreeSet::new();
            while !ended.load(Ordering::Relaxed) {
                for (dir, name) in [(ROOT, &b"one"[..]), (shelf, b"two")] {
                    let found = f.fs.lookup(dir, name).unwrap().ino;
                    assert!(found == one || found == two);
                    seen.insert((dir, found));
                    assert!(f.list(dir).contains(&name.to_vec()));
                    let up = f.fs.lookup(found, b"..").unwrap().ino;
                    assert!(up == ROOT || up == shelf);
                    match f.fs.create(Caller::ROOT, found, b"file", 0o644) {
                        Ok(attr) => f.write(attr.ino, 0, b"data"),
                        Err(_) => f.fs.unlink(found, b"file").unwrap(),
                    }
                }
                assert!(f.fs.list_subvolumes().unwrap().len() >= 3);
                count.store(seen.len(), Ordering::Relaxed);
            }
        });
        let mover = scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                f.fs.snapshot(one, ROOT, b"other", false, false).unwrap();
                f.fs.rename(ROOT, b"other", two, b"moved", RenameMode::Replace).unwrap();
                f.fs.delete_subvolume(two, b"moved").unwrap();
            }
        });
        // Each name has led to both, and nobody has stopped.
        let mut round = 0;
        while round < 1_000 || seen.load(Ordering::Relaxed) < 4 && !watcher.is_finished() {
            if round % 2 == 0 {
                f.fs.rename(ROOT, b"one", shelf, b"two", X).unwrap();
            } else {
                f.fs.rename(shelf, b"two", ROOT, b"one", X).unwrap();
            }
            round += 1;
        }
        ended.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        watcher.join().unwrap();
    });
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: a pool that is as full as it gets is rolled back. Method: fill it, and exchange, in one directory and across two.
#[test]
fn subvolumes_are_exchanged_on_a_full_pool() {
    let f = Fixture::new(64 * MIB);
    let shelf = f.mkdir(ROOT, b"shelf");
    let (live, other) = (make(&f, ROOT, b"live"), make(&f, shelf, b"other"));
    file(&f, live, b"file", &pattern(1, 100_000));
    let base = snapshot(&f, live, b"base");
    f.fs.sync().unwrap();
    let taken = f.take_all();
    f.fs.rename(ROOT, b"live", ROOT, b"base", X).unwrap();
    f.fs.rename(ROOT, b"live", shelf, b"other", X).unwrap();
    assert_eq!(f.fs.lookup(ROOT, b"live").unwrap().ino, other);
    assert_eq!(f.fs.lookup(ROOT, b"base").unwrap().ino, live);
    assert_eq!(f.fs.lookup(shelf, b"other").unwrap().ino, base);
    drop(taken);
    f.check();
}
