//! The store: composes pool, journal, trees and space; applies transactions and serves reads.
//!
//! Locks, in the order in which they may be taken: `durable` (one checkpoint at a time; held across its I/O) →
//! who leads commits (no lock is held meanwhile) → `core` (the apply mutex; never held across I/O) → the lock in `commits`, which is held
//! for moments and under which nothing is taken, `readers`, `rides`, `superblock`.

mod data;
mod reserve;
mod trim;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use varve_device::{AlignedBuf, Device, Histogram};
use varve_format::superblock::Superblock;
use varve_format::{BLOCK_BYTES, Lsn, Run, TreeId, block_checksum};

use crate::check::Damage;
use crate::checkpoint::Durable;
use crate::checkpoint::checksums::{self, SumCache};
use crate::core::{Core, Fetched, Obstacle, PENDING_BYTES_SOFT, Purse, RECORD_BYTES_MAX, missed_in};
use crate::journal::{Commits, PanicStops};
use crate::numbers::Numbered;
use crate::options::{CheckProgress, SpaceStats, StoreOptions, StoreStats};
use crate::planted::{Planted, is};
use crate::pool::Pool;
use crate::space::readers::{Readers, Reading};
use crate::tree::node::{Body, Node};
use crate::tree::{Miss, NODE_MEMORY_BYTES, NodeCache, NodeSource, Tree};
use crate::unchanged::LogEnd;
use crate::version::{Keyframes, Trunks};
use crate::{Data, EngineError, Transaction};

pub use reserve::{Reservation, Wanted};
pub use trim::Trimmed;
pub(crate) use trim::Trims;

type Result<T> = std::result::Result<T, EngineError>;

/// Most devices a pool has for now.
pub(crate) const DEVICES_MAX: usize = 1;
/// Data that may be written and not flushed before who brings much waits for a flush; anybody does at twice as much. Recovery verifies
/// that, and what was on its way beside it.
const UNFLUSHED_BYTES_MAX: u64 = 96 << 20;
/// Who logs so much data at once waits for a flush of what has gathered.
const MUCH_BYTES: u64 = 1 << 20;
/// For so long who is refused space waits for those who read what has been freed: many reads of a disk take less.
pub(crate) const READERS_PATIENCE: Duration = Duration::from_millis(50);

/// Monotonic counters, and latencies.
#[derive(Default)]
pub(crate) struct Counters {
    pub journal_batches: AtomicU64,
    pub journal_bytes: AtomicU64,
    pub journal_waiters: AtomicU64,
    pub checkpoints: AtomicU64,
    pub checkpoint_nodes: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
    pub transactions: AtomicU64,
    pub reclaims: AtomicU64,
    pub no_space: AtomicU64,
    pub nodes_read: AtomicU64,
    pub reserve_latency: Histogram,
    pub commit_latency: Histogram,
}

/// Wakes and ends the background thread.
#[derive(Default)]
pub(crate) struct Background {
    pub wake: Mutex<Wake>,
    pub turn: Condvar,
    pub thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct Wake {
    pub checkpoint: bool,
    pub stop: bool,
}

/// An open pool. Cheap to share: every method takes `&self`.
pub struct Store {
    pub(crate) me: Weak<Store>,
    pub(crate) pool: Pool,
    pub(crate) pool_tag: u64,
    pub(crate) options: StoreOptions,
    pub(crate) core: Arc<Mutex<Core>>,
    pub(crate) commits: Commits,
    pub(crate) durable: Mutex<Durable>,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) superblock_generation: AtomicU64,
    /// As it was found when the pool was opened.
    pub(crate) log_end: LogEnd,
    /// The bitmap cannot be read, and the pool is only looked at: what is free is not known. What was wrong with it, unless
    /// that is said with all else that was met.
    pub(crate) bitmap_lost: Option<crate::Problems>,
    pub(crate) cache: NodeCache,
    pub(crate) sum_cache: SumCache,
    pub(crate) readers: Readers,
    /// Long paths of versions.
    pub(crate) trunks: Trunks,
    /// Whether there are keyframes, and where some are missing.
    pub(crate) keyframes: Keyframes,
    /// Data that a batch carries and that is not on the device yet: block to buffer and offset.
    pub(crate) rides: RwLock<Numbered<u64, (Arc<AlignedBuf>, usize)>>,
    /// Data written beside the log since the pool was opened, and as much of it as is known to be flushed.
    pub(crate) written_bytes: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) next_id: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) background: Background,
    pub(crate) closed: AtomicBool,
    /// What was found, if the pool was opened to be checked.
    pub(crate) damage: OnceLock<Damage>,
    pub(crate) reclaiming: Mutex<()>,
    pub(crate) trims: Trims,
}

