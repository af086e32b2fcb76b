//! Every kind of damage, planted once, and found by its name.
//!
//! The damage is planted in an image from the outside ([`image`]), with all checksums redone unless a checksum is what
//! is damaged: so it is the check that finds it. Whatever is damaged, the check ends, and writes nothing.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

use varve_device::{AlignedBuf, Operation};
use varve_engine::{
    BLOCK_BYTES, FamilyId, Lsn, PoolAddr, Problem, ProblemKind as Kind, Run, TreeId, VersionId, VersionKey,
};
use varve_format::batch::{self, BatchHeader};
use varve_format::node;
use varve_format::record::extent::{DataKey, Extent};
use varve_format::record::held::held_key;
use varve_format::record::inode::{INODE_FLAG_IMMUTABLE, InodeKind, InodeRecord, inode_key};
use varve_format::record::keyframe::{KeyframeKey, KeyframeRun, encode_pieces};
use varve_format::record::name::{NamePosition, NameRecord, name_key};
use varve_format::record::orphan::{OrphanRecord, OrphanState, orphan_key};
use varve_format::record::reap::{Work, reap_key};
use varve_format::record::shares::SharedRun;
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SubvolumeRecord, subvolume_key};
use varve_format::record::version::{Drain, NO_LIMIT, VersionRecord, encode_key};
use varve_format::record::xattr::{XattrHead, xattr_key};
use varve_format::superblock::{Label, RING_START, SLOTS_PER_END, slot_offset};
use varve_sim::{Fault, FaultRule, FaultyDevice, Rng, Trigger};

use super::*;
use image::{Array, Image};
use single::{BYTES, Plant, RECORDS};
use subvolumes::FORKED;
use varve_fs::internals::hash::NameHasher;

mod differences;
mod forged;
pub(super) mod image;
mod numbers;
mod reading;
mod shared;
mod single;
mod subvolumes;
mod unread;

const FAMILY: FamilyId = FamilyId(FIRST_SUBVOLUME);
const KEY: VersionKey = VersionKey(FIRST_SUBVOLUME);
/// Longer than any of this takes.
const LONG: Duration = Duration::from_secs(120);

/// A pool with one of everything, and handles to it.
struct World {
    image: Image,
    hasher: NameHasher,
    dir: InodeId,
    inner: InodeId,
    file: InodeId,
    small: InodeId,
    link: InodeId,
    big: InodeId,
}

fn build() -> World {
    let f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let inner = f.mkdir(dir, b"inner");
    let file = f.fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap().ino;
    f.write(file, 0, &pattern(1, 10_000));
    f.fs.setxattr(file, b"user.big", &pattern(2, 3000), XattrMode::Set).unwrap();
    f.fs.setxattr(file, b"user.small", b"value", XattrMode::Set).unwrap();
    let small = f.create(b"small");
    f.write(small, 0, b"contents");
    let link = f.fs.symlink(Caller::ROOT, ROOT, b"link", b"dir/file").unwrap().ino;
    let big = f.create(b"big");
    f.write(big, 0, &pattern(3, 2 << 20));
    f.write(big, 3 << 20, &pattern(4, 50_000));
    let reserved = f.create(b"reserved");
    let how = Allocate::Reserve { keep_size: false };
    f.fs.fallocate(Caller::ROOT, reserved, 0, 65536, how).unwrap();
    let many = f.mkdir(ROOT, b"many");
    for i in 0..300 {
        f.fs.create(Caller::ROOT, many, format!("a name of some length {i}").as_bytes(), 0o644).unwrap();
    }
    f.fs.close().unwrap();
    let image = Image::of(&f.device);
    let hasher = NameHasher::new(HASH_KIND_SIPHASH13, image.superblock.hash_seed).unwrap();
    World { image, hasher, dir, inner, file, small, link, big }
}

