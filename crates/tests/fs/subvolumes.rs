//! Subvolumes and snapshots: each verb, what crosses no border, and what shares what.

use super::*;
use varve_format::record::subvolume::SUBVOLUME_SLOTS;

use varve_fs::internals::subvolume::Slot;

pub(super) fn make(f: &Fixture, parent: InodeId, name: &[u8]) -> InodeId {
    f.fs.create_subvolume(Caller::ROOT, parent, name, 0o755).unwrap().ino
}

pub(super) fn snapshot(f: &Fixture, source: InodeId, name: &[u8]) -> InodeId {
    f.fs.snapshot(source, ROOT, name, false, false).unwrap()
}

pub(super) fn file(f: &Fixture, dir: InodeId, name: &[u8], data: &[u8]) -> InodeId {
    let ino = f.fs.create(Caller::ROOT, dir, name, 0o644).unwrap().ino;
    f.write(ino, 0, data);
    ino
}

pub(super) fn content(f: &Fixture, dir: InodeId, name: &[u8]) -> Vec<u8> {
    f.read_all(f.fs.lookup(dir, name).unwrap().ino)
}

// Goal: a subvolume is found, listed, entered and left like a directory, and is gone when deleted; its borders hold.
// Method: each rule once, before and after the pool is opened again.
#[test]
fn verbs() {
    let mut f = Fixture::new(64 * MIB);
    let home = f.mkdir(ROOT, b"shelf");
    let sub = make(&f, home, b"project");
    let inner = make(&f, sub, b"inner");
    let plain = file(&f, sub, b"file", b"contents");
    for _ in 0..2 {
        assert_eq!(f.fs.lookup(home, b"project").unwrap().ino, sub);
        assert_eq!(f.fs.lookup(sub, b"..").unwrap().ino, home);
        assert_eq!(f.fs.lookup(inner, b"..").unwrap().ino, sub);
        assert_eq!((f.list(home), f.list(inner)), (vec![b"project".to_vec()], vec![]));
        assert_eq!(f.list(sub), [b"file".to_vec(), b"inner".to_vec()]);
        assert_eq!(f.fs.getattr(home).unwrap().links, 3);
        assert_eq!(content(&f, sub, b"file"), b"contents");
        let paths: Vec<_> = f.fs.list_subvolumes().unwrap().into_iter().map(|info| info.path).collect();
        assert_eq!(paths, [b"/".to_vec(), b"/shelf/project".to_vec(), b"/shelf/project/inner".to_vec()]);
        f.check();
        f.reopen();
    }
    // Names are taken both ways.
    refused(f.fs.create(Caller::ROOT, home, b"project", 0o644), 17);
    refused(f.fs.create_subvolume(Caller::ROOT, sub, b"file", 0o755), 17);
    refused(f.fs.create_subvolume(Caller::ROOT, home, b"project", 0o755), 17);
    // Borders.
    refused(f.fs.rename(sub, b"file", home, b"file", RenameMode::Replace), 18);
    refused(f.fs.link(plain, home, b"file"), 18);
    refused(f.fs.link(sub, home, b"link"), 1);
    // What is in it keeps a subvolume, and that the directory it is in.
    refused(f.fs.unlink(home, b"project"), 21);
    refused(f.fs.rmdir(home, b"project"), 39);
    refused(f.fs.rmdir(ROOT, b"shelf"), 39);
    refused(f.fs.delete_subvolume(home, b"project"), 39);
    refused(f.fs.delete_subvolume(sub, b"file"), 22);
    refused(f.fs.delete_subvolume(sub, b"nothing"), 2);
    refused(f.fs.snapshot(home, ROOT, b"copy", false, false), 22);
    // It moves, but not below itself, and over nothing.
    refused(f.fs.rename(home, b"project", inner, b"below", RenameMode::Replace), 22);
    f.create(b"other");
    refused(f.fs.rename(ROOT, b"other", home, b"project", RenameMode::Replace), 21);
    refused(f.fs.rename(home, b"project", ROOT, b"other", RenameMode::Replace), 20);
    refused(f.fs.rename(home, b"project", ROOT, b"other", RenameMode::NoReplace), 17);
    refused(f.fs.rename(sub, b"inner", sub, b"inner", RenameMode::NoReplace), 17);
    f.fs.rename(sub, b"inner", sub, b"inner", RenameMode::Replace).unwrap();
    f.fs.rename(sub, b"inner", ROOT, b"moved", RenameMode::NoReplace).unwrap();
    assert_eq!(f.fs.lookup(ROOT, b"moved").unwrap().ino, inner);
    assert_eq!(f.fs.lookup(inner, b"..").unwrap().ino, ROOT);
    refused(f.fs.lookup(sub, b"inner"), 2);
    f.reopen();
    assert_eq!(f.fs.lookup(ROOT, b"moved").unwrap().ino, inner);
    // What is open in a deleted one leads nowhere.
    let plain = f.fs.lookup(sub, b"file").unwrap().ino;
    f.fs.open_inode(Caller::ROOT, plain, false).unwrap();
    f.fs.delete_subvolume(home, b"project").unwrap();
    refused(f.fs.lookup(home, b"project"), 2);
    refused(f.fs.getattr(plain), 116);
    refused(f.fs.write(Caller::ROOT, plain, 0, b"more"), 116);
    refused(f.fs.lookup(sub, b"file"), 116);
    f.fs.release_inode(plain).unwrap();
    refused(f.fs.release_inode(plain), 22);
    f.fs.maintain().unwrap();
    f.check();
    f.fs.rmdir(ROOT, b"shelf").unwrap();
    f.reopen();
    f.check();
    assert_eq!(f.list(ROOT), [b"moved".to_vec(), b"other".to_vec()]);
}

