//! A pool's image, found and edited by the format alone. After an edit every checksum above it is right again, up to the
//! superblock. What an earlier edit has spoilt is `None` for a later one: nothing here may panic.

use std::sync::Arc;

use varve_device::{AlignedBuf, Device, MemoryDevice};
use varve_format::batch::{self, BatchHeader};
use varve_format::codec::Reader;
use varve_format::node::{self, ENTRY_OVERHEAD_BYTES, NODE_HEADER_BYTES, common_prefix};
use varve_format::root::{ARRAY_FANOUT, ArrayRoot, NODE_PTR_BYTES, NodePtr, RootBlock, TreeRoot};
use varve_format::superblock::{
    Label, RING_BYTES_MIN, RING_START, SLOT_BYTES, SLOTS_PER_END, Superblock, slot_offset,
};
use varve_format::{BLOCK_BYTES, Lsn, PoolAddr, TreeId, block_checksum};

/// Entries of a tree or leaf.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Blocks that a pool may say it has: what opening takes grows with them, and that is known.
const TOTAL_BLOCKS_MAX: u64 = 1 << 18;
/// Batches of the log that are edited.
const BATCHES_MAX: usize = 64;

/// A pool on a device in memory.
pub struct Image {
    /// The device.
    pub device: Arc<MemoryDevice>,
    superblock: Superblock,
    root: RootBlock,
}

/// A node on the way to a leaf.
struct Step {
    ptr: NodePtr,
    block: Vec<u8>,
    /// Where the pointer to the next step lies in `block`.
    next: usize,
}

/// A batch of the log.
pub struct Batch {
    at: u64,
    /// Its header; the checksum of the batch before is put in when it is written.
    pub header: BatchHeader,
    /// Its transactions.
    pub payload: Vec<u8>,
}

fn decode_ptr(bytes: &[u8]) -> Option<NodePtr> {
    NodePtr::decode(&mut Reader::new(bytes.get(..NODE_PTR_BYTES)?)).ok()
}

fn set_ptr(block: &mut [u8], at: usize, ptr: NodePtr) {
    let mut bytes = Vec::new();
    ptr.encode(&mut bytes);
    block[at..at + NODE_PTR_BYTES].copy_from_slice(&bytes);
}

impl Image {
    /// A copy of `device`, as its newest superblock shows it.
    pub fn of(device: &MemoryDevice) -> Option<Image> {
        let device = Arc::new(device.snapshot());
        let mut slot = AlignedBuf::new(SLOT_BYTES as usize);
        let slots = (0..SLOTS_PER_END).filter_map(|i| {
            device.read_at(slot_offset(i, device.size_bytes()), &mut slot).ok()?;
            Superblock::decode(&slot).ok()
        });
        let superblock = slots.max_by_key(|found| found.generation)?;
        let mut image = Image { root: empty_root(), device, superblock };
        image.root = RootBlock::decode(&image.block(image.superblock.root.addr[0])?).ok()?;
        Some(image)
    }

    fn block(&self, addr: PoolAddr) -> Option<Vec<u8>> {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        self.device.read_at(self.offset(addr)?, &mut block).ok()?;
        Some(block.to_vec())
    }

    fn offset(&self, addr: PoolAddr) -> Option<u64> {
        let chunk = self.superblock.chunks.iter().rev().find(|chunk| chunk.start <= addr.0)?;
        chunk.stripes.first()?.offset.checked_add(addr.0 - chunk.start)
    }

    fn write(&self, addr: PoolAddr, block: &[u8]) -> Option<()> {
        self.device.write_at(self.offset(addr)?, &AlignedBuf::from_slice(block)).ok()
    }

    /// Writes every copy; the pointer with its new checksum.
    fn write_all(&self, ptr: NodePtr, block: &[u8]) -> Option<NodePtr> {
        for addr in ptr.copies() {
            self.write(addr, block)?;
        }
        Some(NodePtr { checksum: block_checksum(block), ..ptr })
    }

    fn write_slots(&self, bytes: &[u8]) -> Option<()> {
        let slot = self.superblock.generation % SLOTS_PER_END;
        for slot in [slot, slot + SLOTS_PER_END] {
            let offset = slot_offset(slot, self.device.size_bytes());
            self.device.write_at(offset, &AlignedBuf::from_slice(bytes)).ok()?;
        }
        Some(())
    }

