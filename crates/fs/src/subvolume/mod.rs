//! Subvolumes in memory: which there are, what each shows, and the gate through which all changes go.
//!
//! An inode number is the slot of its subvolume and, below it, the inode's own number ([`LOCAL_INODE_BITS`]). What a
//! subvolume shows is its [`Head`]: the holder of a version of its namespace, and that version's path. Heads are made for
//! those that are used: of a hundred thousand snapshots most are not looked at, and have no more than a [`Subvolume`] each.
//!
//! The heads of all subvolumes of one family (a subvolume and its snapshots, and theirs) are behind one **gate**. Whoever
//! changes something in a subvolume holds it shared, as a [`Change`], from before he prepares his transaction until it is
//! applied; whoever changes the versions of the family (a snapshot, a new child version, a deletion, a step of the
//! reaper) holds it alone, for one transaction. So a version is written to only by its one holder, and a path and a view
//! that are taken together belong together.
//!
//! Rules: a [`Change`] is taken before inodes are locked and held neither while waiting for a file's turn nor while
//! space is reclaimed. Whoever waits for an inode while holding a gate holds the gate of that inode's subvolume. Whoever
//! holds a gate alone locks no inode and takes no other gate; and who has an inode or a gate may try to have another gate
//! alone, but does not wait for it.
//!
//! While the pool has never had a snapshot or a clone ([`Core::sharing`]), nothing of this costs more than the gate.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::lock_api::{ArcMutexGuard, ArcRwLockReadGuard};
use parking_lot::{Mutex, RawMutex, RawRwLock, RwLock};
use varve_engine::version::{self, Holder, Path};
use varve_engine::{FamilyId, InodeId, Lsn, Numbered, Transaction, VersionId, View};
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::{LOCAL_INODE_BITS, SubvolumeRecord};

use crate::core::Core;
use crate::files::FileCount;
use crate::inode::InodeState;
use crate::table::inodes::Place;
use crate::table::{Namespace, subvolumes};
use crate::{FsError, Result};

pub(crate) mod nested;
pub(crate) mod slots;

/// What is above the inodes' own numbers in whole ones. Programs see these bits in another order ([`crate::shown_number`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slot(pub u32);

/// The bits of an inode's own number.
const LOCAL_MASK: u64 = (1 << LOCAL_INODE_BITS) - 1;

impl Slot {
    /// The first subvolume's.
    pub const FIRST: Slot = Slot(0);

    /// The slot in an inode number.
    pub fn of(ino: InodeId) -> Slot {
        Slot((ino.0 >> LOCAL_INODE_BITS) as u32)
    }
    /// The whole number of the inode `local` in this slot.
    pub fn full(self, local: InodeId) -> InodeId {
        // A damaged record must not lead into another one.
        InodeId(u64::from(self.0) << LOCAL_INODE_BITS | local.0 & LOCAL_MASK)
    }
}

/// The inode's own number.
pub fn local(ino: InodeId) -> InodeId {
    InodeId(ino.0 & LOCAL_MASK)
}

