//! Reservations, holes, and finding them; copies; large offsets, many links, many names.

use varve_sim::Rng;

use super::*;

const BLOCK: u64 = 4096;

/// What a file should be.
struct Model {
    ino: InodeId,
    bytes: Vec<u8>,
}

impl Model {
    fn resize(&mut self, size: usize) {
        resize(&mut self.bytes, size);
    }
}

pub(super) fn allocate(f: &Fixture, ino: InodeId, offset: u64, len: u64, how: Allocate) {
    f.fs.fallocate(Caller::ROOT, ino, offset, len, how).unwrap();
}

fn step(f: &Fixture, rng: &mut Rng, model: &mut Model) {
    const AREA: u64 = 3 << 20;
    let block = if rng.chance(0.5) { 1 } else { BLOCK };
    let offset = rng.below(AREA / block) * block;
    let len_max = if rng.chance(0.8) { 20_000 } else { 1_500_000 };
    let len = (1 + rng.below(len_max)).next_multiple_of(block);
    let (from, end) = (offset as usize, (offset + len) as usize);
    match rng.below(11) {
        0..=2 => {
            let data = pattern(rng.next_u64(), len.min(100_000) as usize);
            f.write(model.ino, offset, &data);
            model.resize(model.bytes.len().max(from + data.len()));
            model.bytes[from..from + data.len()].copy_from_slice(&data);
        }
        3 => {
            let keep_size = rng.chance(0.5);
            allocate(f, model.ino, offset, len, Allocate::Reserve { keep_size });
            if !keep_size {
                model.resize(model.bytes.len().max(end));
            }
        }
        4 => {
            allocate(f, model.ino, offset, len, Allocate::Punch);
            let size = model.bytes.len();
            model.bytes[from.min(size)..end.min(size)].fill(0);
        }
        5 => {
            let keep_size = rng.chance(0.5);
            allocate(f, model.ino, offset, len, Allocate::Zero { keep_size });
            let size = model.bytes.len();
            model.bytes[from.min(size)..end.min(size)].fill(0);
            if !keep_size {
                model.resize(size.max(end));
            }
        }
        6 => {
            let size = if rng.chance(0.2) { 0 } else { offset };
            f.truncate(model.ino, size);
            model.resize(size as usize);
        }
        7 | 8 => {
            let len = (1 + rng.below(300)) * BLOCK;
            let at = rng.below(AREA / BLOCK) * BLOCK;
            let (size, collapse) = (model.bytes.len() as u64, rng.chance(0.5));
            let (result, fits) = if collapse {
                (f.fs.collapse_range(Caller::ROOT, model.ino, at, len), at + len < size)
            } else {
                (f.fs.insert_range(Caller::ROOT, model.ino, at, len), at < size)
            };
            if !fits {
                return refused(result, 22);
            }
            result.unwrap();
            if collapse {
                model.bytes.drain(at as usize..(at + len) as usize);
            } else {
                let behind = model.bytes.split_off(at as usize);
                model.resize((at + len) as usize);
                model.bytes.extend_from_slice(&behind);
            }
        }
        9 => f.fs.flush_file(model.ino).unwrap(),
        _ => f.fs.fsync(model.ino).unwrap(),
    }
}

/// Contents and size are right, and data found by seeking covers all bytes that are not zero.
fn compare(f: &Fixture, model: &Model, tag: &str) {
    assert_eq!(f.fs.getattr(model.ino).unwrap().size, model.bytes.len() as u64, "{tag}");
    assert!(f.read_all(model.ino) == model.bytes, "{tag}: contents differ");
    let size = model.bytes.len() as u64;
    let mut at = 0;
    while at < size {
        let data = f.fs.seek(model.ino, at, SeekTo::Data).unwrap().unwrap_or(size);
        assert!(data >= at && is_zero(&model.bytes[at as usize..data as usize]), "{tag}");
        if data == size {
            break;
        }
        let hole = f.fs.seek(model.ino, data, SeekTo::Hole).unwrap().unwrap();
        assert!(hole > data && hole <= size, "{tag}: {data} {hole}");
        at = hole;
    }
    assert_eq!(f.fs.seek(model.ino, size, SeekTo::Data).unwrap(), None);
    assert_eq!(f.fs.seek(model.ino, size, SeekTo::Hole).unwrap(), None);
}

