//! Who leads and who waits. No I/O happens here, and no lock is held while somebody is woken.
//!
//! At most [`IN_FLIGHT_MAX`] batches are in flight: one being sealed and written, the others written and not yet known to
//! be flushed. Who comes when a batch may be begun leads it. Else it waits in a list, and is woken exactly when its
//! batch is durable, or when it is the first that no batch in flight covers and one may be begun. All for whom a batch was are
//! woken with one system call.
//!
//! Few threads ([`FEW`]) do better with one batch at a time and as many as possible in it: flushes that overlap wait
//! for each other in the device, and what the threads do between two commits is short. So among few, a batch is not begun early, and
//! when one has become durable, who comes first waits for those whom it was for, at most half as long as a commit has
//! taken lately. With more than that the processors are busy while a batch is in flight, and overlapping pays.
//!
//! No wake-up is lost: whether a batch may be begun changes only where somebody ceases to write, where a batch becomes
//! durable, where somebody arrives, and where patience ends; each of these but the last calls the first who is not covered,
//! and while there is patience, who is called and who comes sleep no longer than that. Who is called and finds that
//! another was quicker waits again; the other comes through one of these places later. Nor does a panic lose one: whoever
//! writes or flushes stops the pool by it ([`PanicStops`]), and who was to be woken is ([`Wakes`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use varve_device::{EventCount, Stopwatch};
use varve_format::Lsn;

use super::Done;
use crate::EngineError;
use crate::core::Pending;

/// Batches in flight: while one is flushed the next is written, and its flush can be begun. A third could only wait for
/// the second, and would be smaller than if it had gathered meanwhile.
const IN_FLIGHT_MAX: usize = 2;
/// So many threads or fewer do better without overlap: measured with two processors, where eight do as well either way and
/// more do better with it.
const FEW: usize = 4;
/// Who comes first waits for the others no longer than this, however slow the device.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

/// Who leads and who waits.
#[derive(Default)]
pub struct Commits {
    pub(super) inner: Mutex<Inner>,
    /// Set after `Inner::stopped`: every change asks, and most of the time the answer is no.
    stopped: AtomicBool,
    /// Batches whose end has been fixed, see [`Commits::cut`].
    cuts: AtomicU32,
    /// Where the last of them ends.
    cut: AtomicU64,
}

/// A batch that has been written.
pub(super) struct Written {
    /// Who leads it waits for it, and is in no list.
    pub leader_waits: bool,
    pub sequence: u64,
    pub last: Lsn,
    pub pending: Pending,
}

#[derive(Default)]
pub(super) struct Inner {
    /// Somebody seals and writes a batch. One at a time: a batch is sealed when all before it have been written, so
    /// that a flush that begins after its writes covers those as well.
    pub writing: bool,
    /// Written and not known to be flushed, oldest first.
    pub written: VecDeque<Written>,
    /// All batches up to this one are known to be flushed; what that brings with it may not have been done.
    pub flushed_upto: u64,
    /// Somebody does it: one at a time, in the order of the batches.
    pub landing: bool,
    /// Transactions up to here are in batches that have been written.
    pub sealed: Lsn,
    pub durable: Lsn,
    /// The last batch known to be flushed (P), set before what it frees can be handed out: whoever uses that names this P.
    pub flushed_sequence: u64,
    /// P as the last written batch names it.
    pub named_sequence: u64,
    /// How many of those whose batch became durable last have not come again. While one batch is in flight, the next
    /// begins early only when nobody is expected any more: else it would leave behind those who are about to come.
    expected: usize,
    /// For how long who comes first waits for them; nothing once somebody has.
    patience: Option<Duration>,
    /// How long a commit has taken lately.
    commit_time: Duration,
    /// How many wait for the batch that was written last; more than [`FEW`] if there are callbacks among them.
    company: usize,
    /// A checkpoint wants to be the next to lead.
    freezing: bool,
    freezer: Option<Waiter>,
    waiters: Vec<Waiter>,
    callbacks: Vec<Callback>,
    /// Where those in the list sleep.
    sleepers: Arc<EventCount>,
    /// How many have entered the list.
    entered: u32,
    pub stopped: Option<String>,
    stopped_at: Option<Stopwatch>,
    /// The operating system's number for the error that stopped it, if that was one of a device.
    stopped_errno: Option<i32>,
}

