//! `varve check`: reads everything in an unmounted pool and reports what does not agree. Changes nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use varve_fs::{CheckProgress, CheckStage, FileRange, Problem, ProblemKind};

use crate::args::CheckArgs;
use crate::names::{Shown, escape};
use crate::pool::{self, ToCheck};
use crate::progress::Progress;
use crate::{Outcome, show};

/// The report of `--json`.
#[derive(Serialize)]
struct Report {
    pool: String,
    problems: Vec<ShownProblem>,
    problems_count: u64,
    problems_omitted_count: u64,
    warnings: Vec<String>,
    clean: bool,
    batches_replayed_count: u64,
    batches_cut_count: u64,
    nodes_count: u64,
    entries_count: u64,
    data_blocks_count: u64,
    elapsed_ns: u64,
}

/// A problem in `--json`; docs/check.md says what the keys mean.
#[derive(Serialize)]
struct ShownProblem {
    kind: &'static str,
    text: String,
    inode: Option<u64>,
    path: Option<String>,
    bytes_start: Option<u64>,
    bytes_end: Option<u64>,
    block_address: Option<u64>,
    block_bytes: Option<u64>,
    files: Vec<ShownFile>,
    files_omitted_count: u64,
    files_uncounted: bool,
}

/// A range of a file that has the blocks of a problem.
#[derive(Serialize)]
struct ShownFile {
    inode: u64,
    path: Option<String>,
    bytes_start: u64,
    bytes_end: u64,
}

impl From<FileRange> for ShownFile {
    fn from(file: FileRange) -> ShownFile {
        let path = file.path.as_deref().map(escape);
        ShownFile { inode: file.inode, path, bytes_start: file.bytes.0, bytes_end: file.bytes.1 }
    }
}

impl ShownProblem {
    fn new(problem: Problem) -> ShownProblem {
        ShownProblem {
            kind: problem.kind.name(),
            text: problem.text,
            inode: problem.inode,
            path: problem.path.as_deref().map(escape),
            bytes_start: problem.bytes.map(|(start, _)| start),
            bytes_end: problem.bytes.map(|(_, end)| end),
            block_address: problem.blocks.map(|(address, _)| address),
            block_bytes: problem.blocks.map(|(_, bytes)| bytes),
            files: problem.files.into_iter().map(ShownFile::from).collect(),
            files_omitted_count: problem.files_omitted,
            files_uncounted: problem.files_uncounted,
        }
    }
}

/// A line on the terminal that says how far the check has come, until this is dropped.
struct Watched {
    progress: Arc<CheckProgress>,
    line: Progress,
    /// Ends the thread that moves the line.
    ends: Option<Sender<()>>,
    moves: Option<JoinHandle<()>>,
}

impl Watched {
    fn start() -> Watched {
        let (progress, line) = (Arc::<CheckProgress>::default(), Progress::start_steps());
        let (ends, end) = mpsc::channel();
        let moves = line.is_shown().then(|| {
            let (progress, line) = (progress.clone(), line.clone());
            thread::spawn(move || {
                while end.recv_timeout(Duration::from_millis(200)) == Err(RecvTimeoutError::Timeout) {
                    let (stage, done, of) = progress.now();
                    line.at_step(said_of(stage), done, of);
                }
            })
        });
        Watched { progress, line, ends: Some(ends), moves }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(moves) = self.moves.take() {
            let _ = moves.join();
        }
        self.line.end();
    }
}

/// What is counted in a stage of a check.
fn said_of(stage: CheckStage) -> &'static str {
    match stage {
        CheckStage::Nodes => "tree nodes read",
        CheckStage::Entries => "entries compared with their versions",
        CheckStage::Subvolumes => "subvolumes and snapshots compared",
        CheckStage::Files => "files' extents compared",
        CheckStage::Data => "blocks of data read",
    }
}

/// The memory of this machine, or as much of it as the control groups of this process allow (cgroup v2, `memory.max`; what cannot
/// be read does not count).
fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let mut least = machine.totalram.saturating_mul(machine.mem_unit.into());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    for group in group.iter().flat_map(|group| Path::new(group).ancestors()) {
        let limit = std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(group).join("memory.max"));
        least = least.min(limit.ok().and_then(|limit| limit.trim().parse().ok()).unwrap_or(u64::MAX));
    }
    least
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Outcome> {
    let started = Instant::now();
    // Nothing else wants this memory, and of a pool of few files little of it is used.
    let usual = (memory_bytes() / 8).clamp(256 << 20, 4 << 30);
    let cache_bytes = crate::options::cache_bytes(Some(args.cache_size.unwrap_or(usual)))?;
    let watched = Watched::start();
    let opened = pool::open_to_check(&args.pool, cache_bytes, watched.progress.clone());
    let (filesystem, recovery) = match opened? {
        ToCheck::Open(filesystem, recovery) => (filesystem, recovery),
        ToCheck::Unopenable(error) if args.json => return unopenable(args, started, &error),
        ToCheck::Unopenable(error) => return Err(error),
    };
    let found = filesystem
        .check(true)
        .with_context(|| format!("the check of {} could not be finished", args.pool.shown()))?;
    drop(watched);
    for text in &found.warnings {
        crate::tell(&format!("varve check: warning: {text}"));
    }
    let report = Report {
        pool: args.pool.shown(),
        problems_count: found.problems.len() as u64 + found.omitted,
        problems_omitted_count: found.omitted,
        problems: found.problems.into_iter().map(ShownProblem::new).collect(),
        warnings: found.warnings,
        clean: recovery.clean,
        batches_replayed_count: recovery.batches_replayed,
        batches_cut_count: recovery.batches_cut,
        nodes_count: found.nodes,
        entries_count: found.entries,
        data_blocks_count: found.data_blocks,
        elapsed_ns: nanoseconds(started),
    };
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        show(&describe(&report, pool::describe_recovery(&recovery).as_deref()))?;
    }
    Ok(if report.problems.is_empty() { Outcome::Done } else { Outcome::ProblemsFound })
}

/// Programs hear of what cannot be opened as of any other problem.
fn unopenable(args: &CheckArgs, started: Instant, error: &anyhow::Error) -> Result<Outcome> {
    let problem = Problem::new(ProblemKind::PoolUnopenable, format!("{error:#}"));
    let report = Report {
        pool: args.pool.shown(),
        problems: vec![ShownProblem::new(problem)],
        problems_count: 1,
        problems_omitted_count: 0,
        warnings: Vec::new(),
        clean: false,
        batches_replayed_count: 0,
        batches_cut_count: 0,
        nodes_count: 0,
        entries_count: 0,
        data_blocks_count: 0,
        elapsed_ns: nanoseconds(started),
    };
    show(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    Ok(Outcome::ProblemsFound)
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// For people.
fn describe(report: &Report, recovery: Option<&str>) -> String {
    let pool = &report.pool;
    let mut text = String::new();
    if let Some(recovery) = recovery {
        text.push_str(&format!("{pool}: {recovery} (in memory only, for this check)\n"));
    }
    for problem in &report.problems {
        text.push_str(&format!("{pool}: {}: {}\n", problem.kind, problem.text));
    }
    if report.problems_omitted_count > 0 {
        text.push_str(&format!("{pool}: {} more problems are not listed\n", report.problems_omitted_count));
    }
    let verdict = match report.problems_count {
        0 => "no problems".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    text.push_str(&format!(
        "{pool}: {verdict}; {} tree nodes, {} entries and {} blocks of data in {:.1} s\n",
        report.nodes_count,
        report.entries_count,
        report.data_blocks_count,
        report.elapsed_ns as f64 / 1e9
    ));
    text
}
