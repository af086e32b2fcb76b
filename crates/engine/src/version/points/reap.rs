//! What namespaces hold: entries of point keys. The reaper's hands (see [`super::super::reap`] for what it does).
//!
//! Where a version has entries is in the index, and who moves or removes them begins at its front again after each step.
//! A family's first version has none: its entries are found by a walk through the family, and a cursor remembers how far
//! that has come.
//!
//! The caller hears of every value that ceases to exist, in the transaction in which it does, and may put it off: then
//! the step ends before it, and the next one asks again.

use std::collections::{BTreeMap, HashMap};

use varve_format::record::held::{HELD_KEY_BYTES_MIN, decode_held_key, held_key, held_prefix};
use varve_format::record::reap::Work;
use varve_format::record::version::Drain;
use varve_format::{Corrupt, FamilyId, TreeId, VersionId, VersionKey};

use super::super::family::{Blocks, Own};
use super::super::kin::Kin;
use super::super::pending::mark;
use super::super::reap::{self, Contents, Looked, Outcome, Pair, ReaperMemory, Rechecked, going_max};
use super::super::{Holder, Path, Progress, Read, Result};
use super::reads::entries_at;
use super::{Planted, TREES, entry_key, is_listed, place_of, planted, split};
use crate::{EngineError, Transaction};

/// Entries that a step may look at without changing any, for each one it may change.
const LOOKED_AT_RATIO: u64 = 16;
/// Entries looked at to guess which of two versions has fewer.
const SAMPLE_ENTRIES: u64 = 2048;
/// Versions one above the other that are rechecked together: their records are read in each step. (Few in unit tests, so that the
/// models meet more.)
const RECHECKED_MAX: usize = if cfg!(test) { 2 } else { 1024 };
/// A step of fewer entries than this is one that was made small.
const STEP_ENTRIES: u64 = 128;

/// Hears of a value that ceases to exist: the tree, the prefix, the value, and the transaction in which that happens, to
/// which it may add. False: not in this one (say, because it has changed the same family of data already); the first
/// of a step must be taken.
pub type OnDead<'a> = &'a mut dyn FnMut(&mut Transaction, TreeId, &[u8], &[u8]) -> Result<bool>;

/// One small step towards storing exactly what holders see of this namespace. Apply `tx` (which becomes privileged)
/// after each, and call again while [`Progress::more`]; when there was nothing to do, it is empty. A step changes about
/// `entries_max` entries and looks at a bounded number. Run it while nobody writes to the family; paths loaded before it
/// are void after it, holders are not.
///
/// # Errors
/// Those of `on_dead`; [`EngineError::Corrupt`] for a record that cannot be; `tx` must then be dropped.
pub fn reap_points_step(
    read: &dyn Read,
    tx: &mut Transaction,
    family: FamilyId,
    entries_max: u64,
    memory: &mut ReaperMemory,
    on_dead: OnDead<'_>,
) -> Result<Progress> {
    let entries_max = entries_max.max(1);
    let looks = entries_max.saturating_mul(LOOKED_AT_RATIO).max(64);
    let mut points =
        Points { tx, entries_max, looks, wholes: 0, entries: 0, postponed: false, beneath: None, on_dead };
    let more = reap::step(read, &mut points, family, &mut memory.witnesses)?;
    Ok(Progress { more, entries: points.entries, ..Progress::default() })
}

/// Up to `families_max` namespaces after `after` in which [`reap_points_step`] has work. The second part says after
/// which to go on; `None`: there are no more. A family of data is among them where damage hides that it is one. Costs what is pending, other
/// families' work included.
///
/// # Errors
/// Those of reading.
pub fn pending_points_families(
    read: &dyn Read,
    after: Option<FamilyId>,
    families_max: usize,
) -> Result<(Vec<FamilyId>, Option<FamilyId>)> {
    reap::pending_of(read, after, families_max, true)
}

/// A prefix of a tree.
type At = (TreeId, Vec<u8>);

/// A step's changes, and what it may still do.
struct Points<'a> {
    tx: &'a mut Transaction,
    entries_max: u64,
    looks: u64,
    /// What looks at all versions count as, in entries.
    wholes: u64,
    entries: u64,
    /// A value may not die in this transaction: the step ends.
    postponed: bool,
    /// What is above the version whose whiteout was looked at last.
    beneath: Option<(VersionId, Beneath)>,
    on_dead: OnDead<'a>,
}

