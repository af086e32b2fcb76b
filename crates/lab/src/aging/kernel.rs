//! btrfs, XFS, and directories of what can clone files: forks as their own commands make them, extents as filefrag(8) shows them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::subject::{DirectFile, ForkKind, Subject, used_bytes};
use crate::counters::Counters;
use crate::target::{self, Target, TargetKind};
use crate::{Options, tool};

/// A filesystem of the kernel with one file in it. Fields go in the order in which things must end.
pub(super) struct Kernel {
    file: Option<DirectFile>,
    target: Box<dyn Target>,
    root: PathBuf,
    fork: ForkKind,
    is_btrfs: bool,
}

impl Kernel {
    pub fn new(
        kind: &TargetKind,
        fork: ForkKind,
        options: &Options,
        directory: &Path,
        disk_bytes: u64,
    ) -> Result<Kernel> {
        let target: Box<dyn Target> = match kind {
            TargetKind::Directory(_) => kind.open(options, directory, disk_bytes)?,
            _ => Box::new(target::Kernel::open(kind, options, directory, disk_bytes)?),
        };
        let root = target.directory().context("it has no files to fork")?.to_path_buf();
        let is_btrfs = *kind == TargetKind::Btrfs;
        Ok(Kernel { file: None, target, root, fork, is_btrfs })
    }

    /// The directory that is forked (btrfs: a subvolume).
    fn origin(&self) -> PathBuf {
        self.root.join("origin")
    }

    /// Where fork `number` is.
    fn place(&self, number: usize) -> PathBuf {
        self.root.join(format!("fork-{number}"))
    }

    fn file(&mut self) -> Result<&mut DirectFile> {
        self.file.as_mut().context("the file has not been made")
    }

    fn command(&self, name: &str, words: &[&Path]) -> Result<String> {
        let program = tool::find(name).with_context(|| format!("{name} is gone"))?;
        tool::run(&program, words)
    }
}

impl Subject for Kernel {
    fn about(&self) -> String {
        let how = match self.fork {
            ForkKind::Snapshot => "btrfs subvolume snapshot",
            ForkKind::Clone => "cp --reflink=always",
        };
        format!("{}; {how}; filefrag", self.target.about())
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.target.counters()
    }
    fn prepare(&mut self, file_bytes: u64) -> Result<()> {
        let origin = self.origin();
        if self.fork == ForkKind::Snapshot {
            self.command("btrfs", &["subvolume".as_ref(), "create".as_ref(), &origin])?;
        } else {
            self.target.create_dir("origin")?;
        }
        self.file = Some(DirectFile::new(&origin.join("file"), file_bytes)?);
        Ok(())
    }
    fn write(&mut self, offset: u64, seed: u64) -> Result<()> {
        self.file()?.write(offset, seed)
    }
    fn sync(&mut self) -> Result<()> {
        self.file()?.sync()
    }
    fn fork(&mut self, number: usize) -> Result<()> {
        let place = self.place(number);
        match self.fork {
            ForkKind::Snapshot => {
                let words = ["subvolume", "snapshot"].map(Path::new);
                self.command("btrfs", &[words[0], words[1], &self.origin(), &place])?;
            }
            ForkKind::Clone => {
                self.command("cp", &[Path::new("--reflink=always"), &self.origin().join("file"), &place])?;
            }
        }
        Ok(())
    }
    fn map(&mut self, number: usize) -> Result<Option<(u64, u64)>> {
        let file = match self.fork {
            ForkKind::Snapshot => self.place(number).join("file"),
            ForkKind::Clone => self.place(number),
        };
        let said = self.command("filefrag", &["-v".as_ref(), "-e".as_ref(), &file])?;
        // Lines of extents begin with their number and a colon; the last word has the flags.
        let extents = said.lines().filter(|line| {
            line.trim_start().split(':').next().is_some_and(|number| number.parse::<u64>().is_ok())
        });
        let (mut all, mut shared) = (0, 0);
        for extent in extents {
            all += 1;
            shared += u64::from(extent.contains("shared"));
        }
        Ok(Some((all, shared)))
    }
    fn delete(&mut self, number: usize) -> Result<()> {
        let place = self.place(number);
        match self.fork {
            ForkKind::Snapshot => {
                self.command("btrfs", &["subvolume".as_ref(), "delete".as_ref(), &place])?;
            }
            ForkKind::Clone => std::fs::remove_file(&place)?,
        }
        Ok(())
    }
    fn drain(&mut self) -> Result<()> {
        if self.is_btrfs {
            self.command("btrfs", &["subvolume".as_ref(), "sync".as_ref(), &self.root])?;
        }
        self.target.settle()
    }
    fn settle(&mut self) -> Result<()> {
        self.target.settle()
    }
    fn used_bytes(&self) -> Result<u64> {
        used_bytes(&self.root)
    }
    fn close(mut self: Box<Self>) -> Result<()> {
        self.file = None;
        self.target.close()
    }
}
