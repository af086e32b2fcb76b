//! The README's commands: each must exist, and the first block must run as it stands.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::{self, can_mount, cargo, target_dir};
use crate::tree::text_of;

/// The line before a block that the gate runs.
const RUN_MARK: &str = "<!-- run by the gate -->";

/// Commands of the README that nothing answers to.
pub fn problems() -> Vec<String> {
    let readme = text_of("README.md");
    let main = text_of("xtask/src/main.rs");
    let mut found = Vec::new();
    for line in blocks(&readme, false).iter().flat_map(|block| block.lines()) {
        let mut words = line.split_whitespace();
        if words.next() == Some("cargo") && words.next() == Some("xtask") {
            let name = words.next().unwrap_or_default();
            if !main.contains(&format!("    {}", variant(name))) {
                found.push(format!("README.md: there is no `cargo xtask {name}`"));
            }
        }
    }
    if blocks(&readme, true).is_empty() {
        found.push(format!("README.md: no block is marked `{RUN_MARK}`"));
    }
    found
}

/// Runs the marked block in an empty directory, with `varve` on the PATH.
pub fn run_commands() -> Result<()> {
    if !can_mount() {
        println!("SKIPPED: the README's commands mount, and /dev/fuse cannot be opened here");
        return Ok(());
    }
    let release = Duration::from_secs(8 * 60);
    process::run("cargo build --release", cargo().args(["build", "--release", "-p", "varve-cli"]), release)?;
    let script = blocks(&text_of("README.md"), true).join("\n");
    if script.is_empty() {
        bail!("README.md has no block marked `{RUN_MARK}`");
    }
    let scratch = process::output(Command::new("mktemp").args(["-d"]))?;
    let scratch = scratch.trim();
    let path = std::env::var("PATH").unwrap_or_default();
    let bin = target_dir().join("release");
    // On the way out, whatever happened: nothing of ours stays mounted, nothing stays on the disk.
    let wrapped = format!(
        "trap 'for m in */; do mountpoint -q \"$m\" && umount -l \"$m\"; done; cd / && rm -rf --one-file-system \"{scratch}\"' EXIT\nset -eux\n{script}"
    );
    let mut shell = Command::new("bash");
    shell.current_dir(scratch).args(["-c", &wrapped]).env("PATH", format!("{}:{path}", bin.display()));
    process::run("the README's commands", &mut shell, Duration::from_secs(120))
        .context("README.md promises too much")
}

/// The shell blocks, all of them or those that are marked to be run. Lines that are comments stay: bash skips them.
fn blocks(readme: &str, marked_only: bool) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut current: Option<String> = None;
    let mut marked = false;
    for line in readme.lines() {
        match &mut current {
            None if line == "```sh" && (marked || !marked_only) => current = Some(String::new()),
            None => marked = line == RUN_MARK,
            Some(_) if line == "```" => {
                blocks.extend(current.take());
                marked = false;
            }
            Some(text) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    blocks
}

/// `demo` as the name of a variant: `Demo`.
fn variant(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only marked blocks are run, all blocks are read. Method: a text with one of each.
    #[test]
    fn blocks_are_told_apart() {
        let text =
            format!("a\n```sh\ncargo xtask demo\n```\n{RUN_MARK}\n```sh\nvarve create x\nls\n```\nend\n");
        assert_eq!(blocks(&text, true), ["varve create x\nls\n"]);
        assert_eq!(blocks(&text, false).len(), 2);
    }
}
