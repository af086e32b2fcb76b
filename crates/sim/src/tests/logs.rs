//! The log of a real device: what comes back is what happened, however the log ends.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_device::{
    Device, DeviceError, Discarded, FileDevice, MemoryDevice, OpenMode, Operation, Request, StatsSnapshot,
};

use super::{random_step, stamped};
use crate::{
    CrashCutter, CrashPoint, CrashPolicy, Event, Fault, FaultRule, FaultyDevice, Image, LogReader,
    LoggingDevice, PAGE_BYTES, RecordingDevice, Rng, Trigger, read_log,
};

const SIZE_BYTES: u64 = 1 << 20;

// Goal: a recording read from a log gives the same crash images as one made directly. Method: log a recording device,
// compare the two recordings at every point.
#[test]
fn a_log_is_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..5 {
        let path = dir.path().join(format!("log-{seed}"));
        let direct = Arc::new(RecordingDevice::new(SIZE_BYTES));
        let logging = LoggingDevice::create(Arc::clone(&direct), &path).unwrap();
        let mut rng = Rng::new(seed);
        let mut write = 0;
        for _ in 0..60 {
            random_step(&logging, &mut rng, &mut write);
        }
        logging.discard(8192, 16384).unwrap();
        let recording = read_log(&path, None).unwrap();
        assert_eq!(recording.last_point(), direct.mark());
        let mut cutter = recording.cutter();
        for point in 0..=recording.last_point().0 {
            recording.advance(&mut cutter, CrashPoint(point));
            let policy = CrashPolicy::Seeded;
            let ours = cutter.image(&mut Rng::new(point as u64), policy);
            let theirs = direct.crash_image(CrashPoint(point), &mut Rng::new(point as u64), policy);
            assert_eq!(ours.first_difference(&theirs), None, "seed {seed} point {point}");
        }
    }
}

