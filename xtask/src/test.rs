//! `cargo xtask test`: every test there is, and one last line that says how many passed.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{can_mount, cargo, run_lines, target_dir};
use crate::programs::Program;
use crate::suite::root_can_mount;
use crate::{fsx, packages, pjdfstest, programs, rings};

/// What the whole run may take on an idle machine with two cores, compiling included; more is said at the end.
const GOAL: Duration = Duration::from_secs(15 * 60);
/// Test programs that run at a time, each with as many threads as there are processors: half of the time half of them wait.
const LANES: usize = 2;
/// Of fsx, through rings.
const OPS_THROUGH_RINGS: u64 = 30_000;
/// When it is given up: shared machines slow down by 2.5 within minutes, and a slow pass is not a failure.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);
/// What a test program that cargo runs is announced by, with its path. cargo itself tells that to standard error alone.
const ANNOUNCED: &str = "== test program ";
/// The run at full size.
const LIMIT_FULL: Duration = Duration::from_secs(4 * 60 * 60);

#[derive(clap::Args, Default)]
pub struct TestArgs {
    /// The mounted tests at full size: 50,000 files, 200 kills, a build of this project inside the mount
    #[arg(long)]
    full: bool,
    /// Handed on to `cargo test`: a package (-p NAME) or the name of a test
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Totals of all test programs.
#[derive(Default, Debug, PartialEq, Eq)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Test programs under way: a test may run others, whose summaries are its own business. One that dies in the middle has no summary,
    /// and the next one that is begun here counts all the same.
    depth: u64,
}

pub fn run(args: &TestArgs) -> Result<()> {
    packages::ensure_for_tests()?;
    if args.full {
        packages::ensure_for_full_tests()?;
    }
    let mount = can_mount();
    if !mount {
        println!("{}", skipped_banner());
    }
    let limit = if args.full { LIMIT_FULL } else { LIMIT };
    let mut totals = Totals::default();
    let began = Instant::now();
    // At full size machines are measured: nothing else runs beside that.
    let well = if args.rest.is_empty() && !args.full {
        let mut programs = programs::build(limit)?;
        if root_can_mount() {
            // Half of the time they wait, as the others do.
            programs.push(Program::ours("fsx", fsx::words(&program_built()))?);
            programs.extend(conformance()?);
        }
        let well = thread::scope(|scope| {
            // Half of what waits for a device leaves a processor to it.
            let installing = scope.spawn(install_suites);
            let well = programs::run(programs, LANES, limit, |text| totals.add_program(text));
            installing.join().expect("no panic");
            well
        })?;
        let mut docs = cargo();
        docs.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
        well & run_lines("cargo test --doc", &mut docs, limit, |line| totals.add(line))?.success()
    } else {
        let mut command = cargo();
        command.args(["test", "--no-fail-fast", "--config", &programs::announced(ANNOUNCED)]);
        let of_one_package = |word: &String| word.starts_with("-p") || word.starts_with("--package");
        if !args.rest.iter().any(of_one_package) {
            command.arg("--workspace");
        }
        command.args(&args.rest);
        if args.full {
            command.env("VARVE_TEST_FULL", "1");
        }
        run_lines("cargo test", &mut command, limit, |line| totals.add(line))?.success()
    };
    if !mount {
        println!("{}", skipped_banner());
    }
    let mut well = well;
    if args.rest.is_empty() {
        // Else they were among the programs.
        if args.full || !root_can_mount() {
            pjdfstest(&mut totals)?;
            totals.passed += fsx::test(&program_built())?.unwrap_or(0);
        }
        if mount {
            // Once more, as the kernel speaks to the mount where that is switched on.
            let again = rings::with(|| {
                println!("== the tests of the mount and the suites of others once more, through rings");
                let mut programs = programs::through_rings(programs::build(limit)?);
                // What differs is how requests arrive: some operations of one seed show that.
                programs.push(Program::ours("fsx", fsx::words_briefly(&program_built(), OPS_THROUGH_RINGS))?);
                programs.extend(conformance()?);
                programs::run(programs, LANES, limit, |text| totals.add_program(text))
            })?;
            well &= again.unwrap_or(true);
        }
    }
    if !args.full && began.elapsed() > GOAL {
        println!("note: this took {} s, and the goal is {} s", began.elapsed().as_secs(), GOAL.as_secs());
    }
    println!("{} passed, {} failed, {} ignored", totals.passed, totals.failed, totals.ignored);
    if !well || totals.failed > 0 {
        bail!("the tests failed");
    }
    if totals.passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}

