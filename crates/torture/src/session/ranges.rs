//! The books of a range that becomes a part of another file: several transactions, from its front to its end, each of which holds
//! the file as it is by then; what lies in an inode's record is copied, and waits as of a write.
//!
//! A transaction says which bytes it brings into the log. What they are comes from the calls: those that follow each other from
//! the front of the range on are the source's, all others are what the file held. Nothing of the range comes before its front, also
//! where that is copied.

use varve_fs::{DataLogged, FsError, InodeId};

use super::capability::without_capability;
use super::ledger::{allow_pending_of, settle};
use super::{Session, Violation};
use crate::call::Call;
use crate::model::{CAPABILITY, Content, Context, Inode, Model, PAGE_BYTES, Part};
use crate::violation;

/// What a page of a range may take, if it is an extent by itself: an entry, and counts of its blocks, in two copies of the trees.
const SHARED_PAGE_BYTES_MAX: u64 = 2 * 2 * (100 + 60);
/// Pages of a segment, in which the last entries of a transaction lie, and entries before it.
const SHARED_PAGES_MAX: u64 = 256 + 64;
/// What a page may take that is copied.
const COPIED_PAGE_BYTES_MAX: u64 = 2 * PAGE_BYTES + 512;

impl Model {
    /// What must be free beyond that for a call that makes a range a part of a file to be accepted.
    pub(super) fn wanted_by_range(&self, call: &Call) -> u64 {
        let Ok(Some(part)) = self.part(call) else { return 0 };
        // Of what lies in a record one page is copied; the holes behind it are shared.
        let copied = if self.may_be_inline(part.from) { COPIED_PAGE_BYTES_MAX } else { 0 };
        // What waits of both is written first.
        copied + part.len.div_ceil(PAGE_BYTES).min(SHARED_PAGES_MAX) * SHARED_PAGE_BYTES_MAX
    }
}

impl Session {
    /// What a call that was refused for lack of space has done: a part of the range, from its front.
    pub(super) fn take_partial_range(&mut self, call: &Call, context: &Context) -> Result<(), Violation> {
        let Ok(Some(part)) = self.live.part(call) else { return Ok(()) };
        let fails = |error: FsError| violation!("after {call:?}: {error}");
        let attr = self.fs.getattr(part.to).map_err(fails)?;
        let len = attr.size.saturating_sub(part.to_offset).min(part.len.next_multiple_of(PAGE_BYTES));
        let found = self.fs.read(part.to, part.to_offset, len as usize).map_err(fails)?;
        let (source, old) = (content(&self.live, part.from), content(&self.live, part.to));
        let mut shown = old.clone();
        shown.set_bytes(part.to_offset, &found, attr.size);
        let Some((least, most)) = shown.laid(&old, &source, &part) else {
            return Err(violation!(
                "after {call:?}, refused, {} bytes are there that are no beginning of the range",
                attr.size
            ));
        };
        let Some(inode) = self.live.get_mut(part.to) else { return Ok(()) };
        let mut mode = inode.mode.clone();
        mode.allow(context.without_set_ids(mode.get()));
        if least > 0 {
            mode.set(context.without_set_ids(mode.get()));
            inode.mtime.set(context.now);
            inode.ctime.set(context.now);
        } else {
            inode.mtime.allow(context.now);
            inode.ctime.allow(context.now);
        }
        if !mode.accepts(attr.mode) || !inode.mtime.accepts(attr.mtime) || !inode.ctime.accepts(attr.ctime) {
            return Err(violation!("after {call:?}, refused with {least} bytes done: {attr:?}"));
        }
        inode.mode.set(attr.mode);
        inode.mtime.set(attr.mtime);
        inode.ctime.set(attr.ctime);
        if let Some(content) = inode.content_mut() {
            content.lay(&source, &part.slice(0, least));
            content.lay_perhaps(&source, &part.slice(least, most));
        }
        Ok(())
    }