impl World {
    fn again(&self) -> World {
        World { image: Image::of(&self.image.device), ..*self }
    }
    fn inode_key(&self, ino: InodeId) -> [u8; 24] {
        inode_key(FAMILY, ino, KEY)
    }
    fn inode(&self, ino: InodeId) -> InodeRecord {
        InodeRecord::decode(&self.image.get(TreeId::INODES, &self.inode_key(ino)).unwrap()).unwrap()
    }
    fn change(&mut self, ino: InodeId, edit: impl FnOnce(&mut InodeRecord)) {
        let mut record = self.inode(ino);
        edit(&mut record);
        self.image.put(TreeId::INODES, &self.inode_key(ino), &record.encode());
    }
    fn forget(&mut self, ino: InodeId) {
        self.image.delete(TreeId::INODES, &self.inode_key(ino));
    }
    fn position(&self, name: &[u8]) -> NamePosition {
        NamePosition::new(self.hasher.hash(name), 0)
    }
    fn name_key(&self, dir: InodeId, name: &[u8]) -> [u8; 32] {
        name_key(FAMILY, dir, self.position(name), KEY)
    }
    /// A keyframe in the family of names of the first subvolume.
    fn keyframe_of_names(&mut self) {
        let key = KeyframeKey { family: FAMILY, segment: 0, version: KEY, piece: 0 };
        self.image.put(TreeId::KEYFRAMES, &key.encode(), &[]);
    }
    /// An extent there.
    fn extent_of_names(&mut self) {
        let key = DataKey { family: FAMILY, segment: 0, version: KEY, offset: 0 };
        self.image.put(TreeId::EXTENTS, &key.encode(), &Extent::reserved(4096).encode());
    }
    fn unname(&mut self, dir: InodeId, name: &[u8]) {
        let key = self.name_key(dir, name);
        self.image.delete(TreeId::NAMES, &key);
    }
    fn name_at(&mut self, key: &[u8], kind: InodeKind, ino: InodeId, name: &[u8], chained: bool) {
        let record = NameRecord::Entry { kind, ino, name: name.to_vec(), chained };
        self.image.put(TreeId::NAMES, key, &record.encode());
    }
    fn name(&mut self, dir: InodeId, name: &[u8], kind: InodeKind, ino: InodeId) {
        let key = self.name_key(dir, name);
        self.name_at(&key, kind, ino, name, false);
    }
    fn xattr(&mut self, ino: InodeId, name: &[u8], sequence: u8, value: &[u8]) {
        let position = self.position(name).with_sequence(sequence);
        let head = XattrHead { name: name.to_vec(), value_len: value.len() as u32, start: value.to_vec() };
        self.image.put(TreeId::XATTRS, &xattr_key(FAMILY, ino, position, 0, KEY), &head.encode());
    }
    fn xattr_key(&self, name: &[u8], piece: u16) -> [u8; 34] {
        xattr_key(FAMILY, self.file, self.position(name), piece, KEY)
    }
    fn orphan(&mut self, ino: InodeId, links: u32) {
        let inode = InodeRecord { links, inline: Some(Vec::new()), size: 0, ..self.inode(self.small) };
        let inode =
            InodeRecord { data: varve_fs::internals::inode::blank_record(InodeKind::File).data, ..inode };
        let record = OrphanRecord { state: OrphanState::Open, inode };
        self.image.put(TreeId::ORPHANS, &orphan_key(ino), &record.encode());
    }
    fn extent_key(&self, ino: InodeId, at: u64) -> [u8; 28] {
        let (segment, offset) = (at >> 20, (at & 0xf_ffff) as u32);
        DataKey { family: FamilyId(ino.0), segment, version: VersionKey(ino.0), offset }.encode()
    }
    fn extent(&self, ino: InodeId, at: u64) -> Extent {
        Extent::decode(&self.image.get(TreeId::EXTENTS, &self.extent_key(ino, at)).unwrap()).unwrap()
    }
    fn put_extent(&mut self, ino: InodeId, at: u64, extent: Extent) {
        let key = self.extent_key(ino, at);
        self.image.put(TreeId::EXTENTS, &key, &extent.encode());
    }
    fn subvolume(&mut self, edit: impl FnOnce(&mut SubvolumeRecord)) {
        let key = subvolume_key(FIRST_SUBVOLUME);
        let mut record = SubvolumeRecord::decode(&self.image.get(TreeId::SUBVOLUMES, &key).unwrap()).unwrap();
        edit(&mut record);
        self.image.put(TreeId::SUBVOLUMES, &key, &record.encode());
    }
    /// Gives the big file two versions, and changes their records (root, child).
    fn versions(&mut self, edit: impl FnOnce(&mut VersionRecord, &mut VersionRecord)) {
        let (family, child) = (FamilyId(self.big.0), VersionId(self.big.0 + 1));
        let root =
            VersionRecord { refs: 0, children: 1, children_xor: child.0, ..VersionRecord::implicit(family) };
        let leaf = VersionRecord {
            parent: Some(VersionId(family.0)),
            key: VersionKey(child.0),
            limit: 8 << 20,
            ..VersionRecord::implicit(family)
        };
        let (mut root, mut leaf) = (root, leaf);
        edit(&mut root, &mut leaf);
        self.image.put(TreeId::VERSIONS, &encode_key(family, VersionId(family.0)), &root.encode());
        self.image.put(TreeId::VERSIONS, &encode_key(family, child), &leaf.encode());
        let mark = reap_key(family, Work::Going(VersionId(family.0)));
        self.image.put(TreeId::REAP, &mark, &[]);
        self.change(self.big, |r| (r.data.version, r.data.has_versions) = (child, true));
    }
    /// Gives the big file two versions, and the older a keyframe of its first megabyte, which is changed.
    fn keyframe(&mut self, edit: impl FnOnce(&mut Vec<u8>)) {
        self.versions(|_, _| ());
        let (family, version) = (FamilyId(self.big.0), VersionKey(self.big.0));
        let extent = self.extent(self.big, 0);
        let more = (extent.len / BLOCK_BYTES as u32 - 1) as u8;
        let run = KeyframeRun { first: 0, more, block: extent.addr.block(), owner: version };
        let mut pieces = encode_pieces(version, &[run]).unwrap();
        edit(&mut pieces[0]);
        let key = KeyframeKey { family, segment: 0, version, piece: 0 };
        self.image.put(TreeId::KEYFRAMES, &key.encode(), &pieces[0]);
    }
    /// Says that `more` extents more than one name these blocks.
    fn shared(&mut self, addr: PoolAddr, blocks: u32, more: u64) {
        let run = SharedRun { first: addr.block(), blocks, more };
        self.image.put(TreeId::SHARES, &run.key(), &run.value());
    }
    /// Overwrites the leaf of `key` on the device, `copies` of it.
    fn spoil_leaf(&mut self, tree: TreeId, key: &[u8], copies: usize) {
        let ptr = self.image.node_ptr(tree, key, 0);
        ptr.copies().take(copies).for_each(|addr| self.image.write(addr, &[0x5a; BLOCK_BYTES]));
    }
    /// A key in a leaf of the middle of a tree of several leaves.
    fn middle(&self, tree: TreeId) -> Vec<u8> {
        assert!(self.image.height(tree) > 1, "{} has one leaf", tree.name());
        let entries = self.image.entries(tree);
        entries[entries.len() / 2].0.clone()
    }
    /// Writes one more batch to the log, of one transaction.
    fn log(&self, op: impl FnOnce(&mut Vec<u8>)) {
        let s = &self.image.superblock;
        let position = Lsn(s.position.0 + 1);
        let mut payload = Vec::new();
        let at = batch::begin_transaction(&mut payload, position);
        op(&mut payload);
        batch::end_transaction(&mut payload, at, 1);
        let header = BatchHeader {
            pool_id: s.pool_id,
            epoch: s.epoch,
            sequence: s.log_sequence,
            previous: s.log_previous,
            superblock_generation: s.generation,
            flushed: s.log_sequence,
            first: position,
            last: position,
            transactions: 1,
            payload_bytes: payload.len() as u32,
        };
        let mut bytes = vec![0; batch::batch_blocks(payload.len()) * BLOCK_BYTES];
        bytes[batch::BATCH_HEADER_BYTES..][..payload.len()].copy_from_slice(&payload);
        batch::seal(&header, &mut bytes);
        let at = RING_START + s.log_start % (8 << 20);
        self.image.device.write_at(at, &AlignedBuf::from_slice(&bytes)).unwrap();
    }
    /// The slot of two generations ago at the front.
    fn older_slot(&self) -> u64 {
        (self.image.superblock.generation + 2) % SLOTS_PER_END
    }
}

