//! A node in memory: leaf (see [`super::leaf`]) or interior, shared by `Arc`, never changed while a reader or a checkpoint
//! holds it.
//!
//! Invariants: keys strictly ascending; an interior node's first key is empty ("everything below the second");
//! `location` is set exactly when the node's present content is on disk there.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use varve_format::Corrupt;
use varve_format::codec::Reader;
use varve_format::node::{self, ENTRY_OVERHEAD_BYTES, NodeHeader, NodeView, common_prefix, encoded_bytes};
use varve_format::root::{NODE_PTR_BYTES, NodePtr};

use super::heads::Heads;
use crate::key::Key;

pub use super::leaf::Leaf;

/// How an interior node holds a child.
#[derive(Clone)]
pub enum Link {
    /// On disk, perhaps in the cache.
    Disk(NodePtr),
    /// In memory: dirty, or written and not yet let go.
    Mem(Arc<Node>),
}

/// A node.
pub struct Node {
    /// The checkpoint generation in which it last became dirty; 0 when it was read from disk.
    pub generation: u64,
    /// Where this content is on disk, once it is.
    pub location: OnceLock<NodePtr>,
    /// What it holds.
    pub body: Body,
}

/// What a node holds.
#[derive(Clone)]
pub enum Body {
    /// Entries.
    Leaf(Leaf),
    /// Children.
    Interior(Interior),
}

impl Node {
    /// A dirty node of `generation`.
    pub fn new(generation: u64, body: Body) -> Node {
        Node { generation, location: OnceLock::new(), body }
    }

    /// A clean node at `ptr`.
    pub fn clean(ptr: NodePtr, body: Body) -> Node {
        let node = Node::new(0, body);
        let _ = node.location.set(ptr);
        node
    }

    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        match &self.body {
            Body::Leaf(_) => 0,
            Body::Interior(n) => n.level,
        }
    }

    /// Reads something of each cache line that it takes itself: what a search begins with, and where the rest lies.
    pub fn look_at_itself(&self) -> u64 {
        let body = match &self.body {
            Body::Leaf(leaf) => leaf.look_at_itself(),
            Body::Interior(n) => n.keys.len() + n.children.len() + n.heads.look_at_itself(),
        };
        self.generation.wrapping_add(u64::from(self.location.get().is_some())).wrapping_add(body as u64)
    }

    /// Reads what a search reads.
    pub fn look_at(&self) -> u32 {
        match &self.body {
            Body::Leaf(leaf) => leaf.look_at(),
            Body::Interior(n) => n.heads.look_at(),
        }
    }

    /// Its first and its last key, if it has any: of an interior node those that separate its children.
    pub fn ends(&self) -> impl Iterator<Item = Key> {
        let ends = match &self.body {
            Body::Leaf(l) => (l.len() > 0).then(|| [l.key(0), l.key(l.len() - 1)]),
            Body::Interior(n) => (n.keys.len() > 1).then(|| [n.keys[1], n.keys[n.keys.len() - 1]]),
        };
        ends.into_iter().flatten()
    }

    /// Bytes it takes on disk, without padding.
    pub fn encoded_bytes(&self) -> usize {
        match &self.body {
            Body::Leaf(l) => l.encoded_bytes(),
            Body::Interior(n) => n.encoded_bytes(),
        }
    }

    /// Memory it takes, with what the allocator and the cache add for it.
    pub fn memory_bytes(&self) -> usize {
        const AROUND: usize = 128;
        let body = match &self.body {
            Body::Leaf(l) => l.memory_bytes(),
            Body::Interior(n) => {
                n.keys.capacity() * size_of::<Key>()
                    + n.children.capacity() * size_of::<Link>()
                    + n.heads.memory_bytes()
            }
        };
        size_of::<Node>() + AROUND + body
    }

    /// Bytes on disk of this node and `right`, its neighbour of the same level, as one; `separator` is the key between.
    pub fn joined_bytes(&self, right: &Node, separator: &Key) -> usize {
        match (&self.body, &right.body) {
            (Body::Leaf(l), Body::Leaf(r)) => l.joined_bytes(r),
            (Body::Interior(l), Body::Interior(r)) => {
                let key_bytes = |keys: &[Key]| keys.iter().map(|k| k.len()).sum::<usize>();
                let n = l.keys.len() + r.keys.len();
                let first = l.keys.get(1).unwrap_or(separator);
                let last = if r.keys.len() > 1 { &r.keys[r.keys.len() - 1] } else { separator };
                let bytes = key_bytes(&l.keys) + separator.len() + key_bytes(&r.keys) + n * NODE_PTR_BYTES;
                encoded_bytes(n, n - 1, bytes, common_prefix(first.as_slice(), last.as_slice()))
            }
            _ => usize::MAX,
        }
    }

    /// Encodes it into a block. Children in memory must have their location.
    pub fn encode(&self, header: NodeHeader, out: &mut [u8]) {
        match &self.body {
            Body::Leaf(l) => l.encode(header, out),
            Body::Interior(n) => {
                let mut values = Vec::with_capacity(n.children.len() * NODE_PTR_BYTES);
                for child in &n.children {
                    match child {
                        Link::Disk(ptr) => ptr.encode(&mut values),
                        Link::Mem(node) => {
                            node.location
                                .get()
                                .expect("children are written before their parent")
                                .encode(&mut values);
                        }
                    }
                }
                let first = n.prefix();
                let prefix = &first.as_slice()[..n.prefix_len()];
                let entries =
                    n.keys.iter().zip(values.chunks_exact(NODE_PTR_BYTES)).map(|(k, v)| (k.as_slice(), v));
                node::encode(header, prefix, entries, out);
            }
        }
    }

    /// Decodes a block that has passed its checksum.
    pub fn decode(block: &[u8], ptr: NodePtr) -> Result<(NodeHeader, Node), Corrupt> {
        let view = node::decode(block)?;
        let header = view.header;
        let body = if header.level == 0 {
            Body::Leaf(Leaf::from_view(block, &view))
        } else {
            Body::Interior(Interior::from_view(block, &view)?)
        };
        Ok((header, Node::clean(ptr, body)))
    }
}

