//! What a copy has done so far, and what went wrong on the way.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::names::Shown;
use crate::progress::Progress;
use crate::size::show_size;

/// Problems kept for `--json`; all of them are counted and said on standard error.
const PROBLEMS_MAX: usize = 1000;

/// What becomes of the copy after something went wrong.
pub enum Trouble {
    /// This entry is left out, and the rest goes on.
    Entry(String),
    /// Nothing more can be copied.
    Fatal(anyhow::Error),
    /// Somebody wants it to end ([`super::Stop`]): this entry is left out, and that is no error of it.
    Stopped,
}

impl From<rustix::io::Errno> for Trouble {
    fn from(errno: rustix::io::Errno) -> Trouble {
        Trouble::Entry(std::io::Error::from(errno).to_string())
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::Entry(error.to_string())
    }
}

/// One entry that could not be copied.
#[derive(Serialize, Debug)]
pub struct Problem {
    path: String,
    error: String,
}

/// The report of `--json`.
#[derive(Serialize, Debug)]
pub struct Summary {
    from: String,
    to: String,
    /// Everything was gone through and is durable, whatever went wrong with single entries.
    pub finished: bool,
    pub entries_count: u64,
    pub directories_count: u64,
    pub files_copied_count: u64,
    pub files_equal_count: u64,
    pub hard_links_count: u64,
    pub symlinks_count: u64,
    pub nodes_count: u64,
    pub data_bytes: u64,
    pub attributes_changed_count: u64,
    pub xattrs_left_out_count: u64,
    pub flags_left_out_count: u64,
    pub filesystems_left_out_count: u64,
    pub errors_count: u64,
    errors: Vec<Problem>,
    elapsed_ns: u64,
}

/// The summary as it grows, and who watches it.
pub struct Tally {
    /// `import` or `export`.
    verb: &'static str,
    pub summary: Summary,
    pub progress: Progress,
    started: Instant,
}

impl Tally {
    /// Nothing is done yet.
    pub fn start(verb: &'static str, from: String, to: String) -> Tally {
        let summary = Summary {
            from,
            to,
            finished: false,
            entries_count: 0,
            directories_count: 0,
            files_copied_count: 0,
            files_equal_count: 0,
            hard_links_count: 0,
            symlinks_count: 0,
            nodes_count: 0,
            data_bytes: 0,
            attributes_changed_count: 0,
            xattrs_left_out_count: 0,
            flags_left_out_count: 0,
            filesystems_left_out_count: 0,
            errors_count: 0,
            errors: Vec::new(),
            elapsed_ns: 0,
        };
        Tally { verb, summary, progress: Progress::start(), started: Instant::now() }
    }

    /// Another entry has been dealt with.
    pub fn entry(&mut self) {
        self.summary.entries_count += 1;
        self.progress.at(self.summary.entries_count, self.summary.data_bytes);
    }

    /// `len` more bytes of contents have been copied.
    pub fn data(&mut self, len: u64) {
        self.summary.data_bytes += len;
        self.progress.at(self.summary.entries_count, self.summary.data_bytes);
    }

    /// An entry could not be copied.
    pub fn problem(&mut self, path: &Path, error: String) {
        let path = path.shown();
        self.progress.say(&format!("varve {}: {path}: {error}", self.verb));
        self.summary.errors_count += 1;
        if self.summary.errors.len() < PROBLEMS_MAX {
            self.summary.errors.push(Problem { path, error });
        }
    }

    /// The end: no more progress is shown.
    pub fn end(mut self, finished: bool) -> Summary {
        self.progress.end();
        self.summary.finished = finished;
        self.summary.elapsed_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.summary
    }
}

impl Summary {
    /// For people.
    pub fn describe(&self, verb: &'static str) -> String {
        let seconds = self.elapsed_ns as f64 / 1e9;
        let counted =
            |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        let mut parts = vec![
            format!(
                "{} copied ({})",
                counted(self.files_copied_count, "file", "files"),
                show_size(self.data_bytes)
            ),
            counted(self.directories_count, "directory", "directories"),
        ];
        for (count, one, many) in [
            (self.files_equal_count, "file that was there already", "files that were there already"),
            (self.hard_links_count, "hard link", "hard links"),
            (self.symlinks_count, "symbolic link", "symbolic links"),
            (self.nodes_count, "other node", "other nodes"),
        ] {
            if count > 0 {
                parts.push(counted(count, one, many));
            }
        }
        let parts = parts.join(", ");
        let begun = if self.finished { "" } else { "not finished: " };
        let mut text = format!("{begun}{verb} {} to {}: {parts}, in {seconds:.1} s\n", self.from, self.to);
        if self.xattrs_left_out_count > 0 {
            text.push_str(&format!(
                "{} extended attributes were left out: {}\n",
                self.xattrs_left_out_count, "the target does not take them from this user, or not at all"
            ));
        }
        if self.flags_left_out_count > 0 {
            let whose = counted(self.flags_left_out_count, "file or directory", "files and directories");
            text.push_str(&format!(
                "flags (chattr) of {whose} were left out: the target does not take them from this user, or not at all\n"
            ));
        }
        if self.filesystems_left_out_count > 0 {
            text.push_str(&format!(
                "what lies on {} was left out (-x)\n",
                counted(self.filesystems_left_out_count, "other filesystem", "other filesystems")
            ));
        }
        match self.errors_count {
            0 => {}
            1 => text.push_str("1 entry could not be copied; see the message above\n"),
            count => text.push_str(&format!("{count} entries could not be copied; see the messages above\n")),
        }
        text
    }
}
