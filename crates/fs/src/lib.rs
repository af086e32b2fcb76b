//! POSIX semantics over engine transactions.
//!
//! [`Filesystem`] is the door: inode-level verbs that the mount, the library and the tests call alike. Permission
//! checks on paths are the kernel's (`default_permissions`); what only the filesystem can know (sticky directories
//! aside) is checked here: kinds, emptiness, limits, set-id clearing.
//!
//! From the door inwards: `ops` (verbs, prepared under inode locks, one transaction each), `writeback` (data that waits
//! in memory), `table` (typed records over the engine's trees), `inode` (state in memory; the lock order is there).
#![forbid(unsafe_code)]
// What only the tests reach is documented as what is inside a crate.
#![cfg_attr(feature = "internals", allow(missing_docs))]

mod access;
mod acl;
mod api;
mod background;
mod bounds;
mod changes;
mod check;
mod core;
mod door;
mod error;
mod files;
mod hash;
mod inode;
mod known;
mod met;
mod open;
mod ops;
mod reaper;
mod reserved;
mod streams;
mod subvolume;
mod sums;
mod table;
mod writeback;

#[doc(hidden)]
#[cfg(feature = "internals")]
pub mod internals;

pub use api::*;
pub use changes::{Change, DiffPage, Original, Parked};
pub use door::Filesystem;
pub use error::FsError;
pub use sums::{DataSums, ExtentSums};
/// What is in [`FsError::Engine`].
pub use varve_engine::EngineError;

type Result<T> = std::result::Result<T, FsError>;
