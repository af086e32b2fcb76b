//! Mounts whose process is in a PID namespace of its own, as in a container, and commands that are: neither sees the other's number, or one
//! sees another.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::elsewhere::Mounted;
use crate::harness::{Mount, Scratch, can_mount, check, mount_points, output_within, say, succeed, varve};
use crate::helper::script;
use crate::lost::{file_to_copy, refused, unmount_by_force};

/// Longest that a command may take that waits for nothing.
const LIMIT: Duration = Duration::from_secs(60);

fn can_unshare(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        say(&format!("\n*** SKIPPED {test}: only root can make PID namespaces ***\n"));
    }
    is_root && can_mount(test)
}

/// The program, in a PID namespace of its own and in no other.
fn apart(args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(varve(&[]).get_program()).args(args);
    command
}

fn done(mut command: Command) -> String {
    let Output { status, stdout, stderr } = output_within(&mut command, LIMIT);
    assert!(status.success(), "{command:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

/// All that commands ask of a mount on behalf of whoever calls them, in `dir` of it.
fn versions(command: impl Fn(&[&str]) -> Command, mount: &Mount, dir: &str) {
    let path = |name: &str| mount.path(&format!("{dir}/{name}")).display().to_string();
    fs::create_dir(mount.path(dir)).expect("a directory");
    done(command(&["subvolume", "create", &path("sub")]));
    fs::write(path("sub/file"), vec![7; 1 << 20]).expect("a file");
    done(command(&["snapshot", &path("sub"), &path("snap")]));
    done(command(&["clone", &path("sub/file"), &path("sub/other")]));
    let extents = done(command(&["extents", &path("sub/other")]));
    assert!(!extents.is_empty());
    assert_eq!(fs::read(path("snap/file")).expect("it is there"), vec![7; 1 << 20]);
}

/// Goal: a mount whose process has another number here, as in a container, is served, unmounted and saved as any other. Method: such a
/// process; the commands that depend on who calls; an unmount, after which the pool is free at once; the number in stats; a pool that is
/// deleted, and what is said then.
#[test]
fn a_process_of_another_namespace_is_waited_for() {
    if !can_unshare("a_process_of_another_namespace_is_waited_for") {
        return;
    }
    let scratch = Scratch::new("pid-namespace");
    let (pool, point) = (scratch.pool("pool", "128M"), scratch.path("mnt"));
    let start = || {
        let mut command = apart(&["mount", "--foreground"]);
        command.arg(&pool).arg(&point);
        Mount::start_by(command, &pool, &point)
    };
    let unmount = || {
        let mut command = varve(&["unmount"]);
        command.arg(&point);
        done(command);
    };
    let mut mount = start();
    versions(varve, &mount, "dir");
    let stats = succeed(varve(&["stats", "--json"]).arg(&point));
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    let line = fs::read_to_string(format!("/proc/{}/cmdline", stats["pid"])).expect("a process");
    assert!(line.contains(pool.to_str().expect("text")), "another process: {line:?}");
    unmount();
    check(&pool);
    assert!(mount.ended().success());

    let mut mount = start();
    fs::write(mount.path("file"), "contents").expect("a file");
    mount.sync();
    fs::remove_file(&pool).expect("it is there");
    let said = refused(&mount);
    let copy = scratch.path("copy");
    succeed(Command::new("cp").arg("--sparse=always").arg(file_to_copy(&said)).arg(&copy));
    assert!(mount.messages().contains(&file_to_copy(&said).display().to_string()), "{}", mount.messages());
    unmount_by_force(&mut mount);
    let mount = Mount::start(&copy, &point);
    assert_eq!(fs::read(mount.path("file")).expect("it was synced"), b"contents");
    mount.unmount();
}

/// Goal: commands in a namespace from which the mount's process cannot be seen work as any other. Method: the commands that depend on who
/// calls; an unmount while the pool is mounted in another place, too; one that is refused because the pool is deleted; one that ends the
/// mount, after which its process is gone.
#[test]
fn a_process_that_cannot_be_seen_is_waited_for() {
    if !can_unshare("a_process_that_cannot_be_seen_is_waited_for") {
        return;
    }
    let scratch = Scratch::new("pid-unseen");
    let (pool, point, other) = (scratch.pool("pool", "128M"), scratch.path("mnt"), scratch.subdir("other"));
    let unmount = |args: &[&str], point: &Path| {
        let mut command = apart(&["unmount"]);
        let out = output_within(command.args(args).arg(point), LIMIT);
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let mut mount = Mount::start(&pool, &point);
    versions(apart, &mount, "dir");
    let _other = Mounted::mount(&["--bind"], &point, &other);
    let (status, said) = unmount(&["--wait", "1"], &other);
    assert!(
        status == Some(1)
            && said.contains("durable, but a process of another container still serves the pool"),
        "{said}"
    );
    assert!(!mount_points().contains(&other));
    let kept = scratch.path("kept");
    fs::rename(&pool, &kept).and_then(|()| fs::copy(&kept, &pool)).expect("a copy");
    fs::remove_file(&kept).expect("it is there");
    let (status, said) = unmount(&[], &point);
    let place =
        format!("in the container of the mount's process: cp --sparse=always /proc/{}/fd/", mount.pid());
    assert!(status == Some(1) && said.contains(&place), "{said}");
    let (status, said) = unmount(&["--force"], &point);
    assert_eq!(status, Some(0), "{said}");
    // As our child it is a zombie now, and holds nothing.
    let state = fs::read_to_string(format!("/proc/{}/stat", mount.pid())).expect("it was not waited for");
    assert!(state.contains(") Z "), "it still runs: {state}");
    assert!(!mount.ended().success(), "what is lost is an error");
}

/// Goal: who finds a pool in use by a mount that he cannot see reads how to end that, and it works. Method: a mount in a mount namespace of its own,
/// whose maker has ended; a check elsewhere; what it says is done, both ways.
#[test]
fn a_mount_of_another_namespace_is_ended() {
    if !can_unshare("a_mount_of_another_namespace_is_ended") {
        return;
    }
    let scratch = Scratch::new("mount-namespace");
    let (pool, point) = (scratch.pool("pool", "64M"), scratch.subdir("mnt"));
    for by_signal in [false, true] {
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(varve(&[]).get_program()).arg("mount").arg(&pool).arg(&point);
        done(command);
        assert!(!mount_points().contains(&point));
        let mut checked = varve(&["check"]);
        let out = output_within(checked.arg(&pool), LIMIT);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let unmount = format!(" -m varve unmount {}, or kill ", point.display());
        assert!(out.status.code() == Some(1) && said.contains(&unmount), "{said}");
        let process = said.split(" -t ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a process");
        let mut command = Command::new("kill");
        if by_signal {
            command.arg(process);
        } else {
            command = Command::new("nsenter");
            command.args(["-t", process, "-m"]).arg(varve(&[]).get_program()).arg("unmount").arg(&point);
        }
        done(command);
        // It waits for one that is just closing.
        let checked = done({
            let mut command = varve(&["check", "--json"]);
            command.arg(&pool);
            command
        });
        assert!(checked.contains("\"clean\": true"), "{checked}");
    }
}

/// Goal: where the control socket of a mount is not to be seen, what to do is said, and it works. Method: a sync with a /run of its own; the same
/// by way of the mount's process.
#[test]
fn where_the_socket_is_not_seen_it_is_said_what_to_do() {
    if !can_unshare("where_the_socket_is_not_seen_it_is_said_what_to_do") {
        return;
    }
    let scratch = Scratch::new("own-run");
    let (pool, point) = (scratch.pool("pool", "64M"), scratch.path("mnt"));
    let mount = Mount::start(&pool, &point);
    let apart = |line: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("mount -t tmpfs none /run && {line}"), "sh"]);
        command.arg(varve(&[]).get_program()).arg(&point);
        command
    };
    let out = output_within(&mut apart("exec \"$1\" sync \"$2\""), LIMIT);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("nsenter -t PID -m varve"), "{said}");
    let line = format!("exec nsenter -t {} -m \"$1\" sync \"$2\"", mount.pid());
    done(apart(&line));
    mount.unmount();
}

