//! mount(8), umount(8), fstab and remounts, through the helpers that `varve install-helper` writes.
//!
//! The helpers have to lie in /sbin. Each test therefore runs as a script in a mount namespace of its own, in which
//! they lie over what is there; processes left over end with the script's process namespace.

use std::fs;
use std::process::Command;

use crate::harness::*;

/// Before every script: `$V` is the program, `$S` the scratch directory, `$S/mnt` a mount point.
const PRELUDE: &str = r#"
# The pools of other tests, which this namespace has a copy of: it would keep who unmounts them waiting. The table is read before: bash goes
# back to the end of a line, and the lines that follow have moved.
while read -r _ point kind _; do
    [ "$kind" != fuse.varve ] || umount --lazy "$(printf %b "$point")" || true
done <<< "$(cat /proc/self/mounts)"
fail() { echo "FAILED: $*" >&2; exit 1; }
# refuses STATUS WORD COMMAND...: the command must fail so, with WORD in its message.
refuses() {
    local status=$1 word=$2; shift 2
    local message was=0; message=$("$@" 2>&1) || was=$?
    [ $was -eq $status ] || fail "status $was, not $status: $*: $message"
    case $message in *"$word"*) ;; *) fail "no '$word' in: $message";; esac
}
shows() { grep -F " $S/mnt " /proc/self/mountinfo | grep -qF -- "$1" || fail "no '$1' in: $(grep -F "$S/mnt" /proc/self/mountinfo)"; }
# A /dev without a system log.
own_dev() {
    mkdir "$S/dev"
    mount -t tmpfs none "$S/dev"
    for node in null zero urandom random fuse tty; do touch "$S/dev/$node"; mount --bind "/dev/$node" "$S/dev/$node"; done
    mount --move "$S/dev" /dev
}
# hears FILE TEXT: somebody writes it there soon.
hears() {
    for _ in $(seq 300); do grep -qsF "$2" "$1" && return; sleep 0.1; done
    fail "no '$2' in: $(cat "$1")"
}
# A /dev/fuse that everybody may open: no directory of ours need allow nodes.
open_fuse() {
    mkdir "$S/node"
    mount -t tmpfs none "$S/node"
    mknod "$S/node/fuse" c 10 229; chmod 666 "$S/node/fuse"
    mount --bind "$S/node/fuse" /dev/fuse
}
umask 022
mkdir "$S/root" "$S/mnt"
mount -t tmpfs none "$S/root"
mkdir "$S/root/sbin" "$S/root/work"
"$V" install-helper --root "$S/root" --program "$V"
SBIN=$(realpath /sbin)
mount -t overlay none -o "lowerdir=$SBIN,upperdir=$S/root/sbin,workdir=$S/root/work" "$SBIN" 2>/dev/null || {
    cp -a "$SBIN/." "$S/root/sbin"
    mount --bind "$S/root/sbin" "$SBIN"
}
# What mount(8) notes stays in here too.
[ ! -d /run/mount ] || mount -t tmpfs none /run/mount
"$V" create "$S/pool" --size 64M
"#;

/// Runs a script as root, in namespaces of its own.
pub fn script(test: &str, text: &str) {
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        say(&format!("\n*** SKIPPED {test}: only root can call mount(8) ***\n"));
        return;
    }
    let scratch = Scratch::new(test);
    let program = varve(&[]).get_program().to_owned();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["bash", "-euc", &format!("{PRELUDE}{text}")]);
    command.env("V", program).env("S", scratch.subdir("s")).env("LC_ALL", "C");
    println!("{}", succeed(&mut command));
}

