//! Moving everything behind a place in a file: a range is taken out, or room is made.
//!
//! Keys hold offsets, so each entry behind the place gets another key. That is one transaction or nothing: half of it
//! would be a file that never was.

use varve_format::record::extent::{DataKey, Extent, ExtentKind};
use varve_format::{BLOCK_BYTES, Corrupt, FamilyId, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionKey};

use super::path::Path;
use super::resolve::{FILE_END, resolve_upto, scan};
use super::segment::{Changes, Entry, Place};
use super::{Mapping, Read, Result, Unreserved};
use crate::{EngineError, Transaction};

/// Most bytes of log that a move may take: a good part of what one transaction may.
const LOG_BYTES_MAX: u64 = 3 << 20;
/// Pieces looked at in one go.
const PIECES_AT_ONCE: usize = 1024;
/// Bytes of log that a put and a delete take, about.
const PUT_BYTES: u64 = 80;
const DELETE_BYTES: u64 = 40;

/// What [`shift`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shifted {
    /// Entries put or deleted.
    pub entries: u64,
    /// Blocks freed, because they were in the range that was taken out.
    pub blocks_freed: u64,
    /// Blocks of reservations that were in it.
    pub reserved_freed: Unreserved,
}

/// Takes [`at`, `at` + `remove`) out of the file, and makes a hole of `insert` bytes at `at`; what lies behind moves. All
/// three are whole blocks. The path must have a single version ([`super::reap_step`] until it has). `None`: there is more
/// to move than one transaction can hold, and `tx` is as it was.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn shift(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    at: u64,
    remove: u64,
    insert: u64,
) -> Result<Option<Shifted>> {
    assert!(path.writable() && path.versions() == 1, "only what one version has can be moved");
    assert!(
        [at, remove, insert].iter().all(|bytes| bytes.is_multiple_of(BLOCK_BYTES as u64)),
        "whole blocks are moved"
    );
    let start =
        DataKey { family: path.family(), segment: at / SEGMENT_BYTES, version: path.target(), offset: 0 };
    let entries_max = (LOG_BYTES_MAX / (PUT_BYTES + DELETE_BYTES)) as usize;
    let mut old: Vec<(DataKey, Extent)> = Vec::new();
    scan(read, &start, |key, extent| {
        if key.version == start.version {
            old.push((key, extent));
        }
        old.len() <= entries_max
    })?;
    if old.len() > entries_max {
        return Ok(None);
    }
    let mut new = Pieces { start, list: Vec::with_capacity(old.len() + old.len() / 8) };
    let mut gone = Vec::new();
    let taken_end = at + remove;
    for (key, extent) in &old {
        let (low, high) = (key.file_offset(), key.file_offset() + u64::from(extent.len));
        let part =
            |from: u64, to: u64| (from < to).then(|| extent.piece((from - low) as u32, (to - from) as u32));
        if let Some(stays) = part(low, high.min(at)) {
            new.push(low, stays);
        }
        gone.extend(part(low.max(at), high.min(taken_end)));
        if let Some(moves) = part(low.max(taken_end), high) {
            let to = low.max(taken_end) - remove + insert;
            within(path, to, u64::from(moves.len))?;
            new.push(to, moves);
        }
    }
    let puts_max = new.list.len() as u64;
    if puts_max * PUT_BYTES + old.len() as u64 * DELETE_BYTES > LOG_BYTES_MAX {
        return Ok(None);
    }
    let mut changes = Changes::new(tx);
    let (mut olds, mut news) = (old.as_slice(), new.list.as_slice());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    while let Some(segment) = olds.first().into_iter().chain(news.first()).map(|(key, _)| key.segment).min() {
        take_segment(&mut olds, segment, &mut before);
        take_segment(&mut news, segment, &mut after);
        let place = Place { family: path.family(), segment, version: start.version };
        changes.difference(read, &place, &before, &after, true)?;
    }
    for extent in &gone {
        changes.free(extent);
    }
    changes.finish();
    Ok(Some(Shifted {
        entries: changes.entries(),
        blocks_freed: changes.blocks_freed,
        reserved_freed: changes.reserved_freed,
    }))
}

