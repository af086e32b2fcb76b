//! A filesystem driven call by call, with the model beside it and a record of what must survive.
//!
//! The harness is single-threaded and opens without background work, so that every change of the log belongs to the
//! call during which it happened. Verbs of names and attributes take effect in the logged state at the position after
//! the call; bytes of `write` take effect where the filesystem says that it logged them, and what they are comes from
//! the calls alone. The expected states never come from the engine's log.

mod capability;
mod ledger;
mod opened;
mod ranges;
mod space;
#[cfg(test)]
mod tests;
mod unread;
mod wanted;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use varve_device::Device;
use varve_fs::{Allocate, Deduped, Filesystem, FsError, InodeId, Lsn, NewInode, NewNameless, SeekTo};
use varve_sim::Rng;

use crate::call::{Call, fill, write};
use crate::compare::{attr_differences, compare};
use crate::disk::Disk;
use crate::model::{
    COMPARED_BYTES, Content, Context, Errno, Inode, Model, PAGE_BYTES, Punch, is_subvolume, slot,
};
use crate::reads::Reads;
use crate::timeline::{Mark, Timeline};
use crate::trial::POOL_BYTES;
use opened::Logged;
pub use opened::{Opened, Setup, StepClock};
use wanted::{punches_nothing_of_others, wanted_bytes};

const ENOENT: Errno = 2;
const EIO: Errno = 5;
const EXDEV: Errno = 18;
const ENOSPC: Errno = 28;
const EOPNOTSUPP: Errno = 95;
/// With this much free no call may be refused for lack of space, in bytes, but for what [`wanted_bytes`] says.
const REFUSAL_FREE_BYTES_MAX: u64 = 64 << 10;
/// What setting a page aside may take: it, and its share of what describes it.
const RESERVED_PAGE_BYTES_MAX: u64 = 2 * PAGE_BYTES + 512;
/// EEXIST, EXDEV, ENOTDIR, EISDIR, EINVAL, EROFS, ENOTEMPTY.
const RENAME_REFUSALS: [Errno; 7] = [17, 18, 20, 21, 22, 30, 39];

/// A promise that was broken, in words.
#[derive(Clone, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A [`Violation`] from a format string.
#[macro_export]
macro_rules! violation {
    ($($arg:tt)*) => { $crate::session::Violation(format!($($arg)*)) };
}

/// See the module.
pub struct Session {
    fs: Filesystem,
    disk: Disk,
    clock: Arc<StepClock>,
    setup: Setup,
    live: Model,
    logged: Model,
    /// Files whose newest bytes or times may not be in the log.
    pending: BTreeSet<InodeId>,
    events: Logged,
    timeline: Timeline,
    history: Vec<String>,
    /// Calls made: their numbers name what they reserve.
    calls: u64,
    /// Exchanges of two subvolumes among them that were done.
    exchanges: u64,
    /// The call under way has failed because something could not be read.
    call_unread: bool,
    /// Trims between the calls, and how likely each is.
    trims: Option<(Rng, f64)>,
    /// Where the log was when a sync had been started.
    started: Vec<u64>,
    /// Inodes whose last access may not be in the log.
    accessed: BTreeSet<InodeId>,
    /// The device, and during how many calls it fails to read.
    unread: Option<(Reads, Rng, f64)>,
}

impl Session {
    /// Begins with a filesystem that shows `model`, which is durable.
    pub fn new(opened: Opened, disk: Disk, clock: Arc<StepClock>, setup: Setup, model: Model) -> Session {
        let position = opened.report.end.0;
        let mut timeline = Timeline::new(position, model.clone(), disk.events());
        // Opening may have deleted files that were open at the crash: no user sees that.
        let now = opened.fs.position().0;
        timeline.mark(Mark { events: disk.events(), position: now, acknowledged: position });
        Session {
            fs: opened.fs,
            disk,
            clock,
            setup,
            live: model.clone(),
            logged: model,
            pending: BTreeSet::new(),
            events: opened.logged,
            timeline,
            history: Vec::new(),
            calls: 0,
            exchanges: 0,
            call_unread: false,
            trims: None,
            started: Vec::new(),
            accessed: BTreeSet::new(),
            unread: None,
        }
    }

