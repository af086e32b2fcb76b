//! Free blocks that are held for a moment, while the device is told to forget them.
//!
//! What may be discarded is what may be handed out, and nothing else: blocks that are not `busy`. A trim is a writer that
//! takes free blocks, writes bytes into them that nobody expects, and gives them back without ever referring to them. So
//! whatever makes it right that a block is handed out makes it right that it is discarded:
//!
//! - The present state does not refer to it, nor does a write under way: those blocks are busy.
//! - Nor does the durable checkpoint, but for what the durable log frees (below): a node that was replaced is busy until the
//!   superblock of the next checkpoint has been flushed. Older checkpoints count no more from then on; recovery refuses a pool
//!   in which the newest superblock was lost.
//! - Nor does a state that recovery could go back to. A block that a transaction freed is busy until a flush has returned
//!   that covers the record, so the log cannot end before it. Recovery starts at the checkpoint, which may refer to the block,
//!   but reads no data then, and its nodes are those of the point above; replay comes to the free. Of data that was placed
//!   beyond the known-flushed position and freed later, a mismatch excludes only ends between the two.
//! - Nobody reads it: it was held until all reads had ended that began before it was freed.
//!
//! The device may take a discard after writes to the same place that came later, as long as no flush covers it. It has
//! completed before its blocks are given back, so each flush that covers such a write covers the discard, too; and until
//! there is one, the write may be missing as well.
//!
//! What is looked at and taken at once is bounded, so that the mutex is held briefly whatever the pool's size, and pieces are
//! small, so that little is missing meanwhile. The books do not count it: what they promise is there again in a moment, and
//! who does not find it waits for that (see `store/trim`).

use varve_format::{PoolAddr, Run};

use super::Space;
use super::bits::PAGE_BITS;

/// Most blocks taken at once (32 MiB): what a full pool may lack for a moment.
const PIECE_BLOCKS: u64 = 8192;
/// Most runs taken at once: each is a request to the device.
const RUNS_MAX: usize = 64;
/// Longest minimum, in blocks (128 MiB): a run is measured no further than that.
pub const MINIMUM_BLOCKS_MAX: u64 = PAGE_BITS;
/// Full pages of the bitmap passed at once.
const PAGES_PASSED_MAX: usize = 4096;

/// What is left to look at.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// First block.
    pub at: u64,
    /// Behind the last.
    pub end: u64,
    /// Shorter runs are passed over, in blocks.
    pub minimum: u64,
    /// A run that was long enough goes on at `at`.
    pub continues: bool,
}

impl Space {
    /// Takes free runs from `rest.at` on, a bounded number, and moves `rest` behind what has been looked at. Nobody is given
    /// them until [`Space::end_trim`].
    pub fn begin_trim(&mut self, rest: &mut Rest) -> Vec<Run> {
        let (end, minimum) = (rest.end.min(self.total), rest.minimum.min(MINIMUM_BLOCKS_MAX));
        for _ in 0..PAGES_PASSED_MAX {
            let page = rest.at / PAGE_BITS;
            if rest.at >= end || u64::from(self.page_used[page as usize]) < PAGE_BITS {
                break;
            }
            (rest.at, rest.continues) = ((page + 1) * PAGE_BITS, false);
        }
        let (mut at, mut left, mut runs) = (rest.at, PIECE_BLOCKS, Vec::new());
        let stop = end.min(at.saturating_add(PAGE_BITS));
        while at < stop && left > 0 && runs.len() < RUNS_MAX {
            let Some(first) = self.busy.next(at, stop, false) else {
                at = stop;
                break;
            };
            let limit = end.min(first + minimum.max(left));
            let len = self.busy.next(first, limit, true).unwrap_or(limit) - first;
            if len < minimum && !(rest.continues && first == rest.at) {
                at = first + len;
                continue;
            }
            let run = Run { addr: PoolAddr::from_block(first), blocks: len.min(left) as u32 };
            self.mark_busy(run);
            left -= u64::from(run.blocks);
            at = first + u64::from(run.blocks);
            runs.push(run);
        }
        rest.continues = runs.last().is_some_and(|run| run.addr.block() + u64::from(run.blocks) == at);
        rest.at = rest.at.max(at.min(end));
        self.trimming += PIECE_BLOCKS - left;
        runs
    }

    /// Gives them back.
    pub fn end_trim(&mut self, runs: &[Run]) {
        for run in runs {
            self.change_busy(*run, false);
            self.trimming -= u64::from(run.blocks);
            // A page that was not there before is not there again: a large pool has many.
            let (first, last) = (run.addr.block(), run.addr.block() + u64::from(run.blocks) - 1);
            for page in first / PAGE_BITS..=last / PAGE_BITS {
                if self.page_used[page as usize] == 0 {
                    self.busy.set_page(page as usize, None);
                }
            }
        }
    }

    /// Whether some trim holds blocks.
    pub fn is_trimming(&self) -> bool {
        self.trimming > 0
    }
}
