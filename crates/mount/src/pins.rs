//! Inodes that are no more and that the kernel still asks for.
//!
//! A reader of `f` may have found the old inode in the kernel's cache, and ask to open it when a rename has just put
//! another file in its place. The name was there all the time, so the open must not fail. The old inode therefore
//! counts as open from before the rename until FORGET, which the kernel sends when no such reader is left.
//! (An unlinked name is different: for a moment it was not there, and "no such file" is a right answer to who opens it.)
//! One that is so damaged that it can go only while nobody has it open goes without: that the open fails is better than that the
//! name cannot be replaced for ever.
//!
//! Of what somebody has open the kernel does not always tell: not of directories, fifos, sockets and devices, nor of what is open with
//! O_PATH. When the last name of such an inode goes, it goes; who has it open may look at it all the same. So the
//! attributes of what has just gone are kept, with no links, until FORGET, which comes at once where nobody has it open.
//!
//! Bounded by the inodes that the kernel has in its cache. No verb is called with a lock held.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use varve_fs::{Attr, Caller, FileKind, InodeId};

use crate::Verbs;

/// The pinned inodes of a mount, and those that have gone.
#[derive(Default)]
pub struct Pins {
    pinned: Mutex<HashSet<InodeId>>,
    gone: Mutex<HashMap<InodeId, Attr>>,
}

impl Pins {
    /// What loses its last name when this one goes; `None`: nothing.
    pub fn last(verbs: &impl Verbs, parent: InodeId, name: &[u8]) -> Option<Attr> {
        let attr = verbs.lookup(parent, name).ok()?;
        (attr.kind == FileKind::Directory || attr.links <= 1).then_some(attr)
    }

    /// Keeps the attributes of what has just lost its last name: it is no more, or will be when it is not open any more as we know.
    pub fn note_gone(&self, last: Option<Attr>) {
        if let Some(attr) = last {
            self.gone.lock().insert(attr.ino, Attr { links: 0, ..attr });
        }
    }

    /// The attributes of what has gone, as they were.
    pub fn gone(&self, ino: InodeId) -> Option<Attr> {
        self.gone.lock().get(&ino).copied()
    }

    /// The kernel has forgotten an inode.
    pub fn forget(&self, verbs: &impl Verbs, ino: InodeId) {
        self.gone.lock().remove(&ino);
        self.unpin(verbs, ino);
    }

    /// Pins what a rename is about to remove, unless it is a directory.
    pub fn pin(&self, verbs: &impl Verbs, last: &Attr) -> Option<InodeId> {
        if last.kind == FileKind::Directory {
            return None;
        }
        verbs.open_inode(Caller::ROOT, last.ino, false).ok()?;
        if self.pinned.lock().insert(last.ino) {
            return Some(last.ino);
        }
        // Pinned by a rename that failed meanwhile, or by one to another name of it: one pin is enough.
        self.release(verbs, last.ino);
        None
    }

    /// Ends the pin on `ino`. False: there is none.
    pub fn unpin(&self, verbs: &impl Verbs, ino: InodeId) -> bool {
        let pinned = self.pinned.lock().remove(&ino);
        if pinned {
            self.release(verbs, ino);
        }
        pinned
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
