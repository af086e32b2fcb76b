//! `--json` of every command against docs/json.md, which says what each key means.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Mount, Scratch, can_mount, output, succeed, varve};
use crate::look::keys;

/// The keys of a page by its headings of the second level.
fn documented(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut sections: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut heading = String::new();
    for line in page.lines() {
        if let Some(words) = line.strip_prefix("## ") {
            words.clone_into(&mut heading);
        }
        if let Some((key, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) {
            sections.entry(heading.clone()).or_default().insert(key.to_owned());
        }
    }
    sections
}

/// Whether a key is in a page: as it is, as one that may follow what is above it, or as a name that differs.
fn is_documented(key: &str, page: &BTreeSet<String>) -> bool {
    let differs = |known: &String| known.strip_suffix('*').is_some_and(|above| key.starts_with(above));
    let follows = |(above, last): (&str, &str)| page.contains(above) && page.contains(&format!("...{last}"));
    page.contains(key) || page.iter().any(differs) || key.rsplit_once('.').is_some_and(follows)
}

struct Pages(BTreeMap<String, BTreeSet<String>>);

impl Pages {
    fn new() -> Pages {
        let mut sections = documented(include_str!("../../../../docs/json.md"));
        let inode = documented(include_str!("../../../../docs/inspect.md"));
        let records = sections.get_mut("Records").expect("a section");
        records.extend(inode.values().flatten().map(|key| format!("...{key}")));
        Pages(sections)
    }

    fn section(&self, names: &[&str]) -> BTreeSet<String> {
        names
            .iter()
            .flat_map(|name| self.0.get(*name).unwrap_or_else(|| panic!("no section {name}")).clone())
            .collect()
    }

    /// Every key of `said` is in one of the sections; gives the keys.
    fn hold(&self, said: &str, names: &[&str]) -> BTreeSet<String> {
        let value: Value =
            serde_json::from_str(said).unwrap_or_else(|error| panic!("{names:?}: {error}\n{said}"));
        let mut found = BTreeSet::new();
        keys(&value, "", &mut found);
        let page = self.section(names);
        let missing: Vec<&String> = found.iter().filter(|key| !is_documented(key, &page)).collect();
        assert!(missing.is_empty(), "docs/json.md, {names:?}, does not say what these are: {missing:?}");
        found
    }
}

/// What `varve check --json` prints of a copy of the pool that has its newest superblock in one slot, as a crash leaves it.
fn check_of_one_slot(pool: &Path, copy: &Path) -> String {
    fs::copy(pool, copy).expect("a copy of a small pool");
    let seen = succeed(varve(&["inspect", "--json"]).arg(copy).arg("superblock"));
    let seen: Value = serde_json::from_str(&seen).expect("JSON");
    let slots = seen["slots"].as_array().expect("slots");
    let slot = slots.iter().find(|slot| slot["generation"] == seen["newest"]["generation"]).expect("a slot");
    let file = fs::File::options().write(true).open(copy).expect("our own copy");
    let at = slot["offset"].as_str().and_then(|at| u64::from_str_radix(at.strip_prefix("0x")?, 16).ok());
    file.write_all_at(&[0; 4096], at.expect("a place")).expect("a write");
    let out = output(varve(&["check", "--json"]).arg(copy));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("warning: the newest superblock of"), "{said}");
    let printed: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let warnings = printed["warnings"].as_array().expect("a list");
    let told =
        warnings.iter().filter_map(Value::as_str).filter(|text| text.contains("stands in one slot only"));
    assert_eq!((told.count(), warnings.len()), (1, 1), "{warnings:?}");
    printed.to_string()
}

