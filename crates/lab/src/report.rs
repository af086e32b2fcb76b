//! What an experiment hands over: words, tables, plots, claims, and its raw figures. How they look is the business of
//! [`crate::output`].

use serde::Serialize;

use crate::machine::Provenance;

/// The result of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name on the command line.
    pub experiment: &'static str,
    /// What was done, in a sentence or two.
    pub summary: String,
    /// How much was run.
    pub scale: &'static str,
    /// Where and from what.
    pub provenance: Provenance,
    /// The disk that every target had.
    pub disk: String,
    /// What the bare device can do.
    pub ceiling: Option<Ceiling>,
    /// Targets that were run, with what they are.
    pub targets: Vec<(String, String)>,
    /// Targets that were not run, and why.
    pub skipped: Vec<(String, String)>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Plots.
    pub plots: Vec<Plot>,
    /// What is claimed, and whether it holds here.
    pub claims: Vec<Claim>,
    /// The experiment's own figures, every single measurement.
    pub data: serde_json::Value,
}

/// What the bare device can do, measured on a disk like those of the targets.
#[derive(Clone, Debug, Serialize)]
pub struct Ceiling {
    /// 16 KiB written and flushed, one after the other, per second (median of the repeats).
    pub flushed_writes_per_s: f64,
    /// MiB per second of 1 MiB writes, one flush at the end (median of the repeats).
    pub sequential_mib_per_s: f64,
}

/// A table. Every row has as many cells as there are columns.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

/// How an axis is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Axis {
    /// Evenly, from 0.
    Linear,
    /// Powers.
    Logarithmic,
}

/// A plot of lines.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// What goes to the right.
    pub x_label: String,
    /// What goes up.
    pub y_label: String,
    /// Division of the lower axis.
    pub x_axis: Axis,
    /// Division of the upright axis.
    pub y_axis: Axis,
    /// Name and points of each line.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Something VarveFS has to show.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The sentence, with its bound.
    pub claim: String,
    /// What was measured; empty if it was not.
    pub measured: String,
    /// Whether it holds; `None`: not measured here.
    pub holds: Option<bool>,
}

impl Claim {
    /// A claim that `value` is at most `bound`.
    #[must_use]
    pub fn at_most(claim: impl Into<String>, value: Option<f64>, bound: f64) -> Claim {
        Claim::judged(claim.into(), value, |value| value <= bound)
    }

    /// A claim that `value` is at least `bound`.
    #[must_use]
    pub fn at_least(claim: impl Into<String>, value: Option<f64>, bound: f64) -> Claim {
        Claim::judged(claim.into(), value, |value| value >= bound)
    }

    /// What is left of the claims of a target, `of`, that stopped before its end: none of them has been measured, and it has not ended.
    /// Nothing is changed if it has.
    pub(crate) fn stopped(claims: &mut Vec<Claim>, from: usize, of: &str, why: Option<&str>) {
        let Some(why) = why else { return };
        for claim in &mut claims[from..] {
            (claim.measured, claim.holds) = (String::new(), None);
        }
        let claim = format!("{of}: runs to its end");
        claims.push(Claim { claim, measured: why.to_owned(), holds: Some(false) });
    }

    fn judged(claim: String, value: Option<f64>, judge: impl Fn(f64) -> bool) -> Claim {
        Claim {
            claim,
            measured: value.map(|value| format!("{value:.3}")).unwrap_or_default(),
            holds: value.map(judge),
        }
    }

    /// Adds a remark to what was measured.
    #[must_use]
    pub fn remark(mut self, remark: &str) -> Claim {
        if self.holds.is_some() && !remark.is_empty() {
            self.measured = format!("{} ({remark})", self.measured);
        }
        self
    }

    /// One word for it.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "not measured",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: of a target that stopped before its end nothing is said to hold, and that is said; others keep what they have. Method: claims of
    // two targets, of which the second stops.
    #[test]
    fn what_stopped_holds_nothing() {
        let claim = |of: &str| Claim::at_most(format!("{of}: at most 2"), Some(1.0), 2.0);
        let mut claims = vec![claim("first")];
        Claim::stopped(&mut claims, 0, "first", None);
        claims.extend([claim("second"), claim("second")]);
        Claim::stopped(&mut claims, 1, "second", Some("at loop 3: no space"));
        let verdicts: Vec<_> = claims.iter().map(Claim::verdict).collect();
        assert_eq!(verdicts, ["holds", "not measured", "not measured", "DOES NOT HOLD"]);
        assert_eq!(claims[3].measured, "at loop 3: no space");
    }
}
