//! What a recheck asks of a family: who is below a version, and whether somebody sees what it has in a place. Read as far
//! as it is needed, so that a recheck in a family of a hundred thousand versions does not read them all.
//!
//! Nearly always something is seen, by nearly anybody: of a star of clones each but a few. So a few holders are asked
//! first, and the one that was the answer the last time before all others; only when none of them sees it, the family is
//! read as a whole, and mostly something goes then. What is remembered is a hint: it is asked anew each time, and
//! nothing depends on it but the time it takes.
//!
//! Which holders are remembered is left to chance. Those who hide something do it one after the other in some order; the
//! first in ours who still sees it would be the next of them in most, and who comes late finds none near it. One chosen
//! by chance outlives half of those who are left, whatever their order: of n holders, a family is read some log n times.
//! What different holders see of one place takes several of them.

use std::collections::{BTreeMap, HashMap};

use varve_format::record::version::{self, NO_LIMIT, VersionRecord};
use varve_format::{FamilyId, TreeId, VersionId, VersionKey};

use super::family::{Blocks, Family, Own, no_parent};
use super::pending::{State, corrupt, record, state};
use super::{Planted, Read, Result, planted};
use crate::numbers::split_mix;

/// Holders asked before the family is read as a whole.
const ASKED_MAX: usize = 64;
/// Versions between a holder and the one that is rechecked, when a few are asked.
pub(super) const STEPS_MAX: usize = 8;
/// Of these, chosen by chance among all, when it is known how far they go.
const CHOSEN_MAX: usize = 16;
/// Holders remembered of a version.
const WITNESSES_MAX: usize = 8;
/// Records looked at for the best of the children of a version.
const CHILDREN_MAX: usize = 256;
/// Held children without a limit that are compared by how much they have.
const COMPARED_MAX: usize = 16;
/// Places of a child that are counted for that. With fewer than [`PLACES_FEW`] it is not worth to look for another.
const PLACES_MAX: u64 = 64;
const PLACES_FEW: u64 = 8;
/// How many more where none that is held has been found among them, on one way down.
const INDIRECT_MAX: usize = 4096;
/// Versions of a family that count as one look when all are looked at: they are in memory.
const VERSIONS_A_LOOK: u64 = 8;
/// Looks at all versions that a step may take in any case.
const WHOLES_MIN: u64 = 8;
/// Hints kept: all are dropped when there are more.
const HINTS_MAX: usize = 4096;

/// Of versions that were rechecked holders who see what they have. Kept from step to step, or not.
#[derive(Default, Debug)]
pub(super) struct Witnesses {
    hints: HashMap<(FamilyId, VersionId), Hint>,
    /// What the next choice comes from. The same choices each time: they need not surprise anybody.
    chance: u64,
    /// How often all versions of a family were looked at.
    #[cfg(test)]
    pub(super) wholes: u64,
}

#[derive(Clone, Debug)]
struct Hint {
    /// In front those that were an answer last.
    witnesses: Vec<VersionId>,
    /// The youngest version of the family that was met.
    youngest: VersionId,
}

impl Witnesses {
    /// A number below `many`, which is not 0.
    fn choose(&mut self, many: u64) -> u64 {
        split_mix(&mut self.chance) % many
    }
}

/// Whether somebody sees what a version has in a place, while a few are asked.
struct Asking<'a> {
    id: VersionId,
    /// What nobody has said to see yet.
    left: Blocks,
    asked: usize,
    /// Who sees something that those before do not.
    found: Vec<VersionId>,
    own: &'a mut dyn FnMut(VersionKey) -> Result<Own>,
    below: &'a dyn Fn(u64) -> Blocks,
}

/// Versions and their keys.
pub(super) type Keyed = Vec<(VersionId, VersionKey)>;

/// A family as one step of the reaper sees it.
pub(super) struct Kin<'a> {
    read: &'a dyn Read,
    family: FamilyId,
    witnesses: &'a mut Witnesses,
    /// All versions, once it had to be.
    all: Option<Family>,
}

