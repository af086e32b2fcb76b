//! Edits a pool in place, from the outside: finds entries and blocks by the format alone, changes them, and redoes every
//! checksum from there up to the superblock, so that nothing but a check can tell.

use std::sync::Arc;

use varve_device::{AlignedBuf, Device, MemoryDevice};
use varve_engine::{PoolAddr, TreeId};
use varve_format::codec::Reader;
use varve_format::node::{self, common_prefix};
use varve_format::root::{ARRAY_FANOUT, ArrayRoot, NODE_PTR_BYTES, NodePtr, RootBlock, TreeRoot};
use varve_format::superblock::{SLOT_BYTES, SLOTS_PER_END, Superblock, slot_offset};
use varve_format::{BLOCK_BYTES, block_checksum};

/// Entries of a leaf.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A pool on a device in memory.
pub struct Image {
    pub device: Arc<MemoryDevice>,
    pub superblock: Superblock,
    pub root: RootBlock,
}

/// A node on the way to a leaf.
struct Step {
    ptr: NodePtr,
    block: Vec<u8>,
    /// Where the pointer to the next step lies in `block`.
    next: usize,
}

/// An array of the root block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Array {
    Checksums,
    Bitmap,
}

fn encode_ptr(ptr: NodePtr) -> Vec<u8> {
    let mut out = Vec::new();
    ptr.encode(&mut out);
    out
}

fn decode_ptr(bytes: &[u8]) -> NodePtr {
    NodePtr::decode(&mut Reader::new(&bytes[..NODE_PTR_BYTES])).expect("a pointer")
}

impl Image {
    /// A copy of `device`, as its newest superblock shows it.
    pub fn of(device: &MemoryDevice) -> Image {
        let device = Arc::new(device.snapshot());
        let mut newest: Option<Superblock> = None;
        let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
        for i in 0..SLOTS_PER_END {
            device.read_at(slot_offset(i, device.size_bytes()), &mut slot).unwrap();
            if let Ok(found) = Superblock::decode(&slot)
                && newest.as_ref().is_none_or(|n| n.generation < found.generation)
            {
                newest = Some(found);
            }
        }
        let superblock = newest.expect("a superblock");
        let mut image = Image {
            root: RootBlock {
                position: superblock.position,
                generation: 0,
                next_id: 0,
                trees: Vec::new(),
                checksums: ArrayRoot::default(),
                bitmap: ArrayRoot::default(),
            },
            device,
            superblock,
        };
        image.root = RootBlock::decode(&image.block(image.superblock.root.addr[0])).expect("a root block");
        image
    }

    /// Where a block lies on the device.
    pub fn offset(&self, addr: PoolAddr) -> u64 {
        let chunk = self.superblock.chunks.iter().rev().find(|chunk| chunk.start <= addr.0).expect("a chunk");
        chunk.stripes[0].offset + (addr.0 - chunk.start)
    }

    /// A block.
    pub fn block(&self, addr: PoolAddr) -> Vec<u8> {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        self.device.read_at(self.offset(addr), &mut block).unwrap();
        block.to_vec()
    }

    /// Overwrites a block and nothing else.
    pub fn write(&self, addr: PoolAddr, block: &[u8]) {
        self.device.write_at(self.offset(addr), &AlignedBuf::from_slice(block)).unwrap();
    }

    /// Overwrites every copy; gives the pointer with its new checksum.
    fn write_all(&self, ptr: NodePtr, block: &[u8]) -> NodePtr {
        ptr.copies().for_each(|addr| self.write(addr, block));
        NodePtr { checksum: block_checksum(block), ..ptr }
    }

    /// Writes a superblock slot.
    pub fn write_slot(&self, slot: u64, superblock: &Superblock) {
        let offset = slot_offset(slot, self.device.size_bytes());
        self.device.write_at(offset, &AlignedBuf::from_slice(&superblock.encode())).unwrap();
    }

    /// Writes the root block and the superblock.
    pub fn commit(&mut self) {
        self.commit_raw(&self.root.encode());
    }

    /// Writes these bytes as the root block, and the superblock.
    pub fn commit_raw(&mut self, root: &[u8]) {
        self.superblock.root = self.write_all(self.superblock.root, root);
        let slot = self.superblock.generation % SLOTS_PER_END;
        for slot in [slot, slot + SLOTS_PER_END] {
            self.write_slot(slot, &self.superblock);
        }
    }

    fn tree(&self, tree: TreeId) -> Option<&TreeRoot> {
        self.root.trees.iter().find(|t| t.tree == tree && t.height > 0)
    }

