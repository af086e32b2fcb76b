//! How a report looks: on a terminal, as JSON, as one HTML page that needs nothing from elsewhere.

mod html;
mod svg;
mod terminal;

pub use html::page;
pub use terminal::text;

use anyhow::Result;

use crate::Report;

/// The report as JSON, indented, with a newline at the end.
pub fn json(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// What stands above everything else: name and value.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let from = &report.provenance;
    let mut facts = vec![
        ("command", from.command.clone()),
        ("scale", report.scale.to_owned()),
        ("commit", format!("{} ({})", from.commit, from.build)),
        ("machine", format!("{}, {} MiB of memory", from.machine, from.memory_bytes >> 20)),
        ("kernel", from.kernel.clone()),
        ("disk of each target", report.disk.clone()),
    ];
    if let Some(ceiling) = &report.ceiling {
        let figures = format!(
            "{:.0} x (16 KiB write + flush)/s, {:.0} MiB/s in a row",
            ceiling.flushed_writes_per_s, ceiling.sequential_mib_per_s
        );
        facts.push(("raw device ceiling", figures));
    }
    facts
}
