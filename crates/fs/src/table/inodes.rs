//! Inode records.

use varve_engine::{InodeId, Transaction, TreeId, VersionKey, View};
use varve_format::record::inode::{InodeRecord, inode_key};

use super::{Namespace, Result, corrupt};
use crate::subvolume::{Change, local};

impl Namespace {
    /// The record of `ino`, and which version's it is.
    pub(crate) fn inode(&self, ino: InodeId) -> Result<Option<(InodeRecord, VersionKey)>> {
        let key = inode_key(self.family, local(ino), self.key);
        let record = self.get(TreeId::INODES, &key, InodeRecord::decode)?;
        let record = record.transpose().map_err(corrupt(|| format!("the record of inode {}", ino.0)))?;
        Ok(record.map(|record| (record, self.key)))
    }
}

impl Change {
    /// Stores the record of `ino`.
    pub(crate) fn put_inode(&self, tx: &mut Transaction, ino: InodeId, record: &InodeRecord) -> Result<()> {
        let key = inode_key(self.family, local(ino), self.key);
        self.put(tx, TreeId::INODES, &key, record.encode().into())
    }

    /// Removes the record of `ino`.
    pub(crate) fn delete_inode(&self, tx: &mut Transaction, ino: InodeId) -> Result<()> {
        self.delete(tx, TreeId::INODES, &inode_key(self.family, local(ino), self.key))
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
