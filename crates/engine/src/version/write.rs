//! Writing: new data over old, holes, reservations and their end.
//!
//! While the holder's version drains up, new entries go to its parent's key and its own are cut: the side that drains
//! must not gain entries (invariant 4).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use varve_format::record::extent::{DataKey, Extent};
use varve_format::record::reap::Work;
use varve_format::{BLOCK_BYTES, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionKey};

use super::extents::{below, keep, lists_of, own_blocks};
use super::family::{Blocks, Family};
use super::joining::bytes;
use super::path::Path;
use super::pending::{self, State};
use super::resolve::{FILE_END, resolve, resolve_behind, scan, scan_covering, scan_path};
use super::segment::{Changes, Entry, Place, load, load_all, overlay, push_joined, subtract};
use super::{Mapped, Mapping, Planted, Progress, Read, Result, Unreserved, planted};
use crate::Transaction;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What a write changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replaced {
    /// Entries put.
    pub entries_put: u64,
    /// Entries deleted.
    pub entries_deleted: u64,
    /// Blocks freed, because this data takes their place.
    pub blocks_freed: u64,
    /// Blocks of reservations that this data takes the place of.
    pub reserved_freed: Unreserved,
}

/// How far [`reserve`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// Whether there is more to do.
    pub more: bool,
    /// File offset from which to go on.
    pub next: u64,
    /// Blocks that have become reserved.
    pub blocks: u64,
    /// Blocks of reservations that are gone: nobody saw them any more, and these lie in their place.
    pub reserved_freed: Unreserved,
}

/// Makes `pieces` the data of the file: (offset in the file, blocks in the pool), in ascending order and not
/// overlapping; offsets are block aligned, a piece may span segments. What they cover is cut away and its blocks are
/// freed in `tx`. The caller has placed the blocks ([`Transaction::place`] or [`Transaction::place_riding`]).
/// A piece that continues its predecessor in file and pool grows that entry. Cost: a descent and a short scan per
/// touched segment.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn put_extents(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    pieces: &[(u64, Run)],
) -> Result<Replaced> {
    assert!(path.writable(), "a shared version is written only through a child");
    let mut changes = Changes::new(tx);
    let (mut top, mut old, mut new) = (Vec::new(), Vec::new(), Vec::new());
    if pieces.len() >= SCATTERED_PIECES {
        look_at(read, path, pieces);
    }
    let mut pieces = Pieces { left: pieces, done: 0 };
    while let Some(segment) = pieces.segment(&mut top) {
        lay_over(read, &mut changes, path, segment, &top, &mut old, &mut new)?;
    }
    changes.finish();
    Ok(Replaced {
        entries_put: changes.puts,
        entries_deleted: changes.deletes,
        blocks_freed: changes.blocks_freed,
        reserved_freed: changes.reserved_freed,
    })
}

/// From so many pieces on their leaves are looked at together first.
const SCATTERED_PIECES: usize = 8;

/// Has `read` look at where the pieces' segments begin, as far as they have pieces that begin there.
fn look_at(read: &dyn Read, path: &Path, pieces: &[(u64, Run)]) {
    let (family, version) = (path.family(), path.head().key);
    let mut keys = Vec::with_capacity(pieces.len());
    let mut last = None;
    for (offset, _) in pieces {
        let segment = offset / SEGMENT_BYTES;
        if last.replace(segment) != Some(segment) {
            keys.push(DataKey { family, segment, version, offset: 0 }.encode());
        }
    }
    read.look_at(&keys);
}

