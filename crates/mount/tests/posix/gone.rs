//! What somebody has open when its last name goes, what somebody else was given, and what nobody may change.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{IFlags, OFlags, ioctl_setflags};
use varve_fs::{Caller, ROOT_INODE};
use varve_mount::MountOptions;

use super::{Mount, mount_options};

// Goal: who has something open may look at it when its last name has gone, also where the kernel has not told anybody that it is open: it
// has no links then. Method: a directory, a fifo, and a file that is open with O_PATH, removed; a directory that another is renamed over.
#[test]
fn what_is_open_can_be_looked_at() {
    let Some(mount) = Mount::start("what_is_open_can_be_looked_at", 64 << 20) else { return };
    let at = |name: &str| mount.path(name);
    let make = |name: &str| fs::create_dir(at(name)).unwrap();
    let open = |name: &str, flags: OFlags| {
        let mut options = File::options();
        options.read(true).custom_flags(flags.bits() as i32).open(at(name)).unwrap()
    };
    ["removed", "replaced", "other"].iter().for_each(|name| make(name));
    fs::write(at("file"), b"text").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let directory = open("removed", OFlags::empty());
    let replaced = open("replaced", OFlags::empty());
    let file = open("file", OFlags::PATH);
    let fifo = open("fifo", OFlags::NONBLOCK);
    let inodes = [&directory, &replaced, &file, &fifo].map(|file| file.metadata().unwrap().ino());
    fs::remove_dir(at("removed")).unwrap();
    fs::rename(at("other"), at("replaced")).unwrap();
    fs::remove_file(at("file")).unwrap();
    fs::remove_file(at("fifo")).unwrap();
    for (file, inode) in [&directory, &replaced, &file, &fifo].into_iter().zip(inodes) {
        let seen = file.metadata().unwrap();
        assert_eq!((seen.ino(), seen.nlink()), (inode, 0));
    }
    assert!(fifo.metadata().unwrap().file_type().is_fifo() && directory.metadata().unwrap().is_dir());
    // Also when it was open as we know, too, and is not any more.
    fs::write(at("both"), b"text").unwrap();
    let (known, path) = (open("both", OFlags::empty()), open("both", OFlags::PATH));
    let inode = path.metadata().unwrap().ino();
    fs::remove_file(at("both")).unwrap();
    assert_eq!(path.metadata().unwrap().nlink(), 0);
    drop(known);
    // The kernel tells of that later; it is to ask again.
    std::thread::sleep(Duration::from_millis(200));
    let sync = rustix::fs::statx(
        &path,
        "",
        rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC,
        rustix::fs::StatxFlags::BASIC_STATS,
    );
    let seen = sync.unwrap();
    assert_eq!((seen.stx_ino, seen.stx_nlink), (inode, 0));
    for name in ["removed", "file", "fifo"] {
        assert_eq!(fs::metadata(at(name)).unwrap_err().raw_os_error(), Some(2), "{name}");
    }
    assert_ne!(fs::metadata(at("replaced")).unwrap().ino(), inodes[1]);
}

// Goal: what has gone and is open answers as on other filesystems: it has no extended attributes, and a sync of it succeeds and makes
// durable what was before; also to another user, whose permission is in a list that the kernel asks for. Method: a removed directory with
// an attribute and a list, by its descriptor, and by stat(1) of a user who is in it.
#[test]
fn what_is_gone_has_no_attributes() {
    let Some(mount) = Mount::start_as_root("what_is_gone_has_no_attributes", 64 << 20) else { return };
    let path = mount.path("dir");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    rustix::fs::setxattr(&path, "user.name", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    let script = "echo here; read -r _; exec stat --format=%h:%F .";
    let mut other = Command::new("sh")
        .args(["-c", script])
        .env("LC_ALL", "C")
        .current_dir(&path)
        .uid(1001)
        .gid(1001)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 5];
    other.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    let directory = File::open(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    let before = mount.fs.store_stats().journal_batches_count;
    fs::write(mount.path("file"), b"text").unwrap();
    directory.sync_all().unwrap();
    assert!(mount.fs.store_stats().journal_batches_count > before, "what was before is not durable");
    let mut room = [0; 64];
    let value = rustix::fs::fgetxattr(&directory, "user.name", &mut room[..]);
    assert_eq!(value, Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::flistxattr(&directory, &mut room[..]), Ok(0));
    other.stdin.take().unwrap().write_all(b"\n").unwrap();
    let seen = other.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&seen.stderr);
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "0:directory\n", "{said}");
}

// Goal: the time of a change of flags is seen at once. Method: twice, on a file and a directory.
#[test]
fn a_change_of_flags_is_seen() {
    let Some(mount) = Mount::start("a_change_of_flags_is_seen", 64 << 20) else { return };
    fs::write(mount.path("file"), b"x").unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    for name in ["file", "dir"] {
        let file = File::open(mount.path(name)).unwrap();
        let changed = || {
            let seen = fs::metadata(mount.path(name)).unwrap();
            (seen.ctime(), seen.ctime_nsec())
        };
        for flags in [IFlags::NODUMP, IFlags::empty()] {
            let before = changed();
            std::thread::sleep(Duration::from_millis(20));
            ioctl_setflags(&file, flags).unwrap();
            assert!(changed() > before, "{name}");
        }
    }
}

// Goal: a file in a snapshot in which nothing can be changed cannot be opened for writing, so that nobody changes its pages in the
// kernel's memory. Method: each way to open it, and one for reading.
#[test]
fn a_read_only_snapshot_is_not_opened_for_writing() {
    let Some(mount) = Mount::start("a_read_only_snapshot_is_not_opened_for_writing", 64 << 20) else {
        return;
    };
    let sub = mount.fs.create_subvolume(Caller::ROOT, ROOT_INODE, b"sub", 0o777).unwrap().ino;
    fs::write(mount.path("sub/file"), b"text").unwrap();
    mount.fs.snapshot(sub, ROOT_INODE, b"snap", true, true).unwrap();
    let path = mount.path("snap/file");
    let mut options = File::options();
    for options in [
        options.read(true).write(true),
        File::options().append(true),
        File::options().write(true).truncate(true),
    ] {
        assert_eq!(options.open(&path).unwrap_err().raw_os_error(), Some(30));
    }
    assert_eq!(fs::read(&path).unwrap(), b"text");
    File::options().write(true).open(mount.path("sub/file")).unwrap();
}

// Goal: a mount that one user alone may use lets others go on with what he gives them open, and with nothing else. Method: a program that
// runs as another user reads a file to its end by a descriptor that it was given; it may not open the file itself.
#[test]
fn others_use_what_they_are_given() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED, nothing shown: others_use_what_they_are_given: only root can act as other users");
        return;
    }
    let test = "others_use_what_they_are_given";
    let private = || MountOptions { allow_other: false, ..mount_options(test) };
    let Some(mount) = Mount::start_by(test, 64 << 20, &private()) else { return };
    let path = mount.path("file");
    fs::write(&path, vec![b'x'; 5000]).unwrap();
    let run = |words: &[&str], file: Stdio| {
        let out = Command::new(words[0]).args(&words[1..]).uid(1001).gid(1001).stdin(file).output().unwrap();
        (out.status.success(), out.stdout.len(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let open = || Stdio::from(File::open(&path).unwrap());
    // Some look at it first (fstat), which the kernel itself refuses.
    assert_eq!(run(&["head", "-c", "9000"], open()), (true, 5000, String::new()));
    let refused = run(&["cat", path.to_str().unwrap()], Stdio::null());
    assert!(!refused.0 && refused.1 == 0, "{refused:?}");
}
