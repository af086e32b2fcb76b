//! The experiment `commit`: synchronous small files from many threads, as fs_mark does it (ext3's journal, 2007).
//!
//! T threads share one directory; each creates a file of 10,240 bytes, writes it, syncs it and closes it, again and again.
//! Every repeat visits all targets at one T before it goes on to the next T, beginning with another target each time, so
//! that a device that swings swings for all. Figures are medians of the repeats; what is compared is compared within one
//! repeat. Flushes, writes and bytes are sums over all repeats: a checkpoint every few thousand files is in none of them
//! by itself.

mod summary;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::counters::Counters;
use crate::disk::Disk;
use crate::load::{self, Load};
use crate::machine::Provenance;
use crate::numbers::median;
use crate::report::Ceiling;
use crate::target::{Target, TargetKind, ceiling};
use crate::{Options, Report, Scale, guard};

/// Size of each file.
const FILE_BYTES: usize = 10_240;
/// What a file of that size costs at most on any target, for the bound on files in a run.
const FILE_BYTES_COST_MAX: u64 = 40 << 10;

/// The sizes that a scale stands for.
struct Plan {
    threads: &'static [usize],
    repeats: usize,
    /// Rounds more through all T, of VarveFS and the bare protocol alone: a median of few repeats moves by more than its
    /// bound leaves.
    more_repeats: usize,
    duration: Duration,
    disk_bytes: u64,
    pairs: usize,
    pair_files: usize,
    /// Files of the long run whose bytes are counted: enough for checkpoints to come by themselves.
    cost_files: usize,
    cost_duration: Duration,
    ceiling_count: u64,
}

fn plan(scale: Scale) -> Plan {
    match scale {
        Scale::Tiny => Plan {
            threads: &[1, 2, 8],
            repeats: 1,
            more_repeats: 1,
            duration: Duration::from_millis(20),
            // XFS refuses less than 300 MiB.
            disk_bytes: 320 << 20,
            pairs: 3,
            pair_files: 8,
            cost_files: 16,
            cost_duration: Duration::from_millis(50),
            ceiling_count: 4,
        },
        Scale::Small => Plan {
            threads: &[1, 2, 4, 8, 16, 40],
            // Many short ones: a device that swings by ten spoils a few of them, not the median.
            repeats: 7,
            more_repeats: 24,
            duration: Duration::from_millis(80),
            disk_bytes: 320 << 20,
            pairs: 200,
            pair_files: 25,
            cost_files: 2_000,
            cost_duration: Duration::from_secs(6),
            ceiling_count: 50,
        },
        Scale::Seed => Plan {
            threads: &[1, 2, 4, 8, 16, 40],
            repeats: 7,
            more_repeats: 24,
            duration: Duration::from_secs(2),
            disk_bytes: 1 << 30,
            pairs: 200,
            pair_files: 100,
            cost_files: 10_000,
            cost_duration: Duration::from_secs(60),
            ceiling_count: 200,
        },
    }
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    target: String,
    threads: usize,
    repeat: usize,
    files_count: usize,
    elapsed_ns: u64,
    files_per_s: f64,
    /// What reached the disk while the files were made.
    during: Option<Counters>,
    /// The same, with all that was put off until afterwards.
    settled: Option<Counters>,
}

/// One thread in process against the bare write and flush, just after each other.
#[derive(Clone, Debug, Serialize)]
struct Pair {
    varve_ns_per_file: f64,
    bare_ns_per_file: f64,
}

/// Everything that was measured.
struct Figures {
    kinds: Vec<TargetKind>,
    threads: Vec<usize>,
    samples: Vec<Sample>,
    more: Vec<Sample>,
    pairs: Vec<Pair>,
    costs: Vec<Sample>,
}

