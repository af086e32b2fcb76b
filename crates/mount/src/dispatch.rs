//! What answering a request needs whatever the verb: errors into errno, panics into EIO, results into replies.
//!
//! Invariants: a reply that is dropped while a panic unwinds answers EIO, so every request is answered exactly once;
//! after a panic, and when the mount ends, nothing is changed any more; no verb is called with a lock held but, shared,
//! that of [`Health::begin_change`], and that of a file of which something is not stored (`unstored`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use varve_device::AlignedBuf;
use varve_fs::{
    AccessRule, Allocate, Attr, Caller, DirEntry, FsError, InodeId, ROOT_INODE, RenameMode, SeekTo,
    XattrMode, shown_number, subvolume_root,
};

use crate::caches::{Caches, Waiters};
use crate::kernel::abi::{self, EntryOut, InHeader, open};
use crate::kernel::device::Device;
use crate::kernel::handshake::Agreed;
use crate::kernel::inbox::Inbox;
use crate::kernel::listing::Listing;
use crate::kernel::reply::Reply;
use crate::numbers::Numbers;
use crate::pins::Pins;
use crate::policy::Change;
use crate::tellings::{Telling, Tellings};
use crate::trim::Trims;
use crate::{Health, Policy, Verbs, convert};

/// Directory entries fetched at once for readdirplus, at first and at most.
const ENTRIES_FIRST: usize = 32;
const ENTRIES_MAX: usize = 512;

/// Whoever is not the superuser.
const NOBODY: u32 = 65534;

// Linux numbers, part of the kernel's ABI.
pub(crate) const XATTR_CREATE: i32 = 1;
pub(crate) const XATTR_REPLACE: i32 = 2;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_AND_KEEP_SIZE: i32 = 3;
const FALLOC_ZERO_RANGE: i32 = 0x10;
const FALLOC_ZERO_AND_KEEP_SIZE: i32 = 0x11;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What a thread keeps from one request to the next: a fresh buffer a request costs more than filling it.
#[derive(Default)]
pub(crate) struct Scratch {
    /// What is read passes through here. As large as the largest request so far.
    pub read: AlignedBuf,
    pub listing: Listing,
}

/// A filesystem's verbs behind the kernel's requests.
pub(crate) struct Adapter<V> {
    pub verbs: Arc<V>,
    pub health: Arc<Health>,
    pub pins: Pins,
    pub(crate) numbers: Arc<Numbers>,
    pub policy: Arc<Policy>,
    pub agreed: Agreed,
    pub trims: Trims,
    pub caches: Arc<Caches>,
    pub tellings: Tellings,
    pub waiters: Waiters,
    /// For what the kernel is told unasked.
    pub device: Weak<Device>,
    /// Files are opened so that reads and writes go past the kernel's cache.
    pub direct_io: bool,
    /// The only user who may ask anything; `None`: the kernel decides.
    pub owner: Option<u32>,
}

impl<V: Verbs> Adapter<V> {
    /// Answers the request in `inbox`, also if it is none or a verb panics.
    pub(crate) fn answer(&self, inbox: &mut Inbox, reply: Reply, scratch: &mut Scratch) {
        let header = inbox.header();
        let (body, payload) = inbox.parts(self.agreed.setxattr_ext());
        let body = match body {
            Ok(body) => body,
            Err(errno) => return reply.error(errno),
        };
        if self.owner.is_some_and(|owner| owner != header.uid) && !body.of_others() {
            return reply.error(Errno::ACCESS);
        }
        let mut change = None;
        if body.changes() {
            if self.health.panicked() {
                return reply.error(Errno::IO);
            }
            // As it will be in a moment, when nobody serves the mount any more.
            let Some(begun) = self.health.begin_change() else { return reply.error(Errno::NOTCONN) };
            change = Some(begun);
        }
        // A panic ends the request (its reply answers EIO when it is dropped) and all further changes.
        let serve = || self.serve(&header, &body, payload, reply, scratch);
        if catch_unwind(AssertUnwindSafe(serve)).is_err() {
            self.health.note_panic(body.verb());
        }
        drop(change);
    }

