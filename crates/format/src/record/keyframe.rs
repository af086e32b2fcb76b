//! Entries of the keyframes tree: what one version sees in a segment, in one place.
//!
//! Key (25 bytes, big-endian): data family, segment, version key inverted, number of the piece. Value (little-endian):
//! number of pieces of this keyframe (1), bytes of an owner (1, at most 8), then runs in the order of their places: first
//! block in the segment (1), blocks less one (1), number of the first block in the pool, or 0 for space set aside (6), how
//! much the key of the version whose entry it is from is below the keyframe's (as many bytes as an owner has). Where no run
//! is, nothing can be seen. A keyframe has at least one run, each piece at least one.
//!
//! This file knows the bytes only; when a keyframe is true is the engine's business.

use crate::codec::Reader;
use crate::record::extent::{PLACE_BYTES, decode_place, encode_place};
use crate::{Corrupt, FamilyId, VersionKey};

/// Bytes in a [`KeyframeKey`].
pub const KEYFRAME_KEY_BYTES: usize = 25;
/// Bytes in a piece of a keyframe at most: three fit a leaf.
pub const KEYFRAME_PIECE_BYTES_MAX: usize = 1300;
/// Bytes of a piece in front of its runs.
const HEADER_BYTES: usize = 2;
/// Bytes of a run without its owner.
const RUN_BYTES: usize = 8;
/// Blocks of a segment.
const SEGMENT_BLOCKS: u16 = 256;
/// Blocks that a run can name: 48 bits.
const BLOCKS_END: u64 = 1 << 48;

/// Where a piece of a keyframe belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyframeKey {
    /// Whose data.
    pub family: FamilyId,
    /// File offset / segment size.
    pub segment: u64,
    /// The key of the version that sees it (stored inverted: newest first).
    pub version: VersionKey,
    /// Which piece, from 0.
    pub piece: u8,
}

impl KeyframeKey {
    /// The bytes of the key.
    pub fn encode(&self) -> [u8; KEYFRAME_KEY_BYTES] {
        let mut out = [0; KEYFRAME_KEY_BYTES];
        out[..PLACE_BYTES].copy_from_slice(&encode_place(self.family, self.segment, self.version));
        out[PLACE_BYTES] = self.piece;
        out
    }
    /// The key in `bytes`.
    ///
    /// # Errors
    /// Wrong length, a segment beyond the largest.
    pub fn decode(bytes: &[u8]) -> Result<KeyframeKey, Corrupt> {
        let mut reader = Reader::new(bytes);
        let (family, segment, version) = decode_place(&mut reader)?;
        let piece = reader.u8()?;
        reader.finish()?;
        Ok(KeyframeKey { family, segment, version, piece })
    }
}

/// Blocks that lie side by side in the file and in the pool, or are set aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyframeRun {
    /// First block, from the start of the segment.
    pub first: u8,
    /// How many less one.
    pub more: u8,
    /// Number of the first block in the pool; 0: space set aside.
    pub block: u64,
    /// The key of the version whose entry shows it.
    pub owner: VersionKey,
}

impl KeyframeRun {
    /// Its end in the segment, in blocks.
    pub fn end(&self) -> u16 {
        u16::from(self.first) + u16::from(self.more) + 1
    }
}

/// The pieces of a keyframe at `version`. `None`: it has no run, or one that cannot be said.
pub fn encode_pieces(version: VersionKey, runs: &[KeyframeRun]) -> Option<Vec<Vec<u8>>> {
    let mut farthest = 0;
    for run in runs {
        farthest = farthest.max(version.0.checked_sub(run.owner.0)?);
        if run.block >= BLOCKS_END {
            return None;
        }
    }
    let width = (u64::BITS - farthest.leading_zeros()).div_ceil(8) as usize;
    let each = (KEYFRAME_PIECE_BYTES_MAX - HEADER_BYTES) / (RUN_BYTES + width);
    let count = u8::try_from(runs.len().div_ceil(each)).ok().filter(|count| *count > 0)?;
    let piece = |runs: &[KeyframeRun]| {
        let mut out = Vec::with_capacity(HEADER_BYTES + runs.len() * (RUN_BYTES + width));
        out.extend_from_slice(&[count, width as u8]);
        for run in runs {
            out.extend_from_slice(&[run.first, run.more]);
            out.extend_from_slice(&run.block.to_le_bytes()[..6]);
            out.extend_from_slice(&(version.0 - run.owner.0).to_le_bytes()[..width]);
        }
        out
    };
    Some(runs.chunks(each).map(piece).collect())
}

