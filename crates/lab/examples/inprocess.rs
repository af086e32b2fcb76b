//! What the verbs of the filesystem cost in process: one thread, everything cached, no mount and no sync.
//!
//! ```text
//! cargo run --release -p varve-lab --example inprocess                   times: medians of interleaved repeats
//! cargo run --release -p varve-lab --example inprocess -- --instructions instructions per operation (needs valgrind)
//! ```
//!
//! The pool lies in memory, so that what is measured is this program and not a device; `--dir DIR` puts it into a file
//! there instead. Beside the time on the wall stands the CPU time of the calling thread, which other work
//! on the machine disturbs less. Instructions are counted by callgrind around the measured loop alone, with the pool's
//! background work done inside the calls, so that the count is that of everything an operation causes and hardly
//! changes from run to run. docs/performance.md has the figures.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use varve_device::{AlignedBuf, Device, FileDevice, MemoryDevice, OpenMode};
use varve_fs::{
    Caller, Clock, Filesystem, FormatOptions, InodeId, OpenOptions, Profile, ROOT_INODE, StoreOptions,
    Timestamp,
};

const POOL_BYTES: u64 = 2 << 30;
const PAGE_BYTES: usize = 4096;
/// A million names, each looked for once, in one directory and in a thousand; the cache holds the nodes of all.
const MANY: [&str; 2] = ["lookup-million", "lookup-thousand"];
const MANY_CACHE_BYTES: u64 = 1 << 30;
/// Names in a directory.
const NAMES: usize = 100_000;
/// The file that is overwritten: four times the dirty data a mount keeps in memory.
const FILE_BYTES: u64 = 256 << 20;

/// What can be measured, with the number of operations and the rate the project aims at, if it does.
const CASES: [(&str, usize, Option<f64>); 9] = [
    ("create", NAMES, Some(300_000.0)),
    ("lookup-hot", 500_000, Some(2_000_000.0)),
    ("lookup-wide", 500_000, None),
    ("lookup-million", 1_000_000, None),
    ("lookup-thousand", 1_000_000, None),
    ("lookup-missing", 500_000, None),
    ("overwrite", 200_000, Some(200_000.0)),
    ("read", 200_000, None),
    ("unlink", NAMES, None),
];

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }
}

struct Arguments {
    cases: Vec<String>,
    repeats: usize,
    instructions: bool,
    /// Where a file for the pool is made, instead of memory.
    dir: Option<PathBuf>,
    /// Operations per case as a share of the usual number, in percent.
    percent: usize,
    /// Runs one case once, for callgrind.
    counted: bool,
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments {
        cases: Vec::new(),
        repeats: 5,
        instructions: false,
        dir: None,
        percent: 100,
        counted: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--repeats" => found.repeats = value()?.parse().context("--repeats wants a number")?,
            "--percent" => found.percent = value()?.parse().context("--percent wants a number")?,
            "--dir" => found.dir = Some(value()?.into()),
            "--instructions" => found.instructions = true,
            "--counted" => found.counted = true,
            case if CASES.iter().any(|(name, ..)| *name == case) => found.cases.push(word),
            _ => bail!(
                "unknown argument {word}; there are: {} --repeats N --percent N --dir DIR --instructions",
                CASES.map(|(name, ..)| name).join(" ")
            ),
        }
    }
    if found.cases.is_empty() {
        found.cases = CASES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    }
    Ok(found)
}

/// A fixed sequence that looks random (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

fn open(dir: Option<&Path>, case: &str, background: bool) -> Result<Filesystem> {
    let device: Arc<dyn Device> = match dir {
        Some(dir) => {
            // Its name goes at once, so that nothing is left whatever happens.
            let dir = tempfile::tempdir_in(dir)?;
            Arc::new(FileDevice::open(dir.path().join("pool"), OpenMode::Create { size_bytes: POOL_BYTES })?)
        }
        None => {
            let memory = MemoryDevice::new(POOL_BYTES);
            // The first touch of a page of memory is the kernel's cost, not ours.
            let zeros = AlignedBuf::new(1 << 20);
            for at in (0..POOL_BYTES).step_by(1 << 20) {
                memory.write_at(at, &zeros)?;
            }
            Arc::new(memory)
        }
    };
    let format = FormatOptions {
        data: Profile::Single,
        metadata: Profile::Dup,
        pool_id: [7; 16],
        hash_seed: 7,
        force: true,
    };
    Filesystem::format(std::slice::from_ref(&device), &format, Caller::ROOT, &SystemClock)?;
    let usual = StoreOptions::default().cache_bytes;
    let cache_bytes = if MANY.contains(&case) { MANY_CACHE_BYTES } else { usual };
    let options = OpenOptions {
        store: StoreOptions { background, cache_bytes, ..StoreOptions::default() },
        dirty_bytes_max: 64 << 20,
        clock: Arc::new(SystemClock),
        on_data_logged: None,
    };
    Ok(Filesystem::open(vec![device], options)?.0)
}

fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("a-file-{n:08}").into_bytes()).collect()
}

/// The loop that is measured; callgrind collects inside of it only.
#[inline(never)]
fn measured_loop(count: usize, operation: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
    for n in 0..count {
        operation(n)?;
    }
    Ok(())
}

/// Wall and CPU time of an operation, in nanoseconds.
#[derive(Clone, Copy)]
struct Cost {
    wall_ns: f64,
    cpu_ns: f64,
}

/// Not to be called under valgrind, which has no vDSO for rustix.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn measure(timed: bool, count: usize, operation: &mut dyn FnMut(usize) -> Result<()>) -> Result<Cost> {
    if !timed {
        measured_loop(count, operation)?;
        return Ok(Cost { wall_ns: f64::NAN, cpu_ns: f64::NAN });
    }
    let (begun, cpu) = (Instant::now(), cpu_ns());
    measured_loop(count, operation)?;
    let (wall_ns, cpu_ns) = (begun.elapsed().as_nanos() as f64, cpu_ns() - cpu);
    Ok(Cost { wall_ns: wall_ns / count as f64, cpu_ns: cpu_ns / count as f64 })
}

/// Runs one case on a pool of its own.
fn run(case: &str, count: usize, fs: &Filesystem, timed: bool) -> Result<Cost> {
    let names = names(NAMES.max(count));
    let directory = fs.mkdir(Caller::ROOT, ROOT_INODE, b"directory", 0o755)?.ino;
    let create = |n: usize| -> Result<()> {
        fs.create(Caller::ROOT, directory, &names[n], 0o644)?;
        Ok(())
    };
    let fill = |count: usize| -> Result<()> {
        (0..count).try_for_each(create)?;
        Ok(fs.sync()?)
    };
    let mut numbers = Numbers(1);
    match case {
        "create" => measure(timed, count, &mut |n| create(n)),
        "unlink" => {
            fill(count)?;
            measure(timed, count, &mut |n| Ok(fs.unlink(directory, &names[n])?))
        }
        "lookup-hot" | "lookup-wide" => {
            fill(NAMES)?;
            let among = if case == "lookup-hot" { 4_000 } else { NAMES };
            let order: Vec<usize> = (0..count).map(|_| numbers.below(among as u64) as usize).collect();
            for name in names.iter().take(among) {
                fs.lookup(directory, name)?;
            }
            measure(timed, count, &mut |n| Ok(fs.lookup(directory, &names[order[n]]).map(drop)?))
        }
        "lookup-million" | "lookup-thousand" => {
            // Each name once, in an order without pattern: in one directory, or in as many as there are thousands.
            let each = if case == "lookup-million" { count } else { 1_000.min(count) };
            let mut directories = Vec::new();
            for n in 0..count.div_ceil(each) {
                let name = format!("directory-{n}");
                directories.push(fs.mkdir(Caller::ROOT, directory, name.as_bytes(), 0o755)?.ino);
            }
            for n in 0..count {
                fs.create(Caller::ROOT, directories[n / each], &names[n % each], 0o644)?;
            }
            fs.sync()?;
            // Copied in that order, so that finding the words to ask with costs nothing.
            let mut order = names[..each].to_vec();
            for n in (1..each).rev() {
                order.swap(n, numbers.below(n as u64 + 1) as usize);
            }
            let order: Vec<Vec<u8>> = order.iter().map(|name| name.to_vec()).collect();
            measure(timed, count, &mut |n| {
                Ok(fs.lookup(directories[n / each], &order[n % each]).map(drop)?)
            })
        }
        "lookup-missing" => {
            fill(NAMES)?;
            let absent: Vec<Vec<u8>> = (0..4_000).map(|n| format!("no-file-{n:08}").into_bytes()).collect();
            measure(timed, count, &mut |n| match fs.lookup(directory, &absent[n % absent.len()]) {
                Err(varve_fs::FsError::NotFound) => Ok(()),
                other => bail!("a name that is not there gives {other:?}"),
            })
        }
        "overwrite" | "read" => {
            let file = fs.create(Caller::ROOT, directory, b"data", 0o644)?.ino;
            fs.open_inode(Caller::ROOT, file, false)?;
            let bytes = vec![0x5a; 1 << 20];
            for at in (0..FILE_BYTES).step_by(bytes.len()) {
                write(fs, file, at, &bytes)?;
            }
            fs.sync()?;
            let order: Vec<u64> = (0..count)
                .map(|_| numbers.below(FILE_BYTES / PAGE_BYTES as u64) * PAGE_BYTES as u64)
                .collect();
            if case == "read" {
                return measure(timed, count, &mut |n| {
                    let read = fs.read(file, order[n], PAGE_BYTES)?;
                    if read.len() != PAGE_BYTES { bail!("a short read") } else { Ok(()) }
                });
            }
            let page = vec![0xa5; PAGE_BYTES];
            measure(timed, count, &mut |n| write(fs, file, order[n], &page))
        }
        other => bail!("no such case: {other}"),
    }
}

