//! Checking: everything stored for a family against the rules, without trusting any of it.
//!
//! Reports in sentences and goes on, so that one problem does not hide the next. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use varve_format::record::extent::{self, DataKey, Extent, ExtentKind, family_prefix};
use varve_format::record::held::decode_held_key;
use varve_format::record::reap::{Work, check_reap_value, decode_reap_key};
use varve_format::record::version::{self, Drain, NO_LIMIT, VersionRecord};
use varve_format::{BLOCK_BYTES, FamilyId, Run, TreeId, VersionId, VersionKey};

use super::extents::{below, own_blocks};
use super::family::Family;
use super::keyframe_check::check_keyframes;
use super::pending::{State, state};
use super::reap::is_namespace;
use super::segment::Entry;
use super::{Holder, Read, Result};
use crate::problem::{Problem, ProblemKind as Kind};

pub(super) type Versions = BTreeMap<VersionId, VersionRecord>;

/// The first family of data after `after` that has entries, version records, keyframes or work for the reaper. For walking all of
/// them.
///
/// # Errors
/// Those of reading.
pub fn next_family(read: &dyn Read, after: Option<FamilyId>) -> Result<Option<FamilyId>> {
    let mut after = after;
    loop {
        let Some(first) = after.map_or(Some(0), |f| f.0.checked_add(1)) else { return Ok(None) };
        let mut next: Option<FamilyId> = None;
        for tree in [TreeId::EXTENTS, TreeId::VERSIONS, TreeId::HELD, TreeId::REAP, TreeId::KEYFRAMES] {
            read.scan(tree, &first.to_be_bytes(), &mut |key, _| {
                // A key too short to name a family is one of the tree's own problems.
                let Some(bytes) = key.first_chunk::<8>() else { return true };
                let family = FamilyId(u64::from_be_bytes(*bytes));
                next = Some(next.map_or(family, |n| n.min(family)));
                false
            })?;
        }
        let Some(family) = next else { return Ok(None) };
        if !is_namespace(read, family)? {
            return Ok(Some(family));
        }
        after = next;
    }
}

/// Walks everything stored for `family`: calls `each` with the place in the file and the blocks of every entry of data,
/// and adds to `problems` everything that breaks the rules (unknown key, overlap, crossing, version tree, counts of
/// holders, index, keyframes, work for the reaper; and, if there is none, entries that nobody sees).
/// `holders` are all that point at the family. While the family is being deleted (its holder is an orphan), give that
/// holder. Returns the blocks of its reservations.
///
/// # Errors
/// Those of reading; what is read and cannot be decoded is a problem.
pub fn walk_family(
    read: &dyn Read,
    family: FamilyId,
    holders: &[Holder],
    each: &mut dyn FnMut(u64, Run),
    problems: &mut Vec<Problem>,
) -> Result<u64> {
    let before = problems.len();
    let versions = load_versions(read, family, problems)?;
    check_versions(family, &versions, holders, problems);
    let idle = check_work(read, family, &[TreeId::EXTENTS], &versions, problems)?;
    let keys: BTreeSet<VersionKey> = match versions.is_empty() {
        true => [VersionKey(family.0)].into(),
        false => versions.values().map(|version| version.key).collect(),
    };
    if keys.len() < versions.len() {
        let text = format!("two versions of family {} have the same key", family.0);
        problems.push(Problem::new(Kind::VersionKey, text));
    }
    // Versions without holders are on their way out: whether they are marked has been checked.
    // A place to be looked at again may outlive the last version that the family had a record of.
    if holders.is_empty() && versions.is_empty() && stores(read, family)? {
        problems.push(Problem::new(Kind::ExtentOwnerless, format!("family {} has no inode", family.0)));
    }
    // With damage in its versions nothing can be said about who sees what.
    let intact = problems.len() == before;
    let sound = idle && intact;
    let ids = versions.iter().map(|(id, version)| (version.key, *id)).collect();
    let tree = if sound { Family::of(family, versions).ok() } else { None };
    let mut walk = Walk { family, tree, place: BTreeMap::new(), segment: 0, held: BTreeSet::new() };
    let prefix = family_prefix(family);
    let mut last: Option<(u64, VersionKey, u32)> = None;
    let mut reserved = 0;
    read.scan(TreeId::EXTENTS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        let (key, extent) = match extent::decode_entry(key, value) {
            Ok(entry) => entry,
            Err(why) => {
                let crosses = why.what == "extent that crosses its segment";
                let kind = if crosses { Kind::ExtentCrosses } else { Kind::ExtentMalformed };
                problems.push(Problem::new(kind, format!("an extent of family {}: {why}", family.0)));
                return true;
            }
        };
        let from = key.file_offset();
        let mut problem = |kind, what: String| {
            let text = format!("the extent of family {} at {from:#x} {what}", family.0);
            let bytes = Some((from, from + u64::from(extent.len)));
            problems.push(Problem { bytes, ..Problem::new(kind, text) });
        };
        if !keys.contains(&key.version) {
            let what = format!("belongs to version key {}, which nobody owns", key.version.0);
            problem(Kind::ExtentVersion, what);
        }
        if let Some((segment, version, end)) = last
            && (segment, version) == (key.segment, key.version)
            && key.offset < end
        {
            problem(Kind::ExtentOverlap, "overlaps the one before it".into());
        }
        last = Some((key.segment, key.version, key.offset + extent.len));
        walk.entry(&key, extent, problems);
        if extent.kind == ExtentKind::Reserved {
            reserved += u64::from(extent.len) / BLOCK_BYTES as u64;
        }
        if let Some(run) = extent.run() {
            each(from, run);
        }
        true
    })?;
    walk.end_of_segment(problems);
    check_index(read, family, walk.held, problems)?;
    check_keyframes(read, family, &ids, intact && problems.len() == before, problems)?;
    Ok(reserved)
}

