#!/bin/bash
# repair.sh: pools that no import takes any more, or that lost more than they tolerate, and what `larder repair` saves:
# no roots, no tables, no map, labels gone, devices gone beyond tolerance, segments overwritten.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum python3 setfattr
room 3
make_bed 5 192M
# Each into a folder of its own: ext4 looks long for inodes where many were removed a moment ago.
SAVED=$BED/saved0
another() { SAVED=$BED/saved$((${SAVED##*saved} + 1)); }

# No root is left; or nothing of a device but its slots.
damage() { python3 - "$@" <<'PY'
import os, random, sys
what, files = sys.argv[1], sys.argv[2:]
MIB = 1 << 20
for name in files:
    with open(name, "r+b") as file:
        size = os.fstat(file.fileno()).st_size // MIB * MIB
        for area in (0, size - MIB):
            if what == "roots":
                file.seek(area + (128 << 10))
                file.write(bytes(14 << 16))
            elif what == "labels":
                file.seek(area)
                file.write(bytes(MIB))
        if what == "slots":
            for slot in random.Random(7).sample(range(180), 9):
                file.seek(MIB + slot * MIB)
                file.write(bytes(MIB))
PY
}
sums() { (cd "$1" && find . -type f ! -path './lost+found*' -print0 | sort -z | xargs -0 -r sha256sum) >"$BED/sums"; }
unchanged() { (cd "$1" && sha256sum --quiet --strict -c "$BED/sums"); }
# Names, kinds, owners, times, targets and attributes; sizes and times of folders are their file system's.
meta() {
    (cd "$1" && find . ! -type d -printf '%p %y %m %U %G %s %n %T@ %l\n' -o -printf '%p %y %m %U %G\n' | sort &&
        find . -type f -print0 | sort -z | xargs -0 getfattr -hd 2>/dev/null)
}

make_pool() {
    check "a pool: $*" "$LARDER" pool create -m "$MNT" tank "$@"
    check "files" sh -c "cp -a /usr/include '$MNT/' && mkdir '$MNT/few' && cp -a /etc/hosts /etc/passwd '$MNT/few/' && \
        ln -s ../include '$MNT/few/link' && ln '$MNT/few/hosts' '$MNT/few/same' && mkfifo '$MNT/few/fifo' && \
        setfattr -n user.note -v kept '$MNT/few/passwd' && truncate -s 300M '$MNT/few/hole'"
    check "a dataset" "$LARDER" fs create tank/inner
    check "with files" sh -c "cp -a /usr/include/linux '$MNT/inner/'"
    check "a snapshot" "$LARDER" fs snapshot tank/inner@before
    rm -rf "$MNT"/inner/linux/a*
    sync "$MNT"
}

end_pool() { check "the pool is gone" "$LARDER" pool destroy --now tank; rm -r "$BED/copy"; another; }

# Everything but the blocks.
make_pool raidz1 "$DEVICES"/disk0 "$DEVICES"/disk1 "$DEVICES"/disk2
sums "$MNT"
meta "$MNT" >"$BED/meta"
check "not of a pool that is imported" fails 1 "in use" "$LARDER" repair "$DEVICES/disk0"
check "exported" "$LARDER" pool export tank
mkdir "$BED/copy"
cp --sparse=always "$DEVICES"/disk[012] "$BED/copy/"
check "a sound pool is told to be whole" sh -c "'$LARDER' repair '$DEVICES' | grep -q 'the newest'"
damage roots "$BED"/copy/disk?
check "no import without roots" fails 1 "" "$LARDER" pool import -d "$BED/copy" tank
sha256sum "$BED"/copy/disk? >"$BED/before"
check "saved" "$LARDER" repair --to "$SAVED" --snapshots "$BED/copy"
check "nothing was written to the devices" sha256sum --quiet -c "$BED/before"
check "every file" unchanged "$SAVED/tank"
meta "$SAVED/tank" | grep -v 'inner@before' >"$BED/meta2"
same "owners, times, links, attributes" "$BED/meta" "$BED/meta2"
check "the snapshot" sh -c "ls '$SAVED/tank/inner@before/linux' | grep -q '^a'"
check "a hole is one" [ "$(du -k "$SAVED/tank/few/hole" | cut -f1)" -lt 100 ]
check "not over what is there" fails 1 "not empty" "$LARDER" repair --to "$SAVED" "$BED/copy"

# Into another pool, which is imported.
check "another pool" "$LARDER" pool create -m "$BED/other" other "$DEVICES/disk4"
check "told before" sh -c "'$LARDER' repair -n --to other '$BED/copy' | grep -q '2 datasets and 1 snapshot.* would be in other/tank'"
check "and nothing was done" fails 1 "does not exist" "$LARDER" fs list other/tank
check "into it" "$LARDER" repair --to other "$BED/copy"
check "nothing was written to the devices" sha256sum --quiet -c "$BED/before"
check "every file" unchanged "$BED/other/tank"
meta "$BED/other/tank" >"$BED/meta2"
same "owners, times, links, attributes" "$BED/meta" "$BED/meta2"
check "the snapshot" sh -c "ls '$BED/other/tank/inner/.zfs/snapshot/before/linux' | grep -q '^a'"
check "and no other" [ "$("$LARDER" fs list -H -t snapshot -o name -r other)" = other/tank/inner@before ]
check "sharing is kept" [ "$("$LARDER" fs get -Hpo value used other/tank/inner@before)" -lt 1000000 ]
check "not over what is there" fails 1 "is there already" "$LARDER" repair --to other "$BED/copy"
check "nor into what is not" fails 1 "there is no 'other/no'" "$LARDER" repair --to other/no/such "$BED/copy"
check "nor into no pool" fails 1 "no pool 'none' is imported, and there is no folder 'none'" \
    "$LARDER" repair --to none "$BED/copy"
check "nor into a file" fails 2 "is a file, not a folder" "$LARDER" repair --to "$BED/before" "$BED/copy"
check "nor of a pool that is imported" fails 1 "goes to other devices" "$LARDER" repair --to other "$DEVICES/disk4"
check "a small dataset" "$LARDER" fs create -o quota=1M other/small
check "has no room" fails 1 "nothing was sent" "$LARDER" repair --to other/small/tank "$BED/copy"
check "a pool by its name is asked for" fails 1 "no device is of the pool 'nobody'" \
    "$LARDER" repair --pool nobody "$BED/copy"

# One device more than is tolerated may lack its label, and one be missing.
another
rm "$BED/copy/disk1"
damage labels "$BED/copy/disk2"
check "a device missing, one without a label, no roots" "$LARDER" repair --to "$SAVED" "$BED/copy"
check "every file" unchanged "$SAVED/tank"
another
rm "$BED/copy/disk2"
cp --sparse=always "$DEVICES"/disk[12] "$BED/copy/"
damage labels "$BED"/copy/disk?
check "no label at all" "$LARDER" repair --to "$SAVED" "$BED/copy"
check "every file" unchanged "$SAVED/tank"
another
rm "$BED"/copy/disk[12]
check "two of three missing: in part" sh -c "'$LARDER' repair --to '$SAVED' '$BED/copy'; [ \$? = 1 ]"
check "and what is there is told as JSON" sh -c "'$LARDER' repair -j '$BED/copy' | python3 -c 'import json, sys; r = json.load(sys.stdin); assert not r[\"whole\"] and r[\"trees\"]'"

# Segments of a single disk.
check "imported" "$LARDER" pool import -d "$DEVICES" tank
end_pool
make_pool "$DEVICES/disk3"
sums "$MNT"
check "exported" "$LARDER" pool export tank
damage slots "$DEVICES/disk3"
status=0
"$LARDER" repair --to "$SAVED" "$DEVICES/disk3" >"$BED/told" || status=$?
check "a twentieth of the disk lost: told" [ $status = 1 ]
(cd "$SAVED/tank" && sha256sum -c "$BED/sums" 2>/dev/null || true) >"$BED/compared"
lost=$(grep -vc ': OK$' "$BED/compared" || true)
all=$(wc -l <"$BED/sums")
echo "of $all files $((all - lost)) came back whole"
check "most files are whole" [ "$lost" -lt $((all / 4)) ]
# What came back with a name is right, or has holes and is told.
wrong=$(sed -n 's/: FAILED$//p' "$BED/compared" | while read -r name; do
    grep -qF "${name#./}: " "$BED/told" || echo "$name"
done)
check "nothing came back wrong in silence" [ -z "$wrong" ]

# The same into a pool: what is whole is whole, of the rest what is lost are holes.
status=0
"$LARDER" repair --to other/part "$DEVICES/disk3" >"$BED/told" || status=$?
check "a twentieth of the disk lost: told" [ $status = 1 ]
(cd "$BED/other/part" && sha256sum -c "$BED/sums" 2>/dev/null || true) >"$BED/compared2"
same "the same files are whole" "$BED/compared" "$BED/compared2"
check "all of them can be read" sh -c "find '$BED/other/part' -type f -print0 | xargs -0 cat | cat >/dev/null"
check "nothing is missing there" "$LARDER" pool trace -w other

# What is no pool.
truncate -s 64M "$BED/blank"
check "a device with nothing" fails 1 "nothing of a pool was found" "$LARDER" repair "$BED/blank"
check "no such device" fails 1 "no such file" "$LARDER" repair "$BED/nothing"
check "no device" fails 2 "DEVICE" "$LARDER" repair
finish
