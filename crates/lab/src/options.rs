//! What a run of the lab is asked for, whatever the experiment.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::target::TargetKind;

/// How much of an experiment is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// A second or two: shows that everything still runs; the figures mean little.
    Tiny,
    /// Under a minute.
    Small,
    /// As published.
    Seed,
}

impl Scale {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scale::Tiny => "tiny",
            Scale::Small => "small",
            Scale::Seed => "seed",
        }
    }
}

impl std::str::FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Scale::Tiny, Scale::Small, Scale::Seed]
            .into_iter()
            .find(|scale| scale.name() == text)
            .ok_or_else(|| "the scales are small (about a minute) and seed (as published)".to_owned())
    }
}

/// What the lab's disks are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Loop devices over files, with direct I/O; counted at the block layer. Needs root.
    Loop,
    /// Regular files with direct I/O; nothing is counted, and the kernel's filesystems are left out.
    File,
    /// Memory, for tests; nothing is counted, and only targets in this process exist.
    Memory,
}

impl Medium {
    /// Loop devices where they can be had, else files.
    #[must_use]
    pub fn best() -> Medium {
        if crate::disk::loop_devices_missing().is_none() { Medium::Loop } else { Medium::File }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to run on; empty: everything there is.
    pub targets: Vec<TargetKind>,
    /// How much.
    pub scale: Scale,
    /// Rounds of an experiment that repeats the same, instead of those of the scale.
    pub loops: Option<usize>,
    /// Days of the rotation of snapshots in `aging`, instead of those of the scale; 0 leaves it out.
    pub days: Option<u64>,
    /// Mounts have the kernel switch FUSE over io_uring on for them.
    pub rings: bool,
    /// What the disks are made of.
    pub medium: Medium,
    /// Where files behind disks are made; the system's directory for temporary files if not given.
    pub directory: Option<PathBuf>,
    /// The `varve` program, for the mounted target.
    pub program: Option<PathBuf>,
    /// The command line, for the report.
    pub command: String,
    /// Tell on standard error what is being done.
    pub progress: bool,
}

impl Options {
    /// The targets that were asked for, or `all` where none was. Who names one twice wants it once: two of one name would have one disk, and one
    /// line of figures. A directory is the same by whatever name.
    pub(crate) fn asked(&self, all: &[TargetKind]) -> Vec<TargetKind> {
        let place = |kind: &TargetKind| match kind {
            TargetKind::Directory(path) => {
                TargetKind::Directory(path.canonicalize().unwrap_or_else(|_| path.clone()))
            }
            kind => kind.clone(),
        };
        let asked = if self.targets.is_empty() { all } else { &self.targets };
        let mut seen = HashSet::new();
        asked.iter().filter(|kind| seen.insert(place(kind))).cloned().collect()
    }

    /// Says on standard error what is being done, if that is wanted.
    pub fn tell(&self, what: &str) {
        if self.progress {
            crate::say(what);
        }
    }
}