    /// From now on there are trims between the calls, drawn by `rng`, each with this probability: of part of the pool as a
    /// rule, so that what was free before is in the image in all ways it can be.
    pub fn trim_between(&mut self, rng: Rng, probability: f64) {
        self.trims = Some((rng, probability));
    }

    /// From now on some reads of `device`, which is the disk, fail during calls with this probability. A call that meets one may fail
    /// with EIO, and has done nothing then, or its first steps; made again it does what it should.
    pub fn fail_reads(&mut self, device: Reads, rng: Rng, probability: f64) {
        self.unread = Some((device, rng, probability));
    }

    /// Everything becomes durable; then the process is killed, and the pool opened anew: nothing of it is in memory any more, and
    /// nothing is open.
    pub fn restart(&mut self) -> Result<(), Violation> {
        self.must(&Call::Sync)?;
        let device: Arc<dyn Device> = match &self.unread {
            Some((device, ..)) => Arc::new(device.clone()),
            None => self.disk.device(),
        };
        let opened = Opened::open_on(device, &self.setup, &self.clock, false);
        let opened = opened.map_err(|error| violation!("opening after a kill fails: {error}"))?;
        let (before, end) = (self.fs.position().0, opened.report.end.0);
        if end != before {
            return Err(violation!("killed with {before} durable, and recovered to {end}"));
        }
        (self.fs, self.events) = (opened.fs, opened.logged);
        self.live.forget_opens();
        self.logged.forget_opens();
        self.started.clear();
        self.history.push(format!("{before:>5}..{:<5} (killed and opened)", self.fs.position().0));
        let (events, position) = (self.disk.events(), self.fs.position().0);
        self.timeline.mark(Mark { events, position, acknowledged: end });
        Ok(())
    }

    /// What a user of the running filesystem sees.
    pub fn live(&self) -> &Model {
        &self.live
    }
    /// The filesystem, for questions that change nothing.
    pub fn fs(&self) -> &Filesystem {
        &self.fs
    }
    /// What must survive.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }
    /// The inode that the last call created.
    pub fn last_created(&self) -> Option<InodeId> {
        self.timeline.last_created()
    }
    /// The disk below.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }
    /// How often two subvolumes have been exchanged.
    pub fn exchanges(&self) -> u64 {
        self.exchanges
    }

    /// The last calls with their positions and results, for reports.
    pub fn history(&self, last: usize) -> String {
        self.history[self.history.len().saturating_sub(last)..].join("\n")
    }

    /// Where the log was when the sync `nth` before the last had been started.
    fn started(&self, nth: usize) -> Option<u64> {
        self.started.iter().rev().nth(nth).copied()
    }

