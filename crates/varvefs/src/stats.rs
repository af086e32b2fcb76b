//! Figures and reports as plain structs. Their keys are those of `varve stats --json`: snake_case, the unit last.

use serde::{Deserialize, Serialize};

use crate::shared::Shared;

/// Counters and space of a pool. Counters run from its opening, which they include: what recovery reads and writes, too, but not
/// what making the pool wrote before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Stats {
    /// The path the pool was opened by, or what kind of memory it lies in.
    pub pool: String,
    /// Where the space is.
    pub space: SpaceStats,
    /// Inodes in use.
    pub files_count: u64,
    /// The devices, in order.
    pub devices: Vec<DeviceStats>,
    /// The log.
    pub journal: JournalStats,
    /// Checkpoints.
    pub checkpoint: CheckpointStats,
    /// Tree nodes in memory.
    pub nodes: NodeStats,
    /// Deletion in the background.
    pub reap: ReapStats,
    /// What one version of a file sees of a megabyte, stored in one place.
    pub keyframes: KeyframeStats,
    /// Transactions applied.
    pub transactions_count: u64,
    /// Times that space ran short and was reclaimed.
    pub reclaims_count: u64,
    /// Refusals for lack of space.
    pub no_space_count: u64,
    /// Blocks of which one copy was bad and was repaired from another.
    pub repaired_blocks_count: u64,
}

/// Space, in bytes: `total = fixed + used + held_back + reserved + protected + free` (free is 0 while the protected
/// part is in use).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Size of the devices.
    pub total_bytes: u64,
    /// Labels, superblocks, log.
    pub fixed_bytes: u64,
    /// Data and tree nodes.
    pub used_bytes: u64,
    /// Freed, but not yet to be used again.
    pub held_back_bytes: u64,
    /// Set aside for what has been accepted.
    pub reserved_bytes: u64,
    /// Kept back so that deleting always works.
    pub protected_bytes: u64,
    /// What a write may still use.
    pub free_bytes: u64,
}

/// What a device has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Path of the device.
    pub path: String,
    /// Reads done.
    pub reads_count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes done.
    pub writes_count: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes done.
    pub flushes_count: u64,
    /// Discards done.
    pub discards_count: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Operations that failed.
    pub errors_count: u64,
    /// How long reads took.
    pub read_latency: LatencyStats,
    /// How long writes took.
    pub write_latency: LatencyStats,
    /// How long flushes took.
    pub flush_latency: LatencyStats,
}

/// A distribution of durations, in nanoseconds. Percentiles are upper bounds, at most a factor of two too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LatencyStats {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest. Where the call that opened the pool made it, and that took longer, it is an upper bound as the percentiles are.
    pub max_ns: u64,
}

/// The log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct JournalStats {
    /// Batches written.
    pub batches_count: u64,
    /// Callers that waited for one.
    pub waiters_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of the last transaction.
    pub position: u64,
    /// Number of the last durable transaction.
    pub durable_position: u64,
}

/// Checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CheckpointStats {
    /// Checkpoints completed.
    pub completed_count: u64,
    /// Tree nodes written by them.
    pub nodes_written_count: u64,
    /// Bytes written by them.
    pub written_bytes: u64,
}

/// Tree nodes in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeStats {
    /// Changed since the last checkpoint.
    pub dirty_count: u64,
    /// In the cache.
    pub cached_count: u64,
}

/// Deletion in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ReapStats {
    /// Files, and versions of files, still to be deleted.
    pub backlog_count: u64,
}

/// Keyframes: what one version of a file sees of a megabyte, stored in one place for those who look at old versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct KeyframeStats {
    /// Made since the pool was opened.
    pub made_count: u64,
    /// Bytes of these.
    pub made_bytes: u64,
}

/// How far [`crate::Pool::trim`] has come, or what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Trimmed {
    /// Bytes of free space that the device has taken back, each once, however many copies the pool keeps.
    pub discarded_bytes: u64,
    /// How much of the pool's space has been looked at.
    pub position_bytes: u64,
    /// How much there is.
    pub end_bytes: u64,
}

impl Trimmed {
    pub(crate) fn of(trimmed: &varve_fs::Trimmed) -> Trimmed {
        let varve_fs::Trimmed { discarded_bytes, position_bytes, end_bytes, is_supported: _ } = *trimmed;
        Trimmed { discarded_bytes, position_bytes, end_bytes }
    }
}

