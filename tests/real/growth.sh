#!/bin/bash
# growth.sh: pools that get devices, lose some, change their layout and let groups go, with files in use: what is told
# before, what is there at once, what a rebalance brings, what is lost (nothing) with a kill in the middle.
. "$(dirname "$0")/bed.sh"
need root fuse sha256sum python3
room 2
make_bed 3 512M
mkdir "$BED/more"
for i in 0 1 2 3 4 5; do truncate -s 512M "$BED/more/$i"; done
truncate -s 1G "$BED/more/large"
NEW=$BED/more

import() { "$LARDER" pool import "$@" -d "$DEVICES" -d "$NEW" tank && mounted; }
# On one line, since the text is wrapped.
told() { "$LARDER" pool status tank >"$BED/told" && tr -s '\n\t' '  ' <"$BED/told"; }
says() { told | grep -q -- "$1"; }
quiet() { told >"$BED/one" && ! grep -q -- "$1" "$BED/one"; }
whole() { check "$1" sh -c "cd '$MNT' && sha256sum --quiet --strict -c '$BED/sums'"; }
avail() { python3 -c 'import os, sys; of = os.statvfs(sys.argv[1]); print(of.f_bavail * of.f_frsize)' "$MNT"; }
size() { python3 -c 'import os, sys; of = os.statvfs(sys.argv[1]); print(of.f_blocks * of.f_frsize)' "$MNT"; }
# near A B PERCENT: whether two numbers differ by no more.
near() { [ $((($1 - $2) * 100)) -le $(($2 * $3)) ] && [ $((($2 - $1) * 100)) -le $(($2 * $3)) ]; }
# put MIB NAME: random bytes.
put() { head -c "$1M" /dev/urandom >"$MNT/$2" && sync "$MNT/$2"; }
sums() { (cd "$MNT" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum) >"$BED/sums"; }

# a raidz1 of three gets a fourth device.
check "a pool is made" "$LARDER" pool create -m "$MNT" tank raidz1 "$DEVICES"/disk0 "$DEVICES"/disk1 "$DEVICES"/disk2
check "files are written" put 350 a
sums
before=$(avail)
check "what it comes to is told" \
    sh -c "'$LARDER' pool attach -n tank raidz1-0 '$NEW/0' | grep -q 'more after a rebalance'"
check "and that was all" [ "$(avail)" = "$before" ]
check "a device that is there already" \
    fails 1 "belongs to the pool" "$LARDER" pool attach tank raidz1-0 "$DEVICES/disk1"
check "a group that is not there" fails 1 "neither a group nor a device" "$LARDER" pool attach tank raidz1-7 "$NEW/0"
check "it is attached" "$LARDER" pool attach tank raidz1-0 "$NEW/0"
check "there is more room at once" [ "$(avail)" -gt $((before + (100 << 20))) ]
check "and more to come" says "growth: files can take"
check "a dry run tells how much" sh -c "'$LARDER' pool rebalance -n tank | grep -q 'would move'"
check "all survives" whole "beside it"
check "a rebalance begins slowly" "$LARDER" pool rebalance --limit 10M tank
check "one at a time" fails 1 "being rebalanced" "$LARDER" pool rebalance tank
check "it is told" says "rebalance:"
kill_daemon
check "the pool is there after a kill" import
check "and the rebalance goes on" says "left"
check "it is stopped" "$LARDER" pool rebalance -s tank
check "once" fails 1 "a rebalance under way" "$LARDER" pool rebalance -s tank
check "and started again" "$LARDER" pool rebalance -w tank
check "nothing more is to gain" quiet "growth:"
whole "after the rebalance"
new=$(size)
check "the size is that of four" near "$new" $((3 * 512 * 1024 * 1024 * 13 / 16)) 6

# a device of another size.
check "a larger one" "$LARDER" pool attach tank raidz1-0 "$NEW/large"
check "is rebalanced" "$LARDER" pool rebalance -w tank
whole "with a larger one"
check "CAP is of what can be used" sh -c "[ \$('$LARDER' pool get -Hp -o value capacity tank) -lt 35 ]"

