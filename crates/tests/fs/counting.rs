//! The number of inodes is counted again after a crash: exactly, a little at a time, and without keeping anything else waiting.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use varve_device::Operation;
use varve_engine::{Transaction, TreeId};
use varve_sim::Rng;

use super::*;
use varve_fs::internals::table::inodes;

/// What statfs says, and what there is.
fn counts(fs: &Filesystem) -> (u64, u64) {
    (fs.statfs().unwrap().files, inodes::count(&fs.core().store.view()).unwrap())
}

/// A pool that was not closed, with `count` inodes that nobody names.
fn unclosed(count: u64) -> Fixture {
    let mut f = Fixture::new(256 * MIB);
    let core = f.fs.core();
    let record = core.change(ROOT).unwrap().inode(ROOT).unwrap().unwrap().0;
    f.create(b"file");
    for first in (0..count).step_by(64) {
        let (change, mut tx) = (core.change(ROOT).unwrap(), Transaction::new());
        for number in first..count.min(first + 64) {
            tx.claim_id(1_000_000 + number);
            change.put_inode(&mut tx, InodeId(1_000_000 + number), &record).unwrap();
        }
        core.apply(tx).unwrap();
    }
    f.fs.sync().unwrap();
    f.kill();
    f
}

// Goal: however many inodes are to be counted after a crash, the background writes back what is old meanwhile, gives what is freed back,
// and closing does not wait. Method: 100,000 inodes; after one round of the background, of which more follow, and when it is closed.
#[test]
fn the_background_counts_some_at_a_time() {
    const COUNT: u64 = 100_000;
    let f = unclosed(COUNT);
    let core = f.fs.core();
    core.maintain_some().1.unwrap();
    let (said, there) = counts(&f.fs);
    assert!(there > COUNT && said < 10, "counted {said} in one round");
    let file = f.fs.lookup(ROOT, b"file").unwrap().ino;
    f.write(file, 0, &pattern(1, 40_000));
    let position = f.fs.position();
    f.clock.0.advance(10_000_000_000);
    core.maintain_some().1.unwrap();
    assert!(f.fs.position() > position && core.dirty.bytes() == 0, "what is old is logged");
    assert!(counts(&f.fs).0 < 10);
    let mut rounds = 2;
    while counts(&f.fs).0 != there {
        core.maintain_some().1.unwrap();
        rounds += 1;
        assert!(rounds < 20);
    }
    assert!(rounds > 4);
    // Closed before: it is counted when it is opened again, and all that is known is kept.
    let mut f = unclosed(COUNT);
    f.create(b"another");
    f.reopen();
    assert_eq!(counts(&f.fs), (2, COUNT + 3), "about");
    f.fs.maintain().unwrap();
    assert_eq!(counts(&f.fs), (COUNT + 3, COUNT + 3));
    f.reopen();
    assert_eq!(f.fs.statfs().unwrap().files, COUNT + 3, "stored");
}

// Goal: who only looks at a pool that was not closed is told how many inodes there are, once they have been counted, and nothing is written. Method: a
// pool that is opened for reading only, a round of the background and then all of them.
#[test]
fn who_only_looks_has_them_counted() {
    const COUNT: u64 = 40_000;
    let f = unclosed(COUNT);
    let device = Arc::new(f.device.snapshot());
    let before = device.stats();
    let options = OpenOptions {
        store: StoreOptions { read_only: true, background: false, ..StoreOptions::default() },
        dirty_bytes_max: 0,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone() as Arc<dyn Device>], options).unwrap().0;
    fs.core().maintain_some().1.unwrap();
    let (said, there) = counts(&fs);
    assert!(there > COUNT && said < 10, "counted {said} in one round");
    fs.maintain().unwrap();
    assert_eq!(counts(&fs), (there, there));
    fs.close().unwrap();
    assert_eq!(device.stats().writes_count, before.writes_count);
}

/// A device that cannot read some blocks, or reads zeros there, and says how often it was asked for them.
struct Bad {
    inner: Arc<MemoryDevice>,
    blocks: Vec<u64>,
    refuses: AtomicBool,
    zeros: AtomicBool,
    asked: AtomicUsize,
}

impl Between for Bad {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        let mut answers = self.inner.run(requests);
        for (request, answer) in requests.iter_mut().zip(&mut answers) {
            let Request::Read { offset, buf } = request else { continue };
            let end = *offset + buf.len() as u64;
            if !self.blocks.iter().any(|at| (*offset..end).contains(at)) {
                continue;
            }
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.zeros.load(Ordering::SeqCst) {
                buf.fill(0);
            }
            if self.refuses.load(Ordering::SeqCst) {
                let why = std::io::Error::other("bad block");
                *answer = Err(DeviceError::from_os(Operation::Read, "bad", 0, 0, &why));
            }
        }
        answers
    }
}

