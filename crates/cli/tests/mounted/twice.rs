//! A pool is opened once, under whatever names: the file, and loop devices over it.
//!
//! Each pair of names is tried in both orders. Whoever comes second must be refused, with the first one named, and the first
//! one must neither notice nor change.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;
use crate::helper::script;

/// The error of a command that must fail with status 1.
fn refusal(command: &mut Command) -> String {
    let out = output(command);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{command:?} was not refused: {message}");
    message
}

/// What is mounted as `first` can be used as `second` in no way that needs it for itself, and goes on.
fn excludes(scratch: &Scratch, first: &Path, second: &Path) {
    let tree = scratch.path("tree");
    fs::create_dir_all(&tree).expect("a directory");
    let point = scratch.path("other");
    fs::create_dir_all(&point).expect("a directory");
    let mount = Mount::start(first, &scratch.path("mnt"));
    fs::write(mount.path("file"), "first").expect("there is room");
    let mut commands = vec![
        varve(&["mount"]),
        varve(&["mount", "-o", "ro"]),
        varve(&["check"]),
        varve(&["create", "--force"]),
        varve(&["import"]),
    ];
    for command in &mut commands[..2] {
        command.arg(second).arg(&point);
    }
    for command in &mut commands[2..4] {
        command.arg(second);
    }
    commands[4].arg(&tree).arg(format!("{}:/", second.display()));
    for mut command in commands {
        let message = refusal(&mut command);
        for word in [format!("process {} (varve)", mount.pid()), mount.point.display().to_string()] {
            assert!(message.contains(&word), "no {word:?} in: {message}");
        }
    }
    // To look at, it is there.
    succeed(varve(&["inspect"]).arg(second));
    assert_eq!(fs::read(mount.path("file")).expect("the first mount works on"), b"first");
    mount.unmount();
    // And the lock is gone with it.
    check(second);
}

/// Both may read, and neither may write while the other does.
fn shares(scratch: &Scratch, first: &Path, second: &Path) {
    let mount = Mount::start_with(first, &scratch.path("mnt"), &["-o", "ro"]);
    check(second);
    let message = refusal(varve(&["create", "--force"]).arg(second));
    assert!(message.contains(&format!("process {} (varve)", mount.pid())), "{message}");
    let other = Mount::start_with(second, &scratch.path("other"), &["-o", "ro"]);
    let message = refusal(varve(&["mount", "-o", "remount,rw"]).arg(first).arg(&mount.point));
    assert!(message.contains(&format!("process {} (varve)", other.pid())), "{message}");
    other.unmount();
    succeed(varve(&["mount", "-o", "remount,rw"]).arg(first).arg(&mount.point));
    fs::write(mount.path("file"), "written").expect("it can be written to");
    let message = refusal(varve(&["check"]).arg(second));
    assert!(message.contains(&format!("process {} (varve)", mount.pid())), "{message}");
    mount.unmount();
    check(second);
}

fn can(test: &str) -> bool {
    can_mount(test) && can_loop(test)
}

/// Goal: a file and the loop devices over it are one pool. Method: each mounted, and each other one used meanwhile; the same for
/// reading and for a remount to read-write; also a loop device on a loop device, and names that were changed.
#[test]
fn a_file_and_its_loop_devices_are_one_pool() {
    if !can("a_file_and_its_loop_devices_are_one_pool") {
        return;
    }
    let scratch = Scratch::new("twice");
    let pool = scratch.pool("pool.img", "64M");
    let one = Loop::over(&pool, &[]);
    let two = Loop::over(&pool, &[]);
    let upper = Loop::over(&one.device, &[]);
    for (first, second) in [(&one.device, &pool), (&pool, &one.device), (&one.device, &two.device)] {
        excludes(&scratch, first, second);
    }
    excludes(&scratch, &upper.device, &pool);
    excludes(&scratch, &pool, &upper.device);
    shares(&scratch, &one.device, &pool);
    shares(&scratch, &pool, &one.device);
    let renamed = scratch.path("renamed");
    fs::rename(&pool, &renamed).expect("a file can be renamed");
    // Another file has its name now, and nothing to do with it.
    let another = scratch.pool("pool.img", "64M");
    excludes(&scratch, &one.device, &renamed);
    let mount = Mount::start(&one.device, &scratch.path("mnt"));
    check(&another);
    mount.unmount();
}

