//! What a transport needs of a filesystem: the inode-level verbs, one method each, free of any transport's types.
//!
//! Implemented by [`varve_fs::Filesystem`], by [`crate::Exchange`], which asks another one, and by the double of this
//! crate's tests. Shapes, units and errors are those of `varve_fs`.

use std::ops::Range;

use varve_device::AlignedBuf;
use varve_fs::{
    AccessRule, Allocate, Attr, Caller, DirEntry, FileFlags, Filesystem, FsError, InodeId, NewInode,
    NewNameless, RenameMode, SeekTo, SetAttr, StatFs, Trimmed, XattrMode,
};

type Result<T> = std::result::Result<T, FsError>;

/// The verbs of a filesystem. Every one may be called from many threads at once.
pub trait Verbs: Send + Sync + 'static {
    /// See [`Filesystem::lookup`].
    fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr>;
    /// See [`Filesystem::getattr`].
    fn getattr(&self, ino: InodeId) -> Result<Attr>;
    /// See [`Filesystem::setattr`].
    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> Result<Attr>;
    /// See [`Filesystem::make`].
    fn make(&self, caller: Caller, parent: InodeId, name: &[u8], new: NewInode) -> Result<Attr>;
    /// See [`Filesystem::symlink`].
    fn symlink(&self, caller: Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr>;
    /// See [`Filesystem::readlink`].
    fn readlink(&self, ino: InodeId) -> Result<Vec<u8>>;
    /// See [`Filesystem::tmpfile`]. Filesystems where each file has a name leave it as it is.
    fn tmpfile(&self, caller: Caller, parent: InodeId, new: NewNameless) -> Result<Attr> {
        let _ = (caller, parent, new);
        Err(FsError::NotSupported)
    }
    /// See [`Filesystem::link`].
    fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr>;
    /// See [`Filesystem::unlink`].
    fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()>;
    /// See [`Filesystem::rmdir`].
    fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()>;
    /// See [`Filesystem::rename`].
    fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()>;
    /// See [`Filesystem::admit`].
    fn admit(&self, ino: InodeId) -> Result<()>;
    /// See [`Filesystem::open_inode`].
    fn open_inode(&self, caller: Caller, ino: InodeId, truncate: bool) -> Result<()>;
    /// See [`Filesystem::release_inode`].
    fn release_inode(&self, ino: InodeId) -> Result<()>;
    /// See [`Filesystem::read_into`].
    fn read_into(&self, ino: InodeId, offset: u64, out: &mut [u8]) -> Result<usize>;
    /// See [`Filesystem::read_large`]. Filesystems that read nothing ahead leave it as it is.
    fn read_large(&self, ino: InodeId, offset: u64, len: usize, buf: &mut AlignedBuf) -> Result<usize> {
        self.read_into(ino, offset, &mut buf[..len])
    }
    /// See [`Filesystem::note_access`]. Filesystems without access times leave it as it is.
    fn note_access(&self, ino: InodeId, rule: AccessRule) -> Result<()> {
        let _ = (ino, rule);
        Ok(())
    }
    /// See [`Filesystem::write`].
    fn write(&self, caller: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize>;
    /// See [`Filesystem::write_owned`]. Filesystems that keep no buffers leave it as it is.
    fn write_owned(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<usize> {
        self.write(caller, ino, offset, &buf[..len])
    }
    /// See [`Filesystem::write_whole`]. Filesystems whose writes are never short leave it as it is.
    fn write_whole(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<()> {
        self.write_owned(caller, ino, offset, buf, len).map(drop)
    }
    /// See [`Filesystem::fallocate`].
    fn fallocate(&self, caller: Caller, ino: InodeId, offset: u64, len: u64, how: Allocate) -> Result<()>;
    /// See [`Filesystem::seek`].
    fn seek(&self, ino: InodeId, offset: u64, to: SeekTo) -> Result<Option<u64>>;
    /// See [`Filesystem::copy_range`].
    fn copy_range(&self, caller: Caller, from: (InodeId, u64), to: (InodeId, u64), len: u64) -> Result<u64>;
    /// See [`Filesystem::fsync_then`].
    fn fsync_then(&self, ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>);
    /// See [`Filesystem::readdir`].
    fn readdir(&self, ino: InodeId, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;
    /// See [`Filesystem::setxattr_as`].
    fn setxattr(
        &self,
        caller: Caller,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    /// See [`Filesystem::getxattr`].
    fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>>;
    /// See [`Filesystem::listxattr`].
    fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>>;
    /// See [`Filesystem::removexattr`].
    fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()>;
    /// See [`Filesystem::set_flags`]. Filesystems without flags leave it as it is.
    fn set_flags(&self, caller: Caller, ino: InodeId, flags: FileFlags) -> Result<()> {
        let _ = (caller, ino, flags);
        Err(FsError::NotSupported)
    }
    /// See [`Filesystem::trim`]: as long as `goes_on` says so. Filesystems that lie on no device leave it as it is.
    fn trim(&self, range: Range<u64>, minimum_bytes: u64, goes_on: &dyn Fn() -> bool) -> Result<Trimmed> {
        let _ = (range, minimum_bytes, goes_on);
        Err(FsError::NotSupported)
    }
    /// See [`Filesystem::wants_durable`].
    fn wants_durable(&self, ino: InodeId, names: bool) -> bool {
        let _ = (ino, names);
        false
    }
    /// See [`Filesystem::statfs`].
    fn statfs(&self) -> Result<StatFs>;
    /// See [`Filesystem::leave_names_to_caller`]: the kernel keeps names. Nothing where none are kept.
    fn leave_names_to_caller(&self) {}
    /// See [`Filesystem::reuse_numbers`]. Filesystems without subvolumes leave it as it is, and then they are not reused.
    fn reuse_numbers(&self, is_known: Box<dyn Fn(InodeId) -> bool + Send + Sync>) {
        drop(is_known);
    }
    /// See [`Filesystem::stop`]. A verb has panicked. Filesystems that write nothing by themselves leave it as it is.
    fn stop(&self, why: &str) {
        let _ = why;
    }
}

impl Verbs for Filesystem {
    fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        Filesystem::lookup(self, parent, name)
    }
    fn getattr(&self, ino: InodeId) -> Result<Attr> {
        Filesystem::getattr(self, ino)
    }
    fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> Result<Attr> {
        Filesystem::setattr(self, caller, ino, set)
    }
    fn make(&self, caller: Caller, parent: InodeId, name: &[u8], new: NewInode) -> Result<Attr> {
        Filesystem::make(self, caller, parent, name, new)
    }
    fn symlink(&self, caller: Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        Filesystem::symlink(self, caller, parent, name, target)
    }
    fn readlink(&self, ino: InodeId) -> Result<Vec<u8>> {
        Filesystem::readlink(self, ino)
    }
    fn tmpfile(&self, caller: Caller, parent: InodeId, new: NewNameless) -> Result<Attr> {
        Filesystem::tmpfile(self, caller, parent, new)
    }
    fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        Filesystem::link(self, ino, parent, name)
    }
    fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        Filesystem::unlink(self, parent, name)
    }
    fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        Filesystem::rmdir(self, parent, name)
    }
    fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        Filesystem::rename(self, parent, name, new_parent, new_name, mode)
    }
    fn admit(&self, ino: InodeId) -> Result<()> {
        Filesystem::admit(self, ino)
    }
    fn open_inode(&self, caller: Caller, ino: InodeId, truncate: bool) -> Result<()> {
        Filesystem::open_inode(self, caller, ino, truncate)
    }
    fn release_inode(&self, ino: InodeId) -> Result<()> {
        Filesystem::release_inode(self, ino)
    }
    fn read_into(&self, ino: InodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        Filesystem::read_into(self, ino, offset, out)
    }
    fn read_large(&self, ino: InodeId, offset: u64, len: usize, buf: &mut AlignedBuf) -> Result<usize> {
        Filesystem::read_large(self, ino, offset, len, buf)
    }
    fn note_access(&self, ino: InodeId, rule: AccessRule) -> Result<()> {
        Filesystem::note_access(self, ino, rule)
    }
    fn write(&self, caller: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize> {
        Filesystem::write(self, caller, ino, offset, data)
    }
    fn write_owned(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<usize> {
        Filesystem::write_owned(self, caller, ino, offset, buf, len)
    }
    fn write_whole(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<()> {
        Filesystem::write_whole(self, caller, ino, offset, buf, len)
    }
    fn fallocate(&self, caller: Caller, ino: InodeId, offset: u64, len: u64, how: Allocate) -> Result<()> {
        Filesystem::fallocate(self, caller, ino, offset, len, how)
    }
    fn seek(&self, ino: InodeId, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        Filesystem::seek(self, ino, offset, to)
    }
    fn copy_range(&self, caller: Caller, from: (InodeId, u64), to: (InodeId, u64), len: u64) -> Result<u64> {
        Filesystem::copy_range(self, caller, from, to, len)
    }
    fn fsync_then(&self, ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) {
        Filesystem::fsync_then(self, ino, done)
    }
    fn readdir(&self, ino: InodeId, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        Filesystem::readdir(self, ino, cookie, each)
    }
    fn setxattr(
        &self,
        caller: Caller,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        Filesystem::setxattr_as(self, caller, ino, name, value, mode)
    }
    fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        Filesystem::getxattr(self, ino, name)
    }
    fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>> {
        Filesystem::listxattr(self, ino)
    }
    fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        Filesystem::removexattr(self, ino, name)
    }
    fn set_flags(&self, caller: Caller, ino: InodeId, flags: FileFlags) -> Result<()> {
        Filesystem::set_flags(self, caller, ino, flags)
    }
    fn trim(&self, range: Range<u64>, minimum_bytes: u64, goes_on: &dyn Fn() -> bool) -> Result<Trimmed> {
        Filesystem::trim(self, range, minimum_bytes, &mut |_| goes_on())
    }
    fn wants_durable(&self, ino: InodeId, names: bool) -> bool {
        Filesystem::wants_durable(self, ino, names)
    }
    fn statfs(&self) -> Result<StatFs> {
        Filesystem::statfs(self)
    }
    fn leave_names_to_caller(&self) {
        Filesystem::leave_names_to_caller(self);
    }
    fn reuse_numbers(&self, is_known: Box<dyn Fn(InodeId) -> bool + Send + Sync>) {
        Filesystem::reuse_numbers(self, is_known);
    }
    fn stop(&self, why: &str) {
        Filesystem::stop(self, why);
    }
}
