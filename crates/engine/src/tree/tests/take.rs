//! What is changed is changed where it lies, unless somebody else looks at it.

use super::*;
use crate::tree::step::{Change, Step};

/// The leaf that `key` belongs into.
fn leaf_of(tree: &Tree, disk: &Disk, key: &[u8]) -> Arc<Node> {
    let (mut link, mut level) = (tree.root.clone().expect("not empty"), tree.height);
    loop {
        level -= 1;
        let node = match &link {
            Link::Mem(node) => node.clone(),
            Link::Disk(ptr) => disk.read(Miss { ptr: *ptr, tree: tree.id, level }).expect("on disk"),
        };
        match &node.body {
            Body::Leaf(_) => return node,
            Body::Interior(n) => link = n.children[n.child_index(key)].clone(),
        }
    }
}

// Goal: a clean leaf that nobody else holds is changed in its own memory, one that a reader holds is copied and stays as it was for
// him; both leave cache and pins, and nothing else leaves the cache; who has an older picture finds in it what he did. Method:
// three leaves in the cache, one of them held, another node at the address of the third; a key of each is changed.
#[test]
fn only_what_others_hold_is_copied() {
    let (mut tree, disk, _) = on_disk(2_000);
    let (old, cache, mut pins) = (tree.clone(), node_cache(1 << 20), Pins::new());
    let keys = [100u64, 1_000, 1_900].map(u64::to_be_bytes);
    let leaves = keys.each_ref().map(|key| leaf_of(&tree, &disk, key));
    let places = leaves.each_ref().map(|leaf| leaf.location.get().expect("on disk").addr[0].0);
    let memory = leaves.each_ref().map(Arc::as_ptr);
    let [alone, held, elsewhere] = leaves;
    let stranger = leaf_of(&tree, &disk, &500u64.to_be_bytes());
    cache.insert(places[0], alone);
    cache.insert(places[1], held.clone());
    cache.insert(places[2], stranger.clone());
    pins.insert(places[2], elsewhere);

    let mut steps =
        keys.each_ref().map(|key| Step { tree: tree.id, key, change: Change::Put(b"something new") });
    let (forecast, ..) = prepared(&tree, &mut steps, 2, &cache, (&disk, &mut pins));
    let mut replaced = Vec::new();
    let mut m = mutation(2, &cache, &mut pins, &mut replaced);
    tree.change(&mut m, &steps);
    assert_eq!(m.dirty_delta as u64, forecast.dirtied);
    let at = |replaced: &Replaced| match replaced {
        Replaced::At(ptr) => ptr.addr[0].0,
        Replaced::Frozen(_) => panic!("all of it was on disk"),
    };
    let mut gone: Vec<u64> = replaced.iter().map(at).collect();
    gone.sort_unstable();
    gone.dedup();
    assert_eq!(gone.len() as u64, forecast.dirtied, "each once");
    assert!(places.iter().all(|place| gone.contains(place)));

    let now = keys.each_ref().map(|key| leaf_of(&tree, &disk, key));
    assert_eq!(now.each_ref().map(|leaf| memory.contains(&Arc::as_ptr(leaf))), [true, false, true]);
    assert!(now.iter().all(|leaf| leaf.generation == 2 && leaf.location.get().is_none()));
    assert!(pins.is_empty() && cache.get(&places[0]).is_none() && cache.get(&places[1]).is_none());
    assert!(cache.get(&places[2]).is_some_and(|node| Arc::ptr_eq(&node, &stranger)));
    assert_eq!(held.location.get().map(|ptr| ptr.addr[0].0), Some(places[1]));
    for key in &keys {
        assert_eq!(tree.get(key, &disk, <[u8]>::to_vec).expect("reads"), Some(b"something new".to_vec()));
        assert_eq!(old.get(key, &disk, <[u8]>::to_vec).expect("reads"), Some(vec![0; 50]));
    }
    let Body::Leaf(leaf) = &held.body else { panic!("a leaf") };
    assert_eq!(leaf.find(&keys[1]).map(|i| leaf.value(i).to_vec()), Ok(vec![0; 50]));
}
