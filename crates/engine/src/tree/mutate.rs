//! Changing a tree under the apply mutex: prepare (count what will become dirty, find what is missing), then put and
//! delete. Everything on the paths is resident by then.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use varve_format::node::{ENTRY_OVERHEAD_BYTES, common_prefix};
use varve_format::root::{NODE_PTR_BYTES, NodePtr};
use varve_format::{BLOCK_BYTES, KEY_BYTES_MAX};

use super::join::SPARE_OF_ONE;
use super::node::{Body, Interior, Leaf, Link, Node};
use super::{Miss, NodeCache, Pins, Tree, hold, resident};
use crate::key::Key;

/// A node of an earlier state that the present one no longer refers to.
pub enum Replaced {
    /// On disk here.
    At(NodePtr),
    /// Still to be written by the checkpoint that runs now; its location is known when that ends.
    Frozen(Arc<Node>),
}

/// What a group of changes works on, and what it has done.
pub struct Mutation<'a> {
    /// The checkpoint generation that dirty nodes belong to.
    pub generation: u64,
    /// Clean nodes.
    pub cache: &'a NodeCache,
    /// Clean nodes that were fetched for this transaction.
    pub pins: &'a Pins,
    /// Nodes that went out of use.
    pub replaced: &'a mut Vec<Replaced>,
    /// Change of the number of dirty nodes.
    pub dirty_delta: i64,
    /// Leave the last entry of a leaf where it is and set `deferred`: without the leaf, its range falls to a neighbour
    /// that later steps of the transaction have not prepared.
    pub keep_last: bool,
    /// See `keep_last`.
    pub deferred: bool,
    /// Nodes by which joining underfull ones, and splitting elsewhere than in the middle, may go beyond the forecast. Nobody
    /// needs either: without, nodes stay apart, and are split in the middle.
    pub spare: u64,
    /// The log is replayed: leaves are split where entries come in whatever `spare` says, or there would be more nodes than
    /// there were.
    pub replay: bool,
}

/// What a transaction will need at most.
#[derive(Default, Clone, Copy, Debug)]
pub struct Forecast {
    /// Clean nodes that become dirty.
    pub dirtied: u64,
    /// Nodes that splits may add.
    pub added: u64,
}

/// What [`Tree::prepare`] is asked, and the two things it collects.
pub struct Asked<'a> {
    /// Bytes of key and value to be put; `None` to delete.
    pub entry_bytes: Option<usize>,
    /// The checkpoint generation that dirty nodes belong to.
    pub generation: u64,
    /// Number of the transaction: nodes are counted once a stamp.
    pub stamp: u64,
    /// Clean nodes.
    pub cache: &'a NodeCache,
    /// Clean nodes on the paths, so that the cache cannot drop them.
    pub pins: &'a mut Pins,
    /// What all of it will need.
    pub forecast: Forecast,
}

/// What a deletion has left of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remains {
    /// So much that nobody need look whether it should be joined with another.
    Most,
    /// Less than before.
    Less,
    /// Nothing: it must go.
    Nothing,
}

/// Whether to join a leaf is looked at each time that this much of it has gone.
const LOOK_BYTES: usize = BLOCK_BYTES / 16;

/// A path, from a node up to the root.
struct Above<'a> {
    node: &'a Node,
    above: Option<&'a Above<'a>>,
}

impl<'a> Above<'a> {
    fn up(&'a self) -> impl Iterator<Item = &'a Node> {
        std::iter::successors(Some(self), |at| at.above).map(|at| at.node)
    }
}

impl Asked<'_> {
    /// Counts what a change of `key` does to the nodes of its path.
    fn count(&mut self, path: &Above<'_>, key: &[u8]) {
        let forecast = &mut self.forecast;
        for node in path.up() {
            if node.stamp.swap(self.stamp, Relaxed) != self.stamp {
                node.incoming_bytes.store(0, Relaxed);
                forecast.dirtied += u64::from(node.generation != self.generation);
            }
        }
        // What joining underfull nodes takes is not forecast: it is done if there is room ([`Mutation::spare`]).
        let Some(bytes) = self.entry_bytes else { return };
        // A key that does not share the common prefix makes every other one longer.
        let mut add = bytes + ENTRY_OVERHEAD_BYTES + path.node.prefix_growth(Some(key));
        let mut nodes = path.up().peekable();
        while let Some(node) = nodes.next() {
            let incoming = node.incoming_bytes.fetch_add(add as u32, Relaxed) as usize + add;
            let before = incoming - add;
            let bytes = node.encoded_bytes();
            let over = |incoming: usize| (bytes + incoming).saturating_sub(1) / BLOCK_BYTES;
            let splits = over(incoming) - over(before).min(over(incoming));
            if splits == 0 {
                return;
            }
            forecast.added += 2 * splits as u64;
            add = INTERIOR_ENTRY_BYTES_MAX * 2 * splits;
            if let Some(parent) = nodes.peek() {
                add += parent.prefix_growth(None);
            }
        }
        forecast.added += 1; // a new root
    }
}

