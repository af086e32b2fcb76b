//! Reading ahead of who reads a large file in large pieces, one after the other.
//!
//! Past the kernel's cache one such read waits for the device, the checksums and the copy in turn, and the device waits
//! for the last two. So threads of their own ([`ReadAheadThreads`]) read what will be asked for next, several pieces at a
//! time, and whoever asks for one gets its buffer ([`Core::read_large`]).
//!
//! Invariants:
//! - What was read ahead is handed out only if under the file's lock its mapping is the one it was read by, and no page of
//!   that range is in memory: then a read of its own would give the same bytes.
//! - An error of reading ahead is nobody's: the piece is forgotten, and who asks for it reads it himself.
//! - Who waits for a piece waits for a thread that reads, holds nothing, and waits for nobody.
//!
//! Bounds: [`STREAMS_MAX`] files, each with [`PIECES_AHEAD`] pieces before the reader and [`PIECES_BEHIND`] that were
//! overtaken; [`FETCHING_MAX`] threads. Pieces of who has stopped reading are let go of by the background
//! ([`Streams::tire`]).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use varve_device::AlignedBuf;
use varve_engine::{BLOCK_BYTES, InodeId};

use crate::Result;
use crate::api::FILE_BYTES_MAX;
use crate::core::Core;
use crate::inode::InodeState;
use crate::ops::require_file;

/// Smaller reads are served as they come.
const PIECE_BYTES_MIN: u64 = 128 << 10;
/// Larger ones too: their device reads are long enough.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// Pieces read ahead of one reader: as many at once keep a fast disk busy while others are answered with.
const PIECES_AHEAD: u64 = 4;
/// Pieces kept that somebody who read ahead of them has overtaken.
const PIECES_BEHIND: u64 = 2;
/// Readers that are followed.
const STREAMS_MAX: usize = 4;
/// Threads that read ahead.
const FETCHING_MAX: usize = 4;
/// Buffers kept for the next pieces.
const SPARE_MAX: usize = 4;

/// A piece that has been read.
struct Fetched {
    buf: AlignedBuf,
    /// Bytes of it, fewer than asked for at the end of the file.
    count: usize,
    /// The file's when it was read.
    mapping: u64,
}

struct Piece {
    offset: u64,
    /// `None`: being read.
    fetched: Option<Fetched>,
}

/// Somebody who reads a file.
struct Stream {
    state: Weak<InodeState>,
    /// The end of what has been asked for, in bytes.
    next: u64,
    /// Bytes of the last read.
    len: u64,
    /// Whether the last read went on where one as long had ended.
    steady: bool,
    /// The end of what is read ahead or has been asked for.
    frontier: u64,
    pieces: Vec<Piece>,
    /// Rounds of the background since the last read.
    idle: u32,
}

#[derive(Default)]
struct Table {
    streams: Vec<Stream>,
    spare: Vec<AlignedBuf>,
    /// Of whom is to be read ahead, for the threads: each once, no more than [`STREAMS_MAX`].
    wanted: VecDeque<Weak<InodeState>>,
    /// Threads that read ahead, and those of them that have nothing to do.
    threads: usize,
    idle_threads: usize,
    stop: bool,
}

/// Who is read ahead of. A leaf in the lock order.
#[derive(Default)]
pub struct Streams {
    table: Mutex<Table>,
    /// A piece has been read, or will not be.
    arrived: Condvar,
    /// For the threads: somebody is to be read ahead of, or it is over.
    work: Condvar,
}

impl Table {
    fn of(&mut self, state: &Arc<InodeState>) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.state.as_ptr() == Arc::as_ptr(state))
    }

    /// Has a thread read ahead of this file if that is called for.
    fn want(&mut self, state: &Arc<InodeState>, work: &Condvar) {
        let wanted = self.wanted.iter().any(|other| other.as_ptr() == Arc::as_ptr(state));
        if self.threads > 0
            && !wanted
            && self.wanted.len() < STREAMS_MAX
            && self.of(state).is_some_and(|stream| stream.has_room())
        {
            self.wanted.push_back(Arc::downgrade(state));
            if self.idle_threads > 0 {
                work.notify_one();
            }
        }
    }

    fn keep(&mut self, buf: AlignedBuf) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buf);
        }
    }
}

impl Stream {
    /// Whether more is to be read ahead, as far as the file goes.
    fn has_room(&self) -> bool {
        self.steady
            && self.frontier + self.len <= self.next + PIECES_AHEAD * self.len
            && self.pieces.len() < (PIECES_AHEAD + PIECES_BEHIND) as usize
    }

