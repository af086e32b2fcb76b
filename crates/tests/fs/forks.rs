//! A model of subvolumes: a full copy of the tree for each.

use std::collections::BTreeMap;

use varve_engine::TreeId;
use varve_sim::Rng;

use super::*;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) directory: bool,
    pub(super) data: Vec<u8>,
    pub(super) attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Inodes by their own number, which copies share, and names by directory.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) names: BTreeMap<(u64, Vec<u8>), u64>,
}

const LOCAL: u64 = (1 << 43) - 1;

struct World {
    f: Fixture,
    rng: Rng,
    /// Root, whether it is read-only, and what is there.
    trees: BTreeMap<Vec<u8>, (InodeId, bool, Tree)>,
    made: u64,
    /// Open files without a name: the subvolume, the inode, and what it holds where it may still be given one.
    nameless: Vec<(Vec<u8>, InodeId, Option<Node>)>,
    /// Differences compared that were not empty.
    compared: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            f: Fixture::new(128 * MIB),
            rng: Rng::new(seed),
            trees: BTreeMap::new(),
            made: 0,
            nameless: Vec::new(),
            compared: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn fresh(&mut self) -> Vec<u8> {
        self.made += 1;
        format!("s{}", self.made).into_bytes()
    }

    fn pick(&mut self) -> Option<Vec<u8>> {
        let n = self.trees.len();
        if n == 0 {
            return None;
        }
        let at = self.below(n);
        self.trees.keys().nth(at).cloned()
    }

    fn step(&mut self) {
        let dice = self.below(100);
        if self.trees.is_empty() || (dice < 3 && self.trees.len() < 6) {
            let name = self.fresh();
            let root = self.f.fs.create_subvolume(Caller::ROOT, ROOT, &name, 0o755).unwrap().ino;
            let node = Node { directory: true, ..Node::default() };
            let tree = Tree { nodes: BTreeMap::from([(1, node)]), ..Tree::default() };
            self.trees.insert(name, (root, false, tree));
            return;
        }
        let name = self.pick().unwrap();
        let (root, read_only, _) = self.trees[&name];
        match dice {
            3..10 if self.trees.len() < 6 => {
                let copy = self.fresh();
                let only = self.below(4) == 0;
                let ino = self.f.fs.snapshot(root, ROOT, &copy, only, false).unwrap();
                let tree = self.trees[&name].2.clone();
                self.trees.insert(copy, (ino, only, tree));
            }
            10..14 if self.trees.len() > 1 => {
                self.f.fs.delete_subvolume(ROOT, &name).unwrap();
                self.trees.remove(&name);
                self.let_go(|of| *of == name);
            }
            14..18 => self.f.fs.flush_all().unwrap(),
            18..24 => self.f.fs.maintain().unwrap(),
            24 => {
                self.f.fs.sync().unwrap();
                self.nameless.clear();
                self.f.kill();
            }
            25 => {
                self.nameless.clear();
                self.f.reopen();
            }
            _ if read_only => {}
            _ => self.change(&name, root),
        }
    }

    /// Ends the handles of files without a name.
    fn let_go(&mut self, of: impl Fn(&Vec<u8>) -> bool) {
        for (_, ino, _) in self.nameless.extract_if(.., |(name, ..)| of(name)) {
            // Of a subvolume that is gone there may be nothing left.
            let _ = self.f.fs.release_inode(ino);
        }
    }

