//! What a device fails to read once, in pools whose metadata has no second copy: the verb fails, or does all of what it says, and nobody
//! draws conclusions from what has not been read.

use varve_device::Operation;
use varve_engine::ProblemKind as Kind;
use varve_engine::{FamilyId, PoolAddr, TreeId, VersionKey};
use varve_format::block_checksum;
use varve_format::record::inode::inode_key;
use varve_format::record::subvolume::FIRST_SUBVOLUME;
use varve_sim::{Fault, FaultRule, FaultyDevice, Trigger};

use super::damage::image::Image;
use super::*;

const BLOCK: usize = 4096;

type Faulty = FaultyDevice<MemoryDevice>;
/// Something that is tried, and what came of it.
type Attempt<'a> = (&'a str, &'a dyn Fn(&Filesystem) -> varve_fs::internals::Result<()>);

/// Which reads fail, of the n-th and those behind it.
type Triggers = fn(u64) -> Vec<Trigger>;
const ONCE: Triggers = |nth| vec![Trigger::Nth(nth)];
const TWICE: Triggers = |nth| vec![Trigger::Nth(nth), Trigger::Nth(nth + 1)];

fn open(device: Arc<dyn Device>) -> Filesystem {
    let options = OpenOptions {
        // No node of a tree stays in memory.
        store: StoreOptions { background: false, cache_bytes: 1, ..StoreOptions::default() },
        dirty_bytes_max: 8 * MIB,
        clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
        on_data_logged: None,
    };
    Filesystem::open(vec![device], options).unwrap().0
}

/// A pool whose metadata has one copy, closed after `prepare`, in which directories have files enough for trees of some leaves.
pub(super) fn closed<T>(prepare: impl FnOnce(&Filesystem) -> T) -> (MemoryDevice, T) {
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let options = FormatOptions { metadata: Profile::Single, ..FORMAT };
    let clock = TestClock(SimClock::new(1_700_000_000, 1000));
    Filesystem::format(&devices, &options, Caller::ROOT, &clock).unwrap();
    let fs = open(device.clone());
    let prepared = prepare(&fs);
    fs.close().unwrap();
    (device.snapshot(), prepared)
}

fn fill(fs: &Filesystem, dir: InodeId) {
    for i in 0..200 {
        fs.create(Caller::ROOT, dir, format!("{i:060}").as_bytes(), 0o644).unwrap();
    }
}

/// Makes an attempt on copies of the pool of which the n-th read fails, for each n that is reached. `judge` sees what came of it when the
/// device is well again.
fn at_each_read<T>(
    device: &MemoryDevice,
    attempt: impl Fn(&Filesystem) -> T,
    judge: impl Fn(&Filesystem, T, String),
) {
    at_some_reads(device, 1, (ONCE, Fault::Error), attempt, judge);
}

/// The same where the next read fails, too: data is asked for again.
fn twice_at_each_read<T>(
    device: &MemoryDevice,
    attempt: impl Fn(&Filesystem) -> T,
    judge: impl Fn(&Filesystem, T, String),
) {
    at_some_reads(device, 1, (TWICE, Fault::Error), attempt, judge);
}

/// The same for the first of so many reads, and of as many behind them, to which this happens.
fn at_some_reads<T>(
    device: &MemoryDevice,
    of: usize,
    (triggers, fault): (Triggers, Fault),
    attempt: impl Fn(&Filesystem) -> T,
    judge: impl Fn(&Filesystem, T, String),
) {
    for nth in (1..).step_by(of) {
        let faulty: Arc<Faulty> = Arc::new(FaultyDevice::new(device.snapshot(), 1, Vec::new()));
        let fs = open(faulty.clone());
        let rules = triggers(nth).into_iter().map(|trigger| FaultRule::new(Operation::Read, trigger, fault));
        faulty.set_rules(rules.collect());
        let came = attempt(&fs);
        let failed = faulty.injected_count();
        faulty.set_rules(Vec::new());
        judge(&fs, came, format!("read {nth}"));
        if failed == 0 {
            assert!(nth > 1, "nothing is read");
            return;
        }
    }
}

