//! What must be refused: with a clear sentence, the right exit status, and not a byte changed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use varve_format::BLOCK_BYTES;
use varve_format::superblock::{LABEL_MAGIC, SLOT_BYTES, SLOTS_PER_END, Superblock, slot_offset};

use crate::harness::*;

/// Exit status of a failed operation, and of wrong usage.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
/// Longest message that still counts as a sentence or two.
const MESSAGE_BYTES_MAX: usize = 600;

/// Runs a command that must be refused with `status` and a message that has all of `words` in it (any case), while
/// none of `images` changes.
fn refused(command: &mut Command, status: i32, words: &[&str], images: &[&Path]) {
    let before: Vec<u32> = images.iter().map(|image| checksum(image)).collect();
    let out = output(command);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    let shown = format!("{command:?}\n{message}");
    assert_eq!(out.status.code(), Some(status), "exit status of {shown}");
    let lower = message.to_lowercase();
    for word in words {
        assert!(lower.contains(&word.to_lowercase()), "{word:?} is missing in the message of {shown}");
    }
    for noise in ["panicked", "backtrace", "Err(", "Error {", "os error 0"] {
        assert!(!message.contains(noise), "{noise:?} is no part of a clear sentence: {shown}");
    }
    assert!(!message.trim().is_empty() && message.len() < MESSAGE_BYTES_MAX, "no clear sentence: {shown}");
    let after: Vec<u32> = images.iter().map(|image| checksum(image)).collect();
    assert_eq!(before, after, "an image was changed by {shown}");
    println!("{}", message.trim());
}

/// Of all bytes of the file.
fn checksum(path: &Path) -> u32 {
    let mut sum = 0;
    let mut file = fs::File::open(path).expect("an image can be read");
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).expect("an image can be read") {
            0 => return sum,
            n => sum = crc32c::crc32c_append(sum, &buffer[..n]),
        }
    }
}

fn copy_of(pool: &Path, name: &str) -> PathBuf {
    let copy = pool.with_file_name(name);
    fs::copy(pool, &copy).expect("a pool in a file can be copied");
    copy
}

/// Every verb that opens a pool must refuse `image`.
fn refused_by_all(image: &Path, point: &Path, words: &[&str]) {
    refused(varve(&["mount"]).arg(image).arg(point), FAILED, words, &[image]);
    refused(varve(&["check"]).arg(image), FAILED, words, &[image]);
    assert!(!mount_points().contains(&point.to_owned()));
}

/// Goal: a pool is opened for writing once. Method: a mounted pool is mounted again, made anew and checked; the first
/// mount must neither notice nor change.
#[test]
fn refuses_a_second_mount() {
    if !can_mount("refuses_a_second_mount") {
        return;
    }
    let scratch = Scratch::new("second");
    let pool = scratch.pool("pool.img", "64M");
    let second = scratch.subdir("second");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    fs::write(mount.path("file"), b"first").expect("room");
    mount.sync();
    settle(&pool);
    let name = pool.to_string_lossy().into_owned();
    // The message names the first: where it is mounted, or its process.
    let holder = mount.pid().to_string();
    refused(varve(&["mount"]).arg(&pool).arg(&second), FAILED, &[&name, &holder], &[&pool]);
    refused(varve(&["create"]).arg(&pool), FAILED, &[&name], &[&pool]);
    refused(varve(&["create", "--force"]).arg(&pool), FAILED, &[&name], &[&pool]);
    assert_eq!(fs::read(mount.path("file")).expect("the first mount works on"), b"first");
    fs::write(mount.path("file"), b"again").expect("the first mount works on");
    mount.unmount();
    check(&pool);
}

