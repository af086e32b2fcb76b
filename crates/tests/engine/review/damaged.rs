//! Damage to the log, or to the newest superblock: nobody writes, and who only reads has what was there before it.

use super::*;
use varve_format::batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, batch_blocks, seal};

/// What a refusal to write says of reading.
const READABLE: &str = "; opened for reading only, the pool shows what can be had of it";

fn read_only(device: &Arc<impl Device>) -> Result<(Arc<Store>, RecoveryReport), EngineError> {
    let options =
        StoreOptions { read_only: true, cache_bytes: 1 << 20, background: false, ..StoreOptions::default() };
    Store::open(vec![device.clone() as Arc<dyn Device>], options)
}

/// What was there before the damage; nothing is written, and nobody who looks again takes it for a writer's work.
fn shown(device: &Arc<impl Device>, what: &str) -> (Arc<Store>, RecoveryReport, String) {
    let writes = device.stats().writes_count;
    let (store, mut report) = read_only(device).unwrap_or_else(|e| panic!("{what}: not for reading: {e}"));
    let why = report.replay_ended_by.take().unwrap_or_else(|| panic!("{what}: nothing is said"));
    assert!(!report.clean, "{what}");
    // A device that fails may have anything by now.
    assert!(
        store.is_unchanged().is_ok_and(|unchanged| unchanged) || why.contains("cannot be read:"),
        "{what}"
    );
    assert_eq!(device.stats().writes_count, writes, "{what}: something was written");
    (store, report, why)
}

fn refused(device: &Arc<impl Device>, what: &str) -> String {
    match try_open(device) {
        Err(EngineError::Refused(words)) => words,
        other => panic!("{what}: for writing: {:?}", other.map(|opened| opened.1)),
    }
}

fn copied(device: &Hooked) -> Arc<Hooked> {
    let copy = Hooked::new();
    let mut block = AlignedBuf::new(1 << 20);
    for at in (0..POOL_BYTES).step_by(block.len()) {
        device.inner.read_at(at, &mut block).expect("reads");
        copy.inner.write_at(at, &block).expect("writes");
    }
    copy
}

fn flip(device: &Hooked, at: u64, byte: usize) {
    let mut block = AlignedBuf::new(4096);
    device.inner.read_at(at, &mut block).expect("reads");
    block[byte] ^= 1;
    device.inner.write_at(at, &block).expect("writes");
}

/// Where the tree of names has its only node, or the first copy of it.
fn leaf_of(root: &RootBlock) -> PoolAddr {
    root.trees.iter().find(|tree| tree.tree == TREE).expect("the tree").ptr.addr[0]
}

/// Spoils both copies of the newest superblock.
fn spoil_newest(device: &Hooked) {
    let newest = superblock_of(device).generation % 4;
    [newest, 4 + newest].iter().for_each(|i| flip(device, slot_offset(*i, POOL_BYTES), 100));
}

/// A pool that was killed with eight acknowledged batches, where each lies in the ring, and its position. The fourth has five blocks.
fn killed() -> (Arc<Hooked>, Vec<(u64, Lsn)>) {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let (mut places, mut at) = (vec![], 0);
    for i in 0..8u8 {
        let mut tx = Transaction::new();
        tx.put(TREE, &[i], b"v");
        (0..if i == 3 { 18 } else { 0 }).for_each(|n| tx.put(TREE, &[i, n], &[i; 1000]));
        let before = store.stats().journal_bytes;
        let lsn = store.apply(tx, None).expect("applies");
        store.commit(lsn).expect("commits");
        places.push((at, lsn));
        at += store.stats().journal_bytes - before;
    }
    (device, places)
}

