//! What a search in a node compares first: four bytes of every key, side by side.
//!
//! The keys of a node begin alike, and behind that four bytes tell nearly any two apart. Kept in one array of words,
//! they decide a binary search without a look at the keys, which lie scattered over the node: a search reads two or
//! three cache lines of words and one key. (The idea is that of the prefixes in the slots of a B-tree page: Graefe,
//! "Modern B-Tree Techniques", 2011, section 3.3.)

use super::node::Keys;
use crate::key::{compare, word};
use std::cmp::Ordering;
use varve_format::node::common_prefix;

/// The words of a sorted list of keys.
///
/// Invariant: every key is at least `skip` long, all have the same first `skip` bytes, and `words` holds
/// [`word`] of each key behind these. `skip` need not be the longest that is true.
#[derive(Clone, Default)]
pub struct Heads {
    skip: usize,
    words: Vec<u32>,
}

impl Heads {
    /// Those of `keys`.
    pub fn of(keys: &(impl Keys + ?Sized)) -> Heads {
        let mut heads = Heads { skip: 0, words: Vec::with_capacity(keys.count()) };
        heads.fill(keys);
        heads
    }

    /// A copy with room for so many more.
    pub fn with_room(&self, more: usize) -> Heads {
        let mut words = Vec::with_capacity(self.words.len() + more);
        words.extend_from_slice(&self.words);
        Heads { skip: self.skip, words }
    }

    /// So many bytes all keys begin with, at least.
    pub fn skip(&self) -> usize {
        self.skip
    }

    /// Memory it takes beside itself.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u32>()
    }

    /// All of them again.
    pub fn fill(&mut self, keys: &(impl Keys + ?Sized)) {
        self.words.clear();
        let n = keys.count();
        if n == 0 {
            self.skip = 0;
            return;
        }
        let first = keys.at(0);
        self.skip = common_prefix(first, keys.at(n - 1));
        self.words.extend((0..n).map(|i| word(&keys.at(i)[self.skip..])));
    }

    /// `keys` has gained the one at `i`.
    pub fn insert(&mut self, i: usize, keys: &(impl Keys + ?Sized)) {
        let n = keys.count();
        // The others begin alike: any of them stands for all.
        let other = if i == 0 { n - 1 } else { 0 };
        let key = keys.at(i);
        if n < 2 || common_prefix(key, keys.at(other)) < self.skip {
            self.fill(keys);
        } else {
            self.words.insert(i, word(&key[self.skip..]));
        }
    }

    /// The key at `i` is gone.
    pub fn remove(&mut self, i: usize) {
        self.words.remove(i);
    }

    /// Reads one word of each cache line.
    pub fn look_at(&self) -> u32 {
        const LINE: usize = 64 / size_of::<u32>();
        self.words.iter().step_by(LINE).fold(0, |sum, word| sum.wrapping_add(*word))
    }

    /// Where `key` is among `keys`, or where it would be.
    #[inline]
    pub fn find(&self, keys: &(impl Keys + ?Sized), key: &[u8]) -> Result<usize, usize> {
        debug_assert_eq!(self.words.len(), keys.count(), "one word a key");
        if self.words.is_empty() {
            return Err(0);
        }
        let same = self.skip.min(key.len());
        match compare(&key[..same], &keys.at(0)[..same]) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.words.len()),
            // All of them begin with it and go on.
            Ordering::Equal if key.len() < self.skip => return Err(0),
            Ordering::Equal => {}
        }
        let wanted = word(&key[self.skip..]);
        let mut low = self.words.partition_point(|word| *word < wanted);
        let mut high = low;
        // Nearly always one at most has the same word.
        while self.words.get(high) == Some(&wanted) {
            high += 1;
        }
        while low < high {
            let middle = (low + high) / 2;
            match compare(keys.at(middle), key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Keys for Vec<Vec<u8>> {
        fn count(&self) -> usize {
            self.len()
        }
        fn at(&self, i: usize) -> &[u8] {
            &self[i]
        }
    }

    /// Keys that begin alike, of few different bytes, some longer than others and some the beginning of others.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![8 => Just(8), 1 => 0..8_usize];
        (start, proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(255)], 0..8)).prop_map(
            |(start, rest)| {
                let mut key = vec![7; start];
                key.extend(rest);
                key
            },
        )
    }

    proptest! {
        #[test]
        fn finds_what_a_search_of_the_keys_finds(
            changes in proptest::collection::vec((key(), any::<bool>()), 0..60),
            asked in proptest::collection::vec(key(), 1..20),
        ) {
            let (mut keys, mut heads) = (Vec::<Vec<u8>>::new(), Heads::default());
            for (key, adds) in changes {
                match (keys.binary_search(&key), adds) {
                    (Err(at), true) => {
                        keys.insert(at, key);
                        heads.insert(at, &keys);
                    }
                    (Ok(at), false) => {
                        keys.remove(at);
                        heads.remove(at);
                    }
                    _ => {}
                }
                for key in asked.iter().chain(&keys) {
                    prop_assert_eq!(heads.find(&keys, key), keys.binary_search(key), "{:?} in {:?}", key, keys);
                }
            }
            let again = Heads::of(&keys);
            for key in asked.iter().chain(&keys) {
                prop_assert_eq!(again.find(&keys, key), keys.binary_search(key));
            }
        }
    }
}
