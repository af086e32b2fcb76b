//! Files that begin without a name.
//!
//! Such a file is an orphan from its first transaction on: no directory changes, no snapshot shows it, and who lets go of
//! it, by the end of its last handle or of the machine, leaves nothing. A first link makes it a file like others
//! ([`Core::link`]). If power fails, it is there under that name or not at all.

use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::InodeKind;
use varve_format::record::orphan::OrphanState;

use super::create::judged_mode;
use super::flags::Touch;
use super::require_directory;
use crate::Result;
use crate::acl;
use crate::api::{Attr, Caller, NewNameless};
use crate::core::Core;
use crate::inode::Presence;
use crate::subvolume::local;
use crate::table::orphans;

impl Core {
    pub(crate) fn tmpfile(&self, caller: Caller, parent: InodeId, new: NewNameless) -> Result<Attr> {
        self.admit(parent)?;
        self.permit(parent, Touch::NewName)?;
        self.with_space(|| self.make_nameless(caller, parent, new))
    }

    fn make_nameless(&self, caller: Caller, parent: InodeId, new: NewNameless) -> Result<Attr> {
        let now = self.now();
        let state = self.state(parent);
        let change = self.change(parent)?;
        let dir = self.read_lock(&state)?;
        require_directory(&dir)?;
        let access = self.acl(parent, &dir, acl::DEFAULT)?.map(|list| list.inherit(new.mode as u16));
        let mode = match &access {
            Some(list) => new.mode & 0o7000 | u32::from(list.mode()),
            None => new.mode & !new.umask,
        };
        let mode = match new.set_gid_judged {
            true => mode,
            false => judged_mode(&dir.record, InodeKind::File, caller, mode),
        };
        let number = self.new_inode_number()?;
        let ino = change.slot.full(number);
        let mut record = self.record_in(&dir.record, InodeKind::File, number, caller, mode, now);
        (record.links, record.parent) = (0, local(parent));
        let mut tx = Transaction::new();
        tx.claim_id(number.0);
        if let Some(list) = access.filter(|list| !list.is_minimal()) {
            self.put_first_xattr(&change, &mut tx, ino, &mut record, acl::ACCESS, &list.encode())?;
        }
        orphans::put(&mut tx, ino, OrphanState::Open, &record);
        let child = self.state(ino);
        let mut inner = self.hold_new(&child, &[parent])?;
        if let Err(error) = self.apply(tx) {
            inner.presence = Presence::Gone;
            return Err(error);
        }
        inner.install(record, change.version, Presence::Orphan);
        (inner.opens, inner.linkable) = (1, new.linkable);
        Ok(self.attr_of(ino, &inner))
    }
}
