//! Background deletion: orphans whose data is more than a transaction can delete, and versions left by truncations.
//!
//! The queue is only a hint of where work is; what has to be done is in the pool (orphan records, version records), so
//! that a crash forgets nothing: opening finds it all again. Each step is one bounded, privileged transaction.
//!
//! A record of an inode holds a version of its data, in whatever version of the namespace it is stored. When the last
//! sight of a stored record is gone, the reaper of the namespace moves it to the orphans, which let go of the data in a
//! transaction of their own.

mod ailing;
mod keyframes;
pub mod pace;
pub mod tasks;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::lock_api::ArcMutexGuard;
use parking_lot::{Condvar, Mutex, MutexGuard, RawMutex};
use varve_engine::version::{self, ReaperMemory, Unreserved, points};
use varve_engine::{EngineError, FamilyId, InodeId, Transaction, TreeId};
use varve_format::record::inode::{INODE_FLAG_RESERVED, InodeRecord};
use varve_format::record::orphan::OrphanState;
use varve_format::record::subvolume::SUBVOLUME_DELETING;

use self::ailing::Ailing;
use self::pace::{Pace, Step};
use self::tasks::Tasks;
use crate::core::Core;
use crate::subvolume::{Change, Slot, enter};
use crate::table::{corrupt, extents, inodes, orphans, subvolumes};
use crate::{FsError, Result};

pub use self::tasks::Task;

/// Entries deleted in one transaction.
const ENTRIES_PER_STEP: usize = 128;
/// The same for names, and less each time that was too much.
pub const ENTRIES_WHEN_CRAMPED: [u64; 4] = [ENTRIES_PER_STEP as u64, 32, 8, 1];
/// What a step of a family of data changes where more was too much.
const SWEPT_WHEN_CRAMPED: [u64; 3] = [ENTRIES_PER_STEP as u64, 16, 2];
/// Entries of a family of data that one transaction changes, where there is space for the nodes that takes.
const SWEPT_PER_STEP: u64 = 512;
/// The same where little waits to be reaped: fewer steps, for each that others meet is one too many.
const SWEPT_AT_EASE: u64 = 1024;
/// Steps of a family while others wait.
pub const STEPS_IN_A_TURN: u32 = 32;
/// Steps of the reaper before the background looks after other things, old dirty data first of all.
const STEPS_AT_A_TIME: u32 = 128;
/// Steps before a clean close, and no more: so few that nobody waits for long, and so many that a pool that is opened for a moment each
/// time gets further. The next opening finds the rest.
pub const STEPS_AT_CLOSE: u32 = 256;
/// Families asked for at a time when a pool is opened.
const FAMILIES_PER_SCAN: usize = 1024;

/// What, beside a number of its own, is the key of an orphan that is no inode: the data of a record that an older
/// version of a namespace had.
const RECORD_KEY: u64 = 1 << 63;

/// What a step of deleting an inode did.
struct Disposed {
    /// Whether nothing is left.
    done: bool,
    /// Blocks of reservations that are gone.
    reserved_freed: Unreserved,
    /// The family in which there is work from now on.
    reap: Option<FamilyId>,
    /// Held until it has been applied.
    _families: Option<ArcMutexGuard<RawMutex, ()>>,
}

/// What is to be reaped. Bounded by what is being deleted: an entry is 16 bytes, its subject at least a record.
#[derive(Default)]
pub struct ReapQueue {
    pub tasks: Mutex<Tasks>,
    /// Namespaces in which changes may have hidden something from the last who saw it, each once.
    hidden: Mutex<Vec<FamilyId>>,
    running: Mutex<()>,
    /// How many wait for the end of it.
    hurried: Mutex<u32>,
    hurry: Condvar,
    /// What steps leave for the next ones: bounded, and nothing depends on it but time.
    memory: Mutex<ReaperMemory>,
    /// What a device that failed has kept from being reaped; it may be well again.
    ailing: Mutex<Ailing>,
    /// How often a step for names was too large for the space there is, or the log ([`ENTRIES_WHEN_CRAMPED`]): others are small until
    /// one task has ended.
    pub cramped: AtomicUsize,
    /// [`ReapQueue::progress`].
    progress: AtomicU64,
}

/// While it lives, the reaper takes no rest.
pub struct Hurry<'a>(&'a ReapQueue);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        *self.0.hurried.lock() -= 1;
    }
}

