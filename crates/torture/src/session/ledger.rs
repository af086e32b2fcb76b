//! The session's books: which states the log holds after a call, and what the call has promised.

use std::collections::BTreeSet;

use varve_fs::{Allocate, DataLogged, InodeId, RenameMode};

use super::capability::{drops_capability, without_capability};
use super::{Session, Violation};
use crate::call::Call;
use crate::model::{CAPABILITY, Content, Context, Inode, Model, Punch, slot};
use crate::timeline::Mark;
use crate::violation;

impl Session {
    /// Enters the states of the log that this call has brought into the timeline.
    pub(super) fn record(
        &mut self,
        call: &Call,
        context: &Context,
        old: &Model,
        (before, after): (u64, u64),
        events: Vec<DataLogged>,
        succeeded: bool,
    ) -> Result<(), Violation> {
        if after < before {
            return Err(violation!("{call:?} took the position back from {before} to {after}"));
        }
        let file = call.subject();
        let effect = Context { logged: true, ..*context };
        if matches!(call, Call::Write { .. } | Call::CopyRange { .. } | Call::Fallocate { .. })
            && let Some(ino) = file
        {
            self.pending.insert(ino);
        }
        let (pending, live) = (self.pending.clone(), self.live.clone());
        let allow_pending = |state: &mut Model| allow_pending_of(state, &pending, [old, &live]);
        let drops = drops_capability(call, old, context.caller);
        let finished = |plain: &Model| -> Model {
            let mut state = plain.clone();
            if succeeded {
                // Of a copy whose source has nothing logged yet, the logged model would not know it.
                if drops && let Some(ino) = file {
                    state.drop_capability(ino, &effect);
                }
                // The live model has accepted the call; the logged one knows the same names.
                let _ = state.apply(call, &effect);
                if let Call::Fallocate { ino, offset, len, how: Allocate::Zero { .. } } = call
                    && let Some(live) = live.get(*ino).and_then(Inode::content)
                    && let Some(content) = state.get_mut(*ino).and_then(Inode::content_mut)
                {
                    let punch = Punch { from: *offset, to: offset + len, size: context.size };
                    content.zero_like(&punch, live);
                }
                if let Call::DeleteSubvolume { parent, .. } = call {
                    settle(&mut state, &live, *parent);
                }
                if zeroes_inside_pages(call, context.size) {
                    allow_times(&mut state, call, plain);
                }
                if matches!(call, Call::Snapshot { .. }) {
                    state.complete_snapshot(context.created, &live, true);
                }
            } else {
                log_partial_effect(&mut state, call, &effect, old, &live);
            }
            state
        };
        let visible = succeeded && is_logged_verb(call);
        let mut plain = self.logged.clone();
        // On a full pool that comes into the log before the data does.
        if let (Call::Write { offset, .. } | Call::CopyRange { to_offset: offset, .. }, Some(ino)) =
            (call, file)
            && succeeded
        {
            plain.take_shared_reserved(ino, *offset, context.written as u64);
            if let Some(content) = plain.get_mut(ino).and_then(Inode::content_mut) {
                content.spend(*offset, context.written as u64);
            }
        }
        if after == before {
            if let Some(event) = events.first() {
                return Err(violation!(
                    "{call:?} logged data at {} but the position stayed {after}",
                    event.lsn.0
                ));
            }
            let state = finished(&plain);
            let changed = visible && changes_what_is_seen(call, old, &live);
            // To log zeros that are written over data is to read, too: where that fails they wait like what is written.
            let waits =
                self.call_unread && matches!(call, Call::Fallocate { how: Allocate::Zero { .. }, .. });
            if changed || drops && succeeded || !waits && !same_bytes(call, &state, &plain) {
                return Err(violation!("{call:?} changed something and has no place in the log ({after})"));
            }
            // Bytes zeroed inside a page wait, and so do the times they bring.
            if !matches!(call, Call::Fallocate { .. }) {
                self.logged = state;
            }
            return Ok(());
        }
        // What the log may hold before the call is done: nothing of it, a part, or all.
        let between = |plain: &Model| {
            let mut states = vec![plain.clone()];
            // Where that goes with what the file changes by, there is nothing in between.
            let mut first_changed = 0;
            if drops
                && !call.is_one_step()
                && let Some(ino) = file
            {
                first_changed = 1;
                states.push(without_capability(plain, ino, &effect));
            }
            if let Call::Fallocate { ino, offset, len, how, .. } = call
                && !matches!(how, Allocate::Reserve { .. })
            {
                let punch = Punch { from: *offset, to: offset + len, size: context.size };
                for state in &mut states[first_changed..] {
                    if let Some(content) = state.get_mut(*ino).and_then(Inode::content_mut) {
                        content.punch_perhaps(&punch);
                    }
                }
            }
            if let Call::Fallocate { ino, offset, len, how, .. } = call
                && *how != Allocate::Punch
            {
                for state in &mut states {
                    if let Some(content) = state.get_mut(*ino).and_then(Inode::content_mut) {
                        content.reserve_perhaps(*offset, offset + len);
                    }
                }
            }
            // What leaves an inode's record to be moved brings the mode.
            if let Call::Shift { ino, .. } = call
                && let Some(mode) = live.get(*ino).map(|inode| inode.mode.get())
            {
                let inodes = states.iter_mut().filter_map(|state| state.get_mut(*ino));
                inodes.for_each(|inode| inode.mode.allow(mode));
            }
            if succeeded || matches!(call, Call::Snapshot { .. }) {
                states.extend(plain.partly(call, &effect));
            }
            // A snapshot and a clone have all of what they show when they are there.
            if visible && !call.has_parts() {
                let mut state = finished(plain);
                allow_pending(&mut state);
                states.push(state);
            }
            states
        };
        if before + 1 < after {
            allow_pending(&mut plain);
            self.timeline.expect(before + 1, between(&plain));
        }
        let forked = if succeeded { sources(call, old) } else { Vec::new() };
        let mut last = None;
        for event in &events {
            let lsn = event.lsn.0;
            if lsn <= before || lsn > after {
                return Err(violation!("{call:?} ran from {before} to {after} and logged data at {lsn}"));
            }
            if let Call::CopyRange { to, .. } = call
                && clones(call, old)
                && event.ino == *to
                && event.len == event.size
            {
                // They share what the source holds now: that and nothing else is in the log.
                Self::log_data(&mut plain, event, &live, &live)?;
                settle(&mut plain, &live, *to);
                self.pending.remove(to);
                continue;
            }
            if lsn == after && visible {
                self.log_sources(call, &mut plain, &forked, after)?;
                // In the same transaction as the verb itself: what the file holds after it. Bytes zeroed inside a page come later, and
                // what was there may have left the file's record for them.
                let before = if zeroes_inside_pages(call, context.size) { old } else { &live };
                let state = last.get_or_insert_with(|| finished(&plain));
                Self::log_data(state, event, before, &live)?;
                continue;
            }
            // What moves is logged before it moves.
            let seen = if matches!(call, Call::Shift { .. }) { old } else { &live };
            Self::log_data(&mut plain, event, old, seen)?;
            allow_pending(&mut plain);
            if lsn < after {
                self.timeline.expect(lsn, between(&plain));
            }
        }
        self.log_sources(call, &mut plain, &forked, after)?;
        let mut state = last.unwrap_or_else(|| finished(&plain));
        let pending = self.pending.clone();
        allow_pending_of(&mut state, &pending, [old, &live]);
        if succeeded {
            self.verify_growth(call, &state, old)?;
        }
        self.timeline.expect(after, vec![state.clone()]);
        self.logged = state;
        Ok(())
    }

