//! `cargo xtask gate`: what a change must pass, in the order that fails soonest.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::{self, cargo};
use crate::test::TestArgs;
use crate::{check, demo, packages, readme, test};

pub fn run() -> Result<()> {
    let started = Instant::now();
    let minutes = |n: u64| Duration::from_secs(60 * n);
    packages::ensure_for_tests()?;
    process::run("cargo fmt", cargo().args(["fmt", "--all", "--check"]), minutes(1))?;
    check::run()?;
    process::run(
        "cargo clippy",
        cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        minutes(8),
    )?;
    test::run(&TestArgs::default())?;
    demo::run()?;
    readme::run_commands()?;
    println!("gate: passed in {} s", started.elapsed().as_secs());
    Ok(())
}
