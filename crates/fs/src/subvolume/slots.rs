//! The subvolumes there are, by slot, and their families' gates.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use varve_engine::{FamilyId, Numbered};
use varve_format::record::subvolume::SUBVOLUME_SLOTS;

use super::nested::Nested;
use super::{Gate, Slot, Subvolume};
use crate::hash::NameHasher;
use crate::{FsError, Result};

/// Records of subvolumes that are changed at the same time are told apart by this many remainders of their slots.
const CHANGING: usize = 16;

/// All subvolumes. Bound: what the pool has, less than 200 bytes each.
pub struct Subvolumes {
    /// The one without a place.
    pub first: Arc<Subvolume>,
    /// How names are hashed in all of them.
    pub hasher: NameHasher,
    others: RwLock<Numbered<Slot, Arc<Subvolume>>>,
    gates: Mutex<Numbered<FamilyId, Gate>>,
    changing: [Mutex<()>; CHANGING],
    /// Where they are.
    pub nested: Nested,
    /// Held by who makes, moves or deletes a subvolume: before all gates.
    pub topology: Mutex<()>,
    free: Mutex<FreeSlots>,
}

/// So many others are given back before a slot is given out again.
const RESTING: usize = 1 << 16;
/// Slots that were given back and are still known to somebody are passed over, so many at a time.
const PASSED_OVER_MAX: usize = 1 << 16;

/// Slots that may be given out: those in which nothing was when the pool was opened, each once. Those behind all that were in use
/// come first. When there are none left, those that were given back meanwhile, the first of them first.
#[derive(Debug)]
struct FreeSlots {
    /// Those in use when the pool was opened, a bit for each up to the last of them.
    used: Vec<u64>,
    /// Where those in use when it was opened end.
    used_end: u32,
    /// The next behind them.
    high: u32,
    /// The next in front of them, once there are none behind.
    low: u32,
    /// Slots that there are, the first subvolume's too.
    all: u32,
    /// Those that were given back last, in that order.
    returned: VecDeque<u32>,
    /// How many of them there are, at most: those before have rested.
    resting: usize,
    rested: VecDeque<u32>,
}

impl FreeSlots {
    fn new(all: u32, resting: usize) -> FreeSlots {
        let (returned, rested) = (VecDeque::new(), VecDeque::new());
        FreeSlots { used: Vec::new(), used_end: 1, high: 1, low: 1, all, returned, resting, rested }
    }

    fn in_use(&mut self, slot: u32) {
        // What no record may say is none of those that are given out.
        if slot < self.all {
            let word = slot as usize / 64;
            if word >= self.used.len() {
                self.used.resize(word + 1, 0);
            }
            self.used[word] |= 1 << (slot % 64);
        }
        self.used_end = self.used_end.max(slot.saturating_add(1));
        self.high = self.used_end;
    }

    fn is_used(&self, slot: u32) -> bool {
        self.used.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// `is_known`: somebody may still come with numbers of what was in a slot that was given back.
    fn next(&mut self, is_known: impl Fn(u32) -> bool) -> Option<u32> {
        if self.high < self.all {
            return Some(self.high);
        }
        let unused = (self.low..self.used_end.min(self.all)).find(|slot| !self.is_used(*slot));
        if unused.is_some() {
            return unused;
        }
        self.low = self.low.max(self.used_end.min(self.all));
        let more = self.returned.len().saturating_sub(self.resting);
        self.rested.extend(self.returned.drain(..more));
        for _ in 0..self.rested.len().min(PASSED_OVER_MAX) {
            let first = *self.rested.front()?;
            if !is_known(first) {
                return Some(first);
            }
            self.rested.rotate_left(1);
        }
        None
    }

    fn taken(&mut self, slot: u32) {
        if self.rested.front() == Some(&slot) {
            self.rested.pop_front();
        } else if slot >= self.used_end {
            self.high = self.high.max(slot + 1);
        } else if !self.is_used(slot) {
            self.low = self.low.max(slot + 1);
        }
    }
}

/// A subvolume that was looked up.
pub enum Found<'a> {
    First(&'a Arc<Subvolume>),
    Other(Arc<Subvolume>),
}

impl Found<'_> {
    /// To be kept.
    pub(crate) fn shared(&self) -> Arc<Subvolume> {
        match self {
            Found::First(subvolume) => (*subvolume).clone(),
            Found::Other(subvolume) => subvolume.clone(),
        }
    }
}

