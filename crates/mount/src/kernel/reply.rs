//! Answers. Each request that expects one gets exactly one: answering takes the [`Reply`], and one that is dropped, as when
//! a panic unwinds, answers EIO.

use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::abi::IoctlOut;
use super::device::Device;
use super::ring::Slot;

/// Larger numbers are no errno to the kernel.
const ERRNO_MAX: i32 = 511;

/// The right and the duty to answer one request, from any thread.
#[derive(Debug)]
pub struct Reply {
    /// `None`: answered.
    to: Option<To>,
    unique: u64,
}

/// Where a request came from.
#[derive(Debug)]
enum To {
    Device(Arc<Device>),
    Slot(Arc<Slot>),
}

impl Reply {
    /// To the request of this number, which came from `device`.
    pub fn new(device: Arc<Device>, unique: u64) -> Reply {
        Reply { to: Some(To::Device(device)), unique }
    }

    /// To the request of this number, which is in `slot`.
    pub fn through(slot: Arc<Slot>, unique: u64) -> Reply {
        Reply { to: Some(To::Slot(slot)), unique }
    }

    /// The kernel expects no answer.
    pub fn none(mut self) {
        // But what came through a ring goes back there.
        if let Some(To::Slot(slot)) = self.to.take() {
            slot.answer(self.unique, 0, &[]);
        }
    }

    /// It has failed.
    pub fn error(self, errno: Errno) {
        let number = match errno.raw_os_error() {
            number @ 1..=ERRNO_MAX => number,
            _ => Errno::IO.raw_os_error(),
        };
        self.send(-number, &[]);
    }

    /// It is done; there is nothing to say.
    pub fn empty(self) {
        self.bytes(&[]);
    }

    /// Bytes, as many as the kernel asked for at most.
    pub fn bytes(self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// To an ioctl(2) that reads: a structure, as much of it as the program has room for.
    pub fn ioctl(self, body: &(impl IntoBytes + Immutable), room: u32) {
        let body = &body.as_bytes()[..size_of_val(body).min(room as usize)];
        self.bytes(&[IoctlOut::default().as_bytes(), body].concat());
    }

    /// One of the structures of [`super::abi`].
    pub fn body(self, body: &(impl IntoBytes + Immutable)) {
        self.bytes(body.as_bytes());
    }

    fn send(mut self, error: i32, bytes: &[u8]) {
        let device = match self.to.take() {
            Some(To::Device(device)) => device,
            Some(To::Slot(slot)) => return slot.answer(self.unique, error, bytes),
            None => return,
        };
        match device.send(self.unique, error, [bytes, &[]]) {
            Ok(()) => {}
            // Nobody waits for it any more: interrupted, or the mount is gone.
            Err(Errno::NOENT | Errno::NODEV) => {}
            Err(refused) => {
                tracing::error!("the kernel does not take an answer: {refused}");
                // It may have forgotten the request, or not.
                let _ = device.send(self.unique, -Errno::IO.raw_os_error(), [&[], &[]]);
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let io = -Errno::IO.raw_os_error();
        match self.to.take() {
            Some(To::Device(device)) => drop(device.send(self.unique, io, [&[], &[]])),
            Some(To::Slot(slot)) => slot.answer(self.unique, io, &[]),
            None => {}
        }
    }
}