# devices leave.
check "what it comes to is told" sh -c "'$LARDER' pool remove -n tank '$NEW/0' | grep -q 'remove -s'"
check "two at once cannot" fails 2 "at a time" "$LARDER" pool remove tank "$NEW/0" "$DEVICES/disk1"
check "one begins to leave" "$LARDER" pool remove tank "$NEW/large"
check "another cannot" sh -c "! '$LARDER' pool remove tank '$NEW/0' 2>'$BED/why' && grep -q 'on its way out' '$BED/why'"
check "it can be told to stay" "$LARDER" pool remove -s tank
check "once" fails 2 "nothing is being removed" "$LARDER" pool remove -s tank
check "it leaves" "$LARDER" pool remove -w tank "$NEW/large"
check "and is not in the pool" quiet "$NEW/large"
whole "without it"
check "a dead one leaves too" \
    sh -c "'$LARDER' pool offline tank '$DEVICES/disk2' && '$LARDER' pool remove -w tank '$DEVICES/disk2'"
check "and the group is whole" says "state: ONLINE"
check "and survives a loss again" says "1 more loss"
whole "without the dead one"
check "more is written" put 250 b
sums
check "what does not fit stays" fails 2 "there would be room for" "$LARDER" pool remove tank "$NEW/0"

# another layout.
check "raidz2 is told" sh -c "'$LARDER' pool reshape -n tank raidz1-0 raidz2 '$NEW/1' | grep -q '2 losses'"
check "what it is already" fails 2 "it is a raidz1 already" "$LARDER" pool reshape tank raidz1-0 raidz1
check "no layout" fails 2 "is no layout" "$LARDER" pool reshape tank raidz1-0 raid7
check "raidz2 it becomes" "$LARDER" pool reshape -w tank raidz1-0 raidz2 "$NEW/1"
check "two losses are survived" says "2 more losses"
whole "as raidz2"
check "it is read without two" \
    sh -c "'$LARDER' pool offline tank '$DEVICES/disk0' && '$LARDER' pool offline tank '$NEW/1'"
whole "without two"
check "which come back" \
    sh -c "'$LARDER' pool online tank '$DEVICES/disk0' '$NEW/1' && '$LARDER' pool wait -t resilver tank"

# a group leaves.
check "another group is added" "$LARDER" pool add tank raidz2 "$NEW"/2 "$NEW"/3 "$NEW"/4 "$NEW"/5
check "the first group begins to leave" "$LARDER" pool remove tank raidz2-0
put 25 c
sums
kill_daemon
check "the pool is there after a kill" import
check "and it goes on leaving" "$LARDER" pool wait -t remove tank
check "it is gone" quiet "$DEVICES/disk0"
check "the last one stays" sh -c "! '$LARDER' pool remove tank raidz2-1 2>'$BED/why' && grep -q 'only group' '$BED/why'"
whole "in the other group"
check "exported" "$LARDER" pool export tank
check "its devices alone are enough" sh -c "'$LARDER' pool import -d '$NEW' tank"
mounted
whole "from them alone"

# devices that grow.
check "nothing has grown" quiet "online -e"
truncate -s 640M "$NEW"/2 "$NEW"/3 "$NEW"/4 "$NEW"/5
check "it is told that they have" within 90 says "growth: files can take .* online -e tank"
check "EXPANDSZ" [ "$("$LARDER" pool get -Hp -o value expandsize tank)" -gt $((480 << 20)) ]
before=$(size)
check "one is used whole" sh -c "'$LARDER' pool online -e tank '$NEW/2' 2>&1 | grep -q 'when other devices'"
check "once" sh -c "'$LARDER' pool online -e tank '$NEW/2' 2>&1 | grep -q 'no larger'"
check "files cannot take more for one" [ "$(size)" = "$before" ]
check "the others by themselves" "$LARDER" pool set autoexpand=on tank
larger() { [ "$(size)" -gt $((before + (200 << 20))) ]; }
check "and files can take more" within 90 larger
check "and nothing more is told" quiet "online -e"
check "they are filled" put 400 d
sums
kill_daemon
check "the pool is there after a kill, on larger devices" sh -c "'$LARDER' pool import -d '$NEW' tank"
mounted
check "as large" larger
whole "on devices that have grown"
check "an unmount" "$LARDER" pool export tank
finish
