//! Extended attributes.

use varve_engine::{EngineError, InodeId, Transaction};
use varve_format::record::xattr::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use crate::api::XattrMode;
use crate::core::{Core, touch};
use crate::{FsError, Result};

/// Names and values of one inode together, in bytes, [`XATTR_OVERHEAD_BYTES`] for each: so much is deleted with it.
const XATTRS_PER_INODE_BYTES_MAX: u32 = 256 << 10;
/// What an attribute costs beside its name and value.
const XATTR_OVERHEAD_BYTES: usize = 64;

/// What an attribute counts for its inode's limit.
pub(crate) fn cost(name: &[u8], value_len: usize) -> u32 {
    (name.len() + value_len + XATTR_OVERHEAD_BYTES) as u32
}

/// Only `user.` for now; the other namespaces have rules of their own.
fn check_name(name: &[u8]) -> Result<()> {
    if !name.starts_with(b"user.") {
        Err(FsError::NotSupported)
    } else if name.len() == b"user.".len() || name.contains(&0) {
        Err(FsError::Invalid)
    } else if name.len() > XATTR_NAME_BYTES_MAX {
        Err(FsError::Range)
    } else {
        Ok(())
    }
}

impl Core {
    pub(crate) fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_name(name)?;
        self.require_writable()?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        self.with_space(|| {
            let state = self.state(ino);
            let mut inner = self.write_lock(&state)?;
            let bucket = self.namespace.xattr_bucket(&self.store.view(), ino, name)?;
            let old = bucket.iter().find(|xattr| xattr.head.name == name);
            match (mode, old) {
                (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
                (XattrMode::Replace, None) => return Err(FsError::NoAttribute),
                _ => {}
            }
            let position = match old {
                Some(xattr) => xattr.position,
                None => self.namespace.xattr_position(&bucket, name).ok_or(EngineError::NoSpace)?,
            };
            let old_len = old.map(|xattr| xattr.head.value_len);
            let mut record = inner.record.clone();
            record.xattr_count += u32::from(old.is_none());
            let before = old_len.map_or(0, |len| cost(name, len as usize));
            record.xattr_bytes = record.xattr_bytes.saturating_sub(before) + cost(name, value.len());
            if record.xattr_bytes > XATTRS_PER_INODE_BYTES_MAX {
                return Err(EngineError::NoSpace.into());
            }
            touch(&mut record, self.now());
            let mut tx = Transaction::new();
            self.namespace.put_xattr(&mut tx, ino, position, name, value, old_len);
            self.put_record(&mut tx, ino, inner.presence, &record);
            self.apply(tx)?;
            inner.take_over(record);
            Ok(())
        })
    }

    pub(crate) fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        if inner.record.xattr_count == 0 {
            return Err(FsError::NoAttribute);
        }
        // The chunks are read one by one: the lock keeps them of one value.
        let bucket = self.namespace.xattr_bucket(&self.store.view(), ino, name)?;
        let xattr = bucket.iter().find(|xattr| xattr.head.name == name).ok_or(FsError::NoAttribute)?;
        Ok(self.namespace.xattr_value(&self.store, ino, xattr)?)
    }

    pub(crate) fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        let mut names = Vec::new();
        if inner.record.xattr_count > 0 {
            self.namespace.each_xattr(&self.store.view(), ino, &mut |xattr| names.push(xattr.head.name))?;
        }
        Ok(names)
    }

    pub(crate) fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.require_writable()?;
        let state = self.state(ino);
        let mut inner = self.write_lock(&state)?;
        let bucket = self.namespace.xattr_bucket(&self.store.view(), ino, name)?;
        let xattr = bucket.iter().find(|xattr| xattr.head.name == name).ok_or(FsError::NoAttribute)?;
        let mut record = inner.record.clone();
        record.xattr_count = record.xattr_count.saturating_sub(1);
        record.xattr_bytes = record.xattr_bytes.saturating_sub(cost(name, xattr.head.value_len as usize));
        touch(&mut record, self.now());
        let mut tx = Transaction::new();
        self.namespace.delete_xattr(&mut tx, ino, xattr);
        self.put_record(&mut tx, ino, inner.presence, &record);
        tx.privileged();
        self.apply(tx)?;
        inner.take_over(record);
        Ok(())
    }
}
