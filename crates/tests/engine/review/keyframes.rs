//! Keyframes of which something is lost: they say nothing that the entries do not say.

use super::*;
use varve_engine::ProblemKind;
use varve_format::codec::Reader;
use varve_format::root::NodePtr;

fn keep(store: &Store, key: &[u8]) -> Lsn {
    let mut tx = Transaction::new();
    tx.put(TreeId::ORPHANS, key, b"value");
    store.apply(tx, None).expect("applies")
}

// Goal: a lost node of the tree of keyframes hides no transaction, keeps the pool from nothing, and none of them comes back with it.
// Method: the log has four transactions, of which the second changes keyframes in a leaf and the third beside it; the leaf, or the root
// above it, is spoilt. Read, written to, crashed, and opened again with the node as it was.
#[test]
fn lost_keyframes_hide_nothing() {
    for (lost, copies) in [("leaf", 1), ("root", 1), ("leaf", 2), ("root", 2)] {
        let device = Hooked::new();
        format(&device, Profile::Single, if copies == 1 { Profile::Single } else { Profile::Dup });
        let store = open(&device);
        for n in 0..90u64 {
            let mut tx = Transaction::new();
            tx.put(TreeId::KEYFRAMES, &n.to_be_bytes(), &[7; 1000]);
            store.apply(tx, None).expect("applies");
        }
        let (run, _) = place(&store, b"data", 5).expect("places");
        store.checkpoint().expect("checkpoint");
        // One of another leaf has become dirty before.
        let mut tx = Transaction::new();
        tx.put(TreeId::KEYFRAMES, &89u64.to_be_bytes(), &[8; 900]);
        store.apply(tx, None).expect("applies");
        let mut tx = Transaction::new();
        tx.delete(TreeId::KEYFRAMES, &0u64.to_be_bytes());
        tx.put(TreeId::ORPHANS, b"with", b"value");
        store.apply(tx, None).expect("applies");
        let mut tx = Transaction::new();
        tx.put(TreeId::KEYFRAMES, &50u64.to_be_bytes(), b"new");
        store.apply(tx, None).expect("applies");
        store.commit(keep(&store, b"behind")).expect("commits");
        drop(store);

        let root = root_of(&device);
        let tree = root.trees.iter().find(|tree| tree.tree == TreeId::KEYFRAMES).expect("the tree");
        assert_eq!(tree.height, 2);
        let mut ptr = tree.ptr;
        let mut block = AlignedBuf::new(4096);
        device.inner.read_at(DATA_START + ptr.addr[0].0, &mut block).expect("reads");
        let below = varve_format::node::decode(&block).expect("a node").entries;
        if lost == "leaf" {
            ptr = NodePtr::decode(&mut Reader::new(&block[below[0].value..])).expect("a pointer");
            device.inner.read_at(DATA_START + ptr.addr[0].0, &mut block).expect("reads");
        }
        let write = |block: &AlignedBuf| {
            for addr in ptr.copies() {
                device.inner.write_at(DATA_START + addr.0, block).expect("writes");
            }
        };
        write(&AlignedBuf::new(4096));

        let shown = |store: &Store, report: &RecoveryReport| {
            for key in [&b"with"[..], b"behind"] {
                assert!(store.get(TreeId::ORPHANS, key).expect("reads").is_some(), "{lost}");
            }
            assert!(store.get(TreeId::KEYFRAMES, &70u64.to_be_bytes()).expect("reads").is_none(), "{lost}");
            assert_eq!((report.transactions_replayed, &report.replay_ended_by), (4, &None), "{lost}");
            assert!(report.keyframes_lost.as_ref().is_some_and(|why| why.contains("keyframes")), "{lost}");
        };
        let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
        let before = device.inner.snapshot();
        let (store, report) = Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("reads");
        shown(&store, &report);
        drop(store);
        let (mut was, mut is) = (AlignedBuf::new(1 << 20), AlignedBuf::new(1 << 20));
        for at in (0..POOL_BYTES).step_by(1 << 20) {
            before.read_at(at, &mut was).expect("reads");
            device.inner.read_at(at, &mut is).expect("reads");
            assert!(was[..] == is[..], "{lost}: who only reads has written");
        }

        // What is leaked is what the root alone leads to.
        let leaked = |store: &Store| {
            let report = store.check(&mut [run].into_iter(), true).expect("check runs");
            let all = report.problems.iter().all(|problem| problem.kind == ProblemKind::BlockLeaked);
            assert!(all, "{lost}: {:#?}", report.problems);
            report
                .problems
                .iter()
                .filter_map(|problem| problem.blocks)
                .map(|blocks| blocks.1 / 4096)
                .sum::<u64>()
        };
        let expected = if lost == "leaf" { 0 } else { (below.len() * copies) as u64 };
        let (store, report) = try_open(&device).expect("opens for writing");
        shown(&store, &report);
        assert_eq!(leaked(&store), expected, "{lost}");
        for round in 0..3u8 {
            store.commit(keep(&store, &[round])).expect("commits");
            store.checkpoint().expect("checkpoint");
        }
        assert_eq!(leaked(&store), expected, "{lost}");
        drop(store);

        // Once more, and then the node can be read again: nobody has taken away what became untrue meanwhile.
        for at in (0..POOL_BYTES).step_by(1 << 20) {
            before.read_at(at, &mut was).expect("reads");
            device.inner.write_at(at, &was).expect("writes");
        }
        let (store, report) = try_open(&device).expect("opens for writing");
        shown(&store, &report);
        let last = keep(&store, b"after");
        store.commit(last).expect("commits");
        drop(store);
        write(&block);
        let (store, report) = try_open(&device).expect("opens for writing");
        assert!(report.keyframes_lost.is_none(), "{lost}");
        assert!(store.get(TreeId::KEYFRAMES, &1u64.to_be_bytes()).expect("reads").is_none(), "{lost}");
        assert!(store.get(TreeId::ORPHANS, b"after").expect("reads").is_some(), "{lost}");
        assert_eq!(leaked(&store), expected, "{lost}");
    }
}

