//! A month of snapshots in VarveFS, in process: one an hour, of which 24 hourly, 7 daily and 4 weekly ones are kept, with work in between; then
//! everything is deleted.
//!
//! What is looked at: whether deleting keeps up, what a synced write costs while there is something to be reaped, and
//! whether in the end exactly that is stored which was stored before the first snapshot, when a month of the same work had
//! gone by without any: leaves that are filled from end to end never stay as full. So that it can be, the work
//! changes what there is and not how much: every overwritten block is an extent by itself, and files are replaced by files
//! of the same size. Simulated time: an hour lasts 10 ms (0 at the smallest scale), and longer if its work takes longer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use varvefs::{Filesystem, OpenOptions, Pool, SnapshotOptions};

use super::subject::drained;
use super::{BLOCK_BYTES, Latency, Random, latency};
use crate::disk::Disk;
use crate::numbers::ratio;
use crate::report::{Claim, Table};
use crate::{Options, Scale, guard};

/// Hours of a day.
pub(super) const HOURS: u64 = 24;
const HOURLY_KEPT: u64 = 24;
const DAILY_KEPT: u64 = 7;
const WEEKLY_KEPT: u64 = 4;
/// Blocks of the large file; between two of them is a hole, so that each is an extent.
const BLOCKS: u64 = 1_000;
/// Files that are replaced, some of which lie in their records.
const SMALL_FILES: u64 = 200;
/// Tasks of the reaper left over at the end of the calmest hour of the last day, at most: it has caught up.
pub(super) const BACKLOG_BOUND: f64 = 3.0;
pub(super) const FOREGROUND_BOUND: f64 = 1.2;
const NODES_BOUND: f64 = 1.1;

/// What a scale stands for.
struct Plan {
    days: u64,
    /// How long an hour lasts at least: the reaper has what is left of it for itself.
    hour: Duration,
    /// Synced writes an hour.
    writes: u64,
    /// Files replaced in an hour.
    replaced: u64,
    disk_bytes: u64,
}

/// How many days are lived through: as many as are asked for; else as the scale has it, and no more than there are loops.
pub(super) fn days(options: &Options, days_of_scale: u64) -> u64 {
    let loops = options.loops.map_or(days_of_scale, |loops| days_of_scale.min(loops as u64));
    options.days.unwrap_or(loops)
}

fn plan(options: &Options) -> Plan {
    const HOUR: Duration = Duration::from_millis(10);
    let plan = match options.scale {
        Scale::Tiny => Plan { days: 10, hour: Duration::ZERO, writes: 6, replaced: 2, disk_bytes: 320 << 20 },
        Scale::Small => Plan { days: 30, hour: HOUR, writes: 20, replaced: 6, disk_bytes: 1 << 30 },
        Scale::Seed => Plan { days: 30, hour: HOUR, writes: 200, replaced: 60, disk_bytes: 4 << 30 },
    };
    Plan { days: days(options, plan.days), ..plan }
}

/// What is stored, as a full scan finds it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stored {
    nodes_count: u64,
    /// Entries of each tree.
    trees: BTreeMap<String, u64>,
    files_count: u64,
}

/// What the month came to.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Month {
    snapshots_count: u64,
    kept_most: u64,
    /// Just filled.
    fresh: Stored,
    /// After the same work without a snapshot, for as long; and after the last snapshot is gone.
    before: Stored,
    after: Stored,
    /// The backlog of the reaper after each hour.
    backlog: Vec<u64>,
    /// Synced writes while there was nothing to be reaped, and while there was.
    idle: Latency,
    reaping: Latency,
    reaping_count: u64,
    /// From the last deletion until nothing is left to be done.
    drain_ns: u64,
}

/// Lives through the month, in process.
pub(super) fn run(options: &Options, disk: &dyn Fn(u64) -> Result<Disk>) -> Result<Month> {
    let plan = plan(options);
    options.tell(&format!("rotation: {} days", plan.days));
    let disk = disk(plan.disk_bytes)?;
    let pool = disk.create_pool()?;
    let month = live(&plan, &pool).context("the rotation of snapshots");
    pool.close()?;
    month
}

