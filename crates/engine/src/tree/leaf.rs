//! A leaf in memory: entries as they are on disk, what all keys begin with kept once.
//!
//! Keys of a leaf have most of their bytes in common: whole, they would take two to three times the memory of the block,
//! and all of it would be copied by each change that a reader or a checkpoint must not see.
//!
//! Invariants: keys strictly ascending; every key begins with `prefix`, which need not be the longest that all begin with
//! (on disk it is). It becomes shorter when a key comes in that does not begin with it, and longer where the entries are
//! put together anew anyway.

use varve_format::node::{self, ENTRY_OVERHEAD_BYTES, NodeHeader, NodeView, common_prefix, encoded_bytes};
use varve_format::{BLOCK_BYTES, KEY_BYTES_MAX};

use super::heads::Heads;
use super::node::{Keys, nearest_half};
use super::place::Place;
use crate::key::{Key, compare};
use std::cmp::Ordering;

/// Bytes by which the heap grows: there are thousands of leaves, and doubling would keep half of their memory unused.
const STEP_BYTES: usize = BLOCK_BYTES / 4;
/// Entries that a leaf which is about to be changed has room for.
const STEP_ENTRIES: usize = 32;

/// Room that a leaf keeps when it has been written, at most, and bytes of it for each entry that may come. More makes changes
/// cheaper as long as all leaves are in the cache, and misses more frequent when they are not.
const ROOM_BYTES: usize = 192;
const ROOM_ENTRY_BYTES: usize = 16;

/// Bytes of a key behind the prefix that are copied at once.
const CHUNK_BYTES: usize = 16;

/// Where an entry lies in the heap: the rest of its key, and behind it the value.
#[derive(Clone, Copy)]
struct Slot {
    at: u16,
    suffix_len: u8,
    value_len: u16,
}

impl Slot {
    fn len(self) -> usize {
        self.suffix_len as usize + self.value_len as usize
    }
}

/// Slots in key order over a heap of bytes.
#[derive(Clone, Default)]
struct Entries {
    prefix: Key,
    slots: Vec<Slot>,
    heap: Vec<u8>,
}

/// What the keys are behind the prefix.
impl Keys for Entries {
    fn count(&self) -> usize {
        self.slots.len()
    }
    fn at(&self, i: usize) -> &[u8] {
        let s = self.slots[i];
        &self.heap[s.at as usize..s.at as usize + s.suffix_len as usize]
    }
}

impl Entries {
    fn value(&self, s: Slot) -> &[u8] {
        let start = s.at as usize + s.suffix_len as usize;
        &self.heap[start..start + s.value_len as usize]
    }

    fn append(&mut self, suffix: &[u8], value: &[u8]) -> Slot {
        let at = self.heap.len() as u16;
        self.heap.extend_from_slice(suffix);
        self.heap.extend_from_slice(value);
        Slot { at, suffix_len: suffix.len() as u8, value_len: value.len() as u16 }
    }

    /// Length of what all keys begin with.
    fn common(&self) -> usize {
        match self.slots.len() {
            0 => 0,
            n => self.prefix.len() + common_prefix(self.at(0), self.at(n - 1)),
        }
    }

    /// The entries of `slots`, without any others and with room for more; the first `prefix_len` bytes of their keys, which
    /// are the same, become the prefix.
    fn gathered(&self, prefix_len: usize, mut slots: Vec<Slot>, room_bytes: usize) -> Entries {
        let first = slots.first().map_or(&[][..], |s| &self.heap[s.at as usize..][..s.suffix_len as usize]);
        let prefix = Key::new(&Key::joined(&self.prefix, first)[..prefix_len]);
        let (longer, shorter) =
            (prefix_len.saturating_sub(self.prefix.len()), &self.prefix[prefix_len.min(self.prefix.len())..]);
        let bytes: usize = slots.iter().map(|s| s.len() + shorter.len() - longer).sum();
        let mut heap = Vec::with_capacity(bytes + room_bytes);
        for s in &mut slots {
            let at = heap.len() as u16;
            heap.extend_from_slice(shorter);
            heap.extend_from_slice(&self.heap[s.at as usize + longer..s.at as usize + s.len()]);
            *s = Slot { at, suffix_len: (s.suffix_len as usize + shorter.len() - longer) as u8, ..*s };
        }
        Entries { prefix, slots, heap }
    }
}

