//! The offline check: compares all that is derived with a full scan.
//!
//! Reads one view and changes nothing. Names against inodes both ways, link counts, parents, the tree of directories,
//! attributes and their sums, extents against their inodes, orphans, versions; then the engine's own check, which gets
//! the data runs seen here. Meant for a quiet filesystem: what is in flight would look lost. Memory: about 100 bytes an
//! inode and 16 a run.

use std::collections::{BTreeMap, HashMap, HashSet};

use varve_engine::version::{self, Holder, Mapping};
use varve_engine::{BLOCK_BYTES, CheckReport, EngineError, FamilyId, InodeId, Run, View};
use varve_format::record::inode::{InodeKind, InodeRecord};
use varve_format::record::name::NameRecord;
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, xattr_chunks};

use crate::core::Core;
use crate::ops::xattr::cost;
use crate::table::{extents, orphans};
use crate::{FsError, Result};

/// Problems listed before the rest is only counted.
const PROBLEMS_MAX: usize = 1000;

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
            xattrs: 0,
            bytes: 0,
        }
    }
}

#[derive(Default)]
struct Problems {
    list: Vec<String>,
    more: u64,
}

impl Problems {
    fn add(&mut self, problem: String) {
        if self.list.len() < PROBLEMS_MAX { self.list.push(problem) } else { self.more += 1 }
    }

    /// What cannot be read is a problem, and the end of one scan; the others go on.
    fn note(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Err(FsError::Engine(error @ (EngineError::Corrupt { .. } | EngineError::Checksum { .. }))) => {
                self.add(error.to_string());
                Ok(())
            }
            result => result,
        }
    }
}

