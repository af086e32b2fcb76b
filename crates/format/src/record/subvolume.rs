//! Subvolumes: the holders of namespace versions.
//!
//! Key (not versioned): subvolume number. Today a pool has one, [`FIRST_SUBVOLUME`].

use crate::codec::{Reader, Writer};
use crate::{Corrupt, FamilyId, InodeId, VersionId};

/// The number of a pool's first subvolume, of its namespace family and of that family's first version.
pub const FIRST_SUBVOLUME: u64 = 2;
/// SipHash-1-3 keyed with the pool's seed: how names become positions.
pub const HASH_KIND_SIPHASH13: u8 = 1;

const FILES_KNOWN: u8 = 1;

/// The value of a subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolumeRecord {
    /// Namespace family.
    pub family: FamilyId,
    /// Version of the namespace this subvolume stands at.
    pub version: VersionId,
    /// Its root directory.
    pub root: InodeId,
    /// How names are hashed.
    pub hash_kind: u8,
    /// Inodes, as far as known: exact if [`SubvolumeRecord::files_known`].
    pub files: u64,
    /// Whether `files` is exact. The first change after opening clears it; closing sets it.
    pub files_known: bool,
    /// Blocks that reservations of its files hold: as many as their entries have in all, in every transaction.
    pub reserved_blocks: u64,
}

impl SubvolumeRecord {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(50);
        out.put_u64(self.family.0);
        out.put_u64(self.version.0);
        out.put_u64(self.root.0);
        out.put_u64(self.files);
        out.put_u8(self.hash_kind);
        out.put_u8(if self.files_known { FILES_KNOWN } else { 0 });
        out.put_u64(self.reserved_blocks);
        // Room for the inode slot shown to users, the 16-byte name and flags; zero now.
        out.put_bytes(&[0; 22]);
        out
    }

    /// Reads a value; anything that is not exactly one is an error.
    pub fn decode(bytes: &[u8]) -> Result<SubvolumeRecord, Corrupt> {
        let mut r = Reader::new(bytes);
        let (family, version) = (FamilyId(r.u64()?), VersionId(r.u64()?));
        let (root, files) = (InodeId(r.u64()?), r.u64()?);
        let (hash_kind, bits) = (r.u8()?, r.u8()?);
        if bits & !FILES_KNOWN != 0 {
            return r.corrupt("unknown bits of a subvolume");
        }
        let reserved_blocks = r.u64()?;
        if r.array::<22>()? != [0; 22] {
            return r.corrupt("subvolume fields of a newer format");
        }
        r.finish()?;
        let files_known = bits & FILES_KNOWN != 0;
        Ok(SubvolumeRecord { family, version, root, hash_kind, files, files_known, reserved_blocks })
    }
}

/// The key of a subvolume.
pub fn subvolume_key(subvolume: u64) -> [u8; 8] {
    subvolume.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what is written is what is read, and hostile bytes give errors. Method: round trip, every byte set to
    // every value, cuts.
    #[test]
    fn round_trip_and_hostile_bytes() {
        let record = SubvolumeRecord {
            family: FamilyId(2),
            version: VersionId(3),
            root: InodeId(1),
            hash_kind: HASH_KIND_SIPHASH13,
            files: 50_000,
            files_known: true,
            reserved_blocks: 77,
        };
        let good = record.encode();
        assert_eq!(SubvolumeRecord::decode(&good).unwrap(), record);
        for at in 0..good.len() {
            assert!(SubvolumeRecord::decode(&good[..at]).is_err());
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                if let Ok(record) = SubvolumeRecord::decode(&bad) {
                    assert_eq!(record.encode(), bad);
                }
            }
        }
    }
}
