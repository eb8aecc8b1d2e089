#!/bin/bash
# snapshots.sh: snapshots hold what was, whatever becomes of the files: read in .zfs and in mounts of their own, rolled
# back to, destroyed when nobody is in them, by larder and by the name of zfs; and all that after the daemon is killed.
. "$(dirname "$0")/bed.sh"
need root fuse
make_bed 3 2G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create tank/work
"$LARDER" fs create tank/work/below
mounted
W=$MNT/work SNAPS=$MNT/work/.zfs/snapshot OLD=$BED/old
mkdir "$OLD"
"$LARDER" personalities "$BED/links"
zfs() { "$BED/links/zfs" "$@"; }
clear_more() { umount -l "$OLD" 2>/dev/null; }

# fails WORDS COMMAND...: the command fails, and says so.
fails() {
    local words=$1
    shift
    if "$@" >"$BED/out/said" 2>&1; then return 1; fi
    grep -qF -- "$words" "$BED/out/said" || { cat "$BED/out/said"; return 1; }
}
# sums FOLDER, attributes FOLDER: what is in it, and all of its attributes; links of the folder itself apart.
sums() { (cd "$1" && find . -path ./below -prune -o -type f -exec sha256sum {} + | LC_ALL=C sort -k 2); }
attributes() {
    (cd "$1" && find . -path ./below -prune -o -printf '%P %y %m %U %G %n %s %T@ %C@ %l\n' | LC_ALL=C sort)
}
inode() { stat -c %i "$1"; }
value() { zfs get -Hpo value "$1" "$2"; }

# Files of all kinds.
mkdir -p "$W/tree/deep/er" "$W/gone/a/b"
for n in $(seq 200); do head -c $((n * 997)) /dev/urandom >"$W/tree/deep/file $n"; done
head -c 20M /dev/urandom >"$W/large"
truncate -s 64M "$W/sparse" && printf 'in the midst' | dd of="$W/sparse" bs=1 seek=33333333 conv=notrunc status=none
ln -s tree/deep "$W/link"
ln "$W/large" "$W/second"
mkfifo "$W/pipe"
chmod 4750 "$W/tree/deep/file 7" && chown 1:2 "$W/tree/deep/file 8" && touch -d '2001-02-03 04:05:06.789' "$W/gone/a/b"
echo below >"$W/below/file"
sums "$W" >"$BED/out/sums" && attributes "$W" >"$BED/out/attributes"

check "a snapshot of all" "$LARDER" fs snapshot -r tank@monday
check "of one moment" test "$(zfs list -Hrpt snapshot -o createtxg tank | sort -u | wc -l)" = 1
check "of each dataset" test "$(zfs list -Hrpt snapshot -o name tank | tr '\n' ' ')" = \
    "tank@monday tank/work@monday tank/work/below@monday "
check "a name that is taken" fails "cannot create snapshot 'tank/work@monday': dataset already exists" \
    zfs snapshot tank/work@monday
check "one that is taken stands for all" fails "dataset already exists" zfs snapshot tank@tuesday tank/work@monday
check "none of which was taken" fails "cannot open 'tank@tuesday': dataset does not exist" zfs list tank@tuesday
check "scripts get no more lines than zfs has" test "$(wc -l <"$BED/out/said")" = 1

# The live files go their way.
for n in $(seq 1 3 200); do head -c 5000 /dev/urandom >>"$W/tree/deep/file $n"; done
for n in $(seq 2 3 200); do rm "$W/tree/deep/file $n"; done
dd if=/dev/urandom of="$W/large" bs=1000 seek=5000 count=3000 conv=notrunc status=none
mv "$W/gone/a" "$W/a was here" && rm -r "$W/gone" && chmod 600 "$W/tree/deep/file 3" && rm "$W/link" && mkdir "$W/link"
truncate -s 1M "$W/sparse"
echo new >"$W/new" && echo later >"$W/below/file"
"$LARDER" pool sync tank

