//! What has been accepted can be logged, whatever else happens to its file, and however full the pool is.

use varve_engine::{Reservation, TreeId};
use varve_sim::Rng;

use super::reaping::{mend, spoil};
use super::*;
use varve_fs::internals::subvolume::Slot;
use varve_fs::internals::writeback::{Group, Ride};

const FILES: usize = 3;
const STEPS: u64 = 60;
/// Workloads, each in a pool of its own; `VARVE_ACCEPTED_SEEDS` sets another.
const SEEDS: u64 = 300;

/// Each page that waits has its block, and no file has more.
pub(super) fn look(f: &Fixture, inodes: &[InodeId], what: &str) {
    for ino in inodes {
        let state = f.fs.core().state(*ino);
        let inner = state.inner.read();
        let pages = &inner.pages;
        let (mut dirty, mut with_space) = (0, 0);
        for (_, page) in pages.map.range(..) {
            assert_eq!(page.job, 0, "nothing is in flight: {what}");
            dirty += u64::from(page.dirty);
            with_space += u64::from(page.has_space());
        }
        let blocks = pages.reservation.as_ref().map_or(0, Reservation::data_blocks);
        assert_eq!(dirty, pages.dirty, "{what}");
        assert_eq!(blocks, with_space, "blocks for the pages that wait: {what}");
    }
}

