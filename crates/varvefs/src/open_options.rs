//! How a file is opened: the rights of the handle, and what becomes of a file that is there or is not.

use std::sync::Arc;

use crate::error::{Fault, Reason, Result};
use crate::file::{File, Rights};
use crate::filesystem::Filesystem;
use crate::path::{AsPath, Last, RETRIES_MAX, find};

/// Options for opening a file, as [`std::fs::OpenOptions`].
///
/// ```
/// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
/// use std::io::Write;
/// let mut log = varvefs::OpenOptions::new().append(true).create(true).open(&fs, "/log")?;
/// log.write_all(b"one line\n")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    follow: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            follow: true,
            mode: 0o644,
        }
    }
}

impl OpenOptions {
    /// Nothing is allowed yet.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// The handle can read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// The handle can write. Where nothing can be written opening is refused: in a pool that is open read-only
    /// ([`Reason::ReadOnly`]), in a read-only snapshot ([`Reason::ReadOnlySubvolume`]), and of a file that is immutable, or that may
    /// only be added to unless it is opened to `append` ([`Reason::NotPermitted`]).
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// The handle can write, and [`std::io::Write`] writes at the end of the file, wherever that is by then: what
    /// several write so lands whole, one after the other.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// The file is emptied. Needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// The file is made if it is not there. Needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// The file is made and must not be there, not even as a symbolic link. Needs `write` or `append`.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Whether a symbolic link at the end of the path is followed (the default) or refused.
    pub fn follow_symlinks(&mut self, follow: bool) -> &mut Self {
        self.follow = follow;
        self
    }

    /// Permission bits of a file that is made (07777; default 0644). There is no umask.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Opens `path`. A directory can be opened for reading, to be synced or looked at.
    pub fn open(&self, fs: &Filesystem, path: impl AsPath) -> Result<File> {
        let path = path.as_path_bytes();
        let doing = if self.create_new { "create" } else { "open" };
        self.open_file(fs, path).map_err(|fault| fault.on(doing, path))
    }

    fn check(&self) -> std::result::Result<(), Fault> {
        let writes = self.write || self.append;
        let why = if !self.read && !writes {
            "a file is opened to read, to write or to append"
        } else if (self.create || self.create_new) && !writes {
            "a file is created to be written: open it with write or append"
        } else if self.truncate && !self.create_new && (!self.write || self.append) {
            "only a file opened with write, and not to append, can be truncated"
        } else {
            return Ok(());
        };
        Err(Reason::Invalid(why).into())
    }

    fn open_file(&self, fs: &Filesystem, path: &[u8]) -> std::result::Result<File, Fault> {
        self.check()?;
        let writes = self.write || self.append;
        let below = fs.shared().enter()?;
        let last = match (self.create_new, self.follow) {
            // Whether the name is taken is found out where it is given.
            (true, _) if path.last() != Some(&b'/') => Last::New,
            (true, _) | (false, false) => Last::Keep,
            (false, true) => Last::Follow,
        };
        for _ in 0..RETRIES_MAX {
            let place = find(&below, path, last)?;
            let (attr, made) = match place.found {
                Some(_) if self.create_new => return Err(Reason::Exists.into()),
                Some(attr) => (attr, false),
                None if !self.create && !self.create_new => return Err(Reason::NotFound.into()),
                None if place.directory => return Err(Reason::IsADirectory.into()),
                None if self.create_new && matches!(&place.name[..], b"." | b"..") => {
                    return Err(Reason::Exists.into());
                }
                None => match below.create(fs.caller(), place.parent, place.entry()?, self.mode & 0o7777) {
                    Ok(attr) => (attr, true),
                    // Another has made it meanwhile.
                    Err(varve_fs::FsError::Exists) if !self.create_new => continue,
                    // Another has deleted the subvolume.
                    Err(varve_fs::FsError::Stale) => continue,
                    // That the name is taken is said before whatever else keeps it from being made.
                    Err(_) if self.create_new && below.lookup(place.parent, &place.name).is_ok() => {
                        return Err(Reason::Exists.into());
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            match attr.kind {
                varve_fs::FileKind::File => {}
                varve_fs::FileKind::Directory if !writes => {}
                varve_fs::FileKind::Directory => return Err(Reason::IsADirectory.into()),
                varve_fs::FileKind::Symlink => return Err(Reason::TooManySymlinks.into()),
                _ => return Err(Reason::NotSupported.into()),
            }
            if writes && !made {
                match below.admit(attr.ino) {
                    // Another has deleted the subvolume.
                    Err(varve_fs::FsError::Stale) => continue,
                    admitted => admitted?,
                }
                if attr.flags.forbid_opening(self.append) {
                    return Err(Reason::NotPermitted.into());
                }
            }
            let open = match fs.shared().open_inode(&below, attr.ino) {
                Ok(open) => open,
                // Another has removed or replaced it meanwhile, or what it was in.
                Err(Fault { reason: Reason::NotFound | Reason::SubvolumeDeleted, .. }) => continue,
                Err(fault) => return Err(fault),
            };
            let rights = Rights { read: self.read, write: writes, append: self.append };
            let file = File::new(open, fs.caller(), Arc::from(path), rights);
            match if self.truncate && !made { file.resize(&below, 0) } else { Ok(()) } {
                Err(Fault { reason: Reason::SubvolumeDeleted, .. }) => continue,
                emptied => return emptied.map(|()| file),
            }
        }
        Err(Reason::NotFound.into())
    }
}
