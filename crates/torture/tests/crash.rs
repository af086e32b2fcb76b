//! The part of the suite that continuous integration runs: real filesystems, simulated crashes.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use varve_device::{Device, DeviceError, Discarded, Operation, Request, StatsSnapshot};
use varve_fs::{
    Allocate, Caller, Filesystem, OpenOptions, Profile, ROOT_INODE, RenameMode, SetAttr, StoreOptions,
};
use varve_sim::{CrashPolicy, Fault, FaultRule, FaultyDevice, RecordingDevice, Rng, Trigger};
use varve_torture::call::{Call, fill};
use varve_torture::crash_test::crash_test;
use varve_torture::disk::{Cut, Disk};
use varve_torture::overlap;
use varve_torture::session::{Opened, Setup, StepClock};
use varve_torture::suite::run_steps;
use varve_torture::trial::{Counts, POOL_BYTES, Wanted, format, run};
use varve_torture::workload::{Kind, exhaustive};

/// Steps each thread runs. What a test does is counted, not timed: a slow machine takes longer for it.
const STEPS: u64 = 64;
/// Only a machine that has come to a stop takes so long.
const BUDGET: Duration = Duration::from_secs(900);
/// Enough for workloads of forks alone.
const FORKS_CRASHES: u64 = 1_600;
/// Enough for calls of many steps.
const STEPS_CRASHES: u64 = 600;
/// Enough for batches in flight together.
const OVERLAP_CRASHES: u64 = 1_200;
const THREADS: u64 = 2;
const SEED: u64 = 1;

// Goal: promise 1 holds at every flush of small workloads and at seeded instants of large ones. Method: the first
// steps of the suite on two threads; every image is recovered, compared with the model and checked.
#[test]
fn suite_survives() {
    if varve_torture::tuned::test("suite_survives") {
        return;
    }
    // Each takes the next step: kinds take very different times, and come back after a fixed number of steps.
    let next = AtomicU64::new(0);
    let run_all = || {
        let (mut crashes, mut workloads) = (0, 0);
        loop {
            let step = next.fetch_add(1, Ordering::Relaxed);
            if step >= THREADS * STEPS {
                return (crashes, workloads);
            }
            let outcome = run_steps(SEED, step, 1, 1, BUDGET);
            (crashes, workloads) = (crashes + outcome.counts.crashes, workloads + outcome.counts.workloads);
            if let Some(failure) = outcome.failure {
                panic!("step {step}, after {} crashes: {failure}", outcome.counts.crashes);
            }
        }
    };
    let counts: Vec<(u64, u64)> = thread::scope(|scope| {
        let runs: Vec<_> = (0..THREADS).map(|_| scope.spawn(run_all)).collect();
        runs.into_iter().map(|run| run.join().expect("no step fails")).collect()
    });
    let crashes: u64 = counts.iter().map(|(crashes, _)| crashes).sum();
    let workloads: u64 = counts.iter().map(|(_, workloads)| workloads).sum();
    println!("{crashes} crashes in {workloads} workloads");
    assert!(crashes > 1_000, "only {crashes} crashes in all steps");
}

// Goal: the enumeration of small sequences is complete. Method: every pair of operations and barriers occurs once.
#[test]
fn pairs_are_exhaustive() {
    let mut seen: Vec<_> = (0..exhaustive::PAIRS).map(|i| format!("{:?}", exhaustive::pair(i))).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len() as u64, exhaustive::PAIRS);
    let n = exhaustive::OPERATIONS.len();
    assert_eq!(seen.len(), n * 3 + n * n * 9);
}