impl Contents for Points<'_> {
    fn tx(&mut self) -> &mut Transaction {
        self.tx
    }

    fn full(&self) -> bool {
        self.postponed || self.entries + self.wholes >= self.entries_max
    }

    fn kill(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        key: VersionKey,
        from: u64,
        cursor: &[u8],
    ) -> Result<Outcome> {
        no_limit(family, from == 0)?;
        let (places, next) = self.places(read, family, key, cursor, self.entries_max)?;
        for (tree, prefix) in places {
            let value = read.get(tree, &entry_key(&prefix, key))?;
            if !self.dies(tree, &prefix, value.as_deref())? {
                return Ok(Outcome::Stopped(cursor.to_vec()));
            }
            self.delete(family, tree, &prefix, key);
        }
        Ok(from_the_front(family, key, next))
    }

    fn smaller(&self, read: &dyn Read, pair: &Pair) -> Result<Drain> {
        let Pair { family, parent, child, .. } = pair;
        let mut of_child = listed(read, *family, child.key)?;
        let of_parent = if is_listed(*family, parent.key) {
            listed(read, *family, parent.key)?
        } else if of_child < SAMPLE_ENTRIES {
            // Moving these few is less work than looking for the parent's.
            u64::MAX
        } else {
            let counts = sample(read, *family, child.key, parent.key)?;
            of_child = counts.0;
            counts.1
        };
        let up = (of_child <= of_parent) != planted(Planted::LargerSide);
        Ok(if up { Drain::Up } else { Drain::Down })
    }

    fn drain(&mut self, read: &dyn Read, pair: &Pair, cursor: &[u8]) -> Result<Outcome> {
        let Pair { family, parent, child, .. } = *pair;
        no_limit(family, child.limit == u64::MAX)?;
        let up = child.drain == Drain::Up;
        let (moving, staying) = if up { (child.key, parent.key) } else { (parent.key, child.key) };
        let (places, next) = self.places(read, family, moving, cursor, self.entries_max)?;
        let mut beneath = Beneath { version: parent.parent, path: None };
        for (tree, prefix) in places {
            let upper = read.get(tree, &entry_key(&prefix, child.key))?;
            let lower = read.get(tree, &entry_key(&prefix, parent.key))?;
            let told = planted(Planted::HiddenUnheard);
            if upper.is_some() && !told && !self.dies(tree, &prefix, lower.as_deref())? {
                return Ok(Outcome::Stopped(cursor.to_vec()));
            }
            let both = upper.is_some() && lower.is_some();
            let merged = match upper.or(lower) {
                Some(value) if value.is_empty() && !beneath.shows(read, family, tree, &prefix)? => None,
                merged => merged,
            };
            self.delete(family, tree, &prefix, moving);
            match merged {
                // It is there already.
                Some(_) if both && !up => (),
                Some(value) => self.put(family, tree, &prefix, staying, value),
                None if both => self.delete(family, tree, &prefix, staying),
                None => (),
            }
        }
        Ok(from_the_front(family, moving, next))
    }

    fn recheck(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        those: &Rechecked,
        cursor: &[u8],
    ) -> Result<Outcome> {
        let family = kin.family();
        let of: HashMap<VersionKey, VersionId> = those.versions.iter().map(|(id, key)| (*key, *id)).collect();
        let lowest = those.versions.first().map_or(VersionKey(0), |(_, key)| *key);
        // What nobody sees is hidden from the witness too: it lies where one of these has something. Of many that is a few places each.
        let witnesses = &those.witness.0;
        let each = (2 * self.entries_max / (witnesses.len() as u64).max(1)).clamp(2, self.entries_max.max(2));
        let mut places: BTreeMap<Vec<u8>, At> = BTreeMap::new();
        let mut upto: Option<Vec<u8>> = None;
        for key in witnesses {
            let (some, next) = self.places(read, family, *key, cursor, each)?;
            places.extend(some.into_iter().map(|at| (encode_cursor(at.0, &at.1), at)));
            if let Outcome::Stopped(next) = next {
                upto = Some(upto.map_or(next.clone(), |upto| upto.min(next)));
            }
        }
        let mut begun = false;
        for (here, (tree, prefix)) in places {
            if upto.as_ref().is_some_and(|upto| here >= *upto) {
                break;
            }
            if self.full() || begun && self.looks == 0 {
                return Ok(Outcome::Stopped(here));
            }
            begun = true;
            let Some(nearest) = self.nearest(read, tree, &prefix, lowest, &of)? else { continue };
            match self.recheck_prefix(read, kin, Some(nearest), tree, &prefix)? {
                Looked::Seen | Looked::Swept => {}
                Looked::Later => return Ok(Outcome::Stopped(here)),
                Looked::Begun => mark(self.tx, family, Work::Rest(tree, place_of(&prefix)), &[]),
            }
        }
        Ok(upto.map_or(Outcome::Done, Outcome::Stopped))
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
        known(kin.family(), tree)?;
        let prefix = [&kin.family().0.to_be_bytes(), place].concat();
        self.entries += 1;
        self.recheck_prefix(read, kin, of, tree, &prefix)
    }
}