    /// Notes a read.
    fn note(&mut self, offset: u64, len: u64) {
        let near = self.next.saturating_sub(PIECES_AHEAD * len)..=self.next + PIECES_AHEAD * len;
        self.idle = 0;
        if near.contains(&offset) {
            // Requests of one reader may overtake each other.
            self.steady = len == self.len;
            self.next = self.next.max(offset + len);
        } else {
            self.steady = false;
            self.next = offset + len;
            self.frontier = 0;
            self.pieces.clear();
        }
        self.len = len;
        if !self.frontier.abs_diff(offset).is_multiple_of(len) {
            // Pieces begin elsewhere than reads: none of them will be asked for.
            self.frontier = 0;
            self.pieces.retain(|piece| piece.fetched.is_none());
        }
        self.frontier = self.frontier.max(self.next);
        // What nobody has asked for in its turn.
        let next = self.next;
        self.pieces
            .retain(|piece| piece.fetched.is_none() || piece.offset + (PIECES_BEHIND + 1) * len >= next);
    }
}

impl Streams {
    /// Notes a read, and gives what has been read ahead at its beginning; waits for it if it is being read.
    fn begin(&self, state: &Arc<InodeState>, offset: u64, len: u64) -> Option<Fetched> {
        let mut table = self.table.lock();
        match table.of(state) {
            Some(stream) => stream.note(offset, len),
            None => {
                if table.streams.len() == STREAMS_MAX {
                    let tired = (0..STREAMS_MAX).max_by_key(|at| table.streams[*at].idle).unwrap_or(0);
                    table.streams.remove(tired);
                }
                let (state, next) = (Arc::downgrade(state), offset + len);
                let pieces = Vec::new();
                let stream = Stream { state, next, len, steady: false, frontier: next, pieces, idle: 0 };
                table.streams.push(stream);
            }
        }
        table.want(state, &self.work);
        loop {
            let stream = table.of(state)?;
            let at = stream.pieces.iter().position(|piece| piece.offset == offset)?;
            if stream.pieces[at].fetched.is_some() {
                return stream.pieces.swap_remove(at).fetched;
            }
            self.arrived.wait(&mut table);
        }
    }

    /// The next piece to be read ahead of whoever reads this file, if there is one: its offset, its length and a buffer. It is
    /// the caller's to read, and to hand over ([`Streams::end`]).
    fn claim(&self, state: &Arc<InodeState>, size: u64) -> Option<(u64, usize, AlignedBuf)> {
        let mut table = self.table.lock();
        let stop = table.stop;
        let stream = table.of(state)?;
        let (offset, len) = (stream.frontier, stream.len);
        if stop || !stream.has_room() || offset >= size {
            return None;
        }
        stream.frontier = offset + len;
        stream.pieces.push(Piece { offset, fetched: None });
        if offset + len < size {
            table.want(state, &self.work);
        }
        let spare = table.spare.pop();
        drop(table);
        let len = len as usize;
        let buf = spare.filter(|buf| buf.len() >= len).unwrap_or_else(|| AlignedBuf::new(len));
        Some((offset, len, buf))
    }

    /// Whether others wait for a thread; then this file waits behind them.
    fn others_wait(&self, state: &Arc<InodeState>) -> bool {
        let mut table = self.table.lock();
        let others = table.wanted.iter().any(|other| other.as_ptr() != Arc::as_ptr(state));
        if others {
            table.want(state, &self.work);
        }
        others
    }

    /// A claimed piece has been read, or could not be.
    fn end(&self, state: &Arc<InodeState>, offset: u64, fetched: Option<Fetched>) {
        let mut table = self.table.lock();
        if let Some(stream) = table.of(state)
            && let Some(at) = stream.pieces.iter().position(|p| p.offset == offset && p.fetched.is_none())
        {
            match fetched {
                Some(fetched) => stream.pieces[at].fetched = Some(fetched),
                None => drop(stream.pieces.swap_remove(at)),
            }
        }
        drop(table);
        self.arrived.notify_all();
    }

    /// A round of the background: forgets who has not read since the one before the last.
    pub(crate) fn tire(&self) {
        let mut table = self.table.lock();
        for stream in &mut table.streams {
            stream.idle += 1;
        }
        table.streams.retain(|stream| stream.idle <= 2);
        let spare = if table.streams.is_empty() { std::mem::take(&mut table.spare) } else { Vec::new() };
        drop(table);
        drop(spare);
        // Who waited for a piece of a file that is forgotten.
        self.arrived.notify_all();
    }
}

/// A piece that this thread reads. If that ends without one, a panic included, whoever waits for it is told.
struct Claim<'a> {
    streams: &'a Streams,
    state: &'a Arc<InodeState>,
    offset: u64,
    fetched: Option<Fetched>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.streams.end(self.state, self.offset, self.fetched.take());
    }
}

