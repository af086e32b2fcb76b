//! Ranges that files share: whole blocks of one become a part of another.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use varve_engine::TreeId;
use varve_format::record::shares::SharedRun;
use varve_sim::Rng;

use super::*;
use varve_fs::internals::ops::ranges::Part;

impl Fixture {
    fn free(&self) -> u64 {
        self.fs.sync().unwrap();
        self.fs.statfs().unwrap().free_bytes / 4096
    }

    /// Blocks that more than one extent names, and how many more in all.
    fn shared(&self) -> (u64, u64) {
        let (mut blocks, mut more) = (0, 0);
        self.fs
            .core()
            .store
            .view()
            .scan(TreeId::SHARES, &[], &mut |key, value| {
                let run = SharedRun::decode(key, value).unwrap();
                (blocks, more) = (blocks + u64::from(run.blocks), more + u64::from(run.blocks) * run.more);
                true
            })
            .unwrap();
        (blocks, more)
    }

    fn clone_range(&self, from: (InodeId, u64), to: (InodeId, u64), len: u64) {
        self.fs.clone_range(Caller::ROOT, from, to, len).unwrap();
    }
}

// Goal: a shared range costs no space, whoever writes or goes away leaves the others as they were, and the last to go
// frees it. Method: three files share a MiB, one by one they change it, are cut and deleted.
#[test]
fn a_shared_range_lives_as_long_as_somebody_has_it() {
    let mut f = Fixture::new(64 * MIB);
    let (a, b, c) = (f.create(b"a"), f.create(b"b"), f.create(b"c"));
    let data = pattern(1, 2 * MIB as usize);
    f.write(a, 0, &data);
    f.write(b, 0, &pattern(2, 5000));
    let before = f.free();
    f.clone_range((a, MIB), (b, MIB), MIB);
    f.clone_range((a, MIB), (c, 0), MIB);
    assert!(f.free() + 100 > before, "no data was copied");
    assert_eq!(f.shared(), (256, 512));
    let mut of_b = pattern(2, 5000);
    of_b.resize(MIB as usize, 0);
    of_b.extend(&data[MIB as usize..]);
    assert!(f.read_all(b) == of_b && f.read_all(c) == data[MIB as usize..]);
    f.write(a, MIB + 8192, &[9; 4096]);
    f.check();
    assert_eq!(f.shared(), (256, 512), "what waits in memory has changed nothing yet");
    f.fs.sync().unwrap();
    assert_eq!(f.shared(), (256, 511));
    assert!(f.read_all(b) == of_b && f.read_all(c) == data[MIB as usize..]);
    f.kill();
    f.check();
    f.truncate(c, 40_960);
    f.fs.unlink(ROOT, b"a").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    assert_eq!(f.shared(), (10, 10));
    assert!(f.read_all(b) == of_b && f.read_all(c) == data[MIB as usize..][..40_960]);
    f.fs.unlink(ROOT, b"b").unwrap();
    f.fs.maintain().unwrap();
    assert_eq!(f.shared(), (0, 0));
    assert!(f.read_all(c) == data[MIB as usize..][..40_960]);
    f.fs.unlink(ROOT, b"c").unwrap();
    f.reopen();
    f.check();
}

// Goal: what FICLONERANGE refuses is refused, and has changed nothing. Method: by hand.
#[test]
fn ranges_that_make_no_sense() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    f.write(a, 0, &pattern(1, 50_000));
    f.write(b, 0, &pattern(2, 50_000));
    let try_clone = |from, to, len| f.fs.clone_range(Caller::ROOT, from, to, len);
    for (from, to, len) in [
        ((a, 1), (b, 0), 4096),
        ((a, 0), (b, 1), 4096),
        ((a, 0), (b, 0), 1000),
        ((a, 0), (b, 0), 53_248),
        // The end of the source in the middle of the target.
        ((a, 40_960), (b, 0), 9040),
        ((a, 0), (a, 4096), 8192),
        ((a, 57_344), (b, 0), 4096),
    ] {
        refused(try_clone(from, to, len), 22);
    }
    refused(try_clone((ROOT, 0), (b, 0), 4096), 21);
    refused(try_clone((a, 0), (b, FILE_BYTES_MAX - 4095), 8192), 27);
    let dedupe = |from, to, len| f.fs.dedupe_range(from, to, len);
    refused(dedupe((a, 0), (b, 45_056), 8192), 22);
    refused(dedupe((a, 0), (b, 0), 100), 22);
    assert!(f.read_all(a) == pattern(1, 50_000) && f.read_all(b) == pattern(2, 50_000));
    // To the end of the source, which becomes the end of the target.
    try_clone((a, 40_960), (b, 49_152), 0).unwrap();
    let expect = [&pattern(2, 50_000)[..49_152], &pattern(1, 50_000)[40_960..]].concat();
    assert!(f.read_all(b) == expect);
    f.check();
}