// Goal: a snapshot shows what was there, dirty data included, and neither side sees what the other does later. Method: the
// same changes on either side of a snapshot, of a snapshot of it, and reading all three; deleted in every order.
#[test]
fn sides() {
    let orders: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (round, order) in orders.into_iter().enumerate() {
        let mut f = Fixture::new(64 * MIB);
        let before = f.fs.space().free_bytes;
        let sub = make(&f, ROOT, b"0");
        let (large, small) = (pattern(1, 300_000), pattern(2, 100));
        let dir = f.mkdir(sub, b"dir");
        file(&f, dir, b"large", &large);
        file(&f, sub, b"small", &small);
        f.fs.setxattr(dir, b"user.note", b"old", XattrMode::Set).unwrap();
        let first = snapshot(&f, sub, b"1");
        let second = snapshot(&f, first, b"2");
        for root in [sub, first, second] {
            let dir = f.fs.lookup(root, b"dir").unwrap().ino;
            assert_eq!(content(&f, dir, b"large"), large);
            assert_eq!(content(&f, root, b"small"), small);
        }
        // In the middle one everything changes.
        let dir1 = f.fs.lookup(first, b"dir").unwrap().ino;
        let large1 = f.fs.lookup(dir1, b"large").unwrap().ino;
        f.write(large1, 5000, b"in between");
        f.truncate(f.fs.lookup(first, b"small").unwrap().ino, 7);
        f.fs.setxattr(dir1, b"user.note", b"new", XattrMode::Set).unwrap();
        f.fs.rename(dir1, b"large", first, b"larger", RenameMode::Replace).unwrap();
        f.fs.rmdir(first, b"dir").unwrap();
        // In the last a little.
        f.fs.unlink(second, b"small").unwrap();
        if round % 2 == 1 {
            f.fs.sync().unwrap();
            f.reopen();
        }
        f.fs.maintain().unwrap();
        let mut changed = large.clone();
        changed[5000..5010].copy_from_slice(b"in between");
        assert_eq!(content(&f, first, b"larger"), changed);
        assert_eq!(content(&f, first, b"small"), small[..7]);
        assert_eq!(f.list(first), [b"larger".to_vec(), b"small".to_vec()]);
        assert_eq!(f.list(second), [b"dir".to_vec()]);
        let dir2 = f.fs.lookup(second, b"dir").unwrap().ino;
        assert_eq!(f.fs.getxattr(dir2, b"user.note").unwrap(), b"old");
        assert_eq!(content(&f, dir2, b"large"), large);
        assert_eq!(f.list(sub), [b"dir".to_vec(), b"small".to_vec()]);
        assert_eq!(content(&f, f.fs.lookup(sub, b"dir").unwrap().ino, b"large"), large);
        f.check();
        for at in order {
            f.fs.delete_subvolume(ROOT, at.to_string().as_bytes()).unwrap();
            f.fs.maintain().unwrap();
            f.check();
        }
        f.reopen();
        f.check();
        assert_eq!(f.list(ROOT), Vec::<Vec<u8>>::new());
        f.fs.checkpoint().unwrap();
        let left = before.saturating_sub(f.fs.space().free_bytes);
        assert!(left <= 64 << 10, "{left} bytes of {before} have not come back");
    }
}

