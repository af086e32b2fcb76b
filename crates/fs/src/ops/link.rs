//! Hard links, and a nameless file's first name in place of another's.

use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::InodeKind;

use super::flags::{Touch, require_unprotected};
use super::require_directory;
use super::unlink::{Disposal, past_damage};
use crate::api::Attr;
use crate::core::{Core, Owning, check_name, touch, touch_directory};
use crate::inode::Presence;
use crate::subvolume::{Slot, local};
use crate::table::names::Found;
use crate::table::orphans;
use crate::writeback::Ride;
use crate::{FsError, Result};

impl Core {
    pub(crate) fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.admit_link(ino, parent, name, Touch::NewName)?;
        self.with_space(|| self.add_link(ino, parent, name))
    }

    /// Whether `ino` may be given a name at all in `parent`, to which that does `what`.
    fn admit_link(&self, ino: InodeId, parent: InodeId, name: &[u8], what: Touch) -> Result<()> {
        self.admit_beside(ino, parent)?;
        self.permit(parent, what)?;
        self.permit(ino, Touch::Otherwise)?;
        check_name(name)?;
        if Slot::of(ino) != Slot::of(parent) {
            return Err(self.why_not_across(ino)?);
        }
        Ok(())
    }

    /// What is wrong with a link to `ino` in another subvolume. What cannot be linked anywhere is told first, as the kernel does:
    /// who hears that only the border is in the way makes a copy. `ino` may lie in what is read-only, since nothing of it would be
    /// changed.
    fn why_not_across(&self, ino: InodeId) -> Result<FsError> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        Ok(match inner.record.kind {
            InodeKind::Directory => FsError::NotPermitted,
            _ if inner.presence != Presence::Live && !inner.linkable => FsError::NotFound,
            _ => FsError::CrossDevice,
        })
    }

    fn add_link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        let change = self.change(parent)?;
        let mut states = vec![self.state(parent), self.state(ino)];
        let mut locked = self.lock_all(&mut states)?;
        if locked.get(ino).record.kind == InodeKind::Directory {
            return Err(FsError::NotPermitted);
        }
        require_directory(locked.get(parent))?;
        let inner = locked.get(ino);
        let first = inner.presence == Presence::Orphan && inner.linkable;
        if inner.presence != Presence::Live && !first {
            return Err(FsError::NotFound);
        }
        let Some(links) = inner.record.links.checked_add(1) else { return Err(FsError::TooManyLinks) };
        let kind = inner.record.kind;
        let mut record = inner.record.clone();
        let mut dir_record = locked.get(parent).record.clone();
        let mut bucket = change.bucket(parent, name)?;
        if bucket.find(name).is_some() || self.nested(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        if !bucket.insert(name, ino, kind) {
            return Err(FsError::HashFull);
        }
        let now = self.now();
        record.links = links;
        touch(&mut record, now);
        touch_directory(&mut dir_record, now, 1, 0);
        let mut tx = Transaction::new();
        change.put_bucket(&mut tx, &bucket)?;
        if first {
            // In one transaction it leaves the orphans and is in the namespace.
            self.require_place(&change, ino)?;
            record.parent = local(parent);
            orphans::delete(&mut tx, ino);
            change.put_inode(&mut tx, ino, &record)?;
        } else {
            self.put_record(&change, &mut tx, ino, locked.get(ino), &mut record)?;
        }
        self.put_record(&change, &mut tx, parent, locked.get(parent), &mut dir_record)?;
        {
            let _counting = if first { Some(self.counting()?) } else { None };
            let _changing = self.known.change([self.known_name(parent, bucket.base(), name), None]);
            self.apply(tx)?;
            if first {
                self.files.add(change.place(ino), 1);
            }
        }
        let dir = locked.get(parent);
        dir.size = dir_record.size;
        dir.take_over(&change, dir_record);
        let inner = locked.get(ino);
        inner.take_over(&change, record);
        (inner.presence, inner.linkable) = (Presence::Live, false);
        Ok(self.attr_of(ino, inner))
    }

    pub(crate) fn link_over(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<()> {
        self.admit_link(ino, parent, name, Touch::NameGoes)?;
        self.with_space(|| self.take_name(ino, parent, name))
    }

    fn take_name(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<()> {
        let state = self.state(ino);
        {
            let inner = self.read_lock(&state)?;
            match inner.record.kind {
                InodeKind::Directory => return Err(FsError::NotPermitted),
                _ if inner.presence != Presence::Orphan || !inner.linkable => return Err(FsError::NotFound),
                _ => {}
            }
        }
        // As who moves over something, and not while holding inodes.
        self.write_back(&state, Ride::Never)?;
        for _ in 0..super::RETRIES_MAX {
            {
                let state = self.state(parent);
                require_directory(&*self.read_lock(&state)?)?;
            }
            let Some(there) = self.names_first(parent)?.lookup(parent, name)? else {
                return Err(match self.nested(parent, name)? {
                    Some(_) => FsError::IsDirectory,
                    None => FsError::NotFound,
                });
            };
            if past_damage(|disposal| self.take_name_of(ino, parent, name, there, disposal))? {
                return Ok(());
            }
            // Each time round somebody else has changed the name.
        }
        Err(FsError::NotFound)
    }

    /// False if the name has changed since it was looked up.
    fn take_name_of(
        &self,
        ino: InodeId,
        parent: InodeId,
        name: &[u8],
        there: Found,
        disposal: Disposal,
    ) -> Result<bool> {
        let change = self.change(parent)?;
        let mut states = vec![self.state(parent), self.state(ino), self.state(there.ino)];
        let mut locked = match self.lock_all(&mut states) {
            Ok(locked) => locked,
            Err(FsError::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        require_directory(locked.get(parent))?;
        let inner = locked.get(ino);
        if inner.presence != Presence::Orphan || !inner.linkable {
            return Err(FsError::NotFound);
        }
        let mut record = inner.record.clone();
        let mut bucket = change.bucket(parent, name)?;
        let Some(target) = bucket.find(name).filter(|target| target.ino == there.ino) else {
            return Ok(false);
        };
        if target.kind == InodeKind::Directory {
            return Err(FsError::IsDirectory);
        }
        // A name that is there is no new one.
        require_unprotected(&locked.get(parent).record)?;
        require_unprotected(&locked.get(target.ino).record)?;
        let gone = locked.get(target.ino);
        if gone.opens > 0 || gone.record.links > 1 {
            self.own_first(&change, target.ino, gone, Owning::ToFree)?;
        }
        let now = self.now();
        let mut tx = Transaction::new();
        let dropped = self.drop_link(&change, &mut tx, target.ino, locked.get(target.ino), now, disposal)?;
        bucket.replace(target.sequence, ino, record.kind);
        change.put_bucket(&mut tx, &bucket)?;
        self.require_place(&change, ino)?;
        (record.links, record.parent) = (1, local(parent));
        touch(&mut record, now);
        orphans::delete(&mut tx, ino);
        change.put_inode(&mut tx, ino, &record)?;
        let mut dir_record = locked.get(parent).record.clone();
        touch_directory(&mut dir_record, now, 0, 0);
        self.put_record(&change, &mut tx, parent, locked.get(parent), &mut dir_record)?;
        tx.privileged();
        {
            let _counting = self.counting()?;
            let _changing = self.known.change([self.known_name(parent, bucket.base(), name), None]);
            self.apply(tx)?;
            change.applied();
            self.files.add(change.place(ino), 1);
        }
        let dir = locked.get(parent);
        dir.size = dir_record.size;
        dir.take_over(&change, dir_record);
        let inner = locked.get(ino);
        inner.take_over(&change, record);
        (inner.presence, inner.linkable) = (Presence::Live, false);
        self.take_over_dropped(&change, target.ino, locked.get(target.ino), dropped);
        drop((locked, change));
        if let Some(at) = states.iter().position(|state| state.ino == target.ino) {
            self.part_with(states.swap_remove(at));
        }
        Ok(true)
    }
}
