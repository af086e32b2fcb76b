//! Ranges that are zeroed on a pool without space to set anything aside.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use varve_sim::Rng;

use super::float::{fill, fill_up, flushes, pause};
use super::*;

fn zero(
    f: &Fixture,
    ino: InodeId,
    at: usize,
    len: usize,
    keep_size: bool,
) -> varve_fs::internals::Result<()> {
    f.fs.fallocate(Caller::ROOT, ino, at as u64, len as u64, Allocate::Zero { keep_size })
}

// Goal: ranges of what a file has to itself are zeroed on a full pool, data, what is set aside, also behind the end, and contents in the
// record; they are zeros after a kill, all else stays, and what was set aside does. Who is refused has lost nothing.
// Method: many ranges, whole blocks and parts; flushes and checkpoints counted; then holes, what a clone shows, and what makes a file grow.
#[test]
fn what_is_ones_own_is_zeroed_on_a_full_pool() {
    let mut f = Fixture::new(64 * MIB);
    let (ino, small, holes, other) =
        (f.create(b"image"), f.create(b"small"), f.create(b"holes"), f.create(b"other"));
    let mut expected = pattern(1, 8 << 20);
    f.write(ino, 0, &expected);
    f.fs.fallocate(Caller::ROOT, ino, 2 * MIB, MIB, Allocate::Punch).unwrap();
    f.fs.fallocate(Caller::ROOT, ino, 2 * MIB, MIB, Allocate::Reserve { keep_size: true }).unwrap();
    f.fs.fallocate(Caller::ROOT, ino, 8 * MIB, MIB, Allocate::Reserve { keep_size: true }).unwrap();
    expected[2 << 20..3 << 20].fill(0);
    f.write(small, 0, &[7; 300]);
    f.write(holes, MIB, &pattern(2, 1 << 20));
    f.write(other, 0, &pattern(3, 1 << 20));
    f.fs.clone_file(Caller::ROOT, other, ROOT, b"clone").unwrap();
    let full = fill(&f);
    f.fs.setattr(Caller::ROOT, ino, SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
    let mut rng = Rng::new(9);
    for n in 0..60 {
        fill_up(&f, full);
        let len = [1, 3000, 4096, 20_000, 1 << 20][n % 5];
        let at = rng.below((8 << 20) - len as u64) as usize;
        let at = if n % 2 == 0 { at / 4096 * 4096 } else { at };
        zero(&f, ino, at, len, n % 3 == 0).unwrap_or_else(|error| panic!("{n}: {len} at {at}: {error}"));
        expected[at..at + len].fill(0);
    }
    zero(&f, small, 100, 100, true).unwrap();
    f.fs.sync().unwrap();
    f.kill();
    let check = |f: &mut Fixture, expected: &[u8]| {
        f.check();
        assert!(f.read_all(ino) == expected);
        assert_eq!(f.read_all(small), [[7; 100], [0; 100], [7; 100]].concat());
        assert!(f.read_all(holes)[1 << 20..] == pattern(2, 1 << 20));
        assert!(f.read_all(other) == pattern(3, 1 << 20));
        let map = f.fs.map(ino, 0, 1000).unwrap();
        let reserved = map.pieces.iter().filter(|piece| piece.kind == PieceKind::Reserved);
        let mut reserved = reserved.map(|piece| piece.offset..piece.offset + piece.len);
        for at in [2 * MIB, 8 * MIB] {
            assert!(reserved.any(|range| range.start <= at && range.end >= at + MIB));
        }
    };
    check(&mut f, &expected);
    for (at, data) in [(0, 10), (4 << 20, 11)] {
        let data = pattern(data, 4 << 20);
        f.write(ino, at, &data[..2 << 20]);
        expected[at as usize..][..2 << 20].copy_from_slice(&data[..2 << 20]);
    }
    fill_up(&f, full);
    let by = Caller { uid: 1000, gid: 1000 };
    let (before, checkpoints) = (flushes(&f), f.fs.store_stats().checkpoints_count);
    f.fs.fallocate(by, ino, 100, 9 * MIB - 200, Allocate::Zero { keep_size: true }).unwrap();
    let by = (flushes(&f) - before, f.fs.store_stats().checkpoints_count - checkpoints);
    assert!(by.0 <= 40 && by.1 <= 8, "{by:?} flushes and checkpoints");
    expected[100..].fill(0);
    assert_eq!(f.fs.getattr(ino).unwrap().mode & 0o7777, 0o755);
    fill_up(&f, full);
    refused(zero(&f, holes, 0, 2 << 20, true), 28);
    refused(zero(&f, other, 0, 1 << 20, true), 28);
    refused(zero(&f, ino, 0, 9 << 20, false), 28);
    refused(zero(&f, small, 200, 200, true), 28);
    check(&mut f, &expected);
    f.fs.sync().unwrap();
    f.kill();
    check(&mut f, &expected);
    for name in [&b"image"[..], b"small", b"holes", b"other", b"clone", b"full"] {
        f.fs.unlink(ROOT, name).unwrap();
    }
    f.fs.sync().unwrap();
    f.check();
    assert!(f.fs.statfs().unwrap().free_bytes > 40 * MIB);
}

// Goal: a range that is zeroed because nothing can be set aside keeps to the bound on what is dirty, also while there is space for
// pages that are not written back. Method: as much space as pays for the pages, and not for what is set aside; the most that is dirty meanwhile.
#[test]
fn zeros_keep_to_the_bound_on_what_is_dirty() {
    let f = Fixture::new(256 * MIB);
    f.fs.close().unwrap();
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: MIB / 4,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![f.device.clone()], options).unwrap().0;
    let ino = fs.create(Caller::ROOT, ROOT, b"image", 0o644).unwrap().ino;
    let old = pattern(1, 180 << 20);
    assert_eq!(fs.write(Caller::ROOT, ino, 0, &old).unwrap(), old.len());
    fs.sync().unwrap();
    let mut kept = Vec::new();
    while fs.statfs().unwrap().free_bytes > 4 * MIB {
        kept.push(fs.core().store.reserve(64, 0, 0).unwrap());
    }
    let (done, mut most) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let zeroing = scope.spawn(|| {
            let how = Allocate::Zero { keep_size: true };
            let result = fs.fallocate(Caller::ROOT, ino, 0, old.len() as u64, how);
            done.store(true, Relaxed);
            result
        });
        while !done.load(Relaxed) {
            most = most.max(fs.core().dirty.bytes());
        }
        zeroing.join().unwrap().unwrap();
    });
    // Twice the bound, and a piece.
    assert!(most > 0 && most <= MIB / 2 + MIB, "{most}");
    assert!(fs.map(ino, 0, 1000).unwrap().pieces.iter().all(|piece| piece.kind == PieceKind::Data));
    assert!(fs.read(ino, 0, old.len()).unwrap().iter().all(|byte| *byte == 0));
}

