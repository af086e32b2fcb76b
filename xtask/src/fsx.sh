# Runs as process 1 of namespaces that cargo xtask fsx has made: mounts and processes are gone with them.
D=$S/memory
mkdir "$D"
mount -t tmpfs none "$D"

# $1: name; $2: mount options; $3: weights
exercise() {
    mkdir "$D/$1"
    "$V" create "$D/$1.pool" --size 256M > /dev/null
    "$V" mount -o "$2" "$D/$1.pool" "$D/$1"
    for seed in $SEEDS; do
        # Beside the file it works on it leaves what it did and what it expected when it fails.
        if ! "$F" -q -f "$X/$3" -N "$OPS" -S "$seed" -P "$D" "$D/$1/file$seed" > "$D/$1.said" 2>&1; then
            tail -n 60 "$D/$1.said"
            echo "fsx FAILED on a pool mounted with -o $2: $OPS operations of seed $seed, weights xtask/$3"
            exit 1
        fi
        echo "$1 $seed" >> "$S/passed"
    done
    "$V" unmount "$D/$1"
    "$V" check "$D/$1.pool"
}

# At the same time: there are two processors.
exercise default relatime fsx.toml &
default=$!
exercise direct relatime,direct_io fsx-direct.toml &
direct=$!
wait "$default"
wait "$direct"
