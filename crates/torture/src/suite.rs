//! The ordinary suite: which trials run, and in which order. Continuous integration runs its first part, the soak all
//! of it for as long as it is given, and the control the same with a bug planted. Workloads of one kind alone are for
//! what only they can see.

use std::time::{Duration, Instant};

use crate::trial::{Counts, Failure, Wanted, run};
use crate::workload::{Kind, exhaustive};

/// One trial of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Kind of workload.
    pub kind: Kind,
    /// Its seed.
    pub seed: u64,
}

/// Step number `index` of the suite that begins at `seed`. Kinds alternate, so that a short run meets all of them;
/// pairs come in an order that visits every one once before any is repeated.
pub fn step(seed: u64, index: u64) -> Step {
    let kind = match index % 64 {
        7 => Kind::Random,
        39 => Kind::Steps,
        23 => Kind::Forks,
        55 => Kind::Tree,
        15 => Kind::Triple,
        47 => Kind::Concurrent,
        31 => Kind::Full,
        63 => Kind::Ring,
        _ => Kind::Pair,
    };
    match kind {
        // Seven steps of eight are pairs: number them without gaps.
        Kind::Pair => turn(kind, seed, index / 8 * 7 + index % 8),
        _ => turn(kind, seed, index),
    }
}

/// Workload number `index` of `kind`, beginning at `seed`.
pub fn turn(kind: Kind, seed: u64, index: u64) -> Step {
    let seed = match kind {
        // The sequence goes by the remainder; where it is trimmed, cut and torn, by all of it, so that neither another suite seed nor
        // another lap sees the same images.
        Kind::Pair => {
            let sequence =
                (seed % exhaustive::PAIRS + index % exhaustive::PAIRS * STRIDE) % exhaustive::PAIRS;
            let lap = seed.wrapping_add(index / exhaustive::PAIRS) % LAPS;
            sequence + lap * exhaustive::PAIRS
        }
        // A kind comes every 64 steps: without the second part its seeds would have one remainder by all powers of two up to that, by
        // which workloads choose what to begin with. With it they are 67 apart, which shares no factor with any choice.
        _ => seed.wrapping_mul(1_000_003).wrapping_add(index).wrapping_add(index / 64 * 3),
    };
    Step { kind, seed }
}

/// Seeds of pairs stay below 2^63.
const LAPS: u64 = (1 << 62) / exhaustive::PAIRS;
/// Shares no factor with the number of sequences, so that every one has its turn.
const STRIDE: u64 = 2_741;
const _: () = assert!(gcd(STRIDE, exhaustive::PAIRS) == 1, "some sequence would never be visited");

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What a run of the suite did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Workloads and crashes.
    pub counts: Counts,
    /// The step after the last one run.
    pub next: u64,
    /// What was broken first.
    pub failure: Option<Box<Failure>>,
}

/// Runs steps `first`, `first + stride`, ... until `budget` has passed, `steps` have been run, or one fails.
pub fn run_steps(seed: u64, first: u64, stride: u64, steps: u64, budget: Duration) -> Outcome {
    run_all(first, stride, steps, budget, &|index| step(seed, index))
}

/// As [`run_steps`], with workloads of `kind` alone, whose seeds are the numbers of the steps.
pub fn run_kind(kind: Kind, first: u64, stride: u64, steps: u64, budget: Duration) -> Outcome {
    run_all(first, stride, steps, budget, &|seed| Step { kind, seed })
}

fn run_all(first: u64, stride: u64, steps: u64, budget: Duration, step: &dyn Fn(u64) -> Step) -> Outcome {
    let started = Instant::now();
    let mut outcome = Outcome { next: first, ..Outcome::default() };
    for number in 0..steps {
        if started.elapsed() >= budget {
            break;
        }
        let Step { kind, seed } = step(first + number * stride);
        match run(kind, seed, Wanted::All) {
            Ok(counts) => {
                outcome.counts.workloads += counts.workloads;
                outcome.counts.crashes += counts.crashes;
            }
            Err(failure) => {
                outcome.counts.workloads += 1;
                outcome.counts.crashes += failure.crashes_before + u64::from(failure.crash.is_some());
                outcome.failure = Some(failure);
                return outcome;
            }
        }
        outcome.next = first + (number + 1) * stride;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::trial::{killed, trims, unread};

    /// The seeds of each kind in the first `laps` rounds of a suite.
    fn seeds(suite: u64, laps: u64) -> BTreeMap<Kind, Vec<u64>> {
        let mut seeds: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
        for Step { kind, seed } in (0..64 * laps).map(|index| step(suite, index)) {
            seeds.entry(kind).or_default().push(seed);
        }
        seeds
    }

    // Goal: no kind of workload always makes the same choice. Method: count, over the first steps of some suites, the workloads of
    // each kind that close their pool, are trimmed, fail to read and are killed, and those that are not.
    #[test]
    fn every_kind_closes_trims_and_is_killed_now_and_then() {
        for suite in 1..=8 {
            for (kind, seeds) in seeds(suite, 32) {
                let both = |what: &str, does: &dyn Fn(u64) -> bool| {
                    let count = seeds.iter().filter(|seed| does(**seed)).count();
                    let all = seeds.len();
                    assert!((1..all).contains(&count), "suite {suite}: {count} of {all} {kind} {what}");
                };
                both("close", &|seed| kind.closes(seed));
                both("are trimmed", &|seed| trims(kind, seed).is_some());
                if kind != Kind::Concurrent {
                    both("fail to read", &|seed| unread(kind, seed).is_some());
                }
                both("are killed", &|seed| killed(kind, seed).is_some());
            }
        }
    }

    // Goal: what a workload chooses by a remainder of its seed differs from lap to lap. Method: every remainder by small numbers.
    #[test]
    fn seeds_of_a_kind_have_every_remainder() {
        for (kind, seeds) in seeds(1, 64).into_iter().filter(|(kind, _)| *kind != Kind::Pair) {
            for by in 2..=16 {
                let remainders: BTreeSet<u64> = seeds.iter().map(|seed| seed % by).collect();
                assert_eq!(remainders.len() as u64, by, "{kind} by {by}: {remainders:?}");
            }
        }
    }
}
