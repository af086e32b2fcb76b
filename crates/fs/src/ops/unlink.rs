//! Removing names, and what follows when it was the last one.

use std::sync::Arc;

use parking_lot::RwLockWriteGuard;
use varve_engine::planted::{Planted, is};
use varve_engine::{EngineError, InodeId, Transaction};
use varve_format::Corrupt;
use varve_format::record::inode::{InodeKind, InodeRecord, Time};
use varve_format::record::orphan::OrphanState;

use super::flags::{Touch, require_unprotected};
use super::require_directory;
use crate::core::{Core, touch, touch_directory};
use crate::inode::{Inner, InodeState, Presence};
use crate::reaper::Task;
use crate::subvolume::Change;
use crate::table::names::{Bucket, Found};
use crate::table::orphans;
use crate::{FsError, Result};

/// What becomes of an inode that loses a name; to be taken over once the transaction has been applied.
pub enum Dropped {
    /// It has others.
    Linked(InodeRecord),
    /// It is open.
    Orphan(InodeRecord),
    /// It is gone.
    Deleted,
    /// It is gone, and the reaper has the rest of it to do.
    Reaped,
}

/// Who disposes of an inode that nobody has any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Disposal {
    /// Whoever takes its last name, in the same step; the reaper of what is more than that may take.
    Now,
    /// The reaper of all of it.
    Later,
}

/// Takes a name: what cannot be read of an inode keeps its space, and keeps nobody from that. `attempt` has changed nothing when it fails.
pub(crate) fn past_damage<T>(attempt: impl Fn(Disposal) -> Result<T>) -> Result<T> {
    match attempt(Disposal::Now) {
        Err(FsError::Engine(error)) if error.is_damage() => attempt(Disposal::Later),
        result => result,
    }
}

