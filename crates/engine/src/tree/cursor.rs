//! Reading: lookups and ordered scans over a root that does not change.
//!
//! A scan that goes on behind its first leaf reads ahead: when the next leaf is not in memory, some of those behind it under
//! the same parent come with it in one group of requests, twice as many each time. So a scan of a few entries reads no
//! more than it needs, one of two leaves at most one too many, and a long one waits for a device once in [`AHEAD_MAX`] leaves.

use std::collections::VecDeque;
use std::sync::Arc;

use super::node::{Body, Leaf, Link, Node};
use super::{Miss, NodeSource, Tree};
use crate::EngineError;
use crate::key::Key;

type Result<T> = std::result::Result<T, EngineError>;

/// Leaves that are read together, at most: 256 KiB.
const AHEAD_MAX: usize = 64;
/// A tree of more levels has thousands of leaves, and the processor's caches hold few of their lines.
const NEAR_LEVELS: u8 = 3;

/// A scan's wish for the entry in front of where it begins, until it has come to its first leaf.
struct Around<'f> {
    /// Nothing in front of this is wanted.
    floor: &'f [u8],
    /// No key of the node that is looked at lies in front of this.
    low: Key,
}

/// What a scan has read ahead.
#[derive(Default)]
struct Ahead<'f> {
    around: Option<Around<'f>>,
    /// Leaves seen so far are at least so many.
    leaves: usize,
    /// How many were read together last.
    window: usize,
    /// The next children of the node that is looked at.
    nodes: VecDeque<Option<Arc<Node>>>,
}

impl Ahead<'_> {
    /// The leaf behind the first of `links`, which lie side by side, and with it some of the others.
    fn leaf(&mut self, tree: &Tree, links: &[Link], source: &dyn NodeSource) -> Result<Arc<Node>> {
        let miss = |link: &Link| match link {
            Link::Disk(ptr) => Some(Miss { ptr: *ptr, tree: tree.id, level: 0 }),
            Link::Mem(_) => None,
        };
        if let Some(node) = self.nodes.pop_front().flatten() {
            return Ok(node);
        }
        let Some(wanted) = miss(&links[0]) else { return tree.fetch(&links[0], 0, source) };
        if let Some(node) = source.cached(wanted) {
            return Ok(node);
        }
        if self.leaves > 0 && self.nodes.is_empty() {
            self.window = (2 * self.window).clamp(2, AHEAD_MAX);
            // Up to the next that is in memory anyhow: what is read belongs to the links in their order.
            let misses: Vec<Miss> = links.iter().take(self.window).map_while(miss).collect();
            if misses.len() > 1 {
                self.nodes = source.load_ahead(&misses, tree).into();
                debug_assert_eq!(self.nodes.len(), misses.len());
                if let Some(node) = self.nodes.pop_front().flatten() {
                    return Ok(node);
                }
            }
        }
        source.load(wanted, tree)
    }
}

/// Searches that are looked at together.
const TOGETHER: usize = 64;

/// The leaves of `keys`, not looked at, where the tree below `link` holds them in memory with all above them; [`TOGETHER`] keys at
/// most. One level after the other: what a search reads of the nodes is looked at for all of them first.
pub(super) fn leaves_of<'t, K: AsRef<[u8]>>(
    link: &'t Link,
    height: u8,
    keys: &[K],
) -> [Option<&'t Arc<Node>>; TOGETHER] {
    let mut nodes = [None; TOGETHER];
    let Link::Mem(root) = link else { return nodes };
    nodes[..keys.len()].fill(Some(root));
    for _ in 1..height {
        look_at_all(&nodes);
        let mut links = [None; TOGETHER];
        // A scan asks for the key in front of the link, too, and changes for the one behind it. Each lies in a line of its own.
        let mut near = 0;
        for ((key, node), link) in keys.iter().zip(&nodes).zip(&mut links) {
            if let Some(Body::Interior(n)) = node.map(|node| &node.body) {
                let at = n.child_index(key.as_ref());
                near += n.keys()[at..].iter().take(2).map(|key| key.len()).sum::<usize>();
                *link = Some(&n.children[at]);
            }
        }
        let in_memory = links.iter().flatten().filter(|link| matches!(link, Link::Mem(_))).count();
        std::hint::black_box(near + in_memory);
        nodes = links.map(|link| match link {
            Some(Link::Mem(child)) => Some(child),
            _ => None,
        });
    }
    nodes
}

