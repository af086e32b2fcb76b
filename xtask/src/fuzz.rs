//! The targets of cargo-fuzz in `fuzz/`, as `cargo xtask soak` runs them: where a nightly compiler and cargo-fuzz are installed.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use crate::process::{self, root};
use crate::soak;

/// A target, how much of the time it gets, and what libFuzzer is told of its inputs.
struct Target {
    name: &'static str,
    parts: u64,
    options: &'static [&'static str],
}

const TARGETS: [Target; 4] = [
    // Pools that somebody has forged: where most is at stake. Edits are 16 bytes each.
    Target { name: "image", parts: 3, options: &["-max_len=98", "-len_control=0"] },
    Target { name: "codec", parts: 1, options: &["-max_len=5000"] },
    Target { name: "control", parts: 1, options: &["-max_len=300", "-len_control=0"] },
    Target { name: "request", parts: 1, options: &["-max_len=400"] },
];
/// What an input may take: far more than any needs on a machine that does other things beside.
const LIMITS: [&str; 2] = ["-timeout=60", "-rss_limit_mb=1500"];
/// Building comes on top of the time.
const BUILD_MAX: Duration = Duration::from_secs(30 * 60);

/// cargo-fuzz with the nightly compiler. No sanitizer: nearly all that is fuzzed has no unsafe code, and it would take half the runs.
fn fuzz(verb: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).args(verb).current_dir(root());
    command
}

/// What is missing, if anything is.
pub fn missing() -> Option<&'static str> {
    let succeeds = |command: &mut Command| {
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !succeeds(Command::new("rustup").args(["run", "nightly", "rustc", "--version"])) {
        return Some("a nightly compiler (rustup toolchain install nightly)");
    }
    (!succeeds(&mut fuzz(&["--version"]))).then_some("cargo-fuzz (cargo install cargo-fuzz)")
}

/// Runs each target for its part of so many minutes. What one fails with lies in `fuzz/artifacts`, and it says how to see that again.
pub fn soak(minutes: u64) -> Result<()> {
    let parts: u64 = TARGETS.iter().map(|target| target.parts).sum();
    let run = |Target { name, parts: own, options }: &Target| {
        let time = Duration::from_secs(minutes * 60 * own / parts);
        let mut command = fuzz(&["run", "--sanitizer", "none", name, "--"]);
        command.args(*options).args(LIMITS).arg(format!("-max_total_time={}", time.as_secs()));
        // One line for each input that is new is too much to read.
        command.arg("-print_pcs=0").arg("-verbosity=0");
        process::run(&format!("fuzz {name}"), &mut command, time + BUILD_MAX)
    };
    soak::all(TARGETS.iter().map(|target| || run(target)), process::is_asked_to_end)
}
