//! Syncs that have begun: start many, wait for all with one flush.
//!
//! What a sync makes durable is a place in the log. Starting one writes the data out (or lets it ride with the log) and
//! remembers the place; waiting makes the log durable up to it. Whoever waits for a later place has waited for all
//! earlier ones, so that many cost what one does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Fault, Result};
use crate::shared::{Entered, Shared};

/// A sync that has begun: [`Pending::wait`] returns when it is durable. Dropping it loses nothing but the certainty.
#[must_use = "nothing is sure to be durable until it has been waited for"]
pub struct Pending {
    shared: Arc<Shared>,
    upto: varve_fs::Lsn,
    /// The file it is about; `None`: the whole filesystem.
    path: Option<Arc<[u8]>>,
}

/// The place in the log up to which it has to be durable, for what has just been written out. A pool that has stopped may have lost some
/// of that although all of its log is durable: it is refused here, for [`Pending::wait`] looks at the place alone.
pub(crate) fn place(fs: &varve_fs::Filesystem) -> std::result::Result<varve_fs::Lsn, Fault> {
    match fs.stopped() {
        Some((why, _)) => Err(varve_fs::FsError::from(varve_fs::EngineError::Stopped(why)).into()),
        None => Ok(fs.position()),
    }
}

impl Pending {
    pub(crate) fn new(shared: Arc<Shared>, upto: varve_fs::Lsn, path: Option<Arc<[u8]>>) -> Pending {
        Pending { shared, upto, path }
    }

    /// Whether it is durable already: then [`Pending::wait`] is `Ok`, also if the pool has stopped or was closed since.
    pub fn is_durable(&self) -> bool {
        self.is_durable_by(None) == Some(true)
    }

    /// Waits until everything is durable that the sync was begun for. An error says that it is not, and why: the pool has stopped
    /// ([`crate::Reason::Stopped`]), or closing it has failed before it came so far ([`crate::Reason::Closed`]).
    pub fn wait(self) -> Result<()> {
        self.wait_here()
    }

    /// As [`Pending::wait`], for no longer than `limit`: true when it is durable, false when the time has passed before. What it
    /// waits for goes on: afterwards this can be asked and waited for again.
    ///
    /// The flush is made by a thread of the pool's own, one at most, which ends when it is done. While it lasts the pool stays open, as in
    /// every call: who closes the pool, or lets go of its last handle, waits for it. It shares flushes with whoever else waits.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # let fs = varvefs::Pool::in_memory(64 << 20)?.filesystem();
    /// let file = fs.create("/journal")?;
    /// file.write_all_at(b"entry", 0)?;
    /// let pending = file.start_sync()?;
    /// while !pending.wait_timeout(Duration::from_secs(1))? {
    ///     eprintln!("the disk is slow today");
    /// }
    /// assert!(pending.is_durable());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        let until = Instant::now().checked_add(limit);
        match self.is_durable_by(until) {
            Some(false) => {}
            known => return Ok(known == Some(true)),
        }
        match self.shared.commits.wait(&self.shared.door, self.upto, until) {
            // What came of it is told at once now, unless the pool is just being closed.
            Ok(true) => match self.shared.door.enter_until(until) {
                None => Ok(false),
                Some(entered) => self.commit(entered).map(|()| true),
            },
            Ok(false) => Ok(self.is_durable_by(until) == Some(true)),
            Err(fault) => Err(self.failed(fault)),
        }
    }

    /// `None`: the pool is being closed, and the time has passed.
    fn is_durable_by(&self, until: Option<Instant>) -> Option<bool> {
        Some(match self.shared.door.enter_until(until)? {
            Ok(fs) => fs.durable_position() >= self.upto,
            Err(_) => self.shared.door.was_durable(self.upto),
        })
    }

    fn failed(&self, fault: Fault) -> Error {
        match &self.path {
            Some(path) => fault.on("sync", path),
            None => Error::pool("sync", &self.shared.door.name, fault),
        }
    }

    fn wait_here(&self) -> Result<()> {
        self.commit(self.shared.enter_again())
    }

    fn commit(&self, entered: std::result::Result<Entered<'_>, Fault>) -> Result<()> {
        let result = match entered {
            Ok(fs) => match fs.commit(self.upto) {
                // A pool that has stopped refuses to commit, whatever is durable: what this is about had its place in the log before.
                Err(_) if fs.durable_position() >= self.upto => Ok(()),
                result => result.map_err(Fault::from),
            },
            Err(_) if self.shared.door.was_durable(self.upto) => Ok(()),
            Err(fault) => Err(fault),
        };
        result.map_err(|fault| self.failed(fault))
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("upto", &self.upto.0).finish_non_exhaustive()
    }
}

/// Waits for many syncs, of one pool or several. In one pool a single flush does for all of them.
///
/// All are waited for whatever becomes of some; the error is the first that was met.
pub fn wait_all(pending: impl IntoIterator<Item = Pending>) -> Result<()> {
    let mut pending: Vec<Pending> = pending.into_iter().collect();
    // The latest first: with it the others of its pool are durable.
    pending.sort_by_key(|one| std::cmp::Reverse(one.upto));
    let mut result = Ok(());
    for one in &pending {
        let waited = one.wait_here();
        if result.is_ok() {
            result = waited;
        }
    }
    result
}
