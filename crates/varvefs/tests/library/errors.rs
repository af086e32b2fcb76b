//! Errors: texts that say what was being done, to what and why; kinds that agree with std's.

use std::io::{self, ErrorKind};

use varvefs::{Error, MemoryDisk, OpenOptions, Pool, Reason, SnapshotOptions};

use crate::{fresh, quiet};

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

// Goal: the texts are sentences with the path and, where it is not the whole path, the part that failed. Method: exact
// texts.
#[test]
fn texts_name_the_verb_the_path_and_the_part() {
    let fs = fresh();
    fs.write("/f", b"").unwrap();
    fs.create_dir("/d").unwrap();
    assert_eq!(text(fs.open("/none")), "cannot open \"/none\": no such file or directory");
    assert_eq!(
        text(fs.create_dir("/none/a/b")),
        "cannot create the directory \"/none/a/b\": no such file or directory: \"/none\""
    );
    assert_eq!(text(fs.metadata("/f/a")), "cannot look at \"/f/a\": not a directory: \"/f\"");
    assert_eq!(text(fs.create_dir("/d")), "cannot create the directory \"/d\": it exists already");
    assert_eq!(
        text(fs.create_dir_all("/d/../f/x")),
        "cannot create the directory \"/d/../f/x\": not a directory: \"/d/../f\""
    );
    assert_eq!(
        text(fs.rename("/f", "/none/x")),
        "cannot rename \"/f\" to \"/none/x\": no such file or directory: \"/none\""
    );
    assert_eq!(
        text(fs.rename("/none", "/x")),
        "cannot rename \"/none\" to \"/x\": no such file or directory"
    );
    assert_eq!(text(fs.hard_link("/f", "/d")), "cannot link \"/f\" to \"/d\": it exists already");
    assert_eq!(
        text(fs.remove_file("/a\n\u{7}\u{f6}")),
        "cannot remove \"/a\\n\\x07\\xc3\\xb6\": no such file or directory"
    );
    assert_eq!(text(fs.read(b"/\xff")), "cannot open \"/\\xff\": no such file or directory");
    assert_eq!(text(fs.read("/\u{f6}")), "cannot open \"/\u{f6}\": no such file or directory");
    let error = fs.open("/none/x").unwrap_err();
    assert_eq!(error.path().unwrap().to_str(), Some("/none/x"));
    assert_eq!(*error.reason(), Reason::NotFound);
}

