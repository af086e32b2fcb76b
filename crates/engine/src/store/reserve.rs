//! Space set aside before it is needed, so that what has been accepted can be logged.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use varve_device::Stopwatch;
use varve_format::{BLOCK_BYTES, PoolAddr, Run};

use super::{Result, Store};
use crate::EngineError;
use crate::core::{Core, Purse};
use crate::space::Urgency;

/// What is to be set aside.
#[derive(Clone, Copy, Default, Debug)]
pub struct Wanted {
    /// Blocks of data.
    pub data_blocks: u64,
    /// Entries that logging them adds to the trees, and bytes of one at most (key and value together).
    pub entries: u64,
    /// See above.
    pub entry_bytes: u64,
    /// Nodes that these entries divide at most, beyond what so many bytes make on average: one may land in a full node.
    pub splits: u64,
}

impl Wanted {
    fn purse(&self, copies: u64) -> Purse {
        // Nodes are at least half full in the long run.
        let entry = self.entry_bytes + varve_format::node::ENTRY_OVERHEAD_BYTES as u64;
        // What a damaged record asks for may be more than there is of anything: it is never there.
        Purse {
            data: self.data_blocks,
            metadata_bytes: self.entries.saturating_mul(entry * 2 * copies),
            floating: 0,
            splits: self.splits.saturating_mul(copies),
        }
    }
}

/// Space set aside for writes that have been accepted and not yet logged. What is left goes back when it is dropped.
pub struct Reservation {
    core: Arc<Mutex<Core>>,
    pub(super) purse: Purse,
    pub(super) allocated: u64,
}

impl Reservation {
    /// Blocks of data it holds.
    pub fn data_blocks(&self) -> u64 {
        self.purse.data
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let blocks = self.purse.blocks();
        if blocks > 0 {
            let space = &mut self.core.lock().space;
            space.open -= blocks;
            space.floating -= self.purse.floating;
        }
    }
}

impl Store {
    /// Sets aside `data_blocks` blocks of data, and what logging `entries` entries of up to `entry_bytes` bytes
    /// (key and value together) will add to the trees. Tries commit, checkpoint and once more before it refuses.
    pub fn reserve(&self, data_blocks: u64, entries: u64, entry_bytes: u64) -> Result<Reservation> {
        self.reserve_for(Wanted { data_blocks, entries, entry_bytes, splits: 0 })
    }

    /// The same, with nodes.
    pub fn reserve_for(&self, wanted: Wanted) -> Result<Reservation> {
        let latency = &self.counters.reserve_latency;
        latency.time(|| {
            self.check_writable()?;
            for attempt in 0..2 {
                if let Some(all) = self.set_aside(Urgency::Ordinary, wanted) {
                    return Ok(all);
                }
                if attempt == 0 {
                    self.reclaim()?;
                }
            }
            self.counters.no_space.fetch_add(1, Relaxed);
            Err(EngineError::NoSpace)
        })
    }

    /// As [`Store::reserve`], for what had been set aside before, when the pool was last in use or for what was logged in part
    /// meanwhile: privileged work may have gone into the protected part then, so that it is found there again. `None`: it is not all
    /// there.
    pub fn reserve_again(
        &self,
        data_blocks: u64,
        entries: u64,
        entry_bytes: u64,
    ) -> Result<Option<Reservation>> {
        self.check_writable()?;
        let wanted = Wanted { data_blocks, entries, entry_bytes, splits: 0 };
        let all = || self.set_aside(Urgency::Privileged, wanted);
        if let Some(all) = all() {
            return Ok(Some(all));
        }
        self.reclaim()?;
        Ok(all())
    }

    /// As [`Store::reserve`], for data that takes the place of as much that nobody else sees ([`crate::version::gives_back`]), from the
    /// protected reserve, which is larger by what may float at a time (section 7's Kfloat). It is there again when the data is logged
    /// and that is durable; not all of it if it `grows`. Never waits. `None`: it is not there at once.
    pub fn reserve_float(&self, wanted: Wanted, grows: bool) -> Result<Option<Reservation>> {
        self.check_writable()?;
        let mut core = self.core.lock();
        let floating = core.space.floating.saturating_add(wanted.data_blocks);
        let urgency = if grows { Urgency::Growing } else { Urgency::Floating };
        let mut purse = wanted.purse(core.space.copies);
        if floating > core.space.float || !core.space.fits(purse.blocks(), urgency) {
            return Ok(None);
        }
        purse.floating = wanted.data_blocks;
        (core.space.open, core.space.floating) = (core.space.open + purse.blocks(), floating);
        Ok(Some(Reservation { core: self.core.clone(), purse, allocated: 0 }))
    }

    /// How many blocks of data [`Store::reserve_float`] gives at most, to all together.
    pub fn float_blocks(&self) -> u64 {
        self.core.lock().space.float
    }

