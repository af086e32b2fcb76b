//! Writing over what is there, on a pool without space.

use varve_engine::Wanted;
use varve_sim::Rng;

use super::*;

/// Fills the pool with one file, to its last block.
pub(super) fn fill(f: &Fixture) -> InodeId {
    let (ino, mut at) = (f.create(b"full"), 0);
    for len in [1 << 20, 4096] {
        while let Ok(written) = f.fs.write(Caller::ROOT, ino, at, &pattern(99, len)) {
            at += written as u64;
        }
    }
    f.fs.sync().unwrap();
    fill_up(f, ino);
    ino
}

/// The same again, with what has come free.
pub(super) fn fill_up(f: &Fixture, ino: InodeId) {
    let mut at = f.fs.getattr(ino).unwrap().size;
    loop {
        match f.fs.write(Caller::ROOT, ino, at, &[1; 4096]) {
            Ok(written) => at += written as u64,
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                return;
            }
        }
    }
}

pub(super) fn flushes(f: &Fixture) -> u64 {
    f.device.stats().flushes_count
}

pub(super) fn pause(milliseconds: u64) {
    let (mutex, condition) = (Mutex::new(()), parking_lot::Condvar::new());
    condition.wait_for(&mut mutex.lock(), std::time::Duration::from_millis(milliseconds));
}

// Goal: what a file has on a full pool can be written over as often as anybody likes, in large and in small pieces, whether it was
// set aside at first or not; it is all there after a kill, and then everything can be deleted. Method: both kinds beside a file
// that fills the pool, each written three times, in order and block by block in any order; flushes counted.
#[test]
fn a_full_pool_can_be_written_over() {
    for set_aside in [true, false] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"image");
        if set_aside {
            f.fs.fallocate(Caller::ROOT, ino, 0, 8 * MIB, Allocate::Reserve { keep_size: false }).unwrap();
        } else {
            f.write(ino, 0, &pattern(1, 8 << 20));
        }
        let full = fill(&f);
        let mut expected = vec![0; 8 << 20];
        for round in 0..3 {
            let before = flushes(&f);
            for i in 0..8u64 {
                let data = pattern(10 * round + i, 1 << 20);
                f.write(ino, i * MIB, &data);
                expected[(i * MIB) as usize..][..1 << 20].copy_from_slice(&data);
            }
            f.fs.sync().unwrap();
            // 8 MiB in pieces of at most what floats, a commit each, and now and then a checkpoint.
            let by = flushes(&f) - before;
            assert!(by <= 40, "{by} flushes");
            fill_up(&f, full);
        }
        f.check();
        f.kill();
        assert!(f.read_all(ino) == expected, "in order, set aside: {set_aside}");
        let mut rng = Rng::new(5);
        let before = flushes(&f);
        for n in 0..1000u64 {
            let at = rng.below(2048) * 4096;
            // Parts of blocks, too.
            let (at, len) = if n % 3 == 0 { (at + 100, 5000.min((8 << 20) - at - 100)) } else { (at, 4096) };
            let data = pattern(1000 + n, len as usize);
            f.write(ino, at, &data);
            expected[at as usize..][..data.len()].copy_from_slice(&data);
        }
        f.fs.sync().unwrap();
        let by = flushes(&f) - before;
        assert!(by <= 40, "{by} flushes");
        f.check();
        f.kill();
        assert!(f.read_all(ino) == expected, "in any order, set aside: {set_aside}");
        f.fs.unlink(ROOT, b"image").unwrap();
        f.fs.unlink(ROOT, b"full").unwrap();
        f.fs.sync().unwrap();
        f.check();
        assert!(f.fs.statfs().unwrap().free_bytes > 40 * MIB);
    }
}

