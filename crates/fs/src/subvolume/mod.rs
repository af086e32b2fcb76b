//! Subvolumes in memory: which there are, what each shows, and the gate through which all changes go.
//!
//! An inode number is the slot of its subvolume and, below it, the inode's own number ([`LOCAL_INODE_BITS`]). What a
//! subvolume shows is its [`Head`]: the holder of a version of its namespace, and that version's path.
//!
//! The heads of all subvolumes of one family (a subvolume and its snapshots, and theirs) are behind one **gate**. Whoever
//! changes something in a subvolume holds it shared, as a [`Change`], from before he prepares his transaction until it is
//! applied; whoever changes the versions of the family (a snapshot, a new child version, a deletion, a step of the
//! reaper) holds it alone, for one transaction. So a version is written to only by its one holder, and a path and a view
//! that are taken together belong together.
//!
//! Rules: a [`Change`] is taken before inodes are locked and held neither while waiting for a file's turn nor while
//! space is reclaimed. Whoever waits for an inode while holding a gate holds the gate of that inode's subvolume. Whoever
//! holds a gate alone locks no inode, and holds no other gate.
//!
//! While the pool has never had a snapshot or a clone ([`Core::sharing`]), nothing of this costs more than the gate.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::lock_api::{ArcMutexGuard, ArcRwLockReadGuard};
use parking_lot::{Mutex, RawMutex, RawRwLock, RwLock};
use varve_engine::version::{self, Holder, Path};
use varve_engine::{EngineError, InodeId, Lsn, Store, Transaction, VersionId};
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::{LOCAL_INODE_BITS, SUBVOLUME_READ_ONLY, SubvolumeRecord};

use crate::core::Core;
use crate::files::FileCount;
use crate::hash::NameHasher;
use crate::inode::InodeState;
use crate::table::{Namespace, subvolumes};
use crate::{FsError, Result};

pub(crate) mod nested;
pub(crate) mod slots;

/// What is above the inodes' own numbers in those that users see.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Slot(pub u32);

/// The bits of an inode's own number.
const LOCAL_MASK: u64 = (1 << LOCAL_INODE_BITS) - 1;

impl Slot {
    /// The first subvolume's.
    pub(crate) const FIRST: Slot = Slot(0);

    /// The slot in an inode number.
    pub(crate) fn of(ino: InodeId) -> Slot {
        Slot((ino.0 >> LOCAL_INODE_BITS) as u32)
    }
    /// The number that users see of the inode `local` in this slot.
    pub(crate) fn full(self, local: InodeId) -> InodeId {
        InodeId(u64::from(self.0) << LOCAL_INODE_BITS | local.0)
    }
}

/// The inode's own number.
pub(crate) fn local(ino: InodeId) -> InodeId {
    InodeId(ino.0 & LOCAL_MASK)
}

/// What a subvolume shows.
pub(crate) struct Head {
    holder: Holder,
    /// Its names, inodes and attributes.
    namespace: Namespace,
    /// Somebody else holds the version, too: whatever the path says, it must not be written to.
    shared: bool,
    /// Of which state of the family's versions the path is.
    generation: u64,
}

impl Head {
    /// Whether its version is nobody else's. The path must be up to date.
    fn alone(&self) -> bool {
        !self.shared && self.namespace.path.writable()
    }
}

/// The generation of a head that was not used yet: a hundred thousand snapshots have no path in memory each.
const UNUSED: u64 = u64::MAX;

/// What the subvolumes of one family show.
#[derive(Default)]
pub(crate) struct Shown {
    /// Counts changes of the family's versions.
    generation: u64,
    /// They keep their places while others come and go.
    heads: Vec<Option<Head>>,
    places: HashMap<Slot, usize>,
    free: Vec<usize>,
    /// Whether the reaper has been told that changes may have hidden something since it was last here.
    told: AtomicBool,
}

