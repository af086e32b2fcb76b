//! A bit a block, in pages that are shared until they change.

use std::sync::Arc;

use varve_format::{BLOCK_BYTES, Run};

/// Words in a page.
pub const PAGE_WORDS: usize = BLOCK_BYTES / 8;
/// Blocks a page covers.
pub const PAGE_BITS: u64 = (BLOCK_BYTES * 8) as u64;

#[cfg(test)]
thread_local! {
    /// Words that searches have read.
    pub static WORDS_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One page.
pub type Page = [u64; PAGE_WORDS];

/// Bits of the whole pool. Cloning costs a pointer a page; a page is copied when it changes while shared.
#[derive(Clone)]
pub struct Bits {
    pages: Vec<Option<Arc<Page>>>,
}

impl Bits {
    /// All zero, for `blocks` blocks.
    pub fn new(blocks: u64) -> Bits {
        Bits { pages: vec![None; blocks.div_ceil(PAGE_BITS) as usize] }
    }
    /// Number of pages.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }
    /// A page, `None` when it is all zero.
    pub fn page(&self, i: usize) -> Option<&Arc<Page>> {
        self.pages[i].as_ref()
    }
    /// Replaces a page.
    pub fn set_page(&mut self, i: usize, page: Option<Arc<Page>>) {
        self.pages[i] = page;
    }
    /// Whether `block` is set.
    pub fn get(&self, block: u64) -> bool {
        match &self.pages[(block / PAGE_BITS) as usize] {
            Some(p) => p[(block % PAGE_BITS) as usize / 64] >> (block % 64) & 1 == 1,
            None => false,
        }
    }
    /// Sets or clears the bits of `run`; returns how many changed. `touched` is called with each page that changed.
    pub fn write(&mut self, run: Run, value: bool, touched: &mut dyn FnMut(usize)) -> u64 {
        let (mut at, end) = (run.addr.block(), run.addr.block() + u64::from(run.blocks));
        let mut changed = 0;
        while at < end {
            let page = (at / PAGE_BITS) as usize;
            let word = (at % PAGE_BITS) as usize / 64;
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << bit;
            let old = self.pages[page].as_ref().map_or(0, |p| p[word]);
            let new = if value { old | mask } else { old & !mask };
            if new != old {
                changed += u64::from((new ^ old).count_ones());
                let p = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE_WORDS]));
                Arc::make_mut(p)[word] = new;
                touched(page);
            }
            at += n;
        }
        changed
    }
    /// Number of bits set.
    pub fn count(&self) -> u64 {
        self.pages.iter().flatten().map(|p| p.iter().map(|w| u64::from(w.count_ones())).sum::<u64>()).sum()
    }
    /// The first clear run at or after `from` and before `end`, at most `max` long.
    pub fn find_clear(&self, from: u64, end: u64, max: u32) -> Option<(u64, u32)> {
        let start = self.next(from, end, false)?;
        let stop = self
            .next(start, end.min(start + u64::from(max)), true)
            .unwrap_or(end.min(start + u64::from(max)));
        Some((start, (stop - start) as u32))
    }
    /// The first block at or after `from`, before `end`, whose bit is `value`.
    pub fn next(&self, from: u64, end: u64, value: bool) -> Option<u64> {
        let mut at = from;
        while at < end {
            let page = (at / PAGE_BITS) as usize;
            let page_end = ((page as u64 + 1) * PAGE_BITS).min(end);
            let Some(p) = &self.pages[page] else {
                if !value {
                    return Some(at);
                }
                at = page_end;
                continue;
            };
            while at < page_end {
                #[cfg(test)]
                WORDS_READ.with(|words| words.set(words.get() + 1));
                let word = p[(at % PAGE_BITS) as usize / 64];
                let word = if value { word } else { !word } & (u64::MAX << (at % 64));
                let base = at - at % 64;
                if word != 0 {
                    let found = base + u64::from(word.trailing_zeros());
                    return (found < end).then_some(found);
                }
                at = base + 64;
            }
        }
        None
    }
    /// The first block at or after `from`, before `end`, whose bit is not the same in `other`, of as many blocks. Passes over what both
    /// have no page of, or the same.
    pub fn next_difference(&self, other: &Bits, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        while at < end {
            let page = (at / PAGE_BITS) as usize;
            let page_end = ((page as u64 + 1) * PAGE_BITS).min(end);
            let (ours, theirs) = (&self.pages[page], &other.pages[page]);
            let is_same = match (ours, theirs) {
                (None, None) => true,
                (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
                _ => false,
            };
            while at < page_end && !is_same {
                #[cfg(test)]
                WORDS_READ.with(|words| words.set(words.get() + 1));
                let word =
                    |page: &Option<Arc<Page>>| page.as_ref().map_or(0, |p| p[(at % PAGE_BITS) as usize / 64]);
                let differs = (word(ours) ^ word(theirs)) & (u64::MAX << (at % 64));
                let base = at - at % 64;
                if differs != 0 {
                    let found = base + u64::from(differs.trailing_zeros());
                    return (found < end).then_some(found);
                }
                at = base + 64;
            }
            at = page_end;
        }
        None
    }
    /// The first word of a page that is all clear, from `from` on and before `end`, which is not behind the page's end. Of
    /// `words_left` one is taken for each word that is read.
    pub fn next_clear_word(&self, from: u64, end: u64, words_left: &mut usize) -> Option<u64> {
        let mut at = from.next_multiple_of(64);
        let page = self.pages[(from / PAGE_BITS) as usize].as_ref();
        while at + 64 <= end && *words_left > 0 {
            #[cfg(test)]
            WORDS_READ.with(|words| words.set(words.get() + 1));
            *words_left -= 1;
            if page.is_none_or(|page| page[(at % PAGE_BITS) as usize / 64] == 0) {
                return Some(at);
            }
            at += 64;
        }
        None
    }
}
