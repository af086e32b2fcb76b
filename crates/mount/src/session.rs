//! A mount from its beginning to its end: attach to the kernel's tree, serve with several threads, notice the end.
//!
//! As root the mount is made with mount(2), type `fuse.varve`, so that mount(8) and umount(8) show and find it by that
//! name. Without that right it is made by `fusermount3`. Either way the kernel checks permissions
//! (`default_permissions`); root's mounts are open to all users.
//!
//! umount(8) does not wait for the process that serves a mount: whoever needs to know that everything is durable
//! waits for [`Mounted::wait`], closes the filesystem, and says so.

use std::ffi::{CString, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::caches::{Caches, Waiters};
use crate::dispatch::Adapter;
use crate::kernel::device::{self, Device};
use crate::kernel::switch::RingSwitch;
use crate::numbers::Numbers;
use crate::pins::Pins;
use crate::serve::{Session, Told};
use crate::tellings::Tellings;
use crate::trim::Trims;
use crate::{Flags, Health, Outside, Policy, Verbs, fusermount, serve};

/// The type shown by mount(8).
pub const FILESYSTEM_TYPE: &str = "fuse.varve";

const FUSE_DEVICE: &str = device::PATH;

/// Kernel read-ahead of a file being read from start to end, in KiB. FUSE starts with 128.
const READAHEAD_KIB: u32 = 1024;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Shown as the source by mount(8): the pool's path.
    pub source: OsString,
    /// What the kernel enforces.
    pub flags: Flags,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// Reads and writes go past the kernel's cache, whatever a file is opened with.
    pub direct_io: bool,
    /// Whether requests come through rings (FUSE over io_uring): then [`MountOptions::threads`] counts for nothing, and there
    /// are up to 32 threads for each processor.
    pub rings: Rings,
}

/// Whether requests come through rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rings {
    /// No.
    Never,
    /// Where the kernel has them switched on.
    #[default]
    Offered,
    /// The kernel has them switched on while the mount begins, and then as before. Where that cannot be, a warning, and
    /// the mount goes without.
    Wanted,
}

/// Why a mount did not come about, or ended badly. The texts hold their causes.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// `/dev/fuse` cannot be opened.
    #[error(
        "cannot open {FUSE_DEVICE}: {0}; load the module (modprobe fuse), or have root give you the device"
    )]
    NoFuse(io::Error),
    /// The mount point cannot be used.
    #[error("cannot use {} as a mount point: {error}", path.display())]
    Mountpoint {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel or `fusermount3` refused.
    #[error("cannot mount at {}: {error}", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Serving requests ended in an error.
    #[error("the connection to the kernel broke: {0}")]
    Session(io::Error),
}

/// A mount that is being served. Dropping it does not end it: unmount, then [`Mounted::wait`].
pub struct Mounted {
    mountpoint: PathBuf,
    server: JoinHandle<io::Result<()>>,
    health: Arc<Health>,
    policy: Arc<Policy>,
    outside: Outside,
    device: (u32, u32),
    rings: bool,
}

/// What came of mounting.
enum Started {
    Mounted(Box<Mounted>),
    /// The kernel had agreed on rings and did not take them. Nothing is mounted.
    NoRings(io::Error),
}