fn live(plan: &Plan, pool: &Pool) -> Result<Month> {
    let fs = pool.filesystem();
    let mut random = Random(0x726f_7461_7465);
    populate(&fs)?;
    let fresh = stored(&fs, pool)?;
    // Leaves that were filled from one end to the other do not stay as full when what is in them is replaced, snapshots or
    // not: what these leave behind shows beside a pool that has been worked in as much.
    for hour in 0..plan.days * HOURS {
        guard::check()?;
        for _ in 0..2 {
            work(plan, &fs, pool, &mut random, hour, (&mut Vec::new(), &mut Vec::new()))?;
        }
    }
    let before = stored(&fs, pool)?;
    let mut month = Month {
        fresh,
        snapshots_count: plan.days * HOURS,
        kept_most: 0,
        before: before.clone(),
        after: before,
        backlog: Vec::new(),
        idle: Latency::default(),
        reaping: Latency::default(),
        reaping_count: 0,
        drain_ns: 0,
    };
    let (mut kept, mut idle, mut reaping) = (Vec::new(), Vec::new(), Vec::new());
    for hour in 0..month.snapshots_count {
        guard::check()?;
        let begun = Instant::now();
        let (stay, due): (Vec<u64>, Vec<u64>) = kept.iter().partition(|taken| stays(**taken, hour));
        for taken in due {
            fs.delete_subvolume(place(taken))?;
        }
        kept = stay;
        work(plan, &fs, pool, &mut random, hour, (&mut idle, &mut reaping))?;
        std::thread::sleep(plan.hour.saturating_sub(begun.elapsed()));
        month.backlog.push(pool.stats()?.reap.backlog_count);
        work(plan, &fs, pool, &mut random, hour, (&mut idle, &mut reaping))?;
        fs.snapshot("/origin", place(hour), SnapshotOptions::new())?;
        kept.push(hour);
        month.kept_most = month.kept_most.max(kept.len() as u64);
    }
    for taken in kept {
        fs.delete_subvolume(place(taken))?;
    }
    let begun = Instant::now();
    drained(|| Ok(pool.stats()?.reap.backlog_count))?;
    month.drain_ns = begun.elapsed().as_nanos() as u64;
    month.after = stored(&fs, pool)?;
    (month.idle, month.reaping) = (latency(&idle), latency(&reaping));
    month.reaping_count = reaping.len() as u64;
    Ok(month)
}

/// Whether the snapshot of hour `taken` is kept at `hour`.
pub(super) fn stays(taken: u64, hour: u64) -> bool {
    let age = hour - taken;
    age < HOURLY_KEPT
        || taken.is_multiple_of(HOURS) && age < DAILY_KEPT * HOURS
        || taken.is_multiple_of(7 * HOURS) && age < WEEKLY_KEPT * 7 * HOURS
}

fn place(hour: u64) -> String {
    format!("/hour-{hour}")
}

fn populate(fs: &Filesystem) -> Result<()> {
    fs.create_subvolume("/origin")?;
    let large = fs.create("/origin/large")?;
    for block in 0..BLOCKS {
        large.write_all_at(&vec![block as u8; BLOCK_BYTES], block * 2 * BLOCK_BYTES as u64)?;
    }
    for number in 0..SMALL_FILES {
        fs.write(small(number), contents(number, 0))?;
    }
    Ok(fs.sync()?)
}

fn small(number: u64) -> String {
    format!("/origin/{number}")
}

/// Every other one lies in its record; no file of one size ever gets another. Never only zeros, of which a record keeps
/// nothing.
fn contents(number: u64, version: u64) -> Vec<u8> {
    vec![version as u8 | 1; if number.is_multiple_of(2) { 300 } else { BLOCK_BYTES }]
}

/// Half of the work of an hour: synced writes to the large file, and small files replaced by new ones. The first write may
/// be the first after a snapshot, which costs more: it is not timed.
fn work(
    plan: &Plan,
    fs: &Filesystem,
    pool: &Pool,
    random: &mut Random,
    hour: u64,
    (idle, reaping): (&mut Vec<f64>, &mut Vec<f64>),
) -> Result<()> {
    let large = OpenOptions::new().write(true).open(fs, "/origin/large")?;
    let buf = vec![hour as u8; BLOCK_BYTES];
    large.write_all_at(&buf, 0)?;
    large.sync_all()?;
    for _ in 0..plan.writes / 2 {
        let offset = random.next() % BLOCKS * 2 * BLOCK_BYTES as u64;
        let busy = pool.stats()?.reap.backlog_count > 0;
        let begun = Instant::now();
        large.write_all_at(&buf, offset)?;
        large.sync_all()?;
        let times = if busy { &mut *reaping } else { &mut *idle };
        times.push(begun.elapsed().as_nanos() as f64);
    }
    for _ in 0..plan.replaced / 2 {
        let number = random.next() % SMALL_FILES;
        fs.write("/origin/new", contents(number, hour))?;
        fs.rename("/origin/new", small(number))?;
    }
    Ok(())
}