    fn commit(&mut self) -> Option<()> {
        self.superblock.root = self.write_all(self.superblock.root, &self.root.encode())?;
        self.write_slots(&self.superblock.encode())
    }

    /// Edits the bytes of the root block.
    pub fn edit_root(&mut self, edit: impl FnOnce(&mut [u8])) -> Option<()> {
        let mut block = self.root.encode();
        edit(&mut block);
        if let Ok(root) = RootBlock::decode(&block) {
            self.root = root;
        }
        self.superblock.root = self.write_all(self.superblock.root, &block)?;
        self.write_slots(&self.superblock.encode())
    }

    /// Edits the bytes of the newest superblock.
    pub fn edit_superblock(&mut self, edit: impl FnOnce(&mut [u8])) -> Option<()> {
        let mut bytes = self.superblock.encode();
        let len = u32::from_le_bytes(bytes[12..16].try_into().ok()?) as usize;
        edit(&mut bytes[..len]);
        let checksum = block_checksum(&bytes[..len]);
        bytes[len..len + 4].copy_from_slice(&checksum.to_le_bytes());
        let decoded = Superblock::decode(&bytes);
        if decoded.as_ref().is_ok_and(|superblock| superblock.total_blocks > TOTAL_BLOCKS_MAX) {
            return None;
        }
        self.write_slots(&bytes)?;
        if let Ok(superblock) = decoded {
            self.superblock = superblock;
        }
        Some(())
    }

