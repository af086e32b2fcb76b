//! `cargo xtask pjdfstest`: the POSIX conformance suite pjdfstest on a mounted pool and on ext4, side by side.
//!
//! VarveFS may fail where ext4 fails on the same machine, and in the cases of [`EXCEPTIONS`]; nowhere else, and what ext4 passes must be
//! run. Everything
//! happens in mount and process namespaces of its own: the mounts, the loop device and the mount helper that the
//! EROFS cases need in /sbin are gone when it ends, however it ends.
//!
//! The suite runs its cases in one process, and a case that failed to close a file keeps the next from remounting
//! (EBUSY, on any filesystem): cases that fail are run once more, alone, and that result counts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{self, root};
use crate::suite::{self, Suite};

pub const SUITE: Suite = Suite {
    name: "pjdfstest",
    version: "0.2.2",
    // Unoptimised: it is compiled in half the time, and it waits for the filesystem anyway.
    flags: &["--debug"],
    variables: &[],
};
/// Cases that must have been executed, passed or failed. The suite has 398 for Linux.
const EXECUTED_MIN: usize = 390;
/// Cases that may fail on VarveFS, or not be run there, although ext4 passes them, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[(
    "link::link_count_max",
    "the C library knows LINK_MAX by the type of a filesystem, and of FUSE it knows none, so that the suite leaves the case out",
)];

/// It takes seconds.
const RUN_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What happens inside the namespaces. `$V` is the program, `$P` the suite, `$C` its configuration, `$S` an empty
/// directory of ours. Leaves what the suite says in `$S/ext4` and `$S/varve`.
const SCRIPT: &str = include_str!("pjdfstest.sh");

#[derive(clap::Args, Default)]
pub struct PjdfstestArgs {
    /// The program to test [default: a release build]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Cases counted.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Passed, and failed as ext4 does or as an exception says.
    pub passed: u64,
    /// Failed, or not run although ext4 passes.
    pub failed: u64,
    /// Not run.
    pub skipped: u64,
}

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Passed,
    Failed,
    Skipped,
}

type Outcomes = BTreeMap<String, Ended>;

pub fn run(args: &PjdfstestArgs) -> Result<()> {
    let program = suite::program(args.program.as_deref())?;
    match run_on(&program)? {
        Some(counts) if counts.failed > 0 => bail!("{} cases failed", counts.failed),
        Some(_) => Ok(()),
        None => bail!("pjdfstest has not run"),
    }
}

/// Whether it can be run here.
pub fn can_run() -> bool {
    suite::root_can_mount() && Path::new("/dev/loop-control").exists()
}

/// The words that have this program do what [`run`] does, on `program`.
pub fn words(program: &Path) -> Vec<OsString> {
    ["pjdfstest".into(), "--program".into(), program.into()].into()
}

/// The summary that [`run`] prints.
fn summary(counts: &Counts) -> String {
    let (Suite { name, version, .. }, Counts { passed, failed, skipped }) = (&SUITE, counts);
    format!(
        "{name} {version}: {passed} cases are as they should be, {failed} are not, {skipped} were not run"
    )
}

/// What [`run`] has counted, by a line that it has printed; `None`: it says something else.
pub fn counts_in(line: &str) -> Option<Counts> {
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [passed, failed, skipped] = numbers[..] else { return None };
    let counts = Counts { passed, failed, skipped };
    (line == summary(&counts)).then_some(counts)
}

/// Runs the suite on pools of `program`. `None`: it cannot be run here, and that has been said.
pub fn run_on(program: &Path) -> Result<Option<Counts>> {
    if !can_run() {
        println!("SKIPPED: pjdfstest. It needs root, /dev/fuse and loop devices");
        return Ok(None);
    }
    let program_of_suite = SUITE.ensure_installed()?;
    let began = Instant::now();
    let scratch = SUITE.scratch()?;
    let mut command = suite::in_namespaces(SCRIPT);
    command
        .env("V", program)
        .env("P", &program_of_suite)
        .env("S", &scratch.0)
        .env("C", root().join("xtask/pjdfstest.toml"));
    process::run("pjdfstest on ext4 and on VarveFS", &mut command, RUN_LIMIT)?;
    let read = |name: &str| {
        fs::read_to_string(scratch.0.join(name)).with_context(|| format!("pjdfstest left no {name}"))
    };
    let (ext4, varve) =
        (outcomes(&read("ext4")?, &read("ext4.alone")?), outcomes(&read("varve")?, &read("varve.alone")?));
    let counts = judge(&ext4, &varve, EXCEPTIONS);
    let ours = |ended| varve.values().filter(|e| **e == ended).count();
    println!(
        "pjdfstest {}: VarveFS {} passed, {} failed, {} skipped; ext4 {} passed; {} s",
        SUITE.version,
        ours(Ended::Passed),
        ours(Ended::Failed),
        ours(Ended::Skipped),
        ext4.values().filter(|e| **e == Ended::Passed).count(),
        began.elapsed().as_secs()
    );
    let executed = ours(Ended::Passed) + ours(Ended::Failed);
    if executed < EXECUTED_MIN {
        bail!("pjdfstest executed {executed} cases, and there should be at least {EXECUTED_MIN}");
    }
    println!("{}", summary(&counts));
    Ok(Some(counts))
}

