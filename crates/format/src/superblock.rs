//! Labels and superblock slots: how a pool is found, and which checkpoint and stretch of log it stands on.

use crate::codec::{Reader, Writer};
use crate::root::NodePtr;
use crate::{BLOCK_BYTES, BLOCK_SHIFT, Corrupt, Lsn};

/// First bytes of a label.
pub const LABEL_MAGIC: [u8; 8] = *b"VARVELBL";
/// First bytes of a superblock slot.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"VARVESUP";
/// Version of the format. 0 is not frozen: it may change without notice.
pub const FORMAT_VERSION: u16 = 0;
/// Bytes of a superblock slot.
pub const SLOT_BYTES: u64 = 64 << 10;
/// Slots at each end of a device.
pub const SLOTS_PER_END: u64 = 4;
/// Where the first slot lies, from the start of the device.
pub const SLOTS_START: u64 = 64 << 10;
/// Bytes at the end of a device that hold the second set of slots and the second label.
pub const TAIL_BYTES: u64 = 512 << 10;
/// Where the log begins.
pub const RING_START: u64 = 1 << 20;
/// Smallest log, in bytes.
pub const RING_BYTES_MIN: u64 = 8 << 20;
/// Largest log, in bytes.
pub const RING_BYTES_MAX: u64 = 256 << 20;
/// Smallest device, in bytes.
pub const POOL_BYTES_MIN: u64 = 64 << 20;
/// Largest pool that is made: what is known of each block takes memory, some 16 bytes a MiB. A larger one would be opened.
pub const POOL_BYTES_MAX: u64 = 1 << 48;
/// Most chunks in a pool.
pub const CHUNKS_MAX: usize = 1024;
/// Most cuts of the log between two checkpoints.
pub const CUTS_MAX: usize = 64;
/// Bytes of a cut.
const CUT_BYTES: usize = 16;
/// Incompatible feature: extents in their short forms.
pub const SHORT_EXTENTS: u64 = 1;
/// Incompatible feature: the only version of a family may have no record, whatever its id.
pub const LONE_VERSIONS: u64 = 2;
/// Incompatible feature: keyframes, which must go when what they are made of changes.
pub const SEGMENT_KEYFRAMES: u64 = 4;
/// Incompatible feature: inodes may have flags that users have set, which must be heeded.
pub const INODE_FLAGS: u64 = 8;
/// Incompatible features this program knows, all of which it makes use of.
pub const INCOMPATIBLE_KNOWN: u64 = SHORT_EXTENTS | LONE_VERSIONS | SEGMENT_KEYFRAMES | INODE_FLAGS;
/// Features this program knows that who does not know them must not write beside: there are none yet.
pub const READ_ONLY_COMPATIBLE_KNOWN: u64 = 0;

/// At both ends of every device: which pool, which device, and where things are. Never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// Format version.
    pub version: u16,
    /// The pool.
    pub pool_id: [u8; 16],
    /// This device.
    pub device_id: [u8; 16],
    /// Its number in the pool.
    pub device_index: u16,
    /// Bytes of the device that are used.
    pub size_bytes: u64,
    /// Bytes of log on this device.
    pub ring_bytes: u64,
}

