//! The offline check: compares all that is derived with a full scan.
//!
//! Reads one view and changes nothing. Names against inodes both ways, link counts, parents, the tree of directories,
//! attributes and their sums, extents against their inodes, orphans, versions; then the engine's own check, which gets
//! the data runs seen here. Meant for a quiet filesystem: what is in flight would look lost. Memory: about 150 bytes an
//! inode and 32 a run.
//!
//! An entry that does not decode is a problem and the next one is looked at. Of a pool that was opened to be checked,
//! tree nodes may be missing: what would follow from that alone is not reported as damage of its own, but as what is
//! lost (an inode's record, part of a file).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use varve_engine::version::Holder;
use varve_engine::{CheckReport, InodeId, LostKeys, Problem, ProblemKind as Kind, Problems, TreeId, View};
use varve_format::Corrupt;
use varve_format::record::inode::{InodeKind, InodeRecord, decode_inode_key, inode_key};
use varve_format::record::orphan::{OrphanRecord, decode_orphan_key};

use crate::Result;
use crate::core::Core;
use crate::table::{Namespace, extents};

mod data;
mod names;
mod xattrs;

use data::DataRun;

/// An inode as its record and the entries about it show it.
struct Seen {
    kind: InodeKind,
    links: u32,
    size: u64,
    parent: InodeId,
    holder: Holder,
    inline: bool,
    xattr_count: u32,
    xattr_bytes: u32,
    orphan: bool,
    /// Counted while scanning.
    names: u32,
    name_parent: InodeId,
    name: Vec<u8>,
    entries: u64,
    /// Directories in it, and what the record says, if it says anything.
    directories: u32,
    directories_said: Option<u32>,
    xattrs: u32,
    bytes: u32,
}

impl Seen {
    fn new(record: &InodeRecord, orphan: bool) -> Seen {
        Seen {
            kind: record.kind,
            links: record.links,
            size: record.size,
            parent: record.parent,
            holder: extents::holder(record),
            inline: record.inline.is_some(),
            xattr_count: record.xattr_count,
            xattr_bytes: record.xattr_bytes,
            orphan,
            names: 0,
            name_parent: InodeId(0),
            name: Vec::new(),
            entries: 0,
            directories: 0,
            directories_said: record.rdev.checked_sub(1).filter(|_| record.kind == InodeKind::Directory),
            xattrs: 0,
            bytes: 0,
        }
    }
}

type Inodes = BTreeMap<InodeId, Seen>;

/// Gets the check, a key and a value.
type EachEntry<'e, 'a> = &'e mut dyn FnMut(&mut Check<'a>, &[u8], &[u8]);

/// What cannot be had, sorted.
struct Lost {
    /// By tree; ranges of one tree do not overlap.
    keys: HashMap<TreeId, Vec<LostKeys>>,
    /// Inodes whose records do not decode.
    inodes: HashSet<InodeId>,
}

impl Lost {
    fn new(list: Vec<LostKeys>) -> Lost {
        let mut keys: HashMap<TreeId, Vec<LostKeys>> = HashMap::new();
        for lost in list {
            keys.entry(lost.tree).or_default().push(lost);
        }
        keys.values_mut().for_each(|keys| keys.sort_unstable_by(|a, b| a.low.cmp(&b.low)));
        Lost { keys, inodes: HashSet::new() }
    }

    fn covers(&self, tree: TreeId, key: &[u8]) -> bool {
        let Some(ranges) = self.keys.get(&tree) else { return false };
        let after = ranges.partition_point(|lost| lost.low[..] <= *key);
        ranges[..after].last().is_some_and(|lost| lost.covers(tree, key))
    }
}

/// One check.
struct Check<'a> {
    core: &'a Core,
    view: View,
    namespace: Namespace,
    inodes: Inodes,
    runs: Vec<DataRun>,
    lost: Lost,
    id_floor: u64,
    problems: Problems,
}