/// Goal: a new pool is made in a new file, and nothing that lies where it is made is followed, filled or removed. Method: a link to a file
/// there, and another name of a file; then what a killed creation leaves, which is no hindrance.
#[test]
fn refuses_what_is_in_the_way_of_a_new_pool() {
    let scratch = Scratch::new("in-the-way");
    let (pool, way) = (scratch.path("pool.img"), scratch.path(".pool.img.creating"));
    let data = scratch.path("data");
    fs::write(&data, b"somebody's").expect("room");
    let create = || {
        let mut create = varve(&["create", "--size", "64M"]);
        create.arg(&pool);
        create
    };
    std::os::unix::fs::symlink(&data, &way).expect("a link");
    refused(&mut create(), FAILED, &[".pool.img.creating", "symbolic link", "remove it"], &[&data]);
    fs::remove_file(&way).expect("it is still there");
    fs::hard_link(&data, &way).expect("a link");
    refused(&mut create(), FAILED, &[".pool.img.creating", "other names"], &[&data]);
    fs::remove_file(&way).expect("it is still there");
    fs::write(&way, b"half a pool").expect("room");
    fs::set_permissions(&way, fs::Permissions::from_mode(0o600)).expect("it is ours");
    succeed(&mut create());
    assert!(!way.exists());
    assert_eq!(fs::metadata(&pool).expect("a pool").permissions().mode() & 0o7777, 0o600);
    check(&pool);
}

/// Goal: where a process may not write to the whole of a pool's file (RLIMIT_FSIZE), it is told so before anything is written, and lives; a
/// limit that it may raise itself is no hindrance. Method: all that writes to a pool, under a hard limit and under a soft one; an export under a soft one; a log file
/// that has grown to the limit.
#[test]
fn refuses_a_limit_below_the_size_of_a_pool() {
    if !can_mount("refuses_a_limit_below_the_size_of_a_pool") {
        return;
    }
    let scratch = Scratch::new("limit");
    let (pool, new) = (scratch.pool("pool.img", "128M"), scratch.path("new.img"));
    let (tree, point) = (scratch.subdir("tree"), scratch.subdir("mnt"));
    fs::write(tree.join("imported"), "imported").expect("room");
    let limited = |limit: &str, args: &[&str]| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--fsize={limit}")).arg(varve(&[]).get_program()).args(args);
        command.stdin(std::process::Stdio::null());
        command
    };
    let hard = |args: &[&str]| limited("67108864:67108864", args);
    let to_pool = format!("{}:/", pool.display());
    let words = ["RLIMIT_FSIZE", "ulimit -f", "LimitFSIZE=", "67108864", "134217728"];
    refused(hard(&["mount"]).arg(&pool).arg(&point), FAILED, &words, &[&pool]);
    refused(hard(&["import"]).arg(&tree).arg(&to_pool), FAILED, &words, &[&pool]);
    refused(hard(&["create", "--force"]).arg(&pool), FAILED, &words, &[&pool]);
    refused(hard(&["create", "--size", "128M"]).arg(&new), FAILED, &words, &[&pool]);
    refused(hard(&["mount", "--create", "128M"]).arg(&new).arg(&point), FAILED, &words, &[&pool]);
    assert_eq!(fs::read_dir(scratch.path("")).expect("a directory").count(), 3, "something is left behind");
    succeed(hard(&["check"]).arg(&pool));

    let soft = |args: &[&str]| limited("67108864:", args);
    succeed(soft(&["import"]).arg(&tree).arg(&to_pool));
    let out = scratch.path("out");
    succeed(limited("4:", &["export"]).arg(&to_pool).arg(&out));
    assert_eq!(fs::read(out.join("imported")).expect("it was exported"), b"imported");
    let mut command = soft(&["mount", "--foreground"]);
    command.arg(&pool).arg(&point);
    let mount = Mount::start_by(command, &pool, &point);
    fs::write(mount.path("file"), "written").expect("room");
    mount.unmount();
    succeed(soft(&["create", "--size", "128M"]).arg(&new));

    let log = scratch.path("log");
    fs::File::create(&log).and_then(|file| file.set_len(128 << 20)).expect("a sparse file");
    let mut command = limited("134217728:134217728", &["mount"]);
    succeed(command.arg(&pool).arg(&point).arg("--log").arg(&log));
    assert_eq!(fs::read(point.join("file")).expect("it was written"), b"written");
    assert_eq!(fs::read(point.join("imported")).expect("it was imported"), b"imported");
    fs::write(point.join("file"), "again").expect("room");
    succeed(varve(&["unmount"]).arg(&point));
    check(&pool);
}

