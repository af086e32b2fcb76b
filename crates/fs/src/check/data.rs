//! Extents against their inodes, what is reserved, and what of files is lost.

use std::collections::HashMap;

use varve_engine::version::{self, Mapping};
use varve_engine::{BLOCK_BYTES, FamilyId, InodeId, Problem, ProblemKind as Kind, Problems, Run, TreeId};
use varve_format::SEGMENT_BYTES;

use super::Check;
use crate::Result;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A run of data, and where in which file it is.
pub(super) struct DataRun {
    pub run: Run,
    pub family: FamilyId,
    pub offset: u64,
}

impl Check<'_> {
    pub(super) fn extents(&mut self) -> Result<()> {
        let mut owners: HashMap<FamilyId, Vec<InodeId>> = HashMap::new();
        for (ino, seen) in &self.inodes {
            owners.entry(seen.holder.family).or_default().push(*ino);
        }
        let holders = self.holders()?;
        let (mut after, mut reserved) = (None, 0);
        while let Some(family) = version::next_family(&self.view, after)? {
            after = Some(family);
            if self.is_namespace(family) {
                continue;
            }
            let owners = owners.get(&family).map_or(&[][..], Vec::as_slice);
            let owner = owners.first().copied();
            let holders = holders.get(&family).map_or(&[][..], Vec::as_slice);
            let (mut found, mut last) = (Vec::new(), 0);
            let runs = &mut self.runs;
            let mut each = |offset: u64, run: Run| {
                last = last.max(offset + run.bytes());
                runs.push(DataRun { run, family, offset });
            };
            reserved += version::walk_family(&self.view, family, holders, &mut each, &mut found)?;
            let sound = found.is_empty();
            for mut problem in found {
                if problem.kind == Kind::ExtentOwnerless && self.inode_is_lost(InodeId(family.0)) {
                    continue;
                }
                problem.inode = owner.map(|ino| ino.0);
                self.problems.add(problem);
            }
            self.taken("a family of data", family.0);
            // Without records nothing else says that a version is none that ever was.
            for holder in holders {
                self.taken("a version of data", holder.version.0);
            }
            for ino in owners {
                self.beyond_size(*ino, last, sound);
            }
        }
        let says = crate::table::subvolumes::first_in(&self.view).ok().flatten();
        let says = says.map_or(reserved, |record| record.reserved_blocks);
        if reserved != says && !self.has_lost(TreeId::EXTENTS) {
            let text = format!("{reserved} blocks are reserved, and the subvolume says {says}");
            self.problem(Kind::ReservedCount, text);
        }
        Ok(())
    }

    /// Whether a family is not of data.
    fn is_namespace(&self, family: FamilyId) -> bool {
        self.namespaces.iter().any(|names| names.family == family)
            || crate::table::subvolumes::others(&self.view)
                .is_ok_and(|others| others.iter().flat_map(|(_, r)| r).any(|record| record.family == family))
    }

    /// Data where an inode has none; `last` is where that of its family ends.
    fn beyond_size(&mut self, ino: InodeId, last: u64, sound: bool) {
        let Some(seen) = self.inodes.get(&ino) else { return };
        let (mut holder, end) = (seen.holder, seen.size.next_multiple_of(BLOCK));
        let sharing = self.core.sharing();
        if seen.inline && !seen.orphan && !sharing {
            let text = format!("inode {} has its contents in its record, and extents", ino.0);
            return self.of(Kind::InodeSenseless, ino, text);
        }
        // What is cut off and not yet reaped lies behind a limit.
        if seen.orphan || seen.inline || last <= end || !sound {
            return;
        }
        holder.has_versions |= sharing;
        let path = version::Path::load(&self.view, holder);
        // One page of pieces is enough: anything there is too much.
        let beyond = path.and_then(|path| version::resolve_upto(&self.view, &path, end, last, 8));
        let beyond = match beyond {
            Ok(beyond) => beyond,
            Err(error) => {
                return self.of(Kind::VersionMalformed, ino, format!("data of inode {}: {error}", ino.0));
            }
        };
        let piece = beyond.iter().find(|piece| matches!(piece.what, Mapping::Data { .. }));
        if let Some(piece) = piece {
            let bytes = Some((piece.offset, piece.offset + piece.len));
            let text = format!("inode {} has data beyond its size", ino.0);
            self.problems.add(Problem { bytes, ..Problem::of_inode(Kind::ExtentBeyondSize, ino.0, text) });
        }
    }

    /// Files of which extents were in nodes that are gone.
    pub(super) fn lost_parts(&mut self) {
        let mut found = Problems::default();
        for lost in self.lost.keys.get(&TreeId::EXTENTS).into_iter().flatten() {
            let family = |key: &[u8]| key.first_chunk::<8>().map(|bytes| InodeId(u64::from_be_bytes(*bytes)));
            let first = family(&lost.low).unwrap_or_default();
            let last = lost.high.as_deref().and_then(family).unwrap_or(InodeId(u64::MAX));
            // A file's family bears the number of its inode.
            for (ino, seen) in self.inodes.range(first..=last.max(first)) {
                let prefix = seen.holder.family.0.to_be_bytes();
                if seen.inline || seen.size == 0 || seen.orphan {
                    continue;
                }
                // Where in the file a key lies; a key of another family is before or behind all of it.
                let offset = |key: &[u8], otherwise: u64| {
                    let mut whole = [0; 28];
                    let len = key.len().min(28);
                    whole[..len].copy_from_slice(&key[..len]);
                    let segment = u64::from_be_bytes(whole[8..16].try_into().expect("8 of 28 bytes"));
                    match key.starts_with(&prefix) {
                        true => segment.saturating_mul(SEGMENT_BYTES).min(seen.size),
                        false => otherwise,
                    }
                };
                let from = offset(&lost.low, 0);
                let to = match &lost.high {
                    // Part of the segment of the end may be lost, too.
                    Some(high) if high.starts_with(&prefix) && high.len() > 16 => {
                        offset(high, seen.size).saturating_add(SEGMENT_BYTES).min(seen.size)
                    }
                    Some(high) => offset(high, seen.size),
                    None => seen.size,
                };
                if from >= to {
                    continue;
                }
                let text = format!("what inode {} has here is lost where it was data", ino.0);
                let bytes = Some((from, to));
                found.add(Problem { bytes, ..Problem::of_inode(Kind::ExtentsLost, ino.0, text) });
            }
        }
        self.problems.append(found);
    }
}
