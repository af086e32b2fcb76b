//! The store through its door, over simulated devices: what was committed survives any crash, what was not is a
//! prefix, derived state agrees with a full scan, and space is given back exactly.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_device::{AlignedBuf, Device, MemoryDevice};
use varve_engine::{
    Data, EngineError, FormatOptions, Lsn, PoolAddr, Profile, Reservation, Run, Store, StoreOptions,
    Transaction, TreeId,
};
use varve_format::superblock::{
    INCOMPATIBLE_KNOWN, LONE_VERSIONS, SHORT_EXTENTS, SLOT_BYTES, SLOTS_PER_END, Superblock, slot_offset,
};
use varve_sim::{CrashPolicy, RecordingDevice, Rng};

const TREE: TreeId = TreeId::NAMES;
const EXTENTS: TreeId = TreeId::EXTENTS;
const POOL_BYTES: u64 = 64 << 20;

fn format_options(metadata: Profile) -> FormatOptions {
    FormatOptions {
        data: Profile::Single,
        metadata,
        pool_id: *b"0123456789abcdef",
        hash_seed: 7,
        force: false,
    }
}

fn options() -> StoreOptions {
    StoreOptions { read_only: false, cache_bytes: 2 << 20, background: false, ..StoreOptions::default() }
}

fn open(device: &Arc<RecordingDevice>) -> Result<(Arc<Store>, varve_engine::RecoveryReport), EngineError> {
    Store::open(vec![device.clone() as Arc<dyn Device>], options())
}

/// What the trees should hold: keys of small values, and blocks of data by number.
#[derive(Clone, Default, PartialEq, Debug)]
struct State {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Key to run and fill byte.
    blocks: BTreeMap<Vec<u8>, (Run, u8)>,
}

fn block_data(fill: u8, blocks: u32) -> Data {
    let mut buf = AlignedBuf::new(blocks as usize * 4096);
    buf.fill(fill);
    Data { len: buf.len(), buf: Arc::new(buf), offset: 0 }
}

fn value_of(run: Run, fill: u8) -> Vec<u8> {
    let mut v = run.addr.0.to_le_bytes().to_vec();
    v.extend_from_slice(&run.blocks.to_le_bytes());
    v.push(fill);
    v
}

/// One random transaction on store and model. `None`: refused for lack of space, nothing changed.
fn step(store: &Store, state: &mut State, rng: &mut Rng) -> Option<Lsn> {
    let mut tx = Transaction::new();
    let mut next = state.clone();
    let mut reservation: Option<Reservation> = None;
    let key = |rng: &mut Rng| {
        let n = rng.below(400);
        let mut k = vec![b'k'; (n % 7) as usize + 1];
        k.extend_from_slice(&n.to_be_bytes());
        k
    };
    for _ in 0..1 + rng.below(4) {
        let k = key(rng);
        if rng.chance(0.6) {
            let max = if rng.chance(0.1) { 1900 } else { 60 };
            let v = vec![rng.below(256) as u8; rng.below(max) as usize];
            tx.put(TREE, &k, &v);
            next.entries.insert(k, v);
        } else {
            tx.delete(TREE, &k);
            next.entries.remove(&k);
        }
    }
    if rng.chance(0.5) {
        let k = key(rng);
        if let Some((run, _)) = next.blocks.remove(&k) {
            tx.free(run);
            tx.delete(EXTENTS, &k);
            tx.privileged();
        } else {
            let max = if rng.chance(0.05) { 300 } else { 6 };
            let blocks = 1 + rng.below(max) as u32;
            let mut r = match store.reserve(u64::from(blocks), 1, 60) {
                Ok(r) => r,
                Err(EngineError::NoSpace) => return None,
                Err(e) => panic!("{e}"),
            };
            let runs = store.allocate(&mut r, blocks, PoolAddr::NULL).expect("reserved");
            if runs.len() > 1 {
                store.deallocate(&mut r, &runs);
                return None;
            }
            let (run, fill) = (runs[0], 1 + rng.below(255) as u8);
            let data = block_data(fill, blocks);
            if rng.chance(0.7) {
                tx.place_riding(run, data);
            } else {
                store.write_data(&[(run, data.clone())]).expect("writes");
                tx.place(run, &data);
            }
            tx.put(EXTENTS, &k, &value_of(run, fill));
            next.blocks.insert(k, (run, fill));
            reservation = Some(r);
        }
    }
    tx.claim_id(store.new_id());
    match store.apply(tx, reservation.as_mut()) {
        Ok(lsn) => {
            *state = next;
            Some(lsn)
        }
        Err(EngineError::NoSpace) => None,
        Err(e) => panic!("{e}"),
    }
}

