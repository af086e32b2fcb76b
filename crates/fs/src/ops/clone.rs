//! Clones: a file that shares all data of another until either is written to.
//!
//! One transaction, however large the source: one more holder of the version of data that the source holds. What of the
//! source waits in memory is logged first. Nothing of the source changes, so it may lie in a read-only snapshot.

use std::sync::atomic::Ordering;

use varve_engine::version;
use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::{INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL};
use varve_format::record::subvolume::{SUBVOLUME_SHARING, SubvolumeRecord};

use super::{require_file, without_set_ids};
use crate::api::{Attr, Caller, DataLogged};
use crate::core::{Core, touch};
use crate::inode::{Inner, Presence};
use crate::table::extents;
use crate::writeback::Ride;
use crate::{FsError, Result};

/// Rounds in which the source is dirty again when it is looked at.
const ROUNDS_MAX: u32 = 16;

impl Core {
    pub(crate) fn clone_file(
        &self,
        caller: Caller,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr> {
        let mode = {
            let state = self.state(source);
            let inner = self.read_lock(&state)?;
            require_file(&inner)?;
            u32::from(inner.mode() & 0o777)
        };
        let new = crate::api::NewInode { kind: crate::api::FileKind::File, mode, umask: 0, rdev: 0 };
        let made = self.make_inode(caller, parent, name, new)?.ino;
        match self.with_space(|| self.clone_into(caller, source, made, u64::MAX)) {
            Ok(true) => self.thawing(|| self.getattr(made)),
            // Somebody else has written to it already.
            Ok(false) => Err(FsError::Exists),
            Err(error) => {
                self.unlink(parent, name)?;
                Err(error)
            }
        }
    }

    /// Makes the empty file `target` a clone of `source`. False, and nothing has changed, if it is not empty, or the
    /// source has more than `size_max` bytes or is written to all the time.
    pub(crate) fn clone_into(
        &self,
        caller: Caller,
        source: InodeId,
        target: InodeId,
        size_max: u64,
    ) -> Result<bool> {
        if source == target {
            return Ok(false);
        }
        for _ in 0..ROUNDS_MAX {
            self.write_back(&self.state(source), Ride::Allowed)?;
            let change = self.change(target)?;
            // Nobody forks the source's subvolume meanwhile.
            let _names = self.names(source)?;
            let mut states = vec![self.state(source), self.state(target)];
            let mut locked = self.lock_all(&mut states)?;
            let from = locked.get(source);
            require_file(from)?;
            if !from.pages.is_empty() {
                continue;
            }
            let before = from.record.clone();
            if before.size > size_max {
                return Ok(false);
            }
            let into = locked.get(target);
            require_file(into)?;
            if !is_blank(into) {
                return Ok(false);
            }
            self.own_first(&change, target, into, None)?;
            let mut tx = Transaction::new();
            let mut record = into.record_with_pending();
            record.size = before.size;
            record.inline.clone_from(&before.inline);
            record.flags |= before.flags & (INODE_FLAG_STALE_TAIL | INODE_FLAG_RESERVED);
            if before.inline.is_none() {
                change.hold_families(self);
                let view = self.store.view();
                let mut holder = extents::holder_now(&view, &before, true)?;
                version::share(&view, &mut tx, &mut holder)?;
                record.data = extents::pointer(holder);
            }
            let now = self.now();
            record.mtime = now;
            touch(&mut record, now);
            if caller.uid != 0 {
                record.mode = without_set_ids(record.mode);
            }
            self.put_record(&change, &mut tx, target, into, &mut record)?;
            let lsn = if before.inline.is_some() || self.sharing() {
                self.apply(tx)?
            } else {
                let sharing = |first: &mut SubvolumeRecord| first.flags |= SUBVOLUME_SHARING;
                let lsn = self.apply_record(tx, &self.subvolumes.first, sharing)?;
                self.sharing.store(true, Ordering::Release);
                lsn
            };
            into.size = record.size;
            self.changed_to(&change, into, record);
            if let Some(observer) = &self.on_data_logged {
                observer(DataLogged { ino: target, offset: 0, len: before.size, size: before.size, lsn });
            }
            return Ok(true);
        }
        Ok(false)
    }
}

/// Whether a file has nothing in it, and nothing to be let go of.
fn is_blank(inner: &Inner) -> bool {
    inner.presence == Presence::Live
        && inner.size == 0
        && inner.pages.is_empty()
        && inner.record.flags & INODE_FLAG_RESERVED == 0
        && inner.record.inline.as_ref().is_some_and(Vec::is_empty)
}