/// A consistent picture of all trees. Blocks it refers to are not reused while it lives: keep it until the reads
/// of data it resolved have ended.
pub struct View {
    trees: Vec<Tree>,
    position: Lsn,
    epoch: u64,
    store: Arc<Store>,
}

impl View {
    /// The value at `key` of `tree`.
    pub fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.trees[tree.0 as usize - 1].get(key, self.store.as_ref(), <[u8]>::to_vec)
    }
    /// Calls `each` with the entries of `tree` from `from` on (inclusive), ascending, until it returns false.
    pub fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.trees[tree.0 as usize - 1].scan(from, self.store.as_ref(), each)
    }
    /// The same from the last entry at or before `at` on, if that is not in front of `floor`, and else from `at` on.
    pub fn scan_around(
        &self,
        tree: TreeId,
        floor: &[u8],
        at: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        self.trees[tree.0 as usize - 1].scan_around(floor, at, self.store.as_ref(), each)
    }
    /// The last entry of `tree` whose key is at most `at`.
    pub fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.trees[tree.0 as usize - 1].last_at_or_before(at, self.store.as_ref())
    }
    /// Reads what searches for `keys` of `tree`, which ascend, need and what is not in memory in one group of requests.
    pub(crate) fn read_ahead(&self, tree: TreeId, keys: &[Vec<u8>]) -> Result<()> {
        self.trees[tree.0 as usize - 1].read_ahead(keys, self.store.as_ref())
    }
    /// The transaction up to which this picture goes.
    pub fn position(&self) -> Lsn {
        self.position
    }
    pub(crate) fn keyframes(&self) -> &Keyframes {
        &self.store.keyframes
    }
    pub(crate) fn trunks(&self) -> &Trunks {
        &self.store.trunks
    }
    pub(crate) fn trees(&self) -> &[Tree] {
        &self.trees
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.store.readers.leave(self.epoch);
    }
}

impl NodeSource for Store {
    fn load(&self, miss: Miss, tree: &Tree) -> Result<Arc<Node>> {
        if let Some(node) = self.cached(miss) {
            return Ok(node);
        }
        let block = self.read_metadata(miss.ptr, miss.tree.name())?;
        self.keep(miss, tree, &block)
    }

    fn cached(&self, miss: Miss) -> Option<Arc<Node>> {
        let node = self.cache.get(&miss.ptr.addr[0].0)?;
        (node.location.get() == Some(&miss.ptr) && node.level() == miss.level).then_some(node)
    }

    fn load_ahead(&self, misses: &[Miss], tree: &Tree) -> Vec<Option<Arc<Node>>> {
        let mut nodes: Vec<_> = misses.iter().map(|miss| self.cached(*miss)).collect();
        let missing: Vec<usize> = (0..nodes.len()).filter(|i| nodes[*i].is_none()).collect();
        let addrs: Vec<_> = missing.iter().map(|i| misses[*i].ptr.addr[0]).collect();
        let mut blocks = AlignedBuf::new(addrs.len() * BLOCK_BYTES);
        let read = self.pool.read_blocks(&addrs, &mut blocks);
        for ((at, block), read) in missing.into_iter().zip(blocks.chunks_exact(BLOCK_BYTES)).zip(read) {
            // What is bad is read again by itself, from another copy if there is one, and repaired.
            if read && block_checksum(block) == misses[at].ptr.checksum {
                nodes[at] = self.keep(misses[at], tree, block).ok();
            }
        }
        nodes
    }
}

