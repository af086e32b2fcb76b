//! Many threads at once, with everything in the background that a mount has in the background, then crashes.
//!
//! Each thread works in a directory of its own and notes after each call what its directory must hold. The log is one,
//! so after a crash each directory is what some prefix of its thread's calls made it, no shorter than what had been
//! acknowledged by then. What a file holds says itself whether it is right. Calls depend on the seed; their order
//! between threads does not, so a failure may need several runs to be seen again.
//!
//! Beside whole files each directory has one file that is changed in place in every way there is ([`patchwork`]), nodes,
//! and extended attributes of its own; and it takes snapshots of everything, changes and deletes them ([`forks`]), and
//! clones files, while the reaper runs. Something of each moves between the directories of all ([`guests`]).

mod forks;
mod guests;
mod patchwork;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use varve_device::Device;
use varve_fs::{
    Caller, FileKind, Filesystem, InodeId, OpenOptions, ROOT_INODE, RenameMode, StoreOptions, XattrMode,
};
use varve_sim::Rng;

use crate::call::{fill, write};
use crate::disk::{Cut, Disk};
use crate::overlap::Prepare;
use crate::session::{Opened, Setup, StepClock, Violation};
use crate::trial::{POOL_BYTES, guarded};
use crate::violation;
use forks::Snapshot;
use guests::Guests;
use patchwork::Patchwork;

/// Threads at work.
const THREADS: u64 = 4;
/// Calls a thread makes.
const CALLS: u64 = 90;
/// How long a flush takes.
const FLUSH_DURATIONS: [Duration; 3] =
    [Duration::ZERO, Duration::from_micros(100), Duration::from_micros(1_000)];
/// Names that are written over again and again.
const SLOTS: u64 = 6;
/// Trims beside them.
const TRIMS: u64 = 20;
/// Nodes and attributes that come and go.
const SMALL_THINGS: u64 = 4;

/// A file: how to make its bytes again, and whether they had to be in the log.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Contents {
    seed: u64,
    len: usize,
    /// Why the name leads to the whole file in every state that has the name so.
    whole: Option<Reason>,
    /// The tick at which all was written: a sync that began later, whoever's it was, brought all of it into the log.
    written: Option<u64>,
}

/// What brought all bytes of a file into the log before its name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Reason {
    Fsync,
    RenameOver,
    Sync,
    Fork,
}

type Names = BTreeMap<Vec<u8>, Contents>;

/// What is in the log as a whole or not at all: files by name, nodes with their device numbers, the directory's own
/// extended attributes.
#[derive(Clone)]
struct Entries {
    guests: Guests,
    names: Names,
    nodes: BTreeMap<Vec<u8>, u32>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    snapshots: BTreeMap<Vec<u8>, Arc<Snapshot>>,
}

impl Entries {
    fn of(thread: u64) -> Entries {
        Entries {
            guests: Guests::of(thread),
            names: BTreeMap::new(),
            nodes: BTreeMap::new(),
            attributes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
        }
    }
}

/// One thread's directory after one of its calls.
struct State {
    entries: Entries,
    /// What the patchwork holds.
    patchwork: Arc<Vec<u8>>,
    /// Whether all of it had to be in the log.
    settled: bool,
    /// Device events when this and everything before had been acknowledged.
    acknowledged: Option<usize>,
    /// Device events when the call was made: before it the state cannot be there.
    begun: usize,
    /// When the call had returned, in ticks that all threads share.
    returned: u64,
}

/// A sync of all, which makes durable what any thread's call had done that had returned before it began.
#[derive(Clone, Copy)]
struct Synced {
    /// The tick before it began.
    begun: u64,
    /// Device events when it had returned.
    events: usize,
}

/// What the threads did.
struct Worked {
    /// Of each thread.
    states: Vec<Vec<State>>,
    /// Of all.
    syncs: Vec<Synced>,
}

struct Worker<'a> {
    fs: &'a Filesystem,
    disk: &'a Disk,
    directory: InodeId,
    /// All threads' directories, and those of each that move.
    homes: &'a [(InodeId, InodeId)],
    thread: u64,
    entries: Entries,
    patchwork: Patchwork,
    states: Vec<State>,
    ticks: &'a AtomicU64,
    syncs: Vec<Synced>,
}

