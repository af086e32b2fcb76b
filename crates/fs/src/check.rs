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

use varve_engine::version::{self, Holder, Mapping};
use varve_engine::{
    BLOCK_BYTES, CheckReport, FamilyId, InodeId, LostKeys, Problem, ProblemKind as Kind, Problems, Run,
    TreeId, View,
};
use varve_format::record::inode::{InodeKind, InodeRecord, decode_inode_key, inode_key};
use varve_format::record::name::{NamePosition, NameRecord, decode_name_key};
use varve_format::record::orphan::{OrphanRecord, decode_orphan_key};
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, decode_xattr_key};
use varve_format::{Corrupt, SEGMENT_BYTES};

use crate::Result;
use crate::core::Core;
use crate::ops::xattr::{cost, is_known};
use crate::table::extents;

const BLOCK: u64 = BLOCK_BYTES as u64;

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

/// A run of data, and where in which file it is.
struct DataRun {
    run: Run,
    inode: Option<InodeId>,
    offset: u64,
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
        report.problems.iter_mut().for_each(|problem| locate(problem, &runs));
        for problem in problems.list.iter_mut().chain(&mut report.problems) {
            name_path(problem, &inodes, self.root());
        }
        report.omitted += problems.omitted;
        report.problems.splice(0..0, problems.list);
        Ok(report)
    }
}

/// Adds the file and the bytes of it that a problem of blocks is about.
fn locate(problem: &mut Problem, runs: &[DataRun]) {
    let Some((addr, len)) = problem.blocks.filter(|_| problem.inode.is_none()) else { return };
    let after = runs.partition_point(|data| data.run.addr.0 < addr + len);
    let Some(data) = runs[..after].last().filter(|data| data.run.addr.0 + data.run.bytes() > addr) else {
        return;
    };
    problem.inode = data.inode.map(|ino| ino.0);
    let from = addr.max(data.run.addr.0);
    let to = (addr + len).min(data.run.addr.0 + data.run.bytes());
    let first = data.offset + (from - data.run.addr.0);
    problem.bytes = Some((first, first + (to - from)));
}

