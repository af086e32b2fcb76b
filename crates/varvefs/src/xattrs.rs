//! Extended attributes by path: of what the path leads to, and of a symbolic link itself.
//!
//! What the user gives is asked for its bytes before a verb begins: a panic in his code would stop the pool.

use crate::error::{Fault, Result};
use crate::filesystem::Filesystem;
use crate::metadata::XattrMode;
use crate::path::AsPath;
use crate::verbs;

type Done<T> = std::result::Result<T, Fault>;

fn set(
    fs: &varve_fs::Filesystem,
    ino: varve_fs::InodeId,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Done<()> {
    Ok(fs.setxattr(ino, name, value, mode.below())?)
}

fn list(fs: &varve_fs::Filesystem, ino: varve_fs::InodeId) -> Done<Vec<Vec<u8>>> {
    Ok(fs.listxattr(ino)?)
}

fn remove(fs: &varve_fs::Filesystem, ino: varve_fs::InodeId, name: &[u8]) -> Done<()> {
    Ok(fs.removexattr(ino, name)?)
}

const SET: &str = "set an extended attribute of";
const READ: &str = "read an extended attribute of";
const LIST: &str = "list the extended attributes of";
const REMOVE: &str = "remove an extended attribute of";

impl Filesystem {
    /// Sets an extended attribute. Names begin with their namespace: `user.` is for programs, `trusted.` and `security.` take
    /// anything, too, and `system.` takes the access control lists `posix_acl_access` and `posix_acl_default`. Any other is
    /// [`crate::Reason::NotSupported`].
    pub fn set_xattr(
        &self,
        path: impl AsPath,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        self.on_inode(SET, path, |fs, ino| set(fs, ino, name, value, mode))
    }

    /// The value of an extended attribute; `None` if there is none of that name.
    pub fn get_xattr(&self, path: impl AsPath, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        self.on_inode(READ, path, |fs, ino| verbs::get_xattr(fs, ino, name))
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self, path: impl AsPath) -> Result<Vec<Vec<u8>>> {
        self.on_inode(LIST, path, list)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsPath, name: impl AsRef<[u8]>) -> Result<()> {
        let name = name.as_ref();
        self.on_inode(REMOVE, path, |fs, ino| remove(fs, ino, name))
    }

    /// [`Filesystem::set_xattr`] that does not follow a symbolic link at `path`, but sets the link's own. Linux itself
    /// sets none in `user.` on links, and shows those that are there.
    pub fn set_link_xattr(
        &self,
        path: impl AsPath,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        self.on_entry(SET, path, |fs, ino| set(fs, ino, name, value, mode))
    }

    /// [`Filesystem::get_xattr`] that does not follow a symbolic link at `path`.
    pub fn get_link_xattr(&self, path: impl AsPath, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        self.on_entry(READ, path, |fs, ino| verbs::get_xattr(fs, ino, name))
    }

    /// [`Filesystem::list_xattrs`] that does not follow a symbolic link at `path`.
    pub fn list_link_xattrs(&self, path: impl AsPath) -> Result<Vec<Vec<u8>>> {
        self.on_entry(LIST, path, list)
    }

    /// [`Filesystem::remove_xattr`] that does not follow a symbolic link at `path`.
    pub fn remove_link_xattr(&self, path: impl AsPath, name: impl AsRef<[u8]>) -> Result<()> {
        let name = name.as_ref();
        self.on_entry(REMOVE, path, |fs, ino| remove(fs, ino, name))
    }
}
