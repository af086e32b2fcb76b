//! Dense arrays on disk: pages of payload under pages of pointers, all shadow-paged. A null pointer stands for a
//! page (or a whole subtree) of zeros.

use std::collections::BTreeSet;
use std::sync::Arc;

use varve_format::BLOCK_BYTES;
use varve_format::codec::Reader;
use varve_format::root::{ARRAY_FANOUT, ArrayRoot, NodePtr};

use crate::EngineError;

/// Gives a verified page; the words say what is being read.
pub type ReadPage<'a> = dyn FnMut(NodePtr, &str) -> Result<Vec<u8>, EngineError> + 'a;

/// Pointers of all levels: 0 has one a payload page, the last exactly one.
#[derive(Clone)]
pub struct PagePtrs {
    levels: Vec<Level>,
}

/// Pointers to the pages of a level, in groups of those that one page above has. A pool of many TiB has millions of them, and most are
/// null until it is filled: a group of nulls takes no memory.
#[derive(Clone)]
struct Level {
    len: usize,
    groups: Vec<Option<Arc<[NodePtr; ARRAY_FANOUT]>>>,
}

impl Level {
    fn new(len: usize) -> Result<Level, EngineError> {
        let (mut groups, count) = (Vec::new(), len.div_ceil(ARRAY_FANOUT));
        if groups.try_reserve_exact(count).is_err() {
            return Err(EngineError::Refused(format!(
                "there is not enough memory for a pool of this size: {} MiB for what is known of its blocks",
                (count * size_of::<Option<Arc<[NodePtr; ARRAY_FANOUT]>>>()) >> 20
            )));
        }
        groups.resize(count, None);
        Ok(Level { len, groups })
    }

    fn get(&self, i: usize) -> NodePtr {
        assert!(i < self.len, "page {i} of {}", self.len);
        self.groups[i / ARRAY_FANOUT].as_ref().map_or(NodePtr::NULL, |group| group[i % ARRAY_FANOUT])
    }

    fn set(&mut self, i: usize, ptr: NodePtr) -> NodePtr {
        assert!(i < self.len, "page {i} of {}", self.len);
        let group = &mut self.groups[i / ARRAY_FANOUT];
        if group.is_none() && ptr.is_null() {
            return NodePtr::NULL;
        }
        let group = group.get_or_insert_with(|| Arc::new([NodePtr::NULL; ARRAY_FANOUT]));
        std::mem::replace(&mut Arc::make_mut(group)[i % ARRAY_FANOUT], ptr)
    }

    /// Those that are not null, with their places.
    fn all(&self) -> impl Iterator<Item = (usize, NodePtr)> + '_ {
        let groups = self.groups.iter().enumerate().filter_map(|(g, group)| Some((g, group.as_ref()?)));
        let ptrs = groups.flat_map(|(g, group)| {
            group.iter().enumerate().map(move |(i, ptr)| (g * ARRAY_FANOUT + i, *ptr))
        });
        ptrs.filter(|(_, ptr)| !ptr.is_null())
    }
}

impl PagePtrs {
    /// An array of `pages` zero pages. An error if there is not the memory for that: a word for each group of [`ARRAY_FANOUT`].
    pub fn new(pages: usize) -> Result<PagePtrs, EngineError> {
        let mut levels = vec![Level::new(pages)?];
        while levels.last().is_some_and(|l| l.len > 1) {
            let n = levels[levels.len() - 1].len.div_ceil(ARRAY_FANOUT);
            levels.push(Level::new(n)?);
        }
        Ok(PagePtrs { levels })
    }

    /// Number of levels, payload included.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Where payload page `i` is.
    pub fn leaf(&self, i: usize) -> NodePtr {
        self.levels[0].get(i)
    }

    /// Page `i` of `level`.
    pub fn get(&self, level: usize, i: usize) -> NodePtr {
        self.levels[level].get(i)
    }

    /// Moves page `i` of `level`; returns where it was.
    pub fn set(&mut self, level: usize, i: usize, ptr: NodePtr) -> NodePtr {
        self.levels[level].set(i, ptr)
    }

    /// What the root block stores.
    pub fn root(&self) -> ArrayRoot {
        ArrayRoot { pages: self.levels[0].len as u64, ptr: self.levels[self.levels.len() - 1].get(0) }
    }

