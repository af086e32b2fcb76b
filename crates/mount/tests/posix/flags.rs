//! chattr and lsattr, and what the flags do through the kernel.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use varve_fs::InodeId;
use varve_mount::MountOptions;

use super::{Mount, mount_options};

/// struct fsxattr: flags, extent size, extents, project, extent size of copies, and eight bytes more.
type Fsxattr = [u32; 7];

fn get_fsxattr(file: &fs::File) -> rustix::io::Result<Fsxattr> {
    // SAFETY: FS_IOC_FSGETXATTR writes one such structure.
    unsafe { rustix::ioctl::ioctl(file, Getter::<{ opcode::read::<Fsxattr>(b'X', 31) }, Fsxattr>::new()) }
}

fn set_fsxattr(file: &fs::File, to: Fsxattr) -> rustix::io::Result<()> {
    // SAFETY: FS_IOC_FSSETXATTR reads one such structure.
    unsafe { rustix::ioctl::ioctl(file, Setter::<{ opcode::write::<Fsxattr>(b'X', 32) }, Fsxattr>::new(to)) }
}

// Goal: both forms of the request show and set the same flags, keep what they have no word for, and refuse what there is not. Method:
// each form on a file and a directory, by the one and seen by the other.
#[test]
fn both_forms_agree() {
    let Some(mount) = Mount::start_as_root("both_forms_agree", 64 << 20) else { return };
    fs::write(mount.path("file"), b"x").unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    let (file, dir) =
        (fs::File::open(mount.path("file")).unwrap(), fs::File::open(mount.path("dir")).unwrap());
    for one in [&file, &dir] {
        assert_eq!((ioctl_getflags(one), get_fsxattr(one)), (Ok(IFlags::empty()), Ok([0; 7])));
        ioctl_setflags(one, IFlags::NODUMP | IFlags::NOATIME | IFlags::SYNC).unwrap();
        assert_eq!(get_fsxattr(one).unwrap()[0], 0x80 | 0x40 | 0x20);
        set_fsxattr(one, [0x10 | 0x8, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(ioctl_getflags(one), Ok(IFlags::APPEND | IFlags::IMMUTABLE));
        set_fsxattr(one, [0; 7]).unwrap();
        assert_eq!(ioctl_setflags(one, IFlags::COMPRESSED), Err(Errno::OPNOTSUPP));
        assert_eq!(set_fsxattr(one, [0, 4096, 0, 0, 0, 0, 0]).map_err(|_| ()), Err(()));
    }
    ioctl_setflags(&dir, IFlags::DIRSYNC).unwrap();
    set_fsxattr(&dir, [0x80, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(ioctl_getflags(&dir), Ok(IFlags::DIRSYNC | IFlags::NODUMP));
    assert_eq!(ioctl_setflags(&file, IFlags::DIRSYNC), Err(Errno::OPNOTSUPP));
}

// Goal: through the kernel, too, what is immutable cannot be opened for writing or changed by who has it open already, and what is
// only added to takes O_APPEND alone. Method: handles opened before and after the flag was set.
#[test]
fn flags_are_heeded() {
    let Some(mount) = Mount::start_as_root("flags_are_heeded", 64 << 20) else { return };
    let path = mount.path("file");
    fs::write(&path, b"first").unwrap();
    let open = || fs::File::options().read(true).write(true).open(&path);
    let append = || fs::File::options().append(true).open(&path);
    let refused = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(1));
    let (before, reader) = (open().unwrap(), fs::File::open(&path).unwrap());
    ioctl_setflags(&reader, IFlags::IMMUTABLE).unwrap();
    refused(open().map(drop));
    refused(append().map(drop));
    refused(before.write_all_at(b"x", 0));
    refused(before.set_len(0));
    refused(fs::remove_file(&path));
    refused(fs::rename(&path, mount.path("other")));
    refused(fs::hard_link(&path, mount.path("other")));
    refused(fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)));
    assert_eq!(fs::read(&path).unwrap(), b"first");
    ioctl_setflags(&reader, IFlags::APPEND).unwrap();
    refused(open().map(drop));
    refused(before.write_all_at(b"x", 0));
    append().unwrap().write_all(b" and second").unwrap();
    refused(fs::remove_file(&path));
    assert_eq!(fs::read(&path).unwrap(), b"first and second");
    ioctl_setflags(&reader, IFlags::empty()).unwrap();
    before.write_all_at(b"F", 0).unwrap();
    fs::remove_file(&path).unwrap();
}

// Goal: the tools people use show and set flags, and only the superuser sets two of them. Method: chattr and lsattr of e2fsprogs, as
// root and as another user.
#[test]
fn chattr_and_lsattr() {
    if Command::new("lsattr").arg("-V").output().is_err() {
        eprintln!("SKIPPED, nothing shown: chattr_and_lsattr: e2fsprogs is not installed");
        return;
    }
    let Some(mount) = Mount::start_as_root("chattr_and_lsattr", 64 << 20) else { return };
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(mount.path("file"), b"x").unwrap();
    std::os::unix::fs::chown(mount.path("file"), Some(65534), Some(65534)).unwrap();
    let run = |uid: &str, line: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", uid, "--regid", uid, "--clear-groups", "--"]).args(line.split(' '));
        let out = command.current_dir(mount.path(".")).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    assert!(run("0", "chattr +iaSDdA dir").0);
    let shown = run("0", "lsattr -d dir").1;
    let letters: String = shown.split(' ').next().unwrap().chars().filter(|c| *c != '-').collect();
    assert_eq!(letters, "SDiadA", "{shown}");
    assert!(run("0", "chattr = dir").0);
    assert!(run("65534", "chattr +d file").0);
    assert!(!run("65534", "chattr +i file").0 && !run("65534", "chattr +d dir").0);
    assert!(run("0", "chattr +i file").0 && !run("65534", "chattr -i file").0);
    assert!(run("65534", "lsattr file").1.starts_with("----i-d"), "{:?}", run("65534", "lsattr file"));
    assert!(run("0", "chattr -i file").0);
}

// Goal: who may set flags is who the kernel says, by capabilities too: the superuser of a container is another user here. Method: chattr
// by somebody who owns nothing, with neither, one and both of the capabilities that count.
#[test]
fn capabilities_set_flags() {
    let test = "capabilities_set_flags";
    for tool in ["chattr", "setpriv"] {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("SKIPPED, nothing shown: {test}: {tool} is not installed");
            return;
        }
    }
    let Some(mount) = Mount::start_as_root(test, 64 << 20) else { return };
    fs::write(mount.path("file"), b"x").unwrap();
    std::os::unix::fs::chown(mount.path("file"), Some(65534), Some(65534)).unwrap();
    let run = |capabilities: &str, flag: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1234", "--regid", "1234", "--clear-groups"]);
        command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities]);
        command.args(["--", "chattr", flag, "file"]);
        command.current_dir(mount.path(".")).output().unwrap().status.success()
    };
    let flags = || ioctl_getflags(fs::File::open(mount.path("file")).unwrap()).unwrap();
    let (none, owner, both) = ("-all", "-all,+fowner", "-all,+fowner,+linux_immutable");
    assert!(!run(none, "+d") && !run("-all,+linux_immutable", "+i") && !run(owner, "+i"));
    assert_eq!(flags(), IFlags::empty());
    assert!(run(owner, "+d"));
    assert_eq!(flags(), IFlags::NODUMP);
    assert!(run(both, "+i"));
    assert_eq!(flags(), IFlags::NODUMP | IFlags::IMMUTABLE);
    assert!(!run(owner, "-i") && run(both, "-i") && run(owner, "-d"));
    assert_eq!(flags(), IFlags::empty());
}

