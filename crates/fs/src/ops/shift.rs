//! Taking a range out of a file, and making room in the middle of one.
//!
//! Each is one transaction: after a crash the file is as it was before or as it is after. What waits in memory behind
//! the place is logged first, and versions that truncations left are made one, so that there is one list to move.

use std::sync::Arc;

use varve_engine::version::{self, Shifted};
use varve_engine::{BLOCK_BYTES, InodeId, Transaction};

use super::require_file;
use crate::api::{Caller, FILE_BYTES_MAX};
use crate::core::Core;
use crate::inode::InodeState;
use crate::writeback::Ride;
use crate::{FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Times that the versions of a file are made one, should truncations by others open new ones meanwhile.
const REAPS_MAX: u32 = 16;

/// What happens at the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shift {
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
        self.require_writable()?;
        self.require_changeable(ino)?;
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
        self.drop_capability(&state)?;
        self.with_space(|| self.shift_once(caller, &state, offset, how))
    }

    fn shift_once(&self, caller: Caller, state: &Arc<InodeState>, offset: u64, how: Shift) -> Result<()> {
        let mut reaps_left = REAPS_MAX;
        // No page is in flight while this is held.
        let mut turn = state.turn();
        loop {
            let change = self.change(state.ino)?;
            let mut guard = self.write_lock(state)?;
            let inner = &mut *guard;
            let size = how.new_size(offset, inner.size)?;
            let in_the_way = inner.pages.map.range(offset / BLOCK..).next().is_some();
            if inner.growth_waits() || in_the_way {
                drop(guard);
                drop(change);
                turn = self.write_back_in_turn(turn, u64::MAX, Ride::Allowed)?;
                continue;
            }
            if inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty()) {
                // What lies in the record has no extents to move.
                drop(guard);
                drop(change);
                drop(turn);
                self.leave_record(caller, state)?;
                turn = state.turn();
                continue;
            }
            self.own_first(&change, state.ino, inner, None)?;
            let mut tx = Transaction::new();
            let mut record = self.changed(caller, inner);
            let mut shifted = Shifted::default();
            if record.inline.is_none() {
                let (view, path) = self.data_to_write(&change, &mut tx, &mut record)?;
                if path.versions() > 1 {
                    // Versions that others hold too would never become one.
                    reaps_left = reaps_left.checked_sub(1).ok_or(FsError::NotSupported)?;
                    drop(guard);
                    drop(change);
                    self.reap_family(record.data.family)?;
                    continue;
                }
                let (remove, insert) = match how {
                    Shift::Collapse(len) => (len, 0),
                    Shift::Insert(len) => (0, len),
                };
                shifted = version::shift(&view, &mut tx, &path, offset, remove, insert)?
                    .ok_or(FsError::TooFragmented)?;
            }
            record.size = size;
            self.put_record(&change, &mut tx, state.ino, inner, &mut record)?;
            self.apply_freeing(tx, None, shifted.reserved_freed)?;
            self.changed_to(&change, inner, record);
            inner.size = size;
            return Ok(());
        }
    }
}
