//! What a tree on this system has, read and written without following a link.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, IFlags, Mode, OFlags, ResolveFlags, SeekFrom, Stat, StatxAttributes, StatxFlags,
    Timespec, Timestamps,
};
use rustix::io::Errno;
use varve_fs::{FileFlags, FileKind, Timestamp};

use super::held::{Held, hold};
use crate::names::{Shown, in_words};

/// Flags of chattr(1) that a pool keeps. Those that forbid changes come last.
const FLAGS: [(IFlags, FileFlags); 6] = [
    (IFlags::NODUMP, FileFlags::NO_DUMP),
    (IFlags::NOATIME, FileFlags::NO_ACCESS_TIME),
    (IFlags::SYNC, FileFlags::DURABLE),
    (IFlags::DIRSYNC, FileFlags::DURABLE_NAMES),
    (IFlags::APPEND, FileFlags::APPEND_ONLY),
    (IFlags::IMMUTABLE, FileFlags::IMMUTABLE),
];

/// Whoever exports needs these of a directory of his own, to change what is in it. Nobody else has any of what has only these.
pub const OWNER_BITS: u32 = 0o700;

/// Name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// What stat says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostStat {
    pub kind: FileKind,
    /// Permission bits with set-ids and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub links: u64,
    /// Device number of a device node, packed as in a pool.
    pub rdev: u32,
    /// Filesystem and inode.
    pub id: (u64, u64),
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl HostStat {
    fn of(stat: &Stat) -> HostStat {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice => FileKind::CharDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            _ => FileKind::File,
        };
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        HostStat {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            links: stat.st_nlink,
            rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
            id: (stat.st_dev, stat.st_ino),
            atime: Timestamp { seconds: stat.st_atime, nanoseconds: stat.st_atime_nsec as u32 },
            mtime: Timestamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 },
            ctime: Timestamp { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as u32 },
        }
    }
}

/// Major and minor number of a device as a pool packs it.
pub fn device_number(rdev: u32) -> rustix::fs::Dev {
    rustix::fs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & !0xff))
}

/// Looks at `name` in `dir`.
pub fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<HostStat, Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| HostStat::of(&stat))
}

/// Looks at an open file.
pub fn stat_of(file: impl AsFd) -> Result<HostStat, Errno> {
    rustix::fs::fstat(file).map(|stat| HostStat::of(&stat))
}

/// The target of the symbolic link `name` in `dir`; `None`: it is not the one that was looked at any more.
pub fn read_link(dir: BorrowedFd<'_>, name: &[u8], stat: &HostStat) -> Result<Option<Vec<u8>>, Errno> {
    let link = hold(dir, name)?;
    if stat_of(&link)?.id != stat.id {
        return Ok(None);
    }
    rustix::fs::readlinkat(&link, c"", Vec::new()).map(|target| Some(target.into_bytes()))
}

/// Whether something is mounted on `name` in `dir`. Kernels before 5.8 do not tell.
pub fn is_mount_point(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Opens `name` in `dir` to read it, leaving its access time alone where that is allowed.
pub fn open_at(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(dir, name, flags, Mode::empty()),
        result => result,
    }
}

/// The names in a directory, in the order of their inodes: that is the order on most disks.
pub fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push((entry.ino(), name.to_vec()));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}

/// The range of data at or after `at`. `None`: only a hole is left.
pub fn next_data(file: &OwnedFd, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    if at >= size {
        return Ok(None);
    }
    let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that does not know its holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno),
    };
    // A file that grows meanwhile is copied as far as it went when it was looked at.
    let end = rustix::fs::seek(file, SeekFrom::Hole(begin))?.min(size);
    Ok((begin < end).then_some((begin, end)))
}

