//! Verbs on an inode that files and paths have in common.

use crate::error::{Fault, Reason};
use crate::metadata::{Flags, Times, timestamp};

type Result<T> = std::result::Result<T, Fault>;

pub(crate) fn set_permissions(
    fs: &varve_fs::Filesystem,
    caller: varve_fs::Caller,
    ino: varve_fs::InodeId,
    mode: u32,
) -> Result<()> {
    let set = varve_fs::SetAttr { mode: Some(mode & 0o7777), ..varve_fs::SetAttr::default() };
    fs.setattr(caller, ino, set)?;
    Ok(())
}

pub(crate) fn set_owner(
    fs: &varve_fs::Filesystem,
    caller: varve_fs::Caller,
    ino: varve_fs::InodeId,
    (user, group): (Option<u32>, Option<u32>),
) -> Result<()> {
    if user == Some(u32::MAX) || group == Some(u32::MAX) {
        // A mount could do next to nothing with what is theirs.
        return Err(Reason::Invalid(
            "4294967295 is no user or group: chown(2) says -1 for one that stays as it is",
        )
        .into());
    }
    let set = varve_fs::SetAttr { uid: user, gid: group, ..varve_fs::SetAttr::default() };
    fs.setattr(caller, ino, set)?;
    Ok(())
}

pub(crate) fn set_times(
    fs: &varve_fs::Filesystem,
    caller: varve_fs::Caller,
    ino: varve_fs::InodeId,
    times: Times,
) -> Result<()> {
    let at = |time| varve_fs::SetTime::At(timestamp(time));
    let set = varve_fs::SetAttr {
        atime: times.accessed.map(at),
        mtime: times.modified.map(at),
        ..varve_fs::SetAttr::default()
    };
    fs.setattr(caller, ino, set)?;
    Ok(())
}

/// As with permissions, nobody is refused because of who he is.
pub(crate) fn set_flags(fs: &varve_fs::Filesystem, ino: varve_fs::InodeId, flags: Flags) -> Result<()> {
    Ok(fs.set_flags(varve_fs::Caller::ROOT, ino, flags.below())?)
}

pub(crate) fn get_xattr(
    fs: &varve_fs::Filesystem,
    ino: varve_fs::InodeId,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    match fs.getxattr(ino, name) {
        Ok(value) => Ok(Some(value)),
        Err(varve_fs::FsError::NoAttribute) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
