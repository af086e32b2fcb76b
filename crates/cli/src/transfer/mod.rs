//! Trees between this system and a pool that is not mounted: `varve import` and `varve export`.
//!
//! Both open the pool themselves, so neither needs FUSE, and both work the same way: a depth-first walk with one level of
//! names in memory for each level of depth, a tally of what was done and what went wrong, and a rule for what is equal.

mod export;
mod finisher;
mod held;
mod host;
mod import;
mod links;
mod place;
mod tally;
mod target;
#[cfg(test)]
pub mod test_pool;

pub use export::run as export;
pub use import::run as import;
pub use place::PoolPath;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::tally::{Summary, Trouble};
use crate::ignored::Ignored;
use crate::progress::Progress;
use crate::{Outcome, show};

/// Whether somebody wants what is being done to end.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on the first signal asks for an orderly end, and a second one ends the program. SIGINT and SIGHUP that were ignored stay so.
    pub fn on_signals() -> Result<Stop> {
        let asked = Arc::new(AtomicBool::new(false));
        let ignored = Ignored::now();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if signal != SIGTERM && ignored.has(signal) {
                continue;
            }
            signal_hook::flag::register_conditional_shutdown(signal, 1, asked.clone())
                .and_then(|_| signal_hook::flag::register(signal, asked.clone()))
                .context("cannot handle signals")?;
        }
        Ok(Stop(asked))
    }

    /// Whether that has happened.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Somebody wants it.
    #[cfg(test)]
    pub fn asked_for() -> Stop {
        Stop(Arc::new(AtomicBool::new(true)))
    }

    /// Ends what is being copied if that has happened.
    fn look(&self) -> std::result::Result<(), Trouble> {
        if self.asked() { Err(Trouble::Stopped) } else { Ok(()) }
    }
}

/// Counts the entries below `dir` on a thread of its own, so that the progress line knows the end. `device`: see [`count`].
fn count_in_background(dir: &Path, device: Option<u64>, progress: &Progress, stop: &Stop) {
    let (dir, progress, stop) = (PathBuf::from(dir), progress.clone(), stop.clone());
    // Without the thread the end is not known, and nothing else is different.
    let _ = thread::Builder::new().name("counter".into()).spawn(move || {
        if let Some(entries) = count(dir, device, &stop) {
            progress.expect(entries);
        }
    });
}

/// `dir` and all that is below it; of directories that do not lie on `device`, if there is one, only they themselves. `None`: somebody wants an end.
fn count(dir: PathBuf, device: Option<u64>, stop: &Stop) -> Option<u64> {
    let (mut entries, mut dirs) = (1, vec![dir]);
    while let Some(dir) = dirs.pop() {
        if stop.asked() {
            return None;
        }
        // Whoever copies says what cannot be read.
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            entries += 1;
            // As of a path: what an entry itself says of a mount point is what lies beneath.
            let is_here = || match device {
                Some(device) => entry.path().symlink_metadata().is_ok_and(|there| there.dev() == device),
                None => true,
            };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_here() {
                dirs.push(entry.path());
            }
        }
    }
    Some(entries)
}

/// Names next to something for what takes its place: `name`, and if somebody has that, with numbers.
fn new_names(name: &str) -> impl Iterator<Item = String> {
    std::iter::once(name.to_owned()).chain((1..1000).map(move |number| format!("{name}.{number}")))
}

/// Something else has the name by now.
fn replaced() -> Trouble {
    Trouble::Entry("it was replaced while it was read; run the same command again".to_owned())
}

/// All of them are somebody's.
fn too_many(name: &str) -> Trouble {
    Trouble::Entry(format!("there are too many {name} in its directory; remove them"))
}

/// Reports and decides the exit status.
fn finish(
    verb: &'static str,
    done: &'static str,
    summary: Summary,
    result: Result<()>,
    stop: &Stop,
    json: bool,
) -> Result<Outcome> {
    if json {
        show(&format!("{}\n", serde_json::to_string_pretty(&summary)?))?;
    } else if summary.finished || summary.entries_count > 0 {
        show(&summary.describe(done))?;
    }
    result?;
    if stop.asked() {
        bail!("interrupted; run the same {verb} again and it goes on where it was");
    }
    Ok(if summary.errors_count == 0 { Outcome::Done } else { Outcome::ProblemsFound })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what is counted is what an import goes through, that of one filesystem too. Method: a tree; with its own device, and with another,
    // as if all directories in it were of filesystems that are left out.
    #[test]
    fn what_is_left_out_is_not_counted() {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("directories");
        for name in ["x", "a/x", "a/b/x", "a/b/y"] {
            std::fs::write(at(name), name).expect("a file");
        }
        let device = scratch.path().metadata().expect("it is there").dev();
        let counted = |device, stop| count(scratch.path().to_owned(), device, &stop);
        for device in [None, Some(device)] {
            assert_eq!(counted(device, Stop::default()), Some(7), "{device:?}");
        }
        assert_eq!(counted(Some(device + 1), Stop::default()), Some(3));
        assert_eq!(counted(None, Stop::asked_for()), None);
    }
}
