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

// Goal: while a file's data waits for a flush that so much of it calls for, others look at that file, log their own, take
// snapshots and make files. Method: a pool in which something is shared, on a device whose flush does not end until all that is done.
#[test]
fn nobody_waits_for_a_flush_of_the_data_of_another() {
    let f = Fixture::new(256 * MIB);
    let [a, b] = [f.create(b"a"), f.create(b"b")];
    f.write(b, 0, &pattern(1, 100_000));
    f.fs.clone_file(Caller::ROOT, b, ROOT, b"clone").unwrap();
    f.fs.close().unwrap();
    let gate = Arc::new(Gate {
        inner: f.device.snapshot(),
        shut: AtomicBool::new(false),
        arrived: Mutex::new(0),
        changed: Condvar::new(),
    });
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 160 * MIB,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![gate.clone()], options).unwrap().0;
    let data = pattern(2, 4 << 20);
    for n in 0..27 {
        fs.write(Caller::ROOT, a, n * (4 << 20), &data).unwrap();
    }
    gate.shut.store(true, Ordering::SeqCst);
    let before = *gate.arrived.lock();
    std::thread::scope(|scope| {
        let logging = scope.spawn(|| fs.flush_file(a));
        let mut arrived = gate.arrived.lock();
        while *arrived == before {
            assert!(!gate.changed.wait_for(&mut arrived, LONG).timed_out(), "so much data calls for a flush");
        }
        drop(arrived);
        let (done, all) = mpsc::channel();
        let fs = &fs;
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
        in_time.expect("all that is done while the flush goes on");
        logging.join().unwrap().unwrap();
    });
    fs.close().unwrap();
}
