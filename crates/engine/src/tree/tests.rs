//! Trees against `BTreeMap`, with freezes and written nodes imitated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use varve_format::node::NodeHeader;
use varve_format::root::NodePtr;
use varve_format::{BLOCK_BYTES, PoolAddr, TreeId};

use super::node::{Body, Link, Node};
use super::*;

/// What a tree must hold.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A disk in memory: encoded blocks by address.
#[derive(Default)]
struct Disk {
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
    next: AtomicU64,
}

impl NodeSource for Disk {
    fn load(&self, miss: Miss) -> Result<Arc<Node>, EngineError> {
        let blocks = self.blocks.lock();
        let block = &blocks[&miss.ptr.addr[0].0];
        let (header, node) = Node::decode(block, miss.ptr).expect("what was encoded decodes");
        assert_eq!((header.tree, header.level), (miss.tree, miss.level));
        Ok(Arc::new(node))
    }
}

fn write_dirty(link: &Link, disk: &Disk, written: &mut u64) {
    let Link::Mem(node) = link else { return };
    if node.location.get().is_some() {
        return;
    }
    if let Body::Interior(n) = &node.body {
        n.children.iter().for_each(|c| write_dirty(c, disk, written));
    }
    let mut block = vec![0; BLOCK_BYTES];
    node.encode(NodeHeader { tree: TreeId::NAMES, level: node.level(), birth: 1, pool_tag: 0 }, &mut block);
    let addr = PoolAddr::from_block(disk.next.fetch_add(1, Relaxed) + 1);
    disk.blocks.lock().insert(addr.0, block);
    assert!(node.location.set(NodePtr { addr: [addr, PoolAddr::NULL], birth: 1, checksum: 0 }).is_ok());
    *written += 1;
}

fn run(seed: u64, steps: usize, key_space: u64, value_max: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let disk = Disk::default();
    let cache = node_cache(1 << 20);
    let mut tree = Tree::empty(TreeId::NAMES);
    let mut model = Model::new();
    let mut generation = 1;
    let mut dirty = 0i64;
    let mut stamp = 0;
    let mut live_on_disk = 0i64;
    let mut old: Option<(Tree, Model)> = None;
    for step in 0..steps {
        let n = below(key_space);
        let mut key = vec![7; (n % 9) as usize];
        key.extend_from_slice(&n.to_be_bytes());
        let put = below(100) < if step * 3 < steps * 2 { 65 } else { 25 };
        let value = vec![n as u8; below(value_max) as usize];
        let mut pins = Pins::new();
        let exists = loop {
            stamp += 1;
            let mut asked = Asked {
                entry_bytes: put.then_some(key.len() + value.len()),
                generation,
                stamp,
                cache: &cache,
                pins: &mut pins,
                forecast: Forecast::default(),
            };
            match tree.prepare(&key, &mut asked) {
                Ok(exists) => break (exists, asked.forecast),
                Err(miss) => {
                    pins.insert(miss.ptr.addr[0].0, disk.load(miss).expect("on disk"));
                }
            }
        };
        assert_eq!(exists.0, model.contains_key(&key), "seed {seed} step {step}");
        let mut replaced = Vec::new();
        let mut m = Mutation {
            generation,
            cache: &cache,
            pins: &pins,
            replaced: &mut replaced,
            dirty_delta: 0,
            keep_last: false,
            deferred: false,
        };
        if put {
            tree.put(&mut m, &key, &value);
            model.insert(key.clone(), value);
        } else if exists.0 {
            tree.delete(&mut m, &key);
            model.remove(&key);
        }
        let forecast = (exists.1.dirtied + exists.1.added) as i64;
        assert!(
            m.dirty_delta <= forecast,
            "seed {seed} step {step}: {} dirty, forecast {forecast}",
            m.dirty_delta
        );
        dirty += m.dirty_delta;
        live_on_disk -= replaced.len() as i64;
        assert_eq!(
            tree.get(&key, &disk, <[u8]>::to_vec).expect("reads"),
            model.get(&key).cloned(),
            "seed {seed} step {step}"
        );
        if below(97) == 0 {
            // A checkpoint: freeze, write, let go.
            let frozen = tree.clone();
            generation += 1;
            let mut written = 0;
            frozen.root.iter().for_each(|r| write_dirty(r, &disk, &mut written));
            assert_eq!(written as i64, dirty, "seed {seed} step {step}: dirty nodes are counted");
            live_on_disk += dirty;
            dirty = 0;
            drop(frozen);
            tree.let_go(generation);
        }
        if below(61) == 0 {
            old = Some((tree.clone(), model.clone()));
        }
        if below(89) == 0
            && let Some((tree, model)) = &old
        {
            same(tree, model, &disk, seed);
        }
        if below(31) == 0 {
            let from = below(key_space).to_be_bytes();
            let last = tree.last_at_or_before(&from, &disk).expect("reads");
            let want = model.range(..=from.to_vec()).next_back().map(|(k, v)| (k.clone(), v.clone()));
            assert_eq!(last, want, "seed {seed} step {step}");
        }
    }
    same(&tree, &model, &disk, seed);
    let mut count = 0;
    count_nodes(&tree, &disk, &mut count);
    assert_eq!(count, dirty + live_on_disk, "seed {seed}: nodes written, replaced and dirty add up");
}

