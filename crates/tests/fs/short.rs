//! What is reserved while the space for it has not been found.

use super::space::fill;
use super::*;

const LEN: u64 = 16 * MIB;

/// A full pool in which [`LEN`] bytes of a file are reserved, for which `blocks` are set aside, and nothing else is free for as long as
/// the last of these lives.
fn short(f: &Fixture, blocks: u64) -> (InodeId, Reservation) {
    let ino = f.create(b"reserved");
    f.fs.fallocate(Caller::ROOT, ino, 0, LEN, Allocate::Reserve { keep_size: true }).unwrap();
    fill(f, b"big");
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    let core = f.fs.core();
    core.forget_reserved();
    let mut taken = core.store.reserve_part(1 << 20, false).unwrap();
    drop(core.store.split(&mut taken, blocks, 0, 0));
    assert_eq!(core.take_reserved().unwrap(), LEN / 4096 - blocks);
    (ino, taken)
}

fn reserved(f: &Fixture) -> u64 {
    f.fs.core().files.stored.lock().reserved_blocks
}

// Goal: what is written to a reserved range spends what is set aside, and no more of the range than that: the rest stays reserved, and can
// be written when its space has been found. Method: a full pool in which nothing or a part of it is set aside; all is
// written and refused in part; then others are removed, and the pool is full again before the rest is written.
#[test]
fn what_is_refused_stays_reserved() {
    for blocks in [0, 1, 700, 3000] {
        let f = Fixture::new(64 * MIB);
        let (ino, taken) = short(&f, blocks);
        let data = pattern(2, LEN as usize);
        let mut written = 0;
        while written < LEN {
            let rest = &data[written as usize..];
            match f.fs.write(Caller::ROOT, ino, written, rest) {
                Ok(more) => written += more as u64,
                Err(error) => {
                    assert_eq!(error.errno(), 28, "{error}");
                    break;
                }
            }
        }
        assert!((blocks * 4096..LEN).contains(&written), "{blocks}: {written}");
        f.fs.sync().unwrap();
        assert_eq!(reserved(&f), (LEN - written) / 4096, "{blocks}");
        drop(taken);
        f.fs.unlink(ROOT, b"big").unwrap();
        for _ in 0..2 {
            f.fs.maintain().unwrap();
            f.fs.checkpoint().unwrap();
        }
        f.fs.maintain().unwrap();
        assert!(!f.fs.core().reserved_is_short());
        fill(&f, b"more");
        let rest = &data[written as usize..];
        assert_eq!(f.fs.write(Caller::ROOT, ino, written, rest).unwrap(), rest.len(), "{blocks}");
        f.fs.sync().unwrap();
        assert!(f.read_all(ino) == data);
        f.check();
    }
}

// Goal: what a reservation had that ends goes to others that have nothing before everybody has it. Method: a file of which a part is
// set aside, which is punched, or written with other space.
#[test]
fn what_is_given_back_goes_to_who_lacks_it() {
    for punch in [false, true] {
        let f = Fixture::new(64 * MIB);
        let (ino, mut taken) = short(&f, 1000);
        let core = f.fs.core();
        if punch {
            f.fs.fallocate(Caller::ROOT, ino, 0, MIB, Allocate::Punch).unwrap();
        } else {
            drop(core.store.split(&mut taken, 400, 0, 0));
            f.write(ino, 0, &pattern(1, MIB as usize));
            f.fs.sync().unwrap();
            taken = core.store.reserve_part(1 << 20, false).unwrap();
        }
        assert_eq!(reserved(&f), (LEN - MIB) / 4096);
        assert_eq!(core.missing_of_reserved(), (LEN - MIB) / 4096 - 1000, "punch: {punch}");
        drop(taken);
        f.check();
    }
}
