//! Programs of the system that the lab calls: found, run, and their failure told with what they said.
//!
//! Each leads a process group of its own. A terminal sends Ctrl-C to the whole group in front of it: a `losetup` or `varve mount` that dies
//! of that leaves what it has half begun, a device that nobody was told of, and the lab, which only makes a note of the wish and cleans up
//! by such programs, could not.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::guard;

/// Where programs for root are even if the path of the caller does not name it.
const EXTRA_PATHS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// How long a program may go on when the lab is to end: it may be what cleans up.
const GRACE: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for a program by `wait`. Once the lab is to end (`is_ending`) it is told to end, too, if it has gone on for `grace` since: it may be one
/// that waits for something which never comes.
fn ending_in_time<T>(
    child: Child,
    grace: Duration,
    is_ending: impl Fn() -> bool + Send,
    wait: impl FnOnce(Child) -> io::Result<T>,
) -> io::Result<T> {
    let group = Pid::from_child(&child);
    let (done, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut since = None;
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if is_ending() && since.get_or_insert_with(Instant::now).elapsed() >= grace {
                    // It has not been waited for: its number is still its own.
                    let _ = kill_process_group(group, Signal::TERM);
                }
            }
        });
        let waited = wait(child);
        drop(done);
        waited
    })
}

/// The program `name`, if it is installed.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(EXTRA_PATHS.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// A program that reads nothing, and that no signal of the terminal reaches.
fn command<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    command
}

/// Runs a program to its end and gives what it wrote to standard output.
pub(crate) fn run<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Result<String> {
    let mut command = command(program, arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let output =
        child.and_then(|child| ending_in_time(child, GRACE, guard::interrupted, Child::wait_with_output));
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let words: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {} failed: {}", program.display(), words.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts a program that leaves a process behind: its output is not a pipe, which that process would keep open.
pub(crate) fn start<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Result<()> {
    let child = command(program, arguments).stdout(Stdio::null()).spawn();
    let status =
        child.and_then(|child| ending_in_time(child, GRACE, guard::interrupted, |mut child| child.wait()));
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    if !status.success() {
        bail!("{} failed; what it said stands above", program.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: when the lab is to end it does not wait for a program for ever, and leaves it the time to end by itself. Method: one that sleeps, and
    // one that ends soon, with the lab told to end from the beginning, and not.
    #[test]
    fn nobody_waits_for_ever_for_a_program() {
        let shell = find("sh").expect("there is a shell");
        let lasts = |script: &str, grace: Duration, is_ending: bool| {
            let child = command(&shell, &["-c", script]).spawn().expect("it runs");
            ending_in_time(child, grace, || is_ending, |mut child| child.wait()).expect("it ends")
        };
        assert!(!lasts("sleep 1000", Duration::from_millis(200), true).success());
        assert!(lasts("sleep 0.5", Duration::from_secs(100), true).success());
        assert!(lasts("sleep 0.5", Duration::ZERO, false).success());
    }

    // Goal: a signal to the lab's process group, as a terminal sends it, reaches no program that the lab calls. Method: shells that write down
    // their group, which is to be that of themselves; in the two ways to call one.
    #[test]
    fn programs_have_a_group_of_their_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let shell = find("sh").expect("there is a shell");
        // What comes behind the name in brackets: the state, the parent, the group.
        let script = "echo $$ $(sed 's/.*) //' /proc/$$/stat)";
        let is_own = |said: &str| {
            let words: Vec<&str> = said.split_whitespace().collect();
            assert_eq!(words[0], words[3], "{said}");
        };
        is_own(&run(&shell, &["-c", script]).expect("it runs"));
        let file = directory.path().join("said");
        start(&shell, &["-c", &format!("{script} >{}", file.display())]).expect("it runs");
        is_own(&std::fs::read_to_string(&file).expect("it was written"));
    }
}
