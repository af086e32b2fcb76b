//! Crashes of the real daemon: everything it does to its device is recorded while real programs work in the mount, and
//! crash images are cut from the recording.
//!
//! Beside the recording there is a *journal of acknowledgements*: each worker writes down, after an fsync or a commit
//! has returned, how long the recording was then and what must from there on survive. The recording logs a flush's
//! end before the caller hears of it, so an image cut at or after that length must hold what was acknowledged.

pub mod judge;
pub mod record;

use serde::{Deserialize, Serialize};

/// How many files are replaced in turn: file number n gets the versions of remainder n.
const REPLACED: u64 = 5;

/// One line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Length of the recording in bytes when this was known.
    pub at: u64,
    /// What was known.
    #[serde(flatten)]
    pub fact: Fact,
}

/// Something that survives a crash, or no longer has to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// A file that does not change: its bytes.
    File {
        /// Path from the mount's root.
        path: String,
        /// Length in bytes.
        len: u64,
        /// crc32c of the bytes.
        crc: u32,
    },
    /// A file is about to be deleted.
    Deleting {
        /// Path from the mount's root.
        path: String,
    },
    /// A file that only grows, by the stream of a seed: this much of it is there.
    Prefix {
        /// Path from the mount's root.
        path: String,
        /// Seed of the stream.
        seed: u64,
        /// Bytes that survive.
        len: u64,
    },
    /// A file that is replaced by rename again and again: this version, or a later one, whole.
    Version {
        /// Path from the mount's root.
        path: String,
        /// Its number; [`version_bytes`] are its bytes.
        version: u64,
    },
    /// A commit of the git repository has returned.
    Commit {
        /// Repository from the mount's root.
        path: String,
        /// Its name.
        head: String,
    },
    /// So many rows of the SQLite database have been committed.
    Rows {
        /// Database from the mount's root.
        path: String,
        /// Rows.
        rows: u64,
    },
}

/// The bytes of a version of a replaced file: its number, then bytes that depend on it. Lengths vary, so that both
/// inline and extent files are replaced.
pub fn version_bytes(version: u64) -> Vec<u8> {
    let len = 8 + (version * 2_654_435_761 % 30_000) as usize;
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.extend(crate::call::fill(version, len - 8));
    bytes
}
