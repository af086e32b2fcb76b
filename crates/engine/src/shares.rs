//! Blocks that more than one extent names: from what a transaction says of extents to what becomes of blocks.
//!
//! Whoever cuts an extent away says that one extent less names its blocks ([`crate::Transaction::free`]), whoever puts an
//! extent of blocks that others name says so ([`crate::Transaction::share`]). Neither knows of the others: here all that a
//! transaction says of a block is added up, compared with the *shares* tree, and becomes frees of blocks that nobody names
//! any more and new counts for the rest. That happens under the apply mutex, so that transactions of different files need
//! no lock between them, and the log holds only the result. Where the tree is empty and nothing is shared there is
//! nothing to do, and pools that never shared a range pay one look at the root.
//!
//! Invariants: counts are kept by runs, which an edit splits and joins only where it touches them, so that writing to a
//! block of a large shared run costs one descent and at most three entries. Runs do not overlap.

use std::collections::BTreeMap;

use varve_format::record::shares::{SharedRun, shares_key};
use varve_format::{Corrupt, PoolAddr, Run, TreeId};

use crate::key::Key;
use crate::transaction::Op;
use crate::version::planting::planting;

/// Most blocks that one free names.
const FREE_BLOCKS_MAX: u64 = 1 << 20;

/// Why it cannot be told what becomes of blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unsettled<E> {
    /// The tree could not be read.
    Read(E),
    /// These are let go of more often than they are named.
    Blocks(Run),
}

/// What a transaction with `ops` that shares `shared` does to blocks: `ops` with other frees, and changes of the shares
/// tree. `load` gives the entries that overlap or touch a range of blocks (first, one past the last), ascending.
pub(crate) fn settle<E>(
    ops: &[Op],
    shared: &[Run],
    load: &mut dyn FnMut(u64, u64) -> Result<Vec<SharedRun>, E>,
) -> Result<Vec<Op>, Unsettled<E>> {
    let mut counts = Counts::default();
    let mut freed: Vec<Run> = Vec::new();
    for Span { from, to, delta } in spans(ops, shared) {
        counts.load(load(from, to).map_err(Unsettled::Read)?);
        for (first, end, more) in counts.take(from, to) {
            let more = if delta < 0 && planted(Planted::NobodyAsked) { 0 } else { more };
            // One extent names a block that has no entry.
            let delta = if more > 0 && planted(Planted::CountStays) { delta.max(0) } else { delta };
            match i128::from(more) + i128::from(delta) {
                0 => (),
                now @ 1.. => counts.put(first, end, u64::try_from(now).unwrap_or(u64::MAX)),
                -1 => free(&mut freed, first, end),
                _ => return Err(Unsettled::Blocks(run(first, end))),
            }
        }
    }
    let kept = ops.iter().filter(|op| !matches!(op, Op::Free { .. })).cloned();
    let mut out: Vec<Op> = kept.chain(freed.into_iter().map(|run| Op::Free { run })).collect();
    counts.difference(&mut out);
    Ok(out)
}

/// The entries that overlap or touch [`from`, `to`): `before` is the last one that begins before `from`, `scan` calls its
/// argument with those that begin later until it returns false.
pub(crate) fn touching<E>(
    from: u64,
    to: u64,
    before: Option<(Vec<u8>, Vec<u8>)>,
    scan: impl FnOnce(&[u8], &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), E>,
) -> Result<Result<Vec<SharedRun>, Corrupt>, E> {
    let (mut found, mut wrong) = (Vec::new(), None);
    match before.map(|(key, value)| SharedRun::decode(&key, &value)) {
        Some(Ok(run)) if run.end() >= from => found.push(run),
        Some(Err(why)) => return Ok(Err(why)),
        _ => (),
    }
    scan(&shares_key(from), &mut |key, value| {
        match SharedRun::decode(key, value) {
            Ok(run) if run.first <= to => found.push(run),
            Ok(_) => return false,
            Err(why) => wrong = Some(why),
        }
        wrong.is_none()
    })?;
    Ok(wrong.map_or(Ok(found), Err))
}

/// Blocks of which equally many extents come or go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    from: u64,
    to: u64,
    delta: i64,
}

