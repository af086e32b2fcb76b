//! What is known of a file: kinds, attributes, times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What kind of file something is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FileType {
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

impl FileType {
    pub(crate) fn of(kind: varve_fs::FileKind) -> FileType {
        match kind {
            varve_fs::FileKind::File => FileType::File,
            varve_fs::FileKind::Directory => FileType::Directory,
            varve_fs::FileKind::Symlink => FileType::Symlink,
            varve_fs::FileKind::Fifo => FileType::Fifo,
            varve_fs::FileKind::Socket => FileType::Socket,
            varve_fs::FileKind::CharDevice => FileType::CharDevice,
            varve_fs::FileKind::BlockDevice => FileType::BlockDevice,
        }
    }

    pub(crate) fn below(self) -> varve_fs::FileKind {
        match self {
            FileType::File => varve_fs::FileKind::File,
            FileType::Directory => varve_fs::FileKind::Directory,
            FileType::Symlink => varve_fs::FileKind::Symlink,
            FileType::Fifo => varve_fs::FileKind::Fifo,
            FileType::Socket => varve_fs::FileKind::Socket,
            FileType::CharDevice => varve_fs::FileKind::CharDevice,
            FileType::BlockDevice => varve_fs::FileKind::BlockDevice,
        }
    }

    /// Whether this is a regular file.
    pub fn is_file(self) -> bool {
        self == FileType::File
    }

    /// Whether this is a directory.
    pub fn is_dir(self) -> bool {
        self == FileType::Directory
    }

    /// Whether this is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }
}

/// Flags that chattr(1) and [`crate::Filesystem::set_flags`] set on files and directories.
///
/// ```
/// let mut flags = varvefs::Flags::default();
/// flags.immutable = true;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Flags {
    /// Nothing of it may change, nor its names and those in it.
    pub immutable: bool,
    /// Bytes may be added at its end, or names to it; nothing else may change.
    pub append_only: bool,
    /// Not for backups.
    pub no_dump: bool,
    /// Reading does not change its access time.
    pub no_access_time: bool,
    /// Through a mount, changes of it are durable before they are answered.
    pub durable: bool,
    /// The same of the names in a directory.
    pub durable_names: bool,
}

impl Flags {
    pub(crate) fn of(flags: varve_fs::FileFlags) -> Flags {
        let has = |flag| flags.intersects(flag);
        Flags {
            immutable: has(varve_fs::FileFlags::IMMUTABLE),
            append_only: has(varve_fs::FileFlags::APPEND_ONLY),
            no_dump: has(varve_fs::FileFlags::NO_DUMP),
            no_access_time: has(varve_fs::FileFlags::NO_ACCESS_TIME),
            durable: has(varve_fs::FileFlags::DURABLE),
            durable_names: has(varve_fs::FileFlags::DURABLE_NAMES),
        }
    }

    pub(crate) fn below(self) -> varve_fs::FileFlags {
        let each = [
            (self.immutable, varve_fs::FileFlags::IMMUTABLE),
            (self.append_only, varve_fs::FileFlags::APPEND_ONLY),
            (self.no_dump, varve_fs::FileFlags::NO_DUMP),
            (self.no_access_time, varve_fs::FileFlags::NO_ACCESS_TIME),
            (self.durable, varve_fs::FileFlags::DURABLE),
            (self.durable_names, varve_fs::FileFlags::DURABLE_NAMES),
        ];
        let set = each.into_iter().filter(|(is_set, _)| *is_set);
        set.fold(varve_fs::FileFlags::NONE, |all, (_, flag)| all | flag)
    }
}

/// The attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metadata {
    /// Kind.
    pub file_type: FileType,
    /// Inode number, unique in the pool, and not used again while the pool is open: what a deleted subvolume had may be given out
    /// after the next opening.
    pub inode: u64,
    /// Permission bits, with set-id and sticky (07777).
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Names that lead to it. Of a directory: 2, and one for each directory in it.
    pub links: u32,
    /// Size in bytes; of a symbolic link the length of its target; of a directory the number of its entries, subvolumes aside: one of
    /// length 0 may have subvolumes in it. It is empty if [`crate::Filesystem::read_dir`] lists nothing.
    pub len: u64,
    /// Device number, of device nodes, as Linux packs it into 32 bits.
    pub device: u32,
    /// Flags of chattr(1).
    pub flags: Flags,
    /// Last access. Reading does not change it.
    pub accessed: SystemTime,
    /// Last change of contents.
    pub modified: SystemTime,
    /// Last change of contents or attributes.
    pub changed: SystemTime,
    /// Creation.
    pub created: SystemTime,
    pub(crate) is_subvolume: bool,
}