struct Waiter {
    upto: Lsn,
    /// It wakes by itself when patience ends.
    timed: bool,
    groups: Groups,
    sleepers: Arc<EventCount>,
    state: Arc<AtomicU8>,
}

/// The groups that a waiter sleeps in. All for whom a batch is are woken together; who is called to lead, alone. As there
/// are few groups, somebody else may wake for nothing, and sleeps again.
#[derive(Clone, Copy)]
struct Groups {
    /// Of the batch that is to cover it.
    batch: u32,
    /// Its own.
    own: u32,
}

/// Batches that groups tell apart: two in flight, one that gathers, and some.
const BATCH_GROUPS: u32 = 8;
/// Threads that groups tell apart.
const OWN_GROUPS: u32 = u32::BITS - BATCH_GROUPS;

impl Groups {
    fn new(batch: u32, own: u32) -> Groups {
        Groups { batch: 1 << (batch % BATCH_GROUPS), own: 1 << (BATCH_GROUPS + own % OWN_GROUPS) }
    }
    fn all(self) -> u32 {
        self.batch | self.own
    }
}

struct Callback {
    upto: Lsn,
    begun: Stopwatch,
    done: Done,
}

/// The side of a [`Waiter`] that waits.
pub(super) struct Wait {
    groups: Groups,
    sleepers: Arc<EventCount>,
    state: Arc<AtomicU8>,
    /// After which it wakes by itself.
    patience: Option<Duration>,
}

const WAITING: u8 = 0;
/// It has gone to sleep, and needs a wake-up.
const ASLEEP: u8 = 1;
const CALLED: u8 = 2;
const DURABLE: u8 = 3;

impl Wait {
    /// Returns whether what was waited for is durable; if not, look again.
    pub fn wait(mut self, commits: &Commits) -> bool {
        let begun = Stopwatch::start();
        loop {
            // Whoever changes the state after this one has been looked at finds a sleeper, and moves the count.
            let seen = self.sleepers.seen();
            match self.state.compare_exchange(WAITING, ASLEEP, AcqRel, Acquire) {
                Ok(_) | Err(ASLEEP) => {}
                Err(state) => return state == DURABLE,
            }
            let Some(patience) = self.patience else {
                self.sleepers.wait(seen, self.groups.all(), None);
                continue;
            };
            let left = patience.saturating_sub(begun.elapsed());
            if !left.is_zero() {
                self.sleepers.wait(seen, self.groups.all(), Some(left));
            } else if commits.inner.lock().patience_ends(&self.state) {
                return false;
            } else {
                self.patience = None;
            }
        }
    }
}

/// People to be woken, when the lock is not held any more.
#[derive(Default)]
pub(super) struct Wakes {
    called: Option<Waiter>,
    waiters: Vec<(Waiter, u8)>,
    callbacks: Vec<Callback>,
}

impl Wakes {
    /// Who is called in `other` is woken first.
    pub fn next_leader(&mut self, mut other: Wakes) {
        self.called = other.called.take();
    }

    /// Wakes them: first who leads next. Callbacks are told that all is well, or why the pool has stopped.
    pub fn wake(mut self, stopped: Option<&str>, each_callback: impl FnMut(&Stopwatch)) {
        self.tell(stopped, each_callback);
    }

