//! What a service manager hears and sends: READY=1, SIGTERM.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Mount, Scratch, can_mount, check, detach, mount_points, program, say, succeed, varve};
use crate::mapped::Mapped;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// Whatever is mounted there by the test goes with it, however it ends.
struct Cleared(PathBuf, usize);

impl Drop for Cleared {
    fn drop(&mut self) {
        for _ in 0..self.1 {
            detach(&self.0);
        }
    }
}

/// Whether things can be mounted over and beside a pool; says so loudly if not.
fn can_mount_over(test: &str) -> bool {
    let can = can_mount(test) && rustix::process::geteuid().is_root();
    if !can {
        say(&format!("*** {test} skipped: it takes /dev/fuse, and root ***"));
    }
    can
}

/// Goal: SIGTERM ends the daemon and leaves the pool closed, also where that is mounted in a second place, with a file open. Method:
/// bind the mount elsewhere, write there, keep a file open, and send the signal; the log, the pool, and the dead second place.
#[test]
fn a_signal_ends_a_pool_that_is_mounted_twice() {
    if !can_mount_over("a_signal_ends_a_pool_that_is_mounted_twice") {
        return;
    }
    let scratch = Scratch::new("signals");
    let (pool, other) = (scratch.pool("pool", "64M"), scratch.subdir("other"));
    let mut mount = Mount::start(&pool, &scratch.path("mnt"));
    let second = Cleared(other.clone(), 1);
    succeed(program("mount", &other, &["--bind"]).arg(&mount.point).arg(&other));
    fs::write(other.join("file"), "not synced").expect("a file");
    let open = fs::File::open(other.join("file")).expect("a file");
    mount.terminate();
    drop((open, second));
    let said = mount.messages();
    assert!(said.contains("everything is durable"), "{said}");
    assert!(!mount_points().contains(&mount.point), "the mount is still there");
    check(&pool);
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert_eq!(fs::read(mount.path("file")).expect("it was written"), b"not synced");
    assert!(!mount.messages().contains("recovered"), "{}", mount.messages());
    mount.unmount();
}

/// Goal: what a program was told is written is there after SIGTERM, though it writes until it is refused. Method: one writes the same
/// 64 blocks again and again, each with its number, while the signal comes; what it has been told is looked for after the next mount.
#[test]
fn a_signal_loses_nothing_that_was_accepted() {
    const BLOCKS: u64 = 64;
    if !can_mount_over("a_signal_loses_nothing_that_was_accepted") {
        return;
    }
    let scratch = Scratch::new("accepted");
    let pool = scratch.pool("pool", "64M");
    let mut mount = Mount::start(&pool, &scratch.path("mnt"));
    let file = fs::File::create(mount.path("file")).expect("a file");
    let writer = std::thread::spawn(move || {
        let mut number = 0u64;
        loop {
            let block: Vec<u8> = number.to_le_bytes().repeat(512);
            if file.write_all_at(&block, number % BLOCKS * 4096).is_err() {
                return number;
            }
            number += 1;
        }
    });
    mount.terminate();
    let accepted = writer.join().expect("it ends with an error");
    let said = mount.messages();
    assert!(said.contains("everything is durable") && accepted > 1000, "{accepted}: {said}");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let found = fs::read(mount.path("file")).expect("it was written");
    for number in accepted - BLOCKS..accepted {
        let at = (number % BLOCKS * 4096) as usize;
        let there = u64::from_le_bytes(found[at..at + 8].try_into().unwrap());
        // The write that was refused may have been done.
        assert!(
            [number, accepted].contains(&there),
            "{number} of {accepted} was accepted, and {there} is there"
        );
    }
    mount.unmount();
}

/// Goal: what a program has stored through mmap, and does not sync, is there after SIGTERM, though the program still has it mapped when
/// the daemon ends. Method: that, looked for after the next mount.
#[test]
fn a_signal_writes_back_what_is_mapped() {
    if !can_mount_over("a_signal_writes_back_what_is_mapped") {
        return;
    }
    let scratch = Scratch::new("signal-mapped");
    let pool = scratch.pool("pool", "64M");
    let mut mount = Mount::start(&pool, &scratch.path("mnt"));
    let path = mount.path("file");
    fs::write(&path, [1; 20_000]).expect("a file");
    mount.sync();
    let mapped = Mapped::of(&path, 20_000);
    mapped.store(5_000, b"stored through mmap");
    mount.terminate();
    let said = mount.messages();
    assert!(said.contains("everything is durable") && !said.contains("may not all"), "{said}");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let found = fs::read(&path).expect("it is there");
    assert!(found.len() == 20_000 && found[5_000..].starts_with(b"stored through mmap"));
    drop(mapped);
    mount.unmount();
}

