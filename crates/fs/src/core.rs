//! What all verbs share: the store, the namespace, inodes in memory, and dirty data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use varve_device::Histogram;
use varve_engine::{EngineError, InodeId, Lsn, Store, Transaction};
use varve_format::record::inode::{InodeKind, InodeRecord, Time};

use crate::access::Accesses;
use crate::api::{Attr, Clock, DataLogged, NAME_BYTES_MAX};
use crate::files::FileCount;
use crate::inode::{Inner, InodeState, InodeTable, Presence};
use crate::reaper::ReapQueue;
use crate::reserved::ReservedSpace;
use crate::subvolume::{Change, Subvolumes};
use crate::writeback::SyncRounds;
use crate::writeback::buffers::Buffers;
use crate::writeback::list::DirtyList;
use crate::writeback::order::WritebackOrder;
use crate::{FsError, Result};

/// The filesystem behind the door.
pub(crate) struct Core {
    pub store: Arc<Store>,
    pub subvolumes: Subvolumes,
    pub inodes: InodeTable,
    /// Taken first by renames between directories: nobody else changes which directory is in which.
    pub rename_lock: Mutex<()>,
    pub dirty: DirtyList,
    pub dirty_bytes_max: u64,
    pub order: Box<dyn WritebackOrder>,
    pub buffers: Buffers,
    pub next_job: AtomicU64,
    pub rounds: SyncRounds,
    pub reap: ReapQueue,
    pub files: FileCount,
    pub reserved: ReservedSpace,
    pub accesses: Accesses,
    pub clock: Arc<dyn Clock>,
    pub on_data_logged: Option<Arc<dyn Fn(DataLogged) + Send + Sync>>,
    pub read_only: bool,
    pub background: bool,
    /// Why the record of the filesystem could not be had, in a pool that was opened to be checked.
    pub subvolume_problem: Option<String>,
    pub closed: AtomicBool,
    pub read_latency: Histogram,
    pub write_latency: Histogram,
}

/// Write locks on several inodes.
pub(crate) struct Locked<'a> {
    guards: Vec<(InodeId, RwLockWriteGuard<'a, Inner>)>,
}

impl Locked<'_> {
    /// The inode `ino`, which is one of those locked.
    pub(crate) fn get(&mut self, ino: InodeId) -> &mut Inner {
        let (_, guard) = self
            .guards
            .iter_mut()
            .find(|(i, _)| *i == ino)
            .expect("only inodes that were locked are asked for");
        guard
    }
}

impl Core {
    /// Now.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The state of `ino`.
    pub(crate) fn state(&self, ino: InodeId) -> Arc<InodeState> {
        self.inodes.state(ino)
    }

