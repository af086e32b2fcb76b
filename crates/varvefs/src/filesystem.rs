//! The verbs on paths.

use std::path::PathBuf;
use std::sync::Arc;

use crate::directory::{ReadDir, remove_tree};
use crate::error::{EXCHANGE, Error, Fault, Reason, Result, path_buf};
use crate::file::File;
use crate::metadata::{FileType, Flags, Metadata, Times};
use crate::open_options::OpenOptions;
use crate::path::{AsPath, Last, RETRIES_MAX, find, find_existing, with_existing};
use crate::pending::{Pending, place};
use crate::shared::Shared;
use crate::stats::StatFs;
use crate::verbs;

/// Permission bits of directories that are made.
const DIRECTORY_MODE: u32 = 0o755;

/// A filesystem of an open pool. Cheap to clone; all verbs take `&self` and may be called from many threads.
///
/// A verb that changes names or attributes has happened, whole, when it returns, and survives a crash after a sync of
/// anything later ([`Filesystem::snapshot`] needs a little more); a crash before leaves all or nothing of it. Symbolic links are followed except where a verb is about
/// the name itself (removing, renaming, linking).
#[derive(Clone)]
pub struct Filesystem {
    shared: Arc<Shared>,
    owner: (u32, u32),
}

impl Filesystem {
    pub(crate) fn new(shared: Arc<Shared>, owner: (u32, u32)) -> Filesystem {
        Filesystem { shared, owner }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn caller(&self) -> varve_fs::Caller {
        varve_fs::Caller { uid: self.owner.0, gid: self.owner.1 }
    }

    /// The same filesystem for another owner of what is made through it. Writing as anybody but user 0 takes set-id bits
    /// away. Permissions are not checked: whoever can open the pool can do everything.
    #[must_use]
    pub fn with_owner(&self, user: u32, group: u32) -> Filesystem {
        Filesystem { shared: self.shared.clone(), owner: (user, group) }
    }

    /// Runs a verb on a path.
    pub(crate) fn run<T>(
        &self,
        doing: &'static str,
        path: &[u8],
        verb: impl FnOnce(&varve_fs::Filesystem) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.shared.enter().and_then(|fs| verb(&fs)).map_err(|fault| fault.of_path().on(doing, path))
    }

    /// Runs a verb that opens the file at a path: again, if the subvolume that it was in is deleted before it is done.
    pub(crate) fn run_open<T>(
        &self,
        doing: &'static str,
        path: &[u8],
        verb: impl Fn() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..RETRIES_MAX {
            match verb() {
                Err(error) if *error.reason() == Reason::SubvolumeDeleted => {}
                result => return result,
            }
        }
        Err(Fault::from(Reason::NotFound).on(doing, path))
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsPath) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for writing; makes it if it is not there and empties it if it is.
    pub fn create(&self, path: impl AsPath) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// The whole contents of a file. [`Reason::OutOfMemory`] if there is not the memory for them, holes included.
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let path = path.as_path_bytes();
        self.run_open("read", path, || self.read_all(path))
    }

    fn read_all(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        self.open(path)?.read_rest(&mut contents, 0)?;
        Ok(contents)
    }

    /// Makes `contents` the whole contents of a file, which is made if it is not there. Not atomic: [`Filesystem::replace`] is, so that
    /// a crash shows either the old contents or the new.
    pub fn write(&self, path: impl AsPath, contents: impl AsRef<[u8]>) -> Result<()> {
        let (path, contents) = (path.as_path_bytes(), contents.as_ref());
        self.run_open("write", path, || self.create(path)?.write_all_at(contents, 0))
    }

    /// Makes a directory (mode 0755).
    pub fn create_dir(&self, path: impl AsPath) -> Result<()> {
        self.create_dir_with_mode(path, DIRECTORY_MODE)
    }

