//! Who waits for the lock of a file that somebody else is making. In a process of its own: for a moment the children that are
//! started here have all that is open in it, locks of other tests too.
#![allow(clippy::disallowed_methods, reason = "what is waited for is somebody else's lock")]

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use varve_device::{DeviceError, FileDevice};

const MIB: u64 = 1 << 20;
/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Makes `unfinished` with these bytes, locked as by somebody who is not here: flock(1), which has ended, took the lock by a descriptor
/// that is kept in what this gives.
fn locked(unfinished: &Path, bytes: &[u8]) -> File {
    std::fs::write(unfinished, bytes).unwrap();
    std::fs::set_permissions(unfinished, PermissionsExt::from_mode(0o600)).unwrap();
    let held = File::open(unfinished).unwrap();
    let taken = Command::new("flock").args(["-x", "-n", "0"]).stdin(held.try_clone().unwrap()).status();
    assert!(taken.unwrap().success());
    held
}

// Goal: who waits for the lock of a file that somebody else is making, and gets it when that one is done, leaves alone what was made.
// Method: flock(1), which has ended, has the lock of an unfinished file by a descriptor that is kept here, so that no living process
// seems to have it; the file gets its name while somebody else waits to make the same.
#[test]
fn what_got_its_name_meanwhile_is_left_alone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (path, unfinished) = (dir.path().join("pool"), dir.path().join(".pool.creating"));
    let held = locked(&unfinished, b"a pool that somebody has synced");
    let (told, tell) = std::sync::mpsc::channel();
    let made = std::thread::spawn({
        let path = path.clone();
        move || {
            told.send(()).unwrap();
            FileDevice::create_whole(&path, MIB, |_| -> Result<(), DeviceError> { panic!("it is filled") })
        }
    });
    tell.recv().unwrap();
    // It waits for two seconds at most; whatever it does first, it finds the name taken.
    std::thread::sleep(Duration::from_millis(300));
    std::fs::rename(&unfinished, &path).unwrap();
    drop(held);
    match made.join().expect("no panic").map(drop) {
        Err(DeviceError::AlreadyExists { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"a pool that somebody has synced");
}

// Goal: who waits for somebody else's attempt, which fails, makes the file himself. Method: as above, with the unfinished file removed
// while it is waited for.
#[test]
fn an_attempt_that_fails_is_no_hindrance() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (path, unfinished) = (dir.path().join("pool"), dir.path().join(".pool.creating"));
    let held = locked(&unfinished, b"half of it");
    let made = std::thread::spawn({
        let path = path.clone();
        move || FileDevice::create_whole(&path, MIB, |_| Ok::<(), DeviceError>(()))
    });
    std::thread::sleep(Duration::from_millis(300));
    std::fs::remove_file(&unfinished).unwrap();
    drop(held);
    made.join().expect("no panic").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB);
}
