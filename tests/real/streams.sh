#!/bin/bash
# streams.sh: snapshots sent from one real pool and received in another: whole, in increments, as packages with clones,
# broken off and gone on with, by zfs' words, and with the daemon killed in the middle.
. "$(dirname "$0")/bed.sh"
need root fuse
make_bed 4 2G
devices=($(devices))
"$LARDER" pool create -m "$MNT" tank mirror "${devices[0]}" "${devices[1]}"
"$LARDER" pool create -m "$BED/mnt2" attic mirror "${devices[2]}" "${devices[3]}"
"$LARDER" fs create tank/work
mounted
W=$MNT/work R=$BED/mnt2/work
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
attributes() { (cd "$1" && find . -mindepth 1 -printf '%P %y %m %U %G %n %s %T@ %l\n' | LC_ALL=C sort; getfattr -Rd -m - . 2>/dev/null | LC_ALL=C sort); }
value() { zfs get -Hpo value "$1" "$2"; }
equal() { same "$1: content" <(sums "$2") <(sums "$3"); same "$1: attributes" <(attributes "$2") <(attributes "$3"); }
S() { echo "$W/.zfs/snapshot/$1"; }

mkdir -p "$W/tree/deep"
for n in $(seq 200); do head -c $((n * 997)) /dev/urandom >"$W/tree/deep/file $n"; done
head -c 30M /dev/urandom >"$W/large"
head -c 20M <(yes words) >"$W/words"
ln "$W/large" "$W/second" && ln -s tree "$W/link" && chmod 4750 "$W/tree/deep/file 7" && chown 1:2 "$W/tree/deep/file 8"
setfattr -n user.note -v hello "$W/words" && mkfifo "$W/fifo" && truncate -s 64M "$W/sparse"
"$LARDER" pool sync tank
cp --reflink=auto "$W/large" "$W/copy"
zfs snapshot tank/work@monday
check "send and receive" bash -c "'$LARDER' fs send tank/work@monday | '$LARDER' fs receive attic/work"
equal "whole" "$W" "$R"
check "guid and time go with it" test "$(value guid,creation tank/work@monday)" = "$(value guid,creation attic/work@monday)"
"$LARDER" pool sync attic
alloc() { "$BED/links/zpool" list -Hpo alloc "$1"; }
check "and the copy shares" test "$(alloc attic)" -le $(($(alloc tank) + (8 << 20)))
check "a snapshot that is there" fails "cannot restore to attic/work@monday: destination already exists" \
    bash -c "'$BED/links/zfs' send tank/work@monday | '$BED/links/zfs' receive attic/work"
check "a dataset with snapshots" fails "destination has snapshots" \
    bash -c "'$BED/links/zfs' snapshot tank/work@other; '$BED/links/zfs' send tank/work@other | '$BED/links/zfs' receive attic/work"
zfs destroy tank/work@other
check "no snapshot" fails "cannot open 'tank/work@none': dataset does not exist" zfs send -n tank/work@none

# An increment, read only.
rm "$W/tree/deep/file 3" && mv "$W/tree/deep/file 4" "$W/moved" && echo more >>"$W/words" && rm "$W/second"
cp --reflink=auto "$W/copy" "$W/third"
dd if=/dev/urandom of="$W/large" bs=1M count=1 seek=7 conv=notrunc status=none
zfs snapshot tank/work@tuesday
cat "$R/words" >/dev/null; ls -lR "$R" >/dev/null
zfs send -nvP -i @monday tank/work@tuesday >"$BED/out/plan"
check "a dry run" grep -qP '^incremental\ttank/work@monday\ttank/work@tuesday\t\d+$' "$BED/out/plan"
"$LARDER" fs send -i @monday tank/work@tuesday >"$BED/out/stream"
told=$(sed -n 's/^size\t//p' "$BED/out/plan") is=$(stat -c %s "$BED/out/stream")
check "of a size that is so ($told, $is)" test $((told * 100)) -gt $((is * 98 - 100000)) -a $((told * 98)) -lt $((is * 100 + 100000))
check "as small as what changed" test "$is" -lt $((3 << 20))
check "increment" bash -c "zfs() { '$BED/links/zfs' \"\$@\"; }; zfs receive attic/work <'$BED/out/stream'"
equal "increment" "$W" "$R"
equal "and the one before" "$(S monday)" "$R/.zfs/snapshot/monday"
check "it is not taken twice" fails "already exists" zfs receive attic/work <"$BED/out/stream"

