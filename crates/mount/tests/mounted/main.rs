//! The adapter on a real mount, with a filesystem in memory behind it. Needs `/dev/fuse` and the right to mount; where
//! they are missing every test says so and passes without having shown anything.

mod caches;
#[path = "../double.rs"]
mod double;
mod numbers;
mod overtaken;

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use double::Double;
use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use varve_device::AlignedBuf;
use varve_fs::ROOT_INODE;
use varve_mount::{Exchange, Flags, MountError, MountOptions, Mounted, Verbs, unmount};

struct TestMount {
    verbs: Arc<Double>,
    mounted: Option<Mounted>,
    directory: tempfile::TempDir,
}

impl TestMount {
    /// `None`: this machine cannot mount.
    fn start(test: &str) -> Option<TestMount> {
        TestMount::start_with(test, false)
    }

    fn start_with(test: &str, direct_io: bool) -> Option<TestMount> {
        let directory = tempfile::tempdir().unwrap();
        let verbs = Arc::new(Double::default());
        let options = MountOptions {
            source: "double,with=comma".into(),
            flags: Flags { no_dev: true, no_suid: true, ..Flags::default() },
            direct_io,
            ..double::options(varve_mount::Rings::Offered)
        };
        match Mounted::start(verbs.clone(), directory.path(), &options) {
            Ok(mounted) => {
                assert!(
                    mounted.rings() || std::env::var_os("VARVE_TEST_RINGS").is_none(),
                    "not through rings"
                );
                Some(TestMount { verbs, mounted: Some(mounted), directory })
            }
            Err(error @ (MountError::NoFuse(_) | MountError::Mount { .. })) => {
                eprintln!("SKIPPED, nothing shown: {test}: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// RELEASE and FORGET come after close() and rename() have returned.
    fn wait_for_no_open_handles(&self) {
        for _ in 0..12_000 {
            if self.verbs.opens.load(Relaxed) == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} handles were never released", self.verbs.opens.load(Relaxed));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let _ = unmount(self.directory.path(), true);
        if let Some(mounted) = self.mounted.take() {
            let _ = mounted.wait();
        }
    }
}

// Goal: what programs do to files comes through unchanged. Method: each verb once, through the standard library, and
// the results read back from the mount.
#[test]
fn files_directories_and_links() {
    let Some(mount) = TestMount::start("files_directories_and_links") else { return };
    let file = mount.path("file");
    fs::write(&file, b"hello").unwrap();
    let mut handle = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    handle.seek(SeekFrom::Start(3 << 20)).unwrap();
    let big: Vec<u8> = (0..(2usize << 20)).map(|i| (i % 251) as u8).collect();
    handle.write_all(&big).unwrap();
    handle.sync_all().unwrap();
    assert!(mount.verbs.fsyncs.load(Relaxed) >= 1);
    let read = fs::read(&file).unwrap();
    assert_eq!((read.len(), &read[..5]), (5 << 20, &b"hello"[..]));
    assert!(read[3 << 20..] == big[..] && read[5..3 << 20].iter().all(|byte| *byte == 0));

    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode(), 0o100640);
    fs::hard_link(&file, mount.path("second")).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
    fs::remove_file(mount.path("second")).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);

    fs::create_dir(mount.path("dir")).unwrap();
    symlink("some/target", mount.path("dir/link")).unwrap();
    assert_eq!(fs::read_link(mount.path("dir/link")).unwrap().as_os_str(), "some/target");
    assert_eq!(fs::remove_dir(mount.path("dir")).unwrap_err().raw_os_error(), Some(39));
    fs::remove_file(mount.path("dir/link")).unwrap();
    fs::remove_dir(mount.path("dir")).unwrap();
    assert_eq!(fs::metadata(mount.path("dir")).unwrap_err().kind(), io::ErrorKind::NotFound);

    let name = std::ffi::OsStr::from_bytes(b"not \xff utf-8");
    fs::write(mount.directory.path().join(name), b"x").unwrap();
    let listed: Vec<_> =
        fs::read_dir(mount.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(listed.contains(&name.to_owned()) && listed.len() == 2, "{listed:?}");
}

// Goal: sizes and times that a write changes are seen by the next stat, whatever was cached. Method: stat, write, stat.
#[test]
fn attributes_are_never_stale() {
    let Some(mount) = TestMount::start("attributes_are_never_stale") else { return };
    let file = mount.path("file");
    fs::write(&file, b"1").unwrap();
    for round in 2..20u64 {
        let before = fs::metadata(&file).unwrap();
        let mut handle = fs::OpenOptions::new().append(true).open(&file).unwrap();
        handle.write_all(b"2").unwrap();
        let after = handle.metadata().unwrap();
        assert_eq!((after.len(), after.mtime()), (round, before.mtime() + 1));
    }
    fs::OpenOptions::new().write(true).truncate(true).open(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    assert_eq!(fs::read(&file).unwrap(), b"");
}

// Goal: an unlinked file lives until its last handle goes. Method: unlink while open, use, close, count handles.
#[test]
fn unlinked_files_live_while_open() {
    let Some(mount) = TestMount::start("unlinked_files_live_while_open") else { return };
    let file = mount.path("file");
    fs::write(&file, b"still here").unwrap();
    let mut handle = fs::File::open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let mut text = String::new();
    handle.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert_eq!(handle.metadata().unwrap().nlink(), 0);
    drop(handle);
    mount.wait_for_no_open_handles();
}

// Goal: rename's flags do what renameat2 says, and those that contradict each other are refused. Method: each on two files,
// behind which is nobody who leaves whiteouts.
#[test]
fn rename_flags() {
    let Some(mount) = TestMount::start("rename_flags") else { return };
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    assert_eq!(rename(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(rustix::io::Errno::INVAL));
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(rustix::io::Errno::OPNOTSUPP));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!((fs::metadata(&a).is_err(), fs::read(&b).unwrap()), (true, b"b".to_vec()));
}

// Goal: any time that can be set comes back, before 1970 too. Method: utimensat and stat for seconds and fractions on
// both sides of 1970, -1.25 s among them.
#[test]
fn times_before_1970() {
    let Some(mount) = TestMount::start("times_before_1970") else { return };
    let file = mount.path("file");
    fs::write(&file, b"").unwrap();
    for (seconds, nanoseconds) in [
        (-2, 750_000_000),
        (-1, 0),
        (-1, 999_999_999),
        (0, 0),
        (0, 1),
        (-3_000_000_000, 1),
        (5_000_000_000, 9),
    ] {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &file, &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, nanoseconds), "mtime");
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (seconds, nanoseconds), "atime");
    }
    let time = Timespec { tv_sec: -2, tv_nsec: 750_000_000 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, &file, &times, AtFlags::empty()).unwrap();
    let modified: SystemTime = fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(modified, UNIX_EPOCH - Duration::from_millis(1250));
}

// Goal: the time of birth is shown, of what has just been made and when the kernel knows the rest, and a write does not
// change it. Method: statx(2) of a file, a directory and the root; the double keeps births apart from other times.
#[test]
fn births_are_shown() {
    let Some(mount) = TestMount::start("births_are_shown") else { return };
    let file = mount.path("file");
    fs::write(&file, b"1").unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    let mask = rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME;
    for path in [&file, &mount.path("dir"), mount.directory.path(), &file] {
        let known = fs::metadata(path).unwrap();
        let born = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), mask).unwrap();
        assert!(born.stx_mask & mask.bits() == mask.bits(), "{path:?}: {:x}", born.stx_mask);
        assert_eq!((born.stx_btime.tv_sec, born.stx_btime.tv_nsec), (900_000_000, 3), "{path:?}");
        assert_eq!((born.stx_ino, born.stx_size), (known.ino(), known.len()));
        assert_eq!((u32::from(born.stx_mode), born.stx_mtime.tv_sec), (known.mode(), known.mtime()));
        let shown = known.created().unwrap();
        assert_eq!(shown, UNIX_EPOCH + Duration::new(900_000_000, 3));
        fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"2").unwrap();
    }
}

