//! A device that fails to read, by plan, and remembers what was read from it: what has been read once is what may fail the next time.
//!
//! Writes and flushes are never refused, and what a read gives is what is there. Nothing here looks at what the bytes mean.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use varve_device::{ALIGN_BYTES, Device, DeviceError, Discarded, Operation, Request, StatsSnapshot};
use varve_sim::{RecordingDevice, Rng};

/// EIO, as Linux numbers it.
const EIO: i32 = 5;
/// What an error of this device says.
pub const TEXT: &str = "this read was to fail";
/// Reads in a row that fail: as many as it takes to ask for both copies of a block twice, and more.
const ROW_MAX: u64 = 6;
/// Reads that a call of several steps makes when nothing is in memory.
const LATER_MAX: u64 = 12;
const BLOCK_BYTES: u64 = ALIGN_BYTES as u64;

/// Which reads fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Reads that touch these bytes are counted; all if there are none.
    pub within: Option<Range<u64>>,
    /// Those with these numbers fail. The first is 0.
    pub failing: Range<u64>,
    /// After so many the numbers begin anew, if they do.
    pub every: Option<u64>,
}

impl Plan {
    /// One of all ways in which what was `read` before may fail when it is read again: one read, some in a row, or one block, once
    /// or from some time on.
    pub fn seeded(read: &[(u64, u64)], rng: &mut Rng) -> Plan {
        let number = rng.below(read.len() as u64);
        let (offset, len) = read.get(number as usize).copied().unwrap_or((0, BLOCK_BYTES));
        let at = offset + rng.below(len / BLOCK_BYTES) * BLOCK_BYTES;
        let touched = read.iter().filter(|(from, len)| (*from..from + len).contains(&at)).count() as u64;
        let within = Some(at..at + BLOCK_BYTES);
        let first = rng.below(touched);
        match rng.below(6) {
            0 => Plan::of(None, number..number + 1),
            1 | 2 => Plan::of(None, number..number + rng.between(2, ROW_MAX)),
            3 | 4 => Plan::of(within, first..first + 1),
            _ => Plan::of(within, first..u64::MAX),
        }
    }

    fn of(within: Option<Range<u64>>, failing: Range<u64>) -> Plan {
        Plan { within, failing, every: None }
    }

    /// Some reads in a row, again and again.
    pub fn again_and_again(rng: &mut Rng) -> Plan {
        let row = rng.between(1, ROW_MAX);
        let most = 2 << rng.below(5);
        let every = row + rng.below(most);
        let first = rng.below(every - row + 1);
        Plan { every: Some(every), ..Plan::of(None, first..first + row) }
    }

    /// Some of the next few reads.
    pub fn soon(rng: &mut Rng) -> Plan {
        let most = 1 << rng.below(4);
        Plan::at(rng.below(most), rng)
    }

    /// Some reads of those that a call of several steps makes, seldom the first ones.
    pub fn later(rng: &mut Rng) -> Plan {
        Plan::at(rng.below(LATER_MAX), rng)
    }

    fn at(number: u64, rng: &mut Rng) -> Plan {
        Plan::of(None, number..number + rng.between(1, ROW_MAX))
    }

    /// Whether reads of several places may fail.
    pub fn is_row(&self) -> bool {
        self.within.is_none() && self.failing.end - self.failing.start > 1
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failing.end {
            u64::MAX => write!(f, "reads from number {} on", self.failing.start)?,
            end => write!(f, "reads number {} to {}", self.failing.start, end - 1)?,
        }
        if let Some(range) = &self.within {
            write!(f, " of the block at byte {:#x}", range.start)?;
        }
        self.every.map_or(Ok(()), |every| write!(f, " of every {every}"))
    }
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    /// Reads that the plan has counted.
    counted: u64,
    failed: u64,
    /// Offset and length of each read, if they are wanted.
    read: Option<Vec<(u64, u64)>>,
}

/// See the module. Clones are the same device.
#[derive(Clone)]
pub struct Reads {
    inner: Arc<RecordingDevice>,
    state: Arc<Mutex<State>>,
}

