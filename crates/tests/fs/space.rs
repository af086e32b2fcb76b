//! A pool without space.

use varve_engine::{EngineError, TreeId};

use super::reaping::{mend, spoil};
use super::*;
use varve_fs::internals::subvolume::Slot;
use varve_fs::internals::writeback::{Group, Ride};

pub(super) fn fill(f: &Fixture, name: &[u8]) -> (varve_engine::InodeId, u64) {
    let ino = f.create(name);
    let data = pattern(9, 1 << 20);
    let mut offset = 0;
    loop {
        match f.fs.write(Caller::ROOT, ino, offset, &data) {
            Ok(written) => {
                assert!(written > 0);
                offset += written as u64;
            }
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                return (ino, offset);
            }
        }
    }
}

// Goal: what was accepted is there, and a full pool can be cut and deleted from. Method: fill to the last block, sync,
// kill, compare; then truncate, unlink, fill again to about the same.
#[test]
fn filled_to_the_last_block() {
    let mut f = Fixture::new(64 * MIB);
    let small: Vec<_> = (0..50).map(|i| f.create(format!("small{i}").as_bytes())).collect();
    for ino in &small {
        f.write(*ino, 0, &[3; 3000]);
    }
    f.fs.sync().unwrap();
    let (ino, len) = fill(&f, b"big");
    assert!(len > 40 * MIB, "{len}");
    assert_eq!(f.fs.getattr(ino).unwrap().size, len);
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    let data = pattern(9, 1 << 20);
    let mut at = 0;
    while at < len {
        let got = f.fs.read(ino, at, 1 << 20).unwrap();
        // Short writes shift the pattern: each write began with its start.
        assert!(!got.is_empty());
        at += got.len() as u64;
    }
    assert!(f.fs.read(ino, 0, 1 << 20).unwrap() == data);
    // Accepted without space for one more: refused; but cutting and deleting work.
    f.truncate(ino, len / 2 + 17);
    f.check();
    for i in 0..50 {
        f.fs.unlink(ROOT, format!("small{i}").as_bytes()).unwrap();
    }
    f.fs.unlink(ROOT, b"big").unwrap();
    f.check();
    let (_, again) = fill(&f, b"big2");
    assert!(again + 2 * MIB > len, "{again} after {len}");
    f.fs.sync().unwrap();
    f.check();
    f.fs.unlink(ROOT, b"big2").unwrap();
    f.check();
}

// Goal: creating many files on a full pool ends with ENOSPC, and all of them can be removed. Method: create until
// refused, remove all, check.
#[test]
fn full_of_names() {
    let f = Fixture::new(64 * MIB);
    let (big, len) = fill(&f, b"big");
    f.truncate(big, len - 2 * MIB);
    let mut count = 0u32;
    loop {
        let name = format!("{:0200}", count);
        match f.fs.create(Caller::ROOT, ROOT, name.as_bytes(), 0o644) {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error.errno(), 28);
                break;
            }
        }
    }
    assert!(count > 100, "{count}");
    f.check();
    for i in 0..count {
        f.fs.unlink(ROOT, format!("{i:0200}").as_bytes()).unwrap();
    }
    f.fs.unlink(ROOT, b"big").unwrap();
    f.fs.sync().unwrap();
    f.check();
}

// Goal: a subvolume, a snapshot or a move of one that is refused leaves the times of its directory as they are. Method: give
// a full pool a block after the other until it is accepted; compare after each refusal.
#[test]
fn refused_subvolumes_leave_no_times() {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    f.fs.create_subvolume(Caller::ROOT, ROOT, b"old", 0o755).unwrap();
    let (big, len) = fill(&f, b"big");
    let mut left = len;
    let verbs: [(&str, &dyn Fn() -> varve_fs::internals::Result<()>); 3] = [
        ("create", &|| f.fs.create_subvolume(Caller::ROOT, dir, b"new", 0o755).map(drop)),
        ("rename", &|| f.fs.rename(ROOT, b"old", dir, b"moved", RenameMode::Replace)),
        ("snapshot", &|| f.fs.snapshot(ROOT, dir, b"snapshot", false, false).map(drop)),
    ];
    for (what, verb) in verbs {
        // What is left over from the verb before is filled again.
        while f.fs.write(Caller::ROOT, big, left, &[1; 4096]).is_ok() {
            left += 4096;
        }
        let mut refused = 0;
        loop {
            let times = |attr: Attr| (attr.mtime, attr.ctime);
            let before = times(f.fs.getattr(dir).unwrap());
            match verb() {
                Ok(()) => break,
                Err(error) => assert_eq!(error.errno(), 28, "{what}: {error}"),
            }
            assert_eq!(times(f.fs.getattr(dir).unwrap()), before, "{what}, refused {refused} times before");
            refused += 1;
            left = left / 4096 * 4096 - 4096;
            f.truncate(big, left);
            f.fs.sync().unwrap();
        }
        assert!(refused > 0, "{what}");
        f.check();
    }
}