impl Mounted {
    /// Mounts `verbs` at the directory `mountpoint` and serves it. The mount answers when this returns.
    pub fn start<V: Verbs>(
        verbs: Arc<V>,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Mounted, MountError> {
        let cannot_use = |error| MountError::Mountpoint { path: mountpoint.to_path_buf(), error };
        let mountpoint = mountpoint.canonicalize().map_err(cannot_use)?;
        if !rustix::process::geteuid().is_root() {
            OpenOptions::new().read(true).write(true).open(FUSE_DEVICE).map_err(MountError::NoFuse)?;
        }
        let mut rings = options.rings != Rings::Never;
        let (mut switched, mut kept) = (None, None);
        match options.rings {
            Rings::Wanted => {
                switched = RingSwitch::on()
                    .inspect_err(|error| tracing::warn!("no rings for requests: {error}; going without"))
                    .ok();
                rings = switched.is_some();
            }
            // What is switched on for others, and back while this mount begins, the kernel would give it and then refuse.
            Rings::Offered => match RingSwitch::keep() {
                Ok(switch) => kept = switch,
                Err(error) => {
                    tracing::warn!("no rings for requests: {error}; going without");
                    rings = false;
                }
            },
            Rings::Never => {}
        }
        let started = Self::start_at(&verbs, &mountpoint, options, rings)?;
        drop((switched, kept));
        match started {
            Started::Mounted(mounted) => Ok(*mounted),
            Started::NoRings(error) => {
                tracing::warn!(
                    "the kernel has rings for requests and does not give them: {error}; going without"
                );
                match Self::start_at(&verbs, &mountpoint, options, false)? {
                    Started::Mounted(mounted) => Ok(*mounted),
                    Started::NoRings(error) => Err(MountError::Mount { path: mountpoint, error }),
                }
            }
        }
    }

    fn start_at<V: Verbs>(
        verbs: &Arc<V>,
        mountpoint: &Path,
        options: &MountOptions,
        rings: bool,
    ) -> Result<Started, MountError> {
        let refused = |error| MountError::Mount { path: mountpoint.to_path_buf(), error };
        let cannot_use = |error| MountError::Mountpoint { path: mountpoint.to_path_buf(), error };
        let metadata = mountpoint.metadata().map_err(cannot_use)?;
        let health = Arc::new(Health::default());
        let stopping = verbs.clone();
        health.on_panic(Box::new(move |why| stopping.stop(why)));
        let policy = Arc::new(Policy::new(options.flags));
        let fuse = match mount_directly(mountpoint, &metadata, options)? {
            Some(fuse) => fuse,
            None => fusermount::mount(mountpoint, options).map_err(refused)?,
        };
        let device = Arc::new(Device::new(fuse));
        let outside = Outside::new(&device, health.clone());
        // Also when this is the second try: of the first the kernel has nothing any more.
        let numbers = Arc::new(Numbers::default());
        verbs.leave_names_to_caller();
        verbs.reuse_numbers({
            // Of a mount that has ended nobody knows anything any more.
            let (numbers, health) = (Arc::downgrade(&numbers), Arc::downgrade(&health));
            Box::new(move |root| {
                numbers.upgrade().is_some_and(|numbers| numbers.is_known(root))
                    // What could not be stored waits for its file under its number.
                    || health.upgrade().is_some_and(|health| health.unstored.has_any_of(root))
            })
        });
        let make = {
            let (verbs, health, policy) = (verbs.clone(), health.clone(), policy.clone());
            let direct_io = options.direct_io;
            let owner = (!options.allow_other).then(|| rustix::process::geteuid().as_raw());
            let device = Arc::downgrade(&device);
            move |agreed| Adapter {
                verbs,
                health,
                pins: Pins::default(),
                numbers,
                policy,
                agreed,
                trims: Trims::default(),
                caches: Arc::new(Caches::default()),
                tellings: Tellings::default(),
                waiters: Waiters::default(),
                device,
                direct_io,
                owner,
            }
        };
        let (tell, told) = mpsc::channel();
        let (threads, at) = (options.threads, mountpoint.to_path_buf());
        let known = Arc::new(OnceLock::new());
        let (number, aborted) = (known.clone(), AtomicBool::new(false));
        let abort = Arc::new(move || {
            // Several threads may give up; what lies beneath is not to go with the second.
            if !aborted.swap(true, Relaxed) {
                end_by_force(&at, number.get().copied());
            }
        });
        let session = Session { device, threads, rings, make, tell, abort };
        let started =
            thread::Builder::new().name("fuse-session".into()).spawn(move || serve::session(session));
        let server = started.map_err(|error| {
            let _ = unmount(mountpoint, true);
            MountError::Session(error)
        })?;
        let silent = |_| Told::Failed(io::Error::other("the thread that serves the mount panicked"));
        let rings = match told.recv().unwrap_or_else(silent) {
            Told::Serving { rings } => rings,
            Told::NoRings(error) => {
                let _ = unmount(mountpoint, true);
                let _ = server.join();
                return Ok(Started::NoRings(error));
            }
            Told::Failed(error) => {
                // Nobody will ever serve it: do not leave a dead mount behind.
                let _ = unmount(mountpoint, true);
                let _ = server.join();
                return Err(refused(error));
            }
        };
        // The first request: it also shows that the mount answers.
        let number = match mountpoint.metadata() {
            Ok(metadata) => metadata.dev(),
            Err(error) => {
                // Nobody will hear of this mount: it must not stay.
                let _ = unmount(mountpoint, true);
                return Err(refused(error));
            }
        };
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let _ = known.set(device);
        tune_readahead(device);
        let mountpoint = mountpoint.to_path_buf();
        Ok(Started::Mounted(Box::new(Mounted { mountpoint, server, health, policy, outside, device, rings })))
    }

    /// Whether requests come through rings.
    pub fn rings(&self) -> bool {
        self.rings
    }

    /// Where it is mounted, without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The device number (major, minor) that stat shows for everything in it.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Whether the mount is still sound.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// What is noted and what is durable at once; to be changed when the flags of the mount are.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// For changes that do not come through the kernel.
    pub fn outside(&self) -> &Outside {
        &self.outside
    }

    /// Returns when the mount has been unmounted and no request is being served any more.
    pub fn wait(self) -> Result<(), MountError> {
        match self.server.join() {
            Ok(result) => result.map_err(MountError::Session),
            Err(_) => Err(MountError::Session(io::Error::other("the thread that serves the mount panicked"))),
        }
    }
}

/// Lets the kernel read further ahead. Only root may, and nothing depends on it.
fn tune_readahead((major, minor): (u32, u32)) {
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, READAHEAD_KIB.to_string()) {
        tracing::debug!("{setting} stays as it is: {error}");
    }
}

