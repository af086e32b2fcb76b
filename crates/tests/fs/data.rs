//! File contents: pages, sizes, what is logged when.

use std::collections::BTreeSet;

use varve_engine::InodeId;
use varve_sim::Rng;

use super::*;

const BLOCK: u64 = 4096;

/// Offsets and sizes at which something changes its form: inline limit, blocks, segments.
const EDGES: [u64; 14] =
    [0, 1, 1699, 1700, 1701, 4095, 4096, 4097, 8192, 20_000, 65_536, MIB - 1, MIB, MIB + 5000];

struct Model {
    ino: InodeId,
    bytes: Vec<u8>,
    /// Blocks below the end that something has been written to.
    written: BTreeSet<u64>,
}

impl Model {
    fn new(ino: InodeId) -> Model {
        Model { ino, bytes: Vec::new(), written: BTreeSet::new() }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if self.bytes.len() < end {
            resize(&mut self.bytes, end);
        }
        self.bytes[offset..end].copy_from_slice(data);
        if !data.is_empty() {
            self.written.extend(offset as u64 / BLOCK..(end as u64).div_ceil(BLOCK));
        }
    }

    fn resize(&mut self, size: usize) {
        resize(&mut self.bytes, size);
        self.written.retain(|block| block * BLOCK < size as u64);
    }
}

/// Seeking shows data in blocks that were written, and in no other; in all of those that are not zeros. (Zeros at the
/// end of what fits into the inode record are not kept there.)
fn compare_map(f: &Fixture, model: &Model, tag: &str) {
    let size = model.bytes.len() as u64;
    let (mut at, mut shown) = (0, BTreeSet::new());
    while at < size {
        let Some(data) = f.fs.seek(model.ino, at, SeekTo::Data).unwrap() else { break };
        at = f.fs.seek(model.ino, data, SeekTo::Hole).unwrap().unwrap();
        shown.extend(data / BLOCK..at.div_ceil(BLOCK));
    }
    let nobodys: Vec<_> = shown.difference(&model.written).collect();
    assert!(nobodys.is_empty(), "{tag}: data in blocks {nobodys:?} that nobody wrote");
    for block in model.written.difference(&shown) {
        let bytes = model.bytes.chunks(BLOCK as usize).nth(*block as usize).unwrap();
        assert!(is_zero(bytes), "{tag}: a hole for the data in block {block}");
    }
}

fn step(f: &Fixture, rng: &mut Rng, model: &mut Model, tag: &str) {
    let near = |rng: &mut Rng| {
        let edge = *rng.pick(&EDGES).unwrap();
        if rng.chance(0.5) { edge } else { edge + rng.below(5000) }
    };
    match rng.below(8) {
        0..=3 => {
            let offset = near(rng) as usize;
            let len = if rng.chance(0.1) { rng.below(300_000) } else { 1 + rng.below(9000) } as usize;
            let data = pattern(rng.next_u64(), len);
            f.write(model.ino, offset as u64, &data);
            model.write(offset, &data);
        }
        4 => {
            let size = if rng.chance(0.3) && !model.bytes.is_empty() {
                rng.below(model.bytes.len() as u64 + 1)
            } else {
                near(rng)
            };
            f.truncate(model.ino, size);
            model.resize(size as usize);
        }
        5 => f.fs.flush_file(model.ino).unwrap(),
        6 => f.fs.fsync(model.ino).unwrap(),
        _ => {
            let offset = near(rng);
            let len = rng.below(10_000) as usize;
            let from = (offset as usize).min(model.bytes.len());
            let to = (from + len).min(model.bytes.len());
            let got = f.fs.read(model.ino, offset, len).unwrap();
            assert!(got == model.bytes[from..to], "{tag}: read {offset}+{len}");
        }
    }
    assert_eq!(f.fs.getattr(model.ino).unwrap().size, model.bytes.len() as u64, "{tag}");
}

// Goal: files hold what was written, whatever the mixture of inline contents, holes, overwrites, cuts and growth, and
// whatever waits in memory. Method: random steps on three files against byte vectors; after a sync and a kill all
// contents are compared and everything is checked.
#[test]
fn contents_against_a_model() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut f =
            Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, if seed % 2 == 0 { 200_000 } else { 64 * MIB });
        let mut models: Vec<Model> =
            (0..3).map(|i| Model::new(f.create(format!("f{i}").as_bytes()))).collect();
        for round in 0..6 {
            for i in 0..25 {
                let tag = format!("seed {seed} round {round} step {i}");
                let which = rng.index(models.len());
                step(&f, &mut rng, &mut models[which], &tag);
                compare_map(&f, &models[which], &tag);
            }
            match round % 3 {
                0 => f.fs.sync().unwrap(),
                1 => f.reopen(),
                _ => {
                    f.fs.sync().unwrap();
                    f.kill();
                }
            }
            for model in &models {
                let got = f.read_all(model.ino);
                if got != model.bytes {
                    let at = (0..got.len()).find(|at| model.bytes.get(*at) != Some(&got[*at]));
                    panic!("seed {seed} round {round}: {:?} differs at {at:?} of {}", model.ino, got.len());
                }
            }
            f.check();
        }
        for i in 0..3 {
            f.fs.unlink(ROOT, format!("f{i}").as_bytes()).unwrap();
        }
        f.fs.maintain().unwrap();
        f.check();
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        assert!(f.fs.space().used_bytes < MIB, "seed {seed}: {:?}", f.fs.space());
    }
}