// Goal: small files can be written over on a full pool, in place or cut first, whatever they end in, and have other times, owners and
// names. Method: many small files, of zeros, with zeros at the end and without, each rewritten, emptied and written, touched and renamed.
#[test]
fn small_files_on_a_full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let name = |i: usize| format!("small{i}").into_bytes();
    let contents = |round: usize, i: usize| {
        let mut bytes = vec![(round * 7 + i) as u8; 100 + 14 * i];
        let len = bytes.len();
        match (round + i) % 3 {
            0 => bytes.fill(0),
            1 => bytes[len / 2..].fill(0),
            _ => {}
        }
        bytes
    };
    let files: Vec<_> = (0..100).map(|i| f.create(&name(i))).collect();
    files.iter().enumerate().for_each(|(i, ino)| f.write(*ino, 0, &contents(0, i)));
    let full = fill(&f);
    for round in 1..6 {
        for (i, ino) in files.iter().enumerate() {
            if (round + i) % 4 == 0 {
                f.truncate(*ino, 0);
            }
            f.write(*ino, 0, &contents(round, i));
        }
        fill_up(&f, full);
    }
    for (i, ino) in files.iter().enumerate() {
        let set = SetAttr { mode: Some(0o600), mtime: Some(SetTime::Now), ..SetAttr::default() };
        f.fs.setattr(Caller::ROOT, *ino, set).unwrap();
        f.fs.rename(ROOT, &name(i), ROOT, format!("other{i}").as_bytes(), RenameMode::NoReplace).unwrap();
    }
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    for (i, ino) in files.iter().enumerate() {
        assert!(f.read_all(*ino) == contents(5, i), "{i}");
        assert_eq!(f.fs.lookup(ROOT, format!("other{i}").as_bytes()).unwrap().mode & 0o777, 0o600);
    }
    f.fs.unlink(ROOT, b"full").unwrap();
    f.fs.sync().unwrap();
    f.check();
}

// Goal: who takes more than he gives back is refused as before: what a snapshot, a clone, or another file's range shows is
// not paid for by what floats, and can be written over when they have gone. Method: each of them on a full pool; a write of
// 1 MiB block by block before and after it is deleted.
#[test]
fn what_others_see_gives_nothing_back() {
    for how in ["snapshot", "clone", "range"] {
        let f = Fixture::new(64 * MIB);
        f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap();
        let home = f.fs.lookup(ROOT, b"home").unwrap().ino;
        let ino = f.fs.create(Caller::ROOT, home, b"image", 0o644).unwrap().ino;
        f.write(ino, 0, &pattern(1, 4 << 20));
        let other = f.create(b"other");
        f.fs.sync().unwrap();
        match how {
            "snapshot" => {
                f.fs.snapshot(home, ROOT, b"copy", true, false).unwrap();
            }
            "clone" => drop(f.fs.clone_file(Caller::ROOT, ino, ROOT, b"copy").unwrap()),
            _ => {
                f.fs.clone_range(Caller::ROOT, (ino, 0), (other, 0), 4 * MIB).unwrap();
            }
        }
        fill(&f);
        let write_all =
            || (0..256).filter(|i| f.fs.write(Caller::ROOT, ino, i * 4096, &[7; 4096]).is_ok()).count();
        let accepted = write_all();
        assert!(accepted < 16, "{how}: {accepted} blocks were accepted");
        f.fs.sync().unwrap();
        f.check();
        match how {
            "snapshot" => f.fs.delete_subvolume(ROOT, b"copy").unwrap(),
            "clone" => f.fs.unlink(ROOT, b"copy").unwrap(),
            _ => f.fs.unlink(ROOT, b"other").unwrap(),
        }
        assert_eq!(write_all(), 256, "{how}");
        f.fs.sync().unwrap();
        f.check();
    }
}

