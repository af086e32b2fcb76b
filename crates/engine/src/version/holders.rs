//! Holders: several may share a version, and each may move to one of its own.
//!
//! Nothing here looks at what a family holds, so that all of it is O(1) in that, and serves files' data and namespaces
//! alike. Every call adds to a transaction of the caller, who stores the holder in it: after a crash either both are
//! true or neither.

use varve_format::record::reap::Work;
use varve_format::record::version::{NO_LIMIT, VersionRecord};
use varve_format::{Corrupt, VersionId, VersionKey};

use super::path::{self, Path};
use super::pending::{self, State, corrupt, record, state};
use super::{Holder, Planted, Read, Result, planted};
use crate::Transaction;

/// One more holder of what `holder` holds: a copy of it. Makes the family's records explicit, which `holder` then says
/// ([`Holder::has_versions`]: store both).
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a record that cannot be; `tx` must then be dropped.
pub fn share(read: &dyn Read, tx: &mut Transaction, holder: &mut Holder) -> Result<()> {
    let before = held(read, *holder)?;
    let after = VersionRecord {
        refs: before.refs.saturating_add(u64::from(!planted(Planted::MissedReference))),
        ..before
    };
    pending::update(read, tx, holder.family, holder.version, &before, &after)?;
    holder.has_versions = true;
    Ok(())
}

/// Moves `holder` to a new version that sees all of its old one: how a shared version is written. With `kept` another
/// holder, equal to `holder`, stays behind. The path that it gives may be written to in the same transaction.
/// `new_id` is called once, and the id it gives is claimed in `tx`.
///
/// # Errors
/// As [`share`].
pub fn branch(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    new_id: &mut dyn FnMut() -> VersionId,
    kept: bool,
) -> Result<Path> {
    let mut path = Path::load(read, *holder)?;
    open_child(read, tx, holder, &mut path, new_id(), NO_LIMIT, kept)?;
    Ok(path)
}

/// [`branch`] for who has the path of `holder` at hand: `path` becomes that of the new version.
///
/// # Errors
/// As [`share`].
pub fn branch_on(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    path: &mut Path,
    new_id: &mut dyn FnMut() -> VersionId,
    kept: bool,
) -> Result<()> {
    open_child(read, tx, holder, path, new_id(), NO_LIMIT, kept)
}

/// `holder` lets go; forget it in the same transaction, which becomes privileged. True: nobody holds that version any
/// more, and the reaper has work in this family. Who holds a family alone may rather delete it
/// ([`super::delete_step`]).
///
/// # Errors
/// As [`share`].
pub fn release(read: &dyn Read, tx: &mut Transaction, holder: Holder) -> Result<bool> {
    let before = held(read, holder)?;
    let after = VersionRecord { refs: before.refs - 1, ..before };
    tx.privileged();
    pending::update(read, tx, holder.family, holder.version, &before, &after)?;
    if state(&after) == State::Inner {
        pending::mark(tx, holder.family, Work::Recheck(holder.version), &[]);
    }
    Ok(after.refs == 0)
}

/// Whether nobody else holds or inherits anything of this family: what `holder` does not see, nobody sees. May say no
/// while the reaper has work in the family, and does where that is much. Of a holder that is not alone it costs one or two reads, and one
/// more for each version that goes between it and the first one that stays, up to a few.
///
/// # Errors
/// As [`share`].
pub fn is_sole(read: &dyn Read, holder: Holder) -> Result<bool> {
    path::is_sole(read, holder)
}

/// The record at which a holder stands, which therefore counts it.
fn held(read: &dyn Read, holder: Holder) -> Result<VersionRecord> {
    let version = record(read, holder.family, holder.version)?;
    if version.refs == 0 {
        let why = Corrupt { what: "version that does not count its holder", at: 0 };
        return Err(corrupt(holder.family, holder.version, why));
    }
    Ok(version)
}

/// Opens a version that sees what is below `limit` of `holder`'s, and moves `holder` and `path` to it.
pub(super) fn open_child(
    read: &dyn Read,
    tx: &mut Transaction,
    holder: &mut Holder,
    path: &mut Path,
    id: VersionId,
    limit: u64,
    kept: bool,
) -> Result<()> {
    let (family, parent) = (holder.family, holder.version);
    let head = path.head();
    debug_assert_eq!((path.family(), head.id), (family, parent), "the path of this holder");
    // A holder that stands at a number which is yet to be given out is damaged: where its family has no records, none contradicts
    // it before.
    if id <= parent || id.0 <= head.key.0 {
        return Err(corrupt(
            family,
            parent,
            Corrupt { what: "version that is younger than a new one", at: 0 },
        ));
    }
    let before = held(read, *holder)?;
    let after = VersionRecord {
        refs: before.refs - u64::from(!kept),
        children: before.children.saturating_add(1),
        children_xor: before.children_xor ^ id.0,
        ..before
    };
    let child = VersionRecord {
        parent: Some(parent),
        key: VersionKey(id.0),
        limit,
        ..VersionRecord::implicit(family)
    };
    tx.claim_id(id.0);
    pending::update(read, tx, family, parent, &before, &after)?;
    pending::create(tx, family, id, &child);
    if limit != NO_LIMIT && state(&after) == State::Inner {
        // Without a limit the child sees all of it, until it is written to.
        pending::mark(tx, family, Work::Recheck(parent), &[]);
    }
    path.open_child(id, limit, state(&after));
    (holder.version, holder.has_versions) = (id, true);
    Ok(())
}
