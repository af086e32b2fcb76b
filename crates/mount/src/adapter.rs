//! The kernel's requests turned into verbs, and their results into replies.
//!
//! The kernel's caches are always right because all changes go through this mount, or through [`crate::Outside`], which
//! tells it, and because it is told what it may have filled its pages with beside a write past them (`caches`) and drops attributes
//! that a change has overtaken (`tellings`): entries, attributes, names that do not exist, pages and directory listings are cached for as
//! long as the kernel likes.
//!
//! The kernel may ask for an inode whose name has just gone. If it was renamed over, `pins` keeps it until nobody can
//! ask. If it was unlinked, "no such file" is right, except for open: the kernel does not tell us O_CREAT, so ESTALE
//! makes it walk the path again.

use rustix::io::Errno;
use varve_device::AlignedBuf;
use varve_fs::{
    Allocate, Attr, Caller, FileKind, FsError, InodeId, NAME_BYTES_MAX, NewInode, NewNameless,
    ROOT_INODE as ROOT, RenameMode, SeekTo, shown_number, subvolume_root,
};

use crate::dispatch::{
    Adapter, Scratch, XATTR_CREATE, XATTR_REPLACE, allocate, caller, rename_mode, seek_to, xattr_mode,
};
use crate::kernel::abi::{self, InHeader, OpenOut, open, setattr};
use crate::kernel::listing::Listing;
use crate::kernel::reply::Reply;
use crate::kernel::request::{self, Body};
use crate::outside::store_unstored_in;
use crate::pins::Pins;
use crate::policy::Change;
use crate::{Verbs, convert};

/// Most that is read at once: the kernel asks for [`crate::kernel::WRITE_BYTES_MAX`] at most.
const READ_BYTES_MAX: u32 = 16 << 20;
/// Largest copy in one request, in bytes: its count is answered in 32 bits. The kernel asks for less than 2 GiB at once,
/// and a file that is copied whole in one request becomes a clone.
const COPY_BYTES_MAX: u64 = 1 << 31;
/// Unit of the counts in statfs, in bytes.
const STATFS_BLOCK_BYTES: u64 = 4096;

// Linux numbers, part of the kernel's ABI.
const O_ACCMODE: i32 = 0o3;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;
/// O_SYNC contains it.
const O_DSYNC: i32 = 0o10000;
// Not the same on all machines.
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

