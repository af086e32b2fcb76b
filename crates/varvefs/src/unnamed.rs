//! Files that begin without a name, and files that are replaced as a whole.
//!
//! A file without a name goes with its last handle or with the machine. Replacing one that is there is three steps: (1) a nameless file
//! gets all that the new one is to have; (2) its data is logged; (3) in one transaction it has the name, and the old one has not. A crash
//! before (3) leaves nothing of it.

use std::sync::Arc;

use crate::error::{Fault, Reason, Result};
use crate::file::{File, Rights};
use crate::filesystem::Filesystem;
use crate::path::{AsPath, Last, Place, RETRIES_MAX, find, find_existing};
use crate::pending::Pending;

/// Permission bits of files that are made.
const FILE_MODE: u32 = 0o644;
/// Where a file's access control list is kept.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Where a file is to be replaced or made.
struct Target {
    directory: varve_fs::InodeId,
    name: Vec<u8>,
    is_there: bool,
}

/// Refuses to replace what is no file, or what must not change.
fn require_replaceable(fs: &varve_fs::Filesystem, old: &varve_fs::Attr) -> std::result::Result<(), Fault> {
    match old.kind {
        varve_fs::FileKind::File => {}
        varve_fs::FileKind::Directory => return Err(Reason::IsADirectory.into()),
        varve_fs::FileKind::Symlink => return Err(Reason::TooManySymlinks.into()),
        _ => return Err(Reason::NotSupported.into()),
    }
    fs.admit(old.ino)?;
    if old.flags.forbid_opening(false) { Err(Reason::NotPermitted.into()) } else { Ok(()) }
}

/// Gives the file `ino`, of which no name is known yet, the owner and the permissions of another.
fn take_permissions(
    fs: &varve_fs::Filesystem,
    caller: varve_fs::Caller,
    ino: varve_fs::InodeId,
    old: &varve_fs::Attr,
) -> std::result::Result<(), Fault> {
    match fs.getxattr(old.ino, ACCESS_LIST) {
        Ok(list) => fs.setxattr(ino, ACCESS_LIST, &list, varve_fs::XattrMode::Set)?,
        // It may have got one from its directory.
        Err(varve_fs::FsError::NoAttribute) => match fs.removexattr(ino, ACCESS_LIST) {
            Ok(()) | Err(varve_fs::FsError::NoAttribute) => {}
            Err(error) => return Err(error.into()),
        },
        Err(error) => return Err(error.into()),
    }
    // As a write takes the set-id bits, from whoever is not the superuser.
    let set_ids = match (caller.uid, old.mode & 0o010) {
        (0, _) => 0,
        (_, 0) => 0o4000,
        _ => 0o6000,
    };
    let set = varve_fs::SetAttr {
        mode: Some(old.mode & !set_ids),
        uid: Some(old.uid),
        gid: Some(old.gid),
        ..varve_fs::SetAttr::default()
    };
    fs.setattr(caller, ino, set)?;
    Ok(())
}

impl Filesystem {
    /// A new file in the subvolume of `directory`, without a name and open for reading and writing.
    fn make_unnamed(
        &self,
        fs: &varve_fs::Filesystem,
        directory: varve_fs::InodeId,
        path: &[u8],
    ) -> std::result::Result<File, Fault> {
        let new = varve_fs::NewNameless { mode: FILE_MODE, umask: 0, linkable: true, set_gid_judged: false };
        let ino = fs.tmpfile(self.caller(), directory, new)?.ino;
        let open = self.shared().open_inode(fs, ino);
        // It was made open; the handle has opened it once more.
        fs.release_inode(ino)?;
        let rights = Rights { read: true, write: true, append: false };
        Ok(File::new(open?, self.caller(), Arc::from(path), rights))
    }