// Goal: flags keep what they keep also where a read of them fails, or gets a wrong bit once. Method: what they refuse, in an immutable directory
// and one that is only added to, to an immutable file and to a subvolume with an immutable root, while either happens to each read in turn.
#[test]
fn flags_hold_past_a_read_that_fails() {
    let (device, [dir, log, file]) = closed(|fs| {
        let dir = |name: &[u8]| fs.mkdir(Caller::ROOT, ROOT, name, 0o755).unwrap().ino;
        let (fixed, log) = (dir(b"fixed"), dir(b"log"));
        let sub = fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        for dir in [ROOT, fixed, log] {
            fill(fs, dir);
            fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap();
        }
        let file = fs.lookup(ROOT, b"file").unwrap().ino;
        for (ino, flags) in [
            (fixed, FileFlags::IMMUTABLE),
            (log, FileFlags::APPEND_ONLY),
            (file, FileFlags::IMMUTABLE),
            (sub, FileFlags::IMMUTABLE),
        ] {
            fs.set_flags(Caller::ROOT, ino, flags).unwrap();
        }
        // Its tree has more than a root.
        let other = fs.create_subvolume(Caller::ROOT, ROOT, b"other", 0o755).unwrap().ino;
        fill(fs, other);
        [fixed, log, file]
    });
    let attempts: [Attempt<'_>; 7] = [
        ("make in it", &|fs| fs.create(Caller::ROOT, dir, b"new", 0o644).map(drop)),
        ("unlink in it", &|fs| fs.unlink(dir, b"file")),
        ("unlink in a log", &|fs| fs.unlink(log, b"file")),
        ("write", &|fs| fs.write(Caller::ROOT, file, 0, b"x").map(drop)),
        ("chmod", &|fs| {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(Caller::ROOT, dir, set).map(drop)
        }),
        ("delete a subvolume", &|fs| fs.delete_subvolume(ROOT, b"sub")),
        ("move a subvolume", &|fs| fs.rename(ROOT, b"sub", ROOT, b"moved", RenameMode::Replace)),
    ];
    for ((what, attempt), fault) in
        attempts.into_iter().flat_map(|one| [(one, Fault::Error), (one, Fault::FlipBit)])
    {
        at_some_reads(&device, 1, (ONCE, fault), attempt, |_, came, when| match came {
            Err(error) => assert!([1, 5].contains(&error.errno()), "{what}, {when}, {fault:?}: {error}"),
            Ok(()) => panic!("{what}, {when}, {fault:?}: it has been done"),
        });
    }
}

// Goal: flags that are damaged for good keep no subvolume where it is, and nothing else is changed past them. Method: the leaf of a directory's
// record is wrong from then on, in a pool in which some inode has flags; subvolumes go out of it, and its other names stay.
#[test]
fn damaged_flags_keep_no_subvolume() {
    let (device, dir) = closed(|fs| {
        let flagged = fs.create(Caller::ROOT, ROOT, b"flagged", 0o644).unwrap().ino;
        fs.set_flags(Caller::ROOT, flagged, FileFlags::NO_DUMP).unwrap();
        fill(fs, ROOT);
        let dir = fs.mkdir(Caller::ROOT, ROOT, b"dir", 0o755).unwrap().ino;
        for name in [&b"sub"[..], b"moves"] {
            fs.create_subvolume(Caller::ROOT, dir, name, 0o755).unwrap();
        }
        fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap();
        // Opening looks at the last leaf.
        fill(fs, fs.mkdir(Caller::ROOT, ROOT, b"more", 0o755).unwrap().ino);
        dir
    });
    let image = Image::of(&device);
    let key = inode_key(FamilyId(FIRST_SUBVOLUME), dir, VersionKey(FIRST_SUBVOLUME));
    let leaf = image.offset(image.node_ptr(TreeId::INODES, &key, 0).copies().next().unwrap());
    let faulty: Arc<Faulty> = Arc::new(FaultyDevice::new(device, 1, Vec::new()));
    let fs = open(faulty.clone());
    let wrong = FaultRule::new(Operation::Read, Trigger::From(1), Fault::FlipBit);
    faulty.set_rules(vec![wrong.within(leaf..leaf + BLOCK as u64)]);
    refused(fs.getattr(dir), 5);
    refused(fs.unlink(dir, b"file"), 5);
    refused(fs.create(Caller::ROOT, dir, b"new", 0o644), 5);
    assert!(fs.wants_durable(dir, true));
    fs.delete_subvolume(dir, b"sub").unwrap();
    fs.rename(dir, b"moves", ROOT, b"moved", RenameMode::Replace).unwrap();
    // Who wants that durable hears of the damage, and a sync makes it so.
    refused(fs.fsync(dir), 5);
    fs.sync().unwrap();
    faulty.set_rules(Vec::new());
    refused(fs.lookup(dir, b"sub"), 2);
    fs.lookup(ROOT, b"moved").unwrap();
    fs.lookup(dir, b"file").unwrap();
}

