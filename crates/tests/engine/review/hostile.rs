//! Bytes that no store has written: errors, never panics, in bounded time.

use super::*;

// Goal: blocks named twice in one transaction are refused before anything changes. Method: free and place twice.
#[test]
fn blocks_named_twice_are_refused() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let (run, _) = place(&store, b"a", 1).expect("places");
    let mut tx = Transaction::new();
    tx.free(run);
    tx.free(run);
    store.apply(tx, None).expect_err("freed twice");
    let mut r = store.reserve(4, 2, 60).expect("room");
    let other = store.allocate(&mut r, 2, PoolAddr::NULL).expect("reserved")[0];
    let mut tx = Transaction::new();
    tx.place(Run { addr: other.addr, blocks: 2 }, &block_data(2, 2));
    tx.place(Run { addr: other.addr, blocks: 1 }, &block_data(2, 1));
    store.apply(tx, Some(&mut r)).expect_err("placed twice");
    store.deallocate(&mut r, &[other]);
    drop(r);
    sound(&store, &[run]);
}

// Goal: a block of a tree is not given back as if it were data, whoever names it: the next checkpoint would give it back again, and the
// log would say so for ever. Method: an extent that names a node is freed, as a damaged entry would have it; then the pool goes on,
// through checkpoints and openings.
#[test]
fn a_node_is_not_freed_as_data() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let mut store = open(&device);
    let (data, _) = place(&store, b"data", 1).expect("places");
    for round in 0..3u8 {
        put(&store, b"k", &[round]);
        store.checkpoint().expect("checkpoint");
        let run = node(&device);
        let mut tx = Transaction::new();
        tx.free(run);
        tx.put(TREE, b"k", b"x");
        store.apply(tx, None).expect_err("it is a node");
        let mut tx = Transaction::new();
        tx.share(run);
        store.apply(tx, None).expect_err("nor can it be shared");
        put(&store, b"other", &[round]);
        store.checkpoint().expect("checkpoint");
        sound(&store, &[data]);
        if round == 1 {
            store.close().expect("closes");
            drop(store);
            store = open(&device);
        }
    }
}

/// A node of the newest checkpoint.
fn node(device: &Hooked) -> Run {
    let root = root_of(device);
    let tree = root.trees.iter().find(|t| t.tree == TREE).expect("the names tree");
    Run { addr: tree.ptr.addr[0], blocks: 1 }
}

/// A pool whose superblock and root block say what `change` makes of them, with `blocks` written by pool address.
fn forged(
    change: impl FnOnce(&mut varve_format::superblock::Superblock, &mut RootBlock),
    blocks: &[(PoolAddr, Vec<u8>)],
) -> Arc<Hooked> {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    put(&store, b"k", b"v");
    store.close().expect("closes");
    drop(store);
    let mut superblock = superblock_of(&device);
    let at = DATA_START + superblock.root.addr[0].0;
    let mut root = root_of(&device);
    superblock.generation += 1;
    change(&mut superblock, &mut root);
    let bytes = root.encode();
    superblock.root.checksum = varve_format::block_checksum(&bytes);
    device.inner.write_at(at, &AlignedBuf::from_slice(&bytes)).expect("writes");
    for (addr, bytes) in blocks {
        device.inner.write_at(DATA_START + addr.0, &AlignedBuf::from_slice(bytes)).expect("writes");
    }
    let i = superblock.generation % 4;
    let bytes = AlignedBuf::from_slice(&superblock.encode());
    for i in [i, 4 + i] {
        device.inner.write_at(slot_offset(i, POOL_BYTES), &bytes).expect("writes");
    }
    device
}

