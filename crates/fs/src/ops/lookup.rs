//! Finding: lookup, getattr, readlink, readdir, statfs.

use varve_engine::InodeId;
use varve_format::record::inode::InodeKind;

use crate::api::{Attr, DirEntry, NAME_BYTES_MAX, StatFs};
use crate::core::{Core, attr};
use crate::subvolume::Slot;
use crate::table::Namespace;
use crate::{FsError, Result};

impl Core {
    pub(crate) fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        match name {
            b"." | b".." => {
                let state = self.state(parent);
                let inner = self.read_lock(&state)?;
                if inner.record.kind != InodeKind::Directory {
                    return Err(FsError::NotDirectory);
                }
                if name == b"." {
                    return Ok(attr(parent, &inner));
                }
                let up = Slot::of(parent).full(inner.record.parent);
                drop(inner);
                self.getattr(up)
            }
            _ if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
            _ => {
                for _ in 0..super::RETRIES_MAX {
                    let Some(found) = self.names(parent)?.lookup(parent, name)? else { break };
                    match self.getattr(found.ino) {
                        // Another file has been renamed over it meanwhile: the name was there all the time.
                        Err(FsError::NotFound) => {}
                        result => return result,
                    }
                }
                let state = self.state(parent);
                let inner = self.read_lock(&state)?;
                let is_directory = inner.record.kind == InodeKind::Directory;
                Err(if is_directory { FsError::NotFound } else { FsError::NotDirectory })
            }
        }
    }

    pub(crate) fn getattr(&self, ino: InodeId) -> Result<Attr> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        Ok(attr(ino, &inner))
    }

    pub(crate) fn readlink(&self, ino: InodeId) -> Result<Vec<u8>> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        if inner.record.kind != InodeKind::Symlink {
            return Err(FsError::Invalid);
        }
        let mut target = vec![0; inner.size as usize];
        let plan = self.plan_read(&inner, 0, &mut target)?;
        drop(inner);
        self.run_reads(plan, &mut target)?;
        Ok(target)
    }

    /// Positions are hashes: names that come and go move no others, and a listing that is interrupted by changes
    /// shows each name that was there all the time exactly once.
    pub(crate) fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        let up = {
            let state = self.state(ino);
            let inner = self.read_lock(&state)?;
            if inner.record.kind != InodeKind::Directory {
                return Err(FsError::NotDirectory);
            }
            Slot::of(ino).full(inner.record.parent)
        };
        let kind = InodeKind::Directory;
        if cookie < 1 && !each(DirEntry { name: b".".to_vec(), ino, kind, cookie: 1 }) {
            return Ok(());
        }
        if cookie < 2 && !each(DirEntry { name: b"..".to_vec(), ino: up, kind, cookie: 2 }) {
            return Ok(());
        }
        // A copy: what `each` does may wait for the gate.
        let names = Namespace::clone(&*self.names(ino)?);
        Ok(names.each_name(ino, cookie.max(2), &mut |position, kind, ino, name| {
            each(DirEntry { name, ino, kind, cookie: position.0 })
        })?)
    }

    pub(crate) fn statfs(&self) -> Result<StatFs> {
        let space = self.store.space();
        let total_bytes = space.total_bytes.saturating_sub(space.fixed_bytes + space.protected_bytes);
        Ok(StatFs { total_bytes, free_bytes: space.free_bytes.min(total_bytes), files: self.files.get() })
    }
}
