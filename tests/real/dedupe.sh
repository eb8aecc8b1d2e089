#!/bin/bash
# dedupe.sh: `larder dedupe` on XFS and btrfs on loop devices: what it frees, measured; a second run; what is passed over;
# kill -9 in every phase; and ROUNDS (30) seeded rounds over a tree that changes meanwhile, compared by checksums.
. "$(dirname "$0")/bed.sh"
packages xfsprogs btrfs-progs
need root losetup mkfs.xfs mkfs.btrfs chattr python3
ROUNDS=${ROUNDS:-30}
make_bed 0 1M
clear_more() { for at in "$BED"/fs-*; do mountpoint -q "$at" && umount -l "$at"; done; }

# fails CODE WORDS COMMAND...: the command ends with that code, and says so.
fails() {
    local code=$1 words=$2 got=0
    shift 2
    "$@" >"$BED/out/said" 2>&1 || got=$?
    [ "$got" = "$code" ] && grep -qF -- "$words" "$BED/out/said" || { echo "code $got"; cat "$BED/out/said"; return 1; }
}
sums() { (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2); }
field() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$BED/out/report" "$1"; }
# By copy_file_range, as cp and cat have it, they would share already.
copy() { dd if="$1" of="$2" bs=1M conv=notrunc status=none; }
free() { sync -f "$1" && echo $(($(stat -f -c '%f * %S' "$1"))); }
dedupe() { "$LARDER" dedupe --hash-file "$BED/hashes-$KIND" -j "$@" >"$BED/out/report"; }

check "a file system that shares nothing" fails 1 "no FIDEDUPERANGE" "$LARDER" dedupe --hash-file "$BED/none" /proc
check "no such path" fails 1 "cannot open" "$LARDER" dedupe --hash-file "$BED/none" "$BED/nothing"

