//! Extended attributes, and what follows from some of them: access control lists and capabilities.

use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::{InodeKind, InodeRecord};
use varve_format::record::xattr::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use super::flags::Touch;
use crate::acl::{self, Acl};
use crate::api::{Caller, XattrMode};
use crate::core::{Core, touch};
use crate::inode::Inner;
use crate::subvolume::Change;
use crate::{FsError, Result};

/// Names and values of one inode together, in bytes, [`XATTR_OVERHEAD_BYTES`] for each: so much is deleted with it.
pub(crate) const XATTRS_PER_INODE_BYTES_MAX: u32 = 256 << 10;
/// What an attribute costs beside its name and value.
const XATTR_OVERHEAD_BYTES: usize = 64;

/// Counts an attribute more of an inode that is being made.
pub(super) fn note_first_xattr(record: &mut InodeRecord, name: &[u8], value: &[u8]) {
    record.xattr_count += 1;
    record.xattr_bytes += cost(name, value.len());
}

/// What an attribute counts for its inode's limit.
pub(crate) fn cost(name: &[u8], value_len: usize) -> u32 {
    (name.len() + value_len + XATTR_OVERHEAD_BYTES) as u32
}

const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// What lets a program do with a file what only root may.
const CAPABILITY: &[u8] = b"security.capability";

fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

fn check_name(name: &[u8]) -> Result<()> {
    let namespace = NAMESPACES.iter().find(|namespace| name.starts_with(namespace));
    match namespace {
        None if is_acl(name) => Ok(()),
        None => Err(FsError::NotSupported),
        Some(namespace) if name.len() == namespace.len() || name.contains(&0) => Err(FsError::Invalid),
        Some(_) if name.len() > XATTR_NAME_BYTES_MAX => Err(FsError::Range),
        Some(_) => Ok(()),
    }
}

/// Whether an attribute may have this name.
pub(crate) fn is_known(name: &[u8]) -> bool {
    check_name(name).is_ok()
}

impl Core {
    pub(crate) fn setxattr(
        &self,
        caller: Caller,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.admit(ino)?;
        self.permit(ino, Touch::Otherwise)?;
        check_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        if is_acl(name) {
            return match Acl::decode(value)? {
                Some(list) => self.with_space(|| self.set_acl(caller, ino, name, &list, mode)),
                None => self.removexattr(ino, name),
            };
        }
        self.with_space(|| {
            let state = self.state(ino);
            let change = self.change(ino)?;
            let mut inner = self.write_lock(&state)?;
            self.set_locked(&change, ino, &mut inner, name, value, mode, None)
        })
    }

