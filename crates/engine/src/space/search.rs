//! Where blocks are found. The pool is a ring to it: each kind of block has a cursor, and what is taken next lies behind it. What
//! was passed over because it is too short, or too near, is met again a round later, and taken at the latest when nothing else is left.
//!
//! The copies of a node are kept apart here (`take_apart`): the second is an eighth of the pool away from the first, if there is
//! room, and otherwise at least half as far as the farthest block that is free. The cursors alone would not do: where nothing is
//! free between them both meet the same run, and from then on a bad spot of two blocks could take both root blocks.

use std::cmp::Reverse;

use varve_format::{PoolAddr, Run};

use super::bits::PAGE_BITS;
use super::{GROUP_PAGES, Space};

/// Most blocks of metadata that are looked for at once.
const METADATA_PIECE_BLOCKS: u64 = 1024;
/// Runs looked at, of whatever length, for one that holds all.
const RUNS_LOOKED_AT: usize = 64;
/// Requests of so many blocks look for long runs behind those.
const LARGE_BLOCKS: u32 = 128;
/// Runs looked at, with the long ones.
const RUNS_MAX: usize = 256;
/// Words of the bitmap read for them (8 GiB of the pool).
const WORDS_LOOKED_AT: usize = 1 << 15;

/// Pieces of the pool that are avoided at once.
const AVOIDED_MAX: usize = 8;

/// Blocks from the first number on, before the second.
pub(super) type Part = (u64, u64);

impl Space {
    /// Takes blocks for nodes and array pages: two copies of each of `n`, far from each other, each copy as contiguous as possible.
    /// The books have set them aside. `None`: nothing has been taken.
    pub fn allocate_metadata(&mut self, n: u64) -> Option<Vec<[PoolAddr; 2]>> {
        // Small enough to have most of the pool far away from it.
        let piece = (self.total / 64).clamp(1, METADATA_PIECE_BLOCKS);
        let (mut places, mut taken) = (Vec::new(), Vec::new());
        let mut left = n;
        while left > 0 {
            let wanted = left.min(piece);
            let firsts = self.take(&self.ring(self.node_cursors[0]), wanted as u32);
            taken.extend(&firsts);
            let mut is_found = blocks_in(&firsts) == wanted;
            for first in firsts {
                let seconds = if self.copies > 1 { self.take_apart(first) } else { Vec::new() };
                taken.extend(&seconds);
                is_found &= self.copies == 1 || blocks_in(&seconds) == u64::from(first.blocks);
                let mut addrs = seconds.iter().flat_map(addrs_of);
                places.extend(addrs_of(&first).map(|addr| [addr, addrs.next().unwrap_or(PoolAddr::NULL)]));
                self.node_cursors[0] = end_of(&first);
                self.node_cursors[1] = seconds.last().map_or(self.node_cursors[1], end_of);
            }
            if !is_found {
                taken.iter().for_each(|run| self.change_busy(*run, false));
                return None;
            }
            left -= wanted;
        }
        Some(places)
    }

    /// Takes `blocks` blocks for data, in as few runs as a bounded search finds. `None`: nothing has been taken.
    pub fn allocate_data(&mut self, blocks: u32, near: PoolAddr) -> Option<Vec<Run>> {
        let from = if near.is_null() { self.data_cursor } else { near.block().min(self.total - 1) };
        let ring = self.ring(from);
        let runs = match self.avoided.is_empty() {
            true => self.take_all(&ring, blocks)?,
            false => self.take_all(&self.outside(&ring), blocks).or_else(|| self.take_all(&ring, blocks))?,
        };
        self.data_cursor = runs.last().map_or(from, end_of);
        Some(runs)
    }

    /// Data is put into these blocks only where all others are taken, until so many others have been named.
    pub fn avoid_for_data(&mut self, part: Part) {
        self.avoided.retain(|known| *known != part);
        self.avoided.push(part);
        if self.avoided.len() > AVOIDED_MAX {
            self.avoided.remove(0);
        }
    }