    fn execute(&self, call: &Call) -> Result<(InodeId, usize), FsError> {
        let (fs, caller) = (&self.fs, self.setup.caller);
        let none = (InodeId(0), 0);
        Ok(match call {
            Call::Create { parent, name, mode } => (fs.create(caller, *parent, name, *mode)?.ino, 0),
            Call::Mkdir { parent, name, mode } => (fs.mkdir(caller, *parent, name, *mode)?.ino, 0),
            Call::Mknod { parent, name, kind, mode, umask, rdev } => {
                let new =
                    NewInode { kind: *kind, mode: *mode, umask: *umask, rdev: *rdev, set_gid_judged: false };
                (fs.make(caller, *parent, name, new)?.ino, 0)
            }
            Call::Symlink { parent, name, target } => (fs.symlink(caller, *parent, name, target)?.ino, 0),
            Call::Tmpfile { parent, mode, umask, linkable } => {
                let new =
                    NewNameless { mode: *mode, umask: *umask, linkable: *linkable, set_gid_judged: false };
                (fs.tmpfile(caller, *parent, new)?.ino, 0)
            }
            Call::Link { ino, parent, name } => fs.link(*ino, *parent, name).map(|_| none)?,
            Call::LinkOver { ino, parent, name } => fs.link_over(*ino, *parent, name).map(|()| none)?,
            Call::Unlink { parent, name } => fs.unlink(*parent, name).map(|()| none)?,
            Call::Rmdir { parent, name } => fs.rmdir(*parent, name).map(|()| none)?,
            Call::Rename { parent, name, new_parent, new_name, mode } => {
                fs.rename(*parent, name, *new_parent, new_name, *mode).map(|()| none)?
            }
            Call::SetAttr { ino, set } => fs.setattr(caller, *ino, *set).map(|_| none)?,
            Call::Open { ino, truncate } => fs.open_inode(caller, *ino, *truncate).map(|()| none)?,
            Call::Release { ino } => fs.release_inode(*ino).map(|()| none)?,
            Call::NoteAccess { ino, rule } => fs.note_access(*ino, *rule).map(|()| none)?,
            Call::Write { ino, offset, len, seed } => {
                (InodeId(0), write(fs, caller, *ino, *offset, &fill(*seed, *len))?)
            }
            Call::Fallocate { ino, offset, len, how } => {
                fs.fallocate(caller, *ino, *offset, *len, *how).map(|()| none)?
            }
            Call::Shift { ino, offset, len, insert: true } => {
                fs.insert_range(caller, *ino, *offset, *len).map(|()| none)?
            }
            Call::Shift { ino, offset, len, insert: false } => {
                fs.collapse_range(caller, *ino, *offset, *len).map(|()| none)?
            }
            Call::CopyRange { from, from_offset, to, to_offset, len } => {
                let copied = fs.copy_range(caller, (*from, *from_offset), (*to, *to_offset), *len)?;
                (InodeId(0), copied as usize)
            }
            Call::CloneRange { from, from_offset, to, to_offset, len } => {
                fs.clone_range(caller, (*from, *from_offset), (*to, *to_offset), *len).map(|()| none)?
            }
            Call::DedupeRange { from, from_offset, to, to_offset, len } => {
                match fs.dedupe_range((*from, *from_offset), (*to, *to_offset), *len)? {
                    Deduped::Same(bytes) => (InodeId(0), bytes as usize),
                    Deduped::Differs => none,
                }
            }
            Call::SetXattr { ino, name, value, mode } => {
                fs.setxattr_as(caller, *ino, name, value, *mode).map(|()| none)?
            }
            Call::RemoveXattr { ino, name } => fs.removexattr(*ino, name).map(|()| none)?,
            Call::SetFlags { ino, flags } => fs.set_flags(caller, *ino, *flags).map(|()| none)?,
            Call::CreateSubvolume { parent, name, mode } => {
                (fs.create_subvolume(caller, *parent, name, *mode)?.ino, 0)
            }
            Call::Snapshot { source, parent, name, read_only, sync } => {
                (fs.snapshot(*source, *parent, name, *read_only, *sync)?, 0)
            }
            Call::DeleteSubvolume { parent, name } => fs.delete_subvolume(*parent, name).map(|()| none)?,
            Call::CloneFile { source, parent, name } => {
                (fs.clone_file(caller, *source, *parent, name)?.ino, 0)
            }
            Call::Fsync { ino } => fs.fsync(*ino).map(|()| none)?,
            Call::FlushFile { ino } => fs.flush_file(*ino).map(|()| none)?,
            Call::FlushAll => fs.flush_all().map(|()| none)?,
            Call::Commit { nth } => {
                self.started(*nth).map_or(Ok(()), |upto| fs.commit(Lsn(upto))).map(|()| none)?
            }
            Call::Sync => fs.sync().map(|()| none)?,
            Call::Checkpoint => fs.checkpoint().map(|()| none)?,
            Call::Maintain => fs.maintain().map(|()| none)?,
            Call::Trim { start, len, minimum } => {
                let range = *start..start.saturating_add(*len);
                (InodeId(0), usize::from(!fs.trim(range, *minimum, &mut |_| true)?.is_supported))
            }
            Call::Close => fs.close().map(|()| none)?,
        })
    }

