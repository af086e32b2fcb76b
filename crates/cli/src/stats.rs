//! `varve stats`: space, devices and counters of a pool; asked of the process that serves it, or read from the device.
//!
//! The keys of `--json` are stable: snake_case, the unit last.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use varve_device::{HistogramSnapshot, StatsSnapshot};
use varve_fs::Filesystem;

use crate::args::StatsArgs;
use crate::mountinfo::{self, Mount, MountTable};
use crate::size::show_size;
use crate::{Outcome, pool, show, sync};

/// Everything.
#[derive(Serialize, Deserialize)]
pub struct Stats {
    pool: String,
    mountpoint: Option<String>,
    pid: Option<u32>,
    space: Space,
    files_count: u64,
    devices: Vec<Device>,
    journal: Journal,
    checkpoint: Checkpoint,
    nodes: Nodes,
    transactions_count: u64,
    reclaims_count: u64,
    no_space_count: u64,
    repaired_blocks_count: u64,
}

#[derive(Serialize, Deserialize)]
struct Space {
    total_bytes: u64,
    fixed_bytes: u64,
    used_bytes: u64,
    held_back_bytes: u64,
    reserved_bytes: u64,
    protected_bytes: u64,
    free_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Device {
    path: String,
    reads_count: u64,
    read_bytes: u64,
    writes_count: u64,
    write_bytes: u64,
    flushes_count: u64,
    discards_count: u64,
    discard_bytes: u64,
    errors_count: u64,
    read_latency: Latency,
    write_latency: Latency,
    flush_latency: Latency,
}

#[derive(Serialize, Deserialize)]
struct Latency {
    count: u64,
    mean_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    batches_count: u64,
    waiters_count: u64,
    written_bytes: u64,
    position: u64,
    durable_position: u64,
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    completed_count: u64,
    nodes_written_count: u64,
    written_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Nodes {
    dirty_count: u64,
    cached_count: u64,
}

impl Latency {
    fn of(histogram: &HistogramSnapshot) -> Self {
        Latency {
            count: histogram.count,
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.percentile_ns(50.0),
            p90_ns: histogram.percentile_ns(90.0),
            p99_ns: histogram.percentile_ns(99.0),
            max_ns: histogram.max_ns,
        }
    }
}

impl Device {
    fn of(path: String, stats: &StatsSnapshot) -> Self {
        Device {
            path,
            reads_count: stats.reads_count,
            read_bytes: stats.read_bytes,
            writes_count: stats.writes_count,
            write_bytes: stats.write_bytes,
            flushes_count: stats.flushes_count,
            discards_count: stats.discards_count,
            discard_bytes: stats.discard_bytes,
            errors_count: stats.errors_count,
            read_latency: Latency::of(&stats.read_latency),
            write_latency: Latency::of(&stats.write_latency),
            flush_latency: Latency::of(&stats.flush_latency),
        }
    }
}

/// What is known of an open pool. `mountpoint`: this process serves it there.
pub fn collect(filesystem: &Filesystem, pool: &Path, mountpoint: Option<&Path>) -> Stats {
    let space = filesystem.space();
    let store = filesystem.store_stats();
    Stats {
        pool: pool.display().to_string(),
        mountpoint: mountpoint.map(|path| path.display().to_string()),
        pid: mountpoint.map(|_| std::process::id()),
        space: Space {
            total_bytes: space.total_bytes,
            fixed_bytes: space.fixed_bytes,
            used_bytes: space.used_bytes,
            held_back_bytes: space.held_back_bytes,
            reserved_bytes: space.reserved_bytes,
            protected_bytes: space.protected_bytes,
            free_bytes: space.free_bytes,
        },
        files_count: filesystem.statfs().map_or(0, |statfs| statfs.files),
        devices: filesystem
            .device_stats()
            .into_iter()
            .map(|(path, stats)| Device::of(path, &stats))
            .collect(),
        journal: Journal {
            batches_count: store.journal_batches_count,
            waiters_count: store.journal_waiters_count,
            written_bytes: store.journal_bytes,
            position: filesystem.position().0,
            durable_position: filesystem.durable_position().0,
        },
        checkpoint: Checkpoint {
            completed_count: store.checkpoints_count,
            nodes_written_count: store.checkpoint_nodes_count,
            written_bytes: store.checkpoint_bytes,
        },
        nodes: Nodes { dirty_count: store.dirty_nodes_count, cached_count: store.cached_nodes_count },
        transactions_count: store.transactions_count,
        reclaims_count: store.reclaims_count,
        no_space_count: store.no_space_count,
        repaired_blocks_count: store.repaired_blocks_count,
    }
}

/// Runs the command.
pub fn run(args: &StatsArgs) -> Result<Outcome> {
    let shown = args.path.display();
    let path = mountinfo::resolve(&args.path).with_context(|| format!("cannot find {shown}"))?;
    let table = MountTable::read()?;
    let stats = match find_mount(&table, &path) {
        Some(mount) => {
            let answer = sync::connect(mount)?.request("stats")?;
            serde_json::from_value(answer).context("this mount is served by another version of varve")?
        }
        None => {
            let file_type = path.metadata().with_context(|| format!("cannot look at {shown}"))?.file_type();
            if !file_type.is_file() && !file_type.is_block_device() {
                bail!("{shown} is neither inside a mounted pool nor the file or block device of a pool");
            }
            let (filesystem, _) = pool::open_read_only(&path)?;
            collect(&filesystem, &path, None)
        }
    };
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&stats)?))?;
    } else {
        show(&describe(&stats))?;
    }
    Ok(Outcome::Done)
}

