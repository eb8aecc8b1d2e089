#!/bin/bash
# faults.sh: a raidz2 on six devices that fail to order. While programs read, write and sync, one device hangs, one
# becomes slow, one gives read errors and rot, and one write errors. No call takes longer than the timeout and a
# few seconds, the status names them all, and in the end every byte is there and all devices are in use again.
# SECS (8) is how long each storm lasts.
. "$(dirname "$0")/bed.sh"
packages fio
need root fuse fio
room 4
SECS=${SECS:-8}
TIMEOUT=6 # of a device, seconds: a busy disk may take some of them for a flush
PATIENCE=$((TIMEOUT + 10))
make_bed 6 600M
# The devices bound what is written.
paths=()
for device in $(devices); do paths+=("fault:$device"); done
# faults DISK LINE...: what fails from now on; without lines, nothing.
faults() {
    local disk=$DEVICES/disk$1
    shift
    printf '%s\n' "$@" >"$BED/out/faults" && mv "$BED/out/faults" "$disk.faults"
}
# longest FILE: the longest call of a fio run, ms.
longest() { awk -F '[:,]' '/"(lat|clat)_ns"/ { lat = 1 } lat && /"max"/ { if ($2 > max) max = $2; lat = 0 } END { print int(max / 1e6) }' "$1"; }
# told WHAT DISK TEXT: the status says so of the device, in the end.
told() { check "$1" within 30 says "disk$2 .*$3"; }
status() { "$LARDER" pool status tank >"$BED/out/status"; }
says() { status && grep -E "$1" "$BED/out/status" || { cat "$BED/out/status"; false; }; }

check "create" "$LARDER" pool create -o device_timeout=$TIMEOUT -o memory=64M -m "$MNT" tank raidz2 "${paths[@]}"
mounted
head -c 100M /dev/urandom >"$BED/source"
cp "$BED/source" "$MNT/before"
"$LARDER" pool sync tank

# storm NAME FAULTS...: fio and cp at work, `FAULTS` called after a while; all calls end in good time.
storm() {
    local name=$1 out=$BED/out/fio.$1 fio
    shift
    mounted
    fio --name=storm --directory="$MNT" --filename="storm.$name" --size=120M --rw=randrw --rwmixread=70 --bsrange=4k-128k \
        --fsync=32 --numjobs=1 --ioengine=psync --direct=1 --time_based --runtime="$SECS" --output-format=json \
        --output="$out" >/dev/null 2>&1 &
    fio=$!
    sleep 2
    "$@"
    check "$name: cp goes on" timeout $((2 * PATIENCE)) cp "$BED/source" "$MNT/during.$name"
    check "$name: fio ends in good time" timeout $((SECS + 3 * PATIENCE)) tail --pid=$fio -f /dev/null
    wait $fio || bad "$name: fio failed"
    check "$name: no call took longer than $PATIENCE s: $(longest "$out") ms" \
        test "$(longest "$out")" -le $((PATIENCE * 1000))
    told_longest="${told_longest:+$told_longest, }$name $(longest "$out") ms"
    check "$name: what was there reads equal" timeout 60 cmp "$BED/source" "$MNT/before"
    status
}

storm well true
check "nothing is wrong" grep -q 'state: ONLINE' "$BED/out/status"
storm slow faults 2 'delay read ms=60'
# Reads are what it is known by; a busy machine did few of them until now.
slow() { dd if="$MNT/storm.slow" of=/dev/null bs=128k iflag=direct status=none && says 'disk2 .*ONLINE .*slow: takes'; }
check "the slow device is named and in use" within 60 slow
faults 2 'delay read ms=30' # slow enough still, and read where two others are out
storm hang faults 1 'hang'
told "the device that hung is out, and why is told" 1 "FAULTED .*did not answer for $TIMEOUT s"
storm errors faults 3 'error read rate=0.2' 'rot rate=0.01'
told "errors and rot are counted" 3 'ONLINE +[1-9]'
faults 3 # two are as many as may be out
storm refuses faults 4 'error write' 'error flush'
told "the device that refuses writes is out" 4 'FAULTED'
check "the pool goes on" grep -q 'state: DEGRADED' "$BED/out/status"

# What hung comes back when it does not hang any more; what refused writes, too.
rm -f "$DEVICES"/disk[134].faults
check "clear takes them back" timeout 60 "$LARDER" pool clear tank
check "they get what they missed" timeout 120 "$LARDER" pool wait -t resilver tank
status
check "all devices are in use" grep -q 'state: ONLINE' "$BED/out/status"

# One hangs again: neither export nor import waits for it longer than for a device.
faults 1 hang
check "export" timeout 60 "$LARDER" pool export tank
check "import with a device that hangs" timeout 90 "$LARDER" pool import -d "fault:$DEVICES" tank
mounted
rm -f "$DEVICES"/*.faults
check "again" timeout 60 "$LARDER" pool export tank
check "import by the devices themselves" "$LARDER" pool import -d "$DEVICES" tank
mounted
for file in before during.well during.slow during.hang during.errors during.refuses; do
    check "$file is whole" cmp "$BED/source" "$MNT/$file"
done
check "what was out gets what it missed" timeout 120 "$LARDER" pool wait -t resilver tank
status
check "all devices are in use again" grep -q 'state: ONLINE' "$BED/out/status"
check "nothing is lost" grep -q 'errors: No known data errors' "$BED/out/status"
healthy
finish "longest calls: $told_longest"