// Goal: a directory that has lost a subvolume has new times, however full the pool is. Method: a directory with two subvolumes,
// whose record a snapshot holds, too, on a pool filled to its last block: one is deleted; blocks are given back one by one until
// the other can be moved away, and the times are compared after both. Then a crash, and once more.
#[test]
fn lost_subvolumes_are_noted_on_a_full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let inside = f.fs.create_subvolume(Caller::ROOT, ROOT, b"inside", 0o755).unwrap().ino;
    let dir = f.mkdir(inside, b"dir");
    for name in [b"deleted", b"renamed"] {
        f.fs.create_subvolume(Caller::ROOT, dir, name, 0o755).unwrap();
    }
    f.fs.snapshot(inside, ROOT, b"snapshot", true, true).unwrap();
    let (big, mut left) = fill(&f, b"big");
    while f.fs.write(Caller::ROOT, big, left, &[1; 4096]).is_ok() {
        left += 4096;
    }
    f.fs.sync().unwrap();
    let times = |f: &Fixture| {
        let attr = f.fs.getattr(dir).unwrap();
        (attr.mtime, attr.ctime)
    };
    let before = times(&f);
    f.fs.delete_subvolume(dir, b"deleted").unwrap();
    let after = times(&f);
    assert!(after.0 > before.0 && after.1 > before.1, "{after:?} after {before:?}");
    while let Err(error) = f.fs.rename(dir, b"renamed", ROOT, b"moved", RenameMode::Replace) {
        assert_eq!(error.errno(), 28, "{error}");
        assert_eq!(times(&f), after);
        left = left / 4096 * 4096 - 4096;
        f.truncate(big, left);
        f.fs.sync().unwrap();
    }
    let moved = times(&f);
    assert!(moved.0 > after.0 && moved.1 > after.1, "{moved:?} after {after:?}");
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    assert_eq!(times(&f), moved);
}

// Goal: a copy is not refused where a write is accepted, and gives as much as fits. Method: a source of many extents, which
// takes much to share; give a full pool a block after the other until something of it is copied; after each refusal a write
// of a block to the same place is refused, too.
#[test]
fn a_copy_takes_what_a_write_takes() {
    let f = Fixture::new(64 * MIB);
    let (source, target) = (f.create(b"source"), f.create(b"target"));
    let data = pattern(5, 4096);
    (0..400).for_each(|n| f.write(source, n * 8192, &data));
    f.write(target, 0, &[1; 4096]);
    f.fs.sync().unwrap();
    let (big, mut left) = fill(&f, b"big");
    while f.fs.write(Caller::ROOT, big, left, &[1; 4096]).is_ok() {
        left += 4096;
    }
    f.fs.sync().unwrap();
    let mut refused = 0;
    let copied = loop {
        match f.fs.copy_range(Caller::ROOT, (source, 0), (target, MIB), 400 * 8192) {
            Ok(copied) => break copied,
            Err(error) => assert_eq!(error.errno(), 28, "{error}"),
        }
        let written = f.fs.write(Caller::ROOT, target, MIB, &data).map_err(|error| error.errno());
        assert_eq!(written, Err(28), "refused {refused} times before, {:?}", f.fs.space());
        refused += 1;
        left = left / 4096 * 4096 - 4096;
        f.truncate(big, left);
        f.fs.sync().unwrap();
    };
    assert!(copied > 0);
    let same =
        f.fs.read(target, MIB, copied as usize).unwrap() == f.fs.read(source, 0, copied as usize).unwrap();
    assert!(same, "{copied} bytes copied");
    f.fs.sync().unwrap();
    f.check();
}

