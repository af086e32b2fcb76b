//! The kernel's switch for FUSE over io_uring. Kernels have it switched off; a mount asks for rings once, when it begins, and
//! keeps what it has got, so the switch matters only then.
//!
//! Who switches it on holds a lock on a file that only root can open, and root's other mounts share that lock while they begin: the
//! kernel asks its switch when it offers rings, when it hears that they are wanted, and at each command of a mount that it had switched
//! off when it heard. The switch itself can be read by everybody, and so locked by everybody (flock(2)).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Where the lock is; the directory is that of the control sockets of root's mounts.
const LOCK: &str = "/run/varve/rings.lock";

/// How long to wait for others who have switched it on: longer than a mount may take to begin.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The same for who goes without rings rather than wait for longer.
const KEEP_WAIT_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// FUSE over io_uring switched on. Dropping it puts the switch back as it was.
#[derive(Debug)]
pub struct RingSwitch {
    /// The switch and what it said. `None`: it was on, and only root may touch it.
    before: Option<(File, String)>,
    /// Locked against others who do this, until the switch is back.
    _lock: Option<File>,
}

/// The switch as it is. Several may keep it so.
#[derive(Debug)]
pub struct KeptSwitch {
    _lock: File,
}

impl RingSwitch {
    /// Switches it on. Mounts at the same time take turns, so that each puts back what was there before all of them.
    ///
    /// # Errors
    /// The kernel has no such switch (Linux 6.14 and later have it), only root may, or somebody else keeps it for a minute.
    pub fn on() -> io::Result<RingSwitch> {
        RingSwitch::on_at(SWITCH, Path::new(LOCK), WAIT_MAX)
    }

    /// Whether mounts that begin now may have rings; `None`: the kernel knows of none.
    #[must_use]
    pub fn state() -> Option<bool> {
        Some(is_on(&fs::read_to_string(SWITCH).ok()?))
    }

    /// Keeps others from switching it on or back until this is dropped. `None`: only root can, or there is none.
    ///
    /// # Errors
    /// Somebody has switched it on for a moment that does not end.
    pub fn keep() -> io::Result<Option<KeptSwitch>> {
        if RingSwitch::state().is_none() || !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        RingSwitch::keep_at(Path::new(LOCK), KEEP_WAIT_MAX)
    }

    fn keep_at(lock: &Path, wait_max: Duration) -> io::Result<Option<KeptSwitch>> {
        let file = match lock_file(lock) {
            Ok(file) => file,
            Err(error) => {
                tracing::debug!("no lock at {}: {error}", lock.display());
                return Ok(None);
            }
        };
        wait_for(&file, FlockOperation::NonBlockingLockShared, lock, wait_max)?;
        Ok(Some(KeptSwitch { _lock: file }))
    }

    fn on_at(path: &str, lock: &Path, wait_max: Duration) -> io::Result<RingSwitch> {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other(
                    "this kernel has no FUSE over io_uring (Linux 6.14 and later do)",
                ));
            }
            Err(_) if fs::read_to_string(path).is_ok_and(|said| is_on(&said)) => {
                return Ok(RingSwitch { before: None, _lock: None });
            }
            Err(error) => {
                return Err(io::Error::other(format!(
                    "FUSE over io_uring is switched off in this kernel, and cannot be switched on: {error}"
                )));
            }
        };
        let said = |error: io::Error| {
            io::Error::new(error.kind(), format!("no lock at {}: {error}", lock.display()))
        };
        let locked = lock_file(lock).map_err(said)?;
        wait_for(&locked, FlockOperation::NonBlockingLockExclusive, lock, wait_max)?;
        let mut before = String::new();
        file.read_to_string(&mut before)?;
        set(&mut file, "Y")?;
        Ok(RingSwitch { before: Some((file, before.trim().to_owned())), _lock: Some(locked) })
    }
}

impl Drop for RingSwitch {
    fn drop(&mut self) {
        if let Some((file, before)) = &mut self.before
            && let Err(error) = set(file, before)
        {
            tracing::warn!("{SWITCH} could not be put back to {before}: {error}");
        }
    }
}

