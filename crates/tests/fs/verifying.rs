//! A check that reads all data, of pools with two copies of it, and beside whoever uses the pool.

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Duration;

use varve_device::Operation;
use varve_engine::{CheckStage, ProblemKind as Kind};

use super::*;
use varve_fs::internals::core::Core;

const BLOCK: usize = 4096;

fn options() -> OpenOptions {
    OpenOptions {
        // No node of a tree stays in memory.
        store: StoreOptions { background: false, cache_bytes: 1, ..StoreOptions::default() },
        dirty_bytes_max: 64 * MIB,
        clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
        on_data_logged: None,
    }
}

/// A closed pool with two copies of everything and one file of `content`.
fn twice(content: &[u8]) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let format = FormatOptions { data: Profile::Dup, ..FORMAT };
    Filesystem::format(&devices, &format, Caller::ROOT, &*options().clock).unwrap();
    let fs = Filesystem::open(devices, options()).unwrap().0;
    let ino = fs.create(Caller::ROOT, ROOT, b"file", 0o644).unwrap().ino;
    fs.write(Caller::ROOT, ino, 0, content).unwrap();
    fs.close().unwrap();
    device.snapshot()
}

/// Where the device has this block.
fn places(device: &MemoryDevice, block: &[u8]) -> Vec<u64> {
    let mut all = AlignedBuf::new(device.size_bytes() as usize);
    device.read_at(0, &mut all).unwrap();
    let found = all.chunks_exact(BLOCK).enumerate().filter(|(_, one)| *one == block);
    found.map(|(i, _)| (i * BLOCK) as u64).collect()
}

// Goal: a copy of data that is bad is named while the other is good, whichever it is, and a check changes nothing, in a pool that is open
// for writing too. Method: four blocks, two of them side by side, are spoilt in the first copy, in the second, in both.
#[test]
fn a_bad_copy_of_data_is_named_and_left() {
    let content = pattern(1, 64 * BLOCK);
    let blocks = [3, 10, 11, 40].map(|i| &content[i * BLOCK..(i + 1) * BLOCK]);
    for (copies, kind) in
        [(&[0][..], Kind::DataCopyDamaged), (&[1], Kind::DataCopyDamaged), (&[0, 1], Kind::DataUnreadable)]
    {
        let device = Arc::new(twice(&content));
        for block in blocks {
            let at = places(&device, block);
            assert_eq!(at.len(), 2, "two copies");
            copies.iter().for_each(|copy| device.write_at(at[*copy], &AlignedBuf::new(BLOCK)).unwrap());
        }
        let fs = Filesystem::open(vec![device.clone()], options()).unwrap().0;
        let ino = fs.lookup(ROOT, b"file").unwrap().ino;
        for round in 0..2 {
            let report = fs.check(true).unwrap();
            let found: Vec<_> = report.problems.iter().map(|p| (p.kind, p.inode, p.bytes.unwrap())).collect();
            let bytes = |first: usize, end: usize| ((first * BLOCK) as u64, (end * BLOCK) as u64);
            let expected =
                [bytes(3, 4), bytes(10, 12), bytes(40, 41)].map(|range| (kind, Some(ino.0), range));
            assert_eq!(found, expected, "round {round}, copies {copies:?}");
            assert_eq!(report.data_blocks, 64);
            for problem in &report.problems {
                let (text, other) = (problem.text.as_str(), kind == Kind::DataCopyDamaged);
                assert_eq!(
                    (text.contains("in every copy"), text.contains("another is good")),
                    (!other, other),
                    "{text}"
                );
            }
        }
        assert_eq!(fs.core().store.stats().repaired_blocks_count, 0);
        // Who reads it has what was written, and mends it.
        let read = fs.read(ino, 0, content.len());
        match copies {
            [0] => {
                assert!(read.unwrap() == content);
                assert!(fs.check(true).unwrap().problems.is_empty());
            }
            [1] => assert!(read.unwrap() == content),
            _ => refused(read, 5),
        }
    }
}

/// Calls somebody at each read, in the thread that reads.
struct Noticed {
    inner: MemoryDevice,
    by: Mutex<Box<dyn FnMut() + Send>>,
}

impl Between for Noticed {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        if requests.iter().any(|request| request.operation() == Operation::Read) {
            // What he does may read, too.
            if let Some(mut by) = self.by.try_lock() {
                by();
            }
        }
        self.inner.run(requests)
    }
}

fn noticed(inner: MemoryDevice) -> (Arc<Through<Noticed>>, Arc<Filesystem>) {
    let device = Arc::new(Through(Noticed { inner, by: Mutex::new(Box::new(|| ())) }));
    let fs = Arc::new(Filesystem::open(vec![device.clone()], options()).unwrap().0);
    (device, fs)
}

fn stage(core: &Core) -> CheckStage {
    core.store.progress().now().0
}

/// Deletes the file when the check begins to look, as the background might; hears of the first read of each stage.
fn deleting(fs: &Arc<Filesystem>, heard: impl Fn(CheckStage) + Send + 'static) -> Box<dyn FnMut() + Send> {
    let (user, mut seen) = (fs.clone(), Vec::new());
    Box::new(move || {
        let now = stage(user.core());
        if seen.contains(&now) {
            return;
        }
        seen.push(now);
        if now == CheckStage::Entries {
            user.unlink(ROOT, b"file").unwrap();
            user.sync().unwrap();
            user.maintain().unwrap();
            user.sync().unwrap();
        }
        heard(now);
    })
}