/// Ends the mount at `mountpoint`: at once if nothing uses it, else EBUSY. With `detach` it disappears from the tree
/// at once and ends when its last user does.
pub fn unmount(mountpoint: &Path, detach: bool) -> io::Result<()> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::unmount(mountpoint, detach),
        Err(error) => Err(error.into()),
    }
}

/// [`unmount`] of the mount with this device number, and of no other one that has come over it or in its place.
///
/// # Errors
/// As there; EINVAL if the topmost mount there is not this one.
pub fn unmount_device(mountpoint: &Path, device: (u32, u32), detach: bool) -> io::Result<()> {
    if !is_topmost(mountpoint, device) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "something else is mounted there"));
    }
    unmount(mountpoint, detach)
}

/// Whether what is mounted at `mountpoint`, topmost, has this device number. Asks nobody who might not answer.
fn is_topmost(mountpoint: &Path, (major, minor): (u32, u32)) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(rustix::fs::CWD, mountpoint, flags, StatxFlags::TYPE)
        .is_ok_and(|stat| (stat.stx_dev_major, stat.stx_dev_minor) == (major, minor))
}

/// Ends a mount whose requests nobody answers any more, for those who wait for an answer. Unknown is the number of one that has
/// only just begun.
fn end_by_force(mountpoint: &Path, device: Option<(u32, u32)>) {
    if let Some((_, minor)) = device {
        // Also for users, and whatever has been mounted over it; not everywhere is that filesystem mounted.
        let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
        if std::fs::write(&abort, "1").is_ok() {
            return;
        }
    }
    if device.is_some_and(|device| !is_topmost(mountpoint, device)) {
        tracing::error!("{} stays: something else is mounted over it", mountpoint.display());
        return;
    }
    if rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW).is_err() {
        let _ = unmount(mountpoint, true);
    }
}

/// mount(2). `None`: not allowed to, ask `fusermount3`.
fn mount_directly(
    mountpoint: &Path,
    metadata: &Metadata,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, MountError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let device: File =
        OpenOptions::new().read(true).write(true).open(FUSE_DEVICE).map_err(MountError::NoFuse)?;
    // Numbers and fixed words only: nothing a user typed gets in here.
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        metadata.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let flags = options.flags.bits();
    let data = CString::new(data).expect("numbers and fixed words hold no NUL");
    match rustix::mount::mount(&*options.source, mountpoint, FILESYSTEM_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(MountError::Mount { path: mountpoint.to_path_buf(), error: error.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::{Double, options};
    use crate::kernel::ring::REFUSED;
    use crate::switch;

    // Goal: where the kernel agrees on rings and then takes none, the mount is made again without them, and nothing is left of the first.
    // Method: a real mount whose seats are refused.
    #[test]
    fn rings_that_are_refused_are_done_without() {
        let directory = tempfile::tempdir().unwrap();
        let _switch = switch::hold();
        let start = |rings| Mounted::start(Arc::new(Double::default()), directory.path(), &options(rings));
        match start(Rings::Wanted) {
            Ok(mounted) => {
                unmount(directory.path(), true).unwrap();
                let rings = mounted.rings();
                mounted.wait().unwrap();
                if !rings {
                    return eprintln!("SKIPPED, nothing shown: rings_that_are_refused: no rings here");
                }
            }
            Err(error) => return eprintln!("SKIPPED, nothing shown: rings_that_are_refused: {error}"),
        }
        REFUSED.store(1, Relaxed);
        let started = start(Rings::Wanted);
        assert!(REFUSED.swap(0, Relaxed) > 1, "no seats were refused");
        let mounted = started.unwrap();
        let written = std::fs::write(directory.path().join("file"), b"hello");
        let read = std::fs::read(directory.path().join("file"));
        let rings = mounted.rings();
        unmount(directory.path(), true).unwrap();
        mounted.wait().unwrap();
        assert_eq!((written.is_ok(), read.unwrap(), rings), (true, b"hello".to_vec(), false));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "another one is mounted there");
    }
}
