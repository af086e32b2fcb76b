//! The control: known bugs are planted one by one, and the ordinary suite must find each within its budget.

use std::time::{Duration, Instant};

use varve_engine::planted::{Planted, set};
use varve_fs::Profile;
use varve_torture::disk::Disk;
use varve_torture::session::Violation;
use varve_torture::suite::{Outcome, Step, run_kind, run_steps, step};
use varve_torture::trial::{POOL_BYTES, Wanted, format, run};
use varve_torture::workload::Kind;
use varve_torture::{concurrent, overlap};

/// Only a machine that has come to a stop takes so long: the steps are what bounds the search.
const BUDGET: Duration = Duration::from_secs(900);
const STEPS: u64 = 2_000;
const SEED: u64 = 1;
/// Steps of the ordinary suite, and a seed, just before what some bugs need.
const KILLED_AND_OPENED: u64 = 56;
const OVERTAKEN: u64 = 64;
const FREED_IN_THE_TAIL: u64 = 120;
const CUT_ENDS: u64 = 2_000_043;
const HALVES: u64 = 120;
const ROWS: u64 = 40;
const LIMITS_IN_ROWS: u64 = 185;
const HIDES: u64 = 6;
const FILLS: u64 = 2;
const RESTS: u64 = 24;
/// Workloads of batches in flight together.
const CHANCES: u64 = 100;
/// Workloads of threads.
const THREADED: u64 = 60;

/// The ordinary suite, all kinds of workloads in turn.
fn suite() -> Outcome {
    run_steps(SEED, 0, 1, STEPS, BUDGET)
}

/// As [`suite`], from where a pool that was killed and opened cleanly loses its power: from the first step on that is found after 2,700
/// crashes.
fn killed_and_opened() -> Outcome {
    run_steps(SEED, KILLED_AND_OPENED, 1, STEPS, BUDGET)
}

/// As [`suite`], from where a commit is overtaken: from the first step on that is found after 3,100 crashes.
fn overtaken() -> Outcome {
    run_steps(SEED, OVERTAKEN, 1, STEPS, BUDGET)
}

/// As [`suite`], from where data of the last batches is lost that a later one had freed: from the first step on that is found after 5,900
/// crashes.
fn freed_in_the_tail() -> Outcome {
    run_steps(SEED, FREED_IN_THE_TAIL, 1, STEPS, BUDGET)
}

/// As [`forks`], from where a write over what a snapshot shows is followed by what tells of it: from the first seed on that is found after
/// 900 crashes.
fn hides() -> Outcome {
    run_kind(Kind::Forks, HIDES, 1, STEPS, BUDGET)
}

/// Workloads of snapshots and clones, in their order.
fn forks() -> Outcome {
    run_kind(Kind::Forks, SEED, 1, STEPS, BUDGET)
}

/// Workloads without crashes: what whoever goes on sees needs none.
fn uncrashed(steps: impl Iterator<Item = Step>) -> Outcome {
    let mut failures = steps.map(|Step { kind, seed }| run(kind, seed, Wanted::None).err());
    Outcome { failure: failures.find_map(|failure| failure), ..Outcome::default() }
}

/// The workloads of the ordinary suite, in turn, without crashes.
fn running() -> Outcome {
    uncrashed((0..STEPS).map(|index| step(SEED, index)))
}

/// As [`running`], from where ranges are compared of which a part is equal: from the first step on that is found after 135 others.
fn halves() -> Outcome {
    uncrashed((HALVES..HALVES + STEPS).map(|index| step(SEED, index)))
}

/// Workloads of snapshots and clones, in their order, without crashes.
fn running_forks() -> Outcome {
    uncrashed((SEED..SEED + STEPS).map(|seed| Step { kind: Kind::Forks, seed }))
}

/// As [`running_forks`], from where rows of versions come that matter: from the first seed on that is found after 40 others.
fn rows() -> Outcome {
    uncrashed((ROWS..ROWS + STEPS).map(|seed| Step { kind: Kind::Forks, seed }))
}

/// The same, of rows in which limits matter: from the first seed on that is found after 188 others.
fn limits_in_rows() -> Outcome {
    uncrashed((LIMITS_IN_ROWS..LIMITS_IN_ROWS + STEPS).map(|seed| Step { kind: Kind::Forks, seed }))
}

/// As [`running_forks`], from where a range ends with the end of a file that was cut inside a block, and the file that got it grows.
fn cut_ends() -> Outcome {
    uncrashed((CUT_ENDS..CUT_ENDS + STEPS).map(|seed| Step { kind: Kind::Forks, seed }))
}