/// Appends the runs of the piece with this key, and gives the number of pieces of its keyframe. Its runs follow those that
/// `out` has.
///
/// # Errors
/// A piece that has no such number or no whole runs, runs that overlap or leave the segment, an owner that is none. `out`
/// then has some of them.
pub fn decode_piece(key: &KeyframeKey, value: &[u8], out: &mut Vec<KeyframeRun>) -> Result<u8, Corrupt> {
    let bad = |what| Err(Corrupt { what, at: 0 });
    let [count, width, runs @ ..] = value else { return bad("piece of a keyframe that is cut off") };
    let (count, width) = (*count, usize::from(*width));
    if key.piece >= count {
        return bad("piece of a keyframe that has fewer");
    }
    if width > 8 || runs.is_empty() || !runs.len().is_multiple_of(RUN_BYTES + width) {
        return bad("piece of a keyframe that is no whole runs");
    }
    let here = runs.len() / (RUN_BYTES + width);
    out.reserve((here * usize::from(count - key.piece)).min(usize::from(SEGMENT_BLOCKS)));
    let mut end = out.last().map_or(0, KeyframeRun::end);
    for run in runs.chunks_exact(RUN_BYTES + width) {
        let mut number = [0; 8];
        number[..6].copy_from_slice(&run[2..RUN_BYTES]);
        let block = u64::from_le_bytes(number);
        // One or two bytes as a rule: fewer than a call that copies them costs.
        let below = run[RUN_BYTES..].iter().rev().fold(0, |below, byte| below << 8 | u64::from(*byte));
        let Some(owner) = key.version.0.checked_sub(below) else {
            return bad("owner in a keyframe that is no version");
        };
        let run = KeyframeRun { first: run[0], more: run[1], block, owner: VersionKey(owner) };
        if u16::from(run.first) < end || run.end() > SEGMENT_BLOCKS {
            return bad("runs of a keyframe that overlap or leave the segment");
        }
        end = run.end();
        out.push(run);
    }
    Ok(count)
}

/// The first 16 bytes of every key of a segment.
pub fn segment_prefix(family: FamilyId, segment: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&family.0.to_be_bytes());
    out[8..].copy_from_slice(&segment.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::extent::SEGMENT_MAX;

    fn key(version: u64, piece: u8) -> KeyframeKey {
        KeyframeKey { family: FamilyId(7), segment: 3, version: VersionKey(version), piece }
    }

    fn run(first: u8, more: u8, block: u64, owner: u64) -> KeyframeRun {
        KeyframeRun { first, more, block, owner: VersionKey(owner) }
    }

    fn decode(version: u64, pieces: &[Vec<u8>]) -> Result<Vec<KeyframeRun>, Corrupt> {
        let mut out = Vec::new();
        for (n, piece) in pieces.iter().enumerate() {
            assert_eq!(decode_piece(&key(version, n as u8), piece, &mut out)?, pieces.len() as u8);
        }
        Ok(out)
    }

    /// Goal: keys and keyframes survive a round trip, newest first, and every piece fits. Method: edge cases; a whole segment
    /// of single blocks, with owners near and far.
    #[test]
    fn roundtrip() {
        let keys = [key(u64::MAX, 0), key(9, 0), key(9, 1), key(8, 0)];
        assert!(keys.windows(2).all(|two| two[0].encode() < two[1].encode()));
        for key in keys {
            assert_eq!(KeyframeKey::decode(&key.encode()), Ok(key));
            assert!(key.encode().starts_with(&segment_prefix(FamilyId(7), 3)));
        }
        assert!(
            KeyframeKey::decode(&KeyframeKey { segment: SEGMENT_MAX + 1, ..key(1, 0) }.encode()).is_err()
        );
        let full = |owner| (0..=255).map(|n| run(n, 0, BLOCKS_END - 1 - u64::from(n), owner)).collect();
        let lists: [Vec<_>; 4] =
            [vec![run(0, 255, 5, 900)], vec![run(3, 0, 0, 1), run(255, 0, 7, 900)], full(900), full(0)];
        for runs in lists {
            let pieces = encode_pieces(VersionKey(900), &runs).unwrap();
            assert!(pieces.iter().all(|piece| piece.len() <= KEYFRAME_PIECE_BYTES_MAX));
            assert_eq!(decode(900, &pieces), Ok(runs));
        }
        assert_eq!(encode_pieces(VersionKey(u64::MAX), &full(0)).unwrap().len(), 4);
        for none in [vec![], vec![run(0, 0, BLOCKS_END, 900)], vec![run(0, 0, 5, 901)]] {
            assert_eq!(encode_pieces(VersionKey(900), &none), None);
        }
    }

    /// Goal: hostile bytes are refused or give runs that keep the rules; never a panic. Method: every length, and every byte
    /// of a valid piece and key changed to every value.
    #[test]
    fn hostile() {
        let pieces =
            encode_pieces(VersionKey(900), &[run(3, 0, 0, 1), run(4, 9, 8, 900), run(255, 0, 7, 5)]).unwrap();
        let valid = &pieces[0];
        for n in (0..valid.len()).filter(|n| *n != 12 && *n != 22) {
            assert!(decode_piece(&key(900, 0), &valid[..n], &mut Vec::new()).is_err(), "{n}");
        }
        assert!(decode_piece(&key(900, 1), valid, &mut Vec::new()).is_err(), "there is one piece");
        for at in 0..valid.len() {
            for byte in 0..=255 {
                let mut bytes = valid.clone();
                bytes[at] = byte;
                let mut runs = Vec::new();
                if decode_piece(&key(900, 0), &bytes, &mut runs).is_ok() {
                    assert!(runs.windows(2).all(|two| two[0].end() <= u16::from(two[1].first)));
                    assert!(runs.iter().all(|run| run.end() <= 256 && run.owner.0 <= 900));
                }
            }
        }
        let valid = key(900, 0).encode();
        for n in 0..valid.len() {
            assert!(KeyframeKey::decode(&valid[..n]).is_err());
        }
    }
}
