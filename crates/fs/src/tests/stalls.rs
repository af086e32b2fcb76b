//! Nobody is refused what is there, waits without an end for who does not stop, or pays for how much there is of something else.

use varve_engine::BLOCK_BYTES;

use super::*;

const BLOCK: u64 = BLOCK_BYTES as u64;

// Goal: what an unlink has freed is there for who needs it next, also where that one looks at the pool while it asks. Method: all space
// is taken; a file that is on the disk goes, and a link whose target needs a block comes, or a file is moved out of what it shares.
#[test]
fn what_has_been_freed_is_there_for_the_next() {
    let f = Fixture::new(64 * MIB);
    let shared = f.create(b"shared");
    for block in (0..2_000).step_by(2) {
        f.write(shared, block * BLOCK, &[1; 4096]);
    }
    for (name, len) in [(b"a", 400_000), (b"b", 4_000_000)] {
        let ino = f.create(name);
        f.write(ino, 0, &pattern(1, len));
    }
    f.fs.clone_file(Caller::ROOT, shared, ROOT, b"clone").unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let taken = f.take_all();
    assert_eq!(f.fs.symlink(Caller::ROOT, ROOT, b"link", &[b'x'; 4000]).unwrap_err().errno(), 28);
    f.fs.unlink(ROOT, b"a").unwrap();
    f.fs.symlink(Caller::ROOT, ROOT, b"link", &[b'x'; 4000]).unwrap();
    let _rest = f.take_all();
    assert_eq!(f.fs.insert_range(Caller::ROOT, shared, BLOCK, BLOCK).unwrap_err().errno(), 28);
    f.fs.unlink(ROOT, b"b").unwrap();
    f.fs.insert_range(Caller::ROOT, shared, BLOCK, BLOCK).unwrap();
    drop(taken);
}

// Goal: on a full pool whose protected part is half used, and stays so, not every change pays for a checkpoint: only those that get
// something back by it. Method: all space is taken, and names go that a snapshot still shows, so that each adds something.
#[test]
fn a_full_pool_writes_no_checkpoint_for_nothing() {
    const FILES: usize = 12_000;
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let name = |i: usize| format!("{i:05}{}", "x".repeat(150)).into_bytes();
    for i in 0..FILES {
        f.fs.create(Caller::ROOT, dir, &name(i), 0o644).unwrap();
    }
    f.fs.snapshot(ROOT, ROOT, b"snapshot", true, true).unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    let _taken = f.take_all();
    let core = f.fs.core();
    let checkpoints = || core.store.stats().checkpoints_count;
    let (before, mut squeezed) = (checkpoints(), 0);
    for i in 0..FILES {
        if f.fs.unlink(dir, &name(i)).is_err() {
            break;
        }
        let space = core.store.space();
        squeezed += usize::from(space.free_bytes == 0);
    }
    assert!(squeezed > 1_000, "{squeezed}");
    // 323; 3,228 when the state of the protected part was all that counted.
    assert!(checkpoints() - before < 600, "{} for {squeezed} changes", checkpoints() - before);
}
