//! The pool: devices, where things lie on them, and every copy of every block.
//!
//! Everything above sees pool addresses only. Labels and superblocks are in `label.rs`.

mod discard;
mod flush;
mod label;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use varve_device::{AlignedBuf, Device, DeviceError, Request};
use varve_format::superblock::{
    Chunk, FORMAT_VERSION, LABEL_MAGIC, Label, RING_START, SLOTS_START, Superblock,
};
use varve_format::{BLOCK_BYTES, PoolAddr};

use crate::EngineError;
use crate::problem::Problems;

use flush::{Beside, Flushes};
pub use label::{NUMBER_MAX, NUMBER_TO_WRITE_MAX, Newer, format_devices};
use label::{NewestSlots, Slot};

type Result<T> = std::result::Result<T, EngineError>;

/// What has been written again, or cannot be, is logged where messages of the devices are: whoever listens to those alone hears it.
const DEVICE_LOG: &str = "varve_device";

/// Devices and the map from pool addresses to them.
pub struct Pool {
    /// Devices in label order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Name of the pool.
    pub pool_id: [u8; 16],
    /// Bytes of log on each device.
    pub ring_bytes: u64,
    size_bytes: Vec<u64>,
    chunks: Vec<Chunk>,
    /// Where the newest superblock was found, if the pool was opened.
    found: NewestSlots,
    /// Blocks rewritten from a good copy.
    pub repaired_count: AtomicU64,
    flushes: Flushes,
}

/// Places in a log that cannot be read and are looked for one by one; what is behind them is taken as unreadable.
const UNREADABLE_MAX: usize = 256;

/// Read at a time of a log that is looked through: all of it may be 256 MiB.
const LOG_WINDOW_BYTES: u64 = 4 << 20;

/// A part of a log that cannot be read (from, to), and why.
pub type Unreadable = (u64, u64, DeviceError);

/// A piece of a chunk that a request covers: chunk, offset inside it, range of the request's buffer.
struct Piece<'c> {
    chunk: &'c Chunk,
    delta: u64,
    from: usize,
    to: usize,
}

impl Pool {
    /// Finds labels and the newest superblock.
    pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<(Pool, Superblock, Newer)> {
        let (devices, labels) = label::read_labels(devices)?;
        let (superblock, found, newer) = label::newest_superblock(&devices, &labels)?;
        let pool = Pool {
            devices,
            pool_id: labels[0].pool_id,
            ring_bytes: labels[0].ring_bytes,
            size_bytes: labels.iter().map(|l| l.size_bytes).collect(),
            chunks: superblock.chunks.clone(),
            found,
            repaired_count: AtomicU64::new(0),
            flushes: Flushes::default(),
        };
        Ok((pool, superblock, newer))
    }

    /// The pool that `format_devices` has just labelled.
    pub fn for_format(devices: &[Arc<dyn Device>], superblock: &Superblock) -> Result<Pool> {
        let (devices, labels) = label::read_labels(devices.to_vec())?;
        Ok(Pool {
            devices,
            pool_id: superblock.pool_id,
            ring_bytes: labels[0].ring_bytes,
            size_bytes: labels.iter().map(|l| l.size_bytes).collect(),
            chunks: superblock.chunks.clone(),
            found: Vec::new(),
            repaired_count: AtomicU64::new(0),
            flushes: Flushes::default(),
        })
    }

    /// Adds what is wrong with labels and superblock slots. `current` is the superblock in use, `named` as for [`label::examine_slots`].
    pub fn examine(&self, current: &Superblock, named: Option<u64>, problems: &mut Problems) {
        for (device, size) in self.devices.iter().zip(&self.size_bytes) {
            label::examine_labels(device.as_ref(), *size, problems);
            label::examine_slots(device.as_ref(), *size, current, named, problems);
        }
    }

