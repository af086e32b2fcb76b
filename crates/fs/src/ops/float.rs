//! Writing over what is the writer's alone when there is no other space.
//!
//! Such data gives back as much as it takes, but only when it is logged and durable. Until then it lies in the protected
//! reserve, which is larger by what may float at a time ([`varve_engine::Store::reserve_float`]), and when that is used up, whoever needs
//! some logs what he has written before: a pool may be as full as it likes, what it holds can be written over.
//!
//! Nothing relies on what is found here: what is taken for data that gives back nothing in the end (a snapshot may be taken
//! before it is logged) is missing to the next who writes over something, and to nobody else.

use std::ops::Range;
use std::sync::Arc;

use varve_engine::planted::{Planted, is};
use varve_engine::version::{self, Mapping};
use varve_engine::{EngineError, View};
use varve_format::record::inode::{
    INLINE_BYTES_MAX, INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL, InodeRecord,
};

use super::write::{BLOCK, Space, plan};
use crate::api::Caller;
use crate::core::{Core, Rounds};
use crate::inode::InodeState;
use crate::table::extents;
use crate::writeback::{Ride, reserve_float};
use crate::{FsError, Result};

/// So often who writes has what floats [brought back](Core::bring_back).
pub(super) const FLOAT_WAITS: u32 = 4;
/// Zeros that are written at once.
const ZEROS_MAX: u64 = 1 << 20;

/// What there is for a write.
pub enum Floating {
    /// It gives nothing back.
    Never,
    /// There would be some if what others have taken of it were durable.
    Later,
    /// So many bytes have their space.
    Upto(usize),
}

impl Core {
    /// Takes what `space` lacks for as much of a write as gives back what it takes, if it is there at once. `barred`: others wait
    /// for it.
    pub(super) fn float(
        &self,
        state: &InodeState,
        space: &mut Space,
        offset: u64,
        len: usize,
        barred: bool,
    ) -> Result<Floating> {
        // Who writes much goes on with what comes back: others have some meanwhile.
        let most = (self.store.float_blocks() / 2).max(1);
        let upto = |pages: u64| len.min((pages * BLOCK - offset % BLOCK) as usize);
        let (len, grows) = self.gives_back(state, offset, upto(most))?;
        let mut pages = (offset % BLOCK + len as u64).div_ceil(BLOCK);
        if len == 0 {
            return Ok(Floating::Never);
        }
        while pages > 0 && !barred {
            let part = len.min(upto(pages));
            let wanted = plan(&*self.read_lock(state)?, offset, part);
            if !wanted.extra.is_empty() {
                return Ok(Floating::Never);
            }
            let lacks @ (fresh, runs, first) = space.lacks(&wanted);
            if let Some(more) = reserve_float(&self.store, fresh, runs, first, grows)? {
                self.add(space, more, lacks);
                return Ok(Floating::Upto(part));
            }
            pages /= 2;
        }
        Ok(Floating::Later)
    }

