//! A month of forks on every target: one an hour, of which 24 hourly, 7 daily and 4 weekly ones are kept, with synced writes in
//! between; then everything is deleted.
//!
//! Forks are made and deleted as the target's users make them, and everything is seen from the outside: what statfs(2) calls
//! used, what the block layer counts, how long it takes. What VarveFS has left to do, it says itself; the others do not. What
//! a month leaves behind in VarveFS is counted in [`super::rotation`], to the last record.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::rotation::{BACKLOG_BOUND, FOREGROUND_BOUND, HOURS, calmest, days, stays};
use super::subject::Subject;
use super::{BLOCK_BYTES, Latency, Random, latency};
use crate::counters::Counters;
use crate::numbers::ratio;
use crate::report::{Axis, Claim, Plot, Table};
use crate::{Options, Scale, guard};

/// What a scale stands for.
pub(super) struct Plan {
    pub days: u64,
    /// How long an hour lasts at least.
    hour: Duration,
    /// Synced writes an hour.
    writes: u64,
    file_bytes: u64,
    pub disk_bytes: u64,
}

pub(super) fn plan(options: &Options) -> Plan {
    const HOUR: Duration = Duration::from_millis(10);
    let (days_of_scale, hour, writes, file_bytes, disk_bytes) = match options.scale {
        // XFS refuses less than 300 MiB.
        Scale::Tiny => (2, Duration::ZERO, 4, 4 << 20, 320 << 20),
        Scale::Small => (30, HOUR, 8, 32 << 20, 512 << 20),
        Scale::Seed => (30, HOUR, 100, 1 << 30, 8 << 30),
    };
    Plan { days: days(options, days_of_scale), hour, writes, file_bytes, disk_bytes }
}

/// One hour.
#[derive(Clone, Copy, Debug, Serialize)]
struct Hour {
    used_bytes: u64,
    /// Tasks left to the reaper at its end, if the target says so.
    backlog: Option<u64>,
}

/// What the month came to on one target.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Month {
    name: String,
    hours: Vec<Hour>,
    kept_most: u64,
    written_bytes: u64,
    /// What reached the disk from the first hour until everything was deleted and drained.
    device: Option<Counters>,
    fork: Latency,
    delete: Latency,
    /// Synced writes while nothing had been deleted yet, and from the first deletion on.
    before: Latency,
    deleting: Latency,
    used_before_bytes: u64,
    /// When only the file is left.
    used_after_bytes: u64,
    /// From the last deletion until nothing is left to be done.
    drain_ns: u64,
    /// Why it ended before its last hour.
    stopped: Option<String>,
}

/// Lives through the month.
pub(super) fn live(plan: &Plan, name: &str, subject: &mut dyn Subject) -> Result<Month> {
    let mut random = Random(0x6d6f_6e74_6800 ^ plan.file_bytes);
    subject.prepare(plan.file_bytes)?;
    subject.sync()?;
    subject.settle()?;
    let counted = subject.counters()?;
    let mut month = Month {
        name: name.to_owned(),
        hours: Vec::new(),
        kept_most: 0,
        written_bytes: 0,
        device: None,
        fork: Latency::default(),
        delete: Latency::default(),
        before: Latency::default(),
        deleting: Latency::default(),
        used_before_bytes: subject.used_bytes()?,
        used_after_bytes: 0,
        drain_ns: 0,
        stopped: None,
    };
    let mut times = Times::default();
    let mut kept = Vec::new();
    for hour in 0..plan.days * HOURS {
        guard::check()?;
        match one_hour(plan, subject, &mut random, hour, &mut kept, &mut times) {
            Ok(done) => month.hours.push(done),
            Err(error) => {
                guard::check()?;
                // A full disk is a result, not a failure of the lab.
                month.stopped = Some(format!("in hour {hour}: {error:#}"));
                break;
            }
        }
        month.kept_most = month.kept_most.max(kept.len() as u64);
    }
    for taken in kept {
        times.delete(subject, taken)?;
    }
    let begun = Instant::now();
    subject.drain().context("nothing may be left of what was deleted")?;
    month.drain_ns = begun.elapsed().as_nanos() as u64;
    month.used_after_bytes = subject.used_bytes()?;
    month.device = subject.counters()?.zip(counted).map(|(now, before)| now - before);
    month.written_bytes = ((times.before.len() + times.deleting.len()) * BLOCK_BYTES) as u64;
    (month.fork, month.delete) = (latency(&times.fork), latency(&times.delete));
    (month.before, month.deleting) = (latency(&times.before), latency(&times.deleting));
    Ok(month)
}

/// How long each thing took, in nanoseconds.
#[derive(Default)]
struct Times {
    fork: Vec<f64>,
    delete: Vec<f64>,
    before: Vec<f64>,
    deleting: Vec<f64>,
}

impl Times {
    fn delete(&mut self, subject: &mut dyn Subject, taken: u64) -> Result<()> {
        let begun = Instant::now();
        subject.delete(taken as usize)?;
        self.delete.push(begun.elapsed().as_nanos() as f64);
        Ok(())
    }
}

