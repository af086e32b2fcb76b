//! Writing into memory, with space set aside.
//!
//! The order: see which pages become dirty and which of them need their other bytes; set the space aside and read those
//! bytes, holding no lock; then lock, see that nothing has changed, and copy. A retry means that somebody else has made
//! progress.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_engine::{BLOCK_BYTES, EngineError, InodeId, Reservation};
use varve_format::record::inode::{INLINE_BYTES_MAX, INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL, InodeKind};

use super::flags::Touch;
use super::float::{FLOAT_WAITS, Floating};
use super::read::ReadPlan;
use super::{require_file, without_set_ids};
use crate::api::{Caller, FILE_BYTES_MAX};
use crate::core::{Core, Rounds};
use crate::inode::{Inner, InodeState, Turn};
use crate::writeback::buffers::{CHUNK_BYTES_MIN, Chunk};
use crate::writeback::pages::{PageBuf, zero_page};
use crate::writeback::{ENTRIES_PER_PAGE, ENTRY_BYTES, Ride, reserve, reserve_more};
use crate::{FsError, Result};

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most bytes of a first write whose pages lie side by side in memory though they fill no chunk.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Most runs that a write begins: its own, what moves out of the inode record, and the tail of the old end.
pub(super) const RUNS_MAX: u64 = 3;

/// Pages of a write that have been copied already, and the first one's number.
type Filled = (u64, Arc<Chunk>);

/// What a write does to a file's pages.
#[derive(PartialEq, Eq, Debug)]
pub struct WritePlan {
    /// Pages that become dirty, or need space again.
    pub(super) fresh: u64,
    /// How many of these begin a run: none beside them waits.
    pub(super) runs: u64,
    /// Pages that need the bytes they have now.
    bases: Vec<u64>,
    /// Pages that become dirty though nothing is written to them: what moves out of the inode record, and the tail of
    /// the old end.
    pub(super) extra: Vec<u64>,
    /// Whether the file has no dirty page yet.
    pub(super) first: bool,
}

pub(super) fn plan(inner: &Inner, offset: u64, len: usize) -> WritePlan {
    let end = offset + len as u64;
    let pages = &inner.pages;
    let (begin, stop) = if len == 0 { (0, 0) } else { (offset / BLOCK, end.div_ceil(BLOCK)) };
    let mut out =
        WritePlan { fresh: 0, runs: 0, bases: Vec::new(), extra: Vec::new(), first: pages.dirty == 0 };
    let have_space = pages.map.range(begin.saturating_sub(1)..stop + 1).filter(|(_, page)| page.has_space());
    let (mut have, mut beside) = (0, false);
    for (index, _) in have_space {
        have += u64::from((begin..stop).contains(&index));
        beside = true;
    }
    out.fresh = (stop - begin) - have;
    out.runs = u64::from(out.fresh > 0 && !beside);
    // The first page and, if it is another one, the last.
    let edges = [(begin < stop).then_some(begin), (begin + 1 < stop).then(|| stop - 1)];
    for index in edges.into_iter().flatten() {
        let (from, to) = (index * BLOCK, (index + 1) * BLOCK);
        let covered = offset <= from && end >= to.min(inner.record.size);
        if !covered && from < inner.record.size && !pages.map.contains_key(index) {
            out.bases.push(index);
        }
    }
    let mut also = |index: u64| {
        if !(begin..stop).contains(&index) && !pages.map.contains_key(index) && !out.extra.contains(&index) {
            out.fresh += 1;
            out.runs += 1;
            out.bases.push(index);
            out.extra.push(index);
        }
    };
    let leaves_record = end.max(inner.size) > INLINE_BYTES_MAX as u64
        && inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty());
    // Without anything to write, this is asked for by fallocate: reservations need extents.
    let makes_room = len == 0
        && inner.record.flags & INODE_FLAG_RESERVED != 0
        && inner.record.inline.as_ref().is_some_and(|contents| !contents.is_empty());
    if (leaves_record && len > 0) || makes_room {
        also(0);
    }
    if inner.record.flags & INODE_FLAG_STALE_TAIL != 0 && end > inner.record.size {
        also(inner.record.size / BLOCK);
    }
    out
}

/// So often what a write has read of the file may be out of date when it comes back with the lock. From then on it keeps others from
/// logging the file meanwhile.
const OUTDATED_READS_MAX: u32 = 8;

impl Core {
    pub(crate) fn write(&self, caller: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_from(caller, ino, offset, data, None, Rounds::default())
    }