/// As [`shift`], for a file whose data others see too: what `path` sees, moved, becomes the data of `family`, a new one of a
/// single version, whose extents name the same blocks. In the same transaction the caller lets go of what it holds
/// ([`super::release`]) and holds the new family. Reservations stay with the others: they become holes.
///
/// # Errors
/// As [`shift`].
pub fn shift_away(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    family: FamilyId,
    at: u64,
    remove: u64,
    insert: u64,
) -> Result<Option<Shifted>> {
    assert!(
        [at, remove, insert].iter().all(|bytes| bytes.is_multiple_of(BLOCK_BYTES as u64)),
        "whole blocks are moved"
    );
    // Each is a put of an extent and two of counts, if it breaks up one that is there.
    let puts_max = (LOG_BYTES_MAX / (PUT_BYTES + 2 * DELETE_BYTES)) as usize;
    let start = DataKey { family, segment: 0, version: VersionKey(family.0), offset: 0 };
    let mut new = Pieces { start, list: Vec::new() };
    let mut from = 0;
    while from < FILE_END {
        for piece in resolve_upto(read, path, from, FILE_END, PIECES_AT_ONCE)? {
            let low = piece.offset;
            from = low + piece.len;
            let Mapping::Data { addr, .. } = piece.what else { continue };
            let mut keep = |begin: u64, end: u64, to: u64| -> Result<()> {
                if begin < end {
                    within(path, to, end - begin)?;
                    new.push_data(to, PoolAddr(addr.0 + (begin - low)), end - begin);
                }
                Ok(())
            };
            keep(low, from.min(at), low)?;
            let behind = low.max(at + remove);
            keep(behind, from, behind - remove + insert)?;
        }
        if new.list.len() > puts_max {
            return Ok(None);
        }
    }
    for (key, extent) in &new.list {
        tx.put(TreeId::EXTENTS, &key.encode(), &extent.encode());
        extent.run().into_iter().for_each(|run| tx.share(run));
    }
    Ok(Some(Shifted { entries: new.list.len() as u64, ..Shifted::default() }))
}

/// `len` bytes from `to` on must be within what a file can have. The caller bounds its size, and nothing lies so far beyond that.
fn within(path: &Path, to: u64, len: u64) -> Result<()> {
    if to < FILE_END - len {
        return Ok(());
    }
    let why = Corrupt { what: "extent far beyond the end of a file", at: 0 };
    Err(EngineError::corrupt(format!("the data of family {}", path.family().0), why))
}

/// Moves the entries of `segment` from the front of `list` into `out`.
fn take_segment(list: &mut &[(DataKey, Extent)], segment: u64, out: &mut Vec<Entry>) {
    let (here, rest) = list.split_at(list.partition_point(|(key, _)| key.segment == segment));
    out.clear();
    out.extend(here.iter().map(|(key, extent)| Entry { off: key.offset, extent: *extent }));
    *list = rest;
}

/// Entries in the order of the file, cut at the ends of segments and joined where they continue each other.
struct Pieces {
    /// Family and version.
    start: DataKey,
    list: Vec<(DataKey, Extent)>,
}

impl Pieces {
    fn push_data(&mut self, mut offset: u64, mut addr: PoolAddr, mut len: u64) {
        while len > 0 {
            let part = len.min(SEGMENT_BYTES - offset % SEGMENT_BYTES);
            self.push(offset, Extent::data(Run { addr, blocks: (part / BLOCK_BYTES as u64) as u32 }));
            (offset, addr, len) = (offset + part, PoolAddr(addr.0 + part), len - part);
        }
    }

    fn push(&mut self, mut offset: u64, extent: Extent) {
        // Holes hide what is beneath, and there is nothing.
        if extent.kind == ExtentKind::Hole {
            return;
        }
        let mut done = 0;
        while done < extent.len {
            let within = (offset % SEGMENT_BYTES) as u32;
            let len = (extent.len - done).min(SEGMENT_BYTES as u32 - within);
            let piece = extent.piece(done, len);
            match self.list.last_mut() {
                Some((key, last))
                    if within > 0
                        && key.file_offset() + u64::from(last.len) == offset
                        && last.continues(&piece) =>
                {
                    last.append(&piece);
                }
                _ => {
                    let key = DataKey { segment: offset / SEGMENT_BYTES, offset: within, ..self.start };
                    self.list.push((key, piece));
                }
            }
            (done, offset) = (done + len, offset + u64::from(len));
        }
    }
}