    /// Sets one attribute; `bits` are the new permission bits, if they change with it.
    #[expect(clippy::too_many_arguments, reason = "the second half of a verb, behind two ways into it")]
    fn set_locked(
        &self,
        change: &Change,
        ino: InodeId,
        inner: &mut Inner,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        bits: Option<u16>,
    ) -> Result<()> {
        let bucket = change.xattr_bucket(ino, name)?;
        let old = bucket.iter().find(|xattr| xattr.head.name == name);
        match (mode, old) {
            (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
            (XattrMode::Replace, None) => return Err(FsError::NoAttribute),
            _ => {}
        }
        let position = match old {
            Some(xattr) => xattr.position,
            None => change.xattr_position(&bucket, name).ok_or(FsError::HashFull)?,
        };
        let old_len = old.map(|xattr| xattr.head.value_len);
        let mut record = inner.record.clone();
        record.xattr_count = record.xattr_count.saturating_add(u32::from(old.is_none()));
        let before = old_len.map_or(0, |len| cost(name, len as usize));
        record.xattr_bytes =
            record.xattr_bytes.saturating_sub(before).saturating_add(cost(name, value.len()));
        if record.xattr_bytes > XATTRS_PER_INODE_BYTES_MAX {
            return Err(FsError::AttributesFull);
        }
        record.mode = bits.unwrap_or(record.mode);
        touch(&mut record, self.now());
        let mut tx = Transaction::new();
        change.put_xattr(&mut tx, ino, position, name, value, old_len)?;
        self.put_record(change, &mut tx, ino, inner, &mut record)?;
        self.apply(tx)?;
        inner.take_over(change, record);
        if bits.is_some() {
            inner.pending.mode = None;
        }
        Ok(())
    }

    fn set_acl(&self, caller: Caller, ino: InodeId, name: &[u8], list: &Acl, mode: XattrMode) -> Result<()> {
        let state = self.state(ino);
        let change = self.change(ino)?;
        let mut inner = self.write_lock(&state)?;
        match inner.record.kind {
            InodeKind::Symlink => return Err(FsError::NotSupported),
            InodeKind::Directory => {}
            _ if name == acl::DEFAULT => return Err(FsError::AccessDenied),
            _ => {}
        }
        if name == acl::DEFAULT {
            return self.set_locked(&change, ino, &mut inner, name, &list.encode(), mode, None);
        }
        let mut bits = inner.mode() & 0o7000 | list.mode();
        if caller.uid != 0 && caller.gid != inner.record.gid {
            bits &= !0o2000;
        }
        if !list.is_minimal() {
            return self.set_locked(&change, ino, &mut inner, name, &list.encode(), mode, Some(bits));
        }
        // The bits say it all: no list is kept.
        let mut tx = Transaction::new();
        let mut record = inner.record.clone();
        record.mode = bits;
        self.drop_xattr(&change, &mut tx, ino, &mut record, name)?;
        touch(&mut record, self.now());
        self.put_record(&change, &mut tx, ino, &inner, &mut record)?;
        self.apply(tx)?;
        inner.take_over(&change, record);
        inner.pending.mode = None;
        Ok(())
    }

    /// The access control list `name` of an inode that the caller has locked.
    pub(crate) fn acl(&self, ino: InodeId, inner: &Inner, name: &[u8]) -> Result<Option<Acl>> {
        if inner.record.xattr_count == 0 {
            return Ok(None);
        }
        match self.get_locked(ino, name) {
            Ok(value) => Acl::decode(&value),
            Err(FsError::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds to `tx` that the access list of `ino`, if there is one, follows the permission bits `mode`.
    pub(super) fn acl_follows(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        inner: &Inner,
        mode: u16,
    ) -> Result<()> {
        if let Some(mut list) = self.acl(ino, inner, acl::ACCESS)? {
            list.set_mode(mode);
            let bucket = change.xattr_bucket(ino, acl::ACCESS)?;
            let old =
                bucket.iter().find(|xattr| xattr.head.name == acl::ACCESS).ok_or(FsError::NoAttribute)?;
            let value = list.encode();
            change.put_xattr(tx, ino, old.position, acl::ACCESS, &value, Some(old.head.value_len))?;
        }
        Ok(())
    }

    /// Adds to `tx` an attribute of an inode that is being made and has none of this name.
    pub(super) fn put_first_xattr(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        record: &mut InodeRecord,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let position = change.first_xattr_position(name, record.xattr_count as u8);
        note_first_xattr(record, name, value);
        Ok(change.put_xattr(tx, ino, position, name, value, None)?)
    }

    /// Adds to `tx` the removal of an attribute, and notes it in `record`. False if there is none.
    fn drop_xattr(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        record: &mut InodeRecord,
        name: &[u8],
    ) -> Result<bool> {
        if record.xattr_count == 0 {
            return Ok(false);
        }
        let bucket = change.xattr_bucket(ino, name)?;
        let Some(xattr) = bucket.iter().find(|xattr| xattr.head.name == name) else { return Ok(false) };
        record.xattr_count = record.xattr_count.saturating_sub(1);
        record.xattr_bytes = record.xattr_bytes.saturating_sub(cost(name, xattr.head.value_len as usize));
        change.delete_xattr(tx, ino, xattr)?;
        Ok(true)
    }

    /// A file that is written to or given away (but cut or given away by root before its first name) loses its capabilities: with HANDLE_KILLPRIV_V2
    /// the kernel leaves that to the filesystem. In the transaction that changes the file, so that who is refused has not lost them.
    /// Costs nothing for files without attributes.
    pub(super) fn drop_capability(
        &self,
        change: &Change,
        tx: &mut Transaction,
        ino: InodeId,
        record: &mut InodeRecord,
    ) -> Result<bool> {
        self.drop_xattr(change, tx, ino, record, CAPABILITY)
    }

    /// The same before what is written waits in memory, under the lock under which it gets there: if power fails between the two, the
    /// file has neither. Nothing else can refuse that write.
    pub(super) fn drop_capability_first(
        &self,
        change: &Change,
        ino: InodeId,
        inner: &mut Inner,
    ) -> Result<()> {
        let mut record = inner.record.clone();
        let mut tx = Transaction::new();
        if !self.drop_capability(change, &mut tx, ino, &mut record)? {
            return Ok(());
        }
        touch(&mut record, self.now());
        self.put_record(change, &mut tx, ino, inner, &mut record)?;
        // What has space is logged with privilege, too, and none of that is spared for who deletes.
        tx.privileged();
        tx.spares_nothing();
        self.apply(tx)?;
        inner.take_over(change, record);
        Ok(())
    }

    pub(crate) fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        if inner.record.xattr_count == 0 {
            return Err(FsError::NoAttribute);
        }
        self.get_locked(ino, name)
    }

    /// The chunks are read one by one: the lock on the inode, which the caller has, keeps them of one value.
    fn get_locked(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let space = self.names(ino)?;
        let bucket = space.xattr_bucket(ino, name)?;
        let xattr = bucket.iter().find(|xattr| xattr.head.name == name).ok_or(FsError::NoAttribute)?;
        Ok(space.xattr_value(ino, xattr)?)
    }

    pub(crate) fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        let mut names = Vec::new();
        if inner.record.xattr_count > 0 {
            self.names(ino)?.each_xattr(ino, &mut |xattr| names.push(xattr.head.name))?;
        }
        Ok(names)
    }

    pub(crate) fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        self.admit(ino)?;
        self.permit(ino, Touch::Otherwise)?;
        self.with_space_patiently(|| self.remove_attribute(ino, name))
    }

    fn remove_attribute(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let state = self.state(ino);
        let change = self.change(ino)?;
        let mut inner = self.write_lock(&state)?;
        let mut record = inner.record.clone();
        let mut tx = Transaction::new();
        if !self.drop_xattr(&change, &mut tx, ino, &mut record, name)? {
            // Removing a list that is not there leaves what was asked for.
            return if is_acl(name) { Ok(()) } else { Err(FsError::NoAttribute) };
        }
        touch(&mut record, self.now());
        self.put_record(&change, &mut tx, ino, &inner, &mut record)?;
        tx.privileged();
        self.apply(tx)?;
        inner.take_over(&change, record);
        Ok(())
    }
}
