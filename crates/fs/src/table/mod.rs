//! The maps of a namespace as typed records over the engine's trees: one file a map.
//!
//! This is the one place that knows how a versioned key is found, and that keys and values hold inode numbers without
//! the slot of their subvolume. While a namespace has one version, an entry's key is known and [`Namespace::get`] is one
//! lookup. What is changed is changed through a [`Change`]. Knows nothing of locks, caches or POSIX.

use std::sync::Arc;

use varve_engine::version::points::{self, Found};
use varve_engine::version::{Holder, Path};
use varve_engine::{EngineError, Store, Transaction, View};
use varve_format::{Corrupt, FamilyId, TreeId, VersionId, VersionKey};

use crate::hash::NameHasher;
use crate::subvolume::{Change, Slot};

pub(crate) mod extents;
pub mod inodes;
pub(crate) mod names;
pub mod orphans;
pub mod subvolumes;
pub(crate) mod xattrs;

pub type Result<T> = std::result::Result<T, EngineError>;

/// Gets keys and values; false ends the scan.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// The namespace a subvolume shows: which entries of the versioned maps are its own.
#[derive(Clone)]
pub struct Namespace {
    /// Where the trees are.
    pub store: Arc<Store>,
    /// What is above the numbers of its inodes.
    pub slot: Slot,
    /// The family of its names, inodes and attributes.
    pub family: FamilyId,
    /// The version it stands at.
    pub version: VersionId,
    /// The versions it sees.
    pub path: Path,
    /// The key of everything it sees, if its path is one version.
    sole: Option<VersionKey>,
    /// Whether the family has other versions, or had.
    pub forked: bool,
    /// How names are hashed.
    pub hasher: NameHasher,
}

/// Bytes of the version key at the end of every key.
const VERSION_BYTES: usize = 8;

impl Namespace {
    /// What the holder of `path` sees.
    pub(crate) fn new(
        store: Arc<Store>,
        slot: Slot,
        holder: Holder,
        path: Path,
        hasher: NameHasher,
    ) -> Namespace {
        let (sole, forked) = (points::sole_key(&path), holder.has_versions);
        Namespace { store, slot, family: holder.family, version: holder.version, path, sole, forked, hasher }
    }

    /// It sees something else from now on.
    pub(crate) fn set_path(&mut self, holder: Holder, path: Path) {
        (self.version, self.forked, self.sole) =
            (holder.version, holder.has_versions, points::sole_key(&path));
        self.path = path;
    }

    /// The end of a key to be looked up. Where there are several versions it is not looked at.
    fn key(&self) -> VersionKey {
        self.sole.unwrap_or(VersionKey(0))
    }

    /// The value of the entry at `key`, which ends with this namespace's version key.
    fn get<T>(&self, tree: TreeId, key: &[u8], decode: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        if self.sole.is_some() {
            // What hides an entry of a version that is gone may still be there.
            let found = self.store.get_with(tree, key, |value| (!value.is_empty()).then(|| decode(value)))?;
            return Ok(found.flatten());
        }
        Ok(self.find(tree, key)?.map(|found| decode(&found.value)))
    }

    /// As [`Namespace::get`], and whose entry it is.
    fn find(&self, tree: TreeId, key: &[u8]) -> Result<Option<Found>> {
        points::find(&self.store.view(), &self.path, tree, &key[..key.len() - VERSION_BYTES])
    }

    /// Calls `each` with the entries from `from` on whose keys begin with `prefix`, until it returns false or an error.
    fn scan(&self, tree: TreeId, from: &[u8], prefix: &[u8], each: Each<'_>) -> Result<()> {
        self.scan_in(&self.store.view(), tree, from, prefix, each)
    }

    /// The same in a view that fits this namespace.
    fn scan_in(&self, view: &View, tree: TreeId, from: &[u8], prefix: &[u8], each: Each<'_>) -> Result<()> {
        if self.forked {
            let mut whole = Vec::new();
            return points::scan(view, &self.path, tree, from, prefix, &mut |at, version, value| {
                whole.clear();
                whole.extend_from_slice(at);
                whole.extend_from_slice(&(!version.0).to_be_bytes());
                each(&whole, value)
            });
        }
        let mut failed = None;
        view.scan(tree, from, &mut |key, value| {
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

impl Namespace {
    /// For the check: calls `each` with the entries that can be seen from `from` on at keys that begin with `prefix`, whole keys
    /// and values, until it returns false. What is no version's is passed over.
    pub(crate) fn each(
        &self,
        view: &View,
        tree: TreeId,
        from: &[u8],
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if self.forked {
            return self.scan_in(view, tree, from, prefix, &mut |key, value| Ok(each(key, value)));
        }
        let version = (!self.key().0).to_be_bytes();
        view.scan(tree, from, &mut |key, value| {
            key.starts_with(prefix) && (!key.ends_with(&version) || each(key, value))
        })
    }
}

impl Change {
    /// Puts `value` at `key`, which ends with this namespace's version key.
    fn put(&self, tx: &mut Transaction, tree: TreeId, key: &[u8], value: Box<[u8]>) -> Result<()> {
        if !self.forked {
            tx.put_owned(tree, key, value);
            return Ok(());
        }
        let prefix = &key[..key.len() - VERSION_BYTES];
        points::put(&self.store.view(), tx, &self.path, tree, prefix, value)
    }

    /// Removes what is seen at `key`, which ends with this namespace's version key.
    fn delete(&self, tx: &mut Transaction, tree: TreeId, key: &[u8]) -> Result<()> {
        if !self.forked {
            tx.delete(tree, key);
            return Ok(());
        }
        points::delete(&self.store.view(), tx, &self.path, tree, &key[..key.len() - VERSION_BYTES])
    }
}

/// The number at byte `at` of a key or the beginning of one; 0 where that is shorter.
pub(crate) fn number(key: &[u8], at: usize) -> u64 {
    key.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}

/// Names the entry that does not decode.
pub(crate) fn corrupt(what: impl FnOnce() -> String) -> impl FnOnce(Corrupt) -> EngineError {
    |why| EngineError::corrupt(what(), why)
}
