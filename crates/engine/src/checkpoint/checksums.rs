//! Checksums of data blocks: a dense array by pool address, 4 bytes a block, in pages under checksummed parents.
//!
//! Pages changed since the last checkpoint are in `dirty`, those the running one writes in `frozen`, others are
//! fetched when needed and cached by address. A stale checksum of a block out of use is harmless.

use std::collections::HashMap;
use std::sync::Arc;

use quick_cache::sync::Cache;
use varve_format::Run;
use varve_format::root::NodePtr;

use super::arrays::PagePtrs;
use crate::numbers::Numbered;

/// Checksums in a page.
pub const PAGE_SUMS: usize = varve_format::BLOCK_BYTES / 4;
/// Blocks a page covers.
pub const PAGE_BLOCKS: u64 = PAGE_SUMS as u64;

/// One page.
pub type SumPage = [u32; PAGE_SUMS];

/// Names the content of a page: the address of its first copy and the checkpoint that wrote it there.
pub type SumKey = (u64, u64);

/// The key of the page behind `ptr`.
pub fn key(ptr: NodePtr) -> SumKey {
    (ptr.addr[0].0, ptr.birth)
}

/// Clean pages.
pub type SumCache = Cache<SumKey, Arc<SumPage>>;

/// Pages held so that the cache cannot drop them between fetching and applying.
pub type SumPins = HashMap<SumKey, Arc<SumPage>>;

/// Where a page is.
pub enum Found {
    /// In memory.
    Page(Arc<SumPage>),
    /// It is all zero: nothing was ever written there.
    Zero,
    /// On disk.
    OnDisk(NodePtr),
}

/// The array. Lives under the apply mutex.
pub struct Checksums {
    /// Pointers to pages and to their parents.
    pub ptrs: PagePtrs,
    /// Pages changed since the last freeze.
    pub dirty: Numbered<u64, Arc<SumPage>>,
    /// Pages that the running checkpoint writes.
    pub frozen: Numbered<u64, Arc<SumPage>>,
}

impl Checksums {
    /// The array behind `ptrs`.
    pub fn new(ptrs: PagePtrs) -> Checksums {
        Checksums { ptrs, dirty: Numbered::default(), frozen: Numbered::default() }
    }

    /// Page number `page`.
    pub fn find(&self, page: u64, cache: &SumCache) -> Found {
        if let Some(p) = self.dirty.get(&page).or_else(|| self.frozen.get(&page)) {
            return Found::Page(p.clone());
        }
        let ptr = self.ptrs.leaf(page as usize);
        if ptr.is_null() {
            return Found::Zero;
        }
        match cache.get(&key(ptr)) {
            Some(p) => Found::Page(p),
            None => Found::OnDisk(ptr),
        }
    }

    /// The first page that must be fetched before the checksums of `run` can be set. Those found are added to
    /// `fetched`, so that they are there when they are needed.
    pub fn missing(&self, run: Run, cache: &SumCache, fetched: &mut SumPins) -> Option<NodePtr> {
        pages_of(run).find_map(|page| {
            let ptr = self.ptrs.leaf(page as usize);
            let changed = self.dirty.contains_key(&page) || self.frozen.contains_key(&page);
            if changed || ptr.is_null() || fetched.contains_key(&key(ptr)) {
                return None;
            }
            match cache.get(&key(ptr)) {
                Some(found) => {
                    fetched.insert(key(ptr), found);
                    None
                }
                None => Some(ptr),
            }
        })
    }

    /// Sets the checksums of `run`, a little-endian or native number each, through `sum(i)`.
    pub fn set(&mut self, run: Run, sum: impl Fn(usize) -> u32, cache: &SumCache, fetched: &SumPins) {
        let first = run.addr.block();
        for page in pages_of(run) {
            if !self.dirty.contains_key(&page) {
                let content = match self.find(page, cache) {
                    Found::Page(p) => p,
                    Found::Zero => Arc::new([0; PAGE_SUMS]),
                    Found::OnDisk(ptr) => fetched.get(&key(ptr)).expect("asked for by `missing`").clone(),
                };
                self.dirty.insert(page, content);
            }
            let content = Arc::make_mut(self.dirty.get_mut(&page).expect("just inserted"));
            let from = first.max(page * PAGE_BLOCKS);
            let to = (first + u64::from(run.blocks)).min((page + 1) * PAGE_BLOCKS);
            for block in from..to {
                content[(block % PAGE_BLOCKS) as usize] = sum((block - first) as usize);
            }
        }
    }
}

/// Pages that the blocks of `run` lie in.
pub fn pages_of(run: Run) -> impl Iterator<Item = u64> {
    let first = run.addr.block();
    first / PAGE_BLOCKS..=(first + u64::from(run.blocks) - 1) / PAGE_BLOCKS
}

/// A page as bytes.
pub fn encode(page: &SumPage, out: &mut [u8]) {
    for (o, s) in out.chunks_exact_mut(4).zip(page) {
        o.copy_from_slice(&s.to_le_bytes());
    }
}

/// A page from bytes.
pub fn decode(block: &[u8]) -> Arc<SumPage> {
    let mut page = [0; PAGE_SUMS];
    for (p, b) in page.iter_mut().zip(block.chunks_exact(4)) {
        *p = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    }
    Arc::new(page)
}
