//! What a checkpoint refers to, as it is read when a pool is opened: root block, arrays, roots of the trees.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_format::root::{ArrayRoot, NodePtr, RootBlock};
use varve_format::superblock::Superblock;
use varve_format::{BLOCK_BYTES, Corrupt, TreeId, block_checksum};

use super::{Result, bitmap_pages, sum_pages};
use crate::EngineError;
use crate::checkpoint::arrays::PagePtrs;
use crate::pool::{NUMBER_MAX, NUMBER_TO_WRITE_MAX, Pool};
use crate::problem::{Judge, ProblemKind as Kind, Problems};
use crate::space::bits::{Bits, PAGE_BITS, PAGE_WORDS};
use crate::store::Store;
use crate::tree::Tree;
use crate::tree::node::Link;

/// Where the checkpoint is read from.
#[derive(Clone, Copy)]
pub(super) struct Source<'p> {
    pub pool: &'p Pool,
    /// The pool is opened for writing. Copies that turn out to be bad are written again from one that is good: most of these blocks are
    /// read at no other time.
    pub repair: bool,
}

impl Source<'_> {
    /// A device that fails is asked once more: for the session that is opened this decides what there is.
    fn block(self, ptr: NodePtr, what: &str) -> Result<AlignedBuf> {
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        let good = |b: &[u8]| block_checksum(b) == ptr.checksum;
        let mut read = || self.pool.read_verified(&mut ptr.copies(), &mut block, self.repair, &good);
        let read = read().or_else(|e| if e.may_pass() { read() } else { Err(e) });
        read.map(|()| block).map_err(|e| match e {
            EngineError::Checksum { addr } => EngineError::corrupt(
                format!("{what} block at {addr:#x}"),
                Corrupt { what: "checksum wrong in every copy", at: 0 },
            ),
            e => e,
        })
    }

    /// What a device failed to read is no damage, and who writes is told so: he may come again. Who only reads does without.
    fn refuses(self, error: &EngineError) -> bool {
        self.repair && error.may_pass()
    }
}

/// The root block; when it cannot be had and that is only noted, one that refers to nothing.
pub(super) fn load_root(from: Source<'_>, superblock: &Superblock, judge: &mut Judge) -> Result<RootBlock> {
    let block = from.block(superblock.root, "root");
    let decoded =
        block.and_then(|b| RootBlock::decode(&b).map_err(|e| EngineError::corrupt("the root block", e)));
    let mut root = match decoded {
        Ok(root) => root,
        Err(e) => {
            judge.hear(Kind::RootUnreadable, e)?;
            let pages = |pages: usize| ArrayRoot { pages: pages as u64, ptr: NodePtr::NULL };
            return Ok(RootBlock {
                position: superblock.position,
                generation: superblock.generation,
                next_id: 0,
                trees: Vec::new(),
                checksums: pages(sum_pages(superblock.total_blocks)),
                bitmap: pages(bitmap_pages(superblock.total_blocks)),
            });
        }
    };
    if root.generation > NUMBER_MAX || root.next_id > NUMBER_MAX || root.position.0 > NUMBER_MAX {
        let why = Corrupt { what: "numbers out of bounds", at: 0 };
        judge.hear(Kind::RootSenseless, EngineError::corrupt("the root block", why))?;
        root.generation = root.generation.min(NUMBER_MAX);
        root.next_id = root.next_id.min(NUMBER_MAX);
        root.position.0 = root.position.0.min(NUMBER_MAX);
    }
    if root.position != superblock.position {
        let text = "the superblock and its root block disagree about the log position";
        judge.hear(Kind::RootSenseless, EngineError::Refused(text.into()))?;
    }
    Ok(root)
}

