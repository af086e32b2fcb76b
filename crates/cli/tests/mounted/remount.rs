//! `-o remount,rw` of a mount that began read-only: the pool is opened anew, for writing, under whoever uses the mount.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use varve_format::root::RootBlock;
use varve_format::superblock::{SLOT_BYTES, SLOTS_PER_END, Superblock, slot_offset};
use varve_format::{BLOCK_BYTES, PoolAddr};

use crate::harness::*;
use crate::helper::script;

const MIB: usize = 1 << 20;

/// Whether this machine can remount; says loudly that `test` is skipped when not.
fn can_remount(test: &str) -> bool {
    if !can_mount(test) {
        return false;
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        say(&format!("\n*** SKIPPED {test}: only root can remount ***\n"));
    }
    root
}

fn remount(pool: &Path, point: &Path, options: &str) -> Command {
    let mut command = varve(&["mount", "-o", &format!("remount,{options}")]);
    command.arg(pool).arg(point);
    command
}

/// The remount must fail, with all of `words` in its message, and leave a mount that can be read and not written to.
fn refuses(pool: &Path, mount: &Mount, words: &[&str]) {
    let out = output(&mut remount(pool, &mount.point, "rw"));
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{message}");
    for word in words.iter().chain(&["stays read-only"]) {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
    is_read_only(mount);
}

fn is_read_only(mount: &Mount) {
    let error = fs::write(mount.path("new"), "x").expect_err("a read-only mount was written to");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{error}");
}

/// A pool with `files` of 4 MiB, and their contents.
fn filled(scratch: &Scratch, files: usize) -> (std::path::PathBuf, Vec<Vec<u8>>) {
    let pool = scratch.pool("pool.img", "256M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let mut random = Random::new(seed());
    let contents: Vec<Vec<u8>> = (0..files).map(|_| random.bytes(4 * MIB)).collect();
    fs::create_dir(mount.path("dir")).expect("a directory");
    for (number, bytes) in contents.iter().enumerate() {
        fs::write(mount.path(&format!("dir/file{number}")), bytes).expect("there is room");
    }
    mount.unmount();
    (pool, contents)
}

/// Goal: whoever uses a read-only mount goes on when it becomes writable, and everything works then. Method: an open file,
/// an open directory and a process whose current directory is inside; after the remount they read what the kernel has not
/// seen before, make names, and remove the file that is open; back to read-only and again; all of it is there at the next
/// mount, and `varve check` finds nothing.
#[test]
fn who_uses_it_goes_on() {
    if !can_remount("who_uses_it_goes_on") {
        return;
    }
    let scratch = Scratch::new("remount-use");
    let (pool, contents) = filled(&scratch, 3);
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    let mut file = fs::File::open(mount.path("dir/file0")).expect("it is there");
    let mut first = [0; 4096];
    file.read_exact(&mut first).expect("it can be read");
    let directory = fs::File::open(mount.path("dir")).expect("it is there");
    let mut inside = Command::new("bash")
        .args(["-euc", "read line; cat file1 | cmp - \"$0\"; echo $line > said"])
        .arg(scratch.path("expected"))
        .current_dir(mount.path("dir"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("bash starts");
    fs::write(scratch.path("expected"), &contents[1]).expect("there is room");
    is_read_only(&mount);

    succeed(&mut remount(&pool, &mount.point, "rw"));
    writeln!(inside.stdin.as_ref().expect("its input is ours"), "here").expect("it listens");
    drop(inside.stdin.take());
    assert!(inside.wait().expect("a child can be waited for").success());
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::EXCL;
    let made = openat(&directory, "made", flags, Mode::from(0o644)).expect("the directory is open");
    fs::File::from(made).write_all(b"made").expect("it can be written to");
    fs::remove_file(mount.path("dir/file0")).expect("it can be removed");
    fs::write(mount.path("dir/file2"), "other").expect("it can be replaced");
    mount.sync();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).expect("an open file stays");
    assert!(rest == contents[0][4096..], "an open file reads otherwise");
    drop(file);

    // What nothing can change is not opened for writing here, either.
    succeed(varve(&["subvolume", "create"]).arg(mount.path("sub")));
    fs::write(mount.path("sub/file"), "x").expect("it can be written to");
    succeed(varve(&["snapshot", "--read-only"]).args([mount.path("sub"), mount.path("snap")]));
    let refused = fs::File::options().write(true).open(mount.path("snap/file")).expect_err("it is read-only");
    assert_eq!(refused.raw_os_error(), Some(30));

    succeed(&mut remount(&pool, &mount.point, "ro"));
    is_read_only(&mount);
    succeed(&mut remount(&pool, &mount.point, "rw"));
    fs::write(mount.path("dir/late"), "late").expect("it can be written to again");
    drop(directory);
    mount.unmount();
    check(&pool);

    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    let mut names: Vec<String> = fs::read_dir(mount.path("dir"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("our names are text"))
        .collect();
    names.sort();
    assert_eq!(names, ["file1", "file2", "late", "made", "said"]);
    for (name, text) in [("said", "here\n"), ("made", "made"), ("file2", "other"), ("late", "late")] {
        assert_eq!(fs::read_to_string(mount.path(&format!("dir/{name}"))).expect("it is there"), text);
    }
    assert!(fs::read(mount.path("dir/file1")).expect("it is there") == contents[1]);
    mount.unmount();
}

/// Goal: a mount becomes read-only when what keeps it from that ends in a moment, and is refused when it does not. Method: a file
/// without a name any more, open for writing, that is closed a while after the remount has begun; and one that stays open.
#[test]
fn what_ends_soon_is_waited_for() {
    if !can_remount("what_ends_soon_is_waited_for") {
        return;
    }
    let scratch = Scratch::new("remount-soon");
    let (pool, _) = filled(&scratch, 1);
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let open = || {
        let file = fs::File::create(mount.path("dir/short")).expect("it can be made");
        fs::remove_file(mount.path("dir/short")).expect("it can be removed");
        file
    };
    let file = open();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(file);
        });
        succeed(&mut remount(&pool, &mount.point, "ro"));
    });
    is_read_only(&mount);
    succeed(&mut remount(&pool, &mount.point, "rw"));
    let file = open();
    let out = output(&mut remount(&pool, &mount.point, "ro"));
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("open for writing"));
    drop(file);
    mount.unmount();
}

