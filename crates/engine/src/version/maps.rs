//! What the tests of all versioned maps stand on: trees in memory that count what is asked of them, and chance.

use std::cell::Cell;
use std::collections::BTreeMap;

use varve_format::record::version::VersionRecord;
use varve_format::{FamilyId, TreeId, VersionId};

use super::{Keyframes, Read, Result, Trunks};
use crate::numbers::split_mix;
use crate::transaction::Op;
use crate::{Lsn, Transaction};

/// So many entries in a segment are too many.
const MANY: u32 = 4;

/// Trees in memory. Counts descents and the entries met.
#[derive(Default, Clone)]
pub(crate) struct Maps {
    pub(crate) trees: BTreeMap<(u16, Vec<u8>), Vec<u8>>,
    pub(crate) met: Cell<u64>,
    pub(crate) descents: Cell<u64>,
    /// What is known of paths: of this moment only.
    pub(crate) known: Known,
}

pub(crate) struct Known {
    trunks: Trunks,
    position: u64,
    pub(crate) keyframes: Keyframes,
}

impl Default for Known {
    fn default() -> Known {
        let known = Known { trunks: Trunks::default(), position: 0, keyframes: Keyframes::new(MANY) };
        known.keyframes.begin(false);
        known
    }
}

/// A copy of the trees begins to know anew.
impl Clone for Known {
    fn clone(&self) -> Known {
        let known = Known::default();
        known.keyframes.begin(true);
        known
    }
}

impl Maps {
    /// To be called with every transaction that is applied.
    pub(crate) fn note(&mut self, tx: &Transaction) {
        self.known.position += 1;
        self.known.trunks.note(tx.ops(), Lsn(self.known.position));
        self.known.keyframes.note(tx.ops());
    }

    /// As the engine does it: a delete of nothing is nothing, and of several steps on a key the last one counts. What becomes of
    /// blocks is nobody's concern here.
    pub(crate) fn put_in(&mut self, tx: &Transaction) {
        self.note(tx);
        for op in tx.ops() {
            match op {
                Op::Put { tree, key, value } => {
                    self.trees.insert((tree.0, key.to_vec()), value.to_vec());
                }
                Op::Delete { tree, key } => {
                    self.trees.remove(&(tree.0, key.to_vec()));
                }
                Op::IdFloor(_) | Op::Place { .. } | Op::Free { .. } => {}
            }
        }
    }
}

impl Read for Maps {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.descents.set(self.descents.get() + 1);
        Ok(self.trees.get(&(tree.0, key.to_vec())).cloned())
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.descents.set(self.descents.get() + 1);
        for ((t, key), value) in self.trees.range((tree.0, from.to_vec())..) {
            if *t != tree.0 {
                break;
            }
            self.met.set(self.met.get() + 1);
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.descents.set(self.descents.get() + 1);
        let found = self.trees.range(..=(tree.0, at.to_vec())).next_back();
        Ok(found.filter(|((t, _), _)| *t == tree.0).map(|((_, k), v)| (k.clone(), v.clone())))
    }
    fn trunks(&self) -> Option<(&Trunks, Lsn)> {
        Some((&self.known.trunks, Lsn(self.known.position)))
    }
    fn latest(&self, family: FamilyId, id: VersionId) -> Option<VersionRecord> {
        self.known.trunks.latest(family, id, Lsn(self.known.position))
    }
    fn keyframes(&self) -> Option<&Keyframes> {
        Some(&self.known.keyframes)
    }
}

/// Whether a step of the reaper has ended the recheck of a version and marked the next one above.
pub(crate) fn hands_a_recheck_on(tx: &Transaction) -> bool {
    let (mut ended, mut next, mut records) = (false, false, false);
    for op in tx.ops() {
        match op {
            Op::Delete { tree: TreeId::REAP, key } => ended |= key.to_vec()[8] == 2,
            Op::Put { tree: TreeId::REAP, key, .. } => next |= key.to_vec()[8] == 2,
            Op::Put { tree, .. } | Op::Delete { tree, .. } => records |= *tree == TreeId::VERSIONS,
            Op::IdFloor(_) | Op::Place { .. } | Op::Free { .. } => {}
        }
    }
    ended && next && !records
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
