//! Rows: versions without holders, each the only child of the one before it, and what is to be done with them together.
//!
//! What all versions of a family have in one place lies side by side. Taken one by one, a thousand versions would have the
//! reaper come by each place a thousand times; so it looks for rows of them and goes by each place once ([`super::sweep`]):
//!
//! - **Dead**: nobody inherits from the last of the row. All they have goes.
//! - **Joined**: somebody does, and sees all of the row through it. In each place their lists are laid over each other, the
//!   youngest on top, and become the list of one of them, the target; what is covered is freed. None of them is written
//!   to, and whoever looks through the last one sees the same before and after, so that nothing has to be remembered on
//!   disk. There is no limit between two of them, and none drains.
//! - **Pair**: a version and the child that takes its place, which drains already ([`super::reap`]).
//!
//! All of it is read from the records; a version is in one row at most. A family's first version has no index that would
//! say when it is empty: in a joined row it can be the target only, and otherwise it goes by itself.
//!
//! When a joined row's sources are empty, the last version takes the target's key and the first one's parent and limit,
//! and the others' records go. So the id that whoever inherits knows stays, and keys and ids still grow along the path.

use varve_format::record::reap::{Work, decode_reap_key, reap_key, reap_prefix};
use varve_format::record::version::{self, Drain, NO_LIMIT, VersionRecord};
use varve_format::{Corrupt, FamilyId, TreeId, VersionId, VersionKey};

use super::pending::{self, State, corrupt, record, state};
use super::reap::{Pair, pair, relinked};
use super::resolve::LEAP_ENTRIES;
use super::{Planted, Read, Result, planted};
use crate::{EngineError, Transaction};

/// Versions in all rows: the oldest that go. More wait for the next sweep.
const MEMBERS_MAX: usize = 4096;
/// Records that go in one step.
const ENDED_MAX: usize = if cfg!(test) { 2 } else { 128 };

/// What is done to a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Dead,
    /// The lists of all become that of the member at `target`.
    Joined {
        target: usize,
    },
    Pair(Drain),
}

/// Members of a row, parents first.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) kind: Kind,
    pub(super) ids: Vec<VersionId>,
    pub(super) keys: Vec<VersionKey>,
}

/// All there is of one way down through versions that go, and who inherits from the last.
struct Chain {
    links: Vec<Link>,
    child: Option<Link>,
}

type Link = (VersionId, VersionRecord);

/// What may be done to the versions of a family that go.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    /// Pairs that may begin to become one, without limits.
    pub(super) begin: Vec<Pair>,
    /// Versions that were looked at.
    pub(super) going: usize,
}

impl Rows {
    /// Finds them. With fewer than two versions that go there are none.
    pub(super) fn find(read: &dyn Read, family: FamilyId) -> Result<Rows> {
        let ids = going(read, family)?;
        let mut rows = Rows { going: ids.len(), ..Rows::default() };
        if ids.len() > 1 {
            for chain in chains(read, family, &ids)? {
                rows.split(family, chain)?;
            }
        }
        Ok(rows)
    }

    fn split(&mut self, family: FamilyId, chain: Chain) -> Result<()> {
        let mut all = chain.links;
        let count = all.len();
        let is_first = |link: &Link| link.1.key.0 == family.0;
        let Some(child) = chain.child else {
            let from = usize::from(is_first(&all[0]));
            self.push(Kind::Dead, &all[from..]);
            return Ok(());
        };
        all.push(child);
        let drains = |at: usize| all.get(at).is_some_and(|(_, version)| version.drain != Drain::None);
        let busy = |at: usize| drains(at) || drains(at + 1);
        for at in (0..count).filter(|at| drains(at + 1)) {
            let drain = all[at + 1].1.drain;
            // The way down from the first version needs a cursor.
            if drain == Drain::Up || !is_first(&all[at]) {
                self.push(Kind::Pair(drain), &all[at..at + 2]);
            }
        }
        let mut from = 0;
        while from < count {
            let unlimited = |at: usize| all[at].1.limit == NO_LIMIT || planted(Planted::LimitInRow);
            let joins = |at: &usize| *at < count && !busy(*at) && unlimited(*at);
            if busy(from) {
                from += 1;
                continue;
            }
            let end = (from + 1..).find(|at| !joins(at)).expect("a row ends");
            if end - from > 1 {
                self.push(Kind::Joined { target: 0 }, &all[from..end]);
            } else if end == count && state(&child.1) != State::Going && child.1.limit == NO_LIMIT {
                self.begin.push(pair(family, all[from], child)?);
            }
            from = end;
        }
        Ok(())
    }

