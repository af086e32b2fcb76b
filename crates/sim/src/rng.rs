//! A small seeded random source, so that a run is told by one number. Not for secrets.

/// A xoshiro256** generator (Blackman and Vigna), seeded through splitmix64.
#[derive(Debug, Clone)]
pub struct Rng {
    seed: u64,
    state: [u64; 4],
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        Self { seed, state: std::array::from_fn(|_| splitmix64(&mut mix)) }
    }

    /// The seed it was made from, for messages.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// An independent generator that depends on the seed and `label` alone, not on what was drawn so far: adding
    /// a draw in one place does not change another.
    #[must_use]
    pub fn fork(&self, label: &str) -> Self {
        // FNV-1a over the label, started from the seed.
        let mut hash = self.seed ^ 0xcbf2_9ce4_8422_2325;
        for byte in label.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Self::new(splitmix64(&mut hash))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number in `0..n`; 0 if `n` is 0. The bias is below 2^-32 for `n` below 2^32.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// An index of a collection of `len`; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True with probability `p` (0.0 to 1.0).
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// One of `items`, `None` if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.index(items.len()))
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: same seed, same numbers; forks do not depend on draws; ranges hold. Method: compare and count.
    #[test]
    fn repeatable_and_in_range() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        let fork_before = a.fork("x").next_u64();
        for _ in 0..1000 {
            assert_eq!(a.next_u64(), b.next_u64());
        }
        assert_eq!(fork_before, a.fork("x").next_u64());
        assert_ne!(a.fork("x").next_u64(), a.fork("y").next_u64());
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[a.index(10)] += 1;
        }
        assert!(counts.iter().all(|n| (9_000..11_000).contains(n)), "{counts:?}");
        let hits = (0..100_000).filter(|_| a.chance(0.25)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!(!a.chance(0.0) && a.chance(1.0));
        let mut items: Vec<u32> = (0..100).collect();
        a.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
