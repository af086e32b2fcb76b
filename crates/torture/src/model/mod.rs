//! The reference: a naive in-memory filesystem that says what every verb must do.
//!
//! Written from POSIX and from the contract of `varve_fs`, never from the engine; inode numbers are the only thing it
//! takes from results. It is used twice: as the *live* state (what a user of the running filesystem sees), and as the
//! *logged* state (what the log holds at one position: data of `write` is missing until it is logged).
//! Cloning is cheap, so that there can be one state a log position.

mod access;
mod acl;
mod apply;
mod content;
mod flags;
mod forks;
mod ranges;

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_fs::{Caller, FileFlags, FileKind, InodeId, ROOT_INODE, Timestamp};

pub use acl::{ACCESS, DEFAULT, list as access_list};
pub use apply::{CAPABILITY, Context, Errno};
pub use content::{Content, PAGE_BYTES, Punch};
pub use forks::{Subvolume, is_subvolume, local, numbered, slot};
pub use ranges::{COMPARED_BYTES, Part};

/// A value, and others that are acceptable in its place. In a live state there are no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    value: T,
    others: Vec<T>,
}

impl<T: Copy + PartialEq> Choice<T> {
    /// Exactly `value`.
    pub fn new(value: T) -> Self {
        Choice { value, others: Vec::new() }
    }
    /// The value.
    pub fn get(&self) -> T {
        self.value
    }
    /// Exactly `value` from now on.
    pub fn set(&mut self, value: T) {
        self.value = value;
        self.others.clear();
    }
    /// `value` is acceptable too.
    pub fn allow(&mut self, value: T) {
        if !self.accepts(value) {
            self.others.push(value);
        }
    }
    /// What `other` accepts is acceptable too.
    pub fn allow_all(&mut self, other: &Choice<T>) {
        self.allow(other.value);
        other.others.iter().for_each(|value| self.allow(*value));
    }
    /// Whether `value` is acceptable.
    pub fn accepts(&self, value: T) -> bool {
        self.value == value || self.others.contains(&value)
    }
    /// Whether anything but the value is acceptable.
    pub fn is_open(&self) -> bool {
        !self.others.is_empty()
    }
}

/// What an inode holds.
#[derive(Clone)]
pub enum Body {
    /// Bytes.
    File(Arc<Content>),
    /// Names, and the directory above.
    Directory {
        /// Names.
        entries: Arc<BTreeMap<Vec<u8>, InodeId>>,
        /// The directory this one is in.
        parent: InodeId,
    },
    /// A target.
    Symlink(Arc<[u8]>),
    /// A fifo, a socket or a device node with its number.
    Node(FileKind, u32),
}

/// One inode.
#[derive(Clone)]
#[allow(missing_docs, reason = "the fields of struct stat")]
pub struct Inode {
    pub mode: Choice<u32>,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub atime: Choice<Timestamp>,
    pub mtime: Choice<Timestamp>,
    pub ctime: Choice<Timestamp>,
    pub btime: Timestamp,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What it holds.
    pub body: Body,
    /// Open handles: while there are any, an inode without links lives on.
    pub opens: u32,
    /// It has had no name yet, and may get one.
    pub linkable: bool,
    pub flags: FileFlags,
}

impl Inode {
    /// Whether it keeps set-id bits and capability when `caller` gives it away.
    pub fn stays_privileged(&self, caller: Caller) -> bool {
        self.entries().is_some() || caller.uid == 0 && self.uid == 0 && self.linkable
    }
    /// Kind of file.
    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory { .. } => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Node(kind, _) => kind,
        }
    }
    /// Whether an attribute has several acceptable values.
    pub fn has_choices(&self) -> bool {
        let times = [&self.atime, &self.mtime, &self.ctime];
        self.mode.is_open() || times.iter().any(|time| time.is_open())
    }
    /// Content of a regular file.
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }
    /// Content of a regular file, to change.
    pub fn content_mut(&mut self) -> Option<&mut Content> {
        match &mut self.body {
            Body::File(content) => Some(Arc::make_mut(content)),
            _ => None,
        }
    }
    /// Names of a directory.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, InodeId>> {
        match &self.body {
            Body::Directory { entries, .. } => Some(entries),
            _ => None,
        }
    }
    /// Size in bytes of a file or of a symlink's target; 0 for what has none.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Symlink(target) => target.len() as u64,
            Body::Directory { .. } | Body::Node(..) => 0,
        }
    }
    /// Device number.
    pub fn rdev(&self) -> u32 {
        match self.body {
            Body::Node(_, rdev) => rdev,
            _ => 0,
        }
    }
}

