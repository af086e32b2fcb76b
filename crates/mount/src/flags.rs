//! What the kernel enforces of a mount by itself, and how that is changed while it is mounted.
//!
//! The kernel keeps these for every filesystem alike; the process that serves a mount is not asked. Access times and what is
//! durable at once are exceptions: the kernel shows the flags and leaves most of it to the filesystem ([`crate::Policy`]).

use std::io;
use std::path::Path;

use rustix::mount::MountFlags;

/// When reading changes the access time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum AccessTimes {
    /// When the file has changed since the last access, and once a day (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// Every time (`strictatime`).
    Always,
}

/// The flags of a mount. The default is what mount(8) calls `rw,suid,dev,exec,relatime`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Flags {
    /// Every change is refused.
    pub read_only: bool,
    /// Device nodes are not honoured.
    pub no_dev: bool,
    /// Set-id bits are not honoured.
    pub no_suid: bool,
    /// Nothing can be executed.
    pub no_exec: bool,
    /// Symbolic links are read and not followed.
    pub no_symlinks: bool,
    /// When reading changes access times.
    pub access_times: AccessTimes,
    /// Reading a directory does not change its access time.
    pub no_directory_access_times: bool,
    /// Every change is durable when it is done (`sync`); what is stored through mmap is when it is msynced, as ever.
    pub durable: bool,
    /// Every change of names is durable when it is done (`dirsync`).
    pub durable_names: bool,
}

impl Flags {
    pub(crate) fn bits(self) -> MountFlags {
        let mut bits = match self.access_times {
            AccessTimes::Relative => MountFlags::RELATIME,
            AccessTimes::Never => MountFlags::NOATIME,
            AccessTimes::Always => MountFlags::STRICTATIME,
        };
        for (wanted, flag) in [
            (self.read_only, MountFlags::RDONLY),
            (self.no_dev, MountFlags::NODEV),
            (self.no_suid, MountFlags::NOSUID),
            (self.no_exec, MountFlags::NOEXEC),
            (self.no_symlinks, MountFlags::NOSYMFOLLOW),
            (self.no_directory_access_times, MountFlags::NODIRATIME),
            (self.durable, MountFlags::SYNCHRONOUS),
            (self.durable_names, MountFlags::DIRSYNC),
        ] {
            if wanted {
                bits |= flag;
            }
        }
        bits
    }
}

/// Gives the mount at `mountpoint` these flags instead of those it has. Going read-only writes out pages that were
/// dirtied through mmap first, and fails with EBUSY while a file is open for writing. With `this_place_only` other
/// places where the same filesystem is shown (bind mounts) keep theirs. The kernel passes over [`Flags::durable_names`],
/// of which it shows what the mount began with: see [`crate::Policy`].
pub fn remount(mountpoint: &Path, flags: Flags, this_place_only: bool) -> io::Result<()> {
    let mut bits = flags.bits();
    if this_place_only {
        bits |= MountFlags::BIND;
    }
    Ok(rustix::mount::mount_remount(mountpoint, bits, c"")?)
}