impl Worker<'_> {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn failed(&self, what: &str, error: varve_fs::FsError) -> Violation {
        violation!("thread {}: {what} fails: {error}", self.thread)
    }

    /// The directory holds these names now, not yet acknowledged.
    fn note(&mut self, begun: usize, change: impl FnOnce(&mut Names)) {
        change(&mut self.entries.names);
        self.push(begun, false);
    }

    /// The directory is now as `self` says, not yet acknowledged.
    fn push(&mut self, begun: usize, settled: bool) {
        let (entries, patchwork) = (self.entries.clone(), self.patchwork.bytes());
        let returned = self.tick();
        self.states.push(State { entries, patchwork, settled, acknowledged: None, begun, returned });
    }

    fn acknowledge(&mut self) {
        let events = self.disk.events();
        self.states.last_mut().expect("there is a first state").acknowledged = Some(events);
    }

    /// The snapshots in the directory are durable.
    fn require_snapshots(&mut self) {
        let snapshots = self.entries.snapshots.values_mut();
        snapshots.for_each(|snapshot| Arc::make_mut(snapshot).required = true);
    }

    fn work(&mut self, seed: u64) -> Result<(), Violation> {
        let mut rng = Rng::new(seed).fork(&format!("thread {}", self.thread));
        for number in 0..CALLS {
            let longest = [1_500, 12_000, 90_000, 1_400_000][rng.index(4)];
            let len = 1 + rng.below(longest) as usize;
            let contents = Contents { seed: self.thread << 32 | number, len, whole: None, written: None };
            let slot = format!("slot{}", rng.below(SLOTS)).into_bytes();
            match rng.below(22) {
                0..3 => self.replace(slot, contents, false)?,
                3..6 => self.replace(slot, contents, true)?,
                6 => {
                    let begun = self.disk.events();
                    if self.entries.names.contains_key(&slot) {
                        let result = self.fs.unlink(self.directory, &slot);
                        result.map_err(|error| self.failed("unlink", error))?;
                        self.note(begun, |names| {
                            names.remove(&slot);
                        });
                    }
                }
                7 => {
                    let begun = self.disk.events();
                    self.fs.fsync(self.directory).map_err(|error| self.failed("fsync", error))?;
                    self.require_snapshots();
                    self.push(begun, false);
                    self.acknowledge();
                }
                8 => {
                    let (begun, tick) = (self.disk.events(), self.tick());
                    self.fs.sync().map_err(|error| self.failed("sync", error))?;
                    self.syncs.push(Synced { begun: tick, events: self.disk.events() });
                    let names = &mut self.entries.names;
                    names.values_mut().for_each(|contents| contents.whole = Some(Reason::Sync));
                    self.require_snapshots();
                    self.push(begun, true);
                    self.acknowledge();
                }
                9..13 => self.patch(&mut rng, seed, &slot)?,
                13 => self.patch_sync()?,
                14 => self.small_thing(&mut rng, number)?,
                15..18 => self.fork(&mut rng, number)?,
                18 => self.clone_file(&mut rng, &slot)?,
                19 | 20 => self.move_guest(&mut rng)?,
                _ => self.fs.checkpoint().map_err(|error| self.failed("checkpoint", error))?,
            }
        }
        Ok(())
    }

    fn patch(&mut self, rng: &mut Rng, seed: u64, slot: &[u8]) -> Result<(), Violation> {
        let begun = self.disk.events();
        let other = match self.entries.names.get(slot) {
            Some(contents) => {
                let found = self.fs.lookup(self.directory, slot);
                let ino = found.map_err(|error| self.failed("lookup", error))?.ino;
                Some((ino, fill(contents.seed, contents.len)))
            }
            None => None,
        };
        let changed = self.patchwork.change(self.fs, rng, seed ^ self.thread << 32, other);
        changed.map_err(|(what, error)| self.failed(what, error))?;
        self.patchwork.compare(self.fs)?;
        self.push(begun, false);
        Ok(())
    }

    fn patch_sync(&mut self) -> Result<(), Violation> {
        let begun = self.disk.events();
        self.fs.fsync(self.patchwork.ino).map_err(|error| self.failed("fsync", error))?;
        self.push(begun, true);
        self.acknowledge();
        Ok(())
    }

    /// Makes or removes a node, or sets or removes an attribute of the directory.
    fn small_thing(&mut self, rng: &mut Rng, number: u64) -> Result<(), Violation> {
        let begun = self.disk.events();
        let which = rng.below(SMALL_THINGS);
        let (node, attribute) = (format!("node{which}").into_bytes(), format!("user.{which}").into_bytes());
        if rng.below(2) == 0 {
            let result = if self.entries.nodes.remove(&node).is_some() {
                self.fs.unlink(self.directory, &node)
            } else {
                self.entries.nodes.insert(node.clone(), number as u32);
                let made = self.fs.mknod(
                    Caller::ROOT,
                    self.directory,
                    &node,
                    FileKind::CharDevice,
                    0o600,
                    number as u32,
                );
                made.map(drop)
            };
            result.map_err(|error| self.failed("making or removing a node", error))?;
        } else {
            let result = if self.entries.attributes.remove(&attribute).is_some() {
                self.fs.removexattr(self.directory, &attribute)
            } else {
                // In the inode's leaf, or beside it.
                let value = fill(number, [30, 3_000, 60_000][rng.index(3)]);
                self.entries.attributes.insert(attribute.clone(), value.clone());
                self.fs.setxattr(self.directory, &attribute, &value, XattrMode::Set)
            };
            result.map_err(|error| self.failed("setting or removing an attribute", error))?;
        }
        self.push(begun, false);
        Ok(())
    }

    /// What an editor does: a new file, perhaps synced, then a rename over the old one.
    fn replace(&mut self, slot: Vec<u8>, contents: Contents, sync: bool) -> Result<(), Violation> {
        let (new, caller) = (b"new".to_vec(), Caller::ROOT);
        let begun = self.disk.events();
        let created = self.fs.create(caller, self.directory, &new, 0o644);
        let ino = created.map_err(|error| self.failed("create", error))?.ino;
        self.note(begun, |names| {
            names.insert(new.clone(), contents);
        });
        let bytes = fill(contents.seed, contents.len);
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + (128 << 10));
            let written = write(self.fs, caller, ino, at as u64, &bytes[at..end]);
            at += written.map_err(|error| self.failed("write", error))?;
        }
        let written = self.tick();
        self.note(begun, |names| names.get_mut(&new).expect("made above").written = Some(written));
        if sync {
            self.fs.fsync(ino).map_err(|error| self.failed("fsync", error))?;
            self.note(begun, |names| names.get_mut(&new).expect("made above").whole = Some(Reason::Fsync));
            self.acknowledge();
        }
        let begun = self.disk.events();
        let over = self.entries.names.contains_key(&slot);
        let renamed = self.fs.rename(self.directory, &new, self.directory, &slot, RenameMode::Replace);
        renamed.map_err(|error| self.failed("rename", error))?;
        self.note(begun, |names| {
            let mut contents = names.remove(&new).expect("made above");
            // Over an existing file the data comes first.
            contents.whole = contents.whole.or(over.then_some(Reason::RenameOver));
            names.insert(slot, contents);
        });
        Ok(())
    }
}