// Goal: a damaged batch that others say was flushed is no crash: nobody writes, and who only reads has exactly what was logged before it, and is
// told. Method: of a pool that was killed each batch is spoilt in turn, in its header or behind it, or zeroed; the last one is as good as torn.
// Then the same where an opening has made all of them durable, so that the last one is damage, too.
#[test]
fn a_damaged_log_is_read_up_to_there() {
    for cut in [false, true] {
        let (device, places) = killed();
        if cut {
            drop(open(&device));
        }
        for (i, (at, _)) in places.iter().enumerate() {
            for spoilt in [Some((0, 40)), Some((0, 130)), Some((if i == 3 { 3 } else { 0 }, 200)), None] {
                let what = format!("cut {cut}, batch {i}, {spoilt:?}");
                let device = copied(&device);
                match spoilt {
                    Some((block, byte)) => flip(&device, RING_START + at + block * 4096, byte),
                    None => device.inner.write_at(RING_START + at, &AlignedBuf::new(4096)).expect("writes"),
                }
                if i == 7 && !cut {
                    let (_, report) = read_only(&device).expect("a crash");
                    assert_eq!((report.batches_replayed, report.replay_ended_by), (7, None), "{what}");
                    continue;
                }
                let words = refused(&device, &what);
                let n = i + 1;
                let by = match cut {
                    true => "an earlier opening has made the log durable up to batch 8".to_owned(),
                    false => format!("batch {} says that it had been flushed", n + 1),
                };
                let damage = format!("batch {n} of the log is damaged, and {by}");
                let expected = format!(
                    "{damage}: this is not a crash but damage to the device. Opening would lose acknowledged changes from \
                     batch {n} on; restore the device from its mirror or a backup{READABLE}"
                );
                assert_eq!(words, expected, "{what}");
                let (store, report, why) = shown(&device, &what);
                assert_eq!(why, damage, "{what}");
                let left = 8 - i as u64;
                assert_eq!((report.batches_replayed, report.batches_left), (i as u64, left), "{what}");
                assert_eq!(report.end, if i == 0 { Lsn(0) } else { places[i - 1].1 }, "{what}");
                let found = |key: u8| store.get(TREE, &[key]).expect("reads").is_some();
                assert_eq!((0..8u8).filter(|key| found(*key)).count(), i, "{what}");
                assert!((0..i as u8).all(found), "{what}");
                // It is as before for the next, too.
                assert_eq!(refused(&device, &what), expected, "{what}, again");
            }
        }
    }
}

// Goal: what was logged before the damage is not cut because its data has been freed behind it and overwritten; that data is an error to who
// reads it. Method: a batch places a block, the next is lost, two more free the block and give it to other data.
#[test]
fn what_was_flushed_before_damage_is_not_cut() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let (run, placed) = place(&store, b"first", 5).expect("places");
    store.commit(placed).expect("commits");
    let lost = put(&store, b"lost", b"v");
    store.commit(lost).expect("commits");
    let mut tx = Transaction::new();
    tx.free(run);
    tx.delete(EXTENTS, b"first");
    let freed = store.apply(tx, None).expect("applies");
    store.commit(freed).expect("commits");
    let mut r = store.reserve(1, 1, 60).expect("room");
    let again = store.allocate(&mut r, 1, run.addr).expect("reserved")[0];
    assert_eq!(again, run, "the place is given again");
    store.write_data(&[(again, block_data(6, 1))]).expect("writes");
    drop((r, store));
    flip(&device, RING_START + 4096, 200);
    let (store, report, _) = shown(&device, "reading");
    assert_eq!((report.end, report.batches_cut), (placed, 0));
    assert!(store.get(EXTENTS, b"first").expect("reads").is_some());
    let mut block = AlignedBuf::new(4096);
    let read = store.read_data(run.addr, &mut block);
    assert!(matches!(read, Err(EngineError::Checksum { .. })), "{read:?}");
}