    /// Makes one call on both, compares the results and records what must survive. Gives the errno, 0 for success.
    pub fn call(&mut self, call: &Call) -> Result<Errno, Violation> {
        if let Some((rng, probability)) = &mut self.trims
            && rng.chance(*probability)
        {
            // Where data and both copies of nodes are first looked for.
            let start = [0, POOL_BYTES / 8, POOL_BYTES / 2, rng.below(POOL_BYTES)][rng.index(4)];
            let len = [POOL_BYTES, 1 << 20, rng.below(1 << 24)][rng.index(3)];
            let trim = Call::Trim { start, len, minimum: rng.below(3) * rng.below(1 << 16) };
            match self.make(&trim)? {
                0 => {}
                errno => return Err(violation!("{trim:?} fails with errno {errno}")),
            }
        }
        self.make(call)
    }

    fn make_once(&mut self, call: &Call) -> Result<Errno, Violation> {
        self.absorb()?;
        let now = self.clock.step();
        let before = self.fs.position().0;
        let result = self.execute(call);
        let failed = self.heal();
        let unread = failed && unread::says_so(&result);
        self.call_unread = unread;
        let result = self.left_behind(call, result);
        let after = self.fs.position().0;
        let mut events = std::mem::take(&mut *self.events.lock().expect("no panic holds it"));
        events.sort_by_key(|event| event.lsn);
        let errno = result.as_ref().err().map_or(0, FsError::errno);
        let how = if unread { " (a read failed)" } else { "" };
        self.history.push(format!("{before:>5}..{after:<5} {call:?} = {errno}{how}"));

        let (call, result) = if unread { &self.despite(call, result) } else { &(call.clone(), result) };
        let errno = result.as_ref().err().map_or(0, FsError::errno);
        let (created, written) = result.as_ref().map_or((InodeId(0), 0), |done| *done);
        self.timeline.called(before, call, created);
        let old = self.live.clone();
        let call = &old.meaning(call);
        let size = call.subject().and_then(|ino| old.get(ino)).map_or(0, Inode::size);
        self.calls += 1;
        self.exchanges += u64::from(errno == 0 && old.exchanges(call));
        let reservation = self.calls;
        let caller = self.setup.caller;
        let context = Context { now, caller, created, written, size, reservation, logged: false };
        if created.0 != 0 && old.get(created).is_some() {
            return Err(violation!("{call:?} gave inode {}, which is in use", created.0));
        }
        let is_fork = matches!(call, Call::CreateSubvolume { .. } | Call::Snapshot { .. });
        if errno == 0 && is_fork && (!is_subvolume(created) || old.has_slot(slot(created))) {
            return Err(violation!("{call:?} gave the root {}, which is none or in use", created.0));
        }
        let expected = self.live.apply(call, &context);
        if !unread {
            self.judge(call, &old, result, expected, (written, failed))?;
        }
        if errno != 0 {
            self.live = old.clone();
            if unread {
                self.take_unread_effect(call, &context)?;
            } else if errno == ENOSPC && expected != Err(ENOSPC) || errno == EOPNOTSUPP && expected.is_ok() {
                self.take_partial_effect(call, &context)?;
            }
        }
        if errno == 0 && (failed || self.setup.tight) {
            self.take_left_out_times(call, &old)?;
        }
        if errno == 0 && self.setup.tight {
            self.take_written_zeros(call, &context, &old)?;
        }
        match call {
            Call::CloneRange { .. } if matches!(old.part(call), Ok(Some(_))) => {
                self.record_range(call, &context, &old, (before, after), &events, errno == 0)?;
            }
            // It changes nothing; what it looks at may be a file that a snapshot waits for, which is logged then.
            Call::CloneRange { .. } => {
                self.record(&Call::Maintain, &context, &old, (before, after), events, true)?;
            }
            _ => self.record(call, &context, &old, (before, after), events, errno == 0)?,
        }
        self.promise(call, (before, after), errno == 0)?;
        if errno == 0 {
            self.verify_attributes(call, created)?;
        }
        Ok(errno)
    }

