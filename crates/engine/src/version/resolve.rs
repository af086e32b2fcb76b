//! Reading: from a range of a file to places in the pool, in one scan.
//!
//! Keys grow along every path, so within a segment the scan meets the versions of a path nearest first: what comes
//! later only fills the gaps, and when there are none the scan leaps to the next segment. It also leaps over many
//! entries of versions that are not on the path. A path of one version needs no overlay at all and starts at the wanted
//! offset. Behind the nearest keyframe ([`super::keyframe`]) no entry is looked at.

use varve_format::record::extent::{self, CODEC_NONE, DataKey, Extent, ExtentKind};
use varve_format::{BLOCK_BYTES, Corrupt, FamilyId, PoolAddr, SEGMENT_BYTES, TreeId};

use super::keyframe::{self, Passed, Pieces};
use super::path::{Path, Step};
use super::{Mapped, Mapping, Read, Result};
use crate::EngineError;

/// So many entries in a row that are of no version of the path make the scan leap over the rest of them.
pub(super) const LEAP_ENTRIES: u32 = 16;

/// First byte that no file has.
pub(super) const FILE_END: u64 = (extent::SEGMENT_MAX + 1) * SEGMENT_BYTES;

/// Where the bytes [`from`, `to`) of the file are: pieces in order, without gaps, from `from` rounded down to `to`
/// rounded up to a block. Pieces that lie side by side in file and pool are joined. Cost: one scan of the entries in
/// that range, however many holes there are.
///
/// # Errors
/// [`EngineError::Corrupt`] for an entry that cannot be.
pub fn resolve(read: &dyn Read, path: &Path, from: u64, to: u64) -> Result<Vec<Mapped>> {
    resolve_upto(read, path, from, to, usize::MAX)
}

/// As [`resolve`], but may stop early, when it has at least `pieces_max` pieces: go on at the end of the last one.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_upto(
    read: &dyn Read,
    path: &Path,
    from: u64,
    to: u64,
    pieces_max: usize,
) -> Result<Vec<Mapped>> {
    resolve_behind(read, path, 0, from, to, pieces_max)
}

/// As [`resolve_upto`], but stops also when it has looked at `entries_max` entries, as soon as it has come further than `from`:
/// what is joined to one piece, or belongs to others, may be any number of them.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_some(
    read: &dyn Read,
    path: &Path,
    from: u64,
    to: u64,
    pieces_max: usize,
    entries_max: usize,
) -> Result<Vec<Mapped>> {
    resolve_within(read, path, 0, from, to, pieces_max, entries_max)
}

/// [`resolve_upto`] without the first `skip` versions of the path.
pub(super) fn resolve_behind(
    read: &dyn Read,
    path: &Path,
    skip: usize,
    from: u64,
    to: u64,
    pieces_max: usize,
) -> Result<Vec<Mapped>> {
    resolve_within(read, path, skip, from, to, pieces_max, usize::MAX)
}

fn resolve_within(
    read: &dyn Read,
    path: &Path,
    skip: usize,
    from: u64,
    to: u64,
    pieces_max: usize,
    entries_left: usize,
) -> Result<Vec<Mapped>> {
    let block = BLOCK_BYTES as u64;
    let from = from.min(FILE_END) / block * block;
    let to = to.min(FILE_END).next_multiple_of(block);
    let mut cover = Cover {
        pieces: Vec::new(),
        at: from,
        from,
        to,
        pieces_max,
        entries_left,
        enough: false,
        overlap: false,
    };
    if from >= to || skip >= path.versions() {
        cover.hole_to(to);
        return Ok(cover.pieces);
    }
    if skip + 1 == path.versions() {
        scan_one(read, path.family(), path.step(skip), &mut cover)?;
    } else {
        scan_many(read, path, skip, &mut cover)?;
    }
    if cover.overlap {
        let why = Corrupt { what: "extents that overlap", at: 0 };
        return Err(EngineError::corrupt(format!("the data of family {}", path.family().0), why));
    }
    if !cover.full() {
        cover.hole_to(to);
    }
    Ok(cover.pieces)
}

