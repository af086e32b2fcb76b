//! What a device fails to read while a pool is opened: always, or for a moment.

use super::*;

/// What who only reads has of a pool of which something cannot be read, and what is said of it. Nothing is written.
fn read_in_part<D: Device + 'static>(device: &Arc<D>) -> (Arc<Store>, String) {
    let writes = device.stats().writes_count;
    let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
    let (store, report) =
        Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("it can be read in part");
    let why = report.replay_ended_by.expect("what may be missing is told");
    assert!(why.contains("cannot be read"), "{why}");
    assert!(!report.clean, "{why}");
    assert_eq!(device.stats().writes_count, writes, "{why}");
    (store, why)
}

/// The device has failed, and how is said, with what to do where that is for who opens a pool to decide.
fn is_unread(error: &EngineError) -> bool {
    let said = error.to_string();
    matches!(error, EngineError::Device(_))
        || said.contains("injected") && said.contains("open it for reading")
}

// Goal: a sector of the log that cannot be read stands in the way of who writes only where the log counts, and who only reads has
// exactly what is in front of it. Method: EIO in every part of the ring, of a pool that was killed: the batches that are replayed and the
// place behind them are needed, nothing else is; and a pool opened past bad sectors goes on working over them.
#[test]
fn opens_with_unreadable_sectors_where_no_batch_counts() {
    let device = Arc::new(FaultyDevice::new(MemoryDevice::new(POOL_BYTES), 1, vec![]));
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let mut keys = Vec::new();
    for i in 0..5u8 {
        keys.push(i);
        let lsn = put(&store, &[i], &[i; 100]);
        store.commit(lsn).expect("commits");
    }
    drop(store);
    let killed = device.inner().snapshot();
    let batch = |at: u64| {
        let mut block = AlignedBuf::new(4096);
        killed.read_at(RING_START + at, &mut block).expect("reads");
        block[..8] == varve_format::batch::BATCH_MAGIC.to_le_bytes()
    };
    let batches = (0..RING_BYTES).step_by(4096).filter(|at| batch(*at)).count() as u64;
    assert!(batches >= 5, "{batches} batches");
    for block in (0..batches + 2).chain([100, RING_BYTES / 4096 - 1]) {
        let from = RING_START + block * 4096;
        let bad = FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(from..from + 4096);
        let device = Arc::new(FaultyDevice::new(killed.snapshot(), 1, vec![bad]));
        let opened = try_open(&device);
        if block <= batches {
            let error = opened.map(drop).expect_err("this block of the log is needed");
            let said = error.to_string();
            let expected = format!("where batch {} may be", block + 1);
            assert!(matches!(error, EngineError::Refused(_)) && said.contains(&expected), "{block}: {said}");
            assert!(said.contains("injected") && said.contains("open it for reading"), "{block}: {said}");
            let (store, why) = read_in_part(&device);
            assert!(why.contains(&format!("where batch {} may be", block + 1)), "block {block}: {why}");
            let found = |key: &u8| store.get(TREE, &[*key]).expect("reads").is_some();
            let expected = keys.len().min(block as usize);
            assert_eq!(keys.iter().filter(|key| found(key)).count(), expected, "block {block}");
            assert!(keys[..expected].iter().all(found), "block {block}");
            continue;
        }
        let (store, _) = opened.unwrap_or_else(|e| panic!("block {block} of the log is not needed: {e}"));
        for key in &keys {
            assert!(store.get(TREE, &[*key]).expect("reads").is_some(), "key {key} is lost");
        }
        let lsn = put(&store, b"more", b"v");
        store.commit(lsn).expect("commits");
    }
}

