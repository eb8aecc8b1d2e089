#!/bin/bash
# healing.sh: real files on a raidz2 of six while its devices rot, leave, return and are replaced, beside a copy that
# goes on; the daemon is killed in the midst of a resilver. At the end all files are read without pairs of devices.
# Then the last good disk of a pool, with sectors that cannot be read, is replaced; and folders whose names are lost are removed.
# MIB (200): of files from /usr. PAIRS (4): how many pairs of 15 are lost. PARTS names parts to run.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum
MIB=${MIB:-200} PAIRS=${PAIRS:-4}
PARTS=${PARTS:-devices last names}
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

# A resilver has gone through something: $before bytes.
under_way() { before=$(scan resilver examined) && [ "${before:-0}" -gt 0 ]; }

# rot DEVICE: noise over what lies on it, but for the first and last MiB.
rot() { dd if=/dev/urandom of="$DEVICES/$1" bs=1M seek=1 count=300 conv=notrunc status=none; }

told=""

# --- A raidz2 in trouble.
part_devices() {
    local before="" after missed replaced repaired beside pairs nth a b all
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
    check "it is under way" within 60 under_way
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
    pairs=0 nth=0
    mapfile -t all < <(ls "$DEVICES")
    for a in "${!all[@]}"; do
        for b in "${!all[@]}"; do
            [ "$a" -lt "$b" ] || continue
            nth=$((nth + 1))
            [ $((nth * PAIRS % 15)) -lt "$PAIRS" ] || continue
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
    told+="$((repaired >> 20)) MiB repaired, $((missed >> 20)) MiB missed, $((replaced >> 20)) MiB replaced, "
    told+="killed at $((${before:-0} >> 20)) MiB and found at $((${after:-0} >> 20)), $pairs pairs lost; "
    rm "$DEVICES"/*
}

# sector FILE OFFSET DEVICE: where on a device that is not in use the sector lies that holds this of a file of noise.
sector() {
    local bytes at
    bytes=$(od -An -v -tx1 -j "$2" -N 16 "$1" | tr -d '\n' | sed 's/ /\\x/g')
    at=$(LC_ALL=C grep -obUaP -m 1 "$bytes" "$3" | head -n 1 | cut -d : -f 1)
    echo $((at / 4096 * 4096))
}

# --- The last good disk.
part_last() {
    local old=$DEVICES/old new=$DEVICES/new i at status
    rm -f "$DEVICES"/*
    truncate -s 700M "$old" "$new"
    "$LARDER" pool create -m "$MNT" tank "fault:$old"
    mounted
    cp -a "$BED/corpus" "$MNT/tree"
    mkdir "$BED/noise"
    # Without ends of lines, so that grep finds it.
    for i in 0 1 2 3; do head -c 1M < <(tr -d '\n' </dev/urandom) >"$BED/noise/$i"; done
    cp -r "$BED/noise" "$MNT/noise"
    "$LARDER" pool export tank
    for i in 0 1 2 3; do
        at=$(sector "$BED/noise/$i" $((i * 200000 + 100000)) "$old")
        echo "error read at=$at..$((at + 4096))"
    done >"$BED/out/faults"
    mv "$BED/out/faults" "$old.faults"
    check "import of a disk with bad sectors" "$LARDER" pool import -d "fault:$old" tank
    mounted
    "$LARDER" pool set scan_rate=20M tank
    check "replace the last good disk" "$LARDER" pool replace tank "$old" "$new"
    check "it is under way" within 60 under_way
    cp -a "$BED/corpus/usr/share" "$MNT/during" && "$LARDER" pool sync tank
    kill_daemon
    check "import in the midst of it" "$LARDER" pool import -d "fault:$old" -d "$new" tank
    mounted
    "$LARDER" pool set scan_rate=none tank
    check "to its end" "$LARDER" pool wait -t resilver tank
    hit() { [ "$("$LARDER" pool status -v tank | grep -c "^ *$MNT/noise/[0-3]$")" = 4 ]; }
    check "the files that are hit are named" within 60 hit
    status=$("$LARDER" pool status -v tank)
    check "no others" test "$(grep -c "^ *$MNT/" <<<"$status")" = 4
    check "the new disk waits" grep -q '(waiting: ' <<<"$status"
    check "the status names the way out" grep -q 'larder pool detach --accept-loss tank' <<<"$status"
    check "nobody lets go of the old one unasked" sh -c "! '$LARDER' pool detach tank '$old'"
    whole "files while it waits" "$MNT/tree"
    check "the loss is accepted" "$LARDER" pool detach --accept-loss tank "$old"
    "$LARDER" pool export tank
    rm "$old" "$old.faults"
    check "import of the new disk alone" "$LARDER" pool import -d "$DEVICES" tank
    mounted
    whole "files on the new disk" "$MNT/tree"
    check "what was written meanwhile" diff -r "$BED/corpus/usr/share" "$MNT/during"
    for i in 0 1 2 3; do
        # The record that is lost is padded.
        dd if="$MNT/noise/$i" of="$BED/out/rescued" bs=128K conv=noerror,sync status=none 2>"$BED/out/dd" || true
        at=$({ cmp -l "$BED/noise/$i" "$BED/out/rescued" || true; } | awk '{ print int(($1 - 1) / 131072) }' | sort -u)
        check "of file $i one record is lost" test "$at" = $(((i * 200000 + 100000) / 131072))
    done
    check "still named" within 60 hit
    check "a scrub counts them" sh -c "! '$LARDER' pool scrub -w tank"
    rm -r "$MNT/noise"
    "$LARDER" pool sync tank
    nothing_lost() { "$LARDER" pool status tank | grep -q 'errors: No known data errors'; }
    check "nothing is lost without them" within 60 nothing_lost
    healthy "the pool is healthy without them"
    "$LARDER" pool export tank
    told+="4 bad sectors of the last good disk cost 4 records; "
    rm "$DEVICES"/*
}

# --- Names that nothing gives back.
part_names() {
    local disk=$DEVICES/disk dir i lost=0
    rm -f "$DEVICES"/*
    truncate -s 700M "$disk"
    "$LARDER" pool create -m "$MNT" tank "fault:$disk"
    mounted
    for dir in a b c d e; do
        mkdir "$MNT/$dir" "$MNT/$dir/sub"
        for i in $(seq 800); do echo "$dir $i" >"$MNT/$dir/needle-$dir-$i-$RANDOM-and-a-long-name-so-that-there-are-many-nodes"; done
        for i in $(seq 20); do echo "$dir $i" >"$MNT/$dir/sub/$i"; done
    done
    (cd "$MNT" && find a e -type f -print0 | xargs -0 sha256sum) >"$BED/names.sums"
    "$LARDER" pool export tank
    # Wherever names of that folder lie, old nodes as well.
    { LC_ALL=C grep -obUa 'needle-c-[0-9]*' "$disk" || true; } |
        awk -F: '{ print int($1 / 4096) * 4096 }' | sort -un | awk '{ printf "error read at=%d..%d\n", $1, $1 + 4096 }' >"$BED/out/faults"
    check "nodes with names are found" test -s "$BED/out/faults"
    mv "$BED/out/faults" "$disk.faults"
    check "import with names that are lost" "$LARDER" pool import -d "fault:$disk" tank
    mounted
    check "the folder cannot be listed" sh -c "! ls '$MNT/c'"
    named() { "$LARDER" pool status -v tank | grep -q "^ *$MNT/c\|<metadata>"; }
    check "it is named" within 60 named
    others() { (cd "$MNT" && sha256sum --quiet --strict -c "$BED/names.sums"); }
    check "what lies apart from it is whole" others
    lost=$({ find "$MNT"/[bd] -type f -exec cat {} + 2>&1 >/dev/null || true; } | wc -l)
    # What is below stops the first.
    for i in 1 2 3; do rm -rf "$MNT"/[bcd] 2>/dev/null || true; done
    check "all of it is removed" test -z "$(ls -d "$MNT"/[bcd] 2>/dev/null)"
    "$LARDER" pool sync tank
    # The node stays, with what it held beside.
    clean() { ! "$LARDER" pool status -v tank | grep -q "^ *$MNT/"; }
    check "no file is named any more" within 60 clean
    mkdir "$MNT/c" && echo new >"$MNT/c/new"
    check "others are whole still" others
    "$LARDER" pool export tank
    check "import" "$LARDER" pool import -d "fault:$disk" tank
    mounted
    check "others are whole after an import" others
    same "and what came anew" <(echo new) "$MNT/c/new"
    "$LARDER" pool export tank
    told+="beside a folder without names $lost files were lost; "
    rm "$DEVICES"/*
}

corpus
for part in $PARTS; do
    begun=$SECONDS
    part_"$part"
    told+="$part took $((SECONDS - begun)) s; "
done
finish "${told%; }"
