//! A filesystem in whose place another can be put while it is mounted: the same pool, opened for writing where it was
//! opened for reading. The kernel notices nothing: requests that are being answered end first, the others wait.
//!
//! Who exchanges asks nothing of the mount meanwhile, not even by looking at somebody else's open files: it would wait for
//! itself. A filesystem that was put in the place of another stays; asking it costs one look more than asking it directly.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use varve_device::AlignedBuf;
use varve_fs::{
    AccessRule, Allocate, Attr, Caller, DirEntry, FileFlags, FsError, InodeId, NewInode, NewNameless,
    RenameMode, SeekTo, SetAttr, StatFs, Trimmed, XattrMode,
};

use crate::Verbs;

type Result<T> = std::result::Result<T, FsError>;

/// The place of a filesystem, and who is in it.
pub struct Exchange<V> {
    first: RwLock<Arc<V>>,
    second: OnceLock<Arc<V>>,
    /// Whoever asks keeps names himself, and has said so.
    names_left: AtomicBool,
}

impl<V: Verbs> Exchange<V> {
    /// With the first filesystem in it.
    pub fn new(first: Arc<V>) -> Exchange<V> {
        Exchange { first: RwLock::new(first), second: OnceLock::new(), names_left: AtomicBool::new(false) }
    }

    /// Who is asked now.
    pub fn current(&self) -> Arc<V> {
        self.ask(|verbs| verbs.clone())
    }

    /// Puts what `by` makes of the first filesystem into its place, once, while nobody is being answered. If `by` fails (or
    /// panics), everything stays as it is. Whoever called this before has done it: then nothing happens.
    pub fn exchange<E>(
        &self,
        by: impl FnOnce(&V) -> std::result::Result<Arc<V>, E>,
    ) -> std::result::Result<(), E> {
        let mut first = self.first.write();
        if self.second.get().is_none() {
            let second = by(&first)?;
            if self.names_left.load(Ordering::Relaxed) {
                second.leave_names_to_caller();
            }
            // Nobody needs the first any more: it goes when its last user does.
            *first = second.clone();
            let _ = self.second.set(second);
        }
        Ok(())
    }

    fn ask<T>(&self, verb: impl FnOnce(&Arc<V>) -> T) -> T {
        if let Some(second) = self.second.get() {
            return verb(second);
        }
        // Who has waited here finds the second in the first's place.
        verb(&self.first.read())
    }
}

macro_rules! hand_on {
    ($($verb:ident($($name:ident: $of:ty),*) -> $result:ty;)*) => {
        $(fn $verb(&self, $($name: $of),*) -> $result {
            self.ask(|verbs| verbs.$verb($($name),*))
        })*
    };
}

impl<V: Verbs> Verbs for Exchange<V> {
    hand_on! {
        lookup(parent: InodeId, name: &[u8]) -> Result<Attr>;
        getattr(ino: InodeId) -> Result<Attr>;
        setattr(caller: Caller, ino: InodeId, set: SetAttr) -> Result<Attr>;
        make(caller: Caller, parent: InodeId, name: &[u8], new: NewInode) -> Result<Attr>;
        symlink(caller: Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr>;
        readlink(ino: InodeId) -> Result<Vec<u8>>;
        tmpfile(caller: Caller, parent: InodeId, new: NewNameless) -> Result<Attr>;
        link(ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr>;
        unlink(parent: InodeId, name: &[u8]) -> Result<()>;
        rmdir(parent: InodeId, name: &[u8]) -> Result<()>;
        rename(parent: InodeId, name: &[u8], new_parent: InodeId, new_name: &[u8], mode: RenameMode) -> Result<()>;
        admit(ino: InodeId) -> Result<()>;
        open_inode(caller: Caller, ino: InodeId, truncate: bool) -> Result<()>;
        release_inode(ino: InodeId) -> Result<()>;
        read_into(ino: InodeId, offset: u64, out: &mut [u8]) -> Result<usize>;
        read_large(ino: InodeId, offset: u64, len: usize, buf: &mut AlignedBuf) -> Result<usize>;
        note_access(ino: InodeId, rule: AccessRule) -> Result<()>;
        write(caller: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize>;
        write_owned(caller: Caller, ino: InodeId, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<usize>;
        write_whole(caller: Caller, ino: InodeId, offset: u64, buf: &mut AlignedBuf, len: usize) -> Result<()>;
        fallocate(caller: Caller, ino: InodeId, offset: u64, len: u64, how: Allocate) -> Result<()>;
        seek(ino: InodeId, offset: u64, to: SeekTo) -> Result<Option<u64>>;
        copy_range(caller: Caller, from: (InodeId, u64), to: (InodeId, u64), len: u64) -> Result<u64>;
        fsync_then(ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) -> ();
        readdir(ino: InodeId, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;
        setxattr(caller: Caller, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        getxattr(ino: InodeId, name: &[u8]) -> Result<Vec<u8>>;
        listxattr(ino: InodeId) -> Result<Vec<Vec<u8>>>;
        removexattr(ino: InodeId, name: &[u8]) -> Result<()>;
        set_flags(caller: Caller, ino: InodeId, flags: FileFlags) -> Result<()>;
        trim(range: Range<u64>, minimum_bytes: u64, goes_on: &dyn Fn() -> bool) -> Result<Trimmed>;
        wants_durable(ino: InodeId, names: bool) -> bool;
        statfs() -> Result<StatFs>;
        stop(why: &str) -> ();
    }

    fn leave_names_to_caller(&self) {
        // Under the lock that an exchange takes: it is told to the one or to the other.
        let first = self.first.read();
        self.names_left.store(true, Ordering::Relaxed);
        first.leave_names_to_caller();
    }
}
