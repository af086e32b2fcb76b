//! Reaping: versions that nobody holds go away, a small transaction at a time. What a family holds is not known here:
//! [`Contents`] finds, removes and moves it, for files' data and for namespaces.
//!
//! A version without holders and children dies: its entries go, then its record. A version v without holders and with
//! one child c **collapses** into it:
//!
//! 1. v's entries at or beyond limit(c) die (a straddling extent is cut).
//! 2. In one step: limit(v) = the smaller of both, limit(c) = none, c drains up or down (the smaller side moves).
//! 3. Place by place, what v and c have there becomes one: c laid over v, what it covers freed, holes dropped that hide
//!    nothing beneath v. Up, the result is v's and c has nothing there; down, the reverse.
//! 4. When the side that moves is empty: c takes the surviving key and v's limit and parent, and v's record goes.
//!
//! c and all that inherit from it see the same after every step. If power fails between two steps the records say
//! where to go on; inside a step nothing has happened. The side that drains gains no entries (writes go to the other
//! key). A side with an index is empty when the index is; only a family's first version needs a cursor, and it is a
//! root, so that nothing ever comes in front of its cursor from an older one.
//!
//! A version without holders and with several children is **rechecked**: what none of them sees goes. When one is done
//! its parent's turn comes, because what its children saw through it may have been the last sight of something older.
//!
//! The oldest collapse goes first, so that of two neighbouring edges of a path only one drains; should another have
//! begun, that one is finished before. A dead child dies before its parent would collapse into it.

use std::collections::BTreeSet;

use varve_format::record::reap::{Work, decode_reap_key, reap_key, reap_prefix};
use varve_format::record::version::{Drain, NO_LIMIT, VersionRecord};
use varve_format::{BLOCK_BYTES, Corrupt, FamilyId, TreeId, VersionId, VersionKey};

use super::kin::{Kin, Witnesses};
use super::pending::{self, State, corrupt, cursor, mark, record, state, unmark};
use super::sweep::Memory;
use super::{Planted, Read, Result, planted};
use crate::{EngineError, Transaction};

/// What the reaper remembers from step to step, to be quick: nothing else depends on it.
#[derive(Default, Debug)]
pub struct ReaperMemory {
    pub(super) witnesses: Witnesses,
    pub(super) sweep: Memory,
}

impl ReaperMemory {
    /// To be called when what a step has added to a transaction has not been applied.
    pub fn forget(&mut self) {
        *self = ReaperMemory::default();
    }
}

/// How far a bounded part of a step has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// All is done.
    Done,
    /// To be gone on with here (a tree and a place, or nothing).
    Stopped(Vec<u8>),
}

/// What a look at a place has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// All that the version has there is seen: nothing was changed.
    Seen,
    /// Nothing is left there that nobody sees, whoever has it.
    Swept,
    /// Not yet: in another step.
    Later,
    /// So much goes there that this is part of it. A mark of the rest ([`Work::Rest`]) leads to what is left, for the version that
    /// was looked at may have nothing there any more.
    Begun,
}

/// So many times as much as elsewhere goes from one place in a step: all that is there is read each time. (Not in unit tests, so
/// that the models meet what does not fit.)
const GOING_RATIO: u64 = if cfg!(test) { 1 } else { 8 };

/// How many changes what nobody sees in one place may be in a step of `changes_max`: all clones of a file may have a hole there that
/// hides nothing once the last of them has one. More than elsewhere, but for a step that is smaller than is `usual`, since there is
/// no space for that or no room in the log.
pub(super) fn going_max(changes_max: u64, usual: u64) -> u64 {
    let ratio = if changes_max < usual { 1 } else { GOING_RATIO };
    changes_max.saturating_mul(ratio).max(1)
}

/// Marks of places that go in one step at most. One may outlive its version: then nothing is looked at there and nothing changes,
/// which a step counts nowhere else, and there may be as many as there are places.
const MARKS_MAX: usize = 256;

/// A version that goes, and the child that takes its place.
pub(super) struct Pair {
    pub(super) family: FamilyId,
    pub(super) parent_id: VersionId,
    pub(super) parent: VersionRecord,
    pub(super) child_id: VersionId,
    pub(super) child: VersionRecord,
}

