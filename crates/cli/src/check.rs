//! `varve check`: reads everything in an unmounted pool and reports what does not agree. Changes nothing.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use varve_fs::Problem;

use crate::args::CheckArgs;
use crate::{Outcome, pool, show};

/// The report of `--json`.
#[derive(Serialize)]
struct Report {
    pool: String,
    problems: Vec<Shown>,
    problems_count: u64,
    problems_omitted_count: u64,
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
struct Shown {
    kind: &'static str,
    text: String,
    inode: Option<u64>,
    path: Option<String>,
    bytes_start: Option<u64>,
    bytes_end: Option<u64>,
    block_address: Option<u64>,
    block_bytes: Option<u64>,
}

impl Shown {
    fn new(problem: Problem) -> Shown {
        Shown {
            kind: problem.kind.name(),
            text: problem.text,
            inode: problem.inode,
            path: problem.path.map(|path| path.escape_ascii().to_string()),
            bytes_start: problem.bytes.map(|(start, _)| start),
            bytes_end: problem.bytes.map(|(_, end)| end),
            block_address: problem.blocks.map(|(address, _)| address),
            block_bytes: problem.blocks.map(|(_, bytes)| bytes),
        }
    }
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Outcome> {
    let started = Instant::now();
    let (filesystem, recovery) = pool::open_to_check(&args.pool)?;
    let found = filesystem
        .check(true)
        .with_context(|| format!("the check of {} could not be finished", args.pool.display()))?;
    let report = Report {
        pool: args.pool.display().to_string(),
        problems_count: found.problems.len() as u64 + found.omitted,
        problems_omitted_count: found.omitted,
        problems: found.problems.into_iter().map(Shown::new).collect(),
        clean: recovery.clean,
        batches_replayed_count: recovery.batches_replayed,
        batches_cut_count: recovery.batches_cut,
        nodes_count: found.nodes,
        entries_count: found.entries,
        data_blocks_count: found.data_blocks,
        elapsed_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
    };
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        show(&describe(&report, pool::describe_recovery(&recovery).as_deref()))?;
    }
    Ok(if report.problems.is_empty() { Outcome::Done } else { Outcome::ProblemsFound })
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
