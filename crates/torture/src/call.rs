//! The calls a workload makes: one variant a verb of the filesystem, with everything needed to repeat it.
//!
//! A call names inodes by the numbers the filesystem gave them; a workload is generated against the model, so that
//! most calls succeed.

use std::fmt;

use varve_device::AlignedBuf;
use varve_fs::{
    AccessRule, Allocate, Caller, FileFlags, FileKind, Filesystem, FsError, InodeId, RenameMode, SetAttr,
    XattrMode,
};

use crate::model::PAGE_BYTES;

/// Least that is written in a buffer of its own: three quarters of the smallest that is kept.
const OWNED_BYTES_MIN: usize = 96 << 10;

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
    /// A fifo, a socket, a device node or an empty file, with a mask that a default access control list overrules.
    Mknod {
        parent: InodeId,
        name: Vec<u8>,
        kind: FileKind,
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    Symlink {
        parent: InodeId,
        name: Vec<u8>,
        target: Vec<u8>,
    },
    /// A file without a name, open.
    Tmpfile {
        parent: InodeId,
        mode: u32,
        umask: u32,
        linkable: bool,
    },
    Link {
        ino: InodeId,
        parent: InodeId,
        name: Vec<u8>,
    },
    /// A nameless file takes the name of what is there.
    LinkOver {
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
    NoteAccess {
        ino: InodeId,
        rule: AccessRule,
    },
    /// `len` bytes generated from `seed` (see [`fill`]).
    Write {
        ino: InodeId,
        offset: u64,
        len: usize,
        seed: u64,
    },
    Fallocate {
        ino: InodeId,
        offset: u64,
        len: u64,
        how: Allocate,
    },
    /// Takes `len` bytes out at `offset`, or puts a hole of so many in.
    Shift {
        ino: InodeId,
        offset: u64,
        len: u64,
        insert: bool,
    },
    /// `len` bytes of `from` at `from_offset` to `to` at `to_offset`.
    CopyRange {
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        len: u64,
    },
    /// Makes `len` bytes of `from` (0: all to its end) a part of `to`, without a copy.
    CloneRange {
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        len: u64,
    },
    /// Lets the same bytes of two files lie in the pool once.
    DedupeRange {
        from: InodeId,
        from_offset: u64,
        to: InodeId,
        to_offset: u64,
        len: u64,
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
    SetFlags {
        ino: InodeId,
        flags: FileFlags,
    },
    CreateSubvolume {
        parent: InodeId,
        name: Vec<u8>,
        mode: u32,
    },
    /// Of the subvolume whose root is `source`.
    Snapshot {
        source: InodeId,
        parent: InodeId,
        name: Vec<u8>,
        read_only: bool,
        sync: bool,
    },
    DeleteSubvolume {
        parent: InodeId,
        name: Vec<u8>,
    },
    CloneFile {
        source: InodeId,
        parent: InodeId,
        name: Vec<u8>,
    },
    Fsync {
        ino: InodeId,
    },
    /// Logs what was written to a file, and starts a sync by that: [`Call::Commit`] is the rest.
    FlushFile {
        ino: InodeId,
    },
    /// As [`Call::FlushFile`], for everything.
    FlushAll,
    /// Ends one of the syncs that were started, counted from the last.
    Commit {
        nth: usize,
    },
    Sync,
    Checkpoint,
    Maintain,
    /// Of part of the pool's address space.
    Trim {
        start: u64,
        len: u64,
        minimum: u64,
    },
    /// The last call of a session.
    Close,
}

impl Call {
    /// Whether this call may never be refused for lack of space. `size` is the size of the file it is about.
    pub fn must_have_space(&self, size: u64) -> bool {
        match self {
            Call::Unlink { .. }
            | Call::Rmdir { .. }
            | Call::DeleteSubvolume { .. }
            | Call::Release { .. }
            | Call::NoteAccess { .. }
            | Call::RemoveXattr { .. }
            | Call::Fsync { .. }
            | Call::FlushFile { .. }
            | Call::FlushAll
            | Call::Commit { .. }
            | Call::Sync
            | Call::Checkpoint
            | Call::Maintain
            | Call::Trim { .. }
            | Call::Close => true,
            // Growing may have to rewrite the block in which the file ended; the size that it has already takes a record, if others show the
            // file, too, and frees nothing.
            Call::SetAttr { set, .. } => set.size.is_some_and(|new| new < size),
            Call::Open { truncate, .. } => !truncate || size > 0,
            // Blocks that are punched in part are rewritten.
            Call::Fallocate { offset, len, how: Allocate::Punch, .. } => {
                let end = offset + len;
                offset.is_multiple_of(PAGE_BYTES) && (end.is_multiple_of(PAGE_BYTES) || end >= size)
            }
            _ => false,
        }
    }

    /// The file or directory a call is about, if it names one by number.
    pub fn subject(&self) -> Option<InodeId> {
        match self {
            Call::SetAttr { ino, .. }
            | Call::Open { ino, .. }
            | Call::NoteAccess { ino, .. }
            | Call::Write { ino, .. }
            | Call::Fallocate { ino, .. }
            | Call::Shift { ino, .. }
            | Call::CopyRange { to: ino, .. }
            | Call::CloneRange { to: ino, .. }
            | Call::DedupeRange { to: ino, .. }
            | Call::Link { ino, .. }
            | Call::LinkOver { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. }
            | Call::SetFlags { ino, .. }
            | Call::Fsync { ino }
            | Call::FlushFile { ino } => Some(*ino),
            _ => None,
        }
    }
}

impl Call {
    /// Whether this call takes `security.capability` from the file it is about when it changes that; not
    /// by its attributes if it `stays_privileged`. `size` is the size of the source of a copy or a range.
    pub fn drops_capability(&self, stays_privileged: bool, size: u64) -> bool {
        match self {
            Call::Write { len, .. } => *len > 0,
            Call::Fallocate { .. } | Call::Shift { .. } => true,
            Call::Open { truncate: true, .. } => !stays_privileged,
            Call::CopyRange { from_offset, len, .. } => *len > 0 && *from_offset < size,
            Call::CloneRange { from_offset, .. } => *from_offset < size,
            Call::SetAttr { set, .. } => {
                let taking = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
                taking && !stays_privileged
            }
            _ => false,
        }
    }

    /// Whether this is one transaction: the capability goes with what takes it.
    pub fn is_one_step(&self) -> bool {
        matches!(self, Call::SetAttr { .. } | Call::Open { .. } | Call::Shift { .. })
    }

    /// Whether this takes several steps, of which the last ones may be refused when the first have taken the capability.
    pub fn drops_capability_in_steps(&self) -> bool {
        matches!(self, Call::Fallocate { .. } | Call::CloneRange { .. })
    }

    /// The inodes that a call names by number, and whether it may change them.
    pub fn inodes(&self) -> Vec<(InodeId, bool)> {
        match self {
            Call::Create { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Mknod { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Tmpfile { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. }
            | Call::CreateSubvolume { parent, .. }
            | Call::DeleteSubvolume { parent, .. } => vec![(*parent, true)],
            Call::Snapshot { source, parent, .. } | Call::CloneFile { source, parent, .. } => {
                vec![(*source, false), (*parent, true)]
            }
            // In another subvolume nothing would be changed, and in the same one both are as changeable.
            Call::Link { ino, parent, .. } | Call::LinkOver { ino, parent, .. } => {
                vec![(*ino, false), (*parent, true)]
            }
            Call::Rename { parent, new_parent, .. } => vec![(*parent, true), (*new_parent, true)],
            Call::CopyRange { from, to, .. }
            | Call::CloneRange { from, to, .. }
            | Call::DedupeRange { from, to, .. } => {
                vec![(*from, false), (*to, true)]
            }
            Call::Open { ino, truncate } => vec![(*ino, *truncate)],
            Call::SetAttr { ino, .. }
            | Call::Write { ino, .. }
            | Call::Fallocate { ino, .. }
            | Call::Shift { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. }
            | Call::SetFlags { ino, .. } => vec![(*ino, true)],
            Call::Release { ino }
            | Call::NoteAccess { ino, .. }
            | Call::Fsync { ino }
            | Call::FlushFile { ino } => vec![(*ino, false)],
            Call::FlushAll
            | Call::Commit { .. }
            | Call::Sync
            | Call::Checkpoint
            | Call::Maintain
            | Call::Trim { .. }
            | Call::Close => Vec::new(),
        }
    }

    /// The same call on other inodes.
    pub fn map(&self, map: impl Fn(InodeId) -> InodeId) -> Call {
        let mut call = self.clone();
        match &mut call {
            Call::Create { parent, .. }
            | Call::Mkdir { parent, .. }
            | Call::Mknod { parent, .. }
            | Call::Symlink { parent, .. }
            | Call::Tmpfile { parent, .. }
            | Call::Unlink { parent, .. }
            | Call::Rmdir { parent, .. }
            | Call::CreateSubvolume { parent, .. }
            | Call::DeleteSubvolume { parent, .. } => *parent = map(*parent),
            Call::Snapshot { source, parent, .. } | Call::CloneFile { source, parent, .. } => {
                (*source, *parent) = (map(*source), map(*parent));
            }
            Call::Link { ino, parent, .. } | Call::LinkOver { ino, parent, .. } => {
                (*ino, *parent) = (map(*ino), map(*parent));
            }
            Call::Rename { parent, new_parent, .. } => {
                (*parent, *new_parent) = (map(*parent), map(*new_parent))
            }
            Call::CopyRange { from, to, .. }
            | Call::CloneRange { from, to, .. }
            | Call::DedupeRange { from, to, .. } => {
                (*from, *to) = (map(*from), map(*to));
            }
            Call::SetAttr { ino, .. }
            | Call::Open { ino, .. }
            | Call::Release { ino }
            | Call::NoteAccess { ino, .. }
            | Call::Write { ino, .. }
            | Call::Fallocate { ino, .. }
            | Call::Shift { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. }
            | Call::SetFlags { ino, .. }
            | Call::Fsync { ino }
            | Call::FlushFile { ino } => *ino = map(*ino),
            Call::FlushAll
            | Call::Commit { .. }
            | Call::Sync
            | Call::Checkpoint
            | Call::Maintain
            | Call::Trim { .. }
            | Call::Close => {}
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

/// Writes as a mount does: much at once, at a page, in a buffer that the filesystem may keep. Of what is in that buffer
/// afterwards nothing may become the file's.
pub fn write(
    fs: &Filesystem,
    caller: Caller,
    ino: InodeId,
    offset: u64,
    data: &[u8],
) -> Result<usize, FsError> {
    if data.len() < OWNED_BYTES_MIN || !offset.is_multiple_of(PAGE_BYTES) {
        return fs.write(caller, ino, offset, data);
    }
    let mut buf = AlignedBuf::new(data.len().next_power_of_two());
    buf[..data.len()].copy_from_slice(data);
    let written = fs.write_owned(caller, ino, offset, &mut buf, data.len());
    buf.fill(0xee);
    written
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &[u8]| String::from_utf8_lossy(&name[..name.len().min(24)]).into_owned();
        match self {
            Call::Create { parent, name, mode } => write!(f, "create({}/{}, {mode:o})", parent.0, text(name)),
            Call::Mkdir { parent, name, mode } => write!(f, "mkdir({}/{}, {mode:o})", parent.0, text(name)),
            Call::Mknod { parent, name, kind, mode, umask, rdev } => {
                let name = text(name);
                write!(f, "mknod({}/{name}, {kind:?}, {mode:o}, umask {umask:o}, device {rdev:#x})", parent.0)
            }
            Call::Symlink { parent, name, target } => {
                write!(f, "symlink({}/{} -> {} bytes)", parent.0, text(name), target.len())
            }
            Call::Tmpfile { parent, mode, umask, linkable } => {
                write!(f, "tmpfile({}, {mode:o}, umask {umask:o}, linkable: {linkable})", parent.0)
            }
            Call::Link { ino, parent, name } => write!(f, "link({}, {}/{})", ino.0, parent.0, text(name)),
            Call::LinkOver { ino, parent, name } => {
                write!(f, "link({} over {}/{})", ino.0, parent.0, text(name))
            }
            Call::Unlink { parent, name } => write!(f, "unlink({}/{})", parent.0, text(name)),
            Call::Rmdir { parent, name } => write!(f, "rmdir({}/{})", parent.0, text(name)),
            Call::Rename { parent, name, new_parent, new_name, mode } => {
                let (name, new_name) = (text(name), text(new_name));
                write!(f, "rename({}/{name}, {}/{new_name}, {mode:?})", parent.0, new_parent.0)
            }
            Call::SetAttr { ino, set } => write!(f, "setattr({}, {set:?})", ino.0),
            Call::Open { ino, truncate } => write!(f, "open({}, truncate: {truncate})", ino.0),
            Call::Release { ino } => write!(f, "release({})", ino.0),
            Call::NoteAccess { ino, rule } => write!(f, "note_access({}, {rule:?})", ino.0),
            Call::Write { ino, offset, len, seed } => {
                write!(f, "write({}, {offset}..{}, seed {seed})", ino.0, offset + *len as u64)
            }
            Call::Fallocate { ino, offset, len, how } => {
                write!(f, "fallocate({}, {offset}..{}, {how:?})", ino.0, offset + len)
            }
            Call::Shift { ino, offset, len, insert } => {
                let verb = if *insert { "insert" } else { "collapse" };
                write!(f, "{verb}({}, {offset}..{})", ino.0, offset + len)
            }
            Call::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (from.0, to.0);
                write!(f, "copy_range({from} at {from_offset}, {to} at {to_offset}, {len} bytes)")
            }
            Call::CloneRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (from.0, to.0);
                write!(f, "clone_range({from} at {from_offset}, {to} at {to_offset}, {len} bytes)")
            }
            Call::DedupeRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = (from.0, to.0);
                write!(f, "dedupe_range({from} at {from_offset}, {to} at {to_offset}, {len} bytes)")
            }
            Call::SetXattr { ino, name, value, mode } => {
                write!(f, "setxattr({}, {}, {} bytes, {mode:?})", ino.0, text(name), value.len())
            }
            Call::RemoveXattr { ino, name } => write!(f, "removexattr({}, {})", ino.0, text(name)),
            Call::SetFlags { ino, flags } => write!(f, "set_flags({}, {flags:?})", ino.0),
            Call::CreateSubvolume { parent, name, mode } => {
                write!(f, "create_subvolume({}/{}, {mode:o})", parent.0, text(name))
            }
            Call::Snapshot { source, parent, name, read_only, sync } => {
                let (source, parent, name) = (source.0, parent.0, text(name));
                write!(f, "snapshot({source}, {parent}/{name}, read-only: {read_only}, sync: {sync})")
            }
            Call::DeleteSubvolume { parent, name } => {
                write!(f, "delete_subvolume({}/{})", parent.0, text(name))
            }
            Call::CloneFile { source, parent, name } => {
                write!(f, "clone_file({}, {}/{})", source.0, parent.0, text(name))
            }
            Call::Fsync { ino } => write!(f, "fsync({})", ino.0),
            Call::FlushFile { ino } => write!(f, "flush_file({})", ino.0),
            Call::FlushAll => write!(f, "flush_all"),
            Call::Commit { nth } => write!(f, "commit(of {nth} before the last)"),
            Call::Sync => write!(f, "sync"),
            Call::Checkpoint => write!(f, "checkpoint"),
            Call::Maintain => write!(f, "maintain"),
            Call::Trim { start, len, minimum } => {
                write!(f, "trim({start}..{}, minimum {minimum})", start.saturating_add(*len))
            }
            Call::Close => write!(f, "close"),
        }
    }
}