// Goal: a read error where recovery looks for the data of the last batches cuts nothing: of a block that nobody placed it does not
// matter, of one that was placed the pool is not opened, unless a later batch says that it was flushed. Method: a pool that was killed with an
// acknowledged batch of two blocks, one free block between them, and perhaps one that frees the first; the device cannot read one of
// the three, always or once.
#[test]
fn a_read_error_in_the_tail_cuts_nothing() {
    for (freed, bad, trigger) in [false, true].into_iter().flat_map(|freed| {
        (0..3).flat_map(move |bad| [Trigger::From(1), Trigger::Nth(1)].map(|t| (freed, bad, t)))
    }) {
        let what = format!("block {bad}, freed {freed}, {trigger:?}");
        let device = Arc::new(FaultyDevice::new(MemoryDevice::new(POOL_BYTES), 1, vec![]));
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let mut r = store.reserve(3, 3, 60).expect("room");
        let runs = store.allocate(&mut r, 3, PoolAddr::NULL).expect("reserved");
        assert_eq!(runs.len(), 1);
        let one = |n: u64| Run { addr: PoolAddr(runs[0].addr.0 + n * 4096), blocks: 1 };
        let mut tx = Transaction::new();
        for n in [0, 2] {
            tx.place_riding(one(n), block_data(n as u8 + 1, 1));
        }
        tx.put(TREE, b"k", b"v");
        let lsn = store.apply(tx, Some(&mut r)).expect("applies");
        store.commit(lsn).expect("commits");
        if freed {
            let mut tx = Transaction::new();
            tx.free(one(0));
            let lsn = store.apply(tx, None).expect("applies");
            store.commit(lsn).expect("commits");
        }
        let behind_log = RING_START + store.stats().journal_bytes;
        drop((r, store));
        let from = DATA_START + one(bad).addr.0;
        let rule = FaultRule::new(Operation::Read, trigger, Fault::Error).within(from..from + 4096);
        let killed = device.inner().snapshot();
        let device = Arc::new(FaultyDevice::new(killed, 1, vec![rule.clone()]));
        let opened = try_open(&device);
        let needed = bad != 1 && !freed;
        assert_eq!(opened.is_err(), needed && trigger == Trigger::From(1), "{what}");
        if let Err(error) = &opened {
            assert!(
                matches!(error, EngineError::Refused(_)) && error.to_string().contains("cannot be read"),
                "{error}"
            );
            let (store, why) = read_in_part(&device);
            assert!(why.contains("not known whether they count"), "{what}: {why}");
            assert!(
                store.get(TREE, b"k").expect("reads").is_none(),
                "{what}: it may be that it never arrived"
            );
            drop(store);
            let log = FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error)
                .within(behind_log..behind_log + 4096);
            device.set_rules(vec![rule, log]);
            let (_, why) = read_in_part(&device);
            assert!(
                why.contains("the log cannot be read where batch")
                    && why.contains("not known whether they count"),
                "{what}, and the log behind: {why}"
            );
        }
        drop(opened);
        device.set_rules(vec![]);
        let (store, _) = try_open(&device).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(store.get(TREE, b"k").expect("reads").is_some(), "{what}: an acknowledged batch is lost");
    }
}

// Goal: a block that the tail has freed again and that cannot be read keeps nobody from opening, whatever else its copies hold. Method:
// data in two copies; a batch places a block and frees it, and is not known to be flushed; the device cannot read one copy, or either.
#[test]
fn a_block_that_the_tail_has_freed_need_not_be_readable() {
    let device = Hooked::new();
    format(&device, Profile::Dup, Profile::Dup);
    let store = open(&device);
    let (run, _) = place(&store, b"data", 5).expect("places");
    let mut tx = Transaction::new();
    tx.free(run);
    tx.delete(EXTENTS, b"data");
    store.apply(tx, None).expect("applies");
    let key = put(&store, b"k", b"v");
    store.commit(key).expect("commits");
    drop(store);
    let killed = device.inner.snapshot();
    let half = (POOL_BYTES - DATA_START - (512 << 10)) / 8192 * 4096;
    for copies in [&[0][..], &[half], &[0, half]] {
        let bad = copies.iter().map(|copy| {
            let from = DATA_START + copy + run.addr.0;
            FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(from..from + 4096)
        });
        let device = Arc::new(FaultyDevice::new(killed.snapshot(), 1, bad.collect()));
        let (store, report) = try_open(&device).unwrap_or_else(|e| panic!("{copies:?}: {e}"));
        assert_eq!(report.batches_cut, 0, "{copies:?}");
        assert!(store.get(TREE, b"k").expect("reads").is_some(), "{copies:?}");
    }
}

