//! Dense arrays on disk: pages of payload under pages of pointers, all shadow-paged. A null pointer stands for a
//! page (or a whole subtree) of zeros.

use std::collections::BTreeSet;

use varve_format::BLOCK_BYTES;
use varve_format::codec::Reader;
use varve_format::root::{ARRAY_FANOUT, ArrayRoot, NodePtr};

use crate::EngineError;

/// Gives a verified page; the words say what is being read.
pub type ReadPage<'a> = dyn FnMut(NodePtr, &str) -> Result<Vec<u8>, EngineError> + 'a;

/// Pointers of all levels: 0 has one a payload page, the last exactly one.
#[derive(Clone)]
pub struct PagePtrs {
    levels: Vec<Vec<NodePtr>>,
}

impl PagePtrs {
    /// An array of `pages` zero pages. An error if there is not the memory for that: some 32 bytes each.
    pub fn new(pages: usize) -> Result<PagePtrs, EngineError> {
        let level = |pages: usize| {
            let mut ptrs = Vec::new();
            if ptrs.try_reserve_exact(pages).is_err() {
                return Err(EngineError::Refused(format!(
                    "there is not enough memory for a pool of this size: {} MiB for what is known of its blocks",
                    (pages * size_of::<NodePtr>()) >> 20
                )));
            }
            ptrs.resize(pages, NodePtr::NULL);
            Ok(ptrs)
        };
        let mut levels = vec![level(pages)?];
        while levels.last().is_some_and(|l| l.len() > 1) {
            let n = levels[levels.len() - 1].len().div_ceil(ARRAY_FANOUT);
            levels.push(level(n)?);
        }
        Ok(PagePtrs { levels })
    }

    /// Number of levels, payload included.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Where payload page `i` is.
    pub fn leaf(&self, i: usize) -> NodePtr {
        self.levels[0][i]
    }

    /// Page `i` of `level`.
    pub fn get(&self, level: usize, i: usize) -> NodePtr {
        self.levels[level][i]
    }

    /// Moves page `i` of `level`; returns where it was.
    pub fn set(&mut self, level: usize, i: usize, ptr: NodePtr) -> NodePtr {
        std::mem::replace(&mut self.levels[level][i], ptr)
    }

    /// What the root block stores.
    pub fn root(&self) -> ArrayRoot {
        ArrayRoot { pages: self.levels[0].len() as u64, ptr: self.levels[self.levels.len() - 1][0] }
    }

    /// All pointers that are not null.
    pub fn all(&self) -> impl Iterator<Item = NodePtr> + '_ {
        self.levels.iter().flatten().copied().filter(|p| !p.is_null())
    }

    /// The pages above `below`, the changed pages of `level`.
    pub fn parents(below: &BTreeSet<usize>) -> BTreeSet<usize> {
        below.iter().map(|i| i / ARRAY_FANOUT).collect()
    }

    /// Encodes interior page `i` of `level` (at least 1) from the pointers below it.
    pub fn encode(&self, level: usize, i: usize, out: &mut [u8]) {
        let below = &self.levels[level - 1];
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        for ptr in &below[i * ARRAY_FANOUT..((i + 1) * ARRAY_FANOUT).min(below.len())] {
            ptr.encode(&mut bytes);
        }
        out[..bytes.len()].copy_from_slice(&bytes);
        out[bytes.len()..].fill(0);
    }

    /// Loads every interior page below `root`. `read` gives a verified block.
    pub fn load(
        pages: usize,
        root: ArrayRoot,
        what: &str,
        read: &mut ReadPage<'_>,
    ) -> Result<PagePtrs, EngineError> {
        if root.pages != pages as u64 {
            return Err(EngineError::Refused(format!(
                "the {what} array has {} pages and the pool needs {pages}",
                root.pages
            )));
        }
        let mut out = PagePtrs::new(pages)?;
        let top = out.levels.len() - 1;
        out.levels[top][0] = root.ptr;
        for level in (1..=top).rev() {
            for i in 0..out.levels[level].len() {
                let ptr = out.levels[level][i];
                if ptr.is_null() {
                    continue;
                }
                let block = read(ptr, what)?;
                let mut r = Reader::new(&block);
                let below = &mut out.levels[level - 1];
                let (from, to) = (i * ARRAY_FANOUT, ((i + 1) * ARRAY_FANOUT).min(below.len()));
                for slot in &mut below[from..to] {
                    *slot = NodePtr::decode(&mut r)
                        .map_err(|e| EngineError::corrupt(format!("a {what} page"), e))?;
                }
            }
        }
        Ok(out)
    }
}
