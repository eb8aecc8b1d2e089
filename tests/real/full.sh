#!/bin/bash
# full.sh: a pool that is full. Writes are refused and nothing else is: what frees space works, so do properties and
# datasets, and all space comes back. Nearly full, no write waits for long.
# SECONDS_OF_WRITES (30) of random overwrites at 95 %, none of which may take MOST_MS (2000) and what the disk takes. Of
# the pool, CROWD_MIB (24) are filled with tiny files: 60 MiB take 375,000. PARTS names parts to run.
. "$(dirname "$0")/bed.sh"
packages fio
need root fuse fio
room 2
SECONDS_OF_WRITES=${SECONDS_OF_WRITES:-30} MOST_MS=${MOST_MS:-2000} CROWD_MIB=${CROWD_MIB:-24}
PARTS=${PARTS:-huge tiny stalls}
# The devices bound what is written.
make_bed 1 1G
told=""

avail_kib() { df --output=avail -k "$MNT" | tail -1 | tr -d ' '; }
# back WHAT KIB: AVAIL is that again but for a hundredth, as soon as what was removed is free.
back() {
    local now=0 _
    for _ in $(seq 400); do
        now=$(avail_kib)
        [ "$now" -lt $(($2 - $2 / 100)) ] || break
        sleep 0.25
    done
    check "$1: df says $now KiB of $2" test "$now" -ge $(($2 - $2 / 100))
}
# until_full COMMAND...: it fails, for lack of space alone.
until_full() {
    check "it ends" test "$("$@" 2>"$BED/out/refusal" >&2; echo $?)" != 0
    check "with ENOSPC" grep -qi 'no space left' "$BED/out/refusal"
}
# well: the daemon lives and the pool writes.
well() {
    check "$1: the daemon lives" test -n "$(daemon_pid)"
    check "$1: sync" "$LARDER" pool sync tank
    check "$1: nothing is suspended" grep -q 'state: ONLINE' <("$LARDER" pool status tank)
    check "$1: properties are told" "$LARDER" pool get all tank
    healthy "$1: the pool is healthy"
}
# manage WHAT: what one does to a full pool to help it.
manage() {
    check "$1: a property is set" "$LARDER" fs set compression=zstd tank
    check "$1: a quota is set" "$LARDER" fs set quota=2G tank
    check "$1: and taken away" "$LARDER" fs set quota=none tank
    if "$LARDER" fs create tank/more >"$BED/out/create" 2>&1; then
        check "$1: a dataset is destroyed" "$LARDER" fs destroy --yes tank/more
    else
        check "$1: a dataset is refused for lack of space" grep -qi 'space' "$BED/out/create"
    fi
}

part_huge() {
    local before name
    before=$(avail_kib)
    until_full dd if=/dev/urandom of="$MNT/huge" bs=1M
    well "one huge file"
    manage "one huge file"
    check "a mode is changed" chmod 600 "$MNT/huge"
    check "a name is changed" mv "$MNT/huge" "$MNT/renamed"
    check "half of it is cut off" truncate -s $(($(stat -c %s "$MNT/renamed") / 2)) "$MNT/renamed"
    check "a hole is punched" fallocate -p -o 1M -l 16M "$MNT/renamed"
    check "what was freed can be written" dd if=/dev/urandom of="$MNT/again" bs=1M count=128 conv=fsync
    until_full dd if=/dev/urandom of="$MNT/rest" bs=128k
    check "all of it is removed" rm "$MNT/renamed" "$MNT/again" "$MNT/rest"
    back "a huge file was removed" "$before"
    # Full across an export and a crash.
    until_full dd if=/dev/urandom of="$MNT/huge" bs=1M
    check "export of a full pool" "$LARDER" pool export tank
    check "import of a full pool" "$LARDER" pool import -d "$DEVICES" tank
    mounted
    until_full dd if=/dev/urandom of="$MNT/more" bs=4k conv=fsync
    kill_daemon
    check "import of a full pool after a crash" "$LARDER" pool import -d "$DEVICES" tank
    mounted
    check "it is emptied" rm -f "$MNT/huge" "$MNT/more"
    back "a full pool was imported and emptied" "$before"
    well "at the end"
}

# Files of some bytes in folders of a thousand each.
crowd() {
    local folder
    for folder in $(seq 10000); do
        mkdir "$MNT/crowd/$folder" || return 1
        (cd "$MNT/crowd/$folder" && seq 1000 | split -l 1 -a 3 - f) || return 1
    done
}
part_tiny() {
    local before
    before=$(avail_kib)
    # Most of it at once, the rest by files that are nearly nothing but metadata.
    check "ballast" dd if=/dev/urandom of="$MNT/ballast" bs=1M count=$(((before >> 10) - CROWD_MIB))
    mkdir "$MNT/crowd"
    until_full crowd
    told="$told, $(find "$MNT/crowd" -type f | wc -l) tiny files"
    well "tiny files"
    manage "tiny files"
    check "rm -r" rm -r "$MNT/crowd"
    check "rm" rm "$MNT/ballast"
    back "tiny files were removed" "$before"
    well "at the end"
}

# longest WHAT WHERE SIZE OPTION...: milliseconds that the longest of random writes to a file in that folder took.
longest() {
    local told=$BED/out/$1 folder=$2 size=$3
    shift 3
    if ! fio --name=stalls --directory="$folder" --filename=file --rw=randwrite --bs=128k --size="$size" "$@" \
        --runtime="$SECONDS_OF_WRITES" --time_based --refill_buffers --output-format=json --output="$told.json" \
        >"$told.log" 2>&1; then
        echo "fio failed in $folder:" >&2
        cat "$told.log" >&2
        grep -h 'error' "$told.json" >&2
        return 1
    fi
    awk '/"write" :/ { write = 1 } write && /"clat_ns"/ { wait = 1 }
        wait && !told && /"max"/ { printf "%d\n", $3 / 1e6; told = 1 } END { if (!told) print 999999 }' "$told.json"
}
part_stalls() {
    local size ms disk try
    size=$(($(avail_kib) * 95 / 100 / 128 * 128))
    check "95 % are filled" dd if=/dev/urandom of="$MNT/file" bs=128k count=$((size / 128)) conv=fsync
    # What the disk below makes a few writes wait meanwhile, on a busy machine, is not the pool's; and others may come
    # in between.
    for try in 1 2 3; do
        mounted
        longest disk "$BED/out" 64M --direct=1 --rate_iops=20 >"$BED/out/disk" &
        ms=$(longest pool "$MNT" "${size}k" --overwrite=1 --fallocate=none)
        wait $!
        disk=$(cat "$BED/out/disk")
        [ "$disk" != 999999 ] || disk=0
        [ "$ms" -ge $((MOST_MS + 4 * disk)) ] || break
    done
    told="$told, the longest write at 95 % $ms ms, of the disk itself $disk ms"
    check "no write at 95 % takes $MOST_MS ms and what the disk takes" test "$ms" -lt $((MOST_MS + 4 * disk))
    well "95 %"
    rm "$MNT/file" "$BED/out/file"
}

for part in $PARTS; do
    "$LARDER" pool create -m "$MNT" tank $(devices)
    mounted
    "part_$part"
    "$LARDER" pool destroy --yes tank
done
finish "${told#, }"
