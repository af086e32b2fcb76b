//! Deletions beside those who still look, and what they make free.

use super::space::fill;
use super::*;
use varve_fs::internals::reaper::Task;
use varve_fs::internals::subvolume::Slot;

/// A subvolume with a file, a snapshot of it, and a block of the file that has changed since: the roots of both, and what
/// the snapshot shows.
fn changed_since(f: &Fixture) -> (InodeId, InodeId, Vec<u8>) {
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let file = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    let data = pattern(1, 40_000);
    f.write(file, 0, &data);
    let snapshot = f.fs.snapshot(sub, ROOT, b"snapshot", true, true).unwrap();
    f.write(file, 8192, &[7; 4096]);
    f.fs.sync().unwrap();
    (sub, snapshot, data)
}

// Goal: who reads in a snapshot while it is deleted sees what it showed, or ESTALE, and never what the source shows now, which
// takes the key of the version that goes. Method: a reader has the file's lock, for which the deletion waits when it has let go
// of the version; the reaper does all it can; then the reader looks where the data is.
#[test]
fn a_reader_never_sees_the_source_instead() {
    let f = Fixture::new(64 * MIB);
    let (_, snapshot, data) = changed_since(&f);
    let file = f.fs.lookup(snapshot, b"file").unwrap().ino;
    assert!(f.read_all(file) == data);
    let (core, slot) = (f.fs.core(), Slot::of(snapshot));
    let family = core.subvolumes.get(slot).unwrap().family;
    let state = core.state(file);
    std::thread::scope(|scope| {
        let inner = core.read_lock(&state).unwrap();
        let deletion = scope.spawn(|| f.fs.delete_subvolume(ROOT, b"snapshot"));
        while core.subvolumes.get(slot).is_ok() {
            assert!(!deletion.is_finished(), "it waits for the reader");
            std::thread::yield_now();
        }
        core.reap.push(Task::Names(family));
        core.reap_all().unwrap();
        let mut out = vec![0; data.len()];
        let read = core.plan_read(file, &inner, 0, &mut out).and_then(|plan| core.run_reads(plan, &mut out));
        drop(inner);
        deletion.join().unwrap().unwrap();
        match read {
            Ok(()) => assert!(out == data, "it shows something else"),
            Err(error) => assert_eq!(error.errno(), 116, "{error}"),
        }
    });
    refused(f.fs.read(file, 0, 1), 116);
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: a listing that has begun when its snapshot is deleted shows the snapshot's names and not the source's. Method: the
// snapshot goes, and is reaped, while the first entry is being handed over.
#[test]
fn a_listing_never_shows_the_source_instead() {
    let f = Fixture::new(64 * MIB);
    let (sub, snapshot, _) = changed_since(&f);
    f.fs.create(Caller::ROOT, sub, b"later", 0o644).unwrap();
    let mut names = Vec::new();
    let listed = f.fs.readdir(snapshot, 0, &mut |entry| {
        if entry.name == b"." {
            f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
            f.fs.maintain().unwrap();
        }
        names.push(entry.name);
        true
    });
    assert!(listed.is_ok(), "{listed:?}");
    assert_eq!(names, [b".".to_vec(), b"..".to_vec(), b"file".to_vec()]);
    f.check();
}

// Goal: who deletes until there is space enough, as statfs has it, deletes no more than that takes, and can use what he is told; what is kept for
// somebody who reads is not counted. Method: files of a MiB on a full pool, removed without a commit between; as much is written again; a view is held
// over the last.
#[test]
fn what_is_deleted_is_free_at_once() {
    let f = Fixture::new(64 * MIB);
    let names: Vec<Vec<u8>> = (0..20).map(|n| format!("file{n}").into_bytes()).collect();
    for name in &names {
        let file = f.create(name);
        f.write(file, 0, &[7; 1 << 20]);
    }
    fill(&f, b"big");
    f.fs.sync().unwrap();
    let free = || f.fs.statfs().unwrap().free_bytes;
    let begin = free();
    for (n, name) in names[..10].iter().enumerate() {
        f.fs.unlink(ROOT, name).unwrap();
        let now = free();
        // Nodes that are changed have their next copies set aside.
        assert!(now + MIB / 8 >= begin + (n as u64 + 1) * MIB, "{n}: {begin} {now}");
    }
    let again = f.create(b"again");
    let data = vec![8; 9 << 20];
    let mut written = 0;
    while written < data.len() {
        // Of much at once less may be taken: room for its records is asked for before it is known how few they are.
        let taken = f.fs.write(Caller::ROOT, again, written as u64, &data[written..]).unwrap();
        assert!(taken > 0);
        written += taken;
    }
    f.fs.sync().unwrap();
    let before = free();
    let view = f.fs.core().store.view();
    f.fs.unlink(ROOT, &names[10]).unwrap();
    f.fs.sync().unwrap();
    let kept = free();
    assert!(kept < before + MIB / 2, "{before} {kept}");
    drop(view);
    f.fs.maintain().unwrap();
    assert!(free() + MIB / 8 >= before + MIB);
    assert!(f.read_all(again) == data);
    f.check();
}
