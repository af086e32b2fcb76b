//! Long ways to the root, kept and shared: of a hundred thousand snapshots in a chain each way is the end of the next, so
//! one list serves them all, in memory and in time.
//!
//! A family has a few of them, so that some long branches are known side by side; what they have in common is in each.
//!
//! A trunk is what the records say of a row of versions, nearest first, each with its own limit. Invariants:
//! 1. It is true of every view from position `from` on: [`Trunks::note`] takes it away in the step in which a transaction
//!    that changes one of its versions becomes visible. More children or holders than one change nothing.
//! 2. It is kept only if nothing has changed in its family since the view it was read from.
//! 3. It says of no step what is visible of it: that depends on where a way joins it, and is worked out there
//!    ([`Trunk::limits_on`]).
//!
//! So a view older than `from` does not use it, and what is read from an old view is not kept for newer ones. Nothing but
//! time depends on a trunk being there.
//!
//! Beside them, the records that were put last, as [`Trunks::note`] hears of them: who takes one snapshot after the other
//! changes the same record each time. One is true of every view from the position on at which it was put, because the next
//! change of it takes its place.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_format::record::version::{self, NO_LIMIT, VersionRecord};
use varve_format::{FamilyId, TreeId, VersionId};

use super::path::Step;
use super::pending::{State, state};
use super::{Planted, planted};
use crate::Lsn;
use crate::transaction::Op;

/// Versions read one by one before what was read is kept.
pub(super) const READ_MAX: usize = if cfg!(test) { 1 } else { 64 };
/// Versions and limits in all trunks: 16 MiB. All are dropped when there are more.
const STEPS_MAX: usize = 1 << 19;
/// Trunks of a family: the one used longest ago goes.
const BRANCHES_MAX: usize = 4;
/// Families are told apart by this many remainders when a change is noted.
const CHANGES: usize = 256;
/// Records that were put last, at most: one for each remainder.
const LATEST: usize = 32;

/// Behind a place in a row of versions nothing is visible from this byte on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limit {
    pub(super) place: usize,
    pub(super) end: u64,
}

/// A row of versions.
#[derive(Clone, Debug)]
pub(super) struct Trunk {
    /// Nearest first, all of each visible.
    pub(super) steps: Arc<[Step]>,
    /// Of those that have a limit, in order of their places.
    limits: Arc<[Limit]>,
    /// Views from here on may use it.
    from: Lsn,
    /// Behind the last one that is [`State::Inner`].
    inner_end: usize,
    /// Behind the last one that is not [`State::Going`].
    staying_end: usize,
}

impl Trunk {
    /// Of these versions, nearest first, and the limits that some of them have, as a view at `from` says.
    pub(super) fn new(mut steps: Vec<Step>, limits: Vec<Limit>, from: Lsn) -> Trunk {
        steps.iter_mut().for_each(|step| step.visible = NO_LIMIT);
        let end = |is: &dyn Fn(&Step) -> bool| steps.iter().rposition(is).map_or(0, |last| last + 1);
        Trunk {
            inner_end: end(&|step| step.state == State::Inner),
            staying_end: end(&|step| step.state != State::Going),
            steps: steps.into(),
            limits: limits.into(),
            from,
        }
    }
    /// Versions and limits in it.
    fn len(&self) -> usize {
        self.steps.len() + self.limits.len()
    }
    /// The limits of the versions from `at` on.
    pub(super) fn limits_from(&self, at: usize) -> &[Limit] {
        &self.limits[self.limits.partition_point(|limit| limit.place < at)..]
    }
    /// The limit of the version at `at`.
    fn limit(&self, at: usize) -> u64 {
        self.limits_from(at).first().filter(|limit| limit.place == at).map_or(NO_LIMIT, |limit| limit.end)
    }
    /// What ends what is visible on a way that joins it at `at`: the last of these in front of a version is the smallest limit of all
    /// from `at` up to that one. So each is smaller than the one before, those in between change nothing, and behind the byte 0 nothing
    /// does.
    pub(super) fn limits_on(&self, at: usize) -> Vec<Limit> {
        let mut falling: Vec<Limit> = Vec::new();
        for limit in self.limits_from(at) {
            let least = falling.last().map_or(NO_LIMIT, |last| last.end);
            if limit.end < least {
                falling.push(*limit);
            }
            if limit.end == 0 {
                break;
            }
        }
        falling
    }
    /// Whether it says the same of a version as this record, or nothing.
    fn agrees(&self, id: VersionId, record: Option<&VersionRecord>) -> bool {
        let Some(at) = self.position(id) else { return true };
        record.is_some_and(|version| {
            let (step, parent) = (self.steps[at], self.steps.get(at + 1).map(|step| step.id));
            (version.key, state(version), version.limit, version.parent)
                == (step.key, step.state, self.limit(at), parent)
        })
    }
    /// Where a version is on it.
    pub(super) fn position(&self, id: VersionId) -> Option<usize> {
        self.steps.binary_search_by(|step| id.cmp(&step.id)).ok()
    }
    /// Whether one from `at` on is [`State::Inner`].
    pub(super) fn has_inner(&self, at: usize) -> bool {
        at < self.inner_end
    }
    /// Whether all from `at` on are [`State::Going`].
    pub(super) fn only_going(&self, at: usize) -> bool {
        at >= self.staying_end
    }
}