// Goal: reserving, punching, zeroing, taking ranges out and putting them in do to bytes, sizes and holes what they say,
// with data in memory and on the device, through syncs, kills and cuts; and the books of reserved space are exact. Method: random steps against a
// vector; check after each round; nothing is left when the file is gone.
#[test]
fn against_a_model() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, if seed % 2 == 0 { MIB } else { 64 * MIB });
        let mut model = Model { ino: f.create(b"f"), bytes: Vec::new() };
        for round in 0..8 {
            for i in 0..12 {
                step(&f, &mut rng, &mut model);
                compare(&f, &model, &format!("seed {seed} round {round} step {i}"));
            }
            f.fs.sync().unwrap();
            if round % 2 == 1 {
                f.kill();
            }
            compare(&f, &model, &format!("seed {seed} round {round} synced"));
            f.check();
        }
        f.fs.unlink(ROOT, b"f").unwrap();
        f.fs.maintain().unwrap();
        f.check();
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        let space = f.fs.space();
        assert!(space.used_bytes < MIB && space.reserved_bytes < MIB, "seed {seed}: {space:?}");
    }
}

/// Fills the pool with another file, which is synced; gives that and where it ends.
pub(super) fn fill(f: &Fixture) -> (InodeId, u64) {
    let other = f.create(b"other");
    let (data, mut at) = (pattern(1, 1 << 20), 0);
    while let Ok(written) = f.fs.write(Caller::ROOT, other, at, &data) {
        at += written as u64;
    }
    f.fs.sync().unwrap();
    (other, at)
}

// Goal: what is set aside for some pages pays for no others: of a write that is cut short for lack of space, and of one that
// is refused, the reserved pages that are not written keep their space. Method: on a full pool a write goes over pages with and
// without space, in both orders; then the reserved ones are written.
#[test]
fn reserved_space_pays_for_no_other_pages() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"reserved");
    f.write(ino, 0, &[7]);
    for at in [MIB, 3 * MIB] {
        allocate(&f, ino, at, MIB, Allocate::Reserve { keep_size: false });
    }
    let data = pattern(1, 4 << 20);
    fill(&f);
    // Begins with pages for which there is no space.
    if let Ok(written) = f.fs.write(Caller::ROOT, ino, MIB / 2, &data) {
        assert!(written as u64 <= MIB / 2, "{written}");
    }
    // Begins with pages for which there is, and ends with others: as many bytes as are set aside, at the least.
    let written = f.fs.write(Caller::ROOT, ino, MIB, &data).unwrap();
    assert!((MIB..2 * MIB).contains(&(written as u64)), "{written}");
    // Nothing of it comes from what is set aside elsewhere.
    if let Ok(written) = f.fs.write(Caller::ROOT, ino, 5 * MIB, &data) {
        assert!((written as u64) < MIB, "{written}");
    }
    assert_eq!(f.fs.write(Caller::ROOT, ino, 3 * MIB, &data[..1 << 20]).unwrap(), 1 << 20);
    f.fs.sync().unwrap();
    f.check();
    assert!(f.fs.read(ino, 3 * MIB, 1 << 20).unwrap() == data[..1 << 20]);
    assert!(f.fs.read(ino, MIB, 1 << 20).unwrap() == data[..1 << 20]);
}

// Goal: space that is set aside behind the end of a file is still enough for it when the end has been shared from a file that was
// longer before. Method: such an end is cloned in front of reserved pages; on a full pool all of these are written.
#[test]
fn a_shared_end_takes_nothing_of_what_is_reserved() {
    let f = Fixture::new(64 * MIB);
    let (ino, source) = (f.create(b"reserved"), f.create(b"source"));
    for ino in [ino, source] {
        f.write(ino, 0, &pattern(1, 8192));
        f.fs.flush_file(ino).unwrap();
    }
    allocate(&f, ino, 0, MIB, Allocate::Reserve { keep_size: true });
    f.truncate(source, 6000);
    f.fs.clone_range(Caller::ROOT, (source, 0), (ino, 8192), 6000).unwrap();
    f.fs.sync().unwrap();
    assert_eq!(f.fs.getattr(ino).unwrap().size, 8192 + 6000);
    fill(&f);
    let (from, end) = (16384, MIB);
    for at in (from..end).step_by(4096) {
        f.write(ino, at, &pattern(at, 4096));
    }
    f.fs.sync().unwrap();
    f.check();
    assert_eq!(
        f.fs.read(ino, 8192, 8192).unwrap(),
        [pattern(1, 8192)[..6000].to_vec(), vec![0; 2192]].concat()
    );
    assert_eq!(f.fs.read(ino, from, 4096).unwrap(), pattern(from, 4096));
}