/// Trims part of the pool, or all of it.
fn trim_some(store: &Store, rng: &mut Rng) {
    let start = rng.below(2) * rng.below(POOL_BYTES);
    let minimum = rng.below(3) * 8192;
    let trimmed = store.trim(start..start + POOL_BYTES, minimum, &mut |_| true).expect("trims");
    assert!(trimmed.is_supported);
}

fn read_state(store: &Store) -> State {
    let view = store.view();
    let mut state = State::default();
    view.scan(TREE, &[], &mut |k, v| {
        state.entries.insert(k.to_vec(), v.to_vec());
        true
    })
    .expect("scan");
    view.scan(EXTENTS, &[], &mut |k, v| {
        let addr = PoolAddr(u64::from_le_bytes(v[..8].try_into().expect("8 bytes")));
        let blocks = u32::from_le_bytes(v[8..12].try_into().expect("4 bytes"));
        state.blocks.insert(k.to_vec(), (Run { addr, blocks }, v[12]));
        true
    })
    .expect("scan");
    for (run, fill) in state.blocks.values() {
        let mut buf = AlignedBuf::new(run.blocks as usize * 4096);
        store.read_data(run.addr, &mut buf).expect("verified read");
        assert!(buf.iter().all(|b| b == fill), "wrong bytes at {run:?}");
    }
    state
}

fn check(store: &Store, state: &State, what: &str) {
    let report = store.check(&mut state.blocks.values().map(|b| b.0), true).expect("check runs");
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}

/// Runs a random life, crashes it at random instants, and checks every recovery.
fn life(seed: u64, steps: u64, crashes: u64, metadata: Profile) -> u64 {
    let mut rng = Rng::new(seed);
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    Store::format(&[device.clone() as Arc<dyn Device>], &format_options(metadata)).expect("format");
    let formatted = device.events();
    let (store, _) = open(&device).expect("opens");
    let mut state = State::default();
    // Expected state by position; acknowledged position by number of events.
    let mut states = vec![(store.position(), state.clone())];
    let mut acknowledged = vec![(formatted, store.position())];
    for _ in 0..steps {
        if let Some(lsn) = step(&store, &mut state, &mut rng) {
            states.push((lsn, state.clone()));
        }
        if rng.chance(0.15) {
            let upto = store.position();
            store.commit(upto).expect("commit");
            acknowledged.push((device.events(), upto));
        }
        if rng.chance(0.02) {
            store.checkpoint().expect("checkpoint");
            acknowledged.push((device.events(), store.position()));
        }
        if rng.chance(0.03) {
            store.maintain().expect("maintain");
        }
        if rng.chance(0.05) {
            trim_some(&store, &mut rng);
        }
    }
    assert_eq!(read_state(&store), state, "seed {seed}");
    check(&store, &state, &format!("seed {seed}, live"));
    drop(store);
    let mut done = 0;
    for n in 0..crashes {
        let mut rng = rng.fork("crash").fork(&n.to_string());
        let at = formatted + rng.below((device.events() - formatted) as u64 + 1) as usize;
        let image = device.crash_image(varve_sim::CrashPoint(at), &mut rng, CrashPolicy::Seeded);
        let acked =
            acknowledged.iter().rev().find(|(events, _)| *events <= at).expect("format is acknowledged").1;
        let after = Arc::new(RecordingDevice::from_image(image));
        let what = format!("seed {seed} crash {n} at event {at}");
        let (store, report) = open(&after).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(report.end >= acked, "{what}: recovered to {:?}, acknowledged {acked:?}", report.end);
        let want = &states.iter().rev().find(|(lsn, _)| *lsn <= report.end).expect("a state").1;
        assert_eq!(&read_state(&store), want, "{what}");
        check(&store, want, &what);
        // Crash again during or after the recovery, with some work done.
        let served = after.events();
        let mut state = want.clone();
        let mut later = vec![(report.end, want.clone())];
        for _ in 0..10 {
            if let Some(lsn) = step(&store, &mut state, &mut rng) {
                later.push((lsn, state.clone()));
            }
            if rng.chance(0.1) {
                trim_some(&store, &mut rng);
            }
        }
        drop(store);
        let again = rng.below(after.events() as u64 + 1) as usize;
        let image = after.crash_image(varve_sim::CrashPoint(again), &mut rng, CrashPolicy::Seeded);
        let second = Arc::new(RecordingDevice::from_image(image));
        let (store, report2) = open(&second).unwrap_or_else(|e| panic!("{what}, again at {again}: {e}"));
        let want = if again >= served {
            assert!(report2.end >= report.end, "{what}, again at {again}: served state lost");
            &later.iter().rev().find(|(lsn, _)| *lsn <= report2.end).expect("a state").1
        } else {
            assert!(report2.end >= acked, "{what}, again at {again}");
            &states.iter().rev().find(|(lsn, _)| *lsn <= report2.end).expect("a state").1
        };
        assert_eq!(&read_state(&store), want, "{what}, again at {again} (served {served})");
        done += 2;
    }
    done
}

