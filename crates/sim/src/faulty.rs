//! A device that fails on purpose: errors, flipped bits, lost writes, stalls, by rule or by chance.
//!
//! Rules are looked at in order; every rule whose operation, range and trigger match is applied.

use std::ops::Range;
use std::time::Duration;

use parking_lot::Mutex;
use varve_device::{
    ALIGN_BYTES, AlignedBuf, Device, DeviceError, Discarded, Operation, Request, StatsSnapshot,
};

use crate::Rng;

/// EIO, as Linux numbers it.
const EIO: i32 = 5;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request fails with EIO and nothing is transferred.
    Error,
    /// The request fails with EIO. Of a write pages from its front have landed, by seed none, some or all.
    ErrorInPart,
    /// One bit of the transferred bytes is wrong: what is read, or what lands on the medium.
    FlipBit,
    /// A write or discard is answered with success and not done; a flush is answered and not done.
    Lose,
    /// The request takes this much longer.
    Stall(Duration),
}

/// When a rule applies, counted over the requests that match its operation and range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trigger {
    /// The `n`th only; the first is 1.
    Nth(u64),
    /// The `n`th and all after it.
    From(u64),
    /// Every `n`th.
    Every(u64),
    /// Each with this probability, 0.0 to 1.0.
    Chance(f64),
}

/// A rule of a [`FaultyDevice`].
#[derive(Debug, Clone, PartialEq)]
pub struct FaultRule {
    /// Which operation fails.
    pub operation: Operation,
    /// Requests that touch these bytes; `None`: all. Without meaning for flushes.
    pub range: Option<Range<u64>>,
    /// When.
    pub trigger: Trigger,
    /// How.
    pub fault: Fault,
}

impl FaultRule {
    /// A rule without a range.
    #[must_use]
    pub fn new(operation: Operation, trigger: Trigger, fault: Fault) -> Self {
        Self { operation, range: None, trigger, fault }
    }

    /// Restricts the rule to requests that touch `range` (bytes).
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }
}

struct Rules {
    /// Each with the number of matching requests so far.
    rules: Vec<(FaultRule, u64)>,
    rng: Rng,
    injected_count: u64,
}

/// What was decided for one request.
#[derive(Default)]
struct Verdict {
    error: bool,
    /// How many bytes of a failing write land, in whole pages.
    landed_bytes: u64,
    lose: bool,
    flip: Option<u64>,
    stall: Duration,
}

/// Wraps a device and spoils it.
pub struct FaultyDevice<D> {
    inner: D,
    rules: Mutex<Rules>,
    /// Told of each flush that will fail, when it begins.
    on_failed_flush: Option<Box<dyn Fn() + Send + Sync>>,
}

impl<D: Device> FaultyDevice<D> {
    /// Spoils `inner` by `rules`; `seed` decides chances and bits.
    pub fn new(inner: D, seed: u64, rules: Vec<FaultRule>) -> Self {
        let rules = rules.into_iter().map(|rule| (rule, 0)).collect();
        let rules = Mutex::new(Rules { rules, rng: Rng::new(seed), injected_count: 0 });
        Self { inner, rules, on_failed_flush: None }
    }

    /// Tells `told` of each flush that will fail, when it begins: a recording has to know
    /// ([`RecordingDevice::fail_flush`](crate::RecordingDevice::fail_flush)).
    #[must_use]
    pub fn on_failed_flush(mut self, told: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_failed_flush = Some(Box::new(told));
        self
    }

    /// Replaces the rules, from now on. An empty list makes the device sound.
    pub fn set_rules(&self, rules: Vec<FaultRule>) {
        self.rules.lock().rules = rules.into_iter().map(|rule| (rule, 0)).collect();
    }

    /// How many faults were injected so far.
    #[must_use]
    pub fn injected_count(&self) -> u64 {
        self.rules.lock().injected_count
    }