// Goal: nothing in a read-only snapshot changes. Method: every verb that changes something.
#[test]
fn read_only() {
    let mut f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let dir = f.mkdir(sub, b"dir");
    file(&f, sub, b"file", b"some data");
    f.fs.setxattr(dir, b"user.a", b"1", XattrMode::Set).unwrap();
    let frozen = f.fs.snapshot(sub, ROOT, b"frozen", true, true).unwrap();
    for _ in 0..2 {
        let dir = f.fs.lookup(frozen, b"dir").unwrap().ino;
        let ino = f.fs.lookup(frozen, b"file").unwrap().ino;
        refused(f.fs.create(Caller::ROOT, frozen, b"new", 0o644), 30);
        refused(f.fs.mkdir(Caller::ROOT, dir, b"new", 0o755), 30);
        refused(f.fs.symlink(Caller::ROOT, dir, b"new", b"target"), 30);
        refused(f.fs.link(ino, frozen, b"new"), 30);
        refused(f.fs.unlink(frozen, b"file"), 30);
        refused(f.fs.rmdir(frozen, b"dir"), 30);
        refused(f.fs.rename(frozen, b"file", frozen, b"new", RenameMode::Replace), 30);
        refused(f.fs.write(Caller::ROOT, ino, 0, b"x"), 30);
        refused(f.fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(1), ..SetAttr::default() }), 30);
        refused(f.fs.setattr(Caller::ROOT, ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }), 30);
        refused(f.fs.setxattr(dir, b"user.b", b"2", XattrMode::Set), 30);
        refused(f.fs.removexattr(dir, b"user.a"), 30);
        refused(f.fs.fallocate(Caller::ROOT, ino, 0, 4096, Allocate::Punch), 30);
        refused(f.fs.fallocate(Caller::ROOT, ino, 0, 4096, Allocate::Reserve { keep_size: true }), 30);
        refused(f.fs.fallocate(Caller::ROOT, ino, 2, 3, Allocate::Punch), 30);
        refused(f.fs.fallocate(Caller::ROOT, ino, 2, 3, Allocate::Zero { keep_size: true }), 30);
        f.fs.sync().unwrap();
        refused(f.fs.create_subvolume(Caller::ROOT, frozen, b"new", 0o755), 30);
        f.fs.note_access(ino, AccessRule::Always).unwrap();
        // Opening and closing are no changes, and a second close is one too many.
        f.fs.open_inode(Caller::ROOT, ino, false).unwrap();
        f.fs.release_inode(ino).unwrap();
        refused(f.fs.release_inode(ino), 22);
        assert_eq!(content(&f, frozen, b"file"), b"some data");
        assert!(f.fs.list_subvolumes().unwrap().iter().any(|info| info.root == frozen && info.read_only));
        f.check();
        f.reopen();
    }
    // Of a read-only one a snapshot can be written to.
    let again = snapshot(&f, frozen, b"again");
    f.fs.unlink(again, b"file").unwrap();
    assert_eq!(f.list(again), [b"dir".to_vec()]);
    assert_eq!(f.list(frozen), [b"dir".to_vec(), b"file".to_vec()]);
    f.check();
}

