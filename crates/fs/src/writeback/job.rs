//! A group of files on its way to the device: allocate, write, log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::vec;

use parking_lot::RwLockWriteGuard;
use varve_device::AlignedBuf;
use varve_engine::version;
use varve_engine::{BLOCK_BYTES, Data, EngineError, InodeId, PoolAddr, Reservation, Run, Store, Transaction};
use varve_format::record::inode::INODE_FLAG_STALE_TAIL;

use super::batch::{Batch, Part, Source};
use super::pages::{self, PageBuf};
use super::{PIECE_PAGES_MAX, RIDING_PAGES_MAX, Ride};
use crate::api::DataLogged;
use crate::core::{Core, Owning};
use crate::inode::{Inner, InodeState, Pending, Presence, Turn};
use crate::subvolume::Change;
use crate::table::extents;
use crate::{FsError, Result};

/// Extents logged in one transaction: in the worst case each dirties a path of its own and splits a node, and all of them must fit what
/// a full pool keeps back for privileged work, beyond what was set aside for them.
const EXTENTS_PER_TRANSACTION: usize = 64;
/// The same where others have taken of what is kept back: half as many until they fit, but no fewer than these. What the nodes of one such
/// transaction replace comes back before the next. Smaller ones would go on until there is nothing left with which anybody could remove
/// a file; who has no more than these to log does.
const EXTENTS_IN_NEED: usize = 16;

/// Batches being written at a time: so the device has the next when it is done with one.
const WRITES_MAX: usize = 2;

/// One file's part of a group.
pub struct FileJob {
    pub state: Arc<InodeState>,
    /// Marks the pages that are in flight for this job.
    pub id: u64,
    /// The pages, ascending: those that no batch has taken yet.
    pub pages: vec::IntoIter<(u64, PageBuf)>,
    /// The file's size when they were taken.
    pub size: u64,
    /// Whether dirty pages were left behind, which are about to be cut off.
    pub partial: bool,
    /// Where they would best lie.
    pub near: PoolAddr,
    /// Given up as soon as the file is done when others are still being written.
    pub turn: Option<Turn>,
}

/// Files that are written back together.
#[derive(Default)]
pub struct Group {
    jobs: Vec<FileJob>,
    pages: usize,
    reservation: Option<Reservation>,
}

impl Group {
    /// Adds a file and the space it has set aside.
    pub(crate) fn add(&mut self, store: &Store, job: FileJob, reservation: Option<Reservation>) {
        self.pages += job.pages.len();
        self.jobs.push(job);
        match (&mut self.reservation, reservation) {
            (Some(all), Some(more)) => store.merge(all, more),
            (all @ None, more) => *all = more,
            (Some(_), None) => {}
        }
    }
    /// Pages of all files.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }
    /// Number of files.
    pub(crate) fn files(&self) -> usize {
        self.jobs.len()
    }
    /// Takes it apart.
    pub(crate) fn into_parts(self) -> (Vec<FileJob>, Option<Reservation>) {
        (self.jobs, self.reservation)
    }
}

/// Pages of one file that have their place.
struct Piece<'a> {
    /// The job's.
    id: u64,
    /// Page numbers, ascending.
    pages: &'a [(u64, PageBuf)],
    /// Where each lies.
    addrs: &'a [PoolAddr],
    /// Their checksums.
    sums: &'a [u32],
    /// Whether these are the last pages of the job.
    last: bool,
    /// If they ride with the log: where they lie, side by side, and where the first begins.
    ride: Option<(&'a Arc<AlignedBuf>, usize)>,
}

/// A write under way, or its result.
enum Writing<'scope> {
    Thread(ScopedJoinHandle<'scope, Result<()>>),
    Done(Result<()>),
}

impl<'scope> Writing<'scope> {
    /// On a thread of its own; without one, at once.
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        write: impl Fn() -> Result<()> + Clone + Send + 'scope,
    ) -> Writing<'scope> {
        let here = write.clone();
        let elsewhere = move || {
            varve_device::unpin_thread();
            write()
        };
        match thread::Builder::new().name("varve-write".into()).spawn_scoped(scope, elsewhere) {
            Ok(thread) => Writing::Thread(thread),
            Err(_) => Writing::Done(here()),
        }
    }

    fn wait(self) -> Result<()> {
        match self {
            Writing::Thread(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Writing::Done(result) => result,
        }
    }
}

