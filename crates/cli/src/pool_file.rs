//! What others do to the file of a mounted pool: it is deleted, cut, renamed, or another is put in its place. Nothing that reads or
//! writes notices, and of a file that was deleted everything is there until this process ends: so long it can be saved.
//!
//! A thread looks every few seconds, and at once when somebody asks (stats, unmount, the end). Who asks waits for a moment: a filesystem
//! below that does not answer, such as a dead NFS, holds up nobody else, who hears what was seen last. Each change is told in the log
//! once. No lock is held while the filesystem below is asked.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use varve_device::FileState;
use varve_fs::Filesystem;

use crate::current::Current;
use crate::names::Shown;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(5);
/// Who asks waits for a look for so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// Stands in advice before the number of the mount's process.
const COPY: &str = "cp --sparse=always /proc/";

/// The file of a mounted pool.
pub struct PoolFile {
    current: Arc<Current>,
    pool: String,
    mountpoint: String,
    /// So much of it is in use.
    pool_bytes: u64,
    known: Mutex<Known>,
    /// Somebody asks, or there is an answer.
    changed: Condvar,
}

/// What is known, and has been told.
struct Known {
    told: FileState,
    /// Looks that were asked for, and the last of them that had been when a look that has ended began.
    asked: u64,
    answered: u64,
    report: Option<Report>,
    /// There is no thread that looks.
    is_unwatched: bool,
}

/// What has become of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// `in-place`, `renamed`, `replaced`, `cut` or `deleted`.
    pub state: &'static str,
    /// What that means and what to do, while the pool is mounted. `None`: nothing.
    pub advice: Option<String>,
    /// What of the pool is lost when this process ends, or is lost already. `None`: nothing.
    pub loss: Option<String>,
}

impl PoolFile {
    pub fn new(current: Arc<Current>, pool: &Path, mountpoint: &Path) -> PoolFile {
        let pool_bytes = current.with(Filesystem::device_bytes);
        let (known, changed) = (Mutex::new(Known::default()), Condvar::new());
        PoolFile { current, pool: pool.shown(), mountpoint: mountpoint.shown(), pool_bytes, known, changed }
    }

