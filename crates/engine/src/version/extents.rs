//! What data families hold: extents, a segment a place. The reaper's hands.
//!
//! Where a version has entries is in the index, except for a family's first version (see [`super::segment`]): its
//! segments are found by leaping from segment to segment of the family, and a cursor remembers how far that has come.
//! Lists of a segment are joined as a whole, at most 512 entries, and that is the smallest step.

use std::collections::{BTreeMap, HashMap};

use varve_format::record::extent::{DataKey, ExtentKind, SEGMENT_MAX};
use varve_format::record::held::{HELD_KEY_BYTES_MIN, held_key, held_prefix};
use varve_format::record::reap::Work;
use varve_format::record::version::{Drain, NO_LIMIT};
use varve_format::{BLOCK_BYTES, Corrupt, FamilyId, SEGMENT_BYTES, TreeId, VersionId, VersionKey};

use super::family::{Blocks, Own};
use super::joining::{Beneath, block, bytes};
use super::kin::Kin;
use super::pending::mark;
use super::reap::{self, Contents, Looked, Outcome, Pair, ReaperMemory, Rechecked, going_max};
use super::resolve::scan;
use super::segment::{Changes, Entry, Place, load_all, push_joined};
use super::sweep;
use super::{Planted, Progress, Read, Result, planted};
use crate::{EngineError, Transaction};

/// Segments that a step may look at without changing any, for each entry it may change.
const LOOKED_AT_RATIO: u64 = 4;
/// Segments counted to find out which of two versions has fewer.
const COUNTED_MAX: u64 = 256;
/// Versions one above the other that are rechecked together: each is looked for in each segment. (Few in unit tests, so that the
/// models meet more.)
const RECHECKED_MAX: usize = if cfg!(test) { 2 } else { 16 };
/// A step of fewer changes than this is one that was made small.
const STEP_CHANGES: u64 = 256;

/// One small step towards what holders see and nothing else, in a data family: collapses a version without holders into
/// its only child, removes one that nobody sees, or what nobody sees of one. Apply `tx` (which becomes privileged) after
/// each, and call again while [`Progress::more`]; when there was nothing to do, it is empty. Run it under the lock of the
/// family. A holder's version id never changes by it; its path does. A step changes about `entries_max` entries, at least
/// one segment's.
///
/// # Errors
/// [`EngineError::Corrupt`] for a record that cannot be; `tx` must then be dropped.
pub fn reap_step(
    read: &dyn Read,
    tx: &mut Transaction,
    family: FamilyId,
    entries_max: u64,
    memory: &mut ReaperMemory,
) -> Result<Progress> {
    let looks = entries_max.saturating_mul(LOOKED_AT_RATIO).max(64);
    let changes = Changes::new(tx);
    let mut extents = Extents { changes, changes_max: entries_max, looks, looks_max: looks, visits: 0 };
    let more = sweep::step(read, &mut extents, family, &mut memory.sweep)?
        || reap::step(read, &mut extents, family, &mut memory.witnesses)?;
    if !more {
        memory.sweep = sweep::Memory::Nothing;
    }
    let changes = &mut extents.changes;
    changes.finish();
    Ok(Progress {
        more,
        next: 0,
        entries: changes.entries(),
        blocks_freed: changes.blocks_freed,
        reserved_freed: changes.reserved_freed,
    })
}

/// Up to `families_max` data families after `after` in which [`reap_step`] has work: to be asked when a pool is opened. A namespace is among
/// them where damage hides that it is one.
/// The second part says after which to go on; `None`: there are no more. Looks at families with work only.
///
/// # Errors
/// [`EngineError::Corrupt`] for an entry that cannot be.
pub fn pending_families(
    read: &dyn Read,
    after: Option<FamilyId>,
    families_max: usize,
) -> Result<(Vec<FamilyId>, Option<FamilyId>)> {
    reap::pending_of(read, after, families_max, false)
}

/// A step's changes to extents, and what it may still do.
pub(super) struct Extents<'a> {
    pub(super) changes: Changes<'a>,
    pub(super) changes_max: u64,
    looks: u64,
    looks_max: u64,
    /// Lists that a sweep has come by: each may be in a leaf of the index of its own.
    pub(super) visits: u64,
}

