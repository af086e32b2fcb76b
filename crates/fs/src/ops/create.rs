//! Making inodes: files, directories, symbolic links, nodes.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_engine::{
    BLOCK_BYTES, Data, FamilyId, InodeId, PoolAddr, Reservation, Run, Store, Transaction, VersionId, version,
};
use varve_format::record::inode::{DataPointer, INLINE_BYTES_MAX, InodeKind, InodeRecord, Time};

use super::clone::require_clean;
use super::flags::{Touch, inherited};
use super::require_directory;
use crate::acl::{self, Acl};
use crate::api::{Attr, Caller, DataLogged, NewInode};
use crate::core::{Core, check_name, touch_directory};
use crate::inode::{Inner, InodeState, Presence, blank_record};
use crate::subvolume::{Names, local};
use crate::table::extents;
use crate::{FsError, Result};

/// Longest target of a symbolic link, in bytes.
pub(super) const TARGET_BYTES_MAX: usize = 4095;

/// What a new inode holds.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// Nothing yet.
    Nothing,
    /// A symbolic link's target.
    Target(&'a [u8]),
    /// All data of another file, with its permission bits.
    CloneOf(InodeId),
}

/// The block of a symbolic link's target. It is given back when this is dropped, unless a transaction has placed it.
struct TargetBlock<'a> {
    store: &'a Store,
    reservation: Reservation,
    run: Run,
    is_placed: bool,
}

impl Drop for TargetBlock<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            self.store.deallocate(&mut self.reservation, &[self.run]);
        }
    }
}

impl Core {
    pub fn make_inode(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        mut new: NewInode,
    ) -> Result<Attr> {
        self.admit(parent)?;
        self.permit(parent, Touch::NewName)?;
        match new.kind {
            InodeKind::CharDevice | InodeKind::BlockDevice => {}
            InodeKind::File | InodeKind::Directory | InodeKind::Fifo | InodeKind::Socket => new.rdev = 0,
            InodeKind::Symlink => return Err(FsError::Invalid),
        }
        self.with_space(|| self.make(caller, parent, name, new, Content::Nothing))
    }

    pub(crate) fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        self.admit(parent)?;
        self.permit(parent, Touch::NewName)?;
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.contains(&0) {
            return Err(FsError::Invalid);
        }
        let new =
            NewInode { kind: InodeKind::Symlink, mode: 0o777, umask: 0, rdev: 0, set_gid_judged: false };
        self.with_space(|| self.make(caller, parent, name, new, Content::Target(target)))
    }

    /// Makes an inode, one transaction, in a directory that has been admitted. What is to be cloned must not be the directory.
    pub(super) fn make(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        NewInode { kind, mut mode, umask, rdev, set_gid_judged }: NewInode,
        content: Content<'_>,
    ) -> Result<Attr> {
        check_name(name)?;
        let now = self.now();
        let state = self.state(parent);
        let change = self.change(parent)?;
        let source = match content {
            Content::CloneOf(source) => Some(self.source(source)?),
            _ => None,
        };
        let mut from = match &source {
            Some((_, source)) if source.ino < parent => Some(self.write_lock(source)?),
            _ => None,
        };
        let mut dir = self.write_lock(&state)?;
        if let (Some((_, source)), None) = (&source, &from) {
            from = Some(self.write_lock(source)?);
        }
        if let Some(from) = &from {
            require_clean(from, content)?;
            mode = u32::from(from.mode() & 0o777);
        }
        require_directory(&dir)?;
        let mut bucket = change.bucket(parent, name)?;
        let nested = &self.subvolumes.nested;
        if bucket.find(name).is_some() || nested.find(parent, bucket.base(), name).is_some() {
            return Err(FsError::Exists);
        }
        let mut lists = self.lists_in(parent, &dir, kind, (mode, umask))?;
        if !set_gid_judged {
            lists.mode = judged_mode(&dir.record, kind, caller, lists.mode);
        }
        let target = match content {
            Content::Target(target) => target,
            _ => b"",
        };
        let number = self.new_inode_number()?;
        let ino = change.slot.full(number);
        let mut record = self.record_in(&dir.record, kind, number, caller, lists.mode, now);
        record.size = target.len() as u64;
        if matches!(kind, InodeKind::CharDevice | InodeKind::BlockDevice) {
            record.rdev = rdev;
        }
        record.parent = local(parent);
        if !bucket.insert(name, ino, kind) {
            // 256 names of one 55-bit hash: nobody without the seed gets here.
            return Err(FsError::HashFull);
        }
        let mut tx = Transaction::new();
        tx.claim_id(number.0);
        let counting = self.counting()?;
        let mut block = self.place_target(&mut tx, &mut record, target)?;
        for (name, value) in lists.xattrs(kind) {
            self.put_first_xattr(&change, &mut tx, ino, &mut record, name, &value)?;
        }
        change.put_bucket(&mut tx, &bucket)?;
        let mut dir_record = dir.record.clone();
        touch_directory(&mut dir_record, now, 1, i64::from(kind == InodeKind::Directory));
        self.put_record(&change, &mut tx, parent, &dir, &mut dir_record)?;
        // The new inode is locked while it becomes visible, so that who finds its name waits for its state.
        let child = self.state(ino);
        let held = [parent, source.as_ref().map_or(parent, |(_, source)| source.ino)];
        let mut inner = self.hold_new(&child, &held)?;
        if let Some(from) = &from {
            self.share_all(&change, &mut tx, &from.record, &mut record)?;
        }
        change.put_inode(&mut tx, ino, &record)?;
        let known = self.known_name(parent, bucket.base(), name);
        let changing = self.known.creation(known);
        let applied = match &from {
            Some(_) => self.apply_sharing(tx, &record),
            None => {
                let reservation = block.as_mut().map(|block| &mut block.reservation);
                self.store.apply(tx, reservation).map_err(FsError::from)
            }
        };
        let lsn = match applied {
            Ok(lsn) => lsn,
            Err(error) => {
                inner.presence = Presence::Gone;
                return Err(error);
            }
        };
        if let Some(block) = &mut block {
            block.is_placed = true;
        }
        self.files.add(change.place(ino), 1);
        drop(counting);
        dir.size = dir_record.size;
        dir.take_over(&change, dir_record);
        inner.install(record, change.version, Presence::Live);
        child.note_kind(kind);
        changing.leads_to(ino, kind);
        if from.is_some()
            && let Some(observer) = &self.on_data_logged
        {
            observer(DataLogged { ino, offset: 0, len: inner.size, size: inner.size, lsn });
        }
        let attr = self.attr_of(ino, &inner);
        drop(inner);
        if from.is_some() {
            // Many clones are made and few of them are used at once: the next one's state is where this one's was, close by.
            self.inodes.let_go_unused(child);
        }
        Ok(attr)
    }

    /// What is to be cloned, and what keeps its subvolume from being forked meanwhile.
    fn source(&self, source: InodeId) -> Result<(Names, Arc<InodeState>)> {
        Ok((self.names(source)?, self.state(source)))
    }

    /// Puts a symbolic link's target into the record, or, when it is too long, into a block of the inode's data.
    fn place_target(
        &self,
        tx: &mut Transaction,
        record: &mut InodeRecord,
        target: &[u8],
    ) -> Result<Option<TargetBlock<'_>>> {
        if target.len() <= INLINE_BYTES_MAX {
            record.inline = Some(target.to_vec());
            return Ok(None);
        }
        record.inline = None;
        // Before the view, which would keep from it what is being freed.
        let mut reservation = self.store.reserve(1, 1, crate::writeback::ENTRY_BYTES)?;
        let view = self.store.view();
        let path = extents::path(&view, record, false)?;
        let run = self.store.allocate(&mut reservation, 1, PoolAddr::NULL)?[0];
        let block = TargetBlock { store: &self.store, reservation, run, is_placed: false };
        let buf = Arc::new(AlignedBuf::from_slice(target));
        tx.place_riding(run, Data { buf, offset: 0, len: BLOCK_BYTES });
        version::put_extents(&view, tx, &path, &[(0, run)])?;
        Ok(Some(block))
    }
}

