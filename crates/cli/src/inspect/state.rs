//! A pool as its device shows it, read without locking or changing anything: the newest superblock, the checkpoint it
//! points at, and the log after it.
//!
//! The pool may be mounted meanwhile. Then the checkpoint that is being read may be replaced and its blocks written over:
//! every block is verified by its checksum, and what does not verify is looked for again from the newest superblock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use varve_format::batch::{self, BatchHeader, OpRef};
use varve_format::codec::Reader;
use varve_format::node::{self, NODE_HEADER_BYTES};
use varve_format::root::{NodePtr, RootBlock};
use varve_format::superblock::{self, Label, RING_START, SLOT_BYTES, SLOTS_PER_END, Superblock};
use varve_format::{BLOCK_BYTES, PoolAddr, TreeId, block_checksum};

use crate::names::Shown;
use crate::pool;

/// Times that a pool in use is read anew.
const ATTEMPTS_MAX: usize = 8;

/// The device, for reading.
pub struct Disk {
    file: File,
    name: String,
    pub size_bytes: u64,
}

impl Disk {
    /// Opens the file or block device `path`.
    pub fn open(path: &Path) -> Result<Disk> {
        use std::io::{Seek, SeekFrom};
        let name = path.shown();
        // Before it is opened: to open a pipe is to wait for somebody at its other end.
        let kind = path.metadata().map_err(|error| pool::cannot_look_at(path, &error))?.file_type();
        if kind.is_dir() {
            bail!(
                "{name} is a directory; inspect takes the file or device of a pool (varve stats says which is mounted there)"
            );
        }
        if !kind.is_file() && !kind.is_block_device() {
            bail!("{name} is neither a regular file nor a block device, and holds no pool");
        }
        let mut file = File::open(path).map_err(|error| pool::cannot_look_at(path, &error))?;
        let size_bytes = file.seek(SeekFrom::End(0)).with_context(|| format!("cannot read {name}"))?;
        // As devices are used: whole blocks.
        let disk = Disk { file, name, size_bytes: size_bytes - size_bytes % BLOCK_BYTES as u64 };
        let name = &disk.name;
        if disk.size_bytes < superblock::POOL_BYTES_MIN {
            // A label tells a pool that has been cut off from what never was one.
            let label = disk.read(0, BLOCK_BYTES).ok().and_then(|block| Label::decode(&block).ok());
            match label {
                Some(label) => bail!(
                    "{name} is {size_bytes} bytes long, but its label says {}: the device has been truncated; restore its \
                     length before looking at it",
                    label.size_bytes
                ),
                None => {
                    let why = disk.label_at(0).err().unwrap_or_default();
                    disk.refuse_without_label(disk.front_superblocks(), &why)?;
                    bail!(
                        "{name} is {size_bytes} bytes long and holds no pool, which has at least {}; give the file or block \
                         device of a pool",
                        superblock::POOL_BYTES_MIN
                    )
                }
            }
        }
        Ok(disk)
    }