// Goal: a refusal does not depend on what else is wrong: in a subvolume that is gone every verb is refused as stale, and in a
// read-only one every verb that changes something as read-only, whether there is such an inode and whatever it is asked; but
// a rename out of it as one across a border.
// Method: every verb, of inodes that are there and of one that is not, with arguments that would be refused by themselves,
// and of two subvolumes at once.
#[test]
fn refusals_come_first() {
    let f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    file(&f, sub, b"file", b"some data");
    f.mkdir(sub, b"dir");
    let frozen = f.fs.snapshot(sub, ROOT, b"frozen", true, true).unwrap();
    let gone = f.fs.snapshot(sub, ROOT, b"gone", true, true).unwrap();
    let here = f.fs.lookup(sub, b"file").unwrap().ino;
    let inodes_of = |root: InodeId| {
        let [file, dir] = [b"file" as &[u8], b"dir"].map(|name| f.fs.lookup(root, name).unwrap().ino);
        [file, dir, InodeId(root.0 + 1_000_000)]
    };
    let (of_frozen, of_gone) = (inodes_of(frozen), inodes_of(gone));
    f.fs.delete_subvolume(ROOT, b"gone").unwrap();
    let long = [b'x'; 300];
    for (inodes, errno) in [(of_frozen, 30), (of_gone, 116)] {
        let root = Caller::ROOT;
        for ino in inodes {
            for name in [b"new" as &[u8], b"file", b"missing", &long, b"", b"."] {
                refused(f.fs.create(root, ino, name, 0o644), errno);
                refused(f.fs.mkdir(root, ino, name, 0o755), errno);
                refused(f.fs.symlink(root, ino, name, b"target"), errno);
                refused(f.fs.symlink(root, ino, name, b""), errno);
                refused(f.fs.link(ino, ino, name), errno);
                refused(f.fs.link(here, ino, name), errno);
                refused(f.fs.unlink(ino, name), errno);
                refused(f.fs.rmdir(ino, name), errno);
                for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
                    refused(f.fs.rename(ino, name, ino, b"else", mode), errno);
                    // A border comes first: who hears of it makes a copy.
                    let border = if errno == 30 { 18 } else { errno };
                    refused(f.fs.rename(ino, name, sub, b"else", mode), border);
                    refused(f.fs.rename(sub, b"file", ino, name, mode), errno);
                    refused(f.fs.rename(ROOT, b"sub", ino, name, mode), errno);
                }
                refused(f.fs.create_subvolume(root, ino, name, 0o755), errno);
                refused(f.fs.snapshot(sub, ino, name, false, false), errno);
                refused(f.fs.snapshot(here, ino, name, false, false), errno);
                refused(f.fs.delete_subvolume(ino, name), errno);
                refused(f.fs.clone_file(root, here, ino, name), errno);
                refused(f.fs.setxattr(ino, name, b"1", XattrMode::Set), errno);
                refused(f.fs.removexattr(ino, name), errno);
            }
            refused(f.fs.setxattr(ino, b"user.a", &[0; 70_000], XattrMode::Replace), errno);
            refused(f.fs.removexattr(ino, b"user.a"), errno);
            let owner = SetAttr { uid: Some(1), ..SetAttr::default() };
            let [size, far] = [1, u64::MAX].map(|size| SetAttr { size: Some(size), ..SetAttr::default() });
            let both = SetAttr { mode: Some(0o600), ..size };
            let time = Timestamp { seconds: 0, nanoseconds: 1_000_000_000 };
            let never = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
            for set in [owner, size, far, both, never] {
                refused(f.fs.setattr(root, ino, set), errno);
            }
            refused(f.fs.open_inode(root, ino, true), errno);
            refused(f.fs.write(root, ino, 0, b"x"), errno);
            refused(f.fs.write(root, ino, 0, b""), errno);
            refused(f.fs.write(root, ino, u64::MAX, b"x"), errno);
            refused(f.fs.fallocate(root, ino, 0, 0, Allocate::Punch), errno);
            refused(f.fs.fallocate(root, ino, u64::MAX, 1, Allocate::Punch), errno);
            refused(f.fs.collapse_range(root, ino, 0, 1), errno);
            refused(f.fs.insert_range(root, ino, 0, 4096), errno);
            for from in [here, sub, InodeId(sub.0 + 1_000_000)] {
                refused(f.fs.copy_range(root, (from, 0), (ino, 0), 4), errno);
                refused(f.fs.copy_range(root, (from, 0), (ino, 0), 0), errno);
                refused(f.fs.clone_range(root, (from, 0), (ino, 0), 4), errno);
                refused(f.fs.dedupe_range((from, 0), (ino, 0), 4), errno);
            }
        }
    }
    let ([file, dir, missing], [old_file, old_dir, _]) = (of_frozen, of_gone);
    // A link into another subvolume would change nothing of what it is to: who hears of the border makes a copy. What cannot be
    // linked anywhere is refused as that.
    for name in [b"new" as &[u8], b"file"] {
        refused(f.fs.link(file, sub, name), 18);
        refused(f.fs.link(dir, sub, name), 1);
        refused(f.fs.link(missing, sub, name), 2);
        refused(f.fs.link(old_file, sub, name), 116);
    }
    // What is gone comes before what is read-only, whichever is asked first.
    refused(f.fs.link(file, old_dir, b"new"), 116);
    refused(f.fs.link(old_file, dir, b"new"), 116);
    refused(f.fs.rename(dir, b"a", old_dir, b"b", RenameMode::Replace), 116);
    refused(f.fs.rename(old_dir, b"a", dir, b"b", RenameMode::Replace), 116);
    refused(f.fs.snapshot(gone, dir, b"new", false, false), 116);
    refused(f.fs.clone_file(Caller::ROOT, old_file, dir, b"new"), 116);
    refused(f.fs.copy_range(Caller::ROOT, (old_file, 0), (file, 0), 4), 116);
    refused(f.fs.clone_range(Caller::ROOT, (old_file, 0), (file, 0), 4), 116);
    refused(f.fs.dedupe_range((old_file, 0), (file, 0), 4), 116);
    f.check();
}

