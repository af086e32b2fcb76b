//! Extended attributes.
//!
//! Key (versioned): family, inode, position (55-bit seeded hash of the name and 8-bit sequence, as for directory
//! entries), chunk number, inverted version key. Chunk 0 holds the name, the length of the value and its beginning;
//! the chunks after it hold [`XATTR_CHUNK_BYTES`] each, the last one what is left.

use crate::codec::{Reader, Writer};
use crate::record::name::NamePosition;
use crate::{Corrupt, FamilyId, InodeId, VersionKey};

/// Longest name, in bytes.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value, in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of value in a chunk (chunk 0 included).
pub const XATTR_CHUNK_BYTES: usize = 1024;
/// Bytes of an xattr key.
pub const XATTR_KEY_BYTES: usize = 34;

/// Chunk 0 of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XattrHead {
    /// Name with its namespace, such as `user.comment`.
    pub name: Vec<u8>,
    /// Length of the whole value, in bytes.
    pub value_len: u32,
    /// The value's first bytes: all of it, or [`XATTR_CHUNK_BYTES`].
    pub start: Vec<u8>,
}

/// Number of chunks of a value of `value_len` bytes, at least 1.
pub fn xattr_chunks(value_len: usize) -> u16 {
    value_len.div_ceil(XATTR_CHUNK_BYTES).max(1) as u16
}

impl XattrHead {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(5 + self.name.len() + self.start.len());
        out.put_u8(self.name.len() as u8);
        out.put_u32(self.value_len);
        out.put_bytes(&self.name);
        out.put_bytes(&self.start);
        out
    }

    /// Reads a chunk 0; anything that is not exactly one is an error.
    pub fn decode(bytes: &[u8]) -> Result<XattrHead, Corrupt> {
        let mut r = Reader::new(bytes);
        let name_len = r.u8()? as usize;
        let value_len = r.u32()?;
        if value_len as usize > XATTR_VALUE_BYTES_MAX {
            return r.corrupt("length of an attribute's value");
        }
        if name_len == 0 {
            return r.corrupt("an attribute without a name");
        }
        let name = r.bytes(name_len)?.to_vec();
        if name.contains(&0) {
            return r.corrupt("a NUL in an attribute's name");
        }
        let start = r.bytes((value_len as usize).min(XATTR_CHUNK_BYTES))?.to_vec();
        r.finish()?;
        Ok(XattrHead { name, value_len, start })
    }
}

/// The key of a chunk.
pub fn xattr_key(
    family: FamilyId,
    ino: InodeId,
    position: NamePosition,
    chunk: u16,
    version: VersionKey,
) -> [u8; XATTR_KEY_BYTES] {
    let mut key = [0; XATTR_KEY_BYTES];
    key[..8].copy_from_slice(&family.0.to_be_bytes());
    key[8..16].copy_from_slice(&ino.0.to_be_bytes());
    key[16..24].copy_from_slice(&position.0.to_be_bytes());
    key[24..26].copy_from_slice(&chunk.to_be_bytes());
    key[26..].copy_from_slice(&(!version.0).to_be_bytes());
    key
}

/// Takes an xattr key apart.
pub fn decode_xattr_key(key: &[u8]) -> Result<(FamilyId, InodeId, NamePosition, u16, VersionKey), Corrupt> {
    let mut r = Reader::new(key);
    let (family, ino, position) = (FamilyId(r.u64_be()?), InodeId(r.u64_be()?), r.u64_be()?);
    if !(256..1 << 63).contains(&position) {
        return r.corrupt("position of an attribute out of range");
    }
    let (chunk, version) = (r.u16_be()?, VersionKey(!r.u64_be()?));
    r.finish()?;
    Ok((family, ino, NamePosition(position), chunk, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(value_len: usize) -> XattrHead {
        XattrHead {
            name: b"user.a".to_vec(),
            value_len: value_len as u32,
            start: vec![3; value_len.min(XATTR_CHUNK_BYTES)],
        }
    }

    // Goal: what is written is what is read. Method: round trips around the chunk size.
    #[test]
    fn round_trip() {
        for len in [0, 1, XATTR_CHUNK_BYTES, XATTR_CHUNK_BYTES + 1, XATTR_VALUE_BYTES_MAX] {
            let bytes = head(len).encode();
            assert!(bytes.len() <= crate::VALUE_BYTES_MAX);
            assert_eq!(XattrHead::decode(&bytes).unwrap(), head(len));
        }
        assert_eq!((xattr_chunks(0), xattr_chunks(1024), xattr_chunks(1025)), (1, 1, 2));
        let position = NamePosition::new(77, 1);
        let key = xattr_key(FamilyId(1), InodeId(2), position, 5, VersionKey(3));
        assert!(key.len() <= crate::KEY_BYTES_MAX);
        assert_eq!(decode_xattr_key(&key).unwrap(), (FamilyId(1), InodeId(2), position, 5, VersionKey(3)));
    }

    // Goal: hostile bytes give errors. Method: truncations, extra bytes, every byte set to every value.
    #[test]
    fn hostile_bytes() {
        let good = head(20).encode();
        for len in 0..good.len() {
            assert!(XattrHead::decode(&good[..len]).is_err());
        }
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                if let Ok(record) = XattrHead::decode(&bad) {
                    assert_eq!(record.encode(), bad);
                }
            }
        }
        assert!(decode_xattr_key(&[0; 34]).is_err());
        assert!(decode_xattr_key(&[1; 33]).is_err());
    }
}