impl Deref for Found<'_> {
    type Target = Subvolume;

    fn deref(&self) -> &Subvolume {
        match self {
            Found::First(subvolume) => subvolume,
            Found::Other(subvolume) => subvolume,
        }
    }
}

impl Subvolumes {
    /// A pool with this first subvolume.
    pub(crate) fn new(first: Subvolume, hasher: NameHasher) -> Subvolumes {
        let gates = Numbered::from_iter([(first.family, first.gate.clone())]);
        Subvolumes {
            first: Arc::new(first),
            hasher,
            changing: Default::default(),
            others: RwLock::default(),
            gates: Mutex::new(gates),
            nested: Nested::default(),
            topology: Mutex::new(()),
            free: Mutex::new(FreeSlots::new(SUBVOLUME_SLOTS, RESTING)),
        }
    }

    /// The subvolume in `slot`.
    pub fn get(&self, slot: Slot) -> Result<Found<'_>> {
        if slot == Slot::FIRST {
            return Ok(Found::First(&self.first));
        }
        self.others.read().get(&slot).cloned().map(Found::Other).ok_or(FsError::Stale)
    }

    /// The number of the subvolume in `slot`, unless it is the first.
    pub(crate) fn id_of(&self, slot: Slot) -> Option<u64> {
        if slot == Slot::FIRST {
            return None;
        }
        self.others.read().get(&slot).map(|subvolume| subvolume.id)
    }

    /// Refuses a subvolume that is gone or has let go of what it held. The first never does.
    pub(crate) fn require_held(&self, slot: Slot) -> Result<()> {
        let held = slot == Slot::FIRST || self.others.read().get(&slot).is_some_and(|s| !s.has_let_go());
        if held { Ok(()) } else { Err(FsError::Stale) }
    }

    /// All of them, in no order.
    pub fn all(&self) -> Vec<Arc<Subvolume>> {
        let others = self.others.read();
        std::iter::once(self.first.clone()).chain(others.values().cloned()).collect()
    }

    /// The gate of a family, made if there is none.
    pub(crate) fn gate(&self, family: FamilyId) -> Gate {
        self.gates.lock().entry(family).or_default().clone()
    }

    /// The gate of a family, if there is one.
    pub(crate) fn gate_of(&self, family: FamilyId) -> Option<Gate> {
        self.gates.lock().get(&family).cloned()
    }

    /// Forgets the gate of a family of which perhaps nobody is left. Who has it, or is about to, has a part in it.
    pub(crate) fn let_go_of_gate(&self, family: FamilyId) {
        let mut gates = self.gates.lock();
        if gates.get(&family).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&family);
        }
    }

    /// How many families have one.
    #[cfg(feature = "internals")]
    pub fn gates_count(&self) -> usize {
        self.gates.lock().len()
    }

    /// Adds a subvolume, which takes its slot.
    pub(crate) fn add(&self, subvolume: Subvolume) {
        self.free.lock().taken(subvolume.slot.0);
        self.others.write().insert(subvolume.slot, Arc::new(subvolume));
    }

    /// To be held from before a subvolume's record is read until it has been put. Not the first one's: that has its own.
    pub(crate) fn changing(&self, slot: Slot) -> MutexGuard<'_, ()> {
        self.changing[slot.0 as usize % CHANGING].lock()
    }

    /// The same for the records of two.
    pub(crate) fn changing_both(&self, slots: [Slot; 2]) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let [one, other] = slots.map(|slot| slot.0 as usize % CHANGING);
        let first = self.changing[one.min(other)].lock();
        (first, (one != other).then(|| self.changing[one.max(other)].lock()))
    }

    /// Takes one out: from now on its numbers lead nowhere.
    pub(crate) fn remove(&self, slot: Slot) {
        self.others.write().remove(&slot);
    }

    /// A slot for a new subvolume. As long as there are any, one that no subvolume has had since the pool was opened; else one that was given back
    /// long ago and that `is_known` to nobody: inodes of the deleted subvolume have the same numbers below the slot. For who holds the topology lock and
    /// makes a subvolume: it is taken when that is added, and of one that is refused nothing is left but what the sets of frozen files may know of it.
    pub fn next_slot(&self, is_known: impl Fn(Slot) -> bool) -> Result<Slot> {
        // Of a forged pool one may have been given back twice.
        let is_taken = |slot: &Slot| self.others.read().contains_key(slot);
        let is_known = |slot: u32| is_taken(&Slot(slot)) || is_known(Slot(slot));
        self.free.lock().next(is_known).map(Slot).ok_or(FsError::SlotsUsedUp)
    }

    /// As if there were only so many slots, the first subvolume's among them, and so many of those that were given back rested. Before a slot is
    /// given out that is none of them.
    pub(crate) fn limit(&self, all: u32, resting: usize) {
        let mut free = self.free.lock();
        (free.all, free.resting) = (all, resting);
    }

    /// Of the subvolume that was in a slot nothing is left in the pool.
    pub(crate) fn give_back(&self, slot: Slot) {
        // A forged record may say any.
        if slot.0 < SUBVOLUME_SLOTS && slot != Slot::FIRST && !self.others.read().contains_key(&slot) {
            self.free.lock().returned.push_back(slot.0);
        }
    }

    /// Keeps a slot from being given out before it is given back: when the pool was opened there was a subvolume in it, or something was left of
    /// one. Before anything is added.
    pub fn keep_slot(&self, slot: Slot) {
        self.free.lock().in_use(slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: of the slots that were free at first each is given out once, and no other. Method: some in use, the last one among them or
    // not; all that there are, some asked for twice.
    #[test]
    fn free_slots_are_given_out_once() {
        for used in [&[][..], &[3], &[1, 2], &[2, 9], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            let mut free = FreeSlots::new(10, 2);
            used.iter().for_each(|slot| free.in_use(*slot));
            let mut given = Vec::new();
            while let Some(slot) = free.next(|_| false) {
                // One that is refused takes none.
                assert_eq!(free.next(|_| false), Some(slot));
                free.taken(slot);
                given.push(slot);
            }
            given.sort_unstable();
            let expected: Vec<u32> = (1..10).filter(|slot| !used.contains(slot)).collect();
            assert_eq!(given, expected, "{used:?}");
        }
    }

    // Goal: a slot that was given back is given out when there are no others, once enough have been given back after it, unless somebody still
    // knows it; then the next one is, and it has its turn later. Method: all slots taken, some given back.
    #[test]
    fn slots_that_are_given_back_rest() {
        let mut free = FreeSlots::new(10, 2);
        free.in_use(4);
        while let Some(slot) = free.next(|_| false) {
            free.taken(slot);
        }
        free.returned.extend([3, 4]);
        assert_eq!(free.next(|_| false), None, "they rest");
        free.returned.extend([5, 6]);
        assert_eq!(free.next(|slot| slot == 3), Some(4), "it was in use when the pool was opened");
        free.taken(4);
        assert_eq!(free.next(|slot| slot == 3), None, "5 and 6 rest");
        free.returned.push_back(4);
        assert_eq!(free.next(|slot| slot == 3), Some(5));
        free.taken(5);
        assert_eq!(free.next(|_| false), Some(3));
        free.taken(3);
        assert_eq!(free.next(|_| false), None);
    }
}
