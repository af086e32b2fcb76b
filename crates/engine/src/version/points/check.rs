//! Checking: everything stored for a namespace against the rules, without trusting any of it.
//!
//! Reports in sentences and goes on, so that one problem does not hide the next. Changes nothing.

use std::collections::BTreeSet;

use varve_format::record::held::{decode_held_key, held_key};
use varve_format::{FamilyId, TreeId, VersionId, VersionKey};

use super::super::check::{check_versions, check_work, load_versions};
use super::super::family::{Blocks, Family, Own};
use super::super::{Holder, Read, Result};
use super::reap::own_of;
use super::{TREES, entry_key, is_listed, place_of, split};
use crate::problem::{Problem, ProblemKind as Kind};

/// Hears of a value that is stored: the tree, the prefix, the value.
pub type EachLive<'a> = &'a mut dyn FnMut(TreeId, &[u8], &[u8]);

/// Walks everything stored for the namespace `family`, at which `holders` stand (each version with the number of them):
/// calls `each_live` with every value of a version that exists, seen or still to be reaped (what a value refers to is
/// used until then), and adds to `problems` everything that breaks the rules: keys, version tree, counts of holders,
/// index, work for the reaper; and, if there is none, entries that nobody sees and whiteouts that hide nothing.
///
/// # Errors
/// Those of reading; what is read and cannot be decoded is a problem.
pub fn walk_points(
    read: &dyn Read,
    family: FamilyId,
    holders: &[(VersionId, u64)],
    problems: &mut Vec<Problem>,
    each_live: EachLive<'_>,
) -> Result<()> {
    let before = problems.len();
    let versions = load_versions(read, family, problems)?;
    let holders: Vec<Holder> = holders
        .iter()
        .flat_map(|(version, count)| {
            (0..*count).map(|_| Holder { family, version: *version, has_versions: true })
        })
        .collect();
    check_versions(family, &versions, &holders, problems);
    let idle = check_work(read, family, &TREES, &versions, problems)?;
    let keys: BTreeSet<VersionKey> = match versions.is_empty() {
        true => [VersionKey(family.0)].into(),
        false => versions.values().map(|version| version.key).collect(),
    };
    if keys.len() < versions.len() {
        let text = format!("two versions of family {} have the same key", family.0);
        problems.push(Problem::new(Kind::VersionKey, text));
    }
    // With damage in its versions nothing can be said about who sees what.
    let sound = idle && problems.len() == before;
    let versions = if sound { Family::of(family, versions).ok() } else { None };
    let prefix = family.0.to_be_bytes();
    for tree in TREES {
        let mut walk =
            Walk { family, tree, keys: &keys, versions: versions.as_ref(), at: Vec::new(), own: Vec::new() };
        let mut failed = None;
        read.scan(tree, &prefix, &mut |key, value| {
            if !key.starts_with(&prefix) {
                return false;
            }
            match walk.entry(read, key, value, problems, each_live) {
                Ok(()) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        walk.end_of_prefix(problems);
    }
    check_index(read, family, problems)
}

/// The walk through one tree.
struct Walk<'a> {
    family: FamilyId,
    tree: TreeId,
    keys: &'a BTreeSet<VersionKey>,
    /// Given when nothing is left to be reaped.
    versions: Option<&'a Family>,
    /// The prefix, and what versions have there.
    at: Vec<u8>,
    own: Vec<(VersionKey, Own)>,
}

impl Walk<'_> {
    fn entry(
        &mut self,
        read: &dyn Read,
        key: &[u8],
        value: &[u8],
        problems: &mut Vec<Problem>,
        each_live: EachLive<'_>,
    ) -> Result<()> {
        let Ok((prefix, version)) = split(self.tree, key) else {
            let text =
                format!("a key of family {} in {} has {} bytes", self.family.0, self.tree.name(), key.len());
            problems.push(Problem::new(Kind::KeyMalformed, text));
            return Ok(());
        };
        if prefix != self.at {
            self.end_of_prefix(problems);
            self.at = prefix.to_vec();
        }
        if !self.keys.contains(&version) {
            let text = format!("{} belongs to version key {}, which nobody owns", self.here(), version.0);
            problems.push(Problem::new(Kind::EntryForeign, text));
            return Ok(());
        }
        if is_listed(self.family, version) {
            let held = held_key(self.family, version, self.tree, place_of(prefix));
            if read.get(TreeId::HELD, &held)?.is_none() {
                let text = format!("{} is not in the index of version key {}", self.here(), version.0);
                problems.push(Problem::new(Kind::HeldMissing, text));
            }
        }
        self.own.push((version, own_of(value)));
        if !value.is_empty() {
            each_live(self.tree, prefix, value);
        }
        Ok(())
    }

    /// Compares what there is at a prefix with what somebody sees.
    fn end_of_prefix(&mut self, problems: &mut Vec<Problem>) {
        let own = std::mem::take(&mut self.own);
        let whiteouts = own.iter().any(|(_, own)| own.something == Blocks::NONE);
        // One alone is hidden by nothing.
        let Some(versions) = self.versions.filter(|_| own.len() > 1 || whiteouts) else { return };
        let own = own.into_iter().collect();
        for (version, stays) in versions.stays(&own, &|_| Blocks::ALL) {
            if stays == own[&version] {
                continue;
            }
            let (kind, what) = match own[&version].something == Blocks::NONE {
                true => (Kind::WhiteoutIdle, "is a whiteout that hides nothing"),
                false => (Kind::EntryUnseen, "is seen by nobody"),
            };
            problems.push(Problem::new(kind, format!("{}, version key {}, {what}", self.here(), version.0)));
        }
    }

    fn here(&self) -> String {
        let mut place = String::new();
        for byte in place_of(&self.at) {
            place += &format!("{byte:02x}");
        }
        format!("the entry of family {} at {place} of {}", self.family.0, self.tree.name())
    }
}

/// Looks for what the index names and is not there.
fn check_index(read: &dyn Read, family: FamilyId, problems: &mut Vec<Problem>) -> Result<()> {
    let (prefix, mut failed) = (family.0.to_be_bytes(), None);
    read.scan(TreeId::HELD, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        let decoded =
            decode_held_key(key).ok().filter(|(_, _, tree, _)| value.is_empty() && TREES.contains(tree));
        let Some((_, version, tree, place)) = decoded else {
            let text = format!("an entry in the index of family {} is not one", family.0);
            problems.push(Problem::new(Kind::HeldMalformed, text));
            return true;
        };
        match read.get(tree, &entry_key(&[&prefix, place].concat(), version)) {
            Ok(Some(_)) => (),
            Ok(None) => {
                let text = format!(
                    "the index of family {} names a place in {} where version key {} has nothing",
                    family.0,
                    tree.name(),
                    version.0
                );
                problems.push(Problem::new(Kind::HeldStray, text));
            }
            Err(error) => failed = Some(error),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)
}