/// How many of these, which are at least two, come nearest to half of their sum; neither none nor all. The smaller part has at
/// least half of what is left without the largest.
pub fn nearest_half(parts: impl ExactSizeIterator<Item = usize> + Clone) -> usize {
    let (count, sum) = (parts.len(), parts.clone().sum::<usize>());
    let (mut upto, mut before) = (0, 0);
    for part in parts {
        if 2 * before + part >= sum {
            break;
        }
        (upto, before) = (upto + 1, before + part);
    }
    upto.clamp(1, count - 1)
}

/// A sorted list of keys, as a search sees it.
pub trait Keys {
    /// How many.
    fn count(&self) -> usize;
    /// Key `i`.
    fn at(&self, i: usize) -> &[u8];
}

impl Body {
    /// A copy that is about to be changed.
    pub fn to_change(&self) -> Body {
        match self {
            Body::Leaf(leaf) => Body::Leaf(leaf.to_change()),
            Body::Interior(n) => Body::Interior(n.clone()),
        }
    }
}

impl Keys for [Key] {
    fn count(&self) -> usize {
        self.len()
    }
    fn at(&self, i: usize) -> &[u8] {
        self[i].as_slice()
    }
}

/// Children in key order.
#[derive(Clone)]
pub struct Interior {
    /// At least 1.
    pub level: u8,
    /// Lowest key of each child; the first is empty.
    keys: Vec<Key>,
    /// As many as keys.
    pub children: Vec<Link>,
    /// Of the keys but the first.
    heads: Heads,
}