/// Goal: readers see nothing of the change. Method: threads that read past the kernel's cache, and list, before, during
/// and after it; then beside a writer.
#[test]
fn readers_notice_nothing() {
    if !can_remount("readers_notice_nothing") {
        return;
    }
    let scratch = Scratch::new("remount-readers");
    let (pool, contents) = filled(&scratch, 4);
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro,direct_io"]);
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (number, expected) in contents.iter().enumerate() {
            let (mount, stop, reads) = (&mount, &stop, &reads);
            scope.spawn(move || {
                let file = fs::File::open(mount.path(&format!("dir/file{number}"))).expect("it is there");
                let mut random = Random::new(number as u64);
                let mut bytes = vec![0; 256 << 10];
                while !stop.load(Relaxed) {
                    let at = random.below((expected.len() - bytes.len()) as u64) as usize;
                    file.read_exact_at(&mut bytes, at as u64).expect("it can be read");
                    assert!(bytes == expected[at..at + bytes.len()], "file {number} reads otherwise at {at}");
                    assert!(fs::read_dir(mount.path("dir")).expect("it can be listed").count() >= 4);
                    reads.fetch_add(1, Relaxed);
                }
            });
        }
        let wait = || {
            let until = reads.load(Relaxed) + 100;
            while reads.load(Relaxed) < until {
                assert!(!stop.load(Relaxed));
                thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        // Also a failure must end the threads.
        let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait();
            succeed(&mut remount(&pool, &mount.point, "rw"));
            wait();
            for number in 0..50 {
                fs::write(mount.path(&format!("dir/new{number}")), &contents[0][..64 << 10]).expect("room");
            }
            mount.sync();
            wait();
        }));
        stop.store(true, Relaxed);
        if let Err(panic) = went {
            std::panic::resume_unwind(panic);
        }
    });
    mount.unmount();
    check(&pool);
}

