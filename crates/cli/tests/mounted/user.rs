//! Mounts of users other than root, through fusermount3, and what a daemon must survive.

use crate::helper::script;

/// Goal: a user mounts a pool of his own, uses it, finds it closed to others, unmounts it, and mounts over what a kill
/// left with one command. Method: user `nobody`, through the program alone; options that are forced on him are seen in
/// the kernel's table; letting others in is refused until /etc/fuse.conf allows it.
#[test]
fn users_mount_through_fusermount() {
    script(
        "user",
        r#"
cp "$V" "$S/varve"; V=$S/varve
open_fuse
touch "$S/fuse.conf"; [ -e /etc/fuse.conf ] || fail "fuse3 installs /etc/fuse.conf"
mount --bind "$S/fuse.conf" /etc/fuse.conf
U=$S/user; mkdir "$U"; chown nobody "$U"
as() { (cd "$U"; exec setpriv --reuid nobody --regid 65534 --clear-groups -- "$@"); }
user_id=$(id -u nobody)
as "$V" create pool --size 64M
as mkdir mnt
as "$V" mount pool mnt
at() { grep -F " $U/mnt " /proc/self/mountinfo; }
case $(at) in *" rw,nosuid,nodev,relatime "*" fuse.varve $U/pool "*"user_id=$user_id"*) ;; *) fail "$(at)";; esac
as sh -c 'echo mine > mnt/file'
as "$V" sync mnt
as "$V" stats mnt > /dev/null
cat "$U/mnt/file" 2>/dev/null && fail "root was let in without allow_other"
as cmp mnt/file - <<< mine

# Killed: one command mounts it again.
kill -9 $(pgrep -x varve)
as "$V" mount pool mnt
as cmp mnt/file - <<< mine
as "$V" unmount mnt
[ -z "$(at)" ] || fail "still there: $(at)"

# Root sees that a user's mount is dead although the user lets nobody in, and that a living one is not.
as "$V" mount pool mnt
refuses 1 "already" as "$V" mount pool mnt
refuses 1 "already" "$V" mount "$U/pool" "$U/mnt"
kill -9 $(pgrep -x varve)
refuses 1 "had ended" "$V" unmount "$U/mnt"
[ -z "$(at)" ] || fail "still there: $(at)"
as "$V" mount pool mnt
kill -9 $(pgrep -x varve)
"$V" mount "$U/pool" "$U/mnt" 2>&1 | grep "took away a dead mount" || fail "the dead mount is in the way"
cmp "$U/mnt/file" - <<< mine
"$V" unmount "$U/mnt"

as "$V" mount pool mnt -o sync
case $(at) in *" rw,sync,user_id="*) ;; *) fail "$(at)";; esac
as sh -c 'echo durable > mnt/durable'
kill -9 $(pgrep -x varve)
as "$V" mount pool mnt -o dirsync
case $(at) in *" rw,dirsync,user_id="*) ;; *) fail "$(at)";; esac
as cmp mnt/durable - <<< durable
as "$V" unmount mnt

# Refused before the pool is opened for writing: others may go on reading it.
as "$V" mount pool mnt -o ro
refuses 1 "only root" as "$V" mount pool mnt -o remount,rw
as "$V" check pool
as "$V" unmount mnt

refuses 1 user_allow_other as "$V" mount pool mnt -o allow_other
[ -z "$(at)" ] || fail "refused, and left behind: $(at)"
echo user_allow_other > "$S/fuse.conf"
as "$V" mount pool mnt -o allow_other,noatime,nodiratime,noexec
case $(at) in *" rw,nosuid,nodev,noexec,noatime "*) ;; *) fail "$(at)";; esac
cmp "$U/mnt/file" - <<< mine
refuses 1 "only root" as "$V" mount pool mnt -o remount,ro

# The end of one mount leaves the next on the same directory alone.
as "$V" create other --size 64M
as bash -c 'exec 7< mnt/file; fusermount3 -u -z mnt; "$0" mount other mnt 7<&-; echo second > mnt/second; cat <&7; exec 7<&-' "$V"
for i in $(seq 2400); do [ $(pgrep -cx varve) -eq 1 ] && break; sleep 0.05; done
[ $(pgrep -cx varve) -eq 1 ] || fail "the first mount has not ended: $(pgrep -ax varve)"
as cmp mnt/second - <<< second
as "$V" unmount mnt
as "$V" check pool
"#,
    );
}

/// Goal: who is started with SIGCHLD ignored, as some supervisors start programs, mounts and unmounts all the same, and is told why if not.
/// Method: a user's mount, which another program makes and ends; and a mount of nothing.
#[test]
fn a_user_mounts_with_children_ignored() {
    script(
        "children",
        r#"
cp "$V" "$S/varve"; V=$S/varve
open_fuse
U=$S/user; mkdir "$U"; chown nobody "$U"
as() { (cd "$U"; exec setpriv --reuid nobody --regid 65534 --clear-groups -- env --ignore-signal=CHLD "$@"); }
as "$V" create pool --size 64M
as mkdir mnt
as "$V" mount pool mnt || fail "it is not mounted"
as cp /etc/passwd mnt/file
as "$V" unmount mnt
! grep -F " $U/mnt " /proc/self/mountinfo || fail "it is still mounted"
as "$V" mount pool mnt
as cmp /etc/passwd mnt/file
as "$V" unmount mnt
as "$V" check pool
echo "no pool" > "$U/other"
said=$(as "$V" mount other mnt 2>&1) && fail "it is mounted"
case $said in *"wait for"*) fail "$said";; esac
! grep -F " $U/mnt " /proc/self/mountinfo || fail "it is mounted"
"#,
    );
}

