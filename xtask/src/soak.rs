//! `cargo xtask soak`: the crash suite and the fuzz targets for as long as asked (the suite goes on where the last soak stopped),
//! then fsx.

use std::time::Duration;

use anyhow::Result;

use crate::process::{self, cargo};
use crate::{fsx, fuzz};

/// One part in so many of the time is for fuzzing.
const FUZZ_PART: u64 = 4;

#[derive(clap::Args)]
pub struct SoakArgs {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Seed of the first run; a failure prints the one to give here
    #[arg(long)]
    seed: Option<u64>,
    /// Operations of fsx, for each of its seeds, when the time is up; 0 leaves it out
    #[arg(long, default_value_t = 1_000_000)]
    ops: u64,
}

pub fn run(args: &SoakArgs) -> Result<()> {
    let fuzzed = minutes_of_fuzzing(args.minutes);
    let minutes = args.minutes - fuzzed;
    let mut command = cargo();
    command.args(["run", "--release", "-p", "varve-torture", "--", "soak"]);
    command.arg("--minutes").arg(minutes.to_string());
    if let Some(seed) = args.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    // Building comes on top of the time asked for, and so does the run that is under way when it ends.
    let limit = Duration::from_secs(60 * (minutes + 15));
    process::run("soak", &mut command, limit)?;
    if fuzzed > 0 {
        fuzz::soak(fuzzed)?;
    }
    if args.ops > 0 { fsx::soak(args.ops) } else { Ok(()) }
}

/// How many of the minutes are for fuzzing; who skips it says so.
fn minutes_of_fuzzing(minutes: u64) -> u64 {
    let why = match fuzz::missing() {
        Some(what) => format!("{what} is not installed"),
        None if minutes < FUZZ_PART => format!("there are less than {FUZZ_PART} minutes"),
        None => return minutes / FUZZ_PART,
    };
    println!("== fuzz\nSKIPPED: nothing is fuzzed: {why}");
    0
}
