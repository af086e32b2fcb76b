//! What lasts: sync, close, drop, crashes; and what it costs in flushes.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use varvefs::{Filesystem, LatencyStats, MemoryDisk, OpenOptions, Pool, PoolOptions, Reason, wait_all};

use crate::{MIB, assert_sound, names, quiet};

fn flushes(pool: &Pool) -> u64 {
    pool.stats().unwrap().devices[0].flushes_count
}

fn reopened(disk: &MemoryDisk) -> (Pool, Filesystem) {
    let pool = PoolOptions::new().open_on(disk).unwrap();
    assert_sound(&pool);
    let fs = pool.filesystem();
    (pool, fs)
}

// Goal: a large file that was cut, written anew and closed is written back by a thread, not by who closed it nor when its data is old. Method: a
// clock that stands still; another's syncs, and what is there after a kill, until that is the new file.
#[test]
fn a_large_file_that_was_written_anew_is_written_back() {
    let disk = MemoryDisk::new(64 * MIB);
    let now = SystemTime::now();
    let pool = PoolOptions::new().clock(move || now).create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.write("/f", vec![1; 3 << 20]).unwrap();
    fs.sync().unwrap();
    let written = || pool.stats().unwrap().devices[0].write_bytes;
    let before = written();
    let mut file = fs.create("/f").unwrap();
    file.write_all(&vec![2; 2 << 20]).unwrap();
    assert!(written() - before < 1 << 20, "nobody has asked for it");
    drop(file);
    let begun = std::time::Instant::now();
    let other = fs.create("/other").unwrap();
    loop {
        // Of something else, after which the cut is durable.
        other.write_all_at(b"x", 0).unwrap();
        other.sync_all().unwrap();
        let (_pool, fs) = reopened(&disk.after_kill());
        if fs.read("/f").unwrap() == vec![2; 2 << 20] {
            break;
        }
        assert!(begun.elapsed().as_secs() < 120, "nobody has written it back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// Goal: a lone sync costs one flush, and one of something durable costs none. Method: count.
#[test]
fn a_lone_sync_costs_one_flush() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.write("/warm", b"").unwrap();
    fs.sync().unwrap();
    for n in 0..20 {
        let before = flushes(&pool);
        let mut file = fs.create(format!("/{n}")).unwrap();
        file.write_all(&vec![n; 16 << 10]).unwrap();
        file.sync_all().unwrap();
        assert_eq!(flushes(&pool) - before, 1);
        file.sync_data().unwrap();
        file.start_sync().unwrap().wait().unwrap();
        assert_eq!(flushes(&pool) - before, 1, "it was durable already");
    }
}

// Goal: many syncs started and waited for together cost one flush, and all of it lasts. Method: 500 files of 8 KiB, count,
// cut the power.
#[test]
fn many_syncs_cost_one_flush() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.create_dir("/d").unwrap();
    fs.sync().unwrap();
    let before = flushes(&pool);
    let mut pending = Vec::new();
    for n in 0..500_u32 {
        let file = fs.create(format!("/d/{n}")).unwrap();
        file.write_all_at(&n.to_le_bytes().repeat(2048), 0).unwrap();
        pending.push(file.start_sync().unwrap());
    }
    assert_eq!(flushes(&pool), before, "starting does not flush");
    assert!(pending.iter().all(|one| !one.is_durable()));
    pending.pop().unwrap().wait().unwrap();
    assert!(pending.iter().all(|one| one.is_durable()), "who waits for the last has waited for all");
    wait_all(pending).unwrap();
    assert_eq!(flushes(&pool) - before, 1);
    let (_pool, fs) = reopened(&disk.after_power_cut());
    assert_eq!(names(&fs, "/d").len(), 500);
    for n in 0..500_u32 {
        assert_eq!(fs.read(format!("/d/{n}")).unwrap(), n.to_le_bytes().repeat(2048), "file {n}");
    }
}

// Goal: a sync of everything can be started too, and covers what was dirty then. Method: start, dirty more, wait, count,
// cut.
#[test]
fn a_sync_of_everything_can_be_started() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.write("/a", vec![1; 3 << 20]).unwrap();
    fs.symlink("a", "/b").unwrap();
    let before = flushes(&pool);
    let pending = fs.start_sync().unwrap();
    assert!(!pending.is_durable());
    pending.wait().unwrap();
    assert_eq!(flushes(&pool) - before, 1);
    let (_pool, fs) = reopened(&disk.after_power_cut());
    assert_eq!(fs.read("/b").unwrap(), vec![1; 3 << 20]);
}

