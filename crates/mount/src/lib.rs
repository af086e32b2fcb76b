//! The filesystem in the kernel's tree: requests come in through FUSE, are decoded, handed to the filesystem's verbs
//! and answered. There is no policy here; what a verb means is `varve_fs`'s business.
//!
//! [`Verbs`] is the trait between transport and filesystem, so that another transport can be added beside this one (FUSE
//! through `/dev/fuse`), and a test double put in place of the filesystem. [`Exchange`] puts another filesystem in the
//! place of one that is mounted. [`Mounted`] is a mount from its beginning to
//! its end.
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as varve_mount;

mod adapter;
mod caches;
mod convert;
mod dispatch;
#[cfg(test)]
#[path = "../tests/double.rs"]
mod double;
mod exchange;
mod file_flags;
mod flags;
mod fusermount;
mod health;
mod kernel;
mod numbers;
mod outside;
mod pins;
mod policy;
mod serve;
mod session;
#[cfg(test)]
#[path = "../tests/switch/mod.rs"]
mod switch;
mod tellings;
mod trim;
mod unstored;
mod verbs;

pub use exchange::Exchange;
pub use flags::{AccessTimes, Flags, remount};
pub use health::Health;
pub use kernel::switch::RingSwitch;
pub use outside::Outside;
pub use policy::Policy;
pub use session::{FILESYSTEM_TYPE, MountError, MountOptions, Mounted, Rings, unmount, unmount_device};
pub use verbs::Verbs;
