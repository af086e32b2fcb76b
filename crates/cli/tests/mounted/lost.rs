//! A pool's file that is deleted, cut, renamed or replaced while it is mounted: whoever looks hears of it, nobody hears that
//! everything is durable in what is gone, and what was deleted can be saved as the message says.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::elsewhere::Mounted;
use crate::harness::{Mount, Random, Scratch, can_mount, check, mount_points, output, say, succeed, varve};

/// The longest that a mount may take to notice.
const NOTICED: Duration = Duration::from_secs(300);
const DURABLE: &str = "everything is durable";

/// The mount of a new pool with a file of 8 MiB in it that is durable.
fn mounted(scratch: &Scratch) -> (PathBuf, Mount, Vec<u8>) {
    mounted_with(scratch, &[])
}

fn mounted_with(scratch: &Scratch, flags: &[&str]) -> (PathBuf, Mount, Vec<u8>) {
    let pool = scratch.path("pool");
    succeed(varve(&["create", "--size", "128M", "--force"]).args(flags).arg(&pool));
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let bytes = Random::new(7).bytes(8 << 20);
    fs::write(mount.path("file"), &bytes).expect("it is written");
    mount.sync();
    (pool, mount, bytes)
}

/// Waits until the daemon has said this, asked by nobody.
pub fn wait_said(mount: &Mount, what: &str) {
    let begun = Instant::now();
    while !mount.messages().contains(what) {
        assert!(begun.elapsed() < NOTICED, "nobody says {what:?}:\n{}", mount.messages());
        thread::sleep(Duration::from_millis(20));
    }
}

fn state(mount: &Mount) -> (String, String) {
    let said = succeed(varve(&["stats", "--json"]).arg(&mount.point));
    let stats: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let device = &stats["devices"][0];
    let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
    (text("file_state"), text("file_state_reason"))
}

/// `varve unmount` must refuse; what it says.
pub fn refused(mount: &Mount) -> String {
    let out = output(varve(&["unmount"]).arg(&mount.point));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(mount_points().contains(&mount.point), "it is unmounted: {said}");
    said
}

/// `varve unmount --force` goes on, and says what that costs.
pub fn unmount_by_force(mount: &mut Mount) -> String {
    let out = output(varve(&["unmount", "--force"]).arg(&mount.point));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(!mount_points().contains(&mount.point), "it is still mounted");
    assert!(!mount.ended().success(), "what is lost is an error");
    said
}

fn require_said_once(mount: &Mount, what: &str) {
    let said = mount.messages();
    assert_eq!(said.matches(what).count(), 1, "{what:?}: {said}");
}

/// What stands behind `cp --sparse=always` in a message.
pub fn file_to_copy(message: &str) -> &Path {
    let (_, rest) = message.split_once("cp --sparse=always ").expect("it says what to copy");
    Path::new(rest.split(' ').next().expect("a path"))
}

/// Goal: a pool whose file is deleted is not lost: the log says so by itself, once, so do stats and unmount, which refuses; what they say
/// saves it; and nobody hears in the end that all is durable. Method: delete it, follow the message, unmount by force, mount the copy.
#[test]
fn a_deleted_file_can_be_saved() {
    if !can_mount("a_deleted_file_can_be_saved") {
        return;
    }
    let scratch = Scratch::new("deleted");
    let (pool, mut mount, bytes) = mounted(&scratch);
    assert_eq!(state(&mount), ("in-place".to_owned(), String::new()));
    fs::remove_file(&pool).expect("it is there");
    wait_said(&mount, "was deleted while mounted");
    let (state, reason) = state(&mount);
    assert_eq!(state, "deleted");
    let text = succeed(varve(&["stats"]).arg(&mount.point));
    assert!(text.contains(&format!("file         deleted: {reason}\n")), "{text}");
    let said = refused(&mount);
    assert!(said.contains(&reason), "{said}");

    succeed(varve(&["mount", "-o", "remount,ro", "none"]).arg(&mount.point));
    let copy = scratch.path("copy");
    succeed(Command::new("cp").arg("--sparse=always").arg(file_to_copy(&said)).arg(&copy));
    let said = unmount_by_force(&mut mount);
    assert!(said.contains("is gone with the process"), "{said}");
    require_said_once(&mount, "was deleted while mounted: ");
    require_said_once(&mount, "unmounted; ");
    let log = mount.messages();
    assert!(log.contains("is gone with the process") && !log.contains(DURABLE), "{log}");

    check(&copy);
    let mount = Mount::start(&copy, &scratch.path("again"));
    assert!(fs::read(mount.path("file")).expect("it was written") == bytes, "another file");
    mount.unmount();
}