// Goal: of data in two copies, one of which the crash tore, none stays torn because the device fails for a moment to read the other or to
// write the torn one: the pool is not opened until it can. Method: one copy of acknowledged data is spoilt; while the pool is opened for writing
// the device fails one read or write after the other, once and three times in a row; both copies are read on the device, then and after
// an opening without failures.
#[test]
fn a_torn_copy_is_written_anew_though_the_device_fails() {
    let device = Hooked::new();
    format(&device, Profile::Dup, Profile::Dup);
    let store = open(&device);
    let (run, lsn) = place(&store, b"data", 5).expect("places");
    store.commit(lsn).expect("commits");
    drop(store);
    let killed = device.inner.snapshot();
    let half = (POOL_BYTES - DATA_START - (512 << 10)) / 8192 * 4096;
    let places = [0, half].map(|copy| DATA_START + copy + run.addr.0);
    let block = |device: &MemoryDevice, at: u64| {
        let mut block = AlignedBuf::new(4096);
        device.read_at(at, &mut block).expect("reads");
        block.to_vec()
    };
    let whole = block(&killed, places[0]);
    assert_eq!(whole, block(&killed, places[1]), "two copies of the data");
    let mut failed = [0, 0];
    let rows = [(Operation::Read, 1), (Operation::Read, 3), (Operation::Write, 1), (Operation::Write, 3)];
    for (torn, (operation, row)) in places.into_iter().flat_map(|torn| rows.map(|row| (torn, row))) {
        for first in 1.. {
            let what = format!("{torn:#x} torn, {operation:?} {first} to {} fail", first + row - 1);
            let device = killed.snapshot();
            let mut half_of_it = AlignedBuf::from_slice(&whole);
            half_of_it[512..].fill(0);
            device.write_at(torn, &half_of_it).expect("writes");
            let rules = (first..first + row)
                .map(|n| FaultRule::new(operation, Trigger::Nth(n), Fault::Error))
                .collect();
            let device = Arc::new(FaultyDevice::new(device, 1, rules));
            let opened = try_open(&device).map(drop);
            let injected = device.injected_count();
            device.set_rules(vec![]);
            if let Err(error) = &opened {
                assert!(error.to_string().contains("injected"), "{what}: {error}");
                failed[usize::from(operation == Operation::Write)] += 1;
                drop(open(&device));
            }
            for place in places {
                assert!(
                    block(device.inner(), place) == whole,
                    "{what}: the copy at {place:#x} is torn: {opened:?}"
                );
            }
            if injected == 0 {
                break;
            }
        }
    }
    assert!(failed.iter().all(|count| *count > 0), "some reads and writes are needed: {failed:?}");
}

/// A pool that was killed after five acknowledged batches, the third of `third` bytes, and the places of these in the ring, from and to.
fn killed(third: usize) -> (MemoryDevice, Vec<(u64, u64)>) {
    let device = Arc::new(FaultyDevice::new(MemoryDevice::new(POOL_BYTES), 1, vec![]));
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let mut places = vec![];
    let mut from = 0;
    for i in 0..5u8 {
        let mut tx = Transaction::new();
        let bytes = if i == 2 { third } else { 1 };
        (0..bytes.div_ceil(1000) as u16)
            .for_each(|n| tx.put(TREE, &[&[i][..], &n.to_be_bytes()].concat(), &[i; 1000]));
        let before = store.stats().journal_bytes;
        let lsn = store.apply(tx, None).expect("applies");
        store.commit(lsn).expect("commits");
        let to = from + store.stats().journal_bytes - before;
        places.push((from, to));
        from = to;
    }
    drop(store);
    (device.inner().snapshot(), places)
}

/// How a device fails to read.
const FAILURES: [Trigger; 7] = [
    Trigger::Nth(1),
    Trigger::Nth(2),
    Trigger::Nth(3),
    Trigger::Nth(4),
    Trigger::From(1),
    Trigger::From(2),
    Trigger::From(3),
];

fn lost(store: &Store) -> Vec<u8> {
    (0..5).filter(|key| store.get(TREE, &[*key, 0, 0]).expect("reads").is_none()).collect()
}

