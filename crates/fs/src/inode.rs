//! Inodes in memory: one [`InodeState`] per inode in use, and the bounded table that finds it.
//!
//! Invariants:
//! - There is at most one state per inode; it is loaded under its own lock, so that nobody can install a stale record.
//! - [`Inner::record`] is what the log holds. Data that waits in memory shows only in [`Inner::size`],
//!   [`Inner::pending`] and [`Inner::pages`].
//! - A state that is open, has dirty pages or is referred to by anybody stays; all others may go at any moment.
//!
//! Lock order (each may be taken while holding those before it): rename lock; the topology of subvolumes; where the bytes of one
//! file are ([`InodeState::places`]); the queue for what floats; turn of **one** file (more only by trying); gates; inodes in
//! ascending order; families of data; dirty list; engine. A turn is never waited for while holding an inode or a gate. Who waits
//! while a file is still ([`Still`]) holds none of these, or the file's places alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use varve_engine::{InodeId, Numbered, PoolAddr, VersionId};
use varve_format::record::inode::{DataPointer, InodeKind, InodeRecord, Time};

use crate::met::MetSlots;
use crate::subvolume::{Change, Slot};
use crate::writeback::pages::DirtyPages;

const SHARDS: usize = 16;
/// States that a shard has before it lets unused ones go.
const UNUSED_PER_SHARD_MAX: usize = 1024;
/// How many of its oldest it looks at for each new one then. So no more are unused than are in use, or were when they were looked at.
const OLDEST_LOOKED_AT: usize = 2;
/// Numbers that a shard keeps beyond those of its states, and as many again, before it sorts them out.
const VOID_MAX: usize = 64;

/// Where an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Nobody has looked.
    Unloaded,
    /// In the namespace.
    Live,
    /// Without a name, since it lost its last or had none, kept because it is open.
    Orphan,
    /// Nowhere, or no longer.
    Gone,
}

/// Attribute changes of writes that are logged with their data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Last change of data.
    pub mtime: Option<Time>,
    /// Last change of the inode.
    pub ctime: Option<Time>,
    /// The mode without the set-id bits that a write took away.
    pub mode: Option<u16>,
}

/// What an inode's lock guards.
pub struct Inner {
    /// Where it is.
    pub presence: Presence,
    /// The logged record.
    pub record: InodeRecord,
    /// The version of the namespace whose own entry it is; 0 if it is inherited, as far as known.
    pub owned_by: VersionId,
    /// Size with what waits in memory.
    pub size: u64,
    /// Attributes with what waits in memory.
    pub pending: Pending,
    /// An access that is not logged yet.
    pub accessed: Option<Time>,
    /// Dirty data.
    pub pages: DirtyPages,
    /// Counts changes of where logged data is, and of the size.
    pub mapping: u64,
    /// Those of them that only made the file longer.
    pub grown: u64,
    /// Open handles.
    pub opens: u32,
    /// An orphan that has never had a name and may get one.
    pub linkable: bool,
    /// It has been cut, and nobody who closed it since has had it written anew: [`Core::log_anew`].
    pub cut: bool,
    /// Where the next blocks should be: the end of what was written last.
    pub near: PoolAddr,
}

impl Inner {
    /// The state of an inode whose record is known.
    pub(crate) fn install(&mut self, record: InodeRecord, owned_by: VersionId, presence: Presence) {
        self.owned_by = owned_by;
        self.size = record.size;
        self.record = record;
        self.presence = presence;
    }

    /// Whether contents lie in the record, all of them in the first block; behind that there are holes.
    pub(crate) fn has_contents_in_record(&self) -> bool {
        self.record.inline.as_ref().is_some_and(|contents| !contents.is_empty())
    }

    /// Counts changes of where logged data is: what it said at a place says nothing else now, as long as this is the same.
    pub(crate) fn layout(&self) -> u64 {
        self.mapping - self.grown
    }

    /// Permission bits as seen now.
    pub(crate) fn mode(&self) -> u16 {
        self.pending.mode.unwrap_or(self.record.mode)
    }

    /// mtime and ctime as seen now.
    pub(crate) fn times(&self) -> (Time, Time) {
        (self.pending.mtime.unwrap_or(self.record.mtime), self.pending.ctime.unwrap_or(self.record.ctime))
    }

    /// atime as seen now.
    pub(crate) fn access_time(&self) -> Time {
        self.accessed.unwrap_or(self.record.atime)
    }

    /// A copy of the record with what waits in memory, except sizes, made part of it.
    pub(crate) fn record_with_pending(&self) -> InodeRecord {
        let mut record = self.record.clone();
        (record.mtime, record.ctime) = self.times();
        record.mode = self.mode();
        record
    }

