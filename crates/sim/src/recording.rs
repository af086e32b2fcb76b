//! A device in memory that remembers everything it was told, so that crashes can be cut from any instant.
//!
//! Invariants: a group's writes are issued at one instant and visible to reads and complete at a later one,
//! between which other threads may do anything; the order of events is the order of the lock. After power is
//! off no event is added and every request fails.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use varve_device::{
    Counters, Device, DeviceError, Discarded, Operation, Request, StatsSnapshot, check_range,
};

use crate::Rng;
use crate::cutter::{CrashCutter, CrashPolicy, Fate};
use crate::event::{CrashPoint, Event, Recording, WriteEvent};
use crate::image::{Image, PAGE_BYTES};

struct State {
    recording: Recording,
    /// What reads see: every completed write.
    live: Image,
    next_id: u64,
    flushes_count: u64,
    is_off: bool,
    /// Power goes off instead of adding the event after this point.
    off_at: Option<CrashPoint>,
}

/// The power is (now) off.
struct Off;

impl State {
    fn push(&mut self, event: Event) -> Result<(), Off> {
        if self.off_at.is_some_and(|point| self.recording.last_point() >= point) {
            self.is_off = true;
        }
        if self.is_off {
            return Err(Off);
        }
        self.recording.push(event);
        Ok(())
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Makes a completed write visible.
    fn apply(&mut self, write: &WriteEvent) {
        for (i, page) in write.pages.iter().enumerate() {
            self.live.set_page(write.offset / PAGE_BYTES as u64 + i as u64, page.clone());
        }
    }
}

/// A recording device. Share it in an `Arc`; the engine gets a clone, the test keeps one.
pub struct RecordingDevice {
    size_bytes: u64,
    state: RwLock<State>,
    /// Where the last image was cut, so that cutting forward is linear in all.
    cutter: Mutex<CrashCutter>,
    /// How long a flush is under way, in nanoseconds.
    flush_ns: AtomicU64,
    counters: Counters,
}

impl RecordingDevice {
    /// An all-zero device of `size_bytes`, rounded down to a multiple of 4096.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self::from_image(Image::new(size_bytes))
    }

    /// A device that holds `image`, all of it durable: what a machine finds after power has come back.
    #[must_use]
    pub fn from_image(image: Image) -> Self {
        Self::from_cutter(CrashCutter::new(image))
    }

    /// A device that goes on from where a recording was: reads see every write that has completed, of which some are still in doubt. No
    /// write may be in flight ([`CrashCutter::killed`]).
    #[must_use]
    pub fn from_cutter(cutter: CrashCutter) -> Self {
        let live = cutter.image_with(|_, _| Fate::Keep);
        Self {
            size_bytes: live.size_bytes(),
            state: RwLock::new(State {
                recording: Recording::new(cutter.clone()),
                live,
                next_id: 0,
                flushes_count: 0,
                is_off: false,
                off_at: None,
            }),
            cutter: Mutex::new(cutter),
            flush_ns: AtomicU64::new(0),
            counters: Counters::new(),
        }
    }

    /// Number of events since the device was made; also the number of the present instant.
    #[must_use]
    pub fn events(&self) -> usize {
        self.mark().0
    }

    /// The present instant.
    #[must_use]
    pub fn mark(&self) -> CrashPoint {
        self.state.read().recording.last_point()
    }