/// Opens for checking and checks; the device must not have been written to.
fn check(device: &Arc<MemoryDevice>) -> Vec<Problem> {
    let writes = device.stats().writes_count;
    let problems = check_on(device.clone()).expect("it can be checked");
    assert_eq!(device.stats().writes_count, writes, "the check has written");
    problems
}

fn check_on(device: Arc<dyn Device>) -> Result<Vec<Problem>, FsError> {
    let options = OpenOptions {
        store: StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() },
        dirty_bytes_max: 0,
        clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
        on_data_logged: None,
    };
    let (fs, _) = Filesystem::open_to_check(vec![device], options)?;
    Ok(fs.check(true)?.problems)
}

/// What is wrong with what the check says of a fresh copy of `world` after `plant`, if anything is.
fn not_found(world: &World, kind: Kind, plant: Plant) -> Option<String> {
    let mut damaged = world.again();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        plant(&mut damaged);
        check(&damaged.image.device)
    }));
    let Ok(problems) = result else {
        return Some(format!("{} panics, see above", kind.name()));
    };
    let kinds: BTreeSet<&str> = problems.iter().map(|problem| problem.kind.name()).collect();
    // What follows from a damage may have names of its own, but few.
    (!kinds.contains(kind.name()) || kinds.len() > 6).then(|| {
        let first: Vec<String> = problems.iter().take(8).map(ToString::to_string).collect();
        format!("{}: {kinds:?}\n    {}", kind.name(), first.join("\n    "))
    })
}