    fn tell(&mut self, stopped: Option<&str>, mut each_callback: impl FnMut(&Stopwatch)) {
        let (mut asleep, mut groups) = (None, 0);
        if let Some(waiter) = self.called.take()
            && waiter.tell(CALLED)
        {
            groups |= waiter.groups.own;
            asleep = Some(waiter.sleepers);
        }
        for (waiter, state) in self.waiters.drain(..) {
            if waiter.tell(state) {
                groups |= waiter.groups.batch;
                asleep.get_or_insert(waiter.sleepers);
            }
        }
        if let Some(asleep) = asleep {
            asleep.wake(groups);
        }
        // One by one: if a callback panics, the others are still here.
        self.callbacks.reverse();
        while let Some(callback) = self.callbacks.pop() {
            each_callback(&callback.begun);
            (callback.done)(match stopped {
                None => Ok(()),
                Some(why) => Err(EngineError::Stopped(why.to_owned())),
            });
        }
    }
}

impl Drop for Wakes {
    /// There is somebody only where whoever was about to wake them has panicked.
    fn drop(&mut self) {
        self.tell(Some("a commit has panicked"), |_| {});
    }
}

impl Waiter {
    /// Whether it must be woken to hear of it.
    fn tell(&self, state: u8) -> bool {
        self.state.swap(state, AcqRel) == ASLEEP
    }
}

impl Inner {
    fn room(&self) -> bool {
        !self.writing && self.written.len() < IN_FLIGHT_MAX && self.stopped.is_none()
    }

    /// Whether a thread that comes may begin a batch.
    pub fn may_lead(&self) -> bool {
        self.may_lead_at_once() && self.may_lead_among(self.uncovered() + 1)
    }

    /// Whether one of `uncovered` threads may, whom no batch covers, if anybody may at once.
    fn may_lead_among(&self, uncovered: usize) -> bool {
        match self.written.is_empty() {
            true => !self.patient(uncovered),
            false => !self.callbacks.is_empty() || self.company + uncovered > FEW,
        }
    }

    /// Whether whoever asks may begin a batch if nothing is to be gained by waiting for others.
    pub fn may_lead_at_once(&self) -> bool {
        self.room() && !self.freezing && (self.written.is_empty() || self.expected == 0)
    }

    /// Threads in the list whom no batch covers; more than [`FEW`] are not told apart.
    fn uncovered(&self) -> usize {
        self.waiters.iter().filter(|waiter| waiter.upto > self.sealed).take(FEW + 1).count()
    }

    /// Whether, with nothing in flight, one of `uncovered` threads should wait for those who are expected.
    fn patient(&self, uncovered: usize) -> bool {
        self.expected > 0
            && self.expected + uncovered <= FEW
            && self.callbacks.is_empty()
            && self.patience.is_some()
    }

    /// The waiter with this state has slept until the end of patience. Whether it is to look again; else it goes on waiting,
    /// since somebody writes or has written meanwhile.
    fn patience_ends(&mut self, state: &Arc<AtomicU8>) -> bool {
        let Some(at) = self.waiters.iter().position(|waiter| Arc::ptr_eq(&waiter.state, state)) else {
            return false; // it is being woken
        };
        let look = self.stopped.is_some() || self.room() && self.written.is_empty();
        match look {
            true => {
                self.patience = None;
                self.waiters.remove(at);
            }
            false => self.waiters[at].timed = false,
        }
        look
    }

    /// Whether a checkpoint may. It keeps others from leading until it does.
    pub fn may_freeze(&mut self) -> bool {
        self.freezing = !self.room();
        !self.freezing
    }

    /// Somebody comes who wants something to be durable.
    pub fn arrive(&mut self) {
        self.expected = self.expected.saturating_sub(1);
    }

    fn waiter(&mut self, upto: Lsn, batch: u32) -> (Waiter, Wait) {
        self.entered = self.entered.wrapping_add(1);
        let groups = Groups::new(batch, self.entered);
        let (sleepers, state) = (self.sleepers.clone(), Arc::new(AtomicU8::new(WAITING)));
        let wait = Wait { groups, sleepers: sleepers.clone(), state: state.clone(), patience: None };
        (Waiter { upto, timed: false, groups, sleepers, state }, wait)
    }