    /// Makes a directory with these permission bits (07777). There is no umask.
    pub fn create_dir_with_mode(&self, path: impl AsPath, mode: u32) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("create the directory", path, |fs| self.make_directory(fs, path, mode))
    }

    fn make_directory(
        &self,
        fs: &varve_fs::Filesystem,
        path: &[u8],
        mode: u32,
    ) -> std::result::Result<(), Fault> {
        let place = find(fs, path, Last::Keep)?;
        if place.found.is_some() {
            return Err(Reason::Exists.into());
        }
        fs.mkdir(self.caller(), place.parent, place.entry()?, mode & 0o7777)?;
        Ok(())
    }

    /// Makes a directory and all that is missing above it (mode 0755). One that is there is no error. Those that have been made stay if
    /// another cannot be. Costs a walk from the root for each directory that is missing: thousands of them take seconds.
    pub fn create_dir_all(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("create the directory", path, |fs| {
            // As a rule all of it is there, or up to where a name is missing; whatever else is wrong is found on the way.
            let there = match find_existing(fs, path, Last::Follow) {
                Ok(found) if found.kind == varve_fs::FileKind::Directory => return Ok(()),
                Err(Fault { reason: Reason::NotFound, at, .. }) => at.unwrap_or(path.len()),
                _ => 0,
            };
            // Each prefix that ends with a name, shortest first.
            let ends = (1..=path.len())
                .filter(|end| path[end - 1] != b'/' && path.get(*end).is_none_or(|byte| *byte == b'/'));
            for end in ends.skip_while(|end| *end < there) {
                self.shared.go_on()?;
                let part = &path[..end];
                let here = |fault: Fault| Fault {
                    at: fault.at.or(Some(end)).filter(|at| *at < path.len()),
                    ..fault
                };
                match self.make_directory(fs, part, DIRECTORY_MODE) {
                    Ok(()) => {}
                    Err(Fault { reason: Reason::Exists, .. }) => {
                        let found = find_existing(fs, part, Last::Follow).map_err(here)?;
                        if found.kind != varve_fs::FileKind::Directory {
                            return Err(here(Reason::NotADirectory.into()));
                        }
                    }
                    Err(fault) => return Err(here(fault)),
                }
            }
            // Also for the root and the empty path, which have no names.
            find_existing(fs, path, Last::Follow).map(drop)
        })
    }

    /// Lists a directory.
    pub fn read_dir(&self, path: impl AsPath) -> Result<ReadDir> {
        let path = path.as_path_bytes();
        self.run("list", path, |fs| {
            with_existing(fs, path, Last::Follow, |attr| {
                if attr.kind != varve_fs::FileKind::Directory {
                    return Err(Reason::NotADirectory.into());
                }
                Ok(ReadDir::new(self.shared.open_inode(fs, attr.ino)?, Arc::from(path)))
            })
        })
    }

    /// Removes an empty directory, or an empty subvolume as [`Filesystem::delete_subvolume`] does; a read-only one is refused
    /// with [`crate::Reason::IsSubvolume`].
    pub fn remove_dir(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("remove the directory", path, |fs| {
            let place = find(fs, path, Last::Entry)?;
            Ok(fs.rmdir(place.parent, place.entry()?)?)
        })
    }

    /// Removes a directory with all that is in it. Links inside are removed, never followed; so is a link at `path`. The
    /// parts go one by one: a crash in the middle leaves some of them. A subvolume that can be changed and has no other in it goes as
    /// by [`Filesystem::delete_subvolume`], at once. A read-only snapshot is not removed: it ends this with
    /// [`Reason::ReadOnlySubvolume`], or [`Reason::IsSubvolume`] if it is empty, and what was before it is gone; delete those first.
    pub fn remove_dir_all(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("remove the tree", path, |fs| {
            let _walk = self.shared.walk();
            let place = find(fs, path, Last::Entry)?;
            let (attr, name) = (place.existing()?, place.entry()?);
            match attr.kind {
                varve_fs::FileKind::Directory => {
                    remove_tree(fs, || self.shared.go_on(), place.parent, name, attr.ino)
                }
                varve_fs::FileKind::Symlink => Ok(fs.unlink(place.parent, name)?),
                _ => Err(Reason::NotADirectory.into()),
            }
        })
    }

    /// Removes a file or a symbolic link. A file that is open lives on until it is closed.
    pub fn remove_file(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("remove", path, |fs| {
            let place = find(fs, path, Last::Entry)?;
            Ok(fs.unlink(place.parent, place.entry()?)?)
        })
    }

    /// Whether there is something at `path`, links followed. Anything else in the way is an error.
    pub fn exists(&self, path: impl AsPath) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.reason(), Reason::NotFound | Reason::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The attributes of what is at `path`, links followed.
    pub fn metadata(&self, path: impl AsPath) -> Result<Metadata> {
        let path = path.as_path_bytes();
        self.run("look at", path, |fs| Ok(Metadata::of(&find_existing(fs, path, Last::Follow)?)))
    }

    /// The attributes of what is at `path`; of a symbolic link its own.
    pub fn symlink_metadata(&self, path: impl AsPath) -> Result<Metadata> {
        let path = path.as_path_bytes();
        self.run("look at", path, |fs| Ok(Metadata::of(&find_existing(fs, path, Last::Keep)?)))
    }

    /// Sets the permission bits (07777).
    pub fn set_permissions(&self, path: impl AsPath, mode: u32) -> Result<()> {
        self.on_inode("set the permissions of", path, |fs, ino| {
            verbs::set_permissions(fs, self.caller(), ino, mode)
        })
    }

    /// Sets user and group; `None` leaves one as it is. `u32::MAX` is neither ([`Reason::Invalid`]).
    pub fn set_owner(&self, path: impl AsPath, user: Option<u32>, group: Option<u32>) -> Result<()> {
        self.on_inode("set the owner of", path, |fs, ino| {
            verbs::set_owner(fs, self.caller(), ino, (user, group))
        })
    }

    /// Sets times.
    pub fn set_times(&self, path: impl AsPath, times: Times) -> Result<()> {
        self.on_inode("set the times of", path, |fs, ino| verbs::set_times(fs, self.caller(), ino, times))
    }

    /// Sets these flags of a file or directory and clears all others; [`Metadata::flags`] has those that are set. They are
    /// kept and heeded, and whoever can open the pool can set and clear each of them, also of what they protect. Only a
    /// directory can have [`Flags::durable_names`], and neither symbolic links nor nodes can be given any
    /// ([`Reason::NotSupported`]): they have what their directory gave them when they were made.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.write("/deed", "signed")?;
    /// let mut flags = fs.metadata("/deed")?.flags;
    /// flags.immutable = true;
    /// fs.set_flags("/deed", flags)?;
    /// assert_eq!(fs.remove_file("/deed").unwrap_err().reason(), &varvefs::Reason::NotPermitted);
    /// flags.immutable = false;
    /// fs.set_flags("/deed", flags)?;
    /// fs.remove_file("/deed")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_flags(&self, path: impl AsPath, flags: Flags) -> Result<()> {
        self.on_inode("set the flags of", path, |fs, ino| verbs::set_flags(fs, ino, flags))
    }

    /// [`Filesystem::set_owner`] that does not follow a symbolic link at `path`, but sets the link's own owner.
    pub fn set_link_owner(&self, path: impl AsPath, user: Option<u32>, group: Option<u32>) -> Result<()> {
        self.on_entry("set the owner of", path, |fs, ino| {
            verbs::set_owner(fs, self.caller(), ino, (user, group))
        })
    }

    /// [`Filesystem::set_times`] that does not follow a symbolic link at `path`, but sets the link's own times.
    pub fn set_link_times(&self, path: impl AsPath, times: Times) -> Result<()> {
        self.on_entry("set the times of", path, |fs, ino| verbs::set_times(fs, self.caller(), ino, times))
    }

    /// Runs a verb on what bears the name `path`, a symbolic link or not.
    pub(crate) fn on_entry<T>(
        &self,
        doing: &'static str,
        path: impl AsPath,
        verb: impl Fn(&varve_fs::Filesystem, varve_fs::InodeId) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        let path = path.as_path_bytes();
        self.run(doing, path, |fs| with_existing(fs, path, Last::Keep, |attr| verb(fs, attr.ino)))
    }

    /// Cuts a file, or lets it grow with a hole, to `len` bytes.
    pub fn set_len(&self, path: impl AsPath, len: u64) -> Result<()> {
        let path = path.as_path_bytes();
        self.run_open("change the length of", path, || {
            OpenOptions::new().write(true).open(self, path)?.set_len(len)
        })
    }

    /// Runs a verb on what `path` leads to.
    pub(crate) fn on_inode<T>(
        &self,
        doing: &'static str,
        path: impl AsPath,
        verb: impl Fn(&varve_fs::Filesystem, varve_fs::InodeId) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        let path = path.as_path_bytes();
        self.run(doing, path, |fs| with_existing(fs, path, Last::Follow, |attr| verb(fs, attr.ino)))
    }

    /// Runs a verb on two paths.
    pub(crate) fn run_two<T>(
        &self,
        doing: &'static str,
        path: &[u8],
        to: &[u8],
        verb: impl FnOnce(&varve_fs::Filesystem) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.shared.enter().and_then(|fs| verb(&fs)).map_err(|fault| fault.of_path().on_two(doing, path, to))
    }

    /// Gives the file `original` another name, `link`, which must be free. Directories have one name only.
    pub fn hard_link(&self, original: impl AsPath, link: impl AsPath) -> Result<()> {
        let (original, link) = (original.as_path_bytes(), link.as_path_bytes());
        self.run_two("link", original, link, |fs| {
            with_existing(fs, original, Last::Entry, |attr| {
                let place = find(fs, link, Last::Entry).map_err(Fault::in_second)?;
                if place.found.is_some() {
                    return Err(Reason::Exists.into());
                }
                if place.directory {
                    return Err(Fault::from(Reason::NotFound).in_second());
                }
                fs.link(attr.ino, place.parent, place.entry()?)?;
                Ok(())
            })
        })
    }

    /// Makes the symbolic link `link`, which leads to `target`: any bytes but NUL; what they mean is seen when the link
    /// is followed.
    pub fn symlink(&self, target: impl AsPath, link: impl AsPath) -> Result<()> {
        let (target, link) = (target.as_path_bytes(), link.as_path_bytes());
        self.run("create the symbolic link", link, |fs| {
            if target.is_empty() {
                return Err(Reason::Invalid("a symbolic link leads somewhere: its target is empty").into());
            }
            let place = find(fs, link, Last::Entry)?;
            if place.found.is_some() {
                return Err(Reason::Exists.into());
            }
            if place.directory {
                return Err(Reason::NotFound.into());
            }
            fs.symlink(self.caller(), place.parent, place.entry()?, target)?;
            Ok(())
        })
    }

    /// Makes a fifo, a socket or a device node (or an empty file) with these permission bits (07777). `device` is a
    /// device's number as Linux packs it into 32 bits; for other kinds it is ignored.
    pub fn create_node(&self, path: impl AsPath, kind: FileType, mode: u32, device: u32) -> Result<()> {
        let path = path.as_path_bytes();
        self.run("create the node", path, |fs| {
            let place = find(fs, path, Last::Entry)?;
            if place.found.is_some() {
                return Err(Reason::Exists.into());
            }
            if place.directory {
                return Err(Reason::NotFound.into());
            }
            let kind = match kind.below() {
                varve_fs::FileKind::Directory | varve_fs::FileKind::Symlink => {
                    return Err(Reason::Invalid("directories and symbolic links are no nodes").into());
                }
                kind => kind,
            };
            fs.mknod(self.caller(), place.parent, place.entry()?, kind, mode & 0o7777, device)?;
            Ok(())
        })
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsPath) -> Result<PathBuf> {
        let path = path.as_path_bytes();
        self.run("read the symbolic link", path, |fs| {
            with_existing(fs, path, Last::Keep, |attr| {
                if attr.kind != varve_fs::FileKind::Symlink {
                    return Err(Reason::Invalid("it is not a symbolic link").into());
                }
                Ok(path_buf(&fs.readlink(attr.ino)?))
            })
        })
    }

    /// Renames, over what is at `to` if the two agree in kind (and a directory is empty). At every instant, after a crash
    /// too, `to` leads to the old file or to the whole new one. Where nothing is at `to`, what was written before and not synced
    /// may come after the name: sync the file first, or it may be there and empty after a crash.
    ///
    /// A subvolume takes nothing's place, and nothing takes a subvolume's: [`Reason::NotEmpty`] if there is something in what is at
    /// `to`, else [`Reason::OnlyExchanged`]; or [`Reason::Exists`] where the other one comes at the same moment.
    /// [`Filesystem::exchange`] swaps two.
    pub fn rename(&self, from: impl AsPath, to: impl AsPath) -> Result<()> {
        self.rename_as(from, to, varve_fs::RenameMode::Replace)
    }

    /// Renames; refused with [`Reason::Exists`] if there is anything at `to`. The name may be durable before what was written and not
    /// synced: sync the file first.
    pub fn rename_no_replace(&self, from: impl AsPath, to: impl AsPath) -> Result<()> {
        self.rename_as(from, to, varve_fs::RenameMode::NoReplace)
    }

    /// Swaps two names, of whatever kinds, in one step. Files are written first: at every instant, after a crash too, each name leads to
    /// one of the two, whole.
    ///
    /// A subvolume is swapped with another one, wherever they are ([`Reason::NotSupported`] for anything else). What was
    /// written in it and not synced may come after the names, as in a directory; a new snapshot is whole.
    ///
    /// So a subvolume is rolled back: no program finds it missing, nor a part of it.
    ///
    /// ```
    /// use varvefs::SnapshotOptions;
    ///
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.create_subvolume("/project")?;
    /// fs.write("/project/notes", "good")?;
    /// fs.snapshot("/project", "/before", SnapshotOptions::new().read_only(true))?;
    /// fs.write("/project/notes", "spoilt")?;
    ///
    /// fs.snapshot("/before", "/back", SnapshotOptions::new())?;
    /// fs.exchange("/back", "/project")?;
    /// assert_eq!(fs.read("/project/notes")?, b"good");
    /// assert_eq!(fs.read("/back/notes")?, b"spoilt");
    /// fs.sync()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn exchange(&self, one: impl AsPath, other: impl AsPath) -> Result<()> {
        self.rename_as(one, other, varve_fs::RenameMode::Exchange)
    }

    fn rename_as(&self, from: impl AsPath, to: impl AsPath, mode: varve_fs::RenameMode) -> Result<()> {
        let (from, to) = (from.as_path_bytes(), to.as_path_bytes());
        let doing = if mode == varve_fs::RenameMode::Exchange { EXCHANGE } else { "rename" };
        self.run_two(doing, from, to, |fs| {
            let source = find(fs, from, Last::Entry)?;
            let attr = source.existing()?;
            let target = find(fs, to, Last::Entry).map_err(Fault::in_second)?;
            if target.directory && attr.kind != varve_fs::FileKind::Directory {
                return Err(Reason::NotADirectory.into());
            }
            let (name, new_name) = (source.entry()?, target.entry()?);
            match fs.rename(source.parent, name, target.parent, new_name, mode) {
                Err(varve_fs::FsError::Invalid) => {
                    Err(Reason::Invalid("a directory cannot move to a place below itself").into())
                }
                result => Ok(result?),
            }
        })
    }

    /// Makes everything durable that has been done so far, by whomever.
    pub fn sync(&self) -> Result<()> {
        self.whole("sync", |fs| Ok(fs.sync()?))
    }

    /// Begins a sync of everything: as [`Filesystem::sync`], but without the flush, which [`Pending::wait`] does.
    /// If nobody waits, it becomes durable as [`File::start_sync`] says.
    pub fn start_sync(&self) -> Result<Pending> {
        let upto = self.whole("sync", |fs| {
            fs.flush_all()?;
            place(fs)
        })?;
        Ok(Pending::new(self.shared.clone(), upto, None))
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.whole("read the space of", |fs| Ok(StatFs::of(&fs.statfs()?)))
    }

    fn whole<T>(
        &self,
        doing: &'static str,
        verb: impl FnOnce(&varve_fs::Filesystem) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.shared
            .enter()
            .and_then(|fs| verb(&fs))
            .map_err(|fault| Error::pool(doing, &self.shared.door.name, fault))
    }
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filesystem").field("pool", &self.shared.door.name).finish_non_exhaustive()
    }
}
