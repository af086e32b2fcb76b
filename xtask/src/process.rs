//! Running other programs: always with a time limit, always ending the whole process group that was started, also when this
//! program is asked to end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The directory of the workspace: the parent of this crate's.
pub fn root() -> PathBuf {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies inside the workspace").to_path_buf()
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// `cargo`, in the workspace, as it was used to start this program.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Whether `program` can be found on PATH or among the system administrator's programs.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|dir| dir.join(program).is_file())
}

/// Runs `command` to its end, showing what it prints; an error if it fails or takes longer than `limit`.
pub fn run(what: &str, command: &mut Command, limit: Duration) -> Result<()> {
    println!("== {what}");
    finish(what, silently(what, command, limit)?)
}

/// Like [`run`] without its heading, the exit status being the caller's to judge.
pub fn silently(what: &str, command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    command.process_group(0);
    let child =
        command.spawn().with_context(|| format!("{what}: cannot start {:?}", command.get_program()))?;
    wait(child, limit)
}

/// Like [`run`], and hands every line of standard output to `each` after showing it. The exit status is the caller's
/// to judge.
pub fn run_lines(
    what: &str,
    command: &mut Command,
    limit: Duration,
    mut each: impl FnMut(&str) + Send,
) -> Result<ExitStatus> {
    each_line(what, command, limit, |line| {
        let _closed_terminal_is_no_error_of_ours = writeln!(std::io::stdout(), "{line}");
        each(line);
    })
}

/// The same, without showing it.
pub fn each_line(
    what: &str,
    command: &mut Command,
    limit: Duration,
    mut each: impl FnMut(&str) + Send,
) -> Result<ExitStatus> {
    println!("== {what}");
    command.process_group(0).stdout(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("{what}: cannot start {:?}", command.get_program()))?;
    let output = child.stdout.take().expect("standard output was asked for as a pipe");
    thread::scope(|scope| {
        scope.spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(|line| line.ok()) {
                each(&String::from_utf8_lossy(&line));
            }
        });
        wait(child, limit)
    })
}

/// What `command` prints, an error if it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !out.status.success() {
        bail!(
            "{:?} failed ({}): {}",
            command.get_program(),
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Whether this system can mount a FUSE filesystem for us.
pub fn can_mount() -> bool {
    File::options().read(true).write(true).open("/dev/fuse").is_ok()
}

fn finish(what: &str, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("{what} failed: {status}");
    }
    Ok(())
}

/// How long whoever is asked to end may take.
const GRACE: Duration = Duration::from_secs(5);

/// Somebody wants this program to end. A second signal ends it at once.
static ASKED_TO_END: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a signal ends what runs, and then this program, by its own way out: what was changed is put back.
pub fn heed_signals() -> Result<()> {
    let asked = ASKED_TO_END.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, asked.clone())
            .and_then(|_| signal_hook::flag::register(signal, asked.clone()))
            .context("cannot handle signals")?;
    }
    Ok(())
}

/// Whether somebody wants this program to end.
pub fn is_asked_to_end() -> bool {
    ASKED_TO_END.get_or_init(Arc::default).load(Ordering::Relaxed)
}

/// Waits for a process that leads its own group; at the limit the group is ended.
fn wait(child: Child, limit: Duration) -> Result<ExitStatus> {
    wait_unless(child, limit, ASKED_TO_END.get_or_init(Arc::default))
}

fn wait_unless(mut child: Child, limit: Duration, asked: &AtomicBool) -> Result<ExitStatus> {
    let started = Instant::now();
    let end = |child: &mut Child, signal: &str| -> Result<()> {
        let group = format!("-{}", child.id());
        Command::new("kill").args([signal, "--", &group]).status().context("cannot run kill").map(drop)
    };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if asked.load(Ordering::Relaxed) {
            end(&mut child, "-TERM")?;
            let since = Instant::now();
            while child.try_wait()?.is_none() && since.elapsed() < GRACE {
                thread::sleep(Duration::from_millis(50));
            }
            // Also those of the group that outlive it.
            let _ = end(&mut child, "-KILL");
            child.wait()?;
            bail!("interrupted");
        }
        if started.elapsed() > limit {
            end(&mut child, "-KILL")?;
            child.wait()?;
            bail!("stopped: it took longer than {} minutes", limit.as_secs().div_ceil(60));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a process of the group runs.
    fn runs(group: u32) -> bool {
        let stats = std::fs::read_dir("/proc").expect("a list of processes").filter_map(|entry| {
            let text = std::fs::read(entry.ok()?.path().join("stat")).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            // Behind the name, which may have anything in it: state, parent, group.
            let mut words = text[text.rfind(')')? + 1..].split_whitespace();
            Some((words.next()?.to_owned(), words.nth(1)?.parse::<u32>().ok()?))
        });
        stats.into_iter().any(|(state, of)| of == group && state != "Z" && state != "X")
    }

    // Goal: who is asked to end ends what it has started, the whole group of it, one that does not listen too. Method: a shell with a
    // sleeping child, and one that heeds no signal; they are asked for afterwards.
    #[test]
    fn whoever_is_asked_ends_what_runs() {
        for script in ["sleep 1000 & wait", "trap '' TERM; sleep 1000 & wait"] {
            let mut command = Command::new("sh");
            let child = command.args(["-c", script]).process_group(0).spawn().expect("a shell");
            let group = child.id();
            let asked = AtomicBool::new(false);
            let ended = thread::scope(|scope| {
                let waits = scope.spawn(|| wait_unless(child, Duration::from_secs(600), &asked));
                thread::sleep(Duration::from_millis(200));
                asked.store(true, Ordering::Relaxed);
                waits.join().expect("no panic")
            });
            assert_eq!(ended.expect_err("it was interrupted").to_string(), "interrupted");
            // What was killed may be gone a moment later; what nobody waits for (there may be no init here) has ended all the same.
            let gone = (0..100).any(|_| {
                thread::sleep(Duration::from_millis(20));
                !runs(group)
            });
            assert!(gone, "{script}");
        }
    }
}