/// Gives a file that has no name yet `name` in `dir`.
pub fn give_name(file: &OwnedFd, dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(rustix::fs::CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Sets the permission bits of `name` in `dir`, which is no symbolic link: of one they would be those of what it leads to.
pub fn set_mode(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<(), Errno> {
    Held::of(&hold(dir, name)?).set_mode(mode)
}

/// Opens the directory that `path` below `root` lies in, without following a link on the way, and gives it with the last name.
pub fn parent_of<'p>(root: &OwnedFd, path: &'p Path) -> Result<(OwnedFd, &'p [u8]), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = path.file_name().ok_or(Errno::INVAL)?.as_bytes();
    let parent = path.parent().unwrap_or(Path::new(""));
    let way = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, way, flags, Mode::empty(), resolve) {
        // Not there, not for this process, or not for so long a way.
        Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => {
            let mut at = rustix::fs::openat(root, ".", flags, Mode::empty())?;
            for name in parent.components() {
                at = rustix::fs::openat(&at, name.as_os_str(), flags, Mode::empty())?;
            }
            Ok((at, name))
        }
        at => Ok((at?, name)),
    }
}

/// The flags of an open file or directory. `None`: it has none where it lies, or they cannot be told.
pub fn flags(file: BorrowedFd<'_>) -> Option<FileFlags> {
    let bits = rustix::fs::ioctl_getflags(file).ok()?;
    let there = FLAGS.iter().filter(|(bit, _)| bits.contains(*bit));
    Some(there.fold(FileFlags::NONE, |flags, (_, flag)| flags | *flag))
}

/// The flags of what is there, which may have to be taken away while it is changed.
pub struct Flagged<'a> {
    /// `None`: it can have none.
    file: Option<BorrowedFd<'a>>,
    /// Before anything was done.
    pub had: FileFlags,
    pub now: FileFlags,
}

impl<'a> Flagged<'a> {
    /// Asks what is open; nothing is known of what is not.
    pub fn of(file: Option<BorrowedFd<'a>>) -> Flagged<'a> {
        let flags = file.and_then(flags);
        let had = flags.unwrap_or(FileFlags::NONE);
        Flagged { file: file.filter(|_| flags.is_some()), had, now: had }
    }

    /// Takes away what forbids changes. Where that is refused, so is the change.
    pub fn free(&mut self) {
        if self.now.intersects(FileFlags::PROTECTING) {
            self.set(self.now.without(FileFlags::PROTECTING));
        }
    }

    /// Sets these flags, or those of them that are taken; then false. Such as no pool keeps stay as they are.
    pub fn set(&mut self, wanted: FileFlags) -> bool {
        if wanted == self.now {
            return true;
        }
        let Some(file) = self.file else { return false };
        let Ok(bits) = rustix::fs::ioctl_getflags(file) else { return false };
        let mut kept = FLAGS.iter().fold(bits, |bits, (bit, _)| bits.difference(*bit));
        let asked = || FLAGS.iter().filter(|(_, flag)| wanted.intersects(*flag)).map(|(bit, _)| *bit);
        let all = asked().fold(kept, IFlags::union);
        if rustix::fs::ioctl_setflags(file, all).is_err() {
            // One after the other.
            for bit in asked() {
                if rustix::fs::ioctl_setflags(file, kept.union(bit)).is_ok() {
                    kept = kept.union(bit);
                }
            }
        }
        self.now = flags(file).unwrap_or(self.now);
        wanted == self.now
    }
}

/// Access and modification time as the kernel takes them.
pub fn times(atime: Timestamp, mtime: Timestamp) -> Timestamps {
    let at = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) };
    Timestamps { last_access: at(atime), last_modification: at(mtime) }
}

/// Lets the process have as many files open as it may: a directory stays open while what is in it is copied.
pub fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it cannot be raised, very deep trees say so when they get there.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Opens the directory `path`, links followed.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    // Nothing else is opened: to open a pipe is to wait for somebody at its other end.
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// FUSE, as statfs(2) tells types.
const FUSE: i64 = 0x6573_5546;

/// Whether a process answers for the filesystem of `fd`. It may see what is changed through mmap when the kernel writes it back, and
/// no sooner; and syncfs(2) makes it make nothing durable.
pub fn is_in_user_space(fd: &impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == FUSE)
}

