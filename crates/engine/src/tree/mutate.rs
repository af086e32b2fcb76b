//! Changing a tree under the apply mutex. Everything on the paths is resident: [`super::prepare`] has seen to that.
//!
//! The steps of a transaction come in the order of their keys, and those under one child descend together. What that order
//! is worth beside time:
//!
//! 1. A leaf that has become empty goes at once, and its range falls to a neighbour: nothing that follows was meant for it.
//! 2. Underfull children are joined when all that was meant for their parent has been done. So nothing is put into a joined
//!    node that was forecast for one of its parts, and leaves that are emptied entry by entry are not joined on the way.
//! 3. A leaf that is full is split only after what makes it smaller has been done: not when what goes makes room for what
//!    comes.
//!
//! A split is handed up at once, with the steps that are left: a parent that must split, too, does so before more comes in,
//! which is what the forecast counts.

use std::sync::{Arc, OnceLock};

use varve_format::BLOCK_BYTES;
use varve_format::node::common_prefix;
use varve_format::root::NodePtr;

use super::join::SPARE_OF_ONE;
use super::node::{Body, Interior, Leaf, Link, Node};
use super::step::{Change, Step, in_front};
use super::{NodeCache, Pins, Route, Tree, resident};
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
    /// Clean nodes that were fetched for this transaction. What is changed leaves them, and the cache.
    pub pins: &'a mut Pins,
    /// Nodes that went out of use.
    pub replaced: &'a mut Vec<Replaced>,
    /// Change of the number of dirty nodes.
    pub dirty_delta: i64,
    /// Nodes by which joining underfull ones, and splitting elsewhere than in the middle, may go beyond the forecast. Nobody
    /// needs either: without, nodes stay apart that are not all dirty, and are split in the middle.
    pub spare: u64,
    /// The log is replayed: leaves are split where entries come in whatever `spare` says, or there would be more nodes than
    /// there were.
    pub replay: bool,
    /// What a split on its way up puts beside the node that was split.
    pub right: Vec<(Key, Link)>,
    /// The ways of the steps as [`Tree::prepare`] noted them, or nothing if steps were left out since.
    pub route: Route,
}

/// What steps have left of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remains {
    /// So much that nobody need look whether it should be joined with another.
    Most,
    /// Less than before.
    Less,
    /// Nothing: it must go.
    Nothing,
    /// It has been split: [`Mutation::right`] is new to the right of it.
    Split,
}

/// Whether to join a leaf is looked at each time that this much of it has gone.
const LOOK_BYTES: usize = BLOCK_BYTES / 16;

/// What has become of steps below a node.
struct Went {
    /// So many have been done: all, unless the node has been split.
    steps: usize,
    remains: Remains,
}