/// What a new inode has of its directory's default access list.
pub struct Lists {
    /// The permission bits that are left of those asked for, with set-id and sticky.
    pub mode: u32,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Lists {
    /// The attributes it has for that, as a new inode of `kind`.
    pub fn xattrs(&self, kind: InodeKind) -> impl Iterator<Item = (&'static [u8], Vec<u8>)> {
        let access = self.access.as_ref().filter(|list| !list.is_minimal());
        let default = self.default.as_ref().filter(|_| kind == InodeKind::Directory);
        let named = access.map(|list| (acl::ACCESS, list.encode()));
        named.into_iter().chain(default.map(|list| (acl::DEFAULT, list.encode())))
    }
}

/// `mode` of an inode that is made in a directory with the record `dir`: nobody makes a program that runs as a group that he is not in. Who
/// is in that group besides his own is not known here.
pub(super) fn judged_mode(dir: &InodeRecord, kind: InodeKind, caller: Caller, mode: u32) -> u32 {
    let inherits = dir.mode & 0o2000 != 0 && kind != InodeKind::Directory;
    let strange = caller.uid != 0 && caller.gid != dir.gid;
    if inherits && strange && mode & 0o2010 == 0o2010 { mode & !0o2000 } else { mode }
}

impl Core {
    /// For an inode of `kind` that is made in the directory `parent`, which is locked, with `mode` asked for and a umask.
    pub(super) fn lists_in(
        &self,
        parent: InodeId,
        dir: &Inner,
        kind: InodeKind,
        (mode, umask): (u32, u32),
    ) -> Result<Lists> {
        let default = match kind {
            InodeKind::Symlink => None,
            _ => self.acl(parent, dir, acl::DEFAULT)?,
        };
        let access = default.as_ref().map(|list| list.inherit(mode as u16));
        let mode = match &access {
            Some(list) => mode & 0o7000 | u32::from(list.mode()),
            None => mode & !umask,
        };
        Ok(Lists { mode, access, default })
    }
}

impl Core {
    /// The record of a new inode, number `number`, in a directory with the record `dir`.
    pub(super) fn record_in(
        &self,
        dir: &InodeRecord,
        kind: InodeKind,
        number: InodeId,
        caller: Caller,
        mode: u32,
        now: Time,
    ) -> InodeRecord {
        let mut record = InodeRecord {
            mode: (mode & 0o7777) as u16,
            uid: caller.uid,
            gid: caller.gid,
            data: DataPointer {
                family: FamilyId(number.0),
                version: VersionId(number.0),
                has_versions: false,
            },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            project: dir.project,
            flags: inherited(dir, kind),
            generation: self.generation,
            ..blank_record(kind)
        };
        if dir.mode & 0o2000 != 0 {
            record.gid = dir.gid;
            if kind == InodeKind::Directory {
                record.mode |= 0o2000;
            }
        }
        record
    }
}