    /// Enters the list; `batch` is what [`Commits::batch`] says. The caller lets go of the lock, wakes whom [`Inner::call`]
    /// says and waits.
    pub fn enter(&mut self, upto: Lsn, batch: u32) -> Wait {
        let (mut waiter, mut wait) = self.waiter(upto, batch);
        if upto > self.sealed && self.may_lead_at_once() && self.written.is_empty() {
            // Only patience keeps it from leading.
            waiter.timed = true;
            wait.patience = self.patience;
        }
        self.waiters.push(waiter);
        wait
    }

    /// As [`Inner::enter`], for a checkpoint that may not lead yet.
    pub fn enter_freezer(&mut self) -> Wait {
        let (waiter, wait) = self.waiter(Lsn(u64::MAX), 0);
        self.freezer = Some(waiter);
        wait
    }

    /// A callback enters the list.
    pub fn enter_callback(&mut self, upto: Lsn, done: Done) {
        self.callbacks.push(Callback { upto, begun: Stopwatch::start(), done });
    }

    /// Takes the first who should lead now out of the list. A callback has no thread: see [`Inner::deserted`].
    pub fn call(&mut self) -> Wakes {
        let called = if self.freezing {
            if self.room() { self.freezer.take() } else { None }
        } else if self.may_lead_at_once() && (self.may_lead_among(self.uncovered()) || self.unattended()) {
            let first = self.waiters.iter().position(|waiter| waiter.upto > self.sealed);
            first.map(|first| self.waiters.remove(first))
        } else {
            None
        };
        Wakes { called, waiters: Vec::new(), callbacks: Vec::new() }
    }

    /// Whether nothing but patience keeps anybody from leading who may at once, and nobody would wake when it ends.
    fn unattended(&self) -> bool {
        self.written.is_empty() && !self.waiters.iter().any(|waiter| waiter.timed)
    }

    /// A batch has been written that covers everything up to `sealed`.
    pub fn seal(&mut self, batch: Written) {
        self.sealed = batch.last;
        let covered = self.waiters.iter().filter(|waiter| waiter.upto <= self.sealed).take(FEW + 1).count();
        self.company = usize::from(batch.leader_waits) + covered;
        if self.callbacks.iter().any(|callback| callback.upto <= self.sealed) {
            self.company = self.company.max(FEW + 1);
        }
        self.written.push_back(batch);
    }

    /// A commit took so long.
    pub fn took(&mut self, commit_time: Duration) {
        self.commit_time = (self.commit_time * 3 + commit_time) / 4;
    }

    /// Whether there are callbacks that no batch covers and nobody else to lead for them.
    pub fn deserted(&self) -> bool {
        self.may_lead_at_once()
            && self.callbacks.iter().any(|callback| callback.upto > self.sealed)
            && !self.waiters.iter().any(|waiter| waiter.upto > self.sealed)
    }

    /// Takes those out of the list whose transactions are durable, and says that they are expected again, with so many
    /// `leaders`.
    pub fn take_durable(&mut self, wakes: &mut Wakes, leaders: usize) {
        let durable = self.durable;
        let waiters = self.waiters.extract_if(.., |waiter| waiter.upto <= durable);
        wakes.waiters.extend(waiters.map(|waiter| (waiter, DURABLE)));
        wakes.callbacks.extend(self.callbacks.extract_if(.., |callback| callback.upto <= durable));
        self.expected = wakes.waiters.len() + wakes.callbacks.len() + leaders;
        self.patience = Some((self.commit_time / 2).min(PATIENCE_MAX));
    }

    /// Nothing is written any more; everybody is told.
    fn stop(&mut self, why: String) -> Wakes {
        if self.stopped.is_none() {
            tracing::error!("the pool stops accepting writes: {why}");
            self.stopped = Some(why);
            self.stopped_at = Some(Stopwatch::start());
        }
        let waiters = std::mem::take(&mut self.waiters).into_iter().chain(self.freezer.take());
        Wakes {
            called: None,
            waiters: waiters.map(|waiter| (waiter, CALLED)).collect(),
            callbacks: std::mem::take(&mut self.callbacks),
        }
    }
}

