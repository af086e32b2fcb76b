//! Names against inodes, both ways, and the tree of directories.

use std::collections::{HashMap, HashSet};

use varve_engine::{InodeId, Problem, ProblemKind as Kind, Problems, TreeId};
use varve_format::record::inode::InodeKind;
use varve_format::record::name::{NamePosition, NameRecord, decode_name_key};

use varve_format::text::escape;

use super::{Check, Inodes};
use crate::Result;
use crate::subvolume::local;

impl Check<'_> {
    pub(super) fn names(&mut self) -> Result<()> {
        // The bucket being read: directory, hash, whether its first entry says that more follow, its names.
        let mut bucket: Option<(InodeId, u64, bool)> = None;
        let mut names_of_hash: HashSet<Vec<u8>> = HashSet::new();
        self.each(TreeId::NAMES, &mut |me, key, value| {
            let (dir, position) = match decode_name_key(key) {
                Ok((_, dir, position, _)) => (me.namespace.slot.full(dir), position),
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
            let ino = me.namespace.slot.full(ino);
            me.name(dir, position, kind, ino, &name);
            if !names_of_hash.insert(name.clone()) {
                let text = format!("directory {}: \"{}\" is there twice", dir.0, escape(&name));
                me.of(Kind::NameDuplicate, dir, text);
            }
        })
    }

    fn name(&mut self, dir: InodeId, position: NamePosition, kind: InodeKind, ino: InodeId, name: &[u8]) {
        let shown = escape(name);
        let hash = self.namespace.hasher.hash(name);
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

    pub(super) fn tree(&mut self) {
        let roots: Vec<InodeId> =
            self.namespaces.iter().map(|names| names.slot.full(self.core.root())).collect();
        let mut found = Problems::default();
        for root in &roots {
            if self.inodes.get(root).is_none_or(|seen| seen.kind != InodeKind::Directory) {
                found.add(Problem::new(Kind::RootDirectoryMissing, "there is no root directory"));
            }
        }
        let names_lost = self.has_lost(TreeId::NAMES);
        let inodes_lost = self.has_lost(TreeId::INODES);
        // Whether a directory's way up reaches the root; walked once each.
        let mut reaches: HashMap<InodeId, bool> = roots.iter().map(|root| (*root, true)).collect();
        for (ino, seen) in &self.inodes {
            let mut of = |kind, text| found.add(Problem::of_inode(kind, ino.0, text));
            let is_root = local(*ino) == self.core.root() && !seen.orphan;
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
            let parent = if is_root { *ino } else { seen.name_parent };
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
}

/// The directory and the name of the root of each subvolume but the first.
pub(super) type Above = HashMap<InodeId, (InodeId, Vec<u8>)>;

/// Adds the paths of the inodes a problem is about, and puts them into the sentence.
pub(super) fn name_path(problem: &mut Problem, inodes: &Inodes, root: InodeId, above: &Above) {
    let range = |bytes: Option<(u64, u64)>| {
        bytes.map_or(String::new(), |(from, to)| format!(", bytes {from} to {to}"))
    };
    let path = |ino: u64| path(InodeId(ino), inodes, root, above);
    problem.path = problem.inode.and_then(path);
    for file in &mut problem.files {
        file.path = path(file.inode);
    }
    let mut said = Vec::new();
    if let Some(path) = &problem.path {
        said.push(format!("{}{}", escape(path), range(problem.bytes)));
    }
    // The first is the one of the problem itself.
    for file in problem.files.iter().skip(1) {
        let name = file.path.as_deref().map_or_else(|| format!("inode {}", file.inode), escape);
        said.push(format!("also {name}{}", range(Some(file.bytes))));
    }
    match (problem.files_omitted, problem.files_uncounted) {
        (0, false) => {}
        (0, true) => said.push("perhaps more".to_owned()),
        (more, false) => said.push(format!("and {more} more")),
        (more, true) => said.push(format!("and at least {more} more")),
    }
    if !said.is_empty() {
        problem.text.push_str(&format!(" ({})", said.join("; ")));
    }
}

/// A path to an inode, if names lead to it.
fn path(ino: InodeId, inodes: &Inodes, root: InodeId, above: &Above) -> Option<Vec<u8>> {
    const DEPTH_MAX: usize = 4096;
    let mut names: Vec<&[u8]> = Vec::new();
    let mut at = ino;
    while at != root {
        if let Some((dir, name)) = above.get(&at).filter(|_| names.len() < DEPTH_MAX) {
            names.push(name);
            at = *dir;
            continue;
        }
        let seen = inodes.get(&at).filter(|seen| seen.names > 0 && names.len() < DEPTH_MAX)?;
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
    Some(path)
}