    /// [`Session::record`] of a call that makes a range a part of a file.
    pub(super) fn record_range(
        &mut self,
        call: &Call,
        context: &Context,
        old: &Model,
        (before, after): (u64, u64),
        events: &[DataLogged],
        succeeded: bool,
    ) -> Result<(), Violation> {
        if after < before {
            return Err(violation!("{call:?} took the position back from {before} to {after}"));
        }
        let Ok(Some(part)) = old.part(call) else { unreachable!("{call:?} may change something") };
        let (effect, live, to) = (Context { logged: true, ..*context }, self.live.clone(), part.to);
        let (source, target, shown) = (content(old, part.from), content(old, to), content(&live, to));
        let changed = |model: &Model| model.get(to).map(|inode| inode.mtime.get());
        let done = match succeeded {
            true => part.len,
            false if changed(old) == changed(&live) => 0,
            false => shown.laid(&target, &source, &part).map_or(0, |(_, most)| most),
        };
        let shared = Shared::among(events, &part.slice(0, done));
        // Nothing of it waits that was written before.
        let clean = !self.pending.contains(&to);
        if shared.bytes < done {
            // The rest waits in memory.
            self.pending.insert(to);
        }
        let has = |model: &Model| model.get(to).is_some_and(|inode| inode.xattrs.contains_key(CAPABILITY));
        let drops = has(old) && (succeeded && part.len > 0 || !has(&live));
        let mut plain = self.logged.clone();
        let rest = part.slice(shared.bytes, done);
        if rest.len > 0 {
            // On a full pool that comes into the log before the data does.
            plain.take_shared_reserved(to, rest.to_offset, rest.len);
            if let Some(content) = plain.get_mut(to).and_then(Inode::content_mut) {
                content.spend(rest.to_offset, rest.len);
            }
        }
        if after == before {
            if let Some(event) = events.first() {
                let at = event.lsn.0;
                return Err(violation!("{call:?} logged data at {at} but the position stayed {after}"));
            }
            if drops {
                return Err(violation!(
                    "{call:?} dropped a capability and has no place in the log ({after})"
                ));
            }
            self.logged = plain;
            return Ok(());
        }
        let pending = self.pending.clone();
        let (mode, cleared) = (old.get(to).map(|inode| inode.mode.get()), live.get(to).map(|i| i.mode.get()));
        // What the log may hold between two transactions: what it holds, and attributes that go before the data comes.
        let between = |plain: &Model| {
            let mut plain = plain.clone();
            if let (Some(inode), Some(cleared)) = (plain.get_mut(to), cleared)
                && mode != Some(cleared)
            {
                inode.mode.allow(cleared);
            }
            let mut states = vec![plain];
            if drops {
                states.push(without_capability(&states[0], to, &effect));
            }
            states
        };
        if before + 1 < after {
            allow_pending_of(&mut plain, &pending, [old, &live]);
            self.timeline.expect(before + 1, between(&plain));
        }
        // What a user has seen of the target by then, and what is copied besides.
        let ended = target.size() / PAGE_BYTES;
        // How far the range is in the log, from its front: shared, and copied.
        let (mut now, mut done, mut in_order) = (target, 0, 0);
        for (number, event) in events.iter().enumerate() {
            let lsn = event.lsn.0;
            if lsn <= before || lsn > after {
                return Err(violation!("{call:?} ran from {before} to {after} and logged data at {lsn}"));
            }
            if shared.events.contains(&number) {
                let piece = part.slice(done, done + event.len);
                done += event.len;
                in_order = in_order.max(done);
                now.lay(&source, &piece);
                log_piece(&mut plain, event, &source, &piece, &now)?;
                if drops {
                    plain.drop_capability(to, &effect);
                }
                allow_pending_of(&mut plain, &pending, [old, &live]);
                settle(&mut plain, &live, to);
            } else if event.ino == to {
                // Of a file of which nothing waited this is the range, and not from its front, but for the block in which the
                // file ended: its tail may be zeroed for the file to grow.
                let is_tail = event.offset / PAGE_BYTES == ended && event.len <= PAGE_BYTES;
                if clean && event.offset > part.to_offset + in_order && !is_tail {
                    return Err(violation!(
                        "{call:?} logged {} bytes from {} on at {lsn}, and before of the range {in_order} bytes",
                        event.len,
                        event.offset
                    ));
                }
                in_order = in_order.max((event.offset + event.len).saturating_sub(part.to_offset));
                let mut copied = now.clone();
                copied.lay(&source, &rest);
                Self::log_content(&mut plain, event, &now, &copied)?;
                allow_pending_of(&mut plain, &pending, [old, &live]);
            } else {
                Self::log_data(&mut plain, event, old, &live)?;
                allow_pending_of(&mut plain, &pending, [old, &live]);
            }
            if lsn < after {
                self.timeline.expect(lsn, between(&plain));
            }
        }
        if drops {
            plain.drop_capability(to, &effect);
        }
        allow_pending_of(&mut plain, &pending, [old, &live]);
        if done > 0 {
            settle(&mut plain, &live, to);
        }
        // Of what was refused the attributes may be in the log already.
        if !succeeded {
            plain = between(&plain).swap_remove(0);
        }
        self.timeline.expect(after, vec![plain.clone()]);
        self.logged = plain;
        Ok(())
    }
}

fn content(model: &Model, ino: InodeId) -> Content {
    model.get(ino).and_then(Inode::content).cloned().unwrap_or_default()
}

/// The transactions that make a range a part of the target, among all that log data.
struct Shared {
    /// Their numbers, rising.
    events: Vec<usize>,
    /// Bytes from the front of the range on.
    bytes: u64,
}

impl Shared {
    /// Those that follow each other from the front of `part` as far as they reach. What was dirty there is logged first, and may
    /// lie in the same places: of two the later one counts.
    fn among(events: &[DataLogged], part: &Part) -> Shared {
        let place = |event: &DataLogged| {
            let begin = event.offset.checked_sub(part.to_offset)?;
            let end = begin + event.len;
            (event.ino == part.to && event.len > 0 && end <= part.len).then_some((begin, end))
        };
        let (mut reached, mut following) = (vec![0], Vec::new());
        for (number, event) in events.iter().enumerate() {
            if let Some((begin, end)) = place(event).filter(|(begin, _)| reached.contains(begin)) {
                reached.push(end);
                following.push((number, begin, end));
            }
        }
        let bytes = reached.into_iter().max().unwrap_or(0);
        let (mut wanted, mut found) = (bytes, Vec::new());
        for (number, begin, end) in following.into_iter().rev() {
            if end == wanted && wanted > 0 {
                found.push(number);
                wanted = begin;
            }
        }
        found.reverse();
        Shared { events: found, bytes }
    }
}

/// `piece` comes into the log: exactly the source's bytes, and the size that they reach. `now` is what the file holds by then.
fn log_piece(
    state: &mut Model,
    event: &DataLogged,
    source: &Content,
    piece: &Part,
    now: &Content,
) -> Result<(), Violation> {
    let Some(content) = state.get_mut(event.ino).and_then(Inode::content_mut) else { return Ok(()) };
    let grown_from = content.size();
    content.lay(source, piece);
    if event.size != content.size() || !content.range_is(grown_from, event.size, now, now) {
        return Err(violation!(
            "inode {} grew from {grown_from} to {} at {} by a range that reaches {}",
            event.ino.0,
            event.size,
            event.lsn.0,
            content.size()
        ));
    }
    Ok(())
}
