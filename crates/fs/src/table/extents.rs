//! Extents of files' data: the engine's versioned map, seen from an inode record.

use varve_engine::version::{self, Holder, Mapping, Path, Unreserved};
use varve_engine::{BLOCK_BYTES, TreeId, VersionId, View};
use varve_format::record::inode::{DataPointer, InodeRecord};

use super::Result;

/// The holder an inode record stores.
pub(crate) fn holder(record: &InodeRecord) -> Holder {
    Holder {
        family: record.data.family,
        version: record.data.version,
        has_versions: record.data.has_versions,
    }
}

/// What an inode record stores of `holder`.
pub(crate) fn pointer(holder: Holder) -> DataPointer {
    DataPointer { family: holder.family, version: holder.version, has_versions: holder.has_versions }
}

/// As [`holder`], in a pool where others may have given the family versions since (`sharing`): the tree is asked.
pub(crate) fn holder_now(view: &View, record: &InodeRecord, sharing: bool) -> Result<Holder> {
    let mut holder = holder(record);
    if sharing && !holder.has_versions {
        let key = varve_format::record::version::encode_key(holder.family, holder.version);
        holder.has_versions = view.get(TreeId::VERSIONS, &key)?.is_some();
    }
    Ok(holder)
}

/// The versions `record` sees.
pub(crate) fn path(view: &View, record: &InodeRecord, sharing: bool) -> Result<Path> {
    Path::load(view, holder_now(view, record, sharing)?)
}

/// Whether the block that holds the byte at `offset` has data on the device.
pub(crate) fn has_data(view: &View, record: &InodeRecord, offset: u64, sharing: bool) -> Result<bool> {
    let block = offset - offset % BLOCK_BYTES as u64;
    let pieces = version::resolve(view, &path(view, record, sharing)?, block, block + BLOCK_BYTES as u64)?;
    Ok(pieces.iter().any(|piece| matches!(piece.what, Mapping::Data { .. })))
}

/// What a truncation needs to know.
pub struct Cut {
    /// Whether the reaper has work in this family.
    pub reap: bool,
    /// Blocks of reservations that are gone.
    pub reserved_freed: Unreserved,
    /// Whether nothing is left: the file may go back to inline mode.
    pub empty: bool,
}

/// Removes the data from `new_size` on; changes the data pointer of `record`.
pub(crate) fn truncate(
    view: &View,
    tx: &mut varve_engine::Transaction,
    record: &mut InodeRecord,
    new_id: &mut dyn FnMut() -> VersionId,
    new_size: u64,
    sharing: bool,
) -> Result<Cut> {
    let mut holder = holder_now(view, record, sharing)?;
    let truncated = version::truncate(view, tx, &mut holder, new_id, new_size, None)?;
    record.data = pointer(holder);
    let reserved_freed = truncated.reserved_freed;
    Ok(Cut {
        reap: truncated.reap,
        reserved_freed,
        empty: new_size == 0 && !truncated.reap && !holder.has_versions,
    })
}