# What was changed here stays, unless it is to go.
echo mine >"$R/mine"
zfs snapshot tank/work@wednesday
check "changed here" fails "has been modified" bash -c "'$BED/links/zfs' send -i @tuesday tank/work@wednesday | '$BED/links/zfs' receive attic/work"
check "it is still there" test -e "$R/mine"
check "-F" bash -c "'$BED/links/zfs' send -i @tuesday tank/work@wednesday | '$BED/links/zfs' receive -F attic/work"
check "now it is not" test ! -e "$R/mine"
equal "after -F" "$W" "$R"

# All between.
for n in 1 2 3; do echo $n >"$W/n$n"; zfs snapshot tank/work@n$n; done
check "-I" bash -c "'$BED/links/zfs' send -I @wednesday tank/work@n3 | '$BED/links/zfs' receive -v attic/work >'$BED/out/said'"
check "each is told" test "$(grep -c '^receiving incremental stream of tank/work@n' "$BED/out/said")" = 3
equal "between" "$(S n2)" "$R/.zfs/snapshot/n2"

# Broken off, and gone on with.
head -c 60M /dev/urandom >"$W/new"
zfs snapshot tank/work@thursday
"$LARDER" fs send -i @n3 tank/work@thursday >"$BED/out/stream"
check "broken off" fails "A resuming stream can be generated" bash -c "head -c 30M '$BED/out/stream' | '$BED/links/zfs' receive -s attic/work"
token=$(value receive_resume_token attic/work)
check "a token is told" grep -qE '^[0-9a-f-]+$' <<<"$token"
check "the dataset is as before" test ! -e "$R/new"
check "another stream is refused" fails 'contains partially-complete state from "zfs receive -s"' zfs receive attic/work <"$BED/out/stream"
kill_daemon
"$LARDER" pool import -d "$DEVICES" tank && "$LARDER" pool import -d "$DEVICES" attic
mounted
check "the token outlives a kill" test -n "$(value receive_resume_token attic/work)"
token=$(value receive_resume_token attic/work)
check "it is told by -nvt" grep -q 'toname = tank/work@thursday' <(zfs send -nvt "$token")
check "a bad one" fails "resume token is corrupt" zfs send -t "${token}00"
zfs send -t "$token" >"$BED/out/rest"
check "less is left" test "$(stat -c %s "$BED/out/rest")" -lt $((50 << 20))
check "gone on with" zfs receive -s attic/work <"$BED/out/rest"
equal "after that" "$W" "$R"
check "no token is left" test "$(value receive_resume_token attic/work)" = -
head -c 300 "$BED/out/stream" | zfs receive -s attic/none 2>/dev/null || true
check "aborting nothing" fails "does not have any resumable receive state to abort" zfs receive -A attic/work

# Broken off before anything came: the rest is all of it.
zfs snapshot tank/work@early && head -c 1M /dev/urandom >"$W/late" && zfs snapshot tank/work@late
"$LARDER" fs send -i @thursday tank/work@early | zfs receive attic/work
"$LARDER" fs send -i @early tank/work@late >"$BED/out/stream"
check "broken off at once" fails "A resuming stream can be generated" bash -c "head -c 10000 '$BED/out/stream' | '$BED/links/zfs' receive -s attic/work"
token=$(value receive_resume_token attic/work)
check "gone on with by its token" bash -c "'$BED/links/zfs' send -t $token | '$BED/links/zfs' receive -s attic/work"
zfs rollback -r tank/work@thursday && zfs rollback -r attic/work@thursday

# A new dataset whose stream breaks off leaves nothing.
"$LARDER" fs send tank/work@thursday >"$BED/out/stream"
check "a new one broken off" fails "cannot receive new filesystem stream" bash -c "head -c 50M '$BED/out/stream' | '$BED/links/zfs' receive attic/new"
check "leaves nothing" fails "does not exist" zfs list attic/new
check "damaged" fails "cannot receive" bash -c "head -c 20M '$BED/out/stream' | (cat; echo garbage; tail -c +20971521 '$BED/out/stream') | '$BED/links/zfs' receive attic/new"
check "no stream" fails "cannot receive" bash -c "head -c 1M /dev/urandom | '$BED/links/zfs' receive attic/new"
check "nothing at all" fails "failed to read from stream" bash -c "'$BED/links/zfs' receive attic/new </dev/null"

