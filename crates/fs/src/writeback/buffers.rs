//! Memory of large writes, used again and again.
//!
//! A fresh buffer of some hundred KiB costs more than filling it: the allocator returns it to the kernel each time, and
//! the kernel clears every page of the next one. There are two kinds: buffers in which small pages are gathered for one
//! large write to the device, and chunks, in which the whole pages of a large write wait until they are written from
//! where they lie ([`super::pages::PageBuf`]). A chunk is filled by copying, or was the writer's own buffer, who gets a
//! spare one for it.
//!
//! Bound: [`GATHER_SPARE_MAX`] buffers are kept, and of chunks so many that, with those in use, they are no more than may
//! be dirty; [`IDLE_BYTES_MAX`] when nothing is dirty, and none while nothing was for long ([`Buffers::tire`]).

use std::sync::Arc;

use parking_lot::Mutex;
use varve_device::{AlignedBuf, SharedPage};
use varve_engine::BLOCK_BYTES;

use super::PIECE_PAGES_MAX;

/// Buffers kept for gathering: as many as are used at once, two being written and one being filled or logged.
const GATHER_SPARE_MAX: usize = 3;
/// Bytes of chunks kept when nothing is dirty: about what a stream of large writes has in use, which often goes on, or is
/// followed by the next, after some seconds.
const IDLE_BYTES_MAX: u64 = 32 << 20;
/// Rounds of the background for which they are.
const IDLE_ROUNDS_MAX: u32 = 60;
/// Pages of a chunk, largest first. A write is cut into these; what is left is too small to gain by it.
const CHUNK_PAGES: [usize; 4] = [CHUNK_PAGES_MAX, 128, 64, 32];
/// Pages of the largest.
pub(super) const CHUNK_PAGES_MAX: usize = 256;

/// Bytes of the smallest of these: writes of less have none, but for small ones ([`Buffers::small_chunk`]).
pub(crate) const CHUNK_BYTES_MIN: usize = CHUNK_PAGES[CHUNK_PAGES.len() - 1] * BLOCK_BYTES;

/// The buffers nobody uses just now.
pub struct Buffers {
    gather: Mutex<Vec<AlignedBuf>>,
    chunks: Arc<SpareChunks>,
}

impl Buffers {
    /// None yet. Chunks, spare and in use, are no more than this many bytes, if not more are in use.
    pub(crate) fn new(chunk_bytes_max: u64) -> Buffers {
        let chunks = SpareChunks { bytes_max: chunk_bytes_max, kept: Mutex::default() };
        Buffers { gather: Mutex::default(), chunks: Arc::new(chunks) }
    }

    /// A buffer of [`PIECE_PAGES_MAX`] pages. What it holds is anything that was written before.
    pub(crate) fn take(&self) -> AlignedBuf {
        let spare = self.gather.lock().pop();
        spare.unwrap_or_else(|| AlignedBuf::new(PIECE_PAGES_MAX * BLOCK_BYTES))
    }

    /// Gives one back.
    pub(crate) fn give(&self, buf: AlignedBuf) {
        let mut spare = self.gather.lock();
        if spare.len() < GATHER_SPARE_MAX {
            spare.push(buf);
        }
    }

    /// Copies as much of the beginning of `bytes`, whole pages, as fills a chunk. `None`: there is too little.
    pub(crate) fn chunk(&self, bytes: &[u8]) -> Option<Arc<Chunk>> {
        let size = CHUNK_PAGES.iter().position(|pages| pages * BLOCK_BYTES <= bytes.len())?;
        let len = CHUNK_PAGES[size] * BLOCK_BYTES;
        let mut buf = self.chunks.take(size).unwrap_or_else(|| AlignedBuf::new(len));
        buf.copy_from_slice(&bytes[..len]);
        Some(Arc::new(Chunk {
            buf: Arc::new(buf),
            pages: CHUNK_PAGES[size],
            size: Some(size),
            home: self.chunks.clone(),
        }))
    }

