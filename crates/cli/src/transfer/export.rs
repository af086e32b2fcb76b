//! `varve export`: a tree of a pool goes to a directory of this system, through the library, without a mount.
//!
//! The pool is opened read-only: nothing in it changes, and one that was not closed is recovered in memory.
//!
//! **What is equal is left alone**, so that an interrupted export that is run again finishes: a file is taken to be there
//! when kind, size and modification time, as far as the target keeps it, are those of the pool. That is safe because times are set
//! last, many files at a time, after the target's filesystem has been synced ([`super::target`]). Attributes are mended also of what is
//! equal. What differs is copied anew and takes the place of what is there when it is whole, and not before: what cannot be read
//! from the pool leaves the older copy alone. What the pool does not have stays.
//!
//! **No link is followed** below the target, not by what comes later either (times, flags, second names): whoever owns a directory
//! there could put one in the place of what was made. Nor is owner, bits or attributes given to a name: they are given to what is open, files
//! have them before they have their name.
//!
//! **A name is nobody else's**: what was just exported is not replaced because its target takes another name for it.
//!
//! **Flags come last** (chattr), as in an import ([`super::import`]): of a file after its times, of a directory after all that
//! is in it, of a file with several names in the end. A target that does not take them, or not from this user, goes without.
//!
//! Only the superuser can give files to others, and make device nodes; for anybody else owners are left out, and nodes
//! are told one by one.

mod attributes;
mod file;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use anyhow::{Result, anyhow};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use varve_format::record::subvolume::LOCAL_INODE_BITS;
use varve_fs::{Attr, FileFlags, FileKind, Filesystem, InodeId, Timestamp};

use super::held::{Held, hold};
use super::host::{self, Flagged, HostStat};
use super::place::{PoolPath, find_directory};
use super::tally::{Tally, Trouble};
use super::target::{Filesystems, KeptTimes, place, place_directory, sync_file};
use super::{Stop, finish};
use crate::args::ExportArgs;
use crate::names::{Shown, in_words};
use crate::{Outcome, pool};

/// Files whose times wait for the next sync of the target, at most.
const WAITING_FILES_MAX: usize = 1 << 16;
/// Bytes of their contents.
const WAITING_BYTES_MAX: u64 = 4 << 30;
/// Longest path that calls take (PATH_MAX less the NUL).
const PATH_BYTES_MAX: usize = 4095;

type Step<T> = std::result::Result<T, Trouble>;

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<Outcome> {
    let place = PoolPath::parse(&args.place)?;
    let shown = args.dir.shown();
    host::raise_open_files_limit();
    let (filesystem, recovery) = pool::open_read_only(&place.pool, "export")?;
    let pool_file = std::fs::metadata(&place.pool).map(|meta| (meta.dev(), meta.ino())).ok();
    if recovery.replay_ended_by.is_none() {
        pool::tell_recovery(&place.pool, "export", &recovery);
    }
    let from = find_directory(&filesystem, &place)?;
    host::make_target(&args.dir).map_err(|error| {
        anyhow!("cannot make the directory {shown}: {}", host::why_not_made(&args.dir, &error))
    })?;
    let root = host::open_target(&args.dir, rustix::process::geteuid().is_root())
        .map_err(|error| anyhow!("cannot open {shown}: {}", in_words(&error)))?;
    let stop = Stop::on_signals()?;
    let tally = Tally::start("export", place.to_string(), args.dir.shown());
    if place.names.is_empty()
        && let Ok(statfs) = filesystem.statfs()
    {
        tally.progress.expect(statfs.files);
    }
    let mut export = Export {
        pool_file,
        one_subvolume: args.one_file_system,
        waiting_time_max: args.commit_every,
        stop: stop.clone(),
        ..Export::new(&filesystem, &args.dir, root, tally)
    };
    if recovery.replay_ended_by.is_some() {
        // No file is missing to who does not know of it.
        let error = "what was done last before the pool was cut off cannot be read, in its log or a superblock, as it says above; it is not in \
                     this copy, or may not be";
        export.tally.problem(&place.pool, error.to_owned());
    }
    let copied = export.begin().and_then(|()| export.tree(from));
    export.tally.progress.note("making it durable");
    let synced = export.finish_waiting();
    for (path, flags, uid) in std::mem::take(&mut export.flags_last) {
        export.flag_at(&path, flags, uid);
    }
    for (path, mode) in std::mem::take(&mut export.bits_last) {
        export.bits_at(&path, mode);
    }
    // The times, flags and bits that have just been given, too.
    let synced = synced.and_then(|()| export.sync());
    let result = match copied.and(synced) {
        Ok(()) | Err(Trouble::Stopped) => Ok(()),
        Err(Trouble::Fatal(error)) => Err(error),
        Err(Trouble::Entry(error)) => Err(anyhow!("{shown}: {error}")),
    };
    if export.owners_left_out {
        export.tally.progress.say("varve export: owners were not kept: only root can give files to others");
    }
    let summary = export.tally.end(result.is_ok() && !stop.asked());
    finish("export", "exported", summary, result, &stop, args.json)
}

