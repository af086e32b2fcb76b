//! In which subvolumes somebody has looked.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use varve_format::record::subvolume::LOCAL_INODE_BITS;

use crate::subvolume::Slot;

/// Bits in the number of a slot.
pub(crate) const SLOT_BITS: u32 = u64::BITS - LOCAL_INODE_BITS;

/// Which subvolumes may have inodes in the table, a bit each: one that nobody has looked into has none, and whoever deletes
/// thousands of those need not look for them. Changed and asked under the lock of a shard, or before all of them are taken.
pub struct MetSlots([OnceLock<Box<SlotBits>>; 1 << (SLOT_BITS - SLOT_BITS_EACH)]);

/// The bits of so many slots (two to the power of this) come into being together, when the first is set.
const SLOT_BITS_EACH: u32 = 15;
type SlotBits = [AtomicU64; 1 << (SLOT_BITS_EACH - 6)];

impl Default for MetSlots {
    fn default() -> Self {
        MetSlots(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl MetSlots {
    /// Where a slot's bit is: which part, which word of it, and the bit.
    fn place(slot: Slot) -> (usize, usize, u64) {
        let at = slot.0 as usize;
        (at >> SLOT_BITS_EACH, (at >> 6) % (1 << (SLOT_BITS_EACH - 6)), 1 << (at % 64))
    }

    pub(crate) fn set(&self, slot: Slot) {
        let (part, word, bit) = Self::place(slot);
        let part = self.0[part].get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        if part[word].load(Ordering::Relaxed) & bit == 0 {
            part[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether it was set; it is not any more.
    pub(crate) fn take(&self, slot: Slot) -> bool {
        let (part, word, bit) = Self::place(slot);
        self.0[part].get().is_some_and(|part| part[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }
}
