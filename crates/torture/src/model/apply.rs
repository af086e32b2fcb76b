//! What every verb does to the model, and which error it gives.
//!
//! The rules are those of POSIX as Linux reads it. Time is the harness's: one instant a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_fs::{
    Allocate, Caller, FILE_BYTES_MAX, FileKind, InodeId, NAME_BYTES_MAX, RenameMode, SetAttr, SetTime,
    Timestamp, XattrMode,
};

use super::flags::inherited;
use super::forks::{EXDEV, is_subvolume, slot};
use super::{Body, Choice, Inode, Model, PAGE_BYTES, Punch, acl};
use crate::call::{Call, fill};

/// A Linux errno.
pub type Errno = i32;

pub(super) const EPERM: Errno = 1;
pub(super) const ENOENT: Errno = 2;
const EACCES: Errno = 13;
pub(super) const EEXIST: Errno = 17;
pub(super) const ENOTDIR: Errno = 20;
pub(super) const EISDIR: Errno = 21;
pub(super) const EINVAL: Errno = 22;
pub(super) const EFBIG: Errno = 27;
const ENOSPC: Errno = 28;
pub(super) const ENAMETOOLONG: Errno = 36;
pub(super) const ENOTEMPTY: Errno = 39;
const ENODATA: Errno = 61;
pub(super) const EOPNOTSUPP: Errno = 95;

/// Names and values of one inode together, in bytes, and what each counts besides.
const XATTRS_BYTES_MAX: usize = 256 << 10;
const XATTR_OVERHEAD_BYTES: usize = 64;
/// What lets a program do with a file what only root may.
pub const CAPABILITY: &[u8] = b"security.capability";

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// What a verb needs beside its arguments.
#[derive(Clone, Copy)]
pub struct Context {
    /// The time of the call.
    pub now: Timestamp,
    /// Who calls.
    pub caller: Caller,
    /// The number the filesystem gave to the inode this call created.
    pub created: InodeId,
    /// Bytes a write or a copy accepted.
    pub written: usize,
    /// Size that the file it is about had in memory when the call was made.
    pub size: u64,
    /// The number of the call, if it reserves space.
    pub reservation: u64,
    /// Set when the verb is applied to a logged state, where data of `write` waits for its own place.
    pub logged: bool,
}

impl Context {
    /// `mode` after a change of data by the caller.
    pub fn without_set_ids(&self, mode: u32) -> u32 {
        if self.caller.uid == 0 { mode } else { without_set_ids(mode) }
    }
}

