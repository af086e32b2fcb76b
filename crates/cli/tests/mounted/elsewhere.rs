//! `varve import` and `varve export` where the other side is not an ordinary directory of root's: disks that fail, what is private,
//! users who may not do everything, mounts within a tree.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::harness::{Loop, Scratch, can_loop, detach, output, say, succeed, varve};
use crate::transfer::{done, import};

/// A mount until this is dropped.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn mount<'a>(what: &[&str], device: &Path, point: &'a Path) -> Mounted<'a> {
        succeed(Command::new("mount").args(what).arg(device).arg(point));
        Mounted(point)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        detach(self.0);
    }
}

fn past() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

/// A file with a time that nothing has by chance.
fn file(path: &Path, contents: &[u8]) {
    fs::write(path, contents).expect("a file");
    fs::File::options().write(true).open(path).and_then(|file| file.set_modified(past())).expect("a time");
}

/// Goal: what an export could not make durable does not look finished, so that the next one copies it anew. Method: onto ext4 on a loop
/// device whose file lies on a full tmpfs: what the kernel writes back fails, which it tells once.
#[test]
fn what_a_disk_has_lost_is_not_finished() {
    if !can_loop("what_a_disk_has_lost_is_not_finished") {
        return;
    }
    let scratch = Scratch::new("export-lost");
    let (tree, small, point) = (scratch.subdir("tree"), scratch.subdir("small"), scratch.subdir("point"));
    // The second takes longer to copy than the first waits.
    for (name, len) in [("first", 1 << 20), ("second", 32 << 20)] {
        file(&tree.join(name), &vec![7; len]);
    }
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let _small = Mounted::mount(&["-t", "tmpfs", "-o", "size=8m"], Path::new("none"), &small);
    let disk = fs::File::create(small.join("disk")).expect("a file");
    disk.set_len(64 << 20).expect("a sparse file");
    let disk = Loop::over(&small.join("disk"), &[]);
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-O", "^has_journal"]).arg(&disk.device);
    if !make.status().is_ok_and(|status| status.success()) {
        return say("*** skipped: ext4 cannot be made here ***");
    }
    let _mounted = Mounted::mount(&["-t", "ext4"], &disk.device, &point);
    // As much as fits.
    let _ = fs::write(small.join("fill"), vec![0; 8 << 20]);
    let mut command = varve(&["export", "--commit-every=0.01"]);
    let exported = output(command.arg(format!("{}:/", pool.display())).arg(point.join("out")));
    let said = String::from_utf8_lossy(&exported.stderr).into_owned();
    assert!(!exported.status.success() && said.contains("syncing the target failed"), "{exported:?}");
    for name in ["first", "second"] {
        let copy = fs::metadata(point.join("out").join(name)).expect("it was copied");
        assert_ne!(copy.modified().expect("a time"), past(), "{name} looks finished");
    }
}