    fn path(&self, tree: TreeId, key: &[u8]) -> Vec<Step> {
        let Some(root) = self.tree(tree) else { return Vec::new() };
        let mut ptr = root.ptr;
        let mut steps = Vec::new();
        loop {
            let block = self.block(ptr.addr[0]);
            let view = node::decode(&block).expect("a sound node");
            if view.header.level == 0 {
                steps.push(Step { ptr, block, next: 0 });
                return steps;
            }
            let prefix = &block[node::NODE_HEADER_BYTES..][..view.prefix_len];
            let below = |i: usize| {
                let e = &view.entries[i];
                i == 0 || [prefix, &block[e.suffix..e.suffix + e.suffix_len]].concat() <= key.to_vec()
            };
            let i = (0..view.entries.len()).rev().find(|i| below(*i)).expect("the first is below all");
            let next = view.entries[i].value;
            let step = Step { ptr, next, block: block.clone() };
            ptr = decode_ptr(&block[next..]);
            steps.push(step);
        }
    }

    /// Height of the tree, 0 if it is empty.
    pub fn height(&self, tree: TreeId) -> usize {
        self.tree(tree).map_or(0, |t| t.height as usize)
    }

    /// The node `above` levels over the leaf of `key`.
    pub fn node_ptr(&self, tree: TreeId, key: &[u8], above: usize) -> NodePtr {
        let path = self.path(tree, key);
        path[path.len() - 1 - above].ptr
    }

    /// Changes the bytes of the node `above` levels over the leaf of `key`.
    pub fn edit_node(&mut self, tree: TreeId, key: &[u8], above: usize, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut path = self.path(tree, key);
        let at = path.len() - 1 - above;
        edit(&mut path[at].block);
        let mut ptr = self.write_all(path[at].ptr, &path[at].block);
        for step in path[..at].iter_mut().rev() {
            step.block[step.next..step.next + NODE_PTR_BYTES].copy_from_slice(&encode_ptr(ptr));
            ptr = self.write_all(step.ptr, &step.block);
        }
        let root = self.root.trees.iter_mut().find(|t| t.tree == tree).expect("it is there");
        root.ptr = ptr;
        self.commit();
    }

    /// Changes the pointer to the leaf of `key`.
    pub fn edit_leaf_ptr(&mut self, tree: TreeId, key: &[u8], edit: impl FnOnce(&mut NodePtr)) {
        let path = self.path(tree, key);
        let next = path[path.len() - 2].next;
        self.edit_node(tree, key, 1, |block| {
            let mut ptr = decode_ptr(&block[next..]);
            edit(&mut ptr);
            block[next..next + NODE_PTR_BYTES].copy_from_slice(&encode_ptr(ptr));
        });
    }

    fn leaf(&self, tree: TreeId, key: &[u8]) -> Entries {
        let path = self.path(tree, key);
        let Some(Step { block, .. }) = path.last() else { return Vec::new() };
        let view = node::decode(block).expect("a sound leaf");
        let prefix = &block[node::NODE_HEADER_BYTES..][..view.prefix_len];
        let entry = |e: &node::EntryAt| {
            let key = [prefix, &block[e.suffix..e.suffix + e.suffix_len]].concat();
            (key, block[e.value..e.value + e.value_len].to_vec())
        };
        view.entries.iter().map(entry).collect()
    }

    /// All entries, in order.
    pub fn entries(&self, tree: TreeId) -> Entries {
        let (mut all, mut from): (Entries, Vec<u8>) = (Vec::new(), Vec::new());
        let Some(root) = self.tree(tree) else { return all };
        let mut below = vec![(root.ptr, root.height)];
        while let Some((ptr, height)) = below.pop() {
            let block = self.block(ptr.addr[0]);
            let view = node::decode(&block).expect("a sound node");
            if height > 1 {
                let child = |e: &node::EntryAt| (decode_ptr(&block[e.value..]), height - 1);
                below.extend(view.entries.iter().rev().map(child));
                continue;
            }
            let prefix = &block[node::NODE_HEADER_BYTES..][..view.prefix_len];
            for e in &view.entries {
                from = [prefix, &block[e.suffix..e.suffix + e.suffix_len]].concat();
                all.push((from.clone(), block[e.value..e.value + e.value_len].to_vec()));
            }
        }
        drop(from);
        all
    }

