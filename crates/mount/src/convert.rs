//! Between the filesystem's types and the kernel's.

use varve_fs::{Attr, FileFlags, FileKind, SetAttr, SetTime, Timestamp, shown_number};

use crate::kernel::abi::{self, AttrOut, EntryOut, SetattrIn, Statx, StatxOut, StatxTime, setattr, statx};

/// How long the kernel may believe what it was told, in seconds.
pub const CACHE_SECONDS: u64 = 3600;
/// Preferred size of I/O shown by stat, in bytes.
const IO_BYTES: u32 = 4096;

/// The upper bits of a mode (Linux numbers, part of the kernel's ABI).
pub fn mode_of(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => 0o100000,
        FileKind::Directory => 0o040000,
        FileKind::Symlink => 0o120000,
        FileKind::Fifo => 0o010000,
        FileKind::Socket => 0o140000,
        FileKind::CharDevice => 0o020000,
        FileKind::BlockDevice => 0o060000,
    }
}

/// The kind of file that mknod is asked to make, from the upper bits of its mode. Directories and symbolic links are not
/// made this way.
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

/// A malformed fraction of a second (a billion nanoseconds or more) is cut off.
fn fraction(time: Timestamp) -> u32 {
    time.nanoseconds.min(999_999_999)
}

/// Attributes as the kernel wants them.
pub fn attr(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: shown_number(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.seconds,
        mtime: attr.mtime.seconds,
        ctime: attr.ctime.seconds,
        atime_ns: fraction(attr.atime),
        mtime_ns: fraction(attr.mtime),
        ctime_ns: fraction(attr.ctime),
        mode: mode_of(attr.kind) | attr.mode & 0o7777,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: IO_BYTES,
        flags: 0,
    }
}

/// How long the kernel may believe attributes. Not at all those of a file with set-id bits: a write takes them away without a
/// word to the kernel, which then would run what has been written with the rights of the file's owner.
fn believed(of: &Attr) -> u64 {
    let set_ids = of.kind == FileKind::File && of.mode & 0o6000 != 0;
    if set_ids { 0 } else { CACHE_SECONDS }
}

/// Attributes, and how long the kernel may believe them.
pub fn attr_out(of: &Attr) -> AttrOut {
    AttrOut { attr_valid: believed(of), attr: attr(of), ..AttrOut::default() }
}

/// As [`attr_out`], with the time of birth.
pub fn statx_out(of: &Attr) -> StatxOut {
    let time = |time: Timestamp| StatxTime { seconds: time.seconds, nanoseconds: fraction(time), padding: 0 };
    let stat = Statx {
        mask: statx::BASIC | statx::BTIME,
        blksize: IO_BYTES,
        // Linux up to 6.18 passes over them.
        attributes: attributes(of.flags),
        attributes_mask: attributes(FileFlags::ALL),
        nlink: of.links,
        uid: of.uid,
        gid: of.gid,
        mode: (mode_of(of.kind) | of.mode & 0o7777) as u16,
        ino: shown_number(of.ino),
        size: of.size,
        blocks: of.blocks,
        atime: time(of.atime),
        btime: time(of.btime),
        ctime: time(of.ctime),
        mtime: time(of.mtime),
        // As the kernel takes an `rdev` of 32 bits apart: 12 bits of major between 8 and 12 of minor.
        rdev_major: of.rdev >> 8 & 0xfff,
        rdev_minor: of.rdev & 0xff | of.rdev >> 12 & 0xf_ff00,
        ..Statx::default()
    };
    StatxOut { attr_valid: believed(of), stat, ..StatxOut::default() }
}

fn attributes(flags: FileFlags) -> u64 {
    [
        (FileFlags::IMMUTABLE, statx::ATTR_IMMUTABLE),
        (FileFlags::APPEND_ONLY, statx::ATTR_APPEND),
        (FileFlags::NO_DUMP, statx::ATTR_NODUMP),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.intersects(*flag))
    .fold(0, |bits, (_, bit)| bits | bit)
}

/// A name's inode, with attributes.
pub fn entry_out(of: &Attr) -> EntryOut {
    EntryOut {
        nodeid: of.ino.0,
        // The kernel has made the root by itself, with generation 0, and some take another for another inode.
        generation: if of.ino.0 == abi::ROOT { 0 } else { of.generation },
        entry_valid: CACHE_SECONDS,
        attr_valid: believed(of),
        attr: attr(of),
        ..EntryOut::default()
    }
}

/// A name that does not exist: inode 0 makes the kernel remember that.
pub fn no_entry() -> EntryOut {
    EntryOut { entry_valid: CACHE_SECONDS, attr_valid: CACHE_SECONDS, ..EntryOut::default() }
}

/// What is to be changed.
pub fn set_attr(asked: &SetattrIn) -> SetAttr {
    let given = |flag: u32| asked.valid & flag != 0;
    let time = |flag, now, seconds, nanoseconds| match (given(flag), given(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(Timestamp { seconds, nanoseconds })),
    };
    SetAttr {
        mode: given(setattr::MODE).then_some(asked.mode & 0o7777),
        uid: given(setattr::UID).then_some(asked.uid),
        gid: given(setattr::GID).then_some(asked.gid),
        size: given(setattr::SIZE).then_some(asked.size),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, asked.atime, asked.atime_ns),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, asked.mtime, asked.mtime_ns),
    }
}

#[cfg(test)]
mod tests {
    use varve_fs::InodeId;

    use super::*;

    fn inode(mtime: Timestamp) -> Attr {
        Attr {
            ino: InodeId(5),
            generation: 9,
            kind: FileKind::Directory,
            mode: 0o1755,
            links: 2,
            uid: 3,
            gid: 4,
            rdev: 0,
            size: 10,
            blocks: 1,
            atime: mtime,
            mtime,
            ctime: mtime,
            btime: mtime,
            flags: FileFlags::NONE,
        }
    }

