//! Reaping
use super::*;
use crate::Transaction;
/// One small step towards one version per holder: collapses a version without holders into its only child, or removes
/// one that nobody sees. Apply `tx` after each (it is empty when there was nothing to do) and call again while
/// [`Progress::more`]. Run it under the lock of the holder. The holder's version id never changes by it; the path does.
pub fn reap_step(read: &dyn Read, tx: &mut Transaction, family: FamilyId, entries_max: u64) -> Result<Progress> { unimplemented!() }
/// One step of deleting all data of `holder`, the only one of its family, and its version records. Apply `tx` and call
/// again while [`Progress::more`]. The caller remembers durably (an orphan record) that the family is being deleted.
pub fn delete_step(read: &dyn Read, tx: &mut Transaction, holder: Holder, entries_max: u64) -> Result<Progress> { unimplemented!() }
/// Up to `families_max` families after `after` in which [`reap_step`] has work: to be asked when a pool is opened.
/// `None` as the second part: there are no more.
pub fn pending_families(read: &dyn Read, after: Option<FamilyId>, families_max: usize) -> Result<(Vec<FamilyId>, Option<FamilyId>)> { unimplemented!() }