    pub(super) fn log_data(
        state: &mut Model,
        event: &DataLogged,
        old: &Model,
        live: &Model,
    ) -> Result<(), Violation> {
        // A file that lost its last name and handle in this very call has nothing to show.
        let Some(old) = old.get(event.ino).or(live.get(event.ino)) else { return Ok(()) };
        if state.get(event.ino).is_none() {
            return Ok(());
        }
        let new = live.get(event.ino).unwrap_or(old);
        let (Some(before), Some(after)) = (old.content(), new.content()) else {
            return Err(violation!("data of inode {} was logged, which is not a file", event.ino.0));
        };
        Self::log_content(state, event, before, after)
    }

    /// Logs what a file held `before` or holds `after` the running call.
    pub(super) fn log_content(
        state: &mut Model,
        event: &DataLogged,
        before: &Content,
        after: &Content,
    ) -> Result<(), Violation> {
        let Some(inode) = state.get_mut(event.ino) else { return Ok(()) };
        let most = before.size().max(after.size());
        if event.size > most {
            return Err(violation!(
                "inode {} was logged with size {}, larger than {most}",
                event.ino.0,
                event.size
            ));
        }
        let content = inode.content_mut().expect("the live model says it is a file");
        let grown_from = content.size();
        content.log(event.offset, event.len, event.size, before, after);
        if !content.range_is(grown_from, event.size, before, after) {
            return Err(violation!(
                "inode {} grew from {grown_from} to {} at {} before the data of that range was logged",
                event.ino.0,
                event.size,
                event.lsn.0
            ));
        }
        Ok(())
    }

