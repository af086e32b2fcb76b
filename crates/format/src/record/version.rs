//! Entries of the versions tree: the versions of a family.
//!
//! Key (16 bytes, big-endian): family, version id. Value (96 bytes, little-endian): [`VersionRecord`].
//! A family's only version is implicit (see [`VersionRecord::implicit`]): its record appears with the first fork or
//! limit, so that a plain file has none, and goes when nothing is left of them.

use crate::codec::{Reader, Writer};
use crate::{BLOCK_BYTES, Corrupt, FamilyId, VersionId, VersionKey};

/// Bytes in the key of a version record.
pub const VERSION_KEY_BYTES: usize = 16;
/// Bytes in a [`VersionRecord`].
pub const VERSION_RECORD_BYTES: usize = 96;
/// [`VersionRecord::limit`]: everything of the parent can be seen.
pub const NO_LIMIT: u64 = u64::MAX;

/// In which direction a version and its parent are being made into one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// They are not (or the parent's entries beyond the limit are still being removed).
    #[default]
    None,
    /// This version's entries move to the parent's key, and new writes go there.
    Up,
    /// The parent's entries move to this version's key.
    Down,
}

/// One version of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionRecord {
    /// The version this one was opened on; `None` for a root.
    pub parent: Option<VersionId>,
    /// The key its entries carry. Smaller than those of all its descendants.
    pub key: VersionKey,
    /// Holders that point at it.
    pub refs: u64,
    /// Versions whose parent it is.
    pub children: u64,
    /// Their ids, all xored: with one child, its id.
    pub children_xor: u64,
    /// What is seen of the parent and beyond ends at this byte of the file (a multiple of the block size), or
    /// [`NO_LIMIT`].
    pub limit: u64,
    /// Whether it and its parent are being made into one.
    pub drain: Drain,
    /// Bytes of data its entries hold, for quotas. Not kept yet: 0.
    pub bytes_held: u64,
    /// Inodes its entries hold, for quotas. Not kept yet: 0.
    pub inodes_held: u64,
    /// Universal name of a snapshot, for send and receive. Zero if it has none.
    pub uuid: [u8; 16],
}