impl Shown {
    /// The place of a subvolume's head.
    fn find(&self, slot: Slot) -> Result<usize> {
        // Nearly always it is the only one.
        match &self.heads[..] {
            [Some(only)] if only.namespace.slot == slot => Ok(0),
            _ => self.places.get(&slot).copied().ok_or(FsError::Stale),
        }
    }
    /// The head at a place that [`Shown::find`] gave under the same lock.
    fn head(&self, at: usize) -> &Head {
        self.heads[at].as_ref().expect("heads go only by whoever has the gate alone")
    }
    fn head_mut(&mut self, at: usize) -> &mut Head {
        self.heads[at].as_mut().expect("heads go only by whoever has the gate alone")
    }
    /// Whether what the subvolume in `slot` holds is nobody else's, by its path, which is up to date.
    pub(crate) fn is_alone(&self, slot: Slot) -> Result<bool> {
        Ok(self.head(self.find(slot)?).alone())
    }
    fn is_fresh(&self, at: usize) -> bool {
        self.head(at).generation == self.generation
    }
    /// Adds the head of another subvolume.
    fn add(&mut self, head: Head) {
        let slot = head.namespace.slot;
        let at = match self.free.pop() {
            Some(at) => {
                self.heads[at] = Some(head);
                at
            }
            None => {
                self.heads.push(Some(head));
                self.heads.len() - 1
            }
        };
        self.places.insert(slot, at);
    }
    /// The head of `source` has a second holder, in `slot`; `holder` is what both hold.
    pub(crate) fn fork(&mut self, source: Slot, slot: Slot, holder: Holder) -> Result<()> {
        let at = self.find(source)?;
        let head = self.head_mut(at);
        let path = std::mem::replace(&mut head.namespace.path, Path::unknown(holder));
        let mut namespace = head.namespace.clone();
        namespace.slot = slot;
        head.namespace.set_path(holder, path);
        (head.holder, head.shared) = (holder, true);
        self.add(Head { holder, namespace, shared: true, generation: UNUSED });
        Ok(())
    }
    /// Lets go of the path of the subvolume in `slot` until it is used again.
    pub(crate) fn unuse(&mut self, slot: Slot) {
        let Ok(at) = self.find(slot) else { return };
        let head = self.head_mut(at);
        let holder = head.holder;
        head.namespace.set_path(holder, Path::unknown(holder));
        head.generation = UNUSED;
    }
    /// The subvolume in `slot` is gone, and has let go of its version.
    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some(at) = self.places.remove(&slot) {
            self.heads[at] = None;
            self.free.push(at);
        }
        self.changed();
    }
    /// The reaper comes: from now on it is to be told again. It waits for the changes that have begun.
    pub(crate) fn reaper_comes(&self) {
        self.told.store(false, Ordering::Relaxed);
    }
    /// The family's versions have changed: paths are loaded again before they are used.
    pub(crate) fn changed(&mut self) {
        self.generation += 1;
    }
}

/// The lock around what the subvolumes of one family show.
pub(crate) type Gate = Arc<RwLock<Shown>>;

/// One subvolume.
pub(crate) struct Subvolume {
    /// Its number.
    pub id: u64,
    /// Its slot.
    pub slot: Slot,
    /// Whether nothing in it can be changed.
    pub read_only: bool,
    /// Its family's gate.
    pub gate: Gate,
    /// Its record as logged. Not the first subvolume's: that is [`FileCount::stored`].
    pub record: Mutex<SubvolumeRecord>,
    /// The directory it is in, and where there. The first is nowhere.
    pub place: Mutex<Option<(InodeId, NamePosition)>>,
}

/// What a subvolume shows, kept as it is while this is held: for a few reads.
pub(crate) struct Names {
    shown: ArcRwLockReadGuard<RawRwLock, Shown>,
    at: usize,
    /// Instead of that in the head, which is out of date.
    fresh: Option<Box<Namespace>>,
}

impl Deref for Names {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        self.fresh.as_deref().unwrap_or_else(|| &self.shown.head(self.at).namespace)
    }
}

/// The right to change something in one subvolume, until the transaction that does it has been applied.
pub(crate) struct Change {
    shown: ArcRwLockReadGuard<RawRwLock, Shown>,
    at: usize,
    families: RefCell<Option<ArcMutexGuard<RawMutex, ()>>>,
    files: Arc<FileCount>,
    /// Where copies of records are to be expected.
    _counting: Option<ArcRwLockReadGuard<RawRwLock, ()>>,
    copied: Cell<i64>,
    /// Instead of what the subvolume shows: what it showed when a snapshot was taken that waits for this.
    before: Option<Box<Namespace>>,
}

impl Deref for Change {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        self.before.as_deref().unwrap_or_else(|| &self.shown.head(self.at).namespace)
    }
}

impl Change {
    /// The version it changes, if that is not the subvolume's own any more.
    pub(crate) fn before(&self) -> Option<VersionId> {
        self.before.as_ref().map(|namespace| namespace.version)
    }