/// Goal: mount(8) and umount(8) work as for any filesystem, and umount(8) returns when the pool is closed. Method: both,
/// with options that the kernel's table must show; the pool is checked and mounted again at once after each unmount;
/// a path with blanks; a pool by its relative name; what cannot be mounted has mount(8)'s exit status.
#[test]
fn mount_and_umount_work() {
    script(
        "mount_8",
        r#"
mount -t fuse.varve "$S/pool" "$S/mnt" -o "nodev,noatime,cache_size=8M,log=$S/log"
shows " rw,nodev,noatime - fuse.varve $S/pool rw,"
dd if=/dev/urandom of="$S/data" bs=1M count=8 status=none
cp "$S/data" "$S/mnt/data"
umount "$S/mnt"
grep -q "everything is durable" "$S/log" || fail "umount returned before the pool was closed"
[ ! -s /run/mount/utab ] || fail "left behind: $(cat /run/mount/utab)"
"$V" check "$S/pool"
mount -v -t fuse.varve "$S/pool" "$S/mnt" -o ro
cmp "$S/data" "$S/mnt/data"
touch "$S/mnt/new" 2>/dev/null && fail "a read-only mount was written to"
umount -l "$S/mnt"
mkdir "$S/a place"
cd "$S"
mount -t fuse.varve pool "a place"
cmp "$S/data" "a place/data"
umount "a place"
refuses 32 "does not exist" mount -t fuse.varve "$S/nothing" "$S/mnt"
refuses 1 "cache_size=SIZE" mount -t fuse.varve "$S/pool" "$S/mnt" -o frob
mount -s -t fuse.varve "$S/pool" "$S/mnt" -o frob
umount "$S/mnt"
"#,
    );
}

/// Goal: who unmounts a pool that is mounted in other places, too, is told where, and the pool is closed when the last of them
/// is gone; umount(8) does not wait for that for good. Method: a bind mount with a limit and by umount(8), and a process with
/// a mount table of its own; each time a file that must be there afterwards.
#[test]
fn other_places_are_named() {
    script(
        "elsewhere",
        r#"
mkdir "$S/other"
closed() { for _ in $(seq 300); do "$V" check "$S/pool" >/dev/null 2>&1 && return; sleep 0.1; done; fail "it stays open"; }
both() { "$V" mount "$S/pool" "$S/mnt"; mount --bind "$S/mnt" "$S/other"; echo "$1" > "$S/mnt/file"; }
both one
refuses 1 "mounted in other places, too: $S/other" "$V" unmount --wait 0.1 "$S/mnt"
[ "$(cat "$S/other/file")" = one ] || fail "the other place is gone"
umount -l "$S/other"
closed
both two
umount "$S/mnt" 2> "$S/said"
grep -qF "waiting until it is unmounted there: $S/other" "$S/said" || fail "$(cat "$S/said")"
umount "$S/other"
closed
"$V" mount "$S/pool" "$S/mnt"
[ "$(cat "$S/mnt/file")" = two ] || fail "it was not kept"
unshare --mount --propagation private sleep 1000 & sleeper=$!
until [ "$(cat /proc/$sleeper/comm)" = sleep ]; do sleep 0.1; done
"$V" unmount "$S/mnt" 2> "$S/heard" & waiter=$!
for _ in $(seq 300); do [ -s "$S/heard" ] && break; sleep 0.1; done
grep -qF "unmounted there: $S/mnt as process $sleeper (sleep) sees it" "$S/heard" || fail "$(cat "$S/heard")"
kill "$sleeper"
wait "$waiter" || fail "it did not end well: $(cat "$S/heard")"
"$V" check "$S/pool"
"#,
    );
}

fn has_perl(test: &str) -> bool {
    let has =
        Command::new("perl").args(["-MSocket", "-e", "1"]).status().is_ok_and(|status| status.success());
    if !has {
        say(&format!("\n*** SKIPPED {test}: no perl here ***\n"));
    }
    has
}

/// Goal: a system log that takes nothing stops nothing: the pool is mounted, used, unmounted and closed. Method: a socket in the place of
/// the log that nobody reads and that is full.
#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    if !has_perl("a_log_that_nobody_reads_stops_nothing") {
        return;
    }
    script(
        "full_log",
        r#"
own_dev
perl -MSocket -e '
    socket(L, PF_UNIX, SOCK_DGRAM, 0) or die; bind(L, sockaddr_un("/dev/log")) or die;
    socket(S, PF_UNIX, SOCK_DGRAM, 0) or die; connect(S, sockaddr_un("/dev/log")) or die;
    use Fcntl; fcntl(S, F_SETFL, O_NONBLOCK) or die;
    1 while defined send(S, "full", 0);
    open(my $told, ">", "$ENV{S}/full") or die; close($told); sleep 1000' & filler=$!
for _ in $(seq 300); do [ -e "$S/full" ] && break; sleep 0.1; done
[ -e "$S/full" ] || fail "the log is not full"
timeout 60 "$V" mount "$S/pool" "$S/mnt" || fail "it is not mounted"
echo one > "$S/mnt/file"
timeout 60 "$V" unmount "$S/mnt" || fail "it is not unmounted"
timeout 60 "$V" check "$S/pool" || fail "the pool stays open"
kill "$filler"
"#,
    );
}

