#!/bin/bash
# flushes.sh: every fsync that returned followed flushes of the devices, which followed writes to them.
#
# strace watches the daemon. While one writer writes and syncs, each span from before a write to the return of its
# fsync must have, on as many devices as may be lost and one more, a write and after its end a whole flush.
# The devices are `fault:` ones without faults: all that is done to them is a system call, while strace does not see what
# a thread does by a ring of its own.
# FSYNCS: how many (200).
. "$(dirname "$0")/bed.sh"
need root fuse strace
FSYNCS=${FSYNCS:-200}
make_bed 4 512M
WITNESS=$(program witness)

# trial WORD MEMBERS DEVICE...
trial() {
    local word=$1 members=$2 tracer
    shift 2
    "$LARDER" pool create -m "$MNT" tank $word "$@"
    mounted
    # The one of the last trial would be taken for this one's.
    : >"$BED/out/attached"
    strace -f -ttt -T -y -e trace=pwrite64,pwritev,pwritev2,fdatasync,fsync -o "$BED/out/strace" -p "$(daemon_pid)" \
        2>"$BED/out/attached" &
    tracer=$!
    within 60 grep -q attached "$BED/out/attached" || skip "strace may not attach: $(cat "$BED/out/attached")"
    "$WITNESS" fsyncs "$MNT/file" "$FSYNCS" "$BED/out/times"
    kill -INT "$tracer"
    wait "$tracer" || true
    check "${word:-single}: $FSYNCS fsyncs, flushes on $members devices" \
        "$WITNESS" flushes "$BED/out/strace" "$BED/out/times" "$DEVICES" "$members"
    sed 's/^/  /' "$BED/out/check"
    healthy
    "$LARDER" pool destroy --yes tank
}

trial "" 1 "fault:$DEVICES/disk0"
trial mirror 2 "fault:$DEVICES/disk0" "fault:$DEVICES/disk1"
trial raidz2 3 $(devices | sed 's/[^ ]*disk/fault:&/g')
finish
