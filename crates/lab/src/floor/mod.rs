//! The experiment `floor`: what a round trip through FUSE costs when the filesystem does nothing, beside VarveFS.
//!
//! A [`null::NullFs`] is mounted by the same transport with as many threads as VarveFS; what it takes is the floor for
//! mounted figures. VarveFS lies in memory here, with everything it needs in its cache: compared is what programs cost,
//! not what disks do. Names to look up are made behind the kernel's back, so that each lookup is one message.
//!
//! Where the scheduler happens to put caller and server doubles or halves a round trip, for one mount and not for the
//! other. So they are put somewhere: once on one processor, where they take turns and a call costs the work that is done
//! for it; and once on different ones, where each call also wakes a processor, twice.

mod null;
mod place;

use std::fs::OpenOptions;
use std::io::{IoSliceMut, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use serde::Serialize;
use tempfile::TempDir;
use varve_device::{AlignedBuf, Device, MemoryDevice};
use varve_fs::{Caller, Clock, Filesystem, FormatOptions, Profile, ROOT_INODE, StoreOptions, Timestamp};
use varve_mount::{AccessTimes, Flags, MountOptions, Mounted, Rings, Verbs};

use crate::guard::{self, MountGuard};
use crate::machine::Provenance;
use crate::numbers::{median, quantile, ratio};
use crate::report::{Axis, Claim, Plot, Table};
use crate::{Options, Report, Scale};
use place::{Pinned, Place};

pub use null::{NullFs, READ_BYTES};

/// Why nothing can be mounted here, with what would help. `None`: it can.
#[must_use]
pub fn missing() -> Option<String> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").err().map(|error| {
        format!("cannot open /dev/fuse: {error}; load the module (modprobe fuse) or run it as root")
    })
}

/// What is said to who names targets for it.
pub const NO_TARGETS: &str = "floor has no targets to choose from: it compares VarveFS in memory, mounted, with a mount that does \
                              nothing; leave --on away";

const DISK_BYTES: u64 = 256 << 20;
const CREATE_BOUND: f64 = 1.15;
const READ_BOUND: f64 = 1.3;
/// The file that is read from.
const FILE: &str = "constant";
const FILE_BYTES: u64 = 4 << 20;

/// The verbs that are timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verb {
    Lookup,
    Create,
    Read,
}

impl Verb {
    const ALL: [Verb; 3] = [Verb::Lookup, Verb::Create, Verb::Read];

    fn name(self) -> &'static str {
        match self {
            Verb::Lookup => "lookup (stat of a name that the kernel does not know)",
            Verb::Create => "create and close an empty file",
            Verb::Read => "4 KiB read, the kernel's cache bypassed",
        }
    }

    fn bound(self) -> f64 {
        if self == Verb::Read { READ_BOUND } else { CREATE_BOUND }
    }
}

/// One round: a number of calls on each, just after each other.
#[derive(Clone, Debug, Serialize)]
struct Round {
    place: Place,
    verb: Verb,
    null_ns: f64,
    varve_ns: f64,
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }
}

/// A mount that this process serves. Unmounted and waited for when it goes.
struct Served {
    guard: Option<MountGuard>,
    mounted: Option<Mounted>,
    _mountpoint: TempDir,
    root: PathBuf,
}

impl Served {
    fn start<V: Verbs>(verbs: Arc<V>, name: &str, directory: &Path, rings: bool) -> Result<Served> {
        let mountpoint = tempfile::Builder::new().prefix(name).tempdir_in(directory)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = MountOptions {
            source: format!("varve-lab-{name}").into(),
            flags: Flags {
                no_dev: true,
                no_suid: true,
                access_times: AccessTimes::Never,
                ..Flags::default()
            },
            allow_other: false,
            // As `varve mount` without options.
            threads: (2 * cores).clamp(4, 16),
            direct_io: false,
            rings: if rings { Rings::Wanted } else { Rings::Offered },
        };
        let mounted = Mounted::start(verbs, mountpoint.path(), &options)?;
        let root = mounted.mountpoint().to_path_buf();
        Ok(Served {
            guard: Some(MountGuard::served(&root)),
            mounted: Some(mounted),
            _mountpoint: mountpoint,
            root,
        })
    }