// Goal: who needs a block waits until there is one, and not until everything that has been deleted is reaped. Method: a full
// pool with thousands of deleted files to reap; a write and a new file go through and leave most of them. All that is there
// is found in the end, when the writes go on.
#[test]
fn space_is_waited_for_and_no_longer() {
    let f = Fixture::new(64 * MIB);
    let names = || (0..3000).map(|number| format!("small{number}").into_bytes());
    let files: Vec<_> = names().map(|name| f.create(&name)).collect();
    for ino in &files {
        f.write(*ino, 0, &[5; 4096]);
        // What holds reservations is left to the reaper.
        f.fs.fallocate(Caller::ROOT, *ino, 4096, 4096, Allocate::Reserve { keep_size: true }).unwrap();
    }
    f.fs.sync().unwrap();
    let (big, len) = fill(&f, b"big");
    names().for_each(|name| f.fs.unlink(ROOT, &name).unwrap());
    let backlog = || f.fs.core().reap.backlog();
    let deleted = backlog();
    assert!(deleted > 2000, "{deleted}");
    assert_eq!(f.fs.write(Caller::ROOT, big, len, &[1; 4096]).unwrap(), 4096);
    f.fs.create(Caller::ROOT, ROOT, b"new", 0o644).unwrap();
    assert!(backlog() > deleted / 2, "{} of {deleted} are left", backlog());
    let (_, more) = fill(&f, b"more");
    assert!(more > 10 * MIB && backlog() == 0, "{more}, {} left", backlog());
    f.check();
}

// Goal: what had been set aside when the pool was last in use is found again as far as there is space, to the block, and what
// is missing is taken when there is some; meanwhile what deletes has its room, and what was accepted is logged. Method: more than
// there is asked for, twice; then all reservations are forgotten in a full pool with a dirty file, as an opening would that finds
// no space for them, and others are removed.
#[test]
fn what_was_set_aside_is_found_again() {
    let f = Fixture::new(64 * MIB);
    let store = &f.fs.core().store;
    let most = store.reserve_part(1 << 20, true).unwrap();
    assert!(most.data_blocks() * 4096 > 40 * MIB, "{}", most.data_blocks());
    assert!(store.reserve_part(1 << 20, true).unwrap().data_blocks() <= 1);
    assert!(store.reserve_again(1 << 20, 1 << 20, 24).unwrap().is_none());
    // The other half of what is protected.
    assert!(store.reserve_again(300, 300, 24).unwrap().is_some());
    drop(most);
    let ino = f.create(b"reserved");
    f.fs.fallocate(Caller::ROOT, ino, 0, 16 * MIB, Allocate::Reserve { keep_size: true }).unwrap();
    let dirty = f.create(b"dirty");
    fill(&f, b"big");
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    let core = f.fs.core();
    // Others have taken it.
    core.forget_reserved();
    f.write(dirty, 0, &[3; 8192]);
    let taken = store.reserve_part(1 << 20, false).unwrap();
    assert!(taken.data_blocks() * 4096 > 15 * MIB);
    core.set_reserved_aside().unwrap();
    let missing = core.take_reserved().unwrap();
    assert!(missing * 4096 > 14 * MIB && core.reserved_is_short(), "{missing}");
    f.fs.sync().unwrap();
    // So that they give back to others nothing but what they held.
    f.fs.unlink(ROOT, b"dirty").unwrap();
    f.fs.unlink(ROOT, b"big").unwrap();
    drop(taken);
    for _ in 0..2 {
        f.fs.maintain().unwrap();
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
    }
    f.fs.maintain().unwrap();
    assert!(!core.reserved_is_short());
    let data = pattern(2, 16 << 20);
    fill(&f, b"more");
    assert_eq!(f.fs.write(Caller::ROOT, ino, 0, &data).unwrap(), data.len());
    f.fs.sync().unwrap();
    f.check();
}