    /// What of these parts is not avoided, in the same order.
    fn outside(&self, parts: &[Part]) -> Vec<Part> {
        let mut left = parts.to_vec();
        for &(from, end) in &self.avoided {
            left = left.iter().flat_map(|&(a, b)| [(a, b.min(from)), (a.max(end), b)]).collect();
            left.retain(|(a, b)| a < b);
        }
        left
    }

    /// Takes `blocks` clear blocks of `parts`, or nothing.
    fn take_all(&mut self, parts: &[Part], blocks: u32) -> Option<Vec<Run>> {
        let runs = self.take(parts, blocks);
        if blocks_in(&runs) < u64::from(blocks) {
            runs.iter().for_each(|run| self.change_busy(*run, false));
            return None;
        }
        Some(runs)
    }

    /// Takes as many blocks as `first` has for its second copy, as far away as the first lines of this file say. Fewer: there are
    /// no more.
    fn take_apart(&mut self, first: Run) -> Vec<Run> {
        // Places along the ring, counted from the last block of `first`; at `around` is its first one again.
        let last = end_of(&first) - 1;
        let around = self.total - u64::from(first.blocks) + 1;
        let mut far = (self.total / 8).max(1);
        let cursor = (self.node_cursors[1] + self.total - last) % self.total;
        let start = if (far..=around.saturating_sub(far)).contains(&cursor) { cursor } else { around / 2 };
        // What has been looked at lies from `begin` on and before `end`. Each step goes half as near on both sides.
        let (mut begin, mut end) = (start, start);
        let (mut runs, mut left) = (Vec::new(), first.blocks);
        loop {
            let (wider_begin, wider_end) = (far.min(begin), (around + 1).saturating_sub(far).max(end));
            let [a, b] = self.parts(last + end, last + wider_end);
            let [c, d] = self.parts(last + wider_begin, last + begin);
            let taken = self.take(&[a, b, c, d], left);
            left -= blocks_in(&taken) as u32;
            runs.extend(taken);
            if left == 0 || far == 1 {
                return runs;
            }
            (begin, end, far) = (wider_begin, wider_end, far / 2);
        }
    }

    /// All of the ring, from `from` on.
    fn ring(&self, from: u64) -> [Part; 2] {
        [(from, self.total), (0, from)]
    }

    /// The same of a piece of it, whose numbers may go on behind the end.
    fn parts(&self, from: u64, end: u64) -> [Part; 2] {
        let over = |block: u64| block.saturating_sub(self.total);
        [(from.min(self.total), end.min(self.total)), (over(from), over(end))]
    }

    /// Takes up to `blocks` clear blocks of `parts`, as many as there are: one run if a bounded search finds it, otherwise the
    /// longest that it finds, and, where they do not add up, the first ones. In the order of the parts.
    fn take(&mut self, parts: &[Part], blocks: u32) -> Vec<Run> {
        let (mut runs, has_ended) = self.look(parts, blocks);
        let (wanted, mut sum) = (u64::from(blocks), 0);
        runs.sort_by_key(|(_, run)| Reverse(run.blocks));
        runs.retain(|(_, run)| {
            let is_needed = sum < wanted;
            sum += if is_needed { u64::from(run.blocks) } else { 0 };
            is_needed
        });
        runs.sort_by_key(|(part, run)| (*part, run.addr));
        if let Some((_, last)) = runs.last_mut() {
            // The rest of the last one, so that it is where the next search begins. Each of them is longer than what is too much.
            last.blocks -= sum.saturating_sub(wanted) as u32;
        }
        runs.iter().for_each(|(_, run)| self.mark_busy(*run));
        if sum < wanted && !has_ended {
            let mut left = (wanted - sum) as u32;
            for (part, (start, end)) in parts.iter().enumerate() {
                let mut at = *start;
                while left > 0
                    && let Some((first, len)) = self.find_run(at, *end, left)
                {
                    let run = Run { addr: PoolAddr::from_block(first), blocks: len };
                    self.mark_busy(run);
                    runs.push((part, run));
                    left -= len;
                    at = end_of(&run);
                }
            }
            runs.sort_by_key(|(part, run)| (*part, run.addr));
        }
        runs.into_iter().map(|(_, run)| run).collect()
    }