/// Goal: a system log that begins anew, or for the first time, while a pool is mounted hears what is said from then on. Method: one that
/// ends and another one after the mount; then one that comes after the mount.
#[test]
fn a_log_that_begins_later_is_heard_by() {
    if !has_perl("a_log_that_begins_later_is_heard_by") {
        return;
    }
    script(
        "later_log",
        r#"
own_dev
# listen FILE: what the system log is told goes there.
listen() {
    rm -f /dev/log
    perl -MSocket -MIO::Handle -e '
        socket(L, PF_UNIX, SOCK_DGRAM, 0) or die; bind(L, sockaddr_un("/dev/log")) or die;
        open(my $heard, ">", $ARGV[0]) or die; $heard->autoflush(1);
        print $heard "listening\n";
        while (defined recv(L, my $line, 4096, 0)) { print $heard "$line\n" }' "$1" & listener=$!
    hears "$1" listening
}
no_longer() { kill "$listener"; wait "$listener" || true; }
listen "$S/first"
"$V" mount "$S/pool" "$S/mnt"
hears "$S/first" "mounted $S/pool at $S/mnt"
no_longer
listen "$S/second"
"$V" unmount "$S/mnt"
hears "$S/second" "unmounted; everything is durable"
no_longer
rm /dev/log
"$V" mount "$S/pool" "$S/mnt"
listen "$S/third"
"$V" unmount "$S/mnt"
hears "$S/third" "unmounted; everything is durable"
no_longer
"$V" check "$S/pool"
"#,
    );
}

/// Goal: a log file is rotated in either way, and SIGHUP, which logrotate sends after the one, ends no mount that is in the background. Method:
/// the file is copied and cut; then renamed, and the signal sent; what is said later is in the new file alone. The same signal to
/// a mount without a file. What is said before the mount answers, here that the pool was recovered after a kill, is in the file, too.
#[test]
fn a_log_file_is_rotated() {
    script(
        "rotated_log",
        r#"
cd "$S"
"$V" mount --log log pool mnt
varve=$(pgrep -x varve)
hears log "mounted $S/pool at $S/mnt"
cp log log.1
: > log
mv log log.2
: > log.2
kill -HUP "$varve"
hears log "signal 1"
echo kept > mnt/file
[ "$(stat -f -c %T mnt)" = fuseblk ] || [ "$(stat -f -c %T mnt)" = fuse ] || fail "it is not mounted: $(cat log log.2)"
"$V" unmount mnt
hears log "unmounted; everything is durable"
[ ! -s log.2 ] || fail "it goes on in the old file: $(cat log.2)"
"$V" mount pool mnt
kill -HUP $(pgrep -x varve)
sleep 0.5
[ "$(cat mnt/file)" = kept ] || fail "it was not kept"
echo more > mnt/file
"$V" sync mnt
kill -9 $(pgrep -x varve)
umount -l mnt
"$V" mount --log log.3 pool mnt 2>said
hears log.3 "mounted $S/pool at $S/mnt"
grep -q "recovered .* transactions" said || fail "the terminal is not told: $(cat said)"
head -1 log.3 | grep -q "recovered .* transactions" || fail "not the first of: $(cat log.3)"
"$V" unmount mnt
"$V" check pool
"#,
    );
}

