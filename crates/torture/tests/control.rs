//! The control: known bugs are planted one by one, and the ordinary suite must find each within its budget.

use std::time::{Duration, Instant};

use varve_engine::planted::{Planted, set};
use varve_torture::suite::run_steps;
use varve_torture::trial::{Wanted, run};

/// Each bug's share of the budget.
const BUDGET: Duration = Duration::from_secs(60);
const STEPS: u64 = 2_000;
const SEED: u64 = 1;

fn caught(test: &str, bug: Planted) {
    if varve_torture::tuned::test(test) {
        return;
    }
    let started = Instant::now();
    // The setting belongs to this thread, and so does all the work of the trial.
    set(Some(bug));
    let outcome = run_steps(SEED, 0, 1, STEPS, BUDGET);
    set(None);
    let crashes = outcome.counts.crashes;
    let failure = outcome.failure.unwrap_or_else(|| panic!("{bug:?} was not found in {crashes} crashes"));
    // It must be the bug that was found: without it the same trial passes.
    if let Err(failure) = run(failure.kind, failure.seed, Wanted::All) {
        panic!("this fails without {bug:?}, too: {failure}");
    }
    println!(
        "{bug:?}: found after {crashes} crashes in {:.1} s by {} workload, seed {}, crash {:?}: {}",
        started.elapsed().as_secs_f64(),
        failure.kind,
        failure.seed,
        failure.crash,
        failure.what.lines().next().unwrap_or_default()
    );
}

macro_rules! control {
    ($($(#[$goal:meta])* $name:ident: $bug:ident,)*) => { $(
        $(#[$goal])*
        #[test]
        fn $name() {
            caught(stringify!($name), Planted::$bug);
        }
    )* };
}

// Goal: the suite can see what it is there to see. Method: the ordinary generators and oracle, one bug planted.
control! {
    missing_flush_is_found: MissingFlush,
    lost_orphan_is_found: LostOrphan,
    early_reuse_is_found: EarlyReuse,
    unverified_tail_is_found: UnverifiedTail,
    first_mismatch_rule_is_found: FirstMismatch,
    torn_superblock_is_found: TornSuperblock,
    revived_batch_is_found: RevivedBatch,
    checkpoint_ahead_is_found: CheckpointAhead,
    two_step_refund_is_found: TwoStepRefund,
}