// Goal: a node or a page of checksums that is lost takes along what is behind it, and nothing else, for who opens the pool for reading;
// for writing it is not opened. Method: the root of a tree of some height is spoilt, or the page above all checksums; the other tree
// and, in the first case, data can be read.
#[test]
fn what_is_lost_keeps_nobody_from_reading_the_rest() {
    for tree_is_lost in [true, false] {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Single);
        let store = open(&device);
        for n in 0..400u64 {
            put(&store, &n.to_be_bytes(), &[7; 1000]);
        }
        let (run, _) = place(&store, b"data", 5).expect("places");
        let mut tx = Transaction::new();
        tx.put(TreeId::ORPHANS, b"key", b"value");
        store.apply(tx, None).expect("applies");
        store.close().expect("closes");
        drop(store);
        let mut block = AlignedBuf::new(4096);
        let root = root_of(&device);
        let names = root.trees.iter().find(|tree| tree.tree == TREE).expect("the tree");
        assert!(names.height > 1, "it has a node above others");
        let lost = if tree_is_lost { names.ptr } else { root.checksums.ptr };
        device.inner.write_at(DATA_START + lost.addr[0].0, &AlignedBuf::new(4096)).expect("writes");
        try_open(&device).map(drop).expect_err("not for writing");
        let options = StoreOptions {
            read_only: true,
            cache_bytes: 1 << 20,
            background: false,
            ..StoreOptions::default()
        };
        let (store, _) = Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("for reading");
        assert_eq!(store.get(TreeId::ORPHANS, b"key").expect("reads").as_deref(), Some(&b"value"[..]));
        let name = store.get(TREE, &7u64.to_be_bytes());
        let data = store.read_data(run.addr, &mut block);
        match tree_is_lost {
            true => {
                assert!(name.expect_err("it is lost").is_damage());
                data.expect("its checksum is there");
                assert!(block.iter().all(|byte| *byte == 5));
            }
            false => {
                assert_eq!(name.expect("reads").as_deref(), Some(&[7; 1000][..]));
                assert!(data.expect_err("nobody knows its checksum").is_damage());
            }
        }
    }
}

// Goal: a log that changes what is lost keeps nobody from reading what was there before; for writing the pool is not opened. Method: the
// log has three transactions, of which the second changes what is spoilt: behind the root of a tree, in a leaf, or in a page of
// checksums.
#[test]
fn a_log_that_changes_what_is_lost_is_read_up_to_there() {
    use varve_format::codec::Reader;
    use varve_format::root::NodePtr;
    for lost in ["root", "leaf", "checksums"] {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Single);
        let store = open(&device);
        for n in 0..400u64 {
            put(&store, &n.to_be_bytes(), &[7; 1000]);
        }
        place(&store, b"first", 5).expect("places");
        store.checkpoint().expect("checkpoint");
        let orphan = |key: &[u8]| {
            let mut tx = Transaction::new();
            tx.put(TreeId::ORPHANS, key, b"value");
            store.apply(tx, None).expect("applies")
        };
        let before = orphan(b"before");
        store.commit(before).expect("commits");
        match lost {
            "checksums" => drop(place(&store, b"data", 5).expect("places")),
            _ => drop(put(&store, &0u64.to_be_bytes(), b"changed")),
        }
        let behind = orphan(b"behind");
        store.commit(behind).expect("commits");
        drop(store);
        let mut block = AlignedBuf::new(4096);
        let root = root_of(&device);
        let names = root.trees.iter().find(|tree| tree.tree == TREE).expect("the tree");
        assert!(names.height > 1, "it has a node above others");
        let (mut ptr, levels) = match lost {
            "root" => (names.ptr, 0),
            "leaf" => (names.ptr, names.height - 1),
            _ => (root.checksums.ptr, 1),
        };
        for _ in 0..levels {
            device.inner.read_at(DATA_START + ptr.addr[0].0, &mut block).expect("reads");
            let first = match lost {
                "leaf" => varve_format::node::decode(&block).expect("a node").entries[0].value,
                _ => block.iter().position(|byte| *byte != 0).expect("a page") / 64 * 64,
            };
            ptr = NodePtr::decode(&mut Reader::new(&block[first..])).expect("a pointer");
        }
        device.inner.write_at(DATA_START + ptr.addr[0].0, &AlignedBuf::new(4096)).expect("writes");
        let refused = try_open(&device).err().expect("not for writing");
        let words = refused.to_string();
        assert!(matches!(refused, EngineError::Corrupt { .. }) && words.contains("block at 0x"), "{words}");
        let met = if lost == "root" { "trees were looked through" } else { "log was replayed" };
        for said in [met, "opened for reading only", "a check says what is lost"] {
            assert!(words.contains(said), "{lost}: {words}");
        }
        let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
        let (store, report) = Store::open(vec![device as Arc<dyn Device>], options).expect("for reading");
        let found = |key: &[u8]| store.get(TreeId::ORPHANS, key).expect("reads").is_some();
        assert!(found(b"before") && !found(b"behind"), "{lost}");
        assert_eq!((report.end, report.transactions_replayed), (before, 1), "{lost}");
        assert_eq!((report.batches_replayed, report.batches_left), (1, 1));
        assert!(report.replay_ended_by.is_some());
        if lost != "root" {
            let last = store.get(TREE, &399u64.to_be_bytes()).expect("reads");
            assert_eq!(last.as_deref(), Some(&[7; 1000][..]));
        }
    }
}