    /// Locks an inode for changing it, loading it if need be. Fails if there is no such inode.
    pub(crate) fn write_lock<'a>(&self, state: &'a InodeState) -> Result<RwLockWriteGuard<'a, Inner>> {
        let mut inner = state.inner.write();
        self.load(state.ino, &mut inner)?;
        Ok(inner)
    }

    /// Locks an inode for looking at it, loading it if need be. Fails if there is no such inode.
    pub(crate) fn read_lock<'a>(&self, state: &'a InodeState) -> Result<RwLockReadGuard<'a, Inner>> {
        let inner = state.inner.read();
        match inner.presence {
            Presence::Live | Presence::Orphan => return Ok(inner),
            Presence::Gone => return Err(FsError::NotFound),
            Presence::Unloaded => drop(inner),
        }
        Ok(RwLockWriteGuard::downgrade(self.write_lock(state)?))
    }

    fn load(&self, ino: InodeId, inner: &mut Inner) -> Result<()> {
        if inner.presence == Presence::Unloaded {
            match self.names(ino)?.inode(ino)? {
                Some((record, version)) => inner.install(record, version, Presence::Live),
                None => inner.presence = Presence::Gone,
            }
        }
        if inner.presence == Presence::Gone { Err(FsError::NotFound) } else { Ok(()) }
    }

    /// Locks several inodes in ascending order; each number may come more than once. `states` is sorted in place.
    pub(crate) fn lock_all<'a>(&self, states: &'a mut Vec<Arc<InodeState>>) -> Result<Locked<'a>> {
        states.sort_by_key(|state| state.ino);
        states.dedup_by_key(|state| state.ino);
        let mut guards = Vec::with_capacity(states.len());
        for state in states.iter() {
            guards.push((state.ino, self.write_lock(state)?));
        }
        Ok(Locked { guards })
    }

    /// Applies a transaction.
    pub(crate) fn apply(&self, tx: Transaction) -> Result<Lsn> {
        Ok(self.store.apply(tx, None)?)
    }

    /// Runs `op`; when it is refused for lack of space, brings home what can be (dirty data logs with less space than
    /// was set aside for it, deleted files are still being reaped) and runs it once more. `op` holds no lock when it
    /// returns and has changed nothing when it is refused.
    pub(crate) fn with_space<T>(&self, op: impl Fn() -> Result<T>) -> Result<T> {
        match op() {
            Err(FsError::Engine(EngineError::NoSpace)) if self.reclaim()? => op(),
            result => result,
        }
    }

    /// Logs all dirty data, reaps what is deleted, makes it durable. False if there was nothing to do.
    pub(crate) fn reclaim(&self) -> Result<bool> {
        let work = self.dirty.bytes() > 0 || self.reap.has_work();
        if work {
            self.write_back_all()?;
            self.reap_all()?;
            self.store.commit(self.store.position())?;
        }
        Ok(work)
    }

    /// Puts a record where it belongs: the namespace, or the orphans.
    pub(crate) fn put_record(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        inner: &Inner,
        record: &mut InodeRecord,
    ) -> Result<()> {
        use varve_format::record::orphan::OrphanState;
        if inner.presence == Presence::Orphan {
            crate::table::orphans::put(tx, ino, OrphanState::Open, record);
        } else {
            change.put_inode(tx, ino, record)?;
        }
        Ok(())
    }
}

/// What stat shows of an inode.
pub(crate) fn attr(ino: InodeId, inner: &Inner) -> Attr {
    let record = &inner.record;
    let (mtime, ctime) = inner.times();
    let blocks = match record.kind {
        InodeKind::File | InodeKind::Symlink => inner.size.div_ceil(512),
        _ => 0,
    };
    Attr {
        ino,
        generation: record.generation,
        kind: record.kind,
        mode: u32::from(inner.mode()),
        links: links(record),
        uid: record.uid,
        gid: record.gid,
        rdev: if record.kind == InodeKind::Directory { 0 } else { record.rdev },
        size: inner.size,
        blocks,
        atime: inner.access_time(),
        mtime,
        ctime,
        btime: record.btime,
    }
}

/// Checks a name that is to be created.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(FsError::NotFound),
        b"." | b".." => Err(FsError::Exists),
        _ if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        _ if name.iter().any(|byte| *byte == b'/' || *byte == 0) => Err(FsError::Invalid),
        _ => Ok(()),
    }
}

/// Records that an inode changed.
pub(crate) fn touch(record: &mut InodeRecord, now: Time) {
    record.ctime = now;
    record.change += 1;
}

/// Records that a directory's entries changed by `entries`, of which `directories` are directories.
pub(crate) fn touch_directory(record: &mut InodeRecord, now: Time, entries: i64, directories: i64) {
    record.mtime = now;
    record.size = record.size.saturating_add_signed(entries);
    record.rdev = match (record.rdev, u32::try_from(i64::from(record.rdev) + directories)) {
        // Made by a version that did not count.
        (0, _) => 0,
        (_, Ok(counted)) => counted,
        (_, Err(_)) => 0,
    };
    touch(record, now);
}

/// Links as stat shows them: a directory's name, its own ".", and the ".." of each directory in it. Directories whose
/// count is not known show 1, which tells find(1) and others not to draw conclusions.
fn links(record: &InodeRecord) -> u32 {
    match record.kind {
        InodeKind::Directory if record.links > 0 && record.rdev > 0 => record.rdev.saturating_add(1),
        _ => record.links,
    }
}
