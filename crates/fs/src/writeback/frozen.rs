//! Frozen files: what was dirty in a subvolume when a snapshot of it was taken.
//!
//! A snapshot writes nothing back. It remembers a place in the list of dirty files: those that stand before it are
//! **frozen**, which costs the same whatever they hold. They are logged by whoever comes first: the thread that writes
//! ahead, a sync, or somebody who needs one of them. Until all are, the snapshot's record says that it is pending, and a
//! crash removes it.
//!
//! Invariants:
//! - A frozen file is, in memory, as it was when the snapshot was taken. Who is about to change it, or to look at it
//!   through the snapshot, is refused ([`FsError::Frozen`]) before anything has happened, and the door logs that one file
//!   and tries again.
//! - So nobody has an inode record or data of his own of a frozen file, and it can be logged at the version that source
//!   and snapshot held when they parted, as if that had been done before ([`Core::change_to_log`]). Nothing else is
//!   written to a version that has other holders.
//! - A file is frozen for the oldest snapshot that waits for it. What becomes dirty later belongs to the source alone:
//!   if that still shares the version of an older snapshot, it gets one of its own before the next is taken.
//! - Nothing durable depends on a pending snapshot: who wants another of its family deleted, it shared, or to hold a subvolume, and who
//!   makes something in it durable, completes it first.
//!
//! Lock order: after gates and inodes; the list of dirty files after this.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use varve_engine::version::Holder;
use varve_engine::{FamilyId, InodeId, Transaction, VersionId};
use varve_format::record::subvolume::SUBVOLUME_PENDING;

use super::Ride;
use crate::core::Core;
use crate::inode::InodeState;
use crate::subvolume::{Change, Slot, local};
use crate::{FsError, Result};

/// How often a verb is tried that meets frozen files: each time one has been logged, and there can be only so many in
/// what one verb is about, unless snapshots are taken all the time.
const THAWS_MAX: usize = 1000;

/// How often somebody who needs pending snapshots to be complete looks again because others have taken new ones.
const TOPOLOGY_ROUNDS: usize = 4;

/// What one snapshot waits for. Two that are equal wait for the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrozenSet {
    /// The subvolume whose files they are.
    pub source: Slot,
    /// The snapshot.
    pub snapshot: Slot,
    /// The family of both.
    pub family: FamilyId,
    /// The version that both held.
    version: VersionId,
    /// The last place in the list of dirty files that a frozen one has.
    upto: u64,
}

/// All snapshots that are pending, oldest first. Bound: some 40 bytes each; a sync completes them all.
#[derive(Default)]
pub struct Frozen {
    /// Whether there are any: nearly always there are none.
    any: AtomicBool,
    sets: Mutex<Vec<FrozenSet>>,
    /// Held while one is declared complete.
    completing: Mutex<()>,
}

/// What [`Core::freeze`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freeze {
    /// Nothing is dirty.
    Nothing,
    /// The snapshot is pending.
    Pending,
    /// Something is dirty that an older snapshot must not get: the source needs a version of its own first.
    NeedsVersion,
}

/// Files that could not be logged when they were last tried, by who completes snapshots, and why: many may wait for the same.
#[derive(Default)]
pub struct Failed(HashMap<InodeId, FsError>);

impl Frozen {
    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// What the snapshots wait for that `wanted` accepts.
    pub fn matching(&self, wanted: impl Fn(&FrozenSet) -> bool) -> Vec<FrozenSet> {
        if !self.any() {
            return Vec::new();
        }
        self.sets.lock().iter().filter(|set| wanted(set)).copied().collect()
    }

    /// Whether a snapshot is pending that `wanted` accepts.
    pub fn has(&self, wanted: impl Fn(&FrozenSet) -> bool) -> bool {
        !self.matching(wanted).is_empty()
    }

    /// The snapshot in `snapshot` waits for nothing.
    pub fn remove(&self, snapshot: Slot) {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.snapshot != snapshot);
        self.any.store(!sets.is_empty(), Ordering::Release);
    }
}