/// What a subvolume shows.
pub struct Head {
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

/// Heads of one family, at most: when there are more, all go, and those that are used come back.
const HEADS_MAX: usize = 1024;

/// What the subvolumes of one family show that were used lately.
#[derive(Default)]
pub struct Shown {
    /// Counts changes of the family's versions.
    generation: u64,
    heads: Vec<Head>,
    places: Numbered<Slot, usize>,
    /// Whether the reaper has been told that changes may have hidden something since it was last here.
    told: AtomicBool,
}

impl Shown {
    /// The place of a subvolume's head, while the gate is held.
    fn find(&self, slot: Slot) -> Option<usize> {
        // Nearly always it is the only one.
        match &self.heads[..] {
            [only] if only.namespace.slot == slot => Some(0),
            _ => self.places.get(&slot).copied(),
        }
    }
    /// The place of a head that is up to date.
    fn find_fresh(&self, slot: Slot) -> Option<usize> {
        self.find(slot).filter(|at| self.heads[*at].generation == self.generation)
    }
    fn head(&self, at: usize) -> &Head {
        &self.heads[at]
    }
    /// What the subvolume with the head at a place shows.
    pub(crate) fn namespace(&self, at: usize) -> &Namespace {
        &self.heads[at].namespace
    }
    fn add(&mut self, head: Head) -> usize {
        if self.heads.len() >= crate::bounds::bound(HEADS_MAX, 3) {
            (self.heads, self.places) = (Vec::new(), Numbered::default());
        }
        self.places.insert(head.namespace.slot, self.heads.len());
        self.heads.push(head);
        self.heads.len() - 1
    }
    /// The head at a place has a second holder; `holder` is what both hold.
    pub(crate) fn fork(&mut self, at: usize, holder: Holder) {
        let head = &mut self.heads[at];
        head.shared = true;
        if !head.namespace.forked {
            let path = std::mem::replace(&mut head.namespace.path, Path::unknown(holder));
            head.namespace.set_path(holder, path);
        }
    }
    /// The subvolume is gone, and has let go of its version.
    pub(crate) fn remove(&mut self, subvolume: &Subvolume) {
        subvolume.version.store(0, Ordering::Release);
        if let Some(at) = self.places.remove(&subvolume.slot) {
            self.heads.swap_remove(at);
            if self.heads.is_empty() {
                self.heads.shrink_to_fit();
            }
            if let Some(moved) = self.heads.get(at) {
                self.places.insert(moved.namespace.slot, at);
            }
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
pub type Gate = Arc<RwLock<Shown>>;

/// How long [`enter`] stays in a queue.
const IN_THE_QUEUE: Duration = Duration::from_millis(1);

/// A lock, shared, for who may have an inode: past whoever waits to have it alone.
///
/// Who comes while somebody has it alone is queued, and may stay so behind the next one who wants it alone, while another is let in who
/// waits for our inode. So nobody stays in the queue for long: who comes again passes those who wait.
pub(crate) fn enter<T>(lock: &Arc<RwLock<T>>) -> ArcRwLockReadGuard<RawRwLock, T> {
    loop {
        if let Some(shared) = lock.try_read_arc_recursive_for(IN_THE_QUEUE) {
            return shared;
        }
    }
}

/// One subvolume. There may be a hundred thousand: what is in memory of each is bounded by 200 bytes, with its place.
pub struct Subvolume {
    /// Its number.
    pub id: u64,
    /// Its slot.
    pub slot: Slot,
    /// Whether nothing in it can be changed.
    pub read_only: bool,
    /// Whether its family has versions, or had. Set by whoever has the gate alone.
    has_versions: AtomicBool,
    /// The family of its namespace.
    pub family: FamilyId,
    /// The version it stands at, as logged; 0 when it has let go. Changed by whoever has the gate alone.
    version: AtomicU64,
    /// Its family's gate.
    pub gate: Gate,
    /// The directory it is in, and where there. The first is nowhere.
    pub place: Mutex<Option<(InodeId, NamePosition)>>,
}

impl Subvolume {
    /// One that stands at `holder`.
    pub(crate) fn new(id: u64, slot: Slot, read_only: bool, gate: Gate, holder: Holder) -> Subvolume {
        Subvolume {
            id,
            slot,
            read_only,
            has_versions: AtomicBool::new(holder.has_versions),
            family: holder.family,
            version: AtomicU64::new(holder.version.0),
            gate,
            place: Mutex::default(),
        }
    }

    /// What it holds. The caller has the gate.
    pub fn holder(&self) -> Result<Holder> {
        let has_versions = self.has_versions.load(Ordering::Acquire);
        match self.version.load(Ordering::Acquire) {
            0 => Err(FsError::Stale),
            version => Ok(Holder { family: self.family, version: VersionId(version), has_versions }),
        }
    }

    /// Whether it is being deleted, and has let go of what it held.
    pub(crate) fn has_let_go(&self) -> bool {
        self.version.load(Ordering::Acquire) == 0
    }

    /// It holds something else. The caller has the gate alone.
    pub(crate) fn set_holder(&self, holder: Holder) {
        self.has_versions.store(holder.has_versions, Ordering::Release);
        self.version.store(holder.version.0, Ordering::Release);
    }
}

/// What a subvolume shows, kept as it is while this is held: for a few reads.
pub struct Names {
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
pub struct Change {
    shown: ArcRwLockReadGuard<RawRwLock, Shown>,
    at: usize,
    families: RefCell<Option<ArcMutexGuard<RawMutex, ()>>>,
    files: Arc<FileCount>,
    /// Where copies of records are to be expected.
    _counting: Option<ArcRwLockReadGuard<RawRwLock, ()>>,
    copied: RefCell<Vec<(Place, i64)>>,
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

    /// The transaction that is being prepared adds `records` records of `ino` by copying or removing them.
    pub(crate) fn will_count(&self, ino: InodeId, records: i64) {
        self.copied.borrow_mut().push((self.place(ino), records));
    }

    /// It has been applied.
    pub(crate) fn applied(&self) {
        for (place, records) in self.copied.take() {
            self.files.add(place, records);
        }
    }
}

impl Core {
    /// Whether namespaces or data of this pool have been shared at some time: any family may have version records.
    pub(crate) fn sharing(&self) -> bool {
        self.sharing.load(Ordering::Acquire)
    }

    /// What the subvolume of `ino` shows. May be taken while a [`Change`] of it or an inode is held.
    pub fn names(&self, ino: InodeId) -> Result<Names> {
        self.names_by(ino, enter)
    }

    /// The same for who holds neither of them, nor a gate: behind whoever waits to have the gate alone. Many who read from a disk
    /// would keep him waiting, and with him everybody who wants to change something.
    pub fn names_first(&self, ino: InodeId) -> Result<Names> {
        self.names_by(ino, |gate| gate.read_arc())
    }

    fn names_by(
        &self,
        ino: InodeId,
        enter: impl Fn(&Gate) -> ArcRwLockReadGuard<RawRwLock, Shown>,
    ) -> Result<Names> {
        let slot = Slot::of(ino);
        let mut tried = false;
        loop {
            let subvolume = self.subvolumes.get(slot)?;
            // Not behind whoever waits to have the gate alone: he waits for a holder who may be waiting for us.
            let shown = enter(&subvolume.gate);
            if let Some(at) = shown.find_fresh(slot) {
                return Ok(Names { shown, at, fresh: None });
            }
            if tried {
                let fresh = Some(Box::new(self.namespace_of(slot, subvolume.holder()?)?));
                return Ok(Names { shown, at: 0, fresh });
            }
            // The caller may hold an inode for which somebody waits who has the gate: having it alone must not be waited
            // for, only tried.
            drop(shown);
            if let Some(mut alone) = subvolume.gate.try_write() {
                self.fresh_head(&subvolume, &mut alone)?;
            }
            tried = true;
        }
    }

    /// A view that fits what `ino` is known to have in memory, for who has locked it, or has a view to go with a look at it,
    /// and has no gate. [`FsError::Stale`] if its subvolume is being deleted.
    ///
    /// A deletion lets go of the subvolume's version, and only then comes to its inodes in memory, where it waits for who has
    /// them locked. Meanwhile the reaper may take the version away, and all that its records held of data. What the source of
    /// a snapshot has changed then gets the keys that were the snapshot's, so that who looks there with what he knows of the
    /// snapshot's file finds the source's bytes. So the view is taken first, and then the subvolume asked. It tells before
    /// its gate opens that it has let go, and the reaper does nothing about that without the gate: if it has not told yet,
    /// nothing is missing in the view.
    pub fn view_of(&self, ino: InodeId) -> Result<View> {
        let view = self.store.view();
        self.subvolumes.require_held(Slot::of(ino))?;
        Ok(view)
    }

    /// What whoever holds `holder` sees.
    fn namespace_of(&self, slot: Slot, holder: Holder) -> Result<Namespace> {
        let path = Path::load(&self.store.view(), holder)?;
        Ok(Namespace::new(self.store.clone(), slot, holder, path, self.subvolumes.hasher))
    }

    /// The right to change something in the subvolume of `ino`. Opens a version of its own for it if it shares the one
    /// it has.
    pub fn change(&self, ino: InodeId) -> Result<Change> {
        let slot = Slot::of(ino);
        loop {
            let subvolume = self.subvolumes.get(slot)?;
            if subvolume.read_only {
                return Err(FsError::ReadOnlySubvolume);
            }
            let shown = subvolume.gate.read_arc();
            if let Some(at) = shown.find_fresh(slot)
                && shown.head(at).alone()
            {
                return self.changing(shown, at, None);
            }
            drop(shown);
            self.own_version(&subvolume, &mut subvolume.gate.write())?;
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
        let counting = if self.sharing() { Some(self.counting_first()?) } else { None };
        let (families, copied) = (RefCell::new(None), RefCell::default());
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
            let subvolume = self.subvolumes.get(slot)?;
            let shown = subvolume.gate.read_arc();
            if self.frozen_at(state) != Some(version) {
                continue;
            }
            let holder = Holder { version, has_versions: true, ..subvolume.holder()? };
            return self.changing(shown, 0, Some(Box::new(self.namespace_of(slot, holder)?)));
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

    /// For who has the gate alone: the place of a subvolume's head, which is up to date and has a version of its own.
    pub(crate) fn own_version(&self, subvolume: &Subvolume, shown: &mut Shown) -> Result<usize> {
        let at = self.fresh_head(subvolume, shown)?;
        let head = shown.head(at);
        if head.alone() {
            return Ok(at);
        }
        let (mut holder, mut path) = (subvolume.holder()?, head.namespace.path.clone());
        let mut tx = Transaction::new();
        let mut new_id = || VersionId(self.store.new_id());
        version::branch_on(&self.store.view(), &mut tx, &mut holder, &mut path, &mut new_id, false)?;
        // Who deletes on a full pool may need it.
        tx.privileged();
        self.apply_record(tx, subvolume, |record| record.version = holder.version)?;
        subvolume.set_holder(holder);
        // What others inherit may have lost its last holder.
        shown.changed();
        let generation = shown.generation;
        let head = &mut shown.heads[at];
        head.namespace.set_path(holder, path);
        (head.shared, head.generation) = (false, generation);
        self.reap.push(crate::reaper::Task::Names(holder.family));
        Ok(at)
    }

    /// For who has the gate alone: the place of a subvolume's head, which is up to date, and what it holds.
    pub(crate) fn fresh_head(&self, subvolume: &Subvolume, shown: &mut Shown) -> Result<usize> {
        let holder = subvolume.holder()?;
        let generation = shown.generation;
        let Some(at) = shown.find(subvolume.slot) else {
            let namespace = self.namespace_of(subvolume.slot, holder)?;
            return Ok(shown.add(Head { namespace, shared: false, generation }));
        };
        let head = &mut shown.heads[at];
        if head.generation != generation {
            head.namespace.set_path(holder, Path::load(&self.store.view(), holder)?);
            (head.shared, head.generation) = (false, generation);
        }
        Ok(at)
    }

    /// What a subvolume holds, and whether nobody else does, for who has the gate alone.
    pub fn held(&self, subvolume: &Subvolume, shown: &mut Shown) -> Result<(usize, Holder, bool)> {
        let at = self.fresh_head(subvolume, shown)?;
        Ok((at, subvolume.holder()?, shown.head(at).alone()))
    }

    /// A subvolume's record as logged.
    pub fn subvolume_record(&self, subvolume: &Subvolume) -> Result<SubvolumeRecord> {
        match subvolume.slot {
            Slot::FIRST => Ok(self.files.stored.lock().clone()),
            _ => Ok(subvolumes::get(&self.store, subvolume.id)?),
        }
    }

    /// Applies `tx` with a change of a subvolume's record.
    pub(crate) fn apply_record(
        &self,
        mut tx: Transaction,
        subvolume: &Subvolume,
        edit: impl FnOnce(&mut SubvolumeRecord),
    ) -> Result<Lsn> {
        if subvolume.slot == Slot::FIRST {
            let mut stored = self.files.stored.lock();
            let mut record = stored.clone();
            edit(&mut record);
            subvolumes::put_first(&mut tx, &record);
            let lsn = self.apply(tx)?;
            *stored = record;
            return Ok(lsn);
        }
        // Until it is applied nobody else changes it.
        let _changing = self.subvolumes.changing(subvolume.slot);
        let mut record = subvolumes::get(&self.store, subvolume.id)?;
        edit(&mut record);
        subvolumes::put(&mut tx, subvolume.id, &record);
        self.apply(tx)
    }

    /// A number for a new inode, without a slot.
    pub(crate) fn new_inode_number(&self) -> Result<InodeId> {
        let number = self.store.new_id();
        // At a million a second that takes 102 days, at a thousand 278 years.
        if number > LOCAL_MASK { Err(FsError::NumbersUsedUp) } else { Ok(InodeId(number)) }
    }
}