/// Runs the threads of `seed` on `disk`, which holds an empty filesystem, then judges `crashes` images. Gives the
/// number of crashes survived; a broken promise comes with the number of its crash. Threads call `prepare` first.
pub fn run(
    disk: &Disk,
    seed: u64,
    crashes: u64,
    prepare: Prepare<'_>,
) -> Result<u64, (Option<u64>, Violation)> {
    let worked = guarded(|| work(disk, seed, prepare)).map_err(|violation| (None, violation))?;
    let mut rng = Rng::new(seed).fork("crashes");
    let mut cuts: Vec<Cut> = (0..crashes).map(|_| Cut::seeded(disk, 0, &mut rng)).collect();
    cuts.sort_by_key(|cut| cut.events);
    for (number, cut) in cuts.iter().enumerate() {
        guarded(|| judge(disk, cut, &worked, &mut rng))
            .map_err(|Violation(what)| (Some(number as u64), violation!("crash at {cut}: {what}")))?;
    }
    Ok(crashes)
}

fn work(disk: &Disk, seed: u64, prepare: Prepare<'_>) -> Result<Worked, Violation> {
    let mut rng = Rng::new(seed);
    let options = OpenOptions {
        store: StoreOptions { cache_bytes: 8 << 20, keyframe_entries: 1, ..StoreOptions::default() },
        dirty_bytes_max: [256 << 10, 4 << 20][rng.index(2)],
        clock: StepClock::new(1_000_002_000),
        on_data_logged: None,
    };
    // Batches are written, and their flushes begun, while the flush of another is under way.
    disk.set_flush_duration(FLUSH_DURATIONS[rng.index(3)]);
    let device: Arc<dyn Device> = disk.device();
    let (fs, _) = Filesystem::open(vec![device], options).map_err(|e| violation!("open fails: {e}"))?;
    let (mut directories, mut homes) = (Vec::new(), Vec::new());
    for number in 0..THREADS {
        let name = format!("thread{number}").into_bytes();
        let made = fs.mkdir(Caller::ROOT, ROOT_INODE, &name, 0o755);
        let directory = made.map_err(|error| violation!("mkdir fails: {error}"))?.ino;
        homes.push((directory, guests::make(&fs, directory, number)?));
        let made = fs.create(Caller::ROOT, directory, patchwork::NAME, 0o644);
        directories.push((directory, made.map_err(|error| violation!("create fails: {error}"))?.ino));
    }
    fs.sync().map_err(|error| violation!("sync fails: {error}"))?;
    let (fs, begun) = (&fs, disk.events());
    let (directories, homes) = (&directories, &homes);
    let ticks = &AtomicU64::new(0);
    let worked = thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .zip(directories)
            .map(|(thread, (directory, patched))| {
                let (entries, patchwork) = (Entries::of(thread), Patchwork::new(*patched));
                let directory = *directory;
                let (states, syncs) = (Vec::new(), Vec::new());
                let mut worker =
                    Worker { fs, disk, directory, homes, thread, entries, patchwork, states, ticks, syncs };
                worker.push(begun, true);
                worker.acknowledge();
                scope.spawn(move || {
                    guarded(|| {
                        prepare();
                        worker.work(seed)
                    })
                    .map(|()| (worker.states, worker.syncs))
                })
            })
            .collect();
        guarded(|| trim(fs, seed))?;
        let joined = running.into_iter().map(|thread| thread.join().expect("its panics are caught"));
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let (states, syncs): (Vec<_>, Vec<_>) = worked.into_iter().unzip();
    let worked = Worked { states, syncs: syncs.into_iter().flatten().collect() };
    fs.maintain().map_err(|error| violation!("maintain fails: {error}"))?;
    let places =
        guests::find(fs, ROOT_INODE).map_err(|Violation(what)| violation!("while running: {what}"))?;
    for (thread, (states, (directory, _))) in worked.states.iter().zip(directories).enumerate() {
        let last = states.last().expect("there is a first state");
        if last.entries.guests != places[thread] {
            let (found, expected) = (places[thread], last.entries.guests);
            return Err(violation!("thread {thread}, while running: {found:?}, not {expected:?}"));
        }
        let found = look(fs, *directory)?;
        forks::agree(fs, thread, &last.entries.snapshots, &found.snapshots, u64::MAX)
            .map_err(|Violation(what)| violation!("thread {thread}, while running: {what}"))?;
    }
    // A check compares what it reads one after the other: nothing may be left that is written back meanwhile.
    fs.sync().map_err(|error| violation!("sync fails: {error}"))?;
    let report = fs.check(true).map_err(|error| violation!("check fails: {error}"))?;
    match report.problems.is_empty() {
        true => Ok(worked),
        false => Err(violation!("check of the running filesystem finds:\n  {}", report.describe())),
    }
}

