//! Checking
use super::*;
use crate::Run;
/// The first family after `after` that has entries or version records. For walking all of them.
pub fn next_family(read: &dyn Read, after: Option<FamilyId>) -> Result<Option<FamilyId>> { unimplemented!() }
/// Walks everything stored for `family`: calls `each` with the blocks of every entry of data, and adds one sentence to
/// `problems` for everything that breaks the rules (unknown key, overlap, crossing, version tree, count of holders).
/// `holder` is the one inode that points at the family, if any does.
pub fn walk_family(read: &dyn Read, family: FamilyId, holder: Option<Holder>, each: &mut dyn FnMut(Run), problems: &mut Vec<String>) -> Result<()> { unimplemented!() }
