//! Subvolumes, snapshots and clones, by path.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::error::{Fault, Reason, Result, path_buf};
use crate::filesystem::Filesystem;
use crate::metadata::system_time;
use crate::path::{AsPath, Last, Place, find, with_existing};

/// Permission bits of the roots of subvolumes that are made.
const ROOT_MODE: u32 = 0o755;

/// How a snapshot is made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotOptions {
    read_only: bool,
    sync: bool,
}

impl SnapshotOptions {
    /// A snapshot that can be written to, and is durable with the next [`Filesystem::sync`], or a sync of a file in it or of the
    /// directory that it is in. Before, a crash may remove it, as a whole, also where a later sync of something else has made
    /// later changes durable.
    pub fn new() -> SnapshotOptions {
        SnapshotOptions::default()
    }
    /// Whether nothing in it can be changed, ever.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> SnapshotOptions {
        self.read_only = read_only;
        self
    }
    /// Whether it is durable, with all that is in it, when the call returns.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> SnapshotOptions {
        self.sync = sync;
        self
    }
}

/// A subvolume, as [`Filesystem::subvolumes`] lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Subvolume {
    /// Its number, which no other ever gets.
    pub id: u64,
    /// The number of the one it is in; `None` for the root of the filesystem, which is a subvolume too.
    pub parent: Option<u64>,
    /// The number of the one it is a snapshot of (which may be gone); `None` if it was made empty.
    pub origin: Option<u64>,
    /// Where it is.
    pub path: PathBuf,
    /// Whether nothing in it can be changed.
    pub read_only: bool,
    /// When it was made; not known of the root.
    pub created: Option<SystemTime>,
    /// Its universal name.
    pub uuid: [u8; 16],
}

/// The directory and the name of what is to be made at `place`.
fn free<'a>(place: &'a Place<'_>) -> std::result::Result<&'a [u8], Fault> {
    if place.found.is_some() {
        return Err(Reason::Exists.into());
    }
    place.entry()
}

/// What has failed that makes something new at the second path.
fn of_new(error: varve_fs::FsError) -> Fault {
    let taken = matches!(error, varve_fs::FsError::Exists);
    let fault = Fault::from(error);
    if taken { fault.in_second() } else { fault }
}

impl Filesystem {
    /// Makes an empty subvolume: a directory of which snapshots can be taken. Files cannot be renamed or linked across its
    /// border; the subvolume itself can be renamed, change places with another one ([`Filesystem::exchange`]), and is removed with
    /// [`Filesystem::delete_subvolume`], or empty with [`Filesystem::remove_dir`]. [`crate::Metadata::is_subvolume`] tells one.
    ///
    /// There are numbers for 2^20 subvolumes; when all are taken this and [`Filesystem::snapshot`] say [`Reason::Refused`]. The number of one
    /// that was deleted, and with it the inode numbers in it, is another's again when there are no others: after 65,536 more have been
    /// deleted, and not while a file or directory in it is open, or while a [`crate::Diff`] or a [`Filesystem::remove_dir_all`] is under way.
    pub fn create_subvolume(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("create the subvolume", path, |fs| {
            let place = find(fs, path, Last::Entry)?;
            fs.create_subvolume(self.caller(), place.parent, free(&place)?, ROOT_MODE)?;
            Ok(())
        })
    }

    /// Makes a snapshot of the subvolume `source` (or, with "/", of the whole filesystem): another subvolume, `dest`, that
    /// shows what the source shows now, but for the subvolumes in it. One small record, whatever is in the source or waits
    /// in memory, which is written for both afterwards. From then on each side goes its own way and pays for what it changes.
    /// Of how many there can be [`Filesystem::create_subvolume`] tells.
    ///
    /// [`Reason::NotDurable`] says that it is there, and not durable as [`SnapshotOptions::sync`] wants it; after any other error there is none.
    pub fn snapshot(&self, source: impl AsPath, dest: impl AsPath, options: SnapshotOptions) -> Result<()> {
        let (source, dest) = (source.as_path_bytes(), dest.as_path_bytes());
        self.run_two("take a snapshot of", source, dest, |fs| {
            with_existing(fs, source, Last::Follow, |attr| {
                let place = find(fs, dest, Last::New).map_err(Fault::in_second)?;
                let name = free(&place).map_err(Fault::in_second)?;
                fs.snapshot(attr.ino, place.parent, name, options.read_only, options.sync).map_err(of_new)?;
                Ok(())
            })
        })
    }

    /// Deletes a subvolume, with all that is in it. Refused with [`Reason::NotEmpty`] if another subvolume is in it. What is
    /// open in it fails with [`Reason::SubvolumeDeleted`] from then on. Space that nothing else shares comes back in the
    /// background.
    pub fn delete_subvolume(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("delete the subvolume", path, |fs| {
            let place = find(fs, path, Last::Entry)?;
            place.existing()?;
            fs.delete_subvolume(place.parent, place.entry()?)?;
            Ok(())
        })
    }

    /// All subvolumes, the root first, then by age. Reads the directories on the way to each. What is made, moved or deleted
    /// meanwhile is listed or not, and by its old path or its new one.
    pub fn subvolumes(&self) -> Result<Vec<Subvolume>> {
        self.run("list the subvolumes of", b"/", |fs| {
            let infos = fs.list_subvolumes()?.into_iter();
            Ok(infos
                .map(|info| Subvolume {
                    id: info.id,
                    parent: info.parent,
                    origin: info.origin,
                    path: path_buf(&info.path),
                    read_only: info.read_only,
                    created: info.created.map(system_time),
                    uuid: info.uuid,
                })
                .collect())
        })
    }

    /// Makes a clone of the file `source`: another file, `dest`, that shares all its data until either is written to. One
    /// small record, however large the file. Works across subvolumes and from read-only snapshots.
    pub fn clone_file(&self, source: impl AsPath, dest: impl AsPath) -> Result<()> {
        let (source, dest) = (source.as_path_bytes(), dest.as_path_bytes());
        self.run_two("clone", source, dest, |fs| {
            with_existing(fs, source, Last::Follow, |attr| {
                let place = find(fs, dest, Last::New).map_err(Fault::in_second)?;
                let name = free(&place).map_err(Fault::in_second)?;
                if place.directory {
                    return Err(Fault::from(Reason::NotFound).in_second());
                }
                fs.clone_file(self.caller(), attr.ino, place.parent, name).map_err(of_new)?;
                Ok(())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use varve_engine::EngineError;
    use varve_fs::FsError;

    use super::*;

    // Goal: whoever is told that a snapshot is not durable is not told that there is none. Method: the error that the filesystem gives,
    // for a full pool and for one that has stopped, as the door makes it.
    #[test]
    fn a_snapshot_that_is_not_durable_is_said_to_be_there() {
        for (why, reason, kind) in [
            (EngineError::NoSpace, "no space is left in the pool", std::io::ErrorKind::StorageFull),
            (EngineError::Stopped("flush failed".into()), "flush failed", std::io::ErrorKind::Other),
        ] {
            let fault = of_new(FsError::NotDurable(Box::new(why.into())));
            let error = fault.on_two("take a snapshot of", b"/project", b"/before");
            assert!(matches!(error.reason(), Reason::NotDurable(_)), "{error:?}");
            assert_eq!(error.kind(), kind);
            let text = error.to_string();
            assert!(text.starts_with("\"/before\": the snapshot is there, but it is not durable"), "{text}");
            let advice = if kind == std::io::ErrorKind::Other {
                "and open it again"
            } else {
                "; sync makes it durable"
            };
            assert!(text.contains(reason) && text.contains(advice), "{text}");
        }
    }
}