/// The trunks of a store.
#[derive(Default, Debug)]
pub struct Trunks(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// Of each family those used last come first. None has no trunks.
    families: HashMap<FamilyId, Vec<Trunk>>,
    steps: usize,
    /// The last change of a family with this remainder.
    changed: [Lsn; CHANGES],
    /// Of each remainder of family and version the record that was put last, if it has not been deleted since.
    latest: [Option<Latest>; LATEST],
}

/// A record, and the transaction that put it.
#[derive(Clone, Copy, Debug)]
struct Latest {
    family: FamilyId,
    id: VersionId,
    from: Lsn,
    record: VersionRecord,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            families: HashMap::new(),
            steps: 0,
            changed: [Lsn(0); CHANGES],
            latest: [const { None }; LATEST],
        }
    }
}

impl Inner {
    /// Keeps those trunks of a family of which `stays` says so.
    fn retain(&mut self, family: FamilyId, stays: impl Fn(&Trunk) -> bool) {
        let Some(trunks) = self.families.get_mut(&family) else { return };
        trunks.retain(|trunk| {
            let stays = stays(trunk);
            self.steps -= if stays { 0 } else { trunk.len() };
            stays
        });
        if trunks.is_empty() {
            self.families.remove(&family);
        }
    }
}

impl Trunks {
    /// A trunk for a view at `at` with this version on it, and where. Any will do if there are several: from there on they are the same.
    pub(super) fn find(&self, family: FamilyId, id: VersionId, at: Lsn) -> Option<(Trunk, usize)> {
        let mut inner = self.0.lock();
        let trunks = inner.families.get_mut(&family)?;
        let place = |trunk: &Trunk| if trunk.from <= at { trunk.position(id) } else { None };
        let (number, place) = trunks.iter().enumerate().find_map(|(number, t)| Some((number, place(t)?)))?;
        trunks[..=number].rotate_right(1);
        Some((trunks[0].clone(), place))
    }

    /// The record of a version in a view at `at`, if it is one of those that were put last.
    pub(super) fn latest(&self, family: FamilyId, id: VersionId, at: Lsn) -> Option<VersionRecord> {
        let latest = self.0.lock().latest[place(family, id)]?;
        ((latest.family, latest.id) == (family, id) && latest.from <= at).then_some(latest.record)
    }

    /// Keeps what was read of a family, unless it may have changed since.
    pub(super) fn keep(&self, family: FamilyId, trunk: Trunk) {
        let mut inner = self.0.lock();
        if inner.changed[remainder(family)] > trunk.from || trunk.len() > STEPS_MAX {
            return;
        }
        // One whose first version is on the new one is all on it.
        inner.retain(family, |old| old.steps.first().is_some_and(|first| trunk.position(first.id).is_none()));
        let inner = &mut *inner;
        if let Some(trunks) = inner.families.get_mut(&family).filter(|trunks| trunks.len() == BRANCHES_MAX) {
            inner.steps -= trunks.pop().map_or(0, |last| last.len());
        }
        if inner.steps + trunk.len() > STEPS_MAX {
            (inner.families, inner.steps) = (HashMap::new(), 0);
        }
        inner.steps += trunk.len();
        inner.families.entry(family).or_default().insert(0, trunk);
    }

    /// To be told of every transaction, in the step in which it becomes visible, as the one at `lsn`.
    pub(crate) fn note(&self, ops: &[Op], lsn: Lsn) {
        let touched = ops.iter().filter_map(|op| match op {
            Op::Put { tree: TreeId::VERSIONS, key, value } => Some((key, Some(value))),
            Op::Delete { tree: TreeId::VERSIONS, key } => Some((key, None)),
            _ => None,
        });
        let mut inner = None;
        for (key, value) in touched {
            let inner = inner.get_or_insert_with(|| self.0.lock());
            let Ok((family, id)) = version::decode_key(key) else { continue };
            inner.changed[remainder(family)] = lsn;
            let record = value.and_then(|value| VersionRecord::decode(value).ok());
            inner.latest[place(family, id)] = record.map(|record| Latest { family, id, from: lsn, record });
            inner.retain(family, |trunk| trunk.agrees(id, record.as_ref()) || planted(Planted::TrunkStays));
        }
    }
}

