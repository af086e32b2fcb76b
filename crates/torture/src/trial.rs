//! One trial: a workload, then crashes at every place or at seeded places of what it did to the device.
//!
//! A trial depends on its kind and seed alone; crash number k of it depends on those and on k, so that a single crash
//! can be repeated without the others.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use varve_device::Device;
use varve_fs::{Caller, Filesystem, FormatOptions, Profile};
use varve_sim::{CrashPolicy, Rng};

use crate::call::Call;
use crate::compare::compare;
use crate::concurrent;
use crate::disk::{Cut, Disk};
use crate::model::Model;
use crate::oracle::{Depth, judge, judge_kill};
use crate::reads::Reads;
use crate::session::{Opened, Session, Setup, StepClock, Violation};
use crate::timeline::Timeline;
use crate::violation;
use crate::workload::{Base, Kind, after_crash, exhaustive};

/// Size of the pools: the smallest there may be.
pub const POOL_BYTES: u64 = 64 << 20;
/// What a call says that could not read.
const EIO: i32 = 5;
/// Calls of the history shown with a failure.
const HISTORY_MAX: usize = 60;

/// What a trial did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Workloads run.
    pub workloads: u64,
    /// Crashes simulated, second ones included.
    pub crashes: u64,
    /// Exchanges of two subvolumes in the workloads.
    pub exchanges: u64,
}

/// A broken promise, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Kind of workload.
    pub kind: Kind,
    /// Its seed.
    pub seed: u64,
    /// Which crash of it; none if it failed while running.
    pub crash: Option<u64>,
    /// Crashes that this trial had survived before.
    pub crashes_before: u64,
    /// What was broken.
    pub what: String,
    /// The calls made.
    pub history: String,
}

impl Failure {
    /// The command that repeats it.
    pub fn reproduce(&self) -> String {
        let crash = self.crash.map_or(String::new(), |crash| format!(" --crash {crash}"));
        format!(
            "cargo run --release -p varve-torture -- replay --kind {} --seed {}{crash}",
            self.kind, self.seed
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} workload, seed {}, crash {:?}: {}", self.kind, self.seed, self.crash, self.what)?;
        writeln!(f, "calls (position before..after, call, errno):\n{}", self.history)?;
        write!(f, "reproduce: {}", self.reproduce())
    }
}

/// Whether one crash is wanted or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// All crashes of the trial.
    All,
    /// That one.
    One(u64),
    /// None: only the workload, compared with the model call by call.
    None,
}

struct Prepared {
    disk: Disk,
    model: Model,
    clock_seconds: i64,
}

/// Formats a pool on `disk`.
pub fn format(disk: &Disk, data: Profile) -> Result<Model, Violation> {
    let clock = StepClock::new(1_000_000_000);
    let options = FormatOptions {
        data,
        metadata: Profile::Dup,
        pool_id: *b"varve crash pool",
        hash_seed: 0x0123_4567_89ab_cdef,
        force: false,
    };
    let device: Arc<dyn Device> = disk.device();
    Filesystem::format(&[device], &options, Caller::ROOT, &*clock)
        .map_err(|e| violation!("format fails: {e}"))?;
    Ok(Model::new(0, 0, 0o755, varve_fs::Clock::now(&*clock)))
}

fn prepare(base: Base) -> Result<Prepared, Violation> {
    let disk = Disk::new(POOL_BYTES);
    let data = if base == Base::EmptyDup { Profile::Dup } else { Profile::Single };
    let mut model = format(&disk, data)?;
    let mut disk = disk.fork();
    if base == Base::SmallTree {
        let mut session = open(disk, None, &Setup::default(), model, 1_000_000_001)?;
        exhaustive::populate(&mut session)?;
        // Left unclosed: recovery has the population to replay in front of what the workload adds.
        let (_, used, live) = session.end();
        (disk, model) = (used.fork(), after_crash(live));
    }
    Ok(Prepared { disk, model, clock_seconds: 1_000_001_000 })
}

