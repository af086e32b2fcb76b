//! Subvolumes in each other's places.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::{list, make, refused, snapshot};
use crate::harness::{Mount, Scratch, can_mount, check, program};

// Goal: through the kernel two subvolumes change places in one step, and its caches know; what is open stays what it is; a crash behind a sync
// finds them exchanged; what cannot be is refused as on other filesystems. Method: a rollback of a tree that is in the kernel's caches, is
// somebody's working directory and has an open file; two in different directories; each refusal.
#[test]
fn subvolumes_change_places() {
    if !can_mount("subvolumes_change_places") {
        return;
    }
    let scratch = Scratch::new("forks-exchange");
    let pool = scratch.pool("pool.img", "256M");
    let point = scratch.path("mnt");
    let mount = Mount::start(&pool, &point);
    make(&mount, "work");
    fs::create_dir_all(mount.path("work/a/b")).unwrap();
    fs::write(mount.path("work/a/b/note"), "good").unwrap();
    fs::create_dir(mount.path("shelf")).unwrap();
    snapshot(&mount, &["--read-only"], "work", "shelf/before");
    fs::write(mount.path("work/a/b/note"), "spoilt").unwrap();
    fs::write(mount.path("work/new"), "new").unwrap();
    snapshot(&mount, &[], "shelf/before", "shelf/back");
    let look = |mount: &Mount, work: &str, back: &str| {
        for (name, content) in [("work", work), ("shelf/back", back)] {
            assert_eq!(fs::read_to_string(mount.path(name).join("a/b/note")).unwrap(), content, "{name}");
            assert_eq!(mount.path(name).join("new").exists(), content == "spoilt", "{name}");
        }
        let number = |path: &str| fs::metadata(mount.path(path)).unwrap().ino();
        assert_eq!(number("work/.."), number(""));
        assert_eq!(number("shelf/back/.."), number("shelf"));
        let paths: HashSet<String> =
            list(&mount.point).iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect();
        assert_eq!(paths, ["/", "/work", "/shelf/before", "/shelf/back"].map(str::to_owned).into());
    };
    look(&mount, "spoilt", "good");
    let exchange = |one: &str, other: &str| {
        let (one, other) = (mount.path(one), mount.path(other));
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
    };
    let open = fs::File::open(mount.path("work/a/b/note")).unwrap();
    // By itself a shell goes up by the names that it came down by.
    let script = "echo here; read x; cat b/note; cd -P ../..; pwd -P";
    let mut inside = program("sh", &mount.path("work/a"), &["-c", script]);
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(inside.stdout.take().unwrap());
    let mut text = String::new();
    said.read_line(&mut text).unwrap();
    exchange("work", "shelf/back").unwrap();
    look(&mount, "good", "spoilt");
    drop(inside.stdin.take());
    said.read_to_string(&mut text).unwrap();
    assert!(inside.wait().unwrap().success());
    assert_eq!(text, format!("here\nspoilt{}\n", fs::canonicalize(mount.path("shelf")).unwrap().display()));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "spoilt");
    drop(open);
    mount.sync();
    mount.kill();

    let mount = Mount::start(&pool, &point);
    look(&mount, "good", "spoilt");
    let rename = |one: &str, other: &str, flags| {
        renameat_with(CWD, mount.path(one), CWD, mount.path(other), flags).unwrap_err()
    };
    make(&mount, "work/inner");
    make(&mount, "empty");
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("file"), "").unwrap();
    let (exchange, replace) = (RenameFlags::EXCHANGE, RenameFlags::empty());
    for (one, other, flags, errno) in [
        ("work", "work/inner", exchange, Errno::INVAL),
        ("work/inner", "work", exchange, Errno::INVAL),
        ("work", "nothing", exchange, Errno::NOENT),
        ("work", "dir", exchange, Errno::OPNOTSUPP),
        ("file", "work", exchange, Errno::OPNOTSUPP),
        ("work/inner", "dir", exchange, Errno::XDEV),
        ("dir", "work", replace, Errno::NOTEMPTY),
        ("empty", "work", replace, Errno::NOTEMPTY),
        ("dir", "empty", replace, Errno::PERM),
        ("empty", "dir", replace, Errno::PERM),
        ("work", "file", replace, Errno::NOTDIR),
        ("file", "empty", replace, Errno::ISDIR),
    ] {
        assert_eq!(rename(one, other, flags), errno, "{one} to {other}");
    }
    refused(&mut program("mv", &mount.point, &["-T", "work", "empty"]), &["Operation not permitted"]);
    mount.unmount();
    check(&pool);
}
