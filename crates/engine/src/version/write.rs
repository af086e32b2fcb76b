//! Writing
use super::*;
use crate::{Run, Transaction};
/// What a write changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replaced {
    /// Entries put.
    pub entries_put: u64,
    /// Entries deleted.
    pub entries_deleted: u64,
    /// Blocks freed, because this data takes their place.
    pub blocks_freed: u64,
}
/// Makes `pieces` the data of the file: (offset in the file, blocks in the pool), in ascending order and not
/// overlapping; offsets are block aligned, a piece may span segments. What they cover is cut away and its blocks are
/// freed in `tx`. The caller has placed the blocks ([`Transaction::place`] or [`Transaction::place_riding`]).
/// A piece that continues its predecessor in file and pool grows that entry. Cost: two descents and a short scan per
/// touched segment.
pub fn put_extents(read: &dyn Read, tx: &mut Transaction, path: &Path, pieces: &[(u64, Run)]) -> Result<Replaced> { unimplemented!() }
/// Makes [`from`, `to`) (block aligned) a hole. Stops after the segment in which `entries_max` changed entries have
/// been reached: if [`Progress::more`], apply and call again from [`Progress::next`].
pub fn punch(read: &dyn Read, tx: &mut Transaction, path: &Path, from: u64, to: u64, entries_max: u64) -> Result<Progress> { unimplemented!() }
