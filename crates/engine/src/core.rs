//! The state under the apply mutex, and the application of one transaction to it.
//!
//! A transaction is applied as a whole or not at all: first everything it needs is found or asked for, its space is
//! checked and its log record measured; from then on nothing can fail. The mutex that guards this state also gives
//! the log its order. No I/O happens here.

use std::cell::Cell;
use std::sync::Arc;

use varve_format::batch;
use varve_format::node::HEIGHT_MAX;
use varve_format::root::NodePtr;
use varve_format::{BLOCK_BYTES, BLOCK_SHIFT, Corrupt, Lsn, Run, TreeId};

use crate::EngineError;
use crate::checkpoint::checksums::{self, Checksums, SumCache, SumPins};
use crate::planted::{Planted, is};
use crate::shares::{self, Unsettled};
use crate::space::{Space, Urgency};
use crate::transaction::{Data, Op, Transaction};
use crate::tree::node::{Link, Node};
use crate::tree::{
    Asked, Change, Forecast, Miss, Mutation, NodeCache, NodeSource, Pins, Replaced, Route, SPARE_NODES, Step,
    Tree, resident, step,
};
use crate::version::keyframe;

/// Where the log stands.
#[derive(Clone, Copy, Debug)]
pub struct LogTail {
    /// Absolute position where the next batch goes.
    pub head: u64,
    /// Absolute position of the first batch that the durable checkpoint needs.
    pub start: u64,
    /// Number of the next batch.
    pub sequence: u64,
    /// Checksum of the last one.
    pub previous: u32,
    /// Epoch.
    pub epoch: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
}

impl LogTail {
    /// Bytes of log between the checkpoint and the head.
    pub fn used(&self) -> u64 {
        self.head - self.start
    }

    /// Whether a batch with so many bytes of transactions may be written. An eighth of the ring stays free, so that what gathers can
    /// always be.
    pub fn takes(&self, payload_bytes: usize) -> bool {
        let after = self.used() + (batch::batch_blocks(payload_bytes) << BLOCK_SHIFT) as u64;
        after + self.ring_bytes / 8 <= self.ring_bytes
    }
}

/// The batch that gathers.
#[derive(Default)]
pub struct Pending {
    /// Encoded transactions.
    pub payload: Vec<u8>,
    /// How many.
    pub transactions: u32,
    /// Position of the first.
    pub first: Lsn,
    /// Data that goes out with the batch.
    pub rides: Vec<(Run, Data)>,
    /// Bytes of it.
    pub ride_bytes: u64,
    /// Blocks these transactions stop using.
    pub frees: Vec<Run>,
    /// Blocks of data that has taken what floats.
    pub floated: u64,
}

/// Bytes of log, and rides, that an empty batch may have room for and still be kept for the next.
const SPARE_PAYLOAD_MAX: usize = PENDING_BYTES_SOFT / 4 * 9;
const SPARE_RIDES_MAX: usize = 256;

impl Pending {
    /// Empties a batch that is done with. `None`: it is too large to be kept for the next.
    pub fn emptied(mut self) -> Option<Pending> {
        if self.payload.capacity() > SPARE_PAYLOAD_MAX || self.rides.capacity() > SPARE_RIDES_MAX {
            return None;
        }
        self.payload.clear();
        self.rides.clear();
        Some(Pending { payload: self.payload, rides: self.rides, ..Pending::default() })
    }
}

/// What a transaction stands on: fetched for it while the mutex was not held, or found in a cache that may drop it at
/// any moment.
#[derive(Default)]
pub struct Fetched {
    /// Nodes.
    pub nodes: Pins,
    /// Pages of checksums.
    pub sums: SumPins,
}

/// What a reservation holds.
#[derive(Default, Clone, Copy, Debug)]
pub struct Purse {
    /// Blocks of data.
    pub data: u64,
    /// Bytes of metadata, all copies counted.
    pub metadata_bytes: u64,
    /// Of the blocks of data, those that have taken what floats.
    pub floating: u64,
    /// Blocks for the nodes that its data divides, all copies counted.
    pub splits: u64,
}

