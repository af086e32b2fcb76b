//! What the lab makes and takes away: mounts, and the wish to stop.
//!
//! A guard cleans up when it is dropped: after an error, and while a panic unwinds, too. An interrupt (Ctrl-C) only sets a
//! flag that every load looks at, so that it ends as an error does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::mount::UnmountFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::tool;

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on interrupts ask the lab to stop instead of killing it on the spot.
pub fn catch_interrupts() -> Result<()> {
    let flag = STOP.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // A second Ctrl-C kills at once: whoever insists is obeyed. The others come twice by themselves, from timeout(1) to the
        // process and to its group.
        if signal == SIGINT {
            signal_hook::flag::register_conditional_shutdown(signal, 1, flag.clone())?;
        }
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

/// Whether the lab was asked to stop.
#[must_use]
pub fn interrupted() -> bool {
    STOP.get().is_some_and(|flag| flag.load(Relaxed))
}

/// An error if the lab was asked to stop.
pub fn check() -> Result<()> {
    if interrupted() {
        bail!("interrupted; what the lab had made is being removed");
    }
    Ok(())
}

/// How a mount ends.
#[derive(Debug)]
enum End {
    /// umount(2).
    Kernel,
    /// `varve unmount`, which waits for its process; the path of that program.
    Varve(PathBuf),
    /// umount(2), and whoever serves it waits himself.
    Served,
}

/// A mount. Dropping it unmounts, at worst by detaching it.
#[derive(Debug)]
pub struct MountGuard {
    mountpoint: PathBuf,
    end: End,
    mounted: bool,
}

impl MountGuard {
    /// Mounts a filesystem of the kernel.
    pub fn kernel(device: &Path, mountpoint: &Path, kind: &str) -> Result<MountGuard> {
        rustix::mount::mount(device, mountpoint, kind, rustix::mount::MountFlags::NOATIME, None)
            .map_err(|error| anyhow::anyhow!("cannot mount {} as {kind}: {error}", device.display()))?;
        Ok(MountGuard { mountpoint: mountpoint.to_path_buf(), end: End::Kernel, mounted: true })
    }

    /// Mounts a pool by the program `varve`.
    pub fn varve(program: &Path, pool: &Path, mountpoint: &Path, rings: bool) -> Result<MountGuard> {
        let options: &[&Path] = if rings { &[Path::new("-o"), Path::new("rings")] } else { &[] };
        tool::start(program, &[&[Path::new("mount"), pool, mountpoint], options].concat())?;
        Ok(MountGuard {
            mountpoint: mountpoint.to_path_buf(),
            end: End::Varve(program.to_path_buf()),
            mounted: true,
        })
    }

    /// Takes over a mount that this process serves.
    #[must_use]
    pub fn served(mountpoint: &Path) -> MountGuard {
        MountGuard { mountpoint: mountpoint.to_path_buf(), end: End::Served, mounted: true }
    }

    /// Where it is.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts and tells whether that went well.
    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if !self.mounted {
            return Ok(());
        }
        match &self.end {
            End::Varve(program) => {
                tool::run(program, &[Path::new("unmount"), &self.mountpoint])?;
            }
            End::Served => varve_mount::unmount(&self.mountpoint, false)?,
            End::Kernel => {
                // Something may look at a new mount for an instant.
                let mut tries = 0;
                while let Err(error) = rustix::mount::unmount(&self.mountpoint, UnmountFlags::NOFOLLOW) {
                    tries += 1;
                    if tries == 20 {
                        bail!("cannot unmount {}: {error}", self.mountpoint.display());
                    }
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            crate::say(&format!("{error:#}; detaching it"));
            if let Err(error) = varve_mount::unmount(&self.mountpoint, true) {
                crate::say(&format!("{} stays mounted: {error}", self.mountpoint.display()));
            }
        }
    }
}
