//! What the figures of `large` come to: tables, plots, claims.

use super::{Figures, Mode, Sample};
use crate::numbers::{median, quantile, ratio};
use crate::report::{Axis, Claim, Plot, Table};
use crate::target::TargetKind;

const BUFFERED_BOUND: f64 = 0.6;
const DIRECT_BOUND: f64 = 0.8;

/// Writing or reading.
#[derive(Clone, Copy)]
enum Way {
    Write,
    Read,
}

impl Way {
    const ALL: [Way; 2] = [Way::Write, Way::Read];

    fn name(self) -> &'static str {
        match self {
            Way::Write => "write and fsync",
            Way::Read => "read",
        }
    }

    fn rate(self, sample: &Sample) -> f64 {
        match self {
            Way::Write => sample.write_mib_per_s,
            Way::Read => sample.read_mib_per_s,
        }
    }
}

impl Figures {
    fn of(&self, kind: &TargetKind, mode: Mode) -> impl Iterator<Item = &Sample> {
        let name = kind.name();
        self.samples.iter().filter(move |sample| sample.target == name && sample.mode == mode)
    }

    fn rates(&self, kind: &TargetKind, mode: Mode, way: Way) -> Vec<f64> {
        self.of(kind, mode).map(|sample| way.rate(sample)).collect()
    }

    /// `one`'s rates by `other`'s in the same repeat.
    fn compare(&self, one: &TargetKind, other: &TargetKind, mode: Mode, way: Way) -> Vec<f64> {
        let pairs = self.rates(one, mode, way).into_iter().zip(self.rates(other, mode, way));
        pairs.filter_map(|(one, other)| ratio(one, other)).collect()
    }
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A table of rates, one of rates by ext4's, one of what reached the disk.
pub(super) fn tables(figures: &Figures, file_bytes: u64) -> Vec<Table> {
    let ways = || Mode::ALL.into_iter().flat_map(|mode| Way::ALL.map(|way| (mode, way)));
    let mut columns = vec!["".to_owned()];
    columns.extend(ways().map(|(mode, way)| format!("{}, {}", mode.name(), way.name())));
    let table = |title: &str, show: &dyn Fn(&TargetKind, Mode, Way) -> String| Table {
        title: title.to_owned(),
        columns: columns.clone(),
        rows: figures
            .kinds
            .iter()
            .map(|kind| {
                let cells = ways().map(|(mode, way)| show(kind, mode, way));
                [kind.name()].into_iter().chain(cells).collect()
            })
            .collect(),
    };
    let rates = table("MiB/s (median)", &|kind, mode, way| cell(median(&figures.rates(kind, mode, way)), 0));
    let ratios = table("by ext4's in the same repeat (median)", &|kind, mode, way| {
        cell(median(&figures.compare(kind, &TargetKind::Ext4, mode, way)), 2)
    });
    let written = |kind: &TargetKind, mode: Mode| -> Vec<String> {
        let of = |figure: &dyn Fn(&Sample) -> Option<f64>| {
            median(&figures.of(kind, mode).filter_map(figure).collect::<Vec<f64>>())
        };
        let bytes = of(&|sample| Some(sample.written?.written_bytes as f64 / file_bytes as f64));
        let each = of(&|sample| {
            let written = sample.written?;
            ratio(written.written_bytes as f64 / 1024.0, written.writes_count as f64)
        });
        let flushes = of(&|sample| Some(sample.written?.flushes_count as f64));
        let share = of(&|sample| Some(sample.fsync_share));
        let name = format!("{}, {}", kind.name(), mode.name());
        vec![name, cell(bytes, 3), cell(each, 0), cell(flushes, 0), cell(share, 2)]
    };
    let rows =
        figures.kinds.iter().flat_map(|kind| Mode::ALL.into_iter().map(|mode| written(kind, mode))).collect();
    let device = Table {
        title: "What reached the disk while a file was written and synced (medians)".to_owned(),
        columns: [
            "",
            "bytes written per byte",
            "KiB per device write",
            "flushes",
            "share of fsync in the time",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    };
    vec![rates, ratios, device]
}

/// One plot for each way of calling: the repeats of every target.
pub(super) fn plots(figures: &Figures) -> Vec<Plot> {
    let mut plots = Vec::new();
    for mode in Mode::ALL {
        for way in Way::ALL {
            let series = figures.kinds.iter().map(|kind| {
                let rates = figures.rates(kind, mode, way);
                let points = rates.into_iter().enumerate().map(|(n, rate)| (n as f64 + 1.0, rate));
                (kind.name(), points.collect())
            });
            plots.push(Plot {
                title: format!("{}, {}", mode.name(), way.name()),
                x_label: "repeat".to_owned(),
                y_label: "MiB/s".to_owned(),
                x_axis: Axis::Linear,
                y_axis: Axis::Linear,
                series: series.collect(),
            });
        }
    }
    plots
}

/// What is claimed, against ext4.
pub(super) fn claims(figures: &Figures) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (mode, bound) in [(Mode::Buffered, BUFFERED_BOUND), (Mode::Direct, DIRECT_BOUND)] {
        for way in Way::ALL {
            let ratios = figures.compare(&TargetKind::VarveMounted, &TargetKind::Ext4, mode, way);
            let spread = match (quantile(&ratios, 0.25), quantile(&ratios, 0.75)) {
                (Some(low), Some(high)) => format!("quartiles {low:.2} and {high:.2}"),
                _ => String::new(),
            };
            let sentence = format!(
                "MiB/s mounted by ext4's on an equal disk, {}, {}: at least {bound}",
                mode.name(),
                way.name()
            );
            claims.push(Claim::at_least(sentence, median(&ratios), bound).remark(&spread));
        }
    }
    claims
}