// Goal: a rename that copies up one of two clones and lets go of the other counts both. Method: an inherited file over one
// that is the snapshot's own, over one that is open, and two inherited ones exchanged; all clones of one file.
#[test]
fn renames_of_clones() {
    let f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let data = pattern(4, 50_000);
    let first = file(&f, sub, b"0", &data);
    for n in 1..6 {
        f.fs.clone_file(Caller::ROOT, first, sub, n.to_string().as_bytes()).unwrap();
    }
    let snap = snapshot(&f, sub, b"snap");
    let own = f.fs.lookup(snap, b"1").unwrap().ino;
    f.fs.setattr(Caller::ROOT, own, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    f.fs.rename(snap, b"0", snap, b"1", RenameMode::Replace).unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.fs.rename(snap, b"2", snap, b"3", RenameMode::Exchange).unwrap();
    f.check();
    let open = f.fs.lookup(snap, b"5").unwrap().ino;
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    f.fs.rename(snap, b"4", snap, b"5", RenameMode::Replace).unwrap();
    f.check();
    f.fs.delete_subvolume(ROOT, b"sub").unwrap();
    f.fs.release_inode(open).unwrap();
    f.fs.maintain().unwrap();
    f.check();
    for name in f.list(snap) {
        assert_eq!(content(&f, snap, &name), data);
    }
}

// Goal: files that are open and without a name in either side live on and end. Method: unlinked before and after a
// snapshot, in both sides, with reading and the end in different orders.
#[test]
fn orphans() {
    let f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let data = pattern(3, 100_000);
    let early = file(&f, sub, b"early", &data);
    let late = file(&f, sub, b"late", &data);
    f.fs.setxattr(late, b"user.a", b"1", XattrMode::Set).unwrap();
    f.fs.open_inode(Caller::ROOT, early, false).unwrap();
    f.fs.unlink(sub, b"early").unwrap();
    let snap = snapshot(&f, sub, b"snap");
    assert_eq!(f.list(snap), [b"late".to_vec()]);
    let copy = f.fs.lookup(snap, b"late").unwrap().ino;
    for ino in [late, copy] {
        f.fs.open_inode(Caller::ROOT, ino, false).unwrap();
    }
    f.fs.unlink(sub, b"late").unwrap();
    f.fs.unlink(snap, b"late").unwrap();
    f.fs.maintain().unwrap();
    f.write(late, 10, b"only here");
    f.fs.flush_all().unwrap();
    assert_eq!(f.read_all(copy), data);
    assert_eq!(f.read_all(early), data);
    f.check();
    for ino in [copy, early, late] {
        f.fs.release_inode(ino).unwrap();
        f.fs.maintain().unwrap();
        f.check();
    }
}

/// Ends the writers, also when the test fails.
struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

// Goal: snapshots, deletions and the reaper beside threads that change the same subvolume neither stop anybody for ever nor
// mix anything up. Method: writers with a file of one letter each, rewritten whole; every snapshot shows files of one
// letter, and the pool is clean at the end.
#[test]
fn beside_writers() {
    let f = Fixture::new(256 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for writer in 0..3u8 {
            let (f, stop) = (&f, &stop);
            scope.spawn(move || {
                let dir = f.mkdir(sub, &[b'd', b'0' + writer]);
                for round in 0u32.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let letter = b'a' + (round % 26) as u8;
                    let len = if round % 3 == 0 { 500 } else { 20_000 };
                    file(f, dir, b"new", &vec![letter; len]);
                    f.fs.rename(dir, b"new", dir, b"file", RenameMode::Replace).unwrap();
                    if round % 5 == 0 {
                        f.fs.unlink(dir, b"file").unwrap();
                    }
                }
            });
        }
        let mut kept = std::collections::VecDeque::new();
        for n in 0..60 {
            let name = format!("snapshot {n}").into_bytes();
            let root = f.fs.snapshot(sub, ROOT, &name, n % 2 == 0, false).unwrap();
            for dir in f.list(root) {
                let dir = f.fs.lookup(root, &dir).unwrap().ino;
                for name in f.list(dir) {
                    let data = content(&f, dir, &name);
                    assert!(data.iter().all(|byte| *byte == data[0]), "a file of two rounds");
                    // A name that was free before is logged without waiting for the data.
                    let len = data.len();
                    assert!(name == b"new" || matches!(len, 0 | 500 | 20_000), "{len} bytes");
                }
            }
            if n % 2 == 1 {
                f.fs.create(Caller::ROOT, root, b"mark", 0o644).unwrap();
            }
            kept.push_back(name);
            if kept.len() > 5 {
                f.fs.delete_subvolume(ROOT, &kept.pop_front().unwrap()).unwrap();
            }
            if n % 4 == 0 {
                f.fs.maintain().unwrap();
            }
        }
    });
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: what is shared can be deleted on a pool filled to its last block, and that frees its space. Method: fill it beside
// a snapshot, unlink what is inherited, delete the snapshot, fill it again.
#[test]
fn full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let fill = |f: &Fixture, name: &str| {
        let mut files = 0;
        let chunk = pattern(9, 256 << 10);
        loop {
            let name = format!("{name}{files}");
            let Ok(attr) = f.fs.create(Caller::ROOT, sub, name.as_bytes(), 0o644) else { return files };
            files += 1;
            for at in 0..4u64 {
                match f.fs.write(Caller::ROOT, attr.ino, at * (256 << 10), &chunk) {
                    Ok(written) if written == chunk.len() => {}
                    _ => return files,
                }
            }
        }
    };
    let files = fill(&f, "old");
    assert!(files > 30, "{files} files");
    f.fs.flush_all().unwrap();
    // Room for the snapshot's record.
    f.fs.unlink(sub, b"old0").unwrap();
    f.fs.maintain().unwrap();
    f.fs.snapshot(sub, ROOT, b"snapshot", true, true).unwrap();
    for n in 1..files {
        f.fs.unlink(sub, format!("old{n}").as_bytes()).unwrap();
    }
    f.fs.maintain().unwrap();
    f.check();
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    let again = fill(&f, "new");
    assert!(again + 2 >= files, "{again} files fit after {files}");
    f.fs.flush_all().unwrap();
    f.reopen();
    f.check();
}

