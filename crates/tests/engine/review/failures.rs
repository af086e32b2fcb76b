//! Devices that fail: requests that are slow, fail once, or lie.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use varve_device::{DeviceError, Discarded, Request, StatsSnapshot};

use super::*;

// Goal: a slow read for a transaction keeps its block from being reused, and its repair never lands on somebody else's
// data. Method: a writer's read of a leaf is held up; meanwhile the leaf moves, its block is freed and given to data.
#[test]
fn a_slow_fetch_does_not_repair_over_new_data() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    for n in 0..400u64 {
        put(&store, &n.to_be_bytes(), &[7; 1000]);
    }
    store.close().expect("closes");
    drop(store);
    // Where the leaf of key 200 is: the last read of a cold lookup.
    let last = Arc::new(AtomicU64::new(0));
    let seen = last.clone();
    let store = open(&device);
    device.on_request(move |offset, write| {
        if !write {
            seen.store(offset, SeqCst);
        }
    });
    store.get(TREE, &200u64.to_be_bytes()).expect("reads");
    let leaf = last.load(SeqCst);
    drop(store);
    device.on_request(|_, _| ());
    let store = open(&device);
    let gate = Arc::new((Mutex::new(0), Condvar::new()));
    let hook_gate = gate.clone();
    device.on_request(move |offset, write| {
        if offset == leaf && !write {
            let (state, turn) = &*hook_gate;
            let mut state = state.lock().expect("lock");
            if *state == 0 {
                *state = 1;
                turn.notify_all();
                drop(turn.wait_while(state, |s| *s < 2).expect("wait"));
            }
        }
    });
    let slow = {
        let store = store.clone();
        std::thread::spawn(move || {
            let mut tx = Transaction::new();
            tx.put(TREE, &200u64.to_be_bytes(), b"slow");
            store.apply(tx, None)
        })
    };
    let (state, turn) = &*gate;
    drop(turn.wait_while(state.lock().expect("lock"), |s| *s < 1).expect("wait"));
    put(&store, &200u64.to_be_bytes(), b"fast");
    store.commit(store.position()).expect("commits");
    store.checkpoint().expect("checkpoint");
    // The leaf has moved. Take its first block for data, if it is given.
    let at = PoolAddr(leaf - DATA_START);
    let mut r = store.reserve(1, 1, 60).expect("room");
    let run = store.allocate(&mut r, 1, at).expect("reserved")[0];
    store.write_data(&[(run, block_data(9, 1))]).expect("writes");
    let mut tx = Transaction::new();
    tx.place(run, &block_data(9, 1));
    tx.put(EXTENTS, b"k", &run.addr.0.to_le_bytes());
    store.apply(tx, Some(&mut r)).expect("applies");
    *state.lock().expect("lock") = 2;
    turn.notify_all();
    slow.join().expect("no panic").expect("the slow one succeeds as well");
    assert_eq!(store.get(TREE, &200u64.to_be_bytes()).expect("reads").as_deref(), Some(&b"slow"[..]));
    let mut buf = AlignedBuf::new(4096);
    store.read_data(run.addr, &mut buf).expect("the data is as it was written");
    assert!(buf.iter().all(|b| *b == 9));
    store.commit(store.position()).expect("commits");
    sound(&store, &[run]);
}