/// What families of one kind hold, and a step's transaction and budget.
pub(super) trait Contents {
    /// The transaction, with everything in it that has been done so far.
    fn tx(&mut self) -> &mut Transaction;
    /// Whether the step has done what it may.
    fn full(&self) -> bool;
    /// Removes the entries of `key` at or beyond byte `from`.
    fn kill(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        key: VersionKey,
        from: u64,
        cursor: &[u8],
    ) -> Result<Outcome>;
    /// Which way to drain: the side with less moves.
    fn smaller(&self, read: &dyn Read, pair: &Pair) -> Result<Drain>;
    /// Moves the entries of the side that drains. Nothing beyond a limit is left.
    fn drain(&mut self, read: &dyn Read, pair: &Pair, cursor: &[u8]) -> Result<Outcome>;
    /// Removes what no holder sees in places in which one of these has something that their witness does not see.
    fn recheck(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        those: &Rechecked,
        cursor: &[u8],
    ) -> Result<Outcome>;
    /// How many versions, one above the other, are rechecked together at most.
    fn rechecked_max(&self) -> usize;
    /// Removes what no holder sees in one place, unless all is seen that the version `of` has there. Of no version: without
    /// asking.
    fn recheck_place(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        of: Option<(VersionId, VersionKey)>,
        tree: TreeId,
        place: &[u8],
    ) -> Result<Looked>;
}

/// One small step. False: there is nothing to do.
pub(super) fn step(
    read: &dyn Read,
    contents: &mut dyn Contents,
    family: FamilyId,
    witnesses: &mut Witnesses,
) -> Result<bool> {
    let Some((key, at)) = first_work(read, family)? else { return Ok(false) };
    contents.tx().privileged();
    let mut kin = Kin::new(read, family, witnesses);
    match decode(&key)?.1 {
        Work::Going(id) => go(read, contents, family, id, &at)?,
        Work::Recheck(id) => recheck(read, contents, &mut kin, id, &at)?,
        Work::Place(..) => recheck_places(read, contents, &mut kin, key)?,
        Work::Rest(tree, place) => {
            let looked = contents.recheck_place(read, &mut kin, None, tree, place)?;
            if matches!(looked, Looked::Seen | Looked::Swept) {
                unmark(contents.tx(), family, Work::Rest(tree, place));
            }
        }
    }
    Ok(true)
}

/// Up to `families_max` families after `after` in which there is work, and after which to go on (`None`: there are no
/// more). Of namespaces, or of files' data, and such of which damage hides what they are. Looks at families with work only.
pub(super) fn pending_of(
    read: &dyn Read,
    after: Option<FamilyId>,
    families_max: usize,
    namespaces: bool,
) -> Result<(Vec<FamilyId>, Option<FamilyId>)> {
    let (mut found, mut last) = (Vec::new(), after);
    loop {
        let Some(from) = last.map_or(Some(0), |f| f.0.checked_add(1)) else { return Ok((found, None)) };
        // What makes no sense is passed over: nobody could do it.
        let mut next = None;
        read.scan(TreeId::REAP, &from.to_be_bytes(), &mut |key, _| {
            next = decode(key).ok().map(|(family, _)| family);
            next.is_none()
        })?;
        let Some(next) = next else { return Ok((found, None)) };
        // What hides it may be another's. Who asks knows the namespaces by their subvolumes, and whoever reaps it hears of damage of its own.
        let may_be_meant = match is_namespace(read, next) {
            Err(error) if error.is_damage() && !error.may_pass() => true,
            result => result? == namespaces,
        };
        if may_be_meant {
            if found.len() >= families_max {
                return Ok((found, last));
            }
            found.push(next);
        }
        last = Some(next);
    }
}

/// Whether this is the family of a namespace. Families take their numbers from one counter, so one with anything in the
/// trees of namespaces is one; one that has nothing left at all may as well be called data.
pub(super) fn is_namespace(read: &dyn Read, family: FamilyId) -> Result<bool> {
    let prefix = family.0.to_be_bytes();
    for tree in [TreeId::EXTENTS, TreeId::INODES, TreeId::NAMES, TreeId::XATTRS] {
        let mut has = false;
        read.scan(tree, &prefix, &mut |key, _| {
            has = key.starts_with(&prefix);
            false
        })?;
        if has {
            return Ok(tree != TreeId::EXTENTS);
        }
    }
    Ok(false)
}

fn decode(key: &[u8]) -> Result<(FamilyId, Work<'_>)> {
    decode_reap_key(key).map_err(|why| EngineError::corrupt("what is to be reaped", why))
}

/// The first work of a family, and its cursor.
fn first_work(read: &dyn Read, family: FamilyId) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let prefix = reap_prefix(family);
    let mut found = None;
    let youngest_first = planted(Planted::YoungestFirst);
    read.scan(TreeId::REAP, &prefix, &mut |key, value| {
        let here = key.starts_with(&prefix);
        let going = key.get(8) == Some(&1);
        if here && (found.is_none() || going) {
            found = Some((key.to_vec(), value.to_vec()));
        }
        here && going && youngest_first
    })?;
    Ok(found)
}

