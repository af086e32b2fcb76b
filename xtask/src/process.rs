//! Running other programs: always with a time limit, always ending the whole process group that was started.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

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

/// Waits for a process that leads its own group; at the limit the group is ended.
fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started.elapsed() > limit {
            let group = format!("-{}", child.id());
            Command::new("kill").args(["-KILL", "--", &group]).status().context("cannot run kill")?;
            child.wait()?;
            bail!("stopped: it took longer than {} minutes", limit.as_secs().div_ceil(60));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
