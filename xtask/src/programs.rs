//! The test programs of the workspace, built by cargo and run a few at a time.
//!
//! cargo runs them one after the other, and half of the time half of the processors wait: for a device, or for the one test of a
//! program that goes on. What each prints is kept in a file and shown as a whole when it has ended.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, cargo, root, target_dir};

/// Programs whose tests take longest, in this order: they begin first, so that no processor waits for them at the end.
const LONGEST: [&str; 8] = ["mounted", "crash", "control", "small", "fsx", "pjdfstest", "varve_engine", "fs"];

/// A test program.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// As cargo calls it.
    name: String,
    path: PathBuf,
    /// What follows its path.
    words: Vec<OsString>,
    /// Of its package, where it is run.
    directory: PathBuf,
    /// Mounts are to go through rings, and to fail if they do not.
    through_rings: bool,
}

impl Program {
    /// What a line of cargo's messages says of a test program; `None`: it is about something else.
    fn of(line: &str) -> Option<Program> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let path = message["executable"].as_str().filter(|_| is_test)?;
        Some(Program {
            name: message["target"]["name"].as_str()?.to_owned(),
            path: path.into(),
            words: Vec::new(),
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
            through_rings: false,
        })
    }

    /// This program itself, to do what `words` say.
    pub fn ours(name: &str, words: Vec<OsString>) -> Result<Program> {
        let path = std::env::current_exe().context("cannot find this program")?;
        Ok(Program { name: name.to_owned(), path, words, directory: root(), through_rings: false })
    }

    fn rank(&self) -> usize {
        LONGEST.iter().position(|name| *name == self.name).unwrap_or(LONGEST.len())
    }

    /// Whether its tests wait for half of their time: for what others do not answer, or for somebody to give up.
    fn waits(&self) -> bool {
        self.name == "mounted" && directory_name(self) == "cli"
    }

    /// As cargo runs it, with what it prints going to `log`.
    fn command(&self, log: &File) -> Result<Command> {
        let mut command = Command::new(&self.path);
        command.args(&self.words).current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        if self.through_rings {
            command.env("VARVE_TEST_RINGS", "1");
        }
        if self.waits() && std::env::var_os("RUST_TEST_THREADS").is_none() {
            let processors = thread::available_parallelism().map_or(2, NonZero::get);
            command.env("RUST_TEST_THREADS", (2 * processors).to_string());
        }
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(command)
    }
}

/// Builds all test programs of the workspace, and what they run.
pub fn build(limit: Duration) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let status = process::each_line("cargo test --no-run", &mut command, limit, |line| {
        programs.extend(Program::of(line))
    })?;
    if !status.success() {
        bail!("the tests cannot be built ({status})");
    }
    if programs.is_empty() {
        bail!("cargo has built no test program");
    }
    Ok(programs)
}

/// A setting of cargo that has each test program announced in what it prints, by a line that begins with `words`.
pub fn announced(words: &str) -> String {
    format!(r#"target.'cfg(all())'.runner = ["sh", "-c", 'echo "{words}$0"; exec "$0" "$@"']"#)
}

/// Those that mount by the mount's own crate, to be run once more, through rings.
pub fn through_rings(programs: Vec<Program>) -> Vec<Program> {
    let of_mount = programs.into_iter().filter(|program| directory_name(program) == "mount");
    of_mount.map(|program| Program { through_rings: true, ..program }).collect()
}

/// Runs them, the longest first, `lanes` at a time, and gives all that one of them has printed to `each` when it has ended. Whether all went well;
/// one that did not keeps none from running.
pub fn run(
    mut programs: Vec<Program>,
    lanes: usize,
    limit: Duration,
    each: impl FnMut(&str) + Send,
) -> Result<bool> {
    let logs = target_dir().join("test-output");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let began = Instant::now();
    programs.sort_by_key(Program::rank);
    let (count, waiting) =
        (programs.len(), Mutex::new(VecDeque::from_iter(programs.into_iter().enumerate())));
    println!(
        "== {count} test programs, {lanes} at a time; what they print is shown when they end, and is in {}",
        logs.display()
    );
    let shown = Mutex::new((each, true));
    let lane = || -> Result<()> {
        loop {
            let next = waiting.lock().expect("no panic").pop_front();
            let Some((number, program)) = next else { return Ok(()) };
            let log = logs.join(format!("{number}-{}", program.name));
            let begun = Instant::now();
            let status = run_one(&program, &log, limit.saturating_sub(began.elapsed()));
            let text = fs::read(&log).unwrap_or_default();
            let mut shown = shown.lock().expect("no panic");
            println!(
                "== {} of {}, {:.1} s",
                program.name,
                directory_name(&program),
                begun.elapsed().as_secs_f64()
            );
            let text = String::from_utf8_lossy(&text);
            text.lines().for_each(|line| println!("{line}"));
            (shown.0)(&text);
            match status {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    println!("{} failed: {status}", program.name);
                    shown.1 = false;
                }
                Err(error) => {
                    println!("{}: {error:#}", program.name);
                    shown.1 = false;
                }
            }
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes.max(1)).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("no panic"))
    })?;
    Ok(shown.into_inner().expect("no panic").1)
}

