#!/bin/bash
# advise.sh: advice about folders and datasets; the lines that it gives are run, and what was predicted happens.
. "$(dirname "$0")/bed.sh"
need root fuse
# So large that records may have 1M.
make_bed 2 64G
SRC=$BED/src
mkdir -p "$SRC"/{docs,films,machines,empty}

# fails CODE WORDS COMMAND...: the command fails so, and says so.
fails() {
    local code=$1 words=$2 status=0
    shift 2
    "$@" >"$BED/out/said" 2>&1 || status=$?
    [ "$status" = "$code" ] && grep -qF -- "$words" "$BED/out/said" || { cat "$BED/out/said"; return 1; }
}
says() { local words=$1; shift; "$@" >"$BED/out/said" 2>&1; grep -qF -- "$words" "$BED/out/said" || { cat "$BED/out/said"; return 1; }; }
# number OF: a number in JSON, by the names on the way there.
number() { tr -d ' \n' <"$1" | grep -o "\"$2\":[0-9.]*" | head -1 | sed 's/.*://'; }

for n in $(seq 200); do seq $((n * 1000)) $((n * 1000 + 9000)) >"$SRC/docs/$n.txt"; done
head -c 60M /dev/urandom >"$SRC/films/one.mkv"
head -c 40M /dev/urandom >"$SRC/films/two.mkv"
# Machines from one template, each with pages of its own, and holes.
head -c 24M /dev/urandom >"$BED/out/template"
for n in 1 2 3; do
    cp "$BED/out/template" "$SRC/machines/$n.img"
    for at in $(seq $n 37 6000); do head -c 4096 /dev/urandom | dd of="$SRC/machines/$n.img" bs=4096 seek="$at" conv=notrunc status=none; done
    truncate -s 200M "$SRC/machines/$n.img"
done
ln "$SRC/films/one.mkv" "$SRC/films/again.mkv"
ln -s / "$SRC/docs/root"

touch -a -d 2001-01-01 "$SRC/films/two.mkv"
says "larder fs create" "$LARDER" advise --exact "$SRC"
cp "$BED/out/said" "$BED/out/advice"
check "access times stay" test "$(stat -c %X "$SRC/films/two.mkv")" = "$(date -d 2001-01-01 +%s)"
check "hard links count once, links are not followed" grep -q "left out: 1 further names of files (hard links), 1 symbolic links" "$BED/out/advice"
check "films: neither" grep -Eq "^films .* neither pays here" "$BED/out/advice"
check "documents are compressed" grep -Eq "^docs .* saves" "$BED/out/advice"
check "machines are shared" grep -Eq "^machines .*dedup=on recordsize=" "$BED/out/advice"
check "no folder without anything" test "$(grep -c '^empty' "$BED/out/advice")" = 0
check "what is no path" fails 1 "cannot look at" "$LARDER" advise "$SRC/gone"
check "what is no memory" fails 2 "is no size of 64M or more" "$LARDER" advise --memory 1M "$SRC"
check "numbers for scripts" sh -c "'$LARDER' advise --exact -j '$SRC/machines' >'$BED/out/machines.json'"
check "with a version" grep -q output_version "$BED/out/machines.json"
check "holes are no data" test "$(number "$BED/out/machines.json" data)" -le $((73 << 20))
check "a page" "$LARDER" advise --html "$BED/out/page.html" "$SRC"
check "that needs nothing else" sh -c "grep -q '<svg' '$BED/out/page.html' && ! grep -Eq '(src|href)=' '$BED/out/page.html'"

# Interrupted: what is known so far.
head -c 1G /dev/zero | tr '\0' x >"$SRC/long.log"
"$LARDER" advise --exact "$SRC/long.log" >"$BED/out/cut" 2>&1 &
PID=$!
# It reads, so it listens.
until ls -l /proc/$PID/fd 2>/dev/null | grep -q long.log || ! kill -0 $PID 2>/dev/null; do sleep 0.02; done
kill -INT $PID
STATUS=0
wait $PID || STATUS=$?
check "interrupted, it says so" sh -c "[ $STATUS = 3 ] && grep -q INTERRUPTED '$BED/out/cut' || { cat '$BED/out/cut'; false; }"
check "and gives no verdict on what it has not seen" sh -c "! grep -q 'neither pays' '$BED/out/cut'"
rm "$SRC/long.log"

# Memory: many files with several names, and long folders.
mkdir "$SRC/many"
(cd "$SRC/many" && seq -f "$(printf "%0100d" 0)-%.0f" 1 20000 | xargs -n 1000 touch)
"$LARDER" advise --exact --memory 64M "$SRC" >"$BED/out/small" 2>&1 &
PID=$!
PEAK=0
while kill -0 $PID 2>/dev/null; do
    NOW=$(awk '/VmHWM/ { print $2 }' /proc/$PID/status 2>/dev/null || true)
    [ -z "$NOW" ] || PEAK=$NOW
    sleep 0.05
done
wait $PID || true
check "memory stays within its bound ($PEAK KiB of 64 MiB)" test "$PEAK" -gt 0 -a "$PEAK" -le 65536
rm -r "$SRC/many"

# The lines are run, and files copied: what happens is what was predicted.
"$LARDER" pool create -m "$MNT" tank mirror $(devices)
mounted
grep -E '^ +larder fs (create|set)' "$BED/out/advice" | sed 's/^ *larder //' | sort -u >"$BED/out/lines"
check "there are lines to run" test "$(wc -l <"$BED/out/lines")" -ge 3
while read -r line; do check "$line" "$LARDER" $line; done < <(grep create "$BED/out/lines"; grep ' set ' "$BED/out/lines")
check "as advised" sh -c "[ \"\$('$LARDER' fs get -Hpo value dedup tank/machines)\" = on ]"
cp --sparse=always --reflink=never "$SRC"/machines/*.img "$MNT/machines/"
"$LARDER" pool sync tank
check "of a dataset the pool's own figures" says "in the pool: tank/machines has" "$LARDER" advise tank/machines
check "also by its mount point" says "nothing to change: tank/machines is as advised" "$LARDER" advise --exact "$MNT/machines"
check "what was predicted happened" sh -c "'$LARDER' advise --compare='$BED/out/machines.json' tank/machines >'$BED/out/said'; grep -q 'dedup=on.*as predicted' '$BED/out/said' || { cat '$BED/out/said'; false; }"
check "and would be predicted now" sh -c "'$LARDER' advise --exact --compare '$MNT/machines' >'$BED/out/said'; [ \$(grep -c 'as predicted' '$BED/out/said') = 2 ] || { cat '$BED/out/said'; false; }"
check "of one dataset alone" fails 2 "takes one dataset" "$LARDER" advise --compare "$SRC"
check "of what it said alone" fails 2 "is nothing that larder advise -j printed" "$LARDER" advise --compare=/etc/hostname tank/machines
check "a dataset that is none" fails 1 "does not exist" "$LARDER" advise tank/gone
check "exported" "$LARDER" pool export tank
finish
