//! Listing directories, and removing whole trees.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Fault, Reason, Result, path_buf};
use crate::metadata::{FileType, Metadata};
use crate::shared::OpenInode;

/// Entries read at once.
const ENTRIES_PER_READ: usize = 512;
/// Reads of a directory's entries, beyond what its size calls for, because others put some into it.
const EMPTYING_MAX: u64 = 1000;
/// Looks at where a directory is, while others may move it.
const LOOKS_MAX: usize = 10;

/// The entries of a directory, without "." and "..", in no order that means anything.
///
/// Names that are there all the time are given exactly once, whatever is made or removed meanwhile. The directory stays
/// open, so that it may even be removed.
pub struct ReadDir {
    open: Arc<OpenInode>,
    path: Arc<[u8]>,
    cookie: u64,
    ready: VecDeque<varve_fs::DirEntry>,
    at_end: bool,
}

impl ReadDir {
    pub(crate) fn new(open: Arc<OpenInode>, path: Arc<[u8]>) -> ReadDir {
        ReadDir { open, path, cookie: 0, ready: VecDeque::new(), at_end: false }
    }

    fn refill(&mut self) -> Result<()> {
        let read = self.open.shared().enter().and_then(|fs| read_some(&fs, self.open.ino, &mut self.cookie));
        match read {
            Ok(entries) => {
                self.at_end = entries.is_empty();
                self.ready = entries.into();
                Ok(())
            }
            Err(fault) => {
                self.at_end = true;
                Err(fault.on("list", &self.path))
            }
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.ready.is_empty()
            && !self.at_end
            && let Err(error) = self.refill()
        {
            return Some(Err(error));
        }
        let entry = self.ready.pop_front()?;
        let (name, inode, kind) = (entry.name, entry.ino, entry.kind);
        Some(Ok(DirEntry { open: self.open.clone(), directory: self.path.clone(), name, inode, kind }))
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir").field("path", &path_buf(&self.path)).finish_non_exhaustive()
    }
}

#[cfg(test)]
thread_local! {
    /// How often a listing was begun.
    static BEGUN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Some more entries; none at the end.
fn read_some(
    fs: &varve_fs::Filesystem,
    ino: varve_fs::InodeId,
    cookie: &mut u64,
) -> std::result::Result<Vec<varve_fs::DirEntry>, Fault> {
    #[cfg(test)]
    if *cookie == 0 {
        BEGUN.set(BEGUN.get() + 1);
    }
    let mut entries = Vec::new();
    // "." and ".." come first and are passed over.
    fs.readdir(ino, (*cookie).max(2), &mut |entry| {
        *cookie = entry.cookie;
        entries.push(entry);
        entries.len() < ENTRIES_PER_READ
    })?;
    Ok(entries)
}

/// One entry of a directory.
#[derive(Clone)]
pub struct DirEntry {
    open: Arc<OpenInode>,
    directory: Arc<[u8]>,
    name: Vec<u8>,
    inode: varve_fs::InodeId,
    kind: varve_fs::FileKind,
}

impl DirEntry {
    /// The name: any bytes but NUL and the slash.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The name as the standard library has it.
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.name.clone())
    }

    /// The path of the directory as it was given, with the name.
    pub fn path(&self) -> PathBuf {
        path_buf(&self.directory).join(self.file_name())
    }

    /// The kind.
    pub fn file_type(&self) -> FileType {
        FileType::of(self.kind)
    }

    /// The inode number.
    pub fn inode(&self) -> u64 {
        varve_fs::shown_number(self.inode)
    }

    /// The attributes, as they are now; of a symbolic link its own.
    pub fn metadata(&self) -> Result<Metadata> {
        use std::os::unix::ffi::OsStrExt;
        self.open
            .shared()
            .enter()
            .and_then(|fs| Ok(Metadata::of(&self.look(&fs)?)))
            .map_err(|fault| fault.of_path().on("look at", self.path().as_os_str().as_bytes()))
    }
}