    /// Edits both labels. The size of the log stays within bounds: recovery reads all of it.
    pub fn edit_label(&mut self, edit: impl FnOnce(&mut [u8])) -> Option<()> {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        self.device.read_at(0, &mut block).ok()?;
        let mut bytes = block.to_vec();
        edit(&mut bytes[..BLOCK_BYTES - 4]);
        let checksum = block_checksum(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        if Label::decode(&bytes).is_ok_and(|label| label.ring_bytes > 2 * RING_BYTES_MIN) {
            return None;
        }
        for at in [0, self.device.size_bytes() - BLOCK_BYTES as u64] {
            self.device.write_at(at, &AlignedBuf::from_slice(&bytes)).ok()?;
        }
        Some(())
    }

    fn tree(&self, tree: TreeId) -> Option<&TreeRoot> {
        self.root.trees.iter().find(|t| t.tree == tree && t.height > 0)
    }

    fn path(&self, tree: TreeId, key: &[u8]) -> Option<Vec<Step>> {
        let mut ptr = self.tree(tree)?.ptr;
        let mut steps = Vec::new();
        // As many as there can be levels.
        for _ in 0..node::HEIGHT_MAX {
            let block = self.block(ptr.addr[0])?;
            let view = node::decode(&block).ok()?;
            if view.header.level == 0 {
                steps.push(Step { ptr, block, next: 0 });
                return Some(steps);
            }
            let prefix = &block[NODE_HEADER_BYTES..][..view.prefix_len];
            let below = |i: usize| {
                let e = &view.entries[i];
                i == 0 || [prefix, &block[e.suffix..e.suffix + e.suffix_len]].concat().as_slice() <= key
            };
            let i = (0..view.entries.len()).rev().find(|i| below(*i))?;
            let next = view.entries[i].value;
            let below = decode_ptr(&block[next..])?;
            steps.push(Step { ptr, next, block });
            ptr = below;
        }
        None
    }

    /// Edits the bytes of the node so many levels over the leaf of `key`, or of the highest.
    pub fn edit_node(
        &mut self,
        tree: TreeId,
        key: &[u8],
        above: usize,
        edit: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let mut path = self.path(tree, key)?;
        let at = (path.len() - 1).saturating_sub(above);
        edit(&mut path[at].block);
        let mut ptr = self.write_all(path[at].ptr, &path[at].block)?;
        for step in path[..at].iter_mut().rev() {
            set_ptr(&mut step.block, step.next, ptr);
            ptr = self.write_all(step.ptr, &step.block)?;
        }
        self.root.trees.iter_mut().find(|t| t.tree == tree)?.ptr = ptr;
        self.commit()
    }

    /// Spoils a node, or one of its copies, and leaves the checksum.
    pub fn spoil_node(
        &mut self,
        tree: TreeId,
        key: &[u8],
        copies: usize,
        edit: impl Fn(&mut [u8]),
    ) -> Option<()> {
        let path = self.path(tree, key)?;
        let Step { ptr, block, .. } = path.last()?;
        for addr in ptr.copies().take(copies) {
            let mut block = block.clone();
            edit(&mut block);
            self.write(addr, &block)?;
        }
        Some(())
    }

    fn decode_leaf(block: &[u8]) -> Option<Entries> {
        let view = node::decode(block).ok()?;
        let prefix = &block[NODE_HEADER_BYTES..][..view.prefix_len];
        let entry = |e: &node::EntryAt| {
            let key = [prefix, &block[e.suffix..e.suffix + e.suffix_len]].concat();
            (key, block[e.value..e.value + e.value_len].to_vec())
        };
        Some(view.entries.iter().map(entry).collect())
    }

    /// All entries, in order.
    pub fn entries(&self, tree: TreeId) -> Option<Entries> {
        let root = self.tree(tree)?;
        let (mut all, mut below) = (Vec::new(), vec![(root.ptr, root.height)]);
        while let Some((ptr, height)) = below.pop() {
            let block = self.block(ptr.addr[0])?;
            if height == 1 {
                all.extend(Image::decode_leaf(&block)?);
                continue;
            }
            for entry in node::decode(&block).ok()?.entries.iter().rev() {
                below.push((decode_ptr(&block[entry.value..])?, height - 1));
            }
        }
        Some(all)
    }

    /// Changes the entries of the leaf of `key`, if they have room in it then.
    pub fn edit_entries(&mut self, tree: TreeId, key: &[u8], edit: impl FnOnce(&mut Entries)) -> Option<()> {
        let block = self.path(tree, key)?.pop()?.block;
        let header = node::decode(&block).ok()?.header;
        let mut entries = Image::decode_leaf(&block)?;
        edit(&mut entries);
        entries.sort();
        let common = match entries.first() {
            Some((first, _)) => entries.iter().map(|(key, _)| common_prefix(first, key)).min()?,
            None => 0,
        };
        let prefix = entries.first().map_or(Vec::new(), |(first, _)| first[..common].to_vec());
        let bytes: usize =
            entries.iter().map(|(key, value)| key.len() - common + value.len() + ENTRY_OVERHEAD_BYTES).sum();
        if NODE_HEADER_BYTES + common + bytes > BLOCK_BYTES {
            return None;
        }
        self.edit_node(tree, key, 0, |block| {
            node::encode(header, &prefix, entries.iter().map(|(k, v)| (&k[..], &v[..])), block);
        })
    }

    /// Edits the bytes of a page of an array: the bitmap, or the checksums of data; `above`: the page over it.
    pub fn edit_array(
        &mut self,
        bitmap: bool,
        page: usize,
        above: bool,
        edit: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let root = if bitmap { self.root.bitmap } else { self.root.checksums };
        let pages = usize::try_from(root.pages).ok().filter(|pages| (1..1 << 20).contains(pages))?;
        let page = page % pages;
        // Widths of the levels above the pages, lowest first.
        let (mut spans, mut span, mut left) = (Vec::new(), 1, pages);
        while left > 1 {
            spans.push(span);
            span *= ARRAY_FANOUT;
            left = left.div_ceil(ARRAY_FANOUT);
        }
        if above {
            (!spans.is_empty()).then(|| spans.remove(0))?;
        }
        let (mut path, mut ptr) = (Vec::new(), root.ptr);
        for span in spans.iter().rev() {
            let block = self.block(ptr.addr[0]).filter(|_| !ptr.is_null())?;
            let at = page / span % ARRAY_FANOUT * NODE_PTR_BYTES;
            let below = decode_ptr(&block[at..])?;
            path.push((ptr, block, at));
            ptr = below;
        }
        let mut block = self.block(ptr.addr[0]).filter(|_| !ptr.is_null())?;
        edit(&mut block);
        ptr = self.write_all(ptr, &block)?;
        for (above, mut block, at) in path.into_iter().rev() {
            set_ptr(&mut block, at, ptr);
            ptr = self.write_all(above, &block)?;
        }
        if bitmap {
            self.root.bitmap.ptr = ptr
        } else {
            self.root.checksums.ptr = ptr
        }
        self.commit()
    }

    /// The batches of the log that recovery will find.
    fn batches(&self) -> Vec<Batch> {
        let s = &self.superblock;
        let (mut at, mut found) = (s.log_start, Vec::new());
        while found.len() < BATCHES_MAX {
            let begin = RING_START + at % RING_BYTES_MIN;
            let mut head = AlignedBuf::new(BLOCK_BYTES);
            if self.device.read_at(begin, &mut head).is_err() {
                break;
            }
            let Ok((header, checksum, len)) = batch::decode_header(&head, &s.pool_id) else { break };
            let wanted = s.log_sequence.wrapping_add(found.len() as u64);
            if header.sequence != wanted || begin + len as u64 > RING_START + RING_BYTES_MIN {
                break;
            }
            let mut bytes = AlignedBuf::new(len);
            if self.device.read_at(begin, &mut bytes).is_err() || !batch::verify(&bytes, checksum) {
                break;
            }
            let bytes = batch::unmasked(&bytes).unwrap_or_else(|| bytes.to_vec());
            let payload = bytes[batch::BATCH_HEADER_BYTES..][..header.payload_bytes as usize].to_vec();
            found.push(Batch { at, header, payload });
            at += len as u64;
        }
        found
    }

    /// Edits one of the batches of the log; those behind it follow it as before.
    pub fn edit_batch(&mut self, which: usize, edit: impl FnOnce(&mut Batch)) -> Option<()> {
        let mut batches = self.batches();
        if batches.is_empty() {
            return None;
        }
        let which = which % batches.len();
        edit(&mut batches[which]);
        self.write_batches(batches)
    }

    /// Adds a batch of one transaction.
    pub fn add_batch(&mut self, ops: u32, op: impl FnOnce(&mut Vec<u8>)) -> Option<()> {
        let mut batches = self.batches();
        let s = &self.superblock;
        let (at, sequence, position) = match batches.last() {
            Some(Batch { at, header, payload }) => (
                at.checked_add((batch::batch_blocks(payload.len()) * BLOCK_BYTES) as u64)?,
                header.sequence.checked_add(1)?,
                header.last.0.checked_add(1)?,
            ),
            None => (s.log_start, s.log_sequence, s.position.0.checked_add(1)?),
        };
        let mut payload = Vec::new();
        let begun = batch::begin_transaction(&mut payload, Lsn(position));
        op(&mut payload);
        batch::end_transaction(&mut payload, begun, ops);
        let header = BatchHeader {
            pool_id: s.pool_id,
            epoch: s.epoch,
            sequence,
            previous: 0,
            superblock_generation: s.generation,
            flushed: sequence,
            first: Lsn(position),
            last: Lsn(position),
            transactions: 1,
            payload_bytes: 0,
        };
        batches.push(Batch { at, header, payload });
        self.write_batches(batches)
    }

    fn write_batches(&self, batches: Vec<Batch>) -> Option<()> {
        let mut previous = self.superblock.log_previous;
        for Batch { at, header, payload } in batches {
            let header = BatchHeader { previous, payload_bytes: payload.len() as u32, ..header };
            let mut bytes = vec![0; batch::batch_blocks(payload.len()) * BLOCK_BYTES];
            bytes[batch::BATCH_HEADER_BYTES..][..payload.len()].copy_from_slice(&payload);
            previous = batch::seal(&header, &mut bytes);
            let begin = RING_START + at % RING_BYTES_MIN;
            if begin + bytes.len() as u64 > RING_START + RING_BYTES_MIN {
                return None;
            }
            self.device.write_at(begin, &AlignedBuf::from_slice(&bytes)).ok()?;
        }
        Some(())
    }
}

fn empty_root() -> RootBlock {
    RootBlock {
        position: Lsn(0),
        generation: 0,
        next_id: 0,
        trees: Vec::new(),
        checksums: ArrayRoot::default(),
        bitmap: ArrayRoot::default(),
    }
}
