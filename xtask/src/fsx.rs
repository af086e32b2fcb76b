//! `cargo xtask fsx`: fsx, the file system exerciser, on a mounted pool, as it is and with direct I/O.
//!
//! One file is written, read, mapped, cut, punched, reserved and copied at random, and every byte read is compared with
//! what it should be; afterwards the pool is checked. A seed gives the same operations every time. The weights are in
//! `xtask/fsx.toml` and `xtask/fsx-direct.toml`. Everything happens in mount and process namespaces of its own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::process::{self, root};
use crate::suite::{self, Suite};

pub const SUITE: Suite = Suite {
    name: "fsx",
    version: "0.3.2",
    // Optimised a little: it compares every byte it reads. What it is made of is not: that takes half the time to compile.
    flags: &["--config", "profile.release.package.fsx.opt-level=1"],
    variables: &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")],
};
/// Operations for each seed, in the tests.
pub const OPS: u64 = 100_000;
pub const SEEDS: [u64; 3] = [1, 2, 3];
/// Operations of one run of fsx; longer ones are done in pieces, with seeds of their own. fsx 0.3.2 never unmaps what it
/// maps to read, and the kernel allows a process 65,530 mappings (vm.max_map_count): it came to about 550,000 operations.
const RUN_OPS_MAX: u64 = 250_000;
/// Between the seeds of two pieces.
const PIECE_SEED_STEP: u64 = 1_000_000;
/// As it is, and with direct I/O.
const KINDS: u64 = 2;

/// For 10,000 operations; on an idle machine they take a second.
const LIMIT_PER_10_000: Duration = Duration::from_secs(30);

/// What happens inside the namespaces. `$V` is the program, `$F` fsx, `$X` the directory of the weights, `$S` an empty
/// directory of ours. Leaves a line in `$S/passed` for each seed.
const SCRIPT: &str = include_str!("fsx.sh");

#[derive(clap::Args)]
pub struct FsxArgs {
    /// The program to test [default: a release build]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Operations for each seed
    #[arg(long, default_value_t = OPS)]
    ops: u64,
    /// Seeds
    #[arg(long, value_name = "N", default_values_t = SEEDS)]
    seed: Vec<u64>,
}

pub fn run(args: &FsxArgs) -> Result<()> {
    // Whoever asks for this alone wants it to have run.
    let passed = run_on(&suite::program(args.program.as_deref())?, args.ops, &args.seed)?;
    passed.map(drop).ok_or_else(|| anyhow!("fsx has not run"))
}

/// Builds the program for `cargo xtask soak`, and exercises it for long.
pub fn soak(ops: u64) -> Result<()> {
    run_on(&suite::program(None)?, ops, &SEEDS).map(drop)
}

/// What [`run`] does with its defaults, where it can be done. Gives the number of runs that passed; `None`: it cannot be run
/// here, and that has been said.
pub fn test(program: &Path) -> Result<Option<u64>> {
    run_on(program, OPS, &SEEDS)
}

/// The words that have this program do what [`run`] does with its defaults, on `program`.
pub fn words(program: &Path) -> Vec<OsString> {
    ["fsx".into(), "--program".into(), program.into()].into()
}

/// The same, `ops` operations of one seed.
pub fn words_briefly(program: &Path, ops: u64) -> Vec<OsString> {
    let mut words = words(program);
    words.extend(["--ops".into(), ops.to_string().into(), "--seed".into(), SEEDS[0].to_string().into()]);
    words
}

/// How many runs passed, by a line that [`run`] has printed; `None`: it says something else.
pub fn passed_in(line: &str) -> Option<u64> {
    let (passed, rest) = line.strip_prefix(SUITE.name)?.split_once(": ")?.1.split_once(' ')?;
    rest.starts_with("runs of ").then(|| passed.parse().ok())?
}

fn run_on(program: &Path, ops: u64, seeds: &[u64]) -> Result<Option<u64>> {
    if !suite::root_can_mount() {
        println!("SKIPPED: fsx. It needs root and /dev/fuse");
        return Ok(None);
    }
    let fsx = SUITE.ensure_installed()?;
    let began = Instant::now();
    let scratch = SUITE.scratch()?;
    let pieces = ops.div_ceil(RUN_OPS_MAX).max(1);
    let ops = ops.div_ceil(pieces);
    let words: Vec<String> = seeds
        .iter()
        .flat_map(|seed| (0..pieces).map(move |piece| (seed + piece * PIECE_SEED_STEP).to_string()))
        .collect();
    let mut command = suite::in_namespaces(SCRIPT);
    command
        .env("V", program)
        .env("F", &fsx)
        .env("S", &scratch.0)
        .env("X", root().join("xtask"))
        .env("OPS", ops.to_string())
        .env("SEEDS", words.join(" "));
    let runs = KINDS * words.len() as u64;
    let limit = LIMIT_PER_10_000 * (1 + (runs * ops / 10_000) as u32);
    process::run("fsx on VarveFS, as it is and with direct I/O", &mut command, limit)?;
    let passed = fs::read_to_string(scratch.0.join("passed")).unwrap_or_default().lines().count() as u64;
    println!("{}", summary(passed, ops, began.elapsed()));
    if passed != runs {
        bail!("{runs} runs of fsx were wanted, and {passed} passed");
    }
    Ok(Some(passed))
}

/// What is said of runs that passed.
fn summary(passed: u64, ops: u64, took: Duration) -> String {
    let Suite { name, version, .. } = SUITE;
    format!("{name} {version}: {passed} runs of {ops} operations passed in {} s", took.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: runs that passed are counted, and nothing else is. Method: the line that says so, and others of such a run.
    #[test]
    fn runs_that_passed_are_told_by_their_line() {
        assert_eq!(passed_in(&summary(6, 100_000, Duration::from_secs(90))), Some(6));
        for line in
            ["", "fsx", "== fsx on VarveFS", "fsx has not run", "fsx 0.3.2: some runs of 5 operations passed"]
        {
            assert_eq!(passed_in(line), None, "{line}");
        }
    }
}
