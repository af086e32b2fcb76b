//! Opening, creating and measuring a file device.
//!
//! Order: open without changing anything, lock, then resize or use. A file that somebody else has locked is
//! never changed, not even its size.
//! Locks: a writer takes an exclusive `flock`, a reader a shared one, on the file under a loop device too; a writer of a
//! block device also opens it with `O_EXCL`, which the kernel refuses while it is mounted or otherwise claimed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};
use rustix::process::{Resource, getrlimit};

use super::FileId;
use super::lock::{self, LOCK_ATTEMPTS, LOCK_PAUSE, Lock, locked_error};
use super::state::Origin;
use super::uring::RingPool;
use super::{Backend, FileDevice, FileOptions, FlushTurn, OpenMode};
use crate::error::Operation;
use crate::{ALIGN_BYTES, AlignedBuf, Counters, DeviceError, Process};

/// `BLKGETSIZE64`: size of a block device in bytes.
const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
/// `BLKROGET`: whether a block device is read-only. Opening it for writing may work all the same.
const BLKROGET: rustix::ioctl::Opcode = opcode::none(0x12, 94);
/// `BLKDISCARD`: discard [offset, length].
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Opens `path`; a claimed block device when it is free in a moment. A process that another thread is starting has a copy of what
/// claims it until its program begins, and so have requests in flight of one that was killed, which cannot be let go of
/// otherwise: it is asked for as often as a lock before it counts as claimed by somebody else. One that a living process has locked
/// for itself alone is not waited for.
pub(super) fn open_unclaimed(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    for _ in 1..LOCK_ATTEMPTS {
        match options.open(&path) {
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::BUSY)
                    && !lock::is_had_alone(std::fs::metadata(&path)) =>
            {
                std::thread::sleep(LOCK_PAUSE);
            }
            result => return result,
        }
    }
    options.open(path)
}

impl FileDevice {
    /// Opens `path`. Errors as [`FileDevice::open`].
    pub fn open_with(
        path: impl AsRef<Path>,
        mode: OpenMode,
        options: FileOptions,
    ) -> Result<Self, DeviceError> {
        let path = path.as_ref().to_path_buf();
        let name = path.display().to_string();
        let os_error = |error: io::Error| DeviceError::from_os(Operation::Open, &name, 0, 0, &error);
        let writable = matches!(mode, OpenMode::ReadWrite | OpenMode::Create { .. });
        if let OpenMode::Create { size_bytes } = mode {
            require_size_allowed(&path, size_bytes)?;
        }

        let (is_block_device, creates) = match (std::fs::metadata(&path), mode) {
            (Ok(metadata), _) => {
                let file_type = metadata.file_type();
                if !file_type.is_file() && !file_type.is_block_device() {
                    let text = "it is neither a regular file nor a block device".to_owned();
                    return Err(DeviceError::Unsupported { device: name, text });
                }
                if matches!(mode, OpenMode::Create { .. }) {
                    if !options.reuse_existing {
                        return Err(DeviceError::AlreadyExists { device: name });
                    }
                    if file_type.is_block_device() {
                        let text = "a block device cannot be created".to_owned();
                        return Err(DeviceError::Unsupported { device: name, text });
                    }
                }
                (file_type.is_block_device(), false)
            }
            (Err(error), OpenMode::Create { .. }) if error.kind() == io::ErrorKind::NotFound => (false, true),
            (Err(error), _) => return Err(os_error(error)),
        };

        let mut open_options = OpenOptions::new();
        // What is in a pool must not be readable by those who may not read the files in it.
        open_options.read(true).write(writable).create_new(creates).mode(0o600);
        let exclusive = if is_block_device && writable { OFlags::EXCL } else { OFlags::empty() };
        open_options.custom_flags((exclusive | OFlags::NOCTTY).bits().cast_signed());
        let file = open_unclaimed(&open_options, &path).map_err(|error| match error.raw_os_error() {
            Some(errno) if errno == Errno::BUSY.raw_os_error() => locked_error(&path, None),
            _ => os_error(error),
        })?;
        let locks = lock::take(&file, &path, mode, is_block_device)?;
        if let OpenMode::Create { size_bytes } = mode {
            // While the lock was waited for it may have got another name, with something in it that is to stay.
            let named = std::fs::metadata(&path);
            let is_named = named.and_then(|named| Ok(FileId::of(&named) == FileId::of(&file.metadata()?)));
            if !is_named.unwrap_or(false) {
                return Err(DeviceError::AlreadyExists { device: name });
            }
            let made =
                file.set_len(size_bytes).and_then(|()| file.sync_all()).and_then(|()| sync_parent(&path));
            made.map_err(|error| {
                if creates {
                    // Nobody else has seen it: it is ours, new and locked. Failing to remove it adds nothing.
                    let _ = std::fs::remove_file(&path);
                }
                os_error(error)
            })?;
        }
        FileDevice::on(file, locks, path, is_block_device, writable, options)
    }

