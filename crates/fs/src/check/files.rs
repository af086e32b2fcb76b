//! Whose the blocks are that the engine's check complains of: every file that sees them, in whatever subvolume.
//!
//! A block belongs to several files where a file has clones or is in snapshots (they see the same extent of one family), and
//! where extents name the same blocks. Who sees an extent is found by reading as that file does, so a version that nobody
//! sees any more names nobody.

use std::collections::{BTreeSet, HashMap};

use varve_engine::version::{self, Mapping};
use varve_engine::{FamilyId, InodeId, Problem, View};
use varve_format::SEGMENT_BYTES;

use super::Inodes;
use super::data::DataRun;
use varve_engine::FileRange;

/// Files looked at for all problems of a check together. Beyond, their number is not known.
const LOOKS_MAX: u64 = 1 << 17;

/// Where data is, and who may have it.
pub(super) struct Files<'a> {
    view: View,
    sharing: bool,
    /// By address.
    runs: &'a [DataRun],
    inodes: &'a Inodes,
    /// Those who hold some version of a family. Made when it is first needed: most checks find nothing.
    owners: Option<HashMap<FamilyId, Vec<InodeId>>>,
    looks_left: u64,
}

impl<'a> Files<'a> {
    pub(super) fn new(view: View, sharing: bool, runs: &'a [DataRun], inodes: &'a Inodes) -> Files<'a> {
        Files { view, sharing, runs, inodes, owners: None, looks_left: LOOKS_MAX }
    }

    /// Adds the files, and the bytes of them, that a problem of blocks is about.
    pub(super) fn locate(&mut self, problem: &mut Problem) {
        let Some((addr, len)) = problem.blocks.filter(|_| problem.inode.is_none()) else { return };
        let after = self.runs.partition_point(|data| data.run.addr.0 < addr + len);
        let runs = self.runs;
        let mut found = BTreeSet::new();
        // No extent is longer than a segment.
        let near = runs[..after].iter().rev().take_while(|data| data.run.addr.0 + SEGMENT_BYTES > addr);
        for data in near.filter(|data| data.run.addr.0 + data.run.bytes() > addr) {
            let low = addr.max(data.run.addr.0);
            let high = (addr + len).min(data.run.addr.0 + data.run.bytes());
            let first = data.offset + (low - data.run.addr.0);
            for ino in self.owners(data.family) {
                if self.looks_left == 0 {
                    problem.files_uncounted = true;
                    break;
                }
                self.looks_left -= 1;
                self.seen(ino, first, low, high, &mut found);
            }
        }
        let mut files: Vec<FileRange> = Vec::new();
        for (ino, from, to) in found {
            match files.last_mut().filter(|last| last.inode == ino.0 && last.bytes.1 >= from) {
                Some(last) => last.bytes.1 = last.bytes.1.max(to),
                None => files.push(FileRange { inode: ino.0, path: None, bytes: (from, to) }),
            }
        }
        let Some(first) = files.first() else { return };
        (problem.inode, problem.bytes) = (Some(first.inode), Some(first.bytes));
        problem.files_omitted = files.len().saturating_sub(Problem::FILES_MAX) as u64;
        files.truncate(Problem::FILES_MAX);
        problem.files = files;
    }

    fn owners(&mut self, family: FamilyId) -> Vec<InodeId> {
        let inodes = self.inodes;
        let owners = self.owners.get_or_insert_with(|| {
            let mut owners: HashMap<FamilyId, Vec<InodeId>> = HashMap::new();
            for (ino, seen) in inodes.iter().filter(|(_, seen)| !seen.inline) {
                owners.entry(seen.holder.family).or_default().push(*ino);
            }
            owners
        });
        owners.get(&family).cloned().unwrap_or_default()
    }

    /// Adds the ranges in which a file has the blocks from `low` to `high` at its byte `first`.
    fn seen(&self, ino: InodeId, first: u64, low: u64, high: u64, found: &mut BTreeSet<(InodeId, u64, u64)>) {
        let Some(file) = self.inodes.get(&ino) else { return };
        let mut holder = file.holder;
        holder.has_versions |= self.sharing;
        let last = first + (high - low);
        let pieces = version::Path::load(&self.view, holder)
            .and_then(|path| version::resolve_upto(&self.view, &path, first, last, usize::MAX));
        match pieces {
            Ok(pieces) => {
                for piece in pieces {
                    if let Mapping::Data { addr, .. } = piece.what
                        && addr.0.checked_sub(low) == Some(piece.offset - first)
                    {
                        found.insert((ino, piece.offset, piece.offset + piece.len));
                    }
                }
            }
            // What it sees cannot be told, which is a problem of its own: it may have them.
            Err(_) => {
                found.insert((ino, first, last));
            }
        }
    }
}
