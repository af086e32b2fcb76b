//! The map of a file, and SEEK_DATA and SEEK_HOLE beside it.

use super::allocate::allocate;
use super::*;

/// All of a file's map, `pieces_max` pieces a page, neighbours joined.
pub(super) fn whole(f: &Fixture, ino: InodeId, pieces_max: usize) -> Vec<FilePiece> {
    let (mut from, mut out) = (0, Vec::<FilePiece>::new());
    loop {
        let map = f.fs.map(ino, from, pieces_max).unwrap();
        for piece in map.pieces {
            let end = out.last().map_or(0, |last| last.offset + last.len);
            assert_eq!(piece.offset, end, "a gap");
            match out.last_mut() {
                Some(last) if joins(last, &piece) => last.len += piece.len,
                _ => out.push(piece),
            }
        }
        match map.next {
            Some(next) => from = next,
            None => return out,
        }
    }
}

fn joins(last: &FilePiece, next: &FilePiece) -> bool {
    let follows = last.address.map(|address| address + last.len) == next.address;
    follows && (last.kind, last.shared, last.names) == (next.kind, next.shared, next.names)
}

/// Kind, blocks and whether shared, of each piece.
fn shape(pieces: &[FilePiece]) -> Vec<(PieceKind, u64, bool)> {
    pieces.iter().map(|piece| (piece.kind, piece.len / 4096, piece.shared)).collect()
}

// Goal: the map of a file and of its clone says exactly what they share, after writes, holes and cuts on either side; what
// waits in memory is in it. Method: each in turn, with the map written out.
#[test]
fn clones() {
    use PieceKind::{Data, Hole, Reserved};
    let f = Fixture::new(64 * MIB);
    let a = f.create(b"a");
    f.write(a, 0, &pattern(1, 400 * 4096));
    f.write(a, 600 * 4096, &pattern(2, 4096));
    assert_eq!(shape(&whole(&f, a, 1)), [(Data, 400, false), (Hole, 200, false), (Data, 1, false)]);
    let b = f.fs.clone_file(Caller::ROOT, a, ROOT, b"b").unwrap().ino;
    for ino in [a, b] {
        assert_eq!(shape(&whole(&f, ino, 100)), [(Data, 400, true), (Hole, 200, false), (Data, 1, true)]);
    }
    // Not logged yet, when it is asked for.
    f.write(b, 10 * 4096, &pattern(3, 2 * 4096));
    let of_b = [(Data, 10, true), (Data, 2, false), (Data, 388, true), (Hole, 200, false), (Data, 1, true)];
    assert_eq!(shape(&whole(&f, b, 100)), of_b);
    f.fs.maintain().unwrap();
    // What the clone has replaced is the first file's alone.
    let of_a = [(Data, 10, true), (Data, 2, false), (Data, 388, true), (Hole, 200, false), (Data, 1, true)];
    assert_eq!(shape(&whole(&f, a, 100)), of_a);
    f.fs.fallocate(Caller::ROOT, b, 0, 5 * 4096, Allocate::Punch).unwrap();
    f.truncate(b, 300 * 4096);
    f.fs.fallocate(Caller::ROOT, b, 700 * 4096, 4096, Allocate::Reserve { keep_size: true }).unwrap();
    f.fs.maintain().unwrap();
    let of_b = [
        (Hole, 5, false),
        (Data, 5, true),
        (Data, 2, false),
        (Data, 288, true),
        (Hole, 400, false),
        (Reserved, 1, false),
    ];
    assert_eq!(shape(&whole(&f, b, 2)), of_b);
    let of_a = [
        (Data, 5, false),
        (Data, 5, true),
        (Data, 2, false),
        (Data, 288, true),
        (Data, 100, false),
        (Hole, 200, false),
        (Data, 1, false),
    ];
    assert_eq!(shape(&whole(&f, a, 2)), of_a);
    f.fs.unlink(ROOT, b"a").unwrap();
    f.fs.maintain().unwrap();
    assert!(whole(&f, b, 100).iter().all(|piece| !piece.shared));
    f.check();
}