// Goal: a full pool opens and can be deleted from, whatever is missing of what was set aside and however much waits to be
// reaped. Method: reservations of a whole file's size, others that are removed and not reaped, a full pool, a kill; again and
// again with less and less room left.
#[test]
fn a_short_pool_opens() {
    let mut f = Fixture::new(64 * MIB);
    let kept = f.create(b"kept");
    f.fs.fallocate(Caller::ROOT, kept, 0, 8 * MIB, Allocate::Reserve { keep_size: false }).unwrap();
    for round in 0..4 {
        let names = || (0..400).map(move |number| format!("small{round}-{number}").into_bytes());
        for name in names() {
            let ino = f.create(&name);
            f.write(ino, 0, &[5; 4096]);
            f.fs.fallocate(Caller::ROOT, ino, 4096, 8192, Allocate::Reserve { keep_size: true }).unwrap();
        }
        let name = format!("big{round}").into_bytes();
        fill(&f, &name);
        f.fs.sync().unwrap();
        names().for_each(|name| f.fs.unlink(ROOT, &name).unwrap());
        f.fs.sync().unwrap();
        f.kill();
        f.check();
        assert!(!f.fs.core().reserved_is_short());
        f.fs.unlink(ROOT, &name).unwrap();
    }
    fill(&f, b"rest");
    let data = pattern(2, 8 << 20);
    assert_eq!(f.fs.write(Caller::ROOT, kept, 0, &data).unwrap(), data.len());
    f.fs.sync().unwrap();
    f.check();
}

// Goal: files whose write-back has failed together each keep the space for what they have, whatever becomes of the others. Method:
// two files taken in one group, which fails; the first is written, or cut, and others take all the space there is; the
// second is written.
#[test]
fn who_fails_together_keeps_his_own_space() {
    for cut in [false, true] {
        let f = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 128 * MIB);
        let files = [(f.create(b"a"), 100), (f.create(b"b"), 200)];
        for (ino, pages) in files {
            f.write(ino, 0, &pattern(ino.0, pages * 4096));
        }
        let core = f.fs.core();
        let mut group = Group::default();
        for (ino, _) in files {
            assert!(core.take(core.state(ino).turn(), u64::MAX, &mut group).unwrap().is_none());
        }
        drop(core.finish(group, Err(FsError::Engine(varve_engine::EngineError::NoSpace))));
        for (ino, pages) in files {
            let (state, blocks) = (core.state(ino), |r: &varve_engine::Reservation| r.data_blocks());
            let inner = state.inner.read();
            let kept = inner.pages.reservation.as_ref().map(blocks);
            assert_eq!((inner.pages.dirty, kept), (pages as u64, Some(pages as u64)));
        }
        let [(first, _), (second, pages)] = files;
        if cut {
            f.truncate(first, 0);
        } else {
            f.fs.flush_file(first).unwrap();
        }
        fill(&f, b"big");
        f.fs.flush_file(second).unwrap();
        assert!(f.read_all(second) == pattern(second.0, pages * 4096));
        f.fs.sync().unwrap();
        f.check();
    }
}

// Goal: data whose place in the versions cannot be read when it is to be logged keeps its space and leaks none, and is logged
// when that can be read again. Method: a file taken for write-back, alone or beside another, and then frozen by a snapshot; the
// versions of its namespace are garbage while the group is written.
#[test]
fn what_cannot_be_placed_keeps_its_space() {
    for alone in [true, false] {
        let f = Fixture::new(64 * MIB);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let names: &[&[u8]] = if alone { &[b"a"] } else { &[b"a", b"b"] };
        let files: Vec<_> =
            names.iter().map(|name| f.fs.create(Caller::ROOT, sub, name, 0o644).unwrap().ino).collect();
        for ino in &files {
            f.write(*ino, 0, &pattern(ino.0, 20 * 4096));
        }
        let core = f.fs.core();
        let mut group = Group::default();
        for ino in &files {
            assert!(core.take(core.state(*ino).turn(), u64::MAX, &mut group).unwrap().is_none());
        }
        f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
        let family = core.subvolumes.get(Slot::of(sub)).unwrap().family;
        let entries = spoil(&f.fs, TreeId::VERSIONS, family);
        let unused = f.unused_bytes();
        let written = core.write_group(&mut group, Ride::Allowed);
        mend(&f.fs, TreeId::VERSIONS, &entries);
        refused(core.finish(group, written).map(|turns| turns.len()), 5);
        assert_eq!(f.unused_bytes(), unused, "{} files", files.len());
        for ino in &files {
            f.fs.flush_file(*ino).unwrap();
            assert!(f.read_all(*ino) == pattern(ino.0, 20 * 4096));
        }
        f.fs.sync().unwrap();
        f.check();
    }
}