// Goal: reserved space is there when nothing else is, also after a kill. Method: reserve, fill the pool with another
// file, write all of the reservation, in any order; sync and compare.
#[test]
fn reserved_space_is_kept() {
    for kill in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"reserved");
        allocate(&f, ino, 0, 8 * MIB, Allocate::Reserve { keep_size: false });
        assert!(f.fs.space().reserved_bytes >= 8 * MIB);
        let data = pattern(1, 1 << 20);
        let (other, at) = fill(&f);
        if kill {
            f.kill();
        }
        refused(f.fs.write(Caller::ROOT, other, at, &data), 28);
        for i in (0..8).rev() {
            f.write(ino, i * MIB, &pattern(i, 1 << 20));
        }
        f.fs.sync().unwrap();
        f.check();
        f.kill();
        for i in 0..8 {
            assert!(f.fs.read(ino, i * MIB, 1 << 20).unwrap() == pattern(i, 1 << 20), "kill {kill} {i}");
        }
        f.check();
    }
}

// Goal: what single blocks add to the extents when they are written all over a reservation on a full pool is paid for by what was
// set aside with it, not by what is kept for deleting; also when the pool is opened anew in the middle, and where somebody else takes
// whatever becomes free. Method: every second block, then the others; or all in random order; after each part a checkpoint, and the
// books say how much of the protected part is in use.
#[test]
fn scattered_writes_use_what_is_reserved() {
    let protected_in_use = |f: &Fixture| {
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        let s = f.fs.space();
        let parts = [s.fixed_bytes, s.used_bytes, s.held_back_bytes, s.reserved_bytes, s.protected_bytes];
        parts.iter().sum::<u64>().saturating_sub(s.total_bytes) / BLOCK
    };
    for (random, kill, greedy) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, false, true),
        (true, true, true),
    ] {
        let what = format!("random {random} kill {kill} greedy {greedy}");
        let mut f = Fixture::new(96 * MIB);
        let ino = f.create(b"reserved");
        let blocks = 12_000;
        allocate(&f, ino, 0, blocks * BLOCK, Allocate::Reserve { keep_size: false });
        let (other, mut end) = fill(&f);
        let before = protected_in_use(&f);
        let mut order: Vec<u64> = (0..blocks).step_by(2).chain((1..blocks).step_by(2)).collect();
        if random {
            let mut rng = Rng::new(7);
            (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
        }
        for (i, part) in order.chunks(500).enumerate() {
            for block in part {
                f.write(ino, block * BLOCK, &pattern(*block, 4096));
                if greedy && let Ok(n) = f.fs.write(Caller::ROOT, other, end, &[9; 4096]) {
                    end += n as u64;
                }
            }
            let now = protected_in_use(&f);
            assert!(
                now <= before + 8,
                "{what}: {now} blocks of the protected part after {i}, {before} before"
            );
            if kill && i == 12 {
                f.kill();
            }
        }
        f.check();
        for block in 0..blocks {
            assert!(f.fs.read(ino, block * BLOCK, 4096).unwrap() == pattern(block, 4096), "{what}: {block}");
        }
    }
}