// Goal: a tree whose nodes are shared many times over is refused in time proportional to the pool. Method: interior
// nodes of 50 pointers that all name the same child, ten levels of them.
#[test]
fn a_tree_that_explodes_is_refused() {
    use varve_format::node::{NodeHeader, encode};
    use varve_format::root::{NodePtr, TreeRoot};
    let pool_tag = u64::from_le_bytes(*b"01234567");
    let mut blocks = Vec::new();
    let mut below: Option<NodePtr> = None;
    for level in 0..10u8 {
        let header = NodeHeader { tree: TREE, level, birth: 1, pool_tag };
        let mut block = vec![0; 4096];
        match below {
            None => encode(header, &[], [(&b"k"[..], &b"v"[..])].into_iter(), &mut block),
            Some(ptr) => {
                let mut value = Vec::new();
                ptr.encode(&mut value);
                let keys: Vec<Vec<u8>> = (0..50u8).map(|i| if i == 0 { vec![] } else { vec![i] }).collect();
                encode(header, &[], keys.iter().map(|k| (&k[..], &value[..])), &mut block);
            }
        }
        let addr = PoolAddr::from_block(9000 + u64::from(level));
        let checksum = varve_format::block_checksum(&block);
        below = Some(NodePtr { addr: [addr, PoolAddr::NULL], birth: 1, checksum });
        blocks.push((addr, block));
    }
    let ptr = below.expect("ten levels");
    let device = forged(
        |_, root| {
            let tree = root.trees.iter_mut().find(|t| t.tree == TREE).expect("the names tree");
            *tree = TreeRoot { tree: TREE, height: 10, ptr };
        },
        &blocks,
    );
    let e = within("opening", move || try_open(&device).err()).expect("refused");
    assert!(matches!(e, EngineError::Refused(_) | EngineError::Corrupt { .. }), "{e}");
}

// Goal: numbers in a superblock that make no sense give an error. Method: one at a time, opened and used.
#[test]
fn senseless_superblocks_are_refused() {
    type Change = fn(&mut varve_format::superblock::Superblock);
    let changes: [(&str, Change); 6] = [
        ("sequence", |s| s.log_sequence = 0),
        ("start", |s| s.log_start = u64::MAX - 4095),
        ("generation", |s| s.generation = u64::MAX),
        ("epoch", |s| s.epoch = u64::MAX),
        ("copies", |s| s.metadata.copies = 3),
        ("no copies", |s| s.metadata.copies = 0),
    ];
    for (what, change) in changes {
        let device = forged(|s, _| change(s), &[]);
        match within(what, move || try_open(&device)) {
            Err(EngineError::Refused(_) | EngineError::Corrupt { .. }) => {}
            Err(e) => panic!("{what}: {e}"),
            Ok(_) => panic!("{what}: opened"),
        }
    }
}

// Goal: who does not know a feature that only writers must know does not write: the pool opens for reading and is refused for writing,
// unchanged. Method: a superblock with such a feature.
#[test]
fn features_that_writers_must_know_are_heeded() {
    let device = forged(|s, _| s.read_only_compatible = 1 << 7, &[]);
    let written = device.stats().write_bytes;
    let why = try_open(&device).map(drop).expect_err("refused").to_string();
    assert!(why.contains("0x80") && why.contains("read"), "{why}");
    assert_eq!(device.stats().write_bytes, written);
    let options =
        StoreOptions { read_only: true, cache_bytes: 1 << 20, background: false, ..StoreOptions::default() };
    let (store, _) =
        Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("opens for reading");
    assert_eq!(store.get(TREE, b"k").expect("reads").as_deref(), Some(&b"v"[..]));
}

