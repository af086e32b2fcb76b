//! A heap buffer whose start and length are multiples of [`ALIGN_BYTES`], as direct I/O needs.
//!
//! Invariants: the length is a whole number of pages and never changes; every byte is initialised.
//!
//! Small ones are asked for with every synced file, and let go of by whoever has made its batch durable. What is aligned like
//! this takes the allocator long, the longer the more threads there are, so some are kept here for the next ([`SPARE`]).

use std::fmt;
use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;

use crate::ALIGN_BYTES;
use crate::region::Memory;

/// One page. Its size equals its alignment, so a slice of pages is a gapless run of bytes.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; ALIGN_BYTES]);

const _: () = assert!(size_of::<Page>() == ALIGN_BYTES && align_of::<Page>() == ALIGN_BYTES);

/// A zeroed, page-aligned byte buffer of a whole number of pages. Dereferences to `[u8]`.
#[derive(Default)]
pub struct AlignedBuf {
    pages: Pages,
}

/// Pages of the largest of the small buffers that are kept.
const SPARE_PAGES_MAX: usize = 16;
/// Pages of large buffers that are kept, of which there are [`LARGE_MAX`]: a full batch of the log has somewhat more than a MiB, and memory
/// that is new costs more than copying the batch to it.
const LARGE_PAGES: std::ops::RangeInclusive<usize> = 257..=384;
const LARGE_MAX: usize = 2;
/// Bytes of those that are kept, all together.
const SPARE_BYTES_MAX: usize = 2 << 20;

/// Buffers that nobody uses, for the next of their size; whatever was in them still is.
static SPARE: Mutex<Spare> =
    Mutex::new(Spare { bytes: 0, of: [const { Vec::new() }; SPARE_PAGES_MAX + 1], large: Vec::new() });

struct Spare {
    bytes: usize,
    /// By number of pages.
    of: [Vec<Vec<Page>>; SPARE_PAGES_MAX + 1],
    /// With room for each of [`LARGE_PAGES`].
    large: Vec<Vec<Page>>,
}

/// Room for as many pages as were asked for, if some are kept, with anything in it.
fn take_large(count: usize) -> Option<Vec<Page>> {
    if !LARGE_PAGES.contains(&count) {
        return None;
    }
    SPARE.lock().large.pop()
}

/// As many pages as were asked for, if some are kept, with anything in them.
fn take_spare(count: usize) -> Option<Vec<Page>> {
    if !(1..=SPARE_PAGES_MAX).contains(&count) {
        return None;
    }
    let mut spare = SPARE.lock();
    let pages = spare.of[count].pop()?;
    spare.bytes -= count * ALIGN_BYTES;
    Some(pages)
}

/// Where the bytes are.
enum Pages {
    Heap(Vec<Page>),
    /// Large ones: the memory, and how many bytes are used of it.
    Mapped(Memory, usize),
}

impl Default for Pages {
    fn default() -> Self {
        Pages::Heap(Vec::new())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let Pages::Heap(pages) = self else { return };
        let count = pages.len();
        if (1..=SPARE_PAGES_MAX).contains(&count) {
            let mut spare = SPARE.lock();
            if spare.bytes + count * ALIGN_BYTES <= SPARE_BYTES_MAX {
                spare.bytes += count * ALIGN_BYTES;
                spare.of[count].push(std::mem::take(pages));
            }
        } else if LARGE_PAGES.contains(&count) && pages.capacity() >= *LARGE_PAGES.end() {
            let mut spare = SPARE.lock();
            if spare.large.len() < LARGE_MAX {
                spare.large.push(std::mem::take(pages));
            }
        }
    }
}

impl AlignedBuf {
    /// A zeroed buffer of `len_bytes`, rounded up to a multiple of [`ALIGN_BYTES`]. From 1 MiB on it costs no memory until
    /// it is touched, and then that of large pages.
    #[must_use]
    pub fn new(len_bytes: usize) -> Self {
        let count = len_bytes.div_ceil(ALIGN_BYTES);
        if let Some(pages) = take_spare(count) {
            let mut buf = Self { pages: Pages::Heap(pages) };
            buf.fill(0);
            return buf;
        }
        let pages = match Memory::zeroed(count.saturating_mul(ALIGN_BYTES)) {
            Some(memory) => Pages::Mapped(memory, count * ALIGN_BYTES),
            None => Pages::Heap(vec![Page([0; ALIGN_BYTES]); count]),
        };
        Self { pages }
    }