// Goal: space that a file and its clone see as set aside is there for the first of them that writes, also after a kill, and
// for nobody else; who reserves once more has his own. Method: reserve, clone, fill the pool; one of the two writes all of it,
// then the other is refused; or the clone reserves before the pool is full, and both write.
#[test]
fn shared_reserved_space_is_the_first_writers() {
    for (first, kill, again) in
        [(0, false, false), (1, false, false), (0, true, false), (1, true, false), (0, true, true)]
    {
        let mut f = Fixture::new(64 * MIB);
        let reserve = Allocate::Reserve { keep_size: false };
        let source = f.create(b"source");
        allocate(&f, source, 0, 4 * MIB, reserve);
        let clone = f.fs.clone_file(Caller::ROOT, source, ROOT, b"clone").unwrap().ino;
        let reserved = f.fs.space().reserved_bytes;
        if again {
            allocate(&f, clone, 0, 4 * MIB, reserve);
            assert!(f.fs.space().reserved_bytes >= reserved + 4 * MIB, "its own");
            let reserved = f.fs.space().reserved_bytes;
            allocate(&f, clone, 0, 4 * MIB, reserve);
            assert!(f.fs.space().reserved_bytes < reserved + MIB, "once");
        }
        fill(&f);
        if kill {
            f.kill();
        }
        let files = if first == 0 { [source, clone] } else { [clone, source] };
        for i in (0..4).rev() {
            f.write(files[0], i * MIB, &pattern(i, 1 << 20));
        }
        f.fs.sync().unwrap();
        f.check();
        if again {
            (0..4).for_each(|i| f.write(files[1], i * MIB, &pattern(i, 1 << 20)));
        } else {
            let written = f.fs.write(Caller::ROOT, files[1], 0, &pattern(9, 4 << 20)).unwrap_or(0) as u64;
            assert!(written < MIB, "{written}: it was the other's");
            f.truncate(files[1], 0);
        }
        f.fs.sync().unwrap();
        f.check();
        f.kill();
        for i in 0..4 {
            assert!(
                f.fs.read(files[0], i * MIB, 1 << 20).unwrap() == pattern(i, 1 << 20),
                "{first} {kill} {i}"
            );
        }
        f.check();
        assert!(f.fs.space().reserved_bytes < MIB, "{:?}", f.fs.space());
    }
}

// Goal: more than there is, is refused at once and whole. Method: reserve twice the pool; the books are as before.
#[test]
fn too_much_is_refused() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    let free = f.fs.statfs().unwrap().free_bytes;
    let reserve = Allocate::Reserve { keep_size: false };
    refused(f.fs.fallocate(Caller::ROOT, ino, 0, 128 * MIB, reserve), 28);
    refused(f.fs.fallocate(Caller::ROOT, ino, 0, 0, reserve), 22);
    refused(f.fs.fallocate(Caller::ROOT, ino, FILE_BYTES_MAX, 1, reserve), 27);
    refused(f.fs.fallocate(Caller::ROOT, ROOT, 0, 1, reserve), 21);
    assert_eq!(f.fs.getattr(ino).unwrap().size, 0);
    assert!(f.fs.statfs().unwrap().free_bytes + MIB > free);
    f.check();
}

// Goal: space reserved behind a cut inside a block is there, too. Method: cut a file, reserve beyond its end, fill the
// pool, write to the reservation.
#[test]
fn reserved_behind_a_cut() {
    for kill in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"reserved");
        f.write(ino, 0, &pattern(1, 10_000));
        f.fs.fsync(ino).unwrap();
        f.truncate(ino, 5_000);
        allocate(&f, ino, 3 * BLOCK, 4 * BLOCK, Allocate::Reserve { keep_size: true });
        fill(&f);
        if kill {
            f.kill();
        }
        for i in (3..7).rev() {
            f.write(ino, i * BLOCK, &pattern(i, 4096));
        }
        f.fs.sync().unwrap();
        f.kill();
        let mut expected = pattern(1, 5_000);
        expected.resize(3 * 4096, 0);
        (3..7).for_each(|i| expected.extend(pattern(i, 4096)));
        assert!(f.read_all(ino) == expected, "kill {kill}");
        f.check();
    }
}

// Goal: what is reserved beyond the end goes when the file is cut, wherever its size comes from. Method: grow a file in
// memory or in the log, reserve beyond its end, cut it to less or to what it has; look at the space.
#[test]
fn cutting_frees_reservations() {
    for sync in [false, true] {
        for size in [0, 5_000, 20_000] {
            let f = Fixture::new(64 * MIB);
            let ino = f.create(b"f");
            f.write(ino, 0, &pattern(1, 20_000));
            if sync {
                f.fs.sync().unwrap();
            }
            allocate(&f, ino, 0, 8 * MIB, Allocate::Reserve { keep_size: true });
            f.truncate(ino, size);
            f.fs.sync().unwrap();
            f.fs.checkpoint().unwrap();
            assert!(f.fs.space().reserved_bytes < MIB, "sync {sync} size {size}: {:?}", f.fs.space());
            assert!(f.read_all(ino) == pattern(1, 20_000)[..size as usize]);
            f.check();
        }
    }
}