// Goal: extended attributes with their flags, sizes and ranges. Method: set, query, read with a short buffer, list.
#[test]
fn extended_attributes() {
    let Some(mount) = TestMount::start("extended_attributes") else { return };
    let file = mount.path("file");
    fs::write(&file, b"").unwrap();
    rustix::fs::setxattr(&file, "user.one", b"first", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&file, "user.one", b"x", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let missing = rustix::fs::setxattr(&file, "user.two", b"x", XattrFlags::REPLACE);
    assert_eq!(missing, Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::getxattr_query(&file, "user.one"), Ok(5));
    assert_eq!(rustix::fs::listxattr_query(&file), Ok(9));
    let mut short = [0u8; 3];
    assert_eq!(rustix::fs::getxattr(&file, "user.one", &mut short), Err(rustix::io::Errno::RANGE));
    let mut buffer = [0u8; 64];
    assert_eq!(rustix::fs::getxattr(&file, "user.one", &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"first");
    assert_eq!(rustix::fs::listxattr(&file, &mut buffer), Ok(9));
    assert_eq!(&buffer[..9], b"user.one\0");
    rustix::fs::removexattr(&file, "user.one").unwrap();
    assert_eq!(rustix::fs::removexattr(&file, "user.one"), Err(rustix::io::Errno::NODATA));
}

// Goal: every entry of a directory is listed once, while others come and go. Method: 3,000 files; every third removed
// and new ones made after the first hundred entries have been read; the names that stayed are counted.
#[test]
fn large_directories() {
    let Some(mount) = TestMount::start("large_directories") else { return };
    for i in 0..3000 {
        fs::write(mount.path(&format!("f{i}")), b"").unwrap();
    }
    let mut seen = std::collections::HashMap::new();
    for (count, entry) in fs::read_dir(mount.directory.path()).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        *seen.entry(name).or_insert(0) += 1;
        if count == 100 {
            for i in (0..3000).step_by(3) {
                fs::remove_file(mount.path(&format!("f{i}"))).unwrap();
                fs::write(mount.path(&format!("new{i}")), b"").unwrap();
            }
        }
    }
    for i in (0..3000).filter(|i| i % 3 != 0) {
        assert_eq!(seen.get(&format!("f{i}")), Some(&1), "f{i}");
    }
    assert_eq!(fs::read_dir(mount.directory.path()).unwrap().count(), 3000);
}

// Goal: names that do not exist are remembered by the kernel, and forgotten when they are made. Method: count lookups.
#[test]
fn negative_entries_are_cached() {
    let Some(mount) = TestMount::start("negative_entries_are_cached") else { return };
    let missing = mount.path("missing");
    assert!(fs::metadata(&missing).is_err());
    let lookups = mount.verbs.lookups.load(Relaxed);
    for _ in 0..100 {
        assert!(fs::metadata(&missing).is_err());
    }
    // Somebody else may have all that is not in use forgotten in between.
    assert!(mount.verbs.lookups.load(Relaxed) - lookups <= 2);
    fs::write(&missing, b"now").unwrap();
    assert_eq!(fs::read(&missing).unwrap(), b"now");
}

// Goal: a reader never misses a file that is being renamed over. Method: one thread renames over it 2,000 times, the
// other opens and reads it all the while: each read gives a whole version.
#[test]
fn rename_over_is_never_seen_halfway() {
    let Some(mount) = TestMount::start("rename_over_is_never_seen_halfway") else { return };
    let target = mount.path("target");
    fs::write(&target, b"version").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..2000 {
                let new = mount.path(&format!("new{i}"));
                fs::write(&new, b"version").unwrap();
                fs::rename(&new, &target).unwrap();
            }
        });
        let mut reads = 0;
        while !writer.is_finished() {
            assert_eq!(fs::read(&target).unwrap(), b"version");
            reads += 1;
        }
        assert!(reads > 0);
    });
    mount.wait_for_no_open_handles();
}

