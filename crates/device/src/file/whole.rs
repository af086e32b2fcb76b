//! A new file that appears under its own name only when what is to be in it is whole: if power fails or the process is killed
//! before, the next attempt begins anew.
//!
//! It is made under another name, which belongs to whoever has the file that bears it locked: nobody else removes or renames
//! that. So of several who make the same file at once one goes on and the others are told:
//!
//! 1. The file is made, new, and locked. *Between the two another may lock it first and take it for one that is left (step 2):
//!    whoever gets a lock looks whether his file has the name, and begins anew if it has not.*
//! 2. Where the name is taken, what bears it is locked and, if it is what a killed attempt leaves, removed. Everything else
//!    stays as it is and is named: a link, a file with other names, somebody else's, one that others may read.
//! 3. Filled, still locked, the file gets its own name, over nothing. *If power fails before that is durable, there is one name
//!    or the other.*

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

use super::holder::describe_holder;
use super::open::{open_parent, require_size_allowed};
use super::{FileDevice, FileId, FileOptions, OpenMode, lock};
use crate::error::Operation;
use crate::{ALIGN_BYTES, DeviceError};

/// What is appended to the name of a file while it is being made.
const UNFINISHED: &str = ".creating";
/// How often it is begun anew because somebody else was quicker.
const ATTEMPTS: u32 = 16;

impl FileDevice {
    /// Makes the sparse file `path` of `size_bytes`, rounded down to whole blocks, with mode 0600, and lets `fill` fill it. It has
    /// that name, durably, when this returns without an error, and not before. What is given is still locked.
    ///
    /// Errors: [`DeviceError::AlreadyExists`] if there is anything at `path`; [`DeviceError::LockedBy`] if somebody else is
    /// making it; [`DeviceError::Unsupported`] if something else lies where it is to be made; those of [`FileDevice::open`]; what
    /// `fill` says. Nothing is left then.
    pub fn create_whole<E: From<DeviceError>>(
        path: &Path,
        size_bytes: u64,
        fill: impl FnOnce(Arc<FileDevice>) -> Result<(), E>,
    ) -> Result<Arc<FileDevice>, E> {
        require_size_allowed(path, size_bytes)?;
        let new = NewFile::of(path)?;
        let parent = open_parent(path).map_err(|error| new.os_error(&error))?;
        let device = new.begin(size_bytes - size_bytes % ALIGN_BYTES as u64)?;
        let named = fill(device.clone()).and_then(|()| Ok(new.rename(&device.file)?));
        if let Err(error) = named {
            new.remove(&new.unfinished, &device.file);
            return Err(error);
        }
        if let Err(error) = parent.sync_all() {
            new.remove(path, &device.file);
            return Err(new.os_error(&error).into());
        }
        Ok(device)
    }
}

/// A file that is to be made.
struct NewFile<'a> {
    path: &'a Path,
    /// Its name until it is whole.
    unfinished: PathBuf,
}

