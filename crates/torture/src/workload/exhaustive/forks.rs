//! The operations of small sequences that fork.

use varve_fs::{InodeId, ROOT_INODE};

use super::Operation::{self, *};
use crate::call::Call;
use crate::model::{Inode, is_subvolume};
use crate::session::{Session, Violation};

/// Name of the snapshot that is made where there is none.
const SNAPSHOT: &[u8] = b"snapshot";

/// Performs one of them and gives the inode an fsync would name.
pub(super) fn perform(
    session: &mut Session,
    operation: Operation,
    step: u64,
) -> Result<Option<InodeId>, Violation> {
    let root = ROOT_INODE;
    let fresh = |text: &str| format!("{text}{step}").into_bytes();
    let lookup = |session: &Session, name: &[u8]| session.live().lookup(root, name);
    match operation {
        TakeSnapshot | TakeFrozenSnapshot => {
            let (source, read_only) = (root, operation == TakeFrozenSnapshot);
            let (name, sync) = (fresh("snapshot"), read_only);
            session.call(&Call::Snapshot { source, parent: root, name: name.clone(), read_only, sync })?;
            Ok(lookup(session, &name))
        }
        WriteInSnapshot => {
            let (_, inside) = snapshot(session)?;
            let Some(ino) = file(session, inside, b"a") else { return Ok(Some(inside)) };
            session.call(&Call::Write { ino, offset: 3_000, len: 4_000, seed: step })?;
            Ok(Some(ino))
        }
        UnlinkInSnapshot => {
            let (_, parent) = snapshot(session)?;
            session.call(&Call::Unlink { parent, name: b"a".to_vec() })?;
            Ok(Some(parent))
        }
        DeleteSnapshot => {
            let (name, _) = snapshot(session)?;
            session.must(&Call::DeleteSubvolume { parent: root, name })?;
            Ok(Some(root))
        }
        MakeSubvolume => {
            let (name, mode) = (fresh("subvolume"), 0o755);
            session.must(&Call::CreateSubvolume { parent: root, name: name.clone(), mode })?;
            let Some(parent) = lookup(session, &name) else { return Ok(None) };
            session.must(&Call::Create { parent, name: b"a".to_vec(), mode: 0o644 })?;
            let Some(ino) = file(session, parent, b"a") else { return Ok(None) };
            session.must(&Call::Write { ino, offset: 0, len: 6_000, seed: step })?;
            Ok(Some(ino))
        }
        CloneRangeFromSnapshot => {
            let (_, inside) = snapshot(session)?;
            let (from, to) = (file(session, inside, b"a"), file(session, root, b"a"));
            let (Some(from), Some(to)) = (from, to) else { return Ok(Some(inside)) };
            let (from_offset, to_offset, len) = (0, 12_288, 8_192);
            session.call(&Call::CloneRange { from, from_offset, to, to_offset, len })?;
            Ok(Some(to))
        }
        CloneFile => {
            let Some(source) = file(session, root, b"a") else { return Ok(None) };
            let name = fresh("clone");
            session.call(&Call::CloneFile { source, parent: root, name: name.clone() })?;
            Ok(lookup(session, &name))
        }
        WriteToClone | UnlinkCloned => {
            let Some(source) = file(session, root, b"a") else { return Ok(None) };
            let name = fresh("clone");
            session.call(&Call::CloneFile { source, parent: root, name: name.clone() })?;
            let Some(ino) = lookup(session, &name) else { return Ok(None) };
            if operation == UnlinkCloned {
                session.must(&Call::Unlink { parent: root, name: b"a".to_vec() })?;
            } else {
                session.must(&Call::Write { ino, offset: 4_096, len: 5_000, seed: step })?;
            }
            Ok(Some(ino))
        }
        Maintain => session.must(&Call::Maintain).map(|()| None),
        _ => unreachable!("not a fork: {operation:?}"),
    }
}

/// A snapshot that can be changed, or a subvolume: its name and root.
fn snapshot(session: &mut Session) -> Result<(Vec<u8>, InodeId), Violation> {
    let found = |session: &Session| {
        let names = session.live().get(ROOT_INODE).and_then(Inode::entries);
        let found = names.and_then(|names| names.iter().find(|(_, ino)| is_subvolume(**ino)));
        found.map(|(name, ino)| (name.clone(), *ino))
    };
    if let Some(found) = found(session) {
        return Ok(found);
    }
    let (source, read_only, sync) = (ROOT_INODE, false, false);
    session.must(&Call::Snapshot { source, parent: ROOT_INODE, name: SNAPSHOT.to_vec(), read_only, sync })?;
    Ok(found(session).expect("made above"))
}

fn file(session: &Session, parent: InodeId, name: &[u8]) -> Option<InodeId> {
    let ino = session.live().lookup(parent, name)?;
    session.live().get(ino)?.content().map(|_| ino)
}
