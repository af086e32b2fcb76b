//! Versioned maps: a file's data as a tree of versions whose entries carry the version in their key.
//!
//! A **family** is everything that descends from one original. Its versions form a tree; a [`Holder`] (an inode
//! record) points at one, and several may point at the same. Reading walks from the holder's version to the root: an
//! entry of version w is visible below the smallest limit met on the way, and the nearest visible entry wins. A version
//! is written only by its one holder while it has no children; others open a child first ([`branch`]). Truncation opens
//! a **child with a limit** and leaves the rest to the reaper, which removes versions that nobody holds, **collapses**
//! one without holders into its only child, and **rechecks** one with several for what none of them sees: a small
//! transaction at a time. All of its state is in the records, so a crash between two steps loses nothing.
//!
//! Invariants:
//! 1. Entries of one version key never overlap and never cross a segment.
//! 2. Keys and ids grow strictly along every path from the root, so that a scan of a segment meets the versions of a
//!    path nearest first. Only a root can have the family's number as its key.
//! 3. A block of the pool is named by one entry, and by as many more as the *shares* tree counts. Who cuts an entry says
//!    so ([`free`](crate::Transaction::free)), who lets another name the same says so ([`share`](crate::Transaction::share));
//!    what becomes of the blocks is found when the transaction is applied.
//! 4. The side that drains gains no entries; of two neighbouring edges of a path only one drains.
//! 5. When the reaper is idle, each entry is seen by some holder, and a hole entry hides something; a version is held or
//!    has several children. While it is not, what it has to do is marked (`pending`).
//! 6. A version with another key than the family's number has an index entry for each segment in which it has entries.
//! 7. A version without a record is the only one of its family (`pending`). When the reaper is idle, a family with one
//!    holder has neither record nor index, unless it outgrew a smaller first version (`Extents::smaller`, `Points::smaller`).
//!
//! Rules for callers: everything that changes a family (its holders, entries, [`reap_step`]) runs under the lock of the
//! family, from [`Path::load`] until the transaction has been applied. A [`Path`] is good for reading until the next
//! [`truncate`], [`branch`] or [`reap_step`] of its holder or family, and for writing until the next change of any holder
//! of its family. Reads inside a transaction do not see its own puts, so **one** call of this module per family and
//! transaction; the exception is that the path which [`branch`] gives may be written to in the same one.

use std::sync::Arc;

use varve_format::record::extent::{DATA_KEY_BYTES, Extent};
use varve_format::record::version::VersionRecord;
use varve_format::{FamilyId, PoolAddr, TreeId, VersionId};

use crate::{EngineError, Lsn, Store, View};

pub use varve_format::record::extent::ExtentKind;

mod changes;
mod check;
mod delete;
mod extents;
mod family;
mod holders;
mod instead;
mod joining;
pub(crate) mod keyframe;
mod keyframe_check;
mod kin;
mod map;
mod others;
mod parting;
mod path;
mod pending;
pub(crate) mod planting;
pub mod points;
mod ranges;
mod reap;
mod resolve;
mod rows;
mod segment;
mod shift;
mod sweep;
mod truncate;
mod trunk;
mod write;

#[cfg(test)]
pub(crate) mod maps;
#[cfg(test)]
mod tests;

use planting::planting;

pub use changes::{DataChange, DataChanges, data_changes};
pub use check::{check_names, next_family, walk_family};
pub use delete::delete_step;
pub use extents::{pending_families, reap_step};
pub use holders::{branch, branch_on, is_sole, release, share};
pub use instead::{first_that_gives_back, gives_back};
pub use keyframe::{Keyframes, make_keyframes};
pub use map::{MapPage, MapPiece, map};
pub use path::Path;
pub use ranges::{Range, share_range};
pub use reap::ReaperMemory;
pub use resolve::{resolve, resolve_some, resolve_upto};
pub use shift::{Shifted, shift, shift_away};
pub use truncate::{Truncated, truncate, truncate_kept};
pub use trunk::Trunks;
pub use write::{Replaced, Reserved, punch, put_extents, read_ahead, reserve, spend_reserved};

