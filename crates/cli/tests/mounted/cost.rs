//! What things cost, counted by the block layer and the kernel.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::Duration;

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

/// Goal: mounting after a crash takes less than 5 s however full the log is. Method: kills at different moments of a
/// load that fills the log faster than anything else (small files, each fsynced), the slowest mount counts.
#[test]
fn mount_after_a_crash_is_quick() {
    if !can_mount("mount_after_a_crash_is_quick") {
        return;
    }
    let scratch = Scratch::new("recovery");
    let pool = scratch.pool("pool.img", "2G");
    let point = scratch.path("mnt");
    let mut slowest = Duration::ZERO;
    for round in 0..4 {
        let mount = Mount::start(&pool, &point);
        let dir = mount.path(&format!("round{round}"));
        fs::create_dir(&dir).expect("a directory");
        thread::scope(|scope| {
            for worker in 0..4 {
                let dir = &dir;
                scope.spawn(move || {
                    for number in 0.. {
                        let path = dir.join(format!("{worker}-{number}"));
                        let made = fs::File::create(path).and_then(|mut file| {
                            file.write_all(&[worker; 3000])?;
                            if number % 16 == 0 { file.sync_all() } else { Ok(()) }
                        });
                        if made.is_err() {
                            return;
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(1_500 + 700 * round));
            mount.kill();
        });
        let mount = Mount::start(&pool, &point);
        slowest = slowest.max(mount.took);
        println!("round {round}: mounted in {:?}", mount.took);
        assert!(mount.took < MOUNT_MAX, "mounting after a crash took {:?}", mount.took);
        mount.unmount();
    }
    say(&format!("slowest mount after a crash under load: {} ms", slowest.as_millis()));
    check(&pool);
}
