//! Subvolume records.

use varve_engine::{Store, Transaction, TreeId, View};
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SubvolumeRecord, subvolume_key};

use super::{Result, corrupt};

/// The pool's first subvolume; `None` in a pool that was never made into a filesystem.
pub(crate) fn first(store: &Store) -> Result<Option<SubvolumeRecord>> {
    let Some(bytes) = store.get(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME))? else {
        return Ok(None);
    };
    SubvolumeRecord::decode(&bytes).map(Some).map_err(corrupt(|| "the subvolume record".into()))
}

/// [`first`] as a view shows it.
pub(crate) fn first_in(view: &View) -> Result<Option<SubvolumeRecord>> {
    let Some(bytes) = view.get(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME))? else {
        return Ok(None);
    };
    SubvolumeRecord::decode(&bytes).map(Some).map_err(corrupt(|| "the subvolume record".into()))
}

/// Stores the first subvolume.
pub(crate) fn put_first(tx: &mut Transaction, record: &SubvolumeRecord) {
    tx.put(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME), &record.encode());
}
