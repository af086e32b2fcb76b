//! A transaction: key-value puts and deletes on named trees, and the data blocks it starts and stops using.
//!
//! It is prepared without any lock of the engine and applied as a whole. Replay applies the same list again.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_format::{BLOCK_BYTES, Run, TreeId, block_checksum};

use crate::key::Key;

/// Part of a shared, aligned buffer: what a run of blocks shall hold.
#[derive(Clone)]
pub struct Data {
    /// The buffer.
    pub buf: Arc<AlignedBuf>,
    /// First byte, a multiple of the block size.
    pub offset: usize,
    /// Length in bytes, a multiple of the block size.
    pub len: usize,
}

impl Data {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.offset..self.offset + self.len]
    }
    /// The checksum of each block.
    pub fn checksums(&self) -> impl Iterator<Item = u32> {
        self.bytes().chunks_exact(BLOCK_BYTES).map(block_checksum)
    }
}

/// One step of a transaction.
#[derive(Clone)]
pub enum Op {
    /// Put `value` at `key`, over what is there.
    Put {
        /// Which tree.
        tree: TreeId,
        /// Key.
        key: Key,
        /// Value.
        value: Box<[u8]>,
    },
    /// Remove `key` if it is there.
    Delete {
        /// Which tree.
        tree: TreeId,
        /// Key.
        key: Key,
    },
    /// The filesystem now refers to these blocks, and this is what they hold.
    Place {
        /// The blocks.
        run: Run,
        /// A checksum a block.
        checksums: Box<[u32]>,
    },
    /// One extent less names these blocks. In the log: the filesystem no longer refers to them.
    Free {
        /// The blocks.
        run: Run,
    },
    /// Ids below this are taken.
    IdFloor(u64),
}

/// A list of [`Op`]s that become true together.
#[derive(Default, Clone)]
pub struct Transaction {
    pub(crate) ops: Vec<Op>,
    pub(crate) rides: Vec<(Run, Data)>,
    /// Blocks that one more extent names.
    pub(crate) shared: Vec<Run>,
    pub(crate) privileged: bool,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        // Room for the steps of an ordinary verb.
        Transaction { ops: Vec::with_capacity(8), ..Self::default() }
    }
    /// How many changes of entries it makes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }
    /// Whether nothing has been asked of it.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.shared.is_empty()
    }
    /// Puts `value` at `key` of `tree`.
    pub fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.put_owned(tree, key, value.into());
    }
    /// The same, without a copy of the value.
    pub fn put_owned(&mut self, tree: TreeId, key: &[u8], value: Box<[u8]>) {
        debug_assert!(
            key.len() <= varve_format::KEY_BYTES_MAX && value.len() <= varve_format::VALUE_BYTES_MAX
        );
        self.ops.push(Op::Put { tree, key: Key::new(key), value });
    }
    /// Removes `key` from `tree`; nothing happens if it is not there.
    pub fn delete(&mut self, tree: TreeId, key: &[u8]) {
        self.ops.push(Op::Delete { tree, key: Key::new(key) });
    }
    /// Refers to `run`, which holds `data` and **has been written already** (see [`crate::Store::write_data`]).
    pub fn place(&mut self, run: Run, data: &Data) {
        self.ops.push(Op::Place { run, checksums: checksums(data.bytes()) });
    }
    /// The same, for who has taken the checksums of its blocks himself ([`Data::checksums`]).
    pub fn place_summed(&mut self, run: Run, checksums: &[u32]) {
        assert_eq!(checksums.len(), run.blocks as usize, "every block has its checksum");
        self.ops.push(Op::Place { run, checksums: checksums.into() });
    }
    /// Refers to `run`, whose `data` has not been written: it rides with the log batch that carries this
    /// transaction. Until it is on the device, reads of these blocks are served from `data`.
    pub fn place_riding(&mut self, run: Run, data: Data) {
        debug_assert_eq!(run.bytes(), data.len as u64);
        self.ops.push(Op::Place { run, checksums: checksums(data.bytes()) });
        self.rides.push((run, data));
    }
    /// One extent more names the blocks of `run`, which others name already: each of them needs a [`Transaction::free`]
    /// before they are free.
    pub fn share(&mut self, run: Run) {
        self.shared.push(run);
    }
    /// One extent less names the blocks of `run`: where there is no other, they are no longer used.
    pub fn free(&mut self, run: Run) {
        self.ops.push(Op::Free { run });
    }
    /// Records that ids up to and including `id` are taken.
    pub fn claim_id(&mut self, id: u64) {
        self.ops.push(Op::IdFloor(id + 1));
    }
    /// May use the protected reserve: for what frees space (delete, truncate, reap), and for logging data that was
    /// accepted against a reservation.
    pub fn privileged(&mut self) {
        self.privileged = true;
    }
    /// The steps so far.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }
}

fn checksums(bytes: &[u8]) -> Box<[u32]> {
    bytes.chunks_exact(BLOCK_BYTES).map(block_checksum).collect()
}
