//! Commit: one write, one flush. While a batch is in flight the next one gathers; the first waiter leads it. While a batch
//! is flushed the next may be written already, and its flush begun.
//!
//! Order in which things happen, and why a crash between them is harmless:
//! 1. The gathering batch is sealed under the apply mutex and gets its number and place in the ring. Only when all
//!    writes of the batches before have completed.
//! 2. Batch and riding data are written in parallel. A crash here leaves any part of them: recovery verifies the
//!    data of batches beyond the known-flushed position and ends before what is not whole. It may also leave all
//!    of this batch and nothing of the one before, whose flush has not returned: the chain ends before that one, and
//!    what lies beyond can never be reached again, because the next opening takes a new epoch (see `recovery`).
//! 3. One flush. It began when the writes of this batch and of all before it had completed, and it counts only when
//!    all flushes that began before it have returned well (see `pool::flush`). So when it counts, everything up to
//!    the batch is durable, also what another flush was begun for; in this order it is made known: waiters go on.
//! 4. Before they do, batch by batch in their order: its data is read from the device from now on, and blocks that its
//!    transactions freed become allocatable (once the reads that began before have ended). A block is reused no
//!    earlier than the record that frees it is durable, and its next ride is not taken for its last.
//!
//! Whatever fails in 2 or 3 stops the pool: nothing is sealed any more, and what is in flight is acknowledged only if
//! its own flush still counts. So does a panic there, and in a checkpoint.
//!
//! Who leads and who waits is in `turns`. Knows nothing of trees: a batch is bytes and blocks.

pub mod recovery;
mod turns;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use varve_device::{AlignedBuf, Stopwatch};
use varve_format::batch::{BATCH_HEADER_BYTES, BatchHeader, batch_blocks, seal};
use varve_format::{BLOCK_BYTES, Lsn};

use crate::checkpoint::Frozen;
use crate::core::{PENDING_BYTES_SOFT, Pending};
use crate::planted::{Planted, is};
use crate::store::Store;
use crate::{Data, EngineError};
use turns::{Wakes, Written};

pub use turns::Commits;
pub use turns::PanicStops;

type Result<T> = std::result::Result<T, EngineError>;
type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// What the leader does beside committing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// Only that, and waits for it.
    Commit,
    /// Only that, for callbacks.
    CommitForOthers,
    /// Freeze the state at the end of the batch for a checkpoint.
    Freeze,
    /// Write an empty batch that names the flushed position, without a flush.
    CloseIdle,
}

/// What came of writing.
struct Sent {
    /// The batch that wants a flush, if there is one.
    sequence: Option<u64>,
    frozen: Option<Frozen>,
}

impl Store {
    /// Returns when everything up to `upto` is durable. Callers at the same time share one flush.
    pub fn commit(&self, upto: Lsn) -> Result<()> {
        let mut upto = upto;
        let mut waited: Option<Stopwatch> = None;
        let mut inner = self.commits.inner.lock();
        loop {
            if inner.durable >= upto {
                drop(inner);
                self.committed(waited.as_ref());
                return Ok(());
            }
            if let Some(why) = &inner.stopped {
                return Err(EngineError::Stopped(why.clone()));
            }
            if waited.is_none() {
                waited = Some(Stopwatch::start());
                self.counters.journal_waiters.fetch_add(1, Relaxed);
                inner.arrive();
            }
            if upto > inner.sealed && inner.may_lead() {
                inner.writing = true;
                drop(inner);
                self.lead(Lead::Commit)?;
                inner = self.commits.inner.lock();
                if inner.durable < upto {
                    // There may be nothing that far.
                    drop(inner);
                    upto = upto.min(self.position());
                    inner = self.commits.inner.lock();
                }
                continue;
            }
            let wait = inner.enter(upto, self.commits.batch(upto));
            // Somebody whom no batch covers may have waited only for this arrival.
            let wakes = inner.call();
            drop(inner);
            self.wake(wakes);
            if wait.wait(&self.commits) {
                self.committed(waited.as_ref());
                return Ok(());
            }
            inner = self.commits.inner.lock();
        }
    }

    fn committed(&self, waited: Option<&Stopwatch>) {
        if let Some(begun) = waited {
            self.counters.commit_latency.record(begun.elapsed());
        }
    }

