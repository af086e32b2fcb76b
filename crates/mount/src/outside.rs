//! Changes that do not come through the kernel: made on behalf of the control socket of a mount.
//!
//! The kernel believes what it was told for as long as it likes, so it must be told to forget what such a change has made
//! wrong: a name that is there now or is gone, and the attributes and the listing of the directory. Telling it may wait
//! for a request on that directory, so no lock is held meanwhile that a verb needs, and no thread does it that serves
//! requests. After a panic nothing is changed any more, here as in requests, wherever it was.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use varve_device::AlignedBuf;
use varve_fs::{Caller, FsError, InodeId};

use crate::kernel::device::Device;
use crate::{Health, Verbs};

/// A way into a mounted filesystem that is not the kernel's.
#[derive(Clone)]
pub struct Outside {
    /// Open as long as somebody serves the mount: when the last one goes, the kernel must see that nobody answers any more.
    device: Weak<Device>,
    health: Arc<Health>,
}

impl Outside {
    pub(crate) fn new(device: &Arc<Device>, health: Arc<Health>) -> Outside {
        Outside { device: Arc::downgrade(device), health }
    }

    /// Runs a change. `None`: there has been a panic, now or before, and nothing is changed.
    pub fn change<T>(&self, verb: &'static str, body: impl FnOnce() -> T) -> Option<T> {
        if self.health.panicked() {
            return None;
        }
        self.look(verb, body)
    }

    /// Runs what changes nothing, also after a panic. `None`: there was one in it, and from now on nothing is changed.
    pub fn look<T>(&self, verb: &'static str, body: impl FnOnce() -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(body)).inspect_err(|_| self.health.note_panic(verb)).ok()
    }

    /// Whether there has been a panic, and nothing is changed any more.
    pub fn panicked(&self) -> bool {
        self.health.panicked()
    }

    /// Has what was changed through mmap and could not be stored, of any file, stored by `write`, of a file's bytes at an offset. What is refused
    /// stays.
    pub fn store_unstored(&self, mut write: impl FnMut(InodeId, u64, &[u8]) -> Result<(), FsError>) {
        for ino in self.health.unstored.files() {
            store_unstored(&self.health, &self.device, ino, |offset, bytes| {
                write(InodeId(ino), offset, bytes)
            });
        }
    }

    /// Of how many files the kernel shows what could not be stored (it was changed through mmap); one of them, and its error.
    pub fn unstored(&self) -> Option<(usize, InodeId, io::Error)> {
        self.health.unstored.any().map(|(files, ino, error)| (files, InodeId(ino), error.into()))
    }

    /// What is missing for what of it is kept: space, and anything else. Neither: nothing is kept.
    pub fn unstored_lacks(&self) -> (bool, bool) {
        self.health.unstored.lacks()
    }

    /// Waits until there is such a file, for as long as that takes.
    pub fn wait_for_unstored(&self) {
        self.health.unstored.wait_for_any();
    }

    /// The kernel forgets what it knows of this name, also that it is not there, and of the directory.
    pub fn forget_name(&self, directory: InodeId, name: &[u8]) {
        if let Some(device) = self.device.upgrade() {
            told("a name", device.forget_entry(directory.0, name));
        }
        self.forget_inode(directory);
    }

    /// The kernel forgets the attributes of an inode, and what it has of its data or its listing.
    pub fn forget_inode(&self, ino: InodeId) {
        if let Some(device) = self.device.upgrade() {
            told("an inode", device.forget_inode(ino.0));
        }
    }
}

/// Has what could not be stored of a file stored by `write`, as far as it is not refused.
fn store_unstored(
    health: &Health,
    device: &Weak<Device>,
    ino: u64,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), FsError>,
) {
    let tried = health.unstored.store(ino, |offset, bytes| {
        write(offset, bytes).map_err(|error| Errno::from_raw_os_error(error.errno()))
    });
    if tried && let Some(device) = device.upgrade() {
        // It has other times now, and takes other space.
        told("attributes", device.forget_attributes(ino));
    }
}

/// The same through the verbs; after a panic nothing is.
pub(crate) fn store_unstored_in<V: Verbs>(verbs: &V, health: &Health, device: &Weak<Device>, ino: u64) {
    if health.panicked() {
        return;
    }
    store_unstored(health, device, ino, |offset, bytes| {
        let mut buf = AlignedBuf::from_slice(bytes);
        verbs.write_whole(Caller::ROOT, InodeId(ino), offset, &mut buf, bytes.len())
    });
}

/// What the kernel did not know it has nothing to forget of; any other error is that of a mount that has ended.
fn told(what: &str, result: io::Result<bool>) {
    if let Err(error) = result {
        tracing::debug!("the kernel cannot be told to forget {what}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a bug in what only looks ends all changes, too, and looking goes on. Method: a look that panics.
    #[test]
    fn a_panic_of_a_look_ends_changes() {
        let outside = Outside { device: Weak::new(), health: Arc::default() };
        assert_eq!(outside.change("sync", || 1), Some(1));
        assert_eq!(outside.look("stats", || -> u8 { panic!("a bug, for a test") }), None);
        assert!(outside.panicked());
        assert_eq!(outside.change("sync", || 1), None);
        assert_eq!(outside.look("stats", || 1), Some(1));
    }
}
