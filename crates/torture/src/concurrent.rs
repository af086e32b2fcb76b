//! Many threads at once, with everything in the background that a mount has in the background, then crashes.
//!
//! Each thread works in a directory of its own and notes after each call what its directory must hold. The log is one,
//! so after a crash each directory is what some prefix of its thread's calls made it, no shorter than what had been
//! acknowledged by then. What a file holds says itself whether it is right. Calls depend on the seed; their order
//! between threads does not, so a failure may need several runs to be seen again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use varve_device::Device;
use varve_fs::{Caller, Filesystem, InodeId, OpenOptions, ROOT_INODE, RenameMode, StoreOptions};
use varve_sim::Rng;

use crate::call::fill;
use crate::disk::{Cut, Disk};
use crate::session::{Opened, Setup, StepClock, Violation};
use crate::violation;

/// Threads at work.
const THREADS: u64 = 4;
/// Calls a thread makes.
const CALLS: u64 = 60;
/// Names that are written over again and again.
const SLOTS: u64 = 6;

/// A file: how to make its bytes again, and whether they had to be in the log.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Contents {
    seed: u64,
    len: usize,
    /// Why the name leads to the whole file in every state that has the name so.
    whole: Option<Reason>,
}

/// What brought all bytes of a file into the log before its name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Reason {
    Fsync,
    RenameOver,
    Sync,
}

type Names = BTreeMap<Vec<u8>, Contents>;

/// One thread's directory after one of its calls.
struct State {
    names: Names,
    /// Device events when this and everything before had been acknowledged.
    acknowledged: Option<usize>,
    /// Device events when the call was made: before it the state cannot be there.
    begun: usize,
}

struct Worker<'a> {
    fs: &'a Filesystem,
    disk: &'a Disk,
    directory: InodeId,
    thread: u64,
    names: Names,
    states: Vec<State>,
}

impl Worker<'_> {
    fn failed(&self, what: &str, error: varve_fs::FsError) -> Violation {
        violation!("thread {}: {what} fails: {error}", self.thread)
    }

    /// The directory is now `names`, not yet acknowledged.
    fn note(&mut self, begun: usize, change: impl FnOnce(&mut Names)) {
        change(&mut self.names);
        self.states.push(State { names: self.names.clone(), acknowledged: None, begun });
    }

    fn acknowledge(&mut self) {
        let events = self.disk.events();
        self.states.last_mut().expect("there is a first state").acknowledged = Some(events);
    }

    fn work(&mut self, seed: u64) -> Result<(), Violation> {
        let mut rng = Rng::new(seed).fork(&format!("thread {}", self.thread));
        for number in 0..CALLS {
            let longest = [1_500, 12_000, 90_000, 1_400_000][rng.index(4)];
            let len = 1 + rng.below(longest) as usize;
            let contents = Contents { seed: self.thread << 32 | number, len, whole: None };
            let slot = format!("slot{}", rng.below(SLOTS)).into_bytes();
            match rng.below(10) {
                0..3 => self.replace(slot, contents, false)?,
                3..6 => self.replace(slot, contents, true)?,
                6 => {
                    let begun = self.disk.events();
                    if self.names.contains_key(&slot) {
                        let result = self.fs.unlink(self.directory, &slot);
                        result.map_err(|error| self.failed("unlink", error))?;
                        self.note(begun, |names| {
                            names.remove(&slot);
                        });
                    }
                }
                7 => {
                    self.fs.fsync(self.directory).map_err(|error| self.failed("fsync", error))?;
                    self.acknowledge();
                }
                8 => {
                    let begun = self.disk.events();
                    self.fs.sync().map_err(|error| self.failed("sync", error))?;
                    self.note(begun, |names| {
                        names.values_mut().for_each(|contents| contents.whole = Some(Reason::Sync))
                    });
                    self.acknowledge();
                }
                _ => self.fs.checkpoint().map_err(|error| self.failed("checkpoint", error))?,
            }
        }
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
            let end = bytes.len().min(at + 100_000);
            let written = self.fs.write(caller, ino, at as u64, &bytes[at..end]);
            at += written.map_err(|error| self.failed("write", error))?;
        }
        if sync {
            self.fs.fsync(ino).map_err(|error| self.failed("fsync", error))?;
            self.note(begun, |names| names.get_mut(&new).expect("made above").whole = Some(Reason::Fsync));
            self.acknowledge();
        }
        let begun = self.disk.events();
        let over = self.names.contains_key(&slot);
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
/// number of crashes survived; a broken promise comes with the number of its crash.
pub fn run(disk: &Disk, seed: u64, crashes: u64) -> Result<u64, (Option<u64>, Violation)> {
    let states = work(disk, seed).map_err(|violation| (None, violation))?;
    let mut rng = Rng::new(seed).fork("crashes");
    let mut cuts: Vec<Cut> = (0..crashes).map(|_| Cut::seeded(disk, 0, &mut rng)).collect();
    cuts.sort_by_key(|cut| cut.events);
    for (number, cut) in cuts.iter().enumerate() {
        judge(disk, cut, &states, &mut rng)
            .map_err(|Violation(what)| (Some(number as u64), violation!("crash at {cut}: {what}")))?;
    }
    Ok(crashes)
}

