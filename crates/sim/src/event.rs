//! What a device was told, in order: the raw material of simulated crashes.

use std::sync::Arc;

use crate::Rng;
use crate::cutter::CrashCutter;
use crate::image::{PAGE_BYTES, Page};

/// An instant in the life of a device: after this many events and before the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrashPoint(pub usize);

/// A write of whole pages, or a discard, which is one of bytes nobody expects. Cheap to clone: images share its pages.
#[derive(Debug, Clone)]
pub struct WriteEvent {
    /// Writes of one group are in flight together.
    pub group: u64,
    /// Byte offset, a multiple of [`PAGE_BYTES`].
    pub offset: u64,
    /// The bytes.
    pub pages: Arc<[Arc<Page>]>,
    /// Whether nobody wrote these bytes: they were discarded.
    pub is_discard: bool,
}

impl WriteEvent {
    /// A write of `bytes`, whose length is a multiple of [`PAGE_BYTES`] (what is left over is ignored).
    #[must_use]
    pub fn new(group: u64, offset: u64, bytes: &[u8]) -> Self {
        let (pages, _) = bytes.as_chunks::<PAGE_BYTES>();
        let pages = pages.iter().map(|page| Arc::new(*page)).collect();
        Self { group, offset, pages, is_discard: false }
    }

    /// A discard. What it leaves depends on the place alone, page by page: zeros, [`DISCARDED_BYTE`]s, or noise.
    #[must_use]
    pub fn discard(group: u64, offset: u64, len_bytes: u64) -> Self {
        let first = offset / PAGE_BYTES as u64;
        let mut rng = Rng::new(first);
        let noise = Arc::new(std::array::from_fn(|_| rng.next_u64() as u8));
        let left = [Arc::new([0; PAGE_BYTES]), Arc::new([DISCARDED_BYTE; PAGE_BYTES]), noise];
        let pages = first..first + len_bytes / PAGE_BYTES as u64;
        let pages = pages.map(|page| left[Rng::new(page).index(left.len())].clone()).collect();
        Self { group, offset, pages, is_discard: true }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_BYTES) as u64
    }
}

/// What some discarded pages read as.
pub const DISCARDED_BYTE: u8 = 0xd5;

/// Something that happened on a device.
#[derive(Debug, Clone)]
pub enum Event {
    /// A write or discard was issued: from here on any part of it may be on the medium.
    Write(WriteEvent),
    /// All writes of this group have completed. A group with a failed write never does.
    GroupDone {
        /// The group.
        group: u64,
    },
    /// A flush was issued: it covers what has completed before.
    FlushBegin {
        /// Tells flushes apart.
        flush: u64,
    },
    /// The flush has returned successfully.
    FlushDone {
        /// Which one.
        flush: u64,
    },
    /// The flush fails. What it should have covered stays in doubt until it is written again: no later flush has it, since a
    /// kernel or a drive that has reported an error has let go of it. A device that fails on purpose says so just after the begin,
    /// so that this holds for flushes that begin and return meanwhile.
    FlushFailed {
        /// Which one.
        flush: u64,
    },
}

/// A stretch of a device's life: what was there at its start, and every event since.
#[derive(Clone)]
pub struct Recording {
    start: CrashCutter,
    events: Vec<Event>,
}

impl Recording {
    /// A recording that starts in the state of `start`.
    #[must_use]
    pub fn new(start: CrashCutter) -> Self {
        Self { start, events: Vec::new() }
    }

    /// Adds what happened next.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The first instant that can still be cut.
    #[must_use]
    pub fn first_point(&self) -> CrashPoint {
        self.start.position()
    }

    /// The last instant: after every event.
    #[must_use]
    pub fn last_point(&self) -> CrashPoint {
        CrashPoint(self.start.position().0 + self.events.len())
    }

    /// The events after [`Recording::first_point`].
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The event that follows `point`.
    #[must_use]
    pub fn event_at(&self, point: CrashPoint) -> Option<&Event> {
        self.events.get(point.0.checked_sub(self.start.position().0)?)
    }

    /// Two instants for every finished flush: just before it returned, when most is in doubt, and just after.
    #[must_use]
    pub fn flush_boundaries(&self) -> Vec<CrashPoint> {
        let first = self.first_point().0;
        let flushes = self.events.iter().enumerate();
        let done = flushes.filter(|(_, event)| matches!(event, Event::FlushDone { .. }));
        done.flat_map(|(i, _)| [CrashPoint(first + i), CrashPoint(first + i + 1)]).collect()
    }

    /// A cutter at the first point.
    #[must_use]
    pub fn cutter(&self) -> CrashCutter {
        self.start.clone()
    }

    /// Moves `cutter` forward to `point`. A cutter that is beyond the point starts again, so go forward.
    ///
    /// Panics if the recording does not reach the point (any more).
    pub fn advance(&self, cutter: &mut CrashCutter, point: CrashPoint) {
        assert!(
            (self.first_point()..=self.last_point()).contains(&point),
            "{point:?} is not within the recording, {:?} to {:?}",
            self.first_point(),
            self.last_point()
        );
        if cutter.position() > point || cutter.position() < self.first_point() {
            *cutter = self.start.clone();
        }
        let first = self.first_point().0;
        for event in &self.events[cutter.position().0 - first..point.0 - first] {
            cutter.feed(event);
        }
    }

    /// Forgets everything before `point`, to bound memory in long runs. Points keep their numbers.
    pub fn forget_before(&mut self, point: CrashPoint) {
        let mut start = self.start.clone();
        self.advance(&mut start, point);
        self.events.drain(..point.0 - self.start.position().0);
        self.start = start;
    }
}
