//! What answering a request needs whatever the verb: errors into errno, panics into EIO, results into replies.
//!
//! Invariants: a reply that is dropped while a panic unwinds answers EIO, so every request is answered exactly once;
//! after a panic nothing is changed any more; no verb is called with a lock held.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FopenFlags, Generation, INodeNo, RenameFlags, ReplyAttr, ReplyCreate, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request,
};
use varve_fs::{
    AccessRule, Allocate, Attr, Caller, DirEntry, FsError, InodeId, RenameMode, SeekTo, XattrMode,
};

use crate::pins::Pins;
use crate::{AccessPolicy, Health, Verbs, convert};

/// How long the kernel may believe what it was told.
pub(crate) const CACHE_TIME: Duration = Duration::from_secs(3600);
/// Directory entries fetched at once for readdirplus, at first and at most.
const ENTRIES_FIRST: usize = 32;
const ENTRIES_MAX: usize = 512;

// Linux numbers, part of the kernel's ABI.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_AND_KEEP_SIZE: i32 = 3;
const FALLOC_ZERO_RANGE: i32 = 0x10;
const FALLOC_ZERO_AND_KEEP_SIZE: i32 = 0x11;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// A filesystem's verbs behind `fuser`'s trait.
pub struct Adapter<V> {
    pub(crate) verbs: Arc<V>,
    pub(crate) health: Arc<Health>,
    pub(crate) pins: Pins,
    pub(crate) access: Arc<AccessPolicy>,
    /// The kernel takes ENOSYS to opendir as "never ask again".
    pub(crate) opendir_without_message: bool,
    /// Files are opened so that reads and writes go past the kernel's cache.
    pub(crate) direct_io: bool,
}

impl<V: Verbs> Adapter<V> {
    /// Serves `verbs`; panics are noted in `health`, and accesses as `access` has it.
    pub fn new(verbs: Arc<V>, health: Arc<Health>, access: Arc<AccessPolicy>) -> Self {
        Adapter {
            verbs,
            health,
            pins: Pins::default(),
            access,
            opendir_without_message: false,
            direct_io: false,
        }
    }

    /// What the kernel may do with an open file.
    pub(crate) fn open_flags(&self) -> FopenFlags {
        if self.direct_io { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE }
    }

    /// Notes an access. Reading does not fail because of it.
    pub(crate) fn note_access(&self, verb: &str, ino: INodeNo, rule: Option<AccessRule>) {
        if let Some(rule) = rule
            && !self.health.panicked()
            && let Err(error) = self.verbs.note_access(InodeId(ino.0), rule)
            && !matches!(error, FsError::NotFound)
        {
            self.errno(verb, ino, &error);
        }
    }

