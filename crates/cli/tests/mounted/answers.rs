//! What a command does where nobody hears it, with words that are odd, when it is killed, and when what it asks has become
//! another.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::harness::{COMMAND_LIMIT, Mount, Scratch, can_mount, check, output, succeed, varve};

/// Runs it with a standard error to which nothing can be written.
fn unheard(command: &mut Command) -> Output {
    let full = fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    command.stderr(full).output().expect("it starts")
}

/// Goal: what cannot be told stops nothing: the rest is done, and the exit status is what it is. Method: a standard error that is
/// full; an import in which some things cannot be copied and others can.
#[test]
fn who_cannot_be_told_stops_nothing() {
    let scratch = Scratch::new("unheard");
    let pool = scratch.pool("pool.img", "64M");
    assert_eq!(unheard(varve(&["check"]).arg(scratch.path("none"))).status.code(), Some(1));
    assert_eq!(unheard(&mut varve(&["snapshot"])).status.code(), Some(2));
    let (first, second) = (scratch.subdir("first"), scratch.subdir("second"));
    let at = |name: &str| {
        let mut at = pool.clone().into_os_string();
        at.push(format!(":/{name}"));
        at
    };
    for name in ["a", "b", "c"] {
        fs::create_dir(first.join(name)).expect("a directory");
        fs::write(first.join(name).join("in the way"), name).expect("a file");
        fs::write(second.join(name), name).expect("a file");
    }
    for name in ["x", "y"] {
        fs::write(second.join(name), name).expect("a file");
    }
    succeed(varve(&["import"]).arg(&first).arg(at("t")));
    let out = unheard(varve(&["import", "--json"]).arg(&second).arg(at("t")));
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let report: Value = serde_json::from_slice(&out.stdout).expect("a report");
    assert!(report.is_object(), "{report}");
    let found = scratch.path("found");
    succeed(varve(&["export"]).arg(at("t")).arg(&found));
    for name in ["x", "y"] {
        assert_eq!(fs::read(found.join(name)).expect("it was imported"), name.as_bytes());
    }
}

/// Goal: odd words are refused as wrong usage, or taken, without a panic, and nothing that is printed moves a terminal. Method: each of them.
#[test]
fn odd_words_are_taken_or_refused() {
    let scratch = Scratch::new("odd");
    scratch.pool("p.img", "64M");
    let run = |words: &[&[u8]]| {
        let words = words.iter().map(|word| OsStr::from_bytes(word));
        let out = output(varve(&[]).args(words).current_dir(scratch.path("")));
        let said = [out.stdout, out.stderr].concat();
        assert!(!said.contains(&0x1b) && !said.windows(8).any(|part| part == b"panicked"), "{said:?}");
        (out.status.code(), String::from_utf8(said).expect("text"))
    };
    for words in [
        &[&b"extents"[..], b"p.img:/t/../x"][..],
        &[b"diff", b"p.img:/t/..", b"p.img:/t"],
        &[b"diff", b"p.img:/t", b"p.img:/t/.."],
        &[b"install-helper", b"--program", b"rel"],
    ] {
        assert_eq!(run(words).0, Some(2), "{words:?}");
    }
    let html = [scratch.path("").as_os_str().as_bytes(), b"\xff.html"].concat();
    let (status, said) = run(&[b"lab", b"floor", b"--dir", b"/nope", b"--html", &html]);
    assert!(status == Some(1) && said.contains("/nope"), "{said}");
    let (status, said) = run(&[b"mount-helper", b"p.img", b"q\x1b[31mr", b"-o", b"remount,ro"]);
    assert!(status != Some(0) && said.contains(r"q\x1b[31mr"), "{said}");
    let (status, said) = run(&[b"mount", b"-o", b"remount,ro", b"p.img", b"q\xffr"]);
    assert!(status != Some(0) && said.contains(r"q\xffr"), "{said}");
}

/// Goal: a command that is killed while it makes a pool leaves nothing under the pool's name, and the next one begins anew. Method:
/// kills after more and more time.
#[test]
fn a_creation_that_is_killed_leaves_no_name() {
    let scratch = Scratch::new("killed-create");
    let pool = scratch.path("pool.img");
    let create = || {
        let mut command = varve(&["create", "--size", "256M"]);
        command.arg(&pool);
        command
    };
    let mut early = 0;
    for round in 0..24 {
        let mut child = create().stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_micros(500 * round));
        // It may have ended.
        let _ = child.kill();
        child.wait().expect("our child");
        if pool.exists() {
            check(&pool);
            fs::remove_file(&pool).expect("a file");
        } else {
            early += 1;
        }
    }
    assert!(early > 0, "no kill came in time");
    succeed(&mut create());
    check(&pool);
    let left = fs::read_dir(scratch.path("")).expect("a directory").count();
    assert_eq!(left, 1, "what was left of others is in it");
}