impl Label {
    /// One block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.put_bytes(&LABEL_MAGIC);
        out.put_u16(self.version);
        out.put_u8(BLOCK_SHIFT as u8);
        out.put_u8(0);
        out.put_u16(self.device_index);
        out.put_u16(0);
        out.put_bytes(&self.pool_id);
        out.put_bytes(&self.device_id);
        out.put_u64(self.size_bytes);
        out.put_u64(self.ring_bytes);
        out.resize(BLOCK_BYTES - 4, 0);
        let sum = crc32c::crc32c(&out);
        out.put_u32(sum);
        out
    }

    /// Reads one block. The version is returned as it is, for a message; only version 0 is checked further.
    pub fn decode(block: &[u8]) -> Result<Label, Corrupt> {
        let mut r = Reader::new(block);
        if block.len() != BLOCK_BYTES || r.array::<8>()? != LABEL_MAGIC {
            return Err(Corrupt { what: "label without its magic", at: 0 });
        }
        let version = r.u16()?;
        let shift = r.u8()?;
        r.u8()?;
        let device_index = r.u16()?;
        r.u16()?;
        let (pool_id, device_id) = (r.array()?, r.array()?);
        let (size_bytes, ring_bytes) = (r.u64()?, r.u64()?);
        let label = Label { version, pool_id, device_id, device_index, size_bytes, ring_bytes };
        if version != FORMAT_VERSION {
            return Ok(label);
        }
        if crc32c::crc32c(&block[..BLOCK_BYTES - 4]).to_le_bytes() != block[BLOCK_BYTES - 4..] {
            return Err(Corrupt { what: "label with a wrong checksum", at: BLOCK_BYTES - 4 });
        }
        let block_bytes = BLOCK_BYTES as u64;
        if u32::from(shift) != BLOCK_SHIFT
            || size_bytes < POOL_BYTES_MIN
            || !size_bytes.is_multiple_of(block_bytes)
            || !ring_bytes.is_multiple_of(block_bytes)
            || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
            || RING_START + ring_bytes + TAIL_BYTES > size_bytes
        {
            return r.corrupt("label whose geometry makes no sense");
        }
        Ok(label)
    }
}

/// Offset of slot `index` (0 to 2 * [`SLOTS_PER_END`] - 1) on a device of `size_bytes`.
pub fn slot_offset(index: u64, size_bytes: u64) -> u64 {
    if index < SLOTS_PER_END {
        SLOTS_START + index * SLOT_BYTES
    } else {
        size_bytes - TAIL_BYTES + SLOTS_START + (index - SLOTS_PER_END) * SLOT_BYTES
    }
}

/// Copies and stripe width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileField {
    /// Copies of each block.
    pub copies: u8,
    /// Devices a stripe spans.
    pub width: u8,
}

/// One copy of a chunk on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    /// Number of the device.
    pub device: u16,
    /// Byte offset on it.
    pub offset: u64,
}

/// A stretch of the pool's address space and where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// First pool address.
    pub start: u64,
    /// Length in bytes, as seen through the pool.
    pub len_bytes: u64,
    /// 0: data and metadata mixed.
    pub kind: u8,
    /// Its profile.
    pub profile: ProfileField,
    /// Bytes appended so far, for append-only devices (0 elsewhere).
    pub write_pointer: u64,
    /// One a copy.
    pub stripes: Vec<Stripe>,
}

/// The end of an epoch of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The epoch that ended.
    pub epoch: u64,
    /// Its last batch that counts.
    pub last_sequence: u64,
}

/// The state a pool opens from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Never reused; the largest valid one wins.
    pub generation: u64,
    /// The pool.
    pub pool_id: [u8; 16],
    /// Features a program must know to open the pool at all.
    pub incompatible: u64,
    /// Features a program must know to write to it.
    pub read_only_compatible: u64,
    /// Features that do not matter.
    pub compatible: u64,
    /// Seed of directory hashes.
    pub hash_seed: u64,
    /// Kind of directory hash.
    pub hash_kind: u8,
    /// Whether the pool was closed, and the log empty, when this was written. It may have been in use since.
    pub closed: bool,
    /// Profile of data.
    pub data: ProfileField,
    /// Profile of metadata.
    pub metadata: ProfileField,
    /// Devices in the pool.
    pub device_count: u16,
    /// Blocks of pool address space.
    pub total_blocks: u64,
    /// The checkpoint's log position.
    pub position: Lsn,
    /// The checkpoint's root block.
    pub root: NodePtr,
    /// Absolute byte position in the log (offset in the ring = this modulo its length) where replay begins.
    pub log_start: u64,
    /// Number of the batch expected there.
    pub log_sequence: u64,
    /// Checksum of the batch before it.
    pub log_previous: u32,
    /// The epoch now.
    pub epoch: u64,
    /// Epochs that ended since the checkpoint, oldest first.
    pub cuts: Vec<Cut>,
    /// The address space.
    pub chunks: Vec<Chunk>,
}

