//! Many changes in one transaction, which share descents.

use super::*;
use crate::key::Key;
use crate::tree::cursor::leaves_of;
use crate::tree::leaf::Leaf;
use crate::tree::step;

/// A tree beside a map, with checkpoints imitated.
pub(super) struct Beside {
    pub(super) tree: Tree,
    model: Model,
    disk: Disk,
    cache: NodeCache,
    generation: u64,
    /// What was read stays in the cache.
    keeps: bool,
    /// What a checkpoint writes, and how many nodes of it are dirty.
    frozen: Option<(Tree, i64)>,
    /// States that readers hold.
    held: Vec<(Tree, Model)>,
    /// Nodes that are dirty, and nodes on the disk or on their way there.
    pub(super) dirty: i64,
    on_disk: i64,
    /// Nodes that splits added, at most, and that were forecast.
    pub(super) forecast_added: u64,
}

/// How a transaction is done.
#[derive(Clone, Copy)]
pub(super) enum How {
    /// With so many nodes to spare.
    Spare(u64),
    /// As it is replayed.
    Replay,
}

pub(super) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

impl Beside {
    pub(super) fn new() -> Beside {
        Beside {
            tree: Tree::empty(TreeId::NAMES),
            model: Model::new(),
            disk: Disk::default(),
            cache: node_cache(1 << 20),
            generation: 1,
            keeps: false,
            frozen: None,
            held: Vec::new(),
            dirty: 0,
            on_disk: 0,
            forecast_added: 0,
        }
    }

    /// A transaction of these changes. It makes no more nodes than were forecast for it, and it spent of the spare; returns
    /// how many.
    pub(super) fn change(&mut self, changes: &[(Vec<u8>, Option<Vec<u8>>)], how: How) -> i64 {
        let mut steps = Vec::new();
        for (key, value) in changes {
            let change = value.as_ref().map_or(Change::Delete, |value| Change::Put(value));
            steps.push(Step { tree: TreeId::NAMES, key, change });
        }
        step::sort(&mut steps);
        let mut pins = Pins::new();
        let (forecast, mut route, _) =
            prepared(&self.tree, &mut steps, self.generation, &self.cache, (&self.disk, &mut pins));
        for step in &steps {
            let nothing = step.change == Change::Delete || step.change == Change::Nothing;
            let nothing = nothing && !self.model.contains_key(step.key);
            assert_eq!(step.change == Change::Nothing, nothing);
        }
        let all = steps.len();
        steps.retain(|step| step.change != Change::Nothing);
        if steps.len() < all {
            route.clear();
        }
        let mut replaced = Vec::new();
        let (spare, replay) = match how {
            How::Spare(spare) => (spare, false),
            How::Replay => (0, true),
        };
        let mut m = Mutation {
            generation: self.generation,
            cache: &self.cache,
            pins: &mut pins,
            replaced: &mut replaced,
            dirty_delta: 0,
            spare,
            replay,
            right: Vec::new(),
            route,
        };
        self.tree.change(&mut m, &steps);
        let (made, most) = (m.dirty_delta, (forecast.dirtied + forecast.added + spare - m.spare) as i64);
        assert!(replay || made <= most, "{made} dirty, {forecast:?}, {} spent", spare - m.spare);
        self.dirty += made;
        self.on_disk -= replaced.len() as i64;
        self.forecast_added += forecast.added;
        for (key, value) in changes {
            match value {
                Some(value) => drop(self.model.insert(key.clone(), value.clone())),
                None => drop(self.model.remove(key)),
            }
        }
        if self.keeps {
            pins.into_iter().for_each(|(at, node)| self.cache.insert(at, node));
        }
        self.check();
        made
    }

    /// A checkpoint begins.
    fn freeze(&mut self) {
        self.write();
        self.generation += 1;
        self.frozen = Some((self.tree.clone(), self.dirty));
        self.on_disk += self.dirty;
        self.dirty = 0;
    }

    /// It ends.
    fn write(&mut self) {
        let Some((frozen, dirty)) = self.frozen.take() else { return };
        let mut written = 0;
        frozen.root.iter().for_each(|r| write_dirty(r, &self.disk, &mut written));
        assert_eq!(written as i64, dirty, "dirty nodes are counted");
        drop(frozen);
        self.tree.let_go(self.generation);
    }

