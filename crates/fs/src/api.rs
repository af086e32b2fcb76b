//! The types of the door. [`crate::Filesystem`] is the door itself.

use std::sync::Arc;

use varve_format::record::inode::{self, InodeRecord};
use varve_format::record::subvolume;

use crate::subvolume::Slot;

pub use varve_engine::{
    CheckProgress, CheckReport, CheckStage, FileRange, FormatOptions, InodeId, Lsn, Problem, ProblemKind,
    Profile, RecoveryReport, SpaceStats, StoreOptions, StoreStats, Trimmed,
};

/// The root directory of a pool's first subvolume.
pub const ROOT_INODE: InodeId = InodeId(1);
pub use varve_format::record::name::NAME_BYTES_MAX;
/// The root directory of the subvolume that an inode is or was in, by its number alone.
#[must_use]
pub fn subvolume_root(ino: InodeId) -> InodeId {
    Slot::of(ino).full(ROOT_INODE)
}

/// The number of an inode as programs see it, which is never that of another one (SPEC.md, "Numbers that programs see").
#[must_use]
pub fn shown_number(ino: InodeId) -> u64 {
    subvolume::shown_inode(ino.0)
}
/// The inode with a number that programs see.
#[must_use]
pub fn inode_shown(number: u64) -> InodeId {
    InodeId(subvolume::inode_shown(number))
}

/// Largest file.
pub const FILE_BYTES_MAX: u64 = 1 << 62;

/// A point in time: seconds since 1970 (negative before), and nanoseconds after that second.
pub use varve_format::record::inode::Time as Timestamp;

/// Where the time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// What kind of file an inode is.
pub use varve_format::record::inode::InodeKind as FileKind;

/// Flags of a file or directory that chattr(1) sets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FileFlags(u32);

impl FileFlags {
    /// None of them.
    pub const NONE: FileFlags = FileFlags(0);
    /// Nothing of it may change, nor its names and those in it.
    pub const IMMUTABLE: FileFlags = FileFlags(inode::INODE_FLAG_IMMUTABLE);
    /// Bytes may be added at its end, or names to it; nothing else may change.
    pub const APPEND_ONLY: FileFlags = FileFlags(inode::INODE_FLAG_APPEND_ONLY);
    /// Not for backups.
    pub const NO_DUMP: FileFlags = FileFlags(inode::INODE_FLAG_NO_DUMP);
    /// Reading does not change its access time.
    pub const NO_ACCESS_TIME: FileFlags = FileFlags(inode::INODE_FLAG_NO_ACCESS_TIME);
    /// Changes of it are to be durable before they are answered: the transport's business
    /// ([`crate::Filesystem::wants_durable`]).
    pub const DURABLE: FileFlags = FileFlags(inode::INODE_FLAG_DURABLE);
    /// Of a directory: changes of its names are.
    pub const DURABLE_NAMES: FileFlags = FileFlags(inode::INODE_FLAG_DURABLE_NAMES);
    /// All of them.
    pub const ALL: FileFlags = FileFlags(inode::INODE_FLAGS_SETTABLE);

    /// Those that forbid changes.
    pub const PROTECTING: FileFlags = FileFlags(inode::INODE_FLAG_IMMUTABLE | inode::INODE_FLAG_APPEND_ONLY);

    /// Those of an inode's record.
    pub(crate) fn of(record: &InodeRecord) -> FileFlags {
        FileFlags(record.flags & inode::INODE_FLAGS_SETTABLE)
    }

    /// As an inode's record holds them.
    pub(crate) fn stored(self) -> u32 {
        self.0
    }

    /// Whether one of `others` is among them.
    pub fn intersects(self, others: FileFlags) -> bool {
        self.0 & others.0 != 0
    }

    /// Those of them that are not among `others`.
    pub fn without(self, others: FileFlags) -> FileFlags {
        FileFlags(self.0 & !others.0)
    }

    /// Whether a file with them cannot be opened to write to it; with `appends`: to add to its end.
    pub fn forbid_opening(self, appends: bool) -> bool {
        self.intersects(FileFlags::IMMUTABLE) || self.intersects(FileFlags::APPEND_ONLY) && !appends
    }

    /// Their letters in chattr(1), in the order of lsattr(1).
    pub fn letters(self) -> String {
        format!("{self:?}").replace('-', "")
    }
}