fn is_large(len: usize) -> bool {
    (PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(&(len as u64)) && len.is_multiple_of(BLOCK_BYTES)
}

impl Core {
    /// As [`Core::read_into`] for the first `len` bytes of `buf`, which may become another buffer, as long at least.
    pub(crate) fn read_large(
        &self,
        ino: InodeId,
        offset: u64,
        len: usize,
        buf: &mut AlignedBuf,
    ) -> Result<usize> {
        // Farther on nothing can be, and offsets could overflow.
        if is_large(len) && offset < FILE_BYTES_MAX && offset.is_multiple_of(BLOCK_BYTES as u64) {
            let state = self.state(ino);
            if let Some(mut fetched) = self.streams.begin(&state, offset, len as u64) {
                let inner = self.read_lock(&state)?;
                require_file(&inner)?;
                let count = inner.size.saturating_sub(offset).min(len as u64) as usize;
                let end = offset + len as u64;
                let pages = offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64);
                let same = inner.mapping == fetched.mapping && inner.pages.has_none(pages);
                drop(inner);
                let hit = same && count <= fetched.count && fetched.buf.len() >= len;
                if hit {
                    std::mem::swap(buf, &mut fetched.buf);
                }
                self.streams.table.lock().keep(fetched.buf);
                if hit {
                    return Ok(count);
                }
            }
        }
        self.read_into(ino, offset, &mut buf[..len])
    }

    /// Reads what whoever reads this file will ask for next, if it looks like that; until others are to be read ahead of.
    pub(crate) fn read_ahead(&self, state: &Arc<InodeState>) {
        loop {
            let size = state.inner.read().size;
            // Each piece moves the frontier, which stops ahead of what has been asked for.
            let Some((offset, len, mut buf)) = self.streams.claim(state, size) else { return };
            let mut claim = Claim { streams: &self.streams, state, offset, fetched: None };
            if let Ok(Some((count, mapping))) = self.fetch(state, offset, &mut buf[..len]) {
                claim.fetched = Some(Fetched { buf, count, mapping });
            }
            drop(claim);
            if self.streams.others_wait(state) {
                return;
            }
        }
    }

    /// Reads logged data. `None`: some of it is not logged.
    fn fetch(&self, state: &Arc<InodeState>, offset: u64, out: &mut [u8]) -> Result<Option<(usize, u64)>> {
        let inner = self.read_lock(state)?;
        require_file(&inner)?;
        let count = inner.size.saturating_sub(offset).min(out.len() as u64) as usize;
        let pages = offset / BLOCK_BYTES as u64..(offset + out.len() as u64).div_ceil(BLOCK_BYTES as u64);
        if count == 0 || !inner.pages.has_none(pages) {
            return Ok(None);
        }
        let (plan, mapping) = (self.plan_read(state.ino, &inner, offset, &mut out[..count])?, inner.mapping);
        drop(inner);
        self.run_plan(plan, out, count)?;
        Ok(Some((count, mapping)))
    }
}

/// The threads that read ahead. Dropping it waits for their end.
pub struct ReadAheadThreads {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl ReadAheadThreads {
    /// Starts them.
    pub(crate) fn start(core: &Arc<Core>) -> ReadAheadThreads {
        let start = |_| {
            let core = core.clone();
            let run = move || {
                while let Some(state) = core.streams.next_wanted() {
                    core.read_ahead(&state);
                }
            };
            std::thread::Builder::new().name("varve-readahead".into()).spawn(run)
        };
        let threads = (0..FETCHING_MAX).map(start).map_while(|thread| {
            thread.inspect_err(|error| tracing::warn!(%error, "no thread for reading ahead")).ok()
        });
        let threads: Vec<_> = threads.collect();
        core.streams.table.lock().threads = threads.len();
        ReadAheadThreads { threads, core: core.clone() }
    }
}

impl Drop for ReadAheadThreads {
    fn drop(&mut self) {
        self.core.streams.table.lock().stop = true;
        self.core.streams.work.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads ahead panicked");
            }
        }
    }
}

impl Streams {
    /// For a thread: waits until somebody is to be read ahead of. `None`: it is over.
    fn next_wanted(&self) -> Option<Arc<InodeState>> {
        let mut table = self.table.lock();
        loop {
            if table.stop {
                return None;
            }
            match table.wanted.pop_front().map(|state| state.upgrade()) {
                Some(Some(state)) => return Some(state),
                Some(None) => {}
                None => {
                    table.idle_threads += 1;
                    self.work.wait(&mut table);
                    table.idle_threads -= 1;
                }
            }
        }
    }
}

#[cfg(feature = "internals")]
impl Streams {
    /// Readers followed, and bytes read ahead of them.
    pub fn held(&self) -> (usize, usize) {
        self.table.lock().held()
    }

    /// Waits, not for ever, until so many bytes are held. Now and then `again` asks for the last piece once more: a reader
    /// that was kept waiting has been forgotten by the background.
    pub fn comes_to_hold(&self, bytes: usize, again: &mut dyn FnMut()) -> bool {
        let wait = std::time::Duration::from_secs(1);
        for _ in 0..120 {
            let mut table = self.table.lock();
            while table.held().1 < bytes {
                if self.arrived.wait_for(&mut table, wait).timed_out() {
                    break;
                }
            }
            if table.held().1 >= bytes {
                return true;
            }
            drop(table);
            again();
        }
        false
    }
}

#[cfg(feature = "internals")]
impl Table {
    fn held(&self) -> (usize, usize) {
        let bytes = |piece: &Piece| piece.fetched.as_ref().map_or(0, |fetched| fetched.buf.len());
        (self.streams.len(), self.streams.iter().flat_map(|stream| &stream.pieces).map(bytes).sum())
    }
}