impl Model {
    /// Applies `call`; on an error nothing has changed. Calls that only make things durable do nothing here.
    pub fn apply(&mut self, call: &Call, cx: &Context) -> Result<(), Errno> {
        self.admit(call)?;
        if !cx.logged {
            self.permit(call, cx)?;
        }
        match call {
            Call::Create { parent, name, mode } => {
                self.make(*parent, name, (*mode, 0), Body::File(Arc::default()), cx)
            }
            Call::Mkdir { parent, name, mode } => {
                let body = Body::Directory { entries: Arc::default(), parent: *parent };
                self.make(*parent, name, (*mode, 0), body, cx)
            }
            Call::Mknod { parent, name, kind, mode, umask, rdev } => {
                let body = match kind {
                    FileKind::File => Body::File(Arc::default()),
                    FileKind::CharDevice | FileKind::BlockDevice => Body::Node(*kind, *rdev),
                    kind => Body::Node(*kind, 0),
                };
                self.make(*parent, name, (*mode, *umask), body, cx)
            }
            Call::Symlink { parent, name, target } => {
                self.make(*parent, name, (0o777, 0), Body::Symlink(target.as_slice().into()), cx)
            }
            Call::Tmpfile { parent, mode, umask, linkable } => {
                let inode = self.new_inode(*parent, (*mode, *umask), Body::File(Arc::default()), cx)?;
                let nameless = Inode { links: 0, opens: 1, linkable: *linkable, ..inode };
                self.inodes.insert(cx.created, nameless);
                Ok(())
            }
            Call::Link { ino, parent, name } => self.link(*ino, *parent, name, cx),
            Call::LinkOver { ino, parent, name } => self.link_over(*ino, *parent, name, cx),
            Call::Unlink { parent, name } => self.unlink(*parent, name, cx),
            Call::Rmdir { parent, name } => self.rmdir(*parent, name, cx),
            Call::Rename { parent, name, new_parent, new_name, mode } => {
                self.rename((*parent, name), (*new_parent, new_name), *mode, cx)
            }
            Call::SetAttr { ino, set } => self.set_attr(*ino, set, cx),
            Call::Open { ino, truncate } => {
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                inode.opens += 1;
                if *truncate {
                    self.set_attr(*ino, &SetAttr { size: Some(0), ..SetAttr::default() }, cx)?;
                }
                Ok(())
            }
            Call::Release { ino } => {
                // What was open in a subvolume that has been deleted is let go of as everything else.
                let Some(inode) = self.get_mut(*ino) else { return Ok(()) };
                inode.opens -= 1;
                if inode.opens == 0 && inode.links == 0 {
                    self.inodes.remove(*ino);
                }
                Ok(())
            }
            Call::NoteAccess { ino, rule } => self.note_access(*ino, *rule, cx),
            Call::Write { ino, offset, len, seed } => {
                self.file(*ino)?;
                self.write(*ino, *offset, &fill(*seed, *len)[..cx.written], cx)
            }
            Call::Fallocate { ino, offset, len, how } => self.fallocate(*ino, *offset, *len, *how, cx),
            Call::Shift { ino, offset, len, insert } => {
                self.file(*ino)?;
                let whole = offset.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES) && *len > 0;
                let reach = if *insert { *offset } else { offset + len };
                if !whole || reach >= cx.size {
                    return Err(EINVAL);
                }
                self.drop_capability(*ino, cx);
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                inode.content_mut().ok_or(EINVAL)?.shift(*offset, *len, *insert);
                inode.mtime.set(cx.now);
                inode.ctime.set(cx.now);
                clear_set_ids_unless_root(inode, cx.caller);
                Ok(())
            }
            Call::CopyRange { from, from_offset, to, to_offset, len } => {
                let size = self.file(*from)?;
                self.file(*to)?;
                let most = size.saturating_sub(*from_offset).min(*len);
                let apart = from_offset + most <= *to_offset || to_offset + most <= *from_offset;
                if from == to && !apart && most > 0 {
                    return Err(EINVAL);
                }
                let content = self.get(*from).and_then(Inode::content).expect("it is a file");
                let bytes = content.read(*from_offset, most.min(cx.written as u64));
                if (*from_offset, *to_offset) == (0, 0) && most == size && cx.size == 0 {
                    self.remember_fork(*from);
                    let source = self.get(*from).and_then(Inode::content).cloned().unwrap_or_default();
                    self.write(*to, *to_offset, &bytes, cx)?;
                    if from != to
                        && let Some(content) = self.get_mut(*to).and_then(Inode::content_mut)
                    {
                        content.may_share_reserved(&source);
                    }
                    return Ok(());
                }
                self.write(*to, *to_offset, &bytes, cx)
            }
            Call::CloneRange { .. } => self.clone_range(call, cx),
            Call::DedupeRange { from, from_offset, to, to_offset, len } => {
                self.dedupe((*from, *from_offset), (*to, *to_offset), *len, cx)
            }
            Call::SetXattr { ino, name, value, mode } => self.set_xattr(*ino, name, value, *mode, cx),
            Call::RemoveXattr { ino, name } => {
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                if inode.xattrs.remove(name).is_some() {
                    inode.ctime.set(cx.now);
                    return Ok(());
                }
                // Without a list, what was asked for is there already.
                if name == acl::ACCESS || name == acl::DEFAULT { Ok(()) } else { Err(ENODATA) }
            }
            Call::CreateSubvolume { parent, name, mode } => self.create_subvolume(*parent, name, *mode, cx),
            Call::Snapshot { source, parent, name, read_only, .. } => {
                self.snapshot(*source, *parent, name, *read_only, cx)
            }
            Call::DeleteSubvolume { parent, name } => self.delete_subvolume(*parent, name, cx),
            Call::SetFlags { ino, flags } => self.set_flags(*ino, *flags, cx),
            Call::CloneFile { source, parent, name } => self.clone_file(*source, *parent, name, cx),
            Call::Fsync { ino } | Call::FlushFile { ino } => self.get(*ino).map(drop).ok_or(ENOENT),
            Call::FlushAll | Call::Commit { .. } | Call::Sync => Ok(()),
            Call::Checkpoint | Call::Maintain | Call::Trim { .. } | Call::Close => Ok(()),
        }
    }

    /// The size of a regular file.
    pub(super) fn file(&self, ino: InodeId) -> Result<u64, Errno> {
        let inode = self.get(ino).ok_or(ENOENT)?;
        match inode.content() {
            Some(content) => Ok(content.size()),
            None if inode.entries().is_some() => Err(EISDIR),
            None => Err(EINVAL),
        }
    }

    fn write(&mut self, ino: InodeId, offset: u64, bytes: &[u8], cx: &Context) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.drop_capability(ino, cx);
        self.take_shared_reserved(ino, offset, bytes.len() as u64);
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        let content = inode.content_mut().ok_or(EINVAL)?;
        if cx.logged {
            content.spend(offset, bytes.len() as u64);
            return Ok(());
        }
        content.write(offset, bytes);
        inode.mtime.set(cx.now);
        inode.ctime.set(cx.now);
        clear_set_ids_unless_root(inode, cx.caller);
        Ok(())
    }

    fn fallocate(
        &mut self,
        ino: InodeId,
        offset: u64,
        len: u64,
        how: Allocate,
        cx: &Context,
    ) -> Result<(), Errno> {
        self.file(ino)?;
        let end = offset + len;
        if end > FILE_BYTES_MAX {
            return Err(EFBIG);
        }
        if len == 0 {
            return Err(EINVAL);
        }
        self.drop_capability(ino, cx);
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        let content = inode.content_mut().ok_or(EINVAL)?;
        let grows_to = match how {
            Allocate::Reserve { keep_size: false } | Allocate::Zero { keep_size: false } if end > cx.size => {
                end
            }
            _ => cx.size,
        };
        if !matches!(how, Allocate::Reserve { .. }) {
            content.punch(&Punch { from: offset, to: end, size: cx.size }, cx.logged);
        }
        if how != Allocate::Punch {
            content.reserve(offset, end, cx.reservation);
        }
        if grows_to > cx.size {
            content.truncate(grows_to);
        }
        if grows_to > cx.size || !matches!(how, Allocate::Reserve { .. }) {
            inode.mtime.set(cx.now);
        }
        inode.ctime.set(cx.now);
        clear_set_ids_unless_root(inode, cx.caller);
        Ok(())
    }

    /// What is written to, cut or given away loses its capabilities.
    pub fn drop_capability(&mut self, ino: InodeId, cx: &Context) {
        let has = |inode: &Inode| inode.xattrs.contains_key(CAPABILITY);
        if self.get(ino).is_some_and(has)
            && let Some(inode) = self.get_mut(ino)
        {
            inode.xattrs.remove(CAPABILITY);
            inode.ctime.set(cx.now);
        }
    }

    fn set_xattr(
        &mut self,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        cx: &Context,
    ) -> Result<(), Errno> {
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        if name == acl::ACCESS || name == acl::DEFAULT {
            return set_list(inode, name, value, cx);
        }
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(EEXIST),
            (XattrMode::Replace, false) => return Err(ENODATA),
            _ => {}
        }
        let others = inode.xattrs.iter().filter(|(other, _)| *other != name);
        let cost = |name: &[u8], value: &[u8]| name.len() + value.len() + XATTR_OVERHEAD_BYTES;
        let bytes: usize = others.map(|(name, value)| cost(name, value)).sum();
        if bytes + cost(name, value) > XATTRS_BYTES_MAX {
            return Err(ENOSPC);
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.ctime.set(cx.now);
        Ok(())
    }

    pub(super) fn directory(&self, ino: InodeId) -> Result<&BTreeMap<Vec<u8>, InodeId>, Errno> {
        self.get(ino).ok_or(ENOENT)?.entries().ok_or(ENOTDIR)
    }

    pub(super) fn entries_mut(&mut self, ino: InodeId) -> &mut BTreeMap<Vec<u8>, InodeId> {
        match &mut self.get_mut(ino).expect("checked by the caller").body {
            Body::Directory { entries, .. } => Arc::make_mut(entries),
            _ => unreachable!("checked by the caller"),
        }
    }

    pub(super) fn touch(&mut self, directory: InodeId, now: Timestamp) {
        let inode = self.get_mut(directory).expect("checked by the caller");
        inode.mtime.set(now);
        inode.ctime.set(now);
    }

    pub(super) fn make(
        &mut self,
        parent: InodeId,
        name: &[u8],
        (mode, umask): (u32, u32),
        body: Body,
        cx: &Context,
    ) -> Result<(), Errno> {
        let entries = self.directory(parent)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(ENAMETOOLONG);
        }
        if entries.contains_key(name) {
            return Err(EEXIST);
        }
        let inode = self.new_inode(parent, (mode, umask), body, cx)?;
        self.inodes.insert(cx.created, inode);
        self.entries_mut(parent).insert(name.to_vec(), cx.created);
        self.touch(parent, cx.now);
        Ok(())
    }

    /// A new inode with one link, made in the directory `parent`.
    pub(super) fn new_inode(
        &self,
        parent: InodeId,
        (mode, umask): (u32, u32),
        body: Body,
        cx: &Context,
    ) -> Result<Inode, Errno> {
        self.directory(parent)?;
        let above = self.get(parent).expect("looked up above");
        let mut xattrs = BTreeMap::new();
        let default = above.xattrs.get(acl::DEFAULT).filter(|_| !matches!(body, Body::Symlink(_)));
        let (mut mode, mut gid) = (if default.is_some() { mode } else { mode & !umask }, cx.caller.gid);
        if let Some(value) = default {
            let entries = acl::with_mode(&acl::decode(value)?, mode, |entry, bits| entry & bits);
            mode = mode & 0o7000 | acl::mode(&entries);
            if !acl::is_minimal(&entries) {
                xattrs.insert(acl::ACCESS.to_vec(), acl::encode(&entries));
            }
            if matches!(body, Body::Directory { .. }) {
                xattrs.insert(acl::DEFAULT.to_vec(), value.clone());
            }
        }
        if above.mode.get() & SET_GID != 0 {
            gid = above.gid;
            if matches!(body, Body::Directory { .. }) {
                mode |= SET_GID;
            } else if mode & (SET_GID | 0o010) == SET_GID | 0o010
                && cx.caller.uid != 0
                && cx.caller.gid != gid
            {
                mode &= !SET_GID;
            }
        }
        Ok(Inode {
            flags: inherited(above.flags, &body),
            mode: Choice::new(mode),
            uid: cx.caller.uid,
            gid,
            links: 1,
            atime: Choice::new(cx.now),
            mtime: Choice::new(cx.now),
            ctime: Choice::new(cx.now),
            btime: cx.now,
            xattrs,
            body,
            opens: 0,
            linkable: false,
        })
    }

    /// Whether `ino` may be given a name in `parent`.
    fn require_linkable(&self, ino: InodeId, parent: InodeId) -> Result<&Inode, Errno> {
        let inode = self.get(ino).ok_or(ENOENT)?;
        if inode.entries().is_some() {
            return Err(EPERM);
        }
        if inode.links == 0 && !inode.linkable {
            return Err(ENOENT);
        }
        if slot(ino) != slot(parent) {
            return Err(EXDEV);
        }
        Ok(inode)
    }

    fn link(&mut self, ino: InodeId, parent: InodeId, name: &[u8], cx: &Context) -> Result<(), Errno> {
        self.require_linkable(ino, parent)?;
        if self.directory(parent)?.contains_key(name) {
            return Err(EEXIST);
        }
        let inode = self.get_mut(ino).expect("looked up above");
        inode.links += 1;
        inode.linkable = false;
        inode.ctime.set(cx.now);
        self.entries_mut(parent).insert(name.to_vec(), ino);
        self.touch(parent, cx.now);
        Ok(())
    }

    fn link_over(&mut self, ino: InodeId, parent: InodeId, name: &[u8], cx: &Context) -> Result<(), Errno> {
        if self.require_linkable(ino, parent)?.links > 0 {
            return Err(ENOENT);
        }
        let target = *self.directory(parent)?.get(name).ok_or(ENOENT)?;
        if is_subvolume(target) || self.get(target).is_some_and(|inode| inode.entries().is_some()) {
            return Err(EISDIR);
        }
        for ino in [parent, target] {
            self.require_unprotected(ino)?;
        }
        let inode = self.get_mut(ino).expect("looked up above");
        (inode.links, inode.linkable) = (1, false);
        inode.ctime.set(cx.now);
        self.entries_mut(parent).insert(name.to_vec(), ino);
        self.touch(parent, cx.now);
        self.drop_link(target, cx.now);
        Ok(())
    }

    /// Takes one name away from `ino`.
    fn drop_link(&mut self, ino: InodeId, now: Timestamp) {
        let inode = self.get_mut(ino).expect("named inodes exist");
        inode.links -= 1;
        inode.ctime.set(now);
        if inode.links == 0 && inode.opens == 0 {
            self.inodes.remove(ino);
        }
    }

    fn unlink(&mut self, parent: InodeId, name: &[u8], cx: &Context) -> Result<(), Errno> {
        let ino = *self.directory(parent)?.get(name).ok_or(ENOENT)?;
        if self.get(ino).expect("named inodes exist").entries().is_some() {
            return Err(EISDIR);
        }
        self.require_unprotected(ino)?;
        self.entries_mut(parent).remove(name);
        self.touch(parent, cx.now);
        self.drop_link(ino, cx.now);
        Ok(())
    }

    fn rmdir(&mut self, parent: InodeId, name: &[u8], cx: &Context) -> Result<(), Errno> {
        let ino = *self.directory(parent)?.get(name).ok_or(ENOENT)?;
        if is_subvolume(ino) && self.is_frozen(ino) {
            return Err(EPERM);
        }
        let empty = self.directory(ino)?.is_empty();
        self.require_unprotected(ino)?;
        if !empty {
            return Err(ENOTEMPTY);
        }
        if is_subvolume(ino) {
            return self.delete_subvolume(parent, name, cx);
        }
        self.entries_mut(parent).remove(name);
        self.touch(parent, cx.now);
        self.drop_link(ino, cx.now);
        Ok(())
    }

    /// Whether `ino` is `above` or lies below it.
    pub(super) fn is_below(&self, mut ino: InodeId, above: InodeId) -> bool {
        loop {
            if ino == above {
                return true;
            }
            match self.get(ino).map(|inode| &inode.body) {
                Some(Body::Directory { parent, .. }) if *parent != ino => ino = *parent,
                _ => return false,
            }
        }
    }

    fn rename(
        &mut self,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
        cx: &Context,
    ) -> Result<(), Errno> {
        let source = *self.directory(from.0)?.get(from.1).ok_or(ENOENT)?;
        let target = self.directory(to.0)?.get(to.1).copied();
        if is_subvolume(source) || target.is_some_and(is_subvolume) {
            return self.rename_subvolume(from, to, mode, cx);
        }
        if slot(from.0) != slot(to.0) {
            return Err(EXDEV);
        }
        let is_directory = |model: &Model, ino| model.get(ino).is_some_and(|inode| inode.entries().is_some());
        match (mode, target) {
            (_, Some(_)) if mode.refuses() => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        if is_directory(self, source) && self.is_below(to.0, source) {
            return Err(EINVAL);
        }
        if let Some(target) = target {
            if is_directory(self, target) && self.is_below(from.0, target) {
                // What holds the source is not empty, whatever else is wrong with it.
                return Err(if mode == RenameMode::Exchange { EINVAL } else { ENOTEMPTY });
            }
            if target == source {
                return Ok(());
            }
        }
        for ino in [Some(source), target, target.map(|_| to.0)].into_iter().flatten() {
            self.require_unprotected(ino)?;
        }
        if let Some(target) = target
            && mode.replaces()
        {
            match (is_directory(self, source), is_directory(self, target)) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                (true, true) if !self.directory(target)?.is_empty() => return Err(ENOTEMPTY),
                _ => {}
            }
        }
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.to_vec(), source);
        self.moved(source, to.0, cx.now);
        if let Some(target) = target {
            if mode == RenameMode::Exchange {
                self.entries_mut(from.0).insert(from.1.to_vec(), target);
                self.moved(target, from.0, cx.now);
            } else {
                self.drop_link(target, cx.now);
            }
        }
        if let RenameMode::Whiteout { caller, .. } = mode {
            let body = Body::Node(FileKind::CharDevice, 0);
            let mut left = self.new_inode(from.0, (0, 0), body, &Context { caller, ..*cx })?;
            // Nothing is inherited by what stands for nothing.
            (left.mode, left.xattrs) = (Choice::new(0), BTreeMap::new());
            self.inodes.insert(cx.created, left);
            self.entries_mut(from.0).insert(from.1.to_vec(), cx.created);
        }
        self.touch(from.0, cx.now);
        self.touch(to.0, cx.now);
        Ok(())
    }

    fn moved(&mut self, ino: InodeId, to: InodeId, now: Timestamp) {
        let inode = self.get_mut(ino).expect("named inodes exist");
        inode.ctime.set(now);
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = to;
        }
    }

    fn set_attr(&mut self, ino: InodeId, set: &SetAttr, cx: &Context) -> Result<(), Errno> {
        if set.size.is_some() {
            self.file(ino)?;
        }
        let inode = self.get(ino).ok_or(ENOENT)?;
        let takes = !inode.stays_privileged(cx.caller);
        let given = set.uid.is_some() || set.gid.is_some();
        if takes && (set.size.is_some() || given) {
            self.drop_capability(ino, cx);
        }
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        if let Some(size) = set.size {
            inode.content_mut().ok_or(EINVAL)?.set_size(size, cx.size);
            inode.mtime.set(cx.now);
            clear_set_ids_unless_root(inode, cx.caller);
        }
        if takes && given {
            // Whoever asks: a new owner does not inherit what the old one granted.
            clear_set_ids(inode);
        }
        if let Some(mode) = set.mode {
            inode.mode.set(mode);
            if let Some(value) = inode.xattrs.get_mut(acl::ACCESS) {
                *value = acl::encode(&acl::with_mode(&acl::decode(value)?, mode, |_, bits| bits));
            }
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        let time = |time: SetTime| match time {
            SetTime::Now => cx.now,
            SetTime::At(at) => at,
        };
        if let Some(atime) = set.atime {
            inode.atime.set(time(atime));
        }
        if let Some(mtime) = set.mtime {
            inode.mtime.set(time(mtime));
        }
        if *set != SetAttr::default() {
            inode.ctime.set(cx.now);
        }
        Ok(())
    }
}