/// What opening a pool found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Recovery {
    /// Whether the pool had been closed: nothing was to be recovered.
    pub clean: bool,
    /// Batches of the log applied again.
    pub batches_replayed_count: u64,
    /// Transactions in them.
    pub transactions_replayed_count: u64,
    /// Batches cut off the end, because data that belonged to them had not reached the device. Nothing that was synced.
    pub batches_cut_count: u64,
    /// What of the pool or of its log is lost, so that the log could not be applied to its end: what it says after that is not seen.
    /// Only in a pool that is opened for reading.
    pub replay_ended_by: Option<String>,
    /// Batches that were not applied for that, or not all of them: at least so many, and 0 where it is not known whether there are any.
    pub batches_left_count: u64,
}

/// What a filesystem offers and has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StatFs {
    /// Offered in all, in bytes.
    pub total_bytes: u64,
    /// Free, in bytes.
    pub free_bytes: u64,
    /// Inodes in use.
    pub files_count: u64,
}

impl Stats {
    pub(crate) fn of(shared: &Shared, fs: &varve_fs::Filesystem) -> Result<Stats, varve_fs::FsError> {
        let space = fs.space();
        let store = fs.store_stats();
        let devices = fs.device_stats().into_iter().enumerate().map(|(index, (path, stats))| {
            let before = shared.devices_before.get(index).cloned().unwrap_or_default();
            DeviceStats::of(path, &stats.since(&before))
        });
        Ok(Stats {
            pool: shared.door.name.clone(),
            space: SpaceStats {
                total_bytes: space.total_bytes,
                fixed_bytes: space.fixed_bytes,
                used_bytes: space.used_bytes,
                held_back_bytes: space.held_back_bytes,
                reserved_bytes: space.reserved_bytes,
                protected_bytes: space.protected_bytes,
                free_bytes: space.free_bytes,
            },
            files_count: fs.statfs()?.files,
            devices: devices.collect(),
            journal: JournalStats {
                batches_count: store.journal_batches_count,
                waiters_count: store.journal_waiters_count,
                written_bytes: store.journal_bytes,
                position: fs.position().0,
                durable_position: fs.durable_position().0,
            },
            checkpoint: CheckpointStats {
                completed_count: store.checkpoints_count,
                nodes_written_count: store.checkpoint_nodes_count,
                written_bytes: store.checkpoint_bytes,
            },
            nodes: NodeStats { dirty_count: store.dirty_nodes_count, cached_count: store.cached_nodes_count },
            reap: ReapStats { backlog_count: fs.reap_backlog() },
            keyframes: KeyframeStats {
                made_count: store.keyframes_made_count,
                made_bytes: store.keyframes_made_bytes,
            },
            transactions_count: store.transactions_count,
            reclaims_count: store.reclaims_count,
            no_space_count: store.no_space_count,
            repaired_blocks_count: store.repaired_blocks_count,
        })
    }
}

impl DeviceStats {
    fn of(path: String, stats: &varve_device::StatsSnapshot) -> DeviceStats {
        DeviceStats {
            path,
            reads_count: stats.reads_count,
            read_bytes: stats.read_bytes,
            writes_count: stats.writes_count,
            write_bytes: stats.write_bytes,
            flushes_count: stats.flushes_count,
            discards_count: stats.discards_count,
            discard_bytes: stats.discard_bytes,
            errors_count: stats.errors_count,
            read_latency: LatencyStats::of(&stats.read_latency),
            write_latency: LatencyStats::of(&stats.write_latency),
            flush_latency: LatencyStats::of(&stats.flush_latency),
        }
    }
}

impl LatencyStats {
    fn of(histogram: &varve_device::HistogramSnapshot) -> LatencyStats {
        LatencyStats {
            count: histogram.count,
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.percentile_ns(50.0),
            p90_ns: histogram.percentile_ns(90.0),
            p99_ns: histogram.percentile_ns(99.0),
            // The longest is not told apart from what was before the opening; its bucket is.
            max_ns: histogram.percentile_ns(100.0),
        }
    }
}

impl Recovery {
    pub(crate) fn of(report: &varve_fs::RecoveryReport) -> Recovery {
        Recovery {
            clean: report.clean,
            batches_replayed_count: report.batches_replayed,
            transactions_replayed_count: report.transactions_replayed,
            batches_cut_count: report.batches_cut,
            replay_ended_by: report.replay_ended_by.clone(),
            batches_left_count: report.batches_left,
        }
    }
}

impl StatFs {
    pub(crate) fn of(statfs: &varve_fs::StatFs) -> StatFs {
        StatFs { total_bytes: statfs.total_bytes, free_bytes: statfs.free_bytes, files_count: statfs.files }
    }
}
