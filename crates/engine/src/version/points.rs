//! Versioned maps with point keys: the namespaces (inodes, names, extended attributes).
//!
//! Keys of these trees begin with the family (8 bytes) and end with the inverted version key (8 bytes); **prefix**
//! means a whole key without those last 8 bytes. The entries of one prefix lie side by side, newest first, so what a
//! holder sees of it is the first of them that belongs to a version of its path. An **empty value is a whiteout**: it
//! hides what older versions have there (no record of these trees encodes to nothing).
//!
//! Invariants:
//! 1. A whiteout is put only where it hides something, and the reaper takes it away when it no longer does.
//! 2. Every entry of a key that is not the family's first has an entry in [`TreeId::HELD`], so that removing a version
//!    costs what it holds. The first version has none: it goes when everything goes, or is merged with the next.
//! 3. While the head of a path drains up, what it adds goes to its parent's key; what it has at its own key is replaced
//!    there, so that an entry of the parent that lies hidden beneath ceases to exist in the reaper only, which tells
//!    about it.
//! 4. An entry that some write hides from a version without holders is noted in [`TreeId::REAP`], unless the reaper
//!    will meet it anyway.
//!
//! Points have no limits: versions of a namespace are opened by forks only. What a value means is the caller's affair;
//! this module knows two things of it, that it is empty or not, and that somebody has to be told when it ceases to
//! exist.
//!
//! Rules for callers are those of [`super`], but that any number of calls may share a transaction: each looks at its
//! own prefix only. Calls on the same prefix in one transaction: the last one counts.

use varve_format::record::inode::INODE_KEY_BYTES;
use varve_format::record::name::NAME_KEY_BYTES;
use varve_format::record::xattr::XATTR_KEY_BYTES;
use varve_format::{Corrupt, FamilyId, TreeId, VersionKey};

use super::planting::planting;
use super::{Path, Result};
use crate::EngineError;
use crate::key::Key;

mod changes;
mod check;
mod others;
mod reads;
mod reap;
#[cfg(test)]
mod tests;
mod writes;

pub use changes::{Changed, Changes, changes};
pub use check::{EachLive, walk_points};
pub use others::seen_by_others;
pub use reads::{EachVisible, Found, find, scan, sole_key};
pub use reap::{OnDead, pending_points_families, reap_points_step};
pub use writes::{delete, own, put};

/// The trees of namespaces, in the order of their numbers.
const TREES: [TreeId; 3] = [TreeId::INODES, TreeId::NAMES, TreeId::XATTRS];
/// Bytes of the version key at the end of every key.
const VERSION_BYTES: usize = 8;

/// Bytes of a whole key of `tree`.
fn key_bytes(tree: TreeId) -> usize {
    match tree {
        TreeId::INODES => INODE_KEY_BYTES,
        TreeId::NAMES => NAME_KEY_BYTES,
        TreeId::XATTRS => XATTR_KEY_BYTES,
        _ => panic!("tree {} has no point keys", tree.0),
    }
}

/// The key of the entry of `version` at `prefix`.
fn entry_key(prefix: &[u8], version: VersionKey) -> Key {
    Key::joined(prefix, &(!version.0).to_be_bytes())
}

/// Prefix and version of a whole key of `tree`.
fn split(tree: TreeId, key: &[u8]) -> Result<(&[u8], VersionKey)> {
    match key.split_last_chunk::<VERSION_BYTES>() {
        Some((prefix, version)) if key.len() == key_bytes(tree) => {
            Ok((prefix, VersionKey(!u64::from_be_bytes(*version))))
        }
        _ => {
            let why = Corrupt { what: "key of the wrong length", at: key.len() };
            Err(EngineError::corrupt(format!("an entry of the {} tree", tree.name()), why))
        }
    }
}

/// What [`TreeId::HELD`] and [`TreeId::REAP`] call the place of a prefix: what comes after the family.
fn place_of(prefix: &[u8]) -> &[u8] {
    &prefix[8..]
}

/// Whether entries of this key are listed in [`TreeId::HELD`].
fn is_listed(family: FamilyId, version: VersionKey) -> bool {
    version.0 != family.0
}

/// Whether a path is that of a family that was never forked, or has but its first version left.
fn is_plain(path: &Path) -> bool {
    path.versions() == 1 && !is_listed(path.family(), path.head().key)
}

/// What tests plant: errors, to see themselves fail, and a choice that must not matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// Nobody notes what a write hides from a version without holders.
    HiddenNotNoted,
    /// What a write hides in the version that its transaction has left is not noted.
    PathIgnored,
    /// Whiteouts stay when what they hid has gone.
    WhiteoutsStay,
    /// Nobody hears of what was hidden in a version that collapses.
    HiddenUnheard,
    /// Of much that nobody sees in a place whiteouts go first, while what they hide is there.
    HolesFirst,
    /// No error: the larger side drains, so that both directions are met equally often.
    LargerSide,
}

planting!(Planted: HiddenNotNoted, WhiteoutsStay, HiddenUnheard);
