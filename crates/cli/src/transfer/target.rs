//! How what an export makes takes the place of something, and becomes durable.
//!
//! The target may have other filesystems mounted in it, each with its own way: syncfs(2) does it for those of the kernel. Those in
//! user space do not hear of that: one of ours is asked by its socket, and of the others each file and directory is synced by itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, major, minor};
use rustix::io::Errno;
use varve_fs::Timestamp;

use super::host::{self, HostStat};
use super::tally::Trouble;
use super::{new_names, too_many};
use crate::clock;
use crate::mountinfo::MountTable;
use crate::sync::{self, Server};

/// What takes the place of something is made under such a name, next to it. It stays there only if this is killed in between.
const NEW_NAME: &str = ".varve-export.new";

/// The filesystems of a target, by the number of their device.
#[derive(Default)]
pub struct Filesystems(HashMap<u64, How>);

enum How {
    Whole(OwnedFd),
    Asked(Server),
    EachFile,
}

impl Filesystems {
    /// Something is going to be made in `dir`, which lies on `device`.
    pub fn add(&mut self, device: u64, dir: &OwnedFd) -> io::Result<()> {
        if let Entry::Vacant(vacant) = self.0.entry(device) {
            vacant.insert(match host::is_in_user_space(dir) {
                true => ours(device).map_or(How::EachFile, How::Asked),
                false => How::Whole(dir.try_clone()?),
            });
        }
        Ok(())
    }

    /// The directory `dir` on `device` may have been made just now, with some around it.
    pub fn made(&self, device: u64, dir: &Path) -> io::Result<()> {
        if !self.wants_each(device) {
            return Ok(());
        }
        for above in dir.canonicalize()?.ancestors().skip(1) {
            match File::open(above) {
                Ok(above) if above.metadata()?.dev() == device => above.sync_all()?,
                // Whoever may not read it has made nothing in it.
                _ => break,
            }
        }
        Ok(())
    }

    /// Whether what is made on `device` has to be synced by itself.
    pub fn wants_each(&self, device: u64) -> bool {
        matches!(self.0.get(&device), Some(How::EachFile))
    }

    /// Makes durable what has been done, but for what is synced by itself.
    pub fn sync(&self) -> anyhow::Result<()> {
        for how in self.0.values() {
            match how {
                How::Whole(dir) => host::sync_filesystem(dir).map_err(io::Error::from),
                How::Asked(server) => {
                    server.request("sync").context("syncing the target failed")?;
                    Ok(())
                }
                How::EachFile => Ok(()),
            }
            .context("syncing the target failed")?;
        }
        Ok(())
    }
}

/// The coarsest times of files that a target may keep (FAT).
const COARSEST: Duration = Duration::from_secs(2);

/// What filesystems of the target make of times: not all keep them to the nanosecond. A file of each that nobody else has is given them.
#[derive(Default)]
pub struct KeptTimes(HashMap<u64, OwnedFd>);

impl KeptTimes {
    /// Whether `have`, of a file in `dir`, is what its filesystem keeps of the modification time `wanted`. One that it can keep nothing like
    /// (before 1901) is no copy's.
    pub fn is_kept(&mut self, dir: &OwnedFd, have: &HostStat, wanted: Timestamp) -> bool {
        have.mtime == wanted
            || clock::are_near(have.mtime, wanted, COARSEST)
                && self.kept(dir, have.id.0, wanted) == Some(have.mtime)
    }

    /// Whether a file in `dir` that is made now could have the modification time `time` by itself, since its filesystem keeps times less exactly: its
    /// contents have to be on the disk before it has its name, or what a power failure has left of it would be taken for equal.
    pub fn may_be_now(&mut self, dir: &OwnedFd, time: Timestamp) -> bool {
        let exact = Timestamp { nanoseconds: 999_999_999, ..time };
        clock::is_near(time, 2 * COARSEST)
            && host::stat_of(dir).is_ok_and(|dir_stat| self.kept(dir, dir_stat.id.0, exact) != Some(exact))
    }

