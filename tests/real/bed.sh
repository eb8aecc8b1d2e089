# bed.sh: what the scripts in this folder stand on; sourced, not run.
#
# A bed is a temporary folder with device files, a run folder and a mount point of its own, so that scripts may
# run side by side. At the end, however it comes, what the script started is ended by its id and the folder goes.

set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(realpath -m "$HERE/../../target")}
LARDER=${LARDER:-$CARGO_TARGET_DIR/release/larder}
NAME=$(basename "$0" .sh)
PASSED=0
FAILED=0

# skip WHY: ends the script, loudly; a failure where LARDER_NO_SKIP is set, as in CI.
skip() {
    echo "SKIPPED $NAME: $1"
    [ -z "${LARDER_NO_SKIP:-}" ] || exit 1
    exit 77
}

# io_uring: ends the script where FUSE over io_uring is not to be had; that is no failure unless root could help.
io_uring() {
    local switch=/sys/module/fuse/parameters/enable_uring
    if [ ! -e $switch ] || [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null)" = 2 ]; then
        echo "SKIPPED $NAME: needs FUSE over io_uring (Linux 6.14)"
        exit 77
    fi
    [ "$(cat $switch)" = Y ] || skip "needs FUSE over io_uring: write Y to $switch"
}

# need WHAT...: root, fuse, transport (the one that LARDER_FUSE names), or the name of a command.
need() {
    local what
    for what in "$@"; do
        case $what in
        root) [ "$(id -u)" = 0 ] || skip "needs root" ;;
        fuse) [ -c /dev/fuse ] || skip "needs /dev/fuse" ;;
        transport) [ "${LARDER_FUSE:-}" != io_uring ] || io_uring ;;
        *) command -v "$what" >/dev/null || skip "needs the command $what" ;;
        esac
    done
}

# packages PACKAGE...: has them installed, as root, where apt-get is; `need` tells what is missing then.
packages() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    local package lacking=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || lacking+=("$package")
    done
    [ ${#lacking[@]} -gt 0 ] || return 0
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq install -y --no-install-recommends "${lacking[@]}" ||
        { apt-get -qq update && apt-get -qq install -y --no-install-recommends "${lacking[@]}"; }; } >/dev/null 2>&1 || true
}

# room GIB: skips unless the file system of the bed has that much free and 8 GiB more.
room() {
    local free
    free=$(df --output=avail -BG "${TMPDIR:-/tmp}" | tail -1 | tr -dc 0-9)
    [ "$free" -ge $(($1 + 8)) ] || skip "needs $(($1 + 8)) GiB of free space in ${TMPDIR:-/tmp}"
}

# make_bed COUNT SIZE: the folder $BED with COUNT sparse devices of SIZE in $DEVICES, and $MNT to mount at.
make_bed() {
    [ -x "$LARDER" ] || { echo "$NAME: there is no $LARDER: make build" >&2; exit 1; }
    LARDER=$(realpath "$LARDER")
    BED=$(mktemp -d "${TMPDIR:-/tmp}/larder-$NAME.XXXXXX")
    chmod 755 "$BED" # other users go through it to the mount
    trap clear_bed EXIT
    trap 'exit 130' INT TERM
    DEVICES=$BED/devices MNT=$BED/mnt
    export LARDER_RUN_DIR=$BED/run
    mkdir "$DEVICES" "$MNT" "$BED/out"
    local i
    for i in $(seq 0 $(($1 - 1))); do truncate -s "$2" "$DEVICES/disk$i"; done
}

# mounted: ends the script unless the pool is mounted: nothing may be written beside it.
mounted() { mountpoint -q "$MNT" || { echo "$NAME: nothing is mounted at $MNT" >&2; exit 1; }; }