// Goal: as std::io::Error the kind is right, the text stays, and the error can be had back. Method: convert and look.
#[test]
fn errors_become_io_errors() {
    let fs = fresh();
    let error: io::Error = fs.open("/none").unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.to_string(), "cannot open \"/none\": no such file or directory");
    let back = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).unwrap();
    assert_eq!(*back.reason(), Reason::NotFound);
    fn takes_question_mark(fs: &varvefs::Filesystem) -> io::Result<()> {
        fs.create_dir("/d")?;
        fs.create_dir("/d")?;
        Ok(())
    }
    assert_eq!(takes_question_mark(&fs).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

// Goal: what is read-only makes no pool and overwrites none. Method: each way to make one.
#[test]
fn what_is_read_only_makes_no_pool() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let options = || varvefs::PoolOptions::new().read_only(true).force(true);
    let size = varvefs::POOL_BYTES_MIN;
    for result in [options().create(&path, size), options().open_or_create(&path, size)] {
        assert_eq!(*result.map(drop).unwrap_err().reason(), Reason::ReadOnly);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    quiet().create(&path, size).unwrap().filesystem().write("/f", b"kept").unwrap();
    assert_eq!(*options().format(&path).map(drop).unwrap_err().reason(), Reason::ReadOnly);
    assert_eq!(options().open_or_create(&path, size).unwrap().filesystem().read("/f").unwrap(), b"kept");
    let disk = MemoryDisk::new(size);
    quiet().create_on(&disk).unwrap().filesystem().write("/f", b"kept").unwrap();
    for result in [options().create_on(&disk), options().in_memory(size)] {
        assert_eq!(*result.map(drop).unwrap_err().reason(), Reason::ReadOnly);
    }
    assert_eq!(options().open_on(&disk).unwrap().filesystem().read("/f").unwrap(), b"kept");
}

// Goal: making and opening pools fails with what to do. Method: missing, existing, foreign, too small, in use.
#[test]
fn pools_say_why_they_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let shown = path.display();
    assert_eq!(text(Pool::open(&path)), format!("cannot open the pool {shown}: no such file or directory"));
    let error = Pool::create(&path, 1 << 20).unwrap_err();
    assert!(matches!(error.reason(), Reason::Invalid(_)), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a failed creation leaves nothing");
    let pool = Pool::create(&path, 64 << 20).unwrap();
    assert_eq!(*Pool::create(&path, 64 << 20).unwrap_err().reason(), Reason::Exists);
    let error = Pool::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().starts_with(&format!("cannot open the pool: {shown} is in use by")), "{error}");
    pool.close().unwrap();
    std::fs::write(dir.path().join("text"), vec![b'x'; 1 << 20]).unwrap();
    let error = Pool::open(dir.path().join("text")).unwrap_err();
    assert!(error.to_string().contains("is not a VarveFS pool"), "{error}");
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    for advice in ["create", "format"] {
        assert!(!error.to_string().contains(advice), "something is there: {error}");
    }
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    std::fs::File::create(dir.path().join("zeros")).unwrap().set_len(1 << 20).unwrap();
    let error = Pool::open(dir.path().join("zeros")).unwrap_err();
    assert!(error.to_string().contains("`PoolOptions::format` makes one"), "{error}");
    assert!(matches!(error.reason(), Reason::NotAPool(_)), "{error}");
    let error = Pool::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("neither a regular file nor a block device"), "{error}");
    assert_eq!(Pool::create(dir.path().join("no/where"), 64 << 20).unwrap_err().kind(), ErrorKind::NotFound);
    let disk = MemoryDisk::new(64 << 20);
    let pool = quiet().create_on(&disk).unwrap();
    assert_eq!(quiet().open_on(&disk).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(pool);
    quiet().open_on(&disk).unwrap();
}

// Goal: a pool whose labels are damaged is not called none, nor is anybody told to make another there. Method: both labels overwritten, and
// what is cut or signed by another besides, to each who opens, checks or makes.
#[test]
fn a_pool_without_labels_is_told_from_none() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let (path, size) = (dir.path().join("pool"), varvefs::POOL_BYTES_MIN);
    let pool = quiet().create(&path, size).unwrap();
    let id: String = pool.id().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    pool.close().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for at in [0, size - 4096] {
        file.write_all_at(&[0xab; 4096], at).unwrap();
    }
    let tell = |text: &str| {
        assert!(text.contains("no label of ") && text.contains(&id), "{text}");
        assert!(text.contains("do not create a pool on it") && !text.contains("makes one"), "{text}");
    };
    for cut in [false, true] {
        if cut {
            file.set_len(size / 2).unwrap();
        }
        let error = Pool::open(&path).unwrap_err();
        assert!(matches!(error.reason(), Reason::Refused(_)), "{error}");
        tell(&error.to_string());
        let report = quiet().check(&path, false).unwrap();
        assert_eq!((report.problems.len(), &report.problems[0].kind[..]), (1, "pool-unopenable"));
        tell(&report.problems[0].text);
        if !cut {
            let error = quiet().format(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("superblocks of pool {id}")), "{error}");
            assert!(error.contains("`PoolOptions::force`"), "{error}");
        }
    }
    // Somebody may have begun to make something else of it.
    file.write_all_at(b"XFSB", 0).unwrap();
    let error = Pool::open(&path).unwrap_err().to_string();
    assert!(error.contains("an XFS filesystem is there"), "{error}");
    tell(&error);
}

