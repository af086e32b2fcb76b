//! The space behind reservations (fallocate): how much it is, and that nobody else gets it.
//!
//! Invariant: the subvolume's record says how many blocks the reserved extents of all files have together, in every
//! transaction that changes their number. In memory a [`Reservation`] of that many blocks is kept, and taken again when
//! the pool is opened. Data that is written to a reservation takes space of its own and gives this back when it is
//! logged; when there is no other space, it takes this.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use varve_engine::{Lsn, Reservation, Transaction};
use varve_format::record::subvolume::SubvolumeRecord;

use crate::Result;
use crate::core::{Core, Rounds};
use crate::table::subvolumes;

/// What logging data over a reserved block adds to the extents, in bytes of one entry: written in whatever order, a
/// reservation breaks up into pieces of a few blocks.
const ENTRY_BYTES: u64 = 24;

/// The space set aside.
#[derive(Default)]
pub(crate) struct ReservedSpace {
    purse: Mutex<Option<Reservation>>,
    /// There is less in it than is reserved.
    short: AtomicBool,
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

    /// Takes the space of all reservations again, when the pool has been opened. Where privileged work had gone into the
    /// protected part before, it is partly found there; where what is deleted takes it, that is reaped first, since nobody
    /// else may have what it leaves.
    pub(crate) fn set_reserved_aside(&self) -> Result<()> {
        let mut rounds = Rounds::default();
        loop {
            let missing = self.take_reserved()?;
            if missing == 0 {
                return Ok(());
            }
            if !rounds.are_left() || !self.reclaim(&mut rounds)? {
                // It was there when the pool was last in use. Others wait for it from here on as well.
                tracing::error!("space for {missing} reserved blocks is missing");
                return Ok(());
            }
        }
    }

    /// Takes what is missing of the reservations' space, as much as there is. Gives how many blocks are missing still.
    pub(crate) fn take_reserved(&self) -> Result<u64> {
        let missing = || {
            let stored = self.files.stored.lock();
            let purse = self.reserved.purse.lock();
            let held = purse.as_ref().map_or(0, Reservation::data_blocks);
            (stored.reserved_blocks.saturating_sub(held), purse)
        };
        let (wanted, purse) = missing();
        drop(purse);
        let mut space = match wanted {
            0 => None,
            // It may have to wait for a checkpoint; no lock is held meanwhile.
            _ => Some(self.store.reserve_again(wanted, ENTRY_BYTES)?),
        };
        let (wanted, mut purse) = missing();
        // What has become too much goes back.
        let space = space.as_mut().map(|space| self.split_blocks(space, wanted));
        let missing = wanted - space.as_ref().map_or(0, Reservation::data_blocks);
        self.reserved.short.store(missing > 0, Relaxed);
        if let Some(space) = space.filter(|space| space.data_blocks() > 0) {
            match &mut *purse {
                Some(purse) => self.store.merge(purse, space),
                none => *none = Some(space),
            }
        }
        Ok(missing)
    }

    /// Gives up what is set aside, as an opening does that finds no space for it.
    #[cfg(test)]
    pub(crate) fn forget_reserved(&self) {
        *self.reserved.purse.lock() = None;
    }

    /// Whether some of the reservations' space has not been found yet.
    pub(crate) fn reserved_is_short(&self) -> bool {
        self.reserved.short.load(Relaxed)
    }
}
