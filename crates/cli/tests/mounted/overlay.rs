//! overlayfs with its upper and its work directory in a pool.

use std::process::Command;

use crate::harness::*;
use crate::helper::script;

/// Whether overlayfs can be mounted, tried over directories of a tmpfs; says loudly that `test` is skipped when not.
fn can_overlay(test: &str) -> bool {
    let scratch = Scratch::new("overlay-try");
    let text = r#"mount -t tmpfs none "$0" && cd "$0" && mkdir l u w m && mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m"#;
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "--propagation", "private", "sh", "-c", text]).arg(scratch.subdir("try"));
    let possible = output(&mut tried).status.success();
    if !possible {
        say(&format!("\n*** SKIPPED {test}: overlayfs cannot be mounted here ***\n"));
    }
    possible
}

/// What both scripts begin with: the lower tree, twice, the second to be changed without overlayfs, and what compares the two.
const TREES: &str = r#"
mkdir "$S/lower" "$S/plain" "$S/merged"
(
cd "$S/lower"
for d in a b c d/e/f; do mkdir -p $d; for n in 1 2 3 4 5; do echo "$d $n" > $d/file$n; done; done
head -c 3000000 /dev/urandom > large
truncate -s 1M a/sparse
# No hard links: overlayfs parts two names of one lower file when it copies one of them up.
ln -s large link; mkfifo fifo
setfattr -n user.name -v value b/file1
chown 7:8 b/file2; chmod 4750 b/file3; touch -d 2001-02-03 c/file1
)
cp -a "$S/lower/." "$S/plain"
lower=$(cd "$S/lower"; find . -type f | sort | xargs sha256sum | sha256sum)
mount_merged() {
    mount -t overlay overlay -o "lowerdir=$S/lower,upperdir=$S/mnt/upper,workdir=$S/mnt/work$1" "$S/merged"
    grep -F " $S/merged " /proc/self/mountinfo | grep -q " rw," || fail "it is read-only"
}
shown() { (cd "$1"; find . ! -type d -printf '%P %M %U:%G %s %l\n' | sort; find . -type d -printf '%P/ %M %U:%G\n' | sort); }
same() {
    shown "$S/plain" > "$S/shown.plain"; shown "$S/merged" > "$S/shown.merged"
    diff "$S/shown.plain" "$S/shown.merged" || fail "$1: other names or attributes"
    (cd "$S/plain"; find . -type f -print0 | sort -z | xargs -0 sha256sum) > "$S/sums"
    (cd "$S/merged"; sha256sum --quiet -c "$S/sums") || fail "$1: other contents"
    [ "$lower" = "$(cd "$S/lower"; find . -type f | sort | xargs sha256sum | sha256sum)" ] || fail "$1: the lower tree has changed"
}
both() { for tree in plain merged; do (cd "$S/$tree"; eval "$1") || fail "$1 in $tree"; done; same "$1"; }
whiteout() { [ "$(stat -c '%F %t:%T' "$S/mnt/upper/$1")" = "character special file 0:0" ] || fail "$1 is no whiteout"; }
again() {
    umount "$S/merged"; "$V" unmount "$S/mnt"; "$V" check "$S/pool"; "$V" mount "$S/pool" "$S/mnt"; mount_merged "$1"
    same "mounted again"
}
"$V" mount "$S/pool" "$S/mnt"
mkdir "$S/mnt/upper" "$S/mnt/work"
"#;