// Goal: promise 1 for the engine alone. Method: random lives by seed, crash images at random instants with writes
// dropped, reordered and torn, a second crash during or after recovery; states compared with a model.
// VARVE_SOAK_SEED and VARVE_SOAK_SEEDS choose the first seed and how many.
#[test]
fn any_crash_recovers_to_a_prefix() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default);
    let first = number("VARVE_SOAK_SEED", 0);
    let mut crashes = 0;
    for seed in first..first + number("VARVE_SOAK_SEEDS", 6) {
        crashes += life(seed, 300, 40, if seed % 2 == 0 { Profile::Dup } else { Profile::Single });
    }
    println!("{crashes} crashes");
}

// Goal: a pool filled to its last block loses nothing, refuses truly, and everything fits again after deleting.
// Method: fill with blocks until refused, twice; both rounds must hold within 1% the same amount.
#[test]
fn fills_to_the_last_block_and_empties_again() {
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    Store::format(&[device.clone() as Arc<dyn Device>], &format_options(Profile::Dup)).expect("format");
    let (store, _) = open(&device).expect("opens");
    let mut counts = Vec::new();
    for round in 0..3u8 {
        let mut state = State::default();
        let free = store.space().free_bytes;
        for n in 0u64.. {
            let mut r = match store.reserve(1, 1, 60) {
                Ok(r) => r,
                Err(EngineError::NoSpace) => break,
                Err(e) => panic!("{e}"),
            };
            let run = store.allocate(&mut r, 1, PoolAddr::NULL).expect("reserved")[0];
            let data = block_data(round + 1, 1);
            let mut tx = Transaction::new();
            tx.privileged();
            tx.place_riding(run, data);
            tx.put(EXTENTS, &n.to_be_bytes(), &value_of(run, round + 1));
            store.apply(tx, Some(&mut r)).expect("accepted writes have their space");
            state.blocks.insert(n.to_be_bytes().to_vec(), (run, round + 1));
        }
        counts.push(state.blocks.len());
        assert!(
            state.blocks.len() as u64 * 4096 >= free * 90 / 100,
            "only {} of {free} bytes",
            state.blocks.len() * 4096
        );
        store.commit(store.position()).expect("commit");
        assert_eq!(read_state(&store), state);
        check(&store, &state, "full");
        for (k, (run, _)) in state.blocks.iter() {
            let mut tx = Transaction::new();
            tx.privileged();
            tx.free(*run);
            tx.delete(EXTENTS, k);
            store.apply(tx, None).expect("deleting always works");
        }
        store.checkpoint().expect("checkpoint");
        check(&store, &State::default(), "empty again");
    }
    assert!(counts.iter().all(|c| c.abs_diff(counts[0]) * 100 <= counts[0]), "{counts:?}");
}

// Goal: a clean close needs no recovery; opening and closing changes nothing. Method: close, open, compare.
#[test]
fn closes_cleanly() {
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    Store::format(&[device.clone() as Arc<dyn Device>], &format_options(Profile::Dup)).expect("format");
    let (store, report) = open(&device).expect("opens");
    assert!(report.clean);
    let mut state = State::default();
    let mut rng = Rng::new(1);
    for _ in 0..500 {
        step(&store, &mut state, &mut rng);
    }
    store.close().expect("closes");
    drop(store);
    let (store, report) = open(&device).expect("opens");
    assert!(report.clean && report.batches_replayed == 0);
    assert_eq!(read_state(&store), state);
    check(&store, &state, "reopened");
}