impl Contents for Extents<'_> {
    fn tx(&mut self) -> &mut Transaction {
        self.changes.finish()
    }

    fn full(&self) -> bool {
        // The planted error shows where a step stops; files of the crash suite are small.
        let max = if planted(Planted::CursorSkips) { 1 } else { self.changes_max };
        self.looks == 0 || (self.changes.entries() >= max && self.changes.entries() > 0)
    }

    fn kill(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        key: VersionKey,
        from: u64,
        cursor: &[u8],
    ) -> Result<Outcome> {
        let mut cursor = decode_cursor(family, cursor)?.max(from / SEGMENT_BYTES);
        let (mut old, mut new) = (Vec::new(), Vec::new());
        loop {
            let segment = match next_with(read, family, key, cursor, u64::MAX, &mut self.looks)? {
                Next::Found(segment) => segment,
                Next::Stopped(segment) => return Ok(stopped(family, key, segment)),
                Next::End => return Ok(Outcome::Done),
            };
            if self.full() {
                return Ok(stopped(family, key, segment + u64::from(planted(Planted::CursorSkips))));
            }
            let place = Place { family, segment, version: key };
            load_all(read, &place, &mut old)?;
            let keep = from.saturating_sub(segment * SEGMENT_BYTES).min(SEGMENT_BYTES) as u32;
            let most = self.changes_max.saturating_sub(self.changes.entries()).max(1);
            let (mut removed, mut whole) = (0, true);
            new.clear();
            for entry in &old {
                let kept = keep.clamp(entry.off, entry.end());
                if kept == entry.end() || removed == most {
                    whole &= kept == entry.end();
                    new.push(*entry);
                    continue;
                }
                if kept > entry.off {
                    new.push(entry.part(entry.off, kept));
                }
                self.changes.free(&entry.part(kept, entry.end()).extent);
                removed += 1;
            }
            self.changes.difference(read, &place, &old, &new, true)?;
            if !whole {
                return Ok(stopped(family, key, segment + u64::from(planted(Planted::CursorSkips))));
            }
            cursor = segment + 1;
        }
    }

    fn smaller(&self, read: &dyn Read, pair: &Pair) -> Result<Drain> {
        let of_child = count(read, pair.family, pair.child.key, COUNTED_MAX)?;
        let of_parent = count(read, pair.family, pair.parent.key, of_child + 1)?;
        // What moves up to the family's own key needs neither a record nor an index any more: that is worth a few lists, even
        // where the parent has fewer.
        let plain = pair.parent.key.0 == pair.family.0 && of_child < COUNTED_MAX;
        let up = (of_child <= of_parent || plain) != planted(Planted::LargerSide);
        Ok(if up { Drain::Up } else { Drain::Down })
    }

    fn drain(&mut self, read: &dyn Read, pair: &Pair, cursor: &[u8]) -> Result<Outcome> {
        let Pair { family, parent, child_id, child, .. } = *pair;
        let moving = if child.drain == Drain::Up { child.key } else { parent.key };
        let target = if child.drain == Drain::Up { parent.key } else { child.key };
        let mut beneath = Beneath::new(child_id, 2);
        let mut lists = [(child.key, Vec::new()), (parent.key, Vec::new())];
        let mut cursor = decode_cursor(family, cursor)?;
        loop {
            let segment = match next_with(read, family, moving, cursor, u64::MAX, &mut self.looks)? {
                Next::Found(segment) => segment,
                Next::Stopped(segment) => return Ok(stopped(family, moving, segment)),
                Next::End => return Ok(Outcome::Done),
            };
            if self.full() {
                return Ok(stopped(family, moving, segment));
            }
            for (version, list) in &mut lists {
                load_all(read, &Place { family, segment, version: *version }, list)?;
            }
            self.join(read, family, segment, &lists, Some(target), Some(&mut beneath))?;
            cursor = segment + 1;
        }
    }

    fn recheck(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        those: &Rechecked,
        cursor: &[u8],
    ) -> Result<Outcome> {
        let family = kin.family();
        let keys: Vec<VersionKey> = those.versions.iter().map(|(_, key)| *key).collect();
        let (witnesses, limit) = &those.witness;
        let limit = if *limit == NO_LIMIT { u64::MAX } else { *limit / SEGMENT_BYTES };
        let mut segment = decode_cursor(family, cursor)?;
        // Each step looks at one place at least.
        let mut begun = false;
        loop {
            let candidate = match first_of(read, family, witnesses, segment, &mut self.looks)? {
                Next::Found(found) => Some(found.min(segment.max(limit))),
                Next::Stopped(segment) => return Ok(Outcome::Stopped(encode_cursor(segment))),
                Next::End => (limit != u64::MAX).then(|| segment.max(limit)),
            };
            let Some(candidate) = candidate else { return Ok(Outcome::Done) };
            let found = match first_of(read, family, &keys, candidate, &mut self.looks)? {
                Next::Found(segment) => segment,
                Next::Stopped(segment) => return Ok(Outcome::Stopped(encode_cursor(segment))),
                Next::End => return Ok(Outcome::Done),
            };
            if begun && self.full() {
                return Ok(Outcome::Stopped(encode_cursor(found)));
            }
            begun = true;
            // Also where the two do not meet, however often.
            self.looks = self.looks.saturating_sub((keys.len() + witnesses.len()) as u64);
            // Further on the witnesses may have nothing before the next of theirs.
            segment = found;
            if found == candidate {
                for of in &those.versions {
                    match self.recheck_segment(read, kin, Some(*of), found)? {
                        Looked::Begun => {
                            mark(self.tx(), family, Work::Rest(TreeId::EXTENTS, &found.to_be_bytes()), &[]);
                        }
                        Looked::Swept => {}
                        Looked::Seen | Looked::Later => continue,
                    }
                    // All that any version has there has been looked at.
                    break;
                }
                segment += 1;
            }
        }
    }

    fn rechecked_max(&self) -> usize {
        RECHECKED_MAX
    }

    fn recheck_place(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        of: Option<(VersionId, VersionKey)>,
        tree: TreeId,
        place: &[u8],
    ) -> Result<Looked> {
        let segment = if tree == TreeId::EXTENTS { place } else { &[] };
        self.recheck_segment(read, kin, of, decode_segment(kin.family(), segment)?)
    }
}

