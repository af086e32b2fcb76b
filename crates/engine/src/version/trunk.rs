//! Long ways to the root, kept and shared: of a hundred thousand snapshots in a chain each way is the end of the next, so
//! one list serves them all, in memory and in time.
//!
//! A trunk is what the records say of a row of versions, nearest first, without limits. Invariants:
//! 1. It is true of every view from position `from` on: [`Trunks::note`] takes it away in the step in which a transaction
//!    that changes one of its versions becomes visible. More children or holders than one change nothing.
//! 2. It is kept only if nothing has changed in its family since the view it was read from.
//!
//! So a view older than `from` does not use it, and what is read from an old view is not kept for newer ones. Nothing but
//! time depends on a trunk being there.

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
/// Versions in all trunks: 20 MiB. All are dropped when there are more.
const STEPS_MAX: usize = 1 << 19;
/// Families are told apart by this many remainders when a change is noted.
const CHANGES: usize = 256;

/// A row of versions.
#[derive(Clone, Debug)]
pub(super) struct Trunk {
    /// Nearest first.
    pub(super) steps: Arc<[Step]>,
    /// Views from here on may use it.
    from: Lsn,
    /// Behind the last one that is [`State::Inner`].
    inner_end: usize,
    /// Behind the last one that is not [`State::Going`].
    staying_end: usize,
}

impl Trunk {
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
    families: HashMap<FamilyId, Trunk>,
    steps: usize,
    /// The last change of a family with this remainder.
    changed: [Lsn; CHANGES],
}

impl Default for Inner {
    fn default() -> Inner {
        Inner { families: HashMap::new(), steps: 0, changed: [Lsn(0); CHANGES] }
    }
}

impl Inner {
    fn remove(&mut self, family: FamilyId) {
        if let Some(trunk) = self.families.remove(&family) {
            self.steps -= trunk.steps.len();
        }
    }
}

impl Trunks {
    /// The trunk of a family for a view at `at`.
    pub(super) fn find(&self, family: FamilyId, at: Lsn) -> Option<Trunk> {
        self.0.lock().families.get(&family).filter(|trunk| trunk.from <= at).cloned()
    }

    /// Keeps what was read of a family from a view at `at`, unless it may have changed since.
    pub(super) fn keep(&self, family: FamilyId, at: Lsn, steps: &Arc<[Step]>) {
        let mut inner = self.0.lock();
        if inner.changed[remainder(family)] > at || steps.len() > STEPS_MAX {
            return;
        }
        inner.remove(family);
        if inner.steps + steps.len() > STEPS_MAX {
            (inner.families, inner.steps) = (HashMap::new(), 0);
        }
        let end = |is: &dyn Fn(&Step) -> bool| steps.iter().rposition(is).map_or(0, |last| last + 1);
        let trunk = Trunk {
            steps: steps.clone(),
            from: at,
            inner_end: end(&|step| step.state == State::Inner),
            staying_end: end(&|step| step.state != State::Going),
        };
        inner.steps += steps.len();
        inner.families.insert(family, trunk);
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
            let Some(trunk) = inner.families.get(&family) else { continue };
            let Some(at) = trunk.position(id) else { continue };
            let same = value.and_then(|value| VersionRecord::decode(value).ok()).is_some_and(|version| {
                let (step, parent) = (trunk.steps[at], trunk.steps.get(at + 1).map(|step| step.id));
                (version.key, state(&version), version.limit, version.parent)
                    == (step.key, step.state, NO_LIMIT, parent)
            });
            if !same && !planted(Planted::TrunkStays) {
                inner.remove(family);
            }
        }
    }
}

fn remainder(family: FamilyId) -> usize {
    (family.0 % CHANGES as u64) as usize
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
            value: record.encode().into(),
        };
        let step =
            |id, key| Step { id: VersionId(id), key: VersionKey(key), visible: NO_LIMIT, state: State::Held };
        let steps: Arc<[Step]> = [step(9, 9), step(5, 5)].into();
        trunks.note(&[put(9, &record(Some(5), 1))], Lsn(3));
        trunks.keep(family, Lsn(2), &steps);
        assert!(trunks.find(family, Lsn(9)).is_none(), "it is from a view before the change");
        trunks.keep(family, Lsn(3), &steps);
        assert!(trunks.find(family, Lsn(2)).is_none() && trunks.find(family, Lsn(3)).is_some());
        // One more holder, and a version beside it.
        trunks.note(&[put(9, &record(Some(5), 2)), put(12, &record(Some(9), 1))], Lsn(4));
        assert!(trunks.find(family, Lsn(4)).is_some_and(|trunk| trunk.position(VersionId(5)) == Some(1)));
        trunks.note(&[put(9, &record(Some(5), 0))], Lsn(5));
        assert!(trunks.find(family, Lsn(5)).is_none(), "nobody holds it any more");
    }
}
