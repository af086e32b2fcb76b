//! Walks along a recording and cuts crash images: what the medium could hold if power failed here.
//!
//! Invariants: `durable` holds exactly the writes and discards that a returned flush covers; every other write issued so
//! far is in `completed` or `in_flight`, but for pages that a failed flush has let go of and a durable write has replaced.
//! Feeding is linear in the events (but for failed flushes), cutting in the pending writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::event::{CrashPoint, Event, WriteEvent};
use crate::image::{Image, PAGE_BYTES};
use crate::{Rng, SECTOR_BYTES};

const SECTORS_PER_PAGE: usize = PAGE_BYTES / SECTOR_BYTES;

/// A write that no flush has made durable yet.
#[derive(Debug, Clone)]
pub struct PendingWrite {
    /// The point just before the write was issued.
    pub issued_at: CrashPoint,
    /// The write.
    pub write: WriteEvent,
    /// Whether it has completed (and waits for a flush) or is still in flight.
    pub completed: bool,
}

impl PendingWrite {
    /// Number of sectors.
    #[must_use]
    pub fn sectors_count(&self) -> usize {
        self.write.pages.len() * SECTORS_PER_PAGE
    }

    /// Its bytes, from the first to the end, exclusive.
    fn range(&self) -> (u64, u64) {
        (self.write.offset, self.write.offset + self.write.len_bytes())
    }

    /// Whether it touches `[start, end)`, in bytes.
    #[must_use]
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        let (first, last) = self.range();
        first < end && start < last
    }
}

/// Which sectors of a write reached the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectorSet(Vec<bool>);

impl SectorSet {
    /// The first `kept` of `count` sectors.
    #[must_use]
    pub fn prefix(count: usize, kept: usize) -> Self {
        Self((0..count).map(|i| i < kept).collect())
    }

    /// A seeded tear of a write of `count` sectors: cut at a point (either side kept), any subset, or one sector
    /// alone missing or there. Never all and never none, if `count` is at least 2.
    pub fn torn(count: usize, rng: &mut Rng) -> Self {
        let cut = 1 + rng.index(count.saturating_sub(1));
        let one = rng.index(count);
        let style = rng.below(5);
        let mut kept: Vec<bool> = (0..count)
            .map(|i| match style {
                0 => i < cut,
                1 => i >= cut,
                2 => i == one,
                3 => i != one,
                _ => rng.chance(0.5),
            })
            .collect();
        if count >= 2 && kept.iter().all(|k| *k == kept[0]) {
            kept[one] = !kept[one];
        }
        Self(kept)
    }

    /// Whether sector `i` is kept.
    #[must_use]
    pub fn has(&self, i: usize) -> bool {
        self.0.get(i).copied().unwrap_or(false)
    }
}

/// What becomes of a pending write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// All of it is on the medium.
    Keep,
    /// None of it is.
    Drop,
    /// Some of its sectors are. Of a discard: and they were taken after all writes in doubt, later ones of the same place
    /// too. A device owes nobody an order before the flush.
    Tear(SectorSet),
}

/// How the fates of all pending writes are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CrashPolicy {
    /// Everything issued is there: the mildest crash.
    KeepAll,
    /// Only what was flushed is there.
    DropAll,
    /// Each write for itself is torn with one probability, else kept with another, else dropped.
    Random {
        /// Probability of a tear, 0.0 to 1.0.
        tear: f64,
        /// Probability that an untorn write is kept.
        keep: f64,
    },
    /// The seed chooses among many regimes: the above, one write dropped, kept or torn apart from the rest, the
    /// writes in order up to a torn one, the newest without the older. The one to use by default.
    Seeded,
    /// Writes that touch `[start, end)` (bytes) are torn, everything else is kept: for superblocks and such.
    TearRange {
        /// First byte.
        start: u64,
        /// End, exclusive.
        end: u64,
    },
    /// The pending write with this number (0 is the oldest) is torn, the rest kept.
    TearOne {
        /// Which.
        index: usize,
    },
    /// Pending write `i` is kept if bit `i % 64` is set, dropped otherwise: for exhaustive enumeration.
    Subset {
        /// One bit a write.
        kept: u64,
    },
}

/// The state of a recording at one instant. Clones share their pages.
#[derive(Clone)]
pub struct CrashCutter {
    position: usize,
    durable: Image,
    /// Completed and not durable, in the order of completion.
    completed: VecDeque<Completed>,
    in_flight: Vec<PendingWrite>,
    /// Number of writes that have completed.
    completed_count: u64,
    /// Every flush under way.
    flushes: BTreeMap<u64, Flush>,
}

/// A completed write that no flush has made durable yet.
#[derive(Clone)]
struct Completed {
    /// The how manieth it was; a flush covers those below the count at its begin.
    number: u64,
    /// It is a page of which a failed flush has let go.
    let_go: bool,
    pending: PendingWrite,
}

