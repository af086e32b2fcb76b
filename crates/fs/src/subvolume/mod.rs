//! Subvolumes in memory: which there are, what each shows, and the gate through which all changes of one go.
//!
//! An inode number is the slot of its subvolume and, below it, the inode's own number ([`LOCAL_INODE_BITS`]). What a
//! subvolume shows is its [`Head`]: the holder of a version of its namespace, and that version's path.
//!
//! The head is behind a **gate**. Whoever changes something in a subvolume holds it shared, as a [`Change`], from before
//! he prepares his transaction until it is applied; whoever changes the head itself (a snapshot, a new child version, a
//! step of the reaper in that family) holds it alone, for one transaction. So a version is written to only by its one
//! holder, and a path and a view that are taken together belong together.
//!
//! Rules: a [`Change`] is taken before inodes are locked and held neither while waiting for a file's turn nor while
//! space is reclaimed. Whoever waits for an inode while holding a gate holds the gate of that inode's subvolume. Whoever
//! holds a gate alone locks no inode. Several gates are taken in ascending order of their slots.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::lock_api::ArcRwLockReadGuard;
use parking_lot::{RawRwLock, RwLock};
use varve_engine::{EngineError, InodeId, Store, VersionKey};
use varve_format::record::subvolume::{LOCAL_INODE_BITS, SubvolumeRecord};

use crate::core::Core;
use crate::hash::NameHasher;
use crate::table::Namespace;
use crate::{FsError, Result};

/// What is above the inodes' own numbers in those that users see.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Slot(pub u32);

/// The bits of an inode's own number.
const LOCAL_MASK: u64 = (1 << LOCAL_INODE_BITS) - 1;

impl Slot {
    /// The first subvolume's.
    pub(crate) const FIRST: Slot = Slot(0);

    /// The slot in an inode number.
    pub(crate) fn of(ino: InodeId) -> Slot {
        Slot((ino.0 >> LOCAL_INODE_BITS) as u32)
    }
    /// The number that users see of the inode `local` in this slot.
    pub(crate) fn full(self, local: InodeId) -> InodeId {
        InodeId(u64::from(self.0) << LOCAL_INODE_BITS | local.0)
    }
}

/// The inode's own number.
pub(crate) fn local(ino: InodeId) -> InodeId {
    InodeId(ino.0 & LOCAL_MASK)
}

/// What a subvolume shows.
pub(crate) struct Head {
    /// Its names, inodes and attributes.
    pub namespace: Namespace,
}

/// One subvolume.
pub(crate) struct Subvolume {
    gate: Arc<RwLock<Head>>,
}

impl Subvolume {
    /// The subvolume with this record.
    pub(crate) fn new(store: &Arc<Store>, record: &SubvolumeRecord, hasher: NameHasher) -> Subvolume {
        let namespace = Namespace {
            store: store.clone(),
            slot: Slot(record.slot),
            family: record.family,
            key: VersionKey(record.version.0),
            hasher,
        };
        Subvolume { gate: Arc::new(RwLock::new(Head { namespace })) }
    }
}

/// What a subvolume shows, kept as it is while this is held: for a few reads.
pub(crate) struct Names(ArcRwLockReadGuard<RawRwLock, Head>);

impl Deref for Names {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.0.namespace
    }
}

/// The right to change something in one subvolume, until the transaction that does it has been applied.
pub(crate) struct Change(ArcRwLockReadGuard<RawRwLock, Head>);

impl Deref for Change {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.0.namespace
    }
}

/// All subvolumes.
pub(crate) struct Subvolumes {
    first: Subvolume,
}

impl Subvolumes {
    /// A pool with this first subvolume.
    pub(crate) fn new(first: Subvolume) -> Subvolumes {
        Subvolumes { first }
    }

    fn get(&self, slot: Slot) -> Result<&Subvolume> {
        if slot == Slot::FIRST { Ok(&self.first) } else { Err(FsError::NotFound) }
    }
}

impl Core {
    /// What the subvolume of `ino` shows. May be taken while a [`Change`] of it or an inode is held.
    pub(crate) fn names(&self, ino: InodeId) -> Result<Names> {
        // Not behind whoever waits to have the gate alone: he waits for a holder who may be waiting for us.
        Ok(Names(self.subvolumes.get(Slot::of(ino))?.gate.read_arc_recursive()))
    }

    /// The right to change something in the subvolume of `ino`.
    pub(crate) fn change(&self, ino: InodeId) -> Result<Change> {
        Ok(Change(self.subvolumes.get(Slot::of(ino))?.gate.read_arc()))
    }

    /// A number for a new inode, without a slot.
    pub(crate) fn new_inode_number(&self) -> Result<InodeId> {
        let number = self.store.new_id();
        // At a million a second that takes 278 years.
        if number > LOCAL_MASK { Err(EngineError::NoSpace.into()) } else { Ok(InodeId(number)) }
    }
}