// Goal: what is written to a page that has just been logged as far as a cut will leave it has space of its own. Method: a file
// taken and logged as a cut in its last page does it, or still on its way; before the cut comes, that page is written to; then
// others take all the space there is.
#[test]
fn a_page_that_is_logged_cut_has_space_when_written_to() {
    for in_flight in [false, true] {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"file");
        let mut data = pattern(1, 12_288);
        f.write(ino, 0, &data);
        let core = f.fs.core();
        let mut group = Group::default();
        assert!(core.take(core.state(ino).turn(), 9000, &mut group).unwrap().is_none());
        let write = || f.write(ino, 8200, b"x");
        data[8200] = b'x';
        if in_flight {
            write();
        }
        let written = core.write_group(&mut group, Ride::Allowed);
        drop(core.finish(group, written).unwrap());
        if !in_flight {
            write();
        }
        let taken = f.take_all();
        f.fs.flush_file(ino).unwrap();
        assert!(f.read_all(ino) == data && core.dirty.bytes() == 0);
        drop(taken);
        f.fs.sync().unwrap();
        f.check();
    }
}

// Goal: a symbolic link that is refused leaves nothing behind of a long target. Method: the record of its directory, which a
// snapshot shows too, is garbage where it is to be copied.
#[test]
fn a_refused_link_gives_its_block_back() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let dir = f.mkdir(sub, b"dir");
    f.fs.snapshot(sub, ROOT, b"snapshot", true, true).unwrap();
    let family = f.fs.core().subvolumes.get(Slot::of(sub)).unwrap().family;
    let entries = spoil(&f.fs, TreeId::INODES, family);
    let unused = f.unused_bytes();
    let target = [b'x'; 4000];
    refused(f.fs.symlink(Caller::ROOT, dir, b"link", &target), 5);
    assert_eq!(f.unused_bytes(), unused);
    mend(&f.fs, TreeId::INODES, &entries);
    let link = f.fs.symlink(Caller::ROOT, dir, b"link", &target).unwrap().ino;
    assert_eq!(f.unused_bytes(), unused - 4096);
    assert_eq!(f.fs.readlink(link).unwrap(), target);
    f.check();
}

// Goal: a cut beside a snapshot keeps the file from nothing on a full pool: what was logged cut is logged once more, as the snapshot
// shows it. Method: a file is logged as a cut does it, then a snapshot comes before the cut, and others take all the space there is;
// the cut, a sync, and deleting all of it; or the same without the cut, or with another one in the same page, less or more.
#[test]
fn a_cut_beside_a_snapshot_on_a_full_pool() {
    for then in [Some(9000), None, Some(8500), Some(10_000)] {
        let f = Fixture::new(64 * MIB);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
        let data = pattern(1, 12_288);
        f.write(ino, 0, &data);
        let core = f.fs.core();
        let turn = core.write_back_in_turn(core.state(ino).turn(), 9000, Ride::Allowed).unwrap();
        let snapshot = f.fs.snapshot(sub, ROOT, b"snap", true, false).unwrap();
        drop(turn);
        let taken = f.take_all();
        if let Some(size) = then {
            f.truncate(ino, size);
        }
        f.fs.fsync(ino).unwrap();
        f.fs.sync().unwrap();
        assert!(f.read_all(ino) == data[..then.unwrap_or(12_288) as usize]);
        assert!(f.read_all(f.fs.lookup(snapshot, b"file").unwrap().ino) == data);
        f.check();
        f.fs.unlink(sub, b"file").unwrap();
        f.fs.delete_subvolume(ROOT, b"snap").unwrap();
        f.fs.delete_subvolume(ROOT, b"sub").unwrap();
        drop(taken);
        f.fs.sync().unwrap();
        f.check();
    }
}

// Goal: the same without a snapshot: a page that was logged cut and is then cut elsewhere has what it needs, and no more is set aside
// than is dirty. Method: cuts in the same page to less and to more, on a full pool; what is read, now and after a kill.
#[test]
fn a_page_that_was_logged_cut_is_cut_elsewhere() {
    for size in [8193, 8500, 9000, 9001, 12_000] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"file");
        let data = pattern(1, 12_288);
        f.write(ino, 0, &data);
        let core = f.fs.core();
        drop(core.write_back_in_turn(core.state(ino).turn(), 9000, Ride::Allowed).unwrap());
        let taken = f.take_all();
        f.truncate(ino, size);
        {
            let state = core.state(ino);
            let inner = state.inner.read();
            let pages = &inner.pages;
            let set_aside = pages.reservation.as_ref().map_or(0, |all| all.data_blocks());
            assert_eq!(pages.dirty, set_aside, "cut to {size}");
        }
        f.fs.fsync(ino).unwrap();
        drop(taken);
        // Growing shows nothing of what was behind the cut.
        f.truncate(ino, 12_288);
        let mut wanted = data[..size as usize].to_vec();
        wanted.resize(12_288, 0);
        assert!(f.read_all(ino) == wanted, "cut to {size}");
        f.fs.sync().unwrap();
        f.kill();
        assert!(f.read_all(ino) == wanted, "cut to {size}, after a kill");
        f.check();
    }
}

