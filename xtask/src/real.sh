# Runs as process 1 of namespaces that cargo xtask real has made: mounts and processes are gone with them. $1: what.
# The last line of output is the summary's.
exec 2>&1
M=$S/mnt
mkdir "$M"

# $1: size of the pool
begin() {
    "$V" create "$S/pool" --size "$1" > /dev/null
    "$V" mount "$S/pool" "$M"
}

# Unmounts, mounts again: nothing comes from a cache.
again() {
    "$V" unmount "$M"
    "$V" mount "$S/pool" "$M"
}

# What the pool holds must be sound, data included; keeps what check says for the summary.
finish() {
    cd /
    "$V" unmount "$M"
    checked=$("$V" check "$S/pool")
    echo "$checked"
    checked=${checked#*: }
}

# Runs a command and leaves in $took how long it took, in seconds.
timed() {
    local began=$SECONDS
    "$@"
    took=$((SECONDS - began))
    echo "$took s: $*"
}

kernel() {
    begin 24G
    local source=$(ls /usr/src/linux-source-*.tar.xz | sort -V | tail -n 1)
    # Beside the pool, on whatever the directory for temporary files lies on.
    mkdir "$S/plain" "$M/tree"
    tar -xJf "$source" -C "$S/plain" --strip-components=1
    timed tar -xJf "$source" -C "$M/tree" --strip-components=1
    local unpacked=$took files=$(find "$S/plain" -type f | wc -l)
    again
    timed diff -r --no-dereference "$S/plain" "$M/tree"
    export GIT_CONFIG_GLOBAL=$S/gitconfig
    git config --global user.name varve
    git config --global user.email varve@localhost
    git config --global gc.auto 0
    cd "$M/tree"
    git init -q
    timed git add -A -f
    timed git commit -q -m kernel
    timed git clone -q --no-local "$M/tree" "$M/clone"
    cd /
    again
    timed git -C "$M/tree" fsck --full --strict --no-progress
    timed git -C "$M/clone" fsck --full --strict --no-progress
    # A name that has been in a .gitignore of the tree itself was added by force, so that nothing is missing.
    timed diff -r --no-dereference --exclude=.git "$S/plain" "$M/clone"
    cd "$M/clone"
    make -s defconfig
    timed make -s -j2 prepare lib/ fs/ext4/
    local built=$took objects=$(find lib fs/ext4 -name '*.o' | wc -l)
    finish
    echo "$files files unpacked in $unpacked s, committed, cloned, compared; $objects objects built in $built s; $checked"
}

stress_ng() {
    begin 8G
    mkdir "$M/work"
    # In the directory: some of the stressors use the one they are started in.
    cd "$M/work"
    local status=0
    stress-ng --class filesystem --sequential 1 --timeout "$SECONDS_EACH" --verify --temp-path "$M/work" \
        --metrics-brief > "$S/said" 2>&1 || status=$?
    cat "$S/said"
    # 3 and 4: some stressor found that the kernel or the filesystem has nothing for it here, and did nothing.
    case $status in 0 | 3 | 4) ;; *) exit 1 ;; esac
    local all=$(sed -n 's/.*dispatching hogs: //p' "$S/said" | tr , '\n' | wc -l)
    local not_here=$(sed -n 's/.*info: *\[[0-9]*\] \([a-z-]*\): .*skipping.*/\1/p' "$S/said" | sort -u | paste -sd ' ' -)
    # Words of a stressor that found something although stress-ng ended well.
    if grep -i 'stress-ng: fail:' "$S/said"; then exit 1; fi
    finish
    echo "$all stressors, not for this system: ${not_here:-none}; $checked"
}

dbench_load() {
    begin 8G
    mkdir "$M/work"
    local loadfile=$(ls /usr/share/dbench/client.txt /usr/share/doc/dbench/client.txt 2> /dev/null | head -n 1)
    dbench -c "$loadfile" -D "$M/work" -t $((10 * SECONDS_EACH)) 4 > "$S/said" || { tail -n 100 "$S/said"; exit 1; }
    tail -n 40 "$S/said"
    # It goes on after what failed, and says so. Of its own semaphore, which it may do without, that says nothing here.
    if grep -v 'failed to create barrier semaphore' "$S/said" | grep -iE 'failed|ERROR'; then exit 1; fi
    local throughput=$(grep '^Throughput' "$S/said")
    finish
    echo "$throughput; $checked"
}

postmark_load() {
    begin 8G
    mkdir "$M/work"
    printf '%s\n' "set location $M/work" 'set number 20000' 'set transactions 50000' 'set subdirectories 100' \
        'set size 500 20000' 'set bias create 5' run quit > "$S/commands"
    postmark "$S/commands" > "$S/said" || { tail -n 100 "$S/said"; exit 1; }
    cat "$S/said"
    if grep -i error "$S/said"; then exit 1; fi
    # It removes all it made.
    if [ -n "$(find "$M/work" -type f | head -n 1)" ]; then echo 'postmark left files behind'; exit 1; fi
    local rate=$(sed -n 's/.*seconds of transactions (\(.*\))/\1/p' "$S/said")
    finish
    echo "50000 transactions, $rate; $checked"
}

case $1 in
    kernel) kernel ;;
    stress-ng) stress_ng ;;
    dbench) dbench_load ;;
    postmark) postmark_load ;;
    *) exit 2 ;;
esac