    /// `len` bytes at `offset`.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file
            .read_exact_at(&mut bytes, offset)
            .with_context(|| format!("cannot read {len} bytes at {offset:#x} of {}", self.name))?;
        Ok(bytes)
    }

    /// The labels at both ends of the pool, with where they lie.
    pub fn labels(&self) -> [(u64, std::result::Result<Label, String>); 2] {
        [0, self.pool_bytes() - BLOCK_BYTES as u64].map(|offset| (offset, self.label_at(offset)))
    }

    fn label_at(&self, offset: u64) -> std::result::Result<Label, String> {
        let block = self.read(offset, BLOCK_BYTES).map_err(|error| format!("{error:#}"))?;
        Label::decode(&block).map_err(|corrupt| corrupt.to_string())
    }

    /// Where the pool ends: a device may have become longer, or been cut off. Without a label it is taken to end where the device does.
    fn pool_bytes(&self) -> u64 {
        self.readable_label().map_or(self.size_bytes, |label| label.size_bytes)
    }

    /// Every superblock slot, with where it lies.
    pub fn slots(&self) -> Result<Vec<(u64, std::result::Result<Superblock, String>)>> {
        let size_bytes = self.pool_bytes();
        (0..2 * SLOTS_PER_END)
            .map(|index| {
                let offset = superblock::slot_offset(index, size_bytes);
                // Of a device that has been cut off, those in front are still there.
                let bytes = match self.read(offset, SLOT_BYTES as usize) {
                    Ok(bytes) => bytes,
                    Err(error) => return Ok((offset, Err(format!("{error:#}")))),
                };
                let found = match Superblock::decode(&bytes) {
                    Ok(superblock) => Ok(superblock),
                    Err(_) if bytes.iter().all(|byte| *byte == 0) => Err("empty".to_owned()),
                    Err(corrupt) => Err(corrupt.to_string()),
                };
                Ok((offset, found))
            })
            .collect()
    }

    /// A label that can be read, or why there is none. They are looked for as by who opens the pool (SPEC.md, Label): at the beginning of
    /// the device, at its end, and then where a pool ends that is shorter.
    fn readable_label(&self) -> Result<Label, String> {
        let ends = [0, self.size_bytes - BLOCK_BYTES as u64];
        let (mut why, mut newer) = (None, None);
        for offset in ends.into_iter().chain(std::iter::once_with(|| self.inner_places()).flatten()) {
            match self.label_at(offset) {
                Ok(label) if label.version == superblock::FORMAT_VERSION => return Ok(label),
                Ok(label) => {
                    let text =
                        format!("its format is version {}, which this program cannot read", label.version);
                    newer = newer.or(Some(text));
                }
                Err(error) => why = why.or(Some(error)),
            }
        }
        // Of a label of another version nothing else is known, not even whether it is damaged; it says more than none.
        Err(newer.or(why).unwrap_or_default())
    }

    /// Where the second label may be of a pool that is shorter than its device, by the superblocks at the beginning.
    fn inner_places(&self) -> BTreeSet<u64> {
        self.front_superblocks().iter().flat_map(|found| found.last_label_places(self.size_bytes)).collect()
    }

    /// The valid superblocks at the beginning, which are where they are however long the device is.
    fn front_superblocks(&self) -> Vec<Superblock> {
        let offsets = (0..SLOTS_PER_END).map(|index| superblock::slot_offset(index, self.size_bytes));
        let slots = offsets.filter_map(|offset| self.read(offset, SLOT_BYTES as usize).ok());
        slots.filter_map(|slot| Superblock::decode(&slot).ok()).collect()
    }

    /// Fails if there are any superblocks, where no label can be read. Whoever opens such a pool says the same.
    fn refuse_without_label(&self, superblocks: Vec<Superblock>, why: &str) -> Result<()> {
        let newest = superblocks.into_iter().max_by_key(|superblock| superblock.generation);
        let Some(newest) = newest else { return Ok(()) };
        let (name, size_bytes, pool_bytes) = (&self.name, self.size_bytes, newest.device_bytes_min());
        let id: String = newest.pool_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let next = if size_bytes < pool_bytes {
            format!(
                "It is {size_bytes} bytes long, and that pool had {pool_bytes} at least: make a copy, give that its length again \
                 (truncate -s {pool_bytes} COPY), and varve inspect COPY superblock shows what is left"
            )
        } else {
            format!("varve inspect {name} superblock shows what is left")
        };
        bail!(
            "no label of {name} can be read ({why}), but superblocks of pool {id} are there: do not create a pool on it. {next}"
        )
    }

    /// The same, with what to do.
    pub fn label(&self) -> Result<Label> {
        let name = &self.name;
        self.readable_label().or_else(|why| {
            let slots = self.slots()?.into_iter().filter_map(|(_, slot)| slot.ok());
            self.refuse_without_label(slots.collect(), &why)?;
            bail!("{name} holds no pool that can be read: {why}; give the file or block device of a pool")
        })
    }

    /// The newest superblock.
    pub fn newest(&self) -> Result<Superblock> {
        let slots = self.slots()?.into_iter().filter_map(|(_, slot)| slot.ok());
        slots
            .max_by_key(|slot| slot.generation)
            .ok_or_else(|| {
                let name = &self.name;
                anyhow!(
                    "{name} has no valid superblock: nothing can be found without one; varve inspect {name} superblock shows \
                     what is left"
                )
            })
    }
}

