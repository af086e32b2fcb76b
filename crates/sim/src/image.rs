//! The bytes of a device at one instant, cheap to copy: pages are shared between images until one of them
//! changes.
//!
//! Two levels: chunks of [`CHUNK_PAGES`] pages, so that a copy of a 64 MiB image is 128 reference counts
//! and a change copies one chunk's references and one page.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// A page's bytes.
pub type Page = [u8; PAGE_BYTES];
const CHUNK_PAGES: usize = 128;

static ZERO_PAGE: Page = [0; PAGE_BYTES];

#[derive(Clone)]
struct Chunk([Option<Arc<Page>>; CHUNK_PAGES]);

impl Default for Chunk {
    fn default() -> Self {
        Self([const { None }; CHUNK_PAGES])
    }
}

/// The contents of a device. Pages never written are zero and take no memory.
#[derive(Clone)]
pub struct Image {
    size_bytes: u64,
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl Image {
    /// All zero, of `size_bytes` rounded down to a multiple of [`PAGE_BYTES`].
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        let pages = size_bytes / PAGE_BYTES as u64;
        let chunks = pages.div_ceil(CHUNK_PAGES as u64) as usize;
        Self { size_bytes: pages * PAGE_BYTES as u64, chunks: vec![None; chunks] }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The page with this index (offset divided by [`PAGE_BYTES`]).
    ///
    /// Panics beyond the end.
    #[must_use]
    pub fn page(&self, index: u64) -> &Page {
        self.shared_page(index).map_or(&ZERO_PAGE, |page| page)
    }

    /// The shared page, `None` where nothing was ever written.
    #[must_use]
    pub fn shared_page(&self, index: u64) -> Option<&Arc<Page>> {
        let index = self.checked(index);
        self.chunks[index / CHUNK_PAGES].as_ref()?.0[index % CHUNK_PAGES].as_ref()
    }

    /// Puts a page in place, shared with whoever else has it.
    pub fn set_page(&mut self, index: u64, page: Arc<Page>) {
        *self.slot(index) = Some(page);
    }

    /// Makes a page zero and gives its memory back.
    pub fn clear_page(&mut self, index: u64) {
        *self.slot(index) = None;
    }

    /// The bytes of a page for changing; they are this image's own afterwards.
    pub fn page_mut(&mut self, index: u64) -> &mut Page {
        Arc::make_mut(self.slot(index).get_or_insert_with(|| Arc::new(ZERO_PAGE)))
    }

    /// Copies bytes out. Panics beyond the end.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        for_each_part(offset, buf.len(), |page, at, part| {
            let len = part.len();
            buf[part].copy_from_slice(&self.page(page)[at..at + len]);
        });
    }

    /// Copies bytes in, at any offset. Panics beyond the end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_each_part(offset, bytes.len(), |page, at, part| {
            let len = part.len();
            self.page_mut(page)[at..at + len].copy_from_slice(&bytes[part]);
        });
    }

    /// Byte offset of the first page in which two images of the same size differ.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        if self.size_bytes != other.size_bytes {
            return Some(self.size_bytes.min(other.size_bytes));
        }
        for (i, (ours, theirs)) in self.chunks.iter().zip(&other.chunks).enumerate() {
            let same = match (ours, theirs) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                _ => false,
            };
            if same {
                continue;
            }
            let first = (i * CHUNK_PAGES) as u64;
            let end = (first + CHUNK_PAGES as u64).min(self.size_bytes / PAGE_BYTES as u64);
            if let Some(page) = (first..end).find(|page| self.page(*page) != other.page(*page)) {
                return Some(page * PAGE_BYTES as u64);
            }
        }
        None
    }

    /// Number of pages that were ever written.
    #[must_use]
    pub fn pages_count(&self) -> u64 {
        self.chunks.iter().flatten().map(|chunk| chunk.0.iter().flatten().count() as u64).sum()
    }

    /// Writes the image to a new sparse file.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.size_bytes)?;
        for index in 0..self.size_bytes / PAGE_BYTES as u64 {
            if let Some(page) = self.shared_page(index) {
                file.seek(SeekFrom::Start(index * PAGE_BYTES as u64))?;
                file.write_all(&page[..])?;
            }
        }
        Ok(())
    }

    /// Reads a file. Zero pages take no memory; bytes beyond the last whole page are left out.
    pub fn load(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut image = Self::new(file.metadata()?.len());
        let mut page = ZERO_PAGE;
        for index in 0..image.size_bytes / PAGE_BYTES as u64 {
            file.read_exact(&mut page)?;
            if page != ZERO_PAGE {
                image.set_page(index, Arc::new(page));
            }
        }
        Ok(image)
    }

    fn checked(&self, index: u64) -> usize {
        assert!(index < self.size_bytes / PAGE_BYTES as u64, "page {index} is beyond the image's end");
        index as usize
    }

    fn slot(&mut self, index: u64) -> &mut Option<Arc<Page>> {
        let index = self.checked(index);
        let chunk = self.chunks[index / CHUNK_PAGES].get_or_insert_with(Arc::default);
        &mut Arc::make_mut(chunk).0[index % CHUNK_PAGES]
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        self.first_difference(other).is_none()
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes, {} pages written)", self.size_bytes, self.pages_count())
    }
}

/// Calls `f(page index, offset inside the page, range inside the bytes)` for each page of a range.
fn for_each_part(offset: u64, len_bytes: usize, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len_bytes {
        let here = offset + done as u64;
        let at = (here % PAGE_BYTES as u64) as usize;
        let part = (PAGE_BYTES - at).min(len_bytes - done);
        f(here / PAGE_BYTES as u64, at, done..done + part);
        done += part;
    }
}