/// Trims parts of the pool beside the threads at work, in half of the workloads.
fn trim(fs: &Filesystem, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed).fork("trims");
    let trims = rng.below(2) * TRIMS;
    for _ in 0..trims {
        let (start, len) = (rng.below(2) * rng.below(POOL_BYTES), 1 + rng.below(POOL_BYTES / 2));
        fs.trim(start..start + len, rng.below(1 << 16), &mut |_| true)
            .map_err(|error| violation!("trim fails: {error}"))?;
    }
    Ok(())
}

fn judge(disk: &Disk, cut: &Cut, worked: &Worked, rng: &mut Rng) -> Result<(), Violation> {
    let Worked { states, syncs } = worked;
    // Whoever it was who synced: what had returned before is there.
    let synced = syncs.iter().filter(|sync| sync.events <= cut.events).map(|sync| sync.begun).max();
    let first = states.first().and_then(|states| states.first()).map_or(0, |state| state.begun);
    if cut.events < first {
        return Ok(());
    }
    let clock = StepClock::new(1 << 32);
    let opened = Opened::open(&disk.cut(cut, rng), &Setup::default(), &clock, false)
        .map_err(|error| violation!("the image does not open: {error}"))?;
    let report = opened.fs.check(true).map_err(|error| violation!("check after recovery fails: {error}"))?;
    if !report.problems.is_empty() {
        return Err(violation!("after recovery check finds:\n  {}", report.describe()));
    }
    let places = guests::find(&opened.fs, ROOT_INODE)?;
    for (thread, states) in states.iter().enumerate() {
        let name = format!("thread{thread}").into_bytes();
        let directory =
            opened.fs.lookup(ROOT_INODE, &name).map_err(|e| violation!("thread{thread} is lost: {e}"))?;
        let promised = Promised { events: cut.events, synced: synced.unwrap_or(0) };
        judge_directory(&opened.fs, thread, directory.ino, places[thread], states, promised)
            .map_err(|Violation(what)| violation!("thread {thread}: {what}"))?;
    }
    Ok(())
}