// Goal: an error that one flush reports counts for all of them: the kernel reports it once. Method: a checkpoint's flush
// is held up until a commit's flush has failed, and then succeeds; no superblock may follow. (If the second flush waits
// for the first to end, the error is not about what the first has covered.)
#[test]
fn a_failed_flush_is_everybodys() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let lsn = put(&store, b"k", b"v");
    store.commit(lsn).expect("commits");
    let failed = Arc::new(AtomicBool::new(false));
    let (flush_failed, write_failed) = (failed.clone(), failed.clone());
    let late = Arc::new(AtomicUsize::new(0));
    let late_writes = late.clone();
    let first = Arc::new(AtomicBool::new(false));
    let first_flush = first.clone();
    let overlap = Arc::new(AtomicBool::new(false));
    let (first_runs, overlaps) = (AtomicBool::new(false), overlap.clone());
    device.on_flush(move |n| {
        if n == 1 {
            first_runs.store(true, SeqCst);
            first_flush.store(true, SeqCst);
            let end = Instant::now() + Duration::from_millis(500);
            while !flush_failed.load(SeqCst) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            first_runs.store(false, SeqCst);
        }
        let fails = n == 2;
        if fails {
            overlaps.store(first_runs.load(SeqCst), SeqCst);
            flush_failed.store(true, SeqCst);
        }
        !fails
    });
    device.on_request(move |offset, write| {
        if write && offset < RING_START && write_failed.load(SeqCst) {
            late_writes.fetch_add(1, SeqCst);
        }
    });
    let checkpoint = {
        let store = store.clone();
        std::thread::spawn(move || store.checkpoint())
    };
    while !first.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let lsn = put(&store, b"k2", b"v");
    let committed = store.commit(lsn);
    let checkpointed = checkpoint.join().expect("no panic");
    assert!(committed.is_err() || checkpointed.is_err(), "somebody is told");
    let bad = overlap.load(SeqCst) && late.load(SeqCst) > 0;
    assert!(!bad, "a superblock was written after a flush had failed");
    assert!(store.commit(put_any(&store)).is_err(), "nothing is acknowledged afterwards");
}

fn put_any(store: &Store) -> Lsn {
    let mut tx = Transaction::new();
    tx.put(TREE, b"later", b"v");
    store.apply(tx, None).unwrap_or(Lsn(store.position().0 + 1))
}

// Goal: after a failed flush the pool says so and takes nothing more; what was applied stays applied and readable.
// Method: the first flush after opening fails, in a commit, in a commit that `apply` makes itself, in a checkpoint.
#[test]
fn a_failed_flush_stops_the_pool() {
    for way in 0..3 {
        let device = Arc::new(FaultyDevice::new(RecordingDevice::new(POOL_BYTES), 1, vec![]));
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let durable = store.durable_position();
        device.set_rules(vec![FaultRule::new(Operation::Flush, Trigger::Nth(1), Fault::Error)]);
        let mut r = store.reserve(2, 2, 60).expect("room");
        let run = store.allocate(&mut r, 1, PoolAddr::NULL).expect("reserved")[0];
        let mut tx = Transaction::new();
        tx.place_riding(run, block_data(3, 1));
        if way == 1 {
            for n in 0..600u64 {
                tx.put(TREE, &n.to_be_bytes(), &[1; 1900]);
            }
        }
        let lsn = store.apply(tx, Some(&mut r)).expect("applied is applied, whatever comes after");
        let result = if way == 2 { store.checkpoint() } else { store.commit(lsn) };
        assert!(matches!(result, Err(EngineError::Stopped(_) | EngineError::Device(_))), "{result:?}");
        assert_eq!(store.durable_position(), durable, "nothing was acknowledged");
        assert!(matches!(store.commit(lsn), Err(EngineError::Stopped(_))));
        let told = Arc::new(Mutex::new(None));
        let tell = told.clone();
        store.commit_then(lsn, Box::new(move |r| *tell.lock().expect("lock") = Some(r.is_err())));
        assert_eq!(*told.lock().expect("lock"), Some(true));
        let writes = device.stats().write_bytes;
        let mut tx = Transaction::new();
        tx.put(TREE, b"k", b"v");
        assert!(matches!(store.apply(tx, None), Err(EngineError::Stopped(_))));
        assert!(matches!(store.reserve(1, 1, 60), Err(EngineError::Stopped(_))));
        assert!(matches!(store.write_data(&[(run, block_data(4, 1))]), Err(EngineError::Stopped(_))));
        assert!(store.maintain().is_err() && store.checkpoint().is_err() && store.close().is_err());
        assert_eq!(device.stats().write_bytes, writes, "way {way}: something was written");
        let mut buf = AlignedBuf::new(4096);
        store.read_data(run.addr, &mut buf).expect("what was applied can be read");
        assert!(buf.iter().all(|b| *b == 3));
        drop((r, store));
        let store = open(&device);
        sound(&store, &if store.position() >= lsn { vec![run] } else { vec![] });
    }
}

