//! What differs between two subvolumes: the types. [`crate::Filesystem::diff`] gives them.

use std::collections::BTreeMap;

use crate::api::{FileFlags, FileKind, Timestamp};

/// One step from an older subvolume to a newer one. Inodes are named by their numbers without the slot, which copies share.
///
/// The steps come in this order, so that each can be done when it comes, by numbers: inodes that are new, without a name yet; names that
/// are gone; names that are new (a rename is one of each, and a directory's contents stay in it); then of each inode size,
/// data and attributes; extended attributes; and in the end the flags that may forbid all of this, and the inodes that are
/// gone, which have no name any more. What the older one has immutable or append only, who does the steps has to free first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// An inode that the older one does not have. What a symbolic link says is read from the newer one.
    Created {
        /// Its number.
        inode: u64,
        /// What it is.
        kind: FileKind,
        /// Device number of a device node.
        rdev: u32,
    },
    /// A name that is gone, or leads elsewhere now.
    Unlinked {
        /// The directory it was in.
        directory: u64,
        /// The name.
        name: Vec<u8>,
        /// Where it led.
        inode: u64,
        /// What that is.
        kind: FileKind,
    },
    /// A name that is new, or leads elsewhere now.
    Linked {
        /// The directory it is in.
        directory: u64,
        /// The name.
        name: Vec<u8>,
        /// Where it leads.
        inode: u64,
        /// What that is.
        kind: FileKind,
    },
    /// A file has this size now: cut it, or let it grow with zeros.
    Resized {
        /// The file.
        inode: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// A range of a file, inside its new size, in which it differs or was written again.
    Data {
        /// The file.
        inode: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether all of it is zeros now; else read it from the newer subvolume.
        zeros: bool,
    },
    /// Attributes that differ; of a new inode, all.
    Attributes {
        /// The inode.
        inode: u64,
        /// What it is.
        kind: FileKind,
        /// Permission bits (07777).
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Last change of data. Directories have it, too.
        mtime: Option<Timestamp>,
    },
    /// An extended attribute that is new or has another value.
    XattrSet {
        /// The inode.
        inode: u64,
        /// What that is.
        kind: FileKind,
        /// The attribute's name, with its namespace.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// An extended attribute that is gone, of an inode that is not.
    XattrRemoved {
        /// The inode.
        inode: u64,
        /// What that is.
        kind: FileKind,
        /// The attribute's name.
        name: Vec<u8>,
    },
    /// Flags of chattr(1) that differ, or that a new inode has.
    Flags {
        /// The inode.
        inode: u64,
        /// What it is.
        kind: FileKind,
        /// All that it has now.
        flags: FileFlags,
    },
    /// An inode that the newer one does not have any more.
    Deleted {
        /// Its number.
        inode: u64,
        /// What it was.
        kind: FileKind,
    },
}

/// A directory that has no name when a step comes: the step that takes its old one away has been, or none was needed, and the one that
/// gives it its new name is still to come. It is the nearest one on the way to a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parked {
    /// Its number.
    pub inode: u64,
    /// So many bytes at the end of the path of the directory that has the name lead there from it.
    pub rest_bytes: usize,
}

/// A name that a file has all the time, in the older and in the newer one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Original {
    /// The directory it is in; its path is among [`DiffPage::new_paths`].
    pub directory: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What on the way there has no name just then.
    pub parked: Option<Parked>,
}

/// A page of [`crate::Filesystem::diff`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiffPage {
    /// The next steps; there may be none though there is another page.
    pub changes: Vec<Change>,
    /// What to ask the next page with; `None`: there is none.
    pub next: Option<Vec<u8>>,
    /// Paths below the older root, without a slash in front, of the directories in [`Change::Unlinked`].
    pub old_paths: Vec<(u64, Vec<u8>)>,
    /// Paths below the newer root of the directories in [`Change::Linked`], and one of each inode whose size, data,
    /// attributes or flags are named, or that has lost a name and has others.
    pub new_paths: Vec<(u64, Vec<u8>)>,
    /// By index, of [`Change::Unlinked`] and [`Change::Linked`] that come while something on the way to their directory has no name.
    pub parked: BTreeMap<usize, Parked>,
    /// By index, of [`Change::Linked`] of a file that has had another name all the time, that. Without it the file waits where
    /// [`Change::Created`] or [`Change::Unlinked`] has left it.
    pub originals: BTreeMap<usize, Original>,
}
