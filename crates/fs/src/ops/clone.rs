//! Clones: a file that shares all data of another until either is written to.
//!
//! One transaction, however large the source: one more holder of the version of data that the source holds, and with
//! [`Core::clone_file`] the name and the inode, too, so that a crash leaves all of the clone or nothing. What of the
//! source waits in memory is logged first; who writes to it without a pause is made to pause. Nothing of the source changes, so
//! it may lie in a read-only snapshot.

use std::sync::atomic::Ordering;

use varve_engine::version;
use varve_engine::{InodeId, Lsn, Transaction};
use varve_format::record::inode::{INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL, InodeRecord};
use varve_format::record::subvolume::{SUBVOLUME_SHARING, SubvolumeRecord};

use super::create::Content;
use super::flags::Touch;
use super::{require_file, without_set_ids};
use crate::api::{Attr, Caller, DataLogged, FileKind, NewInode};
use crate::core::{Core, Owning, touch};
use crate::inode::{Calm, Inner, Presence};
use crate::subvolume::Change;
use crate::table::extents;
use crate::writeback::Ride;
use crate::{FsError, Result};

/// Rounds in which the source is dirty again when it is looked at.
const ROUNDS_MAX: u32 = 16;

impl Core {
    /// As a verb that logs by itself what is in its way ([`Core::thawing`]).
    pub(crate) fn clone_file(
        &self,
        caller: Caller,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr> {
        let mut calm = Calm::default();
        self.thawing(|| {
            let made = self.clone_file_once(caller, source, parent, name);
            if matches!(&made, Err(FsError::Frozen(ino)) if *ino == source) {
                calm.next(&self.state(source));
            }
            made
        })
    }

    fn clone_file_once(&self, caller: Caller, source: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.admit_beside(source, parent)?;
        self.permit(parent, Touch::NewName)?;
        require_file(&*self.read_lock(&self.state(source))?)?;
        if source == parent {
            return Err(FsError::NotDirectory);
        }
        let new = NewInode { kind: FileKind::File, mode: 0, umask: 0, rdev: 0, set_gid_judged: false };
        self.with_space(|| self.make(caller, parent, name, new, Content::CloneOf(source)))
    }

    /// Adds what makes `record`, of a file with nothing in it, that of a clone of the file with the record `before`, of
    /// which nothing waits in memory.
    pub(super) fn share_all(
        &self,
        change: &Change,
        tx: &mut Transaction,
        before: &InodeRecord,
        record: &mut InodeRecord,
    ) -> Result<()> {
        record.size = before.size;
        record.inline.clone_from(&before.inline);
        record.flags |= before.flags & (INODE_FLAG_STALE_TAIL | INODE_FLAG_RESERVED);
        if before.inline.is_none() {
            // From here on the record of the version stays as it is; whether there is one yet, this looks itself.
            change.hold_families(self);
            let mut holder = extents::holder(before);
            version::share(&self.store, tx, &mut holder)?;
            record.data = extents::pointer(holder);
        }
        Ok(())
    }

    /// Applies a transaction with which the file with this `record` became a clone.
    pub(super) fn apply_sharing(&self, tx: Transaction, record: &InodeRecord) -> Result<Lsn> {
        if record.inline.is_some() || self.sharing() {
            return self.apply(tx);
        }
        let sharing = |first: &mut SubvolumeRecord| first.flags |= SUBVOLUME_SHARING;
        let lsn = self.apply_record(tx, &self.subvolumes.first, sharing)?;
        self.sharing.store(true, Ordering::Release);
        Ok(lsn)
    }

    /// Makes the empty file `target` a clone of `source`, and gives how many bytes it has. `None`, and nothing has changed, if it is not empty, or the
    /// source has more than `size_max` bytes or is written to all the time.
    pub fn clone_into(
        &self,
        caller: Caller,
        source: InodeId,
        target: InodeId,
        size_max: u64,
    ) -> Result<Option<u64>> {
        if source == target {
            return Ok(None);
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
                return Ok(None);
            }
            let into = locked.get(target);
            require_file(into)?;
            if !is_blank(into) {
                return Ok(None);
            }
            self.own_first(&change, target, into, Owning::ToAdd)?;
            let mut tx = Transaction::new();
            let mut record = into.record_with_pending();
            self.share_all(&change, &mut tx, &before, &mut record)?;
            let now = self.now();
            record.mtime = now;
            touch(&mut record, now);
            if caller.uid != 0 {
                record.mode = without_set_ids(record.mode);
            }
            self.drop_capability(&change, &mut tx, target, &mut record)?;
            self.put_record(&change, &mut tx, target, into, &mut record)?;
            let lsn = self.apply_sharing(tx, &record)?;
            into.size = record.size;
            self.changed_to(&change, into, record);
            if let Some(observer) = &self.on_data_logged {
                observer(DataLogged { ino: target, offset: 0, len: before.size, size: before.size, lsn });
            }
            return Ok(Some(before.size));
        }
        Ok(None)
    }
}

/// Refuses what cannot be cloned as it is: anything but a file, and one of which something waits in memory, which the
/// door then logs.
pub(super) fn require_clean(from: &Inner, content: Content<'_>) -> Result<()> {
    require_file(from)?;
    match content {
        Content::CloneOf(source) if !from.pages.is_empty() => Err(FsError::Frozen(source)),
        _ => Ok(()),
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