/// Reads what a search reads of these nodes. Each pass reads what the one before has found out where it lies.
fn look_at_all(nodes: &[Option<&Arc<Node>>]) {
    let nodes = nodes.iter().flatten();
    let itself = |node: &&Arc<Node>| node.look_at_itself().wrapping_add(Arc::strong_count(node) as u64);
    std::hint::black_box(nodes.clone().fold(0, |sum: u64, node| sum.wrapping_add(itself(node))));
    std::hint::black_box(nodes.fold(0, |sum: u32, node| sum.wrapping_add(node.look_at())));
}

impl Tree {
    /// Brings what a search for each of `keys` reads of its leaf into the processor's caches, for all of them at the same time:
    /// a search by itself waits for memory three or four times, each time for one leaf. Looks at what the tree itself
    /// holds in memory, and at nothing else.
    pub fn look_at<K: AsRef<[u8]>>(&self, keys: &[K]) {
        let Some(root) = &self.root else { return };
        for keys in keys.chunks(TOGETHER) {
            let leaves = leaves_of(root, self.height, keys);
            look_at_all(&leaves);
            let near = keys.iter().zip(leaves).map(|(key, node)| match node.map(|node| &node.body) {
                Some(Body::Leaf(leaf)) => leaf.look_near(key.as_ref()),
                _ => 0,
            });
            std::hint::black_box(near.fold(0, |sum: u32, byte| sum.wrapping_add(byte)));
        }
    }

    /// Reads the leaves in which searches for `keys`, which ascend, end and which are not in memory in one group of requests.
    /// What is wrong with one is heard of when it is searched. At most [`AHEAD_MAX`] leaves.
    pub fn read_ahead<K: AsRef<[u8]>>(&self, keys: &[K], source: &dyn NodeSource) -> Result<()> {
        let Some(root) = self.root.as_ref().filter(|_| self.height > 1) else { return Ok(()) };
        let root = self.fetch(root, self.height - 1, source)?;
        // The node right above the leaves, until a key does not end below it; where that is, if it is not the last one.
        let (mut above, mut end, mut misses) = (None, None, Vec::new());
        for key in keys.iter().map(AsRef::as_ref) {
            if above.is_none() || end.is_some_and(|end: Key| *key >= *end) {
                let mut node = root.clone();
                end = None;
                for level in (1..self.height - 1).rev() {
                    let Body::Interior(n) = &node.body else { return Ok(()) };
                    let at = n.child_index(key);
                    end = n.keys().get(at + 1).copied().or(end);
                    node = self.fetch(&n.children[at], level, source)?;
                }
                above = Some(node);
            }
            let Some(Body::Interior(n)) = above.as_ref().map(|node| &node.body) else { return Ok(()) };
            let Link::Disk(ptr) = &n.children[n.child_index(key)] else { continue };
            let miss = Miss { ptr: *ptr, tree: self.id, level: 0 };
            if misses.last().is_none_or(|last: &Miss| last.ptr != *ptr)
                && misses.len() < AHEAD_MAX
                && source.cached(miss).is_none()
            {
                misses.push(miss);
            }
        }
        if misses.len() > 1 {
            source.load_ahead(&misses, self);
        }
        Ok(())
    }

    fn fetch(&self, link: &Link, level: u8, source: &dyn NodeSource) -> Result<Arc<Node>> {
        match link {
            Link::Mem(node) => Ok(node.clone()),
            Link::Disk(ptr) => source.load(Miss { ptr: *ptr, tree: self.id, level }, self),
        }
    }

