//! The numbers and structures that `/dev/fuse` speaks: facts of the kernel's interface, version 7, in the machine's byte
//! order. Fields of structures that nobody here looks at are there for their size.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The only major version there is.
pub const MAJOR: u32 = 7;
/// The minor version whose structures are used here.
pub const MINOR: u32 = 40;
/// The oldest minor version of a kernel that is served (Linux 5.4): all that is asked for without a flag is known there.
pub const MINOR_LEAST: u32 = 31;
/// The first minor version (Linux 5.14) of which every kernel judges who may set flags of an inode.
pub const MINOR_JUDGES_FLAGS: u32 = 34;
/// The first minor version (Linux 6.1) of which every kernel judges who may make a program with set-group-id.
pub const MINOR_JUDGES_SET_GID: u32 = 37;

/// The kernel's number for the root, which is also ours.
pub const ROOT: u64 = 1;

/// What a request asks for.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// What kernel and filesystem agree on when a mount begins.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    /// Nodes are found by their number alone, with the names "." and "..".
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    #[cfg(test)]
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The upper half of the flags counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files that are opened past the kernel's cache can be mapped to be changed, too (Linux 6.6).
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come through rings, see [`super::RingHead`].
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Which fields of a [`SetattrIn`] count.
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// What the kernel may do with an open file or directory.
pub mod open {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
}

/// Which fields of a [`Statx`] count.
pub mod statx {
    /// All that stat(2) shows.
    pub const BASIC: u32 = 0x7ff;
    pub const BTIME: u32 = 0x800;
    /// In [`super::Statx::attributes`].
    pub const ATTR_IMMUTABLE: u64 = 0x10;
    pub const ATTR_APPEND: u64 = 0x20;
    pub const ATTR_NODUMP: u64 = 0x40;
}

/// Requests of ioctl(2) that files and directories answer, and the flags of chattr in them. Their numbers say how long what
/// they carry is, so the kernel carries it without being asked to.
pub mod ioctl {
    use std::ffi::c_long;

    use rustix::ioctl::opcode;

    use super::{FstrimRange, Fsxattr};

    pub const GET_FLAGS: u32 = opcode::read::<c_long>(b'f', 1);
    pub const SET_FLAGS: u32 = opcode::write::<c_long>(b'f', 2);
    pub const GET_FSXATTR: u32 = opcode::read::<Fsxattr>(b'X', 31);
    pub const SET_FSXATTR: u32 = opcode::write::<Fsxattr>(b'X', 32);
    /// Of the whole filesystem, whatever it is asked of.
    pub const TRIM: u32 = opcode::read_write::<FstrimRange>(b'X', 121);

    pub const SYNC: u32 = 0x8;
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND: u32 = 0x20;
    pub const NODUMP: u32 = 0x40;
    pub const NOATIME: u32 = 0x80;
    pub const DIRSYNC: u32 = 0x10000;

    /// In [`Fsxattr::xflags`], which has no word for DIRSYNC.
    pub mod x {
        pub const IMMUTABLE: u32 = 0x8;
        pub const APPEND: u32 = 0x10;
        pub const SYNC: u32 = 0x20;
        pub const NOATIME: u32 = 0x40;
        pub const NODUMP: u32 = 0x80;
    }
}

/// The flags that come with [`ioctl::SET_FLAGS`]: as long as the number says, or, from the kernel itself, as a flag is. `None`: it
/// is too short.
pub fn ioctl_flags(data: &[u8]) -> Option<u32> {
    u32::read_from_prefix(data).ok().map(|(bits, _)| bits)
}

/// What comes with [`ioctl::SET_FSXATTR`]. `None`: it is too short.
pub fn ioctl_fsxattr(data: &[u8]) -> Option<Fsxattr> {
    Fsxattr::read_from_prefix(data).ok().map(|(asked, _)| asked)
}

/// What comes with [`ioctl::TRIM`]. `None`: it is too short.
pub fn ioctl_trim(data: &[u8]) -> Option<FstrimRange> {
    FstrimRange::read_from_prefix(data).ok().map(|(asked, _)| asked)
}

/// In [`WriteIn::write_flags`]: pages that were changed through mmap, in nobody's name.
pub const WRITE_CACHE: u32 = 1 << 0;
/// In [`WriteIn::write_flags`] and [`ReadIn::read_flags`]: it says who has the file open, which is said of what goes past the kernel's cache
/// and not of what fills that.
pub const LOCK_OWNER: u32 = 1 << 1;
/// In [`WriteIn::write_flags`]: set-id bits go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In [`SetxattrExt::setxattr_flags`]: setting this access control list ends the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// What the kernel can be told without having asked.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
}

/// In front of every request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Of the whole request.
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub extensions: u16,
    pub padding: u16,
}

/// What a ring's request and its answer have beside their payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingHead {
    /// An [`InHeader`], then an [`OutHeader`].
    pub in_out: [u8; 128],
    /// The structure that a request of this kind begins with, if it does with one.
    pub op: [u8; 128],
    pub flags: u64,
    /// Names the request when it is answered.
    pub commit_id: u64,
    pub payload_bytes: u32,
    pub padding: u32,
    pub reserved: u64,
}

/// In a command to the kernel's end of a ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingCommand {
    pub flags: u64,
    pub commit_id: u64,
    pub queue: u16,
    pub padding: [u8; 6],
}