# From a bookmark, whose snapshot is gone here.
zfs create tank/marks && M=$MNT/marks N=$BED/mnt2/marks
for n in $(seq 2000); do echo "$n" >"$M/f$n"; done
head -c 20M /dev/urandom >"$M/large"
zfs snapshot tank/marks@a && zfs bookmark tank/marks@a tank/marks#a
zfs send tank/marks@a | zfs receive attic/marks
zfs destroy tank/marks@a && zfs snapshot tank/marks@same
check "nothing changed, and as much is sent" test "$(zfs send -i '#a' tank/marks@same | wc -c)" -lt 1000
rm "$M"/f1?? && mv "$M/f7" "$M/g7" && ln "$M/f8" "$M/g8" && setfattr -n user.note -v hello "$M/f9" && truncate -s 12M "$M/large"
dd if=/dev/urandom of="$M/large" bs=1M count=1 seek=7 conv=notrunc status=none
cp --reflink=auto "$M/large" "$M/copy"
zfs snapshot tank/marks@b && zfs bookmark tank/marks@b tank/marks#b
check "a dry run" grep -qP '^incremental\ttank/marks#a\ttank/marks@b\t\d+$' <(zfs send -nvP -i '#a' tank/marks@b)
told=$(zfs send -nvP -i tank/marks#a tank/marks@b | sed -n 's/^size\t//p')
zfs send -i tank/marks#a tank/marks@b >"$BED/out/stream"
is=$(stat -c %s "$BED/out/stream")
check "of a size that is so ($told, $is)" test $((told * 100)) -gt $((is * 99)) -a $((told * 99)) -lt $((is * 100))
check "as small as what changed" test "$is" -lt $((3 << 20))
check "it breaks off" fails "A resuming stream can be generated" bash -c "head -c 1M '$BED/out/stream' | '$BED/links/zfs' receive -s attic/marks"
token=$(value receive_resume_token attic/marks)
check "the token names the bookmark's snapshot" grep -q "fromguid = $(printf '%#x' "$(value guid tank/marks#a)")" <(zfs send -nvt "$token")
zfs bookmark tank/marks#a tank/marks#kept && zfs destroy tank/marks#a
check "any bookmark of it will do" bash -c "'$BED/links/zfs' send -t '$token' | '$BED/links/zfs' receive -s attic/marks"
equal "from a bookmark" "$M" "$N"
check "of what is not its newest" fails "most recent snapshot of attic/marks does not" bash -c "'$BED/links/zfs' send -i '#kept' tank/marks@same | '$BED/links/zfs' receive attic/marks"
check "no bookmark" fails "incremental source (tank/marks#none) does not exist" zfs send -i '#none' tank/marks@b
check "itself" fails "is not earlier than it" zfs send -i '#b' tank/marks@b
check "-I" fails "-I needs a snapshot" zfs send -I '#kept' tank/marks@b
check "-R" fails "-R needs a snapshot" zfs send -R -i '#kept' tank/marks@b
echo more >"$M/more" && zfs snapshot tank/marks@c && zfs destroy tank/marks@b
zfs send -i '#b' tank/marks@c >"$BED/out/stream"
head -c 500 "$BED/out/stream" | zfs receive -s attic/marks 2>/dev/null || true
token=$(value receive_resume_token attic/marks)
zfs destroy tank/marks#b
[ "$token" = - ] || check "the bookmark is gone" fails "incremental source" zfs send -t "$token"
[ "$token" = - ] || zfs receive -A attic/marks
check "what was sent is good without it" zfs receive attic/marks <"$BED/out/stream"
equal "and again" "$M" "$N"
zfs destroy -r tank/marks && zfs destroy -r attic/marks

# Properties are received, beside those that are set here.
zfs create -o compression=zstd -o org.example:a=1 -o mountpoint="$BED/elsewhere" tank/props && zfs snapshot tank/props@a
told() { zfs get -Hpo value,received,source "$1" attic/props | tr '\t' ' '; }
check "properties come" bash -c "'$LARDER' fs send -p tank/props@a | '$BED/links/zfs' receive -o atime=off -x org.example:a attic/props"
check "received" test "$(told compression)" = "zstd zstd received"
check "masked" test "$(told org.example:a)" = "- 1 -"
check "set" test "$(told atime)" = "off - local"
check "a mount point has no effect" test "$(told mountpoint)" = "$BED/mnt2/props $BED/elsewhere inherited from attic"
zfs set compression=lz4 attic/props
check "what is set comes first" test "$(told compression)" = "lz4 zstd local"
zfs inherit -S compression attic/props && zfs inherit -S org.example:a attic/props
check "and goes again" test "$(told compression),$(told org.example:a)" = "zstd zstd received,1 1 received"
check "by source" test "$(zfs get -Ho property -s received all attic/props | sort | tr '\n' ' ')" = "compression org.example:a "
check "of all columns" test "$("$LARDER" fs get -o all atime attic/props | head -1 | tr -s ' ')" = "NAME PROPERTY VALUE RECEIVED SOURCE"
zfs set compression=lz4 attic/props
check "brought back" bash -c "'$LARDER' fs send -b attic/props@a | '$BED/links/zfs' receive tank/back"
check "as it was received" test "$(zfs get -Hpo value,source compression tank/back | tr '\t' ' ')" = "zstd received"
zfs destroy -r tank/props && zfs destroy -r attic/props && zfs destroy -r tank/back

# A package, with a child, a clone and properties.
zfs create -o compression=zstd -o org:x=y tank/work/child && echo child >"$W/child/file"
zfs clone tank/work@tuesday tank/work/clone && echo clone >"$W/clone/own"
zfs snapshot -r tank/work@all
check "-R" bash -c "'$BED/links/zfs' send -R tank/work@all | '$BED/links/zfs' receive -u attic/pack"
zfs mount -a
check "the child is there" test "$(cat "$BED/mnt2/pack/child/file")" = child
check "with its properties" test "$(value compression attic/pack/child),$(value org:x attic/pack/child)" = zstd,y
check "the clone is one" test "$(value origin attic/pack/clone)" = attic/pack@tuesday
check "and has what it has" test "$(cat "$BED/mnt2/pack/clone/own")" = clone
check "and takes little" test "$(value used attic/pack/clone)" -lt $((2 << 20))
equal "all of it" "$W" "$BED/mnt2/pack"
check "all snapshots came" test "$(zfs list -Ht snapshot -o name -r attic/pack | wc -l)" = "$(zfs list -Ht snapshot -o name -r tank/work | wc -l)"

# Killed while it receives: nothing is harmed, and it goes on.
head -c 200M /dev/urandom >"$W/more"
zfs snapshot tank/work@friday
"$LARDER" fs send -i @thursday tank/work@friday >"$BED/out/stream"
"$LARDER" pool sync attic
(head -c 100M "$BED/out/stream"; sleep 20) | zfs receive -s attic/work 2>/dev/null &
receiver=$!
for _ in $(seq 100); do [ "$(value receive_resume_token attic/work)" = - ] || break; sleep 0.1; done
sleep 1
kill_daemon
wait $receiver || true
"$LARDER" pool import -d "$DEVICES" tank && "$LARDER" pool import -d "$DEVICES" attic
mounted
equal "what was there is there" "$(S thursday)" "$R"
token=$(value receive_resume_token attic/work)
if [ "$token" = - ]; then zfs receive -s attic/work <"$BED/out/stream"; else zfs send -t "$token" | zfs receive -s attic/work; fi
equal "after the kill" "$(S friday)" "$R"
# No room: it is said, what is there stays, and the rest may come.
zfs create -o quota=20M attic/small
check "a quota" fails "the quota of attic/small is used up" bash -c "'$BED/links/zfs' send tank/work@friday | '$BED/links/zfs' receive -s attic/small/work"
check "what came is kept" test "$(value receive_resume_token attic/small/work)" != -
check "or dropped" zfs receive -A attic/small/work
check "with the dataset" fails "does not exist" zfs list attic/small/work
zfs create tank/work/late
check "a dataset below without the snapshot" fails "snapshot tank/work/late@all does not exist" bash -c "'$BED/links/zfs' send -R tank/work@all >/dev/null"
check "is passed over where that is said" bash -c "'$BED/links/zfs' send -R -s tank/work@all >/dev/null"
zfs destroy tank/work/late

# An export waits for nobody who sends or receives: devices are free at once.
(head -c 20M "$BED/out/stream"; sleep 60) | zfs receive -s attic/stalled >"$BED/out/stalled" 2>&1 &
receiver=$!
sleep 1
check "export beside a receive that waits" timeout 20 "$LARDER" pool export attic
check "and import" within 5 "$LARDER" pool import -d "$DEVICES" attic
kill $receiver 2>/dev/null || true
(zfs send tank/work@friday 2>"$BED/out/sent" || echo "ended $?" >>"$BED/out/sent") | (sleep 6; cat >/dev/null) &
sleep 1
check "export beside a send that waits" timeout 20 "$LARDER" pool export tank
check "and import" within 5 "$LARDER" pool import -d "$DEVICES" tank
mounted
wait $! || true
check "who sent is told" grep -q "the pool is gone meanwhile" "$BED/out/sent"
check "nothing is wrong" "$LARDER" pool trace attic
"$LARDER" pool wait -t trace attic 2>/dev/null || true
check "no errors" grep -q 'errors: No known data errors' <("$LARDER" pool status attic)
finish
