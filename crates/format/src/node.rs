//! A tree node: one block of sorted entries. The common prefix of its keys is stored once.
//!
//! ```text
//! 0  magic u32 · tree u16 · level u8 · 0 u8 · count u16 · prefix length u16 · payload length u16 · 0 u16 · birth u64 · pool tag u64
//! 32 prefix · count times: suffix length u8, value length u16, suffix, value
//! ```
//! In interior nodes (level > 0) values are node pointers and the first key is empty: it stands for
//! "everything below the second". The checksum lies in the parent's pointer.

use crate::codec::{Reader, Writer};
use crate::root::NODE_PTR_BYTES;
use crate::{BLOCK_BYTES, Corrupt, KEY_BYTES_MAX, TreeId, VALUE_BYTES_MAX};

/// First bytes of a node.
pub const NODE_MAGIC: u32 = 0x444e_5656; // "VVND"
/// Bytes before the prefix.
pub const NODE_HEADER_BYTES: usize = 32;
/// Bytes beside suffix and value that an entry takes.
pub const ENTRY_OVERHEAD_BYTES: usize = 3;
/// Tallest tree.
pub const HEIGHT_MAX: u8 = 16;

/// What a node says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHeader {
    /// The tree it belongs to.
    pub tree: TreeId,
    /// 0 for leaves.
    pub level: u8,
    /// The checkpoint generation that wrote it.
    pub birth: u64,
    /// The first 8 bytes of the pool's id.
    pub pool_tag: u64,
}

/// Where an entry lies in its node.
#[derive(Clone, Copy, Debug)]
pub struct EntryAt {
    /// Start of the key's suffix.
    pub suffix: usize,
    /// Length of the suffix.
    pub suffix_len: usize,
    /// Start of the value.
    pub value: usize,
    /// Length of the value.
    pub value_len: usize,
}

/// A decoded node: header, prefix range and entries, all checked.
pub struct NodeView {
    /// What it says of itself.
    pub header: NodeHeader,
    /// Length of the common prefix, which starts at [`NODE_HEADER_BYTES`].
    pub prefix_len: usize,
    /// Entries in order.
    pub entries: Vec<EntryAt>,
}

/// Bytes that `count` entries take whose keys and values sum to `key_value_bytes`, with `prefix` bytes in common.
/// For interior nodes the first, empty key counts as having a zero-length suffix: pass `prefixed` = count - 1.
pub fn encoded_bytes(count: usize, prefixed: usize, key_value_bytes: usize, prefix: usize) -> usize {
    NODE_HEADER_BYTES + prefix + count * ENTRY_OVERHEAD_BYTES + key_value_bytes - prefixed * prefix
}

/// Encodes a node of whole keys into one block. The caller has made sure that it fits ([`encoded_bytes`]).
pub fn encode<'a>(
    header: NodeHeader,
    prefix: &[u8],
    entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut [u8],
) {
    let suffix = |key: &'a [u8]| if key.is_empty() { key } else { &key[prefix.len()..] };
    encode_suffixes(header, prefix, entries.map(|(key, value)| (suffix(key), value)), out);
}

/// The same, of keys without what they all begin with.
pub fn encode_suffixes<'a>(
    header: NodeHeader,
    prefix: &[u8],
    entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut [u8],
) {
    let mut buf = Vec::with_capacity(BLOCK_BYTES);
    buf.put_u32(NODE_MAGIC);
    buf.put_u16(header.tree.0);
    buf.put_u8(header.level);
    buf.put_u8(0);
    buf.put_u16(entries.len() as u16);
    buf.put_u16(prefix.len() as u16);
    buf.put_u16(0); // payload length, below
    buf.put_u16(0);
    buf.put_u64(header.birth);
    buf.put_u64(header.pool_tag);
    buf.put_bytes(prefix);
    for (suffix, value) in entries {
        buf.put_u8(suffix.len() as u8);
        buf.put_u16(value.len() as u16);
        buf.put_bytes(suffix);
        buf.put_bytes(value);
    }
    assert!(buf.len() <= BLOCK_BYTES, "node overflows its block");
    let payload = (buf.len() - NODE_HEADER_BYTES) as u16;
    buf[12..14].copy_from_slice(&payload.to_le_bytes());
    out[..buf.len()].copy_from_slice(&buf);
    out[buf.len()..].fill(0);
}

