//! Inodes without a name whose end is not complete. Not versioned: no snapshot shows them.

use varve_engine::{InodeId, Store, Transaction, TreeId, View};
use varve_format::record::inode::InodeRecord;
use varve_format::record::orphan::{OrphanRecord, OrphanState, decode_orphan_key, orphan_key};

use super::{Result, corrupt};
use crate::subvolume::Slot;

/// The orphan `ino`.
pub fn get(store: &Store, ino: InodeId) -> Result<Option<OrphanRecord>> {
    let Some(bytes) = store.get(TreeId::ORPHANS, &orphan_key(ino))? else { return Ok(None) };
    OrphanRecord::decode(&bytes).map(Some).map_err(corrupt(|| format!("orphan {}", ino.0)))
}

/// Stores an orphan.
pub(crate) fn put(tx: &mut Transaction, ino: InodeId, state: OrphanState, inode: &InodeRecord) {
    let record = OrphanRecord { state, inode: inode.clone() };
    tx.put(TreeId::ORPHANS, &orphan_key(ino), &record.encode());
}

/// Removes an orphan.
pub(crate) fn delete(tx: &mut Transaction, ino: InodeId) {
    tx.delete(TreeId::ORPHANS, &orphan_key(ino));
}

/// Calls `each` with every orphan's number, whatever its record is like. A key that is none is an error, after all others.
pub fn each(view: &View, each: &mut dyn FnMut(InodeId)) -> Result<()> {
    each_between(view, &[], None, each)
}

/// The same of the orphans of one subvolume, which lie together: no other's are looked at.
pub fn each_of(view: &View, slot: Slot, each: &mut dyn FnMut(InodeId)) -> Result<()> {
    let first = |slot: Slot| orphan_key(slot.full(InodeId(0)));
    each_between(view, &first(slot), Some(&first(Slot(slot.0 + 1))), each)
}

fn each_between(view: &View, from: &[u8], to: Option<&[u8]>, each: &mut dyn FnMut(InodeId)) -> Result<()> {
    let mut failed = Ok(());
    view.scan(TreeId::ORPHANS, from, &mut |key, _| {
        if to.is_some_and(|to| key >= to) {
            return false;
        }
        match decode_orphan_key(key).map_err(corrupt(|| "an orphan".into())) {
            Ok(ino) => each(ino),
            Err(error) => failed = Err(error),
        }
        true
    })?;
    failed
}
