//! `varve import` and `varve export` where the other side is not an ordinary directory of root's: disks that fail, what is private,
//! users who may not do everything, mounts within a tree.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::harness::{Loop, Scratch, can_loop, detach, output, say, succeed, varve};
use crate::transfer::{done, export, import};

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

fn bits(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
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

/// Goal: what is private because its directory is does not become everybody's while it is copied, nor when that is cut off. Method: a tree
/// that others may not enter, exported by a process that the system ends in the middle of a file, and imported into a pool that is
/// too small for it; the directories that are made, and those above them.
#[test]
fn what_is_private_stays_so() {
    let scratch = Scratch::new("private");
    let tree = scratch.subdir("tree");
    fs::write(tree.join("file"), vec![7; 8 << 20]).expect("a file");
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o700)).expect("bits");
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let out = scratch.path("new/out");
    let mut command = Command::new("bash");
    command.args(["-c", "umask 022; ulimit -c 0; ulimit -f 4096; exec \"$@\"", "bash"]);
    command.arg(varve(&[]).get_program());
    let ended = output(command.arg("export").arg(format!("{}:/", pool.display())).arg(&out));
    assert!(!ended.status.success(), "{ended:?}");
    assert_eq!((bits(&scratch.path("new")), bits(&out)), (0o755, 0o700));
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o750)).expect("bits");
    done(&import(&tree, &pool, "/"));
    done(&export(&pool, "/", &out));
    assert_eq!(bits(&out), 0o750);

    for number in 0..12 {
        fs::write(tree.join(format!("{number}")), vec![number; 8 << 20]).expect("a file");
    }
    let small = scratch.pool("small", "64M");
    let imported = import(&tree, &small, "/new/tree");
    assert_eq!(imported.status.code(), Some(1), "{imported:?}");
    let back = scratch.path("back");
    done(&export(&small, "/", &back));
    assert_eq!((bits(&back.join("new")), bits(&back.join("new/tree"))), (0o755, 0o700));
}

/// Goal: a file that takes the place of an older copy has its bytes on the disk before, so that a cut of power leaves one of the two.
/// Method: the calls of such an export, with a file that is new and one that is not.
#[test]
fn what_takes_a_place_is_durable_before() {
    let scratch = Scratch::new("export-order");
    let (tree, out) = (scratch.subdir("tree"), scratch.subdir("out"));
    let log = scratch.path("calls");
    let trace = |command: &mut Command| {
        command.args(["-f", "-e", "trace=fdatasync,fsync,rename,renameat,renameat2,linkat", "-o"]).arg(&log);
    };
    let mut tried = Command::new("strace");
    trace(&mut tried);
    if !tried.arg("true").output().is_ok_and(|out| out.status.success()) {
        return say("\n*** SKIPPED what_takes_a_place_is_durable_before: calls cannot be traced here ***\n");
    }
    for name in ["new", "old"] {
        fs::write(tree.join(name), "the newer one").expect("a file");
    }
    fs::write(out.join("old"), "older").expect("a file");
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let mut command = Command::new("strace");
    trace(&mut command);
    command.arg(varve(&[]).get_program()).arg("export").arg(format!("{}:/", pool.display()));
    succeed(command.arg(&out));
    let calls = fs::read_to_string(&log).expect("what was called");
    let at = |call: &str| calls.lines().position(|line| line.contains(call));
    let (synced, replaced) = (at("sync("), at("rename"));
    assert!(replaced.is_some() && synced.is_some() && synced < replaced, "{calls}");
    let syncs = calls.lines().filter(|line| line.contains("sync(")).count();
    assert_eq!(syncs, 1, "what is new needs none: {calls}");
    assert_eq!(fs::read_to_string(out.join("old")).expect("it is there"), "the newer one");
}
