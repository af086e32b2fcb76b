//! What an experiment runs on: a [`Target`] stores files durably, each in its own way.
//!
//! All targets of a run have disks of the same size and kind, and the same durability: [`Target::write_synced`] returns
//! when the file survives a power cut.

mod bare;
mod kernel;
mod tree;
mod varve;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::counters::Counters;
use crate::disk::{self, Disk};
use crate::{Medium, Options, Scale};

pub use bare::{Bare, ceiling};
pub(crate) use kernel::Kernel;
pub(crate) use varve::Mounted;

/// Something that stores files. Paths are relative, with `/` between their parts.
pub trait Target: Send + Sync {
    /// How it was made and mounted.
    fn about(&self) -> String;
    /// The block layer's counters of its disk; `None` if there are none.
    fn counters(&self) -> Result<Option<Counters>>;
    /// Makes a directory in one that is there.
    fn create_dir(&self, path: &str) -> Result<()>;
    /// Creates a file, writes `bytes`, makes it durable and closes it.
    fn write_synced(&self, path: &str, bytes: &[u8]) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &str) -> Result<()>;
    /// Where its files are for programs; `None` if it is no mounted filesystem.
    fn directory(&self) -> Option<&Path> {
        None
    }
    /// Writes out everything that was put off, as far as the target can be told to.
    fn settle(&self) -> Result<()>;
    /// Unmounts or closes it and removes what it lay on.
    fn close(self: Box<Self>) -> Result<()>;
}

/// The targets by name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TargetKind {
    /// VarveFS as a library in this process.
    VarveInProcess,
    /// VarveFS mounted by the program `varve`.
    VarveMounted,
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// The protocol of the log without a filesystem around it.
    Bare,
    /// A directory of a filesystem that is there already.
    Directory(PathBuf),
}

impl TargetKind {
    /// Every kind that needs no further argument, VarveFS first.
    pub const ALL: [TargetKind; 6] = [
        TargetKind::VarveInProcess,
        TargetKind::VarveMounted,
        TargetKind::Ext4,
        TargetKind::Xfs,
        TargetKind::Btrfs,
        TargetKind::Bare,
    ];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            TargetKind::VarveInProcess => "varve".to_owned(),
            TargetKind::VarveMounted => "varve-mounted".to_owned(),
            TargetKind::Ext4 => "ext4".to_owned(),
            TargetKind::Xfs => "xfs".to_owned(),
            TargetKind::Btrfs => "btrfs".to_owned(),
            TargetKind::Bare => "bare".to_owned(),
            TargetKind::Directory(path) => path.display().to_string(),
        }
    }

    /// Whether it is a filesystem of the kernel.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        matches!(self, TargetKind::Ext4 | TargetKind::Xfs | TargetKind::Btrfs)
    }

    /// Whether it is VarveFS.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self, TargetKind::VarveInProcess | TargetKind::VarveMounted)
    }

    /// Why this cannot be run here, with what would help. `None`: it can.
    #[must_use]
    pub fn missing(&self, options: &Options) -> Option<String> {
        match self {
            TargetKind::VarveInProcess | TargetKind::Bare => None,
            TargetKind::Directory(path) => {
                (!path.is_dir()).then(|| format!("{} is not a directory", path.display()))
            }
            _ if options.medium == Medium::Memory => Some("it cannot lie in memory".to_owned()),
            TargetKind::VarveMounted => {
                if options.program.is_none() {
                    return Some("the program varve is not known".to_owned());
                }
                (!Path::new("/dev/fuse").exists())
                    .then(|| "there is no /dev/fuse; load the module: modprobe fuse".to_owned())
            }
            TargetKind::Ext4 | TargetKind::Xfs | TargetKind::Btrfs if options.medium == Medium::Loop => {
                kernel::missing(self)
            }
            _ => Some(
                disk::loop_devices_missing()
                    .map(|why| format!("{why}, or name a directory on such a filesystem"))
                    .unwrap_or_else(|| "it needs a loop device".to_owned()),
            ),
        }
    }

    /// Makes the disk and what lies on it. `directory` holds files behind disks and mount points.
    pub fn open(&self, options: &Options, directory: &Path, size_bytes: u64) -> Result<Box<dyn Target>> {
        if let Some(missing) = self.missing(options) {
            bail!("{} cannot be run: {missing}", self.name());
        }
        if let TargetKind::Directory(path) = self {
            return Ok(Box::new(tree::Given::new(path)?));
        }
        let name = self.name();
        let fill = options.scale != Scale::Tiny;
        let disk = Disk::new(options.medium, directory, &name, size_bytes, fill)?;
        Ok(match (self, &options.program) {
            (TargetKind::VarveInProcess, _) => Box::new(varve::InProcess::new(disk)?),
            (TargetKind::VarveMounted, Some(program)) => {
                Box::new(Mounted::new(disk, program, directory, options.rings)?)
            }
            (TargetKind::Bare, _) => Box::new(Bare::new(disk)?),
            _ => Box::new(Kernel::new(self, disk, directory)?),
        })
    }
}

impl std::str::FromStr for TargetKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(TargetKind::Directory(PathBuf::from(text)));
        }
        TargetKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<String> = TargetKind::ALL.iter().map(TargetKind::name).collect();
            format!("the targets are {}, or a directory given as a path with a / in it", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: every target can be named on the command line, directories too, and mistakes are told. Method: names there
    // and back.
    #[test]
    fn names_parse() {
        for kind in TargetKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("./here".parse(), Ok(TargetKind::Directory(PathBuf::from("./here"))));
        assert!("ext5".parse::<TargetKind>().expect_err("no such target").contains("ext4"));
    }
}
