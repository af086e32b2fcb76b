//! What differs between two subvolumes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::error::{Result, path_buf};
use crate::filesystem::Filesystem;
use crate::metadata::{FileType, Flags, system_time};
use crate::path::{AsPath, Last, find_existing};
use crate::shared::Walk;

/// Changes asked for at once.
const PAGE_CHANGES: usize = 4096;

/// One change of those that lead from an older subvolume to a newer one. Inodes are named by numbers that both share.
///
/// They come in this order, so that each can be done when it comes: new inodes, without a name yet; names that are gone; names
/// that are new (a rename is one of each; a directory's contents stay in it); of each inode size, data and attributes, and
/// extended attributes that the older one has kept of it without showing it; other extended attributes; flags, which may forbid
/// all of this, and inodes that are gone. What is immutable or append only in the older one has to be freed first
/// ([`Filesystem::set_flags`]).
///
/// Whoever does them to a copy of the older one needs a directory in it where things wait for a name under their numbers: what is created
/// is made there; what loses a name is renamed to there, or, if it waits there already, only loses the name; a directory that gets one is
/// renamed from there, and anything else gets it as a hard link to what waits there, or to [`Change::Linked::original`]. `path` is
/// where a name was in the older one, or is in the newer one. Meanwhile a directory on the way may itself wait for its name: a [`Place`]
/// says where the name is when its turn comes. When the first change that is none of names comes, all paths are those of the newer one, and
/// what still waits is gone, or has other names: it can be removed.
///
/// Of times only those are told that differ: a file whose data was written and whose time was set back afterwards has `Data`, and no time. And
/// doing changes gives times of its own: to each file that is written to, and to each directory in which a name comes or goes, also one that the older
/// and the newer have alike. Who wants their times too sets them at the end, as they are in the newer one.
///
/// A path may lead to a symbolic link, which is what has changed: [`Filesystem::set_link_owner`] and its like do not follow it. It keeps
/// the mode and the flags that it was made with, and a node its flags.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are named as what they are")]
pub enum Change {
    /// An inode that only the newer one has. What a symbolic link says is read there.
    Created { inode: u64, file_type: FileType, rdev: u32 },
    /// A name, `path`, is gone, or leads elsewhere now. It is at `place`.
    Unlinked { directory: u64, inode: u64, file_type: FileType, path: PathBuf, place: Place },
    /// A name, `path`, is new, or leads elsewhere now. It belongs to `place`. What gets it has been [`Change::Created`], has lost a name
    /// ([`Change::Unlinked`]), or is at `original`: a name that a file has in both, and keeps.
    Linked {
        directory: u64,
        inode: u64,
        file_type: FileType,
        path: PathBuf,
        place: Place,
        original: Option<Place>,
    },
    /// A file is that long now: cut it, or let it grow with zeros.
    Resized { inode: u64, path: PathBuf, len: u64 },
    /// A range of a file that differs, or was written again. If it is not all zeros, read it from the newer one.
    Data { inode: u64, path: PathBuf, offset: u64, len: u64, zeros: bool },
    /// What has other values; of a new inode, all.
    Attributes {
        inode: u64,
        path: PathBuf,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        modified: Option<SystemTime>,
    },
    /// An extended attribute is new or has another value.
    XattrSet { inode: u64, path: PathBuf, name: Vec<u8>, value: Vec<u8> },
    /// An extended attribute is gone.
    XattrRemoved { inode: u64, path: PathBuf, name: Vec<u8> },
    /// Flags of a file or directory have changed, or a new one has some: all that it has now. (Links and nodes have those of the directory
    /// that they were made in, and they cannot be set.)
    Flags { inode: u64, path: PathBuf, flags: Flags },
    /// An inode that the newer one does not have any more.
    Deleted { inode: u64, file_type: FileType },
}