    /// Looks from now on, on a thread of its own, until the mount has ended.
    pub fn watch(self: &Arc<Self>) {
        let file = Arc::downgrade(self);
        let watching = thread::Builder::new().name("pool-file".into()).spawn(move || {
            while let Some(file) = file.upgrade() {
                file.look_when_asked();
            }
        });
        if let Err(error) = watching {
            self.known().is_unwatched = true;
            tracing::warn!("nobody watches whether {} is deleted: {error}", self.pool);
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is now, or was when the filesystem below last answered. `None`: it is a block device, or cannot be looked at.
    pub fn look(&self) -> Option<Report> {
        let mut known = self.known();
        if known.is_unwatched {
            drop(known);
            return self.look_now();
        }
        known.asked += 1;
        let mine = known.asked;
        self.changed.notify_all();
        let wait = self.changed.wait_timeout_while(known, PATIENCE, |known| known.answered < mine);
        wait.unwrap_or_else(PoisonError::into_inner).0.report.clone()
    }

    /// Waits until somebody asks, or for a while, and looks.
    fn look_when_asked(&self) {
        let wait =
            self.changed.wait_timeout_while(self.known(), PAUSE, |known| known.answered == known.asked);
        let asked = wait.unwrap_or_else(PoisonError::into_inner).0.asked;
        let report = self.look_now();
        let mut known = self.known();
        known.answered = asked;
        // What is known stays, also when it cannot be looked at any more.
        known.report = report.or(known.report.take());
        self.changed.notify_all();
    }

    fn look_now(&self) -> Option<Report> {
        let device = self.current.file()?;
        let state = device.file_state(self.pool_bytes)?;
        let descriptor = device.descriptor();
        drop(device);
        let mut known = self.known();
        let is_new = known.told != state;
        if is_new {
            known.told = state.clone();
        }
        drop(known);
        let report = self.report(&state, descriptor);
        if is_new {
            match &report.advice {
                Some(advice) if report.loss.is_some() => tracing::error!("{advice}"),
                Some(advice) => tracing::warn!("{advice}"),
                None => tracing::info!("{} is where it was again", self.pool),
            }
        }
        Some(report)
    }

    fn report(&self, state: &FileState, descriptor: i32) -> Report {
        let (pool, mountpoint) = (&self.pool, &self.mountpoint);
        let is_now = |now: &Option<PathBuf>| match now {
            Some(now) => format!("the file of this mount is {} now", now.shown()),
            None => "the file of this mount has another name now".to_owned(),
        };
        let (state, advice, loss) = match state {
            FileState::InPlace => ("in-place", None, None),
            FileState::Renamed { now } => {
                let advice = format!(
                    "{pool} was renamed while mounted: {}; nothing is lost, mount it by that name the next time",
                    is_now(now)
                );
                ("renamed", Some(advice), None)
            }
            FileState::Replaced { now } => {
                let advice = format!(
                    "{pool} leads to something else now, which is not mounted: {}; nothing is lost, mount it by that name the next time",
                    is_now(now)
                );
                ("replaced", Some(advice), None)
            }
            FileState::Cut { size_bytes } => {
                let cut = format!("{pool} was cut to {size_bytes} bytes while mounted");
                let size = self.pool_bytes;
                let advice = format!(
                    "{cut}, of {size}: what lay behind them is lost, and reading it fails; stop writing, copy out what can be read (cp -a \
                     {mountpoint}/. NEW), then end this mount (varve unmount --force {mountpoint})"
                );
                let loss = format!(
                    "{cut}, of {size}: what lay behind them is lost; give it its length again (truncate -s {size} {pool}), then varve check \
                     {pool} says what is missing"
                );
                ("cut", Some(advice), Some(loss))
            }
            FileState::Deleted { is_name_taken } => {
                let taken = if *is_name_taken { " (what has its name now is another file)" } else { "" };
                let advice = format!(
                    "{pool} was deleted while mounted{taken}: nothing is lost as long as the mount lives, and everything with it; do \
                     not unmount it, stop writing, make it quiet (varve mount -o remount,ro none {mountpoint}, else varve sync {mountpoint}) \
                     and copy it out: {COPY}{}/fd/{descriptor} NEW (or the files alone: cp -a {mountpoint}/. NEW); then end this \
                     mount (varve unmount --force {mountpoint})",
                    own_number()
                );
                let loss = format!(
                    "{pool} was deleted while mounted, and its file is gone with the process of the mount, with all that was not \
                     copied out of it before"
                );
                ("deleted", Some(advice), Some(loss))
            }
        };
        Report { state, advice, loss }
    }
}

/// The number of this process in /proc. That may be the /proc of another PID namespace, and the number another than getpid(2) says.
fn own_number() -> String {
    std::fs::read_link("/proc/self").map_or_else(|_| std::process::id().to_string(), |number| number.shown())
}

/// Advice of a mount, for whoever sees its process by the number `process`, or not at all.
pub fn advice_as_seen(advice: &str, process: Option<i32>) -> String {
    let Some((before, after)) = advice.split_once(COPY) else { return advice.to_owned() };
    match process {
        Some(process) => {
            format!(
                "{before}{COPY}{process}{}",
                after.trim_start_matches(|digit: char| digit.is_ascii_digit())
            )
        }
        None => format!("{before}in the container of the mount's process: {COPY}{after}"),
    }
}

impl Default for Known {
    fn default() -> Known {
        Known { told: FileState::InPlace, asked: 0, answered: 0, report: None, is_unwatched: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what is to be copied is named by the number that the process has where that is read. Method: advice, seen from where it has
    // another number, and from where it has none; a sentence without one.
    #[test]
    fn advice_has_the_number_of_its_reader() {
        let advice = "do this: cp --sparse=always /proc/1/fd/9 NEW; then that";
        assert_eq!(
            advice_as_seen(advice, Some(4711)),
            "do this: cp --sparse=always /proc/4711/fd/9 NEW; then that"
        );
        assert_eq!(
            advice_as_seen(advice, None),
            "do this: in the container of the mount's process: cp --sparse=always /proc/1/fd/9 NEW; then that"
        );
        assert_eq!(advice_as_seen("cut to 7 bytes", Some(4711)), "cut to 7 bytes");
    }
}
