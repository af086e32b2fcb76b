//! What all verbs share: the store, the namespace, inodes in memory, and dirty data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use varve_device::Histogram;
use varve_engine::planted::{Planted, is};
use varve_engine::version::{self, Path};
use varve_engine::{
    EngineError, FamilyId, InodeId, Lsn, Problems, Reservation, Run, Store, Transaction, VersionId, View,
};
use varve_format::Corrupt;
use varve_format::record::inode::{DataPointer, InodeKind, InodeRecord, SIZE_MAX, Time};

use crate::access::Accesses;
use crate::api::{Clock, DataLogged, NAME_BYTES_MAX};
use crate::files::FileCount;
use crate::inode::{Inner, InodeState, InodeTable, Presence};
use crate::known::KnownNames;
use crate::ops::diff::AllHints;
use crate::reaper::{ReapQueue, Task};
use crate::reserved::ReservedSpace;
use crate::streams::Streams;
use crate::subvolume::slots::Subvolumes;
use crate::subvolume::{Change, Slot};
use crate::table::extents;
use crate::writeback::SyncRounds;
use crate::writeback::buffers::Buffers;
use crate::writeback::frozen::Frozen;
use crate::writeback::list::DirtyList;
use crate::writeback::order::WritebackOrder;
use crate::{FsError, Result};

/// So many pieces of a file of one version, or fewer, are laid over what it has without a picture of all trees, which costs as
/// much as asking one of them some times.
const ASKED_APART_MAX: usize = 4;

/// Whether somebody has numbers of the subvolume with this root.
pub type KnownOutside = Box<dyn Fn(InodeId) -> bool + Send + Sync>;

/// The filesystem behind the door.
pub struct Core {
    pub store: Arc<Store>,
    pub subvolumes: Subvolumes,
    /// Where names lead that were found lately.
    pub known: KnownNames,
    pub inodes: InodeTable,
    /// That of the inodes made since the pool was opened.
    pub generation: u64,
    /// Taken first by renames between directories: nobody else changes which directory is in which.
    pub rename_lock: Mutex<()>,
    pub dirty: DirtyList,
    /// Snapshots that wait for what was dirty when they were taken.
    pub frozen: Frozen,
    pub dirty_bytes_max: u64,
    pub order: Box<dyn WritebackOrder>,
    pub buffers: Buffers,
    /// Who is read ahead of.
    pub streams: Streams,
    pub next_job: AtomicU64,
    pub rounds: SyncRounds,
    pub reap: ReapQueue,
    pub files: Arc<FileCount>,
    /// Whether anything has ever been shared: [`Core::sharing`].
    pub sharing: AtomicBool,
    /// Whether an inode has ever had flags that users set: [`Core::flagged`].
    pub flagged: AtomicBool,
    /// Whether who asks keeps names himself, and nothing is kept here. Beside what every creation asks, not where names are kept.
    pub names_elsewhere: AtomicBool,
    /// Held by who changes versions of data, or data that has versions: [`Change::hold_families`].
    pub families: Arc<Mutex<()>>,
    pub reserved: ReservedSpace,
    /// Held by who waits for what floats ([`varve_engine::Store::reserve_float`]): others come after him. Who has a file's turn never
    /// waits for this.
    pub float_queue: Mutex<()>,
    pub accesses: Accesses,
    /// What the pages of diffs under way leave for the next ones.
    pub diff_hints: Mutex<AllHints>,
    pub clock: Arc<dyn Clock>,
    pub on_data_logged: Option<Arc<dyn Fn(DataLogged) + Send + Sync>>,
    /// Each says whether numbers of a subvolume, of which this is the root's, are known to somebody outside: [`crate::Filesystem::reuse_numbers`].
    pub known_outside: RwLock<Vec<KnownOutside>>,
    pub read_only: bool,
    pub background: bool,
    /// What is wrong with the records of subvolumes, in a pool that was opened to be checked.
    pub subvolume_problems: Problems,
    pub closed: AtomicBool,
    /// What came of closing; held as long as that takes.
    pub outcome: Mutex<Option<Result<()>>>,
    pub read_latency: Histogram,
    pub write_latency: Histogram,
}

/// Write locks on several inodes.
pub struct Locked<'a> {
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

    /// The inodes that are locked.
    pub(crate) fn numbers(&self) -> Vec<InodeId> {
        self.guards.iter().map(|(ino, _)| *ino).collect()
    }
}

/// How far whoever needs space has gone to find some.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// Number of the next one; `None`: all has been reaped, or the reaper finds no space.
    next: Option<u32>,
    /// How often those are still to be waited for who were reading what has been freed.
    waits: u32,
    /// Whoever looks for it waits as long as somebody else gets on: [`Core::with_space_patiently`].
    patient: bool,
    /// How far the reaper had come before the last one.
    reaped: u64,
    /// Only what is there at once is taken, without a checkpoint either.
    pub at_once: bool,
}