/// Checks that nothing is stored for the namespace `family` that only families of data have: keyframes, extents. Of one that has never been
/// forked there are no versions, and so no index either, and no work for the reaper: says whether there are records of versions all the same.
///
/// # Errors
/// Those of reading.
pub fn check_names(
    read: &dyn Read,
    family: FamilyId,
    forked: bool,
    problems: &mut Vec<Problem>,
) -> Result<bool> {
    let (prefix, mut recorded) = (family_prefix(family), false);
    let mut kinds =
        vec![(TreeId::KEYFRAMES, Kind::KeyframeMalformed), (TreeId::EXTENTS, Kind::ExtentOwnerless)];
    if !forked {
        check_work(read, family, &[], &Versions::new(), problems)?;
        read.scan(TreeId::VERSIONS, &prefix, &mut |key, _| {
            recorded = key.starts_with(&prefix);
            false
        })?;
        kinds.push((TreeId::HELD, Kind::HeldStray));
    }
    for (tree, kind) in kinds {
        read.scan(tree, &prefix, &mut |key, _| {
            let here = key.starts_with(&prefix);
            if here {
                let text =
                    format!("an entry of the {} tree is of family {}, of names", tree.name(), family.0);
                problems.push(Problem::new(kind, text));
            }
            here
        })?;
    }
    Ok(recorded)
}

/// The walk through the entries.
struct Walk {
    family: FamilyId,
    /// Given when nothing is left to be reaped.
    tree: Option<Family>,
    /// The lists of this segment.
    place: BTreeMap<VersionKey, Vec<Entry>>,
    segment: u64,
    /// Where versions that have an index have entries.
    held: BTreeSet<(VersionKey, u64)>,
}

impl Walk {
    fn entry(&mut self, key: &DataKey, extent: Extent, problems: &mut Vec<Problem>) {
        if key.version.0 != key.family.0 {
            self.held.insert((key.version, key.segment));
        }
        if self.tree.is_none() {
            return;
        }
        if key.segment != self.segment {
            self.end_of_segment(problems);
            self.segment = key.segment;
        }
        self.place.entry(key.version).or_default().push(Entry { off: key.offset, extent });
    }

