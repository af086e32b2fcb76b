//! What the flags of chattr refuse, as Linux reads them: nothing of an immutable inode changes, and what may only be added to takes
//! bytes at its end, new names and the present time.

use varve_fs::{Allocate, FileFlags, FileKind, InodeId, SetAttr, SetTime};

use super::apply::{Context, ENOENT, EOPNOTSUPP, EPERM, Errno};
use super::{Body, Model};
use crate::call::Call;

const I: FileFlags = FileFlags::IMMUTABLE;
const A: FileFlags = FileFlags::APPEND_ONLY;

impl Model {
    /// Whether the flags of the inodes that a call names by number allow it.
    pub(super) fn permit(&self, call: &Call, cx: &Context) -> Result<(), Errno> {
        let has =
            |ino: &InodeId, any: FileFlags| self.get(*ino).is_some_and(|inode| inode.flags.intersects(any));
        let refused = match call {
            Call::Create { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Mknod { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Tmpfile { parent, .. }
            | Call::CreateSubvolume { parent, .. }
            | Call::Snapshot { parent, .. }
            | Call::CloneFile { parent, .. } => has(parent, I),
            Call::Link { ino, parent, .. } => has(parent, I) || has(ino, I | A),
            Call::LinkOver { ino, parent, .. } => has(parent, I | A) || has(ino, I | A),
            Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. }
            | Call::DeleteSubvolume { parent, .. } => has(parent, I | A),
            Call::Rename { parent, new_parent, .. } => has(parent, I | A) || has(new_parent, I),
            Call::SetAttr { ino, set } => {
                let now = Some(SetTime::Now);
                let mild = [SetAttr::default(), SetAttr { atime: now, mtime: now, ..SetAttr::default() }];
                has(ino, I) || !mild.contains(set) && has(ino, A)
            }
            Call::Open { ino, truncate } => *truncate && has(ino, I | A),
            Call::Write { ino, offset, .. } => {
                let file = self.get(*ino).is_some_and(|inode| inode.kind() == FileKind::File);
                has(ino, I) || file && *offset != cx.size && has(ino, A)
            }
            Call::Fallocate { ino, how: Allocate::Reserve { .. }, .. } => has(ino, I),
            Call::Fallocate { ino, .. }
            | Call::Shift { ino, .. }
            | Call::CopyRange { to: ino, .. }
            | Call::CloneRange { to: ino, .. }
            | Call::DedupeRange { to: ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. } => has(ino, I | A),
            _ => false,
        };
        if refused { Err(EPERM) } else { Ok(()) }
    }

    /// Whether this may lose its name, or get another.
    pub(super) fn require_unprotected(&self, ino: InodeId) -> Result<(), Errno> {
        if self.get(ino).is_some_and(|inode| inode.flags.intersects(I | A)) { Err(EPERM) } else { Ok(()) }
    }

    pub(super) fn set_flags(&mut self, ino: InodeId, flags: FileFlags, cx: &Context) -> Result<(), Errno> {
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        let root = cx.caller.uid == 0;
        if !root && cx.caller.uid != inode.uid {
            return Err(EPERM);
        }
        match inode.kind() {
            FileKind::Directory => {}
            FileKind::File if !flags.intersects(FileFlags::DURABLE_NAMES) => {}
            _ => return Err(EOPNOTSUPP),
        }
        if !root && (inode.flags ^ flags).intersects(I | A) {
            return Err(EPERM);
        }
        inode.flags = flags;
        inode.ctime.set(cx.now);
        Ok(())
    }
}

/// What something new in a directory with these flags begins with.
pub(super) fn inherited(above: FileFlags, body: &Body) -> FileFlags {
    let few = FileFlags::NO_DUMP | FileFlags::NO_ACCESS_TIME;
    match body {
        Body::Directory { .. } => above & (few | FileFlags::DURABLE | FileFlags::DURABLE_NAMES),
        Body::File(_) => above & (few | FileFlags::DURABLE),
        _ => above & few,
    }
}
