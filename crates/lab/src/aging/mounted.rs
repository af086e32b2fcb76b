//! VarveFS mounted by its program: forks as its commands make them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, OFlags};
use varve_device::AlignedBuf;

use super::BLOCK_BYTES;
use super::subject::{DRAIN_MAX, ForkKind, Subject};
use crate::counters::Counters;
use crate::disk::Disk;
use crate::target::{self, Target};
use crate::{guard, tool};

/// A mount with one file in it. Fields go in the order in which things must end.
pub(super) struct Mounted {
    file: Option<File>,
    target: target::Mounted,
    program: PathBuf,
    fork: ForkKind,
    buf: AlignedBuf,
}

impl Mounted {
    pub fn new(disk: Disk, program: &Path, directory: &Path, fork: ForkKind) -> Result<Mounted> {
        let target = target::Mounted::new(disk, program, directory)?;
        let (program, buf) = (program.to_path_buf(), AlignedBuf::new(BLOCK_BYTES));
        Ok(Mounted { file: None, target, program, fork, buf })
    }

    fn origin(&self) -> PathBuf {
        self.target.root().join("origin")
    }

    fn place(&self, number: usize) -> PathBuf {
        self.target.root().join(format!("fork-{number}"))
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().context("the file has not been made")
    }

    fn varve(&self, words: &[&Path]) -> Result<String> {
        tool::run(&self.program, words)
    }

    /// A figure of `varve stats --json`.
    fn figure(&self, part: &str, name: &str) -> Result<u64> {
        let said = self.varve(&["stats".as_ref(), "--json".as_ref(), self.target.root()])?;
        let stats: serde_json::Value = serde_json::from_str(&said).context("varve stats --json is JSON")?;
        stats[part][name].as_u64().with_context(|| format!("varve stats has no {part}.{name}"))
    }
}

impl Subject for Mounted {
    fn about(&self) -> String {
        let how = match self.fork {
            ForkKind::Snapshot => "varve snapshot",
            ForkKind::Clone => "varve clone",
        };
        format!("{}; {how}", self.target.about())
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.target.counters()
    }
    fn prepare(&mut self, file_bytes: u64) -> Result<()> {
        let origin = self.origin();
        self.varve(&["subvolume".as_ref(), "create".as_ref(), &origin])?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(origin.join("file"))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, file_bytes)?;
        self.file = Some(file);
        Ok(())
    }
    fn write(&mut self, offset: u64, seed: u64) -> Result<()> {
        self.buf[..8].copy_from_slice(&seed.to_le_bytes());
        Ok(self.file()?.write_all_at(&self.buf, offset)?)
    }
    fn sync(&mut self) -> Result<()> {
        Ok(self.file()?.sync_all()?)
    }
    fn fork(&mut self, number: usize) -> Result<()> {
        let (origin, place) = (self.origin(), self.place(number));
        match self.fork {
            ForkKind::Snapshot => self.varve(&["snapshot".as_ref(), &origin, &place])?,
            ForkKind::Clone => self.varve(&["clone".as_ref(), &origin.join("file"), &place])?,
        };
        Ok(())
    }
    fn map(&mut self, _number: usize) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }
    fn delete(&mut self, number: usize) -> Result<()> {
        let place = self.place(number);
        match self.fork {
            ForkKind::Snapshot => {
                self.varve(&["subvolume".as_ref(), "delete".as_ref(), &place])?;
            }
            ForkKind::Clone => std::fs::remove_file(&place)?,
        }
        Ok(())
    }
    fn drain(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.figure("reap", "backlog_count")? > 0 {
            guard::check()?;
            if begun.elapsed() > DRAIN_MAX {
                bail!("after {} s there is still something to be reaped", DRAIN_MAX.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.settle()
    }
    fn settle(&mut self) -> Result<()> {
        self.target.settle()
    }
    fn used_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(self.target.root())?;
        Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    }
    fn close(mut self: Box<Self>) -> Result<()> {
        self.file = None;
        Box::new(self.target).close()
    }
}
