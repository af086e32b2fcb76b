//! A batch of the log: header, transactions, checksum over all of it, padded with zeros to whole blocks.
//!
//! ```text
//! 0   magic u64 · pool id 16 · epoch u64 · sequence u64
//! 40  checksum of the previous batch u32 · checksum of this one u32 (with this field 0)
//! 48  superblock generation known durable u64 · last sequence known flushed u64
//! 64  first position u64 · last position u64 (of its transactions; last = first - 1 when it has none)
//! 80  transactions u32 · payload length u32 · blocks u32 · flags u32
//! 96  mask u64 · reserved to 128, then the payload
//! ```
//! Recovery looks for batches wherever a block of the log begins with the magic, so that no other block may: whoever knows the
//! pool's id could have a file or an attribute hold what looks like a batch. The mask is laid over (exclusive or) the first eight
//! bytes of each block of the batch but the first, and is 0 unless one of them would be the magic without it.
//!
//! A transaction: position u64, ops u32, length u32, ops. An op: type u8, flags u8 (bit 0: a reader
//! that does not know the type may skip it), length u32, body.

use crate::codec::{Reader, Writer};
use crate::{
    BLOCK_BYTES, Corrupt, KEY_BYTES_MAX, Lsn, PoolAddr, Run, TreeId, VALUE_BYTES_MAX, block_checksum,
};

/// First bytes of a batch.
pub const BATCH_MAGIC: u64 = 0x4854_4142_4556_5256; // "VRVEBATH"
/// Bytes before the payload.
pub const BATCH_HEADER_BYTES: usize = 128;
/// Largest batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 8 << 20;
/// Where the mask is.
const MASK_AT: usize = 96;
/// Bytes before a transaction's ops.
pub const TRANSACTION_HEADER_BYTES: usize = 16;
/// Bytes before an op's body.
pub const OP_HEADER_BYTES: usize = 6;
/// Most blocks one op names.
pub const RUN_BLOCKS_MAX: u32 = 1 << 20;

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_PLACE: u8 = 3;
const OP_FREE: u8 = 4;
const OP_ID_FLOOR: u8 = 5;
const FLAG_SKIPPABLE: u8 = 1;

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// The pool.
    pub pool_id: [u8; 16],
    /// Grows with every recovery that cut the log.
    pub epoch: u64,
    /// Number of this batch; the next has the next number, across epochs.
    pub sequence: u64,
    /// Checksum of the batch before.
    pub previous: u32,
    /// The newest superblock generation known to be durable when this was written.
    pub superblock_generation: u64,
    /// The last batch known to be flushed on every device (P).
    pub flushed: u64,
    /// Position of the first transaction.
    pub first: Lsn,
    /// Position of the last one.
    pub last: Lsn,
    /// Number of transactions.
    pub transactions: u32,
    /// Bytes of payload.
    pub payload_bytes: u32,
}

