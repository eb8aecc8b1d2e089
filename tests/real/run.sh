#!/bin/bash
# run.sh [NAME...]: runs the scripts of this folder (all of them unless named) and sums up. Fails if any did.
# Those that go through most of a file system run over each of FUSE's transports, unless LARDER_FUSE names one.
set -uo pipefail
cd "$(dirname "$0")"

scripts=("$@")
[ $# -gt 0 ] || scripts=(everyday sharing trees samba rename flushes twins databases survival faults kill9 healing full posix)
passed=0 skipped=() failed=()
said=$(mktemp -d)
trap 'rm -r "$said"' EXIT
run() {
    echo "== $1"
    # Not by a pipe, whose end would wait for whoever still has it open.
    "./$script.sh" > >(tee "$said/$1") 2>&1
    case $? in
    0) passed=$((passed + 1)) ;;
    77) skipped+=("$1") ;;
    *) failed+=("$1") ;;
    esac
    sleep 0.1
}
for script in "${scripts[@]}"; do
    case ${LARDER_FUSE:-}$script in
    everyday | posix)
        for transport in classic io_uring; do LARDER_FUSE=$transport run "$script over $transport"; done
        ;;
    *) run "$script" ;;
    esac
done
# What failed is told again where it is looked for.
for name in ${failed[@]+"${failed[@]}"}; do
    echo "== $name failed"
    tail -n 40 "$said/$name"
done
echo "real mounts: $passed passed, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}, ${#skipped[@]} skipped${skipped[*]:+ (${skipped[*]})}"
[ ${#failed[@]} = 0 ]