/// Goal: what cannot be refused does not claim that anything is kept. Method: replace the file (a rename over it), then SIGTERM; delete it,
/// then umount(8), at once, before anybody has looked.
#[test]
fn the_end_of_a_deleted_file_is_told() {
    if !can_mount("the_end_of_a_deleted_file_is_told") {
        return;
    }
    let scratch = Scratch::new("gone");
    let (pool, mut mount, _) = mounted(&scratch);
    fs::write(scratch.path("other"), "no pool").expect("a file");
    fs::rename(scratch.path("other"), &pool).expect("it is moved over it");
    let (is, reason) = state(&mount);
    assert!(is == "deleted" && reason.contains("what has its name now is another file"), "{is}: {reason}");
    refused(&mount);
    assert_eq!(mount.terminated().code(), Some(1));
    let log = mount.messages();
    assert!(log.contains("is gone with the process") && !log.contains(DURABLE), "{log}");
    assert_eq!(fs::read(&pool).expect("it is there"), b"no pool");
    fs::remove_file(&pool).expect("it is there");
    drop(mount);

    let (pool, mut mount, _) = mounted(&scratch);
    fs::remove_file(&pool).expect("it is there");
    let said_before = mount.messages().len();
    let unmounted = Command::new("umount").arg("-i").arg(&mount.point).status();
    if !unmounted.is_ok_and(|status| status.success()) {
        succeed(Command::new("fusermount3").arg("-u").arg(&mount.point));
    }
    assert_eq!(mount.ended().code(), Some(1));
    let log = mount.messages().split_off(said_before);
    assert!(log.contains("is gone with the process") && !log.contains(DURABLE), "{log}");
}

/// Goal: of a pool whose file was cut everybody hears, also when the file is as long as before again. Method: cut it to the half, grow it
/// again; the log by itself, stats, unmount with and without force.
#[test]
fn a_cut_file_is_told() {
    if !can_mount("a_cut_file_is_told") {
        return;
    }
    for profile in ["single", "dup"] {
        cut(profile);
    }
}

fn cut(profile: &str) {
    let scratch = Scratch::new(&format!("cut-{profile}"));
    let (pool, mut mount, _) = mounted_with(&scratch, &["--data", profile]);
    let resize = |bytes: u64| File::options().write(true).open(&pool).and_then(|file| file.set_len(bytes));
    resize(64 << 20).expect("it is cut");
    wait_said(&mount, "was cut to 67108864 bytes while mounted");
    resize(128 << 20).expect("it grows");
    let (is, reason) = state(&mount);
    assert!(is == "cut" && reason.contains("was cut to 67108864 bytes"), "{is}: {reason}");
    let said = refused(&mount);
    assert!(said.contains(&reason), "{said}");
    let said = unmount_by_force(&mut mount);
    assert!(said.contains("what lay behind them is lost"), "{said}");
    let log = mount.messages();
    assert!(log.contains("unmounted; ") && !log.contains(DURABLE), "{log}");
    // As the message says.
    succeed(Command::new("truncate").args(["-s", "134217728"]).arg(&pool));
    let out = output(varve(&["check"]).arg(&pool));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.code() == Some(1) && said.contains("damage"), "{said}");
}

/// Goal: a rename is told mildly, with the new name, and harms nothing. Method: rename the file, put another in its place, put it back,
/// rename it; unmount; the pool under its new name.
#[test]
fn a_renamed_file_is_no_loss() {
    if !can_mount("a_renamed_file_is_no_loss") {
        return;
    }
    let scratch = Scratch::new("renamed");
    let (pool, mount, bytes) = mounted(&scratch);
    let other = scratch.path("other");
    let is_now = format!("the file of this mount is {} now", other.display());
    fs::rename(&pool, &other).expect("it is renamed");
    wait_said(&mount, "was renamed while mounted");
    let (is, reason) = state(&mount);
    assert!(is == "renamed" && reason.contains(&is_now), "{is}: {reason}");
    fs::write(&pool, "no pool").expect("a file");
    let (is, reason) = state(&mount);
    assert!(is == "replaced" && reason.contains(&is_now), "{is}: {reason}");
    fs::rename(&other, &pool).expect("it is put back");
    assert_eq!(state(&mount).0, "in-place");
    require_said_once(&mount, "is where it was again");
    fs::rename(&pool, &other).expect("it is renamed");
    let log = scratch.path("mnt.log");
    mount.unmount();
    let log = fs::read_to_string(log).expect("it was written");
    assert!(log.contains(DURABLE), "{log}");
    check(&other);
    let mount = Mount::start(&other, &scratch.path("mnt"));
    assert!(fs::read(mount.path("file")).expect("it was written") == bytes, "another file");
    mount.unmount();
}