fn show(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Core {
    pub(crate) fn check(&self, verify_data: bool) -> Result<CheckReport> {
        let mut problems = Problems::default();
        if let Some(why) = &self.subvolume_problem {
            problems.add(Problem::new(Kind::SubvolumeMissing, why.clone()));
        }
        let mut check = Check {
            core: self,
            view: self.store.view(),
            namespace: Namespace::clone(&*self.names(self.root())?),
            inodes: Inodes::new(),
            runs: Vec::new(),
            lost: Lost::new(self.store.lost_keys()),
            id_floor: self.store.id_floor(),
            problems,
        };
        if !self.store.is_hopeless() {
            check.inodes()?;
            check.orphans()?;
            check.names()?;
            check.tree();
            check.xattrs()?;
            check.extents()?;
            check.counts()?;
            check.lost_parts();
        }
        let Check { view, inodes, mut runs, mut problems, .. } = check;
        drop(view);
        let mut report = self.store.check(&mut runs.iter().map(|data| data.run), verify_data)?;
        // The engine knows addresses: say whose they are.
        runs.sort_unstable_by_key(|data| data.run.addr);
        report.problems.iter_mut().for_each(|problem| data::locate(problem, &runs));
        for problem in problems.list.iter_mut().chain(&mut report.problems) {
            names::name_path(problem, &inodes, self.root());
        }
        report.omitted += problems.omitted;
        report.problems.splice(0..0, problems.list);
        Ok(report)
    }
}

impl<'a> Check<'a> {
    fn problem(&mut self, kind: Kind, text: String) {
        self.problems.add(Problem::new(kind, text));
    }

    fn of(&mut self, kind: Kind, ino: InodeId, text: String) {
        self.problems.add(Problem::of_inode(kind, ino.0, text));
    }

    /// All entries of a tree of the namespace. Those of other namespaces and versions are problems.
    fn entries(&mut self, tree: TreeId) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut entries = Vec::new();
        self.view.scan(tree, &[], &mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            true
        })?;
        Ok(entries)
    }

    /// Calls `each` with every entry of a tree whose key ends with this namespace's version key.
    fn each(&mut self, tree: TreeId, each: EachEntry<'_, 'a>) -> Result<()> {
        let family = self.namespace.family.0.to_be_bytes();
        let version = (!self.namespace.key.0).to_be_bytes();
        let mut from: Vec<u8> = Vec::new();
        loop {
            // A piece at a time: `each` wants all of this, and the scan has part of it.
            const PIECE: usize = 4096;
            let mut piece: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            self.view.scan(tree, &from, &mut |key, value| {
                piece.push((key.to_vec(), value.to_vec()));
                piece.len() < PIECE
            })?;
            let Some((last, _)) = piece.last() else { return Ok(()) };
            from = last.clone();
            // The smallest key behind it.
            from.push(0);
            for (key, value) in &piece {
                if key.starts_with(&family) && key.ends_with(&version) {
                    each(self, key, value);
                } else {
                    let text = format!("an entry of the {} tree", tree.name());
                    self.problem(Kind::EntryForeign, text);
                }
            }
            if piece.len() < PIECE {
                return Ok(());
            }
        }
    }

    fn bad_key(&mut self, tree: TreeId, why: Corrupt) {
        self.problem(Kind::KeyMalformed, format!("a key of the {} tree: {why}", tree.name()));
    }

    fn taken(&mut self, what: &str, id: u64) {
        if id >= self.id_floor {
            let floor = self.id_floor;
            let text = format!("{what} {id} exists, and numbers from {floor} on would be given out again");
            self.problem(Kind::IdNotTaken, text);
        }
    }

    fn has_lost(&self, tree: TreeId) -> bool {
        self.lost.keys.contains_key(&tree) || (tree == TreeId::INODES && !self.lost.inodes.is_empty())
    }

    fn inode_is_lost(&self, ino: InodeId) -> bool {
        let key = inode_key(self.namespace.family, ino, self.namespace.key);
        self.lost.inodes.contains(&ino) || self.lost.covers(TreeId::INODES, &key)
    }

    fn inodes(&mut self) -> Result<()> {
        self.each(TreeId::INODES, &mut |me, key, value| {
            let ino = match decode_inode_key(key) {
                Ok((_, ino, _)) => ino,
                Err(why) => return me.bad_key(TreeId::INODES, why),
            };
            me.taken("inode", ino.0);
            match InodeRecord::decode(value) {
                Ok(record) => {
                    if record.links == 0 {
                        let text = format!("inode {} has no links and is not an orphan", ino.0);
                        me.of(Kind::InodeUnlinked, ino, text);
                    }
                    me.fields(ino, &record);
                    me.inodes.insert(ino, Seen::new(&record, false));
                }
                Err(why) => {
                    me.of(Kind::InodeMalformed, ino, format!("the record of inode {}: {why}", ino.0));
                    // Its names lead somewhere all the same.
                    me.lost.inodes.insert(ino);
                }
            }
        })
    }

    /// Fields of a record against each other.
    fn fields(&mut self, ino: InodeId, record: &InodeRecord) {
        let mut wrong: Vec<&str> = Vec::new();
        let device = matches!(record.kind, InodeKind::CharDevice | InodeKind::BlockDevice);
        // Of a directory it counts the directories in it.
        if record.rdev != 0 && !device && record.kind != InodeKind::Directory {
            wrong.push("has a device number and is no device");
        }
        if record.parent != InodeId(0) && record.kind != InodeKind::Directory {
            wrong.push("is no directory and has a parent");
        }
        // The targets of long symbolic links lie in extents, as contents of files do.
        let has_data = matches!(record.kind, InodeKind::File | InodeKind::Symlink);
        if record.inline.is_none() && !has_data {
            wrong.push("has extents and is no file");
        }
        let contents = record.inline.as_ref().map(|contents| contents.len() as u64);
        match record.kind {
            InodeKind::Symlink if record.size == 0 || contents.is_some_and(|len| len != record.size) => {
                wrong.push("is a symbolic link whose target has another length than it says");
            }
            InodeKind::File | InodeKind::Symlink => {}
            _ if contents.is_some_and(|len| len > 0) => wrong.push("has contents and is no file"),
            _ => {}
        }
        if record.data.family.0 != ino.0 {
            wrong.push("has the data of another inode");
        }
        for what in wrong {
            self.of(Kind::InodeSenseless, ino, format!("inode {} {what}", ino.0));
        }
    }

    fn orphans(&mut self) -> Result<()> {
        for (key, value) in self.entries(TreeId::ORPHANS)? {
            let ino = match decode_orphan_key(&key) {
                Ok(ino) => ino,
                Err(why) => {
                    self.bad_key(TreeId::ORPHANS, why);
                    continue;
                }
            };
            let record = match OrphanRecord::decode(&value) {
                Ok(record) => record,
                Err(why) => {
                    self.of(Kind::OrphanMalformed, ino, format!("orphan {}: {why}", ino.0));
                    continue;
                }
            };
            self.taken("orphan", ino.0);
            if record.inode.links != 0 {
                let text = format!("orphan {} has {} links", ino.0, record.inode.links);
                self.of(Kind::OrphanLinked, ino, text);
            }
            if let Entry::Vacant(place) = self.inodes.entry(ino) {
                place.insert(Seen::new(&record.inode, true));
            } else {
                self.of(Kind::OrphanLive, ino, format!("inode {} is an orphan and in the namespace", ino.0));
            }
        }
        Ok(())
    }

    /// The stored number of inodes.
    fn counts(&mut self) -> Result<()> {
        let record = crate::table::subvolumes::first_in(&self.view).ok().flatten();
        let has = self.inodes.values().filter(|seen| !seen.orphan).count() as u64;
        if let Some(record) = record.filter(|record| record.files_known && record.files != has)
            && !self.has_lost(TreeId::INODES)
        {
            let text = format!("there are {has} inodes, and the subvolume says {}", record.files);
            self.problem(Kind::InodeCount, text);
        }
        Ok(())
    }
}
