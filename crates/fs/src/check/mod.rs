//! The offline check: compares all that is derived with a full scan.
//!
//! Reads one view and changes nothing. Of each subvolume and snapshot: names against inodes both ways, link counts, parents,
//! the tree of directories, attributes and their sums; of what all of them have together: extents against the inodes that hold
//! them, orphans, versions; then the engine's own check, which gets the data runs seen here. Meant for a quiet filesystem: what
//! is in flight would look lost.
//!
//! Subvolumes of one family are looked at in the order of their versions, and of each but the first only that in which it
//! differs from the one before ([`differences`]): a pool with hundreds of snapshots costs one of them and all changes. Where
//! anything is found that way, and where what tells the differences is damaged, that subvolume is looked at as a whole. So what is
//! wrong in several of them is told of the youngest, and what follows from it in another may not be.
//! Memory: about 120 bytes for each inode of one subvolume, 100 for each record of an inode in any version, 32 a run.
//!
//! An entry that does not decode is a problem and the next one is looked at. Of a pool that was opened to be checked,
//! tree nodes may be missing: what would follow from that alone is not reported as damage of its own, but as what is
//! lost (an inode's record, part of a file).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use varve_engine::version::{self, points};
use varve_engine::{
    CheckReport, CheckStage, EngineError, FamilyId, InodeId, LostKeys, Problem, ProblemKind as Kind,
    Problems, TreeId, View,
};
use varve_format::record::inode::{InodeKind, InodeRecord, decode_inode_key, inode_key};
use varve_format::record::orphan::{OrphanRecord, decode_orphan_key};
use varve_format::record::subvolume::{SUBVOLUME_DELETING, SUBVOLUME_FLAGGED};
use varve_format::record::version::VersionRecord;
use varve_format::{Corrupt, VersionId, VersionKey};

use crate::Result;
use crate::api::{FileFlags, shown_number};
use crate::core::Core;
use crate::subvolume::{Slot, Subvolume, local};
use crate::table::Namespace;

mod data;
mod differences;
mod files;
mod names;
mod numbers;
mod owners;
mod paths;
mod subvolumes;
mod tree;
mod xattrs;

use data::DataRun;
use owners::Owners;
use subvolumes::Places;

/// An inode as the subvolume that is being looked at shows it: what its record says, and what was counted.
#[derive(Default)]
struct Seen {
    /// `None`: there is no record that can be read.
    says: Option<Says>,
    /// There is a record, and it cannot be read.
    malformed: bool,
    /// Names that lead to it, and the directory of the last of them.
    names: u32,
    name_parent: InodeId,
    /// Names in it, and how many of them are of directories.
    entries: u64,
    directories: u32,
    /// Its attributes, and what they come to.
    xattrs: u32,
    bytes: u32,
}

/// What is looked at of a record of an inode.
struct Says {
    kind: InodeKind,
    links: u32,
    size: u64,
    parent: InodeId,
    /// Whose data it has.
    data: FamilyId,
    inline: bool,
    xattr_count: u32,
    xattr_bytes: u32,
    /// Directories in it, if it says anything about that.
    directories: Option<u32>,
}

impl Says {
    fn new(record: &InodeRecord) -> Says {
        Says {
            kind: record.kind,
            links: record.links,
            size: record.size,
            parent: record.parent,
            data: record.data.family,
            inline: record.inline.is_some(),
            xattr_count: record.xattr_count,
            xattr_bytes: record.xattr_bytes,
            directories: record.rdev.checked_sub(1).filter(|_| record.kind == InodeKind::Directory),
        }
    }
}

impl Seen {
    /// Whether there is nothing to be known of it any more.
    fn is_nothing(&self) -> bool {
        let counted = (self.names, self.entries, self.xattrs);
        self.says.is_none() && !self.malformed && counted == (0, 0, 0)
    }
}

/// Entries looked at in one go.
const PIECE: usize = 4096;

/// By their numbers without the slot.
type Inodes = BTreeMap<InodeId, Seen>;

/// Whole keys and values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Inodes that a step from one subvolume to the next was about, without the slot.
type Touched = BTreeSet<InodeId>;