// Goal: each page that was accepted has its block until it is logged, so that on a full pool everything can be synced and deleted.
// Method: files that are written, cut, punched and cloned in a random order, with snapshots that come and go, and cuts that are begun and
// do not come; the pool is full now and then. After each step the blocks of each file are counted, and in the end, without any other
// space, all is synced, read and deleted.
#[test]
fn what_was_accepted_has_its_block() {
    let seeds = std::env::var("VARVE_ACCEPTED_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let mut situations = [0u32; 4];
    for seed in 0..seeds {
        let f = Fixture::new(64 * MIB);
        let mut rng = Rng::new(seed);
        let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let names: Vec<Vec<u8>> = (0..FILES).map(|n| format!("file{n}").into_bytes()).collect();
        let inodes: Vec<InodeId> =
            names.iter().map(|name| f.fs.create(Caller::ROOT, sub, name, 0o644).unwrap().ino).collect();
        let mut contents: Vec<Vec<u8>> = vec![Vec::new(); FILES];
        let (mut taken, mut snapshots) = (Vec::new(), Vec::<Vec<u8>>::new());
        for step in 0..STEPS {
            let which = rng.index(FILES);
            let (ino, data) = (inodes[which], &mut contents[which]);
            let at = rng.below(data.len() as u64 + 6_000) as usize;
            let what = rng.below(13);
            match what {
                0..4 => {
                    let bytes = pattern(seed << 16 | step, 1 + rng.below(20_000) as usize);
                    match f.fs.write(Caller::ROOT, ino, at as u64, &bytes) {
                        Ok(written) => {
                            data.resize(data.len().max(at + written), 0);
                            data[at..at + written].copy_from_slice(&bytes[..written]);
                        }
                        Err(error) => {
                            assert_eq!(
                                (error.errno(), taken.is_empty()),
                                (28, false),
                                "seed {seed}: {error}"
                            );
                            situations[0] += 1;
                        }
                    }
                }
                4 | 5 => {
                    // To cut is never refused; the size that it has may be, where a snapshot shows it, too.
                    let size = rng.below(data.len() as u64 + 1);
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    match f.fs.setattr(Caller::ROOT, ino, set) {
                        Ok(_) => data.truncate(size as usize),
                        Err(error) => {
                            let expected = (28, data.len() as u64, false);
                            let got = (error.errno(), size, taken.is_empty());
                            assert_eq!(got, expected, "seed {seed}: {error}");
                        }
                    }
                }
                6 | 7 => {
                    // What a cut does first, if what made the file grow waits; it does not come.
                    let (core, state) = (f.fs.core(), f.fs.core().state(ino));
                    let (logged, waits) = {
                        let inner = state.inner.read();
                        (inner.record.size, inner.growth_waits())
                    };
                    if !waits || logged >= data.len() as u64 {
                        continue;
                    }
                    let size = logged + 1 + rng.below(data.len() as u64 - logged);
                    drop(core.write_back_in_turn(core.state(ino).turn(), size, Ride::Allowed).unwrap());
                    let state = core.state(ino);
                    let cut =
                        state.inner.read().pages.map.range(..).any(|(_, page)| page.logged_to.is_some());
                    situations[1] += u32::from(cut);
                }
                8 => {
                    let len = 1 + rng.below(9_000);
                    if f.fs.fallocate(Caller::ROOT, ino, at as u64, len, Allocate::Punch).is_ok() {
                        let end = data.len().min(at + len as usize);
                        data[at.min(end)..end].fill(0);
                    } else {
                        // A part of it may have been done.
                        assert!(!taken.is_empty(), "seed {seed}");
                        let found = f.read_all(ino);
                        let range = at..at + len as usize;
                        let right = |n: usize| found[n] == data[n] || range.contains(&n) && found[n] == 0;
                        assert!(found.len() == data.len() && (0..data.len()).all(right), "seed {seed}");
                        *data = found;
                    }
                }
                9 => {
                    let name = format!("snapshot{step}").into_bytes();
                    if f.fs.snapshot(sub, ROOT, &name, rng.below(2) == 0, false).is_ok() {
                        situations[2] += u32::from(inodes.iter().any(|ino| {
                            let state = f.fs.core().state(*ino);
                            state.inner.read().pages.map.range(..).any(|(_, page)| page.logged_to.is_some())
                        }));
                        snapshots.push(name);
                    }
                }
                10 if !snapshots.is_empty() => {
                    let name = snapshots.swap_remove(rng.index(snapshots.len()));
                    f.fs.delete_subvolume(ROOT, &name).unwrap();
                }
                11 => {
                    situations[3] += u32::from(taken.is_empty());
                    taken = if taken.is_empty() { f.take_all() } else { Vec::new() };
                }
                _ => f.fs.fsync(ino).unwrap(),
            }
            look(&f, &inodes, &format!("seed {seed}, step {step}, {what}"));
        }
        taken.extend(f.take_all());
        for (ino, data) in inodes.iter().zip(&contents) {
            f.fs.fsync(*ino).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(f.read_all(*ino) == *data, "seed {seed}: inode {}", ino.0);
        }
        f.fs.sync().unwrap();
        for name in &names {
            f.fs.unlink(sub, name).unwrap();
        }
        for name in snapshots {
            f.fs.delete_subvolume(ROOT, &name).unwrap();
        }
        f.fs.delete_subvolume(ROOT, b"sub").unwrap();
        drop(taken);
        f.fs.sync().unwrap();
        f.check();
    }
    assert!(seeds < SEEDS || situations.iter().all(|met| *met > 10), "{situations:?}");
}

/// Blocks a file has for its pages, and pages that have one.
fn blocks(f: &Fixture, ino: InodeId) -> (u64, u64) {
    let state = f.fs.core().state(ino);
    let inner = state.inner.read();
    let with_space = inner.pages.map.range(..).filter(|(_, page)| page.has_space()).count();
    (inner.pages.reservation.as_ref().map_or(0, Reservation::data_blocks), with_space as u64)
}

// Goal: a group that fails gives each file the space for what it had in it: what another group has of a file meanwhile has its own there.
// Method: two files in a group that fails when the first has been logged; that is written to and taken for a cut before the group
// ends. The blocks of both, and the second is logged without any other space.
#[test]
fn a_group_that_fails_gives_nobody_what_is_anothers() {
    let f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, 64 * MIB);
    let subs =
        [&b"one"[..], b"two"].map(|name| f.fs.create_subvolume(Caller::ROOT, ROOT, name, 0o755).unwrap().ino);
    let [small, large] = subs.map(|sub| f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino);
    f.write(small, 0, &pattern(1, 10 * 4096));
    f.write(large, 0, &pattern(2, 200 * 4096));
    let core = f.fs.core();
    let (mut first, mut second) = (Group::default(), Group::default());
    for ino in [small, large] {
        assert!(core.take(core.state(ino).turn(), u64::MAX, &mut first).unwrap().is_none());
    }
    f.fs.snapshot(subs[1], ROOT, b"snapshot", true, false).unwrap();
    let family = core.subvolumes.get(Slot::of(large)).unwrap().family;
    let entries = spoil(&f.fs, TreeId::VERSIONS, family);
    let failed = core.write_group(&mut first, Ride::Allowed);
    mend(&f.fs, TreeId::VERSIONS, &entries);
    assert!(failed.is_err());
    // The first is logged, and nobody's turn any more.
    assert!(core.state(small).inner.read().pages.is_empty());
    f.write(small, 10 * 4096, &pattern(3, 50 * 4096));
    assert!(core.take(core.state(small).turn(), 30 * 4096, &mut second).unwrap().is_none());
    refused(core.finish(first, failed).map(drop), 5);
    assert_eq!((blocks(&f, small), blocks(&f, large)), ((0, 30), (200, 200)));
    let written = core.write_group(&mut second, Ride::Allowed);
    drop(core.finish(second, written).unwrap());
    assert_eq!(blocks(&f, small), (30, 30));
    let taken = f.take_all();
    for (ino, data) in
        [(large, pattern(2, 200 * 4096)), (small, [pattern(1, 10 * 4096), pattern(3, 50 * 4096)].concat())]
    {
        f.fs.flush_file(ino).unwrap();
        assert!(f.read_all(ino) == data);
    }
    drop(taken);
    f.fs.sync().unwrap();
    f.check();
}