// Goal: what is to be durable at once is, where it is not known whether it is to be. Method: a file with the flag, asked for while each read
// fails, or gets a wrong bit, in turn.
#[test]
fn a_read_that_fails_leaves_nothing_undurable() {
    let (device, file) = closed(|fs| {
        fill(fs, ROOT);
        let file = fs.create(Caller::ROOT, ROOT, b"file", 0o644).unwrap().ino;
        fs.set_flags(Caller::ROOT, file, FileFlags::DURABLE).unwrap();
        fill(fs, fs.mkdir(Caller::ROOT, ROOT, b"dir", 0o755).unwrap().ino);
        file
    });
    let asked = |fs: &Filesystem| fs.core().wants_durable(file, false);
    for fault in [Fault::Error, Fault::FlipBit] {
        at_some_reads(&device, 1, (ONCE, fault), asked, |_, wanted, when| {
            assert!(wanted, "{when}, {fault:?}")
        });
    }
}

// Goal: what says that a subvolume has not been moved, or deleted, is right. Method: both, while each read fails in turn.
#[test]
fn a_subvolume_is_moved_or_not() {
    let (device, [from, to]) = closed(|fs| {
        let [from, to] = [b"from".as_slice(), b"to"].map(|name| {
            let dir = fs.mkdir(Caller::ROOT, ROOT, name, 0o755).unwrap().ino;
            fill(fs, dir);
            dir
        });
        fs.create_subvolume(Caller::ROOT, from, b"sub", 0o755).unwrap();
        [from, to]
    });
    let attempts: [Attempt<'_>; 2] = [
        ("move", &|fs| fs.rename(from, b"sub", to, b"sub", RenameMode::Replace)),
        ("delete", &|fs| fs.delete_subvolume(from, b"sub")),
    ];
    for (what, attempt) in attempts {
        at_each_read(&device, attempt, |fs, came, when| {
            assert_eq!(fs.lookup(from, b"sub").is_err(), came.is_ok(), "{what}, {when}: {came:?}");
            assert_eq!(fs.lookup(to, b"sub").is_ok(), came.is_ok() && what == "move", "{what}, {when}");
            fs.maintain().unwrap();
            let report = fs.check(true).unwrap();
            assert!(report.problems.is_empty(), "{what}, {when}: {:#?}", report.problems);
        });
    }
}