/// A directory that is being copied.
struct Level {
    from: Attr,
    target: OwnedFd,
    entries: IntoIter<(Vec<u8>, InodeId)>,
    /// Made by this export: nothing is in it but what this export has put there.
    fresh: bool,
    /// Of another: the inodes of the target that names of it lead to by now, once they have been dealt with.
    copies: RefCell<HashSet<(u64, u64)>>,
    /// The target's flags before something in it was changed, once something is.
    had: Cell<Option<FileFlags>>,
}

impl Level {
    fn of(from: Attr, target: OwnedFd, fresh: bool, entries: Vec<(Vec<u8>, InodeId)>) -> Level {
        let (copies, had) = (RefCell::default(), Cell::default());
        Level { from, target, entries: entries.into_iter(), fresh, copies, had }
    }

    /// One of its names leads there, and shall go on to.
    fn keep(&self, id: (u64, u64)) {
        if !self.fresh {
            self.copies.borrow_mut().insert(id);
        }
    }

    /// Refuses what is `existing` in the place of `name` if it is the copy of something else in this directory. A target that does not tell
    /// upper from lower case, or one spelling of an accent from another, gives that for a name which it does not have.
    fn refuse_another(&self, name: &[u8], existing: Option<HostStat>) -> Step<()> {
        let Some(have) = existing else { return Ok(()) };
        // A file with several names may have both, and lose one.
        let has_both = || match have.links > 1 && have.kind != FileKind::Directory {
            true => host::names(&self.target).map(|names| names.iter().any(|has| has == name)),
            false => Ok(false),
        };
        let is_another = self.fresh || (self.copies.borrow().contains(&have.id) && !has_both()?);
        if is_another {
            return Err(Trouble::Entry(
                "the target takes this name for that of something else which was just exported; export it to where \
                 names differ by case"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// A file that is whole but for its times and flags.
struct Waiting {
    /// Below the target.
    path: PathBuf,
    atime: Timestamp,
    mtime: Timestamp,
    /// Its user there.
    uid: u32,
    /// Unless it has them already, or has other names.
    flags: Option<FileFlags>,
}

struct Export<'a> {
    filesystem: &'a Filesystem,
    superuser: bool,
    /// The pool itself, should it lie in the target.
    pool_file: Option<(u64, u64)>,
    /// Subvolumes and snapshots below the directory are made as empty directories.
    one_subvolume: bool,
    /// Filesystems of the target that have kept no owner.
    ownerless: HashSet<u64>,
    /// Directories of the pool that were entered.
    entered: HashSet<InodeId>,
    /// The target directory as it was named.
    dir: &'a Path,
    /// The target directory.
    root: OwnedFd,
    tally: Tally,
    stop: Stop,
    /// Files with several names: the path below the target of the first, and how many are still to come.
    links: HashMap<InodeId, (PathBuf, u32)>,
    /// Inodes of the target with several names that some file of the pool has become.
    claimed: HashSet<(u64, u64)>,
    /// Files with several names, and the flags they get when all of them are there.
    flags_last: Vec<(PathBuf, FileFlags, u32)>,
    /// Directories that keep their owner out, who makes them, and the bits they get when nothing in them is touched any more: those
    /// that are in others first.
    bits_last: Vec<(PathBuf, u32)>,
    waiting: Vec<Waiting>,
    waiting_bytes: u64,
    waiting_since: Instant,
    /// How long the first of them waits.
    waiting_time_max: Duration,
    kept_times: RefCell<KeptTimes>,
    /// Those that something is made on.
    filesystems: Filesystems,
    owners_left_out: bool,
    room: Vec<u8>,
}

impl<'a> Export<'a> {
    /// Nothing is done yet.
    fn new(filesystem: &'a Filesystem, dir: &'a Path, root: OwnedFd, tally: Tally) -> Export<'a> {
        Export {
            filesystem,
            superuser: rustix::process::geteuid().is_root(),
            pool_file: None,
            one_subvolume: false,
            ownerless: HashSet::new(),
            entered: HashSet::new(),
            dir,
            root,
            tally,
            stop: Stop::default(),
            links: HashMap::new(),
            claimed: HashSet::new(),
            flags_last: Vec::new(),
            bits_last: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            waiting_since: Instant::now(),
            waiting_time_max: Duration::MAX,
            kept_times: RefCell::default(),
            filesystems: Filesystems::default(),
            owners_left_out: false,
            room: Vec::new(),
        }
    }

    /// The target directory is there, perhaps since just now.
    fn begin(&mut self) -> Step<()> {
        let device = host::stat_of(&self.root)?.id.0;
        self.filesystems.add(device, &self.root)?;
        Ok(self.filesystems.made(device, self.dir)?)
    }

    /// Something is wrong with what is at `path` below the target, or with the target: told by a path that leads there from where the user is.
    fn problem(&mut self, path: &Path, error: String) {
        match path.as_os_str().is_empty() {
            true => self.tally.problem(self.dir, error),
            false => self.tally.problem(&self.dir.join(path), error),
        }
    }

    fn tree(&mut self, from: Attr) -> Step<()> {
        // Below the target.
        let mut path = PathBuf::new();
        let target = self.root.try_clone()?;
        self.entered.insert(from.ino);
        let mut levels = vec![self.level(from, target, false)?];
        while let Some(level) = levels.last_mut() {
            let done = match level.entries.next() {
                _ if self.stop.asked() => return Ok(()),
                Some((name, ino)) => {
                    path.push(OsStr::from_bytes(&name));
                    self.entry(level, &path, &name, ino)
                }
                None => {
                    let done = self.leave(level, &path).map(|()| None);
                    levels.pop();
                    done
                }
            };
            match done {
                Ok(Some(level)) => {
                    levels.push(level);
                    continue;
                }
                Ok(None) => {}
                Err(Trouble::Entry(error)) => self.problem(&path, error),
                Err(Trouble::Stopped) => return Ok(()),
                Err(fatal) => return Err(fatal),
            }
            self.tally.entry();
            path.pop();
        }
        Ok(())
    }

    fn level(&self, from: Attr, target: OwnedFd, fresh: bool) -> Step<Level> {
        let mut entries = Vec::new();
        self.filesystem
            .readdir(from.ino, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    entries.push((entry.ino, entry.name));
                }
                true
            })
            .map_err(unreadable)?;
        entries.sort_unstable();
        let entries = entries.into_iter().map(|(ino, name)| (name, ino)).collect();
        Ok(Level::of(from, target, fresh, entries))
    }

    /// Everything in a directory is there: now its own attributes.
    fn leave(&mut self, level: &Level, path: &Path) -> Step<()> {
        self.tally.summary.directories_count += 1;
        let mut from = level.from;
        let opened = !self.superuser
            && from.mode & host::OWNER_BITS != host::OWNER_BITS
            && path.as_os_str().len() <= PATH_BYTES_MAX;
        if opened {
            // Files in it wait for their times.
            from.mode |= host::OWNER_BITS;
        }
        let have = host::stat_of(&level.target)?;
        let mut flags = Flagged::of(Some(level.target.as_fd()));
        flags.had = level.had.get().unwrap_or(flags.had);
        let changed = self.attributes(&from, &have, &Held::of(&level.target), &mut flags);
        if opened {
            // Of what others may do it has what it should have, or what it had where that failed.
            let others = host::stat_of(&level.target)?.mode & !host::OWNER_BITS;
            self.bits_last.push((path.to_path_buf(), others | (level.from.mode & host::OWNER_BITS)));
        }
        let mut changed = changed?;
        if (have.atime, have.mtime) != (level.from.atime, level.from.mtime) {
            flags.free();
            rustix::fs::futimens(&level.target, &host::times(level.from.atime, level.from.mtime))?;
        }
        changed |= self.flag(&mut flags, level.from.flags);
        self.tally.summary.attributes_changed_count += u64::from(changed);
        Ok(sync_file(&level.target, self.filesystems.wants_each(have.id.0))?)
    }

    fn entry(&mut self, dir: &Level, path: &Path, name: &[u8], ino: InodeId) -> Step<Option<Level>> {
        let from = self.filesystem.getattr(ino).map_err(unreadable)?;
        let existing = match host::stat_at(dir.target.as_fd(), name) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        if existing.is_some_and(|have| Some(have.id) == self.pool_file) {
            return Err(Trouble::Entry("this is the pool itself in its place; it is left out".to_owned()));
        }
        if from.links > 1
            && let Some((first, left)) = self.links.get_mut(&ino)
        {
            let first = first.clone();
            *left -= 1;
            if *left == 0 {
                self.links.remove(&ino);
            }
            return self.link(dir, name, &first, existing).map(|()| None);
        }
        dir.refuse_another(name, existing)?;
        if from.kind == FileKind::Directory {
            return self.directory(dir, name, from, existing).map(Some);
        }
        let equal = existing.filter(|have| self.is_equal(&from, have, dir, name));
        if let Some(have) = &equal {
            self.mend(dir, path, name, &from, have)?;
        } else {
            open_up(dir, existing)?;
        }
        match from.kind {
            FileKind::File if equal.is_some() => self.tally.summary.files_equal_count += 1,
            FileKind::File => {
                self.file(dir, path, name, &from, existing)?;
                self.tally.summary.files_copied_count += 1;
            }
            kind => {
                if equal.is_none() {
                    self.special(dir, name, &from, existing)?;
                }
                match kind {
                    FileKind::Symlink => self.tally.summary.symlinks_count += 1,
                    _ => self.tally.summary.nodes_count += 1,
                }
            }
        }
        if from.links > 1 || !dir.fresh {
            let have = equal.map_or_else(|| host::stat_at(dir.target.as_fd(), name), Ok)?;
            dir.keep(have.id);
            if from.links > 1 {
                self.claimed.insert(have.id);
                self.links.insert(ino, (path.to_path_buf(), from.links - 1));
            }
        }
        Ok(None)
    }

    /// Whether what is there is what should be there. What shares its inode with another name must do so in the pool. What is somebody
    /// else's is not given away, though it looks alike: whoever owns the directory may have moved it there.
    fn is_equal(&self, from: &Attr, have: &HostStat, dir: &Level, name: &[u8]) -> bool {
        let alone = have.links == 1 || (from.links > 1 && !self.claimed.contains(&have.id));
        alone
            && (!self.superuser || from.uid == have.uid || self.ownerless.contains(&have.id.0))
            && from.kind == have.kind
            && match from.kind {
                FileKind::File => {
                    from.size == have.size
                        && self.kept_times.borrow_mut().is_kept(&dir.target, have, from.mtime)
                }
                FileKind::Symlink => {
                    let target = rustix::fs::readlinkat(&dir.target, name, Vec::new());
                    let wanted = self.filesystem.readlink(from.ino);
                    matches!((target, wanted), (Ok(target), Ok(wanted)) if target.as_bytes() == wanted)
                }
                FileKind::CharDevice | FileKind::BlockDevice => from.rdev == have.rdev,
                _ => true,
            }
    }

    fn directory(&mut self, dir: &Level, name: &[u8], from: Attr, existing: Option<HostStat>) -> Step<Level> {
        self.enter(from.ino)?;
        let fresh = existing.is_none_or(|have| have.kind != FileKind::Directory);
        let mut placed = None;
        if fresh {
            open_up(dir, existing)?;
            match existing {
                Some(_) => placed = Some(place_directory(&dir.target, name)?),
                None => rustix::fs::mkdirat(&dir.target, name, Mode::RWXU)?,
            }
        }
        if !self.superuser
            && let Ok(have) = host::stat_at(dir.target.as_fd(), name)
            && have.mode & host::OWNER_BITS != host::OWNER_BITS
        {
            // If it cannot be, opening it says why.
            let _ = host::set_mode(dir.target.as_fd(), name, have.mode | host::OWNER_BITS);
        }
        let target = match placed {
            Some(target) => target,
            None => host::open_at(dir.target.as_fd(), name, OFlags::DIRECTORY)?,
        };
        let have = host::stat_of(&target)?;
        dir.keep(have.id);
        self.filesystems.add(have.id.0, &target)?;
        if self.one_subvolume && slot(from.ino) != slot(dir.from.ino) {
            return Ok(Level::of(from, target, fresh, Vec::new()));
        }
        self.level(from, target, fresh)
    }

    /// Refuses a directory that was entered before: where directories of a forged pool lie in each other, a walk has no end. One that is in
    /// another place than its record says is entered, since nobody knows which of the two is damaged.
    fn enter(&mut self, ino: InodeId) -> Step<()> {
        if self.entered.insert(ino) {
            return Ok(());
        }
        Err(Trouble::Entry(format!(
            "directory {} has another place, too, and is exported there: the pool is damaged (varve check)",
            varve_fs::shown_number(ino)
        )))
    }

    fn link(&mut self, dir: &Level, name: &[u8], first: &Path, existing: Option<HostStat>) -> Step<()> {
        let (of, first) = host::parent_of(&self.root, first)?;
        let wanted = host::stat_at(of.as_fd(), first)?;
        if existing.is_none_or(|have| have.id != wanted.id) {
            dir.refuse_another(name, existing)?;
            open_up(dir, existing)?;
            // What is immutable gets no name, and none of its names is changed.
            let open = || host::open_at(of.as_fd(), first, OFlags::empty()).ok();
            let is_file = wanted.kind == FileKind::File;
            let file = is_file.then(open).flatten();
            if existing.is_some() && is_file {
                // Its bytes may wait for the next sync, as its first name took nobody's place.
                match &file {
                    Some(file) => rustix::fs::fdatasync(file)?,
                    None => self.finish_waiting()?,
                }
            }
            let mut flags = Flagged::of(file.as_ref().map(AsFd::as_fd));
            flags.free();
            let placed = place(&dir.target, name, existing, |name| {
                Ok(rustix::fs::linkat(&of, first, &dir.target, name, AtFlags::empty())?)
            });
            flags.set(flags.had);
            placed?;
        }
        dir.keep(wanted.id);
        self.tally.summary.hard_links_count += 1;
        Ok(())
    }

    fn special(&mut self, dir: &Level, name: &[u8], from: &Attr, existing: Option<HostStat>) -> Step<()> {
        let kind = match from.kind {
            FileKind::Symlink => {
                let target = self.filesystem.readlink(from.ino).map_err(unreadable)?;
                place(&dir.target, name, existing, |name| {
                    Ok(rustix::fs::symlinkat(&target[..], &dir.target, name)?)
                })?;
                None
            }
            FileKind::Fifo => Some(FileType::Fifo),
            FileKind::Socket => Some(FileType::Socket),
            FileKind::CharDevice => Some(FileType::CharacterDevice),
            _ => Some(FileType::BlockDevice),
        };
        if let Some(kind) = kind {
            // Others get what they may do of it below, when an access list is there, or is not.
            let mode = Mode::from_raw_mode(from.mode & host::OWNER_BITS);
            let device = host::device_number(from.rdev);
            place(&dir.target, name, existing, |name| {
                Ok(rustix::fs::mknodat(&dir.target, name, kind, mode, device)?)
            })?;
        }
        // No call gives a descriptor of what it makes.
        let held = hold(dir.target.as_fd(), name)?;
        let held = Held::of(&held);
        let have = held.stat()?;
        let is_node = matches!(from.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if have.kind != from.kind || (is_node && have.rdev != from.rdev) {
            return Err(Trouble::Entry(replaced()));
        }
        self.attributes(from, &have, &held, &mut Flagged::of(None))?;
        Ok(held.set_times(&host::times(from.atime, from.mtime))?)
    }

    /// Makes durable what has been done.
    fn sync(&self) -> Step<()> {
        self.filesystems.sync().map_err(Trouble::Fatal)
    }

    /// Makes durable what was written, and gives it its times. What waits for a sync that fails never gets them: the next one would say
    /// that all is well, since an error of the disk is told once, and what the kernel has dropped would look finished.
    fn finish_waiting(&mut self) -> Step<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        self.sync()?;
        for file in waiting {
            let times = host::times(file.atime, file.mtime);
            let held =
                host::parent_of(&self.root, &file.path).and_then(|(dir, name)| hold(dir.as_fd(), name));
            let set = held.and_then(|held| {
                let held = Held::of(&held);
                // Inode numbers are made anew by some filesystems; an owner is what matters.
                if held.stat()?.uid != file.uid {
                    return Ok(false);
                }
                held.set_times(&times).map(|()| true)
            });
            match set {
                Ok(true) => {}
                Ok(false) => {
                    self.problem(&file.path, replaced());
                    continue;
                }
                Err(errno) => {
                    let error = format!("its times cannot be set: {}", std::io::Error::from(errno));
                    self.problem(&file.path, error);
                }
            }
            if let Some(flags) = file.flags {
                self.flag_at(&file.path, flags, file.uid);
            }
        }
        Ok(())
    }
}

/// Which subvolume an inode is in.
fn slot(ino: InodeId) -> u64 {
    ino.0 >> LOCAL_INODE_BITS
}

/// Has a directory take something in the place of what is `existing`, which stays where it is.
fn open_up(dir: &Level, existing: Option<HostStat>) -> Step<()> {
    if existing.is_some_and(|have| have.kind == FileKind::Directory) {
        return Err(Trouble::Entry(
            "there is a directory in its place; remove that, or export to another place".to_owned(),
        ));
    }
    if dir.had.get().is_none() {
        let mut flags = Flagged::of(Some(dir.target.as_fd()));
        dir.had.set(Some(flags.had));
        flags.free();
    }
    Ok(())
}

/// Something else has the name by now.
fn replaced() -> String {
    "it was replaced in the target meanwhile; run the same command again".to_owned()
}

/// What the pool cannot give is left out; the rest may be whole.
fn unreadable(error: varve_fs::FsError) -> Trouble {
    Trouble::Entry(format!("it cannot be read from the pool: {error}"))
}
