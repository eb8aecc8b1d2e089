#!/bin/bash
# differential.sh: programs cannot tell a mount from a local disk: seeded steps of all kinds in a folder on a mount
# and in one on ext4, everything compared after each (crates/differential), while the pool is committed all the time, and
# exported and imported now and then; at several record sizes, compressed or not, cut at offsets or by content.
# STEPS: for each seed (6,000). SEEDS: for each kind of dataset (1), counted on from FIRST_SEED (1). KINDS:
# "recordsize,compression[,chunking] ...".
. "$(dirname "$0")/bed.sh"
need root fuse mkfs.ext4
STEPS=${STEPS:-6000} SEEDS=${SEEDS:-1} seed=${FIRST_SEED:-1}
KINDS=${KINDS:-4K,off 4K,lz4 128K,off 128K,zstd 1M,off 1M,lz4 4K,off,content 16K,lz4,content 128K,zstd,content}
make_bed 3 4G # for records of 1 MiB
DIFFERENTIAL=$(program differential)

# The other side has what a mount has: access times, no devices, no set-user-id; large attributes.
DISK=$BED/disk
mkdir "$DISK"
truncate -s 1G "$BED/disk.image"
mkfs.ext4 -q -b 4096 -I 256 -O ea_inode -E lazy_itable_init=0,nodiscard "$BED/disk.image"
clear_more() { umount "$DISK" 2>/dev/null || umount -l "$DISK" 2>/dev/null; }
mount -o loop,nodev,nosuid,strictatime "$BED/disk.image" "$DISK" || skip "needs loop devices"

"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
export DIFFERENTIAL_REMOUNT="'$LARDER' pool export tank && '$LARDER' pool import -d '$DEVICES' tank >/dev/null && mountpoint -q '$MNT'"
export DIFFERENTIAL_SYNC="'$LARDER' pool sync tank"
steps=0
for kind in $KINDS; do
    folder=$(tr , - <<<"$kind")
    IFS=, read -r recordsize compression chunking <<<"$kind"
    "$LARDER" fs create -o recordsize="$recordsize" -o compression="$compression" -o chunking="${chunking:-fixed}" \
        "tank/$folder"
    for _ in $(seq "$SEEDS"); do
        mounted
        what="$kind: $STEPS steps of seed $seed"
        if "$DIFFERENTIAL" "$MNT/$folder" "$DISK" "$seed" "$STEPS" >"$BED/out/differential" 2>&1; then
            ok "$what"
            sed "s/^/  $kind: /" "$BED/out/differential"
            steps=$((steps + STEPS))
        else
            bad "$what"
            sed 's/^/    /' "$BED/out/differential"
        fi
        seed=$((seed + 1))
    done
done
healthy
finish "$steps steps alike"