same "contents are what they were" "$BED/out/sums" <(sums "$SNAPS/monday")
same "attributes, too" "$BED/out/attributes" <(attributes "$SNAPS/monday")
same "also of a dataset below" <(echo below) "$W/below/.zfs/snapshot/monday/file"
check "what is new is not in it" test ! -e "$SNAPS/monday/new"
check ".zfs is hidden" test -z "$(ls -A "$W" | grep -F .zfs)"
check "and listed by name" test "$(ls "$SNAPS")" = monday
check "the inode is another than the live file's" test "$(stat -c '%d:%i' "$SNAPS/monday/large")" != \
    "$(stat -c '%d:%i' "$W/large")"
check "cp back" cp -a "$SNAPS/monday/large" "$W/large.old"
check "which is what it was" cmp "$SNAPS/monday/large" "$W/large.old"
check "cp over the live file is none over itself" cp "$SNAPS/monday/tree/deep/file 2" "$W/tree/deep/file 2"
check "diff -r tells what has changed" fails "Only in $SNAPS/monday/tree/deep: file 5" diff -rq "$SNAPS/monday/tree" "$W/tree"
for write in "touch '$SNAPS/monday/large'" "echo x >'$SNAPS/monday/x'" "rm '$SNAPS/monday/large'" \
    "mkdir '$SNAPS/other'" "mv '$SNAPS/monday/large' '$SNAPS/monday/x'" "chmod 777 '$SNAPS/monday/tree'"; do
    check "EROFS: ${write%% *}" fails "Read-only file system" bash -c "$write"
done

# A mount of its own.
check "mount" "$LARDER" fs mount tank/work@monday "$OLD"
same "contents in its own mount" "$BED/out/sums" <(sums "$OLD")
same "attributes there" "$BED/out/attributes" <(attributes "$OLD")
check "inodes are the live ones there" test "$(inode "$OLD/large")" = "$(inode "$W/large")"
check "EROFS there" fails "Read-only file system" touch "$OLD/x"
check "mount shows it" grep -q "tank/work@monday *$OLD" <("$LARDER" fs mount)
check "what is mounted is not destroyed" fails "cannot destroy snapshot tank/work@monday: dataset is busy" \
    zfs destroy tank/work@monday
check "it does not hinder its dataset" "$LARDER" fs unmount tank/work
check "which comes back" "$LARDER" fs mount tank/work
check "that below it, too" "$LARDER" fs mount -a
exec 7<"$OLD/large"
check "a mount in use stays" fails "in use" "$LARDER" fs unmount tank/work@monday
exec 7<&-
check "unmount by folder" "$LARDER" fs unmount "$OLD"
check "it is gone" test -z "$(ls -A "$OLD")"

# Destroyed when nobody is in it.
zfs snapshot -r tank@tuesday
rm "$W/large" "$W/large.old"
zfs snapshot -r tank@wednesday
exec 7<"$SNAPS/tuesday/large"
check "busy while a file is open" fails "cannot destroy snapshot tank/work@tuesday: dataset is busy" \
    zfs destroy -r tank@monday,tuesday
check "and says who has it" fails "in use by $(cat /proc/$$/comm) ($$)" "$LARDER" fs destroy tank/work@tuesday
check "nothing was destroyed" test "$(zfs list -Hrt snapshot -o name tank | wc -l)" = 9
exec 7<&-
check "the names that -nv tells" test "$(zfs destroy -nvp tank/work@monday%tuesday | head -2 | tr '\t\n' '  ')" = \
    "destroy tank/work@monday destroy tank/work@tuesday "
reclaim=$(zfs destroy -nvp tank/work@monday%tuesday | sed -n 's/^reclaim\t//p')
# The files that were removed, and what was overwritten of the large one.
check "and the space that comes back" test "$reclaim" -ge $((9 << 20))
check "as usedbysnapshots has it" test "$(value usedbysnapshots tank/work)" -ge "$reclaim"
check "and used" test "$(value used tank/work)" -ge $(($(value usedbydataset tank/work) + reclaim))
check "names that are not there" fails "could not find any snapshots to destroy; check snapshot names." \
    zfs destroy tank/work@none,other