// Goal: a batch whose header could be read is not taken for torn because the device then fails to read it: opening is an error, or finds
// all that was acknowledged, or is for reading only and says what it lacks; and without the failure all is there. Method: a pool that was killed, some of its batches of several blocks; the
// device fails to read one block of them once or from some time on, for who writes, who reads and who checks.
#[test]
fn a_batch_that_is_read_again_is_not_cut() {
    for third in [1, 9000] {
        let (killed, places) = killed(third);
        let end = places[4].1;
        for (at, trigger) in (0..end / 4096)
            .rev()
            .map(|block| block * 4096)
            .flat_map(|at| FAILURES.map(|trigger| (at, trigger)))
        {
            let what = format!("byte {at} of the log, {trigger:?}");
            let from = RING_START + at;
            let rule =
                || vec![FaultRule::new(Operation::Read, trigger, Fault::Error).within(from..from + 4096)];
            let device = Arc::new(FaultyDevice::new(killed.snapshot(), 1, rule()));
            let options = || StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
            let devices = || vec![device.clone() as Arc<dyn Device>];
            match Store::open(devices(), options()) {
                Ok((store, report)) => match report.replay_ended_by {
                    None => assert_eq!(lost(&store), [0; 0], "{what}, for reading"),
                    Some(why) => {
                        assert!(
                            why.contains("the log cannot be read where batch"),
                            "{what}, for reading: {why}"
                        )
                    }
                },
                Err(error) => {
                    assert!(matches!(error, EngineError::Device(_)), "{what}, for reading: {error}")
                }
            }
            device.set_rules(rule());
            let (store, _) = Store::open_to_check(devices(), options()).expect("opens to be checked");
            let report = store.check(&mut [].into_iter(), true).expect("check runs");
            assert!(lost(&store).is_empty() || !report.problems.is_empty(), "{what}, checked");
            drop(store);
            device.set_rules(rule());
            match try_open(&device) {
                Ok((store, _)) => assert_eq!(lost(&store), [0; 0], "{what}"),
                Err(error) => assert!(is_unread(&error), "{what}: {error}"),
            }
            device.set_rules(vec![]);
            let (store, _) = try_open(&device).unwrap_or_else(|e| panic!("{what}, then without: {e}"));
            assert_eq!(lost(&store), [0; 0], "{what}, then without");
        }
    }
}

// Goal: damage to the log is not taken for a crash because the device fails to read the batch that tells them apart. Method: of the
// batches of a pool that was killed the second is spoilt; what is behind it can be read while the log is looked through, and then not, once or
// at all, or never.
#[test]
fn the_witness_of_damage_is_read_again() {
    let mut unread = 0;
    for trigger in FAILURES {
        let (killed, places) = killed(1);
        let (from, to) = places[1];
        let mut block = AlignedBuf::new(4096);
        killed.read_at(RING_START + from, &mut block).expect("reads");
        block[200] ^= 1;
        killed.write_at(RING_START + from, &block).expect("writes");
        let rules = (to..places[4].1).step_by(4096).map(|at| {
            let from = RING_START + at;
            FaultRule::new(Operation::Read, trigger, Fault::Error).within(from..from + 4096)
        });
        let rules: Vec<_> = rules.collect();
        let device = Arc::new(FaultyDevice::new(killed, 1, rules.clone()));
        let error = try_open(&device).map(drop).expect_err("batches are lost");
        assert!(
            is_unread(&error) || error.to_string().contains("damage to the device"),
            "{trigger:?}: {error}"
        );
        if is_unread(&error) {
            device.set_rules(rules);
            let (store, why) = read_in_part(&device);
            assert!(why.contains("what may be a later batch"), "{trigger:?}: {why}");
            assert_eq!(lost(&store), [1, 2, 3, 4], "{trigger:?}: what is behind the damage");
            unread += 1;
        }
        device.set_rules(vec![]);
        let error = try_open(&device).map(drop).expect_err("batches are lost");
        assert!(error.to_string().contains("damage to the device"), "{trigger:?}: {error}");
    }
    assert!(unread > 0);
}

/// The device fails to read these blocks until it has been asked as often as one look through the log asks.
fn for_a_look(blocks: impl Iterator<Item = u64>) -> Vec<FaultRule> {
    // 4 MiB, the half of it, and so on down to a block.
    let asked = 1 + u64::from((4_u32 << 20 >> 12).ilog2());
    blocks
        .flat_map(|at| {
            (1..=asked).map(move |n| {
                FaultRule::new(Operation::Read, Trigger::Nth(n), Fault::Error).within(at..at + 4096)
            })
        })
        .collect()
}

