//! Entries of the shares tree: blocks of the pool that more than one extent names.
//!
//! Key: address of the first block (8 bytes, big-endian). Value (12 bytes, little-endian): blocks (4), how many extents
//! more than one name each of them (8). Entries do not overlap. A block that one extent names, or none, has no entry.

use crate::codec::Reader;
use crate::{BLOCK_BYTES, BLOCK_SHIFT, Corrupt, PoolAddr};

/// Bytes in a key.
pub const SHARES_KEY_BYTES: usize = 8;
/// Bytes in a value.
pub const SHARES_VALUE_BYTES: usize = 12;

/// Blocks that side by side are named by equally many extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedRun {
    /// Number of the first block.
    pub first: u64,
    /// How many, at least 1.
    pub blocks: u32,
    /// How many extents more than one name each, at least 1.
    pub more: u64,
}

impl SharedRun {
    /// One past the last block.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.blocks)
    }
    /// The bytes of the key.
    pub fn key(&self) -> [u8; SHARES_KEY_BYTES] {
        shares_key(self.first)
    }
    /// The bytes of the value.
    pub fn value(&self) -> [u8; SHARES_VALUE_BYTES] {
        let mut out = [0; SHARES_VALUE_BYTES];
        out[..4].copy_from_slice(&self.blocks.to_le_bytes());
        out[4..].copy_from_slice(&self.more.to_le_bytes());
        out
    }
    /// The entry in `key` and `value`.
    ///
    /// # Errors
    /// Wrong lengths, an address that is no block's or leads past the end of all pools, no blocks, nobody more.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<SharedRun, Corrupt> {
        let mut reader = Reader::new(key);
        let addr = PoolAddr(reader.u64_be()?);
        if addr.is_null() || !addr.0.is_multiple_of(BLOCK_BYTES as u64) {
            return reader.corrupt("shared blocks at no block's address");
        }
        reader.finish()?;
        let mut reader = Reader::new(value);
        let run = SharedRun { first: addr.block(), blocks: reader.u32()?, more: reader.u64()? };
        if run.blocks == 0 || run.more == 0 || run.end() > u64::MAX >> BLOCK_SHIFT {
            return reader.corrupt("shared blocks that are none, or that nobody shares");
        }
        reader.finish()?;
        Ok(run)
    }
}

/// The key of an entry whose first block is `block`.
pub fn shares_key(block: u64) -> [u8; SHARES_KEY_BYTES] {
    PoolAddr::from_block(block).0.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries survive a round trip, keys order by address, and hostile bytes are refused or give what keeps the
    /// rules. Method: edge cases, every length, every byte of a valid entry changed to every value.
    #[test]
    fn entries() {
        let runs = [(1, 1, 1), (7, u32::MAX, u64::MAX), ((1 << 52) - 2, 1, 3)];
        let runs = runs.map(|(first, blocks, more)| SharedRun { first, blocks, more });
        for run in runs {
            assert_eq!(SharedRun::decode(&run.key(), &run.value()), Ok(run));
        }
        assert!(runs.windows(2).all(|two| two[0].key() < two[1].key()));
        let run = SharedRun { first: 5, blocks: 3, more: 2 };
        for (first, blocks, more) in [(0, 1, 1), (5, 0, 1), (5, 1, 0), ((1 << 52) - 1, 1, 1)] {
            let run = SharedRun { first, blocks, more };
            assert!(SharedRun::decode(&run.key(), &run.value()).is_err(), "{run:?}");
        }
        for n in 0..SHARES_KEY_BYTES {
            assert!(SharedRun::decode(&run.key()[..n], &run.value()).is_err());
        }
        for n in 0..SHARES_VALUE_BYTES {
            assert!(SharedRun::decode(&run.key(), &run.value()[..n]).is_err());
        }
        let whole = [&run.key()[..], &run.value()].concat();
        for at in 0..whole.len() {
            for byte in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                let (key, value) = bytes.split_at(SHARES_KEY_BYTES);
                if let Ok(read) = SharedRun::decode(key, value) {
                    assert_eq!([&read.key()[..], &read.value()].concat(), bytes);
                    assert!(read.first > 0 && read.blocks > 0 && read.more > 0);
                }
            }
        }
    }
}
