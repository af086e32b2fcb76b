//! What an export gives files and directories beside their contents: owner, bits, extended attributes and flags, where they differ.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Gid, OFlags, StatVfs, Uid};
use rustix::io::Errno;
use varve_fs::{Attr, FileFlags, FileKind};

use super::{Export, Level, Step, replaced, unreadable};
use crate::transfer::held::{Held, hold};
use crate::transfer::host::{self, Flagged, HostStat, Xattr};
use crate::transfer::tally::Trouble;
use crate::transfer::target::sync_file;

/// Where the list is that says who may do what with a file.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// A filesystem with so much room is not full, whatever it keeps for itself.
const ROOM_BYTES: u64 = 16 << 20;

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
        let (given, list_left_out) = self.xattrs(from, held, flags)?;
        changed |= given;
        if list_left_out.is_some() {
            // An older list may be there still, with entries for others.
            changed |= held.as_owner(|| held.remove_xattr(ACCESS_LIST)).is_ok();
        }
        // Last: a new owner and an access list change the bits.
        let have = if changed { held.stat()? } else { *have };
        let mut mode = from.mode;
        if let Some(list) = list_left_out {
            mode &= bits_without(&list);
        }
        // A program that runs as its owner is not to run as somebody else.
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

    /// Gives what is held its extended attributes. Gives whether any were others, and the access list if that was left out.
    fn xattrs(
        &mut self,
        from: &Attr,
        held: &Held<'_>,
        flags: &mut Flagged<'_>,
    ) -> Step<(bool, Option<Vec<u8>>)> {
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
        let wanted_bytes = wanted.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum();
        let mut list_left_out = None;
        for xattr in wanted.iter().filter(|xattr| !have.contains(xattr)) {
            flags.free();
            match held.as_owner(|| held.set_xattr(xattr)) {
                Ok(()) => changed = true,
                Err(Errno::NOSPC) if !held.room().is_ok_and(|room| is_too_large(wanted_bytes, &room)) => {
                    let error = std::io::Error::from(Errno::NOSPC);
                    return Err(Trouble::Entry(format!(
                        "its extended attributes cannot be set: {error}; make room there and run the same command again"
                    )));
                }
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSPC | Errno::RANGE | Errno::TOOBIG) => {
                    self.tally.summary.xattrs_left_out_count += 1;
                    if xattr.0 == ACCESS_LIST {
                        list_left_out = Some(xattr.1.clone());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok((changed, list_left_out))
    }
}

/// Whether a filesystem that says it is full has room, and no file of it takes so many bytes of extended attributes: ext4 has one block for all
/// that do not fit into an inode, and says that it is full of more. Half a block is what always fits.
pub(super) fn is_too_large(bytes: u64, room: &StatVfs) -> bool {
    let has_inodes = room.f_files == 0 || room.f_favail > 0;
    bytes > room.f_bsize / 2 && has_inodes && room.f_bavail.saturating_mul(room.f_frsize) >= ROOM_BYTES
}

/// Of a mode the bits that give nobody more without this access list than with it. Beside a list the group's bits are its mask: the most that
/// anybody whom it names may do. Without it they are the group's, which may do what the list lets it, and a user whom it names counts as one
/// of the group or of the others, who then may do no more than he; so does a group, as one of the others. A list that makes no sense
/// leaves its owner's bits alone.
pub(super) fn bits_without(list: &[u8]) -> u32 {
    // As Linux has them (acl(5), and posix_acl_xattr.h): a version, then entries of a tag, permissions and an id.
    const HEADER_BYTES: usize = 4;
    const ENTRY_BYTES: usize = 8;
    const USER: u16 = 2;
    const GROUP_OWNER: u16 = 4;
    const GROUP: u16 = 8;
    const MASK: u16 = 0x10;
    let entries = list.get(HEADER_BYTES..).unwrap_or_default().chunks_exact(ENTRY_BYTES);
    let entries = entries.map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), u32::from(entry[2] & 7)));
    let mask = entries.clone().find(|(tag, _)| *tag == MASK).map_or(7, |(_, bits)| bits);
    let own = entries.clone().find(|(tag, _)| *tag == GROUP_OWNER);
    let Some((_, own)) = own else { return !0o077 };
    let (group, others) = entries.fold((own & mask, 7), |(group, others), (tag, bits)| match tag {
        USER => (group & bits & mask, others & bits & mask),
        GROUP => (group, others & bits & mask),
        _ => (group, others),
    });
    !0o077 | group << 3 | others
}
