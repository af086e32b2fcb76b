//! Finding: lookup, getattr, readlink, readdir, statfs.

use std::sync::atomic::Ordering;

use varve_engine::{EngineError, InodeId};
use varve_format::Corrupt;
use varve_format::record::inode::{InodeKind, InodeRecord};
use varve_format::record::name::NamePosition;

use super::create::TARGET_BYTES_MAX;
use crate::api::{Attr, DirEntry, FileFlags, NAME_BYTES_MAX, ROOT_INODE, StatFs};
use crate::core::Core;
use crate::inode::Inner;
use crate::known::Name;
use crate::subvolume::Slot;
use crate::table::Namespace;
use crate::{FsError, Result};

/// Names of subvolumes that a listing takes along at once.
const NESTED_AT_A_TIME: usize = 512;

impl Core {
    pub(crate) fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        match name {
            b"." | b".." => {
                let state = self.state(parent);
                let inner = self.read_lock(&state)?;
                if inner.record.kind != InodeKind::Directory {
                    return Err(FsError::NotDirectory);
                }
                if name == b"." {
                    self.require_there(parent)?;
                    return Ok(self.attr_of(parent, &inner));
                }
                drop(inner);
                let up = self.up(parent)?;
                self.getattr(up)
            }
            _ if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
            _ => {
                let base = self.subvolumes.hasher.base(name);
                if let Some(attr) = self.lookup_subvolume(parent, base, name)? {
                    return Ok(attr);
                }
                for _ in 0..super::RETRIES_MAX {
                    let Some((ino, _)) = self.leads_to(parent, base, name)? else { break };
                    match self.getattr(ino) {
                        // Another file has been renamed over it meanwhile: the name was there all the time.
                        Err(FsError::NotFound) => {}
                        result => return result,
                    }
                }
                self.require_way(parent)?;
                Err(FsError::NotFound)
            }
        }
    }

    /// What `name` in `parent` leads to, as its entry has it: no inode is looked at.
    pub(crate) fn find(&self, parent: InodeId, name: &[u8]) -> Result<(InodeId, InodeKind)> {
        match name {
            b"." | b".." => self.lookup(parent, name).map(|attr| (attr.ino, attr.kind)),
            _ if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
            _ => {
                let base = self.subvolumes.hasher.base(name);
                if let Some(ino) = self.subvolume_at(parent, base, name) {
                    return Ok((ino, InodeKind::Directory));
                }
                let Some(found) = self.leads_to(parent, base, name)? else {
                    self.require_way(parent)?;
                    return Err(FsError::NotFound);
                };
                Ok(found)
            }
        }
    }

    /// Where the name of an entry leads, if there is one: as is known from lately, or as the tree has it.
    fn leads_to(
        &self,
        parent: InodeId,
        base: NamePosition,
        name: &[u8],
    ) -> Result<Option<(InodeId, InodeKind)>> {
        let known = self.known_name(parent, base, name);
        let unknown = match known.as_ref().map(|known| self.known.find(known)) {
            Some(Ok(found)) => return Ok(Some(found)),
            Some(Err(unknown)) => Some(unknown),
            None => None,
        };
        let found = self.names_first(parent)?.lookup_at(parent, base, name)?;
        let found = found.map(|found| (found.ino, found.kind));
        if let (Some(unknown), Some(known), Some(found)) = (unknown, &known, found) {
            unknown.is(known, found);
        }
        Ok(found)
    }

    /// The name in the directory of a subvolume that is there, if such are kept.
    pub(super) fn known_name<'n>(
        &self,
        dir: InodeId,
        base: NamePosition,
        name: &'n [u8],
    ) -> Option<Name<'n>> {
        if self.names_elsewhere.load(Ordering::Relaxed) || !Name::is_kept(name) {
            return None;
        }
        let subvolume =
            self.subvolumes.get(Slot::of(dir)).ok().filter(|subvolume| !subvolume.has_let_go())?;
        Some(Name { subvolume: subvolume.id, dir, base, name })
    }

    /// The root of the subvolume that is `name` in `parent`, if there is one: then there is no entry of that name. Asked
    /// first, since that costs next to nothing where there is none.
    fn subvolume_at(&self, parent: InodeId, base: NamePosition, name: &[u8]) -> Option<InodeId> {
        let (_, slot) = self.subvolumes.nested.find(parent, base, name)?;
        slot.map(|slot| slot.full(ROOT_INODE))
    }

    /// The root of the subvolume that is `name` in `parent`, if there is one.
    fn lookup_subvolume(&self, parent: InodeId, base: NamePosition, name: &[u8]) -> Result<Option<Attr>> {
        let mut gone = None;
        for _ in 0..super::RETRIES_MAX {
            let Some(ino) = self.subvolume_at(parent, base, name) else { return Ok(None) };
            match self.getattr(ino) {
                // It has let go of what it held, and its name goes next.
                Err(FsError::Stale) if gone == Some(ino) => return Err(FsError::NotFound),
                // It has been deleted. Another one may have got its name before that.
                Err(FsError::Stale) => gone = Some(ino),
                result => return result.map(Some),
            }
        }
        Err(FsError::NotFound)
    }

    /// Refuses what is no directory, to who has found no name in it.
    fn require_way(&self, parent: InodeId) -> Result<()> {
        let state = self.state(parent);
        // Not asked of its lock: who makes files in it holds that nearly all the time.
        if !state.known_directory() && self.read_lock(&state)?.record.kind != InodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(())
    }

    pub(crate) fn getattr(&self, ino: InodeId) -> Result<Attr> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        self.require_there(ino)?;
        Ok(self.attr_of(ino, &inner))
    }

    /// Refuses an inode of a subvolume that is being deleted, of which some may still be in memory: its generation is not known any more.
    fn require_there(&self, ino: InodeId) -> Result<()> {
        let slot = Slot::of(ino);
        if slot == Slot::FIRST || self.subvolumes.id_of(slot).is_some() {
            Ok(())
        } else {
            Err(FsError::Stale)
        }
    }

    /// The attributes of an inode that is locked, always the same generation of it: the kernel takes another one for another inode.
    pub(super) fn attr_of(&self, ino: InodeId, inner: &Inner) -> Attr {
        let mut attr = attr(ino, inner);
        let slot = Slot::of(ino);
        if let Some(id) = self.subvolumes.id_of(slot) {
            // What was in the slot before had the same numbers, perhaps of the same source. A multiplication keeps generations apart that are.
            let mixed = attr.generation ^ u64::from((id as u32).wrapping_mul(0x9e37_79b1));
            attr.generation = mixed.max(1);
        }
        if attr.kind == InodeKind::Directory && attr.links > 1 {
            // The ".." of the subvolumes in it.
            attr.links = attr.links.saturating_add(self.subvolumes.nested.count_in(ino) as u32);
        }
        attr
    }

    pub(crate) fn readlink(&self, ino: InodeId) -> Result<Vec<u8>> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        if inner.record.kind != InodeKind::Symlink {
            return Err(FsError::Invalid);
        }
        if inner.size > TARGET_BYTES_MAX as u64 {
            let why = Corrupt { what: "length of a symbolic link's target", at: 0 };
            return Err(EngineError::corrupt(format!("inode {}", ino.0), why).into());
        }
        let mut target = vec![0; inner.size as usize];
        let plan = self.plan_read(ino, &inner, 0, &mut target)?;
        drop(inner);
        self.run_reads(plan, &mut target)?;
        Ok(target)
    }

    /// Positions are hashes: names that come and go move no others, and a listing that is interrupted by changes
    /// shows each name that was there all the time exactly once.
    pub(crate) fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        {
            let state = self.state(ino);
            let inner = self.read_lock(&state)?;
            if inner.record.kind != InodeKind::Directory {
                return Err(FsError::NotDirectory);
            }
        };
        let up = self.up(ino)?;
        let kind = InodeKind::Directory;
        // A copy: what `each` does may wait for the gate. And a view that is taken before the gate is let go of: in a later one
        // the reaper may have given the keys of versions on the path to others, when the subvolume has been deleted
        // since or has moved on.
        let (names, view) = {
            let names = self.names_first(ino)?;
            (Namespace::clone(&names), self.store.view())
        };
        if cookie < 1 && !each(DirEntry { name: b".".to_vec(), ino, kind, cookie: 1 }) {
            return Ok(());
        }
        if cookie < 2 && !each(DirEntry { name: b"..".to_vec(), ino: up, kind, cookie: 2 }) {
            return Ok(());
        }
        let mut nested = NestedNames::behind(self, ino, cookie.max(2));
        let mut more = true;
        names.each_name(&view, ino, cookie.max(2), &mut |position, kind, ino, name| {
            while let Some(entry) = nested.next_upto(position) {
                more &= each(entry);
                if !more {
                    return false;
                }
            }
            more = each(DirEntry { name, ino, kind, cookie: position.0 });
            more
        })?;
        while let Some(entry) = nested.next_upto(NamePosition(u64::MAX)).filter(|_| more) {
            more = each(entry);
        }
        Ok(())
    }

    pub(crate) fn statfs(&self) -> Result<StatFs> {
        let space = self.store.space();
        let total_bytes = space.total_bytes.saturating_sub(space.fixed_bytes + space.protected_bytes);
        Ok(StatFs {
            total_bytes,
            free_bytes: space.free_soon_bytes.min(total_bytes),
            files: self.files.get(),
        })
    }
}

