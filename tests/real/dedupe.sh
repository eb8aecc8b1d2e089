#!/bin/bash
# dedupe.sh: `larder dedupe` on XFS and btrfs on loop devices: what it frees, measured; a second run; what is left alone;
# kill -9 in every phase; and DEDUPE_ROUNDS (30) seeded rounds over a tree that changes meanwhile, compared byte by byte.
. "$(dirname "$0")/bed.sh"
packages xfsprogs btrfs-progs
export PATH=$PATH:/usr/sbin:/sbin
need root losetup mkfs.xfs mkfs.btrfs xfs_repair chattr python3 strace setpriv
ROUNDS=${DEDUPE_ROUNDS:-30}
make_bed 0 1M
clear_more() {
    swapoff "$BED/fs-xfs/b/swap" 2>/dev/null
    for at in "$BED"/fs-* "$BED/full"; do umount -R "$at" 2>/dev/null || umount -lR "$at" 2>/dev/null; done
}

sums() { (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2); }
# field WORD...: a figure of the last report, 0 where it has none.
field() {
    python3 -c '
import json, sys
value = json.load(open(sys.argv[1]))["file_systems"][0]
for word in sys.argv[2:]:
    value = value.get(word, 0) if value else 0
print(value)' "$BED/out/report" "$@"
}
# is FIGURE COMPARISON NUMBER: of the last report; words of a figure are parted by dots.
is() {
    local value
    value=$(field ${1//./ })
    test "$value" "$2" "$3" || { echo "$1: $value, not $2 $3"; cat "$BED/out/report"; return 1; }
}
# By copy_file_range, as cp and cat have it, they would share already.
copy() { dd if="$1" of="$2" bs=1M conv=notrunc status=none; }
free() { sync -f "$1" && echo $(($(stat -f -c '%f * %S' "$1"))); }
dedupe() { "$LARDER" dedupe --hash-file "$BED/hashes-$KIND" -j "$@" >"$BED/out/report"; }
# with NAME ARGUMENT...: the same with a hash file of its own.
with() { local name=$1; shift; "$LARDER" dedupe --hash-file "$BED/hashes-$KIND-$name" -j "$@" >"$BED/out/report"; }
MIB=$((1 << 20))

check "a file system that shares nothing" fails 1 "the kernel cannot share" "$LARDER" dedupe --hash-file "$BED/none" /proc
check "no such path" fails 1 "cannot open" "$LARDER" dedupe --hash-file "$BED/none" "$BED/nothing"
check "no such block" fails 2 "power of two" "$LARDER" dedupe -b 5K /
check "help" fails 0 "--apply" "$LARDER" dedupe --help

for KIND in xfs btrfs; do
    at=$BED/fs-$KIND
    mkdir "$at"
    truncate -s 2G "$BED/image-$KIND"
    "mkfs.$KIND" -q "$BED/image-$KIND" >"$BED/out/mkfs" 2>&1
    mount -o loop "$BED/image-$KIND" "$at"
    mountpoint -q "$at" || { bad "$KIND is mounted"; continue; }

    # Copies, an edit in the middle, an image with a file in it at another offset, zeros, a hole, ends that are no block's.
    mkdir -p "$at/a/deep" "$at/b" "$at/out"
    for n in $(seq 60); do head -c $((n * 9973)) /dev/urandom >"$at/a/deep/file $n"; done
    cp -r --reflink=never "$at/a/deep" "$at/b"
    head -c 40M /dev/urandom >"$at/a/large"
    copy "$at/a/large" "$at/b/edited"
    sync -f "$at"
    dd if=/dev/urandom of="$at/b/edited" bs=4K seek=5000 count=3 conv=notrunc status=none
    { head -c 1M /dev/urandom; dd if="$at/a/large" bs=64K status=none; head -c 1000 /dev/urandom; } >"$at/b/image"
    dd if=/dev/zero of="$at/b/zeros" bs=1M count=30 status=none
    truncate -s 100M "$at/b/hole"
    fallocate -l 20M "$at/b/reserved"
    ln "$at/a/large" "$at/b/link"
    ln -s ../out "$at/a/symlink"
    head -c 5M "$at/a/large" >"$at/out/beside"
    sync -f "$at"
    sums "$at" >"$BED/out/sums"
    before=$(free "$at")

    check "$KIND: a report" dedupe "$at/a" "$at/b"
    check "$KIND: it has what could be shared" is shared -gt $((95 * MIB))
    check "$KIND: and zeros" is zeros = $((30 * MIB))
    check "$KIND: and holes, and what is reserved" is holes = $((120 * MIB))
    check "$KIND: a link leads nowhere, a hard link is no copy" is files = 126
    check "$KIND: it is told of" is links = 1
    check "$KIND: and nothing is shared" test $(($(free "$at") - before)) -lt $MIB
    check "$KIND: a report again" dedupe "$at/a" "$at/b"
    check "$KIND: reads nothing" is bytes_read = 0
    check "$KIND: it says what to do" fails 0 "larder dedupe --apply" "$LARDER" dedupe --hash-file "$BED/hashes-$KIND" "$at/a" "$at/b"
    check "$KIND: in use" python3 - "$LARDER" "$BED/hashes-$KIND" "$at/a" <<'P'
import fcntl, subprocess, sys
with open(sys.argv[2], "rb+") as held:
    fcntl.flock(held, fcntl.LOCK_EX)
    run = subprocess.run([sys.argv[1], "dedupe", "--hash-file", *sys.argv[2:]], capture_output=True, text=True)
assert run.returncode == 1 and "in use by another run" in run.stderr, run
P
    check "$KIND: it shares" dedupe --apply "$at/a" "$at/b"
    freed=$(($(free "$at") - before))
    # btrfs keeps an extent while anything of it is referred to.
    check "$KIND: space is freed: $freed" test "$freed" -gt $((105 * MIB))
    check "$KIND: as the report has it" is freed -gt $((freed - MIB))
    same "$KIND: no byte changed" "$BED/out/sums" <(sums "$at")
    check "$KIND: a second run" dedupe --apply "$at/a" "$at/b"
    check "$KIND: reads nothing" is bytes_read = 0
    check "$KIND: and finds nothing to do" is duplicates = 0
    rm "$BED/hashes-$KIND"
    check "$KIND: without its hash file" dedupe --apply "$at/a" "$at/b"
    check "$KIND: it sees what is shared" is shared_already -gt $((95 * MIB))
    check "$KIND: and shares no more" is shared -lt $MIB
    check "$KIND: whom few may read" test "$(stat -c %a "$BED/hashes-$KIND")" = 600

    # One that is new, ones that changed, one that is gone, one that moved.
    copy "$at/a/large" "$at/b/new" && echo more >>"$at/a/deep/file 3" && rm "$at/a/deep/file 4" && mv "$at/b/deep" "$at/b/moved"
    # As long and as old as before, but for ctime; and another file by an old name.
    touch -r "$at/a/deep/file 5" "$BED/time" && printf x | dd of="$at/a/deep/file 5" conv=notrunc status=none
    touch -r "$BED/time" "$at/a/deep/file 5"
    cp -p --reflink=never "$at/a/deep/file 6" "$at/out/6" && mv "$at/out/6" "$at/a/deep/file 6"
    check "$KIND: what changed is read" dedupe --apply "$at/a" "$at/b"
    check "$KIND: and no more" is files_read = 4
    check "$KIND: what is gone is forgotten" is files_forgotten = 2
    check "$KIND: what is new is shared" is shared -ge $((40 * MIB))

    # Each by itself first: what is the same in both is shared all the same.
    mkdir -p "$at/apart/1" "$at/apart/2"
    for n in 1 2; do copy "$at/a/large" "$at/apart/$n/x"; done
    for n in 1 2; do check "$KIND: folder $n alone" with apart --apply "$at/apart/$n"; done
    check "$KIND: both" with apart --apply "$at/apart"
    check "$KIND: nothing is read again" is files_read = 0
    check "$KIND: and they share" is shared -ge $((40 * MIB))
    rm -r "$at/apart"

    # Other ways of cutting.
    for how in "-b 64K" "-b 1M" "--by-content" "--by-content -b 16K"; do
        copy "$at/a/large" "$at/b/new2"
        check "$KIND: $how" with "${how// /}" $how --apply "$at/a" "$at/b"
        check "$KIND: $how shares" is shared -ge $((38 * MIB))
        rm "$at/b/new2"
    done
    check "$KIND: another block needs another hash file" fails 2 "was made of files cut into blocks of 4 KiB" \
        "$LARDER" dedupe -b 8K --hash-file "$BED/hashes-$KIND" "$at/a"

    # Files that an image has, too, but for their ends: copies of them go whole.
    mkdir "$at/ends"
    for n in $(seq 20); do
        head -c $((n * 99001)) /dev/urandom >"$at/ends/$n"
        cat "$at/ends/$n" | dd of="$at/ends/image" oflag=append conv=notrunc bs=1M status=none && truncate -s %4096 "$at/ends/image"
        copy "$at/ends/$n" "$at/ends/copy$n"
    done
    check "$KIND: ends of files" with ends --apply "$at/ends"
    check "$KIND: space is freed" is freed -gt $((18 * MIB))
    rm -r "$at/ends"

    # What is left alone.
    copy "$at/a/large" "$at/b/immutable" && copy "$at/a/large" "$at/b/append" && chattr +i "$at/b/immutable" && chattr +a "$at/b/append"
    check "$KIND: immutable files are no failure" dedupe --apply "$at/b"
    check "$KIND: they are told" is left_alone.immutable.files = 1
    check "$KIND: as are those that grow" is left_alone.append_only.files = 1
    chattr -i "$at/b/immutable" && chattr -a "$at/b/append"
    mkdir "$at/b/mount" && mount -t tmpfs none "$at/b/mount" && head -c 1M /dev/zero >"$at/b/mount/x"
    mkdir "$at/b/bind" && mount --bind "$at/out" "$at/b/bind"
    check "$KIND: mounts are not crossed" dedupe "$at/b"
    check "$KIND: and told" is mounts_passed = 2
    files=$(field files)
    check "$KIND: unless that is wanted" dedupe --cross-mounts "$at/b"
    check "$KIND: and it is the same file system" is mounts_passed = 1
    check "$KIND: whose file is found" is files = $((files + 1))
    umount "$at/b/mount" "$at/b/bind"
    copy "$at/a/large" "$at/out/copy" && copy "$at/a/large" "$at/out/copy2"
    mount --bind "$at/out" "$at/b/bind" && mount -o remount,bind,ro "$at/b/bind"
    check "$KIND: nobody can write there" with ro --apply "$at/b/bind"
    check "$KIND: which is told" is left_alone.read_only.files = 3
    check "$KIND: and nothing is shared" is shared = 0
    umount "$at/b/bind"
    check "$KIND: now somebody can" with ro --apply "$at/out"
    check "$KIND: and it is shared" is shared -ge $((40 * MIB))
    if [ $KIND = xfs ]; then
        dd if=/dev/zero of="$at/b/swap" bs=1M count=8 status=none && chmod 600 "$at/b/swap" && mkswap -q "$at/b/swap"
        if swapon "$at/b/swap" 2>/dev/null; then
            check "xfs: a swap file" dedupe --apply "$at/b"
            check "xfs: is left alone" is left_alone.swap.files = 1
            swapoff "$at/b/swap"
            check "xfs: when it is none any more" dedupe --apply "$at/b"
            check "xfs: it is no longer" is left_alone.swap.files = 0
            check "xfs: its zeros are holes" is zeros -gt $((7 * MIB))
        fi
        rm "$at/b/swap"
    else
        touch "$at/b/nocow" && chattr +C "$at/b/nocow" && copy "$at/a/large" "$at/b/nocow"
        check "btrfs: without copy-on-write" dedupe --apply "$at/b"
        check "btrfs: it is left alone" is left_alone.nocow.files = 1
        check "btrfs: and not read" is bytes_read = 0
        btrfs -q subvolume create "$at/b/sub" && copy "$at/a/large" "$at/b/sub/large"
        check "btrfs: a subvolume" dedupe --apply "$at/b"
        check "btrfs: is shared with" is shared -ge $((40 * MIB))
        head -c 10M /dev/urandom >"$at/b/sub/own"
        btrfs -q subvolume snapshot -r "$at/b/sub" "$at/b/snap"
        rm "$at/b/sub/own"
        check "btrfs: read-only snapshots" dedupe --apply "$at/b"
        check "btrfs: are passed over" is snapshots_passed = 1
        copy "$at/b/snap/own" "$at/b/again"
        check "btrfs: one that is named" dedupe --apply "$at/b" "$at/b/snap"
        check "btrfs: is left as it is" is left_alone.read_only.files = 2
        check "btrfs: and shared with" is shared -ge $((10 * MIB))
    fi
    # Somebody else may read all of it, and share nothing.
    copy "$at/a/large" "$at/b/denied" && chmod a+rX "$at/b" && install -m 755 "$LARDER" "$BED/larder" && install -d -m 777 "$BED/theirs"
    check "$KIND: others' files" fails 4 "not allowed" setpriv --reuid 65534 --regid 65534 --clear-groups \
        "$BED/larder" dedupe --apply --hash-file "$BED/theirs/hashes" "$at/b"
    rm -r "$BED/theirs" "$at/b/denied"

    # Files that are no hash file, and ones that were.
    mkdir -p "$BED/full" && mount -t tmpfs -o size=200K tmpfs "$BED/full"
    check "$KIND: a hash file whose disk is full is told as that" fails 1 "cannot write or read '$BED/full/hashes'" \
        "$LARDER" dedupe --hash-file "$BED/full/hashes" "$at"
    umount "$BED/full"
    head -c 10000 /dev/urandom >"$BED/foreign"
    check "$KIND: a foreign hash file" fails 1 "rm '$BED/foreign'" "$LARDER" dedupe --hash-file "$BED/foreign" "$at/a"
    head -c $(($(stat -c %s "$BED/hashes-$KIND") / 2)) "$BED/hashes-$KIND" >"$BED/half"
    check "$KIND: half a hash file" fails 1 "no sound hash file" "$LARDER" dedupe --hash-file "$BED/half" "$at/a"
    sums "$at" >"$BED/out/sums"

    # Killed in each phase: as files are found, as they are read, at each commit of the hash file, and while it shares, for
    # which all was read before. What it did holds; the next run goes on.
    rm -rf "$at/killed" && mkdir "$at/killed"
    killed() {
        local what=$1 status=0
        shift
        copy "$at/a/large" "$at/killed/x" && copy "$at/a/large" "$at/killed/y"
        [ -z "${FIRST:-}" ] || with killed "$at" || true
        strace -f -qq -o /dev/null -e inject="$what:signal=KILL" "$LARDER" dedupe --hash-file "$BED/hashes-$KIND-killed" \
            --apply "$at" >/dev/null 2>&1 || status=$?
        [ $status = 137 ] || { echo "code $status"; return 1; }
        cmp "$at/a/large" "$at/killed/x" && cmp "$at/a/large" "$at/killed/y"
    }
    for when in 1 20 60; do check "$KIND: killed at find $when" killed name_to_handle_at:when=$when; done
    for when in 3 100 300; do check "$KIND: killed at read $when" killed pread64:when=$when; rm -f "$BED/hashes-$KIND-killed"; done
    for when in 1 2 3 4; do check "$KIND: killed at commit $when" killed fdatasync,fsync:when=$when; done
    for when in 3 4 6 9; do FIRST=1 check "$KIND: killed at share $when" killed ioctl:when=$when; done
    for n in $(seq 6); do
        copy "$at/a/large" "$at/killed/x$n"
        "$LARDER" dedupe --hash-file "$BED/hashes-$KIND-killed" --apply "$at" >/dev/null 2>&1 &
        sleep "0.0$((n * 12))"
        kill -9 $! 2>/dev/null || true
        wait $! 2>/dev/null || true
    done
    check "$KIND: after kills it goes on" with killed --apply "$at"
    check "$KIND: to the end" is stopped = False
    check "$KIND: and then all is done" with killed --apply "$at"
    check "$KIND: and nothing is left" is duplicates = 0
    same "$KIND: no byte changed by kills" "$BED/out/sums" <(sums "$at" | grep -v ./killed/)
    for copied in "$at"/killed/*; do same "$KIND: nor of $copied" "$at/a/large" "$copied"; done
    rm -r "$at/killed"
    # At a commit, since one thread makes those: strace counts by thread, and a second signal would end it at once.
    check "$KIND: stopped by SIGINT" fails 3 "the same command goes on" strace -f -qq -o /dev/null \
        -e inject=fdatasync,fsync:signal=INT:when=2 \
        "$LARDER" dedupe --hash-file "$BED/hashes-$KIND-int" --apply "$at"
    check "$KIND: and the next ends" with int --apply "$at"

    # A model writes the same on the file system and in a folder beside it, while dedupe runs over the one.
    mkdir "$at/live" "$BED/model-$KIND"
    check "$KIND: $ROUNDS rounds over a tree that changes" python3 "$HERE/dedupe_rounds.py" "$LARDER" \
        "$at/live" "$BED/model-$KIND" "$BED/hashes-live-$KIND" "$ROUNDS" "${SEED:-1}"
    umount "$at"
    mount -o loop "$BED/image-$KIND" "$at"
    same "$KIND: no byte changed on the device" "$BED/out/sums" <(sums "$at" | grep -v ./live/)
    check "$KIND: nor of those that changed" diff -r "$at/live" "$BED/model-$KIND"
    umount "$at"
    if [ $KIND = xfs ]; then check "xfs_repair" xfs_repair -n "$BED/image-xfs"; else check "btrfs check" btrfs check "$BED/image-btrfs"; fi
done
finish "$ROUNDS rounds"