/// With `readers_only`, what lies below a page that cannot be had is taken for zeros, which are nobody's checksums: reading it fails,
/// and all else goes on.
pub(super) fn load_pages(
    from: Source<'_>,
    pages: usize,
    root: ArrayRoot,
    what: &str,
    readers_only: bool,
    judge: &mut Judge,
) -> Result<PagePtrs> {
    let mut read = |ptr: NodePtr, what: &str| match from.block(ptr, what) {
        Err(e) if readers_only && e.is_damage() => {
            tracing::warn!("{e}: the pool can be read but for what is behind that");
            Ok(vec![0; BLOCK_BYTES])
        }
        block => block.map(|b| b.to_vec()),
    };
    match PagePtrs::load(pages, root, what, &mut read) {
        Err(e) if from.refuses(&e) => Err(e),
        Err(e) => judge.hear(Kind::ArrayUnreadable, e).and_then(|()| PagePtrs::new(pages)),
        loaded => loaded,
    }
}

/// The bitmap, as much of it as there is, and what is wrong with it. An error, to who writes: the device fails to read it.
pub(super) fn load_bitmap(
    from: Source<'_>,
    root: ArrayRoot,
    total: u64,
) -> Result<(PagePtrs, Bits, Problems)> {
    let mut judge = Judge::Note(Problems::default());
    let ptrs = load_pages(from, bitmap_pages(total), root, "bitmap", false, &mut judge)?;
    let bits = load_bits(from, &ptrs, total, &mut judge)?;
    let Judge::Note(wrong) = judge else { unreachable!("it notes") };
    Ok((ptrs, bits, wrong))
}

fn load_bits(from: Source<'_>, ptrs: &PagePtrs, total: u64, judge: &mut Judge) -> Result<Bits> {
    let mut bits = Bits::new(total);
    for i in 0..bits.page_count() {
        let ptr = ptrs.leaf(i);
        if ptr.is_null() {
            continue;
        }
        let block = match from.block(ptr, "bitmap") {
            Ok(block) => block,
            Err(e) if from.refuses(&e) => return Err(e),
            Err(e) => {
                judge.hear(Kind::ArrayUnreadable, e)?;
                continue;
            }
        };
        let mut page = [0u64; PAGE_WORDS];
        for (w, b) in page.iter_mut().zip(block.chunks_exact(8)) {
            *w = u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        }
        bits.set_page(i, Some(Arc::new(page)));
    }
    if bits.get(0) || bits.next(total, bits.page_count() as u64 * PAGE_BITS, true).is_some() {
        let text = "the bitmap marks blocks that the pool does not have: run `varve check`";
        judge.hear(Kind::BitmapBeyondPool, EngineError::Refused(text.into()))?;
    }
    Ok(bits)
}

pub(super) fn load_roots(root: &RootBlock, judge: &mut Judge) -> Result<Vec<Tree>> {
    let mut trees: Vec<Tree> = TreeId::ALL.iter().map(|id| Tree::empty(*id)).collect();
    for t in &root.trees {
        let Some(tree) = trees.iter_mut().find(|k| k.id == t.tree) else {
            return Err(EngineError::Refused(format!(
                "the pool has a tree {} that this program does not know: open it with a newer program",
                t.tree.0
            )));
        };
        if tree.root.is_some() {
            let why = Corrupt { what: "tree that is there twice", at: 0 };
            judge.hear(Kind::RootSenseless, EngineError::corrupt("the root block", why))?;
            continue;
        }
        tree.height = t.height;
        tree.root = (t.height > 0).then_some(Link::Disk(t.ptr));
    }
    Ok(trees)
}

impl Store {
    /// Refuses to write to a pool with a number that could be counted up until nobody opens it any more. Only a forged one is there.
    pub(super) fn require_room_to_count(&self) -> Result<()> {
        let generation = self.superblock.lock().generation;
        let core = self.core.lock();
        let numbers = [
            ("generation of its superblock", generation),
            ("generation of its checkpoint", core.generation),
            ("epoch of its log", core.log.epoch),
            ("number of its last batch", core.log.sequence),
            ("end of its log", core.log.head),
            ("position of its log", core.position.0),
            ("next number of an inode", core.id_floor),
        ];
        match numbers.iter().find(|(_, number)| *number > NUMBER_TO_WRITE_MAX) {
            None => Ok(()),
            Some((what, number)) => Err(EngineError::Refused(format!(
                "the {what} is {number}, where no pool comes by itself, so it cannot be written to; files can still be read: \
                 `varve export`, or a mount with -o ro, brings them to safety"
            ))),
        }
    }
}
