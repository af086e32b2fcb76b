//! Reading ahead: the same bytes as without, whatever happens to the file in between.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use varve_device::{AlignedBuf, Operation};
use varve_sim::{Fault, FaultRule, FaultyDevice, Rng, Trigger};

use super::*;

const PIECE: usize = 128 << 10;
const FILE_BYTES: usize = 20 * PIECE;

fn pick(rng: &mut Rng, below: usize) -> usize {
    let mut bytes = [0; 8];
    rng.fill(&mut bytes);
    (u64::from_le_bytes(bytes) % below as u64) as usize
}

/// What a mount does for a request of `len` bytes.
fn read(
    fs: &Filesystem,
    ino: InodeId,
    at: usize,
    len: usize,
    buf: &mut AlignedBuf,
) -> Result<Vec<u8>, FsError> {
    let count = fs.read_large(ino, at as u64, len, buf)?;
    let bytes = buf[..count].to_vec();
    fs.read_ahead(ino);
    Ok(bytes)
}

// Goal: a piece that was read ahead is not read again, the last one of a file is as short as the file, and the buffers do
// not stay. Method: a file is read in pieces, and the device's reads are counted; then the background comes by.
#[test]
fn pieces_are_read_ahead_once() {
    let fixture = Fixture::new(64 * MIB);
    let ino = fixture.create(b"f");
    let bytes = pattern(1, FILE_BYTES + 5000);
    fixture.write(ino, 0, &bytes);
    fixture.fs.sync().unwrap();
    let mut buf = AlignedBuf::new(PIECE);
    let before = fixture.device.stats().read_bytes;
    for at in (0..bytes.len()).step_by(PIECE) {
        if at >= 2 * PIECE {
            let reads = fixture.device.stats().reads_count;
            let count = fixture.fs.read_large(ino, at as u64, PIECE, &mut buf).unwrap();
            assert!(buf[..count] == bytes[at..bytes.len().min(at + PIECE)], "at {at}");
            assert_eq!(fixture.device.stats().reads_count, reads, "at {at}: it was there already");
            fixture.fs.read_ahead(ino);
        } else {
            assert!(read(&fixture.fs, ino, at, PIECE, &mut buf).unwrap() == bytes[at..at + PIECE]);
        }
    }
    let read = fixture.device.stats().read_bytes - before;
    assert!(read <= bytes.len() as u64 + 4096 + 64 * 4096, "{read} bytes were read of {}", bytes.len());
    assert_eq!(fixture.fs.core().streams.held().0, 1);
    for _ in 0..3 {
        fixture.fs.maintain().unwrap();
    }
    assert_eq!(fixture.fs.core().streams.held(), (0, 0));
}

// Goal: whoever reads in no order, or small pieces, is not read ahead of. Method: such reads; what is held is looked at.
#[test]
fn nobody_else_is_read_ahead_of() {
    let fixture = Fixture::new(64 * MIB);
    let ino = fixture.create(b"f");
    fixture.write(ino, 0, &pattern(1, FILE_BYTES));
    let mut buf = AlignedBuf::new(PIECE);
    for at in [0, 12, 5, 17, 9, 1, 14] {
        read(&fixture.fs, ino, at * PIECE, PIECE, &mut buf).unwrap();
    }
    for at in 0..20 {
        read(&fixture.fs, ino, at * 4096, 4096, &mut buf).unwrap();
    }
    assert_eq!(fixture.fs.core().streams.held().1, 0);
    // Many files, each by one who goes on: no more than a few pieces.
    let files: Vec<InodeId> = (0..10).map(|i| fixture.create(format!("{i}").as_bytes())).collect();
    for file in &files {
        fixture.fs.clone_range(Caller::ROOT, (ino, 0), (*file, 0), FILE_BYTES as u64).unwrap();
    }
    for at in 0..10 {
        for file in &files {
            read(&fixture.fs, *file, at * PIECE, PIECE, &mut buf).unwrap();
            let (streams, bytes) = fixture.fs.core().streams.held();
            assert!(streams <= 4 && bytes <= 4 * 6 * PIECE, "{streams} files, {bytes} bytes");
        }
    }
}