    /// Part of [`Store::reserve_again`]: as many blocks of data as are there at once, with `squeeze` in half of the protected part too.
    /// The other half is for what deletes, and for logging what has been accepted.
    pub fn reserve_part(&self, data_blocks: u64, squeeze: bool) -> Result<Reservation> {
        self.check_writable()?;
        let mut core = self.core.lock();
        let limit = if squeeze { -(core.space.protected as i64) / 2 } else { 0 };
        let there = u64::try_from(core.space.available() - limit).unwrap_or(0);
        let purse = Purse { data: data_blocks.min(there), ..Purse::default() };
        core.space.open += purse.blocks();
        Ok(Reservation { core: self.core.clone(), purse, allocated: 0 })
    }

    /// Adds to `reservation` what it lacks of the room for `entries` entries of up to `entry_bytes` bytes, as far as that is free, or
    /// will be by the next checkpoint; of the protected part it takes a quarter at most meanwhile.
    pub fn add_room(&self, reservation: &mut Reservation, entries: u64, entry_bytes: u64) {
        let mut core = self.core.lock();
        let wanted = purse(0, entries, entry_bytes, core.space.copies).metadata_bytes;
        let space = &core.space;
        // What somebody who reads keeps back may take as long as he likes.
        let held = if self.readers.keep_back() { 0 } else { space.held };
        let comes_back = held + core.replaced.len() as u64 * space.copies;
        let there = space.available() + comes_back.min((space.protected - space.float) / 4) as i64;
        let there = u64::try_from(there).unwrap_or(0).saturating_mul(BLOCK_BYTES as u64);
        let mine = &mut reservation.purse;
        let before = mine.blocks();
        let upto = mine.metadata_bytes.saturating_add(there).min(wanted);
        mine.metadata_bytes = mine.metadata_bytes.max(upto);
        core.space.open += mine.blocks() - before;
    }

    /// Gives back of the room in `reservation` what is above that for `entries` entries of up to `entry_bytes` bytes, in whole blocks,
    /// as far as more of the protected part is in use than the next checkpoint brings back: whoever holds room for entries that
    /// others log in small pieces pays for the nodes those have added, and nobody else gets what is left.
    pub fn pay_back(&self, reservation: &mut Reservation, entries: u64, entry_bytes: u64) {
        let mut core = self.core.lock();
        let space = &core.space;
        let comes_back = space.held + space.frozen + core.replaced.len() as u64 * space.copies;
        // And with what floats: it gives as much back when it is logged.
        let owed = (space.available() + (comes_back + space.floating) as i64).min(0).unsigned_abs();
        let kept = purse(0, entries, entry_bytes, core.space.copies).metadata_bytes;
        let mine = &mut reservation.purse;
        let over = mine.metadata_bytes.saturating_sub(kept) / BLOCK_BYTES as u64;
        let paid = over.min(owed);
        mine.metadata_bytes -= paid * BLOCK_BYTES as u64;
        core.space.open -= paid;
    }

    /// Sets this aside if it is there at once.
    fn set_aside(&self, urgency: Urgency, wanted: Wanted) -> Option<Reservation> {
        let mut core = self.core.lock();
        let purse = wanted.purse(core.space.copies);
        if !core.space.fits(purse.blocks(), urgency) {
            return None;
        }
        core.space.open += purse.blocks();
        Some(Reservation { core: self.core.clone(), purse, allocated: 0 })
    }

    /// As [`Store::reserve_for`], on top of `reservation`, but never waits: false, and nothing has changed, if the space is
    /// not there at once.
    pub fn reserve_more(&self, reservation: &mut Option<Reservation>, wanted: Wanted) -> Result<bool> {
        self.check_writable()?;
        let begun = Stopwatch::start();
        let mut core = self.core.lock();
        let more = wanted.purse(core.space.copies);
        let mine = reservation.as_ref().map_or(Purse::default(), |r| r.purse);
        // What is never there stays so.
        let sum = Purse {
            data: mine.data.saturating_add(more.data),
            metadata_bytes: mine.metadata_bytes.saturating_add(more.metadata_bytes),
            splits: mine.splits.saturating_add(more.splits),
            ..mine
        };
        let blocks = sum.blocks() - mine.blocks();
        if !core.space.fits(blocks, Urgency::Ordinary) {
            return Ok(false);
        }
        core.space.open += blocks;
        match reservation {
            Some(reservation) => reservation.purse = sum,
            none => *none = Some(Reservation { core: self.core.clone(), purse: sum, allocated: 0 }),
        }
        drop(core);
        self.counters.reserve_latency.record(begun.elapsed());
        Ok(true)
    }

