//! Nodes, times, and the bits that go when a file changes hands.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, linkat, makedev, mknodat, utimensat,
};
use rustix::io::Errno;
use varve_fs::ROOT_INODE;

use super::Mount;

// Goal: fifos, sockets and devices are what they are elsewhere. Method: make each, stat it, use it: a line through a
// fifo and a socket, zeros out of a node of /dev/zero.
#[test]
fn nodes_work() {
    let Some(mount) = Mount::start_as_root("nodes_work", 64 << 20) else { return };
    let mode = Mode::RUSR | Mode::WUSR;
    let fifo = mount.path("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    assert!(fs::metadata(&fifo).unwrap().file_type().is_fifo());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read_to_string(fifo).unwrap()
    });
    fs::write(&fifo, "through a fifo").unwrap();
    assert_eq!(reader.join().unwrap(), "through a fifo");

    let socket = mount.path("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    UnixStream::connect(&socket).unwrap().write_all(b"hello").unwrap();
    let mut heard = String::new();
    listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");

    let zero = mount.path("zero");
    mknodat(CWD, &zero, FileType::CharacterDevice, mode, makedev(1, 5)).unwrap();
    let mut bytes = [1; 16];
    fs::File::open(&zero).unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
    for (name, kind, major, minor) in [
        ("block", FileType::BlockDevice, 259, 70_000),
        ("char", FileType::CharacterDevice, 4095, (1 << 20) - 1),
        ("null", FileType::CharacterDevice, 0, 0),
    ] {
        mknodat(CWD, mount.path(name), kind, mode, makedev(major, minor)).unwrap();
        let metadata = fs::metadata(mount.path(name)).unwrap();
        assert_eq!(metadata.rdev(), makedev(major, minor), "{name}");
        assert_eq!(metadata.mode(), 0o600 | if name == "block" { 0o060000 } else { 0o020000 });
        fs::rename(mount.path(name), mount.path("moved")).unwrap();
        fs::remove_file(mount.path("moved")).unwrap();
    }
}

// Goal: every nanosecond of every second that Linux can ask for comes back. Method: utimensat around 1901, 1970, 2038,
// 2106 and far beyond on files and on a symbolic link.
#[test]
fn times_outside_of_1970_to_2106() {
    let Some(mount) = Mount::start("times_outside_of_1970_to_2106", 64 << 20) else { return };
    fs::write(mount.path("file"), b"").unwrap();
    std::os::unix::fs::symlink("nowhere", mount.path("link")).unwrap();
    let seconds = [
        -(1i64 << 40),
        -(1 << 31) - 1,
        -(1 << 31),
        -2,
        -1,
        0,
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        1 << 34,
        1 << 40,
    ];
    for name in ["file", "link"] {
        for tv_sec in seconds {
            for tv_nsec in [0, 1, 999_999_999] {
                let last_access = Timespec { tv_sec, tv_nsec };
                let last_modification = Timespec { tv_sec: tv_sec - 7, tv_nsec };
                let times = Timestamps { last_access, last_modification };
                utimensat(CWD, mount.path(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
                let found = fs::symlink_metadata(mount.path(name)).unwrap();
                assert_eq!((found.atime(), found.atime_nsec()), (tv_sec, tv_nsec), "{name}");
                assert_eq!((found.mtime(), found.mtime_nsec()), (tv_sec - 7, tv_nsec), "{name}");
            }
        }
    }
}

/// Runs `script` in a shell as user and group 1001.
fn as_user(mount: &Mount, script: &str) {
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(mount.directory.path())
        .uid(1001)
        .gid(1001)
        .status()
        .unwrap();
    assert!(status.success(), "{script}: {status}");
}

// Goal: set-id bits go when somebody else than root writes, cuts or gives away, and stay where Linux keeps them.
// Method: a world-writable file with each combination of bits, each way of changing it, as a user and as root.
#[test]
fn set_ids_are_cleared() {
    let Some(mount) = Mount::start_as_root("set_ids_are_cleared", 64 << 20) else { return };
    let file = mount.path("file");
    let mode = |path| fs::metadata(path).unwrap().mode() & 0o7777;
    for (script, before, after) in [
        ("printf x >> file", 0o6777, 0o777),
        ("printf x >> file", 0o4777, 0o777),
        ("printf x >> file", 0o2777, 0o777),
        ("printf x >> file", 0o2767, 0o2767),
        (": > file", 0o6777, 0o777),
        ("truncate -s 3 file", 0o6777, 0o777),
        ("cat file > /dev/null", 0o6777, 0o6777),
    ] {
        fs::write(&file, b"something").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(before)).unwrap();
        as_user(&mount, script);
        assert_eq!(mode(&file), after, "{script} on {before:o}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
    fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b"root may").unwrap();
    assert_eq!(mode(&file), 0o6777);
    std::os::unix::fs::chown(&file, Some(1001), Some(1002)).unwrap();
    assert_eq!(mode(&file), 0o777, "chown by root clears them on files");
    // The owner is not in the file's group: what he sets is refused him silently.
    as_user(&mount, "chmod 2755 file");
    assert_eq!(mode(&file), 0o755);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::set_permissions(mount.path("dir"), fs::Permissions::from_mode(0o2777)).unwrap();
    std::os::unix::fs::chown(mount.path("dir"), None, Some(1003)).unwrap();
    assert_eq!(mode(&mount.path("dir")), 0o2777, "on a directory they mean something else");
    as_user(&mount, "mkdir dir/below && touch dir/below/file");
    let below = fs::metadata(mount.path("dir/below")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o2000), (1003, 0o2000));
    assert_eq!(fs::metadata(mount.path("dir/below/file")).unwrap().gid(), 1003);
}

// Goal: what a user has written into a program of root's that anybody may change does not run with root's rights, though nobody has
// asked for attributes since. Method: a set-user-id file overwritten, without being cut first, and executed at once.
#[test]
fn set_ids_are_not_believed_for_long() {
    let Some(mount) = Mount::start_as_root("set_ids_are_not_believed_for_long", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"something").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4777)).unwrap();
    as_user(&mount, r#"cat "$(command -v id)" 1<> file && test "$(./file -u)" = 1001"#);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o777);
}

