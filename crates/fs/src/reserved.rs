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
pub struct ReservedSpace {
    aside: Mutex<Aside>,
    /// There is less in it than is reserved.
    short: AtomicBool,
}

/// What is set aside for all reservations: their blocks, and the room for the entries that writing there may add.
///
/// A reserved extent of n blocks adds n - 1 entries at most: each of its blocks one, and its own is there already. A write into the
/// middle of one adds two (its own, and the other end of what it cuts in two), after which two fewer are to come: one for the block, and
/// one for the extent there is more. The room for the second stays here until [`Core::pay_back`] lets go of as much of it as nodes have
/// grown beyond what there was for them. Given back as it is logged, it would be somebody else's when the next node splits.
#[derive(Default)]
struct Aside {
    space: Option<Reservation>,
    /// How many reserved extents there are, as far as it is known: those that have begun since the pool was opened, less those that
    /// have ended.
    extents: u64,
}

impl Aside {
    fn blocks(&self) -> u64 {
        self.space.as_ref().map_or(0, Reservation::data_blocks)
    }

    /// How many of `freed` blocks the others do not lack, of which there are `reserved`.
    fn over(&self, freed: u64, reserved: u64) -> u64 {
        self.blocks().saturating_sub(reserved).min(freed)
    }
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

    /// Applies a transaction with which reservations end. What was set aside for these blocks goes to those that lack theirs, then to
    /// everybody.
    pub(crate) fn apply_freeing(
        &self,
        tx: Transaction,
        reservation: Option<&mut Reservation>,
        freed: Unreserved,
    ) -> Result<Lsn> {
        Ok(self.end_reserved(tx, reservation, freed, |aside, after| aside.over(freed.blocks, after))?.0)
    }

    /// The same; gives what was set aside for these blocks, as far as there was any, to a caller who sets it aside again.
    pub(crate) fn apply_moving(&self, tx: Transaction, freed: Unreserved) -> Result<Option<Reservation>> {
        Ok(self.end_reserved(tx, None, freed, |_, _| freed.blocks)?.1)
    }

    /// The same for a caller who spends it; refused, and nothing has changed, where less is set aside than would be spent.
    pub(crate) fn apply_spending(&self, tx: Transaction, freed: Unreserved) -> Result<Option<Reservation>> {
        let stored = self.files.stored.lock();
        if self.reserved_aside() < freed.blocks {
            return Err(EngineError::NoSpace.into());
        }
        // Nothing is taken out of it without the lock that is held.
        Ok(self.end_reserved_in(stored, tx, None, freed, |_, _| freed.blocks)?.1)
    }

    /// `taken`: how many blocks are taken out of what is set aside, when so many are reserved.
    fn end_reserved(
        &self,
        tx: Transaction,
        reservation: Option<&mut Reservation>,
        freed: Unreserved,
        taken: impl FnOnce(&Aside, u64) -> u64,
    ) -> Result<(Lsn, Option<Reservation>)> {
        if freed == Unreserved::default() {
            return Ok((self.store.apply(tx, reservation)?, None));
        }
        self.end_reserved_in(self.files.stored.lock(), tx, reservation, freed, taken)
    }

    fn end_reserved_in(
        &self,
        mut stored: MutexGuard<'_, SubvolumeRecord>,
        mut tx: Transaction,
        reservation: Option<&mut Reservation>,
        freed: Unreserved,
        taken: impl FnOnce(&Aside, u64) -> u64,
    ) -> Result<(Lsn, Option<Reservation>)> {
        let reserved_blocks = stored.reserved_blocks.saturating_sub(freed.blocks);
        let record = SubvolumeRecord { reserved_blocks, ..stored.clone() };
        if freed.blocks > 0 {
            subvolumes::put_first(&mut tx, &record);
        }
        let lsn = self.store.apply(tx, reservation)?;
        *stored = record;
        let mut aside = self.reserved.aside.lock();
        aside.extents = aside.extents.saturating_add_signed(freed.extents);
        let taken = taken(&aside, reserved_blocks);
        let space = aside.space.as_mut().filter(|_| freed.blocks > 0);
        let part = space.map(|space| self.store.split_above(space, taken, reserved_blocks, ENTRY_BYTES));
        if reserved_blocks == 0 {
            *aside = Aside::default();
        }
        self.settle_room(&mut aside, reserved_blocks);
        Ok((lsn, part))
    }