/// A step towards the end of a version that nobody holds.
fn go(
    read: &dyn Read,
    contents: &mut dyn Contents,
    family: FamilyId,
    id: VersionId,
    at: &[u8],
) -> Result<()> {
    let version = record(read, family, id)?;
    if state(&version) != State::Going {
        return Err(corrupt(family, id, Corrupt { what: "version to be reaped that is in use", at: 0 }));
    }
    let Some(child_id) = version.only_child() else {
        return remove(read, contents, family, id, &version, at);
    };
    if version.drain != Drain::None {
        let parent_id = version.parent.unwrap_or(id);
        let parent = record(read, family, parent_id)?;
        let pair = pair(family, (parent_id, parent), (id, version))?;
        let at = cursor(read, family, Work::Going(parent_id))?.unwrap_or_default();
        return collapse(read, contents, &pair, &at);
    }
    let child = record(read, family, child_id)?;
    let pair_here = pair(family, (id, version), (child_id, child))?;
    if state(&child) != State::Going {
        return collapse(read, contents, &pair_here, at);
    }
    let below_at = cursor(read, family, Work::Going(child_id))?.unwrap_or_default();
    let Some(below_id) = child.only_child() else {
        return remove(read, contents, family, child_id, &child, &below_at);
    };
    let below = record(read, family, below_id)?;
    if below.drain == Drain::None {
        return collapse(read, contents, &pair_here, at);
    }
    let pair_below = pair(family, (child_id, child), (below_id, below))?;
    if state(&below) == State::Going && below.only_child().is_none() {
        // Nothing more moves into what dies.
        let at = cursor(read, family, Work::Going(below_id))?.unwrap_or_default();
        return remove(read, contents, family, below_id, &below, &at);
    }
    collapse(read, contents, &pair_below, &below_at)
}

/// The pair of these two, if they are one.
pub(super) fn pair(
    family: FamilyId,
    (parent_id, parent): (VersionId, VersionRecord),
    (child_id, child): (VersionId, VersionRecord),
) -> Result<Pair> {
    let only = state(&parent) == State::Going && parent.only_child() == Some(child_id);
    if !only || child.parent != Some(parent_id) || child.key <= parent.key {
        return Err(corrupt(
            family,
            child_id,
            Corrupt { what: "child that does not know its parent", at: 0 },
        ));
    }
    Ok(Pair { family, parent_id, parent, child_id, child })
}

/// A step of removing a version that nobody holds or inherits from.
fn remove(
    read: &dyn Read,
    contents: &mut dyn Contents,
    family: FamilyId,
    id: VersionId,
    version: &VersionRecord,
    at: &[u8],
) -> Result<()> {
    match contents.kill(read, family, version.key, 0, at)? {
        Outcome::Stopped(at) => mark(contents.tx(), family, Work::Going(id), &at),
        Outcome::Done => {
            pending::remove(contents.tx(), family, id);
            if let Some(parent_id) = version.parent {
                let parent = record(read, family, parent_id)?;
                let after = relinked(parent, id, None);
                pending::update(read, contents.tx(), family, parent_id, &parent, &after)?;
            }
        }
    }
    Ok(())
}

/// A step of making two versions into one.
pub(super) fn collapse(read: &dyn Read, contents: &mut dyn Contents, pair: &Pair, at: &[u8]) -> Result<()> {
    if pair.child.drain == Drain::None {
        let none_beyond = pair.child.limit == NO_LIMIT || planted(Planted::NoRangeKill);
        let killed = match none_beyond {
            true => Outcome::Done,
            false => {
                let early = if planted(Planted::KillsVisible) { BLOCK_BYTES as u64 } else { 0 };
                let from = pair.child.limit.saturating_sub(early);
                contents.kill(read, pair.family, pair.parent.key, from, at)?
            }
        };
        match killed {
            Outcome::Stopped(at) => mark(contents.tx(), pair.family, Work::Going(pair.parent_id), &at),
            Outcome::Done => begin(read, contents, pair)?,
        }
        return Ok(());
    }
    match contents.drain(read, pair, at)? {
        Outcome::Stopped(at) => mark(contents.tx(), pair.family, Work::Going(pair.parent_id), &at),
        Outcome::Done => end(read, contents, pair)?,
    }
    Ok(())
}

/// Nothing is left of the parent beyond the child's limit: they begin to become one.
pub(super) fn begin(read: &dyn Read, contents: &mut dyn Contents, pair: &Pair) -> Result<()> {
    let Pair { family, parent_id, parent, child_id, child } = *pair;
    let drain = contents.smaller(read, pair)?;
    let tx = contents.tx();
    if let Some(older) = parent.parent.filter(|_| child.limit < parent.limit) {
        let after = VersionRecord { limit: child.limit, ..parent };
        pending::update(read, tx, family, parent_id, &parent, &after)?;
        // Should an older collapse have begun, what it removes begins further down now.
        if state(&record(read, family, older)?) == State::Going {
            mark(tx, family, Work::Going(older), &[]);
        }
    }
    let after = VersionRecord { limit: NO_LIMIT, drain, ..child };
    pending::update(read, tx, family, child_id, &child, &after)?;
    mark(tx, family, Work::Going(parent_id), &[]);
    Ok(())
}