// Goal: whatever is wrong with a pool is found, under the name of its kind, and without writing to it. Method: a table
// of single damages, each planted in a fresh copy of a sound pool, most with all checksums redone; one at least of every
// kind that can be planted in an image.
#[test]
fn every_kind_of_damage_is_named() {
    let mut wrong = Vec::new();
    let plain = RECORDS.iter().chain(BYTES);
    for (world, plants) in
        [(build(), plain.collect::<Vec<_>>()), (subvolumes::build(), FORKED.iter().collect())]
    {
        assert_eq!(check(&world.image.device), [], "the pool is sound before");
        plants.into_iter().for_each(|(kind, plant)| wrong.extend(not_found(&world, *kind, *plant)));
    }
    assert!(wrong.is_empty(), "{} damages are not found:\n{}", wrong.len(), wrong.join("\n"));
    let planted = |list: &[(Kind, Plant)]| list.iter().map(|(kind, _)| *kind).collect::<BTreeSet<Kind>>();
    let (mut records, bytes) = (planted(RECORDS), planted(BYTES));
    records.extend(planted(FORKED));
    assert!(records.len() >= 30 && records.union(&bytes).count() >= 40);
    let missing: Vec<&str> = Kind::ALL
        .iter()
        .filter(|kind| !records.contains(kind) && !bytes.contains(kind))
        .map(|kind| kind.name())
        .collect();
    // Of what cannot be opened nothing is found by a check; a device must fail for the next; the third is about memory, not about an image; for the
    // fourth data must have copies (`verifying`); for the fifth two inodes must share data, for the last two a namespace must have been forked, which the tests of the engine have.
    assert_eq!(
        missing,
        [
            "pool-unopenable",
            "log-unreadable",
            "books-differ",
            "data-copy-damaged",
            "extent-unseen",
            "entry-unseen",
            "whiteout-idle"
        ]
    );
}