    fn wake(&self, wakes: Wakes) {
        wakes.wake(None, |begun| self.committed(Some(begun)));
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
        inner.arrive();
        inner.enter_callback(upto, done);
        if upto > inner.sealed && inner.may_lead_at_once() {
            inner.writing = true;
            drop(inner);
            // An error has reached the callbacks already.
            let _ = self.lead(Lead::CommitForOthers);
            return;
        }
        // Whoever leads goes on until nobody is left.
        let wakes = inner.call();
        drop(inner);
        self.wake(wakes);
    }

    /// Takes the lead as soon as nobody else writes, and freezes the state at the end of the batch.
    pub(crate) fn commit_and_freeze(&self) -> Result<Frozen> {
        let mut inner = self.commits.inner.lock();
        loop {
            if let Some(why) = &inner.stopped {
                return Err(EngineError::Stopped(why.clone()));
            }
            if inner.may_freeze() {
                break;
            }
            let wait = inner.enter_freezer();
            drop(inner);
            wait.wait(&self.commits);
            inner = self.commits.inner.lock();
        }
        inner.writing = true;
        drop(inner);
        let frozen = self.lead(Lead::Freeze)?.expect("asked for");
        if !is(Planted::CheckpointAhead) {
            // Durable already, unless nothing had gathered while the batch before was in flight.
            self.commit(frozen.position())?;
        }
        Ok(frozen)
    }

    /// Ends an idle log with an empty record, so that the next opening need not verify the data of the last batches.
    pub(crate) fn close_idle_log(&self) -> Result<()> {
        let mut inner = self.commits.inner.lock();
        let idle = inner.written.is_empty() && !inner.landing && inner.may_lead_at_once();
        if !idle || inner.named_sequence >= inner.flushed_sequence {
            return Ok(());
        }
        inner.writing = true;
        drop(inner);
        self.lead(Lead::CloseIdle).map(|_| ())
    }

    /// Writes the gathering batch and makes it durable, and goes on while callbacks wait that no batch covers and for
    /// which nobody else leads. The caller has set `writing`; it is clear as soon as the writes have completed.
    fn lead(&self, what: Lead) -> Result<Option<Frozen>> {
        let result = self.write_and_flush(what);
        loop {
            let mut inner = self.commits.inner.lock();
            if !inner.deserted() {
                return result;
            }
            inner.writing = true;
            drop(inner);
            // An error has stopped the pool, and reached the callbacks.
            let _ = self.write_and_flush(Lead::CommitForOthers);
        }
    }

    /// Steps 1 to 4. Who is covered by the batch has been told when it returns, or the pool has stopped.
    fn write_and_flush(&self, what: Lead) -> Result<Option<Frozen>> {
        let panics = PanicStops::new(&self.commits, "writing or flushing a batch of the log");
        let begun = Stopwatch::start();
        let result = self.write_batch(what).and_then(|sent| {
            if let Some(sequence) = sent.sequence {
                if !is(Planted::MissingFlush) {
                    let written = self.written_bytes.load(Relaxed);
                    self.pool.flush_batch()?;
                    self.flushed_bytes.fetch_max(written, Relaxed);
                }
                self.flushed(sequence, begun.elapsed());
            }
            Ok(sent.frozen)
        });
        panics.done();
        if let Err(e) = &result {
            self.commits.stop_by(e);
        }
        result
    }

