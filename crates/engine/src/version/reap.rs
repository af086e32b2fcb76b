//! Reaping: versions that nobody holds go away, a small transaction at a time.
//!
//! A version v without holders and with one child c **collapses** into it:
//!
//! 1. v's entries at or beyond limit(c) die (a straddling extent is cut); `cursor` of c says how far this has come.
//! 2. In one step: limit(v) = the smaller of both, limit(c) = none, c drains up or down (the smaller side moves).
//! 3. Segment by segment, from `cursor` of c on, the lists of v and c become one: c laid over v, what it covers freed,
//!    holes dropped that hide nothing beneath v. Up, the result is v's list and c's goes; down, the reverse.
//! 4. When the end is reached: c takes the surviving key and v's limit and parent, and v's record goes.
//!
//! c sees the same after every step. If power fails between two steps the records say where to go on; inside a step
//! nothing has happened. The side that drains gains no entries (writes go to the other key), so the cursor never
//! misses one. Extents overlap in part, so step 3 cannot move single entries without reading both lists of a segment;
//! it moves whole segments, at most 512 entries each, and that is the smallest step.
//!
//! The oldest collapse goes first, so that of two neighbouring edges of a path only one is under way. A version
//! without holders and children dies before any collapse is begun.

use varve_format::record::extent::{DataKey, ExtentKind, family_prefix};
use varve_format::record::version::{self, Drain, NO_LIMIT, VersionRecord};
use varve_format::{Corrupt, FamilyId, SEGMENT_BYTES, TreeId, VersionId, VersionKey};

use super::path::Path;
use super::pending::{self, record};
use super::resolve::{decode, resolve_behind, scan};
use super::segment::{Changes, Entry, Place, load_all, overlay};
use super::{Holder, Mapping, Planted, Progress, Read, Result, planted};
use crate::{EngineError, Transaction};

/// Entries that a step may look at without changing any, for each one it may change.
const LOOKED_AT_RATIO: u64 = 16;
/// Entries looked at to guess which of two versions has fewer.
const SAMPLE_ENTRIES: u64 = 2048;

/// One small step towards one version per holder: collapses a version without holders into its only child, or removes
/// one that nobody sees. Apply `tx` (which becomes privileged) after each, and call again while [`Progress::more`];
/// when there was nothing to do, it is empty. Run it under the lock of the holder. The holder's version id never
/// changes by it; the path does. A step changes about `entries_max` entries, at least one segment's.
///
/// # Errors
/// [`EngineError::Corrupt`] for a record that cannot be; `tx` must then be dropped.
pub fn reap_step(
    read: &dyn Read,
    tx: &mut Transaction,
    family: FamilyId,
    entries_max: u64,
) -> Result<Progress> {
    let Some(work) = find_work(read, family)? else { return Ok(Progress::default()) };
    tx.privileged();
    let mut budget =
        Budget { changes: entries_max, looks: entries_max.saturating_mul(LOOKED_AT_RATIO).max(64) };
    let mut changes = Changes::new(tx);
    match work {
        Work::Remove(id, version) => remove(read, &mut changes, family, id, version, &mut budget)?,
        Work::Collapse(pair) => collapse(read, &mut changes, &pair, &mut budget)?,
    }
    changes.finish();
    Ok(Progress {
        more: true,
        next: 0,
        entries: changes.entries(),
        blocks_freed: changes.blocks_freed,
        reserved_freed: changes.reserved_freed,
    })
}

