//! Access times: noted in memory, logged at a sync, and in a crash before that lost or not.

use varve_fs::{AccessRule, FileFlags, InodeId};

use super::Model;
use super::apply::{Context, ENOENT, Errno};

/// With the relative rule an access is noted at least this often.
const RELATIVE_SECONDS: i64 = 24 * 60 * 60;

impl Model {
    pub(super) fn note_access(&mut self, ino: InodeId, rule: AccessRule, cx: &Context) -> Result<(), Errno> {
        let frozen = self.is_frozen(ino);
        let inode = self.get_mut(ino).ok_or(ENOENT)?;
        if cx.logged {
            // Whoever logs the inode next may bring it along.
            inode.atime.allow(cx.now);
            return Ok(());
        }
        let (before, changed) = (inode.atime.get(), inode.mtime.get().max(inode.ctime.get()));
        let due = match rule {
            AccessRule::Always => true,
            AccessRule::Relative => {
                before <= changed || cx.now.seconds.saturating_sub(before.seconds) >= RELATIVE_SECONDS
            }
        };
        if due && !frozen && !inode.flags.intersects(FileFlags::NO_ACCESS_TIME) {
            inode.atime.set(cx.now);
        }
        Ok(())
    }
}