    /// A file begins without a name, or gets its first one.
    fn without_name(&mut self, name: &[u8], dir: InodeId, entry: &[u8], tree: &mut Tree) {
        let waits = |(of, _, node): &(Vec<u8>, InodeId, Option<Node>)| of == name && node.is_some();
        if let Some(at) = self.nameless.iter().position(waits) {
            let (_, ino, node) = self.nameless.swap_remove(at);
            self.f.fs.link(ino, dir, entry).unwrap();
            self.f.fs.release_inode(ino).unwrap();
            tree.nodes.insert(ino.0 & LOCAL, node.unwrap());
            tree.names.insert((dir.0 & LOCAL, entry.to_vec()), ino.0 & LOCAL);
            return;
        }
        let new = NewNameless { mode: 0o644, umask: 0, linkable: true, set_gid_judged: false };
        let ino = self.f.fs.tmpfile(Caller::ROOT, dir, new).unwrap().ino;
        let mut node = Node { data: pattern(ino.0, self.below(5000)), ..Node::default() };
        self.f.write(ino, 0, &node.data);
        for key in 0..self.below(3) {
            let (key, value) = (format!("user.k{key}").into_bytes(), pattern(ino.0, 3000));
            self.f.fs.setxattr(ino, &key, &value, XattrMode::Set).unwrap();
            node.attributes.insert(key, value);
        }
        self.nameless.push((name.to_vec(), ino, Some(node)));
    }

    /// A change in one subvolume.
    fn change(&mut self, name: &[u8], root: InodeId) {
        let (_, _, mut tree) = self.trees[name].clone();
        let full = |local: u64| InodeId(root.0 & !LOCAL | local);
        let directories: Vec<u64> =
            tree.nodes.iter().filter(|(_, node)| node.directory).map(|(ino, _)| *ino).collect();
        let dir = directories[self.below(directories.len())];
        let entry = format!("n{}", self.below(6)).into_bytes();
        let there = tree.names.get(&(dir, entry.clone())).copied();
        let verb = self.below(12);
        match (verb, there) {
            (0..2, None) => {
                let directory = self.below(4) == 0;
                let attr = match directory {
                    true => self.f.fs.mkdir(Caller::ROOT, full(dir), &entry, 0o755),
                    false => self.f.fs.create(Caller::ROOT, full(dir), &entry, 0o644),
                };
                let local = attr.unwrap().ino.0 & LOCAL;
                tree.nodes.insert(local, Node { directory, ..Node::default() });
                tree.names.insert((dir, entry), local);
            }
            (2, Some(ino)) if tree.nodes[&ino].directory => {
                let empty = !tree.names.keys().any(|(above, _)| *above == ino);
                let result = self.f.fs.rmdir(full(dir), &entry);
                if empty {
                    result.unwrap();
                    tree.names.remove(&(dir, entry));
                    tree.nodes.remove(&ino);
                } else {
                    refused(result, 39);
                }
            }
            (2, Some(ino)) => {
                if self.below(2) == 0 {
                    self.f.fs.open_inode(Caller::ROOT, full(ino), false).unwrap();
                    self.nameless.push((name.to_vec(), full(ino), None));
                }
                self.f.fs.unlink(full(dir), &entry).unwrap();
                tree.names.remove(&(dir, entry));
                if !tree.names.values().any(|other| *other == ino) {
                    tree.nodes.remove(&ino);
                }
            }
            (2..5, None) => self.without_name(name, full(dir), &entry, &mut tree),
            (5, None) => self.let_go(|_| true),
            (3, Some(ino)) if !tree.nodes[&ino].directory => {
                let to = directories[self.below(directories.len())];
                let other = format!("l{}", self.below(3)).into_bytes();
                if !tree.names.contains_key(&(to, other.clone())) {
                    self.f.fs.link(full(ino), full(to), &other).unwrap();
                    tree.names.insert((to, other), ino);
                }
            }
            (4, Some(ino)) if !tree.nodes[&ino].directory => {
                let to = directories[self.below(directories.len())];
                let other = format!("n{}", self.below(6)).into_bytes();
                let over = tree.names.get(&(to, other.clone())).copied();
                if over.is_none_or(|over| !tree.nodes[&over].directory && over != ino) {
                    self.f.fs.rename(full(dir), &entry, full(to), &other, RenameMode::Replace).unwrap();
                    tree.names.remove(&(dir, entry));
                    tree.names.insert((to, other), ino);
                    if let Some(over) = over
                        && !tree.names.values().any(|left| *left == over)
                    {
                        tree.nodes.remove(&over);
                    }
                }
            }
            (5, Some(ino)) => {
                let key = format!("user.k{}", self.below(3)).into_bytes();
                let value = pattern(self.made ^ ino, self.rng.below(3000) as usize);
                self.f.fs.setxattr(full(ino), &key, &value, XattrMode::Set).unwrap();
                tree.nodes.get_mut(&ino).unwrap().attributes.insert(key, value);
            }
            (6, Some(ino)) if !tree.nodes[&ino].directory => {
                let size = self.below(200_000);
                self.f.truncate(full(ino), size as u64);
                tree.nodes.get_mut(&ino).unwrap().data.resize(size, 0);
            }
            (7, Some(ino)) if !tree.nodes[&ino].directory => {
                let (at, len) = (self.below(150_000) / 1000 * 1000, 1 + self.below(50_000));
                self.f.fs.fallocate(Caller::ROOT, full(ino), at as u64, len as u64, Allocate::Punch).unwrap();
                let data = &mut tree.nodes.get_mut(&ino).unwrap().data;
                let end = (at + len).min(data.len());
                if at < end {
                    data[at..end].fill(0);
                }
            }
            (8, Some(ino)) if !tree.nodes[&ino].directory => self.share(&mut tree, full, ino),
            (9, Some(ino)) if !tree.nodes[&ino].directory => {
                let blocks = tree.nodes[&ino].data.len() / 4096;
                let (at, count, insert) = (self.below(blocks + 1), 1 + self.below(20), self.below(2) == 0);
                let (from, len) = ((at * 4096) as u64, (count * 4096) as u64);
                let data = &mut tree.nodes.get_mut(&ino).unwrap().data;
                if insert && at * 4096 < data.len() {
                    self.f.fs.insert_range(Caller::ROOT, full(ino), from, len).unwrap();
                    data.splice(at * 4096..at * 4096, vec![0; count * 4096]);
                } else if (at + count) * 4096 < data.len() {
                    self.f.fs.collapse_range(Caller::ROOT, full(ino), from, len).unwrap();
                    data.drain(at * 4096..(at + count) * 4096);
                }
            }
            (_, Some(ino)) if !tree.nodes[&ino].directory => {
                let at = if self.below(2) == 0 { 0 } else { self.below(150_000) };
                let len = 1 + if self.below(3) == 0 { self.below(100_000) } else { self.below(600) };
                let bytes = pattern(self.rng.below(1 << 40), len);
                self.f.write(full(ino), at as u64, &bytes);
                let data = &mut tree.nodes.get_mut(&ino).unwrap().data;
                data.resize(data.len().max(at + len), 0);
                data[at..at + len].copy_from_slice(&bytes);
            }
            _ => {}
        }
        self.trees.get_mut(name).unwrap().2 = tree;
    }