/// Waits until the first piece of a file is zeros: the next has to wait for whoever holds a view.
fn await_zeros<T>(f: &Fixture, ino: InodeId, zeroing: &std::thread::ScopedJoinHandle<'_, T>) {
    while f.fs.read(ino, 0, 4096).unwrap() != [0; 4096] && !zeroing.is_finished() {
        pause(1);
    }
}

// Goal: between the pieces of a zeroed range on a full pool nothing that lies behind is moved into it, a file that is cut stays so, and others
// may write; a sync does not wait for all of it. Method: 4 MiB zeroed while a thread takes out what is in front, cuts the file to less, or
// writes and syncs; what lay behind the range is compared.
#[test]
fn others_between_the_pieces_of_zeros() {
    for what in ["moves", "cuts", "writes"] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"image");
        let old = pattern(1, 6 << 20);
        f.write(ino, 0, &old);
        f.fs.sync().unwrap();
        // What moving takes.
        let kept = f.fs.core().store.reserve(100, 0, 0).unwrap();
        fill(&f);
        let (fs, view) = (&f.fs, f.fs.core().store.view());
        std::thread::scope(|scope| {
            let zeroing = scope.spawn(|| {
                fs.fallocate(Caller::ROOT, ino, 0, 4 * MIB, Allocate::Zero { keep_size: true }).unwrap();
            });
            await_zeros(&f, ino, &zeroing);
            drop((kept, view));
            match what {
                "moves" => fs.collapse_range(Caller::ROOT, ino, 0, MIB).unwrap(),
                "cuts" => f.truncate(ino, 3 * MIB),
                _ => {
                    f.write(ino, 5 * MIB, &[9; 4096]);
                    fs.sync().unwrap();
                }
            }
        });
        let check = |f: &Fixture| {
            let found = f.read_all(ino);
            let (zeros, len) = match what {
                "moves" => (3 << 20, 5 << 20),
                "cuts" => (3 << 20, 3 << 20),
                _ => (4 << 20, 6 << 20),
            };
            assert!(found.len() == len && found[..zeros].iter().all(|byte| *byte == 0), "{what}");
            let mut rest = old[old.len() + zeros - len..].to_vec();
            if what == "writes" {
                rest[MIB as usize..][..4096].fill(9);
            }
            assert!(found[zeros..] == rest, "{what}");
        };
        check(&f);
        f.fs.sync().unwrap();
        f.check();
        f.kill();
        check(&f);
    }
}

