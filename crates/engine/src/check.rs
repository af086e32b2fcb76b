//! Compares everything that is derived (bitmap, counts, pointers) with a walk over everything that exists.
//!
//! One walk serves two ends. Over an open pool it only looks. Over a pool that is opened to be checked, damaged as it
//! may be, it also gives back the trees without what cannot be used, so that everything above can read them without
//! meeting an error, a ring or the same node twice. A block is claimed by the first pointer to it and never walked
//! again: the work is bounded by the size of the pool whatever it holds.

mod shares;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use varve_device::AlignedBuf;
use varve_format::root::NodePtr;
use varve_format::{BLOCK_BYTES, PoolAddr, Run, TreeId, block_checksum};

use crate::EngineError;
use crate::checkpoint::Durable;
use crate::key::Key;
use crate::options::{CheckReport, CheckStage};
use crate::problem::{Problem, ProblemKind as Kind, Problems};
use crate::space::bits::Bits;
use crate::store::{Store, View};
use crate::tree::node::{Body, Interior, Link, Node};
use crate::tree::{Replaced, Tree};

type Result<T> = std::result::Result<T, EngineError>;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Keys of a tree that cannot be had: from `low` up to and without `high`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostKeys {
    /// Which tree.
    pub tree: TreeId,
    /// The first.
    pub low: Vec<u8>,
    /// The end; `None`: that of the tree.
    pub high: Option<Vec<u8>>,
}

impl LostKeys {
    /// Whether `key` of `tree` is among them.
    pub fn covers(&self, tree: TreeId, key: &[u8]) -> bool {
        self.tree == tree && key >= &self.low[..] && self.high.as_ref().is_none_or(|high| key < &high[..])
    }
}

/// What was found while a pool was opened to be checked.
pub(crate) struct Damage {
    problems: Problems,
    seen: Bits,
    lost: Vec<LostKeys>,
    nodes: u64,
    entries: u64,
    trees: BTreeMap<TreeId, u64>,
}

impl Damage {
    /// Adds what replaying the log found.
    pub fn add(&mut self, problem: Problem) {
        self.problems.add(problem);
    }
    /// Blocks that something refers to.
    pub fn seen(&self) -> &Bits {
        &self.seen
    }
}

/// A walk over a pool.
pub(crate) struct Walk<'a> {
    store: &'a Store,
    total: u64,
    /// What cannot be said about the bitmap and the checksums, which are damaged themselves, is not said.
    problems: Problems,
    /// Blocks that something refers to.
    seen: Bits,
    lost: Vec<LostKeys>,
    nodes: u64,
    entries: u64,
    /// The entries, by tree.
    trees: BTreeMap<TreeId, u64>,
    data_blocks: u64,
    /// Of a pool that was closed before everything can be looked at.
    was_closed: bool,
    /// Blocks of nodes that were read together, before they are looked at.
    ahead: HashMap<PoolAddr, AlignedBuf>,
}

/// Children of a node whose blocks are read in one group of requests.
const TOGETHER: usize = 64;