/// A pool that was not closed, and one of whose leaves of inodes, neither the first nor the last, is on blocks that can be spoilt.
fn with_a_bad_leaf() -> (Fixture, Arc<Through<Bad>>, Filesystem) {
    let f = unclosed(1_000);
    f.fs.checkpoint().unwrap();
    f.create(b"another");
    f.fs.sync().unwrap();
    let (mut block, mut leaves) = (AlignedBuf::new(4096), Vec::new());
    for at in (0..f.device.size_bytes()).step_by(4096) {
        f.device.read_at(at, &mut block).unwrap();
        let is_node = block[..4] == varve_format::node::NODE_MAGIC.to_le_bytes();
        if is_node && block[4..6] == TreeId::INODES.0.to_le_bytes() && block[6] == 0 {
            leaves.push((block.to_vec(), at));
        }
    }
    // By their first keys, which end as the numbers ascend; each is there in several copies.
    leaves.sort_unstable();
    let bad = leaves[leaves.len() / 2].0.clone();
    let blocks = leaves.into_iter().filter(|(leaf, _)| *leaf == bad).map(|(_, at)| at).collect();
    let device = Arc::new(Through(Bad {
        inner: Arc::new(f.device.snapshot()),
        blocks,
        refuses: AtomicBool::new(false),
        zeros: AtomicBool::new(false),
        asked: AtomicUsize::new(0),
    }));
    let fs = open(&f, &device);
    f.fs.close().unwrap();
    (f, device, fs)
}

fn open(f: &Fixture, device: &Arc<Through<Bad>>) -> Filesystem {
    open_as(f, device, false)
}