/// Goal: who finds a block device in use is told so at once, however many names it has. Method: a loop device with a mount, by itself
/// (what claims it, and its lock) and by the file, up to twenty tries each, since a machine may be busy. A wait is 2 s.
#[test]
fn a_device_in_use_is_told_at_once() {
    if !can("a_device_in_use_is_told_at_once") {
        return;
    }
    let scratch = Scratch::new("twice-at-once");
    let pool = scratch.pool("pool.img", "64M");
    let one = Loop::over(&pool, &[]);
    let mount = Mount::start(&one.device, &scratch.path("mnt"));
    for (command, path) in [("check", &one.device), ("import", &one.device), ("check", &pool)] {
        let mut tries = (0..20).map(|_| {
            let mut refused = varve(&[command]);
            match command {
                "import" => refused.arg(scratch.path("mnt")).arg(format!("{}:/", path.display())),
                _ => refused.arg(path),
            };
            let begun = Instant::now();
            let message = refusal(&mut refused);
            assert!(message.contains(&format!("process {} (varve)", mount.pid())), "{message}");
            begun.elapsed()
        });
        assert!(tries.any(|took| took < Duration::from_secs(1)), "{command} {}", path.display());
    }
    mount.unmount();
}

/// Goal: a file whose name under the loop device is gone is still one pool. Method: two loop devices over a file that is
/// deleted; then one that was made by a name that is deleted, and another name of the file.
#[test]
fn a_file_without_its_name_is_one_pool() {
    if !can("a_file_without_its_name_is_one_pool") {
        return;
    }
    let scratch = Scratch::new("twice-deleted");
    let pool = scratch.pool("pool.img", "64M");
    let one = Loop::over(&pool, &[]);
    let other = scratch.path("other.img");
    fs::hard_link(&pool, &other).expect("a file can have two names");
    let mount = Mount::start(&other, &scratch.path("mnt"));
    fs::remove_file(&pool).expect("a file can be deleted");
    let message = refusal(varve(&["check"]).arg(&one.device));
    assert!(message.contains(&format!("process {} (varve)", mount.pid())), "{message}");
    mount.unmount();
    excludes(&scratch, &one.device, &other);
    excludes(&scratch, &other, &one.device);
    let two = Loop::over(&other, &[]);
    excludes(&scratch, &one.device, &two.device);
    excludes(&scratch, &two.device, &one.device);
    fs::remove_file(&other).expect("a file can be deleted");
    excludes(&scratch, &one.device, &two.device);
    shares(&scratch, &two.device, &one.device);
}

/// Goal: a partition of a loop device is in the file, too. Method: a table with one partition over the whole of a file; its
/// device and the file, in both orders.
#[test]
fn a_partition_is_in_the_file() {
    if !can("a_partition_is_in_the_file") {
        return;
    }
    let scratch = Scratch::new("twice-partition");
    let disk = scratch.path("disk.img");
    fs::File::create(&disk).and_then(|file| file.set_len(96 << 20)).expect("a file");
    let device = Loop::over(&disk, &["--partscan"]);
    let number = |path: &Path| fs::read_to_string(path.join("dev")).ok();
    let name = device.device.file_name().expect("a device has a name").to_string_lossy().into_owned();
    let added = output(Command::new("addpart").arg(&device.device).args(["1", "2048", "163840"]));
    let partition = PathBuf::from(format!("{}p1", device.device.display()));
    if !added.status.success()
        || number(Path::new(&format!("/sys/block/{name}/{name}p1"))).is_none()
        || !partition.exists()
    {
        say("\n*** SKIPPED a_partition_is_in_the_file: no partitions of loop devices here ***\n");
        return;
    }
    succeed(varve(&["create"]).arg(&partition));
    let mount = Mount::start(&partition, &scratch.path("mnt"));
    let message = refusal(varve(&["create", "--force"]).arg(&disk));
    assert!(message.contains(&format!("process {} (varve)", mount.pid())), "{message}");
    mount.unmount();
    check(&partition);
    succeed(varve(&["create", "--force"]).arg(&disk));
    let mount = Mount::start(&disk, &scratch.path("mnt"));
    let message = refusal(varve(&["create", "--force"]).arg(&partition));
    assert!(message.contains(&format!("process {} (varve)", mount.pid())), "{message}");
    mount.unmount();
    check(&disk);
}

