//! What the books allow, and what is wanted of the space, asked call by call.

use varve_fs::{Caller, Profile, ROOT_INODE, Timestamp, XattrMode};

use super::wanted::MOVED_PAGE_BYTES_MAX;
use super::*;
use crate::model::{CAPABILITY, numbered};
use crate::trial::format;

/// A session on a fresh pool that keeps so much dirty data in memory.
fn session(dirty_bytes_max: u64) -> Session {
    let setup = Setup { dirty_bytes_max, ..Setup::default() };
    let disk = Disk::new(POOL_BYTES);
    let model = format(&disk, Profile::Single).unwrap();
    let (disk, clock) = (disk.fork(), StepClock::new(1_000_000_001));
    let opened = Opened::open(&disk, &setup, &clock, false).unwrap();
    Session::new(opened, disk, clock, setup, model)
}

fn create(session: &mut Session, name: &[u8]) -> InodeId {
    session.must(&Call::Create { parent: ROOT_INODE, name: name.to_vec(), mode: 0o644 }).unwrap();
    session.last_created().unwrap()
}

/// Whether a crash may find one of several contents somewhere in the file.
fn is_open(session: &Session, ino: InodeId) -> bool {
    let content = session.logged.get(ino).and_then(Inode::content).unwrap();
    content.has_choices(0, content.size())
}

// Goal: what moves many pages may want more space than what moves few. Method: a file of 300 pages, made room in its front,
// its middle and its last page.
#[test]
fn moving_pages_takes_space_for_each() {
    let mut model = Model::new(0, 0, 0o755, Timestamp::default());
    let ino = InodeId(10);
    let (caller, now) = (Caller::ROOT, Timestamp::default());
    let len = 300 * PAGE_BYTES as usize;
    let context = Context { now, caller, created: ino, written: len, size: 0, reservation: 1, logged: false };
    model.apply(&Call::Create { parent: ROOT_INODE, name: b"f".to_vec(), mode: 0o644 }, &context).unwrap();
    model.apply(&Call::Write { ino, offset: 0, len, seed: 1 }, &context).unwrap();
    let wanted = |page: u64| {
        let (offset, len) = (page * PAGE_BYTES, PAGE_BYTES);
        wanted_bytes(&Call::Shift { ino, offset, len, insert: true }, &model)
    };
    assert_eq!([0, 150, 299].map(wanted), [300, 150, 1].map(|pages| pages * MOVED_PAGE_BYTES_MAX));
    assert!(wanted(0) > 69_632 - REFUSAL_FREE_BYTES_MAX, "what was free when an insert was refused");
}

// Goal: a creation may want what its trees take when all nodes are clean and the leaves are split, and the indexes of versions too where
// there was a snapshot, and for good. Method: the same name before a snapshot, with it, and after it has gone; another subvolume.
#[test]
fn a_creation_takes_nodes_of_each_tree() {
    let mut model = Model::new(0, 0, 0o755, Timestamp::default());
    let (caller, now) = (Caller::ROOT, Timestamp::default());
    let root_of = |slot: u64| numbered(slot, ROOT_INODE);
    let apply = |model: &mut Model, created: InodeId, call: Call| {
        let context = Context { now, caller, created, written: 0, size: 0, reservation: 1, logged: false };
        model.apply(&call, &context).unwrap();
    };
    let may_take = |model: &Model, parent: InodeId| {
        let call = Call::Create { parent, name: b"new".to_vec(), mode: 0o644 };
        REFUSAL_FREE_BYTES_MAX + wanted_bytes(&call, model)
    };
    let node_bytes = 2 * PAGE_BYTES;
    // Two leaves of inodes below a root, both split, and a leaf of names that gets a root.
    let plain = (3 + 2 * 2 + 1 + 2 * 2) * node_bytes;
    // Three leaves below a root in the index of versions, and a leaf in that of the reaper.
    let forked = plain + (4 + 2 * 3 + 1 + 2 * 2) * node_bytes;
    assert_eq!(may_take(&model, ROOT_INODE), plain);
    let name = b"snapshot".to_vec();
    let (source, parent) = (ROOT_INODE, ROOT_INODE);
    let snapshot = Call::Snapshot { source, parent, name: name.clone(), read_only: false, sync: false };
    apply(&mut model, root_of(1), snapshot);
    assert_eq!([ROOT_INODE, root_of(1)].map(|parent| may_take(&model, parent)), [forked; 2]);
    apply(&mut model, root_of(2), Call::CreateSubvolume { parent, name: b"new".to_vec(), mode: 0o755 });
    assert_eq!(may_take(&model, root_of(2)), plain);
    apply(&mut model, InodeId(0), Call::DeleteSubvolume { parent, name });
    assert_eq!(may_take(&model, ROOT_INODE), forked);
    assert!(forked > 69_632, "what was free when a creation was refused");
}

