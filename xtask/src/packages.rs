//! What the tests need from the system, and how to get it on Debian and its descendants.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process::{on_path, run};

/// A program, or the path of a file with at most one `*`, and the package it comes in.
pub type Wanted = (&'static str, &'static str);

const FOR_TESTS: &[Wanted] = &[
    ("fusermount3", "fuse3"),
    ("setfattr", "attr"),
    ("getfacl", "acl"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("mkfs.ext4", "e2fsprogs"),
    ("losetup", "mount"),
    ("diff", "diffutils"),
    ("rsync", "rsync"),
];

/// What the tests at full size need besides.
const FOR_FULL_TESTS: &[Wanted] = &[("pg_ctlcluster", "postgresql")];

/// What mounting needs.
const FOR_MOUNTING: &[Wanted] = &[("fusermount3", "fuse3")];

/// Installs what the tests need and is missing.
pub fn ensure_for_tests() -> Result<()> {
    ensure(FOR_TESTS)
}

/// Installs what the tests at full size need and is missing.
pub fn ensure_for_full_tests() -> Result<()> {
    ensure(FOR_FULL_TESTS)
}

/// Installs what mounting needs and is missing.
pub fn ensure_for_mounting() -> Result<()> {
    ensure(FOR_MOUNTING)
}

/// Installs what is missing of `wanted`.
pub fn ensure(wanted: &[Wanted]) -> Result<()> {
    let missing: Vec<&str> =
        wanted.iter().filter(|(given, _)| !is_there(given)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        bail!("please install these packages (there is no apt-get here to do it): {}", missing.join(" "));
    }
    let limit = Duration::from_secs(900);
    run("apt-get update", as_root("apt-get").args(["update", "-q"]), limit)?;
    run(
        &format!("apt-get install {}", missing.join(" ")),
        as_root("apt-get").args(["install", "-y", "-q", "--no-install-recommends"]).args(&missing),
        limit,
    )
}

/// Whether a program or a file is there.
fn is_there(given: &str) -> bool {
    let Some((dir, name)) = given.rsplit_once('/') else { return on_path(given) };
    let Some((before, after)) = name.split_once('*') else { return Path::new(given).exists() };
    let names = Path::new(dir).read_dir().into_iter().flatten().filter_map(|entry| entry.ok());
    names.map(|entry| entry.file_name()).any(|name| {
        let name = name.to_string_lossy();
        name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
    })
}

/// `program` with the rights of root: as it is, or through sudo where that asks nothing.
fn as_root(program: &str) -> Command {
    let root = crate::process::output(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0");
    let mut command = Command::new(if root { "env" } else { "sudo" });
    if !root {
        command.args(["-n", "env"]);
    }
    command.arg("DEBIAN_FRONTEND=noninteractive").arg(program);
    command
}
