//! What the suites of others have in common: how one is installed, which program it tests, and where it runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

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
        let _alone = self.alone()?;
        if !self.is_installed() {
            process::run(&self.install_title(), &mut self.install(), INSTALL_LIMIT)?;
        }
        Ok(self.program())
    }

    /// Installs it while other things are done and shown: what cargo says goes to a file below the target directory. An error is no
    /// last word: who needs the program tries again, and shows why it cannot be had.
    pub fn install_beside(&self) -> Result<()> {
        let _alone = self.alone()?;
        if self.is_installed() {
            return Ok(());
        }
        let said = target_dir().join(format!("{}-installed", self.name));
        let log = File::create(&said).with_context(|| format!("cannot make {}", said.display()))?;
        let mut install = self.install();
        install.stdout(log.try_clone()?).stderr(log);
        let status = process::silently(&self.install_title(), &mut install, INSTALL_LIMIT)?;
        if !status.success() {
            bail!("{} failed ({status}): {}", self.install_title(), said.display());
        }
        Ok(())
    }

    /// While this is kept no other process installs the suite: of two that do, cargo refuses one.
    fn alone(&self) -> Result<File> {
        let path = target_dir().join(format!("{}-lock", self.name));
        fs::create_dir_all(target_dir())
            .and_then(|()| File::create(&path))
            .and_then(|file| file.lock().map(|()| file))
            .with_context(|| format!("cannot lock {}", path.display()))
    }

    fn install_title(&self) -> String {
        format!("cargo install {} {}", self.name, self.version)
    }

    fn prefix(&self) -> PathBuf {
        target_dir().join(self.name)
    }

    fn program(&self) -> PathBuf {
        self.prefix().join("bin").join(self.name)
    }

    fn is_installed(&self) -> bool {
        let there = output(Command::new(self.program()).arg("--version")).unwrap_or_default();
        there.trim() == format!("{} {}", self.name, self.version)
    }

    fn install(&self) -> Command {
        let mut install = cargo();
        install.args(["install", self.name, "--version", self.version, "--locked"]).args(self.flags);
        install.arg("--root").arg(self.prefix()).envs(self.variables.iter().copied());
        install.env("CARGO_TARGET_DIR", target_dir().join(format!("{}-build", self.name)));
        install
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

/// What a mount namespace begins with: copies of the mounts of tests that run beside it, whose unmounting would wait until it ends.
const LEAVE_OTHERS: &str = r#"
while read -r _ point kind _; do
    [ "$kind" != fuse.varve ] || umount --lazy "$(printf %b "$point")" || true
done <<< "$(cat /proc/self/mounts)"
"#;

/// `script` in mount and process namespaces of its own, which end with it.
pub fn in_namespaces(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["bash", "-euc", &format!("{LEAVE_OTHERS}{script}")]).current_dir("/");
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
