//! The subvolumes there are, by slot, and their families' gates.

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
pub(crate) struct Subvolumes {
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
    next: Mutex<u32>,
}

/// A subvolume that was looked up.
pub(crate) enum Found<'a> {
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
            next: Mutex::new(1),
        }
    }

    /// The subvolume in `slot`.
    pub(crate) fn get(&self, slot: Slot) -> Result<Found<'_>> {
        if slot == Slot::FIRST {
            return Ok(Found::First(&self.first));
        }
        self.others.read().get(&slot).cloned().map(Found::Other).ok_or(FsError::Stale)
    }

    /// Refuses a subvolume that is gone or has let go of what it held. The first never does.
    pub(crate) fn require_held(&self, slot: Slot) -> Result<()> {
        let held = slot == Slot::FIRST || self.others.read().get(&slot).is_some_and(|s| !s.has_let_go());
        if held { Ok(()) } else { Err(FsError::Stale) }
    }

    /// All of them, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Subvolume>> {
        let others = self.others.read();
        std::iter::once(self.first.clone()).chain(others.values().cloned()).collect()
    }

    /// The gate of a family, made if there is none.
    pub(crate) fn gate(&self, family: FamilyId) -> Gate {
        self.gates.lock().entry(family).or_default().clone()
    }

    /// Adds a subvolume, which takes its slot.
    pub(crate) fn add(&self, subvolume: Subvolume) {
        self.take_slot(subvolume.slot);
        self.others.write().insert(subvolume.slot, Arc::new(subvolume));
    }

    /// To be held from before a subvolume's record is read until it has been put. Not the first one's: that has its own.
    pub(crate) fn changing(&self, slot: Slot) -> MutexGuard<'_, ()> {
        self.changing[slot.0 as usize % CHANGING].lock()
    }

    /// Takes one out: from now on its numbers lead nowhere.
    pub(crate) fn remove(&self, slot: Slot) {
        self.others.write().remove(&slot);
    }

    /// A slot that no subvolume has had since the pool was opened, nor has now: not even the kernel's memory of a deleted
    /// one then leads to another. For who holds the topology lock and makes a subvolume: it is taken when that is added,
    /// and of one that is refused nothing is left but what the sets of frozen files may know of it.
    pub(crate) fn next_slot(&self) -> Result<Slot> {
        let next = *self.next.lock();
        if next < SUBVOLUME_SLOTS { Ok(Slot(next)) } else { Err(FsError::NumbersUsedUp) }
    }

    /// Keeps a slot from being given out: there is a subvolume in it, or something is left of one.
    pub(crate) fn take_slot(&self, slot: Slot) {
        let mut next = self.next.lock();
        *next = (*next).max(slot.0 + 1);
    }
}
