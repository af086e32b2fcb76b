//! The seeded hash that gives names their place in a directory.
//!
//! SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) keyed with the pool's seed, so that
//! nobody who cannot read the pool can choose names that collide. The kind is stored in the subvolume record; a test
//! kind maps all names to few positions.

use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::HASH_KIND_SIPHASH13;

/// The test kind: names of one first byte collide.
#[cfg(feature = "internals")]
pub const HASH_KIND_COLLIDING: u8 = 255;

/// How this pool hashes names.
#[derive(Clone, Copy, Debug)]
pub struct NameHasher {
    kind: u8,
    key: [u64; 2],
}

/// A number of which each bit depends on all of `seed` (a step of splitmix64).
pub(crate) fn mixed(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl NameHasher {
    /// The hasher of `kind`, if this program knows it.
    pub fn new(kind: u8, seed: u64) -> Option<NameHasher> {
        #[cfg(feature = "internals")]
        if kind == HASH_KIND_COLLIDING {
            return Some(NameHasher { kind, key: [0; 2] });
        }
        // The seed is 64 bits and the key 128: the second half is another function of it.
        (kind == HASH_KIND_SIPHASH13).then_some(NameHasher { kind, key: [seed, mixed(seed)] })
    }

    /// Which way, as records say it.
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    /// The hash of `name`.
    pub fn hash(&self, name: &[u8]) -> u64 {
        if self.kind == HASH_KIND_SIPHASH13 {
            siphash13(self.key, name)
        } else {
            u64::from(name.first().copied().unwrap_or(0))
        }
    }

    /// The first of the positions that names with the hash of `name` have.
    pub(crate) fn base(&self, name: &[u8]) -> NamePosition {
        NamePosition::new(self.hash(name), 0)
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

fn siphash13(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    for word in words {
        let word = u64::from_le_bytes(word.try_into().expect("chunks_exact gives 8 bytes"));
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    let last = u64::from_le_bytes(last);
    v[3] ^= last;
    round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the hash is SipHash-1-3, so that another implementation can read the format. Method: compare with the
    // standard library's hasher, which is SipHash-1-3 with a zero key, over all lengths to 64.
    #[test]
    fn agrees_with_the_standard_library() {
        use std::hash::Hasher;
        let bytes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(7) + 3).collect();
        for len in 0..=bytes.len() {
            let mut reference = std::collections::hash_map::DefaultHasher::new();
            reference.write(&bytes[..len]);
            assert_eq!(siphash13([0, 0], &bytes[..len]), reference.finish(), "length {len}");
        }
    }

    // Goal: seeds matter and unknown kinds are refused. Method: two seeds, one wrong kind.
    #[test]
    fn seeds_and_kinds() {
        let a = NameHasher::new(HASH_KIND_SIPHASH13, 1).unwrap();
        let b = NameHasher::new(HASH_KIND_SIPHASH13, 2).unwrap();
        assert_ne!(a.hash(b"name"), b.hash(b"name"));
        assert!(NameHasher::new(77, 1).is_none());
    }
}