fn remainder(family: FamilyId) -> usize {
    (family.0 % CHANGES as u64) as usize
}

fn place(family: FamilyId, id: VersionId) -> usize {
    // A file's family is its number, its first version's too: their sum, not their difference, tells files apart.
    (family.0.wrapping_mul(3).wrapping_add(id.0) % LATEST as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_format::VersionKey;

    /// Goal: a trunk serves the views it is true of, and no others. Method: keep one, look for it from older and newer
    /// views; change something beside it and on it; keep what was read before a change.
    #[test]
    fn serves_the_views_it_is_true_of() {
        let (family, trunks) = (FamilyId(5), Trunks::default());
        let record = |parent: Option<u64>, refs| VersionRecord {
            parent: parent.map(VersionId),
            refs,
            key: VersionKey(parent.map_or(5, |_| 9)),
            ..VersionRecord::implicit(family)
        };
        let put = |id: u64, record: &VersionRecord| Op::Put {
            tree: TreeId::VERSIONS,
            key: crate::key::Key::new(&version::encode_key(family, VersionId(id))),
            value: record.encode().as_slice().into(),
        };
        let step =
            |id, key| Step { id: VersionId(id), key: VersionKey(key), visible: NO_LIMIT, state: State::Held };
        let keep = |at| trunks.keep(family, Trunk::new(vec![step(9, 9), step(5, 5)], Vec::new(), Lsn(at)));
        trunks.note(&[put(9, &record(Some(5), 1))], Lsn(3));
        keep(2);
        let find = |at| trunks.find(family, VersionId(5), Lsn(at)).map(|(_, place)| place);
        assert!(find(9).is_none(), "it is from a view before the change");
        keep(3);
        assert!(find(2).is_none() && find(3).is_some());
        assert!(trunks.find(family, VersionId(7), Lsn(3)).is_none(), "it is not on it");
        // One more holder, and a version beside it.
        trunks.note(&[put(9, &record(Some(5), 2)), put(12, &record(Some(9), 1))], Lsn(4));
        assert_eq!(find(4), Some(1));
        trunks.note(&[put(9, &record(Some(5), 0))], Lsn(5));
        assert!(find(5).is_none(), "nobody holds it any more");
    }

    /// Goal: what limits the versions of a trunk have is known of each way that joins it. Method: rows of limits; where a way joins at
    /// each place, what is visible at each is compared with the least of the limits between; then one of them changes.
    #[test]
    fn knows_the_limits_of_its_versions() {
        let none = NO_LIMIT;
        for limits in [
            [none, none, none, none, none, none],
            [none, 7, none, 9, 7, 3],
            [5, 6, 4, 4, none, 2],
            [8, none, 0, none, 0, 4],
        ] {
            // In blocks.
            let limits = limits.map(|limit: u64| limit.saturating_mul(4096));
            let step = |at: usize| Step {
                id: VersionId(20 - at as u64),
                key: VersionKey(20 - at as u64),
                visible: 1,
                state: State::Held,
            };
            let given = limits.iter().enumerate().filter(|(_, end)| **end != none);
            let given = given.map(|(place, end)| Limit { place, end: *end }).collect();
            let trunk = Trunk::new((0..limits.len()).map(step).collect(), given, Lsn(1));
            for at in 0..limits.len() {
                let falling = trunk.limits_on(at);
                assert!(falling.windows(2).all(|pair| pair[0].end > pair[1].end), "{falling:?}");
                for place in at..limits.len() {
                    let ends = falling.iter().rev().find(|limit| limit.place < place);
                    let least = limits[at..place].iter().min().copied().unwrap_or(none);
                    assert_eq!(
                        ends.map_or(none, |limit| limit.end),
                        least,
                        "{limits:?} from {at} to {place}"
                    );
                }
            }
            for (at, limit) in limits.iter().enumerate() {
                for other in [none, 7 * 4096, 0] {
                    let (family, trunks) = (FamilyId(14), Trunks::default());
                    trunks.keep(family, trunk.clone());
                    let parent = (at + 1 < limits.len()).then(|| step(at + 1).id);
                    let (key, key_id) = (step(at).key, step(at).id);
                    let record =
                        VersionRecord { parent, key, limit: other, ..VersionRecord::implicit(family) };
                    let put = Op::Put {
                        tree: TreeId::VERSIONS,
                        key: crate::key::Key::new(&version::encode_key(family, step(at).id)),
                        value: record.encode().as_slice().into(),
                    };
                    trunks.note(&[put], Lsn(2));
                    assert_eq!(
                        trunks.find(family, key_id, Lsn(2)).is_some(),
                        other == *limit,
                        "{limits:?} at {at}"
                    );
                    let left = trunks.0.lock().steps;
                    assert_eq!(left, if other == *limit { trunk.len() } else { 0 });
                }
            }
        }
    }

    /// Goal: of a family's branches those used last are known, and a change takes away those that it concerns. Method: six branches of one
    /// root, kept and used in turn; one that is longer; changes of a branch and of what all have.
    #[test]
    fn keeps_the_branches_used_last() {
        let (family, trunks) = (FamilyId(5), Trunks::default());
        let step =
            |id| Step { id: VersionId(id), key: VersionKey(id), visible: NO_LIMIT, state: State::Held };
        let row = |ids: &[u64]| Trunk::new(ids.iter().map(|id| step(*id)).collect(), Vec::new(), Lsn(1));
        let known = |id| trunks.find(family, VersionId(id), Lsn(1)).is_some();
        let steps = || trunks.0.lock().steps;
        let put = |id: u64, parent: Option<u64>, key: u64| Op::Put {
            tree: TreeId::VERSIONS,
            key: crate::key::Key::new(&version::encode_key(family, VersionId(id))),
            value: VersionRecord {
                parent: parent.map(VersionId),
                key: VersionKey(key),
                ..VersionRecord::implicit(family)
            }
            .encode()
            .as_slice()
            .into(),
        };
        for branch in 10..14 {
            trunks.keep(family, row(&[branch, 5]));
        }
        assert!(known(10) && steps() == 8);
        trunks.keep(family, row(&[14, 5]));
        assert_eq!(
            [10, 11, 12, 13, 14].map(known),
            [true, false, true, true, true],
            "11 was used longest ago"
        );
        trunks.keep(family, row(&[20, 12, 5]));
        assert_eq!([10, 12, 13, 14, 20].map(known), [true; 5], "what is on a longer one is not kept twice");
        assert_eq!(steps(), 9);
        trunks.note(&[put(12, Some(5), 12), put(20, Some(5), 20)], Lsn(2));
        assert_eq!(
            [10, 12, 13, 14, 20].map(known),
            [true, false, true, true, false],
            "20 has another parent"
        );
        assert_eq!(steps(), 6);
        trunks.note(&[put(5, None, 4)], Lsn(3));
        assert_eq!([5, 10, 13, 14].map(known), [false; 4]);
        assert!(steps() == 0 && trunks.0.lock().families.is_empty());
    }

    /// Goal: what was put last is known to the views that see it and to no others, and not when it has gone. Method: put a
    /// version, again, delete it, put what is no record; look from views around each step; put many that share remainders.
    #[test]
    fn knows_what_was_put_last() {
        let (family, id, trunks) = (FamilyId(5), VersionId(9), Trunks::default());
        let record = |refs| VersionRecord { refs, ..VersionRecord::implicit(family) };
        let key = |id: VersionId| crate::key::Key::new(&version::encode_key(family, id));
        let put = |id, value: &[u8]| Op::Put { tree: TreeId::VERSIONS, key: key(id), value: value.into() };
        let refs = |at| trunks.latest(family, id, Lsn(at)).map(|record| record.refs);
        trunks.note(&[put(id, &record(1).encode())], Lsn(3));
        assert_eq!((refs(2), refs(3), refs(8)), (None, Some(1), Some(1)));
        assert!(trunks.latest(family, VersionId(10), Lsn(8)).is_none());
        trunks.note(&[put(id, &record(2).encode()), put(id, &record(3).encode())], Lsn(6));
        assert_eq!((refs(5), refs(6)), (None, Some(3)), "a view before the change does not see it");
        trunks.note(&[Op::Delete { tree: TreeId::VERSIONS, key: key(id) }], Lsn(7));
        assert_eq!(refs(9), None, "it has gone");
        trunks.note(&[put(id, &record(4).encode())], Lsn(10));
        trunks.note(&[put(id, &[1])], Lsn(11));
        assert_eq!(refs(12), None, "whoever reads it hears that it is damaged");
        for n in 9..9 + 3 * LATEST as u64 {
            trunks.note(&[put(VersionId(n), &record(n).encode())], Lsn(n + 20));
            let known = |n| trunks.latest(family, VersionId(n), Lsn(1000)).map(|record| record.refs);
            assert_eq!(known(n), Some(n));
            assert!((9..n).all(|n| known(n).is_none_or(|refs| refs == n)));
        }
    }
}