/// Adds the path of the inode a problem is about, and puts it into the sentence.
fn name_path(problem: &mut Problem, inodes: &Inodes, root: InodeId) {
    const DEPTH_MAX: usize = 4096;
    let Some(ino) = problem.inode else { return };
    let mut names: Vec<&[u8]> = Vec::new();
    let mut at = InodeId(ino);
    while at != root {
        let Some(seen) = inodes.get(&at).filter(|seen| seen.names > 0 && names.len() < DEPTH_MAX) else {
            return;
        };
        names.push(&seen.name);
        at = seen.name_parent;
    }
    let mut path: Vec<u8> = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    let bytes = problem.bytes.map_or(String::new(), |(from, to)| format!(", bytes {from} to {to}"));
    problem.text.push_str(&format!(" ({}{bytes})", show(&path)));
    problem.path = Some(path);
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
        let namespace = self.core.namespace;
        let family = namespace.family.0.to_be_bytes();
        let version = (!namespace.key.0).to_be_bytes();
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
        let namespace = self.core.namespace;
        let key = inode_key(namespace.family, ino, namespace.key);
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

    fn names(&mut self) -> Result<()> {
        // The bucket being read: directory, hash, whether its first entry says that more follow, its names.
        let mut bucket: Option<(InodeId, u64, bool)> = None;
        let mut names_of_hash: HashSet<Vec<u8>> = HashSet::new();
        self.each(TreeId::NAMES, &mut |me, key, value| {
            let (dir, position) = match decode_name_key(key) {
                Ok((_, dir, position, _)) => (dir, position),
                Err(why) => return me.bad_key(TreeId::NAMES, why),
            };
            let record = match NameRecord::decode(value) {
                Ok(record) => record,
                Err(why) => {
                    let text = format!("an entry of directory {}: {why}", dir.0);
                    return me.of(Kind::NameMalformed, dir, text);
                }
            };
            let place = (dir, position.0 >> 8);
            match bucket {
                Some((d, h, chained)) if (d, h) == place => {
                    if !chained {
                        let text =
                            format!("directory {}: a name follows an entry that says none does", dir.0);
                        me.of(Kind::NameChain, dir, text);
                    }
                }
                _ => {
                    names_of_hash.clear();
                    if position.sequence() != 0 && !me.has_lost(TreeId::NAMES) {
                        let first = position.sequence();
                        let text = format!("directory {}: names of one hash begin at {first}", dir.0);
                        me.of(Kind::NameChain, dir, text);
                    }
                    bucket = Some((place.0, place.1, record.chained()));
                }
            }
            let NameRecord::Entry { kind, ino, name, .. } = record else { return };
            me.name(dir, position, kind, ino, &name);
            if !names_of_hash.insert(name.clone()) {
                let text = format!("directory {}: \"{}\" is there twice", dir.0, show(&name));
                me.of(Kind::NameDuplicate, dir, text);
            }
        })
    }

    fn name(&mut self, dir: InodeId, position: NamePosition, kind: InodeKind, ino: InodeId, name: &[u8]) {
        let shown = show(name);
        let hash = self.core.namespace.hasher.hash(name);
        if NamePosition::new(hash, position.sequence()) != position {
            let text = format!("directory {}: \"{shown}\" is not at the place of its hash", dir.0);
            self.of(Kind::NameMisplaced, dir, text);
        }
        let (dir_lost, ino_lost) = (self.inode_is_lost(dir), self.inode_is_lost(ino));
        match self.inodes.get_mut(&dir) {
            Some(parent) if parent.kind == InodeKind::Directory && !parent.orphan => {
                parent.entries += 1;
                parent.directories += u32::from(kind == InodeKind::Directory);
            }
            Some(_) => {
                let text = format!("\"{shown}\" is in inode {}, which is no directory", dir.0);
                self.of(Kind::NameStray, dir, text);
            }
            None if dir_lost => {}
            None => {
                let text = format!("\"{shown}\" is in directory {}, which does not exist", dir.0);
                self.problem(Kind::NameStray, text);
            }
        }
        match self.inodes.get_mut(&ino) {
            Some(seen) if seen.orphan => {
                let text = format!("\"{shown}\" in directory {} leads to orphan {}", dir.0, ino.0);
                self.of(Kind::NameOfOrphan, dir, text);
            }
            Some(seen) => {
                seen.names += 1;
                (seen.name_parent, seen.name) = (dir, name.to_vec());
                let (is, names) = (seen.kind, seen.names);
                if is != kind {
                    let text = format!("\"{shown}\" in directory {} says another kind than its inode", dir.0);
                    self.of(Kind::NameKind, ino, text);
                }
                if is == InodeKind::Directory && names == 2 {
                    self.of(Kind::DirectoryTwice, ino, format!("directory {} has a second name", ino.0));
                }
            }
            None if ino_lost => {
                let text =
                    format!("the record of inode {}, \"{shown}\" in directory {}, is lost", ino.0, dir.0);
                self.of(Kind::InodeLost, dir, text);
            }
            None => {
                let text = format!(
                    "\"{shown}\" in directory {} leads to inode {}, which does not exist",
                    dir.0, ino.0
                );
                self.of(Kind::NameDangling, dir, text);
            }
        }
    }

    fn tree(&mut self) {
        let root = self.core.root();
        let root_there = self.inodes.get(&root).is_some_and(|seen| seen.kind == InodeKind::Directory);
        let mut found = Problems::default();
        if !root_there {
            found.add(Problem::new(Kind::RootDirectoryMissing, "there is no root directory"));
        }
        let names_lost = self.has_lost(TreeId::NAMES);
        let inodes_lost = self.has_lost(TreeId::INODES);
        // Whether a directory's way up reaches the root; walked once each.
        let mut reaches: HashMap<InodeId, bool> = HashMap::from([(root, true)]);
        for (ino, seen) in &self.inodes {
            let mut of = |kind, text| found.add(Problem::of_inode(kind, ino.0, text));
            let is_root = *ino == root;
            let expected = if is_root { 0 } else { seen.links };
            if !seen.orphan && seen.names != expected {
                let text = format!("inode {} has {} names and says {expected}", ino.0, seen.names);
                let fewer = seen.names < expected;
                match seen.names {
                    _ if fewer && names_lost => of(Kind::NamesLost, text),
                    0 => of(Kind::InodeNameless, text),
                    _ => of(Kind::LinkCount, text),
                }
            }
            if seen.kind != InodeKind::Directory {
                continue;
            }
            if seen.size != seen.entries && !(names_lost && seen.entries < seen.size) {
                let (size, entries) = (seen.size, seen.entries);
                of(Kind::DirectorySize, format!("directory {} has {entries} entries and says {size}", ino.0));
            }
            if let Some(says) = seen.directories_said.filter(|says| *says != seen.directories)
                && !names_lost
            {
                let has = seen.directories;
                let text = format!("directory {} has {has} directories in it and says {says}", ino.0);
                of(Kind::DirectoryLinks, text);
            }
            if seen.links > 1 {
                of(Kind::DirectoryLinks, format!("directory {} has {} links", ino.0, seen.links));
            }
            if seen.orphan {
                continue;
            }
            let parent = if is_root { root } else { seen.name_parent };
            if (is_root || seen.names > 0) && seen.parent != parent {
                let (is, says) = (parent.0, seen.parent.0);
                of(
                    Kind::DirectoryParent,
                    format!("directory {} is in directory {is} and says {says}", ino.0),
                );
            }
            let mut way = vec![*ino];
            let ends = loop {
                let last = way[way.len() - 1];
                if let Some(known) = reaches.get(&last) {
                    break *known;
                }
                match self.inodes.get(&last) {
                    // Longer than all directories: a ring.
                    Some(dir) if way.len() <= self.inodes.len() && dir.kind == InodeKind::Directory => {
                        way.push(dir.parent);
                    }
                    Some(_) => break false,
                    None => break inodes_lost,
                }
            };
            for dir in way {
                reaches.insert(dir, ends);
            }
            if !ends {
                of(
                    Kind::DirectoryUnreachable,
                    format!("directory {} cannot be reached from the root", ino.0),
                );
            }
        }
        self.problems.append(found);
    }

    fn xattrs(&mut self) -> Result<()> {
        // The attribute being read: inode, position, number of the next piece, bytes of value still to come.
        let mut open: Option<(InodeId, NamePosition, u16, usize)> = None;
        // Names of one inode and hash.
        let mut bucket: (InodeId, u64, HashSet<Vec<u8>>) = (InodeId(0), 0, HashSet::new());
        let incomplete = |me: &mut Self, open: &Option<(InodeId, NamePosition, u16, usize)>| {
            if let Some((ino, _, _, left)) = open
                && *left > 0
            {
                let kind = if me.has_lost(TreeId::XATTRS) { Kind::XattrsLost } else { Kind::XattrIncomplete };
                me.of(kind, *ino, format!("an attribute of inode {} lacks {left} bytes", ino.0));
            }
        };
        self.each(TreeId::XATTRS, &mut |me, key, value| {
            let (ino, position, chunk) = match decode_xattr_key(key) {
                Ok((_, ino, position, chunk, _)) => (ino, position, chunk),
                Err(why) => return me.bad_key(TreeId::XATTRS, why),
            };
            if chunk > 0 {
                match &mut open {
                    Some((i, p, next, left))
                        if (*i, *p, *next) == (ino, position, chunk)
                            && *left > 0
                            && value.len() == (*left).min(XATTR_CHUNK_BYTES) =>
                    {
                        *left -= value.len();
                        *next += 1;
                    }
                    _ if me.has_lost(TreeId::XATTRS) => {}
                    _ => {
                        let text = format!("inode {} has a stray piece of an attribute", ino.0);
                        me.of(Kind::XattrPiece, ino, text);
                    }
                }
                return;
            }
            incomplete(me, &open);
            open = None;
            let head = match XattrHead::decode(value) {
                Ok(head) => head,
                Err(why) => {
                    return me.of(
                        Kind::XattrMalformed,
                        ino,
                        format!("an attribute of inode {}: {why}", ino.0),
                    );
                }
            };
            open = Some((ino, position, 1, head.value_len as usize - head.start.len()));
            let name = show(&head.name);
            let hash = me.core.namespace.hasher.hash(&head.name);
            if NamePosition::new(hash, position.sequence()) != position {
                let text = format!("attribute \"{name}\" of inode {} is not at the place of its hash", ino.0);
                me.of(Kind::XattrMisplaced, ino, text);
            }
            if !is_known(&head.name) {
                let text = format!("attribute \"{name}\" of inode {} is of no known namespace", ino.0);
                me.of(Kind::XattrNamespace, ino, text);
            }
            if (bucket.0, bucket.1) != (ino, position.0 >> 8) {
                bucket = (ino, position.0 >> 8, HashSet::new());
            }
            if !bucket.2.insert(head.name.clone()) {
                let text = format!("attribute \"{name}\" of inode {} is there twice", ino.0);
                me.of(Kind::XattrDuplicate, ino, text);
            }
            let lost = me.inode_is_lost(ino);
            match me.inodes.get_mut(&ino) {
                Some(seen) => {
                    seen.xattrs += 1;
                    seen.bytes = seen.bytes.saturating_add(cost(&head.name, head.value_len as usize));
                }
                None if lost => {}
                None => {
                    let text = format!("attribute \"{name}\" of inode {}, which does not exist", ino.0);
                    me.problem(Kind::XattrStray, text);
                }
            }
        })?;
        incomplete(self, &open);
        let lost = self.has_lost(TreeId::XATTRS);
        let mut found = Problems::default();
        for (ino, seen) in self.inodes.iter().filter(|(_, seen)| !seen.orphan) {
            let (has, says) = ((seen.xattrs, seen.bytes), (seen.xattr_count, seen.xattr_bytes));
            if has != says {
                let kind = if lost && has < says { Kind::XattrsLost } else { Kind::XattrCount };
                let text = format!(
                    "inode {} has {} attributes of {} bytes and says {} of {}",
                    ino.0, has.0, has.1, says.0, says.1
                );
                found.add(Problem::of_inode(kind, ino.0, text));
            }
        }
        self.problems.append(found);
        Ok(())
    }

    fn extents(&mut self) -> Result<()> {
        let holders: HashMap<FamilyId, InodeId> =
            self.inodes.iter().map(|(ino, seen)| (seen.holder.family, *ino)).collect();
        let (mut after, mut reserved) = (None, 0);
        while let Some(family) = version::next_family(&self.view, after)? {
            after = Some(family);
            let owner = holders.get(&family).copied();
            let seen = owner.and_then(|ino| self.inodes.get(&ino));
            let (holder, end) =
                (seen.map(|seen| seen.holder), seen.map_or(0, |seen| seen.size.next_multiple_of(BLOCK)));
            let (orphan, inline) = seen.map_or((false, false), |seen| (seen.orphan, seen.inline));
            let (mut found, mut last) = (Vec::new(), 0);
            let runs = &mut self.runs;
            let mut each = |offset: u64, run: Run| {
                last = last.max(offset + run.bytes());
                runs.push(DataRun { run, inode: owner, offset });
            };
            reserved += version::walk_family(&self.view, family, holder, &mut each, &mut found)?;
            let sound = found.is_empty();
            for mut problem in found {
                if problem.kind == Kind::ExtentOwnerless && self.inode_is_lost(InodeId(family.0)) {
                    continue;
                }
                problem.inode = owner.map(|ino| ino.0);
                self.problems.add(problem);
            }
            self.taken("a family of data", family.0);
            let (Some(ino), Some(holder)) = (owner, holder) else { continue };
            if inline && !orphan {
                let text = format!("inode {} has its contents in its record, and extents", ino.0);
                self.of(Kind::InodeSenseless, ino, text);
                continue;
            }
            // What is cut off and not yet reaped lies behind a limit.
            if orphan || last <= end || !sound {
                continue;
            }
            let path = match holder.has_versions {
                true => version::Path::load(&self.view, holder),
                false => Ok(version::Path::implicit(holder)),
            };
            // One page of pieces is enough: anything there is too much.
            let beyond = path.and_then(|path| version::resolve_upto(&self.view, &path, end, last, 8));
            let beyond = match beyond {
                Ok(beyond) => beyond,
                Err(error) => {
                    self.of(Kind::VersionMalformed, ino, format!("data of inode {}: {error}", ino.0));
                    continue;
                }
            };
            let piece = beyond.iter().find(|piece| matches!(piece.what, Mapping::Data { .. }));
            if let Some(piece) = piece {
                let bytes = Some((piece.offset, piece.offset + piece.len));
                let text = format!("inode {} has data beyond its size", ino.0);
                self.problems
                    .add(Problem { bytes, ..Problem::of_inode(Kind::ExtentBeyondSize, ino.0, text) });
            }
        }
        let says = crate::table::subvolumes::first_in(&self.view).ok().flatten();
        let says = says.map_or(reserved, |record| record.reserved_blocks);
        if reserved != says && !self.has_lost(TreeId::EXTENTS) {
            let text = format!("{reserved} blocks are reserved, and the subvolume says {says}");
            self.problem(Kind::ReservedCount, text);
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

    /// Files of which extents were in nodes that are gone.
    fn lost_parts(&mut self) {
        let mut found = Problems::default();
        for lost in self.lost.keys.get(&TreeId::EXTENTS).into_iter().flatten() {
            let family = |key: &[u8]| key.first_chunk::<8>().map(|bytes| InodeId(u64::from_be_bytes(*bytes)));
            let first = family(&lost.low).unwrap_or_default();
            let last = lost.high.as_deref().and_then(family).unwrap_or(InodeId(u64::MAX));
            // A file's family bears the number of its inode.
            for (ino, seen) in self.inodes.range(first..=last.max(first)) {
                let prefix = seen.holder.family.0.to_be_bytes();
                if seen.inline || seen.size == 0 || seen.orphan {
                    continue;
                }
                // Where in the file a key lies; a key of another family is before or behind all of it.
                let offset = |key: &[u8], otherwise: u64| {
                    let mut whole = [0; 28];
                    let len = key.len().min(28);
                    whole[..len].copy_from_slice(&key[..len]);
                    let segment = u64::from_be_bytes(whole[8..16].try_into().expect("8 of 28 bytes"));
                    match key.starts_with(&prefix) {
                        true => segment.saturating_mul(SEGMENT_BYTES).min(seen.size),
                        false => otherwise,
                    }
                };
                let from = offset(&lost.low, 0);
                let to = match &lost.high {
                    // Part of the segment of the end may be lost, too.
                    Some(high) if high.starts_with(&prefix) && high.len() > 16 => {
                        offset(high, seen.size).saturating_add(SEGMENT_BYTES).min(seen.size)
                    }
                    Some(high) => offset(high, seen.size),
                    None => seen.size,
                };
                if from >= to {
                    continue;
                }
                let text = format!("what inode {} has here is lost where it was data", ino.0);
                let bytes = Some((from, to));
                found.add(Problem { bytes, ..Problem::of_inode(Kind::ExtentsLost, ino.0, text) });
            }
        }
        self.problems.append(found);
    }
}
