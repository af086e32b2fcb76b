//! Who is still reading what was freed: blocks freed at some moment are reused only when every read that began
//! before has ended.
//!
//! Pages of the arrays have readers of their own. Pictures show nodes and data, and may live for hours; where a block's checksum is
//! is looked up anew for each read, so that an old page is wanted for the moment of one read of it alone. The room for pages is kept
//! twice (`fixed`), not once more for every checkpoint that a picture outlives.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_format::Run;

/// Those of nodes and data, and those of pages.
#[derive(Default)]
pub struct Readers {
    line: Line,
    pages: Line,
}

/// Readers by the epoch in which they began, and freed runs by the epoch in which they were retired.
#[derive(Default)]
struct Line {
    inner: Mutex<Inner>,
    /// Told when a reader leaves, if anybody waits.
    left: Condvar,
}

/// A read under way.
pub struct Reading<'r> {
    line: &'r Line,
    epoch: u64,
}

impl<'r> Reading<'r> {
    /// It begins now; call this under the mutex that showed what is going to be read.
    pub fn begin(readers: &'r Readers) -> Reading<'r> {
        Reading { line: &readers.line, epoch: readers.line.enter() }
    }

    /// The same of a page of an array. Whoever reads one waits for nothing but the device: a checkpoint may wait for it.
    pub fn of_page(readers: &'r Readers) -> Reading<'r> {
        Reading { line: &readers.pages, epoch: readers.pages.enter() }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.line.leave(self.epoch);
    }
}

#[derive(Default)]
struct Inner {
    epoch: u64,
    /// How many began in each epoch and have not ended, oldest first; neither end is 0. Every lookup passes here:
    /// a queue, because most begin and end in the newest epoch and it needs no memory for that.
    active: VecDeque<(u64, usize)>,
    retired: VecDeque<(u64, Vec<Run>)>,
    /// Blocks of these.
    retired_blocks: u64,
    waiting: usize,
}

impl Inner {
    /// Whether what has been retired in `epoch` may be given back.
    fn is_over(&self, epoch: u64) -> bool {
        self.active.front().is_none_or(|(oldest, _)| epoch < *oldest)
    }
}

impl Readers {
    /// A read of nodes or data begins; pass what comes back to [`Readers::leave`].
    pub fn enter(&self) -> u64 {
        self.line.enter()
    }
    /// It has ended.
    pub fn leave(&self, epoch: u64) {
        self.line.leave(epoch);
    }
    /// Waits until all nodes and data that have been retired by now may be given back, or `patience` ends. Whether anything was kept.
    pub fn wait(&self, patience: Duration) -> bool {
        self.line.wait(patience)
    }
    /// The same of pages.
    pub fn wait_for_pages(&self, patience: Duration) -> bool {
        self.pages.wait(patience)
    }
    /// Whether somebody reads for whose sake what has been retired is kept: what is retired now is kept as long.
    pub fn keep_back(&self) -> bool {
        self.line.keep_back()
    }
    /// These blocks of nodes or data are free as soon as every read that has begun by now has ended.
    pub fn retire(&self, runs: Vec<Run>) {
        self.line.retire(runs);
    }
    /// These blocks of pages are free as soon as every read of a page that has begun by now has ended.
    pub fn retire_pages(&self, runs: Vec<Run>) {
        self.pages.retire(runs);
    }
    /// Blocks that have been retired and not been given back: somebody reads there, or will be found to have ended.
    pub fn retired_blocks(&self) -> u64 {
        self.line.retired_blocks() + self.pages.retired_blocks()
    }
    /// Runs that nobody reads any more.
    pub fn drain(&self) -> Vec<Run> {
        let mut runs = self.line.drain();
        runs.extend(self.pages.drain());
        runs
    }
}

impl Line {
    /// A read begins; pass what comes back to [`Line::leave`].
    fn enter(&self) -> u64 {
        let mut inner = self.inner.lock();
        let epoch = inner.epoch;
        match inner.active.back_mut() {
            Some((newest, count)) if *newest == epoch => *count += 1,
            _ => inner.active.push_back((epoch, 1)),
        }
        epoch
    }
    /// It has ended.
    fn leave(&self, epoch: u64) {
        let mut inner = self.inner.lock();
        let (_, count) = inner
            .active
            .iter_mut()
            .rev()
            .find(|(began, _)| *began == epoch)
            .expect("who leaves has entered, and an epoch stays while somebody is in it");
        *count -= 1;
        while inner.active.front().is_some_and(|(_, count)| *count == 0) {
            inner.active.pop_front();
        }
        while inner.active.back().is_some_and(|(_, count)| *count == 0) {
            inner.active.pop_back();
        }
        if inner.waiting > 0 {
            self.left.notify_all();
        }
    }
    /// Waits until all that has been retired by now may be given back, or `patience` ends. Whether anything was kept.
    fn wait(&self, patience: Duration) -> bool {
        let mut inner = self.inner.lock();
        let newest = match inner.retired.back() {
            Some((newest, _)) if !inner.is_over(*newest) => *newest,
            _ => return false,
        };
        inner.waiting += 1;
        self.left.wait_while_for(&mut inner, |inner| !inner.is_over(newest), patience);
        inner.waiting -= 1;
        true
    }
    /// Whether somebody reads for whose sake what has been retired is kept: what is retired now is kept as long.
    fn keep_back(&self) -> bool {
        let inner = self.inner.lock();
        inner.retired.front().is_some_and(|(epoch, _)| !inner.is_over(*epoch))
    }
    /// These blocks are free as soon as every read that has begun by now has ended.
    fn retire(&self, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let epoch = inner.epoch;
        inner.epoch += 1;
        inner.retired_blocks += blocks(&runs);
        inner.retired.push_back((epoch, runs));
    }
    /// Blocks that have been retired and not been given back.
    fn retired_blocks(&self) -> u64 {
        self.inner.lock().retired_blocks
    }
    /// Runs that nobody reads any more.
    fn drain(&self) -> Vec<Run> {
        let mut inner = self.inner.lock();
        let mut out = Vec::new();
        while inner.retired.front().is_some_and(|(epoch, _)| inner.is_over(*epoch)) {
            out.extend(inner.retired.pop_front().expect("just looked at").1);
        }
        inner.retired_blocks -= blocks(&out);
        out
    }
}

fn blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_format::PoolAddr;

    // Goal: a run comes back exactly when no read is left that began before it was retired, and it is known whether one is kept. Method:
    // thousands of random enters, leaves and retires, against a plain list of readers.
    #[test]
    fn nothing_is_given_back_under_a_reader() {
        let readers = Line::default();
        // Epochs of readers at work, and runs (by their only block) with the readers that had begun before.
        let mut active: Vec<(u64, u64)> = Vec::new();
        let mut retired: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut x = 88172645463325252u64;
        for step in 1..20_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            match x % 8 {
                0..=2 => active.push((step, readers.enter())),
                3..=5 if !active.is_empty() => {
                    let (reader, epoch) = active.swap_remove((x >> 8) as usize % active.len());
                    readers.leave(epoch);
                    retired.iter_mut().for_each(|(_, before)| before.retain(|r| *r != reader));
                }
                6 => {
                    readers.retire(vec![Run { addr: PoolAddr::from_block(step), blocks: 1 }]);
                    retired.push((step, active.iter().map(|(reader, _)| *reader).collect()));
                }
                _ => {
                    let mut given: Vec<u64> = readers.drain().iter().map(|run| run.addr.block()).collect();
                    given.sort_unstable();
                    let (free, held) = retired.into_iter().partition(|(_, before)| before.is_empty());
                    retired = held;
                    let want: Vec<u64> = Vec::from_iter(free).into_iter().map(|(block, _)| block).collect();
                    assert_eq!(given, want, "step {step}");
                }
            }
            let kept = retired.first().is_some_and(|(_, before)| !before.is_empty());
            assert_eq!(readers.keep_back(), kept, "step {step}");
            assert_eq!(readers.retired_blocks(), retired.len() as u64, "step {step}");
        }
        active.into_iter().for_each(|(_, epoch)| readers.leave(epoch));
        assert_eq!(readers.drain().len(), retired.len());
    }
}
