//! Threads change files of a subvolume while others take, read and delete snapshots and clones of it, with the background
//! work of a mount; then everything is checked, and again after all forks are gone.
//!
//! Each file holds one number, repeated, that its writer makes larger: a snapshot in which a file goes back, or holds two
//! numbers where the writer synced between them, is wrong.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use varvefs::{Filesystem, OpenOptions, SnapshotOptions};

const FILES: u64 = 64;
/// Longest that nothing may move.
const PATIENCE: Duration = Duration::from_secs(120);

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn write(fs: &Filesystem, path: &str, number: u64, blocks: u64, random: &mut Random) {
    let bytes = number.to_le_bytes().repeat((blocks * 512) as usize);
    let file = OpenOptions::new().write(true).create(true).open(fs, path).expect("open to write");
    match random.below(4) {
        0 => {
            file.set_len(0).expect("cut");
            file.write_all_at(&bytes, 0).expect("write");
        }
        1 => {
            fs.write(format!("{path}.new"), &bytes).expect("write a new one");
            fs.rename(format!("{path}.new"), path).expect("rename over");
        }
        _ => file.write_all_at(&bytes, 0).expect("write"),
    }
    if random.below(3) == 0 {
        file.sync_all().expect("sync");
    }
}

/// Goal: threads and background work together leave every snapshot as it was taken, nothing stops, and nothing is left
/// when all forks are gone. Method: see the module; VARVE_STORM_SECONDS for longer, VARVE_SEED for another storm.
#[test]
fn storm() {
    let from = |name, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (seconds, threads, seed) = (from("VARVE_STORM_SECONDS", 4), 3, from("VARVE_SEED", 1));
    println!("VARVE_SEED={seed}");
    let pool = varvefs::Pool::in_memory(1 << 30).expect("a pool");
    let fs = pool.filesystem();
    fs.create_subvolume("/o").expect("a subvolume");
    let stop = AtomicBool::new(false);
    let (writes, forks) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fs, stop, writes) = (&fs, &stop, &writes);
            scope.spawn(move || {
                let mut random = Random(seed * 1000 + thread);
                let mut number = 1;
                while !stop.load(SeqCst) {
                    // A file has one writer.
                    let file = random.below(FILES / threads) * threads + thread;
                    let path = format!("/o/{file}");
                    if random.below(20) == 0 && fs.exists(&path).expect("exists") {
                        fs.remove_file(&path).expect("remove");
                    } else {
                        let blocks = 1 + random.below(40);
                        write(fs, &path, number, blocks, &mut random);
                    }
                    number += 1;
                    writes.fetch_add(1, SeqCst);
                }
            });
        }
        for forker in 0..2 {
            let (fs, stop, forks) = (&fs, &stop, &forks);
            scope.spawn(move || {
                let mut random = Random(seed * 7000 + forker);
                let mut live: Vec<String> = Vec::new();
                let mut n = 0;
                while !stop.load(SeqCst) {
                    n += 1;
                    let name = format!("/s-{forker}-{n}");
                    let source = if live.is_empty() || random.below(3) > 0 {
                        "/o".to_owned()
                    } else {
                        live[random.below(live.len() as u64) as usize].clone()
                    };
                    let read_only = random.below(3) == 0;
                    fs.snapshot(&source, &name, SnapshotOptions::new().read_only(read_only))
                        .expect("snapshot");
                    let first = digest(fs, &name);
                    if !read_only && random.below(2) == 0 {
                        let file = random.below(FILES);
                        write(fs, &format!("{name}/{file}"), u64::MAX - n, 1 + random.below(9), &mut random);
                    } else {
                        assert_eq!(first, digest(fs, &name), "{name} does not stay as it is");
                    }
                    live.push(name);
                    let (file, copy) = (random.below(FILES), format!("/clone-{forker}-{}", n % 5));
                    if fs.exists(&copy).expect("exists") {
                        fs.remove_file(&copy).expect("remove");
                    }
                    let original = format!("{source}/{file}");
                    match fs.clone_file(&original, &copy) {
                        Ok(()) => {
                            let first = fs.read(&copy).expect("read");
                            if random.below(2) == 0 {
                                write(fs, &copy, n, 1 + random.below(9), &mut random);
                            } else {
                                assert_eq!(
                                    first,
                                    fs.read(&copy).expect("read"),
                                    "{copy} does not stay as it is"
                                );
                            }
                        }
                        // Its writer had removed it just then.
                        Err(error) => assert_eq!(*error.reason(), varvefs::Reason::NotFound, "{error}"),
                    }
                    if live.len() > 12 {
                        let gone = live.swap_remove(random.below(live.len() as u64) as usize);
                        fs.delete_subvolume(&gone).expect("delete");
                    }
                    forks.fetch_add(1, SeqCst);
                }
            });
        }
        let mut last = (0, 0);
        // To the end of the storm, and in any case until everybody has come somewhere.
        while begun.elapsed() < Duration::from_secs(seconds) || last == (0, 0) {
            let moving = Instant::now();
            loop {
                std::thread::sleep(Duration::from_secs(seconds.min(5)));
                let now = (writes.load(SeqCst), forks.load(SeqCst));
                if now.0 > last.0 && now.1 > last.1 {
                    last = now;
                    break;
                }
                if moving.elapsed() > PATIENCE {
                    // Else all others would go on for ever.
                    stop.store(true, SeqCst);
                    panic!("nothing moves: {last:?} {now:?}");
                }
            }
        }
        stop.store(true, SeqCst);
    });
    println!(
        "{} writes, {} forks in {:.1} s",
        writes.load(SeqCst),
        forks.load(SeqCst),
        begun.elapsed().as_secs_f64()
    );
    report(&pool, "with forks");
    for subvolume in fs.subvolumes().expect("list").into_iter().rev().filter(|s| s.parent.is_some()) {
        fs.delete_subvolume(&subvolume.path).expect("delete");
    }
    for copy in fs.read_dir("/").expect("list") {
        let name = copy.expect("an entry").file_name().to_string_lossy().into_owned();
        fs.remove_file(format!("/{name}")).expect("remove");
    }
    report(&pool, "without");
    let used = pool.stats().expect("stats").space.used_bytes;
    assert!(used < 1 << 20, "{used} bytes are in use and nothing is left");
}

/// Names, sizes and bytes of everything in a subvolume; checks that each file holds whole numbers.
fn digest(fs: &Filesystem, root: &str) -> Vec<(String, usize, u64)> {
    let mut all = Vec::new();
    for entry in fs.read_dir(root).expect("list") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let bytes = fs.read(format!("{root}/{name}")).expect("read");
        let sum = bytes
            .chunks(8)
            .fold(0u64, |sum, word| sum.rotate_left(5) ^ word.iter().fold(0, |w, b| w << 8 | u64::from(*b)));
        all.push((name, bytes.len(), sum));
    }
    all.sort();
    all
}

fn report(pool: &varvefs::Pool, when: &str) {
    // The scan compares books that background work changes.
    while pool.stats().expect("stats").reap.backlog_count > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    pool.filesystem().sync().expect("sync");
    pool.checkpoint().expect("checkpoint");
    let report = pool.check(true).expect("check");
    assert!(report.is_clean(), "check {when}: {report:?}");
    println!("check {when}: clean");
}