    /// Copies all of `bytes` into a chunk of its own size, with zeros to the end of its last page.
    pub(crate) fn small_chunk(&self, bytes: &[u8]) -> Arc<Chunk> {
        let buf = Arc::new(AlignedBuf::from_slice(bytes));
        Arc::new(Chunk { pages: buf.len() / BLOCK_BYTES, buf, size: None, home: self.chunks.clone() })
    }

    /// Whether a buffer like this may become a chunk whose first pages are those of `len` bytes: it has the size of one, and
    /// is mostly full, so that what counts as dirty is hardly less than what it takes.
    pub(crate) fn takes(&self, buf: &AlignedBuf, len: usize) -> bool {
        size_of_buffer(buf).is_some() && len <= buf.len() && len >= buf.len() / 4 * 3
    }

    /// Makes a chunk of a buffer that [`Buffers::takes`], without copying it, and leaves another of its size in its place,
    /// which holds anything.
    pub(crate) fn adopt(&self, buf: &mut AlignedBuf, len: usize) -> Arc<Chunk> {
        let size = size_of_buffer(buf).expect("it is one that is taken");
        let other = self.chunks.take(size).unwrap_or_else(|| AlignedBuf::new(buf.len()));
        let buf = Arc::new(std::mem::replace(buf, other));
        Arc::new(Chunk { buf, pages: len / BLOCK_BYTES, size: Some(size), home: self.chunks.clone() })
    }

    /// Bytes of the chunks that somebody uses.
    #[cfg(feature = "internals")]
    pub fn chunk_bytes_in_use(&self) -> u64 {
        self.chunks.kept.lock().in_use
    }

    /// A round of the background has found nothing dirty: lets go of what is more than the next large writes are likely to
    /// need, and of all when there have been none for [`IDLE_ROUNDS_MAX`] rounds.
    pub(crate) fn tire(&self) {
        let (over, all) = self.chunks.tire();
        let gather = if all { std::mem::take(&mut *self.gather.lock()) } else { Vec::new() };
        drop((gather, over));
        SharedPage::give_back();
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        SharedPage::give_back();
    }
}

/// Whole pages of one write, side by side. They never change: who overwrites one takes a copy of it.
pub struct Chunk {
    /// The pages, and of a writer's own buffer what lies behind them.
    buf: Arc<AlignedBuf>,
    pages: usize,
    /// Number in [`CHUNK_PAGES`]; `None`: it is a small one.
    size: Option<usize>,
    home: Arc<SpareChunks>,
}

impl Chunk {
    /// The buffer that begins with the pages.
    pub(crate) fn buf(&self) -> &Arc<AlignedBuf> {
        &self.buf
    }

    /// How many there are.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Whether it is too small to be written by itself beside others.
    pub(crate) fn is_small(&self) -> bool {
        self.size.is_none()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Some(size) = self.size else { return };
        // Whoever writes it has a reference of his own, and lets go of it before that to the pages.
        let buf = Arc::get_mut(&mut self.buf).map(std::mem::take);
        self.home.give(size, buf);
    }
}

/// Chunks for the next writes.
struct SpareChunks {
    bytes_max: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By size.
    spare: [Vec<AlignedBuf>; CHUNK_PAGES.len()],
    /// Bytes of the chunks in use.
    in_use: u64,
    /// Rounds of the background since one was taken in which nothing was dirty.
    idle_rounds: u32,
}

fn size_of_buffer(buf: &AlignedBuf) -> Option<usize> {
    CHUNK_PAGES.iter().position(|pages| pages * BLOCK_BYTES == buf.len())
}

fn bytes_of(size: usize) -> u64 {
    (CHUNK_PAGES[size] * BLOCK_BYTES) as u64
}

