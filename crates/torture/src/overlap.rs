//! Batches in flight together, straight on the engine: crashes between their writes and flushes, flushes that fail, and
//! what an unfinished batch leaves behind.
//!
//! Two scenes are set in every detail, because they need an order of things that chance hardly ever gives:
//! [`failed_flush`] and [`leftover`]. [`random`] has threads commit at once on a device whose flushes take their time, and
//! compares what is found after crashes with the transactions that were applied: all up to some position, at least
//! those acknowledged by then, and nothing else, over two lives.
//!
//! Threads call `prepare` first: the control plants bugs in threads.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use varve_device::{AlignedBuf, Device, DeviceError, Discarded, Operation, Request, StatsSnapshot};
use varve_engine::{
    Data, EngineError, FormatOptions, Lsn, PoolAddr, Profile, RecoveryReport, Store, StoreOptions,
    Transaction, TreeId,
};
use varve_sim::{
    CrashPoint, CrashPolicy, Fate, Fault, FaultRule, FaultyDevice, RecordingDevice, Rng, Trigger,
};

use crate::session::Violation;
use crate::trial::{POOL_BYTES, guarded};
use crate::violation;

const NAMES: TreeId = TreeId::NAMES;
const EXTENTS: TreeId = TreeId::EXTENTS;
/// Longer than anything here takes that does not wait for something that never comes.
const PATIENCE: Duration = Duration::from_secs(120);
/// What should not happen has this long to happen.
const MOMENT: Duration = Duration::from_millis(30);

/// What each thread calls first.
pub type Prepare<'a> = &'a (dyn Fn() + Sync);

/// A device whose flushes are let through one by one.
struct Gated {
    inner: RecordingDevice,
    /// Told of each flush that has begun, by a way to let it through: whether it shall succeed.
    begun: Mutex<Option<Sender<Sender<bool>>>>,
}

impl Device for Gated {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        self.inner.run(requests)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(begun) = begun else { return self.inner.flush() };
        let (through, gate) = channel();
        // Nobody watches any more: the scene is over.
        let succeeds = begun.send(through).is_ok() && gate.recv().unwrap_or(false);
        if succeeds {
            return self.inner.flush();
        }
        let rules = vec![FaultRule::new(Operation::Flush, Trigger::Nth(1), Fault::Error)];
        FaultyDevice::new(RecordingDevice::new(1 << 20), 0, rules).flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }
    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}

impl Gated {
    fn new(inner: RecordingDevice) -> Arc<Gated> {
        Arc::new(Gated { inner, begun: Mutex::new(None) })
    }
    fn watch(&self) -> Receiver<Sender<bool>> {
        let (begun, begins) = channel();
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        begins
    }
}

fn options() -> StoreOptions {
    StoreOptions { read_only: false, cache_bytes: 1 << 20, background: false, ..StoreOptions::default() }
}

fn open(device: Arc<dyn Device>) -> Result<(Arc<Store>, RecoveryReport), Violation> {
    Store::open(vec![device], options()).map_err(|e| violation!("opening fails: {e}"))
}

fn formatted() -> Result<RecordingDevice, Violation> {
    let device = Arc::new(RecordingDevice::new(POOL_BYTES));
    let options = FormatOptions {
        data: Profile::Single,
        metadata: Profile::Dup,
        pool_id: *b"varve crash pool",
        hash_seed: 7,
        force: false,
    };
    Store::format(&[device.clone() as Arc<dyn Device>], &options)
        .map_err(|e| violation!("format fails: {e}"))?;
    Ok(RecordingDevice::from_image(device.live_image()))
}

fn put(store: &Store, key: &[u8]) -> Result<Lsn, Violation> {
    let mut tx = Transaction::new();
    tx.put(NAMES, key, b"value");
    store.apply(tx, None).map_err(|e| violation!("apply fails: {e}"))
}

fn holds(store: &Store, key: &[u8]) -> Result<bool, Violation> {
    Ok(store.get(NAMES, key).map_err(|e| violation!("get fails: {e}"))?.is_some())
}

