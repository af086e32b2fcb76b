//! Pure codecs of everything VarveFS puts on disk. No I/O, no policy, no clock.
//!
//! Fixed-width little-endian, except inside keys: keys compare as bytes, so their fields are
//! big-endian. Decoding hostile bytes gives [`Corrupt`]; it never panics, never loops without a
//! bound, and never allocates what a field says before that field has been checked.
//!
//! SPEC.md gives every byte; `cargo xtask check` compares its constants with the ones here.
#![forbid(unsafe_code)]

use std::fmt;

pub mod batch;
pub mod codec;
pub mod node;
pub mod record;
pub mod root;
pub mod superblock;
pub mod text;

/// log2 of the block size.
pub const BLOCK_SHIFT: u32 = 12;
/// Bytes in a block: the unit of allocation, of checksums and of tree nodes.
pub const BLOCK_BYTES: usize = 1 << BLOCK_SHIFT;
/// Bytes of file a segment covers. No extent crosses a segment boundary.
pub const SEGMENT_BYTES: u64 = 1 << 20;
/// Longest key in any tree, in bytes.
pub const KEY_BYTES_MAX: usize = 48;
/// Longest value in any tree, in bytes: two of the largest entries always fit one node.
pub const VALUE_BYTES_MAX: usize = 1936;

/// Something on disk that is not what the format says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Corrupt {
    /// What is wrong, as a short noun phrase.
    pub what: &'static str,
    /// Byte offset inside the structure being decoded.
    pub at: usize,
}

/// A byte address in the pool's address space. Chunks map it to devices. 0 is never allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PoolAddr(pub u64);

impl PoolAddr {
    /// No address.
    pub const NULL: PoolAddr = PoolAddr(0);
    /// The address of block number `block`.
    pub const fn from_block(block: u64) -> Self {
        PoolAddr(block << BLOCK_SHIFT)
    }
    /// The number of the block this address lies in.
    pub const fn block(self) -> u64 {
        self.0 >> BLOCK_SHIFT
    }
    /// Whether this is [`PoolAddr::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for PoolAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool:{:#x}", self.0)
    }
}

/// A position in the log: the number of a transaction. 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Lsn(pub u64);

/// A tree of the root table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TreeId(pub u16);

impl TreeId {
    /// Inode records of subvolumes' namespaces.
    pub const INODES: TreeId = TreeId(1);
    /// Directory entries.
    pub const NAMES: TreeId = TreeId(2);
    /// Extended attributes.
    pub const XATTRS: TreeId = TreeId(3);
    /// Extents of files' data.
    pub const EXTENTS: TreeId = TreeId(4);
    /// Version records.
    pub const VERSIONS: TreeId = TreeId(5);
    /// Open but unlinked files, and files whose data is still being deleted.
    pub const ORPHANS: TreeId = TreeId(6);
    /// Subvolumes: the holders of namespace versions.
    pub const SUBVOLUMES: TreeId = TreeId(7);
    /// Where versions have something.
    pub const HELD: TreeId = TreeId(8);
    /// What the reaper has to do.
    pub const REAP: TreeId = TreeId(9);
    /// Blocks that more than one extent names.
    pub const SHARES: TreeId = TreeId(10);
    /// What one version sees in a segment, in one place.
    pub const KEYFRAMES: TreeId = TreeId(11);
    /// Every tree this version of the program knows, in the order of the root table.
    pub const ALL: [TreeId; 11] = [
        TreeId::INODES,
        TreeId::NAMES,
        TreeId::XATTRS,
        TreeId::EXTENTS,
        TreeId::VERSIONS,
        TreeId::ORPHANS,
        TreeId::SUBVOLUMES,
        TreeId::HELD,
        TreeId::REAP,
        TreeId::SHARES,
        TreeId::KEYFRAMES,
    ];
    /// The name used by `inspect`, `stats` and error messages.
    pub fn name(self) -> &'static str {
        match self {
            TreeId::INODES => "inodes",
            TreeId::NAMES => "names",
            TreeId::XATTRS => "xattrs",
            TreeId::EXTENTS => "extents",
            TreeId::VERSIONS => "versions",
            TreeId::ORPHANS => "orphans",
            TreeId::SUBVOLUMES => "subvolumes",
            TreeId::HELD => "held",
            TreeId::REAP => "reap",
            TreeId::SHARES => "shares",
            TreeId::KEYFRAMES => "keyframes",
            _ => "unknown",
        }
    }
}

/// A run of whole blocks in the pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// Address of the first block.
    pub addr: PoolAddr,
    /// Number of blocks, at least 1.
    pub blocks: u32,
}

impl Run {
    /// Length in bytes.
    pub const fn bytes(self) -> u64 {
        (self.blocks as u64) << BLOCK_SHIFT
    }
}

/// An inode number: unique in the pool, never reissued.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct InodeId(pub u64);

/// A family of versions: everything that descends from one original (a subvolume's namespace, or one file's data).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct FamilyId(pub u64);

/// A version of a family. Grows along every path from the root; never reissued.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct VersionId(pub u64);

/// The key that entries of a version carry. Owned by exactly one live version at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct VersionKey(pub u64);

/// The checksum of one block of data (crc32c, Castagnoli). Every byte that is written or read passes through here, so it is
/// worked out by whatever the processor does fastest, as that of a batch is when it is sealed, since somebody waits for it; the few
/// blocks of other kinds, and the batches that recovery reads, are left to the plainer library, beside which a test holds this
/// one.
pub fn block_checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: blocks are checked by the sum that SPEC.md names, on every processor and wherever they lie in memory. Method: the
    // published sum of "123456789", then blocks and shorter pieces at all offsets of a word beside another library.
    #[test]
    fn block_checksums_are_crc32c() {
        assert_eq!(block_checksum(b"123456789"), 0xe306_9283);
        let mut state = 1u64;
        let mut bytes = Vec::new();
        while bytes.len() < 5 * BLOCK_BYTES {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((state >> 56) as u8);
        }
        for from in 0..16 {
            for len in (0..300).chain([BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 4 * BLOCK_BYTES]) {
                let piece = &bytes[from..from + len];
                assert_eq!(block_checksum(piece), crc32c::crc32c(piece), "{len} bytes from {from}");
            }
        }
        for block in [[0; BLOCK_BYTES], [0xff; BLOCK_BYTES]] {
            assert_eq!(block_checksum(&block), crc32c::crc32c(&block));
        }
    }
}
