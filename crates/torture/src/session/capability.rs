//! What becomes of `security.capability`: who is refused has not taken it, and it never stays beside what a call has changed.

use varve_fs::{Caller, FsError, InodeId};

use super::{Session, Violation};
use crate::call::Call;
use crate::model::{CAPABILITY, Context, Inode, Model};
use crate::violation;

/// Whether `call` takes `security.capability` from its file when it changes that, and the file has it in `old`.
pub(super) fn drops_capability(call: &Call, old: &Model, caller: Caller) -> bool {
    let Some(inode) = call.subject().and_then(|ino| old.get(ino)) else { return false };
    let source = match call {
        Call::CopyRange { from, .. } | Call::CloneRange { from, .. } => old.get(*from).map_or(0, Inode::size),
        _ => 0,
    };
    inode.xattrs.contains_key(CAPABILITY) && call.drops_capability(inode.stays_privileged(caller), source)
}

/// The state in which `ino` has lost its capability, and perhaps has the time of that already.
pub(super) fn without_capability(plain: &Model, ino: InodeId, effect: &Context) -> Model {
    let mut state = plain.clone();
    let times = state.get(ino).map(|inode| inode.ctime.clone());
    state.drop_capability(ino, effect);
    if let (Some(inode), Some(times)) = (state.get_mut(ino), times) {
        inode.ctime = times;
        inode.ctime.allow(effect.now);
    }
    state
}

impl Session {
    /// Runs `take`, which enters what `call`, refused, has done all the same. Only what takes several steps may have taken the capability;
    /// and it must have, if it has changed any byte.
    pub(super) fn take_with_capability(
        &mut self,
        call: &Call,
        context: &Context,
        take: impl FnOnce(&mut Session) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let Some(ino) = call.subject().filter(|_| drops_capability(call, &self.live, context.caller)) else {
            return take(self);
        };
        let old = self.live.get(ino).and_then(Inode::content).cloned();
        let gone = matches!(self.fs.getxattr(ino, CAPABILITY), Err(FsError::NoAttribute));
        if gone {
            if !call.drops_capability_in_steps() {
                return Err(violation!("{call:?} was refused, and has taken the capability"));
            }
            self.live.drop_capability(ino, context);
        }
        take(self)?;
        if let (false, Some(old), Some(new)) = (gone, old, self.live.get(ino).and_then(Inode::content))
            && !new.same(&old)
        {
            return Err(violation!("{call:?}, refused, has changed the file, and left the capability"));
        }
        Ok(())
    }
}