fn scan_one(read: &dyn Read, family: FamilyId, step: Step, cover: &mut Cover) -> Result<()> {
    let (from, to) = (cover.at, cover.to.min(step.visible));
    let within = (from % SEGMENT_BYTES) as u32;
    let start = DataKey { family, segment: from / SEGMENT_BYTES, version: step.key, offset: within };
    let mut next = Some(start);
    while let Some(start) = next.take() {
        let mut foreign = 0;
        scan_covering(read, &start, |key, extent| {
            let base = key.segment * SEGMENT_BYTES;
            if base >= to || cover.full() || cover.has_enough(base) {
                return false;
            }
            cover.look_at(1);
            if key.version == step.key {
                foreign = 0;
                cover.entry(&key, &extent, to);
                return key.file_offset() < to && cover.at < to;
            }
            foreign += 1;
            if foreign >= LEAP_ENTRIES {
                // Newer ones lie in front of those of this version, older ones behind them.
                let segment = key.segment + u64::from(key.version < step.key);
                next = Some(DataKey { segment, version: step.key, offset: 0, ..start });
            }
            next.is_none()
        })?;
    }
    Ok(())
}

fn scan_many(read: &dyn Read, path: &Path, skip: usize, cover: &mut Cover) -> Result<()> {
    let (from, to) = (cover.at, cover.to);
    let nearest = path.step(skip).key;
    let start = DataKey { family: path.family(), segment: from / SEGMENT_BYTES, version: nearest, offset: 0 };
    let mut overlay = Overlay { pieces: Vec::new(), hint: 0, covered: 0 };
    let (mut segment, mut at, mut next) = (start.segment, skip, Some(start));
    // Of the segment that was entered last.
    let (mut entered, mut frame, mut passed) = (None, None, Passed::new(read, path));
    let mut pieces = Pieces::default();
    while let Some(start) = next.take() {
        let (mut foreign, mut failed) = (0, Ok(()));
        scan(read, &start, |key, extent| {
            if key.segment != segment {
                overlay.flush(segment, cover);
                (segment, at, foreign) = (key.segment, skip, 0);
            }
            let base = segment * SEGMENT_BYTES;
            if base >= to || cover.full() {
                return false;
            }
            let after = || {
                let segment = key.segment.checked_add(1).filter(|s| *s <= extent::SEGMENT_MAX)?;
                Some(DataKey { segment, version: nearest, offset: 0, ..start })
            };
            if entered != Some(segment) {
                if cover.has_enough(base) {
                    return false;
                }
                entered = Some(segment);
                passed.leave(path, segment);
                match keyframe::nearest(read, path, skip, segment, &mut pieces) {
                    Ok(found) => frame = found,
                    Err(error) => {
                        failed = Err(error);
                        return false;
                    }
                }
            }
            cover.look_at(1);
            if frame.take_if(|frame| key.version <= *frame).is_some() {
                overlay.hint = 0;
                cover.look_at(pieces.runs.len());
                let block =
                    |byte: u64| ((byte.max(base) - base).min(SEGMENT_BYTES) / BLOCK_BYTES as u64) as u16;
                for run in &pieces.runs {
                    if let Some((first, piece)) = keyframe::part(run, block(from), block(to)) {
                        overlay.add(u32::from(first) * BLOCK_BYTES as u32, &piece);
                    }
                }
                next = after();
                return false;
            }
            let before = at;
            at = path.first_at_most(at, key.version);
            if at != before {
                overlay.hint = 0;
            }
            passed.pass(at);
            if at == path.versions() {
                // All that is left of this segment is older than the path.
                foreign += 1;
            } else if path.step(at).key == key.version {
                foreign = 0;
                let (low, high) = (key.file_offset(), key.file_offset() + u64::from(extent.len));
                let (low_seen, high_seen) = (low.max(from), high.min(to).min(path.step(at).visible));
                if low_seen < high_seen {
                    let piece = extent.piece((low_seen - low) as u32, (high_seen - low_seen) as u32);
                    overlay.add((low_seen - base) as u32, &piece);
                }
            } else {
                foreign += 1;
            }
            let wanted = (to - base).min(SEGMENT_BYTES) - from.saturating_sub(base);
            let older = at == path.versions() && foreign >= LEAP_ENTRIES;
            if older || u64::from(overlay.covered) == wanted {
                next = after();
                return false;
            }
            if foreign >= LEAP_ENTRIES {
                next = Some(DataKey { segment, version: path.step(at).key, offset: 0, ..start });
                return false;
            }
            true
        })?;
        failed?;
    }
    passed.leave(path, segment);
    overlay.flush(segment, cover);
    Ok(())
}

