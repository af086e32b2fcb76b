//! Trees against `BTreeMap`, with freezes and written nodes imitated.

mod fill;
mod forecast;
mod many;
mod take;

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
    /// Nodes read one by one, and groups read ahead.
    single: AtomicU64,
    groups: AtomicU64,
    /// Leaves that were asked for, one by one or ahead.
    leaves: Mutex<Vec<u64>>,
}

impl NodeSource for Disk {
    fn load(&self, miss: Miss, _: &Tree) -> Result<Arc<Node>, EngineError> {
        self.single.fetch_add(1, Relaxed);
        self.note(&[miss]);
        self.read(miss)
    }

    // Of nodes at some addresses nothing can be had ahead.
    fn load_ahead(&self, misses: &[Miss], _: &Tree) -> Vec<Option<Arc<Node>>> {
        assert!((2..=64).contains(&misses.len()), "{} nodes at once", misses.len());
        self.groups.fetch_add(1, Relaxed);
        self.note(misses);
        let bad = |miss: &Miss| miss.ptr.addr[0].0 / BLOCK_BYTES as u64 % 23 == 5;
        misses.iter().map(|miss| if bad(miss) { None } else { self.read(*miss).ok() }).collect()
    }
}

impl Disk {
    fn note(&self, misses: &[Miss]) {
        self.leaves
            .lock()
            .extend(misses.iter().filter(|miss| miss.level == 0).map(|miss| miss.ptr.addr[0].0));
    }
    fn read(&self, miss: Miss) -> Result<Arc<Node>, EngineError> {
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

impl Tree {
    /// A transaction of one step.
    fn put(&mut self, m: &mut Mutation<'_>, key: &[u8], value: &[u8]) {
        self.change(m, &[Step { tree: self.id, key, change: Change::Put(value) }]);
    }
    fn delete(&mut self, m: &mut Mutation<'_>, key: &[u8]) {
        self.change(m, &[Step { tree: self.id, key, change: Change::Delete }]);
    }
}

/// Numbers that look random, below what is asked.
fn chance(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    }
}

/// What changes of `generation` work on, with nothing to spare.
fn mutation<'a>(
    generation: u64,
    cache: &'a NodeCache,
    pins: &'a mut Pins,
    replaced: &'a mut Vec<Replaced>,
) -> Mutation<'a> {
    let (right, route) = (Vec::new(), Route::default());
    Mutation { generation, cache, pins, replaced, dirty_delta: 0, spare: 0, replay: false, right, route }
}

