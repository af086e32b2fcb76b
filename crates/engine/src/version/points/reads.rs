//! Reading: the entries of a path of versions, newest first, and what of them can be seen.

use varve_format::{TreeId, VersionKey};

use super::super::{Path, Read, Result};
use super::{VERSION_BYTES, entry_key, key_bytes, split};
use crate::key::Key;

/// Entries passed over one by one before a new descent goes to the next one that can matter.
const PASS_MAX: usize = 16;

/// What a holder sees at a prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The key of the version it belongs to; see [`super::own`].
    pub version: VersionKey,
    /// The value, never empty.
    pub value: Vec<u8>,
}

/// The key of all entries this holder sees, if its family has one version: then a lookup is one `get` at
/// (prefix, inverted key), and callers on a hot path may do it themselves, without a copy of the value.
pub fn sole_key(path: &Path) -> Option<VersionKey> {
    (path.versions() == 1).then(|| path.head().key)
}

/// Gets an entry that can be seen: its prefix, the key of its version, its value. False ends the scan.
pub type EachVisible<'a> = &'a mut dyn FnMut(&[u8], VersionKey, &[u8]) -> Result<bool>;

/// What can be seen at `prefix`. One `get` if the family has one version; otherwise one descent, and the entries of
/// versions beside the path that are newer.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a key that cannot be.
pub fn find(read: &dyn Read, path: &Path, tree: TreeId, prefix: &[u8]) -> Result<Option<Found>> {
    if let Some(version) = sole_key(path) {
        let value = read.get(tree, &entry_key(prefix, version))?;
        return Ok(value.filter(|v| !v.is_empty()).map(|value| Found { version, value }));
    }
    let mut found = None;
    entries_at(read, path, tree, prefix, &mut |_, version, value| {
        found = (!value.is_empty()).then(|| Found { version, value: value.to_vec() });
        false
    })?;
    Ok(found)
}

/// Calls `each` with what can be seen from `from` on at prefixes that begin with `prefix`, ascending, each prefix once. Ends
/// when `each` returns false or an error. `from` is a
/// prefix or the beginning of one, at least `prefix`.
///
/// # Errors
/// Those of `each`; [`crate::EngineError::Corrupt`] for a key that cannot be.
pub fn scan(
    read: &dyn Read,
    path: &Path,
    tree: TreeId,
    from: &[u8],
    prefix: &[u8],
    each: EachVisible<'_>,
) -> Result<()> {
    walk(read, path, tree, from, prefix, &mut |at, _, version, value| {
        Ok(match value {
            [] => Go::NextPrefix,
            _ if each(at, version, value)? => Go::NextPrefix,
            _ => Go::Stop,
        })
    })
}

/// Calls `each` with the entries that the versions of the path have at `prefix`, newest first, whiteouts included,
/// until it returns false: the version's place on the path, its key, the value.
pub(super) fn entries_at(
    read: &dyn Read,
    path: &Path,
    tree: TreeId,
    prefix: &[u8],
    each: &mut dyn FnMut(usize, VersionKey, &[u8]) -> bool,
) -> Result<()> {
    debug_assert_eq!(prefix.len() + VERSION_BYTES, key_bytes(tree), "a whole key but for the version");
    let from = entry_key(prefix, path.head().key);
    walk(read, path, tree, &from, prefix, &mut |_, step, version, value| {
        Ok(if each(step, version, value) { Go::Older } else { Go::Stop })
    })
}

/// How a walk goes on after an entry.
enum Go {
    /// With the next older version that has one at this prefix.
    Older,
    /// With the next prefix.
    NextPrefix,
    /// Not at all.
    Stop,
}

/// Where on a path a key belongs.
enum Place {
    /// It is that of this step.
    On(usize),
    /// It is none of them; this is the next older one.
    Before(VersionKey),
    /// All of the path is newer.
    Beyond,
}

fn place(path: &Path, version: VersionKey) -> Place {
    let at = path.first_at_most(0, version);
    if at == path.versions() {
        return Place::Beyond;
    }
    let key = path.step(at).key;
    if key == version { Place::On(at) } else { Place::Before(key) }
}

type Each<'a> = &'a mut dyn FnMut(&[u8], usize, VersionKey, &[u8]) -> Result<Go>;

/// The read rule of points, in one place: entries of the path's versions in order of prefix, then newest first. Where
/// many entries in a row do not matter, it descends anew to the next one that can. Every descent passes at least
/// [`PASS_MAX`] entries, so that it ends whatever the store holds.
fn walk(
    read: &dyn Read,
    path: &Path,
    tree: TreeId,
    from: &[u8],
    within: &[u8],
    each: Each<'_>,
) -> Result<()> {
    let mut from = Key::new(from);
    // The prefix we are at, whether the rest of its entries matter, and how many in a row did not.
    let (mut at, mut done, mut passed) = (Key::EMPTY, false, 0);
    loop {
        let (mut next, mut failed) = (None, None);
        read.scan(tree, &from, &mut |key, value| {
            if !key.starts_with(within) {
                return false;
            }
            let step = || -> Result<bool> {
                let (prefix, version) = split(tree, key)?;
                if prefix != at.as_slice() {
                    (at, done, passed) = (Key::new(prefix), false, 0);
                }
                let beyond = entry_key(prefix, VersionKey(0));
                let target = match place(path, version) {
                    _ if done => beyond,
                    Place::On(step) => match each(prefix, step, version, value)? {
                        Go::Stop => return Ok(false),
                        Go::Older => {
                            passed = 0;
                            return Ok(true);
                        }
                        Go::NextPrefix => {
                            (done, passed) = (true, 0);
                            return Ok(true);
                        }
                    },
                    Place::Before(older) => entry_key(prefix, older),
                    Place::Beyond => {
                        done = true;
                        beyond
                    }
                };
                passed += 1;
                if passed >= PASS_MAX {
                    (next, passed) = (Some(target), 0);
                }
                Ok(next.is_none())
            };
            let mut step = step;
            step().unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        match next {
            // One prefix was asked for, and the rest of it does not matter.
            Some(_) if done && within.len() + VERSION_BYTES == key_bytes(tree) => return Ok(()),
            Some(target) => from = target,
            None => return Ok(()),
        }
    }
}