/// Goal: every key that a command prints for an unmounted pool is explained, and what is explained of `create`, `import` and
/// `check` is printed. Method: each command, one import with an entry that cannot be copied, a check of what is no pool.
#[test]
fn keys_of_unmounted_pools_are_documented() {
    let pages = Pages::new();
    let scratch = Scratch::new("json");
    let pool = scratch.path("pool");
    let created = succeed(varve(&["create", "--json", "--size", "64M"]).arg(&pool));
    assert_eq!(pages.hold(&created, &["varve create"]), pages.section(&["varve create"]));
    let (tree, clash) = (scratch.subdir("tree"), scratch.subdir("clash"));
    fs::create_dir(tree.join("name")).expect("a directory");
    fs::write(tree.join("large"), vec![7; 100_000]).expect("a file");
    std::os::unix::fs::symlink("large", tree.join("link")).expect("a link");
    fs::write(clash.join("name"), "a file").expect("a file");
    let place = format!("{}:/", pool.display());
    let text = |command: &mut std::process::Command| String::from_utf8(output(command).stdout).expect("text");
    let mut copied = pages
        .hold(&text(varve(&["import", "--json"]).arg(&tree).arg(&place)), &["varve import, varve export"]);
    copied.extend(
        pages.hold(
            &text(varve(&["import", "--json"]).arg(&clash).arg(&place)),
            &["varve import, varve export"],
        ),
    );
    assert_eq!(copied, pages.section(&["varve import, varve export"]));
    pages.hold(
        &text(varve(&["export", "--json"]).arg(&place).arg(scratch.path("out"))),
        &["varve import, varve export"],
    );
    let trimmed = succeed(varve(&["trim", "--json"]).arg(&pool));
    assert_eq!(pages.hold(&trimmed, &["varve trim"]), pages.section(&["varve trim"]));
    let mut checked = pages.hold(&text(varve(&["check", "--json"]).arg(&pool)), &["varve check"]);
    checked.extend(pages.hold(&text(varve(&["check", "--json"]).arg(tree.join("large"))), &["varve check"]));
    checked.extend(pages.hold(&check_of_one_slot(&pool, &scratch.path("torn")), &["varve check"]));
    let unseen: Vec<String> = pages.section(&["varve check"]).difference(&checked).cloned().collect();
    assert!(unseen.iter().all(|key| key.starts_with("problems[].files[].")), "{unseen:?}");
    let inspect = |words: &[&str]| succeed(varve(&["inspect", "--json"]).arg(&pool).args(words));
    pages.hold(&inspect(&[]), &["varve inspect"]);
    pages.hold(&inspect(&["superblock"]), &["varve inspect superblock"]);
    pages.hold(&inspect(&["roots"]), &["varve inspect roots"]);
    pages.hold(&inspect(&["ring"]), &["varve inspect ring"]);
    let roots: Value = serde_json::from_str(&inspect(&["roots"])).expect("JSON");
    for tree in roots["trees"].as_array().expect("trees") {
        let name = tree["tree"].as_str().expect("a name");
        pages.hold(&inspect(&["tree", name]), &["varve inspect tree", "Records"]);
        if let Some(address) = tree["addrs"][0].as_str() {
            pages.hold(&inspect(&["node", address]), &["varve inspect node", "Records"]);
        }
    }
}