fn show(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Core {
    pub(crate) fn check(&self, verify_data: bool) -> Result<CheckReport> {
        let view = self.store.view();
        let mut problems = Problems::default();
        let (mut inodes, mut runs) = (BTreeMap::new(), Vec::new());
        let result = self.check_inodes(&view, &mut inodes, &mut problems);
        problems.note(result)?;
        let result = self.check_names(&view, &mut inodes, &mut problems);
        problems.note(result)?;
        self.check_tree(&inodes, &mut problems);
        let result = self.check_xattrs(&view, &mut inodes, &mut problems);
        problems.note(result)?;
        let result = self.check_extents(&view, &inodes, &mut runs, &mut problems);
        problems.note(result)?;
        drop(view);
        let mut report = self.store.check(&mut runs.into_iter(), verify_data)?;
        if problems.more > 0 {
            problems.list.push(format!("and {} more problems of the filesystem", problems.more));
        }
        report.problems.splice(0..0, problems.list);
        Ok(report)
    }

    fn check_inodes(
        &self,
        view: &View,
        inodes: &mut BTreeMap<InodeId, Seen>,
        problems: &mut Problems,
    ) -> Result<()> {
        self.namespace.each_inode(view, &mut |ino, record| {
            if record.links == 0 {
                problems.add(format!("inode {} has no links and is not an orphan", ino.0));
            }
            inodes.insert(ino, Seen::new(&record, false));
            true
        })?;
        orphans::each(view, &mut |ino, record| {
            if record.inode.links != 0 {
                problems.add(format!("orphan {} has {} links", ino.0, record.inode.links));
            }
            if inodes.insert(ino, Seen::new(&record.inode, true)).is_some() {
                problems.add(format!("inode {} is an orphan and in the namespace", ino.0));
            }
        })?;
        Ok(())
    }

    fn check_names(
        &self,
        view: &View,
        inodes: &mut BTreeMap<InodeId, Seen>,
        problems: &mut Problems,
    ) -> Result<()> {
        // The bucket being read: directory, hash, whether its first entry says that more follow.
        let mut bucket: Option<(InodeId, u64, bool)> = None;
        let mut names_of_hash: HashSet<Vec<u8>> = HashSet::new();
        self.namespace.each_directory_entry(view, &mut |dir, position, record| {
            let place = (dir, position.0 >> 8);
            match bucket {
                Some((d, h, chained)) if (d, h) == place => {
                    if !chained {
                        problems
                            .add(format!("directory {}: a name follows an entry that says none does", dir.0));
                    }
                }
                _ => {
                    names_of_hash.clear();
                    if position.sequence() != 0 {
                        problems.add(format!(
                            "directory {}: names of one hash begin at {}",
                            dir.0,
                            position.sequence()
                        ));
                    }
                    bucket = Some((place.0, place.1, record.chained()));
                }
            }
            let NameRecord::Entry { kind, ino, name, .. } = record else { return };
            let hash = self.namespace.hasher.hash(&name);
            if varve_format::record::name::NamePosition::new(hash, position.sequence()) != position {
                problems.add(format!(
                    "directory {}: \"{}\" is not at the place of its hash",
                    dir.0,
                    show(&name)
                ));
            }
            if !names_of_hash.insert(name.clone()) {
                problems.add(format!("directory {}: \"{}\" is there twice", dir.0, show(&name)));
            }
            match inodes.get_mut(&dir) {
                Some(parent) if parent.kind == InodeKind::Directory && !parent.orphan => parent.entries += 1,
                Some(_) => {
                    problems.add(format!("\"{}\" is in inode {}, which is no directory", show(&name), dir.0))
                }
                None => problems.add(format!(
                    "\"{}\" is in directory {}, which does not exist",
                    show(&name),
                    dir.0
                )),
            }
            match inodes.get_mut(&ino) {
                Some(seen) if seen.orphan => {
                    problems.add(format!(
                        "\"{}\" in directory {} leads to orphan {}",
                        show(&name),
                        dir.0,
                        ino.0
                    ));
                }
                Some(seen) => {
                    seen.names += 1;
                    (seen.name_parent, seen.name) = (dir, name.clone());
                    if seen.kind != kind {
                        let text = "says another kind than its inode";
                        problems.add(format!("\"{}\" in directory {} {text} {}", show(&name), dir.0, ino.0));
                    }
                }
                None => problems.add(format!(
                    "\"{}\" in directory {} leads to inode {}, which does not exist",
                    show(&name),
                    dir.0,
                    ino.0
                )),
            }
        })?;
        Ok(())
    }

    fn check_tree(&self, inodes: &BTreeMap<InodeId, Seen>, problems: &mut Problems) {
        let root = self.root();
        match inodes.get(&root) {
            Some(seen) if seen.kind == InodeKind::Directory => {}
            _ => problems.add("there is no root directory".into()),
        }
        // Whether a directory's way up reaches the root; walked once each.
        let mut reaches: HashMap<InodeId, bool> = HashMap::from([(root, true)]);
        for (ino, seen) in inodes {
            let is_root = *ino == root;
            let expected = if is_root { 0 } else { seen.links };
            if !seen.orphan && seen.names != expected {
                let name = show(&seen.name);
                problems.add(format!(
                    "inode {} (\"{name}\") has {} names and says {}",
                    ino.0, seen.names, expected
                ));
            }
            if seen.kind != InodeKind::Directory {
                if seen.parent != InodeId(0) {
                    problems.add(format!("inode {} is no directory and has a parent link", ino.0));
                }
                continue;
            }
            if seen.size != seen.entries {
                let (size, entries) = (seen.size, seen.entries);
                problems.add(format!("directory {} has {entries} entries and says {size}", ino.0));
            }
            if seen.links > 1 {
                problems.add(format!("directory {} has {} links", ino.0, seen.links));
            }
            if seen.orphan {
                continue;
            }
            if !is_root && seen.names > 0 && seen.parent != seen.name_parent {
                let (is, says) = (seen.name_parent.0, seen.parent.0);
                problems.add(format!("directory {} is in directory {is} and says {says}", ino.0));
            }
            let mut way = vec![*ino];
            let ends = loop {
                let last = way[way.len() - 1];
                if let Some(known) = reaches.get(&last) {
                    break *known;
                }
                match inodes.get(&last) {
                    // Longer than all directories: a ring.
                    Some(dir) if way.len() <= inodes.len() => way.push(dir.parent),
                    _ => break false,
                }
            };
            for dir in way {
                reaches.insert(dir, ends);
            }
            if !ends {
                problems.add(format!("directory {} (\"{}\") cannot be reached", ino.0, show(&seen.name)));
            }
        }
    }

    fn check_xattrs(
        &self,
        view: &View,
        inodes: &mut BTreeMap<InodeId, Seen>,
        problems: &mut Problems,
    ) -> Result<()> {
        // The attribute being read: inode, position, chunks and bytes of value still to come.
        let mut open: Option<(InodeId, u64, u16, usize)> = None;
        let lost = |open: &Option<(InodeId, u64, u16, usize)>, problems: &mut Problems| {
            if let Some((ino, _, _, left)) = open
                && *left > 0
            {
                problems.add(format!("an attribute of inode {} lacks {left} bytes", ino.0));
            }
        };
        self.namespace.each_xattr_entry(view, &mut |ino, position, chunk, value| {
            if chunk > 0 {
                match &mut open {
                    Some((i, p, next, left))
                        if (*i, *p, *next) == (ino, position.0, chunk)
                            && value.len() == (*left).min(XATTR_CHUNK_BYTES) =>
                    {
                        *left -= value.len();
                        *next += 1;
                    }
                    _ => problems.add(format!("inode {} has a stray piece of an attribute", ino.0)),
                }
                return;
            }
            lost(&open, problems);
            open = None;
            match XattrHead::decode(value) {
                Ok(head) => {
                    let left = head.value_len as usize - head.start.len();
                    debug_assert!(left == 0 || xattr_chunks(head.value_len as usize) > 1);
                    open = Some((ino, position.0, 1, left));
                    let name = show(&head.name);
                    let hash = self.namespace.hasher.hash(&head.name);
                    if varve_format::record::name::NamePosition::new(hash, position.sequence()) != position {
                        problems.add(format!("attribute \"{name}\" of inode {} is misplaced", ino.0));
                    }
                    match inodes.get_mut(&ino) {
                        Some(seen) => {
                            seen.xattrs += 1;
                            seen.bytes = seen.bytes.saturating_add(cost(&head.name, head.value_len as usize));
                        }
                        None => problems
                            .add(format!("attribute \"{name}\" of inode {}, which does not exist", ino.0)),
                    }
                }
                Err(why) => problems.add(format!("an attribute of inode {}: {why}", ino.0)),
            }
        })?;
        lost(&open, problems);
        for (ino, seen) in inodes.iter().filter(|(_, seen)| !seen.orphan) {
            let (has, says) = ((seen.xattrs, seen.bytes), (seen.xattr_count, seen.xattr_bytes));
            if has != says {
                let name = show(&seen.name);
                problems.add(format!(
                    "inode {} (\"{name}\") has {} attributes of {} bytes and says {} of {}",
                    ino.0, has.0, has.1, says.0, says.1
                ));
            }
        }
        Ok(())
    }

    fn check_extents(
        &self,
        view: &View,
        inodes: &BTreeMap<InodeId, Seen>,
        runs: &mut Vec<Run>,
        problems: &mut Problems,
    ) -> Result<()> {
        let holders: HashMap<FamilyId, (InodeId, &Seen)> = inodes
            .iter()
            .filter(|(_, seen)| !seen.inline)
            .map(|(ino, seen)| (seen.holder.family, (*ino, seen)))
            .collect();
        let (mut after, mut reserved) = (None, 0);
        while let Some(family) = version::next_family(view, after)? {
            after = Some(family);
            let owner = holders.get(&family);
            let mut found = Vec::new();
            let holder = owner.map(|(_, seen)| seen.holder);
            reserved += version::walk_family(view, family, holder, &mut |run| runs.push(run), &mut found)?;
            for problem in found {
                let whose = owner.map_or("no inode".to_string(), |(ino, seen)| {
                    format!("inode {} (\"{}\")", ino.0, show(&seen.name))
                });
                problems.add(format!("data of {whose}: {problem}"));
            }
            let Some((ino, seen)) = owner else {
                problems.add(format!("data of family {}, which no inode has", family.0));
                continue;
            };
            let end = seen.size.next_multiple_of(BLOCK_BYTES as u64);
            if seen.orphan {
                continue;
            }
            let path = if seen.holder.has_versions {
                version::Path::load(view, seen.holder)?
            } else {
                version::Path::implicit(seen.holder)
            };
            // One page of pieces is enough: anything there is too much.
            let beyond = version::resolve_upto(view, &path, end, crate::api::FILE_BYTES_MAX, 8)?;
            if beyond.iter().any(|mapped| matches!(mapped.what, Mapping::Data { .. })) {
                problems.add(format!("inode {} (\"{}\") has data beyond its size", ino.0, show(&seen.name)));
            }
        }
        let says = crate::table::subvolumes::first_in(view)?.map_or(0, |record| record.reserved_blocks);
        if reserved != says {
            problems.add(format!("{reserved} blocks are reserved, and the subvolume says {says}"));
        }
        Ok(())
    }
}
