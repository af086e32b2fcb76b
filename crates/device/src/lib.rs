//! Block storage under a pool: regular files and block devices, and memory for tests.
//!
//! A [`Device`] reads, writes, flushes and discards. Requests go in groups: [`Device::run`] submits
//! many and waits for all. Nothing written is durable until a [`Device::flush`] issued after its
//! completion has returned; order between writes is not promised by anybody.
//! This crate knows nothing of pools, logs or trees.

mod affinity;
mod buffer;
mod counters;
mod error;
mod event_count;
mod file;
mod memory;
mod page;
mod process;
mod region;
mod request;

pub use affinity::{pin_thread, unpin_thread};
pub use buffer::AlignedBuf;
pub use counters::{Counters, Histogram, HistogramSnapshot, StatsSnapshot, Stopwatch};
pub use error::{DeviceError, Operation};
pub use event_count::{EventCount, Seen};
pub use file::{Backend, FileDevice, FileId, FileOptions, FileState, OpenMode, file_of_storage};
pub use memory::MemoryDevice;
pub use page::SharedPage;
pub use process::Process;
pub use request::check_range;

/// Alignment of offsets, lengths and buffers, in bytes.
pub const ALIGN_BYTES: usize = 4096;

/// One read or write of a group. Offset and length are multiples of [`ALIGN_BYTES`]; the buffer is
/// aligned (it lies in an [`AlignedBuf`]).
pub enum Request<'a> {
    /// Fill `buf` from `offset`.
    Read {
        /// Byte offset on the device.
        offset: u64,
        /// Where to.
        buf: &'a mut [u8],
    },
    /// Write `buf` at `offset`.
    Write {
        /// Byte offset on the device.
        offset: u64,
        /// What.
        buf: &'a [u8],
    },
}

/// What came of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// The device has taken the bytes back.
    Done,
    /// It cannot, or what is below it: nothing has changed, and nothing is wrong.
    NotSupported,
}

/// A block device or something that behaves like one.
pub trait Device: Send + Sync + 'static {
    /// Usable size, a multiple of [`ALIGN_BYTES`].
    fn size_bytes(&self) -> u64;

    /// A name for messages: the path, or what kind of memory.
    fn name(&self) -> String;

    /// Submits every request at once and waits for all of them. The result of request `i` is element `i`.
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>>;

    /// Makes everything durable whose write completed before this call began. Calls may overlap; each answers for what
    /// was written before it began, whatever another one reports.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that these bytes are no longer needed. Until they are written again reading them may give anything,
    /// also after a crash, flushed or not. Says whether the device knows how to do that.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError>;

    /// What has been done so far.
    fn stats(&self) -> StatsSnapshot;

    /// One read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.run(&mut [Request::Read { offset, buf }]).remove(0)
    }

    /// One write.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.run(&mut [Request::Write { offset, buf }]).remove(0)
    }

    /// One write of what is already elsewhere: where it lacks space that somebody has to make it fails at once.
    fn rewrite_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.write_at(offset, buf)
    }
}

/// A shared device is a device: wrappers can own a clone while a test keeps another.
impl<D: Device + ?Sized> Device for std::sync::Arc<D> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        (**self).run(requests)
    }

    fn rewrite_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        (**self).rewrite_at(offset, buf)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        (**self).flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        (**self).discard(offset, len_bytes)
    }

    fn stats(&self) -> StatsSnapshot {
        (**self).stats()
    }
}
