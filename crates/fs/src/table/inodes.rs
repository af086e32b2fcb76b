//! Inode records.

use varve_engine::version::{Holder, points};
use varve_engine::{InodeId, Transaction, TreeId, View};
use varve_format::record::inode::{INODE_KEY_BYTES, InodeRecord, inode_key};

use super::{Namespace, Result, VERSION_BYTES, corrupt};
use crate::subvolume::{Change, local};

impl Namespace {
    /// The record of `ino`, and whether it is this version's own: not inherited.
    pub fn inode(&self, ino: InodeId) -> Result<Option<(InodeRecord, bool)>> {
        let key = inode_key(self.family, local(ino), self.key());
        let (record, own) = if self.sole.is_some() {
            (self.get(TreeId::INODES, &key, InodeRecord::decode)?, true)
        } else if let Some(found) = self.find(TreeId::INODES, &key)? {
            (Some(InodeRecord::decode(&found.value)), points::own(&self.path, found.version))
        } else {
            return Ok(None);
        };
        let record = record.transpose().map_err(corrupt(|| format!("the record of inode {}", ino.0)))?;
        Ok(record.map(|record| (record, own)))
    }
}

impl Namespace {
    /// Whether another subvolume sees the same record of `ino`.
    pub(crate) fn others_see(&self, view: &View, ino: InodeId) -> Result<bool> {
        let key = inode_key(self.family, local(ino), self.key());
        let prefix = &key[..key.len() - VERSION_BYTES];
        let Some(found) = points::find(view, &self.path, TreeId::INODES, prefix)? else { return Ok(false) };
        let (family, version, has_versions) = (self.family, self.version, self.forked);
        let holder = Holder { family, version, has_versions };
        points::seen_by_others(view, holder, TreeId::INODES, prefix, found.version)
    }
}

impl Change {
    /// Stores the record of `ino`.
    pub fn put_inode(&self, tx: &mut Transaction, ino: InodeId, record: &InodeRecord) -> Result<()> {
        let key = inode_key(self.family, local(ino), self.key());
        self.put(tx, TreeId::INODES, &key, record.encode().into())
    }

    /// Removes the record of `ino`.
    pub fn delete_inode(&self, tx: &mut Transaction, ino: InodeId) -> Result<()> {
        self.delete(tx, TreeId::INODES, &inode_key(self.family, local(ino), self.key()))
    }
}

/// An inode of a namespace: what the keys of its records begin with. They lie in this order.
pub type Place = [u8; INODE_KEY_BYTES - VERSION_BYTES];

/// Where an inode's records are whose key this is, or what it begins with.
pub(crate) fn place(key: &[u8]) -> Place {
    let mut place = Place::default();
    let len = key.len().min(place.len());
    place[..len].copy_from_slice(&key[..len]);
    place
}

impl Namespace {
    /// Where the records of `ino` are.
    pub(crate) fn place(&self, ino: InodeId) -> Place {
        place(&inode_key(self.family, local(ino), self.key()))
    }
}

/// Counts the inode records of all namespaces from `from` on, in about `looks` records. Gives their number, and where to go on.
pub(crate) fn count_some(view: &View, from: &Place, looks: usize) -> Result<(u64, Option<Place>)> {
    let (mut count, mut looked, mut last, mut next) = (0, 0, *from, None);
    view.scan(TreeId::INODES, from, &mut |key, value| {
        let at = place(key);
        if looked >= looks && at != last {
            next = Some(at);
            return false;
        }
        (looked, last) = (looked + 1, at);
        // What hides an inode of an older version is empty.
        count += u64::from(!value.is_empty());
        true
    })?;
    Ok((count, next))
}

/// Counts the inode records of all namespaces.
pub fn count(view: &View) -> Result<u64> {
    Ok(count_some(view, &Place::default(), usize::MAX)?.0)
}
