//! A sweep: [`Rows`] of versions that go, done with place by place, so that each leaf of the tree is changed once and not
//! once for each of them.
//!
//! How far it has come is in memory only, and nothing but time depends on it: before a row is touched in a step, its
//! records have to say that it still is one, and the index that the step before has come true; what is done in a place needs
//! no other to have been done; and a version's record goes when the index says that it has nothing. After a crash, or when something has changed, it is planned anew.
//! Versions that nobody holds since a sweep began wait for the next one.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use varve_format::record::extent::DataKey;
use varve_format::record::held::{HELD_KEY_BYTES_MIN, held_key, held_prefix};
use varve_format::record::version::Drain;
use varve_format::{FamilyId, TreeId, VersionId, VersionKey};

use super::extents::{Extents, count, decode_segment};
use super::joining::Beneath;
use super::pending::record;
use super::reap::{self, Contents, pair};
use super::resolve::{LEAP_ENTRIES, scan};
use super::rows::{Kind, Row, Rows};
use super::segment;
use super::{Planted, Read, Result, planted};

/// Pairs that begin in one step.
const BEGUN_MAX: usize = 32;
/// Places known ahead of each member.
const AHEAD_MAX: usize = if cfg!(test) { 2 } else { 32 };
/// Lists of so many members are loaded at a time.
const LOADED_MAX: usize = if cfg!(test) { 3 } else { 64 };
/// Members of a row up to which it is worth to count where they have something.
const COUNTED_MEMBERS: usize = 8;

/// What is remembered of sweeps from step to step.
#[derive(Default, Debug)]
pub(super) enum Memory {
    #[default]
    Nothing,
    /// This one is going on.
    Sweep(Sweep),
    /// For so many steps it is not worth to look for one in this family.
    NotWorth(FamilyId, usize),
}

/// A sweep that has begun.
#[derive(Debug)]
pub(super) struct Sweep {
    family: FamilyId,
    rows: Vec<Row>,
    /// Of each row's members the next places where they have something. Empty for who gains what the others have.
    ahead: Vec<Vec<VecDeque<u64>>>,
    /// The next of those places, with row and member.
    places: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Rows in front of this one have ended.
    ended: usize,
    /// An entry of the index that the last step has deleted. If it is there, that step has not been applied, and others may
    /// still have something between two members that are to become one.
    deleted: Option<Vec<u8>>,
}

/// What has become of a step.
enum Went {
    /// It did something, and there is more to do.
    On,
    /// All has been done.
    Out,
    /// A row is not what it was.
    Astray,
}

/// A step of a sweep, if there are enough versions that go to make one worth while. False: nothing was done, and what
/// there is to do is done one by one.
pub(super) fn step(
    read: &dyn Read,
    extents: &mut Extents,
    family: FamilyId,
    memory: &mut Memory,
) -> Result<bool> {
    for _ in 0..2 {
        let mut sweep = match std::mem::take(memory) {
            Memory::Sweep(sweep) if sweep.family == family && sweep.is_applied(read)? => sweep,
            Memory::NotWorth(of, steps @ 1..) if of == family => {
                *memory = Memory::NotWorth(of, steps - 1);
                return Ok(false);
            }
            _ => {
                let found = Rows::find(read, family)?;
                if found.begin.len() + found.rows.len() > 1 && !found.begin.is_empty() {
                    extents.tx().privileged();
                    for pair in found.begin.iter().take(BEGUN_MAX) {
                        reap::begin(read, extents, pair)?;
                    }
                    return Ok(true);
                }
                let going = found.going;
                let Some(sweep) = Sweep::plan(read, family, found)? else {
                    *memory = Memory::NotWorth(family, going / 4);
                    return Ok(false);
                };
                sweep
            }
        };
        extents.tx().privileged();
        match sweep.advance(read, extents)? {
            Went::On => *memory = Memory::Sweep(sweep),
            Went::Out | Went::Astray if extents.tx().is_empty() => continue,
            Went::Out | Went::Astray => (),
        }
        return Ok(true);
    }
    Ok(false)
}

