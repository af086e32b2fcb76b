//! A sparse device in memory, for tests and for pools that need not last.
//!
//! Pages of 64 KiB appear when first written and read as zero before. A flush does nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::error::Operation;
use crate::request::check_range;
use crate::{ALIGN_BYTES, Counters, Device, DeviceError, Discarded, Request, StatsSnapshot};

const PAGE_BYTES: usize = 64 << 10;

/// A device in memory. Clone it with [`MemoryDevice::snapshot`] or share it in an `Arc`.
pub struct MemoryDevice {
    size_bytes: u64,
    /// By offset divided by [`PAGE_BYTES`].
    pages: RwLock<HashMap<u64, Box<[u8]>>>,
    counters: Counters,
}

impl MemoryDevice {
    /// An all-zero device of `size_bytes`, rounded down to a multiple of [`ALIGN_BYTES`].
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        let size_bytes = size_bytes - size_bytes % ALIGN_BYTES as u64;
        Self { size_bytes, pages: RwLock::default(), counters: Counters::new() }
    }

    /// An independent device with the same bytes and fresh counters.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            size_bytes: self.size_bytes,
            pages: RwLock::new(self.pages.read().clone()),
            counters: Counters::new(),
        }
    }

    /// Memory taken by pages, in bytes.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        (self.pages.read().len() * PAGE_BYTES) as u64
    }

    fn transfer(&self, request: &mut Request<'_>) {
        match request {
            Request::Read { offset, buf } => {
                let pages = self.pages.read();
                for_each_part(*offset, buf.len(), |page, at, range| match pages.get(&page) {
                    Some(bytes) => {
                        let len = range.len();
                        buf[range].copy_from_slice(&bytes[at..at + len]);
                    }
                    None => buf[range].fill(0),
                });
            }
            Request::Write { offset, buf } => {
                let mut pages = self.pages.write();
                for_each_part(*offset, buf.len(), |page, at, range| {
                    let bytes = pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES].into_boxed_slice());
                    bytes[at..at + range.len()].copy_from_slice(&buf[range]);
                });
            }
        }
    }
}

/// Calls `f(page index, offset inside the page, range inside the request)` for each page of a range.
fn for_each_part(offset: u64, len_bytes: usize, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len_bytes {
        let here = offset + done as u64;
        let page = here / PAGE_BYTES as u64;
        let at = (here % PAGE_BYTES as u64) as usize;
        let part = (PAGE_BYTES - at).min(len_bytes - done);
        f(page, at, done..done + part);
        done += part;
    }
}

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        requests
            .iter_mut()
            .map(|request| {
                let started = Instant::now();
                let result = request.check(self.size_bytes, || self.name());
                if result.is_ok() {
                    self.transfer(request);
                }
                let (operation, len_bytes) = (request.operation(), request.len_bytes());
                self.counters.record(operation, len_bytes, started.elapsed(), result.is_ok());
                result
            })
            .collect()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.record(Operation::Flush, 0, Duration::ZERO, true);
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        check_range(Operation::Discard, offset, len_bytes, self.size_bytes, || self.name())?;
        let mut pages = self.pages.write();
        let mut at = offset;
        while at < offset + len_bytes {
            let page = at / PAGE_BYTES as u64;
            let start = (at % PAGE_BYTES as u64) as usize;
            let part = (PAGE_BYTES - start).min((offset + len_bytes - at) as usize);
            if part == PAGE_BYTES {
                pages.remove(&page);
            } else if let Some(bytes) = pages.get_mut(&page) {
                bytes[start..start + part].fill(0);
            }
            at += part as u64;
        }
        self.counters.record(Operation::Discard, len_bytes, Duration::ZERO, true);
        Ok(Discarded::Done)
    }

    fn stats(&self) -> StatsSnapshot {
        self.counters.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    // Goal: data across page borders survives, unwritten bytes are zero, memory stays sparse. Method: one
    // write that straddles two pages of a huge device, read back, discarded.
    #[test]
    fn sparse_and_exact() {
        let device = MemoryDevice::new(1 << 40);
        let offset = (5 << 30) + 60 * 1024;
        let data = AlignedBuf::from_slice(&[7; 8192]);
        device.write_at(offset, &data).unwrap();
        let mut back = AlignedBuf::new(16384);
        device.read_at(offset - 4096, &mut back).unwrap();
        assert!(back[..4096].iter().all(|b| *b == 0));
        assert_eq!(&back[4096..12288], &data[..]);
        assert_eq!(device.allocated_bytes(), 2 * PAGE_BYTES as u64);
        let copy = device.snapshot();
        device.discard(offset, 8192).unwrap();
        device.read_at(offset - 4096, &mut back).unwrap();
        assert!(back.iter().all(|b| *b == 0));
        copy.read_at(offset - 4096, &mut back).unwrap();
        assert_eq!(&back[4096..12288], &data[..]);
    }

    // Goal: misaligned and overhanging requests are refused and counted. Method: one of each in a group.
    #[test]
    fn refuses_what_direct_io_would_refuse() {
        let device = MemoryDevice::new(8192);
        let buf = AlignedBuf::new(8192);
        let results = device.run(&mut [
            Request::Write { offset: 512, buf: &buf[..4096] },
            Request::Write { offset: 0, buf: &buf[512..4608] },
            Request::Write { offset: 4096, buf: &buf },
            Request::Write { offset: u64::MAX - 4095, buf: &buf },
            Request::Write { offset: 0, buf: &buf },
        ]);
        assert!(matches!(results[0], Err(DeviceError::Misaligned { .. })));
        assert!(matches!(results[1], Err(DeviceError::Misaligned { .. })));
        assert!(matches!(results[2], Err(DeviceError::PastEnd { .. })));
        assert!(matches!(results[3], Err(DeviceError::PastEnd { .. })));
        assert!(results[4].is_ok());
        assert_eq!((device.stats().writes_count, device.stats().errors_count), (1, 4));
    }
}