impl Store {
    /// The node in a block that has passed its checksum. It is in the cache from now on.
    fn keep(&self, miss: Miss, tree: &Tree, block: &[u8]) -> Result<Arc<Node>> {
        let what = || format!("a node of the {} tree", miss.tree.name());
        let (header, node) = Node::decode(block, miss.ptr).map_err(|e| EngineError::corrupt(what(), e))?;
        if header.tree != miss.tree || header.level != miss.level || header.pool_tag != self.pool_tag {
            let why = varve_format::Corrupt { what: "node of another tree, level or pool", at: 0 };
            return Err(EngineError::corrupt(what(), why));
        }
        if matches!(&node.body, Body::Leaf(leaf) if leaf.len() == 0) {
            // It would lead nowhere, and whoever looks for the entry before a key would go through any number of them.
            let why = varve_format::Corrupt { what: "leaf without an entry", at: 0 };
            return Err(EngineError::corrupt(what(), why));
        }
        if !tree.leads_to(miss, &node, self)? {
            let why =
                varve_format::Corrupt { what: "keys outside the range that the nodes above give", at: 0 };
            return Err(EngineError::corrupt(what(), why));
        }
        let node = Arc::new(node);
        self.cache.insert(miss.ptr.addr[0].0, node.clone());
        self.counters.nodes_read.fetch_add(1, Relaxed);
        Ok(node)
    }

    /// Reads a block of metadata from the first copy that verifies.
    pub(crate) fn read_metadata(&self, ptr: varve_format::root::NodePtr, what: &str) -> Result<AlignedBuf> {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        let good = |b: &[u8]| block_checksum(b) == ptr.checksum;
        self.pool.read_verified(&mut ptr.copies(), &mut block, self.repairs(), &good).map_err(
            |e| match e {
                EngineError::Checksum { addr } => EngineError::corrupt(
                    format!("{what} block at {addr:#x}"),
                    varve_format::Corrupt { what: "checksum wrong in every copy", at: 0 },
                ),
                e => e,
            },
        )?;
        Ok(block)
    }

