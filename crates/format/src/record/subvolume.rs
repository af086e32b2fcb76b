//! Subvolumes: the holders of namespace versions.
//!
//! Key (not versioned): subvolume number. The first one, [`FIRST_SUBVOLUME`], is what a pool is made with; the others
//! have their place in a directory of another one, and their record says where: a subvolume is no directory entry.

use crate::codec::{Reader, Writer};
use crate::record::inode::Time;
use crate::record::name::{NAME_BYTES_MAX, NamePosition};
use crate::{Corrupt, FamilyId, InodeId, VersionId};

/// The number of a pool's first subvolume, of its namespace family and of that family's first version.
pub const FIRST_SUBVOLUME: u64 = 2;
/// SipHash-1-3 keyed with the pool's seed: how names become positions.
pub const HASH_KIND_SIPHASH13: u8 = 1;

/// Bits of an inode number that are the inode's own. Above them is the slot of its subvolume, so that whole
/// numbers are unique in a pool ([`shown_inode`] is what users see of them). Keys and values of a namespace hold numbers without the slot, orphans' keys with it.
pub const LOCAL_INODE_BITS: u32 = 43;

/// The number that programs see of an inode: its bits in another order. Those of the slot are behind the lowest 32 of the inode's own, and
/// those of its own beyond them above all: as long as a pool has given out fewer than 2^32 numbers none is 2^53 or more, which is
/// where programs that hold numbers as floating-point ones (JavaScript) begin to round. The lowest 32 are mixed with the
/// slot: programs that keep no more of a number (cpio) would take the same file in two snapshots for one. In the first subvolume a number
/// below 2^32 is shown as it is.
#[must_use]
pub fn shown_inode(number: u64) -> u64 {
    let (slot, own) = (number >> LOCAL_INODE_BITS, number & ((1 << LOCAL_INODE_BITS) - 1));
    let (slot, beyond) = (slot & u64::from(SUBVOLUME_SLOTS - 1), slot >> SLOT_BITS);
    let low = own as u32 ^ slot_mix(slot);
    beyond << 63 | own >> 32 << (32 + SLOT_BITS) | slot << 32 | u64::from(low)
}

/// The inode of which programs see this number: what [`shown_inode`] was given.
#[must_use]
pub fn inode_shown(shown: u64) -> u64 {
    let slot = shown >> 32 & u64::from(SUBVOLUME_SLOTS - 1);
    let low = shown as u32 ^ slot_mix(slot);
    let own = (shown & (u64::MAX >> 1)) >> (32 + SLOT_BITS) << 32 | u64::from(low);
    ((shown >> 63) << SLOT_BITS | slot) << LOCAL_INODE_BITS | own
}

const SLOT_BITS: u32 = SUBVOLUME_SLOTS.ilog2();

/// What the lowest bits of a slot's numbers are mixed with: nothing for the first.
fn slot_mix(slot: u64) -> u32 {
    (slot as u32).wrapping_mul(0x9e37_79b1)
}
/// Slots: a subvolume's is free for another one when it is gone.
pub const SUBVOLUME_SLOTS: u32 = 1 << 20;
/// Bytes of the record of a subvolume that has no place in another one (the first).
pub const SUBVOLUME_FIXED_BYTES: usize = 64;
/// Bytes of a [`SubvolumePlace`] before its name.
const PLACE_FIXED_BYTES: usize = 44;

const FILES_KNOWN: u8 = 1;

/// Nothing in it can be changed.
pub const SUBVOLUME_READ_ONLY: u16 = 1;
/// A snapshot whose data is not all logged: a crash removes it.
pub const SUBVOLUME_PENDING: u16 = 2;
/// It is being deleted: its name is gone, and the reaper removes the rest.
pub const SUBVOLUME_DELETING: u16 = 4;
/// In the record of the first subvolume: namespaces or data of this pool have been shared at some time, so that any
/// family may have version records.
pub const SUBVOLUME_SHARING: u16 = 8;
/// Of the first: an inode of the pool has had flags that users set. While none has, nobody looks for them.
pub const SUBVOLUME_FLAGGED: u16 = 16;
/// Every flag this version of the program knows.
pub const SUBVOLUME_FLAGS_KNOWN: u16 =
    SUBVOLUME_READ_ONLY | SUBVOLUME_PENDING | SUBVOLUME_DELETING | SUBVOLUME_SHARING | SUBVOLUME_FLAGGED;