/// Goal: `mount -o remount` changes what it names, the kernel enforces it, and what was written is durable when a mount
/// has become read-only. Method: flags there and back, seen in the kernel's table; a write to a read-only mount; a file
/// open for writing; the daemon killed right after going read-only, with nothing synced before; then the same beginning
/// with a read-only mount.
#[test]
fn remount_works() {
    script(
        "remount",
        r#"
mount -t fuse.varve "$S/pool" "$S/mnt" -o noatime,nodev
echo kept > "$S/mnt/file"
mount -o remount,ro "$S/mnt"
shows " ro,nodev,noatime - fuse.varve $S/pool ro,"
(echo lost > "$S/mnt/file") 2>/dev/null && fail "a read-only mount was written to"
mount -o remount,rw,noexec,relatime "$S/mnt"
shows " rw,nodev,noexec,relatime - fuse.varve $S/pool rw,"
echo more >> "$S/mnt/file"
exec 7>>"$S/mnt/file"
refuses 32 "open for writing" mount -o remount,ro "$S/mnt"
shows " rw,nodev,noexec,relatime "
exec 7>&-
refuses 1 "frob" mount -o remount,frob "$S/mnt"
"$V" create "$S/another" --size 64M
for named in "$S/nothing" "$S/another"; do
    refuses 1 "not $named" "$V" mount "$named" "$S/mnt" -o remount,ro
    # Without its type and with both names mount(8) asks the kernel itself, and us not at all.
    refuses 32 "not $named" mount -t fuse.varve -o remount,ro "$named" "$S/mnt"
    shows " rw,nodev,noexec,relatime "
done
ln -s pool "$S/link"
"$V" mount "$S/link" "$S/mnt" -o remount,rw
"$V" mount none "$S/mnt" -o remount,rw
"$V" mount "$S/pool" "$S/mnt" -o remount,ro
kill -9 $(pgrep -x varve)
umount -l "$S/mnt"
"$V" mount "$S/pool" "$S/mnt" -o ro
printf 'kept\nmore\n' | cmp - "$S/mnt/file"
mount -o remount,rw "$S/mnt"
shows " rw,relatime - fuse.varve $S/pool rw,"
echo new > "$S/mnt/file"
mount -o remount,ro "$S/mnt"
"$V" mount "$S/pool" "$S/mnt" -o remount,rw
echo newer > "$S/mnt/file"
umount "$S/mnt"
"$V" check "$S/pool"
refuses 1 "nothing to remount" "$V" mount "$S/pool" "$S/mnt" -o remount,ro
"#,
    );
}

/// Goal: a lock that any user can take keeps no pool from being mounted, nor from being closed. Method: the lock of libmount's notes is held
/// from before the mount until after the unmount.
#[test]
fn a_lock_on_notes_is_not_waited_for() {
    script(
        "notes",
        r#"
mount -t tmpfs none /run
mkdir /run/mount
touch /run/mount/utab.lock
(exec 9>/run/mount/utab.lock; flock 9; exec sleep 1000) &
LOCKER=$!
until ! flock -n /run/mount/utab.lock true; do sleep 0.1; done
timeout 60 "$V" mount "$S/pool" "$S/mnt" 2> "$S/said" || fail "the mount waits for the lock"
grep -q "umount(8) of .* may return before" "$S/said" || fail "nothing is said: $(cat "$S/said")"
echo kept > "$S/mnt/file"
timeout 60 "$V" unmount "$S/mnt" || fail "the unmount waits for the lock"
! flock -n /run/mount/utab.lock true || fail "nobody holds the lock any more"
# The note is made as soon as it can be.
"$V" mount "$S/pool" "$S/mnt"
kill $LOCKER
for i in $(seq 100); do grep -q "TARGET=$S/mnt " /run/mount/utab && break; sleep 0.1; done
grep -q "TARGET=$S/mnt " /run/mount/utab || fail "no note is made later"
umount "$S/mnt"
! grep -q "TARGET=$S/mnt " /run/mount/utab || fail "the note stays"
"$V" check "$S/pool"
"$V" mount "$S/pool" "$S/mnt"
[ "$(cat "$S/mnt/file")" = kept ] || fail "it was not kept"
"$V" unmount "$S/mnt"
"#,
    );
}

