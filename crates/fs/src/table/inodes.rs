//! Inode records.

use varve_engine::{InodeId, Store, Transaction, TreeId, View};
use varve_format::record::inode::{InodeRecord, inode_key};

use super::{Namespace, Result, corrupt};

impl Namespace {
    /// The record of `ino`.
    pub(crate) fn inode(&self, store: &Store, ino: InodeId) -> Result<Option<InodeRecord>> {
        let key = inode_key(self.family, ino, self.key);
        let record = self.get(store, TreeId::INODES, &key, InodeRecord::decode)?;
        record.transpose().map_err(corrupt(|| format!("the record of inode {}", ino.0)))
    }

    /// Stores the record of `ino`.
    pub(crate) fn put_inode(&self, tx: &mut Transaction, ino: InodeId, record: &InodeRecord) {
        let key = inode_key(self.family, ino, self.key);
        tx.put_owned(TreeId::INODES, &key, record.encode().into());
    }

    /// Removes the record of `ino`.
    pub(crate) fn delete_inode(&self, tx: &mut Transaction, ino: InodeId) {
        tx.delete(TreeId::INODES, &inode_key(self.family, ino, self.key));
    }

    /// Counts the inodes.
    pub(crate) fn count_inodes(&self, view: &View) -> Result<u64> {
        let prefix = self.family.0.to_be_bytes();
        let mut count = 0;
        self.scan(view, TreeId::INODES, &prefix, &prefix, &mut |_, _| {
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }
}
