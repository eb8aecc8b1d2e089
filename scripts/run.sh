#!/bin/bash
# run.sh [FOLDER...]: makes a pool on six sparse files, stores real files in it, reads them back and shows what
# became of them. Called again, it finds its pool and goes on from there. run.sh --clean takes all of it away.
#
# LARDER: the binary. LARDER_DEMO: where the pool lives (~/larder-demo).
set -euo pipefail

LARDER=$(realpath "${LARDER:-${CARGO_TARGET_DIR:-target}/release/larder}")
DEMO=${LARDER_DEMO:-$HOME/larder-demo}
MNT=$DEMO/mnt
export LARDER_RUN_DIR=$DEMO/run

if [ "${1:-}" = --clean ]; then
    [ -d "$DEMO" ] || { echo "there is no $DEMO"; exit 0; }
    "$LARDER" daemon stop
    # A daemon that was killed leaves a dead mount.
    ls "$MNT" >/dev/null 2>&1 || fusermount3 -uz "$MNT" 2>/dev/null || umount -l "$MNT" 2>/dev/null || true
    rm -rf --one-file-system "$DEMO"/{devices,run,run.state,mnt}
    rmdir "$DEMO" 2>/dev/null || echo "left: $DEMO, which has other files in it"
    exit 0
fi

[ -e /dev/fuse ] || {
    echo "There is no /dev/fuse here, so nothing can be mounted: modprobe fuse, or give the container the device" >&2
    echo "(docker run --device /dev/fuse --cap-add SYS_ADMIN ...)." >&2
    exit 1
}

heading() { printf '\n== %s\n' "$*"; }
larder() { printf '$ larder %s\n' "$*"; "$LARDER" "$@"; }
bytes_of() { find "$1" -type f -printf '%s\n' 2>/dev/null | awk '{ sum += $1 } END { printf "%d", sum }'; }
human() { numfmt --to=iec "$1"; }

# Without arguments: folders that a Debian machine has, until there are 150 MB of them.
folders=("$@")
total=0
if [ $# -gt 0 ]; then
    for folder in "${folders[@]}"; do
        [ -d "$folder" ] || { echo "$folder is no folder" >&2; exit 1; }
        total=$((total + $(bytes_of "$folder")))
    done
else
    for folder in /usr/share/doc /usr/include /usr/share/perl /usr/lib/python3 /usr/bin /usr/lib/gcc /usr/share; do
        [ -d "$folder" ] && [ "$total" -lt 150000000 ] || continue
        bytes=$(bytes_of "$folder")
        [ $((total + bytes)) -lt 500000000 ] || continue
        folders+=("$folder")
        total=$((total + bytes))
    done
fi

mkdir -p "$DEMO/devices"
if ! "$LARDER" pool list -H -o name demo >/dev/null 2>&1; then
    if [ -e "$DEMO/devices/disk0" ]; then
        heading "The pool of the last time"
        larder pool import -d "$DEMO/devices" demo
    else
        heading "A pool of six files: any two of them may be lost"
        # Four of six hold data; twice what comes in, and sparse, so that they take only what is used.
        size=$((total / 2 > 1 << 30 ? total / 2 : 1 << 30))
        room=$(df --output=avail -B1 "$DEMO" | tail -n 1)
        [ "$room" -gt $((total * 7 / 4)) ] || {
            echo "$DEMO has room for $(human "$room"); this takes $(human $((total * 7 / 4))): export LARDER_DEMO=DIR" >&2
            exit 1
        }
        for i in 0 1 2 3 4 5; do truncate -s "$size" "$DEMO/devices/disk$i"; done
        larder pool create -m "$MNT" demo raidz2 "$DEMO"/devices/disk{0,1,2,3,4,5}
    fi
fi

# copy FROM TO: with a bar; what the unpacking tar has written is in its /proc/PID/io.
copy() {
    local total written=0 began now took rate left pid
    total=$(bytes_of "$1")
    began=$(date +%s%N)
    tar -C "$1" -cf - . 2>/dev/null | tar -C "$2" -xpf - &
    pid=$!
    while [ -t 1 ] && kill -0 $pid 2>/dev/null; do
        written=$(sed -n 's/^wchar: //p' /proc/$pid/io 2>/dev/null) || break
        took=$((($(date +%s%N) - began) / 1000000 + 1))
        rate=$((${written:-0} * 1000 / took + 1))
        left=$((total > written ? (total - written) / rate : 0))
        printf '\r  %s of %s  %s/s  %d s left ' "$(human "${written:-0}")" "$(human "$total")" "$(human $rate)" $left
        sleep 0.2
    done
    wait $pid
    now=$(date +%s%N)
    took=$(((now - began) / 1000000 + 1))
    [ ! -t 1 ] || printf '\r\033[K'
    printf '  %-24s %8s in %d.%d s, %s/s\n' "$1" "$(human "$total")" $((took / 1000)) $((took % 1000 / 100)) \
        "$(human $((total * 1000 / took)))"
}

heading "Each folder becomes a dataset; documents are worth a stronger codec"
for folder in "${folders[@]}"; do
    folder=$(realpath "$folder")
    name=$(basename "$folder" | tr -c 'A-Za-z0-9_.\n-' _)
    # A property of the dataset says that it is whole: a copy that was cut short is made again.
    if [ "$("$LARDER" fs get -H -o value demo:copied "demo/$name" 2>/dev/null)" = yes ]; then
        echo "  $folder is there already"
        continue
    fi
    codec=lz4
    case $folder in */doc | */include) codec=zstd ;; esac
    [ -d "$MNT/$name" ] || "$LARDER" fs create -o compression=$codec "demo/$name"
    copy "$folder" "$MNT/$name"
    "$LARDER" fs set demo:copied=yes "demo/$name"
done

heading "Read back and compared"
larder pool sync demo
status=0
for folder in "${folders[@]}"; do
    name=$(basename "$(realpath "$folder")" | tr -c 'A-Za-z0-9_.\n-' _)
    # Files that this user may not read were not copied either.
    if diff -rq --no-dereference "$folder" "$MNT/$name"; then
        echo "  $folder: equal"
    else
        echo "  $folder: NOT EQUAL to $MNT/$name (unless it changed since it was copied)"
        status=1
    fi
done

heading "What became of it"
larder fs list -r -o name,logicalused,used,compressratio,compression,mountpoint demo
echo
larder pool list
echo
larder pool status demo

heading "Go on from here"
cat <<T
  export LARDER_RUN_DIR=$DEMO/run PATH=$(dirname "$LARDER"):\$PATH
  cd $MNT                                          files like any others
  larder fs set compression=zstd-9 demo                 for what is written from now on
  larder pool iostat -v demo 1                          what the devices do
  larder pool export demo; rm $DEMO/devices/disk3       lose a disk ...
  larder pool import -d $DEMO/devices demo; larder pool status        ... and look
  make clean-run                                        takes all of it away
T
exit $status
