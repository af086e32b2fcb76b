//! VarveFS: as a library in this process, and mounted by its program. Both with the defaults of a new pool.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use varvefs::OpenOptions;

use super::Target;
use super::tree::Tree;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::guard::MountGuard;
use crate::tool;

/// The library. The pool goes before its disk.
pub(super) struct InProcess {
    fs: varvefs::Filesystem,
    pool: varvefs::Pool,
    disk: Disk,
}

impl InProcess {
    pub fn new(disk: Disk) -> Result<InProcess> {
        let pool = disk.create_pool()?;
        Ok(InProcess { fs: pool.filesystem(), pool, disk })
    }
}

impl Target for InProcess {
    fn about(&self) -> String {
        "the library in this process, defaults".to_owned()
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.disk.counters()
    }
    fn create_dir(&self, path: &str) -> Result<()> {
        Ok(self.fs.create_dir(path)?)
    }
    fn write_synced(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(&self.fs, path)?;
        file.write_all_at(bytes, 0)?;
        Ok(file.sync_all()?)
    }
    fn remove(&self, path: &str) -> Result<()> {
        Ok(self.fs.remove_file(path)?)
    }
    fn settle(&self) -> Result<()> {
        self.fs.sync()?;
        Ok(self.pool.checkpoint()?)
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.pool.close()?)
    }
}

/// The program and its mount. Fields go in the order in which things must end.
pub(crate) struct Mounted {
    tree: Tree,
    mount: MountGuard,
    mountpoint: TempDir,
    disk: Disk,
    program: PathBuf,
    rings: bool,
}

impl Mounted {
    /// The root of the mount.
    pub fn root(&self) -> &Path {
        self.mountpoint.path()
    }

    pub fn new(disk: Disk, program: &Path, directory: &Path, rings: bool) -> Result<Mounted> {
        let pool = disk.path().context("a mount needs a device or a file")?;
        tool::run(program, &[Path::new("create"), Path::new("--force"), pool])?;
        let mountpoint = tempfile::Builder::new().prefix("varve").tempdir_in(directory)?;
        let mount = MountGuard::varve(program, pool, mountpoint.path(), rings)?;
        if rings {
            let stats = [Path::new("stats"), Path::new("--json"), mountpoint.path()];
            let stats: serde_json::Value = serde_json::from_str(&tool::run(program, &stats)?)?;
            // Rather no figures than others.
            ensure!(stats["rings"] == true, "the mount has no rings; what it said stands above");
        }
        Ok(Mounted {
            tree: Tree::new(mountpoint.path()),
            mount,
            mountpoint,
            disk,
            program: program.to_path_buf(),
            rings,
        })
    }
}

impl Target for Mounted {
    fn about(&self) -> String {
        format!("varve create, varve mount, {}", if self.rings { "-o rings" } else { "defaults" })
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
        // syncfs(2) does not reach filesystems in user space.
        tool::run(&self.program, &[Path::new("sync"), self.mount.mountpoint()])?;
        Ok(())
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.mount.unmount()?;
        Ok(self.mountpoint.close()?)
    }
}