// Goal: a check says nothing about what it has not read. Method: a sound pool of more nodes than stay in memory, while one
// read of 197 fails: an error, or what the engine says of the block.
#[test]
fn a_check_concludes_nothing_from_a_read_that_fails() {
    let (device, ()) = closed(|fs| {
        let sub = fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
        for dir in [ROOT, sub] {
            for i in 0..8_000 {
                fs.create(Caller::ROOT, dir, format!("{i:0240}").as_bytes(), 0o644).unwrap();
            }
            let file = fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap().ino;
            fs.write(Caller::ROOT, file, 0, &pattern(1, 40_000)).unwrap();
        }
        fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
        fs.unlink(sub, b"file").unwrap();
    });
    let derived = [Kind::KeyMalformed, Kind::NameDangling, Kind::InodeNameless, Kind::ExtentOwnerless];
    let mut refused = std::cell::Cell::new(0);
    at_some_reads(
        &device,
        197,
        (ONCE, Fault::Error),
        |fs| fs.check(true),
        |_, came, when| match came {
            Err(error) => {
                assert_eq!(error.errno(), 5, "{when}: {error}");
                refused.set(refused.get() + 1);
            }
            Ok(report) => {
                let wrong: Vec<_> =
                    report.problems.iter().filter(|problem| derived.contains(&problem.kind)).collect();
                assert!(wrong.is_empty(), "{when}: {wrong:#?}");
            }
        },
    );
    assert!(*refused.get_mut() > 0);
}

// Goal: a page of checksums that cannot be read keeps no file from being written back: it is tried elsewhere the next time. Method: a pool
// with a page of which a part is in use; all reads of it fail while a file is written whose data was to lie there, or anywhere.
#[test]
fn data_is_written_past_checksums_that_cannot_be_read() {
    let old = pattern(1, MIB as usize);
    let (device, ()) = closed(|fs| {
        let file = fs.create(Caller::ROOT, ROOT, b"old", 0o644).unwrap().ino;
        assert_eq!(fs.write(Caller::ROOT, file, 0, &old).unwrap(), old.len());
    });
    // Where the first block of the file is, and where checksums are, of which the first block's is one.
    let find = |test: &dyn Fn(u64, &[u8]) -> bool| {
        let (mut block, mut found) = (AlignedBuf::new(BLOCK), Vec::new());
        for at in (0..device.size_bytes()).step_by(BLOCK) {
            device.read_at(at, &mut block).unwrap();
            found.extend(test(at, &block).then_some(at));
        }
        found
    };
    let fs = open(Arc::new(device.snapshot()));
    let file = fs.lookup(ROOT, b"old").unwrap().ino;
    let first = fs.map(file, 0, 1).unwrap().pieces[0].address.unwrap();
    let near = PoolAddr(first + MIB);
    let sum = block_checksum(&old[..BLOCK]).to_le_bytes();
    let at = (PoolAddr(first).block() % 1024) as usize * 4;
    let pages = find(&|_, block| block[at..at + 4] == sum);
    assert!(!pages.is_empty());
    drop(fs);
    for near in [near, PoolAddr::NULL] {
        let faulty: Arc<Faulty> = Arc::new(FaultyDevice::new(device.snapshot(), 1, Vec::new()));
        let fs = open(faulty.clone());
        let rule = |at: &u64| {
            FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error).within(*at..*at + BLOCK as u64)
        };
        faulty.set_rules(pages.iter().map(rule).collect());
        let new = pattern(2, MIB as usize);
        let file = fs.create(Caller::ROOT, ROOT, b"new", 0o644).unwrap().ino;
        assert_eq!(fs.write(Caller::ROOT, file, 0, &new).unwrap(), new.len());
        fs.core().state(file).inner.write().near = near;
        refused(fs.flush_file(file), 5);
        fs.flush_file(file).unwrap();
        assert!(faulty.injected_count() > 0);
        assert!(fs.read(file, 0, new.len()).unwrap() == new);
        // And others, that know no better place.
        let third = fs.create(Caller::ROOT, ROOT, b"third", 0o644).unwrap().ino;
        fs.write(Caller::ROOT, third, 0, &new).unwrap();
        fs.flush_file(third).unwrap();
        faulty.set_rules(Vec::new());
        fs.sync().unwrap();
        let report = fs.check(true).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
    }
}

