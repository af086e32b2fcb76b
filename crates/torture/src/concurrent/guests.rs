//! Things that move between the directories of all threads: of each thread a file and a directory, which it alone moves, into any
//! thread's directory or into such a directory of any thread, so that two may be moved into each other at the same time.
//!
//! After a crash, and in each snapshot, each is in exactly one place; where its thread had it.

use std::collections::BTreeMap;

use varve_fs::{Caller, FileKind, Filesystem, FsError, InodeId, RenameMode};
use varve_sim::Rng;

use super::{THREADS, Worker};
use crate::call::fill;
use crate::session::Violation;
use crate::violation;

/// Bytes of a file that moves.
const BYTES: usize = 5_000;

/// A directory that things are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A thread's.
    Home(u64),
    /// One that moves, of a thread.
    Moving(u64),
}

/// Where those of a thread are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guests {
    file: Place,
    directory: Place,
}

impl Guests {
    /// Where they begin.
    pub fn of(thread: u64) -> Guests {
        Guests { file: Place::Home(thread), directory: Place::Home(thread) }
    }
}

fn file_name(thread: u64) -> Vec<u8> {
    format!("guest{thread}").into_bytes()
}

fn directory_name(thread: u64) -> Vec<u8> {
    format!("guests{thread}").into_bytes()
}

/// Whether a name in a directory is of something that moves.
pub fn is_one(name: &[u8]) -> bool {
    name.starts_with(b"guest")
}

/// Makes those of a thread in its directory. Gives the number of the directory that will move.
pub fn make(fs: &Filesystem, home: InodeId, thread: u64) -> Result<InodeId, Violation> {
    let failed = |error: FsError| violation!("making what moves fails: {error}");
    let file = fs.create(Caller::ROOT, home, &file_name(thread), 0o644).map_err(failed)?.ino;
    let bytes = fill(thread, BYTES);
    let written = fs.write(Caller::ROOT, file, 0, &bytes).map_err(failed)?;
    if written != bytes.len() {
        return Err(violation!("{written} bytes of {BYTES} are written"));
    }
    Ok(fs.mkdir(Caller::ROOT, home, &directory_name(thread), 0o755).map_err(failed)?.ino)
}

impl Worker<'_> {
    /// Moves one of its own.
    pub(super) fn move_guest(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let begun = self.disk.events();
        let which = rng.below(THREADS);
        let to = if rng.below(2) == 0 { Place::Home(which) } else { Place::Moving(which) };
        let is_file = rng.below(2) == 0;
        let guests = self.entries.guests;
        let (name, from) = match is_file {
            true => (file_name(self.thread), guests.file),
            false => (directory_name(self.thread), guests.directory),
        };
        if from == to {
            return Ok(());
        }
        let (old, new) = (self.inode(from), self.inode(to));
        match self.fs.rename(old, &name, new, &name, RenameMode::Replace) {
            Ok(()) if to == Place::Moving(self.thread) && !is_file => {
                return Err(violation!("thread {}: a directory is moved into itself", self.thread));
            }
            Ok(()) => {}
            // It leads through this one.
            Err(error) if error.errno() == 22 && !is_file && matches!(to, Place::Moving(_)) => return Ok(()),
            Err(error) => return Err(self.failed("a move", error)),
        }
        let guests = &mut self.entries.guests;
        *(if is_file { &mut guests.file } else { &mut guests.directory }) = to;
        self.push(begun, false);
        Ok(())
    }

    fn inode(&self, place: Place) -> InodeId {
        match place {
            Place::Home(thread) => self.homes[thread as usize].0,
            Place::Moving(thread) => self.homes[thread as usize].1,
        }
    }
}

/// Where all are below `root`, by thread. Each must be there, once.
pub fn find(fs: &Filesystem, root: InodeId) -> Result<Vec<Guests>, Violation> {
    let mut found: BTreeMap<Vec<u8>, (Place, InodeId)> = BTreeMap::new();
    let mut to_look_at = Vec::new();
    for thread in 0..THREADS {
        let home = fs.lookup(root, format!("thread{thread}").as_bytes());
        let home = home.map_err(|error| violation!("thread{thread} is lost: {error}"))?;
        to_look_at.push((Place::Home(thread), home.ino));
    }
    while let Some((place, directory)) = to_look_at.pop() {
        let mut entries = Vec::new();
        fs.readdir(directory, 0, &mut |entry| {
            entries.push(entry);
            true
        })
        .map_err(|error| violation!("readdir fails: {error}"))?;
        for entry in entries.into_iter().filter(|entry| is_one(&entry.name)) {
            if entry.kind == FileKind::Directory {
                let above = fs.lookup(entry.ino, b"..").map_err(|e| violation!("lookup of .. fails: {e}"))?;
                if above.ino != directory {
                    return Err(violation!("{} leads up to another directory", entry.name.escape_ascii()));
                }
                let thread = (0..THREADS).find(|thread| directory_name(*thread) == entry.name);
                let thread = thread.ok_or_else(|| violation!("{}?", entry.name.escape_ascii()))?;
                to_look_at.push((Place::Moving(thread), entry.ino));
            }
            if let Some((other, _)) = found.insert(entry.name.clone(), (place, entry.ino)) {
                let name = entry.name.escape_ascii();
                return Err(violation!("{name} is in two places: {other:?} and {place:?}"));
            }
        }
    }
    let place = |name: Vec<u8>| {
        let lost = || violation!("{} is nowhere", name.escape_ascii());
        found.get(&name).copied().ok_or_else(lost)
    };
    (0..THREADS)
        .map(|thread| {
            let ((file, ino), (directory, _)) = (place(file_name(thread))?, place(directory_name(thread))?);
            let bytes = fs.read(ino, 0, BYTES + 1).map_err(|error| violation!("read fails: {error}"))?;
            match bytes == fill(thread, BYTES) {
                true => Ok(Guests { file, directory }),
                false => Err(violation!("guest{thread} holds something else")),
            }
        })
        .collect()
}