/// Goal: an fstab line of another filesystem mounts, what it asks for in vain is said, and so is what a remount cannot change.
/// Method: such options; a symbolic link that is not followed, until a remount allows it; remounts that name what stays.
#[test]
fn options_of_other_filesystems() {
    if !can_remount("options_of_other_filesystems") {
        return;
    }
    let scratch = Scratch::new("remount-options");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.path("mnt");
    let mount = Mount::start_with(&pool, &point, &["-o", "lazytime,discard,nosymfollow"]);
    assert!(mount.messages().contains("discard changes nothing"), "{}", mount.messages());
    fs::write(mount.path("file"), "it").expect("there is room");
    std::os::unix::fs::symlink("file", mount.path("link")).expect("there is room");
    let error = fs::read(mount.path("link")).expect_err("a link was followed");
    assert_eq!(error.raw_os_error(), Some(40), "{error}");
    for (options, words) in [
        ("ro", ""),
        ("rw,direct_io", "direct_io stays"),
        ("rw,fsname=other", "fsname stays"),
        ("rw,symfollow,discard", ""),
    ] {
        let out = output(&mut remount(&pool, &point, options));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() && said.contains(words), "{options}: {said}");
        assert_eq!(said.is_empty(), words.is_empty(), "{options}: {said}");
        assert_eq!(fs::read(mount.path("link")).is_ok(), options.contains("symfollow"), "{options}");
    }
    mount.unmount();
    check(&pool);
}

/// Goal: who else reads the pool is left alone and named, and the mount stays as it was. Method: two read-only mounts of
/// one pool; one cannot become writable while there is the other, and can when that has gone; then nobody else can read.
#[test]
fn another_reader_is_named() {
    if !can_remount("another_reader_is_named") {
        return;
    }
    let scratch = Scratch::new("remount-readers");
    let (pool, contents) = filled(&scratch, 2);
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    let other = Mount::start_with(&pool, &scratch.path("other"), &["-o", "ro"]);
    let before = fs::read(&pool).expect("a file");
    // Who looks for the other process comes across this, and asks the mount about it.
    let open = fs::File::open(mount.path("dir/file1")).expect("it is there");
    let named = format!("process {} (varve)", other.pid());
    refuses(&pool, &mount, &[&named, "try again"]);
    drop(open);
    for mount in [&mount, &other] {
        assert!(fs::read(mount.path("dir/file0")).expect("it can be read") == contents[0]);
    }
    assert!(fs::read(&pool).expect("a file") == before, "a refused remount has changed the pool");
    other.unmount();
    // Its own lock is there again.
    let writer = output(varve(&["mount"]).arg(&pool).arg(scratch.subdir("third")));
    assert!(!writer.status.success(), "a pool was written to that is mounted read-only elsewhere");

    succeed(&mut remount(&pool, &mount.point, "rw"));
    fs::write(mount.path("new"), "new").expect("it can be written to");
    let reader = output(varve(&["mount", "-o", "ro"]).arg(&pool).arg(scratch.path("third")));
    assert!(!reader.status.success(), "a pool was read that somebody writes to");
    mount.unmount();
    check(&pool);
}