/// Two batches whose flushes overlap: both have begun, in the order of the batches. `then` gets the ways to let them
/// through and what becomes of the commits.
fn both_in_flight<T>(
    store: &Arc<Store>,
    device: &Gated,
    prepare: Prepare<'_>,
    then: impl FnOnce([Sender<bool>; 2], [Receiver<Result<(), EngineError>>; 2]) -> Result<T, Violation>,
) -> Result<T, Violation> {
    let begins = device.watch();
    thread::scope(|scope| {
        let commit = |key: &'static [u8]| {
            let (told, tell) = channel();
            let lsn = put(store, key)?;
            scope.spawn(move || {
                prepare();
                // Two threads that waited would share a batch. The scene may be over.
                store.commit_then(lsn, Box::new(move |result| drop(told.send(result))));
            });
            let Ok(through) = begins.recv_timeout(PATIENCE) else {
                return Err(violation!("the flush of {:?} does not begin", key.escape_ascii()));
            };
            Ok((through, tell))
        };
        let one = commit(b"first")?;
        let other = commit(b"second")?;
        let result = then([one.0, other.0], [one.1, other.1]);
        *device.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        result
    })
}

/// A flush fails while the next batch's succeeds: neither batch is acknowledged, in whichever order they return.
pub fn failed_flush(prepare: Prepare<'_>) -> Result<(), Violation> {
    for later_returns_first in [true, false] {
        let device = Gated::new(formatted()?);
        let (store, _) = open(device.clone())?;
        let durable = store.durable_position();
        both_in_flight(&store, &device, prepare, |[first, second], [one, other]| {
            let let_through = |gate: &Sender<bool>, succeeds| {
                gate.send(succeeds).map_err(|_| violation!("a flush is not there any more"))
            };
            let ended = |commit: &Receiver<Result<(), EngineError>>| {
                commit.recv_timeout(PATIENCE).map_err(|_| violation!("a commit does not end"))
            };
            if later_returns_first {
                let_through(&second, true)?;
                if let Ok(result) = other.recv_timeout(MOMENT) {
                    let_through(&first, false)?;
                    return Err(violation!(
                        "a batch is acknowledged ({result:?}) while the flush before has not returned"
                    ));
                }
                let_through(&first, false)?;
            } else {
                let_through(&first, false)?;
                ended(&one)?.err().ok_or_else(|| violation!("a failed flush is acknowledged"))?;
                let_through(&second, true)?;
            }
            if later_returns_first && ended(&one)?.is_ok() || ended(&other)?.is_ok() {
                return Err(violation!("a batch is acknowledged although the flush before it failed"));
            }
            Ok(())
        })?;
        if store.durable_position() != durable || store.commit(store.position()).is_ok() {
            return Err(violation!("something is taken for durable after a failed flush"));
        }
    }
    Ok(())
}

/// Power fails while two batches are in flight: the first is lost, all of the second is there. The next life begins with the
/// very same first batch; the one after must not see the second behind it.
pub fn leftover(prepare: Prepare<'_>) -> Result<(), Violation> {
    prepare();
    let device = Gated::new(formatted()?);
    let (store, report) = open(device.clone())?;
    if !report.clean {
        return Err(violation!("a new pool is not clean"));
    }
    let before = device.inner.mark();
    let image = both_in_flight(&store, &device, prepare, |gates, _| {
        let cutter = device.inner.cutter_at(device.inner.mark());
        if cutter.pending().any(|write| write.issued_at < before) || cutter.pending_count() != 2 {
            return Err(violation!("expected one write a batch, and nothing else in doubt"));
        }
        device.inner.power_off();
        drop(gates);
        Ok(cutter.image_with(|index, _| if index == 0 { Fate::Drop } else { Fate::Keep }))
    })?;
    drop(store);
    let device = Arc::new(RecordingDevice::from_image(image));
    let (store, _) = open(device.clone())?;
    if holds(&store, b"first")? || holds(&store, b"second")? {
        return Err(violation!("a batch counts although the one before it is lost"));
    }
    let lsn = put(&store, b"first")?;
    store.commit(lsn).map_err(|e| violation!("commit fails: {e}"))?;
    drop(store);
    let (store, _) = open(Arc::new(RecordingDevice::from_image(device.live_image())))?;
    if !holds(&store, b"first")? {
        return Err(violation!("an acknowledged change is lost"));
    }
    if holds(&store, b"second")? {
        return Err(violation!("the leftover of a batch that was in flight has been revived"));
    }
    Ok(())
}

/// A transaction of [`random`].
#[derive(Clone)]
struct Applied {
    key: Vec<u8>,
    fill: Option<u8>,
}

/// What a life has done: transactions by position, and positions with the number of events when they were acknowledged.
#[derive(Default)]
struct History {
    applied: BTreeMap<u64, Applied>,
    acknowledged: Vec<(u64, usize)>,
    /// How many transactions, and how many commits, were asked for.
    wanted: (usize, usize),
    /// What failed first.
    failed: Option<EngineError>,
}

