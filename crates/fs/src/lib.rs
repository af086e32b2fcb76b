//! POSIX semantics over engine transactions.
//!
//! [`Filesystem`] is the door: inode-level verbs that the mount, the library and the tests call alike. Permission
//! checks on paths are the kernel's (`default_permissions`); what only the filesystem can know (sticky directories
//! aside) is checked here: kinds, emptiness, limits, set-id clearing.
#![forbid(unsafe_code)]

mod api;
mod error;

pub use api::*;
pub use error::FsError;
