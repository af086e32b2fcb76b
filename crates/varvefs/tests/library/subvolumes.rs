//! Subvolumes, snapshots and clones.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;

use varvefs::{Change, MemoryDisk, Reason, SnapshotOptions, XattrMode};

use crate::{MIB, assert_sound, fresh, names, quiet};

// Goal: what the documentation of snapshots says. Method: a tree before and after changes on either side.
#[test]
fn snapshots_go_their_own_way() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/project").unwrap();
    fs.create_dir("/project/src").unwrap();
    fs.write("/project/src/main", b"first").unwrap();
    let frozen = SnapshotOptions::new().read_only(true).sync(true);
    fs.snapshot("/project", "/before", frozen).unwrap();
    fs.snapshot("/project", "/try", SnapshotOptions::new()).unwrap();
    fs.write("/project/src/main", b"second").unwrap();
    fs.write("/try/src/other", b"third").unwrap();
    assert_eq!(fs.read("/before/src/main").unwrap(), b"first");
    assert_eq!(fs.read("/try/src/main").unwrap(), b"first");
    assert_eq!(names(&fs, "/try/src"), ["main", "other"]);
    assert_eq!(names(&fs, "/project/src"), ["main"]);
    assert_eq!(fs.write("/before/new", b"").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs.rename("/try/src", "/project/lib").unwrap_err().kind(), ErrorKind::CrossesDevices);
    assert_eq!(fs.snapshot("/project/src", "/no", frozen).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.snapshot("/project", "/try", frozen).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let listed = fs.subvolumes().unwrap();
    let paths: Vec<_> = listed.iter().map(|subvolume| subvolume.path.clone()).collect();
    assert_eq!(paths, ["/", "/project", "/before", "/try"].map(PathBuf::from));
    assert_eq!(listed[2].origin, Some(listed[1].id));
    assert!(listed[2].read_only && !listed[3].read_only && listed[3].created.is_some());
    assert_eq!(fs.remove_dir("/before").unwrap_err().reason(), &Reason::IsSubvolume);
    let open = fs.open("/try/src/main").unwrap();
    fs.delete_subvolume("/try").unwrap();
    assert_eq!(open.metadata().unwrap_err().reason(), &Reason::SubvolumeDeleted);
    fs.delete_subvolume("/before").unwrap();
    assert_eq!(fs.delete_subvolume("/before").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(&fs, "/"), ["project"]);
    assert_sound(&pool);
}

// Goal: a clone is the file, and goes its own way. Method: clone, write to either, read both.
#[test]
fn clones_go_their_own_way() {
    let fs = fresh();
    fs.write("/a", vec![7; 100_000]).unwrap();
    fs.clone_file("/a", "/b").unwrap();
    fs.write("/a", b"short").unwrap();
    assert_eq!(fs.read("/b").unwrap(), vec![7; 100_000]);
    assert_eq!(fs.clone_file("/a", "/b").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs.clone_file("/", "/c").unwrap_err().kind(), ErrorKind::IsADirectory);
}

// Goal: a clone is a file, and is not made under the name of a directory. Method: a slash at the end, where nothing is.
#[test]
fn a_clone_is_no_directory() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.write("/a", b"x").unwrap();
    assert_eq!(fs.clone_file("/a", "/b/").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(&fs, "/"), ["a"]);
    fs.clone_file("/a", "/b").unwrap();
    assert_eq!(fs.read("/b").unwrap(), b"x");
}

// Goal: a path through a subvolume that comes and goes leads to something or to nothing, for every verb; only what is open says that
// the subvolume has been deleted. Method: one thread takes snapshots and deletes them while another uses names in them.
#[test]
fn paths_through_a_subvolume_that_goes() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/o").unwrap();
    fs.write("/o/f", vec![7; 5000]).unwrap();
    fs.symlink("f", "/o/link").unwrap();
    let found = thread::scope(|scope| {
        let (alive, gone) = mpsc::channel::<()>();
        let (pool, fs) = (&pool, &fs);
        scope.spawn(move || {
            // Goes with this thread, however it ends.
            let _alive = alive;
            for round in 0..30_000 {
                fs.snapshot("/o", "/s", SnapshotOptions::new()).unwrap();
                fs.delete_subvolume("/s").unwrap();
                if round % 1000 == 0 {
                    pool.maintain().unwrap();
                }
            }
        });
        let mut found = 0;
        let mut verb = 0;
        while gone.try_recv() != Err(TryRecvError::Disconnected) {
            verb += 1;
            let done = match verb % 19 {
                0 => fs.exists("/s/f").map(drop),
                1 => fs.read("/s/f").map(|bytes| assert_eq!(bytes, [7; 5000])),
                2 => fs.write("/s/f", [7; 5000]),
                3 => fs.metadata("/s/link").map(drop),
                4 => fs.read_link("/s/link").map(drop),
                5 => fs.create_dir("/s/d"),
                6 => fs.remove_dir("/s/d"),
                7 => fs.read_dir("/s").map(drop),
                8 => fs.set_permissions("/s/f", 0o600),
                9 => fs.get_xattr("/s/f", "user.x").map(drop),
                10 => fs.set_xattr("/s", "user.x", "y", XattrMode::Set),
                11 => fs.hard_link("/s/f", "/s/g"),
                12 => fs.rename("/s/f", "/s/g"),
                13 => fs.clone_file("/o/f", "/s/h"),
                14 => {
                    let taken = fs.snapshot("/s", "/u", SnapshotOptions::new());
                    taken.and_then(|()| fs.delete_subvolume("/u"))
                }
                15 => fs.set_len("/s/f", 4000).and_then(|()| fs.write("/s/f", [7; 5000])),
                16 => fs.remove_file("/s/link"),
                17 => fs.symlink("f", "/s/l"),
                _ => fs.remove_dir_all("/s/d"),
            };
            match done {
                Ok(()) => found += 1,
                Err(error) => {
                    let known = matches!(error.reason(), Reason::NotFound | Reason::Exists);
                    assert!(known, "{verb}: {error}");
                }
            }
        }
        found
    });
    assert!(found > 100, "{found}");
    pool.maintain().unwrap();
    assert_sound(&pool);
}