/// A pool whose log goes on with one whole batch: a transaction with the steps that `steps` writes, who is told how many blocks
/// the pool has and says how many steps there are. `is_flushed`: the batch says so of itself.
fn with_batch(is_flushed: bool, steps: impl FnOnce(&mut Vec<u8>, u64) -> u32) -> Arc<Hooked> {
    use varve_format::batch::{begin_transaction, end_transaction};
    let mut found = None;
    let device = forged(|superblock, _| found = Some(superblock.clone()), &[]);
    let end = found.expect("the superblock is shown");
    let position = Lsn(end.position.0 + 1);
    let mut payload = Vec::new();
    let at = begin_transaction(&mut payload, position);
    let count = steps(&mut payload, end.total_blocks);
    end_transaction(&mut payload, at, count);
    append_batch(&device, &end, is_flushed, 1, &payload);
    device
}

/// Has the log of a pool that was closed as `end` says go on with one whole batch of so many transactions. `is_flushed`: it says so of itself.
pub(super) fn append_batch(
    device: &Hooked,
    end: &Superblock,
    is_flushed: bool,
    transactions: u32,
    payload: &[u8],
) {
    let header = varve_format::batch::BatchHeader {
        pool_id: end.pool_id,
        epoch: end.epoch,
        sequence: end.log_sequence,
        previous: end.log_previous,
        superblock_generation: 1,
        flushed: end.log_sequence - u64::from(!is_flushed),
        first: Lsn(end.position.0 + 1),
        last: Lsn(end.position.0 + u64::from(transactions)),
        transactions,
        payload_bytes: payload.len() as u32,
    };
    write_batch(device, &header, payload, end.log_start);
}

/// Writes a batch at a position of the log.
pub(super) fn write_batch(
    device: &Hooked,
    header: &varve_format::batch::BatchHeader,
    payload: &[u8],
    position: u64,
) {
    use varve_format::batch::{BATCH_HEADER_BYTES, batch_blocks, seal};
    let mut batch = vec![0; batch_blocks(payload.len()) * 4096];
    batch[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + payload.len()].copy_from_slice(payload);
    seal(header, &mut batch);
    let at = position % RING_BYTES;
    assert!(at + batch.len() as u64 <= RING_BYTES, "the batch does not wrap");
    device.inner.write_at(RING_START + at, &AlignedBuf::from_slice(&batch)).expect("writes");
}

// Goal: a log that frees the same blocks over and over is refused for a cost in proportion to the log. Method: a whole batch, as long
// as one can be, of steps that each free nearly all of the pool, in a part of the log whose data is looked at.
#[test]
fn a_log_of_endless_frees_is_refused_soon() {
    use varve_format::batch::{BATCH_BYTES_MAX, TRANSACTION_HEADER_BYTES, free_op};
    let mut ops = 0;
    let device = with_batch(false, |payload, total| {
        let all = Run { addr: PoolAddr::from_block(1), blocks: total as u32 - 1 };
        while payload.len() + TRANSACTION_HEADER_BYTES + 64 < BATCH_BYTES_MAX - (64 << 10) {
            free_op(payload, all);
            ops += 1;
        }
        ops
    });
    let begun = Instant::now();
    let result = within("opening", move || try_open(&device));
    // Block by block it took 100 s, here, and as much longer as a pool is larger.
    assert!(begun.elapsed() < PATIENCE / 4, "{ops} steps took {:?}", begun.elapsed());
    assert!(matches!(result, Err(EngineError::Corrupt { .. })), "{:?}", result.map(|r| r.1));
}