    /// Steps 1 and 2.
    fn write_batch(&self, what: Lead) -> Result<Sent> {
        let mut core = self.core.lock();
        // Under the mutex: whatever this batch places on blocks that have become allocatable, it names a P from which recovery
        // sees that they had been freed before.
        let flushed = self.commits.inner.lock().flushed_sequence;
        // Who had this lock before may have left half a transaction behind: neither log nor checkpoint may have it.
        if let Some(why) = self.commits.stopped() {
            return Err(EngineError::Stopped(why));
        }
        let what = if what == Lead::CloseIdle && core.pending.transactions > 0 {
            Lead::CommitForOthers
        } else {
            what
        };
        let skip = core.pending.transactions == 0 && what != Lead::CloseIdle;
        // The planted error freezes a state whose last transactions are not in the log yet.
        let ahead = what == Lead::Freeze && is(Planted::CheckpointAhead);
        if skip || ahead {
            let frozen = (what == Lead::Freeze).then(|| self.freeze(&mut core));
            drop(core);
            self.written(None, None);
            return Ok(Sent { sequence: None, frozen });
        }
        let next = core.spare.take().unwrap_or_default();
        let pending = std::mem::replace(&mut core.pending, next);
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
        self.commits.cut(header.last);
        let at = core.log.head;
        core.log.head += (blocks * BLOCK_BYTES) as u64;
        core.log.sequence += 1;
        let mut frozen = (what == Lead::Freeze).then(|| self.freeze(&mut core));
        drop(core);

        let mut buf = AlignedBuf::with_bytes_at(BATCH_HEADER_BYTES, &pending.payload);
        debug_assert_eq!(buf.len(), blocks * BLOCK_BYTES);
        let checksum = seal(&header, &mut buf);
        // Only who writes seals, so nobody has looked at this meanwhile.
        self.core.lock().log.previous = checksum;
        if let Some(frozen) = &mut frozen {
            frozen.log.previous = checksum;
        }
        let writes: Vec<_> = pending.rides.iter().map(|(run, data)| (run.addr, data.bytes())).collect();
        self.pool.write(&writes, Some((at, &buf)))?;
        drop(writes);
        self.counters.journal_batches.fetch_add(1, Relaxed);
        self.counters.journal_bytes.fetch_add(buf.len() as u64, Relaxed);
        let (sequence, last) = (header.sequence, header.last);
        let flushes = what != Lead::CloseIdle;
        self.written(
            flushes.then_some(Written { leader_waits: what == Lead::Commit, sequence, last, pending }),
            Some(flushed),
        );
        Ok(Sent { sequence: flushes.then_some(sequence), frozen })
    }

    /// The writes have completed, if there were any: the next batch may be begun. If the writes have failed this is not
    /// called, and nobody writes ever again.
    fn written(&self, batch: Option<Written>, named: Option<u64>) {
        let mut inner = self.commits.inner.lock();
        inner.writing = false;
        if let Some(named) = named {
            inner.named_sequence = named;
        }
        if let Some(batch) = batch {
            inner.seal(batch);
        }
        let wakes = inner.call();
        drop(inner);
        self.wake(wakes);
    }

    /// A flush counts that began when batch `sequence` had been written, and all before it. Step 4.
    fn flushed(&self, sequence: u64, commit_time: Duration) {
        // One as a rule; the others, if there are any, apart.
        let (mut landed, mut more): (Option<Pending>, Vec<Pending>) = (None, Vec::new());
        let mut wakes = Wakes::default();
        let mut inner = self.commits.inner.lock();
        inner.flushed_upto = inner.flushed_upto.max(sequence);
        inner.took(commit_time);
        if inner.landing {
            return; // whoever does goes on with this one
        }
        inner.landing = true;
        let mut leaders = 0;
        while inner.written.front().is_some_and(|batch| batch.sequence <= inner.flushed_upto) {
            let batch = inner.written.pop_front().expect("just looked at");
            // Before its frees are allocatable.
            inner.flushed_sequence = batch.sequence;
            drop(inner);
            more.extend(landed.replace(self.land(batch.pending)));
            inner = self.commits.inner.lock();
            inner.durable = batch.last;
            leaders += usize::from(batch.leader_waits);
            inner.take_durable(&mut wakes, leaders);
        }
        inner.landing = false;
        wakes.next_leader(inner.call());
        drop(inner);
        self.wake(wakes);
        // Only now, when whoever waited goes on.
        if let Some(spare) = landed.and_then(Pending::emptied)
            && let Some(mut core) = self.core.try_lock()
            && core.spare.is_none()
        {
            core.spare = Some(spare);
        }
    }

    /// The batch is durable: its data can be read from the device, its frees become allocatable.
    fn land(&self, mut pending: Pending) -> Pending {
        self.settle_rides(&pending.rides);
        if !is(Planted::EarlyReuse) {
            self.readers.retire(std::mem::take(&mut pending.frees));
        }
        if pending.floated > 0 {
            self.core.lock().space.floating -= pending.floated;
        }
        self.release_retired();
        pending
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
        let runs = self.readers.drain();
        for run in &runs {
            core.space.release(*run);
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
