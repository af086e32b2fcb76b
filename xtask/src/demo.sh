# The main job: a pool is created, mounted and used, its daemon is killed, and what was synced is there again.
set -euo pipefail
dir=$(mktemp -d)
daemon=
finish() {
    if [ -n "$daemon" ]; then kill -KILL "$daemon" 2>/dev/null || true; fi
    if mountpoint -q "$dir/mnt" 2>/dev/null || ! stat "$dir/mnt" >/dev/null 2>&1; then
        umount -l "$dir/mnt" 2>/dev/null || fusermount3 -u -z "$dir/mnt" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$dir"
}
trap finish EXIT
say() { printf '\n   %s\n' "$*"; }
up() {
    "$V" mount --foreground pool.img mnt & daemon=$!
    for _ in $(seq 200); do mountpoint -q mnt && return; kill -0 "$daemon"; sleep 0.05; done
    echo "the mount did not answer within 10 s"; exit 1
}
cd "$dir"

say "create a pool of 256 MiB in a file, and mount it"
"$V" create pool.img --size 256M
mkdir mnt
up
df -h mnt

say "use it: a git repository with 500 files"
mkdir mnt/work
(
    cd mnt/work
    git init -q .
    for i in $(seq 500); do mkdir -p "d$((i % 20))"; seq "$i" $((i + 200)) > "d$((i % 20))/file$i"; done
    git add -A
    git -c user.name=demo -c user.email=demo@localhost commit -q -m "five hundred files"
    git fsck --strict
)
cp -a mnt/work before

say "sync, then kill the daemon without a word (SIGKILL)"
"$V" sync mnt
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
daemon=
umount -l mnt 2>/dev/null || fusermount3 -u -z mnt

say "mount again: everything that was synced is there"
up
diff -r --no-dereference before mnt/work
git -C mnt/work fsck --strict
git -C mnt/work status --short
say "unmount, and check every block"
"$V" unmount mnt
wait "$daemon" || true
daemon=
"$V" check pool.img
say "demo: done"