/// Goal: SIGTERM takes nobody else's mount away: what has been mounted over the pool stays, and the daemon ends all the same.
/// Method: a tmpfs with a file over the mount; the signal.
#[test]
fn a_signal_leaves_what_is_mounted_over_the_pool() {
    if !can_mount_over("a_signal_leaves_what_is_mounted_over_the_pool") {
        return;
    }
    let scratch = Scratch::new("over");
    let pool = scratch.pool("pool", "64M");
    let mut mount = Mount::start(&pool, &scratch.path("mnt"));
    fs::write(mount.path("file"), "of the pool").expect("a file");
    let point = mount.point.clone();
    // The tmpfs, and what the daemon leaves beneath it.
    let both = Cleared(point.clone(), 2);
    succeed(program("mount", &scratch.path(""), &["-t", "tmpfs", "none"]).arg(&point));
    fs::write(point.join("other"), "of the tmpfs").expect("a file");
    mount.terminate();
    assert_eq!(fs::read(point.join("other")).expect("it stays"), b"of the tmpfs");
    drop(both);
    assert!(!mount_points().contains(&point));
    check(&pool);
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert_eq!(fs::read(mount.path("file")).expect("it was written"), b"of the pool");
    mount.unmount();
}

/// Goal: a mount that was started so that the end of a terminal does not end it (nohup), and so that what is meant for a program beside it
/// does not (a script's background job), stays. Method: one in a terminal of its own, with both signals ignored, gets both, and then SIGTERM.
#[test]
fn signals_that_were_ignored_end_nothing() {
    if !can_mount_over("signals_that_were_ignored_end_nothing") {
        return;
    }
    let scratch = Scratch::new("ignored");
    let (pool, point) = (scratch.pool("pool", "64M"), scratch.subdir("mnt"));
    let (number, varve) = (scratch.path("number"), varve(&[]).get_program().to_owned());
    let start = format!(
        "trap '' HUP INT; echo $$ > {}; exec {} mount --foreground {} {}",
        number.display(),
        std::path::Path::new(&varve).display(),
        pool.display(),
        point.display()
    );
    let terminal = Command::new("script")
        .args(["-qefc", &start, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let Ok(mut terminal) = terminal else {
        return say("*** signals_that_were_ignored_end_nothing skipped: no script(1) ***");
    };
    let cleared = Cleared(point.clone(), 1);
    let wait_until = |is: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < LONG, "it takes too long");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_until(&|| mount_points().contains(&point));
    fs::write(point.join("file"), "kept").expect("a file");
    let number = fs::read_to_string(&number).expect("it was written");
    let signal =
        |which: &str| succeed(Command::new("kill").args([which, number.trim()]).stdin(Stdio::null()));
    for which in ["-HUP", "-INT"] {
        signal(which);
        std::thread::sleep(Duration::from_millis(300));
        assert!(mount_points().contains(&point), "{which} has ended it");
        assert_eq!(fs::read(point.join("file")).expect("it answers"), b"kept");
    }
    signal("-TERM");
    wait_until(&|| !mount_points().contains(&point));
    terminal.wait().expect("it ends");
    drop(cleared);
    check(&pool);
}

/// Goal: a service whose process serves the mount says that it has started; one that only mounts, in the background, is not spoken for:
/// what else it starts may not be there yet. Method: a socket of a service manager's; a mount in the foreground, and one in the
/// background, each with its name.
#[test]
fn a_service_manager_hears_of_its_own_process_alone() {
    if !can_mount("a_service_manager_hears_of_its_own_process_alone") {
        return;
    }
    let scratch = Scratch::new("notify");
    let (pool, point) = (scratch.pool("pool", "64M"), scratch.subdir("mnt"));
    let name = scratch.path("notify");
    let manager = UnixDatagram::bind(&name).expect("a socket");
    manager.set_nonblocking(true).expect("a socket of ours");
    let heard = || {
        let mut message = [0; 64];
        manager.recv(&mut message).ok().map(|len| String::from_utf8_lossy(&message[..len]).into_owned())
    };
    let mut command = varve(&["mount", "--foreground"]);
    command.arg(&pool).arg(&point).env("NOTIFY_SOCKET", &name);
    let mount = Mount::start_by(command, &pool, &point);
    assert_eq!(heard().as_deref(), Some("READY=1"));
    mount.unmount();
    succeed(varve(&["mount"]).arg(&pool).arg(&point).env("NOTIFY_SOCKET", &name));
    let cleared = Cleared(point.clone(), 1);
    succeed(varve(&["unmount"]).arg(&point));
    drop(cleared);
    assert_eq!(heard(), None);
}

/// Goal: a signal that comes as soon as there is a mount, before anybody serves its control socket, leaves no dead mount and a closed pool.
/// Method: the mount's process is kept busy by a lock that any user can hold, in a mount namespace of its own; SIGTERM as soon as the kernel
/// shows the mount.
#[test]
fn a_signal_while_it_is_being_mounted_closes_the_pool() {
    const TEST: &str = "a_signal_while_it_is_being_mounted_closes_the_pool";
    if !can_mount_over(TEST) {
        return;
    }
    let scratch = Scratch::new("early");
    let (pool, point, log) = (scratch.pool("pool", "64M"), scratch.subdir("mnt"), scratch.path("log"));
    // The descriptor of the lock is the daemon's, too, which opens the file anew and finds it locked.
    let script = "mkdir -p /run/mount && mount -t tmpfs tmpfs /run/mount && exec 9>/run/mount/utab.lock && flock 9 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(varve(&[]).get_program()).args(["mount", "--foreground"]).arg(&pool).arg(&point);
    let said = fs::File::create(&log).expect("a file");
    let mut daemon = command.stdin(Stdio::null()).stderr(said).spawn().expect("util-linux is there");
    let (begun, table) = (Instant::now(), format!("/proc/{}/mountinfo", daemon.id()));
    let is_mounted =
        || fs::read_to_string(&table).unwrap_or_default().contains(&format!(" {} ", point.display()));
    while !is_mounted() {
        let ended = daemon.try_wait().expect("our own child");
        assert!(ended.is_none() && begun.elapsed() < LONG, "{:?}", fs::read_to_string(&log));
    }
    let process = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("our own child");
    let status = loop {
        match daemon.try_wait().expect("our own child") {
            Some(status) => break status,
            None if begun.elapsed() > LONG => {
                daemon.kill().expect("our own child");
                break daemon.wait().expect("our own child");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let said = fs::read_to_string(&log).expect("a file");
    assert!(status.code() == Some(1) && said.contains("signal 15"), "{status}: {said}");
    assert!(!said.contains(": mounted "), "{said}");
    let mount = Mount::start(&pool, &point);
    assert!(!mount.messages().contains("recovered"), "{}", mount.messages());
    mount.unmount();
    check(&pool);
}

/// Goal: a mount that was given up does not appear afterwards. Method: a pool that is locked, as by a mount that is ending, so that the process in
/// the background waits; the command that started it is killed, and the lock goes; the pool is free then, and can be mounted.
#[test]
fn a_mount_that_was_given_up_does_not_appear() {
    if !can_mount("a_mount_that_was_given_up_does_not_appear") {
        return;
    }
    let scratch = Scratch::new("given-up");
    let (pool, point) = (scratch.pool("pool", "64M"), scratch.subdir("mnt"));
    let held = fs::File::open(&pool).expect("it is there");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
    let mut command = varve(&["mount"]);
    command.arg(&pool).arg(&point).stdout(Stdio::null()).stderr(Stdio::null());
    let mut mounting = command.spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(500));
    mounting.kill().and_then(|()| mounting.wait()).expect("our child");
    let cleared = Cleared(point.clone(), 1);
    drop(held);
    for _ in 0..100 {
        assert!(!mount_points().contains(&point), "it was mounted all the same");
        std::thread::sleep(Duration::from_millis(10));
    }
    check(&pool);
    Mount::start(&pool, &point).unmount();
    drop(cleared);
}