// Goal: where a snapshot is taken between the pieces, it shows zeros in front and the old bytes behind them, and the file is zeros or says
// ENOSPC; after a kill, too. Method: as with the pieces of a write, above.
#[test]
fn a_snapshot_between_the_pieces_of_zeros() {
    assert!((0..500).any(|_| snapshot_between_zeros()), "it never came in between");
}

/// Whether the snapshot came in time.
fn snapshot_between_zeros() -> bool {
    let mut f = Fixture::new(64 * MIB);
    f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap();
    let home = f.fs.lookup(ROOT, b"home").unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, home, b"image", 0o644).unwrap().ino;
    let old = pattern(1, 4 << 20);
    f.write(ino, 0, &old);
    f.fs.sync().unwrap();
    let kept = f.fs.core().store.reserve(400, 0, 0).unwrap();
    fill(&f);
    let view = f.fs.core().store.view();
    let (taken, zeroed) = std::thread::scope(|scope| {
        let zeroing = scope.spawn(|| zero(&f, ino, 0, 4 << 20, true));
        await_zeros(&f, ino, &zeroing);
        drop(kept);
        let taken = f.fs.snapshot(home, ROOT, b"copy", true, false).is_ok() && !zeroing.is_finished();
        drop(view);
        (taken, zeroing.join().unwrap())
    });
    if let Err(error) = &zeroed {
        assert_eq!(error.errno(), 28, "{error}");
    }
    if !taken {
        return false;
    }
    let zeros =
        |bytes: &[u8]| bytes.chunks(4096).take_while(|page| page.iter().all(|b| *b == 0)).count() << 12;
    let compare = |f: &Fixture| {
        let copy = f.fs.lookup(f.fs.lookup(ROOT, b"copy").unwrap().ino, b"image").unwrap().ino;
        let (live, seen) = (f.read_all(ino), f.read_all(copy));
        let part = zeros(&seen);
        assert!(seen[part..] == old[part..], "{part}");
        assert_eq!(zeros(&live), old.len(), "{zeroed:?}");
        part
    };
    let part = compare(&f);
    if part == 0 || part == old.len() {
        // In front of the first piece, or behind the last.
        return false;
    }
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    assert_eq!(compare(&f), part);
    true
}

// Goal: who is refused a range of zeros that makes the file longer has lost nothing, however little there is. Method: 8 blocks of data, 9 to be zeroed,
// and so many blocks free that the 9th is there, and what the new size takes may not be.
#[test]
fn who_is_refused_zeros_and_a_size_has_lost_nothing() {
    let data = pattern(1, 8 * 4096);
    let mut done = 0;
    for free in 0..16 {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"file");
        f.write(ino, 0, &data);
        (0..60u32).for_each(|n| _ = f.create(format!("{n:0100}").as_bytes()));
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        f.fs.checkpoint().unwrap();
        let free = f.fs.core().store.reserve(free, 0, 0).unwrap();
        let taken = f.take_all();
        drop(free);
        match zero(&f, ino, 0, 9 * 4096, false) {
            Ok(()) => {
                done += 1;
                assert!(f.read_all(ino) == [0; 9 * 4096]);
            }
            refusal => {
                refused(refusal, 28);
                assert!(f.read_all(ino) == data);
            }
        }
        drop(taken);
        f.check();
    }
    assert!((1..16).contains(&done), "{done}");
}