// Goal: a file is renamed over one that is damaged, so that it can only go while nobody has it open: who answers the kernel is nobody. Method:
// a filesystem that refuses the rename otherwise; the target is open in no other place, and then in one.
#[test]
fn what_is_damaged_is_renamed_over() {
    let Some(mount) = TestMount::start("what_is_damaged_is_renamed_over") else { return };
    let [new, target] = ["new", "target"].map(|name| mount.path(name));
    let write =
        || [&new, &target].iter().for_each(|path| fs::write(path, path.as_os_str().as_bytes()).unwrap());
    write();
    mount.wait_for_no_open_handles();
    mount.verbs.bad_targets.store(true, Relaxed);
    fs::rename(&new, &target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), new.as_os_str().as_bytes());
    write();
    let open = fs::File::open(&target).unwrap();
    assert_eq!(fs::rename(&new, &target).unwrap_err().raw_os_error(), Some(5));
    drop(open);
    mount.wait_for_no_open_handles();
    fs::rename(&new, &target).unwrap();
    assert!(!new.exists());
    mount.wait_for_no_open_handles();
}

// Goal: nodes are made, O_DIRECT works, statfs shows the space. Method: one call of each.
#[test]
fn nodes_direct_io_and_space() {
    let Some(mount) = TestMount::start("nodes_direct_io_and_space") else { return };
    let mode = rustix::fs::Mode::RUSR;
    let fifo = rustix::fs::mknodat(rustix::fs::CWD, mount.path("fifo"), rustix::fs::FileType::Fifo, mode, 0);
    assert_eq!(fifo, Ok(()));
    let regular =
        rustix::fs::mknodat(rustix::fs::CWD, mount.path("file"), rustix::fs::FileType::RegularFile, mode, 0);
    assert_eq!(regular, Ok(()));
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut handle =
        fs::OpenOptions::new().write(true).custom_flags(direct).open(mount.path("file")).unwrap();
    handle.write_all(&[7; 4096]).unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap(), [7; 4096]);
    let space = rustix::fs::statvfs(mount.directory.path()).unwrap();
    assert_eq!((space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize), (1 << 30, 1 << 29));
    assert_eq!(space.f_namemax, 255);
}