/// Where a name is when a change of names comes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Place {
    /// A directory that waits for its name, in which `path` begins. `None`: it begins at the subvolume's root.
    pub within: Option<u64>,
    /// From there to the name, which is its last part.
    pub path: PathBuf,
}

/// What leads from one subvolume to another: an iterator, which [`Filesystem::diff`] gives.
#[derive(Debug)]
pub struct Diff {
    fs: Filesystem,
    names: (Vec<u8>, Vec<u8>),
    roots: (varve_fs::InodeId, varve_fs::InodeId),
    /// As long as there may be more.
    walk: Option<Walk>,
    /// Where the next page begins.
    cursor: Option<Vec<u8>>,
    page: std::vec::IntoIter<Change>,
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Result<Change>> {
        loop {
            if let Some(change) = self.page.next() {
                return Some(Ok(change));
            }
            // After an error there is no more.
            let Some(cursor) = self.cursor.take() else {
                self.walk = None;
                return None;
            };
            let (old, new) = self.roots;
            // Of the subvolumes that were found, whatever is at their paths now.
            let page = self.fs.shared().enter();
            let page = page.and_then(|fs| Ok(fs.diff(old, new, &cursor, PAGE_CHANGES)?));
            match page {
                Ok(page) => (self.cursor, self.page) = taken(page),
                Err(fault) => return Some(Err(fault.on_two("compare", &self.names.0, &self.names.1))),
            }
        }
    }
}

/// Where the page behind this one begins, and the changes in this one.
fn taken(page: varve_fs::DiffPage) -> (Option<Vec<u8>>, std::vec::IntoIter<Change>) {
    let paths = |list: Vec<(u64, Vec<u8>)>| list.into_iter().collect::<HashMap<_, _>>();
    let (old, new) = (paths(page.old_paths), paths(page.new_paths));
    let mut ways = Ways { old, new, parked: page.parked, originals: page.originals };
    let changes = page.changes.into_iter().enumerate();
    let changes = changes.filter(|(_, change)| can_be_done(change));
    let changes = changes.map(|(index, change)| with_path(change, index, &mut ways));
    (page.next, changes.collect::<Vec<_>>().into_iter())
}

type Paths = HashMap<u64, Vec<u8>>;

/// How to get to what a page names.
struct Ways {
    old: Paths,
    new: Paths,
    parked: BTreeMap<usize, varve_fs::Parked>,
    originals: BTreeMap<usize, varve_fs::Original>,
}

fn named(paths: &Paths, directory: u64, name: &[u8]) -> PathBuf {
    path_buf(paths.get(&directory).map_or(&[][..], Vec::as_slice)).join(path_buf(name))
}

fn place(paths: &Paths, directory: u64, name: &[u8], parked: Option<varve_fs::Parked>) -> Place {
    let Some(parked) = parked else { return Place { within: None, path: named(paths, directory, name) } };
    let path = paths.get(&directory).map_or(&[][..], Vec::as_slice);
    let rest = &path[path.len().saturating_sub(parked.rest_bytes)..];
    Place { within: Some(parked.inode), path: path_buf(rest).join(path_buf(name)) }
}

/// Not the flags of links and nodes: they keep those of the directory that they were made in, and nobody can set them; by its path another
/// file would get those of a link.
fn can_be_done(change: &varve_fs::Change) -> bool {
    match change {
        varve_fs::Change::Flags { kind, .. } => {
            matches!(FileType::of(*kind), FileType::File | FileType::Directory)
        }
        _ => true,
    }
}