impl Metadata {
    pub(crate) fn of(attr: &varve_fs::Attr) -> Metadata {
        Metadata {
            file_type: FileType::of(attr.kind),
            inode: varve_fs::shown_number(attr.ino),
            mode: attr.mode,
            user: attr.uid,
            group: attr.gid,
            links: attr.links,
            len: attr.size,
            device: attr.rdev,
            flags: Flags::of(attr.flags),
            accessed: system_time(attr.atime),
            modified: system_time(attr.mtime),
            changed: system_time(attr.ctime),
            created: system_time(attr.btime),
            is_subvolume: varve_fs::subvolume_root(attr.ino) == attr.ino,
        }
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type.is_file()
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type.is_dir()
    }

    /// Whether this is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type.is_symlink()
    }

    /// Whether this is the root directory of a subvolume: that of the filesystem is one, too.
    ///
    /// ```
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.create_subvolume("/project")?;
    /// fs.create_dir("/project/src")?;
    /// assert!(fs.metadata("/project")?.is_subvolume());
    /// assert!(!fs.metadata("/project/src")?.is_subvolume());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_subvolume(&self) -> bool {
        self.is_subvolume
    }
}

/// Times to set; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Last access.
    pub accessed: Option<SystemTime>,
    /// Last change of contents.
    pub modified: Option<SystemTime>,
}

/// What setting an extended attribute does about one that is there or is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Refuse if it is there.
    Create,
    /// Refuse if it is not there.
    Replace,
}

impl XattrMode {
    pub(crate) fn below(self) -> varve_fs::XattrMode {
        match self {
            XattrMode::Set => varve_fs::XattrMode::Set,
            XattrMode::Create => varve_fs::XattrMode::Create,
            XattrMode::Replace => varve_fs::XattrMode::Replace,
        }
    }
}

/// What [`crate::File::allocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Sets space aside where there is a hole, so that writing there cannot fail for lack of space. It goes on reading as
    /// zeros. The file grows to the end of the range unless `keep_size`. Clones and snapshots made later share it: the
    /// first who writes there has it, and who asks for it once more gets his own.
    Reserve {
        /// Whether the length stays.
        keep_size: bool,
    },
    /// Makes the range a hole: zeros that take no space. The length stays.
    Punch,
    /// Makes the range zeros that have space set aside. On a full pool data that is the file's alone is written over with zeros
    /// instead, which can be written over again.
    Zero {
        /// Whether the length stays.
        keep_size: bool,
    },
}

impl Allocate {
    pub(crate) fn below(self) -> varve_fs::Allocate {
        match self {
            Allocate::Reserve { keep_size } => varve_fs::Allocate::Reserve { keep_size },
            Allocate::Punch => varve_fs::Allocate::Punch,
            Allocate::Zero { keep_size } => varve_fs::Allocate::Zero { keep_size },
        }
    }
}

/// A time as the filesystem keeps it: exact from 292 billion years ago to as long hence.
pub(crate) fn timestamp(time: SystemTime) -> varve_fs::Timestamp {
    let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanoseconds => (seconds.saturating_sub(1), 1_000_000_000 - nanoseconds),
            }
        }
    };
    varve_fs::Timestamp { seconds, nanoseconds }
}

/// The other way round. What this system cannot express becomes 1970.
pub(crate) fn system_time(time: varve_fs::Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole =
        if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: times survive the way down and back to the nanosecond, before 1970 too. Method: round trips of edges.
    #[test]
    fn times_round_trip() {
        let ns = Duration::from_nanos;
        for time in [
            UNIX_EPOCH,
            UNIX_EPOCH - ns(1),
            UNIX_EPOCH - ns(1_000_000_000),
            UNIX_EPOCH - ns(1_000_000_001),
            UNIX_EPOCH + ns(999_999_999),
            UNIX_EPOCH + Duration::new(1 << 33, 5),
            UNIX_EPOCH - Duration::new(1 << 40, 5),
        ] {
            let below = timestamp(time);
            assert!(below.nanoseconds < 1_000_000_000);
            assert_eq!(system_time(below), time, "{below:?}");
        }
        assert_eq!(
            timestamp(UNIX_EPOCH - ns(1)),
            varve_fs::Timestamp { seconds: -1, nanoseconds: 999_999_999 }
        );
    }
}