// Goal: a pool that was closed opens for writing without a node that leads to keyframes. Method: the root of their tree is spoilt.
#[test]
fn a_closed_pool_opens_without_its_keyframes() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    for n in 0..400u64 {
        let mut tx = Transaction::new();
        tx.put(TreeId::KEYFRAMES, &n.to_be_bytes(), &[7; 1000]);
        store.apply(tx, None).expect("applies");
    }
    keep(&store, b"kept");
    store.close().expect("closes");
    drop(store);
    let root = root_of(&device);
    let tree = root.trees.iter().find(|tree| tree.tree == TreeId::KEYFRAMES).expect("the tree");
    device.inner.write_at(DATA_START + tree.ptr.addr[0].0, &AlignedBuf::new(4096)).expect("writes");
    let (store, report) = try_open(&device).expect("opens for writing");
    assert!(report.clean && report.keyframes_lost.is_some());
    assert!(store.get(TreeId::ORPHANS, b"kept").expect("reads").is_some());
    drop(store);
    // Durable: there is nothing more to throw away.
    let (_, report) = try_open(&device).expect("opens for writing");
    assert!(report.clean && report.keyframes_lost.is_none());
}

// Goal: a device that fails for a while costs no keyframes. Method: every read of a node fails in one opening and no read in the next; the
// root of their tree, and a leaf that the log changes.
#[test]
fn a_device_that_fails_for_a_while_costs_no_keyframes() {
    for lost in ["root", "leaf"] {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Single);
        let store = open(&device);
        for n in 0..90u64 {
            let mut tx = Transaction::new();
            tx.put(TreeId::KEYFRAMES, &n.to_be_bytes(), &[7; 1000]);
            store.apply(tx, None).expect("applies");
        }
        store.checkpoint().expect("checkpoint");
        let mut tx = Transaction::new();
        tx.delete(TreeId::KEYFRAMES, &0u64.to_be_bytes());
        store.commit(store.apply(tx, None).expect("applies")).expect("commits");
        drop(store);

        let root = root_of(&device);
        let tree = root.trees.iter().find(|tree| tree.tree == TreeId::KEYFRAMES).expect("the tree");
        assert_eq!(tree.height, 2);
        let mut at = DATA_START + tree.ptr.addr[0].0;
        if lost == "leaf" {
            let mut block = AlignedBuf::new(4096);
            device.inner.read_at(at, &mut block).expect("reads");
            let below = varve_format::node::decode(&block).expect("a node").entries;
            let leaf = NodePtr::decode(&mut Reader::new(&block[below[0].value..])).expect("a pointer");
            at = DATA_START + leaf.addr[0].0;
        }
        let fails = FaultRule::new(Operation::Read, Trigger::Every(1), Fault::Error).within(at..at + 4096);
        let device = Arc::new(FaultyDevice::new(device.inner.snapshot(), 0, vec![fails]));
        let before = device.inner().snapshot();
        let error = try_open(&device).err().expect("who writes would throw them away");
        assert!(matches!(error, EngineError::Device(_)), "{lost}: {error}");
        let (mut was, mut is) = (AlignedBuf::new(1 << 20), AlignedBuf::new(1 << 20));
        for at in (0..POOL_BYTES).step_by(1 << 20) {
            before.read_at(at, &mut was).expect("reads");
            device.inner().read_at(at, &mut is).expect("reads");
            assert!(was[..] == is[..], "{lost}: something was written at {at}");
        }
        let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
        let (_, report) = Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("reads");
        assert!(report.keyframes_lost.is_some() && report.replay_ended_by.is_none(), "{lost}");

        device.set_rules(vec![]);
        let (store, report) = try_open(&device).expect("opens for writing");
        assert!(report.keyframes_lost.is_none(), "{lost}");
        let there = |n: u64| store.get(TreeId::KEYFRAMES, &n.to_be_bytes()).expect("reads").is_some();
        assert!(!there(0) && there(1) && there(89), "{lost}");
        sound(&store, &[]);
    }
}
