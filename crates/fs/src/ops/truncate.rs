//! Changing the size of a file.
//!
//! Cutting needs no data block: the bytes beyond the end in the last block are left as they are and marked stale
//! ([`INODE_FLAG_STALE_TAIL`]); whoever lets the file grow past them rewrites that block zeroed first. So a file on a
//! full pool can always be cut. A cut inside a hole leaves nothing stale, and the hole stays one. To the size that the file has there is
//! nothing to cut: that costs what any change of the times does.
//!
//! A file of which all growth is logged grows beside a write-back of what it has: that logs no size but the one it finds.

use varve_engine::version::Unreserved;
use varve_engine::{BLOCK_BYTES, InodeId, Transaction, VersionId};
use varve_format::record::inode::{INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL};

use super::setattr::{set_attributes, stays_privileged};
use super::{require_file, without_set_ids};
use crate::api::{Attr, Caller, FILE_BYTES_MAX, SetAttr};
use crate::core::{Core, Owning};
use crate::inode::{Calm, Inner, Pending};
use crate::reaper::Task;
use crate::table::extents;
use crate::writeback::Ride;
use crate::{FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Core {
    pub(super) fn set_size(&self, caller: Caller, ino: InodeId, size: u64, set: &SetAttr) -> Result<Attr> {
        self.set_size_if(caller, ino, size, set, false, |_| true)
    }

    /// As [`Core::set_size`], if `wanted` says so of the size that the file then has. What is `promised` may take all that a full pool keeps
    /// back.
    pub(super) fn set_size_if(
        &self,
        caller: Caller,
        ino: InodeId,
        size: u64,
        set: &SetAttr,
        promised: bool,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<Attr> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooBig);
        }
        let state = self.state(ino);
        // No page is in flight while this is held. Who only makes the file longer does not need it.
        let mut turn = if grows_alone(&*self.read_lock(&state)?, size) { None } else { Some(state.turn()) };
        let mut calm = Calm::default();
        loop {
            let change = self.change(ino)?;
            let mut guard = self.write_lock(&state)?;
            let inner = &mut *guard;
            require_file(inner)?;
            if !wanted(inner.size) {
                return Ok(self.attr_of(ino, inner));
            }
            let held = match turn.take() {
                None if !grows_alone(inner, size) => {
                    drop(guard);
                    drop(change);
                    turn = Some(state.turn());
                    continue;
                }
                held => held,
            };
            let logged = inner.record.size;
            let pages = size.div_ceil(BLOCK);
            // A size is logged no earlier than the data of the writes that made the file grow so far.
            let waits = inner.growth_waits() && inner.pages.map.range(..pages).any(|(_, page)| page.dirty);
            if size > logged && waits {
                drop(guard);
                drop(change);
                calm.next(&state);
                let held = held.expect("who grows alone waits for no data");
                turn = Some(self.write_back_in_turn(held, size, Ride::Allowed)?);
                continue;
            }
            if size > logged && inner.record.flags & INODE_FLAG_STALE_TAIL != 0 {
                drop(guard);
                drop(change);
                calm.next(&state);
                let held = held.expect("who grows alone has no stale tail");
                self.dirty_tail(&held, size)?;
                turn = Some(self.write_back_in_turn(held, u64::MAX, Ride::Allowed)?);
                continue;
            }
            // What nobody else shows gives its space back, at once or when it is reaped.
            let shown = change.forked && !self.is_own(&change, ino, inner)?;
            // What is reserved beyond the end goes with a cut to the size the file has, too.
            let reservations = size <= inner.size && inner.record.flags & INODE_FLAG_RESERVED != 0;
            // To the size that it has, of a file that others show with all it has: nothing, and each would cost a record.
            let cuts = size < logged.max(inner.size) || (reservations && !shown);
            let why = match (promised, cuts) {
                (true, _) => Owning::Promised,
                (false, true) => Owning::ToFree,
                (false, false) => Owning::ToAdd,
            };
            self.own_first(&change, ino, inner, why)?;
            let now = self.now();
            let mut record = inner.record_with_pending();
            let mut tx = Transaction::new();
            let (mut reap, mut reserved_freed) = (false, Unreserved::default());
            if size < logged || reservations {
                if let Some(contents) = &mut record.inline {
                    contents.truncate(size as usize);
                } else {
                    if self.sharing() || record.data.has_versions {
                        change.hold_families(self);
                    }
                    let view = self.store.view();
                    let stale = if size < logged {
                        !size.is_multiple_of(BLOCK)
                            && extents::has_data(&view, &record, size, self.sharing())?
                    } else {
                        record.flags & INODE_FLAG_STALE_TAIL != 0
                    };
                    let mut new_id = || VersionId(self.store.new_id());
                    let cut =
                        extents::truncate(&view, &mut tx, &mut record, &mut new_id, size, self.sharing())?;
                    (reap, reserved_freed) = (cut.reap, cut.reserved_freed);
                    record.flags &= !INODE_FLAG_STALE_TAIL;
                    if cut.empty {
                        record.inline = Some(Vec::new());
                        record.flags &= !INODE_FLAG_RESERVED;
                    } else if stale {
                        record.flags |= INODE_FLAG_STALE_TAIL;
                    }
                }
            }
            if cuts || promised {
                tx.privileged();
            } else if size <= inner.size {
                // Only the times change, of a record that is nobody else's by now: nothing grows.
                tx.replacing();
            }
            if shown {
                tx.sparing();
            }
            record.size = size;
            record.mtime = now;
            if caller.uid != 0 {
                record.mode = without_set_ids(record.mode);
            }
            let stays = stays_privileged(caller, inner);
            set_attributes(&mut record, set, now, stays);
            if !stays {
                self.drop_capability(&change, &mut tx, ino, &mut record)?;
            }
            if set.mode.is_some() {
                self.acl_follows(&change, &mut tx, ino, inner, record.mode)?;
            }
            self.put_record(&change, &mut tx, ino, inner, &mut record)?;
            if promised {
                tx.spares_nothing();
            }
            self.apply_freeing(tx, None, reserved_freed)?;
            inner.logged(&change, record);
            inner.pending = Pending::default();
            inner.accessed = inner.accessed.filter(|_| set.atime.is_none());
            inner.cut |= size < inner.size;
            inner.size = size;
            inner.mapping += 1;
            // Who grows alone does not wait for those who must not find it changed again and again.
            inner.grown += u64::from(held.is_none());
            if held.is_some() {
                self.cut_pages(inner, size);
            }
            if reap {
                self.reap.push(Task::Family(inner.record.data.family));
            }
            let attr = self.attr_of(ino, inner);
            drop(guard);
            drop(held);
            return Ok(attr);
        }
    }
}

/// Whether a file that gets this size only becomes longer, by a hole behind what is all logged: pages that are in flight stay where
/// they are, and none of them makes the file grow.
fn grows_alone(inner: &Inner, size: u64) -> bool {
    let stale = inner.record.flags & INODE_FLAG_STALE_TAIL != 0;
    size > inner.size && !inner.growth_waits() && inner.record.inline.is_none() && !stale
}
