//! Snapshots of what is dirty: what they cost, what they show, and what a crash leaves of them.

use std::sync::atomic::Ordering;

use varve_device::{Operation, StatsSnapshot};
use varve_engine::EngineError;
use varve_format::record::subvolume::SUBVOLUME_PENDING;
use varve_sim::{Fault, FaultRule, FaultyDevice, Trigger};

use super::*;
use varve_fs::internals::subvolume::Slot;
use varve_fs::internals::writeback::frozen::{Failed, Freeze};

fn world(dirty_bytes_max: u64) -> (Fixture, InodeId) {
    let f = Fixture::with(256 * MIB, HASH_KIND_SIPHASH13, dirty_bytes_max);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    (f, sub)
}

fn file(f: &Fixture, dir: InodeId, name: &[u8], data: &[u8]) -> InodeId {
    let ino = f.fs.create(Caller::ROOT, dir, name, 0o644).unwrap().ino;
    f.write(ino, 0, data);
    ino
}

fn content(f: &Fixture, dir: InodeId, name: &[u8]) -> Vec<u8> {
    f.read_all(f.fs.lookup(dir, name).unwrap().ino)
}

fn snapshot(f: &Fixture, source: InodeId, name: &[u8], read_only: bool) -> InodeId {
    f.fs.snapshot(source, ROOT, name, read_only, false).unwrap()
}

fn is_pending(f: &Fixture, root: InodeId) -> bool {
    let subvolume = f.fs.core().subvolumes.get(Slot::of(root)).unwrap();
    let flags = f.fs.core().subvolume_record(&subvolume).unwrap().flags;
    flags & SUBVOLUME_PENDING != 0
}

/// Files of one subvolume, in the order of their names.
fn all(f: &Fixture, dir: InodeId) -> Vec<(Vec<u8>, Vec<u8>)> {
    f.list(dir).into_iter().map(|name| (name.clone(), content(f, dir, &name))).collect()
}

// Goal: what is dirty costs a snapshot nothing. Method: snapshots with nothing, one file, 16 MiB in one, and 16 MiB in
// 4,096 files dirty: none writes to the device, and each logs as many transactions as the others; what is dirty stays so.
#[test]
fn costs_the_same() {
    let (f, sub) = world(64 * MIB);
    snapshot(&f, sub, b"first", true);
    let mut costs = Vec::new();
    for (n, (files, len)) in [(0, 0), (1, 3000), (1, 16 * MIB as usize), (4096, 4096)].into_iter().enumerate()
    {
        let dir = f.mkdir(sub, format!("d{n}").as_bytes());
        for n in 0..files {
            file(&f, dir, n.to_string().as_bytes(), &pattern(n, len));
        }
        let dirty = f.fs.core().dirty.bytes();
        assert_eq!(dirty, files * (len as u64).next_multiple_of(4096));
        let measure = || -> (StatsSnapshot, u64) { (f.device.stats(), f.fs.position().0) };
        let before = measure();
        let root = snapshot(&f, sub, format!("s{n}").as_bytes(), true);
        let after = measure();
        assert_eq!(f.fs.core().dirty.bytes(), dirty, "what is dirty is left alone");
        assert_eq!(after.0.since(&before.0).writes_count, 0, "{files} files of {len} bytes");
        assert_eq!(is_pending(&f, root), files > 0);
        costs.push(after.1 - before.1);
        f.fs.flush_all().unwrap();
        f.fs.maintain().unwrap();
        assert!(!is_pending(&f, root));
    }
    assert!(costs.iter().all(|cost| *cost == costs[0]), "transactions: {costs:?}");
}

