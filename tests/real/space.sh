#!/bin/bash
# space.sh: what AVAIL says is what can be written. Pools of each layout are filled with random bytes through the mount;
# what they took is within PER_MILLE (10) thousandths of what df said of the empty pool.
# LAYOUTS names pools as LAYOUT:DEVICES:SIZE; there are more of them where LARDER_FULL is set.
. "$(dirname "$0")/bed.sh"
need root fuse
FEW="stripe:1:256M mirror:2:256M raidz1:5:256M raidz2:6:256M"
MORE="raidz1:3:256M raidz3:8:256M raid10:4:256M raid14:5:256M stripe:1:1G raidz2:6:1G"
LAYOUTS=${LAYOUTS:-$FEW${LARDER_FULL:+ $MORE}}
PER_MILLE=${PER_MILLE:-10}
room 8
make_bed 0 1M
told=""

for cell in $LAYOUTS; do
    IFS=: read -r layout count size <<<"$cell"
    for i in $(seq "$count"); do truncate -s "$size" "$DEVICES/disk$i"; done
    [ "$layout" != stripe ] && word=$layout || word=""
    "$LARDER" pool create -m "$MNT" tank $word $(devices)
    mounted
    said=$(df --output=avail -B1 "$MNT" | tail -1 | tr -d ' ')
    dd if=/dev/urandom of="$MNT/file" bs=1M 2>"$BED/out/refusal" && bad "$cell: it never gets full"
    check "$cell: refused for lack of space" grep -qi 'no space left' "$BED/out/refusal"
    check "$cell: what was written is stored" "$LARDER" pool sync tank
    took=$(stat -c %s "$MNT/file")
    per_mille=$(((took * 1000 + said / 2) / said))
    check "$cell: $took bytes were taken, AVAIL was $said" \
        test "$per_mille" -ge $((1000 - PER_MILLE)) -a "$per_mille" -le $((1000 + PER_MILLE))
    told="$told, $cell $((per_mille / 1000)).$(printf %03d $((per_mille % 1000)))"
    "$LARDER" pool destroy --yes tank
    rm "$DEVICES"/*
done
finish "${told#, }"
