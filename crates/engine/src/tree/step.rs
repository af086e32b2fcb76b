//! The changes of trees that a transaction makes, in the order of trees and keys: then neighbouring keys share one descent.
//!
//! Invariants: at most one step for a key. A step whose effect is nothing is not among those that are applied: the nodes on
//! its way have not been counted.

use std::cmp::Ordering;

use varve_format::TreeId;

use crate::key::{Key, compare};

/// What happens at a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// This value is there from now on.
    Put(&'a [u8]),
    /// What is there goes.
    Delete,
    /// Nothing: there was nothing to delete.
    Nothing,
}

/// One change of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Of which tree.
    pub tree: TreeId,
    /// Key.
    pub key: &'a [u8],
    /// What happens there.
    pub change: Change<'a>,
}

impl Step<'_> {
    #[inline]
    fn order(&self, other: &Step<'_>) -> Ordering {
        self.tree.cmp(&other.tree).then_with(|| compare(self.key, other.key))
    }
}

/// The memory of a list of steps, for another one.
pub fn recycled<'new>(mut steps: Vec<Step<'_>>) -> Vec<Step<'new>> {
    steps.clear();
    // There is nothing to convert: what is collected lies where it lay.
    steps.into_iter().map(|_| unreachable!("there are no steps")).collect()
}

/// So many are sorted by putting one after the other in its place.
const FEW: usize = 12;

/// Sorts steps by tree and key. Of several on one key the last stays.
pub fn sort(steps: &mut Vec<Step<'_>>) {
    if steps.len() < 2 {
        return;
    }
    if steps.len() <= FEW {
        // The steps of an ordinary verb. Nothing is asked for that it does not need.
        let mut twice = false;
        for at in 1..steps.len() {
            let (step, mut to) = (steps[at], at);
            while to > 0 {
                match steps[to - 1].order(&step) {
                    Ordering::Less => break,
                    Ordering::Equal => {
                        twice = true;
                        break;
                    }
                    Ordering::Greater => {
                        steps[to] = steps[to - 1];
                        to -= 1;
                    }
                }
            }
            steps[to] = step;
        }
        if !twice {
            return;
        }
    } else {
        // First by tree: what is done in one tree is nearly sorted as a rule, what is done in several in turn is not.
        steps.sort_by_key(|step| step.tree);
        steps.chunk_by_mut(|a, b| a.tree == b.tree).for_each(|of_tree| {
            of_tree.sort_by(|a, b| compare(a.key, b.key));
        });
    }
    steps.dedup_by(|next, kept| {
        let same = kept.order(next).is_eq();
        if same {
            *kept = *next;
        }
        same
    });
}

/// How many of `steps`, which are sorted, have a key in front of `bound`; the first one does. `None`: all have.
#[inline]
pub(super) fn in_front(steps: &[Step<'_>], bound: Option<&Key>) -> usize {
    match bound {
        Some(bound) if steps.len() > 1 => search(steps, bound),
        _ => steps.len(),
    }
}

fn search(steps: &[Step<'_>], bound: &Key) -> usize {
    let before = |step: &Step<'_>| compare(step.key, bound).is_lt();
    // Nearly always a few: a search that begins at the front.
    let mut reach = 1;
    while reach < steps.len() && before(&steps[reach]) {
        reach *= 2;
    }
    let low = reach / 2 + 1;
    low + steps[low..reach.min(steps.len())].partition_point(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Goal: a list of steps is made where another one was.
    #[test]
    fn memory_is_used_again() {
        let key = [1];
        let steps = vec![Step { tree: TreeId::NAMES, key: &key, change: Change::Delete }; 100];
        let at = steps.as_ptr().addr();
        let other: Vec<Step<'static>> = recycled(steps);
        assert_eq!((other.as_ptr().addr(), other.len(), other.capacity()), (at, 0, 100));
    }

    proptest! {
        // Goal: sorting keeps the last step of each key, and what lies in front of a bound is counted right. Method: few keys
        // of few trees, beside a map; every bound.
        #[test]
        fn sorts_and_counts(all in proptest::collection::vec((1..3_u16, 0..12_u8, any::<Option<u8>>()), 0..60)) {
            let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
            let bytes = |byte: u8| &bytes[usize::from(byte)][..];
            let change = |value: Option<u8>| value.map_or(Change::Delete, |value| Change::Put(bytes(value)));
            let mut steps: Vec<Step<'_>> = all
                .iter()
                .map(|(tree, key, value)| Step { tree: TreeId(*tree), key: bytes(*key), change: change(*value) })
                .collect();
            sort(&mut steps);
            let model: std::collections::BTreeMap<_, _> =
                all.iter().map(|(tree, key, value)| ((TreeId(*tree), bytes(*key)), change(*value))).collect();
            let sorted: Vec<_> = steps.iter().map(|step| ((step.tree, step.key), step.change)).collect();
            prop_assert_eq!(sorted, model.into_iter().collect::<Vec<_>>());
            for of_tree in steps.chunk_by(|a, b| a.tree == b.tree) {
                prop_assert_eq!(in_front(of_tree, None), of_tree.len());
                for bound in of_tree[0].key[0] + 1..14 {
                    let want = of_tree.iter().filter(|step| step.key < bytes(bound)).count();
                    prop_assert_eq!(in_front(of_tree, Some(&Key::new(bytes(bound)))), want);
                }
            }
        }
    }
}