    /// A part of some file anywhere becomes a part of this one; in between, ranges are deduplicated.
    fn share(&mut self, tree: &mut Tree, full: impl Fn(u64) -> InodeId, ino: u64) {
        let mut files: Vec<(InodeId, Vec<u8>)> = Vec::new();
        for (root, _, other) in self.trees.values() {
            let of = |(ino, node): (&u64, &Node)| (InodeId(root.0 & !LOCAL | ino), node.data.clone());
            files.extend(other.nodes.iter().filter(|(_, node)| !node.directory).map(of));
        }
        let at = self.below(files.len());
        let (from, source) = files.swap_remove(at);
        let to = full(ino);
        let target = &mut tree.nodes.get_mut(&ino).unwrap().data;
        let mut at = |len: usize| self.rng.below(len as u64 / 4096 + 1) as usize * 4096;
        let (from_at, to_at) = (at(source.len()), at(target.len() + 20_000));
        let most = source.len() - from_at.min(source.len());
        let (offsets, dedupe) = ((from_at as u64, to_at as u64), self.rng.below(3) == 0);
        if dedupe {
            let len = most.min(target.len() - to_at.min(target.len())) / 4096 * 4096;
            let equal = len > 0 && source[from_at..from_at + len] == target[to_at..to_at + len];
            match self.f.fs.dedupe_range((from, offsets.0), (to, offsets.1), len as u64) {
                Ok(Deduped::Same(bytes)) => assert!(bytes == len as u64 && (equal || len == 0)),
                Ok(Deduped::Differs) => assert!(!equal),
                // In its record, or the same range.
                Err(error) => assert!([22, 95].contains(&error.errno()), "{error}"),
            }
            return;
        }
        let whole = to_at + most >= target.len() && self.rng.below(2) == 0;
        let len = if whole { most } else { most / 4096 * 4096 };
        let blocks = len.next_multiple_of(4096);
        let overlap = from == to && from_at < to_at + blocks && to_at < from_at + blocks;
        if len == 0 || overlap {
            return;
        }
        self.f.fs.clone_range(Caller::ROOT, (from, offsets.0), (to, offsets.1), len as u64).unwrap();
        target.resize(target.len().max(to_at + len), 0);
        target[to_at..to_at + len].copy_from_slice(&source[from_at..from_at + len]);
    }

