#!/bin/bash
# kill9.sh: the daemon is killed in the midst of writing, again and again. After each import, without a flag and
# without a wait, everything that an fsync confirmed is there; nothing is torn, nothing is wrong.
# KILLS: how often (20).
. "$(dirname "$0")/bed.sh"
need root fuse rustc
KILLS=${KILLS:-20}
make_bed 6 2G
witness

"$LARDER" pool create -m "$MNT" tank raidz2 $(devices)
for round in $(seq "$KILLS"); do
    mounted
    dir=$MNT/r$round acks=$BED/out/acks$round
    "$WITNESS" write "$dir" "$acks" "$round" 2>/dev/null &
    writer=$!
    sleep "$((RANDOM % 2)).$((RANDOM % 800 + 100))"
    kill_daemon
    wait "$writer" || bad "round $round: the writer panicked"
    check "round $round: import" "$LARDER" pool import -d "$DEVICES" tank
    mounted
    healthy "round $round: the pool is healthy"
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
finish "$KILLS kills, $(cat "$BED"/out/acks* | wc -l) acknowledged fsyncs"