// Goal: on an older superblock nobody writes; who only reads sees what the log says behind its checkpoint, as far as what that needs has not
// been overwritten, never anything else, and is told. Method: keys and a checkpoint, more keys and another one, and batches of which the last
// places data where the first checkpoint had a leaf, or does not; both copies of the newest superblock are lost; then the older root block, too.
#[test]
fn an_older_superblock_shows_what_is_left() {
    for reused in [false, true] {
        let what = format!("reused {reused}");
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Single);
        let store = open(&device);
        put(&store, b"k", b"v");
        store.checkpoint().expect("checkpoint");
        let older = superblock_of(&device);
        let root = root_of(&device);
        let leaf = leaf_of(&root);
        let commit = |lsn| store.commit(lsn).expect("commits");
        commit(put(&store, b"l", b"v"));
        store.checkpoint().expect("checkpoint");
        let mut orphan = Transaction::new();
        orphan.put(TreeId::ORPHANS, b"o", b"v");
        let before = store.apply(orphan, None).expect("applies");
        commit(before);
        let mut r = store.reserve(1, 1, 60).expect("room");
        if reused {
            let run = store.allocate(&mut r, 1, leaf).expect("reserved")[0];
            assert_eq!(run.addr, leaf, "the old place is given again");
            let mut tx = Transaction::new();
            tx.place_riding(run, block_data(9, 1));
            tx.put(EXTENTS, b"d", b"v");
            commit(store.apply(tx, Some(&mut r)).expect("applies"));
        }
        let last = put(&store, b"m", b"v");
        commit(last);
        drop((r, store));
        spoil_newest(&device);
        let generation = older.generation;
        assert_eq!(superblock_of(&device).generation, generation);
        let words = refused(&device, &what);
        let damage = format!(
            "the log names superblock generation {} and the newest that can be read is {generation}",
            generation + 1
        );
        let expected = format!(
            "{damage}: superblocks have been damaged after they were written; opening an older one would lose acknowledged changes. \
             Restore the device from its mirror or a backup"
        );
        assert_eq!(words, expected.clone() + READABLE, "{what}");
        let (store, report, why) = shown(&device, &what);
        assert!(why.starts_with(&damage), "{what}: {why}");
        match reused {
            false => {
                assert_eq!((why, report.end), (damage, last), "{what}");
                for key in [b"k", b"l", b"m"] {
                    assert!(store.get(TREE, key).expect("reads").is_some(), "{what}");
                }
                assert!(store.get(TreeId::ORPHANS, b"o").expect("reads").is_some(), "{what}");
            }
            // The first change of the lost leaf ends it.
            true => {
                assert_eq!((report.batches_replayed, report.batches_left), (0, 4), "{what}: {why}");
                assert!(store.get(TREE, b"k").expect_err("it is lost").is_damage(), "{what}");
                assert!(store.get(TreeId::ORPHANS, b"o").expect("reads").is_none(), "{what}");
            }
        }
        let at = DATA_START + older.root.addr[0].0;
        device.inner.write_at(at, &AlignedBuf::new(4096)).expect("writes");
        let nothing = read_only(&device).map(|opened| opened.1);
        assert!(matches!(&nothing, Err(EngineError::Refused(why)) if *why == expected), "{nothing:?}");
    }
}

// Goal: who reads from an older superblock is shown what is before a batch that makes no sense to it, and is not refused. Method: nodes have
// two copies; a later batch gives the place of one, of a leaf of the older checkpoint, to data; the newest superblock is lost, or cannot be read.
#[test]
fn a_batch_that_makes_no_sense_to_an_older_superblock_ends_the_log() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"k", b"v");
    store.checkpoint().expect("checkpoint");
    let leaf = leaf_of(&root_of(&device));
    let changed = put(&store, b"k", b"w");
    store.checkpoint().expect("checkpoint");
    let mut r = store.reserve(1, 1, 60).expect("room");
    let run = store.allocate(&mut r, 1, leaf).expect("reserved")[0];
    assert_eq!(run.addr, leaf, "the old place is given again");
    let mut tx = Transaction::new();
    tx.place_riding(run, block_data(9, 1));
    tx.put(EXTENTS, b"d", b"v");
    let lsn = store.apply(tx, Some(&mut r)).expect("applies");
    store.commit(lsn).expect("commits");
    drop((r, store));
    let newest = superblock_of(&device).generation % 4;
    let rules = [newest, 4 + newest].map(|i| {
        let at = slot_offset(i, POOL_BYTES);
        FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(at..at + 4096)
    });
    let unread = Arc::new(FaultyDevice::new(device.inner.snapshot(), 1, rules.to_vec()));
    spoil_newest(&device);
    let ends = |(store, report, why): (Arc<Store>, RecoveryReport, String)| {
        assert_eq!(report.end, changed, "{why}");
        assert!(why.contains("names superblock generation") && why.contains("blocks used twice"), "{why}");
        assert_eq!(store.get(TREE, b"k").expect("reads").as_deref(), Some(&b"w"[..]), "{why}");
        assert!(store.get(EXTENTS, b"d").expect("reads").is_none(), "{why}");
    };
    ends(shown(&device, "lost"));
    ends(shown(&unread, "unread"));
    refused(&device, "lost");
    refused(&unread, "unread");
}

