//! What others have done to the regular file that a pool lies in, while it is open: it was deleted, cut, renamed, or something else
//! got its name. No read, write or flush notices: an open file lives on without a name, and goes with whoever has it open.
//!
//! The name is looked at from the directory that it was in at the opening, held open: a filesystem that is mounted above that
//! directory later, the pool's own perhaps, is not asked anything. So that the directory itself was renamed is no news.
//! Must not know: what is done about it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::{FileDevice, FileId};

/// What has become of an open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileState {
    /// It is where it was opened, as long as it was.
    InPlace,
    /// Its name leads nowhere, and it has another.
    Renamed {
        /// Where the kernel says it is, if it does.
        now: Option<PathBuf>,
    },
    /// Its name leads to something else, and it has another.
    Replaced {
        /// As above.
        now: Option<PathBuf>,
    },
    /// It is shorter than what is stored in it, or has been when somebody looked: what is written behind its end makes it as long as it was,
    /// with a hole.
    Cut {
        /// So long; the least that was seen.
        size_bytes: u64,
    },
    /// It has no name any more: with the last who has it open it is gone.
    Deleted {
        /// Something else has its name.
        is_name_taken: bool,
    },
}

/// How a file was when it was opened.
#[derive(Debug)]
pub(super) struct Origin {
    /// Its directory. `None`: that cannot be opened, and nothing is said of the name.
    directory: Option<File>,
    /// It had a name. One that is made without one is meant to go with its process, and there are filesystems that count no names.
    had_name: bool,
    /// The least length that was seen of one that was cut; `u64::MAX`: it was not.
    least_bytes: AtomicU64,
}

impl Origin {
    pub(super) fn of(file: &File, path: &Path) -> Origin {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = (OFlags::PATH | OFlags::DIRECTORY).bits().cast_signed();
        Origin {
            directory: File::options().read(true).custom_flags(flags).open(parent).ok(),
            had_name: file.metadata().is_ok_and(|metadata| metadata.nlink() > 0),
            least_bytes: AtomicU64::new(u64::MAX),
        }
    }
}

/// What a name leads to.
enum Named {
    Itself,
    Nothing,
    Other,
}

impl FileDevice {
    /// What has become of the file, of which the first `needed_bytes` are in use. `None`: it is a block device, or cannot be
    /// looked at. Costs three system calls that read and write nothing of it; they may wait for the filesystem that holds it.
    #[must_use]
    pub fn file_state(&self, needed_bytes: u64) -> Option<FileState> {
        let mut seen = self.state_now(needed_bytes)?;
        if matches!(seen, FileState::Cut { .. }) {
            // It stays known for good: one answer of a filesystem elsewhere is not enough.
            seen = self.state_now(needed_bytes)?;
        }
        if let FileState::Cut { size_bytes } = seen {
            self.origin.least_bytes.fetch_min(size_bytes, Relaxed);
        }
        Some(match (seen, self.origin.least_bytes.load(Relaxed)) {
            (deleted @ FileState::Deleted { .. }, _) => deleted,
            (_, size_bytes) if size_bytes < needed_bytes => FileState::Cut { size_bytes },
            (seen, _) => seen,
        })
    }