    /// Enters what looking at the filesystem has brought into the log: a file that a snapshot waits for is logged before
    /// the snapshot's is read.
    fn absorb(&mut self) -> Result<(), Violation> {
        let (before, after) = (self.timeline.last().position, self.fs.position().0);
        let mut events = std::mem::take(&mut *self.events.lock().expect("no panic holds it"));
        if before == after && events.is_empty() {
            return Ok(());
        }
        events.sort_by_key(|event| event.lsn);
        self.history.push(format!("{before:>5}..{after:<5} (looked at)"));
        let (caller, now) = (self.setup.caller, self.clock.last());
        let context =
            Context { now, caller, created: InodeId(0), written: 0, size: 0, reservation: 0, logged: false };
        // As if that had been asked for: it changes nothing, too.
        let call = Call::Maintain;
        let live = self.live.clone();
        self.record(&call, &context, &live, (before, after), events, true)?;
        self.promise(&call, (before, after), true)
    }

    /// Makes a call that must succeed.
    pub fn must(&mut self, call: &Call) -> Result<(), Violation> {
        match self.call(call)? {
            0 => Ok(()),
            errno => Err(violation!("{call:?} fails with errno {errno}")),
        }
    }

    /// What a call that was refused for lack of space may have done, and has done.
    fn take_partial_effect(&mut self, call: &Call, context: &Context) -> Result<(), Violation> {
        self.take_with_capability(call, context, |session| session.take_steps(call, context))
    }

    /// What of a call that goes from the front of a range to its end has been done when it ended early.
    fn take_steps(&mut self, call: &Call, context: &Context) -> Result<(), Violation> {
        if matches!(call, Call::CloneRange { .. }) {
            return self.take_partial_range(call, context);
        }
        let Call::Fallocate { ino, offset, len, how } = call else { return Ok(()) };
        let ino = *ino;
        let fails = |error: FsError| violation!("after {call:?}: {error}");
        let (from, to) = (*offset, offset + len);
        let punch = Punch { from, to, size: context.size };
        let first = from / PAGE_BYTES * PAGE_BYTES;
        // Whole pages, so that they can be told apart.
        let end = to.next_multiple_of(PAGE_BYTES).min(context.size);
        let found = self.fs.read(ino, first, end.saturating_sub(first) as usize);
        let (found, attr) = (found.map_err(fails)?, self.fs.getattr(ino).map_err(fails)?);
        let Some(inode) = self.live.get_mut(ino) else { return Ok(()) };
        let mut mode = inode.mode.clone();
        mode.allow(context.without_set_ids(mode.get()));
        inode.mtime.allow(context.now);
        inode.ctime.allow(context.now);
        if !mode.accepts(attr.mode) || !inode.mtime.accepts(attr.mtime) || !inode.ctime.accepts(attr.ctime) {
            return Err(violation!("after {call:?}, refused: {attr:?}"));
        }
        inode.mode.set(attr.mode);
        inode.mtime.set(attr.mtime);
        inode.ctime.set(attr.ctime);
        let Some(content) = inode.content_mut() else { return Ok(()) };
        if !matches!(how, Allocate::Reserve { .. }) {
            content.punch_perhaps(&punch);
            content.punch_found(&punch, &found, *how != Allocate::Punch).map_err(|at| {
                violation!(
                    "after {call:?}, ended early, byte {at} is neither old nor zero, or not yet to be zero"
                )
            })?;
        }
        if *how != Allocate::Punch {
            content.reserve_perhaps(from, to);
        }
        Ok(())
    }

