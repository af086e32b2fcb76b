//! The lab: classic filesystem experiments, run alike on VarveFS and on the kernel's filesystems.
//!
//! A [`target::Target`] is something that stores files, on a disk of the lab's own making ([`disk`]). An experiment runs
//! one load on all targets in turn, again and again, counts at the block layer what reached each disk ([`counters`]) so
//! that no filesystem reports about itself, and fills a [`Report`]: tables, plots, and the claims it checks, beside what
//! the bare device can do. [`output`] shows it on a terminal, as JSON and as one HTML page.
//!
//! Everything the lab makes (loop devices, mounts, files) belongs to a guard that takes it away again, on errors, panics
//! and interrupts too. The lab knows VarveFS by its public library, its program and the mount's verbs, never by the engine.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod aging;
pub mod commit;
pub mod counters;
pub mod disk;
pub mod floor;
pub mod guard;
pub mod large;
pub mod load;
pub mod machine;
pub mod numbers;
pub mod options;
pub mod output;
pub mod report;
pub mod target;
mod tool;

pub use options::{Medium, Options, Scale};
pub use report::Report;

/// Says something on standard error. If nobody can be told, nothing ends for it: neither a run, nor what takes away what it has made.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "lab: {text}");
}
