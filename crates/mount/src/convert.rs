//! Between the filesystem's types and those of the `fuser` crate.
//!
//! The one thing to know: `fuser` 0.18 decodes a time before 1970 that has a fraction on the wrong side of its second
//! (-1.25 s, which is second -2 and 750,000,000 ns, arrives as 2.75 s before 1970). The mistake loses nothing, and
//! [`from_fuser_time`] undoes it. In the other direction `fuser` is right.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use varve_fs::{Attr, FileKind, SetTime, Timestamp};

/// Preferred size of I/O shown by stat, in bytes.
const IO_BYTES: u32 = 4096;

/// The kind of file in `fuser`'s words.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind of file that mknod is asked to make, from the upper bits of its mode (Linux numbers, part of the kernel's
/// ABI). Directories and symbolic links are not made this way.
pub fn file_kind(mode: u32) -> Option<FileKind> {
    match mode & 0o170000 {
        0 | 0o100000 => Some(FileKind::File),
        0o010000 => Some(FileKind::Fifo),
        0o140000 => Some(FileKind::Socket),
        0o020000 => Some(FileKind::CharDevice),
        0o060000 => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// Attributes in `fuser`'s words.
pub fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: to_system_time(attr.atime),
        mtime: to_system_time(attr.mtime),
        ctime: to_system_time(attr.ctime),
        crtime: to_system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: IO_BYTES,
        flags: 0,
    }
}

/// What an entry without an inode looks like: inode 0 makes the kernel remember that the name does not exist.
pub fn negative_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: IO_BYTES,
        flags: 0,
    }
}

/// A time to set, as it was meant.
pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(from_fuser_time(time)),
    }
}

/// The time the kernel sent, out of what `fuser` made of it.
pub fn from_fuser_time(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            // For second s < 0 and fraction n the kernel's (s, n) has become "-s seconds and n ns before 1970".
            let before = before.duration();
            Timestamp {
                seconds: 0i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

/// A timestamp as the point in time that it is. A malformed fraction (a billion nanoseconds or more) is cut off.
pub fn to_system_time(time: Timestamp) -> SystemTime {
    let fraction = Duration::new(0, time.nanoseconds.min(999_999_999));
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let second =
        if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    second.and_then(|second| second.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `fuser` 0.18 makes of the kernel's seconds and nanoseconds.
    fn as_fuser_decodes(seconds: i64, nanoseconds: u32) -> SystemTime {
        if seconds >= 0 {
            UNIX_EPOCH + Duration::new(seconds as u64, nanoseconds)
        } else {
            UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), nanoseconds)
        }
    }

    /// What `fuser` 0.18 sends to the kernel for a time.
    fn as_fuser_encodes(time: SystemTime) -> (i64, u32) {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
            Err(before) if before.duration().subsec_nanos() == 0 => {
                (0i64.wrapping_sub_unsigned(before.duration().as_secs()), 0)
            }
            Err(before) => {
                let before = before.duration();
                (-(before.as_secs() as i64) - 1, 1_000_000_000 - before.subsec_nanos())
            }
        }
    }

    // Goal: any time that utimensat can send comes back the same. Method: through fuser's decoding, ours, ours back,
    // and fuser's encoding, for seconds around 0 and at the ends, each with several fractions.
    #[test]
    fn times_survive_both_directions() {
        for seconds in [0, 1, -1, -2, -3, 1_700_000_000, -1_700_000_000, i64::MAX, -i64::MAX] {
            for nanoseconds in [0, 1, 250_000_000, 750_000_000, 999_999_999] {
                let stored = from_fuser_time(as_fuser_decodes(seconds, nanoseconds));
                assert_eq!(stored, Timestamp { seconds, nanoseconds });
                assert_eq!(as_fuser_encodes(to_system_time(stored)), (seconds, nanoseconds));
            }
        }
        let least = Timestamp { seconds: i64::MIN, nanoseconds: 0 };
        assert_eq!(from_fuser_time(as_fuser_decodes(i64::MIN, 0)), least);
        assert_eq!(as_fuser_encodes(to_system_time(least)), (i64::MIN, 0));
    }

    // Goal: -1.25 s is the second -2 and 0.75 s more. Method: the example of the module's text.
    #[test]
    fn a_quarter_before_minus_one() {
        let time = Timestamp { seconds: -2, nanoseconds: 750_000_000 };
        assert_eq!(UNIX_EPOCH - Duration::from_millis(1250), to_system_time(time));
    }

    // Goal: bytes from disk that are no fraction do not panic. Method: a fraction of four seconds.
    #[test]
    fn malformed_fractions_are_cut() {
        let time = Timestamp { seconds: 1, nanoseconds: u32::MAX };
        assert_eq!(as_fuser_encodes(to_system_time(time)), (1, 999_999_999));
    }
}
