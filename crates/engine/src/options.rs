//! Options, reports and figures of the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_device::HistogramSnapshot;
use varve_format::{Lsn, TreeId};

use crate::problem::Problem;

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
    /// Who passes more entries than this in a megabyte of a file with many versions wants a keyframe there
    /// ([`Store::keyframes`](crate::Store::keyframes)). No option changes what is read.
    pub keyframe_entries: u32,
    /// Where a check says how far it has come.
    pub progress: Arc<CheckProgress>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            read_only: false,
            cache_bytes: 256 << 20,
            background: true,
            keyframe_entries: 256,
            progress: Arc::default(),
        }
    }
}

/// What a check is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CheckStage {
    /// Reading the nodes of all trees.
    #[default]
    Nodes,
    /// Comparing what is stored for subvolumes with their versions, one entry after the other.
    Entries,
    /// Comparing what subvolumes and snapshots show.
    Subvolumes,
    /// Comparing what files hold, one family of data after the other.
    Files,
    /// Reading blocks of data.
    Data,
}

/// How far a check has come, for who watches it from another thread.
#[derive(Debug, Default)]
pub struct CheckProgress(Mutex<(CheckStage, u64, u64)>);

impl CheckProgress {
    /// A stage begins, of so many steps; 0: nobody knows.
    pub fn begin(&self, stage: CheckStage, steps: u64) {
        *self.0.lock() = (stage, 0, steps);
    }

    /// So many steps of the stage have been done since.
    pub fn step(&self, steps: u64) {
        self.0.lock().1 += steps;
    }

    /// The stage, how many of its steps are done, and how many there are; 0: nobody knows.
    pub fn now(&self) -> (CheckStage, u64, u64) {
        *self.0.lock()
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
    /// What of the pool or of its log is lost, so that the log could not be replayed to its end, or that there is, or may be, a newer
    /// superblock, which cannot be read: what came after `end` is not seen. Only where the pool is opened for reading.
    pub replay_ended_by: Option<String>,
    /// Batches that were not applied for that, or not all of them: at least so many, and 0 where it is not known whether there are any.
    pub batches_left: u64,
    /// What of the tree of keyframes is lost, so that all of them were thrown away (in memory only where the pool is opened for
    /// reading). They are made again; what they said is in the entries.
    pub keyframes_lost: Option<String>,
}

/// Space, in bytes. `total = fixed + used + held_back + reserved + protected + free` (free is 0 while the protected
/// part is being used).
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceStats {
    /// Size of the devices, by the copies that data has.
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
    /// That, and what the next commit or checkpoint gives back, which whoever needs space waits for: not what is held back for who reads it.
    pub free_soon_bytes: u64,
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
    /// Keyframes made.
    pub keyframes_made_count: u64,
    /// Bytes of keys and values of these.
    pub keyframes_made_bytes: u64,
    /// Transactions applied.
    pub transactions_count: u64,
    /// Times that space ran short and reclaim ran.
    pub reclaims_count: u64,
    /// Refusals for lack of space.
    pub no_space_count: u64,
    /// Blocks whose first copy was bad and was repaired from another.
    pub repaired_blocks_count: u64,
    /// How long setting space aside took.
    pub reserve_latency: HistogramSnapshot,
    /// How long those waited who waited for the log to be durable.
    pub commit_latency: HistogramSnapshot,
}

/// What [`Store::check`](crate::Store::check) found. Empty `problems` means that everything agreed.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What was found.
    pub problems: Vec<Problem>,
    /// Problems beyond those that are listed.
    pub omitted: u64,
    /// Those of them that are of data.
    pub data_omitted: u64,
    /// What is no problem, and less than there should be: whole sentences.
    pub warnings: Vec<String>,
    /// Tree nodes visited.
    pub nodes: u64,
    /// Entries visited.
    pub entries: u64,
    /// The same by tree.
    pub trees: BTreeMap<TreeId, u64>,
    /// Blocks of data whose checksum was verified.
    pub data_blocks: u64,
}

impl CheckReport {
    /// All problems, a line each, for messages.
    pub fn describe(&self) -> String {
        let mut lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        if self.omitted > 0 {
            lines.push(format!("and {} more", self.omitted));
        }
        lines.join("\n  ")
    }
}
