//! Deleting a family with all there is of it, a small transaction at a time.
//!
//! After each step what is left is a sound family, only smaller: whoever checks the pool then finds nothing wrong, and a
//! crash there is no special case. So a list takes its entry in the index with it, and versions go from the root on, each
//! with its mark, the next one becoming the root.

use std::collections::BTreeSet;

use varve_format::record::extent::{DataKey, family_prefix};
use varve_format::record::held::held_key;
use varve_format::record::reap::{Work, decode_reap_key, reap_key};
use varve_format::record::version::{self, Drain, NO_LIMIT, VersionRecord};
use varve_format::{FamilyId, TreeId, VersionId, VersionKey};

use super::pending::corrupt;
use super::resolve::scan;
use super::segment::Changes;
use super::{ExtentKind, Holder, Progress, Read, Result};
use crate::{EngineError, Transaction};

/// One step of deleting all data of `holder`, the only one of its family ([`super::is_sole`]; else
/// [`super::release`]), with its version records and all that belongs to them. Apply `tx` (which becomes privileged) and
/// call again while [`Progress::more`]. The caller remembers durably (an orphan record) that the family is being deleted.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be; `tx` must then be dropped.
pub fn delete_step(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: Holder,
    entries_max: u64,
) -> Result<Progress> {
    tx.privileged();
    let (family, max) = (holder.family, entries_max.max(1));
    let mut changes = Changes::new(tx);
    // The list whose entries are being deleted, and the index entries of those that are gone.
    let (mut list, mut ended, mut more) = (None, BTreeSet::new(), false);
    let mut end = |(segment, version): (u64, VersionKey)| {
        if version.0 != family.0 {
            ended.insert(held_key(family, version, TreeId::EXTENTS, &segment.to_be_bytes()));
        }
    };
    let start = DataKey { family, segment: 0, version: VersionKey(u64::MAX), offset: 0 };
    scan(read, &start, |key, extent| {
        let here = Some((key.segment, key.version));
        if list != here {
            list.into_iter().for_each(&mut end);
        }
        more = changes.entries() >= max;
        // What is left of it keeps its entry in the index.
        list = here.filter(|_| !more || list == here);
        if !more {
            changes.delete(&key.encode());
            changes.reserved_freed.extents -= i64::from(extent.kind == ExtentKind::Reserved);
            changes.free(&extent);
        }
        !more
    })?;
    list.filter(|_| !more).into_iter().for_each(&mut end);
    let (mut entries, blocks_freed) = (changes.entries() + ended.len() as u64, changes.blocks_freed);
    let reserved_freed = changes.reserved_freed;
    let tx = changes.finish();
    ended.iter().for_each(|key| tx.delete(TreeId::HELD, key));
    if !more && holder.has_versions {
        more = delete_records(read, tx, family, &ended, max, &mut entries)?;
    }
    Ok(Progress { more, next: 0, entries, blocks_freed, reserved_freed })
}

/// Deletes what describes a family without entries, until `entries` has reached `max`: says whether there is more.
fn delete_records(
    read: &dyn Read,
    tx: &mut Transaction,
    family: FamilyId,
    ended: &BTreeSet<Vec<u8>>,
    max: u64,
    entries: &mut u64,
) -> Result<bool> {
    let prefix = family_prefix(family);
    // Places of an index are left only where power failed under a version of this that let them be.
    for (tree, of_versions) in [(TreeId::HELD, false), (TreeId::REAP, true)] {
        let mut full = false;
        read.scan(tree, &prefix, &mut |key, _| {
            let here = key.starts_with(&prefix);
            let with_its_version = of_versions && matches!(decode_reap_key(key), Ok((_, Work::Going(_))));
            if !here || ended.contains(key) || with_its_version {
                return here;
            }
            full = *entries >= max;
            if !full {
                tx.delete(tree, key);
                *entries += 1;
            }
            !full
        })?;
        if full {
            return Ok(true);
        }
    }
    let (mut gone, mut next, mut failed) = (Vec::new(), None, None);
    read.scan(TreeId::VERSIONS, &prefix, &mut |key, value| {
        if !key.starts_with(&prefix) {
            return false;
        }
        match version::decode_key(key).and_then(|(_, id)| Ok((id, VersionRecord::decode(value)?))) {
            Ok((id, _)) if *entries < max || gone.is_empty() => {
                gone.push(id);
                *entries += 2;
                true
            }
            Ok(root) => {
                next = Some(root);
                false
            }
            Err(why) => {
                failed = Some(EngineError::corrupt(format!("a version of family {}", family.0), why));
                false
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    for id in gone {
        tx.delete(TreeId::VERSIONS, &version::encode_key(family, id));
        let mark = reap_key(family, Work::Going(id));
        if read.get(TreeId::REAP, &mark)?.is_some() {
            tx.delete(TreeId::REAP, &mark);
        }
    }
    // Older versions have smaller ids, and each has one child only: the next one is that of the last.
    let Some((id, record)) = next else { return Ok(false) };
    root(tx, family, id, record)?;
    Ok(true)
}

/// A version becomes the oldest of its family.
fn root(tx: &mut Transaction, family: FamilyId, id: VersionId, record: VersionRecord) -> Result<()> {
    if record.parent.is_none() {
        let why = varve_format::Corrupt { what: "second oldest version", at: 0 };
        return Err(corrupt(family, id, why));
    }
    let record = VersionRecord { parent: None, limit: NO_LIMIT, drain: Drain::None, ..record };
    tx.put(TreeId::VERSIONS, &version::encode_key(family, id), &record.encode());
    Ok(())
}
