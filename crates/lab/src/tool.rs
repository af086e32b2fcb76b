//! Programs of the system that the lab calls: found, run, and their failure told with what they said.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Where programs for root are even if the path of the caller does not name it.
const EXTRA_PATHS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The program `name`, if it is installed.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(EXTRA_PATHS.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Runs a program to its end and gives what it wrote to standard output.
pub(crate) fn run<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let words: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} {} failed: {}", program.display(), words.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts a program that leaves a process behind: its output is not a pipe, which that process would keep open.
pub(crate) fn start<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Result<()> {
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !status.success() {
        bail!("{} failed; what it said stands above", program.display());
    }
    Ok(())
}
