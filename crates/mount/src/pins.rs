//! Inodes that were renamed over and are kept until the kernel has forgotten them.
//!
//! A reader of `f` may have found the old inode in the kernel's cache, and ask to open it when a rename has just put
//! another file in its place. The name was there all the time, so the open must not fail. The old inode therefore
//! counts as open from before the rename until FORGET, which the kernel sends when no such reader is left.
//! (An unlinked name is different: for a moment it was not there, and "no such file" is a right answer.)
//!
//! Bounded by the inodes that the kernel has in its cache. No verb is called with the lock held.

use std::collections::HashSet;

use parking_lot::Mutex;
use varve_fs::{Caller, FileKind, InodeId};

use crate::Verbs;

/// The pinned inodes of a mount.
#[derive(Default)]
pub struct Pins {
    pinned: Mutex<HashSet<InodeId>>,
}

impl Pins {
    /// Pins the inode that a rename to this name is about to remove, if there is one.
    pub fn pin_target(&self, verbs: &impl Verbs, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        let attr = verbs.lookup(parent, name).ok()?;
        if attr.kind == FileKind::Directory || attr.links > 1 {
            return None;
        }
        verbs.open_inode(Caller::ROOT, attr.ino, false).ok()?;
        if self.pinned.lock().insert(attr.ino) {
            return Some(attr.ino);
        }
        // Pinned by a rename that failed meanwhile, or by one to another name of it: one pin is enough.
        self.release(verbs, attr.ino);
        None
    }

    /// Ends the pin on `ino`, if there is one.
    pub fn unpin(&self, verbs: &impl Verbs, ino: InodeId) {
        if self.pinned.lock().remove(&ino) {
            self.release(verbs, ino);
        }
    }

    /// Ends all pins: nobody can ask any more.
    pub fn unpin_all(&self, verbs: &impl Verbs) {
        let pinned = std::mem::take(&mut *self.pinned.lock());
        for ino in pinned {
            self.release(verbs, ino);
        }
    }

    fn release(&self, verbs: &impl Verbs, ino: InodeId) {
        if let Err(error) = verbs.release_inode(ino) {
            // Nothing is lost: the next mount deletes what was unlinked while open.
            tracing::debug!("releasing inode {} after it was renamed over: {error}", ino.0);
        }
    }
}
