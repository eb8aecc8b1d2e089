#!/bin/bash
# step.sh NAME COMMAND...: runs it, and tells when it began and ended, how, and the time of processors it took; ends as
# it did. Its output comes in one piece at its end, unless to a terminal: steps may run side by side. What failed in it
# is added to the file $STEPS_FAILED, if that is set.
name=$1
shift
said=$(mktemp)
# Also of a step that is cut short.
trap 'cat "$said"; rm "$said"' EXIT
TIMEFORMAT='%U+%S'
echo "== $(date +%T) $name"
SECONDS=0
if [ -t 1 ]; then
    "$@"
    status=$?
else
    took=$({ time "$@" >"$said" 2>&1; } 2>&1)
    status=$?
    cat "$said"
fi
ended=$([ $status = 0 ] && echo done || echo "FAILED with $status")
if [ $status != 0 ] && [ -n "${STEPS_FAILED:-}" ]; then
    {
        echo "== $name: $ended after $SECONDS s"
        # Names of tests and of scripts, what they said of it, and errors of the compiler.
        grep -aE -A 2 '^test .* FAILED$|^thread .* panicked at|^error(\[|:)|^== .* failed$|^  FAILED: ' "$said" | tail -n 60
    } >>"$STEPS_FAILED"
fi
: >"$said"
echo "== $(date +%T) $name: $ended after $SECONDS s${took:+, $took s of processors}"
exit $status