// Goal: what the device fails to read while the log is looked through is asked for once more at the end of it: neither is damage taken for a
// crash, nor is anybody refused. Method: a pool that was killed, one of whose batches is spoilt, or none; the batches behind it, or all, cannot
// be read during one look.
#[test]
fn the_log_is_looked_at_again_where_it_could_not_be_read() {
    for spoilt in [None, Some(0), Some(1), Some(3)] {
        let what = format!("batch {spoilt:?}");
        let (killed, places) = killed(1);
        if let Some(spoilt) = spoilt {
            let from: u64 = RING_START + places[spoilt].0;
            let mut block = AlignedBuf::new(4096);
            killed.read_at(from, &mut block).expect("reads");
            block[200] ^= 1;
            killed.write_at(from, &block).expect("writes");
        }
        let behind = places[spoilt.map_or(0, |spoilt: usize| spoilt + 1)..].iter();
        let rules = for_a_look(behind.map(|(from, _)| RING_START + from));
        let device = Arc::new(FaultyDevice::new(killed, 1, rules.clone()));
        let opened = try_open(&device);
        assert!(device.injected_count() >= rules.len() as u64, "{what}: {}", device.injected_count());
        match opened {
            Ok((store, _)) => assert_eq!((spoilt, lost(&store)), (None, vec![]), "{what}"),
            Err(error) => {
                assert!(
                    spoilt.is_some() && error.to_string().contains("damage to the device"),
                    "{what}: {error}"
                );
                device.set_rules(rules);
                let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
                let (_, report) =
                    Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("it can be read");
                let why = report.replay_ended_by.expect("it is told");
                assert!(why.contains("says that it had been flushed"), "{what}: {why}");
            }
        }
    }
}

// Goal: a last batch that is torn is a crash, also if a sector elsewhere in the log is bad for good, but where the batch behind it would say that
// there was no crash. Method: the last of the batches of a pool that was killed is spoilt; a block of the log cannot be read: one with nothing
// in it, right behind the batch or somewhere, or one of an earlier lap.
#[test]
fn a_torn_batch_is_a_crash_beside_a_bad_sector() {
    let (killed, places) = killed(1);
    let (from, to) = places[4];
    let mut block = AlignedBuf::new(4096);
    killed.read_at(RING_START + from, &mut block).expect("reads");
    block[200] ^= 1;
    killed.write_at(RING_START + from, &block).expect("writes");
    for at in [to, to + 4096, to + (4 << 20), RING_BYTES - 4096] {
        let bad = RING_START + at;
        let rule = FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(bad..bad + 4096);
        let device = Arc::new(FaultyDevice::new(killed.snapshot(), 1, vec![rule]));
        if at == to {
            let before = device.stats().writes_count;
            let opened = try_open(&device).map(drop);
            let said = opened.expect_err("it may be rot").to_string();
            assert!(
                said.contains("what may be a later batch") && said.contains("open it for reading"),
                "{said}"
            );
            assert_eq!(device.stats().writes_count, before);
            let (store, why) = read_in_part(&device);
            assert!(why.contains("what may be a later batch"), "{why}");
            assert_eq!(lost(&store), [4]);
            let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
            let (store, _) = Store::open_to_check(vec![device.clone() as Arc<dyn Device>], options)
                .expect("opens to be checked");
            let found = store.check(&mut [].into_iter(), true).expect("check runs").problems;
            assert!(found.len() == 1 && found[0].kind.name() == "log-unreadable", "{found:?}");
            device.set_rules(vec![]);
        }
        let (store, report) = try_open(&device).unwrap_or_else(|e| panic!("byte {at} of the log: {e}"));
        assert_eq!((lost(&store), report.replay_ended_by), (vec![4], None), "byte {at} of the log");
        let lsn = put(&store, b"more", b"v");
        store.commit(lsn).expect("commits");
    }
}

