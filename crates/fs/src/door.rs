//! The door: every verb, documented here, implemented in [`crate::ops`] and its neighbours.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use varve_device::{AlignedBuf, Device};
use varve_engine::{InodeId, Problem, ProblemKind};
use varve_format::record::subvolume::HASH_KIND_SIPHASH13;

use crate::Result;
use crate::api::*;
use crate::background::Background;
use crate::changes::DiffPage;
use crate::core::Core;
use crate::open::format;
use crate::ops::shift::Shift;

/// An open filesystem. Cheap to share; every verb takes `&self` and may be called from many threads.
///
/// Verbs that change something return when the change has its place in the log ([`Filesystem::position`]); it is
/// durable after [`Filesystem::fsync`] or [`Filesystem::sync`]. Data of `write` waits in memory and takes its place later.
pub struct Filesystem {
    core: Arc<Core>,
    background: Mutex<Option<Background>>,
}

/// What tests see of a filesystem.
#[cfg(feature = "internals")]
pub trait Inside {
    fn core(&self) -> &Core;
    fn weak_core(&self) -> std::sync::Weak<Core>;
    /// Names that pages of differences have passed.
    fn diff_looks(&self) -> u64;
    /// What the threads do beside [`Filesystem::read_large`], for tests without them: reads what will be asked for next if
    /// somebody reads this file from start to end.
    fn read_ahead(&self, ino: InodeId);
}

#[cfg(feature = "internals")]
impl Inside for Filesystem {
    fn core(&self) -> &Core {
        &self.core
    }
    fn weak_core(&self) -> std::sync::Weak<Core> {
        Arc::downgrade(&self.core)
    }
    fn diff_looks(&self) -> u64 {
        self.core.diff_hints.lock().looks()
    }
    fn read_ahead(&self, ino: InodeId) {
        self.core.read_ahead(&self.core.state(ino));
    }
}

