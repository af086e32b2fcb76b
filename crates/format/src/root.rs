//! Pointers to nodes and array pages, and the root block that a superblock points at.

use crate::codec::{Reader, Writer};
use crate::{BLOCK_BYTES, Corrupt, Lsn, PoolAddr, TreeId};

/// Bytes of an encoded [`NodePtr`].
pub const NODE_PTR_BYTES: usize = 64;
/// Most copies a pointer names.
pub const NODE_COPIES_MAX: usize = 2;
/// Pointers in one interior page of an array.
pub const ARRAY_FANOUT: usize = BLOCK_BYTES / NODE_PTR_BYTES;
/// Checksum kind: crc32c in the first four bytes of the field.
pub const CHECKSUM_CRC32C: u8 = 1;
/// First bytes of a root block.
pub const ROOT_MAGIC: u32 = 0x5452_5656; // "VVRT"

const ROOT_HEADER_BYTES: usize = 64;
const TREE_ENTRY_BYTES: usize = 16 + NODE_PTR_BYTES;
const ARRAY_ENTRY_BYTES: usize = 16 + NODE_PTR_BYTES;
const TREES_MAX: usize = 32;

/// Where a block of metadata is, and what it must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodePtr {
    /// Its copies; the first is never null in a pointer that points, the second may be.
    pub addr: [PoolAddr; NODE_COPIES_MAX],
    /// The checkpoint generation that wrote it.
    pub birth: u64,
    /// crc32c of the block. The field on disk has 32 bytes, so that a MAC fits.
    pub checksum: u32,
}

impl NodePtr {
    /// Points nowhere.
    pub const NULL: NodePtr = NodePtr { addr: [PoolAddr::NULL; 2], birth: 0, checksum: 0 };

    /// Whether it points nowhere.
    pub fn is_null(&self) -> bool {
        self.addr[0].is_null()
    }

    /// The addresses that are not null.
    pub fn copies(&self) -> impl Iterator<Item = PoolAddr> + '_ {
        self.addr.iter().copied().filter(|a| !a.is_null())
    }

    /// Appends the 64 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for a in self.addr {
            out.put_u64(a.0);
        }
        out.put_u64(self.birth);
        out.put_u16(u16::from(!self.is_null()));
        out.put_u8(if self.is_null() { 0 } else { CHECKSUM_CRC32C });
        out.put_u8(0);
        out.put_u32(0);
        out.put_u32(self.checksum);
        out.put_bytes(&[0; 28]);
    }

    /// Reads the 64 bytes.
    pub fn decode(r: &mut Reader<'_>) -> Result<NodePtr, Corrupt> {
        let addr = [PoolAddr(r.u64()?), PoolAddr(r.u64()?)];
        let birth = r.u64()?;
        let blocks = r.u16()?;
        let kind = r.u8()?;
        let _reserved = (r.u8()?, r.u32()?);
        let checksum = r.u32()?;
        let rest = r.bytes(28)?;
        let ptr = NodePtr { addr, birth, checksum };
        if addr.iter().any(|a| a.0 % BLOCK_BYTES as u64 != 0) {
            return r.corrupt("pointer not aligned to a block");
        }
        if ptr.is_null() {
            return if ptr == NodePtr::NULL { Ok(ptr) } else { r.corrupt("null pointer with fields set") };
        }
        if blocks != 1 || kind != CHECKSUM_CRC32C || rest.iter().any(|b| *b != 0) {
            return r.corrupt("pointer of an unknown size or checksum kind");
        }
        Ok(ptr)
    }
}

/// A tree in the root table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeRoot {
    /// Which tree.
    pub tree: TreeId,
    /// Levels, 0 for an empty tree, 1 for a single leaf.
    pub height: u8,
    /// Its root node, null when empty.
    pub ptr: NodePtr,
}

/// A dense array of pages under checksummed parents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArrayRoot {
    /// Pages of payload.
    pub pages: u64,
    /// The top page; null while every page is zero.
    pub ptr: NodePtr,
}

/// Everything a checkpoint refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootBlock {
    /// The log position whose state this is.
    pub position: Lsn,
    /// Checkpoint generation.
    pub generation: u64,
    /// Ids below this are taken.
    pub next_id: u64,
    /// The trees.
    pub trees: Vec<TreeRoot>,
    /// Checksums of data blocks, 4 bytes each.
    pub checksums: ArrayRoot,
    /// Blocks in use, a bit each.
    pub bitmap: ArrayRoot,
}

impl RootBlock {
    /// One block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.put_u32(ROOT_MAGIC);
        out.put_u16(self.trees.len() as u16);
        out.put_u16(0);
        out.put_u64(self.position.0);
        out.put_u64(self.generation);
        out.put_u64(self.next_id);
        out.resize(ROOT_HEADER_BYTES, 0);
        for a in [&self.checksums, &self.bitmap] {
            out.put_u64(a.pages);
            out.put_u64(0);
            a.ptr.encode(&mut out);
        }
        for t in &self.trees {
            out.put_u16(t.tree.0);
            out.put_u8(t.height);
            out.put_bytes(&[0; 13]);
            t.ptr.encode(&mut out);
        }
        debug_assert!(out.len() <= BLOCK_BYTES);
        out.resize(BLOCK_BYTES, 0);
        out
    }

    /// Reads one block.
    pub fn decode(block: &[u8]) -> Result<RootBlock, Corrupt> {
        let mut r = Reader::new(block);
        if r.u32()? != ROOT_MAGIC {
            return Err(Corrupt { what: "root block without its magic", at: 0 });
        }
        let count = r.u16()? as usize;
        r.u16()?;
        let (position, generation, next_id) = (Lsn(r.u64()?), r.u64()?, r.u64()?);
        r.bytes(ROOT_HEADER_BYTES - r.position())?;
        let mut arrays = [ArrayRoot::default(); 2];
        for a in &mut arrays {
            a.pages = r.u64()?;
            r.u64()?;
            a.ptr = NodePtr::decode(&mut r)?;
        }
        debug_assert_eq!(r.position(), ROOT_HEADER_BYTES + 2 * ARRAY_ENTRY_BYTES);
        if count > TREES_MAX || r.remaining() < count * TREE_ENTRY_BYTES {
            return r.corrupt("root table longer than its block");
        }
        let mut trees = Vec::with_capacity(count);
        for _ in 0..count {
            let tree = TreeId(r.u16()?);
            let height = r.u8()?;
            r.bytes(13)?;
            let ptr = NodePtr::decode(&mut r)?;
            if (height == 0) != ptr.is_null() || height > crate::node::HEIGHT_MAX {
                return r.corrupt("tree whose height and root disagree");
            }
            trees.push(TreeRoot { tree, height, ptr });
        }
        Ok(RootBlock { position, generation, next_id, trees, checksums: arrays[0], bitmap: arrays[1] })
    }
}