// Goal: the bytes behind the end of a file never show, in the source or in what shares its last block. Method: a file cut
// inside a block, its end shared, both grown.
#[test]
fn the_tail_of_a_shared_block_is_zeros() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    f.write(a, 0, &pattern(1, 50_000));
    f.fs.sync().unwrap();
    f.truncate(a, 45_000);
    f.write(b, 0, &pattern(2, 30_000));
    f.clone_range((a, 40_960), (b, 28_672), 0);
    let mut of_b = [&pattern(2, 30_000)[..28_672], &pattern(1, 50_000)[40_960..45_000]].concat();
    assert!(f.read_all(b) == of_b);
    f.truncate(a, 50_000);
    f.truncate(b, 60_000);
    let mut of_a = pattern(1, 50_000);
    of_a[45_000..].fill(0);
    of_b.resize(60_000, 0);
    assert!(f.read_all(a) == of_a && f.read_all(b) == of_b);
    f.check();
}

// Goal: copies share whole blocks that lie alike, and are right whatever lies how. Method: a long copy at offsets that
// match and at some that do not, with the space counted.
#[test]
fn a_copy_shares_what_it_can() {
    let f = Fixture::new(64 * MIB);
    let (a, b, c) = (f.create(b"a"), f.create(b"b"), f.create(b"c"));
    let data = pattern(1, 5 * MIB as usize + 777);
    f.write(a, 0, &data);
    let before = f.free();
    let copy = |to, from_at: usize, to_at: u64, len| {
        assert_eq!(f.fs.copy_range(Caller::ROOT, (a, from_at as u64), (to, to_at), len).unwrap(), len);
    };
    copy(b, 100, 4096 + 100, 4 * MIB);
    assert!(f.free() + 50 > before, "but for the ends nothing was copied");
    let mut expect = vec![0; 4196];
    expect.extend(&data[100..][..4 * MIB as usize]);
    assert!(f.read_all(b) == expect);
    copy(c, 100, 101, MIB);
    assert!(f.free() + 250 < before, "nothing could be shared");
    assert!(f.read_all(c)[101..] == data[100..][..MIB as usize]);
    // A copy in pieces, as the kernel asks for a large file.
    let d = f.create(b"d");
    for (at, len) in [(0, 2 * MIB), (2 * MIB, 2 * MIB), (4 * MIB, MIB + 777)] {
        copy(d, at as usize, at, len);
    }
    assert!(f.free() + 350 > before, "the pieces are shared");
    assert!(f.read_all(d) == data);
    f.check();
}

// Goal: what is the same is stored once, what differs is left alone, also when it differs in a single bit, and times stay.
// Method: two files alike in parts.
#[test]
fn duplicates_are_found_by_looking() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    let data = pattern(1, 3 * MIB as usize + 100);
    f.write(a, 0, &data);
    let mut other = data.clone();
    other[2 * MIB as usize + 5] ^= 1;
    f.write(b, 0, &other);
    let before = f.free();
    let dedupe = |at, len| f.fs.dedupe_range((a, at), (b, at), len).unwrap();
    let attr = f.fs.getattr(b).unwrap();
    assert_eq!(dedupe(2 * MIB, MIB), Deduped::Differs);
    assert_eq!(dedupe(0, 3 * MIB + 100), Deduped::Same(2 * MIB));
    assert_eq!(dedupe(0, 2 * MIB), Deduped::Same(2 * MIB), "again");
    assert_eq!(dedupe(3 * MIB, 100), Deduped::Same(100));
    let after = f.fs.getattr(b).unwrap();
    assert_eq!((attr.mtime, attr.ctime, attr.size), (after.mtime, after.ctime, after.size));
    assert!(f.free() >= before + 510, "two MiB are stored once");
    assert!(f.read_all(a) == data && f.read_all(b) == other);
    let small = f.create(b"small");
    f.write(small, 0, b"abc");
    refused(f.fs.dedupe_range((small, 0), (small, 4096), 0), 22);
    let twin = f.create(b"twin");
    f.write(twin, 0, b"abc");
    f.fs.sync().unwrap();
    refused(f.fs.dedupe_range((small, 0), (twin, 0), 3), 95);
    // A file of holes whose first data waits in memory, elsewhere: it is none that lies in its record.
    let holes = f.create(b"holes");
    f.truncate(holes, MIB);
    f.write(holes, MIB / 2, &pattern(9, 2000));
    assert_eq!(f.fs.dedupe_range((a, 0), (holes, 61_440), 8192).unwrap(), Deduped::Differs);
    f.check();
}