impl Interior {
    /// A node of `children`, with the lowest key of each; the first key is empty.
    pub fn new(level: u8, keys: Vec<Key>, children: Vec<Link>) -> Interior {
        let heads = Heads::of(keys.get(1..).unwrap_or_default());
        Interior { level, keys, children, heads }
    }
    /// Lowest key of each child; the first is empty.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }
    /// The child that holds `key`.
    pub fn child_index(&self, key: &[u8]) -> usize {
        match self.heads.find(&self.keys[1..], key) {
            Ok(at) => at + 1,
            Err(at) => at,
        }
    }
    /// A new child behind the one at `i`, with its lowest key.
    pub fn insert_behind(&mut self, i: usize, key: Key, child: Link) {
        self.keys.insert(i + 1, key);
        self.children.insert(i + 1, child);
        self.heads.insert(i, &self.keys[1..]);
    }
    /// Bytes on disk with other children in place of `range`: `lows` are the lowest keys of all of these but the first,
    /// which keeps that of the range.
    pub fn bytes_with(&self, range: Range<usize>, lows: &[Key]) -> usize {
        let kept = self.keys[..=range.start].iter().chain(lows).chain(&self.keys[range.end..]);
        let (mut n, mut bytes, mut first, mut last) = (0, 0, None, None);
        for key in kept {
            (n, bytes) = (n + 1, bytes + key.len());
            if n > 1 {
                first = first.or(Some(key));
                last = Some(key);
            }
        }
        let prefix = match (first, last) {
            (Some(first), Some(last)) => common_prefix(first.as_slice(), last.as_slice()),
            _ => 0,
        };
        encoded_bytes(n, n - 1, bytes + n * NODE_PTR_BYTES, prefix)
    }
    /// Puts `children` in place of those of `range`; see [`Interior::bytes_with`]. Returns the old ones.
    pub fn replace(&mut self, range: Range<usize>, lows: &[Key], children: Vec<Link>) -> Vec<Link> {
        self.keys.splice(range.start + 1..range.end, lows.iter().copied());
        let old = self.children.splice(range, children).collect();
        self.heads.fill(&self.keys[1..]);
        old
    }
    /// Appends all children of `right`; `separator` is the key between.
    pub fn absorb(&mut self, separator: Key, right: &Interior) {
        self.keys.push(separator);
        self.keys.extend_from_slice(&right.keys[1..]);
        self.children.extend(right.children.iter().cloned());
        self.heads.fill(&self.keys[1..]);
    }
    fn prefix(&self) -> Key {
        self.keys.get(1).copied().unwrap_or(Key::EMPTY)
    }
    fn prefix_len(&self) -> usize {
        match self.keys.len() {
            0 | 1 => 0,
            n => common_prefix(self.keys[1].as_slice(), self.keys[n - 1].as_slice()),
        }
    }
    /// Bytes on disk.
    pub fn encoded_bytes(&self) -> usize {
        self.bytes_with_prefix(self.prefix_len())
    }
    /// The same, if its keys had only so many bytes in common.
    pub fn bytes_with_prefix(&self, prefix: usize) -> usize {
        let n = self.keys.len();
        let key_bytes: usize = self.keys.iter().map(|k| k.len()).sum();
        encoded_bytes(n, n.saturating_sub(1), key_bytes + n * NODE_PTR_BYTES, prefix)
    }
    /// The first and the last of its keys, without the empty one.
    pub fn ends(&self) -> Option<(Key, Key)> {
        (self.keys.len() > 1).then(|| (self.keys[1], self.keys[self.keys.len() - 1]))
    }
    /// The child at which to split into halves of about equal bytes: at least 1, less than the number of children.
    pub fn middle(&self) -> usize {
        let bytes = |key: &Key| ENTRY_OVERHEAD_BYTES + key.len() + NODE_PTR_BYTES;
        nearest_half(self.keys.iter().map(bytes))
    }
    /// Moves children `from..` into a new node; returns the key that separates them too.
    pub fn split_off(&mut self, from: usize) -> (Key, Interior) {
        let mut keys = self.keys.split_off(from);
        let separator = std::mem::replace(&mut keys[0], Key::EMPTY);
        self.heads.fill(&self.keys[1..]);
        (separator, Interior::new(self.level, keys, self.children.split_off(from)))
    }
    /// Removes child `i`.
    pub fn remove(&mut self, i: usize) -> Link {
        self.keys.remove(i);
        if let Some(first) = self.keys.first_mut() {
            *first = Key::EMPTY;
        }
        // The first key has none; without the first, the second is the first.
        if !self.keys.is_empty() {
            self.heads.remove(i.saturating_sub(1));
        }
        self.children.remove(i)
    }
    fn from_view(block: &[u8], view: &NodeView) -> Result<Interior, Corrupt> {
        let prefix = &block[node::NODE_HEADER_BYTES..node::NODE_HEADER_BYTES + view.prefix_len];
        let mut keys = Vec::with_capacity(view.entries.len() + 1);
        let mut children = Vec::with_capacity(view.entries.len() + 1);
        for (i, e) in view.entries.iter().enumerate() {
            let suffix = &block[e.suffix..e.suffix + e.suffix_len];
            let key = if i > 0 { Key::joined(prefix, suffix) } else { Key::EMPTY };
            let ptr = NodePtr::decode(&mut Reader::new(&block[e.value..e.value + e.value_len]))?;
            if ptr.is_null() {
                return Err(Corrupt { what: "interior node with a null child", at: e.value });
            }
            keys.push(key);
            children.push(Link::Disk(ptr));
        }
        Ok(Interior::new(view.header.level, keys, children))
    }
}
