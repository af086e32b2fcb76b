//! Subvolumes, snapshots and clones.

use std::io::ErrorKind;
use std::path::PathBuf;

use varvefs::{Reason, SnapshotOptions};

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
