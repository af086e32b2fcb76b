//! Orphans: inodes without a name whose end is not complete.
//!
//! Key (not versioned): inode. The inode record lives here from the moment its last name went, or until it gets its first,
//! because the file is open (a process that dies with it ends that, so everything here is deleted on open); or because
//! it has too much data for one transaction to delete.

use crate::codec::{Reader, Writer};
use crate::record::inode::InodeRecord;
use crate::{Corrupt, InodeId};

/// Bytes of an orphan key.
pub const ORPHAN_KEY_BYTES: usize = 8;

/// Why an inode is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum OrphanState {
    /// Open, and unlinked or not linked yet.
    Open = 1,
    /// Being deleted, in steps.
    Deleting = 2,
}

/// The value of an orphan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OrphanRecord {
    /// Why it is here.
    pub state: OrphanState,
    /// The inode, with no links.
    pub inode: InodeRecord,
}

impl OrphanRecord {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.state as u8];
        out.put_bytes(&self.inode.encode());
        out
    }

    /// Reads a value; anything that is not exactly one is an error.
    pub fn decode(bytes: &[u8]) -> Result<OrphanRecord, Corrupt> {
        let mut r = Reader::new(bytes);
        let state = match r.u8()? {
            1 => OrphanState::Open,
            2 => OrphanState::Deleting,
            _ => return r.corrupt("unknown state of an orphan"),
        };
        let inode = InodeRecord::decode(r.bytes(r.remaining())?)?;
        Ok(OrphanRecord { state, inode })
    }
}

/// The key of an orphan.
pub fn orphan_key(ino: InodeId) -> [u8; ORPHAN_KEY_BYTES] {
    ino.0.to_be_bytes()
}

/// Takes an orphan key apart.
pub fn decode_orphan_key(key: &[u8]) -> Result<InodeId, Corrupt> {
    let mut r = Reader::new(key);
    let ino = InodeId(r.u64_be()?);
    r.finish()?;
    Ok(ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::inode::tests::sample;

    // Goal: what is written is what is read, and hostile bytes give errors. Method: round trip, bad states, cuts.
    #[test]
    fn round_trip_and_hostile_bytes() {
        for state in [OrphanState::Open, OrphanState::Deleting] {
            let record = OrphanRecord { state, inode: sample(Some(vec![9; 1700])) };
            let bytes = record.encode();
            assert!(bytes.len() <= crate::VALUE_BYTES_MAX);
            assert_eq!(OrphanRecord::decode(&bytes).unwrap(), record);
            for len in 0..bytes.len() {
                assert!(OrphanRecord::decode(&bytes[..len]).is_err());
            }
            let mut bad = bytes.clone();
            bad[0] = 3;
            assert!(OrphanRecord::decode(&bad).is_err());
        }
        assert_eq!(decode_orphan_key(&orphan_key(InodeId(5))).unwrap(), InodeId(5));
        assert!(decode_orphan_key(&[0; 7]).is_err());
    }
}
