#!/bin/bash
# clones.sh: datasets that begin as snapshots, on real mounts: written on both sides, promoted, rolled back beside what is
# newer, and destroyed in any order; and all that after the daemon is killed.
. "$(dirname "$0")/bed.sh"
need root fuse
make_bed 3 2G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create tank/work
mounted
W=$MNT/work C=$MNT/clone SNAPS=$MNT/work/.zfs/snapshot
"$LARDER" personalities "$BED/links"
zfs() { "$BED/links/zfs" "$@"; }

# fails WORDS COMMAND...: the command fails, and says so.
fails() {
    local words=$1
    shift
    if "$@" >"$BED/out/said" 2>&1; then return 1; fi
    grep -qF -- "$words" "$BED/out/said" || { cat "$BED/out/said"; return 1; }
}
sums() { (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2); }
attributes() { (cd "$1" && find . -mindepth 1 -printf '%P %y %m %U %G %n %s %T@ %l\n' | LC_ALL=C sort); }
value() { zfs get -Hpo value "$1" "$2"; }
settled() { "$LARDER" pool sync tank && "$LARDER" pool wait -t free tank; }
again() {
    "$LARDER" pool sync tank
    kill_daemon
    "$LARDER" pool import -d "$DEVICES" tank
    mounted
}

mkdir -p "$W/tree/deep"
for n in $(seq 200); do head -c $((n * 997)) /dev/urandom >"$W/tree/deep/file $n"; done
head -c 40M /dev/urandom >"$W/large"
ln "$W/large" "$W/second" && ln -s tree "$W/link" && chmod 4750 "$W/tree/deep/file 7" && chown 1:2 "$W/tree/deep/file 8"
"$LARDER" pool sync tank
sums "$W" >"$BED/out/sums" && attributes "$W" >"$BED/out/attributes"
# One that is open and has no name when the snapshot is taken.
head -c 3M /dev/urandom >"$W/nameless"
exec 8<"$W/nameless"
rm "$W/nameless"
zfs snapshot tank/work@monday
exec 8<&-

free=$(value available tank)
check "clone" zfs clone tank/work@monday tank/clone
same "it has what the snapshot has" "$BED/out/sums" <(sums "$C")
same "attributes, too" "$BED/out/attributes" <(attributes "$C")
check "its origin is told" test "$(value origin tank/clone)" = tank/work@monday
check "and the clone of the snapshot" test "$(value clones tank/work@monday)" = tank/clone
check "it takes nothing" test "$(value used tank/clone)" -lt 300000
check "and refers to all" test "$(value referenced tank/clone)" -gt $((40 << 20))
check "nothing of the pool" test $((free - $(value available tank))) -lt $((2 << 20))
check "nothing is written since" test "$(value written tank/clone)" -lt 300000
check "a name that is taken" fails "cannot create 'tank/clone': dataset already exists" zfs clone tank/work@monday tank/clone
check "a snapshot that is not there" fails "cannot open 'tank/work@none': dataset does not exist" zfs clone tank/work@none tank/x
check "another pool" fails "same pool" "$LARDER" fs clone tank/work@monday other/x
check "with properties" zfs clone -p -o compression=zstd -o mountpoint=none tank/work@monday tank/deep/in/clone
check "that it has" test "$(value compression tank/deep/in/clone)" = zstd
zfs destroy -r tank/deep

zfs snapshot tank/clone@monday
check "no two get one name" fails "snapshot name 'monday' from 'tank/work' is there already" zfs promote tank/clone
zfs destroy tank/clone@monday

# Both go their way.
dd if=/dev/urandom of="$C/large" bs=1M seek=3 count=5 conv=notrunc status=none
rm "$C/tree/deep/file 9" && mv "$C/tree" "$C/trees" && echo clone >"$C/new"
dd if=/dev/urandom of="$W/large" bs=1M seek=20 count=5 conv=notrunc status=none
rm -r "$W/tree" && echo work >"$W/new"
settled
sums "$W" >"$BED/out/work" && sums "$C" >"$BED/out/clone"
check "it takes what was written" test "$(value used tank/clone)" -ge $((5 << 20))
check "and no more" test "$(value used tank/clone)" -lt $((8 << 20))
again
same "the clone after kill -9" "$BED/out/clone" <(sums "$C")
same "its origin's dataset, too" "$BED/out/work" <(sums "$W")
same "and the snapshot" "$BED/out/sums" <(sums "$SNAPS/monday")

# Clones hinder nobody.
check "the origin is destroyed" test "$("$LARDER" fs destroy -v --yes tank/work@monday | tail -1)" = \
    "kept of tank/work@monday: what tank/clone began as"
check "it has no name any more" test -z "$(zfs list -Ht snapshot -o name -r tank)"
check "the name is free" zfs snapshot tank/work@monday
same "the clone stays" "$BED/out/clone" <(sums "$C")
check "what it needs is told" test "$(value usedbysnapshots tank/work)" -gt $((4 << 20))
check "promote" "$LARDER" fs promote tank/clone
check "the other is the clone" fails "not a cloned filesystem" zfs promote tank/clone
check "a name stays where it was" test "$(zfs list -Ht snapshot -o name -r tank)" = tank/work@monday
same "the clone after promote" "$BED/out/clone" <(sums "$C")
same "the other after promote" "$BED/out/work" <(sums "$W")
again
check "the dataset that it was made of is destroyed" zfs destroy -r tank/work
settled
same "and the clone has what it had" "$BED/out/clone" <(sums "$C")
check "scrub finds nothing" "$LARDER" pool scrub -w tank

# Back beside what is newer.
zfs snapshot tank/clone@first
sums "$C" >"$BED/out/first"
echo second >>"$C/new" && zfs snapshot tank/clone@second
echo third >>"$C/new" && sums "$C" >"$BED/out/third"
check "zfs refuses" fails "more recent snapshots or bookmarks exist" zfs rollback tank/clone@first
check "larder keeps what is newer" test "$("$LARDER" fs rollback tank/clone@first | cut -d: -f1)" = \
    "what is newer goes on in tank/clone.before-rollback"
same "it is as it was" "$BED/out/first" <(sums "$C")
check "the snapshots are where they belong" test "$(zfs list -Ht snapshot -o name -r tank | tr '\n' ' ')" = \
    "tank/clone@first tank/clone.before-rollback@second "
check "what was newer is not in the way" test "$(value mounted tank/clone.before-rollback)" = no
check "and can be mounted" "$LARDER" fs mount tank/clone.before-rollback
same "with what it had" "$BED/out/third" <(sums "$MNT/clone.before-rollback")
check "back once more" "$LARDER" fs promote tank/clone.before-rollback
check "a rollback to what both have in common" zfs rollback -r tank/clone.before-rollback@first
again
same "as it was, after kill -9" "$BED/out/first" <(sums "$C")

check "promoted, the snapshots come with it" zfs promote tank/clone
check "-R tells what would go" test "$(zfs destroy -Rnp tank/clone@first | cut -f 2 | head -n -1 | tr '\n' ' ')" = \
    "tank/clone.before-rollback tank/clone@first "
check "and takes it" zfs destroy -R tank/clone@first
check "one dataset is left" test "$(zfs list -Ho name | tr '\n' ' ')" = "tank tank/clone "
settled
same "and has what it had" "$BED/out/first" <(sums "$C")
check "whole" "$LARDER" pool trace -w tank
healthy
check "export is not busy" "$LARDER" pool export tank
finish
