//! Large writes, whose pages wait in chunks and are written from there.

use super::*;

/// Larger than any chunk, not a whole number of pages.
const FILE_BYTES_MAX: u64 = 3 * MIB + 1234;

fn pick(rng: &mut varve_sim::Rng, below: u64) -> u64 {
    let mut bytes = [0; 8];
    rng.fill(&mut bytes);
    u64::from_le_bytes(bytes) % below
}

// Goal: whatever large and small writes, cuts, holes and syncs do to one another, the file holds what was written last.
// Method: beside a plain vector, which is compared after each step in a range and at the end as a whole, before and after
// opening again; large writes begin at pages as often as not, half of all writes are in buffers that the filesystem may
// keep, and dirty data is bounded so that some is being logged.
#[test]
fn large_writes_beside_a_model() {
    for seed in 0..12 {
        let mut fixture =
            Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, if seed % 2 == 0 { MIB } else { 32 * MIB });
        let mut rng = varve_sim::Rng::new(seed);
        let ino = fixture.create(b"f");
        let mut model: Vec<u8> = Vec::new();
        for step in 0..120u64 {
            let at = pick(&mut rng, FILE_BYTES_MAX);
            let at = if pick(&mut rng, 2) == 0 { at / 4096 * 4096 } else { at };
            let len_max = FILE_BYTES_MAX - at;
            match pick(&mut rng, 12) {
                0..=3 => {
                    let len = pick(&mut rng, len_max.min(3 * MIB / 2)) as usize;
                    // Of those that begin at a page some are as long as a buffer that is kept whole.
                    let len = if len > 3 * MIB as usize / 4 && len_max > MIB { MIB as usize } else { len };
                    let owned = pick(&mut rng, 2) == 0;
                    write(&fixture, &mut model, ino, at, &pattern(seed * 1000 + step, len), owned);
                }
                4..=6 => {
                    let len = pick(&mut rng, len_max.min(20_000)) as usize;
                    let owned = pick(&mut rng, 2) == 0;
                    write(&fixture, &mut model, ino, at, &pattern(seed * 1000 + step, len), owned);
                }
                7 => {
                    fixture.truncate(ino, at);
                    resize(&mut model, at as usize);
                }
                8 => {
                    let len = 1 + pick(&mut rng, MIB);
                    fixture.fs.fallocate(Caller::ROOT, ino, at, len, Allocate::Punch).unwrap();
                    let (from, to) = (model.len().min(at as usize), model.len().min((at + len) as usize));
                    model[from..to].fill(0);
                }
                9 => fixture.fs.fsync(ino).unwrap(),
                10 => fixture.fs.sync().unwrap(),
                _ => {
                    let count = pick(&mut rng, MIB) as usize;
                    let (from, to) = (model.len().min(at as usize), model.len().min(at as usize + count));
                    assert!(
                        fixture.fs.read(ino, at, count).unwrap() == model[from..to],
                        "{seed}: step {step}"
                    );
                }
            }
        }
        assert!(fixture.read_all(ino) == model, "seed {seed}, before opening again");
        fixture.reopen();
        assert!(fixture.read_all(ino) == model, "seed {seed}, after opening again");
        fixture.check();
    }
}

fn write(fixture: &Fixture, model: &mut Vec<u8>, ino: InodeId, at: u64, bytes: &[u8], owned: bool) {
    match owned {
        true => fixture.write_owned(ino, at, bytes),
        false => fixture.write(ino, at, bytes),
    }
    let (at, end) = (at as usize, at as usize + bytes.len());
    if !bytes.is_empty() {
        resize(model, model.len().max(end));
    }
    model[at.min(end)..end].copy_from_slice(bytes);
}

// Goal: the pages of a large write are logged as one extent when they lie together, though small writes follow them in the
// same file, and what reaches the device has the checksum of what was written. Method: a large and a small write, synced;
// the pool is killed; everything is read and checked.
#[test]
fn chunks_and_pages_in_one_batch() {
    let mut fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
    let ino = fixture.create(b"f");
    let bytes = pattern(5, 2 * MIB as usize + 40_000);
    fixture.write(ino, 0, &bytes[..MIB as usize + 5000]);
    fixture.write(ino, MIB + 5000, &bytes[MIB as usize + 5000..MIB as usize + 9000]);
    fixture.write(ino, MIB + 9000, &bytes[MIB as usize + 9000..]);
    fixture.fs.fsync(ino).unwrap();
    fixture.kill();
    assert!(fixture.read_all(ino) == bytes);
    fixture.check();
}

