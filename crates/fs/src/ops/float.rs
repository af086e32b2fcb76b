//! Writing over what is the writer's alone when there is no other space.
//!
//! Such data gives back as much as it takes, but only when it is logged and durable. Until then it lies in a part of the protected
//! reserve that nothing else has a claim to ([`varve_engine::Store::reserve_float`]), and when that is used up, whoever needs
//! it logs what he has written before: a pool may be as full as it likes, what it holds can be written over.
//!
//! Nothing relies on what is found here: what is taken for data that gives back nothing in the end (a snapshot may be taken
//! before it is logged) is missing to the next who writes over something, and to nobody else.

use std::sync::Arc;

use varve_engine::version;
use varve_format::record::inode::INLINE_BYTES_MAX;

use super::write::{BLOCK, Space, plan};
use crate::Result;
use crate::core::Core;
use crate::inode::InodeState;
use crate::table::extents;
use crate::writeback::{Ride, reserve_float};

/// So often who writes has what floats [brought back](Core::bring_back).
pub(super) const FLOAT_WAITS: u32 = 2;

/// What there is for a write.
pub(super) enum Floating {
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
        let len = self.gives_back(state, offset, upto(most))?;
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
            let fresh = wanted.fresh.saturating_sub(space.pages);
            let first = wanted.first && !space.first;
            if let Some(more) = reserve_float(&self.store, fresh, first)? {
                self.add(space, more, fresh, first);
                return Ok(Floating::Upto(part));
            }
            pages /= 2;
        }
        Ok(Floating::Later)
    }

    /// Gives what floats the time to come back: has logged and made durable what this file has taken of it; then, should others have
    /// it, or nodes, all that can be had by a checkpoint. What fails is heard of by who syncs it.
    pub(super) fn bring_back(&self, state: &Arc<InodeState>, waited: u32) -> Result<()> {
        if waited == 0 {
            if let Err(error) = self.write_back(state, Ride::Allowed) {
                tracing::debug!(%error, "writing back what floats failed");
            }
            return Ok(self.store.commit(self.store.position())?);
        }
        Ok(self.store.reclaim()?)
    }

    /// How many of the `len` bytes from `offset` on lie in pages that have their space, or give back a block when they are logged.
    fn gives_back(&self, state: &InodeState, offset: u64, len: usize) -> Result<usize> {
        let (from, to) = (offset / BLOCK * BLOCK, (offset + len as u64).next_multiple_of(BLOCK));
        let (view, record, have_space) = {
            // Nobody forks the subvolume until the view is there.
            let change = self.change(state.ino)?;
            let inner = self.read_lock(state)?;
            if change.forked && !self.is_own(&change, state.ino, &inner)? {
                return Ok(0);
            }
            if let Some(contents) = &inner.record.inline {
                // Written over inside the record.
                let inside =
                    inner.size <= INLINE_BYTES_MAX as u64 && offset + len as u64 <= contents.len() as u64;
                return Ok(if inside { len } else { 0 });
            }
            let pages = inner.pages.map.range(from / BLOCK..to / BLOCK);
            let have_space: Vec<u64> =
                pages.filter(|(_, page)| page.has_space()).map(|(index, _)| index).collect();
            (self.store.view(), inner.record.clone(), have_space)
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
        Ok(len.min(at.saturating_sub(offset) as usize))
    }
}