/// A batch of the log.
pub struct Batch {
    /// Absolute position in the log.
    pub position: u64,
    pub header: BatchHeader,
    pub bytes: Vec<u8>,
}

impl Batch {
    /// Its transactions.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[batch::BATCH_HEADER_BYTES..][..self.header.payload_bytes as usize]
    }
}

/// A node, decoded.
pub struct Node {
    pub header: node::NodeHeader,
    /// Keys and values in order; in an interior node the first key is empty and values are pointers.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Node {
    /// Decodes a block.
    pub fn decode(block: &[u8]) -> Result<Node, varve_format::Corrupt> {
        let view = node::decode(block)?;
        let prefix = &block[NODE_HEADER_BYTES..NODE_HEADER_BYTES + view.prefix_len];
        let entries = view
            .entries
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                let suffix = &block[entry.suffix..entry.suffix + entry.suffix_len];
                let first_of_interior = view.header.level > 0 && index == 0;
                let key = if first_of_interior { Vec::new() } else { [prefix, suffix].concat() };
                (key, block[entry.value..entry.value + entry.value_len].to_vec())
            })
            .collect();
        Ok(Node { header: view.header, entries })
    }
}

/// Trees to look things up in.
pub trait Entries {
    /// Calls `each` with the entries of a tree from `from` on, until it returns false.
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// The value at `key` of a tree.
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.scan(tree, key, &mut |at, value| {
            found = (at == key).then(|| value.to_vec());
            false
        })?;
        Ok(found)
    }
}

/// Puts and deletes of the log, by tree and key.
type Overlay = BTreeMap<(u16, Vec<u8>), Option<Vec<u8>>>;

/// A consistent picture.
pub struct State<'d> {
    pub disk: &'d Disk,
    pub label: Label,
    pub superblock: Superblock,
    pub root: RootBlock,
    /// The log after the checkpoint. What of its end recovery would cut is not decided here.
    pub batches: Vec<Batch>,
    overlay: Overlay,
}

/// Runs `look` on a picture of the pool, again if the pool went on meanwhile so that the picture could not be read.
pub fn look<T>(disk: &Disk, with_log: bool, look: impl Fn(&State<'_>) -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        disk.label()?;
        let before = disk.newest()?.generation;
        let result = State::load(disk, with_log).and_then(|state| look(&state));
        match result {
            Err(_) if attempt < ATTEMPTS_MAX && disk.newest()?.generation != before => attempt += 1,
            result => return result,
        }
    }
}

