//! The pages of a group, some MiB at a time: where they go, where they lie, their checksums.
//!
//! What lies in a chunk stays there and is written from there (small chunks only by riding with the log alone); small pages
//! are copied side by side first. The checksums are taken before the file is locked for logging: they are most of the work.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_engine::{BLOCK_BYTES, Data, PoolAddr, Reservation, Run};

use super::PIECE_PAGES_MAX;
use super::buffers::Chunk;
use super::job::FileJob;
use super::pages::{self, PageBuf};
use crate::Result;
use crate::core::Core;

/// How far a group has been gathered: the next page's job, how many are left, and where the next blocks would best lie.
pub struct Source {
    pub near: PoolAddr,
    pub left: usize,
    pub job: usize,
    pub ride: bool,
}

/// Pages that have their place.
pub struct Batch {
    pub placed: Arc<Placed>,
    /// The checksum of each page; none if they ride.
    pub sums: Vec<u32>,
    /// The buffer in which those were gathered that lie in no chunk, if there are any; if they ride, that of all of them.
    pub gathered: Option<Arc<AlignedBuf>>,
    /// The pages, in order.
    pub parts: Vec<Part>,
}

/// Pages of one job. Let go of when they are logged, not with the whole group: the next writes come into the same memory.
pub struct Part {
    /// Number of the job.
    pub job: usize,
    /// Ascending.
    pub pages: Vec<(u64, PageBuf)>,
    /// Whether these are the last of the job.
    pub last: bool,
}

/// What is written where.
pub struct Placed {
    pub runs: Vec<Run>,
    /// As many pages as the runs have blocks, in the same order.
    pub data: Vec<Data>,
}

impl Placed {
    /// The writes: what lies together in memory and in the pool, each.
    fn writes(&self) -> Vec<(Run, Data)> {
        let mut writes = Vec::with_capacity(self.runs.len() + self.data.len());
        let mut data = self.data.iter();
        let mut rest: Option<Data> = None;
        for run in &self.runs {
            let mut at = *run;
            while at.blocks > 0 {
                let Some(mut from) = rest.take().or_else(|| data.next().cloned()) else {
                    unreachable!("there are as many pages as blocks");
                };
                let len = from.len.min(at.bytes() as usize);
                let blocks = (len / BLOCK_BYTES) as u32;
                writes.push((Run { addr: at.addr, blocks }, Data { len, ..from.clone() }));
                at = Run { addr: PoolAddr(at.addr.0 + len as u64), blocks: at.blocks - blocks };
                (from.offset, from.len) = (from.offset + len, from.len - len);
                rest = (from.len > 0).then_some(from);
            }
        }
        writes
    }
}

/// Where the pages of a batch lie, while it is put together.
#[derive(Default)]
struct Lie {
    /// In order: a chunk, or `None` for the buffer; first byte; bytes.
    spans: Vec<(Option<Arc<AlignedBuf>>, usize, usize)>,
    buf: Option<AlignedBuf>,
    /// Bytes used of it.
    used: usize,
}

impl Lie {
    /// The next page is this one of a chunk.
    fn add_part(&mut self, chunk: &Chunk, page: usize) {
        let (offset, buf) = (page * BLOCK_BYTES, chunk.buf());
        match self.spans.last_mut() {
            Some((Some(last), from, len)) if Arc::ptr_eq(last, buf) && *from + *len == offset => {
                *len += BLOCK_BYTES;
            }
            _ => self.spans.push((Some(buf.clone()), offset, BLOCK_BYTES)),
        }
    }

    /// The next page is a copy of `page`.
    fn copy(&mut self, page: &[u8], fresh: impl FnOnce() -> AlignedBuf) {
        let at = self.used;
        self.buf.get_or_insert_with(fresh)[at..at + BLOCK_BYTES].copy_from_slice(page);
        self.used += BLOCK_BYTES;
        match self.spans.last_mut() {
            Some((None, _, len)) => *len += BLOCK_BYTES,
            _ => self.spans.push((None, at, BLOCK_BYTES)),
        }
    }

    /// The pages, and the buffer, if one was needed.
    fn into_data(self) -> (Vec<Data>, Option<Arc<AlignedBuf>>) {
        let gathered = self.buf.map(Arc::new);
        let data = |(chunk, offset, len): (Option<Arc<AlignedBuf>>, usize, usize)| {
            let buf = chunk.or_else(|| gathered.clone()).expect("what is in no chunk is in the buffer");
            Data { buf, offset, len }
        };
        (self.spans.into_iter().map(data).collect(), gathered)
    }
}

impl Core {
    /// Allocates space for the next pages of a group, takes their checksums, and copies into a buffer what lies in no
    /// chunk (or is to ride). `None`: there are no more.
    pub(super) fn gather(
        &self,
        jobs: &mut [FileJob],
        reservation: &mut Reservation,
        source: &mut Source,
    ) -> Result<Option<Batch>> {
        if source.left == 0 {
            return Ok(None);
        }
        let count = source.left.min(PIECE_PAGES_MAX);
        let runs = self.store.allocate(reservation, count as u32, source.near)?;
        source.left -= count;
        source.near = runs.last().map_or(PoolAddr::NULL, |run| PoolAddr(run.addr.0 + run.bytes()));
        if source.ride
            && let [job] = jobs
            && let Some(chunk) = pages::chunk_of(job.pages.as_slice())
            && chunk.is_small()
        {
            // It never changes, and who reads these blocks before they are on the device reads from it.
            let gathered = Some(chunk.buf().clone());
            let placed = Arc::new(Placed { runs, data: Vec::new() });
            let pages = std::mem::take(&mut job.pages).collect();
            let parts = vec![Part { job: 0, pages, last: true }];
            return Ok(Some(Batch { placed, sums: Vec::new(), gathered, parts }));
        }
        let mut parts = Vec::new();
        let mut lie = Lie::default();
        let mut filled = 0;
        while filled < count {
            let (number, job) = (source.job, &mut jobs[source.job]);
            let take = job.pages.len().min(count - filled);
            let last = take == job.pages.len();
            let pages: Vec<_> = match last {
                // The vector itself, if nothing of it is gone yet.
                true => std::mem::take(&mut job.pages).collect(),
                false => job.pages.by_ref().take(take).collect(),
            };
            for (_, data) in &pages {
                match data {
                    PageBuf::Part(chunk, page) if !source.ride && !chunk.is_small() => {
                        lie.add_part(chunk, *page)
                    }
                    _ => lie.copy(data, || match source.ride {
                        true => AlignedBuf::new(count * BLOCK_BYTES),
                        false => self.buffers.take(),
                    }),
                }
            }
            parts.push(Part { job: number, pages, last });
            filled += take;
            source.job += usize::from(last);
        }
        let (data, gathered) = lie.into_data();
        let mut sums = Vec::new();
        if !source.ride {
            sums.reserve(count);
            sums.extend(data.iter().flat_map(Data::checksums));
        }
        Ok(Some(Batch { placed: Arc::new(Placed { runs, data }), sums, gathered, parts }))
    }

    /// Writes them; not flushed.
    pub(super) fn write_placed(&self, placed: &Placed) -> Result<()> {
        Ok(self.store.write_data(&placed.writes())?)
    }
}