/// Goal: in a plain chroot, whose table of mounts lacks what `/` lies in, all commands find a pool that is mounted there; in one into a snapshot of
/// it, which sees no mount of it at all, they say that. Method: trees of bind mounts, one of them in a pool.
#[test]
fn a_mount_is_found_in_a_chroot() {
    script(
        "chroot",
        r#"
libraries=$(echo /lib*/ | xargs -n 1 basename)
dirs() { for d in usr bin proc dev $libraries; do echo "$1/$d"; done; }
fill() {
    mkdir -p $(dirs "$1")
    for d in usr bin $libraries; do mount --bind /$d "$1/$d"; done
    mount -t proc proc "$1/proc"
}
R=$S/tree; mkdir -p "$R" "$R/run" "$R/tmp" "$R/srv/n"
fill "$R"; mount --bind /dev "$R/dev"
cp "$V" "$R/varve"
"$V" create "$R/pool" --size 64M
in_it() { chroot "$R" /varve "$@"; }
in_it mount /pool /srv/n
in_it subvolume create /srv/n/sub
mkdir -p $(dirs "$R/srv/n/sub")
touch "$R/srv/n/sub/varve"
in_it snapshot /srv/n/sub /srv/n/snap
in_it sync /srv/n
in_it stats /srv/n/sub > /dev/null
in_it stats --watch=1 --count=1 /srv/n > /dev/null
in_it stats /pool > /dev/null
said=$(in_it trim /srv/n 2>&1) || case $said in *"knows no discard"*) ;; *) fail "$said";; esac

