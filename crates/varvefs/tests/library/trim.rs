//! Free space that goes back to what is below a pool.

use std::sync::atomic::{AtomicBool, Ordering};

use varvefs::{MemoryDisk, PoolOptions, Reason};

use crate::{MIB, assert_sound, quiet};

/// `len` bytes that depend on `seed`.
fn bytes(seed: u8, len: u64) -> Vec<u8> {
    // This crate is not optimised: pages of a pattern are copied, and their numbers put in.
    let page: Vec<u8> = (0..4096).map(|i| (i / 7) as u8 ^ seed).collect();
    let mut all = page.repeat(len as usize / 4096);
    all.chunks_exact_mut(4096)
        .zip(0u64..)
        .for_each(|(page, number)| page[..8].copy_from_slice(&number.to_le_bytes()));
    all
}

// Goal: what was deleted takes no space below the pool any more, and what is there is as it was, also after a power cut right
// afterwards. Method: half of what fills a disk in memory is deleted and trimmed; a minimum that nothing reaches, and an end
// after the first piece.
#[test]
fn what_was_deleted_goes_back() {
    let disk = MemoryDisk::new(128 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    for n in 0..80u8 {
        fs.write(format!("/{n}"), bytes(n, MIB)).unwrap();
    }
    fs.sync().unwrap();
    let full = disk.allocated_bytes();
    for n in (0..80).filter(|n| n % 4 < 2) {
        fs.remove_file(format!("/{n}")).unwrap();
    }
    pool.maintain().unwrap();
    let mut calls = 0;
    let some = pool.trim(0, |_| {
        calls += 1;
        false
    });
    assert!(calls == 1 && some.unwrap().position_bytes < 100 * MIB);
    let trimmed = pool.trim(0, |so_far| so_far.position_bytes <= so_far.end_bytes).unwrap();
    assert_eq!(trimmed.position_bytes, trimmed.end_bytes);
    let after = disk.allocated_bytes();
    assert!(trimmed.discarded_bytes >= 40 * MIB && after + 38 * MIB < full, "{full} bytes, then {after}");
    assert_eq!(pool.trim(u64::MAX, |_| true).unwrap().discarded_bytes, 0);
    for fs in [fs, PoolOptions::new().open_on(&disk.after_power_cut()).unwrap().filesystem()] {
        for n in 0..80u8 {
            let found = fs.read(format!("/{n}"));
            match n % 4 {
                0 | 1 => assert_eq!(*found.unwrap_err().reason(), Reason::NotFound),
                _ => assert_eq!(found.unwrap(), bytes(n, MIB)),
            }
        }
    }
    assert_sound(&pool);
}

// Goal: what the documentation of the minimum says: none is larger than 128 MiB. Method: a pool with more than that free in one piece,
// and the largest number.
#[test]
fn the_minimum_has_a_largest() {
    let pool = quiet().in_memory(512 * MIB).unwrap();
    assert!(pool.trim(u64::MAX, |_| true).unwrap().discarded_bytes >= 128 * MIB);
}

// Goal: a trim takes nothing from those who write meanwhile, neither bytes nor space. Method: threads that write files over and
// over in a pool that is nearly full, read back, beside trims without a pause.
#[test]
fn writers_do_not_notice() {
    let pool = PoolOptions::new().in_memory(96 * MIB).unwrap();
    let (fs, over) = (pool.filesystem(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let trims = scope.spawn(|| {
            let mut count = 0;
            while !over.load(Ordering::Relaxed) || count == 0 {
                pool.trim(0, |_| true).unwrap();
                count += 1;
            }
            count
        });
        let writers: Vec<_> = (0..3u8)
            .map(|thread| {
                let fs = &fs;
                scope.spawn(move || {
                    for round in 0..60u8 {
                        let path = format!("/{thread}-{}", round % 8);
                        let data = bytes(thread * 60 + round, 2 * MIB);
                        fs.write(&path, &data).unwrap();
                        if round % 3 == 0 {
                            fs.sync().unwrap();
                        }
                        assert!(fs.read(&path).unwrap() == data, "{path} in round {round}");
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        over.store(true, Ordering::Relaxed);
        assert!(trims.join().unwrap() > 0);
    });
    fs.sync().unwrap();
    for thread in 0..3u8 {
        for slot in 0..8u8 {
            let last = (0..60u8).rev().find(|round| round % 8 == slot).unwrap();
            assert!(fs.read(format!("/{thread}-{slot}")).unwrap() == bytes(thread * 60 + last, 2 * MIB));
        }
    }
    assert_sound(&pool);
}
