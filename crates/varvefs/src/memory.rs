//! A disk in memory that can lose its power, for tests of programs that use the library.
//!
//! Invariant: `before` holds, for every block written since the last flush, what it held at that flush; nobody undoes a
//! discard. A flush of memory takes no time, so one lock over writes and flushes gives them an order.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Fault, Reason};

const BLOCK_BYTES: u64 = varve_device::ALIGN_BYTES as u64;

/// A disk in memory on which a test can open a pool, and from which it can take what a killed program or a power
/// failure would leave. Memory is taken as it is written. As with a file, one pool at a time has it for writing, or any number
/// read-only.
///
/// ```
/// use varvefs::{MemoryDisk, PoolOptions};
///
/// let disk = MemoryDisk::new(64 << 20);
/// let pool = PoolOptions::new().create_on(&disk)?;
/// let fs = pool.filesystem();
/// fs.write("/kept", b"synced")?;
/// fs.sync()?;
/// fs.write("/lost", b"not synced")?;
///
/// let left = disk.after_power_cut();
/// let fs = PoolOptions::new().open_on(&left)?.filesystem();
/// assert_eq!(fs.read("/kept")?, b"synced");
/// assert!(!fs.exists("/lost")?);
/// # Ok::<(), varvefs::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryDisk {
    inner: Arc<Inner>,
}

struct Inner {
    live: varve_device::MemoryDevice,
    before: Mutex<HashMap<u64, varve_device::AlignedBuf>>,
    users: Mutex<Users>,
}

/// Who has a disk, as the locks of a pool's file have it.
#[derive(Default)]
struct Users {
    writer: bool,
    readers: usize,
}

impl MemoryDisk {
    /// A disk of zeros, of `size_bytes` rounded down to whole blocks of 4 KiB.
    pub fn new(size_bytes: u64) -> MemoryDisk {
        Self::with(varve_device::MemoryDevice::new(size_bytes))
    }

    fn with(live: varve_device::MemoryDevice) -> MemoryDisk {
        let inner = Inner { live, before: Mutex::default(), users: Mutex::default() };
        MemoryDisk { inner: Arc::new(inner) }
    }

    /// Another disk with what this one would hold if its machine lost power now: every write that no flush has
    /// followed is lost. This one goes on as if nothing had happened.
    pub fn after_power_cut(&self) -> MemoryDisk {
        let before = self.inner.before.lock();
        let left = self.inner.live.snapshot();
        for (block, bytes) in before.iter() {
            varve_device::Device::write_at(&left, block * BLOCK_BYTES, bytes)
                .expect("the block was written on a disk of the same size");
        }
        Self::with(left)
    }

    /// Another disk with what this one would hold if the program were killed now: every write done so far is there.
    pub fn after_kill(&self) -> MemoryDisk {
        let _order = self.inner.before.lock();
        Self::with(self.inner.live.snapshot())
    }

    /// Memory taken, in bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.live.allocated_bytes()
    }

    /// The disk as a pool's device: of one that writes, or of any number that only read.
    pub(crate) fn device(&self, read_only: bool) -> Result<Arc<dyn varve_device::Device>, Fault> {
        let mut users = self.inner.users.lock();
        if users.writer || (users.readers > 0 && !read_only) {
            return Err(Reason::InUse("the memory disk is in use by an open pool".to_owned()).into());
        }
        if read_only {
            users.readers += 1
        } else {
            users.writer = true
        }
        let (disk, counters) = (self.inner.clone(), varve_device::Counters::new());
        Ok(Arc::new(InUse { disk, counters, read_only }))
    }
}

impl std::fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDisk").field("allocated_bytes", &self.allocated_bytes()).finish_non_exhaustive()
    }
}

/// The disk while a pool has it.
struct InUse {
    disk: Arc<Inner>,
    /// What the pool has done. The disk below counts also what was kept of blocks before they were written, and what pools before this
    /// one have done.
    counters: varve_device::Counters,
    read_only: bool,
}

