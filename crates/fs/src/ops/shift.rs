//! Taking a range out of a file, and making room in the middle of one.
//!
//! Each is one transaction: after a crash the file is as it was before or as it is after. What waits in memory behind
//! the place is logged first, and versions that truncations left are made one, so that there is one list to move. A file
//! whose data others see gets a family of its own, whose extents name the same blocks.

use std::sync::Arc;

use varve_engine::version::{self, Holder, Path, Shifted};
use varve_engine::{BLOCK_BYTES, FamilyId, InodeId, Transaction, View};
use varve_format::record::inode::InodeRecord;

use super::flags::Touch;
use super::require_file;
use crate::api::{Caller, FILE_BYTES_MAX};
use crate::core::{Core, Owning};
use crate::inode::{Calm, InodeState};
use crate::reaper::Task;
use crate::subvolume::Change;
use crate::table::extents;
use crate::writeback::Ride;
use crate::{FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// An extent and a count of its blocks, keys and values.
const ENTRY_BYTES: u64 = 100;

/// Times that the versions of a file are made one, should truncations by others open new ones meanwhile.
const REAPS_MAX: u32 = 16;

/// What happens at the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// So many bytes are taken out.
    Collapse(u64),
    /// A hole of so many bytes is put in.
    Insert(u64),
}

impl Shift {
    /// What a file of `size` bytes has afterwards.
    fn new_size(self, offset: u64, size: u64) -> Result<u64> {
        match self {
            Shift::Collapse(len) if offset + len >= size => Err(FsError::Invalid),
            Shift::Insert(_) if offset >= size => Err(FsError::Invalid),
            Shift::Insert(len) if size + len > FILE_BYTES_MAX => Err(FsError::FileTooBig),
            Shift::Collapse(len) => Ok(size - len),
            Shift::Insert(len) => Ok(size + len),
        }
    }
}

impl Core {
    pub(crate) fn shift(&self, caller: Caller, ino: InodeId, offset: u64, how: Shift) -> Result<()> {
        self.admit(ino)?;
        self.permit(ino, Touch::Otherwise)?;
        let state = self.state(ino);
        let size = {
            let inner = self.read_lock(&state)?;
            require_file(&inner)?;
            inner.size
        };
        let (Shift::Collapse(len) | Shift::Insert(len)) = how;
        if len == 0 || !len.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK) {
            return Err(FsError::Invalid);
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(FsError::FileTooBig);
        }
        // Who is refused has changed nothing.
        how.new_size(offset, size)?;
        let _places = state.places();
        self.with_space(|| self.shift_once(caller, &state, offset, how))
    }

    fn shift_once(&self, caller: Caller, state: &Arc<InodeState>, offset: u64, how: Shift) -> Result<()> {
        let mut reaps_left = REAPS_MAX;
        // No page is in flight while this is held.
        let mut turn = state.turn();
        let mut calm = Calm::default();
        loop {
            let change = self.change(state.ino)?;
            let mut guard = self.write_lock(state)?;
            let inner = &mut *guard;
            let size = how.new_size(offset, inner.size)?;
            let in_the_way = inner.pages.map.range(offset / BLOCK..).next().is_some();
            if inner.growth_waits() || in_the_way {
                drop(guard);
                drop(change);
                calm.next(state);
                turn = self.write_back_in_turn(turn, u64::MAX, Ride::Allowed)?;
                continue;
            }
            if inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty()) {
                // What lies in the record has no extents to move.
                drop(guard);
                drop(change);
                drop(turn);
                calm = Calm::default();
                self.leave_record(caller, state)?;
                turn = state.turn();
                continue;
            }
            // To take a range out of what others see, too, adds a list of its own, and gives nothing back.
            self.own_first(&change, state.ino, inner, Owning::ToAdd)?;
            let mut tx = Transaction::new();
            let mut record = self.changed(caller, inner);
            let mut shifted = Shifted::default();
            let (remove, insert) = match how {
                Shift::Collapse(len) => (len, 0),
                Shift::Insert(len) => (0, len),
            };
            let (mut space, mut left) = (None, None);
            if record.inline.is_some() {
                // Nothing to move.
            } else if let Some((view, holder, path)) = self.seen_by_others(&change, &record)? {
                // Their versions would never become one: what this file sees becomes a family of its own.
                let family = FamilyId(self.store.new_id());
                let moved = version::shift_away(&view, &mut tx, &path, family, offset, remove, insert)?;
                shifted = moved.ok_or(FsError::TooFragmented)?;
                // Letting go may use the protected part; what is added may not.
                space = Some(self.store.reserve(0, shifted.entries + 1, ENTRY_BYTES)?);
                version::release(&view, &mut tx, holder)?;
                tx.claim_id(family.0);
                record.data = extents::pointer(Holder::new(family));
                left = Some(holder.family);
            } else {
                let (view, path) = self.data_to_write(&change, &mut tx, &mut record)?;
                if path.versions() > 1 {
                    // What truncations have left becomes one.
                    reaps_left = reaps_left.checked_sub(1).ok_or(FsError::NotSupported)?;
                    // That may take long: others write meanwhile, and get what becomes free.
                    drop((view, path, tx));
                    drop(guard);
                    drop(change);
                    calm = Calm::default();
                    self.reap_family(record.data.family)?;
                    continue;
                }
                shifted = version::shift(&view, &mut tx, &path, offset, remove, insert)?
                    .ok_or(FsError::TooFragmented)?;
            }
            record.size = size;
            self.drop_capability(&change, &mut tx, state.ino, &mut record)?;
            self.put_record(&change, &mut tx, state.ino, inner, &mut record)?;
            self.apply_freeing(tx, space.as_mut(), shifted.reserved_freed)?;
            self.changed_to(&change, inner, record);
            inner.size = size;
            if let Some(family) = left {
                self.reap.push(Task::Family(family));
            }
            return Ok(());
        }
    }

    /// The data of `record`, if others see any of it.
    fn seen_by_others(&self, change: &Change, record: &InodeRecord) -> Result<Option<(View, Holder, Path)>> {
        if !self.sharing() {
            return Ok(None);
        }
        change.hold_families(self);
        let view = self.store.view();
        let holder = extents::holder_now(&view, record, true)?;
        let path = Path::load(&view, holder)?;
        Ok((!path.sole()).then_some((view, holder, path)))
    }
}