/// Goal: a pool holds the upper layer of overlayfs, with whiteouts, opaque directories and copied-up files, and keeps them.
/// Method: each change once, on the overlay and on a plain copy of its lower tree, which must look alike after each; whiteouts and
/// the attribute of opaque directories are looked for in the upper layer; then everything is unmounted and mounted again.
#[test]
fn a_pool_is_an_upper_layer() {
    let test = "a_pool_is_an_upper_layer";
    if !rustix::process::geteuid().is_root() || !can_overlay(test) {
        say(&format!("\n*** SKIPPED {test}: only root mounts overlayfs ***\n"));
        return;
    }
    let text = r#"
mount_merged ""
same "nothing changed"
both 'echo new > new; mkdir -p newdir/below; echo x > newdir/below/x'
both 'echo more >> a/file1'
both 'printf X | dd of=large bs=1 seek=2000000 conv=notrunc status=none'
both 'rm a/file2'; whiteout a/file2
both 'mv a/file3 moved'; whiteout a/file3
both 'mv b/file4 b/file5'; whiteout b/file4
both 'mv c/file1 c/renamed'; whiteout c/file1
both 'rm -r d/e'; whiteout d/e
both 'mkdir d/e; echo again > d/e/file9'
[ "$(getfattr --only-values -n trusted.overlay.opaque "$S/mnt/upper/d/e")" = y ] || fail "d/e is not opaque"
both 'rm b/file1; echo instead > b/file1'
both 'chmod 640 b/file2; chown 9:10 b/file3; touch -d 1999-01-01 c/file2'
both 'setfattr -n user.other -v value c/file3; getfattr --only-values -n user.other c/file3 > /dev/null'
both 'ln c/file3 c/linked; truncate -s 5 c/file4; rm link; ln -s elsewhere link'
both 'mv c cc 2>/dev/null || exit 1; mv cc/file5 .'
both 'mv newdir/below below; rmdir newdir; mv -T below newdir'
python3 - "$S/merged" <<'X' 2>/dev/null || true
import os, sys
fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b"nameless"); os.close(fd)
X
same "a nameless file"
again ""
umount "$S/merged"
mount_merged ",redirect_dir=on"
both 'mkdir -p top; mv a top/a; mv top/a/file4 top'; whiteout a
getfattr -n trusted.overlay.redirect "$S/mnt/upper/top/a" > /dev/null || fail "top/a was copied"
again ",redirect_dir=on"
umount "$S/merged"
"#;
    script("overlay", &format!("{TREES}{text}"));
}

/// Goal: what lets a program run as somebody else survives that overlayfs copies it into a pool, and goes when it does elsewhere.
/// Method: the same lower tree below two overlays, the upper layer of one in a pool, of the other in memory; files of several owners
/// with set-id bits and capabilities, each changed in one way, by root and by somebody else; both overlays must look alike, also
/// when the pool has been mounted again.
#[test]
fn set_ids_reach_an_upper_layer() {
    let test = "set_ids_reach_an_upper_layer";
    if !rustix::process::geteuid().is_root() || !can_overlay(test) {
        say(&format!("\n*** SKIPPED {test}: only root mounts overlayfs ***\n"));
        return;
    }
    let text = r#"
mkdir "$S/lower" "$S/ram" "$S/in-ram" "$S/in-pool"
mount -t tmpfs ram "$S/ram"
"$V" mount "$S/pool" "$S/mnt"
mkdir "$S/ram/upper" "$S/ram/work" "$S/mnt/upper" "$S/mnt/work"
chmod 777 "$S/lower" "$S/ram/upper" "$S/mnt/upper"
# CAP_NET_RAW, permitted and effective.
capability=0x0100000200200000000000000000000000000000
for change in ln mv touch chmod chgrp chown append mv-by-another; do
    for owner in 0:0 0:8 7:0 7:8; do
        for bits in 4755 2755 6711 2644 755; do
            file=$S/lower/$change,$owner,$bits
            echo "$file" > "$file"
            chown "$owner" "$file"; chmod "$bits" "$file"
            [ $bits = 6711 ] || setfattr -n security.capability -v $capability "$file"
        done
    done
done
mount_both() {
    mount -t overlay one -o "lowerdir=$S/lower,upperdir=$S/ram/upper,workdir=$S/ram/work" "$S/in-ram"
    mount -t overlay two -o "lowerdir=$S/lower,upperdir=$S/mnt/upper,workdir=$S/mnt/work" "$S/in-pool"
}
shown() { (cd "$1"; find . -type f -printf '%P %m %U:%G\n' | sort; getfattr -R -n security.capability -e hex . 2> /dev/null | tr '\n' ' ' | sed 's/# file/\n&/g' | sort); }
same() {
    shown "$S/in-ram" > "$S/shown.ram"; shown "$S/in-pool" > "$S/shown.pool"
    diff "$S/shown.ram" "$S/shown.pool" || fail "$1: they differ"
}
change() {
    for file in "$1",*; do
        case $1 in
            ln) ln "$file" "$file.linked";;
            mv) mv "$file" "$file.moved";;
            touch) touch -d 2001-02-03 "$file";;
            chmod) chmod u-w "$file";;
            chgrp) chgrp 9 "$file";;
            chown) chown 9 "$file";;
            append) echo more >> "$file";;
            mv-by-another) setpriv --reuid 7 --regid 8 --clear-groups -- mv "$file" "$file.moved";;
        esac
    done
}
mount_both
same "nothing changed"
[ "$(grep -c "security.capability" "$S/shown.pool")" -eq 128 ] || fail "they have no capabilities"
for change in ln mv touch chmod chgrp chown append mv-by-another; do
    for tree in in-ram in-pool; do (cd "$S/$tree"; change $change); done
    same "$change"