// Goal: who looks for duplicates never makes a file longer, or gives it back what others have cut off meanwhile. Method: a file of zeros
// is cut, and in turn the other, between two pieces that are compared: at a block, within one, to nothing; and behind a comparison.
#[test]
fn duplicates_never_make_a_file_longer() {
    for size in [2 * MIB, MIB + 5000, MIB, 4096, 5000, 0] {
        for cut_source in [false, true] {
            let f = Fixture::new(64 * MIB);
            let (a, b) = (f.create(b"a"), f.create(b"b"));
            for ino in [a, b] {
                f.write(ino, 0, &vec![0; 3 * MIB as usize]);
            }
            f.fs.sync().unwrap();
            let cut = Cell::new(false);
            let cuts = || {
                if !cut.replace(true) {
                    f.truncate(if cut_source { a } else { b }, size);
                }
                true
            };
            let same = f.fs.dedupe_range_while((a, 0), (b, 0), 3 * MIB, &cuts).unwrap();
            let whole = if size == 2 * MIB { 2 * MIB } else { MIB };
            assert_eq!(same, Deduped::Same(whole), "{size} {cut_source}");
            let sizes = [a, b].map(|ino| f.fs.getattr(ino).unwrap().size);
            let expect = if cut_source { [size, 3 * MIB] } else { [3 * MIB, size] };
            assert_eq!(sizes, expect, "{cut_source}");
            f.check();
        }
    }
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    f.truncate(a, MIB);
    f.truncate(b, 4096);
    let (part, holes) = (Part { from: 0, to: 0, len: MIB }, vec![(0, MIB, None)]);
    assert_eq!(f.fs.core().share_part(None, a, b, part, Some((&holes, &holes))).unwrap(), 0);
    assert_eq!(f.fs.getattr(b).unwrap().size, 4096);
}

// Goal: where the end of two files cannot be shared what lies in front of it is, as by a clone of the range. Method: a file that was cut
// within a block that is on the disk, and one with the same bytes that was set aside once.
#[test]
fn an_end_that_cannot_be_shared_keeps_the_rest_from_nothing() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    let data = pattern(1, 110_000);
    f.write(a, 0, &data);
    f.fs.sync().unwrap();
    f.truncate(a, 100_000);
    let reserve = Allocate::Reserve { keep_size: false };
    f.fs.fallocate(Caller::ROOT, b, 0, 100_000, reserve).unwrap();
    f.write(b, 0, &data[..100_000]);
    f.fs.sync().unwrap();
    for again in [false, true] {
        assert_eq!(f.fs.dedupe_range((a, 0), (b, 0), 100_000).unwrap(), Deduped::Same(98_304), "{again}");
        assert_eq!(f.shared(), (24, 24), "{again}");
    }
    assert!(f.read_all(a) == data[..100_000] && f.read_all(b) == data[..100_000]);
    f.check();
}

