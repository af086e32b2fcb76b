//! Extents against their inodes, what is reserved, and what of files is lost.

use std::collections::HashSet;

use varve_engine::version::{self, Holder, Mapping};
use varve_engine::{BLOCK_BYTES, FamilyId, InodeId, Problem, ProblemKind as Kind, Problems, Run, TreeId};
use varve_format::record::inode::inode_key;
use varve_format::{SEGMENT_BYTES, VersionKey};

use super::Check;
use super::owners::{Owner, Owners, Place};
use crate::Result;
use crate::shown_number;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A run of data, and where in which file it is.
pub struct DataRun {
    pub run: Run,
    pub family: FamilyId,
    pub offset: u64,
}

impl Check<'_> {
    pub(super) fn extents(&mut self) -> Result<()> {
        let sharing = self.core.sharing();
        let owners = std::mem::take(&mut self.owners);
        let mut namespaces: HashSet<FamilyId> = self.namespaces.iter().map(|names| names.family).collect();
        // Those that are being deleted, too.
        let others = match crate::table::subvolumes::others(&self.view) {
            // Their families would be taken for data's.
            Err(error) if error.may_pass() => return Err(error.into()),
            others => others.unwrap_or_default(),
        };
        namespaces.extend(others.iter().flat_map(|(_, record)| record).map(|record| record.family));
        let (mut after, mut reserved) = (None, 0);
        while let Some(family) = version::next_family(&self.view, after)? {
            after = Some(family);
            if namespaces.contains(&family) {
                continue;
            }
            self.core.store.progress().step(1);
            let of_family = owners.of(family);
            let holders: Vec<Holder> = of_family
                .iter()
                .filter(|owner| !owner.inline || !sharing)
                .map(|owner| Holder { has_versions: owner.holder.has_versions | sharing, ..owner.holder })
                .collect();
            let (mut found, mut last) = (Vec::new(), 0);
            let runs = &mut self.runs;
            let mut each = |offset: u64, run: Run| {
                last = last.max(offset + run.bytes());
                runs.push(DataRun { run, family, offset });
            };
            reserved += version::walk_family(&self.view, family, &holders, &mut each, &mut found)?;
            let sound = found.is_empty();
            if !sound {
                // It is a problem whoever sees it, and is told also where that cannot be read.
                let seen_as = |owner: &Owner| owner.seen_as(&self.view, &self.namespaces, 1).ok();
                let owner = of_family.iter().filter_map(seen_as).flatten().next();
                for mut problem in found {
                    let owner_lost =
                        problem.kind == Kind::ExtentOwnerless && self.record_is_lost(&owners, family);
                    if !owner_lost {
                        problem.inode = owner.map(|ino| ino.0);
                        self.problems.add(problem);
                    }
                }
            }
            for owner in of_family {
                self.beyond_size(owner, last, sound)?;
            }
        }
        self.numbers(&owners, after)?;
        self.owners = owners;
        let says = crate::table::subvolumes::first_in(&self.view)?;
        let says = says.map_or(reserved, |record| record.reserved_blocks);
        if reserved != says && !self.has_lost(TreeId::EXTENTS) {
            let text = format!("{reserved} blocks are reserved, and the subvolume says {says}");
            self.problem(Kind::ReservedCount, text);
        }
        Ok(())
    }

    /// Whether the record of the inode that bears the number of a family may have been lost.
    fn record_is_lost(&self, owners: &Owners, family: FamilyId) -> bool {
        let first = &self.namespaces[0];
        let key = inode_key(first.family, InodeId(family.0), VersionKey(first.version.0));
        self.lost.covers(TreeId::INODES, &key) || owners.malformed.contains(&InodeId(family.0))
    }

    /// Whom a problem of an inode's data is about: its number, if it is known, and what it is called; `None`: nobody sees it, and it is no
    /// problem. Where that cannot be read somebody may.
    fn who(&self, owner: &Owner) -> Option<(Option<u64>, String)> {
        match owner.seen_as(&self.view, &self.namespaces, 1) {
            Ok(seen_as) => seen_as.first().map(|ino| (Some(ino.0), format!("inode {}", shown_number(*ino)))),
            Err(error) => Some((None, format!("an inode of which cannot be read who sees it ({error})"))),
        }
    }

    /// Data where an inode has none; `last` is where that of its family ends.
    fn beyond_size(&mut self, owner: &Owner, last: u64, sound: bool) -> Result<()> {
        let (mut holder, end) = (owner.holder, owner.size.next_multiple_of(BLOCK));
        let (sharing, orphan) = (self.core.sharing(), matches!(owner.place, Place::Orphan(_)));
        if owner.inline && !orphan && !sharing {
            if let Some((inode, name)) = self.who(owner) {
                let text = format!("{name} has its contents in its record, and extents");
                self.problems.add(Problem { inode, ..Problem::new(Kind::InodeSenseless, text) });
            }
            return Ok(());
        }
        // What is cut off and not yet reaped lies behind a limit.
        if orphan || owner.inline || last <= end || !sound {
            return Ok(());
        }
        holder.has_versions |= sharing;
        let path = version::Path::load(&self.view, holder);
        // One page of pieces is enough: anything there is too much.
        let beyond = path.and_then(|path| version::resolve_upto(&self.view, &path, end, last, 8));
        let beyond = match beyond {
            Ok(beyond) => beyond,
            Err(error) if error.may_pass() => return Err(error.into()),
            Err(error) => {
                if let Some((inode, name)) = self.who(owner) {
                    let text = format!("data of {name}: {error}");
                    self.problems.add(Problem { inode, ..Problem::new(Kind::VersionMalformed, text) });
                }
                return Ok(());
            }
        };
        let piece = beyond.iter().find(|piece| matches!(piece.what, Mapping::Data { .. }));
        if let Some(piece) = piece
            && let Some((inode, name)) = self.who(owner)
        {
            let bytes = Some((piece.offset, piece.offset + piece.len));
            let text = format!("{name} has data beyond its size");
            self.problems.add(Problem { inode, bytes, ..Problem::new(Kind::ExtentBeyondSize, text) });
        }
        Ok(())
    }

    /// Files of which extents were in nodes that are gone.
    pub(super) fn lost_parts(&mut self) {
        let mut found = Problems::default();
        for (at, lost) in self.lost.keys.get(&TreeId::EXTENTS).into_iter().flatten().enumerate() {
            let family = |key: &[u8]| key.first_chunk::<8>().map(|bytes| InodeId(u64::from_be_bytes(*bytes)));
            let first = family(&lost.low).unwrap_or_default();
            let last = lost.high.as_deref().and_then(family).unwrap_or(InodeId(u64::MAX));
            // A file's family bears the number of its inode.
            for (ino, seen) in self.inodes.range(first..=last.max(first)) {
                let Some(says) = &seen.says else { continue };
                let prefix = says.data.0.to_be_bytes();
                if says.inline || says.size == 0 {
                    continue;
                }
                // Where in the file a key lies; a key of another family is before or behind all of it.
                let offset = |key: &[u8], otherwise: u64| {
                    let mut whole = [0; 28];
                    let len = key.len().min(28);
                    whole[..len].copy_from_slice(&key[..len]);
                    let segment = u64::from_be_bytes(whole[8..16].try_into().expect("8 of 28 bytes"));
                    match key.starts_with(&prefix) {
                        true => segment.saturating_mul(SEGMENT_BYTES).min(says.size),
                        false => otherwise,
                    }
                };
                let from = offset(&lost.low, 0);
                let to = match &lost.high {
                    // Part of the segment of the end may be lost, too.
                    Some(high) if high.starts_with(&prefix) && high.len() > 16 => {
                        offset(high, says.size).saturating_add(SEGMENT_BYTES).min(says.size)
                    }
                    Some(high) => offset(high, says.size),
                    None => says.size,
                };
                // One subvolume or snapshot that has it is enough.
                if from >= to || !self.told.insert((at, *ino, says.data)) {
                    continue;
                }
                let ino = self.namespace.slot.full(*ino);
                let text = format!("what inode {} has here is lost where it was data", shown_number(ino));
                let bytes = Some((from, to));
                found.add(Problem { bytes, ..Problem::of_inode(Kind::ExtentsLost, ino.0, text) });
            }
        }
        self.problems.append(found);
    }
}