    pub(super) fn checkpoint(&mut self) {
        self.freeze();
        self.write();
    }

    /// A reader takes what is there now; of several, the first one goes, and has seen nothing of what came later.
    fn hold(&mut self) {
        self.held.push((self.tree.clone(), self.model.clone()));
        if self.held.len() > 2 {
            let (tree, model) = self.held.remove(0);
            same(&tree, &model, &self.disk, 0);
        }
    }

    /// The entries are those of the map, the nodes as many as counted, and each of them what it must be.
    fn check(&self) {
        same(&self.tree, &self.model, &self.disk, 0);
        let mut count = 0;
        if let Some(root) = &self.tree.root {
            self.check_below(root, self.tree.height - 1, (&[], None), &mut count);
        }
        assert_eq!(self.tree.root.is_none(), self.tree.height == 0);
        assert_eq!(count, self.dirty + self.on_disk, "nodes written, replaced and dirty add up");
    }

    fn check_below(&self, link: &Link, level: u8, range: (&[u8], Option<&[u8]>), count: &mut i64) {
        let node = match link {
            Link::Mem(node) => node.clone(),
            Link::Disk(ptr) => {
                self.disk.load(Miss { ptr: *ptr, tree: self.tree.id, level }, &self.tree).expect("on disk")
            }
        };
        *count += 1;
        assert_eq!(node.level(), level);
        assert!(node.encoded_bytes() <= BLOCK_BYTES);
        let within = |key: &[u8]| key >= range.0 && range.1.is_none_or(|end| key < end);
        match &node.body {
            Body::Leaf(leaf) => {
                assert!(leaf.len() > 0, "no leaf is empty");
                let keys: Vec<Key> = (0..leaf.len()).map(|i| leaf.key(i)).collect();
                assert!(keys.iter().all(|key| within(key)));
                assert!(keys.is_sorted_by(|a, b| a.as_slice() < b.as_slice()));
            }
            Body::Interior(n) => {
                let keys = n.keys();
                assert!(keys[0].is_empty() && keys.len() == n.children.len());
                assert!(keys[1..].iter().all(|key| within(key)));
                assert!(keys.is_sorted_by(|a, b| a.as_slice() < b.as_slice()));
                assert!(
                    level + 1 < self.tree.height || keys.len() > 1,
                    "a root of one child gives way to it"
                );
                for (i, child) in n.children.iter().enumerate() {
                    let low = if i == 0 { range.0 } else { &keys[i] };
                    let end = keys.get(i + 1).map(|key| key.as_slice()).or(range.1);
                    self.check_below(child, level - 1, (low, end), count);
                }
            }
        }
    }
}