    /// The device beneath.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn judge(&self, operation: Operation, offset: u64, len_bytes: u64) -> Verdict {
        let mut guard = self.rules.lock();
        let Rules { rules, rng, injected_count } = &mut *guard;
        let mut verdict = Verdict::default();
        for (rule, matched_count) in rules {
            let touches = rule.range.as_ref().is_none_or(|range| {
                operation == Operation::Flush || (offset < range.end && range.start < offset + len_bytes)
            });
            if rule.operation != operation || !touches {
                continue;
            }
            *matched_count += 1;
            let applies = match rule.trigger {
                Trigger::Nth(n) => *matched_count == n,
                Trigger::From(n) => *matched_count >= n,
                Trigger::Every(n) => matched_count.is_multiple_of(n),
                Trigger::Chance(p) => rng.chance(p),
            };
            if !applies {
                continue;
            }
            *injected_count += 1;
            match rule.fault {
                Fault::Error => verdict.error = true,
                Fault::ErrorInPart => {
                    verdict.error = true;
                    let page_bytes = ALIGN_BYTES as u64;
                    verdict.landed_bytes = rng.below(len_bytes / page_bytes + 1) * page_bytes;
                }
                Fault::Lose => verdict.lose = true,
                Fault::FlipBit => verdict.flip = Some(rng.below(len_bytes * 8)),
                Fault::Stall(duration) => verdict.stall += duration,
            }
        }
        verdict
    }

    fn error(&self, operation: Operation, offset: u64, len_bytes: u64) -> DeviceError {
        DeviceError::Io {
            operation,
            device: self.name(),
            offset,
            len_bytes,
            errno: Some(EIO),
            text: "injected fault".to_owned(),
        }
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn name(&self) -> String {
        format!("faulty {}", self.inner.name())
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let verdicts: Vec<Verdict> = requests
            .iter()
            .map(|request| self.judge(request.operation(), request.offset(), request.len_bytes()))
            .collect();
        if let Some(stall) =
            verdicts.iter().map(|verdict| verdict.stall).max().filter(|stall| !stall.is_zero())
        {
            std::thread::sleep(stall);
        }
        // Bytes that land on the medium with a wrong bit are written from a copy.
        let spoilt: Vec<Option<AlignedBuf>> = requests
            .iter()
            .zip(&verdicts)
            .map(|(request, verdict)| match (request, verdict.flip) {
                (Request::Write { buf, .. }, Some(bit)) if buf.len().is_multiple_of(ALIGN_BYTES) => {
                    let mut copy = AlignedBuf::from_slice(buf);
                    flip(&mut copy, bit);
                    Some(copy)
                }
                _ => None,
            })
            .collect();
        let mut results: Vec<Result<(), DeviceError>> = Vec::with_capacity(requests.len());
        let (mut passed, mut partly): (Vec<Request<'_>>, Vec<Request<'_>>) = (Vec::new(), Vec::new());
        let mut passed_index: Vec<usize> = Vec::new();
        for (i, (request, verdict)) in requests.iter_mut().zip(&verdicts).enumerate() {
            let is_write = request.operation() == Operation::Write;
            if verdict.error {
                results.push(Err(self.error(request.operation(), request.offset(), request.len_bytes())));
                if let Request::Write { offset, buf } = request
                    && let Some(landed) = buf.get(..verdict.landed_bytes as usize).filter(|b| !b.is_empty())
                {
                    partly.push(Request::Write { offset: *offset, buf: landed });
                }
                continue;
            }
            results.push(Ok(()));
            if verdict.lose && is_write {
                continue;
            }
            passed_index.push(i);
            passed.push(match request {
                Request::Read { offset, buf } => Request::Read { offset: *offset, buf },
                Request::Write { offset, buf } => {
                    Request::Write { offset: *offset, buf: spoilt[i].as_deref().unwrap_or(buf) }
                }
            });
        }
        // Those that fail are answered so, whatever becomes of them.
        passed.append(&mut partly);
        for (i, result) in passed_index.into_iter().zip(self.inner.run(&mut passed)) {
            results[i] = result;
        }
        drop(passed);
        for (request, verdict) in requests.iter_mut().zip(&verdicts) {
            if let (Request::Read { buf, .. }, Some(bit)) = (request, verdict.flip) {
                flip(buf, bit);
            }
        }
        results
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let verdict = self.judge(Operation::Flush, 0, 0);
        if let Some(told) = self.on_failed_flush.as_ref().filter(|_| verdict.error) {
            told();
        }
        let flushed = match (verdict.error, verdict.lose) {
            (true, _) => Err(self.error(Operation::Flush, 0, 0)),
            (false, true) => Ok(()),
            (false, false) => self.inner.flush(),
        };
        // It has begun: flushes keep their order where one of them fails. The answer comes late.
        if !verdict.stall.is_zero() {
            std::thread::sleep(verdict.stall);
        }
        flushed
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        let verdict = self.judge(Operation::Discard, offset, len_bytes);
        if verdict.error {
            return Err(self.error(Operation::Discard, offset, len_bytes));
        }
        if verdict.lose { Ok(Discarded::Done) } else { self.inner.discard(offset, len_bytes) }
    }

    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}