// Goal: a file in a snapshot shares everything while one record stands for both, also if it is small; then what has not
// been written since. Method: a large and a small file, before and after a change on each side and a deletion.
#[test]
fn snapshots() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let large = f.fs.create(Caller::ROOT, sub, b"large", 0o644).unwrap().ino;
    let small = f.fs.create(Caller::ROOT, sub, b"small", 0o644).unwrap().ino;
    f.write(large, 0, &pattern(1, 3 * 4096));
    f.write(small, 0, b"few bytes");
    let snapshot = f.fs.snapshot(sub, ROOT, b"snapshot", false, false).unwrap();
    let in_snapshot = |name: &[u8]| f.fs.lookup(snapshot, name).unwrap().ino;
    for ino in [large, small, in_snapshot(b"large"), in_snapshot(b"small")] {
        assert!(whole(&f, ino, 1).iter().all(|piece| piece.shared), "{ino:?}");
    }
    assert_eq!(whole(&f, small, 1)[0].kind, PieceKind::Inline);
    // An attribute alone gives it a record of its own, and the data stays shared.
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, large, mode).unwrap();
    f.write(small, 0, b"Few");
    f.fs.flush_all().unwrap();
    assert_eq!(shape(&whole(&f, large, 1)), [(PieceKind::Data, 3, true)]);
    for ino in [small, in_snapshot(b"small")] {
        assert!(whole(&f, ino, 1).iter().all(|piece| !piece.shared), "{ino:?}");
    }
    f.write(in_snapshot(b"large"), 4096, &pattern(2, 4096));
    f.fs.flush_all().unwrap();
    // The record that both had, which nobody sees any more, holds the data until it is reaped.
    f.fs.maintain().unwrap();
    let parted = [(PieceKind::Data, 1, true), (PieceKind::Data, 1, false), (PieceKind::Data, 1, true)];
    assert_eq!(shape(&whole(&f, large, 1)), parted);
    assert_eq!(shape(&whole(&f, in_snapshot(b"large"), 1)), parted);
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.maintain().unwrap();
    assert!(whole(&f, large, 1).iter().all(|piece| !piece.shared));
    assert!(whole(&f, small, 1).iter().all(|piece| !piece.shared));
}

// Goal: what a file has in two places counts once, and is its own if nobody else has it; deleting the file then frees what was
// said. Method: its first MiB copied over its second, then with others that come and go.
#[test]
fn shared_with_itself() {
    let f = Fixture::new(64 * MIB);
    f.fs.maintain().unwrap();
    let a = f.create(b"a");
    f.write(a, 0, &pattern(1, 2 * MIB as usize));
    let sums = |ino| {
        let mut sums = ExtentSums::default();
        whole(&f, ino, 7).iter().for_each(|piece| sums.add(piece));
        let DataSums { data, shared, exclusive, repeated } = sums.finish();
        [data, shared, exclusive, repeated]
    };
    assert_eq!(sums(a), [2 * MIB, 0, 2 * MIB, 0]);
    assert_eq!(f.fs.copy_range(Caller::ROOT, (a, 0), (a, MIB), MIB).unwrap(), MIB);
    f.fs.maintain().unwrap();
    assert!(whole(&f, a, 7).iter().all(|piece| piece.shared && piece.names == 2));
    assert_eq!(sums(a), [MIB, 0, MIB, MIB]);
    // Another file has a quarter of it, from one of the two places.
    let b = f.create(b"b");
    assert_eq!(f.fs.copy_range(Caller::ROOT, (a, MIB), (b, 0), MIB / 4).unwrap(), MIB / 4);
    f.fs.maintain().unwrap();
    assert_eq!(sums(a), [MIB, MIB / 4, MIB * 3 / 4, MIB]);
    assert_eq!(sums(b), [MIB / 4, MIB / 4, 0, 0]);
    // A clone sees all of it through the same extents.
    let c = f.fs.clone_file(Caller::ROOT, a, ROOT, b"c").unwrap().ino;
    f.fs.maintain().unwrap();
    for ino in [a, c] {
        assert_eq!(sums(ino), [MIB, MIB, 0, MIB]);
    }
    for name in [b"b", b"c"] {
        f.fs.unlink(ROOT, name).unwrap();
    }
    f.fs.maintain().unwrap();
    // One of the places goes for half of it.
    f.write(a, MIB, &pattern(2, MIB as usize / 2));
    f.fs.flush_all().unwrap();
    f.fs.maintain().unwrap();
    let said = sums(a);
    assert_eq!(said, [MIB * 3 / 2, 0, MIB * 3 / 2, MIB / 2]);
    let before = f.fs.space().used_bytes;
    f.fs.unlink(ROOT, b"a").unwrap();
    f.fs.maintain().unwrap();
    let freed = before - f.fs.space().used_bytes;
    assert!(freed.abs_diff(said[2]) < 128 << 10, "{freed} bytes freed, {} said", said[2]);
    f.check();
}

