//! `fuser`'s requests turned into verbs, and their results into replies.
//!
//! The kernel's caches are always right because all changes go through this mount, or through [`crate::Outside`], which
//! tells it: entries, attributes, names that do not exist, pages and directory listings are cached for as long as the
//! kernel likes.
//!
//! The kernel may ask for an inode whose name has just gone. If it was renamed over, `pins` keeps it until nobody can
//! ask. If it was unlinked, "no such file" is right, except for open: the kernel does not tell us O_CREAT, so ESTALE
//! makes it walk the path again.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use varve_device::AlignedBuf;
use varve_fs::{FileKind, FsError, InodeId, NAME_BYTES_MAX, NewInode, RenameMode, SetAttr};

use crate::dispatch::{Adapter, CACHE_TIME, allocate, caller, rename_mode, seek_to, xattr_mode};
use crate::{Verbs, convert};

/// Largest write (and read) in one request, in bytes.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Largest copy in one request, in bytes: its count is answered in 32 bits. The kernel asks for less than 2 GiB at once,
/// and a file that is copied whole in one request becomes a clone.
const COPY_BYTES_MAX: u64 = 1 << 31;
/// Read-ahead and other background requests that may be under way.
const BACKGROUND_MAX: u16 = 64;
/// Unit of the counts in statfs, in bytes.
const STATFS_BLOCK_BYTES: u64 = 4096;

thread_local! {
    /// What this thread reads passes through here: a fresh buffer a request costs more than filling it. As large as the
    /// largest request so far, which the kernel keeps to [`WRITE_BYTES_MAX`].
    static READ_BUF: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::default());
}

// Linux numbers, part of the kernel's ABI.
const O_TRUNC: i32 = 0o1000;

/// What is asked of the kernel, where it knows it. Not in the list, and why: WRITEBACK_CACHE (the kernel would accept
/// writes that have no space); SETXATTR_EXT (`fuser` 0.18 panics on the longer request); POSIX_LOCKS and FLOCK_LOCKS
/// (the kernel keeps locks of one machine by itself); AUTO_INVAL_DATA (nobody else changes the data); ATOMIC_O_TRUNC (the
/// kernel would have the file cut before it looks whether it is being executed, and refuse the open afterwards).
const CAPABILITIES: [InitFlags; 10] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // Whether the umask applies depends on the directory's default access control list.
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_POSIX_ACL,
];

