//! Answers with attributes that reach the kernel when what they tell has been changed since.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, XattrFlags, statx};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use varve_device::AlignedBuf;
use varve_fs::InodeId;
use varve_mount::Verbs;

use super::{TestMount, write_meanwhile};

const LONG: Duration = Duration::from_secs(20);

/// Who is told of the inode called `of` too late.
#[derive(Clone, Copy, Debug)]
enum Asking {
    /// Somebody who wants its attributes.
    Statx,
    /// Somebody who lists the directory it is in.
    Listing,
}

/// Looks at `of` while `change` is made, so that the answer is one from before it and comes after it. Then what stat says is what the
/// filesystem does.
fn overtake(mount: &TestMount, asking: Asking, of: &Path, change: impl FnOnce()) {
    let ino = fs::metadata(of).unwrap().ino();
    let before = mount.verbs.getattr(InodeId(ino)).unwrap();
    mount.verbs.hold_getattr.store(ino, Relaxed);
    thread::scope(|scope| {
        let asks = scope.spawn(move || match asking {
            Asking::Statx => {
                statx(CWD, of, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop).unwrap();
            }
            Asking::Listing => assert!(fs::read_dir(of.parent().unwrap()).unwrap().count() > 0),
        });
        let begun = Instant::now();
        while mount.verbs.held_getattr.load(Relaxed) == 0 && begun.elapsed() < LONG {
            thread::sleep(Duration::from_millis(1));
        }
        let held = mount.verbs.held_getattr.load(Relaxed);
        change();
        mount.verbs.hold_getattr.store(0, Relaxed);
        assert_eq!(held, 1, "{asking:?} asks for no attributes");
        asks.join().unwrap();
    });
    let now = mount.verbs.getattr(InodeId(ino)).unwrap();
    assert!(now != before, "nothing was changed");
    let shown = fs::symlink_metadata(of).unwrap();
    assert_eq!(
        (shown.mtime(), shown.ctime(), shown.mode() & 0o7777, shown.nlink()),
        (now.mtime.seconds, now.ctime.seconds, now.mode, u64::from(now.links)),
        "{asking:?} {of:?}"
    );
}

/// Goal: a directory's attributes are those after the last change of a name in it, whoever asked for them before and is answered after that.
/// Method: a name of each kind is made and taken away, beside who asks for the attributes and who lists the directory above.
#[test]
fn directories_are_shown_as_they_are() {
    let Some(mount) = TestMount::start("directories_are_shown_as_they_are") else { return };
    for asking in [Asking::Statx, Asking::Listing] {
        let top = mount.path(&format!("{asking:?}"));
        fs::create_dir(&top).unwrap();
        let other = mount.path("other");
        fs::write(&other, b"x").unwrap();
        let mut number = 0;
        // What was listed is cached until something is changed there.
        let mut directory = || {
            number += 1;
            let directory = top.join(number.to_string());
            fs::create_dir(&directory).unwrap();
            directory
        };
        let dir = directory();
        overtake(&mount, asking, &dir, || drop(fs::File::create(dir.join("file")).unwrap()));
        let dir = directory();
        overtake(&mount, asking, &dir, || fs::create_dir(dir.join("dir")).unwrap());
        let dir = directory();
        overtake(&mount, asking, &dir, || symlink("target", dir.join("link")).unwrap());
        let dir = directory();
        overtake(&mount, asking, &dir, || fs::hard_link(&other, dir.join("hard")).unwrap());
        let dir = directory();
        overtake(&mount, asking, &dir, || fs::rename(&other, dir.join("moved")).unwrap());
        let to = directory();
        overtake(&mount, asking, &dir, || fs::rename(dir.join("moved"), to.join("again")).unwrap());
        let made = directory();
        fs::create_dir(to.join("dir")).unwrap();
        overtake(&mount, asking, &to, || fs::remove_file(to.join("again")).unwrap());
        drop(fs::File::create(made.join("file")).unwrap());
        directory();
        overtake(&mount, asking, &to, || fs::remove_dir(to.join("dir")).unwrap());
        // Once more: what was told before the last change counts, not only the first time.
        for name in ["one", "two", "three"] {
            directory();
            overtake(&mount, asking, &to, || drop(fs::File::create(to.join(name)).unwrap()));
        }
    }
}