impl Reads {
    /// `inner`, which is sound so far.
    pub fn new(inner: Arc<RecordingDevice>) -> Reads {
        Reads { inner, state: Arc::default() }
    }

    /// The same, and what is read from it is noted.
    pub fn noted(inner: Arc<RecordingDevice>) -> Reads {
        let state = State { read: Some(Vec::new()), ..State::default() };
        Reads { inner, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on reads fail by `plan`.
    pub fn fail(&self, plan: Plan) {
        *self.state() = State { plan: Some(plan), ..State::default() };
    }

    /// From now on the device is sound. Gives the number of reads that have failed.
    pub fn heal(&self) -> u64 {
        std::mem::take(&mut *self.state()).failed
    }

    /// What was read so far, if that was noted: offset and length.
    pub fn read(&self) -> Vec<(u64, u64)> {
        self.state().read.take().unwrap_or_default()
    }

    fn fails(&self, request: &Request<'_>) -> bool {
        let (from, len) = (request.offset(), request.len_bytes());
        if request.operation() != Operation::Read {
            return false;
        }
        let mut state = self.state();
        if let Some(read) = &mut state.read {
            read.push((from, len));
        }
        let Some(plan) = &state.plan else { return false };
        if plan.within.as_ref().is_some_and(|within| within.end <= from || from + len <= within.start) {
            return false;
        }
        let number = plan.every.map_or(state.counted, |every| state.counted % every);
        let fails = plan.failing.contains(&number);
        state.counted += 1;
        state.failed += u64::from(fails);
        fails
    }
}

impl Device for Reads {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let fails: Vec<bool> = requests.iter().map(|request| self.fails(request)).collect();
        let mut results = self.inner.run(requests);
        for ((request, result), _) in
            requests.iter_mut().zip(&mut results).zip(fails).filter(|(_, fails)| *fails)
        {
            let Request::Read { offset, buf } = request else { continue };
            // Whoever uses it all the same is to be found out.
            buf.fill(0xee);
            *result = Err(DeviceError::Io {
                operation: Operation::Read,
                device: self.name(),
                offset: *offset,
                len_bytes: buf.len() as u64,
                errno: Some(EIO),
                text: TEXT.to_owned(),
            });
        }
        results
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }
    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_device::AlignedBuf;

    // Goal: what the plan names fails and nothing else, until the device is healed. Method: reads and a write over two blocks.
    #[test]
    fn reads_fail_by_plan() {
        let device = Reads::noted(Arc::new(RecordingDevice::new(1 << 20)));
        let mut block = AlignedBuf::new(ALIGN_BYTES);
        let mut read = |device: &Reads, at: u64| device.read_at(at * BLOCK_BYTES, &mut block);
        assert!(read(&device, 3).is_ok());
        assert_eq!(device.read(), [(3 * BLOCK_BYTES, BLOCK_BYTES)]);
        device.fail(Plan::of(None, 1..3));
        let ok: Vec<bool> = (0..4).map(|at| read(&device, at).is_ok()).collect();
        assert_eq!((ok, device.heal()), (vec![true, false, false, true], 2));
        device.fail(Plan::of(Some(BLOCK_BYTES..2 * BLOCK_BYTES), 1..u64::MAX));
        let ok: Vec<bool> = [1, 0, 1, 1, 2].into_iter().map(|at| read(&device, at).is_ok()).collect();
        assert_eq!(ok, [true, true, false, false, true]);
        let ones = AlignedBuf::from_slice(&[1; ALIGN_BYTES]);
        assert!(device.write_at(BLOCK_BYTES, &ones).is_ok());
        let error = read(&device, 1).expect_err("it fails for good").to_string();
        assert!(error.contains(TEXT), "{error}");
        assert_eq!(device.heal(), 3);
        assert!(read(&device, 1).is_ok());
        device.fail(Plan { every: Some(3), ..Plan::of(None, 1..2) });
        let ok: Vec<bool> = (0..6).map(|at| read(&device, at).is_ok()).collect();
        assert_eq!(ok, [true, false, true, true, false, true]);
        device.heal();
        assert!(read(&device, 1).is_ok() && block[..] == ones[..]);
    }
}
