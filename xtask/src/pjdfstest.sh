# Runs as process 1 of namespaces that cargo xtask pjdfstest has made.
# Everything big lies in memory and is gone with the namespace; users other than root must be able to get in.
D=$S/memory
mkdir "$D"
mount -t tmpfs none "$D"
chmod 755 "$S" "$D"
mkdir "$D/varve" "$D/ext4" "$D/second" "$D/second/ext4" "$D/second/varve" "$D/root"

# mount(8) finds helpers in /sbin only: ours lie over it, in this namespace.
mkdir "$D/root/sbin" "$D/root/work"
"$V" install-helper --root "$D/root" --program "$V" > /dev/null
SBIN=$(realpath /sbin)
mount -t overlay none -o "lowerdir=$SBIN,upperdir=$D/root/sbin,workdir=$D/root/work" "$SBIN" 2> /dev/null || {
    cp -a "$SBIN/." "$D/root/sbin"
    mount --bind "$D/root/sbin" "$SBIN"
}

# The device goes with the mount, which goes with this namespace.
truncate -s 256M "$D/ext4.img"
mkfs.ext4 -q "$D/ext4.img"
mount -o loop "$D/ext4.img" "$D/ext4"
"$V" create "$D/pool" --size 256M > /dev/null
mount -t fuse.varve "$D/pool" "$D/varve"
for kind in ext4 varve; do
    mount -t tmpfs none "$D/second/$kind"
    # A failure is for the caller to judge. Most of the time each waits for a clock to tick.
    "$P" -c "$C" -s "$D/second/$kind" -p "$D/$kind" > "$S/$kind" 2>&1 || true &
done
wait

for kind in ext4 varve; do
    : > "$S/$kind.alone"
    grep -E '^[^[:space:]]+ +FAILED' "$S/$kind" | while read -r name _; do
        "$P" -c "$C" -s "$D/second/$kind" -p "$D/$kind" --exact "pjdfstest::tests::$name" >> "$S/$kind.alone" 2>&1 || true
    done
    # Why, for those who read the output.
    grep -A 3 FAILED "$S/$kind.alone" | sed "s/^/$kind: /" || true
done
umount "$D/varve"
"$V" check "$D/pool"
