//! Checkpoint: the state at one log position goes to disk beside the old one, while operations continue.
//!
//! 1. Freeze, under the apply mutex and at the end of a batch: roots, bitmap pages, checksum pages. Pointers only.
//! 2. That batch is written and flushed: the log is durable through the frozen position.
//! 3. Dirty nodes, checksum pages, bitmap pages and the root block are written to blocks that nothing refers to.
//!    If power fails here, nothing has happened: the old superblock refers to none of them.
//! 4. Flush. Only now may a superblock name them.
//! 5. The superblock goes to the next slots; flush. If power fails before that flush returns, either superblock may
//!    be found, and the blocks and the log of both are intact: nothing is reused before step 6.
//! 6. The nodes that were replaced become allocatable, the log before the frozen position may be overwritten.

pub mod arrays;
pub mod checksums;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::MutexGuard;
use varve_device::AlignedBuf;
use varve_format::node::NodeHeader;
use varve_format::root::{NodePtr, RootBlock, TreeRoot};
use varve_format::superblock::CUTS_MAX;
use varve_format::{BLOCK_BYTES, Lsn, PoolAddr, Run, block_checksum};

use crate::EngineError;
use crate::core::{Core, LogTail, RECORD_BYTES_MAX};
use crate::journal::PanicStops;
use crate::numbers::Numbered;
use crate::space::Urgency;
use crate::space::bits::Bits;
use crate::store::{READERS_PATIENCE, Store};
use crate::tree::node::{Body, Link, Node};
use crate::tree::{Replaced, Tree};
use arrays::PagePtrs;
use checksums::SumPage;

type Result<T> = std::result::Result<T, EngineError>;

/// Blocks encoded and written together.
const GROUP_BLOCKS: usize = 1024;

/// A state at the end of a batch.
pub struct Frozen {
    trees: Vec<Tree>,
    replaced: Vec<Replaced>,
    referenced: Bits,
    changed_pages: Vec<bool>,
    sums: Numbered<u64, Arc<SumPage>>,
    position: Lsn,
    next_id: u64,
    generation: u64,
    /// The checkpoint counts as a reader of the frozen state: a block of it that is freed meanwhile must not become one of
    /// the checkpoint's own nodes. The bitmap would show it in use once, and replaying the free would give the node away.
    reading: u64,
    /// Where replay of what follows begins.
    pub log: LogTail,
}

impl Frozen {
    /// The last transaction in it.
    pub fn position(&self) -> Lsn {
        self.position
    }
}

/// What belongs to checkpoints alone.
pub struct Durable {
    /// Pages of checksums, as the durable checkpoint has them.
    pub sums: PagePtrs,
    /// Pages of the bitmap.
    pub bitmap: PagePtrs,
    /// The root block.
    pub root: NodePtr,
    /// The position of the durable checkpoint.
    pub position: Lsn,
}

/// Writes blocks one after the other, in groups.
struct BlockWriter<'a> {
    store: &'a Store,
    buf: AlignedBuf,
    addrs: Vec<[PoolAddr; 2]>,
    written_bytes: u64,
}

impl<'a> BlockWriter<'a> {
    fn new(store: &'a Store) -> Self {
        BlockWriter {
            store,
            buf: AlignedBuf::new(GROUP_BLOCKS * BLOCK_BYTES),
            addrs: Vec::new(),
            written_bytes: 0,
        }
    }

    /// Encodes a block for `addr` and returns the pointer to it.
    fn add(&mut self, addr: [PoolAddr; 2], birth: u64, encode: impl FnOnce(&mut [u8])) -> Result<NodePtr> {
        if self.addrs.len() == GROUP_BLOCKS {
            self.write_out()?;
        }
        let at = self.addrs.len() * BLOCK_BYTES;
        let block = &mut self.buf[at..at + BLOCK_BYTES];
        encode(block);
        let checksum = block_checksum(block);
        self.addrs.push(addr);
        Ok(NodePtr { addr, birth, checksum })
    }