/// A flush under way.
#[derive(Clone, Copy)]
struct Flush {
    /// Number of events before it.
    begun: usize,
    /// How many writes had completed by then.
    covers: u64,
}

impl CrashCutter {
    /// Starts from a device that holds `base`, all of it durable, at point 0.
    #[must_use]
    pub fn new(base: Image) -> Self {
        Self {
            position: 0,
            durable: base,
            completed: VecDeque::new(),
            in_flight: Vec::new(),
            completed_count: 0,
            flushes: BTreeMap::new(),
        }
    }

    /// Where it stands: the number of events fed.
    #[must_use]
    pub fn position(&self) -> CrashPoint {
        CrashPoint(self.position)
    }

    /// What is durable here: the image of [`CrashPolicy::DropAll`].
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// What is left when the process that wrote is killed at this instant and the machine goes on: nothing of what is in doubt has
    /// been flushed by whoever comes next, and of each write in flight as many pages from its front complete as `landed` says.
    #[must_use]
    pub fn killed(mut self, mut landed: impl FnMut(&WriteEvent) -> usize) -> Self {
        for mut pending in std::mem::take(&mut self.in_flight) {
            let count = landed(&pending.write).min(pending.write.pages.len());
            if count < pending.write.pages.len() {
                pending.write.pages = pending.write.pages[..count].into();
            }
            if count > 0 {
                self.complete(pending);
            }
        }
        self.flushes.clear();
        self
    }

    /// The writes in doubt, in the order in which images apply them: completed ones, then those in flight.
    pub fn pending(&self) -> impl Iterator<Item = &PendingWrite> {
        self.completed.iter().map(|write| &write.pending).chain(&self.in_flight)
    }