/// One of the two has nothing any more: the child takes the other's place.
fn end(read: &dyn Read, contents: &mut dyn Contents, pair: &Pair) -> Result<()> {
    let Pair { family, parent_id, parent, child_id, child } = *pair;
    let tx = contents.tx();
    let key = if child.drain == Drain::Up { parent.key } else { child.key };
    let after =
        VersionRecord { key, drain: Drain::None, limit: parent.limit, parent: parent.parent, ..child };
    pending::update(read, tx, family, child_id, &child, &after)?;
    pending::remove(tx, family, parent_id);
    // Who let go of the parent saw more of it than the child does, and more of what is above both.
    let mut again = [(state(&after) == State::Inner).then_some(child_id), None];
    if let Some(id) = parent.parent {
        let before = record(read, family, id)?;
        pending::update(read, tx, family, id, &before, &relinked(before, parent_id, Some(child_id)))?;
        again[1] = (state(&before) == State::Inner).then_some(id);
    }
    for id in again.into_iter().flatten().filter(|_| !planted(Planted::NoRecheck)) {
        mark(tx, family, Work::Recheck(id), &[]);
    }
    Ok(())
}

/// A version that has lost the child `gone` and perhaps gained `new`.
pub(super) fn relinked(mut version: VersionRecord, gone: VersionId, new: Option<VersionId>) -> VersionRecord {
    if new.is_none() {
        version.children = version.children.saturating_sub(1);
    }
    version.children_xor ^= gone.0 ^ new.map_or(0, |n| n.0);
    version
}

/// Versions that nobody holds, each the parent of the one before, the first of which has lost somebody below it.
///
/// What may have lost its last sight is what that one saw, and he saw of each place the nearest entry at or above the first. Where the
/// way down to the witness has no entry, and no limit, the witness sees the same: nothing is lost there. So one pass over what is on that
/// way does for all of them.
pub(super) struct Rechecked {
    /// The lowest first.
    pub(super) versions: Vec<(VersionId, VersionKey)>,
    /// Keys of the versions on the way from below the first to one that is held, and the smallest limit on it. With nobody
    /// below, no keys and the limit 0.
    pub(super) witness: (Vec<VersionKey>, u64),
}

/// A step of removing what nobody below a version sees any more, of it and of those above it.
fn recheck(
    read: &dyn Read,
    contents: &mut dyn Contents,
    kin: &mut Kin,
    id: VersionId,
    at: &[u8],
) -> Result<()> {
    let family = kin.family();
    let witness = kin.witness(id)?;
    // Without a witness nothing is known of those above.
    let alone = witness.0.is_empty();
    let (versions, beyond) = kin.unheld_above(id, if alone { 1 } else { contents.rechecked_max() })?;
    match contents.recheck(read, kin, &Rechecked { versions, witness }, at)? {
        Outcome::Stopped(at) => mark(contents.tx(), family, Work::Recheck(id), &at),
        Outcome::Done => {
            let tx = contents.tx();
            unmark(tx, family, Work::Recheck(id));
            if let Some(beyond) = beyond {
                mark(tx, family, Work::Recheck(beyond), &[]);
            }
        }
    }
    Ok(())
}

/// A step of rechecking places, `first` and the next ones.
fn recheck_places(read: &dyn Read, contents: &mut dyn Contents, kin: &mut Kin, first: Vec<u8>) -> Result<()> {
    let family = kin.family();
    let (prefix, mut next, mut swept) = (reap_prefix(family), Some(first), BTreeSet::new());
    for _ in 0..MARKS_MAX {
        let Some(key) = next.take() else { break };
        let (_, work) = decode(&key)?;
        let Work::Place(id, tree, place) = work else { break };
        // What a transaction has changed it does not look at again; nor need it.
        if let Some(version) = kin.unheld(id)?
            && !swept.contains(&(tree, place.to_vec()))
        {
            match contents.recheck_place(read, kin, Some((id, version.key)), tree, place)? {
                Looked::Seen => (),
                Looked::Swept => drop(swept.insert((tree, place.to_vec()))),
                Looked::Later => break,
                Looked::Begun => {
                    mark(contents.tx(), family, Work::Rest(tree, place), &[]);
                    swept.insert((tree, place.to_vec()));
                }
            }
        }
        unmark(contents.tx(), family, work);
        if contents.full() {
            break;
        }
        let mut behind = reap_key(family, work);
        behind.push(0);
        read.scan(TreeId::REAP, &behind, &mut |key, _| {
            next = key.starts_with(&prefix).then(|| key.to_vec());
            false
        })?;
    }
    Ok(())
}