type Open = (TargetKind, Box<dyn Target>);

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report> {
    let provenance = Provenance::here(options);
    let plan = plan(options.scale);
    let directory = match &options.directory {
        Some(directory) => tempfile::Builder::new().prefix("varve-lab-").tempdir_in(directory),
        None => tempfile::Builder::new().prefix("varve-lab-").tempdir(),
    }
    .context("cannot make a directory for the lab's disks")?;

    let mut targets: Vec<Open> = Vec::new();
    let mut skipped = Vec::new();
    for kind in options.asked(&TargetKind::ALL) {
        guard::check()?;
        match kind.missing(options) {
            Some(why) => {
                crate::say(&format!("{} IS NOT RUN: {why}", kind.name()));
                skipped.push((kind.name(), why));
            }
            None => {
                options.tell(&format!("making {}", kind.name()));
                let target = kind.open(options, directory.path(), plan.disk_bytes)?;
                targets.push((kind, target));
            }
        }
    }
    let raw =
        Disk::new(options.medium, directory.path(), "raw", plan.disk_bytes, options.scale != Scale::Tiny)?;

    let (samples, ceilings) = measure(options, &plan, &targets, &raw)?;
    let more = more(options, &plan, &targets)?;
    let pairs = pairs(options, &plan, &targets)?;
    let costs = costs(options, &plan, &targets)?;
    let about = targets.iter().map(|(kind, target)| (kind.name(), target.about())).collect();
    let threads = plan.threads.to_vec();
    let kinds = targets.iter().map(|(kind, _)| kind.clone()).collect();
    let figures = Figures { kinds, threads, samples, more, pairs, costs };
    let report = Report {
        experiment: "commit",
        summary: format!(
            "T threads in one directory; each file has {FILE_BYTES} bytes and is created, written, synced and closed. \
             Medians of {} repeats of {} ms, targets in turn; what VarveFS is to itself and to the bare protocol, of {} more of \
             these alone besides.",
            plan.repeats,
            plan.duration.as_millis(),
            plan.more_repeats
        ),
        scale: options.scale.name(),
        provenance,
        disk: raw.describe(),
        ceiling: ceilings,
        targets: about,
        skipped,
        tables: summary::tables(&figures),
        plots: summary::plots(&figures),
        claims: summary::claims(&figures),
        data: serde_json::json!({
            "samples": figures.samples, "more": figures.more, "pairs": figures.pairs, "costs": figures.costs
        }),
    };
    for (kind, target) in targets {
        target.close().with_context(|| format!("cannot close {}", kind.name()))?;
    }
    drop(raw);
    directory.close()?;
    Ok(report)
}

/// The matrix of targets and threads, repeated, and the bare device between.
fn measure(
    options: &Options,
    plan: &Plan,
    targets: &[Open],
    raw: &Disk,
) -> Result<(Vec<Sample>, Option<Ceiling>)> {
    let device = raw.open()?;
    let mut samples = Vec::new();
    let mut ceilings = Vec::new();
    for repeat in 0..plan.repeats {
        options.tell(&format!("repeat {} of {}", repeat + 1, plan.repeats));
        ceilings.push(ceiling(&*device, plan.ceiling_count)?);
        for &threads in plan.threads {
            for turn in 0..targets.len() {
                samples.push(cell(plan, &targets[(turn + repeat) % targets.len()], threads, repeat)?);
            }
        }
    }
    let small: Vec<f64> = ceilings.iter().map(|ceiling| ceiling.flushed_writes_per_s).collect();
    let large: Vec<f64> = ceilings.iter().map(|ceiling| ceiling.sequential_mib_per_s).collect();
    let ceiling = median(&small)
        .zip(median(&large))
        .map(|(small, large)| Ceiling { flushed_writes_per_s: small, sequential_mib_per_s: large });
    Ok((samples, ceiling))
}

/// VarveFS and the bare protocol once more, at all T in turn. Their repeats are numbered on from those of [`measure`].
fn more(options: &Options, plan: &Plan, targets: &[Open]) -> Result<Vec<Sample>> {
    let wanted = [TargetKind::Bare, TargetKind::VarveInProcess, TargetKind::VarveMounted];
    let targets: Vec<&Open> = targets.iter().filter(|(kind, _)| wanted.contains(kind)).collect();
    let mut samples = Vec::new();
    for round in 0..plan.more_repeats {
        options.tell(&format!(
            "VarveFS and the bare protocol alone, repeat {} of {}",
            round + 1,
            plan.more_repeats
        ));
        // Up and down in turn: what drifts favours neither few threads nor many.
        let up = plan.threads.iter().copied();
        let order: Vec<usize> = if round % 2 == 0 { up.collect() } else { up.rev().collect() };
        for threads in order {
            guard::check()?;
            for turn in 0..targets.len() {
                let target = targets[(turn + round) % targets.len()];
                samples.push(cell(plan, target, threads, plan.repeats + round)?);
            }
        }
    }
    Ok(samples)
}

