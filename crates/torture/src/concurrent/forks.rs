//! Snapshots and clones among the threads.
//!
//! A thread takes a snapshot of everything into its own directory. Of its directory, which nobody else changes, the
//! snapshot holds exactly what it held, all of it written; after a crash the snapshot is there with all of that, or is
//! not there, unless something has made it durable. Then it is changed by itself, and must show that and nothing of what
//! the source goes through.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_fs::{Caller, Filesystem, InodeId, ROOT_INODE};
use varve_sim::Rng;

use super::{Contents, Entries, Names, Reason, Worker, agrees, guests, look, patchwork};
use crate::call::fill;
use crate::session::Violation;
use crate::violation;

/// Snapshots that a thread has at a time.
const SNAPSHOTS_MAX: u64 = 1;
/// Clones that a thread has at a time.
const CLONES_MAX: u64 = 3;

/// What a snapshot shows of the directory of the thread that took it.
#[derive(Clone)]
pub struct Snapshot {
    entries: Entries,
    /// What the patchwork may hold: each page as one of these has it, each from a tick on.
    patchwork: Vec<(u64, Arc<Vec<u8>>)>,
    read_only: bool,
    /// The tick at which it had been taken: a sync that began later, whoever's it was, made it durable.
    taken: u64,
    /// A crash does not take it away.
    pub(super) required: bool,
}

impl Worker<'_> {
    /// Takes a snapshot, changes one, or deletes it.
    pub(super) fn fork(&mut self, rng: &mut Rng, number: u64) -> Result<(), Violation> {
        let name = format!("snapshot{}", rng.below(SNAPSHOTS_MAX)).into_bytes();
        let begun = self.disk.events();
        let Some(snapshot) = self.entries.snapshots.get(&name).cloned() else {
            let (read_only, sync) = (rng.below(3) == 0, rng.below(3) == 0);
            let taken = self.fs.snapshot(ROOT_INODE, self.directory, &name, read_only, sync);
            taken.map_err(|error| self.failed("taking a snapshot", error))?;
            let whole = |names: &mut Names| {
                for contents in names.values_mut() {
                    contents.whole = contents.whole.or(Some(Reason::Fork));
                }
            };
            let mut entries = Entries { snapshots: BTreeMap::new(), ..self.entries.clone() };
            whole(&mut entries.names);
            if sync {
                // It waits for what is dirty of the source.
                whole(&mut self.entries.names);
            }
            let taken = self.tick();
            let patchwork = vec![(taken, self.patchwork.bytes())];
            let snapshot = Snapshot { entries, patchwork, read_only, taken, required: sync };
            self.entries.snapshots.insert(name, Arc::new(snapshot));
            self.push(begun, sync);
            if sync {
                self.acknowledge();
            }
            return Ok(());
        };
        if snapshot.read_only || rng.below(3) == 0 {
            let deleted = self.fs.delete_subvolume(self.directory, &name);
            deleted.map_err(|error| self.failed("deleting a snapshot", error))?;
            self.entries.snapshots.remove(&name);
            self.push(begun, false);
            return Ok(());
        }
        let found = look_inside(self.fs, self.directory, &name, self.thread as usize)?;
        let mut changed = (*snapshot).clone();
        match rng.pick(&changed.entries.names.keys().cloned().collect::<Vec<_>>()).cloned() {
            Some(file) if rng.below(2) == 0 => {
                let gone = self.fs.unlink(found, &file);
                gone.map_err(|error| self.failed("unlink in a snapshot", error))?;
                changed.entries.names.remove(&file);
                self.entries.snapshots.insert(name, Arc::new(changed));
                self.push(begun, false);
            }
            _ => {
                let ino = self.fs.lookup(found, patchwork::NAME);
                let ino = ino.map_err(|error| self.failed("lookup in a snapshot", error))?.ino;
                let mut bytes =
                    changed.patchwork.last().map_or_else(Vec::new, |(_, bytes)| (**bytes).clone());
                let data = fill(self.thread << 40 | number, 1 + rng.below(30_000) as usize);
                let offset = rng.below(bytes.len() as u64 + 1) as usize;
                let mut done = 0;
                while done < data.len() {
                    let written = self.fs.write(Caller::ROOT, ino, (offset + done) as u64, &data[done..]);
                    done += written.map_err(|error| self.failed("write in a snapshot", error))?;
                }
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[offset..offset + data.len()].copy_from_slice(&data);
                changed.patchwork.push((self.tick(), Arc::new(bytes)));
                self.entries.snapshots.insert(name.clone(), Arc::new(changed.clone()));
                self.push(begun, false);
                self.fs.fsync(ino).map_err(|error| self.failed("fsync in a snapshot", error))?;
                changed.patchwork = changed.patchwork.split_off(changed.patchwork.len() - 1);
                changed.required = true;
                self.entries.snapshots.insert(name, Arc::new(changed));
                self.push(begun, false);
                self.acknowledge();
            }
        }
        Ok(())
    }

    /// Clones a file, and unlinks the clone that had the name before.
    pub(super) fn clone_file(&mut self, rng: &mut Rng, slot: &[u8]) -> Result<(), Violation> {
        let Some(contents) = self.entries.names.get(slot).copied() else { return Ok(()) };
        let name = format!("clone{}", rng.below(CLONES_MAX)).into_bytes();
        let begun = self.disk.events();
        if self.entries.names.contains_key(&name) {
            let gone = self.fs.unlink(self.directory, &name);
            gone.map_err(|error| self.failed("unlink of a clone", error))?;
            self.note(begun, |names| {
                names.remove(&name);
            });
        }
        let begun = self.disk.events();
        let found = self.fs.lookup(self.directory, slot);
        let ino = found.map_err(|error| self.failed("lookup", error))?.ino;
        let cloned = self.fs.clone_file(Caller::ROOT, ino, self.directory, &name);
        cloned.map_err(|error| self.failed("clone", error))?;
        // The name comes first and leads to nothing yet.
        self.note(begun, |names| {
            names.insert(name.clone(), Contents { whole: None, written: None, ..contents });
        });
        self.note(begun, |names| {
            for name in [slot, &name[..]] {
                let contents = names.get_mut(name).expect("both are there");
                contents.whole = contents.whole.or(Some(Reason::Fork));
            }
        });
        Ok(())
    }
}

