#!/bin/bash
# undedup.sh: the way back from deduplication, beside writers: files get blocks of their own, snapshots keep what they
# have, the index goes. Killed in the middle, refused without room; then what was gzip-9 is stored as zstd-3: three
# commands, and no second copy.
. "$(dirname "$0")/bed.sh"
need root fuse python3
make_bed 3 1G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create -o compression=gzip-9 -o dedup=verify tank/a
"$LARDER" fs create -o dedup=on tank/b
mounted

sums() { (cd "$MNT" && find a b a/.zfs/snapshot/s -type f ! -name live 2>/dev/null -exec sha256sum {} + | LC_ALL=C sort -k 2); }
kept() { sums >"$BED/out/after"; cmp "$BED/out/before" "$BED/out/after"; }
field() { "$LARDER" fs undedup -j | tr ',{' '\n\n' | grep -o "\"$1\": *\"\?[^\",}]*" | head -1 | sed 's/.*: *"\?//'; }
says() { "$LARDER" "${@:2}" | grep -qF -- "$1" || { "$LARDER" "${@:2}"; return 1; }; }

# Text that compresses and noise, each twice in a, and the noise in b as well.
seq 1500000 >"$BED/out/text"
head -c 40M /dev/urandom >"$BED/out/noise"
for copy in a/text1 a/text2; do dd if="$BED/out/text" of="$MNT/$copy" bs=1M status=none; done
for copy in a/noise1 a/noise2 b/noise; do dd if="$BED/out/noise" of="$MNT/$copy" bs=1M status=none; done
dd if="$BED/out/noise" of="$MNT/a/live" bs=1M status=none
"$LARDER" fs snapshot tank/a@s
"$LARDER" pool sync tank
sums >"$BED/out/before"
check "it is shared" says "duplicate" pool dedup tank

check "a dataset with dedup is refused" fails 2 "its dedup is verify" "$LARDER" fs undedup tank/a
check "and told the way" grep -q "larder fs set dedup=off tank/a" "$BED/out/said"
check "what it would take is told all the same" says "are shared, their own blocks would take" fs undedup -n tank/a
"$LARDER" fs set dedup=off compression=zstd-3 tank/a
"$LARDER" fs unmount tank/a
check "files that nobody serves are not changed" fails 2 "it is not mounted" "$LARDER" fs undedup tank/a
"$LARDER" fs mount tank/a

# Beside somebody who writes to a file of it all the time.
cp "$BED/out/noise" "$BED/out/twin"
write_on "$MNT/a/live" "$BED/out/twin"
check "it begins" "$LARDER" fs undedup --limit 4M tank/a
check "there is one at a time" fails 1 "files are given blocks of their own in" "$LARDER" fs dedup tank/b
sleep 1
check "a writer reads what it wrote meanwhile" written
check "and its file has it" cmp "$MNT/a/live" "$BED/out/twin"
check "files and snapshots are what they were" kept
again
check "after a kill as well" kept
check "and it goes on by itself" test "$(field state)" = running
check "exported in the middle" "$LARDER" pool export tank
"$LARDER" pool import -d "$DEVICES" tank
mounted
sleep 1
check "it goes on by itself as well" test "$(field state)" = running
check "to the end" sh -c "'$LARDER' fs undedup -s tank && '$LARDER' fs undedup -w tank/a"
check "nothing was unreadable" test "$(field unread)" = 0
check "files and snapshots are what they were" kept
check "what was written beside it too" cmp "$MNT/a/live" "$BED/out/twin"
check "nothing is shared any more" says "0 are shared" fs undedup -n tank/a
check "the other dataset still finds what it has" sh -c "dd if='$BED/out/noise' of='$MNT/b/more' bs=1M status=none &&
    '$LARDER' pool sync tank && '$LARDER' fs undedup -n tank/b | grep -qv ' 0 are shared'"

# What it has now, with the codec that it has now.
check "rewritten" "$LARDER" fs rewrite -w tank/a
rm "$MNT/b/more"
check "files and snapshots are what they were" kept

# The last one: the index goes.
"$LARDER" fs set dedup=off tank/b
check "the last dataset" "$LARDER" fs undedup -w tank/b
"$LARDER" fs destroy --now tank/a@s
"$LARDER" pool sync tank
check "leaves no index" says "index: none" pool dedup tank
check "and shares nothing" says "1.00x" pool list -o dedupratio tank

# Copies by reference of more than there is room for.
for n in $(seq 48); do cp "$MNT/a/noise1" "$MNT/a/copy$n"; done
"$LARDER" pool sync tank
check "without room it is refused" fails 1 "blocks of their own would take" "$LARDER" fs undedup -r tank
check "and nothing was changed" cmp "$MNT/a/copy7" "$BED/out/noise"
"$LARDER" pool sync tank
again
check "a scrub finds nothing wrong" "$LARDER" pool scrub -w tank
check "nor a trace" sh -c "'$LARDER' pool trace -w tank | grep -q 'with 0 errors'"
for gone in tank/a tank/b; do "$LARDER" fs destroy --now -r "$gone"; done
"$LARDER" pool sync tank
"$LARDER" pool trace -w tank >/dev/null
"$LARDER" pool wait -t free tank
"$LARDER" pool trace -w tank >/dev/null
check "in the end everything is free" test "$("$LARDER" pool list -Hpo dedupratio tank)" = 1.00
check "exported" "$LARDER" pool export tank
finish