/// Gets the check, a key and a value.
type EachEntry<'e, 'a> = &'e mut dyn FnMut(&mut Check<'a>, &[u8], &[u8]);

/// What cannot be had, sorted.
struct Lost {
    /// By tree; ranges of one tree do not overlap.
    keys: HashMap<TreeId, Vec<LostKeys>>,
}

impl Lost {
    fn new(list: Vec<LostKeys>) -> Lost {
        let mut keys: HashMap<TreeId, Vec<LostKeys>> = HashMap::new();
        for lost in list {
            keys.entry(lost.tree).or_default().push(lost);
        }
        keys.values_mut().for_each(|keys| keys.sort_unstable_by(|a, b| a.low.cmp(&b.low)));
        Lost { keys }
    }

    /// Whether some keys of a tree that begin with `prefix` cannot be had.
    fn overlaps(&self, tree: TreeId, prefix: &[u8]) -> bool {
        let within = |lost: &LostKeys| {
            let begins = lost.low[..] <= *prefix || lost.low.starts_with(prefix);
            begins && lost.high.as_ref().is_none_or(|high| high[..] > *prefix)
        };
        self.keys.get(&tree).is_some_and(|ranges| ranges.iter().any(within))
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
    /// The one being looked at.
    namespace: Namespace,
    /// What it shows.
    inodes: Inodes,
    /// How many of them are malformed.
    malformed: usize,
    /// All subvolumes, the first's first.
    namespaces: Vec<Namespace>,
    /// Families whose versions are not what they should be, so that nothing can be told from them.
    unsound: BTreeSet<FamilyId>,
    /// Inodes that have no names and are open, or going, with their slots.
    orphans: BTreeSet<InodeId>,
    owners: Owners,
    places: Places,
    /// Ranges of extents that are lost, by their places, and inodes of which was said that they had data there.
    told: HashSet<(usize, InodeId, FamilyId)>,
    runs: Vec<DataRun>,
    lost: Lost,
    id_floor: u64,
    problems: Problems,
    /// Whether an inode may have flags that users set.
    flagged: bool,
    looks: Looks,
}

/// Whether a problem of a family's versions leaves it to be told what each of them has: what is too much, and work that nobody
/// does.
fn idle(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::WhiteoutIdle
            | Kind::EntryUnseen
            | Kind::HeldStray
            | Kind::ReapMalformed
            | Kind::ReapMissing
            | Kind::ReapStray
    )
}

/// How subvolumes were looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Looks {
    /// As a whole.
    pub whole: usize,
    /// By that in which they differ from another.
    pub differences: usize,
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
    fn above(&self) -> paths::Above {
        let place = |subvolume: &Subvolume| {
            let (dir, position) = (*subvolume.place.lock())?;
            let name = self.subvolumes.nested.name(dir, position)?;
            Some((subvolume.slot, (dir, name)))
        };
        self.subvolumes.all().iter().filter_map(|subvolume| place(subvolume)).collect()
    }

    pub fn check(&self, verify_data: bool) -> Result<CheckReport> {
        self.check_as(verify_data, false).map(|(report, _)| report)
    }

    /// The same; with `whole` every subvolume is looked at as a whole, however many others are like it. And how many were.
    pub fn check_as(&self, verify_data: bool, whole: bool) -> Result<(CheckReport, Looks)> {
        let problems = self.subvolume_problems.clone();
        let view = self.store.view();
        let first = crate::table::subvolumes::first_in(&view)?;
        let mut check = Check {
            core: self,
            view,
            namespace: Namespace::clone(&*self.names(self.root())?),
            inodes: Inodes::new(),
            malformed: 0,
            namespaces: self.namespaces()?,
            unsound: BTreeSet::new(),
            orphans: BTreeSet::new(),
            owners: Owners::default(),
            places: Places::default(),
            told: HashSet::new(),
            runs: Vec::new(),
            lost: Lost::new(self.store.lost_keys()),
            id_floor: self.store.id_floor(),
            problems,
            flagged: first.is_none_or(|record| record.flags & SUBVOLUME_FLAGGED != 0),
            looks: Looks::default(),
        };
        if !self.store.is_hopeless() {
            let progress = self.store.progress();
            progress.begin(CheckStage::Entries, 0);
            check.foreign()?;
            check.versions()?;
            check.orphans()?;
            check.places()?;
            progress.begin(CheckStage::Subvolumes, check.namespaces.len() as u64);
            for family in check.in_order() {
                let mut before = None;
                for namespace in family {
                    check.namespace = namespace.clone();
                    check.look(before.replace(namespace).filter(|_| !whole).as_ref())?;
                    progress.step(1);
                }
            }
            (check.inodes, check.malformed) = (Inodes::new(), 0);
            progress.begin(CheckStage::Files, 0);
            check.owners = check.all_owners()?;
            check.extents()?;
            check.counts()?;
        }
        // The view keeps what the extents name from being used for something else while it is read.
        let Check { view: named, namespaces, owners, mut runs, mut problems, looks, .. } = check;
        let mut report = self.store.check(&mut runs.iter().map(|data| data.run), verify_data)?;
        drop(named);
        // The engine knows addresses: say whose they are.
        runs.sort_unstable_by_key(|data| data.run.addr);
        let view = self.store.view();
        let mut files = files::Files::new(&view, self.sharing(), &runs, &owners, &namespaces);
        report.problems.iter_mut().for_each(|problem| files.locate(problem));
        let all = problems.list.iter_mut().chain(&mut report.problems).collect();
        paths::name(all, &view, &namespaces, self.root(), &self.above());
        report.omitted += problems.omitted;
        report.warnings.extend(problems.warnings);
        report.problems.splice(0..0, problems.list);
        Ok((report, looks))
    }
}

