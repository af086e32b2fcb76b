//! What is wrong with a pool is found also where what says whether it is wrong, or who sees it, cannot be read for a moment.

use std::sync::atomic::{AtomicU64, Ordering};

use varve_engine::{CheckProgress, CheckStage};
use varve_format::record::inode::decode_inode_key;
use varve_format::record::name::decode_name_key;

use super::super::passing::closed;
use super::*;
use varve_fs::internals::subvolume::local;

/// Names, half of them in a subvolume's root and half in a directory: with them the trees have many more nodes than stay in memory.
const NAMES: usize = 4800;
/// Files with data among them.
const FILES: usize = 12;
/// Reads that are spoilt, one in each check.
const READS: u64 = 6;

/// A pool whose metadata has one copy, and the leaves of it that are read.
struct Plain {
    image: Image,
    /// Inodes with data, by the numbers they have in the subvolume, and the pool address of their data.
    files: Vec<(InodeId, u64)>,
}

/// A subvolume that has versions, with files that it alone shows, very many names, and a subvolume in a directory that has a name.
fn plain() -> Plain {
    let (device, files) = closed(|fs| {
        let sub = fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        let dir = fs.mkdir(Caller::ROOT, sub, b"dir", 0o755).unwrap().ino;
        fs.create(Caller::ROOT, dir, b"taken", 0o644).unwrap();
        fs.create_subvolume(Caller::ROOT, dir, b"inner", 0o755).unwrap();
        let below = fs.mkdir(Caller::ROOT, sub, b"below", 0o755).unwrap().ino;
        let mut files = Vec::new();
        for n in 0..NAMES {
            let name = |n: usize| format!("{n:0200}").into_bytes();
            let dir = if n % 2 == 0 { sub } else { below };
            let ino = fs.create(Caller::ROOT, dir, &name(n), 0o644).unwrap().ino;
            if n % (NAMES / FILES) == 0 {
                fs.write(Caller::ROOT, ino, 0, &pattern(n as u64, 10 * BLOCK_BYTES)).unwrap();
                files.push((ino, dir, name(n)));
            } else {
                // In its record.
                fs.write(Caller::ROOT, ino, 0, &pattern(n as u64, 1200)).unwrap();
            }
        }
        let snapshot = fs.snapshot(sub, ROOT, b"snapshot", false, true).unwrap();
        let there = fs.lookup(snapshot, b"below").unwrap().ino;
        for (_, dir, name) in &files {
            fs.unlink(if *dir == sub { snapshot } else { there }, name).unwrap();
        }
        fs.maintain().unwrap();
        let address = |ino| fs.map(ino, 0, 1).unwrap().pieces[0].address.expect("it has data");
        files.into_iter().map(|(ino, ..)| (local(ino), address(ino))).collect()
    });
    Plain { image: Image::of(&device), files }
}

impl Plain {
    /// The key of the record that an inode has; not one of the first subvolume.
    fn inode_key(&self, ino: InodeId) -> Vec<u8> {
        let is = |key: &[u8]| {
            let (family, number, _) = decode_inode_key(key).unwrap();
            family != FAMILY && number == ino
        };
        let mut entries = self.image.entries(TreeId::INODES).into_iter();
        entries.find(|(key, value)| is(key) && !value.is_empty()).expect("it has one").0
    }
    fn change(&mut self, ino: InodeId, edit: impl FnOnce(&mut InodeRecord)) -> u64 {
        let key = self.inode_key(ino);
        let mut record = InodeRecord::decode(&self.image.get(TreeId::INODES, &key).unwrap()).unwrap();
        edit(&mut record);
        self.image.put(TreeId::INODES, &key, &record.encode());
        self.leaf(TreeId::INODES, &key)
    }
    /// Where the leaf of a key lies on the device.
    fn leaf(&self, tree: TreeId, key: &[u8]) -> u64 {
        let copies: Vec<PoolAddr> = self.image.node_ptr(tree, key, 0).copies().collect();
        assert_eq!(copies.len(), 1);
        self.image.offset(copies[0])
    }
}

/// A device of which one read is spoilt: the n-th of these blocks from a place of the check on.
struct Spoilt {
    inner: MemoryDevice,
    progress: Arc<CheckProgress>,
    from: (CheckStage, u64),
    blocks: Vec<u64>,
    /// Its bytes get a wrong bit; else it fails.
    flips: bool,
    nth: AtomicU64,
    reads: AtomicU64,
}

impl Between for Spoilt {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let mut results = self.inner.run(requests);
        let (stage, done, _) = self.progress.now();
        if (stage as u8, done) < (self.from.0 as u8, self.from.1) {
            return results;
        }
        for (request, result) in requests.iter_mut().zip(&mut results) {
            let Request::Read { offset, buf } = request else { continue };
            let within = |block: &&u64| (*offset..*offset + buf.len() as u64).contains(*block);
            let Some(block) = self.blocks.iter().find(within) else { continue };
            if self.reads.fetch_add(1, Ordering::SeqCst) + 1 != self.nth.load(Ordering::SeqCst) {
                continue;
            }
            let why = std::io::Error::other("bad block");
            match self.flips {
                true => buf[(*block - *offset) as usize + 100] ^= 4,
                false => *result = Err(DeviceError::from_os(Operation::Read, "spoilt", *offset, 0, &why)),
            }
        }
        results
    }
}

