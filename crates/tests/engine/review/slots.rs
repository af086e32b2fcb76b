//! The slots of the newest superblock, when a pool is opened for writing.

use super::*;

/// A pool that was closed, and where the slots of its superblock are.
fn closed() -> (Arc<Hooked>, [u64; 2]) {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    store.close().expect("closes");
    drop(store);
    let slots = slots_of(superblock_of(&device).generation);
    (device, slots)
}

/// Where the slots of this generation are.
fn slots_of(generation: u64) -> [u64; 2] {
    let first = generation % 4;
    [first, first + 4].map(|slot| slot_offset(slot, POOL_BYTES))
}

// Goal: a slot of the newest superblock is not written over because the device fails to read it for a moment, nor while the other one cannot be
// read either; one that is torn, or cannot be read twice, is, behind a flush, if the other one holds the superblock, or has held it when the
// pool was found. Method: a pool that was closed, both slots whole or one of them torn; the device fails to read one or both, once or from some
// time on, while the pool is opened for writing; what is written where, and after how many flushes.
#[test]
fn a_slot_that_cannot_be_read_is_left_alone() {
    let (device, slots) = closed();
    let mut again = 0;
    for torn in [None, Some(0), Some(1)] {
        let closed = device.inner.snapshot();
        if let Some(torn) = torn {
            let mut block = AlignedBuf::new(4096);
            closed.read_at(slots[torn], &mut block).expect("reads");
            block[100..].fill(0);
            closed.write_at(slots[torn], &block).expect("writes");
        }
        // A torn one beside one that can never be read is as good as none: then an older superblock counts.
        let triggers = (1..=5).flat_map(|n| [Trigger::Nth(n), Trigger::From(n + 1)]);
        for (bad, trigger) in [&slots[..1], &slots[1..], &slots]
            .into_iter()
            .flat_map(|bad| triggers.clone().map(move |t| (bad, t)))
        {
            let what = format!("slot {torn:?} torn, {bad:?} {trigger:?}");
            let hooked = Hooked::new();
            hooked.copy_from(&closed);
            let flushes = Arc::new(AtomicU64::new(0));
            let written = Arc::new(Mutex::new(Vec::new()));
            let (count, seen, log) = (flushes.clone(), flushes.clone(), written.clone());
            hooked.on_flush(move |n| {
                count.store(n, SeqCst);
                true
            });
            hooked.on_request(move |at, write| {
                if write {
                    log.lock().expect("lock").push((at, seen.load(SeqCst)));
                }
            });
            let rules = bad
                .iter()
                .map(|at| FaultRule::new(Operation::Read, trigger, Fault::Error).within(*at..*at + 4096));
            let faulty = Arc::new(FaultyDevice::new(hooked.clone(), 1, rules.collect()));
            let opened = try_open(&faulty).map(|(store, _)| drop(store));
            let written = written.lock().expect("lock").clone();
            let passes = matches!(trigger, Trigger::Nth(_));
            assert!(opened.is_ok() || !passes, "{what}: {opened:?}");
            match torn {
                None if passes || bad.len() == 2 => assert!(written.is_empty(), "{what}: {written:?}"),
                None => {
                    let are_good = written.iter().all(|(at, flushes)| *at == bad[0] && *flushes > 0);
                    assert!(are_good && written.len() <= 1, "{what}: {written:?}");
                    again += written.len();
                }
                Some(torn) => assert!(
                    matches!(&written[..], [(at, flushes)] if *at == slots[torn] && *flushes > 0),
                    "{what}: {written:?}"
                ),
            }
        }
    }
    assert!(again > 0, "a slot that can never be read is not written again");
}