    fn write_out(&mut self) -> Result<()> {
        let mut writes: Vec<(PoolAddr, &[u8])> = Vec::new();
        for copy in 0..2 {
            let mut i = 0;
            while i < self.addrs.len() {
                let first = self.addrs[i][copy];
                let mut n = 1;
                while i + n < self.addrs.len()
                    && self.addrs[i + n][copy].0 == first.0 + (n * BLOCK_BYTES) as u64
                {
                    n += 1;
                }
                if !first.is_null() {
                    writes.push((first, &self.buf[i * BLOCK_BYTES..(i + n) * BLOCK_BYTES]));
                    self.written_bytes += (n * BLOCK_BYTES) as u64;
                }
                i += n;
            }
        }
        self.store.pool.write(&writes, None)?;
        self.addrs.clear();
        Ok(())
    }
}

/// Blocks that came into use and went out of use, for the bitmap.
#[derive(Default)]
struct Moves {
    taken: Vec<Run>,
    nodes_gone: Vec<Run>,
    pages_gone: Vec<Run>,
}

fn runs_of(ptr: NodePtr) -> impl Iterator<Item = Run> {
    ptr.addr.into_iter().filter(|a| !a.is_null()).map(|addr| Run { addr, blocks: 1 })
}

impl Store {
    /// Step 1. The caller leads the commit and holds the apply mutex.
    pub(crate) fn freeze(&self, core: &mut Core) -> Frozen {
        let generation = core.generation;
        core.generation += 1;
        core.space.frozen += core.space.dirty_nodes * core.space.copies;
        core.space.dirty_nodes = 0;
        let sums = std::mem::take(&mut core.sums.dirty);
        core.sums.frozen = sums.clone();
        let pages = core.space.changed_pages.len();
        Frozen {
            trees: core.trees.clone(),
            replaced: std::mem::take(&mut core.replaced),
            referenced: core.space.referenced.clone(),
            changed_pages: std::mem::replace(&mut core.space.changed_pages, vec![false; pages]),
            sums,
            position: core.position,
            next_id: core.id_floor,
            generation,
            log: core.log,
            reading: self.readers.enter(),
        }
    }