impl<'a> Walk<'a> {
    /// A walk that adds to `problems`.
    pub fn new(store: &'a Store, problems: Problems) -> Walk<'a> {
        let total = store.core.lock().space.total;
        let (seen, lost) = (Bits::new(total), Vec::new());
        Walk {
            store,
            total,
            problems,
            seen,
            lost,
            nodes: 0,
            entries: 0,
            trees: BTreeMap::new(),
            data_blocks: 0,
            was_closed: store.closed.load(Relaxed),
            ahead: HashMap::new(),
        }
    }

    fn again(store: &'a Store, damage: &Damage) -> Walk<'a> {
        Walk {
            seen: damage.seen.clone(),
            lost: damage.lost.clone(),
            nodes: damage.nodes,
            entries: damage.entries,
            trees: damage.trees.clone(),
            ..Walk::new(store, damage.problems.clone())
        }
    }

    /// Ends it.
    pub fn into_damage(self) -> Damage {
        let Walk { problems, seen, lost, nodes, entries, trees, .. } = self;
        Damage { problems, seen, lost, nodes, entries, trees }
    }

    fn problem(&mut self, kind: Kind, text: String) {
        self.problems.add(Problem::new(kind, text));
    }

    /// Labels and superblocks of all devices. `named` is the newest superblock generation that the log of a pool names that nobody has open:
    /// it had been written.
    pub fn devices(&mut self, named: Option<u64>) {
        let superblock = self.store.superblock.lock().clone();
        self.store.pool.examine(&superblock, named, &mut self.problems);
    }

    /// Checks a tree and gives back what of it can be used.
    pub fn tree(&mut self, tree: &Tree) -> Tree {
        let usable = tree
            .root
            .as_ref()
            .and_then(|root| self.node(tree.id, root, tree.height - 1, Key::EMPTY.as_slice(), None));
        match usable {
            Some(root) => Tree { root: Some(root), ..tree.clone() },
            None => Tree::empty(tree.id),
        }
    }

    /// Pages of the arrays, and the root block.
    pub fn arrays(&mut self, durable: &Durable) {
        for (ptrs, what) in
            [(&durable.sums, "a page of checksums"), (&durable.bitmap, "a page of the bitmap")]
        {
            for ptr in ptrs.all() {
                if self.claim_ptr(ptr, what) {
                    // What is wrong with it has been noted.
                    drop(self.good_copy(ptr, what, Kind::ArrayUnreadable));
                }
            }
        }
        self.claim_ptr(durable.root, "the root block");
    }

    /// Notes that a run belongs to `what`. False if it cannot be.
    fn claim(&mut self, run: Run, what: &str, outside: Kind) -> bool {
        let end = run.addr.block().saturating_add(u64::from(run.blocks));
        let aligned = run.addr.0.is_multiple_of(BLOCK);
        if run.addr.is_null() || run.blocks == 0 || end > self.total || !aligned {
            let text = format!("{what} lies outside the pool: {} blocks at {:#x}", run.blocks, run.addr.0);
            self.problem(outside, text);
            return false;
        }
        let fresh = self.seen.write(run, true, &mut |_| {});
        if fresh != u64::from(run.blocks) {
            let twice = u64::from(run.blocks) - fresh;
            let text =
                format!("{what} at {:#x}: {twice} of its blocks belong to something else too", run.addr.0);
            let blocks = Some((run.addr.0, run.bytes()));
            self.problems.add(Problem { blocks, ..Problem::new(Kind::BlockUsedTwice, text) });
            return false;
        }
        true
    }

    fn claim_ptr(&mut self, ptr: NodePtr, what: &str) -> bool {
        // All copies, also when one of them cannot be.
        ptr.copies().fold(true, |ok, addr| {
            let mine = self.claim(Run { addr, blocks: 1 }, what, Kind::PointerOutside);
            ok && mine
        })
    }

    /// The block behind `ptr`; every copy is looked at, and asked for once more if the device fails. If none is good, that is a problem of
    /// the given kind.
    fn good_copy(&mut self, ptr: NodePtr, what: &str, none: Kind) -> Option<AlignedBuf> {
        let mut good = None;
        let mut bad = Vec::new();
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        for addr in ptr.copies() {
            for copy in 0..self.store.pool.copies(addr) {
                let read_ahead = if copy == 0 { self.ahead.remove(&addr) } else { None };
                let read = match read_ahead {
                    Some(ahead) => {
                        block = ahead;
                        Ok(())
                    }
                    None => {
                        let mut read = || self.store.pool.read_copy(addr, &mut block, copy);
                        read().or_else(|e| if e.may_pass() { read() } else { Err(e) })
                    }
                };
                match read {
                    Ok(()) if block_checksum(&block) == ptr.checksum => {
                        good.get_or_insert_with(|| AlignedBuf::from_slice(&block));
                    }
                    Ok(()) => bad.push((addr, "it fails its checksum".to_owned())),
                    Err(e) => bad.push((addr, e.to_string())),
                }
            }
        }
        let kind = if good.is_some() { Kind::NodeCopyDamaged } else { none };
        for (addr, why) in bad {
            let text = match good {
                Some(_) => format!("one copy of {what}, at {:#x}: {why}; another is good", addr.0),
                None => format!("{what} at {:#x}: {why}", addr.0),
            };
            self.problems.add(Problem { blocks: Some((addr.0, BLOCK)), ..Problem::new(kind, text) });
        }
        good
    }

    /// Reads all copies of the nodes behind these links, which are looked at next: one by one each would be waited for. What cannot
    /// be read is read again when it is looked at. Gives what is to be forgotten when they have been looked at.
    fn read_ahead(&mut self, links: &[Link]) -> Vec<PoolAddr> {
        let ptrs = links.iter().filter_map(|link| match link {
            Link::Disk(ptr) => Some(*ptr),
            Link::Mem(_) => None,
        });
        let addrs: Vec<PoolAddr> = ptrs.flat_map(|ptr| ptr.copies().collect::<Vec<_>>()).collect();
        let mut blocks = AlignedBuf::new(addrs.len() * BLOCK_BYTES);
        let read = self.store.pool.read_blocks(&addrs, &mut blocks);
        for ((addr, block), read) in addrs.iter().zip(blocks.chunks_exact(BLOCK_BYTES)).zip(read) {
            if read {
                self.ahead.insert(*addr, AlignedBuf::from_slice(block));
            }
        }
        addrs
    }

    /// Reads a node; says what is wrong with it if it cannot be used.
    fn read(&mut self, tree: TreeId, ptr: NodePtr, level: u8) -> Option<Arc<Node>> {
        let what = format!("a node of the {} tree (level {level})", tree.name());
        let block = self.good_copy(ptr, &what, Kind::NodeUnreadable)?;
        let at = ptr.addr[0].0;
        let (header, node) = match Node::decode(&block, ptr) {
            Ok(decoded) => decoded,
            Err(why) => {
                let order = why.what == "keys out of order";
                let kind = if order { Kind::NodeKeyOrder } else { Kind::NodeMalformed };
                self.problem(kind, format!("{what} at {at:#x}: {why}"));
                return None;
            }
        };
        if header.tree != tree || header.level != level || header.pool_tag != self.store.pool_tag {
            let is = format!("tree {}, level {}", header.tree.0, header.level);
            self.problem(Kind::NodeForeign, format!("{what} at {at:#x} says: {is}, or another pool"));
            return None;
        }
        if header.birth != ptr.birth {
            let (is, says) = (header.birth, ptr.birth);
            let text = format!("{what} at {at:#x} was written by checkpoint {is}, its pointer says {says}");
            self.problem(Kind::NodeGeneration, text);
        }
        Some(Arc::new(node))
    }

    /// Checks what hangs below a link, whose keys are from `low` to `high`. Returns what of it can be used: the link
    /// itself if all can.
    fn node(
        &mut self,
        tree: TreeId,
        link: &Link,
        level: u8,
        low: &[u8],
        high: Option<&[u8]>,
    ) -> Option<Link> {
        let found = match link {
            Link::Mem(node) => {
                let claimed = node.location.get().is_none_or(|ptr| self.claim_ptr(*ptr, "a node in memory"));
                claimed.then(|| node.clone())
            }
            Link::Disk(ptr) => {
                let what = format!("a node of the {} tree", tree.name());
                if self.claim_ptr(*ptr, &what) { self.read(tree, *ptr, level) } else { None }
            }
        };
        let Some(node) = found else {
            self.lost.push(LostKeys { tree, low: low.to_vec(), high: high.map(<[u8]>::to_vec) });
            return None;
        };
        self.nodes += 1;
        self.store.options.progress.step(1);
        let at = node.location.get().map_or(0, |ptr| ptr.addr[0].0);
        let inside = |key: &[u8]| key >= low && high.is_none_or(|h| key < h);
        let body = match &node.body {
            Body::Leaf(leaf) => {
                let outside = (0..leaf.len()).filter(|i| !inside(&leaf.key(*i))).count();
                if leaf.len() > 0 && outside == 0 {
                    self.entries += leaf.len() as u64;
                    *self.trees.entry(tree).or_default() += leaf.len() as u64;
                    self.keep(link, &node);
                    return Some(link.clone());
                }
                // Whoever reads the pool refuses the node as a whole: what it has in its range is lost, too.
                let of = format!("a leaf of the {} tree at {at:#x}", tree.name());
                match leaf.len() {
                    0 => self.problem(Kind::NodeEmpty, of),
                    _ => self.problem(Kind::NodeKeyRange, format!("{outside} keys of {of}")),
                }
                self.lost.push(LostKeys { tree, low: low.to_vec(), high: high.map(<[u8]>::to_vec) });
                return None;
            }
            Body::Interior(n) => {
                if !n.keys()[1..].iter().all(|k| inside(k.as_slice())) {
                    let text = format!("separators of a node of the {} tree at {at:#x}", tree.name());
                    self.problem(Kind::NodeKeyRange, text);
                    self.lost.push(LostKeys { tree, low: low.to_vec(), high: high.map(<[u8]>::to_vec) });
                    return None;
                }
                let (mut keys, mut children) = (Vec::new(), Vec::new());
                let (mut changed, mut read) = (false, Vec::new());
                for (i, child) in n.children.iter().enumerate() {
                    if i % TOGETHER == 0 {
                        // Of those that turned out to be somebody else's there may be some left.
                        read.iter().for_each(|addr| _ = self.ahead.remove(addr));
                        read = self.read_ahead(&n.children[i..][..TOGETHER.min(n.children.len() - i)]);
                    }
                    let from = if i == 0 { low } else { n.keys()[i].as_slice() };
                    let to = n.keys().get(i + 1).map(|k| k.as_slice()).or(high);
                    let usable = self.node(tree, child, level - 1, from, to);
                    changed |= match (&usable, child) {
                        (Some(Link::Disk(_)), Link::Disk(_)) => false,
                        (Some(Link::Mem(new)), Link::Mem(old)) => !Arc::ptr_eq(new, old),
                        _ => true,
                    };
                    if let Some(usable) = usable {
                        keys.push(if keys.is_empty() { Key::EMPTY } else { n.keys()[i] });
                        children.push(usable);
                    }
                }
                read.iter().for_each(|addr| _ = self.ahead.remove(addr));
                if !changed {
                    self.keep(link, &node);
                    return Some(link.clone());
                }
                if children.is_empty() {
                    return None;
                }
                Body::Interior(Interior::new(level, keys, children))
            }
        };
        let rebuilt = Node::new(0, body);
        if let Some(ptr) = node.location.get() {
            let _ = rebuilt.location.set(*ptr);
        }
        Some(Link::Mem(Arc::new(rebuilt)))
    }

    /// A sound node is likely to be read again.
    fn keep(&self, link: &Link, node: &Arc<Node>) {
        if let Link::Disk(ptr) = link {
            self.store.cache.insert(ptr.addr[0].0, node.clone());
        }
    }

    /// Reads what these runs name, whose addresses ascend, every copy of it; those that lie side by side are read together.
    fn data(&mut self, runs: &[Run]) -> Result<()> {
        const PART_BLOCKS: u64 = 256;
        let block_range = |run: &Run| run.addr.block()..run.addr.block() + u64::from(run.blocks);
        for together in runs.chunk_by(|one, next| block_range(one).end == next.addr.block()) {
            let (Some(first), Some(last)) = (together.first(), together.last()) else { continue };
            let (mut first, end) = (block_range(first).start, block_range(last).end);
            while first < end {
                // Whoever closes the pool does not wait for this.
                if self.store.closed.load(Relaxed) && !self.was_closed {
                    return Err(EngineError::Stopped("it has been closed".into()));
                }
                let n = PART_BLOCKS.min(end - first);
                if !self.is_whole(first, n) {
                    // What is bad is told of each run by itself: they belong to different files.
                    let from = together.partition_point(|run| block_range(run).end <= first);
                    for run in together[from..].iter().map(block_range) {
                        if run.start >= first + n {
                            break;
                        }
                        let start = run.start.max(first);
                        self.bad_data(start, run.end.min(first + n) - start);
                    }
                }
                self.data_blocks += n;
                self.store.options.progress.step(n);
                first += n;
            }
        }
        Ok(())
    }

    /// Whether all copies of these blocks can be read and are what was written. Changes nothing: a check tells of a bad copy.
    fn is_whole(&self, first: u64, blocks: u64) -> bool {
        // Blocks that ride with the log are in memory, and not all of them on the device; asked first, since they may land
        // meanwhile.
        let riding = self.store.riding(first, blocks);
        let Ok(sums) = self.store.checksums_of(first, blocks) else { return false };
        let addr = PoolAddr::from_block(first);
        let mut buf = AlignedBuf::new(blocks as usize * BLOCK_BYTES);
        (0..self.store.pool.copies(addr)).all(|copy| {
            let read = self.store.pool.read_copy(addr, &mut buf, copy).is_ok();
            let good = |(i, block): (usize, &[u8])| {
                riding.get(i).is_some_and(Option::is_some) || block_checksum(block) == sums[i]
            };
            read && buf.chunks_exact(BLOCK_BYTES).enumerate().all(good)
        })
    }

    /// Finds which of these blocks cannot be had, and which are damaged in some of their copies.
    fn bad_data(&mut self, first: u64, blocks: u64) {
        let mut bad: Option<(Kind, u64, u64, String)> = None;
        for block in first..=first + blocks {
            let found = if block == first + blocks { None } else { self.bad_block(block) };
            match (found, &mut bad) {
                (Some((kind, _)), Some((same, _, count, _))) if kind == *same => *count += 1,
                (found, bad) => {
                    if let Some((kind, from, count, why)) = bad.take() {
                        let text = match kind {
                            Kind::DataUnreadable => {
                                format!("{count} blocks of data at {:#x}: {why}", from << 12)
                            }
                            _ => format!(
                                "one copy of {count} blocks of data at {:#x}: {why}; another is good",
                                from << 12
                            ),
                        };
                        let blocks = Some((from << 12, count << 12));
                        self.problems.add(Problem { blocks, ..Problem::new(kind, text) });
                    }
                    *bad = found.map(|(kind, why)| (kind, block, 1, why));
                }
            }
        }
    }

    /// What is wrong with a block of data.
    fn bad_block(&self, block: u64) -> Option<(Kind, String)> {
        if self.store.riding(block, 1).iter().any(Option::is_some) {
            return None;
        }
        let sum = match self.store.checksums_of(block, 1) {
            Ok(sums) => sums[0],
            Err(why) => return Some((Kind::DataUnreadable, why.to_string())),
        };
        let (addr, mut buf) = (PoolAddr::from_block(block), AlignedBuf::new(BLOCK_BYTES));
        let (mut good, mut wrong) = (false, None);
        for copy in 0..self.store.pool.copies(addr) {
            match self.store.pool.read_copy(addr, &mut buf, copy) {
                Ok(()) if block_checksum(&buf) == sum => good = true,
                Ok(()) => wrong = wrong.or(Some(EngineError::Checksum { addr: addr.0 })),
                Err(why) => wrong = Some(why),
            }
        }
        let kind = if good { Kind::DataCopyDamaged } else { Kind::DataUnreadable };
        wrong.map(|why| match why {
            EngineError::Checksum { addr } if good => {
                (kind, format!("block {addr:#x} fails its checksum there"))
            }
            why => (kind, why.to_string()),
        })
    }

    /// The bitmap against what was seen.
    fn bitmap(&mut self, marked: &Bits) {
        // Without a node nobody knows what it referred to.
        let leaks = self.lost.is_empty();
        let differs = |block: u64| match (marked.get(block), self.seen.get(block)) {
            (true, false) if leaks => Some(Kind::BlockLeaked),
            (false, true) => Some(Kind::BlockNotMarked),
            _ => None,
        };
        let mut found = Problems::default();
        let mut block = 1;
        while let Some(first) = marked.next_difference(&self.seen, block, self.total) {
            block = first + 1;
            let Some(kind) = differs(first) else { continue };
            while block < self.total && differs(block) == Some(kind) {
                block += 1;
            }
            let (addr, count) = (first << 12, block - first);
            let text = match kind {
                Kind::BlockLeaked => {
                    format!("{count} blocks at {addr:#x} are marked in use and nothing refers to them")
                }
                _ => format!("{count} blocks at {addr:#x} are in use and not marked so"),
            };
            found.add(Problem { blocks: Some((addr, count << 12)), ..Problem::new(kind, text) });
        }
        self.problems.append(found);
    }
}

impl Store {
    /// Walks every tree and array, verifies every block that is in use, and compares all derived state (bitmaps,
    /// counts) with what the walk saw. `data_runs` are the runs of data that the caller's extents name, each by each.
    pub fn check(&self, data_runs: &mut dyn Iterator<Item = Run>, verify_data: bool) -> Result<CheckReport> {
        let (view, mut walk, runs) = self.walk(data_runs)?;
        let blocks = runs.iter().map(|run| u64::from(run.blocks)).sum();
        self.options.progress.begin(CheckStage::Data, if verify_data { blocks } else { 0 });
        let walked = std::mem::take(&mut walk.problems);
        if verify_data {
            walk.data(&runs)?;
        }
        drop(view);
        let Walk { mut problems, nodes, entries, trees, data_blocks, .. } = walk;
        // Not all problems are told: data that is lost comes first.
        let data_omitted = problems.omitted;
        problems.append(walked);
        Ok(CheckReport {
            problems: problems.list,
            omitted: problems.omitted,
            data_omitted,
            warnings: problems.warnings,
            nodes,
            entries,
            trees,
            data_blocks,
        })
    }

    /// The part of a check that reads no data. Gives the runs of it that may be read, by address, and what keeps them.
    fn walk(&self, data_runs: &mut dyn Iterator<Item = Run>) -> Result<(View, Walk<'_>, Vec<Run>)> {
        // No checkpoint may move things meanwhile; the caller keeps writers away.
        let durable = self.durable.lock();
        let view = self.view();
        let damage = self.damage.get();
        let mut walk = match damage {
            Some(damage) => Walk::again(self, damage),
            None => {
                let mut walk = Walk::new(self, Problems::default());
                walk.devices(None);
                for tree in view.trees() {
                    walk.tree(tree);
                }
                walk.arrays(&durable);
                for problem in self.bitmap_lost.iter().flat_map(|wrong| &wrong.list) {
                    let said =
                        |listed: &Problem| listed.kind == problem.kind && listed.blocks == problem.blocks;
                    if !walk.problems.list.iter().any(said) {
                        walk.problems.add(problem.clone());
                    }
                }
                walk
            }
        };
        let arrays_lost = walk.problems.has(Kind::ArrayUnreadable);
        let mut runs = Vec::new();
        if !walk.problems.has(Kind::RootUnreadable) {
            let mut named: Vec<Run> = data_runs.collect();
            runs = walk.count_names(&mut named, &view)?;
            runs.retain(|run| walk.claim(*run, "an extent", Kind::ExtentOutside));
            let core = self.core.lock();
            if damage.is_none() {
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
                let books = [
                    (s.data + s.nodes + page_blocks(&durable), s.referenced.count(), "blocks in use"),
                    (s.dirty_nodes, count_dirty(view.trees(), core.generation), "dirty nodes"),
                ];
                for (kept, counted, what) in books {
                    if kept != counted && self.bitmap_lost.is_none() {
                        let text = format!("the books say {kept} {what}, a full scan finds {counted}");
                        walk.problem(Kind::BooksDiffer, text);
                    }
                }
            }
            let marked = core.space.referenced.clone();
            drop(core);
            // Of a pool that is only read without its bitmap nothing is marked but what was met on the way.
            if !arrays_lost && (damage.is_some() || self.bitmap_lost.is_none()) {
                walk.bitmap(&marked);
            }
        }
        Ok((view, walk, runs))
    }

    /// Keys that could not be had when the pool was opened to be checked.
    pub fn lost_keys(&self) -> Vec<LostKeys> {
        self.damage.get().map_or_else(Vec::new, |damage| damage.lost.clone())
    }

    /// Whether the pool was opened to be checked, and nothing at all can be found in it.
    pub fn is_hopeless(&self) -> bool {
        self.damage.get().is_some_and(|damage| damage.problems.has(Kind::RootUnreadable))
    }

    /// Numbers below this are taken, says the log.
    pub fn id_floor(&self) -> u64 {
        self.core.lock().id_floor
    }
}

fn page_blocks(durable: &Durable) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::bits::WORDS_READ;

    // Goal: comparing the bitmap costs what is in use, not the size of the pool. Method: a few blocks of one of 256 TiB are marked, seen, or both,
    // on both sides of borders; what is told, and how many words are read.
    #[test]
    fn a_sparse_bitmap_is_compared_quickly() {
        let (_, store) = Store::in_memory();
        let mut walk = Walk::new(&store, Problems::default());
        walk.total = 1 << 36;
        let (mut marked, mut seen) = (Bits::new(walk.total), Bits::new(walk.total));
        let run = |first: u64, blocks| Run { addr: PoolAddr::from_block(first), blocks };
        let last = walk.total - 3;
        for (bits, runs) in [
            (&mut marked, [run(1, 100), run(32_700, 200), run(1 << 35, 64), run(last, 3)]),
            (&mut seen, [run(1, 100), run(32_760, 20), run(1 << 30, 1), run(last, 1)]),
        ] {
            runs.into_iter().for_each(|run| _ = bits.write(run, true, &mut |_| {}));
        }
        walk.seen = seen;
        WORDS_READ.set(0);
        walk.bitmap(&marked);
        assert!(WORDS_READ.get() < 4096, "{}", WORDS_READ.get());
        let told: Vec<_> = walk.problems.list.iter().map(|p| (p.kind, p.blocks.expect("blocks"))).collect();
        let of = |kind, first: u64, blocks: u64| (kind, (first << 12, blocks << 12));
        let expected = [
            of(Kind::BlockLeaked, 32_700, 60),
            of(Kind::BlockLeaked, 32_780, 120),
            of(Kind::BlockNotMarked, 1 << 30, 1),
            of(Kind::BlockLeaked, 1 << 35, 64),
            of(Kind::BlockLeaked, last + 1, 2),
        ];
        assert_eq!(told, expected);
    }
}