// Goal: what the flags S and D promise is kept. Method: the log's durable position after each call.
#[test]
fn flagged_changes_are_durable() {
    let Some(mount) = Mount::start_as_root("flagged_changes_are_durable", 64 << 20) else { return };
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    ioctl_setflags(fs::File::open(&dir).unwrap(), IFlags::DIRSYNC).unwrap();
    let durable = || assert_eq!(mount.fs.durable_position(), mount.fs.position());
    // What is removed stays open: the kernel says some time after the close that nobody has it any more, and what comes of that is
    // logged by itself.
    let mut open = Vec::new();
    for number in 0..20 {
        let path = dir.join(format!("file{number}"));
        let mut file = fs::File::create(&path).unwrap();
        durable();
        ioctl_setflags(&file, IFlags::SYNC).unwrap();
        file.write_all(b"some bytes").unwrap();
        durable();
        file.set_len(3).unwrap();
        durable();
        fs::rename(&path, dir.join("moved")).unwrap();
        durable();
        fs::remove_file(dir.join("moved")).unwrap();
        durable();
        open.push(file);
    }
    // Into such a directory, and out of it.
    let plain = mount.path("plain");
    fs::write(&plain, b"x").unwrap();
    fs::rename(&plain, dir.join("moved")).unwrap();
    durable();
    fs::rename(dir.join("moved"), &plain).unwrap();
    durable();
}