    /// Writes the newest superblock again in a slot that does not hold it, or cannot be read (power failed while it was written), if the other
    /// one does, which is not touched and durable before. The repair itself is not flushed. A slot that cannot be written is no reason not
    /// to open the pool, if the other one can be read. Of slots that cannot be read now counts what was found in them when the pool was, for
    /// nobody has written since: then only one that was read, and held something else, is written over.
    ///
    /// # Errors
    /// A flush's; [`EngineError::Refused`], if it is not known which of the two holds it, if neither can be read and the one to be written
    /// again not be written, and if somebody else has written over one since the pool was found.
    pub fn repair_slots(&self, superblock: &Superblock) -> Result<()> {
        use Slot::{Differs, Holds, Unread};
        let bytes = AlignedBuf::from_slice(&superblock.encode());
        let mut block = AlignedBuf::new(bytes.len());
        for ((device, size), found) in self.devices.iter().zip(&self.size_bytes).zip(&self.found) {
            let slots = label::slots_of(superblock.generation, *size);
            let now = slots.map(|offset| match label::read_twice(device.as_ref(), offset, &mut block) {
                Ok(()) if Superblock::decode(&block).is_ok_and(|found| found == *superblock) => Holds,
                Ok(()) => Differs,
                Err(e) => Unread(e),
            });
            let mut both = found.iter().zip(&now);
            if both.any(|(then, now)| matches!((then, now), (Holds, Differs))) {
                return Err(EngineError::Refused(format!(
                    "the superblock of generation {} was found on {} and has been written over since: somebody else writes there, and the pool \
                     is not opened for writing, only for reading. Find out who has it open, and try again",
                    superblock.generation,
                    device.name()
                )));
            }
            let offset = match (&now, found) {
                ([Holds, Holds], _) | ([Unread(_), Unread(_)], [Holds, Holds]) => continue,
                ([Holds, Differs | Unread(_)], _)
                | ([Unread(_), Differs], [Holds, _])
                | ([Unread(_), Unread(_)], [Holds, Differs]) => slots[1],
                ([Differs | Unread(_), Holds], _)
                | ([Differs, Unread(_)], [_, Holds])
                | ([Unread(_), Unread(_)], [Differs, Holds]) => slots[0],
                ([Unread(e), _] | [_, Unread(e)], _) => {
                    return Err(EngineError::Refused(format!(
                        "the superblock of generation {} was found and cannot be read any more, so it is not known whether it stands in both \
                         of its slots, and the pool is not opened for writing, only for reading: {e}. Try again, or look at the device",
                        superblock.generation
                    )));
                }
                ([Differs, Differs], _) => {
                    tracing::warn!(target: DEVICE_LOG, "no superblock slot holds generation {}", superblock.generation);
                    continue;
                }
            };
            // If power fails while this one is written, the other must be there.
            self.flush()?;
            if let Err(e) = device.write_at(offset, &bytes) {
                if !now.iter().any(|slot| matches!(slot, Holds)) {
                    return Err(EngineError::Refused(format!(
                        "the superblock of generation {} was found and cannot be read any more, and cannot be written again in its other slot: \
                         the pool is not opened for writing, only for reading: {e}. Try again, or look at the device",
                        superblock.generation
                    )));
                }
                tracing::warn!(target: DEVICE_LOG, "the superblock slot at {offset} cannot be repaired: {e}");
            }
        }
        Ok(())
    }