/// Goal: a pool that was not unmounted shows the same before and after. Method: SIGKILL with names, data and an unlinked
/// open file in the log; read-only, everything is read; writable, the same is there, past the kernel's cache too; killed
/// again.
#[test]
fn a_log_is_replayed() {
    if !can_remount("a_log_is_replayed") {
        return;
    }
    let scratch = Scratch::new("remount-log");
    let (pool, contents) = filled(&scratch, 3);
    let point = scratch.path("mnt");
    let mount = Mount::start(&pool, &point);
    fs::write(mount.path("dir/small"), "small").expect("room");
    fs::write(mount.path("dir/file1"), &contents[0]).expect("room");
    let _open = fs::File::open(mount.path("dir/file2")).expect("it is there");
    fs::remove_file(mount.path("dir/file2")).expect("it can be removed");
    mount.sync();
    fs::write(mount.path("dir/unsynced"), "perhaps").expect("room");
    mount.kill();

    let before = fs::read(&pool).expect("a file");
    let mount = Mount::start_with(&pool, &point, &["-o", "ro"]);
    let show = || {
        let mut shown: Vec<(std::ffi::OsString, Vec<u8>)> = fs::read_dir(mount.path("dir"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry"))
            .map(|entry| (entry.file_name(), fs::read(entry.path()).expect("it can be read")))
            .collect();
        shown.sort();
        shown
    };
    let shown = show();
    assert!(shown.iter().any(|(name, bytes)| name == "small" && bytes == b"small"));
    assert!(shown.iter().any(|(name, bytes)| name == "file1" && *bytes == contents[0]));
    assert!(shown.iter().all(|(name, _)| name != "file2"));
    assert!(fs::read(&pool).expect("a file") == before, "a read-only mount has changed the pool");
    let file = fs::File::open(mount.path("dir/file1")).expect("it is there");

    succeed(&mut remount(&pool, &point, "rw"));
    assert!(mount.messages().contains("recovered"), "{}", mount.messages());
    assert!(show() == shown, "what the kernel remembers is otherwise");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("the kernel can forget");
    let mut bytes = vec![0; contents[0].len()];
    file.read_exact_at(&mut bytes, 0).expect("it can be read");
    assert!(bytes == contents[0]);
    fs::write(mount.path("dir/after"), "after").expect("room");
    mount.sync();
    mount.kill();

    let mount = Mount::start(&pool, &point);
    assert_eq!(fs::read_to_string(mount.path("dir/after")).expect("it was synced"), "after");
    mount.unmount();
    check(&pool);
}

/// Goal: a pool that cannot be opened for writing stays mounted as it was. Method: what says where everything is, is
/// overwritten at both ends under a read-only mount; the remount is refused; put back, the remount works.
#[test]
fn a_damaged_pool_is_refused() {
    if !can_remount("a_damaged_pool_is_refused") {
        return;
    }
    let scratch = Scratch::new("remount-damage");
    let (pool, contents) = filled(&scratch, 2);
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    let whole = fs::read(&pool).expect("a file");
    let file = fs::File::options().write(true).open(&pool).expect("root can write to it");
    for at in [0, whole.len() - MIB] {
        file.write_all_at(&vec![0; MIB], at as u64).expect("a file");
    }
    let damaged = fs::read(&pool).expect("a file");
    refuses(&pool, &mount, &["pool.img", "varve check"]);
    assert!(fs::read(&pool).expect("a file") == damaged, "a refused remount has changed the pool");
    assert!(fs::read(mount.path("dir/file1")).expect("it can be read") == contents[1]);
    for at in [0, whole.len() - MIB] {
        file.write_all_at(&whole[at..at + MIB], at as u64).expect("a file");
    }
    succeed(&mut remount(&pool, &mount.point, "rw"));
    fs::write(mount.path("new"), "new").expect("it can be written to");
    mount.unmount();
    check(&pool);
}

/// Every copy of the bitmap's first page, overwritten.
fn spoil_bitmap(pool: &Path) {
    let file = fs::File::options().read(true).write(true).open(pool).expect("root can write to it");
    let size = file.metadata().expect("a file").len();
    let read = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).expect("it is that long");
        bytes
    };
    let slots = (0..2 * SLOTS_PER_END).map(|slot| read(slot_offset(slot, size), SLOT_BYTES as usize));
    let superblocks = slots.filter_map(|slot| Superblock::decode(&slot).ok());
    let superblock = superblocks.max_by_key(|superblock| superblock.generation).expect("it is a pool");
    let chunk = &superblock.chunks[0];
    let offset = |addr: PoolAddr| chunk.stripes[0].offset + (addr.0 - chunk.start);
    let root = RootBlock::decode(&read(offset(superblock.root.addr[0]), BLOCK_BYTES)).expect("a root block");
    for addr in root.bitmap.ptr.copies() {
        file.write_all_at(&[0x5a; BLOCK_BYTES], offset(addr)).expect("it can be written to");
    }
}