    /// Whether a bad copy is written again from a good one that was read: not where nothing is written.
    fn repairs(&self) -> bool {
        self.check_writable().is_ok()
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(EngineError::ReadOnly);
        }
        if self.closed.load(Relaxed) {
            return Err(EngineError::Stopped("it has been closed".into()));
        }
        match self.commits.stopped() {
            Some(why) => Err(EngineError::Stopped(why)),
            None => Ok(()),
        }
    }

    /// Why the pool has stopped accepting writes, if it has.
    pub fn stopped(&self) -> Option<EngineError> {
        self.commits.stopped().map(EngineError::Stopped)
    }

    /// Why the pool has stopped accepting writes, and how long ago, if it has.
    pub fn stopped_for(&self) -> Option<(String, std::time::Duration)> {
        self.commits.stopped_for()
    }

    /// Whether it has because there was no room for the pool's own file: the filesystem that holds it is full, or its owner may have no more
    /// of it (ENOSPC, EDQUOT). With room there, and opened again, it goes on.
    pub fn stopped_for_room(&self) -> bool {
        self.commits.stopped().is_some() && matches!(self.commits.stopped_errno(), Some(28 | 122))
    }

    /// A panic while it lives stops the pool, and so does letting go of it: `done` says that there was none.
    pub fn stop_on_panic(&self, what: &'static str) -> PanicStops<'_> {
        PanicStops::new(&self.commits, what)
    }

    /// Ends all writing, because of `why`: what is in memory cannot be trusted any more. What has been made durable is there
    /// when the pool is opened again; who waits for more is told.
    pub fn stop(&self, why: &str) {
        self.commits.stop(why.to_owned());
    }

    /// The name the pool was created with.
    pub fn pool_id(&self) -> [u8; 16] {
        self.pool.pool_id
    }
    /// Seed of directory hashes.
    pub fn hash_seed(&self) -> u64 {
        self.superblock.lock().hash_seed
    }
    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.pool.devices
    }

    /// A picture of all trees as they are now.
    pub fn view(&self) -> View {
        let store = self.me.upgrade().expect("a store is only ever used through its Arc");
        let core = self.core.lock();
        let epoch = self.readers.enter();
        View { trees: core.trees.clone(), position: core.position, epoch, store }
    }

    /// One lookup, without the cost of a view.
    pub fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(tree, key, <[u8]>::to_vec)
    }

    /// One lookup without a copy of the value: `decode` sees it in place.
    pub fn get_with<T>(
        &self,
        tree: TreeId,
        key: &[u8],
        decode: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let (root, _reading) = self.picture_of(tree);
        root.get(key, self, decode)
    }

    /// A picture of one tree as it is now; what it shows stays where it is while the second value lives.
    pub(crate) fn picture_of(&self, tree: TreeId) -> (Tree, Reading<'_>) {
        let core = self.core.lock();
        (core.tree(tree).clone(), Reading::begin(&self.readers))
    }

    /// Applies `tx` as a whole and gives its place in the log. It is visible at once and durable after a commit.
    /// Space for it is taken from `reservation` first, then from what is free. On [`EngineError::NoSpace`] nothing has
    /// changed (commit, checkpoint and one retry have been tried).
    pub fn apply(&self, mut tx: Transaction, mut reservation: Option<&mut Reservation>) -> Result<Lsn> {
        self.check_writable()?;
        let mut fetched = Fetched::default();
        let mut none = Purse::default();
        let mut reclaimed = false;
        loop {
            // What is missing is read below: it may not be reused until then.
            let mut reading = None;
            let missed;
            let result = {
                let mut core = self.core.lock();
                // Dropped before the lock: nobody sees half a transaction in a pool that goes on.
                let panics = PanicStops::new(&self.commits, "a change");
                let purse = reservation.as_mut().map_or(&mut none, |r| &mut r.purse);
                let result = core.try_apply(&tx, purse, &mut fetched, &self.cache, &self.sum_cache);
                if result.is_ok() && !tx.rides.is_empty() {
                    // Visible together with the transaction that refers to these blocks.
                    let mut rides = self.rides.write();
                    for (run, data) in &tx.rides {
                        for i in 0..run.blocks as usize {
                            let at = data.offset + i * BLOCK_BYTES;
                            rides.insert(run.addr.block() + i as u64, (data.buf.clone(), at));
                        }
                    }
                }
                if let Ok(lsn) = &result {
                    // Views are made under this lock.
                    self.trunks.note(&tx.ops, *lsn);
                    self.keyframes.note(&tx.ops);
                }
                match &result {
                    Err(Obstacle::Node(_)) => reading = Some(Reading::begin(&self.readers)),
                    Err(Obstacle::Sums(_)) => reading = Some(Reading::of_page(&self.readers)),
                    _ => {}
                }
                missed = missed_in(&core, &result);
                panics.done();
                result.map(|lsn| (lsn, self.due(&core)))
            };
            match result {
                Ok((lsn, due)) => {
                    if let Some(r) = reservation {
                        let placed = tx.ops.iter().map(|op| match op {
                            crate::transaction::Op::Place { run, .. } => u64::from(run.blocks),
                            _ => 0,
                        });
                        r.allocated = r.allocated.saturating_sub(placed.sum());
                    }
                    self.counters.transactions.fetch_add(1, Relaxed);
                    if !tx.settles_later {
                        self.after_apply(lsn, due);
                    }
                    return Ok(lsn);
                }
                Err(Obstacle::Node(miss)) => {
                    let node = self.load(miss, &missed.expect("a node is missed in a tree"))?;
                    fetched.nodes.insert(miss.ptr.addr[0].0, node);
                    drop(reading);
                }
                Err(Obstacle::Sums(ptr)) => {
                    let page =
                        self.load_sums(ptr).inspect_err(|_| self.core.lock().pass_over(ptr, &tx.ops))?;
                    fetched.sums.insert(checksums::key(ptr), page);
                    drop(reading);
                }
                Err(Obstacle::RideFull) => {
                    let rides = std::mem::take(&mut tx.rides);
                    self.write_data(&rides)?;
                }
                Err(Obstacle::BatchFull) => self.commit(self.position())?,
                Err(Obstacle::LogFull) => self.checkpoint()?,
                Err(Obstacle::NoSpace) if !reclaimed => {
                    reclaimed = true;
                    self.reclaim()?;
                }
                Err(Obstacle::NoSpace) => {
                    self.counters.no_space.fetch_add(1, Relaxed);
                    return Err(EngineError::NoSpace);
                }
                Err(Obstacle::Derived(error)) => return Err(error),
                Err(Obstacle::TooLarge(bytes)) => {
                    return Err(EngineError::Refused(format!(
                        "a transaction of {bytes} bytes is larger than the log takes ({RECORD_BYTES_MAX})"
                    )));
                }
                Err(Obstacle::Blocks(run)) => {
                    return Err(EngineError::corrupt(
                        format!("the record of {} blocks at {:#x}", run.blocks, run.addr.0),
                        varve_format::Corrupt { what: "blocks used twice, or freed and not in use", at: 0 },
                    ));
                }
            }
        }
    }

    fn unflushed_bytes(&self) -> u64 {
        // In this order: what is flushed meanwhile was written before.
        let flushed = self.flushed_bytes.load(Relaxed);
        self.written_bytes.load(Relaxed).saturating_sub(flushed)
    }

    /// What the state after a transaction calls for.
    fn due(&self, core: &Core) -> Due {
        let space = &core.space;
        let cache_nodes = self.options.cache_bytes / NODE_MEMORY_BYTES;
        let reserved = space.dirty_nodes * space.copies;
        Due {
            commit: core.pending.payload.len() > PENDING_BYTES_SOFT
                || self.unflushed_bytes() > 2 * UNFLUSHED_BYTES_MAX,
            checkpoint: core.log.used() > core.log.ring_bytes / 2
                || space.dirty_nodes > (cache_nodes / 4).max(64)
                || (reserved > 1024 && reserved as i64 > space.available() / 2),
            // A checkpoint that runs holds a quarter of the cache's memory, what gathers meanwhile another.
            now: core.log.used() > core.log.ring_bytes / 4 * 3
                || space.dirty_nodes > (cache_nodes / 2).max(128)
                // Not for nothing, each time: what a checkpoint gives back are the places of nodes, and what its commit frees, and
                // nothing at all while somebody reads who keeps what was freed before.
                || (space.squeezed()
                    && space.held + core.replaced.len() as u64 * space.copies > space.protected / 8
                    && !self.readers.keep_back()),
        }
    }

    /// Whether the state calls for a checkpoint.
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let due = self.due(&self.core.lock());
        due.checkpoint || due.now
    }

    /// What the state after transaction `lsn` calls for. An error has stopped the pool, and whoever waits for the transaction to be
    /// durable is told.
    fn after_apply(&self, lsn: Lsn, due: Due) {
        let mut result = if due.commit { self.commit(lsn) } else { Ok(()) };
        if due.now || (due.checkpoint && !self.options.background) {
            result = result.and_then(|()| self.checkpoint_when_due());
        } else if due.checkpoint {
            self.background.wake.lock().checkpoint = true;
            self.background.turn.notify_one();
        }
        if let Err(e) = result {
            tracing::error!("after transaction {}: {e}", lsn.0);
        }
    }

    /// Waits for what is due behind transactions that [settle later](Transaction::settles_later) and have logged so many bytes of
    /// data. Who brings much of it waits sooner than others until what has gathered on the device is flushed. The caller holds no lock.
    pub fn settle(&self, data_bytes: u64) {
        let (lsn, mut due) = {
            let core = self.core.lock();
            (core.position, self.due(&core))
        };
        due.commit |= data_bytes >= MUCH_BYTES && self.unflushed_bytes() > UNFLUSHED_BYTES_MAX;
        self.after_apply(lsn, due);
    }

    /// Makes what was freed allocatable: commit, checkpoint. One at a time; whoever waited for another finds its work.
    pub fn reclaim(&self) -> Result<()> {
        let _one = self.reclaiming.lock();
        self.counters.reclaims.fetch_add(1, Relaxed);
        self.commit(self.position())?;
        self.checkpoint()?;
        self.release_retired();
        Ok(())
    }

    /// For who is refused space and holds no view: waits for those who were reading what has been freed, for a moment. He looks once
    /// more then, whatever this has found: the first who waits, or whoever commits, gives it all back. Whether there were any.
    pub fn wait_for_readers(&self) -> bool {
        let waited = self.readers.wait(READERS_PATIENCE);
        self.release_retired();
        waited
    }

    /// The place of the last applied transaction.
    pub fn position(&self) -> Lsn {
        self.core.lock().position
    }
    /// The place up to which the log is durable.
    pub fn durable_position(&self) -> Lsn {
        self.commits.durable()
    }

    /// Batches of the log that have been written since the pool was opened.
    pub fn batches_written(&self) -> u64 {
        self.counters.journal_batches.load(Relaxed)
    }

    /// A new id, never given out before (inodes, families, versions and subvolumes share one counter). The transaction
    /// that uses it must [`Transaction::claim_id`] it.
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Writes data to allocated blocks and waits until the writes have completed (not flushed).
    pub fn write_data(&self, writes: &[(Run, Data)]) -> Result<()> {
        // Blocks of a pool that has stopped may not be what the books say.
        self.check_writable()?;
        let list: Vec<_> = writes.iter().map(|(run, data)| (run.addr, data.bytes())).collect();
        let result = self.pool.write(&list, None);
        if let Err(e) = &result {
            self.commits.stop_by(e);
        }
        self.written_bytes.fetch_add(list.iter().map(|(_, b)| b.len() as u64).sum(), Relaxed);
        result
    }

    /// What keyframes are wanted: whoever holds the locks of families makes them ([`crate::version::make_keyframes`]).
    pub fn keyframes(&self) -> &Keyframes {
        &self.keyframes
    }

    /// Where a check says how far it has come.
    pub fn progress(&self) -> &CheckProgress {
        &self.options.progress
    }

    /// Where the space is.
    pub fn space(&self) -> SpaceStats {
        let core = self.core.lock();
        let s = &core.space;
        let soon = s.available() + s.held.saturating_sub(self.readers.retired_blocks()) as i64;
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        let copies = self.pool.chunks()[0].stripes.len() as u64;
        let device = self.pool.device_bytes() / copies;
        SpaceStats {
            total_bytes: device,
            fixed_bytes: device - bytes(s.total) + bytes(s.fixed),
            used_bytes: bytes(s.data + s.nodes),
            held_back_bytes: bytes(s.held),
            reserved_bytes: bytes(s.open + s.frozen + s.dirty_nodes * s.copies),
            protected_bytes: bytes(s.protected),
            free_bytes: bytes(s.available().max(0) as u64),
            free_soon_bytes: bytes(soon.max(0) as u64),
        }
    }

    /// Nodes of trees that were not in memory when they were looked for, so far.
    pub fn nodes_read(&self) -> u64 {
        self.counters.nodes_read.load(Relaxed)
    }

    /// Counters.
    pub fn stats(&self) -> StoreStats {
        let c = &self.counters;
        let (keyframes_made_count, keyframes_made_bytes) = self.keyframes.made();
        StoreStats {
            keyframes_made_count,
            keyframes_made_bytes,
            journal_batches_count: c.journal_batches.load(Relaxed),
            journal_bytes: c.journal_bytes.load(Relaxed),
            journal_waiters_count: c.journal_waiters.load(Relaxed),
            checkpoints_count: c.checkpoints.load(Relaxed),
            checkpoint_nodes_count: c.checkpoint_nodes.load(Relaxed),
            checkpoint_bytes: c.checkpoint_bytes.load(Relaxed),
            dirty_nodes_count: self.core.lock().space.dirty_nodes,
            cached_nodes_count: self.cache.len() as u64,
            transactions_count: c.transactions.load(Relaxed),
            reclaims_count: c.reclaims.load(Relaxed),
            no_space_count: c.no_space.load(Relaxed),
            repaired_blocks_count: self.pool.repaired_count.load(Relaxed),
            reserve_latency: c.reserve_latency.snapshot(),
            commit_latency: c.commit_latency.snapshot(),
        }
    }

    /// Does what is due: commit of an old idle log, checkpoint at a threshold. Runs by itself with
    /// [`StoreOptions::background`].
    pub fn maintain(&self) -> Result<()> {
        self.check_writable()?;
        self.commit(self.position())?;
        let due = self.due(&self.core.lock());
        if due.checkpoint {
            self.checkpoint()?;
        }
        self.release_retired();
        self.close_idle_log()
    }

    /// Ends what runs in the background, for whoever opened the pool and cannot use it: the devices are written to no more when
    /// it returns. Later changes are refused.
    pub fn abandon(&self) {
        self.stop_background();
        self.closed.store(true, Relaxed);
        self.end_trims();
    }

    /// Makes everything durable and writes a checkpoint. Later calls are refused.
    pub fn close(&self) -> Result<()> {
        if self.closed.load(Relaxed) {
            return Ok(());
        }
        if self.options.read_only {
            self.closed.store(true, Relaxed);
            return Ok(());
        }
        self.stop_background();
        let result = if is(Planted::MissingFlush) { Ok(()) } else { self.commit(self.position()) };
        let result = result.and_then(|()| self.checkpoint_as(true));
        self.closed.store(true, Relaxed);
        self.end_trims();
        result
    }
}

struct Due {
    commit: bool,
    checkpoint: bool,
    now: bool,
}
