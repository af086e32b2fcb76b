//! Imports and exports that end before their end, and what the next ones find.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Loop, Random, Scratch, can_loop, check, detach, program, say, seed, succeed, varve};
use crate::transfer::{done, export, import, json};

/// A file of `bytes` random ones.
fn random_file(path: &Path, bytes: u64) {
    let mut random = Random::new(seed());
    let piece = random.bytes(1 << 20);
    let mut file = fs::File::create(path).expect("a file");
    for _ in 0..bytes >> 20 {
        file.write_all(&piece).expect("a file");
    }
}

/// Waits until a command has read so much. False: it has ended.
fn has_read(child: &mut Child, bytes: u64) -> bool {
    has_come_to(child, "rchar: ", bytes)
}

/// The same of writing.
fn has_written(child: &mut Child, bytes: u64) -> bool {
    has_come_to(child, "wchar: ", bytes)
}

fn has_come_to(child: &mut Child, counter: &str, bytes: u64) -> bool {
    let counters = format!("/proc/{}/io", child.id());
    while child.try_wait().expect("our own child").is_none() {
        let text = fs::read_to_string(&counters).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix(counter)).unwrap_or("0");
        if count.parse::<u64>().expect("a number") >= bytes {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Goal: an import that was killed in a large file is finished by the next one, where there is room for that file and not for it and its
/// half; and half of it is nowhere in the pool. Method: a file of 70% of the pool, killed when 80% of it have been read.
#[test]
fn a_killed_import_leaves_room_for_the_next() {
    const POOL: u64 = 640 << 20;
    let scratch = Scratch::new("resume-large");
    let (tree, back) = (scratch.subdir("tree"), scratch.path("back"));
    let bytes = POOL / 10 * 7;
    random_file(&tree.join("large"), bytes);
    for attempt in 0..5 {
        let pool = scratch.pool(&format!("pool-{attempt}"), "640M");
        let mut child = varve(&["import", "--commit-every=0.01"])
            .arg(&tree)
            .arg(format!("{}:/", pool.display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("varve starts");
        let half = has_read(&mut child, bytes / 10 * 8);
        child.kill().expect("our own child");
        let killed = half && !child.wait().expect("our own child").success();
        if !killed {
            say("it ended before it was killed; once more");
            fs::remove_file(&pool).expect("our own pool");
            continue;
        }
        let some = scratch.path(&format!("some-{attempt}"));
        done(&export(&pool, "/", &some));
        if fs::metadata(some.join("large")).is_ok_and(|file| file.len() == bytes) {
            say("it had done its work before it was killed; once more");
            fs::remove_dir_all(&some).expect("our own files");
            fs::remove_file(&pool).expect("our own pool");
            continue;
        }
        assert_eq!(fs::read_dir(&some).expect("a directory").count(), 0, "half of it has its name");
        let summary = done(&import(&tree, &pool, "/"));
        assert_eq!(summary["files_copied_count"], 1, "{summary}");
        check(&pool);
        done(&export(&pool, "/", &back));
        assert!(fs::read(back.join("large")).unwrap() == fs::read(tree.join("large")).unwrap());
        return;
    }
    panic!("it was never killed in time");
}

/// Goal: what is started with nohup, or beside a shell, goes on when the terminal ends, or gets Ctrl-C. Method: an import and an export that
/// ignore these signals from the beginning are sent them.
#[test]
fn what_ignores_the_terminal_goes_on() {
    let scratch = Scratch::new("resume-nohup");
    let tree = scratch.subdir("tree");
    random_file(&tree.join("large"), 256 << 20);
    let pool = scratch.pool("pool", "640M");
    let (place, back) = (format!("{}:/", pool.display()), scratch.path("back"));
    let (tree, place) = (tree.as_os_str(), OsStr::new(&place));
    for (verb, from, to) in [("import", tree, place), ("export", place, back.as_os_str())] {
        let mut command = program("bash", Path::new("/"), &["-c", "trap '' HUP INT; exec \"$@\"", "bash"]);
        command.arg(varve(&[]).get_program()).arg(verb).args([from, to]);
        let mut child = command.stdout(Stdio::null()).spawn().expect("varve starts");
        let early =
            if verb == "import" { has_read(&mut child, 64 << 20) } else { has_written(&mut child, 64 << 20) };
        assert!(early, "{verb} has ended");
        for signal in [Signal::HUP, Signal::INT] {
            kill_process(Pid::from_child(&child), signal).expect("our own child");
        }
        assert!(child.wait().expect("our own child").success(), "{verb}");
    }
}

/// Goal: one signal ends an import and an export also within a file, which is not there then, or is as it was; it is no error of that file, and
/// the next run goes on. Method: a large file, a signal when some of it is read or written, without and with an older copy.
#[test]
fn a_signal_ends_a_large_file() {
    let scratch = Scratch::new("resume-signal");
    let (tree, back) = (scratch.subdir("tree"), scratch.subdir("back"));
    random_file(&tree.join("large"), 1 << 30);
    let pool = scratch.pool("pool", "3G");
    let place = format!("{}:/", pool.display());
    let interrupted = |verb: &str, from: &OsStr, to: &OsStr| {
        let mut command = varve(&[verb, "--json"]);
        let mut child = command
            .args([from, to])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("varve starts");
        let some = 96 << 20;
        assert!(if verb == "import" { has_read(&mut child, some) } else { has_written(&mut child, some) });
        kill_process(Pid::from_child(&child), Signal::TERM).expect("our own child");
        let ended = child.wait_with_output().expect("our own child");
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("interrupted; run the same"), "{said}");
        let summary = json(&ended);
        assert_eq!(
            (&summary["errors_count"], &summary["files_copied_count"]),
            (&0.into(), &0.into()),
            "{summary}"
        );
    };
    let (tree, place) = (tree.as_os_str(), OsStr::new(&place));
    interrupted("import", tree, place);
    done(&import(Path::new(tree), &pool, "/"));
    check(&pool);
    let large = Path::new(tree).join("large");
    interrupted("export", place, back.as_os_str());
    assert_eq!(fs::read_dir(&back).expect("a directory").count(), 0);
    fs::write(back.join("large"), "an older copy").expect("a file");
    interrupted("export", place, back.as_os_str());
    assert_eq!(fs::read(back.join("large")).expect("it is there"), b"an older copy");
    assert_eq!(fs::read_dir(&back).expect("a directory").count(), 1);
    fs::File::options()
        .write(true)
        .open(&large)
        .and_then(|file| file.set_modified(UNIX_EPOCH))
        .expect("a time");
    interrupted("import", tree, place);
    let summary = done(&export(&pool, "/", &back));
    assert_eq!(summary["files_copied_count"], 1, "{summary}");
    assert!(fs::metadata(back.join("large")).expect("it is there").modified().expect("a time") > UNIX_EPOCH);
    check(&pool);
}

/// Goal: a target that keeps times less exactly has what it was given, and the next export copies what is other than that. Method: an ext4 that
/// keeps seconds; an export, again, and again when one file was changed to others of its size.
#[test]
fn a_target_with_coarse_times_goes_on() {
    if !can_loop("a_target_with_coarse_times_goes_on") {
        return;
    }
    let scratch = Scratch::new("resume-coarse");
    let disk = Loop::new(&scratch, "disk", 64 << 20);
    let mut make = Command::new("mkfs.ext4");
    if !make.args(["-q", "-I", "128"]).arg(&disk.device).output().is_ok_and(|made| made.status.success()) {
        say("*** SKIPPED a_target_with_coarse_times_goes_on: mkfs.ext4 is not here ***");
        return;
    }
    let out = Attached::new(&disk, scratch.subdir("out"));
    let tree = scratch.subdir("tree");
    for number in 0..20 {
        fs::write(tree.join(number.to_string()), format!("number {number:2}")).expect("a file");
    }
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    done(&export(&pool, "/", &out.0));
    let again = done(&export(&pool, "/", &out.0));
    assert_eq!(
        (&again["files_equal_count"], &again["attributes_changed_count"]),
        (&20.into(), &0.into()),
        "{again}"
    );
    // Within what FAT keeps and beyond what this does.
    let file = fs::File::options().write(true).open(tree.join("7")).expect("a file");
    let time = file.metadata().and_then(|meta| meta.modified()).expect("a time");
    file.write_all_at(b"changed 7", 0).expect("contents");
    file.set_modified(time + Duration::from_secs(1)).expect("a time");
    done(&import(&tree, &pool, "/"));
    let again = done(&export(&pool, "/", &out.0));
    assert_eq!(
        (&again["files_equal_count"], &again["files_copied_count"]),
        (&19.into(), &1.into()),
        "{again}"
    );
    assert_eq!(fs::read(out.0.join("7")).expect("it is there"), b"changed 7");
    assert!(
        fs::read_dir(&out.0)
            .expect("a directory")
            .flatten()
            .all(|entry| entry.path().is_dir() || tree.join(entry.file_name()).exists())
    );
}

/// A filesystem that is mounted as long as this lives.
struct Attached(PathBuf);

impl Attached {
    fn new(disk: &Loop, point: PathBuf) -> Attached {
        succeed(Command::new("mount").arg(&disk.device).arg(&point));
        Attached(point)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        detach(&self.0);
    }
}