    fn end(mut self) -> Result<()> {
        self.guard.take().map_or(Ok(()), MountGuard::unmount)?;
        Ok(self.mounted.take().map_or(Ok(()), Mounted::wait)?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.guard.take());
        if let Some(Err(error)) = self.mounted.take().map(Mounted::wait) {
            crate::say(&format!("{error}"));
        }
    }
}

/// VarveFS in memory, with `names` files that the kernel has not heard of and one to read from.
fn varve(names: usize) -> Result<Arc<Filesystem>> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(DISK_BYTES));
    let mut random = [0; 24];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random))?;
    let (pool_id, hash_seed) = random.split_at(16);
    let format = FormatOptions {
        data: Profile::Single,
        metadata: Profile::Dup,
        pool_id: pool_id.try_into().context("16 bytes")?,
        hash_seed: u64::from_le_bytes(hash_seed.try_into().context("8 bytes")?),
        force: true,
    };
    Filesystem::format(std::slice::from_ref(&device), &format, Caller::ROOT, &SystemClock)?;
    let options = varve_fs::OpenOptions {
        store: StoreOptions::default(),
        dirty_bytes_max: 64 << 20,
        clock: Arc::new(SystemClock),
        on_data_logged: None,
    };
    let (fs, _) = Filesystem::open(vec![device], options)?;
    for n in 0..names {
        fs.create(Caller::ROOT, ROOT_INODE, looked_up(n).as_bytes(), 0o644)?;
    }
    let file = fs.create(Caller::ROOT, ROOT_INODE, FILE.as_bytes(), 0o644)?.ino;
    let bytes = vec![0x5a; 1 << 20];
    let mut offset = 0;
    while offset < FILE_BYTES {
        offset += fs.write(Caller::ROOT, file, offset, &bytes)? as u64;
    }
    fs.sync()?;
    Ok(Arc::new(fs))
}

fn looked_up(n: usize) -> String {
    format!("name-{n:08}")
}

