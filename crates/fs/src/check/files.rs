//! Whose the blocks are that the engine's check complains of: every file that sees them, in whatever subvolume.
//!
//! A block belongs to several files where a file has clones or is in snapshots (they see the same extent of one family), and
//! where extents name the same blocks. Who sees an extent is found by reading as that file does, so a version that nobody
//! sees any more names nobody.

use std::collections::BTreeSet;

use varve_engine::version::{self, Mapping};
use varve_engine::{Problem, View};
use varve_format::SEGMENT_BYTES;

use super::data::DataRun;
use super::owners::{Owner, Owners};
use crate::table::Namespace;
use varve_engine::FileRange;

/// Files looked at for all problems of a check together. Beyond, their number is not known.
const LOOKS_MAX: u64 = 1 << 17;

/// Where data is, and who may have it.
pub struct Files<'a> {
    view: &'a View,
    sharing: bool,
    /// By address.
    runs: &'a [DataRun],
    owners: &'a Owners,
    namespaces: &'a [Namespace],
    looks_left: u64,
}

impl<'a> Files<'a> {
    pub(super) fn new(
        view: &'a View,
        sharing: bool,
        runs: &'a [DataRun],
        owners: &'a Owners,
        namespaces: &'a [Namespace],
    ) -> Files<'a> {
        Files { view, sharing, runs, owners, namespaces, looks_left: LOOKS_MAX }
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
            for owner in self.owners.of(data.family).iter().filter(|owner| !owner.inline) {
                if self.looks_left == 0 {
                    problem.files_uncounted = true;
                    break;
                }
                self.looks_left -= 1;
                let ranges = self.ranges(owner, first, low, high);
                if ranges.is_empty() {
                    continue;
                }
                self.looks_left = self.looks_left.saturating_sub(self.namespaces.len() as u64);
                let Ok(seen_as) = owner.seen_as(self.view, self.namespaces, usize::MAX) else {
                    problem.files_uncounted = true;
                    continue;
                };
                let all = seen_as.iter().flat_map(|ino| ranges.iter().map(|(from, to)| (*ino, *from, *to)));
                found.extend(all);
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

    /// The ranges in which who holds `owner` has the blocks from `low` to `high`, at its byte `first`.
    fn ranges(&self, owner: &Owner, first: u64, low: u64, high: u64) -> Vec<(u64, u64)> {
        let mut holder = owner.holder;
        holder.has_versions |= self.sharing;
        let last = first + (high - low);
        let pieces = version::Path::load(self.view, holder)
            .and_then(|path| version::resolve_upto(self.view, &path, first, last, usize::MAX));
        // What it sees cannot be told, which is a problem of its own: it may have them.
        let Ok(pieces) = pieces else { return vec![(first, last)] };
        let has = |piece: &version::Mapped| match piece.what {
            Mapping::Data { addr, .. } => addr.0.checked_sub(low) == Some(piece.offset - first),
            _ => false,
        };
        pieces
            .iter()
            .filter(|piece| has(piece))
            .map(|piece| (piece.offset, piece.offset + piece.len))
            .collect()
    }
}