// Goal: files of holes are compared like others, also those of which nothing has ever been in a block. Method: two such, one and one with
// zeros in it, either way, and one with data.
#[test]
fn holes_are_the_same_as_holes() {
    let f = Fixture::new(64 * MIB);
    let [a, b, zeros, data] = [b"a", b"b", b"z", b"d"].map(|name| f.create(name));
    [a, b].into_iter().for_each(|ino| f.truncate(ino, 100_000));
    f.write(zeros, 0, &[0; 65_536]);
    f.write(data, 0, &pattern(1, 65_536));
    for again in [false, true] {
        let dedupe = |from, to, len| f.fs.dedupe_range((from, 0), (to, 0), len).unwrap();
        assert_eq!(dedupe(a, b, 100_000), Deduped::Same(100_000), "{again}");
        assert_eq!(dedupe(a, data, 65_536), Deduped::Differs);
        assert_eq!(dedupe(data, a, 65_536), Deduped::Differs);
        assert_eq!(dedupe(zeros, b, 65_536), Deduped::Same(65_536));
        assert_eq!(dedupe(a, zeros, 65_536), Deduped::Same(65_536));
        f.fs.sync().unwrap();
        f.check();
    }
    assert!(
        f.read_all(a) == [0; 100_000] && f.read_all(b) == [0; 100_000] && f.read_all(zeros) == [0; 65_536]
    );
}

// Goal: any mixture of sharing with everything else that changes data reads like plain bytes. Method: random verbs on a
// few files beside vectors, with closing and killing in between, and the check.
#[test]
fn beside_plain_bytes() {
    for seed in 0..12 {
        let mut f = Fixture::new(64 * MIB);
        let mut rng = Rng::new(seed);
        let files: Vec<InodeId> = (0..4).map(|i| f.create(format!("f{i}").as_bytes())).collect();
        let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); 4];
        let mut shared = 0;
        for step in 0..150 {
            let (s, t) = (rng.below(4) as usize, rng.below(4) as usize);
            let (from, to) = (files[s], files[t]);
            let block = |rng: &mut Rng, len: usize| rng.below(len as u64 / 4096 + 2) as usize * 4096;
            match rng.below(10) {
                0..3 => {
                    let (at, len) = (rng.below(2_000_000) as usize, 1 + rng.below(200_000) as usize);
                    let data = pattern(rng.below(1 << 40), len);
                    f.write(to, at as u64, &data);
                    let len = bytes[t].len().max(at + data.len());
                    resize(&mut bytes[t], len);
                    bytes[t][at..at + data.len()].copy_from_slice(&data);
                }
                3..6 => {
                    let (a, b) = (block(&mut rng, bytes[s].len()), block(&mut rng, bytes[t].len()));
                    let len = bytes[s].len().saturating_sub(a);
                    let len = if b + len < bytes[t].len() { len / 4096 * 4096 } else { len };
                    let span = len.next_multiple_of(4096);
                    if len == 0 || (s == t && a < b + span && b < a + span) {
                        continue;
                    }
                    f.clone_range((from, a as u64), (to, b as u64), len as u64);
                    let data = bytes[s][a..a + len].to_vec();
                    let end = bytes[t].len().max(b + len);
                    resize(&mut bytes[t], end);
                    bytes[t][b..b + len].copy_from_slice(&data);
                }
                6 => {
                    let (a, b) = (rng.below(1 << 20) as usize, rng.below(1 << 20) as usize);
                    let b = if rng.below(2) == 0 { b / 4096 * 4096 + a % 4096 } else { b };
                    let len = bytes[s].len().saturating_sub(a).min(1 + rng.below(400_000) as usize);
                    if s == t && a < b + len && b < a + len {
                        continue;
                    }
                    let done = f.fs.copy_range(Caller::ROOT, (from, a as u64), (to, b as u64), len as u64);
                    assert_eq!(done.unwrap(), len as u64);
                    if len > 0 {
                        let data = bytes[s][a..a + len].to_vec();
                        let end = bytes[t].len().max(b + len);
                        resize(&mut bytes[t], end);
                        bytes[t][b..b + len].copy_from_slice(&data);
                    }
                }
                7 => {
                    let size = rng.below(2_000_000) as usize;
                    f.truncate(to, size as u64);
                    resize(&mut bytes[t], size);
                }
                8 => {
                    let (at, len) = (rng.below(1 << 20), 1 + rng.below(100_000));
                    let how = if rng.below(2) == 0 {
                        Allocate::Punch
                    } else {
                        Allocate::Reserve { keep_size: true }
                    };
                    f.fs.fallocate(Caller::ROOT, to, at, len, how).unwrap();
                    let end = (at + len).min(bytes[t].len() as u64) as usize;
                    if how == Allocate::Punch && (at as usize) < end {
                        bytes[t][at as usize..end].fill(0);
                    }
                }
                _ => match rng.below(4) {
                    0 => f.reopen(),
                    1 => {
                        f.fs.sync().unwrap();
                        f.kill();
                    }
                    2 => f.fs.maintain().unwrap(),
                    _ => f.fs.sync().unwrap(),
                },
            }
            for (ino, bytes) in files.iter().zip(&bytes) {
                assert!(f.read_all(*ino) == *bytes, "seed {seed}, step {step}");
            }
            if step % 10 == 0 {
                f.check();
                shared = shared.max(f.shared().1);
            }
        }
        assert!(shared > 100, "seed {seed} shared little: {shared}");
        f.check();
        for i in 0..4 {
            f.fs.unlink(ROOT, format!("f{i}").as_bytes()).unwrap();
        }
        f.reopen();
        assert_eq!(f.shared(), (0, 0), "seed {seed}");
        f.check();
    }
}

