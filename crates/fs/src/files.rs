//! How many inodes there are, for statfs.
//!
//! A counter in every transaction would be the hottest record of the pool, so it is kept in memory: the first change
//! after opening marks the stored number as unknown, closing stores it. After a crash the number is counted again in
//! the background, some inodes at a time, each time in a view of its own, so that what is freed meanwhile is free and the
//! background's other work goes on, also where the pool is open for reading only. Until then statfs shows the last stored one. Closing does not wait for a long count:
//! the next opening begins a new one.
//!
//! A change of an inode that has been counted changes the count so far. Any other is counted when its turn comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::lock_api::ArcRwLockReadGuard;
use parking_lot::{Mutex, RawRwLock, RwLock};
use varve_engine::{EngineError, Transaction};
use varve_format::record::subvolume::SubvolumeRecord;

use crate::Result;
use crate::core::Core;
use crate::subvolume::enter;
use crate::table::inodes::{self, Place};
use crate::table::subvolumes;

/// For so long a count by scanning waits for its beginning.
const PATIENCE: Duration = Duration::from_millis(100);
/// Records that are looked at in one view.
const RECORDS_PER_PIECE: usize = 1 << 14;
/// Such pieces that are counted before a clean close.
const PIECES_AT_CLOSE: u32 = 4;
/// Changes that are noted while a piece is counted; with more it is counted again.
const MEANWHILE_MAX: usize = 4 * RECORDS_PER_PIECE;
/// Rounds of the background in which a device that failed is left alone, at first and at most: seconds and an hour.
const ROUNDS_LEFT_ALONE: (u32, u32) = (20, 7200);

/// The count of inodes.
pub struct FileCount {
    count: AtomicI64,
    known: AtomicBool,
    /// Held while some inodes are counted.
    counting: Mutex<()>,
    scan: Mutex<Scan>,
    /// Held shared from a transaction that changes the count until the change is noted; held alone while a count by
    /// scanning starts.
    gate: Arc<RwLock<()>>,
    /// The subvolume's record as logged. Whoever changes it holds this until the change is logged.
    pub stored: Mutex<SubvolumeRecord>,
    stored_known: AtomicBool,
}

/// How far a count has come.
#[derive(Default)]
struct Scan {
    /// What lies in front of it has been counted, with all changes that have been noted.
    upto: Place,
    counted: i64,
    /// Changes from there on since the view was taken in which a piece is being counted. None: no piece is, or there
    /// were too many.
    meanwhile: Option<Vec<(Place, i64)>>,
    /// Records are damaged: there is no number before the next opening.
    given_up: bool,
    /// A device failed: rounds in which it is left alone, and how many of them it was the last time.
    left_alone: u32,
    left_alone_last: u32,
}

impl Scan {
    fn note(&mut self, place: Place, difference: i64) {
        if place < self.upto {
            self.counted += difference;
        } else if let Some(meanwhile) = &mut self.meanwhile {
            if meanwhile.len() < MEANWHILE_MAX {
                meanwhile.push((place, difference));
            } else {
                self.meanwhile = None;
            }
        }
    }

    /// A view is being taken in which the next piece is counted. Gives where it begins.
    fn begin(&mut self) -> Place {
        self.meanwhile = Some(Vec::new());
        self.upto
    }

    /// So many records lie in front of `next`, or in all that there is. Gives the number, if that is the end.
    fn end(&mut self, records: u64, next: Option<Place>) -> Option<i64> {
        let meanwhile = self.meanwhile.take()?;
        let before = |place: Place| next.is_none_or(|next| place < next);
        let changes =
            meanwhile.into_iter().filter(|(place, _)| before(*place)).map(|(_, difference)| difference);
        self.counted += records as i64 + changes.sum::<i64>();
        (self.left_alone, self.left_alone_last) = (0, 0);
        match next {
            Some(next) => self.upto = next,
            None => return Some(self.counted),
        }
        None
    }

    /// What is there cannot be read.
    fn fail(&mut self, error: &EngineError) {
        let text = "the inodes cannot be counted";
        if error.may_pass() {
            let (first, most) = ROUNDS_LEFT_ALONE;
            self.left_alone_last = (2 * self.left_alone_last).clamp(first, most);
            self.left_alone = self.left_alone_last;
            tracing::error!("{text} now: {error}; it is tried again");
        } else {
            self.given_up = true;
            tracing::error!(
                "{text}: {error}; statfs shows about how many there are, `varve check` says what is damaged"
            );
        }
    }
}

impl FileCount {
    /// Starts from what the pool stores.
    pub(crate) fn new(record: SubvolumeRecord) -> FileCount {
        FileCount {
            count: AtomicI64::new(record.files as i64),
            known: AtomicBool::new(record.files_known),
            counting: Mutex::default(),
            scan: Mutex::default(),
            stored_known: AtomicBool::new(record.files_known),
            gate: Arc::default(),
            stored: Mutex::new(record),
        }
    }

    /// The count, as far as known.
    pub(crate) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed).max(0) as u64
    }

    /// That the records of the inode at `place` have become so many more. To be noted after the transaction that changed
    /// it, before the gate is let go.
    pub(crate) fn add(&self, place: Place, difference: i64) {
        if !self.is_known() {
            let mut scan = self.scan.lock();
            if !self.is_known() {
                scan.note(place, difference);
                self.count.fetch_add(difference, Ordering::Relaxed);
                return;
            }
        }
        self.count.fetch_add(difference, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }
}

impl Core {
    /// To be held around a transaction that changes the count, and the note of it.
    pub fn counting(&self) -> Result<ArcRwLockReadGuard<RawRwLock, ()>> {
        self.first_count()?;
        Ok(enter(&self.files.gate))
    }