    /// Number of flushes that have returned.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.state.read().flushes_count
    }

    /// What reads see now.
    #[must_use]
    pub fn live_image(&self) -> Image {
        self.state.read().live.clone()
    }

    /// A copy of the recording so far (shares all data).
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.state.read().recording.clone()
    }

    /// From now on a flush is under way for this long, so that what other threads do overlaps with it.
    pub fn set_flush_duration(&self, duration: Duration) {
        self.flush_ns.store(duration.as_nanos() as u64, Relaxed);
    }

    /// Switches the power off: nothing is recorded any more and every request fails with
    /// [`DeviceError::PoweredOff`].
    pub fn power_off(&self) {
        self.state.write().is_off = true;
    }

    /// Switches the power off at a later instant, instead of the event that would follow it: also in the
    /// middle of a group or of a flush. A point that has passed means now.
    pub fn power_off_at(&self, point: CrashPoint) {
        let mut state = self.state.write();
        state.off_at = Some(point);
        if state.recording.last_point() > point {
            state.is_off = true;
        }
    }

    /// A flush begins of which it is certain that it will fail, whatever the caller does until it says so.
    pub fn fail_flush(&self) {
        let mut state = self.state.write();
        let flush = state.id();
        // Without power nothing is flushed anyway.
        let _ =
            state.push(Event::FlushBegin { flush }).and_then(|()| state.push(Event::FlushFailed { flush }));
    }

    /// Whether power is off.
    #[must_use]
    pub fn is_powered_off(&self) -> bool {
        self.state.read().is_off
    }

    /// An image that a power failure at `at` could leave. Cutting at rising points is linear in all.
    ///
    /// Panics if `at` lies after the present or was forgotten.
    #[must_use]
    pub fn crash_image(&self, at: CrashPoint, rng: &mut Rng, policy: CrashPolicy) -> Image {
        self.cutter_at(at).image(rng, policy)
    }

    /// A cutter at `at`, for cutting several images from one instant. Panics as [`RecordingDevice::crash_image`].
    #[must_use]
    pub fn cutter_at(&self, at: CrashPoint) -> CrashCutter {
        let mut cutter = self.cutter.lock();
        self.state.read().recording.advance(&mut cutter, at);
        cutter.clone()
    }

    /// See [`Recording::flush_boundaries`].
    #[must_use]
    pub fn flush_boundaries(&self) -> Vec<CrashPoint> {
        self.state.read().recording.flush_boundaries()
    }

    /// Forgets events before `point`, to bound memory in long runs. See [`Recording::forget_before`].
    pub fn forget_before(&self, point: CrashPoint) {
        self.state.write().recording.forget_before(point);
    }

    fn off_error(&self, operation: Operation) -> DeviceError {
        DeviceError::PoweredOff { operation, device: self.name() }
    }

    /// Issues the valid writes of a group, then completes it. `Err`: the power failed on the way.
    fn write_group(
        &self,
        requests: &mut [Request<'_>],
        results: &[Result<(), DeviceError>],
    ) -> Result<(), Off> {
        let mut state = self.state.write();
        let group = state.id();
        let mut writes = Vec::new();
        for (request, result) in requests.iter().zip(results) {
            if let (Request::Write { offset, buf }, Ok(())) = (request, result) {
                let write = WriteEvent::new(group, *offset, buf);
                state.push(Event::Write(write.clone()))?;
                writes.push(write);
            }
        }
        drop(state);
        // Here others may do anything: the writes are in flight.
        let mut state = self.state.write();
        state.push(Event::GroupDone { group })?;
        for write in &writes {
            state.apply(write);
        }
        Ok(())
    }

    fn read_group(
        &self,
        requests: &mut [Request<'_>],
        results: &[Result<(), DeviceError>],
    ) -> Result<(), Off> {
        let state = self.state.read();
        if state.is_off {
            return Err(Off);
        }
        for (request, result) in requests.iter_mut().zip(results) {
            if let (Request::Read { offset, buf }, Ok(())) = (request, result) {
                state.live.read(*offset, buf);
            }
        }
        Ok(())
    }
}

impl Device for RecordingDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn name(&self) -> String {
        "recording".to_owned()
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let started = Instant::now();
        let mut results: Vec<_> =
            requests.iter().map(|request| request.check(self.size_bytes, || self.name())).collect();
        let writes = requests
            .iter()
            .zip(&results)
            .any(|(request, result)| result.is_ok() && request.operation() == Operation::Write);
        let done = self
            .read_group(requests, &results)
            .and_then(|()| if writes { self.write_group(requests, &results) } else { Ok(()) });
        if done.is_err() {
            for (request, result) in requests.iter().zip(&mut results) {
                *result = Err(self.off_error(request.operation()));
            }
        }
        for (request, result) in requests.iter().zip(&results) {
            self.counters.record(request.operation(), request.len_bytes(), started.elapsed(), result.is_ok());
        }
        results
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let started = Instant::now();
        let flushed = (|| {
            let flush = {
                let mut state = self.state.write();
                let flush = state.id();
                state.push(Event::FlushBegin { flush })?;
                flush
            };
            let duration = Duration::from_nanos(self.flush_ns.load(Relaxed));
            if !duration.is_zero() {
                std::thread::sleep(duration);
            }
            let mut state = self.state.write();
            state.push(Event::FlushDone { flush })?;
            state.flushes_count += 1;
            Ok(())
        })();
        let result = flushed.map_err(|Off| self.off_error(Operation::Flush));
        self.counters.record(Operation::Flush, 0, started.elapsed(), result.is_ok());
        result
    }

    /// Discarded bytes read as something that nobody expects.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        check_range(Operation::Discard, offset, len_bytes, self.size_bytes, || self.name())?;
        let started = Instant::now();
        let mut state = self.state.write();
        let group = state.id();
        let write = WriteEvent::discard(group, offset, len_bytes);
        let issued = state.push(Event::Write(write.clone()));
        let result = issued
            .and_then(|()| state.push(Event::GroupDone { group }))
            .map_err(|Off| self.off_error(Operation::Discard));
        if result.is_ok() {
            state.apply(&write);
        }
        self.counters.record(Operation::Discard, len_bytes, started.elapsed(), result.is_ok());
        result.map(|()| Discarded::Done)
    }

    fn stats(&self) -> StatsSnapshot {
        self.counters.snapshot()
    }
}