    /// How many writes are in doubt.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.completed.len() + self.in_flight.len()
    }

    /// Steps over the next event.
    pub fn feed(&mut self, event: &Event) {
        match event {
            Event::Write(write) => self.in_flight.push(PendingWrite {
                issued_at: CrashPoint(self.position),
                write: write.clone(),
                completed: false,
            }),
            Event::GroupDone { group } => {
                let done = self.in_flight.extract_if(.., |pending| pending.write.group == *group);
                for pending in done.collect::<Vec<_>>() {
                    self.complete(pending);
                }
            }
            Event::FlushBegin { flush } => {
                self.flushes.insert(*flush, Flush { begun: self.position, covers: self.completed_count });
            }
            Event::FlushDone { flush } => {
                // Another flush may have covered some of it meanwhile. A flush nobody began covers nothing.
                let covered = self.flushes.remove(flush).map_or(0, |flush| flush.covers);
                self.retire(covered);
            }
            Event::FlushFailed { flush } => {
                if let Some(failed) = self.flushes.remove(flush) {
                    self.let_go(failed);
                }
            }
        }
        self.position += 1;
    }

    fn complete(&mut self, pending: PendingWrite) {
        let pending = PendingWrite { completed: true, ..pending };
        self.completed.push_back(Completed { number: self.completed_count, let_go: false, pending });
        self.completed_count += 1;
    }

    /// Makes those below `covered` durable, but for what a failed flush has let go of: that is replaced only.
    fn retire(&mut self, covered: u64) {
        let mut let_go: VecDeque<Completed> = VecDeque::new();
        while self.completed.front().is_some_and(|write| write.number < covered || write.let_go) {
            let Some(write) = self.completed.pop_front() else { break };
            if write.let_go {
                let_go.push_back(write);
                continue;
            }
            apply(&mut self.durable, &write.pending, &Fate::Keep);
            let (start, end) = write.pending.range();
            let_go.retain(|older| !older.pending.overlaps(start, end));
        }
        let_go.append(&mut self.completed);
        self.completed = let_go;
    }

    /// A flush has failed: nobody makes durable what it should have covered, except one that had begun before.
    fn let_go(&mut self, failed: Flush) {
        let earlier = self.flushes.values().filter(|flush| flush.begun < failed.begun);
        let first = earlier.map(|flush| flush.covers).max().unwrap_or(0);
        for write in std::mem::take(&mut self.completed) {
            if write.let_go || !(first..failed.covers).contains(&write.number) {
                self.completed.push_back(write);
                continue;
            }
            // Page by page, since each may be replaced by itself.
            let offsets = (write.pending.write.offset..).step_by(PAGE_BYTES);
            for (offset, page) in offsets.zip(write.pending.write.pages.iter()) {
                let pages = [page.clone()].into();
                let event = WriteEvent { offset, pages, ..write.pending.write };
                let pending = PendingWrite { write: event, ..write.pending };
                self.completed.push_back(Completed { let_go: true, pending, ..write });
            }
        }
    }

    /// The image in which each pending write has the fate that `choose(index, write)` gives it.
    pub fn image_with(&self, mut choose: impl FnMut(usize, &PendingWrite) -> Fate) -> Image {
        let mut image = self.durable.clone();
        let mut late = Vec::new();
        for (index, pending) in self.pending().enumerate() {
            match choose(index, pending) {
                fate @ Fate::Tear(_) if pending.write.is_discard => late.push((pending, fate)),
                fate => apply(&mut image, pending, &fate),
            }
        }
        for (pending, fate) in late {
            apply(&mut image, pending, &fate);
        }
        image
    }

    /// An image that a power failure at this instant could leave.
    #[must_use]
    pub fn image(&self, rng: &mut Rng, policy: CrashPolicy) -> Image {
        let count = self.pending_count();
        match policy {
            CrashPolicy::KeepAll => self.image_with(|_, _| Fate::Keep),
            CrashPolicy::DropAll => self.durable.clone(),
            CrashPolicy::Random { tear, keep } => self.image_with(|_, pending| {
                if rng.chance(tear) {
                    torn(pending, rng)
                } else if rng.chance(keep) {
                    Fate::Keep
                } else {
                    Fate::Drop
                }
            }),
            CrashPolicy::TearRange { start, end } => {
                self.image_with(
                    |_, pending| {
                        if pending.overlaps(start, end) { torn(pending, rng) } else { Fate::Keep }
                    },
                )
            }
            CrashPolicy::TearOne { index } => {
                self.image_with(|i, pending| if i == index { torn(pending, rng) } else { Fate::Keep })
            }
            CrashPolicy::Subset { kept } => {
                self.image_with(|i, _| if kept >> (i % 64) & 1 == 1 { Fate::Keep } else { Fate::Drop })
            }
            CrashPolicy::Seeded => self.seeded_image(rng, count),
        }
    }

    fn seeded_image(&self, rng: &mut Rng, count: usize) -> Image {
        let one = rng.index(count);
        let regime = rng.below(12);
        match regime {
            0 => self.image(rng, CrashPolicy::KeepAll),
            1 => self.image(rng, CrashPolicy::DropAll),
            2 => self.image(rng, CrashPolicy::TearOne { index: one }),
            3 => self.image_with(|i, _| if i == one { Fate::Drop } else { Fate::Keep }),
            4 => self.image_with(|i, _| if i == one { Fate::Keep } else { Fate::Drop }),
            5 => self.image_with(|i, pending| if i == one { torn(pending, rng) } else { Fate::Drop }),
            // A device that writes in order and stopped in the middle of one.
            6 => self.image_with(|i, pending| match i.cmp(&one) {
                std::cmp::Ordering::Less => Fate::Keep,
                std::cmp::Ordering::Equal => torn(pending, rng),
                std::cmp::Ordering::Greater => Fate::Drop,
            }),
            // A device that writes the newest first.
            7 => self.image_with(|i, pending| match i.cmp(&one) {
                std::cmp::Ordering::Less => Fate::Drop,
                std::cmp::Ordering::Equal => torn(pending, rng),
                std::cmp::Ordering::Greater => Fate::Keep,
            }),
            8 => self.image(rng, CrashPolicy::Random { tear: 0.1, keep: 0.9 }),
            9 => self.image(rng, CrashPolicy::Random { tear: 0.1, keep: 0.1 }),
            10 => self.image(rng, CrashPolicy::Random { tear: 0.9, keep: 0.5 }),
            _ => self.image(rng, CrashPolicy::Random { tear: 0.3, keep: 0.5 }),
        }
    }
}

fn torn(pending: &PendingWrite, rng: &mut Rng) -> Fate {
    Fate::Tear(SectorSet::torn(pending.sectors_count(), rng))
}

fn apply(image: &mut Image, pending: &PendingWrite, fate: &Fate) {
    if *fate == Fate::Drop {
        return;
    }
    let first_page = pending.write.offset / PAGE_BYTES as u64;
    for (i, page) in pending.write.pages.iter().enumerate() {
        let index = first_page + i as u64;
        let has = |sector: usize| match fate {
            Fate::Keep => true,
            Fate::Drop => false,
            Fate::Tear(set) => set.has(i * SECTORS_PER_PAGE + sector),
        };
        let kept = (0..SECTORS_PER_PAGE).filter(|sector| has(*sector)).count();
        if kept == SECTORS_PER_PAGE {
            image.set_page(index, Arc::clone(page));
        } else if kept > 0 {
            let target = image.page_mut(index);
            for sector in (0..SECTORS_PER_PAGE).filter(|sector| has(*sector)) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                target[range.clone()].copy_from_slice(&page[range]);
            }
        }
    }
}
