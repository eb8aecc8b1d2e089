#!/bin/bash
# step.sh NAME COMMAND...: runs it, and tells when it began and ended, and how; ends as it did.
name=$1
shift
echo "== $(date +%T) $name"
SECONDS=0
"$@"
status=$?
echo "== $(date +%T) $name: $([ $status = 0 ] && echo done || echo "FAILED with $status") after $SECONDS s"
exit $status
