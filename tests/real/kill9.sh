#!/bin/bash
# kill9.sh: the daemon is killed in the midst of writing, again and again, and sometimes again in the midst of the
# import or the export that follows. After each import, without a flag and without a wait, everything that an fsync
# confirmed is there; nothing is torn, nothing is wrong. At the end the same with as many devices gone as may be.
# KILLS: how often (20).
. "$(dirname "$0")/bed.sh"
need root fuse
KILLS=${KILLS:-20}
make_bed 6 2G
WITNESS=$(program witness)

# kill_during VERB...: kills the daemon some milliseconds after `larder pool VERB` began.
kill_during() {
    "$LARDER" pool "$@" >/dev/null 2>&1 &
    local command=$!
    sleep "0.0$((RANDOM % 90 + 10))"
    kill_daemon
    # Done, or told that it was not: which of them is chance.
    wait "$command" || true
    kill_daemon
}

"$LARDER" pool create -m "$MNT" tank raidz2 $(devices)
for round in $(seq "$KILLS"); do
    mounted
    dir=$MNT/r$round acks=$BED/out/acks$round
    "$WITNESS" write "$dir" "$acks" "$round" 2>/dev/null &
    writer=$!
    sleep "$((RANDOM % 2)).$((RANDOM % 800 + 100))"
    kill_daemon
    wait "$writer" || bad "round $round: the writer panicked"
    if [ $((round % 3)) = 0 ]; then
        kill_during import -d "$DEVICES" tank
    fi
    check "round $round: import" "$LARDER" pool import -d "$DEVICES" tank
    mounted
    healthy "round $round: the pool is healthy"
    if [ $((round % 4)) = 0 ]; then
        kill_during export tank
        check "round $round: import after a killed export" "$LARDER" pool import -d "$DEVICES" tank
        mounted
    fi
    # This round's files and those of three before; all of them at the end.
    for earlier in $(seq $((round > 3 ? round - 3 : 1)) "$round"); do
        check "round $round: promises of round $earlier" \
            "$WITNESS" verify "$MNT/r$earlier" "$BED/out/acks$earlier" "$earlier"
    done
    # Keeps the space in bounds, and has what is removed replayed as well.
    [ "$round" -le 8 ] || rm -rf "$MNT/r$((round - 8))"
done
"$LARDER" pool export tank
check "import after export" "$LARDER" pool import -d "$DEVICES" tank
for round in $(seq $((KILLS > 8 ? KILLS - 7 : 1)) "$KILLS"); do
    check "at the end: promises of round $round" "$WITNESS" verify "$MNT/r$round" "$BED/out/acks$round" "$round"
done
healthy

"$WITNESS" write "$MNT/last" "$BED/out/acks.last" 99 2>/dev/null &
writer=$!
sleep 0.5
kill_daemon
wait "$writer" || bad "the last writer panicked"
rm "$DEVICES/disk1" "$DEVICES/disk4"
check "import without two devices" "$LARDER" pool import -d "$DEVICES" tank
mounted
check "promises without two devices" "$WITNESS" verify "$MNT/last" "$BED/out/acks.last" 99
check "promises of round $KILLS without two devices" \
    "$WITNESS" verify "$MNT/r$KILLS" "$BED/out/acks$KILLS" "$KILLS"
status=0
"$LARDER" pool check tank >/dev/null || status=$?
check "the pool says that it is degraded" test "$status" = 1
finish "$KILLS kills, $(cat "$BED"/out/acks* | wc -l) acknowledged fsyncs"