/// The mount that `path` lies in, or that is of the pool `path`.
fn find_mount<'a>(table: &'a MountTable, path: &Path) -> Option<&'a Mount> {
    table
        .containing(path)
        .filter(|mount| mount.is_ours())
        .or_else(|| table.ours().find(|mount| mount.source == path))
}

/// For people.
fn describe(stats: &Stats) -> String {
    let mut text = Lines::default();
    match &stats.mountpoint {
        Some(place) => text.line(format_args!("{}, mounted at {place}", stats.pool)),
        None => text.line(format_args!("{}, not mounted", stats.pool)),
    }
    text.line(format_args!("\nspace"));
    for (name, bytes) in [
        ("total", stats.space.total_bytes),
        ("used", stats.space.used_bytes),
        ("free", stats.space.free_bytes),
        ("reserved", stats.space.reserved_bytes),
        ("held back", stats.space.held_back_bytes),
        ("protected", stats.space.protected_bytes),
        ("fixed", stats.space.fixed_bytes),
    ] {
        text.line(format_args!("  {name:<12} {:>12}", show_size(bytes)));
    }
    text.line(format_args!("  {:<12} {:>12}", "files", stats.files_count));
    for device in &stats.devices {
        text.line(format_args!("\ndevice {}", device.path));
        text.line(format_args!(
            "  {:<12} {:>12} {:>12}",
            "reads",
            device.reads_count,
            show_size(device.read_bytes)
        ));
        text.line(format_args!(
            "  {:<12} {:>12} {:>12}",
            "writes",
            device.writes_count,
            show_size(device.write_bytes)
        ));
        text.line(format_args!(
            "  {:<12} {:>12} {:>12} on average",
            "flushes",
            device.flushes_count,
            show_ns(device.flush_latency.mean_ns)
        ));
        text.line(format_args!("  {:<12} {:>12}", "errors", device.errors_count));
    }
    text.line(format_args!("\nlog"));
    text.line(format_args!(
        "  {:<12} {:>12} {:>12}",
        "batches",
        stats.journal.batches_count,
        show_size(stats.journal.written_bytes)
    ));
    text.line(format_args!("  {:<12} {:>12}", "waiters", stats.journal.waiters_count));
    text.line(format_args!("  {:<12} {:>12}", "transactions", stats.transactions_count));
    text.line(format_args!("\ntrees"));
    text.line(format_args!(
        "  {:<12} {:>12} {:>12}",
        "checkpoints",
        stats.checkpoint.completed_count,
        show_size(stats.checkpoint.written_bytes)
    ));
    text.line(format_args!("  {:<12} {:>12}", "dirty nodes", stats.nodes.dirty_count));
    text.line(format_args!("  {:<12} {:>12}", "cached nodes", stats.nodes.cached_count));
    if stats.no_space_count > 0 || stats.repaired_blocks_count > 0 {
        text.line(format_args!("\nworth knowing"));
        text.line(format_args!("  {:<12} {:>12}", "out of space", stats.no_space_count));
        text.line(format_args!("  {:<12} {:>12}", "repaired", stats.repaired_blocks_count));
    }
    text.0
}

/// Text that grows by lines.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0.push_str(&line.to_string());
        self.0.push('\n');
    }
}

fn show_ns(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}
