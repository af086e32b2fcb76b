//! rmdir(2) of subvolumes.

use super::subvolumes::{content, file, make, snapshot};
use super::*;

// Goal: rmdir deletes a subvolume if nothing is in it, and takes nothing else away. Method: each rule once: a file, a
// subvolume, a removed file that is open, a snapshot that was emptied, and one that cannot be; then all is gone, also of the
// space.
#[test]
fn rmdir_of_subvolumes() {
    let mut f = Fixture::new(64 * MIB);
    f.fs.maintain().unwrap();
    let before = f.fs.space().used_bytes;
    let sub = make(&f, ROOT, b"sub");
    let open = file(&f, sub, b"file", &pattern(1, 300_000));
    let frozen = f.fs.snapshot(sub, ROOT, b"frozen", true, true).unwrap();
    let copy = snapshot(&f, sub, b"copy");
    refused(f.fs.rmdir(ROOT, b"sub"), 39);
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    f.fs.unlink(sub, b"file").unwrap();
    let inner = make(&f, sub, b"inner");
    refused(f.fs.rmdir(ROOT, b"sub"), 39);
    // Also where what is in it was made in this moment, or is only there in memory.
    file(&f, inner, b"new", b"");
    refused(f.fs.rmdir(sub, b"inner"), 39);
    f.fs.unlink(inner, b"new").unwrap();
    f.fs.rmdir(sub, b"inner").unwrap();
    refused(f.fs.rmdir(sub, b"inner"), 2);
    f.fs.rmdir(ROOT, b"sub").unwrap();
    refused(f.fs.getattr(open), 116);
    refused(f.fs.create(Caller::ROOT, sub, b"late", 0o644), 116);
    f.fs.release_inode(open).unwrap();
    // What the others have stays.
    assert_eq!(content(&f, frozen, b"file"), pattern(1, 300_000));
    refused(f.fs.rmdir(ROOT, b"copy"), 39);
    f.fs.unlink(copy, b"file").unwrap();
    f.fs.rmdir(ROOT, b"copy").unwrap();
    // A read-only one is deleted by its own command alone, empty or not.
    let empty = make(&f, ROOT, b"empty");
    let bare = f.fs.snapshot(empty, ROOT, b"bare", true, false).unwrap();
    for name in [b"frozen" as &[u8], b"bare"] {
        refused(f.fs.rmdir(ROOT, name), 1);
    }
    assert_eq!(f.list(bare), Vec::<Vec<u8>>::new());
    f.check();
    f.reopen();
    assert_eq!(f.list(ROOT), [b"bare".to_vec(), b"empty".to_vec(), b"frozen".to_vec()]);
    f.fs.rmdir(ROOT, b"empty").unwrap();
    f.fs.delete_subvolume(ROOT, b"bare").unwrap();
    f.fs.delete_subvolume(ROOT, b"frozen").unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.reopen();
    assert!(f.fs.space().used_bytes <= before + (64 << 10));
    assert_eq!(f.list(ROOT), Vec::<Vec<u8>>::new());
}

// Goal: of rmdir of a subvolume and whoever puts something into it, one comes first. Method: both at once, many times: never
// do both succeed.
#[test]
fn rmdir_while_names_come() {
    let f = Fixture::new(64 * MIB);
    for round in 0..300 {
        let sub = make(&f, ROOT, b"sub");
        let both = std::sync::Barrier::new(2);
        let (put, removed) = std::thread::scope(|scope| {
            let put = scope.spawn(|| {
                both.wait();
                match round % 3 {
                    0 => f.fs.create(Caller::ROOT, sub, b"file", 0o644).is_ok(),
                    1 => f.fs.create_subvolume(Caller::ROOT, sub, b"inner", 0o755).is_ok(),
                    _ => f.fs.mkdir(Caller::ROOT, sub, b"dir", 0o755).is_ok(),
                }
            });
            both.wait();
            let removed = f.fs.rmdir(ROOT, b"sub").is_ok();
            (put.join().unwrap(), removed)
        });
        assert!(put != removed, "round {round}: {put}, {removed}");
        if put && round % 3 == 1 {
            f.fs.rmdir(sub, b"inner").unwrap();
        }
        if put {
            f.fs.delete_subvolume(ROOT, b"sub").unwrap();
        }
    }
    f.fs.maintain().unwrap();
    f.check();
}
