//! In which order dirty files are written: a replaceable policy.

use super::list::DirtyFile;

/// Orders the files of one round of write-back.
pub trait WritebackOrder: Send + Sync + 'static {
    /// Puts `files`, which come oldest first, into the order in which they are to be written.
    fn order(&self, files: &mut [DirtyFile]);
}

/// Oldest first: what has waited longest is at risk longest.
pub struct OldestFirst;

impl WritebackOrder for OldestFirst {
    fn order(&self, _files: &mut [DirtyFile]) {}
}