impl Core {
    /// Freezes what is dirty in `source` for a snapshot in `snapshot`, which `holder` is about to be shared with. The
    /// caller has the gate alone; `alone` says whether only the source holds that version until now.
    ///
    /// One instant: of two writes one after the other, the second is not in the snapshot without the first.
    pub fn freeze(&self, source: Slot, snapshot: Slot, holder: Holder, alone: bool) -> Freeze {
        let mut sets = self.frozen.sets.lock();
        self.dirty.divide(source, |newest, upto| {
            let Some(newest) = newest else { return Freeze::Nothing };
            let frozen_upto = sets.iter().filter(|set| set.source == source).map(|set| set.upto).max();
            if !alone && frozen_upto.is_none_or(|upto| newest > upto) {
                return Freeze::NeedsVersion;
            }
            let (family, version) = (holder.family, holder.version);
            sets.push(FrozenSet { source, snapshot, family, version, upto });
            self.frozen.any.store(true, Ordering::Release);
            Freeze::Pending
        })
    }

    /// The version at which a file must be logged before anything else happens to it, if a snapshot waits for it.
    pub(crate) fn frozen_at(&self, state: &InodeState) -> Option<VersionId> {
        if !self.frozen.any() {
            return None;
        }
        let (from, slot) = (state.dirty_from(), Slot::of(state.ino));
        // As nearly all are: nobody who wants one of these looks through all that is pending.
        if from == 0 {
            return None;
        }
        let sets = self.frozen.sets.lock();
        sets.iter().find(|set| set.source == slot && from <= set.upto).map(|set| set.version)
    }

    /// The file of another subvolume that must be logged before the record of `ino` is read: the same file, if `ino` is in a snapshot
    /// that waits for it.
    pub(crate) fn frozen_elsewhere(&self, ino: InodeId) -> Option<InodeId> {
        if !self.frozen.any() {
            return None;
        }
        let sources = self.frozen.matching(|set| set.snapshot == Slot::of(ino));
        let files = sources.iter().filter_map(|set| self.inodes.known(set.source.full(local(ino))));
        files.filter(|state| self.frozen_at(state).is_some()).map(|state| state.ino).next()
    }

    /// Refuses to put the record of a file that a snapshot waits for where only newer ones belong.
    pub(crate) fn require_place(&self, change: &Change, ino: InodeId) -> Result<()> {
        if !self.frozen.any() {
            return Ok(());
        }
        let frozen = self.inodes.known(ino).and_then(|state| self.frozen_at(&state));
        match frozen {
            Some(version) if change.before() != Some(version) => Err(FsError::Frozen(ino)),
            _ => Ok(()),
        }
    }

    /// Runs a verb; when it meets a frozen file, logs that file and runs it again. The verb holds no lock when it is
    /// refused, and what it has done by then may be done twice.
    pub(crate) fn thawing<T>(&self, mut verb: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..THAWS_MAX {
            match verb() {
                Err(FsError::Frozen(ino)) => self.write_back(&self.state(ino), Ride::Allowed)?,
                result => return result,
            }
        }
        verb()
    }

    /// Completes the pending snapshots that `wanted` accepts, but for those that are being taken just now.
    pub fn complete(&self, wanted: impl Fn(&FrozenSet) -> bool) -> Result<()> {
        // A file that cannot be written keeps its own snapshots pending, and no other.
        let (mut result, mut failed) = (Ok(()), Failed::default());
        for set in self.frozen.matching(wanted) {
            result = result.and(self.complete_set(&set, &mut failed));
        }
        result
    }

