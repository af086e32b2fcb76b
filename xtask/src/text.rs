//! What no file of the project may contain, and how long a file may be.

use crate::tree::{Source, code_lines};

/// Longest file before it is worth splitting, in lines.
const LINES_MAX: usize = 700;

/// Beginnings of paths that exist on one person's machine only. Put together here so that this file is clean too.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("/tmp/", "target"),
];

/// Hosts a tracked file may name.
const HOSTS: &[&str] = &["www.apache.org", "www.sqlite.org", "docs.kernel.org", "doc.rust-lang.org"];
/// The one source that the lock file names.
const LOCK_SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Marks of work not done, again in two pieces.
const MARKERS: &[&str] =
    &[concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("FIX", "ME"), concat!("XX", "X")];

/// Allowances that hide more than they explain.
const BLANKET: &[&str] = &["allow(dead_code", "allow(unused", "allow(clippy::all", "allow(warnings"];

/// What was found, by how much it matters.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Findings {
    /// May never be committed.
    pub errors: Vec<String>,
    /// Work under way: commits may have it, the gate may not.
    pub unfinished: Vec<String>,
    /// Worth a look.
    pub warnings: Vec<String>,
}

/// Reads every file.
pub fn problems(files: &[Source]) -> Findings {
    let mut errors = Vec::new();
    let mut unfinished = Vec::new();
    let mut warnings = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let place = format!("{}:{}", file.path, index + 1);
            if let Some(path) = MACHINE_PATHS.iter().find(|path| names_path(line, path)) {
                errors.push(format!("{place}: `{path}` is a path of one machine"));
            }
            if let Some(host) = foreign_host(line) {
                errors.push(format!("{place}: names the host {host}; see HOSTS in xtask/src/text.rs"));
            }
        }
        if !file.path.ends_with(".rs") {
            continue;
        }
        let own = file.path == "xtask/src/text.rs";
        for (index, line) in file.text.lines().enumerate() {
            let place = format!("{}:{}", file.path, index + 1);
            if let Some(marker) = MARKERS.iter().find(|marker| line.contains(**marker)) {
                unfinished.push(format!(
                    "{place}: `{marker}`: unfinished work is named in docs/status.md, not left in the code"
                ));
            }
            if !own && BLANKET.iter().any(|blanket| line.contains(blanket)) {
                unfinished.push(format!("{place}: a blanket allow; name the one lint and give the reason"));
            }
        }
        if file.is_product() {
            for (number, code) in code_lines(&file.text) {
                if code.contains(concat!(".unw", "rap()")) {
                    warnings.push(format!(
                        "{}:{number}: unwrap outside tests: say why it cannot fail",
                        file.path
                    ));
                }
            }
            if !file.text.starts_with("//!") && !file.path.ends_with("/main.rs") {
                warnings.push(format!("{}: does not open with what it is for", file.path));
            }
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            warnings.push(format!(
                "{}: {lines} lines, more than {LINES_MAX}: it has more than one subject",
                file.path
            ));
        }
    }
    Findings { errors, unfinished, warnings }
}

/// Whether `line` names an absolute path that begins with `path`, rather than one that merely contains it.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at]
            .ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '*' | '/'))
    })
}

/// A host named in `line` that is not one of [`HOSTS`].
fn foreign_host(line: &str) -> Option<&str> {
    if line.contains(LOCK_SOURCE) {
        return None;
    }
    line.split("://").skip(1).find_map(|rest| {
        let host = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-').next()?;
        (host.contains('.') && !HOSTS.contains(&host)).then_some(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each rule can fail. Method: one planted line for every rule, built so that this file stays clean.
    #[test]
    fn planted_offences_are_found() {
        let check = |path: &str, text: String| problems(&[Source { path: path.to_owned(), text }]);
        for offence in [
            format!("see {}someone/notes\n", MACHINE_PATHS[0]),
            format!("https:{}\n", "//mirror.example.com/index"),
        ] {
            assert_eq!(check("docs/a.md", offence.clone()).errors.len(), 1, "{offence}");
        }
        for marker in MARKERS {
            assert_eq!(
                check("crates/fs/src/a.rs", format!("//! A.\n{marker}\n")).unfinished.len(),
                1,
                "{marker}"
            );
        }
        assert_eq!(check("crates/fs/src/a.rs", "//! A.\nx.unwrap();\n".to_owned()).warnings.len(), 1);
        assert_eq!(check("crates/fs/src/a.rs", "fn a() {}\n".to_owned()).warnings.len(), 1);
        assert_eq!(
            check("crates/fs/src/a.rs", format!("//! A.\n{}", "\n".repeat(LINES_MAX))).warnings.len(),
            1
        );
        assert_eq!(
            check("docs/a.md", "mnt/home/x and https://www.apache.org/licenses\n".to_owned()),
            Findings::default()
        );
    }
}