// Goal: removing a tree deletes the subvolumes in it that can be changed as a whole, with whatever is in them, and no read-only snapshot.
// Method: count the transactions where there are 500 names, in a snapshot, in one with another in it, and at the top; then a read-only
// one in the tree, with something in it and empty.
#[test]
fn subvolumes_in_a_tree_go_as_a_whole() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/o").unwrap();
    for n in 0..500 {
        fs.write(format!("/o/{n}"), b"x").unwrap();
    }
    fs.create_subvolume("/empty").unwrap();
    fs.create_dir_all("/t/d").unwrap();
    fs.snapshot("/o", "/t/d/s", SnapshotOptions::new()).unwrap();
    fs.snapshot("/empty", "/t/outer", SnapshotOptions::new()).unwrap();
    fs.snapshot("/o", "/t/outer/inner", SnapshotOptions::new()).unwrap();
    fs.snapshot("/o", "/top", SnapshotOptions::new()).unwrap();
    let open = fs.open("/t/d/s/1").unwrap();
    // What waits in memory is not part of what is counted.
    fs.sync().unwrap();
    let before = pool.stats().unwrap().transactions_count;
    fs.remove_dir_all("/t").unwrap();
    fs.remove_dir_all("/top").unwrap();
    let count = pool.stats().unwrap().transactions_count - before;
    assert!(count < 50, "{count} transactions");
    assert_eq!(open.metadata().unwrap_err().reason(), &Reason::SubvolumeDeleted);
    assert_eq!(names(&fs, "/"), ["empty", "o"]);
    for (source, reason) in [("/o", Reason::ReadOnlySubvolume), ("/empty", Reason::IsSubvolume)] {
        fs.create_dir("/t").unwrap();
        fs.write("/t/file", b"x").unwrap();
        fs.snapshot(source, "/t/kept", SnapshotOptions::new().read_only(true)).unwrap();
        assert_eq!(*fs.remove_dir_all("/t").unwrap_err().reason(), reason);
        assert_eq!(names(&fs, "/t/kept"), names(&fs, source));
        fs.delete_subvolume("/t/kept").unwrap();
        fs.remove_dir_all("/t").unwrap();
    }
    assert_eq!(names(&fs, "/o").len(), 500);
    pool.maintain().unwrap();
    assert_sound(&pool);
}

// Goal: a tree with subvolumes in it is gone when two have removed it at once. Method: 50 subvolumes with files, 20 times; who comes
// second may find nothing.
#[test]
fn two_remove_a_tree_of_subvolumes() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    for _ in 0..20 {
        fs.create_dir("/t").unwrap();
        for n in 0..50 {
            fs.create_subvolume(format!("/t/{n}")).unwrap();
            fs.create_dir(format!("/t/{n}/d")).unwrap();
            fs.write(format!("/t/{n}/d/f"), b"x").unwrap();
        }
        let start = Barrier::new(2);
        let removed: Vec<_> = thread::scope(|scope| {
            let remove = || {
                start.wait();
                fs.remove_dir_all("/t")
            };
            let threads = [scope.spawn(remove), scope.spawn(remove)];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for error in removed.iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(*error.reason(), Reason::NotFound, "{error}");
        }
        assert!(removed.iter().any(Result::is_ok) && !fs.exists("/t").unwrap());
    }
    pool.maintain().unwrap();
    assert_sound(&pool);
}

// Goal: what the documentation of a directory's length says: a subvolume in it is listed and counted among its links, not in its length.
// Method: a directory with one, and with a file beside it.
#[test]
fn the_length_of_a_directory_leaves_subvolumes_out() {
    let fs = fresh();
    fs.create_dir("/d").unwrap();
    assert!(fs.read_dir("/d").unwrap().next().is_none());
    fs.create_subvolume("/d/s").unwrap();
    let metadata = fs.metadata("/d").unwrap();
    assert_eq!((metadata.len, metadata.links), (0, 3));
    assert_eq!(names(&fs, "/d"), ["s"]);
    fs.write("/d/f", b"").unwrap();
    assert_eq!(fs.metadata("/d").unwrap().len, 1);
}

