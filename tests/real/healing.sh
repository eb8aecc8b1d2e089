#!/bin/bash
# healing.sh: real files on a raidz2 of six while its devices rot, leave, return and are replaced, beside a copy that
# goes on; the daemon is killed in the midst of a resilver. At the end all files are read without each pair of devices.
# MIB (200): of files from /usr. PAIRS (15): how many pairs are lost.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum
MIB=${MIB:-200} PAIRS=${PAIRS:-15}
room 6
make_bed 6 700M

# corpus: some files of /usr, MIB MiB together, in $BED/corpus, their sums in $BED/sums.
corpus() {
    mkdir "$BED/corpus"
    find /usr/share /usr/lib /usr/bin -xdev -type f -size -8M -printf '%s\t%p\n' |
        awk -F '\t' -v most=$((MIB << 20)) 'sum + $1 <= most { sum += $1; print $2 }' >"$BED/names"
    tar -C / -cf - -T <(sed 's,^/,,' "$BED/names") | tar -C "$BED/corpus" -xf -
    (cd "$BED/corpus" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$BED/sums"
}

# whole WHAT DIR: the files of the corpus are in DIR as they were.
whole() { check "$1" sh -c "cd '$2' && sha256sum --quiet --strict -c '$BED/sums'"; }

state() { "$LARDER" pool status tank | sed -n 's/^ state: //p'; }

# scan KIND FIELD: of the newest scan of that kind.
scan() {
    "$LARDER" pool status -j tank | sed -n '/"scans": \[/,/^ *\]/p' |
        awk -v kind="$1" -v field="\"$2\":" '
            /{/ { value = "" } $1 == field { value = $2 } $1 == "\"kind\":" && index($2, kind) { mine = 1 }
            /}/ { if (mine) { gsub(/[",]/, "", value); print value; exit } }'
}

# rot DEVICE: noise over what lies on it, but for the first and last MiB.
rot() { dd if=/dev/urandom of="$DEVICES/$1" bs=1M seek=1 count=300 conv=notrunc status=none; }

corpus
"$LARDER" pool create -m "$MNT" tank raidz2 $(devices)
mounted
cp -a "$BED/corpus" "$MNT/tree"
"$LARDER" pool sync tank
# Before anything else is written: a scrub leaves alone what no commit holds yet when it begins.
rot disk1
rot disk4

# A copy that goes on beside; it is bounded, and what it removes was whole.
(
    round=0
    while [ ! -e "$BED/enough" ]; do
        mountpoint -q "$MNT" || exit 1
        dir=$MNT/beside$((round % 2))
        rm -rf "$dir" && cp -a "$BED/corpus/usr/share" "$dir" && diff -r "$BED/corpus/usr/share" "$dir" || exit 1
        round=$((round + 1))
    done
) >"$BED/out/beside" 2>&1 &
beside=$!

check "a scrub repairs all" "$LARDER" pool scrub -w tank
repaired=$(scan scrub repaired)
check "it says what it repaired" test "${repaired:-0}" -gt $((MIB << 17))
check "of two devices" test "$("$LARDER" pool status -p tank | awk '/disk[0-9]/ && $5 > 0' | wc -l)" = 2
check "and nothing was lost" sh -c "'$LARDER' pool status tank | grep -q 'errors: No known data errors'"
whole "files after rot" "$MNT/tree"
"$LARDER" pool clear tank
check "healthy once the counts are cleared" "$LARDER" pool check tank

"$LARDER" pool offline tank disk2
check "degraded without a device" test "$(state)" = DEGRADED
cp -a "$BED/corpus/usr/share" "$MNT/missed"
"$LARDER" pool sync tank
check "online" "$LARDER" pool online tank disk2
check "resilvered" "$LARDER" pool wait -t resilver tank
check "online after it" test "$(state)" = ONLINE
missed=$(scan resilver repaired)

truncate -s 700M "$DEVICES/new0" "$DEVICES/new3"
check "replace" "$LARDER" pool replace -w tank disk0 "$DEVICES/new0"
check "online after replacing" test "$(state)" = ONLINE
replaced=$(scan resilver repaired)
check "who was away got less than who is new" test "$missed" -lt "$replaced"
rm "$DEVICES/disk0"

# The end of the copy, then the daemon's.
touch "$BED/enough"
wait $beside || bad "the copy beside: $(tail -n 3 "$BED/out/beside")"
"$LARDER" pool sync tank
"$LARDER" pool set scan_rate=10M tank
check "replace under a limit" "$LARDER" pool replace tank disk3 "$DEVICES/new3"
begun() { before=$(scan resilver examined) && [ "${before:-0}" -gt 0 ]; }
check "it is under way" within 60 begun
kill_daemon
check "import in the midst of it" "$LARDER" pool import -d "$DEVICES" tank
mounted
whole "files in the midst of it" "$MNT/tree"
check "it goes on by itself" test -n "$(scan resilver started)"
after=$(scan resilver examined)
"$LARDER" pool set scan_rate=none tank
check "to its end" "$LARDER" pool wait -t resilver tank
check "online at the end" test "$(state)" = ONLINE
rm "$DEVICES/disk3"
check "a last scrub finds nothing" "$LARDER" pool scrub -w tank
check "nothing to repair" test "$(scan scrub repaired)" = 0
"$LARDER" pool export tank

mkdir "$BED/away"
pairs=0
mapfile -t all < <(ls "$DEVICES")
for a in "${!all[@]}"; do
    for b in "${!all[@]}"; do
        [ "$a" -lt "$b" ] && [ $pairs -lt "$PAIRS" ] || continue
        pairs=$((pairs + 1))
        mv "$DEVICES/${all[a]}" "$DEVICES/${all[b]}" "$BED/away"
        check "import without ${all[a]} and ${all[b]}" "$LARDER" pool import -o readonly=on -d "$DEVICES" tank
        mounted
        whole "files without ${all[a]} and ${all[b]}" "$MNT/tree"
        check "what was missed without ${all[a]} and ${all[b]}" diff -r "$BED/corpus/usr/share" "$MNT/missed"
        "$LARDER" pool export tank
        mv "$BED/away/${all[a]}" "$BED/away/${all[b]}" "$DEVICES"
    done
done
finish "$((repaired >> 20)) MiB repaired, $((missed >> 20)) MiB missed, $((replaced >> 20)) MiB replaced, \
killed at $((${before:-0} >> 20)) MiB and found at $((${after:-0} >> 20)), $pairs pairs lost"