    /// Whether the ways of the first and the last key of `node`, which was missed here, lead to it: then all its keys are in
    /// the range that the nodes above give it. Those are in memory as a rule: one of them led here.
    pub fn leads_to(&self, miss: Miss, node: &Node, source: &dyn NodeSource) -> Result<bool> {
        for key in node.ends() {
            let Some(mut link) = self.root.clone() else { return Ok(false) };
            for level in (miss.level + 1..self.height).rev() {
                let above = self.fetch(&link, level, source)?;
                let Body::Interior(n) = &above.body else { return Ok(false) };
                link = n.children[n.child_index(&key)].clone();
            }
            if !matches!(link, Link::Disk(ptr) if ptr == miss.ptr) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The value at `key`, as `decode` sees it in place.
    pub fn get<T>(
        &self,
        key: &[u8],
        source: &dyn NodeSource,
        decode: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        match &self.root {
            Some(root) => self.get_below(root, self.height - 1, key, source, decode),
            None => Ok(None),
        }
    }

    fn get_below<T>(
        &self,
        link: &Link,
        level: u8,
        key: &[u8],
        source: &dyn NodeSource,
        decode: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let fetched;
        let node = match link {
            // What is below the root stays while the root is held.
            Link::Mem(node) => node,
            Link::Disk(_) => {
                fetched = self.fetch(link, level, source)?;
                &fetched
            }
        };
        match &node.body {
            Body::Leaf(leaf) => {
                if self.height > NEAR_LEVELS {
                    // All that the search may want, at the same time: by itself it finds out line by line what it reads next.
                    std::hint::black_box(leaf.look_at());
                }
                Ok(leaf.find(key).ok().map(|i| decode(leaf.value(i))))
            }
            Body::Interior(n) => {
                self.get_below(&n.children[n.child_index(key)], level - 1, key, source, decode)
            }
        }
    }

    /// Calls `each` with every entry from `from` on, ascending, until it returns false.
    pub fn scan(
        &self,
        from: &[u8],
        source: &dyn NodeSource,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if let Some(root) = &self.root {
            let root = self.fetch(root, self.height - 1, source)?;
            self.scan_below(&root, self.height - 1, from, source, &mut Ahead::default(), each)?;
        }
        Ok(())
    }

    /// The same, but the entry in front of `at` comes first, unless `at` has one itself or that lies in front of `floor`. One
    /// descent, unless `at` is the beginning of its leaf and `floor` of another.
    pub fn scan_around(
        &self,
        floor: &[u8],
        at: &[u8],
        source: &dyn NodeSource,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if let Some(root) = &self.root {
            let root = self.fetch(root, self.height - 1, source)?;
            let mut ahead = Ahead { around: Some(Around { floor, low: Key::EMPTY }), ..Ahead::default() };
            self.scan_below(&root, self.height - 1, at, source, &mut ahead, each)?;
        }
        Ok(())
    }

    /// What `around` wants of a leaf in which `at` is, or would be, at `start`: where to begin. `None`: `each` wants no more.
    fn begin(
        &self,
        around: &Around<'_>,
        leaf: &Leaf,
        start: usize,
        at: &[u8],
        source: &dyn NodeSource,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Option<usize>> {
        if let Some(before) = start.checked_sub(1) {
            return Ok(Some(if *leaf.key(before) >= *around.floor { before } else { start }));
        }
        // What lies in front of this leaf lies in front of its lowest key.
        if *around.low > *around.floor
            && let Some((key, value)) = self.last_at_or_before(at, source)?
            && key.as_slice() >= around.floor
            && !each(&key, &value)
        {
            return Ok(None);
        }
        Ok(Some(start))
    }

    fn scan_below(
        &self,
        node: &Node,
        level: u8,
        from: &[u8],
        source: &dyn NodeSource,
        ahead: &mut Ahead<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool> {
        match &node.body {
            Body::Leaf(leaf) => {
                ahead.leaves += 1;
                let start = match (leaf.find(from), ahead.around.take()) {
                    (Ok(start), _) | (Err(start), None) => start,
                    (Err(start), Some(around)) => {
                        match self.begin(&around, leaf, start, from, source, each)? {
                            Some(start) => start,
                            None => return Ok(false),
                        }
                    }
                };
                Ok(leaf.visit(start, each))
            }
            Body::Interior(n) => {
                let first = n.child_index(from);
                if let (Some(around), 1..) = (&mut ahead.around, first) {
                    around.low = n.keys()[first];
                }
                for at in first..n.children.len() {
                    let child = match level {
                        1 => ahead.leaf(self, &n.children[at..], source)?,
                        _ => self.fetch(&n.children[at], level - 1, source)?,
                    };
                    if !self.scan_below(&child, level - 1, from, source, ahead, each)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// The last entry whose key is at most `at`.
    pub fn last_at_or_before(
        &self,
        at: &[u8],
        source: &dyn NodeSource,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        match &self.root {
            Some(root) => self.last_below(root, self.height - 1, at, source),
            None => Ok(None),
        }
    }

    fn last_below(
        &self,
        link: &Link,
        level: u8,
        at: &[u8],
        source: &dyn NodeSource,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let node = self.fetch(link, level, source)?;
        match &node.body {
            Body::Leaf(leaf) => {
                let end = match leaf.find(at) {
                    Ok(i) => i + 1,
                    Err(i) => i,
                };
                Ok(end.checked_sub(1).map(|i| (leaf.key(i).to_vec(), leaf.value(i).to_vec())))
            }
            Body::Interior(n) => {
                for i in (0..=n.child_index(at)).rev() {
                    if let Some(found) = self.last_below(&n.children[i], level - 1, at, source)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
        }
    }
}