// Goal: what a range that is zeroed on a full pool has been changed by is in the log when that ends, also where it ends because something
// cannot be read. Method: nothing can be set aside, and each two reads in turn fail; nothing but the parts of blocks at both ends may wait in memory.
#[test]
fn zeros_over_a_full_pool_are_logged_where_they_end() {
    const LEN: usize = 256 << 10;
    let (device, ino) = closed(|fs| {
        let new = |name| fs.create(Caller::ROOT, ROOT, name, 0o644).unwrap().ino;
        let (image, full) = (new(b"image"), new(b"full"));
        // In two pieces.
        let mut at = 0;
        for half in [LEN as u64 / 2, 0] {
            fs.write(Caller::ROOT, image, half, &pattern(1, LEN / 2)).unwrap();
            fs.sync().unwrap();
            at += fs.write(Caller::ROOT, full, at, &pattern(2, LEN)).unwrap() as u64;
            fs.sync().unwrap();
        }
        for len in [LEN, BLOCK] {
            while let Ok(written) = fs.write(Caller::ROOT, full, at, &pattern(2, len)) {
                at += written as u64;
            }
            fs.sync().unwrap();
        }
        image
    });
    let zeroed = std::cell::Cell::new(0);
    twice_at_each_read(
        &device,
        |fs| {
            let reserve = || fs.core().store.reserve(1, 0, 0).ok();
            let _rest: Vec<_> = std::iter::from_fn(reserve).collect();
            let how = Allocate::Zero { keep_size: true };
            fs.fallocate(Caller::ROOT, ino, 100, LEN as u64 - 200, how)
        },
        |fs, came, what| {
            let state = fs.core().state(ino);
            let waits = state.inner.read().pages.map.range(1..(LEN / BLOCK) as u64 - 1).count();
            let zeros = |block: usize| fs.read(ino, (block * BLOCK) as u64, BLOCK).unwrap() == [0; BLOCK];
            if zeros(1) && !zeros(LEN / BLOCK - 2) {
                assert_eq!(waits, 0, "{what}: blocks wait, {came:?}");
                zeroed.set(zeroed.get() + 1);
            }
        },
    );
    assert!(zeroed.get() > 0, "none of them ended in the middle");
}

// Goal: a copy that cannot read on says how much it has copied, and fails only where that is nothing. Method: three pieces that go through
// memory, behind a head of a part of a block or not, while each two reads in turn fail.
#[test]
fn a_copy_that_cannot_read_on_is_short() {
    const LEN: usize = 3 << 20;
    let (device, inos) = closed(|fs| {
        let new = |name| fs.create(Caller::ROOT, ROOT, name, 0o644).unwrap().ino;
        let (from, to) = (new(b"from"), new(b"to"));
        fs.write(Caller::ROOT, from, 0, &pattern(1, LEN)).unwrap();
        fs.write(Caller::ROOT, to, 0, &pattern(2, LEN)).unwrap();
        fs.setxattr(to, b"security.capability", b"some", XattrMode::Set).unwrap();
        fs.sync().unwrap();
        (from, to)
    });
    for at in [(10, 20), (10, 4096 + 10)] {
        let short = std::cell::Cell::new(0);
        twice_at_each_read(
            &device,
            |fs| fs.copy_range(Caller::ROOT, (inos.0, at.0), (inos.1, at.1), 5 << 19),
            |fs, came, what| {
                let done = *came.as_ref().unwrap_or(&0) as usize;
                let mut expected = pattern(2, LEN);
                let (from, to) = (at.0 as usize, at.1 as usize);
                expected[to..to + done].copy_from_slice(&pattern(1, LEN)[from..from + done]);
                let found = fs.read(inos.1, 0, LEN).unwrap();
                assert!(found == expected, "{what}: {came:?} of {at:?}");
                short.set(short.get() + u32::from((1..5 << 19).contains(&done)));
            },
        );
        assert!(short.get() > 0, "none of them was short");
    }
}