/// Workloads of calls of many steps, during which reads fail, in their order, without crashes: what such a call leaves half done is
/// seen by who goes on.
fn steps() -> Outcome {
    uncrashed((SEED..SEED + STEPS).map(|seed| Step { kind: Kind::Steps, seed }))
}

/// As [`steps`], from where the rest of a range is taken for shared: from the first seed on that is found after 26 others.
fn rests() -> Outcome {
    uncrashed((RESTS..RESTS + STEPS).map(|seed| Step { kind: Kind::Steps, seed }))
}

/// Workloads of a full pool, in their order, from the first on that writes zeros which matter.
fn full() -> Outcome {
    run_kind(Kind::Full, FILLS, 1, STEPS, BUDGET)
}

fn caught(test: &str, bug: Planted, search: impl FnOnce() -> Outcome) {
    if varve_torture::tuned::test(test) {
        return;
    }
    let started = Instant::now();
    // The setting belongs to this thread, and so does all the work of the trial.
    set(Some(bug));
    let outcome = search();
    set(None);
    let crashes = outcome.counts.crashes;
    let failure = outcome.failure.unwrap_or_else(|| panic!("{bug:?} was not found in {crashes} crashes"));
    // It must be the bug that was found: without it the same trial passes, to the same crash.
    let same = failure.crash.map_or(Wanted::None, Wanted::One);
    if let Err(failure) = run(failure.kind, failure.seed, same) {
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
    ($search:ident: $($name:ident: $bug:ident,)*) => { $(
        #[test]
        fn $name() {
            caught(stringify!($name), Planted::$bug, $search);
        }
    )* };
}

// Goal: the suite can see what it is there to see. Method: the ordinary generators and oracle, one bug planted.
control! { suite:
    missing_flush_is_found: MissingFlush,
    lost_orphan_is_found: LostOrphan,
    early_reuse_is_found: EarlyReuse,
    unverified_tail_is_found: UnverifiedTail,
    torn_superblock_is_found: TornSuperblock,
    revived_batch_is_found: RevivedBatch,
    checkpoint_ahead_is_found: CheckpointAhead,
    trim_of_what_the_checkpoint_has_is_found: TrimsCheckpoint,
    tail_that_is_counted_and_not_flushed_is_found: TailUnflushed,
    access_times_that_no_sync_logs_are_found: AccessesForgotten,
    two_step_refund_is_found: TwoStepRefund,
    unread_batch_that_ends_the_log_is_found: UnreadEnds,
    unread_data_taken_for_zeros_is_found: UnreadZeros,
}

// Goal and method as above.
control! { running:
    range_shared_before_its_source_is_logged_is_found: SourceWaits,
}

// Goal and method as above.
control! { halves:
    ranges_that_are_half_compared_are_found: HalfCompared,
}

// Goal and method as above.
control! { killed_and_opened:
    clean_opening_that_flushes_nothing_is_found: CleanUnflushed,
}

// Goal and method as above.
control! { overtaken:
    overtaken_commit_that_waits_for_nothing_is_found: OvertakenUnflushed,
}

// Goal and method as above.
control! { freed_in_the_tail:
    first_mismatch_rule_is_found: FirstMismatch,
}

// Goal: the workload of snapshots and clones sees what is wrong with versions. Method: it alone, one bug planted.
control! { hides:
    limit_that_is_not_carried_is_found: LimitNotCarried,
    write_that_forgets_what_it_hides_is_found: WriteForgets,
}

// Goal and method as above.
control! { forks:
    hidden_record_not_noted_is_found: HiddenNotNoted,
    keyframe_that_stays_is_found: KeyframesStay,
}

// Goal and method as above.
control! { running_forks:
    frozen_data_overwritten_is_found: FrozenOverwritten,
    missed_reference_is_found: MissedReference,
    collapse_that_kills_what_is_visible_is_found: KillsVisible,
    cursor_that_skips_is_found: CursorSkips,
    entries_left_beyond_the_limit_are_found: NoRangeKill,
    recheck_left_out_is_found: NoRecheck,
    index_that_forgets_is_found: IndexForgets,
    share_that_is_not_counted_is_found: ShareUncounted,
    count_that_stays_is_found: CountStays,
    whiteouts_that_stay_are_found: WhiteoutsStay,
    unheard_end_of_a_record_is_found: HiddenUnheard,
    record_that_says_something_and_goes_is_found: HeldOnceForgotten,
}

// Goal and method as above.
control! { rows:
    order_turned_round_in_a_row_is_found: OldestOnTop,
}

// Goal and method as above.
control! { limits_in_rows:
    limit_ignored_in_a_row_is_found: LimitInRow,
}

// Goal and method as above.
control! { cut_ends:
    stale_tail_that_is_forgotten_is_found: TailForgotten,
}

// Goal: the workload of a full pool sees what becomes of what is written over there. Method: it alone, one bug planted.
control! { full:
    zeros_that_are_not_logged_are_found: ZerosUnlogged,
}

// Goal: reads that fail in the middle of a call show what it leaves half done. Method: the workload of calls of many steps alone, one
// bug planted.
control! { steps:
    space_that_is_nobodys_is_found: SpaceForgotten,
    file_that_is_let_go_to_nobody_is_found: LetGoForgotten,
}

// Goal and method as above.
control! { rests:
    range_told_as_shared_to_its_end_is_found: RestAssumed,
}

/// As [`caught`], for scenes of batches in flight together.
fn caught_in(bug: Planted, scene: fn(overlap::Prepare<'_>) -> Result<(), Violation>) {
    scene(&|| set(None)).unwrap_or_else(|violation| panic!("this fails without {bug:?}: {}", violation.0));
    let found = scene(&|| set(Some(bug)));
    set(None);
    match found {
        Ok(()) => panic!("{bug:?} was not found"),
        Err(Violation(what)) => println!("{bug:?}: {what}"),
    }
}

macro_rules! control_overlap {
    ($($name:ident: $bug:ident, $scene:ident;)*) => { $(
        #[test]
        fn $name() {
            caught_in(Planted::$bug, overlap::$scene);
        }
    )* };
}

// Goal: an error in how batches in flight together are acknowledged or cut is seen. Method: the two scenes of the suite.
control_overlap! {
    flush_that_counts_alone_is_found: FlushAlone, failed_flush;
    leftover_revived_is_found: LeftoverRevived, leftover;
}

// Goal: chance finds it too that a flush counts though one before it fails. Method: threads that commit at once.
#[test]
fn flush_that_counts_alone_is_found_by_chance() {
    caught_in(Planted::FlushAlone, |prepare| {
        (1..=CHANCES).try_for_each(|seed| {
            let judged = overlap::random(seed, prepare);
            judged.map(drop).map_err(|Violation(what)| Violation(format!("overlap, seed {seed}: {what}")))
        })
    });
}

/// As [`caught`], for threads. Which of them comes first is not repeated.
fn caught_among_threads(test: &str, bug: Planted) {
    if varve_torture::tuned::test(test) {
        return;
    }
    let trial = |seed, prepare: overlap::Prepare<'_>| {
        let disk = Disk::new(POOL_BYTES);
        format(&disk, Profile::Single).unwrap_or_else(|violation| panic!("{}", violation.0));
        concurrent::run(&disk.fork(), seed, Kind::Concurrent.crashes().seeded as u64, prepare)
    };
    for seed in SEED..SEED + THREADED {
        let Err((crash, Violation(what))) = trial(seed, &|| set(Some(bug))) else { continue };
        if let Err((crash, Violation(what))) = trial(seed, &|| set(None)) {
            panic!("this fails without {bug:?}, too: seed {seed}, crash {crash:?}: {what}");
        }
        println!("{bug:?}: found among threads, seed {seed}, crash {crash:?}: {what}");
        return;
    }
    panic!("{bug:?} was not found among threads");
}

// Goal: the workload of threads sees what breaks its promises. Method: a bug planted in each of the threads.
#[test]
fn missing_flush_is_found_among_threads() {
    caught_among_threads("missing_flush_is_found_among_threads", Planted::MissingFlush);
}

// Goal and method as above.
#[test]
fn frozen_data_overwritten_is_found_among_threads() {
    caught_among_threads("frozen_data_overwritten_is_found_among_threads", Planted::FrozenOverwritten);
}

// Goal: no bug is left out. Method: every one of the list has its test above.
#[test]
fn every_bug_has_its_test() {
    let source = include_str!("control.rs");
    for bug in Planted::ALL {
        assert!(
            source.contains(&format!("is_found: {bug:?},"))
                || source.contains(&format!("are_found: {bug:?},")),
            "{bug:?}"
        );
    }
}
