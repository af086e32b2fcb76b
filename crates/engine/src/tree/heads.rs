//! What a search in a node compares first: four bytes of every key, side by side.
//!
//! The keys of a node begin alike, and behind that four bytes tell nearly any two apart. Kept in one array of words,
//! they decide a binary search without a look at the keys, which lie scattered over the node: a search reads two or
//! three cache lines of words and one key. (The idea is that of the prefixes in the slots of a B-tree page: Graefe,
//! "Modern B-Tree Techniques", 2011, section 3.3.)
//!
//! Where they do not, because many keys have the same four bytes there, what all keys have in common further back is left
//! out, too: extents of a few segments in a thousand versions differ in the last byte of the segment, then in none of the
//! next six, then in the last two of the version. A search among equal words would look at five keys, each in a
//! cache line of its own.

use super::node::Keys;
use crate::key::{Key, compare, word};
use std::cmp::Ordering;
use varve_format::node::common_prefix;

/// The words of a sorted list of keys.
///
/// Invariant: every key begins with the first `skip` bytes of `common`, and `words` holds [`word`] of each key behind these,
/// without the gap: `gap_len` bytes behind the next `lead`, which are those that `gap` begins with, as far as a key has them.
/// Neither need be the longest of which that is true. A key that ends in the gap is the beginning of those with the same lead,
/// and its word is not larger than theirs.
#[derive(Clone, Default)]
pub struct Heads {
    words: Vec<u32>,
    /// A copy: a search need not look at a key for it.
    common: Key,
    lead: u8,
    gap_len: u8,
    gap: u64,
}

/// Longest gap.
const GAP_MAX: usize = size_of::<u64>();
/// A gap is looked for where more than one in so many keys has the word of the one before.
const ALIKE_RATIO: usize = 8;

impl Heads {
    /// Those of `keys`.
    pub fn of(keys: &(impl Keys + ?Sized)) -> Heads {
        Heads::with_room_for(0, keys)
    }

    /// Those of `keys`, with room for so many more.
    pub fn with_room_for(more: usize, keys: &(impl Keys + ?Sized)) -> Heads {
        let mut heads = Heads { words: Vec::with_capacity(keys.count() + more), ..Heads::default() };
        heads.fill(keys);
        heads
    }

    /// A copy with room for so many more.
    pub fn with_room(&self, more: usize) -> Heads {
        let mut words = Vec::with_capacity(self.words.len() + more);
        words.extend_from_slice(&self.words);
        Heads { words, ..*self }
    }

    /// Makes room for so many more, if there is none.
    pub fn reserve(&mut self, more: usize) {
        self.words.reserve_exact(more);
    }

    /// So many bytes all keys begin with, at least.
    pub fn skip(&self) -> usize {
        self.common.len()
    }