    /// A copy of `bytes`; the length is rounded up to a multiple of [`ALIGN_BYTES`], the rest is zero.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self::with_bytes_at(0, bytes)
    }

    /// A buffer of `before` zeros and then `bytes`; the length is rounded up to a multiple of [`ALIGN_BYTES`], the rest is
    /// zero. Nothing is written twice.
    #[must_use]
    pub fn with_bytes_at(before: usize, bytes: &[u8]) -> Self {
        let used = before.checked_add(bytes.len()).expect("memory has no more bytes than that");
        let count = used.div_ceil(ALIGN_BYTES);
        let len_bytes = count.saturating_mul(ALIGN_BYTES);
        if let Some(memory) = Memory::zeroed(len_bytes) {
            let mut buf = Self { pages: Pages::Mapped(memory, len_bytes) };
            buf[before..used].copy_from_slice(bytes);
            return buf;
        }
        let kept = take_spare(count).or_else(|| take_large(count));
        // What is kept has room for any; what nobody writes to takes no memory.
        let room = if LARGE_PAGES.contains(&count) { *LARGE_PAGES.end() } else { count };
        let mut pages = kept.unwrap_or_else(|| Vec::with_capacity(room));
        let start = pages.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector has room for `count` pages, which are `len_bytes` gapless bytes; `before`, `used` and
        // `len_bytes` ascend, the three parts are all of these bytes, and nobody else has them, so that nothing overlaps.
        // Any byte pattern is a valid `Page`, and all `count` of them are initialised when the length is set.
        unsafe {
            start.write_bytes(0, before);
            start.add(before).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            start.add(used).write_bytes(0, len_bytes - used);
            pages.set_len(count);
        }
        Self { pages: Pages::Heap(pages) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len_bytes) = match &self.pages {
            Pages::Heap(pages) => (pages.as_ptr().cast(), pages.len() * ALIGN_BYTES),
            Pages::Mapped(memory, len_bytes) => (memory.start().as_ptr().cast_const(), *len_bytes),
        };
        // SAFETY: `Page` is `repr(C)` around `[u8; ALIGN_BYTES]` with size equal to `ALIGN_BYTES` (asserted above), so the
        // vector's pages are initialised contiguous bytes; so is mapped memory, as long as was asked for, from its start
        // on. The returned borrow keeps either borrowed.
        unsafe { std::slice::from_raw_parts(start, len_bytes) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len_bytes) = match &mut self.pages {
            Pages::Heap(pages) => (pages.as_mut_ptr().cast(), pages.len() * ALIGN_BYTES),
            Pages::Mapped(memory, len_bytes) => (memory.start().as_ptr(), *len_bytes),
        };
        // SAFETY: as in `deref`; the borrow is unique because `self` is borrowed mutably and nobody else has its memory,
        // and any byte pattern is a valid `Page`.
        unsafe { std::slice::from_raw_parts_mut(start, len_bytes) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for AlignedBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: start and length are aligned, bytes start as zero. Method: many sizes, address arithmetic.
    #[test]
    fn aligned_rounded_and_zeroed() {
        for len in [0, 1, 4095, 4096, 4097, 65536, 1 << 20] {
            let buf = AlignedBuf::new(len);
            assert_eq!(buf.as_ptr().addr() % ALIGN_BYTES, 0);
            assert_eq!(buf.len(), len.div_ceil(ALIGN_BYTES) * ALIGN_BYTES);
            assert!(buf.iter().all(|b| *b == 0));
        }
    }

    // Goal: of buffers that are used again nothing is seen, and what is kept stays within its bound. Method: many buffers of
    // all sizes, full of ones, held at once by several threads and let go of; then new ones of both kinds are looked at.
    #[test]
    fn used_again_without_a_trace() {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for count in (1..=SPARE_PAGES_MAX + 1).chain([3; if cfg!(miri) { 0 } else { 200 }]) {
                        let mut held: Vec<_> =
                            (0..20).map(|_| AlignedBuf::new(count * ALIGN_BYTES)).collect();
                        assert!(held.iter().all(|buf| buf.iter().all(|byte| *byte == 0)), "{count} pages");
                        held.iter_mut().for_each(|buf| buf.fill(0xff));
                        drop(held);
                        let (before, bytes) = (100, vec![7; (count - 1) * ALIGN_BYTES + 1]);
                        let buf = AlignedBuf::with_bytes_at(before, &bytes);
                        assert_eq!((buf.len(), buf.as_ptr().addr() % ALIGN_BYTES), (count * ALIGN_BYTES, 0));
                        let end = before + bytes.len();
                        assert!(buf[before..end].iter().all(|byte| *byte == 7), "{count} pages");
                        assert!(
                            buf[..before].iter().chain(&buf[end..]).all(|byte| *byte == 0),
                            "{count} pages"
                        );
                    }
                });
            }
        });
        let spare = SPARE.lock();
        let bytes: usize = spare.of.iter().flatten().map(|pages| pages.len() * ALIGN_BYTES).sum();
        assert!(bytes > 0 && bytes == spare.bytes && bytes <= SPARE_BYTES_MAX, "{bytes} of {}", spare.bytes);
    }

    // Goal: the same of large ones, of which the memory is used again. Method: buffers of sizes in, at and beyond the bounds, three at once, full
    // of ones and let go of; then a smaller and a larger one of other bytes.
    #[test]
    fn large_ones_are_used_again() {
        for count in [*LARGE_PAGES.start(), 300, *LARGE_PAGES.end(), LARGE_PAGES.end() + 1] {
            let ones = vec![0xff; count * ALIGN_BYTES];
            let held = [0; 3].map(|_| AlignedBuf::with_bytes_at(0, &ones));
            let places = held.each_ref().map(|buf| buf.as_ptr());
            drop(held);
            if LARGE_PAGES.contains(&count) {
                let kept =
                    SPARE.lock().large.iter().filter(|pages| places.contains(&pages.as_ptr().cast())).count();
                assert!((1..=LARGE_MAX).contains(&kept), "{count} pages: {kept}");
            }
            for count in [count - 1, count] {
                let bytes = vec![7; count * ALIGN_BYTES - 200];
                let buf = AlignedBuf::with_bytes_at(100, &bytes);
                assert_eq!((buf.len(), buf.as_ptr().addr() % ALIGN_BYTES), (count * ALIGN_BYTES, 0));
                assert!(buf[100..][..bytes.len()].iter().all(|byte| *byte == 7), "{count} pages");
                assert!(
                    buf[..100].iter().chain(&buf[100 + bytes.len()..]).all(|byte| *byte == 0),
                    "{count} pages"
                );
            }
        }
        assert!(SPARE.lock().large.len() <= LARGE_MAX);
    }

    // Goal: contents survive from_slice and clone, and clones are independent. Method: write to one of two.
    #[test]
    fn copies_are_independent() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        let mut first = AlignedBuf::from_slice(&source);
        assert_eq!(&first[..5000], &source[..]);
        assert!(first[5000..].iter().all(|b| *b == 0));
        let behind = AlignedBuf::with_bytes_at(4000, &source);
        assert_eq!(behind.len(), 3 * ALIGN_BYTES);
        assert_eq!(&behind[4000..9000], &source[..]);
        assert!(behind[..4000].iter().chain(&behind[9000..]).all(|b| *b == 0));
        let large = AlignedBuf::with_bytes_at(100, &vec![3; 2 << 20]);
        assert_eq!(large.len(), (2 << 20) + ALIGN_BYTES);
        assert!(large[..100].iter().chain(&large[100 + (2 << 20)..]).all(|b| *b == 0));
        assert!(large[100..100 + (2 << 20)].iter().all(|b| *b == 3));
        let second = first.clone();
        assert_eq!(first, second);
        first[8191] = 7;
        assert_ne!(first, second);
        assert_eq!(second.as_ptr().addr() % ALIGN_BYTES, 0);
    }
}
