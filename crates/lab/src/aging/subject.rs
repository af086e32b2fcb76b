//! What ages: a file on a target, and how forks are made of it there.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, OFlags};
use varve_device::AlignedBuf;

use super::kernel::Kernel;
use super::mounted::Mounted;
use super::varve::InProcess;
use super::{BLOCK_BYTES, Own};
use crate::counters::Counters;
use crate::disk::Disk;
use crate::target::TargetKind;
use crate::{Options, Scale, guard, tool};

/// How long it may take until nothing is left of all that was deleted.
const DRAIN_MAX: Duration = Duration::from_secs(3600);

/// How a fork is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ForkKind {
    /// A snapshot of the subvolume that the file is in.
    Snapshot,
    /// A clone of the file.
    Clone,
}

impl ForkKind {
    /// In names of targets.
    pub fn name(self) -> &'static str {
        match self {
            ForkKind::Snapshot => "snapshot",
            ForkKind::Clone => "clone",
        }
    }
}

/// A file and its forks.
pub(super) trait Subject {
    /// What it is.
    fn about(&self) -> String;
    /// The block layer's counters of its disk.
    fn counters(&self) -> Result<Option<Counters>>;
    /// What it says it has written beside data, if it says so.
    fn own(&self) -> Result<Option<Own>> {
        Ok(None)
    }
    /// Makes the file, with all its space set aside.
    fn prepare(&mut self, file_bytes: u64) -> Result<()>;
    /// Overwrites the block at `offset` with something that depends on `seed`, past every cache.
    fn write(&mut self, offset: u64, seed: u64) -> Result<()>;
    /// Makes the file durable.
    fn sync(&mut self) -> Result<()>;
    /// Makes fork `number`.
    fn fork(&mut self, number: usize) -> Result<()>;
    /// Maps the file's extents in fork `number`: how many there are, and how many of them are shared.
    /// `None` if the target cannot tell.
    fn map(&mut self, number: usize) -> Result<Option<(u64, u64)>>;
    /// A map has been asked for and will be again: until what that has set going in the background is done.
    fn mapped(&mut self) -> Result<()> {
        Ok(())
    }
    /// Deletes fork `number`.
    fn delete(&mut self, number: usize) -> Result<()>;
    /// What is still to be done of what was deleted, in tasks, if it says so.
    fn backlog(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Waits until everything deleted is gone.
    fn drain(&mut self) -> Result<()>;
    /// Writes out everything that was put off.
    fn settle(&mut self) -> Result<()>;
    /// Used on the filesystem.
    fn used_bytes(&self) -> Result<u64>;
    /// Unmounts or closes it.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Why it cannot be run here. `None`: it can.
pub(super) fn missing(kind: &TargetKind, fork: ForkKind, options: &Options) -> Option<String> {
    let needs = match (kind, fork) {
        (TargetKind::Btrfs, _) => [("btrfs", "btrfs-progs"), ("filefrag", "e2fsprogs")],
        (TargetKind::Xfs | TargetKind::Directory(_), _) => [("cp", "coreutils"), ("filefrag", "e2fsprogs")],
        _ => return kind.missing(options),
    };
    let absent = needs.into_iter().find(|(name, _)| tool::find(name).is_none());
    let absent = absent.map(|(name, package)| format!("{name} is not installed: apt-get install {package}"));
    kind.missing(options).or(absent)
}

/// Why no file in a directory can be cloned. `None`: they can.
pub(super) fn without_clones(directory: &Path) -> Option<String> {
    let cloned = (|| {
        let scratch = tempfile::Builder::new().prefix("varve-lab-").tempdir_in(directory)?;
        let from = File::create_new(scratch.path().join("from"))?;
        from.write_all_at(&[1; BLOCK_BYTES], 0)?;
        let to = File::create_new(scratch.path().join("to"))?;
        rustix::fs::ioctl_ficlone(&to, &from)?;
        scratch.close()
    })();
    let error = cloned.err()?;
    Some(match error.kind() {
        ErrorKind::Unsupported | ErrorKind::InvalidInput => {
            "the filesystem that it is on cannot clone files".to_owned()
        }
        _ => format!("no file in it can be cloned: {error}"),
    })
}

/// Makes it on a disk of its own, or in a directory of its own in the one that was given.
pub(super) fn open(
    kind: &TargetKind,
    fork: ForkKind,
    options: &Options,
    directory: &Path,
    disk_bytes: u64,
) -> Result<Box<dyn Subject>> {
    let disk = || {
        let fill = options.scale == Scale::Small;
        Disk::new(options.medium, directory, &kind.name(), disk_bytes, fill)
    };
    Ok(match kind {
        TargetKind::Btrfs | TargetKind::Xfs | TargetKind::Directory(_) => {
            Box::new(Kernel::new(kind, fork, options, directory, disk_bytes)?)
        }
        TargetKind::VarveInProcess => Box::new(InProcess::new(disk()?, fork)?),
        TargetKind::VarveMounted => {
            let program = options.program.as_deref().context("the program varve is not known")?;
            Box::new(Mounted::new(disk()?, program, directory, fork, options.rings)?)
        }
        _ => bail!("{} cannot age", kind.name()),
    })
}

/// A file that is written past the kernel's cache.
pub(super) struct DirectFile {
    file: File,
    buf: AlignedBuf,
}

impl DirectFile {
    /// Makes one of `file_bytes`, with all its space set aside.
    pub fn new(path: &Path, file_bytes: u64) -> Result<DirectFile> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, file_bytes)?;
        Ok(DirectFile { file, buf: AlignedBuf::new(BLOCK_BYTES) })
    }

    /// [`Subject::write`].
    pub fn write(&mut self, offset: u64, seed: u64) -> Result<()> {
        self.buf[..8].copy_from_slice(&seed.to_le_bytes());
        Ok(self.file.write_all_at(&self.buf, offset)?)
    }

    /// [`Subject::sync`].
    pub fn sync(&self) -> Result<()> {
        Ok(self.file.sync_all()?)
    }
}

/// What statfs(2) calls used.
pub(super) fn used_bytes(root: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(root)?;
    Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
}

/// Waits until `backlog` is 0.
pub(super) fn drained(backlog: impl Fn() -> Result<u64>) -> Result<()> {
    let begun = Instant::now();
    while backlog()? > 0 {
        guard::check()?;
        if begun.elapsed() > DRAIN_MAX {
            bail!("after {} s there is still something to be reaped", DRAIN_MAX.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
