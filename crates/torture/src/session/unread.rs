//! Calls during which reads fail.

use varve_fs::{FsError, InodeId, RenameMode};

use super::{EIO, Session, drops_capability};
use crate::call::Call;
use crate::model::{CAPABILITY, Context};
use crate::reads::TEXT;

/// Calls that happen as a whole or not at all, and those that only bring into the log what has happened before.
pub(super) fn may_fail(call: &Call) -> bool {
    match call {
        // Several transactions, of which the first ones stay.
        Call::Fallocate { .. }
        | Call::Shift { .. }
        | Call::CopyRange { .. }
        | Call::CloneRange { .. }
        | Call::DedupeRange { .. } => false,
        // What was let go is not let go again.
        Call::Release { .. } | Call::Close => false,
        // What is left in its place is looked up afterwards.
        Call::Rename { mode, .. } => !matches!(mode, RenameMode::Whiteout { .. }),
        _ => true,
    }
}

impl Session {
    /// Makes the device sound again. Whether the call has failed because it was not.
    pub(super) fn is_unread(&self, result: &Result<(InodeId, usize), FsError>) -> bool {
        let failed = self.unread.as_ref().map_or(0, |(device, ..)| device.heal());
        failed > 0
            && result.as_ref().is_err_and(|error| error.errno() == EIO && error.to_string().contains(TEXT))
    }

    /// What takes a capability away does that first, in a transaction of its own, unless that has failed already.
    pub(super) fn take_dropped_capability(&mut self, call: &Call, context: &Context) {
        let Some(ino) = call.subject().filter(|_| drops_capability(call, &self.live)) else { return };
        if matches!(self.fs.getxattr(ino, CAPABILITY), Err(FsError::NoAttribute)) {
            self.live.drop_capability(ino, context);
        }
    }
}
