//! Bytes of a file as the reference model holds them: sparse pages, cheap to clone.
//!
//! A page usually has one content. Where a call both changed a page and logged it, the model cannot know which of
//! the two contents went into the log, so a page of a *logged* state may have several that are acceptable; a live
//! state always has exactly one. Bytes beyond the size are zeros in every page. Knows nothing of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes in a page.
pub const PAGE_BYTES: u64 = 4096;

type Page = Arc<[u8; PAGE_BYTES as usize]>;

#[derive(Clone)]
struct Slot {
    page: Page,
    others: Vec<Page>,
}

/// A file's size and bytes. Pages that are absent are zeros.
#[derive(Clone, Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Slot>,
}

fn zeros() -> Page {
    Arc::new([0; PAGE_BYTES as usize])
}

impl Content {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn page(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number).map(|slot| &slot.page)
    }

    fn page_bytes(&self, number: u64) -> &[u8] {
        const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        self.page(number).map_or(&ZEROS[..], |page| &page[..])
    }

    /// Writes `data` at `offset`, growing the file if it ends beyond the size.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let number = at / PAGE_BYTES;
            let within = (at % PAGE_BYTES) as usize;
            let n = rest.len().min(PAGE_BYTES as usize - within);
            let slot = self.pages.entry(number).or_insert_with(|| Slot { page: zeros(), others: Vec::new() });
            slot.others.clear();
            Arc::make_mut(&mut slot.page)[within..within + n].copy_from_slice(&rest[..n]);
            at += n as u64;
            rest = &rest[n..];
        }
        self.size = self.size.max(at);
    }

    /// Sets the size; what lies beyond is gone and reads as zeros if the file grows again.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let keep = size.div_ceil(PAGE_BYTES);
            self.pages.split_off(&keep);
            let within = (size % PAGE_BYTES) as usize;
            if within != 0
                && let Some(slot) = self.pages.get_mut(&(size / PAGE_BYTES))
            {
                Arc::make_mut(&mut slot.page)[within..].fill(0);
                for page in &mut slot.others {
                    Arc::make_mut(page)[within..].fill(0);
                }
            }
        }
        self.size = size;
    }

    /// The pages of `offset..offset + len` take their place in the log, and `size` becomes the file's size there.
    /// What they hold is what `before` or `after` the running call the file held.
    pub fn log(&mut self, offset: u64, len: u64, size: u64, before: &Content, after: &Content) {
        let end = offset.saturating_add(len);
        for number in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let old = before.page(number);
            let new = after.page(number);
            let same = match (old, new) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new) || old == new,
                (None, None) => true,
                _ => before.page_bytes(number) == after.page_bytes(number),
            };
            match new {
                None if same => {
                    self.pages.remove(&number);
                }
                _ => {
                    let page = new.cloned().unwrap_or_else(zeros);
                    let others = if same { Vec::new() } else { vec![old.cloned().unwrap_or_else(zeros)] };
                    self.pages.insert(number, Slot { page, others });
                }
            }
        }
        if size < self.size {
            self.truncate(size);
        }
        self.size = size;
    }

    /// Whether the bytes of `from..to` are, page by page, those of `before` or `after`.
    pub fn range_is(&self, from: u64, to: u64, before: &Content, after: &Content) -> bool {
        if from >= to {
            return true;
        }
        (from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)).all(|number| {
            let start = (from.max(number * PAGE_BYTES) - number * PAGE_BYTES) as usize;
            let end = (to.min((number + 1) * PAGE_BYTES) - number * PAGE_BYTES) as usize;
            let mine = &self.page_bytes(number)[start..end];
            mine == &before.page_bytes(number)[start..end] || mine == &after.page_bytes(number)[start..end]
        })
    }

    /// Whether `bytes`, read at `offset` (a multiple of the page size), are acceptable; the first wrong byte if not.
    pub fn accepts(&self, offset: u64, bytes: &[u8]) -> Result<(), u64> {
        debug_assert!(offset.is_multiple_of(PAGE_BYTES));
        for (i, chunk) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let number = offset / PAGE_BYTES + i as u64;
            let want = self.page_bytes(number);
            if &want[..chunk.len()] == chunk {
                continue;
            }
            let others = self.pages.get(&number).map_or(&[][..], |slot| &slot.others[..]);
            if !others.iter().any(|page| &page[..chunk.len()] == chunk) {
                let within = want.iter().zip(chunk).position(|(a, b)| a != b).unwrap_or(0);
                return Err(number * PAGE_BYTES + within as u64);
            }
        }
        Ok(())
    }

    /// The byte at `at`, in its first acceptable content.
    pub fn byte(&self, at: u64) -> u8 {
        self.page_bytes(at / PAGE_BYTES)[(at % PAGE_BYTES) as usize]
    }

    /// Whether a page of `offset..offset + len` has several acceptable contents.
    pub fn has_choices(&self, offset: u64, len: u64) -> bool {
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        self.pages.range(pages).any(|(_, slot)| !slot.others.is_empty())
    }

    /// Replaces what is acceptable by what was found: `bytes` at `offset`, a multiple of the page size.
    pub fn settle(&mut self, offset: u64, bytes: &[u8]) {
        for (i, chunk) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let number = offset / PAGE_BYTES + i as u64;
            if let Some(slot) = self.pages.get_mut(&number)
                && !slot.others.is_empty()
            {
                let mut page = [0; PAGE_BYTES as usize];
                page[..chunk.len()].copy_from_slice(chunk);
                *slot = Slot { page: Arc::new(page), others: Vec::new() };
            }
        }
    }

    /// Whether both hold the same size and bytes (first contents).
    pub fn same(&self, other: &Content) -> bool {
        self.size == other.size && self.range_is(0, self.size, other, other)
    }

    /// Bytes in pages that are not holes.
    pub fn stored_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }
}
