//! Which crate may use which, and inside the engine which module may use which.
//!
//! Cargo refuses cycles; this refuses the arrows that point the wrong way without being a cycle. DESIGN.md, "The
//! shape", says why each layer must not know what is above it.

use crate::tree::{Source, code_lines};

/// The crates from the bottom up: each may use only those before it.
const ORDER: &[&str] =
    &["format", "device", "sim", "engine", "fs", "mount", "varvefs", "lab", "cli", "torture", "tests"];

/// Crates for tests and the lab: no other crate may depend on them outside `[dev-dependencies]`, unless behind a
/// feature that is off in a program built for use.
const TEST_ONLY: &[&str] = &["sim", "torture"];
/// Who may all the same.
const TEST_USERS: &[&str] = &["torture", "lab"];

/// Arrows that the order would allow and the design does not.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("device", "format", "a device moves bytes and knows nothing of what they mean"),
    ("mount", "engine", "the mount decodes, calls fs and replies"),
    ("mount", "format", "the mount decodes, calls fs and replies"),
    ("cli", "engine", "the program speaks to fs and mount"),
];

/// Modules of a crate, and the sibling modules they must not name.
const MODULES: &[(&str, &str, &[&str])] = &[
    ("engine", "pool", &["checkpoint", "core", "journal", "space", "tree", "version"]),
    ("engine", "journal", &["tree", "version"]),
    ("engine", "space", &["core", "journal", "tree", "version"]),
    ("engine", "tree", &["checkpoint", "core", "journal", "space", "store", "version"]),
    ("engine", "checkpoint", &["version"]),
    // Versions are a client of the store's door, like fs.
    ("engine", "version", &["checkpoint", "core", "journal", "pool", "space", "tree"]),
    ("fs", "table", &["ops", "writeback", "check", "snapshot"]),
];

/// Words that belong to one layer alone: (word, where it may appear, why).
const CONFINED: &[(&str, &[&str], &str)] = &[
    (
        "Errno",
        &[
            "crates/fs/src/error.rs",
            "crates/mount/",
            "crates/device/",
            "crates/sim/",
            "crates/cli/",
            "crates/torture/",
        ],
        "errno appears at the boundary only: fs/error.rs and mount (and where the system gives it to us)",
    ),
    (
        "zerocopy::",
        &["crates/mount/src/kernel/", "crates/fs/src/known.rs"],
        "the kernel's structures are the transport's own business (and a table of zeros takes memory as it is touched)",
    ),
    (
        "io_uring::",
        &["crates/device/", "crates/mount/src/kernel/ring.rs"],
        "how bytes reach a device is the device's own business, and how the kernel's requests come the transport's",
    ),
];

/// Everything that points the wrong way, one sentence each.
pub fn problems(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let mut optional = Vec::new();
    for file in files {
        if file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml") {
            manifest(file, &mut optional, &mut found);
        }
    }
    for file in files {
        if file.path.starts_with("crates/") && file.is_product() {
            crate_uses(file, &optional, &mut found);
            module_uses(file, &mut found);
            words(file, &mut found);
        }
    }
    found
}

fn rank(name: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == name)
}

/// Why `from` may not use `to` in the product itself, if it may not.
fn refusal(from: &str, to: &str) -> Option<String> {
    let (Some(lower), Some(upper)) = (rank(to), rank(from)) else {
        return Some(format!(
            "{from} or {to} has no place in the order of the layers (xtask/src/layering.rs)"
        ));
    };
    if lower >= upper {
        return Some(format!("{to} lies above {from}"));
    }
    if TEST_ONLY.contains(&to) && !TEST_USERS.contains(&from) {
        return Some(format!("{to} is for tests and the lab: [dev-dependencies] only"));
    }
    FORBIDDEN.iter().find(|(f, t, _)| *f == from && *t == to).map(|(_, _, why)| (*why).to_owned())
}

/// (crate, test crate) for test crates behind a feature: a program built for use does not contain them.
type Optional = Vec<(String, String)>;

fn manifest(file: &Source, optional: &mut Optional, found: &mut Vec<String>) {
    let Some(from) = file.crate_name() else { return };
    if rank(from).is_none() {
        found.push(format!("{}: {from} has no place in the order of the layers", file.path));
        return;
    }
    let mut section = "";
    for line in file.text.lines() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let Some(rest) = line.strip_prefix("varve-") else { continue };
        let to: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        // Tests stand above everything, so dev-dependencies may point anywhere.
        if section == "[dev-dependencies]" {
            continue;
        }
        if rest.contains("\"internals\"") {
            found.push(format!(
                "{}: what is inside varve-{to} is for tests: [dev-dependencies] only",
                file.path
            ));
        }
        if TEST_ONLY.contains(&to.as_str()) && rest.contains("optional = true") {
            optional.push((from.to_owned(), to));
            continue;
        }
        if let Some(why) = refusal(from, &to) {
            found.push(format!("{}: depends on varve-{to}: {why}", file.path));
        }
    }
}

