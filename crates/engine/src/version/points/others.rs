//! Whether anybody else sees an entry.

use varve_format::{TreeId, VersionKey};

use super::super::family::Blocks;
use super::super::others::Others;
use super::super::{Holder, Read, Result};
use super::split;

/// Whether another holder of the family sees the entry that `holder` sees at `prefix`, which belongs to `version`
/// ([`super::Found::version`]). Reads all version records of the family, if it has any, and the entries at `prefix`.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a record or key that cannot be.
pub fn seen_by_others(
    read: &dyn Read,
    holder: Holder,
    tree: TreeId,
    prefix: &[u8],
    version: VersionKey,
) -> Result<bool> {
    if !holder.has_versions {
        return Ok(false);
    }
    let mut others = Others::load(read, holder)?;
    if let Some(always) = others.always(version) {
        return Ok(always);
    }
    let (mut own, mut failed) = (Vec::new(), None);
    read.scan(tree, prefix, &mut |key, _| {
        if !key.starts_with(prefix) {
            return false;
        }
        match split(tree, key) {
            Ok((_, version)) => own.push((version, Blocks::ALL)),
            Err(error) => failed = Some(error),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)?;
    let all = |upto: u64| if upto == 0 { Blocks::NONE } else { Blocks::ALL };
    others.look(&own, &all);
    Ok(!others.seen(version, &all).is_empty())
}