    /// Changes the entries of the leaf of `key`; they are written as they then are.
    pub fn edit_entries(&mut self, tree: TreeId, key: &[u8], edit: impl FnOnce(&mut Entries)) {
        let mut entries = self.leaf(tree, key);
        edit(&mut entries);
        self.edit_node(tree, key, 0, |block| {
            let header = node::decode(block).expect("a sound leaf").header;
            let keys = || entries.iter().map(|(key, _)| key);
            let prefix = match keys().next() {
                None => Vec::new(),
                Some(first) => {
                    let common = keys().map(|key| common_prefix(first, key)).min().unwrap_or(0);
                    first[..common].to_vec()
                }
            };
            node::encode(header, &prefix, entries.iter().map(|(k, v)| (&k[..], &v[..])), block);
        });
    }

    /// The value at `key`.
    pub fn get(&self, tree: TreeId, key: &[u8]) -> Option<Vec<u8>> {
        self.leaf(tree, key).into_iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// Puts an entry; its leaf must have room.
    pub fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        if self.height(tree) == 0 {
            return self.first_leaf(tree, key, value);
        }
        self.edit_entries(tree, key, |entries| {
            entries.retain(|(k, _)| k != key);
            entries.push((key.to_vec(), value.to_vec()));
            entries.sort();
        });
    }

    /// Removes an entry.
    pub fn delete(&mut self, tree: TreeId, key: &[u8]) {
        assert!(self.get(tree, key).is_some());
        self.edit_entries(tree, key, |entries| entries.retain(|(k, _)| k != key));
    }

    fn first_leaf(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        let copies = self.superblock.metadata.copies;
        let mut addr = [PoolAddr::NULL; 2];
        for addr in addr.iter_mut().take(copies.into()) {
            *addr = self.free_block();
            self.mark(*addr, true);
        }
        let mut block = vec![0; BLOCK_BYTES];
        let birth = self.root.generation;
        let pool_tag = u64::from_le_bytes(self.superblock.pool_id[..8].try_into().unwrap());
        let header = node::NodeHeader { tree, level: 0, birth, pool_tag };
        node::encode(header, &[], [(key, value)].into_iter(), &mut block);
        let ptr = self.write_all(NodePtr { addr, birth, checksum: 0 }, &block);
        self.root.trees.retain(|t| t.tree != tree);
        self.root.trees.push(TreeRoot { tree, height: 1, ptr });
        self.commit();
    }

    /// Changes a payload page of an array.
    pub fn edit_array(&mut self, array: Array, page: usize, edit: impl FnOnce(&mut Vec<u8>)) {
        let root = match array {
            Array::Checksums => self.root.checksums,
            Array::Bitmap => self.root.bitmap,
        };
        // Widths of the levels above the pages, lowest first.
        let (mut spans, mut span, mut left) = (Vec::new(), 1, root.pages as usize);
        while left > 1 {
            spans.push(span);
            span *= ARRAY_FANOUT;
            left = left.div_ceil(ARRAY_FANOUT);
        }
        let mut path = Vec::new();
        let mut ptr = root.ptr;
        for span in spans.iter().rev() {
            let block = self.block(ptr.addr[0]);
            let at = page / span % ARRAY_FANOUT * NODE_PTR_BYTES;
            let below = decode_ptr(&block[at..]);
            path.push((ptr, block, at));
            ptr = below;
        }
        let mut block = self.block(ptr.addr[0]);
        edit(&mut block);
        ptr = self.write_all(ptr, &block);
        for (above, mut block, at) in path.into_iter().rev() {
            block[at..at + NODE_PTR_BYTES].copy_from_slice(&encode_ptr(ptr));
            ptr = self.write_all(above, &block);
        }
        match array {
            Array::Checksums => self.root.checksums.ptr = ptr,
            Array::Bitmap => self.root.bitmap.ptr = ptr,
        }
        self.commit();
    }

    /// Sets or clears a block's bit in the bitmap (of one page).
    pub fn mark(&mut self, addr: PoolAddr, used: bool) {
        let block = addr.block() as usize;
        self.edit_array(Array::Bitmap, 0, |page| {
            let bit = 1 << (block % 8);
            if used { page[block / 8] |= bit } else { page[block / 8] &= !bit }
        });
    }

    /// A block that is marked free.
    pub fn free_block(&self) -> PoolAddr {
        let page = self.block(self.root.bitmap.ptr.addr[0]);
        let total = self.superblock.total_blocks;
        let free = (1..total).rev().find(|b| page[*b as usize / 8] & (1 << (b % 8)) == 0);
        PoolAddr::from_block(free.expect("a free block"))
    }
}
