//! VarveFS mounted by its program: forks as its commands make them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Own;
use super::subject::{DirectFile, ForkKind, Subject, drained, used_bytes};
use crate::counters::Counters;
use crate::disk::Disk;
use crate::target::{self, Target};
use crate::tool;

/// A mount with one file in it. Fields go in the order in which things must end.
pub(super) struct Mounted {
    file: Option<DirectFile>,
    target: target::Mounted,
    program: PathBuf,
    fork: ForkKind,
}

impl Mounted {
    pub fn new(disk: Disk, program: &Path, directory: &Path, fork: ForkKind, rings: bool) -> Result<Mounted> {
        let target = target::Mounted::new(disk, program, directory, rings)?;
        Ok(Mounted { file: None, target, program: program.to_path_buf(), fork })
    }

    fn origin(&self) -> PathBuf {
        self.target.root().join("origin")
    }

    fn place(&self, number: usize) -> PathBuf {
        self.target.root().join(format!("fork-{number}"))
    }

    fn file(&mut self) -> Result<&mut DirectFile> {
        self.file.as_mut().context("the file has not been made")
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

/// What is read of `varve extents --json`.
#[derive(Deserialize)]
struct Map {
    extents: Vec<Piece>,
}

#[derive(Deserialize)]
struct Piece {
    kind: String,
    shared: bool,
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
    fn own(&self) -> Result<Option<Own>> {
        Ok(Some(Own {
            log_bytes: self.figure("journal", "written_bytes")?,
            tree_bytes: self.figure("checkpoint", "written_bytes")?,
            checkpoints_count: self.figure("checkpoint", "completed_count")?,
        }))
    }
    fn prepare(&mut self, file_bytes: u64) -> Result<()> {
        let origin = self.origin();
        self.varve(&["subvolume".as_ref(), "create".as_ref(), &origin])?;
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
        let (origin, place) = (self.origin(), self.place(number));
        match self.fork {
            ForkKind::Snapshot => self.varve(&["snapshot".as_ref(), &origin, &place])?,
            ForkKind::Clone => self.varve(&["clone".as_ref(), &origin.join("file"), &place])?,
        };
        Ok(())
    }
    /// Through the command, so what is timed is its page of text too.
    fn map(&mut self, number: usize) -> Result<Option<(u64, u64)>> {
        let path = match self.fork {
            ForkKind::Snapshot => self.place(number).join("file"),
            ForkKind::Clone => self.place(number),
        };
        let said = self.varve(&["extents".as_ref(), "--json".as_ref(), &path])?;
        let map: Map = serde_json::from_str(&said).context("varve extents --json is JSON")?;
        let counts = |piece: &&Piece| matches!(piece.kind.as_str(), "data" | "reserved");
        let shared = map.extents.iter().filter(counts).filter(|piece| piece.shared).count();
        Ok(Some((map.extents.iter().filter(counts).count() as u64, shared as u64)))
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
    fn backlog(&self) -> Result<Option<u64>> {
        self.figure("reap", "backlog_count").map(Some)
    }
    fn drain(&mut self) -> Result<()> {
        drained(|| self.figure("reap", "backlog_count"))?;
        self.settle()
    }
    fn settle(&mut self) -> Result<()> {
        self.target.settle()
    }
    fn used_bytes(&self) -> Result<u64> {
        used_bytes(self.target.root())
    }
    fn close(mut self: Box<Self>) -> Result<()> {
        self.file = None;
        Box::new(self.target).close()
    }
}
