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
