#!/bin/bash
# trim.sh: what is deleted is given back to the file system that devices lie on: files shrink after a trim, and by
# themselves with autotrim=on; loop devices hand it on to theirs. What was not deleted stays as it is.
. "$(dirname "$0")/bed.sh"
need root fuse losetup
room 2
make_bed 3 512M
LOOP=""
clear_more() { [ -z "$LOOP" ] || { "$LARDER" daemon stop; losetup --detach "$LOOP"; } >/dev/null 2>&1; }

# taken: MiB that all devices take of their file system.
taken() { echo $((($(stat -c %b "$DEVICES"/* | paste -sd+)) / 2048)); }
# below MIB: whether they take less than that, within twenty seconds.
below() {
    for _ in $(seq 100); do
        [ "$(taken)" -ge "$1" ] || return 0
        sleep 0.2
    done
    return 1
}
# refused WHAT TEXT COMMAND...: the command fails, and says so.
refused() {
    local what=$1 text=$2 said
    shift 2
    if said=$("$@" 2>&1); then bad "$what is not refused"; else
        check "$what is refused: $said" grep -q -- "$text" <<<"$said"
    fi
}
# fill NAME: some files that stay, and more that do not.
fill() {
    mkdir "$MNT/$1"
    head -c 20M /dev/urandom >"$MNT/$1/stays"
    for i in $(seq 12); do head -c 10M /dev/urandom >"$MNT/$1/goes$i"; done
    sha256sum "$MNT/$1/stays" >"$BED/out/$1.sum"
    "$LARDER" pool sync tank
}
# whole WHAT: everything that was to stay is there.
whole() {
    check "$1: what stays is as it was" sh -c "cat '$BED'/out/*.sum | sha256sum -c --quiet"
    check "$1: a scrub finds nothing" "$LARDER" pool scrub -w tank
    check "$1: no errors" sh -c "'$LARDER' pool status tank | grep -q 'No known data errors'"
}

"$LARDER" pool create -m "$MNT" tank mirror "$DEVICES/disk0" "$DEVICES/disk1"
mounted
refused "a secure trim" "-d" "$LARDER" pool trim -d tank
check "nothing was trimmed yet" sh -c "'$LARDER' pool status -t tank | grep -q '(untrimmed)'"
fill first
full=$(taken)
check "it takes space" test "$full" -ge 270
rm "$MNT"/first/goes*
check "what was deleted is free" "$LARDER" pool wait -t free tank
check "a file keeps what was deleted" test "$(taken)" -ge $((full - 20))
check "trim" "$LARDER" pool trim -w tank
trimmed=$(taken)
check "after a trim: $trimmed of $full MiB" test "$trimmed" -le $((full - 200))
check "status tells" sh -c "'$LARDER' pool status -t tank | grep -q '(100% trimmed, completed at '"
check "and says no more than it is asked" sh -c "! '$LARDER' pool status tank | grep -q trimmed"
check "JSON" sh -c "'$LARDER' pool status -j tank | grep -q '\"state\": \"complete\"'"
check "events" sh -c "'$LARDER' pool events tank | grep -q trim_finish"
whole "after a trim"

check "a trim at a rate" "$LARDER" pool trim -r 1M tank "$DEVICES/disk0"
check "goes on" sh -c "'$LARDER' pool status tank | grep -q '(trimming)'"
check "is suspended" "$LARDER" pool trim -s tank
check "and waits" sh -c "'$LARDER' pool status -t tank | grep -q 'trimmed, suspended, started at '"
check "export" "$LARDER" pool export tank
check "import" "$LARDER" pool import -d "$DEVICES" tank
mounted
check "it is kept" sh -c "'$LARDER' pool status -t tank | grep -q 'trimmed, suspended, started at '"
check "it is cancelled" "$LARDER" pool trim -c tank
refused "another time" "no active trim" "$LARDER" pool trim -c tank
check "when the other was trimmed is kept" sh -c "'$LARDER' pool status -t tank | grep -q '(100% trimmed, completed at '"

"$LARDER" pool set autotrim=on tank
fill second
full=$(taken)
rm "$MNT"/second/goes*
check "what was deleted is free" "$LARDER" pool wait -t free tank
check "autotrim gives it back" below $((full - 200))
fill third
kill_daemon
check "import after a crash" "$LARDER" pool import -d "$DEVICES" tank
mounted
rm "$MNT"/third/goes*
whole "with autotrim"
"$LARDER" pool destroy --yes tank

rm "$DEVICES"/disk[01]
LOOP=$(losetup --find --show "$DEVICES/disk2")
"$LARDER" pool create -m "$MNT" tank "$LOOP"
mounted
rm "$BED"/out/*.sum
fill fourth
full=$(taken)
rm "$MNT"/fourth/goes*
check "what was deleted is free" "$LARDER" pool wait -t free tank
check "trim of a loop device" "$LARDER" pool trim -w tank
check "its file shrinks: $(taken) of $full MiB" test "$(taken)" -le $((full - 100))
whole "on a loop device"
"$LARDER" pool destroy --yes tank
finish
