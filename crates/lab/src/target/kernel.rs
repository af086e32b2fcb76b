//! ext4, XFS and btrfs, made by their own tools with their own defaults on a disk of the lab.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::tree::Tree;
use super::{Target, TargetKind};
use crate::counters::Counters;
use crate::disk::Disk;
use crate::guard::MountGuard;
use crate::{Options, Scale, tool};

/// What differs between them.
struct Recipe {
    /// Type for mount(2).
    kind: &'static str,
    /// Makes one.
    tool: &'static str,
    /// Words before the device. Only what has nothing to do with speed: no discards, no questions.
    words: &'static [&'static str],
    /// Where the tool comes from.
    package: &'static str,
}

fn recipe(kind: &TargetKind) -> Option<Recipe> {
    Some(match kind {
        TargetKind::Ext4 => Recipe {
            kind: "ext4",
            tool: "mkfs.ext4",
            // Tables at once: lazily they would be written by the kernel during the experiment.
            words: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
            package: "e2fsprogs",
        },
        TargetKind::Xfs => {
            Recipe { kind: "xfs", tool: "mkfs.xfs", words: &["-q", "-f", "-K"], package: "xfsprogs" }
        }
        TargetKind::Btrfs => {
            Recipe { kind: "btrfs", tool: "mkfs.btrfs", words: &["-q", "-f", "-K"], package: "btrfs-progs" }
        }
        _ => return None,
    })
}

/// What is missing for it on this machine.
pub(super) fn missing(kind: &TargetKind) -> Option<String> {
    let recipe = recipe(kind)?;
    if tool::find(recipe.tool).is_none() {
        return Some(format!("{} is not installed: apt-get install {}", recipe.tool, recipe.package));
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let loaded = known.lines().any(|line| line.split_whitespace().last() == Some(recipe.kind));
    // mount(2) asks for the module, if there is one.
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let modules = Path::new("/lib/modules").join(release);
    (!loaded && !modules.exists()).then(|| format!("this kernel has no {}", recipe.kind))
}

/// A mounted filesystem of the kernel. Fields go in the order in which things must end.
pub(crate) struct Kernel {
    tree: Tree,
    mount: MountGuard,
    mountpoint: TempDir,
    disk: Disk,
    about: String,
}

impl Kernel {
    /// On a new disk of `disk_bytes`.
    pub fn open(kind: &TargetKind, options: &Options, directory: &Path, disk_bytes: u64) -> Result<Kernel> {
        let fill = options.scale == Scale::Small;
        let disk = Disk::new(options.medium, directory, &kind.name(), disk_bytes, fill)?;
        Kernel::new(kind, disk, directory)
    }

    pub fn new(kind: &TargetKind, disk: Disk, directory: &Path) -> Result<Kernel> {
        let recipe = recipe(kind).context("only ext4, XFS and btrfs are made this way")?;
        let program = tool::find(recipe.tool).with_context(|| format!("{} is gone", recipe.tool))?;
        let device = disk.path().context("it needs a device")?;
        let words: Vec<&Path> = recipe.words.iter().map(Path::new).chain([device]).collect();
        tool::run(&program, &words)?;
        let mountpoint = tempfile::Builder::new().prefix(recipe.kind).tempdir_in(directory)?;
        let mount = MountGuard::kernel(device, mountpoint.path(), recipe.kind)?;
        let about = format!("{} {}, mounted with noatime", recipe.tool, recipe.words.join(" "));
        Ok(Kernel { tree: Tree::new(mountpoint.path()), mount, mountpoint, disk, about })
    }
}

impl Target for Kernel {
    fn about(&self) -> String {
        self.about.clone()
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.disk.counters()
    }
    fn create_dir(&self, path: &str) -> Result<()> {
        self.tree.create_dir(path)
    }
    fn write_synced(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.tree.write_synced(path, bytes)
    }
    fn remove(&self, path: &str) -> Result<()> {
        self.tree.remove(path)
    }
    fn directory(&self) -> Option<&Path> {
        Some(self.tree.root())
    }
    fn settle(&self) -> Result<()> {
        self.tree.sync()
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.mount.unmount()?;
        Ok(self.mountpoint.close()?)
    }
}
