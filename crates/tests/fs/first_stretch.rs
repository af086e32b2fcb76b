//! A writer's look at what he writes over, beside others.

use super::*;

// Goal: who looks how far a write goes in a snapshot beside its deletion hears ESTALE, whatever becomes of its extents. Method: while its file
// is locked as by a writer, the snapshot lets go of what it has; the deletion comes to the file when that is over.
#[test]
fn a_writer_hears_that_his_snapshot_is_deleted() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let file = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
    f.fs.fallocate(Caller::ROOT, file, 0, MIB, Allocate::Reserve { keep_size: false }).unwrap();
    let root = f.fs.snapshot(sub, ROOT, b"snap", false, true).unwrap();
    let file = f.fs.lookup(root, b"file").unwrap().ino;
    let core = f.fs.core();
    let state = core.state(file);
    std::thread::scope(|scope| {
        let inner = core.read_lock(&state).unwrap();
        assert_eq!(core.first_stretch(file, &inner, 0, 4096).unwrap(), (4096, true));
        let deletion = scope.spawn(|| f.fs.delete_subvolume(ROOT, b"snap"));
        while core.view_of(file).is_ok() && !deletion.is_finished() {
            std::thread::yield_now();
        }
        assert!(!deletion.is_finished(), "it does not wait for the file");
        refused(core.first_stretch(file, &inner, 0, 4096), 116);
        drop(inner);
        deletion.join().unwrap().unwrap();
    });
    refused(f.fs.write(Caller::ROOT, file, 0, b"x"), 116);
    f.fs.maintain().unwrap();
    f.check();
}