impl Purse {
    /// Blocks the books keep for it.
    pub fn blocks(&self) -> u64 {
        let nodes = self.metadata_bytes.div_ceil(BLOCK_BYTES as u64).saturating_add(self.splits);
        self.data.saturating_add(nodes)
    }
}

/// Why a transaction was not applied. Nothing has changed.
pub enum Obstacle {
    /// A node is not in memory.
    Node(Miss),
    /// A page of checksums is not in memory.
    Sums(NodePtr),
    /// The ring has no room until a checkpoint has ended.
    LogFull,
    /// The batch that gathers is as large as a batch may be.
    BatchFull,
    /// The batch that gathers carries as much data as it may: this data must be written first.
    RideFull,
    /// No space.
    NoSpace,
    /// It frees blocks nothing refers to, or refers to blocks twice.
    Blocks(Run),
    /// The tree of shares or of keyframes cannot be read, or says what cannot be; or a tree would grow higher than any can be.
    Derived(EngineError),
    /// It takes more bytes than the log takes at once.
    TooLarge(usize),
}

/// Most bytes of data that go out in parallel with a batch.
pub const RIDE_BYTES_MAX: u64 = 1 << 20;
/// A batch is committed when it has gathered this many bytes, whether or not anybody waits.
pub const PENDING_BYTES_SOFT: usize = 1 << 20;

/// Most bytes of log that gather in one batch, and so the largest transaction.
pub const RECORD_BYTES_MAX: usize = batch::BATCH_BYTES_MAX / 2;

/// Everything the apply mutex guards.
pub struct Core {
    /// By `TreeId - 1`.
    pub trees: Vec<Tree>,
    /// Generation of nodes that become dirty now.
    pub generation: u64,
    /// Position of the last transaction.
    pub position: Lsn,
    /// Ids below this are taken, says the log.
    pub id_floor: u64,
    /// Nodes that went out of use since the last freeze.
    pub replaced: Vec<Replaced>,
    /// Books and bitmaps.
    pub space: Space,
    /// Checksums of data.
    pub sums: Checksums,
    /// The batch that gathers.
    pub pending: Pending,
    /// What an earlier one was gathered in, for the next: nothing is in it.
    pub spare: Option<Pending>,
    /// Where the log stands.
    pub log: LogTail,
    /// What lists of steps and of runs were made in, for the next transaction: nothing is in them.
    pub spare_steps: Vec<Step<'static>>,
    pub spare_runs: Vec<Run>,
    /// The ways of its steps.
    pub route: Route,
}

/// Room in those that is kept, in steps and runs.
const SPARE_STEPS_MAX: usize = 1024;

impl Core {
    /// The tree `id`.
    pub fn tree(&self, id: TreeId) -> &Tree {
        &self.trees[id.0 as usize - 1]
    }