// Goal: a pool that has stopped, or been closed, is read from and not written to: no bad copy is made good. Method: a block whose first
// copy has rotted, read after a failed flush, after a clean end, and before either.
#[test]
fn who_has_stopped_repairs_nothing() {
    for way in ["works", "stopped", "closed"] {
        let device = Arc::new(FaultyDevice::new(MemoryDevice::new(POOL_BYTES), 1, vec![]));
        format(&device, Profile::Dup, Profile::Dup);
        let store = open(&device);
        let (run, _) = place(&store, b"a", 7).expect("places");
        store.checkpoint().expect("checkpoint");
        device.write_at(DATA_START + run.addr.0, &AlignedBuf::new(4096)).expect("writes");
        match way {
            "stopped" => {
                device.set_rules(vec![FaultRule::new(Operation::Flush, Trigger::Nth(1), Fault::Error)]);
                let mut tx = Transaction::new();
                tx.put(TREE, b"k", b"v");
                let lsn = store.apply(tx, None).expect("applies");
                store.commit(lsn).expect_err("the flush fails");
            }
            "closed" => store.close().expect("closes"),
            _ => {}
        }
        let writes = device.stats().write_bytes;
        let mut buf = AlignedBuf::new(4096);
        store.read_data(run.addr, &mut buf).expect("the other copy is good");
        assert!(buf.iter().all(|b| *b == 7), "{way}");
        let written = device.stats().write_bytes - writes;
        assert_eq!(written, if way == "works" { 4096 } else { 0 }, "{way}");
    }
}

/// A device in a file whose filesystem is full: what is written waits until there is room.
struct FullHost {
    device: MemoryDevice,
    is_full: AtomicBool,
    refused: AtomicU64,
}

impl Device for FullHost {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn name(&self) -> String {
        self.device.name()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let waits = requests.iter().any(|request| matches!(request, Request::Write { .. }));
        assert!(!waits || !self.is_full.load(Relaxed), "it waits for room");
        self.device.run(requests)
    }
    fn rewrite_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.refused.fetch_add(1, Relaxed);
        let error = std::io::Error::from_raw_os_error(28);
        Err(DeviceError::from_os(Operation::Write, self.name(), offset, buf.len() as u64, &error))
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.device.discard(offset, len_bytes)
    }
    fn stats(&self) -> StatsSnapshot {
        self.device.stats()
    }
}

// Goal: who reads a block of which one copy is bad gets the good one at once, also where the bad one cannot be written again before somebody has
// made room for it. Method: a block whose first copy has rotted, read while the host is full.
#[test]
fn a_repair_waits_for_no_room() {
    let (device, is_full) = (MemoryDevice::new(POOL_BYTES), AtomicBool::new(false));
    let device = Arc::new(FullHost { device, is_full, refused: AtomicU64::new(0) });
    format(&device, Profile::Dup, Profile::Dup);
    let store = open(&device);
    let (run, _) = place(&store, b"a", 7).expect("places");
    store.checkpoint().expect("checkpoint");
    device.write_at(DATA_START + run.addr.0, &AlignedBuf::new(4096)).expect("writes");
    device.is_full.store(true, Relaxed);
    let mut buf = AlignedBuf::new(4096);
    store.read_data(run.addr, &mut buf).expect("the other copy is good");
    assert!(buf.iter().all(|b| *b == 7));
    assert_eq!(device.refused.load(Relaxed), 1);
    device.is_full.store(false, Relaxed);
}

