//! Trims: what goes back to the device, and what they do to others meanwhile.

use super::*;

const EVERYTHING: std::ops::Range<u64> = 0..u64::MAX;

/// An empty pool that writes one copy of everything.
fn pool() -> (Arc<Hooked>, Arc<Store>) {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    (device, store)
}

fn free(store: &Store, key: &[u8], run: Run) {
    let mut tx = Transaction::new();
    tx.privileged();
    tx.free(run);
    tx.delete(EXTENTS, key);
    store.apply(tx, None).expect("deleting always works");
}

fn injected() -> DeviceError {
    let rules = vec![FaultRule::new(Operation::Discard, Trigger::Nth(1), Fault::Error)];
    FaultyDevice::new(MemoryDevice::new(1 << 20), 0, rules).discard(0, 4096).expect_err("it fails")
}

// Goal: what is deleted goes back to the device, what is there stays as it is, short runs stay too if that is asked for, and
// nothing is discarded outside the range. Method: blocks of which every second is freed, and the memory that the device takes.
#[test]
fn what_is_deleted_goes_back() {
    let (device, store) = pool();
    let placed: Vec<(u64, Run)> = (0..4000u64)
        .map(|n| (n, place(&store, &n.to_be_bytes(), n as u8).expect("there is room").0))
        .collect();
    store.commit(store.position()).expect("commits");
    let full = device.inner.allocated_bytes();
    let (gone, kept) = placed.split_at(2000);
    gone.iter().for_each(|(n, run)| free(&store, &n.to_be_bytes(), *run));
    for (n, run) in kept.iter().step_by(2) {
        free(&store, &n.to_be_bytes(), *run);
    }
    let kept: Vec<Run> = kept.iter().skip(1).step_by(2).map(|(_, run)| *run).collect();

    let long = store.trim(EVERYTHING, 64 << 10, &mut |_| true).expect("trims");
    assert!(long.is_supported && long.position_bytes == long.end_bytes);
    let after = device.inner.allocated_bytes();
    assert!(after + 2000 * 4096 <= full + (1 << 20), "{full} bytes, then {after}");
    let all = store.trim(EVERYTHING, 0, &mut |_| true).expect("trims");
    // The first of these lies beside what went before.
    assert_eq!(all.discarded_bytes, long.discarded_bytes + 999 * 4096);
    let none = store.trim(EVERYTHING, u64::MAX, &mut |_| true).expect("trims");
    assert_eq!(none.discarded_bytes, 0);
    let discarded = device.stats().discard_bytes;
    let (from, to) = (8 << 20, 9 << 20);
    let part = store.trim(from + 1..to + 1, 0, &mut |_| true).expect("trims");
    assert_eq!(device.stats().discard_bytes - discarded, part.discarded_bytes);
    assert!(part.discarded_bytes <= (1 << 20) - 4096 && part.end_bytes == to, "{part:?}");
    let nothing = store.trim(u64::MAX - 1..u64::MAX, 0, &mut |_| true).expect("trims");
    assert_eq!(nothing.discarded_bytes, 0);
    sound(&store, &kept);
    store.close().expect("closes");
    assert!(matches!(store.trim(EVERYTHING, 0, &mut |_| true), Err(EngineError::Stopped(_))));
    sound(&open(&device), &kept);
}