    /// Logs what is frozen for one snapshot, which then is no longer pending, but for what has `failed` before.
    pub fn complete_set(&self, set: &FrozenSet, failed: &mut Failed) -> Result<()> {
        let is_frozen = |state: &InodeState| (1..=set.upto).contains(&state.dirty_from());
        let mut rounds_left = THAWS_MAX;
        loop {
            let mut files = self.dirty.all();
            files.retain(|file| Slot::of(file.state.ino) == set.source && is_frozen(&file.state));
            let why = files.iter().find_map(|file| failed.0.get(&file.state.ino)).cloned();
            files.retain(|file| !failed.0.contains_key(&file.state.ino));
            let Some(first) = files.first() else {
                why.map_or(Ok(()), Err)?;
                break;
            };
            rounds_left = rounds_left.checked_sub(1).ok_or(FsError::Frozen(first.state.ino))?;
            let Err(error) = self.write_back_files(files.clone()) else { continue };
            // Each has been tried: what is frozen still is what has failed.
            files.retain(|file| is_frozen(&file.state));
            failed.0.extend(files.iter().map(|file| (file.state.ino, error.clone())));
            return Err(why.unwrap_or(error));
        }
        let _completing = self.frozen.completing.lock();
        let Ok(snapshot) = self.subvolumes.get(set.snapshot) else { return Ok(()) };
        // A deletion waits for this, so that no record is put that is to go. And a snapshot that has been refused
        // since leaves its slot to the next one, which may wait for more than was logged here.
        if !self.frozen.has(|other| other == set) {
            return Ok(());
        }
        let mut tx = Transaction::new();
        tx.privileged();
        self.apply_record(tx, &snapshot, |record| record.flags &= !SUBVOLUME_PENDING)?;
        self.frozen.remove(set.snapshot);
        Ok(())
    }

    /// The snapshot in `snapshot` is being deleted: it waits for nothing any more. The caller has the gate alone.
    pub(crate) fn waits_no_more(&self, snapshot: Slot) {
        if self.frozen.any() {
            // Whoever is about to declare it complete puts its record, which is to go.
            let _completing = self.frozen.completing.lock();
            self.frozen.remove(snapshot);
        }
    }

    /// Completes the pending snapshots that become durable with `ino`: the one it is in, and those in this directory.
    pub(crate) fn complete_with(&self, ino: InodeId) -> Result<()> {
        self.complete(|set| {
            set.snapshot == Slot::of(ino)
                || self.subvolumes.get(set.snapshot).is_ok_and(|snapshot| {
                    let place = *snapshot.place.lock();
                    place.is_some_and(|(dir, _)| dir == ino)
                })
        })
    }

    /// The right to make, move and delete subvolumes, with none pending that `wanted` accepts.
    pub(crate) fn topology(&self, wanted: impl Fn(&FrozenSet) -> bool) -> Result<MutexGuard<'_, ()>> {
        self.topology_past_damage(wanted, |_| false)
    }

    /// The same, unless what one waits for cannot be written that `spared` accepts: nobody can complete that.
    pub(crate) fn topology_past_damage(
        &self,
        wanted: impl Fn(&FrozenSet) -> bool,
        spared: impl Fn(&FrozenSet) -> bool,
    ) -> Result<MutexGuard<'_, ()>> {
        // Those that cannot be completed, of which nothing more is expected.
        let mut incomplete: Vec<FrozenSet> = Vec::new();
        let mut failed = Failed::default();
        let mut complete = |incomplete: &mut Vec<FrozenSet>| {
            let mut result = Ok(());
            for set in self.frozen.matching(|set| wanted(set) && !incomplete.contains(set)) {
                match self.complete_set(&set, &mut failed) {
                    Err(FsError::Engine(error)) if spared(&set) && error.is_damage() => {
                        tracing::warn!("a snapshot stays incomplete: {error}");
                        incomplete.push(set);
                    }
                    done => result = result.and(done),
                }
            }
            result
        };
        for _ in 0..TOPOLOGY_ROUNDS {
            complete(&mut incomplete)?;
            let topology = self.subvolumes.topology.lock();
            if !self.frozen.has(|set| wanted(set) && !incomplete.contains(set)) {
                return Ok(topology);
            }
        }
        // Others take snapshots all the time: they wait for this.
        let topology = self.subvolumes.topology.lock();
        complete(&mut incomplete)?;
        Ok(topology)
    }
}
