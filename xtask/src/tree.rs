//! The files of the project, as the checks read them: those git tracks, with their text.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{output, root};

/// A tracked file of text.
pub struct Source {
    /// Path from the workspace, with `/`.
    pub path: String,
    /// What it says.
    pub text: String,
}

impl Source {
    /// The crate it belongs to: the directory under `crates/`.
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Whether it is compiled into the crate itself rather than into its tests, benches or examples.
    pub fn is_product(&self) -> bool {
        self.path.ends_with(".rs") && self.path.contains("/src/") && !self.is_test()
    }

    /// Whether the whole file is test code.
    pub fn is_test(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "examples"))
            || self.path.ends_with("_tests.rs")
    }
}

/// Every tracked file that is text and still exists. Files git does not know yet are not the project's.
pub fn tracked() -> Result<Vec<Source>> {
    let root = root();
    let list = output(Command::new("git").args(["ls-files", "-z"]).current_dir(&root))
        .context("the checks read the files that git tracks, and git did not answer")?;
    let mut files = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        let Ok(bytes) = fs::read(root.join(path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(Source { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

/// The text of a file of the workspace, empty if it is not there.
pub fn text_of(path: impl AsRef<Path>) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// The lines of Rust text outside comments and outside `#[cfg(test)]` modules, numbered from 1. Reads text, not
/// syntax: good enough for code that rustfmt has laid out.
pub fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_tests = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        // A test module comes last in a file and starts at the left edge.
        in_tests |= line == "#[cfg(test)]";
        let code = line.split("//").next().unwrap_or_default();
        (!in_tests && !code.trim().is_empty()).then_some((index + 1, code))
    })
}