// Goal: what an observer saw acknowledged is in every image cut at the log length noted then, with a real file and
// threads. Method: each thread overwrites its page, flushes, notes the length; streamed cutting at each note.
#[test]
fn acknowledged_is_durable_at_the_noted_length() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, path) = (dir.path().join("pool"), dir.path().join("log"));
    let file = FileDevice::open(&pool, OpenMode::Create { size_bytes: SIZE_BYTES }).unwrap();
    let device = Arc::new(LoggingDevice::create(file, &path).unwrap());
    let mut notes: Vec<(u64, u64, u64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (device, path) = (Arc::clone(&device), &path);
                scope.spawn(move || {
                    (1..=30u64)
                        .map(|round| {
                            device.write_at(thread * PAGE_BYTES as u64, &stamped(round, 1)).unwrap();
                            device.flush().unwrap();
                            (fs::metadata(path).unwrap().len(), thread, round)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    notes.sort_unstable();
    let mut reader = LogReader::open(&path).unwrap();
    let mut cutter = CrashCutter::new(Image::new(reader.size_bytes()));
    for (offset, thread, round) in notes {
        reader.feed_to(&mut cutter, offset).unwrap();
        let stamp = u64::from_le_bytes(cutter.durable().page(thread)[..8].try_into().unwrap()) >> 24;
        assert!(stamp >= round, "at {offset}, thread {thread}: {stamp} after round {round} was flushed");
    }
    // The end of the log is the file itself.
    while let Some(event) = reader.next_event().unwrap() {
        cutter.feed(&event);
    }
    let end = cutter.image(&mut Rng::new(0), CrashPolicy::KeepAll);
    assert_eq!(end.first_difference(&Image::load(&pool).unwrap()), None);
}

// Goal: a log cut short anywhere is a shorter recording; a damaged one gives an error or some recording, never a
// panic. Method: every length near record borders, then random damage by seed.
#[test]
fn broken_logs_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let logging = LoggingDevice::create(RecordingDevice::new(SIZE_BYTES), &path).unwrap();
    logging.write_at(4096, &stamped(1, 1)).unwrap();
    logging.flush().unwrap();
    logging.write_at(8192, &stamped(2, 2)).unwrap();
    assert!(
        LoggingDevice::create(RecordingDevice::new(SIZE_BYTES), &path).is_err(),
        "an old log was overwritten"
    );
    let bytes = fs::read(&path).unwrap();
    let cut_path = dir.path().join("cut");
    let mut last_events = 0;
    for len in 0..=bytes.len() {
        // Inside the data of a write every length is alike.
        if len % 97 != 0 && len > 200 && bytes.len() - len > 200 {
            continue;
        }
        fs::write(&cut_path, &bytes[..len]).unwrap();
        match read_log(&cut_path, None) {
            Ok(recording) => {
                assert!(recording.events().len() >= last_events);
                last_events = recording.events().len();
            }
            Err(error) => assert!(len < 24, "length {len}: {error}"),
        }
    }
    assert_eq!(last_events, 6);
    let mut refused_count = 0;
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut damaged = bytes.clone();
        for _ in 0..1 + rng.below(4) {
            // Mostly in the headers: the data may be anything.
            let at = if rng.chance(0.5) { rng.index(120) } else { rng.index(damaged.len()) };
            damaged[at] = rng.next_u64() as u8;
        }
        fs::write(&cut_path, &damaged).unwrap();
        match read_log(&cut_path, (seed % 2 == 0).then(|| Image::new(SIZE_BYTES))) {
            Ok(recording) => {
                let mut cutter = recording.cutter();
                recording.advance(&mut cutter, recording.last_point());
                let _ = cutter.image(&mut rng, CrashPolicy::Seeded);
            }
            Err(_) => refused_count += 1,
        }
    }
    assert!(refused_count > 200, "{refused_count}");
}

/// The kinds of events in a log, a letter each.
fn kinds(path: &PathBuf) -> String {
    let recording = read_log(path, None).unwrap();
    let kind = |event: &Event| match event {
        Event::Write(_) => 'w',
        Event::GroupDone { .. } => 'd',
        Event::FlushBegin { .. } => 'b',
        Event::FlushDone { .. } => 'f',
        Event::FlushFailed { .. } => 'x',
    };
    recording.events().iter().map(kind).collect()
}

/// Notes what the log says at the moment a call reaches the device.
struct Witness {
    inner: MemoryDevice,
    log_path: PathBuf,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Device for Witness {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn name(&self) -> String {
        "witness".to_owned()
    }

    fn run(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        self.seen.lock().push(kinds(&self.log_path));
        self.inner.run(requests)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.seen.lock().push(kinds(&self.log_path));
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<Discarded, DeviceError> {
        self.seen.lock().push(kinds(&self.log_path));
        self.inner.discard(offset, len_bytes)
    }

    fn stats(&self) -> StatsSnapshot {
        self.inner.stats()
    }
}

// Goal: begins are logged before the device hears of it, ends only after it has answered. Method: a device that reads
// the log whenever it is called.
#[test]
fn begins_come_before_and_ends_after() {
    let dir = tempfile::tempdir().unwrap();
    let log_path = dir.path().join("log");
    let seen = Arc::default();
    let inner =
        Witness { inner: MemoryDevice::new(SIZE_BYTES), log_path: log_path.clone(), seen: Arc::clone(&seen) };
    let logging = LoggingDevice::create(inner, &log_path).unwrap();
    logging.write_at(0, &stamped(1, 1)).unwrap();
    logging.flush().unwrap();
    logging.discard(0, 4096).unwrap();
    assert_eq!(*seen.lock(), ["w", "wdb", "wdbfw"]);
    assert_eq!(kinds(&log_path), "wdbfwd");
}

// Goal: what failed never counts as completed or flushed. Method: a faulty device beneath the log.
#[test]
fn failures_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log_path = dir.path().join("log");
    let rule = |operation| FaultRule::new(operation, Trigger::Nth(1), Fault::Error);
    let rules = vec![rule(Operation::Write), rule(Operation::Flush), rule(Operation::Discard)];
    let faulty = FaultyDevice::new(MemoryDevice::new(SIZE_BYTES), 0, rules);
    let logging = LoggingDevice::create(faulty, &log_path).unwrap();
    let page = stamped(1, 1);
    let group = &mut [Request::Write { offset: 0, buf: &page }, Request::Write { offset: 4096, buf: &page }];
    assert_eq!(logging.run(group).iter().filter(|result| result.is_err()).count(), 1);
    assert!(logging.flush().is_err());
    assert!(logging.discard(0, 4096).is_err());
    assert_eq!(kinds(&log_path), "wwbxw");
    // A refused request never reaches the device, nor the log.
    assert!(logging.write_at(SIZE_BYTES, &page).is_err());
    assert_eq!(kinds(&log_path), "wwbxw");
}
