//! What a check finds: kinds with stable names, and single problems.
//!
//! The names are an interface: scripts read them (`varve check --json`). docs/check.md lists them; a test compares.

use std::fmt;

use crate::EngineError;

macro_rules! kinds {
    ($($variant:ident $name:literal $meaning:literal;)*) => {
        /// What is wrong, as a class.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum ProblemKind {
            $(#[doc = $meaning] $variant,)*
        }
        impl ProblemKind {
            /// All of them, in the order of the documentation.
            pub const ALL: &'static [ProblemKind] = &[$(ProblemKind::$variant,)*];
            /// The name, which never changes.
            pub fn name(self) -> &'static str {
                match self { $(ProblemKind::$variant => $name,)* }
            }
            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(ProblemKind::$variant => $meaning,)* }
            }
        }
    };
}

kinds! {
    PoolUnopenable "pool-unopenable" "The pool cannot be opened, not even to be checked: nothing in it was looked at.";
    LabelDamaged "label-damaged" "One of the two labels of a device cannot be read; the other one is used.";
    LabelsDiffer "labels-differ" "The two labels of a device do not say the same.";
    SuperblockDamaged "superblock-damaged" "A superblock slot cannot be read, or holds no superblock and no crash explains it; or both slots of the generation after the newest cannot be read, so that there may be a newer one.";
    SuperblockMisplaced "superblock-misplaced" "A superblock lies in a slot of other generations.";
    SuperblockForeign "superblock-foreign" "A slot holds a superblock of another pool.";
    SuperblocksDiffer "superblocks-differ" "The two superblocks of one generation are not the same, or one slot holds an older one and no crash explains it.";
    LogUnreadable "log-unreadable" "Part of the log cannot be read from the device.";
    LogDamaged "log-damaged" "The log ends before what is known to have been flushed: acknowledged changes are lost.";
    LogSenseless "log-senseless" "A whole batch of the log says what cannot be; the state before it is checked.";
    RootUnreadable "root-unreadable" "The root block cannot be read: nothing can be found in the pool.";
    RootSenseless "root-senseless" "The root block contradicts its superblock or itself.";
    ArrayUnreadable "array-unreadable" "A page of the checksums or of the bitmap cannot be read.";
    BitmapBeyondPool "bitmap-beyond-pool" "The bitmap marks blocks that the pool does not have.";
    NodeUnreadable "node-unreadable" "A tree node cannot be read in any copy: its entries are lost.";
    NodeCopyDamaged "node-copy-damaged" "One copy of a block of metadata is bad; another is good.";
    NodeMalformed "node-malformed" "A tree node is not one: its entries are lost.";
    NodeKeyOrder "node-key-order" "Keys of a tree node are out of order or there twice: its entries are lost.";
    NodeForeign "node-foreign" "A tree node belongs to another tree, level or pool: its entries are lost.";
    NodeGeneration "node-generation" "A tree node was written by another checkpoint than its pointer says.";
    NodeKeyRange "node-key-range" "A tree node has keys outside the range its parent gives it: its entries are lost.";
    NodeEmpty "node-empty" "A leaf without entries: what was in its range is lost.";
    PointerOutside "pointer-outside" "A pointer to a block of metadata leads out of the pool.";
    BlockUsedTwice "block-used-twice" "A block belongs to two things.";
    BlockLeaked "block-leaked" "Blocks are marked in use and nothing refers to them.";
    BlockNotMarked "block-not-marked" "Blocks are in use and marked free: they would be overwritten.";
    BooksDiffer "books-differ" "A count that is kept in memory differs from a full scan.";
    DataUnreadable "data-unreadable" "Data fails its checksum, or cannot be read, in every copy.";
    DataCopyDamaged "data-copy-damaged" "One copy of a block of data is bad; another is good.";
    SubvolumeMissing "subvolume-missing" "There is no readable record of the filesystem.";
    SubvolumeMalformed "subvolume-malformed" "The record of a subvolume or snapshot is not one.";
    SubvolumeVersion "subvolume-version" "A subvolume stands at a version that does not exist, or shares one, or has records of some, where nothing is said to be shared.";
    SubvolumeSlot "subvolume-slot" "Two subvolumes would show their inodes under the same numbers.";
    SubvolumePlace "subvolume-place" "A subvolume is nowhere, or not where its record says: no path leads to it.";
    EntryForeign "entry-foreign" "An entry belongs to a namespace or version that does not exist.";
    KeyMalformed "key-malformed" "The key of an entry is not one.";
    IdNotTaken "id-not-taken" "Something bears a number that would be given out again.";
    InodeCount "inode-count" "The stored number of inodes is wrong.";
    ReservedCount "reserved-count" "The stored number of reserved blocks is wrong.";
    RootDirectoryMissing "root-directory-missing" "There is no root directory.";
    InodeMalformed "inode-malformed" "The record of an inode is not one.";
    InodeSenseless "inode-senseless" "Fields of an inode contradict its kind or each other.";
    InodeFlags "inode-flags" "An inode has flags (chattr), and the pool says that none has: they are not heeded.";
    InodeLost "inode-lost" "A name leads to an inode whose record was in a damaged tree node.";
    InodeUnlinked "inode-unlinked" "An inode has no links and is not an orphan.";
    InodeNameless "inode-nameless" "No name leads to an inode.";
    LinkCount "link-count" "An inode has another number of names than it says.";
    NameMalformed "name-malformed" "A directory entry is not one.";
    NameDangling "name-dangling" "A name leads to an inode that does not exist.";
    NameKind "name-kind" "A name says another kind than its inode.";
    NameMisplaced "name-misplaced" "A name does not lie where its hash says: it cannot be looked up.";
    NameDuplicate "name-duplicate" "A directory has a name twice.";
    NameChain "name-chain" "Names of one hash do not follow the rules of their chain: some cannot be looked up.";
    NameStray "name-stray" "A name lies in something that is no directory, or does not exist.";
    NameOfOrphan "name-of-orphan" "A name leads to an orphan, which will be deleted.";
    NamesLost "names-lost" "An inode has fewer names than it says, and names were in a damaged tree node.";
    DirectoryTwice "directory-twice" "Two names lead to a directory.";
    DirectoryParent "directory-parent" "A directory names another parent than the one that holds it.";
    DirectoryUnreachable "directory-unreachable" "The way up from a directory does not lead to the root.";
    DirectorySize "directory-size" "A directory has another number of entries than it says.";
    DirectoryLinks "directory-links" "A directory has more than one link, or another number of directories in it than it says.";
    OrphanMalformed "orphan-malformed" "The record of an orphan is not one.";
    OrphanLinked "orphan-linked" "An orphan says that it has names.";
    OrphanLive "orphan-live" "An inode is both an orphan and in the namespace: it would be deleted.";
    XattrMalformed "xattr-malformed" "An extended attribute is not one (its name, or its length, which may be 64 KiB).";
    XattrStray "xattr-stray" "An extended attribute of an inode that does not exist.";
    XattrMisplaced "xattr-misplaced" "An extended attribute does not lie where its hash says.";
    XattrDuplicate "xattr-duplicate" "An inode has an extended attribute twice.";
    XattrNamespace "xattr-namespace" "An extended attribute of a namespace that does not exist.";
    XattrIncomplete "xattr-incomplete" "An extended attribute lacks part of its value.";
    XattrPiece "xattr-piece" "A piece of an extended attribute without what is before it.";
    XattrCount "xattr-count" "An inode has other extended attributes than it counts.";
    XattrsLost "xattrs-lost" "Extended attributes of an inode were in a damaged tree node.";
    ExtentMalformed "extent-malformed" "An extent is not one (kind, codec, checksum kind, flags or lengths).";
    ExtentCrosses "extent-crosses" "An extent crosses the end of its segment.";
    ExtentOverlap "extent-overlap" "Two extents of one version overlap.";
    ExtentOutside "extent-outside" "An extent leads out of the pool.";
    ExtentBeyondSize "extent-beyond-size" "A file has data beyond its end.";
    ExtentOwnerless "extent-ownerless" "Extents or versions of a family that no inode has, or extents of one that names have.";
    ExtentVersion "extent-version" "An extent belongs to a version that does not exist.";
    ExtentIdle "extent-idle" "A hole that hides nothing.";
    ExtentUnseen "extent-unseen" "An extent that nobody sees, and nothing is left to be reaped.";
    ExtentsLost "extents-lost" "Part of a file was in a damaged tree node of extents: reading it fails (EIO).";
    VersionMalformed "version-malformed" "The record of a version is not one.";
    VersionParent "version-parent" "A version has a parent that does not exist.";
    VersionAge "version-age" "A version is not younger than its parent (or its own ancestor).";
    VersionChildren "version-children" "A version counts its children wrongly.";
    VersionHolders "version-holders" "A version counts its holders wrongly.";
    VersionKey "version-key" "Two versions have one key, or one has a key that is older than its family.";
    VersionDrain "version-drain" "A version is being merged into one that is in use.";
    VersionLimit "version-limit" "A version limits what it sees of a parent it does not have.";
    VersionOfInode "version-of-inode" "An inode stands at a version that does not exist, or does not know of its versions.";
    HeldMalformed "held-malformed" "An entry of the index of a version is not one.";
    HeldMissing "held-missing" "The index of a version lacks a place in which it has something.";
    HeldStray "held-stray" "The index of a version names a place in which it has nothing.";
    SharesMalformed "shares-malformed" "A count of shared blocks is none, or there is another of the same blocks.";
    SharesMissing "shares-missing" "More extents name a block than are counted: it would be freed too early.";
    SharesStray "shares-stray" "Fewer extents name a block than are counted: it would never be freed.";
    KeyframeMalformed "keyframe-malformed" "A keyframe is none, is of names, or a piece of it is missing: it is not used.";
    KeyframeWrong "keyframe-wrong" "A keyframe shows something else than its version sees: who reads through it gets that.";
    EntryUnseen "entry-unseen" "An entry of a namespace that nobody sees, and nothing is left to be reaped.";
    WhiteoutIdle "whiteout-idle" "A whiteout that hides nothing.";
    ReapMalformed "reap-malformed" "Work for the reaper is none.";
    ReapMissing "reap-missing" "A version that nobody holds is not marked to be reaped: its space does not come back.";
    ReapStray "reap-stray" "A version is marked to be reaped that is in use or does not exist.";
}