/// Has what [`put_extents`] will look at for pieces at these `offsets`, which ascend, read together as far as it is not in memory.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] or [`crate::EngineError::Device`] for a node on the way.
pub fn read_ahead(read: &dyn Read, path: &Path, offsets: &[u64]) -> Result<()> {
    let family = path.family();
    for version in (0..path.own()).map(|at| path.step(at).key) {
        let key = |offset: &u64| {
            let (segment, within) = (offset / SEGMENT_BYTES, (offset % SEGMENT_BYTES) as u32);
            DataKey { family, segment, version, offset: within }.encode().to_vec()
        };
        read.read_ahead(TreeId::EXTENTS, &offsets.iter().map(key).collect::<Vec<_>>())?;
        if version.0 != family.0 {
            let held = |offset: &u64| Place { family, segment: offset / SEGMENT_BYTES, version }.held();
            read.read_ahead(TreeId::HELD, &offsets.iter().map(held).collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

/// Lays `top` over what the holder's own versions have in a segment. `old` and `new` are room to work in.
fn lay_over(
    read: &dyn Read,
    changes: &mut Changes,
    path: &Path,
    segment: u64,
    top: &[Entry],
    old: &mut Vec<Entry>,
    new: &mut Vec<Entry>,
) -> Result<()> {
    let (low, high) = (top[0].off, top[top.len() - 1].end());
    for (at, step) in (0..path.own()).map(|at| (at, path.step(at))) {
        let place = Place { family: path.family(), segment, version: step.key };
        load(read, &place, low, high, old)?;
        if at == 0 && path.has_inner() {
            // What the head has there hides the rest already.
            let blocks = own_blocks(top).all().without(own_blocks(old).all());
            mark_hidden(read, changes, path, 1, segment, blocks)?;
        }
        if at + 1 == path.own() {
            overlay(top, old, new, changes);
        } else {
            subtract(top, old, new, changes);
        }
        changes.difference(read, &place, old, new, false)?;
    }
    Ok(())
}

/// A path of so many versions or fewer is asked version by version where a few blocks lie, a descent each: cheaper than walking
/// past what others have between them ([`scan_path`]).
const ASKED_APART_MAX: usize = 4;

/// Has the reaper look at a segment if something in `blocks` is seen that belongs to a version without holders: it is
/// about to be hidden, perhaps from the last who sees it. Says whether it did. The first `skip` versions of the path have nothing there.
pub(super) fn mark_hidden(
    read: &dyn Read,
    changes: &mut Changes,
    path: &Path,
    skip: usize,
    segment: u64,
    blocks: Blocks,
) -> Result<bool> {
    let Some(bounds) = blocks.bounds() else { return Ok(false) };
    let (mut left, mut hidden) = (blocks, Vec::new());
    let mut see = |at, key: DataKey, extent| {
        let step = path.step(at);
        let own = own_blocks(&[Entry { off: key.offset, extent }]);
        let seen = own.all().and(below(step.visible, segment)).and(left);
        if step.state == State::Inner && !seen.is_empty() && hidden.last() != Some(&step.id) {
            hidden.push(step.id);
        }
        left = left.without(seen);
        !left.is_empty()
    };
    if path.versions() - skip > ASKED_APART_MAX {
        scan_path(read, path, segment, see)?;
    } else {
        let (first, end) = (bounds.start as u32 * BLOCK_BYTES as u32, bounds.end as u32 * BLOCK_BYTES as u32);
        let mut more = true;
        for at in skip..path.versions() {
            let place = DataKey { family: path.family(), segment, version: path.step(at).key, offset: first };
            scan_covering(read, &place, |key, extent| {
                let here = (key.segment, key.version) == (segment, place.version) && key.offset < end;
                more = !here || see(at, key, extent);
                here && more
            })?;
            if !more {
                break;
            }
        }
    }
    for id in hidden.iter().filter(|_| !planted(Planted::WriteForgets)) {
        changes.recheck(path.family(), *id, segment);
    }
    Ok(!hidden.is_empty())
}

/// Makes the holes in [`from`, `to`) (block aligned) reservations: they go on reading as zeros. So do reservations that
/// others may see too, for the first of those who writes there has them ([`spend_reserved`]). Stops after the segment in
/// which `entries_max` changed entries have been reached: if [`Reserved::more`], apply and call again from
/// [`Reserved::next`]. The caller keeps the space aside.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn reserve(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    from: u64,
    to: u64,
    entries_max: u64,
) -> Result<Reserved> {
    assert!(path.writable(), "a shared version is written only through a child");
    assert!(
        from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK) && to <= FILE_END,
        "a reservation is whole blocks"
    );
    let mut changes = Changes::new(tx);
    let (mut top, mut old, mut new) = (Vec::new(), Vec::new(), Vec::new());
    let (mut at, mut visited, mut blocks) = (from, 0, 0);
    while at < to && changes.entries() + visited < entries_max.max(1) {
        let segment = at / SEGMENT_BYTES;
        let base = segment * SEGMENT_BYTES;
        let high = to.min(base + SEGMENT_BYTES);
        top.clear();
        let pieces = resolve(read, path, at, high)?;
        let mine = match path.sole() || pieces.iter().all(|piece| piece.what != Mapping::Reserved) {
            true => Blocks::ALL,
            false => own_of(read, path, segment)?,
        };
        for piece in pieces {
            let all = blocks_of(&piece, base);
            let wanted = match piece.what {
                Mapping::Hole => all,
                Mapping::Reserved => all.without(mine),
                Mapping::Data { .. } => continue,
            };
            for run in runs(wanted) {
                let extent = Extent::reserved(run.end - run.start);
                blocks += u64::from(extent.len) / BLOCK;
                push_joined(&mut top, Entry { off: run.start, extent });
            }
        }
        if !top.is_empty() {
            lay_over(read, &mut changes, path, segment, &top, &mut old, &mut new)?;
        }
        (at, visited) = (high, visited + 1);
    }
    changes.finish();
    Ok(Reserved { more: at < to, next: at, blocks, reserved_freed: changes.reserved_freed })
}

/// Makes the reservations in [`from`, `to`) (block aligned) holes, for the holder to use their space for what it writes
/// there, and not only its own: space that several see as set aside is the first writer's, and a hole for the others from
/// then on. Stops as [`punch`] does. Where it is shared, it reads the family as a whole.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn spend_reserved(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    from: u64,
    to: u64,
    entries_max: u64,
) -> Result<Progress> {
    by_segments(read, tx, path, from, to, entries_max, |changes, segment, low, high| {
        let base = segment * SEGMENT_BYTES;
        let mut wanted = Blocks::NONE;
        for piece in resolve(read, path, low, high)? {
            if piece.what == Mapping::Reserved {
                wanted = wanted.or(blocks_of(&piece, base));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        if !wanted.without(own_of(read, path, segment)?).is_empty() {
            return spend_shared(read, changes, path, segment, wanted);
        }
        // A list is changed once: what lies between the runs stays as it is.
        let gaps: Vec<Entry> = runs(wanted).map(hole).collect();
        punch_segment(read, changes, path, segment, &gaps)
    })
}

/// Entries of the lists of others from which something goes with a reservation, in one transaction; more are left to the reaper.
const OTHERS_MAX: usize = if cfg!(test) { 2 } else { 4096 };

/// Takes the reservations that a path sees in `wanted` blocks of a segment from all who see them, and then what nobody sees
/// of the family there: the holes that hid them, and holes that take their place and hide nothing.
fn spend_shared(
    read: &dyn Read,
    changes: &mut Changes,
    path: &Path,
    segment: u64,
    wanted: Blocks,
) -> Result<()> {
    let (family, mut left) = (path.family(), wanted);
    let stored = lists_of(read, family, segment)?;
    let mut lists = stored.clone();
    for step in (0..path.versions()).map(|at| path.step(at)) {
        let Some(list) = lists.get_mut(&step.key) else { continue };
        let seen = own_blocks(list).all().and(below(step.visible, segment)).and(left);
        left = left.without(seen);
        // What is seen here of the wanted blocks is reserved.
        let gaps: Vec<Entry> = runs(seen).map(hole).collect();
        let under = std::mem::take(list);
        overlay(&gaps, &under, list, changes);
    }
    let own: BTreeMap<_, _> = lists.iter().map(|(key, list)| (*key, own_blocks(list))).collect();
    let stays = Family::load(read, family)?.stays(&own, &|limit| below(limit, segment));
    let on_path: BTreeSet<_> = (0..path.versions()).map(|at| path.step(at).key).collect();
    let goes = |key: &VersionKey| stays.get(key).is_some_and(|stays| own.get(key) != Some(stays));
    let others = lists.iter().filter(|(key, _)| !on_path.contains(*key) && goes(key));
    let many = others.map(|(_, list)| list.len()).sum::<usize>() > OTHERS_MAX;
    if many {
        // All or none of them, for of what nobody sees data has to go before the holes that hide it.
        pending::mark(changes.finish(), family, Work::Rest(TreeId::EXTENTS, &segment.to_be_bytes()), &[]);
    }
    for (version, list) in lists.iter().filter(|(key, _)| !many || on_path.contains(*key)) {
        keep(read, changes, &Place { family, segment, version: *version }, &stored[version], list, &stays)?;
    }
    Ok(())
}

/// The blocks of a segment in which the versions that are the holder's own have entries.
fn own_of(read: &dyn Read, path: &Path, segment: u64) -> Result<Blocks> {
    let (mut list, mut own) = (Vec::new(), Blocks::NONE);
    for step in (0..path.own()).map(|at| path.step(at)) {
        load_all(read, &Place { family: path.family(), segment, version: step.key }, &mut list)?;
        own = own.or(own_blocks(&list).all());
    }
    Ok(own)
}

/// The blocks of a piece that lies in the segment that begins at byte `base`.
fn blocks_of(piece: &Mapped, base: u64) -> Blocks {
    let first = (piece.offset - base) / BLOCK;
    Blocks::range(first as usize, (first + piece.len / BLOCK) as usize)
}

/// Runs of blocks of a segment that lie side by side, in bytes from its start.
fn runs(blocks: Blocks) -> impl Iterator<Item = Range<u32>> {
    let bounds = blocks.bounds().unwrap_or_default();
    let mut at = bounds.start;
    std::iter::from_fn(move || {
        while at < bounds.end {
            let (from, upto) = (at, blocks.run_end(at, bounds.end));
            at = upto;
            if blocks.has(from) {
                return Some(bytes(from)..bytes(upto));
            }
        }
        None
    })
}

fn hole(run: Range<u32>) -> Entry {
    Entry { off: run.start, extent: Extent::hole(run.end - run.start) }
}

/// Cuts pieces at segment boundaries.
struct Pieces<'a> {
    left: &'a [(u64, Run)],
    /// Bytes of the first that are dealt with.
    done: u64,
}

impl Pieces<'_> {
    /// Replaces `top` by what goes into the next segment, and says which that is. `None` at the end.
    fn segment(&mut self, top: &mut Vec<Entry>) -> Option<u64> {
        top.clear();
        let mut segment = None;
        while let Some(&(offset, run)) = self.left.first() {
            assert!(
                offset.is_multiple_of(BLOCK) && run.blocks > 0 && offset < FILE_END - run.bytes(),
                "a piece is whole blocks"
            );
            let start = offset + self.done;
            if *segment.get_or_insert(start / SEGMENT_BYTES) != start / SEGMENT_BYTES {
                break;
            }
            let off = (start % SEGMENT_BYTES) as u32;
            assert!(top.last().is_none_or(|l: &Entry| l.end() <= off), "pieces ascend and do not overlap");
            let len = (run.bytes() - self.done).min(SEGMENT_BYTES - u64::from(off));
            let part = Run { addr: PoolAddr(run.addr.0 + self.done), blocks: (len / BLOCK) as u32 };
            push_joined(top, Entry { off, extent: Extent::data(part) });
            self.done += len;
            if self.done == run.bytes() {
                (self.left, self.done) = (&self.left[1..], 0);
            }
        }
        segment
    }
}

/// Makes [`from`, `to`) (block aligned) a hole. Stops after the segment in which `entries_max` changed entries have
/// been reached: if [`Progress::more`], apply and call again from [`Progress::next`].
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn punch(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    from: u64,
    to: u64,
    entries_max: u64,
) -> Result<Progress> {
    by_segments(read, tx, path, from, to, entries_max, |changes, segment, low, high| {
        let base = segment * SEGMENT_BYTES;
        punch_segment(read, changes, path, segment, &[hole((low - base) as u32..(high - base) as u32)])
    })
}

/// Has `each` change the part of each segment in [`from`, `to`) in which somebody of the family has entries.
fn by_segments(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    from: u64,
    to: u64,
    entries_max: u64,
    mut each: impl FnMut(&mut Changes, u64, u64, u64) -> Result<()>,
) -> Result<Progress> {
    assert!(path.writable(), "a shared version is written only through a child");
    assert!(
        from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK) && to <= FILE_END,
        "a hole is whole blocks"
    );
    let mut changes = Changes::new(tx);
    let (mut at, mut visited) = (from, 0);
    while at < to {
        // Segments without entries of anybody cost nothing.
        let Some(segment) = next_segment(read, path, at / SEGMENT_BYTES)?.filter(|s| s * SEGMENT_BYTES < to)
        else {
            at = to;
            break;
        };
        let base = segment * SEGMENT_BYTES;
        let (low, high) = (at.max(base), to.min(base + SEGMENT_BYTES));
        each(&mut changes, segment, low, high)?;
        at = high;
        visited += 1;
        if changes.entries() + visited >= entries_max {
            break;
        }
    }
    changes.finish();
    Ok(Progress {
        more: at < to,
        next: at,
        entries: changes.entries(),
        blocks_freed: changes.blocks_freed,
        reserved_freed: changes.reserved_freed,
    })
}

