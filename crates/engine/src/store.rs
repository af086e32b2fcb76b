//! The store: opens and recovers a pool, and composes journal, trees, space and devices.

use std::sync::Arc;

use varve_device::Device;
use varve_format::{Lsn, PoolAddr, Run, TreeId};

use crate::{Data, EngineError, Transaction};

type Result<T> = std::result::Result<T, EngineError>;

/// How many copies of a block a pool keeps, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on the same device.
    Dup,
}

/// What `create` asks for.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Profile of file data.
    pub data: Profile,
    /// Profile of trees.
    pub metadata: Profile,
    /// 16 random bytes that name the pool.
    pub pool_id: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: u64,
    /// Overwrite a foreign signature or another pool.
    pub force: bool,
}

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Refuse every change; write nothing to the device, recover in memory only.
    pub read_only: bool,
    /// Memory for clean and dirty nodes, in bytes.
    pub cache_bytes: u64,
    /// Run commits of an idle log and checkpoints on threads of the store. Without it they run inside the calls that
    /// make them due, so that one seed gives one schedule.
    pub background: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions { read_only: false, cache_bytes: 256 << 20, background: true }
    }
}

/// What opening found.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Batches of the log applied on top of the checkpoint.
    pub batches_replayed: u64,
    /// Transactions in them.
    pub transactions_replayed: u64,
    /// Whole batches cut off the end because data that came with them had not reached the device.
    pub batches_cut: u64,
    /// The last transaction of the recovered state.
    pub end: Lsn,
    /// Whether the pool had been closed cleanly.
    pub clean: bool,
}

/// Space, in bytes. `total = fixed + used + held_back + reserved + protected + free` (free is 0 while the protected
/// part is being used).
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceStats {
    /// Size of the devices.
    pub total_bytes: u64,
    /// Labels, superblocks, log, room of the checksum and bitmap arrays.
    pub fixed_bytes: u64,
    /// Referenced data and tree nodes of the durable checkpoint.
    pub used_bytes: u64,
    /// Freed, but not yet allocatable.
    pub held_back_bytes: u64,
    /// Open reservations, and next copies of dirty nodes.
    pub reserved_bytes: u64,
    /// Kept back so that deleting, truncating and checkpoints never fail (K).
    pub protected_bytes: u64,
    /// What an ordinary write may still use.
    pub free_bytes: u64,
}

/// Counters of the store since it was opened.
#[derive(Clone, Debug, Default)]
pub struct StoreStats {
    /// Log batches written.
    pub journal_batches_count: u64,
    /// Bytes of log written.
    pub journal_bytes: u64,
    /// Callers that waited for a commit.
    pub journal_waiters_count: u64,
    /// Checkpoints completed.
    pub checkpoints_count: u64,
    /// Tree nodes written by checkpoints (each once, whatever the profile).
    pub checkpoint_nodes_count: u64,
    /// Bytes of trees, arrays and superblocks written by checkpoints.
    pub checkpoint_bytes: u64,
    /// Nodes that are dirty now.
    pub dirty_nodes_count: u64,
    /// Nodes in the cache.
    pub cached_nodes_count: u64,
    /// Transactions applied.
    pub transactions_count: u64,
    /// Times that space ran short and reclaim ran.
    pub reclaims_count: u64,
    /// Refusals for lack of space.
    pub no_space_count: u64,
    /// Blocks whose first copy was bad and was repaired from another.
    pub repaired_blocks_count: u64,
}

/// What [`Store::check`] found. Empty `problems` means that everything agreed.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// One sentence a problem.
    pub problems: Vec<String>,
    /// Tree nodes visited.
    pub nodes: u64,
    /// Entries visited.
    pub entries: u64,
    /// Blocks of data whose checksum was verified.
    pub data_blocks: u64,
}

/// Space set aside for writes that have been accepted and not yet logged. What is left goes back when it is dropped.
pub struct Reservation {
    pub(crate) _private: (),
}

/// A consistent picture of all trees. Blocks it refers to are not reused while it lives: keep it until the reads
/// of data it resolved have ended.
pub struct View {
    _private: (),
}

impl View {
    /// The value at `key` of `tree`.
    pub fn get(&self, _tree: TreeId, _key: &[u8]) -> Result<Option<Vec<u8>>> {
        unimplemented!()
    }
    /// Calls `each` with the entries of `tree` from `from` on (inclusive), ascending, until it returns false.
    pub fn scan(&self, _tree: TreeId, _from: &[u8], _each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        unimplemented!()
    }
    /// The last entry of `tree` whose key is at most `at`.
    pub fn last_at_or_before(&self, _tree: TreeId, _at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        unimplemented!()
    }
    /// The transaction up to which this picture goes.
    pub fn position(&self) -> Lsn {
        unimplemented!()
    }
}

/// An open pool. Cheap to share: every method takes `&self`.
pub struct Store {
    _private: (),
}