/// Prepares `steps`, with whatever must be read for that. Gives what they will need, and their ways.
fn prepared(
    tree: &Tree,
    steps: &mut [Step<'_>],
    generation: u64,
    cache: &NodeCache,
    (disk, pins): (&Disk, &mut Pins),
) -> (Forecast, Route, usize) {
    let mut route = Route::default();
    loop {
        route.clear();
        let (pins, route_of) = (&mut *pins, &mut route);
        let mut asked = Asked { generation, cache, pins, forecast: Forecast::default(), route: route_of };
        match tree.prepare(steps, &mut asked) {
            Ok(levels) => return (asked.forecast, route, levels),
            Err(miss) => {
                let node = disk.load(miss, tree).expect("on disk");
                pins.insert(miss.ptr.addr[0].0, node);
            }
        }
    }
}

fn run(seed: u64, steps: usize, key_space: u64, value_max: u64) {
    let mut below = chance(seed);
    let disk = Disk::default();
    let cache = node_cache(1 << 20);
    let mut tree = Tree::empty(TreeId::NAMES);
    let mut model = Model::new();
    let mut generation = 1;
    let mut dirty = 0i64;
    let mut live_on_disk = 0i64;
    let mut old: Option<(Tree, Model)> = None;
    for step in 0..steps {
        let n = below(key_space);
        let mut key = vec![7; (n % 9) as usize];
        key.extend_from_slice(&n.to_be_bytes());
        let put = below(100) < if step * 3 < steps * 2 { 65 } else { 25 };
        let value = vec![n as u8; below(value_max) as usize];
        let mut pins = Pins::new();
        let change = if put { Change::Put(&value) } else { Change::Delete };
        let mut one = [Step { tree: tree.id, key: &key, change }];
        let (forecast, route, levels) = prepared(&tree, &mut one, generation, &cache, (&disk, &mut pins));
        let height = usize::from(tree.height.max(1));
        let there = one[0].change != Change::Nothing;
        assert_eq!(there, put || model.contains_key(&key), "seed {seed} step {step}");
        let mut replaced = Vec::new();
        let mut m = Mutation {
            generation,
            cache: &cache,
            pins: &mut pins,
            replaced: &mut replaced,
            dirty_delta: 0,
            spare: SPARE_NODES,
            replay: false,
            right: Vec::new(),
            route,
        };
        if there {
            tree.change(&mut m, &one);
        }
        assert!(usize::from(tree.height) <= height + levels, "seed {seed} step {step}: levels are counted");
        let forecast = (forecast.dirtied + forecast.added + SPARE_NODES - m.spare) as i64;
        assert!(
            m.dirty_delta <= forecast,
            "seed {seed} step {step}: {} dirty, forecast {forecast}",
            m.dirty_delta
        );
        dirty += m.dirty_delta;
        live_on_disk -= replaced.len() as i64;
        if put {
            model.insert(key.clone(), value);
        } else {
            model.remove(&key);
        }
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
            // From the one before on, if it is not in front of some other key.
            let floor = below(key_space).min(u64::from_be_bytes(from)).to_be_bytes();
            let begin = want.map(|(key, _)| key).filter(|key| key[..] >= floor[..]).unwrap_or(from.to_vec());
            let (mut found, most) = (Vec::new(), below(8) as usize + 1);
            let mut each = |key: &[u8], value: &[u8]| {
                found.push((key.to_vec(), value.to_vec()));
                found.len() < most
            };
            tree.scan_around(&floor, &from, &disk, &mut each).expect("reads");
            let want: Vec<_> = model.range(begin..).take(most).map(|(k, v)| (k.clone(), v.clone())).collect();
            assert_eq!(found, want, "seed {seed} step {step}: around");
        }
    }
    same(&tree, &model, &disk, seed);
    let mut count = 0;
    count_nodes(&tree, &disk, &mut count);
    assert_eq!(count, dirty + live_on_disk, "seed {seed}: nodes written, replaced and dirty add up");
    ways_lead_to_their_nodes(&tree, &disk, seed);
}

/// The ways of a node's keys lead to it, and to none of the same level beside it.
fn ways_lead_to_their_nodes(tree: &Tree, disk: &Disk, seed: u64) {
    fn below(tree: &Tree, link: &Link, level: u8, disk: &Disk, found: &mut Vec<(Miss, Arc<Node>)>) {
        let node = match link {
            Link::Mem(node) => node.clone(),
            Link::Disk(ptr) => {
                let miss = Miss { ptr: *ptr, tree: tree.id, level };
                let node = disk.load(miss, tree).expect("on disk");
                found.push((miss, node.clone()));
                node
            }
        };
        if let Body::Interior(n) = &node.body {
            n.children.iter().for_each(|child| below(tree, child, level - 1, disk, found));
        }
    }
    let mut found = Vec::new();
    tree.root.iter().for_each(|root| below(tree, root, tree.height - 1, disk, &mut found));
    let leads = |miss: Miss, node: &Node| tree.leads_to(miss, node, disk).expect("reads");
    for (i, (miss, node)) in found.iter().enumerate() {
        assert!(leads(*miss, node), "seed {seed}: {miss:?}");
        let other = found.iter().skip(i + 1).find(|(other, _)| other.level == miss.level);
        if let Some((other, _)) = other
            && node.ends().count() > 0
        {
            assert!(!leads(*other, node), "seed {seed}: {other:?} has the keys of {miss:?}");
        }
    }
}

