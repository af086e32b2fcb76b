//! `cargo xtask real`: programs that people run, on a mounted pool, each with its result verified.
//!
//! PostgreSQL under kills, a kernel's source, and the loads of stress-ng, dbench and postmark. What is needed is
//! installed; what cannot be is skipped, and the summary says so. The scripts in `xtask/src/real.sh` run in mount and
//! process namespaces of their own, so that nothing is left whatever happens.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::packages::{self, Wanted};
use crate::process::{self, cargo};
use crate::suite::{self, Scratch};

/// One shell function for each of [`LOADS`] but PostgreSQL. `$V` is the program under test, `$S` an empty directory of
/// ours, `$SECONDS_EACH` how long what has no end of its own runs. The last line it prints is for the summary.
const SCRIPT: &str = include_str!("real.sh");

/// Unpacking a kernel, comparing it four times and building a part of it on a busy machine.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Something to run.
struct Load {
    name: &'static str,
    wanted: &'static [Wanted],
}

const POSTGRES: &str = "postgres";

const LOADS: &[Load] = &[
    Load { name: POSTGRES, wanted: &[("pg_ctlcluster", "postgresql"), ("fusermount3", "fuse3")] },
    Load {
        name: "kernel",
        wanted: &[
            ("/usr/src/linux-source-*.tar.xz", "linux-source"),
            ("xz", "xz-utils"),
            ("git", "git"),
            ("make", "make"),
            ("gcc", "gcc"),
            ("flex", "flex"),
            ("bison", "bison"),
            ("bc", "bc"),
            ("/usr/include/libelf.h", "libelf-dev"),
            ("/usr/include/openssl/ssl.h", "libssl-dev"),
        ],
    },
    Load { name: "stress-ng", wanted: &[("stress-ng", "stress-ng")] },
    Load { name: "dbench", wanted: &[("dbench", "dbench")] },
    Load { name: "postmark", wanted: &[("postmark", "postmark")] },
];

#[derive(clap::Args)]
pub struct RealArgs {
    /// The program to test [default: a release build]
    #[arg(long, value_name = "FILE")]
    program: Option<std::path::PathBuf>,
    /// Only this one, may be repeated: postgres, kernel, stress-ng, dbench or postmark
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Seconds for each of stress-ng's stressors; dbench runs ten times as long
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Kills of PostgreSQL and of the daemon, in turn
    #[arg(long, default_value_t = 8)]
    kills: u64,
}

/// How a load ended, for the summary.
enum Outcome {
    Passed(String),
    Skipped(String),
    Failed(String),
}

pub fn run(args: &RealArgs) -> Result<()> {
    let known: Vec<&str> = LOADS.iter().map(|load| load.name).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no {unknown}; there are: {}", known.join(", "));
    }
    if !suite::root_can_mount() {
        bail!("this needs root and /dev/fuse");
    }
    let program = suite::program(args.program.as_deref())?;
    let mut outcomes = Vec::new();
    for load in LOADS {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == load.name) {
            continue;
        }
        let began = Instant::now();
        let outcome = match packages::ensure(load.wanted) {
            Err(error) => Outcome::Skipped(format!("cannot install what it needs: {error:#}")),
            Ok(()) => {
                let done = match load.name {
                    POSTGRES => postgres(&program, args.kills),
                    name => script(name, &program, args.seconds),
                };
                done.map_or_else(|error| Outcome::Failed(format!("{error:#}")), Outcome::Passed)
            }
        };
        outcomes.push((load.name, began.elapsed(), outcome));
    }
    println!("\n== real programs on VarveFS");
    let mut failed = 0;
    for (name, took, outcome) in &outcomes {
        let (word, text) = match outcome {
            Outcome::Passed(text) => ("passed", text),
            Outcome::Skipped(text) => ("SKIPPED", text),
            Outcome::Failed(text) => ("FAILED", text),
        };
        failed += u64::from(matches!(outcome, Outcome::Failed(_)));
        println!("{name:<10} {word:<8} {:>5} s  {text}", took.as_secs());
    }
    if failed > 0 { bail!("{failed} of {} failed", outcomes.len()) } else { Ok(()) }
}

/// The mounted test does all of it.
fn postgres(program: &Path, kills: u64) -> Result<String> {
    let mut command = cargo();
    command.args(["test", "-p", "varve-cli", "--test", "mounted", "postgres_survives_kills"]);
    command.env("VARVE_BIN", program).env("VARVE_TEST_POSTGRES_KILLS", kills.to_string());
    // The figure goes to standard error, where a test may say something although it passes.
    let log = Scratch::new("postgres")?;
    let said = log.0.join("said");
    command.stderr(fs::File::create(&said).context("cannot make a file for messages")?);
    let ran = process::run("PostgreSQL under kills", &mut command, LIMIT);
    let text = fs::read_to_string(&said).unwrap_or_default();
    print!("{text}");
    ran?;
    let figure = text.lines().rev().find_map(|line| line.split_once("PostgreSQL: "));
    figure.map(|(_, figure)| figure.to_owned()).context("the test was skipped, see above")
}

fn script(name: &str, program: &Path, seconds: u64) -> Result<String> {
    let scratch = Scratch::new(name)?;
    let mut command: Command = suite::in_namespaces(SCRIPT);
    command.args(["real", name]).env("V", program).env("S", &scratch.0);
    command.env("SECONDS_EACH", seconds.to_string());
    let mut last = String::new();
    let status = process::run_lines(name, &mut command, LIMIT, |line| {
        if !line.trim().is_empty() {
            last = line.trim().to_owned();
        }
    })?;
    if status.success() { Ok(last) } else { bail!("{status}; the last it said: {last}") }
}
