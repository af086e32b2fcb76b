//! The errors of the filesystem, and the only table that turns them into errno.

use varve_engine::{EngineError, InodeId};

use crate::ops::xattr::XATTRS_PER_INODE_BYTES_MAX;

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FsError {
    /// No such name or inode.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory was given where none may be.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The name is longer than 255 bytes, or a symlink target longer than 4095.
    #[error("name too long")]
    NameTooLong,
    /// Arguments that make no sense together, or a directory moved below itself.
    #[error("invalid argument")]
    Invalid,
    /// Not allowed to this caller.
    #[error("operation not permitted")]
    NotPermitted,
    /// Access denied.
    #[error("permission denied")]
    AccessDenied,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The attribute's name or value is too long, or the buffer given is too small.
    #[error("value too large for the buffer")]
    Range,
    /// The attribute's value is larger than can be stored.
    #[error("argument list too long")]
    TooBig,
    /// The inode has no room for this attribute beside the others it has, whatever room there is in the pool.
    #[error("the extended attributes of one inode would take more than {} KiB", XATTRS_PER_INODE_BYTES_MAX >> 10)]
    AttributesFull,
    /// There are as many names (or attributes of one inode) with one hash as there can be.
    #[error("too many names with one hash")]
    HashFull,
    /// All numbers of inodes have been given out: 2^43.
    #[error("all numbers have been given out")]
    NumbersUsedUp,
    /// All numbers of subvolumes have been given out: 2^20, those of deleted ones that are not given out again ([`crate::Filesystem::reuse_numbers`])
    /// among them.
    #[error(
        "all 2^20 numbers of subvolumes have been given out; close the pool and open it again (unmount and mount it): \
         the numbers of deleted subvolumes are free then"
    )]
    SlotsUsedUp,
    /// Beyond the largest file size.
    #[error("file too large")]
    FileTooBig,
    /// The file has more extents behind the place than one transaction can move.
    #[error("the file is in too many pieces to move them in one step")]
    TooFragmented,
    /// Too many links.
    #[error("too many links")]
    TooManyLinks,
    /// Not something this filesystem does.
    #[error("operation not supported")]
    NotSupported,
    /// Across subvolumes.
    #[error("cross-device link")]
    CrossDevice,
    /// The subvolume is read-only.
    #[error("the subvolume is read-only")]
    ReadOnlySubvolume,
    /// The subvolume has been deleted; what is still open in it leads nowhere.
    #[error("the subvolume has been deleted")]
    Stale,
    /// A read-only snapshot is not removed as a directory is.
    #[error("this is a read-only snapshot: `varve subvolume delete` deletes it")]
    IsSubvolume,
    /// A rename would put an empty directory or subvolume in a subvolume's place, or the other way round.
    #[error("no subvolume takes another one's place, or a directory's, by a rename: two can be exchanged")]
    OnlyExchanged,
    /// A subvolume was needed.
    #[error("not a subvolume")]
    NotSubvolume,
    /// This inode waits in memory as a snapshot has it, and is to be logged first: the door does that and tries again, so
    /// that nobody outside meets it.
    #[error("a file that a snapshot has waits to be logged")]
    Frozen(InodeId),
    /// The two subvolumes do not descend from one, so nothing says what differs.
    #[error("neither is a snapshot of the other, nor both of a third one")]
    Unrelated,
    /// The snapshot has been made and is there, but could not be made durable, and why: a crash may take it away. A sync makes it durable, or
    /// says what keeps it from that; [`EngineError::Stopped`]: none will, and when the pool is opened again it may be gone.
    #[error("the snapshot is there, but it is not durable: {0}")]
    NotDurable(Box<FsError>),
    /// From the engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl FsError {
    /// See [`EngineError::may_pass`].
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, FsError::Engine(error) if error.may_pass())
    }

    /// The errno a POSIX caller gets (Linux numbers).
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotPermitted | FsError::IsSubvolume | FsError::OnlyExchanged => 1,
            FsError::NotFound => 2,
            FsError::TooBig => 7,
            FsError::Frozen(_) => 11,
            FsError::AccessDenied => 13,
            FsError::Exists => 17,
            FsError::CrossDevice => 18,
            FsError::NotDirectory => 20,
            FsError::IsDirectory => 21,
            FsError::Invalid | FsError::NotSubvolume | FsError::Unrelated => 22,
            FsError::FileTooBig | FsError::TooFragmented => 27,
            FsError::TooManyLinks => 31,
            FsError::Range => 34,
            FsError::NameTooLong => 36,
            FsError::NotEmpty => 39,
            FsError::NoAttribute => 61,
            FsError::NotSupported => 95,
            FsError::Stale => 116,
            // As other filesystems say it; no space can be made for any of these.
            FsError::AttributesFull | FsError::HashFull | FsError::NumbersUsedUp | FsError::SlotsUsedUp => 28,
            FsError::NotDurable(why) => why.errno(),
            FsError::Engine(EngineError::NoSpace) => 28,
            FsError::Engine(EngineError::ReadOnly) | FsError::ReadOnlySubvolume => 30,
            FsError::Engine(_) => 5,
        }
    }
}