/// Where a subvolume is, and where it comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolumePlace {
    /// The subvolume it is in.
    pub parent: u64,
    /// The directory there (without a slot).
    pub directory: InodeId,
    /// Its position in the directory, which no name there has.
    pub position: NamePosition,
    /// When it was made.
    pub created: Time,
    /// The subvolume it is a snapshot of; 0 if it was made empty.
    pub origin: u64,
    /// Its name.
    pub name: Vec<u8>,
}

/// The value of a subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolumeRecord {
    /// Namespace family.
    pub family: FamilyId,
    /// Version of the namespace this subvolume stands at.
    pub version: VersionId,
    /// Its root directory (without a slot).
    pub root: InodeId,
    /// How names are hashed.
    pub hash_kind: u8,
    /// In the first subvolume's record, inode records in all namespaces of the pool, as far as known: exact if
    /// [`SubvolumeRecord::files_known`]. In others 0.
    pub files: u64,
    /// Whether `files` is exact. The first change after opening clears it; closing sets it.
    pub files_known: bool,
    /// In the first subvolume's record, blocks that reservations of the pool's files hold: as many as their entries have
    /// in all, in every transaction. In others 0.
    pub reserved_blocks: u64,
    /// What is above the number of an inode, in the numbers that users see.
    pub slot: u32,
    /// Universal name, for send and receive. Zero if it has none.
    pub uuid: [u8; 16],
    /// `SUBVOLUME_*`.
    pub flags: u16,
    /// Where it is; the first subvolume is nowhere.
    pub place: Option<SubvolumePlace>,
}

impl SubvolumeRecord {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut fixed = [0; SUBVOLUME_FIXED_BYTES];
        let mut out = &mut fixed[..];
        out.put_u64(self.family.0);
        out.put_u64(self.version.0);
        out.put_u64(self.root.0);
        out.put_u64(self.files);
        out.put_u8(self.hash_kind);
        out.put_u8(if self.files_known { FILES_KNOWN } else { 0 });
        out.put_u64(self.reserved_blocks);
        out.put_u32(self.slot);
        out.put_bytes(&self.uuid);
        out.put_u16(self.flags);
        debug_assert!(out.is_empty());
        let place_bytes = self.place.as_ref().map_or(0, |place| PLACE_FIXED_BYTES + place.name.len());
        let mut bytes = Vec::with_capacity(SUBVOLUME_FIXED_BYTES + place_bytes);
        bytes.extend_from_slice(&fixed);
        if let Some(place) = &self.place {
            let mut fixed = [0; PLACE_FIXED_BYTES];
            let mut out = &mut fixed[..];
            out.put_u64(place.parent);
            out.put_u64(place.directory.0);
            out.put_u64(place.position.0);
            out.put_i64(place.created.seconds);
            out.put_u32(place.created.nanoseconds);
            out.put_u64(place.origin);
            debug_assert!(out.is_empty());
            bytes.extend_from_slice(&fixed);
            bytes.extend_from_slice(&place.name);
        }
        bytes
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
        let (slot, uuid, flags) = (r.u32()?, r.array()?, r.u16()?);
        if slot >= SUBVOLUME_SLOTS {
            return r.corrupt("slot of a subvolume out of range");
        }
        if flags & !SUBVOLUME_FLAGS_KNOWN != 0 {
            return r.corrupt("unknown flags of a subvolume");
        }
        let place = if r.remaining() > 0 {
            let (parent, directory) = (r.u64()?, InodeId(r.u64()?));
            let position = r.u64()?;
            if !(256..1 << 63).contains(&position) {
                return r.corrupt("position of a subvolume out of range");
            }
            let created = Time { seconds: r.i64()?, nanoseconds: r.u32()? };
            if created.nanoseconds >= 1_000_000_000 {
                return r.corrupt("time of a subvolume out of range");
            }
            let origin = r.u64()?;
            let len = r.remaining();
            if len == 0 || len > NAME_BYTES_MAX {
                return r.corrupt("length of a subvolume's name");
            }
            let name = r.bytes(len)?.to_vec();
            if name.iter().any(|byte| *byte == 0 || *byte == b'/') || name == b"." || name == b".." {
                return r.corrupt("a subvolume's name that cannot be");
            }
            let position = NamePosition(position);
            Some(SubvolumePlace { parent, directory, position, created, origin, name })
        } else {
            None
        };
        r.finish()?;
        let files_known = bits & FILES_KNOWN != 0;
        Ok(SubvolumeRecord {
            family,
            version,
            root,
            hash_kind,
            files,
            files_known,
            reserved_blocks,
            slot,
            uuid,
            flags,
            place,
        })
    }
}

