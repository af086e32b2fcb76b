//! The shares tree against the extents there are: how many name each block, counted and said.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use varve_format::record::shares::SharedRun;
use varve_format::{PoolAddr, Run, TreeId};

use super::{BLOCK, Result, Walk};
use crate::problem::{Problem, ProblemKind as Kind};
use crate::store::View;

impl Walk<'_> {
    /// Calls `each` with blocks that equally many of `runs` name: ascending, without overlaps. Compares their numbers with
    /// the shares tree.
    pub(super) fn count_names(&mut self, runs: &mut [Run], view: &View) -> Result<Vec<Run>> {
        runs.sort_unstable();
        let mut distinct = Vec::with_capacity(runs.len());
        // What more than one names, and how often it is said to be, as steps at the blocks where they change.
        let mut steps: BTreeMap<u64, (i128, i128)> = BTreeMap::new();
        each_named(runs, &mut |first, end, named| {
            distinct.push(Run { addr: PoolAddr::from_block(first), blocks: (end - first) as u32 });
            if named > 1 {
                let more = i128::from(named - 1);
                steps.entry(first).or_default().0 += more;
                steps.entry(end).or_default().0 -= more;
            }
        });
        let (mut last_end, mut wrong) = (0, Vec::new());
        view.scan(TreeId::SHARES, &[], &mut |key, value| {
            match SharedRun::decode(key, value) {
                Err(why) => wrong.push(format!("an entry of the shares tree: {why}")),
                Ok(run) if run.first < last_end => {
                    wrong.push(format!("shared blocks at {:#x} are counted twice", run.first * BLOCK));
                }
                Ok(run) => {
                    last_end = run.end();
                    steps.entry(run.first).or_default().1 += i128::from(run.more);
                    steps.entry(run.end()).or_default().1 -= i128::from(run.more);
                }
            }
            true
        })?;
        for text in wrong {
            self.problem(Kind::SharesMalformed, text);
        }
        // What is lost with a node is not damage of its own.
        let lost = |tree| self.lost.iter().any(|keys| keys.tree == tree);
        let (no_counts, no_names) = (lost(TreeId::SHARES), lost(TreeId::EXTENTS));
        let (mut named, mut counted, mut from) = (0, 0, 0);
        for (at, (named_by, counted_by)) in steps {
            let kind = match named.cmp(&counted) {
                std::cmp::Ordering::Greater if !no_counts => Some(Kind::SharesMissing),
                std::cmp::Ordering::Less if !no_names => Some(Kind::SharesStray),
                _ => None,
            };
            if let Some(kind) = kind {
                let (addr, blocks) = (from * BLOCK, at - from);
                let text = format!(
                    "{blocks} blocks at {addr:#x}: {named} extents more than one name them, {counted} are counted"
                );
                let problem = Problem::new(kind, text);
                self.problems.add(Problem { blocks: Some((addr, blocks * BLOCK)), ..problem });
            }
            (named, counted, from) = (named + named_by, counted + counted_by, at);
        }
        Ok(distinct)
    }
}

/// Calls `each` with (first block, one past the last, how many of the runs name them), ascending. `runs` are sorted.
fn each_named(runs: &[Run], each: &mut dyn FnMut(u64, u64, u64)) {
    // Ends of the runs that have begun.
    let mut ends: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut at = 0;
    let mut upto = |limit: u64, ends: &mut BinaryHeap<Reverse<u64>>| {
        while let Some(Reverse(end)) = ends.peek().copied() {
            let stop = end.min(limit);
            if at < stop {
                each(at, stop, ends.len() as u64);
                at = stop;
            }
            if end > limit {
                break;
            }
            ends.pop();
        }
        at = at.max(limit);
    };
    for run in runs {
        let first = run.addr.block();
        upto(first, &mut ends);
        ends.push(Reverse(first.saturating_add(u64::from(run.blocks))));
    }
    upto(u64::MAX, &mut ends);
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what overlapping runs name is counted a block. Method: three runs by hand.
    #[test]
    fn runs_are_counted() {
        let run = |first, blocks| Run { addr: PoolAddr::from_block(first), blocks };
        let mut found = Vec::new();
        each_named(&[run(2, 8), run(4, 2), run(5, 3), run(20, 1)], &mut |a, b, n| found.push((a, b, n)));
        assert_eq!(found, [(2, 4, 1), (4, 5, 2), (5, 6, 3), (6, 8, 2), (8, 10, 1), (20, 21, 1)]);
    }
}
