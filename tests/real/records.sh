#!/bin/bash
# records.sh: files are cut into records of another size, in place, beside a writer, by fs rewrite --records: it tells
# before what snapshots will hold, is killed and exported in the middle, stopped and gone on with; the files are sent to
# another dataset. What files and snapshots hold stays what it was.
. "$(dirname "$0")/bed.sh"
need root fuse python3
make_bed 3 1G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create -o compression=off -o recordsize=128K tank/a
mounted

sums() { (cd "$MNT" && find a a/.zfs/snapshot/s -type f ! -name live -exec sha256sum {} + | LC_ALL=C sort -k 2); }
kept() { sums >"$BED/out/after"; cmp "$BED/out/before" "$BED/out/after"; }
field() { "$LARDER" fs rewrite --records -j | tr ',{' '\n\n' | grep -o "\"$1\": *\"\?[^\",}]*" | head -1 | sed 's/.*: *"\?//'; }
told() { "$LARDER" fs rewrite --records -n -j "$@" | tr ',{' '\n\n' | grep -o '"kept": *[0-9]*' | grep -o '[0-9]*$'; }
# size FILE: bytes of its records.
size() { "$LARDER" extents -j "$1" | grep -o '"record_size": *[0-9]*' | grep -o '[0-9]*$' | head -1; }
times() { stat -c '%n %s %y %z' "$MNT"/a/one "$MNT"/a/docs/*; }

head -c 96M /dev/urandom >"$BED/out/noise"
dd if="$BED/out/noise" of="$MNT/a/one" bs=1M status=none
dd if="$BED/out/noise" of="$MNT/a/live" bs=1M status=none
mkdir "$MNT/a/docs"
for n in $(seq 100); do seq "$n" $((n * 200)) >"$MNT/a/docs/$n"; done
# With holes.
dd if="$BED/out/noise" of="$MNT/a/one" bs=64K count=3 seek=2000 conv=notrunc status=none
"$LARDER" fs snapshot tank/a@s
"$LARDER" pool sync tank
sums >"$BED/out/before"
times >"$BED/out/times"

check "a property that cuts nothing" fails 2 "'dedup' does not change how records are stored" \
    "$LARDER" fs rewrite --records -o dedup=on tank/a
check "one that does, without the option" fails 2 "'recordsize' does not change how records are stored" \
    "$LARDER" fs rewrite -o recordsize=16K tank/a
check "is told the way" grep -q -- "--records cuts files anew" "$BED/out/said"
check "nothing is to be done as it is" test "$(told tank/a)" = 0
TOLD=$(told -o recordsize=16K tank/a)
check "what snapshots will hold is told ($TOLD)" test "$TOLD" -gt $((190 << 20))
check "nothing was changed by that" test "$(size "$MNT/a/one")" = 131072
"$LARDER" fs unmount tank/a
check "files that nobody serves are not changed" fails 2 "it is not mounted" "$LARDER" fs rewrite --records tank/a
"$LARDER" fs mount tank/a

# Beside somebody who writes to a file of it all the time.
cp "$BED/out/noise" "$BED/out/twin"
write_on "$MNT/a/live" "$BED/out/twin"
check "it begins" "$LARDER" fs rewrite --records --limit 6M -o recordsize=16K tank/a
check "there is one at a time" fails 1 "files are being cut anew in" "$LARDER" fs dedup tank/a
sleep 2
check "a writer reads what it wrote meanwhile" written
check "and its file has it" cmp "$MNT/a/live" "$BED/out/twin"
check "files and snapshots are what they were" kept
again
check "after a kill as well" kept
check "and what the writer had synced" cmp "$MNT/a/live" "$BED/out/twin"
check "it goes on by itself" test "$(field state)" = running
check "exported in the middle" "$LARDER" pool export tank
"$LARDER" pool import -d "$DEVICES" tank
mounted
sleep 1
check "it goes on by itself as well" test "$(field state)" = running
check "it is stopped" "$LARDER" fs rewrite -s tank
check "a file that is between two sizes is whole" kept
# A snapshot of that, to be sent.
"$LARDER" fs snapshot tank/a@between
check "to the end" "$LARDER" fs rewrite --records -w tank/a
check "nothing was unreadable" test "$(field unread)" = 0
check "files and snapshots are what they were" kept
check "what was written beside it too" cmp "$MNT/a/live" "$BED/out/twin"
check "each has the new size" test "$(size "$MNT/a/one") $(size "$MNT/a/live") $(size "$MNT/a/docs/7")" = "16384 16384 16384"
times >"$BED/out/times.now"
check "and its times" cmp "$BED/out/times" "$BED/out/times.now"
"$LARDER" pool sync tank
HELD=$("$LARDER" fs list -Hpo usedbysnapshots tank/a)
# The writer's own changes are held as well, and what was cut twice.
check "snapshots hold what was told ($TOLD, $HELD)" test "$HELD" -ge $((TOLD * 9 / 10))
check "there is no more to do" sh -c "'$LARDER' fs rewrite --records -n tank/a | grep -q ' 0 would be cut anew'"

# Streams from before to between to afterwards.
"$LARDER" fs snapshot tank/a@after
"$LARDER" fs send tank/a@s | "$LARDER" fs receive tank/b
"$LARDER" fs send -i @s tank/a@between | "$LARDER" fs receive tank/b
"$LARDER" fs send -i @between tank/a@after | "$LARDER" fs receive tank/b
same() { diff -r "$MNT/a/.zfs/snapshot/$1" "$MNT/b/.zfs/snapshot/$1"; }
for name in s between after; do check "$name arrives" same $name; done
"$LARDER" fs destroy --now -r tank/b
for name in s between after; do "$LARDER" fs destroy --now tank/a@$name; done
(cd "$MNT" && find a -type f ! -name live -exec sha256sum {} + | LC_ALL=C sort -k 2) >"$BED/out/before"
sums() { (cd "$MNT" && find a -type f ! -name live -exec sha256sum {} + | LC_ALL=C sort -k 2); }

check "back, by content" "$LARDER" fs rewrite --records -w -o chunking=content -o recordsize=64K tank/a
check "files are what they were" kept
check "and up" "$LARDER" fs rewrite --records -w -o chunking=fixed -o recordsize=256K tank/a
again
check "files are what they were" kept
check "with the largest size" test "$(size "$MNT/a/one") $(size "$MNT/a/docs/7")" = "262144 262144"
check "a scrub finds nothing wrong" "$LARDER" pool scrub -w tank
check "nor a trace" sh -c "'$LARDER' pool trace -w tank | grep -q 'with 0 errors'"
check "exported" "$LARDER" pool export tank
finish