    /// Compares what there is in a segment with what somebody sees.
    fn end_of_segment(&mut self, problems: &mut Vec<Problem>) {
        let (place, segment) = (std::mem::take(&mut self.place), self.segment);
        let Some(tree) = self.tree.as_ref().filter(|_| !place.is_empty()) else { return };
        let own = place.iter().map(|(version, list)| (*version, own_blocks(list))).collect();
        let stays = tree.stays(&own, &|limit| below(limit, segment));
        for (version, list) in &place {
            let Some(stays) = stays.get(version) else { continue };
            for entry in list {
                let here = own_blocks(&[*entry]);
                let from = segment * varve_format::SEGMENT_BYTES + u64::from(entry.off);
                let bytes = Some((from, from + u64::from(entry.extent.len)));
                let at = format!("at {from:#x} of family {}", self.family.0);
                if !here.holes.without(stays.holes).is_empty() {
                    let text = format!("the hole {at} hides nothing");
                    problems.push(Problem { bytes, ..Problem::new(Kind::ExtentIdle, text) });
                }
                if !here.something.without(stays.something).is_empty() {
                    let text = format!("nobody sees all of the extent {at}, of version key {}", version.0);
                    problems.push(Problem { bytes, ..Problem::new(Kind::ExtentUnseen, text) });
                }
            }
        }
    }
}

/// Compares the index of a family with where its versions have entries.
fn check_index(
    read: &dyn Read,
    family: FamilyId,
    mut held: BTreeSet<(VersionKey, u64)>,
    problems: &mut Vec<Problem>,
) -> Result<()> {
    let prefix = family_prefix(family);
    read.scan(TreeId::HELD, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        let decoded = decode_held_key(key).ok().filter(|_| value.is_empty());
        let segment = decoded.and_then(|(_, version, tree, place)| {
            let segment = place.try_into().ok().filter(|_| tree == TreeId::EXTENTS)?;
            Some((version, u64::from_be_bytes(segment)))
        });
        match segment {
            None => {
                let text = format!("an entry in the index of family {} is not one", family.0);
                problems.push(Problem::new(Kind::HeldMalformed, text));
            }
            Some(at) if held.remove(&at) => (),
            Some((version, segment)) => {
                let text = format!(
                    "the index of family {} names segment {segment} of version key {}, where it has nothing",
                    family.0, version.0
                );
                problems.push(Problem::new(Kind::HeldStray, text));
            }
        }
        true
    })?;
    for (version, segment) in held {
        let text = format!(
            "the index of family {} does not name segment {segment} of version key {}",
            family.0, version.0
        );
        problems.push(Problem::new(Kind::HeldMissing, text));
    }
    Ok(())
}

/// Whether anything is stored for a family of data, or noted in its index.
fn stores(read: &dyn Read, family: FamilyId) -> Result<bool> {
    let (prefix, mut found) = (family_prefix(family), false);
    for tree in [TreeId::EXTENTS, TreeId::HELD] {
        read.scan(tree, &prefix, &mut |key, _| {
            found |= key.starts_with(&prefix);
            false
        })?;
    }
    Ok(found)
}

/// Compares what is to be reaped of a family with things in `trees` with the versions; says whether there is nothing.
pub(super) fn check_work(
    read: &dyn Read,
    family: FamilyId,
    trees: &[TreeId],
    versions: &Versions,
    problems: &mut Vec<Problem>,
) -> Result<bool> {
    let mut going: BTreeSet<VersionId> =
        versions.iter().filter(|(_, version)| state(version) == State::Going).map(|(id, _)| *id).collect();
    let (prefix, mut idle) = (family_prefix(family), going.is_empty());
    read.scan(TreeId::REAP, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        idle = false;
        let inner = |id| versions.get(&id).is_some_and(|version| state(version) == State::Inner);
        let work = decode_reap_key(key).and_then(|(_, work)| check_reap_value(work, value).map(|()| work));
        let stray = match work {
            Err(why) => {
                let text = format!("what is to be reaped of family {}: {why}", family.0);
                problems.push(Problem::new(Kind::ReapMalformed, text));
                None
            }
            Ok(Work::Going(id)) => (!going.remove(&id)).then_some(id),
            Ok(Work::Recheck(id)) => (!inner(id)).then_some(id),
            Ok(Work::Place(_, tree, _) | Work::Rest(tree, _)) => {
                if !trees.contains(&tree) {
                    let text = format!("a place to be reaped of family {} is in {}", family.0, tree.name());
                    problems.push(Problem::new(Kind::ReapMalformed, text));
                }
                None
            }
        };
        if let Some(id) = stray {
            let text = format!(
                "version {} of family {} is to be reaped, and is in use or does not exist",
                id.0, family.0
            );
            problems.push(Problem::new(Kind::ReapStray, text));
        }
        true
    })?;
    for id in going {
        let text =
            format!("nobody holds version {} of family {}, and it is not to be reaped", id.0, family.0);
        problems.push(Problem::new(Kind::ReapMissing, text));
    }
    Ok(idle)
}

