//! The protocol of the log without a filesystem: what any filesystem with one write and one flush could reach at best.
//!
//! Writers hand over a file and wait. One batch is in flight at a time; whoever comes meanwhile makes up the next, and its
//! first waiter to wake leads it: one contiguous write of the files' blocks and of one block of log, then one flush. One
//! 10 KiB file alone is 16 KiB and a flush. Nothing is remembered: names, space and indexes cost nothing here.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};
use varve_device::{ALIGN_BYTES, AlignedBuf, Device};

use super::Target;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::report::Ceiling;

/// Longest write, in bytes; more files than fit wait for the next batch.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// The first bytes of the disk stay as they are.
const START_BYTES: u64 = 1 << 20;

/// The protocol on a disk.
pub struct Bare {
    device: Arc<dyn Device>,
    state: Mutex<State>,
    changed: Condvar,
    disk: Disk,
}

struct State {
    /// Number of the batch that gathers.
    gathering: u64,
    /// Bytes in it.
    gathered_bytes: usize,
    /// Batches up to this one are durable.
    durable: u64,
    /// The buffer and the place of the next write; `None` while a batch is in flight.
    idle: Option<(AlignedBuf, u64)>,
    /// What went wrong, once for all.
    failed: Option<String>,
}

impl Bare {
    /// Takes a disk over.
    pub fn new(disk: Disk) -> Result<Bare> {
        let device = disk.open()?;
        let mut buf = AlignedBuf::new(BATCH_BYTES_MAX);
        buf.fill(0x5a);
        let state = State {
            gathering: 1,
            gathered_bytes: 0,
            durable: 0,
            idle: Some((buf, START_BYTES)),
            failed: None,
        };
        Ok(Bare { device, state: Mutex::new(state), changed: Condvar::new(), disk })
    }

    /// Hands over `data_bytes` of a file and returns when they are durable.
    pub fn commit(&self, data_bytes: usize) -> Result<()> {
        let bytes = data_bytes.next_multiple_of(ALIGN_BYTES);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.gathered_bytes + bytes + ALIGN_BYTES > BATCH_BYTES_MAX && state.failed.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mine = state.gathering;
        state.gathered_bytes += bytes;
        while state.durable < mine {
            if let Some(failed) = &state.failed {
                return Err(anyhow!("{failed}"));
            }
            let Some((mut buf, mut offset)) = state.idle.take() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let batch = state.gathering;
            let len = state.gathered_bytes + ALIGN_BYTES;
            state.gathering += 1;
            state.gathered_bytes = 0;
            drop(state);
            if offset + len as u64 > self.device.size_bytes() {
                offset = START_BYTES;
            }
            buf[..8].copy_from_slice(&batch.to_le_bytes());
            let result = self.device.write_at(offset, &buf[..len]).and_then(|()| self.device.flush());
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.idle = Some((buf, offset + len as u64));
            match result {
                Ok(()) => state.durable = batch,
                Err(error) => state.failed = Some(error.to_string()),
            }
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl Target for Bare {
    fn about(&self) -> String {
        "one write of the files' blocks and a block of log, one flush, one batch in flight; no filesystem"
            .to_owned()
    }
    fn counters(&self) -> Result<Option<Counters>> {
        self.disk.counters()
    }
    fn create_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn write_synced(&self, _: &str, bytes: &[u8]) -> Result<()> {
        self.commit(bytes.len())
    }
    fn remove(&self, _: &str) -> Result<()> {
        Ok(())
    }
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Measures what `device` can do: `count` writes of 16 KiB each with its flush, and `count` MiB in a row with one flush.
pub fn ceiling(device: &dyn Device, count: u64) -> Result<Ceiling> {
    const SMALL_BYTES: usize = 16 << 10;
    const LARGE_BYTES: usize = 1 << 20;
    let buf = AlignedBuf::new(LARGE_BYTES);
    let places = device.size_bytes().saturating_sub(START_BYTES) / LARGE_BYTES as u64;
    if places == 0 {
        return Err(anyhow!("{} is too small to measure", device.name()));
    }
    let begun = Instant::now();
    for n in 0..count {
        let offset = START_BYTES + n * SMALL_BYTES as u64 % (places * LARGE_BYTES as u64);
        device.write_at(offset, &buf[..SMALL_BYTES])?;
        device.flush()?;
    }
    let small = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    for n in 0..count {
        device.write_at(START_BYTES + n % places * LARGE_BYTES as u64, &buf)?;
    }
    device.flush()?;
    let large = begun.elapsed().as_secs_f64();
    Ok(Ceiling { flushed_writes_per_s: count as f64 / small, sequential_mib_per_s: count as f64 / large })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Medium;

    // Goal: a batch is one write and one flush, and many writers share them. Method: one commit alone, then 8 threads
    // on memory, with the device's own counters.
    #[test]
    fn one_write_one_flush() {
        let disk =
            Disk::new(Medium::Memory, std::path::Path::new(""), "bare", 64 << 20, false).expect("memory");
        let bare = Bare::new(disk).expect("memory opens");
        bare.commit(10_240).expect("memory takes it");
        let one = bare.device.stats();
        assert_eq!((one.writes_count, one.flushes_count, one.write_bytes), (1, 1, 16 << 10));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| bare.commit(10_240).expect("memory takes it")));
            }
        });
        let all = bare.device.stats();
        let batches = all.writes_count - 1;
        assert_eq!(all.flushes_count - 1, batches);
        assert!((50..=400).contains(&batches), "{batches} batches");
        assert_eq!(all.write_bytes, (16 << 10) + 400 * (12 << 10) + batches * (4 << 10));
    }
}