// Goal: what zeroes parts of blocks waits within the bound of dirty data like what is written. Method: a small hole in each block of
// 64 MiB, with a bound of 2; and in a file that cannot be written back.
#[test]
fn small_holes_keep_to_the_bound_of_dirty_data() {
    let f = Fixture::with(256 * MIB, HASH_KIND_SIPHASH13, 2 * MIB);
    let ino = f.create(b"a");
    for at in 0..64 {
        f.write(ino, at * MIB, &pattern(1, MIB as usize));
    }
    f.fs.sync().unwrap();
    let punch = |block: u64| f.fs.fallocate(Caller::ROOT, ino, block * 4096 + 1, 100, Allocate::Punch);
    let mut most = 0;
    for block in 0..64 * 256 {
        punch(block).unwrap();
        most = most.max(f.fs.core().dirty.bytes());
    }
    assert!((MIB..=2 * MIB + 4096).contains(&most), "{most}");
    f.fs.sync().unwrap();
    f.check();
}

// Goal: pages of a group that failed which were overwritten while they were in flight have one block each, however often that happens.
// Method: a file is taken, overwritten in part, and the group fails, again and again; the blocks that it has, and those of the pool.
#[test]
fn what_is_overwritten_in_flight_has_one_block() {
    let f = Fixture::new(64 * MIB);
    let (ino, other) = (f.create(b"file"), f.create(b"other"));
    let core = f.fs.core();
    let before = f.unused_bytes();
    for alone in [true, false] {
        f.write(ino, 0, &pattern(1, 12_288));
        f.write(other, 0, &pattern(2, 4096));
        for round in 0..5 {
            let mut group = Group::default();
            assert!(core.take(core.state(ino).turn(), u64::MAX, &mut group).unwrap().is_none());
            if !alone {
                assert!(core.take(core.state(other).turn(), u64::MAX, &mut group).unwrap().is_none());
            }
            f.write(ino, 0, &pattern(3 + round, 8192));
            refused(core.finish(group, Err(FsError::Engine(EngineError::NoSpace))).map(drop), 28);
            for (ino, blocks) in [(ino, 3), (other, 1)] {
                let state = core.state(ino);
                let inner = state.inner.read();
                let set_aside = inner.pages.reservation.as_ref().map_or(0, |all| all.data_blocks());
                assert_eq!((inner.pages.dirty, set_aside), (blocks, blocks), "round {round}, alone: {alone}");
            }
        }
        f.fs.sync().unwrap();
        assert!(f.read_all(ino)[..8192] == pattern(7, 8192) && f.read_all(other) == pattern(2, 4096));
    }
    f.fs.unlink(ROOT, b"file").unwrap();
    f.fs.unlink(ROOT, b"other").unwrap();
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    f.fs.checkpoint().unwrap();
    f.check();
    assert_eq!(f.unused_bytes() / MIB, before / MIB);
}

/// A full pool, and the names of many files in it that a snapshot shows, too. The last ones have been `touched` since.
pub(super) fn full_with_a_snapshot(
    touched: usize,
) -> (Fixture, impl DoubleEndedIterator<Item = Vec<u8>> + Clone + Send) {
    let f = Fixture::new(64 * MIB);
    let names = (0..25_000).map(|number| format!("{number:030}").into_bytes());
    for name in names.clone() {
        f.create(&name);
    }
    f.fs.sync().unwrap();
    f.fs.snapshot(ROOT, ROOT, b"snapshot", true, false).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    for name in names.clone().rev().take(touched) {
        f.fs.setattr(Caller::ROOT, f.fs.lookup(ROOT, &name).unwrap().ino, set).unwrap();
    }
    fill(&f, b"big");
    f.fs.sync().unwrap();
    (f, names)
}

