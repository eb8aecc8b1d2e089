#!/bin/bash
# cache.sh: a pool with a cache device: files are read from its copies, which outlive exports and kill -9; it vanishes,
# rots, is taken out and another added, and all files are what they were.
# MIB (200): of files.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum python3
MIB=${MIB:-200}
room 2
make_bed 2 1G
mkdir "$BED/fast"
FAST=$BED/fast/ssd
truncate -s 512M "$FAST"

# import: the pool, with its cache where that is there.
import() { "$LARDER" pool import -d "$DEVICES" -d "$BED/fast" tank && mounted; }
# anew: as after a boot: neither the pool's memory nor the kernel's has anything.
anew() { "$LARDER" pool export tank && import; }
# whole WHAT: all files are as they were.
whole() { check "$1" sh -c "cd '$MNT' && sha256sum --quiet --strict -c '$BED/sums'"; }
# figure NAME: one of the cache's, by JSON; 0 where there is none.
figure() {
    "$LARDER" pool status -j tank | python3 -c '
import json, sys
print((json.load(sys.stdin)["pools"]["tank"]["read_cache"] or {}).get(sys.argv[1], 0))' "$1"
}
restored() { [ "$(figure restoring)" = 0 ]; }
# On one line, since the text is wrapped.
told() { "$LARDER" pool status tank >"$BED/told" && tr -s '\n\t' '  ' <"$BED/told"; }
says() { told | grep -q -- "$1"; }
quiet() { told >"$BED/one" && ! grep -q -- "$1" "$BED/one"; }

check "a dry run shows it" sh -c "'$LARDER' pool create -n tank mirror '$DEVICES'/disk* cache '$FAST' | grep -q '^.cache\$'"
"$LARDER" pool create -m "$MNT" -O compression=off tank mirror "$DEVICES"/disk* cache "$FAST"
mounted
check "status has a section" says " cache $BED/fast"
check "and figures" says ' cache: .* of '
python3 - "$MNT" "$MIB" <<'PY'
import os, random, sys
rng, left, number = random.Random(5), int(sys.argv[2]) << 20, 0
while left > 0:
    size = rng.choice((5_000, 60_000, 300_000, 2_000_000))
    folder = f"{sys.argv[1]}/{number % 20}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{number}", "wb") as file:
        file.write(rng.randbytes(size))
    left, number = left - size, number + 1
PY
(cd "$MNT" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$BED/sums"

# What was read ahead of a reader is copied when it is read again.
for round in 1 2 3; do
    anew
    check "copies are found again, $round" within 60 restored
    whole "read from disks, $round"
done
anew
check "copies are found again" within 60 restored
whole "read from copies"
hits=$(figure hits)
check "some hundred reads found copies: $hits" test "$hits" -gt 200
check "status tells of them" says 'of the reads that memory missed'
check "iostat tells of it" sh -c "'$LARDER' pool iostat -v tank | grep -q '^cache '"
check "arcstat tells of it" sh -c "'$LARDER' cachestat -Hp -f l2hits tank | grep -qv '	0\$'"
check "losses survived are those of the mirror" says 'risk: 1 more loss'

# What came into the slot that is being filled is there after a kill, too: no summary had told of it.
head -c 3M /dev/urandom >"$MNT/0/late"
(cd "$MNT" && sha256sum ./0/late) >>"$BED/sums"
anew
check "copies are found again before a kill" within 60 restored
known=$(figure blocks)
cat "$MNT/0/late" >"$BED/late"
copied() { [ "$(figure blocks)" -gt "$known" ]; }
check "it is copied" within 20 copied
sleep 1
before=$(figure blocks)
kill_daemon
umount -l "$MNT" 2>/dev/null || true
import
check "copies are found again after a kill" within 60 restored
check "none of $before is lost with a kill: $(figure blocks)" test "$(figure blocks)" -ge "$before"
whole "read from copies after a kill"

"$LARDER" pool export tank
mv "$FAST" "$BED/away"
check "what can be imported shows it" sh -c "'$LARDER' pool import -d '$DEVICES' | grep -A1 '^.cache\$' | grep -q UNAVAIL"
check "and is not alarmed" sh -c "'$LARDER' pool import -d '$DEVICES' >'$BED/listed' && ! grep -q 'status:' '$BED/listed'"
check "an import without it" import
whole "without it"
check "the pool is online" says 'state: ONLINE'
check "and says what is missing" says 'Nothing is lost'
healthy
check "the action is to be pasted" says "action: larder pool remove tank $FAST"
mv "$BED/away" "$FAST"
check "it comes back by itself" within 150 quiet UNAVAIL

# Rot, in all but the labels.
"$LARDER" pool export tank
python3 - "$FAST" <<'PY'
import os, sys
with open(sys.argv[1], "r+b") as file:
    for at in range(4 << 20, 500 << 20, 100_000):
        file.seek(at)
        file.write(os.urandom(64))
PY
import
whole "over a cache that rotted"
check "what it had was told from what it should be" says 'Nothing\|None of it was believed'
check "errors are forgotten" "$LARDER" pool clear tank
check "all is well" quiet 'status:'

check "it is taken out" "$LARDER" pool remove tank "$FAST"
check "status has no section any more" quiet " cache $BED/fast"
whole "without any"
check "another is added" "$LARDER" pool add tank cache "$FAST"
anew
for round in 1 2; do
    (cd "$MNT" && find . -type f -print0 | xargs -0 -P 4 -n 20 cat) >/dev/null 2>&1 &
    sleep 0.$((round * 3))
    kill_daemon
    wait $! || true
    umount -l "$MNT" 2>/dev/null || true
    check "import after kill -9 in the middle of reads, $round" import
    whole "after kill -9 in the middle of reads, $round"
done
check "a scrub finds nothing" "$LARDER" pool scrub -w tank
check "no errors" says 'errors: No known data errors'
healthy
finish