    fn push(&mut self, kind: Kind, links: &[Link]) {
        if !links.is_empty() {
            let (ids, keys) = links.iter().map(|(id, version)| (*id, version.key)).unzip();
            self.rows.push(Row { kind, ids, keys });
        }
    }
}

impl Row {
    /// Whether the records still say that this is a row of its kind.
    pub(super) fn is_sound(&self, read: &dyn Read, family: FamilyId) -> Result<bool> {
        let Some(versions) = records(read, family, &self.ids)?.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        let same_keys = versions.iter().map(|version| version.key).eq(self.keys.iter().copied());
        let linked = (1..versions.len()).all(|at| {
            let (parent, child) = (&versions[at - 1], &versions[at]);
            state(parent) == State::Going
                && parent.only_child() == Some(self.ids[at])
                && child.parent == Some(self.ids[at - 1])
        });
        let (Some(top), Some(last)) = (versions.first(), versions.last()) else { return Ok(false) };
        let kind = match self.kind {
            Kind::Pair(drain) => versions.len() == 2 && last.drain == drain,
            Kind::Dead => state(last) == State::Going && last.children == 0,
            Kind::Joined { .. } => {
                let plain = |version: &VersionRecord| {
                    version.drain == Drain::None
                        && (version.limit == NO_LIMIT || planted(Planted::LimitInRow))
                };
                let below = last.only_child().map(|id| record(read, family, id)).transpose()?;
                state(last) == State::Going
                    && top.drain == Drain::None
                    && versions[1..].iter().all(plain)
                    && below.is_some_and(|below| below.drain == Drain::None)
            }
        };
        Ok(kind && linked && same_keys)
    }

    /// The members whose entries move or go, in a row that is a [`Kind::Dead`] or [`Kind::Joined`] one, from `from` on.
    pub(super) fn sources(&self, from: usize) -> impl Iterator<Item = VersionKey> {
        let target = if let Kind::Joined { target } = self.kind { Some(target) } else { None };
        (from..self.keys.len()).filter(move |at| Some(*at) != target).map(|at| self.keys[at])
    }

    /// The first of those members whose records go next.
    pub(super) fn ends_from(&self) -> usize {
        let kept = usize::from(matches!(self.kind, Kind::Joined { .. }));
        self.ids.len().saturating_sub(ENDED_MAX + kept)
    }

    /// Removes the records of the members from [`Row::ends_from`] on, which have nothing any more; of a joined row the
    /// last one stays. Says whether that was the end of the row.
    pub(super) fn end(&mut self, read: &dyn Read, tx: &mut Transaction, family: FamilyId) -> Result<bool> {
        let (from, last) = (self.ends_from(), self.ids.len() - 1);
        let top = record(read, family, self.ids[from])?;
        let stays = match self.kind {
            Kind::Joined { target } => {
                let before = record(read, family, self.ids[last])?;
                let key = self.keys[if target >= from { target } else { last }];
                let after = VersionRecord { key, parent: top.parent, limit: top.limit, ..before };
                pending::update(read, tx, family, self.ids[last], &before, &after)?;
                pending::mark(tx, family, Work::Going(self.ids[last]), &[]);
                Some((self.ids[last], key))
            }
            Kind::Dead | Kind::Pair(_) => None,
        };
        let (gone, id) = (self.ids[from], stays.map(|(id, _)| id));
        for id in self.ids[from..].iter().filter(|at| Some(**at) != id) {
            pending::remove(tx, family, *id);
        }
        if let Some(parent) = top.parent {
            let before = record(read, family, parent)?;
            pending::update(read, tx, family, parent, &before, &relinked(before, gone, id))?;
        }
        self.ids.truncate(from);
        self.keys.truncate(from);
        if let Some((id, key)) = stays {
            self.ids.push(id);
            self.keys.push(key);
            if let Kind::Joined { target } = &mut self.kind {
                *target = (*target).min(from);
            }
        }
        Ok(from == 0)
    }
}

