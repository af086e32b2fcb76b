//! How many inodes there are, for statfs.
//!
//! A counter in every transaction would be the hottest record of the pool, so it is kept in memory: the first change
//! after opening marks the stored number as unknown, closing stores it. After a crash the number is counted again in
//! the background (one scan); until then statfs shows the last stored one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::lock_api::ArcRwLockReadGuard;
use parking_lot::{Mutex, RawRwLock, RwLock};
use varve_engine::Transaction;
use varve_format::record::subvolume::SubvolumeRecord;

use crate::Result;
use crate::core::Core;
use crate::table::subvolumes;

/// For so long a count by scanning waits for its beginning.
const PATIENCE: Duration = Duration::from_millis(100);

/// The count of inodes.
pub(crate) struct FileCount {
    count: AtomicI64,
    known: AtomicBool,
    /// Held shared from a transaction that changes the count until the change is noted; held alone while a count by
    /// scanning starts.
    gate: Arc<RwLock<()>>,
    /// The subvolume's record as logged. Whoever changes it holds this until the change is logged.
    pub stored: Mutex<SubvolumeRecord>,
    stored_known: AtomicBool,
}

impl FileCount {
    /// Starts from what the pool stores.
    pub(crate) fn new(record: SubvolumeRecord) -> FileCount {
        FileCount {
            count: AtomicI64::new(record.files as i64),
            known: AtomicBool::new(record.files_known),
            stored_known: AtomicBool::new(record.files_known),
            gate: Arc::default(),
            stored: Mutex::new(record),
        }
    }

    /// The count, as far as known.
    pub(crate) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed).max(0) as u64
    }

    /// To be noted after the transaction that changed it, before the gate is let go.
    pub(crate) fn add(&self, difference: i64) {
        self.count.fetch_add(difference, Ordering::Relaxed);
    }
}

impl Core {
    /// To be held around a transaction that changes the count, and the note of it.
    pub(crate) fn counting(&self) -> Result<ArcRwLockReadGuard<RawRwLock, ()>> {
        self.first_count()?;
        Ok(self.files.gate.read_arc_recursive())
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

    /// Counts by scanning, if the number is not known.
    pub(crate) fn count_files(&self) -> Result<()> {
        if self.files.known.load(Ordering::Acquire) {
            return Ok(());
        }
        let (view, before) = {
            // Those who hold it may wait for each other's inodes, one after the other without an end: then it is tried again, for
            // the background has other things to do.
            let Some(_alone) = self.files.gate.try_write_for(PATIENCE) else { return Ok(()) };
            (self.store.view(), self.files.count.load(Ordering::Relaxed))
        };
        let counted = crate::table::inodes::count(&view)? as i64;
        self.files.add(counted - before);
        self.files.known.store(true, Ordering::Release);
        Ok(())
    }

    /// Stores the number, before a clean close.
    pub(crate) fn store_count(&self) -> Result<()> {
        let mut stored = self.files.stored.lock();
        if stored.files_known || !self.files.known.load(Ordering::Acquire) {
            return Ok(());
        }
        let record = SubvolumeRecord { files: self.files.get(), files_known: true, ..stored.clone() };
        self.store_subvolume(&record)?;
        *stored = record;
        Ok(())
    }
}
