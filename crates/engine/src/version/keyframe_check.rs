//! Checking keyframes: each against what the entries say, one after the other.

use std::collections::BTreeMap;

use varve_format::record::extent::family_prefix;
use varve_format::record::keyframe::{KeyframeKey, KeyframeRun};
use varve_format::{FamilyId, SEGMENT_BYTES, TreeId, VersionId, VersionKey};

use super::keyframe::{self, Pieces};
use super::path::Path;
use super::{Holder, Read, Result};
use crate::problem::{Problem, ProblemKind as Kind};

/// Paths that are kept: more than there are keyframes in a segment.
const PATHS_MAX: usize = 64;

/// Checks the keyframes of a family and, if nothing else is wrong (`sound`), compares those that can be used with what the
/// entries say. `ids`: the versions, by the keys of their entries.
pub(super) fn check_keyframes(
    read: &dyn Read,
    family: FamilyId,
    ids: &BTreeMap<VersionKey, VersionId>,
    sound: bool,
    problems: &mut Vec<Problem>,
) -> Result<()> {
    let prefix = family_prefix(family);
    let mut check = Check { read, family, ids, sound, paths: BTreeMap::new(), problems };
    let (mut pieces, mut failed) = (Pieces::default(), Ok(()));
    // The place of the one that is being read, and whether it is whole.
    let mut last: Option<(KeyframeKey, bool)> = None;
    read.scan(TreeId::KEYFRAMES, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        let key = match KeyframeKey::decode(key) {
            Ok(key) => key,
            Err(why) => {
                let text = format!("a keyframe of family {}: {why}", family.0);
                check.problems.push(Problem::new(Kind::KeyframeMalformed, text));
                return true;
            }
        };
        let place = KeyframeKey { piece: 0, ..key };
        let first = last.is_none_or(|(last, _)| last != place);
        if first {
            check.end(last.replace((place, false)));
        }
        let found = pieces.add(&key, value);
        let Some((_, whole)) = &mut last else { return false };
        match found {
            Some(_) if !*whole => {
                *whole = true;
                failed = check.compare(&place, &pieces.runs);
            }
            // One more behind the last.
            _ if *whole => {
                check.problem(&place, Kind::KeyframeMalformed, "has a piece too many");
            }
            _ => (),
        }
        failed.is_ok()
    })?;
    failed?;
    check.end(last);
    Ok(())
}

struct Check<'a> {
    read: &'a dyn Read,
    family: FamilyId,
    ids: &'a BTreeMap<VersionKey, VersionId>,
    sound: bool,
    paths: BTreeMap<VersionId, Path>,
    problems: &'a mut Vec<Problem>,
}

impl Check<'_> {
    fn problem(&mut self, place: &KeyframeKey, kind: Kind, what: &str) {
        let text = format!(
            "the keyframe of family {} in segment {} for version key {} {what}",
            place.family.0, place.segment, place.version.0
        );
        let from = place.segment * SEGMENT_BYTES;
        let bytes = Some((from, from + SEGMENT_BYTES));
        self.problems.push(Problem { bytes, ..Problem::new(kind, text) });
    }

    /// The end of a keyframe.
    fn end(&mut self, last: Option<(KeyframeKey, bool)>) {
        if let Some((place, false)) = last {
            self.problem(&place, Kind::KeyframeMalformed, "is not whole");
        }
    }

    fn compare(&mut self, place: &KeyframeKey, runs: &[KeyframeRun]) -> Result<()> {
        // One whose version has gone is read by nobody.
        let Some(id) = self.ids.get(&place.version).filter(|_| self.sound) else { return Ok(()) };
        if !self.paths.contains_key(id) {
            if self.paths.len() >= PATHS_MAX {
                self.paths.clear();
            }
            let holder = Holder { family: self.family, version: *id, has_versions: true };
            self.paths.insert(*id, Path::load(self.read, holder)?);
        }
        let Some(path) = self.paths.get(id).filter(|path| keyframe::usable(path, place.segment)) else {
            return Ok(());
        };
        if keyframe::seen(self.read, path, place.segment, true)?.as_deref() != Some(runs) {
            self.problem(place, Kind::KeyframeWrong, "shows something else than it sees");
        }
        Ok(())
    }
}