// Goal: forged batches behind damage lead who reads to nothing but what is before it, soon. Method: a whole batch that says the greatest
// numbers there are; a ring full of one that says that it had been flushed; and one full of headers of the longest batches.
#[test]
fn forged_batches_behind_damage_are_not_read() {
    for case in 0..3 {
        let (device, places) = killed();
        let superblock = superblock_of(&device);
        let payload_bytes = if case == 2 { BATCH_BYTES_MAX - BATCH_HEADER_BYTES } else { 0 };
        let header = BatchHeader {
            pool_id: superblock.pool_id,
            epoch: superblock.epoch,
            sequence: if case == 0 { u64::MAX } else { 9 },
            previous: 0,
            superblock_generation: superblock.generation,
            flushed: u64::MAX,
            first: Lsn(places[1].1.0 + 1),
            last: Lsn(u64::MAX),
            transactions: u32::MAX,
            payload_bytes: payload_bytes as u32,
        };
        let mut batch = vec![0; batch_blocks(payload_bytes) * 4096];
        seal(&header, &mut batch);
        batch.truncate(4096);
        if case == 2 {
            // No checksum is right.
            batch[200] = 1;
        }
        flip(&device, RING_START + 2 * 4096, 200);
        let from = if case == 0 { RING_BYTES - 4096 } else { 3 * 4096 };
        for at in (from..RING_BYTES).step_by(4096) {
            device.inner.write_at(RING_START + at, &AlignedBuf::from_slice(&batch)).expect("writes");
        }
        let before = device.stats().read_bytes;
        let opened = device.clone();
        let read = within("opening", move || read_only(&opened));
        let bytes = device.stats().read_bytes - before;
        assert!(bytes <= 8 * RING_BYTES, "case {case}: {bytes} bytes were read");
        let (store, report) = read.unwrap_or_else(|e| panic!("case {case}: {e}"));
        let why = report.replay_ended_by.unwrap_or_else(|| panic!("case {case}: nothing is said"));
        assert_eq!(why.contains("full of batches"), case == 2, "case {case}: {why}");
        assert_eq!((report.batches_replayed, report.end), (2, places[1].1), "case {case}");
        assert!(report.batches_left <= RING_BYTES / 4096, "case {case}: {why}");
        assert!(store.get(TREE, &[1]).expect("reads").is_some(), "case {case}");
        refused(&device, "writing");
    }
}

/// What a check finds, with data.
pub fn checked(device: Arc<dyn Device>, runs: &[Run]) -> Vec<varve_engine::Problem> {
    report(device, runs).problems
}

pub fn report(device: Arc<dyn Device>, runs: &[Run]) -> varve_engine::CheckReport {
    let (store, _) =
        Store::open_to_check(vec![device], StoreOptions::default()).expect("opens to be checked");
    store.check(&mut runs.iter().copied(), true).expect("check runs")
}