    /// Runs `body`; a panic ends the request (its reply answers EIO when it is dropped) and all further changes.
    pub(crate) fn guard(&self, verb: &'static str, body: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            self.health.note_panic(verb);
        }
    }

    /// Like [`Adapter::guard`], for verbs that change something. `refuse` answers when changes are over.
    pub(crate) fn guard_change<R: Refuse>(&self, verb: &'static str, reply: R, body: impl FnOnce(R)) {
        if self.health.panicked() {
            return reply.refuse(Errno::EIO);
        }
        self.guard(verb, || body(reply));
    }

    /// The errno of a failed verb on `ino` or a name in it. What only shows as EIO is logged.
    pub(crate) fn errno(&self, verb: &str, ino: INodeNo, error: &FsError) -> Errno {
        if let FsError::Engine(_) = error
            && Errno::from_i32(error.errno()) == Errno::EIO
        {
            self.health.note_error(verb, ino.0, error);
        }
        Errno::from_i32(error.errno())
    }

    pub(crate) fn reply_entry(
        &self,
        verb: &str,
        parent: INodeNo,
        result: Result<Attr, FsError>,
        reply: ReplyEntry,
    ) {
        match result {
            Ok(attr) => {
                reply.entry(&CACHE_TIME, &convert::file_attr(&attr), Generation(attr.generation));
            }
            Err(error) => reply.error(self.errno(verb, parent, &error)),
        }
    }

    pub(crate) fn reply_empty(
        &self,
        verb: &str,
        ino: INodeNo,
        result: Result<(), FsError>,
        reply: ReplyEmpty,
    ) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    pub(crate) fn reply_xattr(
        &self,
        verb: &str,
        ino: INodeNo,
        size: u32,
        result: Result<Vec<u8>, FsError>,
        reply: ReplyXattr,
    ) {
        match result {
            Ok(value) => match u32::try_from(value.len()) {
                Ok(len) if size == 0 => reply.size(len),
                Ok(len) if len <= size => reply.data(&value),
                _ => reply.error(Errno::ERANGE),
            },
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    /// The reply is moved into the completion: no thread waits for the flush.
    pub(crate) fn fsync_inode(&self, verb: &'static str, ino: INodeNo, reply: ReplyEmpty) {
        self.guard_change(verb, reply, |reply| {
            let health = self.health.clone();
            self.verbs.fsync_then(
                InodeId(ino.0),
                Box::new(move |result| match result {
                    Ok(()) => reply.ok(),
                    Err(error) => {
                        health.note_error(verb, ino.0, &error);
                        reply.error(Errno::from_i32(error.errno()));
                    }
                }),
            );
        });
    }

    /// Fills `reply` with entries and their attributes. An entry that vanishes meanwhile is left out; one whose inode
    /// cannot be read is listed with attributes that expire at once, so that only its own stat fails.
    pub(crate) fn fill_plus(
        &self,
        ino: InodeId,
        mut cookie: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<(), FsError> {
        let mut entries_max = ENTRIES_FIRST;
        loop {
            let mut entries: Vec<DirEntry> = Vec::with_capacity(entries_max);
            self.verbs.readdir(ino, cookie, &mut |entry| {
                entries.push(entry);
                entries.len() < entries_max
            })?;
            let last = entries.len() < entries_max;
            for entry in &entries {
                cookie = entry.cookie;
                let dots = entry.name == b"." || entry.name == b"..";
                // The kernel takes no attributes for the dots; asking for them would be wasted.
                let (attr, generation, ttl) = match (dots, self.verbs.getattr(entry.ino)) {
                    (false, Ok(attr)) => (convert::file_attr(&attr), attr.generation, CACHE_TIME),
                    (false, Err(FsError::NotFound)) => continue,
                    _ => (bare_attr(entry), 0, Duration::ZERO),
                };
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(INodeNo(entry.ino.0), entry.cookie, name, &ttl, &attr, Generation(generation)) {
                    return Ok(());
                }
            }
            if last {
                return Ok(());
            }
            entries_max = (entries_max * 2).min(ENTRIES_MAX);
        }
    }
}

/// Replies that can be sent as an error without having been looked at.
pub(crate) trait Refuse {
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => { $(impl Refuse for $reply {
        fn refuse(self, errno: Errno) {
            self.error(errno);
        }
    })* };
}

refuse!(ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite);

pub(crate) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

/// What is known of an inode from its name alone.
fn bare_attr(entry: &DirEntry) -> fuser::FileAttr {
    fuser::FileAttr {
        ino: INodeNo(entry.ino.0),
        kind: convert::file_type(entry.kind),
        nlink: 1,
        ..convert::negative_attr()
    }
}

pub(crate) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    match flags {
        flags if flags.is_empty() => Some(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}

pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Set),
        XATTR_CREATE => Some(XattrMode::Create),
        XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

/// What fallocate(2)'s mode asks for. (Collapsing and inserting never get here: FUSE does not send them.)
pub(crate) fn allocate(mode: i32) -> Option<Allocate> {
    match mode {
        0 => Some(Allocate::Reserve { keep_size: false }),
        FALLOC_KEEP_SIZE => Some(Allocate::Reserve { keep_size: true }),
        FALLOC_PUNCH_AND_KEEP_SIZE => Some(Allocate::Punch),
        FALLOC_ZERO_RANGE => Some(Allocate::Zero { keep_size: false }),
        FALLOC_ZERO_AND_KEEP_SIZE => Some(Allocate::Zero { keep_size: true }),
        _ => None,
    }
}

pub(crate) fn seek_to(whence: i32) -> Option<SeekTo> {
    match whence {
        SEEK_DATA => Some(SeekTo::Data),
        SEEK_HOLE => Some(SeekTo::Hole),
        _ => None,
    }
}