impl Points<'_> {
    /// If nobody sees what version `of` has at a prefix: removes what nobody sees there, whoever has it, and whiteouts that
    /// hide nothing. If that is much, part of it, values first.
    fn recheck_prefix(
        &mut self,
        read: &dyn Read,
        kin: &mut Kin,
        of: Option<(VersionId, VersionKey)>,
        tree: TreeId,
        prefix: &[u8],
    ) -> Result<Looked> {
        let family = kin.family();
        let mut own_of_version = |version| {
            Ok(read.get(tree, &entry_key(prefix, version))?.map_or(Own::default(), |value| own_of(&value)))
        };
        if let Some((id, key)) = of {
            let has = own_of_version(key)?;
            let seen = kin.is_seen(id, has.all(), &mut own_of_version, &|_| Blocks::ALL)?;
            // What a whiteout hides may go, too: whoever hides or lets go of that has it looked at.
            if seen && (has.holes.is_empty() || self.hides(read, kin, id, tree, prefix)?) {
                return Ok(Looked::Seen);
            }
        }
        let (mut found, mut failed) = (BTreeMap::new(), None);
        read.scan(tree, prefix, &mut |key, value| {
            if !key.starts_with(prefix) {
                return false;
            }
            match split(tree, key) {
                Ok((_, version)) => drop(found.insert(version, value.to_vec())),
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        // One alone is hidden by nothing. If it is a whiteout, it may hide nothing itself.
        if found.len() < 2 && found.values().all(|value| !value.is_empty()) {
            return Ok(Looked::Swept);
        }
        let own = found.iter().map(|(version, value)| (*version, own_of(value))).collect();
        let id = of.map_or(VersionId(family.0), |(id, _)| id);
        let stays = kin.stays(id, &own, &|_| Blocks::ALL)?;
        self.wholes += kin.weight(self.entries_max.saturating_mul(LOOKED_AT_RATIO)) / LOOKED_AT_RATIO;
        // Of a version that does not exist nothing is said: it is left to the check.
        let goes = |version: &VersionKey| stays.get(version) == Some(&Own::default());
        if of.is_some_and(|(_, key)| !goes(&key)) {
            return Ok(Looked::Seen);
        }
        // Should one be put off, the next step has to find that something goes, and whiteouts go last: what they hide
        // must be gone.
        let mut going: Vec<_> = found.iter().filter(|(version, _)| goes(version)).collect();
        going.sort_by_key(|(version, value)| (value.is_empty(), of.is_some_and(|(_, key)| **version == key)));
        let most = going_max(self.entries_max, STEP_ENTRIES) as usize;
        let begun = going.len() > most;
        if planted(Planted::HolesFirst) && begun {
            going.reverse();
        }
        for (version, value) in going.into_iter().take(most) {
            if value.is_empty() && planted(Planted::WhiteoutsStay) {
                continue;
            }
            if !self.dies(tree, prefix, Some(value))? {
                return Ok(Looked::Later);
            }
            self.delete(family, tree, prefix, *version);
        }
        Ok(if begun { Looked::Begun } else { Looked::Swept })
    }

    /// Which of the versions `of`, the lowest of which has the key `lowest`, has the nearest entry at a prefix, seen from below.
    fn nearest(
        &mut self,
        read: &dyn Read,
        tree: TreeId,
        prefix: &[u8],
        lowest: VersionKey,
        of: &HashMap<VersionKey, VersionId>,
    ) -> Result<Option<(VersionId, VersionKey)>> {
        let (mut found, mut failed, mut met) = (None, None, 1);
        // Younger ones come first, and keys grow on the way down.
        read.scan(tree, &entry_key(prefix, lowest), &mut |key, _| {
            if !key.starts_with(prefix) {
                return false;
            }
            met += 1;
            match split(tree, key) {
                Ok((_, key)) => found = of.get(&key).map(|id| (*id, key)),
                Err(error) => failed = Some(error),
            }
            found.is_none() && failed.is_none()
        })?;
        self.looks = self.looks.saturating_sub(met);
        failed.map_or(Ok(found), Err)
    }

    /// Whether there is something for a whiteout of version `id` to hide.
    fn hides(
        &mut self,
        read: &dyn Read,
        kin: &Kin,
        id: VersionId,
        tree: TreeId,
        prefix: &[u8],
    ) -> Result<bool> {
        let beneath = match self.beneath.take() {
            Some((of, beneath)) if of == id => beneath,
            _ => Beneath { version: kin.version(id)?.parent, path: None },
        };
        let (_, beneath) = self.beneath.insert((id, beneath));
        beneath.shows(read, kin.family(), tree, prefix)
    }

    /// The next places where `key` has entries, up to `places_max`, and how far that is.
    fn places(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        key: VersionKey,
        cursor: &[u8],
        places_max: u64,
    ) -> Result<(Vec<At>, Outcome)> {
        if is_listed(family, key) {
            self.listed_places(read, family, key, cursor, places_max)
        } else {
            self.first_places(read, family, cursor, places_max)
        }
    }

    fn listed_places(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        key: VersionKey,
        cursor: &[u8],
        places_max: u64,
    ) -> Result<(Vec<At>, Outcome)> {
        let all = [&family.0.to_be_bytes()[..], &key.0.to_be_bytes()].concat();
        let (mut places, mut next, mut failed) = (Vec::new(), Outcome::Done, None);
        read.scan(TreeId::HELD, &[&all, cursor].concat(), &mut |held, _| {
            if !held.starts_with(&all) {
                return false;
            }
            let at = decode_held_key(held)
                .map_err(|why| EngineError::corrupt("an index entry", why))
                .and_then(|(_, _, tree, place)| known(family, tree).map(|()| (tree, place)));
            match at {
                Ok((tree, place)) if (places.len() as u64) < places_max => {
                    places.push((tree, [&family.0.to_be_bytes(), place].concat()));
                    return true;
                }
                Ok(_) => next = Outcome::Stopped(held[all.len()..].to_vec()),
                Err(error) => failed = Some(error),
            }
            false
        })?;
        failed.map_or(Ok((places, next)), Err)
    }

    /// The family's first version has no index: a walk through everything, from `cursor` on.
    fn first_places(
        &mut self,
        read: &dyn Read,
        family: FamilyId,
        cursor: &[u8],
        places_max: u64,
    ) -> Result<(Vec<At>, Outcome)> {
        let first = VersionKey(family.0);
        let all = family.0.to_be_bytes();
        let (begun, begin) = match cursor.split_first() {
            Some((tree, place)) => (TreeId(u16::from(*tree)), place),
            None => (TREES[0], cursor),
        };
        let mut places = Vec::<At>::new();
        for tree in TREES.into_iter().filter(|tree| *tree >= begun) {
            let from = [&all[..], if tree == begun { begin } else { &[] }].concat();
            let (mut next, mut failed, mut last) = (None, None, Vec::new());
            read.scan(tree, &from, &mut |key, _| {
                if !key.starts_with(&all) {
                    return false;
                }
                let (prefix, version) = match split(tree, key) {
                    Ok(parts) => parts,
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                };
                // Only between prefixes, so that each step gets past at least one.
                if prefix != last {
                    let enough = self.looks == 0 || places.len() as u64 >= places_max;
                    if enough && !last.is_empty() {
                        next = Some(encode_cursor(tree, prefix));
                        return false;
                    }
                    last = prefix.to_vec();
                }
                self.looks = self.looks.saturating_sub(1);
                if version == first {
                    places.push((tree, prefix.to_vec()));
                }
                true
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            if let Some(next) = next {
                return Ok((places, Outcome::Stopped(next)));
            }
        }
        Ok((places, Outcome::Done))
    }

    /// Tells of a value that goes, unless it is none; says whether it may.
    fn dies(&mut self, tree: TreeId, prefix: &[u8], value: Option<&[u8]>) -> Result<bool> {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.postponed = !(self.on_dead)(self.tx, tree, prefix, value)?;
        }
        Ok(!self.postponed)
    }

    fn delete(&mut self, family: FamilyId, tree: TreeId, prefix: &[u8], version: VersionKey) {
        self.tx.delete(tree, &entry_key(prefix, version));
        if is_listed(family, version) {
            self.tx.delete(TreeId::HELD, &held_key(family, version, tree, place_of(prefix)));
        }
        self.entries += 1;
    }

    fn put(&mut self, family: FamilyId, tree: TreeId, prefix: &[u8], version: VersionKey, value: Vec<u8>) {
        self.tx.put_owned(tree, &entry_key(prefix, version), value.into());
        if is_listed(family, version) {
            self.tx.put(TreeId::HELD, &held_key(family, version, tree, place_of(prefix)), &[]);
        }
        self.entries += 1;
    }
}

/// A point is all of a place.
pub(super) fn own_of(value: &[u8]) -> Own {
    match value.is_empty() {
        true => Own { something: Blocks::NONE, holes: Blocks::ALL },
        false => Own { something: Blocks::ALL, holes: Blocks::NONE },
    }
}

fn encode_cursor(tree: TreeId, prefix: &[u8]) -> Vec<u8> {
    [&[tree.0 as u8], place_of(prefix)].concat()
}

/// Who has moved or removed what it met needs no cursor where there is an index: something may have come in front of it
/// (a version that dies while its parent still moves down to it).
fn from_the_front(family: FamilyId, key: VersionKey, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Stopped(_) if is_listed(family, key) => Outcome::Stopped(Vec::new()),
        outcome => outcome,
    }
}

fn no_limit(family: FamilyId, none: bool) -> Result<()> {
    let why = Corrupt { what: "limit in a namespace", at: 0 };
    if none { Ok(()) } else { Err(EngineError::corrupt(format!("a version of family {}", family.0), why)) }
}

fn known(family: FamilyId, tree: TreeId) -> Result<()> {
    let why = Corrupt { what: "place in a tree that is no namespace's", at: 0 };
    match TREES.contains(&tree) {
        true => Ok(()),
        false => Err(EngineError::corrupt(format!("the index or the work of family {}", family.0), why)),
    }
}

/// How many entries a version has in the index, up to [`SAMPLE_ENTRIES`].
fn listed(read: &dyn Read, family: FamilyId, key: VersionKey) -> Result<u64> {
    let prefix = &held_prefix(family, key, TREES[0])[..HELD_KEY_BYTES_MIN - 1];
    let mut count = 0;
    read.scan(TreeId::HELD, prefix, &mut |held, _| {
        let counts = held.starts_with(prefix) && count < SAMPLE_ENTRIES;
        count += u64::from(counts);
        counts
    })?;
    Ok(count)
}

/// How many of the first entries of a family belong to the one and to the other version.
fn sample(read: &dyn Read, family: FamilyId, one: VersionKey, other: VersionKey) -> Result<(u64, u64)> {
    let (prefix, mut counts) = (family.0.to_be_bytes(), (0, 0));
    for tree in TREES {
        let mut looked_at = 0;
        read.scan(tree, &prefix, &mut |key, _| {
            let version = split(tree, key).map(|(_, version)| version).ok();
            counts.0 += u64::from(version == Some(one));
            counts.1 += u64::from(version == Some(other));
            looked_at += 1;
            key.starts_with(&prefix) && looked_at < SAMPLE_ENTRIES
        })?;
    }
    Ok(counts)
}

/// What the versions above two that are becoming one show. Loaded when it is first asked for.
struct Beneath {
    version: Option<VersionId>,
    path: Option<Path>,
}

impl Beneath {
    fn shows(&mut self, read: &dyn Read, family: FamilyId, tree: TreeId, prefix: &[u8]) -> Result<bool> {
        if planted(Planted::WhiteoutsStay) {
            return Ok(true);
        }
        let Some(version) = self.version else { return Ok(false) };
        let path = match self.path.take() {
            Some(path) => path,
            None => Path::load(read, Holder { family, version, has_versions: true })?,
        };
        let mut shows = false;
        entries_at(read, &path, tree, prefix, &mut |_, _, value| {
            shows = !value.is_empty();
            false
        })?;
        self.path = Some(path);
        Ok(shows)
    }
}
