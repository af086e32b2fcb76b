//! Inode records.

use varve_engine::version::{Holder, points};
use varve_engine::{InodeId, Transaction, TreeId, View};
use varve_format::record::inode::{InodeRecord, inode_key};

use super::{Namespace, Result, VERSION_BYTES, corrupt};
use crate::subvolume::{Change, local};

impl Namespace {
    /// The record of `ino`, and whether it is this version's own: not inherited.
    pub(crate) fn inode(&self, ino: InodeId) -> Result<Option<(InodeRecord, bool)>> {
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
    pub(crate) fn put_inode(&self, tx: &mut Transaction, ino: InodeId, record: &InodeRecord) -> Result<()> {
        let key = inode_key(self.family, local(ino), self.key());
        self.put(tx, TreeId::INODES, &key, record.encode().into())
    }

    /// Removes the record of `ino`.
    pub(crate) fn delete_inode(&self, tx: &mut Transaction, ino: InodeId) -> Result<()> {
        self.delete(tx, TreeId::INODES, &inode_key(self.family, local(ino), self.key()))
    }
}

/// Counts the inode records of all namespaces.
pub(crate) fn count(view: &View) -> Result<u64> {
    let mut count = 0;
    view.scan(TreeId::INODES, &[], &mut |_, value| {
        // What hides an inode of an older version is empty.
        count += u64::from(!value.is_empty());
        true
    })?;
    Ok(count)
}
