//! How paths lead to files.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use varvefs::{MemoryDisk, OpenOptions, Reason};

use crate::{fresh, names, quiet};

// Goal: all kinds of paths name the same file, and names are bytes. Method: one file by every type, one name that is no
// text.
#[test]
fn paths_are_text_bytes_or_std_paths() {
    let fs = fresh();
    fs.create_dir("/d").unwrap();
    fs.write("/d/f", b"x").unwrap();
    assert_eq!(fs.read("d/f").unwrap(), b"x");
    assert_eq!(fs.read(String::from("//d///f")).unwrap(), b"x");
    assert_eq!(fs.read(b"/d/./f").unwrap(), b"x");
    assert_eq!(fs.read(&b"/d/../d/f"[..]).unwrap(), b"x");
    assert_eq!(fs.read(b"/../../d/f".to_vec()).unwrap(), b"x");
    assert_eq!(fs.read(Path::new("/d/f")).unwrap(), b"x");
    assert_eq!(fs.read(PathBuf::from("/d/f")).unwrap(), b"x");
    assert_eq!(fs.read(OsStr::new("/d/f")).unwrap(), b"x");
    let name = b"/d/\xff\x01\n";
    fs.write(name, b"odd").unwrap();
    assert_eq!(fs.read(OsStr::from_bytes(name)).unwrap(), b"odd");
    let listed: Vec<_> = fs.read_dir("/d").unwrap().map(|entry| entry.unwrap().name().to_vec()).collect();
    assert!(listed.contains(&b"\xff\x01\n".to_vec()));
    let longest = vec![b'n'; 255];
    fs.write(&longest, b"").unwrap();
    assert_eq!(*fs.write(vec![b'n'; 256], b"").unwrap_err().reason(), Reason::NameTooLong);
}

// Goal: what no path may be is refused. Method: empty, NUL, a file on the way, slashes after a file.
#[test]
fn bad_paths_are_refused() {
    let fs = fresh();
    fs.write("/f", b"x").unwrap();
    assert_eq!(fs.metadata("").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.metadata("/a\0b").unwrap_err().kind(), ErrorKind::InvalidInput);
    for path in ["/f/x", "/f/", "/f/.", "/f/.."] {
        assert_eq!(fs.metadata(path).unwrap_err().kind(), ErrorKind::NotADirectory, "{path}");
    }
    assert_eq!(fs.create("/new/").unwrap_err().kind(), ErrorKind::IsADirectory);
    fs.create_dir("/dir/").unwrap();
    assert!(fs.metadata("/dir/").unwrap().is_dir());
    assert!(!fs.exists("/none").unwrap() && !fs.exists("/f/x").unwrap() && fs.exists("/").unwrap());
}

// Goal: links lead on as in POSIX: relative to where they lie, from the root, chained, with slashes, dangling. Method:
// one of each.
#[test]
fn symlinks_lead_on() {
    let fs = fresh();
    fs.create_dir_all("/a/b").unwrap();
    fs.write("/a/b/f", b"x").unwrap();
    fs.symlink("b", "/a/rel").unwrap();
    fs.symlink("/a/rel/", "/abs").unwrap();
    fs.symlink("abs/./../b/f", "/chain").unwrap();
    assert_eq!(fs.read("/a/rel/f").unwrap(), b"x");
    assert_eq!(fs.read("/abs/f").unwrap(), b"x");
    assert_eq!(fs.read("/chain").unwrap(), b"x");
    assert_eq!(fs.symlink_metadata("/chain/").unwrap_err().kind(), ErrorKind::NotADirectory);
    assert!(fs.symlink_metadata("/abs").unwrap().is_symlink());
    assert!(fs.symlink_metadata("/abs/").unwrap().is_dir());
    assert_eq!(fs.remove_dir("/abs/").unwrap_err().kind(), ErrorKind::NotADirectory);
    fs.symlink("/", "/top").unwrap();
    assert!(names(&fs, "/top").contains(&"chain".to_owned()));
    assert!(fs.metadata("/top").unwrap().is_dir());
    fs.symlink("a/new", "/dangling").unwrap();
    assert_eq!(fs.open("/dangling").unwrap_err().kind(), ErrorKind::NotFound);
    let new = OpenOptions::new().write(true).create_new(true).open(&fs, "/dangling");
    assert_eq!(new.unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs.write("/dangling", b"through").unwrap();
    assert_eq!(fs.read("/a/new").unwrap(), b"through");
    let kept = OpenOptions::new().read(true).follow_symlinks(false).open(&fs, "/chain");
    assert_eq!(*kept.unwrap_err().reason(), Reason::TooManySymlinks);
    fs.rename("/chain", "/moved").unwrap();
    assert_eq!(fs.read("/moved").unwrap(), b"x");
}

// Goal: what is to be new and is there is refused as there, whatever else would keep it from being made, and what is not there
// for the reason that keeps it. Method: files, directories, links, the root and dots, on a pool that is written to and on one
// that is only read; with and without a slash behind.
#[test]
fn what_is_to_be_new_must_not_be_there() {
    let disk = MemoryDisk::new(64 << 20);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.create_dir("/d").unwrap();
    fs.write("/d/f", b"x").unwrap();
    fs.symlink("d", "/to-d").unwrap();
    fs.symlink("nowhere", "/dangling").unwrap();
    pool.close().unwrap();
    for read_only in [false, true] {
        let pool = quiet().read_only(read_only).open_on(&disk).unwrap();
        let fs = pool.filesystem();
        let kind = |path: &str| {
            let new = OpenOptions::new().write(true).create_new(true).open(&fs, path);
            new.map(drop).map_err(|error| error.kind())
        };
        for there in ["/", "d", "d/", "d/.", "d/..", ".", "..", "d/f", "to-d", "to-d/", "to-d/f", "dangling"]
        {
            assert_eq!(kind(there), Err(ErrorKind::AlreadyExists), "{there}, {read_only}");
        }
        for (path, why) in [
            ("d/f/", ErrorKind::NotADirectory),
            ("d/f/g", ErrorKind::NotADirectory),
            ("d/f/.", ErrorKind::NotADirectory),
            ("new/", ErrorKind::IsADirectory),
            ("new/f", ErrorKind::NotFound),
            ("dangling/", ErrorKind::IsADirectory),
            ("", ErrorKind::NotFound),
        ] {
            assert_eq!(kind(path), Err(why), "{path}, {read_only}");
        }
        let made = kind("d/new");
        assert_eq!(made, if read_only { Err(ErrorKind::ReadOnlyFilesystem) } else { Ok(()) });
        if !read_only {
            assert_eq!(kind("d/new"), Err(ErrorKind::AlreadyExists));
            fs.remove_file("d/new").unwrap();
        }
        pool.close().unwrap();
    }
}

// Goal: every walk ends: 40 links are followed, 41 and rings are refused with std's kind. Method: a chain and a ring.
#[test]
fn symlinks_are_bounded() {
    let fs = fresh();
    fs.write("/0", b"end").unwrap();
    for n in 1..=41 {
        fs.symlink(format!("{}", n - 1), format!("/{n}")).unwrap();
    }
    assert_eq!(fs.read("/40").unwrap(), b"end");
    assert_eq!(*fs.read("/41").unwrap_err().reason(), Reason::TooManySymlinks);
    fs.symlink("ring/ring", "/ring").unwrap();
    let error = fs.metadata("/ring").unwrap_err();
    let of_the_system = std::io::Error::from_raw_os_error(40).kind();
    assert_eq!(std::io::Error::from(error).kind(), of_the_system);
}