// Goal: what a program has stored through mmap before a file became immutable, or append only, is in the file, however few threads serve the
// mount, and it is when the flag is. Method: a mapping that stays, with stores in many pages, and each form of the request from another
// handle; then as many files at once as requests wait for.
#[test]
fn what_was_stored_before_a_flag_is_kept() {
    const BYTES: usize = 4 << 20;
    for threads in [1, 4] {
        let options = MountOptions { threads, ..mount_options("stored") };
        let Some(mount) = Mount::start_by("what_was_stored_before_a_flag_is_kept", 256 << 20, &options)
        else {
            return;
        };
        if !rustix::process::geteuid().is_root() {
            return eprintln!(
                "SKIPPED, nothing shown: what_was_stored_before_a_flag_is_kept: only root sets these flags"
            );
        }
        let check = |name: &str, set: &dyn Fn(&fs::File)| {
            let path = mount.path(name);
            fs::write(&path, vec![1; BYTES]).unwrap();
            let open = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a mapping of its own, nowhere in particular.
            let at =
                unsafe { mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, &open, 0) }.unwrap();
            for page in (0..BYTES).step_by(4096) {
                // SAFETY: within the mapping.
                unsafe { at.cast::<u8>().add(page).write_volatile(2) };
            }
            let other = fs::File::open(&path).unwrap();
            set(&other);
            let ino = InodeId(other.metadata().unwrap().ino());
            let mut stored = vec![0; BYTES];
            let count = mount.fs.read_into(ino, 0, &mut stored).unwrap();
            drop(other);
            drop(open);
            // SAFETY: nothing refers to it any more.
            unsafe { munmap(at, BYTES) }.unwrap();
            assert!(
                count == BYTES && stored.chunks(4096).all(|page| page[0] == 2 && page[1] == 1),
                "{name} with {threads} threads"
            );
            assert!(fs::read(&path).unwrap() == stored);
        };
        check("immutable", &|file| ioctl_setflags(file, IFlags::IMMUTABLE).unwrap());
        check("append", &|file| ioctl_setflags(file, IFlags::APPEND).unwrap());
        check("immutable by the longer form", &|file| set_fsxattr(file, [0x8, 0, 0, 0, 0, 0, 0]).unwrap());
        std::thread::scope(|scope| {
            for number in 0..8 {
                let set = |file: &fs::File| ioctl_setflags(file, IFlags::IMMUTABLE).unwrap();
                scope.spawn(move || check(&format!("one of many {number}"), &set));
            }
        });
    }
}