/// A key whose length follows from it.
fn key(n: u64) -> Vec<u8> {
    let mut key = vec![7; (n / 40 % 9) as usize];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

/// A key that begins as nearly all others do, for 40 bytes; some differ earlier.
fn long_key(n: u64) -> Vec<u8> {
    let differs = if n.is_multiple_of(61) { n / 61 % 40 } else { 40 };
    let mut key = vec![7; 40];
    key.extend_from_slice(&n.to_be_bytes());
    if let Some(byte) = key[..40].get_mut(differs as usize) {
        *byte = if n.is_multiple_of(2) { 6 } else { 8 };
    }
    key
}

// Goal: a transaction of many steps does what they do one after the other, whatever leaves it splits, joins and empties, and
// makes no more nodes than were forecast, of keys that begin alike too, and with values of all lengths. Method: transactions of
// neighbouring keys and of scattered ones, puts, deletes and other values mixed, several steps on one key, ranges put and deleted
// whole and in part, with and without room to spare and as the log is replayed, checkpoints that go on meanwhile and readers
// that hold old states, with what was read in the cache or not; beside a sorted map. After each the tree is gone through from end
// to end.
#[test]
fn many_steps_are_what_they_are_one_by_one() {
    let seeds = std::env::var("VARVE_MANY").ok().and_then(|many| many.parse().ok()).unwrap_or(36);
    for seed in 0..seeds {
        let mut below = chance(seed + 1);
        let key_space = [300, 3_000, 40_000][seed as usize % 3];
        let value_max = [30, 200, 1936][seed as usize / 3 % 3];
        let key = [key, long_key][seed as usize / 9 % 2];
        let mut beside = Beside { keeps: below(2) == 0, ..Beside::new() };
        let mut tallest = 0;
        for transaction in 0..60 {
            let most = [4, 60, 600][below(3) as usize];
            let count = 1 + below(most);
            let (first, span) = (below(key_space), 1 + below(3) * count / 2);
            let near = below(3) > 0;
            let puts = [95, 50, 3][(transaction / 4 + below(3) as usize) % 3];
            let there: Vec<Vec<u8>> =
                if below(3) == 0 { beside.model.keys().cloned().collect() } else { vec![] };
            let mut changes = Vec::new();
            for i in 0..count {
                let n = match (near, span) {
                    (false, _) => below(key_space),
                    (true, 1) => first + i,
                    (true, span) => first + below(span),
                };
                let value = (below(100) < puts).then(|| vec![n as u8; below(value_max + 1) as usize]);
                // Other values of what is there, too.
                let old = there.get(((first + i) as usize).wrapping_rem(there.len().max(1)));
                let old = old.filter(|_| below(2) == 0);
                changes.push((old.cloned().unwrap_or_else(|| key(n)), value));
            }
            let how = match below(8) {
                0 => How::Replay,
                1 | 2 => How::Spare(0),
                _ => How::Spare(SPARE_NODES),
            };
            beside.change(&changes, how);
            tallest = tallest.max(beside.tree.height);
            match below(12) {
                0 | 1 => beside.checkpoint(),
                2 => beside.freeze(),
                3 | 4 => beside.write(),
                5 => beside.hold(),
                _ => {}
            }
        }
        assert!(tallest > 1, "seed {seed}");
        // All of it, in few transactions.
        let all: Vec<_> = beside.model.keys().map(|key| (key.clone(), None)).collect();
        for part in all.chunks(all.len().div_ceil(3).max(1)) {
            beside.change(part, How::Spare(SPARE_NODES));
        }
        assert!(beside.tree.root.is_none());
        beside.write();
        beside.held.iter().for_each(|(tree, model)| same(tree, model, &beside.disk, seed));
    }
}

// Goal: what is emptied within one transaction is not joined on the way, and what is left is. Method: 20,000 keys; runs of
// 700 deleted in one transaction each, whole and but for every 20th key, with the nodes taken from the spare and the leaves
// counted.
#[test]
fn leaves_are_joined_once_a_transaction() {
    for keeps in [false, true] {
        let mut loose = Loose::new();
        let keys: Vec<_> = (0..20_000u64).map(u64::to_be_bytes).collect();
        let put = |key| Step { tree: TreeId::NAMES, key, change: Change::Put(&[1; 30]) };
        for part in keys.chunks(300) {
            let steps: Vec<Step<'_>> = part.iter().map(|key| put(&key[..])).collect();
            loose.change(SPARE_NODES, |tree, m| tree.change(m, &steps));
        }
        let (before, fill) = loose.fill();
        assert!(fill > 0.9, "ascending puts fill leaves: {fill:.2}");
        let mut spent = 0;
        for part in keys.chunks(700) {
            let gone = part.iter().enumerate().filter(|(i, _)| !keeps || i % 20 > 0).map(|(_, key)| &key[..]);
            let steps: Vec<Step<'_>> =
                gone.map(|key| Step { tree: TreeId::NAMES, key, change: Change::Delete }).collect();
            loose.change(SPARE_NODES, |tree, m| {
                tree.change(m, &steps);
                spent += SPARE_NODES - m.spare;
            });
        }
        let (leaves, fill) = loose.fill();
        let joined = spent as usize / 3;
        if keeps {
            assert!(
                fill > 0.58 && joined <= before,
                "{leaves} leaves {fill:.2} full, {joined} joinings of {before}"
            );
        } else {
            assert!(loose.tree.root.is_none() && joined < before / 5, "{joined} joinings of {before}");
        }
    }
}

/// The leaf that is looked at for a key.
fn looked_at<'t>(tree: &'t Tree, key: &[u8]) -> Option<&'t Leaf> {
    match &leaves_of(tree.root.as_ref()?, tree.height, &[key])[0]?.body {
        Body::Leaf(leaf) => Some(leaf),
        Body::Interior(_) => panic!("leaves are at the bottom"),
    }
}

