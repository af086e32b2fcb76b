//! Nobody waits for others' work on a file where he has nothing to do with it.

use std::sync::mpsc;
use std::time::Duration;

use super::*;

const BLOCK: u64 = 4096;

/// Whether `op` comes to its end while somebody else has the turn of `ino`. It has, when this returns, in any case.
fn needs_no_turn(f: &Fixture, ino: InodeId, op: impl FnOnce() + Send) -> bool {
    let turn = f.fs.core().state(ino).turn();
    let (told, tell) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            op();
            told.send(()).unwrap();
        });
        let ended = tell.recv_timeout(Duration::from_millis(500)).is_ok();
        drop(turn);
        ended
    })
}

// Goal: setting space aside in a file that has extents waits for no write-back of it, and so keeps nobody waiting for one who asks for it
// under a lock of his own. Method: the turn is held, as a write-back does; beside that, space inside the file and behind its end.
#[test]
fn reserving_waits_for_no_write_back() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"table");
    f.write(ino, 0, &pattern(1, 1 << 20));
    f.fs.sync().unwrap();
    let reserve = |offset, len, keep_size| {
        let how = Allocate::Reserve { keep_size };
        needs_no_turn(&f, ino, || f.fs.fallocate(Caller::ROOT, ino, offset, len, how).unwrap())
    };
    assert!(reserve(MIB, MIB, true), "behind the end");
    assert!(reserve(0, MIB, true), "where there is data");
    assert!(reserve(MIB / 2, MIB / 2, false), "up to the end");
    f.fs.sync().unwrap();
    assert!(f.read_all(ino) == pattern(1, 1 << 20));
    f.check();
}

// Goal: a file whose growth is logged becomes longer without waiting for the write-back of what it has, and loses nothing of that.
// Method: the turn is held; then pages are in flight, of which the last ends in the middle of a block, while the file grows within that
// block and beyond; some are written to meanwhile; a kill, and all is compared.
#[test]
fn growing_waits_for_no_write_back() {
    const SIZE: usize = (1 << 20) + 100;
    for (grown, twice) in [(SIZE + 50, false), (3 << 20, true)] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"table");
        let mut bytes = pattern(1, SIZE);
        f.write(ino, 0, &bytes);
        f.fs.sync().unwrap();
        let grow = |f: &Fixture, size: usize| {
            let how = Allocate::Reserve { keep_size: false };
            assert!(needs_no_turn(f, ino, || f
                .fs
                .fallocate(Caller::ROOT, ino, 0, size as u64, how)
                .unwrap()));
        };
        grow(&f, SIZE + 7);
        let new = pattern(2, 300_000);
        bytes.resize(SIZE + 7, 0);
        for at in [0, SIZE + 7 - new.len()] {
            bytes[at..at + new.len()].copy_from_slice(&new);
            f.write(ino, at as u64, &new);
        }
        let core = f.fs.core();
        let mut group = crate::writeback::Group::default();
        assert!(core.take(core.state(ino).turn(), u64::MAX, &mut group).unwrap().is_none());
        // Its turn is held by the group.
        f.truncate(ino, grown as u64);
        bytes.resize(grown, 0);
        if twice {
            f.truncate(ino, grown as u64 + 1);
            bytes.resize(grown + 1, 0);
            bytes[SIZE - 9..SIZE + 91].fill(9);
            f.write(ino, SIZE as u64 - 9, &[9; 100]);
        }
        assert!(f.read_all(ino) == bytes);
        let written = core.write_group(&mut group, crate::writeback::Ride::Allowed);
        core.finish(group, written).unwrap();
        assert!(f.read_all(ino) == bytes);
        f.fs.sync().unwrap();
        f.kill();
        assert!(f.read_all(ino) == bytes, "after a kill");
        f.check();
    }
}
