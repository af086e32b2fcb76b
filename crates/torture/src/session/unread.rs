//! Calls during which reads fail, and what they may have done by then.
//!
//! A call of one transaction has happened or it has not. One of several has done some of its steps, from the first on, and each of
//! them as a whole; that, and no more, is what a user sees and what the log holds, and the same call made again does the rest. What
//! there is of it is looked at when the device is sound again: what is found has to be one of the states that the calls allow. Some
//! calls have happened although they say that they failed, and are not made again.

use varve_fs::{FsError, InodeId, RenameMode};

use super::{EIO, Session, Violation};
use crate::call::Call;
use crate::model::{Context, Errno, is_subvolume};
use crate::reads::{Plan, TEXT};
use crate::violation;

/// Of calls that a read that failed has ended: after how many the filesystem is looked at before they are made again, and after how
/// many of these its space, too, when all is written out.
const LOOKS: f64 = 0.3;
const LOOKS_AT_SPACE: f64 = 0.3;
/// The same of calls that set space aside, which may be nobody's then: its space is looked at each time.
const LOOKS_AT_SET_ASIDE: f64 = 0.7;

/// Whether a call does what it does in several steps, so that also a late read that fails ends it half-way.
fn has_steps(call: &Call) -> bool {
    matches!(
        call,
        Call::Fallocate { .. }
            | Call::Shift { .. }
            | Call::CopyRange { .. }
            | Call::CloneRange { .. }
            | Call::DedupeRange { .. }
            | Call::Maintain
    )
}

/// What a call gives: the inode it created, and how many bytes it is about.
pub(super) type Given = Result<(InodeId, usize), FsError>;

/// Whether a call says that it could not read.
pub(super) fn says_so(result: &Given) -> bool {
    result.as_ref().is_err_and(|error| error.errno() == EIO && error.to_string().contains(TEXT))
}

impl Session {
    /// Makes a call; now and then while reads fail, and if it says so once more when the device is sound again.
    pub(super) fn make(&mut self, call: &Call) -> Result<Errno, Violation> {
        if let Some((device, rng, probability)) = &mut self.unread
            && rng.chance(*probability)
        {
            device.fail(if has_steps(call) { Plan::later(rng) } else { Plan::soon(rng) });
            let (looks, at_space) = match call {
                Call::Fallocate { .. } => (rng.chance(LOOKS_AT_SET_ASIDE), true),
                _ => (rng.chance(LOOKS), rng.chance(LOOKS_AT_SPACE)),
            };
            match (self.make_once(call)?, call) {
                // It is closed, with what could be logged.
                (EIO, Call::Close) => return Ok(EIO),
                (EIO, _) if looks => {
                    (if at_space { self.verify_space() } else { Ok(()) })?;
                    self.verify()?;
                }
                (EIO, _) => {}
                (errno, _) => return Ok(errno),
            }
        }
        self.make_once(call)
    }

    /// Makes the device sound again. Whether reads have failed during the call.
    pub(super) fn heal(&self) -> bool {
        self.unread.as_ref().is_some_and(|(device, ..)| device.heal() > 0)
    }

    /// What a rename has left in place of what it moved: what was created, if that is new.
    pub(super) fn left_behind(&self, call: &Call, given: Given) -> Given {
        let Call::Rename { parent, name, mode: RenameMode::Whiteout { .. }, .. } = call else { return given };
        let (_, bytes) = given?;
        let left = self.fs.lookup(*parent, name)?.ino;
        // Between two names of one file nothing has happened.
        Ok((if self.live.get(left).is_some() { InodeId(0) } else { left }, bytes))
    }

    /// What `call`, which says that it could not read, has done nevertheless: a handle ends all the same, and a snapshot is there
    /// before it is durable. Otherwise it is as the call says.
    pub(super) fn despite(&self, call: &Call, given: Given) -> (Call, Given) {
        match call {
            Call::Release { .. } => (call.clone(), Ok((InodeId(0), 0))),
            Call::Snapshot { source, parent, name, read_only, sync: true }
                if self.live.lookup(*parent, name).is_none() =>
            {
                let (source, parent, read_only) = (*source, *parent, *read_only);
                match self.fs.lookup(parent, name) {
                    Ok(attr) if is_subvolume(attr.ino) => {
                        let unsynced =
                            Call::Snapshot { source, parent, name: name.clone(), read_only, sync: false };
                        (unsynced, Ok((attr.ino, 0)))
                    }
                    _ => (call.clone(), given),
                }
            }
            _ => (call.clone(), given),
        }
    }

    /// What a call that could not read has done and stays: it takes the permission of others with what moves out of an inode's record;
    /// the rest is as where space is short.
    pub(super) fn take_unread_effect(&mut self, call: &Call, context: &Context) -> Result<(), Violation> {
        self.take_with_capability(call, context, |session| session.take_unread_steps(call, context))
    }

    fn take_unread_steps(&mut self, call: &Call, context: &Context) -> Result<(), Violation> {
        let Some(ino) = call.subject() else { return Ok(()) };
        match call {
            Call::Fallocate { .. } | Call::CloneRange { .. } => self.take_steps(call, context),
            Call::DedupeRange { from, from_offset, to, to_offset, len } => {
                // Nobody sees how far that came.
                let written = self.live.same_bytes((*from, *from_offset), (*to, *to_offset), *len) as usize;
                let _ = self.live.apply(call, &Context { written, ..*context });
                Ok(())
            }
            Call::Shift { .. } | Call::CopyRange { .. } => self.take_mode(call, ino, context),
            _ => Ok(()),
        }
    }

    fn take_mode(&mut self, call: &Call, ino: InodeId, context: &Context) -> Result<(), Violation> {
        let attr = self.fs.getattr(ino).map_err(|error| violation!("after {call:?}: {error}"))?;
        let Some(inode) = self.live.get_mut(ino) else { return Ok(()) };
        let mode = inode.mode.get();
        if ![mode, context.without_set_ids(mode)].contains(&attr.mode) {
            return Err(violation!("after {call:?}, which could not read: {attr:?}"));
        }
        inode.mode.set(attr.mode);
        Ok(())
    }
}