/// One problem. Its text is a whole sentence; the other fields say what is lost, as far as that can be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Of what kind.
    pub kind: ProblemKind,
    /// What was found, and where.
    pub text: String,
    /// The inode it is about.
    pub inode: Option<u64>,
    /// A path to that inode, from the root.
    pub path: Option<Vec<u8>>,
    /// Bytes of that file: first, and one past the last.
    pub bytes: Option<(u64, u64)>,
    /// Pool address and length of the blocks it is about.
    pub blocks: Option<(u64, u64)>,
    /// The files that have these blocks, the one that the fields above name first: at most [`Problem::FILES_MAX`].
    pub files: Vec<FileRange>,
    /// How many more there are.
    pub files_omitted: u64,
    /// There may be yet more: not everybody who may have the blocks was looked at.
    pub files_uncounted: bool,
}

/// A range of a file that has blocks which are damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub inode: u64,
    /// A path to it, from the root.
    pub path: Option<Vec<u8>>,
    /// Its bytes: first, and one past the last.
    pub bytes: (u64, u64),
}

impl Problem {
    /// How many ranges of files one lists.
    pub const FILES_MAX: usize = 16;

    /// A problem of which only the sentence is known.
    pub fn new(kind: ProblemKind, text: impl Into<String>) -> Problem {
        Problem {
            kind,
            text: text.into(),
            inode: None,
            path: None,
            bytes: None,
            blocks: None,
            files: Vec::new(),
            files_omitted: 0,
            files_uncounted: false,
        }
    }