/// Goal: a pool that is mounted over the directory in which its file lies is in place, and looking at that asks nothing of the mount, at its end
/// neither; its deletion beneath is seen. Method: mount it so, write, end it with SIGTERM while a file is open; then delete it by a
/// directory that was open before.
#[test]
fn a_mount_over_its_own_file_does_not_hide_it() {
    if !can_mount("a_mount_over_its_own_file_does_not_hide_it") {
        return;
    }
    let scratch = Scratch::new("beneath");
    let dir = scratch.subdir("mnt");
    succeed(varve(&["create"]).arg(dir.join("pool")).args(["--size", "64M"]));
    let beneath = File::open(&dir).expect("a directory");
    let mut mount = Mount::start(&dir.join("pool"), &dir);
    assert!(!dir.join("pool").exists(), "it is hidden");
    assert_eq!(state(&mount).0, "in-place");
    let open = File::create(mount.path("file")).expect("a file");
    mount.terminate();
    drop(open);
    let log = mount.messages();
    assert!(log.contains(DURABLE), "{log}");
    let mut mount = Mount::start(&dir.join("pool"), &dir);
    rustix::fs::unlinkat(&beneath, "pool", rustix::fs::AtFlags::empty()).expect("it is there");
    assert_eq!(state(&mount).0, "deleted");
    unmount_by_force(&mut mount);
}

/// Goal: who makes a pool that cannot grow to its size where it is hears of it, and nobody else does. Method: a tmpfs that is smaller than the
/// pool, or larger.
#[test]
fn a_pool_that_cannot_grow_is_told() {
    if !can_mount("a_pool_that_cannot_grow_is_told") {
        return;
    }
    let scratch = Scratch::new("host-small");
    let small = scratch.subdir("small");
    let _small = Mounted::mount(&["-t", "tmpfs", "-o", "size=100m"], Path::new("none"), &small);
    let create = |size: &str| {
        let made = output(varve(&["create", "--size", size]).arg(small.join(size)));
        assert!(made.status.success(), "{made:?}");
        String::from_utf8_lossy(&made.stderr).into_owned()
    };
    assert_eq!(create("64M"), "");
    let said = create("128M");
    assert!(said.contains("grows as it is filled, by up to 12") && said.contains("MiB free"), "{said}");
}

/// Goal: only the unmount that ends the mount is refused: not that of one of two places, but that of both. Method: a deleted pool that is bound to
/// another directory, which is unmounted; then one in a directory that another shares, so that it is mounted there, too, and goes from there with
/// the first.
#[test]
fn a_deleted_pool_may_go_from_one_of_two_places() {
    if !can_mount("a_deleted_pool_may_go_from_one_of_two_places") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return say(
            "\n*** SKIPPED a_deleted_pool_may_go_from_one_of_two_places: only root can bind mounts ***\n",
        );
    }
    let scratch = Scratch::new("two-places");
    let (pool, mut mount, _) = mounted(&scratch);
    let other = scratch.subdir("other");
    let _other = Mounted::mount(&["--bind"], &mount.point, &other);
    fs::remove_file(&pool).expect("it is there");
    let out = output(varve(&["unmount", "--wait", "1"]).arg(&other));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("still serves the pool, which is mounted in other places, too"), "{said}");
    assert!(!mount_points().contains(&other), "it stays mounted: {said}");
    let said = refused(&mount);
    assert!(said.contains("was deleted while mounted"), "{said}");
    unmount_by_force(&mut mount);

    let (first, second) = (scratch.subdir("first"), scratch.subdir("second"));
    let _first = Mounted::mount(&["--bind", "--make-shared"], &first, &first);
    let _second = Mounted::mount(&["--bind"], &first, &second);
    let pool = scratch.pool("shared", "64M");
    let mut mount = Mount::start(&pool, &first.join("mnt"));
    assert!(mount_points().contains(&second.join("mnt")), "it is not shared");
    fs::remove_file(&pool).expect("it is there");
    let said = refused(&mount);
    assert!(said.contains("was deleted while mounted"), "{said}");
    unmount_by_force(&mut mount);
    assert!(!mount_points().contains(&second.join("mnt")), "the kernel unmounts it there, too");
}

