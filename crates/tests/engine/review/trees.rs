//! Trees: what a transaction prepared is what it finds, and every node fits its block.

use super::*;

// Goal: joining two leaves gives one that fits its block, though their keys have nothing in common. Method: two
// leaves whose 40-byte prefixes differ, most of one deleted; then a checkpoint encodes what there is.
#[test]
fn merged_leaves_fit_a_block() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    let key = |c: u8, n: u64| [vec![c; 40], n.to_be_bytes().to_vec()].concat();
    for (c, count) in [(b'a', 500), (b'b', 300)] {
        for n in 0..count {
            put(&store, &key(c, n), b"");
        }
    }
    for n in 0..400 {
        let mut tx = Transaction::new();
        tx.delete(TREE, &key(b'a', n));
        store.apply(tx, None).expect("applies");
    }
    store.checkpoint().expect("every node fits its block");
    sound(&store, &[]);
}

// Goal: what a transaction found in the cache while it was prepared is still there when it is applied. Method: a tree
// far larger than the cache; threads that scan push out whatever the writers have just found.
#[test]
fn nodes_found_are_kept_until_applied() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Single);
    let store = open(&device);
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    for n in 0..1500 {
        put(&store, &key(n), &[1; 1500]);
    }
    store.checkpoint().expect("checkpoint");
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (store, stop) = (store.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    store.view().scan(TREE, &[], &mut |_, _| true).expect("scans");
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..2u64)
        .map(|t| {
            let store = store.clone();
            std::thread::spawn(move || {
                let mut rng = Rng::new(t);
                for _ in 0..600 {
                    let mut tx = Transaction::new();
                    for _ in 0..8 {
                        tx.put(TREE, &key(rng.below(1500)), &[2; 1500]);
                    }
                    store.apply(tx, None).expect("applies");
                }
            })
        })
        .collect();
    let panicked = writers.into_iter().filter_map(|w| w.join().err()).count();
    stop.store(true, SeqCst);
    readers.into_iter().for_each(|r| r.join().expect("no panic"));
    assert_eq!(panicked, 0, "a writer missed a node that it had prepared");
}

// Goal: steps of one transaction on one key count in their order. Method: put and delete, delete and put, on a key
// that was there and on one that was not.
#[test]
fn the_last_step_on_a_key_counts() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    put(&store, b"old", b"1");
    let mut tx = Transaction::new();
    tx.put(TREE, b"new", b"2");
    tx.delete(TREE, b"new");
    tx.put(TREE, b"old", b"2");
    tx.delete(TREE, b"old");
    tx.delete(TREE, b"again");
    tx.put(TREE, b"again", b"3");
    let lsn = store.apply(tx, None).expect("applies");
    let all = |store: &Store| {
        let mut all = Vec::new();
        let each = &mut |k: &[u8], v: &[u8]| {
            all.push((k.to_vec(), v.to_vec()));
            true
        };
        store.view().scan(TREE, &[], each).expect("scans");
        all
    };
    assert_eq!(all(&store), [(b"again".to_vec(), b"3".to_vec())]);
    store.commit(lsn).expect("commits");
    drop(store);
    assert_eq!(all(&open(&device)), [(b"again".to_vec(), b"3".to_vec())], "after replay");
}

// Goal: a transaction that empties a leaf and goes on beside it needs nothing that was not prepared. Method: leaves of
// two large entries, cold; the last entry of one is deleted and its range written to in the same transaction.
#[test]
fn emptying_a_leaf_and_writing_beside_it() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    let store = open(&device);
    for n in 0..40u8 {
        put(&store, &[n, 0], &[n; 1900]);
    }
    for n in (1..40).step_by(2) {
        let mut tx = Transaction::new();
        tx.delete(TREE, &[n, 0]);
        store.apply(tx, None).expect("applies");
    }
    store.close().expect("closes");
    drop(store);
    let store = open(&device);
    for n in (10..20).step_by(2) {
        let mut tx = Transaction::new();
        tx.delete(TREE, &[n, 0]);
        tx.put(TREE, &[n, 1], &[n; 1900]);
        tx.delete(TREE, &[n, 0]);
        store.apply(tx, None).expect("applies");
    }
    let mut keys = Vec::new();
    store
        .view()
        .scan(TREE, &[], &mut |k, _| {
            keys.push((k[0], k[1]));
            true
        })
        .expect("scans");
    let want: Vec<_> = (0..40).step_by(2).map(|n| (n, u8::from((10..20).contains(&n)))).collect();
    assert_eq!(keys, want);
    store.checkpoint().expect("checkpoint");
    sound(&store, &[]);
}