/// Waits until the daemon has nothing left to write: the log of an idle mount ends with a batch without transactions, which
/// comes when nothing has joined the log for a second or two.
fn settle(pool: &Path) {
    let started = Instant::now();
    while started.elapsed() < COMMAND_LIMIT {
        let text = succeed(varve(&["inspect", "--json"]).arg(pool).arg("ring"));
        let ring: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let last = ring["batches"].as_array().and_then(|batches| batches.last());
        let closed = last.is_some_and(|batch| batch["transactions_count"] == 0);
        let before = checksum(pool);
        thread::sleep(Duration::from_secs(1));
        if closed && checksum(pool) == before {
            return;
        }
    }
    panic!("an idle mount keeps writing");
}

/// Goal: a block device that is read-only is refused when it is to be written to, not at the first write. Method: a loop
/// device of that kind; to be read, it can be mounted.
#[test]
fn refuses_a_read_only_device() {
    let test = "refuses_a_read_only_device";
    if !can_mount(test) || !can_loop(test) {
        return;
    }
    let scratch = Scratch::new("refuse-device");
    let pool = scratch.pool("pool.img", "64M");
    let device = Loop::over(&pool, &["--read-only"]);
    let point = scratch.subdir("mnt");
    let words = ["the device is read-only", "-o ro"];
    refused(varve(&["mount"]).arg(&device.device).arg(&point), FAILED, &words, &[&pool]);
    Mount::start_with(&device.device, &point, &["-o", "ro"]).unmount();
}

/// Goal: wrong usage is status 2. Method: one wrong flag, value or count for several verbs, beside a pool that must
/// not change.
#[test]
fn refuses_wrong_usage() {
    let scratch = Scratch::new("usage");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");
    let new = scratch.path("new.img");
    refused(varve(&["mount", "--no-such-flag"]).arg(&pool).arg(&point), USAGE, &["--no-such-flag"], &[&pool]);
    refused(varve(&["mount"]).arg(&pool), USAGE, &["mountpoint"], &[&pool]);
    refused(varve(&["check", "--no-such-flag"]).arg(&pool), USAGE, &["--no-such-flag"], &[&pool]);
    refused(varve(&["create", "--size", "plenty"]).arg(&new), USAGE, &["plenty"], &[&pool]);
    refused(varve(&["create", "--size", "64M", "--data", "raid9"]).arg(&new), USAGE, &["raid9"], &[&pool]);
    refused(&mut varve(&["no-such-verb"]), USAGE, &["no-such-verb"], &[&pool]);
    let none = scratch.path("none/dir");
    refused(varve(&["lab", "commit", "--on"]).arg(&none), USAGE, &["none/dir", "mkdir"], &[&pool]);
    let mut unwritable = varve(&["lab", "commit", "--on", "varve", "--json"]);
    refused(unwritable.arg(&none), FAILED, &["none/dir", "nothing was run"], &[&pool]);
    assert!(!new.exists(), "a refused create left a file behind");
}

/// Goal: things that are no whole pool are refused. Method: a pool cut in half, an empty file, an ext4 image, a file
/// that is not there, a size below the minimum.
#[test]
fn refuses_truncated_and_foreign_devices() {
    let scratch = Scratch::new("foreign");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");

    let half = copy_of(&pool, "half.img");
    fs::File::options()
        .write(true)
        .open(&half)
        .and_then(|file| file.set_len(32 << 20))
        .expect("a shorter copy");
    refused_by_all(&half, &point, &["half.img"]);
    let nearly = copy_of(&pool, "nearly.img");
    fs::File::options()
        .write(true)
        .open(&nearly)
        .and_then(|f| f.set_len((64 << 20) - 4096))
        .expect("a shorter copy");
    refused_by_all(&nearly, &point, &["nearly.img"]);

    let empty = scratch.path("empty.img");
    fs::File::create(&empty).and_then(|file| file.set_len(64 << 20)).expect("an empty file");
    refused_by_all(&empty, &point, &["empty.img"]);
    let none = scratch.path("none.img");
    refused(varve(&["mount"]).arg(&none).arg(&point), FAILED, &["none.img"], &[]);
    assert!(!none.exists());

    let foreign = scratch.path("foreign.img");
    fs::File::create(&foreign).and_then(|file| file.set_len(64 << 20)).expect("an empty file");
    succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&foreign).env("PATH", with_sbin()));
    refused_by_all(&foreign, &point, &["foreign.img"]);
    refused(varve(&["create"]).arg(&foreign), FAILED, &["foreign.img", "--force"], &[&foreign]);
    refused(varve(&["create"]).arg(&pool), FAILED, &["pool.img", "--force"], &[&pool]);

    // More than any filesystem can be asked for, and no directory to be in.
    let large = scratch.path("large.img");
    let words = ["large.img", "smaller --size"];
    refused(varve(&["create", "--size", "16777215T"]).arg(&large), FAILED, &words, &[]);
    assert!(!large.exists());
    let homeless = scratch.path("nodir/pool.img");
    refused(varve(&["create", "--size", "64M"]).arg(&homeless), FAILED, &["mkdir -p", "nodir"], &[]);

    let small = scratch.path("small.img");
    let out = output(varve(&["create", "--size", "1M"]).arg(&small));
    assert!(!out.status.success() && !small.exists(), "a pool below the minimum: {out:?}");
    succeed(varve(&["create", "--force"]).arg(&foreign));
    check(&foreign);
}