impl NewFile<'_> {
    fn of(path: &Path) -> Result<NewFile<'_>, DeviceError> {
        let Some(last) = path.file_name() else {
            let text = "its path does not end in a name".to_owned();
            return Err(DeviceError::Unsupported { device: path.display().to_string(), text });
        };
        let mut name = OsString::from(".");
        name.push(last);
        name.push(UNFINISHED);
        Ok(NewFile { path, unfinished: path.with_file_name(name) })
    }

    /// A new file of this size under the unfinished name, locked.
    fn begin(&self, size_bytes: u64) -> Result<Arc<FileDevice>, DeviceError> {
        for _ in 0..ATTEMPTS {
            if fs::symlink_metadata(self.path).is_ok() {
                return Err(self.exists());
            }
            let (file, is_new) = match self.open(true) {
                Ok(file) => (file, true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let Some(file) = self.open_left()? else { continue };
                    (file, false)
                }
                Err(error) => return Err(self.os_error(&error)),
            };
            let locks =
                lock::take(&file, self.path, OpenMode::ReadWrite, false).map_err(|error| match error {
                    DeviceError::LockedBy(_) => self.made_by(describe_holder(&self.unfinished, Some(&file))),
                    error => error,
                })?;
            // While the lock was waited for it may have got its own name, or been removed.
            if !is_at(&file, &self.unfinished) {
                continue;
            }
            if !is_new {
                self.require_left(&file.metadata().map_err(|error| self.os_error(&error))?)?;
                fs::remove_file(&self.unfinished).map_err(|error| self.os_error(&error))?;
                continue;
            }
            // Until what is unfinished has been removed again, should it come to that.
            let _locked = locks.clone();
            let kept = file.try_clone().map_err(|error| self.os_error(&error));
            let options = FileOptions::from_env();
            let device = kept.and_then(|kept| {
                let sized = file.set_len(size_bytes).and_then(|()| file.sync_all());
                sized.map_err(|error| self.os_error(&error))?;
                FileDevice::on(kept, locks, self.path.to_owned(), false, true, options)
            });
            if device.is_err() {
                self.remove(&self.unfinished, &file);
            }
            return device.map(Arc::new);
        }
        Err(self.made_by(None))
    }

    fn open(&self, create_new: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // What is in a pool must not be readable by those who may not read the files in it.
        options.read(true).write(true).create_new(create_new).mode(0o600);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed()).open(&self.unfinished)
    }

    /// What has the unfinished name, if it looks like what an attempt leaves. `None`: it is gone.
    fn open_left(&self) -> Result<Option<File>, DeviceError> {
        let gone = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(self.os_error(&error)),
        };
        match fs::symlink_metadata(&self.unfinished) {
            // Opening something else may have effects of its own.
            Ok(metadata) => self.require_left(&metadata)?,
            Err(error) => return gone(error),
        }
        self.open(false).map(Some).or_else(gone)
    }

    /// Refuses what no attempt of this user's leaves.
    fn require_left(&self, metadata: &Metadata) -> Result<(), DeviceError> {
        let why = match metadata.file_type() {
            kind if kind.is_symlink() => "is a symbolic link",
            kind if !kind.is_file() => "is no regular file",
            _ if metadata.nlink() > 1 => "has other names, too",
            // Removed just now.
            _ if metadata.nlink() == 0 => return Ok(()),
            _ if metadata.uid() != rustix::process::geteuid().as_raw() => "belongs to another user",
            _ if metadata.mode() & 0o7177 != 0 => {
                "is open to others, as what an interrupted creation leaves is not"
            }
            _ => return Ok(()),
        };
        let text = format!(
            "{:?} is in the way, where it is to be made: that {why}; remove it, or give it another name",
            self.unfinished
        );
        Err(DeviceError::Unsupported { device: self.path.display().to_string(), text })
    }

    /// Gives `file` its own name, where nothing may be.
    fn rename(&self, file: &File) -> Result<(), DeviceError> {
        if !is_at(file, &self.unfinished) {
            let text = format!("somebody has taken {:?} away while it was being made", self.unfinished);
            return Err(DeviceError::Unsupported { device: self.path.display().to_string(), text });
        }
        rename_new(&self.unfinished, self.path).map_err(|error| self.os_error(&error))
    }

    /// Takes a name away from `file`, if it has it. Whatever led here is the news, not what goes wrong now.
    fn remove(&self, name: &Path, file: &File) {
        if is_at(file, name) {
            let _ = fs::remove_file(name);
        }
    }

    fn exists(&self) -> DeviceError {
        DeviceError::AlreadyExists { device: self.path.display().to_string() }
    }

    fn made_by(&self, holder: Option<String>) -> DeviceError {
        let holder = holder.unwrap_or_else(|| "another process".to_owned());
        DeviceError::LockedBy(format!("{} is being made by {holder}", self.path.display()))
    }

    fn os_error(&self, error: &io::Error) -> DeviceError {
        DeviceError::from_os(Operation::Open, self.path.display().to_string(), 0, 0, error)
    }
}

/// Whether `file` has this name.
fn is_at(file: &File, name: &Path) -> bool {
    let named = fs::symlink_metadata(name).map(|named| FileId::of(&named));
    let opened = file.metadata().map(|opened| FileId::of(&opened));
    matches!((named, opened), (Ok(named), Ok(opened)) if named == opened)
}