devices() { printf '%s\n' "$DEVICES"/*; }

# daemon_pid: of this bed's daemon; empty when none runs.
daemon_pid() { "$LARDER" daemon status -j 2>/dev/null | sed -n 's/^ *"pid": *\([0-9]\+\).*/\1/p' || true; }

# kill_daemon: as kill -9 does it; returns when the process is gone.
kill_daemon() {
    local pid
    pid=$(daemon_pid)
    [ -n "$pid" ] || return 0
    kill -9 "$pid"
    # Its files are closed when none of its threads is left but as a zombie.
    while grep -qs '^State:.[^ZX]' "/proc/$pid"/task/*/status; do sleep 0.01; done
}

# again: kill -9 of the daemon, and tank imported anew.
again() {
    kill_daemon
    "$LARDER" pool import -d "$DEVICES" tank
    mounted
}

# write_on FILE TWIN: from now on somebody writes at random to both, which begin as equals, and compares them; returns
# once that has begun. Needs python3.
write_on() {
    rm -f "$BED/out/begun" "$BED/out/stop"
    python3 - "$1" "$2" "$BED/out/stop" >"$BED/out/begun" <<'PY' &
import os, random, sys
rng, live, twin = random.Random(7), os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[2], os.O_RDWR)
size = os.fstat(twin).st_size
print("begun", flush=True)
while not os.path.exists(sys.argv[3]):
    at, data = rng.randrange(size), rng.randbytes(rng.randrange(1, 60000))
    for file in (live, twin):
        os.pwrite(file, data, at)
    where = rng.randrange(size)
    if os.pread(live, 70000, where) != os.pread(twin, 70000, where):
        sys.exit(f"another content at {where}")
os.fsync(live)
PY
    WRITER=$!
    until [ -s "$BED/out/begun" ]; do sleep 0.05; done
}
# written: ends that, with a fsync; fails if the file ever had another content than its twin.
written() {
    touch "$BED/out/stop"
    wait "$WRITER"
}

clear_bed() {
    local status=$? pid
    trap - EXIT
    set +e
    cd /
    for pid in $(jobs -p); do kill "$pid" 2>/dev/null; done
    # What a script has beside the bed.
    if declare -F clear_more >/dev/null; then clear_more; fi
    if [ "$status" != 0 ] && [ -s "$BED/run/daemon.log" ]; then
        echo "--- the daemon's last words"
        tail -n 20 "$BED/run/daemon.log"
    fi
    timeout 60 "$LARDER" daemon stop >/dev/null 2>&1 || kill_daemon
    mountpoint -q "$MNT" || [ -d "$MNT" ] || umount -l "$MNT" 2>/dev/null
    grep -q " $MNT fuse" /proc/mounts && umount -l "$MNT"
    if [ -n "${KEEP:-}" ]; then echo "kept: $BED"; else rm -rf --one-file-system "$BED"; fi
    exit "$status"
}

# ok WHAT, bad WHAT: count; a bad one is told at once.
ok() { PASSED=$((PASSED + 1)); [ -z "${VERBOSE:-}" ] || echo "  ok: $1"; }
bad() { FAILED=$((FAILED + 1)); echo "  FAILED: $1"; }

# check WHAT COMMAND...: passes when the command does; what it printed is shown when it does not.
check() {
    local what=$1
    shift
    if "$@" >"$BED/out/check" 2>&1; then ok "$what"; else
        bad "$what: $*"
        tail -n 20 "$BED/out/check" | sed 's/^/    /'
    fi
}

# fails CODE WORDS COMMAND...: the command ends with that code, and says so; what it said is in $BED/out/said.
fails() {
    local code=$1 words=$2 status=0
    shift 2
    "$@" >"$BED/out/said" 2>&1 || status=$?
    [ "$status" = "$code" ] && grep -qF -- "$words" "$BED/out/said" || { echo "exit $status"; cat "$BED/out/said"; return 1; }
}

# healthy: the pool is, by its own words.
healthy() { check "${1:-the pool is healthy}" "$LARDER" pool check tank; }

# same WHAT A B: two files are equal.
same() { check "$1" diff "$2" "$3"; }

# within SECONDS COMMAND...: returns as soon as the command succeeds; fails when it does not in that time.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do [ "$SECONDS" -lt "$end" ] || return 1; sleep 0.1; done
}

# dead FOLDER...: a look into each says that nobody serves it: ENOTCONN, or over io_uring ECONNABORTED.
dead() {
    local folder
    for folder in "$@"; do
        grep -qE 'not connected|connection abort' <(stat -f "$folder" 2>&1) || return 1
    done
}

# program NAME: where a program is that was built beside the command (NAME.rs of this folder, or differential).
program() {
    local path
    path=$(dirname "$LARDER")/$1
    [ -x "$path" ] || { echo "$NAME: there is no $path: make real" >&2; exit 1; }
    echo "$path"
}

# finish: the closing line; fails when anything did.
finish() {
    echo "$NAME: $PASSED passed, $FAILED failed${1:+ ($1)} in ${SECONDS} s"
    [ "$FAILED" = 0 ]
    exit
}
