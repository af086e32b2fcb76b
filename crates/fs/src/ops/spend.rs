//! Writing into space that a file has set aside when there is no other.
//!
//! Nobody sees a difference between what is set aside and a hole: who writes there first may take its blocks, and all who see the range
//! have a hole there until the data is logged.

use varve_engine::version::{self, Mapping};
use varve_engine::{EngineError, InodeId, Transaction};
use varve_format::record::inode::INODE_FLAG_RESERVED;

use super::write::{BLOCK, RUNS_MAX, Space};
use crate::core::{Core, Owning, touch};
use crate::inode::{Inner, InodeState};
use crate::reaper::Task;
use crate::table::extents;
use crate::writeback::pages::Page;
use crate::{FsError, Result};

impl Core {
    /// How far a write goes before it comes from pages that are reserved to others, or from others to such; and whether it
    /// begins with reserved ones. What has space lies in either.
    pub fn first_stretch(
        &self,
        ino: InodeId,
        inner: &Inner,
        offset: u64,
        len: usize,
    ) -> Result<(usize, bool)> {
        let view = self.view_of(ino)?;
        let path = extents::path(&view, &inner.record, self.sharing())?;
        let to = (offset + len as u64).next_multiple_of(BLOCK);
        let (mut at, mut first) = (offset / BLOCK * BLOCK, None);
        while at < to {
            let pieces = version::resolve_upto(&view, &path, at, to, 64)?;
            for piece in &pieces {
                let reserved = piece.what == Mapping::Reserved;
                for index in at / BLOCK..(piece.offset + piece.len).min(to) / BLOCK {
                    if inner.pages.map.get(index).is_some_and(Page::has_space) {
                        continue;
                    }
                    if *first.get_or_insert(reserved) != reserved {
                        return Ok(((index * BLOCK - offset) as usize, !reserved));
                    }
                }
                at = piece.offset + piece.len;
            }
            if pieces.is_empty() {
                break;
            }
        }
        Ok((len, first == Some(true)))
    }

    /// Whether the first page of a write that has no space has some set aside.
    pub(super) fn begins_reserved(&self, state: &InodeState, offset: u64, len: usize) -> Result<bool> {
        let inner = self.read_lock(state)?;
        let reserves = inner.record.flags & INODE_FLAG_RESERVED != 0 && inner.record.inline.is_none();
        Ok(reserves && self.first_stretch(state.ino, &inner, offset, len)?.1)
    }

    /// There is no other space: takes that of the reservations in the range of a write, which become holes until its
    /// data is logged. Those that clones and snapshots see too become holes for them as well: who writes first has the space.
    ///
    /// If power fails before that, the range is a hole that was reserved: of a write that nobody has synced. What lacks its space
    /// ([`Core::reserved_is_short`]) stays reserved, or nobody would look for that any more. Gives how far the
    /// write goes: not from reserved pages to others, nor from others to reserved ones.
    pub(super) fn use_reserved(
        &self,
        state: &InodeState,
        space: &mut Space,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        let change = self.change(state.ino)?;
        let mut inner = self.write_lock(state)?;
        if len == 0 || inner.record.flags & INODE_FLAG_RESERVED == 0 || inner.record.inline.is_some() {
            return Ok(len);
        }
        let (len, reserved) = self.first_stretch(state.ino, &inner, offset, len)?;
        if !reserved || self.reserved_aside() == 0 {
            return Ok(len);
        }
        // What has been set aside was promised.
        self.own_first(&change, state.ino, &mut inner, Owning::Promised)?;
        let to = (offset + len as u64).next_multiple_of(BLOCK);
        let (mut at, mut most) = (offset / BLOCK * BLOCK, u64::MAX);
        while at < to {
            let there = self.reserved_aside().min(most);
            if there == 0 {
                break;
            }
            let mut tx = Transaction::new();
            let mut record = inner.record.clone();
            let (freed, next, alone, blocks) = {
                let (view, path) = self.data_to_write(&change, &mut tx, &mut record)?;
                let pieces = version::resolve_upto(&view, &path, at, to, 64)?;
                let reserved = pieces.iter().find(|piece| piece.what == Mapping::Reserved);
                let Some(piece) = reserved else {
                    let Some(last) = pieces.last() else { break };
                    at = last.offset + last.len;
                    continue;
                };
                let blocks = ((piece.offset + piece.len).min(to) - piece.offset) / BLOCK;
                let blocks = blocks.min(there);
                let end = piece.offset + blocks * BLOCK;
                let progress = version::spend_reserved(&view, &mut tx, &path, piece.offset, end, 128)?;
                (progress.reserved_freed, progress.next, path.sole(), blocks)
            };
            // In the same transaction: were it refused behind this, the range would be a hole that had been reserved.
            let dropped = self.drop_capability(&change, &mut tx, state.ino, &mut record)?;
            if dropped {
                touch(&mut record, self.now());
            }
            if dropped || record.data != inner.record.data {
                self.put_record(&change, &mut tx, state.ino, &inner, &mut record)?;
            }
            tx.privileged();
            tx.spares_nothing();
            let part = match self.apply_spending(tx, freed) {
                Err(FsError::Engine(EngineError::NoSpace)) => {
                    // Others have spent some of it, or have more in these blocks that goes with it.
                    most = blocks / 2;
                    continue;
                }
                part => part?,
            };
            if !alone {
                // What it was taken from may have left something to the reaper.
                self.reap.push(Task::Family(record.data.family));
            }
            inner.logged(&change, record);
            inner.mapping += 1;
            at = next;
            if let Some(part) = part {
                let pages = part.data_blocks();
                // What a first page adds to the inode's record is logged with privilege, and nodes divide on what is set aside for the
                // entries of all reservations.
                self.add(space, part, (pages, RUNS_MAX, true));
            }
        }
        Ok(len)
    }
}
