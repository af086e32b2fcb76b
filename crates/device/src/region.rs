//! Memory straight from the kernel, for buffers of 1 MiB and more: zeroed when it is first touched and not before, in large
//! pages where the kernel has them, given back when it is let go of.
//!
//! Large pages, because the kernel looks up every page it copies to, or lets a device read, one by one: with small ones that
//! takes as long as the copying. A large page is 2 MiB, and buffers of 1 MiB are the most frequent, so they share one in
//! pairs. Bound: what is let go of and still in memory, because the other half of its page is in use, is no more than what
//! is in use; it is the first to be used again.

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size and alignment of a large page.
const LARGE_BYTES: usize = 2 << 20;
const HALF_BYTES: usize = LARGE_BYTES / 2;

/// Halves of large pages whose other half is in use.
static HALVES: Mutex<Vec<Half>> = Mutex::new(Vec::new());

/// Readable, writable memory that nobody else has.
pub struct Memory(Kind);

enum Kind {
    Whole(Region),
    /// `None` only while it is dropped.
    Half(Option<Half>),
}

struct Half {
    page: Arc<Region>,
    second: bool,
    /// Nobody has had it yet.
    zeroed: bool,
}

/// A mapping that begins at a large page's boundary.
struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to whoever holds the region, whichever thread that is.
unsafe impl Send for Region {}
// SAFETY: a shared region gives out no more than its address.
unsafe impl Sync for Region {}

impl Memory {
    /// `len` zeros, at least. `None`: there is too little of it for this to be worth it, or the kernel has none.
    pub fn zeroed(len: usize) -> Option<Memory> {
        if len >= LARGE_BYTES {
            return Some(Memory(Kind::Whole(Region::new(len)?)));
        }
        if len != HALF_BYTES {
            return None;
        }
        let spare = HALVES.lock().pop();
        let half = match spare {
            Some(half) => half,
            None => {
                let page = Arc::new(Region::new(LARGE_BYTES)?);
                HALVES.lock().push(Half { page: page.clone(), second: true, zeroed: true });
                Half { page, second: false, zeroed: true }
            }
        };
        if !half.zeroed {
            // SAFETY: the half is nobody's, and lies in its region.
            unsafe { half.start().as_ptr().write_bytes(0, HALF_BYTES) };
        }
        Some(Memory(Kind::Half(Some(half))))
    }

    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        match &self.0 {
            Kind::Whole(region) => region.start,
            Kind::Half(half) => half.as_ref().map_or(NonNull::dangling(), Half::start),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Kind::Half(half) = &mut self.0 else { return };
        let Some(mut half) = half.take() else { return };
        half.zeroed = false;
        let mut halves = HALVES.lock();
        match halves.iter().position(|other| Arc::ptr_eq(&other.page, &half.page)) {
            Some(other) => {
                let other = halves.swap_remove(other);
                drop(halves);
                // The last two references: the page goes.
                drop((half, other));
            }
            None => halves.push(half),
        }
    }
}

impl Half {
    fn start(&self) -> NonNull<u8> {
        let offset = if self.second { HALF_BYTES } else { 0 };
        // SAFETY: the region has two halves.
        unsafe { self.page.start.add(offset) }
    }
}

#[cfg(not(miri))]
impl Region {
    fn new(len: usize) -> Option<Region> {
        let len = len.checked_next_multiple_of(crate::ALIGN_BYTES.max(rustix::param::page_size()))?;
        let all = len.checked_add(LARGE_BYTES)?;
        // SAFETY: a mapping of the kernel's choice overlaps nothing that is there.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let first: NonNull<u8> = NonNull::new(mapped.ok()?.cast())?;
        // What lies in front of the boundary, and behind the end.
        let before = first.addr().get().next_multiple_of(LARGE_BYTES) - first.addr().get();
        let after = all - before - len;
        // SAFETY: `before` is less than the large page that was asked for on top.
        let start = unsafe { first.add(before) };
        // SAFETY: both lie in the mapping that has just been made, at pages' boundaries, and nobody refers to them.
        unsafe {
            if before > 0 {
                let _ = munmap(first.as_ptr().cast(), before);
            }
            if after > 0 {
                let _ = munmap(start.add(len).as_ptr().cast(), after);
            }
        }
        // A kernel without large pages refuses, and nothing is lost.
        // SAFETY: advice about memory that is ours, which changes nothing in it.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Some(Region { start, len })
    }
}

#[cfg(not(miri))]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's alone, and nobody refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Miri knows neither advice nor how to let go of parts of a mapping: there the allocator has to do.
#[cfg(miri)]
mod interpreted {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::{LARGE_BYTES, NonNull, Region};

    impl Region {
        pub(super) fn new(len: usize) -> Option<Region> {
            let layout = Layout::from_size_align(len, LARGE_BYTES).ok()?;
            // SAFETY: nobody asks for a region of nothing.
            Some(Region { start: NonNull::new(unsafe { alloc_zeroed(layout) })?, len })
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            let layout = Layout::from_size_align(self.len, LARGE_BYTES).expect("as it was when it was made");
            // SAFETY: allocated as this, and nobody refers to it any more.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: memory begins at a page, all of it can be used, and it is zeros, also when it was used before. Method: sizes
    // around those that matter, filled and let go of, in an order that leaves halves behind, twice.
    #[test]
    fn zeros_whoever_had_it_before() {
        for _ in 0..2 {
            let mut held = Vec::new();
            for (number, len) in
                [HALF_BYTES, HALF_BYTES, LARGE_BYTES, HALF_BYTES, LARGE_BYTES + 4096, 5 << 20]
                    .into_iter()
                    .cycle()
                    .take(40)
                    .enumerate()
            {
                let memory = Memory::zeroed(len).unwrap();
                assert!(memory.start().addr().get().is_multiple_of(crate::ALIGN_BYTES));
                // SAFETY: it is as long as was asked for, initialised, and nobody else has it.
                let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), len) };
                assert!(bytes.iter().all(|byte| *byte == 0), "{number}");
                bytes.fill(0xff);
                held.push(memory);
                if number % 3 == 0 {
                    held.swap_remove(number / 3);
                }
            }
        }
    }

    // Goal: small buffers are left to the allocator. Method: sizes below.
    #[test]
    fn small_memory_is_not_mapped() {
        assert!(
            [0, 1, 4096, HALF_BYTES - 4096, HALF_BYTES + 4096]
                .iter()
                .all(|len| Memory::zeroed(*len).is_none())
        );
    }
}