/// Goal: a pool of which only the bitmap is damaged gives its files back, and nothing writes to it. Method: all copies of it are
/// garbage; the pool is mounted, looked into and exported, and refused by who would write, with what to do, a remount among them.
#[test]
fn a_pool_without_its_bitmap_is_read() {
    if !can_remount("a_pool_without_its_bitmap_is_read") {
        return;
    }
    let scratch = Scratch::new("remount-bitmap");
    let (pool, contents) = filled(&scratch, 2);
    spoil_bitmap(&pool);
    let spoiled = fs::read(&pool).expect("a file");
    let words = ["pool.img", "which blocks of the pool are in use", "varve check", "varve export", "-o ro"];
    let out = output(varve(&["mount"]).arg(&pool).arg(scratch.subdir("rw")));
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{message}");
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
    let exported = scratch.path("out");
    succeed(varve(&["export"]).arg(format!("{}:/dir", pool.display())).arg(&exported));
    assert!(fs::read(exported.join("file1")).expect("it is there") == contents[1]);
    succeed(varve(&["inspect"]).arg(&pool));
    succeed(varve(&["stats"]).arg(&pool));
    let found = output(varve(&["check"]).arg(&pool));
    assert!(String::from_utf8_lossy(&found.stdout).contains("array-unreadable"), "{found:?}");

    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    for (number, bytes) in contents.iter().enumerate() {
        assert!(fs::read(mount.path(&format!("dir/file{number}"))).expect("it can be read") == *bytes);
    }
    refuses(&pool, &mount, &words);
    assert!(fs::read(mount.path("dir/file0")).expect("it can still be read") == contents[0]);
    mount.unmount();
    assert!(fs::read(&pool).expect("a file") == spoiled, "something was written to it");
}

/// Goal: what the kernel remembers of a pool is not mixed with another state of it. Method: the bytes of a later state are
/// put under a read-only mount, as no lock can prevent; the remount is refused, and the next mount shows them.
#[test]
fn another_state_is_refused() {
    if !can_remount("another_state_is_refused") {
        return;
    }
    let scratch = Scratch::new("remount-state");
    let (pool, contents) = filled(&scratch, 1);
    let later = scratch.path("later.img");
    fs::copy(&pool, &later).expect("there is room");
    let mount = Mount::start(&later, &scratch.path("mnt"));
    fs::write(mount.path("later"), "later").expect("room");
    mount.unmount();

    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    fs::copy(&later, &pool).expect("locks are not asked");
    refuses(&pool, &mount, &["another process has written to the pool", "unmount it", "mount it again"]);
    let untouched = fs::read(&pool).expect("a file") == fs::read(&later).expect("a file");
    assert!(untouched, "a pool that another process has written to was written to before that was noticed");
    assert!(fs::read(mount.path("dir/file0")).expect("it can be read") == contents[0]);
    mount.unmount();
    check(&pool);
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert_eq!(fs::read_to_string(mount.path("later")).expect("it is there"), "later");
    mount.unmount();
}

/// The files by which the process of `mount` has the pool open: what is done to a lock of one is done to that process's lock.
fn open_in(mount: &Mount, pool: &Path) -> Vec<OwnedFd> {
    let pid = Pid::from_raw(mount.pid() as i32).expect("a process");
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("it lives");
    let fds = fs::read_dir(format!("/proc/{}/fd", mount.pid())).expect("root may look");
    let fds = fds.map(|entry| entry.expect("an entry").path());
    let fds = fds.filter(|path| fs::read_link(path).is_ok_and(|target| target == pool));
    let number =
        |path: &Path| path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
    let fds: Vec<OwnedFd> = fds
        .map(|path| pidfd_getfd(&process, number(&path), PidfdGetfdFlags::empty()).expect("root may"))
        .collect();
    assert!(!fds.is_empty(), "it has the pool open");
    fds
}

fn lock(fds: &[OwnedFd], operation: FlockOperation) {
    fds.iter().for_each(|fd| flock(fd, operation).expect("nobody is in the way"));
}

