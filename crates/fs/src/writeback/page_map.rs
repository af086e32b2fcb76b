//! A sorted map by page number, for many pages at a time.
//!
//! Pages come one by one in any order and leave in ascending order, by the thousand, on another thread. In a tree of small
//! nodes each handful of pages is an allocation that the other thread gives back, and the allocator looks for a place among what
//! lies in no cache. Here up to [`BLOCK_LEN`] neighbours share one, and a search reads one array of numbers and then another.

use std::ops::{Bound, RangeBounds};

/// Entries of a block at most. One that is full is cut in the middle, unless what comes lies behind all there are.
const BLOCK_LEN: usize = 64;

/// Neighbours: keys ascending, values beside them. Never empty.
struct Block<V> {
    keys: Vec<u64>,
    values: Vec<V>,
}

/// Values by ascending number.
pub struct PageMap<V> {
    /// The first key of each block, ascending; of a block that has lost its first entries a key no greater than all of its own.
    firsts: Vec<u64>,
    /// The blocks: as many.
    blocks: Vec<Block<V>>,
    len: usize,
}

/// Where an entry is, or the place where it would be: block, and place in it, which may be behind its last entry.
type Spot = (usize, usize);

impl<V> Default for PageMap<V> {
    fn default() -> PageMap<V> {
        PageMap { firsts: Vec::new(), blocks: Vec::new(), len: 0 }
    }
}

impl<V> Block<V> {
    /// An empty one. Of a map that has others it has room for all it may get: it would grow with its first entry otherwise.
    fn new(among_others: bool) -> Block<V> {
        let room = if among_others { BLOCK_LEN } else { 0 };
        Block { keys: Vec::with_capacity(room), values: Vec::with_capacity(room) }
    }

    fn split_off(&mut self, at: usize) -> Block<V> {
        let mut upper = Block::new(true);
        upper.keys.extend(self.keys.drain(at..));
        upper.values.extend(self.values.drain(at..));
        upper
    }
}

impl<V> PageMap<V> {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where `key` is, or would be.
    fn find(&self, key: u64) -> Result<Spot, Spot> {
        let Some(block) = self.firsts.partition_point(|first| *first <= key).checked_sub(1) else {
            return Err((0, 0));
        };
        match self.blocks[block].keys.binary_search(&key) {
            Ok(at) => Ok((block, at)),
            Err(at) => Err((block, at)),
        }
    }

    /// The value at `key`.
    pub fn get(&self, key: u64) -> Option<&V> {
        let (block, at) = self.find(key).ok()?;
        Some(&self.blocks[block].values[at])
    }