impl VersionRecord {
    /// What the only version of `family` is while it has no record: its key is the family's number, as its id is until the
    /// family is first forked; one holder, no parent, no limit.
    pub fn implicit(family: FamilyId) -> VersionRecord {
        VersionRecord {
            parent: None,
            key: VersionKey(family.0),
            refs: 1,
            children: 0,
            children_xor: 0,
            limit: NO_LIMIT,
            drain: Drain::None,
            bytes_held: 0,
            inodes_held: 0,
            uuid: [0; 16],
        }
    }
    /// The only child, if there is exactly one.
    pub fn only_child(&self) -> Option<VersionId> {
        (self.children == 1).then_some(VersionId(self.children_xor))
    }
    /// The bytes of the value.
    pub fn encode(&self) -> [u8; VERSION_RECORD_BYTES] {
        let mut bytes = [0; VERSION_RECORD_BYTES];
        let mut out = &mut bytes[..];
        out.put_u64(self.parent.map_or(0, |p| p.0));
        out.put_u64(self.key.0);
        out.put_u64(self.refs);
        out.put_u64(self.children);
        out.put_u64(self.children_xor);
        out.put_u64(self.limit);
        out.put_u8(match self.drain {
            Drain::None => 0,
            Drain::Up => 1,
            Drain::Down => 2,
        });
        out.put_bytes(&[0; 15]);
        out.put_u64(self.bytes_held);
        out.put_u64(self.inodes_held);
        out.put_bytes(&self.uuid);
        debug_assert!(out.is_empty());
        bytes
    }
    /// The record in `bytes`.
    ///
    /// # Errors
    /// Wrong length, unknown state, a limit inside a block, children that contradict their count, a state that needs
    /// a parent without one.
    pub fn decode(bytes: &[u8]) -> Result<VersionRecord, Corrupt> {
        // Its length first: with that known, no field is checked against the end.
        let Ok(bytes) = <&[u8; VERSION_RECORD_BYTES]>::try_from(bytes) else {
            return Err(Corrupt { what: "length of a version", at: bytes.len() });
        };
        let mut reader = Reader::new(bytes);
        let parent = Some(VersionId(reader.u64()?)).filter(|p| p.0 != 0);
        let key = VersionKey(reader.u64()?);
        let (refs, children, children_xor, limit) =
            (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let drain = match reader.u8()? {
            0 => Drain::None,
            1 => Drain::Up,
            2 => Drain::Down,
            _ => return reader.corrupt("unknown state of a version"),
        };
        if reader.array()? != [0u8; 15] {
            return reader.corrupt("unknown field of a version");
        }
        let (bytes_held, inodes_held, uuid) = (reader.u64()?, reader.u64()?, reader.array()?);
        let bad = |what| Err(Corrupt { what, at: 0 });
        if limit != NO_LIMIT && !limit.is_multiple_of(BLOCK_BYTES as u64) {
            return bad("limit of a version inside a block");
        }
        if (children == 0 && children_xor != 0) || (children == 1 && children_xor == 0) {
            return bad("children of a version that contradict their count");
        }
        if parent.is_none() && drain != Drain::None {
            return bad("version that drains without a parent");
        }
        reader.finish()?;
        Ok(VersionRecord {
            parent,
            key,
            refs,
            children,
            children_xor,
            limit,
            drain,
            bytes_held,
            inodes_held,
            uuid,
        })
    }
}

/// The key of a version record.
pub fn encode_key(family: FamilyId, id: VersionId) -> [u8; VERSION_KEY_BYTES] {
    let mut out = [0; VERSION_KEY_BYTES];
    out[..8].copy_from_slice(&family.0.to_be_bytes());
    out[8..].copy_from_slice(&id.0.to_be_bytes());
    out
}

/// Family and version id in the key of a version record.
///
/// # Errors
/// Wrong length; a version id that is 0 or older than its family.
pub fn decode_key(bytes: &[u8]) -> Result<(FamilyId, VersionId), Corrupt> {
    let mut reader = Reader::new(bytes);
    let (family, id) = (FamilyId(reader.u64_be()?), VersionId(reader.u64_be()?));
    if id.0 == 0 || id.0 < family.0 {
        return reader.corrupt("version older than its family");
    }
    reader.finish()?;
    Ok((family, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> VersionRecord {
        VersionRecord {
            parent: Some(VersionId(9)),
            key: VersionKey(12),
            refs: 2,
            children: 1,
            children_xor: 77,
            limit: 1 << 20,
            drain: Drain::Up,
            bytes_held: 6,
            inodes_held: 7,
            uuid: *b"0123456789abcdef",
        }
    }

    /// Goal: records and keys survive a round trip. Method: every state once.
    #[test]
    fn roundtrip() {
        let dying = VersionRecord { refs: 0, children: 0, children_xor: 0, ..example() };
        let down = VersionRecord { drain: Drain::Down, limit: NO_LIMIT, ..example() };
        for record in [example(), dying, down, VersionRecord::implicit(FamilyId(3))] {
            assert_eq!(record.encode().len(), VERSION_RECORD_BYTES);
            assert_eq!(VersionRecord::decode(&record.encode()), Ok(record));
        }
        let key = encode_key(FamilyId(3), VersionId(8));
        assert_eq!(decode_key(&key), Ok((FamilyId(3), VersionId(8))));
        assert!(decode_key(&encode_key(FamilyId(9), VersionId(8))).is_err());
        assert!(decode_key(&key[..15]).is_err());
    }

    /// Goal: hostile bytes are refused or decode to what encodes to the same bytes. Method: every length, every byte
    /// of a valid record changed to every value.
    #[test]
    fn hostile() {
        let valid = example().encode();
        for n in 0..valid.len() {
            assert!(VersionRecord::decode(&valid[..n]).is_err());
        }
        for at in 0..valid.len() {
            for byte in 0..=255 {
                let mut bytes = valid;
                bytes[at] = byte;
                if let Ok(record) = VersionRecord::decode(&bytes) {
                    assert_eq!(record.encode(), bytes);
                }
            }
        }
    }
}
