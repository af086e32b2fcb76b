//! What the suites of others have in common: how one is installed, which program it tests, and where it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{self, can_mount, cargo, output, target_dir};

const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A suite that is a program from the package registry.
pub struct Suite {
    /// Of the package and the program.
    pub name: &'static str,
    pub version: &'static str,
    /// How it is compiled: words for `cargo install`.
    pub flags: &'static [&'static str],
    /// The same: variables.
    pub variables: &'static [(&'static str, &'static str)],
}

impl Suite {
    /// The program, installed below the target directory once.
    pub fn ensure_installed(&self) -> Result<PathBuf> {
        let Suite { name, version, .. } = self;
        let prefix = target_dir().join(name);
        let program = prefix.join("bin").join(name);
        let there = output(Command::new(&program).arg("--version")).unwrap_or_default();
        if there.trim() == format!("{name} {version}") {
            return Ok(program);
        }
        let mut install = cargo();
        install.args(["install", name, "--version", version, "--locked"]).args(self.flags);
        install.arg("--root").arg(&prefix).envs(self.variables.iter().copied());
        install.env("CARGO_TARGET_DIR", target_dir().join(format!("{name}-build")));
        process::run(&format!("cargo install {name} {version}"), &mut install, INSTALL_LIMIT)?;
        Ok(program)
    }

    /// An empty directory for a run.
    pub fn scratch(&self) -> Result<Scratch> {
        Scratch::new(self.name)
    }
}

/// A directory of ours, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// An empty one for `name`.
    pub fn new(name: &str) -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("varve-{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make a directory for {name}"))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            println!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// `script` in mount and process namespaces of its own, which end with it.
pub fn in_namespaces(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["bash", "-euc", script]).current_dir("/");
    command
}

/// Whether this is root on a machine that can mount.
pub fn root_can_mount() -> bool {
    can_mount() && output(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0")
}

/// The program to test: the one named, or a release build.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(path) => path.canonicalize().with_context(|| format!("cannot find {}", path.display())),
        None => {
            let mut build = cargo();
            build.args(["build", "--release", "-p", "varve-cli"]);
            process::run("cargo build --release", &mut build, INSTALL_LIMIT)?;
            Ok(target_dir().join("release").join("varve"))
        }
    }
}
