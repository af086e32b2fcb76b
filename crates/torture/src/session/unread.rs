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
        // It is there before it is durable, and stays if that fails.
        Call::Snapshot { sync, .. } => !sync,
        // What is left in its place is looked up afterwards.
        Call::Rename { mode, .. } => !matches!(mode, RenameMode::Whiteout { .. }),
        _ => true,
    }
}

/// Whether a call says that it could not read.
pub(super) fn says_so(result: &Result<(InodeId, usize), FsError>) -> bool {
    result.as_ref().is_err_and(|error| error.errno() == EIO && error.to_string().contains(TEXT))
}

impl Session {
    /// Makes the device sound again. Whether reads have failed during the call.
    pub(super) fn heal(&self) -> bool {
        self.unread.as_ref().is_some_and(|(device, ..)| device.heal() > 0)
    }

    /// What takes a capability away does that first, in a transaction of its own, unless that has failed already.
    pub(super) fn take_dropped_capability(&mut self, call: &Call, context: &Context) {
        let Some(ino) = call.subject().filter(|_| drops_capability(call, &self.live)) else { return };
        if matches!(self.fs.getxattr(ino, CAPABILITY), Err(FsError::NoAttribute)) {
            self.live.drop_capability(ino, context);
        }
    }
}
