//! The space behind reservations (fallocate): how much it is, and that nobody else gets it.
//!
//! Invariant: the subvolume's record says how many blocks the reserved extents of all files have together, in every
//! transaction that changes their number. In memory a [`Reservation`] of that many blocks is kept, and taken again when
//! the pool is opened. Data that is written to a reservation takes space of its own and gives this back when it is
//! logged; when there is no other space, it takes this.

use parking_lot::Mutex;
use varve_engine::{EngineError, Lsn, Reservation, Transaction};
use varve_format::record::subvolume::SubvolumeRecord;

use crate::Result;
use crate::core::Core;
use crate::table::subvolumes;

/// What logging data over a reserved block adds to the extents, in bytes of one entry: written in whatever order, a
/// reservation breaks up into pieces of a few blocks.
const ENTRY_BYTES: u64 = 24;

/// The space set aside.
#[derive(Default)]
pub(crate) struct ReservedSpace {
    purse: Mutex<Option<Reservation>>,
}

impl Core {
    /// Sets space aside for `blocks` reserved blocks.
    pub(crate) fn reserve_blocks(&self, blocks: u64) -> Result<Reservation> {
        Ok(self.store.reserve(blocks, blocks, ENTRY_BYTES)?)
    }

    /// The part of `space` that belongs to `blocks` reserved blocks.
    pub(crate) fn split_blocks(&self, space: &mut Reservation, blocks: u64) -> Reservation {
        self.store.split(space, blocks, blocks, ENTRY_BYTES)
    }

    /// Applies a transaction that ends reservations of `freed` blocks; gives what was set aside for them.
    pub(crate) fn apply_freeing(
        &self,
        mut tx: Transaction,
        reservation: Option<&mut Reservation>,
        freed: u64,
    ) -> Result<(Lsn, Option<Reservation>)> {
        if freed == 0 {
            return Ok((self.store.apply(tx, reservation)?, None));
        }
        let mut stored = self.files.stored.lock();
        let reserved_blocks = stored.reserved_blocks.saturating_sub(freed);
        let record = SubvolumeRecord { reserved_blocks, ..stored.clone() };
        subvolumes::put_first(&mut tx, &record);
        let lsn = self.store.apply(tx, reservation)?;
        *stored = record;
        let mut purse = self.reserved.purse.lock();
        let part = purse.as_mut().map(|purse| self.split_blocks(purse, freed));
        if reserved_blocks == 0 {
            *purse = None;
        }
        Ok((lsn, part))
    }

    /// Applies a transaction that reserves as many blocks as `space` was set aside for.
    pub(crate) fn apply_reserving(&self, mut tx: Transaction, space: Reservation) -> Result<Lsn> {
        let mut stored = self.files.stored.lock();
        let reserved_blocks = stored.reserved_blocks + space.data_blocks();
        let record = SubvolumeRecord { reserved_blocks, ..stored.clone() };
        subvolumes::put_first(&mut tx, &record);
        let lsn = self.store.apply(tx, None)?;
        *stored = record;
        match &mut *self.reserved.purse.lock() {
            Some(purse) => self.store.merge(purse, space),
            none => *none = Some(space),
        }
        Ok(lsn)
    }

    /// Takes the space of all reservations again, when the pool has been opened. Where privileged work had gone into
    /// the protected part before, it is partly found there.
    pub(crate) fn set_reserved_aside(&self) -> Result<()> {
        let wanted = self.files.stored.lock().reserved_blocks;
        let mut blocks = wanted;
        while blocks > 0 {
            match self.store.reserve_again(blocks, blocks, ENTRY_BYTES) {
                Ok(space) => {
                    *self.reserved.purse.lock() = Some(space);
                    break;
                }
                Err(EngineError::NoSpace) => blocks /= 2,
                Err(error) => return Err(error.into()),
            }
        }
        if blocks < wanted {
            // It was there when the pool was last in use: only a damaged pool gets here.
            tracing::error!("{wanted} blocks are reserved and {blocks} could be set aside");
        }
        Ok(())
    }
}
