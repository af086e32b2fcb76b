//! What the figures of `commit` come to: tables, plots, claims.

use super::{Figures, Sample};
use crate::counters::Counters;
use crate::numbers::{median, quantile, ratio};
use crate::report::{Axis, Claim, Plot, Table};
use crate::target::TargetKind;

/// One flush a file, as a share that the closing of a run cannot hide.
const FLUSHES_BOUND: f64 = 1.005;
const KIB_BOUND: f64 = 17.0;
const PAIR_BOUND: f64 = 1.15;
const BARE_BOUND: f64 = 0.9;
const FEWER_THREADS_BOUND: f64 = 0.95;
const MOUNTED_BOUND: f64 = 0.9;

impl Figures {
    /// Files per second in each repeat.
    fn rates(&self, kind: &TargetKind, threads: usize) -> Vec<f64> {
        let name = kind.name();
        let of = self.samples.iter().filter(|sample| sample.target == name && sample.threads == threads);
        of.map(|sample| sample.files_per_s).collect()
    }

    fn rate(&self, kind: &TargetKind, threads: usize) -> Option<f64> {
        median(&self.rates(kind, threads))
    }

    /// What reached the disk, per file, over all repeats.
    fn per_file(
        &self,
        kind: &TargetKind,
        threads: usize,
        settled: bool,
        figure: impl Fn(&Counters) -> f64,
    ) -> Option<f64> {
        let name = kind.name();
        let (mut sum, mut files) = (Counters::default(), 0);
        for sample in self.samples.iter().filter(|sample| sample.target == name && sample.threads == threads)
        {
            sum += if settled { sample.settled? } else { sample.during? };
            files += sample.files_count;
        }
        ratio(figure(&sum), files as f64)
    }

    fn flushes(&self, kind: &TargetKind, threads: usize) -> Option<f64> {
        self.per_file(kind, threads, false, |sum| sum.flushes_count as f64)
    }

    fn writes(&self, kind: &TargetKind, threads: usize) -> Option<f64> {
        self.per_file(kind, threads, false, |sum| sum.writes_count as f64)
    }

    fn kib(&self, kind: &TargetKind, threads: usize, settled: bool) -> Option<f64> {
        self.per_file(kind, threads, settled, |sum| sum.written_bytes as f64 / 1024.0)
    }

    /// `one`'s rates by `other`'s in the same repeat, in those of VarveFS and the bare protocol alone too.
    fn ratios(&self, one: (&TargetKind, usize), other: (&TargetKind, usize)) -> Vec<f64> {
        let of = |(kind, threads): (&TargetKind, usize)| {
            let name = kind.name();
            let all = self.samples.iter().chain(&self.more);
            all.filter(move |sample| sample.target == name && sample.threads == threads)
        };
        let pair = |sample: &Sample| {
            let beside = of(other).find(|beside| beside.repeat == sample.repeat)?;
            ratio(sample.files_per_s, beside.files_per_s)
        };
        of(one).filter_map(pair).collect()
    }

    /// Their median.
    fn compare(&self, one: (&TargetKind, usize), other: (&TargetKind, usize)) -> Option<f64> {
        median(&self.ratios(one, other))
    }
}