// Goal: no byte read is older than the last change. Method: two files are read from start to end again and again, beside
// plain vectors, while large and small writes, cuts, holes, shifts, clones and syncs come between any two reads.
#[test]
fn reading_ahead_beside_a_model() {
    for seed in 0..8 {
        let fixture =
            Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, if seed % 2 == 0 { MIB } else { 32 * MIB });
        let mut rng = Rng::new(seed);
        let files = [fixture.create(b"a"), fixture.create(b"b")];
        let mut models: [Vec<u8>; 2] = [pattern(seed, FILE_BYTES), pattern(seed + 100, FILE_BYTES)];
        for (ino, model) in files.iter().zip(&models) {
            fixture.write(*ino, 0, model);
        }
        let mut buf = AlignedBuf::new(PIECE);
        let mut at = [0; 2];
        for step in 0..600u64 {
            let which = pick(&mut rng, 2);
            let (ino, model) = (files[which], &mut models[which]);
            for _ in 0..pick(&mut rng, 4) {
                let end = model.len().min(at[which] + PIECE);
                let got = read(&fixture.fs, ino, at[which], PIECE, &mut buf).unwrap();
                assert!(got == model[at[which].min(end)..end], "seed {seed}, step {step}, at {}", at[which]);
                at[which] = if end <= at[which] { 0 } else { at[which] + PIECE };
            }
            // Near the reader, where pieces wait.
            let begin = at[which] + pick(&mut rng, 3 * PIECE);
            let len = 1 + pick(&mut rng, PIECE);
            match pick(&mut rng, 9) {
                0 | 1 => {
                    let bytes = pattern(seed * 1000 + step, if step % 2 == 0 { len } else { 1 + len % 5000 });
                    fixture.write(ino, begin as u64, &bytes);
                    resize(model, model.len().max(begin + bytes.len()));
                    model[begin..begin + bytes.len()].copy_from_slice(&bytes);
                }
                2 => {
                    let size = begin.clamp(4 * PIECE, FILE_BYTES + PIECE);
                    fixture.truncate(ino, size as u64);
                    resize(model, size);
                    if step % 3 == 0 {
                        fixture.truncate(ino, FILE_BYTES as u64);
                        resize(model, FILE_BYTES);
                    }
                }
                3 => {
                    fixture
                        .fs
                        .fallocate(Caller::ROOT, ino, begin as u64, len as u64, Allocate::Punch)
                        .unwrap();
                    let (from, to) = (model.len().min(begin), model.len().min(begin + len));
                    model[from..to].fill(0);
                }
                4 => {
                    let from = begin / 4096 * 4096;
                    if from + 8192 < model.len() {
                        fixture.fs.collapse_range(Caller::ROOT, ino, from as u64, 8192).unwrap();
                        model.drain(from..from + 8192);
                    }
                }
                5 => {
                    let (from, to) = (pick(&mut rng, 8) * PIECE, begin / 4096 * 4096);
                    let source = models[1 - which].clone();
                    if from + PIECE <= source.len() {
                        let (there, here) = ((files[1 - which], from as u64), (ino, to as u64));
                        fixture.fs.clone_range(Caller::ROOT, there, here, PIECE as u64).unwrap();
                        let model = &mut models[which];
                        resize(model, model.len().max(to + PIECE));
                        model[to..to + PIECE].copy_from_slice(&source[from..from + PIECE]);
                    }
                }
                6 => fixture.fs.sync().unwrap(),
                7 => fixture.fs.fsync(ino).unwrap(),
                _ => {}
            }
        }
        for (ino, model) in files.iter().zip(&models) {
            assert!(fixture.read_all(*ino) == *model, "seed {seed}");
        }
        fixture.check();
    }
}