impl History {
    fn fail(&mut self, error: EngineError) {
        self.failed.get_or_insert(error);
    }

    /// On a device that is sound nothing may fail, and all that was wanted is done.
    fn is_whole(&self) -> Result<(), Violation> {
        if let Some(error) = &self.failed {
            return Err(violation!("on a sound device something fails: {error}"));
        }
        let done = (self.applied.len(), self.acknowledged.len());
        if done != self.wanted {
            let (wanted, commits) = self.wanted;
            return Err(violation!(
                "of {wanted} transactions {} were applied, and of {commits} commits {} acknowledged",
                done.0,
                done.1
            ));
        }
        Ok(())
    }
}

/// Applies one transaction: a name, perhaps with a block that rides.
fn step(store: &Store, key: Vec<u8>, rng: &mut Rng) -> Result<(Lsn, Applied), EngineError> {
    let mut tx = Transaction::new();
    tx.put(NAMES, &key, b"value");
    let mut reservation = None;
    let mut fill = None;
    if rng.chance(0.5) {
        let mut r = store.reserve(2, 2, 80)?;
        let run = store.allocate(&mut r, 1, PoolAddr::NULL)?[0];
        let byte = 1 + rng.below(255) as u8;
        let mut buf = AlignedBuf::new(4096);
        buf.fill(byte);
        tx.place_riding(run, Data { len: buf.len(), buf: Arc::new(buf), offset: 0 });
        tx.put(EXTENTS, &key, &run.addr.0.to_le_bytes());
        (reservation, fill) = (Some(r), Some(byte));
    }
    Ok((store.apply(tx, reservation.as_mut())?, Applied { key, fill }))
}

fn locked(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads commit at once until they have made their transactions, whatever fails.
fn life(
    store: &Arc<Store>,
    device: &Arc<RecordingDevice>,
    rng: &mut Rng,
    prepare: Prepare<'_>,
) -> Result<History, Violation> {
    let history = Arc::new(Mutex::new(History::default()));
    let (threads, calls) = (rng.between(2, 6), rng.between(4, 20));
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let mut rng = rng.fork(&format!("thread {thread}"));
                let (history, device) = (&history, device);
                scope.spawn(move || {
                    guarded(|| {
                        prepare();
                        for number in 0..calls {
                            let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                            // Who goes on after a failure must not be told that anything is durable.
                            if let Err(error) = call(store, device, history, key, &mut rng) {
                                locked(history).fail(error);
                            }
                        }
                        Ok(())
                    })
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("its panics are caught"))
    })?;
    Ok(std::mem::take(&mut locked(&history)))
}

/// Applies a transaction and has it committed in one of all ways, or not.
fn call(
    store: &Arc<Store>,
    device: &Arc<RecordingDevice>,
    history: &Arc<Mutex<History>>,
    key: Vec<u8>,
    rng: &mut Rng,
) -> Result<(), EngineError> {
    locked(history).wanted.0 += 1;
    let (lsn, applied) = step(store, key, rng)?;
    locked(history).applied.insert(lsn.0, applied);
    match rng.below(8) {
        0 => {}
        1 => {
            let (history, device) = (history.clone(), device.clone());
            locked(&history).wanted.1 += 1;
            store.commit_then(
                lsn,
                Box::new(move |result| {
                    let events = device.events();
                    match result {
                        Ok(()) => locked(&history).acknowledged.push((lsn.0, events)),
                        Err(error) => locked(&history).fail(error),
                    }
                }),
            );
        }
        2 if rng.chance(0.3) => store.checkpoint()?,
        _ => {
            locked(history).wanted.1 += 1;
            store.commit(lsn)?;
            let events = device.events();
            locked(history).acknowledged.push((lsn.0, events));
        }
    }
    Ok(())
}