// Goal: what is in a full pool can be removed as soon as its snapshots have been deleted, whether these have been reaped or not.
// Method: many files, a snapshot that shows them all, a full pool, with or without a kill; the snapshot is deleted, and all
// files are removed while nothing is reaped but by who needs the space.
#[test]
fn who_removes_waits_for_deleted_snapshots() {
    for kill in [false, true] {
        let (mut f, names) = full_with_a_snapshot(0);
        if kill {
            f.kill();
        }
        f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
        for name in names {
            f.fs.unlink(ROOT, &name).unwrap();
        }
        f.fs.unlink(ROOT, b"big").unwrap();
        f.fs.maintain().unwrap();
        f.check();
    }
}

// Goal: however much has been removed beside a snapshot, it can be deleted and reaped, and all the rest removed. Method: as
// before, but files are removed until a thousand have been refused, and then all that have been touched since; then the snapshot is deleted.
#[test]
fn removing_beside_a_snapshot_leaves_room_to_reap() {
    const TOUCHED: usize = 8000;
    let (f, names) = full_with_a_snapshot(TOUCHED);
    let touched: std::collections::BTreeSet<_> = names.clone().rev().take(TOUCHED).collect();
    let (mut left, mut refused) = (Vec::new(), 0);
    for name in names {
        if refused > 1000 && !touched.contains(&name) {
            left.push(name);
            continue;
        }
        match f.fs.unlink(ROOT, &name) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                left.push(name);
                refused += 1;
            }
        }
    }
    assert!(left.len() > 1000, "{}", left.len());
    // So much can be taken by who is as privileged as the reaper.
    let room = (f.fs.space().protected_bytes / 4096 - f.fs.core().store.float_blocks()) / 4;
    assert!(f.fs.core().store.reserve_again(room, 0, 0).unwrap().is_some());
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    for name in left {
        f.fs.unlink(ROOT, &name).unwrap();
    }
    f.fs.unlink(ROOT, b"big").unwrap();
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: what nobody else shows can be cut and removed, and what is set aside can be written, where so much has been removed beside a snapshot
// that more is refused. Method: files of 1 MiB that were made after a snapshot, and one it shows that has space set aside; files are removed until
// some are refused.
#[test]
fn what_is_nobody_elses_is_removed_where_the_rest_is_refused() {
    let f = Fixture::new(64 * MIB);
    let names = (0..25_000).map(|number| format!("{number:030}").into_bytes());
    for name in names.clone() {
        f.create(&name);
    }
    let log = f.create(b"log");
    let reserve = Allocate::Reserve { keep_size: false };
    f.fs.fallocate(Caller::ROOT, log, 0, MIB, reserve).unwrap();
    f.fs.sync().unwrap();
    f.fs.snapshot(ROOT, ROOT, b"snapshot", true, false).unwrap();
    let (own, cut, set_aside) = (f.create(b"own"), f.create(b"cut"), f.create(b"set aside"));
    f.fs.fallocate(Caller::ROOT, set_aside, 0, MIB, reserve).unwrap();
    f.write(own, 0, &[1; 1 << 20]);
    f.write(cut, 0, &[1; 1 << 20]);
    f.fs.sync().unwrap();
    fill(&f, b"big");
    f.fs.sync().unwrap();
    let refused = names.filter(|name| f.fs.unlink(ROOT, name).is_err()).take(100).count();
    assert_eq!(refused, 100);
    f.write(log, 4096, &[2; 4096]);
    f.fs.fallocate(Caller::ROOT, set_aside, 0, MIB, Allocate::Punch).unwrap();
    f.truncate(cut, 0);
    [&b"cut"[..], b"own"].iter().for_each(|name| f.fs.unlink(ROOT, name).unwrap());
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.maintain().unwrap();
    assert_eq!(f.fs.read(log, 4096, 4096).unwrap(), [2; 4096]);
    f.check();
}

// Goal: who removes something waits for those who read what has been freed, as long as that takes. Method: a view is held while
// a full pool is emptied until that waits; then the view ends.
#[test]
fn who_removes_waits_for_readers() {
    let (f, names) = full_with_a_snapshot(0);
    let core = f.fs.core();
    let view = core.store.view();
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| names.into_iter().try_for_each(|name| f.fs.unlink(ROOT, &name)));
        let reclaims = core.store.stats().reclaims_count;
        while core.store.stats().reclaims_count < reclaims + 10 {
            assert!(!removing.is_finished(), "it does not wait");
            std::thread::yield_now();
        }
        drop(view);
        removing.join().unwrap().unwrap();
    });
    f.check();
}