/// What this module's calls give.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Trees as they are at one moment. [`View`] is the real one; tests have one in memory.
pub trait Read {
    /// The value at `key` of `tree`.
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Calls `each` with the entries of `tree` from `from` on (inclusive), ascending, until it returns false.
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;
    /// The last entry of `tree` whose key is at most `at`.
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>>;
    /// As [`Read::scan`] from `at` on, but the last entry in front of it comes first if `at` has none and that is not in
    /// front of `floor`.
    fn scan_around(
        &self,
        tree: TreeId,
        floor: &[u8],
        at: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let before = self.last_at_or_before(tree, at)?.filter(|(key, _)| (floor..at).contains(&&key[..]));
        if before.is_none_or(|(key, value)| each(&key, &value)) { self.scan(tree, at, each) } else { Ok(()) }
    }
    /// These keys of the extents, in their order, will be looked for soon.
    fn look_at(&self, _keys: &[[u8; DATA_KEY_BYTES]]) {}
    /// These keys of `tree`, ascending, will be looked for soon, and may have to be read for that.
    fn read_ahead(&self, _tree: TreeId, _keys: &[Vec<u8>]) -> Result<()> {
        Ok(())
    }
    /// What is known of long paths, and the position of this view.
    fn trunks(&self) -> Option<(&Trunks, Lsn)> {
        None
    }
    /// The record of a version, if it is known without a look at the trees.
    fn latest(&self, _family: FamilyId, _id: VersionId) -> Option<VersionRecord> {
        None
    }
    /// What is known of keyframes. `None`: they are not to be used.
    fn keyframes(&self) -> Option<&Keyframes> {
        None
    }
}

impl Read for View {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        View::get(self, tree, key)
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        View::scan(self, tree, from, each)
    }
    fn scan_around(
        &self,
        tree: TreeId,
        floor: &[u8],
        at: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        View::scan_around(self, tree, floor, at, each)
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        View::last_at_or_before(self, tree, at)
    }
    fn look_at(&self, keys: &[[u8; DATA_KEY_BYTES]]) {
        self.trees()[TreeId::EXTENTS.0 as usize - 1].look_at(keys);
    }
    fn read_ahead(&self, tree: TreeId, keys: &[Vec<u8>]) -> Result<()> {
        View::read_ahead(self, tree, keys)
    }
    fn trunks(&self) -> Option<(&Trunks, Lsn)> {
        Some((View::trunks(self), self.position()))
    }
    fn latest(&self, family: FamilyId, id: VersionId) -> Option<VersionRecord> {
        View::trunks(self).latest(family, id, self.position())
    }
    fn keyframes(&self) -> Option<&Keyframes> {
        Some(View::keyframes(self))
    }
}

/// The trees as they are at each call: for who reads so little, and holds what keeps it from changing, that a [`View`] is
/// not worth its price.
impl Read for Arc<Store> {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Store::get(self, tree, key)
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let (root, _reading) = self.picture_of(tree);
        root.scan(from, self.as_ref(), each)
    }
    fn scan_around(
        &self,
        tree: TreeId,
        floor: &[u8],
        at: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let (root, _reading) = self.picture_of(tree);
        root.scan_around(floor, at, self.as_ref(), each)
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let (root, _reading) = self.picture_of(tree);
        root.last_at_or_before(at, self.as_ref())
    }
    fn latest(&self, family: FamilyId, id: VersionId) -> Option<VersionRecord> {
        // What was noted last is what the trees say at this call.
        self.trunks.latest(family, id, Lsn(u64::MAX))
    }
    fn keyframes(&self) -> Option<&Keyframes> {
        Some(&self.keyframes)
    }
}

