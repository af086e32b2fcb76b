//! Directory entries.
//!
//! Key (versioned): family, directory, position, inverted version key. The position is a 55-bit seeded hash of the
//! name and an 8-bit sequence among names of one hash; it is what readdir shows as the cookie. Names of one hash form
//! a bucket. If a bucket has entries at all, one is at sequence 0: a whole bucket but for collisions is one lookup.
//! An entry at 0 that is removed while others follow stays as a [`NameRecord::Removed`].

use crate::codec::{Reader, Writer};
use crate::record::inode::InodeKind;
use crate::record::subvolume::LOCAL_INODE_BITS;
use crate::{Corrupt, FamilyId, InodeId, VersionKey};

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a name key.
pub const NAME_KEY_BYTES: usize = 32;
/// Bits of a position that number names of one hash.
pub const SEQUENCE_BITS: u32 = 8;

const CHAINED: u8 = 1;
const REMOVED: u8 = 2;

/// A place in a directory: hash and sequence. At least 256, at most 2^63 - 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct NamePosition(pub u64);

impl NamePosition {
    /// The position with these parts. Only the low 55 bits of `hash` count; 0 is taken as 1.
    pub fn new(hash: u64, sequence: u8) -> NamePosition {
        let hash = (hash & ((1 << 55) - 1)).max(1);
        NamePosition(hash << SEQUENCE_BITS | u64::from(sequence))
    }
    /// The same hash with another sequence.
    pub fn with_sequence(self, sequence: u8) -> NamePosition {
        NamePosition(self.0 & !0xff | u64::from(sequence))
    }
    /// The number among names of one hash.
    pub fn sequence(self) -> u8 {
        self.0 as u8
    }
}

/// The value of a directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameRecord {
    /// A name.
    Entry {
        /// What kind of inode it leads to.
        kind: InodeKind,
        /// Which inode.
        ino: InodeId,
        /// The name.
        name: Vec<u8>,
        /// At sequence 0: there are (or were) more names of this hash.
        chained: bool,
    },
    /// Keeps sequence 0 of a bucket whose other entries live on.
    Removed,
}

impl NameRecord {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            NameRecord::Removed => vec![REMOVED | CHAINED],
            NameRecord::Entry { kind, ino, name, chained } => {
                let mut out = Vec::with_capacity(10 + name.len());
                out.put_u8(if *chained { CHAINED } else { 0 });
                out.put_u8(*kind as u8);
                out.put_u64(ino.0);
                out.put_bytes(name);
                out
            }
        }
    }

    /// Reads a value; anything that is not exactly one is an error.
    pub fn decode(bytes: &[u8]) -> Result<NameRecord, Corrupt> {
        Ok(match NameView::decode(bytes)? {
            NameView::Entry { kind, ino, name, chained } => {
                NameRecord::Entry { kind, ino, name: name.to_vec(), chained }
            }
            NameView::Removed => NameRecord::Removed,
        })
    }

    /// Whether more names of this hash may follow.
    pub fn chained(&self) -> bool {
        match self {
            NameRecord::Entry { chained, .. } => *chained,
            NameRecord::Removed => true,
        }
    }
}

/// A [`NameRecord`] where its bytes lie: to look at one without a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameView<'a> {
    /// As [`NameRecord::Entry`].
    Entry {
        /// What kind of inode it leads to.
        kind: InodeKind,
        /// Which inode.
        ino: InodeId,
        /// The name.
        name: &'a [u8],
        /// At sequence 0: there are (or were) more names of this hash.
        chained: bool,
    },
    /// As [`NameRecord::Removed`].
    Removed,
}