    /// Finds everything the steps need, or says what is missing. Returns what they need of nodes, and the changes of trees that have an
    /// effect, in the order of trees and keys.
    fn prepare<'o>(
        &mut self,
        ops: &'o [Op],
        fetched: &mut Fetched,
        cache: &NodeCache,
        sum_cache: &SumCache,
    ) -> Result<(Forecast, Vec<Step<'o>>), Obstacle> {
        let Fetched { nodes, sums } = fetched;
        let mut steps: Vec<Step<'o>> = step::recycled(std::mem::take(&mut self.spare_steps));
        steps.reserve_exact(ops.len());
        // Few transactions have more than one: the list has none or all of them.
        let (mut first, mut runs, mut freed) = (None, std::mem::take(&mut self.spare_runs), 0);
        let mut add = |run: Run| match first {
            None => first = Some(run),
            Some(_) => runs.push(run),
        };
        for op in ops {
            match op {
                Op::Put { tree, key, value } => {
                    steps.push(Step { tree: *tree, key, change: Change::Put(value) });
                }
                Op::Delete { tree, key } => steps.push(Step { tree: *tree, key, change: Change::Delete }),
                Op::Place { run, .. } => {
                    if self.out_of_bounds(*run) || !self.space.all_referenced(*run, false) {
                        return Err(Obstacle::Blocks(*run));
                    }
                    if let Some(ptr) = self.sums.missing(*run, sum_cache, sums) {
                        return Err(Obstacle::Sums(ptr));
                    }
                    add(*run);
                }
                Op::Free { run } => {
                    if self.out_of_bounds(*run) || !self.space.all_data(*run) {
                        return Err(Obstacle::Blocks(*run));
                    }
                    freed += u64::from(run.blocks);
                    add(*run);
                }
                Op::IdFloor(_) => {}
            }
        }
        if !runs.is_empty() {
            runs.extend(first);
            runs.sort_unstable();
            let overlap =
                runs.windows(2).find(|w| w[0].addr.block() + u64::from(w[0].blocks) > w[1].addr.block());
            if let Some(twice) = overlap {
                return Err(Obstacle::Blocks(twice[1]));
            }
        }
        runs.clear();
        if runs.capacity() <= SPARE_STEPS_MAX {
            self.spare_runs = runs;
        }
        if let Some(first) = first.filter(|_| freed > self.space.data) {
            return Err(Obstacle::Blocks(first));
        }
        self.route.clear();
        let mut asked = Asked {
            generation: self.generation,
            cache,
            pins: nodes,
            forecast: Forecast::default(),
            route: &mut self.route,
        };
        step::sort(&mut steps);
        for of_tree in steps.chunk_by_mut(|a, b| a.tree == b.tree) {
            let tree = &self.trees[of_tree[0].tree.0 as usize - 1];
            let levels = tree.prepare(of_tree, &mut asked).map_err(Obstacle::Node)?;
            if levels > 0 && usize::from(tree.height) + levels > usize::from(HEIGHT_MAX) {
                return Err(Obstacle::Derived(too_high(tree)));
            }
        }
        let forecast = asked.forecast;
        let all = steps.len();
        steps.retain(|step| !matches!(step.change, Change::Nothing));
        if steps.len() < all {
            self.route.clear();
        }
        Ok((forecast, steps))
    }

    /// These have been done: the next list of steps may lie where they lie.
    fn keep_room(&mut self, steps: Vec<Step<'_>>) {
        if steps.capacity() <= SPARE_STEPS_MAX {
            self.spare_steps = step::recycled(steps);
        }
    }

    /// The page of checksums behind `ptr`, of blocks that these operations place, cannot be read: its blocks are not taken again and again.
    pub fn pass_over(&mut self, ptr: NodePtr, ops: &[Op]) {
        let runs = ops.iter().filter_map(|op| match op {
            Op::Place { run, .. } => Some(*run),
            _ => None,
        });
        let page = runs.flat_map(checksums::pages_of).find(|page| self.sums.ptrs.leaf(*page as usize) == ptr);
        if let Some(page) = page {
            let first = page * checksums::PAGE_BLOCKS;
            self.space.avoid_for_data((first, first + checksums::PAGE_BLOCKS));
        }
    }

    /// Nodes that joining underfull ones may take beside `need`: many, few, or on a full pool none.
    fn spare(&self, need: u64) -> u64 {
        let fits = |nodes: &u64| self.space.fits(need + nodes * self.space.copies, Urgency::Ordinary);
        [SPARE_NODES, SPARE_NODES / 8].into_iter().find(fits).unwrap_or(0)
    }

    fn out_of_bounds(&self, run: Run) -> bool {
        run.addr.is_null() || run.blocks == 0 || run.addr.block() + u64::from(run.blocks) > self.space.total
    }

    /// Changes trees, checksums and bitmaps. Nothing here can fail. Returns by how many dirty nodes the books grew.
    fn mutate(
        &mut self,
        ops: &[Op],
        steps: &[Step<'_>],
        fetched: &mut Fetched,
        cache: &NodeCache,
        sum_cache: &SumCache,
        (replay, spare): (bool, u64),
    ) -> i64 {
        let mut m = Mutation {
            generation: self.generation,
            cache,
            pins: &mut fetched.nodes,
            replaced: &mut self.replaced,
            dirty_delta: 0,
            spare,
            replay,
            right: Vec::new(),
            route: std::mem::take(&mut self.route),
        };
        for of_tree in steps.chunk_by(|a, b| a.tree == b.tree) {
            self.trees[of_tree[0].tree.0 as usize - 1].change(&mut m, of_tree);
        }
        let delta = m.dirty_delta;
        self.route = m.route;
        for op in ops {
            match op {
                Op::Put { .. } | Op::Delete { .. } => {}
                Op::Place { run, checksums } => {
                    self.sums.set(*run, |i| checksums[i], sum_cache, &fetched.sums);
                    self.space.place(*run, !replay);
                }
                Op::Free { run } => {
                    self.space.free(*run);
                    if replay {
                        // What is replayed is made durable before anybody is served.
                        self.space.release(*run);
                    }
                }
                Op::IdFloor(floor) => self.id_floor = self.id_floor.max(*floor),
            }
        }
        self.space.dirty_nodes =
            self.space.dirty_nodes.checked_add_signed(delta).expect("dirty nodes are counted");
        delta
    }

    /// Applies `tx`. `purse` is the reservation it may draw on; what it used is taken out of it in the same step.
    pub fn try_apply(
        &mut self,
        tx: &Transaction,
        purse: &mut Purse,
        fetched: &mut Fetched,
        cache: &NodeCache,
        sum_cache: &SumCache,
    ) -> Result<Lsn, Obstacle> {
        let mut settled = self.settle(tx, fetched, cache)?;
        let outdated = self.outdated(&tx.ops, fetched, cache)?;
        if !outdated.is_empty() {
            settled.get_or_insert_with(|| tx.ops.clone()).extend(outdated);
        }
        let ops = settled.as_deref().unwrap_or(&tx.ops);
        let record_bytes = record_bytes(ops);
        if record_bytes > RECORD_BYTES_MAX {
            return Err(Obstacle::TooLarge(record_bytes));
        }
        if self.pending.payload.len() + record_bytes > RECORD_BYTES_MAX {
            return Err(Obstacle::BatchFull);
        }
        let ride_bytes: u64 = tx.rides.iter().map(|(run, _)| run.bytes()).sum();
        if ride_bytes > 0 && self.pending.ride_bytes + ride_bytes > RIDE_BYTES_MAX {
            return Err(Obstacle::RideFull);
        }
        if !self.log.takes(self.pending.payload.len() + record_bytes) {
            return Err(Obstacle::LogFull);
        }
        let (forecast, steps) = self.prepare(ops, fetched, cache, sum_cache)?;
        let placed: u64 =
            ops.iter().map(|op| if let Op::Place { run, .. } = op { u64::from(run.blocks) } else { 0 }).sum();
        debug_assert!(placed <= purse.data, "data is placed out of a reservation");
        // What a reservation holds for metadata belongs to all of its data: this transaction gets its share.
        let share_bytes = match purse.data {
            0 => purse.metadata_bytes,
            data => purse.metadata_bytes * placed.max(1).min(data) / data,
        };
        // What it holds for nodes that are divided is for where data goes, and for no record before that.
        let splits = if placed > 0 { purse.splits } else { 0 };
        let frees = ops.iter().any(|op| matches!(op, Op::Free { .. }));
        let grows = forecast.added > 0;
        let urgency = match (tx.privileged, tx.sparing && !frees) {
            (true, true) => Urgency::Sparing,
            (true, false) => Urgency::Privileged,
            (false, _) if tx.replacing && grows => Urgency::Growing,
            (false, _) if tx.replacing => Urgency::Floating,
            (false, _) => Urgency::Ordinary,
        };
        let copies = self.space.copies;
        // The splits twice: they are forecast exactly, and what a file had set aside counts on the room that is left between.
        let need = (forecast.dirtied + 2 * forecast.added) * copies - splits.min(forecast.added * copies);
        let need = need.saturating_sub(share_bytes / BLOCK_BYTES as u64);
        // What is set aside for it all is there, however much of the protected part others have taken. Who has set nothing aside, and
        // happens to need nothing now, waits with the others.
        let is_covered = need == 0 && purse.blocks() > 0;
        if !is_covered && !self.space.fits(need, urgency) {
            return Err(Obstacle::NoSpace);
        }
        // Trees are right without joining: it never draws on what is kept for deleting.
        let spare = self.spare(need);

        // From here on nothing fails.
        let delta = self.mutate(ops, &steps, fetched, cache, sum_cache, (false, spare));
        self.keep_room(steps);
        // What became dirty comes back with the next checkpoint, what was added stays.
        let used = u64::try_from(delta).unwrap_or(0);
        let divided = (used.saturating_sub(forecast.dirtied) * copies).min(splits);
        let used_bytes = ((used * copies - divided) * BLOCK_BYTES as u64).min(share_bytes);
        let before = purse.blocks();
        purse.splits -= divided;
        purse.metadata_bytes -= used_bytes;
        purse.data -= placed.min(purse.data);
        // What floats first: it comes back with what this frees.
        let floated = placed.min(purse.floating);
        purse.floating -= floated;
        self.pending.floated += floated;
        self.space.open -= before - purse.blocks();
        if is(Planted::TwoStepRefund) && used_bytes > 0 {
            // The planted error: the refund was one step, and what was used is taken in another that gets lost.
            self.space.open += 1;
        }
        self.position = Lsn(self.position.0 + 1);
        if self.pending.transactions == 0 {
            self.pending.first = self.position;
        }
        self.pending.transactions += 1;
        self.log_record(ops, &tx.rides);
        Ok(self.position)
    }

    /// What the steps of `tx` come to where extents share blocks; `None`: what they say, because none do.
    fn settle(
        &self,
        tx: &Transaction,
        fetched: &Fetched,
        cache: &NodeCache,
    ) -> Result<Option<Vec<Op>>, Obstacle> {
        let tree = self.tree(TreeId::SHARES);
        let frees = || tx.ops.iter().any(|op| matches!(op, Op::Free { .. }));
        if tx.shared.is_empty() && (tree.root.is_none() || !frees()) {
            return Ok(None);
        }
        if let Some(run) = tx.shared.iter().find(|run| self.out_of_bounds(**run)) {
            return Err(Obstacle::Blocks(*run));
        }
        // Only used blocks can be shared: who reads where they are keeps them from being freed until this is applied.
        if let Some(run) = tx.shared.iter().find(|run| !self.space.all_data(**run)) {
            return Err(Obstacle::Blocks(*run));
        }
        let source = InMemory { pins: &fetched.nodes, cache, missed: Cell::new(None) };
        let missing = |error| source.missed.take().map_or(Obstacle::Derived(error), Obstacle::Node);
        let mut load = |from: u64, to: u64| {
            let key = varve_format::record::shares::shares_key(from.saturating_sub(1));
            let before = tree.last_at_or_before(&key, &source)?;
            shares::touching(from, to, before, |key, each| tree.scan(key, &source, each))?
                .map_err(|why| EngineError::corrupt("an entry of the shares tree", why))
        };
        let settled = shares::settle(&tx.ops, &tx.shared, &mut load);
        settled.map(Some).map_err(|why| match why {
            Unsettled::Read(error) => missing(error),
            Unsettled::Blocks(run) => Obstacle::Blocks(run),
        })
    }

    /// What takes away the keyframes that `ops` make untrue.
    fn outdated(&self, ops: &[Op], fetched: &Fetched, cache: &NodeCache) -> Result<Vec<Op>, Obstacle> {
        let tree = self.tree(TreeId::KEYFRAMES);
        if tree.root.is_none() {
            return Ok(Vec::new());
        }
        let source = InMemory { pins: &fetched.nodes, cache, missed: Cell::new(None) };
        keyframe::outdated(ops, |from, each| tree.scan(from, &source, each))
            .map_err(|error| source.missed.take().map_or(Obstacle::Derived(error), Obstacle::Node))
    }

    fn log_record(&mut self, ops: &[Op], rides: &[(Run, Data)]) {
        let p = &mut self.pending;
        let at = batch::begin_transaction(&mut p.payload, self.position);
        for op in ops {
            match op {
                Op::Put { tree, key, value } => batch::put_op(&mut p.payload, *tree, key, value),
                Op::Delete { tree, key } => batch::delete_op(&mut p.payload, *tree, key),
                Op::Place { run, checksums } => batch::place_op(&mut p.payload, *run, checksums),
                Op::Free { run } => {
                    batch::free_op(&mut p.payload, *run);
                    p.frees.push(*run);
                }
                Op::IdFloor(floor) => batch::id_floor_op(&mut p.payload, *floor),
            }
        }
        batch::end_transaction(&mut p.payload, at, ops.len() as u32);
        for (run, data) in rides {
            p.rides.push((*run, data.clone()));
            p.ride_bytes += run.bytes();
        }
        if is(Planted::EarlyReuse) {
            for run in p.frees.drain(..) {
                self.space.release(run);
            }
        }
    }

    /// Applies a transaction read from the log.
    pub fn replay(
        &mut self,
        position: Lsn,
        ops: &[Op],
        fetched: &mut Fetched,
        cache: &NodeCache,
        sum_cache: &SumCache,
    ) -> Result<(), Obstacle> {
        let (_, steps) = self.prepare(ops, fetched, cache, sum_cache)?;
        // None: when the pool was last in use what was reserved may have left no room for it, and it is not known here. Dirty nodes are joined
        // all the same, as they were then.
        let spare = 0;
        self.mutate(ops, &steps, fetched, cache, sum_cache, (true, spare));
        self.keep_room(steps);
        self.position = position;
        Ok(())
    }
}

