//! The life of a real device in a file: a [`LoggingDevice`] appends every write, completion and flush to a log
//! on another filesystem, a [`LogReader`] gives them back as [`Event`]s, for a [`CrashCutter`] to cut.
//!
//! Order is honest both ways. A write is logged before it is issued (from there it may be on the medium) and
//! its group's completion before the caller learns of it; a flush's begin is logged before it is issued and
//! its end after it returned. So a flush counts for a write only if the write had completed before, and
//! whatever the caller was told is in the log when it was told: an observer who notes the log's length
//! after an fsync returned knows that the state at that length holds the fsync's data.
//!
//! Every record is handed to the kernel at once, so a killed process loses none of it; an incomplete last
//! record is ignored. Little-endian:
//!
//! ```text
//! header   "VARVELOG", version u32 = 1, zero u32, device size u64
//! record   kind u8, zero [u8; 7], id u64, offset u64, length u64, then `length` bytes if kind is 1
//! kinds    1 write (id: group), 2 group done, 3 flush begin (id: flush), 4 flush done, 5 discard (id: group),
//!          6 flush failed
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use parking_lot::Mutex;
use varve_device::{Device, DeviceError, Discarded, Operation, Request, StatsSnapshot};

use crate::cutter::CrashCutter;
use crate::event::{Event, Recording, WriteEvent};
use crate::image::{Image, PAGE_BYTES};

const MAGIC: &[u8; 8] = b"VARVELOG";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 32;
/// A longer write than any device accepts: the log is damaged.
const WRITE_BYTES_MAX: u64 = 1 << 30;

/// A larger device is not simulated: an image's page table alone would take 64 MiB.
const DEVICE_BYTES_MAX: u64 = 1 << 42;

const KIND_WRITE: u8 = 1;
const KIND_GROUP_DONE: u8 = 2;
const KIND_FLUSH_BEGIN: u8 = 3;
const KIND_FLUSH_DONE: u8 = 4;
const KIND_DISCARD: u8 = 5;
const KIND_FLUSH_FAILED: u8 = 6;

/// Why a log cannot be read.
#[derive(Debug)]
pub enum LogError {
    /// The file could not be read.
    Io(io::Error),
    /// It is not a log, or not one of this version, or of a device of another size, or damaged.
    Malformed {
        /// Byte offset in the log.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

impl std::fmt::Display for LogError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "reading the log failed: {error}"),
            Self::Malformed { at, what } => write!(f, "the log is malformed at byte {at}: {what}"),
        }
    }
}

impl std::error::Error for LogError {}

impl From<io::Error> for LogError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

struct Log {
    file: File,
    next_id: u64,
}

/// Wraps a device and logs what happens on it.
pub struct LoggingDevice<D> {
    inner: D,
    log: Mutex<Log>,
}