/// What is found after a crash at `events` is what was applied up to some position, which it gives.
fn judge(store: &Store, end: Lsn, events: usize, lives: &[(&History, u64)]) -> Result<(), Violation> {
    let mut expected: BTreeMap<Vec<u8>, Option<u8>> = BTreeMap::new();
    for (number, (history, upto)) in lives.iter().enumerate() {
        let upto = if number + 1 == lives.len() { end.0 } else { *upto };
        for (_, applied) in history.applied.range(..=upto) {
            expected.insert(applied.key.clone(), applied.fill);
        }
    }
    if let Some((history, _)) = lives.last() {
        let acknowledged = history.acknowledged.iter().filter(|(_, at)| *at <= events).map(|(lsn, _)| *lsn);
        if let Some(least) = acknowledged.max()
            && end.0 < least
        {
            return Err(violation!("transaction {least} was acknowledged, the log ends at {}", end.0));
        }
    }
    let mut found: BTreeMap<Vec<u8>, Option<u8>> = BTreeMap::new();
    let view = store.view();
    let mut names = Vec::new();
    view.scan(NAMES, &[], &mut |key, _| {
        names.push(key.to_vec());
        true
    })
    .map_err(|e| violation!("scan fails: {e}"))?;
    for key in names {
        let at = view.get(EXTENTS, &key).map_err(|e| violation!("get fails: {e}"))?;
        let mut fill = None;
        if let Some(addr) = at {
            let bytes: [u8; 8] =
                addr[..].try_into().map_err(|_| violation!("an extent of another length"))?;
            let mut buf = AlignedBuf::new(4096);
            store
                .read_data(PoolAddr(u64::from_le_bytes(bytes)), &mut buf)
                .map_err(|e| violation!("data of a transaction that counts cannot be read: {e}"))?;
            fill = Some(buf[0]);
        }
        found.insert(key, fill);
    }
    drop(view);
    if found != expected {
        let differs = expected.iter().find(|(key, fill)| found.get(*key) != Some(fill));
        return Err(violation!(
            "up to {} there should be {} names, {} are found; the first that differs: {differs:?}",
            end.0,
            expected.len(),
            found.len()
        ));
    }
    Ok(())
}

/// Runs threads of `seed`, then judges crashes, each with another life and a crash of that. Gives their number.
pub fn random(seed: u64, prepare: Prepare<'_>) -> Result<u64, Violation> {
    const CRASHES: u64 = 12;
    let mut rng = Rng::new(seed);
    let recording = Arc::new(formatted()?);
    recording.set_flush_duration(Duration::from_micros([0, 50, 200, 1_000][rng.index(4)]));
    let mut rules = Vec::new();
    if rng.chance(0.3) {
        let (operation, nth) = match rng.chance(0.75) {
            true => (Operation::Flush, Trigger::Nth(rng.between(2, 16))),
            false => (Operation::Write, Trigger::Nth(rng.between(2, 30))),
        };
        rules.push(FaultRule::new(operation, nth, Fault::ErrorInPart));
        // Others begin and return while it is about to fail.
        rules.push(FaultRule::new(Operation::Flush, nth, Fault::Stall(Duration::from_millis(2))));
        let late = Fault::Stall(Duration::from_micros(500));
        rules.push(FaultRule::new(Operation::Flush, Trigger::Chance(0.2), late));
    }
    let is_faulty = !rules.is_empty();
    let told = recording.clone();
    let device = FaultyDevice::new(recording.clone(), seed, rules);
    let device = Arc::new(device.on_failed_flush(move || told.fail_flush()));
    let (store, _) = open(device)?;
    let first = recording.events();
    let history = life(&store, &recording, &mut rng, prepare)?;
    if !is_faulty {
        history.is_whole()?;
    }
    // Without a close.
    drop(store);
    let last = recording.events();
    let mut judged = 0;
    for _ in 0..CRASHES {
        // At the end everything is in doubt that a failed flush has let go of.
        let events = if rng.chance(0.25) { last } else { rng.between(first as u64, last as u64) as usize };
        let image = recording.crash_image(CrashPoint(events), &mut rng, CrashPolicy::Seeded);
        let crashed = Arc::new(RecordingDevice::from_image(image));
        let (store, report) = open(crashed.clone())?;
        judge(&store, report.end, events, &[(&history, 0)])
            .map_err(|Violation(what)| violation!("crash at event {events}: {what}"))?;
        judged += 1;
        let kept = report.end.0;
        crashed.set_flush_duration(Duration::from_micros(100));
        let second = life(&store, &crashed, &mut rng, prepare)?;
        second.is_whole().map_err(|Violation(what)| violation!("after a crash at {events}: {what}"))?;
        drop(store);
        let end = crashed.events();
        let again = rng.between(0, end as u64) as usize;
        let image = crashed.crash_image(CrashPoint(again), &mut rng, CrashPolicy::Seeded);
        let (store, report) = open(Arc::new(RecordingDevice::from_image(image)))?;
        judge(&store, report.end, again, &[(&history, kept), (&second, 0)])
            .map_err(|Violation(what)| violation!("crash at {events}, then at {again}: {what}"))?;
        judged += 1;
    }
    Ok(judged)
}
