//! What a person sees while a tree is copied, or a pool checked: a line on the terminal that says how far it is.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::size::show_size;

/// The line. Without a terminal there is none.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Begins, with nothing done and the end not known.
    pub fn start() -> Progress {
        Progress::start_as("{spinner} {human_pos} entries, {msg}, {per_sec}, {elapsed}")
    }

    /// The same, for steps ([`Progress::at_step`]).
    pub fn start_steps() -> Progress {
        Progress::start_as("{spinner} {msg}, {elapsed}")
    }

    fn start_as(template: &str) -> Progress {
        let target =
            if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style(template));
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar }
    }

    /// Whether anybody sees it.
    pub fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Tells how many entries there will be.
    pub fn expect(&self, entries: u64) {
        self.bar.set_style(style(
            "{bar:30} {human_pos} of {human_len} entries, {msg}, {per_sec}, {elapsed}, about {eta} to go",
        ));
        self.bar.set_length(entries.max(self.bar.position()));
    }

    /// `entries` are done so far, and `bytes` of contents in them.
    pub fn at(&self, entries: u64, bytes: u64) {
        if self.is_shown() {
            self.bar.set_position(entries);
            self.bar.set_message(show_size(bytes));
        }
    }

    /// So many of something are done, of so many; 0: nobody knows.
    pub fn at_step(&self, what: &str, done: u64, of: u64) {
        let of_all = match of {
            0 => String::new(),
            _ => format!(" of {} ({}%)", HumanCount(of), 100 * u128::from(done) / u128::from(of)),
        };
        self.bar.set_message(format!("{}{of_all} {what}", HumanCount(done)));
    }

    /// Everything in front of this byte is done, of so many.
    pub fn at_byte(&self, position: u64, end: u64) {
        if self.is_shown() {
            self.bar.set_style(style("{bar:30} {binary_bytes} of {binary_total_bytes} looked at, {elapsed}"));
            self.bar.set_length(end);
            self.bar.set_position(position);
        }
    }

    /// Says something while nothing else moves.
    pub fn note(&self, text: &'static str) {
        self.bar.set_message(text);
    }

    /// A line on standard error, above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| crate::tell(line));
    }

    /// Takes the line away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates here are well formed")
}