// Goal: what was synced survives a kill and a power failure without close, and nothing is half there. Method: at each
// step of a sequence, open both kinds of remains beside the living pool.
#[test]
fn what_was_synced_survives_without_close() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    for round in 0..10_u8 {
        let contents = vec![round; 1000 * usize::from(round) + 1];
        fs.create_dir(format!("/d{round}")).unwrap();
        fs.write(format!("/d{round}/new"), &contents).unwrap();
        fs.rename(format!("/d{round}/new"), "/current").unwrap();
        if round % 3 == 0 {
            fs.open("/current").unwrap().sync_all().unwrap();
        }
        fs.write("/unsynced", vec![round; 5000]).unwrap();
        let synced = round / 3 * 3;
        for left in [disk.after_power_cut(), disk.after_kill()] {
            let (pool, fs) = reopened(&left);
            assert!(!pool.recovery().clean);
            let found = fs.read("/current").unwrap();
            let kept = *found.first().unwrap();
            assert!((synced..=round).contains(&kept), "round {round}: {kept} is older than what was synced");
            assert_eq!(found, vec![kept; 1000 * usize::from(kept) + 1], "whole, whichever it is");
            assert!(fs.exists(format!("/d{synced}")).unwrap());
        }
    }
    assert_sound(&pool);
}

// Goal: dropping the last handle closes cleanly, whichever handle it is. Method: drop them in different orders, look at
// what the next opening finds; a copy of the file taken before says that the pool was open until then.
#[test]
fn the_last_handle_closes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let copy = dir.path().join("copy");
    for last in 0..3 {
        let pool = Pool::open_or_create(&path, 64 * MIB).unwrap();
        assert!(pool.recovery().clean, "the handle before {last} did not close the pool");
        let fs = pool.filesystem();
        let mut file = fs.create(format!("/{last}")).unwrap();
        file.write_all(b"not synced").unwrap();
        file.sync_all().unwrap();
        std::fs::copy(&path, &copy).unwrap();
        let killed = Pool::open(&copy).unwrap();
        assert!(!killed.recovery().clean, "the copy is of an open pool");
        assert_eq!(killed.filesystem().read(format!("/{last}")).unwrap(), b"not synced");
        drop(killed);
        match last {
            0 => drop((pool, fs, file)),
            1 => drop((file, pool, fs)),
            _ => drop((fs, file, pool)),
        }
    }
    let pool = Pool::open(&path).unwrap();
    assert_eq!(names(&pool.filesystem(), "/"), ["0", "1", "2"]);
    assert_sound(&pool);
    pool.close().unwrap();
}

// Goal: an unlinked open file is gone after a crash, and its space with it. Method: unlink while open, kill, compare.
#[test]
fn unlinked_open_files_do_not_survive_a_crash() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    let file = fs.create("/f").unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    fs.remove_file("/f").unwrap();
    fs.sync().unwrap();
    let (pool, fs) = reopened(&disk.after_kill());
    pool.maintain().unwrap();
    assert_eq!(names(&fs, "/"), [""; 0]);
    assert_eq!(fs.statfs().unwrap().files_count, 1, "the root is left");
    drop(file);
}

// Goal: a creation that was interrupted does not stand in the way of the next. Method: plant the unfinished file.
#[test]
fn an_interrupted_creation_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let unfinished = dir.path().join(".pool.creating");
    std::fs::write(&unfinished, vec![b'x'; 1 << 20]).unwrap();
    std::fs::set_permissions(&unfinished, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let pool = Pool::open_or_create(&path, 64 * MIB).unwrap();
    pool.filesystem().write("/f", b"x").unwrap();
    pool.close().unwrap();
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["pool"]);
}