impl SpareChunks {
    /// One more is in use: its buffer, if there is one.
    fn take(&self, size: usize) -> Option<AlignedBuf> {
        let mut kept = self.kept.lock();
        kept.in_use += bytes_of(size);
        kept.idle_rounds = 0;
        kept.spare[size].pop()
    }

    /// What is no longer kept after one more round in which nothing was dirty, and whether that is all.
    fn tire(&self) -> (Vec<AlignedBuf>, bool) {
        let mut kept = self.kept.lock();
        kept.idle_rounds = kept.idle_rounds.saturating_add(1);
        let all = kept.idle_rounds > IDLE_ROUNDS_MAX;
        let mut left = if all { 0 } else { IDLE_BYTES_MAX };
        let mut over = Vec::new();
        for (size, list) in kept.spare.iter_mut().enumerate() {
            let count = (left / bytes_of(size)).min(list.len() as u64);
            left -= count * bytes_of(size);
            over.extend(list.drain(count as usize..));
        }
        (over, all)
    }

    /// One is no longer in use.
    fn give(&self, size: usize, buf: Option<AlignedBuf>) {
        let mut kept = self.kept.lock();
        kept.in_use -= bytes_of(size);
        let Some(buf) = buf else { return };
        let spare: u64 = (0..).zip(&kept.spare).map(|(size, list)| list.len() as u64 * bytes_of(size)).sum();
        let mut over = (kept.in_use + spare + bytes_of(size)).saturating_sub(self.bytes_max);
        // The sizes that are written now are those that were written last: the others make room.
        let mut dropped = Vec::new();
        for other in (0..CHUNK_PAGES.len()).filter(|other| *other != size) {
            while over > 0
                && let Some(buf) = kept.spare[other].pop()
            {
                over = over.saturating_sub(bytes_of(other));
                dropped.push(buf);
            }
        }
        if over > 0 {
            return drop((kept, dropped, buf));
        }
        kept.spare[size].push(buf);
        drop(kept);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: u64 = 8 << 20;

    // Goal: what is kept stays within its bound, whatever sizes are written. Method: far more chunks than may be kept, of
    // each size in turn, all let go of one after the other; what is spare is counted each time, and after clearing.
    #[test]
    fn spare_chunks_are_bounded() {
        let buffers = Buffers::new(BYTES_MAX);
        let spare = |buffers: &Buffers| -> u64 {
            buffers.chunks.kept.lock().spare.iter().flatten().map(|buf| buf.len() as u64).sum()
        };
        for pages in CHUNK_PAGES.iter().chain(CHUNK_PAGES.iter().rev()) {
            let bytes = vec![7; pages * BLOCK_BYTES];
            let count = 2 * BYTES_MAX as usize / bytes.len();
            let mut chunks: Vec<_> = (0..count).map(|_| buffers.chunk(&bytes).unwrap()).collect();
            while chunks.pop().is_some() {
                let (kept, in_use) = (spare(&buffers), (chunks.len() * bytes.len()) as u64);
                assert!(in_use > BYTES_MAX || kept + in_use <= BYTES_MAX, "{pages} pages: {kept}, {in_use}");
            }
            assert!(spare(&buffers) > BYTES_MAX / 2, "{pages} pages: {} bytes are kept", spare(&buffers));
        }
        assert_eq!(buffers.chunks.kept.lock().in_use, 0);
    }

    // Goal: when nothing is dirty a little is kept for the next large writes, and nothing when none come. Method: rounds of the
    // background after many chunks of two sizes, after one more, and as many as it takes.
    #[test]
    fn spare_chunks_go_when_nothing_is_written() {
        let buffers = Buffers::new(4 * IDLE_BYTES_MAX);
        let spare = |buffers: &Buffers| -> u64 {
            buffers.chunks.kept.lock().spare.iter().flatten().map(|buf| buf.len() as u64).sum()
        };
        let write = |pages: usize, bytes: u64| {
            let data = vec![7; pages * BLOCK_BYTES];
            drop((0..bytes / data.len() as u64).map(|_| buffers.chunk(&data)).collect::<Vec<_>>());
        };
        write(32, IDLE_BYTES_MAX);
        write(CHUNK_PAGES_MAX, IDLE_BYTES_MAX);
        buffers.give(buffers.take());
        assert_eq!(spare(&buffers), 2 * IDLE_BYTES_MAX);
        for round in 0..IDLE_ROUNDS_MAX {
            buffers.tire();
            assert_eq!((spare(&buffers), buffers.gather.lock().len()), (IDLE_BYTES_MAX, 1), "{round}");
        }
        write(CHUNK_PAGES_MAX, 1 << 20);
        for _ in 0..IDLE_ROUNDS_MAX {
            buffers.tire();
        }
        assert_eq!(spare(&buffers), IDLE_BYTES_MAX);
        buffers.tire();
        assert_eq!((spare(&buffers), buffers.gather.lock().len()), (0, 0));
    }

    // Goal: buffers that writers give away are bounded like others, whichever sizes they have. Method: many are given, held
    // and let go of; one that is too empty or of another size is not taken.
    #[test]
    fn given_buffers_are_bounded() {
        let buffers = Buffers::new(BYTES_MAX);
        for pages in CHUNK_PAGES {
            let mut buf = AlignedBuf::new(pages * BLOCK_BYTES);
            let mut held = Vec::new();
            for round in 0..2 * BYTES_MAX as usize / buf.len() {
                buf.fill(round as u8);
                let address = buf.as_ptr();
                assert!(buffers.takes(&buf, buf.len()));
                let len = buf.len();
                held.push(buffers.adopt(&mut buf, len));
                let chunk = &held[round];
                assert_eq!((chunk.buf().as_ptr(), chunk.pages(), buf.len()), (address, pages, len));
            }
            assert!((0u8..).zip(&held).all(|(round, chunk)| chunk.buf().iter().all(|byte| *byte == round)));
            drop(held);
            let kept = buffers.chunks.kept.lock();
            let spare: u64 = kept.spare.iter().flatten().map(|buf| buf.len() as u64).sum();
            assert!(kept.in_use == 0 && spare <= BYTES_MAX, "{pages} pages: {spare}");
        }
        let buf = AlignedBuf::new(CHUNK_BYTES_MIN);
        assert!(
            !buffers.takes(&buf, CHUNK_BYTES_MIN / 4 * 3 - 1) && !buffers.takes(&buf, CHUNK_BYTES_MIN + 1)
        );
        assert!(!buffers.takes(&AlignedBuf::new(CHUNK_BYTES_MIN + BLOCK_BYTES), CHUNK_BYTES_MIN));
    }

    // Goal: a chunk holds its bytes and nothing of who had it before, and one that is still being written is not used
    // again. Method: two writes one after the other, a reference to the buffer of the first kept or not.
    #[test]
    fn chunks_are_used_again() {
        let buffers = Buffers::new(BYTES_MAX);
        assert!(buffers.chunk(&vec![1; CHUNK_BYTES_MIN - 1]).is_none());
        let first = buffers.chunk(&vec![1; CHUNK_BYTES_MIN + BLOCK_BYTES]).unwrap();
        assert_eq!((first.pages(), first.buf().len()), (32, CHUNK_BYTES_MIN));
        let written = first.buf().clone();
        drop(first);
        let second = buffers.chunk(&vec![2; CHUNK_BYTES_MIN]).unwrap();
        assert!(written.iter().all(|byte| *byte == 1));
        assert!(second.buf().iter().all(|byte| *byte == 2));
        let address = second.buf().as_ptr();
        drop(second);
        let third = buffers.chunk(&vec![3; CHUNK_BYTES_MIN]).unwrap();
        assert_eq!(third.buf().as_ptr(), address);
        assert!(third.buf().iter().all(|byte| *byte == 3));
    }
}
