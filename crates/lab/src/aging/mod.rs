//! The experiment `aging`: random overwrites, then a snapshot, a thousand times (btrfs and XFS, 2021).
//!
//! A loop writes some thousand random blocks of a preallocated file past every cache, syncs it, and takes a snapshot of
//! the subvolume or a clone of the file. Afterwards the extents of some forks are mapped with their shared flags, and
//! then the forks are deleted in random order while the writing goes on. A filesystem that shares by page or by extent
//! pays more with every loop; one that does not, shows flat lines.
//!
//! Every target gets a disk of the same size, counted at the block layer. Space is what statfs(2) calls used, compared
//! with the bytes that the loops wrote. Machines change within minutes, by more than what is looked for: so what is claimed of
//! VarveFS is compared with what the machine does at that moment. Beside the rate of the first and of the last loops stands
//! that of a file without forks in between ([`Control`]), and beside a write while forks are deleted one just before.
//! Then every target lives through a month of hourly forks of which few are kept
//! ([`month`]), and VarveFS in process through one after which every record is counted ([`rotation`]).

mod kernel;
mod month;
mod mounted;
mod rotation;
mod subject;
mod summary;
mod varve;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::counters::Counters;
use crate::disk::Disk;
use crate::machine::Provenance;
use crate::numbers::quantile;
use crate::target::{TargetKind, ceiling};
use crate::{Medium, Options, Report, Scale, guard};
use subject::{ForkKind, Subject};

/// Size of a write.
const BLOCK_BYTES: usize = 4096;
/// Rounds of writes and a sync before the first fork is made, and again before the first is deleted.
const QUIET_ROUNDS: usize = 10;
/// As many writes as the file has blocks, so many times, before the file without forks is compared with.
const CONTROL_ROUNDS: u64 = 2;
/// Rounds in which forks are deleted, with as many writes and a sync in each.
const DELETING_ROUNDS: usize = 20;

/// The sizes that a scale stands for.
struct Plan {
    file_bytes: u64,
    writes: usize,
    loops: usize,
    disk_bytes: u64,
    /// Forks whose extents are mapped.
    maps: usize,
}

fn plan(scale: Scale) -> Plan {
    match scale {
        // XFS refuses less than 300 MiB.
        Scale::Tiny => Plan { file_bytes: 8 << 20, writes: 100, loops: 5, disk_bytes: 320 << 20, maps: 2 },
        Scale::Small => Plan { file_bytes: 128 << 20, writes: 500, loops: 60, disk_bytes: 1 << 30, maps: 4 },
        Scale::Seed => {
            Plan { file_bytes: 4 << 30, writes: 10_000, loops: 1000, disk_bytes: 60 << 30, maps: 8 }
        }
    }
}

impl Plan {
    /// What the files behind its disks come to, should every write be kept by a fork: that of the target, and that of the file
    /// without forks, each no larger than it is made.
    fn host_bytes(&self) -> u64 {
        let written = (self.loops * self.writes * BLOCK_BYTES) as u64;
        (self.file_bytes + written).min(self.disk_bytes) + control_bytes(self)
    }

    /// Refuses to begin where that does not fit: hours later it would end in I/O errors of a target that has room itself.
    fn find_room(&self, free_bytes: u64, directory: &Path) -> Result<()> {
        if self.host_bytes() <= free_bytes {
            return Ok(());
        }
        let fits = |loops: &usize| Plan { loops: *loops, ..*self }.host_bytes() <= free_bytes;
        let fewer = match (1..self.loops).rev().find(fits) {
            Some(loops) => format!(", or --loops {loops}"),
            None => String::new(),
        };
        bail!(
            "the disks of {} loops come to {} MiB in {}, where {} MiB are free: take --dir on a filesystem that has room{fewer}",
            self.loops,
            self.host_bytes() >> 20,
            directory.parent().unwrap_or(directory).display(),
            free_bytes >> 20,
        )
    }
}