    /// A size grown by a write is logged no earlier than that write's data, whatever else changes the size.
    fn verify_growth(&self, call: &Call, state: &Model, old: &Model) -> Result<(), Violation> {
        let Some(ino) = call.subject() else { return Ok(()) };
        let content = |model: &Model| model.get(ino).and_then(|inode| inode.content().cloned());
        let (Some(state), Some(was)) = (content(state), content(&self.logged)) else { return Ok(()) };
        let live = content(&self.live).unwrap_or_default();
        let old = content(old).unwrap_or_default();
        if state.size() > was.size() && !state.range_is(was.size(), state.size(), &old, &live) {
            return Err(violation!(
                "{call:?} logged size {} of inode {} while bytes written before it are not logged",
                state.size(),
                ino.0
            ));
        }
        Ok(())
    }

    /// Enters what the call has promised.
    pub(super) fn promise(
        &mut self,
        call: &Call,
        (before, after): (u64, u64),
        succeeded: bool,
    ) -> Result<(), Violation> {
        let mut acknowledged = self.fs.durable_position().0;
        if acknowledged > after {
            return Err(violation!(
                "after {call:?} the durable position {acknowledged} is beyond the position {after}"
            ));
        }
        if succeeded {
            match call {
                Call::Fsync { ino } | Call::FlushFile { ino } => {
                    // With the snapshot it is in, and those in the directory it is.
                    self.logged.require(|at, above| at == slot(*ino) || above == *ino);
                    self.settle_pending(call, &[*ino], after)?;
                }
                Call::Snapshot { sync: true, .. } => {
                    let made = self.timeline.last_created().map(slot);
                    self.logged.require(|at, _| Some(at) == made);
                    self.settle_pending(call, &[], after)?;
                    acknowledged = after;
                }
                Call::NoteAccess { ino, .. } => {
                    self.accessed.insert(*ino);
                }
                Call::Sync | Call::Close | Call::FlushAll => {
                    if *call != Call::FlushAll {
                        self.settle_accesses();
                    }
                    self.logged.require(|_, _| true);
                    let all: Vec<InodeId> = self.pending.iter().copied().collect();
                    self.settle_pending(call, &all, after)?;
                }
                _ => {}
            }
            match call {
                Call::Fsync { .. } | Call::Sync | Call::Close => acknowledged = after,
                // What they have logged is durable later.
                Call::FlushFile { .. } | Call::FlushAll => self.started.push(after),
                Call::Commit { nth } => acknowledged = acknowledged.max(self.started(*nth).unwrap_or(0)),
                Call::Checkpoint => acknowledged = acknowledged.max(before),
                _ => {}
            }
        }
        self.pending.retain(|ino| self.live.get(*ino).is_some());
        self.timeline.mark(Mark { events: self.disk.events(), position: after, acknowledged });
        Ok(())
    }

    /// What a call forks, or moves over a file, is in the log by then, with everything that was written to it.
    fn log_sources(
        &mut self,
        call: &Call,
        state: &mut Model,
        sources: &[InodeId],
        at: u64,
    ) -> Result<(), Violation> {
        for ino in sources {
            verify_logged(call, state, &self.live, *ino, at)?;
            settle(state, &self.live, *ino);
            settle_bytes(state, *ino);
            self.pending.remove(ino);
        }
        Ok(())
    }