    /// What is really there.
    fn read(&self, root: InodeId) -> Tree {
        let mut tree = Tree::default();
        let mut left = vec![root];
        while let Some(ino) = left.pop() {
            let local = ino.0 & LOCAL;
            if tree.nodes.contains_key(&local) {
                continue;
            }
            let attr = self.f.fs.getattr(ino).unwrap();
            assert_eq!(attr.ino, ino);
            let directory = attr.kind == FileKind::Directory;
            let mut node = Node { directory, ..Node::default() };
            for key in self.f.fs.listxattr(ino).unwrap() {
                node.attributes.insert(key.clone(), self.f.fs.getxattr(ino, &key).unwrap());
            }
            if directory {
                let mut entries = Vec::new();
                self.f
                    .fs
                    .readdir(ino, 2, &mut |entry| {
                        entries.push(entry);
                        true
                    })
                    .unwrap();
                for entry in entries {
                    assert_eq!(self.f.fs.lookup(ino, &entry.name).unwrap().ino, entry.ino);
                    tree.names.insert((local, entry.name), entry.ino.0 & LOCAL);
                    left.push(entry.ino);
                }
            } else {
                node.data = self.f.read_all(ino);
            }
            tree.nodes.insert(local, node);
        }
        tree
    }

    /// Compares the maps of all files with one another: what two of them have is shared, and nothing else.
    fn compare_maps(&mut self, seed: u64, step: u32) {
        let (mut files, mut users) = (Vec::new(), BTreeMap::<u64, u32>::new());
        for (root, _, tree) in self.trees.values() {
            let slot = root.0 & !LOCAL;
            for (ino, _) in tree.nodes.iter().filter(|(_, node)| !node.directory) {
                files.push(map::whole(&self.f, InodeId(slot | ino), 1 + self.rng.below(9) as usize));
            }
        }
        let blocks = |piece: &FilePiece| {
            let blocks = piece.len.div_ceil(4096);
            piece.address.into_iter().flat_map(move |first| (0..blocks).map(move |n| first + n * 4096))
        };
        for block in files.iter().flatten().flat_map(blocks) {
            *users.entry(block).or_default() += 1;
        }
        for pieces in &files {
            let (mut sums, mut here) = (ExtentSums::default(), BTreeMap::<u64, u32>::new());
            pieces.iter().for_each(|piece| sums.add(piece));
            for block in pieces.iter().flat_map(blocks) {
                *here.entry(block).or_default() += 1;
            }
            let own = here.iter().filter(|(block, places)| users[*block] == **places).count() as u64;
            let (data, places) = (here.len() as u64, u64::from(here.values().sum::<u32>()));
            let expected = [data, data - own, own, places - data].map(|blocks| blocks * 4096);
            let DataSums { data, shared, exclusive, repeated } = sums.finish();
            assert_eq!([data, shared, exclusive, repeated], expected, "seed {seed}, step {step}: {pieces:?}");
        }
        for piece in files.iter().flatten() {
            for block in blocks(piece) {
                let others = users[&block] > 1;
                assert_eq!(piece.shared, others, "seed {seed}, step {step}: block {block:#x} of {piece:?}");
            }
        }
    }

