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