    /// Takes over a record that has been logged with a ctime later than that of any write.
    pub(crate) fn take_over(&mut self, change: &Change, record: InodeRecord) {
        self.logged(change, record);
        self.pending.ctime = None;
    }

    /// Takes over a record that has been logged.
    pub(crate) fn logged(&mut self, change: &Change, record: InodeRecord) {
        self.record = record;
        self.owned_by = change.version;
        change.applied();
    }

    /// Whether it is open, or data of it waits in memory.
    fn is_in_use(&self) -> bool {
        self.opens > 0 || !self.pages.is_empty()
    }

    /// Whether writes have grown the file beyond what is logged.
    pub fn growth_waits(&self) -> bool {
        self.size > self.record.size
    }
}

/// A record with nothing in it.
pub fn blank_record(kind: InodeKind) -> InodeRecord {
    InodeRecord {
        kind,
        mode: 0,
        flags: 0,
        uid: 0,
        gid: 0,
        links: 1,
        // Of a directory: one more than it has directories in it.
        rdev: u32::from(kind == InodeKind::Directory),
        project: 0,
        xattr_count: 0,
        xattr_bytes: 0,
        size: 0,
        generation: 1,
        change: 1,
        parent: InodeId(0),
        data: DataPointer::default(),
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        btime: Time::default(),
        inline: Some(Vec::new()),
    }
}

/// A part of a file in which, as was seen, no logged data is. So who looks for data step by step passes what lies between once.
#[derive(Clone, Copy, Default, Debug)]
pub struct Gap {
    /// [`Inner::mapping`] when it was seen: afterwards this says nothing.
    mapping: u64,
    from: u64,
    to: u64,
}

impl Gap {
    /// Where the gap ends in which `at` lies, with the mapping as it is; `at` if it lies in none that is known.
    pub(crate) fn end_of(self, mapping: u64, at: u64) -> u64 {
        if self.mapping == mapping && (self.from..self.to).contains(&at) { self.to } else { at }
    }

    /// There is no data in [`from`, `to`) either.
    pub(crate) fn widen(&mut self, mapping: u64, from: u64, to: u64) {
        if from < to {
            let joins = self.mapping == mapping && (self.from..=self.to).contains(&from);
            let (from, to) = if joins { (self.from, to.max(self.to)) } else { (from, to) };
            *self = Gap { mapping, from, to };
        }
    }
}

/// An inode in use.
pub struct InodeState {
    /// Which one.
    pub ino: InodeId,
    /// Everything that changes.
    pub inner: RwLock<Inner>,
    /// It has been seen to be a directory. Numbers are given once and no inode changes its kind, so that stays true; and
    /// who asks waits for nobody who changes it.
    directory: AtomicBool,
    dirty_from: AtomicU64,
    stuck: AtomicBool,
    gap: Mutex<Gap>,
    turn: Mutex<bool>,
    turn_ended: Condvar,
    /// Held by who moves bytes of the file to another place, and by who changes a range in several turns.
    places: Mutex<()>,
    /// Whether anybody wants nothing new to be written: nearly always nobody does.
    stilled: AtomicBool,
    stills: Mutex<u32>,
    still_ended: Condvar,
}

/// The right to write back or cut a file's data. One at a time; held across device writes.
pub struct Turn {
    state: Arc<InodeState>,
}

impl Turn {
    /// Whose turn it is.
    pub(crate) fn state(&self) -> &Arc<InodeState> {
        &self.state
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.state.turn.lock() = false;
        self.state.turn_ended.notify_one();
    }
}

/// Keeps writes to a file from beginning, so that all of it can be logged once.
pub struct Still {
    state: Arc<InodeState>,
}

impl Drop for Still {
    fn drop(&mut self) {
        let mut stills = self.state.stills.lock();
        *stills -= 1;
        self.state.stilled.store(*stills > 0, Ordering::Release);
        if *stills == 0 {
            self.state.still_ended.notify_all();
        }
    }
}

/// Rounds of a verb that writes a file back and finds it dirty again, because others write to it beside. From then on they wait.
const ROUNDS_BESIDE_WRITERS: u32 = 4;

/// Brings a verb to an end that can only be done while nothing of a file waits.
#[derive(Default)]
pub struct Calm {
    count: u32,
    still: Option<Still>,
}

impl Calm {
    /// Another round of `state` begins.
    pub(crate) fn next(&mut self, state: &Arc<InodeState>) {
        self.count += 1;
        if self.count >= ROUNDS_BESIDE_WRITERS && self.still.is_none() {
            // Those who have begun end, and each makes the file dirty once more at most.
            self.still = Some(state.still());
        }
    }
}