fn write(fs: &Filesystem, file: InodeId, at: u64, bytes: &[u8]) -> Result<()> {
    let written = fs.write(Caller::ROOT, file, at, bytes)?;
    if written == bytes.len() { Ok(()) } else { bail!("only {written} bytes were written") }
}

/// Runs a case under callgrind and gives the instructions of the measured loop.
fn instructions(case: &str, percent: usize) -> Result<u64> {
    let directory = tempfile::tempdir()?;
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_loop*"])
        .arg(format!("--callgrind-out-file={}", directory.path().join("out").display()))
        .arg(std::env::current_exe()?)
        .args([case, "--counted", "--percent", &percent.to_string()])
        .output()
        .context("cannot run valgrind; install it, for example: apt-get install valgrind")?;
    let text = String::from_utf8_lossy(&out.stderr);
    if let Some(keep) = std::env::var_os("CALLGRIND_OUT") {
        std::fs::copy(directory.path().join("out"), Path::new(&keep).join(format!("callgrind.{case}")))?;
    }
    if !out.status.success() {
        bail!("{case} under valgrind failed ({}):\n{text}", out.status);
    }
    text.lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
        .with_context(|| format!("callgrind counted nothing:\n{text}"))
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let cases: Vec<_> =
        CASES.iter().filter(|(name, ..)| arguments.cases.iter().any(|case| case == name)).collect();
    let count = |count: usize, percent: usize| (count * percent / 100).max(1);
    if arguments.counted {
        for (case, operations, _) in cases {
            let fs = open(arguments.dir.as_deref(), case, false)?;
            run(case, count(*operations, arguments.percent), &fs, false)?;
        }
        return Ok(());
    }
    if arguments.instructions {
        println!("{:<15} {:>10} {:>16}", "", "operations", "instructions/op");
        for (case, operations, _) in cases {
            let operations = count(*operations, arguments.percent);
            let collected = instructions(case, arguments.percent)?;
            println!("{case:<15} {operations:>10} {:>16.0}", collected as f64 / operations as f64);
        }
        return Ok(());
    }
    let mut costs = vec![Vec::new(); cases.len()];
    for _ in 0..arguments.repeats {
        for ((case, operations, _), costs) in cases.iter().zip(&mut costs) {
            let fs = open(arguments.dir.as_deref(), case, true)?;
            costs.push(run(case, count(*operations, arguments.percent), &fs, true)?);
            fs.close()?;
        }
    }
    println!(
        "{:<15} {:>10} {:>9} {:>9} {:>12} {:>12}",
        "", "operations", "wall ns", "CPU ns", "op/s", "aim op/s"
    );
    for ((case, operations, aim), costs) in cases.iter().zip(&costs) {
        let median = |value: fn(&Cost) -> f64| {
            varve_lab::numbers::median(&costs.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        let (wall, cpu) = (median(|cost| cost.wall_ns), median(|cost| cost.cpu_ns));
        let aim = aim.map(|aim| format!("{aim:.0}")).unwrap_or_default();
        let operations = count(*operations, arguments.percent);
        println!("{case:<15} {operations:>10} {wall:>9.0} {cpu:>9.0} {:>12.0} {aim:>12}", 1e9 / wall);
    }
    Ok(())
}
