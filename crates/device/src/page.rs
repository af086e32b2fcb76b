//! Single pages of memory, shared by count: the dirty pages of files wait in them.
//!
//! By the ten thousand, of one size, taken by one thread and let go of by another a moment later, in another order: the
//! general allocator joins and cuts gaps for each of them, and looks at its neighbours for that, which lie in no cache of the
//! processor. Here they lie side by side in slabs of a large page (so that the processor knows where they are, too), one
//! bit says that a page is free, and who takes pages takes them in the order of their addresses. The counts of who has a page
//! lie side by side as well, apart from the pages: counting up or down does not wait for the page.
//!
//! Bound: slabs are as many as the pages that were in use at the same time since [`SharedPage::give_back`] was called last
//! need, and pages that stay in use keep theirs.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::ALIGN_BYTES;
use crate::region::Memory;

/// Bytes of a slab: a large page.
const SLAB_BYTES: usize = 2 << 20;
/// Pages that are taken together.
const GROUP_PAGES: usize = u64::BITS as usize;
const SLAB_GROUPS: usize = SLAB_BYTES / ALIGN_BYTES / GROUP_PAGES;

/// All slabs of the process.
static HOME: Mutex<Home> = Mutex::new(Home { at: None, left: 0, waiting: VecDeque::new() });

/// Some pages side by side.
struct Slab {
    memory: Memory,
    /// A bit for each page that nobody has and that [`Home`] has not taken.
    free: [AtomicU64; SLAB_GROUPS],
    /// Who has each page.
    counts: [AtomicU32; SLAB_GROUPS * GROUP_PAGES],
}

/// One of a slab's groups. The slab is there as long as one of its pages is not in `free`, or one of its groups waits.
#[derive(Clone, Copy)]
struct Group {
    slab: NonNull<Slab>,
    number: usize,
}

// SAFETY: what is behind it is only changed through atomics, and freed by whoever has found that nobody refers to it.
unsafe impl Send for Group {}

/// Where the next page comes from.
struct Home {
    /// The group that pages are taken of, and those of it that are still there.
    at: Option<Group>,
    left: u64,
    /// Groups with free pages, each once: it comes when its first page is let go of.
    waiting: VecDeque<Group>,
}

/// A page of [`ALIGN_BYTES`]. Copies share the bytes.
pub struct SharedPage {
    slab: NonNull<Slab>,
    at: u16,
}

// SAFETY: shared bytes are only read, as those of an `Arc<[u8]>` are; counts and bits are atomic.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl Home {
    /// A page that nobody has. `None`: the kernel has no memory.
    fn take(&mut self) -> Option<(NonNull<Slab>, usize)> {
        if self.left == 0 {
            if self.waiting.is_empty() {
                let slab = Slab::new()?;
                self.waiting.extend((0..SLAB_GROUPS).map(|number| Group { slab, number }));
            }
            let group = self.waiting.pop_front()?;
            // SAFETY: a group that waits has its slab.
            let free = unsafe { &group.slab.as_ref().free[group.number] };
            // What was written by whoever had these pages is over.
            self.left = free.swap(0, Ordering::Acquire);
            self.at = Some(group);
        }
        let group = self.at?;
        let bit = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        Some((group.slab, group.number * GROUP_PAGES + bit))
    }

    /// Takes out the groups of slabs of which all pages are free, but for `keep` slabs.
    fn idle(&mut self, keep: usize) -> Vec<NonNull<Slab>> {
        let mut whole: HashMap<NonNull<Slab>, usize> = HashMap::new();
        for group in &self.waiting {
            // SAFETY: a group that waits has its slab.
            let free = unsafe { group.slab.as_ref().free[group.number].load(Ordering::Acquire) };
            *whole.entry(group.slab).or_default() += usize::from(free == u64::MAX);
        }
        let slabs: Vec<_> =
            whole.into_iter().filter(|(_, groups)| *groups == SLAB_GROUPS).map(|(slab, _)| slab).collect();
        let slabs = slabs.into_iter().skip(keep).collect::<Vec<_>>();
        self.waiting.retain(|group| !slabs.contains(&group.slab));
        slabs
    }
}

impl Slab {
    fn new() -> Option<NonNull<Slab>> {
        let memory = Memory::zeroed(SLAB_BYTES)?;
        let slab = Box::new(Slab {
            memory,
            free: [const { AtomicU64::new(u64::MAX) }; SLAB_GROUPS],
            counts: [const { AtomicU32::new(0) }; SLAB_GROUPS * GROUP_PAGES],
        });
        Some(NonNull::from(Box::leak(slab)))
    }

    fn page(&self, at: usize) -> NonNull<u8> {
        // SAFETY: the memory has that many pages.
        unsafe { self.memory.start().add(at * ALIGN_BYTES) }
    }
}