/// Size of the disk of the file without forks: every block once more, and what a checkpoint frees late.
fn control_bytes(plan: &Plan) -> u64 {
    (plan.file_bytes * 5 / 2).max(320 << 20)
}

/// Whether it has a disk that the lab makes.
fn has_disk(kind: &TargetKind) -> bool {
    !matches!(kind, TargetKind::Directory(_))
}

/// One loop.
#[derive(Clone, Debug, Serialize)]
struct Loop {
    /// Time of the writes, without the sync.
    write_ns: u64,
    sync_ns: u64,
    /// Of the snapshot or clone, as a command where the target is mounted.
    fork_ns: u64,
    /// Used on the filesystem after it.
    used_bytes: u64,
    /// What reached the disk during it.
    device: Option<Counters>,
    /// What of it was log and trees, as the filesystem itself counts, if it does.
    own: Option<Own>,
    /// Just afterwards, as many writes and a sync on a file that is never forked ([`Control`]), if it was asked.
    control_ns: Option<u64>,
}

/// The same kind of file on the same kind of target, without forks, written to in between: how fast the machine is at that
/// moment. What forks cost is what the rate has lost beside this one's.
struct Control {
    subject: Box<dyn Subject>,
    random: Random,
    failed: bool,
}

/// Bytes that a filesystem says it wrote beside data.
#[derive(Clone, Copy, Debug, Serialize)]
struct Own {
    log_bytes: u64,
    /// Checkpoints: nodes of trees in all their copies, bitmaps, checksums.
    tree_bytes: u64,
    checkpoints_count: u64,
}

impl std::ops::Sub for Own {
    type Output = Own;

    fn sub(self, before: Own) -> Own {
        Own {
            log_bytes: self.log_bytes - before.log_bytes,
            tree_bytes: self.tree_bytes - before.tree_bytes,
            checkpoints_count: self.checkpoints_count - before.checkpoints_count,
        }
    }
}

/// One extent map.
#[derive(Clone, Debug, Serialize)]
struct Map {
    fork: usize,
    extents_count: u64,
    shared_count: u64,
    /// Once everything it needs has been read.
    warm_ns: u64,
}

/// Times of single writes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Latency {
    median_ns: f64,
    p99_ns: f64,
}