    fn state_now(&self, needed_bytes: u64) -> Option<FileState> {
        if self.is_block_device {
            return None;
        }
        let open = self.file.metadata().ok()?;
        let named = self.named(FileId::of(&open));
        let is_name_taken = matches!(named, Some(Named::Other));
        if self.origin.had_name && open.nlink() == 0 {
            return Some(FileState::Deleted { is_name_taken });
        }
        let now = match named {
            Some(Named::Nothing | Named::Other) => self.kernel_path(),
            _ => None,
        };
        // Over NFS a file that is deleted while it is open gets such a name, and loses it at its closing.
        let is_set_aside =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".nfs"));
        if now.as_ref().is_some_and(is_set_aside) {
            return Some(FileState::Deleted { is_name_taken });
        }
        if open.len() < needed_bytes {
            return Some(FileState::Cut { size_bytes: open.len() });
        }
        Some(match named {
            Some(Named::Nothing) => FileState::Renamed { now },
            Some(Named::Other) => FileState::Replaced { now },
            Some(Named::Itself) | None => FileState::InPlace,
        })
    }

    /// The number of the open file in this process: who may look into it finds the file as /proc/PID/fd/NUMBER, also without a name.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// What the name is now. `None`: that cannot be told.
    fn named(&self, id: FileId) -> Option<Named> {
        let (directory, name) = (self.origin.directory.as_ref()?, self.path.file_name()?);
        match rustix::fs::statat(directory, name, AtFlags::empty()) {
            Ok(found) if (FileId { device: found.st_dev, inode: found.st_ino }) == id => Some(Named::Itself),
            Ok(_) => Some(Named::Other),
            Err(Errno::NOENT) => Some(Named::Nothing),
            Err(_) => None,
        }
    }

    /// The path that the kernel knows the open file by; `None`: it had that, or there is no /proc.
    fn kernel_path(&self) -> Option<PathBuf> {
        let path: io::Result<PathBuf> = fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        path.ok().filter(|path| !path.as_os_str().as_bytes().ends_with(b" (deleted)"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{DeviceError, OpenMode};

    const MIB: u64 = 1 << 20;

    fn created(path: &Path) -> FileDevice {
        FileDevice::open(path, OpenMode::Create { size_bytes: 4 * MIB }).unwrap()
    }

    // Goal: each thing that can be done to an open file is told from the others, also after the file was opened once more for writing.
    // Method: a file of a name of its own for each: nothing, a growth, a rename and back, another
    // in its place beside it, a second name and the loss of the first, a deletion, and another moved over it.
    #[test]
    fn what_is_done_to_a_file_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (path, other) = (dir.join("pool"), dir.join("other"));
        let resize = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();

        let device = created(&path);
        let state = || device.file_state(4 * MIB).unwrap();
        assert_eq!(state(), FileState::InPlace);
        resize(5 * MIB);
        assert_eq!(state(), FileState::InPlace);
        fs::rename(&path, &other).unwrap();
        assert_eq!(state(), FileState::Renamed { now: Some(other.clone()) });
        fs::write(&path, "something else").unwrap();
        assert_eq!(state(), FileState::Replaced { now: Some(other.clone()) });
        fs::rename(&other, &path).unwrap();
        assert_eq!(state(), FileState::InPlace);
        fs::hard_link(&path, &other).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(state(), FileState::Renamed { now: None });
        fs::remove_file(&other).unwrap();
        assert_eq!(state(), FileState::Deleted { is_name_taken: false });
        fs::write(&path, "something else").unwrap();
        assert_eq!(state(), FileState::Deleted { is_name_taken: true });
        assert!(fs::metadata(format!("/proc/self/fd/{}", device.descriptor())).unwrap().len() == 5 * MIB);
        fs::remove_file(&path).unwrap();

        drop(created(&path));
        let reading = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
        fs::rename(&path, &other).unwrap();
        let writing = reading.reopen_for_writing().unwrap();
        fs::remove_file(&other).unwrap();
        for device in [&reading, &writing] {
            assert_eq!(device.file_state(4 * MIB), Some(FileState::Deleted { is_name_taken: false }));
        }
    }

    // Goal: what was cut stays cut, whatever is done to the file afterwards but to delete it, and for who needs what was cut off. Method: a
    // file that is cut, grown again, cut less, renamed, opened for writing and deleted.
    #[test]
    fn what_was_cut_stays_cut() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("pool"), dir.path().join("other"));
        drop(created(&path));
        let device = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
        let resize = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        let state = || device.file_state(4 * MIB).unwrap();
        let cut = FileState::Cut { size_bytes: 3 * MIB };
        for bytes in [3 * MIB, 4 * MIB, 4 * MIB - 4096, 5 * MIB] {
            resize(bytes);
            assert_eq!(state(), cut, "{bytes} bytes");
            assert_eq!(device.file_state(3 * MIB), Some(FileState::InPlace));
        }
        fs::rename(&path, &other).unwrap();
        assert_eq!(state(), cut);
        let writing = device.reopen_for_writing().unwrap();
        assert_eq!(writing.file_state(4 * MIB), Some(cut));
        fs::remove_file(&other).unwrap();
        assert_eq!(state(), FileState::Deleted { is_name_taken: false });
    }

    // Goal: a file that is made whole is in place when it has its name; one that never had a name is not called deleted. Method: both.
    #[test]
    fn a_file_without_a_name_was_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("whole");
        let made: Result<Arc<FileDevice>, DeviceError> = FileDevice::create_whole(&path, 4 * MIB, |_| Ok(()));
        assert_eq!(made.unwrap().file_state(4 * MIB), Some(FileState::InPlace));

        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let nameless = File::from(rustix::fs::memfd_create("pool", flags).unwrap());
        nameless.set_len(4 * MIB).unwrap();
        let link = PathBuf::from(format!("/proc/self/fd/{}", nameless.as_raw_fd()));
        let device = FileDevice::open(&link, OpenMode::ReadWrite).unwrap();
        assert_eq!(device.file_state(4 * MIB), Some(FileState::InPlace));
        assert_eq!(device.file_state(5 * MIB), Some(FileState::Cut { size_bytes: 4 * MIB }));
    }
}
