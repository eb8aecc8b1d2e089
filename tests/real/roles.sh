#!/bin/bash
# roles.sh: pools whose log and metadata have devices of their own: what is synced asks the log alone, the log is lost
# and nobody notices, it is lost with the power and import asks, it is removed and added; metadata is where it belongs.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum python3
room 2
make_bed 2 1G
mkdir "$BED/fast"
LOG=$BED/fast/log
truncate -s 256M "$LOG" "$BED/fast/second" "$BED/fast/a" "$BED/fast/b"

import() { "$LARDER" pool import "$@" -d "$DEVICES" -d "$BED/fast" tank && mounted; }
# On one line, since the text is wrapped.
told() { "$LARDER" pool status tank >"$BED/told" && tr -s '\n\t' '  ' <"$BED/told"; }
says() { told | grep -q -- "$1"; }
quiet() { told >"$BED/one" && ! grep -q -- "$1" "$BED/one"; }
whole() { check "$1" sh -c "cd '$MNT' && sha256sum --quiet --strict -c '$BED/sums'"; }
sums() { (cd "$MNT" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum) >"$BED/sums"; }
# synced COUNT: so many small files, each synced.
synced() {
    python3 - "$MNT" "$1" <<'PY'
import os, random, sys
rng = random.Random(os.getpid())
for _ in range(int(sys.argv[2])):
    name = f"{sys.argv[1]}/{rng.getrandbits(60):x}"
    with open(name, "wb", buffering=0) as file:
        file.write(rng.randbytes(rng.choice((100, 5_000, 40_000))))
        os.fsync(file.fileno())
PY
}
# small COUNT: so many files of 6000 bytes that no codec makes smaller.
small() {
    mkdir -p "$MNT/small"
    for ((i = 0; i < $1; i++)); do head -c 6000 /dev/urandom >"$MNT/small/$i"; done
}
# writes WHICH: requests that the devices of a class took so far, by JSON: logs, special, fast, or data.
writes() {
    "$LARDER" pool iostat -vj tank | python3 -c '
import json, sys
pool = json.load(sys.stdin)["pools"]["tank"]
of = pool["vdevs"] if sys.argv[1] == "data" else pool.get(sys.argv[1], {})
def leaves(vdev):
    below = vdev.get("vdevs") or {}
    return sum(map(leaves, below.values())) if below else vdev["write_ops"]
print(sum(map(leaves, of.values())))' "$1"
}
# taken WHICH: bytes that are allocated there.
taken() {
    "$LARDER" pool iostat -vj tank | python3 -c '
import json, sys
pool = json.load(sys.stdin)["pools"]["tank"]
of = pool["vdevs"] if sys.argv[1] == "data" else pool.get(sys.argv[1], {})
print(sum(vdev["alloc_space"] for vdev in of.values()))' "$1"
}

check "a dry run shows it" sh -c "'$LARDER' pool create -n tank mirror '$DEVICES'/disk* log '$LOG' | grep -A1 '^.logs\$' | grep -q '$LOG'"
truncate -s 64M "$BED/fast/tiny"
truncate -s 8G "$BED/fast/wide"
check "a dry run refuses one that is too small" fails 2 "are needed" \
    "$LARDER" pool create -n tank "$BED/fast/wide" log "$BED/fast/tiny"
rm "$BED/fast/tiny" "$BED/fast/wide"
check "data is asked for" fails 2 "no devices for data" "$LARDER" pool create tank log "$LOG"
check "metadata must be as safe as data" fails 2 "the weakest would count" \
    "$LARDER" pool create tank mirror "$DEVICES"/disk* special "$LOG"
"$LARDER" pool create -m "$MNT" -O compression=off tank mirror "$DEVICES"/disk* log "$LOG"
mounted
check "status has a section" says " logs $BED/fast/log"
check "list has one" sh -c "'$LARDER' pool list -v tank | grep -q '^logs '"
check "what is at risk is said" says "risk: 1 more loss is survived, whichever device it is; if the log's device is lost and the power"
healthy
synced 20
# Between two commits, which come every five seconds.
asked() {
    local before after
    "$LARDER" pool sync tank 2>/dev/null || sync -f "$MNT"
    before=$(writes data)
    synced 10
    after=$(writes data)
    [ "$after" = "$before" ]
}
check "what is synced asks the log's device alone" within 60 asked
check "and that was asked" test "$(writes logs)" -gt 0
sums