const INTERIOR_ENTRY_BYTES_MAX: usize = ENTRY_OVERHEAD_BYTES + KEY_BYTES_MAX + NODE_PTR_BYTES;

impl Tree {
    /// Adds to the forecast what putting or deleting `key` will need. Returns whether `key` exists now.
    pub fn prepare(&self, key: &[u8], asked: &mut Asked<'_>) -> Result<bool, Miss> {
        match &self.root {
            Some(root) => self.prepare_below(root, self.height - 1, None, key, asked),
            None => {
                if asked.entry_bytes.is_some() {
                    // Every put of this transaction may open a leaf of its own in the worst case; one is the rule.
                    asked.forecast.added += 1;
                }
                Ok(false)
            }
        }
    }

    fn prepare_below(
        &self,
        link: &Link,
        level: u8,
        above: Option<&Above<'_>>,
        key: &[u8],
        asked: &mut Asked<'_>,
    ) -> Result<bool, Miss> {
        let held;
        let node: &Node = match link {
            Link::Mem(node) => node,
            Link::Disk(_) => {
                held = hold(link, asked.cache, asked.pins).ok_or_else(|| miss(self, link, level))?;
                &held
            }
        };
        match &node.body {
            Body::Leaf(leaf) => {
                let exists = leaf.find(key).is_ok();
                if exists || asked.entry_bytes.is_some() {
                    asked.count(&Above { node, above }, key);
                }
                Ok(exists)
            }
            Body::Interior(n) => {
                let child = &n.children[n.child_index(key)];
                self.prepare_below(child, level - 1, Some(&Above { node, above }), key, asked)
            }
        }
    }

    /// Puts `value` at `key`. [`Tree::prepare`] has succeeded for it.
    pub fn put(&mut self, m: &mut Mutation<'_>, key: &[u8], value: &[u8]) {
        match &mut self.root {
            None => {
                let mut leaf = Leaf::default();
                leaf.put(key, value);
                self.root = Some(m.add(Body::Leaf(leaf)));
                self.height = 1;
            }
            Some(root) => {
                let mut right = m.put_below(root, true, key, value);
                while !right.is_empty() {
                    let mut keys = vec![Key::EMPTY];
                    let mut children = vec![self.root.take().expect("the root was there a moment ago")];
                    for (key, link) in right.drain(..) {
                        keys.push(key);
                        children.push(link);
                    }
                    let (body, more) = m.split_interior(Interior::new(self.height, keys, children));
                    self.root = Some(m.add(body));
                    self.height += 1;
                    right = more;
                }
            }
        }
    }

    /// Removes `key`, which exists, unless it is the last of its leaf and [`Mutation::keep_last`] is set.
    /// [`Tree::prepare`] has succeeded for it.
    pub fn delete(&mut self, m: &mut Mutation<'_>, key: &[u8]) {
        let Some(root) = &mut self.root else { return };
        if m.delete_below(root, key) == Remains::Nothing {
            let gone = self.root.take().expect("the root was there a moment ago");
            m.forget(gone);
            self.height = 0;
            return;
        }
        // A root with a single child gives way to it.
        while let Some(Link::Mem(node)) = &self.root
            && let Body::Interior(n) = &node.body
            && n.children.len() == 1
        {
            let child = n.children[0].clone();
            let old = self.root.replace(child).expect("just matched");
            m.forget(old);
            self.height -= 1;
        }
    }