/// Goal: a line of fstab works, with the words it has for other programs. Method: such a file, mounted by directory,
/// by everything in it, remounted (where mount(8) hands over the options of the file and those of the kernel's table).
#[test]
fn fstab_works() {
    script(
        "fstab",
        r#"
echo "$S/pool $S/mnt fuse.varve defaults,nofail,_netdev,user,x-systemd.device-timeout=5,x-systemd.mount-timeout=infinity,cache_size=16M,comment=x 0 0" > "$S/fstab"
mount -T "$S/fstab" -a
shows " rw,nosuid,nodev,noexec,relatime - fuse.varve "
mount -T "$S/fstab" -o remount,ro "$S/mnt"
shows " ro,"
umount "$S/mnt"
mount -T "$S/fstab" "$S/mnt"
umount "$S/mnt"
echo "$S/pool $S/mnt fuse.varve sync,noexec 0 0" > "$S/fstab"
durable() { "$V" stats "$S/mnt" | grep "durable at once: $1" || fail "not $1: $("$V" stats "$S/mnt" | head -4)"; }
mount -T "$S/fstab" "$S/mnt"
shows " rw,noexec,relatime - fuse.varve $S/pool rw,sync,user_id=0"
durable everything
mount -o remount,async,exec "$S/mnt"
shows " rw,relatime - fuse.varve $S/pool rw,user_id=0"
"$V" stats "$S/mnt" | grep "durable at once" && fail "still durable at once"
mount -o remount,dirsync "$S/mnt"
durable names
mount -o remount,nosuid "$S/mnt"
durable names
umount "$S/mnt"
mount -t fuse.varve -o dirsync "$S/pool" "$S/mnt"
shows " - fuse.varve $S/pool rw,dirsync,user_id=0"
durable names
"$V" mount -o remount,nodirsync none "$S/mnt" 2>&1 | grep "dirsync stays as it is" || fail "it is not said"
"$V" mount -o remount,log=/elsewhere none "$S/mnt" 2>&1 | grep "log stays as it is" || fail "it is not said of the log"
said=$(for list in rings norings; do "$V" mount -o remount,$list none "$S/mnt" 2>&1; done)
[ "$(grep -c "rings stays as it is" <<< "$said")" = 1 ] || fail "it is not said of rings, or of what is so: $said"
durable names
umount "$S/mnt"
"#,
    );
}

/// Goal: install-helper writes and removes its own files and no others, and says which. Method: below a directory:
/// install, install again, remove, remove again; a stranger's file in place of one.
#[test]
fn install_helper_touches_only_its_own() {
    let scratch = Scratch::new("install");
    let root = scratch.subdir("root");
    let install = |more: &[&str]| output(varve(&["install-helper", "--root"]).arg(&root).args(more));
    let names = ["sbin/mount.fuse.varve", "sbin/umount.fuse.varve", "etc/systemd/system/varve@.service"];
    for _ in 0..2 {
        let out = install(&["--program", "/opt/varve"]);
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{out:?}");
        for name in names {
            let text = fs::read_to_string(root.join(name)).expect("it says that it wrote this");
            assert!(text.contains("/opt/varve"), "{text}");
            assert!(!text.contains("@PROGRAM@") && !text.contains("@MARK@"), "{text}");
            assert!(said.contains(name), "{name} is not named in {said}");
        }
        let unit = fs::read_to_string(root.join(names[2])).expect("the unit");
        assert!(unit.lines().any(|line| line == "TimeoutStartSec=infinity"), "{unit}");
        assert!(said.contains("note: they run /opt/varve, where there is no program now"), "{said}");
    }
    let there = root.join("opt/there");
    fs::create_dir_all(there.parent().expect("a directory")).expect("a directory");
    fs::copy("/bin/true", &there).expect("a program");
    let out = install(&["--program", "/opt/there"]);
    assert!(out.status.success() && !String::from_utf8_lossy(&out.stdout).contains("note:"), "{out:?}");
    assert!(install(&["--remove"]).status.success());
    assert!(names.iter().all(|name| !root.join(name).exists()));
    assert!(install(&["--remove"]).status.success(), "nothing to remove is no failure");

    fs::write(root.join(names[1]), "a stranger's").expect("the directory is there");
    for more in [&[][..], &["--remove"]] {
        let out = install(more);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(names[1]), "{out:?}");
    }
    assert_eq!(fs::read_to_string(root.join(names[1])).expect("still there"), "a stranger's");
    assert!(!root.join(names[0]).exists(), "it refuses before it writes anything");
}
