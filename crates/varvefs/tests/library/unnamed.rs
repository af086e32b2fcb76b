//! Files that begin without a name, and files that are replaced as a whole.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use varvefs::{FileType, Flags, MemoryDisk, OpenOptions, PoolOptions, Reason, SnapshotOptions, XattrMode};

use crate::{MIB, assert_sound, fresh, names, quiet};

// Goal: what the documentation of `replace` says of what is at the path afterwards. Method: a name that is free, one that is taken by a
// file with permissions of its own, a list of them and another link, through a symbolic link, also one that leads nowhere.
#[test]
fn a_file_is_replaced_as_a_whole() {
    let fs = fresh();
    fs.replace("/f", b"first").unwrap().wait().unwrap();
    let metadata = fs.metadata("/f").unwrap();
    assert_eq!((metadata.mode, metadata.links), (0o644, 1));
    fs.set_owner("/f", Some(7), Some(8)).unwrap();
    fs.set_permissions("/f", 0o640).unwrap();
    fs.set_xattr("/f", "user.note", "gone", XattrMode::Set).unwrap();
    fs.hard_link("/f", "/other").unwrap();
    fs.symlink("f", "/link").unwrap();
    let mut old = fs.open("/f").unwrap();
    let long = vec![3; 9 << 20];
    fs.replace("/link", &long).unwrap().wait().unwrap();
    assert!(fs.read("/f").unwrap() == long);
    let metadata = fs.metadata("/f").unwrap();
    assert_eq!((metadata.mode, metadata.user, metadata.group, metadata.links), (0o640, 7, 8, 1));
    assert_eq!(fs.get_xattr("/f", "user.note").unwrap(), None);
    assert_eq!(fs.symlink_metadata("/link").unwrap().file_type, FileType::Symlink);
    let mut contents = Vec::new();
    old.read_to_end(&mut contents).unwrap();
    assert_eq!((&contents[..], &fs.read("/other").unwrap()[..]), (&b"first"[..], &b"first"[..]));
    fs.symlink("made", "/dangling").unwrap();
    drop(fs.replace("/dangling", b"").unwrap());
    assert_eq!(fs.read("/made").unwrap(), b"");
    // Set-id bits go as by any write of who is not user 0.
    fs.set_permissions("/f", 0o6755).unwrap();
    drop(fs.with_owner(7, 8).replace("/f", "x").unwrap());
    assert_eq!(fs.metadata("/f").unwrap().mode, 0o755);
    // Version 2; the owner may do all, user 9 may read, the group nothing, the mask lets read, others nothing.
    let list = [
        [2u8, 0, 0, 0].as_slice(),
        &[1, 0, 7, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 9, 0, 0, 0],
        &[4, 0, 0, 0, 255, 255, 255, 255],
        &[16, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    let access = "system.posix_acl_access";
    fs.set_xattr("/f", access, &list, XattrMode::Set).unwrap();
    drop(fs.replace("/f", "x").unwrap());
    assert_eq!(fs.get_xattr("/f", access).unwrap().as_ref(), Some(&list));
    // What the directory gives to new files is not for one that takes the place of another.
    fs.set_xattr("/", "system.posix_acl_default", &list, XattrMode::Set).unwrap();
    drop(fs.replace("/other", "x").unwrap());
    assert_eq!(fs.get_xattr("/other", access).unwrap(), None);
    assert_eq!(fs.metadata("/other").unwrap().mode, 0o640);
    assert_eq!(names(&fs, "/"), ["dangling", "f", "link", "made", "other"]);
}

// Goal: what cannot be replaced is refused, and nothing has changed then, nor is anything left. Method: each kind of such a place, and
// contents for which there is no room; the count of files and the names before and after.
#[test]
fn what_cannot_be_replaced_stays() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/s").unwrap();
    fs.create_dir("/s/d").unwrap();
    fs.write("/s/f", b"kept").unwrap();
    fs.create_node("/s/fifo", FileType::Fifo, 0o600, 0).unwrap();
    fs.snapshot("/s", "/before", SnapshotOptions::new().read_only(true)).unwrap();
    for path in ["/s/immutable", "/s/appended", "/s/log/f"] {
        fs.create_dir_all("/s/log").unwrap();
        fs.write(path, b"kept").unwrap();
    }
    let (mut immutable, mut append_only) = (Flags::default(), Flags::default());
    (immutable.immutable, append_only.append_only) = (true, true);
    fs.set_flags("/s/immutable", immutable).unwrap();
    fs.set_flags("/s/appended", append_only).unwrap();
    fs.set_flags("/s/log", append_only).unwrap();
    let state = || {
        pool.maintain().unwrap();
        (names(&fs, "/s"), names(&fs, "/s/log"), fs.statfs().unwrap().files_count)
    };
    let before = state();
    for (path, reason) in [
        ("/", Reason::IsADirectory),
        ("/s/d", Reason::IsADirectory),
        ("/s/d/", Reason::IsADirectory),
        ("/s/new/", Reason::IsADirectory),
        ("/s/f/", Reason::NotADirectory),
        ("/s/f/below", Reason::NotADirectory),
        ("/s/none/below", Reason::NotFound),
        ("/s/fifo", Reason::NotSupported),
        ("/before/f", Reason::ReadOnlySubvolume),
        ("/before/new", Reason::ReadOnlySubvolume),
        ("/s/immutable", Reason::NotPermitted),
        ("/s/appended", Reason::NotPermitted),
        ("/s/log/f", Reason::NotPermitted),
    ] {
        let error = fs.replace(path, b"lost").map(drop).unwrap_err();
        assert_eq!(*error.reason(), reason, "{path}: {error}");
        assert_eq!(state(), before, "{path}");
    }
    let too_much = vec![1; 100 << 20];
    for path in ["/s/f", "/s/new"] {
        assert_eq!(*fs.replace(path, &too_much).map(drop).unwrap_err().reason(), Reason::NoSpace);
        assert_eq!(state(), before, "{path}");
    }
    assert_eq!(fs.read("/s/f").unwrap(), b"kept");
    // A name can be added there.
    drop(fs.replace("/s/log/new", b"new").unwrap());
    fs.set_flags("/s/immutable", Flags::default()).unwrap();
    pool.close().unwrap();
}

// Goal: a crash at any instant shows the old file or the new one, each whole, and nothing beside it; and what was waited for. Who lists
// the directory, or takes a snapshot, sees nothing else either. Method: one thread replaces a file with contents that say their number
// and length, another syncs now and then; a third takes what the disk would hold after a power cut and after a kill, each of which is
// opened, and looks.
#[test]
fn a_crash_shows_the_old_file_or_the_new_one() {
    let disk = MemoryDisk::new(128 * MIB);
    let pool = PoolOptions::new().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    let contents = |n: u32| n.to_le_bytes().repeat(1 + n as usize % 7 * 700);
    fs.replace("/f", contents(1)).unwrap().wait().unwrap();
    let (over, waited) = (AtomicBool::new(false), AtomicU32::new(1));
    let looks = thread::scope(|scope| {
        let (fs, over, waited) = (&fs, &over, &waited);
        scope.spawn(move || {
            for n in 2..4000 {
                let pending = fs.replace("/f", contents(n)).unwrap();
                if n % 50 == 0 {
                    pending.wait().unwrap();
                    waited.store(n, Ordering::Release);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                fs.sync().unwrap();
            }
        });
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) || looks == 0 {
            let least = waited.load(Ordering::Acquire);
            for left in [disk.after_power_cut(), disk.after_kill()] {
                let pool = quiet().open_on(&left).unwrap();
                let fs = pool.filesystem();
                assert_eq!(names(&fs, "/"), ["f"]);
                let bytes = fs.read("/f").unwrap();
                let n = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                assert!(bytes == contents(n), "{n} is not whole");
                assert!(n >= least, "{n}, and {least} was waited for");
                looks += 1;
            }
            assert_eq!(names(fs, "/"), ["f"]);
        }
        looks
    });
    println!("{looks} looks");
    fs.sync().unwrap();
    assert_eq!(names(&fs, "/"), ["f"]);
    assert!(fs.read("/f").unwrap() == contents(3999));
    assert_sound(&pool);
}

// Goal: what was waited for is there after a power cut, and many replacements share a flush. Method: 100 files, each there before; count
// flushes, cut the power before and after the wait.
#[test]
fn many_replacements_share_a_flush() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    for n in 0..100 {
        fs.write(format!("/{n}"), b"old").unwrap();
    }
    fs.sync().unwrap();
    let flushes = || pool.stats().unwrap().devices[0].flushes_count;
    let before = flushes();
    let pending: Vec<_> = (0..100).map(|n| fs.replace(format!("/{n}"), b"new").unwrap()).collect();
    assert_eq!(flushes(), before);
    let cut = disk.after_power_cut();
    varvefs::wait_all(pending).unwrap();
    assert_eq!(flushes(), before + 1);
    for (disk, contents) in [(cut, b"old"), (disk.after_power_cut(), b"new")] {
        let pool = quiet().open_on(&disk).unwrap();
        let fs = pool.filesystem();
        for n in 0..100 {
            assert_eq!(fs.read(format!("/{n}")).unwrap(), contents, "{n}");
        }
        assert_eq!(names(&fs, "/").len(), 100);
    }
}

