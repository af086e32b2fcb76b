# What can be shown without FUSE: a pool is created and checked.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf --one-file-system "$dir"' EXIT
cd "$dir"
"$V" create pool.img --size 256M
"$V" check pool.img
"$V" stats pool.img
echo "demo: done, without mounting"