impl Extents<'_> {
    /// Removes what nobody sees from a segment, whoever has it, unless somebody sees all that version `of` has there. If that is
    /// much, part of it, and data first: without what they hide, holes hide nothing, and can go one by one.
    fn recheck_segment(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        of: Option<(VersionId, VersionKey)>,
        segment: u64,
    ) -> Result<Looked> {
        let family = kin.family();
        self.looks = self.looks.saturating_sub(1);
        let mut list = Vec::new();
        let mut own_of = |version: VersionKey| {
            load_all(read, &Place { family, segment, version }, &mut list)?;
            Ok(own_blocks(&list))
        };
        if let Some((id, key)) = of {
            let has = own_of(key)?;
            if kin.is_seen(id, has.all(), &mut own_of, &|limit| below(limit, segment))? {
                return Ok(Looked::Seen);
            }
        }
        let (own, counts) = own_of_all(read, family, segment)?;
        let id = of.map_or(VersionId(family.0), |(id, _)| id);
        let mut stays = kin.stays(id, &own, &|limit| below(limit, segment))?;
        self.looks = self.looks.saturating_sub(kin.weight(self.looks_max));
        // Both in the order of their keys; nearly all of nearly all stays.
        let mut had = own.iter();
        let mut going: Vec<(bool, VersionKey)> = Vec::new();
        for (version, left) in &stays {
            match had.find(|(key, _)| *key == version) {
                Some((_, own)) if own == left => {}
                own => going.push((own.is_some_and(|(_, own)| own.something == left.something), *version)),
            }
        }
        let mut left = going_max(self.changes_max, STEP_CHANGES);
        // Entries that go and that come in their place, and what becomes free.
        let changes = |version: &VersionKey| {
            let (own, stays) = (own.get(version).copied(), stays.get(version).copied().unwrap_or_default());
            let pieces = stays.something.runs() + stays.holes.runs();
            let freed = own.map_or(0, |own| own.something.without(stays.something).runs());
            counts.get(version).copied().unwrap_or(1).max(1) + pieces + freed
        };
        let mut going: Vec<_> =
            going.into_iter().map(|(only_holes, version)| (only_holes, version, changes(&version))).collect();
        let all: u64 = going.iter().map(|(_, _, changes)| changes).sum();
        let mut begun = all > left;
        if begun {
            going.sort_unstable();
            if planted(Planted::HolesFirst) {
                going.reverse();
            }
            // As many as fit, and one at least.
            let fits = going.iter().take_while(|(_, _, changes)| {
                let some = left > 0;
                left = left.saturating_sub(*changes);
                some
            });
            let fits = fits.count();
            begun = fits < going.len();
            let data = going.iter().take_while(|(only_holes, _, _)| !only_holes).count();
            going.truncate(fits);
            if data > fits && !planted(Planted::HolesFirst) {
                // Some of what they hide is still there.
                going.iter().for_each(|(_, version, _)| {
                    if let (Some(stays), Some(own)) = (stays.get_mut(version), own.get(version)) {
                        stays.holes = own.holes;
                    }
                });
            }
        }
        for (_, version, _) in going {
            let place = Place { family, segment, version };
            load_all(read, &place, &mut list)?;
            keep(read, &mut self.changes, &place, &list, &list, &stays)?;
        }
        Ok(if begun && !planted(Planted::RestForgotten) { Looked::Begun } else { Looked::Swept })
    }
}