/// How many ratios a median stands for, and where half of them lie. `None`: none.
fn spread(ratios: &[f64]) -> Option<String> {
    let (low, high) = (quantile(ratios, 0.25)?, quantile(ratios, 0.75)?);
    Some(format!("median of {}, quartiles {low:.2} and {high:.2}", ratios.len()))
}

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// One table a figure: a row a target, a column a number of threads.
pub(super) fn tables(figures: &Figures) -> Vec<Table> {
    let mut columns = vec!["".to_owned()];
    columns.extend(figures.threads.iter().map(|threads| format!("T={threads}")));
    type Cell<'a> = &'a dyn Fn(&TargetKind, usize) -> String;
    let shown: [(&str, Cell<'_>); 6] = [
        ("files/s (median)", &|kind, threads| cell(figures.rate(kind, threads), 0)),
        ("flushes per file", &|kind, threads| cell(figures.flushes(kind, threads), 3)),
        ("device writes per file", &|kind, threads| cell(figures.writes(kind, threads), 2)),
        ("KiB written per file", &|kind, threads| cell(figures.kib(kind, threads, false), 1)),
        ("KiB written per file, with what was put off until after the run", &|kind, threads| {
            cell(figures.kib(kind, threads, true), 1)
        }),
        ("files/s by those of the bare protocol in the same repeat (median)", &|kind, threads| {
            cell(figures.compare((kind, threads), (&TargetKind::Bare, threads)), 2)
        }),
    ];
    shown
        .into_iter()
        .map(|(title, show)| Table {
            title: title.to_owned(),
            columns: columns.clone(),
            rows: figures
                .kinds
                .iter()
                .map(|kind| {
                    let cells = figures.threads.iter().map(|threads| show(kind, *threads));
                    std::iter::once(kind.name()).chain(cells).collect()
                })
                .collect(),
        })
        .collect()
}

/// Rate, flushes and bytes over threads.
pub(super) fn plots(figures: &Figures) -> Vec<Plot> {
    type Value<'a> = &'a dyn Fn(&TargetKind, usize) -> Option<f64>;
    let shown: [(&str, &str, Axis, Value<'_>); 3] = [
        ("Synced files per second", "files/s", Axis::Logarithmic, &|kind, threads| {
            figures.rate(kind, threads)
        }),
        ("Flushes per file", "flushes", Axis::Linear, &|kind, threads| figures.flushes(kind, threads)),
        ("Written per file", "KiB", Axis::Linear, &|kind, threads| figures.kib(kind, threads, true)),
    ];
    shown
        .into_iter()
        .map(|(title, y_label, y_axis, value)| Plot {
            title: title.to_owned(),
            x_label: "threads".to_owned(),
            y_label: y_label.to_owned(),
            x_axis: Axis::Logarithmic,
            y_axis,
            series: figures
                .kinds
                .iter()
                .map(|kind| {
                    let point = |threads: &usize| Some((*threads as f64, value(kind, *threads)?));
                    (kind.name(), figures.threads.iter().filter_map(point).collect())
                })
                .collect(),
        })
        .collect()
}

/// What VarveFS has to show here.
pub(super) fn claims(figures: &Figures) -> Vec<Claim> {
    let varve = &TargetKind::VarveInProcess;
    let mounted = &TargetKind::VarveMounted;
    let kernel: Vec<&TargetKind> = figures.kinds.iter().filter(|kind| kind.is_kernel()).collect();
    let mut claims = Vec::new();
    for (kind, how) in [(varve, "in process"), (mounted, "mounted")] {
        let name = kind.name();
        let long = figures.costs.iter().find(|cost| cost.target == name);
        let flushes = long.and_then(|cost| ratio(cost.during?.flushes_count as f64, cost.files_count as f64));
        let over = long.map(|cost| format!("over {} files", cost.files_count)).unwrap_or_default();
        claims.push(
            Claim::at_most(
                format!("flushes per file at T=1, checkpoints counted, {how}: 1.00"),
                flushes,
                FLUSHES_BOUND,
            )
            .remark(&over),
        );
        let kib =
            long.and_then(|cost| ratio(cost.settled?.written_bytes as f64 / 1024.0, cost.files_count as f64));
        claims.push(
            Claim::at_most(
                format!("KiB written per file at T=1, checkpoints counted, {how}: at most {KIB_BOUND}"),
                kib,
                KIB_BOUND,
            )
            .remark(&long.map(|cost| format!("over {} files", cost.files_count)).unwrap_or_default()),
        );
    }
    let ratios: Vec<f64> = figures
        .pairs
        .iter()
        .filter_map(|pair| ratio(pair.varve_ns_per_file, pair.bare_ns_per_file))
        .collect();
    claims.push(
        Claim::at_most(
            format!(
                "time of a file at T=1 in process by a bare 16 KiB write and flush: at most {PAIR_BOUND}"
            ),
            median(&ratios),
            PAIR_BOUND,
        )
        .remark(&spread(&ratios).unwrap_or_default()),
    );

    let many = || figures.threads.iter().copied().filter(|threads| *threads >= 2);
    let worst = |ratios: Vec<(f64, String)>| {
        ratios
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or((None, String::new()), |(value, at)| (Some(value), at))
    };
    let (value, at) = worst(
        many()
            .filter_map(|t| {
                let all = figures.ratios((varve, t), (&TargetKind::Bare, t));
                Some((median(&all)?, format!("worst, T={t} in the same repeat, {}", spread(&all)?)))
            })
            .collect(),
    );
    let sentence = format!("files/s from T=2 in process by the bare protocol's: at least {BARE_BOUND}");
    claims.push(Claim::at_least(sentence, value, BARE_BOUND).remark(&at));

    for (kind, how) in [(varve, "in process"), (mounted, "mounted")] {
        let fewer = |t: usize| figures.threads.iter().copied().filter(move |smaller| *smaller < t);
        let ratios = many().flat_map(|t| fewer(t).map(move |smaller| (t, smaller)));
        let (value, at) = worst(
            ratios
                .filter_map(|(t, smaller)| {
                    let all = figures.ratios((kind, t), (kind, smaller));
                    let at = format!("worst, T={t} by T={smaller} in the same repeat, {}", spread(&all)?);
                    Some((median(&all)?, at))
                })
                .collect(),
        );
        let sentence =
            format!("files/s at T by those at any smaller T, {how}: at least {FEWER_THREADS_BOUND}");
        claims.push(Claim::at_least(sentence, value, FEWER_THREADS_BOUND).remark(&at));
    }

    let best = kernel
        .iter()
        .filter_map(|kind| Some((figures.rate(kind, 1)?, *kind)))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let (value, at) = match best {
        Some((_, kind)) => (figures.compare((mounted, 1), (kind, 1)), kind.name()),
        None => (None, String::new()),
    };
    let sentence =
        format!("files/s at T=1 mounted by the best kernel filesystem's: at least {MOUNTED_BOUND}");
    claims.push(Claim::at_least(sentence, value, MOUNTED_BOUND).remark(&at));
    claims
}