// Goal: who writes opens no pool from an older superblock because the device fails to read the newest: what that does not need any more may
// have been overwritten. Method: a leaf moves with a checkpoint, its old place is given to data that is not logged, and the pool is
// killed; the device fails to read both slots of the newest superblock, always or once, or one of them.
#[test]
fn an_unreadable_superblock_may_be_the_newest() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    put(&store, b"k", b"v");
    store.checkpoint().expect("checkpoint");
    let root = root_of(&device);
    let leaf = root.trees.iter().find(|tree| tree.tree == TREE).expect("the tree").ptr.addr[0];
    put(&store, b"k", b"w");
    store.checkpoint().expect("checkpoint");
    let mut r = store.reserve(1, 1, 60).expect("room");
    let run = store.allocate(&mut r, 1, leaf).expect("reserved")[0];
    assert_eq!(run.addr, leaf, "the old place is given again");
    store.write_data(&[(run, block_data(9, 1))]).expect("writes");
    drop((r, store));
    let newest = superblock_of(&device).generation % 4;
    let slots = [newest, 4 + newest].map(|i| slot_offset(i, POOL_BYTES));
    let always = Trigger::From(1);
    for (bad, trigger) in
        [(&slots[..], always), (&slots, Trigger::Nth(1)), (&slots[..1], always), (&slots[1..], always)]
    {
        let what = format!("{bad:?} {trigger:?}");
        let rules = bad
            .iter()
            .map(|at| FaultRule::new(Operation::Read, trigger, Fault::Error).within(*at..at + 4096));
        let device = Arc::new(FaultyDevice::new(device.inner.snapshot(), 1, rules.collect()));
        let opened = try_open(&device).map(drop);
        let unknown = bad.len() == 2 && trigger == always;
        if unknown {
            let devices = || vec![device.clone() as Arc<dyn Device>];
            let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
            let (_, report) = Store::open(devices(), options).expect("it can be read");
            assert!(report.replay_ended_by.expect("what came last is missing").contains("newer superblock"));
            let (store, _) =
                Store::open_to_check(devices(), StoreOptions::default()).expect("it can be checked");
            let found = store.check(&mut std::iter::empty(), false).expect("it can be checked").problems;
            assert!(found.iter().any(|problem| problem.text.contains("newer superblock")), "{found:?}");
        }
        device.set_rules(vec![]);
        let (store, _) = try_open(&device).unwrap_or_else(|e| panic!("{what}, then without: {e}"));
        let value = store.get(TREE, b"k").unwrap_or_else(|e| panic!("{what}, then without: {e}"));
        assert_eq!(value.as_deref(), Some(&b"w"[..]), "{what}, then without");
        assert!(
            if unknown { matches!(opened, Err(EngineError::Refused(_))) } else { opened.is_ok() },
            "{what}"
        );
    }
}

// Goal: a page of the checkpoint that the device fails to read for a moment while the pool is opened is no damage to anybody; one that it never
// reads is the device's error to who writes, and costs who only reads what is behind it. Method: the root block, the page above all checksums
// or the bitmap, in one copy; the device fails to read it once or always, for who reads, writes and checks.
#[test]
fn a_page_that_fails_for_a_moment_is_read_again() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    let (run, _) = place(&store, b"data", 5).expect("places");
    store.close().expect("closes");
    drop(store);
    let root = root_of(&device);
    let pages = [
        ("root", superblock_of(&device).root),
        ("checksums", root.checksums.ptr),
        ("bitmap", root.bitmap.ptr),
    ];
    for (page, ptr) in pages {
        for trigger in [Trigger::Nth(1), Trigger::From(1)] {
            let what = format!("{page}, {trigger:?}");
            let from = DATA_START + ptr.addr[0].0;
            let rule =
                || vec![FaultRule::new(Operation::Read, trigger, Fault::Error).within(from..from + 4096)];
            let device = Arc::new(FaultyDevice::new(device.inner.snapshot(), 1, rule()));
            let devices = || vec![device.clone() as Arc<dyn Device>];
            let options = || StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
            let passes = trigger == Trigger::Nth(1);
            let opened = Store::open(devices(), options());
            if page == "root" && !passes {
                assert!(matches!(opened, Err(EngineError::Device(_))), "{what}, for reading");
            } else {
                let (store, _) = opened.unwrap_or_else(|e| panic!("{what}, for reading: {e}"));
                let data = store.read_data(run.addr, &mut AlignedBuf::new(4096));
                assert_eq!(data.is_ok(), passes || page == "bitmap", "{what}, for reading: {data:?}");
                if passes {
                    sound(&store, &[run]);
                }
            }
            device.set_rules(rule());
            if passes {
                let (store, _) = Store::open_to_check(devices(), options()).expect("opens to be checked");
                sound(&store, &[run]);
                drop(store);
                device.set_rules(rule());
            }
            let opened = try_open(&device).map(drop);
            match passes {
                true => opened.unwrap_or_else(|e| panic!("{what}, for writing: {e}")),
                false => assert!(matches!(opened, Err(EngineError::Device(_))), "{what}: {opened:?}"),
            }
        }
    }
}
