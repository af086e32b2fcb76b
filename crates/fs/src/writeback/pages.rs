//! The dirty pages of one file.
//!
//! A page is dirty (its data is newer than the log), or in flight (a write-back has a copy and will log it), or both
//! (overwritten since the copy was taken: the buffer is copied on write). It leaves the map when it is neither.
//! The reservation covers exactly the dirty pages, but for one that is logged cut ([`Page::has_space`]); that of pages in flight
//! belongs to the write-back.
//!
//! The pages of a large write lie in chunks, and are written to the device from there. A chunk stays whole while one of
//! its pages is in memory. All of its pages come at once, to where no page is; each leaves when it is logged (the others
//! with it), is cut off (who stays gets a buffer of its own), or is overwritten (in a buffer of its own). So memory is at
//! most twice what is dirty.

use std::ops::{Deref, Range};
use std::sync::Arc;

use varve_device::SharedPage;
use varve_engine::{BLOCK_BYTES, Reservation};

use super::buffers::{CHUNK_PAGES_MAX, Chunk};
use super::page_map::PageMap;

/// Contents of a page. Copies share the bytes.
#[derive(Clone)]
pub enum PageBuf {
    /// A buffer of its own.
    Own(SharedPage),
    /// Part of a chunk, and its number in there.
    Part(Arc<Chunk>, usize),
}

impl PageBuf {
    /// A page with these bytes, in a buffer of its own.
    pub(crate) fn new(bytes: &[u8]) -> PageBuf {
        PageBuf::Own(SharedPage::new(bytes))
    }

    /// The bytes to be changed; copied first, if somebody else sees them.
    pub(crate) fn make_mut(&mut self) -> &mut [u8] {
        self.leave_chunk();
        match self {
            PageBuf::Own(page) => page.make_mut(),
            PageBuf::Part(..) => unreachable!("it has just left its chunk"),
        }
    }

    fn leave_chunk(&mut self) {
        if let PageBuf::Part(..) = self {
            *self = PageBuf::new(self);
        }
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            PageBuf::Own(page) => page,
            PageBuf::Part(chunk, page) => &chunk.buf()[page * BLOCK_BYTES..][..BLOCK_BYTES],
        }
    }
}

/// Brings the counts of who has these pages into the processor's caches, all at the same time: they have left them since the
/// pages were written, and counting up or down waits for one after the other.
pub(crate) fn look_at<'a>(pages: impl Iterator<Item = &'a PageBuf>) {
    let counts = pages.map(|page| match page {
        PageBuf::Own(page) => page.count(),
        PageBuf::Part(..) => 0,
    });
    std::hint::black_box(counts.sum::<u32>());
}

/// The chunk that `pages` are the first pages of, if they are and it holds no others in front of or between them.
pub(crate) fn chunk_of(pages: &[(u64, PageBuf)]) -> Option<&Arc<Chunk>> {
    let Some((_, PageBuf::Part(chunk, 0))) = pages.first() else { return None };
    let follows = |(at, (_, data)): (usize, &(u64, PageBuf))| match data {
        PageBuf::Part(of, page) => *page == at && Arc::ptr_eq(of, chunk),
        PageBuf::Own(_) => false,
    };
    pages.iter().enumerate().all(follows).then_some(chunk)
}

/// A page in memory.
pub struct Page {
    /// Its bytes. Beyond the file's size they are zero.
    pub data: PageBuf,
    /// Whether it is newer than the log and than any copy in flight.
    pub dirty: bool,
    /// The write-back that has a copy, or 0.
    pub job: u64,
    /// The page is logged as if the file ended here, and has not been written to since.
    pub logged_to: Option<u64>,
}

impl Page {
    /// Whether space is set aside for it. That of a page which is logged cut has been used for that: it stays dirty until the cut
    /// comes, and needs space again if it is written to or taken before.
    pub fn has_space(&self) -> bool {
        self.dirty && self.logged_to.is_none()
    }
}

/// The dirty pages of one file, by page number.
#[derive(Default)]
pub struct DirtyPages {
    /// All pages in memory.
    pub map: PageMap<Page>,
    /// How many of them are dirty.
    pub dirty: u64,
    /// Space for them.
    pub reservation: Option<Reservation>,
    /// Place in the filesystem's list of dirty files.
    pub listed: Option<u64>,
}

/// A page of zeros.
pub(crate) fn zero_page() -> PageBuf {
    PageBuf::new(&[0; BLOCK_BYTES])
}

impl DirtyPages {
    /// Whether no page is in memory.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// How many pages have space, and how many runs of them there are.
    pub(crate) fn with_space(&self) -> (u64, u64) {
        let (mut pages, mut runs, mut next) = (0, 0, 0);
        for (index, _) in self.map.range(..).filter(|(_, page)| page.has_space()) {
            runs += u64::from(pages == 0 || index != next);
            (pages, next) = (pages + 1, index + 1);
        }
        (pages, runs)
    }

    /// Writes `bytes` at `at` of page `index`, which starts as `base` if it is not in memory. Returns (newly in memory,
    /// in need of space that it had not).
    pub(crate) fn write(
        &mut self,
        index: u64,
        at: usize,
        bytes: &[u8],
        base: Option<&PageBuf>,
    ) -> (bool, bool) {
        let (page, fresh) = self.map.get_or_insert(index, || {
            let data = if bytes.len() == BLOCK_BYTES {
                PageBuf::new(bytes)
            } else {
                let mut data = base.cloned().unwrap_or_else(zero_page);
                data.make_mut()[at..at + bytes.len()].copy_from_slice(bytes);
                data
            };
            Page { data, dirty: false, job: 0, logged_to: None }
        });
        let needs_space = !page.has_space();
        if !fresh {
            page.data.make_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            page.logged_to = None;
        }
        self.dirty += u64::from(!page.dirty);
        page.dirty = true;
        (fresh, needs_space)
    }