/// Reads what the suite says: `name::of::case      ok`, where only such lines begin without a blank. What a case that
/// was run again alone came to replaces what it came to before.
fn outcomes(text: &str, alone: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in text.lines().chain(alone.lines()) {
        let mut words = line.split_whitespace();
        let (Some(name), Some(word), None) = (words.next(), words.next(), words.next()) else { continue };
        let ended = match word {
            "ok" => Ended::Passed,
            "FAILED" => Ended::Failed,
            "skipped" => Ended::Skipped,
            _ => continue,
        };
        if name.contains("::") && !line.starts_with(char::is_whitespace) {
            outcomes.insert(name.to_owned(), ended);
        }
    }
    outcomes
}

/// Every case that either filesystem has reported or that is listed: whoever does not run a case that ext4 passes has not passed it.
fn judge(ext4: &Outcomes, varve: &Outcomes, exceptions: &[(&str, &str)]) -> Counts {
    let mut counts = Counts::default();
    let listed = exceptions.iter().map(|(case, _)| *case);
    let names: BTreeSet<&str> = ext4.keys().chain(varve.keys()).map(String::as_str).chain(listed).collect();
    for name in names {
        let exception = exceptions.iter().find(|(case, _)| *case == name).map(|(_, reason)| reason);
        let (there, here) = (ext4.get(name), varve.get(name));
        let (count, said) = match (here, exception) {
            (Some(Ended::Passed), None) => (&mut counts.passed, None),
            (Some(Ended::Passed), Some(_)) => (
                &mut counts.failed,
                Some("passes and is listed as an exception: take it off the list".to_owned()),
            ),
            (None, Some(_)) if there.is_none() => {
                (&mut counts.failed, Some("is listed as an exception, and there is no such case".to_owned()))
            }
            (Some(Ended::Failed), Some(reason)) => {
                (&mut counts.passed, Some(format!("fails as expected: {reason}")))
            }
            (_, Some(reason)) => (&mut counts.skipped, Some(format!("is not run, as expected: {reason}"))),
            (Some(Ended::Failed), None) if there == Some(&Ended::Failed) => {
                (&mut counts.passed, Some("fails, as it does on ext4 here".to_owned()))
            }
            (Some(Ended::Failed), None) => {
                (&mut counts.failed, Some("FAILED, and does not fail on ext4".to_owned()))
            }
            (_, None) if there == Some(&Ended::Passed) => {
                (&mut counts.failed, Some("IS NOT RUN, and passes on ext4".to_owned()))
            }
            (_, None) => (&mut counts.skipped, None),
        };
        *count += 1;
        if let Some(said) = said {
            println!("{name} {said}");
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what the suite prints is read, and judged against ext4. Method: an excerpt with each kind of line, a case
    /// that passes when it is run again alone, and one exception that holds and one that no longer does.
    #[test]
    fn outcomes_are_read_and_judged() {
        let text = "chmod::a       ok\nrename::b    FAILED\n\tassertion failed\n\ta::b ok\nlink::c   skipped\n\
                    link::d FAILED\nopen::e FAILED\n\nSummary: 2 failed, 1 skipped";
        let read = outcomes(text, "rename::b  ok\n");
        let ended = |name: &str| read[name];
        assert_eq!(read.len(), 5);
        assert_eq!(ended("rename::b"), Ended::Passed);
        assert_eq!([ended("link::c"), ended("link::d")], [Ended::Skipped, Ended::Failed]);
        let ext4 = outcomes("link::d FAILED\nopen::e ok\nlink::c skipped", "");
        assert_eq!(judge(&ext4, &read, &[]), Counts { passed: 3, failed: 1, skipped: 1 });
        assert_eq!(judge(&ext4, &read, &[("open::e", "why")]), Counts { passed: 4, failed: 0, skipped: 1 });
        assert_eq!(judge(&ext4, &read, &[("chmod::a", "why")]), Counts { passed: 2, failed: 2, skipped: 1 });
    }

    /// Goal: cases are counted, and nothing else is. Method: the line that says so, and others of such a run.
    #[test]
    fn cases_are_told_by_their_line() {
        let counts = Counts { passed: 397, failed: 2, skipped: 1 };
        assert_eq!(counts_in(&summary(&counts)), Some(counts));
        for line in
            ["", "pjdfstest 0.2.2: VarveFS 397 passed, 0 failed, 1 skipped; ext4 398 passed; 9 s", "1 2 3"]
        {
            assert_eq!(counts_in(line), None, "{line}");
        }
    }

    /// Goal: what ext4 passes and VarveFS does not run is a failure, but where it is listed. Method: such a case that was skipped and one that was
    /// not even reported, without a list, with both on it, and with one that does not exist.
    #[test]
    fn what_is_not_run_has_not_passed() {
        let ext4 = outcomes("link::c ok\nopen::e ok\nrename::f skipped", "");
        let varve = outcomes("link::c skipped\nrename::f skipped", "");
        assert_eq!(judge(&ext4, &varve, &[]), Counts { passed: 0, failed: 2, skipped: 1 });
        let listed = [("link::c", "why"), ("open::e", "why")];
        assert_eq!(judge(&ext4, &varve, &listed), Counts { passed: 0, failed: 0, skipped: 3 });
        let listed = [("link::c", "why"), ("open::e", "why"), ("link::x", "why")];
        assert_eq!(judge(&ext4, &varve, &listed), Counts { passed: 0, failed: 1, skipped: 3 });
    }
}
