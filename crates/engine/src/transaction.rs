//! A transaction: key-value puts and deletes on named trees, and the data blocks it starts and stops using.
//!
//! It is prepared without any lock of the engine and applied as a whole. Replay applies the same list again.
//!
//! Its steps lie side by side and hold what is short themselves: small allocations by the dozen, each from wherever the
//! allocator has a gap between large nodes, are in no cache when they are made, nor when they are read.

use std::cell::Cell;
use std::ops::Deref;
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
        value: Value,
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
        checksums: Sums,
    },
    /// One extent less names these blocks. In the log: the filesystem no longer refers to them.
    Free {
        /// The blocks.
        run: Run,
    },
    /// Ids below this are taken.
    IdFloor(u64),
}

/// A value of at most so many bytes takes no memory of its own: that of an extent does not.
const SHORT_BYTES: usize = 22;

/// A value on its way into a tree.
#[derive(Clone)]
pub struct Value(Held);

#[derive(Clone)]
enum Held {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Value {
        if value.len() > SHORT_BYTES {
            return Value(Held::Long(value.into()));
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..value.len()].copy_from_slice(value);
        Value(Held::Short { len: value.len() as u8, bytes })
    }
}

impl From<Box<[u8]>> for Value {
    fn from(value: Box<[u8]>) -> Value {
        Value(Held::Long(value))
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Short { len, bytes } => &bytes[..*len as usize],
            Held::Long(bytes) => bytes,
        }
    }
}

/// The checksums of a run's blocks.
#[derive(Clone)]
pub enum Sums {
    /// Of one block.
    One(u32),
    /// Of several.
    Many(Box<[u32]>),
}

impl From<&[u32]> for Sums {
    fn from(sums: &[u32]) -> Sums {
        match sums {
            [sum] => Sums::One(*sum),
            sums => Sums::Many(sums.into()),
        }
    }
}

impl FromIterator<u32> for Sums {
    fn from_iter<I: IntoIterator<Item = u32>>(sums: I) -> Sums {
        let mut sums = sums.into_iter();
        match (sums.next(), sums.next()) {
            (Some(sum), None) => Sums::One(sum),
            (first, second) => Sums::Many(first.into_iter().chain(second).chain(sums).collect()),
        }
    }
}

impl Deref for Sums {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Sums::One(sum) => std::slice::from_ref(sum),
            Sums::Many(sums) => sums,
        }
    }
}

/// Steps for which room is kept for the thread's next transaction of many.
const SPARE_STEPS: std::ops::RangeInclusive<usize> = 17..=1024;

thread_local! {
    /// Room for the steps of a large transaction: some 20 KiB, and an allocator that has such a piece looks for it among many.
    static SPARE: Cell<Vec<Op>> = const { Cell::new(Vec::new()) };
}

/// A list of steps that become true together.
#[derive(Default, Clone)]
pub struct Transaction {
    pub(crate) ops: Vec<Op>,
    pub(crate) rides: Vec<(Run, Data)>,
    /// Blocks that one more extent names.
    pub(crate) shared: Vec<Run>,
    pub(crate) privileged: bool,
    pub(crate) sparing: bool,
    pub(crate) replacing: bool,
    pub(crate) settles_later: bool,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        // Room for the steps of an ordinary verb.
        Transaction::with_room(8)
    }
    /// An empty transaction with room for so many steps.
    pub fn with_room(steps: usize) -> Self {
        let mut tx = Transaction::default();
        if SPARE_STEPS.contains(&steps) {
            // Threads that are about to end have none any more.
            tx.ops = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        tx.ops.reserve_exact(steps);
        tx
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
        self.put_value(tree, key, value.into());
    }
    /// The same, without a copy of the value.
    pub fn put_owned(&mut self, tree: TreeId, key: &[u8], value: Box<[u8]>) {
        self.put_value(tree, key, value.into());
    }
    fn put_value(&mut self, tree: TreeId, key: &[u8], value: Value) {
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
    /// Leaves a quarter of the protected reserve, should it be privileged: for what takes something away from one of many who have it.
    /// That adds entries, and what remains is for who frees all of it in the end. Where it frees blocks this says nothing.
    pub fn sparing(&mut self) {
        self.sparing = true;
    }
    /// Takes that back: for who frees all of it in the end.
    pub fn spares_nothing(&mut self) {
        self.sparing = false;
    }
    /// May use half of the protected reserve: for what takes the place of as much, whose new nodes give the old ones' places back with
    /// the next checkpoint.
    pub fn replacing(&mut self) {
        self.replacing = true;
    }
    /// A commit or checkpoint that is due behind it is not waited for: for who holds locks and calls
    /// [`Store::settle`](crate::Store::settle) soon, without them.
    pub fn settles_later(&mut self) {
        self.settles_later = true;
    }
    /// The steps so far.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if SPARE_STEPS.contains(&self.ops.capacity()) {
            let mut ops = std::mem::take(&mut self.ops);
            ops.clear();
            // The larger one is kept: a small one that has grown is no loss.
            let _ = SPARE.try_with(|spare| {
                let other = spare.take();
                spare.set(if other.capacity() > ops.capacity() { other } else { ops });
            });
        }
    }
}

fn checksums(bytes: &[u8]) -> Sums {
    bytes.chunks_exact(BLOCK_BYTES).map(block_checksum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a large transaction uses the room of the one before, and holds nothing of it. Method: addresses and steps.
    #[test]
    fn room_is_used_again() {
        let mut first = Transaction::with_room(100);
        first.free(Run { addr: varve_format::PoolAddr(4096), blocks: 1 });
        let room = first.ops.as_ptr();
        drop(first);
        let small = Transaction::new();
        let second = Transaction::with_room(90);
        assert_eq!((second.ops.as_ptr(), second.ops.len()), (room, 0));
        assert!(small.ops.as_ptr() != room && Transaction::with_room(100).ops.as_ptr() != room);
    }

    // Goal: values and checksums are what went in, whether they are held in place or not. Method: lengths around the bounds.
    #[test]
    fn values_and_checksums_are_what_went_in() {
        for len in [0, 1, 8, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 1, 300] {
            let bytes: Vec<u8> = (1..=len).map(|i| i as u8).collect();
            let (copied, owned) = (Value::from(&bytes[..]), Value::from(bytes.clone().into_boxed_slice()));
            assert_eq!((&copied[..], &owned[..]), (&bytes[..], &bytes[..]));
            assert_eq!(matches!(copied.0, Held::Short { .. }), len <= SHORT_BYTES);
        }
        for len in 0..4 {
            let sums: Vec<u32> = (7..7 + len).collect();
            let (copied, collected) = (Sums::from(&sums[..]), sums.iter().copied().collect::<Sums>());
            assert_eq!((&copied[..], &collected[..]), (&sums[..], &sums[..]));
        }
    }
}