// Goal: who has opened a pool for reading notices that somebody has written to it since, and nothing else. Method: a pool that
// was closed and one that was not, looked at again beside other readers; then under a writer who only recovers it, who dies
// with something in the log, and who closes it.
#[test]
fn a_reader_notices_a_writer() {
    for closed in [true, false] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(POOL_BYTES));
        Store::format(std::slice::from_ref(&device), &format_options(Profile::Dup)).expect("format");
        let write = |key: &[u8], close: bool| {
            let (store, _) = Store::open(vec![device.clone()], options()).expect("opens");
            let mut tx = Transaction::new();
            tx.put(TREE, key, b"value");
            let lsn = store.apply(tx, None).expect("applies");
            store.commit(lsn).expect("commits");
            if close {
                store.close().expect("closes");
            }
        };
        write(b"first", closed);
        let looking = || StoreOptions { read_only: true, ..options() };
        let read = || Store::open(vec![device.clone()], looking()).expect("opens to be read").0;
        let changed = |reader: &Store| !reader.is_unchanged().expect("it can be read");
        let first = read();
        for _ in 0..3 {
            let other = read();
            assert!(!changed(&first) && !changed(&other));
        }
        if !closed {
            drop(Store::open(vec![device.clone()], options()).expect("recovers"));
            assert!(changed(&first), "it has been recovered");
        }
        let second = read();
        assert!(!changed(&second));
        write(b"second", false);
        assert!(changed(&second), "the log has grown");
        let third = read();
        write(b"third", true);
        assert!(changed(&second) && changed(&third), "a checkpoint has been written");
        let fourth = read();
        let writes = device.stats().writes_count;
        assert!(!changed(&fourth));
        assert_eq!(device.stats().writes_count, writes, "looking changes nothing");
        assert_eq!(fourth.get(TREE, b"third").expect("reads").as_deref(), Some(&b"value"[..]));
    }
}

// Goal: one flush a lone commit, and a batch plus its data in the bytes. Method: count on the device.
#[test]
fn a_lone_commit_costs_one_flush() {
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    Store::format(&[device.clone() as Arc<dyn Device>], &format_options(Profile::Dup)).expect("format");
    let (store, _) = open(&device).expect("opens");
    let before = device.stats();
    for n in 0..100u64 {
        let mut r = store.reserve(3, 1, 60).expect("room");
        let run = store.allocate(&mut r, 3, PoolAddr::NULL).expect("reserved")[0];
        let mut tx = Transaction::new();
        tx.place_riding(run, block_data(1, 3));
        tx.put(EXTENTS, &n.to_be_bytes(), &value_of(run, 1));
        let lsn = store.apply(tx, Some(&mut r)).expect("applies");
        store.commit(lsn).expect("commits");
    }
    let after = device.stats();
    assert_eq!(after.flushes_count - before.flushes_count, 100);
    assert_eq!(after.write_bytes - before.write_bytes, 100 * 4 * 4096);
}

// Goal: nodes that every checkpoint writes anew stay in memory. Method: a tree larger than the cache, some keys far apart
// changed again and again with a checkpoint each time; after the first rounds hardly anything is read.
#[test]
fn what_is_changed_again_and_again_stays_in_memory() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(POOL_BYTES));
    Store::format(std::slice::from_ref(&device), &format_options(Profile::Single)).expect("format");
    let (store, _) = Store::open(vec![device.clone()], options()).expect("opens");
    let value = [7; 100];
    for n in 0u64..30_000 {
        let mut tx = Transaction::new();
        tx.put(TREE, &n.to_be_bytes(), &value);
        store.apply(tx, None).expect("applies");
    }
    store.checkpoint().expect("checkpoint");
    let mut read_before = 0;
    for round in 0u64..12 {
        for n in (0u64..30_000).step_by(500) {
            let mut tx = Transaction::new();
            tx.put(TREE, &n.to_be_bytes(), &round.to_be_bytes());
            store.apply(tx, None).expect("applies");
        }
        store.checkpoint().expect("checkpoint");
        if round == 3 {
            read_before = device.stats().reads_count;
        }
    }
    let reads = device.stats().reads_count - read_before;
    // Some find their part of the cache full: where an address belongs is chance.
    assert!(reads < 8 * 60 / 4, "{reads} reads for 8 rounds of 60 keys");
}