/// The key of a subvolume.
pub fn subvolume_key(subvolume: u64) -> [u8; 8] {
    subvolume.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the number that programs see tells every two inodes apart and can be taken back; it fits a floating-point number, differs in its
    // lowest 32 bits from that of the same file in another snapshot, and is the inode's own in the first subvolume. Method: numbers of all
    // lengths, those that no pool gives out among them.
    #[test]
    fn shown_numbers_can_be_taken_back() {
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> (seed >> 58)
        };
        for number in (0..200_000).map(|_| next()).chain([0, 1, u64::MAX, 1 << 63, (1 << 43) - 1]) {
            assert_eq!(inode_shown(shown_inode(number)), number, "{number:#x}");
            assert_eq!(shown_inode(inode_shown(number)), number, "{number:#x}");
        }
        for slot in [0, 1, 2, 1023, 1024, 70_000, u64::from(SUBVOLUME_SLOTS) - 1] {
            for own in [1, 2, 70_000, u64::from(u32::MAX)] {
                let shown = shown_inode(slot << LOCAL_INODE_BITS | own);
                assert!(shown < 1 << 52 && shown != 0);
                assert_eq!(shown == own, slot == 0);
                assert_eq!(shown as u32 == own as u32, slot == 0);
            }
        }
    }

    // Goal: what is written is what is read, and hostile bytes give errors. Method: round trip, every byte set to
    // every value, cuts.
    #[test]
    fn round_trip_and_hostile_bytes() {
        let first = SubvolumeRecord {
            family: FamilyId(2),
            version: VersionId(3),
            root: InodeId(1),
            hash_kind: HASH_KIND_SIPHASH13,
            files: 50_000,
            files_known: true,
            reserved_blocks: 77,
            slot: 0,
            uuid: [0; 16],
            flags: 0,
            place: None,
        };
        assert_eq!(first.encode().len(), SUBVOLUME_FIXED_BYTES);
        let place = SubvolumePlace {
            parent: 2,
            directory: InodeId(12),
            position: NamePosition::new(77, 255),
            created: Time { seconds: -5, nanoseconds: 6 },
            origin: 2,
            name: b"before the upgrade".to_vec(),
        };
        let placed = SubvolumeRecord {
            slot: SUBVOLUME_SLOTS - 1,
            uuid: *b"0123456789abcdef",
            flags: SUBVOLUME_READ_ONLY | SUBVOLUME_PENDING,
            place: Some(place),
            ..first.clone()
        };
        for record in [first, placed] {
            let good = record.encode();
            assert_eq!(SubvolumeRecord::decode(&good).unwrap(), record);
            for at in 0..good.len() {
                // What is cut between the fixed part and the place, or inside the name, is another whole record.
                if let Ok(shorter) = SubvolumeRecord::decode(&good[..at]) {
                    assert_eq!(shorter.encode(), good[..at]);
                }
                for value in 0..=255 {
                    let mut bad = good.clone();
                    bad[at] = value;
                    if let Ok(record) = SubvolumeRecord::decode(&bad) {
                        assert_eq!(record.encode(), bad);
                    }
                }
            }
            assert!((0..SUBVOLUME_FIXED_BYTES).all(|len| SubvolumeRecord::decode(&good[..len]).is_err()));
        }
    }
}