/// Nanoseconds per call of `count` calls, beginning with number `first`.
fn time(root: &Path, verb: Verb, first: usize, count: usize) -> Result<f64> {
    let begun;
    match verb {
        Verb::Lookup => {
            let paths: Vec<PathBuf> = (first..first + count).map(|n| root.join(looked_up(n))).collect();
            begun = Instant::now();
            for path in &paths {
                path.symlink_metadata().with_context(|| format!("cannot look up {}", path.display()))?;
            }
        }
        Verb::Create => {
            let paths: Vec<PathBuf> =
                (first..first + count).map(|n| root.join(format!("new-{n:08}"))).collect();
            begun = Instant::now();
            for path in &paths {
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(path)
                    .with_context(|| format!("cannot create {}", path.display()))?;
            }
        }
        Verb::Read => {
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(OFlags::DIRECT.bits() as i32)
                .open(root.join(FILE))
                .context("cannot open the file to read from")?;
            let mut buf = AlignedBuf::new(READ_BYTES);
            begun = Instant::now();
            for n in first..first + count {
                // Blocks in an order that no read-ahead follows.
                let block = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (FILE_BYTES / READ_BYTES as u64);
                let offset = block * READ_BYTES as u64;
                let read = rustix::io::preadv(&file, &mut [IoSliceMut::new(&mut buf)], offset)?;
                if read != READ_BYTES {
                    bail!("a read of {READ_BYTES} bytes gave {read}");
                }
            }
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / count as f64)
}

/// Runs the experiment.
pub fn run(options: &Options) -> Result<Report> {
    if !options.targets.is_empty() {
        bail!(NO_TARGETS);
    }
    let provenance = Provenance::here(options);
    if let Some(missing) = missing() {
        bail!("nothing can be mounted: {missing}");
    }
    let (rounds, calls) = match options.scale {
        Scale::Tiny => (2, 50),
        // Some seconds: with other work on the machine a round in four is spoilt.
        Scale::Small => (40, 400),
        Scale::Seed => (50, 1000),
    };
    let directory = match &options.directory {
        Some(directory) => tempfile::Builder::new().prefix("varve-lab-").tempdir_in(directory)?,
        None => tempfile::Builder::new().prefix("varve-lab-").tempdir()?,
    };
    let mut measured = Vec::new();
    for place in Place::here()? {
        options.tell(&format!("making both filesystems, caller and server on {}", place.name()));
        let pinned = Pinned::new()?;
        pinned.serve(place)?;
        let fs = varve(rounds * calls)?;
        let null = Served::start(Arc::new(NullFs::new(FILE_BYTES)), "null", directory.path(), options.rings)?;
        let mounted = Served::start(fs.clone(), "varve", directory.path(), options.rings)?;
        pinned.call()?;
        for round in 0..rounds {
            guard::check()?;
            for verb in Verb::ALL {
                let run = |root: &Path| time(root, verb, round * calls, calls);
                measured.push(if round % 2 == 0 {
                    let null_ns = run(&null.root)?;
                    Round { place, verb, null_ns, varve_ns: run(&mounted.root)? }
                } else {
                    let varve_ns = run(&mounted.root)?;
                    Round { place, verb, null_ns: run(&null.root)?, varve_ns }
                });
            }
        }
        mounted.end()?;
        null.end()?;
        fs.close()?;
    }
    directory.close()?;
    Ok(report(options, provenance, &measured, calls))
}

fn report(options: &Options, provenance: Provenance, measured: &[Round], calls: usize) -> Report {
    let mut tables = Vec::new();
    let mut claims = Vec::new();
    let mut plots = Vec::new();
    for place in Place::ALL {
        let mut rows = Vec::new();
        for verb in Verb::ALL {
            let of = || measured.iter().filter(move |round| round.place == place && round.verb == verb);
            if of().next().is_none() {
                continue;
            }
            let us =
                |values: Vec<f64>| median(&values).map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e3));
            let ratios: Vec<f64> = of().filter_map(|round| ratio(round.varve_ns, round.null_ns)).collect();
            let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
            let quartiles =
                format!("{} to {}", shown(quantile(&ratios, 0.25)), shown(quantile(&ratios, 0.75)));
            rows.push(vec![
                verb.name().to_owned(),
                us(of().map(|round| round.null_ns).collect()),
                us(of().map(|round| round.varve_ns).collect()),
                us(of().map(|round| round.varve_ns - round.null_ns).collect()),
                shown(median(&ratios)),
                quartiles,
            ]);
            let sentence =
                format!("{}, on {}: at most {} of the floor", verb.name(), place.name(), verb.bound());
            claims.push(Claim::at_most(sentence, median(&ratios), verb.bound()));
            let line = |value: fn(&Round) -> f64| {
                of().enumerate().map(move |(n, round)| (n as f64 + 1.0, value(round) / 1e3)).collect()
            };
            plots.push(Plot {
                title: format!("{}, on {}", verb.name(), place.name()),
                x_label: "round".to_owned(),
                y_label: "us per call".to_owned(),
                x_axis: Axis::Linear,
                y_axis: Axis::Linear,
                series: vec![
                    ("floor".to_owned(), line(|round| round.null_ns)),
                    ("VarveFS".to_owned(), line(|round| round.varve_ns)),
                ],
            });
        }
        if !rows.is_empty() {
            let columns = ["", "floor, us", "VarveFS, us", "more, us", "ratio (median)", "quartiles"]
                .map(str::to_owned);
            let title = format!("Time per call, caller and server on {}", place.name());
            tables.push(Table { title, columns: columns.to_vec(), rows });
        }
    }
    Report {
        experiment: "floor",
        summary: format!(
            "One thread calls; two mounts by the same transport and threads: a filesystem that does nothing, and VarveFS \
             in memory. Medians of rounds of {calls} calls, in turn."
        ),
        scale: options.scale.name(),
        provenance,
        disk: "memory".to_owned(),
        ceiling: None,
        targets: vec![
            ("floor".to_owned(), "a filesystem in memory that answers every call at once".to_owned()),
            ("VarveFS".to_owned(), "in memory, mounted by this process".to_owned()),
        ],
        skipped: Vec::new(),
        tables,
        plots,
        claims,
        data: serde_json::json!({ "rounds": measured }),
    }
}
