//! What the figures of `aging` come to: tables, plots, claims.

use super::{BLOCK_BYTES, Figures, Loop, Plan};
use crate::numbers::{median, ratio};
use crate::report::{Axis, Claim, Plot, Table};

const SPACE_BOUND: f64 = 1.05;
const DEVICE_BOUND: f64 = 1.15;
const FORK_MS_BOUND: f64 = 3.0;
const FORK_US_BOUND: f64 = 3.0;
const RATE_BOUND: f64 = 0.95;
const FLAT_BOUND: f64 = 1.25;
const MAP_NS_BOUND: f64 = 100.0;
const FOREGROUND_BOUND: f64 = 1.2;

impl Figures {
    /// Bytes that the loops up to `number` (inclusive) wrote.
    fn written(plan: &Plan, number: usize) -> f64 {
        ((number + 1) * plan.writes * BLOCK_BYTES) as f64
    }
    /// Space taken since before the first loop by the bytes that those behind it wrote. What the first wrote is no part of either: the whole
    /// file was set aside before, and nothing shares it until the first fork.
    fn space(&self, plan: &Plan, number: usize) -> Option<f64> {
        let used = self.loops.get(number)?.used_bytes.saturating_sub(self.used_before_bytes);
        ratio(used as f64, Self::written(plan, number.checked_sub(1)?))
    }
    /// Bytes at the device of one loop, by those it wrote.
    fn device(&self, plan: &Plan, number: usize) -> Option<f64> {
        let bytes = self.loops.get(number)?.device?.written_bytes;
        ratio(bytes as f64, (plan.writes * BLOCK_BYTES) as f64)
    }
    fn device_all(&self, plan: &Plan) -> Option<f64> {
        let sum: Option<u64> = self.loops.iter().map(|l| Some(l.device?.written_bytes)).sum();
        // What they have put off belongs to them: at a small scale that is all of the trees.
        let sum = sum? + self.settled?.written_bytes;
        ratio(sum as f64, Self::written(plan, self.loops.len().checked_sub(1)?))
    }
    /// The last ten loops in a few words, for whoever waits.
    pub(super) fn lately(&self, plan: &Plan) -> String {
        let last = &self.loops[self.loops.len().saturating_sub(10)..];
        let Some(rate) = median(&last.iter().map(|one| Self::rate(plan, one)).collect::<Vec<_>>()) else {
            return String::new();
        };
        let to = self.loops.len() - 1;
        let devices: Option<f64> = (to + 1 - last.len()..=to).map(|n| self.device(plan, n)).sum();
        let device = cell(devices.map(|sum| sum / last.len() as f64), 2);
        let own = self.own(plan).map_or_else(String::new, |(log, trees)| {
            let checkpoints: u64 =
                self.loops.iter().filter_map(|one| one.own.as_ref()).map(|own| own.checkpoints_count).sum();
            format!(", log {log:.0} and trees {trees:.0} bytes a write in {checkpoints} checkpoints")
        });
        let space = cell(self.space(plan, to), 2);
        format!(": {rate:.0} writes/s, device bytes {device}x, space {space}x{own}")
    }
    /// Bytes of log and of trees for each write, as the filesystem itself counts.
    fn own(&self, plan: &Plan) -> Option<(f64, f64)> {
        let writes = (self.loops.len() * plan.writes) as f64;
        let sum = |part: fn(&super::Own) -> u64| {
            let parts: Option<u64> = self.loops.iter().map(|one| one.own.as_ref().map(part)).sum();
            ratio(parts? as f64, writes)
        };
        Some((sum(|own| own.log_bytes)?, sum(|own| own.tree_bytes)?))
    }
    fn tenths(&self, figure: impl Fn(&Loop) -> f64) -> (Option<f64>, Option<f64>) {
        let tenth = self.loops.len().div_ceil(10);
        let of = |loops: &[Loop]| median(&loops.iter().map(&figure).collect::<Vec<_>>());
        // The first loop is not its own end.
        let last = (self.loops.len() > 1).then(|| of(&self.loops[self.loops.len() - tenth..])).flatten();
        (of(&self.loops[..tenth]), last)
    }
    /// Of the first and the last tenth the rate of a loop by that of the file without forks just afterwards: medians of the pairs.
    fn rates_by_control(&self) -> (Option<f64>, Option<f64>) {
        let tenth = self.loops.len().div_ceil(10);
        let pair = |l: &Loop| ratio(l.control_ns? as f64, (l.write_ns + l.sync_ns) as f64);
        let of = |loops: &[Loop]| median(&loops.iter().filter_map(pair).collect::<Vec<_>>());
        let last = (self.loops.len() > 1).then(|| of(&self.loops[self.loops.len() - tenth..])).flatten();
        (of(&self.loops[..tenth]), last)
    }
    fn rate(plan: &Plan, one: &Loop) -> f64 {
        plan.writes as f64 * 1e9 / (one.write_ns + one.sync_ns).max(1) as f64
    }
    fn map_ns(&self) -> Option<f64> {
        let maps = self.maps.iter().filter_map(|map| ratio(map.warm_ns as f64, map.extents_count as f64));
        median(&maps.collect::<Vec<_>>())
    }
    fn is_ours(&self) -> bool {
        self.name.starts_with("varve")
    }
    fn in_process(&self) -> bool {
        self.name.starts_with("varve ")
    }
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn arrow(pair: (Option<f64>, Option<f64>), digits: usize) -> String {
    format!("{} \u{2192} {}", cell(pair.0, digits), cell(pair.1, digits))
}

/// One row a target.
pub(super) fn tables(plan: &Plan, figures: &[Figures]) -> Vec<Table> {
    let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let ms = |one: &Loop| one.fork_ns as f64 / 1e6;
    let loops = figures.iter().map(|f| {
        let last = f.loops.len().saturating_sub(1);
        vec![
            f.name.clone(),
            f.stopped
                .as_ref()
                .map_or_else(|| f.loops.len().to_string(), |_| format!("{} (stopped)", f.loops.len())),
            cell(f.space(plan, last), 2),
            cell(f.device_all(plan), 2),
            arrow((f.device(plan, 0), f.device(plan, last)), 2),
            f.own(plan).map_or_else(|| "-".into(), |(log, trees)| format!("{log:.0} + {trees:.0}")),
            arrow(f.tenths(ms), 3),
            arrow(f.tenths(|one| Figures::rate(plan, one)), 0),
            arrow(f.rates_by_control(), 2),
        ]
    });
    let after = figures.iter().map(|f| {
        let left = f.used_after_bytes as f64 - f.used_before_bytes as f64;
        let largest = f.maps.iter().max_by_key(|map| map.extents_count);
        vec![
            f.name.clone(),
            largest.map_or_else(|| "-".into(), |map| format!("{} ({})", map.extents_count, map.shared_count)),
            cell(f.map_ns(), 0),
            format!(
                "{:.1}; {}",
                f.fresh.p99_ns / 1e3,
                arrow((Some(f.before.p99_ns / 1e3), Some(f.deleting.p99_ns / 1e3)), 1)
            ),
            cell(Some(f.delete_ns as f64 / 1e9), 2),
            cell(Some(f.drain_ns as f64 / 1e9), 2),
            cell(Some(left / 1024.0), 0),
        ]
    });
    vec![
        Table {
            title: "Loops (first tenth \u{2192} last tenth, medians)".to_owned(),
            columns: columns(&[
                "",
                "loops",
                "space x",
                "device bytes x",
                "device x, first \u{2192} last loop",
                "log + trees, bytes a write",
                "fork, ms",
                "writes/s with the sync",
                "by those without forks",
            ]),
            rows: loops.collect(),
        },
        Table {
            title: "Extent maps, and deleting all forks while writing".to_owned(),
            columns: columns(&[
                "",
                "extents (shared) of the largest",
                "ns per extent, warm",
                "p99 of a write, us: without forks; with all \u{2192} deleting them",
                "deleting, s",
                "until idle, s",
                "KiB more used than before the first",
            ]),
            rows: after.collect(),
        },
    ]
}

/// Over the loops: space, bytes, forks, rate.
pub(super) fn plots(plan: &Plan, figures: &[Figures]) -> Vec<Plot> {
    type Value<'a> = &'a dyn Fn(&Figures, usize) -> Option<f64>;
    let shown: [(&str, &str, Axis, Value<'_>); 4] = [
        ("Space used by bytes written since the first fork", "x", Axis::Linear, &|f, n| f.space(plan, n)),
        ("Device bytes by bytes written, each loop", "x", Axis::Logarithmic, &|f, n| f.device(plan, n)),
        ("Snapshot or clone", "ms", Axis::Logarithmic, &|f, n| Some(f.loops.get(n)?.fork_ns as f64 / 1e6)),
        ("Writes per second, with the sync", "writes/s", Axis::Linear, &|f, n| {
            Some(Figures::rate(plan, f.loops.get(n)?))
        }),
    ];
    shown
        .into_iter()
        .map(|(title, y_label, y_axis, value)| Plot {
            title: title.to_owned(),
            x_label: "loop".to_owned(),
            y_label: y_label.to_owned(),
            x_axis: Axis::Linear,
            y_axis,
            series: figures
                .iter()
                .map(|f| {
                    let point = |n| Some(((n + 1) as f64, value(f, n)?));
                    (f.name.clone(), (0..f.loops.len()).filter_map(point).collect())
                })
                .collect(),
        })
        .collect()
}

/// What VarveFS has to show here.
pub(super) fn claims(plan: &Plan, figures: &[Figures]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for f in figures.iter().filter(|f| f.is_ours()) {
        let (name, from) = (&f.name, claims.len());
        let last = f.loops.len().saturating_sub(1);
        let (first_fork, last_fork) = f.tenths(|one| one.fork_ns as f64);
        let (first_rate, last_rate) = f.rates_by_control();
        let (first_alone, last_alone) = f.tenths(|one| Figures::rate(plan, one));
        let by = |last: Option<f64>, first: Option<f64>| ratio(last?, first?);
        let published = super::plan(crate::Scale::Seed).loops;
        let few = if f.loops.len() < published {
            format!("of {} loops; the bound is that of {published}", f.loops.len())
        } else {
            String::new()
        };
        claims.push(
            Claim::at_most(
                format!("{name}: space by bytes written since the first fork: at most {SPACE_BOUND}"),
                f.space(plan, last),
                SPACE_BOUND,
            )
            .remark(&few),
        );
        let mut at_most = |text: String, value, bound| claims.push(Claim::at_most(text, value, bound));
        at_most(
            format!("{name}: device bytes by bytes written: at most {DEVICE_BOUND}"),
            f.device_all(plan),
            DEVICE_BOUND,
        );
        if f.in_process() {
            let us = last_fork.map(|ns| ns / 1e3);
            at_most(
                format!("{name}: fork in the last tenth, us: at most {FORK_US_BOUND}"),
                us,
                FORK_US_BOUND,
            );
        } else {
            let ms = last_fork.map(|ns| ns / 1e6);
            at_most(
                format!("{name}: fork in the last tenth, ms: at most {FORK_MS_BOUND}"),
                ms,
                FORK_MS_BOUND,
            );
        }
        at_most(
            format!("{name}: fork in the last tenth by the first: at most {FLAT_BOUND}"),
            by(last_fork, first_fork),
            FLAT_BOUND,
        );
        // The command has to print what it finds.
        if f.in_process() {
            at_most(
                format!("{name}: extent map, ns per extent: at most {MAP_NS_BOUND}"),
                f.map_ns(),
                MAP_NS_BOUND,
            );
        }
        at_most(
            format!(
                "{name}: p99 of a write into memory or through a mount, not synced, while forks are deleted by that just before: at most {FOREGROUND_BOUND}"
            ),
            // Not measured if deleting ended early.
            ratio(f.deleting.p99_ns, f.before.p99_ns).filter(|_| f.deleting.p99_ns > 0.0),
            FOREGROUND_BOUND,
        );
        claims.push(
            Claim::at_least(
                format!(
                    "{name}: write rate, by that of a file without forks just afterwards, of the last tenth by the first: \
                     at least {RATE_BOUND}"
                ),
                by(last_rate, first_rate),
                RATE_BOUND,
            )
            .remark(&format!("{} alone", cell(by(last_alone, first_alone), 3))),
        );
        Claim::stopped(&mut claims, from, name, f.stopped.as_deref());
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::super::{Latency, plan};
    use super::*;
    use crate::Scale;

    // Goal: space is compared with what took it. Method: a file that was set aside whole, of which the first loop takes nothing more and each other
    // one what it writes.
    #[test]
    fn the_first_loop_takes_no_space() {
        let (plan, before) = (plan(Scale::Tiny), 1 << 30);
        let one = |number: usize| Loop {
            write_ns: 1,
            sync_ns: 1,
            fork_ns: 1,
            used_bytes: before + (number * plan.writes * BLOCK_BYTES) as u64,
            device: None,
            own: None,
            control_ns: None,
        };
        let figures = Figures {
            name: "varve snapshot".to_owned(),
            used_before_bytes: before,
            loops: (0..8).map(one).collect(),
            settled: None,
            maps: Vec::new(),
            fresh: Latency::default(),
            before: Latency::default(),
            deleting: Latency::default(),
            delete_ns: 0,
            drain_ns: 0,
            used_after_bytes: before,
            stopped: None,
        };
        assert_eq!([0, 1, 7].map(|loops| figures.space(&plan, loops)), [None, Some(1.0), Some(1.0)]);
    }
}