    /// The device that is open as `file`, whose locks are taken.
    pub(super) fn on(
        file: File,
        locks: Vec<Lock>,
        path: PathBuf,
        is_block_device: bool,
        writable: bool,
        options: FileOptions,
    ) -> Result<Self, DeviceError> {
        let name = path.display().to_string();
        let os_error = |error: io::Error| DeviceError::from_os(Operation::Open, &name, 0, 0, &error);
        if is_block_device && writable && block_is_read_only(file.as_fd()).map_err(|e| os_error(e.into()))? {
            let text = "the device is read-only".to_owned();
            return Err(DeviceError::NotPermitted { operation: Operation::Open, device: name, text });
        }
        let len_bytes = if is_block_device {
            block_size_bytes(file.as_fd()).map_err(|errno| os_error(errno.into()))?
        } else {
            file.metadata().map_err(os_error)?.len()
        };
        let size_bytes = len_bytes - len_bytes % ALIGN_BYTES as u64;
        if writable && !is_block_device {
            require_size_allowed(&path, size_bytes)?;
        }
        let direct = options.direct && set_direct(&file, size_bytes).map_err(os_error)?;
        if options.direct && !direct {
            tracing::info!(device = %name, "no direct I/O here: using the page cache");
        }
        let rings = match options.backend {
            Some(Backend::Pread) => None,
            wanted => match RingPool::new() {
                Ok(rings) => Some(rings),
                Err(error) if wanted.is_some() => {
                    let text = format!("io_uring is not available: {error}");
                    return Err(DeviceError::Unsupported { device: name, text });
                }
                Err(error) => {
                    tracing::info!(device = %name, %error, "no io_uring here: using pread and pwrite");
                    None
                }
            },
        };
        let flush_turns = flush_turns(&file, &path, is_block_device);
        let origin = Arc::new(Origin::of(&file, &path));
        let counters = Counters::new();
        let lock_lost = AtomicBool::new(false);
        Ok(Self {
            flush_turns,
            file,
            locks,
            lock_lost,
            process: Process::current(),
            path,
            origin,
            size_bytes,
            is_block_device,
            writable,
            direct,
            rings,
            counters,
            patience_ms: AtomicU64::new(0),
        })
    }
}

/// Refuses a file of which this process may not write the end: the first write there would fail, long after others, or end the process
/// (SIGXFSZ).
pub(super) fn require_size_allowed(path: &Path, size_bytes: u64) -> Result<(), DeviceError> {
    match getrlimit(Resource::Fsize).current {
        Some(limit_bytes) if limit_bytes < size_bytes => Err(DeviceError::Unsupported {
            device: path.display().to_string(),
            text: format!(
                "of its {size_bytes} bytes this process may write to the first {limit_bytes} only (RLIMIT_FSIZE); raise that limit \
                 (ulimit -f unlimited, or LimitFSIZE=infinity in the unit of a service) and try again"
            ),
        }),
        _ => Ok(()),
    }
}

/// Whether a flush through any open file of a file covers what was written through all of them: so the kernel's own local
/// filesystems do. Behind FUSE or a network each open file may have a queue of its own.
fn flushes_by_inode(file: &File) -> bool {
    // ext2 to 4, XFS, btrfs, F2FS, tmpfs (linux/magic.h).
    const KNOWN: [i64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    rustix::fs::fstatfs(file).is_ok_and(|stat| KNOWN.contains(&(stat.f_type & 0xffff_ffff)))
}

/// Two flushes may overlap, each through an open file of its own. Reading is enough to flush. Without a second open file
/// (the path may lead elsewhere by now, or /proc may be missing), and where one does not cover what was written through
/// another, they take turns.
fn flush_turns(file: &File, path: &Path, is_block_device: bool) -> Vec<FlushTurn> {
    let mut turns = vec![FlushTurn(Mutex::new(None))];
    if !is_block_device && !flushes_by_inode(file) {
        return turns;
    }
    let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).or_else(|_| File::open(path));
    if let Ok(again) = again
        && is_same(file, &again)
    {
        turns.push(FlushTurn(Mutex::new(Some(again))));
    }
    turns
}

/// Whether both are known to be the same file or block device.
pub(super) fn is_same(one: &File, other: &File) -> bool {
    let of = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino(), metadata.rdev()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// A new file's name is durable only when its directory is.
fn sync_parent(path: &Path) -> io::Result<()> {
    open_parent(path)?.sync_all()
}

/// The directory that a path ends in.
pub(super) fn open_parent(path: &Path) -> io::Result<File> {
    File::open(match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    })
}

/// Switches `file` to direct I/O and tries it on the first block. `false`: the filesystem does not have it.
fn set_direct(file: &File, size_bytes: u64) -> io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    if size_bytes == 0 {
        return Ok(true);
    }
    match file.read_at(&mut AlignedBuf::new(ALIGN_BYTES), 0) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            rustix::fs::fcntl_setfl(file, flags)?;
            Ok(false)
        }
        // A first block that cannot be read says nothing about direct I/O; whoever needs it gets the error.
        _ => Ok(true),
    }
}

pub(super) fn block_size_bytes(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    // SAFETY: BLKGETSIZE64 writes one u64 through its argument, which is what this getter provides.
    unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }
}

fn block_is_read_only(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: BLKROGET writes one int through its argument, which is what this getter provides.
    unsafe { ioctl(fd, Getter::<BLKROGET, i32>::new()) }.map(|read_only| read_only != 0)
}

/// Discards `[offset, offset + len_bytes)` of a block device.
pub(super) fn block_discard(fd: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64 (offset and length) through its argument, which is what this setter
    // provides; the range was checked against the device's size by the caller.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len_bytes])) }
}
