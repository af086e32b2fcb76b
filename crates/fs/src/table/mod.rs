//! The maps of a namespace as typed records over the engine's trees: one file a map.
//!
//! This is the one place that knows how a versioned key is found, and that keys and values hold inode numbers without
//! the slot of their subvolume. While a namespace has one version, an entry's key is known and [`Namespace::get`] is one
//! lookup. What is changed is changed through a [`Change`]. Knows nothing of locks, caches or POSIX.

use std::sync::Arc;

use varve_engine::{EngineError, Store, Transaction};
use varve_format::{Corrupt, FamilyId, TreeId, VersionKey};

use crate::hash::NameHasher;
use crate::subvolume::{Change, Slot};

pub(crate) mod extents;
pub(crate) mod inodes;
pub(crate) mod names;
pub(crate) mod orphans;
pub(crate) mod subvolumes;
pub(crate) mod xattrs;

pub(crate) type Result<T> = std::result::Result<T, EngineError>;

/// Gets keys and values; false ends the scan.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// The namespace a subvolume shows: which entries of the versioned maps are its own.
#[derive(Clone)]
pub(crate) struct Namespace {
    /// Where the trees are.
    pub store: Arc<Store>,
    /// What is above the numbers of its inodes.
    pub slot: Slot,
    /// The family of its names, inodes and attributes.
    pub family: FamilyId,
    /// The key new entries carry.
    pub key: VersionKey,
    /// How names are hashed.
    pub hasher: NameHasher,
}

impl Namespace {
    /// The value of the entry at `key`, which ends with this namespace's version key.
    fn get<T>(&self, tree: TreeId, key: &[u8], decode: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        self.store.get_with(tree, key, decode)
    }

    /// Calls `each` with the entries from `from` on whose keys begin with `prefix`, until it returns false or an error.
    fn scan(&self, tree: TreeId, from: &[u8], prefix: &[u8], each: Each<'_>) -> Result<()> {
        let mut failed = None;
        self.store.view().scan(tree, from, &mut |key, value| {
            if !key.starts_with(prefix) {
                return false;
            }
            match each(key, value) {
                Ok(more) => more,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }
}

impl Change {
    /// Puts `value` at `key`, which ends with this namespace's version key.
    fn put(&self, tx: &mut Transaction, tree: TreeId, key: &[u8], value: Box<[u8]>) -> Result<()> {
        tx.put_owned(tree, key, value);
        Ok(())
    }

    /// Removes what is seen at `key`, which ends with this namespace's version key.
    fn delete(&self, tx: &mut Transaction, tree: TreeId, key: &[u8]) -> Result<()> {
        tx.delete(tree, key);
        Ok(())
    }
}

/// Names the entry that does not decode.
fn corrupt(what: impl FnOnce() -> String) -> impl FnOnce(Corrupt) -> EngineError {
    |why| EngineError::corrupt(what(), why)
}
