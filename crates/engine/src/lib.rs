//! Durable maps over checksummed devices: the part of VarveFS that knows the disk and nothing of POSIX.
//!
//! [`Store`] is the door. Callers read through a [`View`] (a consistent picture of all trees that
//! stays readable however long it is held), prepare a [`Transaction`], and [`Store::apply`] it, which
//! gives its place in the log; [`Store::commit`] makes the log durable up to a place with one flush.
#![forbid(unsafe_code)]

mod error;
pub mod planted;
pub mod store;
mod transaction;
pub mod version;

pub use error::EngineError;
pub use store::{
    CheckReport, FormatOptions, Profile, RecoveryReport, Reservation, SpaceStats, Store, StoreOptions, StoreStats, View,
};
pub use transaction::{Data, Transaction};
pub use varve_format::{
    BLOCK_BYTES, Corrupt, FamilyId, InodeId, Lsn, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionId, VersionKey,
};
