//! What versions cost when there are very many of them: a star of clones of a file that is gone, and a chain of
//! snapshots between which one block is written again and again. In process, in memory: processor time, no device.
//!
//! `scale_versions star|chain|snapshots|table N [seed]`. The figures are in docs/performance.md.

use std::time::Instant;

use varvefs::{File, Filesystem, MemoryDisk, OpenOptions, Pool, PoolOptions, SnapshotOptions};

const BLOCK: usize = 4096;
const CACHE_BYTES: u64 = 256 << 20;
/// Of a star; its plain files have no more.
const CLONE_BLOCKS_WRITTEN: u64 = 3;

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_else(|| "star".into());
    let many: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(10_000);
    match kind.as_str() {
        "star" => star(many),
        "chain" => chain(many),
        "snapshots" => snapshots(many),
        "table" => table(many),
        other => panic!("no such measurement: {other}"),
    }
}

/// In which hardly any node of a tree stays: what memory is still taken is not theirs.
const SMALL_CACHE_BYTES: u64 = 2 << 20;

fn options() -> PoolOptions {
    PoolOptions::new().cache_bytes(CACHE_BYTES)
}

fn file(fs: &Filesystem, path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(fs, path).expect("open")
}

/// Microseconds for each of `many`; printed are the middle, the mean, the 99th of 100 and the longest of the last tenth.
struct Times(Vec<f64>);

impl Times {
    fn take<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = what();
        self.0.push(begun.elapsed().as_nanos() as f64 / 1e3);
        done
    }
    fn print(&self, what: &str) {
        print!("{what}:");
        let mut upto = 1000;
        while upto <= self.0.len() {
            let mut part = self.0[upto * 9 / 10..upto].to_vec();
            part.sort_by(f64::total_cmp);
            let at = |share: f64| part[((part.len() - 1) as f64 * share) as usize];
            let mean = part.iter().sum::<f64>() / part.len() as f64;
            print!(
                "  at {upto}: {:.1} us (mean {mean:.1}, p99 {:.1}, longest {:.1})",
                at(0.5),
                at(0.99),
                at(1.0)
            );
            upto *= 10;
        }
        println!();
    }
}

/// Resident bytes, without those of the disk in memory.
fn resident(disk: &MemoryDisk) -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: i64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("pages");
    pages * 4096 - disk.allocated_bytes() as i64
}