// Goal: many who write over their files at once on a full pool are all served. Method: four threads, a file each, small and
// large writes, a sync now and then.
#[test]
fn many_write_over_a_full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let files: Vec<_> = (0..4u8).map(|i| f.create(&[b'a' + i])).collect();
    files.iter().for_each(|ino| f.write(*ino, 0, &pattern(3, 2 << 20)));
    fill(&f);
    let fs = &f.fs;
    let written = std::thread::scope(|scope| {
        let threads: Vec<_> = (0u64..)
            .zip(&files)
            .map(|(seed, ino)| {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    let mut expected = pattern(3, 2 << 20);
                    for n in 0..300 {
                        let len = [4096, 4096, 65536, 1 << 20][rng.below(4) as usize];
                        let at = (rng.below((2 << 20) - len + 1)) as usize;
                        let data = pattern(1000 * seed + n, len as usize);
                        assert_eq!(fs.write(Caller::ROOT, *ino, at as u64, &data).unwrap(), data.len());
                        expected[at..][..data.len()].copy_from_slice(&data);
                        if n % 50 == 0 {
                            fs.fsync(*ino).unwrap();
                        }
                    }
                    expected
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    assert!(files.iter().zip(&written).all(|(ino, expected)| f.read_all(*ino) == *expected));
}

// Goal: what waits in memory and floats takes no more of what deleting needs than its part, and is given back when the file is
// cut. Method: write over a large file without a sync; compare the books before, meanwhile and after a cut and a sync.
#[test]
fn what_floats_is_bounded() {
    let f = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 64 * MIB);
    let ino = f.create(b"image");
    f.write(ino, 0, &pattern(1, 16 << 20));
    let settled = || {
        f.fs.sync().unwrap();
        f.fs.core().store.checkpoint().unwrap();
        f.fs.space().reserved_bytes
    };
    let before = settled();
    fill(&f);
    let float = f.fs.core().store.float_blocks() * 4096;
    let over = || {
        let space = f.fs.space();
        let used = space.fixed_bytes + space.used_bytes + space.held_back_bytes + space.reserved_bytes;
        (used + space.protected_bytes).saturating_sub(space.total_bytes)
    };
    let mut most = 0;
    for i in 0..128u64 {
        f.write(ino, i << 17, &pattern(i, 1 << 17));
        most = most.max(over());
    }
    // The data, and its share of what describes it.
    assert!(most > 0 && most <= float + float / 2, "{most} of {float}");
    f.truncate(ino, 0);
    assert_eq!(settled(), before);
    assert_eq!(over(), 0);
    let all = f.fs.core().store.float_blocks();
    assert!(
        f.fs.core()
            .store
            .reserve_float(Wanted { data_blocks: all, ..Wanted::default() }, false)
            .unwrap()
            .is_some(),
        "all of it is there again"
    );
    f.check();
}

// Goal: zeroing a part of a block, and what goes past the kernel's cache or was stored through mmap, finds what floats, too.
// Method: punches of odd ranges, and whole writes, on a full pool.
#[test]
fn zeroed_and_written_whole_on_a_full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let ino = f.create(b"image");
    let mut expected = pattern(1, 4 << 20);
    f.write(ino, 0, &expected);
    fill(&f);
    for i in 0..20usize {
        let at = i * 40_000 + 77;
        f.fs.fallocate(Caller::ROOT, ino, at as u64, 1000, Allocate::Punch).unwrap();
        expected[at..at + 1000].fill(0);
    }
    for i in 0..4u64 {
        let data = pattern(50 + i, 1 << 20);
        let mut buf = AlignedBuf::new(1 << 20);
        buf.copy_from_slice(&data);
        f.fs.write_whole(Caller::ROOT, ino, i * MIB, &mut buf, 1 << 20).unwrap();
        expected[(i * MIB) as usize..][..1 << 20].copy_from_slice(&data);
    }
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    assert!(f.read_all(ino) == expected);
}

// Goal: what goes past the kernel's cache, or was stored through mmap, is stored where it gives back what it takes, though a page in front of
// it is refused. Method: the first block of a file is another's, too; all of it is written at once, on a full pool.
#[test]
fn written_whole_behind_what_is_refused() {
    let mut f = Fixture::new(64 * MIB);
    let (ino, other) = (f.create(b"image"), f.create(b"other"));
    let (old, new) = (pattern(1, 1 << 20), pattern(2, 1 << 20));
    f.write(ino, 0, &old);
    f.fs.sync().unwrap();
    f.fs.clone_range(Caller::ROOT, (ino, 0), (other, 0), 4096).unwrap();
    fill(&f);
    // Not even one more block: what is left may be for a part of what it would take.
    let _taken = f.take_all();
    refused(f.fs.write_whole(Caller::ROOT, ino, 0, &mut AlignedBuf::from_slice(&new), 1 << 20), 28);
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    let found = f.read_all(ino);
    assert!(found[..4096] == old[..4096] && found[4096..] == new[4096..]);
}

// Goal: who waits for others who have what floats finds what these have brought back. Method: the queue is held while another
// writes; flushes counted.
#[test]
fn who_has_waited_looks_first() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"image");
    f.write(ino, 0, &pattern(1, 1 << 20));
    fill(&f);
    f.write(ino, 0, &[2; 4096]);
    let before = flushes(&f);
    let held = f.fs.core().float_queue.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| f.write(ino, 8192, &[3; 4096]));
        // It waits by now, or does not have to.
        pause(50);
        drop(held);
    });
    assert_eq!(flushes(&f), before);
}

// Goal: a reader who keeps what is freed for a moment is waited for, and no checkpoint is written for that, nor where others have
// what floats. Method: a view is held while the float is used up, and let go of by another thread; small files rewritten one by one.
#[test]
fn what_floats_comes_back_without_checkpoints() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"image");
    f.write(ino, 0, &pattern(1, 1 << 20));
    let files: Vec<_> = (0..200).map(|i| f.create(format!("file{i}").as_bytes())).collect();
    files.iter().for_each(|ino| f.write(*ino, 0, &[1; 5000]));
    fill(&f);
    let checkpoints = || f.fs.store_stats().checkpoints_count;
    f.write(ino, 0, &[2; 4096]);
    let (before, view) = (checkpoints(), f.fs.core().store.view());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause(10);
            drop(view);
        });
        // Half of it, twice, and some more.
        (0..128).for_each(|i| f.write(ino, i * 4096, &[3; 4096]));
    });
    files.iter().for_each(|ino| f.write(*ino, 0, &[4; 5000]));
    assert!(checkpoints() - before <= 2, "{}", checkpoints() - before);
}