/// In front of every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    /// Of the whole reply.
    pub len: u32,
    /// An errno, negative, or 0; of a notification what it is.
    pub error: i32,
    pub unique: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime_ns: u32,
    pub mtime_ns: u32,
    pub ctime_ns: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryOut {
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_ns: u32,
    pub attr_valid_ns: u32,
    pub attr: Attr,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_ns: u32,
    pub padding: u32,
    pub attr: Attr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatxTime {
    pub seconds: i64,
    pub nanoseconds: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Statx {
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub padding: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: StatxTime,
    pub btime: StatxTime,
    pub ctime: StatxTime,
    pub mtime: StatxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare: [u64; 14],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatxOut {
    pub attr_valid: u64,
    pub attr_valid_ns: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    pub stat: Statx,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenOut {
    pub fh: u64,
    pub open_flags: u32,
    pub backing: i32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateOut {
    pub entry: EntryOut,
    pub open: OpenOut,
}

/// How much was written, or how long something is that was asked for with a length of 0.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SizeOut {
    pub size: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatfsOut {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LseekOut {
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlOut {
    pub result: i32,
    pub flags: u32,
    pub in_iovs: u32,
    pub out_iovs: u32,
}

/// What [`ioctl::TRIM`] carries, in bytes; back comes how much was trimmed, as the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FstrimRange {
    pub start: u64,
    pub len: u64,
    pub minimum: u64,
}

/// What [`ioctl::GET_FSXATTR`] and [`ioctl::SET_FSXATTR`] carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fsxattr {
    pub xflags: u32,
    pub extent_size: u32,
    pub extents: u32,
    pub project: u32,
    pub cow_extent_size: u32,
    pub padding: [u8; 8],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    /// Nanoseconds that a time is kept to.
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub request_timeout: u16,
    pub unused: [u16; 11],
}

/// In front of each name of a listing, which is filled up to a multiple of 8 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Dirent {
    pub ino: u64,
    pub off: u64,
    pub namelen: u32,
    pub kind: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DirentPlus {
    pub entry: EntryOut,
    pub dirent: Dirent,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyInvalInode {
    pub ino: u64,
    pub offset: i64,
    pub len: i64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyInvalEntry {
    pub parent: u64,
    pub namelen: u32,
    pub flags: u32,
}

/// What every kernel sends that begins a mount; newer ones send more.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ForgetIn {
    pub lookups: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ForgetOne {
    pub nodeid: u64,
    pub lookups: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BatchForgetIn {
    pub count: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetattrIn {
    pub valid: u32,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub atime_ns: u32,
    pub mtime_ns: u32,
    pub ctime_ns: u32,
    pub mode: u32,
    pub unused_4: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused_5: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatxIn {
    pub getattr_flags: u32,
    pub padding: u32,
    pub fh: u64,
    pub flags: u32,
    /// What the kernel wants to know; it may be told more.
    pub mask: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MknodIn {
    pub mode: u32,
    pub rdev: u32,
    pub umask: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MkdirIn {
    pub mode: u32,
    pub umask: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RenameIn {
    pub new_parent: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rename2In {
    pub new_parent: u64,
    pub flags: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LinkIn {
    pub nodeid: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenIn {
    pub flags: i32,
    pub open_flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateIn {
    pub flags: i32,
    pub mode: u32,
    pub umask: u32,
    pub open_flags: u32,
}

/// Of files and of directories.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: u32,
    pub lock_owner: u64,
    pub flags: i32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: u32,
    pub lock_owner: u64,
    pub flags: i32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetxattrIn {
    pub size: u32,
    pub flags: i32,
}

/// Follows [`SetxattrIn`] if [`init::SETXATTR_EXT`] was agreed on.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetxattrExt {
    pub setxattr_flags: u32,
    pub padding: u32,
}

/// How long an answer may be, in [`opcode::GETXATTR`] and [`opcode::LISTXATTR`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetxattrIn {
    pub size: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptIn {
    pub unique: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LseekIn {
    pub fh: u64,
    pub offset: i64,
    pub whence: i32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: i32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlIn {
    pub fh: u64,
    pub flags: u32,
    pub cmd: u32,
    pub arg: u64,
    pub in_size: u32,
    pub out_size: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CopyIn {
    pub fh_from: u64,
    pub offset_from: u64,
    pub nodeid_to: u64,
    pub fh_to: u64,
    pub offset_to: u64,
    pub len: u64,
    pub flags: u64,
}

// What the kernel will count.
const _: () = assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
const _: () = assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104);
const _: () =
    assert!(size_of::<StatxIn>() == 24 && size_of::<Statx>() == 256 && size_of::<StatxOut>() == 288);
const _: () = assert!(size_of::<CreateOut>() == 144 && size_of::<StatfsOut>() == 80);
const _: () = assert!(size_of::<InitOut>() == 64 && size_of::<DirentPlus>() == 152);
const _: () =
    assert!(size_of::<SetattrIn>() == 88 && size_of::<WriteIn>() == 40 && size_of::<ReadIn>() == 40);
const _: () =
    assert!(size_of::<IoctlIn>() == 32 && size_of::<IoctlOut>() == 16 && size_of::<Fsxattr>() == 28);
const _: () = assert!(size_of::<FstrimRange>() == 24);
const _: () = assert!(size_of::<RingHead>() == 288 && size_of::<RingCommand>() == 24);
const _: () = assert!(size_of::<CopyIn>() == 56 && size_of::<FallocateIn>() == 32);