// Goal: what a check has found to be a file's is nobody else's before it has been read. Method: a file is deleted when the check has
// begun to look; what may be handed out is counted before, when data is read, and afterwards.
#[test]
fn what_is_to_be_read_is_not_used_for_something_else() {
    let (device, fs) = noticed(twice(&pattern(1, 1 << 20)));
    let unused = |fs: &Filesystem| fs.trim(0..u64::MAX, 0, &mut |_| true).unwrap().discarded_bytes;
    let (before, seen) = (unused(&fs), Arc::new(Mutex::new(Vec::new())));
    let (user, saw) = (fs.clone(), seen.clone());
    *device.by.lock() = deleting(&fs, move |now| {
        saw.lock().push(now);
        if now == CheckStage::Data {
            user.create(Caller::ROOT, ROOT, b"other", 0o644).unwrap();
            user.sync().unwrap();
            assert!(unused(&user) < before + (1 << 19), "it may be handed out");
        }
    });
    let report = fs.core().check(true).unwrap();
    *device.by.lock() = Box::new(|| ());
    assert!(seen.lock().starts_with(&[CheckStage::Entries]) && seen.lock().ends_with(&[CheckStage::Data]));
    assert!(!report.problems.iter().any(|p| p.kind == Kind::DataUnreadable), "{:?}", report.problems);
    assert!(unused(&fs) >= before + (1 << 20), "it is given back in the end");
}

// Goal: what changes while a check looks is not told as damage, where it ends. Method: a deletion in the middle of a check; one look by
// itself finds something wrong there, so that the check has to look again.
#[test]
fn what_changes_meanwhile_is_no_damage() {
    for again in [false, true] {
        let (device, fs) = noticed(twice(&pattern(1, 1 << 20)));
        *device.by.lock() = deleting(&fs, |_| ());
        let report = if again { fs.check(true) } else { fs.core().check(true) };
        *device.by.lock() = Box::new(|| ());
        assert_eq!(report.unwrap().problems.is_empty(), again);
    }
}

// Goal: of data that is bad all is told or counted, also where the check has to look again. Method: more pieces of a file are spoilt than are
// listed, and another is deleted in the middle of a check.
#[test]
fn what_is_not_listed_is_counted_when_it_looks_again() {
    const BAD: usize = 1500;
    let device = Arc::new(twice(&pattern(1, 1 << 20)));
    let fs = Filesystem::open(vec![device.clone()], options()).unwrap().0;
    let ino = fs.create(Caller::ROOT, ROOT, b"bad", 0o644).unwrap().ino;
    let content = pattern(2, 2 * BAD * BLOCK);
    fs.write(Caller::ROOT, ino, 0, &content).unwrap();
    fs.close().unwrap();
    let bad: HashSet<&[u8]> = content.chunks_exact(BLOCK).step_by(2).collect();
    let mut all = AlignedBuf::new(device.size_bytes() as usize);
    device.read_at(0, &mut all).unwrap();
    for (i, _) in all.chunks_exact(BLOCK).enumerate().filter(|(_, block)| bad.contains(block)) {
        device.write_at((i * BLOCK) as u64, &AlignedBuf::new(BLOCK)).unwrap();
    }
    let (device, fs) = noticed(device.snapshot());
    *device.by.lock() = deleting(&fs, |_| ());
    let report = fs.check(true).unwrap();
    *device.by.lock() = Box::new(|| ());
    assert!(report.problems.iter().all(|p| p.kind == Kind::DataUnreadable), "{}", report.describe());
    assert_eq!((report.problems.len(), report.omitted), (1000, BAD as u64 - 1000));
}

// Goal: nobody waits while a check reads data: not who writes a checkpoint, and not who closes the pool, which ends it. Method: the check is
// held at its first block of data until both have been done.
#[test]
fn nobody_waits_for_data_that_is_checked() {
    let (device, fs) = noticed(twice(&pattern(1, 4 << 20)));
    let (reached, at) = mpsc::channel();
    let (told, tell) = mpsc::channel::<()>();
    let user = fs.clone();
    *device.by.lock() = Box::new(move || {
        if stage(user.core()) == CheckStage::Data && reached.send(()).is_ok() {
            // Whoever waits for this to go on does not go on himself.
            tell.recv_timeout(Duration::from_secs(20)).ok();
        }
    });
    std::thread::scope(|scope| {
        let checking = scope.spawn(|| fs.check(true));
        at.recv().expect("data is read");
        fs.create(Caller::ROOT, ROOT, b"other", 0o644).unwrap();
        let (done, ends) = mpsc::channel();
        let fs = &fs;
        let closing = scope.spawn(move || {
            fs.checkpoint().unwrap();
            fs.close().unwrap();
            done.send(()).unwrap();
        });
        let in_time = ends.recv_timeout(Duration::from_secs(10)).is_ok();
        drop(at);
        told.send(()).ok();
        closing.join().unwrap();
        let ended = checking.join().unwrap();
        assert!(in_time, "the check is in the way");
        assert!(ended.is_err(), "it ends when the pool is closed");
    });
}