/// Calls `each` with the decoded entries of a family from `from` on, until it returns false or the family ends.
pub(super) fn scan(read: &dyn Read, from: &DataKey, each: impl FnMut(DataKey, Extent) -> bool) -> Result<()> {
    decoded(from.family, each, |each| read.scan(TreeId::EXTENTS, &from.encode(), each))
}

/// Calls `each` with the entries that the versions of a path have in a segment, and the place of each version on it, nearest first,
/// until it returns false. Leaps over the entries of versions beside the path, of which a star of clones has many.
pub(super) fn scan_path(
    read: &dyn Read,
    path: &Path,
    segment: u64,
    mut each: impl FnMut(usize, DataKey, Extent) -> bool,
) -> Result<()> {
    let first = DataKey { family: path.family(), segment, version: path.head().key, offset: 0 };
    let (mut at, mut next) = (0, Some(first));
    while let Some(start) = next.take() {
        let mut foreign = 0;
        scan(read, &start, |key, extent| {
            at = path.first_at_most(at, key.version);
            if key.segment != segment || at == path.versions() {
                return false;
            }
            let nearest = path.step(at).key;
            if nearest == key.version {
                foreign = 0;
                return each(at, key, extent);
            }
            foreign += 1;
            if foreign >= LEAP_ENTRIES {
                next = Some(DataKey { version: nearest, ..start });
            }
            next.is_none()
        })?;
    }
    Ok(())
}

/// The same from the version's last entry at or before `from` in its segment on: what covers `from` may begin before it.
pub(super) fn scan_covering(
    read: &dyn Read,
    from: &DataKey,
    each: impl FnMut(DataKey, Extent) -> bool,
) -> Result<()> {
    let floor = DataKey { offset: 0, ..*from }.encode();
    decoded(from.family, each, |each| read.scan_around(TreeId::EXTENTS, &floor, &from.encode(), each))
}

/// Runs `scan` with `each` seeing the entries of a family decoded.
fn decoded(
    family: FamilyId,
    mut each: impl FnMut(DataKey, Extent) -> bool,
    scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>,
) -> Result<()> {
    let prefix = extent::family_prefix(family);
    let mut failed = None;
    scan(&mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        match decode(family, key, value) {
            Ok((key, extent)) => each(key, extent),
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    })?;
    failed.map_or(Ok(()), Err)
}

pub(super) fn decode(family: FamilyId, key: &[u8], value: &[u8]) -> Result<(DataKey, Extent)> {
    let wrong = |why: Corrupt| EngineError::corrupt(format!("an extent of family {}", family.0), why);
    extent::decode_entry(key, value).map_err(wrong)
}

/// The answer while it grows, from left to right.
struct Cover {
    pieces: Vec<Mapped>,
    /// Covered up to here.
    at: u64,
    from: u64,
    /// Entries of one version overlapped.
    overlap: bool,
    to: u64,
    pieces_max: usize,
    /// So many more are looked at.
    entries_left: usize,
    /// They have been, and the answer ends where all that lies in front was seen.
    enough: bool,
}

