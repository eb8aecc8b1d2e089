#!/bin/bash
# zfs_streams.sh: what zfs-fuse sends is what its mount shows: WANTED real files and more, and one of everything, whole
# and by increments, into a tree in memory; and into a pool, where the command has it. SOURCES names other folders,
# STEPS says how many increments there are. Most of the time goes by while zfs-fuse writes the files.
. "$(dirname "$0")/bed.sh"
need root fuse python3 zfs-fuse zpool zfs
! pidof zfs-fuse >/dev/null || skip "another zfs-fuse is running, and there can be one alone"
make_bed 1 4G
ZFS=$BED/zfs STREAMS=$BED/streams POOL=larder$$
mkdir "$ZFS" "$STREAMS"
export LC_ALL=C.UTF-8
clear_more() {
    umount -l "$ZFS" 2>/dev/null
    # It is a job, and was told to end.
    [ -z "${ZFS_FUSE:-}" ] || wait "$ZFS_FUSE" 2>/dev/null
}

# elsewhere WHY: ends the script where zfs-fuse does not run, which is no failure of ours.
elsewhere() {
    echo "SKIPPED $NAME: $1"
    exit 77
}

truncate -s 6G "$BED/zfs.img"
zfs-fuse --no-daemon --enable-xattr >"$BED/out/zfs-fuse" 2>&1 &
ZFS_FUSE=$!
within 30 zpool list >/dev/null 2>&1 || elsewhere "zfs-fuse does not start: $(tail -n 1 "$BED/out/zfs-fuse")"
zpool create -o cachefile=none -O atime=off -m "$ZFS" "$POOL" "$BED/zfs.img" 2>/dev/null
mountpoint -q "$ZFS" || elsewhere "zfs-fuse does not mount"

# Folders until there are files enough.
WANTED=${WANTED:-3000} COUNT=0 TAKEN=()
for source in ${SOURCES:-/usr/include /usr/share/doc /usr/lib/python3 /usr/share/perl5 /usr/share/perl /usr/lib/python3* ${CARGO_HOME:-$HOME/.cargo}/registry/src}; do
    [ -d "$source" ] && [ "$COUNT" -lt "$WANTED" ] || continue
    TAKEN+=("$source")
    COUNT=$((COUNT + $(find "$source" -type f | wc -l)))
done
[ "$COUNT" -ge "$WANTED" ] || skip "there are no $WANTED files in /usr: name others in SOURCES"

# seconds FILE: without parts of seconds, which a mount of zfs-fuse does not show.
seconds() { sed -E 's/([0-9])\.[0-9]{9} /\1 /g' "$1"; }

STEPS=${STEPS:-3}
for step in $(seq 0 $STEPS); do
    python3 "$HERE/zfs_changes.py" "$ZFS" "$step" "${TAKEN[@]}"
    zfs snapshot "$POOL@s$step"
    python3 "$HERE/zfs_listing.py" "$ZFS" >"$STREAMS/s$step.live"
    if [ "$step" = 0 ]; then base=(); else base=(-i "@s$((step - 1))"); fi
    zfs send ${base[@]+"${base[@]}"} "$POOL@s$step" >"$STREAMS/s$step.stream"
done
zfs send -R "$POOL@s$STEPS" >"$STREAMS/all.stream"
zfs send -I @s0 "$POOL@s$STEPS" >"$STREAMS/later.stream"

RECEIVE=$(program zfs_streams)
check "streams one by one are received" "$RECEIVE" "$STREAMS"/s?.stream
check "a package of all of them" "$RECEIVE" "$STREAMS/all.stream"
check "a whole one, and a package of increments" "$RECEIVE" "$STREAMS/s0.stream" "$STREAMS/later.stream"
for step in $(seq 0 $STEPS); do
    for stream in "s$step" all later; do
        got=$STREAMS/$stream.stream.s$step.received
        [ "$stream$step" != later0 ] || continue
        same "$stream is what snapshot $step showed" <(seconds "$STREAMS/s$step.live") <(seconds "$got")
    done
done
check "with files enough" test "$(grep -c '^/[^ ]* f ' "$STREAMS/s0.live")" -ge "$WANTED"

if "$LARDER" fs receive --help >/dev/null 2>&1; then
    "$LARDER" pool create -O atime=off -m "$MNT" tank "$(devices)"
    mounted
    for step in $(seq 0 $STEPS); do
        check "the pool takes stream $step" "$LARDER" fs receive tank/taken <"$STREAMS/s$step.stream"
        python3 "$HERE/zfs_listing.py" "$MNT/taken" >"$STREAMS/s$step.taken"
        same "and shows what it meant" <(seconds "$STREAMS/s$step.live") <(seconds "$STREAMS/s$step.taken")
    done
    healthy
fi
finish "$(wc -l <"$STREAMS/s0.live") files and folders, $STEPS increments"
