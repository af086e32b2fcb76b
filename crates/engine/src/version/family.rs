//! All versions of a family at once, and the rule of what somebody sees of each: for rechecks and checks.
//!
//! Demand runs from the leaves to the root. Who is held demands all it can see; what a version has itself answers a
//! demand; the rest, below its limit, is demanded of its parent. What is not demanded, nobody sees. Then from the root
//! to the leaves: a hole that is demanded stays if what stays beneath it would show.

use std::collections::BTreeMap;
use std::ops::Range;

use varve_format::record::version::{self, NO_LIMIT, VersionRecord};
use varve_format::{Corrupt, FamilyId, TreeId, VersionId, VersionKey};

use super::kin::STEPS_MAX;
use super::pending::corrupt;
use super::{Read, Result};
use crate::EngineError;

/// A set of the 256 blocks of a segment. A point is all of them or none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Blocks([u64; 4]);

impl Blocks {
    pub(super) const NONE: Blocks = Blocks([0; 4]);
    pub(super) const ALL: Blocks = Blocks([u64::MAX; 4]);

    /// Blocks [`low`, `high`), at most 256.
    pub(super) fn range(low: usize, high: usize) -> Blocks {
        let upto = |end: usize, word: usize| match end.saturating_sub(64 * word) {
            bits @ 0..64 => (1u64 << bits) - 1,
            _ => u64::MAX,
        };
        Blocks(std::array::from_fn(|word| upto(high, word) & !upto(low, word)))
    }
    pub(super) fn or(self, other: Blocks) -> Blocks {
        Blocks(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
    pub(super) fn and(self, other: Blocks) -> Blocks {
        Blocks(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
    pub(super) fn without(self, other: Blocks) -> Blocks {
        Blocks(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }
    pub(super) fn is_empty(self) -> bool {
        self == Blocks::NONE
    }
    pub(super) fn has(self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }
    /// From the first to the end of the last; `None` if there are none.
    pub(super) fn bounds(self) -> Option<Range<usize>> {
        let first = self.0.iter().position(|word| *word != 0)?;
        let last = self.0.iter().rposition(|word| *word != 0)?;
        let low = 64 * first + self.0[first].trailing_zeros() as usize;
        Some(low..64 * (last + 1) - self.0[last].leading_zeros() as usize)
    }
    /// The end of the run of equal blocks that begins at `from`, at most `upto`.
    pub(super) fn run_end(self, from: usize, upto: usize) -> usize {
        (from + 1..upto).find(|block| self.has(*block) != self.has(from)).unwrap_or(upto)
    }
    /// How many runs of blocks it consists of.
    pub(super) fn runs(self) -> u64 {
        let mut last = 0;
        let begin = |word: &u64| {
            let before = std::mem::replace(&mut last, word >> 63);
            u64::from((word & !(word << 1 | before)).count_ones())
        };
        self.0.iter().map(begin).sum()
    }
    /// Block `block` alone.
    pub(super) fn one(block: usize) -> Blocks {
        let mut words = [0; 4];
        words[block / 64] = 1 << (block % 64);
        Blocks(words)
    }
    /// Takes the first one out.
    pub(super) fn take_first(&mut self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        let bit = self.0[word].trailing_zeros() as usize;
        self.0[word] &= self.0[word] - 1;
        Some(64 * word + bit)
    }
}

/// What a version has in one place.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Own {
    /// Blocks with something in them.
    pub(super) something: Blocks,
    /// Blocks it says are empty: holes, whiteouts.
    pub(super) holes: Blocks,
}

impl Own {
    /// Blocks it has an entry for.
    pub(super) fn all(self) -> Blocks {
        self.something.or(self.holes)
    }
}

/// All records of a family, parents first: one scan.
///
/// # Errors
/// [`EngineError::Corrupt`] for a record that is none.
pub(super) fn records(read: &dyn Read, family: FamilyId) -> Result<Vec<(VersionId, VersionRecord)>> {
    let prefix = family.0.to_be_bytes();
    let (mut versions, mut failed) = (Vec::new(), None);
    read.scan(TreeId::VERSIONS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        let decoded = version::decode_key(key).and_then(|(_, id)| Ok((id, VersionRecord::decode(value)?)));
        match decoded {
            Ok(version) => versions.push(version),
            Err(why) => failed = Some(EngineError::corrupt(format!("a version of family {}", family.0), why)),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(versions), Err)
}

/// What is said of a version whose parent is missing or not older.
pub(super) fn no_parent(family: FamilyId, id: VersionId) -> EngineError {
    corrupt(family, id, Corrupt { what: "parent that cannot be", at: 0 })
}

/// The versions of a family.
pub(super) struct Family {
    /// Without records the one version there is stands here with the family's number, and may have any other.
    versions: BTreeMap<VersionId, VersionRecord>,
}

impl Family {
    /// Reads them all: one scan.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] for a record that is none, a parent that is missing or not older.
    pub(super) fn load(read: &dyn Read, family: FamilyId) -> Result<Family> {
        Family::of(family, records(read, family)?.into_iter().collect())
    }

    /// The family with these records.
    pub(super) fn of(family: FamilyId, mut versions: BTreeMap<VersionId, VersionRecord>) -> Result<Family> {
        if versions.is_empty() {
            versions.insert(VersionId(family.0), VersionRecord::implicit(family));
        }
        // Many have the parent that the one before has.
        let mut known = None;
        for (id, version) in &versions {
            let Some(parent) = version.parent else { continue };
            if parent >= *id || (known != Some(parent) && !versions.contains_key(&parent)) {
                return Err(no_parent(family, *id));
            }
            known = Some(parent);
        }
        Ok(Family { versions })
    }

    #[cfg(test)]
    pub(super) fn version(&self, id: VersionId) -> Option<&VersionRecord> {
        self.versions.get(&id)
    }

    /// What stays in one place, of what the version with each key has there. `below` says which blocks of the place
    /// lie below a limit.
    pub(super) fn stays(
        &self,
        own: &BTreeMap<VersionKey, Own>,
        below: &dyn Fn(u64) -> Blocks,
    ) -> BTreeMap<VersionKey, Own> {
        let ids: Vec<VersionId> = self.versions.keys().copied().collect();
        let versions: Vec<&VersionRecord> = self.versions.values().collect();
        let mut last = None;
        let parent_of = |version: &&VersionRecord| {
            let parent = version.parent?;
            if last.is_none_or(|(known, _)| known != parent) {
                last = Some((parent, ids.binary_search(&parent).ok()?));
            }
            last.map(|(_, at)| at)
        };
        let parents: Vec<Option<usize>> = versions.iter().map(parent_of).collect();
        let held = |v: &&VersionRecord| if v.refs > 0 { Blocks::ALL } else { Blocks::NONE };
        let mut demand: Vec<Blocks> = versions.iter().map(held).collect();
        // The keys ascend with the versions, but for those that have been exchanged.
        let mut next = own.iter().peekable();
        let own_of = |v: &&VersionRecord| {
            while next.next_if(|(key, _)| **key < v.key).is_some() {}
            match next.next_if(|(key, _)| **key == v.key) {
                Some((_, own)) => Some(*own),
                None => own.get(&v.key).copied(),
            }
        };
        let has: Vec<Option<Own>> = versions.iter().map(own_of).collect();
        let seen_below = |v: &VersionRecord| if v.limit == NO_LIMIT { Blocks::ALL } else { below(v.limit) };
        // Children are younger than their parents.
        for at in (0..versions.len()).rev() {
            let (version, here) = (versions[at], has[at].unwrap_or_default());
            if let Some(parent) = parents[at] {
                let rest = demand[at].without(here.all()).and(seen_below(version));
                demand[parent] = demand[parent].or(rest);
            }
        }
        let mut shows = vec![Blocks::NONE; versions.len()];
        let mut stays = Vec::new();
        for at in 0..versions.len() {
            let (version, here) = (versions[at], has[at].unwrap_or_default());
            let beneath = parents[at].map_or(Blocks::NONE, |p| shows[p].and(seen_below(version)));
            let something = here.something.and(demand[at]);
            let holes = here.holes.and(demand[at]).and(beneath);
            shows[at] = something.or(beneath.without(holes));
            if has[at].is_some() {
                stays.push((version.key, Own { something, holes }));
            }
        }
        stays.into_iter().collect()
    }

    /// How many they are.
    pub(super) fn len(&self) -> u64 {
        self.versions.len() as u64
    }

    /// The youngest of them.
    pub(super) fn youngest(&self) -> VersionId {
        self.versions.last_key_value().map_or(VersionId(0), |(id, _)| *id)
    }

    /// Holders, up to `max` and not far below it, who together see all that `stays` of version `id` in a place, if so many do; see
    /// [`Family::stays`]. `choose` gives any number below that which it is given: each of them is as likely as the others.
    pub(super) fn viewers(
        &self,
        id: VersionId,
        own: &BTreeMap<VersionKey, Own>,
        stays: &BTreeMap<VersionKey, Own>,
        below: &dyn Fn(u64) -> Blocks,
        (max, choose): (usize, &mut dyn FnMut(u64) -> u64),
    ) -> Vec<VersionId> {
        let wanted = self.versions.get(&id).and_then(|version| stays.get(&version.key));
        let mut left = wanted.map_or(Blocks::NONE, |own| own.all());
        let sees = |holder: &VersionRecord, wanted: Blocks| {
            let (mut at, mut seen) = (holder, wanted);
            for _ in 0..STEPS_MAX {
                seen = seen.without(own.get(&at.key).map_or(Blocks::NONE, |own| own.all()));
                if at.limit != NO_LIMIT {
                    seen = seen.and(below(at.limit));
                }
                match at.parent.filter(|parent| *parent >= id && !seen.is_empty()) {
                    Some(parent) if parent == id => return seen,
                    Some(parent) => match self.versions.get(&parent) {
                        Some(next) => at = next,
                        None => break,
                    },
                    None => break,
                }
            }
            Blocks::NONE
        };
        let mut chosen = Vec::new();
        while chosen.len() < max && !left.is_empty() {
            // Of those who see all of it so many as there is room for, or else one of those who see some. Each takes the place of one
            // before it with the chance that makes all as likely (reservoir sampling; Knuth, "The Art of Computer Programming",
            // volume 2, 3.4.2, algorithm R).
            let (mut all, mut some, mut met) = (Vec::new(), None, [0; 2]);
            let room = max - chosen.len();
            let younger = self.versions.range(VersionId(id.0.saturating_add(1))..);
            for (at, version) in younger.filter(|(_, version)| version.refs > 0) {
                let seen = sees(version, left);
                if seen == left {
                    met[0] += 1;
                    match choose(met[0]) as usize {
                        _ if all.len() < room => all.push(*at),
                        place if place < room => all[place] = *at,
                        _ => {}
                    }
                } else if !seen.is_empty() {
                    met[1] += 1;
                    if choose(met[1]) == 0 {
                        some = Some((*at, seen));
                    }
                }
            }
            let Some((at, seen)) = some.filter(|_| all.is_empty()) else {
                chosen.extend(all);
                break;
            };
            chosen.push(at);
            left = left.without(seen);
        }
        chosen
    }
}
