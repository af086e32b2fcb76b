//! The space behind reservations (fallocate): how much it is, and that nobody else gets it.
//!
//! Invariant: the subvolume's record says how many blocks the reserved extents of all files have together, in every
//! transaction that changes their number. In memory a [`Reservation`] of that many blocks is kept, and taken again when
//! the pool is opened. Data that is written to a reservation takes space of its own and gives this back when it is
//! logged; when there is no other space, it takes this.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, MutexGuard};
use varve_engine::version::Unreserved;
use varve_engine::{EngineError, Lsn, Reservation, Transaction};
use varve_format::record::subvolume::SubvolumeRecord;

use crate::core::{Core, Rounds};
use crate::table::subvolumes;
use crate::{FsError, Result};

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
        self.reserve_lacking(blocks, blocks)
    }

    /// The same for some of which `blocks` lack their block and `entries` what logging adds.
    pub(crate) fn reserve_lacking(&self, blocks: u64, entries: u64) -> Result<Reservation> {
        Ok(self.store.reserve(blocks, entries, ENTRY_BYTES)?)
    }

    /// The part of `space` that belongs to `blocks` reserved blocks.
    pub(crate) fn split_blocks(&self, space: &mut Reservation, blocks: u64) -> Reservation {
        self.store.split(space, blocks, blocks, ENTRY_BYTES)
    }

    /// Applies a transaction that ends reservations, `freed`; gives what was set aside for them.
    pub(crate) fn apply_freeing(
        &self,
        mut tx: Transaction,
        reservation: Option<&mut Reservation>,
        freed: Unreserved,
    ) -> Result<(Lsn, Option<Reservation>)> {
        let freed = freed.blocks;
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

    /// Applies a transaction that reserves as many blocks as `space` was set aside for, and ends reservations of `freed`
    /// blocks.
    pub(crate) fn apply_reserving(
        &self,
        mut tx: Transaction,
        space: Reservation,
        freed: Unreserved,
    ) -> Result<Lsn> {
        let freed = freed.blocks;
        let mut stored = self.files.stored.lock();
        let reserved_blocks =
            stored.reserved_blocks.saturating_add(space.data_blocks()).saturating_sub(freed);
        let record = SubvolumeRecord { reserved_blocks, ..stored.clone() };
        subvolumes::put_first(&mut tx, &record);
        let lsn = self.store.apply(tx, None)?;
        *stored = record;
        let mut purse = self.reserved.purse.lock();
        match &mut *purse {
            Some(purse) => self.store.merge(purse, space),
            none => *none = Some(space),
        }
        if freed > 0 {
            drop(purse.as_mut().map(|purse| self.split_blocks(purse, freed)));
        }
        Ok(lsn)
    }

    /// Takes the space of all reservations again, when the pool has been opened. Where privileged work had gone into the
    /// protected part before, it is found there. Where it is not all there, what is deleted is reaped first, since nobody
    /// else may have what it leaves; then it takes half of the protected part, and what is missing still is taken when there
    /// is space ([`Core::take_reserved`]).
    pub(crate) fn set_reserved_aside(&self) -> Result<()> {
        if self.take_all()? {
            return Ok(());
        }
        let mut rounds = Rounds::default();
        while self.take_reserved()? > 0 {
            match self.reclaim(&mut rounds) {
                Ok(true) => {}
                Ok(false) | Err(FsError::Engine(EngineError::NoSpace)) => break,
                Err(error) => return Err(error),
            }
        }
        let missing = if self.take_all()? { 0 } else { self.take_part(true)? };
        if missing > 0 {
            // It was there when the pool was last in use.
            tracing::error!("space for {missing} reserved blocks is missing");
        }
        Ok(())
    }

    /// Takes what is missing of the reservations' space, as much of it as is free. Gives how many blocks are missing still.
    pub(crate) fn take_reserved(&self) -> Result<u64> {
        self.take_part(false)
    }

    /// Takes all that is missing, or nothing.
    fn take_all(&self) -> Result<bool> {
        let (wanted, purse) = self.missing_reserved();
        drop(purse);
        // It may have to wait for a checkpoint; no lock is held meanwhile.
        let all = if wanted > 0 { self.store.reserve_again(wanted, wanted, ENTRY_BYTES)? } else { None };
        Ok(wanted == 0 || all.is_some_and(|all| self.add_reserved(all) == 0))
    }

    fn take_part(&self, squeeze: bool) -> Result<u64> {
        let (wanted, purse) = self.missing_reserved();
        drop(purse);
        Ok(self.add_reserved(self.store.reserve_part(wanted, ENTRY_BYTES, squeeze)?))
    }

    /// Adds `space` to what is set aside; what has become too much meanwhile goes back. Gives how many blocks are missing.
    fn add_reserved(&self, mut space: Reservation) -> u64 {
        let (wanted, mut purse) = self.missing_reserved();
        let space = self.split_blocks(&mut space, wanted);
        let missing = wanted - space.data_blocks();
        self.reserved.short.store(missing > 0, Relaxed);
        if space.data_blocks() > 0 {
            match &mut *purse {
                Some(purse) => self.store.merge(purse, space),
                none => *none = Some(space),
            }
        }
        missing
    }

    /// How many reserved blocks nothing is set aside for, and what is.
    fn missing_reserved(&self) -> (u64, MutexGuard<'_, Option<Reservation>>) {
        let stored = self.files.stored.lock();
        let purse = self.reserved.purse.lock();
        let held = purse.as_ref().map_or(0, Reservation::data_blocks);
        (stored.reserved_blocks.saturating_sub(held), purse)
    }

    /// Gives up what is set aside, as an opening does that finds no space for it.
    #[cfg(test)]
    pub(crate) fn forget_reserved(&self) {
        *self.reserved.purse.lock() = None;
        self.reserved.short.store(true, Relaxed);
    }

    /// Whether some of the reservations' space has not been found yet.
    pub(crate) fn reserved_is_short(&self) -> bool {
        self.reserved.short.load(Relaxed)
    }
}
