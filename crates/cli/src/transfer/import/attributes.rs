//! What an import gives inodes beside their contents: owner, bits, extended attributes, times and flags, where they differ.

use varve_fs::{Attr, Caller, FileFlags, FileKind, FsError, InodeId, SetAttr, SetTime, XattrMode};

use super::{Import, Step};
use crate::names::escape;
use crate::transfer::held::Held;
use crate::transfer::host::{HostStat, Xattr};
use crate::transfer::tally::Trouble;

/// As much of an access list as the kernel reads through FUSE (fuse_get_acl), on any machine: a page.
const LIST_BYTES_MAX: usize = 4096;
/// Four bytes at its beginning, and eight for each entry.
const LIST_ENTRIES_MAX: usize = (LIST_BYTES_MAX - 4) / 8;

fn is_too_long(name: &[u8], value: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_") && value.len() > LIST_BYTES_MAX
}

impl Import {
    /// Gives an inode the attributes of `name` in `source`, where they differ, and with `flags` its times and then these as well.
    /// Gives whether more than times and flags had to be changed.
    pub(super) fn attributes(
        &mut self,
        attr: Attr,
        stat: &HostStat,
        source: &Held<'_>,
        flags: Option<FileFlags>,
    ) -> Step<bool> {
        let ino = attr.ino;
        let mut has = attr.flags;
        let link = stat.kind == FileKind::Symlink;
        let (wanted, others) = source.xattrs(&mut self.room)?;
        self.tally.summary.xattrs_left_out_count += others;
        // The owner first: giving a file away takes set-ids and capabilities.
        let mut changed = false;
        if (attr.uid, attr.gid) != (stat.uid, stat.gid) {
            let mode = (!link).then_some(stat.mode);
            let set = SetAttr { uid: Some(stat.uid), gid: Some(stat.gid), mode, ..SetAttr::default() };
            self.free(ino, &mut has)?;
            self.filesystem.setattr(Caller::ROOT, ino, set)?;
            changed = true;
        }
        // Also what was just made may have some: a directory's default access control list is inherited.
        changed |= self.xattrs(ino, &wanted, &mut has)?;
        let now = if changed { self.filesystem.getattr(ino)? } else { attr };
        let mode = (!link && now.mode != stat.mode).then_some(stat.mode);
        let differ = flags.is_some() && (now.atime, now.mtime) != (stat.atime, stat.mtime);
        if mode.is_some() || differ {
            let atime = differ.then_some(SetTime::At(stat.atime));
            let mtime = differ.then_some(SetTime::At(stat.mtime));
            self.free(ino, &mut has)?;
            self.filesystem.setattr(
                Caller::ROOT,
                ino,
                SetAttr { mode, atime, mtime, ..SetAttr::default() },
            )?;
            changed |= mode.is_some();
        }
        if let Some(flags) = flags.filter(|flags| *flags != has) {
            self.filesystem.set_flags(Caller::ROOT, ino, flags)?;
        }
        // It is kept all the same: without it others might be let in, and an export gives it back.
        let too_long = wanted.iter().find(|(name, value)| is_too_long(name, value));
        self.unusable = too_long.map(|(name, _)| {
            let name = escape(name);
            format!(
                "its access list {name} has more than {LIST_ENTRIES_MAX} entries, which is more than the kernel takes from a mount: it is kept, \
                 and what is done with this through a mount may fail (Argument list too long) before it is gone (setfattr -x {name})"
            )
        });
        Ok(changed)
    }

    /// The attributes of something that was there already had to be mended.
    pub(super) fn count_changed(&mut self, changed: bool) {
        self.tally.summary.attributes_changed_count += u64::from(changed);
    }

    /// Makes `wanted` the extended attributes of an inode. Gives whether anything had to be changed.
    fn xattrs(&mut self, ino: InodeId, wanted: &[Xattr], has: &mut FileFlags) -> Step<bool> {
        let mut changed = false;
        for name in self.filesystem.listxattr(ino)? {
            if !wanted.iter().any(|(wanted, _)| *wanted == name) {
                self.free(ino, has)?;
                self.filesystem.removexattr(ino, &name)?;
                changed = true;
            }
        }
        for (name, value) in wanted {
            match self.filesystem.getxattr(ino, name) {
                Ok(have) if have == *value => continue,
                Ok(_) | Err(FsError::NoAttribute) => {}
                Err(error) => return Err(error.into()),
            }
            self.free(ino, has)?;
            self.filesystem.setxattr(ino, name, value, XattrMode::Set).map_err(|error| {
                Trouble::Entry(format!("its attribute {} cannot be kept: {error}", escape(name)))
            })?;
            changed = true;
        }
        Ok(changed)
    }
}
