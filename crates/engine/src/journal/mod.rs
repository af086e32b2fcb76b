//! Commit: one write, one flush. While a batch is in flight the next one gathers; the first waiter leads it.
//!
//! Order in which things happen, and why a crash between them is harmless:
//! 1. The gathering batch is sealed under the apply mutex and gets its number and place in the ring.
//! 2. Batch and riding data are written in parallel. A crash here leaves any part of them: recovery verifies the
//!    data of batches beyond the known-flushed position and ends before what is not whole.
//! 3. One flush. When it returns, everything up to the batch is durable: waiters go on.
//! 4. Blocks that the batch's transactions freed become allocatable (once the reads that began before have ended).
//!
//! Knows nothing of trees: a batch is bytes and blocks.

pub mod recovery;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use parking_lot::{Condvar, Mutex};
use varve_device::{AlignedBuf, Stopwatch};
use varve_format::batch::{BATCH_HEADER_BYTES, BatchHeader, batch_blocks, seal};
use varve_format::{BLOCK_BYTES, Lsn};

use crate::checkpoint::Frozen;
use crate::core::{PENDING_BYTES_SOFT, Pending};
use crate::planted::{Planted, is};
use crate::store::Store;
use crate::{Data, EngineError};

type Result<T> = std::result::Result<T, EngineError>;
type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Who leads and who waits.
#[derive(Default)]
pub struct Commits {
    inner: Mutex<Inner>,
    turn: Condvar,
    /// Set after `Inner::stopped`: every change asks, and most of the time the answer is no.
    stopped: AtomicBool,
}

#[derive(Default)]
struct Inner {
    in_flight: bool,
    durable: Lsn,
    /// The last batch known to be flushed (P).
    flushed_sequence: u64,
    /// P as the last written batch names it.
    named_sequence: u64,
    stopped: Option<String>,
    callbacks: Vec<(Lsn, Stopwatch, Done)>,
}

/// What the leader does beside committing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// Only that.
    Commit,
    /// Freeze the state at the end of the batch for a checkpoint.
    Freeze,
    /// Write an empty batch that names the flushed position, without a flush.
    CloseIdle,
}

impl Commits {
    /// As recovery left it.
    pub fn new(durable: Lsn, flushed_sequence: u64) -> Commits {
        let inner = Inner { durable, flushed_sequence, named_sequence: flushed_sequence, ..Inner::default() };
        Commits { inner: Mutex::new(inner), turn: Condvar::new(), stopped: AtomicBool::new(false) }
    }
    /// Replay has ended here.
    pub fn recovered(&self, end: Lsn) {
        self.inner.lock().durable = end;
    }
    /// The position up to which the log is durable.
    pub fn durable(&self) -> Lsn {
        self.inner.lock().durable
    }
    /// Why the pool has stopped accepting writes, if it has.
    pub fn stopped(&self) -> Option<String> {
        if !self.stopped.load(Acquire) {
            return None;
        }
        self.inner.lock().stopped.clone()
    }
    /// Stops the pool.
    pub fn stop(&self, why: String) {
        let mut inner = self.inner.lock();
        if inner.stopped.is_none() {
            tracing::error!("the pool stops accepting writes: {why}");
            inner.stopped = Some(why);
            self.stopped.store(true, Release);
        }
        self.turn.notify_all();
    }
}

impl Store {
    /// Returns when everything up to `upto` is durable. Callers at the same time share one flush.
    pub fn commit(&self, upto: Lsn) -> Result<()> {
        let mut upto = upto;
        let mut inner = self.commits.inner.lock();
        let mut waited: Option<Stopwatch> = None;
        loop {
            if inner.durable >= upto {
                if let Some(begun) = waited {
                    self.counters.commit_latency.record(begun.elapsed());
                }
                return Ok(());
            }
            if let Some(why) = &inner.stopped {
                return Err(EngineError::Stopped(why.clone()));
            }
            if waited.is_none() {
                waited = Some(Stopwatch::start());
                self.counters.journal_waiters.fetch_add(1, Relaxed);
            }
            if inner.in_flight {
                self.commits.turn.wait(&mut inner);
            } else {
                inner.in_flight = true;
                drop(inner);
                self.lead(Lead::Commit)?;
                inner = self.commits.inner.lock();
                if inner.durable < upto {
                    // Somebody else's batch came first, or there is nothing that far.
                    drop(inner);
                    upto = upto.min(self.position());
                    inner = self.commits.inner.lock();
                }
            }
        }
    }