// Goal: with the space for only a part of it, a large write is short and no byte of it is wrong. Method: a pool is filled
// by large writes until one is short or refused; all are read, before and after opening again.
#[test]
fn a_large_write_is_cut_short_when_the_pool_is_full() {
    let mut fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 4 * MIB);
    let ino = fixture.create(b"f");
    let bytes = pattern(6, 64 * MIB as usize);
    let mut at = 0;
    while let Ok(written) = fixture.fs.write(Caller::ROOT, ino, at as u64, &bytes[at..at + MIB as usize]) {
        at += written;
    }
    assert!(at > MIB as usize);
    assert!(fixture.read_all(ino) == bytes[..at]);
    fixture.reopen();
    assert!(fixture.read_all(ino) == bytes[..at]);
    fixture.check();
}

/// Notes from where in memory the device is written to.
struct Watching {
    inner: Arc<MemoryDevice>,
    /// Address and length.
    written: Mutex<Vec<(usize, usize)>>,
}

impl Between for Watching {
    fn behind(&self) -> &dyn Device {
        &self.inner
    }
    fn pass(&self, requests: &mut [Request<'_>]) -> Vec<Result<(), DeviceError>> {
        for request in &*requests {
            if let Request::Write { buf, .. } = request {
                self.written.lock().push((buf.as_ptr().addr(), buf.len()));
            }
        }
        self.inner.run(requests)
    }
}

/// A filesystem on a device that notes what it is written from.
fn watched() -> (Filesystem, Arc<Through<Watching>>) {
    let fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
    fixture.fs.close().unwrap();
    let watching = Watching { inner: fixture.device.clone(), written: Mutex::default() };
    let device = Arc::new(Through(watching));
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 32 * MIB,
        clock: Arc::new(TestClock(SimClock::new(1_800_000_000, 1000))),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    (fs, device)
}

// Goal: a large write in a buffer that may be kept reaches the device from there, and its memory is used for the next ones.
// Method: the addresses that the device is written from, for a whole buffer, for one three quarters full and a bit, and for
// those that must be copied: too empty, not at a page, over pages that are there.
#[test]
fn kept_buffers_are_written_from_where_they_lie() {
    let (fs, device) = watched();
    let ino = fs.create(Caller::ROOT, ROOT, b"f", 0o644).unwrap().ino;
    let mut buf = AlignedBuf::new(MIB as usize);
    let (whole, part) = (MIB as usize, 3 * MIB as usize / 4 + 5000);
    // Where, how much, whether it is kept, and the bytes that are then written from it.
    let cases = [
        (0, whole, Some(whole)),
        (0, whole, Some(whole)),
        (2 * MIB, part, Some(part / 4096 * 4096)),
        (4 * MIB, 3 * whole / 4 - 4096, None),
        (6 * MIB + 1, whole, None),
    ];
    let mut seen = Vec::new();
    for (number, (at, len, kept)) in cases.into_iter().enumerate() {
        let bytes = pattern(number as u64, len);
        buf[..len].copy_from_slice(&bytes);
        let address = buf.as_ptr().addr();
        seen.push(address);
        assert_eq!(fs.write_owned(Caller::ROOT, ino, at, &mut buf, len).unwrap(), len);
        assert_eq!(buf.as_ptr().addr() != address, kept.is_some(), "case {number}");
        assert_eq!(buf.len(), whole);
        buf.fill(0xee);
        assert!(fs.read(ino, at, len).unwrap() == bytes, "case {number}, dirty");
        // With that the data is too much to ride with the log, for which it would be copied.
        fs.write(Caller::ROOT, ino, 16 * MIB, &bytes).unwrap();
        fs.fsync(ino).unwrap();
        let mut written = std::mem::take(&mut *device.written.lock());
        written.retain(|(from, len)| *len > 0 && (address..address + whole).contains(from));
        let from_there: usize = written.iter().map(|(_, len)| len).sum();
        assert_eq!(from_there, kept.unwrap_or(0), "case {number}");
        assert!(fs.read(ino, at, len).unwrap() == bytes, "case {number}, logged");
    }
    // What is kept comes back when it has been written: with one for what is copied three buffers take turns.
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 3);
    // Over a page that is in memory: it is overwritten, and the rest copied.
    let bytes = pattern(9, whole);
    fs.write(Caller::ROOT, ino, MIB / 2, b"small").unwrap();
    buf.copy_from_slice(&bytes);
    let address = buf.as_ptr().addr();
    fs.write_owned(Caller::ROOT, ino, 0, &mut buf, whole).unwrap();
    assert_eq!(buf.as_ptr().addr(), address);
    assert!(fs.read(ino, 0, whole).unwrap() == bytes);
    assert!(fs.check(true).unwrap().problems.is_empty());
    fs.close().unwrap();
}

