//! Runs the suite for as long as it is given, remembers where it stopped, and reports.
//!
//! The state file holds the seed, the next step and the counts; a soak that is started again goes on from there. A
//! failing trial is recorded with the line that repeats it and the soak goes on, so that one night shows all it can.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use serde::{Deserialize, Serialize};

use crate::suite::{Step, step, turn};
use crate::trial::{Wanted, run};
use crate::workload::{Kind, exhaustive};

/// Failures kept in the state; later ones are counted only.
const FAILURES_MAX: usize = 50;
/// How often the state is saved.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// What a kind of workload has been through.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct KindCounts {
    /// Workloads run.
    pub workloads: u64,
    /// Crashes simulated.
    pub crashes: u64,
    /// Exchanges of two subvolumes in the workloads.
    #[serde(default)]
    pub exchanges: u64,
    /// Time spent, summed over threads, in milliseconds.
    pub busy_ms: u64,
}

/// A failure, as the state file keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// What was broken, first lines.
    pub what: String,
    /// The command that repeats it.
    pub reproduce: String,
    /// The commit it was seen at.
    pub commit: String,
}

/// Everything a soak remembers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// Seed of the suite.
    pub seed: u64,
    /// Next step of the suite.
    pub next: u64,
    /// By kind of workload.
    pub kinds: BTreeMap<String, KindCounts>,
    /// Wall time, in seconds.
    pub seconds: u64,
    /// Failures in all.
    pub failures_count: u64,
    /// The first of them.
    pub failures: Vec<Failed>,
    /// Commit of the last run.
    pub commit: String,
    /// Kernel of the last run.
    pub kernel: String,
    /// Threads of the last run.
    pub threads: u64,
    /// Processor of the last run.
    pub processor: String,
}

impl State {
    /// Reads the state, or begins a new one with `seed`. Another seed than the file's starts anew.
    pub fn load(path: &Path, seed: Option<u64>) -> io::Result<State> {
        let begin = State { seed: seed.unwrap_or(1), ..State::default() };
        match fs::read(path) {
            Ok(bytes) => {
                let state: State = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
                Ok(if seed.is_none_or(|seed| seed == state.seed) { state } else { begin })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(begin),
            Err(error) => Err(error),
        }
    }

    /// Writes the state, and a summary for people beside it.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        let unfinished = path.with_extension("json.new");
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, path)?;
        fs::write(path.with_file_name("summary.md"), self.summary())
    }

    fn total(&self) -> KindCounts {
        self.kinds.values().fold(KindCounts::default(), |sum, kind| KindCounts {
            workloads: sum.workloads + kind.workloads,
            crashes: sum.crashes + kind.crashes,
            exchanges: sum.exchanges + kind.exchanges,
            busy_ms: sum.busy_ms + kind.busy_ms,
        })
    }

    /// The counts as a table.
    pub fn summary(&self) -> String {
        let mut text = String::from("# Crash soak\n\n");
        let rate = |kind: &KindCounts| kind.crashes as f64 * 1000.0 / kind.busy_ms.max(1) as f64;
        let _ = writeln!(
            text,
            "Seed {}, {} steps of the suite, {} s on {} threads ({}, Linux {}), commit {}.\n",
            self.seed, self.next, self.seconds, self.threads, self.processor, self.kernel, self.commit
        );
        text.push_str("| workload | workloads | crashes | crashes/s a thread |\n|---|---:|---:|---:|\n");
        let total = self.total();
        let rows = self.kinds.iter().map(|(name, kind)| (name.as_str(), kind)).chain([("all", &total)]);
        for (name, kind) in rows {
            let _ = writeln!(text, "| {name} | {} | {} | {:.0} |", kind.workloads, kind.crashes, rate(kind));
        }
        let _ = writeln!(
            text,
            "\nExchanges of subvolumes: {}. Violations: {}.",
            total.exchanges, self.failures_count
        );
        for failed in &self.failures {
            let first = failed.what.lines().next().unwrap_or_default();
            let _ = writeln!(text, "\n- {first}\n  `{}` (at {})", failed.reproduce, failed.commit);
        }
        text.push_str("\nGo on: `cargo run --release -p varve-torture -- soak --minutes 10`\n");
        text
    }
}

/// Runs steps on `threads` threads until `duration` has passed. Prints failures as they come and progress now and then.
/// With a `kind`, workloads of that kind alone; of pairs, until every one has been run.
pub fn soak(
    path: &Path,
    seed: Option<u64>,
    threads: usize,
    duration: Duration,
    kind: Option<Kind>,
) -> io::Result<State> {
    let mut state = State::load(path, seed)?;
    state.commit = commit();
    state.kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    state.processor = processor();
    state.threads = threads as u64;
    let (seed, before) = (state.seed, state.seconds);
    let started = Instant::now();
    let state = Mutex::new(state);
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while started.elapsed() < duration {
                    let number = {
                        let mut state = lock();
                        if kind == Some(Kind::Pair) && state.next >= exhaustive::PAIRS {
                            return;
                        }
                        state.next += 1;
                        state.next - 1
                    };
                    let step = kind.map_or_else(|| step(seed, number), |kind| turn(kind, seed, number));
                    let Step { kind, seed } = step;
                    let began = Instant::now();
                    let result = run(kind, seed, Wanted::All);
                    let mut state = lock();
                    let counts = state.kinds.entry(kind.to_string()).or_default();
                    counts.workloads += 1;
                    counts.busy_ms += began.elapsed().as_millis() as u64;
                    match result {
                        Ok(done) => {
                            counts.crashes += done.crashes;
                            counts.exchanges += done.exchanges;
                        }
                        Err(failure) => {
                            counts.crashes += failure.crashes_before + 1;
                            println!("{failure}\n");
                            state.failures_count += 1;
                            let commit = state.commit.clone();
                            if state.failures.len() < FAILURES_MAX {
                                let what: Vec<&str> = failure.what.lines().take(4).collect();
                                let reproduce = failure.reproduce();
                                state.failures.push(Failed { what: what.join("\n"), reproduce, commit });
                            }
                        }
                    }
                }
            });
        }
        let mut saved = Instant::now();
        while started.elapsed() < duration && (kind != Some(Kind::Pair) || lock().next < exhaustive::PAIRS) {
            thread::sleep(Duration::from_millis(200).min(duration));
            if saved.elapsed() >= SAVE_EVERY {
                saved = Instant::now();
                let mut state = lock();
                state.seconds = before + started.elapsed().as_secs();
                if let Err(error) = state.save(path) {
                    println!("the state could not be saved: {error}");
                }
                let total = state.total();
                println!(
                    "{} s: {} workloads, {} crashes, {} violations",
                    state.seconds, total.workloads, total.crashes, state.failures_count
                );
            }
        }
    });
    let mut state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.seconds = before + started.elapsed().as_secs();
    state.save(path)?;
    Ok(state)
}

/// The commit at hand, with a mark if files differ from it.
pub fn commit() -> String {
    let output =
        std::process::Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or("unknown".into(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    let count = thread::available_parallelism().map_or(1, usize::from);
    format!("{count} x {}", model.unwrap_or("unknown"))
}
