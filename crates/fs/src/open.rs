//! Making, opening and closing a filesystem.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use varve_device::{Device, Histogram};
use varve_engine::{
    EngineError, FamilyId, FormatOptions, InodeId, RecoveryReport, Store, StoreOptions, Transaction, TreeId,
    VersionId, VersionKey,
};
use varve_format::record::inode::{DataPointer, InodeKind, InodeRecord, inode_key};
use varve_format::record::subvolume::{FIRST_SUBVOLUME, HASH_KIND_SIPHASH13, SubvolumeRecord};

use crate::access::Accesses;
use crate::api::{Caller, Clock, OpenOptions, ROOT_INODE};
use crate::core::Core;
use crate::files::FileCount;
use crate::hash::NameHasher;
use crate::inode::{InodeTable, blank_record};
use crate::reaper::ReapQueue;
use crate::reserved::ReservedSpace;
use crate::subvolume::{Subvolume, Subvolumes};
use crate::table::subvolumes;
use crate::writeback::SyncRounds;
use crate::writeback::buffers::Buffers;
use crate::writeback::list::DirtyList;
use crate::writeback::order::OldestFirst;
use crate::{FsError, Result};

/// Writes a new pool with an empty root directory.
pub(crate) fn format(
    devices: &[Arc<dyn Device>],
    options: &FormatOptions,
    owner: Caller,
    clock: &dyn Clock,
    hash_kind: u8,
) -> Result<()> {
    Store::format(devices, options)?;
    let open = StoreOptions { background: false, ..StoreOptions::default() };
    let (store, _) = Store::open(devices.to_vec(), open)?;
    let now = clock.now();
    let family = FamilyId(FIRST_SUBVOLUME);
    let root = InodeRecord {
        mode: 0o755,
        uid: owner.uid,
        gid: owner.gid,
        parent: ROOT_INODE,
        data: DataPointer {
            family: FamilyId(ROOT_INODE.0),
            version: VersionId(ROOT_INODE.0),
            has_versions: false,
        },
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..blank_record(InodeKind::Directory)
    };
    let record = first_subvolume(hash_kind);
    NameHasher::new(hash_kind, store.hash_seed()).ok_or(FsError::Invalid)?;
    let mut tx = Transaction::new();
    tx.claim_id(FIRST_SUBVOLUME);
    subvolumes::put_first(&mut tx, &record);
    tx.put(TreeId::INODES, &inode_key(family, ROOT_INODE, VersionKey(record.version.0)), &root.encode());
    store.apply(tx, None)?;
    store.close()?;
    Ok(())
}

/// The record of a new pool's filesystem.
fn first_subvolume(hash_kind: u8) -> SubvolumeRecord {
    SubvolumeRecord {
        family: FamilyId(FIRST_SUBVOLUME),
        version: VersionId(FIRST_SUBVOLUME),
        root: ROOT_INODE,
        hash_kind,
        files: 1,
        files_known: true,
        reserved_blocks: 0,
        slot: 0,
        uuid: [0; 16],
        flags: 0,
        place: None,
    }
}

impl Core {
    /// Opens a pool, recovering it if need be.
    pub(crate) fn open(
        devices: Vec<Arc<dyn Device>>,
        options: OpenOptions,
    ) -> Result<(Core, RecoveryReport)> {
        let (store, report) = Store::open(devices, options.store.clone())?;
        let record = subvolumes::first(&store)?.ok_or_else(|| {
            let text = "the pool holds no filesystem: creating it was interrupted; create it again";
            EngineError::Refused(text.into())
        })?;
        Core::on(store, record, None, options).map(|core| (core, report))
    }

    /// Opens a pool to check it, damaged as it may be.
    pub(crate) fn open_to_check(
        devices: Vec<Arc<dyn Device>>,
        mut options: OpenOptions,
    ) -> Result<(Core, RecoveryReport)> {
        options.store = StoreOptions { read_only: true, background: false, ..options.store };
        let (store, report) = Store::open_to_check(devices, options.store.cache_bytes)?;
        let found = match subvolumes::first(&store) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err("the pool has no record of its filesystem".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let (record, problem) = match found {
            Ok(record) => (record, None),
            // What `create` writes: so the rest can be looked at.
            Err(why) => (first_subvolume(HASH_KIND_SIPHASH13), Some(why)),
        };
        Core::on(store, record, problem, options).map(|core| (core, report))
    }

    /// The filesystem in `store`.
    fn on(
        store: Arc<Store>,
        record: SubvolumeRecord,
        subvolume_problem: Option<String>,
        options: OpenOptions,
    ) -> Result<Core> {
        let (read_only, background) = (options.store.read_only, options.store.background);
        let hasher = NameHasher::new(record.hash_kind, store.hash_seed()).ok_or_else(|| {
            let text = format!(
                "the pool hashes names in a way ({}) this program does not know; open it with a newer one",
                record.hash_kind
            );
            EngineError::Refused(text)
        })?;
        let core = Core {
            subvolumes: Subvolumes::new(Subvolume::new(&store, &record, hasher)),
            store,
            inodes: InodeTable::default(),
            rename_lock: Mutex::new(()),
            dirty: DirtyList::default(),
            dirty_bytes_max: options.dirty_bytes_max,
            order: Box::new(OldestFirst),
            next_job: AtomicU64::new(0),
            rounds: SyncRounds::default(),
            reap: ReapQueue::default(),
            files: FileCount::new(record),
            accesses: Accesses::default(),
            clock: options.clock,
            on_data_logged: options.on_data_logged,
            reserved: ReservedSpace::default(),
            buffers: Buffers::default(),
            read_only,
            background,
            subvolume_problem,
            closed: AtomicBool::new(false),
            read_latency: Histogram::new(),
            write_latency: Histogram::new(),
        };
        if !read_only {
            core.set_reserved_aside()?;
            core.find_reap_work()?;
            if !background {
                core.reap_all()?;
            }
        }
        Ok(core)
    }

    /// Makes everything durable and closes.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut result = Ok(());
        if !self.read_only {
            // What fails keeps the rest from nothing: the store is closed all the same, with all that could be logged.
            result = self.write_back_all();
            result = result.and(self.log_accesses());
            result = result.and(self.reap_all());
            result = result.and(self.count_files().and_then(|()| self.store_count()));
        }
        result.and(self.store.close().map_err(FsError::from))
    }

    /// Does the background work that is due.
    pub(crate) fn maintain(&self) -> Result<()> {
        if self.read_only || self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.write_back_old()?;
        if self.dirty.bytes() == 0 {
            self.buffers.clear();
        }
        self.reap_all()?;
        self.count_files()?;
        if !self.background {
            self.store.maintain()?;
        }
        Ok(())
    }

    /// The root, which has no name, is its own parent.
    pub(crate) fn root(&self) -> InodeId {
        ROOT_INODE
    }
}
