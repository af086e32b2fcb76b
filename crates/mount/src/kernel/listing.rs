//! Names of a directory, as many as fit into what the kernel has room for.

use zerocopy::IntoBytes;

use super::abi::{Dirent, DirentPlus, EntryOut};

/// Most room that is used, whatever the kernel has.
const BYTES_MAX: usize = 1 << 20;

/// A listing that is put together. Its memory is used again and again.
#[derive(Default)]
pub struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// Begins anew, with room for so many bytes.
    pub fn begin(&mut self, room: u32) {
        self.bytes.clear();
        self.room = (room as usize).min(BYTES_MAX);
    }

    /// Adds a name. False: there is no room.
    #[must_use]
    pub fn add(&mut self, ino: u64, cookie: u64, mode: u32, name: &[u8]) -> bool {
        self.push(dirent(ino, cookie, mode, name).as_bytes(), name)
    }

    /// Adds a name with attributes. False: there is no room.
    #[must_use]
    pub fn add_plus(&mut self, entry: EntryOut, cookie: u64, name: &[u8]) -> bool {
        let dirent = dirent(entry.attr.ino, cookie, entry.attr.mode, name);
        self.push(DirentPlus { entry, dirent }.as_bytes(), name)
    }

    /// What the kernel gets.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push(&mut self, head: &[u8], name: &[u8]) -> bool {
        let end = self.bytes.len() + (head.len() + name.len()).next_multiple_of(size_of::<u64>());
        if end > self.room {
            return false;
        }
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// The kernel takes the kind from a mode's upper bits.
fn dirent(ino: u64, off: u64, mode: u32, name: &[u8]) -> Dirent {
    // Names have 255 bytes at most.
    Dirent { ino, off, namelen: name.len() as u32, kind: mode >> 12 & 0o17 }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: names lie where the kernel looks for them, and none begins that does not fit. Method: names of each length up
    // to 20 into a listing with room for some of them, then taken apart.
    #[test]
    fn names_are_aligned_and_bounded() {
        for room in 0..600 {
            let mut listing = Listing::default();
            listing.begin(room);
            let mut added = 0;
            for len in 1..=20u64 {
                if !listing.add(len, len + 100, 0o040755, &vec![b'x'; len as usize]) {
                    break;
                }
                added = len;
            }
            assert!(listing.bytes().len() <= room as usize);
            let mut bytes = listing.bytes();
            for len in 1..=added {
                let (number, rest) = bytes.split_at(8);
                assert_eq!(number, len.to_ne_bytes());
                assert_eq!(rest[..8], (len + 100).to_ne_bytes());
                assert_eq!((rest[8], rest[12]), (len as u8, 4));
                let end = (24 + len as usize).next_multiple_of(8);
                assert_eq!(&bytes[24..24 + len as usize], vec![b'x'; len as usize]);
                assert!(bytes[24 + len as usize..end].iter().all(|byte| *byte == 0));
                bytes = &bytes[end..];
            }
            assert!(bytes.is_empty());
            assert!(
                added == 20
                    || (24 + added as usize + 1).next_multiple_of(8) + listing.bytes().len() > room as usize
            );
        }
    }

    // Goal: attributes stand in front of a name. Method: one entry, its length and the inode's number in it twice.
    #[test]
    fn attributes_come_first() {
        let mut listing = Listing::default();
        listing.begin(4096);
        let mut entry = EntryOut { nodeid: 7, ..EntryOut::default() };
        (entry.attr.ino, entry.attr.mode) = (7, 0o100644);
        assert!(listing.add_plus(entry, 3, b"name"));
        let bytes = listing.bytes();
        assert_eq!(bytes.len(), 160);
        assert_eq!(bytes[..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[128..136], 7u64.to_ne_bytes());
        assert_eq!((bytes[148], bytes[152..156].to_vec()), (8, b"name".to_vec()));
    }
}