// Goal: the observer is exact: replaying what it reported onto an older copy gives the file on disk. Method: after
// every step the model copies the reported ranges from memory; at a kill without a sync that is what must be there.
#[test]
fn what_is_logged_is_reported() {
    for seed in 100..130 {
        let mut rng = Rng::new(seed);
        let mut f = Fixture::with(64 * MIB, HASH_KIND_SIPHASH13, 100_000);
        let mut model = Model::new(f.create(b"f"));
        let mut disk: Vec<u8> = Vec::new();
        let mut seen = 0;
        for i in 0..60 {
            let before = model.bytes.len();
            step(&f, &mut rng, &mut model, &format!("seed {seed} step {i}"));
            let events: Vec<DataLogged> = f.logged.lock()[seen..].to_vec();
            seen += events.len();
            for event in &events {
                resize(&mut disk, event.size as usize);
                let end = (event.offset + event.len).min(event.size).min(model.bytes.len() as u64) as usize;
                let from = (event.offset as usize).min(end);
                disk[from..end].copy_from_slice(&model.bytes[from..end]);
            }
            // A truncation is logged by itself; a growing write is not.
            if model.bytes.len() < before {
                disk.truncate(model.bytes.len());
            }
            if f.fs.getattr(model.ino).unwrap().size as usize == disk.len() || model.bytes.len() < disk.len()
            {
                disk.truncate(model.bytes.len());
            }
        }
        f.fs.fsync(ROOT).unwrap();
        f.kill();
        let size = f.fs.getattr(model.ino).unwrap().size as usize;
        // Truncations that let the file grow are not in `disk`.
        disk.resize(size, 0);
        assert!(f.read_all(model.ino) == disk, "seed {seed}");
        f.check();
    }
}

// Goal: the logged size never runs ahead of the data. Method: grow a file in memory, log other attributes, kill.
#[test]
fn attributes_log_the_logged_size() {
    let mut f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    f.write(ino, 0, &pattern(1, 5000));
    f.fs.fsync(ino).unwrap();
    f.write(ino, 5000, &pattern(2, 5000));
    f.fs.setattr(Caller::ROOT, ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    f.fs.link(ino, ROOT, b"g").unwrap();
    f.fs.fsync(ROOT).unwrap();
    assert_eq!(f.fs.getattr(ino).unwrap().size, 10_000);
    f.kill();
    let attr = f.fs.getattr(ino).unwrap();
    assert_eq!((attr.size, attr.mode, attr.links), (5000, 0o600, 2));
    assert!(f.read_all(ino) == pattern(1, 5000));
    f.check();
}

// Goal: cut bytes never come back. Method: cut inside a block, let the file grow by truncation and by writing beyond,
// with kills between.
#[test]
fn cut_bytes_stay_cut() {
    for kill in [false, true] {
        for grow in 0..3 {
            let mut f = Fixture::new(64 * MIB);
            let ino = f.create(b"f");
            f.write(ino, 0, &[7; 10_000]);
            f.fs.fsync(ino).unwrap();
            f.truncate(ino, 5000);
            if kill {
                f.fs.sync().unwrap();
                f.kill();
            }
            match grow {
                0 => f.truncate(ino, 9000),
                1 => f.write(ino, 8999, &[0]),
                _ => f.write(ino, 20_000, &[0]),
            }
            let mut expected = vec![7; 5000];
            expected.resize(if grow == 2 { 20_001 } else { 9000 }, 0);
            assert!(f.read_all(ino) == expected, "kill {kill} grow {grow}");
            f.fs.sync().unwrap();
            f.kill();
            assert!(f.read_all(ino) == expected, "kill {kill} grow {grow}");
            f.check();
        }
    }
}

// Goal: what nobody wrote stays a hole. Method: cut a file inside a hole, or punch out the block in which it was cut;
// then let it grow by writing and by truncation.
#[test]
fn a_cut_inside_a_hole_makes_no_data() {
    let reserve = Allocate::Reserve { keep_size: true };
    for make in [None, Some(reserve), Some(Allocate::Punch)] {
        for grow in 0..3 {
            let f = Fixture::new(64 * MIB);
            let ino = f.create(b"f");
            f.write(ino, 3 * BLOCK, &[7; 4096]);
            if let Some(how) = make.filter(|how| *how == reserve) {
                f.fs.fallocate(Caller::ROOT, ino, 0, 3 * BLOCK, how).unwrap();
            }
            if make == Some(Allocate::Punch) {
                f.write(ino, BLOCK, &[5; 4096]);
            }
            f.fs.fsync(ino).unwrap();
            f.truncate(ino, BLOCK + 100);
            if make == Some(Allocate::Punch) {
                f.fs.fallocate(Caller::ROOT, ino, BLOCK, BLOCK, Allocate::Punch).unwrap();
            }
            match grow {
                0 => f.truncate(ino, 9 * BLOCK),
                1 => f.write(ino, 8 * BLOCK, &[1; 4096]),
                _ => f.write(ino, BLOCK + 2000, &[1]),
            }
            f.fs.fsync(ino).unwrap();
            let data = f.fs.seek(ino, 0, SeekTo::Data).unwrap();
            assert_eq!(data, [None, Some(8 * BLOCK), Some(BLOCK)][grow], "{make:?} grow {grow}");
            f.check();
        }
    }
}

// Goal: small files cost no data block, and one fsync one flush. Method: counters.
#[test]
fn small_files_live_in_their_records() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    f.write(ino, 0, &[1; 1700]);
    let flushes = f.device.stats().flushes_count;
    f.fs.fsync(ino).unwrap();
    assert_eq!(f.device.stats().flushes_count, flushes + 1);
    f.fs.fsync(ino).unwrap();
    assert_eq!(f.device.stats().flushes_count, flushes + 1, "nothing has changed");
    let report = f.fs.check(true).unwrap();
    assert_eq!(report.data_blocks, 0);
    f.write(ino, 1700, &[1]);
    f.fs.fsync(ino).unwrap();
    assert_eq!(f.fs.check(true).unwrap().data_blocks, 1);
    assert_eq!(f.read_all(ino), [1; 1701]);
    f.truncate(ino, 0);
    f.write(ino, 0, b"small again");
    f.fs.sync().unwrap();
    assert_eq!(f.fs.check(true).unwrap().data_blocks, 0);
    f.check();
}

