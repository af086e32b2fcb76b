//! What a synced file costs, beside the bare protocol: rates, processor time and flushes, a few seconds a run.
//!
//! ```text
//! cargo run --release -p varve-lab --example synced [loop|file|memory] [ROUNDS] [MS] [T...]
//! ```
//!
//! `varve lab commit` makes the claims; this is for finding out what a change does to them. Each round visits every
//! number of threads, VarveFS in process and the bare protocol in turn; printed are medians, and the median of the ratios
//! within rounds. Processor time is that of this process, in microseconds a file: what a loop device's own
//! threads take is not in it. `idle` is the part of all processors' time that nobody used, as the mean.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use varve_lab::load::{self, Load};
use varve_lab::numbers::median;
use varve_lab::target::{Target, TargetKind};
use varve_lab::{Medium, Options, Scale};

fn cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// How long all processors together have been idle, in seconds.
fn idle_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    // Also while something waits for a disk.
    let ticks = stat.lines().next()?.split_whitespace().skip(4).take(2).map(str::parse::<f64>);
    let ticks: f64 = ticks.collect::<Result<Vec<_>, _>>().ok()?.iter().sum();
    Some(ticks / rustix::param::clock_ticks_per_second() as f64)
}

#[derive(Default)]
struct Column {
    rates: Vec<f64>,
    cpu_us: Vec<f64>,
    /// Of a processor, on average.
    idle: Vec<f64>,
    flushes: Vec<f64>,
}

fn measure(target: &dyn Target, directory: &str, threads: usize, ms: u64, into: &mut Column) -> Result<f64> {
    target.create_dir(directory)?;
    target.settle()?;
    let (before, cpu, idle, begun) = (target.counters()?, cpu_us(), idle_s(), Instant::now());
    let duration = Duration::from_millis(ms);
    let done = load::synced_files(
        target,
        directory,
        Load { threads, file_bytes: 10_240, duration, files_max: 6_000 },
    )?;
    let files = done.files_count() as f64;
    if let (Some(before), Some(after)) = (idle, idle_s()) {
        let processors = std::thread::available_parallelism()?.get() as f64;
        into.idle.push((after - before) / begun.elapsed().as_secs_f64() / processors);
    }
    into.cpu_us.push((cpu_us() - cpu) / files);
    if let (Some(before), Some(after)) = (before, target.counters()?) {
        into.flushes.push((after - before).flushes_count as f64 / files);
    }
    into.rates.push(done.files_per_s());
    target.settle()?;
    load::remove(target, directory, &done)?;
    Ok(done.files_per_s())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let medium = match arguments.first().map(String::as_str) {
        None | Some("loop") => Medium::best(),
        Some("file") => Medium::File,
        Some("memory") => Medium::Memory,
        Some(other) => bail!("{other} is no medium: loop, file or memory"),
    };
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (rounds, ms) = (number(1, 7)?, number(2, 80)?);
    let mut threads: Vec<usize> = arguments.iter().skip(3).map(|t| t.parse()).collect::<Result<_, _>>()?;
    if threads.is_empty() {
        threads = vec![1, 2, 4, 8, 16, 40];
    }
    let directory = tempfile::tempdir()?;
    let options = Options {
        targets: Vec::new(),
        scale: Scale::Small,
        loops: None,
        days: None,
        medium,
        directory: None,
        program: None,
        command: String::new(),
        rings: false,
        progress: false,
    };
    let targets = [TargetKind::VarveInProcess, TargetKind::Bare]
        .into_iter()
        .map(|kind| kind.open(&options, directory.path(), 320 << 20).context("cannot make a target"))
        .collect::<Result<Vec<_>>>()?;
    let mut columns: Vec<[Column; 2]> = threads.iter().map(|_| Default::default()).collect();
    let mut ratios: Vec<Vec<f64>> = threads.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for (i, &t) in threads.iter().enumerate() {
            let mut rates = [0.0; 2];
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let name = format!("{round}-{t}");
                rates[which] = measure(&*targets[which], &name, t, ms, &mut columns[i][which])?;
            }
            ratios[i].push(rates[0] / rates[1]);
        }
    }
    println!("threads   files/s      bare   ratio   cpu us  bare   flushes  bare   idle  bare");
    for ((t, [varve, bare]), ratios) in threads.iter().zip(&columns).zip(&ratios) {
        let of = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        println!(
            "{t:>7} {:>9.0} {:>9.0} {:>7.2} {:>8.1} {:>5.1} {:>9.3} {:>5.3} {:>6.2} {:>5.2}",
            of(&varve.rates),
            of(&bare.rates),
            of(ratios),
            of(&varve.cpu_us),
            of(&bare.cpu_us),
            of(&varve.flushes),
            of(&bare.flushes),
            mean(&varve.idle),
            mean(&bare.idle),
        );
    }
    for target in targets {
        target.close()?;
    }
    Ok(())
}