impl Filesystem {
    /// Writes a new pool with an empty root directory (mode 0755, owned by `owner`).
    pub fn format(
        devices: &[Arc<dyn Device>],
        options: &FormatOptions,
        owner: Caller,
        clock: &dyn Clock,
    ) -> Result<()> {
        format(devices, options, owner, clock, HASH_KIND_SIPHASH13)
    }
    /// Opens a pool, recovering it first if it was not closed. Deletes what was unlinked while open: without background, all of
    /// it that there is space for before this returns.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<(Filesystem, RecoveryReport)> {
        let (core, report) = Core::open(devices, options)?;
        let core = Arc::new(core);
        let background = core.background.then(|| Background::start(&core)).transpose();
        // As where anything else fails: nobody writes to the devices any more.
        let background = background.inspect_err(|_| core.store.abandon())?;
        Ok((Filesystem { core, background: Mutex::new(background) }, report))
    }
    /// Opens a pool to check it, damaged as it may be: read-only, and without the parts that cannot be used. An error
    /// means that it cannot even be told what the pool is.
    pub fn open_to_check(
        devices: Vec<Arc<dyn Device>>,
        options: OpenOptions,
    ) -> Result<(Filesystem, RecoveryReport)> {
        let (core, report) = Core::open_to_check(devices, options)?;
        let core = Arc::new(core);
        Ok((Filesystem { core, background: Mutex::new(None) }, report))
    }
    /// Makes everything durable, writes a checkpoint and closes. Verbs called later fail. For who knows that none has begun and not
    /// ended: what it says it has done may be lost. Of what is deleted a part is reaped, in a bounded number of steps, and the
    /// rest after the next opening (with `background: false` by that).
    pub fn close(&self) -> Result<()> {
        // The background's reaper may be in the middle of something: it is waited for, and takes no more rests.
        let _hurry = self.core.reap.hurry();
        drop(self.background.lock().take());
        self.core.close()
    }

    /// The inode behind `name` in `parent`. "." and ".." work.
    pub fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.core.thawing(|| self.core.lookup(parent, name))
    }
    /// As [`Filesystem::lookup`], for who is on the way to something else: what the name says of where it leads, without
    /// looking there. Whoever goes on finds out whether that has gone meanwhile.
    pub fn find(&self, parent: InodeId, name: &[u8]) -> Result<(InodeId, FileKind)> {
        self.core.thawing(|| self.core.find(parent, name))
    }
    /// Attributes; the size includes data not yet logged.
    pub fn getattr(&self, ino: InodeId) -> Result<Attr> {
        self.core.thawing(|| self.core.getattr(ino))
    }
    /// Changes attributes. Truncation clears set-ids unless the caller is uid 0. Permission bits change an access control
    /// list with them. Truncation, writing and a new owner remove `security.capability`, and a new owner clears set-ids; both stay
    /// where uid 0 cuts or gives away what it owns before the first name ([`Filesystem::tmpfile`]).
    pub fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> Result<Attr> {
        self.core.thawing(|| self.core.setattr(caller, ino, set))
    }
    /// Creates a regular file. `mode` has had the umask applied. A set-group-id parent gives its group.
    pub fn create(&self, caller: Caller, parent: InodeId, name: &[u8], mode: u32) -> Result<Attr> {
        self.make(
            caller,
            parent,
            name,
            NewInode { kind: FileKind::File, mode, umask: 0, rdev: 0, set_gid_judged: false },
        )
    }
    /// Creates a file, directory, fifo, socket or device node. What a default access control list of the directory
    /// says is inherited; without one `umask` applies. Symbolic links are refused.
    pub fn make(&self, caller: Caller, parent: InodeId, name: &[u8], new: NewInode) -> Result<Attr> {
        self.core.thawing(|| self.core.make_inode(caller, parent, name, new))
    }
    /// Creates a fifo, a socket, a device node or an empty regular file: [`Filesystem::make`] with a `mode` that has
    /// had the umask applied. Directories are refused.
    pub fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        if kind == FileKind::Directory {
            return Err(crate::FsError::Invalid);
        }
        self.make(caller, parent, name, NewInode { kind, mode, umask: 0, rdev, set_gid_judged: false })
    }
    /// Creates a directory.
    pub fn mkdir(&self, caller: Caller, parent: InodeId, name: &[u8], mode: u32) -> Result<Attr> {
        self.make(
            caller,
            parent,
            name,
            NewInode { kind: FileKind::Directory, mode, umask: 0, rdev: 0, set_gid_judged: false },
        )
    }
    /// Creates a symbolic link.
    pub fn symlink(&self, caller: Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.core.thawing(|| self.core.symlink(caller, parent, name, target))
    }
    /// The target of a symbolic link.
    pub fn readlink(&self, ino: InodeId) -> Result<Vec<u8>> {
        self.core.thawing(|| self.core.readlink(ino))
    }
    /// Creates a regular file without a name in the subvolume of `parent`, which gives it what [`Filesystem::make`] gives a
    /// file, and counts it as open: at the end of its last handle, or of the machine, it goes. If it is `linkable` it may get a
    /// name by [`Filesystem::link`] or [`Filesystem::link_over`] before.
    pub fn tmpfile(&self, caller: Caller, parent: InodeId, new: NewNameless) -> Result<Attr> {
        self.core.thawing(|| self.core.tmpfile(caller, parent, new))
    }
    /// Gives `ino` another name, or its first.
    pub fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.core.thawing(|| self.core.link(ino, parent, name))
    }
    /// Gives `ino`, which has no name and may have one ([`Filesystem::tmpfile`]), that of what is `name` in `parent` now, in one step: at every
    /// instant, and after a crash at any, it leads to the one or to the other. The data of `ino` is logged first. What was there loses
    /// that name, as by [`Filesystem::unlink`]. [`crate::FsError::NotFound`] if nothing is there, or `ino` may have no name;
    /// [`crate::FsError::IsDirectory`] if it is a directory.
    pub fn link_over(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<()> {
        self.core.thawing(|| self.core.link_over(ino, parent, name))
    }
    /// Removes a name that is not a directory's. The inode lives on while it is open.
    pub fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.core.thawing(|| self.core.unlink(parent, name))
    }
    /// Removes an empty directory, or deletes an empty subvolume that can be changed ([`Filesystem::delete_subvolume`]).
    pub fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.core.thawing(|| self.core.rmdir(parent, name))
    }
    /// Renames. Over an existing file, the source's data is logged first; in an exchange that of both. A subvolume takes the place of
    /// nothing, but two are exchanged; of a snapshot whose data is not all logged that comes first.
    pub fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.core.thawing(|| self.core.rename(parent, name, new_parent, new_name, mode))
    }

    /// Makes an empty subvolume: a directory with a namespace of its own, of which snapshots can be taken. Renames and
    /// links do not cross its border. Gives the attributes of its root, which inherits what a directory would.
    /// [`crate::FsError::SlotsUsedUp`] when 2^20 have been there since the pool was opened, also if they have been deleted, unless their numbers may be
    /// given out again ([`Filesystem::reuse_numbers`]).
    pub fn create_subvolume(&self, caller: Caller, parent: InodeId, name: &[u8], mode: u32) -> Result<Attr> {
        self.create_subvolume_masked(caller, parent, name, mode, 0)
    }
    /// [`Filesystem::create_subvolume`] with a umask, which counts where the directory has no default access list.
    pub fn create_subvolume_masked(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Attr> {
        self.core.thawing(|| self.core.create_subvolume(caller, parent, name, (mode, umask)))
    }
    /// Makes a snapshot of the subvolume whose root is `source`: another subvolume, at `name` in `parent`, that shows what
    /// the source shows now, with everything written before this call, but for the subvolumes in it. Costs one small
    /// record, whatever is in the source and whatever of it waits in memory: that is logged afterwards, file by file, by
    /// the background or by whoever first changes such a file or looks at it in the snapshot. Until all of it is, a crash
    /// removes the snapshot as a whole; [`Filesystem::sync`] makes it durable, and so do fsync of anything in it and of the
    /// directory it is in. With `sync` it is durable on return; [`crate::FsError::NotDurable`] says that it is not, and is there all the
    /// same. After any other error there is none. Gives the number of its root.
    pub fn snapshot(
        &self,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
        read_only: bool,
        sync: bool,
    ) -> Result<InodeId> {
        self.core.snapshot(source, parent, name, read_only, sync)
    }
    /// Deletes a subvolume in which there is no other. Its name is gone at once, and what is open in it gives
    /// [`crate::FsError::Stale`]; space that only it held comes back in the background. Works on a full pool.
    pub fn delete_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.core.delete_subvolume(parent, name, None)
    }
    /// The same with the subvolume whose root directory is `root`, or with none: [`crate::FsError::NotFound`] if it does not have
    /// the name any more, though another one may.
    pub fn delete_subvolume_at(&self, parent: InodeId, name: &[u8], root: InodeId) -> Result<()> {
        self.core.delete_subvolume(parent, name, Some(root))
    }
    /// All subvolumes, oldest first. Reads the directories on the way to each. Subvolumes can be made, moved and deleted
    /// meanwhile: each is there once, as it was when its page was looked at, if it was there throughout.
    pub fn list_subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let mut page = self.list_subvolumes_after(after, usize::MAX)?;
            all.append(&mut page.subvolumes);
            next = page.next;
        }
        Ok(all)
    }
    /// A page of that list: at most `count_max` subvolumes with larger numbers than `after`, fewer if there are very many
    /// or their paths are long.
    pub fn list_subvolumes_after(&self, after: u64, count_max: usize) -> Result<SubvolumePage> {
        self.core.thawing(|| self.core.list_subvolumes(after, count_max))
    }

    /// What leads from the subvolume whose root is `old` to that of `new`: a page of steps, about `changes_max` of them, or
    /// fewer, even none: it looks at so many places and no more. The first is asked for with an empty `cursor`, the others with
    /// [`DiffPage::next`] as long as there is one. Costs what was changed since the two were one, and for the paths one look at each
    /// name in the directories in which it lies and those above, not what else is in them. Where they have more than 262,144 names, or
    /// more than four diffs are under way, some are looked at again: each page that says which names of files have gone, or come beside
    /// others, may look at all of them then. What was written with the same bytes counts as changed. What waits in memory is written back
    /// first. Only if neither is changed meanwhile (read-only snapshots are not) do the pages belong together.
    pub fn diff(&self, old: InodeId, new: InodeId, cursor: &[u8], changes_max: usize) -> Result<DiffPage> {
        let mut hints = self.core.diff_hints.lock().take(old, new, cursor);
        let page = self.core.thawing(|| self.core.diff(old, new, cursor, changes_max, &mut hints))?;
        if page.next.is_some() {
            self.core.diff_hints.lock().put(hints);
        }
        Ok(page)
    }

    /// Notes in memory that `ino` was read, if `rule` wants it noted: stat shows it at once. It is logged at
    /// [`Filesystem::sync`], at [`Filesystem::close`] or when many wait, and lost in a crash before. Reading does not
    /// call this; whoever passes reads on decides.
    pub fn note_access(&self, ino: InodeId, rule: AccessRule) -> Result<()> {
        self.core.thawing(|| self.core.note_access(&self.core.state(ino), rule))
    }
    /// Whether an inode may have flags ([`Attr::flags`]).
    pub fn flagged(&self) -> bool {
        self.core.flagged()
    }
    /// Refuses an inode of which nothing can be changed, whoever asks: in a read-only snapshot, or in a subvolume that is gone.
    pub fn admit(&self, ino: InodeId) -> Result<()> {
        self.core.admit(ino)
    }
    /// Counts an open handle: while there is one, an unlinked inode lives on. `truncate` empties it first.
    pub fn open_inode(&self, caller: Caller, ino: InodeId, truncate: bool) -> Result<()> {
        self.core.thawing(|| self.core.open_inode(caller, ino, truncate))
    }
    /// Counts the handles that are open in `from`, the same pool opened for reading, as open here; nobody opens or ends one
    /// there meanwhile, nor has here. An error, for one that is open and not here, means that it is not the same state.
    pub fn take_over_handles(&self, from: &Filesystem) -> Result<()> {
        self.core.take_over_handles(&from.core)
    }
    /// Ends a handle. A file that has been cut and written anew is logged then, or soon afterwards.
    pub fn release_inode(&self, ino: InodeId) -> Result<()> {
        if self.core.thawing(|| self.core.release_inode(ino))?
            && let Err(error) = self.core.thawing(|| self.core.log_anew(ino))
        {
            tracing::debug!(%error, "a file that was written anew waits");
        }
        Ok(())
    }
    /// Bytes at `offset`, fewer at the end of the file. Holes read as zeros. The access time stays as it is: see
    /// [`Filesystem::note_access`].
    pub fn read(&self, ino: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.core.read_latency.time(|| self.core.thawing(|| self.core.read(ino, offset, len)))
    }
    /// [`Filesystem::read`] into a buffer of the caller's; gives how many bytes. Beyond them, and after an error, it may
    /// hold anything. Into a buffer that begins and is read at a multiple of 4096 blocks come without a copy.
    pub fn read_into(&self, ino: InodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.core.read_latency.time(|| self.core.thawing(|| self.core.read_into(ino, offset, out)))
    }
    /// [`Filesystem::read_into`] for the first `len` bytes of `buf`, in whose place may be another buffer afterwards, no
    /// shorter than `len`: one in which they were read ahead. Who reads a file from start to end in this way is read ahead of;
    /// what cannot be read shows when it is asked for.
    pub fn read_large(&self, ino: InodeId, offset: u64, len: usize, buf: &mut AlignedBuf) -> Result<usize> {
        let read = || self.core.thawing(|| self.core.read_large(ino, offset, len, buf));
        self.core.read_latency.time(read)
    }
    /// Writes into memory, with space set aside. May write less than asked when space runs out in the middle.
    /// Clears set-ids unless the caller is uid 0.
    pub fn write(&self, caller: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize> {
        self.core.write_latency.time(|| self.core.thawing(|| self.core.write(caller, ino, offset, data)))
    }
    /// [`Filesystem::write`] of the first `len` bytes of `buf`, in whose place may be another buffer of its length afterwards:
    /// one of 1 MiB (or 128, 256 or 512 KiB) of which at least three quarters are written, at a multiple of 4096 in the file,
    /// becomes dirty data as it is, and goes to the device from where it lies.
    pub fn write_owned(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<usize> {
        self.core.write_latency.time(|| self.core.write_owned(caller, ino, offset, buf, len))
    }
    /// [`Filesystem::write_owned`] of all of it, for who can make nothing of a part. After an error any part may be written; where space
    /// has run out, that is every page that has space, or has some set aside for it. `buf` still begins with the bytes then.
    pub fn write_whole(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<()> {
        self.core.write_latency.time(|| self.core.write_whole(caller, ino, offset, buf, len))
    }
    /// Reserves, punches or zeroes `len` bytes at `offset` ([`Allocate`]). An error may leave a part done, from the front.
    pub fn fallocate(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        len: u64,
        how: Allocate,
    ) -> Result<()> {
        self.core.thawing(|| self.core.fallocate(caller, ino, offset, len, how))
    }
    /// Takes `len` bytes at `offset` out of a file: what lies behind moves there, and the size shrinks. Both are multiples
    /// of the block size (4096), and the range ends before the end of the file; else the arguments are invalid, as for
    /// fallocate(2). One transaction; a file with more than some 26,000 extents behind the range is refused as too
    /// fragmented (contiguous data has one extent a MiB), one whose data snapshots or clones show with 19,000 in all. There
    /// what was only reserved becomes a hole.
    pub fn collapse_range(&self, caller: Caller, ino: InodeId, offset: u64, len: u64) -> Result<()> {
        self.core.thawing(|| self.core.shift(caller, ino, offset, Shift::Collapse(len)))
    }
    /// Puts a hole of `len` bytes into a file at `offset`: what lies there and behind moves, and the size grows. Bounds as
    /// for [`Filesystem::collapse_range`]; `offset` lies before the end of the file.
    pub fn insert_range(&self, caller: Caller, ino: InodeId, offset: u64, len: u64) -> Result<()> {
        self.core.thawing(|| self.core.shift(caller, ino, offset, Shift::Insert(len)))
    }
    /// Where a file is: a page of its pieces, in order and without gaps, from `from` (rounded down to a block) on. The page
    /// ends behind about `pieces_max` pieces, bounded in any case; ask again from [`FileMap::next`]. What waits in memory
    /// is written back first, not flushed. [`FilePiece::shared`] is exact, but that what was deleted counts until it is reaped.
    pub fn map(&self, ino: InodeId, from: u64, pieces_max: usize) -> Result<FileMap> {
        self.core.thawing(|| self.core.map(ino, from, pieces_max))
    }
    /// The first byte of data or of a hole at or after `offset`, what waits in memory counted as data and reservations
    /// as holes. `None` (to POSIX: ENXIO) at or beyond the end of the file, or if no data follows.
    pub fn seek(&self, ino: InodeId, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        self.core.thawing(|| self.core.seek(ino, offset, to))
    }
    /// Copies `len` bytes of one file (inode, offset) to another, or elsewhere in the same; returns how many. May copy
    /// less than asked; 0 means that the source has no more. Ranges of one file must not overlap. Whole blocks that lie
    /// alike in both (offsets equal modulo 4096, 16 KiB at least) are shared as by [`Filesystem::clone_range`].
    pub fn copy_range(
        &self,
        caller: Caller,
        from: (InodeId, u64),
        to: (InodeId, u64),
        len: u64,
    ) -> Result<u64> {
        self.core.thawing(|| self.core.copy_range(caller, from, to, len))
    }
    /// Makes `len` bytes of one file (inode, offset) a part of another, or of the same elsewhere: both share the blocks
    /// until either is written to. As FICLONERANGE: offsets and length are multiples of 4096, but the end of the source may
    /// become the end of the target; ranges of one file do not overlap; 0 bytes mean all to the end of the source. Holes and
    /// what is only reserved become holes. Costs in proportion to the extents of the range, in transactions of some dozens:
    /// after an error or a crash a part of it, from the front, may be done. Contents that lie in an inode's record are copied.
    pub fn clone_range(
        &self,
        caller: Caller,
        from: (InodeId, u64),
        to: (InodeId, u64),
        len: u64,
    ) -> Result<()> {
        self.core.thawing(|| self.core.clone_range(caller, from, to, len))
    }
    /// Lets two ranges that hold the same bytes share them. They are compared first, and shared only if nothing has
    /// changed since; times and sizes stay as they are, and what `to` has only reserved becomes a hole as in
    /// [`Filesystem::clone_range`]. Alignment as for [`Filesystem::clone_range`]; the range lies inside both files, and what
    /// is done ends where one of them is cut meanwhile.
    /// [`crate::FsError::NotSupported`] for contents that lie in an inode's record.
    pub fn dedupe_range(&self, from: (InodeId, u64), to: (InodeId, u64), len: u64) -> Result<Deduped> {
        self.dedupe_range_while(from, to, len, &|| true)
    }
    /// The same, for as long as `go_on` says so: it is asked after every MiB, and what is done by then is the answer.
    pub fn dedupe_range_while(
        &self,
        from: (InodeId, u64),
        to: (InodeId, u64),
        len: u64,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Deduped> {
        self.core.thawing(|| self.core.dedupe_range(from, to, len, go_on))
    }
    /// Makes a clone of a file, at `name` in `parent`: a file that shares all its data until either is written to. Costs one
    /// record, however large the source is, and what of it is dirty. [`Filesystem::copy_range`] of all of a file into an
    /// empty one does the same.
    pub fn clone_file(&self, caller: Caller, source: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.core.clone_file(caller, source, parent, name)
    }
    /// Makes this file durable: its data, its attributes and every change of names before.
    pub fn fsync(&self, ino: InodeId) -> Result<()> {
        self.core.thawing(|| self.core.fsync(ino))
    }
    /// [`Filesystem::fsync`] that calls `done` instead of waiting for the flush.
    pub fn fsync_then(&self, ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.core.fsync_then(ino, done)
    }
    /// [`Filesystem::fsync`] without the flush: logs this file's dirty data (writes it first or lets it ride), and the
    /// snapshots without which it would not outlive a crash. [`Filesystem::commit`] of [`Filesystem::position`] is the rest.
    pub fn flush_file(&self, ino: InodeId) -> Result<()> {
        self.core.thawing(|| self.core.flush_file(ino))?;
        self.core.complete_with(ino)
    }
    /// Ends all writing, also in the background, because of `why`: a bug was met, and what is in memory cannot be trusted any more.
    /// What has been made durable is there when the pool is opened again. Reading goes on; all else says EIO.
    pub fn stop(&self, why: &str) {
        self.core.store.stop(why);
    }
    /// Makes everything durable. A file that cannot be written keeps none of the others from it; the error is its.
    pub fn sync(&self) -> Result<()> {
        self.core.sync()
    }
    /// Logs all dirty data, without waiting for a flush: what was written before has its place in the log
    /// ([`Filesystem::position`]) when this returns, and so has every snapshot that was taken before.
    pub fn flush_all(&self) -> Result<()> {
        self.core.flush_all()
    }
    /// Makes the log durable up to `upto`. Costs nothing if it is already; shares a flush with whoever waits too.
    pub fn commit(&self, upto: Lsn) -> Result<()> {
        self.core.commit(upto)
    }

    /// Entries of a directory after `cookie` (0: from the start), until `each` returns false.
    pub fn readdir(&self, ino: InodeId, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.core.thawing(|| self.core.readdir(ino, cookie, each))
    }

    /// Sets an extended attribute: `user.`, `trusted.`, `security.` (who may, is the kernel's business) and POSIX
    /// access control lists, as [`Filesystem::setxattr_as`] root. Values up to 64 KiB.
    pub fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_as(Caller::ROOT, ino, name, value, mode)
    }
    /// [`Filesystem::setxattr`] for a caller. An access list sets the permission bits too; a caller other than root
    /// whose group is not the file's loses the set-group-id bit by that.
    pub fn setxattr_as(
        &self,
        caller: Caller,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.core.thawing(|| self.core.setxattr(caller, ino, name, value, mode))
    }
    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.core.thawing(|| self.core.getxattr(ino, name))
    }
    /// Names of all extended attributes.
    pub fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>> {
        self.core.thawing(|| self.core.listxattr(ino))
    }
    /// Removes an extended attribute.
    pub fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        self.core.thawing(|| self.core.removexattr(ino, name))
    }

    /// Sets the flags that chattr(1) knows, instead of those there are. Only the superuser sets and clears
    /// [`FileFlags::IMMUTABLE`] and [`FileFlags::APPEND_ONLY`], and others what is their own. They are heeded here
    /// ([`crate::FsError::NotPermitted`]), but for those about durability: [`Filesystem::wants_durable`].
    pub fn set_flags(&self, caller: Caller, ino: InodeId, flags: FileFlags) -> Result<()> {
        self.core.thawing(|| self.core.set_flags(caller, ino, flags))
    }
    /// Whether the flags of `ino` ask for its changes, or those of `names` in it, to be durable before they are answered.
    pub fn wants_durable(&self, ino: InodeId, names: bool) -> bool {
        self.core.wants_durable(ino, names)
    }

    /// The name the pool got when it was created.
    pub fn pool_id(&self) -> [u8; 16] {
        self.core.store.pool_id()
    }
    /// Of a pool that was opened for reading: whether nobody has written to it since. Reads the superblocks and the log.
    pub fn is_unchanged(&self) -> Result<bool> {
        Ok(self.core.store.is_unchanged()?)
    }
    /// For tests, of other crates too: as if there could be only so many subvolumes, and the numbers of so many deleted ones rested before the first
    /// of them are given out again.
    #[doc(hidden)]
    pub fn limit_subvolumes(&self, all: u32, resting: usize) {
        self.core.subvolumes.limit(all, resting);
    }
    /// From now on the inode numbers of a deleted subvolume are given out again: when there are no others, its space has come back and that of
    /// 65,536 deleted after it, nothing in it is open, and `is_known` says of its root's number that nobody outside has any number of it, and
    /// nothing that goes by one is under way. It is asked with locks held: it may not come back here. Of several calls each adds one that is asked.
    pub fn reuse_numbers(&self, is_known: impl Fn(InodeId) -> bool + Send + Sync + 'static) {
        self.core.known_outside.write().push(Box::new(is_known));
    }
    /// Says that who calls keeps names himself, as the kernel does: from now on those that were found lately are not kept here. Without this
    /// they take up to an eighth of [`varve_engine::StoreOptions::cache_bytes`] beside it. Before the first name is looked for.
    pub fn leave_names_to_caller(&self) {
        self.core.names_elsewhere.store(true, Ordering::Release);
    }
    /// Space and inodes.
    pub fn statfs(&self) -> Result<StatFs> {
        self.core.statfs()
    }
    /// See [`varve_engine::Store::device_bytes`].
    pub fn device_bytes(&self) -> u64 {
        self.core.store.device_bytes()
    }
    /// Place in the log of the last change.
    pub fn position(&self) -> Lsn {
        self.core.store.position()
    }
    /// Place up to which the log is durable.
    pub fn durable_position(&self) -> Lsn {
        self.core.store.durable_position()
    }
    /// Writes a checkpoint now.
    pub fn checkpoint(&self) -> Result<()> {
        Ok(self.core.store.checkpoint()?)
    }
    /// Tells the devices that free space is free: what it takes and gives is said at [`varve_engine::Store::trim`]. What was
    /// deleted is not free before the reaper has been there ([`Filesystem::reap_backlog`]).
    pub fn trim(
        &self,
        range: std::ops::Range<u64>,
        minimum_bytes: u64,
        goes_on: &mut dyn FnMut(&Trimmed) -> bool,
    ) -> Result<Trimmed> {
        Ok(self.core.store.trim(range, minimum_bytes, goes_on)?)
    }
    /// Does background work that is due (write-back, reaping, commit, checkpoint) until there is none. For callers
    /// that opened with `background: false`; with it, this happens by itself.
    pub fn maintain(&self) -> Result<()> {
        self.core.maintain()
    }
    /// Some of the same, for callers who look around in between. False: there may be more.
    pub fn maintain_some(&self) -> Result<bool> {
        let (all, result) = self.core.maintain_some();
        result.map(|()| all)
    }
    /// Why nothing is written any more, and how long ago that began, if so: after a failed write (of the log, of data or of a
    /// checkpoint), a failed flush, a panic, or [`Filesystem::stop`]. What is in memory can be read as before; opening the pool again
    /// recovers it.
    pub fn stopped(&self) -> Option<(String, std::time::Duration)> {
        self.core.store.stopped_for()
    }
    /// See [`varve_engine::Store::stopped_for_room`].
    pub fn stopped_for_room(&self) -> bool {
        self.core.store.stopped_for_room()
    }
    /// Whether the pool was opened for reading.
    pub fn is_read_only(&self) -> bool {
        self.core.read_only
    }
    /// Engine counters.
    pub fn store_stats(&self) -> StoreStats {
        self.core.store.stats()
    }
    /// How long reads and writes through this door took: of writes, until the data was in memory with its space set aside.
    pub fn read_and_write_latency(
        &self,
    ) -> (varve_device::HistogramSnapshot, varve_device::HistogramSnapshot) {
        (self.core.read_latency.snapshot(), self.core.write_latency.snapshot())
    }
    /// Where the space is.
    pub fn space(&self) -> SpaceStats {
        self.core.store.space()
    }
    /// What is still to be deleted in the background: files and versions of files.
    pub fn reap_backlog(&self) -> u64 {
        self.core.reap.backlog()
    }
    /// Counters of the devices, in order.
    pub fn device_stats(&self) -> Vec<(String, varve_device::StatsSnapshot)> {
        self.core.store.devices().iter().map(|device| (device.name(), device.stats())).collect()
    }
    /// Compares everything that is derived with a full scan of everything that exists: engine (trees, bitmaps,
    /// checksums) and filesystem (names against inodes, link counts, extents, orphans, versions). Changes nothing.
    ///
    /// What is logged meanwhile, by the background too, may look wrong. Where something does and something was logged, all but the data,
    /// which nobody can change under a check, is looked at again a moment later, for some seconds.
    pub fn check(&self, verify_data: bool) -> Result<CheckReport> {
        const LOOKS: usize = 20;
        const MOMENT: std::time::Duration = std::time::Duration::from_millis(250);
        let of_data = |problem: &Problem| {
            matches!(problem.kind, ProblemKind::DataUnreadable | ProblemKind::DataCopyDamaged)
        };
        let mut before = self.position();
        let mut report = self.core.check(verify_data)?;
        for _ in 0..LOOKS {
            let passes = report.omitted > report.data_omitted || !report.problems.iter().all(of_data);
            if !passes || self.position() == before || self.core.closed.load(Ordering::Acquire) {
                break;
            }
            // Nobody says when the background has come to rest.
            Condvar::new().wait_for(&mut Mutex::new(()).lock(), MOMENT);
            before = self.position();
            // What has been found is told where a later look fails.
            let Ok(mut again) = self.core.check(false) else { break };
            again.problems.extend(report.problems.into_iter().filter(of_data));
            let CheckReport { data_blocks, data_omitted, .. } = report;
            let omitted = again.omitted + data_omitted;
            report = CheckReport { data_blocks, data_omitted, omitted, ..again };
        }
        Ok(report)
    }
}