/// Inodes, by number, in groups: a clone shares the groups that do not change.
#[derive(Clone, Default)]
struct Inodes(BTreeMap<u64, Arc<BTreeMap<InodeId, Arc<Inode>>>>);

/// Numbers in a group.
const GROUP: u64 = 64;

impl Inodes {
    fn get(&self, ino: InodeId) -> Option<&Arc<Inode>> {
        self.0.get(&(ino.0 / GROUP))?.get(&ino)
    }
    fn get_mut(&mut self, ino: InodeId) -> Option<&mut Inode> {
        let group = self.0.get_mut(&(ino.0 / GROUP)).filter(|group| group.contains_key(&ino))?;
        Arc::make_mut(group).get_mut(&ino).map(Arc::make_mut)
    }
    fn insert(&mut self, ino: InodeId, inode: Inode) {
        Arc::make_mut(self.0.entry(ino.0 / GROUP).or_default()).insert(ino, Arc::new(inode));
    }
    fn remove(&mut self, ino: InodeId) {
        if let Some(group) = self.0.get_mut(&(ino.0 / GROUP)) {
            Arc::make_mut(group).remove(&ino);
        }
    }
    fn iter(&self) -> impl Iterator<Item = (InodeId, &Inode)> {
        self.0.values().flat_map(|group| group.iter()).map(|(ino, inode)| (*ino, &**inode))
    }
}

/// A whole filesystem.
#[derive(Clone)]
pub struct Model {
    inodes: Inodes,
    /// By slot.
    subvolumes: Arc<BTreeMap<u64, Subvolume>>,
}

impl Model {
    /// A filesystem with nothing but its root directory.
    pub fn new(uid: u32, gid: u32, mode: u32, now: Timestamp) -> Self {
        let root = Inode {
            flags: FileFlags::NONE,
            mode: Choice::new(mode),
            uid,
            gid,
            links: 1,
            atime: Choice::new(now),
            mtime: Choice::new(now),
            ctime: Choice::new(now),
            btime: now,
            xattrs: BTreeMap::new(),
            body: Body::Directory { entries: Arc::default(), parent: ROOT_INODE },
            opens: 0,
            linkable: false,
        };
        let mut inodes = Inodes::default();
        inodes.insert(ROOT_INODE, root);
        Model { inodes, subvolumes: Arc::new(BTreeMap::from([(0, Subvolume::default())])) }
    }

    /// The inode, if it exists (it may be an open file without a name).
    pub fn get(&self, ino: InodeId) -> Option<&Inode> {
        self.inodes.get(ino).map(|inode| &**inode)
    }

    /// The inode, to change.
    pub fn get_mut(&mut self, ino: InodeId) -> Option<&mut Inode> {
        self.inodes.get_mut(ino)
    }

    /// All inodes, by number.
    pub fn inodes(&self) -> impl Iterator<Item = (InodeId, &Inode)> {
        self.inodes.iter()
    }

    /// What `name` in `parent` is.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        self.get(parent)?.entries()?.get(name).copied()
    }

    /// Drops open handles, and with them the files that have no name: what a crash does.
    pub fn forget_opens(&mut self) {
        let open: Vec<(InodeId, u32)> =
            self.inodes.iter().filter(|(_, i)| i.opens > 0).map(|(ino, i)| (ino, i.links)).collect();
        for (ino, links) in open {
            match links {
                0 => self.inodes.remove(ino),
                _ => self.get_mut(ino).expect("listed above").opens = 0,
            }
        }
    }

    /// Pages for which space is set aside in all files: at least and at most.
    pub fn reserved_pages(&self) -> (u64, u64) {
        let files = self.inodes.iter().filter_map(|(_, inode)| inode.content());
        files.map(Content::reserved_pages).fold((0, 0), |sum, file| (sum.0 + file.0, sum.1 + file.1))
    }

    /// Bytes stored in files, in whole pages, holes left out.
    pub fn stored_bytes(&self) -> u64 {
        self.inodes.iter().filter_map(|(_, inode)| inode.content()).map(Content::stored_bytes).sum()
    }
}

#[cfg(test)]
mod tests;