/// Goal: a writer who comes and goes in the moment in which a reader's lock becomes a writer's is noticed, before anything is
/// written. Method: the daemon's lock is let go of, another mount writes and ends, and the lock is there again; beside another
/// reader, who is the reason of the refusal, and without.
#[test]
fn a_writer_in_between_is_noticed() {
    if !can_remount("a_writer_in_between_is_noticed") {
        return;
    }
    let scratch = Scratch::new("remount-between");
    let (pool, contents) = filled(&scratch, 2);
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    let fds = open_in(&mount, &pool);
    lock(&fds, FlockOperation::Unlock);
    let writer = Mount::start(&pool, &scratch.path("other"));
    fs::write(writer.path("later"), "later").expect("room");
    writer.unmount();
    lock(&fds, FlockOperation::NonBlockingLockShared);
    drop(fds);
    let before = fs::read(&pool).expect("a file");

    let noticed = ["another process has written to the pool", "unmount it", "mount it again"];
    let other = Mount::start_with(&pool, &scratch.path("other"), &["-o", "ro"]);
    // Who is named is either: the kernel keeps with a lock the process that took it, and that was this one for the daemon.
    refuses(&pool, &mount, &[&["is in use by process"], &noticed[..]].concat());
    other.unmount();
    refuses(&pool, &mount, &noticed);
    assert!(fs::read(&pool).expect("a file") == before, "a refused remount has changed the pool");
    assert!(fs::read(mount.path("dir/file1")).expect("it can be read") == contents[1]);
    mount.unmount();

    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert_eq!(fs::read_to_string(mount.path("later")).expect("it is there"), "later");
    mount.unmount();
    check(&pool);
}

/// Goal: who loses the pool to a writer in that moment is told what to do. Method: the daemon's lock is let go of, and a mount that
/// writes has it: the refusal names that, and nothing more is read; after both have ended the pool can be mounted.
#[test]
fn a_lost_lock_is_told() {
    if !can_remount("a_lost_lock_is_told") {
        return;
    }
    let scratch = Scratch::new("remount-lost");
    let (pool, contents) = filled(&scratch, 2);
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    lock(&open_in(&mount, &pool), FlockOperation::Unlock);
    let writer = Mount::start(&pool, &scratch.path("other"));
    let named = format!("process {} (varve)", writer.pid());
    let out = output(&mut remount(&pool, &mount.point, "rw"));
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{message}");
    for word in [&named[..], "was faster", "reads nothing more", "unmount it", "mount it again"] {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
    assert!(!message.contains("then try again"), "{message}");
    fs::read(mount.path("dir/file1")).expect_err("nobody can say what that would be");
    fs::write(writer.path("later"), "later").expect("who has the lock is not disturbed");
    writer.unmount();
    fs::read(mount.path("dir/file0")).expect_err("it may have changed");
    mount.unmount();

    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert_eq!(fs::read_to_string(mount.path("later")).expect("it is there"), "later");
    assert!(fs::read(mount.path("dir/file1")).expect("it can be read") == contents[1]);
    mount.unmount();
    check(&pool);
}

/// Goal: a remount that fails after it has begun to write is told for what it is, also when it is tried again. Method: the sparse
/// file of a killed pool lies where there is room for one more page, so that recovering it fails half way; then there is room again.
#[test]
fn a_remount_that_failed_half_way_is_remembered() {
    if !can_remount("a_remount_that_failed_half_way_is_remembered") {
        return;
    }
    let scratch = Scratch::new("remount-half");
    let (whole, contents) = filled(&scratch, 2);
    let (small, point) = (scratch.subdir("small"), scratch.path("mnt"));
    succeed(program("mount", &small, &["-t", "tmpfs", "-o", "size=64M", "none"]).arg(&small));
    let (pool, filler) = (small.join("pool.img"), small.join("filler"));
    succeed(program("cp", &small, &["--sparse=always"]).arg(&whole).arg(&pool));
    let mount = Mount::start(&pool, &point);
    fs::write(mount.path("synced"), "synced").expect("room");
    mount.sync();
    mount.kill();

    let mount = Mount::start_with(&pool, &point, &["-o", "ro"]);
    let mut file = fs::File::create(&filler).expect("there is room for a name");
    while file.write_all(&[1; BLOCK_BYTES]).is_ok() {}
    let filled_bytes = file.metadata().expect("a file").len();
    file.set_len(filled_bytes - BLOCK_BYTES as u64).expect("it becomes smaller");
    refuses(&pool, &mount, &["has begun to write to it", "unmount it and mount it again"]);
    fs::remove_file(&filler).expect("it is there");
    drop(file);
    let out = output(&mut remount(&pool, &point, "rw"));
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!message.contains("another process"), "{message}");
    refuses(&pool, &mount, &["an earlier remount", "unmount it and mount it again"]);
    assert!(fs::read(mount.path("dir/file1")).expect("it can be read") == contents[1]);
    mount.unmount();

    let mount = Mount::start(&pool, &point);
    assert_eq!(fs::read_to_string(mount.path("synced")).expect("it was synced"), "synced");
    mount.unmount();
    check(&pool);
}

