//! VarveFS as a library in this process.

use std::time::Duration;

use anyhow::{Context, Result};
use varvefs::{Allocate, ExtentKind, SnapshotOptions};

use super::subject::{ForkKind, Subject, drained};
use super::{BLOCK_BYTES, Own};
use crate::counters::Counters;
use crate::disk::Disk;

/// A pool with one file in it. The pool goes before its disk.
pub(super) struct InProcess {
    file: Option<varvefs::File>,
    fs: varvefs::Filesystem,
    pool: varvefs::Pool,
    disk: Disk,
    fork: ForkKind,
    buf: Vec<u8>,
}

impl InProcess {
    pub fn new(disk: Disk, fork: ForkKind) -> Result<InProcess> {
        let pool = disk.create_pool()?;
        Ok(InProcess { file: None, fs: pool.filesystem(), pool, disk, fork, buf: vec![0; BLOCK_BYTES] })
    }

    fn file(&self) -> Result<&varvefs::File> {
        self.file.as_ref().context("the file has not been made")
    }
}

/// Where fork `number` is.
fn place(number: usize) -> String {
    format!("/fork-{number}")
}

impl Subject for InProcess {
    fn about(&self) -> String {
        "the library in this process, defaults; writes wait in memory until the sync".to_owned()
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.disk.counters()
    }
    fn own(&self) -> Result<Option<Own>> {
        let stats = self.pool.stats()?;
        Ok(Some(Own {
            log_bytes: stats.journal.written_bytes,
            tree_bytes: stats.checkpoint.written_bytes,
            checkpoints_count: stats.checkpoint.completed_count,
        }))
    }
    fn prepare(&mut self, file_bytes: u64) -> Result<()> {
        self.fs.create_subvolume("/origin")?;
        let file = self.fs.create("/origin/file")?;
        file.allocate(0, file_bytes, Allocate::Reserve { keep_size: false })?;
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
        match self.fork {
            ForkKind::Snapshot => self.fs.snapshot("/origin", place(number), SnapshotOptions::new())?,
            ForkKind::Clone => self.fs.clone_file("/origin/file", place(number))?,
        }
        Ok(())
    }
    fn map(&mut self, number: usize) -> Result<Option<(u64, u64)>> {
        let path = match self.fork {
            ForkKind::Snapshot => format!("{}/file", place(number)),
            ForkKind::Clone => place(number),
        };
        let (mut extents, mut shared) = (0, 0);
        for extent in self.fs.open(path)?.extents(0) {
            let extent = extent?;
            let counts = matches!(extent.kind, ExtentKind::Data | ExtentKind::Reserved);
            extents += u64::from(counts);
            shared += u64::from(counts && extent.shared);
        }
        Ok(Some((extents, shared)))
    }
    fn mapped(&mut self) -> Result<()> {
        let mut made = None;
        loop {
            let now = self.pool.stats()?.keyframes.made_count;
            if made.replace(now) == Some(now) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    fn delete(&mut self, number: usize) -> Result<()> {
        match self.fork {
            ForkKind::Snapshot => self.fs.delete_subvolume(place(number))?,
            ForkKind::Clone => self.fs.remove_file(place(number))?,
        }
        Ok(())
    }
    fn backlog(&self) -> Result<Option<u64>> {
        Ok(Some(self.pool.stats()?.reap.backlog_count))
    }
    fn drain(&mut self) -> Result<()> {
        drained(|| Ok(self.pool.stats()?.reap.backlog_count))?;
        self.settle()
    }
    fn settle(&mut self) -> Result<()> {
        self.fs.sync()?;
        Ok(self.pool.checkpoint()?)
    }
    fn used_bytes(&self) -> Result<u64> {
        let space = self.pool.stats()?.space;
        Ok(space.total_bytes - space.free_bytes)
    }
    fn close(mut self: Box<Self>) -> Result<()> {
        self.file = None;
        Ok(self.pool.close()?)
    }
}