impl<V: Verbs> Adapter<V> {
    /// One request. `payload` holds what a WRITE brings.
    pub(crate) fn serve(
        &self,
        header: &InHeader,
        body: &Body<'_>,
        payload: &mut AlignedBuf,
        reply: Reply,
        scratch: &mut Scratch,
    ) {
        let (verb, number, ino, who) = (body.verb(), header.nodeid, InodeId(header.nodeid), caller(header));
        let verbs = &*self.verbs;
        match *body {
            // A handle (open_by_handle_at) of a node that the kernel does not know: of any kind, and it may be gone.
            Body::Lookup { name: b"." } => {
                self.tellings.note(number, header.pid);
                self.reply_entry(verb, number, verbs.getattr(ino), reply);
            }
            Body::Lookup { name } => match self.lookup(header, name) {
                // Compilers look for headers in ten places: the kernel remembers the nine where they are not.
                Err(FsError::NotFound) => reply.body(&convert::no_entry()),
                result => self.reply_entry(verb, number, result, reply),
            },
            // The filesystem counts open handles and no lookups.
            Body::Forget { answers } => {
                reply.none();
                self.forget(ino, answers);
            }
            Body::BatchForget { list } => {
                reply.none();
                request::forgotten(list).for_each(|(ino, answers)| self.forget(InodeId(ino), answers));
            }
            Body::Getattr => self.reply_attr(verb, number, self.attributes(header), reply),
            Body::Statx => match self.attributes(header) {
                Ok(attr) => reply.body(&convert::statx_out(&attr)),
                Err(error) => reply.error(self.errno(verb, number, &error)),
            },
            Body::Setattr(asked) => {
                let set = convert::set_attr(&asked);
                let by = match set.size {
                    Some(_) => self.writer(header, asked.valid & setattr::KILL_SUIDGID != 0),
                    None => who,
                };
                let answer = |attr, reply: Reply| reply.body(&convert::attr_out(&attr));
                // The kernel believes what it is told now, whatever is on its way to change it.
                self.tellings.note(number, header.pid);
                let writing = set.size.and_then(|_| self.health.unstored.writing(number));
                let result = verbs.setattr(by, ino, set);
                if let (Some(size), Ok(_)) = (set.size, &result) {
                    self.health.unstored.settled(number, (size, u64::MAX));
                }
                drop(writing);
                self.reply_change(Change::Inode, verb, number, result, reply, answer);
            }
            Body::Readlink => match verbs.readlink(ino) {
                Ok(target) => {
                    self.note_access(verb, number, self.policy.of_link());
                    reply.bytes(&target);
                }
                Err(error) => reply.error(self.errno(verb, number, &error)),
            },
            Body::Symlink { name, target } => {
                let result = self.change(header, verbs.symlink(who, ino, name, target));
                self.reply_named(verb, number, result, reply);
            }
            Body::Mknod { mode, umask, rdev, name } => {
                let Some(kind) = convert::file_kind(mode) else { return reply.error(Errno::INVAL) };
                let set_gid_judged = self.agreed.judges_set_gid();
                let new = NewInode { kind, mode: mode & 0o7777, umask, rdev, set_gid_judged };
                let result = self.change(header, verbs.make(who, ino, name, new));
                self.reply_named(verb, number, result, reply);
            }
            Body::Mkdir { mode, umask, name } => {
                let (kind, set_gid_judged) = (FileKind::Directory, self.agreed.judges_set_gid());
                let new = NewInode { kind, mode: mode & 0o7777, umask, rdev: 0, set_gid_judged };
                let result = self.change(header, verbs.make(who, ino, name, new));
                self.reply_named(verb, number, result, reply);
            }
            Body::Unlink { name } => {
                let last = Pins::last(verbs, ino, name);
                let result = self.change(header, verbs.unlink(ino, name));
                self.pins.note_gone(last.filter(|_| result.is_ok()));
                self.reply_done(Change::Names, verb, number, result, reply)
            }
            Body::Rmdir { name } => {
                let last = Pins::last(verbs, ino, name);
                let result = self.change(header, verbs.rmdir(ino, name));
                self.pins.note_gone(last.filter(|_| result.is_ok()));
                self.reply_done(Change::Names, verb, number, result, reply)
            }
            Body::Rename { name, new_parent, new_name, flags } => {
                let Some(mode) = rename_mode(flags, who) else { return reply.error(Errno::INVAL) };
                let to = InodeId(new_parent);
                let moved = verbs.lookup(ino, name);
                let back = matches!(mode, RenameMode::Exchange).then(|| verbs.lookup(to, new_name));
                let result = self.rename((ino, name), (to, new_name), mode);
                let moved = [Some(moved), back].into_iter().flatten().flatten().map(|attr| attr.ino.0);
                for changed in moved.chain([number, new_parent]) {
                    self.overtake(changed, header.pid);
                }
                // Names are changed in both: the flags of either ask.
                let asking = if verbs.wants_durable(to, true) { new_parent } else { number };
                self.reply_done(Change::Names, verb, asking, result, reply);
            }
            Body::Link { ino: of, name } => {
                self.tellings.note(of, header.pid);
                let result = self.change(header, verbs.link(InodeId(of), ino, name));
                self.reply_named(verb, number, result, reply);
            }
            Body::Open { flags } => self.open(who, number, flags, reply),
            Body::Create { mode, umask, name } => self.create(header, name, mode & 0o7777, umask, reply),
            Body::Tmpfile { mode, umask } => {
                // The kernel sees to it that a file that shall not get a name gets none.
                let set_gid_judged = self.agreed.judges_set_gid();
                let new = NewNameless { mode: mode & 0o7777, umask, linkable: true, set_gid_judged };
                let made = verbs.tmpfile(who, ino, new);
                self.reply_created(Change::Inode, verb, number, made, reply);
            }
            Body::Read { offset, size, read_flags, flags } => {
                let _reading = (read_flags & abi::LOCK_OWNER == 0).then(|| self.caches.begin_read(number));
                self.read(number, offset, size, flags, &mut scratch.read, reply);
            }
            Body::Write { offset, size, write_flags, flags } => {
                let by = self.writer(header, write_flags & abi::WRITE_KILL_SUIDGID != 0);
                let past_cache = write_flags & abi::LOCK_OWNER != 0;
                if !past_cache {
                    self.caches.note(number);
                }
                // Of what was changed through mmap the kernel takes any answer that is no error for all of it, and past its cache it
                // makes EIO of a short one, as if the disk were broken: it sends such writes side by side. Not with FOPEN_DIRECT_IO, if
                // a program waits for its write.
                let writing = self.health.unstored.writing(number);
                let whole = write_flags & abi::WRITE_CACHE != 0 || flags & O_DIRECT != 0 && !self.direct_io;
                let written = if whole {
                    verbs.write_whole(by, ino, offset, payload, size as usize).map(|()| size as usize)
                } else {
                    verbs.write_owned(by, ino, offset, payload, size as usize)
                };
                let range = (offset, u64::from(size));
                match &written {
                    Ok(count) => self.health.unstored.settled(number, (offset, *count as u64)),
                    // Whoever may not write there has not lost anything that he had.
                    Err(error @ FsError::Engine(_)) if write_flags & abi::WRITE_CACHE != 0 => {
                        let errno = Errno::from_raw_os_error(error.errno());
                        self.health.note_unstored(number, offset, &payload[..size as usize], errno);
                    }
                    Err(_) => {}
                }
                drop(writing);
                // Of one that failed a part may have been stored.
                if past_cache {
                    self.overtake_all(number);
                } else if write_flags & abi::WRITE_CACHE != 0 {
                    self.overtake(number, header.pid);
                }
                // Past its cache the kernel syncs nothing for O_SYNC and O_DSYNC: not with FOPEN_DIRECT_IO, and not
                // when a program does not wait for its write. (When it does an fsync follows, and finds nothing to do.)
                // Nor for the mount option sync, of which older kernels say nothing in the flags, either.
                let unsynced = self.direct_io || flags & O_DIRECT != 0;
                let durable = flags & O_DSYNC != 0 || self.policy.durable_at_once(Change::Inode);
                // Of the flags of an inode the kernel knows nothing.
                let flagged = || write_flags & abi::WRITE_CACHE == 0 && verbs.wants_durable(ino, false);
                let durable = unsynced && durable || flagged();
                self.reply_written((verb, number), range, past_cache, durable, written, reply);
            }
            Body::Release => {
                let released = verbs.release_inode(ino);
                let is_gone = || matches!(verbs.getattr(ino), Err(FsError::NotFound | FsError::Stale));
                if self.health.unstored.error(number).is_some() && is_gone() {
                    self.health.unstored.settled(number, (0, u64::MAX));
                }
                self.reply_empty(verb, number, released, reply)
            }
            Body::Fsync | Body::Fsyncdir => {
                // Of what has gone there is nothing to be made durable but that, and whatever was before in its subvolume.
                let of = match self.is_gone(ino) {
                    false => ino,
                    true => {
                        Some(subvolume_root(ino)).filter(|root| verbs.getattr(*root).is_ok()).unwrap_or(ROOT)
                    }
                };
                // All else is made durable, too.
                if self.health.unstored.error(number).is_some() {
                    self.store_unstored(number);
                }
                let lost = self.health.unstored.error(number);
                self.when_durable(verb, of.0, reply, move |reply| match lost {
                    Some(errno) => reply.error(errno),
                    None => reply.empty(),
                });
            }
            Body::Opendir => self.opendir(reply),
            Body::Releasedir => reply.empty(),
            Body::Readdir { cookie, size } => {
                let listing = &mut scratch.listing;
                listing.begin(size);
                let result = verbs.readdir(ino, cookie, &mut |entry| {
                    listing.add(
                        shown_number(entry.ino),
                        entry.cookie,
                        convert::mode_of(entry.kind),
                        &entry.name,
                    )
                });
                self.reply_listing(verb, number, result, listing, reply);
            }
            Body::Readdirplus { cookie, size } => {
                let listing = &mut scratch.listing;
                listing.begin(size);
                let result = self.fill_plus((ino, header.pid), cookie, listing);
                self.reply_listing(verb, number, result, listing, reply);
            }
            Body::Statfs => self.statfs(number, reply),
            Body::Setxattr { name, value, flags, acl_flags } => {
                if flags == XATTR_CREATE | XATTR_REPLACE {
                    // It can be neither new nor there already: an error that says which it is, as elsewhere.
                    let result = verbs.getxattr(ino, name).and(Err(FsError::Exists));
                    return self.reply_empty(verb, number, result, reply);
                }
                let Some(mode) = xattr_mode(flags) else { return reply.error(Errno::INVAL) };
                let by = self.list_setter(header, acl_flags);
                let result = self.change(header, verbs.setxattr(by, ino, name, value, mode));
                self.reply_done(Change::Inode, verb, number, result, reply);
            }
            Body::Getxattr { name, size } => {
                let result = verbs.getxattr(ino, name).map_err(|error| match error {
                    FsError::NotFound | FsError::Stale if self.is_gone(ino) => FsError::NoAttribute,
                    error => error,
                });
                self.reply_xattr(verb, number, size, result, reply);
            }
            Body::Listxattr { size } => {
                let names = verbs.listxattr(ino).or_else(|error| match error {
                    FsError::NotFound | FsError::Stale if self.is_gone(ino) => Ok(Vec::new()),
                    error => Err(error),
                });
                let result = names.map(|names| list_for(who, names));
                self.reply_xattr(verb, number, size, result, reply);
            }
            Body::Removexattr { name } => {
                let result = self.change(header, verbs.removexattr(ino, name));
                self.reply_done(Change::Inode, verb, number, result, reply);
            }
            Body::Lseek { offset, whence } => self.lseek(number, offset, whence, reply),
            Body::Fallocate(asked) => {
                let Some(how) = allocate(asked.mode) else { return reply.error(Errno::OPNOTSUPP) };
                let writing = self.health.unstored.writing(number);
                let result = verbs.fallocate(who, ino, asked.offset, asked.length, how);
                if result.is_ok() && matches!(how, Allocate::Punch | Allocate::Zero { .. }) {
                    self.health.unstored.settled(number, (asked.offset, asked.length));
                }
                drop(writing);
                match (result, how) {
                    // It may have zeroed a part.
                    (Err(error @ FsError::Engine(_)), Allocate::Punch | Allocate::Zero { .. }) => {
                        let errno = self.errno(verb, number, &error);
                        self.forget_then(number, (asked.offset, asked.length), move || reply.error(errno));
                    }
                    (result, _) => {
                        self.overtake(number, header.pid);
                        self.reply_done(Change::Inode, verb, number, result, reply);
                    }
                }
            }
            Body::Copy(asked) => {
                let (from, to) = ((ino, asked.offset_from), (InodeId(asked.nodeid_to), asked.offset_to));
                let len = asked.len.min(COPY_BYTES_MAX);
                self.store_unstored(number);
                if self.health.unstored.error(number).is_some() {
                    // The kernel has what is not stored: it copies by reading.
                    return reply.error(Errno::OPNOTSUPP);
                }
                let writing = self.health.unstored.writing(asked.nodeid_to);
                let copied = verbs.copy_range(who, from, to, len);
                if let Ok(bytes) = copied {
                    self.health.unstored.settled(asked.nodeid_to, (asked.offset_to, bytes));
                }
                drop(writing);
                match copied {
                    // It may have copied a part.
                    Err(error @ FsError::Engine(_)) => {
                        let errno = self.errno(verb, asked.nodeid_to, &error);
                        let range = (asked.offset_to, len);
                        self.forget_then(asked.nodeid_to, range, move || reply.error(errno));
                    }
                    copied => {
                        let answer = |copied, reply: Reply| {
                            let size = std::cmp::min(copied, COPY_BYTES_MAX) as u32;
                            reply.body(&abi::SizeOut { size, padding: 0 });
                        };
                        self.reply_change(Change::Inode, verb, asked.nodeid_to, copied, reply, answer);
                    }
                }
            }
            Body::Destroy => reply.empty(),
            Body::Ioctl { command: abi::ioctl::TRIM, data, out_bytes } => {
                self.trim(who, header.unique, data, out_bytes, reply);
            }
            Body::Ioctl { command, data, out_bytes } => {
                self.ioctl(who, number, command, data, out_bytes, reply)
            }
            // Nothing else waits long.
            Body::Interrupt { unique } => {
                reply.none();
                self.trims.interrupt(unique);
            }
            // FLUSH: nothing happens at close; the kernel still writes out pages dirtied through mmap before it would
            // have asked. ACCESS, POLL, BMAP, locks: the kernel falls back.
            Body::Other => reply.error(Errno::NOSYS),
        }
    }