fn next_segment(read: &dyn Read, path: &Path, from: u64) -> Result<Option<u64>> {
    let start = DataKey { family: path.family(), segment: from, version: VersionKey(u64::MAX), offset: 0 };
    let mut found = None;
    scan(read, &start, |key, _| {
        found = Some(key.segment);
        false
    })?;
    Ok(found)
}

/// Makes `gaps`, hole entries in ascending order, holes of the file.
fn punch_segment(
    read: &dyn Read,
    changes: &mut Changes,
    path: &Path,
    segment: u64,
    gaps: &[Entry],
) -> Result<()> {
    let base = segment * SEGMENT_BYTES;
    let (low_off, high_off) = (gaps[0].off, gaps[gaps.len() - 1].end());
    let gone = own_blocks(gaps).holes;
    let (mut old, mut new) = (Vec::new(), Vec::new());
    if path.has_inner() {
        mark_hidden(read, changes, path, 0, segment, gone)?;
    }
    for (at, step) in (0..path.own()).map(|at| (at, path.step(at))) {
        let place = Place { family: path.family(), segment, version: step.key };
        load(read, &place, low_off, high_off, &mut old)?;
        subtract(gaps, &old, &mut new, changes);
        if at + 1 == path.own() {
            // What would show through now is hidden by hole entries, and only that.
            let mut holes = Vec::new();
            let (low, high) = (base + u64::from(low_off), base + u64::from(high_off));
            for piece in resolve_behind(read, path, path.own(), low, high, usize::MAX)? {
                if piece.what != Mapping::Hole {
                    runs(blocks_of(&piece, base).and(gone))
                        .for_each(|run| push_joined(&mut holes, hole(run)));
                }
            }
            if !holes.is_empty() {
                let rest = std::mem::take(&mut new);
                overlay(&holes, &rest, &mut new, changes);
            }
        }
        changes.difference(read, &place, &old, &new, false)?;
    }
    Ok(())
}