    /// The mount is gone: nobody can ask for what was kept for it.
    pub(crate) fn end(&self) {
        self.trims.end();
        self.numbers.forget_all();
        if !self.health.panicked()
            && catch_unwind(AssertUnwindSafe(|| self.pins.unpin_all(&*self.verbs))).is_err()
        {
            self.health.note_panic("the end of the mount");
        }
    }

    /// What the kernel may do with an open file.
    pub(crate) fn open_flags(&self) -> u32 {
        if self.direct_io { open::DIRECT_IO } else { open::KEEP_CACHE }
    }

    /// Notes an access. Reading does not fail because of it.
    pub(crate) fn note_access(&self, verb: &str, ino: u64, rule: Option<AccessRule>) {
        if let Some(rule) = rule
            && !self.health.panicked()
            && let Err(error) = self.verbs.note_access(InodeId(ino), rule)
            && !matches!(error, FsError::NotFound)
        {
            self.errno(verb, ino, &error);
        }
    }

    /// The errno of a failed verb on `ino` or a name in it. What only shows as EIO is logged.
    pub(crate) fn errno(&self, verb: &str, ino: u64, error: &FsError) -> Errno {
        errno(&self.health, verb, ino, error)
    }

    /// An inode has been changed, or may be, for a thread that is about to hear of it: answers with attributes from before that, which the
    /// kernel may come to later, are not to be believed. It waits for nobody here.
    pub(crate) fn overtake(&self, ino: u64, thread: u32) {
        self.forget_told(ino, self.tellings.changed(ino, thread));
    }

    /// As [`Adapter::overtake`], of what has been written past the kernel's cache, and of what was told at any time before.
    pub(crate) fn overtake_all(&self, ino: u64) {
        self.forget_told(ino, self.tellings.written(ino));
    }

    fn forget_told(&self, ino: u64, telling: Option<Telling>) {
        if let Some(telling) = telling
            && let Some(device) = self.device.upgrade()
        {
            match device.forget_attributes(ino) {
                Ok(_) => self.tellings.forgotten(telling),
                Err(error) => tracing::debug!("the kernel cannot be told to forget attributes: {error}"),
            }
        }
    }

    pub(crate) fn reply_entry(&self, verb: &str, parent: u64, result: Result<Attr, FsError>, reply: Reply) {
        match result {
            Ok(attr) => {
                self.numbers.give(attr.ino);
                reply.body(&convert::entry_out(&attr));
            }
            Err(error) => reply.error(self.errno(verb, parent, &error)),
        }
    }

