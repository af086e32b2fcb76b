//! The model by itself: the rules that are easy to get wrong, written out by hand.

use varve_fs::{Allocate, Caller, InodeId, ROOT_INODE, RenameMode, SetAttr, Timestamp};

use super::*;
use crate::call::{Call, fill};

fn context(second: i64, created: u64) -> Context {
    let now = Timestamp { seconds: second, nanoseconds: 0 };
    let (caller, created) = (Caller { uid: 5, gid: 6 }, InodeId(created));
    Context { now, caller, created, written: 0, size: 0, reservation: 1, logged: false }
}

fn make(model: &mut Model, name: &str, ino: u64, directory: bool) {
    let (parent, name) = (ROOT_INODE, name.as_bytes().to_vec());
    let call = match directory {
        true => Call::Mkdir { parent, name, mode: 0o755 },
        false => Call::Create { parent, name, mode: 0o6755 },
    };
    model.apply(&call, &context(ino as i64, ino)).unwrap();
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Call {
    let (parent, new_parent) = (ROOT_INODE, ROOT_INODE);
    Call::Rename {
        parent,
        name: from.as_bytes().to_vec(),
        new_parent,
        new_name: to.as_bytes().to_vec(),
        mode,
    }
}

// Goal: rename follows POSIX where kinds differ. Method: every combination of file, directory and full directory.
#[test]
fn rename_refuses_what_posix_refuses() {
    let mut model = Model::new(0, 0, 0o755, Timestamp::default());
    make(&mut model, "f", 10, false);
    make(&mut model, "d", 11, true);
    make(&mut model, "full", 12, true);
    let inside = Call::Create { parent: InodeId(12), name: b"x".to_vec(), mode: 0o644 };
    model.apply(&inside, &context(20, 13)).unwrap();
    let errno = |call: &Call| model.clone().apply(call, &context(30, 0)).err();
    assert_eq!(errno(&rename("f", "d", RenameMode::Replace)), Some(21));
    assert_eq!(errno(&rename("d", "f", RenameMode::Replace)), Some(20));
    assert_eq!(errno(&rename("d", "full", RenameMode::Replace)), Some(39));
    assert_eq!(errno(&rename("full", "d", RenameMode::Replace)), None);
    assert_eq!(errno(&rename("f", "d", RenameMode::NoReplace)), Some(17));
    assert_eq!(errno(&rename("f", "nothing", RenameMode::Exchange)), Some(2));
    assert_eq!(errno(&rename("f", "full", RenameMode::Exchange)), None);
    let below = Call::Rename {
        parent: ROOT_INODE,
        name: b"d".to_vec(),
        new_parent: InodeId(11),
        new_name: b"d".to_vec(),
        mode: RenameMode::Replace,
    };
    assert_eq!(errno(&below), Some(22));
    model.apply(&rename("full", "d", RenameMode::Replace), &context(40, 0)).unwrap();
    assert!(model.get(InodeId(11)).is_none());
    assert_eq!(model.lookup(InodeId(12), b"x"), Some(InodeId(13)));
}

// Goal: an unlinked open file lives until its last handle goes. Method: open twice, unlink, write, release twice.
#[test]
fn open_files_outlive_their_names() {
    let mut model = Model::new(0, 0, 0o755, Timestamp::default());
    make(&mut model, "f", 10, false);
    let ino = InodeId(10);
    for call in [
        Call::Open { ino, truncate: false },
        Call::Open { ino, truncate: false },
        Call::Unlink { parent: ROOT_INODE, name: b"f".to_vec() },
        Call::Release { ino },
    ] {
        model.apply(&call, &context(20, 0)).unwrap();
    }
    let written = Context { written: 3, ..context(30, 0) };
    model.apply(&Call::Write { ino, offset: 4095, len: 3, seed: 1 }, &written).unwrap();
    assert_eq!(model.get(ino).map(Inode::size), Some(4098));
    assert_eq!(model.get(ino).map(|inode| inode.mode.get()), Some(0o755), "a write clears set-ids");
    assert_eq!(model.named_count(), (1, 1));
    let mut crashed = model.clone();
    crashed.forget_opens();
    assert!(crashed.get(ino).is_none());
    model.apply(&Call::Release { ino }, &context(40, 0)).unwrap();
    assert!(model.get(ino).is_none());
}

// Goal: a logged state holds no bytes that were only written. Method: write, truncate down and up in both states.
#[test]
fn logged_state_waits_for_data() {
    let mut live = Model::new(0, 0, 0o755, Timestamp::default());
    make(&mut live, "f", 10, false);
    let mut logged = live.clone();
    let ino = InodeId(10);
    let write = Call::Write { ino, offset: 0, len: 9_000, seed: 3 };
    live.apply(&write, &Context { written: 9_000, ..context(20, 0) }).unwrap();
    logged.apply(&write, &Context { written: 9_000, logged: true, ..context(20, 0) }).unwrap();
    assert_eq!(logged.get(ino).map(Inode::size), Some(0));
    let before = live.get(ino).and_then(Inode::content).cloned().unwrap();
    logged.get_mut(ino).and_then(Inode::content_mut).unwrap().log(0, 4096, 4096, &before, &before);
    assert_eq!(logged.get(ino).map(Inode::size), Some(4096));
    let cut = Call::SetAttr { ino, set: SetAttr { size: Some(3_000), ..SetAttr::default() } };
    logged.apply(&cut, &Context { logged: true, size: 9_000, ..context(30, 0) }).unwrap();
    live.apply(&cut, &Context { size: 9_000, ..context(30, 0) }).unwrap();
    let content = |model: &Model| model.get(ino).and_then(Inode::content).cloned().unwrap();
    assert!(content(&logged).same(&content(&live)));
    assert_eq!(content(&live).size(), 3_000);
}

// Goal: pages with two acceptable contents accept both and nothing else. Method: log across a write, then settle.
#[test]
fn a_page_may_have_two_contents() {
    let mut before = Content::default();
    before.write(0, &[1; 5_000]);
    let mut after = before.clone();
    after.write(10, &[2; 10]);
    let mut logged = Content::default();
    logged.log(0, 8192, 5_000, &before, &after);
    let old = vec![1; 5_000];
    let mut new = old.clone();
    new[10..20].fill(2);
    assert_eq!(logged.accepts(0, &old), Ok(()));
    assert_eq!(logged.accepts(0, &new), Ok(()));
    let mut torn = old.clone();
    torn[10..15].fill(2);
    assert!(logged.accepts(0, &torn).is_err());
    logged.settle(0, &new);
    assert_eq!(logged.accepts(0, &old), Err(10));
    assert!(logged.same(&after));
    logged.truncate(12);
    logged.truncate(30);
    let mut cut = new[..12].to_vec();
    cut.resize(30, 0);
    assert_eq!(logged.accepts(0, &cut), Ok(()));
}

// Goal: space that is set aside for a page of zeros stays set aside when data around it is logged, or the file is cloned:
// what logs a range says nothing of the holes in it. Method: a page that was copied from a hole, zeroed and reserved by
// fallocate(ZERO_RANGE), in the middle of a range that is logged; then one that was written.
#[test]
fn logging_a_range_does_not_spend_what_is_reserved_in_its_holes() {
    let mut content = Content::default();
    let (len, page) = (3 * PAGE_BYTES, PAGE_BYTES as usize);
    content.write(0, &[1; 3 * PAGE_BYTES as usize]);
    content.write(PAGE_BYTES, &vec![0; page]);
    content.reserve(PAGE_BYTES, 2 * PAGE_BYTES, 1);
    assert_eq!(content.reserved_pages(), (0, 1));
    let seen = content.clone();
    content.log(0, len, len, &seen, &seen);
    assert_eq!(content.reserved_pages(), (0, 1));
    let mut written = content.clone();
    written.write(PAGE_BYTES, &vec![2; page]);
    content.log(0, len, len, &written, &written);
    assert_eq!(content.reserved_pages(), (0, 0));
}

// Goal: space that several share is the first writer's, what one of them has reserved for itself is not touched, and others'
// reservations of the same pages are none of it. Method: a file with its clone and another; writes to one or the other.
#[test]
fn who_writes_first_has_what_is_set_aside() {
    let (source, clone, other) = (InodeId(7), InodeId(8), InodeId(9));
    let mut model = Model::new(0, 0, 0o755, Timestamp::default());
    let create = |name: &[u8]| Call::Create { parent: ROOT_INODE, name: name.to_vec(), mode: 0o644 };
    let reserve = |ino| Call::Fallocate {
        ino,
        offset: 0,
        len: 4 * PAGE_BYTES,
        how: Allocate::Reserve { keep_size: false },
    };
    let write = |ino, page| Call::Write { ino, offset: page * PAGE_BYTES, len: PAGE_BYTES as usize, seed: 1 };
    let written = Context { written: PAGE_BYTES as usize, ..context(30, 0) };
    model.apply(&create(b"source"), &context(1, 7)).unwrap();
    model.apply(&create(b"other"), &context(1, 9)).unwrap();
    model.apply(&reserve(source), &Context { reservation: 1, ..context(2, 0) }).unwrap();
    model.apply(&reserve(other), &Context { reservation: 2, ..context(2, 0) }).unwrap();
    let call = Call::CloneFile { source, parent: ROOT_INODE, name: b"clone".to_vec() };
    model.apply(&call, &context(3, 8)).unwrap();
    let reserved = |model: &Model, ino| -> Vec<u64> {
        model.get(ino).and_then(Inode::content).into_iter().flat_map(|content| content.reserved()).collect()
    };
    assert_eq!([source, clone, other].map(|ino| reserved(&model, ino).len()), [4, 4, 4]);
    model.apply(&write(clone, 1), &written).unwrap();
    assert_eq!([source, clone, other].map(|ino| reserved(&model, ino).len()), [3, 3, 4]);
    // In a logged state, too.
    let mut logged = model.clone();
    logged.apply(&write(source, 2), &Context { logged: true, ..written }).unwrap();
    assert_eq!([source, clone].map(|ino| reserved(&logged, ino)), [[0, 3], [0, 3]]);
    model.apply(&reserve(clone), &Context { reservation: 3, ..context(4, 0) }).unwrap();
    model.apply(&write(source, 2), &written).unwrap();
    assert_eq!(reserved(&model, source), [0, 3]);
    assert_eq!(reserved(&model, clone), [0, 2, 3]);
}

// Goal: a punch that ended early has gone from the front to some page, and no further. Method: a file of four pages, of which three go;
// what is found of it in every combination.
#[test]
fn a_punch_that_ended_early_is_a_beginning() {
    const PAGES: u64 = 4;
    let bytes = fill(1, (PAGES * PAGE_BYTES) as usize);
    let mut content = Content::default();
    content.write(0, &bytes);
    let punch = Punch { from: 0, to: 3 * PAGE_BYTES, size: PAGES * PAGE_BYTES };
    content.punch_perhaps(&punch);
    for gone in 0..1 << PAGES {
        let mut found = bytes.clone();
        for (number, page) in found.chunks_mut(PAGE_BYTES as usize).enumerate() {
            if gone & 1 << number != 0 {
                page.fill(0);
            }
        }
        let right = [0b000, 0b001, 0b011, 0b111].contains(&gone);
        assert_eq!(content.clone().punch_found(&punch, &found, false).is_ok(), right, "{gone:#b}");
    }
}
