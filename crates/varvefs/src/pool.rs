//! Pools: making, opening, looking at and closing them.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::error::{Error, Fault, Reason, Result};
use crate::filesystem::Filesystem;
use crate::memory::MemoryDisk;
use crate::metadata::timestamp;
use crate::shared::Shared;
use crate::stats::{Recovery, Stats, Trimmed};

/// The smallest pool, in bytes.
pub const POOL_BYTES_MIN: u64 = 64 << 20;
/// Largest pool that is made, in bytes. An open pool takes some 16 bytes of memory for each MiB of it, whatever is in it.
pub const POOL_BYTES_MAX: u64 = 1 << 48;

/// Dirty file data kept in memory by default, in bytes.
const DIRTY_BYTES_DEFAULT: u64 = 64 << 20;
/// Memory for tree nodes by default, in bytes.
const CACHE_BYTES_DEFAULT: u64 = 256 << 20;

/// How many copies of a block a pool keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on the same device: survives a bad block, not a bad device.
    Dup,
}

impl Profile {
    fn below(self) -> varve_fs::Profile {
        match self {
            Profile::Single => varve_fs::Profile::Single,
            Profile::Dup => varve_fs::Profile::Dup,
        }
    }
}

type ClockFunction = dyn Fn() -> SystemTime + Send + Sync;

/// The clock of the options as the filesystem's.
struct Clock(Arc<ClockFunction>);

impl varve_fs::Clock for Clock {
    fn now(&self) -> varve_fs::Timestamp {
        timestamp((self.0)())
    }
}

/// How to make or open a pool. The defaults are good; [`Pool::open`] and its like use them.
#[derive(Clone)]
pub struct PoolOptions {
    read_only: bool,
    cache_bytes: u64,
    dirty_bytes_max: u64,
    background: bool,
    data: Profile,
    metadata: Profile,
    force: bool,
    owner: (u32, u32),
    clock: Arc<ClockFunction>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            read_only: false,
            cache_bytes: CACHE_BYTES_DEFAULT,
            dirty_bytes_max: DIRTY_BYTES_DEFAULT,
            background: true,
            data: Profile::Single,
            metadata: Profile::Dup,
            force: false,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            clock: Arc::new(SystemTime::now),
        }
    }
}

