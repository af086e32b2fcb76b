//! Plots of lines as SVG, drawn here: a page that needs nothing else, with text that stays text.
//!
//! Points that a logarithmic axis cannot show (zero and less, or not finite) are left out.

use maud::{Markup, Render, html};

use crate::report::{Axis, Plot};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Distinguishable for the colour-blind too (after Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];
const TICKS: usize = 5;
/// Values on the lower axis that get a tick each.
const VALUES_SHOWN_MAX: usize = 8;

/// One axis: values to places on the paper.
struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    /// Where the ticks are, if not at round numbers.
    at: Vec<f64>,
}

impl Scale {
    fn new(axis: Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        if axis == Axis::Linear {
            low = low.min(0.0);
        }
        if high <= low {
            high = if axis == Axis::Linear { low + 1.0 } else { low * 2.0 };
        }
        Scale { axis, low, high, from, to, at: Vec::new() }
    }

    fn place(&self, value: f64) -> f64 {
        let share = match self.axis {
            Axis::Linear => (value - self.low) / (self.high - self.low),
            Axis::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.at.is_empty() {
            return self.at.clone();
        }
        match self.axis {
            Axis::Linear => {
                let rough = (self.high - self.low) / TICKS as f64;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough);
                let step = step.unwrap_or(rough);
                (0..=2 * TICKS)
                    .map(|n| (self.low / step).ceil() * step + n as f64 * step)
                    .filter(|v| *v <= self.high)
                    .collect()
            }
            Axis::Logarithmic => {
                let first = self.low.log10().floor() as i32;
                let last = self.high.log10().ceil() as i32;
                let fine = last - first <= 3;
                (first..=last)
                    .flat_map(|power| [1.0, 2.0, 5.0].map(|m| (m, m * 10f64.powi(power))))
                    .filter(|(m, value)| (fine || *m == 1.0) && (self.low..=self.high).contains(value))
                    .map(|(_, value)| value)
                    .collect()
            }
        }
    }
}

fn shows(axis: Axis, value: f64) -> bool {
    value.is_finite() && (axis == Axis::Linear || value > 0.0)
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", value / 1e6),
        v if v >= 1e4 => format!("{}k", value / 1e3),
        v if v >= 1.0 || v == 0.0 => format!("{}", (value * 10.0).round() / 10.0),
        _ => format!("{value:.2}"),
    }
}

/// The plot as an `svg` element for HTML.
pub(super) fn draw(plot: &Plot) -> String {
    let series: Vec<(&str, Vec<(f64, f64)>)> = plot
        .series
        .iter()
        .map(|(name, points)| {
            let seen = |(x, y): &&(f64, f64)| shows(plot.x_axis, *x) && shows(plot.y_axis, *y);
            (name.as_str(), points.iter().filter(seen).copied().collect())
        })
        .collect();
    let all = || series.iter().flat_map(|(_, points)| points.iter());
    let mut x = Scale::new(plot.x_axis, all().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let mut values: Vec<f64> = all().map(|point| point.0).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    // Few values that were chosen (numbers of threads, say) are better ticks than round numbers between them.
    if x.axis == Axis::Logarithmic && (1..=VALUES_SHOWN_MAX).contains(&values.len()) {
        x.at = values;
    }
    let y = Scale::new(plot.y_axis, all().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    picture(plot, &series, &x, &y).render().into_string()
}

fn picture(plot: &Plot, series: &[(&str, Vec<(f64, f64)>)], x: &Scale, y: &Scale) -> Markup {
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) width=(WIDTH) height=(HEIGHT) role="img"
            aria-label=(plot.title) font-size="11" font-family="system-ui,sans-serif" {
            @for tick in y.ticks() {
                @let place = format!("{:.1}", y.place(tick));
                line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(place) y2=(place) stroke="#ddd" {}
                text x=(LEFT - 6.0) y=(place) dy="4" text-anchor="end" { (short(tick)) }
            }
            @for tick in x.ticks() {
                @let place = format!("{:.1}", x.place(tick));
                line x1=(place) x2=(place) y1=(TOP) y2=(HEIGHT - BOTTOM) stroke="#eee" {}
                text x=(place) y=(HEIGHT - BOTTOM + 15.0) text-anchor="middle" { (short(tick)) }
            }
            text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 8.0) text-anchor="middle" { (plot.x_label) }
            text transform=(format!("translate(14 {}) rotate(-90)", HEIGHT / 2.0)) text-anchor="middle" { (plot.y_label) }
            @for (number, (name, points)) in series.iter().enumerate() {
                @let colour = COLOURS[number % COLOURS.len()];
                @let line = points.iter().map(|(px, py)| format!("{:.1},{:.1}", x.place(*px), y.place(*py)));
                polyline points=(line.collect::<Vec<_>>().join(" ")) fill="none" stroke=(colour) stroke-width="2" {}
                @for (px, py) in points {
                    circle cx=(format!("{:.1}", x.place(*px))) cy=(format!("{:.1}", y.place(*py))) r="3" fill=(colour) {
                        title { (name) ": " (short(*px)) ", " (short(*py)) }
                    }
                }
                @let row = TOP + 10.0 + 16.0 * number as f64;
                rect x=(WIDTH - RIGHT + 12.0) y=(row - 8.0) width="10" height="10" fill=(colour) {}
                text x=(WIDTH - RIGHT + 27.0) y=(row + 1.0) { (name) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: axes meet their ends, and what cannot be shown does no harm. Method: a plot with zero, one point, nothing.
    #[test]
    fn odd_plots_are_drawn() {
        let scale = Scale::new(Axis::Logarithmic, [1.0, 100.0].into_iter(), 0.0, 10.0);
        assert!((scale.place(10.0) - 5.0).abs() < 1e-9);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        let plot = |points: Vec<(f64, f64)>| Plot {
            title: "<odd>".to_owned(),
            x_label: "x".to_owned(),
            y_label: "y".to_owned(),
            x_axis: Axis::Logarithmic,
            y_axis: Axis::Linear,
            series: vec![("one".to_owned(), points)],
        };
        let threads = draw(&plot(vec![(1.0, 1.0), (4.0, 2.0), (40.0, 3.0)]));
        assert!(
            threads.contains(">40<") && threads.contains(">4<") && !threads.contains(">20<"),
            "{threads}"
        );
        for points in [vec![], vec![(1.0, 0.0)], vec![(0.0, 1.0), (f64::NAN, 2.0), (4.0, 3.0)]] {
            let drawn = draw(&plot(points));
            assert!(
                !drawn.contains("NaN") && !drawn.contains("inf") && drawn.contains("&lt;odd&gt;"),
                "{drawn}"
            );
        }
    }
}