for KIND in xfs btrfs; do
    at=$BED/fs-$KIND
    mkdir "$at"
    truncate -s 2G "$BED/image-$KIND"
    "mkfs.$KIND" -q "$BED/image-$KIND" >"$BED/out/mkfs" 2>&1
    mount -o loop "$BED/image-$KIND" "$at"
    mountpoint -q "$at" || { bad "$KIND is mounted"; continue; }

    # Copies, an edit in the middle, an image with files in it at other offsets, zeros, a hole, ends that are no block's.
    mkdir -p "$at/a/deep" "$at/b" "$at/out"
    for n in $(seq 60); do head -c $((n * 9973)) /dev/urandom >"$at/a/deep/file $n"; done
    cp -r --reflink=never "$at/a" "$at/b"
    head -c 40M /dev/urandom >"$at/a/large"
    copy "$at/a/large" "$at/b/edited"
    sync -f "$at"
    dd if=/dev/urandom of="$at/b/edited" bs=4K seek=5000 count=3 conv=notrunc status=none
    { head -c 1M /dev/urandom; dd if="$at/a/large" bs=64K status=none; head -c 1000 /dev/urandom; } >"$at/b/image"
    head -c 30M /dev/zero >"$at/b/zeros"
    truncate -s 100M "$at/b/hole"
    ln -s ../out "$at/a/link"
    head -c 5M "$at/a/large" >"$at/out/beside"
    sync -f "$at"
    sums "$at" >"$BED/out/sums"
    # More than the copies of the large one and of the small ones, and all zeros but one tile.
    before=$(free "$at")
    check "$KIND: a report" dedupe "$at/a" "$at/b"
    check "$KIND: it has what could be shared" test "$(field could_share)" -gt $((110 << 20))
    check "$KIND: and shares nothing" test $(($(free "$at") - before)) -lt $((1 << 20))
    check "$KIND: a report again reads nothing" dedupe "$at/a" "$at/b"
    check "$KIND: no byte" test "$(field bytes_read)" = 0
    check "$KIND: it shares" dedupe --apply "$at/a" "$at/b"
    freed=$(($(free "$at") - before))
    LEAST=110; [ $KIND = xfs ] || LEAST=90
    # btrfs keeps an extent while anything of it is referred to.
    check "$KIND: space is freed: $freed" test "$freed" -gt $((LEAST << 20))
    check "$KIND: as the report has it" test $(($(field free_after) - $(field free_before))) -gt $((freed - (1 << 20)))
    same "$KIND: no byte changed" "$BED/out/sums" <(sums "$at")
    check "$KIND: a second run" dedupe --apply "$at/a" "$at/b"
    check "$KIND: asks for nothing" test "$(field tried)" = 0
    rm "$BED/hashes-$KIND"
    check "$KIND: without its hash file" dedupe --apply "$at/a" "$at/b"
    check "$KIND: it sees what is shared" test "$(field tried)" -lt $((1 << 20))
    check "$KIND: a link leads nowhere" test "$(field files)" = 125

    # One that is new, one that changed, one that is gone.
    copy "$at/a/large" "$at/b/new" && echo more >>"$at/a/deep/file 3" && rm "$at/a/deep/file 4"
    check "$KIND: what changed is read" dedupe --apply "$at/a" "$at/b"
    check "$KIND: and no more" test "$(field files_read)" = 2
    check "$KIND: what is gone is forgotten" test "$(field forgotten)" = 1
    check "$KIND: what is new is shared" test "$(field shared)" -ge $((40 << 20))

    copy "$at/a/large" "$at/b/immutable1" && copy "$at/a/large" "$at/b/immutable2"
    chattr +i "$at/b/immutable1" "$at/b/immutable2"
    check "$KIND: immutable files are told" fails 1 immutable "$LARDER" dedupe --hash-file "$BED/hashes-$KIND" --apply "$at/b"
    chattr -i "$at/b/immutable1" "$at/b/immutable2"
    mkdir "$at/b/mount" && mount -t tmpfs none "$at/b/mount" && head -c 1M /dev/zero >"$at/b/mount/x"
    check "$KIND: a mount is not crossed" dedupe "$at/b"
    check "$KIND: and told" test "$(field other_mounts)" = 1
    umount "$at/b/mount"
    if [ $KIND = btrfs ]; then
        touch "$at/b/nocow" && chattr +C "$at/b/nocow" && copy "$at/a/large" "$at/b/nocow"
        check "btrfs: nocow" dedupe --apply "$at/b"
        check "btrfs: is passed over" test "$(field nocow)" = 1
        btrfs -q subvolume create "$at/b/sub" && copy "$at/a/large" "$at/b/sub/large"
        check "btrfs: a subvolume" dedupe --apply "$at/b"
        check "btrfs: is shared with" test "$(field shared)" -ge $((40 << 20))
        copy "$at/a/large" "$at/b/sub/second" && btrfs -q subvolume snapshot -r "$at/b/sub" "$at/b/snap"
        # The kernel shares in them too, which changes no byte.
        check "btrfs: read-only snapshots" dedupe --apply "$at/b"
    fi

    # Files that are no hash file, and ones that were.
    head -c 10000 /dev/urandom >"$BED/foreign"
    check "$KIND: a foreign hash file" fails 1 "move '$BED/foreign' away" "$LARDER" dedupe --hash-file "$BED/foreign" "$at/a"
    sums "$at" >"$BED/out/sums"

    # Killed after ever longer; what a run without a kill finds then is whole.
    for n in $(seq 12); do
        rm -f "$BED/hashes-$KIND"
        copy "$at/a/large" "$at/out/again$n"
        "$LARDER" dedupe --hash-file "$BED/hashes-$KIND" --apply "$at" >/dev/null 2>&1 &
        sleep "0.0$((n * 7 + 10))"
        kill -9 $! 2>/dev/null || true
        wait $! 2>/dev/null || true
    done
    dedupe --apply "$at" || true
    check "$KIND: after kills it goes on" test "$(field stopped)" = False
    same "$KIND: no byte changed by kills" "$BED/out/sums" <(sums "$at" | grep -v again)
    for n in $(seq 12); do same "$KIND: nor of copy $n" "$at/a/large" "$at/out/again$n"; done
    rm -r "$at"/out/again*
    check "$KIND: stopped by SIGINT" fails 3 "stopped" timeout --preserve-status -s INT 0.02 "$LARDER" dedupe --hash-file "$BED/hashes2" --apply "$at"

    # A model writes the same on the file system and in a folder beside it, while dedupe runs over the one.
    mkdir "$at/live" "$BED/model-$KIND"
    check "$KIND: $ROUNDS rounds over a tree that changes" python3 "$HERE/dedupe_rounds.py" "$LARDER" \
        "$at/live" "$BED/model-$KIND" "$BED/hashes-live-$KIND" "$ROUNDS" "${SEED:-1}"
    umount "$at"
    if [ $KIND = xfs ]; then check "xfs_repair" xfs_repair -n "$BED/image-xfs"; else check "btrfs check" btrfs check "$BED/image-btrfs"; fi
done
finish "$ROUNDS rounds"