impl Sweep {
    #[cfg(test)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (Kind, usize)> {
        self.rows.iter().map(|row| (row.kind, row.ids.len()))
    }

    fn plan(read: &dyn Read, family: FamilyId, found: Rows) -> Result<Option<Sweep>> {
        let (mut rows, mut ahead, mut places) = (Vec::new(), Vec::new(), BinaryHeap::new());
        for mut row in found.rows {
            if let Kind::Joined { .. } = row.kind
                && !choose_target(read, family, &mut row)?
            {
                continue;
            }
            let mut members = Vec::with_capacity(row.keys.len());
            for (member, key) in row.keys.iter().enumerate() {
                let next =
                    if moves(&row, member) { look_ahead(read, family, *key, 0)? } else { VecDeque::new() };
                members.push(next);
            }
            // A clone with little of its own goes as quickly by itself.
            if row.kind == Kind::Dead && members.len() == 1 && members[0].len() < AHEAD_MAX {
                continue;
            }
            for (member, next) in members.iter_mut().enumerate() {
                places.extend(next.pop_front().map(|segment| Reverse((segment, rows.len(), member))));
            }
            rows.push(row);
            ahead.push(members);
        }
        let worth = rows.len() > 1 || rows.first().is_some_and(|row| !matches!(row.kind, Kind::Pair(_)));
        Ok(worth.then_some(Sweep { family, rows, ahead, places, ended: 0, deleted: None }))
    }

    /// Whether what the last step did has come true. A transaction does as a whole: one thing in it is asked for.
    fn is_applied(&self, read: &dyn Read) -> Result<bool> {
        let there = self.deleted.as_ref().map(|key| read.get(TreeId::HELD, key)).transpose()?;
        Ok(there.flatten().is_none())
    }

    /// Goes by the next places, until the step has done what it may; then rows end, one a step.
    fn advance(&mut self, read: &dyn Read, extents: &mut Extents) -> Result<Went> {
        let mut met: BTreeMap<usize, Beneath> = BTreeMap::new();
        self.deleted = None;
        while let Some(Reverse((segment, row, _))) = self.places.peek().copied() {
            if extents.is_swept() {
                return Ok(Went::On);
            }
            let beneath = match met.entry(row) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(_) if !self.rows[row].is_sound(read, self.family)? => return Ok(Went::Astray),
                Entry::Vacant(new) => new.insert(self.rows[row].beneath()),
            };
            let mut here = Vec::new();
            while let Some(Reverse((at, of, member))) = self.places.peek().copied() {
                if (at, of) != (segment, row) {
                    break;
                }
                self.places.pop();
                here.push(member);
            }
            let (left, emptied) =
                extents.sweep_place(read, self.family, &self.rows[row], segment, &here, beneath)?;
            if let Some(key) = emptied {
                self.deleted = Some(held_key(self.family, key, TreeId::EXTENTS, &segment.to_be_bytes()));
            }
            let stops = !left.is_empty();
            self.places.extend(left.iter().map(|member| Reverse((segment, row, *member))));
            for member in here.into_iter().filter(|member| !left.contains(member)) {
                let next = self.next(read, row, member, segment + 1)?;
                self.places.extend(next.map(|segment| Reverse((segment, row, member))));
            }
            if stops {
                // What a transaction has changed it cannot look at again.
                return Ok(Went::On);
            }
        }
        if !extents.tx().is_empty() {
            return Ok(Went::On);
        }
        self.end(read, extents)
    }

    /// The next place of a member, from `from` on.
    fn next(&mut self, read: &dyn Read, row: usize, member: usize, from: u64) -> Result<Option<u64>> {
        let ahead = &mut self.ahead[row][member];
        if ahead.is_empty() {
            *ahead = look_ahead(read, self.family, self.rows[row].keys[member], from)?;
        }
        Ok(ahead.pop_front())
    }

    /// Ends the next row, or a part of it.
    fn end(&mut self, read: &dyn Read, extents: &mut Extents) -> Result<Went> {
        let Some(row) = self.rows.get_mut(self.ended) else { return Ok(Went::Out) };
        let family = self.family;
        if !row.is_sound(read, family)? {
            return Ok(Went::Astray);
        }
        if let Kind::Pair(_) = row.kind {
            let link = |id: VersionId| record(read, family, id).map(|version| (id, version));
            let pair = pair(family, link(row.ids[0])?, link(row.ids[1])?)?;
            // Should anything be left, it goes on with that as if it were alone.
            reap::collapse(read, extents, &pair, &[])?;
            self.ended += 1;
            return Ok(Went::On);
        }
        for key in row.sources(row.ends_from()) {
            if count(read, family, key, 1)? > 0 {
                return Ok(Went::Astray);
            }
        }
        self.ended += usize::from(row.end(read, extents.tx(), family)?);
        Ok(Went::On)
    }
}

