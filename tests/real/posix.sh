#!/bin/bash
# posix.sh: pjdfstest (what system calls promise), fsx (random operations against a model) and fio (verified
# writes by several jobs) on a mount. Failures that are known, with their reasons, are in posix-known.txt; any other
# fails, and so does a known one that passes, so that the list stays true.
# fsx: FSX_OPS (40,000; with many more than 100,000 it runs out of maps, which it does not give back) operations on files of up
# to 16 MiB at each of two record sizes, and a quarter of them with records cut by content and deduplicated, side by side,
# for each of FSX_SEEDS (1) seeds.
. "$(dirname "$0")/bed.sh"
need root fuse transport cargo fio
FSX_OPS=${FSX_OPS:-40000} FSX_SEEDS=${FSX_SEEDS:-1}

# The suites are tools, not dependencies: built once, by whoever comes first, and kept beside the build. Compiling takes
# longer than running, so the third argument is how far each is optimised.
TOOLS=${LARDER_TOOLS:-$(realpath -m "$CARGO_TARGET_DIR/tools")}
mkdir -p "$TOOLS"
tool() {
    [ -x "$TOOLS/bin/$1" ] ||
        CARGO_TARGET_DIR=$TOOLS/build CARGO_PROFILE_RELEASE_OPT_LEVEL=$3 CARGO_PROFILE_RELEASE_LTO=off \
            flock "$TOOLS" cargo install --quiet --locked --root "$TOOLS" "$1@$2"
}
tool pjdfstest 0.2.2 0
tool fsx 0.3.2 1

make_bed 4 2G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
mkdir -m 0777 "$MNT/pjd" "$MNT/fio"

cat >"$BED/pjd.toml" <<'T'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [ ["nobody", "nogroup"], ["daemon", "daemon"] ]
T
"$TOOLS/bin/pjdfstest" -c "$BED/pjd.toml" -p "$MNT/pjd" >"$BED/out/pjd" 2>&1 || true
summary=$(grep -a '^Summary' "$BED/out/pjd" || true)
echo "  pjdfstest: ${summary:-no summary}"
if [ -n "$summary" ]; then
    awk 'tolower($2) == "failed" && NF == 2 { print $1 }' "$BED/out/pjd" | LC_ALL=C sort >"$BED/out/failing"
    sed 's/ *#.*//; /^$/d' "$HERE/posix-known.txt" | LC_ALL=C sort >"$BED/out/known"
    same "pjdfstest fails where it is known to, and nowhere else (> fails, < does no longer)" \
        "$BED/out/known" "$BED/out/failing"
    check "no fewer tests than there were (380)" \
        test "$(sed -n 's/.* \([0-9]*\) passed.*/\1/p' <<<"$summary")" -ge $((380 - $(wc -l <"$BED/out/known")))
else
    bad "pjdfstest came to no end"
    tail -n 20 "$BED/out/pjd"
fi

cat >"$BED/fsx.toml" <<'T'
flen = 16777216
[opsize]
min = 1
max = 131072
[weights]
fsync = 1
fdatasync = 1
close_open = 1
write = 10
read = 10
mapread = 10
mapwrite = 10
truncate = 3
invalidate = 2
punch_hole = 4
posix_fallocate = 2
posix_fadvise = 2
sendfile = 3
copy_file_range = 4
T
# fsx_seeds NAME OPERATIONS: all seeds on a dataset of its own; stops at the first that fails.
fsx_seeds() {
    local seed dir=$MNT/$1
    for seed in $(seq "$FSX_SEEDS"); do
        mountpoint -q "$MNT" || return 1
        echo "seed $seed"
        "$TOOLS/bin/fsx" -f "$BED/fsx.toml" -qq -S "$seed" -N "$2" -P "$BED/out" "$dir/file" || return 1
        rm "$dir/file"
    done
}
began=$SECONDS runs=()
for kind in 4K:fixed:off:1 128K:fixed:off:1 16K:content:on:4; do
    IFS=: read -r recordsize chunking dedup part <<<"$kind"
    "$LARDER" fs create -o recordsize=$recordsize -o chunking=$chunking -o dedup=$dedup "tank/fsx-$recordsize"
    fsx_seeds "fsx-$recordsize" $((FSX_OPS / part)) >"$BED/out/fsx-$recordsize" 2>&1 &
    runs+=("$recordsize, $chunking:$!")
done
for run in "${runs[@]}"; do
    what="fsx: records of ${run%:*}, $FSX_SEEDS seeds"
    if wait "${run#*:}"; then ok "$what"; else
        bad "$what"
        tail -n 20 "$BED/out/fsx-${run%,*}" | sed 's/^/    /'
    fi
done
fsx="fsx: $((FSX_SEEDS * FSX_OPS * 9 / 4)) operations in $((SECONDS - began)) s"
echo "  $fsx"

check "fio: random writes of two jobs, verified" fio --name=verify --directory="$MNT/fio" --size=64m --bs=4k-128k \
    --rw=randrw --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --numjobs=2 --ioengine=psync --fsync=64

healthy
check "export" "$LARDER" pool export tank
check "import" "$LARDER" pool import -d "$DEVICES" tank
healthy
finish "pjdfstest: ${summary#Summary: }; $fsx"