    /// [`Core::write`] of the first `len` bytes of `buf`, which becomes dirty data as it is where that is possible. Logs
    /// frozen files itself ([`Core::thawing`]).
    pub(crate) fn write_owned(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<usize> {
        // Once, whatever comes of it: what is tried again is tried with the same bytes.
        let chunk = self.adopt(ino, offset, buf, len);
        let data = chunk.as_ref().map_or(&buf[..len], |chunk| &chunk.buf()[..len]);
        self.thawing(|| self.write_from(caller, ino, offset, data, chunk.as_ref(), Rounds::default()))
    }

    /// Makes a chunk of a writer's buffer, where it may be one.
    pub(super) fn adopt(
        &self,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Option<Arc<Chunk>> {
        let whole = offset.is_multiple_of(BLOCK) && FILE_BYTES_MAX.saturating_sub(offset) >= len as u64;
        let pages = || offset / BLOCK..(offset + len as u64) / BLOCK;
        let takes =
            whole && self.buffers.takes(buf, len) && self.state(ino).inner.read().pages.has_none(pages());
        takes.then(|| self.buffers.adopt(buf, len))
    }

    /// `chunk`: the whole pages of `data`, which begins at a page then, lie in there already. `rounds`: of looking for space, if it is short.
    pub(super) fn write_from(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        data: &[u8],
        chunk: Option<&Arc<Chunk>>,
        rounds: Rounds,
    ) -> Result<usize> {
        self.admit(ino)?;
        self.permit(ino, Touch::Write(offset))?;
        // What is written over waits in memory already, and would be taken without a look at the store.
        self.require_running()?;
        let state = self.state(ino);
        state.wait_while_still();
        self.require_room(&state)?;
        let empty = data.is_empty();
        let data = &data[..data.len().min(FILE_BYTES_MAX.saturating_sub(offset) as usize)];
        let chunks = match chunk {
            Some(chunk) => vec![(offset / BLOCK, chunk.clone())],
            None => self.fill_chunks(&state, offset, data),
        };
        let large = !chunks.is_empty() && self.is_long(offset + data.len() as u64);
        if !self.write_at_once(caller, &state, offset, data, &chunks)? {
            require_file(&*self.read_lock(&state)?)?;
            if empty {
                return Ok(0);
            }
            if offset >= FILE_BYTES_MAX {
                return Err(FsError::FileTooBig);
            }
            let mut written = 0;
            while written < data.len() {
                let (at, rest) = (offset + written as u64, &data[written..]);
                match self.write_pages(caller, &state, None, at, rest, &chunks, rounds) {
                    Ok(part) => {
                        written += part.len;
                        if !part.goes_on {
                            break;
                        }
                    }
                    Err(error) if written == 0 => return Err(error),
                    // What is written is not written twice: a snapshot may show it.
                    Err(FsError::Frozen(_)) if self.write_back(&state, Ride::Allowed).is_ok() => {}
                    // Who writes on hears of it.
                    Err(_) => break,
                }
            }
            self.throttle(large)?;
            return Ok(written);
        }
        self.throttle(large)?;
        Ok(data.len())
    }

    /// Copies what a write has in whole pages into chunks, without the file's lock: others read, and its pages are logged,
    /// meanwhile. Chunks are for places where no page is; what has become of those until they are put there is looked at
    /// again ([`Core::install`]).
    fn fill_chunks(&self, state: &InodeState, offset: u64, data: &[u8]) -> Vec<Filled> {
        let mut filled = Vec::new();
        if data.len() < CHUNK_BYTES_MIN {
            return filled;
        }
        let (mut index, stop) = (offset.div_ceil(BLOCK), (offset + data.len() as u64) / BLOCK);
        if index >= stop || !state.inner.read().pages.has_none(index..stop) {
            return filled;
        }
        while let Some(chunk) =
            self.buffers.chunk(&data[(index * BLOCK - offset) as usize..(stop * BLOCK - offset) as usize])
        {
            let pages = chunk.pages() as u64;
            filled.push((index, chunk));
            index += pages;
        }
        filled
    }

    /// The common case under one lock: no bytes of the file are needed, and the space is there. False if it is another
    /// case, and nothing has changed.
    fn write_at_once(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        offset: u64,
        data: &[u8],
        chunks: &[Filled],
    ) -> Result<bool> {
        if data.is_empty() {
            return Ok(false);
        }
        let mut inner = self.write_lock(state)?;
        let now = plan(&inner, offset, data.len());
        if inner.record.kind != InodeKind::File || inner.record.xattr_count > 0 || !now.bases.is_empty() {
            return Ok(false);
        }
        let pages = &mut inner.pages;
        if now.fresh > 0
            && !reserve_more(&self.store, &mut pages.reservation, now.fresh, now.runs, now.first)?
        {
            return Ok(false);
        }
        self.install(caller, state, &mut inner, offset, data, &now, &[], chunks, Space::default());
        Ok(true)
    }

    /// Makes the page dirty that holds the end of the file, if its tail on the device is stale, so that the file can
    /// grow to `size`.
    pub(crate) fn dirty_tail(&self, turn: &Turn, size: u64) -> Result<()> {
        self.write_pages(Caller::ROOT, turn.state(), Some(turn), size, &[], &[], Rounds::none()).map(drop)
    }

    /// Writes zeros to part of a file.
    pub(super) fn write_zeros(&self, caller: Caller, turn: &Turn, offset: u64, len: usize) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            done += self.write_some_zeros(caller, turn, at, len - done, Rounds::none())?;
        }
        Ok(())
    }

