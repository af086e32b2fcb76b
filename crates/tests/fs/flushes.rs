//! Nobody else waits for the flush that much data of one file calls for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Condvar;

use super::*;

/// Longer than anything here takes; whoever has not ended by then hangs.
const LONG: Duration = Duration::from_secs(120);

/// A device whose flushes wait while its gate is shut.
struct Gate {
    inner: MemoryDevice,
    shut: AtomicBool,
    arrived: Mutex<usize>,
    changed: Condvar,
}

impl Device for Gate {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        self.inner.run(requests)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        let mut arrived = self.arrived.lock();
        *arrived += 1;
        self.changed.notify_all();
        while self.shut.load(Ordering::SeqCst) {
            self.changed.wait(&mut arrived);
        }
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.inner.discard(offset, len_bytes)
    }
    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}

// Goal: while data waits for a flush that so much of it calls for, others look at a file it is of, log their own, take snapshots and
// make files. Method: a pool in which something is shared, on a device whose flush does not end until all that is done; one large
// file, and many that are each less than what counts as much.
#[test]
fn nobody_waits_for_a_flush_of_the_data_of_another() {
    nobody_waits(1, 27 * (4 << 20));
    nobody_waits(240, 900 << 10);
}

fn nobody_waits(files: usize, bytes: usize) {
    let f = Fixture::new(512 * MIB);
    let b = f.create(b"b");
    f.write(b, 0, &pattern(1, 100_000));
    f.fs.clone_file(Caller::ROOT, b, ROOT, b"clone").unwrap();
    let made: Vec<_> = (0..files).map(|n| f.create(format!("a{n}").as_bytes())).collect();
    f.fs.close().unwrap();
    let gate = Arc::new(Gate {
        inner: f.device.snapshot(),
        shut: AtomicBool::new(false),
        arrived: Mutex::new(0),
        changed: Condvar::new(),
    });
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 400 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![gate.clone()], options).unwrap().0;
    let data = pattern(2, bytes.min(4 << 20));
    for a in &made {
        for at in (0..bytes).step_by(data.len()) {
            fs.write(Caller::ROOT, *a, at as u64, &data).unwrap();
        }
    }
    gate.shut.store(true, Ordering::SeqCst);
    let before = *gate.arrived.lock();
    std::thread::scope(|scope| {
        let logging = scope.spawn(|| fs.flush_all());
        let mut arrived = gate.arrived.lock();
        while *arrived == before {
            assert!(!gate.changed.wait_for(&mut arrived, LONG).timed_out(), "so much data calls for a flush");
        }
        drop(arrived);
        let (done, all) = mpsc::channel();
        let (fs, a) = (&fs, made[0]);
        scope.spawn(move || {
            fs.getattr(a).unwrap();
            fs.write(Caller::ROOT, b, 0, &pattern(3, 5000)).unwrap();
            fs.flush_file(b).unwrap();
            fs.snapshot(ROOT, ROOT, b"snapshot", true, false).unwrap();
            fs.create(Caller::ROOT, ROOT, b"new", 0o644).unwrap();
            done.send(()).unwrap();
        });
        let in_time = all.recv_timeout(LONG / 4);
        gate.shut.store(false, Ordering::SeqCst);
        gate.changed.notify_all();
        in_time.unwrap_or_else(|_| panic!("{files} files: others wait for the flush, too"));
        logging.join().unwrap().unwrap();
    });
    fs.close().unwrap();
}