// Goal: a panic in a verb neither hangs nor ends the mount, nothing is changed after it, and the filesystem is told once to write
// nothing by itself. Method: the double panics when "panic" is unlinked.
#[test]
fn panics_stop_changes_and_not_the_mount() {
    let Some(mount) = TestMount::start("panics_stop_changes_and_not_the_mount") else { return };
    fs::write(mount.path("panic"), b"x").unwrap();
    fs::write(mount.path("other"), b"y").unwrap();
    assert_eq!(fs::remove_file(mount.path("panic")).unwrap_err().raw_os_error(), Some(5));
    // The reply is sent while the stack unwinds, the note is made after that.
    let health = mount.mounted.as_ref().unwrap().health();
    for _ in 0..12_000 {
        if health.panicked() && !mount.verbs.stopped.lock().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(health.panicked());
    assert_eq!(fs::remove_file(mount.path("panic")).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(*mount.verbs.stopped.lock(), ["unlink has panicked"]);
    assert_eq!(fs::read(mount.path("other")).unwrap(), b"y");
    assert_eq!(fs::remove_file(mount.path("other")).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::write(mount.path("other"), b"z").unwrap_err().raw_os_error(), Some(5));
}

// Goal: the mount shows its type and source, and ends cleanly. Method: mountinfo, umount, wait.
#[test]
fn mountinfo_and_the_end() {
    let Some(mut mount) = TestMount::start("mountinfo_and_the_end") else { return };
    let at = mount.directory.path().canonicalize().unwrap();
    let find = || {
        let info = fs::read_to_string("/proc/self/mountinfo").unwrap();
        info.lines().find(|line| line.split(' ').nth(4) == at.to_str()).map(str::to_owned)
    };
    let line = find().unwrap();
    assert!(line.contains(" - fuse.varve double,with=comma "), "{line}");
    assert!(line.contains("default_permissions"), "{line}");
    let open = fs::File::create(mount.path("busy")).unwrap();
    assert_eq!(unmount(&at, false).unwrap_err().raw_os_error(), Some(16));
    drop(open);
    unmount(&at, false).unwrap();
    mount.mounted.take().unwrap().wait().unwrap();
    assert_eq!(find(), None);
}

/// As databases write: the program goes on, and hears of the end later. The file is as long already.
fn write_asynchronously(file: &fs::File, page: &AlignedBuf) -> io::Result<i32> {
    write_meanwhile(file, page, || ())
}

/// As [`write_asynchronously`], with something that is done before the end is waited for.
fn write_meanwhile(file: &fs::File, page: &AlignedBuf, meanwhile: impl FnOnce()) -> io::Result<i32> {
    let mut ring = io_uring::IoUring::new(2)?;
    let to = io_uring::types::Fd(file.as_raw_fd());
    let entry = io_uring::opcode::Write::new(to, page.as_ptr(), page.len() as u32).offset(0).build();
    // SAFETY: the file and the page outlive the operation, which is waited for here.
    unsafe { ring.submission().push(&entry) }.expect("the ring is empty");
    ring.submit()?;
    meanwhile();
    ring.submit_and_wait(1)?;
    Ok(ring.completion().next().expect("it was waited for").result())
}

// Goal: what is written through a file that is opened with O_SYNC or O_DSYNC is durable when it is acknowledged, past the
// kernel's cache too, and nothing is synced for others. Method: one write of each kind, waited for
// and not, and the fsyncs that were asked for.
#[test]
fn synchronous_writes_are_synced() {
    use rustix::fs::OFlags;
    for (direct_io, more) in [(false, OFlags::empty()), (false, OFlags::DIRECT), (true, OFlags::empty())] {
        let Some(mount) = TestMount::start_with("synchronous_writes_are_synced", direct_io) else { return };
        let page = AlignedBuf::from_slice(&[7; 4096]);
        for (flags, least) in [(OFlags::empty(), 0), (OFlags::DSYNC, 1), (OFlags::SYNC, 1)] {
            let mut open = fs::OpenOptions::new();
            open.write(true).create(true).custom_flags((flags | more).bits() as i32);
            let mut file = open.open(mount.path("file")).unwrap();
            let before = mount.verbs.fsyncs.load(Relaxed);
            file.write_all(&page).unwrap();
            let synced = mount.verbs.fsyncs.load(Relaxed) - before;
            assert!(synced >= least && synced <= 2 * least, "{direct_io} {more:?} {flags:?}: {synced}");
            let before = mount.verbs.fsyncs.load(Relaxed);
            match write_asynchronously(&file, &page) {
                Ok(written) => assert_eq!(written, 4096),
                Err(error) => eprintln!("SKIPPED, nothing shown of asynchronous writes: {error}"),
            }
            let synced = mount.verbs.fsyncs.load(Relaxed) - before;
            assert!(
                synced >= least && synced <= 2 * least,
                "{direct_io} {more:?} {flags:?}, async: {synced}"
            );
        }
        assert_eq!(fs::read(mount.path("file")).unwrap(), [7; 4096]);
    }
}

// Goal: a large write arrives in a buffer that holds nothing else and may be taken, and neither it nor what comes after it is
// any different for that. Method: writes of 1 MiB by the standard library and past the kernel's cache, large and small ones
// in turn, read again.
#[test]
fn large_writes_bring_their_buffers() {
    let Some(mount) = TestMount::start("large_writes_bring_their_buffers") else { return };
    let file = mount.path("file");
    let bytes: Vec<u8> = (0..(5usize << 20) + 777).map(|i| (i % 253) as u8).collect();
    let mut handle = fs::File::create(&file).unwrap();
    for (number, part) in bytes.chunks(1 << 20).enumerate() {
        handle.write_all(part).unwrap();
        fs::write(mount.path(&format!("small{number}")), b"small").unwrap();
    }
    assert_eq!(mount.verbs.taken.load(Relaxed), 5);
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut direct = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(flags)
        .open(mount.path("direct"))
        .unwrap();
    let page = AlignedBuf::from_slice(&bytes[..1 << 20]);
    for _ in 0..3 {
        direct.write_all(&page).unwrap();
    }
    assert_eq!(mount.verbs.taken.load(Relaxed), 8);
    drop((handle, direct));
    assert!(fs::read(&file).unwrap() == bytes);
    assert!(fs::read(mount.path("direct")).unwrap().chunks(1 << 20).all(|part| part == &page[..]));
    assert_eq!(fs::read(mount.path("small4")).unwrap(), b"small");
}

// Goal: nobody is asked anything while a filesystem is put in another's place; if that fails, or hits a bug, the first goes
// on; it happens once; the second keeps no names either, which the kernel does. Method: doubles that count lookups; one is asked for
// while the exchange is under way.
#[test]
fn another_takes_the_place() {
    let (first, second) = (Arc::new(Double::default()), Arc::new(Double::default()));
    let exchange = Exchange::new(first.clone());
    let ask = || drop(exchange.lookup(ROOT_INODE, b"nothing"));
    let asked = || (first.lookups.load(Relaxed), second.lookups.load(Relaxed));
    exchange.leave_names_to_caller();
    assert_eq!(exchange.exchange(|_| Err("no")), Err("no"));
    let panic = std::panic::AssertUnwindSafe(|| exchange.exchange::<()>(|_| panic!("a bug")));
    std::panic::catch_unwind(panic).unwrap_err();
    ask();
    assert_eq!(asked(), (1, 0));
    std::thread::scope(|scope| {
        let exchanged = exchange.exchange::<()>(|before| {
            assert!(std::ptr::eq(before, &*first));
            scope.spawn(ask);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(asked(), (1, 0));
            Ok(second.clone())
        });
        assert_eq!(exchanged, Ok(()));
    });
    assert_eq!(asked(), (1, 1));
    assert!(first.names_left.load(Relaxed) && second.names_left.load(Relaxed));
    assert_eq!(exchange.exchange::<()>(|_| panic!("a second time")), Ok(()));
    ask();
    assert_eq!(asked(), (1, 2));
    // The first is let go of.
    assert_eq!(Arc::strong_count(&first), 1);
}

// Goal: an fstrim that takes long keeps nobody from anything, and ends when it is interrupted. Method: more of them than threads
// that serve, on a double whose trims go on until they are told to end.
#[test]
fn fstrim_can_be_interrupted() {
    let Some(mount) = TestMount::start("fstrim_can_be_interrupted") else { return };
    let here = Command::new("fstrim").arg("--version").output().is_ok_and(|out| out.status.success());
    if !here || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED, nothing shown: fstrim_can_be_interrupted: no fstrim, or not root");
    }
    let reach = |count: &AtomicU64, wanted: u64| {
        for _ in 0..12_000 {
            if count.load(Relaxed) == wanted {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} of {wanted} trims", count.load(Relaxed));
    };
    let mut running: Vec<_> =
        (0..6).map(|_| Command::new("fstrim").arg(mount.directory.path()).spawn().unwrap()).collect();
    reach(&mount.verbs.trims.0, 6);
    fs::write(mount.path("file"), "meanwhile").unwrap();
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"meanwhile");
    for (i, fstrim) in running.iter_mut().enumerate() {
        let pid = rustix::process::Pid::from_child(fstrim);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(!fstrim.wait().unwrap().success());
        reach(&mount.verbs.trims.1, i as u64 + 1);
    }
    mount.wait_for_no_open_handles();
}

// Goal: a mount that is ended by force under a trim that takes long ends, through rings too, and so do the trim and whoever asked
// for it. Method: two of them, on a double whose trims go on until they are told to end.
#[test]
fn fstrim_ends_with_its_mount() {
    let Some(mut mount) = TestMount::start("fstrim_ends_with_its_mount") else { return };
    let here = Command::new("fstrim").arg("--version").output().is_ok_and(|out| out.status.success());
    if !here || !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED, nothing shown: fstrim_ends_with_its_mount: no fstrim, or not root");
    }
    let mut running: Vec<_> =
        (0..2).map(|_| Command::new("fstrim").arg(mount.directory.path()).spawn().unwrap()).collect();
    for _ in 0..12_000 {
        if mount.verbs.trims.0.load(Relaxed) == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((mount.verbs.trims.0.load(Relaxed), mount.verbs.trims.1.load(Relaxed)), (2, 0));
    // Those who asked have it open, so that it is aborted and stays in the tree.
    let forced = rustix::mount::unmount(mount.directory.path(), rustix::mount::UnmountFlags::FORCE);
    assert_eq!(forced, Err(rustix::io::Errno::BUSY));
    for fstrim in &mut running {
        assert!(!fstrim.wait().unwrap().success());
    }
    unmount(mount.directory.path(), true).unwrap();
    // Everybody has left when this returns.
    mount.mounted.take().unwrap().wait().unwrap();
    assert_eq!(mount.verbs.trims.1.load(Relaxed), 2);
}

/// Goal: what a fallocate has zeroed before it failed is not read from the kernel's cache as it was. Method: a file whose pages the kernel
/// has; zeros in a part of it, by both ways to ask for them, and an error.
#[test]
fn what_is_zeroed_in_part_is_not_cached() {
    let Some(mount) = TestMount::start("what_is_zeroed_in_part_is_not_cached") else { return };
    let path = mount.path("file");
    let mut expected = vec![b'x'; 64 << 10];
    fs::write(&path, &expected).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    mount.verbs.half_zeroes.store(true, Relaxed);
    let zero = FallocateFlags::ZERO_RANGE;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (flags, from, to) in [(zero, 8192, 20_000), (punch, 30_000, 50_000)] {
        let done = rustix::fs::fallocate(&file, flags, from as u64, (to - from) as u64);
        assert_eq!(done, Err(rustix::io::Errno::NOSPC));
        expected[from..to].fill(0);
        assert!(fs::read(&path).unwrap() == expected, "{from} to {to}");
    }
    mount.verbs.half_zeroes.store(false, Relaxed);
    assert_eq!(rustix::fs::fallocate(&file, punch, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
}

/// Goal: what a copy has written before it failed is not hidden by the kernel's cache, nor is a size that it has changed. Method: a file
/// whose pages and size the kernel has; half of a copy into it, inside and over its end, and an error.
#[test]
fn what_is_copied_in_part_is_not_cached() {
    let Some(mount) = TestMount::start("what_is_copied_in_part_is_not_cached") else { return };
    let (from, path) = (mount.path("from"), mount.path("to"));
    fs::write(&from, vec![b'y'; 64 << 10]).unwrap();
    let mut expected = vec![b'x'; 64 << 10];
    fs::write(&path, &expected).unwrap();
    let from = fs::File::open(&from).unwrap();
    let to = fs::File::options().read(true).write(true).open(&path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    mount.verbs.half_copies.store(true, Relaxed);
    for at in [8192, 50_000] {
        let (len, mut to_offset) = (60_000, at as u64);
        let done = rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut to_offset), len);
        assert_eq!(done, Err(rustix::io::Errno::NOSPC));
        expected.resize(expected.len().max(at + len / 2), 0);
        expected[at..at + len / 2].fill(b'y');
        assert_eq!(to.metadata().unwrap().len(), expected.len() as u64);
        assert!(fs::read(&path).unwrap() == expected, "from {at}");
    }
}
