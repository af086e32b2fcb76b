//! The part of the suite that continuous integration runs: real filesystems, simulated crashes.

use std::thread;
use std::time::Duration;

use varve_torture::suite::run_steps;
use varve_torture::workload::{Kind, exhaustive};

/// Steps each thread runs at most, and for how long.
const STEPS: u64 = 320;
const BUDGET: Duration = Duration::from_secs(75);
const THREADS: u64 = 2;
const SEED: u64 = 1;

// Goal: promise 1 holds at every flush of small workloads and at seeded instants of large ones. Method: the first
// steps of the suite on two threads; every image is recovered, compared with the model and checked.
#[test]
fn suite_survives() {
    if varve_torture::tuned::test("suite_survives") {
        return;
    }
    let outcomes: Vec<_> = thread::scope(|scope| {
        let runs: Vec<_> =
            (0..THREADS).map(|t| scope.spawn(move || run_steps(SEED, t, THREADS, STEPS, BUDGET))).collect();
        runs.into_iter().map(|run| run.join().expect("trials catch their panics")).collect()
    });
    for outcome in &outcomes {
        if let Some(failure) = &outcome.failure {
            panic!("after {} crashes: {failure}", outcome.counts.crashes);
        }
    }
    let crashes: u64 = outcomes.iter().map(|outcome| outcome.counts.crashes).sum();
    let workloads: u64 = outcomes.iter().map(|outcome| outcome.counts.workloads).sum();
    println!("{crashes} crashes in {workloads} workloads");
    assert!(crashes > 1_000, "only {crashes} crashes fitted the budget");
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

// Goal: a trial depends on its seed alone. Method: the same workload twice gives the same number of crashes.
#[test]
fn trials_repeat() {
    let count =
        || varve_torture::trial::run(Kind::Random, 12, varve_torture::trial::Wanted::All).map(|c| c.crashes);
    assert_eq!(count().map_err(|f| f.to_string()), count().map_err(|f| f.to_string()));
}