/// What an inode record stores about its data. A new file's is [`Holder::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Whose data.
    pub family: FamilyId,
    /// Which version of it.
    pub version: VersionId,
    /// Whether the family has version records, or had. Without, the path is [`Path::implicit`] and costs no read. Once set it
    /// stays, also when a single version is left and the records are gone.
    pub has_versions: bool,
}

impl Holder {
    /// The holder of a new family without records. `family` must never have been used (the inode number, or an id
    /// from [`crate::Store::new_id`]).
    pub fn new(family: FamilyId) -> Holder {
        Holder { family, version: VersionId(family.0), has_versions: false }
    }
}

/// A piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// First byte of the file, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes, a multiple of the block size.
    pub len: u64,
    /// Where it is.
    pub what: Mapping,
}

/// Where a piece of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// Nowhere: zeros.
    Hole,
    /// Nowhere yet, but space is set aside: zeros.
    Reserved,
    /// In the pool.
    Data {
        /// Address of the first byte of the piece, block aligned (with a codec: of the stored extent).
        addr: PoolAddr,
        /// The entry it comes from; for a piece joined from several that lie side by side, the first.
        extent: Extent,
    },
}

/// What of reservations is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unreserved {
    /// Blocks that are not reserved any more.
    pub blocks: u64,
    /// Reserved extents that there are more than before: a write into the middle of one leaves two.
    pub extents: i64,
}

/// How far a bounded step has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Whether there is more to do. The transaction may be empty when there is not.
    pub more: bool,
    /// File offset from which to go on ([`punch`] and [`spend_reserved`] only).
    pub next: u64,
    /// Entries put or deleted.
    pub entries: u64,
    /// Blocks freed.
    pub blocks_freed: u64,
    /// Blocks of reservations that are gone: the caller's books have to know.
    pub reserved_freed: Unreserved,
}

/// What tests plant: errors, to see themselves fail, and a choice that must not matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// A collapse forgets the entries at or beyond the child's limit.
    NoRangeKill,
    /// Reading applies only the nearest limit of the path.
    LimitNotCarried,
    /// The cursor of an interrupted removal passes the segment it was in.
    CursorSkips,
    /// The end of a collapse does not have the versions around it rechecked.
    NoRecheck,
    /// A write that hides something from its last viewer does not say so.
    WriteForgets,
    /// One more holder is not counted.
    MissedReference,
    /// A collapse removes a block in front of the child's limit.
    KillsVisible,
    /// One more extent of a block is not counted.
    ShareUncounted,
    /// The index does not hear of a version's first entry in a segment.
    IndexForgets,
    /// What is known of a path stays when one of its versions changes.
    TrunkStays,
    /// A recheck believes that somebody sees what it looks at.
    AlwaysSeen,
    /// What others see through a version ignores its limit.
    LimitsUnseen,
    /// Of a piece that others see in part, they see all.
    SharedInPart,
    /// Of versions that become one together, the oldest hides the others.
    OldestOnTop,
    /// Versions become one together though there is a limit between them.
    LimitInRow,
    /// The record of a version with one holder goes, whatever else it says.
    HeldOnceForgotten,
    /// A version without a record is taken for the only one of its family, whatever records there are.
    AnyIsImplicit,
    /// A keyframe stays when what it is made of changes.
    KeyframesStay,
    /// A keyframe is used whatever limits there are.
    KeyframesUnlimited,
    /// Of much that nobody sees in a place holes go first, while what they hide is there.
    HolesFirst,
    /// What is left of much that nobody sees in a place is forgotten.
    RestForgotten,
    /// No error: the larger side drains, so that both directions are met equally often.
    LargerSide,
    /// No error: the youngest collapse goes first, as it may with forks, so that both versions have older ones beneath.
    YoungestFirst,
}

planting!(Planted: NoRangeKill, LimitNotCarried, CursorSkips, NoRecheck, WriteForgets, MissedReference, KillsVisible, IndexForgets, ShareUncounted, OldestOnTop, LimitInRow, HeldOnceForgotten, KeyframesStay);