fn open_as(f: &Fixture, device: &Arc<Through<Bad>>, read_only: bool) -> Filesystem {
    let options = OpenOptions {
        store: StoreOptions { read_only, background: false, ..StoreOptions::default() },
        dirty_bytes_max: MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    Filesystem::open(vec![device.clone() as Arc<dyn Device>], options).unwrap().0
}

// Goal: inodes that are damaged are not counted over and over, and closing is no error. Method: a leaf that reads as zeros; the background
// looks around many times, files come and go, and it is closed; the same when it is open for reading only; then it is whole again and opened anew.
#[test]
fn damaged_inodes_are_counted_once() {
    let (f, device, fs) = with_a_bad_leaf();
    device.zeros.store(true, Ordering::SeqCst);
    device.asked.store(0, Ordering::SeqCst);
    fs.maintain().unwrap();
    let (asked, said) = (device.asked.load(Ordering::SeqCst), counts_said(&fs));
    assert!(asked > 0);
    for _ in 0..100 {
        fs.maintain().unwrap();
    }
    fs.create(Caller::ROOT, ROOT, b"one more", 0o644).unwrap();
    assert_eq!(counts_said(&fs), said + 1);
    fs.close().unwrap();
    assert_eq!(device.asked.load(Ordering::SeqCst), asked);
    let looking = open_as(&f, &device, true);
    (0..100).for_each(|_| looking.maintain().unwrap());
    assert_eq!(counts_said(&looking), said + 1, "who only looks is told the last one");
    assert_eq!(device.asked.load(Ordering::SeqCst), 2 * asked);
    looking.close().unwrap();
    device.zeros.store(false, Ordering::SeqCst);
    let fs = open(&f, &device);
    assert_eq!(counts_said(&fs), said + 1, "about");
    fs.maintain().unwrap();
    let (said, there) = counts(&fs);
    assert_eq!(said, there);
}

fn counts_said(fs: &Filesystem) -> u64 {
    fs.statfs().unwrap().files
}

// Goal: a device that refuses a leaf of inodes is asked for it more and more seldom, closing is no error, and when it is well again the
// inodes are counted from there on. Method: it refuses for 2,000 rounds, in which a file comes.
#[test]
fn a_device_that_refuses_inodes_is_left_alone() {
    let (_f, device, fs) = with_a_bad_leaf();
    device.refuses.store(true, Ordering::SeqCst);
    device.asked.store(0, Ordering::SeqCst);
    fs.maintain().unwrap();
    let once = device.asked.load(Ordering::SeqCst);
    assert!(once > 0);
    fs.create(Caller::ROOT, ROOT, b"one more", 0o644).unwrap();
    for _ in 0..2_000 {
        fs.maintain().unwrap();
    }
    let times = device.asked.load(Ordering::SeqCst) / once;
    assert!((5..10).contains(&times), "{times} times");
    device.refuses.store(false, Ordering::SeqCst);
    for _ in 0..2_000 {
        fs.maintain().unwrap();
    }
    let (said, there) = counts(&fs);
    assert_eq!(said, there);
    fs.close().unwrap();
}

/// One change by chance, in `dirs`, of few names. What is refused is refused.
fn change_something(fs: &Filesystem, rng: &mut Rng, dirs: &[InodeId]) {
    let (from, to) = (*rng.pick(dirs).unwrap(), *rng.pick(dirs).unwrap());
    let (a, b) = (format!("{}", rng.below(30)).into_bytes(), format!("{}", rng.below(30)).into_bytes());
    let nameless = NewNameless { mode: 0o644, umask: 0, linkable: true, set_gid_judged: false };
    let whiteout = RenameMode::Whiteout { caller: Caller::ROOT, replace: true };
    let result = match rng.below(10) {
        0..=3 => fs.create(Caller::ROOT, from, &a, 0o644).map(drop),
        4 | 5 => fs.unlink(from, &a),
        6 => fs.rename(from, &a, to, &b, RenameMode::Replace),
        7 => fs.rename(from, &a, to, &b, whiteout),
        8 => fs.tmpfile(Caller::ROOT, from, nameless).and_then(|file| {
            let linked = fs.link(file.ino, from, &a).map(drop);
            fs.release_inode(file.ino)?;
            linked
        }),
        _ => fs.lookup(from, &a).and_then(|attr| fs.link(attr.ino, to, &b)).map(drop),
    };
    if let Err(FsError::Engine(error)) = result {
        panic!("{error}");
    }
}

/// A pool that was not closed, and directories in it: two, and the roots of a subvolume and its writable clone.
fn unclosed_and_busy(seed: u64) -> (Fixture, Rng, Vec<InodeId>) {
    let (mut f, mut rng) = (Fixture::new(64 * MIB), Rng::new(seed));
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let mut dirs = vec![ROOT, f.mkdir(ROOT, b"dir"), sub];
    (0..200).for_each(|_| change_something(&f.fs, &mut rng, &dirs));
    if seed.is_multiple_of(2) {
        dirs.push(f.fs.snapshot(sub, ROOT, b"clone", false, false).unwrap());
    }
    f.fs.sync().unwrap();
    f.kill();
    (f, rng, dirs)
}

// Goal: each inode is counted once, whatever comes and goes between two pieces of the count. Method: by seed, changes of all kinds, the
// reaper and snapshots between pieces of a few records; what was counted against a scan, then and after more changes, and the check.
#[test]
fn changes_between_pieces_are_counted_once() {
    for seed in 0..30 {
        let (mut f, mut rng, mut dirs) = unclosed_and_busy(seed);
        let (core, mut snapshots) = (f.fs.core(), Vec::new());
        for n in 0..60 {
            (0..rng.below(8)).for_each(|_| change_something(&f.fs, &mut rng, &dirs));
            if seed.is_multiple_of(2) && rng.below(8) == 0 {
                let name = format!("snapshot {n}").into_bytes();
                dirs.push(f.fs.snapshot(dirs[2], ROOT, &name, false, false).unwrap());
                snapshots.push(name);
            }
            if !snapshots.is_empty() && rng.below(10) == 0 {
                f.fs.delete_subvolume(ROOT, &snapshots.remove(0)).unwrap();
                dirs.remove(4);
            }
            core.reap_at_once(rng.below(5) as u32).unwrap();
            core.count_pieces(1, 1 + rng.below(9) as usize).unwrap();
        }
        core.count_pieces(u32::MAX, 5).unwrap();
        let (said, there) = counts(&f.fs);
        assert_eq!(said, there, "seed {seed}");
        (0..20).for_each(|_| change_something(&f.fs, &mut rng, &dirs));
        f.fs.maintain().unwrap();
        let (said, there) = counts(&f.fs);
        assert_eq!(said, there, "seed {seed}");
        f.reopen();
        f.check();
        assert_eq!(f.fs.statfs().unwrap().files, there, "seed {seed}");
    }
}

// Goal: the same of what comes and goes while a piece is counted. Method: three threads change, one reaps, one counts a few records at a
// time, while the others have so much to do.
#[test]
fn changes_during_a_piece_are_counted_once() {
    for seed in 0..10 {
        let (f, _, dirs) = unclosed_and_busy(seed);
        let (core, ends, done) = (f.fs.core(), AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let changing: Vec<_> = (0..3)
                .map(|thread| {
                    let (fs, dirs, done, mut rng) = (&f.fs, &dirs, &done, Rng::new(seed * 3 + thread));
                    scope.spawn(move || {
                        for _ in 0..300 {
                            change_something(fs, &mut rng, dirs);
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    core.reap_at_once(2).unwrap();
                }
            });
            scope.spawn(|| {
                let mut pieces = 0;
                while !ends.load(Ordering::SeqCst) {
                    if done.load(Ordering::SeqCst) >= 10 * pieces {
                        core.count_pieces(1, 3).unwrap();
                        pieces += 1;
                    }
                }
            });
            changing.into_iter().for_each(|thread| thread.join().unwrap());
            ends.store(true, Ordering::SeqCst);
        });
        core.count_pieces(u32::MAX, 3).unwrap();
        let (said, there) = counts(&f.fs);
        assert_eq!(said, there, "seed {seed}");
        f.check();
    }
}