// Goal: paths that a pool cannot have are refused with the kind that std has for them, and a pool is named whatever its name is. Method: a NUL
// byte, a slash behind a new name and behind a file, too long a name; a pool whose name is a part of what is said about it.
#[test]
fn paths_of_pools() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let made = |name: &str| Pool::create(at(name), 64 << 20).map(drop);
    let opened = |name: &str| Pool::open(at(name)).map(drop);
    std::fs::write(at("file"), "text").unwrap();
    let long = "n".repeat(256);
    let cases = [
        (made("a\0b"), ErrorKind::InvalidInput),
        (opened("a\0b"), ErrorKind::InvalidInput),
        (made("trail/"), ErrorKind::InvalidInput),
        (opened("file/"), ErrorKind::NotADirectory),
        (opened("file/pool"), ErrorKind::NotADirectory),
        (made("file/pool"), ErrorKind::NotADirectory),
        (opened(&long), ErrorKind::InvalidFilename),
        (made(&long), ErrorKind::InvalidFilename),
    ];
    for (n, (result, kind)) in cases.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{n}: {error}");
        assert!(!error.to_string().contains("at offset"), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // Relative names lead nowhere here.
    for name in ["no", "file", "such", "e"] {
        let text = text(Pool::open(name));
        assert_eq!(text, format!("cannot open the pool {name}: no such file or directory"));
    }
    let named = |pool: &str, text: &str| {
        let reason = Reason::Refused(text.to_owned());
        Error::Pool { doing: "open", pool: pool.to_owned(), reason }.to_string()
    };
    assert_eq!(named("e", "it is not there"), "cannot open the pool e: it is not there");
    assert_eq!(named("the", "the log ends"), "cannot open the pool the: the log ends");
    assert_eq!(named("/a", "/ab is no pool"), "cannot open the pool /a: /ab is no pool");
    assert_eq!(named("/a", "/a is no pool"), "cannot open the pool: /a is no pool");
}