/// Counts what is stored, and sees to it that all of it is right.
fn stored(fs: &Filesystem, pool: &Pool) -> Result<Stored> {
    drained(|| Ok(pool.stats()?.reap.backlog_count))?;
    fs.sync()?;
    pool.checkpoint()?;
    let report = pool.check(false)?;
    if !report.is_clean() {
        bail!("the check finds {:?}", report.problems);
    }
    let files_count = pool.stats()?.files_count;
    Ok(Stored { nodes_count: report.nodes_count, trees: report.trees, files_count })
}

/// The table of the report.
pub(super) fn table(month: &Month) -> Table {
    let row = |what: &str, columns: [String; 3]| [vec![what.to_owned()], columns.to_vec()].concat();
    let numbers = |of: &dyn Fn(&Stored) -> u64| {
        [&month.fresh, &month.before, &month.after].map(|stored| of(stored).to_string())
    };
    let mut rows: Vec<Vec<String>> = month
        .after
        .trees
        .keys()
        .map(|tree| {
            let entries = |stored: &Stored| stored.trees.get(tree).copied().unwrap_or_default();
            row(&format!("entries of the {tree} tree"), numbers(&entries))
        })
        .collect();
    rows.push(row("tree nodes", numbers(&|stored| stored.nodes_count)));
    rows.push(row("inodes", numbers(&|stored| stored.files_count)));
    let us = |latency: Latency| format!("{:.0}", latency.p99_ns / 1e3);
    let what = "p99 of a synced write, us: idle, reaping";
    rows.push(row(what, [String::new(), us(month.idle), us(month.reaping)]));
    let most = month.backlog.iter().max().copied().unwrap_or_default();
    let calmest = calmest(&month.backlog).unwrap_or_default();
    let what = "tasks left to the reaper by an hour: calmest of the last day, most";
    rows.push(row(what, [String::new(), calmest.to_string(), most.to_string()]));
    Table {
        title: format!(
            "{} hourly snapshots, {} at once at most: just filled, after as much work without one, and after all are deleted",
            month.snapshots_count, month.kept_most
        ),
        columns: ["", "fresh", "before", "after"].map(str::to_owned).to_vec(),
        rows,
    }
}

/// The least of the last day.
pub(super) fn calmest(backlog: &[u64]) -> Option<u64> {
    backlog.iter().rev().take(HOURS as usize).min().copied()
}

/// What is to be shown.
pub(super) fn claims(month: &Month) -> Vec<Claim> {
    let kept = ["extents", "inodes", "names", "xattrs", "versions", "held"];
    let differ = kept.iter().filter(|tree| month.before.trees.get(**tree) != month.after.trees.get(**tree));
    vec![
        Claim::at_most(
            "rotation: trees of extents, inodes, names, attributes, versions and their index with more or fewer entries in the end: 0",
            Some(differ.count() as f64),
            0.0,
        ),
        Claim::at_most(
            format!("rotation: tree nodes in the end by those before: at most {NODES_BOUND}"),
            ratio(month.after.nodes_count as f64, month.before.nodes_count as f64),
            NODES_BOUND,
        ),
        Claim::at_most(
            format!("rotation: tasks left by the calmest hour of the last day: at most {BACKLOG_BOUND}"),
            calmest(&month.backlog).map(|tasks| tasks as f64),
            BACKLOG_BOUND,
        ),
        Claim::at_most(
            format!(
                "rotation: p99 of a synced write while reaping by that while idle: at most {FOREGROUND_BOUND}"
            ),
            // Nothing may have been reaped.
            ratio(month.reaping.p99_ns, month.idle.p99_ns).filter(|_| month.reaping.p99_ns > 0.0),
            FOREGROUND_BOUND,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what is kept is what is said. Method: in the last hour of a long time, count by hand.
    #[test]
    fn keeps_hourly_daily_and_weekly_ones() {
        let now = 60 * HOURS - 1;
        let kept: Vec<u64> = (0..=now).filter(|taken| stays(*taken, now)).collect();
        let older = |hours: u64| kept.iter().filter(|taken| now - **taken >= hours).count();
        assert_eq!(kept.len() - older(HOURLY_KEPT), 24);
        // The daily one of today is among the hourly ones.
        assert_eq!(older(HOURLY_KEPT) - older(DAILY_KEPT * HOURS), 6);
        assert!((3..=4).contains(&older(DAILY_KEPT * HOURS)), "{kept:?}");
        // Who is deleted never comes back.
        assert!((0..=now).all(|taken| stays(taken, now) || !stays(taken, now + 1)));
    }
}