// Goal: figures are plain values with stable keys that add up. Method: JSON there and back, the sum of the space.
#[test]
fn statistics_are_plain_values() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.write("/f", vec![1; 1 << 20]).unwrap();
    fs.sync().unwrap();
    pool.checkpoint().unwrap();
    let stats = pool.stats().unwrap();
    let space = stats.space;
    let parts = space.fixed_bytes
        + space.used_bytes
        + space.held_back_bytes
        + space.reserved_bytes
        + space.protected_bytes
        + space.free_bytes;
    assert_eq!(parts, space.total_bytes);
    assert!(space.used_bytes >= 1 << 20);
    assert_eq!(stats.files_count, 2);
    assert_eq!(stats.journal.position, stats.journal.durable_position);
    assert!(stats.checkpoint.completed_count >= 1 && stats.devices[0].write_bytes > 1 << 20);
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["devices"][0]["flushes_count"], stats.devices[0].flushes_count);
    assert_eq!(serde_json::from_value::<varvefs::Stats>(json).unwrap(), stats);
    let statfs = fs.statfs().unwrap();
    assert!(statfs.free_bytes <= statfs.total_bytes && statfs.total_bytes < 64 * MIB);
    serde_json::to_string(&pool.check(true).unwrap()).unwrap();
    serde_json::to_string(&pool.recovery()).unwrap();
}

// Goal: the counters of devices run from the opening, and are those of the pool alone. Method: a pool that is made, in each place,
// beside the same one closed and opened again, and a disk in memory beside plain memory, which keeps nothing for power cuts.
#[test]
fn counters_of_devices_run_from_the_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let disk = MemoryDisk::new(64 * MIB);
    let counted = |pool: &Pool| pool.stats().unwrap().devices[0].clone();
    let work = |pool: Pool| {
        let before = counted(&pool);
        let fs = pool.filesystem();
        fs.write("/f", vec![7; 3 << 20]).unwrap();
        fs.sync().unwrap();
        let after = counted(&pool);
        pool.close().unwrap();
        (before, after)
    };
    let (memory, memory_after) = work(quiet().in_memory(64 * MIB).unwrap());
    for (made, opened) in [
        (work(quiet().create(&path, 64 * MIB).unwrap()), work(quiet().open(&path).unwrap())),
        (work(quiet().create_on(&disk).unwrap()), work(quiet().open_on(&disk).unwrap())),
    ] {
        for (before, after) in [&made, &opened] {
            // Opening flushes once, before it relies on what it has read.
            let counts = (before.writes_count, before.flushes_count, before.discards_count);
            assert_eq!(counts, (0, memory.flushes_count, 0), "{before:#?}");
            assert_eq!(before.read_latency.count, before.reads_count);
            assert_eq!(before.write_latency, LatencyStats::default());
            assert!(before.reads_count > 0 && after.write_bytes >= 3 << 20);
            assert_eq!(after.write_latency.count, after.writes_count);
        }
        let (before, after) = made;
        for (counts, expected) in [(before, &memory), (after, &memory_after)] {
            assert_eq!((counts.reads_count, counts.read_bytes), (expected.reads_count, expected.read_bytes));
            let writes = (counts.writes_count, counts.write_bytes, counts.flushes_count);
            assert_eq!(writes, (expected.writes_count, expected.write_bytes, expected.flushes_count));
        }
    }
}

