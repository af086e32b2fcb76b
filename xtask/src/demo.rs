//! `cargo xtask demo`: builds `varve` and does its main job before your eyes, in a directory that is removed afterwards.

use std::time::Duration;

use std::process::Command;

use anyhow::{Result, bail};

use crate::packages;
use crate::process::{self, can_mount, cargo, on_path, target_dir};

/// What is shown. `$V` is the program, the working directory is empty and ours.
const SCRIPT: &str = include_str!("demo.sh");
/// What is shown where nothing can be mounted.
const SCRIPT_WITHOUT_MOUNT: &str = include_str!("demo-without-mount.sh");

pub fn run() -> Result<()> {
    let build = Duration::from_secs(10 * 60);
    process::run("cargo build --release", cargo().args(["build", "--release", "-p", "varve-cli"]), build)?;
    let script = if can_mount() {
        if !on_path("fusermount3") {
            packages::ensure_for_mounting()?;
        }
        SCRIPT
    } else {
        println!("SKIPPED: mounting. /dev/fuse cannot be opened here (as root: modprobe fuse)");
        SCRIPT_WITHOUT_MOUNT
    };
    let program = target_dir().join("release").join("varve");
    if !program.is_file() {
        bail!("cargo built no {}", program.display());
    }
    process::run(
        "demo",
        Command::new("bash").args(["-c", script]).env("V", &program),
        Duration::from_secs(300),
    )
}