    /// From now on nobody else changes versions of files' data, or entries of data that has versions. After this no
    /// inode is locked any more.
    pub(crate) fn hold_families(&self, core: &Core) {
        let mut held = self.families.borrow_mut();
        if held.is_none() {
            *held = Some(core.families.lock_arc());
        }
    }

    /// The transaction that is being prepared adds `records` inode records by copying or removing them.
    pub(crate) fn will_count(&self, records: i64) {
        self.copied.set(self.copied.get() + records);
    }

    /// It has been applied.
    pub(crate) fn applied(&self) {
        let records = self.copied.take();
        if records != 0 {
            self.files.add(records);
        }
    }
}

impl Core {
    /// Whether namespaces or data of this pool have been shared at some time: any family may have version records.
    pub(crate) fn sharing(&self) -> bool {
        self.sharing.load(Ordering::Acquire)
    }

    /// What the subvolume of `ino` shows. May be taken while a [`Change`] of it or an inode is held.
    pub(crate) fn names(&self, ino: InodeId) -> Result<Names> {
        let slot = Slot::of(ino);
        let mut tried = false;
        loop {
            // Not behind whoever waits to have the gate alone: he waits for a holder who may be waiting for us.
            let shown = match slot {
                Slot::FIRST => self.subvolumes.first.gate.read_arc_recursive(),
                _ => self.subvolumes.get(slot)?.gate.read_arc_recursive(),
            };
            let at = shown.find(slot)?;
            if shown.is_fresh(at) {
                return Ok(Names { shown, at, fresh: None });
            }
            if tried {
                let head = shown.head(at);
                let mut namespace = head.namespace.clone();
                namespace.set_path(head.holder, Path::load(&self.store.view(), head.holder)?);
                return Ok(Names { shown, at, fresh: Some(Box::new(namespace)) });
            }
            // The caller may hold an inode for which somebody waits who has the gate: having it alone must not be waited
            // for, only tried.
            drop(shown);
            let subvolume = self.subvolumes.get(slot)?;
            if let Some(mut alone) = subvolume.gate.try_write() {
                self.fresh_head(&subvolume, &mut alone)?;
            }
            tried = true;
        }
    }

    /// The right to change something in the subvolume of `ino`. Opens a version of its own for it if it shares the one
    /// it has.
    pub(crate) fn change(&self, ino: InodeId) -> Result<Change> {
        let slot = Slot::of(ino);
        loop {
            let shown = match slot {
                Slot::FIRST => self.subvolumes.first.gate.read_arc(),
                _ => {
                    let subvolume = self.subvolumes.get(slot)?;
                    if subvolume.read_only {
                        return Err(FsError::ReadOnlySubvolume);
                    }
                    subvolume.gate.read_arc()
                }
            };
            let at = shown.find(slot)?;
            let head = shown.head(at);
            if shown.is_fresh(at) && head.alone() {
                return self.changing(shown, at, None);
            }
            drop(shown);
            self.refresh(&*self.subvolumes.get(slot)?)?;
        }
    }

    fn changing(
        &self,
        shown: ArcRwLockReadGuard<RawRwLock, Shown>,
        at: usize,
        before: Option<Box<Namespace>>,
    ) -> Result<Change> {
        let namespace = before.as_deref().unwrap_or_else(|| &shown.head(at).namespace);
        if namespace.path.has_inner() && !shown.told.swap(true, Ordering::Relaxed) {
            self.reap.may_hide(namespace.family);
        }
        let counting = if self.sharing() { Some(self.counting()?) } else { None };
        let (families, copied) = (RefCell::new(None), Cell::new(0));
        Ok(Change { shown, at, families, files: self.files.clone(), _counting: counting, copied, before })
    }

    /// The right to log what is dirty of a file, where it belongs: in the subvolume as it is, or, if the file is as it
    /// was when a snapshot was taken, in the version that both held then. That is not for anything newer.
    pub(crate) fn change_to_log(&self, state: &InodeState) -> Result<Change> {
        loop {
            let Some(version) = self.frozen_at(state) else {
                let change = self.change(state.ino)?;
                // While that is held there is no snapshot.
                if self.frozen_at(state).is_none() {
                    return Ok(change);
                }
                continue;
            };
            let slot = Slot::of(state.ino);
            let shown = self.subvolumes.get(slot)?.gate.read_arc();
            let at = shown.find(slot)?;
            if self.frozen_at(state) != Some(version) {
                continue;
            }
            let mut namespace = shown.head(at).namespace.clone();
            let holder = Holder { family: namespace.family, version, has_versions: true };
            namespace.set_path(holder, Path::load(&self.store.view(), holder)?);
            return self.changing(shown, at, Some(Box::new(namespace)));
        }
    }