/// Renames over nothing.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(io::Error::from) {
        // Filesystems that do not know the flag: the look before is all there is.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(from, to)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Barrier;

    use super::*;
    use crate::{AlignedBuf, Device};

    const MIB: u64 = 1 << 20;

    /// Makes something at a path, which may have to do with a file that is there.
    type Make<'a> = &'a dyn Fn(&Path, &Path);

    fn names(dir: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(name).collect();
        names.sort();
        names
    }

    fn leave(unfinished: &Path) {
        fs::write(unfinished, vec![7; 3 << 20]).unwrap();
        fs::set_permissions(unfinished, fs::Permissions::from_mode(0o600)).unwrap();
    }

    // Goal: what has the unfinished name and is not what a killed attempt leaves is neither followed nor filled nor removed, and is named.
    // Method: a link to a file and to nothing, a second name of a file, a file that others may read, a pipe, a directory, and
    // somebody else's file where this test may make one.
    #[test]
    fn what_is_in_the_way_stays() {
        let make: [(&str, Make<'_>); 7] = [
            ("symbolic link", &|at, other| symlink(other, at).unwrap()),
            ("symbolic link", &|at, other| symlink(other.with_file_name("nothing"), at).unwrap()),
            ("other names", &|at, other| fs::hard_link(other, at).unwrap()),
            ("open to others", &|at, other| {
                fs::copy(other, at).unwrap();
                fs::set_permissions(at, fs::Permissions::from_mode(0o666)).unwrap();
            }),
            ("no regular file", &|at, _| {
                rustix::fs::mknodat(CWD, at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            }),
            ("no regular file", &|at, _| fs::create_dir(at).unwrap()),
            ("another user", &|at, other| {
                fs::copy(other, at).unwrap();
                std::os::unix::fs::chown(at, Some(1001), None).unwrap();
            }),
        ];
        let count = if rustix::process::geteuid().is_root() { 7 } else { 6 };
        for (why, make) in &make[..count] {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            leave(&at("other"));
            make(&at(".pool.creating"), &at("other"));
            let made = FileDevice::create_whole(&at("pool"), MIB, |_| -> Result<(), DeviceError> {
                panic!("{why}: it is filled")
            });
            let error = made.map(drop).unwrap_err().to_string();
            let named = format!("{:?}", at(".pool.creating"));
            assert!(error.contains(&named) && error.contains(why), "{why}: {error}");
            assert_eq!(names(dir.path()), [".pool.creating", "other"], "{why}");
            assert!(fs::read(at("other")).unwrap() == [7; 3 << 20], "{why}: it is changed");
        }
    }

    // Goal: of what a killed attempt has left nothing is in the new file, which is its user's alone. Method: such a file.
    #[test]
    fn what_is_left_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (path, unfinished) = (dir.path().join("pool"), dir.path().join(".pool.creating"));
        leave(&unfinished);
        let left = File::open(&unfinished).unwrap();
        let made = FileDevice::create_whole(&path, 2 * MIB, |device| {
            let mut block = AlignedBuf::from_slice(&[1; 4096]);
            device.read_at(MIB, &mut block).map(|()| assert!(block.iter().all(|byte| *byte == 0)))
        });
        // It is locked until it is let go of.
        let refused = FileDevice::open(&path, OpenMode::ReadWrite).map(drop);
        assert!(matches!(refused, Err(DeviceError::LockedBy(_))), "{refused:?}");
        assert_eq!(made.unwrap().path(), path);
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.mode() & 0o7777), (2 * MIB, 0o600));
        assert_eq!(left.metadata().unwrap().nlink(), 0);
        assert_eq!(names(dir.path()), ["pool"]);
    }

    // Goal: what takes the unfinished name while a file is made gets no other name by that and is not removed. Method: it takes it
    // while the file is being filled, which works or not.
    #[test]
    fn what_is_not_locked_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (path, unfinished) = (dir.path().join("pool"), dir.path().join(".pool.creating"));
        for works in [false, true] {
            let made = FileDevice::create_whole(&path, MIB, |device| {
                fs::remove_file(&unfinished).unwrap();
                leave(&unfinished);
                if works { Ok(()) } else { Err(DeviceError::NotFound { device: device.name() }) }
            });
            let error = made.map(drop).unwrap_err().to_string();
            assert!(!works || error.contains(&format!("{unfinished:?}")), "{error}");
            assert_eq!(names(dir.path()), [".pool.creating"], "{works}");
            assert!(fs::read(&unfinished).unwrap() == [7; 3 << 20], "{works}");
            fs::remove_file(&unfinished).unwrap();
        }
    }

    // Goal: of several who make the same file at once, over what a killed attempt has left, one does, and the others are told that it
    // is there or being made. Method: threads that begin together, again and again, each with its number in the file.
    #[test]
    fn one_of_several_makes_it() {
        const THREADS: u8 = 4;
        for round in 0..100 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("pool");
            if round % 2 == 0 {
                leave(&dir.path().join(".pool.creating"));
            }
            let start = Barrier::new(THREADS.into());
            let make = |number: u8| {
                start.wait();
                FileDevice::create_whole(&path, MIB, |device| {
                    device.write_at(0, &AlignedBuf::from_slice(&[number; 4096]))
                })
            };
            let made: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..=THREADS).map(|number| scope.spawn(move || make(number))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let winner = made.iter().position(Result::is_ok).expect("somebody makes it") as u8 + 1;
            assert_eq!(fs::read(&path).unwrap()[0], winner);
            assert_eq!(names(dir.path()), ["pool"]);
            for error in made.into_iter().filter_map(|made| made.map(drop).err()) {
                let told = matches!(&error, DeviceError::AlreadyExists { .. })
                    || matches!(&error, DeviceError::LockedBy(who) if who.contains("is being made by "));
                assert!(told, "{error}");
            }
        }
    }
}