impl SharedPage {
    /// A copy of `bytes`, which are a page.
    ///
    /// # Panics
    /// If they are not, or the kernel has no memory.
    #[must_use]
    pub fn new(bytes: &[u8]) -> SharedPage {
        assert_eq!(bytes.len(), ALIGN_BYTES, "a page is whole");
        let (slab, at) = HOME.lock().take().expect("the kernel has memory for a page");
        // SAFETY: a page that was taken has its slab, and nobody else has it: it is not free, and no other was made for it.
        unsafe {
            let slab = slab.as_ref();
            slab.page(at).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), ALIGN_BYTES);
            slab.counts[at].store(1, Ordering::Relaxed);
        }
        SharedPage { slab, at: at as u16 }
    }

    fn slab(&self) -> &Slab {
        // SAFETY: this page is not free, so its slab is there.
        unsafe { self.slab.as_ref() }
    }

    fn count_of(&self) -> &AtomicU32 {
        &self.slab().counts[usize::from(self.at)]
    }

    /// How many share the bytes at this moment.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count_of().load(Ordering::Relaxed)
    }

    /// The bytes to be changed; copied first, if somebody else sees them.
    pub fn make_mut(&mut self) -> &mut [u8] {
        // Whoever let go of it last has seen what he wanted to.
        if self.count_of().load(Ordering::Acquire) != 1 {
            *self = SharedPage::new(self);
        }
        // SAFETY: nobody else has the page, and nobody can come to it while it is borrowed here.
        unsafe { std::slice::from_raw_parts_mut(self.slab().page(self.at.into()).as_ptr(), ALIGN_BYTES) }
    }

    /// Gives slabs back to the kernel of which no page is in use, but for one.
    pub fn give_back() {
        let slabs = HOME.lock().idle(1);
        for slab in slabs {
            // SAFETY: it was made by a box; all its pages are free, none of its groups waits any more, and none is the one
            // that pages are taken of, for then some of its pages would not be free.
            drop(unsafe { Box::from_raw(slab.as_ptr()) });
        }
    }
}

impl Clone for SharedPage {
    fn clone(&self) -> SharedPage {
        // As in an `Arc`: whoever makes another one has one.
        let before = self.count_of().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "nobody shares a page so often");
        SharedPage { slab: self.slab, at: self.at }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        let slab = self.slab();
        if slab.counts[usize::from(self.at)].fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let (number, bit) = (usize::from(self.at) / GROUP_PAGES, usize::from(self.at) % GROUP_PAGES);
        // From here on the page may be another's. If it is the first of its group, the slab stays until the group waits: only
        // one that waits whole is given back. If not, nothing of the slab is looked at any more.
        if slab.free[number].fetch_or(1 << bit, Ordering::Release) == 0 {
            HOME.lock().waiting.push_back(Group { slab: self.slab, number });
        }
    }
}

impl Deref for SharedPage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all bytes of the page were written when it was taken, and who shares it only reads them.
        unsafe { std::slice::from_raw_parts(self.slab().page(self.at.into()).as_ptr(), ALIGN_BYTES) }
    }
}

impl fmt::Debug for SharedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedPage({} have it)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: pages hold what was put there, copies see the old bytes, no two have the same memory, and what nobody uses is given
    // back. Method: several threads take, copy, change, pass on and let go of pages by a seeded choice, and compare each with the
    // number it shall be full of; the slabs are counted in the end, by what waits.
    #[test]
    fn pages_hold_what_was_put_there() {
        let full = |page: &[u8], byte: u8| page == [byte; ALIGN_BYTES];
        // Miri needs a thousand times as long.
        let (turns, held_max) = if cfg!(miri) { (600, 90) } else { (40_000, 2_000) };
        let passed: Mutex<Vec<(SharedPage, u8)>> = Mutex::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let passed = &passed;
                scope.spawn(move || {
                    let mut random = thread * 0x9e37_79b9 + 1;
                    let mut held: Vec<(SharedPage, u8)> = Vec::new();
                    for _ in 0..turns {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let (byte, at) = (random as u8, (random >> 8) as usize % held.len().max(1));
                        match (random >> 40) % 8 {
                            0..3 => held.push((SharedPage::new(&[byte; ALIGN_BYTES]), byte)),
                            _ if held.is_empty() => {}
                            3 => held.push(held[at].clone()),
                            4 => {
                                held[at].0.make_mut().fill(byte);
                                held[at].1 = byte;
                            }
                            5 => passed.lock().push(held.swap_remove(at)),
                            6 => held.extend(passed.lock().pop()),
                            _ => {
                                let (page, byte) = held.swap_remove(at);
                                assert!(full(&page, byte));
                            }
                        }
                        if held.len() > held_max {
                            held.drain(..held_max / 20 * 19)
                                .for_each(|(page, byte)| assert!(full(&page, byte)));
                            SharedPage::give_back();
                        }
                    }
                    held.iter().for_each(|(page, byte)| assert!(full(page, *byte)));
                });
            }
        });
        passed.lock().drain(..).for_each(|(page, byte)| assert!(full(&page, byte)));
        // All but the group that pages are taken of wait whole. The other test of this process uses a few pages.
        SharedPage::give_back();
        let home = HOME.lock();
        let mut slabs: Vec<_> = home.waiting.iter().map(|group| group.slab).collect();
        slabs.extend(home.at.filter(|_| home.left > 0).map(|group| group.slab));
        slabs.sort_unstable();
        slabs.dedup();
        assert!(slabs.len() <= 4, "{} slabs are left", slabs.len());
    }

    // Goal: a page that is shared is copied before it is changed, and one that is not is not. Method: addresses and bytes.
    #[test]
    fn what_is_shared_is_copied_first() {
        let mut page = SharedPage::new(&[1; ALIGN_BYTES]);
        let address = page.as_ptr();
        page.make_mut()[7] = 2;
        assert_eq!((page.as_ptr(), page[7], page.count()), (address, 2, 1));
        let copy = page.clone();
        page.make_mut()[7] = 3;
        assert!(page.as_ptr() != address && copy.as_ptr() == address);
        assert_eq!((page[7], copy[7], copy.count(), page[6]), (3, 2, 1, 1));
        assert!(address.addr().is_multiple_of(ALIGN_BYTES));
    }
}