// Goal: one read that fails makes a check find nothing, wherever it is. Method: a pool of a tree of some height and data, everything in one copy or
// in two, closed or killed; the device fails one read of the check after the other.
#[test]
fn a_check_asks_twice() {
    for (profile, closed) in [(Profile::Single, true), (Profile::Single, false), (Profile::Dup, true)] {
        let device = Hooked::new();
        format(&device, profile, profile);
        let store = open(&device);
        for n in 0..40u64 {
            put(&store, &n.to_be_bytes(), &[7; 1000]);
        }
        let (run, _) = place(&store, b"data", 5).expect("places");
        store.checkpoint().expect("checkpoint");
        let lsn = put(&store, b"k", b"v");
        store.commit(lsn).expect("commits");
        if closed {
            store.close().expect("closes");
        }
        drop(store);
        for n in 1.. {
            let rule = FaultRule::new(Operation::Read, Trigger::Nth(n), Fault::Error);
            let device = Arc::new(FaultyDevice::new(device.inner.snapshot(), 1, vec![rule]));
            let found = checked(device.clone(), &[run]);
            assert!(found.is_empty(), "{profile:?}, closed {closed}, read {n} fails: {found:?}");
            if device.injected_count() == 0 {
                assert!(n > 20, "{n} reads");
                break;
            }
        }
    }
}

// Goal: a check says that the newest superblock stands in one slot where no crash explains it, and only there. Method: of a pool that was killed one
// slot of the newest is spoilt, zeroed or given an older one, before its log names it or after; or it cannot be read.
#[test]
fn a_newest_superblock_in_one_slot_is_told() {
    for named in [true, false] {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let read = |at: u64| {
            let mut slot = AlignedBuf::new(64 << 10);
            device.inner.read_at(at, &mut slot).expect("reads");
            slot
        };
        let mut slots = vec![];
        for n in 0..5u8 {
            put(&store, &[n], b"v");
            store.checkpoint().expect("checkpoint");
            slots.push(read(slot_offset(superblock_of(&device).generation % 4, POOL_BYTES)));
        }
        let older = &slots[0];
        if named {
            let lsn = put(&store, b"l", b"v");
            store.commit(lsn).expect("commits");
        }
        drop(store);
        let found = report(device.clone(), &[]);
        assert!(found.problems.is_empty() && found.warnings.is_empty(), "{found:?}");
        let newest = superblock_of(&device).generation % 4;
        assert_eq!(Superblock::decode(older).expect("a superblock").generation % 4, newest);
        for slot in [newest, 4 + newest] {
            let at = slot_offset(slot, POOL_BYTES);
            let mut torn = read(at);
            torn[100] ^= 1;
            let nothing = AlignedBuf::new(64 << 10);
            let spoilt =
                [("torn", Some(&torn)), ("empty", Some(&nothing)), ("older", Some(older)), ("unread", None)];
            for (what, spoilt) in spoilt {
                let is_older = what == "older";
                let what = format!("named {named}, slot {slot} {what}");
                let mut rules = vec![];
                let device = device.inner.snapshot();
                match spoilt {
                    Some(bytes) => device.write_at(at, bytes).expect("writes"),
                    None => rules.push(
                        FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(at..at + 4096),
                    ),
                }
                let varve_engine::CheckReport { problems: found, warnings, .. } =
                    report(Arc::new(FaultyDevice::new(device, 1, rules)), &[]);
                let kinds: Vec<_> = found.iter().map(|problem| problem.kind.name()).collect();
                if !named && spoilt.is_some() {
                    assert_eq!(found, [], "{what}: a crash explains it");
                    assert!(
                        warnings.len() == 1 && warnings[0].contains("one slot only"),
                        "{what}: {warnings:?}"
                    );
                    continue;
                }
                assert_eq!(warnings, [""; 0], "{what}");
                let (kind, word) = match is_older {
                    true => ("superblocks-differ", format!("slots {newest} ")),
                    false => ("superblock-damaged", format!("slot {slot} ")),
                };
                assert_eq!(kinds, [kind], "{what}: {found:?}");
                assert!(found[0].text.contains(&word), "{what}: {found:?}");
            }
        }
    }
}