/// Of each version its blocks, and how many entries they are.
type Owned = (BTreeMap<VersionKey, Own>, HashMap<VersionKey, u64>);

/// What each version of a family has in a segment.
fn own_of_all(read: &dyn Read, family: FamilyId, segment: u64) -> Result<Owned> {
    let mut counts: HashMap<VersionKey, u64> = HashMap::new();
    let start = DataKey { family, segment, version: VersionKey(u64::MAX), offset: 0 };
    let mut all: Vec<(VersionKey, Own)> = Vec::new();
    scan(read, &start, |key, extent| {
        if key.segment == segment {
            if all.last().is_none_or(|(version, _)| *version != key.version) {
                all.push((key.version, Own::default()));
            }
            if let Some((_, own)) = all.last_mut() {
                add_blocks(own, &Entry { off: key.offset, extent });
                *counts.entry(key.version).or_default() += 1;
            }
        }
        key.segment == segment
    })?;
    // Younger versions come first.
    Ok((all.into_iter().rev().collect(), counts))
}

/// What each version of a family has in a segment.
pub(super) fn lists_of(
    read: &dyn Read,
    family: FamilyId,
    segment: u64,
) -> Result<BTreeMap<VersionKey, Vec<Entry>>> {
    let start = DataKey { family, segment, version: VersionKey(u64::MAX), offset: 0 };
    let mut lists: BTreeMap<VersionKey, Vec<Entry>> = BTreeMap::new();
    scan(read, &start, |key, extent| {
        if key.segment == segment {
            lists.entry(key.version).or_default().push(Entry { off: key.offset, extent });
        }
        key.segment == segment
    })?;
    Ok(lists)
}

/// Makes what stays of `list` the list of `place`, which is `stored`: the rest is freed.
pub(super) fn keep(
    read: &dyn Read,
    changes: &mut Changes,
    place: &Place,
    stored: &[Entry],
    list: &[Entry],
    stays: &BTreeMap<VersionKey, Own>,
) -> Result<()> {
    let mut new = Vec::new();
    match stays.get(&place.version) {
        Some(stays) if *stays != own_blocks(list) => {
            for entry in list {
                let hole = entry.extent.kind == ExtentKind::Hole;
                let mask = if hole { stays.holes } else { stays.something };
                let (mut at, end) = (block(entry.off), block(entry.end()));
                while at < end {
                    let upto = mask.run_end(at, end);
                    let part = entry.part(bytes(at), bytes(upto));
                    if mask.has(at) {
                        push_joined(&mut new, part);
                    } else {
                        changes.free(&part.extent);
                    }
                    at = upto;
                }
            }
        }
        // All of it; what belongs to no version is for a check to find.
        _ if list == stored => return Ok(()),
        _ => new.extend_from_slice(list),
    }
    changes.difference(read, place, stored, &new, true)
}

/// The blocks of a version's list in a segment.
pub(super) fn own_blocks(list: &[Entry]) -> Own {
    let mut own = Own::default();
    list.iter().for_each(|entry| add_blocks(&mut own, entry));
    own
}

fn add_blocks(own: &mut Own, entry: &Entry) {
    let blocks = Blocks::range(block(entry.off), block(entry.end()));
    match entry.extent.kind {
        ExtentKind::Hole => own.holes = own.holes.or(blocks),
        ExtentKind::Data | ExtentKind::Reserved => own.something = own.something.or(blocks),
    }
}

/// The blocks of a segment that lie below a limit.
pub(super) fn below(limit: u64, segment: u64) -> Blocks {
    let within = limit.saturating_sub(segment.saturating_mul(SEGMENT_BYTES)).min(SEGMENT_BYTES);
    Blocks::range(0, within as usize / BLOCK_BYTES)
}

/// Stopped before `segment`. What has an index needs no cursor.
fn stopped(family: FamilyId, key: VersionKey, segment: u64) -> Outcome {
    Outcome::Stopped(if key.0 == family.0 { encode_cursor(segment) } else { Vec::new() })
}