impl DirEntry {
    fn look(&self, fs: &varve_fs::Filesystem) -> std::result::Result<varve_fs::Attr, Fault> {
        let is_subvolume = varve_fs::subvolume_root(self.inode) != varve_fs::subvolume_root(self.open.ino);
        if !is_subvolume {
            return Ok(fs.getattr(self.inode)?);
        }
        // Nobody keeps its number from becoming another's.
        match fs.lookup(self.open.ino, &self.name) {
            Ok(attr) if attr.ino == self.inode => Ok(attr),
            Ok(_) | Err(varve_fs::FsError::NotFound) => Err(varve_fs::FsError::Stale.into()),
            Err(error) => Err(error.into()),
        }
    }
}

impl std::fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}

/// A directory to be emptied and removed.
struct Level {
    parent: varve_fs::InodeId,
    name: Vec<u8>,
    ino: varve_fs::InodeId,
    /// How far it has been read: what was in front of that is removed, and where a snapshot shows it, a trace of each name is left,
    /// which whoever began anew would pass again.
    cookie: u64,
    /// Reads still allowed; `None` before the first.
    reads_left: Option<u64>,
}

impl Level {
    fn new(parent: varve_fs::InodeId, name: Vec<u8>, ino: varve_fs::InodeId) -> Level {
        Level { parent, name, ino, cookie: 0, reads_left: None }
    }
}