kill_daemon
check "import after kill -9" import
whole "after kill -9"

# The log fails while it is in use, and the pool goes on.
"$LARDER" pool export tank
"$LARDER" pool import -d "$DEVICES" -d "$LOG" tank && mounted
check "it can be taken offline" "$LARDER" pool offline tank "$LOG"
synced 20
check "the pool is degraded, not more" says 'state: DEGRADED'
check "it says that all can be read and written" says 'All data can be read and written'
sums
kill_daemon
mv "$LOG" "$BED/away"
check "import without a log that was left" import
whole "without the log"
mv "$BED/away" "$LOG"
check "it is back" within 150 sh -c "'$LARDER' pool online tank '$LOG' && '$LARDER' pool wait -t resilver tank && '$LARDER' pool status -x tank | grep -q healthy"
synced 10

# It is lost together with the power: import asks.
"$LARDER" pool sync tank && synced 1 && "$LARDER" pool sync tank
synced 5
kill_daemon
mv "$LOG" "$BED/away"
listed() { "$LARDER" pool import -d "$DEVICES" | tr -s '\n\t' '  ' | grep -q -- "$1"; }
check "what can be imported shows it" listed 'logs .* UNAVAIL'
check "import asks" fails 2 "where the intent log may go on" import
check "and says how to do without" grep -q 'pool import -m tank' "$BED/out/said"
check "and of when the last commit is" grep -q "which is of $(date +%Y)" "$BED/out/said"
check "nothing was changed by that" fails 2 "where the intent log may go on" import
mv "$BED/away" "$LOG"
check "with it, import has everything" import
sums
synced 5
kill_daemon
mv "$LOG" "$BED/away"
check "import without it, as was asked for" import -m
whole "all of the last commit"
synced 5
sums
check "status says what can be done" says "do without it: larder pool remove tank $LOG"
check "that can be typed though it is gone" "$LARDER" pool remove tank "$LOG"
check "no section any more" quiet ' logs '
healthy
rm "$BED/away"
truncate -s 256M "$LOG"
check "another is added, mirrored" "$LARDER" pool add tank log mirror "$LOG" "$BED/fast/second"
check "status has it" says ' logs mirror-2 '
synced 10
sums
check "one of two devices is no log" fails 2 "one of several devices" "$LARDER" pool remove tank "$LOG"
check "the whole is removed" "$LARDER" pool remove tank mirror-2
check "no section any more" quiet ' logs '
whole "without any log"

check "metadata gets devices" "$LARDER" pool add tank fast mirror "$BED/fast/a" "$BED/fast/b"
check "status has them" says ' fast mirror-3 '
synced 200
sums
check "small records go there too" "$LARDER" fs set special_small_blocks=8K tank
check "and it is told" test "$("$LARDER" fs get -Hp -o value special_small_blocks tank)" = 8192
"$LARDER" pool sync tank
before=$(taken fast) data=$(taken data)
small 2000
"$LARDER" pool sync tank
check "and are on those devices" test "$(($(taken fast) - before))" -gt $((8 << 20))
check "and not on the others" test "$(($(taken data) - data))" -lt $((4 << 20))
sums
"$LARDER" pool export tank
import
whole "with metadata elsewhere"
kill_daemon
check "import after kill -9 again" import
whole "and after kill -9"
check "a scrub finds nothing" "$LARDER" pool scrub -w tank
check "no errors" says 'errors: No known data errors'
"$LARDER" pool export tank
mv "$BED/fast/a" "$BED/fast/b" "$BED"
check "without metadata there is no pool" fails 1 "devices cannot be used" import
mv "$BED/a" "$BED/b" "$BED/fast"
check "with it there is" import
whole "at the end"
healthy
finish
