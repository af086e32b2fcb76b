//! Flags that users set (chattr): what they are, and what they refuse.
//!
//! As on Linux. Nothing of an immutable inode changes: contents, attributes, the names in it, and its own. What may only be added
//! to takes bytes at its end, new names, and the present time. While no inode of the pool has ever had a flag, nobody looks: the
//! first subvolume's record says so, from the very transaction that sets the first. The flags themselves can always be changed
//! by whoever may.

use std::sync::atomic::Ordering;

use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::{INODE_FLAGS_SETTABLE, InodeKind, InodeRecord};
use varve_format::record::subvolume::{SUBVOLUME_FLAGGED, SubvolumeRecord};

use crate::api::{Caller, FileFlags, SetAttr, SetTime};
use crate::core::{Core, touch};
use crate::{FsError, Result};

/// What is about to be done to an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// A name is added to it.
    NewName,
    /// A name is taken from it.
    NameGoes,
    /// Bytes are written here; what is no file takes none anyway.
    Write(u64),
    /// Space is set aside in it, or both its times become those of now.
    Mildly,
    /// Anything else.
    Otherwise,
}

impl Touch {
    /// What setting these attributes does. Who sets none sets the time of the inode's last change.
    pub(super) fn by(set: &SetAttr) -> Touch {
        let now = Some(SetTime::Now);
        let mild = [SetAttr::default(), SetAttr { atime: now, mtime: now, ..SetAttr::default() }];
        if mild.contains(set) { Touch::Mildly } else { Touch::Otherwise }
    }
}

/// Refuses to take a name from what must not change, or to give it another.
pub(super) fn require_unprotected(record: &InodeRecord) -> Result<()> {
    let protected = FileFlags::of(record).intersects(FileFlags::PROTECTING);
    if protected { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Asks whether something may go that can do so without its flags being read. Where these are damaged they keep nothing any more: it could
/// never be removed. But who reads wrong bytes once reads again, and what a device fails to read may be there the next time.
pub(super) fn unless_damaged(ask: impl Fn() -> Result<()>) -> Result<()> {
    let damaged = |result: &Result<()>| match result {
        Err(FsError::Engine(error)) => error.is_damage() && !error.may_pass(),
        _ => false,
    };
    let first = ask();
    let last = if damaged(&first) { ask() } else { first };
    if damaged(&last) { Ok(()) } else { last }
}

/// What a new inode has of its directory's flags.
pub(super) fn inherited(dir: &InodeRecord, kind: InodeKind) -> u32 {
    let few = FileFlags::NO_DUMP | FileFlags::NO_ACCESS_TIME;
    let kept = match kind {
        InodeKind::Directory => few | FileFlags::DURABLE | FileFlags::DURABLE_NAMES,
        InodeKind::File => few | FileFlags::DURABLE,
        _ => few,
    };
    (FileFlags::of(dir) & kept).stored()
}

impl Core {
    /// Whether an inode may have flags.
    pub fn flagged(&self) -> bool {
        self.flagged.load(Ordering::Acquire)
    }

    /// Asks the flags of `ino` whether this may be done: not where they cannot be read. What else is wrong with it, whoever goes on finds out.
    pub(super) fn permit(&self, ino: InodeId, what: Touch) -> Result<()> {
        if !self.flagged() {
            return Ok(());
        }
        let state = self.state(ino);
        let inner = match self.read_lock(&state) {
            Ok(inner) => inner,
            Err(error @ (FsError::Frozen(_) | FsError::Engine(_))) => return Err(error),
            Err(_) => return Ok(()),
        };
        let flags = FileFlags::of(&inner.record);
        let added = match what {
            Touch::NewName | Touch::Mildly => true,
            Touch::Write(offset) => inner.record.kind != InodeKind::File || offset == inner.size,
            Touch::NameGoes | Touch::Otherwise => false,
        };
        if flags.intersects(FileFlags::IMMUTABLE) || flags.intersects(FileFlags::APPEND_ONLY) && !added {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }

    /// Asks the flags of directory `parent` whether a subvolume may be taken from it, for which nothing of the directory is needed.
    pub(super) fn permit_parting(&self, parent: InodeId) -> Result<()> {
        unless_damaged(|| self.permit(parent, Touch::NameGoes))
    }

    /// Whether what is done to `ino` is to be durable at once. Where that cannot be read, it is.
    pub fn wants_durable(&self, ino: InodeId, names: bool) -> bool {
        if !self.flagged() {
            return false;
        }
        let state = self.state(ino);
        let asking = if names { FileFlags::DURABLE | FileFlags::DURABLE_NAMES } else { FileFlags::DURABLE };
        match self.read_lock(&state) {
            Ok(inner) => FileFlags::of(&inner.record).intersects(asking),
            Err(error) => matches!(error, FsError::Engine(_)),
        }
    }

    pub(crate) fn set_flags(&self, caller: Caller, ino: InodeId, flags: FileFlags) -> Result<()> {
        self.admit(ino)?;
        self.with_space(|| {
            let state = self.state(ino);
            let change = self.change(ino)?;
            let mut inner = self.write_lock(&state)?;
            let mut record = inner.record.clone();
            let differ = FileFlags::of(&record) ^ flags;
            if caller.uid != 0 && caller.uid != record.uid {
                return Err(FsError::NotPermitted);
            }
            match record.kind {
                InodeKind::Directory => {}
                InodeKind::File if !flags.intersects(FileFlags::DURABLE_NAMES) => {}
                _ => return Err(FsError::NotSupported),
            }
            if caller.uid != 0 && differ.intersects(FileFlags::PROTECTING) {
                return Err(FsError::NotPermitted);
            }
            record.flags = record.flags & !INODE_FLAGS_SETTABLE | flags.stored();
            touch(&mut record, self.now());
            let mut tx = Transaction::new();
            self.put_record(&change, &mut tx, ino, &inner, &mut record)?;
            // On a full pool, too: what is immutable is freed there to be deleted.
            if !change.forked || self.is_own(&change, ino, &inner)? {
                tx.replacing();
            }
            if flags == FileFlags::NONE || self.flagged() {
                self.apply(tx)?;
            } else {
                let first = |first: &mut SubvolumeRecord| first.flags |= SUBVOLUME_FLAGGED;
                self.apply_record(tx, &self.subvolumes.first, first)?;
                self.flagged.store(true, Ordering::Release);
            }
            inner.take_over(&change, record);
            Ok(())
        })
    }
}
