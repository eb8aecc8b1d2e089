#!/bin/bash
# side_by_side.sh COMMAND...: runs commands of the shell at the same time and waits for all; fails if one did, and then
# tells last what failed in their steps.
STEPS_FAILED=$(mktemp)
export STEPS_FAILED
lanes=()
trap 'kill "${lanes[@]}" 2>/dev/null; wait; exit 130' INT TERM
trap 'rm -f "$STEPS_FAILED"' EXIT
for command in "$@"; do
    bash -c "$command" &
    lanes+=($!)
done
status=0
for lane in "${lanes[@]}"; do
    wait "$lane" || status=1
done
[ ! -s "$STEPS_FAILED" ] || printf '\n== what failed\n%s\n' "$(cat "$STEPS_FAILED")"
exit $status