impl std::fmt::Debug for PoolOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolOptions")
            .field("read_only", &self.read_only)
            .field("cache_bytes", &self.cache_bytes)
            .field("dirty_bytes_max", &self.dirty_bytes_max)
            .field("background", &self.background)
            .field("data", &self.data)
            .field("metadata", &self.metadata)
            .field("force", &self.force)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl PoolOptions {
    /// The defaults.
    pub fn new() -> PoolOptions {
        PoolOptions::default()
    }

    /// Refuse every change and write nothing to the device; a pool that was not closed is recovered in memory. Nor is a pool made
    /// then ([`Reason::ReadOnly`]).
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Memory for tree nodes, in bytes (default 256 MiB). Names that were found lately take up to an eighth of it beside.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// File data that may wait in memory before writers wait, in bytes (default 64 MiB).
    #[must_use]
    pub fn dirty_bytes_max(mut self, bytes: u64) -> Self {
        self.dirty_bytes_max = bytes;
        self
    }

    /// Run write-back, commits of an idle log and checkpoints on threads of the pool (the default). Without it nothing
    /// happens but in calls, so that a test does the same each time; then call [`Pool::maintain`] now and again. Opening such a pool
    /// first gives back the space of what was deleted before.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Copies of file data in a new pool (default [`Profile::Single`]).
    #[must_use]
    pub fn data_profile(mut self, profile: Profile) -> Self {
        self.data = profile;
        self
    }

    /// Copies of everything else in a new pool (default [`Profile::Dup`]).
    #[must_use]
    pub fn metadata_profile(mut self, profile: Profile) -> Self {
        self.metadata = profile;
        self
    }

    /// Let [`PoolOptions::format`] overwrite another pool or something foreign.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Who owns the root directory of a new pool and what is made through [`Pool::filesystem`]: user and group
    /// (default: those of the process).
    #[must_use]
    pub fn owner(mut self, user: u32, group: u32) -> Self {
        self.owner = (user, group);
        self
    }

    /// Where timestamps come from (default: [`SystemTime::now`]). The clock must not call the pool.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Makes a pool in a new sparse file of `size_bytes` (from [`POOL_BYTES_MIN`] to [`POOL_BYTES_MAX`]) and opens it.
    ///
    /// Errors: [`Reason::Exists`] if there is anything at `path`; [`Reason::InUse`] if somebody else is making it;
    /// [`Reason::Invalid`] for such a size or path; [`Reason::Refused`] with what to do.
    pub fn create(&self, path: impl AsRef<Path>, size_bytes: u64) -> Result<Pool> {
        let path = path.as_ref();
        // It appears under its name only when the pool in it is whole, and is locked from before that on.
        let device = self
            .may_write()
            .and_then(|()| require_name(path))
            .and_then(|()| require_size(size_bytes))
            .and_then(|()| {
                varve_device::FileDevice::create_whole(path, size_bytes, |device| {
                    self.format_device(device, true)
                })
            })
            .map_err(|fault| Error::pool("create", &shown(path), fault))?;
        self.open_device(shown(path), device.clone(), Some(device))
    }

    /// What is read-only makes no pool.
    fn may_write(&self) -> std::result::Result<(), Fault> {
        if self.read_only { Err(Reason::ReadOnly.into()) } else { Ok(()) }
    }

    /// Makes a pool in a file or block device that is there, and opens it. Refused if it bears another pool, or
    /// anything in its first or last MiB, unless [`PoolOptions::force`].
    pub fn format(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        self.may_write()
            .and_then(|()| open_place(path, false))
            .and_then(|device| self.format_device(device, self.force))
            .map_err(|fault| Error::pool("create", &shown(path), fault))?;
        self.open(path)
    }

    /// Opens the pool in the file or block device `path`, recovering it if it was not closed.
    ///
    /// Whoever writes has it alone. Several may have it open at once, in this process and others, if each of them has opened it
    /// [`PoolOptions::read_only`].
    ///
    /// Errors: [`Reason::NotFound`]; [`Reason::InUse`] if somebody has it open, and not both sides only read; [`Reason::NotAPool`];
    /// [`Reason::Refused`] with what to do.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        let device =
            open_place(path, self.read_only).map_err(|fault| Error::pool("open", &shown(path), fault))?;
        self.open_device(shown(path), device.clone(), Some(device))
    }

    /// [`PoolOptions::open`], or [`PoolOptions::create`] if there is nothing at `path`. Of several who do this at once one makes the
    /// pool and has it open; the others are refused ([`Reason::InUse`]) until that one has closed it, as by `open`.
    pub fn open_or_create(&self, path: impl AsRef<Path>, size_bytes: u64) -> Result<Pool> {
        let path = path.as_ref();
        if fs::symlink_metadata(path).is_ok() {
            return self.open(path);
        }
        match self.create(path, size_bytes) {
            // Another was quicker.
            Err(error) if *error.reason() == Reason::Exists => self.open(path),
            result => result,
        }
    }

    /// Makes a pool of `size_bytes` (from [`POOL_BYTES_MIN`] to [`POOL_BYTES_MAX`]) in memory, which goes with its last handle.
    pub fn in_memory(&self, size_bytes: u64) -> Result<Pool> {
        let device: Arc<dyn varve_device::Device> = Arc::new(varve_device::MemoryDevice::new(size_bytes));
        let name = device.name();
        self.may_write()
            .and_then(|()| self.format_device(device.clone(), true))
            .map_err(|fault| Error::pool("create", &name, fault))?;
        self.open_device(name, device, None)
    }

    /// Makes a pool on `disk`, whatever was there, and opens it.
    pub fn create_on(&self, disk: &MemoryDisk) -> Result<Pool> {
        self.may_write()
            .and_then(|()| disk.device(false))
            .and_then(|device| self.format_device(device, true))
            .map_err(|fault| Error::pool("create", "memory", fault))?;
        self.open_on(disk)
    }

    /// Opens the pool on `disk`. Who may have it at once is as with [`PoolOptions::open`].
    pub fn open_on(&self, disk: &MemoryDisk) -> Result<Pool> {
        let device = disk.device(self.read_only).map_err(|fault| Error::pool("open", "memory", fault))?;
        self.open_device("memory".to_owned(), device, None)
    }

    fn format_device(
        &self,
        device: Arc<dyn varve_device::Device>,
        force: bool,
    ) -> std::result::Result<(), Fault> {
        require_size(device.size_bytes())?;
        let mut pool_id = [0; 16];
        let mut hash_seed = [0; 8];
        File::open("/dev/urandom")
            .and_then(|mut random| {
                random.read_exact(&mut pool_id)?;
                random.read_exact(&mut hash_seed)
            })
            .map_err(|error| Reason::Device(format!("the system gives no random numbers: {error}")))?;
        let options = varve_fs::FormatOptions {
            data: self.data.below(),
            metadata: self.metadata.below(),
            pool_id,
            hash_seed: u64::from_le_bytes(hash_seed),
            force,
        };
        let owner = varve_fs::Caller { uid: self.owner.0, gid: self.owner.1 };
        Ok(varve_fs::Filesystem::format(&[device], &options, owner, &Clock(self.clock.clone()))?)
    }

    /// As what a pool is opened that is only to be looked at.
    pub(crate) fn to_look(&self) -> varve_fs::OpenOptions {
        varve_fs::OpenOptions {
            store: varve_fs::StoreOptions {
                read_only: true,
                cache_bytes: self.cache_bytes,
                background: false,
                ..varve_fs::StoreOptions::default()
            },
            dirty_bytes_max: self.dirty_bytes_max,
            clock: Arc::new(Clock(self.clock.clone())),
            on_data_logged: None,
        }
    }

    /// Opens the pool on `device`, which is `file` if that is given.
    fn open_device(
        &self,
        name: String,
        device: Arc<dyn varve_device::Device>,
        file: Option<Arc<varve_device::FileDevice>>,
    ) -> Result<Pool> {
        let mut options = self.to_look();
        (options.store.read_only, options.store.background) = (self.read_only, self.background);
        let before = vec![device.stats()];
        match varve_fs::Filesystem::open(vec![device], options) {
            Ok((fs, report)) => {
                Ok(Pool { shared: Shared::new(name, fs, report, file, before), owner: self.owner })
            }
            Err(error) => Err(Error::pool("open", &name, error)),
        }
    }
}

pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// An open pool: the storage under filesystems. Cheap to clone; clones are handles of the same pool.
///
/// The pool closes when the last handle of it goes, or by [`Pool::close`], which reports errors. Handles are pools, filesystems, files,
/// directory listings and their entries ([`crate::DirEntry`]), syncs that have begun ([`crate::Pending`]) and comparisons ([`crate::Diff`]). A pool that was not closed is recovered when it is opened again: what was synced
/// is there, and what was not is there up to some point in time.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    owner: (u32, u32),
}

impl Pool {
    /// Makes a pool in a new sparse file of `size_bytes` and opens it: [`PoolOptions::create`] with the defaults.
    pub fn create(path: impl AsRef<Path>, size_bytes: u64) -> Result<Pool> {
        PoolOptions::new().create(path, size_bytes)
    }

    /// Opens the pool in a file or block device: [`PoolOptions::open`] with the defaults.
    pub fn open(path: impl AsRef<Path>) -> Result<Pool> {
        PoolOptions::new().open(path)
    }

    /// Opens the pool at `path`, or makes one of `size_bytes`: [`PoolOptions::open_or_create`] with the defaults.
    pub fn open_or_create(path: impl AsRef<Path>, size_bytes: u64) -> Result<Pool> {
        PoolOptions::new().open_or_create(path, size_bytes)
    }

    /// Makes a pool in memory: [`PoolOptions::in_memory`] with the defaults.
    pub fn in_memory(size_bytes: u64) -> Result<Pool> {
        PoolOptions::new().in_memory(size_bytes)
    }

    /// The filesystem in it.
    pub fn filesystem(&self) -> Filesystem {
        Filesystem::new(self.shared.clone(), self.owner)
    }

    /// The path it was opened by, or what kind of memory it lies in.
    pub fn name(&self) -> &str {
        &self.shared.door.name
    }

    /// 16 random bytes that name the pool, wherever it lies.
    pub fn id(&self) -> Result<[u8; 16]> {
        self.run("look at", |fs| Ok(fs.pool_id()))
    }

    /// What opening it found.
    pub fn recovery(&self) -> Recovery {
        Recovery::of(&self.shared.recovery)
    }

