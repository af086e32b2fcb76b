//! What the tests need from the system, and how to get it on Debian and its descendants.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process::{on_path, run};

/// A program that a test runs, and the package it comes in.
const FOR_TESTS: &[(&str, &str)] = &[
    ("fusermount3", "fuse3"),
    ("setfattr", "attr"),
    ("getfacl", "acl"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("mkfs.ext4", "e2fsprogs"),
    ("losetup", "mount"),
    ("diff", "diffutils"),
];

/// What the tests at full size need besides.
const FOR_FULL_TESTS: &[(&str, &str)] = &[("pg_ctlcluster", "postgresql")];

/// What mounting needs.
const FOR_MOUNTING: &[(&str, &str)] = &[("fusermount3", "fuse3")];

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

fn ensure(wanted: &[(&str, &'static str)]) -> Result<()> {
    let missing: Vec<&str> =
        wanted.iter().filter(|(program, _)| !on_path(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        bail!("please install these packages (there is no apt-get here to do it): {}", missing.join(" "));
    }
    let limit = Duration::from_secs(300);
    run("apt-get update", as_root("apt-get").args(["update", "-q"]), limit)?;
    run(
        &format!("apt-get install {}", missing.join(" ")),
        as_root("apt-get").args(["install", "-y", "-q", "--no-install-recommends"]).args(&missing),
        limit,
    )
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