    /// Calls `done` when everything up to `upto` is durable (perhaps before returning, perhaps on another thread).
    /// `done` must not call the store, and must not panic: whoever leads has to go on.
    pub fn commit_then(&self, upto: Lsn, done: Box<dyn FnOnce(Result<()>) + Send>) {
        let upto = upto.min(self.position());
        let mut inner = self.commits.inner.lock();
        if inner.durable >= upto {
            drop(inner);
            return done(Ok(()));
        }
        if let Some(why) = inner.stopped.clone() {
            drop(inner);
            return done(Err(EngineError::Stopped(why)));
        }
        self.counters.journal_waiters.fetch_add(1, Relaxed);
        inner.callbacks.push((upto, Stopwatch::start(), done));
        if inner.in_flight {
            return; // whoever leads goes on until nobody is left
        }
        inner.in_flight = true;
        drop(inner);
        // An error has reached the callbacks already.
        let _ = self.lead(Lead::Commit);
    }

    /// Takes the lead as soon as nobody else has it, and freezes the state at the end of the batch.
    pub(crate) fn commit_and_freeze(&self) -> Result<Frozen> {
        let mut inner = self.commits.inner.lock();
        loop {
            if let Some(why) = &inner.stopped {
                return Err(EngineError::Stopped(why.clone()));
            }
            if !inner.in_flight {
                break;
            }
            self.commits.turn.wait(&mut inner);
        }
        inner.in_flight = true;
        drop(inner);
        self.lead(Lead::Freeze).map(|frozen| frozen.expect("asked for"))
    }

    /// Ends an idle log with an empty record, so that the next opening need not verify the data of the last batches.
    pub(crate) fn close_idle_log(&self) -> Result<()> {
        let mut inner = self.commits.inner.lock();
        if inner.in_flight || inner.stopped.is_some() || inner.named_sequence >= inner.flushed_sequence {
            return Ok(());
        }
        inner.in_flight = true;
        drop(inner);
        self.lead(Lead::CloseIdle).map(|_| ())
    }

    /// Writes the gathering batch, and goes on while callbacks wait that no batch has covered. The caller has set
    /// `in_flight`; it is clear afterwards.
    fn lead(&self, what: Lead) -> Result<Option<Frozen>> {
        let mut result = self.write_batch(what);
        loop {
            let mut inner = self.commits.inner.lock();
            if let Err(e) = &result
                && inner.stopped.is_none()
            {
                tracing::error!("the pool stops accepting writes: {e}");
                inner.stopped = Some(e.to_string());
                self.commits.stopped.store(true, Release);
            }
            let stopped = inner.stopped.clone();
            let durable = inner.durable;
            let mut ready = Vec::new();
            let mut i = 0;
            while i < inner.callbacks.len() {
                if stopped.is_some() || inner.callbacks[i].0 <= durable {
                    let (_, begun, done) = inner.callbacks.swap_remove(i);
                    self.counters.commit_latency.record(begun.elapsed());
                    ready.push(done);
                } else {
                    i += 1;
                }
            }
            let more = !inner.callbacks.is_empty();
            if !more {
                inner.in_flight = false;
            }
            self.commits.turn.notify_all();
            drop(inner);
            for done in ready {
                done(match &stopped {
                    Some(why) => Err(EngineError::Stopped(why.clone())),
                    None => Ok(()),
                });
            }
            if !more {
                return result;
            }
            if let Err(e) = self.write_batch(Lead::Commit) {
                result = Err(e);
            }
        }
    }