check "free when it is closed" zfs destroy -r tank@tuesday,none
check "what was destroyed is gone from .zfs" test "$(ls "$SNAPS" | tr '\n' ' ')" = "monday wednesday "
check "rename" zfs rename -r tank@wednesday @midweek
check "under its new name" test -e "$SNAPS/midweek/new"
check "a dataset with snapshots stays" fails "it has snapshots" "$LARDER" fs destroy tank/work/below

# A daemon that dies.
"$LARDER" fs mount tank/work@monday "$OLD"
"$LARDER" fs snapshot tank/work@last
echo lost >"$W/lost"
kill_daemon
check "import after kill -9" "$LARDER" pool import -d "$DEVICES" tank
mounted
check "all snapshots are there" test "$(zfs list -Ht snapshot -o name tank/work | tr '\n' ' ')" = \
    "tank/work@monday tank/work@midweek tank/work@last "
same "contents after that" "$BED/out/sums" <(sums "$SNAPS/monday")
same "attributes after that" "$BED/out/attributes" <(attributes "$SNAPS/monday")
check "the dead mount is taken away" "$LARDER" fs unmount "$OLD"

# Back to what was.
check "newer snapshots stand in the way" fails "use '-r' to force deletion of the following snapshots and bookmarks:" \
    zfs rollback tank/work@monday
check "by name" grep -qx tank/work@midweek "$BED/out/said"
exec 7<"$W/new"
check "open files stand in the way" fails "in use" "$LARDER" fs rollback --drop-newer tank/work@monday
exec 7<&-
check "rollback" "$LARDER" fs rollback --drop-newer tank/work@monday
same "contents after rollback" "$BED/out/sums" <(sums "$W")
same "attributes after rollback" "$BED/out/attributes" <(attributes "$W")
check "what was newer is gone" test "$(ls "$SNAPS")" = monday
same "what is below stays as it is" <(echo later) "$W/below/file"
echo more >"$W/more"
check "rollback to the newest" zfs rollback tank/work@monday
check "takes back what came after" test ! -e "$W/more"
kill_daemon
check "import after another kill -9" "$LARDER" pool import -d "$DEVICES" tank
mounted
same "contents are as rolled back" "$BED/out/sums" <(sums "$W")
echo again >"$W/again"

# Differences, as zfs tells them.
mkdir -p "$W/d/sub" && for name in gone kept linked "old name" read sub/inner; do echo 1 >"$W/d/$name"; done
zfs snapshot tank/work@d1
echo 2 >>"$W/d/kept" && rm "$W/d/gone" && mv "$W/d/old name" "$W/d/näme" && ln "$W/d/linked" "$W/d/twin"
cat "$W/d/read" >"$W/d/new" && mkfifo "$W/d/pipe" && mv "$W/d/sub" "$W/d/moved" && chmod 700 "$W/tree"
expected() {
    printf '%s\n' "+ F $W/d/new" "+ | $W/d/pipe" "- F $W/d/gone" "M / $W/d/" "M / $W/tree" "M F $W/d/kept" \
        "M F $W/d/linked (+1)" "R / $W/d/sub -> $W/d/moved" "R F $W/d/old\\0040name -> $W/d/n\\0303\\0244me" |
        sed "s|$W/d/$|$W/d|" | LC_ALL=C sort
}
told() { "$@" | tr '\t' ' ' | LC_ALL=C sort; }
same "diff to what is now" <(expected) <(told zfs diff -F tank/work@d1)
zfs snapshot tank/work@d2
same "diff of two snapshots" <(expected) <(told "$LARDER" fs diff -F tank/work@d1 @d2)
echo 3 >>"$W/d/kept"
same "which stays as it is" <(expected) <(told zfs diff -F tank/work@d1 tank/work@d2)
same "for scripts" <(printf 'R\t%s\t%s\n' "$W/d/old name" "$W/d/näme") \
    <(zfs diff -Hh tank/work@d1 tank/work@d2 | grep -F 'old name')