    /// The value at `key`, to be changed.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let (block, at) = self.find(key).ok()?;
        Some(&mut self.blocks[block].values[at])
    }

    /// Whether there is one at `key`.
    pub(crate) fn contains_key(&self, key: u64) -> bool {
        self.find(key).is_ok()
    }

    /// The value at `key`; made by `value` if there is none, which is said with it.
    pub(crate) fn get_or_insert(&mut self, key: u64, value: impl FnOnce() -> V) -> (&mut V, bool) {
        match self.find(key) {
            Ok((block, at)) => (&mut self.blocks[block].values[at], false),
            Err(spot) => {
                let (block, at) = self.put(spot, key, value());
                (&mut self.blocks[block].values[at], true)
            }
        }
    }

    /// Puts `value` at `key`, and gives back what was there.
    pub(crate) fn insert(&mut self, key: u64, value: V) -> Option<V> {
        match self.find(key) {
            Ok((block, at)) => Some(std::mem::replace(&mut self.blocks[block].values[at], value)),
            Err(spot) => {
                self.put(spot, key, value);
                None
            }
        }
    }

    /// Puts an entry where [`PageMap::find`] said that it would be.
    fn put(&mut self, (mut block, mut at): Spot, key: u64, value: V) -> Spot {
        if self.blocks.is_empty() {
            self.add_block(0, key, Block::new(false));
        }
        if self.blocks[block].keys.len() == BLOCK_LEN {
            if at == BLOCK_LEN && block + 1 == self.blocks.len() {
                (block, at) = (block + 1, 0);
                self.add_block(block, key, Block::new(true));
            } else {
                let upper = self.blocks[block].split_off(BLOCK_LEN / 2);
                self.add_block(block + 1, upper.keys[0], upper);
                if at > BLOCK_LEN / 2 {
                    (block, at) = (block + 1, at - BLOCK_LEN / 2);
                }
            }
        }
        self.blocks[block].keys.insert(at, key);
        self.blocks[block].values.insert(at, value);
        self.firsts[block] = self.firsts[block].min(key);
        self.len += 1;
        (block, at)
    }

    fn add_block(&mut self, at: usize, first: u64, block: Block<V>) {
        self.firsts.insert(at, first);
        self.blocks.insert(at, block);
    }

    /// Takes away the entry at `key`.
    pub(crate) fn remove(&mut self, key: u64) -> Option<V> {
        let (block, at) = self.find(key).ok()?;
        let of = &mut self.blocks[block];
        of.keys.remove(at);
        let value = of.values.remove(at);
        if of.keys.is_empty() {
            self.blocks.remove(block);
            self.firsts.remove(block);
        }
        self.len -= 1;
        self.rest();
        Some(value)
    }

    /// An empty map keeps no memory: there is one for every inode in use.
    fn rest(&mut self) {
        if self.len == 0 {
            *self = PageMap::default();
        }
    }

    /// Takes away the entries from `key` on.
    pub(crate) fn split_off(&mut self, key: u64) -> PageMap<V> {
        let (Ok((block, at)) | Err((block, at))) = self.find(key);
        if block == self.blocks.len() {
            return PageMap::default();
        }
        let cut = self.blocks[block].split_off(at);
        let mut off = PageMap {
            firsts: self.firsts.split_off(block + 1),
            blocks: self.blocks.split_off(block + 1),
            len: 0,
        };
        if let Some(first) = cut.keys.first() {
            off.add_block(0, *first, cut);
        }
        if at == 0 {
            self.blocks.pop();
            self.firsts.pop();
        }
        off.len = off.blocks.iter().map(|block| block.keys.len()).sum();
        self.len -= off.len;
        self.rest();
        off
    }

    /// Takes away those of the entries in `range` that `leaves` says so of, and says how many.
    pub(crate) fn remove_if(
        &mut self,
        range: impl RangeBounds<u64>,
        mut leaves: impl FnMut(u64, &mut V) -> bool,
    ) -> usize {
        let (begin, end) = self.spots(&range);
        let mut gone = 0;
        let last = self.blocks.len().min(end.0 + 1);
        for block in begin.0..last {
            let Block { keys, values } = &mut self.blocks[block];
            let from = if block == begin.0 { begin.1 } else { 0 };
            let to = if block == end.0 { end.1 } else { keys.len() };
            // Who stays moves to the front, behind those in front of the range.
            let mut stay = from;
            for at in from..to {
                if !leaves(keys[at], &mut values[at]) {
                    keys.swap(stay, at);
                    values.swap(stay, at);
                    stay += 1;
                }
            }
            keys.drain(stay..to);
            values.drain(stay..to);
            gone += to - stay;
        }
        // Blocks that are empty now go, all at once.
        let mut stay = begin.0;
        for block in begin.0..last {
            if !self.blocks[block].keys.is_empty() {
                self.blocks.swap(stay, block);
                self.firsts.swap(stay, block);
                stay += 1;
            }
        }
        self.blocks.drain(stay..last);
        self.firsts.drain(stay..last);
        self.len -= gone;
        self.rest();
        gone
    }

    /// Where a range begins, and where it ends: the place of the first entry behind it.
    fn spots(&self, range: &impl RangeBounds<u64>) -> (Spot, Spot) {
        let from = |key| match self.find(key) {
            Ok(spot) | Err(spot) => spot,
        };
        let behind = |key: u64| key.checked_add(1).map_or((self.blocks.len(), 0), from);
        let begin = match range.start_bound() {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) => from(*key),
            Bound::Excluded(key) => behind(*key),
        };
        let end = match range.end_bound() {
            Bound::Unbounded => (self.blocks.len(), 0),
            Bound::Included(key) => behind(*key),
            Bound::Excluded(key) => from(*key),
        };
        // A range that ends in front of its beginning is empty.
        (begin, end.max(begin))
    }

    /// The entries in `range`, ascending.
    pub fn range(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &V)> {
        let (begin, end) = self.spots(&range);
        let blocks = self.blocks.iter().enumerate().take(end.0.saturating_add(1)).skip(begin.0);
        blocks.flat_map(move |(number, block)| {
            let from = if number == begin.0 { begin.1 } else { 0 };
            let to = if number == end.0 { end.1 } else { block.keys.len() };
            block.keys[from..to].iter().copied().zip(&block.values[from..to])
        })
    }

    /// The same, values to be changed.
    pub(crate) fn range_mut(&mut self, range: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &mut V)> {
        let (begin, end) = self.spots(&range);
        let blocks = self.blocks.iter_mut().enumerate().take(end.0.saturating_add(1)).skip(begin.0);
        blocks.flat_map(move |(number, block)| {
            let from = if number == begin.0 { begin.1 } else { 0 };
            let to = if number == end.0 { end.1 } else { block.keys.len() };
            block.keys[from..to].iter().copied().zip(&mut block.values[from..to])
        })
    }

    /// All values, ascending.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.blocks.iter().flat_map(|block| &block.values)
    }

    /// All values, ascending, to be changed.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.blocks.iter_mut().flat_map(|block| &mut block.values)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u32),
        GetOrInsert(u64, u32),
        Row(u64, u64),
        Remove(u64),
        Change(u64, u64),
        RemoveIf(u64, u64, u32),
        SplitOff(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = || prop_oneof![8 => 0..1_000_u64, 1 => Just(u64::MAX), 1 => any::<u64>()];
        prop::collection::vec(
            prop_oneof![
                20 => (key(), any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
                20 => (key(), any::<u32>()).prop_map(|(k, v)| Step::GetOrInsert(k, v)),
                4 => (0..1_000_u64, 0..200_u64).prop_map(|(k, n)| Step::Row(k, n)),
                10 => key().prop_map(Step::Remove),
                5 => (key(), key()).prop_map(|(a, b)| Step::Change(a, b)),
                3 => (key(), key(), 1..4_u32).prop_map(|(a, b, n)| Step::RemoveIf(a, b, n)),
                1 => key().prop_map(Step::SplitOff),
            ],
            1..300,
        )
    }

    fn same(map: &PageMap<u32>, model: &BTreeMap<u64, u32>) {
        assert_eq!(map.len(), model.len());
        assert_eq!(map.is_empty(), model.is_empty());
        assert!(map.range(..).map(|(k, v)| (k, *v)).eq(model.iter().map(|(k, v)| (*k, *v))));
        assert!(map.values().eq(model.values()));
        assert_eq!(map.firsts.len(), map.blocks.len());
        assert!(!map.is_empty() || map.blocks.capacity() + map.firsts.capacity() == 0);
        assert!(map.firsts.is_sorted_by(|a, b| a < b));
        for (first, block) in map.firsts.iter().zip(&map.blocks) {
            assert!((1..=BLOCK_LEN).contains(&block.keys.len()) && block.keys.len() == block.values.len());
            assert!(*first <= block.keys[0]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        // Goal: it does what the standard library's map does. Method: the same steps on both, compared after each; keys few enough
        // that blocks split, run empty and are joined by rows, and the greatest there is.
        #[test]
        fn it_is_a_map(steps in steps()) {
            let (mut map, mut model) = (PageMap::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(k, v) => assert_eq!(map.insert(k, v), model.insert(k, v)),
                    Step::GetOrInsert(k, v) => {
                        let fresh = !model.contains_key(&k);
                        let (value, new) = map.get_or_insert(k, || v);
                        assert_eq!((*value, new), (*model.entry(k).or_insert(v), fresh));
                        *value ^= 1;
                        *model.get_mut(&k).expect("just put") ^= 1;
                    }
                    Step::Row(k, n) => for k in k..k + n {
                        assert_eq!(map.insert(k, 7), model.insert(k, 7));
                    },
                    Step::Remove(k) => assert_eq!(map.remove(k), model.remove(&k)),
                    Step::Change(a, b) => {
                        assert_eq!(map.get(a), model.get(&a));
                        assert_eq!(map.get_mut(b).copied(), model.get(&b).copied());
                        assert_eq!(map.contains_key(b), model.contains_key(&b));
                        let (a, b) = (a.min(b), a.max(b));
                        assert!(map.range(a..=b).map(|(k, v)| (k, *v)).eq(model.range(a..=b).map(|(k, v)| (*k, *v))));
                        assert_eq!(map.range(b..a).count(), 0);
                        map.range_mut(a..b).for_each(|(k, v)| *v = v.wrapping_add(k as u32));
                        model.range_mut(a..b).for_each(|(k, v)| *v = v.wrapping_add(*k as u32));
                        map.values_mut().for_each(|v| *v ^= 2);
                        model.values_mut().for_each(|v| *v ^= 2);
                    }
                    Step::RemoveIf(a, b, n) => {
                        let (a, b) = (a.min(b), a.max(b));
                        let leaves = |k: u64, v: &mut u32| { *v ^= 4; (k as u32 ^ *v).is_multiple_of(n) };
                        let gone = model.extract_if(a..b, |k, v| leaves(*k, v)).count();
                        assert_eq!(map.remove_if(a..b, leaves), gone);
                    }
                    Step::SplitOff(k) => {
                        let (off, wanted) = (map.split_off(k), model.split_off(&k));
                        same(&off, &wanted);
                    }
                }
                same(&map, &model);
            }
        }
    }

    // Goal: who comes in ascending order fills whole blocks. Method: counted.
    #[test]
    fn rows_fill_blocks() {
        let mut map = PageMap::default();
        (0..10 * BLOCK_LEN as u64).for_each(|key| assert_eq!(map.insert(key, ()), None));
        assert_eq!(map.blocks.len(), 10);
    }
}
