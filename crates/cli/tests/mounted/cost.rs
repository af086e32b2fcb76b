//! What things cost, counted by the block layer and the kernel.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::tree;

const FILES: u64 = 2_000;
const FILE_BYTES: usize = 10 << 10;
/// Bytes on the device for each such file, checkpoints counted.
const BYTES_PER_FILE_MAX: u64 = 17 << 10;
/// Flushes that are not an fsync's: those of checkpoints (two each) and of the closing of an idle log.
const EXTRA_FLUSHES_MAX: u64 = 12;
/// Batches that the background may add in a second, each with a flush: one that commits what waits, and one that closes an
/// idle log.
const BATCHES_PER_TICK: u64 = 2;
const BATCH_BYTES: u64 = 4 << 10;
const IDLE_BYTES_MAX: u64 = 64 << 20;
const WORKERS: u64 = 4;
/// Bytes of log that a file of [`create_until_killed`] takes, about.
const LOGGED_BYTES: u64 = 2 << 10;
/// Longest that one part of filling a log may take.
const FILLING_MAX: Duration = Duration::from_secs(120);

/// Goal: a lone fsync of a 10 KiB file is one flush and at most 17 KiB. Method: 2,000 files in one directory, each
/// written and fsynced, on a loop device; the kernel counts, up to and including the unmount. The background comes by every
/// second: on a slow machine it does so more often.
#[test]
fn fsync_is_one_flush_and_17_kib() {
    let test = "fsync_is_one_flush_and_17_kib";
    if !can_mount(test) || !can_loop(test) {
        return;
    }
    let scratch = Scratch::new("fsync");
    let device = Loop::new(&scratch, "device.img", 1 << 30);
    succeed(varve(&["create"]).arg(&device.device));
    let mount = Mount::start(&device.device, &scratch.path("mnt"));
    let dir = mount.path("dir");
    fs::create_dir(&dir).expect("a directory");
    mount.sync();
    thread::sleep(Duration::from_millis(500));

    let mut random = Random::new(seed());
    let before = device.stat();
    let started = Instant::now();
    for number in 0..FILES {
        let mut file = fs::File::create(dir.join(format!("file{number}"))).expect("a file");
        file.write_all(&random.bytes(FILE_BYTES)).expect("room");
        file.sync_all().expect("fsync");
    }
    let loop_only = device.stat().since(before);
    mount.unmount();
    let all = device.stat().since(before);
    let by_the_background = BATCHES_PER_TICK * started.elapsed().as_secs();
    say(&format!(
        "{FILES} fsyncs of 10 KiB: {:.3} flushes and {:.2} KiB each, with the unmount {:.3} and {:.2} KiB, {} writes",
        loop_only.flushes as f64 / FILES as f64,
        loop_only.written_bytes as f64 / 1024.0 / FILES as f64,
        all.flushes as f64 / FILES as f64,
        all.written_bytes as f64 / 1024.0 / FILES as f64,
        all.writes,
    ));
    assert!(all.flushes >= FILES, "{} flushes cannot have made {FILES} files durable", all.flushes);
    let flushes_max = FILES + EXTRA_FLUSHES_MAX + by_the_background;
    assert!(all.flushes <= flushes_max, "{} flushes for {FILES} fsyncs", all.flushes);
    let bytes_max = BYTES_PER_FILE_MAX * FILES + BATCH_BYTES * by_the_background;
    assert!(all.written_bytes <= bytes_max, "{} bytes for {FILES} files", all.written_bytes);
    check(&device.device);
}

/// Goal: an idle mount stays below 64 MiB. Method: a pool with files in it, mounted, its tree walked once, then the
/// resident size of the daemon.
#[test]
fn idle_memory_is_small() {
    if !can_mount("idle_memory_is_small") {
        return;
    }
    let scratch = Scratch::new("idle");
    let pool = scratch.pool("pool.img", "512M");
    let point = scratch.path("mnt");
    let before = scratch.subdir("before");
    tree::generate(&before, 1_000, seed());
    let mount = Mount::start(&pool, &point);
    let fresh = mount.resident_bytes();
    succeed(Command::new("cp").arg("-a").arg(&before).arg(mount.path("copy")));
    mount.unmount();
    let mount = Mount::start(&pool, &point);
    thread::sleep(Duration::from_secs(1));
    let idle = mount.resident_bytes();
    succeed(Command::new("find").arg(&point).args(["-printf", ""]));
    let walked = mount.resident_bytes();
    mount.unmount();
    say(&format!(
        "daemon: fresh {} MiB, idle {} MiB, tree walked {} MiB",
        fresh >> 20,
        idle >> 20,
        walked >> 20
    ));
    assert!(fresh.max(idle) < IDLE_BYTES_MAX, "an idle daemon has {idle} bytes, on an empty pool {fresh}");
}