fn crate_uses(file: &Source, optional: &Optional, found: &mut Vec<String>) {
    let Some(from) = file.crate_name() else { return };
    for (number, code) in code_lines(&file.text) {
        for piece in code.split("varve_").skip(1) {
            let to: String = piece.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            if to == from || !piece[to.len()..].starts_with([':', ';', ' ']) || rank(&to).is_none() {
                continue;
            }
            if optional.iter().any(|(user, used)| user == from && *used == to) {
                continue;
            }
            if let Some(why) = refusal(from, &to) {
                found.push(format!("{}:{number}: uses varve_{to}: {why}", file.path));
            }
        }
    }
}

fn module_uses(file: &Source, found: &mut Vec<String>) {
    for (krate, module, banned) in MODULES {
        let dir = format!("crates/{krate}/src/{module}");
        if file.path != format!("{dir}.rs") && !file.path.starts_with(&format!("{dir}/")) {
            continue;
        }
        for (number, code) in code_lines(&file.text) {
            for other in *banned {
                let names = [format!("crate::{other}::"), format!("crate::{other};")];
                if names.iter().any(|name| code.contains(name.as_str())) {
                    found.push(format!("{}:{number}: {module} must know nothing of {other}", file.path));
                }
            }
        }
    }
}

fn words(file: &Source, found: &mut Vec<String>) {
    for (word, places, why) in CONFINED {
        if places.iter().any(|place| file.path.starts_with(place)) {
            continue;
        }
        for (number, code) in code_lines(&file.text) {
            if code.contains(word) {
                found.push(format!("{}:{number}: `{word}` has no business here: {why}", file.path));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Goal: each rule can fail. Method: one planted offence for every kind of rule, and beside it the same arrow
    /// where it is allowed.
    #[test]
    fn planted_offences_are_found() {
        let bad = [
            file("crates/format/Cargo.toml", "[dependencies]\nvarve-engine.workspace = true\n"),
            file("crates/fs/Cargo.toml", "[dependencies]\nvarve-sim.workspace = true\n"),
            file("crates/cli/Cargo.toml", "[dependencies]\nvarve-torture.workspace = true\n"),
            file("crates/cli/src/main.rs", "use varve_sim::Recorder;\n"),
            file("crates/stray/Cargo.toml", "[dependencies]\n"),
            file("crates/engine/src/lib.rs", "use varve_fs::Filesystem;\n"),
            file("crates/mount/src/lib.rs", "use varve_engine::Store;\n"),
            file("crates/engine/src/journal/mod.rs", "use crate::tree::Node;\n"),
            file("crates/engine/src/version/read.rs", "use crate::space::Allocator;\n"),
            file("crates/fs/src/ops/write.rs", "return Errno::NOSPC;\n"),
            file("crates/mount/Cargo.toml", "varve-fs = { workspace = true, features = [\"internals\"] }\n"),
        ];
        for offence in &bad {
            assert_eq!(problems(std::slice::from_ref(offence)).len(), 1, "{} went unnoticed", offence.path);
        }
        let good = [
            file("crates/fs/Cargo.toml", "[dev-dependencies]\nvarve-sim.workspace = true\n"),
            file("crates/torture/Cargo.toml", "[dependencies]\nvarve-sim.workspace = true\n"),
            file(
                "crates/cli/Cargo.toml",
                "[dependencies]\nvarve-sim = { workspace = true, optional = true }\n",
            ),
            file("crates/cli/src/record.rs", "use varve_sim::Recorder;\n"),
            file("crates/engine/src/store.rs", "use crate::tree::Node;\nuse varve_device::Device;\n"),
            file("crates/engine/src/journal/mod.rs", "// crate::tree::Node is none of our business\n"),
            file("crates/engine/src/lib.rs", "#[cfg(test)]\nmod tests { use varve_sim::Recorder; }\n"),
            file("crates/fs/src/error.rs", "return Errno::NOSPC;\n"),
        ];
        assert_eq!(problems(&good), Vec::<String>::new());
    }
}