// Goal: files can be written over on a full pool of which removing beside a snapshot has taken some of what is protected. Method: names that
// a snapshot shows are removed until so much is gone; then a file that is nobody else's is written over.
#[test]
fn removing_beside_a_snapshot_leaves_what_floats() {
    let f = Fixture::new(64 * MIB);
    let names: Vec<_> = (0..2000).map(|i| format!("{i}{}", "x".repeat(100)).into_bytes()).collect();
    for name in &names {
        f.create(name);
    }
    f.fs.snapshot(ROOT, ROOT, b"snapshot", true, false).unwrap();
    let ino = f.create(b"image");
    f.write(ino, 0, &pattern(1, 1 << 20));
    fill(&f);
    names.iter().for_each(|name| f.fs.unlink(ROOT, name).unwrap());
    f.fs.sync().unwrap();
    let space = f.fs.space();
    let used = space.fixed_bytes + space.used_bytes + space.held_back_bytes + space.reserved_bytes;
    let over = used + space.protected_bytes - space.total_bytes;
    assert!(over > f.fs.core().store.float_blocks() * 4096, "{over}");
    (0..256).for_each(|i| f.write(ino, i * 4096, &[3; 4096]));
    f.fs.sync().unwrap();
    f.check();
}

// Goal: what names and small files add on a full pool leaves what floats. Method: long names, and small files of nothing written, until both are
// refused; a large file is written over then, and others are removed.
#[test]
fn what_grows_leaves_what_floats() {
    let f = Fixture::new(64 * MIB);
    let name = |i: usize| format!("{i}").into_bytes();
    let files: Vec<_> = (0..6000).map(|i| f.create(&name(i))).collect();
    let image = f.create(b"image");
    f.write(image, 0, &pattern(1, 4 << 20));
    fill(&f);
    let refused = |result: varve_fs::internals::Result<()>| match result {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.errno(), 28, "{error}");
            true
        }
    };
    let long = |i: usize| format!("{i}{}", "x".repeat(240)).into_bytes();
    let renamed = |i: usize| f.fs.rename(ROOT, &name(i), ROOT, &long(i), RenameMode::NoReplace);
    let names = (0..6000).take_while(|i| !refused(renamed(*i))).count();
    let written =
        files.iter().take_while(|ino| !refused(f.fs.write(Caller::ROOT, **ino, 0, &[1; 1600]).map(drop)));
    let written = written.count();
    assert!(names > 100 && names < 6000 && written < 6000, "{names} names, {written} files");
    for i in 0..1024 {
        f.write(image, i * 4096, &pattern(i, 4096));
    }
    f.fs.sync().unwrap();
    f.check();
    (0..6000).for_each(|i| f.fs.unlink(ROOT, &if i < names { long(i) } else { name(i) }).unwrap());
    f.fs.unlink(ROOT, b"full").unwrap();
    f.fs.sync().unwrap();
    f.check();
}

// Goal: a large write between two pieces of which a snapshot is taken, on a full pool, says how much of it is stored, and the snapshot shows
// exactly what was there: what the write had come to, and the old bytes behind it. Method: a view keeps what the first pieces free
// from coming back until the snapshot is there; both sights compared, also after a kill; then the snapshot goes, and the rest is written.
// Where the writer is ahead and takes the space that is for the snapshot, once more.
#[test]
fn a_snapshot_between_the_pieces_of_a_write() {
    assert!((0..500).any(|_| snapshot_between_pieces()));
}

