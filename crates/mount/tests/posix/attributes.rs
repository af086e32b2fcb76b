//! Extended attributes of every namespace, access control lists and capabilities.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::Mount;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// No id.
const NONE: u32 = u32::MAX;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 64 << 10];
    let len = getxattr(path, name, &mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Whether `script` succeeds as user and group `id`.
fn can(mount: &Mount, id: u32, script: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(mount.directory.path()).uid(id).gid(id);
    command.stderr(std::process::Stdio::null()).status().unwrap().success()
}

// Goal: attributes up to 64 KiB in every namespace, with Linux's rules about who sees them. Method: as root and as a
// user.
#[test]
fn namespaces_and_sizes() {
    let Some(mount) = Mount::start_as_root("namespaces_and_sizes", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let large: Vec<u8> = (0..64 << 10).map(|i| (i % 251) as u8).collect();
    for name in ["user.large", "trusted.large", "security.large"] {
        setxattr(&file, name, &large, XattrFlags::CREATE).unwrap();
        assert!(get(&file, name).unwrap() == large);
        setxattr(&file, name, b"small", XattrFlags::REPLACE).unwrap();
        assert_eq!(get(&file, name).unwrap(), b"small");
    }
    assert_eq!(setxattr(&file, "system.other", b"x", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    let mut names = vec![0; 1000];
    let len = listxattr(&file, &mut names).unwrap();
    assert!(String::from_utf8_lossy(&names[..len]).contains("trusted.large"));
    assert!(can(&mount, 1001, "getfattr -d -m - file | grep -q user.large"));
    assert!(!can(&mount, 1001, "getfattr -d -m - file | grep -q trusted.large"));
    assert!(!can(&mount, 1001, "setfattr -n trusted.mine -v 1 file"));
    assert!(can(&mount, 1001, "setfattr -n user.mine -v 1 file"));
    removexattr(&file, "trusted.large").unwrap();
    assert_eq!(get(&file, "trusted.large"), Err(Errno::NODATA));
}

// Goal: what is to be new and there already is refused as elsewhere, and changes nothing. Method: both flags, of an attribute that is
// missing and of one that is there; ext4 and tmpfs say the same.
#[test]
fn neither_new_nor_there() {
    let Some(mount) = Mount::start("neither_new_nor_there", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"x").unwrap();
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    assert_eq!(setxattr(&file, "user.name", b"new", both), Err(Errno::NODATA));
    assert_eq!(get(&file, "user.name"), Err(Errno::NODATA));
    setxattr(&file, "user.name", b"old", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&file, "user.name", b"new", both), Err(Errno::EXIST));
    assert_eq!(get(&file, "user.name").unwrap(), b"old");
}

// Goal: access lists decide, and go together with the permission bits both ways. Method: let one user in whom the bits
// keep out; chmod; take the list away.
#[test]
fn access_lists_are_enforced() {
    let Some(mount) = Mount::start_as_root("access_lists_are_enforced", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"secret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!can(&mount, 1001, "cat file"));
    let acl = list(&[(1, 6, NONE), (2, 6, 1001), (4, 0, NONE), (16, 6, NONE), (32, 0, NONE)]);
    setxattr(&file, ACCESS, &acl, XattrFlags::empty()).unwrap();
    assert_eq!((mode(&file), get(&file, ACCESS).unwrap()), (0o660, acl));
    assert!(can(&mount, 1001, "cat file && printf x >> file"));
    assert!(!can(&mount, 1002, "cat file"));
    // The mask is what chmod changes.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(can(&mount, 1001, "cat file") && !can(&mount, 1001, "printf x >> file"));
    let acl = list(&[(1, 6, NONE), (2, 6, 1001), (4, 0, NONE), (16, 4, NONE), (32, 4, NONE)]);
    assert_eq!(get(&file, ACCESS).unwrap(), acl);
    removexattr(&file, ACCESS).unwrap();
    assert_eq!((mode(&file), get(&file, ACCESS)), (0o644, Err(Errno::NODATA)));
    // A list that says what the bits say becomes the bits.
    let minimal = list(&[(1, 7, NONE), (4, 5, NONE), (32, 0, NONE)]);
    setxattr(&file, ACCESS, &minimal, XattrFlags::empty()).unwrap();
    assert_eq!((mode(&file), get(&file, ACCESS)), (0o750, Err(Errno::NODATA)));
    assert_eq!(setxattr(&file, ACCESS, &minimal[..9], XattrFlags::empty()), Err(Errno::INVAL));
    assert_eq!(setxattr(&file, DEFAULT, &minimal, XattrFlags::empty()), Err(Errno::ACCESS));
}

// Goal: what is made in a directory with a default list inherits it, and the umask applies where there is none. Method:
// files, directories and nodes below directories with and without.
#[test]
fn default_lists_are_inherited() {
    let Some(mount) = Mount::start_as_root("default_lists_are_inherited", 64 << 20) else { return };
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    let acl = list(&[(1, 7, NONE), (2, 7, 1001), (4, 5, NONE), (16, 7, NONE), (32, 0, NONE)]);
    setxattr(&dir, DEFAULT, &acl, XattrFlags::empty()).unwrap();
    assert!(can(&mount, 0, "umask 077; mkdir dir/sub plain; touch dir/file plain/file; mkfifo dir/sub/fifo"));
    let access = list(&[(1, 6, NONE), (2, 7, 1001), (4, 5, NONE), (16, 6, NONE), (32, 0, NONE)]);
    assert_eq!((mode(&dir.join("file")), get(&dir.join("file"), ACCESS).unwrap()), (0o660, access.clone()));
    assert_eq!(get(&dir.join("file"), DEFAULT), Err(Errno::NODATA));
    assert_eq!(get(&dir.join("sub/fifo"), ACCESS).unwrap(), access);
    assert_eq!((mode(&dir.join("sub")), get(&dir.join("sub"), DEFAULT).unwrap()), (0o770, acl.clone()));
    assert_eq!(get(&dir.join("sub"), ACCESS).unwrap(), acl);
    assert_eq!((mode(&mount.path("plain")), mode(&mount.path("plain/file"))), (0o700, 0o600));
}

// Goal: a program's capabilities go when the file is written to, cut or given away. Method: each, with a valid
// capability on the file.
#[test]
fn capabilities_are_dropped() {
    let Some(mount) = Mount::start_as_root("capabilities_are_dropped", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"program").unwrap();
    // VFS_CAP_REVISION_2, CAP_NET_RAW permitted and effective.
    let capability: Vec<u8> =
        [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let changes: [(&str, &dyn Fn()); 3] = [
        ("write", &|| fs::write(&file, b"other").unwrap()),
        ("truncate", &|| fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(1).unwrap()),
        ("chown", &|| std::os::unix::fs::chown(&file, Some(1001), None).unwrap()),
    ];
    for (name, change) in changes {
        setxattr(&file, "security.capability", &capability, XattrFlags::empty()).unwrap();
        assert_eq!(get(&file, "security.capability").unwrap(), capability);
        change();
        assert_eq!(get(&file, "security.capability"), Err(Errno::NODATA), "{name}");
    }
}

/// Goal: reading a file, a directory and a symbolic link is noted as relatime says, and seen by stat. Method: each is
/// read after it was made: the access time moves on, and stays when it is read again; a descriptor opened with
/// O_NOATIME moves nothing.
#[test]
fn access_times_are_relative() {
    let Some(mount) = Mount::start("access_times_are_relative", 64 << 20) else { return };
    let atime = |path: &PathBuf| {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.atime(), metadata.atime_nsec())
    };
    let (file, link, directory) = (mount.path("file"), mount.path("link"), mount.path("directory"));
    fs::write(&file, b"some text").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("entry"), b"").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));

    let other = mount.path("other");
    fs::write(&other, b"some text").unwrap();
    let before = atime(&other);
    let mut quiet = fs::OpenOptions::new();
    quiet.read(true).custom_flags(rustix::fs::OFlags::NOATIME.bits() as i32);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut quiet.open(&other).unwrap(), &mut text).unwrap();
    assert_eq!((text.as_str(), atime(&other)), ("some text", before), "O_NOATIME");

    type Read = fn(&PathBuf);
    let reads: [(&PathBuf, Read); 3] = [
        (&file, |path| assert_eq!(fs::read(path).unwrap(), b"some text")),
        (&link, |path| assert_eq!(fs::read_link(path).unwrap(), PathBuf::from("file"))),
        (&directory, |path| assert_eq!(fs::read_dir(path).unwrap().count(), 1)),
    ];
    for (path, read) in reads {
        let before = atime(path);
        read(path);
        let noted = atime(path);
        assert!(noted > before, "{}: {noted:?}, and {before:?} before", path.display());
        std::thread::sleep(std::time::Duration::from_millis(20));
        read(path);
        assert_eq!(atime(path), noted, "{}: nothing has changed since", path.display());
    }
}
