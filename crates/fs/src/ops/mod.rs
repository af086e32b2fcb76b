//! The verbs: one file a group. Each prepares under inode locks and applies one transaction.

pub(crate) mod allocate;
pub(crate) mod clone;
pub(crate) mod copy;
pub(crate) mod create;
pub(crate) mod data;
pub(crate) mod diff;
pub(crate) mod flags;
mod float;
pub(crate) mod link;
pub mod listing;
pub(crate) mod lookup;
pub(crate) mod map;
mod moving;
pub mod ranges;
pub(crate) mod read;
pub(crate) mod rename;
pub(crate) mod seek;
pub(crate) mod setattr;
pub(crate) mod shift;
mod spend;
pub(crate) mod subvolume;
pub(crate) mod tmpfile;
pub(crate) mod truncate;
pub(crate) mod unlink;
pub(crate) mod whole;
pub(crate) mod write;
pub(crate) mod xattr;

use varve_engine::{EngineError, InodeId};

use crate::core::Core;
use crate::inode::{Inner, Presence};
use crate::subvolume::Slot;
use crate::{FsError, Result};
use varve_format::record::inode::InodeKind;

/// How often a verb looks again when somebody else has changed a name between looking and locking. More than that
/// cannot be bad luck: the name leads to an inode that is not there.
const RETRIES_MAX: usize = 1000;

/// Checks that names can be added to and removed from this inode.
fn require_directory(inner: &Inner) -> Result<()> {
    if inner.record.kind != InodeKind::Directory {
        Err(FsError::NotDirectory)
    } else if inner.presence != Presence::Live {
        Err(FsError::NotFound)
    } else {
        Ok(())
    }
}

/// Checks that this is a regular file.
pub(crate) fn require_file(inner: &Inner) -> Result<()> {
    match inner.record.kind {
        InodeKind::File => Ok(()),
        InodeKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

/// `mode` without the bits that a change by somebody else than the superuser takes away: set-user-id, and
/// set-group-id where the group may execute (without that it never meant anything else but a lock).
fn without_set_ids(mode: u16) -> u16 {
    let mode = mode & !0o4000;
    if mode & 0o0010 != 0 { mode & !0o2000 } else { mode }
}

impl Core {
    fn require_writable(&self) -> Result<()> {
        if self.read_only { Err(FsError::Engine(EngineError::ReadOnly)) } else { Ok(()) }
    }

    /// What every verb that changes something at `ino` asks first. In what is read-only it is refused as that, whatever else
    /// is wrong with it: so the answer depends neither on which inodes there are, nor on whether their records can be read,
    /// nor on which of its steps a verb begins with. POSIX leaves open which of several errors is given.
    pub(crate) fn admit(&self, ino: InodeId) -> Result<()> {
        self.require_writable()?;
        self.require_changeable(ino)
    }

    /// The same for a verb that changes something at `ino` and looks at `other`: a subvolume that is gone comes before one
    /// that is read-only.
    fn admit_beside(&self, other: InodeId, ino: InodeId) -> Result<()> {
        self.require_writable()?;
        self.subvolumes.get(Slot::of(other))?;
        self.require_changeable(ino)
    }

    /// The same for a verb that changes something at both.
    fn admit_both(&self, one: InodeId, other: InodeId) -> Result<()> {
        self.admit_beside(other, one)?;
        self.require_changeable(other)
    }
}