/// Whether the snapshot came in time.
fn snapshot_between_pieces() -> bool {
    let mut f = Fixture::new(64 * MIB);
    f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap();
    let home = f.fs.lookup(ROOT, b"home").unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, home, b"image", 0o644).unwrap().ino;
    let (old, new) = (pattern(1, 4 << 20), pattern(2, 4 << 20));
    f.write(ino, 0, &old);
    f.fs.sync().unwrap();
    // What the snapshot takes.
    let kept = f.fs.core().store.reserve(400, 0, 0).unwrap();
    fill(&f);
    let (before, view) = (f.fs.position(), f.fs.core().store.view());
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| f.fs.write(Caller::ROOT, ino, 0, &new).unwrap());
        while f.fs.position() == before && !writer.is_finished() {
            pause(1);
        }
        drop(kept);
        let taken = f.fs.snapshot(home, ROOT, b"copy", true, false);
        let in_time = !writer.is_finished();
        drop(view);
        let written = writer.join().unwrap();
        match taken {
            Ok(_) => in_time.then_some(written),
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                None
            }
        }
    });
    let Some(written) = written else { return false };
    let compare = |f: &Fixture| {
        let copy = f.fs.lookup(f.fs.lookup(ROOT, b"copy").unwrap().ino, b"image").unwrap().ino;
        let (live, seen) = (f.read_all(ino), f.read_all(copy));
        let pages = (0..1024).take_while(|page| seen[page << 12..][..4096] == new[page << 12..][..4096]);
        let part = pages.count() << 12;
        assert!(part > 0 && part <= written && written < new.len(), "{part} of {written}");
        assert!(seen[part..] == old[part..]);
        assert!(live[..written] == new[..written] && live[written..] == old[written..]);
    };
    compare(&f);
    f.fs.sync().unwrap();
    compare(&f);
    f.check();
    f.kill();
    compare(&f);
    f.fs.delete_subvolume(ROOT, b"copy").unwrap();
    f.write(ino, written as u64, &new[written..]);
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    assert!(f.read_all(ino) == new);
    true
}

// Goal: flags are set and cleared on a full pool, the pool's first too, so that what is immutable there can be freed and deleted. Method: a
// file and a directory with something in it, beside a file that fills the pool.
#[test]
fn what_is_immutable_can_be_freed_on_a_full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let (ino, dir) = (f.create(b"file"), f.mkdir(ROOT, b"dir"));
    f.fs.create(Caller::ROOT, dir, b"inside", 0o644).unwrap();
    f.write(ino, 0, &pattern(1, 1 << 20));
    fill(&f);
    let taken = f.take_all();
    let set = |f: &Fixture, ino, flags| f.fs.set_flags(Caller::ROOT, ino, flags).unwrap();
    set(&f, ino, FileFlags::IMMUTABLE);
    set(&f, dir, FileFlags::APPEND_ONLY | FileFlags::NO_DUMP);
    refused(f.fs.unlink(ROOT, b"file"), 1);
    refused(f.fs.unlink(dir, b"inside"), 1);
    drop(taken);
    f.fs.sync().unwrap();
    f.kill();
    let _taken = f.take_all();
    set(&f, ino, FileFlags::NONE);
    set(&f, dir, FileFlags::NO_DUMP);
    f.fs.unlink(ROOT, b"file").unwrap();
    f.fs.unlink(dir, b"inside").unwrap();
    f.fs.rmdir(ROOT, b"dir").unwrap();
    f.fs.sync().unwrap();
    f.check();
}

// Goal: small files whose contents are to leave their records, which was refused, do not take what floats from everybody else.
// Method: a full pool with a few blocks free, and a range of zeros in each of many small files; they are written over, as far as that goes; then a
// file that has its blocks is, as a whole.
#[test]
fn what_is_refused_to_leave_its_record_takes_nothing_that_floats() {
    let f = Fixture::new(64 * MIB);
    let image = f.create(b"image");
    f.write(image, 0, &pattern(1, 1 << 20));
    let small: Vec<InodeId> = (0..600).map(|n: u32| f.create(format!("{n}").as_bytes())).collect();
    small.iter().for_each(|ino| f.write(*ino, 0, &[7; 100]));
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    f.fs.checkpoint().unwrap();
    let free = f.fs.core().store.reserve(4, 0, 0).unwrap();
    let taken = f.take_all();
    drop(free);
    for ino in &small {
        let zero = Allocate::Zero { keep_size: true };
        refused(f.fs.fallocate(Caller::ROOT, *ino, 0, 4096, zero), 28);
    }
    let written = small.iter().filter(|ino| f.fs.write(Caller::ROOT, **ino, 0, &[8; 100]).is_ok()).count();
    f.fs.sync().unwrap();
    let data = pattern(2, 1 << 20);
    let mut at = 0;
    while at < data.len() {
        at += f.fs.write(Caller::ROOT, image, at as u64, &data[at..]).unwrap();
    }
    f.fs.sync().unwrap();
    assert!(f.read_all(image) == data);
    assert_eq!(written, small.len());
    drop(taken);
    f.check();
}
