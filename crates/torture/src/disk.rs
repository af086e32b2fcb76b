//! The recorded disk below a filesystem, and the places where its power fails.

use std::fmt;
use std::sync::Arc;

use varve_sim::{CrashPoint, CrashPolicy, Image, RecordingDevice, Rng};

/// A recording device in memory. Clones are the same disk; [`Disk::fork`] makes another.
#[derive(Clone)]
pub struct Disk(Arc<RecordingDevice>);

impl Disk {
    /// An empty disk.
    pub fn new(size_bytes: u64) -> Disk {
        Disk(Arc::new(RecordingDevice::new(size_bytes)))
    }

    /// A disk that holds `image`.
    pub fn of(image: Image) -> Disk {
        Disk(Arc::new(RecordingDevice::from_image(image)))
    }

    /// Another disk with the same bytes, all durable, and no history.
    pub fn fork(&self) -> Disk {
        Disk::of(self.0.live_image())
    }

    /// The device to open a pool on.
    pub fn device(&self) -> Arc<RecordingDevice> {
        self.0.clone()
    }

    /// Events recorded so far.
    pub fn events(&self) -> usize {
        self.0.events()
    }

    /// Instants just before and just after every flush.
    pub fn flush_boundaries(&self) -> Vec<usize> {
        self.0.flush_boundaries().into_iter().map(|point| point.0).collect()
    }

    /// Writes in doubt after `events` events.
    pub fn pending_count(&self, events: usize) -> usize {
        self.0.cutter_at(CrashPoint(events)).pending_count()
    }

    /// The disk that is found after the power failed at `cut`.
    pub fn cut(&self, cut: &Cut, rng: &mut Rng) -> Disk {
        Disk::of(self.0.crash_image(CrashPoint(cut.events), rng, cut.policy))
    }
}

/// When the power fails, and what becomes of the writes in doubt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// After this many events.
    pub events: usize,
    /// What survives.
    pub policy: CrashPolicy,
}

impl Cut {
    /// At a seeded instant from `first` on: half of them around flushes, where most is in doubt.
    pub fn seeded(disk: &Disk, first: usize, rng: &mut Rng) -> Cut {
        let last = disk.events();
        let boundaries: Vec<usize> =
            disk.flush_boundaries().into_iter().filter(|events| *events >= first).collect();
        let events = match rng.pick(&boundaries) {
            Some(events) if rng.chance(0.5) => *events,
            _ => rng.between(first.min(last) as u64, last as u64) as usize,
        };
        Cut { events, policy: CrashPolicy::Seeded }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}, {:?}", self.events, self.policy)
    }
}