check "with times" grep -qE "^$(stat -c %Z "$W/d/new")\.[0-9]{9}	\+	$W/d/new\$" <(zfs diff -t tank/work@d1 tank/work@d2)
check "as JSON" grep -qF '"new_names":["'"$W/d/twin"'"]' <("$LARDER" fs diff -j tank/work@d1 tank/work@d2)
check "the other way round" fails "Not an earlier snapshot from the same fs" zfs diff tank/work@d2 tank/work@d1
check "of none" fails "cannot open 'tank/work@none': dataset does not exist" zfs diff tank/work@none
check "nothing is left of looking at what is now" test "$(ls "$SNAPS" | tr '\n' ' ')" = "d1 d2 monday "
check "nor in the lists" test "$(zfs list -Ht snapshot -o name tank/work | wc -l)" = 3
mkdir "$W/many" && (cd "$W/many" && seq -f 'a file with a name %g' 3000 | xargs -d '\n' touch)
set +o pipefail
check "a closed pipe is no failure" bash -c "'$LARDER' fs diff tank/work@d2 | head -1 >'$BED/out/head'; exit \${PIPESTATUS[0]}"
set -o pipefail
rm -r "$W/many"
zfs destroy tank/work@d1,d2

# Held, and with properties of their own.
check "properties" "$LARDER" fs snapshot -r -o org.example:why="an upgrade" tank/work@held
check "are the snapshot's own" test "$(zfs get -Ho value,source org.example:why tank/work/below@held)" = "an upgrade	local"
check "a hold" zfs hold -r keep tank/work@held
check "is told" test "$(zfs holds -Hr tank/work@held | cut -f 1,2 | tr '\n\t' ' :')" = "tank/work@held:keep tank/work/below@held:keep "
check "twice" fails "cannot hold snapshot 'tank/work@held': tag already exists on this dataset" zfs hold keep tank/work@held
kill_daemon
check "import after kill -9 with holds" "$LARDER" pool import -d "$DEVICES" tank
mounted
check "nothing destroys it" fails "cannot destroy snapshot tank/work@held: dataset is busy" zfs destroy tank/work@held
check "nor its dataset" fails "dataset is busy" zfs destroy -r tank/work
check "it is there" test -e "$SNAPS/held/again"
check "to go with its last hold" zfs destroy -d tank/work@held
check "it is still there" test "$(zfs get -Hpo value defer_destroy,userrefs tank/work@held | tr '\n' ' ')" = "on 1 "
check "release" zfs release -r keep tank/work@held
check "it went" fails "could not find any snapshots to destroy" zfs destroy tank/work@held
check "from .zfs too" test ! -e "$SNAPS/held"
check "snapdir" "$LARDER" fs set snapdir=visible tank/work
check "lists it" test "$(ls -a "$W" | grep -c '^\.zfs$')" = 1
check "and no more" "$LARDER" fs inherit snapdir tank/work
check "after that" test "$(ls -a "$W" | grep -c '^\.zfs$')" = 0

# Space comes back with the last of them.
before=$(zfs list -Hpo avail tank)
rm "$W/large" "$W/second"
check "with its snapshots" zfs destroy -r tank/work
check "no more snapshots but the top's" test "$(zfs list -Hrt snapshot -o name tank | tr '\n' ' ')" = "tank@monday tank@midweek "
"$LARDER" pool wait -t free tank
"$LARDER" pool trace -w tank >/dev/null
"$LARDER" pool wait -t free tank
check "the space comes back" test "$(zfs list -Hpo avail tank)" -ge $((before + (20 << 20)))
healthy
check "export is not busy" "$LARDER" pool export tank
finish
