//! Ranges that files share: a part of one becomes a part of another without a copy, until either is written to.
//!
//! What waits in memory of both is logged first, so that the extents say what the files hold. A long range takes several
//! transactions, from front to back, each of which takes both inodes' locks anew: after a crash, or beside a writer, a part
//! of it from the front is done. What is copied, because it lies in the source's record, is logged before what follows it is shared.
//! Nothing of the source changes, so it may lie in a read-only snapshot.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_engine::planted::{Planted, is};
use varve_engine::version::{self, Mapping, Range};
use varve_engine::{BLOCK_BYTES, EngineError, InodeId, PoolAddr, Transaction, View};
use varve_format::record::inode::{INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL};

use super::flags::Touch;
use super::require_file;
use crate::api::{Caller, DataLogged, Deduped, FILE_BYTES_MAX};
use crate::core::{Core, Owning, Rounds};
use crate::inode::{Inner, InodeState};
use crate::table::extents;
use crate::writeback::Ride;
use crate::{FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Entries changed in one transaction.
const ENTRIES_PER_STEP: u64 = 64;
/// Rounds in which one of the files is dirty again when it is looked at.
const ROUNDS_MAX: u32 = 64;
/// Compared, and then shared, at once.
const COMPARED_BYTES: u64 = 1 << 20;

/// A range of one file, and where it goes in another: offsets in whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub from: u64,
    pub to: u64,
    /// Whole blocks, or up to the end of the source, which is then the end of the target.
    pub len: u64,
}

/// Pieces of a range: offset in it, length, and where that is; `None`: zeros.
type Places = Vec<(u64, u64, Option<PoolAddr>)>;

/// A range as it was when it was read.
struct Looked {
    places: Places,
    bytes: AlignedBuf,
    /// Until this is gone, none of the blocks is used for anything else.
    _view: View,
}

/// What keeps a step from being made.
enum Hindrance {
    /// This file has data in memory that must be logged first.
    Dirty(InodeId),
    /// The target's contents lie in its record.
    Inline,
    /// The target's last block has stale bytes behind its end, and it grows.
    Tail,
    /// The range begins with contents that lie in the source's record, or goes on behind the source's end.
    Source,
    /// One of the files goes on behind a part of a block that was to be the end of both.
    Grown,
    /// What was compared is not what is there, or the target has become shorter than that.
    Changed,
}