fn set_list(inode: &mut Inode, name: &[u8], value: &[u8], cx: &Context) -> Result<(), Errno> {
    let entries = acl::decode(value)?;
    if entries.is_empty() {
        if inode.xattrs.remove(name).is_some() {
            inode.ctime.set(cx.now);
        }
        return Ok(());
    }
    match inode.body {
        Body::Symlink(_) => return Err(EOPNOTSUPP),
        Body::Directory { .. } => {}
        _ if name == acl::DEFAULT => return Err(EACCES),
        _ => {}
    }
    if name == acl::ACCESS {
        let mut mode = inode.mode.get() & 0o7000 | acl::mode(&entries);
        if cx.caller.uid != 0 && cx.caller.gid != inode.gid {
            mode &= !SET_GID;
        }
        inode.mode.set(mode);
    }
    if name == acl::ACCESS && acl::is_minimal(&entries) {
        inode.xattrs.remove(name);
    } else {
        inode.xattrs.insert(name.to_vec(), value.to_vec());
    }
    inode.ctime.set(cx.now);
    Ok(())
}

pub(super) fn clear_set_ids_unless_root(inode: &mut Inode, caller: Caller) {
    if caller.uid != 0 {
        clear_set_ids(inode);
    }
}

fn clear_set_ids(inode: &mut Inode) {
    let mode = inode.mode.get();
    if without_set_ids(mode) != mode {
        inode.mode.set(without_set_ids(mode));
    }
}

fn without_set_ids(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
    mode & !(SET_UID | group)
}
