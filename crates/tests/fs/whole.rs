//! Writes that the kernel wants whole, and orphans with attributes, on full pools.

use varve_engine::Wanted;

use super::allocate::{allocate, fill};
use super::space::full_with_a_snapshot;
use super::*;

const BLOCK: u64 = 4096;

// Goal: who writes as a whole gets all that is set aside, whatever lies beside it, and is told where some of it finds no space. Method: on
// a full pool pages with space set aside and others take turns; the buffer is one that is kept as it is.
#[test]
fn a_whole_write_goes_past_what_is_refused() {
    for hole in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        let ino = f.create(b"f");
        let set = SetAttr { size: Some(MIB), ..SetAttr::default() };
        f.fs.setattr(Caller::ROOT, ino, set).unwrap();
        let reserve = Allocate::Reserve { keep_size: false };
        // Pages 16 to 31 and 64 to 95 are set aside; without a hole all but the first and the last, which are there.
        let ranges: &[(u64, u64)] = if hole { &[(16, 16), (64, 32)] } else { &[(1, 254)] };
        ranges.iter().for_each(|(at, count)| allocate(&f, ino, at * BLOCK, count * BLOCK, reserve));
        if !hole {
            f.write(ino, 0, &[7]);
            f.write(ino, MIB - 1, &[7]);
        }
        let (other, end) = fill(&f);
        if !hole {
            // The two have to find space anew, and do.
            f.truncate(other, end - MIB / 4);
            f.fs.sync().unwrap();
        }
        let data = pattern(1, 1 << 20);
        let mut buf = AlignedBuf::from_slice(&data);
        let written = f.fs.write_whole(Caller::ROOT, ino, 0, &mut buf, data.len());
        buf.fill(0xee);
        match hole {
            true => refused(written, 28),
            false => written.unwrap(),
        }
        f.fs.sync().unwrap();
        f.check();
        f.kill();
        let found = f.fs.read(ino, 0, 1 << 20).unwrap();
        for (at, count) in ranges {
            let range = (at * BLOCK) as usize..((at + count) * BLOCK) as usize;
            assert!(found[range.clone()] == data[range], "{at}, hole {hole}");
        }
        assert_eq!(found == data, !hole);
        f.check();
    }
}

// Goal: a whole write over what is logged goes on with the space of what it replaces. Method: a pool in which half of it, or little, is
// free; all its bytes are there afterwards.
#[test]
fn a_whole_write_uses_what_it_gives_back() {
    for part in [MIB / 2, MIB / 16, MIB / 64] {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"f");
        f.write(ino, 0, &pattern(1, 1 << 20));
        f.fs.sync().unwrap();
        let (other, end) = fill(&f);
        f.truncate(other, end - part);
        f.fs.sync().unwrap();
        let data = pattern(2, 1 << 20);
        let mut buf = AlignedBuf::from_slice(&data);
        f.fs.write_whole(Caller::ROOT, ino, 0, &mut buf, data.len()).unwrap();
        f.fs.sync().unwrap();
        assert!(f.fs.read(ino, 0, 1 << 20).unwrap() == data);
        f.check();
    }
}

// Goal: a whole write looks for space once, however often pages with and without space set aside meet in it, and gives the first refusal.
// Method: a full pool, and a file of which every second page is set aside, and one that may only be appended to; what the store did meanwhile is counted.
#[test]
fn a_whole_write_looks_for_space_once() {
    whole_write_over_every_second_page(true);
    whole_write_over_every_second_page(false);
}

/// `floats`: whether there is something for data that gives back what it takes.
fn whole_write_over_every_second_page(floats: bool) {
    let f = Fixture::new(64 * MIB);
    let (ino, log) = (f.create(b"f"), f.create(b"log"));
    let set = SetAttr { size: Some(MIB), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, ino, set).unwrap();
    let reserve = |keep_size| Allocate::Reserve { keep_size };
    (0..128).for_each(|at| allocate(&f, ino, 2 * at * BLOCK, BLOCK, reserve(false)));
    allocate(&f, log, 16 * BLOCK, 16 * BLOCK, reserve(true));
    f.fs.set_flags(Caller::ROOT, log, FileFlags::APPEND_ONLY).unwrap();
    fill(&f);
    let (mut taken, one) = (Vec::new(), Wanted { data_blocks: 1, ..Wanted::default() });
    while !floats && let Some(block) = f.fs.core().store.reserve_float(one, false).unwrap() {
        taken.push(block);
    }
    let data = pattern(1, 1 << 20);
    let before = f.fs.store_stats();
    let mut buf = AlignedBuf::from_slice(&data);
    refused(f.fs.write_whole(Caller::ROOT, ino, 0, &mut buf, data.len()), 28);
    let after = f.fs.store_stats();
    let looks = after.checkpoints_count - before.checkpoints_count;
    assert!(looks < 16, "{looks} checkpoints");
    assert!(after.reclaims_count - before.reclaims_count < 16);
    assert!(after.journal_batches_count - before.journal_batches_count < 40);
    let mut buf = AlignedBuf::from_slice(&data[..128 << 10]);
    refused(f.fs.write_whole(Caller::ROOT, log, 0, &mut buf, 128 << 10), 28);
    f.fs.sync().unwrap();
    let found = f.fs.read(ino, 0, 1 << 20).unwrap();
    for at in (0..256).map(|page| page * 4096) {
        let zeros = [0; 4096];
        let expected = if at % 8192 == 0 { &data[at..at + 4096] } else { &zeros[..] };
        assert!(found[at..at + 4096] == *expected, "{at}");
    }
    f.check();
}

// Goal: what nobody has open any more is reaped, and the pool can be opened, where so much has been removed beside a snapshot that more is refused,
// whatever the snapshot shows of its attributes. Method: a file with one, open while it is removed and others are until that is refused; then a
// fragmented file is cut that was made since.
#[test]
fn orphans_are_reaped_where_removing_is_refused() {
    let (mut f, names) = full_with_a_snapshot(0);
    f.fs.unlink(ROOT, b"big").unwrap();
    f.fs.sync().unwrap();
    let (open, own) = (f.create(b"open"), f.create(b"own"));
    f.fs.setxattr(open, b"user.x", b"1", XattrMode::Set).unwrap();
    f.fs.sync().unwrap();
    f.fs.snapshot(ROOT, ROOT, b"second", true, false).unwrap();
    (0..600).for_each(|at| f.write(own, 2 * at * BLOCK, &[1; 4096]));
    f.fs.sync().unwrap();
    fill(&f);
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    f.fs.unlink(ROOT, b"open").unwrap();
    assert_eq!(names.filter(|name| f.fs.unlink(ROOT, name).is_err()).take(100).count(), 100);
    f.fs.release_inode(open).unwrap();
    f.fs.maintain().unwrap();
    f.truncate(own, 0);
    f.kill();
    f.fs.maintain().unwrap();
    f.fs.delete_subvolume(ROOT, b"second").unwrap();
    f.fs.maintain().unwrap();
    f.check();
}