pub(super) fn load_versions(
    read: &dyn Read,
    family: FamilyId,
    problems: &mut Vec<Problem>,
) -> Result<Versions> {
    let prefix = family_prefix(family);
    let mut versions = Versions::new();
    read.scan(TreeId::VERSIONS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        let decoded = version::decode_key(key).and_then(|(_, id)| Ok((id, VersionRecord::decode(value)?)));
        match decoded {
            Ok((id, version)) => drop(versions.insert(id, version)),
            Err(error) => {
                problems.push(Problem::new(Kind::VersionMalformed, format!("family {}: {error}", family.0)));
            }
        }
        true
    })?;
    Ok(versions)
}

/// Checks the tree of versions.
pub(super) fn check_versions(
    family: FamilyId,
    versions: &Versions,
    holders: &[Holder],
    problems: &mut Vec<Problem>,
) {
    let mut counts: BTreeMap<VersionId, u64> = BTreeMap::new();
    for holder in holders {
        *counts.entry(holder.version).or_default() += 1;
    }
    let mut children: BTreeMap<VersionId, (u64, u64)> = BTreeMap::new();
    let mut problem = |kind, text| problems.push(Problem::new(kind, text));
    for (id, version) in versions {
        let here = format!("version {} of family {}", id.0, family.0);
        if let Some(parent) = version.parent {
            let entry = children.entry(parent).or_default();
            *entry = (entry.0 + 1, entry.1 ^ id.0);
            match versions.get(&parent) {
                None => problem(
                    Kind::VersionParent,
                    format!("{here} has a parent {} that does not exist", parent.0),
                ),
                Some(p) if parent >= *id || p.key >= version.key => {
                    problem(Kind::VersionAge, format!("{here} is not younger than its parent"));
                }
                Some(p) if version.drain != Drain::None && (p.refs > 0 || p.children != 1) => {
                    problem(
                        Kind::VersionDrain,
                        format!("{here} drains, but its parent {} is in use", parent.0),
                    );
                }
                Some(p) if version.drain != Drain::None && p.drain != Drain::None => {
                    problem(Kind::VersionDrain, format!("{here} and its parent both drain"));
                }
                Some(_) => (),
            }
        }
        // The index leaves out what is at the family's own number: only a version without a parent may be there.
        if version.key.0 < family.0 {
            problem(Kind::VersionKey, format!("{here} has a key that is older than its family"));
        }
        if version.parent.is_none() && version.limit != NO_LIMIT {
            problem(Kind::VersionLimit, format!("{here} has no parent and a limit"));
        }
        let holders = counts.get(id).copied().unwrap_or_default();
        if version.refs != holders {
            problem(
                Kind::VersionHolders,
                format!("{here} counts {} holders and has {holders}", version.refs),
            );
        }
    }
    for (id, version) in versions {
        let (count, xor) = children.get(id).copied().unwrap_or_default();
        if (version.children, version.children_xor) != (count, xor) {
            problem(
                Kind::VersionChildren,
                format!("version {} of family {} counts its children wrongly", id.0, family.0),
            );
        }
    }
    for version in counts.keys() {
        // Whoever stands at it reads nothing then. Between versions that become one keys are exchanged: of those nobody stands at.
        if versions.get(version).is_some_and(|record| record.key.0 > version.0) {
            problem(
                Kind::VersionKey,
                format!("version {} of family {} has a key that is younger than it", version.0, family.0),
            );
        }
        let implicit = versions.is_empty() && version.0 >= family.0;
        if !implicit && !versions.contains_key(version) {
            problem(
                Kind::VersionOfInode,
                format!("a holder of family {} has a version that does not exist", family.0),
            );
        }
    }
    if versions.is_empty() && holders.len() > 1 {
        let text = format!("family {} has {} holders and no versions", family.0, holders.len());
        problem(Kind::VersionHolders, text);
    }
    if !versions.is_empty() && holders.iter().any(|holder| !holder.has_versions) {
        problem(
            Kind::VersionOfInode,
            format!("a holder of family {} does not know of its versions", family.0),
        );
    }
}
