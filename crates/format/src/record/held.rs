//! Entries of the held tree: where a version has something, so that taking it away costs what it has.
//!
//! Key (big-endian): family (8), version key (8, not inverted), tree (1), place. The place is what the keys of that
//! tree have between family and version: for extents the segment (8), for namespaces the rest of the key. No value.
//! A family's first version, whose key is the family's number, is not here: plain files pay nothing.

use crate::codec::Reader;
use crate::{Corrupt, FamilyId, TreeId, VersionKey};

/// Bytes in front of the place.
pub const HELD_KEY_BYTES_MIN: usize = 17;
/// Longest place: that of a piece of an extended attribute.
pub const PLACE_BYTES_MAX: usize = 18;

/// The first bytes of what a version holds in one tree.
pub fn held_prefix(family: FamilyId, version: VersionKey, tree: TreeId) -> [u8; HELD_KEY_BYTES_MIN] {
    let mut out = [0; HELD_KEY_BYTES_MIN];
    out[..8].copy_from_slice(&family.0.to_be_bytes());
    out[8..16].copy_from_slice(&version.0.to_be_bytes());
    out[16] = tree.0 as u8;
    out
}

/// The key of an entry. `place` has at most [`PLACE_BYTES_MAX`] bytes.
pub fn held_key(family: FamilyId, version: VersionKey, tree: TreeId, place: &[u8]) -> Vec<u8> {
    debug_assert!(place.len() <= PLACE_BYTES_MAX);
    let mut out = Vec::with_capacity(HELD_KEY_BYTES_MIN + place.len());
    out.extend_from_slice(&held_prefix(family, version, tree));
    out.extend_from_slice(place);
    out
}

/// Family, version key, tree and place in a key.
///
/// # Errors
/// A tree without versions, a place of another length than its tree's, the first version of a family.
pub fn decode_held_key(bytes: &[u8]) -> Result<(FamilyId, VersionKey, TreeId, &[u8]), Corrupt> {
    let mut reader = Reader::new(bytes);
    let (family, version) = (FamilyId(reader.u64_be()?), VersionKey(reader.u64_be()?));
    if version.0 <= family.0 {
        return reader.corrupt("index entry of a version that has no index");
    }
    let (tree, place) = place(&mut reader)?;
    Ok((family, version, tree, place))
}

/// Tree and place at the end of a key, or in a cursor.
pub(super) fn place<'a>(reader: &mut Reader<'a>) -> Result<(TreeId, &'a [u8]), Corrupt> {
    let tree = TreeId(u16::from(reader.u8()?));
    let len = match tree {
        TreeId::INODES | TreeId::EXTENTS => 8,
        TreeId::NAMES => 16,
        TreeId::XATTRS => PLACE_BYTES_MAX,
        _ => return reader.corrupt("place in a tree without versions"),
    };
    if reader.remaining() != len {
        return reader.corrupt("place of another length than its tree's");
    }
    Ok((tree, reader.bytes(len)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys survive a round trip, order by version and place, and nonsense is refused. Method: one of each tree;
    /// every cut; a version without an index.
    #[test]
    fn round_trip_and_hostile_bytes() {
        for (tree, len) in
            [(TreeId::INODES, 8), (TreeId::NAMES, 16), (TreeId::XATTRS, 18), (TreeId::EXTENTS, 8)]
        {
            let place = vec![7; len];
            let key = held_key(FamilyId(5), VersionKey(9), tree, &place);
            assert!(key.len() <= crate::KEY_BYTES_MAX && key.starts_with(&5u64.to_be_bytes()));
            assert_eq!(decode_held_key(&key), Ok((FamilyId(5), VersionKey(9), tree, &place[..])));
            for n in 0..key.len() {
                assert!(decode_held_key(&key[..n]).is_err());
            }
        }
        assert!(decode_held_key(&held_key(FamilyId(5), VersionKey(5), TreeId::EXTENTS, &[0; 8])).is_err());
        assert!(decode_held_key(&held_key(FamilyId(5), VersionKey(9), TreeId::ORPHANS, &[0; 8])).is_err());
        let a = held_key(FamilyId(5), VersionKey(9), TreeId::EXTENTS, &3u64.to_be_bytes());
        let b = held_key(FamilyId(5), VersionKey(9), TreeId::EXTENTS, &256u64.to_be_bytes());
        assert!(a < b && b < held_key(FamilyId(5), VersionKey(10), TreeId::INODES, &[0; 8]));
    }
}