/// The disk and state a kind begins with, made once.
fn prepared(base: Base) -> Result<(Disk, Model, i64), Violation> {
    static CACHE: Mutex<BTreeMap<Base, Arc<Prepared>>> = Mutex::new(BTreeMap::new());
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = match cache.get(&base) {
        Some(found) => found.clone(),
        None => {
            let made = Arc::new(prepare(base)?);
            cache.insert(base, made.clone());
            made
        }
    };
    Ok((found.disk.fork(), found.model.clone(), found.clock_seconds))
}

/// Opens what is on `disk`, through `device` if there is one.
fn open(
    disk: Disk,
    device: Option<Reads>,
    setup: &Setup,
    model: Model,
    clock_seconds: i64,
) -> Result<Session, Violation> {
    let clock = StepClock::new(clock_seconds);
    let device: Arc<dyn Device> =
        device.map_or_else(|| disk.device() as Arc<dyn Device>, |device| Arc::new(device));
    let opened = Opened::open_on(device, setup, &clock, false).map_err(|e| violation!("open fails: {e}"))?;
    Ok(Session::new(opened, disk, clock, *setup, model))
}

/// Runs trial `seed` of `kind`. A panic anywhere in it is its failure.
pub fn run(kind: Kind, seed: u64, wanted: Wanted) -> Result<Counts, Box<Failure>> {
    catch_unwind(AssertUnwindSafe(|| run_all(kind, seed, wanted))).unwrap_or_else(|panic| {
        let (Violation(what), history) = (panicked(&*panic), String::new());
        Err(Box::new(Failure { kind, seed, crash: None, crashes_before: 0, what, history }))
    })
}

fn run_all(kind: Kind, seed: u64, wanted: Wanted) -> Result<Counts, Box<Failure>> {
    let setup = kind.setup(seed);
    let session = Mutex::new(None);
    let failure = |crash, crashes_before, what: String, history: String| {
        Box::new(Failure { kind, seed, crash, crashes_before, what, history })
    };
    if kind == Kind::Concurrent {
        return concurrent(seed, wanted).map_err(|(crash, Violation(what))| {
            let history = "(the order of calls between threads is not repeated: run it several times)".into();
            failure(crash, crash.unwrap_or(0), what, history)
        });
    }
    let history = |session: &Mutex<Option<Session>>| {
        let guard = session.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().map_or(String::new(), |session: &Session| session.history(HISTORY_MAX))
    };
    guarded(|| {
        let (disk, model, clock_seconds) = prepared(kind.base(seed))?;
        let mut guard = session.lock().unwrap_or_else(PoisonError::into_inner);
        let device = unread(kind, seed).map(|_| Reads::new(disk.device()));
        let session = guard.insert(open(disk, device.clone(), &setup, model, clock_seconds)?);
        if let Some((rng, probability)) = trims(kind, seed) {
            session.trim_between(rng, probability);
        }
        if let (Some(device), Some((rng, probability))) = (device, unread(kind, seed)) {
            session.fail_reads(device, rng, probability);
        }
        kind.run(session, seed)?;
        if !matches!(kind, Kind::Pair | Kind::Triple) {
            session.verify_space()?;
        }
        session.verify()?;
        if kind.closes(seed) {
            match session.call(&Call::Close)? {
                0 => reopen_cleanly(session, &setup)?,
                // It could not read: what it has logged is there, and what was acknowledged.
                EIO => {
                    let cut = Cut {
                        events: session.disk().events(),
                        policy: CrashPolicy::KeepAll,
                        tear_within: false,
                    };
                    let depth = Depth { calls_after: 0, crashes_after: 0, read_only_too: true };
                    let mut rng = Rng::new(seed).fork("closed in part");
                    judge(session.timeline(), session.disk(), &cut, &setup, &depth, &mut rng)?;
                }
                errno => return Err(violation!("closing fails with errno {errno}")),
            }
        }
        Ok(())
    })
    .map_err(|Violation(what)| failure(None, 0, what, history(&session)))?;
    let calls = history(&session);
    let session = session.into_inner().unwrap_or_else(PoisonError::into_inner).expect("the workload ran");
    let exchanges = session.exchanges();
    let (timeline, disk, _) = session.end();
    let mut counts = Counts { workloads: 1, crashes: 0, exchanges };
    let cuts = cuts(kind, seed, &timeline, &disk);
    for (number, cut) in cuts.iter().enumerate() {
        let number = number as u64;
        if wanted == Wanted::None || matches!(wanted, Wanted::One(one) if one != number) {
            continue;
        }
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(number).wrapping_add(1));
        let depth = depth(kind, number, &mut rng);
        let judged = guarded(|| judge(&timeline, &disk, cut, &setup, &depth, &mut rng));
        counts.crashes += judged.map_err(|Violation(what)| {
            failure(Some(number), counts.crashes, format!("crash at {cut}: {what}"), calls.clone())
        })?;
    }
    for (number, events) in kills(kind, seed, &timeline, &disk).into_iter().enumerate() {
        let number = (cuts.len() + number) as u64;
        if wanted == Wanted::None || matches!(wanted, Wanted::One(one) if one != number) {
            continue;
        }
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(number).wrapping_add(1));
        let judged = guarded(|| judge_kill(&timeline, &disk, events, &setup, &mut rng));
        counts.crashes += judged.map_err(|Violation(what)| {
            let what = format!("killed at event {events}: {what}");
            failure(Some(number), counts.crashes, what, calls.clone())
        })?;
    }
    Ok(counts)
}

