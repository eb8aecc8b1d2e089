#!/bin/bash
# split.sh: a pool of mirrors is split into two while files are written; both go on, side by side; copies of disks are
# imported beside their originals once one of them has another guid.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum
room 2
make_bed 4 256M
HALF=$BED/half
mkdir "$HALF"

whole() { check "$1" sh -c "cd '$2' && sha256sum --quiet --strict -c '$BED/sums'"; }
put() { head -c "$1M" /dev/urandom >"$MNT/$2" && sync "$MNT/$2"; }
sums() { (cd "$MNT" && find . -type f -name 'file*' -print0 | sort -z | xargs -0 -r sha256sum) >"$BED/sums"; }
guid() { "$LARDER" pool get -Hp -o value guid "$1"; }

check "a pool is made" "$LARDER" pool create -m "$MNT" tank mirror "$DEVICES"/disk0 "$DEVICES"/disk1 \
    mirror "$DEVICES"/disk2 "$DEVICES"/disk3
check "files are written" put 60 file1
check "with a snapshot" "$LARDER" fs snapshot tank@before
check "and more" put 40 file2
sums

# what cannot be.
check "two of one mirror" fails 2 "one device of each mirror" "$LARDER" pool split tank half "$DEVICES/disk0" "$DEVICES/disk1"
check "a name that is taken" fails 1 "imported" "$LARDER" pool split tank tank
check "a device that is not there" fails 1 "no such device" "$LARDER" pool split tank half "$DEVICES/disk9"
check "a dry run tells which" sh -c "'$LARDER' pool split -n tank half | grep -q 'disk1 and .*disk3 would become the pool half; tank survives no loss'"
check "and nothing is done" sh -c "'$LARDER' pool status tank | grep -q disk3"

# split while somebody writes.
(for i in $(seq 200); do head -c 300000 /dev/urandom >"$MNT/busy$i" || exit 1; done) &
writer=$!
check "it is split" "$LARDER" pool split tank half "$DEVICES/disk0"
check "the writer goes on" wait "$writer"
check "what stays has two disks" sh -c "! '$LARDER' pool status tank | grep 'disk0\|disk3\|offline'"
check "and says what it survives" sh -c "'$LARDER' pool status tank | grep -q 'risk: no loss of a device is survived'"
whole "what stays has its files" "$MNT"
check "the half can be imported" sh -c "'$LARDER' pool import -d '$DEVICES' | grep -q 'pool: half'"
check "and is, beside it" "$LARDER" pool import -d "$DEVICES" -R "$HALF" half
check "another guid" [ "$(guid tank)" != "$(guid half)" ]
there=$(echo "$HALF$MNT")
whole "it has the files" "$there"
check "and the snapshot" sh -c "'$LARDER' fs list -t snapshot half | grep -q 'half@before'"
check "both are written" sh -c "echo one >'$MNT/own' && echo two >'$there/own' && sync '$MNT/own' '$there/own'"
check "both are sound" sh -c "'$LARDER' pool scrub -w tank half && '$LARDER' pool check tank half"
check "they are apart" sh -c "[ \$(cat '$MNT/own') = one ] && [ \$(cat '$there/own') = two ]"
kill_daemon
check "after a kill both come back" \
    sh -c "'$LARDER' pool import -d '$DEVICES' tank && '$LARDER' pool import -d '$DEVICES' -R '$HALF' half"
mounted
check "as they were" sh -c "[ \$(cat '$MNT/own') = one ] && [ \$(cat '$there/own') = two ]"
truncate -s 256M "$BED/new0" "$BED/new1"
check "mirrors again" sh -c "'$LARDER' pool attach -w tank '$DEVICES/disk1' '$BED/new0' && '$LARDER' pool attach -w tank '$DEVICES/disk2' '$BED/new1'"
whole "files in what stayed" "$MNT"
check "exported" "$LARDER" pool export half

# a copy beside its original.
check "and this one" "$LARDER" pool export tank
mkdir "$BED/copy"
cp --sparse=always "$DEVICES/disk1" "$DEVICES/disk2" "$BED/copy"
check "imported" "$LARDER" pool import -d "$DEVICES" -d "$BED" tank
mounted
before=$(guid tank)
check "another guid for it" "$LARDER" pool reguid tank
check "is one" [ "$(guid tank)" != "$before" ]
check "the copy can be imported beside it" "$LARDER" pool import -d "$BED/copy" -R "$HALF" tank copied
check "as what it was" [ "$(guid copied)" = "$before" ]
whole "with its files" "$there"
whole "beside the other" "$MNT"
check "both are exported" "$LARDER" pool export tank copied
check "and found as two" sh -c "[ \$('$LARDER' pool import -d '$DEVICES' -d '$BED' -d '$BED/copy' | grep -c 'pool:') = 3 ]"
finish