// Goal: of the newest superblock, which a crash left in one of its slots, none stays in one because the device fails to read it there once it
// was found: who opens for writing has it in both, or does not open. Method: a pool that was killed, or closed, whose other slot is torn or holds an
// older one; the device fails to read the first from some time on, and perhaps the second always; what is written where, and what a check finds
// when the device is sound again and a checkpoint has followed.
#[test]
fn a_superblock_in_one_slot_gets_its_second() {
    for (closed, good, older, both) in (0..16).map(|n| (n & 1 > 0, n >> 1 & 1, n & 4 > 0, n & 8 > 0)) {
        let what = format!("closed {closed}, found in {good}, the other older {older}, unread {both}");
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let (mut before, mut slot) = (vec![], AlignedBuf::new(64 << 10));
        for n in 0..5u8 {
            put(&store, &[n], b"v");
            if n < 4 { store.checkpoint() } else { store.close() }.expect("checkpoint");
            let [first, _] = slots_of(superblock_of(&device).generation);
            device.inner.read_at(first, &mut slot).expect("reads");
            before.push(slot.to_vec());
        }
        drop(store);
        if !closed {
            let store = open(&device);
            let lsn = put(&store, b"l", b"v");
            store.commit(lsn).expect("commits");
            drop(store);
        }
        let newest = superblock_of(&device).generation;
        let slots = slots_of(newest);
        let spoilt = match older {
            true => AlignedBuf::from_slice(&before[0]),
            false => AlignedBuf::new(64 << 10),
        };
        device.inner.write_at(slots[1 - good], &spoilt).expect("writes");
        let unread = |slot: usize, from| {
            FaultRule::new(Operation::Read, Trigger::From(from), Fault::Error)
                .within(slots[slot]..slots[slot] + 4096)
        };
        let mut rules = vec![unread(good, 2)];
        rules.extend(both.then(|| unread(1 - good, 1)));
        let device = Arc::new(FaultyDevice::new(device.inner.snapshot(), 1, rules));
        let writes = device.stats().writes_count;
        let opened = try_open(&device);
        if both {
            let said = opened.map(drop).expect_err("neither can be read").to_string();
            assert!(said.contains("injected") && said.contains("Try again"), "{what}: {said}");
            assert_eq!(device.stats().writes_count, writes, "{what}");
            device.set_rules(vec![]);
            drop(open(&device));
        } else {
            drop(opened.unwrap_or_else(|e| panic!("{what}: {e}")));
            device.set_rules(vec![]);
        }
        let holds = |slot: &u64| {
            let mut found = AlignedBuf::new(64 << 10);
            device.read_at(*slot, &mut found).expect("reads");
            Superblock::decode(&found).is_ok_and(|found| found.generation == newest)
        };
        assert!(slots.iter().all(holds), "{what}: generation {newest} is not in both slots");
        let found = damaged::report(Arc::new(FaultyDevice::new(device.inner().snapshot(), 1, vec![])), &[]);
        assert!(found.problems.is_empty() && found.warnings.is_empty(), "{what}: {found:?}");
        let store = open(&device);
        put(&store, b"m", b"v");
        store.checkpoint().expect("checkpoint");
        sound(&store, &[]);
    }
}

// Goal: who opens a pool for writing does not go on where neither slot of its superblock can be relied on. Method: a pool that was closed, whose
// other slot is torn; the one that was found cannot be read any more, and the other one not be written: it is opened when it can be. Then one
// slot or both are written over by somebody else when they are looked at for the second time: nothing is written.
#[test]
fn no_pool_is_written_to_without_a_superblock() {
    let (device, slots) = closed();
    for good in 0..2 {
        let torn = device.inner.snapshot();
        torn.write_at(slots[1 - good], &AlignedBuf::new(4096)).expect("writes");
        let rule = |op, trigger, at| FaultRule::new(op, trigger, Fault::Error).within(at..at + 4096);
        let rules = vec![
            rule(Operation::Read, Trigger::From(2), slots[good]),
            rule(Operation::Write, Trigger::From(1), slots[1 - good]),
        ];
        let device = Arc::new(FaultyDevice::new(torn, 1, rules));
        let writes = device.stats().writes_count;
        let said = try_open(&device).map(drop).expect_err("neither slot holds it").to_string();
        assert!(said.contains("cannot be written again") && said.contains("injected"), "{good}: {said}");
        assert!(device.stats().writes_count <= writes + 1, "{good}");
        device.set_rules(vec![]);
        drop(open(&device));
    }
    for over in [&slots[..1], &slots[1..], &slots] {
        let hooked = Hooked::new();
        hooked.copy_from(&device.inner);
        let (looks, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (looked, wrote, first) = (looks.clone(), written.clone(), slots[0]);
        let (medium, over) = (Arc::downgrade(&hooked), over.to_vec());
        hooked.on_request(move |at, write| {
            wrote.fetch_add(u64::from(write), SeqCst);
            if !write && at == first && looked.fetch_add(1, SeqCst) == 1 {
                let hooked = medium.upgrade().expect("it is in use");
                over.iter()
                    .for_each(|at| hooked.inner.write_at(*at, &AlignedBuf::new(4096)).expect("writes"));
            }
        });
        let said = try_open(&hooked).map(drop).expect_err("somebody else writes there").to_string();
        assert!(said.contains("somebody else writes there"), "{said}");
        assert_eq!((written.load(SeqCst), looks.load(SeqCst)), (0, 2));
    }
}