/// Has the kernel write back what it has of an open file, and waits for that; whoever changes it through mmap afterwards moves its times.
pub fn write_back(file: &OwnedFd) {
    if is_in_user_space(file) {
        crate::pages::write_back(file);
    } else {
        // What cannot be written back is told to whoever syncs the file.
        let _ = rustix::fs::fdatasync(file);
    }
}

/// Makes what was written to the filesystem of `fd` durable.
pub fn sync_filesystem(fd: &impl AsFd) -> Result<(), Errno> {
    rustix::fs::syncfs(fd)
}

/// Makes the target directory, with those above it, if it is not there. It is its owner's alone until it gets its bits, which is last:
/// what is in it may be private because of them.
pub fn make_target(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent() {
        std::fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(OWNER_BITS).create(dir) {
        // Made by somebody else in between.
        Err(_) if dir.is_dir() => Ok(()),
        made => made,
    }
}

/// Why [`make_target`] failed: as often as not because something on the way is no directory.
pub fn why_not_made(dir: &Path, error: &io::Error) -> String {
    let there = dir.ancestors().find(|above| above.symlink_metadata().is_ok());
    match there.filter(|there| !there.is_dir()) {
        Some(there) => format!("{} is not a directory; name another", there.shown()),
        None => in_words(error),
    }
}

/// Opens the target directory, which may keep its owner out since it was exported to before.
pub fn open_target(dir: &Path, superuser: bool) -> io::Result<OwnedFd> {
    if !superuser
        && let Ok(have) = std::fs::metadata(dir)
        && have.mode() & OWNER_BITS != OWNER_BITS
    {
        // If it cannot be, what is done there says why.
        let bits = Permissions::from_mode((have.mode() & 0o7777) | OWNER_BITS);
        let _ = std::fs::set_permissions(dir, bits);
    }
    open_directory(dir)
}

/// Gives `name` in `dir` another name, or takes it away, whatever its flags.
pub fn freed(dir: BorrowedFd<'_>, name: &[u8], change: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    match change() {
        // To open anything else may have effects of its own, and that has no flags.
        Err(Errno::PERM) if stat_at(dir, name).is_ok_and(|have| have.kind == FileKind::File) => {
            let file = open_at(dir, name, OFlags::empty())?;
            let mut flags = Flagged::of(Some(file.as_fd()));
            flags.free();
            let changed = change();
            // It may have other names.
            flags.set(flags.had);
            changed
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::*;

    // Goal: what is done to a name, or to a path below the target, never goes where a link leads that somebody has put there. Method:
    // a link in the place of a file and of a directory; the bits of what it leads to, and the answers.
    #[test]
    fn no_link_is_followed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (target, outside) = (scratch.path().join("target"), scratch.path().join("outside"));
        for dir in [&target, &outside, &target.join("dir")] {
            std::fs::create_dir(dir).expect("a directory");
        }
        std::fs::write(outside.join("file"), "somebody's").expect("a file");
        std::fs::set_permissions(outside.join("file"), std::fs::Permissions::from_mode(0o600)).expect("bits");
        symlink(outside.join("file"), target.join("file")).expect("a link");
        symlink(&outside, target.join("way")).expect("a link");
        std::fs::write(target.join("dir/own"), "ours").expect("a file");
        let root = open_directory(&target).expect("it is there");
        assert_eq!(set_mode(root.as_fd(), b"file", 0o777), Err(Errno::LOOP));
        let bits = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
        assert_eq!(bits(&outside.join("file")), 0o600);
        assert!(parent_of(&root, Path::new("way/file")).is_err());
        let (dir, name) = parent_of(&root, Path::new("dir/own")).expect("no link there");
        set_mode(dir.as_fd(), name, 0o640).expect("it is ours");
        assert_eq!(bits(&target.join("dir/own")), 0o640);
        let (dir, name) = parent_of(&root, Path::new("file")).expect("no link on the way");
        assert_eq!(
            (stat_at(dir.as_fd(), name).map(|stat| stat.kind), name),
            (Ok(FileKind::Symlink), &b"file"[..])
        );
    }
}