impl<'a> Check<'a> {
    fn problem(&mut self, kind: Kind, text: String) {
        self.problems.add(Problem::new(kind, text));
    }

    fn of(&mut self, kind: Kind, ino: InodeId, text: String) {
        self.problems.add(Problem::of_inode(kind, ino.0, text));
    }

    /// All entries of a tree, whoever's they are.
    fn entries(&self, tree: TreeId) -> Result<Entries> {
        let mut entries = Vec::new();
        self.view.scan(tree, &[], &mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            true
        })?;
        Ok(entries)
    }

    /// The subvolumes, by family, those with most in common one after the other.
    fn in_order(&self) -> Vec<Vec<Namespace>> {
        let mut families: Vec<Vec<Namespace>> = Vec::new();
        let mut places: HashMap<FamilyId, usize> = HashMap::new();
        for namespace in &self.namespaces {
            let at = *places.entry(namespace.family).or_insert(families.len());
            match families.get_mut(at) {
                Some(family) => family.push(namespace.clone()),
                None => families.push(vec![namespace.clone()]),
            }
        }
        // The youngest first: what is wrong in several is told of that.
        families.iter_mut().for_each(|family| family.sort_by(|a, b| b.path.order(&a.path)));
        families
    }

    /// Looks at one subvolume: all of it, or that in which it differs from another that has been looked at just before.
    fn look(&mut self, before: Option<&Namespace>) -> Result<()> {
        let differs = match before {
            Some(before) if self.tells_differences(before) => self.differences(before),
            _ => false,
        };
        self.looks.differences += usize::from(differs);
        self.looks.whole += usize::from(!differs);
        if !differs {
            (self.inodes, self.malformed) = (Inodes::new(), 0);
            self.inodes()?;
            self.names()?;
            self.xattrs()?;
            self.tree(None);
        }
        self.nameless();
        self.places_here()?;
        self.lost_parts();
        Ok(())
    }

    /// The number that users see of an inode of the subvolume that is being looked at.
    fn full(&self, ino: InodeId) -> InodeId {
        self.namespace.slot.full(ino)
    }

    /// Calls `each` with every entry of a tree that the subvolume being looked at shows.
    fn each(&mut self, tree: TreeId, each: EachEntry<'_, 'a>) -> Result<()> {
        let family = self.namespace.family.0.to_be_bytes();
        let mut from: Vec<u8> = family.to_vec();
        loop {
            // A piece at a time: `each` wants all of this, and the scan has part of it.
            let mut piece = Entries::new();
            let scanned = self.namespace.each(&self.view, tree, &from, &family, &mut |key, value| {
                piece.push((key.to_vec(), value.to_vec()));
                piece.len() < PIECE
            });
            scanned.or_else(|error| self.unread(tree, error))?;
            let Some((last, _)) = piece.last() else { return Ok(()) };
            let next = behind(last, self.namespace.forked);
            let is_last = next <= from;
            from = next;
            for (key, value) in &piece {
                each(self, key, value);
            }
            if piece.len() < PIECE || is_last {
                return Ok(());
            }
        }
    }

    /// A part of what the subvolume being looked at shows could not be read.
    fn unread(&mut self, tree: TreeId, error: EngineError) -> Result<()> {
        if error.may_pass() {
            // What is there may be as it should: nothing follows from its not having been read.
            return Err(error.into());
        }
        self.problem(Kind::KeyMalformed, format!("a namespace in the {} tree: {error}", tree.name()));
        Ok(())
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

    /// Where the pool says that nothing in it was ever shared, each subvolume has a family of its own, of which there are no versions:
    /// what two stood at would be changed for both. Nor is anything of them indexed or to be reaped: whoever forks one begins with nothing.
    fn unforked(&mut self) -> Result<()> {
        let mut alone = HashSet::new();
        let (mut shared, mut found) = (BTreeSet::new(), Vec::new());
        for namespace in self.namespaces.iter().filter(|namespace| !namespace.forked) {
            let family = namespace.family;
            if !alone.insert(family) || version::check_names(&self.view, family, false, &mut found)? {
                shared.insert(family);
            }
        }
        found.into_iter().for_each(|problem| self.problems.add(problem));
        for family in shared {
            let text = format!("family {} of names is shared, and the pool says that nothing is", family.0);
            self.problem(Kind::SubvolumeVersion, text);
        }
        Ok(())
    }

    /// What is being deleted has let go of its version when it was marked: that is held by nobody, or gone with all that it held. The next
    /// opening would delete one that has not.
    fn deleted(&mut self) -> Result<()> {
        let live: HashSet<FamilyId> = self.namespaces.iter().map(|namespace| namespace.family).collect();
        let mut held = Vec::new();
        for (id, record) in crate::table::subvolumes::others(&self.view)? {
            let Ok(record) = record else { continue };
            if record.flags & SUBVOLUME_DELETING == 0 || live.contains(&record.family) {
                continue;
            }
            let family = record.family.0.to_be_bytes();
            let (mut versions, mut refs, mut inodes) = (0u64, 0u64, false);
            self.view.scan(TreeId::VERSIONS, &family, &mut |key, value| {
                let version = VersionRecord::decode(value).ok().filter(|_| key.starts_with(&family));
                versions += u64::from(version.is_some());
                refs += version.as_ref().map_or(0, |version| u64::from(version.refs > 0));
                key.starts_with(&family)
            })?;
            self.view.scan(TreeId::INODES, &family, &mut |key, _| {
                inodes = key.starts_with(&family);
                false
            })?;
            if refs > 0 || (versions == 0 && inodes) {
                held.push(id);
            }
        }
        for id in held {
            let text =
                format!("subvolume {id} is marked as being deleted, and has not let go of its version");
            self.problem(Kind::SubvolumeVersion, text);
        }
        Ok(())
    }

    /// Versions of the namespaces against what stands at them.
    fn versions(&mut self) -> Result<()> {
        self.unforked()?;
        self.deleted()?;
        let mut families: BTreeMap<FamilyId, Vec<(VersionId, u64)>> = BTreeMap::new();
        for namespace in self.namespaces.iter().filter(|namespace| namespace.forked) {
            families.entry(namespace.family).or_default().push((namespace.version, 1));
        }
        for (family, mut standing) in families {
            standing.sort_unstable();
            let floor = self.id_floor;
            let mut unsound = standing.iter().any(|(version, _)| version.0 >= floor);
            standing.dedup_by(|next, first| {
                let same = next.0 == first.0;
                first.1 += if same { next.1 } else { 0 };
                same
            });
            let (mut found, progress) = (Vec::new(), self.core.store.progress());
            version::check_names(&self.view, family, true, &mut found)?;
            found.drain(..).for_each(|problem| self.problems.add(problem));
            points::walk_points(&self.view, family, &standing, &mut found, &mut |_, _, _| progress.step(1))?;
            unsound |= found.iter().any(|problem| !idle(problem.kind));
            found.into_iter().for_each(|problem| self.problems.add(problem));
            if unsound {
                self.unsound.insert(family);
            }
        }
        Ok(())
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
        self.lost.keys.contains_key(&tree) || (tree == TreeId::INODES && self.malformed > 0)
    }

    /// Whether the record of an inode of the subvolume that is being looked at may have been lost.
    fn inode_is_lost(&self, ino: InodeId) -> bool {
        if self.malformed == 0 && self.lost.keys.is_empty() {
            return false;
        }
        let version = VersionKey(self.namespace.version.0);
        let key = inode_key(self.namespace.family, ino, version);
        self.lost.covers(TreeId::INODES, &key) || self.inodes.get(&ino).is_some_and(|seen| seen.malformed)
    }

    fn inodes(&mut self) -> Result<()> {
        self.each(TreeId::INODES, &mut |me, key, value| match decode_inode_key(key) {
            Ok((_, ino, _)) => me.inode(ino, Some(value)),
            Err(why) => me.bad_key(TreeId::INODES, why),
        })
    }

    /// An inode has this record.
    fn inode(&mut self, ino: InodeId, value: Option<&[u8]>) {
        let (full, mut says, mut malformed) = (self.full(ino), None, false);
        if let Some(value) = value {
            self.taken("inode", ino.0);
            match InodeRecord::decode(value) {
                Ok(record) => {
                    if record.links == 0 {
                        let text = format!("inode {} has no links and is not an orphan", shown_number(full));
                        self.of(Kind::InodeUnlinked, full, text);
                    }
                    self.fields(full, &record);
                    says = Some(Says::new(&record));
                }
                Err(why) => {
                    self.of(
                        Kind::InodeMalformed,
                        full,
                        format!("the record of inode {}: {why}", shown_number(full)),
                    );
                    // Its names lead somewhere all the same.
                    malformed = true;
                }
            }
        }
        let seen = self.inodes.entry(ino).or_default();
        self.malformed = self.malformed + usize::from(malformed) - usize::from(seen.malformed);
        (seen.says, seen.malformed) = (says, malformed);
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
            let text = format!(
                "inode {} has flags ({letters}), and the pool says that no inode has any",
                shown_number(ino)
            );
            self.of(Kind::InodeFlags, ino, text);
        }
        for what in wrong {
            self.of(Kind::InodeSenseless, ino, format!("inode {} {what}", shown_number(ino)));
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
                    self.of(Kind::OrphanMalformed, ino, format!("orphan {}: {why}", shown_number(ino)));
                    continue;
                }
            };
            self.taken("orphan", local(ino).0);
            if record.inode.links != 0 {
                let text = format!("orphan {} has {} links", shown_number(ino), record.inode.links);
                self.of(Kind::OrphanLinked, ino, text);
            }
            let directories = record.inode.rdev > 1;
            if record.inode.kind == InodeKind::Directory && (record.inode.size > 0 || directories) {
                let what = if directories { "has directories in it" } else { "has entries" };
                self.of(Kind::DirectorySize, ino, format!("orphan {} {what} and no name", shown_number(ino)));
            }
            self.orphans.insert(ino);
        }
        Ok(())
    }

    /// Orphans of the subvolume that is being looked at must not be in it.
    fn nameless(&mut self) {
        let (first, last) = (self.full(InodeId(0)), self.full(local(InodeId(u64::MAX))));
        let orphans: Vec<InodeId> = self.orphans.range(first..=last).copied().collect();
        for ino in orphans {
            if self.inodes.get(&local(ino)).is_some_and(|seen| seen.says.is_some()) {
                self.of(
                    Kind::OrphanLive,
                    ino,
                    format!("inode {} is an orphan and in the namespace", shown_number(ino)),
                );
            }
        }
    }

    /// The stored number of inodes.
    fn counts(&mut self) -> Result<()> {
        let record = crate::table::subvolumes::first_in(&self.view)?;
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