/// Checks copies of a pool while one read is spoilt, each of the first few in turn. What is wrong is told each time, or that it could not be
/// looked at.
fn at_each_read(plain: &Plain, from: (CheckStage, u64), blocks: &[u64], told: &dyn Fn(&[Problem]) -> bool) {
    let mut spoilt = 0;
    for (nth, flips) in (1..=READS).flat_map(|nth| [(nth, false), (nth, true)]) {
        let progress = Arc::new(CheckProgress::default());
        let device = Arc::new(Through(Spoilt {
            inner: plain.image.device.snapshot(),
            progress: progress.clone(),
            from,
            blocks: blocks.to_vec(),
            flips,
            nth: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }));
        // No node of a tree stays in memory for long.
        let store = StoreOptions { background: false, cache_bytes: 1, progress, ..StoreOptions::default() };
        let clock = Arc::new(TestClock(SimClock::new(1_700_000_000, 1000)));
        let options = OpenOptions { store, dirty_bytes_max: MIB, clock, on_data_logged: None };
        let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
        if from.0 == CheckStage::Nodes {
            // Nor what was read to open it.
            let sub = fs.lookup(ROOT, b"sub").unwrap().ino;
            for dir in [sub, fs.lookup(sub, b"below").unwrap().ino] {
                fs.readdir(dir, 2, &mut |entry| fs.lookup(dir, &entry.name).is_ok()).unwrap();
            }
        }
        device.reads.store(0, Ordering::SeqCst);
        device.nth.store(nth, Ordering::SeqCst);
        let came = fs.check(true);
        let when = format!("{from:?}, read {nth}, a wrong bit: {flips}");
        match came {
            Err(error) => assert_eq!(error.errno(), 5, "{when}: {error}"),
            Ok(report) => {
                let texts = report.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
                assert!(told(&report.problems), "{when}: {texts:#?}");
            }
        }
        spoilt += u64::from(device.reads.load(Ordering::SeqCst) >= nth);
    }
    assert!(spoilt > 0, "all of it stays in memory");
}

fn has(kind: Kind, many: usize) -> impl Fn(&[Problem]) -> bool {
    move |problems| problems.iter().filter(|problem| problem.kind == kind).count() >= many
}

// Goal: no check ends as if a problem were none because who sees it cannot be read at that moment. Method: files with data beyond
// their sizes, and reads of their records while what they hold is looked at.
#[test]
fn what_is_found_is_told_whoever_sees_it() {
    let mut plain = plain();
    let files: Vec<InodeId> = plain.files.iter().map(|(ino, _)| *ino).collect();
    let leaves: Vec<u64> = files.iter().map(|ino| plain.change(*ino, |record| record.size = 4096)).collect();
    at_each_read(&plain, (CheckStage::Files, 1), &leaves, &has(Kind::ExtentBeyondSize, FILES));
}

// Goal: as above, where damaged blocks have been found: the problem tells that there may be others who have them.
#[test]
fn damaged_data_is_told_whoever_sees_it() {
    let plain = plain();
    for (_, address) in &plain.files {
        plain.image.write(PoolAddr(*address), &[0x5a; BLOCK_BYTES]);
    }
    let leaves: Vec<u64> =
        plain.files.iter().map(|(ino, _)| plain.leaf(TreeId::INODES, &plain.inode_key(*ino))).collect();
    at_each_read(&plain, (CheckStage::Data, 1), &leaves, &|problems| {
        let is_whole = |problem: &&Problem| problem.files.len() == 1 || problem.files_uncounted;
        let damaged = problems.iter().filter(|problem| problem.kind == Kind::DataUnreadable);
        damaged.clone().count() == FILES && damaged.clone().all(|problem| is_whole(&problem))
    });
}

// Goal: the same of what the first subvolume's record says of the pool. Method: a flag of an inode that it says no inode has.
#[test]
fn a_flag_is_told_whatever_the_pool_says() {
    let mut plain = plain();
    let (ino, _) = plain.files[0];
    plain.change(ino, |record| record.flags |= INODE_FLAG_IMMUTABLE);
    let leaf = plain.leaf(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME));
    at_each_read(&plain, (CheckStage::Nodes, 0), &[leaf], &has(Kind::InodeFlags, 1));
}

// Goal: the same of a subvolume that hides a name. Method: one that has another name's place.
#[test]
fn a_hidden_name_is_told_or_not_looked_for() {
    let mut plain = plain();
    let hasher = NameHasher::new(HASH_KIND_SIPHASH13, plain.image.superblock.hash_seed).unwrap();
    let position = NamePosition::new(hasher.hash(b"taken"), 0);
    let mut subvolumes = plain.image.entries(TreeId::SUBVOLUMES).into_iter();
    let decoded = |(key, value): (_, Vec<u8>)| (key, SubvolumeRecord::decode(&value).unwrap());
    let named = |record: &SubvolumeRecord| record.place.as_ref().is_some_and(|place| place.name == b"inner");
    let (key, mut record) = subvolumes.by_ref().map(decoded).find(|(_, record)| named(record)).unwrap();
    let place = record.place.as_mut().unwrap();
    (place.position, place.name) = (position, b"taken".to_vec());
    plain.image.put(TreeId::SUBVOLUMES, &key, &record.encode());
    let names = plain.image.entries(TreeId::NAMES).into_iter();
    let is = |key: &[u8]| decode_name_key(key).is_ok_and(|(_, _, at, _)| at == position);
    let leaves: Vec<u64> =
        names.filter(|(key, _)| is(key)).map(|(key, _)| plain.leaf(TreeId::NAMES, &key)).collect();
    at_each_read(&plain, (CheckStage::Subvolumes, 0), &leaves, &|problems| {
        let hidden = problems.iter().any(|problem| problem.kind == Kind::SubvolumePlace);
        hidden || problems.iter().any(|problem| problem.kind == Kind::KeyMalformed)
    });
}