    /// Adds `other` to `reservation`.
    pub fn merge(&self, reservation: &mut Reservation, mut other: Reservation) {
        let mut core = self.core.lock();
        let before = reservation.purse.blocks() + other.purse.blocks();
        reservation.purse.data += other.purse.data;
        reservation.purse.metadata_bytes += other.purse.metadata_bytes;
        reservation.purse.floating += other.purse.floating;
        reservation.purse.splits += other.purse.splits;
        reservation.allocated += other.allocated;
        other.purse = Purse::default();
        core.space.open -= before - reservation.purse.blocks();
    }

    /// Takes out of `reservation` what [`Store::reserve`] would have set aside, as far as it is there.
    pub fn split(
        &self,
        reservation: &mut Reservation,
        data_blocks: u64,
        entries: u64,
        entry_bytes: u64,
    ) -> Reservation {
        self.split_for(reservation, Wanted { data_blocks, entries, entry_bytes, splits: 0 })
    }

    /// The same, with nodes.
    pub fn split_for(&self, reservation: &mut Reservation, wanted: Wanted) -> Reservation {
        self.part_of(reservation, wanted.data_blocks, |_, copies| wanted.purse(copies))
    }

    /// Takes `data_blocks` blocks out of `reservation`, as far as they are there, and with them what room it holds above that for
    /// `entries` entries of up to `entry_bytes` bytes.
    pub fn split_above(
        &self,
        reservation: &mut Reservation,
        data_blocks: u64,
        entries: u64,
        entry_bytes: u64,
    ) -> Reservation {
        self.part_of(reservation, data_blocks, |held, copies| {
            let kept = purse(0, entries, entry_bytes, copies).metadata_bytes;
            Purse { metadata_bytes: held.saturating_sub(kept), ..Purse::default() }
        })
    }

    /// Takes this out of `reservation`, as far as it is there: blocks, and room for metadata by the bytes it holds and the copies.
    fn part_of(
        &self,
        reservation: &mut Reservation,
        data_blocks: u64,
        room: impl FnOnce(u64, u64) -> Purse,
    ) -> Reservation {
        let mut core = self.core.lock();
        let mine = &mut reservation.purse;
        let before = mine.blocks();
        let room = room(mine.metadata_bytes, core.space.copies);
        let part = Purse {
            data: data_blocks.min(mine.data),
            metadata_bytes: room.metadata_bytes.min(mine.metadata_bytes),
            floating: data_blocks.min(mine.floating),
            splits: room.splits.min(mine.splits),
        };
        mine.splits -= part.splits;
        mine.data -= part.data;
        mine.metadata_bytes -= part.metadata_bytes;
        mine.floating -= part.floating;
        // Metadata is counted in whole blocks: two halves may come to one more.
        core.space.open += mine.blocks() + part.blocks() - before;
        Reservation { core: self.core.clone(), purse: part, allocated: 0 }
    }

    /// Gives back part of a reservation (dirty blocks that will never be logged). Of nodes no more stay than one for each block.
    pub fn hand_back(&self, reservation: &mut Reservation, data_blocks: u64, entries: u64, entry_bytes: u64) {
        let mut core = self.core.lock();
        let part = purse(data_blocks, entries, entry_bytes, core.space.copies);
        let before = reservation.purse.blocks();
        reservation.purse.data = reservation.purse.data.saturating_sub(part.data);
        reservation.purse.metadata_bytes =
            reservation.purse.metadata_bytes.saturating_sub(part.metadata_bytes);
        reservation.purse.splits =
            reservation.purse.splits.min(reservation.purse.data.saturating_mul(core.space.copies));
        let floating = reservation.purse.floating.min(reservation.purse.data);
        core.space.floating -= std::mem::replace(&mut reservation.purse.floating, floating) - floating;
        core.space.open -= before - reservation.purse.blocks();
    }

    /// Takes blocks out of `reservation`, in as few runs as can be found, near `near` if that is not null.
    pub fn allocate(&self, reservation: &mut Reservation, blocks: u32, near: PoolAddr) -> Result<Vec<Run>> {
        assert!(
            reservation.allocated + u64::from(blocks) <= reservation.purse.data,
            "blocks are allocated out of a reservation that holds them"
        );
        let runs = self.find_space(|space| space.allocate_data(blocks, near)).ok_or(EngineError::NoSpace)?;
        reservation.allocated += u64::from(blocks);
        Ok(runs)
    }

    /// Gives back blocks that were allocated and never placed by a transaction, into `reservation`.
    pub fn deallocate(&self, reservation: &mut Reservation, runs: &[Run]) {
        let mut core = self.core.lock();
        for run in runs {
            core.space.unallocate(*run);
            reservation.allocated = reservation.allocated.saturating_sub(u64::from(run.blocks));
        }
    }
}

fn purse(data_blocks: u64, entries: u64, entry_bytes: u64, copies: u64) -> Purse {
    Wanted { data_blocks, entries, entry_bytes, splits: 0 }.purse(copies)
}