impl Tree {
    /// Does `steps`, which are sorted, all of this tree, and without [`Change::Nothing`]. [`Tree::prepare`] has succeeded for
    /// them.
    pub fn change(&mut self, m: &mut Mutation<'_>, mut steps: &[Step<'_>]) {
        m.route.follow_tree();
        while !steps.is_empty() {
            let root = self.root.get_or_insert_with(|| {
                self.height = 1;
                m.add(Body::Leaf(Leaf::default()))
            });
            let went = m.change_below(root, true, steps);
            steps = &steps[went.steps..];
            match went.remains {
                Remains::Most | Remains::Less => {}
                Remains::Nothing => {
                    m.route.lose();
                    let gone = self.root.take().expect("the root was there a moment ago");
                    m.forget(gone);
                    self.height = 0;
                }
                Remains::Split => self.grow(m),
            }
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

    /// A new root above the old one and what is new to the right of it.
    fn grow(&mut self, m: &mut Mutation<'_>) {
        let mut right = std::mem::take(&mut m.right);
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

/// Does those of `steps` that make a leaf smaller.
fn shrink(leaf: &mut Leaf, steps: &[Step<'_>]) {
    for step in steps {
        match (step.change, leaf.find(step.key)) {
            (Change::Delete, Ok(i)) => leaf.remove(i),
            (Change::Put(value), Ok(i)) if value.len() < leaf.value(i).len() => {
                leaf.put(step.key, value);
            }
            _ => {}
        }
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

    /// Whether a node is dirty in this generation.
    pub(super) fn is_dirty(&self, node: &Node) -> bool {
        node.generation == self.generation && node.location.get().is_none()
    }

    /// A node goes out of use.
    pub(super) fn forget(&mut self, link: Link) {
        match link {
            Link::Disk(ptr) => self.replaced.push(Replaced::At(ptr)),
            Link::Mem(node) if self.is_dirty(&node) => self.dirty_delta -= 1,
            Link::Mem(node) => self.replaced.push(replaced(&node)),
        }
    }

    /// The node behind `link`, dirty in this generation and held by nobody else.
    pub(super) fn writable<'l>(&mut self, link: &'l mut Link) -> &'l mut Node {
        if let Link::Disk(_) = link {
            *link = Link::Mem(self.take(link));
        }
        let Link::Mem(node) = link else { unreachable!("just made resident") };
        let dirty = self.is_dirty(node);
        if !dirty {
            self.replaced.push(replaced(node));
            self.dirty_delta += 1;
        }
        match Arc::get_mut(node) {
            None => *node = Arc::new(Node::new(self.generation, node.body.to_change())),
            Some(_) if dirty => {}
            // What was read from disk, or written there, becomes something else: the room it has is used again.
            Some(own) => (own.generation, own.location) = (self.generation, OnceLock::new()),
        }
        Arc::get_mut(node).expect("no other holder: it was just copied, and the apply mutex is held")
    }

    /// The node behind `link`, which is in memory, taken out of the cache and the pins. From now on only those look for it
    /// whose picture is older: if they do not hold it, they find it where it is on disk.
    fn take(&mut self, link: &Link) -> Arc<Node> {
        let node = resident(link, self.cache, self.pins).expect("prepared paths are resident");
        if let Link::Disk(ptr) = link {
            let key = ptr.addr[0].0;
            self.pins.remove(&key);
            // The address may be that of another node by now.
            self.cache.remove_if(&key, |cached| Arc::ptr_eq(cached, &node));
        }
        node
    }

    /// Does `steps` below `link`, whose range they lie in, until it is split. `edge`: nothing of the tree lies to the right of
    /// it.
    fn change_below(&mut self, link: &mut Link, edge: bool, steps: &[Step<'_>]) -> Went {
        match &mut self.writable(link).body {
            Body::Leaf(leaf) => self.change_leaf(leaf, edge, steps),
            Body::Interior(n) => self.change_interior(n, edge, steps),
        }
    }

    fn change_leaf(&mut self, leaf: &mut Leaf, edge: bool, steps: &[Step<'_>]) -> Went {
        let (before, mut shrunk) = (leaf.live_bytes(), false);
        for (done, step) in steps.iter().enumerate() {
            match step.change {
                Change::Put(value) => {
                    let at = leaf.put(step.key, value);
                    if leaf.fits() {
                        continue;
                    }
                    if !std::mem::replace(&mut shrunk, true) {
                        // These come again, and find that they are done.
                        shrink(leaf, &steps[done + 1..]);
                    }
                    if !leaf.fits() {
                        let from = self.from(leaf, at, edge);
                        let right = leaf.split_off(from);
                        let mut out = Vec::new();
                        self.split_leaf(leaf, right, &mut out);
                        self.right = out;
                        self.route.lose();
                        return Went { steps: done + 1, remains: Remains::Split };
                    }
                }
                Change::Delete => {
                    if let Ok(i) = leaf.find(step.key) {
                        leaf.remove(i);
                    }
                }
                Change::Nothing => {}
            }
        }
        let after = leaf.live_bytes();
        let remains = match leaf.len() {
            0 => Remains::Nothing,
            _ if before / LOOK_BYTES <= after / LOOK_BYTES => Remains::Most,
            _ => Remains::Less,
        };
        Went { steps: steps.len(), remains }
    }

    fn change_interior(&mut self, n: &mut Interior, edge: bool, steps: &[Step<'_>]) -> Went {
        let (mut done, mut fewer) = (0, false);
        // The children of which less is left. What comes and goes later lies behind them.
        let mut less = Vec::new();
        while done < steps.len() {
            let rest = &steps[done..];
            let search = || {
                let i = n.child_index(rest[0].key);
                (i, in_front(rest, n.keys().get(i + 1)))
            };
            let (i, count) = self.route.follow().unwrap_or_else(search);
            debug_assert_eq!((i, count), search(), "the way as it was prepared");
            let here = &rest[..count];
            let edge = edge && i + 1 == n.children.len();
            let went = self.change_below(&mut n.children[i], edge, here);
            done += went.steps;
            match went.remains {
                Remains::Most => {}
                Remains::Less => less.push(i),
                Remains::Nothing => {
                    self.route.lose();
                    let gone = n.remove(i);
                    self.forget(gone);
                    fewer = true;
                }
                Remains::Split => {
                    for (k, (key, link)) in std::mem::take(&mut self.right).into_iter().enumerate() {
                        n.insert_behind(i + k, key, link);
                    }
                    if n.encoded_bytes() > BLOCK_BYTES {
                        // What is underfull below it stays so: that is rare.
                        self.split_whole(n);
                        return Went { steps: done, remains: Remains::Split };
                    }
                }
            }
        }
        // From the last one on: what is joined lies behind those that are still to be looked at.
        for i in less.into_iter().rev() {
            fewer |= self.join_around(n, i);
        }
        let remains = match n.children.len() {
            0 => Remains::Nothing,
            _ if fewer => Remains::Less,
            _ => Remains::Most,
        };
        Went { steps: done, remains }
    }

    /// Splits a full interior node.
    fn split_whole(&mut self, n: &mut Interior) {
        let whole = std::mem::replace(n, Interior::new(n.level, Vec::new(), Vec::new()));
        let (Body::Interior(left), out) = self.split_interior(whole) else {
            unreachable!("splitting an interior node gives interior nodes")
        };
        (*n, self.right) = (left, out);
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
            let (key, right) = node.split_off(node.middle());
            let (body, more) = self.split_interior(right);
            let link = self.add(body);
            let mut next = vec![(key, link)];
            next.extend(more);
            next.append(&mut out);
            out = next;
        }
        (Body::Interior(node), out)
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
