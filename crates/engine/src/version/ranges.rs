//! Ranges that extents of several records name: what one holder sees in a range becomes what another has there.
//!
//! No data is copied. Each piece of data gets an extent in the target that names the blocks of the source's, and the
//! transaction says that one extent more names them. What the target had there is cut away as by a write. A long range
//! takes several transactions, from front to back; the crash that would bite: none, a part of it from the front is done.

use varve_format::record::extent::{DataKey, Extent};
use varve_format::{BLOCK_BYTES, Run, SEGMENT_BYTES, VersionKey};

use super::extents::own_blocks;
use super::path::Path;
use super::resolve::{FILE_END, resolve, resolve_behind, resolve_upto, scan};
use super::segment::{Changes, Entry, Place, load, overlay, push_joined, subtract};
use super::write::mark_hidden;
use super::{Mapping, Planted, Progress, Read, Result, planted};
use crate::Transaction;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A range of one file that another shall have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Where it begins in the source.
    pub from: u64,
    /// Where it goes in the target.
    pub to: u64,
    /// Bytes.
    pub len: u64,
}

/// Lets `target` see at [`Range::to`] what `source` sees at [`Range::from`], whole blocks all three: the same blocks
/// where there is data, holes where there is none (what is reserved is not: a reservation stays with the source). The two
/// may be of one file, if the ranges do not overlap. Stops after the segment of the target in which `entries_max` changed
/// entries have been reached: if [`Progress::more`], apply and call again from [`Progress::next`], counted from the
/// beginning of the range. What the source sees must not change until `tx` has been applied.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn share_range(
    read: &dyn Read,
    tx: &mut Transaction,
    source: &Path,
    target: &Path,
    range: Range,
    entries_max: u64,
) -> Result<Progress> {
    let Range { from, to, len } = range;
    assert!(target.writable(), "a shared version is written only through a child");
    assert!(
        [from, to, len].iter().all(|bytes| bytes.is_multiple_of(BLOCK))
            && from.checked_add(len).is_some_and(|end| end <= FILE_END)
            && to.checked_add(len).is_some_and(|end| end <= FILE_END),
        "a range is whole blocks"
    );
    let mut shared = Vec::new();
    let mut changes = Changes::new(tx);
    let (mut done, mut visited) = (0, 0);
    while done < len && changes.entries() + visited < entries_max.max(1) {
        let at = to + done;
        let segment = at / SEGMENT_BYTES;
        let part = (len - done).min((segment + 1) * SEGMENT_BYTES - at);
        visited += 1;
        let skipped = skip_holes(read, source, target, Range { from: from + done, to: at, len: len - done })?;
        if skipped > 0 {
            done += skipped;
            continue;
        }
        let cover = cover(read, source, from + done, part, (at % SEGMENT_BYTES) as u32)?;
        if !same(read, target, at, part, &cover)? {
            lay_over(read, &mut changes, target, segment, &cover)?;
            shared.extend(cover.iter().filter_map(|entry| entry.extent.run()));
        }
        done += part;
    }
    let progress = Progress {
        more: done < len,
        next: done,
        entries: changes.entries(),
        blocks_freed: changes.blocks_freed,
        reserved_freed: changes.reserved_freed,
    };
    let tx = changes.finish();
    if !planted(Planted::ShareUncounted) {
        shared.into_iter().for_each(|run| tx.share(run));
    }
    Ok(progress)
}

/// Bytes from the beginning of the range in which the source has holes and the family of the target nothing, if that goes
/// beyond the segment: so a hole costs nothing, however long it is.
fn skip_holes(read: &dyn Read, source: &Path, target: &Path, range: Range) -> Result<u64> {
    let Range { from, to, len } = range;
    let segment = to / SEGMENT_BYTES;
    let start = DataKey { family: target.family(), segment, version: VersionKey(u64::MAX), offset: 0 };
    let mut next = u64::MAX;
    scan(read, &start, |key, _| {
        next = key.segment * SEGMENT_BYTES;
        false
    })?;
    // No further: what others of the source's family have in a long hole would be passed once for each segment of the target.
    let len = len.min(next.saturating_sub(to));
    if len == 0 {
        return Ok(0);
    }
    Ok(match resolve_upto(read, source, from, from + len, 1)?.first() {
        Some(piece) if matches!(piece.what, Mapping::Hole | Mapping::Reserved) => {
            (piece.offset + piece.len).saturating_sub(from).min(len)
        }
        _ => 0,
    })
}

/// What `source` sees in `len` bytes from `from` on, as entries that cover as much from `off` on: data and holes.
fn cover(read: &dyn Read, source: &Path, from: u64, len: u64, off: u32) -> Result<Vec<Entry>> {
    let mut out = Vec::new();
    for piece in resolve(read, source, from, from + len)? {
        let off = off + (piece.offset - from) as u32;
        let extent = match piece.what {
            Mapping::Hole | Mapping::Reserved => Extent::hole(piece.len as u32),
            Mapping::Data { addr, .. } => Extent::data(Run { addr, blocks: (piece.len / BLOCK) as u32 }),
        };
        push_joined(&mut out, Entry { off, extent });
    }
    Ok(out)
}

/// Whether the target sees the same there already, so that there is nothing to do.
fn same(read: &dyn Read, target: &Path, at: u64, len: u64, cover: &[Entry]) -> Result<bool> {
    let mut sees = Vec::new();
    for piece in resolve(read, target, at, at + len)? {
        let extent = match piece.what {
            Mapping::Hole => Extent::hole(piece.len as u32),
            Mapping::Reserved => Extent::reserved(piece.len as u32),
            Mapping::Data { addr, .. } => Extent::data(Run { addr, blocks: (piece.len / BLOCK) as u32 }),
        };
        push_joined(&mut sees, Entry { off: (piece.offset % SEGMENT_BYTES) as u32, extent });
    }
    Ok(sees == cover)
}

/// Makes `cover`, entries without gaps, what the target has there. Its holes are stored only where they hide something.
fn lay_over(
    read: &dyn Read,
    changes: &mut Changes,
    target: &Path,
    segment: u64,
    cover: &[Entry],
) -> Result<()> {
    let base = segment * SEGMENT_BYTES;
    let (low, high) = (cover[0].off, cover[cover.len() - 1].end());
    let (mut old, mut rest, mut new) = (Vec::new(), Vec::new(), Vec::new());
    if target.has_inner() {
        let own = own_blocks(cover);
        mark_hidden(read, changes, target, 0, segment, own.all())?;
    }
    for (at, step) in (0..target.own()).map(|at| (at, target.step(at))) {
        let place = Place { family: target.family(), segment, version: step.key };
        load(read, &place, low, high, &mut old)?;
        subtract(cover, &old, &mut rest, changes);
        if at + 1 == target.own() {
            let mut top = Vec::with_capacity(cover.len());
            for entry in cover {
                if entry.extent.run().is_some() {
                    push_joined(&mut top, *entry);
                    continue;
                }
                let (from, to) = (base + u64::from(entry.off), base + u64::from(entry.end()));
                for piece in resolve_behind(read, target, target.own(), from, to, usize::MAX)? {
                    if piece.what != Mapping::Hole {
                        let off = (piece.offset - base) as u32;
                        push_joined(&mut top, Entry { off, extent: Extent::hole(piece.len as u32) });
                    }
                }
            }
            overlay(&top, &rest, &mut new, changes);
            changes.difference(read, &place, &old, &new, false)?;
        } else {
            changes.difference(read, &place, &old, &rest, false)?;
        }
    }
    Ok(())
}