// Goal: what was in the log before a sync has told that it is done is no longer accepted after it. Method: a write that brings
// itself into the log, because little may wait, over nothing and over bytes that are durable; then each way to wait for it.
#[test]
fn a_sync_leaves_no_choice_of_bytes() {
    const LEN: usize = 300 << 10;
    let mut session = session(64 << 10);
    let ino = create(&mut session, b"f");
    let clone = Call::CloneFile { source: ino, parent: ROOT_INODE, name: b"clone".to_vec() };
    let waits = [
        Call::Fsync { ino },
        Call::Fsync { ino },
        Call::Sync,
        Call::FlushFile { ino },
        Call::FlushAll,
        clone,
    ];
    for (seed, wait) in (1..).zip(waits) {
        session.must(&Call::Write { ino, offset: 0, len: LEN, seed }).unwrap();
        assert!(is_open(&session, ino), "before {wait:?}: the call alone does not say which");
        session.must(&wait).unwrap();
        assert!(!is_open(&session, ino), "after {wait:?}");
    }
}

// Goal: the same where a range has become a part of the file. Method: a source whose bytes lie in its record, far before its
// end, over data that is durable.
#[test]
fn a_sync_leaves_no_choice_of_a_range() {
    let mut session = session(8 << 20);
    let (from, to) = (create(&mut session, b"from"), create(&mut session, b"to"));
    let size = varve_fs::SetAttr { size: Some(64 << 10), ..varve_fs::SetAttr::default() };
    session.must(&Call::Write { ino: from, offset: 0, len: 100, seed: 1 }).unwrap();
    session.must(&Call::Fsync { ino: from }).unwrap();
    session.must(&Call::SetAttr { ino: from, set: size }).unwrap();
    session.must(&Call::Write { ino: to, offset: 0, len: 64 << 10, seed: 2 }).unwrap();
    session.must(&Call::Sync).unwrap();
    session.must(&Call::CloneRange { from, from_offset: 0, to, to_offset: 0, len: 0 }).unwrap();
    session.must(&Call::Fsync { ino: to }).unwrap();
    assert!(!is_open(&session, to));
}

// Goal: zeros in a part of a small file may wait behind the reservation that they come with, until a sync. Method: a file in its record,
// zeroed from its middle on.
#[test]
fn zeros_inside_a_page_wait() {
    let mut session = session(8 << 20);
    let ino = create(&mut session, b"f");
    session.must(&Call::Write { ino, offset: 0, len: 353, seed: 1 }).unwrap();
    session.must(&Call::Fsync { ino }).unwrap();
    let how = Allocate::Zero { keep_size: true };
    session.must(&Call::Fallocate { ino, offset: 211, len: 1142, how }).unwrap();
    assert!(is_open(&session, ino));
    session.must(&Call::Fsync { ino }).unwrap();
    assert!(!is_open(&session, ino));
}

// Goal: of what lies in a record one block is copied, however long the holes are behind it, and no more is wanted. Method: 100
// bytes in a file that ends at a GiB.
#[test]
fn holes_behind_a_record_take_no_space() {
    let mut model = Model::new(0, 0, 0o755, Timestamp::default());
    let mut context = Context {
        now: Timestamp::default(),
        caller: Caller::ROOT,
        created: InodeId(0),
        written: 100,
        size: 0,
        reservation: 1,
        logged: false,
    };
    for created in [10, 11] {
        context.created = InodeId(created);
        let name = created.to_string().into_bytes();
        model.apply(&Call::Create { parent: ROOT_INODE, name, mode: 0o644 }, &context).unwrap();
    }
    let (from, to) = (InodeId(10), InodeId(11));
    model.apply(&Call::Write { ino: from, offset: 0, len: 100, seed: 1 }, &context).unwrap();
    model.get_mut(from).and_then(Inode::content_mut).unwrap().truncate(1 << 30);
    let wanted = model.wanted_by_range(&Call::CloneRange { from, from_offset: 0, to, to_offset: 0, len: 0 });
    assert!(wanted < 1 << 20, "{wanted} bytes");
}