fn count_nodes(tree: &Tree, disk: &Disk, count: &mut i64) {
    fn below(tree: &Tree, link: &Link, level: u8, disk: &Disk, count: &mut i64) {
        *count += 1;
        let node = match link {
            Link::Mem(n) => n.clone(),
            Link::Disk(ptr) => disk.load(Miss { ptr: *ptr, tree: tree.id, level }).expect("on disk"),
        };
        assert!(node.encoded_bytes() <= BLOCK_BYTES);
        if let Body::Interior(n) = &node.body {
            n.children.iter().for_each(|c| below(tree, c, level - 1, disk, count));
        }
    }
    if let Some(root) = &tree.root {
        below(tree, root, tree.height - 1, disk, count);
    }
}

fn same(tree: &Tree, model: &BTreeMap<Vec<u8>, Vec<u8>>, disk: &Disk, seed: u64) {
    let mut all = Vec::new();
    tree.scan(&[], disk, &mut |k, v| {
        all.push((k.to_vec(), v.to_vec()));
        true
    })
    .expect("reads");
    assert!(all.iter().map(|(k, v)| (k, v)).eq(model.iter()), "seed {seed}: contents differ");
}

// Goal: a tree behaves as a sorted map, old roots stay as they were, dirty and replaced nodes are counted exactly.
// Method: random puts and deletes beside a BTreeMap, with checkpoints imitated, small and large values, by seed.
#[test]
fn behaves_as_a_sorted_map() {
    for seed in 0..12 {
        run(seed, 6000, 600, 90);
        run(seed + 100, 3000, 300, 1900);
        run(seed + 200, 12000, 20_000, 40);
    }
}

// Goal: ascending inserts fill nodes. Method: 10,000 ascending keys; every leaf but the last is nearly full.
#[test]
fn ascending_inserts_fill_nodes() {
    let cache = node_cache(1 << 20);
    let pins = Pins::new();
    let mut replaced = Vec::new();
    let mut tree = Tree::empty(TreeId::NAMES);
    let mut m = Mutation {
        generation: 1,
        cache: &cache,
        pins: &pins,
        replaced: &mut replaced,
        dirty_delta: 0,
        keep_last: false,
        deferred: false,
    };
    for i in 0..10_000u64 {
        tree.put(&mut m, &i.to_be_bytes(), &[0; 50]);
    }
    let ideal = 10_000 * (50 + 3 + 3) / BLOCK_BYTES as i64;
    assert!(m.dirty_delta < ideal * 115 / 100, "{} nodes where {ideal} would do", m.dirty_delta);
}
