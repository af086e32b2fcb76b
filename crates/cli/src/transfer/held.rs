//! Something of a tree that is held open: what is done here is done to that, whatever has its name by then.
//!
//! The kernel takes few of these changes by a descriptor of what may not be opened, or has effects when it is, and all of them by the path
//! that /proc has for one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, StatVfs, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use varve_fs::FileKind;

use super::host::{self, HostStat, Xattr};

/// Longest value and longest list of names the kernel gives (XATTR_SIZE_MAX, XATTR_LIST_MAX).
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Attributes a pool can keep.
const NAMESPACES: [&[u8]; 5] =
    [b"user.", b"trusted.", b"security.", b"system.posix_acl_access", b"system.posix_acl_default"];
/// The owner needs these bits of a file to read and change its attributes.
const READ_AND_WRITE: u32 = 0o600;

/// Holds `name` in `dir`; of a symbolic link itself. Nothing is opened by that.
pub fn hold(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// What a descriptor holds.
pub struct Held<'a> {
    fd: BorrowedFd<'a>,
    path: String,
}

impl<'a> Held<'a> {
    /// Any descriptor does.
    pub fn of(fd: &'a OwnedFd) -> Held<'a> {
        Held { fd: fd.as_fd(), path: format!("/proc/self/fd/{}", fd.as_raw_fd()) }
    }

    /// Looks at it.
    pub fn stat(&self) -> Result<HostStat, Errno> {
        host::stat_of(self.fd)
    }

    /// What its filesystem says of its room.
    pub fn room(&self) -> Result<StatVfs, Errno> {
        rustix::fs::fstatvfs(self.fd)
    }

    /// Opens it to read it, leaving its access time alone where that is allowed.
    pub fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::open(&self.path, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => rustix::fs::open(&self.path, flags, Mode::empty()),
            result => result,
        }
    }

    /// Gives it to somebody.
    pub fn set_owner(&self, user: Uid, group: Gid) -> Result<(), Errno> {
        rustix::fs::chownat(self.fd, c"", Some(user), Some(group), AtFlags::EMPTY_PATH)
    }

    /// Sets its permission bits. A symbolic link has none.
    pub fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        if self.stat()?.kind == FileKind::Symlink {
            return Err(Errno::LOOP);
        }
        rustix::fs::chmod(&self.path, Mode::from_raw_mode(mode))
    }

    /// Sets its times.
    pub fn set_times(&self, times: &Timestamps) -> Result<(), Errno> {
        rustix::fs::utimensat(rustix::fs::CWD, &self.path, times, AtFlags::empty())
    }

    /// The extended attributes that a pool can keep, sorted, and how many others there are.
    pub fn xattrs(&self, room: &mut Vec<u8>) -> Result<(Vec<Xattr>, u64), Errno> {
        room.resize(XATTR_BYTES_MAX, 0);
        let len = match rustix::fs::listxattr(&self.path, &mut room[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => 0,
            Err(errno) => return Err(errno),
        };
        let (mut found, mut others) = (Vec::new(), 0);
        if len == 0 {
            return Ok((found, others));
        }
        let list = room[..len].to_vec();
        for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            if !NAMESPACES.iter().any(|namespace| name.starts_with(namespace)) {
                others += 1;
                continue;
            }
            match rustix::fs::getxattr(&self.path, name, &mut room[..]) {
                Ok(len) => found.push((name.to_vec(), room[..len].to_vec())),
                // Removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        found.sort();
        Ok((found, others))
    }

    /// Sets one attribute.
    pub fn set_xattr(&self, xattr: &Xattr) -> Result<(), Errno> {
        rustix::fs::setxattr(&self.path, &xattr.0[..], &xattr.1, XattrFlags::empty())
    }

    /// Removes one attribute.
    pub fn remove_xattr(&self, xattr: &[u8]) -> Result<(), Errno> {
        rustix::fs::removexattr(&self.path, xattr)
    }

    /// Reads or changes what needs permission to read or write it, also where its bits keep its owner out, who may change them: as they do
    /// from attributes `user.`, and from nothing else that an export gives.
    pub fn as_owner<T>(&self, mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        match call() {
            Err(Errno::ACCESS) => {
                let have = self.stat()?;
                let mode = have.mode | READ_AND_WRITE;
                if have.kind != FileKind::File || mode == have.mode {
                    return Err(Errno::ACCESS);
                }
                self.set_mode(mode).map_err(|_| Errno::ACCESS)?;
                // If this is killed now, the next export finds other bits and sets them.
                let done = call();
                let closed = self.set_mode(have.mode);
                done.and_then(|done| closed.map(|()| done))
            }
            result => result,
        }
    }
}