/// All that a transaction says of blocks, added up: ascending, where something is left.
fn spans(ops: &[Op], shared: &[Run]) -> Vec<Span> {
    let mut steps: BTreeMap<u64, i64> = BTreeMap::new();
    let mut step = |run: &Run, by: i64| {
        let first = run.addr.block();
        *steps.entry(first).or_default() += by;
        *steps.entry(first + u64::from(run.blocks)).or_default() -= by;
    };
    for op in ops {
        if let Op::Free { run } = op {
            step(run, -1);
        }
    }
    shared.iter().for_each(|run| step(run, 1));
    let (mut out, mut from, mut delta) = (Vec::new(), 0, 0);
    for (at, by) in steps.into_iter().filter(|(_, by)| *by != 0) {
        if delta != 0 {
            out.push(Span { from, to: at, delta });
        }
        (from, delta) = (at, delta + by);
    }
    out
}

/// The part of the tree that a transaction touches, as it is and as it shall be.
#[derive(Default)]
struct Counts {
    before: BTreeMap<u64, SharedRun>,
    after: BTreeMap<u64, SharedRun>,
}

impl Counts {
    /// Takes in what the tree has; what has been taken in before may have changed since.
    fn load(&mut self, runs: Vec<SharedRun>) {
        for run in runs {
            if self.before.insert(run.first, run).is_none() {
                self.after.insert(run.first, run);
            }
        }
    }

    /// Cuts [`from`, `to`) out; gives its pieces (first block, one past the last, count), without gaps.
    fn take(&mut self, from: u64, to: u64) -> Vec<(u64, u64, u64)> {
        let before = self.after.range(..from).next_back().map(|(_, run)| *run).filter(|run| run.end() > from);
        let inside = self.after.range(from..to).map(|(_, run)| *run);
        let overlapping: Vec<SharedRun> = before.into_iter().chain(inside).collect();
        let (mut at, mut pieces) = (from, Vec::with_capacity(2 * overlapping.len() + 1));
        for run in overlapping {
            self.after.remove(&run.first);
            if run.first < from {
                self.put(run.first, from, run.more);
            }
            // Entries of a damaged tree may overlap.
            let (first, end) = (run.first.max(at), run.end().min(to));
            if at < first {
                pieces.push((at, first, 0));
            }
            if first < end {
                pieces.push((first, end, run.more));
            }
            if run.end() > to {
                self.put(to, run.end(), run.more);
            }
            at = at.max(end);
        }
        if at < to {
            pieces.push((at, to, 0));
        }
        pieces
    }

    fn put(&mut self, first: u64, end: u64, more: u64) {
        let (mut first, most) = (first, u64::from(u32::MAX));
        while first < end {
            let blocks = (end - first).min(most) as u32;
            self.after.insert(first, SharedRun { first, blocks, more });
            first += u64::from(blocks);
        }
    }

    /// Joins neighbours that say the same, and adds what has changed to `out`.
    fn difference(mut self, out: &mut Vec<Op>) {
        let mut joined: Vec<SharedRun> = Vec::with_capacity(self.after.len());
        for run in std::mem::take(&mut self.after).into_values() {
            match joined.last_mut() {
                Some(last) if last.end() == run.first && last.more == run.more => {
                    match last.blocks.checked_add(run.blocks) {
                        Some(blocks) => last.blocks = blocks,
                        None => joined.push(run),
                    }
                }
                _ => joined.push(run),
            }
        }
        let tree = TreeId::SHARES;
        for run in joined {
            if self.before.remove(&run.first) != Some(run) {
                out.push(Op::Put { tree, key: Key::new(&run.key()), value: run.value().as_slice().into() });
            }
        }
        for run in self.before.into_values() {
            out.push(Op::Delete { tree, key: Key::new(&run.key()) });
        }
    }
}

fn run(first: u64, end: u64) -> Run {
    Run { addr: PoolAddr::from_block(first), blocks: (end - first).min(u64::from(u32::MAX)) as u32 }
}

/// Adds blocks to those that are freed.
fn free(freed: &mut Vec<Run>, mut first: u64, end: u64) {
    if let Some(last) = freed.last_mut()
        && last.addr.block() + u64::from(last.blocks) == first
        && u64::from(last.blocks) + (end - first) <= FREE_BLOCKS_MAX
    {
        last.blocks += (end - first) as u32;
        return;
    }
    while first < end {
        let upto = end.min(first + FREE_BLOCKS_MAX);
        freed.push(run(first, upto));
        first = upto;
    }
}

/// Errors that tests plant, to see themselves fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// A count is never lowered.
    CountStays,
    /// Who lets go of blocks does not ask whether others name them.
    NobodyAsked,
}

planting!(Planted: CountStays);

/// Plants these errors in this thread.
#[cfg(test)]
pub(crate) fn plant(errors: &'static [Planted]) {
    PLANTED.set(errors);
}

#[cfg(test)]
mod tests;