// Goal: one unreadable label or superblock slot is no reason not to open. Method: EIO in each of them in turn.
#[test]
fn opens_with_an_unreadable_label_or_slot() {
    let device = Arc::new(FaultyDevice::new(MemoryDevice::new(POOL_BYTES), 1, vec![]));
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    store.close().expect("closes");
    drop(store);
    let tail = POOL_BYTES - (512 << 10);
    let slots = (0..4).flat_map(|i| [(64 << 10) * (i + 1), tail + (64 << 10) * (i + 1)]);
    for offset in slots.chain([0, POOL_BYTES - 4096]) {
        let bad =
            FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(offset..offset + 4096);
        device.set_rules(vec![bad]);
        let (store, report) = try_open(&device).unwrap_or_else(|e| panic!("slot at {offset:#x}: {e}"));
        assert!(report.clean, "slot at {offset:#x}");
        assert!(store.get(TREE, b"k").expect("reads").is_some(), "slot at {offset:#x}");
    }
}

// Goal: on a device that has become longer than its pool the second label is found, too, and nothing is made over it. Method: a pool with
// data once and twice, copied to a longer device, without its first block.
#[test]
fn the_second_label_of_a_longer_device() {
    for data in [Profile::Single, Profile::Dup] {
        for size in [POOL_BYTES, POOL_BYTES + 4096, POOL_BYTES + 12_288] {
            let small = Arc::new(MemoryDevice::new(size));
            format(&small, data, Profile::Dup);
            let store = open(&small);
            put(&store, b"k", b"v");
            store.close().expect("closes");
            drop(store);
            let long = Arc::new(MemoryDevice::new(size + (16 << 20)));
            let mut all = AlignedBuf::new(size as usize);
            small.read_at(0, &mut all).expect("reads");
            all[..4096].fill(0);
            long.write_at(0, &all).expect("writes");
            let devices = [long.clone() as Arc<dyn Device>];
            let options =
                FormatOptions { data, metadata: Profile::Dup, pool_id: [9; 16], hash_seed: 1, force: false };
            assert!(matches!(Store::format(&devices, &options), Err(EngineError::Refused(_))), "{size}");
            let (store, report) = try_open(&long).unwrap_or_else(|e| panic!("{size} bytes: {e}"));
            assert!(report.clean);
            assert_eq!(store.get(TREE, b"k").expect("reads").as_deref(), Some(&b"v"[..]));
        }
    }
}

// Goal: a label whose version has rotted is as damaged as any other, the other one is used, and it is repaired; a pool of another
// version is refused as such. Method: one bit of the version's field in either label, and in both.
#[test]
fn a_rotten_version_is_a_damaged_label() {
    let device = Arc::new(MemoryDevice::new(POOL_BYTES));
    format(&device, Profile::Single, Profile::Dup);
    let flip = |at: u64| {
        let mut block = AlignedBuf::new(4096);
        device.read_at(at, &mut block).expect("reads");
        block[8] ^= 1;
        device.write_at(at, &block).expect("writes");
    };
    let version = |at: u64| {
        let mut block = AlignedBuf::new(4096);
        device.read_at(at, &mut block).expect("reads");
        block[8]
    };
    for ends in [&[0][..], &[POOL_BYTES - 4096], &[0, POOL_BYTES - 4096]] {
        ends.iter().for_each(|at| flip(*at));
        match (try_open(&device), ends.len()) {
            (Ok(_), 1) => assert_eq!(version(ends[0]), 0),
            (Err(error), 2) => assert!(error.to_string().contains("format version 1"), "{error}"),
            (opened, _) => panic!("{ends:?}: {:?}", opened.err()),
        }
    }
}