impl<V: Verbs> fuser::Filesystem for Adapter<V> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.opendir_without_message = config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        for capability in CAPABILITIES {
            if config.add_capabilities(capability).is_err() {
                tracing::debug!("the kernel does not know {capability:?}");
            }
        }
        let too_large = |nearest| io::Error::other(format!("refused by fuser; it allows {nearest}"));
        config.set_max_write(WRITE_BYTES_MAX).map_err(|nearest| too_large(u64::from(nearest)))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|nearest| too_large(u64::from(nearest)))?;
        Ok(())
    }

    fn destroy(&mut self) {
        if !self.health.panicked() {
            self.guard("destroy", || self.pins.unpin_all(&*self.verbs));
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.guard("lookup", || match self.verbs.lookup(InodeId(parent.0), name.as_bytes()) {
            // Compilers look for headers in ten places: the kernel remembers the nine where they are not.
            Err(FsError::NotFound) => reply.entry(&CACHE_TIME, &convert::negative_attr(), Generation(0)),
            result => self.reply_entry("lookup", parent, result, reply),
        });
    }

    // The filesystem counts open handles and no lookups.
    fn forget(&self, _: &Request, ino: INodeNo, _: u64) {
        self.guard("forget", || self.pins.unpin(&*self.verbs, InodeId(ino.0)));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.guard("getattr", || match self.verbs.getattr(InodeId(ino.0)) {
            Ok(attr) => reply.attr(&CACHE_TIME, &convert::file_attr(&attr)),
            Err(error) => reply.error(self.errno("getattr", ino, &error)),
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.guard_change("setattr", reply, |reply| {
            let set = SetAttr {
                mode: mode.map(|mode| mode & 0o7777),
                uid,
                gid,
                size,
                atime: atime.map(convert::set_time),
                mtime: mtime.map(convert::set_time),
            };
            match self.verbs.setattr(caller(request), InodeId(ino.0), set) {
                Ok(attr) => reply.attr(&CACHE_TIME, &convert::file_attr(&attr)),
                Err(error) => reply.error(self.errno("setattr", ino, &error)),
            }
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.guard("readlink", || match self.verbs.readlink(InodeId(ino.0)) {
            Ok(target) => {
                self.note_access("readlink", ino, self.access.of_link());
                reply.data(&target);
            }
            Err(error) => reply.error(self.errno("readlink", ino, &error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.guard_change("mknod", reply, |reply| {
            let Some(kind) = convert::file_kind(mode) else { return reply.error(Errno::EINVAL) };
            let new = NewInode { kind, mode: mode & 0o7777, umask, rdev };
            let result = self.verbs.make(caller(request), InodeId(parent.0), name.as_bytes(), new);
            self.reply_entry("mknod", parent, result, reply);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.guard_change("mkdir", reply, |reply| {
            let new = NewInode { kind: FileKind::Directory, mode: mode & 0o7777, umask, rdev: 0 };
            let result = self.verbs.make(caller(request), InodeId(parent.0), name.as_bytes(), new);
            self.reply_entry("mkdir", parent, result, reply);
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guard_change("unlink", reply, |reply| {
            let result = self.verbs.unlink(InodeId(parent.0), name.as_bytes());
            self.reply_empty("unlink", parent, result, reply);
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guard_change("rmdir", reply, |reply| {
            let result = self.verbs.rmdir(InodeId(parent.0), name.as_bytes());
            self.reply_empty("rmdir", parent, result, reply);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.guard_change("symlink", reply, |reply| {
            let target = target.as_os_str().as_bytes();
            let result = self.verbs.symlink(caller(request), InodeId(parent.0), name.as_bytes(), target);
            self.reply_entry("symlink", parent, result, reply);
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.guard_change("rename", reply, |reply| {
            let Some(mode) = rename_mode(flags) else {
                return reply.error(Errno::EINVAL);
            };
            let pin = match mode {
                RenameMode::Replace => {
                    self.pins.pin_target(&*self.verbs, InodeId(new_parent.0), new_name.as_bytes())
                }
                RenameMode::NoReplace | RenameMode::Exchange => None,
            };
            let result = self.verbs.rename(
                InodeId(parent.0),
                name.as_bytes(),
                InodeId(new_parent.0),
                new_name.as_bytes(),
                mode,
            );
            if let (Some(ino), Err(_)) = (pin, &result) {
                self.pins.unpin(&*self.verbs, ino);
            }
            self.reply_empty("rename", parent, result, reply);
        });
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.guard_change("link", reply, |reply| {
            let result = self.verbs.link(InodeId(ino.0), InodeId(parent.0), name.as_bytes());
            self.reply_entry("link", parent, result, reply);
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.guard("open", || {
            let truncate = flags.0 & O_TRUNC != 0;
            if truncate && self.health.panicked() {
                return reply.error(Errno::EIO);
            }
            match self.verbs.open_inode(caller(request), InodeId(ino.0), truncate) {
                Ok(()) => {
                    // What is read through this handle may come from the kernel's cache.
                    self.note_access("open", ino, self.access.of_file(flags.0));
                    reply.opened(FileHandle(0), self.open_flags());
                }
                Err(FsError::NotFound) => reply.error(Errno::ESTALE),
                Err(error) => reply.error(self.errno("open", ino, &error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        self.guard_change("create", reply, |reply| {
            let caller = caller(request);
            // The kernel holds the directory until it has our answer: nobody can remove the name in between.
            let new = NewInode { kind: FileKind::File, mode: mode & 0o7777, umask, rdev: 0 };
            let created = self
                .verbs
                .make(caller, InodeId(parent.0), name.as_bytes(), new)
                .and_then(|attr| self.verbs.open_inode(caller, attr.ino, false).map(|()| attr));
            match created {
                Ok(attr) => reply.created(
                    &CACHE_TIME,
                    &convert::file_attr(&attr),
                    Generation(attr.generation),
                    FileHandle(0),
                    self.open_flags(),
                ),
                Err(error) => reply.error(self.errno("create", parent, &error)),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.guard("read", || {
            READ_BUF.with_borrow_mut(|buf| {
                if buf.len() < size as usize {
                    *buf = AlignedBuf::new(size as usize);
                }
                match self.verbs.read_large(InodeId(ino.0), offset, size as usize, buf) {
                    Ok(count) => {
                        self.note_access("read", ino, self.access.of_file(flags.0));
                        reply.data(&buf[..count]);
                    }
                    Err(error) => reply.error(self.errno("read", ino, &error)),
                }
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.guard_change("write", reply, |reply| {
            match self.verbs.write(caller(request), InodeId(ino.0), offset, data) {
                // At most `data.len()`, which a request's 32-bit size has given.
                Ok(written) => reply.written(written.min(data.len()) as u32),
                Err(error) => reply.error(self.errno("write", ino, &error)),
            }
        });
    }

    // ENOSYS means "close() needs no message, ever": nothing happens at close. The kernel still writes out pages
    // dirtied through mmap before it would have asked.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.guard_change("release", reply, |reply| {
            let result = self.verbs.release_inode(InodeId(ino.0));
            self.reply_empty("release", ino, result, reply);
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fsync_inode("fsync", ino, reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fsync_inode("fsyncdir", ino, reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.opendir_without_message {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, cookie: u64, mut reply: ReplyDirectory) {
        self.guard("readdir", || {
            let result = self.verbs.readdir(InodeId(ino.0), cookie, &mut |entry| {
                let name = OsStr::from_bytes(&entry.name);
                !reply.add(INodeNo(entry.ino.0), entry.cookie, convert::file_type(entry.kind), name)
            });
            match result {
                Ok(()) => {
                    self.note_access("readdir", ino, self.access.of_directory());
                    reply.ok();
                }
                Err(error) => reply.error(self.errno("readdir", ino, &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.guard("readdirplus", || match self.fill_plus(InodeId(ino.0), cookie, &mut reply) {
            Ok(()) => {
                self.note_access("readdirplus", ino, self.access.of_directory());
                reply.ok();
            }
            Err(error) => reply.error(self.errno("readdirplus", ino, &error)),
        });
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.guard("statfs", || match self.verbs.statfs() {
            Ok(space) => {
                let free = space.free_bytes / STATFS_BLOCK_BYTES;
                reply.statfs(
                    space.total_bytes / STATFS_BLOCK_BYTES,
                    free,
                    free,
                    // Inodes are made out of free space: as many more as there are free blocks.
                    space.files.saturating_add(free),
                    free,
                    STATFS_BLOCK_BYTES as u32,
                    NAME_BYTES_MAX as u32,
                    STATFS_BLOCK_BYTES as u32,
                );
            }
            Err(error) => reply.error(self.errno("statfs", ino, &error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.guard_change("setxattr", reply, |reply| {
            let Some(mode) = xattr_mode(flags) else {
                return reply.error(Errno::EINVAL);
            };
            let result = self.verbs.setxattr(caller(request), InodeId(ino.0), name.as_bytes(), value, mode);
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.errno("setxattr", ino, &error)),
            }
        });
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.guard("getxattr", || {
            let result = self.verbs.getxattr(InodeId(ino.0), name.as_bytes());
            self.reply_xattr("getxattr", ino, size, result, reply);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.guard("listxattr", || {
            // As elsewhere, only root is told of these; the kernel refuses to read them out to others by itself.
            let hidden = |name: &Vec<u8>| request.uid() != 0 && name.starts_with(b"trusted.");
            let result = self.verbs.listxattr(InodeId(ino.0)).map(|names| {
                let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
                for name in names.into_iter().filter(|name| !hidden(name)) {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                list
            });
            self.reply_xattr("listxattr", ino, size, result, reply);
        });
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.guard_change("removexattr", reply, |reply| {
            match self.verbs.removexattr(InodeId(ino.0), name.as_bytes()) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(self.errno("removexattr", ino, &error)),
            }
        });
    }

    // Pages dirtied through mmap that the kernel has not sent yet are not seen; msync(2) sends them.
    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.guard("lseek", || {
            let (Ok(offset), Some(to)) = (u64::try_from(offset), seek_to(whence)) else {
                return reply.error(Errno::EINVAL);
            };
            match self.verbs.seek(InodeId(ino.0), offset, to) {
                Ok(found) => match found.map(i64::try_from) {
                    Some(Ok(at)) => reply.offset(at),
                    _ => reply.error(Errno::ENXIO),
                },
                Err(error) => reply.error(self.errno("lseek", ino, &error)),
            }
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.guard_change("fallocate", reply, |reply| {
            let Some(how) = allocate(mode) else { return reply.error(Errno::EOPNOTSUPP) };
            let result = self.verbs.fallocate(caller(request), InodeId(ino.0), offset, length, how);
            self.reply_empty("fallocate", ino, result, reply);
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.guard_change("copy_file_range", reply, |reply| {
            let (from, to) = ((InodeId(ino.0), offset), (InodeId(ino_out.0), offset_out));
            match self.verbs.copy_range(caller(request), from, to, len.min(COPY_BYTES_MAX)) {
                Ok(copied) => reply.written(copied.min(COPY_BYTES_MAX) as u32),
                Err(error) => reply.error(self.errno("copy_file_range", ino, &error)),
            }
        });
    }

    // What follows does not exist yet. ENOSYS makes the kernel fall back (and not ask again): it checks access itself.

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: nothing is agreed on with the kernel that this version of fuser or our promises cannot stand. Method: the
    // list of what is asked for.
    #[test]
    fn dangerous_capabilities_are_not_asked_for() {
        for (capability, why) in [
            (InitFlags::FUSE_SETXATTR_EXT, "fuser panics on the longer request"),
            (InitFlags::FUSE_WRITEBACK_CACHE, "the kernel would accept writes that have no space"),
        ] {
            assert!(!CAPABILITIES.contains(&capability), "{capability:?}: {why}");
        }
    }
}