    /// On a full pool, or when it cannot be read, a directory may go without new times when it loses a subvolume: that it is lost comes first.
    fn take_left_out_times(&mut self, call: &Call, old: &Model) -> Result<(), Violation> {
        let parent = match call {
            Call::DeleteSubvolume { parent, .. } => parent,
            Call::Rename { parent, name, .. } if old.lookup(*parent, name).is_some_and(is_subvolume) => {
                parent
            }
            _ => return Ok(()),
        };
        let attr = self.fs.getattr(*parent).map_err(|error| violation!("after {call:?}: {error}"))?;
        let (Some(before), Some(inode)) = (old.get(*parent), self.live.get_mut(*parent)) else {
            return Ok(());
        };
        if before.mtime.accepts(attr.mtime) && before.ctime.accepts(attr.ctime) {
            inode.mtime.set(attr.mtime);
            inode.ctime.set(attr.ctime);
        }
        Ok(())
    }

    /// Where nothing can be set aside, zeros are written over what a file has for itself: those pages are data, and no others.
    fn take_written_zeros(&mut self, call: &Call, context: &Context, old: &Model) -> Result<(), Violation> {
        let Call::Fallocate { ino, offset, len, how: Allocate::Zero { .. } } = call else { return Ok(()) };
        let punch = Punch { from: *offset, to: offset + len, size: context.size };
        let seek = |at, to| {
            self.fs.seek(*ino, at, to).map_err(|error| violation!("after {call:?}, seeking: {error}"))
        };
        let (mut at, mut written) = (punch.pages().start * PAGE_BYTES, Vec::new());
        let end = context.size.min(punch.pages().end * PAGE_BYTES);
        while at < end {
            let Some(data) = seek(at, SeekTo::Data)?.filter(|data| *data < end) else { break };
            at = seek(data, SeekTo::Hole)?.map_or(end, |hole| hole.min(end));
            written.extend(data / PAGE_BYTES..at.div_ceil(PAGE_BYTES));
        }
        let before = old.get(*ino).and_then(Inode::content);
        if let Some(page) = written.iter().find(|page| !before.is_some_and(|old| old.may_be_data(**page))) {
            return Err(violation!("after {call:?} page {page} is data, and was none"));
        }
        let Some(content) = self.live.get_mut(*ino).and_then(Inode::content_mut) else { return Ok(()) };
        written.into_iter().for_each(|page| content.zero_written(page));
        if old.may_be_inline(*ino) {
            // It may lie in its record still.
            content.spend(*offset, *len);
        }
        Ok(())
    }