fn work(disk: &Disk, seed: u64) -> Result<Vec<Vec<State>>, Violation> {
    let mut rng = Rng::new(seed);
    let options = OpenOptions {
        store: StoreOptions { read_only: false, cache_bytes: 8 << 20, background: true },
        dirty_bytes_max: [256 << 10, 4 << 20][rng.index(2)],
        clock: StepClock::new(1_000_002_000),
        on_data_logged: None,
    };
    let device: Arc<dyn Device> = disk.device();
    let (fs, _) = Filesystem::open(vec![device], options).map_err(|e| violation!("open fails: {e}"))?;
    let mut directories = Vec::new();
    for number in 0..THREADS {
        let name = format!("thread{number}").into_bytes();
        let made = fs.mkdir(Caller::ROOT, ROOT_INODE, &name, 0o755);
        directories.push(made.map_err(|error| violation!("mkdir fails: {error}"))?.ino);
    }
    fs.sync().map_err(|error| violation!("sync fails: {error}"))?;
    let (fs, begun) = (&fs, disk.events());
    let states = thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS)
            .zip(&directories)
            .map(|(thread, directory)| {
                let first = State { names: Names::new(), acknowledged: Some(begun), begun };
                let (names, states) = (Names::new(), vec![first]);
                let mut worker = Worker { fs, disk, directory: *directory, thread, names, states };
                scope.spawn(move || worker.work(seed).map(|()| worker.states))
            })
            .collect();
        let joined = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Violation("a thread panicked, see above".into())))
        });
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let report = fs.check(true).map_err(|error| violation!("check fails: {error}"))?;
    match report.problems.is_empty() {
        true => Ok(states),
        false => Err(violation!("check of the running filesystem finds:\n  {}", report.describe())),
    }
}

fn judge(disk: &Disk, cut: &Cut, states: &[Vec<State>], rng: &mut Rng) -> Result<(), Violation> {
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
    for (thread, states) in states.iter().enumerate() {
        let name = format!("thread{thread}").into_bytes();
        let directory =
            opened.fs.lookup(ROOT_INODE, &name).map_err(|e| violation!("thread{thread} is lost: {e}"))?;
        judge_directory(&opened.fs, directory.ino, states, cut.events)
            .map_err(|Violation(what)| violation!("thread {thread}: {what}"))?;
    }
    Ok(())
}

fn judge_directory(
    fs: &Filesystem,
    directory: InodeId,
    states: &[State],
    events: usize,
) -> Result<(), Violation> {
    let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut entries = Vec::new();
    fs.readdir(directory, 0, &mut |entry| {
        entries.push(entry);
        true
    })
    .map_err(|error| violation!("readdir fails: {error}"))?;
    for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
        let size = fs.getattr(entry.ino).map_err(|error| violation!("getattr fails: {error}"))?.size;
        let bytes =
            fs.read(entry.ino, 0, size as usize).map_err(|error| violation!("read fails: {error}"))?;
        found.insert(entry.name, bytes);
    }
    let least =
        states.iter().rposition(|state| state.acknowledged.is_some_and(|at| at <= events)).unwrap_or(0);
    let possible = states[least..].iter().take_while(|state| state.begun <= events);
    if possible.clone().any(|state| agrees(&state.names, &found)) {
        return Ok(());
    }
    let names: Vec<String> = found
        .iter()
        .map(|(name, bytes)| format!("{} ({} bytes)", name.escape_ascii(), bytes.len()))
        .collect();
    let wanted: Vec<String> =
        states[least].names.iter().map(|(name, c)| format!("{} {c:?}", name.escape_ascii())).collect();
    Err(violation!(
        "the directory holds {names:?}, which no state from the acknowledged one (call {least} of {}: {wanted:?}) to the \
         {} later possible ones explains",
        states.len(),
        possible.count().saturating_sub(1)
    ))
}

fn agrees(names: &Names, found: &BTreeMap<Vec<u8>, Vec<u8>>) -> bool {
    names.len() == found.len()
        && names.iter().all(|(name, contents)| {
            let Some(bytes) = found.get(name) else { return false };
            let right = fill(contents.seed, contents.len);
            if contents.whole.is_some() {
                return *bytes == right;
            }
            // Each page is there or not yet.
            bytes.len() <= right.len()
                && bytes.chunks(4096).zip(right.chunks(4096)).all(|(is, should)| {
                    *is == should[..is.len().min(should.len())] || is.iter().all(|byte| *byte == 0)
                })
        })
}
