//! `cargo xtask fsx`: fsx, the file system exerciser, on a mounted pool, as it is and with direct I/O.
//!
//! One file is written, read, mapped, cut, punched, reserved and copied at random, and every byte read is compared with
//! what it should be; afterwards the pool is checked. A seed gives the same operations every time. The weights are in
//! `xtask/fsx.toml` and `xtask/fsx-direct.toml`. Everything happens in mount and process namespaces of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{self, can_mount, cargo, output, root, target_dir};

const VERSION: &str = "0.3.2";
/// Operations for each seed, in the tests.
const OPS: u64 = 100_000;
const SEEDS: [u64; 3] = [1, 2, 3];
/// As it is, and with direct I/O.
const KINDS: u64 = 2;

const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);
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
    let program = match &args.program {
        Some(path) => path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?,
        None => build()?,
    };
    run_on(&program, args.ops, &args.seed).map(drop)
}

/// Builds the program for `cargo xtask soak`, and exercises it for long.
pub fn soak(ops: u64) -> Result<()> {
    run_on(&build()?, ops, &SEEDS).map(drop)
}

/// What the tests run. Gives the number of runs that passed; `None`: it cannot be run here, and that has been said.
pub fn test(program: &Path) -> Result<Option<u64>> {
    run_on(program, OPS, &SEEDS)
}

fn build() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--release", "-p", "varve-cli"]);
    process::run("cargo build --release", &mut build, INSTALL_LIMIT)?;
    Ok(target_dir().join("release").join("varve"))
}

fn run_on(program: &Path, ops: u64, seeds: &[u64]) -> Result<Option<u64>> {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0");
    if !can_mount() || !is_root {
        println!("SKIPPED: fsx. It needs root and /dev/fuse");
        return Ok(None);
    }
    let fsx = ensure_installed()?;
    let began = Instant::now();
    let scratch = Scratch(std::env::temp_dir().join(format!("varve-fsx-{}", std::process::id())));
    fs::create_dir(&scratch.0).context("cannot make a directory for fsx")?;
    let words: Vec<String> = seeds.iter().map(u64::to_string).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["bash", "-euc", SCRIPT]).current_dir("/");
    command
        .env("V", program)
        .env("F", &fsx)
        .env("S", &scratch.0)
        .env("X", root().join("xtask"))
        .env("OPS", ops.to_string())
        .env("SEEDS", words.join(" "));
    let runs = KINDS * seeds.len() as u64;
    let limit = LIMIT_PER_10_000 * (1 + (runs * ops / 10_000) as u32);
    process::run("fsx on VarveFS, as it is and with direct I/O", &mut command, limit)?;
    let passed = fs::read_to_string(scratch.0.join("passed")).unwrap_or_default().lines().count() as u64;
    println!("fsx {VERSION}: {passed} runs of {ops} operations passed in {} s", began.elapsed().as_secs());
    if passed != runs {
        bail!("{runs} runs of fsx were wanted, and {passed} passed");
    }
    Ok(Some(passed))
}

/// A directory of ours, removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            println!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// fsx, installed below the target directory once.
fn ensure_installed() -> Result<PathBuf> {
    let prefix = target_dir().join("fsx");
    let program = prefix.join("bin").join("fsx");
    let there = output(Command::new(&program).arg("--version")).unwrap_or_default();
    if there.trim() == format!("fsx {VERSION}") {
        return Ok(program);
    }
    let mut install = cargo();
    install.args(["install", "fsx", "--version", VERSION, "--locked", "--root"]).arg(&prefix);
    install.env("CARGO_TARGET_DIR", target_dir().join("fsx-build"));
    // Optimised a little: it compares every byte it reads.
    install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    process::run(&format!("cargo install fsx {VERSION}"), &mut install, INSTALL_LIMIT)?;
    Ok(program)
}
