//! `varve import`: a tree of this system goes into a pool, through the library, without a mount.
//!
//! **What is equal is left alone**, so that an interrupted import that is run again finishes: a file is taken to be
//! there when kind, size and modification time (to the nanosecond) are those of the source. That is safe because a
//! file's time is set after its contents are in the log ([`super::finisher`]). Attributes are compared and mended one by
//! one, also of what is equal. What differs is copied anew, and takes the place of what is there when its contents are in
//! the log and not before: what cannot be read, or is changed meanwhile, leaves the older copy alone. What the source does not
//! have stays.
//!
//! **A large file has its name when it is whole**: what a killed import had of it goes when the pool is next opened, and its space with it.
//!
//! **Flags come last** (chattr): of a file when it has its times, of a directory when all that is in it is there, of a file with
//! several names when everything is. What an earlier import has made immutable or append only is freed of that while something
//! of it is changed, and no sooner; if this ends then, the next import sets it again.
//!
//! Nothing is synced on the way but a commit every few seconds; one commit at the end makes everything durable.

mod attributes;
mod file;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

use anyhow::{Context, Result, anyhow};
use rustix::fs::OFlags;
use varve_device::OpenMode;
use varve_fs::{
    Attr, Caller, FileFlags, FileKind, Filesystem, FsError, InodeId, OpenOptions, ROOT_INODE, RenameMode,
    StoreOptions, Timestamp,
};

use varve_format::record::subvolume::LOCAL_INODE_BITS;

use super::finisher::Finisher;
use super::held::{Held, hold};
use super::host::{self, HostStat};
use super::links::Links;
use super::place::PoolPath;
use super::tally::{Summary, Tally, Trouble};
use super::{Stop, finish, new_names, replaced, too_many};
use crate::args::ImportArgs;
use crate::clock::SystemClock;
use crate::names::{Shown, in_words};
use crate::{Outcome, log, pool};

/// Contents copied with one read and one write.
const PIECE_BYTES: usize = 1 << 20;
/// File data that waits in memory while it is written back.
const DIRTY_BYTES_MAX: u64 = 128 << 20;
/// What takes the place of something has such a name for a moment. It stays there only if this is killed in between.
const NEW_NAME: &str = ".varve-import.new";
/// Permission bits of directories on the way to the target.
const DIRECTORY_MODE: u32 = 0o755;