impl Core {
    pub fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.admit(parent)?;
        self.permit(parent, Touch::NameGoes)?;
        self.with_space_patiently(|| self.remove(parent, name, false))
    }

    pub(crate) fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.admit(parent)?;
        self.permit(parent, Touch::NameGoes)?;
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        for _ in 0..super::RETRIES_MAX {
            match self.with_space_patiently(|| self.remove(parent, name, true)) {
                Err(FsError::IsSubvolume) => {}
                result => return result,
            }
            match self.delete_empty_subvolume(parent, name) {
                // It was one a moment ago.
                Err(FsError::NotSubvolume) => {}
                result => return result,
            }
        }
        Err(FsError::NotFound)
    }

    fn remove(&self, parent: InodeId, name: &[u8], directory: bool) -> Result<()> {
        past_damage(|disposal| self.remove_once(parent, name, directory, disposal))
    }

    fn remove_once(&self, parent: InodeId, name: &[u8], directory: bool, disposal: Disposal) -> Result<()> {
        let state = self.state(parent);
        for _ in 0..super::RETRIES_MAX {
            let change = self.change(parent)?;
            let mut dir = self.write_lock(&state)?;
            let (bucket, found) = self.find_to_remove(&change, &dir, parent, name, directory)?;
            let child_state = self.state(found.ino);
            if found.ino > parent {
                // As a rule: what is in a directory is younger than it.
                let mut child = self.write_lock(&child_state)?;
                self.remove_locked(&change, (parent, name), &mut dir, (bucket, found), &mut child, disposal)?;
                drop((child, dir, change));
                self.part_with(child_state);
                return Ok(());
            }
            // In ascending order, then, and see whether the name still means the same.
            drop(dir);
            let mut child = match self.write_lock(&child_state) {
                Ok(child) => child,
                Err(FsError::NotFound) => continue,
                Err(error) => return Err(error),
            };
            let mut dir = self.write_lock(&state)?;
            let (bucket, again) = self.find_to_remove(&change, &dir, parent, name, directory)?;
            if again.ino == found.ino {
                self.remove_locked(&change, (parent, name), &mut dir, (bucket, again), &mut child, disposal)?;
                drop((child, dir, change));
                self.part_with(child_state);
                return Ok(());
            }
            // Each time round somebody else has changed the name.
        }
        Err(FsError::NotFound)
    }

    fn find_to_remove(
        &self,
        change: &Change,
        dir: &Inner,
        parent: InodeId,
        name: &[u8],
        directory: bool,
    ) -> Result<(Bucket, Found)> {
        require_directory(dir)?;
        if name.len() > crate::api::NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let bucket = change.bucket(parent, name)?;
        let Some(found) = bucket.find(name) else {
            return Err(match self.nested(parent, name)? {
                Some(_) if directory => FsError::IsSubvolume,
                Some(_) => FsError::IsDirectory,
                None => FsError::NotFound,
            });
        };
        if found.ino == parent {
            let why = Corrupt { what: "entry that leads to its own directory", at: 0 };
            return Err(EngineError::corrupt(format!("directory {}", parent.0), why).into());
        }
        match (found.kind == InodeKind::Directory, directory) {
            (true, false) => Err(FsError::IsDirectory),
            (false, true) => Err(FsError::NotDirectory),
            _ => Ok((bucket, found)),
        }
    }

    fn remove_locked(
        &self,
        change: &Change,
        (parent, name): (InodeId, &[u8]),
        dir: &mut RwLockWriteGuard<'_, Inner>,
        (mut bucket, found): (Bucket, Found),
        child: &mut RwLockWriteGuard<'_, Inner>,
        disposal: Disposal,
    ) -> Result<()> {
        require_unprotected(&child.record)?;
        if found.kind == InodeKind::Directory
            && (child.record.size > 0 || self.subvolumes.nested.count_in(found.ino) > 0)
        {
            return Err(FsError::NotEmpty);
        }
        let now = self.now();
        let mut tx = Transaction::new();
        let known = self.known_name(parent, bucket.base(), name);
        bucket.remove(found.sequence);
        change.put_bucket(&mut tx, &bucket)?;
        let mut dir_record = dir.record.clone();
        touch_directory(&mut dir_record, now, -1, -i64::from(found.kind == InodeKind::Directory));
        self.put_record(change, &mut tx, parent, dir, &mut dir_record)?;
        let dropped = self.drop_link(change, &mut tx, found.ino, child, now, disposal)?;
        tx.privileged();
        {
            let _counting = self.counting()?;
            let _changing = self.known.change([known, None]);
            self.apply(tx)?;
            change.applied();
        }
        dir.size = dir_record.size;
        dir.take_over(change, dir_record);
        self.take_over_dropped(change, found.ino, child, dropped);
        Ok(())
    }

    /// Adds to `tx` what it takes that `ino` loses one name.
    pub(crate) fn drop_link(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        inner: &Inner,
        now: Time,
        disposal: Disposal,
    ) -> Result<Dropped> {
        let mut record = inner.record.clone();
        touch(&mut record, now);
        record.links = record.links.saturating_sub(1);
        if record.links > 0 {
            self.put_record(change, tx, ino, inner, &mut record)?;
            return Ok(Dropped::Linked(record));
        }
        let own = !change.forked || self.is_own(change, ino, inner)?;
        change.delete_inode(tx, ino)?;
        if inner.opens > 0 {
            if !own {
                self.share_data(change, tx, &inner.record, &mut record)?;
            }
            if own {
                change.will_count(ino, -1);
            }
            if !is(Planted::LostOrphan) {
                orphans::put(tx, ino, OrphanState::Open, &record);
            }
            return Ok(Dropped::Orphan(record));
        }
        if own {
            change.will_count(ino, -1);
        } else {
            // Whoever it is inherited from keeps the data.
            record.inline = Some(Vec::new());
        }
        if disposal == Disposal::Now && self.dispose_step(change, tx, ino, &record)? {
            return Ok(Dropped::Deleted);
        }
        orphans::put(tx, ino, OrphanState::Deleting, &record);
        Ok(Dropped::Reaped)
    }

    /// Brings an inode's state in memory in step with what [`Core::drop_link`] logged.
    pub(crate) fn take_over_dropped(
        &self,
        change: &Change,
        ino: InodeId,
        inner: &mut Inner,
        dropped: Dropped,
    ) {
        match dropped {
            Dropped::Linked(record) => inner.take_over(change, record),
            Dropped::Orphan(record) => {
                inner.take_over(change, record);
                inner.presence = Presence::Orphan;
            }
            Dropped::Deleted => self.forget(inner),
            Dropped::Reaped => {
                self.forget(inner);
                self.reap.push(Task::Orphan(ino));
            }
        }
    }

    /// Keeps nothing of the inode in memory if it is gone and nobody else uses it. The caller holds no lock on it, and no [`Change`] with
    /// which he may hold the families of data, for which somebody who has the inode may be waiting.
    pub(crate) fn part_with(&self, state: Arc<InodeState>) {
        let gone = {
            let inner = state.inner.read();
            inner.presence == Presence::Gone && inner.opens == 0
        };
        if gone {
            self.inodes.let_go(state);
        }
    }

    /// The inode is no more: its dirty data is dropped.
    pub(crate) fn forget(&self, inner: &mut Inner) {
        self.drop_pages(inner, 0);
        inner.presence = Presence::Gone;
        inner.mapping += 1;
    }
}
