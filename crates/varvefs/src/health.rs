//! Whether an open pool still writes, and what others have done to its file.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Result, in_words_of_the_library};
use crate::pool::Pool;

/// Why a pool writes nothing any more, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// What has happened, such as a flush that failed, in words.
    pub reason: String,
    /// How long ago.
    pub ago: Duration,
    /// The filesystem that holds the pool's file was full, or its owner may have no more of it: nothing is wrong with the device. Close the
    /// pool, make room there, and open it again; until there is some it can be opened to be read.
    pub host_full: bool,
}

/// What others have done to the file of an open pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileState {
    /// Nothing: it is where it was opened, and as long as the pool.
    InPlace,
    /// Nothing has its name any more, and it has another. Nothing is lost; the pool is opened by that one the next time.
    Renamed {
        /// Where it is, if the kernel says so.
        now: Option<PathBuf>,
    },
    /// Something else has its name, and it has another. Nothing is lost, as above.
    Replaced {
        /// Where it is, if the kernel says so.
        now: Option<PathBuf>,
    },
    /// It is shorter than the pool, or was when somebody looked: what lay behind its end is lost, also when it is as long again. Reading
    /// that fails. What else is there can be copied out; when the pool has been closed and the file has its length again,
    /// [`crate::PoolOptions::check`] says what is missing.
    Cut {
        /// The least length that was seen.
        size_bytes: u64,
    },
    /// It has no name any more: when this process lets go of it all of it is gone, whatever was synced. Copy out what is needed before
    /// the pool is closed.
    Deleted {
        /// Something else has its name.
        is_name_taken: bool,
    },
}

impl FileState {
    fn of(state: varve_device::FileState) -> FileState {
        match state {
            varve_device::FileState::InPlace => FileState::InPlace,
            varve_device::FileState::Renamed { now } => FileState::Renamed { now },
            varve_device::FileState::Replaced { now } => FileState::Replaced { now },
            varve_device::FileState::Cut { size_bytes } => FileState::Cut { size_bytes },
            varve_device::FileState::Deleted { is_name_taken } => FileState::Deleted { is_name_taken },
        }
    }
}

impl Pool {
    /// Why the pool writes nothing any more, and since when; `None`: it has not stopped. It does after a write or a flush
    /// that failed, and a panic, in a call or in the background. Until it is closed and opened again whatever changes something or waits for a sync fails with
    /// [`crate::Reason::Stopped`], and all can be read as it is in memory, which may be more than is left after that.
    ///
    /// ```
    /// let pool = varvefs::Pool::in_memory(64 << 20)?;
    /// assert!(pool.stopped()?.is_none());
    /// # Ok::<(), varvefs::Error>(())
    /// ```
    pub fn stopped(&self) -> Result<Option<Stopped>> {
        self.run("look at", |fs| {
            let stopped = fs.stopped();
            let host_full = fs.stopped_for_room();
            Ok(stopped.map(|(why, ago)| Stopped { reason: in_words_of_the_library(&why), ago, host_full }))
        })
    }

    /// What others have done to the pool's file: nobody keeps them from deleting or cutting one that is open, and neither fails or
    /// stops anything by itself. `None`: it lies in a block device or in memory, or the file cannot be looked at. Some system calls,
    /// which read and write nothing of it; they may wait for the filesystem that holds it. Nobody looks in between: a program that runs
    /// for long asks every few seconds, or before it closes.
    ///
    /// ```
    /// use varvefs::{FileState, Pool};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("store.varve");
    /// let pool = Pool::create(&path, 64 << 20)?;
    /// assert_eq!(pool.file_state()?, Some(FileState::InPlace));
    /// std::fs::remove_file(&path)?;
    /// assert_eq!(pool.file_state()?, Some(FileState::Deleted { is_name_taken: false }));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn file_state(&self) -> Result<Option<FileState>> {
        let pool_bytes = self.run("look at", |fs| Ok(fs.device_bytes()))?;
        let looked = self.shared().with_file(|file| file.file_state(pool_bytes));
        let seen = looked.map_err(|fault| crate::Error::pool("look at", &self.shared().door.name, fault))?;
        let Some(seen) = seen.flatten() else { return Ok(None) };
        Ok(Some(FileState::of(seen)))
    }
}