// Goal: what cannot be compared is refused by the call, not by the iterator that nobody may ask, and what can be is told whole, once.
// Method: two subvolumes that have nothing to do with each other, a directory and a file on either side, a name that is missing; then
// more changes than come at once.
#[test]
fn what_cannot_be_compared_is_refused_at_once() {
    let fs = fresh();
    for path in ["/one", "/other"] {
        fs.create_subvolume(path).unwrap();
    }
    fs.create_dir("/one/d").unwrap();
    fs.write("/one/f", b"x").unwrap();
    assert_eq!(*fs.diff("/one", "/other").map(drop).unwrap_err().reason(), Reason::Unrelated);
    for other in ["/one/d", "/one/f"] {
        for (old, new) in [("/one", other), (other, "/one")] {
            let error = fs.diff(old, new).map(drop).unwrap_err();
            assert_eq!(*error.reason(), Reason::NotASubvolume, "{old} {new}");
        }
    }
    assert_eq!(*fs.diff("/one", "/none").map(drop).unwrap_err().reason(), Reason::NotFound);
    fs.snapshot("/one", "/before", SnapshotOptions::new().read_only(true)).unwrap();
    assert_eq!(fs.diff("/before", "/one").unwrap().count(), 0);
    for n in 0..3000 {
        fs.write(format!("/one/d/{n}"), b"").unwrap();
    }
    let mut linked = Vec::new();
    for change in fs.diff("/before", "/one").unwrap() {
        if let Change::Linked { path, .. } = change.unwrap() {
            linked.push(path);
        }
    }
    linked.sort();
    let mut expected: Vec<_> = (0..3000).map(|n| PathBuf::from(format!("d/{n}"))).collect();
    expected.sort();
    assert_eq!(linked, expected);
}

// Goal: what the documentation of exchanges and renames says of subvolumes, and whether something is one. Method: a rollback; two in
// different subvolumes; each refusal; the kinds of everything.
#[test]
fn subvolumes_are_exchanged() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/project").unwrap();
    fs.create_dir("/shelf").unwrap();
    fs.create_dir("/project/src").unwrap();
    fs.create_subvolume("/project/inner").unwrap();
    fs.write("/project/src/main", b"good").unwrap();
    fs.snapshot("/project", "/shelf/before", SnapshotOptions::new().read_only(true)).unwrap();
    fs.write("/project/src/main", b"spoilt").unwrap();
    let open = fs.open("/project/src/main").unwrap();
    fs.snapshot("/shelf/before", "/shelf/back", SnapshotOptions::new()).unwrap();
    fs.exchange("/shelf/back", "/project").unwrap();
    fs.start_sync().unwrap().wait().unwrap();
    for fs in [fs.clone(), quiet().open_on(&disk.after_power_cut()).unwrap().filesystem()] {
        assert_eq!(fs.read("/project/src/main").unwrap(), b"good");
        assert_eq!(fs.read("/shelf/back/src/main").unwrap(), b"spoilt");
        let paths: Vec<_> = fs.subvolumes().unwrap().into_iter().map(|subvolume| subvolume.path).collect();
        let expected = ["/", "/shelf/back", "/shelf/back/inner", "/shelf/before", "/project"];
        assert_eq!(paths, expected.map(PathBuf::from));
    }
    let mut read = [0; 6];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"spoilt", "what is open stays what it is");
    fs.exchange("/project", "/shelf/back/inner").unwrap();
    assert_eq!(fs.read("/shelf/back/inner/src/main").unwrap(), b"good");
    assert_eq!(names(&fs, "/project"), [""; 0]);
    let reason = |result: varvefs::Result<()>| result.unwrap_err().reason().clone();
    assert!(matches!(reason(fs.exchange("/shelf/back", "/shelf/back/inner")), Reason::Invalid(_)));
    assert_eq!(reason(fs.exchange("/shelf", "/project")), Reason::NotSupported);
    assert_eq!(reason(fs.exchange("/project", "/shelf/back/src")), Reason::CrossesSubvolumes);
    assert_eq!(reason(fs.rename("/shelf", "/project")), Reason::OnlyExchanged);
    assert_eq!(reason(fs.rename("/project", "/shelf/back/inner")), Reason::NotEmpty);
    let error = fs.rename("/shelf/back", "/project").unwrap_err();
    assert_eq!((error.reason(), error.kind()), (&Reason::OnlyExchanged, ErrorKind::PermissionDenied));
    let is_subvolume = |path: &str| fs.metadata(path).unwrap().is_subvolume();
    assert!(["/", "/project", "/shelf/before", "/shelf/back/inner"].into_iter().all(is_subvolume));
    assert!(!["/shelf", "/shelf/back/src", "/shelf/back/src/main"].into_iter().any(is_subvolume));
    let entries = fs.read_dir("/shelf").unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert_eq!(entries.filter(varvefs::Metadata::is_subvolume).count(), 2);
    assert_sound(&pool);
}
