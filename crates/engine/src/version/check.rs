//! Checking: everything stored for a family against the rules, without trusting any of it.
//!
//! Reports in sentences and goes on, so that one problem does not hide the next. Changes nothing.

use std::collections::BTreeMap;

use varve_format::record::extent::{self, ExtentKind, family_prefix};
use varve_format::record::version::{Drain, NO_LIMIT, VersionRecord};
use varve_format::{BLOCK_BYTES, FamilyId, Run, TreeId, VersionId, VersionKey};

use super::reap::decode_version;
use super::{Holder, Read, Result};
use crate::problem::{Problem, ProblemKind as Kind};

/// The first family after `after` that has entries or version records. For walking all of them.
///
/// # Errors
/// Those of reading.
pub fn next_family(read: &dyn Read, after: Option<FamilyId>) -> Result<Option<FamilyId>> {
    let Some(first) = after.map_or(Some(0), |f| f.0.checked_add(1)) else { return Ok(None) };
    let mut next: Option<FamilyId> = None;
    for tree in [TreeId::EXTENTS, TreeId::VERSIONS] {
        read.scan(tree, &first.to_be_bytes(), &mut |key, _| {
            // A key too short to name a family is one of the tree's own problems.
            let Some(bytes) = key.first_chunk::<8>() else { return true };
            let family = FamilyId(u64::from_be_bytes(*bytes));
            next = Some(next.map_or(family, |n| n.min(family)));
            false
        })?;
    }
    Ok(next)
}

/// Walks everything stored for `family`: calls `each` with the place in the file and the blocks of every entry of data,
/// and adds to `problems` everything that breaks the rules (unknown key, overlap, crossing, version tree, count of holders).
/// `holder` is the one inode that points at the family, if any does. While the family is being deleted (its holder is
/// an orphan), give that holder. Returns the blocks of its reservations.
///
/// # Errors
/// Those of reading; what is read and cannot be decoded is a problem.
pub fn walk_family(
    read: &dyn Read,
    family: FamilyId,
    holder: Option<Holder>,
    each: &mut dyn FnMut(u64, Run),
    problems: &mut Vec<Problem>,
) -> Result<u64> {
    let versions = load_versions(read, family, problems)?;
    let idle = check_versions(family, &versions, holder, problems);
    let keys: BTreeMap<VersionKey, VersionId> = if versions.is_empty() {
        [(VersionKey(family.0), VersionId(family.0))].into()
    } else {
        versions.iter().map(|(id, v)| (v.key, *id)).collect()
    };
    if keys.len() < versions.len() {
        let text = format!("two versions of family {} have the same key", family.0);
        problems.push(Problem::new(Kind::VersionKey, text));
    }
    if holder.is_none() {
        problems.push(Problem::new(Kind::ExtentOwnerless, format!("family {} has no inode", family.0)));
    }
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
        let here = format!("the extent of family {} at {from:#x}", family.0);
        let mut problem = |kind, text| {
            let bytes = Some((from, from + u64::from(extent.len)));
            problems.push(Problem { bytes, ..Problem::new(kind, text) });
        };
        if !keys.contains_key(&key.version) {
            let text = format!("{here} belongs to version key {}, which nobody owns", key.version.0);
            problem(Kind::ExtentVersion, text);
        }
        if let Some((segment, version, end)) = last
            && (segment, version) == (key.segment, key.version)
            && key.offset < end
        {
            problem(Kind::ExtentOverlap, format!("{here} overlaps the one before it"));
        }
        if idle && extent.kind == ExtentKind::Hole {
            problem(Kind::ExtentIdle, format!("{here} is a hole that hides nothing"));
        }
        last = Some((key.segment, key.version, key.offset + extent.len));
        if extent.kind == ExtentKind::Reserved {
            reserved += u64::from(extent.len) / BLOCK_BYTES as u64;
        }
        if let Some(run) = extent.run() {
            each(from, run);
        }
        true
    })?;
    Ok(reserved)
}

fn load_versions(
    read: &dyn Read,
    family: FamilyId,
    problems: &mut Vec<Problem>,
) -> Result<BTreeMap<VersionId, VersionRecord>> {
    let prefix = family_prefix(family);
    let mut versions = BTreeMap::new();
    read.scan(TreeId::VERSIONS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        match decode_version(key, value) {
            Ok((_, id, version)) => drop(versions.insert(id, version)),
            Err(error) => {
                problems.push(Problem::new(Kind::VersionMalformed, format!("family {}: {error}", family.0)));
            }
        }
        true
    })?;
    Ok(versions)
}

/// Checks the tree of versions; says whether there is but one and the reaper has nothing to do.
fn check_versions(
    family: FamilyId,
    versions: &BTreeMap<VersionId, VersionRecord>,
    holder: Option<Holder>,
    problems: &mut Vec<Problem>,
) -> bool {
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
        if version.parent.is_none() && version.limit != NO_LIMIT {
            problem(Kind::VersionLimit, format!("{here} has no parent and a limit"));
        }
        let holders = u64::from(holder.is_some_and(|h| h.version == *id));
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
    if let Some(holder) = holder {
        let implicit = versions.is_empty() && holder.version.0 == family.0;
        if !implicit && !versions.contains_key(&holder.version) {
            problem(
                Kind::VersionOfInode,
                format!("the holder of family {} has a version that does not exist", family.0),
            );
        }
        if !versions.is_empty() && !holder.has_versions {
            problem(
                Kind::VersionOfInode,
                format!("the holder of family {} does not know of its versions", family.0),
            );
        }
    }
    versions.len() <= 1 && versions.values().all(|v| v.refs > 0)
}
