//! The recorded disk below a filesystem, and the places where its power fails.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use varve_sim::{
    CrashCutter, CrashPoint, CrashPolicy, Event, Image, PAGE_BYTES, PendingWrite, RecordingDevice, Rng,
};

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

    /// From now on a flush is under way for this long.
    pub fn set_flush_duration(&self, duration: Duration) {
        self.0.set_flush_duration(duration);
    }

    /// How many writes were issued while a flush was under way, and flushes begun.
    pub fn overlaps(&self) -> (usize, usize) {
        let (mut running, mut writes, mut flushes) = (0usize, 0, 0);
        for event in self.0.recording().events() {
            match event {
                Event::FlushBegin { .. } => {
                    flushes += usize::from(running > 0);
                    running += 1;
                }
                Event::FlushDone { .. } | Event::FlushFailed { .. } => running = running.saturating_sub(1),
                Event::Write(_) => writes += usize::from(running > 0),
                Event::GroupDone { .. } => {}
            }
        }
        (writes, flushes)
    }

    /// The disk that is found when the process is killed after `events` events and the machine goes on: all that was written is there,
    /// and what no flush has covered is still in doubt. Of what was on its way all is written, some of the writes, or pages from the
    /// front of each. Events are counted on.
    pub fn killed(&self, events: usize, rng: &mut Rng) -> Disk {
        let way = rng.below(3);
        let cutter = self.0.cutter_at(CrashPoint(events)).killed(|write| match way {
            0 => write.pages.len(),
            1 => rng.index(2) * write.pages.len(),
            _ => rng.index(write.pages.len() + 1),
        });
        Disk(Arc::new(RecordingDevice::from_cutter(cutter)))
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
        let cutter = self.0.cutter_at(CrashPoint(cut.events));
        let mut image = cutter.image(rng, cut.policy);
        if cut.tear_within {
            tear_within(&cutter, &mut image, rng);
        }
        Disk::of(image)
    }
}

/// Leaves a page of one write in doubt with bytes that are partly new and partly old: a device that tears within a
/// sector.
fn tear_within(cutter: &CrashCutter, image: &mut Image, rng: &mut Rng) {
    let pending: Vec<&PendingWrite> = cutter.pending().collect();
    let Some(PendingWrite { write, .. }) = rng.pick(&pending) else { return };
    let number = rng.index(write.pages.len());
    let Some(new) = write.pages.get(number) else { return };
    let index = write.offset / PAGE_BYTES as u64 + number as u64;
    let old = *cutter.durable().page(index);
    let page = image.page_mut(index);
    // What matters of a page is often at its beginning.
    let within = if rng.chance(0.5) { 512 } else { PAGE_BYTES };
    let (one, other) = (rng.index(within), 1 + rng.index(within));
    let (from, to) = (one.min(other), one.max(other));
    page.copy_from_slice(&new[..]);
    match rng.below(3) {
        0 => page[from..].copy_from_slice(&old[from..]),
        1 => page[..from].copy_from_slice(&old[..from]),
        _ => page[from..to].copy_from_slice(&old[from..to]),
    }
}

/// When the power fails, and what becomes of the writes in doubt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// After this many events.
    pub events: usize,
    /// What survives.
    pub policy: CrashPolicy,
    /// Whether one write in doubt is torn within a sector, besides.
    pub tear_within: bool,
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
        Cut { events, policy: CrashPolicy::Seeded, tear_within: rng.chance(0.25) }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "event {}, {:?}{}",
            self.events,
            self.policy,
            if self.tear_within { ", torn within a sector" } else { "" }
        )
    }
}