    /// Stores what of a file was changed through mmap and could not be stored before, as far as it can be now.
    pub(crate) fn store_unstored(&self, ino: u64) {
        store_unstored_in(&*self.verbs, &self.health, &self.device, ino);
    }

    fn rename(
        &self,
        (parent, name): (InodeId, &[u8]),
        (new_parent, new_name): (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let verbs = &*self.verbs;
        let last = if mode.replaces() { Pins::last(verbs, new_parent, new_name) } else { None };
        let rename = || verbs.rename(parent, name, new_parent, new_name, mode);
        let mut pin = last.as_ref().and_then(|last| self.pins.pin(verbs, last));
        let mut result = rename();
        if let (Some(last), Err(FsError::Engine(error))) = (&last, &result)
            && error.is_damage()
            && self.pins.unpin(verbs, last.ino)
        {
            // What is open takes its part in its data with it, which perhaps cannot be read; what nobody has open goes without.
            pin = None;
            result = rename();
        }
        match (pin, &result) {
            (Some(ino), Err(_)) => {
                self.pins.unpin(verbs, ino);
            }
            (None, Ok(())) => self.pins.note_gone(last),
            _ => {}
        }
        result
    }

    /// What came of a change of the inode that a request is about.
    fn change<T>(&self, header: &InHeader, result: Result<T, FsError>) -> Result<T, FsError> {
        self.overtake(header.nodeid, header.pid);
        result
    }

    /// Where a name leads to, for an answer.
    fn lookup(&self, header: &InHeader, name: &[u8]) -> Result<Attr, FsError> {
        let changes = self.tellings.changes();
        let attr = self.verbs.lookup(InodeId(header.nodeid), name)?;
        self.tellings.note(attr.ino.0, header.pid);
        // Who changes it from now on sees the note. Who has done so since it was looked at may not have seen it.
        let unchanged = self.tellings.changes() == changes;
        Ok(if unchanged { attr } else { self.verbs.getattr(attr.ino).unwrap_or(attr) })
    }

    /// The attributes of an inode, for an answer, also of one that has gone and that somebody has open all the same.
    fn attributes(&self, header: &InHeader) -> Result<Attr, FsError> {
        let ino = InodeId(header.nodeid);
        self.tellings.note(ino.0, header.pid);
        self.verbs.getattr(ino).or_else(|error| match error {
            FsError::NotFound | FsError::Stale => self.pins.gone(ino).ok_or(error),
            error => Err(error),
        })
    }

    /// Whether an inode is no more, and somebody may have it open all the same.
    fn is_gone(&self, ino: InodeId) -> bool {
        self.pins.gone(ino).is_some()
            && matches!(self.verbs.getattr(ino), Err(FsError::NotFound | FsError::Stale))
    }

    fn open(&self, who: Caller, ino: u64, flags: i32, reply: Reply) {
        if flags & O_ACCMODE != 0
            && let Ok(attr) = self.verbs.getattr(InodeId(ino))
            && attr.flags.forbid_opening(flags & O_APPEND != 0)
        {
            return reply.error(Errno::PERM);
        }
        let truncate = flags & O_TRUNC != 0;
        // The pages of what is open for writing can be changed in the kernel's memory, whoever reads them, also of a snapshot in which
        // nothing can be.
        if (truncate || flags & O_ACCMODE != 0)
            && let Err(error) = self.verbs.admit(InodeId(ino))
        {
            return reply.error(self.errno("open", ino, &error));
        }
        if truncate && self.health.panicked() {
            return reply.error(Errno::IO);
        }
        match self.verbs.open_inode(who, InodeId(ino), truncate) {
            Ok(()) => {
                // What is read through this handle may come from the kernel's cache.
                self.note_access("open", ino, self.policy.of_file(flags));
                reply.body(&OpenOut { open_flags: self.open_flags(), ..OpenOut::default() });
            }
            Err(FsError::NotFound) => reply.error(Errno::STALE),
            Err(error) => reply.error(self.errno("open", ino, &error)),
        }
    }

    fn create(&self, header: &InHeader, name: &[u8], mode: u32, umask: u32, reply: Reply) {
        let who = caller(header);
        // The kernel holds the directory until it has our answer: nobody can remove the name in between.
        let set_gid_judged = self.agreed.judges_set_gid();
        let new = NewInode { kind: FileKind::File, mode, umask, rdev: 0, set_gid_judged };
        let created = self
            .verbs
            .make(who, InodeId(header.nodeid), name, new)
            .and_then(|attr| self.verbs.open_inode(who, attr.ino, false).map(|()| attr));
        let created = self.change(header, created);
        self.reply_created(Change::Names, "create", header.nodeid, created, reply);
    }

    /// The kernel lets go of an inode, or of so many of the answers that gave it.
    fn forget(&self, ino: InodeId, answers: u64) {
        // What is kept for it first: then nobody knows its number.
        self.pins.forget(&*self.verbs, ino);
        self.numbers.forget(ino, answers);
    }

    /// A file that has been made and opened.
    fn reply_created(
        &self,
        change: Change,
        verb: &'static str,
        parent: u64,
        created: Result<Attr, FsError>,
        reply: Reply,
    ) {
        let open = OpenOut { open_flags: self.open_flags(), ..OpenOut::default() };
        let numbers = self.numbers.clone();
        self.reply_change(change, verb, parent, created, reply, move |attr, reply| {
            numbers.give(attr.ino);
            reply.body(&abi::CreateOut { entry: convert::entry_out(&attr), open });
        });
    }

    fn read(&self, ino: u64, offset: u64, size: u32, flags: i32, buf: &mut AlignedBuf, reply: Reply) {
        if size > READ_BYTES_MAX {
            return reply.error(Errno::INVAL);
        }
        let size = size as usize;
        if buf.len() < size {
            *buf = AlignedBuf::new(size);
        }
        // What is read and what is laid over it belong together: what is stored in between would be in neither.
        let writing = self.health.unstored.writing(ino);
        match self.verbs.read_large(InodeId(ino), offset, size, buf) {
            Ok(count) => {
                self.note_access("read", ino, self.policy.of_file(flags));
                let bytes = &mut buf[..count.min(size)];
                self.health.unstored.show(ino, offset, bytes);
                drop(writing);
                reply.bytes(bytes);
            }
            Err(error) => reply.error(self.errno("read", ino, &error)),
        }
    }

    fn opendir(&self, reply: Reply) {
        if self.agreed.opendir_without_message() {
            return reply.error(Errno::NOSYS);
        }
        reply.body(&OpenOut { open_flags: open::KEEP_CACHE | open::CACHE_DIR, ..OpenOut::default() });
    }

    fn reply_listing(
        &self,
        verb: &str,
        ino: u64,
        result: Result<(), FsError>,
        listing: &Listing,
        reply: Reply,
    ) {
        match result {
            Ok(()) => {
                self.note_access(verb, ino, self.policy.of_directory());
                reply.bytes(listing.bytes());
            }
            Err(error) => reply.error(self.errno(verb, ino, &error)),
        }
    }

    fn statfs(&self, ino: u64, reply: Reply) {
        match self.verbs.statfs() {
            Ok(space) => {
                let free = space.free_bytes / STATFS_BLOCK_BYTES;
                reply.body(&abi::StatfsOut {
                    blocks: space.total_bytes / STATFS_BLOCK_BYTES,
                    bfree: free,
                    bavail: free,
                    // Inodes are made out of free space: as many more as there are free blocks.
                    files: space.files.saturating_add(free),
                    ffree: free,
                    bsize: STATFS_BLOCK_BYTES as u32,
                    namelen: NAME_BYTES_MAX as u32,
                    frsize: STATFS_BLOCK_BYTES as u32,
                    ..abi::StatfsOut::default()
                });
            }
            Err(error) => reply.error(self.errno("statfs", ino, &error)),
        }
    }

    // Pages dirtied through mmap that the kernel has not sent yet are not seen; msync(2) sends them.
    fn lseek(&self, ino: u64, offset: i64, whence: i32, reply: Reply) {
        let Some(to) = seek_to(whence) else { return reply.error(Errno::INVAL) };
        // Before a file there is as little as behind it.
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::NXIO) };
        // What is not stored may be in any hole.
        if self.health.unstored.error(ino).is_some()
            && let Ok(attr) = self.verbs.getattr(InodeId(ino))
            && offset < attr.size
        {
            let offset = if matches!(to, SeekTo::Data) { offset } else { attr.size };
            return reply.body(&abi::LseekOut { offset });
        }
        match self.verbs.seek(InodeId(ino), offset, to) {
            Ok(Some(offset)) if offset <= i64::MAX as u64 => reply.body(&abi::LseekOut { offset }),
            Ok(_) => reply.error(Errno::NXIO),
            Err(error) => reply.error(self.errno("lseek", ino, &error)),
        }
    }
}

/// Names of attributes, each with a NUL. As elsewhere, only root is told of some; the kernel refuses to read them out to
/// others by itself.
fn list_for(who: Caller, names: Vec<Vec<u8>>) -> Vec<u8> {
    let hidden = |name: &Vec<u8>| who.uid != 0 && name.starts_with(b"trusted.");
    let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in names.into_iter().filter(|name| !hidden(name)) {
        list.extend_from_slice(&name);
        list.push(0);
    }
    list
}
