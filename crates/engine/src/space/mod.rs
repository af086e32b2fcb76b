//! Space: which blocks may be handed out, and the sum that promises rest on.
//!
//! Three bitmaps. `referenced`: blocks that the present state or the durable checkpoint refers to; its pages are what a
//! checkpoint writes. `busy`: blocks that may not be handed out: the same plus blocks being written, and blocks freed
//! but held back. `metadata`: the durable checkpoint's nodes and pages among the referenced ones, which no transaction may give back or
//! share, whatever a damaged extent says. The unit of everything here is a block, so that whatever the sum allows can really be found;
//! while a trim holds some of it for a moment (`trim`), by waiting for that.
//!
//! The sum (design, section 7): `total = fixed + data + held + nodes + frozen + dirty + open + protected + available`,
//! and `available` may go below zero only by what is taken out of `protected` ([`Urgency`] says by whom, and how far).

pub mod bits;
pub mod readers;
mod search;
#[cfg(test)]
mod tests;
pub mod trim;

use varve_format::{BLOCK_BYTES, PoolAddr, Run};

use bits::{Bits, PAGE_BITS};

/// Pages of a bitmap that are counted together (32 GiB of the pool).
const GROUP_PAGES: u64 = 256;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// May use what is free.
    Ordinary,
    /// May also use a quarter of the protected part but for what floats: for what takes the place of as much, as a rule, and adds a little.
    Growing,
    /// May also use half of the protected part, of which so much may float together: for data that gives back as much as it
    /// takes.
    Floating,
    /// May also use the protected part (section 7's K) but for a quarter of what does not float.
    Sparing,
    /// May use all of it.
    Privileged,
}

/// The books and bitmaps. Lives under the apply mutex.
pub struct Space {
    /// Blocks of pool address space.
    pub total: u64,
    /// Never handed out, or kept for the arrays' pages (twice each: the durable copy and the next).
    pub fixed: u64,
    /// K.
    pub protected: u64,
    /// The part of it that data may use which gives back as much when it is logged and durable (section 7's Kfloat).
    pub float: u64,
    /// Blocks that such data has taken, and not given back yet.
    pub floating: u64,
    /// Copies of each metadata block.
    pub copies: u64,
    /// Data blocks the present state refers to.
    pub data: u64,
    /// Freed, not yet allocatable.
    pub held: u64,
    /// Blocks of the durable checkpoint's nodes.
    pub nodes: u64,
    /// Set aside for the checkpoint that runs now.
    pub frozen: u64,
    /// Dirty nodes of the present generation (nodes, not blocks).
    pub dirty_nodes: u64,
    /// Open reservations.
    pub open: u64,
    /// See above.
    pub referenced: Bits,
    /// See above.
    pub metadata: Bits,
    /// Pages of `referenced` whose data bits changed since the last freeze.
    pub changed_pages: Vec<bool>,
    busy: Bits,
    /// Blocks of `busy` that a trim holds for a moment: the books know nothing of them.
    trimming: u64,
    page_used: Vec<u32>,
    /// The same of `GROUP_PAGES` pages each: a pool has many, and where it is full they are passed over.
    group_used: Vec<u64>,
    data_cursor: u64,
    node_cursors: [u64; 2],
    /// Where data is put last: see [`Space::avoid_for_data`].
    avoided: Vec<search::Part>,
}

/// Pages of array (checksums, bitmap) and their parents for a pool of `total` blocks: leaves and interior pages.
pub fn array_pages(total: u64) -> u64 {
    let tree = |mut leaves: u64| {
        let mut sum = leaves;
        while leaves > 1 {
            leaves = leaves.div_ceil(varve_format::root::ARRAY_FANOUT as u64);
            sum += leaves;
        }
        sum
    };
    tree(total.div_ceil(crate::checkpoint::checksums::PAGE_BLOCKS)) + tree(total.div_ceil(PAGE_BITS))
}

impl Space {
    /// Empty books for a pool of `total` blocks.
    pub fn new(total: u64, copies: u64) -> Space {
        let mib = (1 << 20) / BLOCK_BYTES as u64;
        let kept = (total / 85).clamp(3 * mib, 32 * mib);
        let float = kept / 7;
        let mut space = Space {
            total,
            // Block 0, the arrays twice, the root block twice.
            fixed: 1 + 2 * copies * (array_pages(total) + 1),
            protected: kept + float,
            float,
            floating: 0,
            copies,
            data: 0,
            held: 0,
            nodes: 0,
            frozen: 0,
            dirty_nodes: 0,
            open: 0,
            referenced: Bits::new(total),
            metadata: Bits::new(total),
            changed_pages: vec![false; total.div_ceil(PAGE_BITS) as usize],
            busy: Bits::new(total),
            trimming: 0,
            page_used: vec![0; total.div_ceil(PAGE_BITS) as usize],
            group_used: vec![0; total.div_ceil(GROUP_PAGES * PAGE_BITS) as usize],
            data_cursor: total / 8,
            node_cursors: [1, total / 2],
            avoided: Vec::new(),
        };
        space.mark_busy(Run { addr: PoolAddr(0), blocks: 1 });
        space
    }

    /// What an ordinary request may still take; negative while the protected part is in use.
    pub fn available(&self) -> i64 {
        self.total as i64
            - (self.fixed
                + self.protected
                + self.data
                + self.held
                + self.nodes
                + self.frozen
                + self.dirty_nodes * self.copies
                + self.open) as i64
    }