    /// Writes a checkpoint now, unless nothing has changed since the last.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_as(false)
    }

    /// Writes a checkpoint if the state still calls for one when it is this one's turn. While one is being written every change
    /// finds another due, until the first has cut the log: that would be two flushes for nothing.
    pub(crate) fn checkpoint_when_due(&self) -> Result<()> {
        let durable = self.durable.lock();
        self.check_writable()?;
        if !self.checkpoint_is_due() {
            return Ok(());
        }
        self.checkpoint_with(durable, false)
    }

    pub(crate) fn checkpoint_as(&self, closed: bool) -> Result<()> {
        let asked_at = self.position();
        let durable = self.durable.lock();
        self.check_writable()?;
        // Nothing has changed, or another checkpoint that was waited for has covered it. Many cuts of the log want one
        // all the same: there is room for so many of them only. So does a log in which nothing is and too little room is left, as no
        // store leaves it: whoever waits for room in it would wait for ever.
        let is_covered = durable.position >= asked_at && self.core.lock().log.takes(RECORD_BYTES_MAX);
        if !closed && is_covered && self.superblock.lock().cuts.len() < CUTS_MAX / 2 {
            return Ok(());
        }
        self.checkpoint_with(durable, closed)
    }

    fn checkpoint_with(&self, mut durable: MutexGuard<'_, Durable>, closed: bool) -> Result<()> {
        // Pages that the last one replaced and that are being read at this moment may be in the place of those that this one writes: it
        // waits for those few reads where there is no other room.
        while !self.core.lock().space.fits(0, Urgency::Privileged)
            && self.readers.wait_for_pages(READERS_PATIENCE)
        {
            self.release_retired();
        }
        let frozen = self.commit_and_freeze()?;
        let reading = frozen.reading;
        // What has been frozen and not written would be missing in the next.
        let panics = PanicStops::new(&self.commits, "a checkpoint");
        let result = self.write_checkpoint(frozen, &mut durable, closed);
        panics.done();
        self.readers.leave(reading);
        if let Err(e) = &result {
            self.commits.stop_by(e);
        }
        drop(durable);
        self.release_retired();
        result
    }

    fn write_checkpoint(&self, frozen: Frozen, durable: &mut Durable, closed: bool) -> Result<()> {
        let mut moves = Moves::default();
        let mut out = BlockWriter::new(self);

        // Nodes, children before parents.
        let mut dirty: Vec<Arc<Node>> = Vec::new();
        let mut tree_ids = Vec::new();
        for tree in &frozen.trees {
            if let Some(root) = &tree.root {
                collect_dirty(root, &mut dirty);
            }
            tree_ids.resize(dirty.len(), tree.id);
        }
        let addrs = self.take_metadata(dirty.len() as u64, &mut moves)?;
        for ((node, tree), addr) in dirty.iter().zip(tree_ids).zip(addrs) {
            let header =
                NodeHeader { tree, level: node.level(), birth: frozen.generation, pool_tag: self.pool_tag };
            let ptr = out.add(addr, frozen.generation, |block| node.encode(header, block))?;
            let fresh = node.location.set(ptr).is_ok();
            debug_assert!(fresh, "a dirty node has no location");
        }
        for replaced in &frozen.replaced {
            let ptr = match replaced {
                Replaced::At(ptr) => *ptr,
                Replaced::Frozen(node) => *node.location.get().expect("the checkpoint before has ended"),
            };
            moves.nodes_gone.extend(runs_of(ptr));
        }

        // Pages of checksums and their parents.
        let mut new_sum_pages: Vec<(u64, NodePtr)> = Vec::new();
        if !frozen.sums.is_empty() {
            let leaves: BTreeSet<usize> = frozen.sums.keys().map(|p| *p as usize).collect();
            let levels = levels_above(&durable.sums, leaves);
            let n: usize = levels.iter().map(BTreeSet::len).sum();
            let mut addrs = self.take_metadata(n as u64, &mut moves)?.into_iter();
            for (level, pages) in levels.iter().enumerate() {
                for i in pages {
                    let addr = addrs.next().expect("one a page");
                    let ptr = if level == 0 {
                        let page = &frozen.sums[&(*i as u64)];
                        out.add(addr, frozen.generation, |block| checksums::encode(page, block))?
                    } else {
                        out.add(addr, frozen.generation, |block| durable.sums.encode(level, *i, block))?
                    };
                    moves.pages_gone.extend(runs_of(durable.sums.set(level, *i, ptr)));
                    if level == 0 {
                        new_sum_pages.push((*i as u64, ptr));
                    }
                }
            }
        }

        // The root block's place, then the bitmap, which must say where all of this is, itself included.
        let root_addr = self.take_metadata(1, &mut moves)?[0];
        moves.pages_gone.extend(runs_of(durable.root));
        let bitmap = self.write_bitmap(&frozen, durable, &mut moves, &mut out)?;

        let root = RootBlock {
            position: frozen.position,
            generation: frozen.generation,
            next_id: frozen.next_id,
            trees: frozen.trees.iter().map(tree_root).collect(),
            checksums: durable.sums.root(),
            bitmap: durable.bitmap.root(),
        };
        let root_ptr =
            out.add(root_addr, frozen.generation, |block| block.copy_from_slice(&root.encode()))?;
        out.write_out()?;
        let metadata_bytes = out.written_bytes;
        self.pool.flush()?;

        let superblock = {
            let mut s = self.superblock.lock();
            s.generation += 1;
            s.position = frozen.position;
            s.root = root_ptr;
            s.log_start = frozen.log.head;
            s.log_sequence = frozen.log.sequence;
            s.log_previous = frozen.log.previous;
            s.epoch = frozen.log.epoch;
            s.cuts.clear();
            s.closed = closed;
            s.clone()
        };
        let superblock_bytes = self.pool.write_superblock(&superblock)?;
        self.pool.flush()?;
        self.superblock_generation.store(superblock.generation, Relaxed);

        durable.root = root_ptr;
        durable.position = frozen.position;
        self.counters.checkpoints.fetch_add(1, Relaxed);
        self.counters.checkpoint_nodes.fetch_add(dirty.len() as u64, Relaxed);
        self.counters.checkpoint_bytes.fetch_add(metadata_bytes + superblock_bytes, Relaxed);
        self.adopt_checkpoint(frozen, dirty, new_sum_pages, moves, bitmap);
        Ok(())
    }

    fn take_metadata(&self, n: u64, moves: &mut Moves) -> Result<Vec<[PoolAddr; 2]>> {
        if n == 0 {
            return Ok(Vec::new());
        }
        let addrs = self.find_space(|space| space.allocate_metadata(n)).ok_or(EngineError::NoSpace)?;
        moves.taken.extend(join_runs(addrs.iter().flatten().copied().filter(|a| !a.is_null()).collect()));
        Ok(addrs)
    }

    /// Writes every page of the bitmap that differs from the durable one. Pages that move change bits themselves,
    /// so their number is found by repetition; it only grows and is bounded by the number of pages.
    fn write_bitmap(
        &self,
        frozen: &Frozen,
        durable: &mut Durable,
        moves: &mut Moves,
        out: &mut BlockWriter<'_>,
    ) -> Result<Bits> {
        let mut bits = frozen.referenced.clone();
        let mut leaves: BTreeSet<usize> =
            frozen.changed_pages.iter().enumerate().filter(|(_, c)| **c).map(|(i, _)| i).collect();
        let mut placed: Vec<HashMap<usize, [PoolAddr; 2]>> = vec![HashMap::new(); durable.bitmap.height()];
        let (mut taken_seen, mut nodes_seen, mut pages_seen) = (0, 0, 0);
        loop {
            let mut touched = |p: usize| {
                leaves.insert(p);
            };
            for run in &moves.taken[taken_seen..] {
                bits.write(*run, true, &mut touched);
            }
            for run in moves.nodes_gone[nodes_seen..].iter().chain(&moves.pages_gone[pages_seen..]) {
                bits.write(*run, false, &mut touched);
            }
            (taken_seen, nodes_seen, pages_seen) =
                (moves.taken.len(), moves.nodes_gone.len(), moves.pages_gone.len());
            let levels = levels_above(&durable.bitmap, leaves.clone());
            let mut more = false;
            for (level, pages) in levels.iter().enumerate() {
                let new: Vec<usize> =
                    pages.iter().copied().filter(|i| !placed[level].contains_key(i)).collect();
                let addrs = self.take_metadata(new.len() as u64, moves)?;
                more |= !new.is_empty();
                for (i, addr) in new.into_iter().zip(addrs) {
                    placed[level].insert(i, addr);
                    moves.pages_gone.extend(runs_of(durable.bitmap.get(level, i)));
                }
            }
            if !more {
                break;
            }
        }
        for (level, placed) in placed.iter().enumerate() {
            let mut pages: Vec<_> = placed.iter().map(|(i, a)| (*i, *a)).collect();
            pages.sort_unstable();
            for (i, addr) in pages {
                let ptr = if level == 0 {
                    out.add(addr, frozen.generation, |block| match bits.page(i) {
                        Some(page) => {
                            for (o, w) in block.chunks_exact_mut(8).zip(page.iter()) {
                                o.copy_from_slice(&w.to_le_bytes());
                            }
                        }
                        None => block.fill(0),
                    })?
                } else {
                    out.add(addr, frozen.generation, |block| durable.bitmap.encode(level, i, block))?
                };
                durable.bitmap.set(level, i, ptr);
            }
        }
        Ok(bits)
    }

    /// Step 6.
    fn adopt_checkpoint(
        &self,
        frozen: Frozen,
        dirty: Vec<Arc<Node>>,
        new_sum_pages: Vec<(u64, NodePtr)>,
        moves: Moves,
        _bitmap: Bits,
    ) {
        // The old places go first, as far as nodes have not left the cache when they were changed: readers of older pictures
        // may have brought some of them back. A full cache takes what comes new for cold and soon drops it, and these nodes,
        // which have just been written to, are the ones most likely to be wanted again: so each is asked for once.
        for run in &moves.nodes_gone {
            self.cache.remove(&run.addr.0);
        }
        for node in &dirty {
            let ptr = node.location.get().expect("just written");
            let clean = match &node.body {
                // Most of the room in which it grew is not needed any more.
                Body::Leaf(leaf) => Arc::new(Node::clean(*ptr, Body::Leaf(leaf.settled()))),
                Body::Interior(n) => {
                    let mut settled = n.clone();
                    for child in &mut settled.children {
                        if let Link::Mem(c) = child {
                            *child = Link::Disk(*c.location.get().expect("written before its parent"));
                        }
                    }
                    Arc::new(Node::clean(*ptr, Body::Interior(settled)))
                }
            };
            self.cache.insert(ptr.addr[0].0, clean);
            self.cache.get(&ptr.addr[0].0);
        }
        for (page, ptr) in &new_sum_pages {
            self.sum_cache.insert(checksums::key(*ptr), frozen.sums[page].clone());
        }
        let nodes_gone = moves.nodes_gone.len() as u64;
        let mut core = self.core.lock();
        let space = &mut core.space;
        for run in &moves.taken {
            space.refer_to_metadata(*run, true);
        }
        for run in moves.nodes_gone.iter().chain(&moves.pages_gone) {
            space.refer_to_metadata(*run, false);
        }
        let written = dirty.len() as u64 * space.copies;
        space.frozen -= written;
        debug_assert_eq!(space.frozen, 0, "one checkpoint runs at a time");
        space.nodes = space.nodes + written - nodes_gone;
        space.held += nodes_gone + moves.pages_gone.len() as u64;
        for (page, ptr) in new_sum_pages {
            core.sums.ptrs.set(0, page as usize, ptr);
        }
        core.sums.frozen.clear();
        core.log.start = frozen.log.head;
        let generation = core.generation;
        for tree in &mut core.trees {
            tree.let_go(generation);
        }
        self.readers.retire(moves.nodes_gone);
        self.readers.retire_pages(moves.pages_gone);
        // At once, under the same lock: what the books keep for pages does not cover the old ones beside those of two checkpoints.
        for run in self.readers.drain() {
            core.space.release(run);
        }
    }
}

