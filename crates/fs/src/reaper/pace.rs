//! How the reaper keeps out of the way: spells of work, and rests between them while others are at work.

use std::cell::Cell;
use std::time::Duration;

use varve_engine::Lsn;

use super::ReapQueue;
use crate::core::Core;

/// Changes of entries between two rests of the reaper while others are at work; the step that reaches them is done to its end.
pub const SPELL: usize = 64;
/// How long a rest takes at least. Of a thousand operations of 20 microseconds some five meet a step then, and wait for its end.
const PAUSE: Duration = Duration::from_millis(8);
/// Transactions of others between two spells of work: of operations that take longer than that, as few meet one. As many
/// batches of the log, where others wait for these: one has transactions of several operations, and each of its waiters would
/// meet what it meets.
const OTHERS_BETWEEN: u64 = 160;
/// The same after a large step. Whoever meets one waits two to five times as long as a sync takes on a fast disk, so p99 hangs
/// on how few do and not on how long they wait: a step of twice as much is better than two.
const OTHERS_AFTER_LARGE: u64 = 256;
/// Batches in a rest from which on somebody waits for them; fewer are the background's.
const BATCHES_WAITED_FOR: u64 = 2;
/// Pauses that are waited for those, at most: whatever others do, there are steps.
const PAUSES_MAX: u32 = 10;
/// The same after a large step.
const PAUSES_AFTER_LARGE: u32 = 16;
/// Rests, of 8 ms to 80, before the background looks after other things; one after a large step is two.
pub const RESTS_AT_A_TIME: u32 = 12;
/// With more tasks waiting than this a rest is a single pause: what is deleted must go as fast as it comes.
const TASKS_AT_EASE: u64 = 4;
/// And with more than this there is none but after steps of a whole spell, as all of families of data are: others meet these.
const TASKS_IN_HASTE: u64 = 16;

/// A step that has been applied.
pub struct Step {
    /// Its place in the log.
    position: Lsn,
    /// Changes of entries.
    changes: usize,
    /// It was done at ease, and is larger than others.
    large: bool,
}

impl Step {
    /// A step of so many changes.
    pub fn of(position: Lsn, changes: usize) -> Step {
        Step { position, changes, large: false }
    }
    /// A step of a family of data: a spell by itself, because it looks at more entries than it changes.
    pub(super) fn of_family(position: Lsn, large: bool) -> Step {
        Step { position, changes: SPELL, large }
    }
}

/// What the reaper has done since its last rest, and what it may still do.
pub struct Pace {
    /// Steps that are left.
    left: Cell<u32>,
    /// The log after its last step.
    position: Cell<Lsn>,
    /// Whether others have changed something.
    pub others: Cell<bool>,
    /// Changes of entries.
    changes: Cell<usize>,
    /// How often it has rested.
    rests: Cell<u32>,
}

impl Pace {
    /// It has done so many steps, or rested so often, that others have their turn.
    pub fn is_over(&self) -> bool {
        self.left.get() == 0 || self.rests.get() >= RESTS_AT_A_TIME
    }
    /// Steps that are left.
    pub(super) fn left(&self) -> u32 {
        self.left.get()
    }
    /// A step has been done, or looked for in vain.
    pub(super) fn step(&self) {
        self.left.set(self.left.get().saturating_sub(1));
    }
}

impl ReapQueue {
    /// Whether so little waits that what is deleted need not go any faster: then there are large steps and long rests.
    pub fn at_ease(&self) -> bool {
        self.waiting() <= TASKS_AT_EASE
    }