/// Goal: the same of what needs a mount: versions of files and subvolumes, and a log that has not been checkpointed. Method:
/// snapshots and a clone, changed in every way, looked at while they are mounted.
#[test]
fn keys_of_mounted_pools_are_documented() {
    if !can_mount("keys_of_mounted_pools_are_documented") {
        return;
    }
    let pages = Pages::new();
    let scratch = Scratch::new("json-mounted");
    let pool = scratch.pool("pool", "64M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mount.path("sub")).arg(mount.path("gone")));
    let said = succeed(varve(&["subvolume", "delete", "--wait", "--json"]).arg(mount.path("gone")));
    assert_eq!(pages.hold(&said, &["varve subvolume delete"]), pages.section(&["varve subvolume delete"]));
    for name in ["sub/changed", "sub/renamed", "sub/gone"] {
        fs::write(mount.path(name), vec![1; 20_000]).expect("a file");
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(mount.path("sub/changed"), "user.one", b"1", flags).expect("an attribute");
    succeed(varve(&["snapshot", "--sync"]).arg(mount.path("sub")).arg(mount.path("old")));
    succeed(varve(&["clone"]).arg(mount.path("sub/changed")).arg(mount.path("sub/clone")));
    fs::write(mount.path("sub/changed"), vec![2; 30_000]).expect("a file");
    rustix::fs::setxattr(mount.path("sub/changed"), "user.two", b"2", flags).expect("an attribute");
    fs::hard_link(mount.path("sub/changed"), mount.path("sub/linked")).expect("a link");
    fs::rename(mount.path("sub/renamed"), mount.path("sub/new")).expect("a rename");
    fs::remove_file(mount.path("sub/gone")).expect("a file");
    mount.sync();
    let json = |words: &[&str]| {
        let mut command = varve(&[words[0], "--json"]);
        command.args(words[1..].iter().map(|word| word.replace("MNT", &mount.point.display().to_string())));
        succeed(&mut command)
    };
    let said = succeed(varve(&["subvolume", "list", "--json"]).arg(&mount.point));
    assert_eq!(pages.hold(&said, &["varve subvolume list"]), pages.section(&["varve subvolume list"]));
    let said = json(&["extents", "MNT/sub/changed"]);
    assert_eq!(pages.hold(&said, &["varve extents"]), pages.section(&["varve extents"]));
    let found = pages.hold(&json(&["diff", "MNT/old", "MNT/sub"]), &["varve diff"]);
    assert!(found.contains("[].flags"), "there are new files");
    // So that there is a log, and nothing changes it.
    mount.kill();
    let inspect = |words: &[&str]| succeed(varve(&["inspect", "--json"]).arg(&pool).args(words));
    let ring = inspect(&["ring"]);
    pages.hold(&ring, &["varve inspect ring"]);
    let ring: Value = serde_json::from_str(&ring).expect("JSON");
    let batches = ring["batches"].as_array().expect("batches");
    assert!(!batches.is_empty(), "what was synced is in the log: {ring}");
    for batch in batches {
        let number = batch["batch"].to_string();
        pages.hold(&inspect(&["ring", "--batch", &number]), &["varve inspect ring --batch", "Records"]);
    }
    for tree in ["inodes", "names", "xattrs", "extents", "versions", "subvolumes", "held"] {
        let said = inspect(&["tree", tree]);
        assert!(said.contains("\"key\""), "{tree} is empty: {said}");
        pages.hold(&said, &["varve inspect tree", "Records"]);
    }
}

/// Goal: the same of the reports of the lab. Method: each experiment, tiny, on what can be run everywhere.
#[test]
fn keys_of_the_lab_are_documented() {
    let pages = Pages::new();
    let scratch = Scratch::new("json-lab");
    let directory = format!("{}/", scratch.subdir("on").display());
    let mut experiments = vec![
        ("commit", vec!["--on", "varve", "--on", "bare"]),
        ("aging", vec!["--on", "varve"]),
        ("large", vec!["--on", &directory]),
    ];
    let mounts = can_mount("floor of keys_of_the_lab_are_documented");
    if mounts {
        experiments[0].1.extend(["--on", "varve-mounted"]);
        experiments.push(("floor", Vec::new()));
    }
    for (name, on) in experiments {
        let mut command = varve(&["lab", name, "--scale", "tiny", "--json", "-"]);
        let said = succeed(command.args(on).arg("--dir").arg(scratch.path("")));
        let found = pages.hold(&said, &["varve lab", &format!("varve lab {name}")]);
        let known = pages.section(&[&format!("varve lab {name}")]);
        let printed = |key: &&String| {
            found
                .iter()
                .any(|one| one == *key || one.starts_with(&format!("{}.", key.trim_end_matches(".*"))))
        };
        // These are of a mount.
        let printable = |key: &&String| mounts || !key.starts_with("data.scaling[]");
        let unseen: Vec<&String> = known.iter().filter(printable).filter(|key| !printed(key)).collect();
        assert!(unseen.is_empty(), "{name} does not print {unseen:?}");
    }
}
