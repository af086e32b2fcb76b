//! Compares everything that is derived (bitmap, counts, pointers) with a walk over everything that exists.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_format::root::NodePtr;
use varve_format::{BLOCK_BYTES, PoolAddr, Run, block_checksum};

use crate::EngineError;
use crate::options::CheckReport;
use crate::space::bits::Bits;
use crate::store::Store;
use crate::tree::node::{Body, Link, Node};
use crate::tree::{Miss, NodeSource, Replaced, Tree};

type Result<T> = std::result::Result<T, EngineError>;

/// Problems listed; more are counted.
const PROBLEMS_MAX: usize = 1000;

struct Walk<'a> {
    store: &'a Store,
    seen: Bits,
    report: CheckReport,
    omitted: u64,
}

impl Walk<'_> {
    fn problem(&mut self, text: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(text);
        } else {
            self.omitted += 1;
        }
    }

    fn claim(&mut self, run: Run, what: &str) {
        let total = self.store.core.lock().space.total;
        let end = run.addr.block().saturating_add(u64::from(run.blocks));
        if run.addr.is_null()
            || run.blocks == 0
            || end > total
            || !run.addr.0.is_multiple_of(BLOCK_BYTES as u64)
        {
            return self.problem(format!(
                "{what} lies outside the pool: {} blocks at {:#x}",
                run.blocks, run.addr.0
            ));
        }
        let fresh = self.seen.write(run, true, &mut |_| {});
        if fresh != u64::from(run.blocks) {
            let twice = u64::from(run.blocks) - fresh;
            self.problem(format!(
                "{what} at {:#x}: {twice} of its blocks belong to something else too",
                run.addr.0
            ));
        }
    }

    fn claim_ptr(&mut self, ptr: NodePtr, what: &str) {
        for addr in ptr.copies() {
            self.claim(Run { addr, blocks: 1 }, what);
        }
    }

    /// Every copy of a block of metadata, not only the first.
    fn verify_copies(&mut self, ptr: NodePtr, what: &str) {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        for addr in ptr.copies() {
            for copy in 0..self.store.pool.copies(addr) {
                match self.store.pool.read_copy(addr, &mut block, copy) {
                    Ok(()) if block_checksum(&block) == ptr.checksum => {}
                    Ok(()) => {
                        self.problem(format!("{what} at {:#x}: copy {copy} fails its checksum", addr.0))
                    }
                    Err(e) => self.problem(format!("{what} at {:#x}: {e}", addr.0)),
                }
            }
        }
    }

    fn node(&mut self, tree: &Tree, link: &Link, level: u8, low: &[u8], high: Option<&[u8]>) {
        let what = format!("a node of the {} tree", tree.id.name());
        let node: Arc<Node> = match link {
            Link::Mem(node) => node.clone(),
            Link::Disk(ptr) => {
                self.claim_ptr(*ptr, &what);
                self.verify_copies(*ptr, &what);
                match self.store.load(Miss { ptr: *ptr, tree: tree.id, level }) {
                    Ok(node) => node,
                    Err(e) => return self.problem(e.to_string()),
                }
            }
        };
        if let (Link::Mem(_), Some(ptr)) = (link, node.location.get()) {
            self.claim_ptr(*ptr, &what);
        }
        self.report.nodes += 1;
        let inside = |key: &[u8]| key >= low && high.is_none_or(|h| key < h);
        match &node.body {
            Body::Leaf(leaf) => {
                self.report.entries += leaf.len() as u64;
                if leaf.len() == 0 {
                    self.problem(format!("{what} is an empty leaf"));
                }
                if !(0..leaf.len()).all(|i| inside(leaf.key(i))) {
                    self.problem(format!("{what} has keys outside the range its parent gives it"));
                }
            }
            Body::Interior(n) => {
                if !n.keys[1..].iter().all(|k| inside(k.as_slice())) {
                    self.problem(format!("{what} has separators outside the range its parent gives it"));
                }
                for (i, child) in n.children.iter().enumerate() {
                    let from = if i == 0 { low } else { n.keys[i].as_slice() };
                    let to = n.keys.get(i + 1).map(|k| k.as_slice()).or(high);
                    self.node(tree, child, level - 1, from, to);
                }
            }
        }
    }

    fn data(&mut self, run: Run, verify: bool) {
        let before = self.report.problems.len();
        self.claim(run, "an extent");
        if !verify || self.report.problems.len() > before {
            return;
        }
        const PART_BLOCKS: u32 = 256;
        let mut done = 0;
        while done < run.blocks {
            let n = PART_BLOCKS.min(run.blocks - done);
            let addr = PoolAddr::from_block(run.addr.block() + u64::from(done));
            let mut buf = AlignedBuf::new(n as usize * BLOCK_BYTES);
            if let Err(e) = self.store.read_data(addr, &mut buf) {
                self.problem(e.to_string());
            }
            self.report.data_blocks += u64::from(n);
            done += n;
        }
    }
}