// Goal: who has an older picture reads what it shows, though the nodes of it have left the cache when they were changed, until he
// lets go of it, whatever checkpoints do meanwhile. Method: rounds that change all keys, a picture kept of each, those there are
// read after the changes and again after the checkpoint; reads of the device counted.
#[test]
fn older_pictures_are_read_from_the_disk() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(POOL_BYTES));
    Store::format(std::slice::from_ref(&device), &format_options(Profile::Single)).expect("format");
    let (store, _) = Store::open(vec![device.clone()], options()).expect("opens");
    let keys = 4_000u64;
    let mut pictures = Vec::new();
    for round in 0u64..5 {
        for n in 0..keys {
            let mut tx = Transaction::new();
            tx.put(TREE, &n.to_be_bytes(), &round.to_be_bytes());
            store.apply(tx, None).expect("applies");
        }
        let reads = device.stats().reads_count;
        for after_checkpoint in [false, true] {
            if after_checkpoint {
                store.checkpoint().expect("checkpoint");
            }
            for (of_round, picture) in (0u64..).zip(&pictures) {
                let picture: &varve_engine::View = picture;
                let mut next = 0u64;
                picture
                    .scan(TREE, &[], &mut |key, value| {
                        assert_eq!((key, value), (&next.to_be_bytes()[..], &of_round.to_be_bytes()[..]));
                        next += 1;
                        true
                    })
                    .expect("reads");
                assert_eq!(next, keys, "round {of_round} seen in round {round}");
            }
        }
        assert_eq!(device.stats().reads_count > reads, round > 0, "round {round}");
        pictures.push(store.view());
    }
    drop(pictures);
    store.checkpoint().expect("checkpoint");
}

/// Every valid superblock of `device`, changed.
fn edit_superblocks(device: &dyn Device, edit: impl Fn(&mut Superblock)) {
    let mut changed = 0;
    for index in 0..2 * SLOTS_PER_END {
        let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
        let at = slot_offset(index, POOL_BYTES);
        device.read_at(at, &mut slot).expect("a slot can be read");
        if let Ok(mut superblock) = Superblock::decode(&slot) {
            edit(&mut superblock);
            device
                .write_at(at, &AlignedBuf::from_slice(&superblock.encode()))
                .expect("a slot can be written");
            changed += 1;
        }
    }
    assert!(changed > 0, "a pool has superblocks");
}

// Goal: a pool of before the short forms of extents, of before the only version of a family needed no record, or of before
// keyframes says that it needs a newer program once it has been opened for writing, and not by being looked at. Method: all
// features, the later two or the last taken out of its superblocks, opened both ways, closed or not.
#[test]
fn an_older_pool_takes_up_the_feature_before_it_is_written() {
    let before_keyframes = SHORT_EXTENTS | LONE_VERSIONS;
    let olds = [0, SHORT_EXTENTS, before_keyframes].into_iter();
    for (closed, old) in olds.flat_map(|old| [(false, old), (true, old)]) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(POOL_BYTES));
        Store::format(std::slice::from_ref(&device), &format_options(Profile::Single)).expect("format");
        let (store, _) = Store::open(vec![device.clone()], options()).expect("opens");
        let mut tx = Transaction::new();
        tx.put(TREE, b"key", b"value");
        let lsn = store.apply(tx, None).expect("applies");
        store.commit(lsn).expect("commits");
        if closed {
            store.close().expect("closes");
        }
        drop(store);
        edit_superblocks(&*device, |superblock| superblock.incompatible = old);
        let features = || {
            let newest = (0..2 * SLOTS_PER_END).filter_map(|index| {
                let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
                device.read_at(slot_offset(index, POOL_BYTES), &mut slot).expect("a slot can be read");
                Superblock::decode(&slot).ok()
            });
            newest.max_by_key(|superblock| superblock.generation).expect("a superblock").incompatible
        };
        let looking = StoreOptions { read_only: true, ..options() };
        drop(Store::open(vec![device.clone()], looking).expect("opens to be read"));
        assert_eq!(features(), old, "looking changes nothing");
        let (store, _) = Store::open(vec![device.clone()], options()).expect("opens");
        assert_eq!(features(), INCOMPATIBLE_KNOWN);
        assert_eq!(store.get(TREE, b"key").expect("reads").as_deref(), Some(&b"value"[..]));
        drop(store);
        let (store, _) = Store::open(vec![device.clone()], options()).expect("opens again after a crash");
        assert_eq!(store.get(TREE, b"key").expect("reads").as_deref(), Some(&b"value"[..]));
    }
}