    /// Whether none of these pages is in memory.
    pub(crate) fn has_none(&self, pages: Range<u64>) -> bool {
        self.map.range(pages).next().is_none()
    }

    /// Makes the pages from `index` on dirty, which are not in memory: they are those of `chunk`.
    pub(crate) fn insert_chunk(&mut self, index: u64, chunk: &Arc<Chunk>) {
        for page in 0..chunk.pages() {
            let data = PageBuf::Part(chunk.clone(), page);
            let was =
                self.map.insert(index + page as u64, Page { data, dirty: true, job: 0, logged_to: None });
            debug_assert!(was.is_none());
        }
        self.dirty += chunk.pages() as u64;
    }

    /// Drops the pages from `index` on. Returns (pages dropped, how many of them had space).
    pub(crate) fn drop_from(&mut self, index: u64) -> (u64, u64) {
        let dropped = self.map.split_off(index);
        // Those in front of them in the same chunk shall not keep all of it, whoever has left it before.
        self.map.range_mut(index.saturating_sub(CHUNK_PAGES_MAX as u64)..).for_each(|(at, page)| {
            let cut = index - at;
            if matches!(&page.data, PageBuf::Part(chunk, of) if *of as u64 + cut < chunk.pages() as u64) {
                page.data.leave_chunk();
            }
        });
        self.dirty -= dropped.values().filter(|page| page.dirty).count() as u64;
        (dropped.len() as u64, dropped.values().filter(|page| page.has_space()).count() as u64)
    }

    /// The file ends at `size` from now on: zeroes what lies beyond it in its page. True if the page is logged so far already, or
    /// farther (the cut marks what lies behind it), and has left memory.
    pub(crate) fn cut_tail(&mut self, size: u64) -> bool {
        let (index, at) = (size / BLOCK_BYTES as u64, (size % BLOCK_BYTES as u64) as usize);
        let Some(page) = self.map.get_mut(index).filter(|_| at != 0) else { return false };
        if page.logged_to.is_some_and(|to| to >= size) && page.job == 0 && page.dirty {
            self.map.remove(index);
            self.dirty -= 1;
            return true;
        }
        page.data.make_mut()[at..].fill(0);
        page.logged_to = None;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::buffers::Buffers;

    fn with_chunk(first: u64) -> (DirtyPages, Arc<Chunk>) {
        let chunk = Buffers::new(1 << 20).chunk(&[5; 32 * BLOCK_BYTES]).unwrap();
        let mut pages = DirtyPages::default();
        pages.write(first - 1, 0, &[4; BLOCK_BYTES], None);
        pages.insert_chunk(first, &chunk);
        (pages, chunk)
    }

    // Goal: pages that stay when a file is cut do not keep a whole chunk in memory. Method: a chunk is cut at each of its
    // pages; whoever refers to it is counted, and the pages that stay are looked at.
    #[test]
    fn what_is_cut_keeps_no_chunk() {
        for cut in 0..32 {
            let (mut pages, chunk) = with_chunk(10);
            assert_eq!(Arc::strong_count(&chunk), 33);
            assert_eq!(pages.drop_from(10 + cut), (32 - cut, 32 - cut));
            assert_eq!(Arc::strong_count(&chunk), 1, "cut at {cut}");
            assert_eq!(pages.dirty, 1 + cut);
            assert!(pages.map.range(10..).all(|(_, page)| page.data[..] == [5; BLOCK_BYTES]));
        }
    }

    // Goal: the same where the page that is cut first, or others, have left the chunk before. Method: each cut of a chunk of which every
    // third page, and the one that is cut first, was overwritten; pages of another chunk in front keep theirs.
    #[test]
    fn what_is_cut_keeps_no_chunk_that_some_have_left() {
        for cut in 0..32 {
            let (mut pages, chunk) = with_chunk(50);
            let front = Buffers::new(1 << 20).chunk(&[3; 32 * BLOCK_BYTES]).unwrap();
            pages.insert_chunk(10, &front);
            for page in (0..32).step_by(3).chain([cut]) {
                pages.write(50 + page, 0, &[6], None);
            }
            pages.drop_from(50 + cut);
            assert_eq!(Arc::strong_count(&chunk), 1, "cut at {cut}");
            assert_eq!(Arc::strong_count(&front), 33);
        }
    }

    // Goal: an overwritten page leaves its chunk, and whoever has a copy of it sees the old bytes. Method: one page is
    // written to in part while a copy is kept.
    #[test]
    fn an_overwritten_page_leaves_its_chunk() {
        let (mut pages, chunk) = with_chunk(10);
        let copy = pages.map.get(12).unwrap().data.clone();
        assert_eq!(pages.write(12, 100, &[6; 50], None), (false, false));
        assert!(copy.iter().all(|byte| *byte == 5));
        let now = &pages.map.get(12).unwrap().data;
        assert!(now[100..150].iter().all(|byte| *byte == 6));
        assert_eq!(now.iter().filter(|byte| **byte == 5).count(), BLOCK_BYTES - 50);
        drop(copy);
        assert_eq!(Arc::strong_count(&chunk), 32);
    }
}