    /// Gives what floats the time to come back, at first by what is cheapest: what this file has taken of it is logged and made durable;
    /// who reads what that has freed is waited for; what others have taken of it; and what nodes have, by a checkpoint. What fails is
    /// heard of by who syncs it.
    pub(super) fn bring_back(&self, state: &Arc<InodeState>, waited: u32) -> Result<()> {
        let written = match waited {
            0 => self.write_back(state, Ride::Allowed),
            2 => self.write_back_all(),
            _ => Ok(()),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "writing back what floats failed");
        }
        match waited {
            0 => self.store.commit(self.store.position())?,
            1 => drop(self.store.wait_for_readers()),
            2 => {
                self.store.commit(self.store.position())?;
                self.store.wait_for_readers();
            }
            _ => self.store.reclaim()?,
        }
        Ok(())
    }

    /// Zeroes a range for which nothing can be set aside: writes zeros over its data, a piece at a time, and leaves what is set
    /// aside there as it is. Gives how far that has come, and whether anything was written. Not at all if not all of the range is there
    /// for this file alone, or nothing floats; not to the end only if others see the rest by then, or nothing floats any more.
    ///
    /// The turn is held for one piece each time: who syncs does not wait for all of them. The caller keeps the bytes in their places
    /// ([`InodeState::places`]), or others would be zeroed. If power fails in between, each block is as it was or zeros.
    pub(super) fn zero_over(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        range: Range<u64>,
    ) -> Result<(u64, bool)> {
        let (mut at, mut written) = (range.start, false);
        let len = (range.end - range.start) as usize;
        if self.gives_back(state, at, len)? != (len, false) || self.leaves_stale_tail(state, &range)? {
            return Ok((at, false));
        }
        let (mut waits, mut waited, mut failed) = (None, 0, None);
        while at < range.end {
            if waits.is_none() {
                // As before each write: not beside who waits for the file to be clean, nor past the bound on what is dirty.
                state.wait_while_still();
                self.require_room(state)?;
            }
            match self.zero_piece(caller, state, at..range.end) {
                Ok((next, wrote)) => {
                    (at, written) = (next, written | wrote);
                    (waits, waited) = (None, 0);
                    if wrote {
                        self.throttle(self.is_long(next))?;
                    }
                }
                Err(FsError::Frozen(_)) => self.write_back(state, Ride::Allowed)?,
                Err(FsError::Engine(EngineError::NoSpace)) if waited < FLOAT_WAITS => {
                    // As who writes ([`Core::write`]).
                    let others = waits.is_none() && self.float_queue.is_locked();
                    waits.get_or_insert_with(|| self.float_queue.lock());
                    if !others {
                        self.bring_back(state, waited)?;
                        waited += 1;
                    }
                }
                Err(FsError::Engine(EngineError::NoSpace)) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        drop(waits);
        // What a range is changed by is in the log when that ends, however it does.
        if !is(Planted::ZerosUnlogged) {
            let logged = self.write_back(state, Ride::Allowed);
            if failed.is_none() {
                logged?;
            }
        }
        failed.map_or(Ok((at, written)), Err)
    }

    /// Whether what lies behind the end in its last block would still be there when `range` has been zeroed, and stands in the way of
    /// who writes to what is set aside behind it.
    fn leaves_stale_tail(&self, state: &InodeState, range: &Range<u64>) -> Result<bool> {
        let inner = self.read_lock(state)?;
        let end = inner.record.size;
        Ok(inner.record.flags & INODE_FLAG_STALE_TAIL != 0 && range.end > end && range.start >= end)
    }

    /// Zeroes what lies in front in a range, as far as that finds space. Gives where the rest begins, and whether anything was written.
    fn zero_piece(&self, caller: Caller, state: &Arc<InodeState>, range: Range<u64>) -> Result<(u64, bool)> {
        let at = range.start;
        // The file is not cut while this is held: zeros beyond its end would make it grow.
        let turn = state.turn();
        let upto = {
            let inner = self.read_lock(state)?;
            let end = inner.size.min(range.end);
            if at >= end {
                return Ok((range.end, false));
            }
            let block = at / BLOCK * BLOCK;
            if inner.record.inline.is_some() || inner.pages.map.contains_key(at / BLOCK) {
                end.min(block + BLOCK)
            } else {
                let view = self.view_of(state.ino)?;
                let path = extents::path(&view, &inner.record, self.sharing())?;
                let pieces = version::resolve_upto(&view, &path, block, end.next_multiple_of(BLOCK), 1)?;
                let piece = pieces.first().expect("a range is not without pieces");
                let behind = piece.offset + piece.len;
                if !matches!(piece.what, Mapping::Data { .. }) {
                    // Zeros already, but for what waits in memory.
                    let next = inner.pages.map.range(block / BLOCK..behind / BLOCK).next();
                    return Ok((next.map_or(behind, |(index, _)| index * BLOCK).min(range.end), false));
                }
                end.min(behind)
            }
        };
        let len = (upto - at).min(ZEROS_MAX) as usize;
        let written = self.write_some_zeros(caller, &turn, at, len, Rounds::at_once())?;
        Ok((at + written as u64, true))
    }

    /// Where behind a page that was refused the next lies that gives back a block, before `to`; or `to`.
    pub(super) fn next_that_gives_back(&self, state: &InodeState, from: u64, to: u64) -> Result<u64> {
        let Some((view, record, _)) = self.own_extents(state, 0..0)? else { return Ok(to) };
        let path = extents::path(&view, &record, self.sharing())?;
        Ok(version::first_that_gives_back(&view, &path, from, to)?)
    }

    /// The record of a file that nobody else sees, and a view in which its extents are; and which of these pages have their space.
    /// `None`: others see it, or its contents lie in the record.
    fn own_extents(
        &self,
        state: &InodeState,
        pages: Range<u64>,
    ) -> Result<Option<(View, InodeRecord, Vec<u64>)>> {
        // Nobody forks the subvolume until the view is there.
        let change = self.change(state.ino)?;
        let inner = self.read_lock(state)?;
        let others = change.forked && !self.is_own(&change, state.ino, &inner)?;
        if others || inner.record.inline.is_some() {
            return Ok(None);
        }
        let have_space = inner.pages.map.range(pages).filter(|(_, page)| page.has_space());
        let have_space = have_space.map(|(index, _)| index).collect();
        Ok(Some((self.store.view(), inner.record.clone(), have_space)))
    }

    /// How many of the `len` bytes from `offset` on lie in pages that have their space, or give back a block when they are logged; and
    /// whether something grows by it all the same.
    fn gives_back(&self, state: &InodeState, offset: u64, len: usize) -> Result<(usize, bool)> {
        let (from, to) = (offset / BLOCK * BLOCK, (offset + len as u64).next_multiple_of(BLOCK));
        {
            let change = self.change(state.ino)?;
            let inner = self.read_lock(state)?;
            if let Some(contents) = &inner.record.inline {
                // Written inside the record, unless it is to leave that.
                let end = offset + len as u64;
                let stays = inner.record.flags & INODE_FLAG_RESERVED == 0;
                let inside = stays && inner.size.max(end) <= INLINE_BYTES_MAX as u64;
                let own = !change.forked || self.is_own(&change, state.ino, &inner)?;
                return Ok((if inside && own { len } else { 0 }, end > contents.len() as u64));
            }
        }
        let Some((view, record, have_space)) = self.own_extents(state, from / BLOCK..to / BLOCK)? else {
            return Ok((0, false));
        };
        let path = extents::path(&view, &record, self.sharing())?;
        let mut at = from;
        while at < to {
            at = version::gives_back(&view, &path, at, to)?;
            if at == to || have_space.binary_search(&(at / BLOCK)).is_err() {
                break;
            }
            at += BLOCK;
        }
        Ok((len.min(at.saturating_sub(offset) as usize), false))
    }
}