impl Row {
    /// Of the path through the row the part in front of which it stands.
    fn beneath(&self) -> Beneath {
        Beneath::new(*self.ids.last().expect("a row has members"), self.ids.len())
    }
}

impl Extents<'_> {
    /// Whether a step of a sweep has done what it may.
    fn is_swept(&self) -> bool {
        self.changes.entries() + self.visits >= self.changes_max.max(1)
    }

    /// Does what is to be done to a row in one place, where the index says that these members have something. Gives those
    /// whose turn has not come, and one that had something and now has nothing there.
    fn sweep_place(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        row: &Row,
        segment: u64,
        here: &[usize],
        beneath: &mut Beneath,
    ) -> Result<(Vec<usize>, Option<VersionKey>)> {
        let target = match row.kind {
            Kind::Dead => None,
            Kind::Joined { target } => Some(target),
            Kind::Pair(drain) => Some(usize::from(drain == Drain::Down)),
        };
        // From the target outwards, so that there is never one between two that become one.
        let younger = here.iter().copied().filter(|member| Some(*member) > target);
        let older = here.iter().rev().copied().filter(|member| Some(*member) < target);
        let order: Vec<usize> = younger.chain(older).collect();
        let room = self.changes_max.saturating_sub(self.changes.entries() + self.visits);
        let (mut lists, mut weight) = (Vec::new(), 0);
        'load: for members in order.chunks(LOADED_MAX) {
            for (member, list) in load_lists(read, family, segment, row, members)? {
                if weight >= room && !lists.is_empty() {
                    break 'load;
                }
                weight += list.len() as u64 + 1;
                if list.is_empty() {
                    self.forget(read, family, row.keys[member], segment)?;
                }
                lists.push((member, list));
            }
        }
        self.visits += lists.len() as u64;
        let left = order[lists.len()..].to_vec();
        let emptied = lists.iter().find(|(_, list)| !list.is_empty()).map(|(member, _)| row.keys[*member]);
        if let Some(target) = target {
            lists.extend(load_lists(read, family, segment, row, &[target])?);
        }
        // Youngest first.
        lists.sort_by_key(|(member, _)| Reverse(*member));
        if planted(Planted::OldestOnTop) && matches!(row.kind, Kind::Joined { .. }) {
            lists.reverse();
        }
        let lists: Vec<_> = lists.into_iter().map(|(member, list)| (row.keys[member], list)).collect();
        // While an older one has its turn still before it, a hole may hide what it has.
        let beneath = Some(beneath).filter(|_| !left.iter().any(|member| Some(*member) < target));
        self.join(read, family, segment, &lists, target.map(|target| row.keys[target]), beneath)?;
        Ok((left, emptied))
    }

    /// An index entry where there is nothing, which there should not be, goes.
    fn forget(&mut self, read: &dyn Read, family: FamilyId, key: VersionKey, segment: u64) -> Result<()> {
        let held = held_key(family, key, TreeId::EXTENTS, &segment.to_be_bytes());
        if read.get(TreeId::HELD, &held)?.is_some() {
            self.changes.finish().delete(TreeId::HELD, &held);
        }
        Ok(())
    }
}

