//! A filesystem that does nothing: every name that is asked for is a file, every file reads as the same bytes, and what is
//! created is numbered and forgotten. It keeps no lock and no memory of calls, so what it costs is the transport.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use varve_fs::{
    Allocate, Attr, Caller, DirEntry, FileKind, FsError, InodeId, NewInode, ROOT_INODE, RenameMode, SeekTo,
    SetAttr, StatFs, Timestamp, XattrMode,
};
use varve_mount::Verbs;

type Result<T> = std::result::Result<T, FsError>;

/// Bytes of the read that is timed.
pub const READ_BYTES: usize = 4096;

/// Names that begin so do not exist until they are created (and again afterwards, but the kernel remembers them).
const NEW: &[u8] = b"new-";

/// The filesystem.
pub struct NullFs {
    /// Number of the next inode.
    next: AtomicU64,
    file_bytes: u64,
}

impl NullFs {
    /// One whose files all have `file_bytes`.
    #[must_use]
    pub fn new(file_bytes: u64) -> NullFs {
        NullFs { next: AtomicU64::new(ROOT_INODE.0 + 1), file_bytes }
    }

    fn number(&self) -> InodeId {
        InodeId(self.next.fetch_add(1, Relaxed))
    }

    fn attr(&self, ino: InodeId) -> Attr {
        let root = ino == ROOT_INODE;
        let time = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
        Attr {
            ino,
            generation: 0,
            kind: if root { FileKind::Directory } else { FileKind::File },
            mode: if root { 0o755 } else { 0o644 },
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: if root { 0 } else { self.file_bytes },
            blocks: self.file_bytes / 512,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: varve_fs::FileFlags::NONE,
        }
    }
}

impl Verbs for NullFs {
    fn lookup(&self, _: InodeId, name: &[u8]) -> Result<Attr> {
        if name.starts_with(NEW) {
            return Err(FsError::NotFound);
        }
        Ok(self.attr(self.number()))
    }
    fn getattr(&self, ino: InodeId) -> Result<Attr> {
        Ok(self.attr(ino))
    }
    fn setattr(&self, _: Caller, ino: InodeId, _: SetAttr) -> Result<Attr> {
        Ok(self.attr(ino))
    }
    fn make(&self, _: Caller, _: InodeId, _: &[u8], new: NewInode) -> Result<Attr> {
        Ok(Attr { kind: new.kind, size: 0, blocks: 0, ..self.attr(self.number()) })
    }
    fn symlink(&self, _: Caller, _: InodeId, _: &[u8], _: &[u8]) -> Result<Attr> {
        Err(FsError::Invalid)
    }
    fn readlink(&self, _: InodeId) -> Result<Vec<u8>> {
        Err(FsError::Invalid)
    }
    fn link(&self, ino: InodeId, _: InodeId, _: &[u8]) -> Result<Attr> {
        Ok(self.attr(ino))
    }
    fn unlink(&self, _: InodeId, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn rmdir(&self, _: InodeId, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn rename(&self, _: InodeId, _: &[u8], _: InodeId, _: &[u8], _: RenameMode) -> Result<()> {
        Ok(())
    }
    fn admit(&self, _: InodeId) -> Result<()> {
        Ok(())
    }
    fn open_inode(&self, _: Caller, _: InodeId, _: bool) -> Result<()> {
        Ok(())
    }
    fn release_inode(&self, _: InodeId) -> Result<()> {
        Ok(())
    }
    fn read_into(&self, _: InodeId, _: u64, out: &mut [u8]) -> Result<usize> {
        out.fill(0x5a);
        Ok(out.len())
    }
    fn write(&self, _: Caller, _: InodeId, _: u64, data: &[u8]) -> Result<usize> {
        Ok(data.len())
    }
    fn fallocate(&self, _: Caller, _: InodeId, _: u64, _: u64, _: Allocate) -> Result<()> {
        Err(FsError::NotSupported)
    }
    fn seek(&self, _: InodeId, _: u64, _: SeekTo) -> Result<Option<u64>> {
        Err(FsError::NotSupported)
    }
    fn copy_range(&self, _: Caller, _: (InodeId, u64), _: (InodeId, u64), _: u64) -> Result<u64> {
        Err(FsError::NotSupported)
    }
    fn fsync_then(&self, _: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) {
        done(Ok(()));
    }
    fn readdir(&self, _: InodeId, _: u64, _: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        Ok(())
    }
    fn setxattr(&self, _: Caller, _: InodeId, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        Ok(())
    }
    fn getxattr(&self, _: InodeId, _: &[u8]) -> Result<Vec<u8>> {
        Err(FsError::NoAttribute)
    }
    fn listxattr(&self, _: InodeId) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: InodeId, _: &[u8]) -> Result<()> {
        Err(FsError::NoAttribute)
    }
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { total_bytes: 1 << 30, free_bytes: 1 << 30, files: 0 })
    }
}
