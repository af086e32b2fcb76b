//! What the map of a file costs an extent: of a file and of its clones, with a million extents, warm and cold.
//!
//! The extents are space set aside, a block in every second one, so that nothing but their records is written. Each line is
//! one pass over the whole file with exact flags; the file is as it is named. With `written` behind the number all is measured once
//! more with blocks that are written, which takes four times their bytes on the disk.
//!
//! `extents aged 1000 256`: of a file of 256 MiB, of which 1000 times 10 blocks in 4 MiB are written at random and a snapshot
//! is taken (as `varve lab aging` does with 4 GiB), of some of the snapshots; and what the writing cost. The first pass over a
//! snapshot wants keyframes, the others use them. A third number says how many passes more are made then, without waiting.

use std::time::Instant;

use varvefs::{Allocate, ExtentKind, File, Filesystem, PoolOptions, SnapshotOptions};

fn pass(what: &str, file: &File, wanted: u64) -> f64 {
    let begun = Instant::now();
    let (mut extents, mut shared) = (0u64, 0u64);
    for extent in file.extents(0) {
        let extent = extent.expect("an extent");
        extents += u64::from(extent.kind != ExtentKind::Hole);
        shared += u64::from(extent.shared);
    }
    let ns = begun.elapsed().as_nanos() as f64 / extents as f64;
    assert!(extents >= wanted, "{extents} extents");
    println!("{what}: {ns:.1} ns an extent, {shared} of {extents} shared");
    ns
}

/// What the extents of a file are.
#[derive(Clone, Copy)]
enum Made {
    Reserved,
    Written,
}

fn rows(fs: &Filesystem, made: Made, when: &str, extents: u64) {
    let made = match made {
        Made::Reserved => "reserved",
        Made::Written => "written",
    };
    for name in ["alone", "same", "clone", "other"] {
        pass(&format!("{made}: {name}, {when}"), &fs.open(format!("/{name}")).expect("open"), extents);
    }
}

fn aged(loops: u64, segments: u64, more: u64) {
    let dir = std::env::temp_dir().join(format!("varve-extents-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let writes = segments * 5 / 2;
    let options = PoolOptions::new();
    let pool = options.create(dir.join("pool"), (loops * writes * 5000) + (2 << 30)).expect("a pool");
    let fs = pool.filesystem();
    fs.create_subvolume("/origin").expect("a subvolume");
    let file = fs.create("/origin/file").expect("create");
    file.allocate(0, segments << 20, Allocate::Reserve { keep_size: false }).expect("reserve");
    let (mut random, buf) = (0x7661_7276_6500_u64, [7; 4096]);
    let (tenth, mut begun) = ((loops / 10).max(1), Instant::now());
    let reads = || pool.stats().expect("stats").devices[0].reads_count;
    let (mut before, mut reads_before) = (pool.stats().expect("stats").checkpoint, reads());
    for number in 0..loops {
        for _ in 0..writes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            file.write_all_at(&buf, random % (segments << 8) * 4096).expect("write");
        }
        file.sync_all().expect("sync");
        fs.snapshot("/origin", format!("/{number}"), SnapshotOptions::new()).expect("snapshot");
        if (number + 1) % tenth == 0 {
            let now = pool.stats().expect("stats").checkpoint;
            println!(
                "to {}: {:.0} writes/s, {} reads, trees {} bytes a write in {} checkpoints",
                number + 1,
                (tenth * writes) as f64 / begun.elapsed().as_secs_f64(),
                reads() - reads_before,
                (now.written_bytes - before.written_bytes) / (tenth * writes),
                now.completed_count - before.completed_count
            );
            (before, reads_before, begun) = (now, reads(), Instant::now());
        }
    }
    for number in [loops / 8, loops / 2, loops - 1] {
        for when in ["first", "warm", "warm"] {
            let file = fs.open(format!("/{number}/file")).expect("open");
            let before = reads();
            pass(&format!("snapshot {number}, {when}"), &file, 1);
            let now = pool.stats().expect("stats").nodes;
            println!(
                "  {} reads; {} nodes dirty, {} cached",
                reads() - before,
                now.dirty_count,
                now.cached_count
            );
            // What the first pass has passed too much of is put together meanwhile.
            let (begun, mut made) = (Instant::now(), 0);
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
                let now = pool.stats().expect("stats").keyframes;
                if std::mem::replace(&mut made, now.made_count) == now.made_count {
                    let (bytes, s) = (now.made_bytes, begun.elapsed().as_secs_f64());
                    println!("  {made} keyframes of {bytes} bytes so far, {s:.0} s");
                    break;
                }
            }
        }
        let file = fs.open(format!("/{number}/file")).expect("open");
        for _ in 0..more {
            pass(&format!("snapshot {number}, once more"), &file, 1);
        }
    }
    drop(file);
    pool.close().expect("close");
    std::fs::remove_dir_all(&dir).expect("the directory goes");
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(2).filter_map(|a| a.parse().ok()).collect();
    if std::env::args().nth(1).is_some_and(|a| a == "aged") {
        let number = |at: usize, none| numbers.get(at).copied().unwrap_or(none);
        return aged(number(0, 1000), number(1, 256), number(2, 0));
    }
    let extents: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    measure(extents, Made::Reserved);
    if std::env::args().any(|a| a == "written") {
        measure(extents, Made::Written);
    }
}

fn measure(extents: u64, made: Made) {
    let dir = std::env::temp_dir().join(format!("varve-extents-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = dir.join("pool");
    // All of it stays in memory once it has been read.
    let options = PoolOptions::new().cache_bytes(4 << 30);
    let pool = options.create(&path, 32 << 30).expect("a pool");
    let fs = pool.filesystem();
    // Nobody shares it; one version that two hold; a clone that was written to, and one of which both were.
    for name in ["alone", "same", "old", "both"] {
        let file = fs.create(format!("/{name}")).expect("create");
        for n in 0..extents {
            // The block that is left out keeps it an extent of its own.
            let made = match made {
                Made::Reserved => file.allocate(n * 8192, 4096, Allocate::Reserve { keep_size: false }),
                Made::Written => file.write_all_at(&[7; 4096], n * 8192),
            };
            made.expect("room");
        }
        file.sync_all().expect("sync");
    }
    let write = |name: &str, at: u64| {
        let file = varvefs::OpenOptions::new().read(true).write(true).open(&fs, name).expect("open");
        file.write_all_at(&[7; 4096], at).expect("write");
        file.sync_all().expect("sync");
    };
    for (source, clone) in [("/same", "/same2"), ("/old", "/clone"), ("/both", "/other")] {
        fs.clone_file(source, clone).expect("clone");
    }
    write("/clone", 4096);
    write("/both", 4096);
    write("/other", 1 << 20);
    rows(&fs, made, "first", extents);
    rows(&fs, made, "warm", extents);
    pool.close().expect("close");
    let pool = options.open(&path).expect("a pool");
    rows(&pool.filesystem(), made, "cold", extents);
    rows(&pool.filesystem(), made, "warm again", extents);
    drop(pool);
    std::fs::remove_dir_all(&dir).expect("the directory goes");
}