impl<'a> NameView<'a> {
    /// Reads a value; anything that is not exactly one is an error.
    pub fn decode(bytes: &'a [u8]) -> Result<NameView<'a>, Corrupt> {
        NameView::decode_for(bytes, &[])
    }

    /// The same for who looks for `wanted`, which is empty or a name that can be: it is not looked at byte by byte when
    /// it is the one found.
    pub fn decode_for(bytes: &'a [u8], wanted: &[u8]) -> Result<NameView<'a>, Corrupt> {
        let mut r = Reader::new(bytes);
        let bits = r.u8()?;
        if bits == REMOVED | CHAINED {
            r.finish()?;
            return Ok(NameView::Removed);
        }
        if bits & !CHAINED != 0 {
            return r.corrupt("unknown bits of a directory entry");
        }
        let Some(kind) = InodeKind::from_code(r.u8()?) else {
            return r.corrupt("unknown inode kind in a directory entry");
        };
        let ino = InodeId(r.u64()?);
        if !(1..1 << LOCAL_INODE_BITS).contains(&ino.0) {
            return r.corrupt("inode number in a directory entry out of range");
        }
        let len = r.remaining();
        if len == 0 || len > NAME_BYTES_MAX {
            return r.corrupt("length of a name");
        }
        let name = r.bytes(len)?;
        let cannot_be =
            || name.iter().any(|byte| *byte == 0 || *byte == b'/') || name == b"." || name == b"..";
        if name != wanted && cannot_be() {
            return r.corrupt("a name that cannot be");
        }
        Ok(NameView::Entry { kind, ino, name, chained: bits & CHAINED != 0 })
    }
}

/// The key of a directory entry.
pub fn name_key(
    family: FamilyId,
    dir: InodeId,
    position: NamePosition,
    version: VersionKey,
) -> [u8; NAME_KEY_BYTES] {
    let mut key = [0; NAME_KEY_BYTES];
    key[..8].copy_from_slice(&family.0.to_be_bytes());
    key[8..16].copy_from_slice(&dir.0.to_be_bytes());
    key[16..24].copy_from_slice(&position.0.to_be_bytes());
    key[24..].copy_from_slice(&(!version.0).to_be_bytes());
    key
}

/// Takes a name key apart.
pub fn decode_name_key(key: &[u8]) -> Result<(FamilyId, InodeId, NamePosition, VersionKey), Corrupt> {
    let mut r = Reader::new(key);
    let (family, dir, position) = (FamilyId(r.u64_be()?), InodeId(r.u64_be()?), r.u64_be()?);
    if !(256..1 << 63).contains(&position) {
        return r.corrupt("position in a directory out of range");
    }
    let version = VersionKey(!r.u64_be()?);
    r.finish()?;
    Ok((family, dir, NamePosition(position), version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], chained: bool) -> NameRecord {
        NameRecord::Entry { kind: InodeKind::Symlink, ino: InodeId(99), name: name.to_vec(), chained }
    }

    // Goal: what is written is what is read; positions stay in range. Method: round trips of edge values.
    #[test]
    fn round_trip() {
        for record in [entry(b"a", false), entry(&[0xff; 255], true), NameRecord::Removed] {
            assert_eq!(NameRecord::decode(&record.encode()).unwrap(), record);
        }
        for (hash, sequence) in [(0, 0), (u64::MAX, 255), (1 << 55, 3)] {
            let position = NamePosition::new(hash, sequence);
            assert!(position.0 >= 256 && position.0 < 1 << 63);
            assert_eq!(position.sequence(), sequence);
            let key = name_key(FamilyId(1), InodeId(2), position, VersionKey(3));
            assert_eq!(decode_name_key(&key).unwrap(), (FamilyId(1), InodeId(2), position, VersionKey(3)));
        }
    }

    // Goal: hostile bytes give errors. Method: impossible names and lengths, every byte set to every value.
    #[test]
    fn hostile_bytes() {
        for name in [&b"."[..], b"..", b"a/b", b"a\0", b"", &[b'x'; 256]] {
            assert!(NameRecord::decode(&entry(name, false).encode()).is_err());
        }
        let good = entry(b"ab", true).encode();
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                if let Ok(record) = NameRecord::decode(&bad) {
                    assert_eq!(record.encode(), bad);
                }
            }
        }
        assert!(decode_name_key(&[0; 32]).is_err(), "position 0");
        assert!(decode_name_key(&[0xff; 32]).is_err(), "position beyond 2^63");
        assert!(decode_name_key(&[1; 31]).is_err());
    }
}
