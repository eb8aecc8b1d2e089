#!/bin/bash
# run.sh [NAME...]: runs the scripts of this folder (all of them unless named) and sums up. Fails if any did.
set -uo pipefail
cd "$(dirname "$0")"

scripts=("$@")
[ $# -gt 0 ] || scripts=(everyday rename flushes twins kill9 posix)
passed=0 skipped=() failed=()
for script in "${scripts[@]}"; do
    echo "== $script"
    "./$script.sh"
    case $? in
    0) passed=$((passed + 1)) ;;
    77) skipped+=("$script") ;;
    *) failed+=("$script") ;;
    esac
done
echo "real mounts: $passed passed, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}, ${#skipped[@]} skipped${skipped[*]:+ (${skipped[*]})}"
[ ${#failed[@]} = 0 ]
