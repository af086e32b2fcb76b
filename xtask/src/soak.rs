//! `cargo xtask soak`: the crash suite for as long as asked (it goes on where the last soak stopped), then fsx.

use std::time::Duration;

use anyhow::Result;

use crate::fsx;
use crate::process::{self, cargo};

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
    let mut command = cargo();
    command.args(["run", "--release", "-p", "varve-torture", "--", "soak"]);
    command.arg("--minutes").arg(args.minutes.to_string());
    if let Some(seed) = args.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    // Building comes on top of the time asked for, and so does the run that is under way when it ends.
    let limit = Duration::from_secs(60 * (args.minutes + 15));
    process::run("soak", &mut command, limit)?;
    if args.ops > 0 { fsx::soak(args.ops) } else { Ok(()) }
}