// Goal: SEEK_DATA and SEEK_HOLE say the same of clones as the map does, to the byte. Method: a clone with pieces inherited,
// rewritten, punched, reserved and beyond; from every block and from within it.
#[test]
fn seeking_agrees() {
    let f = Fixture::new(64 * MIB);
    let a = f.create(b"a");
    for at in [0, 3, 4, 300, 520] {
        f.write(a, at * 4096, &pattern(at, 4096));
    }
    let b = f.fs.clone_file(Caller::ROOT, a, ROOT, b"b").unwrap().ino;
    f.fs.fallocate(Caller::ROOT, b, 3 * 4096, 4096, Allocate::Punch).unwrap();
    f.write(b, 8 * 4096, &pattern(9, 5000));
    f.fs.fallocate(Caller::ROOT, b, 200 * 4096, 9 * 4096, Allocate::Reserve { keep_size: true }).unwrap();
    f.truncate(b, 520 * 4096 + 100);
    for ino in [a, b] {
        let size = f.fs.getattr(ino).unwrap().size;
        let pieces = whole(&f, ino, 2);
        for at in (0..size).step_by(1024) {
            let first = |data: bool| {
                let mut right = pieces.iter().filter(|p| (p.kind == PieceKind::Data) == data);
                right.find(|p| p.offset + p.len > at).map(|p| p.offset.max(at)).filter(|at| *at < size)
            };
            assert_eq!(f.fs.seek(ino, at, SeekTo::Data).unwrap(), first(true), "data from {at}");
            assert_eq!(
                f.fs.seek(ino, at, SeekTo::Hole).unwrap(),
                first(false).or(Some(size)),
                "a hole from {at}"
            );
        }
    }
}

// Goal: a punch beyond the end of a file takes of what is set aside no block that it covers in part. Method: ranges behind the end, from
// within a block, to within one, or both; and some about the block in which the file ends, of which nothing may be left.
#[test]
fn a_punch_beyond_the_end_takes_whole_blocks() {
    const BLOCK: u64 = 4096;
    for (offset, len, gone) in [
        (2 * BLOCK, 100, 0..0),
        (2 * BLOCK + 1, 100, 0..0),
        (BLOCK, 6000, 1..2),
        (2 * BLOCK, BLOCK + 100, 2..3),
        (2 * BLOCK + 1, 2 * BLOCK, 3..4),
        (4 * BLOCK, BLOCK - 1, 0..0),
        (BLOCK, 904, 1..2),
        (BLOCK, 903, 0..0),
        (BLOCK, BLOCK, 1..2),
    ] {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"f");
        f.write(ino, 0, &pattern(1, 5000));
        f.fs.sync().unwrap();
        allocate(&f, ino, 0, 5 * BLOCK, Allocate::Reserve { keep_size: true });
        allocate(&f, ino, offset, len, Allocate::Punch);
        f.fs.sync().unwrap();
        let pieces = whole(&f, ino, 64);
        let mut reserved = 0;
        for block in 0..5 {
            let here =
                |piece: &&FilePiece| (piece.offset..piece.offset + piece.len).contains(&(block * BLOCK));
            let kind = pieces.iter().find(here).map_or(PieceKind::Hole, |piece| piece.kind);
            let kept = if block < 2 { PieceKind::Data } else { PieceKind::Reserved };
            let wanted = if gone.contains(&block) { PieceKind::Hole } else { kept };
            assert_eq!(kind, wanted, "punched {len} bytes at {offset}: block {block}");
            reserved += u64::from(kind == PieceKind::Reserved);
        }
        assert_eq!(f.fs.core().files.stored.lock().reserved_blocks, reserved);
        f.check();
    }
}
