//! What every verb does to the model, and which error it gives.
//!
//! The rules are those of POSIX as Linux reads it. Time is the harness's: one instant a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_fs::{Caller, InodeId, NAME_BYTES_MAX, RenameMode, SetAttr, SetTime, Timestamp, XattrMode};

use super::{Body, Choice, Inode, Model};
use crate::call::{Call, fill};

/// A Linux errno.
pub type Errno = i32;

const EPERM: Errno = 1;
const ENOENT: Errno = 2;
const EEXIST: Errno = 17;
const ENOTDIR: Errno = 20;
const EISDIR: Errno = 21;
const EINVAL: Errno = 22;
const ENAMETOOLONG: Errno = 36;
const ENOTEMPTY: Errno = 39;
const ENODATA: Errno = 61;

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
    /// Bytes a write accepted.
    pub written: usize,
    /// Set when the verb is applied to a logged state, where data of `write` waits for its own place.
    pub logged: bool,
}

impl Model {
    /// Applies `call`; on an error nothing has changed. Calls that only make things durable do nothing here.
    pub fn apply(&mut self, call: &Call, cx: &Context) -> Result<(), Errno> {
        match call {
            Call::Create { parent, name, mode } => {
                self.make(*parent, name, *mode, Body::File(Arc::default()), cx)
            }
            Call::Mkdir { parent, name, mode } => {
                let body = Body::Directory { entries: Arc::default(), parent: *parent };
                self.make(*parent, name, *mode, body, cx)
            }
            Call::Symlink { parent, name, target } => {
                self.make(*parent, name, 0o777, Body::Symlink(target.as_slice().into()), cx)
            }
            Call::Link { ino, parent, name } => self.link(*ino, *parent, name, cx),
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
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                inode.opens -= 1;
                if inode.opens == 0 && inode.links == 0 {
                    self.inodes.remove(*ino);
                }
                Ok(())
            }
            Call::Write { ino, offset, len, seed } => {
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                if inode.entries().is_some() {
                    return Err(EISDIR);
                }
                let content = inode.content_mut().ok_or(EINVAL)?;
                if !cx.logged && cx.written > 0 {
                    content.write(*offset, &fill(*seed, *len)[..cx.written]);
                    inode.mtime.set(cx.now);
                    inode.ctime.set(cx.now);
                    clear_set_ids_unless_root(inode, cx.caller);
                }
                Ok(())
            }
            Call::SetXattr { ino, name, value, mode } => {
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                match (mode, inode.xattrs.contains_key(name)) {
                    (XattrMode::Create, true) => return Err(EEXIST),
                    (XattrMode::Replace, false) => return Err(ENODATA),
                    _ => {}
                }
                inode.xattrs.insert(name.clone(), value.clone());
                inode.ctime.set(cx.now);
                Ok(())
            }
            Call::RemoveXattr { ino, name } => {
                let inode = self.get_mut(*ino).ok_or(ENOENT)?;
                inode.xattrs.remove(name).ok_or(ENODATA)?;
                inode.ctime.set(cx.now);
                Ok(())
            }
            Call::Fsync { ino } | Call::FlushFile { ino } => self.get(*ino).map(drop).ok_or(ENOENT),
            Call::Sync | Call::Checkpoint | Call::Maintain | Call::Close => Ok(()),
        }
    }

    fn directory(&self, ino: InodeId) -> Result<&BTreeMap<Vec<u8>, InodeId>, Errno> {
        self.get(ino).ok_or(ENOENT)?.entries().ok_or(ENOTDIR)
    }

    fn entries_mut(&mut self, ino: InodeId) -> &mut BTreeMap<Vec<u8>, InodeId> {
        match &mut self.get_mut(ino).expect("checked by the caller").body {
            Body::Directory { entries, .. } => Arc::make_mut(entries),
            _ => unreachable!("checked by the caller"),
        }
    }

    fn touch(&mut self, directory: InodeId, now: Timestamp) {
        let inode = self.get_mut(directory).expect("checked by the caller");
        inode.mtime.set(now);
        inode.ctime.set(now);
    }

    fn make(
        &mut self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
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
        let above = self.get(parent).expect("looked up above");
        let (mut mode, mut gid) = (mode, cx.caller.gid);
        if above.mode.get() & SET_GID != 0 {
            gid = above.gid;
            if matches!(body, Body::Directory { .. }) {
                mode |= SET_GID;
            }
        }
        let inode = Inode {
            mode: Choice::new(mode),
            uid: cx.caller.uid,
            gid,
            links: 1,
            atime: cx.now,
            mtime: Choice::new(cx.now),
            ctime: Choice::new(cx.now),
            btime: cx.now,
            xattrs: BTreeMap::new(),
            body,
            opens: 0,
        };
        self.inodes.insert(cx.created, inode);
        self.entries_mut(parent).insert(name.to_vec(), cx.created);
        self.touch(parent, cx.now);
        Ok(())
    }

    fn link(&mut self, ino: InodeId, parent: InodeId, name: &[u8], cx: &Context) -> Result<(), Errno> {
        let inode = self.get(ino).ok_or(ENOENT)?;
        if inode.entries().is_some() {
            return Err(EPERM);
        }
        if inode.links == 0 {
            return Err(ENOENT);
        }
        if self.directory(parent)?.contains_key(name) {
            return Err(EEXIST);
        }
        let inode = self.get_mut(ino).expect("looked up above");
        inode.links += 1;
        inode.ctime.set(cx.now);
        self.entries_mut(parent).insert(name.to_vec(), ino);
        self.touch(parent, cx.now);
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
        self.entries_mut(parent).remove(name);
        self.touch(parent, cx.now);
        self.drop_link(ino, cx.now);
        Ok(())
    }

    fn rmdir(&mut self, parent: InodeId, name: &[u8], cx: &Context) -> Result<(), Errno> {
        let ino = *self.directory(parent)?.get(name).ok_or(ENOENT)?;
        if !self.directory(ino)?.is_empty() {
            return Err(ENOTEMPTY);
        }
        self.entries_mut(parent).remove(name);
        self.touch(parent, cx.now);
        self.drop_link(ino, cx.now);
        Ok(())
    }

    /// Whether `ino` is `above` or lies below it.
    fn is_below(&self, mut ino: InodeId, above: InodeId) -> bool {
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
        let is_directory = |model: &Model, ino| model.get(ino).is_some_and(|inode| inode.entries().is_some());
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        if is_directory(self, source) && self.is_below(to.0, source) {
            return Err(EINVAL);
        }
        if let Some(target) = target {
            if mode == RenameMode::Exchange && is_directory(self, target) && self.is_below(from.0, target) {
                return Err(EINVAL);
            }
            if target == source {
                return Ok(());
            }
            if mode == RenameMode::Replace {
                match (is_directory(self, source), is_directory(self, target)) {
                    (true, false) => return Err(ENOTDIR),
                    (false, true) => return Err(EISDIR),
                    (true, true) if !self.directory(target)?.is_empty() => return Err(ENOTEMPTY),
                    _ => {}
                }
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
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        if let Some(size) = set.size {
            match &mut inode.body {
                Body::File(content) => Arc::make_mut(content).truncate(size),
                Body::Directory { .. } => return Err(EISDIR),
                Body::Symlink(_) => return Err(EINVAL),
            }
            inode.mtime.set(cx.now);
            clear_set_ids_unless_root(inode, cx.caller);
        }
        if (set.uid.is_some() || set.gid.is_some()) && inode.entries().is_none() {
            // Whoever asks: a new owner does not inherit what the old one granted.
            clear_set_ids(inode);
        }
        if let Some(mode) = set.mode {
            inode.mode.set(mode);
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        let time = |time: SetTime| match time {
            SetTime::Now => cx.now,
            SetTime::At(at) => at,
        };
        if let Some(atime) = set.atime {
            inode.atime = time(atime);
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

fn clear_set_ids_unless_root(inode: &mut Inode, caller: Caller) {
    if caller.uid != 0 {
        clear_set_ids(inode);
    }
}

fn clear_set_ids(inode: &mut Inode) {
    let mode = inode.mode.get();
    let mut clear = mode & SET_UID;
    if mode & GROUP_EXECUTE != 0 {
        clear |= mode & SET_GID;
    }
    if clear != 0 {
        inode.mode.set(mode & !clear);
    }
}