/// Sorted entries.
#[derive(Clone, Default)]
pub struct Leaf {
    entries: Entries,
    /// Of what the keys are behind the prefix.
    heads: Heads,
    /// Sum of the lengths of whole keys and of values.
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
    pub fn key(&self, i: usize) -> Key {
        Key::joined(&self.entries.prefix, self.entries.at(i))
    }
    /// Value of entry `i`.
    pub fn value(&self, i: usize) -> &[u8] {
        self.entries.value(self.entries.slots[i])
    }
    /// Calls `each` with the entries from `from` on until it returns false; says whether it never did.
    pub fn visit(&self, from: usize, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        let begin = self.entries.prefix.len();
        let mut key = [0; KEY_BYTES_MAX];
        key[..begin].copy_from_slice(&self.entries.prefix);
        (from..self.len()).all(|i| {
            let slot = self.entries.slots[i];
            let (at, end) = (slot.at as usize, begin + slot.suffix_len as usize);
            // So many bytes at once, whatever lies behind a short one, are fewer than a call that copies the right number.
            match (self.entries.heap.get(at..at + CHUNK_BYTES), key.get_mut(begin..begin + CHUNK_BYTES)) {
                (Some(from), Some(to)) if slot.suffix_len as usize <= CHUNK_BYTES => to.copy_from_slice(from),
                _ => key[begin..end].copy_from_slice(self.entries.at(i)),
            }
            each(&key[..end], self.entries.value(slot))
        })
    }
    /// Sum of the lengths of keys and values.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes
    }
    /// Memory it takes beside itself.
    pub fn memory_bytes(&self) -> usize {
        self.entries.heap.capacity()
            + self.entries.slots.capacity() * size_of::<Slot>()
            + self.heads.memory_bytes()
    }
    /// Reads something of each cache line that it takes itself.
    pub fn look_at_itself(&self) -> usize {
        let (entries, live) = (&self.entries, self.live_bytes);
        entries.prefix.len() + entries.slots.len() + entries.heap.len() + self.heads.look_at_itself() + live
    }
    /// Reads what a search reads, or what lies near it, and what moves when an entry comes in. What comes in lies behind all
    /// others in the heap, and beside what came in last as a rule.
    pub fn look_at(&self) -> u32 {
        const LINE: usize = 64 / size_of::<Slot>();
        let slots = self.entries.slots.iter().step_by(LINE).fold(0, |sum, slot| sum ^ u32::from(slot.at));
        let byte = self.entries.heap.last().map_or(0, |byte| u32::from(*byte));
        self.heads.look_at().wrapping_add(slots).wrapping_add(byte)
    }
    /// Reads what a scan from `key` on reads first, the entry in front of it, and the first and the last, which tell what all keys
    /// begin with: each where it begins and where it ends.
    pub fn look_near(&self, key: &[u8]) -> u32 {
        let (Ok(at) | Err(at)) = self.find(key);
        let slots = &self.entries.slots;
        let near = slots[at.saturating_sub(1)..self.len().min(at + 1)].iter();
        // One that is nothing but what all keys begin with may lie at the end of the heap.
        let byte = |at: usize| self.entries.heap.get(at).copied().map_or(0, u32::from);
        near.chain(slots.first())
            .chain(slots.last())
            .map(|slot| byte(slot.at.into()) + byte((usize::from(slot.at) + slot.len()).saturating_sub(1)))
            .sum()
    }
    /// Where `key` is, or where it would be.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.entries.prefix.as_slice();
        let same = prefix.len().min(key.len());
        match compare(&key[..same], &prefix[..same]) {
            Ordering::Less => Err(0),
            Ordering::Greater => Err(self.len()),
            // All keys begin with it and go on.
            Ordering::Equal if key.len() < prefix.len() => Err(0),
            Ordering::Equal => self.heads.find(&self.entries, &key[prefix.len()..]),
        }
    }
    /// Puts an entry and says where.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> usize {
        let need = key.len() + value.len();
        let shared = common_prefix(&self.entries.prefix, key);
        if shared < self.entries.prefix.len() {
            self.gather(shared, need);
        }
        let held = self.entries.heap.len();
        let end = held + need - self.entries.prefix.len();
        if end > self.entries.heap.capacity() || end > 2 * BLOCK_BYTES {
            self.make_room(key, end, need);
        }
        let suffix = &key[self.entries.prefix.len()..];
        match self.heads.find(&self.entries, suffix) {
            Ok(i) => {
                let s = self.entries.slots[i];
                let old = s.value_len as usize;
                if value.len() <= old {
                    let start = s.at as usize + s.suffix_len as usize;
                    self.entries.heap[start..start + value.len()].copy_from_slice(value);
                    self.entries.slots[i].value_len = value.len() as u16;
                    self.place.shrunk(old - value.len());
                } else {
                    self.entries.slots[i] = self.entries.append(suffix, value);
                }
                self.live_bytes = self.live_bytes + value.len() - old;
                i
            }
            Err(i) => {
                let slot = self.entries.append(suffix, value);
                // Not twice as many: one that was read from disk has room for none.
                if self.entries.slots.len() == self.entries.slots.capacity() {
                    self.entries.slots.reserve_exact(STEP_ENTRIES);
                    self.heads.reserve(STEP_ENTRIES);
                }
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
        self.live_bytes -= self.entries.prefix.len() + s.len();
    }
    /// A copy for a leaf that has been written: without what has gone, and with room for a few entries, if they fit into the
    /// block. It may be changed again soon, and is then changed where it lies.
    pub fn settled(&self) -> Leaf {
        let room_bytes = BLOCK_BYTES.saturating_sub(self.encoded_bytes()).min(ROOM_BYTES);
        let room_entries = room_bytes / ROOM_ENTRY_BYTES;
        let mut slots = Vec::with_capacity(self.len() + room_entries);
        slots.extend_from_slice(&self.entries.slots);
        let entries = self.entries.gathered(self.entries.common(), slots, room_bytes);
        let heads = Heads::with_room_for(room_entries, &entries);
        Leaf { heads, entries, live_bytes: self.live_bytes, place: self.place }
    }
    /// A copy that has room for some more entries.
    pub fn to_change(&self) -> Leaf {
        let mut slots = Vec::with_capacity(self.len() + STEP_ENTRIES);
        slots.extend_from_slice(&self.entries.slots);
        let mut heap = Vec::with_capacity(self.entries.heap.len() + STEP_BYTES);
        heap.extend_from_slice(&self.entries.heap);
        let entries = Entries { prefix: self.entries.prefix, slots, heap };
        let heads = self.heads.with_room(STEP_ENTRIES);
        Leaf { entries, heads, live_bytes: self.live_bytes, place: self.place }
    }
    /// Makes room for `key` and its value, `need` bytes whole, with which the heap would end at `end`.
    fn make_room(&mut self, key: &[u8], end: usize, need: usize) {
        let common = match self.len() {
            0 => self.entries.prefix.len(),
            _ => self.entries.common().min(common_prefix(&self.key(0), key)),
        };
        let longer = common - self.entries.prefix.len();
        let kept = self.live_bytes - self.len() * self.entries.prefix.len();
        let gone = self.entries.heap.len() - kept;
        if end > 2 * BLOCK_BYTES || gone + longer * self.len() >= STEP_BYTES {
            self.gather(common, need);
        } else {
            self.entries.heap.reserve_exact(need + STEP_BYTES);
        }
    }
    /// Puts the entries together anew, with another prefix, and room for one more of so many bytes.
    fn gather(&mut self, prefix_len: usize, need: usize) {
        let slots = std::mem::take(&mut self.entries.slots);
        self.entries = self.entries.gathered(prefix_len, slots, need + STEP_BYTES);
        self.heads.fill(&self.entries);
    }
    /// Bytes on disk.
    pub fn encoded_bytes(&self) -> usize {
        encoded_bytes(self.len(), self.len(), self.live_bytes, self.entries.common())
    }
    /// Bytes on disk with so many entries more, of so many bytes with their keys, of which these are the first and the last.
    pub fn bytes_with(&self, count: usize, bytes: usize, first: &[u8], last: &[u8]) -> usize {
        let (mut n, mut prefix) = (count, common_prefix(first, last));
        if self.len() > 0 {
            n += self.len();
            // The shortest thing that two of the ends have in common all have.
            prefix = prefix.min(self.entries.common()).min(common_prefix(&self.key(0), first));
        }
        encoded_bytes(n, n, self.live_bytes + bytes, prefix)
    }
    /// Whether it fits into a block.
    pub fn fits(&self) -> bool {
        // As a rule it does whatever else the keys have in common, and no key is looked at.
        self.len() == 0 || self.bytes_at_most(0, 0) <= BLOCK_BYTES || self.encoded_bytes() <= BLOCK_BYTES
    }
    /// Whether it does with more entries; see [`Leaf::bytes_with`].
    pub fn fits_with(&self, count: usize, bytes: usize, first: &[u8], last: &[u8]) -> bool {
        let prefix = self.entries.prefix.as_slice();
        let alike = self.len() > 0 && first.starts_with(prefix) && last.starts_with(prefix);
        (alike && self.bytes_at_most(count, bytes) <= BLOCK_BYTES)
            || self.bytes_with(count, bytes, first, last) <= BLOCK_BYTES
    }
    /// Bytes on disk, at most, with so many entries more whose keys begin with the prefix, too. There is one entry at least.
    fn bytes_at_most(&self, count: usize, bytes: usize) -> usize {
        let n = self.len() + count;
        encoded_bytes(n, n, self.live_bytes + bytes, self.entries.prefix.len())
    }
    /// Bytes of the largest entry, with its whole key.
    pub fn largest_entry_bytes(&self) -> usize {
        let lens = self.entries.slots.iter().map(|s| s.len());
        lens.max().map_or(0, |len| ENTRY_OVERHEAD_BYTES + self.entries.prefix.len() + len)
    }
    /// Bytes on disk of this leaf and its neighbour on the right as one.
    pub fn joined_bytes(&self, right: &Leaf) -> usize {
        let (n, bytes) = (self.len() + right.len(), self.live_bytes + right.live_bytes);
        let first = if self.len() > 0 { self } else { right };
        let last = if right.len() > 0 { right } else { self };
        let prefix = if n == 0 { 0 } else { common_prefix(&first.key(0), &last.key(last.len() - 1)) };
        encoded_bytes(n, n, bytes, prefix)
    }
    /// Encodes it into a block.
    pub fn encode(&self, header: NodeHeader, out: &mut [u8]) {
        let more = self.entries.common().saturating_sub(self.entries.prefix.len());
        let rest = self.entries.slots.first().map_or(&[][..], |_| &self.entries.at(0)[..more]);
        let prefix = if self.len() == 0 { Key::EMPTY } else { Key::joined(&self.entries.prefix, rest) };
        let entries = (0..self.len()).map(|i| (&self.entries.at(i)[more..], self.value(i)));
        node::encode_suffixes(header, &prefix, entries, out);
    }
    /// Moves entries `from..` into a new leaf.
    pub fn split_off(&mut self, from: usize) -> Leaf {
        let n = self.len();
        // A leaf of one entry begins as its neighbour does: so will what comes next.
        let common = |first: usize, end: usize| match end - first {
            0 | 1 => self.entries.prefix.len(),
            _ => self.entries.prefix.len() + common_prefix(self.entries.at(first), self.entries.at(end - 1)),
        };
        let (left, right) = (common(0, from), common(from, n));
        let moved = self.entries.slots.split_off(from);
        let live_bytes = moved.iter().map(|s| self.entries.prefix.len() + s.len()).sum();
        let entries = self.entries.gathered(right, moved, STEP_BYTES);
        let right = Leaf { heads: Heads::of(&entries), entries, live_bytes, place: Place::default() };
        self.live_bytes -= live_bytes;
        self.gather(left, 0);
        self.place = Place::default();
        right
    }
    /// Bytes on disk of an entry, about.
    fn weight(&self, s: Slot) -> usize {
        ENTRY_OVERHEAD_BYTES + s.len().saturating_sub(self.heads.skip())
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
        let begin = self.entries.common() - self.entries.prefix.len();
        nearest_half(self.entries.slots.iter().map(|s| ENTRY_OVERHEAD_BYTES + s.len() - begin))
    }
    /// Appends all entries of `right`, whose keys are larger.
    pub fn absorb(&mut self, right: &Leaf) {
        if right.len() == 0 {
            return;
        }
        let last = right.key(right.len() - 1);
        let first = if self.len() > 0 { self.key(0) } else { right.key(0) };
        let prefix_len = common_prefix(&first, &last);
        if self.len() > 0 {
            self.gather(prefix_len, right.live_bytes - right.len() * prefix_len);
        } else {
            self.entries = Entries { prefix: Key::new(&first[..prefix_len]), ..Entries::default() };
        }
        for i in 0..right.len() {
            self.push(&right.key(i), right.value(i));
        }
        self.heads.fill(&self.entries);
        self.place = Place::default();
    }
    /// A leaf of the given entries, in the order of their keys.
    pub fn of<'e>(entries: impl Iterator<Item = (Key, &'e [u8])> + Clone) -> Leaf {
        let mut leaf = Leaf::default();
        if let (Some((first, _)), Some((last, _))) = (entries.clone().next(), entries.clone().last()) {
            leaf.entries.prefix = Key::new(&first[..common_prefix(&first, &last)]);
        }
        leaf.entries.heap.reserve_exact(BLOCK_BYTES);
        for (key, value) in entries {
            leaf.push(&key, value);
        }
        leaf.heads.fill(&leaf.entries);
        leaf
    }
    /// Appends an entry whose key begins with the prefix, without its head.
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let slot = self.entries.append(&key[self.entries.prefix.len()..], value);
        self.entries.slots.push(slot);
        self.live_bytes += key.len() + value.len();
    }
    /// What a block holds.
    pub fn from_view(block: &[u8], view: &NodeView) -> Leaf {
        let prefix = Key::new(&block[node::NODE_HEADER_BYTES..node::NODE_HEADER_BYTES + view.prefix_len]);
        let bytes = view.entries.iter().map(|e| e.suffix_len + e.value_len).sum();
        let mut entries = Entries {
            prefix,
            slots: Vec::with_capacity(view.entries.len()),
            heap: Vec::with_capacity(bytes),
        };
        for e in &view.entries {
            let (at, suffix_len, value_len) =
                (entries.heap.len() as u16, e.suffix_len as u8, e.value_len as u16);
            entries.slots.push(Slot { at, suffix_len, value_len });
            // The value lies behind the suffix.
            entries.heap.extend_from_slice(&block[e.suffix..e.suffix + e.suffix_len]);
            entries.heap.extend_from_slice(&block[e.value..e.value + e.value_len]);
        }
        let live_bytes = bytes + view.entries.len() * view.prefix_len;
        Leaf { heads: Heads::of(&entries), entries, live_bytes, place: Place::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use varve_format::TreeId;
    use varve_format::root::NodePtr;

    use crate::tree::node::{Body, Node};

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    #[derive(Clone, Debug)]
    enum Step {
        Put(Vec<u8>, u8),
        Remove(u16),
        /// Splits it there; the left or the right part goes on.
        Split(u16, bool),
        /// Splits it there, and joins the parts.
        Join(u16),
        ToChange,
        Settled,
        ReadAgain,
    }

    /// Keys that nearly all begin alike, of all lengths.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![12 => Just(20), 2 => 0..20_usize, 1 => Just(40)];
        (start, proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255)], 1..8)).prop_map(
            |(start, rest)| {
                let mut key = vec![7; start];
                key.extend(rest);
                key
            },
        )
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            30 => (key(), 0..60_u8).prop_map(|(key, len)| Step::Put(key, len)),
            8 => any::<u16>().prop_map(Step::Remove),
            1 => (any::<u16>(), any::<bool>()).prop_map(|(at, left)| Step::Split(at, left)),
            1 => any::<u16>().prop_map(Step::Join),
            1 => Just(Step::ToChange),
            1 => Just(Step::Settled),
            1 => Just(Step::ReadAgain),
        ]
    }

    fn encoded(leaf: &Leaf) -> (Vec<u8>, usize) {
        let header = NodeHeader { tree: TreeId::NAMES, level: 0, birth: 1, pool_tag: 2 };
        let mut block = vec![0; BLOCK_BYTES];
        leaf.encode(header, &mut block);
        let payload = u16::from_le_bytes([block[12], block[13]]) as usize;
        (block, node::NODE_HEADER_BYTES + payload)
    }

    fn read(block: &[u8]) -> Leaf {
        let ptr = NodePtr { birth: 1, ..NodePtr::NULL };
        let Ok((_, Node { body: Body::Leaf(leaf), .. })) = Node::decode(block, ptr) else {
            panic!("what was just encoded decodes as a leaf")
        };
        leaf
    }

    fn compare(leaf: &Leaf, model: &Model, asked: &[Vec<u8>]) -> Result<(), TestCaseError> {
        let mut seen = Model::new();
        leaf.visit(0, &mut |key, value| seen.insert(key.to_vec(), value.to_vec()).is_none());
        prop_assert_eq!(&seen, model);
        prop_assert_eq!(leaf.len(), model.len());
        prop_assert_eq!(leaf.live_bytes(), model.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>());
        for (i, (key, value)) in model.iter().enumerate() {
            prop_assert!(*leaf.key(i) == key[..]);
            prop_assert_eq!(leaf.value(i), &value[..]);
        }
        let keys: Vec<&Vec<u8>> = model.keys().collect();
        for key in asked.iter().chain(model.keys()) {
            prop_assert_eq!(leaf.find(key), keys.binary_search(&key));
        }
        Ok(())
    }

    proptest! {
        // Goal: whatever is put, removed, split, joined, copied and read again, a leaf holds what a map holds, and says how
        // many bytes it takes on disk, now and with one key more. Method: a map beside it, and its own encoding.
        #[test]
        fn holds_what_a_map_holds(
            steps in proptest::collection::vec(step(), 1..80),
            asked in proptest::collection::vec(key(), 1..12),
        ) {
            let (mut leaf, mut model) = (Leaf::default(), Model::new());
            for step in steps {
                let at = |rank: u16, len: usize| 1 + rank as usize % (len - 1);
                match step {
                    Step::Put(key, len) => {
                        let value = vec![len; len as usize];
                        let most = leaf.bytes_with(1, key.len() + value.len(), &key, &key);
                        let old = model.insert(key.clone(), value.clone());
                        let at = leaf.put(&key, &value);
                        prop_assert!(*leaf.key(at) == key[..]);
                        match old {
                            None => prop_assert_eq!(leaf.encoded_bytes(), most),
                            Some(_) => prop_assert!(leaf.encoded_bytes() <= most),
                        }
                        if leaf.encoded_bytes() > BLOCK_BYTES {
                            let right = leaf.split_off(leaf.middle());
                            let from = right.key(0).as_slice().to_vec();
                            model.split_off(&from);
                        }
                    }
                    Step::Remove(rank) if !model.is_empty() => {
                        let at = rank as usize % model.len();
                        let key = leaf.key(at);
                        leaf.remove(at);
                        prop_assert!(model.remove(key.as_slice()).is_some());
                    }
                    Step::Split(rank, left) if model.len() > 1 => {
                        let at = at(rank, model.len());
                        let right = leaf.split_off(at);
                        let right_model = model.split_off(right.key(0).as_slice());
                        compare(&leaf, &model, &asked)?;
                        compare(&right, &right_model, &asked)?;
                        if !left {
                            (leaf, model) = (right, right_model);
                        }
                    }
                    Step::Join(rank) if model.len() > 1 => {
                        let right = leaf.split_off(at(rank, model.len()));
                        let bytes = leaf.joined_bytes(&right);
                        let of = |leaf: &Leaf| (0..leaf.len()).map(|i| (leaf.key(i), leaf.value(i).to_vec())).collect::<Vec<_>>();
                        let all: Vec<_> = of(&leaf).into_iter().chain(of(&right)).collect();
                        let again = Leaf::of(all.iter().map(|(key, value)| (*key, &value[..])));
                        compare(&again, &model, &asked)?;
                        leaf.absorb(&right);
                        prop_assert_eq!(leaf.encoded_bytes(), bytes);
                        prop_assert_eq!(again.encoded_bytes(), bytes);
                    }
                    Step::ToChange => leaf = leaf.to_change(),
                    Step::Settled => leaf = leaf.settled(),
                    Step::ReadAgain => leaf = read(&encoded(&leaf).0),
                    _ => {}
                }
                compare(&leaf, &model, &asked)?;
                prop_assert_eq!(encoded(&leaf).1, leaf.encoded_bytes());
            }
        }
    }

    // Goal: a leaf takes little more memory than the block it came from. Method: keys as a file's extents have them.
    #[test]
    fn takes_little_more_than_its_block() {
        let key = |i: u32| [&[0; 22][..], &i.to_be_bytes()].concat();
        let mut leaf = Leaf::default();
        let count = (0..).find(|i| {
            leaf.put(&key(*i), &[1; 8]);
            leaf.encoded_bytes() > BLOCK_BYTES - 64
        });
        let read = read(&encoded(&leaf).0);
        let whole = count.expect("a leaf is full some day") as usize * (26 + 8);
        let most = BLOCK_BYTES * 2;
        for leaf in [&read, &leaf.settled()] {
            assert!(
                leaf.memory_bytes() < most && whole > most,
                "{} bytes, whole {whole}",
                leaf.memory_bytes()
            );
        }
        assert!(leaf.to_change().memory_bytes() < most + 2 * STEP_BYTES);
    }

    // Goal: a leaf as it was read, which has room for nothing, takes no more memory for the entries that come in than one that has
    // been copied to be changed. Method: a full leaf, half of it removed and put again.
    #[test]
    fn grows_by_steps() {
        let mut leaf = Leaf::default();
        let count = (0u32..)
            .find(|i| {
                leaf.put(&i.to_be_bytes(), &[1; 8]);
                leaf.encoded_bytes() > BLOCK_BYTES - 64
            })
            .expect("a leaf is full some day");
        for i in (1..count).step_by(2) {
            let at = leaf.find(&i.to_be_bytes()).expect("just put");
            leaf.remove(at);
        }
        let mut leaf = read(&encoded(&leaf).0);
        let most = leaf.to_change().memory_bytes();
        leaf.put(&1u32.to_be_bytes(), &[1; 8]);
        assert!(leaf.memory_bytes() <= most + 12, "{} bytes, copied {most}", leaf.memory_bytes());
        let mut leaf = leaf.settled();
        for i in (3..count).step_by(2) {
            leaf.put(&i.to_be_bytes(), &[1; 8]);
            let exact = read(&encoded(&leaf).0).memory_bytes();
            let room = leaf.memory_bytes() - exact;
            assert!(room <= STEP_BYTES + 10 * STEP_ENTRIES + 12, "{room} bytes of room at entry {i}");
        }
    }

    // Goal: looking at what a search ends at takes leaves of all shapes: empty, and with one entry that is nothing but the prefix.
    #[test]
    fn looks_near_in_any_leaf() {
        Leaf::default().look_near(b"key");
        let mut leaf = Leaf::default();
        leaf.put(b"key", b"");
        let leaf = leaf.settled();
        assert!(leaf.entries.heap.is_empty() && leaf.len() == 1);
        for key in [&b"a"[..], b"key", b"key2"] {
            leaf.look_near(key);
        }
    }
}