impl Cover {
    fn full(&self) -> bool {
        self.enough || self.pieces.len() >= self.pieces_max
    }
    fn look_at(&mut self, entries: usize) {
        self.entries_left = self.entries_left.saturating_sub(entries);
    }
    /// Whether to stop here, in the segment that begins at `base`: all in front of that has been seen.
    fn has_enough(&mut self, base: u64) -> bool {
        if self.entries_left == 0 {
            self.hole_to(base.min(self.to));
            self.enough = self.at > self.from;
        }
        self.enough
    }
    /// Adds what of an entry lies in front of `to` and has not been covered.
    fn entry(&mut self, key: &DataKey, extent: &Extent, to: u64) {
        let low = key.file_offset();
        let (low_seen, high_seen) = (low.max(self.at), (low + u64::from(extent.len)).min(to));
        if low_seen < high_seen {
            self.push(low_seen, &extent.piece((low_seen - low) as u32, (high_seen - low_seen) as u32));
        }
    }
    fn push(&mut self, offset: u64, extent: &Extent) {
        self.overlap |= offset < self.at;
        self.hole_to(offset);
        let addr = PoolAddr(extent.addr.0 + u64::from(extent.offset));
        let what = match extent.kind {
            ExtentKind::Hole => Mapping::Hole,
            ExtentKind::Reserved => Mapping::Reserved,
            ExtentKind::Data if extent.codec == CODEC_NONE => Mapping::Data { addr, extent: *extent },
            ExtentKind::Data => Mapping::Data { addr: extent.addr, extent: *extent },
        };
        self.add(u64::from(extent.len), what);
    }
    fn hole_to(&mut self, end: u64) {
        if end > self.at {
            self.add(end - self.at, Mapping::Hole);
        }
    }
    fn add(&mut self, len: u64, what: Mapping) {
        if let Some(last) = self.pieces.last_mut() {
            let joins = match (&last.what, &what) {
                (Mapping::Hole, Mapping::Hole) | (Mapping::Reserved, Mapping::Reserved) => true,
                (Mapping::Data { addr, extent }, Mapping::Data { addr: next, extent: other }) => {
                    (extent.codec, other.codec) == (CODEC_NONE, CODEC_NONE) && addr.0 + last.len == next.0
                }
                _ => false,
            };
            if joins {
                last.len += len;
                self.at += len;
                return;
            }
        }
        self.pieces.push(Mapped { offset: self.at, len, what });
        self.at += len;
    }
}

/// One segment seen through several versions: sorted, without overlaps, at most one piece a block.
struct Overlay {
    pieces: Vec<(u32, Extent)>,
    /// Pieces before this one end before the next entry of the same version begins.
    hint: usize,
    /// Bytes of the pieces.
    covered: u32,
}

impl Overlay {
    /// Fills the gaps under `extent`, which begins at `offset`, with its pieces.
    fn add(&mut self, offset: u32, extent: &Extent) {
        let (mut at, end) = (offset, offset + extent.len);
        while at < end {
            match self.pieces.get(self.hint) {
                Some((off, have)) if off + have.len <= at => self.hint += 1,
                // It may cover the next entry as well: the hint stays.
                Some(&(off, have)) if off <= at => at = off + have.len,
                next => {
                    let upto = next.map_or(end, |(off, _)| end.min(*off));
                    self.pieces.insert(self.hint, (at, extent.piece(at - offset, upto - at)));
                    self.covered += upto - at;
                    (at, self.hint) = (upto, self.hint + 1);
                }
            }
        }
    }
    fn flush(&mut self, segment: u64, cover: &mut Cover) {
        for (offset, extent) in self.pieces.drain(..) {
            cover.push(segment * SEGMENT_BYTES + u64::from(offset), &extent);
        }
        (self.hint, self.covered) = (0, 0);
    }
}