// Goal: who does not find space waits for a trim and is not refused. Method: a device that takes its time to discard, trimmed
// all the time by two threads, while all of the pool is filled and emptied again, the last block of it too, with checkpoints.
#[test]
fn a_trim_refuses_nobody() {
    let (device, store) = pool();
    device.on_discard(|_| {
        std::thread::sleep(Duration::from_micros(300));
        Ok(true)
    });
    let over = Arc::new(AtomicBool::new(false));
    let trims: Vec<_> = (0..2)
        .map(|_| {
            let (store, over) = (store.clone(), over.clone());
            std::thread::spawn(move || {
                let mut discarded = 0;
                while !over.load(SeqCst) {
                    let trimmed = store.trim(EVERYTHING, 0, &mut |_| !over.load(SeqCst)).expect("trims");
                    discarded += trimmed.discarded_bytes;
                }
                discarded
            })
        })
        .collect();
    let worker = store.clone();
    let filled = within("filling and emptying beside trims", move || {
        let mut filled = Vec::new();
        for round in 0..3u8 {
            let mut runs = Vec::new();
            loop {
                match worker.reserve(16, 16, 60) {
                    Ok(mut r) => {
                        for run in worker.allocate(&mut r, 16, PoolAddr::NULL).expect("reserved") {
                            let key = run.addr.0.to_be_bytes();
                            let mut tx = Transaction::new();
                            tx.privileged();
                            worker.write_data(&[(run, block_data(round, run.blocks))]).expect("writes");
                            tx.place(run, &block_data(round, run.blocks));
                            tx.put(EXTENTS, &key, &run.addr.0.to_le_bytes());
                            worker.apply(tx, Some(&mut r)).expect("it was reserved");
                            runs.push(run);
                        }
                    }
                    Err(EngineError::NoSpace) => break,
                    Err(e) => panic!("{e}"),
                }
            }
            worker.checkpoint().expect("there is room for that");
            sound(&worker, &runs);
            filled.push(runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>());
            runs.iter().for_each(|run| free(&worker, &run.addr.0.to_be_bytes(), *run));
            worker.checkpoint().expect("there is room for that");
        }
        filled
    });
    over.store(true, SeqCst);
    let discarded: u64 = trims.into_iter().map(|trim| trim.join().expect("no panic")).sum();
    assert!(filled.iter().all(|blocks| *blocks == filled[0]) && filled[0] > 12_000, "{filled:?}");
    assert!(discarded > 0);
}

// Goal: a device that cannot discard says so, one that fails ends the trim, and neither the pool. Method: both, then use.
#[test]
fn what_cannot_be_discarded_is_no_harm() {
    let (device, store) = pool();
    device.on_discard(|_| Ok(false));
    let trimmed = store.trim(EVERYTHING, 0, &mut |_| true).expect("no error");
    assert_eq!((trimmed.is_supported, trimmed.discarded_bytes), (false, 0));
    device.on_discard(|_| Err(injected()));
    assert!(matches!(store.trim(EVERYTHING, 0, &mut |_| true), Err(EngineError::Device(_))));
    device.on_discard(|_| Ok(true));
    let (run, _) = place(&store, b"key", 7).expect("the pool goes on");
    store.commit(store.position()).expect("commits");
    let trimmed = store.trim(EVERYTHING, 0, &mut |_| true).expect("trims");
    assert!(trimmed.discarded_bytes > 40 << 20, "all that was held has been given back: {trimmed:?}");
    sound(&store, &[run]);
}

// Goal: a trim goes piece by piece and ends when it is told to. Method: count the calls, and end after the first.
#[test]
fn a_trim_can_be_ended() {
    let (_, store) = pool();
    let mut seen = Vec::new();
    let all = store.trim(EVERYTHING, 0, &mut |so_far| {
        seen.push(*so_far);
        true
    });
    let all = all.expect("trims");
    assert!(seen.len() >= 2, "{seen:?}");
    assert!(seen.is_sorted_by_key(|so_far| (so_far.position_bytes, so_far.discarded_bytes)));
    assert_eq!(seen.last(), Some(&all));
    let some = store.trim(EVERYTHING, 0, &mut |_| false).expect("trims");
    assert_eq!(some, seen[0]);
}

// Goal: when a pool has been closed nothing is discarded any more. Method: close it while a discard is under way.
#[test]
fn closing_waits_for_discards() {
    let (device, store) = pool();
    let under_way = Arc::new(AtomicUsize::new(0));
    let (begun, begins) = std::sync::mpsc::channel();
    let count = under_way.clone();
    device.on_discard(move |_| {
        count.fetch_add(1, SeqCst);
        let _ = begun.send(());
        std::thread::sleep(Duration::from_millis(5));
        count.fetch_sub(1, SeqCst);
        Ok(true)
    });
    let trim = {
        let store = store.clone();
        std::thread::spawn(move || {
            loop {
                if let Err(error) = store.trim(EVERYTHING, 0, &mut |_| true) {
                    return error;
                }
            }
        })
    };
    begins.recv().expect("it discards");
    store.close().expect("closes");
    assert_eq!(under_way.load(SeqCst), 0);
    let before = device.stats().discards_count;
    assert!(matches!(trim.join().expect("no panic"), EngineError::Stopped(_)));
    assert_eq!(device.stats().discards_count, before);
}