/// Steps of the reaper in the first round; four times as many in each that follows, so that few are enough and most of what
/// is waited for was needed.
const STEPS_AT_FIRST: u32 = 64;

/// So often, of 50 ms each, a patient one waits for the same readers while the reaper gets no further.
const PATIENT_WAITS: u32 = 200;

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { next: Some(0), waits: 1, patient: false, reaped: 0, at_once: false }
    }
}

impl Rounds {
    /// For who must not look for space.
    pub(crate) fn none() -> Rounds {
        Rounds { next: None, waits: 0, ..Rounds::default() }
    }
    /// The same for who gets some otherwise.
    pub(crate) fn at_once() -> Rounds {
        Rounds { at_once: true, ..Rounds::none() }
    }
    /// For who frees space: he is refused when nothing else is left that may give some.
    fn patient() -> Rounds {
        Rounds { waits: PATIENT_WAITS, patient: true, ..Rounds::default() }
    }
    /// Whether another round may find some.
    pub(crate) fn are_left(self) -> bool {
        self.next.is_some() || self.waits > 0
    }
}

impl Core {
    /// Now.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The state of `ino`.
    pub fn state(&self, ino: InodeId) -> Arc<InodeState> {
        self.inodes.state(ino)
    }

    /// Locks an inode for changing it, loading it if need be. Fails if there is no such inode, and if a snapshot waits for
    /// what is dirty of it ([`FsError::Frozen`]).
    pub(crate) fn write_lock<'a>(&self, state: &'a InodeState) -> Result<RwLockWriteGuard<'a, Inner>> {
        let inner = self.hold(state)?;
        if self.frozen_at(state).is_some() && !is(Planted::FrozenOverwritten) {
            return Err(FsError::Frozen(state.ino));
        }
        Ok(inner)
    }

    /// As [`Core::write_lock`] for who changes nothing that a snapshot shows.
    pub fn hold<'a>(&self, state: &'a InodeState) -> Result<RwLockWriteGuard<'a, Inner>> {
        let mut inner = state.inner.write();
        self.load(state.ino, &mut inner)?;
        state.note_kind(inner.record.kind);
        Ok(inner)
    }

    /// Locks an inode that is being made, by who has locked the inodes `held`. One that is there already has lost its number to it:
    /// the counter of numbers is damaged, which opening the pool could not see.
    pub(crate) fn hold_new<'a>(
        &self,
        state: &'a InodeState,
        held: &[InodeId],
    ) -> Result<RwLockWriteGuard<'a, Inner>> {
        let taken = || {
            let why = Corrupt { what: "number of a new inode that is in use", at: 0 };
            FsError::from(EngineError::corrupt(format!("inode {}", state.ino.0), why))
        };
        if held.contains(&state.ino) {
            return Err(taken());
        }
        let inner = state.inner.write();
        match inner.presence {
            // Somebody may have asked for a number of before a crash.
            Presence::Unloaded | Presence::Gone => Ok(inner),
            Presence::Live | Presence::Orphan => Err(taken()),
        }
    }

    /// Locks an inode for looking at it, loading it if need be. Fails if there is no such inode.
    pub fn read_lock<'a>(&self, state: &'a InodeState) -> Result<RwLockReadGuard<'a, Inner>> {
        let inner = state.inner.read();
        match inner.presence {
            Presence::Live | Presence::Orphan => return Ok(inner),
            Presence::Gone => return Err(self.gone(state.ino)),
            Presence::Unloaded => drop(inner),
        }
        Ok(RwLockWriteGuard::downgrade(self.hold(state)?))
    }

    /// What to say of an inode that is no more.
    #[cold]
    fn gone(&self, ino: InodeId) -> FsError {
        self.subvolumes.get(Slot::of(ino)).map_or_else(|error| error, |_| FsError::NotFound)
    }

    fn load(&self, ino: InodeId, inner: &mut Inner) -> Result<()> {
        if inner.presence == Presence::Unloaded {
            // What waits of it elsewhere has its place in the log before this reads there.
            if let Some(source) = self.frozen_elsewhere(ino) {
                return Err(FsError::Frozen(source));
            }
            let names = self.names(ino)?;
            match names.inode(ino)? {
                Some((record, own)) => {
                    let owned_by = if own { names.version } else { VersionId(0) };
                    inner.install(record, owned_by, Presence::Live);
                }
                None => inner.presence = Presence::Gone,
            }
        }
        if inner.presence == Presence::Gone { Err(self.gone(ino)) } else { Ok(()) }
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
    pub fn apply(&self, tx: Transaction) -> Result<Lsn> {
        Ok(self.store.apply(tx, None)?)
    }

    /// Runs `op`; when it is refused for lack of space, brings home what can be (dirty data logs with less space than
    /// was set aside for it, deleted files are still being reaped), some at first and then more, and runs it again after each
    /// round: who needs a block does not wait until a thousand snapshots are gone. `op` holds no lock when it returns and has
    /// changed nothing when it is refused.
    pub fn with_space<T>(&self, op: impl Fn() -> Result<T>) -> Result<T> {
        self.with_space_in(Rounds::default(), op)
    }

    /// The same for what frees space: it is refused only when the reaper can do nothing more, and nobody reads what has been freed.
    /// Who goes on reading while the reaper gets no further is waited for 10 seconds.
    pub(crate) fn with_space_patiently<T>(&self, op: impl Fn() -> Result<T>) -> Result<T> {
        self.with_space_in(Rounds::patient(), op)
    }

    fn with_space_in<T>(&self, mut rounds: Rounds, op: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            match op() {
                Err(FsError::Engine(EngineError::NoSpace)) if self.reclaim(&mut rounds)? => {}
                result => return result,
            }
        }
    }

    /// One round: in the first logs all dirty data; reaps some of what is deleted; makes it durable. In the last ones it waits for
    /// those who were reading what has been freed. False if there is no other: after each, others may have given back what this one
    /// found nothing of, and it looks once more.
    pub(crate) fn reclaim(&self, rounds: &mut Rounds) -> Result<bool> {
        let Some(round) = rounds.next else { return Ok(self.wait_for_space(rounds)) };
        self.find_hidden();
        self.reap.hurry_the_ailing();
        if self.dirty.bytes() == 0 && !self.reap.has_work() {
            rounds.next = None;
            return if round > 0 { Ok(true) } else { self.reclaim(rounds) };
        }
        if round == 0
            && let Err(error) = self.write_back_all()
        {
            // Whoever syncs that data gets the error himself; what is deleted may free enough.
            tracing::debug!(%error, "writing back for space failed");
        }
        let before = self.reap.progress();
        let all = match self.reap_at_once(STEPS_AT_FIRST.saturating_mul(4u32.saturating_pow(round))) {
            Ok(all) => all,
            // It goes on as long as it finds space for any of what waits.
            Err(FsError::Engine(EngineError::NoSpace)) => self.reap.progress() == before,
            Err(error) => return Err(error),
        };
        self.store.commit(self.store.position())?;
        rounds.next = (!all).then_some(round + 1);
        Ok(true)
    }

    /// Waits for a moment for those who read what has been freed, when there is nothing else to do. False: no longer.
    fn wait_for_space(&self, rounds: &mut Rounds) -> bool {
        if rounds.waits == 0 {
            return false;
        }
        // A view of who was refused kept it from him, too: it is gone by now.
        let waited = self.store.wait_for_readers();
        if !rounds.patient {
            rounds.waits = 0;
            return true;
        }
        self.find_hidden();
        let reaped = self.reap.progress();
        if std::mem::replace(&mut rounds.reaped, reaped) != reaped {
            rounds.waits = PATIENT_WAITS;
        } else {
            rounds.waits = if waited { rounds.waits - 1 } else { 0 };
        }
        // What was given back may be what the reaper lacked.
        rounds.next = self.reap.has_work().then_some(1);
        true
    }

    /// Whether the record of an inode is its subvolume's own, so that nobody else sees it.
    pub fn is_own(&self, change: &Change, ino: InodeId, inner: &Inner) -> Result<bool> {
        if inner.presence == Presence::Orphan || inner.owned_by == change.version {
            return Ok(true);
        }
        // The reaper may have moved it here.
        Ok(change.inode(ino)?.is_none_or(|(_, own)| own))
    }

    /// Gives `record`, a copy of one that others see too, its own part in the data.
    pub(crate) fn share_data(
        &self,
        change: &Change,
        tx: &mut Transaction,
        before: &InodeRecord,
        record: &mut InodeRecord,
    ) -> Result<()> {
        if !matches!(record.kind, InodeKind::File | InodeKind::Symlink) {
            return Ok(());
        }
        if before.inline.is_some() {
            // There is none, and when there is some, it is not the other's.
            let id = self.store.new_id();
            tx.claim_id(id);
            record.data = DataPointer { family: FamilyId(id), version: VersionId(id), has_versions: false };
            return Ok(());
        }
        change.hold_families(self);
        let view = self.store.view();
        let mut holder = extents::holder_now(&view, record, true)?;
        varve_engine::version::share(&view, tx, &mut holder)?;
        record.data = extents::pointer(holder);
        Ok(())
    }

    /// Makes the record of an inode its subvolume's own, in a transaction before that which changes its data.
    pub fn own_first(&self, change: &Change, ino: InodeId, inner: &mut Inner, why: Owning<'_>) -> Result<()> {
        if !change.forked || self.is_own(change, ino, inner)? {
            return Ok(());
        }
        let mut record = inner.record.clone();
        let mut tx = Transaction::new();
        self.put_record(change, &mut tx, ino, inner, &mut record)?;
        let reservation = match why {
            // If what follows is refused, this stays: again and again, file by file, it would use up what is kept for deleting.
            Owning::ToAdd => None,
            Owning::ToFree => {
                tx.privileged();
                tx.sparing();
                None
            }
            Owning::Promised => {
                tx.privileged();
                None
            }
            Owning::ToLog(reservation) => {
                tx.privileged();
                // It settles when it has let go of everything.
                tx.settles_later();
                Some(reservation)
            }
        };
        if let Err(error) = self.store.apply(tx, reservation) {
            // Whoever has this right tries again with it, in smaller steps.
            change.will_count(ino, -1);
            return Err(error.into());
        }
        inner.logged(change, record);
        Ok(())
    }

    /// The path on which this transaction may write the data of `record`, which is the subvolume's own. Opens a version
    /// for it if others hold the one it has; then the record must be put, too.
    pub(crate) fn data_to_write(
        &self,
        change: &Change,
        tx: &mut Transaction,
        record: &mut InodeRecord,
    ) -> Result<(View, Path)> {
        let sharing = self.sharing();
        if !sharing && !record.data.has_versions {
            return Ok((self.store.view(), Path::implicit(extents::holder(record))));
        }
        change.hold_families(self);
        let view = self.store.view();
        let mut holder = extents::holder_now(&view, record, sharing)?;
        let mut path = Path::load(&view, holder)?;
        if !path.writable() {
            let mut new_id = || VersionId(self.store.new_id());
            varve_engine::version::branch_on(&view, tx, &mut holder, &mut path, &mut new_id, false)?;
            self.reap.push(Task::Family(holder.family));
        } else if path.has_inner() {
            // What is written may hide something from the last who sees it. The reaper waits for this transaction.
            self.reap.push(Task::Family(holder.family));
        }
        record.data = extents::pointer(holder);
        Ok((view, path))
    }

    /// Makes `pieces` the data of `record` ([`version::put_extents`]). The caller holds the inode, so that nobody else changes what
    /// it has.
    pub(crate) fn put_data(
        &self,
        change: &Change,
        tx: &mut Transaction,
        record: &mut InodeRecord,
        pieces: &[(u64, Run)],
    ) -> Result<version::Replaced> {
        if pieces.len() <= ASKED_APART_MAX && !self.sharing() && !record.data.has_versions {
            // One version that nobody else has: one tree is asked, once a segment.
            let path = Path::implicit(extents::holder(record));
            return Ok(version::put_extents(&self.store, tx, &path, pieces)?);
        }
        let (view, path) = self.data_to_write(change, tx, record)?;
        Ok(version::put_extents(&view, tx, &path, pieces)?)
    }

    /// Puts a record where it belongs: the namespace, or the orphans. A copy of one that is inherited gets its own part
    /// in the data.
    pub(crate) fn put_record(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        inner: &Inner,
        record: &mut InodeRecord,
    ) -> Result<()> {
        use varve_format::record::orphan::OrphanState;
        self.require_place(change, ino)?;
        if inner.presence == Presence::Orphan {
            crate::table::orphans::put(tx, ino, OrphanState::Open, record);
        } else {
            if change.forked && !self.is_own(change, ino, inner)? {
                self.share_data(change, tx, &inner.record, record)?;
                change.will_count(ino, 1);
            }
            change.put_inode(tx, ino, record)?;
        }
        Ok(())
    }
}

/// What a subvolume's own copy of a record is for ([`Core::own_first`]), and so how much it may take of what a full pool keeps back.
pub enum Owning<'a> {
    /// Something that only adds, or is refused itself where it would need any of that: nothing.
    ToAdd,
    /// Something that gives space back, or would if nobody else had it: all but what is for those who free all of it in the end.
    ToFree,
    /// Something that cannot be refused any more: all of it.
    Promised,
    /// Data that was accepted: all of it, if what was set aside for that does not do.
    ToLog(&'a mut Reservation),
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
    record.change = record.change.wrapping_add(1);
}

/// Records that a directory's entries changed by `entries`, of which `directories` are directories.
pub(crate) fn touch_directory(record: &mut InodeRecord, now: Time, entries: i64, directories: i64) {
    record.mtime = now;
    // Only a forged count comes so far, and the record must stay one that can be read.
    record.size = record.size.saturating_add_signed(entries).min(SIZE_MAX);
    record.rdev = match (record.rdev, u32::try_from(i64::from(record.rdev) + directories)) {
        // Made by a version that did not count.
        (0, _) => 0,
        (_, Ok(counted)) => counted,
        (_, Err(_)) => 0,
    };
    touch(record, now);
}
