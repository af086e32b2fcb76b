//! The experiment `large`: one large file, written, synced and read back in 1 MiB calls, through the kernel's cache and
//! past it.
//!
//! Every repeat visits all targets with one way of calling before it goes on to the next, beginning with another target
//! each time and going backwards every other time, so that a device that swings swings for all. Writing is timed from the first write to the end of fsync;
//! reading begins when the file has left the kernel's cache. What is read is compared with what was written, outside of
//! the time. Ratios are taken within a repeat, and the median of them counts.

mod summary;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::fs::{Advice, OFlags};
use serde::Serialize;
use varve_device::AlignedBuf;

use crate::counters::Counters;
use crate::disk::Disk;
use crate::machine::Provenance;
use crate::target::{Target, TargetKind, ceiling};
use crate::{Options, Report, Scale, guard};

/// Bytes of a call.
const CALL_BYTES: usize = 1 << 20;
/// The targets of a run that names none: those a program can call.
const TARGETS: [TargetKind; 4] =
    [TargetKind::VarveMounted, TargetKind::Ext4, TargetKind::Xfs, TargetKind::Btrfs];
/// The file.
const FILE: &str = "large";

/// The sizes that a scale stands for.
struct Plan {
    file_bytes: u64,
    disk_bytes: u64,
    repeats: usize,
    ceiling_count: u64,
}

fn plan(scale: Scale) -> Plan {
    match scale {
        // XFS refuses less than 300 MiB.
        Scale::Tiny => Plan { file_bytes: 4 << 20, disk_bytes: 320 << 20, repeats: 2, ceiling_count: 4 },
        // As in `commit`: a device that swings spoils a few of many, not the median.
        Scale::Small => Plan { file_bytes: 256 << 20, disk_bytes: 1 << 30, repeats: 21, ceiling_count: 100 },
        Scale::Seed => Plan { file_bytes: 2 << 30, disk_bytes: 8 << 30, repeats: 5, ceiling_count: 400 },
    }
}

/// How the file is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// Through the kernel's cache.
    Buffered,
    /// With `O_DIRECT`.
    Direct,
}

impl Mode {
    const ALL: [Mode; 2] = [Mode::Buffered, Mode::Direct];

    fn name(self) -> &'static str {
        match self {
            Mode::Buffered => "buffered",
            Mode::Direct => "direct",
        }
    }

    fn flags(self) -> OFlags {
        match self {
            Mode::Buffered => OFlags::empty(),
            Mode::Direct => OFlags::DIRECT,
        }
    }
}

/// One file written and read back.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    target: String,
    mode: Mode,
    repeat: usize,
    write_mib_per_s: f64,
    /// Of which fsync took this share of the time.
    fsync_share: f64,
    read_mib_per_s: f64,
    /// What reached the disk while it was written and synced.
    written: Option<Counters>,
}

/// Everything that was measured.
struct Figures {
    kinds: Vec<TargetKind>,
    samples: Vec<Sample>,
}

