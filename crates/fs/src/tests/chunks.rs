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
// opening again; large writes begin at pages as often as not, and dirty data is bounded so that some is being logged.
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
                    write(&fixture, &mut model, ino, at, &pattern(seed * 1000 + step, len));
                }
                4..=6 => {
                    let len = pick(&mut rng, len_max.min(20_000)) as usize;
                    write(&fixture, &mut model, ino, at, &pattern(seed * 1000 + step, len));
                }
                7 => {
                    fixture.truncate(ino, at);
                    model.resize(at as usize, 0);
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

fn write(fixture: &Fixture, model: &mut Vec<u8>, ino: InodeId, at: u64, bytes: &[u8]) {
    fixture.write(ino, at, bytes);
    let (at, end) = (at as usize, at as usize + bytes.len());
    if !bytes.is_empty() {
        model.resize(model.len().max(end), 0);
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
