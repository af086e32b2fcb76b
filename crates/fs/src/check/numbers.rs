//! Numbers against the counter that gives them out: inodes, subvolumes, families and versions share it. What is looked at on the way
//! (inodes that somebody sees, orphans, subvolumes) says so itself; here is the rest, of each sort the largest.

use varve_engine::{FamilyId, ProblemKind as Kind, TreeId};
use varve_format::record::subvolume::SUBVOLUME_DELETING;
use varve_format::record::version::{VersionRecord, decode_key};

use super::Check;
use super::owners::{Owners, Place};
use crate::Result;

impl Check<'_> {
    /// Families and versions of namespaces and of data, whether anything is stored for them or not: a file in its record has a family
    /// that says so nowhere else, and a version that nobody stands at is there until it has been reaped. `last`: the last family of
    /// data that has anything.
    pub(super) fn numbers(&mut self, owners: &Owners, last: Option<FamilyId>) -> Result<()> {
        let (mut families, mut versions) = (last.map_or(0, |family| family.0), 0);
        for namespace in &self.namespaces {
            (families, versions) = (families.max(namespace.family.0), versions.max(namespace.version.0));
        }
        for (_, record) in crate::table::subvolumes::others(&self.view)? {
            let Ok(record) = record else { continue };
            families = families.max(record.family.0);
            if record.flags & SUBVOLUME_DELETING == 0 {
                versions = versions.max(record.version.0);
            }
        }
        let mut inodes = 0;
        for owner in owners.all() {
            families = families.max(owner.holder.family.0);
            versions = versions.max(owner.holder.version.0);
            if let Place::Inode(_, ino, _) = owner.place {
                inodes = inodes.max(ino.0);
            }
        }
        self.view.scan(TreeId::VERSIONS, &[], &mut |key, value| {
            if let Ok((family, version)) = decode_key(key) {
                (families, versions) = (families.max(family.0), versions.max(version.0));
            }
            // Entries bear it; of versions that became one it may be another's.
            if let Ok(record) = VersionRecord::decode(value) {
                versions = versions.max(record.key.0);
            }
            true
        })?;
        if !self.problems.has(Kind::IdNotTaken) {
            self.taken("inode", inodes);
        }
        self.taken("a family", families);
        self.taken("a version", versions);
        Ok(())
    }
}