impl Store {
    /// Writes a new, empty pool.
    pub fn format(_devices: &[Arc<dyn Device>], _options: &FormatOptions) -> Result<()> {
        unimplemented!()
    }
    /// Opens a pool, recovering it if it was not closed.
    pub fn open(_devices: Vec<Arc<dyn Device>>, _options: StoreOptions) -> Result<(Arc<Store>, RecoveryReport)> {
        unimplemented!()
    }
    /// Makes everything durable and writes a checkpoint. Later calls are refused.
    pub fn close(&self) -> Result<()> {
        unimplemented!()
    }
    /// The name the pool was created with.
    pub fn pool_id(&self) -> [u8; 16] {
        unimplemented!()
    }
    /// Seed of directory hashes.
    pub fn hash_seed(&self) -> u64 {
        unimplemented!()
    }
    /// A picture of all trees as they are now.
    pub fn view(&self) -> View {
        unimplemented!()
    }
    /// One lookup, without the cost of a view.
    pub fn get(&self, _tree: TreeId, _key: &[u8]) -> Result<Option<Vec<u8>>> {
        unimplemented!()
    }
    /// Applies `tx` as a whole and gives its place in the log. It is visible at once and durable after a commit.
    /// Space for it is taken from `reservation` first, then from what is free. On [`EngineError::NoSpace`] nothing has
    /// changed (commit, checkpoint and one retry have been tried).
    pub fn apply(&self, _tx: Transaction, _reservation: Option<&mut Reservation>) -> Result<Lsn> {
        unimplemented!()
    }
    /// The place of the last applied transaction.
    pub fn position(&self) -> Lsn {
        unimplemented!()
    }
    /// The place up to which the log is durable.
    pub fn durable_position(&self) -> Lsn {
        unimplemented!()
    }
    /// Returns when everything up to `upto` is durable. Callers at the same time share one flush.
    pub fn commit(&self, _upto: Lsn) -> Result<()> {
        unimplemented!()
    }
    /// Calls `done` when everything up to `upto` is durable (perhaps before returning, perhaps on another thread).
    pub fn commit_then(self: &Arc<Self>, _upto: Lsn, _done: Box<dyn FnOnce(Result<()>) + Send>) {
        unimplemented!()
    }
    /// Writes a checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        unimplemented!()
    }
    /// A new id, never given out before (inodes, families, versions and subvolumes share one counter). The transaction
    /// that uses it must [`Transaction::claim_id`] it.
    pub fn new_id(&self) -> u64 {
        unimplemented!()
    }
    /// Sets aside `data_blocks` blocks of data, and what logging `entries` entries of up to `entry_bytes` bytes
    /// (key and value together) will add to the trees. Tries commit, checkpoint and once more before it refuses.
    pub fn reserve(&self, _data_blocks: u64, _entries: u64, _entry_bytes: u64) -> Result<Reservation> {
        unimplemented!()
    }
    /// Adds `other` to `reservation`.
    pub fn merge(&self, _reservation: &mut Reservation, _other: Reservation) {
        unimplemented!()
    }
    /// Gives back part of a reservation (dirty blocks that will never be logged).
    pub fn hand_back(&self, _reservation: &mut Reservation, _data_blocks: u64, _entries: u64, _entry_bytes: u64) {
        unimplemented!()
    }
    /// Takes blocks out of `reservation`, in as few runs as can be found, near `near` if that is not null.
    pub fn allocate(&self, _reservation: &mut Reservation, _blocks: u32, _near: PoolAddr) -> Result<Vec<Run>> {
        unimplemented!()
    }
    /// Gives back blocks that were allocated and never placed by a transaction, into `reservation`.
    pub fn deallocate(&self, _reservation: &mut Reservation, _runs: &[Run]) {
        unimplemented!()
    }
    /// Writes data to allocated blocks and waits until the writes have completed (not flushed).
    pub fn write_data(&self, _writes: &[(Run, Data)]) -> Result<()> {
        unimplemented!()
    }
    /// Reads blocks and verifies them. `buf` is aligned and a whole number of blocks. Hold the [`View`] that gave
    /// the address until this returns.
    pub fn read_data(&self, _addr: PoolAddr, _buf: &mut [u8]) -> Result<()> {
        unimplemented!()
    }
    /// Where the space is.
    pub fn space(&self) -> SpaceStats {
        unimplemented!()
    }
    /// Counters.
    pub fn stats(&self) -> StoreStats {
        unimplemented!()
    }
    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        unimplemented!()
    }
    /// Does what is due: commit of an old idle log, checkpoint at a threshold. Runs by itself with
    /// [`StoreOptions::background`].
    pub fn maintain(&self) -> Result<()> {
        unimplemented!()
    }
    /// Walks every tree and array, verifies every block that is in use, and compares all derived state (bitmaps,
    /// counts) with what the walk saw. `data_runs` are the runs of data that the caller's records refer to.
    pub fn check(&self, _data_runs: &mut dyn Iterator<Item = Run>, _verify_data: bool) -> Result<CheckReport> {
        unimplemented!()
    }
}