    /// Replaces written nodes that are still held in memory by pointers to disk, so that only the cache holds them.
    /// `settle` takes each of them on the way. Only nodes that are dirty now are walked.
    pub fn let_go(&mut self, generation: u64) {
        if let Some(root) = &mut self.root {
            let_go_below(root, generation);
        }
    }
}

fn let_go_below(link: &mut Link, generation: u64) {
    let Link::Mem(node) = link else { return };
    if let Some(ptr) = node.location.get() {
        *link = Link::Disk(*ptr);
        return;
    }
    if node.generation != generation || node.level() == 0 {
        return;
    }
    let Body::Interior(n) = &node.body else { return };
    let settled = |l: &Link| matches!(l, Link::Mem(c) if c.location.get().is_some() || c.level() > 0);
    if !n.children.iter().any(settled) {
        return;
    }
    if Arc::get_mut(node).is_none() {
        // A reader holds it: leave that one alone and go on with a copy.
        *node = Arc::new(Node::new(generation, node.body.clone()));
    }
    let node = Arc::get_mut(node).expect("no other holder: it was just copied, and the apply mutex is held");
    if let Body::Interior(n) = &mut node.body {
        n.children.iter_mut().for_each(|c| let_go_below(c, generation));
    }
}

fn miss(tree: &Tree, link: &Link, level: u8) -> Miss {
    match link {
        Link::Disk(ptr) => Miss { ptr: *ptr, tree: tree.id, level },
        Link::Mem(_) => unreachable!("nodes in memory are resident"),
    }
}

/// The shortest key that is above `left` and at most `right`.
pub(super) fn separator(left: &[u8], right: &[u8]) -> Key {
    Key::new(&right[..(common_prefix(left, right) + 1).min(right.len())])
}