/// The directory of `thread` in its snapshot.
fn look_inside(fs: &Filesystem, above: InodeId, name: &[u8], thread: usize) -> Result<InodeId, Violation> {
    let root = fs.lookup(above, name).map_err(|error| violation!("a snapshot is not found: {error}"))?.ino;
    inside(fs, root, thread)
}

fn inside(fs: &Filesystem, root: InodeId, thread: usize) -> Result<InodeId, Violation> {
    let name = format!("thread{thread}").into_bytes();
    let found = fs.lookup(root, &name);
    Ok(found.map_err(|error| violation!("a snapshot has no directory of its thread: {error}"))?.ino)
}

/// Whether the snapshots found under these roots are the `expected` ones, after somebody has synced all that had returned
/// before tick `synced`.
pub fn agree(
    fs: &Filesystem,
    thread: usize,
    expected: &BTreeMap<Vec<u8>, Arc<Snapshot>>,
    found: &BTreeMap<Vec<u8>, InodeId>,
    synced: u64,
) -> Result<(), Violation> {
    let durable = |snapshot: &Snapshot| snapshot.required || snapshot.taken < synced;
    let expected: BTreeMap<_, _> =
        expected.iter().filter(|(name, snapshot)| durable(snapshot) || found.contains_key(*name)).collect();
    if !expected.keys().copied().eq(found.keys()) {
        let names = |name: &Vec<u8>| name.escape_ascii().to_string();
        let (found, expected): (Vec<_>, Vec<_>) =
            (found.keys().map(names).collect(), expected.keys().copied().map(names).collect());
        return Err(violation!("snapshots {found:?} are found, expected {expected:?}"));
    }
    for ((name, snapshot), root) in expected.iter().zip(found.values()) {
        let name = name.escape_ascii();
        let guests = guests::find(fs, *root).map_err(|Violation(what)| violation!("in {name}: {what}"))?;
        if guests[thread] != snapshot.entries.guests {
            let (found, expected) = (guests[thread], snapshot.entries.guests);
            return Err(violation!("in {name}: {found:?}, not {expected:?}"));
        }
        let shown = look(fs, inside(fs, *root, thread)?)?;
        if !agrees(&snapshot.entries, &shown, synced) {
            let differs: Vec<_> = snapshot
                .entries
                .names
                .iter()
                .filter(|(name, contents)| {
                    shown.files.get(*name).is_none_or(|bytes| *bytes != fill(contents.seed, contents.len))
                })
                .map(|(name, contents)| format!("{}: {contents:?}", name.escape_ascii()))
                .collect();
            let names: Vec<_> = shown
                .files
                .iter()
                .map(|(name, bytes)| (name.escape_ascii().to_string(), bytes.len()))
                .collect();
            return Err(violation!(
                "{name} shows files {names:?}, of which these differ or are missing: {differs:?}"
            ));
        }
        let bytes = shown.patchwork.ok_or_else(|| violation!("{name} has lost the patchwork"))?;
        let settled = snapshot.patchwork.iter().rposition(|(at, _)| *at < synced).unwrap_or(0);
        let states: Vec<_> = snapshot.patchwork[settled..].iter().map(|(_, bytes)| bytes).collect();
        patchwork::explains(&states, &bytes)
            .map_err(|why| violation!("of the patchwork in {name}: {why}"))?;
    }
    Ok(())
}