fn put_record(out: &mut Vec<u8>, kind: u8, id: u64, offset: u64, len_bytes: u64) {
    out.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    for field in [id, offset, len_bytes] {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

impl<D: Device> LoggingDevice<D> {
    /// Logs `inner` into a new file at `log_path`, which must not exist. The log starts from what `inner` holds
    /// now; whoever reads it later must have a copy of that (nothing, for a fresh device).
    pub fn create(inner: D, log_path: impl AsRef<Path>) -> io::Result<Self> {
        let mut file = File::options().append(true).create_new(true).open(log_path)?;
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(&inner.size_bytes().to_le_bytes());
        file.write_all(&header)?;
        Ok(Self { inner, log: Mutex::new(Log { file, next_id: 0 }) })
    }

    /// The device beneath.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn append(&self, operation: Operation, record: &[u8]) -> Result<(), DeviceError> {
        self.append_to(&mut self.log.lock(), operation, record)
    }

    fn append_to(&self, log: &mut Log, operation: Operation, record: &[u8]) -> Result<(), DeviceError> {
        log.file.write_all(record).map_err(|error| {
            DeviceError::from_os(operation, format!("the log of {}", self.inner.name()), 0, 0, &error)
        })
    }

    /// Appends one record under a fresh id.
    fn append_new(&self, operation: Operation, kind: u8, offset: u64, len: u64) -> Result<u64, DeviceError> {
        let mut log = self.log.lock();
        log.next_id += 1;
        let id = log.next_id;
        let mut record = Vec::with_capacity(RECORD_BYTES);
        put_record(&mut record, kind, id, offset, len);
        self.append_to(&mut log, operation, &record)?;
        Ok(id)
    }

    fn append_end(&self, operation: Operation, kind: u8, id: u64) -> Result<(), DeviceError> {
        let mut record = Vec::with_capacity(RECORD_BYTES);
        put_record(&mut record, kind, id, 0, 0);
        self.append(operation, &record)
    }

    /// Logs the writes of a group that is about to be issued; its id.
    fn append_group(&self, requests: &[Request<'_>]) -> Result<Option<u64>, DeviceError> {
        let fits = |request: &Request<'_>| request.check(self.inner.size_bytes(), || self.name()).is_ok();
        let writes = || requests.iter().filter(|r| r.operation() == Operation::Write && fits(r));
        let bytes: usize = writes().map(|write| RECORD_BYTES + write.bytes().len()).sum();
        if bytes == 0 {
            return Ok(None);
        }
        let mut log = self.log.lock();
        log.next_id += 1;
        let group = log.next_id;
        let mut records = Vec::with_capacity(bytes);
        for write in writes() {
            put_record(&mut records, KIND_WRITE, group, write.offset(), write.len_bytes());
            records.extend_from_slice(write.bytes());
        }
        self.append_to(&mut log, Operation::Write, &records)?;
        Ok(Some(group))
    }
}

impl<D: Device> Device for LoggingDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let group = match self.append_group(requests) {
            Ok(group) => group,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        let results = self.inner.run(requests);
        let Some(group) = group else { return results };
        // A group with a failed write never completes: all of it stays in doubt for ever.
        let failed = |(request, result): (&Request<'_>, &Result<(), DeviceError>)| {
            request.operation() == Operation::Write && result.is_err()
        };
        if requests.iter().zip(&results).any(failed) {
            return results;
        }
        match self.append_end(Operation::Write, KIND_GROUP_DONE, group) {
            Ok(()) => results,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let flush = self.append_new(Operation::Flush, KIND_FLUSH_BEGIN, 0, 0)?;
        match self.inner.flush() {
            Ok(()) => self.append_end(Operation::Flush, KIND_FLUSH_DONE, flush),
            Err(error) => {
                self.append_end(Operation::Flush, KIND_FLUSH_FAILED, flush)?;
                Err(error)
            }
        }
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        varve_device::check_range(Operation::Discard, offset, len_bytes, self.size_bytes(), || self.name())?;
        let group = self.append_new(Operation::Discard, KIND_DISCARD, offset, len_bytes)?;
        let done = self.inner.discard(offset, len_bytes)?;
        // Also of one that is not supported: in doubt for ever, it could come after what is written there later.
        self.append_end(Operation::Discard, KIND_GROUP_DONE, group)?;
        Ok(done)
    }

    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}

/// Reads a log event by event, in bounded memory.
pub struct LogReader {
    file: BufReader<File>,
    size_bytes: u64,
    offset: u64,
}

impl LogReader {
    /// Opens a log and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut header = [0; HEADER_BYTES];
        if !read_whole(&mut file, &mut header)? {
            return Err(LogError::Malformed { at: 0, what: "the header is incomplete" });
        }
        if &header[..8] != MAGIC {
            return Err(LogError::Malformed { at: 0, what: "this is no device log" });
        }
        if header[8..12] != VERSION.to_le_bytes() {
            return Err(LogError::Malformed { at: 8, what: "unknown version" });
        }
        let size_bytes = field(&header, 16);
        if size_bytes > DEVICE_BYTES_MAX || !size_bytes.is_multiple_of(PAGE_BYTES as u64) {
            return Err(LogError::Malformed { at: 16, what: "an impossible device size" });
        }
        Ok(Self { file, size_bytes, offset: HEADER_BYTES as u64 })
    }

    /// Size of the logged device in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Length of the log up to and with the last event given: compare with a length noted by an observer.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next event; `None` at the end, also if the last record is incomplete.
    pub fn next_event(&mut self) -> Result<Option<Event>, LogError> {
        let mut record = [0; RECORD_BYTES];
        if !read_whole(&mut self.file, &mut record)? {
            return Ok(None);
        }
        let at = self.offset;
        let (id, offset, len_bytes) = (field(&record, 8), field(&record, 16), field(&record, 24));
        let mut data_bytes = 0;
        let event = match record[0] {
            KIND_WRITE | KIND_DISCARD => {
                let page = PAGE_BYTES as u64;
                let fits = offset.checked_add(len_bytes).is_some_and(|end| end <= self.size_bytes);
                if !fits || !offset.is_multiple_of(page) || !len_bytes.is_multiple_of(page) {
                    return Err(LogError::Malformed {
                        at,
                        what: "a write outside the device or not aligned",
                    });
                }
                if record[0] == KIND_DISCARD {
                    Event::Write(WriteEvent::discard(id, offset, len_bytes))
                } else {
                    if len_bytes > WRITE_BYTES_MAX {
                        return Err(LogError::Malformed { at, what: "an impossibly long write" });
                    }
                    data_bytes = len_bytes;
                    let mut bytes = vec![0; len_bytes as usize];
                    if !read_whole(&mut self.file, &mut bytes)? {
                        return Ok(None);
                    }
                    Event::Write(WriteEvent::new(id, offset, &bytes))
                }
            }
            KIND_GROUP_DONE => Event::GroupDone { group: id },
            KIND_FLUSH_BEGIN => Event::FlushBegin { flush: id },
            KIND_FLUSH_DONE => Event::FlushDone { flush: id },
            KIND_FLUSH_FAILED => Event::FlushFailed { flush: id },
            _ => return Err(LogError::Malformed { at, what: "an unknown kind of record" }),
        };
        self.offset += RECORD_BYTES as u64 + data_bytes;
        Ok(Some(event))
    }

    /// Feeds `cutter` every event that begins before byte `offset` of the log. Returns the number fed.
    pub fn feed_to(&mut self, cutter: &mut CrashCutter, offset: u64) -> Result<usize, LogError> {
        let mut fed_count = 0;
        while self.offset < offset {
            let Some(event) = self.next_event()? else { break };
            cutter.feed(&event);
            fed_count += 1;
        }
        Ok(fed_count)
    }
}

/// Reads a whole log into memory. `base` is what the device held when the log was begun; `None`: zeros.
pub fn read_log(path: impl AsRef<Path>, base: Option<Image>) -> Result<Recording, LogError> {
    let mut reader = LogReader::open(path)?;
    let base = base.unwrap_or_else(|| Image::new(reader.size_bytes));
    if base.size_bytes() != reader.size_bytes {
        return Err(LogError::Malformed { at: 16, what: "the device's size differs from the base image's" });
    }
    let mut recording = Recording::new(CrashCutter::new(base));
    while let Some(event) = reader.next_event()? {
        recording.push(event);
    }
    Ok(recording)
}

/// Fills `buf`; false if the file ends before.
fn read_whole(file: &mut impl Read, buf: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buf) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn field(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