// Goal: what is refused uses up no slot, of which there are a million. Method: subvolumes, and snapshots in a directory of the
// source's family and of another's, are refused on a full pool again and again; the next one has the slot after the last.
#[test]
fn refused_ones_use_up_no_slots() {
    let mut f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let big = f.create(b"big");
    let mut left = 0;
    for len in [1 << 20, 4096] {
        while let Ok(written) = f.fs.write(Caller::ROOT, big, left, &pattern(3, len)) {
            left += written as u64;
        }
    }
    f.fs.sync().unwrap();
    let long = |n: u64| [format!("{n}-").as_bytes(), &[b'x'; 240]].concat();
    // Some may find a place in nodes that are there.
    let (mut made, mut refused) = (1, 0);
    for n in 0.. {
        let name = long(n);
        let result = match n % 3 {
            0 => f.fs.create_subvolume(Caller::ROOT, ROOT, &name, 0o755).map(|attr| attr.ino),
            1 => f.fs.snapshot(sub, ROOT, &name, false, false),
            _ => f.fs.snapshot(sub, sub, &name, false, false),
        };
        match result {
            Ok(_) => made += 1,
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                refused += 1;
            }
        }
        if refused == 60 {
            break;
        }
        assert!(made < 1000, "the pool is not full");
    }
    f.truncate(big, left / 2);
    f.fs.maintain().unwrap();
    let next = f.fs.snapshot(sub, ROOT, b"next", false, false).unwrap();
    assert_eq!(Slot::of(next), Slot(made + 1), "{made} were made");
    f.check();
    f.reopen();
    assert_eq!(Slot::of(make(&f, ROOT, b"later")), Slot(made + 2));
    f.check();
}