impl<'d> State<'d> {
    fn load(disk: &'d Disk, with_log: bool) -> Result<State<'d>> {
        let (label, superblock) = (disk.label()?, disk.newest()?);
        let mut state = State {
            disk,
            label,
            root: RootBlock {
                position: superblock.position,
                generation: superblock.generation,
                next_id: 0,
                trees: Vec::new(),
                checksums: Default::default(),
                bitmap: Default::default(),
            },
            superblock,
            batches: Vec::new(),
            overlay: BTreeMap::new(),
        };
        let block = state.metadata(&state.superblock.root).context("the root block")?;
        state.root = RootBlock::decode(&block).map_err(|corrupt| anyhow!("the root block: {corrupt}"))?;
        if with_log {
            state.read_log()?;
        }
        Ok(state)
    }

    /// Where a pool address lies on the device, all copies.
    pub fn places(&self, addr: PoolAddr) -> Vec<u64> {
        let chunks = &self.superblock.chunks;
        let chunk =
            chunks.iter().find(|chunk| (chunk.start..chunk.start + chunk.len_bytes).contains(&addr.0));
        let stripes = chunk.map_or(&[][..], |chunk| &chunk.stripes);
        let delta = addr.0 - chunk.map_or(0, |chunk| chunk.start);
        stripes
            .iter()
            .filter(|stripe| stripe.device == self.label.device_index)
            .map(|stripe| stripe.offset + delta)
            .collect()
    }

    /// A good copy of a block of metadata.
    pub fn metadata(&self, ptr: &NodePtr) -> Result<Vec<u8>> {
        for place in ptr.copies().flat_map(|addr| self.places(addr)) {
            if let Ok(block) = self.disk.read(place, BLOCK_BYTES)
                && block_checksum(&block) == ptr.checksum
            {
                return Ok(block);
            }
        }
        bail!("no copy of the block at {:#x} has the checksum its parent names", ptr.addr[0].0)
    }

    /// Reads the log from the checkpoint to its end, and what it puts and deletes.
    fn read_log(&mut self) -> Result<()> {
        let superblock = &self.superblock;
        let ring = self.label.ring_bytes;
        let (mut at, mut sequence, mut previous) =
            (superblock.log_start, superblock.log_sequence, superblock.log_previous);
        while at - superblock.log_start < ring {
            let head = self.ring_bytes_at(at, BLOCK_BYTES)?;
            let Ok((header, checksum, len)) = batch::decode_header(&head, &self.label.pool_id) else { break };
            let cut = superblock.cuts.iter().find(|cut| sequence <= cut.last_sequence);
            let epoch = cut.map_or(superblock.epoch, |cut| cut.epoch);
            if header.epoch != epoch
                || header.sequence != sequence
                || header.previous != previous
                || at - superblock.log_start + len as u64 > ring
            {
                break;
            }
            let bytes = self.ring_bytes_at(at, len)?;
            if !batch::verify(&bytes, checksum) {
                break;
            }
            let bytes = batch::unmasked(&bytes).unwrap_or(bytes);
            self.batches.push(Batch { position: at, header, bytes });
            previous = checksum;
            // Only a superblock that was made up begins its log there.
            let Some((next, following)) = at.checked_add(len as u64).zip(sequence.checked_add(1)) else {
                break;
            };
            (at, sequence) = (next, following);
        }
        for batch in &self.batches {
            let overlay = &mut self.overlay;
            batch::for_each_op(batch.payload(), superblock.total_blocks, |_, op| match op {
                OpRef::Put(tree, key, value) => {
                    overlay.insert((tree.0, key.to_vec()), Some(value.to_vec()));
                }
                OpRef::Delete(tree, key) => {
                    overlay.insert((tree.0, key.to_vec()), None);
                }
                _ => {}
            })
            .map_err(|corrupt| anyhow!("batch {} of the log: {corrupt}", batch.header.sequence))?;
        }
        Ok(())
    }

    fn ring_bytes_at(&self, position: u64, len: usize) -> Result<Vec<u8>> {
        let at = position % self.label.ring_bytes;
        let first = len.min((self.label.ring_bytes - at) as usize);
        let mut bytes = self.disk.read(RING_START + at, first)?;
        if first < len {
            bytes.extend(self.disk.read(RING_START, len - first)?);
        }
        Ok(bytes)
    }

    /// The entries from `from` on below a node whose keys are at least `range.0` and, if there is an end, less. A node that two
    /// pointers name has no key that both may have, so that a forged tree is not longer than what is read of it.
    fn scan_below(
        &self,
        tree: TreeId,
        (ptr, level): (&NodePtr, u8),
        range: (&[u8], Option<&[u8]>),
        from: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool> {
        let what = || format!("a node of the {} tree", tree.name());
        let block = self.metadata(ptr).with_context(what)?;
        let node = Node::decode(&block).map_err(|corrupt| anyhow!("{}: {corrupt}", what()))?;
        if node.header.tree != tree || node.header.level != level {
            bail!("{} at {:#x} is another node than its parent says", what(), ptr.addr[0].0);
        }
        // The first key of an interior node is not kept.
        let mut keys = node.entries.iter().skip(usize::from(level > 0)).map(|(key, _)| key.as_slice());
        let first = keys.next();
        let last = keys.next_back().or(first);
        if first.is_some_and(|key| key < range.0) || last.zip(range.1).is_some_and(|(key, end)| key >= end) {
            bail!("{} at {:#x} holds keys that its parent has elsewhere", what(), ptr.addr[0].0);
        }
        for (index, (key, value)) in node.entries.iter().enumerate() {
            if level > 0 {
                let next = node.entries.get(index + 1).map(|(next, _)| next.as_slice());
                // What lies before `from` is passed over.
                if next.is_some_and(|next| next <= from) {
                    continue;
                }
                let range = (range.0.max(key.as_slice()), next.or(range.1));
                if !self.scan_below(tree, (&pointer(value)?, level - 1), range, from, each)? {
                    return Ok(false);
                }
            } else if key.as_slice() >= from && !each(key, value) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// As the checkpoint has them, with the log applied.
impl Entries for State<'_> {
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut logged = self
            .overlay
            .range((tree.0, from.to_vec())..)
            .take_while(|((of, _), _)| *of == tree.0)
            .map(|((_, key), value)| (key.as_slice(), value.as_deref()))
            .peekable();
        let mut go_on = true;
        if let Some(root) = self.root.trees.iter().find(|root| root.tree == tree && !root.ptr.is_null()) {
            let level = root.height - 1;
            go_on = self.scan_below(tree, (&root.ptr, level), (&[], None), from, &mut |key, value| {
                while let Some((logged_key, logged_value)) = logged.next_if(|(logged, _)| *logged < key) {
                    if logged_value.is_some_and(|value| !each(logged_key, value)) {
                        return false;
                    }
                }
                match logged.next_if(|(logged, _)| *logged == key) {
                    Some((_, Some(value))) => each(key, value),
                    Some((_, None)) => true,
                    None => each(key, value),
                }
            })?;
        }
        for (key, value) in logged {
            if !go_on {
                break;
            }
            go_on = value.is_none_or(|value| each(key, value));
        }
        Ok(())
    }
}

/// The value of an entry of an interior node.
pub fn pointer(value: &[u8]) -> Result<NodePtr> {
    NodePtr::decode(&mut Reader::new(value)).map_err(|corrupt| anyhow!("a pointer: {corrupt}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use varve_device::{Device, FileDevice, OpenMode};
    use varve_format::root::TreeRoot;
    use varve_format::superblock::slot_offset;
    use varve_fs::{Caller, Filesystem};

    use super::*;
    use crate::clock::SystemClock;
    use crate::create::format_options;

    const TREE: TreeId = TreeId::NAMES;
    const LEVELS: u8 = 10;

    const POOL_BYTES: u64 = 64 << 20;

    /// A new pool in a file.
    fn format(path: &Path, size_bytes: u64, data: varve_fs::Profile) {
        let device = FileDevice::open(path, OpenMode::Create { size_bytes }).expect("a file");
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let options = format_options(data, varve_fs::Profile::Single, false).expect("options");
        Filesystem::format(&devices, &options, Caller::ROOT, &SystemClock).expect("formats");
    }

    /// A pool in a file whose tree of names is made of one node a level, each of which names the one below fifty times over, and
    /// one leaf at the bottom.
    fn exploding(path: &Path) {
        format(path, POOL_BYTES, varve_fs::Profile::Single);

        let disk = Disk::open(path).expect("opens");
        let mut state = State::load(&disk, false).expect("a pool");
        let file = File::options().write(true).open(path).expect("opens");
        let write = |state: &State<'_>, addr: PoolAddr, block: &[u8]| {
            let place = state.places(addr)[0];
            file.write_all_at(block, place).expect("writes");
            block_checksum(block)
        };
        let pool_tag = u64::from_le_bytes(state.label.pool_id[..8].try_into().expect("eight bytes"));
        let mut below: Option<NodePtr> = None;
        for level in 0..LEVELS {
            let header = node::NodeHeader { tree: TREE, level, birth: 1, pool_tag };
            let mut block = vec![0; BLOCK_BYTES];
            let mut value = Vec::new();
            match below {
                None => node::encode(header, &[], [(&b"k"[..], &b"v"[..])].into_iter(), &mut block),
                Some(ptr) => {
                    ptr.encode(&mut value);
                    let keys: Vec<Vec<u8>> =
                        (0..50).map(|i| if i == 0 { Vec::new() } else { vec![i] }).collect();
                    node::encode(header, &[], keys.iter().map(|key| (&key[..], &value[..])), &mut block);
                }
            }
            let addr = PoolAddr::from_block(9000 + u64::from(level));
            let checksum = write(&state, addr, &block);
            below = Some(NodePtr { addr: [addr, PoolAddr::NULL], birth: 1, checksum });
        }
        let ptr = below.expect("there are levels");
        state.root.trees.retain(|root| root.tree != TREE);
        state.root.trees.push(TreeRoot { tree: TREE, height: LEVELS, ptr });
        let root = state.root.encode();
        let addr = state.superblock.root.addr[0];
        state.superblock.root.checksum = write(&state, addr, &root);
        let slot = state.superblock.generation % SLOTS_PER_END;
        for slot in [slot, slot + SLOTS_PER_END] {
            let bytes = state.superblock.encode();
            file.write_all_at(&bytes, slot_offset(slot, POOL_BYTES)).expect("writes");
        }
    }

    // Goal: what is looked for in a forged tree whose pointers meet is not looked for as often as they do. Method: 50^9 ways to one
    // leaf; a key in front of its only one, one behind it, and all entries.
    #[test]
    fn pointers_that_meet_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool");
        exploding(&path);
        let disk = Disk::open(&path).expect("opens");
        let state = State::load(&disk, true).expect("a root that can be read");
        for from in [&b""[..], b"a", b"z"] {
            let error = state.scan(TREE, from, &mut |_, _| true).expect_err("it is no tree");
            assert!(error.to_string().contains("elsewhere"), "{error}");
        }
    }

    // Goal: of a pool whose file has become longer both labels and all slots are found, whichever label is left, and what lies behind the end
    // of one that has been cut off is told as that. Method: pools of one and of two copies, with and without blocks that are too few for a copy
    // each, some blocks longer, with the first label, the second one or none of them zeroed; then cut to a half.
    #[test]
    fn ends_of_a_pool_are_where_it_ends() {
        use varve_fs::Profile::{Dup, Single};
        let directory = tempfile::tempdir().expect("a directory");
        for (case, data, more, lost) in
            [(Single, 0), (Single, 1), (Dup, 0), (Dup, 1)].into_iter().enumerate().flat_map(
                |(case, (data, more))| [None, Some(true), Some(false)].map(|lost| (case, data, more, lost)),
            )
        {
            let path = directory.path().join(format!("{case} {lost:?}"));
            let size_bytes = 2 * POOL_BYTES + more * BLOCK_BYTES as u64;
            let ends = [0, size_bytes - BLOCK_BYTES as u64];
            format(&path, size_bytes, data);
            let file = File::options().write(true).open(&path).expect("opens");
            file.set_len(2 * size_bytes + 5).expect("room");
            if let Some(first) = lost {
                file.write_all_at(&[0; BLOCK_BYTES], ends[usize::from(!first)]).expect("writes");
            }
            let disk = Disk::open(&path).expect("opens");
            let there = disk.labels().map(|(offset, label)| (offset, label.is_ok()));
            assert_eq!(there, [(ends[0], lost != Some(true)), (ends[1], lost != Some(false))], "{case}");
            assert_eq!(disk.label().expect("one is left").size_bytes, size_bytes);
            let slots = disk.slots().expect("they can be read");
            let slots: Vec<_> =
                slots.into_iter().map(|(_, slot)| slot.ok().map(|slot| slot.generation)).collect();
            let (front, back) = slots.split_at(SLOTS_PER_END as usize);
            assert!(front == back && front.iter().any(Option::is_some), "{case} {lost:?}: {slots:?}");

            if lost != Some(true) {
                file.set_len(POOL_BYTES).expect("shorter");
                let [(_, first), (offset, second)] = Disk::open(&path).expect("opens").labels();
                assert!(first.is_ok() && offset == ends[1]);
                assert!(second.is_err_and(|why| why.contains("cannot read 4096 bytes")));
            }
        }
    }
}
