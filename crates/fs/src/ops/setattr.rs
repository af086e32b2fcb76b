//! Changing attributes. Sizes are [`super::truncate`]'s.
//!
//! atime changes here and in [`crate::access`]: reading alone does not change it.

use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::{INODE_FLAG_RESERVED, InodeKind, InodeRecord, Time};

use super::flags::Touch;
use super::without_set_ids;
use crate::Result;
use crate::api::{Attr, Caller, SetAttr, SetTime};
use crate::core::{Core, touch};
use crate::inode::{Inner, Pending};

/// Makes the changes of `set` other than the size. Set-id bits that the owner's going would take are left if `set_ids_stay`.
pub(super) fn set_attributes(record: &mut InodeRecord, set: &SetAttr, now: Time, set_ids_stay: bool) {
    if let Some(uid) = set.uid {
        record.uid = uid;
    }
    if let Some(gid) = set.gid {
        record.gid = gid;
    }
    let owner = set.uid.is_some() || set.gid.is_some();
    // Whoever asks: with HANDLE_KILLPRIV_V2 the kernel leaves this to us, also for the superuser.
    if owner && record.kind != InodeKind::Directory && !set_ids_stay {
        record.mode = without_set_ids(record.mode);
    }
    if let Some(mode) = set.mode {
        record.mode = (mode & 0o7777) as u16;
    }
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if let Some(atime) = set.atime {
        record.atime = time(atime);
    }
    if let Some(mtime) = set.mtime {
        record.mtime = time(mtime);
    }
    touch(record, now);
}

/// Whether a file keeps its set-id bits and capability though it gets another owner, group or size: root gives away what root has made and
/// nobody has ever seen a name of. So overlayfs copies a file up: contents, attributes, size, mode and owner, one after the other, of a
/// file without a name, and then the name. (Its chown looks to us like anybody's: with HANDLE_KILLPRIV_V2 the kernel says that set-ids
/// are to go with each.)
pub(super) fn stays_privileged(caller: Caller, inner: &Inner) -> bool {
    caller.uid == 0 && inner.linkable && inner.record.uid == 0
}

impl Core {
    pub(crate) fn setattr(&self, caller: Caller, ino: InodeId, set: SetAttr) -> Result<Attr> {
        self.admit(ino)?;
        self.permit(ino, Touch::by(&set))?;
        for time in [set.atime, set.mtime] {
            if let Some(SetTime::At(time)) = time
                && time.nanoseconds >= 1_000_000_000
            {
                return Err(crate::FsError::Invalid);
            }
        }
        if let Some(size) = set.size {
            let frees = {
                let state = self.state(ino);
                let inner = self.read_lock(&state)?;
                size != inner.size || inner.record.flags & INODE_FLAG_RESERVED != 0
            };
            let call = || self.set_size(caller, ino, size, &set);
            // To the size that is there it frees nothing, and nobody waits long to be refused that.
            return if frees { self.with_space_patiently(call) } else { self.with_space(call) };
        }
        self.with_space(|| {
            let state = self.state(ino);
            let change = self.change(ino)?;
            let mut inner = self.write_lock(&state)?;
            // The logged record and size: what a write has changed is logged with its data. But what is set here
            // comes after that write.
            let mut record = inner.record.clone();
            let given = set.uid.is_some() || set.gid.is_some();
            let stays = given && stays_privileged(caller, &inner);
            set_attributes(&mut record, &set, self.now(), stays);
            let chosen = set.mode.is_some() || record.mode != inner.record.mode;
            let mut tx = Transaction::new();
            if given && !stays && record.kind != InodeKind::Directory {
                self.drop_capability(&change, &mut tx, ino, &mut record)?;
            }
            if set.mode.is_some() && record.kind != InodeKind::Symlink {
                self.acl_follows(&change, &mut tx, ino, &inner, record.mode)?;
            }
            self.put_record(&change, &mut tx, ino, &inner, &mut record)?;
            // On a full pool, too: nothing grows.
            if !change.forked || self.is_own(&change, ino, &inner)? {
                tx.replacing();
            }
            self.apply(tx)?;
            inner.take_over(&change, record);
            // An access after this is noted again.
            inner.accessed = inner.accessed.filter(|_| set.atime.is_none());
            inner.pending = Pending {
                mtime: inner.pending.mtime.filter(|_| set.mtime.is_none()),
                ctime: None,
                mode: inner.pending.mode.filter(|_| !chosen),
            };
            Ok(self.attr_of(ino, &inner))
        })
    }
}
