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

use varve_engine::version::{Holder, points};
use varve_engine::{
    CheckReport, FamilyId, InodeId, LostKeys, Problem, ProblemKind as Kind, Problems, TreeId, View,
};
use varve_format::record::inode::{InodeKind, InodeRecord, decode_inode_key, inode_key};
use varve_format::record::orphan::{OrphanRecord, decode_orphan_key};
use varve_format::record::subvolume::SUBVOLUME_FLAGGED;
use varve_format::{Corrupt, VersionId, VersionKey};

use crate::Result;
use crate::api::FileFlags;
use crate::core::Core;
use crate::subvolume::{Slot, Subvolume, local};
use crate::table::{Namespace, extents};

mod data;
mod files;
mod names;
mod subvolumes;
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
    fn new(ino: InodeId, record: &InodeRecord, orphan: bool) -> Seen {
        Seen {
            kind: record.kind,
            links: record.links,
            size: record.size,
            parent: Slot::of(ino).full(record.parent),
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

/// Entries looked at in one go.
const PIECE: usize = 4096;

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
    /// The one being checked.
    namespace: Namespace,
    /// All of them, the first subvolume's first.
    namespaces: Vec<Namespace>,
    inodes: Inodes,
    runs: Vec<DataRun>,
    lost: Lost,
    id_floor: u64,
    problems: Problems,
    /// Whether an inode may have flags that users set.
    flagged: bool,
}

/// Where to go on behind the entry at `key`: the next key, or, where only one of the entries of a prefix can be seen, the
/// next prefix.
fn behind(key: &[u8], forked: bool) -> Vec<u8> {
    if !forked {
        return [key, &[0]].concat();
    }
    let mut prefix = key[..key.len().saturating_sub(8)].to_vec();
    for byte in prefix.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    prefix
}

impl Core {
    /// What all subvolumes show, the first one's first.
    fn namespaces(&self) -> Result<Vec<Namespace>> {
        let mut all = self.subvolumes.all();
        all.sort_by_key(|subvolume| subvolume.slot);
        let root = |slot: Slot| slot.full(self.root());
        all.iter().map(|subvolume| Ok(Namespace::clone(&*self.names(root(subvolume.slot))?))).collect()
    }

    /// Where the roots of subvolumes are.
    fn above(&self) -> names::Above {
        let place = |subvolume: &Subvolume| {
            let (dir, position) = (*subvolume.place.lock())?;
            let name = self.subvolumes.nested.name(dir, position)?;
            Some((subvolume.slot.full(self.root()), (dir, name)))
        };
        self.subvolumes.all().iter().filter_map(|subvolume| place(subvolume)).collect()
    }

    pub(crate) fn check(&self, verify_data: bool) -> Result<CheckReport> {
        let problems = self.subvolume_problems.clone();
        let view = self.store.view();
        // A record that cannot be read is another problem.
        let first = crate::table::subvolumes::first_in(&view).ok().flatten();
        let mut check = Check {
            core: self,
            view,
            namespace: Namespace::clone(&*self.names(self.root())?),
            namespaces: self.namespaces()?,
            inodes: Inodes::new(),
            runs: Vec::new(),
            lost: Lost::new(self.store.lost_keys()),
            id_floor: self.store.id_floor(),
            problems,
            flagged: first.is_none_or(|record| record.flags & SUBVOLUME_FLAGGED != 0),
        };
        if !self.store.is_hopeless() {
            check.foreign()?;
            check.versions()?;
            for namespace in check.namespaces.clone() {
                check.namespace = namespace;
                check.inodes()?;
            }
            check.orphans()?;
            for namespace in check.namespaces.clone() {
                check.namespace = namespace;
                check.names()?;
                check.xattrs()?;
            }
            check.namespace = check.namespaces[0].clone();
            check.tree();
            check.places()?;
            check.sums();
            check.extents()?;
            check.counts()?;
            check.lost_parts();
        }
        let Check { view, inodes, mut runs, mut problems, .. } = check;
        drop(view);
        let mut report = self.store.check(&mut runs.iter().map(|data| data.run), verify_data)?;
        // The engine knows addresses: say whose they are.
        runs.sort_unstable_by_key(|data| data.run.addr);
        let mut files = files::Files::new(self.store.view(), self.sharing(), &runs, &inodes);
        report.problems.iter_mut().for_each(|problem| files.locate(problem));
        let above = self.above();
        for problem in problems.list.iter_mut().chain(&mut report.problems) {
            names::name_path(problem, &inodes, self.root(), &above);
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

    /// Calls `each` with every entry of a tree that the namespace being checked shows.
    fn each(&mut self, tree: TreeId, each: EachEntry<'_, 'a>) -> Result<()> {
        let family = self.namespace.family.0.to_be_bytes();
        let mut from: Vec<u8> = family.to_vec();
        loop {
            // A piece at a time: `each` wants all of this, and the scan has part of it.
            let mut piece: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let scanned = self.namespace.piece(&self.view, tree, &from, &family, PIECE, &mut piece);
            if let Err(error) = scanned {
                self.problem(Kind::KeyMalformed, format!("a namespace in the {} tree: {error}", tree.name()));
            }
            let Some((last, _)) = piece.last() else { return Ok(()) };
            from = behind(last, self.namespace.forked);
            for (key, value) in &piece {
                each(self, key, value);
            }
            if piece.len() < PIECE {
                return Ok(());
            }
        }
    }

    /// Entries of namespaces and of versions that there are not.
    fn foreign(&mut self) -> Result<()> {
        // Of a family without versions, the key of its one version.
        let mut keys: HashMap<u64, Option<u64>> = HashMap::new();
        for namespace in &self.namespaces {
            keys.insert(namespace.family.0, (!namespace.forked).then_some(namespace.version.0));
        }
        for (_, record) in crate::table::subvolumes::others(&self.view)? {
            // One that is being deleted.
            if let Ok(record) = record {
                keys.entry(record.family.0).or_insert(None);
            }
        }
        for tree in [TreeId::INODES, TreeId::NAMES, TreeId::XATTRS] {
            let mut found = 0u64;
            self.view.scan(tree, &[], &mut |key, _| {
                let part = |bytes: Option<&[u8; 8]>| bytes.map(|bytes| u64::from_be_bytes(*bytes));
                let known = part(key.first_chunk()).and_then(|family| keys.get(&family));
                let version = part(key.last_chunk()).map(|version| !version);
                found += u64::from(match known {
                    Some(Some(only)) => version != Some(*only),
                    Some(None) => false,
                    None => true,
                });
                true
            })?;
            for _ in 0..found {
                self.problem(Kind::EntryForeign, format!("an entry of the {} tree", tree.name()));
            }
        }
        Ok(())
    }

    /// Versions of the namespaces against what stands at them.
    fn versions(&mut self) -> Result<()> {
        let mut families: BTreeMap<FamilyId, Vec<(VersionId, u64)>> = BTreeMap::new();
        for namespace in self.namespaces.iter().filter(|namespace| namespace.forked) {
            families.entry(namespace.family).or_default().push((namespace.version, 1));
        }
        for (family, mut standing) in families {
            standing.sort_unstable();
            standing.dedup_by(|next, first| {
                let same = next.0 == first.0;
                first.1 += if same { next.1 } else { 0 };
                same
            });
            for (version, _) in &standing {
                self.taken("a version of a namespace", version.0);
            }
            let mut found = Vec::new();
            points::walk_points(&self.view, family, &standing, &mut found, &mut |_, _, _| {})?;
            found.into_iter().for_each(|problem| self.problems.add(problem));
        }
        Ok(())
    }

    /// All who hold data: the records of inodes as they are stored, in whatever version, and orphans.
    fn holders(&mut self) -> Result<HashMap<FamilyId, Vec<Holder>>> {
        let mut holders: HashMap<FamilyId, Vec<Holder>> = HashMap::new();
        let mut add = |record: &InodeRecord| {
            let mut holder = extents::holder(record);
            holder.has_versions |= self.core.sharing();
            if record.inline.is_none() || !self.core.sharing() {
                holders.entry(holder.family).or_default().push(holder);
            }
        };
        self.view.scan(TreeId::INODES, &[], &mut |_, value| {
            if let Ok(record) = InodeRecord::decode(value) {
                add(&record);
            }
            true
        })?;
        self.view.scan(TreeId::ORPHANS, &[], &mut |_, value| {
            if let Ok(record) = OrphanRecord::decode(value) {
                add(&record.inode);
            }
            true
        })?;
        Ok(holders)
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
        let version = VersionKey(self.namespace.version.0);
        let key = inode_key(self.namespace.family, local(ino), version);
        self.lost.inodes.contains(&ino) || self.lost.covers(TreeId::INODES, &key)
    }

    fn inodes(&mut self) -> Result<()> {
        self.each(TreeId::INODES, &mut |me, key, value| {
            let ino = match decode_inode_key(key) {
                Ok((_, ino, _)) => me.namespace.slot.full(ino),
                Err(why) => return me.bad_key(TreeId::INODES, why),
            };
            me.taken("inode", local(ino).0);
            match InodeRecord::decode(value) {
                Ok(record) => {
                    if record.links == 0 {
                        let text = format!("inode {} has no links and is not an orphan", ino.0);
                        me.of(Kind::InodeUnlinked, ino, text);
                    }
                    me.fields(ino, &record);
                    me.inodes.insert(ino, Seen::new(ino, &record, false));
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
        // A copy of an inherited record of a small file has a family of its own.
        if record.data.family.0 != local(ino).0 && !self.core.sharing() {
            wrong.push("has the data of another inode");
        }
        let flags = FileFlags::of(record);
        if flags != FileFlags::NONE && !self.flagged {
            let letters = flags.letters();
            let text =
                format!("inode {} has flags ({letters}), and the pool says that no inode has any", ino.0);
            self.of(Kind::InodeFlags, ino, text);
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
            self.taken("orphan", local(ino).0);
            if record.inode.links != 0 {
                let text = format!("orphan {} has {} links", ino.0, record.inode.links);
                self.of(Kind::OrphanLinked, ino, text);
            }
            if let Entry::Vacant(place) = self.inodes.entry(ino) {
                place.insert(Seen::new(ino, &record.inode, true));
            } else {
                self.of(Kind::OrphanLive, ino, format!("inode {} is an orphan and in the namespace", ino.0));
            }
        }
        Ok(())
    }

    /// The stored number of inodes.
    fn counts(&mut self) -> Result<()> {
        let record = crate::table::subvolumes::first_in(&self.view).ok().flatten();
        let has = crate::table::inodes::count(&self.view)?;
        if let Some(record) = record.filter(|record| record.files_known && record.files != has)
            && !self.has_lost(TreeId::INODES)
        {
            let text = format!("there are {has} inodes, and the subvolume says {}", record.files);
            self.problem(Kind::InodeCount, text);
        }
        Ok(())
    }
}