    pub(crate) fn reply_attr(&self, verb: &str, ino: u64, result: Result<Attr, FsError>, reply: Reply) {
        match result {
            Ok(attr) => reply.body(&convert::attr_out(&attr)),
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    pub(crate) fn reply_empty(&self, verb: &str, ino: u64, result: Result<(), FsError>, reply: Reply) {
        match result {
            Ok(()) => reply.empty(),
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    /// How many bytes of a write were stored; `durable`: not before they are. What the kernel may have of the range is forgotten first if
    /// the write went `past_cache`.
    pub(crate) fn reply_written(
        &self,
        (verb, ino): (&'static str, u64),
        range: (u64, u64),
        past_cache: bool,
        durable: bool,
        result: Result<usize, FsError>,
        reply: Reply,
    ) {
        let result = result.map_err(|error| self.errno(verb, ino, &error));
        let durable = durable && matches!(result, Ok(1..));
        let say = move |result: Result<usize, Errno>| match result {
            Ok(count) => reply.body(&abi::SizeOut { size: (count as u64).min(range.1) as u32, padding: 0 }),
            Err(errno) => reply.error(errno),
        };
        let stale = past_cache && self.caches.may_be_stale(ino);
        let (waiters, device, caches) = (self.waiters.clone(), self.device.clone(), self.caches.clone());
        // Of one that failed a part may have been stored.
        let answer = move |result| match stale {
            true => forget_then(&waiters, device, &caches, ino, range, move || say(result)),
            false => say(result),
        };
        if !durable {
            return answer(result);
        }
        let health = self.health.clone();
        let synced = move |synced: Result<(), FsError>| {
            answer(result.and_then(|count| {
                synced.map(|()| count).map_err(|error| {
                    health.note_error(verb, ino, &error);
                    Errno::from_raw_os_error(error.errno())
                })
            }))
        };
        self.verbs.fsync_then(InodeId(ino), Box::new(synced));
    }

    pub(crate) fn reply_xattr(
        &self,
        verb: &str,
        ino: u64,
        size: u32,
        result: Result<Vec<u8>, FsError>,
        reply: Reply,
    ) {
        match result {
            Ok(value) => match u32::try_from(value.len()) {
                Ok(len) if size == 0 => reply.body(&abi::SizeOut { size: len, padding: 0 }),
                Ok(len) if len <= size => reply.bytes(&value),
                _ => reply.error(Errno::RANGE),
            },
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    /// Answers what has been changed at `ino`: when it is durable, if the mount promises that. (That the kernel believes no
    /// attributes from before the caller sees to: [`Adapter::overtake`].)
    pub(crate) fn reply_change<T: Send + 'static>(
        &self,
        change: Change,
        verb: &'static str,
        ino: u64,
        result: Result<T, FsError>,
        reply: Reply,
        answer: impl FnOnce(T, Reply) + Send + 'static,
    ) {
        match result {
            Ok(value)
                if self.policy.durable_at_once(change)
                    || self.verbs.wants_durable(InodeId(ino), change == Change::Names) =>
            {
                self.when_durable(verb, ino, reply, move |reply| answer(value, reply));
            }
            Ok(value) => answer(value, reply),
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    /// A name has been given to an inode, in the directory `parent`.
    pub(crate) fn reply_named(
        &self,
        verb: &'static str,
        parent: u64,
        result: Result<Attr, FsError>,
        reply: Reply,
    ) {
        let numbers = self.numbers.clone();
        let answer = move |attr: Attr, reply: Reply| {
            numbers.give(attr.ino);
            reply.body(&convert::entry_out(&attr));
        };
        self.reply_change(Change::Names, verb, parent, result, reply, answer);
    }

    /// Something has been changed of which there is nothing to say.
    pub(crate) fn reply_done(
        &self,
        change: Change,
        verb: &'static str,
        ino: u64,
        result: Result<(), FsError>,
        reply: Reply,
    ) {
        self.reply_change(change, verb, ino, result, reply, |(), reply| reply.empty());
    }

    /// Answers when all of an inode is durable. The reply is moved into the completion: no thread waits for the flush.
    pub(crate) fn when_durable(
        &self,
        verb: &'static str,
        ino: u64,
        reply: Reply,
        answer: impl FnOnce(Reply) + Send + 'static,
    ) {
        when_durable(&*self.verbs, &self.health, (verb, ino), reply, answer);
    }

    /// Has the kernel forget a range of a file (offset and length, in bytes), and then answers. To do that it may need answers of ours,
    /// to reads and writes of the file, which no thread that serves requests can wait for.
    /// If that takes long, or there is no thread for it, the answer does not wait.
    pub(crate) fn forget_then(&self, ino: u64, range: (u64, u64), answer: impl FnOnce() + Send + 'static) {
        forget_then(&self.waiters, self.device.clone(), &self.caches, ino, range, answer);
    }

    /// Fills `listing`, for a thread, with entries and their attributes. An entry that vanishes meanwhile is left out; one whose inode
    /// cannot be read is listed with attributes that expire at once, so that only its own stat fails.
    pub(crate) fn fill_plus(
        &self,
        (ino, thread): (InodeId, u32),
        mut cookie: u64,
        listing: &mut Listing,
    ) -> Result<(), FsError> {
        let mut entries_max = ENTRIES_FIRST;
        // Of a listing that fails the kernel gets nothing.
        let mut given = Vec::new();
        'listing: loop {
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
                if !dots {
                    self.tellings.note(entry.ino.0, thread);
                }
                let out = match (dots, self.verbs.getattr(entry.ino)) {
                    (false, Ok(attr)) => convert::entry_out(&attr),
                    (false, Err(FsError::NotFound)) => continue,
                    _ => bare_entry(entry),
                };
                if !listing.add_plus(out, entry.cookie, &entry.name) {
                    break 'listing;
                }
                if out.nodeid != 0 && subvolume_root(entry.ino) != ROOT_INODE {
                    given.push(entry.ino);
                }
            }
            if last {
                break;
            }
            entries_max = (entries_max * 2).min(ENTRIES_MAX);
        }
        given.into_iter().for_each(|ino| self.numbers.give(ino));
        Ok(())
    }

    /// Who writes, as far as set-id bits go: they stay for the superuser, and the kernel, if it says so, knows better who
    /// counts as that.
    pub(crate) fn writer(&self, header: &InHeader, kill: bool) -> Caller {
        if !self.agreed.says_kill() {
            return caller(header);
        }
        if kill { Caller { uid: NOBODY, ..caller(header) } } else { Caller::ROOT }
    }

    /// Who sets an access control list, as far as the set-group-id bit goes: likewise.
    pub(crate) fn list_setter(&self, header: &InHeader, acl_flags: Option<u32>) -> Caller {
        match acl_flags {
            None => caller(header),
            Some(flags) if flags & abi::SETXATTR_ACL_KILL_SGID == 0 => Caller::ROOT,
            // In no group that a file can have.
            Some(_) => Caller { uid: NOBODY, gid: u32::MAX },
        }
    }
}

/// See [`Adapter::errno`].
pub(crate) fn errno(health: &Health, verb: &str, ino: u64, error: &FsError) -> Errno {
    let errno = Errno::from_raw_os_error(error.errno());
    if let FsError::Engine(_) = error
        && errno == Errno::IO
    {
        health.note_error(verb, ino, error);
    }
    errno
}

/// See [`Adapter::when_durable`].
pub(crate) fn when_durable(
    verbs: &impl Verbs,
    health: &Arc<Health>,
    (verb, ino): (&'static str, u64),
    reply: Reply,
    answer: impl FnOnce(Reply) + Send + 'static,
) {
    let health = health.clone();
    verbs.fsync_then(
        InodeId(ino),
        Box::new(move |result| match result {
            Ok(()) => answer(reply),
            Err(error) => {
                health.note_error(verb, ino, &error);
                reply.error(Errno::from_raw_os_error(error.errno()));
            }
        }),
    );
}

fn forget_then(
    waiters: &Waiters,
    device: Weak<Device>,
    caches: &Arc<Caches>,
    ino: u64,
    range: (u64, u64),
    answer: impl FnOnce() + Send + 'static,
) {
    let forget = move || {
        if let Some(device) = device.upgrade()
            && let Err(error) = device.forget_range(ino, range)
        {
            tracing::debug!("the kernel cannot be told to forget a part of a file: {error}");
        }
    };
    let caches = caches.clone();
    waiters.run(forget, move || caches.is_read(ino), answer);
}

pub(crate) fn caller(header: &InHeader) -> Caller {
    Caller { uid: header.uid, gid: header.gid }
}

/// What is known of an inode from its name alone: the kernel takes the name and leaves the inode, which it may have, as it is.
fn bare_entry(entry: &DirEntry) -> EntryOut {
    let mut out = EntryOut::default();
    (out.attr.ino, out.attr.mode, out.attr.nlink) =
        (shown_number(entry.ino), convert::mode_of(entry.kind), 1);
    out
}

/// `caller` owns what is left behind.
pub(crate) fn rename_mode(flags: u32, caller: Caller) -> Option<RenameMode> {
    match flags {
        0 => Some(RenameMode::Replace),
        RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        RENAME_EXCHANGE => Some(RenameMode::Exchange),
        RENAME_WHITEOUT => Some(RenameMode::Whiteout { caller, replace: true }),
        _ if flags == RENAME_WHITEOUT | RENAME_NOREPLACE => {
            Some(RenameMode::Whiteout { caller, replace: false })
        }
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