// Goal: the end of a range that lay inside a block at the end of both files does not reach further when either has grown
// since: neither shows what the other has behind it, nor loses what it has there. Method: a range is shared as it was
// asked for before an append to the source, to the target, and before the target was made longer by a hole.
#[test]
fn a_file_grows_before_its_last_block_is_shared() {
    let (len, grown) = (10_000, 12_000);
    for (source_grows, target_grows) in [(true, false), (false, true), (true, true)] {
        let f = Fixture::new(64 * MIB);
        let (a, b) = (f.create(b"a"), f.create(b"b"));
        let sizes = [source_grows, target_grows].map(|grows| if grows { grown } else { len });
        let (of_a, mut of_b) = (pattern(1, sizes[0]), pattern(2, sizes[1]));
        f.write(a, 0, &of_a);
        f.write(b, 0, &of_b);
        f.fs.sync().unwrap();
        let part = Part { from: 0, to: 0, len: len as u64 };
        let done = f.fs.core().share_part(Some(Caller::ROOT), a, b, part, None).unwrap();
        assert_eq!(done, 8192, "whole blocks are shared");
        of_b[..8192].copy_from_slice(&of_a[..8192]);
        assert!(f.read_all(b) == of_b, "what was appended to the target is there");
        f.check();
        f.truncate(b, 16_384);
        of_b.resize(16_384, 0);
        assert!(f.read_all(b) == of_b, "nothing of the source shows behind the end");
        f.check();
    }
}

// Goal: holes stay holes, also of a file whose contents lie in its record, and cost nothing, however long they are. Method: files
// of 0 and of 100 bytes that end far behind them, larger than the pool, cloned whole and from a block in the hole on, over nothing
// and over data.
#[test]
fn holes_behind_what_lies_in_a_record_stay_holes() {
    const END: u64 = (1 << 30) + 100;
    for (contents, from) in [(0, 0), (100, 0), (100, 8192)] {
        let f = Fixture::new(64 * MIB);
        let (a, b, c) = (f.create(b"a"), f.create(b"b"), f.create(b"c"));
        f.write(a, 0, &pattern(1, contents));
        f.fs.sync().unwrap();
        f.truncate(a, END);
        f.write(c, 0, &pattern(2, 20_000));
        let before = f.free();
        for to in [b, c] {
            f.clone_range((a, from), (to, 4096), 0);
            assert_eq!(f.fs.getattr(to).unwrap().size, 4096 + END - from);
            let mut expect = pattern(2, 4096);
            if to == b {
                expect.fill(0);
            }
            expect.extend(if from == 0 { pattern(1, contents) } else { Vec::new() });
            expect.resize(30_000, 0);
            assert!(f.fs.read(to, 0, 30_000).unwrap() == expect);
            let behind = f.fs.seek(to, 8192, varve_fs::SeekTo::Data).unwrap();
            assert_eq!(behind, None, "data behind {contents} bytes from {from} on");
        }
        assert!(f.free() + 10 > before);
        f.check();
    }
}

