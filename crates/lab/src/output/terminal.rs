//! A report as plain text with tables.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table as Grid};

use crate::Report;
use crate::report::Table;

/// The whole report but its raw figures.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = format!("{}: {}\n\n", report.experiment, report.summary);
    for (name, value) in super::facts(report) {
        out.push_str(&format!("{name:>20}: {value}\n"));
    }
    for (name, about) in &report.targets {
        out.push_str(&format!("{name:>20}: {about}\n"));
    }
    for (name, why) in &report.skipped {
        out.push_str(&format!("{name:>20}: NOT RUN: {why}\n"));
    }
    for table in &report.tables {
        out.push_str(&format!("\n{}\n{}\n", table.title, grid(table)));
    }
    if !report.claims.is_empty() {
        out.push('\n');
        for claim in &report.claims {
            let measured = if claim.measured.is_empty() { "-" } else { &claim.measured };
            out.push_str(&format!("{:>13}  {}: {measured}\n", claim.verdict(), claim.claim));
        }
    }
    out
}

fn grid(table: &Table) -> Grid {
    let mut grid = Grid::new();
    grid.load_preset(UTF8_HORIZONTAL_ONLY).set_header(&table.columns).add_rows(&table.rows);
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    grid
}