/// One target at one T.
fn cell(plan: &Plan, (kind, target): &Open, threads: usize, repeat: usize) -> Result<Sample> {
    let load = Load {
        threads,
        file_bytes: FILE_BYTES,
        duration: plan.duration,
        files_max: (plan.disk_bytes / FILE_BYTES_COST_MAX) as usize,
    };
    sample(load, kind, &**target, &format!("commit-{repeat}-{threads}"), repeat)
        .with_context(|| format!("{} with {threads} threads", kind.name()))
}

fn sample(
    load: Load,
    kind: &TargetKind,
    target: &dyn Target,
    directory: &str,
    repeat: usize,
) -> Result<Sample> {
    target.create_dir(directory)?;
    target.settle()?;
    let before = target.counters()?;
    let done = load::synced_files(target, directory, load)?;
    let during = target.counters()?;
    target.settle()?;
    let settled = target.counters()?;
    load::remove(target, directory, &done)?;
    // What it puts off is not left to the next.
    target.settle()?;
    let since = |now: Option<Counters>| Some(now? - before?);
    Ok(Sample {
        target: kind.name(),
        threads: load.threads,
        repeat,
        files_count: done.files_count(),
        elapsed_ns: done.elapsed.as_nanos() as u64,
        files_per_s: done.files_per_s(),
        during: since(during),
        settled: since(settled),
    })
}

/// One thread for long enough that checkpoints come by themselves: what a file costs with all that is put off. On VarveFS
/// only, whose claim it is.
fn costs(options: &Options, plan: &Plan, targets: &[Open]) -> Result<Vec<Sample>> {
    let ours = [TargetKind::VarveInProcess, TargetKind::VarveMounted];
    let mut costs = Vec::new();
    for (kind, target) in targets.iter().filter(|(kind, _)| ours.contains(kind)) {
        options.tell(&format!("{}, up to {} files", kind.name(), plan.cost_files));
        let load = Load {
            threads: 1,
            file_bytes: FILE_BYTES,
            duration: plan.cost_duration,
            files_max: plan.cost_files,
        };
        costs.push(sample(load, kind, &**target, "cost", 0).with_context(|| kind.name())?);
    }
    Ok(costs)
}

/// One thread in process and the bare protocol, a few files each, in turn. Needs both among the targets.
fn pairs(options: &Options, plan: &Plan, targets: &[Open]) -> Result<Vec<Pair>> {
    let find = |wanted| targets.iter().find(|(kind, _)| *kind == wanted).map(|(_, target)| &**target);
    let (Some(varve), Some(bare)) = (find(TargetKind::VarveInProcess), find(TargetKind::Bare)) else {
        return Ok(Vec::new());
    };
    options.tell("one thread against the bare write and flush, in pairs");
    varve.create_dir("pairs")?;
    let mut pairs = Vec::new();
    let mut number = 0u64;
    let mut time = |target: &dyn Target| -> Result<f64> {
        let bytes = [0x5a; FILE_BYTES];
        let begun = Instant::now();
        for _ in 0..plan.pair_files {
            number += 1;
            target.write_synced(&format!("pairs/{number}"), &bytes)?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / plan.pair_files as f64)
    };
    for pair in 0..plan.pairs {
        guard::check()?;
        // Who goes first takes turns too.
        let pair = if pair % 2 == 0 {
            let varve_ns_per_file = time(varve)?;
            Pair { varve_ns_per_file, bare_ns_per_file: time(bare)? }
        } else {
            let bare_ns_per_file = time(bare)?;
            Pair { varve_ns_per_file: time(varve)?, bare_ns_per_file }
        };
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Runs the experiment in a directory for tests and callers that keep their own.
pub fn run_in(options: &Options, directory: &Path) -> Result<Report> {
    run(&Options { directory: Some(directory.to_path_buf()), ..options.clone() })
}