/// Checks a block and finds its entries. Keys are strictly ascending afterwards.
pub fn decode(block: &[u8]) -> Result<NodeView, Corrupt> {
    let mut r = Reader::new(block);
    if block.len() != BLOCK_BYTES || r.u32()? != NODE_MAGIC {
        return Err(Corrupt { what: "node without its magic", at: 0 });
    }
    let (tree, level) = (TreeId(r.u16()?), r.u8()?);
    r.u8()?;
    let (count, prefix_len, payload) = (r.u16()? as usize, r.u16()? as usize, r.u16()? as usize);
    r.u16()?;
    let header = NodeHeader { tree, level, birth: r.u64()?, pool_tag: r.u64()? };
    if level >= HEIGHT_MAX || payload > BLOCK_BYTES - NODE_HEADER_BYTES || prefix_len > KEY_BYTES_MAX {
        return r.corrupt("node header out of bounds");
    }
    let mut r = Reader::new(&block[..NODE_HEADER_BYTES + payload]);
    r.bytes(NODE_HEADER_BYTES)?;
    r.bytes(prefix_len)?;
    if count * ENTRY_OVERHEAD_BYTES > r.remaining() || (level > 0 && count == 0) {
        return r.corrupt("entry count out of bounds");
    }
    let mut entries: Vec<EntryAt> = Vec::with_capacity(count);
    for i in 0..count {
        let (suffix_len, value_len) = (r.u8()? as usize, r.u16()? as usize);
        let suffix = r.position();
        r.bytes(suffix_len)?;
        let value = r.position();
        r.bytes(value_len)?;
        if prefix_len + suffix_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
            return r.corrupt("entry longer than allowed");
        }
        if level > 0 && value_len != NODE_PTR_BYTES {
            return r.corrupt("interior entry that is not a pointer");
        }
        if level > 0 && i == 0 {
            if suffix_len != 0 {
                return r.corrupt("interior node whose first key is not empty");
            }
        } else if let Some(p) = entries.last()
            && !(level > 0 && i == 1)
            && block[p.suffix..p.suffix + p.suffix_len] >= block[suffix..suffix + suffix_len]
        {
            return r.corrupt("keys out of order");
        }
        entries.push(EntryAt { suffix, suffix_len, value, value_len });
    }
    r.finish()?;
    Ok(NodeView { header, prefix_len, entries })
}

/// Length of the longest common prefix.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    // Eight bytes at a time: this is asked for every entry that a tree takes in.
    let mut at = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("chunks_exact gives 8 bytes"));
        let different = word(x) ^ word(y);
        if different != 0 {
            return at + different.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the prefix is as long as comparing byte by byte says. Method: every place of the first difference and every
    // pair of lengths up to 20, against the plain loop.
    #[test]
    fn common_prefix_is_that_of_the_plain_loop() {
        let left: Vec<u8> = (0..20).map(|i| i * 7 + 1).collect();
        for different in 0..=20 {
            let mut right = left.clone();
            if let Some(byte) = right.get_mut(different) {
                *byte ^= 0x10;
            }
            for (a, b) in (0..=20).flat_map(|a| (0..=20).map(move |b| (a, b))) {
                let plain = left[..a].iter().zip(&right[..b]).take_while(|(x, y)| x == y).count();
                assert_eq!(common_prefix(&left[..a], &right[..b]), plain, "{a} {b} {different}");
            }
        }
    }
}