// Goal: a log whose records make no sense gives an error. Method: a well-formed batch that frees a tree node, one that
// places a block twice, one that places what is in use.
#[test]
fn senseless_logs_are_refused() {
    use varve_format::batch::{
        BATCH_HEADER_BYTES, BatchHeader, batch_blocks, begin_transaction, end_transaction, free_op, place_op,
        seal,
    };
    let node = |device: &Hooked| {
        (1..14000u64)
            .find(|b| {
                let mut block = AlignedBuf::new(4096);
                device.inner.read_at(DATA_START + b * 4096, &mut block).expect("reads");
                block[..4] == 0x444e_5656u32.to_le_bytes()
            })
            .map(|b| Run { addr: PoolAddr::from_block(b), blocks: 1 })
            .expect("a node")
    };
    for case in 0..4 {
        let mut place_at = (0, 0, 0, 0);
        let device =
            forged(|s, _| place_at = (s.log_start, s.log_sequence, u64::from(s.log_previous), s.epoch), &[]);
        let (start, sequence, previous, epoch) = place_at;
        let (node, unused) = (node(&device), Run { addr: PoolAddr::from_block(12000), blocks: 1 });
        let mut payload = Vec::new();
        let at = begin_transaction(&mut payload, Lsn(2));
        match case {
            0 => free_op(&mut payload, node),
            1 => {
                free_op(&mut payload, node);
                free_op(&mut payload, node);
            }
            2 => {
                place_op(&mut payload, unused, &[0]);
                place_op(&mut payload, unused, &[0]);
            }
            _ => place_op(&mut payload, node, &[0]),
        }
        end_transaction(&mut payload, at, if case == 1 || case == 2 { 2 } else { 1 });
        let header = BatchHeader {
            pool_id: *b"0123456789abcdef",
            epoch,
            sequence,
            previous: previous as u32,
            superblock_generation: 1,
            flushed: sequence,
            first: Lsn(2),
            last: Lsn(2),
            transactions: 1,
            payload_bytes: payload.len() as u32,
        };
        let mut batch = vec![0; batch_blocks(payload.len()) * 4096];
        batch[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
        seal(&header, &mut batch);
        device
            .inner
            .write_at(RING_START + start % RING_BYTES, &AlignedBuf::from_slice(&batch))
            .expect("writes");
        let result = within("opening", move || try_open(&device));
        assert!(
            matches!(result, Err(EngineError::Corrupt { .. } | EngineError::Refused(_))),
            "case {case}: {:?}",
            result.map(|r| r.1)
        );
    }
}

// Goal: a log full of forged batches is refused for a cost in proportion to the log. Method: every block of the ring is
// the header of a batch as long as batches can be, which names a newer superblock; it is refused by the bound on the bytes
// that are looked at, and those read from the device are counted.
#[test]
fn a_log_of_overlapping_batches_is_refused_soon() {
    use varve_format::batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, batch_blocks, seal};
    let device = forged(|_, _| (), &[]);
    let payload_bytes = BATCH_BYTES_MAX - BATCH_HEADER_BYTES;
    let header = BatchHeader {
        pool_id: *b"0123456789abcdef",
        epoch: 1,
        sequence: 9,
        previous: 0,
        superblock_generation: 1000,
        flushed: 9,
        first: Lsn(2),
        last: Lsn(2),
        transactions: 1,
        payload_bytes: payload_bytes as u32,
    };
    let mut batch = vec![0; batch_blocks(payload_bytes) * 4096];
    seal(&header, &mut batch);
    for at in (0..RING_BYTES).step_by(4096) {
        let mut block = AlignedBuf::from_slice(&batch[..4096]);
        // No checksum is right.
        block[200] = 1;
        device.inner.write_at(RING_START + at, &block).expect("writes");
    }
    let (opened, before) = (device.clone(), device.stats().read_bytes);
    let result = within("opening", move || try_open(&opened)).map(|r| r.1);
    // These words come from the bound on what is looked at, and from nowhere else.
    assert!(
        matches!(&result, Err(EngineError::Refused(why)) if why.contains("full of batches")),
        "{result:?}"
    );
    let read = device.stats().read_bytes - before;
    assert!(read <= 4 * RING_BYTES, "{read} bytes were read of a log of {RING_BYTES}");
}

// Goal: numbers of the log that nothing could follow are refused. Method: an id floor at the end of all numbers, in a
// batch that is whole.
#[test]
fn an_id_floor_beyond_all_numbers_is_refused() {
    let device = with_batch(true, |payload, _| {
        varve_format::batch::id_floor_op(payload, u64::MAX);
        1
    });
    let result = try_open(&device);
    assert!(matches!(result, Err(EngineError::Corrupt { .. })), "{:?}", result.map(|r| r.1));
}

