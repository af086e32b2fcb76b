//! Cutting
use super::*;
use crate::{Run, Transaction};
/// What a truncation did.
#[derive(Clone, Debug)]
pub struct Truncated {
    /// The path of the holder from now on.
    pub path: Path,
    /// Whether a child was opened, so that [`reap_step`] has work in this family.
    pub reap: bool,
    /// Blocks freed at once.
    pub blocks_freed: u64,
}
/// Removes what the file has from `new_size` (rounded up to a block) on, so that it reads as zeros when the file grows
/// again. Few entries of an unforked file are deleted at once; otherwise a child with a limit is opened, in O(1), and
/// `holder` moves to it (store it in the inode record, in the same transaction).
///
/// `tail` is a new block, already placed, with the bytes of the block that `new_size` cuts and zeros behind them;
/// it takes that block's place in the same transaction. Give it iff `new_size` is inside a block of data (resolve it
/// first); the caller must not put_extents in the same transaction.
/// `new_id` is called at most once, and the id it gives is claimed in `tx`.
pub fn truncate(read: &dyn Read, tx: &mut Transaction, holder: &mut Holder, new_id: &mut dyn FnMut() -> VersionId, new_size: u64, tail: Option<Run>) -> Result<Truncated> { unimplemented!() }
