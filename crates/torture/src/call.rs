//! The calls a workload makes: one variant a verb of the filesystem, with everything needed to repeat it.
//!
//! A call names inodes by the numbers the filesystem gave them; a workload is generated against the model, so that
//! most calls succeed.

use std::fmt;

use varve_fs::{InodeId, RenameMode, SetAttr, XattrMode};

/// One call.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are the arguments of the verb of the same name")]
pub enum Call {
    Create {
        parent: InodeId,
        name: Vec<u8>,
        mode: u32,
    },
    Mkdir {
        parent: InodeId,
        name: Vec<u8>,
        mode: u32,
    },
    Symlink {
        parent: InodeId,
        name: Vec<u8>,
        target: Vec<u8>,
    },
    Link {
        ino: InodeId,
        parent: InodeId,
        name: Vec<u8>,
    },
    Unlink {
        parent: InodeId,
        name: Vec<u8>,
    },
    Rmdir {
        parent: InodeId,
        name: Vec<u8>,
    },
    Rename {
        parent: InodeId,
        name: Vec<u8>,
        new_parent: InodeId,
        new_name: Vec<u8>,
        mode: RenameMode,
    },
    SetAttr {
        ino: InodeId,
        set: SetAttr,
    },
    Open {
        ino: InodeId,
        truncate: bool,
    },
    Release {
        ino: InodeId,
    },
    /// `len` bytes generated from `seed` (see [`fill`]).
    Write {
        ino: InodeId,
        offset: u64,
        len: usize,
        seed: u64,
    },
    SetXattr {
        ino: InodeId,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    },
    RemoveXattr {
        ino: InodeId,
        name: Vec<u8>,
    },
    Fsync {
        ino: InodeId,
    },
    FlushFile {
        ino: InodeId,
    },
    Sync,
    Checkpoint,
    Maintain,
    /// The last call of a session.
    Close,
}

impl Call {
    /// Whether this call may never be refused for lack of space. `size` is the size of the file it is about.
    pub fn must_have_space(&self, size: u64) -> bool {
        match self {
            Call::Unlink { .. }
            | Call::Rmdir { .. }
            | Call::Release { .. }
            | Call::Open { .. }
            | Call::RemoveXattr { .. }
            | Call::Fsync { .. }
            | Call::FlushFile { .. }
            | Call::Sync
            | Call::Checkpoint
            | Call::Maintain
            | Call::Close => true,
            // Growing may have to rewrite the block in which the file ended.
            Call::SetAttr { set, .. } => set.size.is_some_and(|new| new <= size),
            _ => false,
        }
    }

    /// The file or directory a call is about, if it names one by number.
    pub fn subject(&self) -> Option<InodeId> {
        match self {
            Call::SetAttr { ino, .. }
            | Call::Open { ino, .. }
            | Call::Write { ino, .. }
            | Call::Link { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. }
            | Call::Fsync { ino }
            | Call::FlushFile { ino } => Some(*ino),
            _ => None,
        }
    }
}

impl Call {
    /// The same call on other inodes.
    pub fn map(&self, map: impl Fn(InodeId) -> InodeId) -> Call {
        let mut call = self.clone();
        match &mut call {
            Call::Create { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. } => *parent = map(*parent),
            Call::Link { ino, parent, .. } => (*ino, *parent) = (map(*ino), map(*parent)),
            Call::Rename { parent, new_parent, .. } => {
                (*parent, *new_parent) = (map(*parent), map(*new_parent))
            }
            Call::SetAttr { ino, .. }
            | Call::Open { ino, .. }
            | Call::Release { ino }
            | Call::Write { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. }
            | Call::Fsync { ino }
            | Call::FlushFile { ino } => *ino = map(*ino),
            Call::Sync | Call::Checkpoint | Call::Maintain | Call::Close => {}
        }
        call
    }
}

/// `len` bytes that depend on `seed` and on nothing else; no two aligned pages are alike and none is zeros.
pub fn fill(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &[u8]| String::from_utf8_lossy(&name[..name.len().min(24)]).into_owned();
        match self {
            Call::Create { parent, name, mode } => write!(f, "create({}/{}, {mode:o})", parent.0, text(name)),
            Call::Mkdir { parent, name, mode } => write!(f, "mkdir({}/{}, {mode:o})", parent.0, text(name)),
            Call::Symlink { parent, name, target } => {
                write!(f, "symlink({}/{} -> {} bytes)", parent.0, text(name), target.len())
            }
            Call::Link { ino, parent, name } => write!(f, "link({}, {}/{})", ino.0, parent.0, text(name)),
            Call::Unlink { parent, name } => write!(f, "unlink({}/{})", parent.0, text(name)),
            Call::Rmdir { parent, name } => write!(f, "rmdir({}/{})", parent.0, text(name)),
            Call::Rename { parent, name, new_parent, new_name, mode } => {
                let (name, new_name) = (text(name), text(new_name));
                write!(f, "rename({}/{name}, {}/{new_name}, {mode:?})", parent.0, new_parent.0)
            }
            Call::SetAttr { ino, set } => write!(f, "setattr({}, {set:?})", ino.0),
            Call::Open { ino, truncate } => write!(f, "open({}, truncate: {truncate})", ino.0),
            Call::Release { ino } => write!(f, "release({})", ino.0),
            Call::Write { ino, offset, len, seed } => {
                write!(f, "write({}, {offset}..{}, seed {seed})", ino.0, offset + *len as u64)
            }
            Call::SetXattr { ino, name, value, mode } => {
                write!(f, "setxattr({}, {}, {} bytes, {mode:?})", ino.0, text(name), value.len())
            }
            Call::RemoveXattr { ino, name } => write!(f, "removexattr({}, {})", ino.0, text(name)),
            Call::Fsync { ino } => write!(f, "fsync({})", ino.0),
            Call::FlushFile { ino } => write!(f, "flush_file({})", ino.0),
            Call::Sync => write!(f, "sync"),
            Call::Checkpoint => write!(f, "checkpoint"),
            Call::Maintain => write!(f, "maintain"),
            Call::Close => write!(f, "close"),
        }
    }
}