// Goal: what is put into a pool keeps it from nothing, though it looks like the log's own: the pool opens after a crash and after a
// clean end, and has it. Method: values that begin a block of the log, with the header of a batch that contradicts the superblock, too long
// to be looked at twice; and one that would verify.
#[test]
fn values_that_look_like_batches() {
    use varve_format::batch::{BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, batch_blocks, seal};
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let mut header = BatchHeader {
        pool_id: *b"0123456789abcdef",
        epoch: 1,
        sequence: 9,
        previous: 0,
        superblock_generation: u64::MAX,
        flushed: 9,
        first: Lsn(2),
        last: Lsn(2),
        transactions: 1,
        payload_bytes: (BATCH_BYTES_MAX - BATCH_HEADER_BYTES) as u32,
    };
    let mut batch = vec![0; batch_blocks(header.payload_bytes as usize) * 4096];
    seal(&header, &mut batch);
    // Its block is followed by the zeros that end a batch.
    header.payload_bytes = 0;
    let mut whole = vec![0; 4096];
    seal(&header, &mut whole);
    for clean in [false, true] {
        let store = open(&device);
        for value in
            [&batch[..BATCH_HEADER_BYTES], &batch[..BATCH_HEADER_BYTES], &whole[..BATCH_HEADER_BYTES]]
        {
            let mut tx = Transaction::new();
            for key in [b"a", b"b", b"c"] {
                tx.put(TREE, key, &[1; 1304]);
            }
            // 128 of the batch's header, 16 of the transaction's, three times 10 and 1304, and 10: a block.
            tx.put(TREE, b"d", value);
            let lsn = store.apply(tx, None).expect("applies");
            store.commit(lsn).expect("commits");
        }
        if clean {
            store.close().expect("closes");
        }
        drop(store);
        let opened = device.clone();
        let result = within("opening", move || try_open(&opened));
        let (store, _) = result.unwrap_or_else(|error| panic!("clean: {clean}: {error}"));
        let found = store.get(TREE, b"d").expect("reads");
        assert_eq!(found.as_deref(), Some(&whole[..BATCH_HEADER_BYTES]));
    }
}

// Goal: a table of chunks that lie over each other, over the log, between blocks, or that are not as many as copies is refused before
// anything is made of it. Method: each.
#[test]
fn chunks_that_cannot_be_are_refused() {
    type Change = fn(&mut Vec<varve_format::superblock::Stripe>);
    let changes: [(&str, Change); 5] = [
        ("as many stripes", |stripes| stripes.push(stripes[0])),
        ("where the log is", |stripes| stripes[0].offset = RING_START),
        ("between blocks", |stripes| stripes[0].offset -= 8),
        ("over each other", |_| ()),
        ("other copies than the pool", |stripes| {
            let mut second = stripes[0];
            second.offset += 16 << 20;
            stripes.push(second);
        }),
    ];
    for (what, change) in changes {
        let device = forged(
            |superblock, _| {
                change(&mut superblock.chunks[0].stripes);
                if what.contains("copies than") {
                    superblock.chunks[0].len_bytes = 16 << 20;
                    superblock.chunks[0].profile.copies = 2;
                    superblock.total_blocks = (16 << 20) / 4096;
                }
                if what == "over each other" {
                    let mut second = superblock.chunks[0].clone();
                    second.start += second.len_bytes;
                    superblock.total_blocks *= 2;
                    superblock.chunks.push(second);
                }
            },
            &[],
        );
        let result = within("opening", move || try_open(&device)).map(|r| r.1);
        assert!(
            matches!(&result, Err(EngineError::Refused(why)) if why.contains(what)),
            "{what}: {result:?}"
        );
    }
}

