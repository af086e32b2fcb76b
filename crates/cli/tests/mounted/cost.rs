//! What things cost, counted by the block layer and the kernel.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
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
const IDLE_BYTES_MAX: u64 = 64 << 20;
const MOUNT_MAX: Duration = Duration::from_secs(5);
/// Longest that filling a log may take.
const FILLING_MAX: Duration = Duration::from_secs(120);

/// Goal: a lone fsync of a 10 KiB file is one flush and at most 17 KiB. Method: 2,000 files in one directory, each
/// written and fsynced, on a loop device; the kernel counts, up to and including the unmount.
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
    for number in 0..FILES {
        let mut file = fs::File::create(dir.join(format!("file{number}"))).expect("a file");
        file.write_all(&random.bytes(FILE_BYTES)).expect("room");
        file.sync_all().expect("fsync");
    }
    let loop_only = device.stat().since(before);
    mount.unmount();
    let all = device.stat().since(before);
    say(&format!(
        "{FILES} fsyncs of 10 KiB: {:.3} flushes and {:.2} KiB each, with the unmount {:.3} and {:.2} KiB, {} writes",
        loop_only.flushes as f64 / FILES as f64,
        loop_only.written_bytes as f64 / 1024.0 / FILES as f64,
        all.flushes as f64 / FILES as f64,
        all.written_bytes as f64 / 1024.0 / FILES as f64,
        all.writes,
    ));
    assert!(all.flushes >= FILES, "{} flushes cannot have made {FILES} files durable", all.flushes);
    assert!(all.flushes <= FILES + EXTRA_FLUSHES_MAX, "{} flushes for {FILES} fsyncs", all.flushes);
    assert!(all.written_bytes <= BYTES_PER_FILE_MAX * FILES, "{} bytes for {FILES} files", all.written_bytes);
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

/// Goal: mounting after a crash with a full log takes less than 5 s. Method: files made as fast as they can be, with a
/// cache so large that only the log makes a checkpoint due, which it does at half; the kill comes when five eighths of
/// the log lie behind the last checkpoint, or nine tenths of as much as there was when an earlier checkpoint ended. The
/// pool is opened again with a cache of the usual size. At full size it is as large as gives the largest log.
#[test]
fn mount_with_a_full_log_is_quick() {
    if !can_mount("mount_with_a_full_log_is_quick") {
        return;
    }
    let (size, ring_bytes) = if is_full() { ("16G", 256 << 20) } else { ("1G", 16 << 20) };
    let scratch = Scratch::new("recovery");
    let pool = scratch.pool("pool.img", size);
    let point = scratch.path("mnt");
    for round in 0..3 {
        // With room for all dirty nodes it is the log that makes a checkpoint due: at half, and it grows until it is done.
        let mount = Mount::start_with(&pool, &point, &["--cache-size", "4GiB"]);
        let dir = mount.path(&format!("round{round}"));
        fs::create_dir(&dir).expect("a directory");
        let behind = thread::scope(|scope| {
            for worker in 0..4 {
                let dir = &dir;
                scope.spawn(move || create_until_killed(dir, worker));
            }
            let started = Instant::now();
            let (mut checkpoints, mut written_then, mut peak) = (0, 0, u64::MAX);
            let behind = loop {
                let (completed, written) = log_state(&mount);
                let behind = written - written_then;
                if completed != checkpoints {
                    (checkpoints, written_then) = (completed, written);
                    // That of the mounting itself comes before there is anything to speak of.
                    peak = if behind > ring_bytes / 4 { behind } else { peak };
                    continue;
                }
                if behind > ring_bytes / 8 * 5 || behind > peak / 10 * 9 || started.elapsed() > FILLING_MAX {
                    break behind;
                }
            };
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
        assert!(mount.took < MOUNT_MAX, "mounting after a crash took {:?}", mount.took);
        mount.unmount();
    }
    check(&pool);
}

/// Files that lie in their inode records, so that all of them is log; an fsync now and then.
fn create_until_killed(dir: &Path, worker: u8) {
    for number in 0.. {
        let made = fs::File::create(dir.join(format!("{worker}-{number}"))).and_then(|mut file| {
            file.write_all(&[worker; 1500])?;
            if number % 16 == 0 { file.sync_all() } else { Ok(()) }
        });
        if made.is_err() {
            return;
        }
    }
}

/// Checkpoints completed and bytes of log written since the pool was mounted.
fn log_state(mount: &Mount) -> (u64, u64) {
    let text = succeed(varve(&["stats", "--json"]).arg(&mount.point));
    let stats: serde_json::Value = serde_json::from_str(&text).expect("stats --json is JSON");
    let number = |pointer: &str| stats.pointer(pointer).and_then(|value| value.as_u64()).expect("a number");
    (number("/checkpoint/completed_count"), number("/journal/written_bytes"))
}