/// Nodes that are in memory, for reading under the apply mutex.
struct InMemory<'a> {
    pins: &'a Pins,
    cache: &'a NodeCache,
    /// The first that was not.
    missed: Cell<Option<Miss>>,
}

impl NodeSource for InMemory<'_> {
    fn load(&self, miss: Miss, _: &Tree) -> Result<Arc<Node>, EngineError> {
        resident(&Link::Disk(miss.ptr), self.cache, self.pins).ok_or_else(|| {
            self.missed.set(Some(miss));
            EngineError::Stopped("a node is not in memory".into())
        })
    }
}

/// Only a forged tree comes that far: nodes of a block, half full, make one of this height larger than all that can be addressed.
fn too_high(tree: &Tree) -> EngineError {
    let why = Corrupt { what: "more levels than a tree can have", at: 0 };
    EngineError::corrupt(format!("the {} tree, which would grow", tree.id.name()), why)
}

/// The tree, as it is now, in which a node was missed.
pub fn missed_in<T>(core: &Core, result: &Result<T, Obstacle>) -> Option<Tree> {
    match result {
        Err(Obstacle::Node(miss)) => Some(core.tree(miss.tree).clone()),
        _ => None,
    }
}

/// Bytes that these steps take in the log.
pub fn record_bytes(ops: &[Op]) -> usize {
    let op = |op: &Op| match op {
        Op::Put { key, value, .. } => 3 + key.len() + value.len(),
        Op::Delete { key, .. } => 2 + key.len(),
        Op::Place { checksums, .. } => 12 + 4 * checksums.len(),
        Op::Free { .. } => 12,
        Op::IdFloor(_) => 8,
    };
    batch::TRANSACTION_HEADER_BYTES + ops.iter().map(|o| batch::OP_HEADER_BYTES + op(o)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreOptions};

    // Goal: a forged tree of the greatest height does not grow beyond it: the change is refused, all else goes on, and the pool
    // opens again. Method: the height of a small tree is made the greatest; a change that splits its root, and one that does not.
    #[test]
    fn no_tree_grows_too_high() {
        let (device, store) = Store::in_memory();
        let put = |key: u8, bytes: usize| {
            let mut tx = Transaction::new();
            tx.put(TreeId::NAMES, &[key; 8], &vec![key; bytes]);
            store.apply(tx, None)
        };
        put(1, 1500).and(put(2, 1500)).expect("one leaf holds both");
        let set = |height: u8| store.core.lock().trees[TreeId::NAMES.0 as usize - 1].height = height;
        set(HEIGHT_MAX);
        let refused = put(3, 1500).expect_err("it would be a level more");
        assert!(refused.is_damage() && refused.to_string().contains("names"), "{refused}");
        put(4, 10).expect("it has room");
        set(1);
        put(3, 1500).expect("a small tree grows");
        store.close().expect("closes");
        let options = StoreOptions { background: false, ..StoreOptions::default() };
        let (store, _) = Store::open(vec![device], options).expect("opens again");
        let lens =
            [1, 2, 3, 4].map(|key| store.get(TreeId::NAMES, &[key; 8]).expect("reads").map(|v| v.len()));
        assert_eq!(lens, [Some(1500), Some(1500), Some(1500), Some(10)]);
    }
}