fn tree_root(tree: &Tree) -> TreeRoot {
    let ptr = match &tree.root {
        None => NodePtr::NULL,
        Some(Link::Disk(ptr)) => *ptr,
        Some(Link::Mem(node)) => *node.location.get().expect("roots are written last"),
    };
    TreeRoot { tree: tree.id, height: tree.height, ptr }
}

/// Changed pages of every level, from those of level 0.
fn levels_above(ptrs: &PagePtrs, leaves: BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let mut levels = vec![leaves];
    while levels.len() < ptrs.height() {
        levels.push(PagePtrs::parents(&levels[levels.len() - 1]));
    }
    levels
}

/// Dirty nodes in post-order. Below a clean node nothing is dirty.
fn collect_dirty(link: &Link, out: &mut Vec<Arc<Node>>) {
    let Link::Mem(node) = link else { return };
    if node.location.get().is_some() {
        return;
    }
    if let Body::Interior(n) = &node.body {
        n.children.iter().for_each(|c| collect_dirty(c, out));
    }
    out.push(node.clone());
}

/// Sorted, with neighbours joined.
fn join_runs(mut addrs: Vec<PoolAddr>) -> Vec<Run> {
    addrs.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for addr in addrs {
        match runs.last_mut() {
            Some(r) if r.addr.0 + r.bytes() == addr.0 => r.blocks += 1,
            _ => runs.push(Run { addr, blocks: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transaction;
    use crate::space::readers::Reading;
    use varve_format::TreeId;

    // Goal: a page that is being read is not reused, and a checkpoint that has no other room waits for that read, and only then. Method: a read
    // is held over two checkpoints, the second of which replaces the root block of the first; then the books are put where no room is left.
    #[test]
    fn a_checkpoint_waits_for_reads_of_pages_where_it_must() {
        let (_, store) = Store::in_memory();
        let change = |value: &[u8]| {
            let mut tx = Transaction::new();
            tx.put(TreeId::NAMES, b"key", value);
            store.apply(tx, None).expect("applies");
        };
        let held = || store.core.lock().space.held;
        change(b"one");
        store.checkpoint().expect("checkpoint");
        assert_eq!(held(), 0);
        let reading = Reading::of_page(&store.readers);
        change(b"two");
        store.checkpoint().expect("there is room");
        let kept = held();
        assert!(kept > 0, "what is being read is kept");
        let left = {
            let space = &mut store.core.lock().space;
            let left = space.available() + space.protected as i64 + 1;
            space.open += left as u64;
            left as u64
        };
        std::thread::scope(|scope| {
            let asked_at = store.position();
            let checkpoint = scope.spawn(|| store.checkpoint_as(true));
            for _ in 0..10_000 {
                std::thread::yield_now();
            }
            assert!(!checkpoint.is_finished(), "it has no room");
            drop(reading);
            checkpoint.join().expect("no panic").expect("checkpoint");
            assert_eq!(store.position(), asked_at);
        });
        store.core.lock().space.open -= left;
        assert_eq!(held(), 0);
        assert!(store.check(&mut [].into_iter(), true).expect("checks").problems.is_empty());
    }
}
