//! The kernel's switch for FUSE over io_uring. Kernels have it switched off; a mount asks for rings once, when it begins, and
//! keeps what it has got, so the switch matters only then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How long to wait for others who have switched it on: longer than a mount may take to begin.
const WAIT_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// FUSE over io_uring switched on. Dropping it puts the switch back as it was.
#[derive(Debug)]
pub struct RingSwitch {
    /// The switch, locked against others who do this, and what it said. `None`: it was on, and only root may touch it.
    before: Option<(File, String)>,
}

impl RingSwitch {
    /// Switches it on. Mounts at the same time take turns, so that each puts back what was there before all of them.
    ///
    /// # Errors
    /// The kernel has no such switch (Linux 6.14 and later have it), only root may, or somebody else keeps it for a minute.
    pub fn on() -> io::Result<RingSwitch> {
        RingSwitch::on_at(SWITCH, WAIT_MAX)
    }

    /// Whether mounts that begin now may have rings; `None`: the kernel knows of none.
    #[must_use]
    pub fn state() -> Option<bool> {
        Some(is_on(&fs::read_to_string(SWITCH).ok()?))
    }

    fn on_at(path: &str, wait_max: Duration) -> io::Result<RingSwitch> {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other(
                    "this kernel has no FUSE over io_uring (Linux 6.14 and later do)",
                ));
            }
            Err(_) if fs::read_to_string(path).is_ok_and(|said| is_on(&said)) => {
                return Ok(RingSwitch { before: None });
            }
            Err(error) => {
                return Err(io::Error::other(format!(
                    "FUSE over io_uring is switched off in this kernel, and cannot be switched on: {error}"
                )));
            }
        };
        let begun = Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || begun.elapsed() > wait_max {
                return Err(io::Error::new(
                    io::Error::from(error).kind(),
                    format!("somebody else keeps {path} locked"),
                ));
            }
            thread::sleep(PAUSE);
        }
        let mut before = String::new();
        file.read_to_string(&mut before)?;
        set(&mut file, "Y")?;
        Ok(RingSwitch { before: Some((file, before.trim().to_owned())) })
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

    /// Goal: whatever order mounts at the same time come in, all of them find the switch on, and it ends as it was.
    /// Method: eight threads that switch a file on and off, fifty times each.
    #[test]
    fn takes_turns_and_is_put_back() {
        for before in ["N", "Y"] {
            let (_directory, path) = switch(before);
            let holders = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let switched = RingSwitch::on_at(&path, WAIT_MAX).expect("a switch");
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
    /// Method: a name without a file; a file that is locked.
    #[test]
    fn says_why_not() {
        let (directory, path) = switch("N");
        let none = directory.path().join("none");
        let error =
            RingSwitch::on_at(none.to_str().expect("a name of ours"), WAIT_MAX).expect_err("no switch");
        assert!(error.to_string().contains("6.14"), "{error}");
        let other = File::open(&path).expect("a file");
        flock(&other, FlockOperation::LockExclusive).expect("a lock");
        let error = RingSwitch::on_at(&path, Duration::from_millis(20)).expect_err("locked");
        assert!(error.to_string().contains("somebody else"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "N");
    }
}