/// Goal: a daemon that may not write to all of a pool's file (RLIMIT_FSIZE) is told so before it writes anything, and one that may raise
/// that limit does. Method: a hard limit, and a soft one.
#[test]
fn a_limit_on_the_size_of_files_is_told() {
    if !can_remount("a_limit_on_the_size_of_files_is_told") {
        return;
    }
    let scratch = Scratch::new("remount-limit");
    let (pool, contents) = filled(&scratch, 1);
    let limited = |limit: &str| {
        let mut command = Command::new("prlimit");
        command.arg(limit).arg(varve(&[]).get_program()).args(["mount", "--foreground", "-o", "ro"]);
        command.arg(&pool).arg(scratch.path("mnt")).stdin(Stdio::null());
        Mount::start_by(command, &pool, &scratch.path("mnt"))
    };
    let mount = limited("--fsize=134217728:134217728");
    refuses(&pool, &mount, &["RLIMIT_FSIZE", "unmount it, mount it again"]);
    assert!(fs::read(mount.path("dir/file0")).expect("it can be read") == contents[0]);
    mount.unmount();
    let mount = limited("--fsize=134217728:");
    succeed(&mut remount(&pool, &mount.point, "rw"));
    fs::write(mount.path("new"), "new").expect("it can be written to");
    mount.unmount();
    check(&pool);
}

/// Goal: a block device that is read-only is named. Method: a loop device over a pool's file, without the right to write.
#[test]
fn a_read_only_device_is_refused() {
    let test = "a_read_only_device_is_refused";
    if !can_remount(test) || !can_loop(test) {
        return;
    }
    let scratch = Scratch::new("remount-device");
    let (pool, contents) = filled(&scratch, 1);
    let device = Loop::over(&pool, &["--read-only"]);
    let name = device.device.to_str().expect("a plain name");
    let mount = Mount::start_with(&device.device, &scratch.path("mnt"), &["-o", "ro"]);
    refuses(&device.device, &mount, &[name, "the device is read-only"]);
    assert!(fs::read(mount.path("dir/file0")).expect("it can be read") == contents[0]);
    mount.unmount();
    drop(device);

    let device = Loop::over(&pool, &[]);
    let mount = Mount::start_with(&device.device, &scratch.path("mnt"), &["-o", "ro"]);
    succeed(&mut remount(&device.device, &mount.point, "rw"));
    fs::write(mount.path("new"), "new").expect("it can be written to");
    mount.unmount();
    check(&device.device);
}

/// Goal: a file that cannot be written to where it lies is named, with the exit status of mount(8). Method: a pool that is
/// reached through a read-only bind mount.
#[test]
fn a_read_only_place_is_refused() {
    script(
        "a_read_only_place_is_refused",
        r#"
mkdir "$S/place" "$S/view"
mv "$S/pool" "$S/place/pool"
mount --bind "$S/place" "$S/view"
mount -o remount,bind,ro "$S/view"
mount -t fuse.varve "$S/view/pool" "$S/mnt" -o ro
refuses 32 "Read-only file system" mount -o remount,rw "$S/mnt"
shows " ro,"
mount -o remount,bind,rw "$S/view"
mount -o remount,rw "$S/mnt"
shows " rw,"
echo new > "$S/mnt/file"
umount "$S/mnt"
"$V" check "$S/view/pool"
umount "$S/view"
"#,
    );
}