impl InodeState {
    fn new(ino: InodeId) -> InodeState {
        let inner = Inner {
            presence: Presence::Unloaded,
            record: blank_record(InodeKind::File),
            owned_by: VersionId(0),
            size: 0,
            pending: Pending::default(),
            accessed: None,
            pages: DirtyPages::default(),
            mapping: 0,
            grown: 0,
            opens: 0,
            linkable: false,
            cut: false,
            near: PoolAddr::NULL,
        };
        InodeState {
            ino,
            inner: RwLock::new(inner),
            directory: AtomicBool::new(false),
            dirty_from: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
            gap: Mutex::default(),
            turn: Mutex::new(false),
            turn_ended: Condvar::new(),
            places: Mutex::default(),
            stilled: AtomicBool::new(false),
            stills: Mutex::new(0),
            still_ended: Condvar::new(),
        }
    }

    /// Whether it is known to be a directory, or to have been one before it went. False if nobody has looked.
    pub(crate) fn known_directory(&self) -> bool {
        self.directory.load(Ordering::Relaxed)
    }

    /// Its record has been seen.
    pub(crate) fn note_kind(&self, kind: InodeKind) {
        if kind == InodeKind::Directory {
            self.directory.store(true, Ordering::Relaxed);
        }
    }

    /// The place it got in the list of dirty files when it became dirty; 0 if it is not in the list.
    pub(crate) fn dirty_from(&self) -> u64 {
        self.dirty_from.load(Ordering::Acquire)
    }

    /// For the list of dirty files, under its lock. When the file leaves the list, all of it has its place in the log.
    pub(crate) fn set_dirty_from(&self, place: u64) {
        self.dirty_from.store(place, Ordering::Release);
    }

    /// Whether it could not be written back when that was last tried. Only a hint of whom it is better to leave out.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Its data has been taken for write-back, or could not be written back.
    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Relaxed);
    }

    /// The part without data that is known. A leaf in the lock order.
    pub(crate) fn gap(&self) -> MutexGuard<'_, Gap> {
        self.gap.lock()
    }

    /// Waits for the turn. The caller holds neither an inode nor another turn.
    pub fn turn(self: &Arc<Self>) -> Turn {
        let mut taken = self.turn.lock();
        while *taken {
            self.turn_ended.wait(&mut taken);
        }
        *taken = true;
        Turn { state: self.clone() }
    }

    /// Keeps writes that have not begun from beginning. For a moment: who waits may hold up more than himself.
    pub(crate) fn still(self: &Arc<Self>) -> Still {
        let mut stills = self.stills.lock();
        *stills += 1;
        self.stilled.store(true, Ordering::Release);
        Still { state: self.clone() }
    }

    /// Before a write begins: waits while there is a [`Still`]. The caller holds nothing at all, or the file's places alone.
    pub(crate) fn wait_while_still(&self) {
        if self.stilled.load(Ordering::Acquire) {
            let mut stills = self.stills.lock();
            while *stills > 0 {
                self.still_ended.wait(&mut stills);
            }
        }
    }

    /// What lies in the file stays in its place while this is held. The caller holds no turn.
    pub(crate) fn places(&self) -> MutexGuard<'_, ()> {
        self.places.lock()
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_turn(self: &Arc<Self>) -> Option<Turn> {
        let mut taken = self.turn.lock();
        if *taken {
            return None;
        }
        *taken = true;
        Some(Turn { state: self.clone() })
    }
}

/// A part of the inodes in use.
#[derive(Default)]
struct Shard {
    states: Numbered<u64, Arc<InodeState>>,
    /// Their numbers, and some whose states have been let go of; in front those that came, or were looked at, first.
    oldest: VecDeque<u64>,
}

impl Shard {
    /// The state of `ino`, made if there is none.
    fn state(&mut self, ino: InodeId, met: &MetSlots) -> Arc<InodeState> {
        if let Some(state) = self.states.get(&ino.0) {
            return state.clone();
        }
        let mut unused = None;
        if self.states.len() >= UNUSED_PER_SHARD_MAX {
            for _ in 0..OLDEST_LOOKED_AT {
                unused = self.take_unused().or(unused);
            }
        }
        // The memory of one that goes is there for the one that comes.
        let state = match unused.as_mut().and_then(Arc::get_mut) {
            Some(old) => {
                *old = InodeState::new(ino);
                unused.take()
            }
            None => None,
        };
        let state = state.unwrap_or_else(|| Arc::new(InodeState::new(ino)));
        met.set(Slot::of(ino));
        self.states.insert(ino.0, state.clone());
        self.oldest.push_back(ino.0);
        state
    }