impl Core {
    /// Writes and logs a group.
    pub fn write_group(&self, group: &mut Group, ride: Ride) -> Result<()> {
        let Group { jobs, pages, reservation } = group;
        // Small files first: whoever waits for one of them does not wait for the large ones.
        jobs.sort_by_key(|job| job.pages.len());
        let Some(first) = jobs.first() else { return Ok(()) };
        let reservation = reservation.as_mut().expect("pages that are taken have their space");
        let ride = ride == Ride::Allowed && *pages as u64 <= RIDING_PAGES_MAX;
        let mut source = Source { near: first.near, left: *pages, job: 0, ride };
        if *pages > PIECE_PAGES_MAX && self.background {
            return self.write_overlapped(jobs, reservation, &mut source);
        }
        while let Some(batch) = self.gather(jobs, reservation, &mut source)? {
            if !ride && let Err(error) = self.write_placed(&batch.placed) {
                self.store.deallocate(reservation, &batch.placed.runs);
                return Err(error);
            }
            self.log_batch(jobs, batch, reservation, ride)?;
        }
        Ok(())
    }

    /// Writes two batches while a third is gathered or logged: else the device waits for the copying, the checksums and the
    /// log, a third of the time. Batches are logged in their order, each when it is written, none after a failure.
    fn write_overlapped(
        &self,
        jobs: &mut [FileJob],
        reservation: &mut Reservation,
        source: &mut Source,
    ) -> Result<()> {
        thread::scope(|scope| {
            let mut failed = None;
            let mut writing: VecDeque<(Batch, Writing<'_>)> = VecDeque::with_capacity(WRITES_MAX);
            loop {
                let next = match failed {
                    None => self.gather(jobs, reservation, source).unwrap_or_else(|error| {
                        failed = Some(error);
                        None
                    }),
                    Some(_) => None,
                };
                let over = next.is_none();
                let first = if over || writing.len() == WRITES_MAX { writing.pop_front() } else { None };
                let written = first.and_then(|(batch, write)| match write.wait() {
                    Ok(()) => Some(batch),
                    Err(error) => {
                        self.store.deallocate(reservation, &batch.placed.runs);
                        failed.get_or_insert(error);
                        None
                    }
                });
                match next {
                    Some(batch) if failed.is_some() => self.store.deallocate(reservation, &batch.placed.runs),
                    Some(batch) => {
                        let placed = batch.placed.clone();
                        let write = move || self.write_placed(&placed);
                        writing.push_back((batch, Writing::start(scope, write)));
                    }
                    None => {}
                }
                match written {
                    Some(batch) if failed.is_some() => self.store.deallocate(reservation, &batch.placed.runs),
                    Some(batch) => failed = self.log_batch(jobs, batch, reservation, false).err(),
                    None => {}
                }
                if over && writing.is_empty() {
                    return failed.map_or(Ok(()), Err);
                }
            }
        })
    }

    /// Logs what is in a batch. After an error the space of what was not logged has been given back.
    fn log_batch(
        &self,
        jobs: &mut [FileJob],
        batch: Batch,
        reservation: &mut Reservation,
        ride: bool,
    ) -> Result<()> {
        let Batch { placed, sums, gathered, parts } = batch;
        let addrs: Vec<PoolAddr> = placed
            .runs
            .iter()
            .flat_map(|run| (0..u64::from(run.blocks)).map(|i| PoolAddr(run.addr.0 + i * BLOCK_BYTES as u64)))
            .collect();
        // Before the pages, so that nobody else refers to a chunk when its last page goes.
        drop(placed);
        let mut at = 0;
        let mut brought = 0;
        // Where nobody has read any nodes since the last batch began, it among them, all that are looked at are in memory as a rule,
        // and nobody need look whether they are.
        let nodes_read = self.store.nodes_read();
        let mut cold = self.dirty.nodes_read.load(Ordering::Relaxed) != nodes_read;
        let alone = jobs.len() == 1;
        let mut runs_max = EXTENTS_PER_TRANSACTION;
        for Part { job: number, pages, last } in parts {
            let job = &mut jobs[number];
            let take = pages.len();
            let (mut done, mut logged) = (0, Ok(()));
            while done < take && logged.is_ok() {
                let from = at + done;
                cold = cold || self.store.nodes_read() != nodes_read;
                if cold {
                    self.read_ahead_to_log(job, &pages[done..]);
                }
                let piece = Piece {
                    id: job.id,
                    pages: &pages[done..],
                    addrs: &addrs[from..at + take],
                    sums: if ride { &[] } else { &sums[from..at + take] },
                    last,
                    ride: gathered.as_ref().filter(|_| ride).map(|buf| (buf, from * BLOCK_BYTES)),
                };
                let more = self.log_piece(job, &piece, reservation, &mut runs_max);
                logged = more.map(|more| done += more);
            }
            at += take;
            // Others look at this file, and log, while this one waits for a flush. Many files that are not large are much, too.
            brought += (take * BLOCK_BYTES) as u64;
            self.store.settle(brought);
            if let Err(error) = logged {
                self.give_back(reservation, &addrs[at..]);
                return Err(error);
            }
            if last && !alone {
                job.turn = None;
            }
        }
        if cold {
            self.dirty.nodes_read.store(nodes_read, Ordering::Relaxed);
        }
        // What rides is still referred to.
        if !ride && let Some(buf) = gathered.and_then(Arc::into_inner) {
            self.buffers.give(buf);
        }
        Ok(())
    }

    fn give_back(&self, reservation: &mut Reservation, addrs: &[PoolAddr]) {
        let runs: Vec<Run> = addrs.iter().map(|addr| Run { addr: *addr, blocks: 1 }).collect();
        if !runs.is_empty() {
            self.store.deallocate(reservation, &runs);
        }
    }

    /// Has what will be looked at to log the first of these pages read, as far as it is not in memory: else everybody else would wait
    /// for it, node by node, under the file's lock.
    fn read_ahead_to_log(&self, job: &FileJob, pages: &[(u64, PageBuf)]) {
        let mut offsets = Vec::new();
        for (i, (index, _)) in pages.iter().enumerate() {
            if i > 0 && pages[i - 1].0 + 1 == *index {
                continue;
            }
            if offsets.len() == EXTENTS_PER_TRANSACTION {
                break;
            }
            offsets.push(index * BLOCK_BYTES as u64);
        }
        let record = {
            let inner = job.state.inner.read();
            if offsets.len() < 2 || inner.presence == Presence::Gone || inner.record.inline.is_some() {
                return;
            }
            inner.record.clone()
        };
        let read = self.view_of(job.state.ino).and_then(|view| {
            let path = extents::path(&view, &record, self.sharing())?;
            Ok(version::read_ahead(&view, &path, &offsets)?)
        });
        if let Err(error) = read {
            // Who needs it hears of it.
            tracing::debug!(%error, "reading ahead to log failed");
        }
    }

    /// Logs the first pages of one file, as many as make up the extents of one transaction, and gives their number. What was cut off
    /// or deleted since its copy was taken is not logged. After an error the space of the whole piece has been given back: nothing of
    /// it was logged. `runs_max`: so many extents; halved where there is no space for them at once.
    fn log_piece(
        &self,
        job: &FileJob,
        piece: &Piece<'_>,
        reservation: &mut Reservation,
        runs_max: &mut usize,
    ) -> Result<usize> {
        let change = match self.change_to_log(&job.state) {
            Ok(change) => change,
            Err(error) => {
                self.give_back(reservation, piece.addrs);
                // If its subvolume has been deleted, nobody wants this.
                return if matches!(error, FsError::Stale) { Ok(piece.pages.len()) } else { Err(error) };
            }
        };
        let mut guard = job.state.inner.write();
        let inner = &mut *guard;
        // Runs of pages that lie side by side in file and pool: (first, count) in the piece.
        let mut runs: Vec<(usize, usize)> = Vec::new();
        // Pages that nobody wants any more. Their blocks are given back with the last of them that are done: what is not, the next call
        // finds as it was.
        let mut unwanted: Vec<usize> = Vec::new();
        let all = piece.pages[0].0..=piece.pages[piece.pages.len() - 1].0;
        let mut in_memory = inner.pages.map.range(all).filter(|(_, page)| page.job == job.id).peekable();
        let mut upto = piece.pages.len();
        for (i, (index, _)) in piece.pages.iter().enumerate() {
            while in_memory.next_if(|(at, _)| at < index).is_some() {}
            let valid = in_memory.next_if(|(at, _)| at == index).is_some();
            if !valid || inner.presence == Presence::Gone {
                unwanted.push(i);
                continue;
            }
            let full = runs.len() == *runs_max;
            match runs.last_mut() {
                Some((first, count))
                    if *first + *count == i
                        && piece.pages[i - 1].0 + 1 == *index
                        && piece.addrs[i - 1].0 + BLOCK_BYTES as u64 == piece.addrs[i].0 =>
                {
                    *count += 1;
                }
                _ if full => {
                    upto = i;
                    break;
                }
                _ => runs.push((i, 1)),
            }
        }
        drop(in_memory);
        while let Some((end, count)) = runs.last() {
            let end = end + count;
            // The logged size follows the pages; with the last of them it arrives.
            let last = piece.last && end == piece.pages.len();
            let reach = if last { job.size } else { (piece.pages[end - 1].0 + 1) * BLOCK_BYTES as u64 };
            let size = reach.min(job.size).min(inner.size).max(inner.record.size);
            match self.log_runs(&change, job.state.ino, inner, piece, &runs, size, reservation) {
                Ok(()) => break,
                Err(FsError::Engine(EngineError::NoSpace)) if runs.len() > EXTENTS_IN_NEED => {
                    // Nothing has changed.
                    *runs_max = (runs.len() / 2).max(EXTENTS_IN_NEED);
                    upto = runs[*runs_max].0;
                    runs.truncate(*runs_max);
                }
                Err(error) => {
                    self.give_back(reservation, piece.addrs);
                    return Err(error);
                }
            }
        }
        for at in unwanted.into_iter().take_while(|at| *at < upto) {
            self.give_back(reservation, &piece.addrs[at..=at]);
        }
        let all = upto == piece.pages.len();
        if piece.last && all && inner.pages.dirty == 0 {
            inner.pending = Pending::default();
        }
        if !all {
            // Who waits for the file has it before the next of these pages.
            RwLockWriteGuard::unlock_fair(guard);
        }
        Ok(upto)
    }

    /// One transaction: up to [`EXTENTS_PER_TRANSACTION`] extents, the size, the times.
    #[expect(clippy::too_many_arguments, reason = "one step of a procedure, apart for its length")]
    fn log_runs(
        &self,
        change: &Change,
        ino: InodeId,
        inner: &mut Inner,
        piece: &Piece<'_>,
        runs: &[(usize, usize)],
        size: u64,
        reservation: &mut Reservation,
    ) -> Result<()> {
        self.own_first(change, ino, inner, Owning::ToLog(reservation))?;
        // For each its place, its entry, that of the index, and what it replaces; the inode record and some more.
        let mut tx = Transaction::with_room(4 * runs.len() + 4);
        let mut extents_put = Vec::with_capacity(runs.len());
        for (first, count) in runs {
            let run = Run { addr: piece.addrs[*first], blocks: *count as u32 };
            match piece.ride {
                Some((buf, at)) => {
                    let (offset, len) = (at + first * BLOCK_BYTES, count * BLOCK_BYTES);
                    tx.place_riding(run, Data { buf: buf.clone(), offset, len });
                }
                None => tx.place_summed(run, &piece.sums[*first..first + count]),
            }
            extents_put.push((piece.pages[*first].0 * BLOCK_BYTES as u64, run));
        }
        let mut record = inner.record_with_pending();
        let tail = record.size / BLOCK_BYTES as u64;
        let pages_of =
            |(first, count): &(usize, usize)| piece.pages[*first].0..piece.pages[*first].0 + *count as u64;
        if runs.iter().any(|run| pages_of(run).contains(&tail)) {
            record.flags &= !INODE_FLAG_STALE_TAIL;
        }
        debug_assert!(size == record.size || record.flags & INODE_FLAG_STALE_TAIL == 0);
        record.inline = None;
        record.size = size;
        record.change = record.change.wrapping_add(1);
        let replaced = self.put_data(change, &mut tx, &mut record, &extents_put)?;
        self.put_record(change, &mut tx, ino, inner, &mut record)?;
        tx.privileged();
        tx.settles_later();
        let lsn = self.apply_freeing(tx, Some(reservation), replaced.reserved_freed)?;
        inner.logged(change, record);
        inner.mapping += 1;
        if let Some((_, run)) = extents_put.last() {
            inner.near = PoolAddr(run.addr.0 + run.bytes());
        }
        // Between the first and the last of these runs the job has no other pages that are still to be logged.
        let (first, (last, count)) = (runs[0].0, runs[runs.len() - 1]);
        pages::look_at(piece.pages[first..last + count].iter().map(|(_, page)| page));
        let logged = piece.pages[first].0..piece.pages[last].0 + count as u64;
        let done = inner.pages.map.remove_if(logged, |_, page| {
            let logged = page.job == piece.id;
            if logged {
                page.job = 0;
            }
            logged && !page.dirty
        });
        self.dirty.pages_removed(done as u64);
        self.unlist(inner);
        if let Some(observer) = &self.on_data_logged {
            let begin = runs.first().map_or(0, |run| pages_of(run).start) * BLOCK_BYTES as u64;
            let end = runs.last().map_or(0, |run| pages_of(run).end) * BLOCK_BYTES as u64;
            observer(DataLogged { ino, offset: begin, len: end - begin, size, lsn });
        }
        Ok(())
    }
}