impl std::ops::BitOr for FileFlags {
    type Output = FileFlags;
    fn bitor(self, others: FileFlags) -> FileFlags {
        FileFlags(self.0 | others.0)
    }
}

impl std::ops::BitAnd for FileFlags {
    type Output = FileFlags;
    fn bitand(self, others: FileFlags) -> FileFlags {
        FileFlags(self.0 & others.0)
    }
}

impl std::ops::BitXor for FileFlags {
    type Output = FileFlags;
    fn bitxor(self, others: FileFlags) -> FileFlags {
        FileFlags(self.0 ^ others.0)
    }
}

/// As lsattr(1) shows them.
impl std::fmt::Debug for FileFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use FileFlags as F;
        let letters = [
            (F::DURABLE, "S"),
            (F::DURABLE_NAMES, "D"),
            (F::IMMUTABLE, "i"),
            (F::APPEND_ONLY, "a"),
            (F::NO_DUMP, "d"),
            (F::NO_ACCESS_TIME, "A"),
        ];
        letters
            .iter()
            .try_for_each(|(flag, letter)| f.write_str(if self.intersects(*flag) { letter } else { "-" }))
    }
}

/// What stat shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: InodeId,
    /// Generation, for file handles.
    pub generation: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, with set-id and sticky (07777).
    pub mode: u32,
    /// Links. Of a directory: 2, and one for each directory in it.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes, as Linux packs it into 32 bits.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Logical size in units of 512 bytes (see design: `cp` copies where this is smaller than the size).
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// What chattr has set.
    pub flags: FileFlags,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl Caller {
    /// The superuser.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0 };
}

/// An inode to make with [`crate::Filesystem::make`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewInode {
    /// What it is; not a symbolic link.
    pub kind: FileKind,
    /// Permission bits (07777) as asked for.
    pub mode: u32,
    /// Permission bits that are taken away, unless the directory has a default access control list.
    pub umask: u32,
    /// Device number of a device node, as Linux packs it into 32 bits; ignored for other kinds.
    pub rdev: u32,
    /// Whether somebody who knows all groups and capabilities of the caller has seen to it that nobody makes a program that runs as a
    /// group that he is not in: set-group-id is kept then. Else it goes where the directory has it and neither is the group the
    /// caller's nor the caller uid 0.
    pub set_gid_judged: bool,
}

/// A file to make with [`crate::Filesystem::tmpfile`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNameless {
    /// Permission bits (07777) as asked for.
    pub mode: u32,
    /// Permission bits that are taken away, unless the directory has a default access control list.
    pub umask: u32,
    /// Whether it may get a name.
    pub linkable: bool,
    /// As [`NewInode::set_gid_judged`].
    pub set_gid_judged: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The clock's time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// What [`crate::Filesystem::fallocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Sets space aside for what is a hole, so that writing there cannot fail for lack of space. It goes on reading as
    /// zeros. The file grows to the end of the range unless `keep_size`. Clones and snapshots made later see it as set aside,
    /// too: the first who writes has it, and who asks for it once more gets his own.
    Reserve {
        /// Whether the size stays.
        keep_size: bool,
    },
    /// Makes it a hole: zeros, without space. The size stays.
    Punch,
    /// Makes it zeros that have space set aside. On a full pool data that is the file's alone is written over instead: that can be done
    /// again.
    Zero {
        /// Whether the size stays.
        keep_size: bool,
    },
}

/// What [`crate::Filesystem::seek`] looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    /// Data.
    Data,
    /// A hole, such as the one at the end of every file.
    Hole,
}

/// What a piece of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceKind {
    /// Data in blocks of the pool.
    Data,
    /// Reads as zeros; space is set aside.
    Reserved,
    /// Reads as zeros.
    Hole,
    /// Data that lies in the inode's record.
    Inline,
}

/// A piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePiece {
    /// First byte of the file.
    pub offset: u64,
    /// Bytes. Data and reservations are whole blocks, also where the file ends within the last one.
    pub len: u64,
    /// What it is.
    pub kind: PieceKind,
    /// Address in the pool of data in blocks.
    pub address: Option<u64>,
    /// Whether another file, clone or snapshot has the very same blocks, or record, or space set aside, or this file has the
    /// blocks in another place, too.
    pub shared: bool,
    /// Of data in blocks that nobody else sees through the same extent: how many extents, of this file or others, name these
    /// blocks. Else 0. [`crate::ExtentSums`] counts by it.
    pub names: u64,
}

