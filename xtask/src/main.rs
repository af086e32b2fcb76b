//! The project's own commands: everything a newcomer, the gate and continuous integration run.
//!
//! `cargo xtask demo` does the main job, `cargo xtask test` runs every test, `cargo xtask gate` is what a change must
//! pass. Nothing here is linked into VarveFS, and this crate uses none of its crates: it reads their text.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod demo;
mod fsx;
mod fuzz;
mod gate;
mod layering;
mod packages;
mod pjdfstest;
mod process;
mod programs;
mod readme;
mod real;
mod rings;
mod soak;
mod spec;
mod suite;
mod test;
mod text;
mod tree;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The commands of the VarveFS project")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build `varve` and do its main job: create a pool, mount it, use it, kill it, mount it again, check it
    Demo,
    /// Install what the tests need, as far as it is missing, and run all of them
    Test(test::TestArgs),
    /// Check what no compiler checks: layering, SPEC.md against the code, README, stray words and paths
    Check,
    /// What a change must pass: format, clippy, check, tests, README commands
    Gate,
    /// Run the POSIX conformance suite pjdfstest on a mounted pool and on ext4, and compare
    Pjdfstest(pjdfstest::PjdfstestArgs),
    /// Exercise a file on a mounted pool with fsx, as it is and with direct I/O
    Fsx(fsx::FsxArgs),
    /// Run programs that people run on a mounted pool: PostgreSQL, git and a kernel's source, stress-ng, dbench, postmark
    Real(real::RealArgs),
    /// Crash, kill, check and fuzz for as long as asked, and exercise a file with fsx
    Soak(soak::SoakArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = process::heed_signals() {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    let done = match args.command {
        Command::Demo => demo::run(),
        Command::Test(args) => test::run(&args),
        Command::Check => check::run(),
        Command::Gate => gate::run(),
        Command::Pjdfstest(args) => pjdfstest::run(&args),
        Command::Fsx(args) => fsx::run(&args),
        Command::Real(args) => real::run(&args),
        Command::Soak(args) => soak::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