/// Goal: nobody is told to make a pool where one is. Method: a pool whose labels are both overwritten, and names that lead to
/// nothing or to what is no pool, for every verb that opens a pool.
#[test]
fn no_advice_leads_to_loss() {
    let scratch = Scratch::new("advice");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");
    let text = succeed(varve(&["inspect", "--json"]).arg(&pool));
    let overview: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let id = overview["pool_id"].as_str().expect("a pool has an id");
    let labels = copy_of(&pool, "labels.img");
    let file = fs::File::options().write(true).open(&labels).expect("an image can be written");
    for at in [0, (64 << 20) - 4096] {
        file.write_all_at(&[0xab; 4096], at).expect("an image can be written");
    }
    let none = scratch.path("none.img");
    let other = scratch.path("other.img");
    fs::write(&other, vec![1; 64 << 20]).expect("a file");
    let place = |image: &Path| format!("{}:/file", image.display());
    let verbs = |image: &Path| {
        let (mut check, mut stats) = (varve(&["check"]), varve(&["stats"]));
        let (mut export, mut extents) = (varve(&["export"]), varve(&["extents"]));
        let (mut mount, mut import) = (varve(&["mount"]), varve(&["import"]));
        check.arg(image);
        stats.arg(image);
        export.arg(place(image)).arg(scratch.path("out"));
        extents.arg(place(image));
        mount.arg(image).arg(&point);
        import.arg(&point).arg(place(image));
        [check, stats, export, extents, mount, import]
    };
    for mut verb in verbs(&labels) {
        let words = ["no label", "labels.img", id, "do not create", "varve inspect"];
        refused(&mut verb, FAILED, &words, &[&labels]);
    }
    for image in [&none, &other] {
        for (number, mut verb) in verbs(image).into_iter().enumerate() {
            let out = output(&mut verb);
            let message = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(FAILED), "{verb:?}: {message}");
            // Those that look only come first.
            let is_advised = number >= 4 && *image == none;
            assert_eq!(message.contains("varve create"), is_advised, "{verb:?}: {message}");
        }
    }
}

