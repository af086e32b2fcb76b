//! Making, opening and closing a filesystem.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use varve_device::{Device, Histogram};
use varve_engine::version::{Holder, Path};
use varve_engine::{
    EngineError, FamilyId, FormatOptions, InodeId, Lsn, Problem, ProblemKind as Kind, Problems,
    RecoveryReport, Store, StoreOptions, Transaction, TreeId, VersionId, VersionKey,
};
use varve_format::Corrupt;
use varve_format::record::inode::{DataPointer, InodeKind, InodeRecord, Time, inode_key};
use varve_format::record::subvolume::{
    FIRST_SUBVOLUME, HASH_KIND_SIPHASH13, SUBVOLUME_DELETING, SUBVOLUME_FLAGGED, SUBVOLUME_PENDING,
    SUBVOLUME_READ_ONLY, SUBVOLUME_SHARING, SubvolumeRecord,
};

use crate::access::Accesses;
use crate::api::{Caller, Clock, OpenOptions, ROOT_INODE, Timestamp};
use crate::core::Core;
use crate::files::FileCount;
use crate::hash::{NameHasher, mixed};
use crate::inode::{InodeTable, blank_record};
use crate::known::KnownNames;
use crate::reaper::ReapQueue;
use crate::reserved::ReservedSpace;
use crate::streams::Streams;
use crate::subvolume::slots::Subvolumes;
use crate::subvolume::{Gate, Slot, Subvolume};
use crate::table::{self, subvolumes};
use crate::writeback::SyncRounds;
use crate::writeback::buffers::Buffers;
use crate::writeback::frozen::Frozen;
use crate::writeback::list::DirtyList;
use crate::writeback::order::OldestFirst;
use crate::{FsError, Result};

mod numbers;

/// Memory for names that were found lately, beside the cache of nodes: one part in so many of it.
const KNOWN_NAMES_PART: u64 = 8;

/// Writes a new pool with an empty root directory.
pub fn format(
    devices: &[Arc<dyn Device>],
    options: &FormatOptions,
    owner: Caller,
    clock: &dyn Clock,
    hash_kind: u8,
) -> Result<()> {
    Store::format(devices, options)?;
    let open = StoreOptions { background: false, ..StoreOptions::default() };
    let (store, _) = Store::open(devices.to_vec(), open)?;
    let family = FamilyId(FIRST_SUBVOLUME);
    let root = root_record(owner, 0o755, clock.now());
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

/// The record of a subvolume's root: an empty directory that is in itself.
fn root_record(owner: Caller, mode: u16, now: Time) -> InodeRecord {
    InodeRecord {
        mode,
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
    }
}

/// The generation of inodes that are made from now on. A crash takes back numbers that were given and not yet durable, and the next
/// inodes have them again: who holds a handle of one that is lost (an NFS client does) tells it by this from another. 32 bits,
/// because kernels compare so much of it, and never 0.
fn generation(now: Timestamp, position: Lsn) -> u64 {
    // The position is another one where the clock begins anew at each start, unless nothing was logged.
    let time = (now.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nanoseconds));
    (mixed(mixed(time) ^ position.0) >> 32).max(1)
}

/// Whether what a subvolume stands at can be had.
fn has_path(store: &Store, record: &SubvolumeRecord, has_versions: bool) -> Result<()> {
    let holder = Holder { family: record.family, version: record.version, has_versions };
    Path::load(&store.view(), holder)?;
    Ok(())
}