// Goal: a problem says what is lost: the file by its path, and which bytes of it. Method: damages of three sorts.
#[test]
fn what_is_lost_is_said() {
    let world = build();
    let lost = |plant: &dyn Fn(&mut World), kind: Kind| {
        let mut damaged = world.again();
        plant(&mut damaged);
        let problems = check(&damaged.image.device);
        let found = problems.into_iter().find(|problem| problem.kind == kind).expect("it is found");
        (found.inode, found.path.map(|path| String::from_utf8(path).unwrap()), found.bytes, found.text)
    };
    let spoil =
        |w: &mut World| w.image.write(PoolAddr(w.extent(w.file, 0).addr.0 + 4096), &[0x5a; BLOCK_BYTES]);
    let (inode, path, bytes, text) = lost(&spoil, Kind::DataUnreadable);
    assert_eq!((inode, path.as_deref(), bytes), (Some(world.file.0), Some("/dir/file"), Some((4096, 8192))));
    assert!(text.ends_with("(/dir/file, bytes 4096 to 8192)"), "{text}");
    let spoil = |w: &mut World| {
        let key = w.extent_key(w.big, 0);
        w.spoil_leaf(TreeId::EXTENTS, &key, 2);
    };
    let (_, path, bytes, _) = lost(&spoil, Kind::ExtentsLost);
    assert_eq!((path.as_deref(), bytes), (Some("/dir/file"), Some((0, 10_000))));
    let spoil = |w: &mut World| w.image.put(TreeId::INODES, &w.inode_key(w.file), b"garbage");
    let (inode, path, ..) = lost(&spoil, Kind::InodeLost);
    assert_eq!((inode, path.as_deref()), (Some(world.dir.0), Some("/dir")));
}

// Goal: the check calls no file good that a mount cannot have: a leaf with a key outside its range is refused as a whole, and so is one without
// entries. Method: a leaf of inodes with one key put behind all others, and an empty one; names that cannot be looked up are counted,
// and each must be told.
#[test]
fn a_leaf_that_cannot_be_used_is_lost_as_a_whole() {
    let world = build();
    type Edit = fn(&mut image::Entries);
    let plants: [(Kind, Edit); 2] = [
        (Kind::NodeKeyRange, |entries| {
            // Fewer: without what the keys begin with in common they take more room.
            entries.truncate(8);
            entries[7].0 = inode_key(FAMILY, InodeId(1 << 40), KEY).to_vec();
        }),
        (Kind::NodeEmpty, Vec::clear),
    ];
    for (kind, plant) in plants {
        let mut damaged = world.again();
        let key = damaged.middle(TreeId::INODES);
        damaged.image.edit_entries(TreeId::INODES, &key, plant);
        let problems = check(&damaged.image.device);
        let count = |kind: Kind| problems.iter().filter(|problem| problem.kind == kind).count();
        assert_eq!(count(kind), 1, "{problems:?}");
        let options = OpenOptions {
            store: StoreOptions { read_only: true, background: false, ..StoreOptions::default() },
            dirty_bytes_max: 0,
            clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
            on_data_logged: None,
        };
        let (fs, _) = Filesystem::open(vec![damaged.image.device.clone()], options).unwrap();
        let many = fs.lookup(ROOT, b"many").unwrap().ino;
        let lost = |i: &i32| fs.lookup(many, format!("a name of some length {i}").as_bytes()).is_err();
        let lost = (0..300).filter(lost).count();
        assert!(lost > 5, "{}: {lost}", kind.name());
        assert_eq!(count(Kind::InodeLost), lost, "{}: {problems:?}", kind.name());
        assert_eq!(count(Kind::NameDangling), 0);
    }
}