    /// Refuses what [`Core::change`] would refuse because of the subvolume.
    pub(crate) fn require_changeable(&self, ino: InodeId) -> Result<()> {
        match Slot::of(ino) {
            Slot::FIRST => Ok(()),
            slot if self.subvolumes.get(slot)?.read_only => Err(FsError::ReadOnlySubvolume),
            _ => Ok(()),
        }
    }

    /// Loads a subvolume's path again if it is out of date, and opens a version for it alone if need be.
    fn refresh(&self, subvolume: &Subvolume) -> Result<()> {
        self.own_version(subvolume, &mut subvolume.gate.write())
    }

    /// As [`Core::refresh`] for who has the gate alone.
    pub(crate) fn own_version(&self, subvolume: &Subvolume, shown: &mut Shown) -> Result<()> {
        self.fresh_head(subvolume, shown)?;
        let at = shown.find(subvolume.slot)?;
        let view = self.store.view();
        let head = shown.head(at);
        if head.alone() {
            return Ok(());
        }
        let (mut holder, mut path) = (head.holder, head.namespace.path.clone());
        let mut tx = Transaction::new();
        let mut new_id = || VersionId(self.store.new_id());
        version::branch_on(&view, &mut tx, &mut holder, &mut path, &mut new_id, false)?;
        // Who deletes on a full pool may need it.
        tx.privileged();
        self.apply_record(tx, subvolume, |record| record.version = holder.version)?;
        // What others inherit may have lost its last holder.
        shown.changed();
        let generation = shown.generation;
        let head = shown.head_mut(at);
        head.namespace.set_path(holder, path);
        (head.holder, head.shared, head.generation) = (holder, false, generation);
        self.reap.push(crate::reaper::Task::Names(holder.family));
        Ok(())
    }

    /// What a subvolume holds, with its path up to date.
    pub(crate) fn fresh_head(&self, subvolume: &Subvolume, shown: &mut Shown) -> Result<Holder> {
        let at = shown.find(subvolume.slot)?;
        let generation = shown.generation;
        let head = shown.head_mut(at);
        if head.generation != generation {
            let path = Path::load(&self.store.view(), head.holder)?;
            head.namespace.set_path(head.holder, path);
            (head.shared, head.generation) = (false, generation);
        }
        Ok(head.holder)
    }

    /// Applies `tx` with a change of a subvolume's record.
    pub(crate) fn apply_record(
        &self,
        mut tx: Transaction,
        subvolume: &Subvolume,
        edit: impl FnOnce(&mut SubvolumeRecord),
    ) -> Result<Lsn> {
        let mut stored = match subvolume.slot {
            Slot::FIRST => self.files.stored.lock(),
            _ => subvolume.record.lock(),
        };
        let mut record = stored.clone();
        edit(&mut record);
        subvolumes::put(&mut tx, subvolume.id, &record);
        let lsn = self.apply(tx)?;
        *stored = record;
        Ok(lsn)
    }

    /// A number for a new inode, without a slot.
    pub(crate) fn new_inode_number(&self) -> Result<InodeId> {
        let number = self.store.new_id();
        // At a million a second that takes 278 years.
        if number > LOCAL_MASK { Err(EngineError::NoSpace.into()) } else { Ok(InodeId(number)) }
    }
}

/// A subvolume with this record, and its head behind `gate`.
pub(crate) fn open(
    store: &Arc<Store>,
    gate: Gate,
    id: u64,
    record: SubvolumeRecord,
    hasher: NameHasher,
    has_versions: bool,
) -> Result<Subvolume> {
    let holder = Holder { family: record.family, version: record.version, has_versions };
    let slot = Slot(record.slot);
    let namespace = Namespace::new(store.clone(), slot, holder, Path::unknown(holder), hasher);
    gate.write().add(Head { holder, namespace, shared: false, generation: UNUSED });
    let read_only = record.flags & SUBVOLUME_READ_ONLY != 0;
    Ok(Subvolume { id, slot, read_only, gate, record: Mutex::new(record), place: Mutex::default() })
}
