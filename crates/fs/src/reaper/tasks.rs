//! Which task is next: who let go of data comes before the data, nobody waits for ever, and what finds no space waits behind
//! what may free some.
//!
//! Each task stays in its queue until it is done. Knows nothing of how tasks are done.

use std::collections::{HashSet, VecDeque};

use varve_engine::{FamilyId, InodeId};

use crate::subvolume::Slot;

/// Other tasks that are done before a family of data has its turn.
const TASKS_IN_A_ROW: u32 = 64;

/// Something to reap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Task {
    /// An orphan to delete.
    Orphan(InodeId),
    /// Versions of a family of data.
    Family(FamilyId),
    /// Versions of a namespace.
    Names(FamilyId),
    /// What is left of a deleted subvolume.
    Subvolume {
        /// Its number.
        id: u64,
        /// Its slot.
        slot: Slot,
        /// The family of its namespace.
        family: FamilyId,
    },
}

/// What is to be done. Families of data come last: who lets go of their versions comes before, so that all that go then go
/// together. But they have a turn after [`TASKS_IN_A_ROW`] others, and at once when space is short, for they free it.
#[derive(Default)]
pub struct Tasks {
    before: VecDeque<Task>,
    families: VecDeque<FamilyId>,
    /// The families that wait, each once; the first, once it has been begun, may wait a second time.
    waiting: HashSet<FamilyId>,
    /// The first family has been begun.
    begun: bool,
    /// Other tasks since a family had its turn.
    in_a_row: u32,
    /// Something else has found no space: a family first, to its end.
    short: bool,
    /// Families, and others, that have found no space since anything was done: each has gone to the end of its queue.
    refused: (usize, usize),
}