impl Superblock {
    /// So many bytes has the device of a pool with this superblock, at least: its chunks, and the tail.
    pub fn device_bytes_min(&self) -> u64 {
        let stripes = self.chunks.iter().flat_map(|chunk| {
            chunk.stripes.iter().map(|stripe| stripe.offset.saturating_add(chunk.len_bytes))
        });
        stripes.max().unwrap_or(0).saturating_add(TAIL_BYTES)
    }

    /// Where, in bytes, the label at the end of the pool's device may be, should the device be of `size_bytes` and longer than the pool: at
    /// the end of the chunks and the tail, and of the pool's last blocks, those that are too few for one of each copy.
    pub fn last_label_places(&self, size_bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let block = BLOCK_BYTES as u64;
        let end = self.device_bytes_min().saturating_sub(block);
        let copies = self.chunks.iter().map(|chunk| chunk.stripes.len() as u64).max().unwrap_or(0);
        let places = (0..copies).map(move |more| end.saturating_add(more * block));
        places.filter(move |place| place.is_multiple_of(block) && *place < size_bytes)
    }

    /// Whole blocks, at most [`SLOT_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_BYTES);
        out.put_bytes(&SUPERBLOCK_MAGIC);
        out.put_u16(FORMAT_VERSION);
        out.put_u8(BLOCK_SHIFT as u8);
        out.put_u8(u8::from(self.closed));
        out.put_u32(0); // length, below
        out.put_u64(self.generation);
        out.put_bytes(&self.pool_id);
        out.put_u64(self.incompatible);
        out.put_u64(self.read_only_compatible);
        out.put_u64(self.compatible);
        out.put_u64(self.hash_seed);
        out.put_u8(self.hash_kind);
        for p in [self.data, self.metadata] {
            out.put_u8(p.copies);
            out.put_u8(p.width);
        }
        out.put_u8(0);
        out.put_u16(self.device_count);
        out.put_u64(self.total_blocks);
        out.put_u64(self.position.0);
        self.root.encode(&mut out);
        out.put_u64(self.log_start);
        out.put_u64(self.log_sequence);
        out.put_u32(self.log_previous);
        out.put_u64(self.epoch);
        out.put_u16(self.cuts.len() as u16);
        out.put_u16(self.chunks.len() as u16);
        for c in &self.cuts {
            out.put_u64(c.epoch);
            out.put_u64(c.last_sequence);
        }
        for c in &self.chunks {
            out.put_u64(c.start);
            out.put_u64(c.len_bytes);
            out.put_u8(c.kind);
            out.put_u8(c.profile.copies);
            out.put_u8(c.profile.width);
            out.put_u8(c.stripes.len() as u8);
            out.put_u64(c.write_pointer);
            for s in &c.stripes {
                out.put_u16(s.device);
                out.put_u64(s.offset);
            }
        }
        let len = out.len() as u32;
        out[12..16].copy_from_slice(&len.to_le_bytes());
        let sum = crc32c::crc32c(&out);
        out.put_u32(sum);
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
        debug_assert!(out.len() as u64 <= SLOT_BYTES);
        out
    }

    /// Reads a slot.
    pub fn decode(slot: &[u8]) -> Result<Superblock, Corrupt> {
        let mut r = Reader::new(slot);
        if r.array::<8>()? != SUPERBLOCK_MAGIC {
            return Err(Corrupt { what: "superblock slot without its magic", at: 0 });
        }
        let (version, shift, closed, len) = (r.u16()?, r.u8()?, r.u8()?, r.u32()? as usize);
        if len < 64 || len + 4 > slot.len() {
            return r.corrupt("superblock length out of bounds");
        }
        if crc32c::crc32c(&slot[..len]).to_le_bytes() != slot[len..len + 4] {
            return Err(Corrupt { what: "superblock with a wrong checksum", at: len });
        }
        if version != FORMAT_VERSION || u32::from(shift) != BLOCK_SHIFT || closed > 1 {
            return r.corrupt("superblock of an unknown version or block size");
        }
        let mut r = Reader::new(&slot[..len]);
        r.bytes(16)?;
        let generation = r.u64()?;
        let pool_id = r.array()?;
        let (incompatible, read_only_compatible, compatible) = (r.u64()?, r.u64()?, r.u64()?);
        let (hash_seed, hash_kind) = (r.u64()?, r.u8()?);
        let data = ProfileField { copies: r.u8()?, width: r.u8()? };
        let metadata = ProfileField { copies: r.u8()?, width: r.u8()? };
        r.u8()?;
        let device_count = r.u16()?;
        let (total_blocks, position) = (r.u64()?, Lsn(r.u64()?));
        let root = NodePtr::decode(&mut r)?;
        let (log_start, log_sequence, log_previous, epoch) = (r.u64()?, r.u64()?, r.u32()?, r.u64()?);
        let (cut_count, chunk_count) = (r.u16()? as usize, r.u16()? as usize);
        if cut_count > CUTS_MAX || chunk_count > CHUNKS_MAX || chunk_count == 0 {
            return r.corrupt("too many cuts or chunks");
        }
        // Recovery may add cuts, and they must fit.
        if len + (CUTS_MAX - cut_count) * CUT_BYTES + 4 > SLOT_BYTES as usize {
            return r.corrupt("superblock without room for cuts of the log");
        }
        if !log_start.is_multiple_of(BLOCK_BYTES as u64) || total_blocks > u64::MAX >> (BLOCK_SHIFT + 1) {
            return r.corrupt("log position or size out of bounds");
        }
        let mut cuts: Vec<Cut> = Vec::with_capacity(cut_count);
        for _ in 0..cut_count {
            let cut = Cut { epoch: r.u64()?, last_sequence: r.u64()? };
            if cut.epoch >= epoch
                || cuts.last().is_some_and(|c| c.epoch >= cut.epoch || c.last_sequence > cut.last_sequence)
            {
                return r.corrupt("cuts out of order");
            }
            cuts.push(cut);
        }
        let mut chunks = Vec::with_capacity(chunk_count);
        let mut end = 0;
        for _ in 0..chunk_count {
            let (start, len_bytes) = (r.u64()?, r.u64()?);
            let kind = r.u8()?;
            let profile = ProfileField { copies: r.u8()?, width: r.u8()? };
            let stripe_count = r.u8()? as usize;
            let write_pointer = r.u64()?;
            if start != end
                || len_bytes == 0
                || !len_bytes.is_multiple_of(BLOCK_BYTES as u64)
                || stripe_count == 0
            {
                return r.corrupt("chunk that does not follow the one before");
            }
            end = match start.checked_add(len_bytes) {
                Some(end) => end,
                None => return r.corrupt("chunk out of bounds"),
            };
            let mut stripes = Vec::with_capacity(stripe_count);
            for _ in 0..stripe_count {
                let s = Stripe { device: r.u16()?, offset: r.u64()? };
                if s.device >= device_count || s.offset.checked_add(len_bytes).is_none() {
                    return r.corrupt("stripe on a device that is not there");
                }
                stripes.push(s);
            }
            chunks.push(Chunk { start, len_bytes, kind, profile, write_pointer, stripes });
        }
        if end != total_blocks << BLOCK_SHIFT {
            return r.corrupt("chunks that do not cover the pool");
        }
        r.finish()?;
        Ok(Superblock {
            generation,
            pool_id,
            incompatible,
            read_only_compatible,
            compatible,
            hash_seed,
            hash_kind,
            closed: closed == 1,
            data,
            metadata,
            device_count,
            total_blocks,
            position,
            root,
            log_start,
            log_sequence,
            log_previous,
            epoch,
            cuts,
            chunks,
        })
    }
}