/// Goal: so are those of files: when they get an access list or another extended attribute, are moved, or what has been stored through
/// mmap is written back. Method: each of that, beside who asks for the attributes and, but for the move, who lists the directory.
#[test]
fn files_are_shown_as_they_are() {
    let Some(mount) = TestMount::start("files_are_shown_as_they_are") else { return };
    // Version 2; owner, group and others, each with its rights and no number.
    let list = |rights: [u8; 3]| {
        let entry = |(tag, rights)| [tag, 0, rights, 0, 0xff, 0xff, 0xff, 0xff];
        let entries = [1, 4, 0x20].into_iter().zip(rights).flat_map(entry);
        [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<u8>>()
    };
    for asking in [Asking::Statx, Asking::Listing] {
        let mut number = 0;
        let mut file = || {
            number += 1;
            let directory = mount.path(&format!("{asking:?}{number}"));
            fs::create_dir(&directory).unwrap();
            let file = directory.join("file");
            fs::write(&file, [7; 4096]).unwrap();
            file
        };
        let one = file();
        overtake(&mount, asking, &one, || {
            rustix::fs::setxattr(&one, "system.posix_acl_access", &list([6, 0, 0]), XattrFlags::empty())
                .unwrap();
        });
        assert_eq!(fs::metadata(&one).unwrap().mode() & 0o777, 0o600);
        let one = file();
        overtake(&mount, asking, &one, || {
            rustix::fs::setxattr(&one, "user.name", b"value", XattrFlags::empty()).unwrap();
        });
        if let Asking::Statx = asking {
            overtake(&mount, asking, &one, || rustix::fs::removexattr(&one, "user.name").unwrap());
        }
        let one = file();
        let open = fs::OpenOptions::new().read(true).write(true).open(&one).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping of its own, nowhere in particular.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &open, 0) }.unwrap();
        // SAFETY: the mapping is there and nobody else's.
        let store = |byte| unsafe {
            at.cast::<u8>().write_volatile(byte);
            msync(at, 4096, MsyncFlags::SYNC).unwrap();
        };
        overtake(&mount, asking, &one, || store(8));
        // SAFETY: nothing refers to it any more.
        unsafe { munmap(at, 4096) }.unwrap();
    }
    // Whoever lists the directory keeps it from being changed.
    let (from, to) = (mount.path("from"), mount.path("to"));
    fs::write(&from, b"x").unwrap();
    fs::hard_link(&from, mount.path("held")).unwrap();
    overtake(&mount, Asking::Statx, &mount.path("held"), || fs::rename(&from, &to).unwrap());
    fs::write(&from, b"y").unwrap();
    fs::hard_link(&from, mount.path("other")).unwrap();
    for held in ["held", "other"] {
        overtake(&mount, Asking::Statx, &mount.path(held), || {
            use rustix::fs::{RenameFlags, renameat_with};
            renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).unwrap();
        });
    }
}

/// Goal: a file's times are those after the last write past the cache, also when its program does not wait for it and somebody looks at the file
/// or changes its mode meanwhile. Method: such writes are held up; another thread looks or changes, or the one that has sent the write looks.
#[test]
fn writes_that_nobody_waits_for_change_times() {
    let Some(mount) = TestMount::start("writes_that_nobody_waits_for_change_times") else { return };
    let mut page = AlignedBuf::from_slice(&[1; 4096]);
    for (by_writer, changes) in [(false, false), (true, false), (false, true)] {
        let path = mount.path(&format!("{by_writer}-{changes}"));
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let file = open.open(&path).unwrap();
        // No page of it is in the cache.
        file.write_all_at(&page, 0).unwrap();
        let ino = InodeId(file.metadata().unwrap().ino());
        let look = || match changes {
            true => fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap(),
            false => statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop).unwrap(),
        };
        // Once more: what was told before the last write counts, not only the first time.
        for byte in 2..5 {
            // Whoever was told of it before is forgotten.
            file.write_all_at(&page, 0).unwrap();
            page.fill(byte);
            let before = mount.verbs.getattr(ino).unwrap();
            mount.verbs.hold_writes.store(true, Relaxed);
            let mut held = 0;
            let written = write_meanwhile(&file, &page, || {
                let begun = Instant::now();
                while mount.verbs.held.load(Relaxed) == 0 && begun.elapsed() < LONG {
                    thread::sleep(Duration::from_millis(1));
                }
                held = mount.verbs.held.load(Relaxed);
                match by_writer {
                    true => look(),
                    false => thread::scope(|scope| scope.spawn(look).join().unwrap()),
                }
                mount.verbs.hold_writes.store(false, Relaxed);
            });
            mount.verbs.hold_writes.store(false, Relaxed);
            match written {
                Ok(written) => assert_eq!((written, held), (4096, 1)),
                Err(error) => return eprintln!("SKIPPED, nothing shown of asynchronous writes: {error}"),
            }
            let now = mount.verbs.getattr(ino).unwrap();
            assert!(now.mtime.seconds > before.mtime.seconds, "it was not written");
            assert_eq!(
                fs::metadata(&path).unwrap().mtime(),
                now.mtime.seconds,
                "{by_writer}, {changes}, {byte}"
            );
        }
    }
}