impl ReapQueue {
    /// Somebody waits until all is reaped.
    pub(crate) fn hurry(&self) -> Hurry<'_> {
        *self.hurried.lock() += 1;
        self.hurry.notify_all();
        Hurry(self)
    }
    /// Adds work. What has been put off is done as a whole when it is tried again, and is not asked for before, however often somebody
    /// finds more of it.
    pub fn push(&self, task: Task) {
        if !self.is_put_off(task) {
            self.tasks.lock().push(task);
        }
    }
    /// Whether a device that failed has kept this from being done, and it is not tried again yet.
    fn is_put_off(&self, task: Task) -> bool {
        self.ailing.lock().holds(task)
    }
    /// A device that failed keeps this from being done. Whether that is to be said in the log.
    pub fn put_off(&self, task: Task, error: &str) -> bool {
        self.ailing.lock().put_off(task, error)
    }
    /// This has met no device that fails: it is not put off any more, nor what was put off with it.
    pub fn recovered(&self, task: Task) {
        let well = self.ailing.lock().recovered(task);
        well.into_iter().for_each(|task| self.push(task));
    }
    /// Whether something has been put off.
    fn ails(&self) -> bool {
        !self.ailing.lock().is_empty()
    }
    /// A change has begun that may hide something in this namespace from the last who sees it.
    pub(crate) fn may_hide(&self, family: FamilyId) {
        self.hidden.lock().push(family);
    }
    /// How many tasks there are.
    pub fn backlog(&self) -> u64 {
        self.waiting() + self.ailing.lock().len() as u64
    }
    /// How many of them can be done now.
    fn waiting(&self) -> u64 {
        self.tasks.lock().len() as u64
    }
    /// The background looks around: now and then what met a device that failed is work again.
    pub fn look_at_the_ailing(&self) {
        let due = self.ailing.lock().look();
        due.into_iter().for_each(|task| self.push(task));
    }
    /// Somebody waits for space: the same, though the background would leave it alone for longer.
    pub(crate) fn hurry_the_ailing(&self) {
        let due = self.ailing.lock().hurry();
        due.into_iter().for_each(|task| self.push(task));
    }
    /// Whether the family that has its turn goes on after so many steps.
    pub fn family_goes_on(&self, steps: u32) -> bool {
        let tasks = self.tasks.lock();
        steps < STEPS_IN_A_TURN || tasks.family_goes_on()
    }
    /// A number that grows with what has been done.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
    /// Whether there is work.
    pub fn has_work(&self) -> bool {
        self.waiting() > 0
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
        let disposed = self.dispose_part(Some(change), tx, ino, record)?;
        if let Some(family) = disposed.reap {
            // Should this not come true, there is nothing to do there.
            self.reap.push(Task::Family(family));
        }
        Ok(disposed.done)
    }

    /// Adds to `tx` the deletion of an inode's attributes and of its part in its data, as much as one step may. Without
    /// a `change` its subvolume is gone, and its attributes with it.
    fn dispose_part(
        &self,
        change: Option<&Change>,
        tx: &mut Transaction,
        ino: InodeId,
        record: &InodeRecord,
    ) -> Result<Disposed> {
        let mut disposed =
            Disposed { done: true, reserved_freed: Unreserved::default(), reap: None, _families: None };
        if record.xattr_count > 0
            && let Some(change) = change
            && change.delete_xattrs(tx, ino, ENTRIES_PER_STEP)?
        {
            // The data goes in the last step, once.
            disposed.done = false;
            return Ok(disposed);
        }
        if record.inline.is_some() {
            return Ok(disposed);
        }
        let sharing = self.sharing();
        if sharing || record.data.has_versions {
            match change {
                Some(change) => change.hold_families(self),
                None => disposed._families = Some(self.families.lock_arc()),
            }
        }
        let view = self.store.view();
        let holder = extents::holder_now(&view, record, sharing)?;
        if sharing && !version::is_sole(&view, holder)? {
            disposed.reap = version::release(&view, tx, holder)?.then_some(holder.family);
            return Ok(disposed);
        }
        // Its records may have gone before a last place to be looked at: what is left of it for the reaper goes, too.
        let holder = version::Holder { has_versions: sharing || holder.has_versions, ..holder };
        let progress = version::delete_step(&view, tx, holder, ENTRIES_PER_STEP as u64)?;
        (disposed.done, disposed.reserved_freed) = (!progress.more, progress.reserved_freed);
        Ok(disposed)
    }

    /// Notes the namespaces in which a change may have hidden something from the last who saw it.
    pub(crate) fn find_hidden(&self) {
        if !self.sharing() {
            return;
        }
        for family in std::mem::take(&mut *self.reap.hidden.lock()) {
            // Without a gate the family is gone: its last subvolume was reaped with its names.
            let Some(gate) = self.subvolumes.gate_of(family) else { continue };
            // Whoever begins a change from here on tells again; the reaper waits for those who have.
            enter(&gate).reaper_comes();
            self.reap.push(Task::Names(family));
        }
    }

    /// Does everything there is to reap, as quickly as it can. What is damaged is left as it is, and said in the log.
    pub fn reap_all(&self) -> Result<()> {
        let _hurry = self.reap.hurry();
        self.reap(u32::MAX, false).map(|_| ())
    }

    /// The same when the pool is opened.
    pub(crate) fn reap_at_open(&self) -> Result<()> {
        self.reap_if_there_is_space(u32::MAX, false)
    }

    /// Some of the same before a clean close: all has been deleted by then, and is found again. It ends where a device fails: who
    /// closes waits for each of its attempts, and what has been accepted is not durable before.
    pub(crate) fn reap_at_close(&self) -> Result<()> {
        self.reap_if_there_is_space(STEPS_AT_CLOSE, true)
    }

    /// As much of the same when the pool is opened and something that is to be removed finds no space.
    pub(crate) fn reap_for_space(&self) -> Result<()> {
        self.reap_if_there_is_space(STEPS_AT_CLOSE, false)
    }

    fn reap_if_there_is_space(&self, steps: u32, until_a_device_fails: bool) -> Result<()> {
        let _hurry = self.reap.hurry();
        match self.reap(steps, until_a_device_fails) {
            Err(FsError::Engine(EngineError::NoSpace)) => {
                let left = self.reap.backlog();
                tracing::warn!("there is no space to reap what has been deleted: {left} tasks are left");
                Ok(())
            }
            result => result.map(drop),
        }
    }

    /// As many steps of the same as are allowed, without a rest. False: there may be more.
    pub fn reap_at_once(&self, steps: u32) -> Result<bool> {
        let _hurry = self.reap.hurry();
        self.reap(steps, false)
    }

    /// Some of the same, with a rest after each step while others change something: there is other work in the background,
    /// and who closes the filesystem waits for this. It ends where a device fails, which may take its time for that. False: there
    /// may be more.
    pub(crate) fn reap_some(&self) -> Result<bool> {
        self.reap(STEPS_AT_A_TIME, true)
    }

    /// Reaps as long as steps are left, and perhaps no device fails. A task that takes none counts as one.
    fn reap(&self, steps: u32, until_a_device_fails: bool) -> Result<bool> {
        let _running = self.reap.running.lock();
        let pace = self.pace(steps);
        self.find_hidden();
        loop {
            if pace.is_over() {
                return Ok(false);
            }
            let Some(task) = self.reap.tasks.lock().begin() else { return Ok(true) };
            if self.reap.is_put_off(task) {
                // It was named again while it was being tried.
                self.reap.tasks.lock().done(task);
                continue;
            }
            let left = pace.left();
            let reaped = match task {
                Task::Orphan(ino) => self.reap_orphan(ino, &pace),
                Task::Family(family) => {
                    self.reap_family_while(family, &pace, |steps| self.reap.family_goes_on(steps))
                }
                Task::Names(family) => self.reap_names(family, &pace),
                Task::Subvolume { id, slot, family } => self.reap_subvolume(id, slot, family, &pace),
            };
            if let Task::Names(family) | Task::Subvolume { family, .. } = task {
                // Perhaps nobody else has it any more.
                self.subvolumes.let_go_of_gate(family);
            }
            if pace.left() < left {
                // Whatever came of it: who found no space before is tried again.
                self.reap.tasks.lock().progress();
                self.reap.progress.fetch_add(1, Ordering::Relaxed);
            } else {
                pace.step();
            }
            let mut fails = false;
            match reaped {
                Ok(true) => {}
                // It goes on with that one, or with what has its turn.
                Ok(false) => continue,
                Err(FsError::Engine(EngineError::Device(error))) => {
                    let error = error.to_string();
                    if self.reap.put_off(task, &error) {
                        tracing::error!(
                            "{task:?} cannot be reaped now: {error}; it is tried again, more seldom each time"
                        );
                    }
                    fails = true;
                }
                Err(FsError::Engine(error)) if error.is_damage() => {
                    // It keeps its space, and keeps nothing else from being reaped; the next opening finds it again.
                    tracing::error!("{task:?} cannot be reaped: {error}; `varve check` says what is damaged");
                }
                Err(FsError::Engine(EngineError::Refused(why))) => {
                    // A step that no log would take: trying it again changes nothing, and others are to have their turn.
                    tracing::error!(
                        "{task:?} cannot be reaped: {why}; it keeps its space, the next opening tries again"
                    );
                }
                Err(FsError::Engine(EngineError::NoSpace)) => {
                    // The device has let it get so far. What was put off with it may free what it lacks.
                    self.reap.recovered(task);
                    if self.reap.tasks.lock().refuse(task) {
                        continue;
                    }
                    return Err(EngineError::NoSpace.into());
                }
                Err(error) => return Err(error),
            }
            if !fails {
                self.reap.recovered(task);
            }
            // Only here are tasks removed, and `running` is held.
            self.reap.tasks.lock().done(task);
            if fails && until_a_device_fails {
                return Ok(true);
            }
        }
    }

    /// Deletes an orphan. False: it is not all gone, and others have their turn.
    pub fn reap_orphan(&self, ino: InodeId, pace: &Pace) -> Result<bool> {
        // Its subvolume may be another one by now, where somebody has this open: then it is reaped when he has not any more.
        let is_open = || self.inodes.known(ino).is_some_and(|state| state.inner.read().opens > 0);
        if self.subvolumes.require_held(Slot::of(ino)).is_ok() && is_open() {
            return Ok(true);
        }
        while !pace.is_over() {
            let change = match self.change(ino) {
                Ok(change) => Some(change),
                Err(FsError::Stale | FsError::ReadOnlySubvolume) => None,
                Err(error) => return Err(error),
            };
            // Nobody else changes an orphan that is not open: its state in memory is gone.
            let Some(orphan) = orphans::get(&self.store, ino)? else { return Ok(true) };
            let mut tx = Transaction::new();
            let disposed = self.dispose_part(change.as_ref(), &mut tx, ino, &orphan.inode)?;
            if disposed.done {
                orphans::delete(&mut tx, ino);
            }
            tx.privileged();
            // Whiteouts of attributes, too: what is left behind keeps more.
            tx.spares_nothing();
            let changes = tx.len();
            let lsn = self.apply_freeing(tx, None, disposed.reserved_freed)?;
            let (done, reap) = (disposed.done, disposed.reap);
            drop((disposed, change));
            if let Some(family) = reap {
                self.reap.push(Task::Family(family));
            }
            self.rest_after(Step::of(lsn, changes), pace);
            if done {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Brings the versions of a family of data to what its holders see.
    pub(crate) fn reap_family(&self, family: FamilyId) -> Result<()> {
        let _hurry = self.reap.hurry();
        self.reap_family_while(family, &self.pace(u32::MAX), |_| true).map(|_| ())
    }

    /// The same, as long as `goes_on` says of the steps that have been done. False: there may be more to do.
    pub fn reap_family_while(
        &self,
        family: FamilyId,
        pace: &Pace,
        goes_on: impl Fn(u32) -> bool,
    ) -> Result<bool> {
        let (mut cramped, mut steps) = (0, 0);
        while goes_on(steps) {
            steps += 1;
            let entries = match cramped {
                0 if self.reap.at_ease() => SWEPT_AT_EASE,
                0 => SWEPT_PER_STEP,
                _ => SWEPT_WHEN_CRAMPED[cramped - 1],
            };
            if steps == 1 && self.reap.ails() {
                // A device that fails is asked before anybody waits for the lock. With nothing remembered this plans anew, so that it is done once.
                let (mut tx, mut memory) = (Transaction::new(), ReaperMemory::default());
                version::reap_step(&self.store.view(), &mut tx, family, entries, &mut memory)?;
            }
            let alone = self.families.lock();
            let mut tx = Transaction::new();
            let (view, mut memory) = (self.store.view(), self.reap.memory.lock());
            let progress = version::reap_step(&view, &mut tx, family, entries, &mut memory)?;
            drop(memory);
            // What a view holds is copied before it is changed.
            drop(view);
            let mut applied = None;
            if !tx.is_empty() {
                tx.privileged();
                match self.apply_freeing(tx, None, progress.reserved_freed) {
                    Ok(lsn) => applied = Some(lsn),
                    Err(error) => {
                        self.reap.memory.lock().forget();
                        if cramped == SWEPT_WHEN_CRAMPED.len() || !is_too_large(&error) {
                            return Err(error);
                        }
                        cramped += 1;
                    }
                }
            }
            MutexGuard::unlock_fair(alone);
            if !progress.more {
                return Ok(true);
            }
            if let Some(lsn) = applied {
                self.rest_after(Step::of_family(lsn, entries == SWEPT_AT_EASE), pace);
            }
            if pace.is_over() {
                break;
            }
        }
        Ok(false)
    }

    /// Brings the versions of a namespace to what its subvolumes show. Records that cease to exist let go of their data.
    /// False: there is more to do, and others have their turn.
    pub fn reap_names(&self, family: FamilyId, pace: &Pace) -> Result<bool> {
        let gate = self.subvolumes.gate(family);
        if self.reap.ails() {
            // As for data: a device that fails is asked before everybody is kept out.
            let (mut tx, mut memory) = (Transaction::new(), ReaperMemory::default());
            let entries = ENTRIES_WHEN_CRAMPED[self.reap.cramped.load(Ordering::Relaxed)];
            let view = self.store.view();
            points::reap_points_step(&view, &mut tx, family, entries, &mut memory, &mut |_, _, _, _| {
                Ok(true)
            })?;
        }
        while !pace.is_over() {
            let mut applied = None;
            let cramped = self.reap.cramped.load(Ordering::Relaxed);
            let (more, dead) = {
                let mut shown = gate.write();
                let _counting = self.counting()?;
                let (mut dead, mut gone) = (Vec::new(), Vec::new());
                let mut tx = Transaction::new();
                let view = self.store.view();
                let mut on_dead = |tx: &mut Transaction,
                                   tree: TreeId,
                                   prefix: &[u8],
                                   value: &[u8]|
                 -> std::result::Result<bool, EngineError> {
                    if tree != TreeId::INODES {
                        return Ok(true);
                    }
                    gone.push(inodes::place(prefix));
                    let record = match InodeRecord::decode(value) {
                        Ok(record) => record,
                        Err(why) => {
                            // What data it had keeps its space, and keeps nothing else from being reaped.
                            tracing::error!(
                                "the record of an inode that nobody sees: {why}; `varve check` says what is damaged"
                            );
                            return Ok(true);
                        }
                    };
                    if record.inline.is_none() {
                        let id = self.store.new_id();
                        tx.claim_id(id);
                        let key = InodeId(RECORD_KEY | id);
                        let record = InodeRecord { links: 0, xattr_count: 0, xattr_bytes: 0, ..record };
                        orphans::put(tx, key, OrphanState::Deleting, &record);
                        dead.push(key);
                    }
                    Ok(true)
                };
                let entries = ENTRIES_WHEN_CRAMPED[cramped];
                let progress = {
                    let mut memory = self.reap.memory.lock();
                    points::reap_points_step(&view, &mut tx, family, entries, &mut memory, &mut on_dead)?
                };
                // What a view holds keeps its space, which this may need.
                drop(view);
                if !tx.is_empty() {
                    tx.privileged();
                    let changes = tx.len();
                    match self.apply(tx) {
                        Ok(lsn) => applied = Some(Step::of(lsn, changes)),
                        Err(error) => {
                            self.reap.memory.lock().forget();
                            if cramped + 1 == ENTRIES_WHEN_CRAMPED.len() || !is_too_large(&error) {
                                return Err(error);
                            }
                            self.reap.cramped.store(cramped + 1, Ordering::Relaxed);
                            continue;
                        }
                    }
                    shown.changed();
                    gone.into_iter().for_each(|place| self.files.add(place, -1));
                }
                (progress.more, dead)
            };
            if let Some(step) = applied {
                self.rest_after(step, pace);
                if cramped > 1 && self.store.space().free_bytes > 0 {
                    // What has been freed is more than what steps add.
                    self.reap.cramped.store(1, Ordering::Relaxed);
                }
            }
            // Their records are nowhere else any more: those for which there is no time, or which cannot be reaped, wait like
            // others, and so do those behind them.
            let mut failed = None;
            for key in dead {
                if failed.is_none() {
                    match self.reap_orphan(key, pace) {
                        Ok(true) => continue,
                        Ok(false) => {}
                        // It is said when it has its turn.
                        Err(FsError::Engine(error)) if error.is_damage() => {}
                        Err(error) => failed = Some(error),
                    }
                }
                self.reap.push(Task::Orphan(key));
            }
            if let Some(error) = failed {
                return Err(error);
            }
            if !more {
                self.reap.cramped.store(0, Ordering::Relaxed);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes what is left of a subvolume that has been deleted. False: as for names.
    pub fn reap_subvolume(&self, id: u64, slot: Slot, family: FamilyId, pace: &Pace) -> Result<bool> {
        let mut found = Vec::new();
        orphans::each_of(&self.store.view(), slot, &mut |ino| found.push(ino))?;
        let mut damaged = None;
        for ino in found {
            match self.reap_orphan(ino, pace) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(FsError::Engine(error)) if error.is_damage() => damaged = damaged.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        if !self.reap_names(family, pace)? {
            return Ok(false);
        }
        if let Some(error) = damaged {
            // The record stays with the orphan: its slot must not become another subvolume's.
            return Err(error.into());
        }
        let mut tx = Transaction::new();
        subvolumes::delete(&mut tx, id);
        tx.privileged();
        let (changes, lsn) = (tx.len(), self.apply(tx)?);
        // Here, where nobody waits for it.
        self.forget_accesses(slot);
        self.inodes.clear(slot);
        self.subvolumes.give_back(slot);
        self.rest_after(Step::of(lsn, changes), pace);
        Ok(true)
    }

    /// Finds what an earlier life left to be reaped: at the cost of that, and of a look at the records of subvolumes. What cannot be
    /// found because of damage keeps its space, and the pool is opened all the same.
    pub fn find_reap_work(&self) -> Result<()> {
        let pass = |result: Result<()>| match result {
            // It may be well the next time: then all of it is found.
            Err(FsError::Engine(EngineError::Device(error))) => Err(EngineError::Device(error).into()),
            Err(FsError::Engine(error)) if error.is_damage() => {
                tracing::error!(
                    "some of what is deleted cannot be found: {error}; `varve check` says what is damaged"
                );
                Ok(())
            }
            result => result,
        };
        let view = self.store.view();
        pass(orphans::each(&view, &mut |ino| self.reap.push(Task::Orphan(ino))).map_err(FsError::from))?;
        let mut names: HashSet<FamilyId> =
            self.subvolumes.all().iter().map(|subvolume| subvolume.family).collect();
        if self.sharing() {
            let pending = |after| points::pending_points_families(&view, after, FAMILIES_PER_SCAN);
            // Who is deleted looks after what has been its own.
            let found = all_pages(pending, |family| {
                if names.contains(&family) {
                    self.reap.push(Task::Names(family));
                }
            });
            pass(found)?;
        }
        for (id, record) in subvolumes::others(&view)? {
            let record = record.map_err(corrupt(|| format!("the record of subvolume {id}")))?;
            if record.flags & SUBVOLUME_DELETING != 0 {
                names.insert(record.family);
                self.reap.push(Task::Subvolume { id, slot: Slot(record.slot), family: record.family });
            }
        }
        let pending = |after| version::pending_families(&view, after, FAMILIES_PER_SCAN);
        pass(all_pages(pending, |family| {
            if !names.contains(&family) {
                self.reap.push(Task::Family(family));
            }
        }))
    }
}

/// Some families, and after which the next ones are.
type Page = (Vec<FamilyId>, Option<FamilyId>);

/// Calls `found` with all families, of which `page` gives those after one.
fn all_pages(
    page: impl Fn(Option<FamilyId>) -> std::result::Result<Page, EngineError>,
    mut found: impl FnMut(FamilyId),
) -> Result<()> {
    let mut after = None;
    loop {
        let (families, next) = page(after)?;
        families.into_iter().for_each(&mut found);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// Whether a smaller step may fit into the space there is, or into the log.
fn is_too_large(error: &FsError) -> bool {
    matches!(error, FsError::Engine(EngineError::NoSpace | EngineError::Refused(_)))
}
