//! What is done to a filesystem before it crashes.
//!
//! A workload makes calls through a [`Session`]; which calls depends on its seed and on the model alone, so that a
//! seed gives the same calls every time.

pub mod exhaustive;
pub mod forks;
pub mod full;
pub mod random;
pub mod ring;
pub mod steps;
pub mod tree;

use std::fmt;
use std::str::FromStr;

use varve_sim::Rng;

use crate::model::Model;
use crate::session::{Session, Setup, Violation};

/// The families of workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// All sequences of up to two operations with fsync or sync anywhere; the seed is the number of the sequence.
    Pair,
    /// Three such operations, drawn by seed.
    Triple,
    /// Hundreds of calls on a growing tree.
    Random,
    /// On a pool that has been filled.
    Full,
    /// Enough log to go around the ring, with checkpoints.
    Ring,
    /// Thousands of names and attributes.
    Tree,
    /// Small trees with many snapshots and clones.
    Forks,
    /// Calls of many steps, most of them while reads fail.
    Steps,
    /// Many threads, with background work: see [`crate::concurrent`].
    Concurrent,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Pair,
        Kind::Triple,
        Kind::Random,
        Kind::Full,
        Kind::Ring,
        Kind::Tree,
        Kind::Forks,
        Kind::Steps,
        Kind::Concurrent,
    ];

    /// How the filesystem is opened for workload number `seed`.
    pub fn setup(self, seed: u64) -> Setup {
        match self {
            Kind::Pair | Kind::Triple | Kind::Concurrent => Setup::default(),
            Kind::Random => random::setup(seed),
            Kind::Full => full::setup(seed),
            Kind::Ring => ring::setup(seed),
            Kind::Tree => tree::setup(seed),
            Kind::Forks => forks::setup(seed),
            Kind::Steps => steps::setup(seed),
        }
    }

    /// Makes the calls of workload number `seed`.
    pub fn run(self, session: &mut Session, seed: u64) -> Result<(), Violation> {
        match self {
            Kind::Pair => exhaustive::run(session, &exhaustive::pair(seed)),
            Kind::Triple => exhaustive::run(session, &exhaustive::triple(seed)),
            Kind::Random => random::run(session, seed),
            Kind::Full => full::run(session, seed),
            Kind::Ring => ring::run(session, seed),
            Kind::Tree => tree::run(session, seed),
            Kind::Forks => forks::run(session, seed),
            Kind::Steps => steps::run(session, seed),
            Kind::Concurrent => Err(Violation("concurrent workloads have no session".into())),
        }
    }

    /// Crashes simulated for one workload.
    pub fn crashes(self) -> Crashes {
        match self {
            Kind::Pair | Kind::Triple => Crashes { every_flush: true, seeded: 4 },
            Kind::Random | Kind::Forks => Crashes { every_flush: false, seeded: 40 },
            Kind::Full => Crashes { every_flush: false, seeded: 10 },
            Kind::Ring | Kind::Tree | Kind::Steps => Crashes { every_flush: false, seeded: 24 },
            Kind::Concurrent => Crashes { every_flush: false, seeded: 40 },
        }
    }

    /// What workload number `seed` begins with.
    pub fn base(self, seed: u64) -> Base {
        match self {
            Kind::Pair | Kind::Triple => Base::SmallTree,
            Kind::Random | Kind::Forks if seed.is_multiple_of(4) => Base::EmptyDup,
            Kind::Forks
            | Kind::Random
            | Kind::Full
            | Kind::Ring
            | Kind::Tree
            | Kind::Steps
            | Kind::Concurrent => Base::Empty,
        }
    }

    /// Whether workload number `seed` ends with a clean close.
    pub fn closes(self, seed: u64) -> bool {
        Rng::new(seed).fork("closes").below(5) == 0
    }
}

/// How many crashes a workload gets, and where.
#[derive(Clone, Copy, Debug)]
pub struct Crashes {
    /// At every flush: everything unflushed lost, everything kept, and some seeded mixtures.
    pub every_flush: bool,
    /// Seeded mixtures: a flush if `every_flush`, else in all, at any event.
    pub seeded: usize,
}

/// What a pool holds when a workload begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Base {
    /// An empty root.
    Empty,
    /// An empty root, file data in two copies.
    EmptyDup,
    /// A few files and directories, synced.
    SmallTree,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Pair => "pair",
            Kind::Triple => "triple",
            Kind::Random => "random",
            Kind::Full => "full",
            Kind::Ring => "ring",
            Kind::Tree => "tree",
            Kind::Forks => "forks",
            Kind::Steps => "steps",
            Kind::Concurrent => "concurrent",
        })
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| {
            format!(
                "unknown workload {text:?}: one of pair, triple, random, full, ring, tree, forks, steps, concurrent"
            )
        })
    }
}

/// What a session has to forget at a crash so that `model` is what the next one begins with.
pub fn after_crash(mut model: Model) -> Model {
    model.forget_opens();
    model
}
