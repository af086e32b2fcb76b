//! Background deletion: orphans whose data is more than a transaction can delete, and versions left by truncations.
//!
//! The queue is only a hint of where work is; what has to be done is in the pool (orphan records, version records), so
//! that a crash forgets nothing: opening finds it all again. Each step is one bounded, privileged transaction.

use std::collections::VecDeque;

use parking_lot::Mutex;
use varve_engine::{FamilyId, InodeId, Transaction, version};
use varve_format::record::inode::{INODE_FLAG_RESERVED, InodeRecord};

use crate::core::Core;
use crate::subvolume::Change;
use crate::table::{extents, orphans};
use crate::{FsError, Result};

/// Entries deleted in one transaction.
const ENTRIES_PER_STEP: usize = 128;
/// Families asked for at a time when a pool is opened.
const FAMILIES_PER_SCAN: usize = 1024;

/// Something to reap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// An orphan to delete.
    Orphan(InodeId),
    /// A file whose family has versions to collapse.
    Versions(InodeId),
}

/// What a step of deleting an inode did.
struct Disposed {
    /// Whether nothing is left.
    done: bool,
    /// Blocks of reservations that are gone.
    reserved_freed: u64,
}

/// What is to be reaped. Bounded by what is being deleted: an entry is 16 bytes, its subject at least a record.
#[derive(Default)]
pub(crate) struct ReapQueue {
    tasks: Mutex<VecDeque<Task>>,
    running: Mutex<()>,
}

impl ReapQueue {
    /// Adds work.
    pub(crate) fn push(&self, task: Task) {
        let mut tasks = self.tasks.lock();
        if tasks.back() != Some(&task) {
            tasks.push_back(task);
        }
    }
    /// How many tasks there are.
    pub(crate) fn backlog(&self) -> u64 {
        self.tasks.lock().len() as u64
    }
    /// Whether there is work.
    pub(crate) fn has_work(&self) -> bool {
        !self.tasks.lock().is_empty()
    }
}

impl Core {
    /// As [`Core::dispose_part`] where the file has no reservations; a file that has them is left to the reaper.
    pub(crate) fn dispose_step(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        record: &InodeRecord,
    ) -> Result<bool> {
        if record.flags & INODE_FLAG_RESERVED != 0 {
            return Ok(false);
        }
        Ok(self.dispose_part(change, tx, ino, record)?.done)
    }

    /// Adds to `tx` the deletion of an inode's data and attributes, as much as one step may.
    fn dispose_part(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        record: &InodeRecord,
    ) -> Result<Disposed> {
        let mut reserved_freed = 0;
        if record.inline.is_some() && record.xattr_count == 0 {
            return Ok(Disposed { done: true, reserved_freed });
        }
        let view = self.store.view();
        let mut more = false;
        if record.inline.is_none() {
            let holder = extents::holder(record);
            let progress = version::delete_step(&view, tx, holder, ENTRIES_PER_STEP as u64)?;
            more |= progress.more;
            reserved_freed = progress.reserved_freed;
        }
        if record.xattr_count > 0 {
            more |= change.delete_xattrs(tx, ino, ENTRIES_PER_STEP)?;
        }
        Ok(Disposed { done: !more, reserved_freed })
    }

    /// Does everything there is to reap. What is damaged is left as it is, and said in the log.
    pub(crate) fn reap_all(&self) -> Result<()> {
        let _running = self.reap.running.lock();
        loop {
            let Some(task) = self.reap.tasks.lock().front().copied() else { return Ok(()) };
            let reaped = match task {
                Task::Orphan(ino) => self.reap_orphan(ino),
                Task::Versions(ino) => self.reap_versions(ino),
            };
            match reaped {
                Ok(()) => {}
                Err(FsError::Engine(error)) if error.is_damage() => {
                    // It keeps its space, and keeps nothing else from being reaped; the next opening finds it again.
                    tracing::error!("{task:?} cannot be reaped: {error}; `varve check` says what is damaged");
                }
                Err(error) => return Err(error),
            }
            // Only here are tasks removed, and `running` is held.
            self.reap.tasks.lock().pop_front();
        }
    }

    fn reap_orphan(&self, ino: InodeId) -> Result<()> {
        // Nobody else changes an orphan that is not open: its state in memory is gone.
        while let Some(orphan) = orphans::get(&self.store, ino)? {
            let mut tx = Transaction::new();
            let change = self.change(ino)?;
            let disposed = self.dispose_part(&change, &mut tx, ino, &orphan.inode)?;
            if disposed.done {
                orphans::delete(&mut tx, ino);
            }
            tx.privileged();
            self.apply_freeing(tx, None, disposed.reserved_freed)?;
        }
        Ok(())
    }

    /// Makes the versions of a file one.
    pub(crate) fn reap_versions(&self, ino: InodeId) -> Result<()> {
        let state = self.state(ino);
        loop {
            let mut inner = match self.write_lock(&state) {
                Ok(inner) => inner,
                // Deleted meanwhile: its versions went or go with it.
                Err(FsError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut tx = Transaction::new();
            let progress = {
                let view = self.store.view();
                version::reap_step(&view, &mut tx, inner.record.data.family, ENTRIES_PER_STEP as u64)?
            };
            if !tx.is_empty() {
                tx.privileged();
                self.apply_freeing(tx, None, progress.reserved_freed)?;
                inner.mapping += 1;
            }
            if !progress.more {
                return Ok(());
            }
        }
    }

    /// Finds what an earlier life left to be reaped.
    pub(crate) fn find_reap_work(&self) -> Result<()> {
        let view = self.store.view();
        orphans::each(&view, &mut |ino, _| self.reap.push(Task::Orphan(ino)))?;
        let mut after: Option<FamilyId> = None;
        loop {
            let (families, next) = version::pending_families(&view, after, FAMILIES_PER_SCAN)?;
            for family in families {
                // A file's data family bears the number of its inode.
                self.reap.push(Task::Versions(InodeId(family.0)));
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}