fn count_nodes(tree: &Tree, disk: &Disk, count: &mut i64) {
    fn below(tree: &Tree, link: &Link, level: u8, disk: &Disk, count: &mut i64) {
        *count += 1;
        let node = match link {
            Link::Mem(n) => n.clone(),
            Link::Disk(ptr) => disk.load(Miss { ptr: *ptr, tree: tree.id, level }, tree).expect("on disk"),
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
    for seed in 0..8 {
        run(seed, 6000, 600, 90);
        run(seed + 100, 3000, 300, 1900);
        run(seed + 200, 12000, 20_000, 40);
    }
}

/// A tree that is changed and never written, beside the count of its nodes.
struct Loose {
    tree: Tree,
    cache: NodeCache,
    nodes: i64,
}

impl Loose {
    fn new() -> Loose {
        Loose { tree: Tree::empty(TreeId::NAMES), cache: node_cache(1 << 20), nodes: 0 }
    }
    fn change(&mut self, spare: u64, change: impl FnOnce(&mut Tree, &mut Mutation<'_>)) {
        let (mut pins, mut replaced) = (Pins::new(), Vec::new());
        let mut m = Mutation {
            generation: 1,
            cache: &self.cache,
            pins: &mut pins,
            replaced: &mut replaced,
            dirty_delta: 0,
            spare,
            replay: false,
            right: Vec::new(),
            route: Route::default(),
        };
        change(&mut self.tree, &mut m);
        self.nodes += m.dirty_delta;
        assert!(replaced.is_empty(), "nothing has been written");
    }
    /// Leaves, and how full they are: bytes by the bytes of as many blocks.
    fn fill(&self) -> (usize, f64) {
        fn below(link: &Link, leaves: &mut Vec<usize>) {
            let Link::Mem(node) = link else { panic!("nothing has been written") };
            match &node.body {
                Body::Leaf(_) => leaves.push(node.encoded_bytes()),
                Body::Interior(n) => n.children.iter().for_each(|c| below(c, leaves)),
            }
        }
        let mut leaves = Vec::new();
        self.tree.root.iter().for_each(|root| below(root, &mut leaves));
        (leaves.len(), leaves.iter().sum::<usize>() as f64 / (leaves.len() * BLOCK_BYTES) as f64)
    }
}

/// Numbers below `n` in an order of chance.
fn shuffled(n: u64, seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut all: Vec<u64> = (0..n).collect();
    for i in (1..all.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.swap(i, state as usize % (i + 1));
    }
    all
}

// Goal: what random deletions leave is joined, of small entries and of large ones, and after an ascending load as after
// one in random order; without room for it nothing is joined and nothing breaks. Method: delete 19 of 20, and look at
// the leaves on the way.
#[test]
fn random_deletions_leave_no_half_empty_nodes() {
    for (seed, value, random_load) in [(1, 30, true), (2, 30, false), (3, 400, true), (4, 400, false)] {
        let many = if value > 100 { 8_000 } else { 40_000 };
        for spare in [SPARE_NODES, 0] {
            let mut loose = Loose::new();
            let load = if random_load { shuffled(many, seed) } else { (0..many).collect() };
            for n in load {
                loose.change(SPARE_NODES, |tree, m| tree.put(m, &n.to_be_bytes(), &vec![n as u8; value]));
            }
            let order = shuffled(many, seed + 100);
            for (at, n) in order.iter().enumerate() {
                let left = many - at as u64;
                if spare > 0 && [many / 2, many / 4, many / 20].contains(&left) {
                    let (leaves, fill) = loose.fill();
                    assert!(fill > 0.58, "seed {seed}: with {left} left {leaves} leaves are {fill:.2} full");
                }
                if left == many / 20 {
                    break;
                }
                loose.change(spare, |tree, m| tree.delete(m, &n.to_be_bytes()));
            }
            let mut left: Vec<u64> = order[order.len() - (many / 20) as usize..].to_vec();
            left.sort_unstable();
            let mut found = Vec::new();
            let none = Disk::default();
            let mut each = |k: &[u8], _: &[u8]| {
                found.push(u64::from_be_bytes(k.try_into().expect("8 bytes")));
                true
            };
            loose.tree.scan(&[], &none, &mut each).expect("all is in memory");
            assert_eq!(found, left, "seed {seed}");
            let mut counted = 0;
            count_nodes(&loose.tree, &none, &mut counted);
            assert_eq!(counted, loose.nodes, "seed {seed}: the nodes are counted");
        }
    }
}

// Goal: deleting in ascending order moves little about, and leaves no node behind. Method: count the joinings (each takes
// from the spare): next to none in full leaves, and less than one a leaf in those that random puts left.
#[test]
fn ascending_deletions_join_little() {
    let many = 40_000;
    for (load, joined_max_percent) in [((0..many).collect(), 5), (shuffled(many, 7), 90)] {
        let mut loose = Loose::new();
        for n in load {
            loose.change(SPARE_NODES, |tree, m| tree.put(m, &n.to_be_bytes(), &[1; 30]));
        }
        let (leaves, _) = loose.fill();
        let mut spent = 0;
        for n in 0..many {
            loose.change(SPARE_NODES, |tree, m| {
                tree.delete(m, &n.to_be_bytes());
                spent += SPARE_NODES - m.spare;
            });
        }
        assert!(loose.tree.root.is_none() && loose.nodes == 0);
        let joined = spent as usize / 3;
        assert!(joined * 100 < leaves * joined_max_percent, "{joined} joinings of {leaves} leaves");
    }
}

// Goal: ascending inserts fill nodes. Method: 10,000 ascending keys; every leaf but the last is nearly full.
#[test]
fn ascending_inserts_fill_nodes() {
    let cache = node_cache(1 << 20);
    let mut pins = Pins::new();
    let mut replaced = Vec::new();
    let mut tree = Tree::empty(TreeId::NAMES);
    let mut m = mutation(1, &cache, &mut pins, &mut replaced);
    for i in 0..10_000u64 {
        tree.put(&mut m, &i.to_be_bytes(), &[0; 50]);
    }
    let ideal = 10_000 * (50 + 3 + 3) / BLOCK_BYTES as i64;
    assert!(m.dirty_delta < ideal * 115 / 100, "{} nodes where {ideal} would do", m.dirty_delta);
}

// Goal: a long scan asks a device once for many leaves, a short one reads what it needs. Method: 20,000 keys on disk; all of
// them, the first one, those of one leaf and those of two, with what is read counted.
#[test]
fn long_scans_read_ahead() {
    let (tree, disk, nodes) = on_disk(20_000);
    // How many entries come of `count` that are wanted, and nodes read singly and groups for it.
    let scan = |count: usize| {
        let (single, groups) = (disk.single.load(Relaxed), disk.groups.load(Relaxed));
        let mut found = 0u64;
        tree.scan(&[], &disk, &mut |key, _| {
            assert_eq!(key, found.to_be_bytes());
            found += 1;
            found < count as u64
        })
        .expect("reads");
        (found, disk.single.load(Relaxed) - single, disk.groups.load(Relaxed) - groups)
    };
    let above = u64::from(tree.height) - 1;
    assert_eq!(scan(1), (1, above + 1, 0));
    assert_eq!(scan(40), (40, above + 1, 0), "one leaf");
    assert_eq!(scan(100), (100, above + 1, 1), "two leaves");
    let (found, single, groups) = scan(usize::MAX);
    assert_eq!(found, 20_000);
    assert!(single < nodes / 10 && groups < nodes / 20, "{nodes} nodes: {single} single, {groups} groups");
}

// Goal: leaves that are read ahead are those in which the searches end, each once, in one group, and none where one alone would
// be read. Method: trees of one level to three on disk; keys near to each other and far apart, with what is asked for written down.
#[test]
fn searches_read_their_leaves_together() {
    for count in [0, 10, 2_000, 200_000] {
        let (tree, disk, _) = on_disk(count);
        for (first, step, number) in [
            (0, 1, 5),
            (count / 2, 300, 1),
            (7, 90, 40),
            (count / 3, 700, 60),
            (5, 400, 200),
            (count, 500, 9),
        ] {
            let keys: Vec<_> = (0..number).map(|n| (first + n * step).to_be_bytes()).collect();
            disk.leaves.lock().clear();
            let groups = disk.groups.load(Relaxed);
            tree.read_ahead(&keys, &disk).expect("reads");
            let ahead = std::mem::take(&mut *disk.leaves.lock());
            for key in &keys {
                tree.get(key, &disk, |_| ()).expect("reads");
            }
            let mut wanted = std::mem::take(&mut *disk.leaves.lock());
            wanted.dedup();
            wanted.truncate(64);
            if tree.height < 2 || wanted.len() < 2 {
                wanted.clear();
            }
            assert_eq!(ahead, wanted, "{number} keys from {first} of {count}, {step} apart");
            assert_eq!(disk.groups.load(Relaxed) - groups, u64::from(!ahead.is_empty()));
        }
    }
}

/// A tree of so many keys, all of it on a disk, and how many nodes it has.
fn on_disk(count: u64) -> (Tree, Disk, u64) {
    let (cache, mut pins, mut replaced) = (node_cache(1 << 20), Pins::new(), Vec::new());
    let disk = Disk::default();
    let mut tree = Tree::empty(TreeId::NAMES);
    let mut m = mutation(1, &cache, &mut pins, &mut replaced);
    for i in 0..count {
        tree.put(&mut m, &i.to_be_bytes(), &[0; 50]);
    }
    let nodes = m.dirty_delta as u64;
    let mut written = 0;
    tree.root.iter().for_each(|root| write_dirty(root, &disk, &mut written));
    tree.let_go(2);
    (tree, disk, nodes)
}