impl Core {
    /// Opens a pool, recovering it if need be.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<(Core, RecoveryReport)> {
        let (store, report) = Store::open(devices, options.store.clone())?;
        let first = subvolumes::first(&store).and_then(|record| {
            let text = "the pool holds no filesystem: creating it was interrupted; create it again";
            record.ok_or_else(|| EngineError::Refused(text.into()))
        });
        let core =
            first.map_err(FsError::from).and_then(|record| Core::on(store.clone(), record, None, options));
        if core.is_err() {
            // Whoever gives up the pool's lock now, or opens it again, must not meet a checkpoint of this one.
            store.abandon();
        }
        core.map(|core| (core, report))
    }

    /// Opens a pool to check it, damaged as it may be.
    pub(crate) fn open_to_check(
        devices: Vec<Arc<dyn Device>>,
        mut options: OpenOptions,
    ) -> Result<(Core, RecoveryReport)> {
        options.store = StoreOptions { read_only: true, background: false, ..options.store };
        let (store, report) = Store::open_to_check(devices, options.store.clone())?;
        let found = match subvolumes::first(&store) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err("the pool has no record of its filesystem".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let mut problems = Problems::default();
        let record = found.unwrap_or_else(|why| {
            problems.add(Problem::new(Kind::SubvolumeMissing, why));
            // What `create` writes: so the rest can be looked at.
            first_subvolume(HASH_KIND_SIPHASH13)
        });
        Core::on(store, record, Some(problems), options).map(|core| (core, report))
    }

    /// The filesystem in `store`. With `problems`, what is wrong with its subvolumes is noted there, and those that can be
    /// had are opened; without, it is an error.
    fn on(
        store: Arc<Store>,
        record: SubvolumeRecord,
        mut problems: Option<Problems>,
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
        let sharing = record.flags & SUBVOLUME_SHARING != 0;
        // Of a pool that is looked at though it is damaged, nothing is changed.
        let flagged = record.flags & SUBVOLUME_FLAGGED != 0;
        let gate = Gate::default();
        let mut record = record;
        let missing = problems.as_ref().is_some_and(|problems| !problems.list.is_empty());
        let mut has_versions = sharing && !missing;
        if let Some(problems) = &mut problems
            && let Err(why) = has_path(&store, &record, has_versions)
        {
            problems.add(Problem::new(Kind::SubvolumeVersion, format!("the first subvolume: {why}")));
            (record.version, has_versions) = (VersionId(record.family.0), false);
        }
        let holder = Holder { family: record.family, version: record.version, has_versions };
        let first = Subvolume::new(FIRST_SUBVOLUME, Slot::FIRST, false, gate, holder);
        let subvolumes = Subvolumes::new(first, hasher);
        let generation = generation(options.clock.now(), store.position());
        let mut core = Core {
            known: KnownNames::new(options.store.cache_bytes / KNOWN_NAMES_PART),
            subvolumes,
            generation,
            store,
            inodes: InodeTable::default(),
            rename_lock: Mutex::new(()),
            dirty: DirtyList::default(),
            frozen: Frozen::default(),
            dirty_bytes_max: options.dirty_bytes_max,
            order: Box::new(OldestFirst),
            next_job: AtomicU64::new(0),
            rounds: SyncRounds::default(),
            reap: ReapQueue::default(),
            files: Arc::new(FileCount::new(record)),
            sharing: AtomicBool::new(sharing),
            flagged: AtomicBool::new(flagged),
            names_elsewhere: AtomicBool::new(false),
            families: Arc::default(),
            accesses: Accesses::default(),
            diff_hints: Mutex::default(),
            clock: options.clock,
            on_data_logged: options.on_data_logged,
            known_outside: RwLock::default(),
            reserved: ReservedSpace::default(),
            float_queue: Mutex::default(),
            buffers: Buffers::new(options.dirty_bytes_max),
            streams: Streams::default(),
            read_only,
            background,
            subvolume_problems: Problems::default(),
            closed: AtomicBool::new(false),
            outcome: Mutex::new(None),
            read_latency: Histogram::new(),
            write_latency: Histogram::new(),
        };
        let pending = core.open_subvolumes(&mut problems)?;
        core.subvolume_problems = problems.unwrap_or_default();
        if !read_only {
            core.require_new_numbers()?;
            let left = core.remove_pending(&pending, drop)?;
            core.find_reap_work()?;
            core.set_reserved_aside()?;
            if !left.is_empty() {
                // What is deleted may free what that takes. If not, they wait for the next opening.
                core.reap_for_space()?;
                core.remove_pending(&left, |task| core.reap.push(task))?;
            }
            if !background {
                core.reap_at_open()?;
            }
        }
        Ok(core)
    }

    /// Opens all subvolumes but the first. With `problems`, those that can be opened. Gives those that are pending, which have
    /// no place in a directory.
    fn open_subvolumes(&self, problems: &mut Option<Problems>) -> Result<Vec<Slot>> {
        let to_check = problems.is_some();
        let mut fault = |kind: Kind, id: u64, error: FsError| match problems {
            Some(problems) => {
                problems.add(Problem::new(kind, format!("subvolume {id}: {error}")));
                Ok(())
            }
            None => Err(error),
        };
        let corrupt = |id: u64, why: Corrupt| {
            FsError::from(EngineError::corrupt(format!("the record of subvolume {id}"), why))
        };
        let mut slots = HashMap::from([(FIRST_SUBVOLUME, Slot::FIRST)]);
        let (mut pending, mut places) = (Vec::new(), Vec::new());
        let mut taken = HashSet::from([Slot::FIRST]);
        for (id, record) in table::subvolumes::others(&self.store.view())? {
            let record = match record {
                Ok(record) => record,
                Err(why) => {
                    fault(Kind::SubvolumeMalformed, id, corrupt(id, why))?;
                    continue;
                }
            };
            let slot = Slot(record.slot);
            self.subvolumes.keep_slot(slot);
            if record.flags & SUBVOLUME_DELETING != 0 {
                continue;
            }
            if record.hash_kind != self.subvolumes.hasher.kind() || record.root != ROOT_INODE {
                let why = Corrupt { what: "subvolume with another hash or root than the first", at: 0 };
                fault(Kind::SubvolumeMalformed, id, corrupt(id, why))?;
                continue;
            }
            if !taken.insert(slot) {
                let why = Corrupt { what: "slot of another subvolume", at: 0 };
                fault(Kind::SubvolumeSlot, id, corrupt(id, why))?;
                continue;
            }
            // Otherwise it is its first user who hears of it, and the others are none the worse.
            if to_check && let Err(error) = has_path(&self.store, &record, self.sharing()) {
                fault(Kind::SubvolumeVersion, id, error)?;
                continue;
            }
            let (family, version) = (record.family, record.version);
            let holder = Holder { family, version, has_versions: self.sharing() };
            let read_only = record.flags & SUBVOLUME_READ_ONLY != 0;
            let gate = self.subvolumes.gate(family);
            self.subvolumes.add(Subvolume::new(id, slot, read_only, gate, holder));
            // What is not complete is not shown: a pool that can be written loses it, another one must not.
            if record.flags & SUBVOLUME_PENDING != 0 {
                pending.push(slot);
                continue;
            }
            slots.insert(id, slot);
            places.extend(record.place.map(|place| (id, slot, place)));
        }
        for (id, slot, place) in places {
            let Some(above) = slots.get(&place.parent) else {
                tracing::error!("subvolume {id} is in subvolume {}, which does not exist", place.parent);
                continue;
            };
            let dir = above.full(place.directory);
            *self.subvolumes.get(slot)?.place.lock() = Some((dir, place.position));
            self.subvolumes.nested.put(dir, place.position, &place.name, Some(slot));
        }
        Ok(pending)
    }

    /// Makes everything durable and closes. Who asks again waits for that, and is told what came of it.
    pub fn close(&self) -> Result<()> {
        let mut outcome = self.outcome.lock();
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        let panicked = "closing it has panicked".to_owned();
        *outcome = Some(Err(EngineError::Stopped(panicked).into()));
        let panics = self.store.stop_on_panic("closing");
        let result = self.close_once();
        panics.done();
        *outcome = Some(result.clone());
        result
    }

    fn close_once(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let mut result = Ok(());
        if !self.read_only {
            // What fails keeps the rest from nothing: the store is closed all the same, with all that could be logged.
            result = self.flush_all();
            result = result.and(self.log_accesses());
            result = result.and(self.reap_at_close());
            result = result.and(self.store_count());
        }
        result.and(self.store.close().map_err(FsError::from))
    }

    /// Does the background work that is due.
    pub(crate) fn maintain(&self) -> Result<()> {
        let reap = || {
            self.reap_all()?;
            self.make_keyframes(true)
        };
        self.maintain_with(reap, true).1
    }

    /// The same for the background, which reaps and counts a little at a time. False: there may be more to reap.
    pub fn maintain_some(&self) -> (bool, Result<()>) {
        self.maintain_with(|| Ok(self.reap_some()? && self.make_keyframes(false)?), false)
    }

    /// What fails keeps the rest from nothing; the error is the first.
    fn maintain_with(&self, reap: impl FnOnce() -> Result<bool>, all: bool) -> (bool, Result<()>) {
        self.streams.tire();
        self.diff_hints.lock().tire();
        self.store.keyframes().rest();
        if self.closed.load(Ordering::Acquire) {
            return (true, Ok(()));
        }
        if self.read_only {
            // In memory: nobody who only looks is told what was true before a crash.
            return (true, self.count_files(all));
        }
        let mut result = self.write_back_old();
        result = result.and(self.complete(|_| true));
        if self.dirty.bytes() == 0 {
            self.buffers.tire();
        }
        self.reap.look_at_the_ailing();
        let reaped = reap();
        // What has failed is not tried again at once.
        let all_reaped = !matches!(reaped, Ok(false));
        result = result.and(reaped.map(drop));
        if self.reserved_is_short() {
            result = result.and(self.take_reserved().map(drop));
        } else {
            self.pay_back();
        }
        result = result.and(self.count_files(all));
        if !self.background {
            result = result.and(self.store.maintain().map_err(FsError::from));
        }
        (all_reaped, result)
    }

    /// The root, which has no name, is its own parent.
    pub(crate) fn root(&self) -> InodeId {
        ROOT_INODE
    }
}