/// Goal: who asks a mount again and again asks that one, and hears of its end, though another has got the number of its device.
/// Method: statistics every tenth of a second of a mount that ends, with others after it.
#[test]
fn another_mount_does_not_answer_for_one_that_has_gone() {
    if !can_mount("another_mount_does_not_answer_for_one_that_has_gone") {
        return;
    }
    let scratch = Scratch::new("gone");
    let pools = ["a.img", "b.img"].map(|name| scratch.pool(name, "64M"));
    let first = Mount::start(&pools[0], &scratch.path("first"));
    let mut watch = varve(&["stats", "--watch=0.3", "--json", "--count=10000"]);
    let mut watch =
        watch.arg(&first.point).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = BufReader::new(watch.stdout.take().expect("a pipe"));
    let mut text = String::new();
    said.read_line(&mut text).expect("a first line");
    first.unmount();
    let second = Mount::start(&pools[1], &scratch.path("second"));
    said.read_to_string(&mut text).expect("text");
    let out = watch.wait_with_output().expect("our child");
    second.unmount();
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let pool = pools[0].to_str().expect("text");
    assert!(!lines.is_empty() && lines.iter().all(|line| line["pool"] == pool), "{lines:?}");
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Waits until the process has asked somebody, and stops it when it does not.
fn stop_between_requests(process: Pid) {
    let proc = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    let is_socket = |file: fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let asks = || fs::read_dir(proc.join("fd")).expect("it runs").flatten().any(is_socket);
    let is_stopped = || fs::read_to_string(proc.join("stat")).expect("it runs").contains(") T ");
    let begun = Instant::now();
    let signal = |signal| rustix::process::kill_process(process, signal).expect("our own child");
    let wait = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(begun.elapsed() < COMMAND_LIMIT, "it asks nobody");
            thread::sleep(Duration::from_micros(50));
        }
    };
    wait(&asks);
    wait(&|| {
        signal(Signal::STOP);
        wait(&is_stopped);
        let is_between = !asks();
        if !is_between {
            signal(Signal::CONT);
        }
        is_between
    });
}

/// Goal: what differs is told by one mount from the beginning to the end: the number of its device is nobody else's meanwhile. Method:
/// a comparison of many pages that is stopped on its way; its mount is killed and another one comes, of a pool in which everything has
/// the same numbers.
#[test]
fn differences_are_told_by_one_mount() {
    if !can_mount("differences_are_told_by_one_mount") {
        return;
    }
    let scratch = Scratch::new("diff-gone");
    let mounted = |name: &str| {
        let mount = Mount::start(&scratch.pool(&format!("{name}.img"), "64M"), &scratch.path(name));
        succeed(varve(&["subvolume", "create"]).arg(mount.path("w")));
        succeed(varve(&["snapshot"]).arg(mount.path("w")).arg(mount.path("s")));
        (0..10_000).for_each(|n| fs::write(mount.path("w").join(format!("{name}{n}")), "").expect("room"));
        mount.sync();
        mount
    };
    let second = mounted("second");
    let pool = scratch.path("second.img");
    second.unmount();
    let first = mounted("first");
    let mut diff = varve(&["diff"]);
    diff.arg(first.path("s")).arg(first.path("w")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let diff = diff.spawn().expect("it starts");
    let process = Pid::from_child(&diff);
    stop_between_requests(process);
    first.kill();
    let second = Mount::start(&pool, &scratch.path("second"));
    rustix::process::kill_process(process, Signal::CONT).expect("our own child");
    let out = diff.wait_with_output().expect("our child");
    second.unmount();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("the process that serve"), "{said}");
    assert!(out.stdout.is_empty(), "it tells of one mount or of two");
}

fn mount(arguments: &[&str], places: &[&Path]) {
    succeed(Command::new("mount").args(arguments).args(places));
}