impl Core {
    /// Makes `part` of `from` a part of `to`; gives how many bytes have been. Fewer than asked, also none, if the source's
    /// contents lie in its record, if it has become shorter, or if one of the two is written to all the time. Who knows that they
    /// are the `same` reads both, which would keep what is freed from him: he looks for space himself.
    pub fn share_part(
        &self,
        caller: Option<Caller>,
        from: InodeId,
        to: InodeId,
        part: Part,
        same: Option<(&Places, &Places)>,
    ) -> Result<u64> {
        let (mut done, mut rounds) = (0, 0);
        while done < part.len && rounds < ROUNDS_MAX {
            let rest = Part { from: part.from + done, to: part.to + done, len: part.len - done };
            let step = || self.share_step(caller, from, to, rest, same);
            let step = if same.is_some() { step() } else { self.with_space(step) };
            let hindrance = match step {
                Ok(Ok(bytes)) => {
                    (done, rounds) = (done + bytes, 0);
                    continue;
                }
                Ok(Err(hindrance)) => hindrance,
                // A snapshot waits for what is dirty of it.
                Err(FsError::Frozen(ino)) => Hindrance::Dirty(ino),
                Err(error) if done > 0 && error.may_pass() && is(Planted::RestAssumed) => return Ok(part.len),
                // What has been shared is told; the next call gets the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            rounds += 1;
            let target = self.state(to);
            let removed = match hindrance {
                Hindrance::Dirty(ino) => self.write_back(&self.state(ino), Ride::Allowed),
                Hindrance::Inline => {
                    self.with_space(|| self.leave_record(caller.unwrap_or(Caller::ROOT), &target))
                }
                Hindrance::Tail => self.with_space(|| self.settle_tail(&target, rest.to + rest.len)),
                Hindrance::Source | Hindrance::Grown | Hindrance::Changed => break,
            };
            match removed {
                Err(_) if done > 0 => break,
                removed => removed?,
            }
        }
        Ok(done)
    }

    /// One transaction; gives the bytes that are done.
    fn share_step(
        &self,
        caller: Option<Caller>,
        from: InodeId,
        to: InodeId,
        part: Part,
        same: Option<(&Places, &Places)>,
    ) -> Result<std::result::Result<u64, Hindrance>> {
        let change = self.change(to)?;
        // Nobody forks or deletes the source's subvolume meanwhile.
        let _names = self.names(from)?;
        let mut states = vec![self.state(from), self.state(to)];
        let mut locked = self.lock_all(&mut states)?;
        let blocks = part.len.next_multiple_of(BLOCK);
        let source = locked.get(from);
        require_file(source)?;
        if waits(source, part.from, blocks) && !is(Planted::SourceWaits) {
            return Ok(Err(Hindrance::Dirty(from)));
        }
        let before = source.record.clone();
        // What lies in the record lies in the first block: behind that there are holes.
        let in_record = part.from < BLOCK && before.inline.as_ref().is_some_and(|bytes| !bytes.is_empty());
        if in_record || before.size < part.from + part.len {
            let grows = source.size >= part.from + part.len && source.growth_waits();
            return Ok(Err(if grows { Hindrance::Dirty(from) } else { Hindrance::Source }));
        }
        let at_source_end = source.size == part.from + part.len;
        let target = locked.get(to);
        require_file(target)?;
        // A part of a block is shared only where both files end with it: either may have grown since that was asked.
        let at_end = at_source_end && target.size <= part.to + part.len;
        // What lies behind the source's end would have to be written over before what is set aside behind it can be used, and on a
        // full pool there is no block for that: the end is copied.
        let is_reserved = target.record.flags & INODE_FLAG_RESERVED != 0;
        let at_end = at_end && !(is_reserved && before.flags & INODE_FLAG_STALE_TAIL != 0);
        let part = Part { len: if at_end { part.len } else { part.len / BLOCK * BLOCK }, ..part };
        if part.len == 0 {
            return Ok(Err(Hindrance::Grown));
        }
        let blocks = part.len.next_multiple_of(BLOCK);
        let end = part.to + part.len;
        let grows = end > target.record.size;
        if waits(target, part.to, blocks) || (grows && target.growth_waits()) {
            return Ok(Err(Hindrance::Dirty(to)));
        }
        if grows && same.is_some() {
            // Cut since it was compared: what nobody sees any more would come back.
            return Ok(Err(Hindrance::Changed));
        }
        if target.record.inline.as_ref().is_some_and(|contents| !contents.is_empty()) {
            return Ok(Err(Hindrance::Inline));
        }
        if grows && target.record.flags & INODE_FLAG_STALE_TAIL != 0 {
            return Ok(Err(Hindrance::Tail));
        }
        self.own_first(&change, to, target, Owning::ToAdd)?;
        let mut record = match caller {
            Some(caller) => self.changed(caller, target),
            None => target.record_with_pending(),
        };
        record.inline = None;
        let mut tx = Transaction::new();
        let (view, path) = self.data_to_write(&change, &mut tx, &mut record)?;
        let of_source =
            if from == to { path.clone() } else { extents::path(&view, &before, self.sharing())? };
        if let Some((source, target)) = same {
            // Perhaps less is shared than was compared.
            let here = |path, at| places(&view, path, at, part.len);
            if here(&of_source, part.from)? != front(source, blocks)
                || here(&path, part.to)? != front(target, blocks)
            {
                return Ok(Err(Hindrance::Changed));
            }
        }
        let range = Range { from: part.from, to: part.to, len: blocks };
        let shared = version::share_range(&view, &mut tx, &of_source, &path, range, ENTRIES_PER_STEP)?;
        let bytes = shared.next.min(part.len);
        let reach = part.to + bytes;
        if reach >= record.size {
            // The last block is the source's, with what lies behind its end.
            let stale = before.flags & INODE_FLAG_STALE_TAIL != 0 && !reach.is_multiple_of(BLOCK);
            record.flags &= !INODE_FLAG_STALE_TAIL;
            record.flags |= if stale && !is(Planted::TailForgotten) { INODE_FLAG_STALE_TAIL } else { 0 };
            record.size = reach;
        }
        if caller.is_some() {
            self.drop_capability(&change, &mut tx, to, &mut record)?;
        }
        self.put_record(&change, &mut tx, to, target, &mut record)?;
        let size = record.size;
        let lsn = self.apply_freeing(tx, None, shared.reserved_freed)?;
        target.size = target.size.max(size);
        self.changed_to(&change, target, record);
        if let Some(observer) = &self.on_data_logged {
            observer(DataLogged { ino: to, offset: part.to, len: bytes, size, lsn });
        }
        Ok(Ok(bytes))
    }

    pub(crate) fn clone_range(
        &self,
        caller: Caller,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        len: u64,
    ) -> Result<()> {
        self.admit_beside(from, to)?;
        self.permit(to, Touch::Otherwise)?;
        let sizes = self.sizes(from, to)?;
        let len = if len == 0 { sizes[0].saturating_sub(from_offset) } else { len };
        let part = whole_blocks(sizes, Part { from: from_offset, to: to_offset, len }, from == to)?;
        if len == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < len {
            let rest = Part { from: part.from + done, to: part.to + done, len: len - done };
            let shared = self.share_part(Some(caller), from, to, rest, None)?;
            done += shared;
            if shared == 0 {
                // Small contents lie in the record: they are copied, and not the holes behind them.
                let in_record = self.read_lock(&self.state(from))?.record.inline.is_some();
                let piece = if in_record { rest.len.min(BLOCK) } else { rest.len };
                let goes_on = piece < rest.len;
                if goes_on {
                    // So that the copy is a transaction by itself below.
                    self.write_back(&self.state(to), Ride::Allowed)?;
                }
                let copied = self.copy_bytes(caller, (from, rest.from), (to, rest.to), piece)?;
                done += copied;
                if goes_on {
                    // What follows is shared, and in the log at once: if power fails then, this must be there, or a part of the
                    // range is done that is not its front.
                    self.write_back(&self.state(to), Ride::Allowed)?;
                }
                if copied == 0 || (done < len && !done.is_multiple_of(BLOCK)) {
                    // The source has been cut meanwhile.
                    return Err(FsError::Invalid);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn dedupe_range(
        &self,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        len: u64,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Deduped> {
        self.admit_beside(from, to)?;
        self.permit(to, Touch::Otherwise)?;
        let sizes = self.sizes(from, to)?;
        if to_offset.checked_add(len).is_none_or(|end| end > sizes[1]) {
            return Err(FsError::Invalid);
        }
        let part = whole_blocks(sizes, Part { from: from_offset, to: to_offset, len }, from == to)?;
        let (mut done, mut rounds, mut space) = (0, 0, Rounds::default());
        while done < len && rounds < ROUNDS_MAX && (done == 0 || go_on()) {
            let piece = (len - done).min(COMPARED_BYTES);
            let rest = Part { from: part.from + done, to: part.to + done, len: piece };
            let sizes = self.sizes(from, to)?;
            if rest.from + piece > sizes[0] || rest.to + piece > sizes[1] {
                // One of them has been cut meanwhile. What is read behind its end would be zeros.
                return if done > 0 { Ok(Deduped::Same(done)) } else { Err(FsError::Invalid) };
            }
            let looked = (self.read_range(from, rest.from, piece)?, self.read_range(to, rest.to, piece)?);
            let (Some(source), Some(target)) = looked else { break };
            let compared = if is(Planted::HalfCompared) { piece as usize / 2 } else { piece as usize };
            if source.bytes[..compared] != target.bytes[..compared] {
                return Ok(if done > 0 { Deduped::Same(done) } else { Deduped::Differs });
            }
            let (there, here) = (&source.places, &target.places);
            if there == here {
                // They share it already.
                (done, rounds) = (done + piece, 0);
                continue;
            }
            // A step may do less than a piece; what is left is compared again.
            match self.share_part(None, from, to, rest, Some((there, here))) {
                // An end that cannot be shared, as a rule: there is no more to try.
                Ok(0) if piece < BLOCK => break,
                Ok(0) => rounds += 1,
                Ok(shared) => (done, rounds, space) = (done + shared, 0, Rounds::default()),
                Err(FsError::Engine(EngineError::NoSpace)) if space.are_left() => {
                    // What is freed while these are kept stays theirs. Then they are compared again.
                    drop((source, target));
                    self.reclaim(&mut space)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Deduped::Same(done))
    }

    fn sizes(&self, from: InodeId, to: InodeId) -> Result<[u64; 2]> {
        let mut sizes = [0; 2];
        for (ino, size) in [from, to].into_iter().zip(&mut sizes) {
            let state = self.state(ino);
            let inner = self.read_lock(&state)?;
            require_file(&inner)?;
            *size = inner.size;
        }
        Ok(sizes)
    }

    /// Reads a range and where it is. What waits in memory is logged first; `None` if there is more all the time.
    fn read_range(&self, ino: InodeId, from: u64, len: u64) -> Result<Option<Looked>> {
        let state: Arc<InodeState> = self.state(ino);
        for _ in 0..ROUNDS_MAX {
            let (view, places) = {
                let inner = self.read_lock(&state)?;
                require_file(&inner)?;
                // What waits elsewhere in the file may be what takes its contents out of the record.
                let leaves_record = inner.record.inline.is_some() && !inner.pages.is_empty();
                if waits(&inner, from, len) || inner.growth_waits() || leaves_record {
                    drop(inner);
                    self.write_back(&state, Ride::Allowed)?;
                    continue;
                }
                if inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty()) {
                    return Err(FsError::NotSupported);
                }
                let view = self.view_of(ino)?;
                let path = extents::path(&view, &inner.record, self.sharing())?;
                let places = places(&view, &path, from, len)?;
                (view, places)
            };
            let mut bytes = AlignedBuf::new(len.next_multiple_of(BLOCK) as usize);
            for (offset, len, addr) in &places {
                if let Some(addr) = addr {
                    let at = *offset as usize;
                    self.store.read_data(*addr, &mut bytes[at..at + *len as usize])?;
                }
            }
            return Ok(Some(Looked { places, bytes, _view: view }));
        }
        Ok(None)
    }
}

/// Whether data of the range waits in memory.
fn waits(inner: &Inner, from: u64, len: u64) -> bool {
    inner.pages.map.range(from / BLOCK..(from + len).div_ceil(BLOCK)).next().is_some()
}

/// Where the pieces of a range are.
fn places(view: &View, path: &version::Path, from: u64, len: u64) -> Result<Places> {
    let pieces = version::resolve(view, path, from, from + len)?;
    let mut places: Places = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let addr = match piece.what {
            Mapping::Data { addr, .. } => Some(addr),
            Mapping::Hole | Mapping::Reserved => None,
        };
        match places.last_mut() {
            Some((_, len, None)) if addr.is_none() => *len += piece.len,
            _ => places.push((piece.offset - from, piece.len, addr)),
        }
    }
    Ok(places)
}

/// What of these lies in the first `len` bytes, which are whole blocks.
fn front(places: &Places, len: u64) -> Places {
    let pieces = places.iter().take_while(|(at, ..)| *at < len);
    pieces.map(|(at, of, addr)| (*at, (*of).min(len - at), *addr)).collect()
}

/// Checks what FICLONERANGE and FIDEDUPERANGE ask for: whole blocks inside the source, except that the end of the source
/// may become the end of the target.
fn whole_blocks(sizes: [u64; 2], part: Part, one_file: bool) -> Result<Part> {
    let Part { from, to, len } = part;
    let ends = [from, to].map(|offset| offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX));
    let [Some(from_end), Some(to_end)] = ends else { return Err(FsError::FileTooBig) };
    let at_end = from_end == sizes[0] && to_end >= sizes[1];
    let aligned =
        from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK) && (len.is_multiple_of(BLOCK) || at_end);
    let overlap = one_file && from < to_end.next_multiple_of(BLOCK) && to < from_end.next_multiple_of(BLOCK);
    if !aligned || from_end > sizes[0] || (overlap && len > 0) {
        return Err(FsError::Invalid);
    }
    Ok(part)
}