    /// Every access that was noted is in the log.
    fn settle_accesses(&mut self) {
        for ino in std::mem::take(&mut self.accessed) {
            if let (Some(live), Some(logged)) = (self.live.get(ino), self.logged.get_mut(ino)) {
                logged.atime.set(live.atime.get());
            }
        }
    }

    /// Everything written to `files` must be in the log now, with its times, and nothing else.
    fn settle_pending(&mut self, call: &Call, files: &[InodeId], at: u64) -> Result<(), Violation> {
        for ino in files {
            verify_logged(call, &self.logged, &self.live, *ino, at)?;
            settle(&mut self.logged, &self.live, *ino);
            settle_bytes(&mut self.logged, *ino);
            self.pending.remove(ino);
        }
        let state = self.logged.clone();
        self.timeline.expect(at, vec![state]);
        Ok(())
    }
}

/// Files of which everything is logged before `call` forks them, or moves them over something.
fn sources(call: &Call, old: &Model) -> Vec<InodeId> {
    match call {
        Call::CloneFile { source, .. } => vec![*source],
        Call::LinkOver { ino, .. } => vec![*ino],
        Call::Rename { parent, name, new_parent, new_name, mode } => {
            let mut moved = [old.lookup(*parent, name), old.lookup(*new_parent, new_name)];
            if moved[1].is_none() || moved[0] == moved[1] {
                return Vec::new();
            }
            if *mode != RenameMode::Exchange {
                moved[1] = None;
            }
            let is_file = |ino: &InodeId| old.get(*ino).is_some_and(|inode| inode.content().is_some());
            moved.into_iter().flatten().filter(is_file).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a copy may be a clone: all of a file into an empty one.
fn clones(call: &Call, old: &Model) -> bool {
    let Call::CopyRange { from, from_offset: 0, to, to_offset: 0, len } = call else { return false };
    let size = |ino| old.get(ino).map_or(0, Inode::size);
    from != to && size(*from) <= *len && size(*to) == 0
}

/// The bytes of `ino` in the log are those that a user sees.
fn verify_logged(call: &Call, logged: &Model, live: &Model, ino: InodeId, at: u64) -> Result<(), Violation> {
    let content = |model: &Model| model.get(ino).and_then(Inode::content).cloned();
    match (content(live), content(logged)) {
        (Some(seen), Some(kept)) if !kept.same(&seen) => Err(violation!(
            "{call:?} returned at {at} while written bytes of inode {} are not in the log (size {} of {})",
            ino.0,
            kept.size(),
            seen.size()
        )),
        _ => Ok(()),
    }
}

/// The times and the mode of `ino` in the log are those that a user sees.
pub(super) fn settle(logged: &mut Model, live: &Model, ino: InodeId) {
    let (Some(live), Some(logged)) = (live.get(ino), logged.get_mut(ino)) else { return };
    logged.mode.set(live.mode.get());
    logged.mtime.set(live.mtime.get());
    logged.ctime.set(live.ctime.get());
}

/// The bytes of `ino` in the log are those that a user sees, which [`verify_logged`] has found among the acceptable ones. Of a page
/// that a call both changed and logged they were logged then: otherwise it would have been dirty, and logged again by now.
fn settle_bytes(logged: &mut Model, ino: InodeId) {
    if let Some(content) = logged.get_mut(ino).and_then(Inode::content_mut) {
        content.settle_first();
    }
}

/// Verbs whose effect is in the log when they return.
fn is_logged_verb(call: &Call) -> bool {
    !matches!(
        call,
        Call::Write { .. }
            | Call::CopyRange { .. }
            | Call::CloneRange { .. }
            | Call::DedupeRange { .. }
            | Call::Open { truncate: false, .. }
            | Call::Release { .. }
            | Call::NoteAccess { .. }
            | Call::Fsync { .. }
            | Call::FlushFile { .. }
            | Call::FlushAll
            | Call::Commit { .. }
            | Call::Sync
            | Call::Checkpoint
            | Call::Maintain
            | Call::Trim { .. }
            | Call::Close
    )
}

/// Whether a successful verb has changed anything a user can see after a crash.
fn changes_what_is_seen(call: &Call, old: &Model, live: &Model) -> bool {
    match call {
        Call::Rename { parent, name, .. } => old.lookup(*parent, name) != live.lookup(*parent, name),
        Call::SetAttr { set, .. } => *set != varve_fs::SetAttr::default(),
        // Bytes that are zeroed inside a page wait; whole pages are compared by themselves.
        Call::Fallocate { .. } => false,
        Call::SetXattr { ino, .. } | Call::RemoveXattr { ino, .. } => {
            let seen = |model: &Model| model.get(*ino).map(|inode| (inode.xattrs.clone(), inode.mode.get()));
            seen(old) != seen(live)
        }
        Call::Open { ino, truncate: true } => old.get(*ino).is_some_and(|inode| inode.size() > 0),
        _ => true,
    }
}

/// Whether `call` does nothing but zero bytes of pages of which others stay, in a file of `size` bytes: as of a write, its
/// times wait, also where the log moves on because a subvolume has opened a version for what is to come.
fn zeroes_inside_pages(call: &Call, size: u64) -> bool {
    let Call::Fallocate { offset, len, how: Allocate::Punch | Allocate::Zero { .. }, .. } = call else {
        return false;
    };
    Punch { from: *offset, to: offset + len, size }.pages().is_empty()
}

/// The subject of `call` may also have the times and the mode it has in `plain`.
fn allow_times(state: &mut Model, call: &Call, plain: &Model) {
    let Some((ino, old)) = call.subject().and_then(|ino| Some((ino, plain.get(ino)?))) else { return };
    if let Some(inode) = state.get_mut(ino) {
        inode.mode.allow_all(&old.mode);
        inode.mtime.allow_all(&old.mtime);
        inode.ctime.allow_all(&old.ctime);
    }
}

/// Whether two logged states have the same bytes in the file that `call` is about.
fn same_bytes(call: &Call, state: &Model, plain: &Model) -> bool {
    let content = |model: &Model| call.subject().and_then(|ino| model.get(ino)?.content().cloned());
    match (content(state), content(plain)) {
        (Some(state), Some(plain)) => state.same(&plain),
        _ => true,
    }
}

/// What a call that was refused for lack of space, or could not read, has brought into the log.
fn log_partial_effect(state: &mut Model, call: &Call, effect: &Context, old: &Model, live: &Model) {
    let Some(ino) = call.subject() else { return };
    let has = |model: &Model| model.get(ino).is_some_and(|inode| inode.xattrs.contains_key(CAPABILITY));
    if has(old) && !has(live) {
        state.drop_capability(ino, effect);
    }
    if let (Call::Shift { .. }, Some(inode), Some(live)) = (call, state.get_mut(ino), live.get(ino)) {
        inode.mode.set(live.mode.get());
    }
    let content = |model: &Model| model.get(ino).and_then(Inode::content).cloned();
    if let Call::Fallocate { offset, len, how, .. } = call
        && let (Some(old), Some(live)) = (content(old), content(live))
        && let Some(content) = state.get_mut(ino).and_then(Inode::content_mut)
    {
        let punch = Punch { from: *offset, to: offset + len, size: effect.size };
        if !matches!(how, Allocate::Reserve { .. }) {
            content.punch_like(&punch, &old, &live);
        }
        if *how != Allocate::Punch {
            content.reserve_perhaps(*offset, offset + len);
        }
    }
}

/// Times and set-id bits of files that were written may come into the log with anything that touches them.
pub(super) fn allow_pending_of(state: &mut Model, pending: &BTreeSet<InodeId>, seen: [&Model; 2]) {
    for ino in pending {
        let Some(mut inode) = state.get(*ino).cloned() else { continue };
        for seen in seen.iter().filter_map(|model| model.get(*ino)) {
            inode.mode.allow(seen.mode.get());
            inode.mtime.allow(seen.mtime.get());
            inode.ctime.allow(seen.ctime.get());
        }
        *state.get_mut(*ino).expect("looked up above") = inode;
    }
}