// Goal: of ranges in many pieces as much is shared as lies in front of a piece that differs, wherever that begins. Method: two files
// whose blocks lie in two places by turns, and which differ in one block of the second MiB.
#[test]
fn ranges_in_many_pieces_are_shared_up_to_what_differs() {
    const PAGES: u64 = 450;
    let mut session = session(64 << 20);
    let files = [create(&mut session, b"one"), create(&mut session, b"other")];
    for (ino, first) in files.into_iter().flat_map(|ino| [(ino, 0), (ino, 1)]) {
        for page in (first..PAGES).step_by(2) {
            let seed = if page == 420 { ino.0 << 32 } else { page };
            let (offset, len) = (page * PAGE_BYTES, PAGE_BYTES as usize);
            session.must(&Call::Write { ino, offset, len, seed }).unwrap();
        }
        session.must(&Call::FlushFile { ino }).unwrap();
    }
    let [from, to] = files;
    let len = PAGES * PAGE_BYTES;
    session.must(&Call::DedupeRange { from, from_offset: 0, to, to_offset: 0, len }).unwrap();
    session.verify().unwrap();
}

// Goal: the judge wants what is refused to leave the capability of its file. Method: a file that a snapshot shows, too, on a pool that is
// full; each call that is refused is judged, and those that are done when there is space again.
#[test]
fn a_refused_call_leaves_the_capability() {
    let mut session = session(8 << 20);
    session.setup.tight = true;
    let (parent, mode) = (ROOT_INODE, XattrMode::Set);
    session.must(&Call::CreateSubvolume { parent, name: b"sub".to_vec(), mode: 0o755 }).unwrap();
    let sub = session.last_created().unwrap();
    session.must(&Call::Create { parent: sub, name: b"f".to_vec(), mode: 0o644 }).unwrap();
    let ino = session.last_created().unwrap();
    session.must(&Call::Write { ino, offset: 0, len: 16_384, seed: 1 }).unwrap();
    let (name, value) = (CAPABILITY.to_vec(), b"all".to_vec());
    session.must(&Call::SetXattr { ino, name, value, mode }).unwrap();
    session.must(&Call::Sync).unwrap();
    let name = b"snapshot".to_vec();
    session.must(&Call::Snapshot { source: sub, parent, name, read_only: true, sync: true }).unwrap();
    session.must(&Call::Create { parent: sub, name: b"new".to_vec(), mode: 0o644 }).unwrap();
    session.must(&Call::Sync).unwrap();
    let fill = create(&mut session, b"fill");
    let mut offset = 0;
    for len in [1 << 20, 64 << 10, 4096] {
        while session.call(&Call::Write { ino: fill, offset, len, seed: offset }).unwrap() == 0 {
            offset = session.live.get(fill).map_or(0, Inode::size);
        }
    }
    let longer = varve_fs::SetAttr { size: Some(20_000), ..varve_fs::SetAttr::default() };
    let calls = [
        Call::Write { ino, offset: 4096, len: 4096, seed: 2 },
        Call::SetAttr { ino, set: longer },
        Call::Fallocate { ino, offset: 0, len: 65_536, how: Allocate::Reserve { keep_size: true } },
        Call::Shift { ino, offset: 4096, len: 4096, insert: true },
    ];
    for call in &calls {
        assert_eq!(session.call(call).unwrap(), ENOSPC, "{call:?}");
        assert!(session.fs.getxattr(ino, CAPABILITY).is_ok());
    }
    session.must(&Call::Unlink { parent: ROOT_INODE, name: b"fill".to_vec() }).unwrap();
    session.must(&calls[0]).unwrap();
    assert!(session.fs.getxattr(ino, CAPABILITY).is_err());
    session.must(&Call::Sync).unwrap();
    session.verify().unwrap();
}