// Goal: what is found of a range after a crash is a beginning of it, also where its first block is copied, because it lies in
// the source's record, and the holes behind that are shared. Method: the transactions that log data of the target, which was
// durable, or has blocks in memory there; what a kill leaves after all of them.
#[test]
fn what_lies_in_a_record_is_logged_before_the_holes_behind_it() {
    for dirty in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        let (a, b) = (f.create(b"a"), f.create(b"b"));
        f.write(a, 0, &pattern(1, 100));
        f.fs.fsync(a).unwrap();
        f.truncate(a, 65_536);
        f.write(b, 0, &pattern(2, 90_000));
        f.fs.sync().unwrap();
        if dirty {
            f.write(b, 24_576, &pattern(3, 4096));
        }
        f.logged.lock().clear();
        f.clone_range((a, 0), (b, 4096), 65_536);
        let places: Vec<_> =
            f.logged.lock().drain(..).map(|event| (event.ino, event.offset, event.len)).collect();
        let mut expect = vec![(b, 4096, 4096), (b, 8192, 61_440)];
        if dirty {
            expect.insert(0, (b, 24_576, 4096));
        }
        assert_eq!(places, expect);
        f.fs.fsync(a).unwrap();
        f.kill();
        let mut bytes = pattern(2, 90_000);
        bytes[4096..69_632].fill(0);
        bytes[4096..4196].copy_from_slice(&pattern(1, 100));
        assert!(f.read_all(b) == bytes);
        f.check();
    }
}

// Goal: a copy of so many bytes does not become a clone of a source that has more by then. Method: the clone is asked for
// with the length that the source had before an append, and with the one it has.
#[test]
fn a_source_grows_before_it_is_cloned() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    let data = pattern(1, 12_000);
    f.write(a, 0, &data);
    let clone = |size_max| f.fs.core().clone_into(Caller::ROOT, a, b, size_max).unwrap();
    assert!(clone(10_000).is_none() && f.read_all(b).is_empty(), "it has more");
    assert!(clone(20_000) == Some(12_000) && f.read_all(b) == data);
    f.check();
}

// Goal: sharing takes no data space, also on a full pool, and what is written over a shared range has its own. Method: a
// pool filled up, a range shared, the shared blocks written to after a file has gone.
#[test]
fn on_a_full_pool() {
    let f = Fixture::new(64 * MIB);
    let (a, b) = (f.create(b"a"), f.create(b"b"));
    f.write(a, 0, &pattern(1, 8 * MIB as usize));
    f.fs.sync().unwrap();
    let filler = f.create(b"filler");
    let mut at = 0;
    while let Ok(written) = f.fs.write(Caller::ROOT, filler, at, &pattern(2, 1 << 20)) {
        at += written as u64;
        f.fs.sync().unwrap();
    }
    f.truncate(filler, at - 64 * 4096);
    f.fs.sync().unwrap();
    f.clone_range((a, 0), (b, 0), 8 * MIB);
    assert!(f.read_all(b) == pattern(1, 8 * MIB as usize));
    f.check();
    // The filler's end is not enough for all of this, and that is told before anything is lost.
    let refused = (0..8).find_map(|at| f.fs.write(Caller::ROOT, b, at * MIB, &pattern(3, 1 << 20)).err());
    assert!(refused.is_some_and(|error| error.errno() == 28));
    f.fs.sync().unwrap();
    f.check();
    f.fs.unlink(ROOT, b"filler").unwrap();
    f.write(b, 0, &pattern(4, 8 * MIB as usize));
    f.fs.sync().unwrap();
    assert!(f.read_all(a) == pattern(1, 8 * MIB as usize) && f.read_all(b) == pattern(4, 8 * MIB as usize));
    assert_eq!(f.shared(), (0, 0));
    f.check();
}

// Goal: what lies behind a place moves also where snapshots and clones show the same data, in one transaction, and they
// see what they saw. Method: a clone and a snapshot of a file, both ways of moving on each, deletion of all but one.
#[test]
fn shared_data_moves() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let file = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    let data = pattern(1, 3 * MIB as usize + 5);
    f.write(file, 0, &data);
    let clone = f.fs.clone_file(Caller::ROOT, file, sub, b"clone").unwrap().ino;
    let snapshot = f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
    let old = f.fs.lookup(snapshot, b"file").unwrap().ino;
    let before = f.free();
    let (at, len) = (MIB as usize + 4096, 8192);
    f.fs.collapse_range(Caller::ROOT, file, at as u64, len as u64).unwrap();
    f.fs.insert_range(Caller::ROOT, clone, at as u64, len as u64).unwrap();
    let mut collapsed = data.clone();
    collapsed.drain(at..at + len);
    let mut inserted = data.clone();
    inserted.splice(at..at, vec![0; len]);
    let all = |f: &Fixture| {
        assert!(f.read_all(file) == collapsed && f.read_all(clone) == inserted && f.read_all(old) == data);
        f.check();
    };
    all(&f);
    assert!(f.free() + 100 > before, "nothing was copied");
    f.kill();
    all(&f);
    f.write(file, 0, &collapsed[..100]);
    f.fs.maintain().unwrap();
    all(&f);
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.unlink(sub, b"clone").unwrap();
    f.fs.maintain().unwrap();
    assert!(f.read_all(file) == collapsed);
    assert_eq!(f.shared(), (0, 0));
    f.check();
}

