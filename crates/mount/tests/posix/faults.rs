//! Corners of the protocol where a transport goes wrong easily (a library that was used before did), one test each. Others
//! are elsewhere: times before 1970 (`times_before_1970` in `mounted.rs`, `times_outside_of_1970_to_2106` here), and set-id
//! bits that go when the kernel says so (`set_ids_are_cleared`, `capabilities_are_dropped`).

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, XattrFlags};

use super::Mount;

/// Goal: statx(2) works although there is no answer to the request. Method: everything asked for at once, compared with
/// stat; the time of birth, which only that request could carry, is reported as missing and not as zero.
#[test]
fn statx_falls_back_to_getattr() {
    let Some(mount) = Mount::start("statx_falls_back_to_getattr", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"twelve bytes").unwrap();
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    for _ in 0..2 {
        let got = rustix::fs::statx(CWD, &file, AtFlags::empty(), wanted).unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!((got.stx_size, got.stx_ino), (12, metadata.ino()));
        assert_eq!(got.stx_mtime.tv_sec, metadata.mtime());
        let mask = StatxFlags::from_bits_retain(got.stx_mask);
        assert!(mask.contains(StatxFlags::BASIC_STATS), "{mask:?}");
        assert!(!mask.contains(StatxFlags::BTIME) || got.stx_btime.tv_sec != 0, "a time of birth in 1970");
    }
}

/// Goal: syncfs(2), which reaches no FUSE filesystem of this kind, does no harm: it returns, and what it has not done
/// fsync still does. Method: both, and the place up to which the log is durable before and after.
#[test]
fn syncfs_returns_and_fsync_works() {
    let Some(mount) = Mount::start("syncfs_returns_and_fsync_works", 64 << 20) else { return };
    fs::write(mount.path("file"), b"data").unwrap();
    let file = fs::File::open(mount.path("file")).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    let batches = mount.fs.store_stats().journal_batches_count;
    file.sync_all().unwrap();
    assert!(mount.fs.store_stats().journal_batches_count > batches);
}

/// Goal: attributes arrive as they were set, whichever form of the request was agreed on with the kernel. Method: attributes
/// with each flag, one of 64 KiB and an access control list, read again.
#[test]
fn attributes_arrive_in_the_longer_form() {
    let Some(mount) = Mount::start("attributes_arrive_in_the_longer_form", 64 << 20) else { return };
    let file = mount.path("file");
    fs::write(&file, b"").unwrap();
    let large = vec![b'x'; 64 << 10];
    rustix::fs::setxattr(&file, "user.large", &large, XattrFlags::CREATE).unwrap();
    let mut read = vec![0; large.len() + 1];
    assert_eq!(rustix::fs::getxattr(&file, "user.large", &mut read[..]).unwrap(), large.len());
    assert!(read[..large.len()] == large);
    rustix::fs::setxattr(&file, "user.large", b"small", XattrFlags::REPLACE).unwrap();
    rustix::fs::setxattr(&file, "user.other", b"", XattrFlags::empty()).unwrap();
    // A version, then owner, group and others as the mode has them: tag, permissions, nobody in particular.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(1u16, 6u16), (4, 4), (0x20, 4)] {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&u32::MAX.to_le_bytes());
    }
    rustix::fs::setxattr(&file, "system.posix_acl_access", &list, XattrFlags::empty()).unwrap();
    assert!(!mount.mounted.as_ref().unwrap().health().panicked());
    fs::write(mount.path("after"), b"still served").unwrap();
}

/// Goal: the end of a session leaves alone what has been mounted in its place: a connection that has ended is no mount that
/// is there. Method: a mount is detached while a file in it is open, a second
/// one is put on its directory, and the file is closed.
#[test]
fn the_end_of_a_session_leaves_the_next_mount_alone() {
    let test = "the_end_of_a_session_leaves_the_next_mount_alone";
    let Some(mut first) = Mount::start(test, 64 << 20) else { return };
    fs::write(first.path("file"), b"of the first").unwrap();
    let mut open = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(first.path("file"))
        .unwrap();
    varve_mount::unmount(first.directory.path(), true).unwrap();
    let Some(second) = Mount::start_at(test, 64 << 20, first.directory.path()) else { return };
    fs::write(first.path("file"), b"of the second").unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "of the first");
    drop(open);
    first.mounted.take().unwrap().wait().unwrap();
    assert_eq!(fs::read(first.path("file")).unwrap(), b"of the second");
    drop(second);
}