type Step<T> = std::result::Result<T, Trouble>;

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Trouble {
        match &error {
            // What the pool as a whole cannot do, it cannot do for the next file either.
            FsError::Engine(_) if error.errno() == rustix::io::Errno::NOSPC.raw_os_error() => {
                Trouble::Fatal(anyhow!(
                    "{error}; what has been copied stays: make room in the pool and run the same command again"
                ))
            }
            FsError::Engine(_) => Trouble::Fatal(anyhow!("{error}")),
            _ => Trouble::Entry(error.to_string()),
        }
    }
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> Result<Outcome> {
    let place = PoolPath::parse(&args.place)?;
    let shown = args.dir.shown();
    host::raise_open_files_limit();
    let source = host::open_directory(&args.dir).map_err(|error| {
        anyhow!(
            "cannot open {shown}: {}; give the directory whose contents are to be copied",
            in_words(&error)
        )
    })?;
    let stat = host::stat_of(&source).with_context(|| format!("cannot look at {shown}"))?;
    log::start_for_writer();
    let device = Arc::new(pool::open_device(&place.pool, OpenMode::ReadWrite)?);
    let pool_file = std::fs::metadata(&place.pool).map(|meta| (meta.dev(), meta.ino())).ok();
    let options = OpenOptions {
        store: StoreOptions {
            cache_bytes: crate::options::cache_bytes(args.cache_size)?,
            ..StoreOptions::default()
        },
        dirty_bytes_max: DIRTY_BYTES_MAX,
        clock: Arc::new(SystemClock),
        on_data_logged: None,
    };
    let (filesystem, recovery) = pool::open(&place.pool, device, options)?;
    if let Some(text) = pool::describe_recovery(&recovery) {
        crate::tell(&format!("varve import: {}: {text}", place.pool.shown()));
    }
    let filesystem = Arc::new(filesystem);
    let stop = Stop::on_signals()?;
    let tally = Tally::start("import", args.dir.shown(), place.to_string());
    let one_file_system = args.one_file_system.then_some(stat.id.0);
    if tally.progress.is_shown() {
        super::count_in_background(&args.dir, one_file_system, &tally.progress, &stop);
    }
    let finisher = Finisher::start(filesystem.clone(), args.commit_every).context("cannot start a thread")?;
    let mut import = Import {
        filesystem: filesystem.clone(),
        tally,
        stop: stop.clone(),
        finisher,
        links: Links::default(),
        claimed: HashSet::new(),
        flags_last: Vec::new(),
        pool_file,
        one_file_system,
        settled: HashMap::new(),
        buffer: vec![0; PIECE_BYTES],
        room: Vec::new(),
        unusable: None,
    };
    let copied = import.target(&place).map_err(|trouble| match trouble {
        Trouble::Entry(error) => Trouble::Entry(format!("cannot make {place}: {error}; name another place")),
        other => other,
    });
    let copied = copied.and_then(|target| {
        let copied = import.tree(&args.dir, source, stat, target);
        copied.map_err(|trouble| match trouble {
            Trouble::Entry(error) => Trouble::Entry(format!("cannot read {shown}: {error}")),
            other => other,
        })
    });
    import.tally.progress.note("making it durable");
    // Whatever happened: what was copied is finished, made durable, and the pool closed.
    let flags_last = std::mem::take(&mut import.flags_last);
    let mut flag = |(ino, flags)| filesystem.set_flags(Caller::ROOT, ino, flags);
    let written = import.finisher.end().and_then(|()| flags_last.into_iter().try_for_each(&mut flag));
    let written = written.map_err(anyhow::Error::from);
    let closed = filesystem.close().with_context(|| format!("closing {} failed", place.pool.shown()));
    let result = match (copied, written) {
        // The thread's error is why handing over failed.
        (_, Err(error)) => Err(error),
        (Err(Trouble::Fatal(error)), Ok(())) => Err(error),
        (Err(Trouble::Entry(error)), Ok(())) => Err(anyhow!(error)),
        (Ok(()) | Err(Trouble::Stopped), Ok(())) => closed,
    };
    let summary: Summary = import.tally.end(result.is_ok() && !stop.asked());
    finish("import", "imported", summary, result, &stop, args.json)
}

/// Where a directory goes.
#[derive(Clone, Copy)]
struct Target {
    ino: InodeId,
    /// Made by this import: nothing is in it but what this import has put there.
    fresh: bool,
}

/// A directory that is being copied.
struct Level {
    source: OwnedFd,
    stat: HostStat,
    target: Target,
    names: IntoIter<Vec<u8>>,
    /// The target's flags before something in it was changed, once something is.
    had: Cell<Option<FileFlags>>,
}

struct Import {
    filesystem: Arc<Filesystem>,
    tally: Tally,
    stop: Stop,
    finisher: Finisher,
    /// Files with several names.
    links: Links,
    /// Inodes of the pool with several names that some file of the source has become.
    claimed: HashSet<InodeId>,
    /// Files with several names, and the flags they get when all of them are there.
    flags_last: Vec<(InodeId, FileFlags)>,
    /// The pool itself, should it lie in the tree.
    pool_file: Option<(u64, u64)>,
    one_file_system: Option<u64>,
    /// Filesystems whose files were written back, and when that began.
    settled: HashMap<u64, Timestamp>,
    buffer: Vec<u8>,
    room: Vec<u8>,
    /// Why the entry that was just copied cannot be used through a mount.
    unusable: Option<String>,
}

