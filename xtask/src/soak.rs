//! `cargo xtask soak`: the crash suite and the fuzz targets for as long as asked (the suite goes on where the last soak stopped),
//! then fsx. What one of them finds keeps none of the others from its turn.

use std::time::Duration;

use anyhow::{Result, bail};

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
    let crash = || process::run("soak", &mut command, limit);
    let fuzz = || if fuzzed > 0 { fuzz::soak(fuzzed) } else { Ok(()) };
    let fsx = || if args.ops > 0 { fsx::soak(args.ops) } else { Ok(()) };
    let parts: [Box<dyn FnOnce() -> Result<()>>; 3] = [Box::new(crash), Box::new(fuzz), Box::new(fsx)];
    all(parts, process::is_asked_to_end)
}

/// Runs each part, also after one that failed, for a night is to show all it can; unless somebody wants an end. The error tells of every
/// one that failed.
pub fn all<P: FnOnce() -> Result<()>>(
    parts: impl IntoIterator<Item = P>,
    is_asked_to_end: impl Fn() -> bool,
) -> Result<()> {
    let mut failures = Vec::new();
    for part in parts {
        if let Err(error) = part() {
            eprintln!("error: {error:#}");
            failures.push(format!("{error:#}"));
        }
        if is_asked_to_end() {
            bail!("interrupted");
        }
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("; "));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a failure of one part takes the turn of no other and is not forgotten; an interruption ends all. Method: three parts that
    // count, the first two of which fail.
    #[test]
    fn what_fails_takes_no_turn_away() {
        let turns = |interrupted_at: usize| {
            let count = std::cell::Cell::new(0);
            let turn = &|error: Option<&str>| {
                count.set(count.get() + 1);
                error.map_or(Ok(()), |error| bail!("{error}"))
            };
            let parts = [Some("first"), Some("second"), None].map(|error| move || turn(error));
            let done = all(parts, || count.get() == interrupted_at);
            (count.get(), done.expect_err("two have failed").to_string())
        };
        assert_eq!(turns(0), (3, "first; second".to_owned()));
        assert_eq!(turns(2), (2, "interrupted".to_owned()));
    }
}
