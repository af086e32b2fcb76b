//! The crash simulator as a program: soak for minutes or hours, or replay one failure.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use varve_torture::mounted::judge::{Plan, judge};
use varve_torture::mounted::record::Recording;
use varve_torture::soak::soak;
use varve_torture::trial::{Wanted, run};
use varve_torture::workload::Kind;

#[derive(Parser)]
#[command(about = "Cuts the power of VarveFS at every instant and looks at what comes back")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the suite until the time is up, going on where the last soak stopped.
    Soak {
        /// How long.
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Seed of the suite; another than the state's starts anew.
        #[arg(long)]
        seed: Option<u64>,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Where counts and progress are kept; a summary is written beside it.
        #[arg(long, default_value = "docs/soak/state.json")]
        state: PathBuf,
        /// Workloads of this kind alone, with a state of their own; of pairs all, and no more.
        #[arg(long)]
        kind: Option<Kind>,
    },
    /// Repeat one trial, or one crash of it.
    Replay {
        /// Kind of workload: pair, triple, random, full, ring, tree, forks, steps, concurrent.
        #[arg(long)]
        kind: Kind,
        /// Its seed.
        #[arg(long)]
        seed: u64,
        /// Which crash; all of them if left out.
        #[arg(long)]
        crash: Option<u64>,
        /// Only run the workload, without crashes.
        #[arg(long)]
        no_crash: bool,
    },
    /// Crash the real mounted daemon, with git and SQLite at work.
    #[command(subcommand)]
    Mounted(Mounted),
}

#[derive(Subcommand)]
enum Mounted {
    /// Mount a new pool, work in it and record everything that happens on its device.
    Record {
        /// Directory for pool, recording and journal, on an ordinary filesystem; it must not hold a recording yet.
        #[arg(long)]
        directory: PathBuf,
        /// The program, built with `--features record`.
        #[arg(long, default_value = "target/release/varve")]
        program: PathBuf,
        /// Size of the pool.
        #[arg(long, default_value = "256M")]
        size: String,
        /// How long to work.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of the plain files.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Cut images out of a recording and judge them.
    Judge {
        /// Where the recording is.
        #[arg(long)]
        directory: PathBuf,
        /// How many images.
        #[arg(long, default_value_t = 10_000)]
        images: u64,
        /// Seed of the instants.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Every so many images git and SQLite look at their files.
        #[arg(long, default_value_t = 100)]
        tools_every: u64,
        /// Only this image; nothing is added to the results.
        #[arg(long)]
        only: Option<u64>,
        /// Where the results are added up; a table is written beside it.
        #[arg(long, default_value = "docs/soak/mounted.json")]
        results: PathBuf,
    },
}

fn mounted(command: Mounted) -> std::io::Result<bool> {
    match command {
        Mounted::Record { directory, program, size, seconds, seed } => {
            let recording =
                Recording { program, directory, size, duration: Duration::from_secs(seconds), seed };
            recording.run()?;
            println!("recorded {} bytes", std::fs::metadata(recording.log())?.len());
            Ok(true)
        }
        Mounted::Judge { directory, images, seed, threads, tools_every, only, results } => {
            let (program, duration) = (PathBuf::new(), Duration::ZERO);
            let recording = Recording { program, directory, size: String::new(), duration, seed };
            let plan = Plan { images, seed, threads: threads.max(1), tools_every: tools_every.max(1), only };
            let verdict = judge(&recording, &plan)?;
            if only.is_none() {
                verdict.add_to(&results)?;
            }
            println!(
                "{} images in {} s, {} facts verified, {} images shown to git and SQLite, {} violations",
                verdict.images,
                verdict.seconds,
                verdict.facts,
                verdict.asked_tools,
                verdict.failures.len()
            );
            Ok(verdict.failures.is_empty())
        }
    }
}

fn main() -> ExitCode {
    if let Some(status) = varve_torture::tuned::program() {
        return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match Arguments::parse().command {
        Command::Mounted(command) => match mounted(command) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        Command::Soak { minutes, seed, threads, state, kind } => {
            // A panic inside a trial is reported as its failure, with its seed; where threads decide it may not come again, so that
            // one line says where it was.
            std::panic::set_hook(Box::new(|panic| println!("{panic}")));
            match soak(&state, seed, threads.max(1), Duration::from_secs_f64(minutes * 60.0), kind) {
                Ok(state) => {
                    println!("{}", state.summary());
                    if state.failures_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
                }
                Err(error) => {
                    eprintln!("the soak's state could not be read or written: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Command::Replay { kind, seed, crash, no_crash } => {
            let wanted = match (crash, no_crash) {
                (_, true) => Wanted::None,
                (Some(crash), false) => Wanted::One(crash),
                (None, false) => Wanted::All,
            };
            let started = Instant::now();
            match run(kind, seed, wanted) {
                Ok(counts) => {
                    println!(
                        "{} crashes survived in {:.1} s",
                        counts.crashes,
                        started.elapsed().as_secs_f64()
                    );
                    ExitCode::SUCCESS
                }
                Err(failure) => {
                    println!("{failure}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}