// Goal: a call that panics stops the pool: what it has left half done in memory is not called durable afterwards by a sync or a close,
// and the program may go on reading. Method: a clock that panics when it is asked the n-th time in a call, for each n there is.
#[test]
fn a_panic_in_a_call_stops_the_pool() {
    type Call = fn(&Filesystem) -> varvefs::Result<()>;
    let calls: [(&str, Call); 5] = [
        ("write", |fs| OpenOptions::new().write(true).open(fs, "/f")?.write_all_at(&[2; 4096], 0)),
        ("set_len", |fs| fs.set_len("/f", 100)),
        ("rename", |fs| fs.rename("/f", "/g")),
        ("remove_file", |fs| fs.remove_file("/f")),
        ("create_dir", |fs| fs.create_dir("/d")),
    ];
    for (what, call) in calls {
        for nth in 1.. {
            let (disk, left) = (MemoryDisk::new(64 * MIB), Arc::new(AtomicUsize::new(usize::MAX)));
            let told = left.clone();
            let clock = move || {
                assert!(told.fetch_sub(1, Ordering::SeqCst) != 1, "planted");
                SystemTime::UNIX_EPOCH
            };
            let pool = quiet().clock(clock).create_on(&disk).unwrap();
            let fs = pool.filesystem();
            fs.write("/f", [1; 8192]).unwrap();
            fs.sync().unwrap();
            left.store(nth, Ordering::SeqCst);
            let came = catch_unwind(AssertUnwindSafe(|| call(&fs)));
            left.store(usize::MAX, Ordering::SeqCst);
            if let Ok(done) = came {
                done.unwrap();
                assert!(nth > 1, "{what} asks no clock");
                break;
            }
            let refused = fs.sync().unwrap_err();
            assert!(matches!(refused.reason(), Reason::Stopped(_)), "{what} {nth}: {refused}");
            fs.symlink_metadata("/").unwrap();
            assert!(pool.close().is_err(), "{what} {nth}: it closed as if all were durable");
            let (_pool, fs) = reopened(&disk);
            assert_eq!(fs.read("/f").unwrap(), [1; 8192], "{what} {nth}");
        }
    }
}

// Goal: what is durable is said to be so by `is_durable` and `wait` alike, also by a pool that has stopped, and after a close that fails;
// what is not is said to be so by neither, and what is begun then is refused. Method: a sync that was waited for by another and one that
// was not, of a file and of everything, when a clock panics; before the pool is closed, and afterwards.
#[test]
fn what_is_durable_is_durable_when_the_pool_has_stopped() {
    for closes in [false, true] {
        let (disk, panics) = (MemoryDisk::new(64 * MIB), Arc::new(AtomicBool::new(false)));
        let told = panics.clone();
        let clock = move || {
            assert!(!told.load(Ordering::SeqCst), "planted");
            SystemTime::UNIX_EPOCH
        };
        let pool = quiet().clock(clock).create_on(&disk).unwrap();
        let fs = pool.filesystem();
        let file = fs.create("/f").unwrap();
        file.write_all_at(b"durable", 0).unwrap();
        let durable = [file.start_sync().unwrap(), fs.start_sync().unwrap()];
        fs.start_sync().unwrap().wait().unwrap();
        file.write_all_at(b"not durable", 0).unwrap();
        let lost = [file.start_sync().unwrap(), fs.start_sync().unwrap()];
        panics.store(true, Ordering::SeqCst);
        assert!(catch_unwind(AssertUnwindSafe(|| fs.create_dir("/d"))).is_err());
        panics.store(false, Ordering::SeqCst);
        for refused in [file.start_sync(), fs.start_sync()] {
            assert!(matches!(refused.unwrap_err().reason(), Reason::Stopped(_)), "{closes}");
        }
        if closes {
            assert!(pool.close().is_err());
        }
        for pending in durable {
            assert!(pending.is_durable(), "{closes}");
            assert!(pending.wait_timeout(Duration::ZERO).unwrap());
            pending.wait().unwrap();
        }
        for pending in lost {
            assert!(!pending.is_durable(), "{closes}");
            assert!(pending.wait_timeout(Duration::MAX).is_err());
            let error = pending.wait().unwrap_err();
            let known = if closes {
                *error.reason() == Reason::Closed
            } else {
                matches!(error.reason(), Reason::Stopped(_))
            };
            assert!(known, "{error}");
        }
        let (_pool, fs) = reopened(&disk.after_power_cut());
        assert_eq!(fs.read("/f").unwrap(), b"durable");
    }
}
