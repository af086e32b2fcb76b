//! `varve stats`: space, devices and counters of a pool; asked of the process that serves it, or read from the device.
//!
//! The keys of `--json` are stable: snake_case, the unit last. docs/stats.md explains each; a test compares.

use std::io::{IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use varve_device::{HistogramSnapshot, StatsSnapshot};
use varve_fs::Filesystem;

use crate::args::StatsArgs;
use crate::mountinfo::{self, Mount, MountTable};
use crate::names::{Shown, in_words, one_line};
use crate::pool_file::Report;
use crate::size::show_size;
use crate::sync::Server;
use crate::{Outcome, pool, show, whose};

/// Nothing is written any more.
const STOPPED: &str = "stopped";

/// Everything.
#[derive(Default, Serialize, Deserialize)]
pub struct Stats {
    pool: String,
    mountpoint: Option<String>,
    pid: Option<u32>,
    #[serde(default)]
    writing: Writing,
    /// `everything` or `names`: what is durable when its call returns.
    #[serde(default)]
    pub durable_at_once: Option<String>,
    /// Whether requests come through rings.
    #[serde(default)]
    pub rings: Option<bool>,
    /// What is lost, so that the figures are without what came last.
    #[serde(default)]
    pub log_ended_reason: Option<String>,
    space: Space,
    files_count: u64,
    devices: Vec<Device>,
    journal: Journal,
    checkpoint: Checkpoint,
    nodes: Nodes,
    reap: Reap,
    #[serde(default)]
    keyframes: Keyframes,
    transactions_count: u64,
    reclaims_count: u64,
    no_space_count: u64,
    repaired_blocks_count: u64,
    reserve_latency: Latency,
    commit_latency: Latency,
    read_latency: Latency,
    write_latency: Latency,
}

/// Whether the pool is written to.
#[derive(Default, Serialize, Deserialize)]
struct Writing {
    /// `yes`, `read-only` or `stopped`.
    state: String,
    stopped_ns: Option<u64>,
    stopped_reason: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct Space {
    total_bytes: u64,
    fixed_bytes: u64,
    used_bytes: u64,
    held_back_bytes: u64,
    reserved_bytes: u64,
    protected_bytes: u64,
    free_bytes: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Device {
    path: String,
    /// What has become of the file of a mounted pool.
    #[serde(default)]
    file_state: Option<String>,
    #[serde(default)]
    file_state_reason: Option<String>,
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

#[derive(Default, Serialize, Deserialize)]
struct Latency {
    count: u64,
    mean_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Journal {
    batches_count: u64,
    waiters_count: u64,
    written_bytes: u64,
    position: u64,
    durable_position: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Checkpoint {
    completed_count: u64,
    nodes_written_count: u64,
    written_bytes: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Nodes {
    dirty_count: u64,
    cached_count: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Reap {
    backlog_count: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Keyframes {
    made_count: u64,
    made_bytes: u64,
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
            file_state: None,
            file_state_reason: None,
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

impl Writing {
    fn of(filesystem: &Filesystem) -> Self {
        if let Some((reason, ago)) = filesystem.stopped() {
            let ns = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
            return Writing { state: STOPPED.into(), stopped_ns: Some(ns), stopped_reason: Some(reason) };
        }
        let state = if filesystem.is_read_only() { "read-only" } else { "yes" };
        Writing { state: state.into(), ..Writing::default() }
    }
}

impl Stats {
    /// What has become of the file that the pool lies in, its only device.
    pub fn note_file(&mut self, report: Report) {
        if let [device] = &mut self.devices[..] {
            device.file_state = Some(report.state.into());
            device.file_state_reason = report.advice;
        }
    }

    /// A request of the mount has panicked, so that none changes anything any more.
    pub fn note_panic(&mut self) {
        if self.writing.state != STOPPED {
            let reason = "a request panicked: a bug in VarveFS";
            self.writing =
                Writing { state: STOPPED.into(), stopped_ns: None, stopped_reason: Some(reason.into()) };
        }
    }
}

/// What is known of an open pool. `mountpoint`: this process serves it there.
pub fn collect(filesystem: &Filesystem, pool: &Path, mountpoint: Option<&Path>) -> Stats {
    let space = filesystem.space();
    let store = filesystem.store_stats();
    let (read, write) = filesystem.read_and_write_latency();
    Stats {
        pool: pool.shown(),
        mountpoint: mountpoint.map(Shown::shown),
        pid: mountpoint.map(|_| std::process::id()),
        writing: Writing::of(filesystem),
        durable_at_once: None,
        rings: None,
        log_ended_reason: None,
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
            .map(|(path, stats)| Device::of(one_line(&pool::respelt(pool, &path)), &stats))
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
        reap: Reap { backlog_count: filesystem.reap_backlog() },
        keyframes: Keyframes {
            made_count: store.keyframes_made_count,
            made_bytes: store.keyframes_made_bytes,
        },
        transactions_count: store.transactions_count,
        reclaims_count: store.reclaims_count,
        no_space_count: store.no_space_count,
        repaired_blocks_count: store.repaired_blocks_count,
        reserve_latency: Latency::of(&store.reserve_latency),
        commit_latency: Latency::of(&store.commit_latency),
        read_latency: Latency::of(&read),
        write_latency: Latency::of(&write),
    }
}

/// Runs the command.
pub fn run(args: &StatsArgs) -> Result<Outcome> {
    let shown = args.path.shown();
    let path = mountinfo::resolve(&args.path).map_err(|error| {
        let advice = "give anything inside a mount, or the file or block device of a pool";
        anyhow!("cannot look at {shown}: {}; {advice}", in_words(&error))
    })?;
    let table = MountTable::read()?;
    let mount = find_mount(&table, &path);
    if let Some(interval) = args.watch {
        let Some(mount) = mount else {
            if let Some(why) = table.unseen(&path) {
                return Err(why);
            }
            bail!("{shown} is not mounted, and nothing changes in a pool that is not: leave --watch away");
        };
        return watch(mount, interval, args);
    }
    let (stats, outcome) = match mount {
        Some(mount) => {
            let stats = ask(&Server::of(mount))?;
            let outcome = pool::outcome_of_mount(mount, "stats", stats.log_ended_reason.as_deref());
            (stats, outcome)
        }
        None => {
            let file_type =
                path.metadata().map_err(|error| anyhow!("cannot look at {shown}: {}", in_words(&error)))?;
            let file_type = file_type.file_type();
            if !file_type.is_file() && !file_type.is_block_device() {
                if let Some(why) = table.unseen(&path) {
                    return Err(why);
                }
                bail!("{shown} is neither inside a mounted pool nor the file or block device of a pool");
            }
            let (filesystem, recovery) = pool::open_read_only(&path, "stats")?;
            let outcome = pool::outcome(&recovery);
            // After a crash the inodes are to be counted, which in a mount the background does.
            if let Err(error) = filesystem.maintain() {
                crate::tell(&format!("varve stats: {shown}: the files are not counted: {error}"));
            }
            let stats = collect(&filesystem, &path, None);
            (Stats { log_ended_reason: recovery.replay_ended_by, ..stats }, outcome)
        }
    };
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&stats)?))?;
    } else {
        show(&describe(&stats, None))?;
    }
    Ok(outcome)
}

/// The figures of a mount.
fn ask(server: &Server) -> Result<Stats> {
    let answer = server.request("stats")?;
    serde_json::from_value(answer).context("this mount is served by another version of varve")
}

/// Shows the figures again and again, until nobody reads them any more or it was often enough. That the mount has gone is an error.
fn watch(mount: &Mount, interval: Duration, args: &StatsArgs) -> Result<Outcome> {
    let mut output = std::io::stdout();
    // On a terminal each picture takes the place of the one before.
    let clear = if output.is_terminal() && !args.json { "\x1b[H\x1b[2J" } else { "" };
    let mut before: Option<(Stats, Instant)> = None;
    let server = Server::of(mount);
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut outcome = Outcome::Done;
    while left > 0 {
        let (stats, now) = (ask(&server)?, Instant::now());
        if before.is_none() {
            outcome = pool::outcome_of_mount(mount, "stats", stats.log_ended_reason.as_deref());
        }
        let text = if args.json {
            format!("{}\n", serde_json::to_string(&stats)?)
        } else {
            let since = before.as_ref().map(|(stats, then)| (stats, now.duration_since(*then)));
            format!("{clear}{}{}", describe(&stats, since), if clear.is_empty() { "\n" } else { "" })
        };
        match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            result => result.context("cannot write to standard output")?,
        }
        before = Some((stats, now));
        left -= 1;
        if left > 0 {
            thread::sleep(interval);
        }
    }
    Ok(outcome)
}

/// The mount that `path` lies in, or whose pool it is.
pub fn find_mount<'a>(table: &'a MountTable, path: &Path) -> Option<&'a Mount> {
    table.containing(path).filter(|mount| mount.is_ours()).or_else(|| whose::find(table, path))
}

/// For people. `before`: earlier figures and how long ago that was; then what was done since is shown too.
fn describe(stats: &Stats, before: Option<(&Stats, Duration)>) -> String {
    let mut text = Lines { text: String::new(), before };
    match &stats.mountpoint {
        Some(place) => text.line(format_args!("{}, mounted at {place}", stats.pool)),
        None => text.line(format_args!("{}, not mounted", stats.pool)),
    }
    text.line(format_args!("writing: {}", describe_writing(&stats.writing)));
    if let Some(what) = &stats.durable_at_once {
        text.line(format_args!("durable at once: {what}"));
    }
    if let Some(rings) = stats.rings {
        let through = if rings { "rings (FUSE over io_uring)" } else { "/dev/fuse" };
        text.line(format_args!("requests: through {through}"));
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
    text.line(format_args!("  {:<12} {:>12}", "to delete", stats.reap.backlog_count));
    for (index, device) in stats.devices.iter().enumerate() {
        text.line(format_args!("\ndevice {}", device.path));
        if let (Some(state), Some(reason)) = (&device.file_state, &device.file_state_reason) {
            text.line(format_args!("  {:<12} {state}: {reason}", "file"));
        }
        let of = |stats: &Stats, field: fn(&Device) -> u64| stats.devices.get(index).map_or(0, field);
        text.counter(stats, "reads", |s| of(s, |d| d.reads_count), Some(&|s| of(s, |d| d.read_bytes)));
        text.counter(stats, "writes", |s| of(s, |d| d.writes_count), Some(&|s| of(s, |d| d.write_bytes)));
        text.counter(stats, "flushes", |s| of(s, |d| d.flushes_count), None);
        text.line(format_args!(
            "  {:<12} {:>12} (median), {} (99 of a hundred)",
            "flush takes",
            show_ns(device.flush_latency.p50_ns),
            show_ns(device.flush_latency.p99_ns)
        ));
        text.line(format_args!("  {:<12} {:>12}", "errors", device.errors_count));
    }
    text.line(format_args!("\nlog"));
    text.counter(stats, "batches", |s| s.journal.batches_count, Some(&|s| s.journal.written_bytes));
    text.counter(stats, "waiters", |s| s.journal.waiters_count, None);
    text.counter(stats, "transactions", |s| s.transactions_count, None);
    text.line(format_args!("\ntrees"));
    text.counter(
        stats,
        "checkpoints",
        |s| s.checkpoint.completed_count,
        Some(&|s| s.checkpoint.written_bytes),
    );
    text.counter(stats, "keyframes", |s| s.keyframes.made_count, Some(&|s| s.keyframes.made_bytes));
    text.line(format_args!("  {:<12} {:>12}", "dirty nodes", stats.nodes.dirty_count));
    text.line(format_args!("  {:<12} {:>12}", "cached nodes", stats.nodes.cached_count));
    text.line(format_args!("\ntakes (median, 99 of a hundred)"));
    for (name, latency) in [
        ("read", &stats.read_latency),
        ("write", &stats.write_latency),
        ("commit", &stats.commit_latency),
        ("reserve", &stats.reserve_latency),
    ] {
        let (median, most) = (show_ns(latency.p50_ns), show_ns(latency.p99_ns));
        text.line(format_args!("  {name:<12} {median:>12}, {most}"));
    }
    if stats.no_space_count > 0 || stats.repaired_blocks_count > 0 {
        text.line(format_args!("\nworth knowing"));
        text.line(format_args!("  {:<12} {:>12}", "out of space", stats.no_space_count));
        text.line(format_args!("  {:<12} {:>12}", "repaired", stats.repaired_blocks_count));
    }
    text.text
}

fn describe_writing(writing: &Writing) -> String {
    let Some(reason) = &writing.stopped_reason else { return writing.state.clone() };
    // Told by another process a moment ago: a whole second is exact enough.
    let since = writing.stopped_ns.map(|ns| format!(" {} s ago", ns / 1_000_000_000)).unwrap_or_default();
    format!(
        "stopped{since}: {reason}; what was synced before is durable: unmount it (varve unmount) and mount it again, and look \
         at the device if that happens again"
    )
}

/// Text that grows by lines.
struct Lines<'a> {
    text: String,
    before: Option<(&'a Stats, Duration)>,
}

impl Lines<'_> {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.text.push_str(&line.to_string());
        self.text.push('\n');
    }

    /// A counter, the bytes that go with it, and both per second.
    fn counter(
        &mut self,
        stats: &Stats,
        name: &str,
        count: impl Fn(&Stats) -> u64,
        bytes: Option<&dyn Fn(&Stats) -> u64>,
    ) {
        let mut line = format!("  {name:<12} {:>12}", count(stats));
        let sized = bytes.map(|bytes| show_size(bytes(stats))).unwrap_or_default();
        if self.before.is_some() || !sized.is_empty() {
            line.push_str(&format!(" {sized:>12}"));
        }
        if let Some((before, elapsed)) = self.before {
            let rate = |field: &dyn Fn(&Stats) -> u64| {
                field(stats).saturating_sub(field(before)) as f64 / elapsed.as_secs_f64().max(1e-9)
            };
            line.push_str(&format!(" {:>10.1}/s", rate(&count)));
            if let Some(bytes) = bytes {
                line.push_str(&format!(" {:>12}/s", show_size(rate(bytes) as u64)));
            }
        }
        self.line(format_args!("{line}"));
    }
}

fn show_ns(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use std::sync::Arc;

    use serde_json::Value;
    use varve_device::{MemoryDevice, Operation};
    use varve_fs::{Caller, FormatOptions, OpenOptions, Profile, ROOT_INODE, StoreOptions};
    use varve_sim::{Fault, FaultRule, FaultyDevice, Trigger};

    use super::*;
    use crate::clock::SystemClock;

    fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let dot = if path.is_empty() { "" } else { "." };
                    keys(value, &format!("{path}{dot}{key}"), found);
                }
            }
            Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{path}[]"), found)),
            _ => {
                found.insert(path.to_owned());
            }
        }
    }

    // Goal: docs/stats.md names every key there is and no other. Method: the keys of the output with one device against
    // the first column of its tables.
    #[test]
    fn keys_are_documented() {
        let stats = Stats { devices: vec![Device::default()], ..Stats::default() };
        let mut there = BTreeSet::new();
        keys(&serde_json::to_value(&stats).expect("it serializes"), "", &mut there);
        let text = include_str!("../../../docs/stats.md");
        let documented: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(key, _)| key.to_owned())
            .collect();
        assert_eq!(there, documented);
        for key in &there {
            let last = key.rsplit('.').next().unwrap_or(key);
            let mut units =
                vec!["_bytes", "_ns", "_count", "count", "position", "path", "pool", "mountpoint"];
            // No figures.
            units.extend(["pid", "state", "reason", "durable_at_once", "rings"]);
            assert!(units.iter().any(|unit| last.ends_with(unit)), "{key}: the unit comes last");
        }
    }

    // Goal: a pool that has stopped writing shows that, since when, and why, for people and for programs; and one that is read, or
    // written to, shows that. Method: a device whose flush fails under a sync; the same pool opened both ways; a mount whose
    // request has panicked.
    #[test]
    fn who_has_stopped_writing_says_so() {
        let device: Arc<dyn varve_device::Device> = Arc::new(MemoryDevice::new(64 << 20));
        let format = FormatOptions {
            data: Profile::Single,
            metadata: Profile::Single,
            pool_id: [7; 16],
            hash_seed: 7,
            force: false,
        };
        Filesystem::format(std::slice::from_ref(&device), &format, Caller::ROOT, &SystemClock)
            .expect("it is made");
        let open = |device: Arc<dyn varve_device::Device>, read_only: bool| {
            let options = OpenOptions {
                store: StoreOptions { read_only, background: false, ..StoreOptions::default() },
                dirty_bytes_max: 1 << 20,
                clock: Arc::new(SystemClock),
                on_data_logged: None,
            };
            Filesystem::open(vec![device], options).expect("it opens").0
        };
        let shown = |filesystem: &Filesystem| {
            let stats = collect(filesystem, Path::new("pool"), None);
            let text = describe(&stats, None);
            let line = text.lines().find(|line| line.starts_with("writing: ")).expect("a line").to_owned();
            (line, serde_json::to_value(&stats).expect("it serializes")["writing"].clone())
        };
        let (line, json) = shown(&open(device.clone(), true));
        assert_eq!((&line[..], &json["state"]), ("writing: read-only", &Value::from("read-only")));
        let faulty = Arc::new(FaultyDevice::new(device, 1, Vec::new()));
        let filesystem = open(faulty.clone(), false);
        let (line, json) = shown(&filesystem);
        assert_eq!((&line[..], &json["state"]), ("writing: yes", &Value::from("yes")));
        assert!(json["stopped_ns"].is_null() && json["stopped_reason"].is_null());
        filesystem.create(Caller::ROOT, ROOT_INODE, b"file", 0o644).expect("it is made");
        faulty.set_rules(vec![FaultRule::new(Operation::Flush, Trigger::From(1), Fault::Error)]);
        filesystem.sync().expect_err("nothing can be made durable");
        let (line, json) = shown(&filesystem);
        let reason = json["stopped_reason"].as_str().expect("a reason");
        assert!(line.starts_with(&format!("writing: stopped 0 s ago: {reason}; ")), "{line}");
        assert!(reason.contains("flush"), "{reason}");
        assert!(json["state"] == "stopped" && json["stopped_ns"].as_u64().is_some_and(|ns| ns > 0));

        let mut stats = Stats::default();
        stats.note_panic();
        let text = describe(&stats, None);
        assert!(text.contains("writing: stopped: a request panicked"), "{text}");
    }

    // Goal: what was done meanwhile is shown per second. Method: two pictures two seconds apart.
    #[test]
    fn rates_are_shown() {
        let at = |count: u64| Stats {
            journal: Journal { batches_count: count, written_bytes: count * 4096, ..Journal::default() },
            ..Stats::default()
        };
        let (before, now) = (at(10), at(30));
        let text = describe(&now, Some((&before, Duration::from_secs(2))));
        let line = text.lines().find(|line| line.contains("batches")).expect("a line for batches");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["batches", "30", "120", "KiB", "10.0/s", "40", "KiB/s"]);
        let alone = describe(&now, None);
        let line = alone.lines().find(|line| line.contains("batches")).expect("a line for batches");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["batches", "30", "120", "KiB"]);
    }
}