/// Why this cannot be called, wherever it is run. `None`: it can.
#[must_use]
pub fn unfit(kind: &TargetKind) -> Option<String> {
    let called = !matches!(kind, TargetKind::VarveInProcess | TargetKind::Bare);
    (!called).then(|| {
        format!(
            "{} has no files that a program could call; the targets of large are varve-mounted, ext4, xfs, btrfs, and directories",
            kind.name()
        )
    })
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report> {
    let provenance = Provenance::here(options);
    let plan = plan(options.scale);
    let directory = match &options.directory {
        Some(directory) => tempfile::Builder::new().prefix("varve-lab-").tempdir_in(directory),
        None => tempfile::Builder::new().prefix("varve-lab-").tempdir(),
    }
    .context("cannot make a directory for the lab's disks")?;
    let mut targets: Vec<(TargetKind, Box<dyn Target>)> = Vec::new();
    let mut skipped = Vec::new();
    for kind in options.asked(&TARGETS) {
        guard::check()?;
        match unfit(&kind).or_else(|| kind.missing(options)) {
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
    if targets.is_empty() {
        bail!("none of the targets can be run here");
    }
    let raw =
        Disk::new(options.medium, directory.path(), "raw", plan.disk_bytes, options.scale != Scale::Tiny)?;
    let ceiling = ceiling(&*raw.open()?, plan.ceiling_count)?;

    let mut samples = Vec::new();
    for repeat in 0..plan.repeats {
        options.tell(&format!("repeat {} of {}", repeat + 1, plan.repeats));
        for mode in Mode::ALL {
            // Backwards every other time: nobody always comes after the same other.
            let turns: Vec<usize> = (0..targets.len()).map(|turn| (turn + repeat) % targets.len()).collect();
            let forward = (repeat / targets.len()).is_multiple_of(2);
            for turn in 0..turns.len() {
                guard::check()?;
                let (kind, target) = &targets[turns[if forward { turn } else { turns.len() - 1 - turn }]];
                let sample = sample(kind, &**target, mode, repeat, plan.file_bytes)
                    .with_context(|| format!("{}, {}", kind.name(), mode.name()))?;
                samples.push(sample);
            }
        }
    }
    let about = targets.iter().map(|(kind, target)| (kind.name(), target.about())).collect();
    let figures = Figures { kinds: targets.iter().map(|(kind, _)| kind.clone()).collect(), samples };
    let report = Report {
        experiment: "large",
        summary: format!(
            "One file of {} MiB, written in calls of 1 MiB and synced, then read from the disk; buffered and direct. \
             Medians of {} repeats, targets in turn.",
            plan.file_bytes >> 20,
            plan.repeats
        ),
        scale: options.scale.name(),
        provenance,
        disk: raw.describe(),
        ceiling: Some(ceiling),
        targets: about,
        skipped,
        tables: summary::tables(&figures, plan.file_bytes),
        plots: summary::plots(&figures),
        claims: summary::claims(&figures),
        data: serde_json::json!({ "samples": figures.samples }),
    };
    for (kind, target) in targets {
        target.close().with_context(|| format!("cannot close {}", kind.name()))?;
    }
    drop(raw);
    directory.close()?;
    Ok(report)
}

fn open(path: &Path, mode: Mode, options: &mut OpenOptions) -> Result<File> {
    options
        .custom_flags(mode.flags().bits() as i32)
        .open(path)
        .with_context(|| format!("cannot open {} ({})", path.display(), mode.name()))
}

/// Bytes that no filesystem can do without writing: a sequence that looks random, marked with the number of the call.
fn fill(buf: &mut [u8], call: u64) {
    buf[..8].copy_from_slice(&call.to_le_bytes());
}

fn sample(
    kind: &TargetKind,
    target: &dyn Target,
    mode: Mode,
    repeat: usize,
    file_bytes: u64,
) -> Result<Sample> {
    let root = target.directory().context("it has no directory")?;
    let path = root.join(FILE);
    let mut buf = AlignedBuf::new(CALL_BYTES);
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ repeat as u64;
    for word in buf.chunks_exact_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    let calls = file_bytes / CALL_BYTES as u64;
    let mib = file_bytes as f64 / (1 << 20) as f64;
    target.settle()?;

    let before = target.counters()?;
    let file = open(&path, mode, OpenOptions::new().write(true).create_new(true))?;
    let begun = Instant::now();
    for call in 0..calls {
        fill(&mut buf, call);
        file.write_all_at(&buf, call * CALL_BYTES as u64)?;
    }
    let wrote = begun.elapsed().as_secs_f64();
    file.sync_all()?;
    let write = begun.elapsed().as_secs_f64();
    let after = target.counters()?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    drop(file);

    let mut marks = Vec::with_capacity(calls as usize);
    let mut back = AlignedBuf::new(CALL_BYTES);
    let file = open(&path, mode, OpenOptions::new().read(true))?;
    let begun = Instant::now();
    for call in 0..calls {
        file.read_exact_at(&mut back, call * CALL_BYTES as u64)?;
        marks.push((back[0], back[1], back[CALL_BYTES - 1]));
    }
    let read = begun.elapsed().as_secs_f64();
    for (call, mark) in marks.iter().enumerate() {
        fill(&mut buf, call as u64);
        if *mark != (buf[0], buf[1], buf[CALL_BYTES - 1]) {
            bail!("{} reads back other bytes than were written at MiB {call}", path.display());
        }
    }
    if back[8..] != buf[8..] {
        bail!("{} reads back other bytes than were written at its end", path.display());
    }
    drop(file);
    target.remove(FILE)?;
    // What it puts off is not left to the next.
    target.settle()?;
    Ok(Sample {
        target: kind.name(),
        mode,
        repeat,
        write_mib_per_s: mib / write,
        fsync_share: 1.0 - wrote / write,
        read_mib_per_s: mib / read,
        written: after.zip(before).map(|(after, before)| after - before),
    })
}