/// What is found in a directory.
#[derive(Default)]
struct Found {
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    nodes: BTreeMap<Vec<u8>, u32>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    patchwork: Option<Vec<u8>>,
    /// Roots of snapshots.
    snapshots: BTreeMap<Vec<u8>, InodeId>,
}

fn look(fs: &Filesystem, directory: InodeId) -> Result<Found, Violation> {
    let mut found = Found::default();
    let mut entries = Vec::new();
    fs.readdir(directory, 0, &mut |entry| {
        entries.push(entry);
        true
    })
    .map_err(|error| violation!("readdir fails: {error}"))?;
    let of_thread = |name: &[u8]| name != b"." && name != b".." && !guests::is_one(name);
    for entry in entries.into_iter().filter(|entry| of_thread(&entry.name)) {
        let attr = fs.getattr(entry.ino).map_err(|error| violation!("getattr fails: {error}"))?;
        if entry.kind == FileKind::Directory {
            found.snapshots.insert(entry.name, entry.ino);
            continue;
        }
        if entry.kind != FileKind::File {
            found.nodes.insert(entry.name, attr.rdev);
            continue;
        }
        let bytes = fs.read(entry.ino, 0, attr.size as usize);
        let bytes = bytes.map_err(|error| violation!("read fails: {error}"))?;
        if entry.name == patchwork::NAME {
            found.patchwork = Some(bytes);
        } else {
            found.files.insert(entry.name, bytes);
        }
    }
    for name in fs.listxattr(directory).map_err(|error| violation!("listxattr fails: {error}"))? {
        let value = fs.getxattr(directory, &name).map_err(|error| violation!("getxattr fails: {error}"))?;
        found.attributes.insert(name, value);
    }
    Ok(found)
}

/// What must be there after a crash.
#[derive(Clone, Copy)]
struct Promised {
    /// Device events at the crash: what had been acknowledged by then.
    events: usize,
    /// The tick before which all that had returned was synced by somebody.
    synced: u64,
}

