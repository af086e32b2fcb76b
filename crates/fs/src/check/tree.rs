//! What records of inodes say against what was counted, and the tree of directories.

use std::collections::HashMap;

use varve_engine::{InodeId, Problem, ProblemKind as Kind, Problems, TreeId};
use varve_format::record::inode::InodeKind;

use super::{Check, Says, Seen, Touched};
use crate::shown_number;

impl Check<'_> {
    /// Inodes of the subvolume that is being looked at, when all has been counted: these, or all.
    pub(super) fn tree(&mut self, only: Option<&Touched>) {
        let mut found = Problems::default();
        let root = self.core.root();
        let is_directory =
            |seen: &Seen| seen.says.as_ref().is_some_and(|says| says.kind == InodeKind::Directory);
        if !self.inodes.get(&root).is_some_and(is_directory) {
            found.add(Problem::new(Kind::RootDirectoryMissing, "there is no root directory"));
        }
        let mut tree = Tree {
            check: self,
            names_lost: self.has_lost(TreeId::NAMES),
            inodes_lost: self.has_lost(TreeId::INODES),
            xattrs_lost: self.has_lost(TreeId::XATTRS),
            reaches: [(root, true)].into(),
            found,
        };
        match only {
            Some(only) => {
                only.iter().filter_map(|ino| Some((ino, self.inodes.get(ino)?))).for_each(|i| tree.inode(i))
            }
            None => self.inodes.iter().for_each(|inode| tree.inode(inode)),
        }
        let found = tree.found;
        self.problems.append(found);
    }
}

struct Tree<'c, 'a> {
    check: &'c Check<'a>,
    names_lost: bool,
    inodes_lost: bool,
    xattrs_lost: bool,
    /// Whether a directory's way up reaches the root; walked once each.
    reaches: HashMap<InodeId, bool>,
    found: Problems,
}

impl Tree<'_, '_> {
    fn of(&mut self, kind: Kind, ino: InodeId, text: String) {
        self.found.add(Problem::of_inode(kind, ino.0, text));
    }

    fn inode(&mut self, (ino, seen): (&InodeId, &Seen)) {
        let Some(says) = &seen.says else { return };
        let full = self.check.full(*ino);
        let is_root = *ino == self.check.core.root();
        let expected = if is_root { 0 } else { says.links };
        if seen.names != expected {
            let text = format!("inode {} has {} names and says {expected}", shown_number(full), seen.names);
            let fewer = seen.names < expected;
            let kind = match seen.names {
                _ if fewer && self.names_lost => Kind::NamesLost,
                0 => Kind::InodeNameless,
                _ => Kind::LinkCount,
            };
            self.of(kind, full, text);
        }
        let (has, has_bytes) = (seen.xattrs, seen.bytes);
        if (has, has_bytes) != (says.xattr_count, says.xattr_bytes) {
            let fewer = (has, has_bytes) < (says.xattr_count, says.xattr_bytes);
            let kind = if self.xattrs_lost && fewer { Kind::XattrsLost } else { Kind::XattrCount };
            let text = format!(
                "inode {} has {has} attributes of {has_bytes} bytes and says {} of {}",
                shown_number(full),
                says.xattr_count,
                says.xattr_bytes
            );
            self.of(kind, full, text);
        }
        if says.kind == InodeKind::Directory {
            self.directory(*ino, seen, says);
        }
    }

    fn directory(&mut self, ino: InodeId, seen: &Seen, says: &Says) {
        let full = self.check.full(ino);
        let is_root = ino == self.check.core.root();
        let (size, entries) = (says.size, seen.entries);
        if size != entries && !(self.names_lost && entries < size) {
            let text = format!("directory {} has {entries} entries and says {size}", shown_number(full));
            self.of(Kind::DirectorySize, full, text);
        }
        if let Some(says) = says.directories.filter(|says| *says != seen.directories)
            && !self.names_lost
        {
            let has = seen.directories;
            let text =
                format!("directory {} has {has} directories in it and says {says}", shown_number(full));
            self.of(Kind::DirectoryLinks, full, text);
        }
        if says.links > 1 {
            self.of(
                Kind::DirectoryLinks,
                full,
                format!("directory {} has {} links", shown_number(full), says.links),
            );
        }
        if seen.names > 1 {
            self.of(
                Kind::DirectoryTwice,
                full,
                format!("directory {} has a second name", shown_number(full)),
            );
        }
        let parent = if is_root { ino } else { seen.name_parent };
        if (is_root || seen.names > 0) && says.parent != parent {
            let (is, says) =
                (shown_number(self.check.full(parent)), shown_number(self.check.full(says.parent)));
            let text = format!("directory {} is in directory {is} and says {says}", shown_number(full));
            self.of(Kind::DirectoryParent, full, text);
        }
        let inodes = &self.check.inodes;
        let mut way = vec![ino];
        let ends = loop {
            let last = way[way.len() - 1];
            if let Some(known) = self.reaches.get(&last) {
                break *known;
            }
            match inodes.get(&last).and_then(|seen| seen.says.as_ref()) {
                // Longer than all directories: a ring.
                Some(dir) if way.len() <= inodes.len() && dir.kind == InodeKind::Directory => {
                    way.push(dir.parent)
                }
                Some(_) => break false,
                None => break self.inodes_lost,
            }
        };
        for dir in way {
            self.reaches.insert(dir, ends);
        }
        if !ends {
            let text = format!("directory {} cannot be reached from the root", shown_number(full));
            self.of(Kind::DirectoryUnreachable, full, text);
        }
    }
}