    /// The same for who holds neither this nor an inode: behind whoever waits to count.
    pub(crate) fn counting_first(&self) -> Result<ArcRwLockReadGuard<RawRwLock, ()>> {
        self.first_count()?;
        Ok(self.files.gate.read_arc())
    }

    /// The stored number is not known from the first change on.
    fn first_count(&self) -> Result<()> {
        if self.files.stored_known.load(Ordering::Acquire) {
            let mut stored = self.files.stored.lock();
            if stored.files_known {
                let record = SubvolumeRecord { files_known: false, ..stored.clone() };
                self.store_subvolume(&record)?;
                *stored = record;
                self.files.stored_known.store(false, Ordering::Release);
            }
        }
        Ok(())
    }

    fn store_subvolume(&self, record: &SubvolumeRecord) -> Result<()> {
        let mut tx = Transaction::new();
        subvolumes::put_first(&mut tx, record);
        // So that a full pool can always be deleted from.
        tx.privileged();
        self.apply(tx)?;
        Ok(())
    }

    /// Counts some more inodes, if their number is not known. In the background a few at a time.
    pub fn count_files(&self, all: bool) -> Result<()> {
        self.count_pieces(if all { u32::MAX } else { 1 }, RECORDS_PER_PIECE)
    }

    /// The same for so many pieces at most.
    pub fn count_pieces(&self, pieces: u32, records: usize) -> Result<()> {
        if self.files.is_known() {
            return Ok(());
        }
        let _counting = self.files.counting.lock();
        {
            let mut scan = self.files.scan.lock();
            scan.left_alone = scan.left_alone.saturating_sub(1);
            if scan.given_up || scan.left_alone > 0 {
                return Ok(());
            }
        }
        for _ in 0..pieces {
            if !self.count_piece(records)? {
                break;
            }
        }
        Ok(())
    }

    /// False: there is nothing more to count, or not now.
    fn count_piece(&self, records: usize) -> Result<bool> {
        let files = &self.files;
        if files.is_known() {
            return Ok(false);
        }
        let (view, from) = {
            // Those who hold it may wait for each other's inodes, one after the other without an end: then it is tried again, for
            // the background has other things to do.
            let Some(_alone) = files.gate.try_write_for(PATIENCE) else { return Ok(false) };
            (self.store.view(), files.scan.lock().begin())
        };
        let piece = inodes::count_some(&view, &from, records);
        drop(view);
        let mut scan = files.scan.lock();
        match piece {
            Ok((records, next)) => {
                let Some(counted) = scan.end(records, next) else { return Ok(true) };
                files.count.store(counted, Ordering::Relaxed);
                files.known.store(true, Ordering::Release);
                Ok(false)
            }
            Err(error) => {
                scan.meanwhile = None;
                if !error.is_damage() {
                    return Err(error.into());
                }
                scan.fail(&error);
                Ok(false)
            }
        }
    }

    /// Stores the number, before a clean close, or about how many there are if counting them takes too long.
    pub(crate) fn store_count(&self) -> Result<()> {
        self.count_pieces(PIECES_AT_CLOSE, RECORDS_PER_PIECE)?;
        let mut stored = self.files.stored.lock();
        if stored.files_known {
            return Ok(());
        }
        let (files, files_known) = (self.files.get(), self.files.is_known());
        let record = SubvolumeRecord { files, files_known, ..stored.clone() };
        if record != *stored {
            self.store_subvolume(&record)?;
            *stored = record;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use varve_sim::Rng;

    use super::*;

    // Goal: each record is counted once, whether it comes or goes before, while or after its place is counted. Method: by seed, changes
    // before and during each piece of a model, whose view is a copy; places with several records; a piece that fails now and then.
    #[test]
    fn a_scan_counts_each_record_once() {
        for seed in 0..2_000 {
            let (mut rng, mut scan, mut model) =
                (Rng::new(seed), Scan::default(), BTreeMap::<Place, i64>::new());
            let change = |rng: &mut Rng, scan: &mut Scan, model: &mut BTreeMap<Place, i64>| {
                for _ in 0..rng.below(6) {
                    let place = [rng.below(24) as u8; 16];
                    let records = model.entry(place).or_default();
                    let difference = if *records > 0 && rng.below(2) == 0 { -1 } else { 1 };
                    *records += difference;
                    scan.note(place, difference);
                }
            };
            let counted = loop {
                change(&mut rng, &mut scan, &mut model);
                let (view, from) = (model.clone(), scan.begin());
                change(&mut rng, &mut scan, &mut model);
                if rng.below(8) == 0 {
                    scan.meanwhile = None;
                    continue;
                }
                let mut places = view.range(from..);
                let records =
                    places.by_ref().take(1 + rng.below(3) as usize).map(|(_, records)| records).sum::<i64>();
                if let Some(counted) = scan.end(records as u64, places.next().map(|(place, _)| *place)) {
                    break counted;
                }
            };
            assert_eq!(counted, model.values().sum::<i64>(), "seed {seed}");
        }
    }

    // Goal: what is noted while a piece is counted is bounded, and a piece with more is counted again. Method: one change too many.
    #[test]
    fn a_piece_with_too_many_changes_is_counted_again() {
        let mut scan = Scan::default();
        let from = scan.begin();
        (0..=MEANWHILE_MAX).for_each(|_| scan.note([1; 16], 1));
        assert_eq!((scan.end(7, None), scan.begin()), (None, from));
        assert_eq!(scan.end(MEANWHILE_MAX as u64 + 8, None), Some(MEANWHILE_MAX as i64 + 8));
    }
}