impl Import {
    /// The target directory, made if it is not there.
    fn target(&self, place: &PoolPath) -> Step<Target> {
        let mut target = Target { ino: ROOT_INODE, fresh: false };
        for (depth, name) in place.names.iter().enumerate() {
            (target.ino, target.fresh) = match self.filesystem.lookup(target.ino, name) {
                Ok(attr) if attr.kind == FileKind::Directory => (attr.ino, false),
                Ok(_) => {
                    let name = OsStr::from_bytes(name).shown();
                    return Err(Trouble::Fatal(anyhow!("{place}: {name} is there and is not a directory")));
                }
                Err(FsError::NotFound) => {
                    // Nobody's but root's until it has the bits of the source: what is in it may be private because of them.
                    let is_last = depth + 1 == place.names.len();
                    let mode = if is_last { host::OWNER_BITS } else { DIRECTORY_MODE };
                    (self.filesystem.mkdir(Caller::ROOT, target.ino, name, mode)?.ino, true)
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(target)
    }

    /// Copies a directory with all that is in it.
    fn tree(&mut self, dir: &Path, source: OwnedFd, stat: HostStat, target: Target) -> Step<()> {
        let mut path = PathBuf::from(dir);
        let mut levels = vec![self.open_level(source, stat, target)?];
        while let Some(level) = levels.last_mut() {
            let done = match level.names.next() {
                _ if self.stop.asked() => return Ok(()),
                Some(name) => {
                    path.push(OsStr::from_bytes(&name));
                    self.entry(level, &name)
                }
                None => {
                    let done = self.leave(level).map(|()| None);
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
                Err(Trouble::Entry(error)) => {
                    self.unusable = None;
                    self.tally.problem(&path, error);
                }
                Err(Trouble::Stopped) => return Ok(()),
                Err(fatal) => return Err(fatal),
            }
            if let Some(error) = self.unusable.take() {
                self.tally.problem(&path, error);
            }
            self.tally.entry();
            path.pop();
        }
        Ok(())
    }

    fn level(&self, source: OwnedFd, stat: HostStat, target: Target) -> Step<Level> {
        let names = host::names(&source)?.into_iter();
        Ok(Level { source, stat, target, names, had: Cell::default() })
    }

    /// Everything in a directory is there: now its own attributes, so that nothing made in it inherits from them or
    /// changes its times.
    fn leave(&mut self, level: &Level) -> Step<()> {
        self.tally.summary.directories_count += 1;
        let attr = self.filesystem.getattr(level.target.ino)?;
        let had = level.had.get().unwrap_or(attr.flags);
        let flags = host::flags(level.source.as_fd()).unwrap_or(had);
        let changed = self.attributes(attr, &level.stat, &Held::of(&level.source), Some(flags))?;
        let changed = changed || flags != had;
        self.count_changed(changed && !level.target.fresh);
        Ok(())
    }

    /// Copies one entry. Gives the level of a directory, which is not yet copied.
    fn entry(&mut self, dir: &Level, name: &[u8]) -> Step<Option<Level>> {
        let stat = host::stat_at(dir.source.as_fd(), name)?;
        if Some(stat.id) == self.pool_file {
            return Err(Trouble::Entry("this is the pool itself; it is left out".to_owned()));
        }
        // Files of an overlay may lie on other devices than what they are in, with nothing mounted on them.
        if stat.kind != FileKind::Directory
            && self.is_left_out(&stat)
            && host::is_mount_point(dir.source.as_fd(), name)
        {
            self.tally.summary.filesystems_left_out_count += 1;
            return Ok(None);
        }
        let existing = if dir.target.fresh {
            None
        } else {
            match self.filesystem.lookup(dir.target.ino, name) {
                Ok(attr) => Some(attr),
                Err(FsError::NotFound) => None,
                Err(error) => return Err(error.into()),
            }
        };
        match stat.kind {
            FileKind::Directory => self.directory(dir, name, existing).map(Some),
            FileKind::File => self.file(dir, name, &stat, existing).map(|()| None),
            _ => self.special(dir, name, &stat, existing).map(|()| None),
        }
    }

    /// Has a directory take something in the place of what is `existing`, which stays where it is.
    fn open_up(&self, dir: &Level, existing: Option<Attr>) -> Step<()> {
        if existing.is_some_and(|attr| attr.kind == FileKind::Directory) {
            return Err(Trouble::Entry(
                "in the pool this is a directory; remove it there, or import to another place".to_owned(),
            ));
        }
        if !dir.target.fresh && dir.had.get().is_none() {
            let mut flags = self.filesystem.getattr(dir.target.ino)?.flags;
            dir.had.set(Some(flags));
            self.free(dir.target.ino, &mut flags)?;
        }
        Ok(())
    }

    /// Has `make` make something under the name that it is given, and gives that the place of what is `existing`: it stays there
    /// until then.
    fn put<T>(
        &self,
        dir: &Level,
        name: &[u8],
        existing: Option<Attr>,
        make: impl Fn(&[u8]) -> Step<T>,
    ) -> Step<T> {
        self.open_up(dir, existing)?;
        let Some(existing) = existing else { return make(name) };
        let directory = dir.target.ino;
        let is_free = |new: &String| {
            matches!(self.filesystem.lookup(directory, new.as_bytes()), Err(FsError::NotFound))
        };
        let new = new_names(NEW_NAME).find(is_free).ok_or_else(|| too_many(NEW_NAME))?;
        let new = new.as_bytes();
        let made = make(new)?;
        let rename = |mode| self.filesystem.rename(directory, new, directory, name, mode);
        let placed = self.freed(existing, || match rename(RenameMode::Replace) {
            // A directory does not take a file's place in one step; they change places.
            Err(FsError::NotDirectory) => {
                rename(RenameMode::Exchange)?;
                Ok(self.filesystem.unlink(directory, new)?)
            }
            renamed => Ok(renamed?),
        });
        if placed.is_err() {
            let _ = self.filesystem.unlink(directory, new).or_else(|_| self.filesystem.rmdir(directory, new));
        }
        placed.map(|()| made)
    }

    /// Takes away what forbids changes of an inode that has these flags.
    fn free(&self, ino: InodeId, flags: &mut FileFlags) -> Step<()> {
        if flags.intersects(FileFlags::PROTECTING) {
            *flags = flags.without(FileFlags::PROTECTING);
            self.filesystem.set_flags(Caller::ROOT, ino, *flags)?;
        }
        Ok(())
    }

    /// Gives an inode another name, or takes one away, whatever its flags.
    fn freed<T>(&self, attr: Attr, change: impl FnOnce() -> Step<T>) -> Step<()> {
        let mut flags = attr.flags;
        self.free(attr.ino, &mut flags)?;
        let changed = change();
        if flags != attr.flags {
            match self.filesystem.set_flags(Caller::ROOT, attr.ino, attr.flags) {
                // That was its last name.
                Err(FsError::NotFound) => {}
                result => result?,
            }
        }
        changed?;
        Ok(())
    }

    fn directory(&mut self, dir: &Level, name: &[u8], existing: Option<Attr>) -> Step<Level> {
        let source = host::open_at(dir.source.as_fd(), name, OFlags::DIRECTORY)?;
        // What is open may be another directory than what was looked at: this one counts.
        let stat = host::stat_of(&source)?;
        if let Some(attr) = existing.filter(|attr| attr.kind == FileKind::Directory) {
            return self.open_level(source, stat, Target { ino: attr.ino, fresh: false });
        }
        let (fs, parent) = (self.filesystem.clone(), dir.target.ino);
        let made =
            self.put(dir, name, existing, |name| Ok(fs.mkdir(caller(&stat), parent, name, stat.mode)?))?;
        self.open_level(source, stat, Target { ino: made.ino, fresh: true })
    }

    /// Whether it lies on another filesystem, and those are not wanted (-x).
    fn is_left_out(&self, stat: &HostStat) -> bool {
        self.one_file_system.is_some_and(|device| device != stat.id.0)
    }

    fn open_level(&mut self, source: OwnedFd, stat: HostStat, target: Target) -> Step<Level> {
        if self.is_left_out(&stat) {
            // It is made, empty.
            self.tally.summary.filesystems_left_out_count += 1;
            return Ok(Level { source, stat, target, names: Vec::new().into_iter(), had: Cell::default() });
        }
        self.settle(&source, &stat);
        self.level(source, stat, target)
    }

    fn file(&mut self, dir: &Level, name: &[u8], stat: &HostStat, existing: Option<Attr>) -> Step<()> {
        if let Some(first) = self.links.meet(stat, slot(dir)) {
            if existing.is_none_or(|attr| attr.ino != first) {
                // What is immutable gets no name, and none of its names is changed.
                let attr = self.filesystem.getattr(first)?;
                if existing.is_some() {
                    // As in [`Import::replace`]: its first name took nobody's place, and its bytes may wait.
                    self.filesystem.flush_file(first)?;
                }
                let link = |name: &[u8]| Ok(self.filesystem.link(first, dir.target.ino, name)?);
                self.freed(attr, || self.put(dir, name, existing, link))?;
            }
            self.tally.summary.hard_links_count += 1;
            return Ok(());
        }
        let (ino, stat) = match existing {
            Some(attr) if self.is_equal(&attr, stat) => {
                // What cannot be opened keeps the flags it has.
                let source = host::open_at(dir.source.as_fd(), name, OFlags::empty()).ok();
                if let Some(source) = source.as_ref().filter(|_| stat.size == 0) {
                    self.require_end(source, stat)?;
                }
                let flags = source.and_then(|source| host::flags(source.as_fd())).unwrap_or(attr.flags);
                let now = if stat.links > 1 { attr.flags } else { flags };
                let changed =
                    self.attributes(attr, stat, &Held::of(&hold(dir.source.as_fd(), name)?), Some(now))?;
                self.flags_last.extend((flags != now).then_some((attr.ino, flags)));
                self.tally.summary.files_equal_count += 1;
                self.count_changed(changed || flags != attr.flags);
                (attr.ino, *stat)
            }
            _ => self.copy(dir, name, existing)?,
        };
        if stat.links > 1 {
            self.links.add(&stat, slot(dir), ino);
            self.claimed.insert(ino);
        }
        Ok(())
    }

    /// Whether the file is in the pool as it should be. One that shares its inode with another name there must do so
    /// in the source.
    fn is_equal(&self, attr: &Attr, stat: &HostStat) -> bool {
        attr.kind == FileKind::File
            && attr.size == stat.size
            && attr.mtime == stat.mtime
            && (attr.links == 1 || (stat.links > 1 && !self.claimed.contains(&attr.ino)))
    }

    fn special(&mut self, dir: &Level, name: &[u8], stat: &HostStat, existing: Option<Attr>) -> Step<()> {
        let link = match stat.kind {
            FileKind::Symlink => Some(host::read_link(dir.source.as_fd(), name, stat)?.ok_or_else(replaced)?),
            _ => None,
        };
        let equal = existing.filter(|attr| attr.kind == stat.kind && attr.links == 1 && stat.links == 1);
        let equal = match (equal, &link) {
            (Some(attr), Some(target)) if self.filesystem.readlink(attr.ino)? == *target => Some(attr),
            (Some(attr), None) if attr.rdev == stat.rdev => Some(attr),
            _ => None,
        };
        let attr = match equal {
            Some(attr) => attr,
            None if stat.links > 1 => return self.linked_special(dir, name, stat, existing, link),
            None => self.make_special(dir, name, stat, existing, link)?,
        };
        self.count_special(stat);
        let known = equal.is_some();
        let changed =
            self.attributes(attr, stat, &Held::of(&hold(dir.source.as_fd(), name)?), Some(attr.flags))?;
        self.count_changed(changed && known);
        Ok(())
    }

    /// A symbolic link or node that has several names.
    fn linked_special(
        &mut self,
        dir: &Level,
        name: &[u8],
        stat: &HostStat,
        existing: Option<Attr>,
        link: Option<Vec<u8>>,
    ) -> Step<()> {
        if let Some(first) = self.links.meet(stat, slot(dir)) {
            if existing.is_none_or(|attr| attr.ino != first) {
                self.put(dir, name, existing, |name| {
                    Ok(self.filesystem.link(first, dir.target.ino, name).map(drop)?)
                })?;
            }
            self.tally.summary.hard_links_count += 1;
            return Ok(());
        }
        let attr = self.make_special(dir, name, stat, existing, link)?;
        self.links.add(stat, slot(dir), attr.ino);
        self.count_special(stat);
        self.attributes(attr, stat, &Held::of(&hold(dir.source.as_fd(), name)?), Some(attr.flags)).map(drop)
    }

    fn make_special(
        &mut self,
        dir: &Level,
        name: &[u8],
        stat: &HostStat,
        existing: Option<Attr>,
        link: Option<Vec<u8>>,
    ) -> Step<Attr> {
        let (fs, directory) = (self.filesystem.clone(), dir.target.ino);
        self.put(dir, name, existing, |name| {
            Ok(match &link {
                Some(target) => fs.symlink(caller(stat), directory, name, target)?,
                None => fs.mknod(caller(stat), directory, name, stat.kind, stat.mode, stat.rdev)?,
            })
        })
    }

    fn count_special(&mut self, stat: &HostStat) {
        match stat.kind {
            FileKind::Symlink => self.tally.summary.symlinks_count += 1,
            _ => self.tally.summary.nodes_count += 1,
        }
    }
}

/// Which subvolume of the pool a directory goes to.
fn slot(dir: &Level) -> u64 {
    dir.target.ino.0 >> LOCAL_INODE_BITS
}

/// Whoever owns it makes it.
fn caller(stat: &HostStat) -> Caller {
    Caller { uid: stat.uid, gid: stat.gid }
}