/// Goal: it is the place that is named whose flags count, of several at which a pool is mounted. Method: one that cannot be written to
/// beside one that can; snapshots and clones through both.
#[test]
fn the_place_that_is_named_counts() {
    if !can_mount("the_place_that_is_named_counts") || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new("places");
    let mounted = Mount::start(&scratch.pool("pool.img", "64M"), &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mounted.path("w")));
    fs::write(mounted.path("f"), "x").expect("a file");
    let bound = scratch.subdir("bound");
    mount(&["--bind"], &[&mounted.point, &bound]);
    mount(&["-o", "remount,bind,ro"], &[&bound]);
    let snapshot = |at: &Path, name: &str| output(varve(&["snapshot"]).arg(at.join("w")).arg(at.join(name)));
    let clone = |at: &Path, name: &str| output(varve(&["clone"]).arg(at.join("f")).arg(at.join(name)));
    for out in [snapshot(&bound, "s"), clone(&bound, "c")] {
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && said.contains("read-only"), "{said}");
    }
    assert!(!mounted.path("s").exists() && !mounted.path("c").exists());
    for out in [snapshot(&mounted.point, "s"), clone(&mounted.point, "c")] {
        assert!(out.status.success(), "{out:?}");
    }
    let out = clone(&mounted.point, "new/");
    assert_eq!(out.status.code(), Some(1), "a file is no directory: {out:?}");
    assert!(!mounted.path("new").exists());
    succeed(Command::new("umount").arg(&bound));
    mounted.unmount();
}

/// Goal: a name that a mount is shown by hides it from nobody who names the pool, and is taken for no path. Method: a pool that is mounted by a
/// name, for writing and for reading; the commands that are given its path, those that say it, and what is said of a dead mount.
#[test]
fn a_name_hides_no_mount() {
    if !can_mount("a_name_hides_no_mount") {
        return;
    }
    let scratch = Scratch::new("fsname");
    let (pool, other) = (scratch.pool("pool.img", "64M"), scratch.pool("other.img", "64M"));
    let json = |command: &mut Command| -> Value { serde_json::from_str(&succeed(command)).expect("JSON") };
    let refusal = |command: &mut Command| {
        let out = output(command);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{command:?}: {said}");
        said
    };
    let (path, point) = (pool.to_str().expect("a name"), scratch.path("mnt"));
    // One that has nothing to do with it is asked first.
    let beside = Mount::start_with(&other, &scratch.path("beside"), &["-o", "fsname=data"]);
    for options in ["fsname=data", "ro,fsname=/no/such/path"] {
        let mount = Mount::start_with(&pool, &point, &["-o", options]);
        for stats in [&pool, &point].map(|at| json(varve(&["stats", "--json"]).arg(at))) {
            assert_eq!((stats["pool"].as_str(), stats["mountpoint"].as_str()), (Some(path), point.to_str()));
            assert_eq!(stats["pid"], mount.pid());
        }
        succeed(varve(&["subvolume", "list"]).arg(&pool));
        let begun = Instant::now();
        let said = refusal(varve(&["create", "--force"]).arg(&pool));
        assert!(said.contains(&format!("mounted at {}", point.display())), "{said}");
        let said = refusal(varve(&["mount"]).arg(&other).arg(&point));
        assert!(said.contains(&format!("{path} is mounted on")), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(8), "it was waited for what does not end");
        if options.starts_with("ro") {
            let said = refusal(varve(&["subvolume", "create"]).arg(mount.path("new")));
            assert!(said.contains(&format!("remount,rw {path} ")), "{said}");
        } else {
            let trimmed = json(varve(&["trim", "--json"]).arg(&point));
            assert_eq!(
                (trimmed["pool"].as_str(), trimmed["mountpoint"].as_str()),
                (Some(path), point.to_str())
            );
        }
        mount.unmount();
    }
    let stats = json(varve(&["stats", "--json"]).arg(&pool));
    assert!(stats["mountpoint"].is_null(), "it is mounted nowhere: {stats}");
    // Killed, and the dead mount stays.
    let process = Pid::from_raw(beside.pid() as i32).expect("a process");
    rustix::process::kill_process(process, Signal::KILL).expect("our own child");
    while fs::read_dir(&beside.point).is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    let said = refusal(varve(&["sync"]).arg(&beside.point));
    assert!(said.contains("varve mount POOL") && !said.contains("varve mount data"), "{said}");
    drop(beside);
}