// Goal: a log of batches in which nothing is, each whole, keeps nobody from writing. Method: as many of them as the ring has blocks, as the
// end of an idle log is written, then a change; or half as many, then one that is too large for the rest.
#[test]
fn a_log_full_of_nothing_is_written_over() {
    use varve_format::batch::{BatchHeader, seal};
    for (blocks, values) in [(RING_BYTES / 4096, 1), (RING_BYTES / 2 / 4096, 1800u64)] {
        let mut found = None;
        let device = forged(|superblock, _| found = Some(superblock.clone()), &[]);
        let end = found.expect("the superblock is shown");
        let mut previous = end.log_previous;
        for i in 0..blocks {
            let header = BatchHeader {
                pool_id: end.pool_id,
                epoch: end.epoch,
                sequence: end.log_sequence + i,
                previous,
                superblock_generation: 1,
                flushed: end.log_sequence + i - 1,
                first: Lsn(end.position.0 + 1),
                last: end.position,
                transactions: 0,
                payload_bytes: 0,
            };
            let mut batch = vec![0; 4096];
            previous = seal(&header, &mut batch);
            let at = (end.log_start + i * 4096) % RING_BYTES;
            device.inner.write_at(RING_START + at, &AlignedBuf::from_slice(&batch)).expect("writes");
        }
        within("a change", move || {
            let store = open(&device);
            let mut tx = Transaction::new();
            (0..values).for_each(|n| tx.put(TREE, &n.to_be_bytes(), &[1; 1900]));
            store.apply(tx, None).expect("applies");
            store.close().expect("closes");
            let last = open(&device).get(TREE, &(values - 1).to_be_bytes()).expect("reads");
            assert_eq!(last.as_deref(), Some(&[1; 1900][..]));
        });
    }
}

// Goal: a leaf without entries, which no store leaves, is refused by whoever reads it. Method: a tree that is one.
#[test]
fn an_empty_leaf_is_refused() {
    use varve_format::node::{NodeHeader, encode};
    let pool_tag = u64::from_le_bytes(*b"01234567");
    let mut block = vec![0; 4096];
    let none: [(&[u8], &[u8]); 0] = [];
    encode(NodeHeader { tree: TREE, level: 0, birth: 1, pool_tag }, &[], none.into_iter(), &mut block);
    let mut addr = PoolAddr::NULL;
    let device = forged(
        |_, root| {
            let tree = root.trees.iter_mut().find(|t| t.tree == TREE).expect("the names tree");
            assert_eq!(tree.height, 1);
            tree.ptr.checksum = varve_format::block_checksum(&block);
            addr = tree.ptr.addr[0];
        },
        &[],
    );
    device.inner.write_at(DATA_START + addr.0, &AlignedBuf::from_slice(&block)).expect("writes");
    let read = within("opening", move || try_open(&device).and_then(|(store, _)| store.get(TREE, b"k")));
    let refused = read.expect_err("it leads nowhere").to_string();
    assert!(refused.contains("leaf without an entry"), "{refused}");
}

// Goal: without a bitmap, a log that frees the same blocks over and over is refused for a cost in proportion to the log. Method: a whole
// batch, as long as one can be, of transactions that each free most of the pool, in a part of the log that is taken for flushed; the
// pool is opened for reading.
#[test]
fn endless_frees_without_a_bitmap_are_refused_soon() {
    use varve_format::batch::{BATCH_BYTES_MAX, begin_transaction, end_transaction, free_op};
    let mut found = None;
    let device = forged(
        |superblock, root| {
            // Its checksum is another one.
            root.bitmap.ptr.checksum ^= 1;
            found = Some(superblock.clone());
        },
        &[],
    );
    let end = found.expect("the superblock is shown");
    let mut payload = Vec::new();
    let mut count = 0;
    while payload.len() + 128 < BATCH_BYTES_MAX - (64 << 10) {
        count += 1;
        let at = begin_transaction(&mut payload, Lsn(end.position.0 + count));
        free_op(
            &mut payload,
            Run { addr: PoolAddr::from_block(4000), blocks: end.total_blocks as u32 - 4000 },
        );
        end_transaction(&mut payload, at, 1);
    }
    append_batch(&device, &end, true, count as u32, &payload);
    let begun = Instant::now();
    let result = within("opening", move || {
        let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
        Store::open(vec![device.clone() as Arc<dyn Device>], options).map(|r| r.1)
    });
    assert!(matches!(result, Err(EngineError::Corrupt { .. })), "{result:?}");
    assert!(begun.elapsed() < PATIENCE / 4, "{count} frees took {:?}", begun.elapsed());
}