/// One step of deleting all data of `holder`, the only one of its family, and its version records. Apply `tx` (which
/// becomes privileged) and call again while [`Progress::more`]. The caller remembers durably (an orphan record) that
/// the family is being deleted.
///
/// # Errors
/// [`EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn delete_step(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: Holder,
    entries_max: u64,
) -> Result<Progress> {
    tx.privileged();
    let family = holder.family;
    let prefix = family_prefix(family);
    let mut changes = Changes::new(tx);
    let (mut more, mut failed) = (false, None);
    read.scan(TreeId::EXTENTS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        if changes.entries() >= entries_max.max(1) {
            more = true;
            return false;
        }
        match decode(family, key, value) {
            Ok((_, extent)) => {
                changes.delete(key);
                changes.free(&extent);
                true
            }
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let (entries, blocks_freed) = (changes.entries(), changes.blocks_freed);
    let reserved_freed = changes.reserved_freed;
    let tx = changes.finish();
    let mut records = 0;
    if !more && holder.has_versions {
        for tree in [TreeId::HELD, TreeId::REAP, TreeId::VERSIONS] {
            read.scan(tree, &prefix, &mut |key, _| {
                if !key.starts_with(&prefix) {
                    return false;
                }
                if entries + records >= entries_max.max(1) {
                    more = true;
                    return false;
                }
                tx.delete(tree, key);
                records += 1;
                true
            })?;
        }
    }
    Ok(Progress { more, next: 0, entries: entries + records, blocks_freed, reserved_freed })
}

/// Up to `families_max` families after `after` in which [`reap_step`] has work: to be asked when a pool is opened.
/// The second part says after which to go on; `None`: there are no more. Looks at every version record once.
///
/// # Errors
/// [`EngineError::Corrupt`] for a record that cannot be.
pub fn pending_families(
    read: &dyn Read,
    after: Option<FamilyId>,
    families_max: usize,
) -> Result<(Vec<FamilyId>, Option<FamilyId>)> {
    let Some(first) = after.map_or(Some(0), |f| f.0.checked_add(1)) else { return Ok((Vec::new(), None)) };
    let (mut found, mut full, mut failed) = (Vec::<FamilyId>::new(), false, None);
    read.scan(TreeId::VERSIONS, &first.to_be_bytes(), &mut |key, value| match decode_version(key, value) {
        Ok((family, _, version)) => {
            if version.refs == 0 && version.children <= 1 && found.last() != Some(&family) {
                full = found.len() >= families_max;
                if !full {
                    found.push(family);
                }
            }
            !full
        }
        Err(error) => {
            failed = Some(error);
            false
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let next = if full { found.last().copied().or(after) } else { None };
    Ok((found, next))
}

pub(super) fn decode_version(key: &[u8], value: &[u8]) -> Result<(FamilyId, VersionId, VersionRecord)> {
    let corrupt = |why| EngineError::corrupt("a version record", why);
    let (family, id) = version::decode_key(key).map_err(corrupt)?;
    Ok((family, id, VersionRecord::decode(value).map_err(corrupt)?))
}

/// What a step may still do.
struct Budget {
    changes: u64,
    looks: u64,
}

/// A version that goes, and the child that takes its place.
struct Pair {
    family: FamilyId,
    parent_id: VersionId,
    parent: VersionRecord,
    child_id: VersionId,
    child: VersionRecord,
}

enum Work {
    Remove(VersionId, VersionRecord),
    Collapse(Box<Pair>),
}

/// The oldest version without holders and children, else the oldest that can collapse. One scan of the family's
/// records.
fn find_work(read: &dyn Read, family: FamilyId) -> Result<Option<Work>> {
    let prefix = family_prefix(family);
    let (mut dead, mut inner, mut failed) = (None, Vec::new(), None);
    read.scan(TreeId::VERSIONS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        match decode_version(key, value) {
            Ok((_, id, version)) if version.refs == 0 && version.children == 0 => dead = Some((id, version)),
            // The first candidates are enough: only the youngest of a run of neighbours can be held up by another.
            Ok((_, id, version)) if version.refs == 0 && version.children == 1 && inner.len() < 64 => {
                inner.push((id, version));
            }
            Ok(_) => (),
            Err(error) => failed = Some(error),
        }
        dead.is_none() && failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some((id, version)) = dead {
        return Ok(Some(Work::Remove(id, version)));
    }
    if planted(Planted::YoungestFirst) {
        inner.reverse();
    }
    for (parent_id, parent) in inner {
        let child_id = VersionId(parent.children_xor);
        let child = record(read, family, child_id)?;
        if child.parent != Some(parent_id) || child.key <= parent.key {
            let why = Corrupt { what: "child that does not know its parent", at: 0 };
            return Err(EngineError::corrupt(format!("version {} of family {}", child_id.0, family.0), why));
        }
        // A collapse into the grandchild that has begun must end first: this one brings entries in front of its cursor.
        let below_began = match child.only_child().filter(|_| child.refs == 0) {
            Some(id) => Some(record(read, family, id)?)
                .is_some_and(|below| below.drain != Drain::None || below.cursor > 0),
            None => false,
        };
        if parent.drain == Drain::None && !below_began {
            return Ok(Some(Work::Collapse(Box::new(Pair { family, parent_id, parent, child_id, child }))));
        }
    }
    Ok(None)
}

/// A step of removing a version that nobody holds or inherits from.
fn remove(
    read: &dyn Read,
    changes: &mut Changes,
    family: FamilyId,
    id: VersionId,
    mut version: VersionRecord,
    budget: &mut Budget,
) -> Result<()> {
    if !version.dying {
        (version.dying, version.cursor) = (true, 0);
    }
    let end = kill(read, changes, family, version.key, 0, version.cursor, budget)?;
    let grandparent = version.parent;
    let tx = changes.finish();
    match end {
        Some(cursor) => put(tx, family, id, &VersionRecord { cursor, ..version }),
        None => {
            pending::remove(tx, family, id);
            if let Some(parent_id) = grandparent {
                let parent = record(read, family, parent_id)?;
                pending::update(read, tx, family, parent_id, &parent, &relinked(parent, id, None))?;
            }
        }
    }
    Ok(())
}

/// A step of making two versions into one.
fn collapse(read: &dyn Read, changes: &mut Changes, pair: &Pair, budget: &mut Budget) -> Result<()> {
    let Pair { family, parent_id, mut parent, child_id, mut child } = *pair;
    if child.drain == Drain::None {
        let end = if child.limit == NO_LIMIT || planted(Planted::NoRangeKill) {
            None
        } else {
            kill(read, changes, family, parent.key, child.limit, child.cursor, budget)?
        };
        if let Some(cursor) = end {
            child.cursor = cursor;
        } else {
            child.drain = smaller_side(read, family, child.key, parent.key)?;
            if parent.parent.is_some() && child.limit < parent.limit {
                // Its own cursor is not looked at again: a collapse of the grandparent waits for this one, which ends
                // with the child's cursor at 0.
                parent.limit = child.limit;
            }
            (child.limit, child.cursor) = (NO_LIMIT, 0);
            put(changes.finish(), family, parent_id, &parent);
        }
        put(changes.finish(), family, child_id, &child);
        return Ok(());
    }
    match drain(read, changes, pair, budget)? {
        Some(cursor) => put(changes.finish(), family, child_id, &VersionRecord { cursor, ..child }),
        None => {
            if child.drain == Drain::Up {
                child.key = parent.key;
            }
            (child.drain, child.limit, child.cursor) = (Drain::None, parent.limit, 0);
            child.parent = parent.parent;
            let tx = changes.finish();
            if let Some(id) = parent.parent {
                let grandparent = record(read, family, id)?;
                put(tx, family, id, &relinked(grandparent, parent_id, Some(child_id)));
            }
            put(tx, family, child_id, &child);
            pending::remove(tx, family, parent_id);
        }
    }
    Ok(())
}

fn put(tx: &mut Transaction, family: FamilyId, id: VersionId, version: &VersionRecord) {
    tx.put(TreeId::VERSIONS, &version::encode_key(family, id), &version.encode());
}

/// A version that has lost the child `gone` and perhaps gained `new`.
fn relinked(mut version: VersionRecord, gone: VersionId, new: Option<VersionId>) -> VersionRecord {
    if new.is_none() {
        version.children = version.children.saturating_sub(1);
    }
    version.children_xor ^= gone.0 ^ new.map_or(0, |n| n.0);
    version
}

/// Removes entries of `key` at or beyond byte `from`, segments before `cursor` being done. `None`: all are gone;
/// otherwise the segment to go on with.
fn kill(
    read: &dyn Read,
    changes: &mut Changes,
    family: FamilyId,
    key: VersionKey,
    from: u64,
    cursor: u64,
    budget: &mut Budget,
) -> Result<Option<u64>> {
    let first = cursor.max(from / SEGMENT_BYTES);
    let start = DataKey { family, segment: first, version: VersionKey(u64::MAX), offset: 0 };
    let (mut stopped, mut segment) = (None, first);
    scan(read, &start, |at, extent| {
        if at.segment != segment {
            segment = at.segment;
            if budget.looks == 0 {
                stopped = Some(segment);
                return false;
            }
        }
        budget.looks = budget.looks.saturating_sub(1);
        if at.version != key || at.file_offset() + u64::from(extent.len) <= from {
            return true;
        }
        if budget.changes == 0 && changes.entries() > 0 {
            stopped = Some(segment + u64::from(planted(Planted::CursorSkips)));
            return false;
        }
        budget.changes = budget.changes.saturating_sub(1);
        let kept = from.saturating_sub(at.file_offset()) as u32;
        if kept > 0 {
            changes.put(&at.encode(), &extent.piece(0, kept));
        } else {
            changes.delete(&at.encode());
        }
        changes.free(&extent.piece(kept, extent.len - kept));
        true
    })?;
    Ok(stopped)
}

/// Which way to drain: the side with fewer entries in a sample from the front of the family moves.
fn smaller_side(read: &dyn Read, family: FamilyId, child: VersionKey, parent: VersionKey) -> Result<Drain> {
    let start = DataKey { family, segment: 0, version: VersionKey(u64::MAX), offset: 0 };
    let (mut of_child, mut of_parent, mut looked_at) = (0u64, 0u64, 0);
    scan(read, &start, |key, _| {
        of_child += u64::from(key.version == child);
        of_parent += u64::from(key.version == parent);
        looked_at += 1;
        looked_at < SAMPLE_ENTRIES
    })?;
    Ok(if (of_child <= of_parent) != planted(Planted::LargerSide) { Drain::Up } else { Drain::Down })
}

/// Moves the draining side, segment by segment. `None`: it is empty; otherwise the segment to go on with.
fn drain(read: &dyn Read, changes: &mut Changes, pair: &Pair, budget: &mut Budget) -> Result<Option<u64>> {
    let Pair { family, parent, child_id, child, .. } = *pair;
    let moving = if child.drain == Drain::Up { child.key } else { parent.key };
    let path = Path::load(read, Holder { family, version: child_id, has_versions: true })?;
    let (mut over, mut under, mut merged, mut none) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut cursor = child.cursor;
    loop {
        let segment = match next_with(read, family, moving, cursor, budget)? {
            Next::Found(segment) => segment,
            Next::Stopped(segment) => return Ok(Some(segment)),
            Next::End => return Ok(None),
        };
        if changes.entries() >= budget.changes && changes.entries() > 0 {
            return Ok(Some(segment));
        }
        let of_child = Place { family, segment, version: child.key };
        let of_parent = Place { family, segment, version: parent.key };
        load_all(read, &of_child, &mut over)?;
        load_all(read, &of_parent, &mut under)?;
        overlay(&over, &under, &mut merged, changes);
        drop_idle_holes(read, &path, segment, &mut merged)?;
        none.clear();
        if child.drain == Drain::Up {
            changes.difference(&of_child, &over, &none);
            changes.difference(&of_parent, &under, &merged);
        } else {
            changes.difference(&of_child, &over, &merged);
            changes.difference(&of_parent, &under, &none);
        }
        cursor = segment + 1;
    }
}

enum Next {
    Found(u64),
    Stopped(u64),
    End,
}

/// The first segment from `cursor` on in which `key` has entries.
fn next_with(
    read: &dyn Read,
    family: FamilyId,
    key: VersionKey,
    cursor: u64,
    budget: &mut Budget,
) -> Result<Next> {
    let start = DataKey { family, segment: cursor, version: VersionKey(u64::MAX), offset: 0 };
    let (mut next, mut segment) = (Next::End, cursor);
    scan(read, &start, |at, _| {
        if at.version == key {
            next = Next::Found(at.segment);
            return false;
        }
        if at.segment != segment {
            segment = at.segment;
            if budget.looks == 0 {
                next = Next::Stopped(segment);
                return false;
            }
        }
        budget.looks = budget.looks.saturating_sub(1);
        true
    })?;
    Ok(next)
}

/// Of the holes in the joined list of a segment only those stay that hide something beneath both versions.
fn drop_idle_holes(read: &dyn Read, path: &Path, segment: u64, list: &mut Vec<Entry>) -> Result<()> {
    if list.iter().all(|e| e.extent.kind != ExtentKind::Hole) {
        return Ok(());
    }
    let base = segment * SEGMENT_BYTES;
    let mut kept = Vec::with_capacity(list.len());
    for entry in list.iter() {
        if entry.extent.kind != ExtentKind::Hole {
            kept.push(*entry);
            continue;
        }
        let (low, high) = (base + u64::from(entry.off), base + u64::from(entry.end()));
        for piece in resolve_behind(read, path, path.merging(), low, high, usize::MAX)? {
            if piece.what != Mapping::Hole {
                let off = (piece.offset - base) as u32;
                super::segment::push_joined(
                    &mut kept,
                    Entry { off, extent: entry.extent.piece(off - entry.off, piece.len as u32) },
                );
            }
        }
    }
    *list = kept;
    Ok(())
}