    /// Applies a transaction that reserves as many blocks as `space` was set aside for, and ends reservations: `freed`, whose extents
    /// count those that begin, too.
    pub(crate) fn apply_reserving(
        &self,
        mut tx: Transaction,
        space: Reservation,
        freed: Unreserved,
    ) -> Result<Lsn> {
        let mut stored = self.files.stored.lock();
        let reserved_blocks =
            stored.reserved_blocks.saturating_add(space.data_blocks()).saturating_sub(freed.blocks);
        let record = SubvolumeRecord { reserved_blocks, ..stored.clone() };
        subvolumes::put_first(&mut tx, &record);
        let lsn = self.store.apply(tx, None)?;
        *stored = record;
        let mut aside = self.reserved.aside.lock();
        aside.extents = aside.extents.saturating_add_signed(freed.extents);
        match &mut aside.space {
            Some(mine) => self.store.merge(mine, space),
            none => *none = Some(space),
        }
        let over = aside.over(freed.blocks, reserved_blocks);
        if freed.blocks > 0
            && let Some(mine) = &mut aside.space
        {
            drop(self.store.split_above(mine, over, reserved_blocks, ENTRY_BYTES));
        }
        // There may be fewer extents than before: where it joins some, it needs more room than it has brought.
        self.settle_room(&mut aside, reserved_blocks);
        Ok(lsn)
    }

    /// Pays for what logging has taken of the protected part out of the room that no reserved block needs any more, and finds what
    /// is missing of the room for the others, as far as it is free.
    pub(crate) fn pay_back(&self) {
        let stored = self.files.stored.lock();
        let mut aside = self.reserved.aside.lock();
        self.settle_room(&mut aside, stored.reserved_blocks);
    }

    fn settle_room(&self, aside: &mut Aside, reserved_blocks: u64) {
        let entries = reserved_blocks.saturating_sub(aside.extents);
        if let Some(space) = &mut aside.space {
            self.store.pay_back(space, entries, ENTRY_BYTES);
            // Not before their blocks are there.
            if space.data_blocks() >= reserved_blocks {
                self.store.add_room(space, entries, ENTRY_BYTES);
            }
        }
    }

    /// Takes the space of all reservations again, when the pool has been opened. Where privileged work had gone into the
    /// protected part before, it is found there. Where it is not all there, what is deleted is reaped first, since nobody
    /// else may have what it leaves; then it takes half of the protected part, and what is missing still is taken when there
    /// is space ([`Core::take_reserved`]).
    pub fn set_reserved_aside(&self) -> Result<()> {
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
    pub fn take_reserved(&self) -> Result<u64> {
        self.take_part(false)
    }

    /// Takes all that is missing, or nothing.
    fn take_all(&self) -> Result<bool> {
        let (wanted, aside) = self.missing_reserved();
        drop(aside);
        // It may have to wait for a checkpoint; no lock is held meanwhile. Of the room for entries much may have been used by those that
        // are there: as much as is free will do.
        let all = if wanted > 0 { self.store.reserve_again(wanted, 0, ENTRY_BYTES)? } else { None };
        Ok(wanted == 0 || all.is_some_and(|all| self.add_reserved(all) == 0))
    }

    fn take_part(&self, squeeze: bool) -> Result<u64> {
        let (wanted, aside) = self.missing_reserved();
        drop(aside);
        Ok(self.add_reserved(self.store.reserve_part(wanted, squeeze)?))
    }

    /// Adds `space` to what is set aside; what has become too much meanwhile goes back. Gives how many blocks are missing.
    fn add_reserved(&self, mut space: Reservation) -> u64 {
        let (wanted, mut aside) = self.missing_reserved();
        let reserved_blocks = aside.blocks() + wanted;
        let space = self.store.split(&mut space, wanted, 0, ENTRY_BYTES);
        let missing = wanted - space.data_blocks();
        if space.data_blocks() > 0 {
            match &mut aside.space {
                Some(mine) => self.store.merge(mine, space),
                none => *none = Some(space),
            }
        }
        self.settle_room(&mut aside, reserved_blocks);
        self.reserved.short.store(missing > 0, Relaxed);
        missing
    }

    /// How many blocks are set aside.
    pub(crate) fn reserved_aside(&self) -> u64 {
        self.reserved.aside.lock().blocks()
    }

    /// How many reserved blocks nothing is set aside for, and what is.
    fn missing_reserved(&self) -> (u64, MutexGuard<'_, Aside>) {
        let stored = self.files.stored.lock();
        let aside = self.reserved.aside.lock();
        (stored.reserved_blocks.saturating_sub(aside.blocks()), aside)
    }

    /// Gives up what is set aside, as an opening does that finds no space for it.
    #[cfg(feature = "internals")]
    pub fn forget_reserved(&self) {
        *self.reserved.aside.lock() = Aside::default();
        self.reserved.short.store(true, Relaxed);
    }

    /// How much of it is missing.
    #[cfg(feature = "internals")]
    pub fn missing_of_reserved(&self) -> u64 {
        self.missing_reserved().0
    }

    /// Whether some of the reservations' space has not been found yet.
    pub fn reserved_is_short(&self) -> bool {
        self.reserved.short.load(Relaxed)
    }
}