// Goal: a file that is made by being replaced has its contents as soon as it has its name, synced or not. Method: the power is cut after a
// sync of something else, which takes along all changes of names.
#[test]
fn a_name_comes_with_its_contents() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    let other = fs.create("/other").unwrap();
    drop(fs.replace("/new", [7; 100_000]).unwrap());
    other.sync_all().unwrap();
    let left = quiet().open_on(&disk.after_power_cut()).unwrap();
    assert!(left.filesystem().read("/new").unwrap() == [7; 100_000]);
    assert_sound(&left);
}

// Goal: two who replace one file at once, there or not, both succeed, and one of the two contents is there. Method: threads, with the
// file removed in between.
#[test]
fn two_replace_one_file() {
    let pool = PoolOptions::new().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    for round in 0..200 {
        thread::scope(|scope| {
            for contents in ["one", "two"] {
                let fs = &fs;
                scope.spawn(move || drop(fs.replace("/f", contents).unwrap()));
            }
        });
        assert!(["one", "two"].map(str::as_bytes).contains(&&fs.read("/f").unwrap()[..]));
        assert_eq!(names(&fs, "/"), ["f"]);
        if round % 2 == 0 {
            fs.remove_file("/f").unwrap();
        }
    }
    assert_sound(&pool);
}

// Goal: what cannot be put in place after all leaves no name. Method: a thread makes the file a directory and a file again, over and over,
// while another replaces it.
#[test]
fn a_file_that_becomes_a_directory_leaves_no_name() {
    let pool = PoolOptions::new().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (fs, over) = (&fs, &over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                // Each may come upon what the other thread has just made.
                for done in
                    [fs.write("/f", ""), fs.remove_file("/f"), fs.create_dir("/f"), fs.remove_dir("/f")]
                {
                    drop(done);
                }
            }
        });
        let contents = vec![7; 100_000];
        for _ in 0..2000 {
            match fs.replace("/f", &contents) {
                Ok(pending) => drop(pending),
                Err(error) => assert_eq!(*error.reason(), Reason::IsADirectory, "{error}"),
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(names(&fs, "/").iter().all(|name| name == "f"), "{:?}", names(&fs, "/"));
    assert_sound(&pool);
}

// Goal: a file without a name is nowhere until it gets one, has all that was written when it has, and is gone without. Method: one that is
// written and linked, twice; one that is dropped; one that a crash finds without a name, synced; names that are taken or lie elsewhere.
#[test]
fn a_file_begins_without_a_name() {
    let disk = MemoryDisk::new(64 * MIB);
    let pool = quiet().create_on(&disk).unwrap();
    let fs = pool.filesystem();
    fs.create_dir("/d").unwrap();
    fs.create_subvolume("/s").unwrap();
    fs.write("/taken", b"").unwrap();
    let count = fs.statfs().unwrap().files_count;
    let mut file = fs.create_unnamed("/d").unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    assert_eq!((names(&fs, "/d").len(), file.metadata().unwrap().links), (0, 0));
    let error = file.link_as("/taken").unwrap_err();
    assert_eq!(error.to_string(), "cannot link an open file as \"/taken\": it exists already");
    assert_eq!(*file.link_as("/s/f").unwrap_err().reason(), Reason::CrossesSubvolumes);
    assert_eq!(*file.link_as("/none/f").unwrap_err().reason(), Reason::NotFound);
    assert_eq!(file.link_as("/").unwrap_err().kind(), ErrorKind::AlreadyExists);
    // The name is not synced, and the contents are not: both come with the next sync of anything.
    file.link_as("/first").unwrap();
    file.write_all_at(&[8; 10], 0).unwrap();
    OpenOptions::new().write(true).open(&fs, "/taken").unwrap().sync_all().unwrap();
    {
        let fs = quiet().open_on(&disk.after_power_cut()).unwrap().filesystem();
        assert!(fs.read("/first").unwrap() == [7; 100_000]);
    }
    file.link_as("/d/second").unwrap();
    assert_eq!(file.metadata().unwrap().links, 2);
    assert_eq!(fs.statfs().unwrap().files_count, count + 1);
    fs.remove_file("/first").unwrap();
    fs.remove_file("/d/second").unwrap();
    assert_eq!(*file.link_as("/again").unwrap_err().reason(), Reason::NotFound);
    assert_eq!(*fs.open("/d").unwrap().link_as("/again").unwrap_err().reason(), Reason::NotPermitted);
    drop(file);
    drop(fs.create_unnamed("/").unwrap());
    let lost = fs.create_unnamed("/d/").unwrap();
    lost.write_all_at(&[1; 1 << 20], 0).unwrap();
    lost.sync_all().unwrap();
    let after = quiet().open_on(&disk.after_power_cut()).unwrap();
    after.maintain().unwrap();
    assert_eq!(after.filesystem().statfs().unwrap().files_count, count);
    assert_sound(&after);
    let error = fs.create_unnamed("/taken").unwrap_err();
    assert_eq!(*error.reason(), Reason::NotADirectory);
    assert_eq!(*fs.create_unnamed("/none").unwrap_err().reason(), Reason::NotFound);
    assert_sound(&pool);
}