    /// Makes everything durable, writes a checkpoint and closes the pool for all its handles, which are refused from
    /// now on ([`Reason::Closed`]). What verbs of other threads are in the middle of is waited for and made durable, too; writes,
    /// copies and removals of trees that would take long end early, and say how far they came or that the pool has been closed.
    /// Of what is deleted and has not given its space back some does so now, and the rest when the pool is open again.
    /// The device is free when this returns, unless a [`Pool::check`], [`Pool::trim`] or [`Pool::file_state`] of another thread still runs; a block device is
    /// some milliseconds later if another thread is starting a process just then, for which opening it waits.
    ///
    /// Errors mean that something not yet synced may be lost; what was synced is safe.
    pub fn close(self) -> Result<()> {
        self.shared.close()
    }

    /// Counters and space, as they are now.
    pub fn stats(&self) -> Result<Stats> {
        self.run("read the statistics of", |fs| Ok(Stats::of(&self.shared, fs)?))
    }

    /// Writes a checkpoint now, so that opening after a crash has little to replay.
    pub fn checkpoint(&self) -> Result<()> {
        self.run("write a checkpoint of", |fs| Ok(fs.checkpoint()?))
    }

    /// Tells the device that free space is free: a file gets holes, a block device is told to discard, a pool in memory gives it
    /// back. Pieces shorter than `minimum_bytes` are left alone; more than 128 MiB counts as 128 MiB. The pool can be used meanwhile; `goes_on`
    /// hears now and then how far it has come, and ends it by `false`. What was deleted a moment ago counts when the background work has
    /// been there.
    ///
    /// Errors: [`Reason::NotSupported`] if the device takes nothing back, [`Reason::Device`] if it fails; neither harms the pool.
    pub fn trim(&self, minimum_bytes: u64, mut goes_on: impl FnMut(&Trimmed) -> bool) -> Result<Trimmed> {
        self.run_long("trim", |fs| {
            let done = fs.trim(0..u64::MAX, minimum_bytes, &mut |so_far| goes_on(&Trimmed::of(so_far)))?;
            if done.is_supported { Ok(Trimmed::of(&done)) } else { Err(Reason::NotSupported.into()) }
        })
    }

    /// Does the background work that is due. Only for pools opened without [`PoolOptions::background`].
    pub fn maintain(&self) -> Result<()> {
        self.run("maintain", |fs| Ok(fs.maintain()?))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn run<T>(
        &self,
        doing: &'static str,
        verb: impl FnOnce(&varve_fs::Filesystem) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.shared
            .enter()
            .and_then(|fs| verb(&fs))
            .map_err(|fault| Error::pool(doing, &self.shared.door.name, fault))
    }

    /// The same for what may take hours, or calls its user, who may close the pool.
    pub(crate) fn run_long<T>(
        &self,
        doing: &'static str,
        verb: impl FnOnce(&varve_fs::Filesystem) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        self.shared.borrow(verb).map_err(|fault| Error::pool(doing, &self.shared.door.name, fault))
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.shared.door.name).finish_non_exhaustive()
    }
}

/// What a pool in a new file can be called.
fn require_name(path: &Path) -> std::result::Result<(), Fault> {
    require_path(path)?;
    // What is there is said to be there.
    if path.as_os_str().as_bytes().ends_with(b"/") && fs::symlink_metadata(path).is_err() {
        return Err(Reason::Invalid("the path of a file does not end with a slash").into());
    }
    Ok(())
}

fn require_path(path: &Path) -> std::result::Result<(), Fault> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Reason::Invalid("a path cannot contain a NUL byte").into());
    }
    Ok(())
}

fn require_size(size_bytes: u64) -> std::result::Result<(), Fault> {
    if size_bytes < POOL_BYTES_MIN {
        return Err(Reason::Invalid("the smallest pool is 64 MiB").into());
    }
    // As much as is used of it.
    if size_bytes > POOL_BYTES_MAX + 4095 {
        return Err(Reason::Invalid("the largest pool is 256 TiB").into());
    }
    Ok(())
}

/// Opens the device of a pool.
pub(crate) fn open_place(
    path: &Path,
    read_only: bool,
) -> std::result::Result<Arc<varve_device::FileDevice>, Fault> {
    require_path(path)?;
    let mode = if read_only { varve_device::OpenMode::ReadOnly } else { varve_device::OpenMode::ReadWrite };
    Ok(Arc::new(varve_device::FileDevice::open(path, mode)?))
}
