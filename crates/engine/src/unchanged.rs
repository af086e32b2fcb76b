//! Whether a pool that was opened for reading still is what it was then. Its lock says that it must be; but there are programs
//! that heed no lock, and flock(2) lets go of a shared lock for a moment while it is made exclusive.
//!
//! Compared is what any writer changes before, or together with, anything else: the superblock, and the end of the log. Nothing is
//! replayed and nothing is written.

use varve_format::superblock::Superblock;

use crate::journal::recovery::{self, Log};
use crate::pool::Pool;
use crate::problem::Judge;
use crate::{EngineError, Store};

/// Where a log ended when it was looked through.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// Whole batches, those of them that count, and the checksum of the last.
    batches: usize,
    keep: usize,
    last: u32,
    leftover: bool,
}

impl LogEnd {
    pub(crate) fn of(log: &Log, superblock: &Superblock) -> LogEnd {
        let last = log.batches.last().map_or(superblock.log_previous, |batch| batch.checksum);
        LogEnd { batches: log.batches.len(), keep: log.keep, last, leftover: log.leftover }
    }
}

impl Store {
    /// Of a pool that was opened for reading: whether nobody has written to it since. Reads the superblocks and the log, as
    /// opening does; an error means that it could not be opened now.
    pub fn is_unchanged(&self) -> Result<bool, EngineError> {
        let (pool, superblock, newer) = Pool::open(self.pool.devices.clone())?;
        newer.require_none()?;
        if pool.pool_id != self.pool.pool_id || superblock != *self.superblock.lock() {
            return Ok(false);
        }
        let log = recovery::read_log(&pool, &superblock, true, &mut Judge::Refuse)?;
        Ok(LogEnd::of(&log, &superblock) == self.log_end)
    }
}