    /// Refuses a device that somebody else seems to have taken since: its labels and slots of superblocks may be there for long. An
    /// array leaves the first block alone, and bcache zeroes it: both sign behind it, where no pool writes anything. A pool that an
    /// earlier version made may have been made over such a sign: all but an array would have spoilt the label since.
    pub fn require_ours(&self) -> Result<()> {
        let mut head = AlignedBuf::new(SLOTS_START as usize);
        for device in &self.devices {
            let mut labelled = false;
            for (i, block) in head.chunks_exact_mut(BLOCK_BYTES).enumerate() {
                // What cannot be read for more than a moment is nobody else's, nor is a whole label.
                let read = label::read_twice(device.as_ref(), (i * BLOCK_BYTES) as u64, block).is_ok();
                let ours = i == 0 && read && self.is_label(block);
                labelled |= ours;
                if !read || ours {
                    block.fill(0);
                }
            }
            let seen = if labelled { BLOCK_BYTES + label::ARRAY_SIGN.len() } else { head.len() };
            let Some((at, what)) = label::signature_in(&head[..seen]) else { continue };
            let name = device.name();
            return Err(EngineError::Refused(if at < BLOCK_BYTES {
                format!(
                    "{name} begins as {what} does: somebody else may have it now. The pool that was on it can be opened for reading; if it \
                     is still the pool's, write zeros over its first 4096 bytes and open it again"
                )
            } else {
                format!(
                    "{name} has the sign of {what} at byte {at}: somebody else may have it now, or it was there before the pool was made. \
                     The pool can be opened for reading. If nobody else uses the device (wipefs {name} shows whose signs are on it), zero \
                     bytes 4096 to 65535, in which a pool has nothing, and open it again: dd if=/dev/zero of={name} bs=4096 seek=1 count=15 \
                     conv=notrunc,fsync"
                )
            }));
        }
        Ok(())
    }

    /// Whether a block is a label of this pool, with nothing changed in it.
    fn is_label(&self, block: &[u8]) -> bool {
        Label::decode(block)
            .is_ok_and(|label| label.version == FORMAT_VERSION && label.pool_id == self.pool_id)
    }

    /// Writes the label again at the end of a device where it cannot be used, if the one at its other end can. Not flushed. One that
    /// cannot be written is no reason not to open the pool, nor is one that cannot be read, which is left alone: it may be somebody else's.
    pub fn repair_labels(&self) {
        for (device, size) in self.devices.iter().zip(&self.size_bytes) {
            let places = [0, size - BLOCK_BYTES as u64];
            let labels = places.map(|place| {
                let mut block = AlignedBuf::new(BLOCK_BYTES);
                let read = label::read_twice(device.as_ref(), place, &mut block).is_ok();
                let good = read && self.is_label(&block);
                // What is there may be somebody else's, who has kept what was in front of his sign.
                let torn = block[..8] == LABEL_MAGIC && label::signature_in(&block).is_none();
                let was_ours = read && (torn || block.iter().all(|byte| *byte == 0));
                (good, was_ours, block)
            });
            let (place, good) = match &labels {
                [(false, true, _), (true, _, good)] => (places[0], good),
                [(true, _, good), (false, true, _)] => (places[1], good),
                _ => continue,
            };
            match device.rewrite_at(place, good) {
                Ok(()) => {
                    self.repaired_count.fetch_add(1, Relaxed);
                    tracing::warn!(target: DEVICE_LOG,
                        "wrote the label at byte {place} of {} again from the other one",
                        device.name()
                    );
                }
                Err(e) => {
                    tracing::warn!(target: DEVICE_LOG, "the label at byte {place} of {} cannot be repaired: {e}", device.name())
                }
            }
        }
    }

    /// The chunk table.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Sum of the devices' sizes.
    pub fn device_bytes(&self) -> u64 {
        self.size_bytes.iter().sum()
    }

