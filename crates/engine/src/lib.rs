//! Durable maps over checksummed devices: the part of VarveFS that knows the disk and nothing of POSIX.
//!
//! [`Store`] is the door. Callers read through a [`View`] (a consistent picture of all trees that
//! stays readable however long it is held), prepare a [`Transaction`], and [`Store::apply`] it, which
//! gives its place in the log; [`Store::commit`] makes the log durable up to a place with one flush.
#![forbid(unsafe_code)]

mod check;
mod checkpoint;
mod core;
mod error;
mod journal;
mod key;
mod numbers;
mod open;
mod options;
pub mod planted;
mod pool;
mod problem;
mod shares;
mod space;
mod store;
#[cfg(test)]
mod test_store;
mod transaction;
mod tree;
mod unchanged;
pub mod version;

pub use check::LostKeys;
pub use error::EngineError;
pub use numbers::Numbered;
pub use options::{
    CheckProgress, CheckReport, CheckStage, FormatOptions, Profile, RecoveryReport, SpaceStats, StoreOptions,
    StoreStats,
};
pub use problem::{FileRange, Problem, ProblemKind, Problems};
pub use store::{Reservation, Store, Trimmed, View, Wanted};
pub use transaction::{Data, Transaction};
pub use varve_format::{
    BLOCK_BYTES, Corrupt, FamilyId, InodeId, Lsn, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionId, VersionKey,
};
