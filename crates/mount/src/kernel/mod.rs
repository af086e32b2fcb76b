//! The transport: requests come in through `/dev/fuse`, one a read, and are answered, one a write; or through [`ring`]s, where
//! the kernel has them.
//!
//! What is special about it is where a WRITE's payload ends up. A request is read into two buffers, a small one that takes
//! exactly what stands in front of a payload, and one of whole pages. So the kernel copies page onto page, and the second
//! buffer holds nothing but what is to be written: the filesystem may keep it as it is and leave another in its place
//! ([`crate::Verbs::write_owned`]).
//!
//! It knows the bytes of the protocol and nothing of what requests mean: that is [`crate::adapter`]'s.

pub mod abi;
pub mod device;
pub mod handshake;
pub mod inbox;
pub mod listing;
pub mod reply;
pub mod request;
pub mod ring;
pub mod switch;

/// Largest write (and read) in one request, in bytes.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests;