impl Tasks {
    pub(super) fn push(&mut self, task: Task) {
        if let Task::Family(family) = task {
            if self.waiting.insert(family) {
                self.families.push_back(family);
            }
            return;
        }
        // The first is perhaps being done, and has passed what this is about.
        if self.before.len() < 2 || self.before.back() != Some(&task) {
            self.before.push_back(task);
        }
    }
    fn families_have_their_turn(&self) -> bool {
        self.before.is_empty() || self.short || self.in_a_row >= TASKS_IN_A_ROW
    }
    /// What to do next; it stays where it is until it is done.
    pub fn begin(&mut self) -> Option<Task> {
        match self.families.front() {
            Some(family) if self.families_have_their_turn() => {
                if !self.begun {
                    self.waiting.remove(family);
                }
                self.begun = true;
                self.in_a_row = 0;
                Some(Task::Family(*family))
            }
            waits => {
                self.in_a_row = if waits.is_some() { self.in_a_row + 1 } else { 0 };
                self.before.front().copied()
            }
        }
    }
    /// The task that was begun last has found no space: it waits behind the others, some of which may free it. Whether there
    /// is one that has not been tried since anything was done. If not, the next round begins with all of them.
    pub fn refuse(&mut self, task: Task) -> bool {
        if let Task::Family(family) = task {
            self.families.pop_front();
            self.begun = false;
            if self.waiting.insert(family) {
                self.families.push_back(family);
            }
            self.refused.0 += 1;
        } else {
            self.before.rotate_left(1);
            self.refused.1 += 1;
        }
        // Families first: freeing is all they do.
        self.short = self.refused.0 < self.families.len();
        let others = self.short || self.refused.1 < self.before.len();
        if !others {
            self.refused = (0, 0);
        }
        others
    }
    /// Something has been done: who found no space may find some now.
    pub(super) fn progress(&mut self) {
        self.refused = (0, 0);
    }
    /// The task that was begun last is done.
    pub fn done(&mut self, task: Task) {
        self.progress();
        if let Task::Family(_) = task {
            self.families.pop_front();
            self.begun = false;
            // The other is tried again.
            self.short = false;
        } else {
            self.before.pop_front();
        }
    }
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.before.len() + self.families.len()
    }
    /// Whether a family that has had its turn goes on.
    pub(super) fn family_goes_on(&self) -> bool {
        self.before.is_empty() || self.short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a family waits once, and once more when something comes up while it is being reaped, however often it is named.
    // Method: two families named in turn, before one is begun and while it is.
    #[test]
    fn a_family_waits_once() {
        let mut tasks = Tasks::default();
        let name = |tasks: &mut Tasks| {
            for _ in 0..1000 {
                tasks.push(Task::Family(FamilyId(1)));
                tasks.push(Task::Family(FamilyId(2)));
            }
        };
        name(&mut tasks);
        assert_eq!(tasks.families, [FamilyId(1), FamilyId(2)]);
        let first = tasks.begin().unwrap();
        name(&mut tasks);
        // It goes on in its next turn, and is named meanwhile.
        assert_eq!(tasks.begin(), Some(first));
        name(&mut tasks);
        assert_eq!(tasks.families, [FamilyId(1), FamilyId(2), FamilyId(1)]);
        tasks.done(first);
        name(&mut tasks);
        assert_eq!(tasks.families, [FamilyId(2), FamilyId(1)]);
    }

    // Goal: who comes first comes first, but nobody waits for ever. Method: orphans that never end beside a family.
    #[test]
    fn families_have_their_turn() {
        let mut tasks = Tasks::default();
        tasks.push(Task::Family(FamilyId(1)));
        let mut turns = Vec::new();
        for number in 0..4 * u64::from(TASKS_IN_A_ROW) {
            tasks.push(Task::Orphan(InodeId(number)));
            let task = tasks.begin().unwrap();
            match task {
                Task::Family(_) => turns.push(number),
                _ => tasks.done(task),
            }
        }
        let every = u64::from(TASKS_IN_A_ROW) + 1;
        assert_eq!(turns, [every - 1, 2 * every - 1, 3 * every - 1]);
    }

    // Goal: what finds no space keeps nothing else from being tried, which may free some; and when nothing that there is finds
    // any, it is refused instead of being tried for ever. Method: rounds in which all find none but for those that are named,
    // which are done; what is tried in each until it is refused.
    #[test]
    fn who_finds_no_space_waits_behind_the_others() {
        let (names, family) = (Task::Names(FamilyId(1)), Task::Family(FamilyId(5)));
        let subvolume = Task::Subvolume { id: 2, slot: Slot(2), family: FamilyId(2) };
        let [first, second] = [3, 4].map(|number| Task::Orphan(InodeId(number)));
        let round = |tasks: &mut Tasks, find: &[Task]| {
            let mut tried = Vec::new();
            while let Some(task) = tasks.begin() {
                assert!(tried.len() < 100, "it never ends: {tried:?}");
                tried.push(task);
                if find.contains(&task) {
                    tasks.done(task);
                } else if !tasks.refuse(task) {
                    break;
                }
            }
            tried
        };
        let mut tasks = Tasks::default();
        for task in [names, subvolume, first, second] {
            tasks.push(task);
        }
        assert_eq!(round(&mut tasks, &[second]), [names, subvolume, first, second, names, subvolume, first]);
        // Each once: nothing has changed. The next round is a new beginning.
        assert_eq!(round(&mut tasks, &[]), [names, subvolume, first]);
        tasks.push(family);
        assert_eq!(round(&mut tasks, &[]), [names, family, subvolume, first]);
        // A family is tried first, and then all others once more.
        assert_eq!(round(&mut tasks, &[family, first]), [names, family, subvolume, first, names, subvolume]);
        assert_eq!(round(&mut tasks, &[names, subvolume]), [names, subvolume]);
        assert!(tasks.begin().is_none());
        // Families wait behind each other, too.
        let others = [6, 7].map(|number| Task::Family(FamilyId(number)));
        for task in [family, others[0], others[1], names] {
            tasks.push(task);
        }
        assert_eq!(round(&mut tasks, &[]), [names, family, others[0], others[1]]);
        assert_eq!(round(&mut tasks, &[others[1]])[..5], [names, family, others[0], others[1], names]);
    }
}