    /// Memory it takes beside itself.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u32>()
    }

    /// All of them again.
    pub fn fill(&mut self, keys: &(impl Keys + ?Sized)) {
        self.words.clear();
        (self.common, self.gap_len) = (Key::EMPTY, 0);
        let n = keys.count();
        if n == 0 {
            return;
        }
        let first = keys.at(0);
        let skip = common_prefix(first, keys.at(n - 1));
        self.common = Key::new(&first[..skip]);
        self.words.extend((0..n).map(|i| word(&keys.at(i)[skip..])));
        let alike = self.words.windows(2).filter(|pair| pair[0] == pair[1]).count();
        if alike > n / ALIKE_RATIO {
            self.leave_gap(keys);
        }
    }

    /// Looks for the longest gap, and leaves it out.
    fn leave_gap(&mut self, keys: &(impl Keys + ?Sized)) {
        let (n, skip) = (keys.count(), self.skip());
        let longest = (0..n).map(|i| keys.at(i)).max_by_key(|key| key.len()).unwrap_or_default();
        for lead in 1..size_of::<u32>() {
            let mut gap = longest.get(skip + lead..).unwrap_or_default();
            gap = &gap[..gap.len().min(GAP_MAX)];
            for i in 0..n {
                let rest = keys.at(i).get(skip + lead..).unwrap_or_default();
                let same = common_prefix(rest, gap);
                if same < rest.len() {
                    gap = &gap[..same];
                }
                if gap.len() <= self.gap_len.into() {
                    break;
                }
            }
            if gap.len() > self.gap_len.into() {
                (self.lead, self.gap_len, self.gap) = (lead as u8, gap.len() as u8, eight(gap));
            }
        }
        if self.gap_len > 0 {
            self.words.clear();
            for i in 0..n {
                let word = self.word(&keys.at(i)[skip..]);
                self.words.push(word.expect("all keys have the gap"));
            }
        }
    }

    /// The word of a key, from behind the first `skip` bytes on. `None`: it has something else in the gap.
    #[inline]
    fn word(&self, rest: &[u8]) -> Option<u32> {
        if self.gap_len == 0 {
            return Some(word(rest));
        }
        let behind = rest.get(self.lead.into()..).unwrap_or_default();
        let in_gap = behind.len().min(self.gap_len.into());
        let same = in_gap == 0 || (eight(behind) ^ self.gap) >> (64 - 8 * in_gap) == 0;
        same.then(|| word(rest) & !self.behind_lead() | word(&behind[in_gap..]) >> (8 * self.lead))
    }

    /// The bits of a word that are behind the lead.
    fn behind_lead(&self) -> u32 {
        u32::MAX >> (8 * self.lead)
    }

    /// `keys` has gained the one at `i`.
    pub fn insert(&mut self, i: usize, keys: &(impl Keys + ?Sized)) {
        let n = keys.count();
        let key = keys.at(i);
        if n < 2 || !key.starts_with(&self.common) {
            return self.fill(keys);
        }
        let Some(word) = self.word(&key[self.skip()..]) else { return self.fill(keys) };
        self.words.insert(i, word);
        // Whether many are alike by now is looked at now and then.
        if self.gap_len == 0 && n.is_power_of_two() && self.words.get(i + 1) == Some(&word) {
            self.fill(keys);
        }
    }

    /// The key at `i` is gone.
    pub fn remove(&mut self, i: usize) {
        self.words.remove(i);
    }

    /// Reads something of each cache line that it takes itself.
    pub fn look_at_itself(&self) -> usize {
        self.words.len() + self.common.len() + usize::from(self.gap_len) + self.gap as usize % 2
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
        let skip = self.skip();
        match compare(&key[..key.len().min(skip)], &self.common) {
            // One that ends in there is in front of all of them, too.
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(self.words.len()),
            Ordering::Equal => {}
        }
        let rest = &key[skip..];
        let (least, most) = match self.word(rest) {
            Some(word) => (word, word),
            // It is anywhere among those with the same lead.
            None => (word(rest) & !self.behind_lead(), word(rest) | self.behind_lead()),
        };
        let mut low = self.words.partition_point(|word| *word < least);
        let mut high = low;
        // Nearly always one at most has the same word.
        while self.words.get(high).is_some_and(|word| *word <= most) {
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

/// The first eight bytes as a number; those that are not there count as zero.
#[inline]
fn eight(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => bytes.iter().rev().fold(0, |sum, byte| (sum >> 8) | u64::from(*byte) << 56),
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

    /// Keys that begin alike, of few different bytes, some longer than others and some the beginning of others; in nearly all of
    /// some of them the middle is the same.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![8 => Just(8), 1 => 0..8_usize];
        let byte = || prop_oneof![Just(0_u8), Just(1), Just(255)];
        let middle = (0..4_usize, prop_oneof![20 => Just(6_usize), 1 => 0..6_usize], byte());
        let short = (start.clone(), proptest::collection::vec(byte(), 0..8)).prop_map(|(start, rest)| {
            let mut key = vec![7; start];
            key.extend(rest);
            key
        });
        let long = (start, middle, proptest::collection::vec(byte(), 0..8)).prop_map(
            |(start, (lead, same, other), rest)| {
                let mut key = vec![7; start];
                let (lead, behind) = rest.split_at(lead.min(rest.len()));
                key.extend(lead);
                key.extend(std::iter::repeat_n(254, same));
                key.extend((same < 6).then_some(other));
                key.extend(behind);
                key
            },
        );
        prop_oneof![1 => short, 3 => long]
    }

    /// Keys as [`key`], with the lead and the middle as given.
    fn keys_with_gap() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = || prop_oneof![Just(0_u8), Just(1), Just(255)];
        (0..4_usize, 0..15_usize).prop_flat_map(move |(lead, gap)| {
            let key = (
                proptest::collection::vec(byte(), lead),
                proptest::collection::vec(byte(), 0..4),
                0..20_usize,
            );
            let key = key.prop_map(move |(lead, rest, cut)| {
                let mut key = [&[7; 8][..], &lead, &vec![254; gap], &rest].concat();
                // A few end early.
                key.truncate(if cut > 2 { usize::MAX } else { 8 + cut * 4 });
                key
            });
            proptest::collection::vec(key, 0..40)
        })
    }

    proptest! {
        #[test]
        fn finds_what_a_search_of_the_keys_finds(
            changes in proptest::collection::vec((key(), any::<bool>()), 0..60),
            asked in proptest::collection::vec(key(), 1..20),
        ) {
            compares(Vec::new(), changes, &asked)?;
        }

        // Goal: what is left out of the words changes no answer. Method: keys that have a middle in common, as heads made of
        // all of them, before others come in and some go; all of them are looked for, and others.
        #[test]
        fn finds_keys_with_a_gap(
            mut begin in keys_with_gap(),
            changes in proptest::collection::vec((key(), any::<bool>()), 0..20),
            mut asked in keys_with_gap(),
        ) {
            begin.sort();
            begin.dedup();
            asked.extend(changes.iter().map(|(key, _)| key.clone()));
            compares(begin, changes, &asked)?;
        }
    }

    fn compares(
        mut keys: Vec<Vec<u8>>,
        changes: Vec<(Vec<u8>, bool)>,
        asked: &[Vec<u8>],
    ) -> Result<(), TestCaseError> {
        let mut heads = Heads::of(&keys);
        for change in std::iter::once(None).chain(changes.into_iter().map(Some)) {
            let at = change.as_ref().map(|(key, _)| keys.binary_search(key));
            match (at, change) {
                (Some(Err(at)), Some((key, true))) => {
                    keys.insert(at, key);
                    heads.insert(at, &keys);
                }
                (Some(Ok(at)), Some((_, false))) => {
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
        Ok(())
    }

    // Goal: keys of extents of a few segments in many versions have words of their own. Method: keys as in an interior node,
    // the first of each segment cut off behind it, put in all at once and one after the other.
    #[test]
    fn extents_of_many_versions_have_words_of_their_own() {
        let mut keys = Vec::new();
        for segment in 700..705_u64 {
            keys.push([17_u64, segment].map(u64::to_be_bytes).concat());
            for version in (40..1_000_u64).rev().step_by(40) {
                let offset = (version as u32 % 200) << 12;
                keys.push([17, segment, u64::MAX - version].map(u64::to_be_bytes).concat());
                keys.last_mut().unwrap().extend(&offset.to_be_bytes()[..2]);
            }
        }
        let one_word = |heads: &Heads| heads.words.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(one_word(&Heads::of(&keys)));
        let (mut some, mut heads) = (Vec::new(), Heads::default());
        for (i, key) in keys.iter().enumerate() {
            some.push(key.clone());
            heads.insert(i, &some);
        }
        assert!(heads.gap_len > 0, "of {} keys", keys.len());
        assert!(one_word(&heads));
    }
}
