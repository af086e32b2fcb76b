//! Buffers in which pages are gathered for large writes, used again and again.
//!
//! A fresh buffer of some megabytes costs more than filling it: the allocator returns it to the kernel each time, and
//! the kernel clears every page of the next one. Bound: [`SPARE_MAX`] buffers are kept, and none while nothing is dirty
//! for long ([`Buffers::clear`]).

use parking_lot::Mutex;
use varve_device::AlignedBuf;
use varve_engine::BLOCK_BYTES;

use super::PIECE_PAGES_MAX;

/// Buffers kept.
const SPARE_MAX: usize = 2;

/// The buffers nobody uses just now, each of [`PIECE_PAGES_MAX`] pages.
#[derive(Default)]
pub(crate) struct Buffers {
    spare: Mutex<Vec<AlignedBuf>>,
}

impl Buffers {
    /// A buffer of [`PIECE_PAGES_MAX`] pages. What it holds is anything that was written before.
    pub(crate) fn take(&self) -> AlignedBuf {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| AlignedBuf::new(PIECE_PAGES_MAX * BLOCK_BYTES))
    }

    /// Gives one back.
    pub(crate) fn give(&self, buf: AlignedBuf) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(buf);
        }
    }

    /// Lets go of all.
    pub(crate) fn clear(&self) {
        let spare = std::mem::take(&mut *self.spare.lock());
        drop(spare);
    }
}