impl Store {
    /// Walks every tree and array, verifies every block that is in use, and compares all derived state (bitmaps,
    /// counts) with what the walk saw. `data_runs` are the runs of data that the caller's records refer to.
    pub fn check(&self, data_runs: &mut dyn Iterator<Item = Run>, verify_data: bool) -> Result<CheckReport> {
        // No checkpoint may move things meanwhile; the caller keeps writers away.
        let durable = self.durable.lock();
        let view = self.view();
        let total = self.core.lock().space.total;
        let mut walk =
            Walk { store: self, seen: Bits::new(total), report: CheckReport::default(), omitted: 0 };
        for tree in view.trees() {
            if let Some(root) = &tree.root {
                walk.node(tree, root, tree.height - 1, &[], None);
            }
        }
        for (ptrs, what) in [(&durable.sums, "a checksum page"), (&durable.bitmap, "a bitmap page")] {
            for ptr in ptrs.all() {
                walk.claim_ptr(ptr, what);
                walk.verify_copies(ptr, what);
            }
        }
        walk.claim_ptr(durable.root, "the root block");
        for run in data_runs {
            walk.data(run, verify_data);
        }
        let data_blocks = walk.seen.count();
        let core = self.core.lock();
        for replaced in &core.replaced {
            // Nodes of the durable checkpoint that the present state has given up.
            let ptr = match replaced {
                Replaced::At(ptr) => Some(*ptr),
                Replaced::Frozen(node) => node.location.get().copied(),
            };
            for addr in ptr.iter().flat_map(NodePtr::copies) {
                walk.seen.write(Run { addr, blocks: 1 }, true, &mut |_| {});
            }
        }
        let s = &core.space;
        let mut differences = Vec::new();
        let mut block = 1;
        while block < total && differences.len() < PROBLEMS_MAX {
            let (marked, used) = (s.referenced.get(block), walk.seen.get(block));
            if marked && !used {
                differences
                    .push(format!("block {:#x} is marked in use and nothing refers to it", block << 12));
            } else if used && !marked {
                differences.push(format!("block {:#x} is in use and not marked so", block << 12));
            }
            block += 1;
        }
        let _ = data_blocks;
        let books = [
            (s.data + s.nodes + page_blocks(&durable), s.referenced.count(), "blocks in use"),
            (s.dirty_nodes, count_dirty(view.trees(), core.generation), "dirty nodes"),
        ];
        for (kept, counted, what) in books {
            if kept != counted {
                differences.push(format!("the books say {kept} {what}, a full scan finds {counted}"));
            }
        }
        drop(core);
        differences.into_iter().for_each(|d| walk.problem(d));
        if walk.omitted > 0 {
            walk.report.problems.push(format!("{} further problems are not listed", walk.omitted));
        }
        Ok(walk.report)
    }
}

fn page_blocks(durable: &crate::checkpoint::Durable) -> u64 {
    let pages = durable.sums.all().chain(durable.bitmap.all()).chain([durable.root]);
    pages.map(|p| p.copies().count() as u64).sum()
}

fn count_dirty(trees: &[Tree], generation: u64) -> u64 {
    fn below(link: &Link, generation: u64) -> u64 {
        match link {
            Link::Mem(n) if n.generation == generation && n.location.get().is_none() => match &n.body {
                Body::Leaf(_) => 1,
                Body::Interior(i) => 1 + i.children.iter().map(|c| below(c, generation)).sum::<u64>(),
            },
            _ => 0,
        }
    }
    trees.iter().flat_map(|t| &t.root).map(|r| below(r, generation)).sum()
}