    // Goal: any time that utimensat can send is stored as it was meant and shown again the same, before 1970 too. Method:
    // through a request and back, for seconds around 0 and at the ends, each with several fractions.
    #[test]
    fn times_survive_both_directions() {
        for seconds in [0, 1, -1, -2, -3, 1_700_000_000, -1_700_000_000, i64::MAX, i64::MIN] {
            for nanoseconds in [0, 1, 250_000_000, 750_000_000, 999_999_999] {
                let valid = setattr::MTIME | setattr::ATIME | setattr::ATIME_NOW;
                let asked =
                    SetattrIn { valid, mtime: seconds, mtime_ns: nanoseconds, ..SetattrIn::default() };
                let set = set_attr(&asked);
                assert_eq!(set.atime, Some(SetTime::Now));
                let Some(SetTime::At(stored)) = set.mtime else { panic!("{set:?}") };
                assert_eq!(stored, Timestamp { seconds, nanoseconds });
                let shown = attr(&inode(stored));
                assert_eq!((shown.mtime, shown.mtime_ns), (seconds, nanoseconds));
            }
        }
    }

    // Goal: bytes from disk that are no fraction of a second are not shown as one. Method: a fraction of four seconds.
    #[test]
    fn malformed_fractions_are_cut() {
        let shown = attr(&inode(Timestamp { seconds: 1, nanoseconds: u32::MAX }));
        assert_eq!((shown.mtime, shown.mtime_ns), (1, 999_999_999));
    }

    // Goal: both ways to tell attributes say the same, and one of them the time of birth. Method: a device with a large
    // number, each field different, one time malformed.
    #[test]
    fn the_longer_attributes_are_the_shorter_and_more() {
        let time = |seconds| Timestamp { seconds, nanoseconds: 7 };
        let of = Attr {
            kind: FileKind::BlockDevice,
            mode: 0o4640,
            // makedev(0xabc, 0xdef12)
            rdev: 0xdefa_bc12,
            size: 77,
            blocks: 8,
            flags: FileFlags::IMMUTABLE | FileFlags::NO_DUMP | FileFlags::DURABLE,
            atime: time(-1),
            mtime: time(2),
            ctime: time(3),
            btime: Timestamp { seconds: -4, nanoseconds: u32::MAX },
            ..inode(time(0))
        };
        let (short, long) = (attr(&of), statx_out(&of).stat);
        assert_eq!((long.mask, long.attributes, long.attributes_mask), (0xfff, 0x50, 0x70));
        assert_eq!((long.rdev_major, long.rdev_minor), (0xabc, 0xd_ef12));
        assert_eq!(
            (
                u32::from(long.mode),
                long.nlink,
                long.uid,
                long.gid,
                long.ino,
                long.size,
                long.blocks,
                long.blksize
            ),
            (
                short.mode,
                short.nlink,
                short.uid,
                short.gid,
                short.ino,
                short.size,
                short.blocks,
                short.blksize
            )
        );
        for (long, seconds, nanoseconds) in [
            (long.atime, short.atime, short.atime_ns),
            (long.mtime, short.mtime, short.mtime_ns),
            (long.ctime, short.ctime, short.ctime_ns),
            (long.btime, -4, 999_999_999),
        ] {
            assert_eq!((long.seconds, long.nanoseconds), (seconds, nanoseconds));
        }
        let with = |kind| statx_out(&Attr { kind, mode: 0o4755, ..of }).attr_valid;
        assert_eq!((with(FileKind::File), with(FileKind::Directory)), (0, CACHE_SECONDS));
    }

    // Goal: only what is given is changed, and a mode's upper bits are no permissions. Method: one field after the other.
    #[test]
    fn what_is_not_given_stays() {
        let all =
            SetattrIn { mode: 0o100644, uid: 1, gid: 2, size: 3, atime: 4, mtime: 5, ..SetattrIn::default() };
        let only = |valid| set_attr(&SetattrIn { valid, ..all });
        assert_eq!(only(0), SetAttr::default());
        assert_eq!(only(setattr::ATIME_NOW), SetAttr::default());
        assert_eq!(only(setattr::MODE), SetAttr { mode: Some(0o644), ..SetAttr::default() });
        assert_eq!(only(setattr::UID), SetAttr { uid: Some(1), ..SetAttr::default() });
        assert_eq!(only(setattr::GID), SetAttr { gid: Some(2), ..SetAttr::default() });
        assert_eq!(only(setattr::SIZE), SetAttr { size: Some(3), ..SetAttr::default() });
    }

    // Goal: the kernel finds kind, permissions and number where it looks. Method: a directory's entry, and no entry.
    #[test]
    fn entries() {
        let entry = entry_out(&inode(Timestamp::default()));
        assert_eq!((entry.nodeid, entry.generation, entry.attr.ino), (5, 9, 5));
        assert_eq!((entry.attr.mode, entry.attr.nlink), (0o041755, 2));
        let root = entry_out(&Attr { ino: InodeId(abi::ROOT), ..inode(Timestamp::default()) });
        assert_eq!((root.nodeid, root.generation), (abi::ROOT, 0));
        assert_eq!((no_entry().nodeid, no_entry().entry_valid), (0, CACHE_SECONDS));
        for kind in [0o100000, 0o010000, 0o140000, 0o020000, 0o060000] {
            assert_eq!(file_kind(kind | 0o644).map(mode_of), Some(kind));
        }
        assert_eq!((file_kind(0o040000), file_kind(0o120000)), (None, None));
    }
}