    /// Clear runs of `parts` in order, each with its part's index, and whether there are no more: just one if it holds all of `blocks`.
    /// Otherwise the first ones, and for a large request such as fill a word of the bitmap behind them, so that small holes, however
    /// many, do not hide what is long. What it reads is bounded, but for where nothing is free.
    fn look(&self, parts: &[Part], blocks: u32) -> (Vec<(usize, Run)>, bool) {
        let (mut seen, mut words_left, mut in_long) = (Vec::new(), WORDS_LOOKED_AT, 0);
        for (part, (start, end)) in parts.iter().enumerate() {
            let mut at = *start;
            while let Some((first, len)) = match seen.len() < RUNS_LOOKED_AT {
                true => self.find_run(at, *end, blocks),
                false => self.find_long_run(at, *end, blocks, &mut words_left),
            } {
                let run = Run { addr: PoolAddr::from_block(first), blocks: len };
                if len >= blocks {
                    return (vec![(part, run)], false);
                }
                seen.push((part, run));
                // A quarter of the request each is long enough.
                in_long += if len >= blocks / 4 { u64::from(len) } else { 0 };
                let is_enough = in_long >= u64::from(blocks) || blocks < LARGE_BLOCKS;
                if seen.len() >= RUNS_LOOKED_AT && is_enough || seen.len() == RUNS_MAX {
                    return (seen, false);
                }
                at = end_of(&run);
            }
        }
        let has_ended = seen.len() < RUNS_LOOKED_AT;
        (seen, has_ended)
    }

    /// The next clear run that fills a word of the bitmap, as all of 127 blocks do. `words_left`: how many words, or pages that are full
    /// but for less, may still be read.
    fn find_long_run(&self, mut at: u64, end: u64, max: u32, words_left: &mut usize) -> Option<(u64, u32)> {
        let from = at;
        while at < end && *words_left > 0 {
            let page = at / PAGE_BITS;
            let page_end = ((page + 1) * PAGE_BITS).min(end);
            if u64::from(self.page_used[page as usize]) > PAGE_BITS - 64 {
                *words_left -= 1;
            } else if let Some(mut first) = self.busy.next_clear_word(at, page_end, words_left) {
                // Most of a word at most: the one before is not clear, or was too short to be looked at.
                while first > from && !self.busy.get(first - 1) {
                    first -= 1;
                }
                return self.busy.find_clear(first, end, max);
            }
            at = page_end;
        }
        None
    }

    /// The next clear run, skipping what is full by its counts.
    fn find_run(&self, mut at: u64, end: u64, max: u32) -> Option<(u64, u32)> {
        const GROUP_BLOCKS: u64 = GROUP_PAGES * PAGE_BITS;
        while at < end {
            let group = at / GROUP_BLOCKS;
            if self.group_used[group as usize] == GROUP_BLOCKS {
                at = (group + 1) * GROUP_BLOCKS;
                continue;
            }
            let page = (at / PAGE_BITS) as usize;
            let page_end = (page as u64 + 1) * PAGE_BITS;
            if u64::from(self.page_used[page]) == PAGE_BITS {
                at = page_end;
                continue;
            }
            // Look in this page first; a run may go on into the next ones.
            match self.busy.next(at, page_end.min(end), false) {
                Some(start) => return self.busy.find_clear(start, end, max),
                None => at = page_end,
            }
        }
        None
    }
}

fn blocks_in(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.blocks)).sum()
}

fn end_of(run: &Run) -> u64 {
    run.addr.block() + u64::from(run.blocks)
}

fn addrs_of(run: &Run) -> impl Iterator<Item = PoolAddr> + use<> {
    (run.addr.block()..end_of(run)).map(PoolAddr::from_block)
}