    /// Makes a file without a name, open for reading and writing: what is written to it is nowhere to be seen until [`File::link_as`]
    /// gives it one, in any directory of the subvolume that `directory` is in. Without a name it is gone, and its space free, when its
    /// last handle goes, and after a crash, synced or not. Mode 0644; [`File::set_permissions`] and its like set others.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// let draft = fs.create_unnamed("/")?;
    /// draft.write_all_at(b"whole", 0)?;
    /// draft.link_as("/letter")?;
    /// assert_eq!(fs.read("/letter")?, b"whole");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn create_unnamed(&self, directory: impl AsPath) -> Result<File> {
        let path = directory.as_path_bytes();
        self.run_open("create a file without a name in", path, || {
            self.run("create a file without a name in", path, |fs| {
                self.make_unnamed(fs, find_existing(fs, path, Last::Follow)?.ino, path)
            })
        })
    }

    /// Makes `contents` the whole contents of the file at `path`, which is made if it is not there (mode 0644), in one step: at every
    /// instant, and after a crash at any, `path` leads to the old file or to one with all of `contents`. It is durable when what this
    /// gives has been waited for ([`Pending::wait`], or [`crate::wait_all`] for many with one flush); before, a crash may leave either.
    /// After an error nothing has changed, unless it is one of the wait.
    ///
    /// What is at `path` afterwards is another file: whoever has the old one open, or another hard link to it, goes on seeing that. It
    /// has the permission bits, owner, group and access control list of the old one, set-id bits as if it had been written to, and
    /// nothing else of it: no other extended attributes, no flags. There has to be room for both. A symbolic link is followed, and
    /// stays.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.replace("/settings", "colour = ochre")?.wait()?;
    /// fs.replace("/settings", "colour = umber")?.wait()?;
    /// assert_eq!(fs.read("/settings")?, b"colour = umber");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn replace(&self, path: impl AsPath, contents: impl AsRef<[u8]>) -> Result<Pending> {
        let (path, contents) = (path.as_path_bytes(), contents.as_ref());
        for _ in 0..RETRIES_MAX {
            let replaced = self.run_open("replace", path, || {
                let (target, file) = self.run("replace", path, |fs| self.begin_replacing(fs, path))?;
                file.write_all_at(contents, 0)?;
                self.run("replace", path, |fs| match self.put_in_place(fs, &target, file.inode()) {
                    Err(Fault { reason: Reason::NotFound | Reason::SubvolumeDeleted, .. }) => Ok(None),
                    put => put,
                })
            })?;
            // Another has made the file meanwhile, or it is another one, or gone with what it was in.
            if let Some(upto) = replaced {
                return Ok(Pending::new(self.shared().clone(), upto, Some(Arc::from(path))));
            }
        }
        Err(Fault::from(Reason::Exists).on("replace", path))
    }

    fn begin_replacing(
        &self,
        fs: &varve_fs::Filesystem,
        path: &[u8],
    ) -> std::result::Result<(Target, File), Fault> {
        for _ in 0..RETRIES_MAX {
            match self.begin_replacing_at(fs, path, find(fs, path, Last::Follow)?) {
                // Another has removed or replaced it meanwhile, or what it was in.
                Err(Fault { reason: Reason::NotFound | Reason::SubvolumeDeleted, .. }) => {}
                begun => return begun,
            }
        }
        Err(Reason::NotFound.into())
    }

    fn begin_replacing_at(
        &self,
        fs: &varve_fs::Filesystem,
        path: &[u8],
        found: Place<'_>,
    ) -> std::result::Result<(Target, File), Fault> {
        match &found.found {
            Some(old) => {
                require_replaceable(fs, old)?;
                // Told before anything is written.
                if fs.getattr(found.parent)?.flags.intersects(varve_fs::FileFlags::PROTECTING) {
                    return Err(Reason::NotPermitted.into());
                }
            }
            None if found.directory => return Err(Reason::IsADirectory.into()),
            None => {}
        }
        let (directory, name) = (found.parent, found.entry()?.to_vec());
        let file = self.make_unnamed(fs, directory, path)?;
        Ok((Target { directory, name, is_there: found.found.is_some() }, file))
    }

    /// Gives the nameless file `ino` the name of what it replaces, and its permissions as they are now, however long it took to be written.
    /// `None`: there was nothing, and something is there now, or the other way round, or what is there is no file any more.
    fn put_in_place(
        &self,
        fs: &varve_fs::Filesystem,
        target: &Target,
        ino: varve_fs::InodeId,
    ) -> std::result::Result<Option<varve_fs::Lsn>, Fault> {
        if target.is_there {
            let now = fs.lookup(target.directory, &target.name)?;
            if now.kind != varve_fs::FileKind::File {
                return Ok(None);
            }
            require_replaceable(fs, &now)?;
            take_permissions(fs, self.caller(), ino, &now)?;
        }
        // If power fails behind the name, all of this is there. In a pool that has stopped by now, which may have lost some of it, nobody
        // gets a name.
        fs.flush_file(ino)?;
        let put = match target.is_there {
            true => fs.link_over(ino, target.directory, &target.name),
            false => fs.link(ino, target.directory, &target.name).map(drop),
        };
        match put {
            Ok(()) => Ok(Some(fs.position())),
            Err(varve_fs::FsError::Exists) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl File {
    /// Gives the file a name, `path`, which must be free: its first, if it was made by [`Filesystem::create_unnamed`], or one more. What
    /// was written before has its place in the log before the name: after a crash there is no such name, or it leads to all of that,
    /// synced or not.
    ///
    /// Errors: [`Reason::Exists`]; [`Reason::CrossesSubvolumes`]; [`Reason::NotFound`] also for a file whose last name has been removed,
    /// which gets none again; [`Reason::NotPermitted`] for a directory.
    pub fn link_as(&self, path: impl AsPath) -> Result<()> {
        let path = path.as_path_bytes();
        let link = |fs: &varve_fs::Filesystem, ino| {
            let place = find(fs, path, Last::Entry)?;
            if place.found.is_some() {
                return Err(Reason::Exists.into());
            }
            if place.directory {
                return Err(Reason::NotFound.into());
            }
            fs.flush_file(ino)?;
            fs.link(ino, place.parent, place.entry()?)?;
            Ok(())
        };
        let result = self.shared().enter().and_then(|fs| link(&fs, self.inode()));
        result.map_err(|fault| fault.on("link an open file as", path))
    }
}
