//! Whether the numbers that are given out next are nobody's: with one that is in use a new file would replace another, or be its own
//! directory.

use std::collections::BTreeSet;

use varve_engine::{EngineError, FamilyId, InodeId, TreeId, VersionKey};
use varve_format::record::inode::{decode_inode_key, inode_key};
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SUBVOLUME_DELETING};

use crate::Result;
use crate::core::Core;
use crate::subvolume::local;
use crate::table::{orphans, subvolumes};

impl Core {
    /// Refuses to write to a pool that would give out numbers that are in use: the root block says so only if somebody has forged it,
    /// or this program has an error. Costs one search for each family of namespaces, and a look at what opening reads anyway; so
    /// families of inline files, and versions that nobody stands at, are left to the check. What cannot be read contradicts nothing:
    /// it keeps nobody from the rest.
    pub(super) fn require_new_numbers(&self) -> Result<()> {
        let floor = self.store.id_floor();
        let unused = |what: &str, id: u64| {
            if id < floor {
                return Ok(());
            }
            Err(EngineError::Refused(format!(
                "{what} {id} exists, and numbers from {floor} on would be given out again, so the pool cannot be written to; files can \
                 still be read: `varve check` says what is damaged, and `varve export`, or a mount with -o ro, brings them to safety"
            )))
        };
        let view = self.store.view();
        let last = |tree: TreeId, at: &[u8]| match view.last_at_or_before(tree, at) {
            Err(why) if why.is_damage() => {
                tracing::warn!("which numbers are in use cannot be told for certain: {why}");
                Ok(None)
            }
            found => found.map(|found| found.map(|(key, _)| key)),
        };
        let mut families = BTreeSet::new();
        let first = subvolumes::first(&self.store)?.map(|record| (FIRST_SUBVOLUME, Ok(record)));
        for (id, record) in first.into_iter().chain(subvolumes::others(&view)?) {
            unused("subvolume", id)?;
            if let Ok(record) = record {
                unused("a family of a namespace", record.family.0)?;
                if record.flags & SUBVOLUME_DELETING == 0 {
                    unused("a version of a namespace", record.version.0)?;
                }
                families.insert(record.family);
            }
        }
        for family in families {
            let key = last(TreeId::INODES, &inode_key(family, InodeId(u64::MAX), VersionKey(0)))?;
            if let Some((found, ino, _)) = key.and_then(|key| decode_inode_key(&key).ok())
                && found == family
            {
                unused("inode", ino.0)?;
            }
        }
        for tree in [TreeId::EXTENTS, TreeId::VERSIONS] {
            let key = last(tree, &[u8::MAX; 64])?;
            if let Some(family) = key.as_ref().and_then(|key| key.first_chunk()) {
                unused("a family of data", FamilyId(u64::from_be_bytes(*family)).0)?;
            }
        }
        let mut largest = 0;
        // What is wrong with their keys is said by whoever looks for what is to be reaped.
        let _ = orphans::each(&view, &mut |ino| largest = largest.max(local(ino).0));
        Ok(unused("orphan", largest)?)
    }
}