    /// Takes out the oldest if it is not in use.
    fn take_unused(&mut self) -> Option<Arc<InodeState>> {
        let ino = self.oldest.pop_front()?;
        if self.states.get(&ino).is_some_and(|state| in_use(state, 0)) {
            self.oldest.push_back(ino);
            return None;
        }
        self.states.remove(&ino)
    }

    /// Takes out `state` if only the caller uses it.
    fn let_go(&mut self, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        if Arc::strong_count(state) > 2
            || !self.states.get(&state.ino.0).is_some_and(|known| Arc::ptr_eq(known, state))
        {
            return None;
        }
        let unused = self.states.remove(&state.ino.0);
        self.forget_void();
        unused
    }

    /// Those that have been taken out are forgotten when they are many.
    fn forget_void(&mut self) {
        if self.oldest.len() > 2 * self.states.len() + VOID_MAX {
            self.oldest.retain(|ino| self.states.contains_key(ino));
        }
    }
}

/// All inodes in use.
#[derive(Default)]
pub struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
    met: MetSlots,
}

impl InodeTable {
    /// The state of `ino`, made if there is none. Bound: twice as many as are in use, or [`UNUSED_PER_SHARD_MAX`] a shard.
    pub(crate) fn state(&self, ino: InodeId) -> Arc<InodeState> {
        self.shards[ino.0 as usize % SHARDS].lock().state(ino, &self.met)
    }

    /// The state of `ino`, if there is one.
    pub(crate) fn known(&self, ino: InodeId) -> Option<Arc<InodeState>> {
        self.shards[ino.0 as usize % SHARDS].lock().states.get(&ino.0).cloned()
    }

    /// Nobody will look for the inode any more: what the caller has of it goes, and so does all else unless somebody else has it.
    pub(crate) fn let_go(&self, state: Arc<InodeState>) {
        let unused = self.shards[state.ino.0 as usize % SHARDS].lock().let_go(&state);
        drop((unused, state));
    }

    /// Nobody is likely to look for the inode soon: the same, if it is not in use.
    pub(crate) fn let_go_unused(&self, state: Arc<InodeState>) {
        let mut shard = self.shards[state.ino.0 as usize % SHARDS].lock();
        let unused = (!in_use(&state, 1)).then(|| shard.let_go(&state));
        drop(shard);
        drop((unused, state));
    }

    /// Every inode that is open, and how often.
    pub fn open(&self) -> Vec<(InodeId, u32)> {
        let mut open = Vec::new();
        for shard in &self.shards {
            let states: Vec<_> = shard.lock().states.values().cloned().collect();
            for state in states {
                let opens = state.inner.read().opens;
                if opens > 0 {
                    open.push((state.ino, opens));
                }
            }
        }
        open
    }

    /// Calls `each` with every inode of a subvolume. Costs nothing if there is none, and has never been one since the last time.
    pub(crate) fn each_of(&self, slot: Slot, mut each: impl FnMut(&Arc<InodeState>)) {
        // Whoever comes from now on sets it again; who came before is found.
        if !self.met.take(slot) {
            return;
        }
        for shard in &self.shards {
            let states: Vec<_> = {
                let shard = shard.lock();
                let of_slot = shard.states.iter().filter(|(ino, _)| Slot::of(InodeId(**ino)) == slot);
                of_slot.map(|(_, state)| state.clone()).collect()
            };
            if !states.is_empty() {
                self.met.set(slot);
            }
            states.iter().for_each(&mut each);
        }
    }

    /// Takes all inodes out of the table that are numbered in `slot`, of which the subvolume is gone. False: some are in use, and stay.
    pub(crate) fn clear(&self, slot: Slot) -> bool {
        if !self.met.take(slot) {
            return true;
        }
        let mut is_clear = true;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.states.retain(|ino, state| {
                if Slot::of(InodeId(*ino)) != slot {
                    return true;
                }
                let stays = in_use(state, 0);
                is_clear &= !stays;
                stays
            });
            shard.forget_void();
        }
        if !is_clear {
            self.met.set(slot);
        }
        is_clear
    }
}

/// Whether anybody uses a state, but for `mine` references. Under the shard's lock nobody can obtain one that only the table, and the
/// caller, refer to.
fn in_use(state: &Arc<InodeState>, mine: usize) -> bool {
    // First: whoever has none now cannot open it before the lock goes.
    if Arc::strong_count(state) > 1 + mine {
        return true;
    }
    state.inner.read().is_in_use()
}

#[cfg(test)]
mod tests;
