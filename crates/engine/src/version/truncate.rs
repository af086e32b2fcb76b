//! Truncation: few entries are deleted at once, many are left behind a limit for the reaper.
//!
//! The crash that would bite: none. Either way it is one transaction; behind a limit nothing beyond it can be seen,
//! however long removing it takes and however often that is interrupted.

use varve_format::record::extent::{DataKey, Extent};
use varve_format::record::reap::Work;
use varve_format::record::version::VersionRecord;
use varve_format::{BLOCK_BYTES, Run, SEGMENT_BYTES, VersionId, VersionKey};

use super::extents::own_blocks;
use super::holders::open_child;
use super::path::Path;
use super::pending::{self, State, record};
use super::resolve::{FILE_END, scan};
use super::segment::{Changes, Entry, Place};
use super::write::mark_hidden;
use super::{Holder, Read, Result, Unreserved};
use crate::Transaction;

/// Entries that a truncation deletes at once.
const AT_ONCE_MAX: usize = 256;

/// What a truncation did.
#[derive(Clone, Debug)]
pub struct Truncated {
    /// The path of the holder from now on.
    pub path: Path,
    /// Whether [`super::reap_step`] has new work in this family.
    pub reap: bool,
    /// Blocks freed at once.
    pub blocks_freed: u64,
    /// Blocks of reservations that are gone at once.
    pub reserved_freed: Unreserved,
}

/// Removes what the file has from `new_size` (rounded up to a block) on, so that it reads as zeros when the file grows
/// again. Few entries of an unforked file are deleted at once; otherwise a child with a limit is opened, in O(1), and
/// `holder` moves to it (store it in the inode record, in the same transaction).
///
/// `tail` is a new block, already placed, with the bytes of the block that `new_size` cuts and zeros behind them;
/// it takes that block's place in the same transaction. Give it iff `new_size` is inside a block of data (resolve it
/// first); the caller must not [`super::put_extents`] in the same transaction.
/// `new_id` is called at most once, and the id it gives is claimed in `tx`, which becomes privileged.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a record that cannot be; `tx` must then be dropped.
pub fn truncate(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    new_id: &mut dyn FnMut() -> VersionId,
    new_size: u64,
    tail: Option<Run>,
) -> Result<Truncated> {
    truncate_within(read, tx, holder, new_id, new_size, tail, AT_ONCE_MAX)
}

/// As [`truncate`], while another holder, equal to `holder`, stays where it is: a copy that is cut in the transaction that
/// makes it. Always opens a child; frees nothing.
///
/// # Errors
/// As [`truncate`].
pub fn truncate_kept(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    new_id: &mut dyn FnMut() -> VersionId,
    new_size: u64,
    tail: Option<Run>,
) -> Result<Truncated> {
    cut_at(read, tx, holder, new_id, new_size, tail, None)
}

/// [`truncate`] with the number of entries that it may delete at once.
pub(super) fn truncate_within(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    new_id: &mut dyn FnMut() -> VersionId,
    new_size: u64,
    tail: Option<Run>,
    at_once_max: usize,
) -> Result<Truncated> {
    cut_at(read, tx, holder, new_id, new_size, tail, Some(at_once_max))
}

/// Both. Without `at_once_max` the old holder is kept.
fn cut_at(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    new_id: &mut dyn FnMut() -> VersionId,
    new_size: u64,
    tail: Option<Run>,
    at_once_max: Option<usize>,
) -> Result<Truncated> {
    let block = BLOCK_BYTES as u64;
    let limit = new_size.min(FILE_END).next_multiple_of(block);
    assert!(tail.is_none_or(|t| t.blocks == 1 && limit != new_size), "a tail is the block that is cut");
    let cut = if tail.is_some() { limit - block } else { limit };
    tx.privileged();
    let mut path = Path::load(read, *holder)?;
    let few = match at_once_max.filter(|_| path.writable()) {
        Some(max) => few_entries(read, &path, cut, max)?,
        None => None,
    };
    let mut reap;
    if few.is_some() {
        reap = lower_limit(read, tx, &mut path, limit)?;
    } else {
        open_child(read, tx, holder, &mut path, new_id(), limit, at_once_max.is_none())?;
        // Who was the last to let go of a version has left the reaper work.
        reap = path.step(1).state != State::Held;
    }
    let mut changes = Changes::new(tx);
    let target = Place { family: path.family(), segment: cut / SEGMENT_BYTES, version: path.target() };
    let tail = tail.map(|run| Entry { off: (cut % SEGMENT_BYTES) as u32, extent: Extent::data(run) });
    if let Some(tail) = tail.filter(|_| path.has_inner()) {
        reap |= mark_hidden(read, &mut changes, &path, 0, target.segment, own_blocks(&[tail]).something)?;
    }
    cut_off(read, &mut changes, few.unwrap_or_default(), cut, &target, tail)?;
    changes.finish();
    let (blocks_freed, reserved_freed) = (changes.blocks_freed, changes.reserved_freed);
    Ok(Truncated { path, reap, blocks_freed, reserved_freed })
}

