#!/bin/bash
# copies.sh: a single disk that has each record twice, or three times, while it gets bad sectors: bytes of the device
# are overwritten at places that `extents` tells, under a running daemon and without one; kill -9 comes in between. Then
# older records are brought to another number of places.
# MIB (30): of files from /usr. PARTS names parts to run.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum python3
MIB=${MIB:-30}
PARTS=${PARTS:-sectors groups number}
room 2
make_bed 2 1G
DISK=$DEVICES/disk0

mkdir "$BED/corpus" "$BED/spare"
find /usr/share /usr/lib /usr/bin -xdev -type f -size -8M -size +1k -printf '%s\t%p\n' |
    awk -F '\t' -v most=$((MIB << 20)) 'sum + $1 <= most { sum += $1; print $2 }' >"$BED/names"
tar -C / -cf - -T <(sed 's,^/,,' "$BED/names") | tar -C "$BED/corpus" -xf -
(cd "$BED/corpus" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$BED/sums"

# whole WHAT DIR: the files of the corpus are in DIR as they were.
whole() { check "$1" sh -c "cd '$2' && sha256sum --quiet --strict -c '$BED/sums'"; }

# places DIR FILE: where the blocks of all files in DIR lie now: a line each, `stored`, then `device offset` of each
# place.
places() {
    find "$1" -type f -print0 | xargs -0 -n 200 "$LARDER" extents -j | python3 -c '
import json, sys
text, decoder, at, found = sys.stdin.read(), json.JSONDecoder(), 0, set()
while at < len(text):
    value, at = decoder.raw_decode(text, at)
    at += len(text[at:]) - len(text[at:].lstrip())
    for extent in (extent for file in value["files"].values() for extent in file["extents"]):
        found.add((extent["stored"], *(at for copy in extent["copies"] for at in (copy["device"], copy["offset"]))))
for one in sorted(found):
    print(*one, sep="\t")' >"$2"
}

# counts FILE: numbers of places that blocks have.
counts() { awk -F '\t' '{ print (NF - 1) / 2 }' "$1" | sort -u | xargs; }

# spoil FILE N: noise at the N-th place of each block told in a file; how many there were.
spoil() {
    python3 - "$1" "$2" <<'PY'
import os, sys
nth, devices, done = int(sys.argv[2]), {}, 0
for line in open(sys.argv[1]):
    stored, *copies = line.rstrip("\n").split("\t")
    device, offset, stored = copies[2 * nth], int(copies[2 * nth + 1]), int(stored)
    if device not in devices:
        devices[device] = os.open(device, os.O_RDWR)
    noise = os.urandom(min(stored, 600))
    os.pwrite(devices[device], noise, offset + (stored // 2 if offset % 3 else 0) // 600 * 600)
    done += 1
for fd in devices.values():
    os.fsync(fd)
print(done)
PY
}

unharmed() { "$LARDER" pool status tank | grep -q 'errors: No known data errors'; }
errors() { "$LARDER" pool status tank | sed -n 's/.*scrub repaired .* with \([0-9]*\) errors.*/\1/p'; }

told=""

# --- One disk.
part_sectors() {
    local spoiled
    "$LARDER" pool create -m "$MNT" -O copies=2 tank "$DISK"
    mounted
    cp -a "$BED/corpus" "$MNT/tree"
    "$LARDER" pool sync tank
    check "the property is told" test "$("$LARDER" fs get -H -o value copies tank)" = 2
    places "$MNT/tree" "$BED/places"
    check "each block has two places" test "$(counts "$BED/places")" = 2

    kill_daemon
    spoiled=$(spoil "$BED/places" 0)
    check "some hundred blocks" test "$spoiled" -gt 200
    check "import over bad sectors" "$LARDER" pool import -d "$DEVICES" tank
    mounted
    whole "all files are read" "$MNT/tree"
    # What reads met is looked for first.
    check "nothing is lost" within 60 unharmed
    "$LARDER" pool set scan_rate=20M tank
    check "a scrub begins" "$LARDER" pool scrub tank
    sleep 1
    again
    whole "all files after kill -9" "$MNT/tree"
    "$LARDER" pool set scan_rate=none tank
    check "the scrub ends" "$LARDER" pool wait -t scrub tank
    check "a whole scrub" "$LARDER" pool scrub -w tank
    check "finds no errors" test "$(errors)" = 0
    check "nothing is lost after it" unharmed
    check "events tell what healed" sh -c "'$LARDER' pool events tank | grep -q healed"

    # The other places, under the daemon.
    "$LARDER" pool sync tank
    places "$MNT/tree" "$BED/now"
    check "still two places" test "$(counts "$BED/now")" = 2
    check "elsewhere than before" sh -c "! cmp -s '$BED/places' '$BED/now'"
    spoiled="$spoiled and $(spoil "$BED/now" 1)"
    check "a scrub of the other places" "$LARDER" pool scrub -w tank
    check "finds no errors there" test "$(errors)" = 0
    "$LARDER" pool sync tank
    places "$MNT/tree" "$BED/then"
    spoiled+=" and $(spoil "$BED/then" 0)"
    again
    whole "all files, now from those" "$MNT/tree"
    check "nothing is lost at the end" within 60 unharmed
    check "a last scrub" "$LARDER" pool scrub -w tank
    check "and one more" "$LARDER" pool scrub -w tank
    check "has nothing to say" test "$(errors)" = 0
    "$LARDER" pool clear tank
    healthy
    "$LARDER" pool export tank
    check "import" "$LARDER" pool import -d "$DEVICES" tank
    whole "all files at the end" "$MNT/tree"
    rm -rf "$MNT/tree"
    "$LARDER" pool destroy --now tank
    told+="$spoiled places spoiled; "
}

# --- Two disks, each a group.
part_groups() {
    "$LARDER" pool create -m "$MNT" -O copies=2 tank "$DISK" "$DEVICES/disk1"
    mounted
    cp -a "$BED/corpus" "$MNT/tree"
    "$LARDER" pool sync tank
    places "$MNT/tree" "$BED/places"
    check "both disks have each block" awk -F '\t' 'NF != 5 || $2 == $4 { exit 1 }' "$BED/places"
    "$LARDER" pool destroy --now tank
}

# --- Another number for what is there.
part_number() {
    local before used
    "$LARDER" pool create -m "$MNT" tank "$DISK"
    mounted
    cp -a "$BED/corpus" "$MNT/tree"
    "$LARDER" pool sync tank
    "$LARDER" fs snapshot tank@before
    used=$("$LARDER" fs get -Hp -o value referenced tank)
    for number in 3 2 1; do
        check "rewrite to $number" "$LARDER" fs rewrite -w -o copies=$number tank
        "$LARDER" pool sync tank
        places "$MNT/tree" "$BED/places"
        check "$number places" test "$(counts "$BED/places")" = $number
        whole "all files at $number places" "$MNT/tree"
    done
    check "charged as it was written" test "$("$LARDER" fs get -Hp -o value referenced tank)" = "$used"
    # A dataset that asks for one place shares its records with one that asks for two.
    "$LARDER" fs create -o copies=1 tank/other
    cp -a "$BED/corpus" "$MNT/other/tree"
    "$LARDER" pool sync tank
    check "records are shared" "$LARDER" fs dedup -w tank/other tank
    check "rewrite what is shared" "$LARDER" fs rewrite -w -o copies=2 tank
    "$LARDER" pool sync tank
    places "$MNT/tree" "$BED/places"
    check "what is shared has two places" test "$(counts "$BED/places")" = 2
    whole "all files that are shared" "$MNT/other/tree"
    before=$("$LARDER" fs get -Hp -o value referenced tank)
    cp -a "$BED/corpus" "$MNT/twice"
    "$LARDER" pool sync tank
    used=$("$LARDER" fs get -Hp -o value referenced tank)
    check "what is written counts twice" test $(((used - before) / 1000)) -ge $((before * 19 / 10000))
    check "quotas count it" "$LARDER" fs set refquota=$((used + (4 << 20))) tank
    check "and refuse" fails 1 "Disk quota exceeded" dd if=/dev/urandom of="$MNT/more" bs=1M count=3 conv=fsync
    healthy
    "$LARDER" pool destroy --now tank
}

for part in $PARTS; do
    "part_$part"
done
finish "${told%; }"
