//! Where two holders of a family part: the versions that only one of the two sees.
//!
//! What both inherit from their youngest common version is the same for both, unless one of them sees it through a limit. So
//! where they differ, one of these versions has an entry, or it lies beyond a limit; and all of them are in the index (*held*),
//! because none of them is the family's first.

use varve_format::record::held::{decode_held_key, held_key, held_prefix};
use varve_format::{Corrupt, FamilyId, TreeId, VersionKey};

use super::path::Path;
use super::{Read, Result};
use crate::EngineError;

/// The versions below the youngest that is on both of two paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parting {
    /// Their keys.
    pub(super) keys: Vec<VersionKey>,
    /// Of what both inherit only one sees what lies from the first of these bytes to the second.
    pub(super) limits: (u64, u64),
}

impl Parting {
    /// Of two holders of the same family.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when the two have no version in common.
    pub(super) fn of(a: &Path, b: &Path) -> Result<Parting> {
        debug_assert_eq!(a.family(), b.family());
        let (mut i, mut j, mut keys) = (0, 0, Vec::new());
        while i < a.versions() && j < b.versions() {
            let (here, there) = (a.step(i), b.step(j));
            // Ids fall along both.
            match here.id.cmp(&there.id) {
                std::cmp::Ordering::Equal => {
                    let (x, y) = (here.visible, there.visible);
                    return Ok(Parting { keys, limits: (x.min(y), x.max(y)) });
                }
                std::cmp::Ordering::Greater => {
                    keys.push(here.key);
                    i += 1;
                }
                std::cmp::Ordering::Less => {
                    keys.push(there.key);
                    j += 1;
                }
            }
        }
        let why = Corrupt { what: "two versions without one that both descend from", at: 0 };
        Err(EngineError::corrupt(format!("the versions of family {}", a.family().0), why))
    }
}

/// Places of one tree in which any of these versions has an entry: up to `max` of them from `from` on, ascending. `from` is a
/// place or the beginning of one. Costs a descent a version, and what is found.
///
/// # Errors
/// [`EngineError::Corrupt`] for an index entry whose place is none of that tree.
pub(super) fn places(
    read: &dyn Read,
    family: FamilyId,
    keys: &[VersionKey],
    tree: TreeId,
    from: &[u8],
    max: usize,
) -> Result<Vec<Vec<u8>>> {
    let mut found: std::collections::BTreeSet<Vec<u8>> = std::collections::BTreeSet::new();
    for key in keys {
        let prefix = held_prefix(family, *key, tree);
        let mut failed = None;
        read.scan(TreeId::HELD, &held_key(family, *key, tree, from), &mut |held, _| {
            if !held.starts_with(&prefix) {
                return false;
            }
            // Whoever is given a place takes it apart.
            let place = match decode_held_key(held) {
                Ok((.., place)) => place,
                Err(why) => {
                    failed = Some(EngineError::corrupt("an index entry", why));
                    return false;
                }
            };
            if found.len() >= max && found.last().is_some_and(|last| place >= last.as_slice()) {
                return false;
            }
            found.insert(place.to_vec());
            if found.len() > max {
                found.pop_last();
            }
            true
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    Ok(found.into_iter().collect())
}