    /// `None`: that cannot be told.
    fn kept(&mut self, dir: &OwnedFd, device: u64, time: Timestamp) -> Option<Timestamp> {
        let file = match self.0.entry(device) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(vacant) => {
                let file = unnamed_file(dir)?;
                if host::stat_of(&file).ok()?.id.0 != device {
                    return None;
                }
                vacant.insert(file)
            }
        };
        rustix::fs::futimens(&*file, &host::times(time, time)).ok()?;
        Some(host::stat_of(&*file).ok()?.mtime)
    }
}

fn unnamed_file(dir: &OwnedFd) -> Option<OwnedFd> {
    let (flags, mode) = (OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode).ok().or_else(|| {
        let name = free_name(dir).ok()?;
        let create = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(dir, &name, flags | create, mode).ok()?;
        rustix::fs::unlinkat(dir, &name, AtFlags::empty()).ok()?;
        Some(file)
    })
}

/// Who serves this filesystem, if it is a pool, and answers this user.
fn ours(device: u64) -> Option<Server> {
    let table = MountTable::read().ok()?;
    let mount = table.ours().find(|mount| mount.device == (major(device), minor(device)))?;
    sync::connect(mount).ok().map(|_| Server::of(mount))
}

/// Syncs an open file, if it is to be.
pub fn sync_file(file: &impl AsFd, wanted: bool) -> rustix::io::Result<()> {
    if wanted { rustix::fs::fsync(file) } else { Ok(()) }
}

/// Has `make` make something under the name that it is given, and gives that the place of what is `existing`.
pub fn place<T>(
    dir: &OwnedFd,
    name: &[u8],
    existing: Option<HostStat>,
    make: impl FnOnce(&[u8]) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    if existing.is_none() {
        return make(name);
    }
    let new = free_name(dir)?;
    let remove = || rustix::fs::unlinkat(dir, &new, AtFlags::empty());
    let made = make(new.as_bytes())?;
    let replace = || rustix::fs::renameat(dir, &new, dir, name);
    let replaced = host::freed(dir.as_fd(), name, replace);
    // Also where both were names of one file, which are left as they are.
    let _ = remove();
    Ok(replaced.map(|()| made)?)
}

/// Makes a directory, opens it and gives it the place of what has this name and is none: that keeps it until then.
pub fn place_directory(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Trouble> {
    let new = free_name(dir)?;
    rustix::fs::mkdirat(dir, &new, Mode::RWXU)?;
    // A directory takes no file's place in one step; they change places.
    let exchange = || rustix::fs::renameat_with(dir, &new, dir, name, RenameFlags::EXCHANGE);
    let replace = || match exchange() {
        Ok(()) => rustix::fs::unlinkat(dir, &new, AtFlags::empty()).inspect_err(|_| {
            let _ = exchange();
        }),
        // Not every filesystem can.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            let aside = free_name(dir).map_err(|_| Errno::EXIST)?;
            rustix::fs::renameat(dir, name, dir, &aside)?;
            let renamed = rustix::fs::renameat(dir, &new, dir, name);
            match renamed {
                Ok(()) => rustix::fs::unlinkat(dir, &aside, AtFlags::empty()),
                Err(_) => rustix::fs::renameat(dir, &aside, dir, name).and(renamed),
            }
        }
        Err(errno) => Err(errno),
    };
    let made = host::open_at(dir.as_fd(), new.as_bytes(), OFlags::DIRECTORY)
        .and_then(|made| host::freed(dir.as_fd(), name, replace).map(|()| made));
    if made.is_err() {
        let _ = rustix::fs::unlinkat(dir, &new, AtFlags::REMOVEDIR);
    }
    Ok(made?)
}

/// A name that nothing has.
fn free_name(dir: &OwnedFd) -> Result<String, Trouble> {
    let is_free = |new: &String| host::stat_at(dir.as_fd(), new.as_bytes()) == Err(Errno::NOENT);
    new_names(NEW_NAME).find(is_free).ok_or_else(|| too_many(NEW_NAME))
}