// Goal: leaves that are looked at ahead are those in which the searches end, all that the tree holds and no others, and nothing
// comes of it. Method: a tree of three levels; each of its keys before and after a checkpoint, and when a few were changed.
#[test]
fn looks_at_the_leaves_of_searches() {
    let mut beside = Beside::new();
    let keys: Vec<Vec<u8>> = (0..20_000).map(key).collect();
    beside.tree.look_at(&keys);
    let put = |key: &Vec<u8>| (key.clone(), Some(vec![1; 30]));
    for part in keys.chunks(4000) {
        beside.change(&part.iter().map(put).collect::<Vec<_>>(), How::Spare(SPARE_NODES));
    }
    assert!(beside.tree.height > 2);
    let ends_there =
        |tree: &Tree, key: &Vec<u8>| looked_at(tree, key).is_some_and(|leaf| leaf.find(key).is_ok());
    assert!(keys.iter().all(|key| ends_there(&beside.tree, key)));
    beside.tree.look_at(&keys);
    beside.checkpoint();
    assert!(keys.iter().all(|key| looked_at(&beside.tree, key).is_none()));
    beside.change(&keys[5000..5010].iter().map(put).collect::<Vec<_>>(), How::Spare(SPARE_NODES));
    assert!(keys[5000..5010].iter().all(|key| ends_there(&beside.tree, key)));
    let held = keys.iter().filter(|key| looked_at(&beside.tree, key).is_some()).count();
    assert!((10..1000).contains(&held), "{held} keys in leaves in memory");
    beside.tree.look_at(&keys);
    beside.check();
}

// Goal: a full leaf is not split by a transaction that takes from it as much as it adds. Method: a leaf with no room for one
// entry more; one comes and one behind it goes, and the first one grows by what the last one shrinks.
#[test]
fn a_full_leaf_that_gives_what_it_takes_is_not_split() {
    let mut beside = Beside::new();
    let entry = |n: u64, len: usize| (n.to_be_bytes().to_vec(), Some(vec![n as u8; len]));
    let full: Vec<_> = (1..=94).map(|n| entry(n * 2, 39)).collect();
    beside.change(&full, How::Spare(0));
    let gone = |n: u64| (n.to_be_bytes().to_vec(), None);
    for changes in [[entry(3, 39), gone(180)], [entry(2, 60), entry(188, 18)]] {
        beside.change(&changes, How::Spare(0));
        assert_eq!((beside.tree.height, beside.dirty), (1, 1));
    }
    beside.change(&[entry(5, 60)], How::Spare(0));
    assert_eq!((beside.tree.height, beside.dirty), (2, 3), "there was no room for more");
}

// Goal: a transaction looks for joinings where it took something away, and not at what lies between. Method: keys that fell,
// without room to spare, have left half-full leaves; a few of the first and of the last keys go.
#[test]
fn only_what_has_shrunk_is_joined() {
    let mut loose = Loose::new();
    let keys: Vec<_> = (0..1_000u64).map(u64::to_be_bytes).collect();
    for key in keys.iter().rev() {
        loose.change(0, |tree, m| tree.put(m, key, &[1; 60]));
    }
    let (before, fill) = loose.fill();
    assert!(loose.tree.height == 2 && before > 20 && fill < 0.6, "{before} leaves {fill:.2} full");
    let ends = keys[..10].iter().chain(&keys[990..]);
    let steps: Vec<Step<'_>> =
        ends.map(|key| Step { tree: TreeId::NAMES, key, change: Change::Delete }).collect();
    loose.change(SPARE_NODES, |tree, m| tree.change(m, &steps));
    let (after, _) = loose.fill();
    assert!((1..=2).contains(&(before - after)), "{before} leaves, then {after}");
}