    /// What leads from any of these subvolumes to any other, done to a copy of the one, gives the other.
    fn compare_diffs(&mut self, seed: u64, step: u32) {
        let all: Vec<_> = self.trees.values().cloned().collect();
        for (old_root, _, old) in &all {
            let (new_root, _, new) = &all[self.below(all.len())];
            let page = [1, 3, 1000][self.below(3)];
            if let Some(changes) = diff::whole(&self.f, *old_root, *new_root, page) {
                let done = diff::apply(&self.f, old.clone(), *new_root, &changes);
                assert!(
                    done == *new,
                    "seed {seed}, step {step}: {changes:#?} gives {done:?} and not {new:?}"
                );
                self.compared += u64::from(!changes.is_empty());
            }
        }
    }

    fn compare(&self, seed: u64, step: u32) {
        for (name, (root, _, tree)) in &self.trees {
            let found = self.read(*root);
            let shown = String::from_utf8_lossy(name);
            assert_eq!(found.names, tree.names, "seed {seed}, step {step}, names of {shown}");
            assert!(found == *tree, "seed {seed}, step {step}, files of {shown}");
        }
    }
}

// Goal: every subvolume shows exactly what was done in it, and nothing is left when all are gone. Method: random changes,
// snapshots, deletions, files without names, reaping, closing and killing, beside a full copy of each tree; all compared every few steps, and
// the whole pool checked when it is idle.
#[test]
fn model() {
    let seeds = std::env::var("VARVE_SEEDS").map_or(6, |seeds| seeds.parse().unwrap());
    let first = std::env::var("VARVE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut compared = 0;
    for seed in first..first + seeds {
        let mut world = World::new(seed);
        for step in 0..250 {
            world.step();
            if step % 5 == 4 {
                world.compare(seed, step);
                world.compare_diffs(seed, step);
            }
            if step % 25 == 24 {
                // Their blocks are shared, too.
                world.let_go(|_| true);
                world.f.fs.maintain().unwrap();
                world.compare(seed, step);
                world.compare_maps(seed, step);
                let report = world.f.fs.check(true).unwrap();
                assert!(report.problems.is_empty(), "seed {seed}, step {step}: {:#?}", report.problems);
            }
        }
        compared += world.compared;
        world.let_go(|_| true);
        for name in std::mem::take(&mut world.trees).into_keys() {
            world.f.fs.delete_subvolume(ROOT, &name).unwrap();
        }
        world.f.fs.maintain().unwrap();
        world.f.check();
        world.f.reopen();
        world.f.check();
        assert_eq!(world.f.fs.statfs().unwrap().files, 1, "seed {seed}");
        let store = &world.f.fs.core().store;
        let trees = [
            TreeId::EXTENTS,
            TreeId::VERSIONS,
            TreeId::NAMES,
            TreeId::XATTRS,
            TreeId::ORPHANS,
            TreeId::SHARES,
        ];
        for tree in trees {
            let mut left = 0;
            store
                .view()
                .scan(tree, &[], &mut |_, _| {
                    left += 1;
                    true
                })
                .unwrap();
            assert_eq!(left, 0, "seed {seed}: entries of the {} tree are left", tree.name());
        }
    }
    assert!(compared > 10 * seeds, "{compared} differences");
}