N=$R/srv/n/snap
fill "$N"; mount --bind "$V" "$N/varve"
for command in sync stats "stats --watch=1" trim unmount "subvolume list" extents; do
    refuses 1 "cannot be seen from here" chroot "$N" /varve $command /
done
refuses 1 "cannot be seen from here" chroot "$N" /varve snapshot / /new
refuses 1 "is not inside a mounted pool" "$V" sync "$S"
umount -R "$N/usr" "$N/bin" "$N/proc" "$N/varve"; for d in $libraries; do umount "$N/$d"; done
in_it unmount /srv/n
in_it check /pool
"#,
    );
}

/// Goal: who unmounts while a mount namespace has the mount that no process shows, because the only one in it is in a chroot, reads that, who it is,
/// and that all is durable. Method: such a process; an unmount with a limit and one without, which ends when the process does.
#[test]
fn a_mount_that_a_chroot_hides_is_said() {
    script(
        "hidden",
        r#"
"$V" mount "$S/pool" "$S/mnt"
echo contents > "$S/mnt/file"
mkdir "$S/jail"
for d in /usr /bin /lib*; do mkdir "$S/jail$d"; mount --bind "$d" "$S/jail$d"; done
unshare --mount chroot "$S/jail" /usr/bin/sleep 60 &
sleeper=$!
for _ in $(seq 100); do [ "$(readlink /proc/$sleeper/root)" = "$S/jail" ] && break; sleep 0.1; done
"$V" unmount "$S/mnt" 2> "$S/said" &
unmount=$!
hears "$S/said" "the mount namespace of process $sleeper (sleep), in a chroot"
hears "$S/said" "What was written until now is durable"
[ "$(wc -l < "$S/said")" -eq 1 ] || fail "$(cat "$S/said")"
! grep -q "has written everything" "$S/said" || fail "$(cat "$S/said")"
kill $sleeper
wait $unmount || fail "$(cat "$S/said")"
"$V" check "$S/pool"

"$V" mount "$S/pool" "$S/mnt"
unshare --mount chroot "$S/jail" /usr/bin/sleep 60 &
sleeper=$!
for _ in $(seq 100); do [ "$(readlink /proc/$sleeper/root)" = "$S/jail" ] && break; sleep 0.1; done
refuses 1 "the mount namespace of process $sleeper (sleep), in a chroot" "$V" unmount --wait 0.1 "$S/mnt"
kill $sleeper
"$V" check "$S/pool"
"#,
    );
}