// Goal: every fallocate changes the ctime, those that change bytes or the size the mtime too, and takes set-ids and
// capabilities away, whatever it finds to do. Method: all kinds on files of all forms, in ranges of all sorts.
#[test]
fn what_fallocate_does_to_attributes() {
    let user = Caller { uid: 1000, gid: 100 };
    for content in [0, 100, 5_000, 50_000] {
        for synced in [false, true] {
            for (offset, len) in
                [(0, 1), (10, 20), (4_096, 4_096), (100, 30_000), (60_000, 10), (80_000, 9_000)]
            {
                for how in [
                    Allocate::Punch,
                    Allocate::Reserve { keep_size: true },
                    Allocate::Reserve { keep_size: false },
                    Allocate::Zero { keep_size: true },
                    Allocate::Zero { keep_size: false },
                ] {
                    let f = Fixture::new(64 * MIB);
                    let ino = f.create(b"f");
                    f.write(ino, 0, &pattern(1, content));
                    f.truncate(ino, content as u64 + 2_000);
                    if synced {
                        f.fs.sync().unwrap();
                    }
                    let set = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
                    f.fs.setattr(Caller::ROOT, ino, set).unwrap();
                    f.fs.setxattr(ino, b"security.capability", b"x", XattrMode::Set).unwrap();
                    for turn in 0..2 {
                        let tag = format!("{content} {synced} {offset}+{len} {how:?} turn {turn}");
                        let before = f.fs.getattr(ino).unwrap();
                        f.fs.fallocate(user, ino, offset, len, how).unwrap();
                        let after = f.fs.getattr(ino).unwrap();
                        let data = after.size > before.size || !matches!(how, Allocate::Reserve { .. });
                        assert!(after.ctime > before.ctime, "{tag}: ctime");
                        assert_eq!(after.mtime > before.mtime, data, "{tag}: mtime");
                        assert_eq!(after.mode, 0o755, "{tag}");
                        refused(f.fs.getxattr(ino, b"security.capability"), 61);
                    }
                    f.fs.sync().unwrap();
                    f.check();
                }
            }
        }
    }
}

// Goal: small files and reservations go together. Method: contents inside the record, reserve around them, kill.
#[test]
fn small_files() {
    let mut f = Fixture::new(64 * MIB);
    for (i, len) in [0u64, 1, 100, 1700].into_iter().enumerate() {
        for flush in [false, true] {
            let ino = f.create(format!("f{i}{flush}").as_bytes());
            f.write(ino, 0, &pattern(9, len as usize));
            if flush {
                f.fs.flush_file(ino).unwrap();
            }
            allocate(&f, ino, 0, 10_000, Allocate::Reserve { keep_size: true });
            f.check();
            assert!(f.read_all(ino) == pattern(9, len as usize));
            f.write(ino, 1, b"more");
            f.fs.sync().unwrap();
            f.kill();
            assert_eq!(f.fs.read(ino, 1, 4).unwrap(), b"more");
            allocate(&f, ino, 2, 2, Allocate::Punch);
            assert_eq!(f.fs.read(ino, 1, 4).unwrap(), b"m\0\0e");
            f.truncate(ino, 0);
            f.write(ino, 0, b"back");
            f.fs.sync().unwrap();
            f.check();
        }
    }
}

/// A block of its own for each of `numbers`.
fn blocks(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    numbers.flat_map(|number| pattern(number, BLOCK as usize)).collect()
}

