//! Who is still reading what was freed: blocks freed at some moment are reused only when every read that began
//! before has ended.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use varve_format::Run;

/// Readers by the epoch in which they began, and freed runs by the epoch in which they were retired.
#[derive(Default)]
pub struct Readers {
    inner: Mutex<Inner>,
}

/// A read under way.
pub struct Reading<'r> {
    readers: &'r Readers,
    epoch: u64,
}

impl<'r> Reading<'r> {
    /// It begins now; call this under the mutex that showed what is going to be read.
    pub fn begin(readers: &'r Readers) -> Reading<'r> {
        Reading { readers, epoch: readers.enter() }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.readers.leave(self.epoch);
    }
}

#[derive(Default)]
struct Inner {
    epoch: u64,
    active: BTreeMap<u64, usize>,
    retired: VecDeque<(u64, Vec<Run>)>,
}

impl Readers {
    /// A read begins; pass what comes back to [`Readers::leave`].
    pub fn enter(&self) -> u64 {
        let mut inner = self.inner.lock();
        let epoch = inner.epoch;
        *inner.active.entry(epoch).or_insert(0) += 1;
        epoch
    }
    /// It has ended.
    pub fn leave(&self, epoch: u64) {
        let mut inner = self.inner.lock();
        if let Some(n) = inner.active.get_mut(&epoch) {
            *n -= 1;
            if *n == 0 {
                inner.active.remove(&epoch);
            }
        }
    }
    /// These blocks are free as soon as every read that has begun by now has ended.
    pub fn retire(&self, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let epoch = inner.epoch;
        inner.epoch += 1;
        inner.retired.push_back((epoch, runs));
    }
    /// Runs that nobody reads any more.
    pub fn drain(&self) -> Vec<Run> {
        let mut inner = self.inner.lock();
        let oldest = inner.active.keys().next().copied().unwrap_or(u64::MAX);
        let mut out = Vec::new();
        while inner.retired.front().is_some_and(|(epoch, _)| *epoch < oldest) {
            out.extend(inner.retired.pop_front().expect("just looked at").1);
        }
        out
    }
}