/// Goal: the end of the terminal that a mount was made from is not the mount's. Method: a pseudoterminal whose session
/// ends as soon as `varve mount` has returned; the mount answers, and its messages are in the file it was given.
#[test]
fn the_daemon_survives_its_terminal() {
    script(
        "terminal",
        r#"
script -qec "'$V' mount '$S/pool' '$S/mnt' --log '$S/log'" /dev/null < /dev/null
sleep 0.2
echo x > "$S/mnt/file"
grep -q "mounted $S/pool" "$S/log" || fail "no message in the log file"
[ "$(ps -o tty= -p $(pgrep -x varve))" = "?" ] || fail "the daemon has a terminal"
"$V" unmount "$S/mnt"
grep -q "everything is durable" "$S/log" || fail "no last message in the log file"
"#,
    );
}

/// Goal: a user's mount goes on answering `varve` after the user's runtime directory has gone, which systemd removes at the last logout.
/// Method: such a directory, in which the socket is; it is removed, and comes again with the next login.
#[test]
fn the_control_socket_outlives_a_logout() {
    script(
        "logout",
        r#"
cp "$V" "$S/varve"; V=$S/varve
open_fuse
U=$S/user; mkdir "$U"; chown nobody "$U"
as() { (cd "$U"; exec setpriv --reuid nobody --regid 65534 --clear-groups -- "$@"); }
run=/run/user/$(id -u nobody)
mkdir -p /run/user; mount -t tmpfs none /run/user
log_in() { mkdir -m 700 "$run"; chown nobody "$run"; }
log_in
as "$V" create pool --size 64M
as mkdir mnt
as "$V" mount pool mnt --log "$U/log"
socket=$(basename "$run"/varve/*.sock)
[ -S "$run/varve/$socket" ] || fail "no socket in $run"
rm -r "$run"
for _ in $(seq 300); do as "$V" sync mnt 2>/dev/null && break; sleep 0.1; done
as "$V" sync mnt
as "$V" snapshot mnt mnt/snapshot
log_in
as "$V" stats mnt > /dev/null
"$V" unmount "$U/mnt"
! find "$run" "/tmp/varve-$(id -u nobody)" -name "$socket" | grep . || fail "the socket is left"
[ "$(grep -c "control socket" "$U/log")" -eq 1 ] || fail "$(cat "$U/log")"
"#,
    );
}

/// Goal: users who are root in user namespaces of their own each have a control socket, also where another has made the directories that it may
/// lie in. Method: two such users with one /tmp, one after the other; a third whose directory was taken; a namespace in a namespace.
#[test]
fn users_in_namespaces_leave_each_other_room() {
    script(
        "rootless",
        r#"
cp "$V" "$S/varve"
# All this lies in /tmp, over which something else will lie.
mount --bind "$S" /mnt; S=/mnt
open_fuse
chmod 755 "$S"; mkdir -m 1777 "$S/tmp"
as() { local user=$1; shift; (cd "$S"; exec setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"); }
as 1234 unshare -Urm true || { echo "SKIPPED: users cannot make namespaces here"; exit 0; }
# used USER NAMESPACE...: mounts a pool of the user's there, and does what needs the socket.
used() {
    local user=$1; shift
    mkdir -p "$S/$user"; chown "$user" "$S/$user"
    as "$user" "$@" bash -euc '
        mount --bind "$0/tmp" /tmp; cd "$0/$1"; V=$0/varve
        "$V" create pool --size 64M > /dev/null; mkdir -p mnt
        said=$("$V" mount pool mnt 2>&1); case $said in *"control socket"*) echo "$said"; exit 1;; esac
        "$V" subvolume create mnt/sub
        "$V" sync mnt
        "$V" unmount mnt
        "$V" check pool > /dev/null
        rm pool' "$S" "$user" || fail "user $user, $*"
}
used 1234 unshare -Urm
used 1235 unshare -Urm
as 1234 mkdir -p -m 700 "$S/tmp/varve-1236" "$S/tmp/varve-1236-1" "$S/tmp/varve-0"
used 1236 unshare -Urm
used 1237 unshare -Ur unshare -Urm
used 1236 unshare -Ur unshare -Urm
"#,
    );
}

/// Goal: who finds his pool in use by a mount in a user namespace reads how to end that from outside, and it works, for root and for the
/// user. Method: such a mount, whose maker has ended; a check outside; what it says is done.
#[test]
fn a_mount_in_a_user_namespace_is_ended_from_outside() {
    script(
        "rootless-outside",
        r#"
cp "$V" "$S/varve"; chmod 755 "$S"
# A /tmp for the socket, and all this, which lies in /tmp, elsewhere.
mount --bind "$S" /mnt; S=/mnt
mkdir -m 1777 "$S/tmp"; mount --bind "$S/tmp" /tmp
open_fuse
as() { local user=$1; shift; (cd "$S"; exec setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"); }
as 1234 unshare -Urm true || { echo "SKIPPED: users cannot make namespaces here"; exit 0; }
mkdir -p "$S/user/mnt"; chown -R 1234 "$S/user"
as 1234 "$S/varve" create user/pool --size 64M
export PATH=$S:$PATH
for who in 0 1234; do
    as 1234 unshare -Urm varve mount user/pool user/mnt
    said=$(as "$who" varve check user/pool 2>&1) && fail "it is not in use: $said"
    advice=${said#*To end that: }; advice=${advice%%, or kill*}
    case $advice in "nsenter -t "*" -U "*"-m varve unmount $S/user/mnt") ;; *) fail "$said";; esac
    as "$who" $advice
    as "$who" varve check user/pool
done
"#,
    );
}