fn judge_directory(
    fs: &Filesystem,
    thread: usize,
    directory: InodeId,
    guests: Guests,
    states: &[State],
    Promised { events, synced }: Promised,
) -> Result<(), Violation> {
    let found = look(fs, directory)?;
    let by_others = |state: &State| state.returned < synced;
    let acknowledged = |state: &State| state.acknowledged.is_some_and(|at| at <= events) || by_others(state);
    let least = states.iter().rposition(acknowledged).unwrap_or(0);
    let end = states.iter().position(|state| state.begun > events).unwrap_or(states.len());
    let settled = states
        .iter()
        .rposition(|state| (state.settled && acknowledged(state)) || by_others(state))
        .unwrap_or(0);
    let patches: Vec<_> = states[settled..end].iter().map(|state| &state.patchwork).collect();
    let bytes = found.patchwork.as_ref().ok_or_else(|| violation!("the patchwork is lost"))?;
    patchwork::explains(&patches, bytes).map_err(|why| {
        violation!(
            "the patchwork, synced with call {settled} of {}, calls to {end} possible: {why}",
            states.len()
        )
    })?;
    let mut of_snapshots = None;
    let moved = |state: &&State| state.entries.guests == guests;
    for state in
        states[least..end].iter().filter(moved).filter(|state| agrees(&state.entries, &found, synced))
    {
        match forks::agree(fs, thread, &state.entries.snapshots, &found.snapshots, synced) {
            Ok(()) => return Ok(()),
            Err(why) => of_snapshots = Some(why),
        }
    }
    if let Some(Violation(why)) = of_snapshots {
        return Err(violation!("names, nodes and attributes are right, but {why}"));
    }
    let names: Vec<String> = found
        .files
        .iter()
        .map(|(name, bytes)| format!("{} ({} bytes)", name.escape_ascii(), bytes.len()))
        .collect();
    let entries = &states[least].entries;
    let wanted: Vec<String> =
        entries.names.iter().map(|(name, c)| format!("{} {c:?}", name.escape_ascii())).collect();
    let keys = |attributes: &BTreeMap<Vec<u8>, Vec<u8>>| attributes.keys().cloned().collect::<Vec<_>>();
    Err(violation!(
        "the directory holds {names:?}, nodes {:?}, attributes {:?}, and {guests:?}, which no state from the acknowledged one (call \
         {least} of {}: {wanted:?}, nodes {:?}, attributes {:?}) to the {} later possible ones explains",
        found.nodes,
        keys(&found.attributes),
        states.len(),
        entries.nodes,
        keys(&entries.attributes),
        end.saturating_sub(least + 1)
    ))
}

/// Whether a directory holds these entries, after somebody has synced all that had returned before tick `synced`.
fn agrees(entries: &Entries, found: &Found, synced: u64) -> bool {
    found.snapshots.keys().all(|name| entries.snapshots.contains_key(name))
        && entries.nodes == found.nodes
        && entries.attributes == found.attributes
        && entries.names.len() == found.files.len()
        && entries.names.iter().all(|(name, contents)| {
            let Some(bytes) = found.files.get(name) else { return false };
            let right = fill(contents.seed, contents.len);
            if contents.whole.is_some() || contents.written.is_some_and(|at| at < synced) {
                return *bytes == right;
            }
            // Written from its front on, and a size comes no earlier than the bytes: never zeros, not even in part.
            right.starts_with(bytes)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what may be found of a file that threads wrote is a prefix, and all of it after a sync that began when it had been
    // written. Method: one file by hand, as it is found in several ways, before and after such a sync.
    #[test]
    fn judge_takes_prefixes_and_after_a_sync_the_whole() {
        let (seed, len) = (7, 10_000);
        let mut entries = Entries::of(0);
        entries.names.insert(b"f".to_vec(), Contents { seed, len, whole: None, written: Some(5) });
        let whole = fill(seed, len);
        let agrees_with = |bytes: &[u8], synced| {
            let files = BTreeMap::from([(b"f".to_vec(), bytes.to_vec())]);
            agrees(&entries, &Found { files, ..Found::default() }, synced)
        };
        for (bytes, before, after) in [
            (whole.clone(), true, true),
            (whole[..5_000].to_vec(), true, false),
            (Vec::new(), true, false),
            // A size that is there before its bytes.
            ([&whole[..4_096], &[0; 4_096]].concat(), false, false),
            (vec![0; len], false, false),
            ([&whole[..], &[0]].concat(), false, false),
        ] {
            assert_eq!((agrees_with(&bytes, 5), agrees_with(&bytes, 6)), (before, after), "{}", bytes.len());
        }
    }
}