fn run_one(program: &Program, log: &Path, limit: Duration) -> Result<ExitStatus> {
    let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
    process::silently(&program.name, &mut program.command(&file)?, limit)
}

fn directory_name(program: &Program) -> String {
    program.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is run is what cargo has built to test. Method: messages as cargo writes them, of a test, of a program that
    /// is none, of a library, and lines that are no messages.
    #[test]
    fn test_programs_are_recognised() {
        let message = |reason: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"{reason}","manifest_path":"/w/crates/fs/Cargo.toml","target":{{"name":"varve_fs"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = Program {
            name: "varve_fs".into(),
            path: "/t/varve_fs-1".into(),
            words: Vec::new(),
            directory: "/w/crates/fs".into(),
            through_rings: false,
        };
        assert_eq!(Program::of(&message("compiler-artifact", true, r#""/t/varve_fs-1""#)), Some(program));
        assert_eq!(Program::of(&message("compiler-artifact", false, r#""/t/varve_fs-1""#)), None);
        assert_eq!(Program::of(&message("compiler-artifact", true, "null")), None);
        assert_eq!(Program::of(&message("build-finished", true, r#""/t/varve_fs-1""#)), None);
        assert_eq!(Program::of("running 3 tests"), None);
    }

    /// Goal: programs run side by side are all heard of, whole, and one that fails is not missed. Method: shells that print
    /// two lines each, one of them ends with an error, one cannot be started.
    #[test]
    fn what_fails_is_not_missed() {
        let shell = |script: &str| {
            let path = target_dir().join(format!("xtask-programs-{}-{script}", std::process::id()));
            fs::create_dir_all(target_dir()).expect("a directory");
            let text =
                format!("#!/bin/sh\necho {script} 1\nsleep 0.05\necho {script} 2\n[ {script} != bad ]\n");
            fs::write(&path, text).expect("a script");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, mode).expect("executable");
            Program {
                name: format!("of-xtask-{script}"),
                path,
                words: Vec::new(),
                directory: target_dir(),
                through_rings: false,
            }
        };
        let go = |names: &[&str]| {
            let programs: Vec<_> = names.iter().map(|name| shell(name)).collect();
            let paths: Vec<_> = programs.iter().map(|program| program.path.clone()).collect();
            let mut lines = Vec::new();
            let well = run(programs, 2, Duration::from_secs(60), |text| {
                lines.extend(text.lines().map(str::to_owned))
            });
            paths.iter().for_each(|path| fs::remove_file(path).expect("it is there"));
            let expected: usize = 2 * names.len();
            assert_eq!(lines.len(), expected);
            for pair in lines.chunks(2) {
                assert_eq!(pair[0].trim_end_matches(" 1"), pair[1].trim_end_matches(" 2"));
            }
            well.expect("they run")
        };
        assert!(go(&["one", "two", "three"]));
        assert!(!go(&["one", "bad", "three"]));
        let missing = Program {
            name: "of-xtask-missing".into(),
            path: "/nonexistent/program".into(),
            words: Vec::new(),
            directory: "/".into(),
            through_rings: false,
        };
        assert!(!run(vec![missing], 2, Duration::from_secs(60), |_| ()).expect("it goes on"));
    }
}