/// Instants at which the process of trial `seed` is killed while the machine goes on: any, one at which writes are in doubt, just
/// before a flush returns, or the last of those if the pool is closed by it.
fn kills(kind: Kind, seed: u64, timeline: &Timeline, disk: &Disk) -> Vec<usize> {
    let Some(mut rng) = killed(kind, seed) else { return Vec::new() };
    let first = timeline.first_event();
    let mut doubtful = disk.flush_boundaries();
    doubtful.retain(|events| *events >= first && disk.pending_count(*events) > 0);
    let instant = match rng.below(4) {
        0 | 1 if kind.closes(seed) => doubtful.last().copied(),
        0 | 1 => rng.pick(&doubtful).copied(),
        _ => Some(rng.between(first as u64, disk.events() as u64) as usize),
    };
    instant.into_iter().collect()
}

/// Whether the process of trial `seed` is killed.
pub(crate) fn killed(kind: Kind, seed: u64) -> Option<Rng> {
    let mut rng = Rng::new(seed).fork("kills");
    let probability = match (kind, kind.closes(seed)) {
        (Kind::Pair | Kind::Triple, false) => 0.1,
        // Of workloads that close few are killed just then.
        _ => 0.5,
    };
    rng.chance(probability).then_some(rng)
}

/// Whether there are trims between the calls of trial `seed`, and how likely each is: in one of four.
pub(crate) fn trims(kind: Kind, seed: u64) -> Option<(Rng, f64)> {
    let mut rng = Rng::new(seed).fork("trims");
    let probability = match kind {
        Kind::Pair | Kind::Triple => 0.3,
        Kind::Random | Kind::Forks => [0.02, 0.1][rng.index(2)],
        Kind::Full | Kind::Ring | Kind::Tree | Kind::Steps | Kind::Concurrent => 0.01,
    };
    (rng.below(4) == 0).then_some((rng, probability))
}

