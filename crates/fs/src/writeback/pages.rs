//! The dirty pages of one file.
//!
//! A page is dirty (its data is newer than the log), or in flight (a write-back has a copy and will log it), or both
//! (overwritten since the copy was taken: the buffer is copied on write). It leaves the map when it is neither.
//! The reservation covers exactly the dirty pages; that of pages in flight belongs to the write-back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use varve_engine::{BLOCK_BYTES, Reservation};

/// Contents of a page.
pub(crate) type PageBuf = Arc<[u8]>;

/// A page in memory.
pub(crate) struct Page {
    /// Its bytes. Beyond the file's size they are zero.
    pub data: PageBuf,
    /// Whether it is newer than the log and than any copy in flight.
    pub dirty: bool,
    /// The write-back that has a copy, or 0.
    pub job: u64,
    /// The page is logged as if the file ended here, and has not been written to since.
    pub logged_to: Option<u64>,
}

/// The dirty pages of one file, by page number.
#[derive(Default)]
pub(crate) struct DirtyPages {
    /// All pages in memory.
    pub map: BTreeMap<u64, Page>,
    /// How many of them are dirty.
    pub dirty: u64,
    /// Space for them.
    pub reservation: Option<Reservation>,
    /// Place in the filesystem's list of dirty files.
    pub listed: Option<u64>,
}

/// A page of zeros.
pub(crate) fn zero_page() -> PageBuf {
    Arc::from([0u8; BLOCK_BYTES].as_slice())
}

impl DirtyPages {
    /// Whether no page is in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Writes `bytes` at `at` of page `index`, which starts as `base` if it is not in memory. Returns (newly in memory,
    /// newly dirty).
    pub(crate) fn write(
        &mut self,
        index: u64,
        at: usize,
        bytes: &[u8],
        base: Option<&PageBuf>,
    ) -> (bool, bool) {
        let place = match self.map.entry(index) {
            Entry::Occupied(mut entry) => {
                let page = entry.get_mut();
                Arc::make_mut(&mut page.data)[at..at + bytes.len()].copy_from_slice(bytes);
                let newly = !page.dirty;
                page.dirty = true;
                page.logged_to = None;
                self.dirty += u64::from(newly);
                return (false, newly);
            }
            Entry::Vacant(place) => place,
        };
        let data = if bytes.len() == BLOCK_BYTES {
            Arc::from(bytes)
        } else {
            let mut data = base.cloned().unwrap_or_else(zero_page);
            Arc::make_mut(&mut data)[at..at + bytes.len()].copy_from_slice(bytes);
            data
        };
        place.insert(Page { data, dirty: true, job: 0, logged_to: None });
        self.dirty += 1;
        (true, true)
    }

    /// Drops the pages from `index` on. Returns (pages dropped, dirty pages dropped).
    pub(crate) fn drop_from(&mut self, index: u64) -> (u64, u64) {
        let dropped = self.map.split_off(&index);
        let dirty = dropped.values().filter(|page| page.dirty).count() as u64;
        self.dirty -= dirty;
        (dropped.len() as u64, dirty)
    }

    /// The file ends at `size` from now on: zeroes what lies beyond it in its page. True if the page is logged like
    /// that already, and has left memory.
    pub(crate) fn cut_tail(&mut self, size: u64) -> bool {
        let (index, at) = (size / BLOCK_BYTES as u64, (size % BLOCK_BYTES as u64) as usize);
        let Some(page) = self.map.get_mut(&index).filter(|_| at != 0) else { return false };
        if page.logged_to == Some(size) && page.job == 0 && page.dirty {
            self.map.remove(&index);
            self.dirty -= 1;
            return true;
        }
        Arc::make_mut(&mut page.data)[at..].fill(0);
        page.logged_to = None;
        false
    }
}
