//! In what two holders of a namespace differ, from where their versions part: it costs what was changed since.

use varve_format::TreeId;

use super::super::parting::{Parting, places};
use super::super::{Path, Read, Result};
use super::reads::find;

/// A key of which two holders see different values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The key, without the version.
    pub prefix: Vec<u8>,
    /// What the first of the two sees.
    pub old: Option<Vec<u8>>,
    /// What the second sees.
    pub new: Option<Vec<u8>>,
}

/// A part of the differences between two holders.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Ascending.
    pub changed: Vec<Changed>,
    /// The place to go on at; `None`: that is all.
    pub next: Option<Vec<u8>>,
}

/// In what `new` differs from `old`, another holder of the same family, in one tree. Looks at up to `places_max` places from
/// `from` on: what follows the family in a prefix, or the beginning of that.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a record or key that cannot be.
pub fn changes(
    read: &dyn Read,
    old: &Path,
    new: &Path,
    tree: TreeId,
    from: &[u8],
    places_max: usize,
) -> Result<Changes> {
    let keys = Parting::of(old, new)?.keys;
    let found = places(read, old.family(), &keys, tree, from, places_max)?;
    let mut out = Changes::default();
    if found.len() >= places_max {
        out.next = found.last().and_then(|last| successor(last));
    }
    for place in found {
        let prefix = [&old.family().0.to_be_bytes()[..], &place].concat();
        let value = |path| find(read, path, tree, &prefix).map(|found| found.map(|found| found.value));
        let (before, after) = (value(old)?, value(new)?);
        if before != after {
            out.changed.push(Changed { prefix, old: before, new: after });
        }
    }
    Ok(out)
}

/// The next place of the same length.
fn successor(place: &[u8]) -> Option<Vec<u8>> {
    let at = place.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut next = place.to_vec();
    next[at] += 1;
    next[at + 1..].fill(0);
    Some(next)
}