/// Goal: what was a place among several when an unmount began, and is the last when the kernel is asked, is refused. Method: a deleted pool in two
/// places; an unmount of the one waits for the mount's process, which is stopped; meanwhile the other one goes.
#[test]
fn the_last_place_is_the_last_when_it_goes() {
    if !can_mount("the_last_place_is_the_last_when_it_goes") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return say("\n*** SKIPPED the_last_place_is_the_last_when_it_goes: only root can bind mounts ***\n");
    }
    let scratch = Scratch::new("last-place");
    let (pool, mut mount, _) = mounted(&scratch);
    let other = scratch.subdir("other");
    let other = Mounted::mount(&["--bind"], &mount.point, &other);
    fs::remove_file(&pool).expect("it is there");
    let process = rustix::process::Pid::from_raw(mount.pid() as i32).expect("a process");
    let signal = |signal| rustix::process::kill_process(process, signal).expect("our own child");
    signal(rustix::process::Signal::STOP);
    let point = mount.point.clone();
    let unmounting = thread::spawn(move || output(varve(&["unmount"]).arg(&point)));
    // It has begun by then, most likely.
    thread::sleep(Duration::from_secs(1));
    drop(other);
    signal(rustix::process::Signal::CONT);
    let out = unmounting.join().expect("no panic");
    assert!(!out.status.success(), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("was deleted while mounted"), "{out:?}");
    assert!(mount_points().contains(&mount.point), "{out:?}");
    unmount_by_force(&mut mount);
}

/// Goal: of two unmounts at once of the two places of a pool whose file was deleted one is refused. Method: both wait for the mount's process, which
/// is stopped, and are answered together; again and again.
#[test]
fn two_unmounts_at_once_leave_one_place() {
    if !can_mount("two_unmounts_at_once_leave_one_place") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return say("\n*** SKIPPED two_unmounts_at_once_leave_one_place: only root can bind mounts ***\n");
    }
    let scratch = Scratch::new("two-unmounts");
    let (pool, mut mount, bytes) = mounted(&scratch);
    let places = [mount.point.clone(), scratch.subdir("other")];
    let process = rustix::process::Pid::from_raw(mount.pid() as i32).expect("a process");
    let signal = |signal| rustix::process::kill_process(process, signal).expect("our own child");
    fs::remove_file(&pool).expect("it is there");
    for round in 0..4 {
        let is_there = |place: &&PathBuf| mount_points().contains(place);
        let there = places.iter().find(is_there).expect("one place stays");
        let gone = places.iter().find(|place| *place != there).expect("there are two");
        succeed(Command::new("mount").arg("--bind").args([there, gone]));
        signal(rustix::process::Signal::STOP);
        let unmounting = places
            .clone()
            .map(|place| thread::spawn(move || output(varve(&["unmount", "--wait", "1"]).arg(&place))));
        // They have begun by then, most likely.
        thread::sleep(Duration::from_millis(300));
        signal(rustix::process::Signal::CONT);
        let said =
            unmounting.map(|one| String::from_utf8_lossy(&one.join().expect("no panic").stderr).into_owned());
        assert_eq!(places.iter().filter(is_there).count(), 1, "round {round}: {said:?}");
        let refused = said.iter().filter(|said| said.contains("stays mounted")).count();
        assert_eq!(refused, 1, "round {round}: {said:?}");
    }
    let there = places.iter().find(|place| mount_points().contains(place)).expect("one place stays");
    assert!(fs::read(there.join("file")).expect("it is there") == bytes);
    if *there != mount.point {
        succeed(Command::new("mount").arg("--bind").args([there, &mount.point]));
        succeed(Command::new("umount").arg("-i").arg(there));
    }
    unmount_by_force(&mut mount);
}
