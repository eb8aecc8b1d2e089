#!/bin/bash
# run.sh [NAME...]: runs the scripts of this folder (all of them unless named), LANES (2) side by side, for they wait more
# than they work, and sums up. Fails if any did. Those that go through most of a file system run over each of FUSE's
# transports, unless LARDER_FUSE names one.
set -uo pipefail
cd "$(dirname "$0")"
LANES=${LANES:-2}

scripts=("$@")
# Long ones first.
[ $# -gt 0 ] || scripts=(zfs_streams tools replicate posix dedupe faults healing survival kill9 full streams databases differential passes records rename copies undedup trees samba clones snapshots everyday advise sharing space races versions flushes policies trim cache roles growth split package)
wanted=()
for script in "${scripts[@]}"; do
    case ${LARDER_FUSE:-}$script in
    everyday | posix | races) wanted+=("$script over classic" "$script over io_uring") ;;
    *) wanted+=("$script") ;;
    esac
done

declare -A running=() began=()
passed=0 skipped=() failed=()
said=$(mktemp -d)
trap 'rm -r "$said"' EXIT
trap 'kill "${!running[@]}" 2>/dev/null; wait; exit 130' INT TERM

begin() {
    echo ".. $1"
    (
        case $1 in *" over "*) export LARDER_FUSE=${1##* } ;; esac
        exec "./${1%% *}.sh"
    ) >"$said/$1" 2>&1 </dev/null &
    running[$!]=$1 began[$!]=$SECONDS
}
# Waits for one to end.
end_one() {
    local pid status what
    wait -n -p pid
    status=$?
    what=${running[$pid]}
    unset "running[$pid]"
    echo "== $what, $((SECONDS - began[$pid])) s"
    cat "$said/$what"
    case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped+=("$what") ;;
    *) failed+=("$what") ;;
    esac
}
for what in "${wanted[@]}"; do
    [ ${#running[@]} -lt "$LANES" ] || end_one
    begin "$what"
done
while [ ${#running[@]} -gt 0 ]; do end_one; done

# What failed is told again where it is looked for.
for what in ${failed[@]+"${failed[@]}"}; do
    echo "== $what failed"
    tail -n 40 "$said/$what"
done
ended=$((passed + ${#failed[@]} + ${#skipped[@]}))
echo "real mounts: $passed passed, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}, ${#skipped[@]} skipped${skipped[*]:+ (${skipped[*]})}"
[ ${#failed[@]} = 0 ] && [ $ended = ${#wanted[@]} ]