/// One thing that happens to a file, by its inode and its directory.
type Change = (&'static str, fn(&Fixture, InodeId, InodeId));

const CHANGES: [Change; 11] = [
    ("overwrite", |f, _, ino| f.write(ino, 1, b"changed")),
    ("append", |f, _, ino| f.write(ino, f.fs.getattr(ino).unwrap().size, b"more")),
    ("cut", |f, _, ino| f.truncate(ino, 10)),
    ("grow", |f, _, ino| f.truncate(ino, 1 << 20)),
    ("punch", |f, _, ino| f.fs.fallocate(Caller::ROOT, ino, 0, 9000, Allocate::Punch).unwrap()),
    ("reserve", |f, _, ino| {
        f.fs.fallocate(Caller::ROOT, ino, 0, 1 << 20, Allocate::Reserve { keep_size: false }).unwrap();
    }),
    ("unlink", |f, dir, _| f.fs.unlink(dir, b"file").unwrap()),
    ("replace", |f, dir, _| {
        file(f, dir, b"new", b"new");
        f.fs.rename(dir, b"new", dir, b"file", RenameMode::Replace).unwrap();
    }),
    ("mode", |f, _, ino| {
        f.fs.setattr(Caller::ROOT, ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    }),
    ("attribute", |f, _, ino| f.fs.setxattr(ino, b"user.a", b"1", XattrMode::Set).unwrap()),
    ("link", |f, dir, ino| assert!(f.fs.link(ino, dir, b"other").is_ok())),
];

// Goal: a snapshot shows what was written before it and nothing else, whatever happens to the files on either side and
// whoever looks first. Method: files inside and outside of their records, dirty in part or whole; each change on the source
// or the snapshot; the other side must show the attributes and bytes of before, at once, when idle, and after a crash.
#[test]
fn changes_on_either_side() {
    for (what, change) in CHANGES {
        for (old, new) in [(0, 900), (0, 30_000), (900, 20_000), (20_000, 50_000)] {
            for in_snapshot in [false, true] {
                let case =
                    format!("{what}, {old} bytes logged and {new} dirty, in the snapshot: {in_snapshot}");
                let (mut f, sub) = world(16 * MIB);
                let ino = file(&f, sub, b"file", &pattern(1, old));
                file(&f, sub, b"untouched", &pattern(3, 5000));
                f.fs.flush_all().unwrap();
                f.write(ino, old as u64 / 2, &pattern(2, new));
                let before = (all(&f, sub), f.fs.getattr(ino).unwrap());
                let snap = snapshot(&f, sub, b"snap", false);
                assert!(is_pending(&f, snap));
                let (changed, kept) = if in_snapshot { (snap, sub) } else { (sub, snap) };
                let target = f.fs.lookup(changed, b"file").unwrap().ino;
                change(&f, changed, target);
                let same = |f: &Fixture| {
                    assert_eq!(f.list(kept), [b"file".to_vec(), b"untouched".to_vec()], "{case}");
                    assert!(all(f, kept) == before.0, "{case}");
                    let attr = f.fs.lookup(kept, b"file").unwrap();
                    assert_eq!(Attr { ino, generation: before.1.generation, ..attr }, before.1, "{case}");
                };
                same(&f);
                let after = all(&f, changed);
                f.check();
                f.fs.maintain().unwrap();
                assert!(!is_pending(&f, snap));
                same(&f);
                f.check();
                f.fs.sync().unwrap();
                f.kill();
                same(&f);
                assert!(all(&f, changed) == after, "{case}");
                f.check();
            }
        }
    }
}

// Goal: a snapshot that is there after a crash is complete; one whose data was not all logged is gone without a trace,
// also for who cannot write, and the work after it stays. Method: a crash (all that was logged is there) after a commit of
// later work, before and after the data is logged, by each of the ways that make it durable.
#[test]
fn a_crash_leaves_all_or_nothing() {
    type Completes = fn(&Fixture, InodeId) -> bool;
    let ways: [(&str, Completes); 9] = [
        ("nothing", |_, _| false),
        ("fsync of the source's other file", |f, _| {
            let other = f.create(b"elsewhere");
            f.fs.fsync(other).unwrap();
            false
        }),
        ("one of two files looked at", |f, snap| {
            content(f, snap, b"a");
            false
        }),
        ("sync", |f, _| {
            f.fs.sync().unwrap();
            true
        }),
        ("maintain", |f, _| {
            f.fs.maintain().unwrap();
            true
        }),
        ("fsync in it", |f, snap| {
            f.fs.fsync(f.fs.lookup(snap, b"b").unwrap().ino).unwrap();
            true
        }),
        ("the first half of an fsync in it", |f, snap| {
            f.fs.flush_file(f.fs.lookup(snap, b"b").unwrap().ino).unwrap();
            true
        }),
        ("fsync of the directory it is in", |f, _| {
            f.fs.fsync(ROOT).unwrap();
            true
        }),
        ("a snapshot of it", |f, snap| {
            f.fs.snapshot(snap, ROOT, b"snapshot of it", true, false).unwrap();
            true
        }),
    ];
    for (what, way) in ways {
        let (mut f, sub) = world(16 * MIB);
        file(&f, sub, b"a", &pattern(1, 100_000));
        let b = file(&f, sub, b"b", b"small");
        let before = all(&f, sub);
        let snap = snapshot(&f, sub, b"snap", true);
        f.fs.mkdir(Caller::ROOT, sub, b"later", 0o755).unwrap();
        let complete = way(&f, snap);
        assert_eq!(is_pending(&f, snap), !complete, "{what}");
        f.fs.commit(f.fs.position()).unwrap();
        f.check();
        // Who cannot write shows no half a snapshot, and finds nothing wrong.
        let copy: Arc<dyn Device> = Arc::new(f.device.snapshot());
        let options = OpenOptions {
            store: StoreOptions { read_only: true, background: false, ..StoreOptions::default() },
            dirty_bytes_max: MIB,
            clock: f.clock.clone(),
            on_data_logged: None,
        };
        let reader = Filesystem::open(vec![copy], options).unwrap().0;
        assert_eq!(reader.lookup(ROOT, b"snap").is_ok(), complete, "{what}");
        assert_eq!(reader.list_subvolumes().unwrap().iter().any(|info| info.path == b"/snap"), complete);
        assert!(reader.check(true).unwrap().problems.is_empty(), "{what}");
        drop(reader);
        f.kill();
        f.check();
        assert!(f.fs.lookup(sub, b"later").is_ok(), "{what}");
        match f.fs.lookup(ROOT, b"snap") {
            Ok(found) => {
                assert!(complete, "{what}");
                assert!(all(&f, found.ino) == before, "{what}");
            }
            Err(error) => {
                assert!(!complete, "{what}: {error}");
                refused(f.fs.lookup(ROOT, b"snap"), 2);
                let again = snapshot(&f, sub, b"snap", false);
                assert_eq!(f.list(again), f.list(sub), "{what}");
            }
        }
        f.fs.getattr(b).unwrap();
        f.fs.maintain().unwrap();
        f.check();
        f.reopen();
        f.check();
    }
}

// Goal: snapshots one after the other, all with something dirty, show each what there was then, and what was dirtied
// between them is not in the older. Method: a file for every snapshot and one that is changed before each; nothing is
// written back between; in one run the source is changed in other ways between, too.
#[test]
fn one_after_the_other() {
    for between in [false, true] {
        let (mut f, sub) = world(64 * MIB);
        let shared = file(&f, sub, b"shared", &pattern(0, 10_000));
        let mut taken = Vec::new();
        for n in 0..6u64 {
            file(&f, sub, format!("f{n}").as_bytes(), &pattern(n, 20_000));
            f.write(shared, 5000, &pattern(n, 2000));
            let now = all(&f, sub);
            taken.push((snapshot(&f, sub, format!("s{n}").as_bytes(), n % 2 == 0), now));
            if between {
                f.mkdir(sub, format!("d{n}").as_bytes());
                f.fs.rmdir(sub, format!("d{n}").as_bytes()).unwrap();
            }
        }
        for (root, before) in taken.iter().rev() {
            assert!(all(&f, *root) == *before);
        }
        f.check();
        f.fs.sync().unwrap();
        f.kill();
        for (root, before) in &taken {
            assert!(all(&f, *root) == *before);
        }
        f.check();
        // One in the middle goes while files are frozen for another.
        f.write(shared, 0, b"dirty");
        let last = snapshot(&f, sub, b"last", false);
        f.fs.delete_subvolume(ROOT, b"s2").unwrap();
        f.fs.maintain().unwrap();
        assert_eq!(content(&f, last, b"shared")[..5], *b"dirty");
        f.write(shared, 0, b"source");
        f.fs.snapshot(sub, sub, b"inside", true, false).unwrap();
        f.fs.delete_subvolume(ROOT, b"last").unwrap();
        f.fs.delete_subvolume(sub, b"inside").unwrap();
        f.fs.delete_subvolume(ROOT, b"sub").unwrap();
        f.fs.maintain().unwrap();
        f.check();
        assert!(
            taken
                .iter()
                .filter(|(root, _)| Slot::of(*root).0 != Slot::of(taken[2].0).0)
                .all(|(root, before)| all(&f, *root) == *before)
        );
    }
}

/// What is on the fixture's device, closed there, on one that fails when it is told to; and how it was opened.
fn on_faulty(f: &Fixture) -> (Arc<FaultyDevice<MemoryDevice>>, OpenOptions, Filesystem) {
    f.fs.close().unwrap();
    let device = Arc::new(FaultyDevice::new(f.device.snapshot(), 1, Vec::new()));
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 32 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options.clone()).unwrap().0;
    (device, options, fs)
}

// Goal: a device that fails keeps a snapshot pending and is reported, and nothing wrong is shown; the pool is whole when it
// is opened again, without the snapshot. Method: all writes fail from the snapshot on; who needs a frozen file gets EIO.
#[test]
fn a_device_that_fails() {
    let (f, sub) = world(16 * MIB);
    let (device, options, fs) = on_faulty(&f);
    let data = pattern(1, 3 * MIB as usize);
    let ino = fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    fs.write(Caller::ROOT, ino, 0, &data).unwrap();
    let snap = fs.snapshot(sub, ROOT, b"snap", true, false).unwrap();
    let rule = FaultRule::new(Operation::Write, Trigger::From(1), Fault::Error);
    device.set_rules(vec![rule]);
    refused(fs.lookup(snap, b"file"), 5);
    refused(fs.write(Caller::ROOT, ino, 0, b"x"), 5);
    refused(fs.sync(), 5);
    assert_eq!(fs.read(ino, 0, data.len()).unwrap(), data);
    assert!(fs.close().is_err());
    drop(fs);
    device.set_rules(Vec::new());
    let fs = Filesystem::open(vec![device], options).unwrap().0;
    refused(fs.lookup(ROOT, b"snap"), 2);
    fs.snapshot(sub, ROOT, b"snap", true, true).unwrap();
    assert!(fs.check(true).unwrap().problems.is_empty());
}

// Goal: who asks for a snapshot that is durable at once hears that it is there where what it waits for cannot be written, and a sync makes it
// durable when that can. Method: a dirty file whose extents are damaged, and mended; a crash.
#[test]
fn one_that_is_not_durable_yet_is_there() {
    use super::reaping::{mend, spoil};
    let (mut f, sub) = world(64 * MIB);
    let ino = file(&f, sub, b"file", &pattern(1, 100_000));
    f.fs.sync().unwrap();
    f.write(ino, 4096, b"dirty");
    let data = f.fs.core().state(ino).inner.read().record.data.family;
    let entries = spoil(&f.fs, varve_engine::TreeId::EXTENTS, data);
    match f.fs.snapshot(sub, ROOT, b"snap", true, true) {
        Err(FsError::NotDurable(why)) => {
            assert!(why.errno() == 5 && !matches!(*why, FsError::Engine(EngineError::Stopped(_))), "{why}");
        }
        came => panic!("{came:?}"),
    }
    let root = f.fs.lookup(ROOT, b"snap").unwrap().ino;
    assert!(is_pending(&f, root));
    refused(f.fs.snapshot(sub, ROOT, b"snap", true, true), 17);
    mend(&f.fs, varve_engine::TreeId::EXTENTS, &entries);
    f.fs.sync().unwrap();
    f.kill();
    let mut expected = pattern(1, 100_000);
    expected[4096..4101].copy_from_slice(b"dirty");
    assert!(content(&f, root, b"file") == expected);
    f.check();
}

// Goal: a file that cannot be logged is tried once by who completes snapshots, however many wait for it, and keeps nothing else from being
// logged. Method: fifty that wait for a file whose extents are damaged, and later ones for others, too; one of another subvolume; one is
// deleted; tries are counted. Then it is mended.
#[test]
fn what_cannot_be_logged_is_tried_once() {
    use super::reaping::{mend, spoil};
    let (mut f, sub) = world(64 * MIB);
    let ino = file(&f, sub, b"file", &pattern(1, 100_000));
    f.fs.sync().unwrap();
    f.write(ino, 4096, b"dirty");
    let data = f.fs.core().state(ino).inner.read().record.data.family;
    let entries = spoil(&f.fs, varve_engine::TreeId::EXTENTS, data);
    let name = |n: u64| format!("s{n}").into_bytes();
    let mut taken: Vec<InodeId> = (0..30).map(|n| snapshot(&f, sub, &name(n), true)).collect();
    file(&f, sub, b"beside", &pattern(2, 30_000));
    taken.extend((30..50).map(|n| snapshot(&f, sub, &name(n), true)));
    let other = f.fs.create_subvolume(Caller::ROOT, ROOT, b"other", 0o755).unwrap().ino;
    file(&f, other, b"file", &pattern(3, 30_000));
    let of_other = snapshot(&f, other, b"of other", true);
    let core = f.fs.core();
    let tries = || core.next_job.load(Ordering::Relaxed);
    let before = tries();
    assert_eq!(core.complete(|_| true).unwrap_err().errno(), 5);
    // Two of what fails, one of each of the others; 103 when each snapshot tried it.
    assert!(tries() - before <= 4, "{} tries", tries() - before);
    assert!(taken.iter().all(|root| is_pending(&f, *root)), "they wait");
    assert!(!is_pending(&f, of_other), "this does not wait for it");
    assert_eq!(core.dirty.all().len(), 1, "the others are logged");
    let before = tries();
    f.fs.delete_subvolume(ROOT, &name(40)).unwrap();
    assert!(tries() - before <= 4, "{} tries to delete one", tries() - before);
    assert_eq!(core.frozen.matching(|_| true).len(), 49);
    mend(&f.fs, varve_engine::TreeId::EXTENTS, &entries);
    f.fs.sync().unwrap();
    f.kill();
    for n in (0..50).filter(|n| *n != 40) {
        let root = f.fs.lookup(ROOT, &name(n)).unwrap().ino;
        assert!(content(&f, root, b"file")[4096..4101] == *b"dirty");
        assert_eq!(f.fs.lookup(root, b"beside").is_ok(), n >= 30);
    }
    f.check();
}

// Goal: who asks for a snapshot that is durable at once hears that it is there where what makes it so has stopped the pool, and that; whoever
// comes later gets none. Method: writes fail while it is made so, of a file's data or of the log; the pool opened again.
#[test]
fn one_that_stops_the_pool_is_there() {
    for len in [3 * MIB as usize, 3000] {
        let (f, sub) = world(16 * MIB);
        let (device, options, fs) = on_faulty(&f);
        let ino = fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
        fs.write(Caller::ROOT, ino, 0, &pattern(1, len)).unwrap();
        device.set_rules(vec![FaultRule::new(Operation::Write, Trigger::From(1), Fault::Error)]);
        match fs.snapshot(sub, ROOT, b"snap", true, true) {
            Err(FsError::NotDurable(why)) => {
                assert!(matches!(*why, FsError::Engine(EngineError::Stopped(_))), "{why}");
            }
            came => panic!("{came:?}"),
        }
        device.set_rules(Vec::new());
        fs.lookup(ROOT, b"snap").unwrap();
        refused(fs.snapshot(sub, ROOT, b"snap", true, true), 17);
        refused(fs.sync(), 5);
        refused(fs.snapshot(sub, ROOT, b"none", true, true), 5);
        refused(fs.lookup(ROOT, b"none"), 2);
        drop(fs);
        let fs = Filesystem::open(vec![device], options).unwrap().0;
        refused(fs.lookup(ROOT, b"snap"), 2);
        fs.snapshot(sub, ROOT, b"snap", true, true).unwrap();
        assert!(fs.check(true).unwrap().problems.is_empty());
    }
}

// Goal: a pool that is as full as it gets completes its snapshots and is deleted from. Method: fill it with dirty data,
// take the snapshot with the last space, complete it by each way of looking.
#[test]
fn on_a_full_pool() {
    let f = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 128 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    f.fs.fsync(file(&f, sub, b"room", &pattern(5, 100_000))).unwrap();
    let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    let chunk = pattern(1, MIB as usize);
    let mut len = 0;
    while let Ok(written) = f.fs.write(Caller::ROOT, ino, len, &chunk) {
        len += written as u64;
    }
    assert!(len > 30 * MIB, "{len} bytes");
    // Room for the snapshot's record.
    f.fs.unlink(sub, b"room").unwrap();
    f.fs.maintain().unwrap();
    f.write(ino, 0, b"dirty");
    let snap = snapshot(&f, sub, b"snap", true);
    assert!(is_pending(&f, snap));
    f.fs.unlink(sub, b"file").unwrap();
    let copy = f.fs.lookup(snap, b"file").unwrap();
    assert_eq!(copy.size, len);
    assert_eq!(f.fs.read(copy.ino, 0, 5).unwrap(), b"dirty");
    f.fs.sync().unwrap();
    assert!(!is_pending(&f, snap));
    f.check();
    f.fs.delete_subvolume(ROOT, b"snap").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.fs.fsync(file(&f, sub, b"again", &pattern(6, 30 * MIB as usize))).unwrap();
    f.check();
}

// Goal: who has begun to complete a snapshot that is then refused does not declare the next one complete, which gets its slot.
// Method: the set of a refused one, kept from before the next is taken, which waits for another file too; completed by it,
// and then by its own.
#[test]
fn a_refused_snapshot_completes_no_other() {
    let (mut f, sub) = world(64 * MIB);
    f.fs.sync().unwrap();
    f.fs.fsync(file(&f, sub, b"before", &pattern(1, 5000))).unwrap();
    file(&f, sub, b"first", &pattern(2, 300_000));
    let core = f.fs.core();
    let (slot, source) = (core.subvolumes.next_slot(|_| true).unwrap(), Slot::of(sub));
    let subvolume = core.subvolumes.get(source).unwrap();
    let (_, holder, alone) = core.held(&subvolume, &mut subvolume.gate.write()).unwrap();
    assert_eq!(core.freeze(source, slot, holder, alone), Freeze::Pending);
    let refused = core.frozen.matching(|set| set.snapshot == slot);
    core.frozen.remove(slot);
    file(&f, sub, b"second", &pattern(3, 300_000));
    let snap = snapshot(&f, sub, b"snap", true);
    assert_eq!(Slot::of(snap), slot);
    let core = f.fs.core();
    refused.iter().for_each(|set| core.complete_set(set, &mut Failed::default()).unwrap());
    assert!(is_pending(&f, snap));
    core.complete(|set| set.snapshot == slot).unwrap();
    assert!(!is_pending(&f, snap));
    f.fs.sync().unwrap();
    f.kill();
    let snap = f.fs.lookup(ROOT, b"snap").unwrap().ino;
    assert!(content(&f, snap, b"second") == pattern(3, 300_000));
    f.check();
}

// Goal: what a later snapshot waits for concerns nobody who looks at an earlier one. Method: a file in a snapshot that is complete is
// read for the first time while the live file is dirty and a second snapshot waits for it; the second then shows what it should.
#[test]
fn an_earlier_snapshot_waits_for_nothing() {
    let (mut f, sub) = world(64 * MIB);
    file(&f, sub, b"file", &pattern(1, 9000));
    f.fs.sync().unwrap();
    let before = snapshot(&f, sub, b"before", true);
    f.fs.sync().unwrap();
    assert!(!is_pending(&f, before));
    f.reopen();
    let live = f.fs.lookup(sub, b"file").unwrap().ino;
    f.write(live, 0, &pattern(2, 9000));
    let after = snapshot(&f, sub, b"after", true);
    let dirty = f.fs.core().dirty.bytes();
    assert!(dirty > 0 && is_pending(&f, after));
    assert_eq!(content(&f, before, b"file"), pattern(1, 9000));
    assert_eq!(f.fs.core().dirty.bytes(), dirty, "what is dirty is left alone");
    assert!(is_pending(&f, after));
    assert_eq!(content(&f, after, b"file"), pattern(2, 9000));
    f.write(live, 0, &pattern(3, 9000));
    for (root, n) in [(before, 1), (after, 2), (sub, 3)] {
        assert_eq!(content(&f, root, b"file"), pattern(n, 9000));
    }
    f.fs.sync().unwrap();
    f.check();
}

// Goal: a file that cannot be written back keeps no snapshot from being deleted, neither those that wait for it nor others; its source it
// does. What a snapshot waits for that goes is the source's alone from then on. Method: two old snapshots and two that wait for such a
// file; one of each goes, and when it can be written again another; what is left shows what it should at each point, and after a crash.
#[test]
fn what_cannot_be_written_keeps_no_snapshot() {
    use super::reaping::{mend, spoil};
    let (mut f, sub) = world(64 * MIB);
    let ino = file(&f, sub, b"file", &pattern(1, 100_000));
    f.fs.sync().unwrap();
    for name in [b"old1", b"old2"] {
        snapshot(&f, sub, name, true);
    }
    // Its own version of the record, so that the damage is met only when it is written back.
    f.write(ino, 0, b"own");
    file(&f, sub, b"other", b"other");
    f.fs.sync().unwrap();
    f.write(ino, 4096, b"dirty");
    let mut expected = pattern(1, 100_000);
    expected[..3].copy_from_slice(b"own");
    expected[4096..4101].copy_from_slice(b"dirty");
    let waiting = [b"new1", b"new2"].map(|name| snapshot(&f, sub, name, true));
    assert!(waiting.iter().all(|root| is_pending(&f, *root)));
    let data = f.fs.core().state(ino).inner.read().record.data.family;
    let entries = spoil(&f.fs, varve_engine::TreeId::EXTENTS, data);
    let dirty = f.fs.core().dirty.bytes();
    f.fs.delete_subvolume(ROOT, b"old1").unwrap();
    f.fs.delete_subvolume(ROOT, b"new1").unwrap();
    f.fs.delete_subvolume(ROOT, b"sub").expect_err("the data of the other would go with it");
    assert!(f.fs.core().dirty.bytes() == dirty && is_pending(&f, waiting[1]));
    mend(&f.fs, varve_engine::TreeId::EXTENTS, &entries);
    f.write(ino, 8192, b"later");
    f.fs.sync().unwrap();
    assert!(!is_pending(&f, waiting[1]));
    f.fs.maintain().unwrap();
    let shown = |f: &Fixture| {
        assert!(content(f, waiting[1], b"file") == expected, "what was dirty");
        let old = f.fs.lookup(ROOT, b"old2").unwrap().ino;
        assert!(content(f, old, b"file") == pattern(1, 100_000));
    };
    shown(&f);
    f.check();
    f.kill();
    shown(&f);
    // The last that waits: what it waits for is logged for the source alone.
    f.write(ino, 12_288, b"last");
    let last = snapshot(&f, sub, b"last", false);
    assert!(is_pending(&f, last));
    f.fs.create(Caller::ROOT, sub, b"a version of its own", 0o644).unwrap();
    f.fs.delete_subvolume(ROOT, b"last").unwrap();
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.kill();
    expected[8192..8197].copy_from_slice(b"later");
    expected[12_288..12_292].copy_from_slice(b"last");
    assert!(content(&f, sub, b"file") == expected);
    f.check();
}

// Goal: a file in which something is to be made is no directory, frozen or not. Method: one that a pending snapshot waits for.
#[test]
fn a_frozen_file_is_no_directory() {
    for make_snapshot in [false, true] {
        let (f, sub) = world(64 * MIB);
        let ino = file(&f, sub, b"file", b"dirty");
        let root = snapshot(&f, sub, b"snap", true);
        assert!(is_pending(&f, root));
        if make_snapshot {
            refused(f.fs.snapshot(sub, ino, b"y", true, false), 20);
        } else {
            refused(f.fs.create_subvolume(Caller::ROOT, ino, b"x", 0o755), 20);
        }
    }
}

// Goal: a pending snapshot is changed at a version of its own, as its source is, and what waits is logged at the one that both held, which
// nobody holds any more. Method: a file is made in each of them; then a sync, or a crash, which leaves no snapshot.
#[test]
fn a_pending_snapshot_has_changes_of_its_own() {
    for crash in [false, true] {
        let (mut f, sub) = world(64 * MIB);
        let data = pattern(1, 100_000);
        file(&f, sub, b"file", &data);
        let taken = snapshot(&f, sub, b"snapshot", false);
        let version =
            |f: &Fixture, root| f.fs.core().subvolumes.get(Slot::of(root)).unwrap().holder().unwrap().version;
        let both = version(&f, sub);
        assert_eq!(version(&f, taken), both);
        f.fs.create(Caller::ROOT, taken, b"here", 0o644).unwrap();
        assert!(is_pending(&f, taken) && version(&f, taken) != both && version(&f, sub) == both);
        f.fs.create(Caller::ROOT, sub, b"there", 0o644).unwrap();
        assert!(is_pending(&f, taken) && version(&f, sub) != both);
        if crash {
            f.fs.commit(f.fs.position()).unwrap();
            f.kill();
            refused(f.fs.lookup(ROOT, b"snapshot"), 2);
            assert_eq!(f.list(sub), [b"file".to_vec(), b"there".to_vec()]);
        } else {
            f.fs.sync().unwrap();
            f.kill();
            assert_eq!(f.list(taken), [b"file".to_vec(), b"here".to_vec()]);
            assert_eq!(f.list(sub), [b"file".to_vec(), b"there".to_vec()]);
            assert!(content(&f, taken, b"file") == data && content(&f, sub, b"file") == data);
        }
        f.fs.maintain().unwrap();
        f.check();
    }
}