/// Removes what of `entries` (segment by segment, version by version) lies at or beyond `cut`, and puts `tail` in its
/// place in `target`.
fn cut_off(
    read: &dyn Read,
    changes: &mut Changes,
    entries: Vec<(DataKey, Extent)>,
    cut: u64,
    target: &Place,
    mut tail: Option<Entry>,
) -> Result<()> {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for list in entries.chunk_by(|a, b| (a.0.segment, a.0.version) == (b.0.segment, b.0.version)) {
        let (family, segment, version) = (list[0].0.family, list[0].0.segment, list[0].0.version);
        old.clear();
        new.clear();
        for (key, extent) in list {
            old.push(Entry { off: key.offset, extent: *extent });
            let kept = cut.saturating_sub(key.file_offset()) as u32;
            if kept > 0 {
                new.push(Entry { off: key.offset, extent: extent.piece(0, kept) });
            }
            changes.free(&extent.piece(kept, extent.len - kept));
        }
        if (segment, version) == (target.segment, target.version) {
            new.extend(tail.take());
        }
        changes.difference(read, &Place { family, segment, version }, &old, &new, false)?;
    }
    if let Some(tail) = tail {
        changes.difference(read, target, &[], &[tail], false)?;
    }
    Ok(())
}

/// The entries that a cut at `cut` removes or shortens, if they are few. While the head and its parent are becoming
/// one, these are the entries of both: the holder alone sees them, and no limit lies between.
fn few_entries(read: &dyn Read, path: &Path, cut: u64, max: usize) -> Result<Option<Vec<(DataKey, Extent)>>> {
    let own: Vec<VersionKey> = (0..path.merging()).map(|at| path.step(at).key).collect();
    let start = DataKey {
        family: path.family(),
        segment: cut / SEGMENT_BYTES,
        version: VersionKey(u64::MAX),
        offset: 0,
    };
    let (mut found, mut examined, mut many) = (Vec::new(), 0, false);
    scan(read, &start, |key, extent| {
        examined += 1;
        if key.file_offset() + u64::from(extent.len) > cut && own.contains(&key.version) {
            found.push((key, extent));
        }
        many = found.len() > max || examined > 4 * AT_ONCE_MAX;
        !many
    })?;
    Ok((!many).then_some(found))
}

/// What the holder sees of older versions now ends at `limit`: the youngest version that is not its own is cut off
/// there, without a new one. Says whether the reaper has work by it.
fn lower_limit(read: &dyn Read, tx: &mut Transaction, path: &mut Path, limit: u64) -> Result<bool> {
    let merging = path.merging();
    if path.versions() > merging {
        let id = path.step(merging - 1).id;
        let before = record(read, path.family(), id)?;
        if limit < before.limit {
            pending::update(read, tx, path.family(), id, &before, &VersionRecord { limit, ..before })?;
            let parent = path.step(merging);
            match parent.state {
                State::Held => (),
                // Its entries in front of the cursor, but beyond the new limit, are still there.
                State::Going => pending::mark(tx, path.family(), Work::Going(parent.id), &[]),
                State::Inner => pending::mark(tx, path.family(), Work::Recheck(parent.id), &[]),
            }
            path.lower(limit);
            return Ok(parent.state == State::Inner);
        }
    }
    Ok(false)
}
