//! The types of the door, and the door itself.

use std::sync::Arc;

use varve_device::Device;
pub use varve_engine::{CheckReport, FormatOptions, InodeId, Lsn, Profile, RecoveryReport, SpaceStats, StoreOptions, StoreStats};

use crate::FsError;

type Result<T> = std::result::Result<T, FsError>;

/// The root directory of a pool's first subvolume.
pub const ROOT_INODE: InodeId = InodeId(1);
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest file.
pub const FILE_BYTES_MAX: u64 = 1 << 62;

/// A point in time: seconds since 1970 (negative before), and nanoseconds after that second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Where the time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// What kind of file an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Fifo.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
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
    /// Links. Directories have 1 (as on btrfs) so that no count needs keeping.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes.
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

/// What `rename` does when the target exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Refuse (RENAME_NOREPLACE).
    NoReplace,
    /// Swap the two (RENAME_EXCHANGE).
    Exchange,
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
    /// Free for ordinary writes.
    pub free_bytes: u64,
    /// Inodes in use.
    pub files: u64,
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

/// An open filesystem. Cheap to share; every verb takes `&self` and may be called from many threads.
///
/// Verbs that change something return when the change has its place in the log ([`Filesystem::position`]); it is
/// durable after [`Filesystem::fsync`] or [`Filesystem::sync`]. Data of `write` waits in memory and takes its place later.
pub struct Filesystem {
    _private: (),
}

#[allow(unused_variables)]
impl Filesystem {
    /// Writes a new pool with an empty root directory (mode 0755, owned by `owner`).
    pub fn format(devices: &[Arc<dyn Device>], options: &FormatOptions, owner: Caller, clock: &dyn Clock) -> Result<()> {
        unimplemented!()
    }
    /// Opens a pool, recovering it first if it was not closed. Deletes what was unlinked while open.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<(Filesystem, RecoveryReport)> {
        unimplemented!()
    }
    /// Makes everything durable, writes a checkpoint and closes. Verbs called later fail.
    pub fn close(&self) -> Result<()> {
        unimplemented!()
    }

    /// The inode behind `name` in `parent`. "." and ".." work.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        unimplemented!()
    }
    /// Attributes; the size includes data not yet logged.
    pub fn getattr(&self, ino: InodeId) -> Result<Attr> {
        unimplemented!()
    }
    /// Changes attributes. Truncation clears set-ids unless the caller is uid 0.
    pub fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> Result<Attr> {
        unimplemented!()
    }
    /// Creates a regular file. `mode` has had the umask applied. A set-group-id parent gives its group.
    pub fn create(&self, caller: Caller, parent: InodeId, name: &[u8], mode: u32) -> Result<Attr> {
        unimplemented!()
    }
    /// Creates a directory.
    pub fn mkdir(&self, caller: Caller, parent: InodeId, name: &[u8], mode: u32) -> Result<Attr> {
        unimplemented!()
    }
    /// Creates a symbolic link.
    pub fn symlink(&self, caller: Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        unimplemented!()
    }
    /// The target of a symbolic link.
    pub fn readlink(&self, ino: InodeId) -> Result<Vec<u8>> {
        unimplemented!()
    }
    /// Gives `ino` another name.
    pub fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        unimplemented!()
    }
    /// Removes a name that is not a directory's. The inode lives on while it is open.
    pub fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    /// Renames. Over an existing file, the source's data is logged first.
    pub fn rename(&self, parent: InodeId, name: &[u8], new_parent: InodeId, new_name: &[u8], mode: RenameMode) -> Result<()> {
        unimplemented!()
    }

    /// Counts an open handle: while there is one, an unlinked inode lives on. `truncate` empties it first.
    pub fn open_inode(&self, caller: Caller, ino: InodeId, truncate: bool) -> Result<()> {
        unimplemented!()
    }
    /// Ends a handle.
    pub fn release_inode(&self, ino: InodeId) -> Result<()> {
        unimplemented!()
    }
    /// Bytes at `offset`, fewer at the end of the file. Holes read as zeros.
    pub fn read(&self, ino: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        unimplemented!()
    }
    /// Writes into memory, with space set aside. May write less than asked when space runs out in the middle.
    /// Clears set-ids unless the caller is uid 0.
    pub fn write(&self, caller: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize> {
        unimplemented!()
    }
    /// Makes this file durable: its data, its attributes and every change of names before.
    pub fn fsync(&self, ino: InodeId) -> Result<()> {
        unimplemented!()
    }
    /// [`Filesystem::fsync`] that calls `done` instead of waiting for the flush.
    pub fn fsync_then(&self, ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) {
        unimplemented!()
    }
    /// Logs this file's dirty data (writes it first or lets it ride), without waiting for a flush.
    pub fn flush_file(&self, ino: InodeId) -> Result<()> {
        unimplemented!()
    }
    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        unimplemented!()
    }

    /// Entries of a directory after `cookie` (0: from the start), until `each` returns false.
    pub fn readdir(&self, ino: InodeId, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        unimplemented!()
    }

    /// Sets an extended attribute (`user.` now; the other namespaces later).
    pub fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        unimplemented!()
    }
    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        unimplemented!()
    }
    /// Names of all extended attributes.
    pub fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>> {
        unimplemented!()
    }
    /// Removes an extended attribute.
    pub fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        unimplemented!()
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        unimplemented!()
    }
    /// Place in the log of the last change.
    pub fn position(&self) -> Lsn {
        unimplemented!()
    }
    /// Place up to which the log is durable.
    pub fn durable_position(&self) -> Lsn {
        unimplemented!()
    }
    /// Writes a checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        unimplemented!()
    }
    /// Does background work that is due (write-back, reaping, commit, checkpoint) until there is none. For callers
    /// that opened with `background: false`; with it, this happens by itself.
    pub fn maintain(&self) -> Result<()> {
        unimplemented!()
    }
    /// Engine counters.
    pub fn store_stats(&self) -> StoreStats {
        unimplemented!()
    }
    /// Where the space is.
    pub fn space(&self) -> SpaceStats {
        unimplemented!()
    }
    /// Counters of the devices, in order.
    pub fn device_stats(&self) -> Vec<(String, varve_device::StatsSnapshot)> {
        unimplemented!()
    }
    /// Compares everything that is derived with a full scan of everything that exists: engine (trees, bitmaps,
    /// checksums) and filesystem (names against inodes, link counts, extents, orphans, versions). Changes nothing.
    pub fn check(&self, verify_data: bool) -> Result<CheckReport> {
        unimplemented!()
    }
}