// Goal: what the list costs grows with the subvolumes and with the directories above them, not with their product, and its
// pages fit together whatever happens between them. Method: very many in one directory, and one in each of many directories;
// names that the ways take to find, counted; pages against the whole, then with deletions and moves between pages.
#[test]
fn long_list() {
    let f = Fixture::new(256 * MIB);
    let (shelf, days) = (f.mkdir(ROOT, b"shelf"), f.mkdir(ROOT, b"days"));
    let name = |at: u64| format!("snapshot-{at}").into_bytes();
    let mut expected = vec![b"/".to_vec()];
    for at in 0..20_000 {
        f.fs.snapshot(ROOT, shelf, &name(at), true, false).unwrap();
        expected.push([&b"/shelf/"[..], &name(at)].concat());
    }
    let mut dirs = Vec::new();
    for at in 0..500u64 {
        dirs.push(f.mkdir(days, at.to_string().as_bytes()));
        f.fs.snapshot(ROOT, dirs[at as usize], b"s", true, false).unwrap();
        expected.push(format!("/days/{at}/s").into_bytes());
    }
    let paths = |infos: &[SubvolumeInfo]| infos.iter().map(|info| info.path.clone()).collect::<Vec<_>>();
    let all = f.fs.list_subvolumes().unwrap();
    assert_eq!(paths(&all), expected);
    let mut ways = varve_fs::internals::ops::listing::Ways::default();
    ways.find(f.fs.core(), dirs.iter().copied().chain([shelf; 1000])).unwrap();
    assert!(ways.looks <= 600, "{} names for 501 directories", ways.looks);
    // Pages: each begins behind the last of the one before, whether that is still there or not.
    let (mut listed, mut next, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(after) = next {
        let page = f.fs.list_subvolumes_after(after, 3000).unwrap();
        assert!(page.subvolumes.len() <= 3000 && page.next.is_none_or(|next| next > after));
        listed.extend(page.subvolumes);
        (next, pages) = (page.next, pages + 1);
        if pages == 1 {
            // The last that was listed, the next, and one that moves to where none of its neighbours is.
            f.fs.delete_subvolume(shelf, &name(2998)).unwrap();
            f.fs.delete_subvolume(shelf, &name(2999)).unwrap();
            f.fs.rename(shelf, &name(3000), ROOT, b"moved", RenameMode::Replace).unwrap();
            f.fs.rename(ROOT, b"days", shelf, b"days", RenameMode::Replace).unwrap();
        }
    }
    let kept = all.iter().filter(|info| info.path != b"/shelf/snapshot-2999");
    let now = |path: &[u8]| match path {
        b"/shelf/snapshot-3000" => b"/moved".to_vec(),
        path if path.starts_with(b"/days/") => [b"/shelf", path].concat(),
        path => path.to_vec(),
    };
    let expected: Vec<_> = kept.map(|info| SubvolumeInfo { path: now(&info.path), ..info.clone() }).collect();
    assert_eq!((pages, listed), (7, expected));
}

// Goal: subvolumes can be made as long as there are not too many, however many there have been. Method: a pool whose newest one has the
// last number there is, opened again.
#[test]
fn numbers_of_subvolumes_are_used_again() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    f.fs.core().subvolumes.keep_slot(Slot(SUBVOLUME_SLOTS - 2));
    let kept = f.fs.snapshot(sub, ROOT, b"kept", true, true).unwrap();
    assert_eq!(Slot::of(kept).0, SUBVOLUME_SLOTS - 1);
    f.reopen();
    let mut slots = Vec::new();
    for n in 0..20 {
        let name = format!("next{n}").into_bytes();
        slots.push(Slot::of(f.fs.create_subvolume(Caller::ROOT, ROOT, &name, 0o755).unwrap().ino).0);
        f.fs.delete_subvolume(ROOT, &name).unwrap();
        f.fs.maintain().unwrap();
    }
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 20, "none twice while the pool is open");
    assert!(!slots.contains(&Slot::of(sub).0) && !slots.contains(&0));
    f.check();
}

