//! The `varve` program: pools are created, mounted, unmounted, looked at and checked.
//!
//! Here the command line becomes one of the commands, and its outcome an exit status: 0 done, 1 a problem was found
//! or the operation failed, 2 wrong usage. Everything else is in the module of the command's name.
#![forbid(unsafe_code)]
// These panic where nobody listens: see `show` and `tell`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod check;
mod clock;
mod closing;
mod control;
mod create;
mod current;
mod daemon;
mod helper;
mod holders;
mod ignored;
mod inspect;
mod install;
mod lab;
mod limits;
mod log;
mod manual;
mod mount;
mod mountinfo;
mod names;
mod options;
mod pages;
mod pool;
mod pool_file;
mod progress;
mod remount;
mod shutdown;
mod size;
mod stats;
mod sync;
mod transfer;
mod trim;
mod unmount;
mod unstored;
mod utab;
mod versions;
mod whose;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::args::{Cli, Command};

/// What a command came to when it did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// It did its work and found problems; it has printed them.
    ProblemsFound,
}

/// An error in how the program was called: exit status 2.
#[derive(PartialEq, Eq, Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Wrong usage or a failed operation is 2 or 1; a sentence about it has been printed.
const STATUS_FAILED: u8 = 1;
const STATUS_USAGE: u8 = 2;

fn main() -> ExitCode {
    if let Err(error) = limits::handle_signals() {
        tell(&format!("varve: {error:#}"));
        return ExitCode::from(STATUS_FAILED);
    }
    limits::raise_file_size();
    // clap itself exits with 2, and with 0 after --help and --version.
    let command = Cli::parse().command;
    let (name, result) = match &command {
        Command::Create(args) => ("create", create::run(args)),
        Command::Mount(args) => ("mount", mount::run(args)),
        Command::Unmount(args) => ("unmount", unmount::run(args)),
        Command::Subvolume(args) => ("subvolume", versions::subvolume(args)),
        Command::Snapshot(args) => ("snapshot", versions::snapshot(args)),
        Command::Clone(args) => ("clone", versions::clone(args)),
        Command::Extents(args) => ("extents", versions::extents(args)),
        Command::Diff(args) => ("diff", versions::diff(args)),
        Command::Sync(args) => ("sync", sync::run(args)),
        Command::Trim(args) => ("trim", trim::run(args)),
        Command::Stats(args) => ("stats", stats::run(args)),
        Command::Check(args) => ("check", check::run(args)),
        Command::Import(args) => ("import", transfer::import(args)),
        Command::Inspect(args) => ("inspect", inspect::run(args)),
        Command::Export(args) => ("export", transfer::export(args)),
        Command::Man(args) => ("man", manual::man(args)),
        Command::Completions(args) => ("completions", manual::completions(args)),
        Command::Lab(args) => ("lab", lab::run(args)),
        Command::InstallHelper(args) => ("install-helper", install::run(args)),
        // Their names, words and exit statuses are those of mount(8).
        Command::MountHelper(args) => return helper::mount(args),
        Command::UnmountHelper(args) => return helper::unmount(args),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::ProblemsFound) => ExitCode::from(STATUS_FAILED),
        Err(error) if error.is::<mount::Reported>() => ExitCode::from(STATUS_FAILED),
        Err(error) => {
            tell(&format!("varve {name}: {error:#}"));
            ExitCode::from(if error.is::<Usage>() { STATUS_USAGE } else { STATUS_FAILED })
        }
    }
}

/// A line on standard error, whatever is in the names it speaks of. Where that cannot be written nobody hears of it, and all
/// else goes on.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", names::one_line(text));
}

/// Writes to standard output. Somebody who has stopped reading (`| head`) is no error.
pub fn show(text: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
