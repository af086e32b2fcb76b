//! Subvolume records.

use varve_engine::{Store, Transaction, TreeId, View};
use varve_format::Corrupt;
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SubvolumeRecord, subvolume_key};

use super::{Result, corrupt};

/// The pool's first subvolume; `None` in a pool that was never made into a filesystem.
pub(crate) fn first(store: &Store) -> Result<Option<SubvolumeRecord>> {
    let Some(bytes) = store.get(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME))? else {
        return Ok(None);
    };
    SubvolumeRecord::decode(&bytes).map(Some).map_err(corrupt(|| "the subvolume record".into()))
}

/// [`first`] as a view shows it, for who looks for damage: a record that makes no sense is none. What could not be read is an error.
pub(crate) fn first_in(view: &View) -> Result<Option<SubvolumeRecord>> {
    let bytes = view.get(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME))?;
    Ok(bytes.and_then(|bytes| SubvolumeRecord::decode(&bytes).ok()))
}

/// Subvolume `id`, which there is.
pub(crate) fn get(store: &Store, id: u64) -> Result<SubvolumeRecord> {
    let found = store.get_with(TreeId::SUBVOLUMES, &subvolume_key(id), SubvolumeRecord::decode)?;
    found
        .unwrap_or(Err(Corrupt { what: "no such record", at: 0 }))
        .map_err(corrupt(|| format!("the record of subvolume {id}")))
}

/// Stores the first subvolume.
pub(crate) fn put_first(tx: &mut Transaction, record: &SubvolumeRecord) {
    put(tx, FIRST_SUBVOLUME, record);
}

/// Stores subvolume `id`.
pub(crate) fn put(tx: &mut Transaction, id: u64, record: &SubvolumeRecord) {
    tx.put_owned(TreeId::SUBVOLUMES, &subvolume_key(id), record.encode().into());
}

/// Removes subvolume `id`.
pub(crate) fn delete(tx: &mut Transaction, id: u64) {
    tx.delete(TreeId::SUBVOLUMES, &subvolume_key(id));
}

/// All subvolumes but the first, with what their records say or what is wrong with them.
pub fn others(view: &View) -> Result<Vec<(u64, std::result::Result<SubvolumeRecord, Corrupt>)>> {
    let mut found = Vec::new();
    view.scan(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME + 1), &mut |key, value| {
        let id = key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        found.push((id, SubvolumeRecord::decode(value)));
        true
    })?;
    Ok(found)
}
