//! What an export gives files and directories beside their contents: owner, bits, extended attributes and flags, where they differ.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Gid, OFlags, Uid};
use rustix::io::Errno;
use varve_fs::{Attr, FileFlags, FileKind};

use super::{Export, Level, Step, replaced, unreadable};
use crate::transfer::held::{Held, hold};
use crate::transfer::host::{self, Flagged, HostStat, Xattr};
use crate::transfer::tally::Trouble;
use crate::transfer::target::sync_file;

impl Export<'_> {
    /// Sets flags, and gives whether they were others before.
    pub(super) fn flag(&mut self, flags: &mut Flagged<'_>, wanted: FileFlags) -> bool {
        if !flags.set(wanted) {
            self.tally.summary.flags_left_out_count += 1;
        }
        flags.now != flags.had
    }

    /// The same of what is at `path` below the target.
    pub(super) fn flag_at(&mut self, path: &Path, wanted: FileFlags, uid: u32) {
        let file = host::parent_of(&self.root, path)
            .and_then(|(dir, name)| host::open_at(dir.as_fd(), name, OFlags::empty()))
            .ok();
        if file.as_ref().is_some_and(|file| host::stat_of(file).is_ok_and(|have| have.uid != uid)) {
            return self.problem(path, replaced());
        }
        self.flag(&mut Flagged::of(file.as_ref().map(AsFd::as_fd)), wanted);
        self.settle(path, file);
    }

    /// Gives the directory at `path` below the target its bits.
    pub(super) fn bits_at(&mut self, path: &Path, mode: u32) {
        let at = match path.as_os_str().is_empty() {
            true => self.root.try_clone().map(|root| (root, &b"."[..])).map_err(|_| Errno::MFILE),
            false => host::parent_of(&self.root, path),
        };
        let set = at.and_then(|(dir, name)| {
            let open = host::open_at(dir.as_fd(), name, OFlags::DIRECTORY).ok();
            host::set_mode(dir.as_fd(), name, mode).map(|()| open)
        });
        match set {
            Ok(open) => self.settle(path, open),
            Err(errno) => {
                let error = format!("its mode cannot be set: {}", std::io::Error::from(errno));
                self.problem(path, error);
            }
        }
    }

    /// What is open has been changed after it was synced: once more, where each is by itself.
    fn settle(&mut self, path: &Path, open: Option<OwnedFd>) {
        let Some(open) = open else { return };
        let synced =
            host::stat_of(&open).and_then(|have| sync_file(&open, self.filesystems.wants_each(have.id.0)));
        if let Err(errno) = synced {
            self.problem(path, format!("it cannot be synced: {}", std::io::Error::from(errno)));
        }
    }

    /// Gives a file that was just made owner, bits and extended attributes.
    pub(super) fn give(&mut self, from: &Attr, target: &OwnedFd) -> Step<()> {
        let have = host::stat_of(target)?;
        // It may have some from its directory.
        let mut flags = Flagged::of(Some(target.as_fd()));
        let given = self.attributes(from, &have, &Held::of(target), &mut flags);
        if self.superuser && host::stat_of(target)?.uid != from.uid {
            self.ownerless.insert(have.id.0);
        }
        given.map(drop)
    }

    /// Gives what is equal the attributes, times and flags that it should have.
    pub(super) fn mend(
        &mut self,
        dir: &Level,
        path: &Path,
        name: &[u8],
        from: &Attr,
        have: &HostStat,
    ) -> Step<()> {
        let held = hold(dir.target.as_fd(), name)?;
        let held = Held::of(&held);
        if held.stat()?.id != have.id {
            return Err(Trouble::Entry(replaced()));
        }
        let file = (from.kind == FileKind::File).then(|| held.open().ok()).flatten();
        let mut flags = Flagged::of(file.as_ref().map(AsFd::as_fd));
        let mut changed = self.attributes(from, have, &held, &mut flags)?;
        let differ = (have.atime, have.mtime) != (from.atime, from.mtime);
        if differ {
            flags.free();
            held.set_times(&host::times(from.atime, from.mtime))?;
        }
        if from.kind == FileKind::File {
            if from.links > 1 && from.flags != flags.had {
                self.flags_last.push((path.to_path_buf(), from.flags, held.stat()?.uid));
            }
            let now = if from.links > 1 { flags.had } else { from.flags };
            changed |= self.flag(&mut flags, now);
        }
        self.tally.summary.attributes_changed_count += u64::from(changed);
        let each = (changed || differ) && self.filesystems.wants_each(have.id.0);
        Ok(file.map_or(Ok(()), |file| sync_file(&file, each))?)
    }

    /// Gives what is held owner, bits and extended attributes, where they differ. Gives whether any did.
    pub(super) fn attributes(
        &mut self,
        from: &Attr,
        have: &HostStat,
        held: &Held<'_>,
        flags: &mut Flagged<'_>,
    ) -> Step<bool> {
        let mut changed = false;
        if (from.uid, from.gid) != (have.uid, have.gid) {
            if self.superuser {
                let (user, group) = (Uid::from_raw(from.uid), Gid::from_raw(from.gid));
                flags.free();
                held.set_owner(user, group)?;
                changed = true;
            } else {
                self.owners_left_out = true;
            }
        }
        changed |= self.xattrs(from, held, flags)?;
        // Last: a new owner and an access list change the bits.
        let have = if changed { held.stat()? } else { *have };
        // A program that runs as its owner is not to run as somebody else.
        let mut mode = from.mode;
        if from.uid != have.uid {
            mode &= !0o4000;
        }
        if from.gid != have.gid && from.kind != FileKind::Directory {
            mode &= !0o2000;
        }
        if from.kind != FileKind::Symlink && mode != have.mode {
            flags.free();
            held.set_mode(mode)?;
            changed = true;
        }
        Ok(changed)
    }

    fn xattrs(&mut self, from: &Attr, held: &Held<'_>, flags: &mut Flagged<'_>) -> Step<bool> {
        let mut wanted: Vec<Xattr> = Vec::new();
        for xattr in self.filesystem.listxattr(from.ino).map_err(unreadable)? {
            let value = self.filesystem.getxattr(from.ino, &xattr).map_err(unreadable)?;
            wanted.push((xattr, value));
        }
        let room = &mut self.room;
        let (have, _) = held.as_owner(|| held.xattrs(room))?;
        let mut changed = false;
        for (xattr, _) in &have {
            // What the system puts on files itself is its own business; what a program may do that is run is not.
            let by_system = xattr.starts_with(b"security.") && xattr != b"security.capability";
            if !by_system && wanted.iter().all(|(wanted, _)| wanted != xattr) {
                flags.free();
                held.as_owner(|| held.remove_xattr(xattr))?;
                changed = true;
            }
        }
        for xattr in wanted.iter().filter(|xattr| !have.contains(xattr)) {
            flags.free();
            match held.as_owner(|| held.set_xattr(xattr)) {
                Ok(()) => changed = true,
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSPC | Errno::RANGE | Errno::TOOBIG) => {
                    self.tally.summary.xattrs_left_out_count += 1;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(changed)
    }
}