// Goal: whatever happens to small files whose pages lie side by side, each holds what was written last, with zeros behind it
// when it grows, and keeps it over a kill when it was synced. Method: many files, each written at once and then written to,
// cut, grown and synced in any order, alone or with others, beside plain vectors.
#[test]
fn small_files_beside_a_model() {
    for seed in 0..40 {
        let mut fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
        let mut rng = varve_sim::Rng::new(seed);
        let mut models: Vec<(InodeId, Vec<u8>)> = Vec::new();
        for number in 0..12u64 {
            let ino = fixture.create(format!("{number}").as_bytes());
            let mut model = Vec::new();
            let at = [0, 0, 0, 4096, 12_288, 100][pick(&mut rng, 6) as usize];
            let len_max = [5000, 62_000][pick(&mut rng, 2) as usize];
            let len = 4000 + pick(&mut rng, len_max) as usize;
            write(&fixture, &mut model, ino, at, &pattern(seed * 100 + number, len), false);
            for step in 0..pick(&mut rng, 6) {
                let at = pick(&mut rng, model.len() as u64 + 9000);
                match pick(&mut rng, 6) {
                    0 | 1 => {
                        let at = if pick(&mut rng, 2) == 0 { at / 4096 * 4096 } else { at };
                        let bytes = pattern(step, 1 + pick(&mut rng, 9000) as usize);
                        write(&fixture, &mut model, ino, at, &bytes, false);
                    }
                    2 | 3 => {
                        fixture.truncate(ino, at);
                        resize(&mut model, at as usize);
                    }
                    4 => fixture.fs.fsync(ino).unwrap(),
                    _ => fixture.fs.sync().unwrap(),
                }
                assert!(fixture.read_all(ino) == model, "{seed}: file {number}, step {step}");
            }
            models.push((ino, model));
        }
        let alone = pick(&mut rng, 2) == 0;
        for (ino, _) in models.iter().filter(|_| alone) {
            fixture.fs.fsync(*ino).unwrap();
        }
        fixture.fs.sync().unwrap();
        fixture.kill();
        for (ino, model) in &models {
            assert!(fixture.read_all(*ino) == *model, "{seed}: inode {}, after a kill", ino.0);
        }
        fixture.check();
    }
}

// Goal: the pages of a small file ride with the log from where they were copied to, and the file behind them is its own
// again at once: what is written next does not change what is on its way. Method: the addresses that the device is written
// from; where one of the pages has been overwritten, they are gathered in a buffer.
#[test]
fn small_files_ride_from_where_they_lie() {
    let (fs, device) = watched();
    // Bytes at 0, bytes that are written after them and where, and whether the first are still side by side then.
    let cases = [
        (10_240, None, true),
        (4097, None, true),
        (64 << 10, None, true),
        (10_240, Some((12_288, 4096)), false),
        (10_240, Some((5000, 10)), false),
        ((64 << 10) + 1, None, false),
    ];
    for (number, (len, more, side_by_side)) in cases.into_iter().enumerate() {
        let ino = fs.create(Caller::ROOT, ROOT, format!("{number}").as_bytes(), 0o644).unwrap().ino;
        let mut bytes = pattern(number as u64, len);
        fs.write(Caller::ROOT, ino, 0, &bytes).unwrap();
        if let Some((at, len)) = more {
            let then = pattern(100, len);
            fs.write(Caller::ROOT, ino, at as u64, &then).unwrap();
            bytes.resize(bytes.len().max(at + len), 0);
            bytes[at..at + len].copy_from_slice(&then);
        }
        let first = fs.core().state(ino).inner.read().pages.map.get(0).unwrap().data.as_ptr().addr();
        device.written.lock().clear();
        fs.fsync(ino).unwrap();
        let written = std::mem::take(&mut *device.written.lock());
        let whole = bytes.len().next_multiple_of(4096);
        assert_eq!(written.iter().filter(|(_, len)| *len == whole).count(), 1, "case {number}: {written:?}");
        assert_eq!(written.contains(&(first, whole)), side_by_side, "case {number}: {written:?}");
        assert!(fs.read(ino, 0, bytes.len() + 1).unwrap() == bytes, "case {number}");
    }
    assert!(fs.check(true).unwrap().problems.is_empty());
    fs.close().unwrap();
}

// Goal: a write in a buffer that is kept may be tried again, when a snapshot waits for the file, with its own bytes. Method:
// a file that is dirty when a snapshot is taken is written to in such a buffer; both are read.
#[test]
fn kept_buffers_and_frozen_files() {
    let fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
    let fs = &fixture.fs;
    let home = fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let ino = fs.create(Caller::ROOT, home, b"f", 0o644).unwrap().ino;
    let (old, new) = (pattern(1, MIB as usize), pattern(2, MIB as usize));
    fixture.write_owned(ino, 0, &old);
    let snapshot = fs.snapshot(home, ROOT, b"snapshot", true, false).unwrap();
    fixture.write_owned(ino, 4096, &new);
    let then = fs.lookup(snapshot, b"f").unwrap().ino;
    assert!(fs.read(then, 0, 4 * MIB as usize).unwrap() == old);
    assert!(fs.read(ino, 0, 4 * MIB as usize).unwrap() == [&old[..4096], &new].concat());
    fixture.check();
}

