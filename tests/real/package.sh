#!/bin/bash
# package.sh: the Debian packages as an administrator meets them: built of $LARDER, installed (below a folder), units
# verified, a pool that outlives kill -9, a stop and a boot, an upgrade while it is in use, removal and purge.
. "$(dirname "$0")/bed.sh"

need root fuse dpkg dpkg-deb objcopy systemd-analyze python3
make_bed 3 128M
ROOT=$BED/root
export LARDER_STATE_DIR=$ROOT/var/lib/larder
STATE=$LARDER_STATE_DIR
SERVICE=$ROOT/usr/lib/systemd/system/larderd.service
DAEMON=

# Scripts of packages see DPKG_ROOT and leave the machine's own systemd alone.
package() { dpkg --root="$ROOT" --force-script-chrootless --force-depends --force-not-root "$@" >"$BED/out/dpkg" 2>&1 || { cat "$BED/out/dpkg"; return 1; }; }
mkdir -p "$ROOT/var/lib/dpkg/info" "$ROOT/var/lib/dpkg/updates"
touch "$ROOT/var/lib/dpkg/status" "$ROOT/var/lib/dpkg/available"

check "packages are built" env XZ=0 "$HERE/../../packaging/deb.sh" "$LARDER" "$BED/debs"
VERSION=$("$LARDER" --version | cut -d' ' -f2)
deb() { echo "$BED/debs/${1}_${VERSION}_$(dpkg --print-architecture).deb"; }
check "they are installed" package -i "$(deb larder)" "$(deb larder-zfs-compat)" "$(deb larder-dbgsym)"
BUILT=$LARDER
LARDER=$ROOT/usr/bin/larder
check "the program runs" "$LARDER" --version
check "it is stripped" test "$(stat -c %s "$LARDER")" -lt "$(stat -c %s "$BUILT")"
check "zpool is one of its names" "$ROOT/usr/sbin/zpool" list

# Units: all that they name is there; the daemon is as hardened as mounting permits.
UNITS=$BED/units
mkdir "$UNITS"
for unit in "$ROOT"/usr/lib/systemd/system/*; do sed "s,/usr/bin/larder,$LARDER," "$unit" >"$UNITS/$(basename "$unit")"; done
# verified UNIT: nothing is said of our units; those of the machine may have faults of their own.
verified() {
    systemd-analyze verify --man=no "$UNITS/$1" >"$BED/out/verify" 2>&1 || true
    ! grep larder "$BED/out/verify"
}
for unit in "$UNITS"/*; do check "$(basename "$unit") is well formed" verified "$(basename "$unit")"; done
sed 's/^WatchdogSec=/WatchdogSecs=/' "$UNITS/larderd.service" >"$UNITS/larder-wrong.service"
check "a fault in a unit would be found" sh -c "! systemd-analyze verify --man=no '$UNITS/larder-wrong.service' 2>&1 | grep -q 'larder.*WatchdogSecs' && exit 1 || exit 0"
check "exposed by 5.0 at most" systemd-analyze security --offline=true --threshold=50 "$SERVICE"

# serve: the daemon by the unit's own command line; returns when it says that it is ready.
serve() {
    local line
    line=$(sed -n 's,^ExecStart=/usr/bin/larder,,p' "$SERVICE")
    rm -f "$BED/notify" "$BED/out/heard"
    python3 - "$BED/notify" >"$BED/out/heard" <<'PY' &
import socket, sys
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(sys.argv[1])
notify.settimeout(60)
while True:
    print(notify.recv(4096).decode(), flush=True)
PY
    within 10 test -S "$BED/notify"
    # shellcheck disable=SC2086 # words of the unit's command line
    NOTIFY_SOCKET=$BED/notify "$LARDER" $line >>"$BED/out/daemon" 2>&1 &
    DAEMON=$!
    within 60 grep -q READY=1 "$BED/out/heard"
}
ended() { ! kill -0 "$DAEMON" 2>/dev/null; }
leave() { kill "$DAEMON" && within 60 ended; }
sum() { sha256sum <"$MNT/home/file"; }

serve
check "a pool is made" "$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
check "with a dataset" "$LARDER" fs create tank/home
head -c 20M /dev/urandom >"$MNT/home/file"
"$LARDER" pool sync tank
WAS=$(sum)

kill_daemon
check "after kill -9 nothing is served" dead "$MNT"
check "it is told what was imported" sh -c "'$LARDER' pool status | grep -q 'was imported when the daemon stopped'"
check "the unit's daemon takes the place of one that a command started" serve
check "the pool is back" test "$(sum)" = "$WAS"

# A boot: daemon, mounts and run folder are gone.
kill_daemon
umount -l "$MNT"
rm -rf "$LARDER_RUN_DIR"
check "the daemon starts after a boot" serve
check "the pool is there, mounted, its files are read" test "$(sum)" = "$WAS"

# An upgrade, while a file is open: restarting the daemon is what the package's script has systemd do.
exec 9<"$MNT/home/file"
check "the package is installed over itself" package -i "$(deb larder)"
check "the old daemon ends in time" leave
check "the new one is ready" serve
check "the pool is back after the upgrade" test "$(sum)" = "$WAS"
check "open files must be opened anew" sh -c "! stat -f /dev/fd/9 >/dev/null 2>&1"
exec 9<&-

# Removal and purge leave pools alone.
check "the daemon ends" leave
find "$DEVICES" -type f -exec sha256sum {} + >"$BED/out/before"
check "packages are removed" package --remove larder-zfs-compat larder-dbgsym larder
check "what is remembered stays" test -s "$STATE/pools.json"
check "it is purged" package --purge larder
check "nothing is left of it" test ! -e "$STATE" -a ! -e "$ROOT/etc/default/larder" -a ! -e "$LARDER"
find "$DEVICES" -type f -exec sha256sum {} + >"$BED/out/after"
same "no byte of the pool was touched" "$BED/out/before" "$BED/out/after"
LARDER=$BUILT
check "another installation imports it" "$LARDER" pool import -d "$DEVICES" tank
check "and reads it" test "$(sum)" = "$WAS"
finish