// Goal: what a directory would inherit, the root of a subvolume does: group, set-group-id, flags, what the default list leaves of the
// permissions, and the lists. Method: a directory and a subvolume made in one that has all of it, and in one that has nothing, with each
// of several modes and umasks; what was made is compared, also after the pool has been opened again.
#[test]
fn the_root_inherits_what_a_directory_does() {
    let mut f = Fixture::new(64 * MIB);
    let user = Caller { uid: 7, gid: 8 };
    let list = |group: u8, other: u8| {
        let mut list = vec![2, 0, 0, 0];
        for (tag, bits, id) in [
            (1, 7, u32::MAX),
            (2, 6, 1234),
            (4, group, u32::MAX),
            (0x10, 7, u32::MAX),
            (0x20, other, u32::MAX),
        ] {
            list.extend([tag, 0, bits, 0]);
            list.extend(id.to_le_bytes());
        }
        list
    };
    let bare = f.mkdir(ROOT, b"bare");
    let team = f.mkdir(ROOT, b"team");
    let set = SetAttr { mode: Some(0o2770), gid: Some(50), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, team, set).unwrap();
    f.fs.setxattr(team, varve_fs::internals::acl::DEFAULT, &list(5, 0), XattrMode::Set).unwrap();
    f.fs.set_flags(Caller::ROOT, team, FileFlags::NO_DUMP | FileFlags::DURABLE).unwrap();
    let mut pairs = Vec::new();
    for (n, (above, mode, umask)) in [bare, team]
        .into_iter()
        .flat_map(|above| [(above, 0o777, 0o22), (above, 0o755, 0), (above, 0o700, 0o77)])
        .enumerate()
    {
        let new = NewInode { kind: FileKind::Directory, mode, umask, rdev: 0, set_gid_judged: false };
        let directory = f.fs.make(user, above, format!("d{n}").as_bytes(), new).unwrap();
        let name = format!("s{n}");
        let sub = f.fs.create_subvolume_masked(user, above, name.as_bytes(), mode, umask).unwrap();
        pairs.push((directory.ino, sub.ino));
        assert_eq!((directory.mode, directory.gid), (sub.mode, sub.gid), "{n}");
        file(&f, sub.ino, b"file", b"x");
    }
    assert_eq!(f.fs.getattr(pairs[3].1).unwrap().mode, 0o2770);
    for _ in 0..2 {
        for (directory, sub) in &pairs {
            let seen = |ino: InodeId| {
                let attr = f.fs.getattr(ino).unwrap();
                let mut xattrs: Vec<_> = f.fs.listxattr(ino).unwrap();
                xattrs.sort();
                let values: Vec<_> = xattrs.iter().map(|name| f.fs.getxattr(ino, name).unwrap()).collect();
                (attr.mode, attr.uid, attr.gid, attr.flags, xattrs, values)
            };
            assert_eq!(seen(*directory), seen(*sub));
        }
        f.check();
        f.reopen();
    }
}

// Goal: nobody makes a program that runs as a group that he is not in, unless somebody who knows better allows it. Method: files in a
// directory with the set-group-id bit, by its group and by others.
#[test]
fn set_group_id_is_not_inherited_by_strangers() {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let set = SetAttr { mode: Some(0o2777), gid: Some(50), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, dir, set).unwrap();
    for (n, (uid, gid, mode, made)) in (0..).zip([
        (7, 8, 0o2775, 0o775),
        (7, 8, 0o2765, 0o2765),
        (7, 50, 0o2775, 0o2775),
        (0, 0, 0o2775, 0o2775),
        (7, 8, 0o6775, 0o4775),
    ]) {
        let caller = Caller { uid, gid };
        for (set_gid_judged, made) in [(false, made), (true, mode)] {
            let new = NewInode { kind: FileKind::File, mode, umask: 0, rdev: 0, set_gid_judged };
            let attr = f.fs.make(caller, dir, format!("{n} {set_gid_judged}").as_bytes(), new).unwrap();
            let new = NewNameless { mode, umask: 0, linkable: true, set_gid_judged };
            let other = f.fs.tmpfile(caller, dir, new).unwrap();
            assert_eq!([attr, other].map(|attr| (attr.mode, attr.gid)), [(made, 50); 2], "{n}, {new:?}");
        }
    }
}

// Goal: whoever asks hears of the same number of links. Method: a directory with subvolumes in it, by each verb that tells.
#[test]
fn links_are_counted_by_every_verb() {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    make(&f, dir, b"one");
    make(&f, dir, b"two");
    f.mkdir(dir, b"three");
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let links = [
        f.fs.setattr(Caller::ROOT, dir, set).unwrap().links,
        f.fs.getattr(dir).unwrap().links,
        f.fs.lookup(ROOT, b"dir").unwrap().links,
        f.fs.lookup(dir, b".").unwrap().links,
    ];
    assert_eq!(links, [5; 4]);
}