// Goal: readers who share what is read ahead of them, beside a writer, never see anything older than what was written
// before they asked. Method: a writer stamps piece after piece with a growing number and says so when it is done; readers
// note what has been said before each read and compare.
#[test]
fn readers_beside_a_writer() {
    let fixture = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, MIB);
    let ino = fixture.create(b"f");
    fixture.write(ino, 0, &vec![0; FILE_BYTES]);
    let stamps: Vec<AtomicU64> = (0..FILE_BYTES / PIECE).map(|_| AtomicU64::new(0)).collect();
    let (over, fs) = (AtomicBool::new(false), &fixture.fs);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut buf = AlignedBuf::new(PIECE);
                while !over.load(Ordering::SeqCst) {
                    for (piece, stamp) in stamps.iter().enumerate() {
                        let least = stamp.load(Ordering::SeqCst);
                        let got = read(fs, ino, piece * PIECE, PIECE, &mut buf).unwrap();
                        assert_eq!(got.len(), PIECE);
                        for page in got.chunks_exact(4096) {
                            let seen = u64::from_le_bytes(page[..8].try_into().unwrap());
                            assert!(seen >= least, "piece {piece}: {seen} is read, {least} had been written");
                        }
                    }
                }
            });
        }
        let mut bytes = vec![0; PIECE];
        for round in 1..=30u64 {
            for (piece, stamp) in stamps.iter().enumerate() {
                bytes.chunks_exact_mut(4096).for_each(|page| page[..8].copy_from_slice(&round.to_le_bytes()));
                fs.write(Caller::ROOT, ino, (piece * PIECE) as u64, &bytes).unwrap();
                stamp.store(round, Ordering::SeqCst);
                if piece % 7 == 0 {
                    fs.fsync(ino).unwrap();
                }
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    fixture.check();
}

// Goal: a reader who jumps by half a piece and goes on is read ahead of from there, and nothing is read twice for long.
// Method: such a reader; the device's bytes are counted.
#[test]
fn a_reader_out_of_step() {
    let fixture = Fixture::new(64 * MIB);
    let ino = fixture.create(b"f");
    let bytes = pattern(1, FILE_BYTES);
    fixture.write(ino, 0, &bytes);
    fixture.fs.sync().unwrap();
    let mut buf = AlignedBuf::new(PIECE);
    let before = fixture.device.stats().read_bytes;
    let places = (0..3).map(|n| n * PIECE).chain((3..19).map(|n| n * PIECE + PIECE / 2));
    for at in places {
        assert!(read(&fixture.fs, ino, at, PIECE, &mut buf).unwrap() == bytes[at..at + PIECE], "at {at}");
    }
    let read = fixture.device.stats().read_bytes - before;
    assert!(read <= (FILE_BYTES + 6 * PIECE) as u64, "{read} bytes were read of {FILE_BYTES}");
}

// Goal: one reader does not keep the threads from another, and closing does not wait for readers. Method: more files than
// threads are begun to be read, and each comes to have its pieces; then the filesystem is closed in the middle of it.
#[test]
fn threads_serve_all_readers() {
    let fixture = Fixture::new(64 * MIB);
    let files: Vec<InodeId> = (0..4).map(|n| fixture.create(format!("{n}").as_bytes())).collect();
    for file in &files {
        fixture.write(*file, 0, &pattern(file.0, FILE_BYTES));
    }
    fixture.fs.close().unwrap();
    let options = OpenOptions {
        store: StoreOptions::default(),
        dirty_bytes_max: 8 * MIB,
        clock: fixture.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![fixture.device.clone()], options).unwrap().0;
    let mut buf = AlignedBuf::new(PIECE);
    for at in (0..3 * PIECE).step_by(PIECE) {
        for file in &files {
            assert_eq!(fs.read_large(*file, at as u64, PIECE, &mut buf).unwrap(), PIECE);
        }
    }
    let mut again = || {
        // The first read makes a forgotten reader known, the second steady.
        for file in files.iter().chain(&files) {
            fs.read_large(*file, 2 * PIECE as u64, PIECE, &mut buf).unwrap();
        }
    };
    let held = fs.core().streams.comes_to_hold(4 * 4 * PIECE, &mut again);
    assert!(held, "{:?} are held", fs.core().streams.held());
    for file in &files {
        fs.read_large(*file, 3 * PIECE as u64, PIECE, &mut buf).unwrap();
    }
    fs.close().unwrap();
}

// Goal: the threads that read ahead do so by themselves, see every change, and end with the filesystem. Method: one of two
// threads reads a file from start to end, the other writes to it, in a filesystem with its background; when nobody writes any
// more, what the reader asks for is there or on its way.
#[test]
fn threads_read_ahead() {
    let fixture = Fixture::new(64 * MIB);
    let ino = fixture.create(b"f");
    let mut bytes = pattern(5, FILE_BYTES);
    fixture.write(ino, 0, &bytes);
    fixture.fs.close().unwrap();
    let options = OpenOptions {
        store: StoreOptions::default(),
        dirty_bytes_max: 8 * MIB,
        clock: fixture.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![fixture.device.clone()], options).unwrap().0;
    let mut buf = AlignedBuf::new(PIECE);
    for round in 0..20u8 {
        for at in (0..FILE_BYTES).step_by(PIECE) {
            let count = fs.read_large(ino, at as u64, PIECE, &mut buf).unwrap();
            assert!(buf[..count] == bytes[at..at + PIECE], "round {round}, piece {}", at / PIECE);
            // A little before the reader, where pieces wait or are being read.
            let there = (at + PIECE + usize::from(round) * 7919) % FILE_BYTES / 4096 * 4096;
            if at / PIECE % 5 == usize::from(round % 5) {
                bytes[there..there + 4096].fill(round);
                fs.write(Caller::ROOT, ino, there as u64, &bytes[there..there + 4096]).unwrap();
                fs.fsync(ino).unwrap();
            }
        }
    }
    // A reader that is kept waiting for long is forgotten, with what was read ahead of it: the best of some counts.
    let enough = FILE_BYTES as u64 + 64 * 4096;
    let reads = (0..20).map(|_| {
        let before = fixture.device.stats().read_bytes;
        for at in (0..FILE_BYTES).step_by(PIECE) {
            let count = fs.read_large(ino, at as u64, PIECE, &mut buf).unwrap();
            assert!(buf[..count] == bytes[at..at + PIECE]);
        }
        fixture.device.stats().read_bytes - before
    });
    let reads: Vec<u64> = reads.take_while(|read| *read > enough).collect();
    assert!(reads.len() < 20, "{reads:?} bytes were read of {FILE_BYTES}");
    // One more piece, and what lies ahead comes by itself.
    for at in [0, PIECE, 2 * PIECE] {
        fs.read_large(ino, at as u64, PIECE, &mut buf).unwrap();
    }
    let mut again = || {
        for _ in 0..2 {
            fs.read_large(ino, 2 * PIECE as u64, PIECE, &mut buf).unwrap();
        }
    };
    assert!(fs.core().streams.comes_to_hold(4 * PIECE, &mut again), "nothing is read ahead");
    fs.close().unwrap();
}

// Goal: an error while reading ahead is nobody's: who asks for the piece gets the bytes if the device has them again, and
// EIO if not, and the pieces around it are read. Method: a device whose reads fail from some point on, or for a while.
#[test]
fn errors_belong_to_who_asks() {
    let fixture = Fixture::new(64 * MIB);
    let ino = fixture.create(b"f");
    let bytes = pattern(3, FILE_BYTES);
    fixture.write(ino, 0, &bytes);
    fixture.fs.close().unwrap();
    let device = Arc::new(FaultyDevice::new(fixture.device.snapshot(), 1, Vec::new()));
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 8 * MIB,
        clock: fixture.clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![device.clone()], options).unwrap().0;
    let fails = |on: bool| {
        let rule = FaultRule::new(Operation::Read, Trigger::From(1), Fault::Error);
        device.set_rules(if on { vec![rule] } else { Vec::new() });
    };
    let mut buf = AlignedBuf::new(PIECE);
    for at in (0..FILE_BYTES).step_by(PIECE) {
        let piece = at / PIECE;
        let count = fs.read_large(ino, at as u64, PIECE, &mut buf).unwrap();
        assert!(buf[..count] == bytes[at..at + PIECE], "piece {piece}");
        fails(piece % 3 == 1);
        fs.read_ahead(ino);
        if piece % 6 == 1 && (2..14).contains(&piece) {
            // Five pieces on nothing has been read ahead: the failure shows.
            refused(fs.read_large(ino, (at + 5 * PIECE) as u64, PIECE, &mut buf), 5);
        }
        fails(false);
    }
    fs.close().unwrap();
}

// Goal: a large read behind the end of all files gives nothing, and does not overflow. Method: the last block there could
// be, read and read ahead of, in a build with overflow checks.
#[test]
fn nothing_lies_beyond_all_files() {
    let fixture = Fixture::new(64 * MIB);
    let ino = fixture.create(b"f");
    fixture.write(ino, 0, &pattern(1, 3 * PIECE));
    let mut buf = AlignedBuf::new(PIECE);
    let last = u64::MAX - 4095;
    for at in [0, PIECE as u64, last, last] {
        let count = fixture.fs.read_large(ino, at, PIECE, &mut buf).unwrap();
        assert_eq!(count, if at == last { 0 } else { PIECE });
        fixture.fs.read_ahead(ino);
    }
}