// Goal: a pool of absurd size is refused with an error, and nothing is left. Method: in memory, on a disk in memory and in a file, from just above
// the largest size.
#[test]
fn absurd_sizes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for size in [(1 << 48) + 4096, 1 << 52, 1 << 62, u64::MAX] {
        let on_disk = quiet().create_on(&MemoryDisk::new(size));
        let in_file = Pool::create(dir.path().join("pool"), size);
        // The file system below may not take a file of this size.
        assert!(in_file.is_err(), "{size}");
        for result in [Pool::in_memory(size), on_disk] {
            let text = result.map(drop).unwrap_err().to_string();
            assert!(text.contains("the largest pool is 256 TiB"), "{text}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

// Goal: format takes a file that is there, and another's only by force. Method: zeros, then a pool, then by force.
#[test]
fn format_overwrites_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let pool = quiet().format(&path).unwrap();
    pool.filesystem().write("/f", b"precious").unwrap();
    pool.close().unwrap();
    let error = quiet().format(&path).unwrap_err();
    assert!(matches!(error.reason(), Reason::Refused(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("PoolOptions::force") && !text.contains("--force"), "{text}");
    assert_eq!(Pool::open(&path).unwrap().filesystem().read("/f").unwrap(), b"precious");
    let pool = quiet().force(true).format(&path).unwrap();
    assert!(!pool.filesystem().exists("/f").unwrap());
}

// Goal: a read-only pool refuses every change with one reason and serves every read; so does a read-only snapshot. To open a file that
// cannot be written to is refused already, for programs that then read. Method: all on one pool, opened to be changed and not.
#[test]
fn read_only_pools_refuse_changes() {
    let disk = MemoryDisk::new(64 << 20);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.write("/f", b"x").unwrap();
    fs.snapshot("/", "/s", SnapshotOptions::new().read_only(true)).unwrap();
    let ways = [
        OpenOptions::new().write(true).clone(),
        OpenOptions::new().read(true).append(true).clone(),
        OpenOptions::new().read(true).write(true).create(true).clone(),
    ];
    for way in &ways {
        let error = way.open(&fs, "/s/f").unwrap_err();
        assert_eq!(*error.reason(), Reason::ReadOnlySubvolume, "{error}");
    }
    pool.close().unwrap();
    let pool = quiet().read_only(true).open_on(&disk).unwrap();
    let fs = pool.filesystem();
    assert_eq!(fs.read("/f").unwrap(), b"x");
    for refused in [
        fs.write("/f", b"y"),
        fs.create_dir("/d"),
        fs.remove_file("/f"),
        fs.rename("/f", "/g"),
        fs.set_permissions("/f", 0),
        fs.symlink("a", "/b"),
        fs.set_xattr("/f", "user.a", b"", varvefs::XattrMode::Set),
        ways[0].open(&fs, "/f").map(drop),
        ways[1].open(&fs, "/f").map(drop),
        ways[2].open(&fs, "/f").map(drop),
        ways[0].open(&fs, "/s/f").map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
    }
    pool.close().unwrap();
}

// Goal: after close every handle is refused, and closing twice is no error. Method: each kind of handle.
#[test]
fn closed_pools_refuse_their_handles() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::open_or_create(&path, 64 << 20).unwrap();
    let (fs, id) = (pool.filesystem(), pool.id().unwrap());
    let file = fs.create("/f").unwrap();
    file.write_all_at(b"kept by closing", 0).unwrap();
    let pending = file.start_sync().unwrap();
    let mut listing = fs.read_dir("/").unwrap();
    let twin = pool.clone();
    pool.close().unwrap();
    assert!(pending.is_durable());
    pending.wait().unwrap();
    assert_eq!(text(file.sync_all()), "cannot sync \"/f\": the pool has been closed");
    assert_eq!(*fs.metadata("/f").unwrap_err().reason(), Reason::Closed);
    assert_eq!(*listing.next().unwrap().unwrap_err().reason(), Reason::Closed);
    assert!(listing.next().is_none());
    assert!(twin.stats().is_err() && fs.sync().is_err());
    let again = Pool::open_or_create(&path, 64 << 20).unwrap();
    assert!(again.recovery().clean && again.id().unwrap() == id);
    assert_eq!(again.filesystem().read("/f").unwrap(), b"kept by closing");
    twin.close().unwrap();
    assert_eq!(
        again.filesystem().read("/f").unwrap(),
        b"kept by closing",
        "the closed pool's handles are apart"
    );
    drop((file, listing, fs));
}

// Goal: any number may read a pool at once, and nobody beside one who writes; the same in a file and on a disk in memory. Method: two
// that read, one that would write beside them, and one that would read beside one that writes.
#[test]
fn readers_share_a_pool_and_writers_do_not() {
    type Open<'a> = &'a dyn Fn(bool) -> varvefs::Result<Pool>;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let disk = MemoryDisk::new(64 << 20);
    quiet().create(&path, 64 << 20).unwrap().filesystem().write("/f", b"x").unwrap();
    quiet().create_on(&disk).unwrap().filesystem().write("/f", b"x").unwrap();
    let places: [(&str, Open<'_>); 2] = [
        ("file", &|read_only| quiet().read_only(read_only).open(&path)),
        ("memory", &|read_only| quiet().read_only(read_only).open_on(&disk)),
    ];
    for (what, open) in places {
        let in_use = |read_only: bool| {
            let error = open(read_only).unwrap_err();
            assert!(matches!(error.reason(), Reason::InUse(_)), "{what}: {error}");
        };
        let readers = [open(true).unwrap(), open(true).unwrap()];
        for reader in &readers {
            assert_eq!(reader.filesystem().read("/f").unwrap(), b"x");
        }
        in_use(false);
        let [first, last] = readers;
        first.close().unwrap();
        in_use(false);
        drop(last);
        let writer = open(false).unwrap();
        in_use(true);
        in_use(false);
        writer.close().unwrap();
        open(true).unwrap();
    }
}
