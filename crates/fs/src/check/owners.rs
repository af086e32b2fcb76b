//! Who holds data: the records of inodes as they are stored, in whatever version, and orphans.

use std::collections::BTreeSet;

use varve_engine::version::{Holder, points};
use varve_engine::{FamilyId, InodeId, TreeId, View};
use varve_format::VersionKey;
use varve_format::record::inode::{InodeRecord, decode_inode_key};
use varve_format::record::orphan::{OrphanRecord, decode_orphan_key};

use super::Check;
use crate::Result;
use crate::table::{Namespace, extents};

/// One record that points at data.
#[derive(Clone)]
pub struct Owner {
    /// At what.
    pub holder: Holder,
    /// Where the record is.
    pub place: Place,
    pub size: u64,
    pub inline: bool,
}

/// Where a record of an inode is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a namespace: its family, the number without a slot, the version.
    Inode(FamilyId, InodeId, VersionKey),
    /// Among the orphans: the number with its slot.
    Orphan(InodeId),
}

/// All of them.
#[derive(Default)]
pub struct Owners {
    /// By the family of their data.
    list: Vec<Owner>,
    /// Inodes of which a record cannot be read, without their slots.
    pub malformed: BTreeSet<InodeId>,
}

impl Owners {
    /// Those of all families.
    pub(super) fn all(&self) -> &[Owner] {
        &self.list
    }

    /// Those of a family of data.
    pub(super) fn of(&self, family: FamilyId) -> &[Owner] {
        let from = self.list.partition_point(|owner| owner.holder.family < family);
        let len = self.list[from..].partition_point(|owner| owner.holder.family == family);
        &self.list[from..][..len]
    }
}

impl Owner {
    /// As what inodes it is seen, with their slots: up to `max`, those of the first subvolumes. An error: that could not be read.
    pub(super) fn seen_as(&self, view: &View, namespaces: &[Namespace], max: usize) -> Result<Vec<InodeId>> {
        let (family, ino, version) = match self.place {
            Place::Orphan(ino) => return Ok(vec![ino]),
            Place::Inode(family, ino, version) => (family, ino, version),
        };
        let prefix = [family.0.to_be_bytes(), ino.0.to_be_bytes()].concat();
        let mut seen_as = Vec::new();
        for namespace in namespaces.iter().filter(|namespace| namespace.family == family) {
            if seen_as.len() >= max {
                break;
            }
            let sees = match namespace.forked {
                false => namespace.version.0 == version.0,
                true => {
                    let found = points::find(view, &namespace.path, TreeId::INODES, &prefix);
                    found?.is_some_and(|found| found.version == version)
                }
            };
            if sees {
                seen_as.push(namespace.slot.full(ino));
            }
        }
        Ok(seen_as)
    }
}

impl Check<'_> {
    pub(super) fn all_owners(&self) -> Result<Owners> {
        let mut owners = Owners::default();
        let owner = |place: Place, record: &InodeRecord| {
            let (holder, inline) = (extents::holder(record), record.inline.is_some());
            Owner { holder, place, size: record.size, inline }
        };
        self.view.scan(TreeId::INODES, &[], &mut |key, value| {
            let Ok((family, ino, version)) = decode_inode_key(key) else { return true };
            match InodeRecord::decode(value) {
                // What hides an inode of an older version.
                _ if value.is_empty() => {}
                Ok(record) => owners.list.push(owner(Place::Inode(family, ino, version), &record)),
                Err(_) => _ = owners.malformed.insert(ino),
            }
            true
        })?;
        self.view.scan(TreeId::ORPHANS, &[], &mut |key, value| {
            if let (Ok(ino), Ok(record)) = (decode_orphan_key(key), OrphanRecord::decode(value)) {
                owners.list.push(owner(Place::Orphan(ino), &record.inode));
            }
            true
        })?;
        owners.list.sort_unstable_by(|a, b| (a.holder.family, &a.place).cmp(&(b.holder.family, &b.place)));
        Ok(owners)
    }
}