// Goal: a copy of a node or of data that cannot be read, or that lies, is served and repaired from the other; when both
// are bad the answer is an error. Method: spoil one copy, read, look at both; spoil both, read.
#[test]
fn bad_copies_are_repaired_from_good_ones() {
    let device = Arc::new(FaultyDevice::new(MemoryDevice::new(POOL_BYTES), 1, vec![]));
    format(&device, Profile::Dup, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    let (run, _) = place(&store, b"data", 5).expect("places");
    store.close().expect("closes");
    drop(store);
    let memory = device.inner();
    let half = (POOL_BYTES - DATA_START - (512 << 10)) / 8192 * 4096;
    let block = |offset: u64| {
        let mut b = AlignedBuf::new(4096);
        memory.read_at(offset, &mut b).expect("reads");
        b
    };
    let data = [DATA_START + run.addr.0, DATA_START + half + run.addr.0];
    assert!(data.iter().all(|o| block(*o).iter().all(|b| *b == 5)), "the copies are where they are thought");
    // The leaf of "k": the blocks that hold this key and value at the end of a node of the names tree.
    let leaf: Vec<u64> = (DATA_START..POOL_BYTES - (512 << 10))
        .step_by(4096)
        .filter(|o| {
            let b = block(*o);
            b[..4] == 0x444e_5656u32.to_le_bytes() && b[4] == 2 && b[6] == 0
        })
        .collect();
    assert_eq!(leaf.len(), 4, "two pool addresses, two copies each");
    let read = |store: &Store, what: usize| {
        if what == 0 {
            let _view = store.view();
            let mut buf = AlignedBuf::new(4096);
            store.read_data(run.addr, &mut buf).map(|()| assert!(buf.iter().all(|b| *b == 5)))
        } else {
            store.get(TREE, b"k").map(|v| assert_eq!(v.as_deref(), Some(&b"v"[..])))
        }
    };
    for (what, copies) in [(0, &data[..]), (1, &leaf[..])] {
        let good = block(copies[0]);
        for eio in [false, true] {
            // All but the last are bad.
            for o in &copies[..copies.len() - 1] {
                let mut bad = block(*o);
                bad[40] ^= 4;
                if !eio {
                    memory.write_at(*o, &bad).expect("writes");
                }
            }
            let store = open(&device);
            if eio {
                let o = copies[0];
                device.set_rules(vec![
                    FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(o..o + 4096),
                ]);
            }
            read(&store, what).expect("served from a good copy");
            assert!(store.stats().repaired_blocks_count > 0, "what {what} eio {eio}");
            device.set_rules(vec![]);
            for o in copies {
                assert!(block(*o)[..] == good[..], "what {what} eio {eio}: copy at {o:#x} was not repaired");
            }
        }
        for o in copies {
            let mut bad = block(*o);
            bad[40] ^= 4;
            memory.write_at(*o, &bad).expect("writes");
        }
        let store = open(&device);
        let e = read(&store, what).expect_err("no good copy");
        assert!(matches!(e, EngineError::Checksum { .. } | EngineError::Corrupt { .. }), "{e}");
        let report = store.check(&mut [run].into_iter(), true).expect("check runs");
        assert!(!report.problems.is_empty());
        drop(store);
        for o in copies {
            memory.write_at(*o, &good).expect("writes");
        }
    }
}

// Goal: a panic in whoever writes or flushes a batch, or in a checkpoint, gives everybody else an error instead of letting them
// wait for ever, and nothing is acknowledged. Method: the device panics once, in a flush or in a write, while the first of
// several is in it and the others have come after it; one waits by a callback. Then everything is asked again.
#[test]
fn a_panic_in_a_commit_stops_the_pool_for_all() {
    for (flush, checkpoint) in [(true, false), (false, false), (true, true), (false, true)] {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let gate = Arc::new((Mutex::new(0), Condvar::new()));
        let panicking = Arc::new(AtomicBool::new(false));
        let hook = {
            let (gate, panicking) = (gate.clone(), panicking.clone());
            move || {
                if panicking.swap(true, SeqCst) {
                    return;
                }
                let (state, turn) = &*gate;
                let mut state = state.lock().expect("lock");
                *state = 1;
                turn.notify_all();
                drop(turn.wait_while(state, |s| *s < 2).expect("wait"));
                panic!("planted in the device");
            }
        };
        put(&store, b"first", &[1; 100]);
        if checkpoint {
            // The flush or write of the checkpoint itself.
            store.commit(store.position()).expect("commits");
        }
        if flush {
            device.on_flush(move |_| {
                hook();
                true
            });
        } else {
            device.on_request(move |_, write| {
                if write {
                    hook()
                }
            });
        }
        let leader = {
            let store = store.clone();
            std::thread::spawn(move || match checkpoint {
                true => store.checkpoint(),
                false => store.commit(store.position()),
            })
        };
        let (state, turn) = &*gate;
        drop(turn.wait_while(state.lock().expect("lock"), |s| *s < 1).expect("wait"));
        let (told, tell) = std::sync::mpsc::channel();
        // The one who leads the batch behind the first may wait for nothing but the writes of that.
        let waiters: Vec<_> = (0..3u8)
            .map(|n| {
                let (store, told) = (store.clone(), told.clone());
                std::thread::spawn(move || {
                    let lsn = put(&store, &[n; 8], &[n; 100]);
                    told.send(()).expect("the test listens");
                    store.commit(lsn)
                })
            })
            .collect();
        (0..waiters.len()).for_each(|_| tell.recv().expect("they apply"));
        let (done, called) = std::sync::mpsc::channel();
        let by_callback = {
            let store = store.clone();
            std::thread::spawn(move || {
                let lsn = put(&store, b"callback", &[9; 100]);
                store.commit_then(lsn, Box::new(move |result| done.send(result.is_ok()).expect("listens")));
            })
        };
        std::thread::sleep(Duration::from_millis(50));
        *state.lock().expect("lock") = 2;
        turn.notify_all();
        assert!(leader.join().is_err(), "the panic reaches who caused it");
        let what = format!("flush {flush}, checkpoint {checkpoint}");
        for waiter in waiters {
            let result = within(&what, move || waiter.join().expect("no second panic"));
            // Beside a checkpoint the log goes on until that has panicked.
            assert!(checkpoint || result.is_err(), "{what}: acknowledged");
        }
        within(&what, move || by_callback.join().expect("no second panic"));
        let told = called.recv_timeout(PATIENCE).expect("the callback is called");
        assert!(checkpoint || !told, "{what}: acknowledged by a callback");
        let again = store.clone();
        let refused = within(&what, move || {
            let mut tx = Transaction::new();
            tx.put(TREE, b"again", b"again");
            (again.apply(tx, None).is_err(), again.checkpoint().is_err(), again.close().is_err())
        });
        assert_eq!(refused, (true, true, true), "{what}");
    }
}

// Goal: after a crash all that the log names lies there in as many copies as the pool keeps, though one of them had arrived whole. Method:
// data in two copies; the second one is not there, as when power failed before it, and after the pool has been opened again the first
// one is spoilt.
#[test]
fn recovery_writes_every_copy_of_data() {
    for spoilt in 0..2 {
        let device = Hooked::new();
        format(&device, Profile::Dup, Profile::Dup);
        let store = open(&device);
        let (run, lsn) = place(&store, b"k", 5).expect("places");
        store.commit(lsn).expect("commits");
        drop(store);
        let stripes = superblock_of(&device).chunks[0].stripes.clone();
        let place = |copy: usize| stripes[copy].offset + run.addr.0;
        let nothing = AlignedBuf::new(4096);
        device.inner.write_at(place(spoilt), &nothing).expect("writes");
        let store = open(&device);
        let mut block = AlignedBuf::new(4096);
        for copy in 0..2 {
            device.inner.read_at(place(copy), &mut block).expect("reads");
            assert!(block.iter().all(|byte| *byte == 5), "copy {copy}, where {spoilt} was spoilt");
        }
        device.inner.write_at(place(1 - spoilt), &nothing).expect("writes");
        store.read_data(run.addr, &mut block).expect("the other one is there");
        assert!(block.iter().all(|byte| *byte == 5));
    }
}

// Goal: recovery writes no copy of a block over with what the block held before. Method: two copies, and a log in which a block is
// placed, freed and placed again; of the last write one copy has arrived, the other still holds what was there first.
#[test]
fn recovery_repairs_with_what_is_there_in_the_end() {
    use varve_format::batch::{begin_transaction, end_transaction, free_op, place_op};
    for late in 0..2 {
        let device = Hooked::new();
        format(&device, Profile::Dup, Profile::Dup);
        let end = superblock_of(&device);
        let run = Run { addr: PoolAddr::from_block(end.total_blocks / 3), blocks: 1 };
        let contents = [1, 2].map(|fill| AlignedBuf::from_slice(&[fill; 4096]));
        let sums = contents.each_ref().map(|bytes| varve_format::block_checksum(bytes));
        let mut payload = Vec::new();
        for n in 0..3 {
            let at = begin_transaction(&mut payload, Lsn(end.position.0 + 1 + n));
            match n {
                1 => free_op(&mut payload, run),
                _ => place_op(&mut payload, run, &[sums[n as usize / 2]]),
            }
            end_transaction(&mut payload, at, 1);
        }
        super::hostile::append_batch(&device, &end, false, 3, &payload);
        for (copy, stripe) in end.chunks[0].stripes.iter().enumerate() {
            let there = &contents[usize::from(copy != late)];
            device.inner.write_at(stripe.offset + run.addr.0, there).expect("writes");
        }
        let (store, report) = try_open(&device).expect("opens");
        assert_eq!((report.batches_replayed, report.batches_cut), (1, 0));
        let mut block = AlignedBuf::new(4096);
        store.read_data(run.addr, &mut block).expect("one copy is whole");
        for stripe in &end.chunks[0].stripes {
            device.inner.read_at(stripe.offset + run.addr.0, &mut block).expect("reads");
            assert!(block.iter().all(|byte| *byte == 2), "where copy {late} was late");
        }
    }
}

// Goal: a bad copy of a block that is read at opening and never after, and a bad label, are whole again after the pool has been opened
// for writing, and untouched by who only reads. Method: the first copy of each is spoilt, then the device is looked at.
#[test]
fn opening_repairs_what_only_opening_reads() {
    use varve_format::root::{NodePtr, RootBlock};
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    place(&store, b"data", 5).expect("places");
    store.close().expect("closes");
    drop(store);
    let block = |at: u64| {
        let mut block = AlignedBuf::new(4096);
        device.inner.read_at(at, &mut block).expect("reads");
        block
    };
    let of = |ptr: NodePtr| DATA_START + ptr.addr[0].0;
    for what in ["root", "bitmap", "checksums", "first label", "last label"] {
        let ptr = superblock_of(&device).root;
        let root = RootBlock::decode(&block(of(ptr))).expect("a root");
        let at = match what {
            "root" => of(ptr),
            "bitmap" => of(root.bitmap.ptr),
            "checksums" => of(root.checksums.ptr),
            "first label" => 0,
            _ => POOL_BYTES - 4096,
        };
        let good = block(at);
        let mut bad = AlignedBuf::from_slice(&good);
        bad[40] ^= 4;
        device.inner.write_at(at, &bad).expect("writes");
        let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
        drop(Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("opens"));
        assert!(block(at)[..] == bad[..], "{what}: changed by who only reads");
        let store = open(&device);
        assert!(block(at)[..] == good[..], "{what}");
        assert_eq!(store.stats().repaired_blocks_count, 1, "{what}");
        store.close().expect("closes");
    }
}