/// Goal: a log that would lie in the mount itself, which could never be unmounted, is refused before anything is done. Method: names in a
/// tree that is mounted on, of what is there and of what is not, also by a link, from inside, and with what --create would make; a file
/// beside the mount point whose name begins like it is taken.
#[test]
fn refuses_a_log_in_its_own_mount() {
    if !can_mount("refuses_a_log_in_its_own_mount") {
        return;
    }
    let scratch = Scratch::new("refuse-log");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");
    fs::create_dir(point.join("dir")).expect("a directory");
    fs::write(point.join("dir/old"), b"here before\n").expect("a file");
    std::os::unix::fs::symlink(point.join("dir"), scratch.path("link")).expect("a link");
    let logs = [point.join("log"), point.join("dir/old"), scratch.path("link/new"), point.clone()];
    let words = ["log file", "lies in", "mnt", "outside"];
    for log in &logs {
        let option = format!("log={}", log.display());
        refused(varve(&["mount", "-o", &option]).arg(&pool).arg(&point), FAILED, &words, &[&pool]);
    }
    let mut inside = varve(&["mount", "--foreground", "--log", "log"]);
    refused(inside.current_dir(&point).arg(&pool).arg("."), FAILED, &words, &[&pool]);
    let mut create = varve(&["mount", "--create", "64M", "--log"]);
    refused(create.arg(&logs[0]).arg(scratch.path("new.img")).arg(&point), FAILED, &words, &[]);
    assert!(!scratch.path("new.img").exists());
    assert!(!mount_points().contains(&point));
    for dir in [point.clone(), point.join("dir")] {
        assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 1, "{}", dir.display());
    }
    assert_eq!(fs::read(point.join("dir/old")).expect("a file"), b"here before\n");
    succeed(varve(&["mount", "--log"]).arg(scratch.path("mnt.log")).arg(&pool).arg(&point));
    succeed(varve(&["unmount"]).arg(&point));
    let log = fs::read_to_string(scratch.path("mnt.log")).expect("a log");
    assert!(log.contains("everything is durable"), "{log}");
}

/// Goal: nothing waits for the other end of a pipe. Method: a pipe without one as pool, as source of an import, and as log.
#[test]
fn refuses_pipes() {
    let scratch = Scratch::new("refuse-pipe");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");
    let pipe = scratch.path("pipe");
    succeed(Command::new("mkfifo").arg(&pipe));
    let limit = Duration::from_secs(60);
    let place = format!("{}:/", pool.display());
    let (mut inspect, mut import, mut mount) = (varve(&["inspect"]), varve(&["import"]), varve(&["mount"]));
    inspect.arg(&pipe);
    import.arg(&pipe).arg(&place);
    mount.arg("--log").arg(&pipe).arg(&pool).arg(&point);
    let mut commands = vec![inspect, import];
    if can_mount("refuses_pipes") {
        commands.push(mount);
    }
    for mut command in commands {
        let out = output_within(&mut command, limit);
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(FAILED), "{command:?}: {message}");
        assert!(message.contains("/pipe"), "{message}");
    }
    assert!(!mount_points().contains(&point));
    check(&pool);
}

fn with_sbin() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// Goal: what a newer program wrote is refused, not guessed at. Method: a pool whose labels carry the next version,
/// and one whose superblocks carry an incompatible feature nobody knows, both otherwise whole.
#[test]
fn refuses_a_newer_format() {
    let scratch = Scratch::new("newer");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");

    let newer = copy_of(&pool, "newer.img");
    let bytes = fs::read(&newer).expect("an image can be read");
    let file = fs::File::options().write(true).open(&newer).expect("an image can be written");
    let labels: Vec<usize> =
        (0..bytes.len()).step_by(BLOCK_BYTES).filter(|at| bytes[*at..].starts_with(&LABEL_MAGIC)).collect();
    assert!(labels.len() >= 2, "a label at each end, found at {labels:?}");
    for at in labels {
        // The version is the two bytes after the magic, whatever else a newer label holds.
        file.write_all_at(&1u16.to_le_bytes(), at as u64 + 8).expect("an image can be written");
    }
    refused_by_all(&newer, &point, &["newer.img", "newer"]);
    refused(varve(&["create"]).arg(&newer), FAILED, &["newer.img", "--force"], &[&newer]);

    let feature = copy_of(&pool, "feature.img");
    let size = fs::metadata(&feature).expect("an image").len();
    let file = fs::File::options().read(true).write(true).open(&feature).expect("an image can be written");
    let mut changed = 0;
    for index in 0..2 * SLOTS_PER_END {
        let mut slot = vec![0; SLOT_BYTES as usize];
        file.read_exact_at(&mut slot, slot_offset(index, size)).expect("a slot can be read");
        if let Ok(mut superblock) = Superblock::decode(&slot) {
            superblock.incompatible |= 1 << 63;
            file.write_all_at(&superblock.encode(), slot_offset(index, size)).expect("a slot can be written");
            changed += 1;
        }
    }
    assert!(changed > 0, "no superblock was found");
    refused_by_all(&feature, &point, &["feature"]);
}