impl<'a> Kin<'a> {
    pub(super) fn new(read: &'a dyn Read, family: FamilyId, witnesses: &'a mut Witnesses) -> Kin<'a> {
        Kin { read, family, witnesses, all: None }
    }

    pub(super) fn family(&self) -> FamilyId {
        self.family
    }

    pub(super) fn version(&self, id: VersionId) -> Result<VersionRecord> {
        record(self.read, self.family, id)
    }

    /// The version, if there is such a one and nobody holds it. Otherwise a mark of its places has outlived it: what it
    /// had went to a child, which was rechecked as a whole, or is seen by who holds it now.
    pub(super) fn unheld(&self, id: VersionId) -> Result<Option<VersionRecord>> {
        let key = version::encode_key(self.family, id);
        let Some(value) = self.read.get(TreeId::VERSIONS, &key)? else { return Ok(None) };
        let version = VersionRecord::decode(&value).map_err(|why| corrupt(self.family, id, why))?;
        Ok(Some(version).filter(|version| version.refs == 0))
    }

    /// Up to `max` versions from `from` on, older first.
    fn some(&self, from: VersionId, max: usize) -> Result<Vec<(VersionId, VersionRecord)>> {
        let prefix = self.family.0.to_be_bytes();
        let (mut found, mut failed) = (Vec::new(), None);
        self.read.scan(TreeId::VERSIONS, &version::encode_key(self.family, from), &mut |key, value| {
            if !key.starts_with(&prefix) || found.len() >= max {
                return false;
            }
            match version::decode_key(key).and_then(|(_, id)| Ok((id, VersionRecord::decode(value)?))) {
                Ok(entry) => found.push(entry),
                Err(why) => failed = Some(corrupt(self.family, from, why)),
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(found), Err)
    }

    /// Whether a few holders below `id` see all of `wanted`, which it has in a place. False says nothing. `own` gives what
    /// a version has in that place, `below` which of its blocks lie below a limit.
    pub(super) fn is_seen(
        &mut self,
        id: VersionId,
        wanted: Blocks,
        own: &mut dyn FnMut(VersionKey) -> Result<Own>,
        below: &dyn Fn(u64) -> Blocks,
    ) -> Result<bool> {
        let hint = self.witnesses.hints.get(&(self.family, id)).cloned();
        let mut asking = Asking { id, left: wanted, asked: 0, found: Vec::new(), own, below };
        let mut from = after(id);
        if let Some(Hint { witnesses, youngest }) = &hint {
            // The last answers, and then any.
            let mut answers = witnesses.iter().copied();
            while asking.asked < CHOSEN_MAX && !asking.left.is_empty() {
                let any = self.witnesses.choose(youngest.0.saturating_sub(id.0).max(1));
                let at = answers.next().unwrap_or(VersionId(after(id).0.saturating_add(any)));
                self.ask(&mut asking, &self.some(at, 1)?)?;
            }
            from = witnesses.first().map_or(from, |first| after(*first));
        }
        // From the last answer on, and then from the oldest on.
        let (begun, mut batch) = (from, 1);
        while asking.asked < ASKED_MAX && !asking.left.is_empty() {
            let some = self.some(from, batch)?;
            let Some((last, _)) = some.last() else {
                if begun <= after(id) || from <= after(id) {
                    break;
                }
                // The younger ones have been asked.
                from = after(id);
                asking.asked = asking.asked.max(ASKED_MAX / 2);
                continue;
            };
            from = after(*last);
            self.ask(&mut asking, &some)?;
            batch = (2 * batch).min(16);
        }
        let (left, found) = (asking.left, asking.found);
        self.remember(id, found, None);
        Ok(left.is_empty() || planted(Planted::AlwaysSeen))
    }

    /// Asks the holders of `some`, until all is seen.
    fn ask(&self, asking: &mut Asking<'_>, some: &[(VersionId, VersionRecord)]) -> Result<()> {
        // That there is none has been asked, too.
        asking.asked += some.len().max(1);
        for (at, version) in some.iter().filter(|(_, version)| version.refs > 0) {
            let sees = self.sees(*version, asking)?;
            if !sees.is_empty() {
                asking.left = asking.left.without(sees);
                asking.found.push(*at);
            }
            if asking.left.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// What of what is asked about the holder of a version sees, if it is not far below.
    fn sees(&self, holder: VersionRecord, asking: &mut Asking<'_>) -> Result<Blocks> {
        let (mut at, mut left) = (holder, asking.left);
        for _ in 0..STEPS_MAX {
            let Some(parent) = at.parent.filter(|parent| *parent >= asking.id) else { break };
            if at.limit != NO_LIMIT {
                left = left.and((asking.below)(at.limit));
            }
            let here = (asking.own)(at.key)?;
            left = left.without(here.all());
            if left.is_empty() || parent == asking.id {
                return Ok(left);
            }
            at = self.version(parent)?;
        }
        Ok(Blocks::NONE)
    }

    /// Remembers these, which were an answer, in front of others; of `youngest` that there is such a version.
    fn remember(&mut self, id: VersionId, mut found: Vec<VersionId>, youngest: Option<VersionId>) {
        let hints = &mut self.witnesses.hints;
        let Some(youngest) = youngest.max(found.iter().max().copied()) else { return };
        if hints.len() >= HINTS_MAX {
            hints.clear();
        }
        let hint = hints.entry((self.family, id)).or_insert(Hint { witnesses: Vec::new(), youngest });
        hint.youngest = hint.youngest.max(youngest);
        found.dedup();
        found.extend(
            hint.witnesses.iter().filter(|before| !found.contains(before)).copied().collect::<Vec<_>>(),
        );
        found.truncate(WITNESSES_MAX);
        hint.witnesses = found;
    }

    /// What stays in a place ([`Family::stays`]), from all versions. Remembers of `id` who sees what stays of it.
    pub(super) fn stays(
        &mut self,
        id: VersionId,
        own: &BTreeMap<VersionKey, Own>,
        below: &dyn Fn(u64) -> Blocks,
    ) -> Result<BTreeMap<VersionKey, Own>> {
        let all = match self.all.take() {
            Some(all) => all,
            None => Family::load(self.read, self.family)?,
        };
        let stays = all.stays(own, below);
        #[cfg(test)]
        {
            self.witnesses.wholes += 1;
        }
        let mut choose = |many| self.witnesses.choose(many);
        let viewers = all.viewers(id, own, &stays, below, (WITNESSES_MAX, &mut choose));
        let youngest = all.youngest();
        self.all = Some(all);
        self.remember(id, viewers, Some(youngest));
        Ok(stays)
    }

    /// As how many of the `looks_max` that a step may take one look at all versions ([`Kin::stays`]) counts. An eighth of them at
    /// most: reading all versions is not worth it for one place.
    pub(super) fn weight(&self, looks_max: u64) -> u64 {
        let versions = self.all.as_ref().map_or(0, Family::len);
        (versions / VERSIONS_A_LOOK).min(looks_max / WHOLES_MIN)
    }

    /// Version `id` and those above it that nobody holds and several inherit from, up to `max` with nothing else between them, and the
    /// next one that is such a version, if there are more.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] where a parent is no older than its child: that would have no end.
    pub(super) fn unheld_above(&self, id: VersionId, max: usize) -> Result<(Keyed, Option<VersionId>)> {
        let (mut found, mut at, mut version) = (Vec::new(), id, self.version(id)?);
        loop {
            found.push((at, version.key));
            let Some(parent) = version.parent else { return Ok((found, None)) };
            if parent >= at {
                return Err(no_parent(self.family, at));
            }
            version = self.version(parent)?;
            if state(&version) != State::Inner {
                return Ok((found, None));
            }
            if found.len() >= max {
                return Ok((found, Some(parent)));
            }
            at = parent;
        }
    }

    /// Keys of the versions on the way from below `id` to one that is held, and the smallest limit on it. What of `id`
    /// is seen by nobody is hidden from that one too: by an entry of one of these, or by the limit. With nobody below,
    /// no keys and the limit 0.
    pub(super) fn witness(&self, id: VersionId) -> Result<(Vec<VersionKey>, u64)> {
        let (mut keys, mut limit, mut at) = (Vec::new(), NO_LIMIT, id);
        let mut longer = INDIRECT_MAX;
        loop {
            let Some((rank, child_id, child)) = self.best_child(at, &mut longer)? else {
                return Ok((Vec::new(), 0));
            };
            keys.push(child.key);
            limit = limit.min(child.limit);
            if rank > 1 {
                return Ok((keys, limit));
            }
            at = child_id;
        }
    }

    /// The child that is the best witness: held rather than not, without a limit rather than with one, and then with little rather than
    /// much, because a recheck goes by all that it has. Any child is one, and another in the next step may be. The best of all
    /// that are looked at, at least [`CHILDREN_MAX`] versions if there are so many, and up to `longer` more as long as none is held.
    fn best_child(
        &self,
        id: VersionId,
        longer: &mut usize,
    ) -> Result<Option<(u8, VersionId, VersionRecord)>> {
        let mut best: Option<(u8, VersionId, VersionRecord)> = None;
        let (mut from, mut looked_at, mut batch) = (after(id), 0, 4);
        // Of the best, if it is held and without a limit, and of how many such ones it is.
        let (mut least, mut compared) = (PLACES_MAX, 0);
        loop {
            let some = self.some(from, batch)?;
            let Some((last, _)) = some.last() else { return Ok(best) };
            // Behind the last id there is can be nothing: a forged one would be met for ever.
            let end = last.0 == u64::MAX;
            (from, looked_at, batch) = (after(*last), looked_at + some.len(), (2 * batch).min(CHILDREN_MAX));
            let children = some.into_iter().filter(|(at, child)| child.parent == Some(id) && *at > id);
            for (child_id, child) in children {
                let rank = match state(&child) {
                    State::Held if child.limit == NO_LIMIT => 3,
                    State::Held => 2,
                    _ if child.children > 0 => 1,
                    _ => continue,
                };
                let is_better = best.is_none_or(|(other, ..)| rank > other);
                let places = if rank == 3 { self.places(child.key, least)? } else { least };
                if is_better || places < least {
                    best = Some((rank, child_id, child));
                }
                if rank == 3 {
                    (least, compared) = (least.min(places), compared + 1);
                    if least < PLACES_FEW || compared == COMPARED_MAX {
                        return Ok(best);
                    }
                }
            }
            if end || looked_at >= CHILDREN_MAX && best.is_some() {
                // One that is not held leads on to others: it is worth looking for a better one for longer.
                let is_held = best.is_some_and(|(rank, ..)| rank > 1);
                if end || is_held || *longer == 0 {
                    return Ok(best);
                }
                *longer = longer.saturating_sub(batch);
            }
        }
    }

    /// In how many places a version that is not the first has something, counted up to `max`.
    fn places(&self, key: VersionKey, max: u64) -> Result<u64> {
        let (prefix, mut places) = ([self.family.0.to_be_bytes(), key.0.to_be_bytes()].concat(), 0);
        self.read.scan(TreeId::HELD, &prefix, &mut |held, _| {
            let counts = held.starts_with(&prefix) && places < max;
            places += u64::from(counts);
            counts
        })?;
        Ok(places)
    }
}

fn after(id: VersionId) -> VersionId {
    VersionId(id.0.saturating_add(1))
}