/// A page of [`crate::Filesystem::map`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileMap {
    /// Pieces in order, without gaps. Neighbours that could be one are, inside a page.
    pub pieces: Vec<FilePiece>,
    /// Where the next page begins; `None`: there is none.
    pub next: Option<u64>,
    /// Bytes in the file.
    pub size: u64,
}

/// When [`crate::Filesystem::note_access`] notes an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessRule {
    /// When the inode has changed since the last access that was noted, or that was a day ago (relatime).
    Relative,
    /// Every time.
    Always,
}

/// What `rename` does when the target exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Refuse (RENAME_NOREPLACE).
    NoReplace,
    /// Swap the two (RENAME_EXCHANGE).
    Exchange,
    /// Leave in the old place, in the same step, what overlayfs takes for a name that is not there: a character device with
    /// number 0 (RENAME_WHITEOUT).
    Whiteout {
        /// Whose the device is.
        caller: Caller,
        /// Whether a target that exists is replaced; else it is refused.
        replace: bool,
    },
}

impl RenameMode {
    /// Whether the target goes.
    pub fn replaces(self) -> bool {
        matches!(self, RenameMode::Replace | RenameMode::Whiteout { replace: true, .. })
    }

    /// Whether there must be no target.
    pub fn refuses(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. })
    }
}

/// What `setxattr` does about an attribute that exists or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Refuse if it exists (XATTR_CREATE).
    Create,
    /// Refuse if it does not (XATTR_REPLACE).
    Replace,
}

/// A subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolumeInfo {
    /// Its number, which no other gets.
    pub id: u64,
    /// The number of the subvolume it is in; `None` for the first, which is the pool's root.
    pub parent: Option<u64>,
    /// The number of the subvolume it is a snapshot of.
    pub origin: Option<u64>,
    /// Its root directory.
    pub root: InodeId,
    /// The path of its root directory in the pool.
    pub path: Vec<u8>,
    /// Whether nothing in it can be changed.
    pub read_only: bool,
    /// When it was made; not known of the first.
    pub created: Option<Timestamp>,
    /// Its universal name; zero if it has none.
    pub uuid: [u8; 16],
}

/// A part of the list of subvolumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubvolumePage {
    /// Subvolumes, oldest first.
    pub subvolumes: Vec<SubvolumeInfo>,
    /// The number behind which the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// One entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Name, any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: InodeId,
    /// Kind.
    pub kind: FileKind,
    /// Position after this entry: stable, at most 2^63 - 1. "." and ".." come first, at 1 and 2.
    pub cookie: u64,
}

/// What statfs shows, in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Offered in all.
    pub total_bytes: u64,
    /// Free for ordinary writes, with what the next commit or checkpoint gives back.
    pub free_bytes: u64,
    /// Inodes in use.
    pub files: u64,
}

/// What [`crate::Filesystem::dedupe_range`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deduped {
    /// So many bytes from the beginning of the range are the same and lie in the pool once; fewer than asked if what
    /// follows differs, if one of the files is written to all the time, or if what is left is a part of a block that cannot be the
    /// end of both.
    Same(u64),
    /// The ranges differ in their first MiB. Nothing has changed.
    Differs,
}

/// Tells tests where in the log the data of a file has taken its place. Called once a transaction that logs data,
/// after it has been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataLogged {
    /// Which file.
    pub ino: InodeId,
    /// First byte of the logged range (whole blocks or the whole of a small file).
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The file's size on disk from this transaction on.
    pub size: u64,
    /// Place in the log.
    pub lsn: Lsn,
}

/// How to open a filesystem.
#[derive(Clone)]
pub struct OpenOptions {
    /// The engine's part.
    pub store: StoreOptions,
    /// Dirty file data kept in memory before writers wait, in bytes.
    pub dirty_bytes_max: u64,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Tests only: called for every transaction that logs file data.
    pub on_data_logged: Option<Arc<dyn Fn(DataLogged) + Send + Sync>>,
}
