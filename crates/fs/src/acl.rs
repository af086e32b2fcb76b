//! POSIX access control lists: what they mean for the permission bits, how they are inherited.
//!
//! Lists are stored as the extended attributes `system.posix_acl_access` and `system.posix_acl_default`, in Linux's
//! form (version 2: u32 version, then per entry u16 tag, u16 permissions, u32 id, little-endian). Whom a list lets in is
//! the kernel's business. What is kept here: the owner, mask (or group) and other entries of an access list always
//! equal the permission bits; a list that says no more than they do is not stored.

use crate::{FsError, Result};

/// Where an access list is stored.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Where the list is stored that a directory's new entries inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of entries that have none.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    tag: u16,
    id: u32,
    permissions: u16,
}

/// A valid list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    /// Sorted by tag and id.
    entries: Vec<Entry>,
}

impl Acl {
    /// The list in `bytes`; `None` for one without entries, which means "no list".
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Acl>> {
        let (head, body) = bytes.split_first_chunk::<4>().ok_or(FsError::Invalid)?;
        if u32::from_le_bytes(*head) != VERSION || !body.len().is_multiple_of(ENTRY_BYTES) {
            return Err(FsError::Invalid);
        }
        let mut entries: Vec<Entry> = body
            .chunks_exact(ENTRY_BYTES)
            .map(|b| {
                let tag = u16::from_le_bytes([b[0], b[1]]);
                let id = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
                let id = if tag == USER || tag == GROUP { id } else { NOBODY };
                Entry { tag, id, permissions: u16::from_le_bytes([b[2], b[3]]) }
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        entries.sort();
        let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = named + count(OWNER) + count(GROUP_OWNER) + count(OTHER) + count(MASK);
        let valid = known == entries.len()
            && (count(OWNER), count(GROUP_OWNER), count(OTHER)) == (1, 1, 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
            && entries.iter().all(|entry| entry.permissions <= 7)
            && entries.windows(2).all(|pair| (pair[0].tag, pair[0].id) != (pair[1].tag, pair[1].id));
        if valid { Ok(Some(Acl { entries })) } else { Err(FsError::Invalid) }
    }

    /// The stored form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// Whether the permission bits say the same.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The permission bits (0777) of a file with this list.
    pub(crate) fn mode(&self) -> u16 {
        let class = |tags: &[u16]| {
            let entry = tags.iter().find_map(|tag| self.entries.iter().find(|entry| entry.tag == *tag));
            entry.map_or(0, |entry| entry.permissions)
        };
        class(&[OWNER]) << 6 | class(&[MASK, GROUP_OWNER]) << 3 | class(&[OTHER])
    }

    /// chmod: the entries that equal the permission bits become those of `mode`.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        self.each_class(|permissions, bits| *permissions = bits, mode);
    }

    /// The access list of a new file in a directory with this default list, made with `mode` (no umask applied).
    pub(crate) fn inherit(&self, mode: u16) -> Acl {
        let mut acl = self.clone();
        acl.each_class(|permissions, bits| *permissions &= bits, mode);
        acl
    }

    fn each_class(&mut self, change: impl Fn(&mut u16, u16), mode: u16) {
        let group = if self.entries.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OWNER };
        for entry in &mut self.entries {
            let bits = match entry.tag {
                OWNER => mode >> 6,
                OTHER => mode,
                tag if tag == group => mode >> 3,
                _ => continue,
            };
            change(&mut entry.permissions, bits & 7);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&permissions.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    const LIST: [(u16, u16, u32); 5] = [
        (OWNER, 7, NOBODY),
        (USER, 6, 1000),
        (GROUP_OWNER, 5, NOBODY),
        (MASK, 6, NOBODY),
        (OTHER, 1, NOBODY),
    ];

    // Goal: lists mean what the permission bits show, under chmod and inheritance. Method: by hand.
    #[test]
    fn modes() {
        let mut acl = Acl::decode(&bytes(&LIST)).unwrap().unwrap();
        assert_eq!((acl.mode(), acl.is_minimal(), acl.encode()), (0o761, false, bytes(&LIST)));
        assert_eq!(acl.inherit(0o640).mode(), 0o640);
        assert_eq!(acl.inherit(0o777).mode(), 0o761);
        acl.set_mode(0o417);
        assert_eq!(acl.mode(), 0o417);
        let minimal = bytes(&[(OWNER, 7, NOBODY), (GROUP_OWNER, 5, NOBODY), (OTHER, 1, NOBODY)]);
        let acl = Acl::decode(&minimal).unwrap().unwrap();
        assert_eq!((acl.mode(), acl.is_minimal()), (0o751, true));
    }

    // Goal: what is no list is refused. Method: every cut, each entry missing or twice, wrong version, wide permissions.
    #[test]
    fn hostile_bytes() {
        let good = bytes(&LIST);
        assert_eq!(Acl::decode(&good[..4]).unwrap(), None);
        for len in (0..good.len()).filter(|len| *len != 4) {
            assert!(Acl::decode(&good[..len]).is_err(), "cut to {len}");
        }
        for at in 0..LIST.len() {
            let mut list = LIST.to_vec();
            list.push(LIST[at]);
            assert!(Acl::decode(&bytes(&list)).is_err(), "twice {at}");
            let mut list = LIST.to_vec();
            list[at].1 = 8;
            assert!(Acl::decode(&bytes(&list)).is_err(), "wide {at}");
            list.remove(at);
            assert_eq!(Acl::decode(&bytes(&list)).is_err(), at != 1, "missing {at}");
        }
        let mut bad = good.clone();
        bad[0] = 3;
        assert!(Acl::decode(&bad).is_err());
    }
}