done
[ "$(find "$S/mnt/upper" -name 'ln,*,4755' -perm -4000 | wc -l)" -eq 4 ] || fail "they were not copied up"
umount "$S/in-ram" "$S/in-pool"; "$V" unmount "$S/mnt"; "$V" check "$S/pool"; "$V" mount "$S/pool" "$S/mnt"; mount_both
same "mounted again"
umount "$S/in-pool"
"#;
    script("overlay-set-ids", text);
}

/// Goal: whatever order changes come in, overlay and plain tree stay alike. Method: some hundred random changes on both by one
/// seed, compared now and then, and mounted again in the middle. No hard links: overlayfs keeps the entry of one name, and when
/// that goes from an upper layer on FUSE (any), the others give ESTALE until the kernel forgets them.
#[test]
fn an_upper_layer_takes_random_changes() {
    let test = "an_upper_layer_takes_random_changes";
    if !rustix::process::geteuid().is_root() || !can_overlay(test) {
        say(&format!("\n*** SKIPPED {test}: only root mounts overlayfs ***\n"));
        return;
    }
    let text = r#"
mount_merged ",redirect_dir=on"
# Names are drawn from a few, so that they come again; what fails must fail in both.
path() { local p=""; for _ in $(seq $((1 + RANDOM % 3))); do p=$p/$(set -- a b c d e f file1 file2 large; shift $((RANDOM % 9)); echo $1); done; echo .$p; }
step() {
    case $((RANDOM % 9)) in
        0|1) echo "echo $1 >> $(path)";;
        2) echo "rm $(path)";;
        3) echo "rm -r $(path)";;
        4|5) echo "mv -T $(path) $(path)";;
        6) echo "mkdir -p $(path)";;
        7) echo "cp $(path) $(path)";;
        8) echo "chmod 7$((RANDOM % 8))0 $(path)";;
    esac
}
RANDOM=$SEED
for number in $(seq "$STEPS"); do
    change=$(step $number)
    was=""
    for tree in plain merged; do
        status=0; (cd "$S/$tree"; eval "$change") > "$S/said" 2>&1 || status=1
        [ -z "$was" ] || [ "$was" = $status ] || fail "step $number, $change: $was in the plain tree, $status in $tree: $(cat "$S/said")"
        was=$status
    done
    [ $((number % 40)) -ne 0 ] || same "step $number"
    [ $((number % 150)) -ne 0 ] || again ",redirect_dir=on"
done
again ",redirect_dir=on"
umount "$S/merged"
"#;
    let (seed, steps) = (seed() % 32_768, scale("VARVE_TEST_OVERLAY", 300, 5_000));
    script("overlay-random", &format!("SEED={seed} STEPS={steps}\n{TREES}{text}"));
}