impl InUse {
    /// Keeps what a range holds, where it was not written since the last flush. What lies outside the disk is refused
    /// elsewhere.
    fn keep(&self, before: &mut HashMap<u64, varve_device::AlignedBuf>, offset: u64, len_bytes: u64) {
        let end = offset.saturating_add(len_bytes).min(varve_device::Device::size_bytes(&self.disk.live));
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            if let Entry::Vacant(entry) = before.entry(block) {
                let mut bytes = varve_device::AlignedBuf::new(varve_device::ALIGN_BYTES);
                varve_device::Device::read_at(&self.disk.live, block * BLOCK_BYTES, &mut bytes)
                    .expect("the block lies on the disk");
                entry.insert(bytes);
            }
        }
    }

    fn run_counted(
        &self,
        requests: &mut [varve_device::Request<'_>],
    ) -> Vec<Result<(), varve_device::DeviceError>> {
        let begun = varve_device::Stopwatch::start();
        let done = varve_device::Device::run(&self.disk.live, requests);
        for (request, result) in requests.iter().zip(&done) {
            let (operation, len_bytes) = (request.operation(), request.len_bytes());
            self.counters.record(operation, len_bytes, begun.elapsed(), result.is_ok());
        }
        done
    }

    fn counted<T>(
        &self,
        operation: varve_device::Operation,
        len_bytes: u64,
        what: impl FnOnce() -> Result<T, varve_device::DeviceError>,
    ) -> Result<T, varve_device::DeviceError> {
        let begun = varve_device::Stopwatch::start();
        let result = what();
        self.counters.record(operation, len_bytes, begun.elapsed(), result.is_ok());
        result
    }
}

impl varve_device::Device for InUse {
    fn size_bytes(&self) -> u64 {
        self.disk.live.size_bytes()
    }

    fn name(&self) -> String {
        self.disk.live.name()
    }

    fn run(&self, requests: &mut [varve_device::Request<'_>]) -> Vec<Result<(), varve_device::DeviceError>> {
        if requests.iter().all(|request| matches!(request, varve_device::Request::Read { .. })) {
            return self.run_counted(requests);
        }
        let mut before = self.disk.before.lock();
        for request in requests.iter() {
            if let varve_device::Request::Write { offset, buf } = request {
                self.keep(&mut before, *offset, buf.len() as u64);
            }
        }
        self.run_counted(requests)
    }

    fn flush(&self) -> Result<(), varve_device::DeviceError> {
        let mut before = self.disk.before.lock();
        before.clear();
        self.counted(varve_device::Operation::Flush, 0, || self.disk.live.flush())
    }

    fn discard(
        &self,
        offset: u64,
        len_bytes: u64,
    ) -> Result<varve_device::Discarded, varve_device::DeviceError> {
        // Nothing is kept of what is discarded: most of it was never written, and would take memory now.
        let _order = self.disk.before.lock();
        let discard = || self.disk.live.discard(offset, len_bytes);
        self.counted(varve_device::Operation::Discard, len_bytes, discard)
    }

    fn stats(&self) -> varve_device::StatsSnapshot {
        self.counters.snapshot()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut users = self.disk.users.lock();
        if self.read_only { users.readers -= 1 } else { users.writer = false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_device::Device;

    // Goal: a power cut undoes exactly what no flush has followed, a kill nothing. Method: blocks written before and
    // after a flush, twice, across the blocks of one write, and discarded (which nobody undoes); all read back from both remains.
    #[test]
    fn a_power_cut_undoes_what_was_not_flushed() {
        let disk = MemoryDisk::new(1 << 20);
        let device = disk.device(false).unwrap();
        let filled = |byte: u8, blocks: usize| {
            varve_device::AlignedBuf::from_slice(&vec![byte; blocks * BLOCK_BYTES as usize])
        };
        let firsts = |disk: &MemoryDisk| {
            let mut bytes = varve_device::AlignedBuf::new(1 << 20);
            disk.inner.live.read_at(0, &mut bytes).unwrap();
            (0..6).map(|block| bytes[block * BLOCK_BYTES as usize]).collect::<Vec<_>>()
        };
        device.write_at(0, &filled(1, 4)).unwrap();
        assert_eq!(firsts(&disk.after_power_cut()), [0; 6]);
        device.flush().unwrap();
        device.write_at(BLOCK_BYTES, &filled(2, 1)).unwrap();
        device.write_at(BLOCK_BYTES, &filled(3, 2)).unwrap();
        device.discard(3 * BLOCK_BYTES, BLOCK_BYTES).unwrap();
        device.write_at(5 * BLOCK_BYTES, &filled(5, 1)).unwrap();
        assert_eq!(firsts(&disk.after_power_cut()), [1, 1, 1, 0, 0, 0]);
        assert_eq!(firsts(&disk.after_kill()), [1, 3, 3, 0, 0, 5]);
        assert_eq!(
            firsts(&disk.after_kill().after_power_cut()),
            [1, 3, 3, 0, 0, 5],
            "what is left is durable"
        );
        device.flush().unwrap();
        assert_eq!(firsts(&disk.after_power_cut()), [1, 3, 3, 0, 0, 5]);
        assert!(device.write_at(1 << 20, &filled(1, 1)).is_err());
        assert!(disk.device(false).is_err() && disk.device(true).is_err());
        drop(device);
        assert!(disk.device(false).is_ok());
    }
}