// Goal: taking out and putting in refuse what fallocate(2) refuses, and happen wholly or not at all. Method: every wrong
// argument; a file over several segments, moved by amounts that cut its extents anew; killed before and after a sync.
#[test]
fn ranges_move() {
    const SIZE: u64 = 700 * BLOCK;
    let mut f = Fixture::new(128 * MIB);
    let ino = f.create(b"f");
    let whole = [blocks(0..700), b"tail".to_vec()].concat();
    f.write(ino, 0, &whole);
    f.fs.sync().unwrap();
    for (offset, len, errno) in [
        (0, 0, 22),
        (1, BLOCK, 22),
        (BLOCK, 5, 22),
        (SIZE, BLOCK, 22),
        (SIZE - BLOCK, 2 * BLOCK, 22),
        (BLOCK, FILE_BYTES_MAX, 27),
        (u64::MAX - BLOCK + 1, BLOCK, 27),
    ] {
        refused(f.fs.collapse_range(Caller::ROOT, ino, offset, len), errno);
    }
    for (offset, len, errno) in
        [(0, 0, 22), (0, 7, 22), (7, BLOCK, 22), (SIZE + BLOCK, BLOCK, 22), (0, FILE_BYTES_MAX, 27)]
    {
        refused(f.fs.insert_range(Caller::ROOT, ino, offset, len), errno);
    }
    refused(f.fs.collapse_range(Caller::ROOT, ROOT, 0, BLOCK), 21);
    refused(f.fs.insert_range(Caller::ROOT, ROOT, 0, BLOCK), 21);
    assert!(f.read_all(ino) == whole);

    let used = f.fs.space().used_bytes;
    f.fs.collapse_range(Caller::ROOT, ino, 3 * BLOCK, 301 * BLOCK).unwrap();
    let collapsed = [blocks((0..3).chain(304..700)), b"tail".to_vec()].concat();
    assert!(f.read_all(ino) == collapsed);
    f.check();
    f.kill();
    assert!(f.read_all(ino) == whole, "what was not synced is gone as a whole");
    f.fs.collapse_range(Caller::ROOT, ino, 3 * BLOCK, 301 * BLOCK).unwrap();
    f.fs.sync().unwrap();
    f.kill();
    assert!(f.read_all(ino) == collapsed);
    assert!(f.fs.space().used_bytes + 300 * BLOCK < used, "the space of the range is free");

    f.fs.insert_range(Caller::ROOT, ino, 3 * BLOCK, 301 * BLOCK).unwrap();
    let room = vec![0; 301 * BLOCK as usize];
    let inserted = [blocks(0..3), room, blocks(304..700), b"tail".to_vec()].concat();
    assert!(f.read_all(ino) == inserted);
    assert_eq!(f.fs.seek(ino, 3 * BLOCK, SeekTo::Hole).unwrap(), Some(3 * BLOCK));
    assert_eq!(f.fs.seek(ino, 3 * BLOCK, SeekTo::Data).unwrap(), Some(304 * BLOCK));
    // A cut of many entries leaves versions behind, which are made one first.
    f.fs.sync().unwrap();
    f.check();
    // Growing past the moved tail shows zeros.
    f.truncate(ino, 702 * BLOCK);
    assert!(f.fs.read(ino, SIZE + 4, 5000).unwrap().iter().all(|byte| *byte == 0));
    f.fs.sync().unwrap();
    f.kill();
    f.check();
}

// Goal: a file in very many pieces is moved in one step, after a cut of it too, and one in too many is refused whole.
// Method: every second block written; cut so that the reaper has work; moved; then far more pieces.
#[test]
fn many_pieces_move() {
    let f = Fixture::with(512 * MIB, HASH_KIND_SIPHASH13, 64 * MIB);
    let ino = f.create(b"f");
    for i in 0..20_000 {
        f.write(ino, 2 * i * BLOCK, &pattern(i, 16));
    }
    f.fs.sync().unwrap();
    f.truncate(ino, 20_000 * BLOCK);
    f.fs.collapse_range(Caller::ROOT, ino, BLOCK, BLOCK).unwrap();
    for i in [0, 1, 5, 128, 129, 9_999] {
        let at = if i == 0 { 0 } else { 2 * i - 1 };
        assert!(f.fs.read(ino, at * BLOCK, 16).unwrap() == pattern(i, 16), "{i}");
    }
    f.check();
    for i in 0..40_000 {
        f.write(ino, (40_000 + 2 * i) * BLOCK, &pattern(i, 16));
    }
    f.fs.sync().unwrap();
    let size = f.fs.getattr(ino).unwrap().size;
    refused(f.fs.insert_range(Caller::ROOT, ino, 0, BLOCK), 27);
    assert_eq!(f.fs.getattr(ino).unwrap().size, size);
    f.fs.insert_range(Caller::ROOT, ino, size / BLOCK * BLOCK, BLOCK).unwrap();
    f.check();
}

// Goal: copies are whole, within a file too, and refuse what makes no sense. Method: by hand.
#[test]
fn copies() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    let data = pattern(3, 3_000_000);
    f.write(a, 0, &data);
    assert_eq!(f.fs.copy_range(Caller::ROOT, (a, 0), (b, 5), 1 << 40).unwrap(), 3_000_000);
    assert!(f.fs.read(b, 5, 4_000_000).unwrap() == data);
    assert_eq!(f.fs.copy_range(Caller::ROOT, (a, 3_000_000), (b, 0), 10).unwrap(), 0);
    assert_eq!(f.fs.copy_range(Caller::ROOT, (b, 0), (b, 4_000_000), 1000).unwrap(), 1000);
    refused(f.fs.copy_range(Caller::ROOT, (b, 0), (b, 500), 1000), 22);
    refused(f.fs.copy_range(Caller::ROOT, (ROOT, 0), (b, 500), 1000), 21);
    // No further than the source reached when it began, and what is beyond it does not overlap.
    let c = f.create(b"c");
    f.write(c, 0, &data[..900]);
    assert_eq!(f.fs.copy_range(Caller::ROOT, (c, 0), (c, 1000), 5000).unwrap(), 900);
    assert_eq!(f.fs.getattr(c).unwrap().size, 1900);
    f.fs.sync().unwrap();
    f.check();
}

