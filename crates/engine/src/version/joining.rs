//! Lists of several versions in one place, laid over each other, become one.

use varve_format::record::extent::ExtentKind;
use varve_format::{BLOCK_BYTES, FamilyId, SEGMENT_BYTES, VersionId, VersionKey};

use super::extents::Extents;
use super::family::Blocks;
use super::path::Path;
use super::resolve::resolve_behind;
use super::segment::{Entry, Place, push_joined};
use super::{Holder, Mapping, Read, Result};

/// What lies beneath versions that become one. Its path is loaded when it is first asked for.
pub(super) struct Beneath {
    version: VersionId,
    versions: usize,
    path: Option<Path>,
}

impl Beneath {
    /// Beneath `versions` versions, of which `version` is the youngest.
    pub(super) fn new(version: VersionId, versions: usize) -> Beneath {
        Beneath { version, versions, path: None }
    }

    fn path(&mut self, read: &dyn Read, family: FamilyId) -> Result<&Path> {
        let path = match self.path.take() {
            Some(path) => path,
            None => Path::load(read, Holder { family, version: self.version, has_versions: true })?,
        };
        Ok(self.path.insert(path))
    }
}

impl Extents<'_> {
    /// Lays the lists of a segment over each other, the first one on top. The result becomes the list of `target`, which
    /// has to be one of them, or of nobody; the others have nothing there any more. What is covered is freed. Given what
    /// lies `beneath` them all, holes that hide nothing are dropped.
    pub(super) fn join(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        segment: u64,
        lists: &[(VersionKey, Vec<Entry>)],
        target: Option<VersionKey>,
        beneath: Option<&mut Beneath>,
    ) -> Result<()> {
        let (mut pieces, mut covered) = (Vec::new(), Blocks::NONE);
        if target.is_none() {
            covered = Blocks::ALL;
        }
        for entry in lists.iter().flat_map(|(_, list)| list) {
            let (mut at, end) = (block(entry.off), block(entry.end()));
            let all = Blocks::range(at, end);
            while at < end {
                let upto = covered.run_end(at, end);
                let part = entry.part(bytes(at), bytes(upto));
                if covered.has(at) {
                    self.changes.free(&part.extent)
                } else {
                    pieces.push(part)
                }
                at = upto;
            }
            covered = covered.or(all);
        }
        pieces.sort_unstable_by_key(|entry| entry.off);
        let mut joined = Vec::with_capacity(pieces.len());
        pieces.into_iter().for_each(|entry| push_joined(&mut joined, entry));
        if let Some(beneath) = beneath {
            drop_idle_holes(read, family, beneath, segment, &mut joined)?;
        }
        for (version, list) in lists {
            let place = Place { family, segment, version: *version };
            let new = if Some(*version) == target { &joined[..] } else { &[] };
            self.changes.difference(read, &place, list, new, true)?;
        }
        Ok(())
    }
}

/// Of the holes in the joined list of a segment only those stay that hide something beneath.
fn drop_idle_holes(
    read: &dyn Read,
    family: FamilyId,
    beneath: &mut Beneath,
    segment: u64,
    list: &mut Vec<Entry>,
) -> Result<()> {
    if list.iter().all(|entry| entry.extent.kind != ExtentKind::Hole) {
        return Ok(());
    }
    let (versions, base) = (beneath.versions, segment * SEGMENT_BYTES);
    let path = beneath.path(read, family)?;
    let mut kept = Vec::with_capacity(list.len());
    for entry in list.iter() {
        if entry.extent.kind != ExtentKind::Hole {
            kept.push(*entry);
            continue;
        }
        let (low, high) = (base + u64::from(entry.off), base + u64::from(entry.end()));
        for piece in resolve_behind(read, path, versions, low, high, usize::MAX)? {
            if piece.what != Mapping::Hole {
                let off = (piece.offset - base) as u32;
                push_joined(
                    &mut kept,
                    Entry { off, extent: entry.extent.piece(off - entry.off, piece.len as u32) },
                );
            }
        }
    }
    *list = kept;
    Ok(())
}

/// The block of a segment in which this byte of it is.
pub(super) fn block(offset: u32) -> usize {
    offset as usize / BLOCK_BYTES
}

/// The first byte of a block of a segment.
pub(super) fn bytes(block: usize) -> u32 {
    (block * BLOCK_BYTES) as u32
}
