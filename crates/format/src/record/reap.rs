//! Entries of the reap tree: what the reaper has to do, and how far it has come.
//!
//! Key (big-endian): family (8), kind (1), the id of a version (8), and for a place of it a tree (1) and the place (as in
//! the held tree); for a place from which something has been taken already the place alone. Value: for a version a cursor,
//! empty or a tree (1) and a place: everything before it has been dealt with. For a place nothing. A family without work has no entry, so that finding work costs what is to be done.

use super::held;
use crate::codec::Reader;
use crate::{Corrupt, FamilyId, TreeId, VersionId};

/// Bytes in front of what is to be done.
pub const REAP_KEY_BYTES_MIN: usize = 9;

/// Something to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work<'a> {
    /// A version without holders that has at most one child: it goes.
    Going(VersionId),
    /// A version without holders that has several children: what none of them sees goes.
    Recheck(VersionId),
    /// A place where this version, without holders, may have something that nobody sees any more.
    Place(VersionId, TreeId, &'a [u8]),
    /// A place from which only part of what nobody sees has been taken away, whoever has it.
    Rest(TreeId, &'a [u8]),
}

/// The first bytes of all work in a family.
pub fn reap_prefix(family: FamilyId) -> [u8; 8] {
    family.0.to_be_bytes()
}

/// The key of something to do.
pub fn reap_key(family: FamilyId, work: Work) -> Vec<u8> {
    let mut out = Vec::with_capacity(REAP_KEY_BYTES_MIN + 9 + held::PLACE_BYTES_MAX);
    out.extend_from_slice(&family.0.to_be_bytes());
    match work {
        Work::Going(id) => {
            out.push(1);
            out.extend_from_slice(&id.0.to_be_bytes());
        }
        Work::Recheck(id) => {
            out.push(2);
            out.extend_from_slice(&id.0.to_be_bytes());
        }
        Work::Place(id, tree, place) => {
            out.push(3);
            out.extend_from_slice(&id.0.to_be_bytes());
            out.push(tree.0 as u8);
            out.extend_from_slice(place);
        }
        Work::Rest(tree, place) => {
            out.push(4);
            out.push(tree.0 as u8);
            out.extend_from_slice(place);
        }
    }
    out
}

/// What a key says is to be done, and in which family.
///
/// # Errors
/// An unknown kind, a wrong length, a version older than its family.
pub fn decode_reap_key(bytes: &[u8]) -> Result<(FamilyId, Work<'_>), Corrupt> {
    let mut reader = Reader::new(bytes);
    let family = FamilyId(reader.u64_be()?);
    let kind = reader.u8()?;
    if !(1..=4).contains(&kind) {
        return reader.corrupt("unknown work of the reaper");
    }
    if kind == 4 {
        let (tree, place) = held::place(&mut reader)?;
        reader.finish()?;
        return Ok((family, Work::Rest(tree, place)));
    }
    let id = VersionId(reader.u64_be()?);
    if id.0 == 0 || id.0 < family.0 {
        return reader.corrupt("version older than its family");
    }
    let work = match kind {
        1 => Work::Going(id),
        2 => Work::Recheck(id),
        _ => {
            let (tree, place) = held::place(&mut reader)?;
            Work::Place(id, tree, place)
        }
    };
    reader.finish()?;
    Ok((family, work))
}

/// Checks the value that belongs to `work`.
///
/// # Errors
/// A cursor that is no place; a value where there is none.
pub fn check_reap_value(work: Work, value: &[u8]) -> Result<(), Corrupt> {
    let mut reader = Reader::new(value);
    if !value.is_empty() && !matches!(work, Work::Place(..) | Work::Rest(..)) {
        held::place(&mut reader)?;
    }
    reader.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys survive a round trip, and hostile ones give errors or what encodes to the same bytes. Method: each
    /// kind of work; every cut; every byte set to every value.
    #[test]
    fn round_trip_and_hostile_bytes() {
        let (name, segment) = ([3; 16], 9u64.to_be_bytes());
        for work in [
            Work::Going(VersionId(8)),
            Work::Recheck(VersionId(u64::MAX)),
            Work::Place(VersionId(8), TreeId::EXTENTS, &segment),
            Work::Place(VersionId(8), TreeId::NAMES, &name),
            Work::Rest(TreeId::EXTENTS, &segment),
            Work::Rest(TreeId::NAMES, &name),
        ] {
            let key = reap_key(FamilyId(7), work);
            assert!(key.len() <= crate::KEY_BYTES_MAX && key.starts_with(&reap_prefix(FamilyId(7))));
            assert_eq!(decode_reap_key(&key), Ok((FamilyId(7), work)));
            for at in 0..key.len() {
                assert!(decode_reap_key(&key[..at]).is_err());
                for value in 0..=255 {
                    let mut bad = key.clone();
                    bad[at] = value;
                    if let Ok((family, work)) = decode_reap_key(&bad) {
                        assert_eq!(reap_key(family, work), bad);
                    }
                }
            }
        }
        assert!(decode_reap_key(&reap_key(FamilyId(7), Work::Going(VersionId(6)))).is_err());
        let cursor = [&[4u8][..], &segment].concat();
        assert!(check_reap_value(Work::Going(VersionId(8)), &cursor).is_ok());
        assert!(check_reap_value(Work::Recheck(VersionId(8)), &[]).is_ok());
        assert!(check_reap_value(Work::Recheck(VersionId(8)), &cursor[..8]).is_err());
        assert!(check_reap_value(Work::Place(VersionId(8), TreeId::EXTENTS, &segment), &cursor).is_err());
    }
}