/// Whether what a member has moves or goes.
fn moves(row: &Row, member: usize) -> bool {
    match row.kind {
        Kind::Dead => true,
        Kind::Joined { target } => member != target,
        Kind::Pair(drain) => member == usize::from(drain == Drain::Up),
    }
}

/// Has the member with the most places gain what the others have: the oldest of several. Nothing moves out of a family's
/// first version: it is taken out of the row if it has less. False: nothing is left of the row then.
fn choose_target(read: &dyn Read, family: FamilyId, row: &mut Row) -> Result<bool> {
    let max = if row.keys.len() <= COUNTED_MEMBERS { 256 } else { 32 };
    let (mut target, mut most) = (0, None);
    for (member, key) in row.keys.iter().enumerate() {
        let places = count(read, family, *key, max)?;
        let places = if planted(Planted::LargerSide) { max - places } else { places };
        if most.is_none_or(|most| places > most) {
            (target, most) = (member, Some(places));
        }
    }
    if target > 0 && row.keys[0].0 == family.0 {
        row.keys.remove(0);
        row.ids.remove(0);
        target -= 1;
    }
    row.kind = Kind::Joined { target };
    Ok(row.keys.len() > 1)
}

/// The next segments in which a version with an index has something, a few.
fn look_ahead(read: &dyn Read, family: FamilyId, key: VersionKey, from: u64) -> Result<VecDeque<u64>> {
    let prefix = held_prefix(family, key, TreeId::EXTENTS);
    let (mut segments, mut failed) = (VecDeque::new(), None);
    let from = held_key(family, key, TreeId::EXTENTS, &from.to_be_bytes());
    read.scan(TreeId::HELD, &from, &mut |held, _| {
        if !held.starts_with(&prefix) {
            return false;
        }
        match decode_segment(family, &held[HELD_KEY_BYTES_MIN..]) {
            Ok(segment) => segments.push_back(segment),
            Err(error) => failed = Some(error),
        }
        failed.is_none() && segments.len() < AHEAD_MAX
    })?;
    failed.map_or(Ok(segments), Err)
}

/// The lists of some members of a row in one segment, in the order in which they are asked for.
fn load_lists(
    read: &dyn Read,
    family: FamilyId,
    segment: u64,
    row: &Row,
    members: &[usize],
) -> Result<Vec<(usize, Vec<segment::Entry>)>> {
    // The youngest lie in front.
    let mut sorted: Vec<usize> = members.to_vec();
    sorted.sort_unstable_by_key(|member| Reverse(*member));
    let mut lists: BTreeMap<usize, Vec<segment::Entry>> = BTreeMap::new();
    let mut at = 0;
    while at < sorted.len() {
        let (mut foreign, mut leaps) = (0, false);
        let start = DataKey { family, segment, version: row.keys[sorted[at]], offset: 0 };
        scan(read, &start, |key, extent| {
            if key.segment != segment {
                return false;
            }
            while at < sorted.len() && row.keys[sorted[at]] > key.version {
                at += 1;
            }
            let Some(member) = sorted.get(at).copied() else { return false };
            if row.keys[member] == key.version {
                foreign = 0;
                lists.entry(member).or_default().push(segment::Entry { off: key.offset, extent });
            } else {
                foreign += 1;
                leaps = foreign >= LEAP_ENTRIES;
            }
            !leaps
        })?;
        if !leaps {
            break;
        }
    }
    Ok(members.iter().map(|member| (*member, lists.remove(member).unwrap_or_default())).collect())
}