// Goal: many small files are packed: few large writes, few runs. Method: 500 files of 5,000 bytes, one sync, count.
#[test]
fn packing() {
    let f = Fixture::with(256 * MIB, HASH_KIND_SIPHASH13, 64 * MIB);
    for i in 0..500 {
        let ino = f.create(format!("f{i}").as_bytes());
        f.write(ino, 0, &pattern(i, 5000));
    }
    let before = f.device.stats();
    f.fs.sync().unwrap();
    let after = f.device.stats();
    let (writes, bytes) = (after.writes_count - before.writes_count, after.write_bytes - before.write_bytes);
    assert!(writes < 20, "{writes} writes of {bytes} bytes");
    f.check();
}

// Goal: a deleted file's dirty data is dropped, its space handed back, and large deletions finish in steps. Method:
// delete dirty files and one with many extents, compare the books.
#[test]
fn deleting() {
    let mut f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, 64 * MIB);
    let ino = f.create(b"dirty");
    f.write(ino, 0, &pattern(1, 3 << 20));
    assert!(f.fs.space().reserved_bytes > 3 << 20);
    f.fs.unlink(ROOT, b"dirty").unwrap();
    f.fs.checkpoint().unwrap();
    assert!(f.fs.space().reserved_bytes < MIB, "{:?}", f.fs.space());
    let ino = f.create(b"holes");
    for i in 0..700 {
        f.write(ino, i * 2 * 4096, &[1; 4096]);
    }
    f.fs.sync().unwrap();
    f.fs.unlink(ROOT, b"holes").unwrap();
    f.check();
    f.fs.fsync(ROOT).unwrap();
    f.kill();
    f.check();
    f.fs.maintain().unwrap();
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    assert!(f.fs.space().used_bytes < MIB, "{:?}", f.fs.space());
    f.check();
}

// Goal: what is open stays open where a pool that was opened for reading is opened anew for writing. Method: a file that is
// open twice is unlinked afterwards, and lives until the second handle ends; an open inode that the other does not have.
#[test]
fn handles_are_taken_over() {
    let mut f = Fixture::new(64 * MIB);
    let (file, gone) = (f.create(b"file"), f.create(b"gone"));
    let data = pattern(1, 100_000);
    f.write(file, 0, &data);
    f.fs.close().unwrap();
    let options = OpenOptions {
        store: StoreOptions { read_only: true, background: false, ..StoreOptions::default() },
        dirty_bytes_max: 0,
        clock: f.clock.clone(),
        on_data_logged: None,
    };
    let reading = Filesystem::open(vec![f.device.clone()], options).unwrap().0;
    for _ in 0..2 {
        reading.open_inode(Caller::ROOT, file, false).unwrap();
    }
    f.reopen();
    f.fs.take_over_handles(&reading).unwrap();
    f.fs.unlink(ROOT, b"file").unwrap();
    f.fs.release_inode(file).unwrap();
    assert!(f.read_all(file) == data);
    f.fs.release_inode(file).unwrap();
    refused(f.fs.getattr(file), 2);
    f.fs.unlink(ROOT, b"gone").unwrap();
    reading.open_inode(Caller::ROOT, gone, false).unwrap();
    assert!(f.fs.take_over_handles(&reading).is_err());
    f.check();
}