/// Goal: what mount(8) makes a loop device of is in use. Method: `-o loop`, then the file by its name.
#[test]
fn mount_8_with_loop_holds_the_file() {
    if !can_loop("mount_8_with_loop_holds_the_file") {
        return;
    }
    script(
        "twice-loop",
        r#"
mkdir "$S/other"
mount -t fuse.varve -o loop "$S/pool" "$S/mnt"
echo first > "$S/mnt/file"
refuses 1 "$S/mnt" "$V" mount "$S/pool" "$S/other"
refuses 1 "$S/mnt" "$V" create --force "$S/pool"
umount "$S/mnt"
"$V" mount "$S/pool" "$S/other"
[ "$(cat "$S/other/file")" = first ] || fail "the file is lost"
"$V" unmount "$S/other"
"$V" check "$S/pool"
"#,
    );
}

/// Goal: who cannot unmount reads what is in the way that no process is, and how it ends. Method: a loop device over a file of the pool, then
/// mounted, and something mounted on a directory of the pool; each is ended as it says.
#[test]
fn what_holds_a_mount_is_named() {
    if !can_loop("what_holds_a_mount_is_named") {
        return;
    }
    script(
        "twice-holders",
        r#"
"$V" mount "$S/pool" "$S/mnt"
mkdir "$S/mnt/in it" "$S/other"
truncate -s 64M "$S/mnt/disk"
mkfs.ext4 -q "$S/mnt/disk"
mount -t tmpfs none "$S/mnt/in it"
refuses 1 "mounted in it (umount $S/mnt/in it)" "$V" unmount "$S/mnt"
umount "$S/mnt/in it"
device=
trap '[ -z "$device" ] || losetup -d "$device"' EXIT
# Finding a free device and taking it are two steps.
for _ in 1 2 3 4 5; do device=$(losetup --find --show "$S/mnt/disk") && break; done
refuses 1 "$S/mnt/disk is the loop device $device (losetup -d $device)" "$V" unmount "$S/mnt"
mount "$device" "$S/other"
refuses 1 "$device, which is mounted (umount $S/other; then losetup -d $device" "$V" unmount "$S/mnt"
umount "$S/other"
losetup -d "$device"
device=
"$V" unmount "$S/mnt"
"$V" check "$S/pool"
"#,
    );
}

/// A process that does nothing until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        let pid = Pid::from_raw(pid as i32).expect("a process");
        kill_process(pid, Signal::STOP).expect("our own child");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _already_gone = kill_process(self.0, Signal::CONT);
    }
}

/// Goal: who holds a lock is found although somebody has a file open in a filesystem that does not answer. Method: a lock that its taker has
/// handed on; this process has a file open in a mount whose daemon is stopped, and written to it, so that the kernel would have to ask.
#[test]
fn a_holder_is_found_beside_a_filesystem_that_does_not_answer() {
    if !can_mount("a_holder_is_found_beside_a_filesystem_that_does_not_answer") {
        return;
    }
    let scratch = Scratch::new("silent");
    let (pool, other) = (scratch.pool("pool", "64M"), scratch.pool("other", "64M"));
    let mount = Mount::start(&other, &scratch.path("mnt"));
    let mut file = fs::File::create(mount.path("file")).expect("there is room");
    file.write_all(b"written").and_then(|()| file.sync_all()).expect("there is room");
    let mut holder = Command::new("bash")
        .args(["-euc", "exec 9>>\"$0\"; flock 9; echo locked; exec sleep 300"])
        .arg(&pool)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash starts");
    let mut line = String::new();
    let said = BufReader::new(holder.stdout.take().expect("it is a pipe")).read_line(&mut line);
    let stopped = Stopped::new(mount.pid());
    let out = output_within(varve(&["check"]).arg(&pool), Duration::from_secs(60));
    drop(stopped);
    let named = format!("process {} (sleep)", holder.id());
    let _already_gone = holder.kill();
    let _status = holder.wait();
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.is_ok() && message.contains(&named), "no {named:?} in: {message}");
    drop(file);
    mount.unmount();
    check(&pool);
}
