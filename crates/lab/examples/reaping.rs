//! What operations cost while snapshots are reaped: writes of 4 KiB, with and without a sync, and names made and removed, with
//! nothing to be reaped and beside the reaping of many snapshots of one file, in turn.
//!
//! ```text
//! cargo run --release -p varve-lab --example reaping [SNAPSHOTS] [WRITES] [MIB] [ROUNDS]
//! ```
//!
//! A round takes SNAPSHOTS snapshots with WRITES random blocks of a file of so many MiB written between two of them, measures
//! for as long as the reaping took the last time, deletes them all, and measures until nothing is left. The pool is a file
//! in `TMPDIR`, written from end to end before: else the filesystem below would allocate it bit by bit, and a flush wait for
//! that.
//!
//! Behind the quantiles stands which share of the operations beside the reaper took longer than the p99 of the idle ones (as
//! many would be 1%): where the disk has slow moments of its own p99 lies on a steep slope, and a little more is a large ratio.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use varve_lab::numbers::quantile;
use varvefs::{Filesystem, Pool, PoolOptions, SnapshotOptions};

const BLOCK: u64 = 4096;

#[derive(Default)]
struct Times {
    write: Vec<f64>,
    synced: Vec<f64>,
    name: Vec<f64>,
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn timed<T>(into: &mut Vec<f64>, what: impl FnOnce() -> varvefs::Result<T>) -> Result<T> {
    let begun = Instant::now();
    let done = what()?;
    into.push(begun.elapsed().as_nanos() as f64 / 1e3);
    Ok(done)
}

/// Some operations on a file of its own, which is shared with nobody, and names.
fn work(fs: &Filesystem, file: &varvefs::File, chance: &mut Chance, into: &mut Times) -> Result<()> {
    let block = [7; BLOCK as usize];
    for _ in 0..10 {
        for _ in 0..10 {
            let at = chance.below(4096) * BLOCK;
            timed(&mut into.write, || file.write_all_at(&block, at))?;
        }
        timed(&mut into.synced, || file.write_all_at(&block, 0).and_then(|()| file.sync_all()))?;
        timed(&mut into.name, || fs.create("/name").and_then(|_| fs.remove_file("/name")))?;
    }
    Ok(())
}

/// A file of zeros.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    let (mut file, piece) = (File::create_new(path)?, vec![0; 1 << 20]);
    for at in (0..bytes).step_by(piece.len()) {
        file.write_all(&piece[..(bytes - at).min(piece.len() as u64) as usize])?;
    }
    Ok(file.sync_all()?)
}

fn main() -> Result<()> {
    let number = |at: usize, default: u64| std::env::args().nth(at).map_or(Ok(default), |text| text.parse());
    let (snapshots, writes, mib, rounds) =
        (number(1, 300)?, number(2, 2000)?, number(3, 512)?, number(4, 3)?);
    let directory = tempfile::tempdir()?;
    let pool_bytes = (mib << 20) * 2 + snapshots * writes * BLOCK * 3 / 2 + (1 << 30);
    let path = directory.path().join("pool");
    fill(&path, pool_bytes)?;
    let pool: Pool = PoolOptions::new().format(&path)?;
    let fs = pool.filesystem();
    println!("{snapshots} snapshots, {writes} writes between two, a file of {mib} MiB, {rounds} rounds");
    fs.create_subvolume("/origin")?;
    let (origin, own) = (fs.create("/origin/file")?, fs.create("/own")?);
    for at in 0..mib {
        origin.write_all_at(&vec![1; 1 << 20], at << 20)?;
    }
    fs.sync()?;
    let (mut idle, mut reaping, mut chance) = (Times::default(), Times::default(), Chance(1));
    let mut lasts = Duration::from_secs(2);
    for round in 0..rounds {
        for taken in 0..snapshots {
            for _ in 0..writes {
                origin.write_all_at(&[3; BLOCK as usize], chance.below(mib * 256) * BLOCK)?;
            }
            fs.snapshot("/origin", format!("/snapshot-{taken}"), SnapshotOptions::new())?;
        }
        fs.sync()?;
        let (begun, before) = (Instant::now(), pool.stats()?);
        while begun.elapsed() < lasts {
            work(&fs, &own, &mut chance, &mut idle)?;
        }
        let checkpoints = pool.stats()?.checkpoint.completed_count - before.checkpoint.completed_count;
        println!("round {round}: idle for {:.2} s, {checkpoints} checkpoints", lasts.as_secs_f64());
        for taken in 0..snapshots {
            fs.delete_subvolume(format!("/snapshot-{taken}"))?;
        }
        let (begun, before) = (Instant::now(), pool.stats()?);
        while pool.stats()?.reap.backlog_count > 0 {
            work(&fs, &own, &mut chance, &mut reaping)?;
        }
        lasts = begun.elapsed();
        let after = pool.stats()?;
        println!(
            "round {round}: reaped in {:.2} s, {} MiB of log, {} checkpoints of {} MiB",
            lasts.as_secs_f64(),
            (after.journal.written_bytes - before.journal.written_bytes) >> 20,
            after.checkpoint.completed_count - before.checkpoint.completed_count,
            (after.checkpoint.written_bytes - before.checkpoint.written_bytes) >> 20,
        );
    }
    for (what, idle, reaping) in [
        ("write", idle.write, reaping.write),
        ("write and sync", idle.synced, reaping.synced),
        ("create and remove", idle.name, reaping.name),
    ] {
        print!("{what:>18}:");
        for share in [0.5, 0.9, 0.99, 0.999] {
            let at = |times: &[f64]| quantile(times, share).unwrap_or_default();
            print!(
                "  p{} {:.1} -> {:.1} us ({:.2})",
                share * 100.0,
                at(&idle),
                at(&reaping),
                at(&reaping) / at(&idle)
            );
        }
        let bound = quantile(&idle, 0.99).unwrap_or_default();
        let beyond = reaping.iter().filter(|time| **time > bound).count() as f64 / reaping.len() as f64;
        println!("  of {} and {}, {:.2}% beyond", idle.len(), reaping.len(), beyond * 100.0);
    }
    drop((origin, own, fs));
    Ok(pool.close()?)
}
