//! Files below a directory of any mounted filesystem, by the system calls that a program would use.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::Target;
use crate::counters::{Counted, Counters};

/// A directory that files are stored in.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub fn new(root: &Path) -> Tree {
        Tree { root: root.to_path_buf() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn create_dir(&self, path: &str) -> Result<()> {
        let path = self.root.join(path);
        DirBuilder::new().create(&path).with_context(|| format!("cannot make {}", path.display()))
    }

    pub fn write_synced(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(path);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            })
            .with_context(|| format!("cannot write and sync {}", path.display()))
    }

    pub fn remove(&self, path: &str) -> Result<()> {
        let path = self.root.join(path);
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// syncfs(2).
    pub fn sync(&self) -> Result<()> {
        let directory = File::open(&self.root)?;
        rustix::fs::syncfs(&directory).with_context(|| format!("cannot sync {}", self.root.display()))
    }
}

/// A directory that was there before: the lab makes one of its own in it.
pub(super) struct Given {
    tree: Tree,
    scratch: TempDir,
    counted: Option<Counted>,
    about: String,
}

impl Given {
    pub fn new(directory: &Path) -> Result<Given> {
        let scratch = tempfile::Builder::new()
            .prefix("varve-lab-")
            .tempdir_in(directory)
            .with_context(|| format!("cannot make a directory in {}", directory.display()))?;
        let number = scratch.path().metadata()?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        // A filesystem without a block device has no counters.
        let counted = Counted::of(Path::new(&format!("/sys/dev/block/{major}:{minor}")));
        let about = match &counted {
            Some(counted) => {
                let also = if counted.is_partition() {
                    ", a partition: flushes are those of its whole disk"
                } else {
                    ""
                };
                format!("directory on block device {major}:{minor}{also}; others may use that too")
            }
            None => "directory of a filesystem without a block device; nothing is counted".to_owned(),
        };
        Ok(Given { tree: Tree::new(scratch.path()), scratch, counted, about })
    }
}

impl Target for Given {
    fn about(&self) -> String {
        self.about.clone()
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.counted.as_ref().map(Counted::read).transpose()
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
        Ok(self.scratch.close()?)
    }
}
