//! fallocate: reserve, punch, zero.
//!
//! What waits in memory is logged first where it would be in the way, so that pages and extents never disagree. A range
//! is changed a bounded transaction at a time, from front to back: after a crash a part of it, from the front, is done.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use varve_engine::planted::{Planted, is};
use varve_engine::version::{self, ExtentKind, Mapping, Path, Unreserved};
use varve_engine::{BLOCK_BYTES, EngineError, InodeId, Reservation, Transaction};
use varve_format::record::inode::{INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL, InodeRecord};

use super::flags::Touch;
use super::{require_file, without_set_ids};
use crate::api::{Allocate, Caller, FILE_BYTES_MAX, SetAttr};
use crate::core::{Core, Owning, touch};
use crate::inode::{Calm, Inner, InodeState, Pending, Turn};
use crate::subvolume::Change;
use crate::table::extents;
use crate::writeback::pages::Page;
use crate::writeback::{self, Ride};
use crate::{FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Entries changed in one transaction.
const ENTRIES_PER_STEP: u64 = 64;
/// Pieces of a file looked at in one go.
const PIECES_MAX: usize = 1024;
/// The same where each time all versions may be read for it.
const PIECES_OF_ALL_MAX: usize = 1 << 16;
/// Entries looked at, at most, to see that a range is a hole.
const HOLES_MAX: usize = 1024;

/// What is set aside for zeros, from before anything is zeroed until they are reserved. It outlives attempts that are refused.
type Kept = RefCell<Option<Reservation>>;

impl Core {
    pub(crate) fn fallocate(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        len: u64,
        how: Allocate,
    ) -> Result<()> {
        // Zeros in part of a block wait in memory, where nobody else would refuse them.
        self.admit(ino)?;
        let reserve = matches!(how, Allocate::Reserve { .. });
        self.permit(ino, if reserve { Touch::Mildly } else { Touch::Otherwise })?;
        self.require_running()?;
        let state = self.state(ino);
        state.wait_while_still();
        let size = {
            let inner = self.read_lock(&state)?;
            require_file(&inner)?;
            inner.size
        };
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FsError::FileTooBig)?;
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let zeroes = !matches!(how, Allocate::Reserve { .. });
        // Parts of blocks are zeroed in memory, and wait like what is written.
        let part = |at: u64| !at.is_multiple_of(BLOCK) && at < size;
        let waits = zeroes && (part(offset) || part(end));
        // What gives space back is not kept waiting for it.
        if waits && end / BLOCK <= offset.div_ceil(BLOCK) {
            self.require_room(&state)?;
        }
        // Who is refused has lost nothing.
        let (kept, mut at, mut stamped, mut places) = (Kept::default(), offset, false, None);
        if let Allocate::Zero { keep_size } = how {
            match self.with_space(|| self.reserve_zeros(caller, &state, offset, end)) {
                Err(error @ FsError::Engine(EngineError::NoSpace)) => {
                    if keep_size || end <= size {
                        places = Some(state.places());
                        (at, stamped) = self.zero_over(caller, &state, offset..end)?;
                    }
                    if at == offset {
                        return Err(error);
                    }
                }
                reserved => *kept.borrow_mut() = Some(reserved?),
            }
        }
        // Of zeros that are written over this is a rest that others see by now, whose space is not looked for before.
        if at < end && zeroes {
            let punched = self.with_space(|| self.punch(caller, &state, at, end, &kept));
            if punched.as_ref().is_err_and(FsError::may_pass) && is(Planted::SpaceForgotten) {
                std::mem::forget(kept.take());
            }
            stamped |= punched?;
        }
        if at < end && how != Allocate::Punch {
            // That changes the ctime alone.
            stamped |= self.with_space(|| self.preallocate(caller, &state, at, end, &kept))? && !zeroes;
        }
        let promised = kept.take().is_some();
        drop(places);
        if !stamped {
            self.with_space(|| self.stamp(caller, &state, zeroes))?;
        }
        if let Allocate::Reserve { keep_size: false } | Allocate::Zero { keep_size: false } = how {
            let set = SetAttr::default();
            if self.read_lock(&state)?.size < end {
                // What has been zeroed is lost: it is too late to refuse this.
                self.with_space(|| self.set_size_if(caller, ino, end, &set, promised, |size| size < end))?;
            }
        }
        if waits { self.throttle(false) } else { Ok(()) }
    }

    /// There was nothing to do: only the times and the mode change.
    fn stamp(&self, caller: Caller, state: &Arc<InodeState>, zeroes: bool) -> Result<()> {
        let change = self.change(state.ino)?;
        let mut guard = self.write_lock(state)?;
        let inner = &mut *guard;
        let mut record = self.changed(caller, inner);
        if !zeroes {
            record.mtime = inner.times().0;
        }
        let mut tx = Transaction::new();
        self.drop_capability(&change, &mut tx, state.ino, &mut record)?;
        self.put_record(&change, &mut tx, state.ino, inner, &mut record)?;
        // On a full pool, too: nothing grows.
        if !change.forked || self.is_own(&change, state.ino, inner)? {
            tx.replacing();
        }
        self.apply(tx)?;
        self.changed_to(&change, inner, record);
        Ok(())
    }

    /// Sets aside what [`Core::preallocate`] will need when [`Core::punch`] has made a hole of [`from`, `to`), but for what that gives
    /// back: the blocks of data that nobody else sees, unless others take them meanwhile, and what is set aside in the range.
    fn reserve_zeros(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        from: u64,
        to: u64,
    ) -> Result<Reservation> {
        let range = from..to;
        let (from, to) = (from / BLOCK * BLOCK, to.next_multiple_of(BLOCK));
        // These take space, too.
        self.leave_record(caller, state)?;
        self.settle_tail(state, to)?;
        let waits = self.read_lock(state)?.pages.map.range(from / BLOCK..to / BLOCK).next().is_some();
        if waits {
            self.write_back(state, Ride::Allowed)?;
        }
        let reserve = |exact| {
            let (blocks, entries) = self.lacking(state, from, to, exact)?;
            let kept = self.reserve_lacking(blocks, entries)?;
            // Who takes this before it is used makes it be looked for once more, as with the blocks that are given back.
            drop(self.reserve_edges(state, &range)?);
            Ok(kept)
        };
        match reserve(false) {
            Err(FsError::Engine(EngineError::NoSpace)) => reserve(true),
            result => result,
        }
    }

    /// Sets aside what zeroing the parts of blocks at both ends of the range will take, one after the other.
    fn reserve_edges(&self, state: &Arc<InodeState>, range: &Range<u64>) -> Result<Vec<Reservation>> {
        let (start, end) = (range.start.next_multiple_of(BLOCK), range.end / BLOCK * BLOCK);
        let mut edges = Vec::new();
        for edge in [range.start..range.end.min(start), end.max(start)..range.end] {
            let has_data = {
                let inner = self.read_lock(state)?;
                let cut = edge.start..edge.end.min(inner.size);
                // A block of which nothing is left goes as a whole.
                let whole = cut.start.is_multiple_of(BLOCK) && inner.size <= range.end;
                !whole && !cut.is_empty() && self.has_data(state, &inner, cut)?
            };
            if has_data {
                edges.push(writeback::reserve(&self.store, 1, 1, edges.is_empty())?);
            }
        }
        Ok(edges)
    }

    /// Whether something but zeros is, or may be, in a part of one block.
    fn has_data(&self, state: &Arc<InodeState>, inner: &Inner, part: Range<u64>) -> Result<bool> {
        let data = inner.pages.map.contains_key(part.start / BLOCK);
        if let Some(contents) = &inner.record.inline {
            return Ok(data || part.start < contents.len() as u64);
        }
        if data {
            return Ok(true);
        }
        let view = self.view_of(state.ino)?;
        let path = extents::path(&view, &inner.record, self.sharing())?;
        let pieces = version::resolve(&view, &path, part.start, part.end)?;
        Ok(pieces.iter().any(|piece| matches!(piece.what, Mapping::Data { .. })))
    }

    /// Of how many blocks in [`from`, `to`) making a hole gives no block, and of how many it gives nothing that is set aside for logging.
    /// Where others see some of the data, who sees what is asked only if it is to be `exact`: that reads all versions.
    fn lacking(&self, state: &Arc<InodeState>, from: u64, to: u64, exact: bool) -> Result<(u64, u64)> {
        let (view, inherited, holder, inline) = {
            // Nobody forks the subvolume until the view is there; reading in it may take long, and keeps nobody waiting.
            let change = self.change(state.ino)?;
            let inner = self.read_lock(state)?;
            let view = self.store.view();
            let inherited = change.forked && !self.is_own(&change, state.ino, &inner)?;
            let holder = extents::holder_now(&view, &inner.record, self.sharing())?;
            (view, inherited, holder, inner.record.inline.is_some())
        };
        let all = (to - from) / BLOCK;
        if inline || !(exact || (!inherited && Path::load(&view, holder)?.sole())) {
            return Ok((all, all));
        }
        let (mut at, mut blocks, mut entries) = (from, 0, 0);
        while at < to {
            let pieces_max = if exact { PIECES_OF_ALL_MAX } else { PIECES_MAX };
            let page = version::map(&view, holder, inherited, at, to, pieces_max)?;
            for piece in &page.pieces {
                let lacks = piece.shared || piece.kind == ExtentKind::Hole;
                blocks += if lacks { piece.len / BLOCK } else { 0 };
                entries += if lacks || piece.kind == ExtentKind::Data { piece.len / BLOCK } else { 0 };
            }
            at = page.next;
        }
        Ok((blocks, entries))
    }

    /// Returns whether the times and the mode have changed with it. What was set aside in the range is added to `kept`, if that is there.
    fn punch(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        from: u64,
        to: u64,
        kept: &Kept,
    ) -> Result<bool> {
        let (first, floor) = (from.next_multiple_of(BLOCK), to / BLOCK * BLOCK);
        // The file is not cut while this is held: zeros that were written beyond its end would make it grow.
        let mut turn = state.turn();
        let mut calm = Calm::default();
        let mut stamped = self.zero_bytes(caller, &turn, from, to.min(first))?;
        let mut tail_zeroed = floor == to || floor < first;
        let mut at = first;
        loop {
            let change = self.change(state.ino)?;
            let mut guard = self.write_lock(state)?;
            let inner = &mut *guard;
            // Of a block that holds the end of the file, nothing is left. Behind that there is what is set aside, block by block.
            let holds_end = floor < inner.size && inner.size <= to;
            let last = if holds_end { to.next_multiple_of(BLOCK) } else { floor };
            if inner.size > to && !tail_zeroed {
                drop(guard);
                drop(change);
                stamped |= self.zero_bytes(caller, &turn, floor, to)?;
                tail_zeroed = true;
                continue;
            }
            if at >= last {
                return Ok(stamped);
            }
            let in_the_way = inner.pages.map.range(at / BLOCK..last / BLOCK).next().is_some();
            if inner.growth_waits() || in_the_way {
                drop(guard);
                drop(change);
                calm.next(state);
                turn = self.write_back_in_turn(turn, u64::MAX, Ride::Allowed)?;
                continue;
            }
            if kept.borrow().is_none()
                && change.forked
                && !self.is_own(&change, state.ino, inner)?
                && self.has_nothing(state.ino, inner, at, last)?
            {
                // Only the times change, if nothing else has been: a record would come out of what is kept for deleting.
                return Ok(stamped);
            }
            self.own_first(&change, state.ino, inner, Owning::ToFree)?;
            let mut tx = Transaction::new();
            let mut record = self.changed(caller, inner);
            let (mut freed, mut next) = (Unreserved::default(), last);
            if let Some(contents) = &mut record.inline {
                contents.truncate(at as usize);
            } else {
                let (view, path) = self.data_to_write(&change, &mut tx, &mut record)?;
                let progress = version::punch(&view, &mut tx, &path, at, last, ENTRIES_PER_STEP)?;
                (freed, next) = (progress.reserved_freed, progress.next);
                if (at..next).contains(&(record.size / BLOCK * BLOCK)) {
                    // The block in which the file ends is a hole now.
                    record.flags &= !INODE_FLAG_STALE_TAIL;
                }
            }
            self.drop_capability(&change, &mut tx, state.ino, &mut record)?;
            self.put_record(&change, &mut tx, state.ino, inner, &mut record)?;
            tx.privileged();
            // Not where it gives back what was set aside; and zeros that are to be set aside behind this cannot be refused any more.
            if change.forked && freed.blocks == 0 && kept.borrow().is_none() {
                tx.sparing();
            }
            match &mut *kept.borrow_mut() {
                Some(kept) => {
                    if let Some(part) = self.apply_moving(tx, freed)? {
                        self.store.merge(kept, part);
                    }
                }
                None => drop(self.apply_freeing(tx, None, freed)?),
            }
            self.changed_to(&change, inner, record);
            stamped = true;
            at = next;
            // Others write again, for as long as they do not keep the next step from being done.
            calm = Calm::default();
        }
    }

    /// Whether there is a hole already, of a file of which no page in the range waits. Not for sure where it is made of very many.
    fn has_nothing(&self, ino: InodeId, inner: &Inner, from: u64, to: u64) -> Result<bool> {
        if let Some(contents) = &inner.record.inline {
            return Ok(contents.len() as u64 <= from);
        }
        let view = self.view_of(ino)?;
        let path = extents::path(&view, &inner.record, self.sharing())?;
        // One short look: who changes the file waits for it.
        let pieces = version::resolve_some(&view, &path, from, to, 2, HOLES_MAX)?;
        let end = pieces.last().map_or(to, |piece| piece.offset + piece.len);
        Ok(end >= to && pieces.iter().all(|piece| piece.what == Mapping::Hole))
    }

    /// The record after a change of data now, by `caller`.
    pub(super) fn changed(&self, caller: Caller, inner: &Inner) -> InodeRecord {
        let mut record = inner.record_with_pending();
        let now = self.now();
        record.mtime = now;
        touch(&mut record, now);
        if caller.uid != 0 {
            record.mode = without_set_ids(record.mode);
        }
        record
    }

    /// The file's record is now `record`.
    pub(super) fn changed_to(&self, change: &Change, inner: &mut Inner, record: InodeRecord) {
        inner.logged(change, record);
        inner.pending = Pending::default();
        inner.mapping += 1;
    }

    /// Writes zeros over part of a block, unless there is nothing but zeros. Returns whether it has written.
    fn zero_bytes(&self, caller: Caller, turn: &Turn, from: u64, to: u64) -> Result<bool> {
        let state = turn.state();
        let to = {
            let inner = self.read_lock(state)?;
            let to = to.min(inner.size);
            if from >= to {
                return Ok(false);
            }
            if !self.has_data(state, &inner, from..to)? {
                return Ok(false);
            }
            to
        };
        self.write_zeros(caller, turn, from, (to - from) as usize)?;
        Ok(true)
    }

    /// Returns whether the times and the mode have changed with it. What is `kept` is there if the range has been zeroed.
    fn preallocate(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        from: u64,
        to: u64,
        kept: &Kept,
    ) -> Result<bool> {
        let (from, to) = (from / BLOCK * BLOCK, to.next_multiple_of(BLOCK));
        let holes = self.holes(state, from, to)?;
        let (mut kept, mut fresh) = (kept.borrow_mut(), None);
        let zeroed = kept.is_some();
        let space = match &mut *kept {
            Some(space) => {
                let missing = holes.saturating_sub(space.data_blocks());
                if missing > 0 {
                    // The blocks that have been given back: all else has been found before.
                    let more = self.reserve_lacking(missing, 0)?;
                    self.store.merge(space, more);
                }
                space
            }
            // All of it or nothing, as far as one can see.
            None => fresh.insert(self.reserve_blocks(holes)?),
        };
        self.leave_record(caller, state)?;
        self.settle_tail(state, to)?;
        let mut stamped = false;
        let mut at = from;
        while at < to {
            let change = self.change(state.ino)?;
            let mut guard = self.write_lock(state)?;
            let inner = &mut *guard;
            if inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty()) {
                // Cut to nothing and written to again meanwhile.
                drop(guard);
                drop(change);
                self.leave_record(caller, state)?;
                continue;
            }
            let why = if zeroed { Owning::Promised } else { Owning::ToAdd };
            self.own_first(&change, state.ino, inner, why)?;
            let mut record = self.changed(caller, inner);
            record.mtime = inner.times().0;
            record.flags |= INODE_FLAG_RESERVED;
            record.inline = None;
            let mut tx = Transaction::new();
            let step = {
                let (view, path) = self.data_to_write(&change, &mut tx, &mut record)?;
                version::reserve(&view, &mut tx, &path, at, to, ENTRIES_PER_STEP)?
            };
            let missing = step.blocks.saturating_sub(space.data_blocks());
            if missing > 0 {
                let more = self.reserve_blocks(missing)?;
                self.store.merge(space, more);
            }
            if step.blocks > 0 {
                self.drop_capability(&change, &mut tx, state.ino, &mut record)?;
                self.put_record(&change, &mut tx, state.ino, inner, &mut record)?;
                if zeroed {
                    // It is too late to refuse this.
                    tx.privileged();
                }
                let part = self.split_blocks(space, step.blocks);
                self.apply_reserving(tx, part, step.reserved_freed)?;
                inner.logged(&change, record);
                inner.pending.ctime = None;
                inner.mapping += 1;
                stamped = true;
            }
            at = step.next;
        }
        Ok(stamped)
    }

    /// Rewrites the block in which the file ends if its tail is stale and space is reserved behind it: who writes there
    /// would have to, on a pool that may be full by then.
    pub(super) fn settle_tail(&self, state: &Arc<InodeState>, to: u64) -> Result<()> {
        let settled = || {
            let inner = self.read_lock(state)?;
            Ok::<_, FsError>(inner.record.flags & INODE_FLAG_STALE_TAIL == 0 || to <= inner.record.size)
        };
        // A write-back may have the turn for long: nobody waits for it who has nothing to do with it.
        if settled()? {
            return Ok(());
        }
        let turn = state.turn();
        if settled()? {
            return Ok(());
        }
        self.dirty_tail(&turn, to)?;
        self.write_back_in_turn(turn, u64::MAX, Ride::Allowed).map(drop)
    }

    /// Blocks of holes in [`from`, `to`).
    fn holes(&self, state: &Arc<InodeState>, from: u64, to: u64) -> Result<u64> {
        let (view, record) = {
            // As in `lacking`: reading may take long, and keeps nobody from the file.
            let inner = self.read_lock(state)?;
            if inner.record.inline.is_some() {
                return Ok((to - from) / BLOCK);
            }
            (self.view_of(state.ino)?, inner.record.clone())
        };
        let path = extents::path(&view, &record, self.sharing())?;
        let (mut at, mut bytes) = (from, 0);
        while at < to {
            for piece in version::resolve_upto(&view, &path, at, to, PIECES_MAX)? {
                if piece.what == Mapping::Hole {
                    bytes += piece.len;
                }
                at = piece.offset + piece.len;
            }
        }
        Ok(bytes / BLOCK)
    }

    /// Moves a file's contents out of its record, for good.
    pub(super) fn leave_record(&self, caller: Caller, state: &Arc<InodeState>) -> Result<()> {
        // As above.
        if self.read_lock(state)?.record.inline.is_none() {
            return Ok(());
        }
        let turn = state.turn();
        let size = {
            let change = self.change(state.ino)?;
            let mut inner = self.write_lock(state)?;
            if inner.record.inline.is_none() {
                return Ok(());
            }
            let contents = inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty());
            if contents && !inner.pages.map.get(0).is_some_and(Page::has_space) {
                // Who is refused the block that they come to is so before they are bound to leave.
                drop(writeback::reserve(&self.store, 1, 1, true)?);
            }
            let mut tx = Transaction::new();
            let mut record = inner.record.clone();
            if caller.uid != 0 {
                record.mode = without_set_ids(record.mode);
            }
            record.flags |= INODE_FLAG_RESERVED;
            self.put_record(&change, &mut tx, state.ino, &inner, &mut record)?;
            self.apply(tx)?;
            inner.logged(&change, record);
            inner.size
        };
        self.dirty_tail(&turn, size)?;
        self.write_back_in_turn(turn, u64::MAX, Ride::Allowed).map(drop)
    }
}