// Goal: files without a name are what they are elsewhere. Method: O_TMPFILE; written, synced and read by its handle; a name by
// linkat, which is there with the data after another mount; with O_EXCL none; nothing stays of one that is closed; none in a
// read-only snapshot.
#[test]
fn files_without_a_name() {
    let Some(mut mount) = Mount::start_as_root("files_without_a_name", 64 << 20) else { return };
    fs::create_dir(mount.path("dir")).unwrap();
    let nameless = |at: &str, more: OFlags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | more;
        rustix::fs::open(mount.path(at), flags, Mode::RUSR | Mode::WUSR).map(fs::File::from)
    };
    let link = |file: &fs::File, to: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, from, CWD, mount.path(to), AtFlags::SYMLINK_FOLLOW)
    };
    let count = |at: &str| fs::read_dir(mount.path(at)).unwrap().count();
    let data = vec![7; 100_000];
    let mut file = nameless("dir", OFlags::empty()).unwrap();
    file.write_all(&data).unwrap();
    file.sync_all().unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.nlink(), metadata.len(), metadata.mode()), (0, 100_000, 0o100600));
    assert_eq!(count("dir"), 0);
    link(&file, "name").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    link(&file, "dir/other").unwrap();
    assert_eq!(fs::metadata(mount.path("name")).unwrap().nlink(), 2);
    file.write_all(b"more").unwrap();
    drop(file);

    let mut private = nameless(".", OFlags::EXCL).unwrap();
    private.write_all(&data).unwrap();
    assert_eq!(link(&private, "private").unwrap_err(), Errno::NOENT);
    let unlinked = nameless(".", OFlags::empty()).unwrap();
    link(&unlinked, "short").unwrap();
    fs::remove_file(mount.path("short")).unwrap();
    assert_eq!(link(&unlinked, "short").unwrap_err(), Errno::NOENT);
    drop((private, unlinked));

    mount.fs.snapshot(ROOT_INODE, ROOT_INODE, b"snapshot", true, true).unwrap();
    assert_eq!(nameless("snapshot", OFlags::empty()).unwrap_err(), Errno::ROFS);
    assert_eq!(nameless("name", OFlags::empty()).unwrap_err(), Errno::NOTDIR);
    mount.again();
    let back = fs::read(mount.path("name")).unwrap();
    assert!(back[..100_000] == data && &back[100_000..] == b"more");
    assert_eq!(fs::read_dir(mount.path("dir")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(mount.path("")).unwrap().count(), 3);
    assert!(fs::read(mount.path("snapshot/dir/other")).unwrap() == back);
}

// Goal: set-group-id of what is made in a directory with that bit stays for who is in its group, by whichever of his groups, or has
// CAP_FSETID, and goes for strangers. Method: files made by each, and what mount and kernel say of them, at once and asked anew.
#[test]
fn set_group_id_is_for_members() {
    let test = "set_group_id_is_for_members";
    for tool in ["setpriv", "perl"] {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIPPED, nothing shown: {test}: {tool} is not installed");
            return;
        }
    }
    let Some(mut mount) = Mount::start_as_root(test, 64 << 20) else { return };
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, None, Some(50)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
    let makers: [(&str, &[&str], u32); 4] = [
        ("stranger", &["--regid", "8", "--clear-groups"], 0o775),
        ("member", &["--regid", "50", "--clear-groups"], 0o2775),
        ("supplementary", &["--regid", "8", "--groups", "9,50"], 0o2775),
        (
            "capable",
            &[
                "--regid",
                "8",
                "--clear-groups",
                "--inh-caps",
                "-all,+fsetid",
                "--ambient-caps",
                "-all,+fsetid",
            ],
            0o2775,
        ),
    ];
    // Made with the bit, not given it later, as mkfifo(1) and install(1) do.
    let make = "umask 0; sysopen(my $made, $ARGV[0], O_CREAT | O_EXCL | O_WRONLY, 02775) && mkfifo(\"$ARGV[0].fifo\", 02775) || die $!";
    for (name, who, _) in makers {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "7"]).args(who).args([
            "--",
            "perl",
            "-MFcntl",
            "-MPOSIX=mkfifo",
            "-e",
            make,
        ]);
        assert!(command.arg(dir.join(name)).status().unwrap().success(), "{name}");
    }
    for _ in 0..2 {
        for (name, _, mode) in makers {
            for made in [name.to_string(), format!("{name}.fifo")] {
                let attributes = fs::metadata(dir.join(&made)).unwrap();
                assert_eq!((attributes.mode() & 0o7777, attributes.gid()), (mode, 50), "{made}");
            }
        }
        mount.again();
    }
}
