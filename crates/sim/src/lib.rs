//! Simulated devices, time and chance, for tests and experiments.
//!
//! The centre is a recording of what a device was told ([`Event`]s: writes issued, groups completed, flushes
//! begun and done) and a [`CrashCutter`] that walks along it and gives, for any instant, an [`Image`] that a
//! power failure could have left. A recording comes from a [`RecordingDevice`] in memory or from the log
//! file of a [`LoggingDevice`] around a real one.
//!
//! The model of a device: a write is durable when a flush that began after the write's completion has
//! returned. Any other write may be there, be missing, or be there in some of its sectors of
//! [`SECTOR_BYTES`], each write for itself, whatever the order in which they were issued. A discard is a write of bytes
//! that nobody expects; until a flush covers it, it may also come after writes to the same place that were issued later.
//!
//! This crate knows nothing of pools or filesystems, and nothing that serves users depends on it.

mod clock;
mod cutter;
mod event;
mod faulty;
mod image;
mod log;
mod recording;
mod rng;

#[cfg(test)]
mod tests;

pub use clock::SimClock;
pub use cutter::{CrashCutter, CrashPolicy, Fate, PendingWrite, SectorSet};
pub use event::{CrashPoint, Event, Recording, WriteEvent};
pub use faulty::{Fault, FaultRule, FaultyDevice, Trigger};
pub use image::{Image, PAGE_BYTES, Page};
pub use log::{LogError, LogReader, LoggingDevice, read_log};
pub use recording::RecordingDevice;
pub use rng::Rng;

/// What a device writes as a whole or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;