    /// As many of them as find space.
    pub(super) fn write_some_zeros(
        &self,
        caller: Caller,
        turn: &Turn,
        offset: u64,
        len: usize,
        rounds: Rounds,
    ) -> Result<usize> {
        let zeros = vec![0; len];
        Ok(self.write_pages(caller, turn.state(), Some(turn), offset, &zeros, &[], rounds)?.len)
    }

    /// Whoever holds the file's turn passes it, and is refused for lack of space without anything having been brought
    /// home: that waits for turns, this file's among them. His caller does it when the turn has ended
    /// ([`Core::with_space`]).
    #[expect(clippy::too_many_arguments, reason = "what a write is, and how hard space is looked for")]
    fn write_pages(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        turn: Option<&Turn>,
        offset: u64,
        data: &[u8],
        chunks: &[Filled],
        rounds: Rounds,
    ) -> Result<Written> {
        let at_once = rounds.at_once || turn.is_none() && !rounds.are_left();
        let mut space = Space { rounds, at_once, ..Space::default() };
        let mut len = data.len();
        let (mut outdated, mut goes_on) = (0, false);
        // Of those who wait for what floats, the first has what comes back.
        let (mut waits, mut waited) = (None, 0);
        let waits_max = if at_once { 1 } else { FLOAT_WAITS };
        loop {
            // While this is held nothing of the file is logged, so that what is read stays where it is.
            let held = (outdated >= OUTDATED_READS_MAX && turn.is_none()).then(|| state.turn());
            let (wanted, layout, attributed, reads) = {
                let inner = self.read_lock(state)?;
                let wanted = plan(&inner, offset, len);
                let mut reads: Vec<(u64, PageBuf, ReadPlan)> = Vec::with_capacity(wanted.bases.len());
                for index in &wanted.bases {
                    let mut page = zero_page();
                    let read = self.plan_read(state.ino, &inner, index * BLOCK, page.make_mut())?;
                    reads.push((*index, page, read));
                }
                (wanted, inner.layout(), len > 0 && inner.record.xattr_count > 0, reads)
            };
            if !space.covers(&wanted) && !self.widen_at_once(&mut space, &wanted)? {
                let barred = waits.is_none() && waited == 0 && turn.is_none() && self.float_queue.is_locked();
                match self.float(state, &mut space, offset, len, barred)? {
                    Floating::Upto(part) => {
                        goes_on |= part < len;
                        len = part;
                        continue;
                    }
                    Floating::Later
                        if turn.is_none()
                            && waited < waits_max
                            && !(at_once && self.begins_reserved(state, offset, len)?) =>
                    {
                        drop((held, reads));
                        space = Space { rounds: space.rounds, at_once, ..Space::default() };
                        waits.get_or_insert_with(|| self.float_queue.lock());
                        // Who has waited for others looks once more: it may be there.
                        if !barred {
                            self.bring_back(state, waited)?;
                            waited += 1;
                        }
                        continue;
                    }
                    // Nobody waits for who looks for other space.
                    Floating::Never | Floating::Later => waits = None,
                }
                match self.widen(&mut space, &wanted) {
                    Ok(()) => {}
                    Err(EngineError::NoSpace) if space.rounds.are_left() => {
                        drop(held);
                        // What it would read keeps what others free.
                        drop(reads);
                        // What it had is given back first.
                        space = Space { rounds: space.rounds, at_once, ..Space::default() };
                        self.reclaim(&mut space.rounds)?;
                        continue;
                    }
                    Err(EngineError::NoSpace) if !space.asked_reserved => {
                        space.asked_reserved = true;
                        drop((held, reads));
                        // A page must not be paid for by what is set aside for another one that is refused then.
                        len = self.use_reserved(state, &mut space, offset, len)?;
                        continue;
                    }
                    Err(EngineError::NoSpace) if turn.is_none() && !at_once && space.runs < wanted.runs => {
                        // All that waited has been written back, and its nodes were given back: the last blocks of a pool are not
                        // refused to anybody for the sake of one more.
                        space.runs = wanted.runs;
                        continue;
                    }
                    Err(EngineError::NoSpace) => {
                        drop((held, reads));
                        len = self.shorten(state, &mut space, offset, len, &wanted)?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let mut bases: Vec<(u64, PageBuf)> = Vec::with_capacity(reads.len());
            for (index, mut page, read) in reads {
                self.run_reads(read, page.make_mut())?;
                bases.push((index, page));
            }
            // Of a file that has attributes one of them may have to go first.
            let change = if attributed { Some(self.change(state.ino)?) } else { None };
            let mut inner = self.write_lock(state)?;
            let now = plan(&inner, offset, len);
            let have_bases = now.bases.iter().all(|index| bases.iter().any(|(i, _)| i == index));
            let moved = inner.layout() != layout && !now.bases.is_empty();
            let is_attributed = len > 0 && inner.record.xattr_count > 0;
            if !space.covers(&now) || !have_bases || moved || (is_attributed && change.is_none()) {
                outdated += 1;
                continue;
            }
            if let Some(change) = change {
                match self.drop_capability_first(&change, state.ino, &mut inner) {
                    Err(FsError::Engine(EngineError::NoSpace)) if space.rounds.are_left() => {
                        drop((inner, change, held));
                        waits = None;
                        space = Space { rounds: space.rounds, at_once, ..Space::default() };
                        self.reclaim(&mut space.rounds)?;
                        continue;
                    }
                    dropped => dropped?,
                }
            }
            self.install(caller, state, &mut inner, offset, &data[..len], &now, &bases, chunks, space);
            return Ok(Written { len, goes_on });
        }
    }

    /// Copies the bytes into the pages. Cannot fail.
    #[expect(clippy::too_many_arguments, reason = "the last step of one procedure, apart for its length")]
    fn install(
        &self,
        caller: Caller,
        state: &Arc<InodeState>,
        inner: &mut Inner,
        offset: u64,
        data: &[u8],
        plan: &WritePlan,
        bases: &[(u64, PageBuf)],
        chunks: &[Filled],
        mut space: Space,
    ) {
        let base = |index: u64| bases.iter().find(|(i, _)| *i == index).map(|(_, page)| page);
        let (mut added, mut fresh) = (0, 0);
        let mut count = |new: u64, dirty: u64| {
            added += new;
            fresh += dirty;
        };
        for index in &plan.extra {
            let (new, dirty) = inner.pages.write(*index, 0, &[], base(*index));
            count(u64::from(new), u64::from(dirty));
        }
        let mut chunks = chunks.iter().peekable();
        let mut done = 0;
        if offset.is_multiple_of(BLOCK)
            && (BLOCK_BYTES + 1..=SMALL_BYTES_MAX).contains(&data.len())
            && inner.pages.is_empty()
            && plan.bases.is_empty()
        {
            // A small file: side by side at once, as its pages will be written.
            let chunk = self.buffers.small_chunk(data);
            inner.pages.insert_chunk(offset / BLOCK, &chunk);
            count(chunk.pages() as u64, chunk.pages() as u64);
            done = data.len();
        }
        while done < data.len() {
            let at = offset + done as u64;
            let (index, from) = (at / BLOCK, (at % BLOCK) as usize);
            while chunks.next_if(|(first, _)| *first < index).is_some() {}
            if let Some((first, chunk)) = chunks.peek()
                && *first == index
                && chunk.pages() * BLOCK_BYTES <= data.len() - done
                && inner.pages.has_none(index..index + chunk.pages() as u64)
            {
                inner.pages.insert_chunk(index, chunk);
                count(chunk.pages() as u64, chunk.pages() as u64);
                done += chunk.pages() * BLOCK_BYTES;
                continue;
            }
            let bytes = &data[done..data.len().min(done + BLOCK_BYTES - from)];
            let (new, dirty) = inner.pages.write(index, from, bytes, base(index));
            count(u64::from(new), u64::from(dirty));
            done += bytes.len();
        }
        debug_assert_eq!(fresh, plan.fresh);
        self.dirty.pages_added(added);
        if let Some(mut reservation) = space.reservation.take() {
            let over = space.pages - fresh;
            if over > 0 {
                self.store.hand_back(&mut reservation, over, over * ENTRIES_PER_PAGE, ENTRY_BYTES);
            }
            match &mut inner.pages.reservation {
                Some(mine) => self.store.merge(mine, reservation),
                mine @ None => *mine = Some(reservation),
            }
        }
        if inner.pages.dirty > 0 {
            self.enlist(state, inner);
        }
        if data.is_empty() {
            return;
        }
        inner.size = inner.size.max(offset + data.len() as u64);
        let now = self.now();
        (inner.pending.mtime, inner.pending.ctime) = (Some(now), Some(now));
        let mode = inner.mode();
        if caller.uid != 0 && without_set_ids(mode) != mode {
            inner.pending.mode = Some(without_set_ids(mode));
        }
    }

    /// Sets aside what `space` lacks for `wanted`, if it is there at once.
    fn widen_at_once(&self, space: &mut Space, wanted: &WritePlan) -> Result<bool> {
        let (pages, runs, first) = space.lacks(wanted);
        let found = reserve_more(&self.store, &mut space.reservation, pages, runs, first)?;
        if found {
            space.now_has(pages, runs, first);
        }
        Ok(found)
    }

    /// Sets aside what `space` lacks for `wanted`.
    fn widen(&self, space: &mut Space, wanted: &WritePlan) -> std::result::Result<(), EngineError> {
        let (pages, runs, first) = space.lacks(wanted);
        let more = self.set_aside(space, pages, runs, first)?;
        self.add(space, more, (pages, runs, first));
        Ok(())
    }

    fn set_aside(
        &self,
        space: &Space,
        pages: u64,
        runs: u64,
        first: bool,
    ) -> std::result::Result<Reservation, EngineError> {
        if !space.at_once {
            return reserve(&self.store, pages, runs, first);
        }
        let mut found = None;
        reserve_more(&self.store, &mut found, pages, runs, first)?;
        found.ok_or(EngineError::NoSpace)
    }

    /// `has`: pages, runs, and whether the first page of a file.
    pub(super) fn add(&self, space: &mut Space, more: Reservation, has: (u64, u64, bool)) {
        match &mut space.reservation {
            Some(mine) => self.store.merge(mine, more),
            mine @ None => *mine = Some(more),
        }
        space.now_has(has.0, has.1, has.2);
    }

    /// Space is short and nothing can be brought home: takes what there is, in halving steps, and gives the length of
    /// the write that fits. Refuses when not even one more page does.
    fn shorten(
        &self,
        state: &InodeState,
        space: &mut Space,
        offset: u64,
        len: usize,
        wanted: &WritePlan,
    ) -> Result<usize> {
        let mut step = wanted.fresh.next_power_of_two();
        while step > 1 {
            step /= 2;
            if space.pages + step >= wanted.fresh {
                continue;
            }
            let (_, runs, first) = space.lacks(wanted);
            match self.set_aside(space, step, runs, first) {
                Ok(more) => self.add(space, more, (step, runs, first)),
                Err(EngineError::NoSpace) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let inner = self.read_lock(state)?;
        let mut shorter = len;
        while shorter > 0 {
            // Down to the page boundary before.
            shorter = ((offset + shorter as u64 - 1) / BLOCK * BLOCK).saturating_sub(offset) as usize;
            if shorter > 0 && space.covers(&plan(&inner, offset, shorter)) {
                return Ok(shorter);
            }
        }
        Err(EngineError::NoSpace.into())
    }
}

/// What has become of a write.
struct Written {
    /// Bytes from its beginning on.
    len: usize,
    /// Whether the rest is to be tried at once.
    goes_on: bool,
}

/// Space set aside for a write that has not happened yet.
#[derive(Default)]
pub struct Space {
    reservation: Option<Reservation>,
    pages: u64,
    runs: u64,
    first: bool,
    rounds: Rounds,
    /// Only what is there at once is taken: somebody has just looked for more.
    at_once: bool,
    asked_reserved: bool,
}

impl Space {
    fn covers(&self, plan: &WritePlan) -> bool {
        self.pages >= plan.fresh && self.runs >= plan.runs && (self.first || !plan.first || plan.fresh == 0)
    }

    /// What is missing for `plan`: pages, runs, and whether the first page of a file.
    pub(super) fn lacks(&self, plan: &WritePlan) -> (u64, u64, bool) {
        let (pages, runs) = (plan.fresh.saturating_sub(self.pages), plan.runs.saturating_sub(self.runs));
        (pages, runs, plan.first && !self.first)
    }

    fn now_has(&mut self, pages: u64, runs: u64, first: bool) {
        self.pages += pages;
        self.runs += runs;
        self.first |= first;
    }
}
