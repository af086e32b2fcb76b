//! The crash simulator as a program: soak for minutes or hours, or replay one failure.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
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
    },
    /// Repeat one trial, or one crash of it.
    Replay {
        /// Kind of workload: pair, triple, random, full, ring.
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
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Soak { minutes, seed, threads, state } => {
            // A panic inside a trial is reported as its failure, with its seed.
            std::panic::set_hook(Box::new(|_| {}));
            match soak(&state, seed, threads.max(1), Duration::from_secs_f64(minutes * 60.0)) {
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
