//! Writing: entries, whiteouts, the index of what a version holds, and the notes for the reaper.

use varve_format::record::held::held_key;
use varve_format::record::reap::{Work, reap_key};
use varve_format::{TreeId, VersionKey};

use super::super::pending::{State, record, state};
use super::super::{Path, Read, Result};
use super::reads::entries_at;
use super::{Planted, entry_key, is_listed, is_plain, place_of, planted};
use crate::Transaction;
use crate::transaction::Op;

/// Whether what was found at this key belongs to the holder's version alone (or to its parent while the two are
/// becoming one): then a change replaces it. If not, others see it, and a change is a copy beside it.
pub fn own(path: &Path, version: VersionKey) -> bool {
    (0..path.own()).any(|at| path.step(at).key == version)
}

/// Puts `value`, which is not empty, at `prefix` for the holder of `path` (which is writable; the one exception is
/// what was changed before a fork and is logged after it: it goes to the version it was changed in).
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a record or key that cannot be; `tx` must then be dropped.
pub fn put(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    tree: TreeId,
    prefix: &[u8],
    value: Box<[u8]>,
) -> Result<()> {
    debug_assert!(!value.is_empty(), "an empty value is a whiteout");
    if is_plain(path) {
        tx.put_owned(tree, &entry_key(prefix, path.target()), value);
        return Ok(());
    }
    let place = Place::look(read, path, tree, prefix)?;
    place.put(read, tx, path, tree, prefix, value)
}

/// Removes what the holder of `path` sees at `prefix`. A whiteout stays iff something is visible beneath; then `tx` becomes
/// [sparing](Transaction::sparing).
///
/// # Errors
/// As [`put`].
pub fn delete(read: &dyn Read, tx: &mut Transaction, path: &Path, tree: TreeId, prefix: &[u8]) -> Result<()> {
    if is_plain(path) {
        tx.delete(tree, &entry_key(prefix, path.target()));
        return Ok(());
    }
    let place = Place::look(read, path, tree, prefix)?;
    if place.beneath.is_some_and(|(_, whiteout)| !whiteout) {
        tx.sparing();
        return place.put(read, tx, path, tree, prefix, Box::default());
    }
    // Also if nothing is there yet: a put of it may be in the same transaction.
    tx.delete(tree, &entry_key(prefix, place.version));
    if is_listed(path.family(), place.version) {
        tx.delete(TreeId::HELD, &held_key(path.family(), place.version, tree, place_of(prefix)));
    }
    Ok(())
}

/// Where a write goes, and what it meets.
struct Place {
    /// The key the entry gets.
    version: VersionKey,
    /// Whether it has an entry there.
    exists: bool,
    /// The place on the path of the next older version with an entry, and whether that is a whiteout.
    beneath: Option<(usize, bool)>,
}

impl Place {
    /// While the head drains up, a new entry goes to its parent's key. One it has at its own key is replaced there: its
    /// parent may have another beneath, and that one must not vanish in a write, where nobody hears of it.
    fn look(read: &dyn Read, path: &Path, tree: TreeId, prefix: &[u8]) -> Result<Place> {
        let own = path.own();
        let mut place = Place { version: path.target(), exists: false, beneath: None };
        entries_at(read, path, tree, prefix, &mut |step, version, value| {
            if step < own && !place.exists {
                (place.version, place.exists) = (version, true);
                return true;
            }
            place.beneath = Some((step, value.is_empty()));
            false
        })?;
        Ok(place)
    }

    fn put(
        &self,
        read: &dyn Read,
        tx: &mut Transaction,
        path: &Path,
        tree: TreeId,
        prefix: &[u8],
        value: Box<[u8]>,
    ) -> Result<()> {
        if is_listed(path.family(), self.version) {
            let held = held_key(path.family(), self.version, tree, place_of(prefix));
            // It is listed already, unless an earlier step of this transaction has taken it off.
            if !self.exists || deletes(tx, TreeId::HELD, &held) {
                tx.put(TreeId::HELD, &held, &[]);
            }
        }
        if let Some((step, _)) = self.beneath.filter(|_| !self.exists) {
            note_hidden(read, tx, path, step, tree, prefix)?;
        }
        tx.put_owned(tree, &entry_key(prefix, self.version), value);
        Ok(())
    }
}

fn deletes(tx: &Transaction, in_tree: TreeId, at: &[u8]) -> bool {
    tx.ops().iter().any(|op| matches!(op, Op::Delete { tree, key } if *tree == in_tree && **key == *at))
}

/// The head of the path now hides what the version at `step` has at `prefix`. If that version has holders, one of them
/// sees it. If it is about to be merged into the head, that ends it. Otherwise perhaps nobody sees it any more.
fn note_hidden(
    read: &dyn Read,
    tx: &mut Transaction,
    path: &Path,
    step: usize,
    tree: TreeId,
    prefix: &[u8],
) -> Result<()> {
    let at = path.step(step);
    // Of a version that this transaction has left, the path knows it and the record does not yet; of one that others
    // have let go since the path was loaded, it is the record that knows.
    let state = match at.state {
        State::Held => state(&record(read, path.family(), at.id)?),
        _ if planted(Planted::PathIgnored) => state(&record(read, path.family(), at.id)?),
        left => left,
    };
    let noted = match state {
        State::Held => false,
        State::Going => step > 1,
        State::Inner => true,
    };
    if noted && !planted(Planted::HiddenNotNoted) {
        let work = Work::Place(at.id, tree, place_of(prefix));
        tx.put(TreeId::REAP, &reap_key(path.family(), work), &[]);
    }
    Ok(())
}