// Goal: files reach to 2^62 bytes and no further, with holes that cost nothing. Method: write at the ends, cut, kill.
#[test]
fn the_largest_file() {
    let mut f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    f.write(ino, 0, b"first");
    f.write(ino, FILE_BYTES_MAX - 1, b"z");
    f.write(ino, 1 << 50, b"middle");
    refused(f.fs.write(Caller::ROOT, ino, FILE_BYTES_MAX, b"z"), 27);
    f.fs.sync().unwrap();
    f.kill();
    assert_eq!(f.fs.getattr(ino).unwrap().size, FILE_BYTES_MAX);
    assert_eq!(f.fs.seek(ino, 4096, SeekTo::Data).unwrap(), Some(1 << 50));
    assert_eq!(f.fs.seek(ino, 1 << 50, SeekTo::Hole).unwrap(), Some((1 << 50) + 4096));
    assert_eq!(f.fs.seek(ino, 1 << 61, SeekTo::Data).unwrap(), Some(FILE_BYTES_MAX - 4096));
    assert_eq!(f.fs.read(ino, FILE_BYTES_MAX - 2, 10).unwrap(), b"\0z");
    let set = SetAttr { size: Some(FILE_BYTES_MAX + 1), ..SetAttr::default() };
    refused(f.fs.setattr(Caller::ROOT, ino, set), 27);
    f.truncate(ino, (1 << 50) + 3);
    assert_eq!(f.fs.read(ino, 1 << 50, 10).unwrap(), b"mid");
    allocate(&f, ino, 4096, (1 << 50) - 4096, Allocate::Punch);
    f.check();
}

/// How many: few in every run, as many as `VARVE_MANY` says when somebody wants to know.
fn many(ordinary: u32) -> u32 {
    std::env::var("VARVE_MANY").map_or(ordinary, |text| text.parse().expect("VARVE_MANY is a number"))
}

// Goal: a file may have hundreds of thousands of names. Method: link and unlink them, count.
#[test]
fn many_links() {
    let count = many(200_000);
    let f = Fixture::new(if count > 100_000 { 2048 * MIB } else { 256 * MIB });
    let ino = f.create(b"f");
    for i in 0..count {
        f.fs.link(ino, ROOT, format!("link {i}").as_bytes()).unwrap();
    }
    assert_eq!(f.fs.getattr(ino).unwrap().links, count + 1);
    f.check();
    for i in 0..count {
        f.fs.unlink(ROOT, format!("link {i}").as_bytes()).unwrap();
    }
    assert_eq!(f.fs.getattr(ino).unwrap().links, 1);
    f.check();
}

// Goal: a directory may have a million names, each listed once and found at a cost that hardly grows. Method: create,
// list, look up, remove.
#[test]
fn many_names() {
    let count = many(30_000);
    let mut f = Fixture::new(if count > 100_000 { 4096 * MIB } else { 256 * MIB });
    let dir = f.mkdir(ROOT, b"dir");
    let name = |i: u32| format!("a name of ordinary length, {i}").into_bytes();
    for i in 0..count {
        f.fs.create(Caller::ROOT, dir, &name(i), 0o644).unwrap();
    }
    f.reopen();
    assert_eq!(f.fs.getattr(dir).unwrap().size, u64::from(count));
    let names = f.list(dir);
    assert_eq!((names.len(), names.windows(2).any(|pair| pair[0] == pair[1])), (count as usize, false));
    for i in 0..count {
        f.fs.lookup(dir, &name(i)).unwrap();
    }
    refused(f.fs.lookup(dir, &name(count)), 2);
    for i in 0..count {
        f.fs.unlink(dir, &name(i)).unwrap();
    }
    f.fs.rmdir(ROOT, b"dir").unwrap();
    f.check();
}