// Goal: a check changes nothing, not a byte. Method: the whole device before and after, of a damaged pool that was not
// closed.
#[test]
fn a_check_changes_nothing() {
    let mut world = build();
    world.log(|payload| batch::id_floor_op(payload, 5));
    world.change(world.dir, |r| r.size = 9);
    let key = world.middle(TreeId::INODES);
    world.spoil_leaf(TreeId::INODES, &key, 1);
    let bytes = |device: &MemoryDevice| {
        let mut all = AlignedBuf::new(device.size_bytes() as usize);
        device.read_at(0, &mut all).unwrap();
        all
    };
    let before = bytes(&world.image.device);
    assert!(!check(&world.image.device).is_empty());
    assert!(before[..] == bytes(&world.image.device)[..], "the check has changed the device");
}

// Goal: a log that cannot be read is named, and the state of the checkpoint is checked. Method: reads of the ring fail.
#[test]
fn a_log_that_cannot_be_read_is_named() {
    let world = build();
    let rule =
        FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(RING_START..RING_START + 4096);
    let device = Arc::new(FaultyDevice::new(world.image.device.snapshot(), 1, vec![rule]));
    let problems = check_on(device).expect("it can be checked");
    let kinds: Vec<Kind> = problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [Kind::LogUnreadable]);
}

// Goal: of nodes that are read in groups, one copy that the device cannot read is told and the other is used. Method: reads of one
// copy of a leaf among others fail, and then those of both.
#[test]
fn a_node_that_cannot_be_read_among_others_is_named() {
    let world = build();
    let key = world.middle(TreeId::INODES);
    let copies: Vec<PoolAddr> = world.image.node_ptr(TreeId::INODES, &key, 0).copies().collect();
    assert_eq!(copies.len(), 2);
    let kinds = |bad: &[PoolAddr]| {
        let places = bad.iter().map(|addr| world.image.offset(*addr));
        let rule = |at| {
            FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error)
                .within(at..at + BLOCK_BYTES as u64)
        };
        let device = FaultyDevice::new(world.image.device.snapshot(), 1, places.map(rule).collect());
        let problems = check_on(Arc::new(device)).expect("it can be checked");
        problems.iter().map(|problem| problem.kind).collect::<BTreeSet<Kind>>()
    };
    for copy in &copies {
        assert_eq!(kinds(&[*copy]), [Kind::NodeCopyDamaged].into());
    }
    assert!(kinds(&copies).contains(&Kind::NodeUnreadable));
}

// Goal: no image makes opening or checking panic, hang or run away. Method: random bytes of random blocks of metadata
// changed, a few at a time, with the checksums redone up to the superblock; opened as usual (read-only) and to be
// checked; one seed a round, for some seconds, and in any case a number of rounds.
#[test]
fn no_damage_makes_the_check_panic_or_hang() {
    const SECONDS: u64 = 3;
    const ROUNDS: u64 = 20;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let keys_of = |world: &World| -> Vec<(TreeId, Vec<Vec<u8>>)> {
            let keys = |tree: &TreeId| world.image.entries(*tree).into_iter().map(|(key, _)| key).collect();
            let all = TreeId::ALL.iter().map(|tree| (*tree, keys(tree)));
            all.filter(|(_, keys): &(TreeId, Vec<Vec<u8>>)| !keys.is_empty()).collect()
        };
        let worlds = [build(), subvolumes::build()].map(|world| (keys_of(&world), world));
        for seed in 0.. {
            if sender.send(seed).is_err() {
                return;
            }
            let mut rng = Rng::new(seed);
            let (keys, world) = rng.pick(&worlds).unwrap();
            let mut damaged = world.again();
            mutate(&mut damaged, keys, &mut rng);
            // An error is an answer, too.
            let _ = check_on(damaged.image.device.clone());
            let options = OpenOptions {
                store: StoreOptions {
                    read_only: true,
                    background: false,
                    cache_bytes: 1 << 20,
                    ..StoreOptions::default()
                },
                dirty_bytes_max: 0,
                clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
                on_data_logged: None,
            };
            if let Ok((fs, _)) = Filesystem::open(vec![damaged.image.device.clone()], options) {
                let _ = fs.readdir(ROOT, 0, &mut |_| true);
                let _ = fs.list_subvolumes();
            }
        }
    });
    let mut last = receiver.recv_timeout(LONG).expect("it begins");
    let end = now() + Duration::from_secs(SECONDS);
    while now() < end || last < ROUNDS {
        match receiver.recv_timeout(LONG) {
            Ok(seed) => last = seed,
            Err(_) => panic!("seed {last} panics or hangs"),
        }
    }
}

fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn mutate(world: &mut World, keys: &[(TreeId, Vec<Vec<u8>>)], rng: &mut Rng) {
    let scramble = |block: &mut [u8], reach: usize, rng: &mut Rng| {
        for _ in 0..1 + rng.below(4) {
            let reach = if rng.chance(0.5) { reach } else { reach.min(128) };
            let at = rng.below(reach as u64) as usize;
            let edges = [0, 1, 0x7f, 0x80, 0xff, rng.next_u64() as u8];
            block[at] = *rng.pick(&edges).unwrap();
        }
    };
    match rng.below(10) {
        0 => {
            let mut root = world.image.root.encode();
            scramble(&mut root, 800, rng);
            world.image.commit_raw(&root);
        }
        1 => {
            let mut bytes = world.image.superblock.encode();
            let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
            scramble(&mut bytes[24..len], len - 24, rng);
            let sum = varve_format::block_checksum(&bytes[..len]);
            bytes[len..len + 4].copy_from_slice(&sum.to_le_bytes());
            let slot = world.image.superblock.generation % SLOTS_PER_END;
            for slot in [slot, slot + SLOTS_PER_END] {
                let at = slot_offset(slot, world.image.device.size_bytes());
                world.image.device.write_at(at, &AlignedBuf::from_slice(&bytes)).unwrap();
            }
        }
        2 => {
            let array = if rng.chance(0.5) { Array::Bitmap } else { Array::Checksums };
            world.image.edit_array(array, 0, |page| scramble(page, BLOCK_BYTES, rng));
        }
        3 => {
            let (tree, of_tree) = rng.pick(keys).unwrap();
            let key = rng.pick(of_tree).unwrap().clone();
            let (start, blocks) = (rng.below(20_000), rng.below(70_000) as u32);
            let what = rng.below(5);
            world.log(|payload| match what {
                0 => {
                    batch::free_op(payload, Run { addr: PoolAddr::from_block(start), blocks: blocks.min(4) })
                }
                1 => batch::free_op(payload, Run { addr: PoolAddr::from_block(start), blocks }),
                2 => batch::place_op(payload, Run { addr: PoolAddr::from_block(start), blocks: 1 }, &[7]),
                3 => batch::delete_op(payload, *tree, &key),
                _ => batch::put_op(payload, *tree, &key, &start.to_le_bytes()),
            });
        }
        _ => {
            let (tree, of_tree) = rng.pick(keys).unwrap();
            let key = rng.pick(of_tree).unwrap().clone();
            let above = rng.below(world.image.height(*tree) as u64) as usize;
            world.image.edit_node(*tree, &key, above, |block| {
                let payload = u16::from_le_bytes([block[12], block[13]]) as usize;
                scramble(block, node::NODE_HEADER_BYTES + payload, rng);
            });
        }
    }
}