    /// Whether `blocks` more may be taken.
    pub fn fits(&self, blocks: u64, urgency: Urgency) -> bool {
        let limit = match urgency {
            Urgency::Ordinary => 0,
            Urgency::Growing => -((self.protected - self.float) as i64 / 4),
            Urgency::Floating => -((self.float + (self.protected - self.float) / 2) as i64),
            Urgency::Sparing => -((self.float + (self.protected - self.float) / 4 * 3) as i64),
            Urgency::Privileged => -(self.protected as i64),
        };
        self.leaves(blocks, limit)
    }

    /// Whether at least `least` is left to ordinary requests when so many more are taken.
    pub fn leaves(&self, blocks: u64, least: i64) -> bool {
        i64::try_from(blocks).is_ok_and(|blocks| self.available().saturating_sub(blocks) >= least)
    }

    /// Whether privileged work has used up half of what is protected, and nothing floats any more.
    pub fn squeezed(&self) -> bool {
        !self.fits(0, Urgency::Floating)
    }

    /// Marks blocks that were found in use when the pool was opened.
    pub fn adopt_referenced(&mut self, bits: Bits) {
        for i in 0..bits.page_count() {
            if let Some(page) = bits.page(i) {
                let mut page = page.clone();
                if i == 0 {
                    std::sync::Arc::make_mut(&mut page)[0] |= 1;
                }
                let used = page.iter().map(|w| w.count_ones()).sum();
                let group = &mut self.group_used[i / GROUP_PAGES as usize];
                *group = *group + u64::from(used) - u64::from(self.page_used[i]);
                self.page_used[i] = used;
                self.busy.set_page(i, Some(page));
            }
        }
        self.referenced = bits;
    }

    /// Where it is not known what is in use: blocks of `run` that nothing has claimed are taken for data.
    pub fn assume_used(&mut self, run: Run) {
        let (mut at, end) = (run.addr.block(), run.addr.block() + u64::from(run.blocks));
        while let Some(first) = self.referenced.next(at, end, false) {
            at = self.referenced.next(first, end, true).unwrap_or(end);
            self.place(Run { addr: PoolAddr::from_block(first), blocks: (at - first) as u32 }, false);
        }
    }

    /// The same of all blocks, in the books alone.
    pub fn nothing_is_free(&mut self) {
        self.data += u64::try_from(self.available()).unwrap_or(0);
    }

    fn mark_busy(&mut self, run: Run) {
        self.change_busy(run, true);
    }

    fn change_busy(&mut self, run: Run, value: bool) {
        let (mut at, end) = (run.addr.block(), run.addr.block() + u64::from(run.blocks));
        let mut changed = 0;
        while at < end {
            let page = at / PAGE_BITS;
            let n = ((page + 1) * PAGE_BITS).min(end) - at;
            let part = Run { addr: PoolAddr::from_block(at), blocks: n as u32 };
            let c = self.busy.write(part, value, &mut |_| {});
            changed += c;
            let used = &mut self.page_used[page as usize];
            *used = if value { *used + c as u32 } else { *used - c as u32 };
            let used = &mut self.group_used[(page / GROUP_PAGES) as usize];
            *used = if value { *used + c } else { *used - c };
            at += n;
        }
        assert_eq!(changed, u64::from(run.blocks), "blocks {run:?} handed out twice or given back twice");
    }

    /// The present state refers to `run`, which `reserved` says was allocated here (as opposed to replayed).
    pub fn place(&mut self, run: Run, allocated: bool) {
        if !allocated {
            self.mark_busy(run);
        }
        let changed_pages = &mut self.changed_pages;
        let n = self.referenced.write(run, true, &mut |p| changed_pages[p] = true);
        assert_eq!(n, u64::from(run.blocks), "placed on blocks that are referred to already: {run:?}");
        self.data += n;
    }

    /// The present state no longer refers to `run`. It stays busy, counted as held, until [`Space::release`].
    pub fn free(&mut self, run: Run) {
        let changed_pages = &mut self.changed_pages;
        let n = self.referenced.write(run, false, &mut |p| changed_pages[p] = true);
        assert_eq!(n, u64::from(run.blocks), "freed blocks that nothing refers to: {run:?}");
        self.data -= n;
        self.held += n;
    }

    /// Whether all blocks of `run` are (not) referred to.
    pub fn all_referenced(&self, run: Run, value: bool) -> bool {
        let end = run.addr.block() + u64::from(run.blocks);
        self.referenced.next(run.addr.block(), end, !value).is_none()
    }

    /// Whether all blocks of `run` are data that the present state refers to.
    pub fn all_data(&self, run: Run) -> bool {
        let end = run.addr.block() + u64::from(run.blocks);
        self.all_referenced(run, true) && self.metadata.next(run.addr.block(), end, true).is_none()
    }

    /// A checkpoint has become durable that has taken blocks for its nodes and pages, or let go of some.
    pub fn refer_to_metadata(&mut self, run: Run, value: bool) {
        self.referenced.write(run, value, &mut |_| {});
        self.metadata.write(run, value, &mut |_| {});
    }

    /// Held blocks become allocatable.
    pub fn release(&mut self, run: Run) {
        self.change_busy(run, false);
        self.held -= u64::from(run.blocks);
    }

    /// Blocks that were allocated and never referred to are given back.
    pub fn unallocate(&mut self, run: Run) {
        self.change_busy(run, false);
    }
}