fn wait_for(file: &File, lock: FlockOperation, path: &Path, wait_max: Duration) -> io::Result<()> {
    let begun = Instant::now();
    while let Err(error) = flock(file, lock) {
        if error != Errno::WOULDBLOCK || begun.elapsed() > wait_max {
            return Err(io::Error::new(
                io::Error::from(error).kind(),
                format!("somebody else keeps {} locked", path.display()),
            ));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// The file `path`, made if need be, and its directory, so that nobody else can open it.
fn lock_file(path: &Path) -> io::Result<File> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn is_on(said: &str) -> bool {
    said.trim() == "Y"
}

fn set(file: &mut File, to: &str) -> io::Result<()> {
    io::Seek::rewind(file)?;
    file.write_all(to.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn switch(said: &str) -> (tempfile::TempDir, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("switch");
        fs::write(&path, said).expect("a file");
        let path = path.to_str().expect("a name of ours").to_owned();
        (directory, path)
    }

    /// Goal: who keeps the switch as it is keeps others from switching it, waits for who has, but not for ever, and for no other who keeps it.
    /// Method: each beside the other; two who keep it; a lock that cannot be made.
    #[test]
    fn is_kept_as_it_is() {
        let (directory, path) = switch("N");
        let lock = directory.path().join("run/lock");
        let short = Duration::from_millis(20);
        let kept = [(); 2].map(|()| RingSwitch::keep_at(&lock, short).expect("nobody switches it").is_some());
        assert_eq!(kept, [true, true]);
        let kept = [(); 2].map(|()| RingSwitch::keep_at(&lock, short).expect("nobody switches it"));
        assert!(RingSwitch::on_at(&path, &lock, short).is_err());
        drop(kept);
        let on = RingSwitch::on_at(&path, &lock, short).expect("nobody keeps it");
        assert!(RingSwitch::keep_at(&lock, short).is_err());
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let _kept = RingSwitch::keep_at(&lock, WAIT_MAX).expect("it is put back");
                fs::read_to_string(&path).expect("a file")
            });
            thread::sleep(10 * PAUSE);
            drop(on);
            assert_eq!(waits.join().expect("no panic"), "N");
        });
        assert!(
            RingSwitch::keep_at(&directory.path().join("none/deep/lock"), short).expect("no lock").is_none()
        );
    }

    /// Goal: whatever order mounts at the same time come in, all of them find the switch on, and it ends as it was.
    /// Method: eight threads that switch a file on and off, fifty times each.
    #[test]
    fn takes_turns_and_is_put_back() {
        for before in ["N", "Y"] {
            let (directory, path) = switch(before);
            let lock = directory.path().join("run/lock");
            let holders = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let switched = RingSwitch::on_at(&path, &lock, WAIT_MAX).expect("a switch");
                            assert_eq!(holders.fetch_add(1, Relaxed), 0, "two have it");
                            assert_eq!(fs::read_to_string(&path).expect("a file"), "Y");
                            holders.fetch_sub(1, Relaxed);
                            drop(switched);
                        }
                    });
                }
            });
            assert_eq!(fs::read_to_string(&path).expect("a file"), before);
        }
    }

    /// Goal: no switch, and one that somebody else keeps, are errors that say so, and nothing waits for ever.
    /// Method: a name without a file; a lock that is held; one that cannot be made.
    #[test]
    fn says_why_not() {
        let (directory, path) = switch("N");
        let (none, lock) = (directory.path().join("none"), directory.path().join("lock"));
        let on = |path: &str, lock: &Path| RingSwitch::on_at(path, lock, Duration::from_millis(20));
        let error = on(none.to_str().expect("a name of ours"), &lock).expect_err("no switch");
        assert!(error.to_string().contains("6.14"), "{error}");
        let other = lock_file(&lock).expect("a file");
        flock(&other, FlockOperation::LockExclusive).expect("a lock");
        let error = on(&path, &lock).expect_err("locked");
        assert!(error.to_string().contains("somebody else"), "{error}");
        let error = on(&path, &none.join("deep/lock")).expect_err("no directory");
        assert!(error.to_string().contains("no lock at"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "N");
    }

    /// Goal: who may only read the switch keeps nobody from his rings. Method: it is locked by a descriptor for reading, as anybody
    /// can have one; the lock's file and directory are for their owner alone.
    #[test]
    fn readers_of_the_switch_keep_nobody_waiting() {
        use std::os::unix::fs::MetadataExt;
        let (directory, path) = switch("N");
        let lock = directory.path().join("run/lock");
        let other = File::open(&path).expect("a file");
        flock(&other, FlockOperation::LockExclusive).expect("a lock");
        let switched = RingSwitch::on_at(&path, &lock, Duration::from_millis(20)).expect("a switch");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "Y");
        drop(switched);
        assert_eq!(fs::read_to_string(&path).expect("a file"), "N");
        for (path, bits) in [(lock.as_path(), 0o600), (lock.parent().expect("a directory"), 0o700)] {
            assert_eq!(fs::metadata(path).expect("it is there").mode() & 0o777, bits, "{}", path.display());
        }
    }
}