fn one_hour(
    plan: &Plan,
    subject: &mut dyn Subject,
    random: &mut Random,
    hour: u64,
    kept: &mut Vec<u64>,
    times: &mut Times,
) -> Result<Hour> {
    let begun = Instant::now();
    let (stay, due): (Vec<u64>, Vec<u64>) = kept.iter().partition(|taken| stays(**taken, hour));
    *kept = stay;
    for taken in due {
        times.delete(subject, taken)?;
    }
    for _ in 0..plan.writes {
        let number = random.next();
        let begun = Instant::now();
        subject.write(number % (plan.file_bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64, number)?;
        subject.sync()?;
        let took = begun.elapsed().as_nanos() as f64;
        if times.delete.is_empty() { times.before.push(took) } else { times.deleting.push(took) }
    }
    std::thread::sleep(plan.hour.saturating_sub(begun.elapsed()));
    let backlog = subject.backlog()?;
    let begun = Instant::now();
    subject.fork(hour as usize)?;
    times.fork.push(begun.elapsed().as_nanos() as f64);
    kept.push(hour);
    Ok(Hour { used_bytes: subject.used_bytes()?, backlog })
}

impl Month {
    fn backlog(&self) -> Vec<u64> {
        self.hours.iter().filter_map(|hour| hour.backlog).collect()
    }
}

/// One row a target.
pub(super) fn table(plan: &Plan, months: &[Month]) -> Table {
    let two = |latency: Latency, unit: f64| {
        format!("{:.2}, {:.2}", latency.median_ns / unit, latency.p99_ns / unit)
    };
    let rows = months.iter().map(|month| {
        let mib =
            |bytes: u64| format!("{:.1}", bytes.saturating_sub(month.used_before_bytes) as f64 / 1048576.0);
        let most = month.hours.iter().map(|hour| hour.used_bytes).max().unwrap_or_default();
        let device = month.device.and_then(|d| ratio(d.written_bytes as f64, month.written_bytes as f64));
        let backlog = month.backlog();
        let left = calmest(&backlog).zip(backlog.iter().max());
        let stopped = if month.stopped.is_some() { " (stopped)" } else { "" };
        vec![
            month.name.clone(),
            format!("{}{stopped}", month.hours.len()),
            format!("{} \u{2192} {}", mib(most), mib(month.used_after_bytes)),
            device.map_or_else(|| "-".into(), |x| format!("{x:.2}")),
            two(month.fork, 1e6),
            two(month.delete, 1e6),
            format!("{:.0} \u{2192} {:.0}", month.before.p99_ns / 1e3, month.deleting.p99_ns / 1e3),
            left.map_or_else(|| "-".into(), |(calmest, most)| format!("{calmest}, {most}")),
            format!("{:.2}", month.drain_ns as f64 / 1e9),
        ]
    });
    let columns = [
        "",
        "hours",
        "MiB more used: most \u{2192} all deleted",
        "device bytes x",
        "fork, ms: median, p99",
        "delete, ms: median, p99",
        "p99 of a synced write, us: first day \u{2192} then",
        "tasks left: calmest hour of the last day, most",
        "until idle, s",
    ];
    Table {
        title: format!(
            "{} days of a snapshot or clone an hour, with {} synced writes into {} MiB; 24 hourly, 7 daily, 4 weekly kept",
            plan.days,
            plan.writes,
            plan.file_bytes >> 20
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Over the hours: space, and what is left to be done.
pub(super) fn plots(months: &[Month]) -> Vec<Plot> {
    type Value = fn(&Month, &Hour) -> Option<f64>;
    let shown: [(&str, &str, Value); 2] = [
        ("Used by the hour of the month, beyond what was before", "MiB", |month, hour| {
            Some(hour.used_bytes.saturating_sub(month.used_before_bytes) as f64 / 1048576.0)
        }),
        ("Tasks left to the reaper by the hour of the month", "tasks", |_, hour| {
            hour.backlog.map(|tasks| tasks as f64)
        }),
    ];
    let plot = |(title, y_label, value): (&str, &str, Value)| {
        let series = months.iter().map(|month| {
            let points = month.hours.iter().enumerate();
            let points = points.filter_map(|(n, hour)| Some((n as f64 + 1.0, value(month, hour)?)));
            (month.name.clone(), points.collect::<Vec<_>>())
        });
        Plot {
            title: title.to_owned(),
            x_label: "hour".to_owned(),
            y_label: y_label.to_owned(),
            x_axis: Axis::Linear,
            y_axis: Axis::Linear,
            series: series.filter(|(_, points)| !points.is_empty()).collect(),
        }
    };
    shown.into_iter().map(plot).collect()
}

/// What VarveFS has to show here.
pub(super) fn claims(months: &[Month]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for month in months.iter().filter(|month| month.name.starts_with("varve")) {
        let (name, from) = (&month.name, claims.len());
        claims.extend([
            Claim::at_most(
                format!("{name}, rotation: tasks left by the calmest hour of the last day: at most {BACKLOG_BOUND}"),
                // Of a month without deletions it says nothing.
                calmest(&month.backlog()).map(|tasks| tasks as f64).filter(|_| month.deleting.p99_ns > 0.0),
                BACKLOG_BOUND,
            ),
            Claim::at_most(
                format!(
                    "{name}, rotation: p99 of a synced write with deletions by that of the first day: at most {FOREGROUND_BOUND}"
                ),
                ratio(month.deleting.p99_ns, month.before.p99_ns).filter(|_| month.deleting.p99_ns > 0.0),
                FOREGROUND_BOUND,
            ),
        ]);
        Claim::stopped(&mut claims, from, &format!("{name}, rotation"), month.stopped.as_deref());
    }
    claims
}
