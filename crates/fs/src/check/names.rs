//! Names against inodes, both ways.

use std::collections::HashSet;

use varve_engine::{InodeId, ProblemKind as Kind, TreeId};
use varve_format::record::inode::InodeKind;
use varve_format::record::name::{NamePosition, NameRecord, decode_name_key};

use varve_format::text::escape;

use super::Check;
use crate::Result;
use crate::shown_number;

/// The names of one hash in one directory, which are being read.
#[derive(Default)]
pub struct Bucket {
    /// Directory, hash, and whether the first entry says that more follow.
    at: Option<(InodeId, u64, bool)>,
    names: HashSet<Vec<u8>>,
}

impl Check<'_> {
    pub(super) fn names(&mut self) -> Result<()> {
        let mut bucket = Bucket::default();
        self.each(TreeId::NAMES, &mut |me, key, value| {
            me.name_entry(&mut bucket, key, value);
        })
    }

    /// An entry of a directory. Gives the inodes it is about: the directory and where it leads.
    pub(super) fn name_entry(
        &mut self,
        bucket: &mut Bucket,
        key: &[u8],
        value: &[u8],
    ) -> Option<[InodeId; 2]> {
        let (dir, position) = match decode_name_key(key) {
            Ok((_, dir, position, _)) => (dir, position),
            Err(why) => {
                self.bad_key(TreeId::NAMES, why);
                return None;
            }
        };
        let full = self.full(dir);
        let record = match NameRecord::decode(value) {
            Ok(record) => record,
            Err(why) => {
                let text = format!("an entry of directory {}: {why}", shown_number(full));
                self.of(Kind::NameMalformed, full, text);
                return None;
            }
        };
        let place = (dir, position.0 >> 8);
        match bucket.at {
            Some((d, h, chained)) if (d, h) == place => {
                if !chained {
                    let text = format!(
                        "directory {}: a name follows an entry that says none does",
                        shown_number(full)
                    );
                    self.of(Kind::NameChain, full, text);
                }
            }
            _ => {
                bucket.names.clear();
                if position.sequence() != 0 && !self.has_lost(TreeId::NAMES) {
                    let first = position.sequence();
                    let text =
                        format!("directory {}: names of one hash begin at {first}", shown_number(full));
                    self.of(Kind::NameChain, full, text);
                }
                bucket.at = Some((place.0, place.1, record.chained()));
            }
        }
        let NameRecord::Entry { kind, ino, name, .. } = record else { return None };
        self.name(dir, position, kind, ino, &name);
        if !bucket.names.insert(name.clone()) {
            let text = format!("directory {}: \"{}\" is there twice", shown_number(full), escape(&name));
            self.of(Kind::NameDuplicate, full, text);
        }
        Some([dir, ino])
    }

    /// A name in `dir` leads to `ino`.
    fn name(&mut self, dir: InodeId, position: NamePosition, kind: InodeKind, ino: InodeId, name: &[u8]) {
        let (full_dir, full) = (self.full(dir), self.full(ino));
        let at = |text: &str| format!("\"{}\" {text}", escape(name));
        let hash = self.namespace.hasher.hash(name);
        if NamePosition::new(hash, position.sequence()) != position {
            let text =
                format!("directory {}: {}", shown_number(full_dir), at("is not at the place of its hash"));
            self.of(Kind::NameMisplaced, full_dir, text);
        }
        let (dir_lost, ino_lost) = (self.inode_is_lost(dir), self.inode_is_lost(ino));
        // Counted whatever is wrong: in another subvolume it may be right.
        let parent = self.inodes.entry(dir).or_default();
        parent.entries += 1;
        parent.directories += u32::from(kind == InodeKind::Directory);
        match parent.says.as_ref().map(|says| says.kind) {
            Some(InodeKind::Directory) => {}
            Some(_) => {
                let text = at(&format!("is in inode {}, which is no directory", shown_number(full_dir)));
                self.of(Kind::NameStray, full_dir, text);
            }
            _ if self.orphans.contains(&full_dir) => {
                let text = at(&format!("is in inode {}, which is no directory", shown_number(full_dir)));
                self.of(Kind::NameStray, full_dir, text);
            }
            _ if dir_lost => {}
            _ => {
                let text = at(&format!("is in directory {}, which does not exist", shown_number(full_dir)));
                self.problem(Kind::NameStray, text);
            }
        }
        let seen = self.inodes.entry(ino).or_default();
        seen.names += 1;
        seen.name_parent = dir;
        match seen.says.as_ref().map(|says| says.kind) {
            Some(is) if is == kind => {}
            Some(_) => {
                let text =
                    at(&format!("in directory {} says another kind than its inode", shown_number(full_dir)));
                self.of(Kind::NameKind, full, text);
            }
            _ if self.orphans.contains(&full) => {
                let text = at(&format!(
                    "in directory {} leads to orphan {}",
                    shown_number(full_dir),
                    shown_number(full)
                ));
                self.of(Kind::NameOfOrphan, full_dir, text);
            }
            _ if ino_lost => {
                let text = format!(
                    "the record of inode {}, {}, is lost",
                    shown_number(full),
                    at(&format!("in directory {}", shown_number(full_dir)))
                );
                self.of(Kind::InodeLost, full_dir, text);
            }
            _ => {
                let text = at(&format!(
                    "in directory {} leads to inode {}, which does not exist",
                    shown_number(full_dir),
                    shown_number(full)
                ));
                self.of(Kind::NameDangling, full_dir, text);
            }
        }
    }

    /// An entry of a directory that was counted is not there any more. Gives the inodes it was about.
    pub(super) fn name_gone(&mut self, key: &[u8], value: &[u8]) -> Option<[InodeId; 2]> {
        let (_, dir, ..) = decode_name_key(key).ok()?;
        let Ok(NameRecord::Entry { kind, ino, .. }) = NameRecord::decode(value) else { return None };
        if let Some(parent) = self.inodes.get_mut(&dir) {
            parent.entries = parent.entries.saturating_sub(1);
            let one = u32::from(kind == InodeKind::Directory);
            parent.directories = parent.directories.saturating_sub(one);
        }
        if let Some(seen) = self.inodes.get_mut(&ino) {
            seen.names = seen.names.saturating_sub(1);
        }
        Some([dir, ino])
    }
}