/// A step of a transaction as it is on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpRef<'a> {
    /// Put a value at a key.
    Put(TreeId, &'a [u8], &'a [u8]),
    /// Remove a key.
    Delete(TreeId, &'a [u8]),
    /// Data blocks come into use; a little-endian checksum each.
    Place(Run, &'a [u8]),
    /// Data blocks go out of use.
    Free(Run),
    /// Ids below this are taken.
    IdFloor(u64),
}

/// Blocks a batch with this much payload takes.
pub fn batch_blocks(payload_bytes: usize) -> usize {
    (BATCH_HEADER_BYTES + payload_bytes).div_ceil(BLOCK_BYTES)
}

/// Writes the header into `batch`, whose payload is in place and whose tail is zero, masks what is in place where it has to be, and
/// returns the checksum. The bytes are then what is written, and [`unmasked`] gives the payload back.
pub fn seal(header: &BatchHeader, batch: &mut [u8]) -> u32 {
    let blocks = (batch.len() / BLOCK_BYTES) as u32;
    let mask = mask_of(batch);
    if mask != 0 {
        lay(mask, batch);
    }
    let mut h = &mut batch[..BATCH_HEADER_BYTES];
    h.put_u64(BATCH_MAGIC);
    h.put_bytes(&header.pool_id);
    h.put_u64(header.epoch);
    h.put_u64(header.sequence);
    h.put_u32(header.previous);
    h.put_u32(0);
    h.put_u64(header.superblock_generation);
    h.put_u64(header.flushed);
    h.put_u64(header.first.0);
    h.put_u64(header.last.0);
    h.put_u32(header.transactions);
    h.put_u32(header.payload_bytes);
    h.put_u32(blocks);
    h.put_u32(0);
    h.put_u64(mask);
    h.fill(0);
    let sum = block_checksum(batch);
    batch[44..48].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// The first eight bytes of each block but the first.
fn heads(batch: &[u8]) -> impl Iterator<Item = u64> {
    let head = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
    batch.chunks_exact(BLOCK_BYTES).skip(1).map(head)
}

/// The mask that a batch needs.
fn mask_of(batch: &[u8]) -> u64 {
    if heads(batch).all(|head| head != BATCH_MAGIC) {
        return 0;
    }
    // Each block forbids one.
    let forbidden: std::collections::HashSet<u64> = heads(batch).map(|head| head ^ BATCH_MAGIC).collect();
    (1..).find(|mask| !forbidden.contains(mask)).expect("there are fewer blocks than masks")
}

fn lay(mask: u64, batch: &mut [u8]) {
    for block in batch.chunks_exact_mut(BLOCK_BYTES).skip(1) {
        for (byte, mask) in block.iter_mut().zip(mask.to_le_bytes()) {
            *byte ^= mask;
        }
    }
}

/// A whole batch as it was before [`seal`] masked it; `None`: it is not masked.
pub fn unmasked(batch: &[u8]) -> Option<Vec<u8>> {
    let mask = u64::from_le_bytes(batch.get(MASK_AT..MASK_AT + 8)?.try_into().expect("eight bytes"));
    (mask != 0).then(|| {
        let mut batch = batch.to_vec();
        lay(mask, &mut batch);
        batch
    })
}

/// Reads a header if one is there: magic, pool and bounds are checked, the checksum is not.
/// Returns the header, its checksum and the length of the whole batch in bytes.
pub fn decode_header(block: &[u8], pool_id: &[u8; 16]) -> Result<(BatchHeader, u32, usize), Corrupt> {
    let mut r = Reader::new(block);
    if r.u64()? != BATCH_MAGIC {
        return Err(Corrupt { what: "batch without its magic", at: 0 });
    }
    let id: [u8; 16] = r.array()?;
    if id != *pool_id {
        return r.corrupt("batch of another pool");
    }
    let (epoch, sequence, previous, checksum) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let (superblock_generation, flushed) = (r.u64()?, r.u64()?);
    let (first, last) = (Lsn(r.u64()?), Lsn(r.u64()?));
    let (transactions, payload_bytes, blocks) = (r.u32()?, r.u32()?, r.u32()? as usize);
    if payload_bytes as usize > BATCH_BYTES_MAX || blocks != batch_blocks(payload_bytes as usize) {
        return r.corrupt("batch length out of bounds");
    }
    let header = BatchHeader {
        pool_id: id,
        epoch,
        sequence,
        previous,
        superblock_generation,
        flushed,
        first,
        last,
        transactions,
        payload_bytes,
    };
    Ok((header, checksum, blocks * BLOCK_BYTES))
}

/// Whether a whole batch has the checksum its header names.
pub fn verify(batch: &[u8], checksum: u32) -> bool {
    let mut sum = crc32c::crc32c(&batch[..44]);
    sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &batch[48..]) == checksum
}

/// Starts a transaction in `payload`; returns where its header is, for [`end_transaction`].
pub fn begin_transaction(payload: &mut Vec<u8>, position: Lsn) -> usize {
    let at = payload.len();
    payload.put_u64(position.0);
    payload.put_u64(0);
    at
}

/// Fills in the header begun at `at`.
pub fn end_transaction(payload: &mut [u8], at: usize, ops: u32) {
    let len = (payload.len() - at - TRANSACTION_HEADER_BYTES) as u32;
    payload[at + 8..at + 12].copy_from_slice(&ops.to_le_bytes());
    payload[at + 12..at + 16].copy_from_slice(&len.to_le_bytes());
}

fn op_header(out: &mut Vec<u8>, kind: u8, len: usize) {
    out.put_u8(kind);
    out.put_u8(0);
    out.put_u32(len as u32);
}

/// Appends a put.
pub fn put_op(out: &mut Vec<u8>, tree: TreeId, key: &[u8], value: &[u8]) {
    op_header(out, OP_PUT, 3 + key.len() + value.len());
    out.put_u16(tree.0);
    out.put_u8(key.len() as u8);
    out.put_bytes(key);
    out.put_bytes(value);
}

/// Appends a delete.
pub fn delete_op(out: &mut Vec<u8>, tree: TreeId, key: &[u8]) {
    op_header(out, OP_DELETE, 2 + key.len());
    out.put_u16(tree.0);
    out.put_bytes(key);
}

/// Appends blocks coming into use.
pub fn place_op(out: &mut Vec<u8>, run: Run, checksums: &[u32]) {
    op_header(out, OP_PLACE, 12 + 4 * checksums.len());
    out.put_u64(run.addr.0);
    out.put_u32(run.blocks);
    for c in checksums {
        out.put_u32(*c);
    }
}

/// Appends blocks going out of use.
pub fn free_op(out: &mut Vec<u8>, run: Run) {
    op_header(out, OP_FREE, 12);
    out.put_u64(run.addr.0);
    out.put_u32(run.blocks);
}

/// Appends an id floor.
pub fn id_floor_op(out: &mut Vec<u8>, floor: u64) {
    op_header(out, OP_ID_FLOOR, 8);
    out.put_u64(floor);
}

/// Calls `each` with every op of every transaction in order; `total_blocks` bounds the addresses.
pub fn for_each_op<'a>(
    payload: &'a [u8],
    total_blocks: u64,
    mut each: impl FnMut(Lsn, OpRef<'a>),
) -> Result<u32, Corrupt> {
    let mut r = Reader::new(payload);
    let mut transactions = 0;
    while r.remaining() > 0 {
        let (position, ops, len) = (Lsn(r.u64()?), r.u32()?, r.u32()? as usize);
        let base = r.position();
        let mut t = Reader::new(r.bytes(len)?);
        for _ in 0..ops {
            let at = base + t.position();
            let (kind, flags, len) = (t.u8()?, t.u8()?, t.u32()? as usize);
            let mut b = Reader::new(t.bytes(len)?);
            match decode_op(kind, &mut b, total_blocks) {
                Ok(Some(op)) => each(position, op),
                Ok(None) if flags & FLAG_SKIPPABLE != 0 => {}
                Ok(None) => return Err(Corrupt { what: "log record of an unknown, required type", at }),
                Err(e) => return Err(Corrupt { what: e.what, at: at + e.at }),
            }
        }
        t.finish()?;
        transactions += 1;
    }
    Ok(transactions)
}

fn decode_run(b: &mut Reader<'_>, total_blocks: u64) -> Result<Run, Corrupt> {
    let run = Run { addr: PoolAddr(b.u64()?), blocks: b.u32()? };
    let fits = run.addr.0.is_multiple_of(BLOCK_BYTES as u64)
        && !run.addr.is_null()
        && (1..=RUN_BLOCKS_MAX).contains(&run.blocks)
        && run.addr.block() < total_blocks
        && run.addr.block() + u64::from(run.blocks) <= total_blocks;
    if fits { Ok(run) } else { b.corrupt("run of blocks outside the pool") }
}

fn decode_op<'a>(kind: u8, b: &mut Reader<'a>, total_blocks: u64) -> Result<Option<OpRef<'a>>, Corrupt> {
    Ok(Some(match kind {
        OP_PUT => {
            let tree = TreeId(b.u16()?);
            let key_len = b.u8()? as usize;
            let key = b.bytes(key_len)?;
            let value = b.bytes(b.remaining())?;
            if key.is_empty() || key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
                return b.corrupt("key or value length out of bounds");
            }
            OpRef::Put(tree, key, value)
        }
        OP_DELETE => {
            let tree = TreeId(b.u16()?);
            let key = b.bytes(b.remaining())?;
            if key.is_empty() || key.len() > KEY_BYTES_MAX {
                return b.corrupt("key length out of bounds");
            }
            OpRef::Delete(tree, key)
        }
        OP_PLACE => {
            let run = decode_run(b, total_blocks)?;
            let sums = b.bytes(b.remaining())?;
            if sums.len() != run.blocks as usize * 4 {
                return b.corrupt("checksums do not match the blocks");
            }
            OpRef::Place(run, sums)
        }
        OP_FREE => {
            let run = decode_run(b, total_blocks)?;
            if b.remaining() != 0 {
                return b.corrupt("bytes left over");
            }
            OpRef::Free(run)
        }
        OP_ID_FLOOR => {
            let floor = b.u64()?;
            if b.remaining() != 0 {
                return b.corrupt("bytes left over");
            }
            OpRef::IdFloor(floor)
        }
        _ => return Ok(None),
    }))
}