/// Whether reads fail during the calls of trial `seed`, and how likely that is during each: in one of four, and nearly always where
/// that is what it is for.
pub(crate) fn unread(kind: Kind, seed: u64) -> Option<(Rng, f64)> {
    let mut rng = Rng::new(seed).fork("unread");
    let probability = match kind {
        Kind::Pair | Kind::Triple => 0.5,
        Kind::Random | Kind::Forks | Kind::Tree => [0.02, 0.2][rng.index(2)],
        Kind::Full | Kind::Ring => 0.02,
        Kind::Steps => return (rng.below(8) > 0).then_some((rng, 0.6)),
        Kind::Concurrent => return None,
    };
    (rng.below(4) == 0).then_some((rng, probability))
}

fn concurrent(seed: u64, wanted: Wanted) -> Result<Counts, (Option<u64>, Violation)> {
    let crashes = if wanted == Wanted::None { 0 } else { Kind::Concurrent.crashes().seeded as u64 };
    let (disk, ..) = prepared(Base::Empty).map_err(|violation| (None, violation))?;
    let crashes = concurrent::run(&disk, seed, crashes, &|| {})?;
    Ok(Counts { workloads: 1, crashes, exchanges: 0 })
}

/// After a clean close nothing is left to recover, and everything is there.
fn reopen_cleanly(session: &Session, setup: &Setup) -> Result<(), Violation> {
    let clock = StepClock::new(1 << 32);
    let opened = Opened::open(&session.disk().fork(), setup, &clock, false)
        .map_err(|error| violation!("opening after a clean close fails: {error}"))?;
    if !opened.report.clean || opened.report.batches_replayed > 0 {
        return Err(violation!("after a clean close opening reports {:?}", opened.report));
    }
    let mut model = session.live().clone();
    model.forget_opens();
    let found = compare(&opened.fs, &model);
    found.map(drop).map_err(|found| violation!("after a clean close the tree differs:\n{found}"))
}

/// Turns a panic of what is tested into a violation, so that its seed is printed.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

/// What a panic has said.
fn panicked(panic: &(dyn Any + Send)) -> Violation {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    violation!("panic: {}", text.unwrap_or("of an unknown kind"))
}

fn cuts(kind: Kind, seed: u64, timeline: &Timeline, disk: &Disk) -> Vec<Cut> {
    let crashes = kind.crashes();
    let mut rng = Rng::new(seed ^ 0x6375_7473);
    let first = timeline.first_event();
    let mut cuts = Vec::new();
    if crashes.every_flush {
        let mut instants = disk.flush_boundaries();
        instants.push(disk.events());
        instants.retain(|events| *events >= first);
        instants.dedup();
        for events in instants {
            let plain = |policy| Cut { events, policy, tear_within: false };
            cuts.push(plain(CrashPolicy::DropAll));
            let pending = disk.pending_count(events);
            if pending > 0 {
                cuts.push(plain(CrashPolicy::KeepAll));
                cuts.extend((1..crashes.seeded).map(|_| plain(CrashPolicy::Seeded)));
                cuts.push(Cut { tear_within: true, ..plain(CrashPolicy::KeepAll) });
            }
        }
    } else {
        cuts.extend((0..crashes.seeded).map(|_| Cut::seeded(disk, first, &mut rng)));
        // Rising, so that walking along the recording is linear in all.
        cuts.sort_by_key(|cut| cut.events);
    }
    cuts
}

fn depth(kind: Kind, number: u64, rng: &mut Rng) -> Depth {
    match kind {
        Kind::Pair | Kind::Triple => Depth {
            calls_after: if number.is_multiple_of(4) { 6 } else { 0 },
            crashes_after: if number.is_multiple_of(4) { 3 } else { 0 },
            read_only_too: rng.below(16) == 0,
        },
        Kind::Random | Kind::Ring | Kind::Tree | Kind::Forks | Kind::Steps => Depth {
            calls_after: if rng.below(2) == 0 { 12 } else { 0 },
            crashes_after: 3,
            read_only_too: rng.below(16) == 0,
        },
        Kind::Full | Kind::Concurrent => Depth { calls_after: 12, crashes_after: 2, read_only_too: false },
    }
}
