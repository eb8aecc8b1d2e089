#!/bin/bash
# passes.sh: what is stored is shared (fs dedup) and stored anew with another codec (fs rewrite), in place, beside
# snapshots and clones; stopped, killed and exported in the middle, and every file and snapshot stays what it was.
. "$(dirname "$0")/bed.sh"
need root fuse
make_bed 3 1G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create -o compression=off tank/a
"$LARDER" fs create -o compression=gzip-9 -o dedup=verify tank/b
mounted

sums() { (cd "$MNT" && find a b c a/.zfs/snapshot/s b/.zfs/snapshot/s -type f 2>/dev/null -exec sha256sum {} + | LC_ALL=C sort -k 2); }
# stored: bytes of records that live, as a trace counts them.
stored() { "$LARDER" pool trace -w tank >/dev/null; "$LARDER" pool dedup -n -j tank | grep -o '"allocated": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -1; }
field() { "$LARDER" fs "$1" -j | tr ',{' '\n\n' | grep -o "\"$2\": *\"\?[^\",}]*" | head -1 | sed 's/.*: *"\?//'; }
killed() { sums >"$BED/out/after"; cmp "$BED/out/before" "$BED/out/after"; }

# Text that compresses and comes twice, and noise, which comes twice as well.
mkdir "$MNT/a/docs" "$MNT/b/docs"
for n in $(seq 300); do
    (seq $((n * 7)) $((n * 7 + 4000)); echo "$n") >"$MNT/a/docs/$n"
    # By writes of its own: cp would clone.
    dd if="$MNT/a/docs/$n" of="$MNT/b/docs/$n" bs=64K iflag=direct status=none 2>/dev/null || dd if="$MNT/a/docs/$n" of="$MNT/b/docs/$n" bs=64K status=none
done
head -c 60M /dev/urandom >"$BED/out/noise"
for copy in a/one a/two b/three; do cat "$BED/out/noise" | dd of="$MNT/$copy" bs=1M status=none; done
"$LARDER" fs snapshot -r tank@s
"$LARDER" fs clone tank/a@s tank/c
rm "$MNT/a/two" "$MNT/a/docs"/1*
"$LARDER" pool sync tank
sums >"$BED/out/before"
FIRST=$(stored)

check "a dataset that is none" fails 1 "cannot open 'tank/gone': dataset does not exist" "$LARDER" fs dedup tank/gone
check "a rate that is none" fails 2 "'fast' is no rate" "$LARDER" fs dedup --limit fast tank/a
check "without datasets it is no pass" fails 2 "name the datasets" "$LARDER" fs dedup -w
check "nothing to stop" fails 1 "a pass under way" "$LARDER" fs dedup -s tank
check "a property that changes no record" fails 2 "'recordsize' does not change how records are stored" \
    "$LARDER" fs rewrite -o recordsize=16K tank/a
check "an estimate" "$LARDER" fs dedup -n -r tank
check "changes nothing" test "$(stored)" = "$FIRST"

# In the middle, and again, and to the end.
check "it begins" "$LARDER" fs dedup --limit 4M -r tank
check "there is one at a time" fails 1 "duplicates are being looked for in" "$LARDER" fs rewrite tank/a
sleep 1
again
check "after a kill everything is as it was" killed
check "and it goes on by itself" test "$(field dedup state)" = running
check "it can be stopped" "$LARDER" fs dedup -s tank
check "and is" test "$(field dedup state)" = stopped
check "to the end" "$LARDER" fs dedup -w -r tank
check "nothing was unreadable" test "$(field dedup unread)" = 0
check "files, snapshots and clones are what they were" killed
SHARED=$(stored)
# The noise of a and b, and the text of both.
check "what was there twice is there once ($FIRST, $SHARED)" test "$((FIRST - SHARED))" -gt $((60 << 20))
check "freed is what was gained" test "$(field dedup before)" -gt $((60 << 20))
check "a second time there is nothing to share" sh -c "'$LARDER' fs dedup -w -r tank | grep -q ' 0 shared'"

check "what rewriting would bring" sh -c "'$LARDER' fs rewrite -n -o compression=zstd-9 tank/a tank/b | grep -q 'would go from'"
check "asking sets nothing" test "$("$LARDER" fs get -Hpo value compression tank/a)" = off
check "rewriting begins" "$LARDER" fs rewrite --limit 4M -o compression=zstd-9 tank/a tank/b
check "and sets what it is to be" test "$("$LARDER" fs get -Hpo value compression tank/b)" = zstd-9
sleep 1
again
check "after a kill everything is as it was" killed
check "it goes on to the end" sh -c "'$LARDER' fs rewrite -s tank && '$LARDER' fs rewrite -w tank/a tank/b"
check "files, snapshots and clones are what they were" killed
SMALL=$(stored)
check "text takes less ($SHARED, $SMALL)" test "$SMALL" -lt "$SHARED"

# What is sent of them arrives.
check "snapshots are sent and received" sh -c "'$LARDER' fs send tank/b@s | '$LARDER' fs receive tank/d"
same "as they are" <(cd "$MNT/b/.zfs/snapshot/s" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2) \
    <(cd "$MNT/d" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2)

# Nothing that dies takes anything with it, and all of it comes back.
rm "$MNT/a/one" "$MNT/b/docs"/2*
sums >"$BED/out/before"
"$LARDER" pool sync tank
again
check "what is left is what it was" killed
check "a scrub finds nothing wrong" "$LARDER" pool scrub -w tank
check "nor a trace" sh -c "'$LARDER' pool trace -w tank | grep -q 'with 0 errors'"
for gone in tank/c tank/a tank/b tank/d; do "$LARDER" fs destroy --now -r "$gone"; done
"$LARDER" pool sync tank
"$LARDER" pool trace -w tank >/dev/null
"$LARDER" pool wait -t free tank
"$LARDER" pool trace -w tank >/dev/null
check "in the end everything is free" test "$("$LARDER" pool list -Hpo dedupratio tank)" = 1.00
check "exported" "$LARDER" pool export tank
finish