/// pjdfstest, as a program; `None`: it cannot be run here, and that has been said.
fn conformance() -> Result<Option<Program>> {
    if !pjdfstest::can_run() {
        println!("SKIPPED: pjdfstest. It needs root, /dev/fuse and loop devices");
        return Ok(None);
    }
    Program::ours("pjdfstest", pjdfstest::words(&program_built())).map(Some)
}

/// Installs the suites of others where they will be run. What cannot be installed is said by who runs it.
fn install_suites() {
    if root_can_mount() {
        for suite in [&fsx::SUITE, &pjdfstest::SUITE] {
            if let Err(error) = suite.install_beside() {
                println!("{error:#}");
            }
        }
    }
}

/// The program that cargo has built for the tests, which the suites of others mount with.
fn program_built() -> PathBuf {
    target_dir().join("debug").join("varve")
}

fn pjdfstest(totals: &mut Totals) -> Result<()> {
    if let Some(counts) = pjdfstest::run_on(&program_built())? {
        totals.passed += counts.passed;
        totals.failed += counts.failed;
        totals.ignored += counts.skipped;
    }
    Ok(())
}

fn skipped_banner() -> &'static str {
    "
   ****************************************************************
   *  SKIPPED: every test that mounts. /dev/fuse cannot be opened  *
   *  here. All other tests run; nothing about mounting is tested. *
   ****************************************************************
"
}

impl Totals {
    /// Takes in all that a test program has printed.
    fn add_program(&mut self, text: &str) {
        self.depth = 0;
        text.lines().for_each(|line| self.add(line));
    }

    /// Takes in one line of output; those that sum up a test program count.
    fn add(&mut self, line: &str) {
        if self.depth == 0 {
            self.passed += fsx::passed_in(line).unwrap_or(0);
            let cases = pjdfstest::counts_in(line).unwrap_or_default();
            self.passed += cases.passed;
            self.failed += cases.failed;
            self.ignored += cases.skipped;
        }
        if line.starts_with(ANNOUNCED) {
            self.depth = 0;
        }
        let running = |rest: &str| rest.ends_with(" tests") || rest.ends_with(" test");
        if line.strip_prefix("running ").is_some_and(running) {
            self.depth += 1;
        }
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.depth = self.depth.saturating_sub(1);
        if self.depth > 0 {
            return;
        }
        let Some((_, counts)) = rest.split_once(". ") else { return };
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the last line tells the truth. Method: the summaries of a good and a bad program are added up; a line that
    /// only looks like one is not, nor is that of a program that a test ran.
    #[test]
    fn summaries_are_added_up() {
        let mut totals = Totals::default();
        totals.add(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        );
        totals.add(
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1s",
        );
        totals.add("test something ... ok");
        for line in [
            "running 1 test",
            "running 1 test",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 8 filtered out; finished in 1s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2s",
        ] {
            totals.add(line);
        }
        assert_eq!(totals, Totals { passed: 16, failed: 2, ignored: 1, depth: 0 });
    }

    /// Goal: a test program that dies in the middle takes away the count of none that comes after it. Method: one that began and has no
    /// summary, alone and in the middle of what it ran itself, then one that passes; as a whole each, and line by line as cargo runs them.
    #[test]
    fn who_dies_takes_no_count_along() {
        let dead = "running 5 tests\ntest it ... ok\nrunning 1 test\n";
        let passes = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        let expected = Totals { passed: 2, failed: 0, ignored: 1, depth: 0 };
        let mut totals = Totals::default();
        totals.add_program(dead);
        totals.add_program(passes);
        assert_eq!(totals, expected);
        let mut totals = Totals::default();
        for text in [dead, passes] {
            totals.add(&format!("{ANNOUNCED}/target/debug/deps/some-1"));
            text.lines().for_each(|line| totals.add(line));
        }
        assert_eq!(totals, expected);
    }
}
