//! A node in memory: leaf or interior, shared by `Arc`, never changed while a reader or a checkpoint holds it.
//!
//! Invariants: keys strictly ascending; an interior node's first key is empty ("everything below the second");
//! `location` is set exactly when the node's present content is on disk there.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use varve_format::codec::Reader;
use varve_format::node::{self, ENTRY_OVERHEAD_BYTES, NodeHeader, NodeView, common_prefix, encoded_bytes};
use varve_format::root::{NODE_PTR_BYTES, NodePtr};
use varve_format::{BLOCK_BYTES, Corrupt};

use super::heads::Heads;
use super::place::Place;
use crate::key::Key;

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
    /// Last transaction whose preparation counted it. Only touched under the apply mutex.
    pub stamp: AtomicU64,
    /// Bytes that transaction will add to it.
    pub incoming_bytes: AtomicU32,
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
        Node {
            generation,
            location: OnceLock::new(),
            stamp: AtomicU64::new(0),
            incoming_bytes: AtomicU32::new(0),
            body,
        }
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

    /// Its first and its last key, if it has any: of an interior node those that separate its children.
    pub fn ends(&self) -> impl Iterator<Item = &[u8]> {
        let ends = match &self.body {
            Body::Leaf(l) => (l.len() > 0).then(|| [l.key(0), l.key(l.len() - 1)]),
            Body::Interior(n) => {
                (n.keys.len() > 1).then(|| [n.keys[1].as_slice(), n.keys[n.keys.len() - 1].as_slice()])
            }
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
            Body::Leaf(l) => {
                l.entries.heap.capacity()
                    + l.entries.slots.capacity() * size_of::<Slot>()
                    + l.heads.memory_bytes()
            }
            Body::Interior(n) => {
                n.keys.capacity() * size_of::<Key>()
                    + n.children.capacity() * size_of::<Link>()
                    + n.heads.memory_bytes()
            }
        };
        size_of::<Node>() + AROUND + body
    }

    /// Bytes by which it may grow because `key` (or any key) comes in that does not share the common prefix.
    pub fn prefix_growth(&self, key: Option<&[u8]>) -> usize {
        match (&self.body, key) {
            (Body::Leaf(l), Some(key)) if l.len() > 0 => {
                let prefix = common_prefix(l.key(0), l.key(l.len() - 1));
                l.len() * (prefix - common_prefix(&l.key(0)[..prefix], key))
            }
            (Body::Leaf(_), _) => 0,
            (Body::Interior(n), _) => n.keys.len() * n.prefix_len(),
        }
    }

    /// Bytes on disk of this node and `right`, its neighbour of the same level, as one; `separator` is the key between.
    pub fn joined_bytes(&self, right: &Node, separator: &Key) -> usize {
        match (&self.body, &right.body) {
            (Body::Leaf(l), Body::Leaf(r)) => {
                let (n, bytes) = (l.len() + r.len(), l.live_bytes + r.live_bytes);
                let first = if l.len() > 0 { l } else { r };
                let last = if r.len() > 0 { r } else { l };
                let prefix = match n {
                    0 => 0,
                    _ => common_prefix(first.key(0), last.key(last.len() - 1)),
                };
                encoded_bytes(n, n, bytes, prefix)
            }
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
            Body::Leaf(l) => {
                let n = l.len();
                let prefix =
                    if n == 0 { &[][..] } else { &l.key(0)[..common_prefix(l.key(0), l.key(n - 1))] };
                node::encode(header, prefix, (0..n).map(|i| (l.key(i), l.value(i))), out);
            }
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

#[derive(Clone, Copy)]
struct Slot {
    at: u16,
    key_len: u8,
    value_len: u16,
}

/// A sorted list of keys, as a search sees it.
pub trait Keys {
    /// How many.
    fn count(&self) -> usize;
    /// Key `i`.
    fn at(&self, i: usize) -> &[u8];
}

impl Keys for [Key] {
    fn count(&self) -> usize {
        self.len()
    }
    fn at(&self, i: usize) -> &[u8] {
        self[i].as_slice()
    }
}

/// Slots in key order over a heap of bytes.
#[derive(Clone, Default)]
struct Entries {
    slots: Vec<Slot>,
    heap: Vec<u8>,
}

impl Keys for Entries {
    fn count(&self) -> usize {
        self.slots.len()
    }
    fn at(&self, i: usize) -> &[u8] {
        let s = self.slots[i];
        &self.heap[s.at as usize..s.at as usize + s.key_len as usize]
    }
}

impl Entries {
    fn append(&mut self, key: &[u8], value: &[u8]) -> Slot {
        let at = self.heap.len() as u16;
        self.heap.extend_from_slice(key);
        self.heap.extend_from_slice(value);
        Slot { at, key_len: key.len() as u8, value_len: value.len() as u16 }
    }
    /// The bytes without those of entries that are gone, and `room` for more; `slots` says where.
    fn gathered(&self, slots: &mut [Slot], bytes: usize) -> Vec<u8> {
        let mut heap = Vec::with_capacity(bytes);
        for s in slots {
            let at = heap.len() as u16;
            let len = s.key_len as usize + s.value_len as usize;
            heap.extend_from_slice(&self.heap[s.at as usize..s.at as usize + len]);
            s.at = at;
        }
        heap
    }
}

/// Sorted entries.
#[derive(Clone, Default)]
pub struct Leaf {
    entries: Entries,
    /// Of their keys.
    heads: Heads,
    /// Sum of key and value lengths.
    live_bytes: usize,
    /// Where entries have come in.
    place: Place,
}

impl Leaf {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.slots.len()
    }
    /// Key of entry `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        self.entries.at(i)
    }
    /// Value of entry `i`.
    pub fn value(&self, i: usize) -> &[u8] {
        let s = self.entries.slots[i];
        let start = s.at as usize + s.key_len as usize;
        &self.entries.heap[start..start + s.value_len as usize]
    }
    /// Sum of the lengths of keys and values.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }
    /// Where `key` is, or where it would be.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.heads.find(&self.entries, key)
    }
    /// Puts an entry and says where.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> usize {
        let need = key.len() + value.len();
        let held = self.entries.heap.len();
        let end = held + need;
        if end > self.entries.heap.capacity() || end > 2 * BLOCK_BYTES {
            // It grows in steps: there are thousands of leaves, and doubling would keep half of their memory unused.
            if end > 2 * BLOCK_BYTES || held - self.live_bytes >= BLOCK_BYTES / 4 {
                self.compact();
            } else {
                self.entries.heap.reserve_exact(need + BLOCK_BYTES / 4);
            }
        }
        match self.find(key) {
            Ok(i) => {
                let s = self.entries.slots[i];
                let old = s.value_len as usize;
                if value.len() <= old {
                    let start = s.at as usize + s.key_len as usize;
                    self.entries.heap[start..start + value.len()].copy_from_slice(value);
                    self.entries.slots[i].value_len = value.len() as u16;
                    self.place.shrunk(old - value.len());
                } else {
                    self.entries.slots[i] = self.entries.append(key, value);
                }
                self.live_bytes = self.live_bytes + value.len() - old;
                i
            }
            Err(i) => {
                let slot = self.entries.append(key, value);
                self.entries.slots.insert(i, slot);
                self.heads.insert(i, &self.entries);
                self.live_bytes += need;
                self.place.put(i, self.weight(slot));
                i
            }
        }
    }
    /// Removes entry `i`.
    pub fn remove(&mut self, i: usize) {
        let s = self.entries.slots.remove(i);
        self.heads.remove(i);
        self.place.removed(i, self.weight(s));
        self.live_bytes -= s.key_len as usize + s.value_len as usize;
    }
    /// A copy that takes no more memory than it needs, for a leaf that will not change.
    pub fn trimmed(&self) -> Leaf {
        let mut slots = self.entries.slots.clone();
        let heap = self.entries.gathered(&mut slots, self.live_bytes);
        let entries = Entries { slots, heap };
        Leaf { heads: Heads::of(&entries), entries, live_bytes: self.live_bytes, place: self.place }
    }
    fn compact(&mut self) {
        let mut slots = std::mem::take(&mut self.entries.slots);
        self.entries.heap = self.entries.gathered(&mut slots, self.live_bytes + BLOCK_BYTES / 2);
        self.entries.slots = slots;
    }
    /// Bytes on disk.
    pub fn encoded_bytes(&self) -> usize {
        let n = self.len();
        let prefix = if n == 0 { 0 } else { common_prefix(self.key(0), self.key(n - 1)) };
        encoded_bytes(n, n, self.live_bytes, prefix)
    }
    /// Moves entries `from..` into a new leaf.
    pub fn split_off(&mut self, from: usize) -> Leaf {
        let mut right = Leaf::default();
        for i in from..self.len() {
            right.push(self.key(i), self.value(i));
        }
        right.heads.fill(&right.entries);
        self.entries.slots.truncate(from);
        self.live_bytes -= right.live_bytes;
        self.compact();
        self.heads.fill(&self.entries);
        self.place = Place::default();
        right
    }
    /// Bytes on disk of an entry, about.
    fn weight(&self, s: Slot) -> usize {
        ENTRY_OVERHEAD_BYTES + (s.key_len as usize).saturating_sub(self.heads.skip()) + s.value_len as usize
    }
    /// The entry at which to split so that what comes next finds room where the last ones came in, and what lies beside
    /// stays full: at least 1, less than `len`. `None`: they came in here and there.
    pub fn at_place(&self) -> Option<usize> {
        let weights = |upto: usize| self.entries.slots[..upto].iter().map(|s| self.weight(*s)).sum();
        let cut = self.place.cut(self.len(), &weights)?;
        (1..self.len()).contains(&cut).then_some(cut)
    }
    /// The entry at which to split into halves of about equal bytes: at least 1, less than `len`.
    pub fn middle(&self) -> usize {
        let mut sum = 0;
        for (i, s) in self.entries.slots.iter().enumerate() {
            sum += s.key_len as usize + s.value_len as usize;
            if sum * 2 >= self.live_bytes {
                return (i + 1).clamp(1, self.len() - 1);
            }
        }
        self.len() - 1
    }
    /// Appends all entries of `right`, whose keys are larger.
    pub fn absorb(&mut self, right: &Leaf) {
        if self.entries.heap.len() + right.live_bytes > 2 * BLOCK_BYTES {
            self.compact();
        }
        for i in 0..right.len() {
            self.push(right.key(i), right.value(i));
        }
        self.heads.fill(&self.entries);
        self.place = Place::default();
    }
    /// A leaf of the given entries, in the order of their keys.
    pub fn of<'e>(entries: impl Iterator<Item = (&'e [u8], &'e [u8])>) -> Leaf {
        let mut leaf = Leaf::default();
        leaf.entries.heap.reserve_exact(BLOCK_BYTES);
        for (key, value) in entries {
            leaf.push(key, value);
        }
        leaf.heads.fill(&leaf.entries);
        leaf
    }
    /// Appends an entry, without the head of its key.
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let slot = self.entries.append(key, value);
        self.entries.slots.push(slot);
        self.live_bytes += key.len() + value.len();
    }
    fn from_view(block: &[u8], view: &NodeView) -> Leaf {
        let prefix = &block[node::NODE_HEADER_BYTES..node::NODE_HEADER_BYTES + view.prefix_len];
        let bytes = view.entries.iter().map(|e| prefix.len() + e.suffix_len + e.value_len).sum();
        let mut entries =
            Entries { slots: Vec::with_capacity(view.entries.len()), heap: Vec::with_capacity(bytes) };
        for e in &view.entries {
            entries.slots.push(Slot {
                at: entries.heap.len() as u16,
                key_len: (prefix.len() + e.suffix_len) as u8,
                value_len: e.value_len as u16,
            });
            entries.heap.extend_from_slice(prefix);
            entries.heap.extend_from_slice(&block[e.suffix..e.suffix + e.suffix_len]);
            entries.heap.extend_from_slice(&block[e.value..e.value + e.value_len]);
        }
        Leaf { heads: Heads::of(&entries), entries, live_bytes: bytes, place: Place::default() }
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
        let n = self.keys.len();
        let key_bytes: usize = self.keys.iter().map(|k| k.len()).sum();
        encoded_bytes(n, n.saturating_sub(1), key_bytes + n * NODE_PTR_BYTES, self.prefix_len())
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
