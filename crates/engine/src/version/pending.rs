//! Version records on their way to disk, and with them what the reaper has to do: a record is never written without
//! its mark, so that finding work costs what is to be done, not what there is.
//!
//! 1. A version without holders and with at most one child has a mark [`Work::Going`], and no other version has one.
//! 2. A version without holders and with several children gets a mark [`Work::Recheck`] when something of it may have
//!    become invisible to all of them. Who loses the children loses that mark.
//!
//! A mark's value is a cursor. It starts anew when what it is for changes.
//!
//! A record that would say what is assumed without one is not kept ([`VersionRecord::implicit`]): with the last other version
//! of a family goes the record of the one that is left, in the same transaction, whatever the id it has by then. So the
//! holder need not be found, and no id ever means anything else.

use varve_format::record::reap::{Work, reap_key};
use varve_format::record::version::{self, VersionRecord};
use varve_format::{Corrupt, FamilyId, TreeId, VersionId};

use super::{Planted, Read, Result, planted};
use crate::{EngineError, Transaction};

/// What becomes of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Somebody holds it: it stays, and so does all it has.
    Held,
    /// Nobody holds it, and it has at most one child.
    Going,
    /// Nobody holds it, and it has several children.
    Inner,
}

/// The state of a version with this record.
pub(super) fn state(version: &VersionRecord) -> State {
    match (version.refs, version.children) {
        (1.., _) => State::Held,
        (0, 0 | 1) => State::Going,
        (0, _) => State::Inner,
    }
}

/// The record of a version; the implicit one if its family has none at all. Costs a second descent then, unless it is the
/// first version.
pub(super) fn record(read: &dyn Read, family: FamilyId, id: VersionId) -> Result<VersionRecord> {
    if let Some(version) = read.latest(family, id) {
        return Ok(version);
    }
    match read.get(TreeId::VERSIONS, &version::encode_key(family, id))? {
        Some(value) => VersionRecord::decode(&value).map_err(|why| corrupt(family, id, why)),
        None if id.0 == family.0 => Ok(VersionRecord::implicit(family)),
        // Only one version can be without: beside another it would be what nobody counts.
        None if is_empty(read, family)? => Ok(VersionRecord::implicit(family)),
        None => Err(corrupt(family, id, Corrupt { what: "version without a record", at: 0 })),
    }
}

/// Whether a family has no records of versions.
fn is_empty(read: &dyn Read, family: FamilyId) -> Result<bool> {
    if planted(Planted::AnyIsImplicit) {
        return Ok(true);
    }
    let (prefix, mut empty) = (family.0.to_be_bytes(), true);
    read.scan(TreeId::VERSIONS, &prefix, &mut |key, _| {
        empty = !key.starts_with(&prefix);
        false
    })?;
    Ok(empty)
}

/// The error for a record that cannot be.
pub(super) fn corrupt(family: FamilyId, id: VersionId, why: Corrupt) -> EngineError {
    EngineError::corrupt(format!("version {} of family {}", id.0, family.0), why)
}

/// Puts the record of a new version.
pub(super) fn create(tx: &mut Transaction, family: FamilyId, id: VersionId, version: &VersionRecord) {
    debug_assert_eq!(state(version), State::Held);
    tx.put_owned(TreeId::VERSIONS, &version::encode_key(family, id), Box::new(version.encode()));
}

/// Puts a record where `before` is, and the marks that its new state needs; or takes it away, if it says nothing any more.
pub(super) fn update(
    read: &dyn Read,
    tx: &mut Transaction,
    family: FamilyId,
    id: VersionId,
    before: &VersionRecord,
    after: &VersionRecord,
) -> Result<()> {
    let key = version::encode_key(family, id);
    // What was implicit before has no record that could go.
    if says_nothing(family, after) && before != after {
        tx.delete(TreeId::VERSIONS, &key);
    } else {
        tx.put_owned(TreeId::VERSIONS, &key, Box::new(after.encode()));
    }
    let fewer = after.children < before.children;
    match (state(before), state(after)) {
        (State::Inner, State::Inner) if fewer => mark(tx, family, Work::Recheck(id), &[]),
        (from, State::Going) if from != State::Going || fewer => {
            mark(tx, family, Work::Going(id), &[]);
            if from == State::Inner && cursor(read, family, Work::Recheck(id))?.is_some() {
                unmark(tx, family, Work::Recheck(id));
            }
        }
        _ => (),
    }
    Ok(())
}

/// Whether a version is what it would be taken for without a record.
fn says_nothing(family: FamilyId, version: &VersionRecord) -> bool {
    match planted(Planted::HeldOnceForgotten) {
        true => version.refs == 1,
        false => *version == VersionRecord::implicit(family),
    }
}

/// Deletes the record of a version that goes, and its mark.
pub(super) fn remove(tx: &mut Transaction, family: FamilyId, id: VersionId) {
    tx.delete(TreeId::VERSIONS, &version::encode_key(family, id));
    unmark(tx, family, Work::Going(id));
}

/// How far work has come; `None`: there is no such work.
pub(super) fn cursor(read: &dyn Read, family: FamilyId, work: Work) -> Result<Option<Vec<u8>>> {
    read.get(TreeId::REAP, &reap_key(family, work))
}

/// Says that there is work, and how far it has come.
pub(super) fn mark(tx: &mut Transaction, family: FamilyId, work: Work, cursor: &[u8]) {
    tx.put(TreeId::REAP, &reap_key(family, work), cursor);
}

/// The work is done.
pub(super) fn unmark(tx: &mut Transaction, family: FamilyId, work: Work) {
    tx.delete(TreeId::REAP, &reap_key(family, work));
}