    fn pieces(&self, addr: PoolAddr, len: usize) -> impl Iterator<Item = Piece<'_>> {
        // All chunks but the last are as long as the first.
        let chunk_bytes = self.chunks[0].len_bytes;
        let mut at = addr.0;
        // Of what a damaged pointer names beyond the last chunk there are no pieces.
        let last = self.chunks.last().map_or(0, |c| c.start + c.len_bytes);
        let end = addr.0.saturating_add(len as u64).min(last);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let chunk = &self.chunks[((at / chunk_bytes) as usize).min(self.chunks.len() - 1)];
            let stop = end.min(chunk.start + chunk.len_bytes);
            let piece = Piece {
                chunk,
                delta: at - chunk.start,
                from: (at - addr.0) as usize,
                to: (stop - addr.0) as usize,
            };
            at = stop;
            Some(piece)
        })
    }

    /// Writes every copy of every block and waits for all; with `log`, a stretch of the log goes out in the same group.
    pub fn write(&self, writes: &[(PoolAddr, &[u8])], log: Option<(u64, &[u8])>) -> Result<()> {
        for device in 0..self.devices.len() {
            let mut requests = Vec::with_capacity(writes.len() + 2);
            for (addr, data) in writes {
                for p in self.pieces(*addr, data.len()) {
                    for s in p.chunk.stripes.iter().filter(|s| s.device as usize == device) {
                        requests
                            .push(Request::Write { offset: s.offset + p.delta, buf: &data[p.from..p.to] });
                    }
                }
            }
            // A device may take neighbours as one.
            requests.sort_unstable_by_key(Request::offset);
            if let Some((position, bytes)) = log {
                let at = position % self.ring_bytes;
                let first = bytes.len().min((self.ring_bytes - at) as usize);
                requests.push(Request::Write { offset: RING_START + at, buf: &bytes[..first] });
                if first < bytes.len() {
                    requests.push(Request::Write { offset: RING_START, buf: &bytes[first..] });
                }
            }
            if requests.is_empty() {
                continue;
            }
            for result in self.devices[device].run(&mut requests) {
                result?;
            }
        }
        Ok(())
    }

    /// Flushes every device. After one failure it never succeeds again, nor beside one.
    pub fn flush(&self) -> Result<()> {
        self.flush_beside(Beside::All)
    }

    /// Flushes every device for a batch: later ones may be under way already.
    pub fn flush_batch(&self) -> Result<()> {
        self.flush_beside(Beside::Earlier)
    }

    fn flush_beside(&self, beside: Beside) -> Result<()> {
        self.flushes.run(beside, || {
            for device in &self.devices {
                device.flush()?;
            }
            Ok(())
        })
    }

    /// Copies a chunk keeps of the block at `addr`.
    pub fn copies(&self, addr: PoolAddr) -> usize {
        self.pieces(addr, BLOCK_BYTES).next().map_or(0, |p| p.chunk.stripes.len())
    }

    /// Reads copy number `copy` of whole blocks.
    pub fn read_copy(&self, addr: PoolAddr, buf: &mut [u8], copy: usize) -> Result<()> {
        let end = self.chunks.last().map_or(0, |c| c.start + c.len_bytes);
        if addr.is_null() || addr.0.checked_add(buf.len() as u64).is_none_or(|e| e > end) {
            return Err(EngineError::Refused(format!("address {:#x} lies outside the pool", addr.0)));
        }
        let mut rest = buf;
        let mut done = 0;
        for p in self.pieces(addr, rest.len()) {
            let (now, later) = rest.split_at_mut(p.to - done);
            let stripe = p.chunk.stripes[copy.min(p.chunk.stripes.len() - 1)];
            self.devices[stripe.device as usize].read_at(stripe.offset + p.delta, now)?;
            done = p.to;
            rest = later;
        }
        Ok(())
    }

    /// Reads the first copy of each of these blocks into its place in `buf`, all at once. Says of each whether that worked.
    pub fn read_blocks(&self, addrs: &[PoolAddr], buf: &mut [u8]) -> Vec<bool> {
        let end = self.chunks.last().map_or(0, |c| c.start + c.len_bytes);
        let mut read = vec![false; addrs.len()];
        let mut parts: Vec<Vec<(usize, Request<'_>)>> = self.devices.iter().map(|_| Vec::new()).collect();
        for (i, (addr, buf)) in addrs.iter().zip(buf.chunks_exact_mut(BLOCK_BYTES)).enumerate() {
            if addr.is_null() || addr.0.checked_add(BLOCK_BYTES as u64).is_none_or(|e| e > end) {
                continue;
            }
            let Some(p) = self.pieces(*addr, BLOCK_BYTES).next() else { continue };
            let Some(stripe) = p.chunk.stripes.first() else { continue };
            let request = Request::Read { offset: stripe.offset + p.delta, buf };
            parts[stripe.device as usize].push((i, request));
        }
        for (device, part) in self.devices.iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            let (which, mut requests): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            for (i, result) in which.into_iter().zip(device.run(&mut requests)) {
                read[i] = result.is_ok();
            }
        }
        read
    }

    /// Reads one block from the first place that passes `good`, and rewrites the copies that were bad before it when
    /// `repair` is set. `places` are the addresses the block is kept at.
    pub fn read_verified(
        &self,
        places: &mut dyn Iterator<Item = PoolAddr>,
        buf: &mut [u8],
        repair: bool,
        good: &dyn Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let mut bad = Vec::new();
        let mut last_error = None;
        for addr in places {
            for copy in 0..self.copies(addr) {
                match self.read_copy(addr, buf, copy) {
                    Ok(()) if good(buf) => {
                        if repair {
                            for (addr, copy) in bad {
                                self.rewrite_copy(addr, buf, copy);
                            }
                        }
                        return Ok(());
                    }
                    Ok(()) => bad.push((addr, copy)),
                    Err(e) => {
                        last_error = Some(e);
                        bad.push((addr, copy));
                    }
                }
            }
        }
        let addr = bad.first().map_or(0, |b| b.0.0);
        Err(last_error.unwrap_or(EngineError::Checksum { addr }))
    }

    /// Looks at every copy of a block, and rewrites those that are not `good` from one that is.
    ///
    /// # Errors
    /// The device's if none can be read that is, or one cannot be written.
    pub fn repair_copies(&self, addr: PoolAddr, good: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        let (mut whole, mut bad, mut unread) = (None, Vec::new(), None);
        for copy in 0..self.copies(addr) {
            match self.read_copy(addr, &mut block, copy) {
                Ok(()) if good(&block) => {
                    whole.get_or_insert_with(|| AlignedBuf::from_slice(&block));
                    continue;
                }
                Ok(()) => {}
                Err(error) => unread = Some(error),
            }
            bad.push(copy);
        }
        let Some(whole) = whole else { return Err(unread.unwrap_or(EngineError::Checksum { addr: addr.0 })) };
        let mut written = Ok(());
        for copy in bad {
            let Some((device, offset)) = self.copy_place(addr, copy) else { continue };
            match device.write_at(offset, &whole) {
                Ok(()) => self.note_repair(addr, copy),
                Err(error) => written = written.and(Err(error.into())),
            }
        }
        written
    }

    /// Rewrites one copy of a block while a good one is served. A failure is logged: the next read tries again.
    fn rewrite_copy(&self, addr: PoolAddr, data: &[u8], copy: usize) {
        let Some((device, offset)) = self.copy_place(addr, copy) else { return };
        match device.rewrite_at(offset, data) {
            Ok(()) => self.note_repair(addr, copy),
            Err(e) => {
                tracing::error!(target: DEVICE_LOG, addr = addr.0, copy, "could not rewrite a bad copy: {e}")
            }
        }
    }

    /// Where one copy of a block is: the device, and the byte on it.
    fn copy_place(&self, addr: PoolAddr, copy: usize) -> Option<(&Arc<dyn Device>, u64)> {
        let p = self.pieces(addr, BLOCK_BYTES).next()?;
        let stripe = p.chunk.stripes.get(copy)?;
        Some((&self.devices[stripe.device as usize], stripe.offset + p.delta))
    }

    fn note_repair(&self, addr: PoolAddr, copy: usize) {
        self.repaired_count.fetch_add(1, Relaxed);
        tracing::warn!(target: DEVICE_LOG, addr = addr.0, copy, "rewrote a bad copy from a good one");
    }

    /// Hands `each` block of the log of device `index` on, with its place in the ring; zeros where it cannot be read. Gives
    /// what cannot be. A device that fails is asked once more, at the end: that may have been for a moment. What can be read only then is
    /// handed on a second time.
    pub fn look_through_log(&self, index: usize, each: &mut dyn FnMut(u64, &[u8])) -> Vec<Unreadable> {
        let (mut passing, mut lasting) = (Vec::new(), Vec::new());
        self.look_at_log(index, (0, self.ring_bytes), each, &mut passing);
        for (from, to, _) in passing {
            self.look_at_log(index, (from, to), each, &mut lasting);
        }
        lasting
    }

    fn look_at_log(
        &self,
        index: usize,
        (from, to): (u64, u64),
        each: &mut dyn FnMut(u64, &[u8]),
        unreadable: &mut Vec<Unreadable>,
    ) {
        let mut window = AlignedBuf::new(LOG_WINDOW_BYTES.min(to - from) as usize);
        let mut at = from;
        while at < to {
            let len = (to - at).min(LOG_WINDOW_BYTES) as usize;
            self.read_ring(index, at, &mut window[..len], unreadable);
            for (i, block) in window[..len].chunks_exact(BLOCK_BYTES).enumerate() {
                each(at + (i * BLOCK_BYTES) as u64, block);
            }
            at += len as u64;
        }
    }

    /// Reads at byte `start` of a ring, zeros where it cannot be read.
    fn read_ring(&self, index: usize, start: u64, out: &mut [u8], unreadable: &mut Vec<Unreadable>) {
        let mut parts = vec![(0, out.len())];
        while let Some((at, len)) = parts.pop() {
            let (part, from) = (&mut out[at..at + len], start + at as u64);
            let Err(error) = self.devices[index].read_at(RING_START + from, part) else { continue };
            part.fill(0);
            if len == BLOCK_BYTES || unreadable.len() >= UNREADABLE_MAX {
                unreadable.push((from, from + len as u64, error));
            } else {
                // The second half is looked at later.
                let half = (len / BLOCK_BYTES).div_ceil(2) * BLOCK_BYTES;
                parts.extend([(at + half, len - half), (at, half)]);
            }
        }
    }

    /// A stretch of the log of one device, with zeros where it cannot be read, and what cannot be.
    pub fn read_log_with_gaps(&self, device: usize, position: u64, len: usize) -> (Vec<u8>, Vec<Unreadable>) {
        let mut buf = AlignedBuf::new(len);
        let at = position % self.ring_bytes;
        let first = len.min((self.ring_bytes - at) as usize);
        let mut gaps = Vec::new();
        self.read_ring(device, at, &mut buf[..first], &mut gaps);
        if first < len {
            self.read_ring(device, 0, &mut buf[first..len], &mut gaps);
        }
        (buf[..len].to_vec(), gaps)
    }

    /// A stretch of the log of one device.
    pub fn read_log(&self, device: usize, position: u64, len: usize) -> Result<Vec<u8>> {
        let mut buf = AlignedBuf::new(len);
        let at = position % self.ring_bytes;
        let first = len.min((self.ring_bytes - at) as usize);
        self.devices[device].read_at(RING_START + at, &mut buf[..first])?;
        if first < len {
            self.devices[device].read_at(RING_START, &mut buf[first..])?;
        }
        Ok(buf[..len].to_vec())
    }

    /// Writes a stretch of the log of one device.
    pub fn write_log(&self, device: usize, position: u64, bytes: &[u8]) -> Result<()> {
        let at = position % self.ring_bytes;
        let first = bytes.len().min((self.ring_bytes - at) as usize);
        self.devices[device].write_at(RING_START + at, &bytes[..first])?;
        if first < bytes.len() {
            self.devices[device].write_at(RING_START, &bytes[first..])?;
        }
        Ok(())
    }

    /// Writes a superblock to its slots at both ends of every device. Not flushed.
    pub fn write_superblock(&self, superblock: &Superblock) -> Result<u64> {
        let bytes = AlignedBuf::from_slice(&superblock.encode());
        let mut written = 0;
        for (device, size) in self.devices.iter().zip(&self.size_bytes) {
            let mut requests: Vec<Request<'_>> = label::slots_of(superblock.generation, *size)
                .map(|offset| Request::Write { offset, buf: &bytes })
                .into_iter()
                .collect();
            written += (requests.len() * bytes.len()) as u64;
            for result in device.run(&mut requests) {
                result?;
            }
        }
        Ok(written)
    }
}