/// The oldest versions that go, up to [`MEMBERS_MAX`].
fn going(read: &dyn Read, family: FamilyId) -> Result<Vec<VersionId>> {
    let prefix = reap_prefix(family);
    let (mut ids, mut failed) = (Vec::new(), None);
    read.scan(TreeId::REAP, &reap_key(family, Work::Going(VersionId(0))), &mut |key, _| {
        if !key.starts_with(&prefix) || ids.len() == MEMBERS_MAX {
            return false;
        }
        match decode_reap_key(key) {
            Ok((_, Work::Going(id))) => ids.push(id),
            Ok(_) => return false,
            Err(why) => failed = Some(EngineError::corrupt("what is to be reaped", why)),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(ids), Err)
}

/// The chains of these versions that go, which are in order.
fn chains(read: &dyn Read, family: FamilyId, ids: &[VersionId]) -> Result<Vec<Chain>> {
    let versions = records(read, family, ids)?;
    let (mut met, mut chains) = (vec![false; ids.len()], Vec::new());
    for first in 0..ids.len() {
        // Parents are older than their children: the first one met of a chain is its top.
        if met[first] {
            continue;
        }
        let (mut chain, mut next) = (Chain { links: Vec::new(), child: None }, Some(first));
        while let Some(at) = next.take() {
            met[at] = true;
            let version = versions[at].filter(|version| state(version) == State::Going);
            let Some(version) = version else {
                let why = Corrupt { what: "version to be reaped that is in use", at: 0 };
                return Err(corrupt(family, ids[at], why));
            };
            if let Some(parent) = chain.links.last() {
                pair(family, *parent, (ids[at], version))?;
            }
            chain.links.push((ids[at], version));
            let Some(child) = version.only_child() else { break };
            next = ids.binary_search(&child).ok();
            if next.is_some_and(|at| met[at]) {
                let why = Corrupt { what: "child that does not know its parent", at: 0 };
                return Err(corrupt(family, child, why));
            }
            if next.is_none() {
                let below = (child, record(read, family, child)?);
                pair(family, (ids[at], version), below)?;
                chain.child = Some(below);
            }
        }
        chains.push(chain);
    }
    Ok(chains)
}

/// The records of these versions, which are in order.
fn records(read: &dyn Read, family: FamilyId, ids: &[VersionId]) -> Result<Vec<Option<VersionRecord>>> {
    let prefix = family.0.to_be_bytes();
    let (mut found, mut at, mut failed) = (vec![None; ids.len()], 0, None);
    while at < ids.len() {
        let (mut foreign, mut leaps) = (0, false);
        read.scan(TreeId::VERSIONS, &version::encode_key(family, ids[at]), &mut |key, value| {
            if !key.starts_with(&prefix) {
                return false;
            }
            let decoded =
                version::decode_key(key).and_then(|(_, id)| Ok((id, VersionRecord::decode(value)?)));
            let (id, version) = match decoded {
                Ok(entry) => entry,
                Err(why) => {
                    failed = Some(corrupt(family, ids[at], why));
                    return false;
                }
            };
            while at < ids.len() && ids[at] < id {
                at += 1;
            }
            if at < ids.len() && ids[at] == id {
                found[at] = Some(version);
                (at, foreign) = (at + 1, 0);
            } else {
                foreign += 1;
                leaps = foreign >= LEAP_ENTRIES;
            }
            at < ids.len() && !leaps
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if !leaps {
            break;
        }
    }
    Ok(found)
}