/// Goal: mounting after a crash with a full log takes less than 5 s, at full size. Method: files made as fast as they can be,
/// about a thirty-second of the log between two looks at it, with a cache so large that only the log makes a checkpoint due,
/// which it does at half; the kill comes when five eighths of the log lie behind the last checkpoint, or nine tenths of as
/// much as there was when an earlier checkpoint ended. The pool is opened again with a cache of the usual size. At full
/// size it is as large as gives the largest log.
#[test]
fn mount_with_a_full_log_is_quick() {
    if !can_mount("mount_with_a_full_log_is_quick") {
        return;
    }
    let (size, ring_bytes, rounds) = if is_full() { ("16G", 256 << 20, 3) } else { ("1G", 16 << 20, 1) };
    // Beside other tests it takes several times as long.
    let mount_max = Duration::from_secs(if is_full() { 5 } else { 60 });
    let scratch = Scratch::new("recovery");
    let pool = scratch.pool("pool.img", size);
    let point = scratch.path("mnt");
    for round in 0..rounds {
        // With room for all dirty nodes it is the log that makes a checkpoint due: at half, and it grows until it is done.
        let mount = Mount::start_with(&pool, &point, &["--cache-size", "4GiB"]);
        let dir = mount.path(&format!("round{round}"));
        fs::create_dir(&dir).expect("a directory");
        let allowed = AtomicU64::new(0);
        let made = [const { AtomicU64::new(0) }; WORKERS as usize];
        let behind = thread::scope(|scope| {
            let no_limit = NoLimit(&allowed);
            for (worker, made) in made.iter().enumerate() {
                let (dir, allowed) = (&dir, &allowed);
                scope.spawn(move || create_until_killed(dir, worker as u8, allowed, made));
            }
            let (mut checkpoints, mut written_then, mut peak) = (0, 0, u64::MAX);
            let behind = loop {
                let next = allowed.load(SeqCst) + ring_bytes / 32 / LOGGED_BYTES / WORKERS;
                allowed.store(next, SeqCst);
                let started = Instant::now();
                while made.iter().any(|made| made.load(SeqCst) < next) {
                    assert!(started.elapsed() < FILLING_MAX, "{made:?} files of {next} have been made");
                    thread::sleep(Duration::from_millis(1));
                }
                let (completed, written) = log_state(&mount);
                let behind = written - written_then;
                if completed != checkpoints {
                    (checkpoints, written_then) = (completed, written);
                    // That of the mounting itself comes before there is anything to speak of.
                    peak = if behind > ring_bytes / 4 { behind } else { peak };
                    continue;
                }
                if behind > ring_bytes / 8 * 5 || behind > peak / 10 * 9 {
                    break behind;
                }
                assert!(
                    next < ring_bytes / 1500,
                    "the log does not fill: {written} bytes, {completed} checkpoints"
                );
            };
            drop(no_limit);
            mount.kill();
            behind
        });
        assert!(behind > ring_bytes / 4, "the log was never filled, so nothing was tested: {behind} bytes");
        let mount = Mount::start(&pool, &point);
        say(&format!(
            "{} MiB of a log of {} MiB to replay: mounted in {} ms",
            behind >> 20,
            ring_bytes >> 20,
            mount.took.as_millis()
        ));
        assert!(mount.took < mount_max, "mounting after a crash took {:?}", mount.took);
        mount.unmount();
    }
    check(&pool);
}

/// Lets the workers go on, to their end, when it is dropped: by a failure, too.
struct NoLimit<'a>(&'a AtomicU64);

impl Drop for NoLimit<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, SeqCst);
    }
}

/// Files that lie in their inode records, so that all of them is log; an fsync now and then. As many as are `allowed`.
fn create_until_killed(dir: &Path, worker: u8, allowed: &AtomicU64, done: &AtomicU64) {
    for number in 0.. {
        while number >= allowed.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let made = fs::File::create(dir.join(format!("{worker}-{number}"))).and_then(|mut file| {
            file.write_all(&[worker; 1500])?;
            if number % 16 == 0 { file.sync_all() } else { Ok(()) }
        });
        if made.is_err() {
            return;
        }
        done.store(number + 1, SeqCst);
    }
}

/// Checkpoints completed and bytes of log written since the pool was mounted.
fn log_state(mount: &Mount) -> (u64, u64) {
    let text = succeed(varve(&["stats", "--json"]).arg(&mount.point));
    let stats: serde_json::Value = serde_json::from_str(&text).expect("stats --json is JSON");
    let number = |pointer: &str| stats.pointer(pointer).and_then(|value| value.as_u64()).expect("a number");
    (number("/checkpoint/completed_count"), number("/journal/written_bytes"))
}