impl Mutation<'_> {
    pub(super) fn add(&mut self, body: Body) -> Link {
        self.dirty_delta += 1;
        Link::Mem(Arc::new(Node::new(self.generation, body)))
    }

    /// A node goes out of use.
    pub(super) fn forget(&mut self, link: Link) {
        match link {
            Link::Disk(ptr) => self.replaced.push(Replaced::At(ptr)),
            Link::Mem(node) if node.generation == self.generation && node.location.get().is_none() => {
                self.dirty_delta -= 1;
            }
            Link::Mem(node) => self.replaced.push(replaced(&node)),
        }
    }

    /// The node behind `link`, dirty in this generation and held by nobody else.
    pub(super) fn writable<'l>(&mut self, link: &'l mut Link) -> &'l mut Node {
        if let Link::Disk(_) = link {
            let node = resident(link, self.cache, self.pins).expect("prepared paths are resident");
            *link = Link::Mem(node);
        }
        let Link::Mem(node) = link else { unreachable!("just made resident") };
        if node.generation != self.generation || node.location.get().is_some() {
            self.replaced.push(replaced(node));
            self.dirty_delta += 1;
            *node = Arc::new(Node::new(self.generation, node.body.to_change()));
        } else if Arc::get_mut(node).is_none() {
            *node = Arc::new(Node::new(self.generation, node.body.to_change()));
        }
        Arc::get_mut(node).expect("no other holder: it was just copied, and the apply mutex is held")
    }

    /// `edge`: nothing of the tree lies to the right of `link`.
    fn put_below(&mut self, link: &mut Link, edge: bool, key: &[u8], value: &[u8]) -> Vec<(Key, Link)> {
        let node = self.writable(link);
        match &mut node.body {
            Body::Leaf(leaf) => {
                let at = leaf.put(key, value);
                if leaf.encoded_bytes() <= BLOCK_BYTES {
                    return Vec::new();
                }
                let from = self.from(leaf, at, edge);
                let right = leaf.split_off(from);
                let mut out = Vec::new();
                self.split_leaf(leaf, right, &mut out);
                out
            }
            Body::Interior(n) => {
                let i = n.child_index(key);
                let edge = edge && i + 1 == n.children.len();
                let right = self.put_below(&mut n.children[i], edge, key, value);
                if right.is_empty() {
                    return right;
                }
                for (k, (key, link)) in right.into_iter().enumerate() {
                    n.insert_behind(i + k, key, link);
                }
                if n.encoded_bytes() <= BLOCK_BYTES {
                    return Vec::new();
                }
                let whole = std::mem::replace(n, Interior::new(n.level, Vec::new(), Vec::new()));
                let (Body::Interior(left), out) = self.split_interior(whole) else {
                    unreachable!("splitting an interior node gives interior nodes")
                };
                *n = left;
                out
            }
        }
    }

    /// The entry at which to split a full leaf, into which one came in at `at`: where entries come in, or in the middle.
    fn from(&mut self, leaf: &Leaf, at: usize, edge: bool) -> usize {
        // The forecast is for halves: a part that is nearly full may be split again by a put of the same transaction. Behind the
        // last key of the tree that is rare. Elsewhere, keys that fall could leave a leaf behind each.
        let appended = edge && at + 1 == leaf.len() && leaf.len() > 1;
        if (appended || self.replay || self.spare >= SPARE_OF_ONE)
            && let Some(from) = if appended { Some(at) } else { leaf.at_place() }
        {
            self.spare = self.spare.saturating_sub(SPARE_OF_ONE);
            return from;
        }
        leaf.middle()
    }

    /// Hands out `right` (and whatever else does not fit) as new nodes to the right of `left`.
    fn split_leaf(&mut self, left: &mut Leaf, mut right: Leaf, out: &mut Vec<(Key, Link)>) {
        if left.encoded_bytes() > BLOCK_BYTES {
            let from = left.middle();
            let more = left.split_off(from);
            self.split_leaf(left, more, out);
        }
        let key = separator(&left_last(left, out), &right.key(0));
        let at = out.len();
        if right.encoded_bytes() > BLOCK_BYTES {
            let from = right.middle();
            let rest = right.split_off(from);
            let mut more = Vec::new();
            self.split_leaf(&mut right, rest, &mut more);
            out.extend(more);
        }
        let link = self.add(Body::Leaf(right));
        out.insert(at, (key, link));
    }

    /// Splits an interior node until every part fits; the first part comes back as a body.
    fn split_interior(&mut self, mut node: Interior) -> (Body, Vec<(Key, Link)>) {
        let mut out = Vec::new();
        while node.encoded_bytes() > BLOCK_BYTES {
            let from = node.keys().len() / 2;
            let (key, right) = node.split_off(from);
            let (body, more) = self.split_interior(right);
            let link = self.add(body);
            let mut next = vec![(key, link)];
            next.extend(more);
            next.append(&mut out);
            out = next;
        }
        (Body::Interior(node), out)
    }

    /// Deletes below `link`.
    fn delete_below(&mut self, link: &mut Link, key: &[u8]) -> Remains {
        let node = self.writable(link);
        match &mut node.body {
            Body::Leaf(leaf) => {
                let before = leaf.live_bytes();
                if let Ok(i) = leaf.find(key) {
                    if leaf.len() == 1 && self.keep_last {
                        self.deferred = true;
                        return Remains::Most;
                    }
                    leaf.remove(i);
                }
                match leaf.len() {
                    0 => Remains::Nothing,
                    _ if before / LOOK_BYTES == leaf.live_bytes() / LOOK_BYTES => Remains::Most,
                    _ => Remains::Less,
                }
            }
            Body::Interior(n) => {
                let i = n.child_index(key);
                match self.delete_below(&mut n.children[i], key) {
                    Remains::Most => return Remains::Most,
                    Remains::Less if !self.join_around(n, i) => return Remains::Most,
                    Remains::Less => {}
                    Remains::Nothing => {
                        let gone = n.remove(i);
                        self.forget(gone);
                    }
                }
                if n.children.is_empty() { Remains::Nothing } else { Remains::Less }
            }
        }
    }
}

fn left_last(left: &Leaf, out: &[(Key, Link)]) -> Key {
    match out.last() {
        Some((_, Link::Mem(node))) => match &node.body {
            Body::Leaf(l) => l.key(l.len() - 1),
            Body::Interior(_) => Key::EMPTY,
        },
        _ => left.key(left.len() - 1),
    }
}

fn replaced(node: &Arc<Node>) -> Replaced {
    match node.location.get() {
        Some(ptr) => Replaced::At(*ptr),
        None => Replaced::Frozen(node.clone()),
    }
}
