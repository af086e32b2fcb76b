//! Maps by numbers that are given out or counted: blocks, inodes, slots.
//!
//! Nobody outside chooses such a number, so that nothing is gained by a hash that cannot be foreseen, which costs as much as
//! looking the number up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Numbers are counters: one multiplication spreads them.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
    }
}

/// A map by such a number.
pub type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// The next of a row of numbers that look like chance, and are the same each time (Steele, Lea, Flood: "Fast splittable pseudorandom
/// number generators", 2014: SplitMix64). `state` is where the row stands.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    // Goal: numbers that follow each other at any distance that is usual spread over a map's places, and the bits by which the
    // map tells those of one place apart do, too. Method: 4,096 numbers from several on, at distances that are powers of two;
    // different lower and upper bits of their hashes are counted.
    #[test]
    fn numbers_spread() {
        let hasher = BuildHasherDefault::<NumberHasher>::default();
        for shift in [0, 1, 3, 9, 12, 20, 24, 32] {
            for from in [0_u64, 1, 12_345, 1 << 40] {
                let hashes: Vec<u64> = (0..4096).map(|i| hasher.hash_one((from + i) << shift)).collect();
                let places: HashSet<u64> = hashes.iter().map(|hash| hash & 4095).collect();
                let tags: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
                assert!(places.len() > 1500, "distance 2^{shift} from {from}: {} places", places.len());
                assert!(tags.len() > 100, "distance 2^{shift} from {from}: {} tags", tags.len());
            }
        }
    }
}