// Goal: the memory of a large file is free for the next writes as soon as it is logged, not with the last of what was taken with
// it. Method: a file of six batches, with the threads of a filesystem and without; how much is in use each time that some of it has
// been logged.
#[test]
fn what_is_logged_needs_no_memory() {
    const LEN: u64 = 24 * MIB;
    for background in [false, true] {
        let fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
        fixture.fs.close().unwrap();
        let core: Arc<std::sync::OnceLock<std::sync::Weak<varve_fs::internals::core::Core>>> = Arc::default();
        let (theirs, seen) = (core.clone(), Arc::new(Mutex::new(Vec::new())));
        let notes = seen.clone();
        let observer = move |logged: varve_fs::internals::api::DataLogged| {
            let core = theirs.get().unwrap().upgrade().unwrap();
            notes.lock().push((logged.offset + logged.len, core.buffers.chunk_bytes_in_use()));
        };
        let options = OpenOptions {
            store: StoreOptions { background, ..StoreOptions::default() },
            dirty_bytes_max: 512 * MIB,
            clock: Arc::new(TestClock(SimClock::new(1_800_000_000, 0))),
            on_data_logged: Some(Arc::new(observer)),
        };
        let fs = Filesystem::open(vec![fixture.device.clone()], options).unwrap().0;
        core.set(fs.weak_core()).unwrap();
        let ino = fs.create(Caller::ROOT, ROOT, b"f", 0o644).unwrap().ino;
        let data = pattern(1, MIB as usize);
        for at in (0..LEN).step_by(MIB as usize) {
            fs.write(Caller::ROOT, ino, at, &data).unwrap();
        }
        fs.flush_file(ino).unwrap();
        let seen = std::mem::take(&mut *seen.lock());
        assert_eq!(seen.last().unwrap().0, LEN, "{background}");
        for (logged, in_use) in seen {
            // The batch that has just been logged is let go of next.
            assert!(in_use <= LEN - logged + 4 * MIB, "{background}: {in_use} in use with {logged} logged");
        }
        fs.close().unwrap();
    }
}

// Goal: data of large writes to a long file goes to the device before much waits; that of small ones is gathered, and so is that
// of a short file. Method: as much in pages as in large writes, near the beginning of a file and far from it, less than the
// whole bound's quarter and more than a sixty-fourth of it, in a filesystem with its threads; the clock stands still, so that
// nothing grows old.
#[test]
fn large_writes_to_long_files_do_not_wait_for_more() {
    let fixture = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 32 * MIB);
    fixture.fs.close().unwrap();
    let options = OpenOptions {
        store: StoreOptions::default(),
        dirty_bytes_max: 32 * MIB,
        clock: Arc::new(TestClock(SimClock::new(1_800_000_000, 0))),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![fixture.device.clone()], options).unwrap().0;
    let ino = fs.create(Caller::ROOT, ROOT, b"f", 0o644).unwrap().ino;
    let data = pattern(1, 2 * MIB as usize);
    let write = |offset: u64, bytes: usize| {
        for (number, part) in data.chunks(bytes).enumerate() {
            fs.write(Caller::ROOT, ino, offset + (number * bytes) as u64, part).unwrap();
        }
    };
    let written = || fixture.device.stats().write_bytes;
    // Nobody wakes it.
    let pause = |milliseconds| {
        let limit = std::time::Duration::from_millis(milliseconds);
        parking_lot::Condvar::new().wait_for(&mut Mutex::new(()).lock(), limit);
    };
    for (offset, bytes) in [(0, 4096), (0, MIB as usize), (16 * MIB, 4096)] {
        let before = written();
        write(offset, bytes);
        pause(50);
        assert!(written() - before < MIB, "{bytes} at {offset}: {} bytes", written() - before);
        fs.fsync(ino).unwrap();
    }
    let before = written();
    write(8 * MIB, MIB as usize);
    let mut left = 12_000;
    while written() - before < MIB {
        left -= 1;
        assert!(left > 0, "{} bytes", written() - before);
        pause(10);
    }
    for offset in [0, 8 * MIB, 16 * MIB] {
        assert!(fs.read(ino, offset, data.len()).unwrap() == data, "at {offset}");
    }
    fs.close().unwrap();
}