/// Workloads of a kind, the first seeds of it, until there have been so many crashes.
fn survives(kind: Kind, wanted: u64) -> Counts {
    let mut all = Counts::default();
    for seed in 1..=60 {
        if all.crashes >= wanted {
            break;
        }
        match run(kind, seed, Wanted::All) {
            Ok(counts) => {
                all.crashes += counts.crashes;
                all.exchanges += counts.exchanges;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    let crashes = all.crashes;
    println!("{crashes} crashes");
    assert!(crashes >= wanted, "only {crashes} crashes in all seeds");
    all
}

// Goal: promise 1 holds for subvolumes, snapshots and clones, and what is deleted comes back whole. Method: workloads that
// fork small trees again and again, each beside a model with a full copy of every snapshot.
#[test]
fn forks_survive() {
    if varve_torture::tuned::test("forks_survive") {
        return;
    }
    let exchanges = survives(Kind::Forks, FORKS_CRASHES).exchanges;
    println!("{exchanges} exchanges of subvolumes");
    assert!(exchanges > 0, "no two subvolumes were exchanged");
}

// Goal: promise 1 holds when reads fail in the middle of calls of many steps, and what such a call has done by then is a beginning
// of what it is to do. Method: workloads of such calls on files of which nothing is in memory, each made again afterwards.
#[test]
fn steps_survive() {
    if varve_torture::tuned::test("steps_survive") {
        return;
    }
    survives(Kind::Steps, STEPS_CRASHES);
}

// Goal: batches in flight together keep the promise: one whose flush fails takes the later ones with it, and what a lost
// one leaves behind stays dead. Method: two scenes with the flushes let through one by one; then threads that commit at
// once on a device with slow flushes, some of which fail, with two crashes and another life between for each image.
#[test]
fn overlapping_batches_survive() {
    if varve_torture::tuned::test("overlapping_batches_survive") {
        return;
    }
    let nothing = || {};
    overlap::failed_flush(&nothing).unwrap_or_else(|violation| panic!("{}", violation.0));
    overlap::leftover(&nothing).unwrap_or_else(|violation| panic!("{}", violation.0));
    let mut crashes = 0;
    for seed in 1..=200 {
        if crashes >= OVERLAP_CRASHES {
            break;
        }
        match overlap::random(seed, &nothing) {
            Ok(judged) => crashes += judged,
            Err(violation) => panic!("overlap, seed {seed}: {}", violation.0),
        }
    }
    println!("{crashes} crashes");
    assert!(crashes >= OVERLAP_CRASHES, "only {crashes} crashes in all seeds");
}

// Goal: the workload of threads has batches in flight together. Method: count, in what the device recorded, the writes and
// flushes that were begun while a flush was under way; a few seeds are enough where the threads get processors.
#[test]
fn batches_overlap_in_the_concurrent_workload() {
    let (mut writes, mut flushes) = (0, 0);
    for seed in 1..=60 {
        if writes > 100 && flushes > 20 {
            break;
        }
        let disk = Disk::new(POOL_BYTES);
        format(&disk, Profile::Single).unwrap_or_else(|violation| panic!("{}", violation.0));
        if let Err((_, violation)) = varve_torture::concurrent::run(&disk, seed, 0, &|| {}) {
            panic!("seed {seed}: {}", violation.0);
        }
        let (w, f) = disk.overlaps();
        (writes, flushes) = (writes + w, flushes + f);
    }
    println!("{writes} writes and {flushes} flushes were begun while a flush was under way");
    assert!(writes > 100 && flushes > 20, "{writes} writes, {flushes} flushes");
}

// Goal: a panic of a thread is the failure of its workload, with what it said. Method: a thread that panics first of all.
#[test]
fn a_panic_among_threads_is_a_violation() {
    let disk = Disk::new(POOL_BYTES);
    format(&disk, Profile::Single).unwrap_or_else(|violation| panic!("{}", violation.0));
    let found = varve_torture::concurrent::run(&disk, SEED, 1, &|| resume_unwind(Box::new("planted")));
    let (crash, violation) = found.expect_err("all threads have panicked");
    assert_eq!((crash, violation.0.contains("panic: planted")), (None, true), "{}", violation.0);
}

// Goal: a trial depends on its seed alone. Method: the same workload twice gives the same number of crashes.
#[test]
fn trials_repeat() {
    let count = || run(Kind::Random, 12, Wanted::All).map(|counts| counts.crashes);
    let first = count().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(first, count().unwrap_or_else(|failure| panic!("{failure}")));
}

// Goal: what a long run found once stays mended. Method: those trials again, whole. The first: space set aside by
// fallocate was half given up by a recovery, where privileged work had gone into the protected part. The others: the
// judge took a page in a gap of logged data for logged, and did not see a copy from unlogged data drop a capability. And a
// forecast that was too large for an exchange of names, then one so exact that it left nothing for space set aside. And bytes for a
// directory that is only added to, which were refused as if it had an end to write them at. And a rename in a snapshot's source, which
// changes nine nodes in five trees, where the judge took eight for enough; and the first attribute of a pool, on an inode that a
// snapshot shows.
#[test]
fn what_failed_once_survives() {
    let full =
        [2029006246, 2029007078, 1814439712959459851, 11000034000354, 12112336338531, 2411017888, 2525015094]
            .map(|seed| (Kind::Full, seed));
    for (kind, seed) in full.into_iter().chain([(Kind::Random, 2029008878), (Kind::Pair, 15578)]) {
        if let Err(failure) = run(kind, seed, Wanted::All) {
            panic!("{failure}");
        }
    }
}

/// The recording device below one that fails.
struct Shared(Arc<RecordingDevice>);

impl Device for Shared {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        self.0.run(requests)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.0.discard(offset, len_bytes)
    }
    fn stats(&self) -> StatsSnapshot {
        self.0.stats()
    }
}

// Goal: after a write or flush has failed nothing more is acknowledged, and a crash then loses nothing that was.
// Method: files are made durable one by one on a device that fails at a seeded request; then images are judged.
#[test]
fn a_failed_device_acknowledges_nothing() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(POOL_BYTES);
        format(&disk, Profile::Single).expect("format");
        let disk = disk.fork();
        let operation = [Operation::Flush, Operation::Write][rng.index(2)];
        let rule = FaultRule::new(operation, Trigger::Nth(2 + rng.below(20)), Fault::ErrorInPart);
        let told = disk.device();
        let device = FaultyDevice::new(Shared(disk.device()), seed, vec![rule]);
        let device: Arc<dyn Device> = Arc::new(device.on_failed_flush(move || told.fail_flush()));
        let options = OpenOptions {
            store: StoreOptions { background: false, ..StoreOptions::default() },
            dirty_bytes_max: 1 << 20,
            clock: StepClock::new(1_000_000_001),
            on_data_logged: None,
        };
        let mut acknowledged: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let (fs, _) = Filesystem::open(vec![device], options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let mut failed = false;
        for number in 0..40_u64 {
            let (name, bytes) =
                (format!("f{number}").into_bytes(), fill(number, 1 + rng.below(9_000) as usize));
            let made = (|| {
                let ino = fs.create(Caller::ROOT, ROOT_INODE, &name, 0o644)?.ino;
                fs.write(Caller::ROOT, ino, 0, &bytes)?;
                fs.fsync(ino)
            })();
            match made {
                Ok(()) if failed => panic!("seed {seed}: f{number} was acknowledged after a failure"),
                Ok(()) => acknowledged.push((name, bytes)),
                Err(error) => {
                    assert!([5, 30].contains(&error.errno()), "seed {seed}: {error}");
                    failed = true;
                }
            }
        }
        assert!(failed, "seed {seed}: the fault was never met");
        drop(fs);
        for _ in 0..4 {
            let cut = Cut { events: disk.events(), policy: CrashPolicy::Seeded, tear_within: false };
            let found =
                Opened::open(&disk.cut(&cut, &mut rng), &Setup::default(), &StepClock::new(1 << 32), false);
            let opened = found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let report = opened.fs.check(true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(report.problems.is_empty(), "seed {seed}: {:?}", report.problems);
            for (name, bytes) in &acknowledged {
                let attr =
                    opened.fs.lookup(ROOT_INODE, name).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                let found = opened
                    .fs
                    .read(attr.ino, 0, 10_000)
                    .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert_eq!(found, *bytes, "seed {seed}");
            }
        }
    }
}

// Goal: any test of the filesystem can be run as a crash test. Method: the hook, with a small test of its own.
#[test]
fn an_ordinary_test_is_a_crash_test() {
    let crashes = crash_test("replace a file", Setup::default(), |session| {
        let (parent, name) = (ROOT_INODE, b"new".to_vec());
        for seed in 1..4 {
            session.must(&Call::Create { parent, name: name.clone(), mode: 0o644 })?;
            let ino = session.last_created().expect("created");
            session.must(&Call::Write { ino, offset: 0, len: 5_000, seed })?;
            let (new_name, mode) = (b"kept".to_vec(), RenameMode::Replace);
            session.must(&Call::Rename { parent, name: name.clone(), new_parent: parent, new_name, mode })?;
            session.must(&Call::Fsync { ino })?;
        }
        Ok(())
    });
    assert!(crashes > 20, "{crashes}");
}

// Goal: the judge knows that the times of bytes zeroed inside a page wait for them. Method: the first change after a
// snapshot but for a write, which opens a version for what is to come, with another file made durable behind it.
#[test]
fn times_of_zeroed_bytes_wait() {
    crash_test("zero bytes after a snapshot", Setup::default(), |session| {
        let parent = ROOT_INODE;
        let mut files = Vec::new();
        for name in [b"zeroed", b"synced"] {
            session.must(&Call::Create { parent, name: name.to_vec(), mode: 0o644 })?;
            let ino = session.last_created().expect("created");
            session.must(&Call::Write { ino, offset: 0, len: 10_000, seed: 1 })?;
            files.push(ino);
        }
        let (source, name) = (ROOT_INODE, b"snapshot".to_vec());
        session.must(&Call::Snapshot { source, parent, name, read_only: true, sync: true })?;
        let (ino, how) = (files[0], Allocate::Punch);
        session.must(&Call::Write { ino, offset: 5_000, len: 100, seed: 2 })?;
        session.must(&Call::Fallocate { ino, offset: 100, len: 200, how })?;
        session.must(&Call::SetAttr {
            ino: files[1],
            set: SetAttr { mode: Some(0o600), ..SetAttr::default() },
        })?;
        session.must(&Call::Fsync { ino: files[1] })
    });
}
