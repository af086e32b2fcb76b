//! What is under a loop device, and which loop devices have a file: one file under two names must not be opened as two.
//!
//! The kernel tells a path (which may lead elsewhere by now, be gone, or belong to another mount namespace) and the number of
//! the file: a path counts only if it leads to that number. Best effort, never an error: without /sys, or without permission
//! to open a device, there is nothing to be found.
//! Must not know: locks.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::ioctl::{Getter, ioctl, opcode};

/// Loop devices on loop devices that are gone down, at most. The kernel refuses circles.
const DEPTH_MAX: usize = 16;
/// Loop devices looked at, at most.
const DEVICES_MAX: usize = 4_096;

/// `LOOP_GET_STATUS64`: what a loop device has under it.
const LOOP_GET_STATUS64: rustix::ioctl::Opcode = opcode::none(b'L', 5);

/// `struct loop_info64` of linux/loop.h, 232 bytes, as far as it is of use here.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    _rest: [u64; 27],
}

/// A file of this system, whatever its name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Number of the filesystem's device.
    pub device: u64,
    /// Number in there.
    pub inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// What is at the bottom of a block device.
pub(super) enum Bottom {
    /// No file.
    Device,
    /// This one, open for reading, under this loop device (its directory in /sys).
    File(File, PathBuf, PathBuf),
    /// A file that cannot be opened, under this loop device.
    OutOfReach(FileId, PathBuf),
}

/// A loop device that has a file under it.
struct LoopDevice {
    /// Its directory in /sys.
    directory: PathBuf,
    /// What the kernel calls the file.
    file_path: PathBuf,
}

impl LoopDevice {
    /// The loop device at `directory` of /sys. `None`: it is something else, or has nothing under it.
    fn at(directory: PathBuf) -> Option<LoopDevice> {
        let mut path = fs::read(directory.join("loop/backing_file")).ok()?;
        // The line's end; a name may have newlines of its own.
        path.pop_if(|byte| *byte == b'\n');
        Some(LoopDevice { directory, file_path: PathBuf::from(OsString::from_vec(path)) })
    }

    /// The loop device with this number, or that a partition with this number is on.
    fn of_number(number: u64) -> Option<LoopDevice> {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let mut directory = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        if directory.join("partition").exists() {
            directory.pop();
        }
        LoopDevice::at(directory)
    }

    /// The device itself, open for reading.
    fn open(&self) -> Option<(File, PathBuf)> {
        let node = Path::new("/dev").join(self.directory.file_name()?);
        let number = fs::read_to_string(self.directory.join("dev")).ok()?;
        let (major, minor) = number.trim_end().split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let file =
            open(&node, |metadata| metadata.file_type().is_block_device() && metadata.rdev() == number)?;
        Some((file, node))
    }
}

/// Opens what is at `path` for reading if it is what is meant, without waiting for anybody.
fn open(path: &Path, is_meant: impl Fn(&Metadata) -> bool) -> Option<File> {
    // Opening can have effects of its own: it is looked at before, and again because it may be another by then.
    fs::metadata(path).ok().filter(&is_meant)?;
    let flags = (OFlags::NOCTTY | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok().filter(&is_meant)?;
    Some(file)
}

/// The number of the file under a loop device or a partition of one.
fn file_under(device: &File) -> Option<FileId> {
    // SAFETY: LOOP_GET_STATUS64 writes one loop_info64 through its argument, which is as large as what this getter provides and
    // may hold any bytes. The caller has made sure that it is a loop device, so that no other driver gets this number.
    let info: LoopInfo = unsafe { ioctl(device.as_fd(), Getter::<LOOP_GET_STATUS64, _>::new()) }.ok()?;
    Some(FileId { device: info.device, inode: info.inode })
}

/// What is under the block device that is open as `device`, through as many loop devices as there are.
pub(super) fn bottom(device: &File) -> Bottom {
    let mut above = None;
    for _ in 0..DEPTH_MAX {
        let device: &File = above.as_ref().unwrap_or(device);
        let is_loop = device
            .metadata()
            .ok()
            .filter(|metadata| metadata.file_type().is_block_device())
            .and_then(|metadata| LoopDevice::of_number(metadata.rdev()));
        let Some(found) = is_loop else { return Bottom::Device };
        let Some(id) = file_under(device) else { return Bottom::Device };
        let Some(file) = open(&found.file_path, |metadata| FileId::of(metadata) == id) else {
            return Bottom::OutOfReach(id, found.directory);
        };
        if file.metadata().is_ok_and(|metadata| metadata.file_type().is_file()) {
            return Bottom::File(file, found.file_path, found.directory);
        }
        above = Some(file);
    }
    Bottom::Device
}

/// A loop device over a file, open for reading.
pub(super) struct Over {
    pub file: File,
    pub path: PathBuf,
    /// The file cannot be found by the name that the kernel tells.
    pub is_hidden: bool,
}

/// The loop devices that have this file under them, but not the one at `except` of /sys.
pub(super) fn devices_over(id: FileId, except: Option<&Path>) -> Vec<Over> {
    let Ok(directories) = fs::read_dir("/sys/block") else { return Vec::new() };
    directories
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"loop"))
        .take(DEVICES_MAX)
        .filter_map(|entry| LoopDevice::at(fs::canonicalize(entry.path()).ok()?))
        .filter(|device| Some(device.directory.as_path()) != except)
        .filter_map(|device| {
            let is_hidden = match fs::metadata(&device.file_path) {
                Ok(metadata) if FileId::of(&metadata) == id => false,
                // Most are over other files; these are not opened, because a device that is open cannot be taken away.
                Ok(_) => return None,
                Err(_) => true,
            };
            let (file, path) = device.open()?;
            (file_under(&file) == Some(id)).then_some(Over { file, path, is_hidden })
        })
        .collect()
}

/// The regular file that what is stored at `path` is in: the file itself, or the one under a loop device. Two paths with the
/// same answer are one storage. `None`: there is none, or it cannot be told.
#[must_use]
pub fn file_of_storage(path: &Path) -> Option<FileId> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_file() {
        return Some(FileId::of(&metadata));
    }
    let device = open(path, |metadata| metadata.file_type().is_block_device())?;
    match bottom(&device) {
        Bottom::Device => None,
        Bottom::File(file, ..) => Some(FileId::of(&file.metadata().ok()?)),
        Bottom::OutOfReach(id, _) => Some(id),
    }
}