/// What the inode itself has of what stat shows: not for users, who are shown [`Core::attr_of`].
fn attr(ino: InodeId, inner: &Inner) -> Attr {
    let record = &inner.record;
    let (mtime, ctime) = inner.times();
    let blocks = match record.kind {
        InodeKind::File | InodeKind::Symlink => inner.size.div_ceil(512),
        _ => 0,
    };
    Attr {
        ino,
        generation: record.generation,
        kind: record.kind,
        mode: u32::from(inner.mode()),
        links: links(record),
        uid: record.uid,
        gid: record.gid,
        rdev: if record.kind == InodeKind::Directory { 0 } else { record.rdev },
        size: inner.size,
        blocks,
        atime: inner.access_time(),
        mtime,
        ctime,
        btime: record.btime,
        flags: FileFlags::of(record),
    }
}

/// Links as stat shows them: a directory's name, its own ".", and the ".." of each directory in it. Directories whose
/// count is not known show 1, which tells find(1) and others not to draw conclusions.
fn links(record: &InodeRecord) -> u32 {
    match record.kind {
        InodeKind::Directory if record.links > 0 && record.rdev > 0 => record.rdev.saturating_add(1),
        _ => record.links,
    }
}

/// The subvolumes in a directory, as entries of it: some at a time, for who reads a part of a long listing.
struct NestedNames<'c> {
    core: &'c Core,
    dir: InodeId,
    /// The place of the last that was fetched; `None`: there are no more.
    after: Option<u64>,
    fetched: std::iter::Peekable<std::vec::IntoIter<(NamePosition, Vec<u8>, Slot)>>,
}

impl<'c> NestedNames<'c> {
    fn behind(core: &'c Core, dir: InodeId, after: u64) -> NestedNames<'c> {
        NestedNames { core, dir, after: Some(after), fetched: Vec::new().into_iter().peekable() }
    }

    /// The next one that lies no further than `position`.
    fn next_upto(&mut self, position: NamePosition) -> Option<DirEntry> {
        if self.fetched.peek().is_none() {
            let nested = self.core.subvolumes.nested.list(self.dir, self.after?, NESTED_AT_A_TIME);
            self.after = nested.get(NESTED_AT_A_TIME - 1).map(|(at, ..)| at.0);
            self.fetched = nested.into_iter().peekable();
        }
        let (at, name, slot) = self.fetched.next_if(|(at, ..)| *at <= position)?;
        Some(DirEntry { name, ino: slot.full(ROOT_INODE), kind: InodeKind::Directory, cookie: at.0 })
    }
}