    /// The same, about an inode.
    pub fn of_inode(kind: ProblemKind, inode: u64, text: impl Into<String>) -> Problem {
        Problem { inode: Some(inode), ..Problem::new(kind, text) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.text)
    }
}

/// Problems up to a bound; more are counted.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    /// Those that are listed.
    pub list: Vec<Problem>,
    /// How many are not.
    pub omitted: u64,
    /// What is no problem, and less than there should be: whole sentences.
    pub warnings: Vec<String>,
}

impl Problems {
    /// How many are listed.
    pub const MAX: usize = 1000;

    /// Adds one.
    pub fn add(&mut self, problem: Problem) {
        if self.list.len() < Problems::MAX { self.list.push(problem) } else { self.omitted += 1 }
    }

    /// Adds those of `other` behind.
    pub fn append(&mut self, other: Problems) {
        self.omitted += other.omitted;
        self.warnings.extend(other.warnings);
        other.list.into_iter().for_each(|problem| self.add(problem));
    }

    /// Whether one of this kind is listed.
    pub fn has(&self, kind: ProblemKind) -> bool {
        self.list.iter().any(|problem| problem.kind == kind)
    }
}

/// What becomes of damage that is met while a pool is opened.
pub(crate) enum Judge {
    /// The pool is not opened.
    Refuse,
    /// It is opened to be checked: damage is noted, and whatever can be used is used.
    Note(Problems),
}

impl Judge {
    /// Refuses with `error`, or notes it as a problem of this kind.
    pub fn hear(&mut self, kind: ProblemKind, error: EngineError) -> Result<(), EngineError> {
        match self {
            Judge::Refuse => Err(error),
            Judge::Note(problems) => {
                problems.add(Problem::new(kind, error.to_string()));
                Ok(())
            }
        }
    }

    /// Notes, or logs, what keeps nobody from opening the pool.
    pub fn mention(&mut self, kind: ProblemKind, text: String) {
        match self {
            Judge::Refuse => tracing::warn!("{text}"),
            Judge::Note(problems) => problems.add(Problem::new(kind, text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the documentation and the program name the same kinds, and mean the same by them. Method: the rows of the
    // table in docs/check.md, in order, beside the list.
    #[test]
    fn the_documented_kinds_are_the_kinds() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md");
        let text = std::fs::read_to_string(path).expect("docs/check.md is there");
        let rows: Vec<(String, String)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
            .map(|(name, meaning)| (name.to_owned(), meaning.to_owned()))
            .collect();
        let known: Vec<(String, String)> =
            ProblemKind::ALL.iter().map(|kind| (kind.name().into(), kind.meaning().into())).collect();
        assert_eq!(rows, known);
    }
}