fn with_path(change: varve_fs::Change, index: usize, ways: &mut Ways) -> Change {
    let parked = ways.parked.remove(&index);
    let original = ways.originals.remove(&index);
    let (old, new) = (&ways.old, &ways.new);
    let path = |inode| path_buf(new.get(&inode).map_or(&[][..], Vec::as_slice));
    match change {
        varve_fs::Change::Created { inode, kind, rdev } => {
            Change::Created { inode, file_type: FileType::of(kind), rdev }
        }
        varve_fs::Change::Unlinked { directory, name, inode, kind } => {
            let (file_type, path) = (FileType::of(kind), named(old, directory, &name));
            Change::Unlinked {
                directory,
                inode,
                file_type,
                path,
                place: place(old, directory, &name, parked),
            }
        }
        varve_fs::Change::Linked { directory, name, inode, kind } => {
            let (file_type, path) = (FileType::of(kind), named(new, directory, &name));
            let place = |directory, name: &[u8], parked| place(new, directory, name, parked);
            let original = original.map(|it| place(it.directory, &it.name, it.parked));
            let place = place(directory, &name, parked);
            Change::Linked { directory, inode, file_type, path, place, original }
        }
        varve_fs::Change::Resized { inode, size } => Change::Resized { inode, path: path(inode), len: size },
        varve_fs::Change::Data { inode, offset, len, zeros } => {
            Change::Data { inode, path: path(inode), offset, len, zeros }
        }
        varve_fs::Change::Attributes { inode, mode, uid, gid, mtime, .. } => {
            let modified = mtime.map(system_time);
            Change::Attributes { inode, path: path(inode), mode, uid, gid, modified }
        }
        varve_fs::Change::XattrSet { inode, name, value, .. } => {
            Change::XattrSet { inode, path: path(inode), name, value }
        }
        varve_fs::Change::XattrRemoved { inode, name, .. } => {
            Change::XattrRemoved { inode, path: path(inode), name }
        }
        varve_fs::Change::Flags { inode, flags, .. } => {
            Change::Flags { inode, path: path(inode), flags: Flags::of(flags) }
        }
        varve_fs::Change::Deleted { inode, kind } => Change::Deleted { inode, file_type: FileType::of(kind) },
    }
}

impl Filesystem {
    /// What leads from the subvolume `old` to `new`, one of which is a snapshot of the other (of whatever age), or both of a third
    /// one; else this says [`crate::Reason::Unrelated`], and of what is no subvolume's root [`crate::Reason::NotASubvolume`]. Costs what
    /// was changed since they parted, and for the paths reading the directories in which it lies and those above, not what else is in
    /// them; this call looks at the first some thousand changes, and the iterator at as many when those have been taken. Paths are those
    /// below the subvolume's root. What waits in memory is written first. Only if neither is changed meanwhile do the changes
    /// belong together: compare read-only snapshots. After an error of the iterator there are no more changes, and those that came
    /// are not all.
    ///
    /// ```
    /// # use varvefs::{Change, SnapshotOptions};
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// fs.create_subvolume("/project")?;
    /// fs.write("/project/notes", "thin")?;
    /// fs.snapshot("/project", "/before", SnapshotOptions::new().read_only(true))?;
    /// fs.rename("/project/notes", "/project/layers")?;
    /// let mut names = Vec::new();
    /// for change in fs.diff("/before", "/project")? {
    ///     if let Change::Unlinked { path, .. } | Change::Linked { path, .. } = change? {
    ///         names.push(path);
    ///     }
    /// }
    /// assert_eq!(names, [std::path::Path::new("notes"), std::path::Path::new("layers")]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn diff(&self, old: impl AsPath, new: impl AsPath) -> Result<Diff> {
        let names = (old.as_path_bytes().to_vec(), new.as_path_bytes().to_vec());
        let walk = self.shared().walk();
        let (roots, (cursor, page)) = self.run_two("compare", &names.0, &names.1, |fs| {
            let old = find_existing(fs, &names.0, Last::Follow)?.ino;
            let new = find_existing(fs, &names.1, Last::Follow).map_err(crate::error::Fault::in_second)?.ino;
            // What cannot be compared is found out here, not where the first change is expected.
            Ok(((old, new), taken(fs.diff(old, new, &[], PAGE_CHANGES)?)))
        })?;
        Ok(Diff { fs: self.clone(), names, roots, walk: Some(walk), cursor, page })
    }
}