impl Commits {
    /// As recovery left it.
    pub fn new(durable: Lsn, flushed_sequence: u64) -> Commits {
        let inner = Inner {
            durable,
            sealed: durable,
            flushed_sequence,
            flushed_upto: flushed_sequence,
            named_sequence: flushed_sequence,
            ..Inner::default()
        };
        let cut = AtomicU64::new(durable.0);
        Commits { inner: Mutex::new(inner), stopped: AtomicBool::new(false), cuts: AtomicU32::new(0), cut }
    }
    /// A batch that is about to be written ends with `last`.
    pub(super) fn cut(&self, last: Lsn) {
        self.cuts.fetch_add(1, Relaxed);
        self.cut.store(last.0, Release);
    }
    /// Which batch is likely to cover `upto`, the one that gathers or the last that does not any more: who waits is woken with
    /// all others for whom that one is.
    pub(super) fn batch(&self, upto: Lsn) -> u32 {
        let gathers = upto.0 > self.cut.load(Acquire);
        self.cuts.load(Relaxed).wrapping_add(u32::from(gathers))
    }
    /// Replay has ended here.
    pub fn recovered(&self, end: Lsn) {
        let mut inner = self.inner.lock();
        inner.durable = end;
        inner.sealed = end;
    }
    /// The position up to which the log is durable.
    pub fn durable(&self) -> Lsn {
        self.inner.lock().durable
    }
    /// Why the pool has stopped accepting writes, if it has.
    pub fn stopped(&self) -> Option<String> {
        if !self.stopped.load(Acquire) {
            return None;
        }
        self.inner.lock().stopped.clone()
    }
    /// The same, and for how long.
    pub fn stopped_for(&self) -> Option<(String, Duration)> {
        let why = self.stopped()?;
        let inner = self.inner.lock();
        Some((why, inner.stopped_at.as_ref().map_or(Duration::ZERO, Stopwatch::elapsed)))
    }
    /// The number of the error of a device that it was, if it was one.
    pub fn stopped_errno(&self) -> Option<i32> {
        self.inner.lock().stopped_errno
    }
    /// Stops the pool because of an error.
    pub fn stop_by(&self, error: &EngineError) {
        if let EngineError::Device(device) = error {
            let mut inner = self.inner.lock();
            if inner.stopped.is_none() {
                inner.stopped_errno = device.errno();
            }
        }
        self.stop(error.to_string());
    }
    /// Stops the pool: nothing is written any more, and who waits is told.
    pub fn stop(&self, why: String) {
        let mut inner = self.inner.lock();
        let wakes = inner.stop(why);
        let why = inner.stopped.clone().unwrap_or_default();
        self.stopped.store(true, Release);
        drop(inner);
        wakes.wake(Some(&why), |_| {});
    }
}

/// Stops the pool should its holder panic: without a batch that would have to be acknowledged, and is not, others would wait
/// for ever; and what a change or a write-back has left undone must not be taken for done. The holder lets go of it when all
/// is done ([`PanicStops::done`]), with or without an error.
pub struct PanicStops<'a> {
    commits: Option<&'a Commits>,
    what: &'static str,
}

impl<'a> PanicStops<'a> {
    /// From now on; `what` is being done.
    pub(crate) fn new(commits: &'a Commits, what: &'static str) -> PanicStops<'a> {
        PanicStops { commits: Some(commits), what }
    }
    /// It has not panicked.
    pub fn done(mut self) {
        self.commits = None;
    }
}

impl Drop for PanicStops<'_> {
    fn drop(&mut self) {
        if let Some(commits) = self.commits {
            commits.stop(format!("{} has panicked", self.what));
        }
    }
}