fn idle(pool: &Pool) -> f64 {
    let begun = Instant::now();
    pool.filesystem().sync().expect("sync");
    let mut quiet = 0;
    while quiet < 20 {
        quiet = if pool.stats().expect("stats").reap.backlog_count == 0 { quiet + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    begun.elapsed().as_secs_f64() - 0.1
}

fn check(pool: &Pool) {
    let report = pool.check(false).expect("check");
    println!("check: {}", if report.is_clean() { "clean".into() } else { format!("{report:?}") });
}

fn used(fs: &Filesystem) -> i64 {
    let space = fs.statfs().expect("statfs");
    (space.total_bytes - space.free_bytes) as i64
}

/// Clones of a file that is then removed; all of them overwrite the same blocks, and as many plain files theirs.
fn star(many: usize) {
    let disk = MemoryDisk::new(8 << 30);
    let pool = options().create_on(&disk).expect("a pool");
    let fs = pool.filesystem();
    fs.write("/origin", vec![7; 64 * BLOCK]).expect("a file");
    fs.create_dir("/c").expect("dir");
    fs.create_dir("/p").expect("dir");
    fs.sync().expect("sync");
    let mut times = Times(Vec::new());
    for n in 0..many {
        times.take(|| fs.clone_file("/origin", format!("/c/{n}")).expect("clone"));
    }
    times.print("clone");
    fs.remove_file("/origin").expect("remove");
    println!("idle after {:.3} s", idle(&pool));
    for n in 0..many {
        fs.write(format!("/p/{n}"), vec![7; CLONE_BLOCKS_WRITTEN as usize * BLOCK]).expect("a file");
    }
    fs.sync().expect("sync");
    for block in 0..CLONE_BLOCKS_WRITTEN {
        // In turn, one of each, as many of each, and either the first of the two by chance: neither has fewer files to find, nor the
        // better moment. (In a fixed order it is the same of the two whose write fills a batch of 256 each time, and commits it.)
        let [mut plain, mut clones] = [const { Times(Vec::new()) }; 2];
        for n in 0..many {
            let mut both = [(&mut plain, "p"), (&mut clones, "c")];
            if (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1 {
                both.reverse();
            }
            for (times, directory) in both {
                times.take(|| {
                    let file = file(&fs, &format!("/{directory}/{n}"));
                    file.write_all_at(&[block as u8; BLOCK], block * BLOCK as u64).expect("write");
                    drop(file.start_sync().expect("sync"));
                });
            }
        }
        plain.print(&format!("write and log block {block} of every plain file"));
        clones.print(&format!("write and log block {block} of every clone"));
        println!("idle after {:.3} s", idle(&pool));
    }
    // Three blocks of every clone and plain file, what is left of the origin; then without the clones.
    let before = used(&fs);
    println!("a clone and a plain file: {} KiB", before / 1024 / many as i64);
    check(&pool);
    let begun = Instant::now();
    for n in 0..many {
        fs.remove_file(format!("/c/{n}")).expect("remove");
    }
    println!("remove: {:.2} us a clone", begun.elapsed().as_micros() as f64 / many as f64);
    println!("idle after {:.3} s, {} KiB in use", idle(&pool), used(&fs) / 1024);
    check(&pool);
}

/// A pool in memory with a subvolume of one file, and a directory for its snapshots.
fn with_origin(options: &PoolOptions) -> (MemoryDisk, Pool) {
    let disk = MemoryDisk::new(8 << 30);
    let pool = options.create_on(&disk).expect("a pool");
    let fs = pool.filesystem();
    fs.create_subvolume("/origin").expect("a subvolume");
    fs.write("/origin/hot", vec![7; 64 * BLOCK]).expect("a file");
    fs.create_dir("/s").expect("dir");
    fs.sync().expect("sync");
    (disk, pool)
}

/// A block is written, a snapshot taken, and so on. Then any of the snapshots is read.
fn chain(many: usize) {
    let (disk, pool) = with_origin(&options());
    let fs = pool.filesystem();
    let file = file(&fs, "/origin/hot");
    let (mut writes, mut forks) = (Times(Vec::new()), Times(Vec::new()));
    let begun = Instant::now();
    for n in 0..many {
        writes.take(|| {
            file.write_all_at(&n.to_le_bytes(), 0).expect("write");
            drop(file.start_sync().expect("sync"));
        });
        forks.take(|| {
            fs.snapshot("/origin", format!("/s/{n}"), SnapshotOptions::new()).expect("snapshot");
        });
        if n % 1000 == 0 && begun.elapsed().as_secs() > 200 {
            println!("stopped at {n}");
            break;
        }
    }
    let many = forks.0.len();
    writes.print("write and log a block");
    forks.print("snapshot");
    println!("idle after {:.3} s", idle(&pool));
    println!("memory: {} MiB beside the disk", resident(&disk) >> 20);
    drop(file);
    reads(&fs, many);
    check(&pool);
    pool.close().expect("close");
    reopen(&disk, many, reads);
}

fn reads(fs: &Filesystem, many: usize) {
    let mut times = Times(Vec::new());
    for n in 0..2000.min(many) {
        // Each of them once, in a scattered order.
        let at = (n * 7919) % many;
        times.take(|| {
            let file = OpenOptions::new().read(true).open(fs, format!("/s/{at}/hot")).expect("open");
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).expect("read");
            assert_eq!(usize::from_le_bytes(bytes), at, "what snapshot {at} shows");
        });
    }
    times.print("open and read the block in a snapshot");
}

fn reopen(disk: &MemoryDisk, many: usize, then: impl Fn(&Filesystem, usize)) {
    let before = resident(disk);
    let begun = Instant::now();
    let pool = options().open_on(disk).expect("open");
    println!("opened in {:.3} s", begun.elapsed().as_secs_f64());
    let bytes = resident(disk) - before;
    println!("memory: {} bytes a snapshot more than before opening", bytes / many as i64);
    then(&pool.filesystem(), many);
}

/// Snapshots of a subvolume that does not change.
fn snapshots(many: usize) {
    let (disk, pool) = with_origin(&options());
    let fs = pool.filesystem();
    let before = resident(&disk);
    let mut forks = Times(Vec::new());
    for n in 0..many {
        forks.take(|| {
            fs.snapshot("/origin", format!("/s/{n}"), SnapshotOptions::new()).expect("snapshot");
        });
    }
    forks.print("snapshot");
    println!("memory: {} bytes a snapshot", (resident(&disk) - before) / many as i64);
    pool.close().expect("close");
    reopen(&disk, many, |_, _| ());
}

/// What is in memory of snapshots beside nodes of trees.
fn table(many: usize) {
    let (disk, pool) = with_origin(&options().cache_bytes(SMALL_CACHE_BYTES));
    let (fs, before) = (pool.filesystem(), resident(&disk));
    for n in 0..many {
        fs.snapshot("/origin", format!("/s/{n}"), SnapshotOptions::new()).expect("snapshot");
    }
    println!("memory without the trees: {} bytes a snapshot", (resident(&disk) - before) / many as i64);
    pool.close().expect("close");
}