    /// All pointers that are not null.
    pub fn all(&self) -> impl Iterator<Item = NodePtr> + '_ {
        self.levels.iter().flat_map(Level::all).map(|(_, ptr)| ptr)
    }

    /// The pages above `below`, the changed pages of `level`.
    pub fn parents(below: &BTreeSet<usize>) -> BTreeSet<usize> {
        below.iter().map(|i| i / ARRAY_FANOUT).collect()
    }

    /// Encodes interior page `i` of `level` (at least 1) from the pointers below it.
    pub fn encode(&self, level: usize, i: usize, out: &mut [u8]) {
        let below = &self.levels[level - 1];
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        for page in i * ARRAY_FANOUT..((i + 1) * ARRAY_FANOUT).min(below.len) {
            below.get(page).encode(&mut bytes);
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
        out.levels[top].set(0, root.ptr);
        for level in (1..=top).rev() {
            let pages: Vec<_> = out.levels[level].all().collect();
            for (i, ptr) in pages {
                let block = read(ptr, what)?;
                let mut r = Reader::new(&block);
                let below = &mut out.levels[level - 1];
                for page in i * ARRAY_FANOUT..((i + 1) * ARRAY_FANOUT).min(below.len) {
                    let ptr = NodePtr::decode(&mut r)
                        .map_err(|e| EngineError::corrupt(format!("a {what} page"), e))?;
                    below.set(page, ptr);
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_format::PoolAddr;

    // Goal: an array holds what it was given, a copy what it held then, also when it is read back from its pages, and where nothing is takes next
    // to nothing. Method: random pointers and nulls beside a plain list, in an array as for a pool of 256 TiB; a copy in the middle; its pages kept
    // by their numbers and loaded.
    #[test]
    fn an_array_holds_what_it_was_given() {
        let pages = (256 << 40) / BLOCK_BYTES / 1024;
        let mut array = PagePtrs::new(pages).unwrap();
        let (mut seed, mut model) = (7_u64, std::collections::BTreeMap::new());
        let ptr =
            |n: u64| NodePtr { addr: [PoolAddr(n << 12), PoolAddr::NULL], birth: n, checksum: n as u32 };
        let mut copy = None;
        for step in 1..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Near each other, and far away, the last page among them.
            let page = [(seed >> 40) as usize % 300, (seed >> 20) as usize % pages, pages - 1]
                [(seed >> 8) as usize % 3];
            let new = if seed >> 60 == 0 { NodePtr::NULL } else { ptr(step) };
            let old = array.set(0, page, new);
            assert_eq!(old, model.insert(page, new).unwrap_or(NodePtr::NULL));
            assert_eq!(array.leaf(page), new);
            if step == 10_000 {
                copy = Some((array.clone(), model.clone()));
            }
        }
        let filled = |model: &std::collections::BTreeMap<usize, NodePtr>| {
            model
                .iter()
                .map(|(page, ptr)| (*page, *ptr))
                .filter(|(_, ptr)| !ptr.is_null())
                .collect::<Vec<_>>()
        };
        let (copy, then) = copy.unwrap();
        assert_eq!(copy.levels[0].all().collect::<Vec<_>>(), filled(&then));
        assert_eq!(array.levels[0].all().collect::<Vec<_>>(), filled(&model));
        // As a checkpoint does, level by level.
        let mut written: Vec<Vec<u8>> = Vec::new();
        let mut changed: BTreeSet<usize> = model.keys().copied().collect();
        for level in 1..array.height() {
            changed = PagePtrs::parents(&changed);
            for page in &changed {
                let mut block = vec![0; BLOCK_BYTES];
                array.encode(level, *page, &mut block);
                written.push(block);
                array.set(level, *page, ptr(written.len() as u64));
            }
        }
        let mut read = |ptr: NodePtr, _: &str| Ok(written[ptr.birth as usize - 1].clone());
        let again = PagePtrs::load(pages, array.root(), "test", &mut read).unwrap();
        assert!(again.all().eq(array.all()));
        // A word for each group, of the groups themselves those in use.
        let groups: usize = PagePtrs::new(pages).unwrap().levels.iter().map(|level| level.groups.len()).sum();
        assert!(groups < pages / (ARRAY_FANOUT - 2) && PagePtrs::new(pages).unwrap().all().next().is_none());
    }
}