fn encode_cursor(segment: u64) -> Vec<u8> {
    let mut out = vec![TreeId::EXTENTS.0 as u8];
    out.extend_from_slice(&segment.to_be_bytes());
    out
}

/// The segment in a cursor; 0 for an empty one.
fn decode_cursor(family: FamilyId, cursor: &[u8]) -> Result<u64> {
    match cursor.split_first() {
        None => Ok(0),
        Some((tree, segment)) => {
            let here = u16::from(*tree) == TreeId::EXTENTS.0;
            decode_segment(family, if here { segment } else { &[] })
        }
    }
}

/// The segment that a place is.
pub(super) fn decode_segment(family: FamilyId, place: &[u8]) -> Result<u64> {
    let segment = place.try_into().ok().map(u64::from_be_bytes).filter(|segment| *segment <= SEGMENT_MAX);
    let why = Corrupt { what: "place that is no segment", at: 0 };
    segment.ok_or_else(|| EngineError::corrupt(format!("what is held or reaped of family {}", family.0), why))
}

enum Next {
    Found(u64),
    Stopped(u64),
    End,
}

/// The first segment from `from` on in which one of `keys` has entries.
fn first_of(
    read: &dyn Read,
    family: FamilyId,
    keys: &[VersionKey],
    from: u64,
    looks: &mut u64,
) -> Result<Next> {
    let (mut first, mut stopped) = (u64::MAX, u64::MAX);
    for key in keys {
        // Nobody asks what lies behind the first that has been found.
        match next_with(read, family, *key, from, first, looks)? {
            Next::Found(segment) => first = first.min(segment),
            Next::Stopped(segment) => stopped = stopped.min(segment),
            Next::End => (),
        }
    }
    Ok(match (first, stopped) {
        (u64::MAX, u64::MAX) => Next::End,
        (first, stopped) if first <= stopped => Next::Found(first),
        (_, stopped) => Next::Stopped(stopped),
    })
}

/// The first segment from `from` on in which `key` has entries: the index says; without one, by leaps, up to one behind `upto`.
fn next_with(
    read: &dyn Read,
    family: FamilyId,
    key: VersionKey,
    from: u64,
    upto: u64,
    looks: &mut u64,
) -> Result<Next> {
    if key.0 != family.0 {
        let prefix = held_prefix(family, key, TreeId::EXTENTS);
        let mut found = None;
        read.scan(
            TreeId::HELD,
            &held_key(family, key, TreeId::EXTENTS, &from.to_be_bytes()),
            &mut |key, _| {
                if key.starts_with(&prefix) {
                    found = Some(decode_segment(family, &key[HELD_KEY_BYTES_MIN..]));
                }
                false
            },
        )?;
        return Ok(found.transpose()?.map_or(Next::End, Next::Found));
    }
    let mut from = from;
    loop {
        let mut found = None;
        scan(read, &DataKey { family, segment: from, version: key, offset: 0 }, |at, _| {
            found = Some(at);
            false
        })?;
        match found {
            None => return Ok(Next::End),
            Some(at) if at.version == key => return Ok(Next::Found(at.segment)),
            // Within a segment nothing is older than the first version: this is a later one.
            Some(at) if at.segment > from => from = at.segment,
            Some(_) => {
                let why = Corrupt { what: "extent older than the first version", at: 0 };
                return Err(EngineError::corrupt(format!("the data of family {}", family.0), why));
            }
        }
        if *looks == 0 || from > upto {
            return Ok(Next::Stopped(from));
        }
        *looks -= 1;
    }
}

/// In how many segments `key` has entries, counted up to `max`.
pub(super) fn count(read: &dyn Read, family: FamilyId, key: VersionKey, max: u64) -> Result<u64> {
    if key.0 != family.0 {
        let (prefix, mut segments) = (held_prefix(family, key, TreeId::EXTENTS), 0);
        read.scan(TreeId::HELD, &prefix, &mut |held, _| {
            let counts = held.starts_with(&prefix) && segments < max;
            segments += u64::from(counts);
            counts
        })?;
        return Ok(segments);
    }
    let (mut segments, mut from, mut looks) = (0, 0, COUNTED_MAX);
    while segments < max {
        match next_with(read, family, key, from, u64::MAX, &mut looks)? {
            Next::Found(segment) => (segments, from) = (segments + 1, segment + 1),
            Next::Stopped(_) | Next::End => break,
        }
    }
    Ok(segments)
}