    /// A rest, unless somebody waits: until others have done something a number of times, or have nothing to do. `done` says
    /// how many transactions and batches there have been since. Says whether it was one.
    fn rest(&self, large: bool, done: impl Fn() -> (u64, u64)) -> bool {
        let (others, pauses) =
            if large { (OTHERS_AFTER_LARGE, PAUSES_AFTER_LARGE) } else { (OTHERS_BETWEEN, PAUSES_MAX) };
        let pauses = if self.at_ease() { pauses } else { 1 };
        let (mut hurried, mut before) = (self.hurried.lock(), 0);
        for _ in 0..pauses {
            if *hurried > 0 || !self.hurry.wait_for(&mut hurried, PAUSE).timed_out() {
                return false;
            }
            let (transactions, batches) = done();
            let waited_for = (BATCHES_WAITED_FOR..others).contains(&batches);
            if transactions == before || transactions >= others && !waited_for {
                break;
            }
            before = transactions;
        }
        true
    }
}

impl Core {
    /// The reaper begins to work, for so many steps at most.
    pub fn pace(&self, steps: u32) -> Pace {
        Pace {
            left: Cell::new(steps),
            position: Cell::new(self.store.position()),
            others: Cell::new(false),
            changes: Cell::new(0),
            rests: Cell::new(0),
        }
    }

    /// The reaper has done this step, and holds no lock: a rest, where it is due.
    pub fn rest_after(&self, step: Step, pace: &Pace) {
        let Step { position, changes, large } = step;
        pace.step();
        let before = pace.position.replace(position);
        pace.others.set(pace.others.get() || position.0 > before.0 + 1);
        pace.changes.set(pace.changes.get() + changes);
        if changes < SPELL && self.reap.waiting() > TASKS_IN_HASTE {
            return;
        }
        if pace.others.get() && pace.changes.get() >= SPELL {
            let batches = self.store.batches_written();
            let rested = self.reap.rest(large, || {
                (self.store.position().0 - position.0, self.store.batches_written() - batches)
            });
            pace.rests.set(pace.rests.get() + if rested { 1 + u32::from(large) } else { 0 });
            pace.others.set(false);
            pace.changes.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_engine::InodeId;

    use super::super::Task;
    use super::*;

    // Goal: the reaper rests until others have done much, or nothing more, and no longer than that takes or than its rest may
    // be; not at all when somebody waits for it. Method: how often it looks what others have done.
    #[test]
    fn the_reaper_rests() {
        let queue = ReapQueue::default();
        let looks_after = |large: bool, transactions: u64, batches: u64| {
            let looked = Cell::new(0);
            queue.rest(large, || {
                looked.set(looked.get() + 1);
                (looked.get() * transactions, looked.get() * batches)
            });
            looked.get()
        };
        let looks = |transactions, batches| looks_after(false, transactions, batches);
        assert_eq!(looks(0, 0), 1);
        assert_eq!(looks(OTHERS_BETWEEN, 0), 1);
        assert_eq!(looks(OTHERS_BETWEEN / 2, 0), 2);
        assert_eq!(looks(OTHERS_BETWEEN, OTHERS_BETWEEN / 4), 4);
        assert_eq!(looks(1, 0), u64::from(PAUSES_MAX));
        assert_eq!(looks(OTHERS_BETWEEN, 2), u64::from(PAUSES_MAX));
        assert_eq!(looks_after(true, 0, 0), 1);
        assert_eq!(looks_after(true, OTHERS_AFTER_LARGE, OTHERS_AFTER_LARGE / 4), 4);
        assert_eq!(looks_after(true, 1, 0), u64::from(PAUSES_AFTER_LARGE));
        for number in 0..=TASKS_AT_EASE {
            queue.push(Task::Orphan(InodeId(number)));
        }
        assert_eq!((looks(1, 0), looks_after(true, 1, 0), queue.at_ease()), (1, 1, false));
        queue.tasks.lock().done(Task::Orphan(InodeId(0)));
        assert_eq!(looks(1, 0), u64::from(PAUSES_MAX));
        let hurry = queue.hurry();
        assert_eq!(looks(1, 1), 0);
        drop(hurry);
        assert_eq!(looks(0, 0), 1);
    }
}