    fn judge(
        &self,
        call: &Call,
        old: &Model,
        result: &Result<(InodeId, usize), FsError>,
        expected: Result<(), Errno>,
        (written, failed): (usize, bool),
    ) -> Result<(), Violation> {
        let subject = call.subject().and_then(|ino| old.get(ino));
        let size = subject.map_or(0, Inode::size);
        let content = subject.and_then(Inode::content);
        let set_aside = match call {
            Call::Write { offset, len, .. } => content.is_some_and(|c| c.is_reserved(*offset, *len as u64)),
            _ => false,
        };
        let whole = match call {
            Call::Write { len, .. } => Some(*len),
            Call::CopyRange { from, from_offset, len, .. } => {
                let size = old.get(*from).map_or(0, Inode::size);
                Some(size.saturating_sub(*from_offset).min(*len) as usize)
            }
            _ => None,
        };
        match (result, expected) {
            (Ok(_), Ok(())) if let Call::DedupeRange { from, from_offset, to, to_offset, len } = call => {
                match old.same_bytes((*from, *from_offset), (*to, *to_offset), *len) {
                    same if same == written as u64 => Ok(()),
                    // What ended early is told, and so is what lies in front of the piece that differs.
                    same if same > written as u64
                        && (failed || same < *len && same - (written as u64) < COMPARED_BYTES) =>
                    {
                        Ok(())
                    }
                    same => Err(violation!("{call:?} shares {written} bytes, of which {same} are the same")),
                }
            }
            (Ok(_), Ok(())) => match whole {
                Some(whole)
                    if written > whole
                        || written == 0 && whole > 0
                        || written < whole && !failed && (!self.setup.tight || set_aside) =>
                {
                    Err(violation!("{call:?} accepted {written} bytes of {whole}"))
                }
                _ => Ok(()),
            },
            (Ok(_), Err(errno)) => Err(violation!("{call:?} succeeded, expected errno {errno}")),
            (Err(error), Err(errno)) if error.errno() == errno => Ok(()),
            // Which of several reasons to refuse a rename or a link is named first is left open by POSIX.
            (Err(error), Err(errno)) if RENAME_REFUSALS.contains(&errno) => match call {
                Call::Rename { .. } | Call::Link { .. } | Call::LinkOver { .. }
                    if RENAME_REFUSALS.contains(&error.errno()) =>
                {
                    Ok(())
                }
                _ => Err(violation!(
                    "{call:?} fails with {error} (errno {}), expected errno {errno}",
                    error.errno()
                )),
            },
            // So it is of a name that is not there, and would be moved across a border if it were: what is repeated after a
            // crash may lack what a snapshot has taken with it.
            (Err(error), Err(ENOENT)) if error.errno() == EXDEV && matches!(call, Call::Rename { .. }) => {
                Ok(())
            }
            // What lies in an inode's record is shared with nobody, however far the file reaches.
            (Err(error), Ok(()))
                if error.errno() == EOPNOTSUPP
                    && let Call::DedupeRange { from, to, .. } = call
                    && [from, to].into_iter().any(|ino| old.may_be_inline(*ino)) =>
            {
                Ok(())
            }
            // There is one list of extents to move, or none.
            (Err(error), Ok(()))
                if error.errno() == EOPNOTSUPP
                    && matches!(call, Call::Shift { .. })
                    && content.is_some_and(Content::is_forked) =>
            {
                Ok(())
            }
            (Err(error), _) if error.errno() == ENOSPC && set_aside => {
                Err(violation!("{call:?} fails with {error}, and space was set aside for it"))
            }
            (Err(error), _)
                if error.errno() == ENOSPC
                    && self.setup.tight
                    && (!call.must_have_space(size) || punches_nothing_of_others(call, old)) =>
            {
                let free = self.fs.space().free_bytes;
                if free > REFUSAL_FREE_BYTES_MAX + wanted_bytes(call, old) + old.wanted_by_range(call) {
                    return Err(violation!(
                        "{call:?} is refused for lack of space while {free} bytes are free"
                    ));
                }
                Ok(())
            }
            (Err(error), expected) => {
                let expected = expected.err().map_or("success".into(), |errno| format!("errno {errno}"));
                Err(violation!("{call:?} fails with {error} (errno {}), expected {expected}", error.errno()))
            }
        }
    }

    fn verify_attributes(&self, call: &Call, created: InodeId) -> Result<(), Violation> {
        let ino = if created.0 != 0 { Some(created) } else { call.subject() };
        let Some((ino, expected)) = ino.and_then(|ino| Some((ino, self.live.get(ino)?))) else {
            return Ok(());
        };
        let attr =
            self.fs.getattr(ino).map_err(|e| violation!("getattr({}) after {call:?} fails: {e}", ino.0))?;
        match attr_differences(&attr, expected).first() {
            None => Ok(()),
            Some(difference) => Err(violation!("after {call:?}, of inode {}: {difference}", ino.0)),
        }
    }

    /// Compares everything a user sees now with the model, and runs the checker over the running filesystem.
    pub fn verify(&mut self) -> Result<(), Violation> {
        compare(&self.fs, &self.live)
            .map_err(|found| violation!("the running filesystem differs:\n{found}"))?;
        let report =
            self.fs.check(true).map_err(|e| violation!("check of the running filesystem fails: {e}"))?;
        self.absorb()?;
        match report.problems.first() {
            None => Ok(()),
            Some(_) => Err(violation!("check of the running filesystem finds:\n  {}", report.describe())),
        }
    }

    /// Ends the session: what must survive, the disk, and what a user saw last.
    pub fn end(self) -> (Timeline, Disk, Model) {
        (self.timeline, self.disk, self.live)
    }
}