// Goal: a source that is cut and grows again while a range of it is cloned is told to whoever clones, or cloned as it was at some time.
// Method: a thread that cuts it in the middle of a block and writes it again, beside clones.
#[test]
fn a_source_that_is_cut_and_grows_again() {
    let f = Fixture::new(64 * MIB);
    let (source, target) = (f.create(b"source"), f.create(b"target"));
    let data = pattern(1, 12_288);
    f.write(source, 0, &data);
    f.fs.fsync(source).unwrap();
    let done = AtomicBool::new(false);
    let (mut cloned, mut refusals) = (0, 0);
    std::thread::scope(|scope| {
        let (f, done, data) = (&f, &done, &data);
        scope.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                f.truncate(source, 5000);
                f.write(source, 0, data);
                f.fs.fsync(source).unwrap();
            }
        });
        let cloner = scope.spawn(move || {
            let (mut cloned, mut refusals) = (0, 0);
            for _ in 0..120_000 {
                f.truncate(target, 0);
                match f.fs.clone_range(Caller::ROOT, (source, 0), (target, 0), 12_288) {
                    Ok(()) => cloned += 1,
                    Err(error) => {
                        assert_eq!(error.errno(), 22, "{error}");
                        refusals += 1;
                    }
                }
            }
            (cloned, refusals)
        });
        let result = cloner.join();
        done.store(true, Ordering::SeqCst);
        (cloned, refusals) = result.unwrap();
    });
    assert!(cloned > 0 && refusals > 0, "{cloned} cloned, {refusals} refused");
    f.check();
}

// Goal: a copy from beyond all that a file can have copies nothing. Method: offsets up to the last there is.
#[test]
fn a_copy_from_far_beyond_the_end_is_empty() {
    let f = Fixture::new(64 * MIB);
    let (source, target) = (f.create(b"source"), f.create(b"target"));
    f.write(source, 0, &pattern(1, 12_288));
    f.write(target, 0, &pattern(2, 12_288));
    for from in [12_288, 1 << 62, u64::MAX - 4095, u64::MAX] {
        for to in [0, 4095, 12_288] {
            assert_eq!(f.fs.copy_range(Caller::ROOT, (source, from), (target, to), 4096).unwrap(), 0);
        }
    }
    assert!(f.read_all(target) == pattern(2, 12_288));
}

// Goal: a copy of a small file with a long hole behind its contents, which lie in its record, writes the contents and shares the hole.
// Method: 100 bytes and a size of 1 GiB, copied over a file that has data; the second file's map and the space that is used.
#[test]
fn a_copy_of_contents_in_a_record_leaves_the_hole_behind_them() {
    const END: u64 = 1 << 30;
    let f = Fixture::new(256 * MIB);
    let (source, target) = (f.create(b"source"), f.create(b"target"));
    f.write(source, 0, &pattern(1, 100));
    f.fs.sync().unwrap();
    f.truncate(source, END);
    f.write(target, 0, &pattern(2, 20_000));
    f.fs.sync().unwrap();
    let before = f.free();
    assert_eq!(f.fs.copy_range(Caller::ROOT, (source, 0), (target, 0), END).unwrap(), END);
    f.fs.sync().unwrap();
    assert!(f.free() + MIB / 4096 > before, "{} blocks before, {} now", before, f.free());
    let mut expect = pattern(1, 100);
    expect.resize(30_000, 0);
    assert!(f.fs.read(target, 0, 30_000).unwrap() == expect);
    assert_eq!(f.fs.getattr(target).unwrap().size, END);
    assert_eq!(f.fs.seek(target, 4096, varve_fs::SeekTo::Data).unwrap(), None, "data behind the contents");
    f.check();
}