    fn write_batch(&self, what: Lead) -> Result<Option<Frozen>> {
        let (flushed, durable) = {
            let inner = self.commits.inner.lock();
            (inner.flushed_sequence, inner.durable)
        };
        let mut core = self.core.lock();
        let what = if what == Lead::CloseIdle && core.pending.transactions > 0 { Lead::Commit } else { what };
        let skip = core.pending.transactions == 0 && what != Lead::CloseIdle;
        // The planted error freezes a state whose last transactions are not in the log yet.
        let ahead = what == Lead::Freeze && is(Planted::CheckpointAhead);
        if skip || ahead {
            let position = core.position;
            let frozen = (what == Lead::Freeze).then(|| self.freeze(&mut core));
            drop(core);
            debug_assert!(
                ahead || position <= durable || position == Lsn(0),
                "nothing gathers, so all is durable"
            );
            return Ok(frozen);
        }
        let pending = std::mem::take(&mut core.pending);
        // The next batch is likely to be as large: so it does not grow step by step.
        let expected = pending.payload.len().min(PENDING_BYTES_SOFT);
        core.pending.payload.reserve(expected + expected / 8);
        let blocks = batch_blocks(pending.payload.len());
        let last = Lsn(pending.first.0 + u64::from(pending.transactions));
        let header = BatchHeader {
            pool_id: self.pool.pool_id,
            epoch: core.log.epoch,
            sequence: core.log.sequence,
            previous: core.log.previous,
            superblock_generation: self.superblock_generation.load(Relaxed),
            flushed,
            first: if pending.transactions == 0 { Lsn(core.position.0 + 1) } else { pending.first },
            last: if pending.transactions == 0 { core.position } else { Lsn(last.0 - 1) },
            transactions: pending.transactions,
            payload_bytes: pending.payload.len() as u32,
        };
        let at = core.log.head;
        core.log.head += (blocks * BLOCK_BYTES) as u64;
        core.log.sequence += 1;
        let mut frozen = (what == Lead::Freeze).then(|| self.freeze(&mut core));
        drop(core);

        let mut buf = AlignedBuf::new(blocks * BLOCK_BYTES);
        buf[BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + pending.payload.len()].copy_from_slice(&pending.payload);
        let checksum = seal(&header, &mut buf);
        // Only the leader seals, so nobody has looked at this meanwhile.
        self.core.lock().log.previous = checksum;
        if let Some(frozen) = &mut frozen {
            frozen.log.previous = checksum;
        }
        let writes: Vec<_> = pending.rides.iter().map(|(run, data)| (run.addr, data.bytes())).collect();
        self.pool.write(&writes, Some((at, &buf)))?;
        drop(writes);
        let unflushed = self.unflushed_bytes.load(Relaxed);
        if what != Lead::CloseIdle && !is(Planted::MissingFlush) {
            self.pool.flush()?;
            // Writes that completed after the flush began stay counted.
            self.unflushed_bytes.fetch_sub(unflushed, Relaxed);
        }
        self.counters.journal_batches.fetch_add(1, Relaxed);
        self.counters.journal_bytes.fetch_add(buf.len() as u64, Relaxed);
        {
            let mut inner = self.commits.inner.lock();
            inner.named_sequence = flushed;
            if what != Lead::CloseIdle {
                inner.durable = header.last;
                inner.flushed_sequence = header.sequence;
            }
        }
        self.landed(pending);
        Ok(frozen)
    }

    /// The batch is durable: its data can be read from the device, its frees become allocatable.
    fn landed(&self, pending: Pending) {
        self.settle_rides(&pending.rides);
        if !is(Planted::EarlyReuse) {
            self.readers.retire(pending.frees);
        }
        self.release_retired();
    }

    fn settle_rides(&self, rides: &[(varve_format::Run, Data)]) {
        if rides.is_empty() {
            return;
        }
        let mut map = self.rides.write();
        for (run, _) in rides {
            for i in 0..u64::from(run.blocks) {
                map.remove(&(run.addr.block() + i));
            }
        }
    }

    /// Gives back blocks whose freeing is durable and that nobody reads any more.
    pub(crate) fn release_retired(&self) {
        // Under the mutex, so that nobody finds blocks that are on their way neither here nor there.
        let mut core = self.core.lock();
        for run in self.readers.drain() {
            core.space.release(run);
        }
    }

    /// Data that has not been written yet is read from memory: for each of these blocks where it is, if it is there.
    /// Empty if none is.
    pub(crate) fn riding(&self, first: u64, blocks: u64) -> Vec<Option<(Arc<AlignedBuf>, usize)>> {
        let rides = self.rides.read();
        if rides.is_empty() {
            return Vec::new();
        }
        (first..first + blocks).map(|block| rides.get(&block).cloned()).collect()
    }
}