/// Everything about one target.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    name: String,
    /// Before the first write of the first loop.
    used_before_bytes: u64,
    loops: Vec<Loop>,
    /// What was written after the last of them, of what they had put off.
    settled: Option<Counters>,
    maps: Vec<Map>,
    /// Writes before there was any fork.
    fresh: Latency,
    /// Writes when all forks were there, just before the first was deleted. Machines change within minutes, so this is what
    /// deleting is compared with.
    before: Latency,
    /// Writes while forks were deleted.
    deleting: Latency,
    /// From the first deletion to the last, and from there until nothing is left to be done.
    delete_ns: u64,
    drain_ns: u64,
    /// What is used when only the file is left.
    used_after_bytes: u64,
    /// Why it ended before its last loop, or before all was deleted.
    stopped: Option<String>,
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report> {
    if let Some(why) = options.targets.iter().find_map(unfit) {
        bail!("{why}");
    }
    let provenance = Provenance::here(options);
    let mut plan = plan(options.scale);
    plan.loops = options.loops.unwrap_or(plan.loops);
    let directory = match &options.directory {
        Some(directory) => tempfile::Builder::new().prefix("varve-lab-").tempdir_in(directory),
        None => tempfile::Builder::new().prefix("varve-lab-").tempdir(),
    }
    .context("cannot make a directory for the lab's disks")?;
    if options.medium != Medium::Memory && asked(options).iter().any(|(kind, _)| has_disk(kind)) {
        let host =
            rustix::fs::statvfs(directory.path()).context("cannot ask what is free for the lab's disks")?;
        plan.find_room(host.f_bavail * host.f_frsize, directory.path())?;
    }
    let (mut figures, mut targets, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let (rotated, mut months) = (month::plan(options), Vec::new());
    let raw = Disk::new(options.medium, directory.path(), "raw", 64 << 20, options.scale != Scale::Tiny)?;
    let ceiling = ceiling(&*raw.open()?, if options.scale == Scale::Tiny { 4 } else { 50 })?;
    for (kind, fork) in asked(options) {
        guard::check()?;
        let name = format!("{} {}", kind.name(), fork.name());
        if let Some(why) = subject::missing(&kind, fork, options) {
            crate::say(&format!("{name} IS NOT RUN: {why}"));
            skipped.push((name, why));
            continue;
        }
        // One after the other: together they would need the space of all.
        options.tell(&format!("{name}: making it"));
        let mut subject = subject::open(&kind, fork, options, directory.path(), plan.disk_bytes)
            .with_context(|| format!("cannot make {name}"))?;
        targets.push((name.clone(), subject.about()));
        let mut control = match kind.is_ours() {
            true => Some(Control::new(&kind, fork, options, directory.path(), &plan)?),
            false => None,
        };
        let figure =
            age(options, &plan, &name, &mut *subject, control.as_mut()).with_context(|| name.clone())?;
        figures.push(figure);
        subject.close().with_context(|| format!("cannot close {name}"))?;
        if let Some(Err(error)) = control.map(|control| control.subject.close()) {
            crate::say(&format!("the file beside {name} cannot be closed: {error:#}"));
        }
        if rotated.days > 0 {
            options.tell(&format!("{name}: {} days of rotation", rotated.days));
            let mut subject = subject::open(&kind, fork, options, directory.path(), rotated.disk_bytes)
                .with_context(|| format!("cannot make {name}"))?;
            let month = month::live(&rotated, &name, &mut *subject);
            months.push(month.with_context(|| format!("{name}, rotation"))?);
            subject.close().with_context(|| format!("cannot close {name}"))?;
        }
    }
    if targets.is_empty() {
        bail!("none of the targets can be run here");
    }
    let in_process = asked(options).iter().any(|(kind, _)| *kind == TargetKind::VarveInProcess);
    let month = (in_process && rotated.days > 0).then(|| {
        rotation::run(options, &|bytes| {
            let fill = options.scale == Scale::Small;
            Disk::new(options.medium, directory.path(), "rotation", bytes, fill)
        })
    });
    let month = month.transpose()?;
    let mut tables = summary::tables(&plan, &figures);
    let (mut plots, mut claims) = (summary::plots(&plan, &figures), summary::claims(&plan, &figures));
    if !months.is_empty() {
        tables.push(month::table(&rotated, &months));
        plots.extend(month::plots(&months));
        claims.extend(month::claims(&months));
    }
    tables.extend(month.as_ref().map(rotation::table));
    claims.extend(month.iter().flat_map(rotation::claims));
    let report = Report {
        experiment: "aging",
        summary: format!(
            "{} loops of {} random 4 KiB writes past the cache into a preallocated file of {} MiB, a sync, and a \
             snapshot or clone; then extent maps; then all forks are deleted in random order while the writing goes on. And \
             {} days of a snapshot or clone an hour, most of which are deleted again.",
            plan.loops,
            plan.writes,
            plan.file_bytes >> 20,
            rotated.days
        ),
        scale: options.scale.name(),
        provenance,
        disk: format!("{} MiB, like a raw one: {}", plan.disk_bytes >> 20, raw.describe()),
        ceiling: Some(ceiling),
        targets,
        skipped,
        tables,
        plots,
        claims,
        data: serde_json::json!({ "figures": figures, "rotation": month, "months": months }),
    };
    drop(raw);
    directory.close()?;
    Ok(report)
}

/// Why this cannot age, wherever it is run. `None`: it can.
#[must_use]
pub fn unfit(kind: &TargetKind) -> Option<String> {
    let why = match kind {
        TargetKind::Ext4 => "it has neither snapshots nor clones".to_owned(),
        TargetKind::Bare => "it is no filesystem, and has nothing to make snapshots of".to_owned(),
        TargetKind::Directory(path) => subject::without_clones(path)?,
        _ => return None,
    };
    Some(format!(
        "{} cannot age: {why}; the targets of aging are varve, varve-mounted, btrfs (snapshots), xfs (clones), and a \
         directory on a filesystem that clones files (FICLONE)",
        kind.name()
    ))
}

/// What is run: VarveFS both ways, the others in the way they are known for, directories with clones.
fn asked(options: &Options) -> Vec<(TargetKind, ForkKind)> {
    let all = [
        (TargetKind::VarveInProcess, ForkKind::Snapshot),
        (TargetKind::VarveInProcess, ForkKind::Clone),
        (TargetKind::VarveMounted, ForkKind::Snapshot),
        (TargetKind::VarveMounted, ForkKind::Clone),
        (TargetKind::Btrfs, ForkKind::Snapshot),
        (TargetKind::Xfs, ForkKind::Clone),
    ];
    let wanted = |kind: &TargetKind| options.targets.is_empty() || options.targets.contains(kind);
    let given = options.asked(&[]).into_iter().filter(|kind| matches!(kind, TargetKind::Directory(_)));
    let given = given.map(|kind| (kind, ForkKind::Clone));
    all.into_iter().filter(|(kind, _)| wanted(kind)).chain(given).collect()
}

/// The life of one filesystem.
fn age(
    options: &Options,
    plan: &Plan,
    name: &str,
    subject: &mut dyn Subject,
    mut control: Option<&mut Control>,
) -> Result<Figures> {
    let mut random = Random(0x7661_7276_6500 ^ plan.file_bytes);
    subject.prepare(plan.file_bytes)?;
    subject.settle()?;
    let fresh = quiet(plan, subject, &mut random)?;
    subject.settle()?;
    let used_before_bytes = subject.used_bytes()?;
    let mut figures = Figures {
        name: name.to_owned(),
        used_before_bytes,
        loops: Vec::with_capacity(plan.loops),
        settled: None,
        maps: Vec::new(),
        fresh,
        before: Latency::default(),
        deleting: Latency::default(),
        delete_ns: 0,
        drain_ns: 0,
        used_after_bytes: 0,
        stopped: None,
    };
    for number in 0..plan.loops {
        guard::check()?;
        if number % 50 == 0 || (number < 50 && number % 10 == 0) {
            options.tell(&format!("{name}: loop {number} of {}{}", plan.loops, figures.lately(plan)));
        }
        // Two hundred times, or each time, and in the end as in the beginning.
        let asked = number % (plan.loops / 200).max(1) == 0 || number + 1 == plan.loops;
        match one_loop(plan, subject, control.as_deref_mut().filter(|_| asked), &mut random, number) {
            Ok(done) => figures.loops.push(done),
            Err(error) => {
                guard::check()?;
                // A full disk is a result, not a failure of the lab.
                figures.stopped = Some(format!("at loop {number}: {error:#}"));
                break;
            }
        }
    }
    if figures.stopped.is_none() {
        let before = subject.counters()?;
        subject.settle()?;
        figures.settled = subject.counters()?.zip(before).map(|(now, before)| now - before);
    }
    let forks = figures.loops.len();
    let maps = plan.maps.min(forks);
    for map in 0..maps {
        let fork = (map + 1) * forks / maps - 1;
        figures.maps.extend(self::map(subject, fork)?);
    }
    options.tell(&format!("{name}: deleting {forks} forks{}", figures.lately(plan)));
    if let Err(error) = delete(plan, subject, &mut random, &mut figures) {
        guard::check()?;
        // Hours of measurements are not thrown away because the end did not come.
        figures.stopped.get_or_insert(format!("while deleting: {error:#}"));
    }
    let (deleting, draining) = (figures.delete_ns as f64 / 1e9, figures.drain_ns as f64 / 1e9);
    let (before, after) = (figures.before.p99_ns / 1e3, figures.deleting.p99_ns / 1e3);
    options.tell(&format!(
        "{name}: deleted in {deleting:.1} s, nothing left to reap after {draining:.1} s more; p99 of a write \
         {before:.1} us before, {after:.1} us meanwhile"
    ));
    Ok(figures)
}

fn one_loop(
    plan: &Plan,
    subject: &mut dyn Subject,
    control: Option<&mut Control>,
    random: &mut Random,
    number: usize,
) -> Result<Loop> {
    let (device, own) = (subject.counters()?, subject.own()?);
    let begun = Instant::now();
    write(plan, subject, random, &mut Vec::new())?;
    let write_ns = begun.elapsed().as_nanos() as u64;
    let begun = Instant::now();
    subject.sync()?;
    let sync_ns = begun.elapsed().as_nanos() as u64;
    let begun = Instant::now();
    subject.fork(number)?;
    let fork_ns = begun.elapsed().as_nanos() as u64;
    let used_bytes = subject.used_bytes()?;
    let control_ns = control.and_then(|control| control.ask(plan));
    // What the background has written meanwhile belongs to this loop, too.
    let now = subject.counters()?;
    let device = now.zip(device).map(|(now, before)| now - before);
    let own = subject.own()?.zip(own).map(|(now, before)| now - before);
    Ok(Loop { write_ns, sync_ns, fork_ns, used_bytes, device, own, control_ns })
}

impl Control {
    fn new(
        kind: &TargetKind,
        fork: ForkKind,
        options: &Options,
        directory: &Path,
        plan: &Plan,
    ) -> Result<Control> {
        let directory = directory.join("control");
        std::fs::create_dir_all(&directory)?;
        let mut subject = subject::open(kind, fork, options, &directory, control_bytes(plan))
            .context("cannot make the file that is not forked")?;
        subject.prepare(plan.file_bytes)?;
        let mut control =
            Control { subject, random: Random(0x0063_6f6e_7472_6f6c ^ plan.file_bytes), failed: false };
        // Until most of its blocks have been written to, its writes become dearer one by one.
        let blocks = plan.file_bytes / BLOCK_BYTES as u64;
        for _ in 0..CONTROL_ROUNDS * blocks.div_ceil(plan.writes as u64) {
            guard::check()?;
            control.write(plan)?;
        }
        control.subject.settle()?;
        Ok(control)
    }

    /// One loop's writes and a sync: how long they take. `None`: it has failed, now or before, which is no fault of whom it is
    /// compared with.
    fn ask(&mut self, plan: &Plan) -> Option<u64> {
        if self.failed {
            return None;
        }
        let took = self.write(plan);
        if let Err(error) = &took {
            self.failed = true;
            crate::say(&format!("THE FILE WITHOUT FORKS IS NOT COMPARED WITH any more: {error:#}"));
        }
        took.ok()
    }

    fn write(&mut self, plan: &Plan) -> Result<u64> {
        let begun = Instant::now();
        write(plan, &mut *self.subject, &mut self.random, &mut Vec::new())?;
        self.subject.sync()?;
        Ok(begun.elapsed().as_nanos() as u64)
    }
}

/// The writes of one loop.
fn write(plan: &Plan, subject: &mut dyn Subject, random: &mut Random, times: &mut Vec<f64>) -> Result<()> {
    let blocks = plan.file_bytes / BLOCK_BYTES as u64;
    for _ in 0..plan.writes {
        let number = random.next();
        let begun = Instant::now();
        subject.write(number % blocks * BLOCK_BYTES as u64, number)?;
        times.push(begun.elapsed().as_nanos() as f64);
    }
    Ok(())
}

fn map(subject: &mut dyn Subject, fork: usize) -> Result<Option<Map>> {
    subject.map(fork)?;
    subject.mapped()?;
    let begun = Instant::now();
    let Some((extents_count, shared_count)) = subject.map(fork)? else { return Ok(None) };
    Ok(Some(Map { fork, extents_count, shared_count, warm_ns: begun.elapsed().as_nanos() as u64 }))
}

/// Rounds as those in which forks are deleted, without that.
fn quiet(plan: &Plan, subject: &mut dyn Subject, random: &mut Random) -> Result<Latency> {
    let mut times = Vec::with_capacity(QUIET_ROUNDS * plan.writes);
    for _ in 0..QUIET_ROUNDS {
        guard::check()?;
        write(plan, subject, random, &mut times)?;
        subject.sync()?;
    }
    Ok(latency(&times))
}

/// Deletes all forks in random order; the file is written to all the while.
fn delete(plan: &Plan, subject: &mut dyn Subject, random: &mut Random, figures: &mut Figures) -> Result<()> {
    let mut left: Vec<usize> = (0..figures.loops.len()).collect();
    let a_round = left.len().div_ceil(DELETING_ROUNDS).max(1);
    // On a full disk nothing can be written before something is deleted.
    match quiet(plan, subject, random) {
        Ok(latency) => figures.before = latency,
        Err(_) => guard::check()?,
    }
    let begun = Instant::now();
    let mut times = Vec::new();
    while !left.is_empty() {
        guard::check()?;
        for _ in 0..a_round.min(left.len()) {
            let at = random.next() as usize % left.len();
            subject.delete(left.swap_remove(at))?;
        }
        write(plan, subject, random, &mut times)?;
        subject.sync()?;
    }
    figures.delete_ns = begun.elapsed().as_nanos() as u64;
    figures.deleting = latency(&times);
    let begun = Instant::now();
    subject.drain()?;
    figures.drain_ns = begun.elapsed().as_nanos() as u64;
    figures.used_after_bytes = subject.used_bytes()?;
    Ok(())
}

fn latency(times: &[f64]) -> Latency {
    let at = |share| quantile(times, share).unwrap_or_default();
    Latency { median_ns: at(0.5), p99_ns: at(0.99) }
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): the same writes on every target.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: who asks for more than the host's filesystem holds is told before anything is written, and how many loops fit. Method: every
    // amount free from nothing to enough, around the bounds.
    #[test]
    fn a_host_without_room_is_told() {
        let plan = plan(Scale::Seed);
        let all = plan.host_bytes();
        assert!((52 << 30..56 << 30).contains(&all), "{all}: 4 GiB, ten million blocks, and 10 GiB");
        assert!(plan.find_room(all, Path::new("/x/y")).is_ok());
        let text = plan.find_room(all - 1, Path::new("/x/y")).expect_err("it does not fit").to_string();
        assert!(
            text.contains("1000 loops") && text.contains(" in /x,") && text.contains("--loops 999"),
            "{text}"
        );
        let none = plan.find_room(1 << 30, Path::new("/x/y")).expect_err("it does not fit").to_string();
        assert!(none.contains("--dir") && !none.contains("--loops"), "{none}");
        let fewer = Plan { loops: 400, ..plan };
        let text = plan_text(&plan_of(700), fewer.host_bytes());
        assert!(text.contains("--loops 400"), "{text}");
        // A disk never grows beyond its size.
        assert_eq!(plan_of(100_000).host_bytes(), (60 << 30) + control_bytes(&plan_of(1)));
    }

    fn plan_of(loops: usize) -> Plan {
        Plan { loops, ..plan(Scale::Seed) }
    }

    fn plan_text(plan: &Plan, free_bytes: u64) -> String {
        plan.find_room(free_bytes, Path::new("/x/y")).expect_err("it does not fit").to_string()
    }
}