/// Removes the directory `name` of `parent`, which is `ino`, with all that is in it. Follows no link, and goes down by
/// inode. A subvolume goes as a whole, if there is no other in it and it can be changed. `go_on` is asked now and then. Memory: up to
/// [`ENTRIES_PER_READ`] entries a level of depth.
pub(crate) fn remove_tree(
    fs: &varve_fs::Filesystem,
    go_on: impl Fn() -> std::result::Result<(), Fault>,
    parent: varve_fs::InodeId,
    name: &[u8],
    ino: varve_fs::InodeId,
) -> std::result::Result<(), Fault> {
    let mut levels = vec![Level::new(parent, name.to_vec(), ino)];
    while let Some(level) = levels.last_mut() {
        go_on()?;
        let reads_left = match level.reads_left {
            Some(0) => return Err(Reason::NotEmpty.into()),
            Some(left) => left - 1,
            None => match fs.lookup(level.parent, &level.name) {
                Ok(attr) if attr.ino == level.ino && lies_there(fs, level)? => {
                    if delete_whole(fs, level)? {
                        levels.pop();
                        continue;
                    }
                    attr.size / ENTRIES_PER_READ as u64 * 2 + EMPTYING_MAX
                }
                // Moved or removed since it was listed, perhaps with the subvolume that it was in: no longer ours.
                Ok(_) | Err(varve_fs::FsError::NotFound | varve_fs::FsError::Stale) => {
                    levels.pop();
                    continue;
                }
                Err(error) => return Err(error.into()),
            },
        };
        level.reads_left = Some(reads_left);
        let ino = level.ino;
        let entries = match read_some(fs, ino, &mut level.cookie) {
            Err(Fault { reason: Reason::NotFound | Reason::SubvolumeDeleted, .. }) => Vec::new(),
            read => read?,
        };
        if entries.is_empty() {
            match fs.rmdir(level.parent, &level.name) {
                // Others have put something into it: once more.
                Err(varve_fs::FsError::NotEmpty) => {
                    level.cookie = 0;
                    continue;
                }
                Ok(()) | Err(varve_fs::FsError::NotFound | varve_fs::FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
            levels.pop();
            continue;
        }
        for entry in entries {
            if entry.kind == varve_fs::FileKind::Directory {
                levels.push(Level::new(ino, entry.name, entry.ino));
                continue;
            }
            match fs.unlink(ino, &entry.name) {
                Ok(()) => {}
                Err(
                    varve_fs::FsError::NotFound | varve_fs::FsError::Stale | varve_fs::FsError::IsDirectory,
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Whether a directory that was met by its name is where its own record says; `false`: it has been moved meanwhile. Elsewhere it is not
/// emptied: where directories of a forged pool lie in each other, a walk by names has no end.
fn lies_there(fs: &varve_fs::Filesystem, level: &Level) -> std::result::Result<bool, Fault> {
    use varve_fs::FsError::{NotFound, Stale};
    // Between the two answers it may be moved away, and back.
    for _ in 0..LOOKS_MAX {
        match fs.lookup(level.ino, b"..") {
            Ok(above) if above.ino == level.parent => return Ok(true),
            Ok(_) => {}
            Err(NotFound | Stale) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        match fs.lookup(level.parent, &level.name) {
            Ok(attr) if attr.ino == level.ino => {}
            Ok(_) | Err(NotFound | Stale) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Reason::Corrupt(format!("directory {} is not where its record says", level.ino.0)).into())
}

/// Deletes what is to be emptied, with all that is in it, if that is a subvolume and may go so: one record instead of one for each name,
/// which in a snapshot leaves more than it takes away. `false`: it goes name by name, as what has another subvolume in it, and
/// where a flag may keep something in it from being removed.
fn delete_whole(fs: &varve_fs::Filesystem, level: &Level) -> std::result::Result<bool, Fault> {
    // A read-only one is removed by nobody who does not mean it.
    if fs.flagged() || fs.admit(level.ino).is_err() {
        return Ok(false);
    }
    match fs.delete_subvolume_at(level.parent, &level.name, level.ino) {
        Ok(()) | Err(varve_fs::FsError::NotFound | varve_fs::FsError::Stale) => Ok(true),
        Err(varve_fs::FsError::NotSubvolume | varve_fs::FsError::NotEmpty) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use varve_engine::{Store, Transaction, TreeId};
    use varve_format::record::name::NameRecord;

    use super::*;
    use crate::{PoolOptions, SnapshotOptions};

    // Goal: removing a directory that a snapshot shows passes each name a few times, however many there are: what goes leaves a trace,
    // and whoever lists it from the front for every some names passes all traces each time. Method: count how often the listing
    // of one with 5,000 names is begun; less than four times.
    #[test]
    fn what_has_been_removed_is_not_listed_again() {
        let pool = PoolOptions::new().background(false).in_memory(64 << 20).unwrap();
        let fs = pool.filesystem();
        fs.create_subvolume("/o").unwrap();
        fs.create_dir_all("/o/d/within").unwrap();
        for n in 0..5000 {
            fs.create(format!("/o/d/{n}")).unwrap();
        }
        fs.snapshot("/o", "/s", SnapshotOptions::new().read_only(true)).unwrap();
        BEGUN.set(0);
        fs.remove_dir_all("/o/d").unwrap();
        // Once the empty one in it.
        assert!((2..5).contains(&BEGUN.get()), "{} listings", BEGUN.get());
        assert!(!fs.exists("/o/d").unwrap());
        assert_eq!(fs.read_dir("/s/d").unwrap().count(), 5001);
        assert!(pool.check(true).unwrap().is_clean());
    }
    // Goal: removing a tree of a forged pool in which directories lie in each other ends. Method: entries of a directory that lead to
    // itself and to the one above.
    #[test]
    fn rings_are_not_gone_round() {
        let disk = crate::MemoryDisk::new(64 << 20);
        let pool = PoolOptions::new().background(false).create_on(&disk).unwrap();
        let fs = pool.filesystem();
        for path in ["/outer/inner/self", "/outer/inner/self again", "/outer/inner/up"] {
            fs.create_dir_all(path).unwrap();
        }
        let [outer, inner] =
            ["/outer", "/outer/inner"].map(|path| varve_fs::InodeId(fs.metadata(path).unwrap().inode));
        pool.close().unwrap();
        let options = varve_fs::StoreOptions { background: false, ..varve_fs::StoreOptions::default() };
        let (store, _) = Store::open(vec![disk.device(false).unwrap()], options).unwrap();
        let mut transaction = Transaction::new();
        let mut each = |key: &[u8], value: &[u8]| {
            if let NameRecord::Entry { kind, name, chained, .. } = NameRecord::decode(value).unwrap() {
                let ino = match &name[..] {
                    b"self" | b"self again" => inner,
                    b"up" => outer,
                    _ => return true,
                };
                let forged = NameRecord::Entry { kind, ino, name, chained };
                transaction.put(TreeId::NAMES, key, &forged.encode());
            }
            true
        };
        store.view().scan(TreeId::NAMES, &[], &mut each).unwrap();
        store.apply(transaction, None).unwrap();
        store.close().unwrap();
        drop(store);
        let pool = PoolOptions::new().background(false).open_on(&disk).unwrap();
        let removed = pool.filesystem().remove_dir_all("/outer");
        assert!(matches!(removed.unwrap_err().reason(), Reason::Corrupt(_)));
    }
}
