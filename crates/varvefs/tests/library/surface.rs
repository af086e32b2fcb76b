//! The public surface names nothing of the crates below.
//!
//! The rule that makes this checkable: in this crate the crates below are always written out (`varve_fs::…`), never
//! imported, renamed or aliased. Then a public signature or trait implementation that leaks one of their types says so.

use std::fs;
use std::path::{Path, PathBuf};

/// Traits whose implementations for a public type, with a type of the crates below inside, would be public as well.
const LEAKY_TRAITS: &[&str] = &["From<varve_", "TryFrom<varve_", "AsRef<varve_", "Deref<Target = varve_"];
/// Types of this crate that are not public, so that such implementations for them are not either.
const PRIVATE_TYPES: &[&str] = &["Fault"];

/// Every leak in one file, as the offending text.
fn leaks(text: &str) -> Vec<String> {
    let code: String = text
        .split("#[cfg(test)]")
        .next()
        .unwrap()
        .lines()
        .map(|line| line.split("//").next().unwrap())
        .collect::<Vec<_>>()
        .join("\n");
    let mut found = Vec::new();
    for line in code.lines().map(str::trim) {
        let imports = line.starts_with("use varve_") || line.starts_with("extern crate varve_");
        let aliases = line.starts_with("type ") && line.contains("varve_");
        let implements = line.starts_with("impl")
            && LEAKY_TRAITS.iter().any(|leaky| line.contains(leaky))
            && !PRIVATE_TYPES.iter().any(|private| line.contains(&format!("for {private}")));
        if imports || aliases || implements {
            found.push(line.to_owned());
        }
    }
    for (at, _) in code.match_indices("pub ") {
        let item = &code[at..];
        let kind = item.split_whitespace().nth(1).unwrap_or_default();
        let end = match kind {
            // All of an enum is public, and of a trait.
            "enum" | "trait" => item.find("\n}").unwrap_or(item.len()),
            // A struct's fields say for themselves whether they are, unless it is a tuple.
            "struct" => item.find(['{', ';']).unwrap_or(item.len()),
            "fn" | "const" | "static" | "use" | "type" | "mod" | "async" => {
                item.find(['{', ';']).unwrap_or(item.len())
            }
            // A field.
            _ => item.find([',', '}']).unwrap_or(item.len()),
        };
        let item = &item[..end];
        if item.contains("varve_") {
            found.push(item.to_owned());
        }
    }
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut paths = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { directories.push(path) } else { paths.push(path) }
        }
    }
    for path in paths {
        assert!(path.extension().is_some_and(|extension| extension == "rs"), "{path:?} is not looked into");
        sources.push((path.clone(), fs::read_to_string(&path).unwrap()));
    }
    sources
}

// Goal: no type of the crates below is part of the library's interface. Method: read the text of every source file.
// Private structs with `pub` fields are read as if they were public only where they are declared `pub struct`.
#[test]
fn nothing_of_the_crates_below_leaks() {
    let sources = sources();
    assert!(sources.len() > 10);
    for (path, text) in sources {
        // Fields of structs that are `pub(crate)` themselves are not public, whatever they say, nor what traits call theirs.
        let name = |rest: &str| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
        let hidden: Vec<String> =
            text.lines().filter_map(|l| l.strip_prefix("pub(crate) struct ")).map(name).collect();
        let mut public = String::new();
        let mut private = false;
        for line in text.lines() {
            private |= line.starts_with("pub(crate) struct") || line.starts_with("struct");
            let of =
                line.split_once(" for ").filter(|_| line.starts_with("impl")).map(|(_, rest)| name(rest));
            if of.is_some_and(|of| hidden.contains(&of)) {
                private = true;
                continue;
            }
            if !private || !["pub ", "type "].iter().any(|word| line.trim_start().starts_with(word)) {
                public.push_str(line);
                public.push('\n');
            }
            private &= line != "}" && !line.ends_with(';');
        }
        assert_eq!(leaks(&public), [""; 0], "{}", path.display());
    }
}

// Goal: the search can find. Method: one planted leak of every kind, and what is not one.
#[test]
fn planted_leaks_are_found() {
    for leak in [
        "pub fn a(&self) -> varve_fs::Attr {",
        "    pub fn a(\n        x: u8,\n        ino: varve_fs::InodeId,\n    ) -> u8 {",
        "pub struct A(pub varve_fs::Attr);",
        "pub struct A {\n    pub x: u8,\n    pub attr: varve_fs::Attr,\n}",
        "pub enum A {\n    One,\n    Two(varve_engine::EngineError),\n}",
        "pub use varve_fs::Attr;",
        "pub type A = varve_fs::Attr;",
        "pub const A: varve_fs::InodeId = x;",
        "use varve_fs::Attr;",
        "type A = varve_fs::Attr;",
        "impl From<varve_fs::FsError> for Error {",
        "pub trait A {\n    fn a() -> varve_fs::Attr;\n}",
    ] {
        assert!(!leaks(leak).is_empty(), "went unnoticed: {leak}");
    }
    for fine in [
        "pub fn a(&self) -> u8 {\n    varve_fs::b()\n}",
        "pub(crate) fn a() -> varve_fs::Attr {",
        "pub struct A {\n    x: varve_fs::Attr,\n}",
        "impl From<varve_fs::FsError> for Fault {",
        "impl varve_fs::Clock for Clock {",
        "// pub fn a() -> varve_fs::Attr",
    ] {
        assert_eq!(leaks(fine), [""; 0], "{fine}");
    }
}
