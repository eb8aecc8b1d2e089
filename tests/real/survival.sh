#!/bin/bash
# survival.sh: a daemon that dies under those who use it, one that has little memory, and crowds: of open files, of
# programs, of names.
# COPY_GIB (2) GiB are copied under pressure, NAMES (100,000) names put into one folder. PARTS names parts to run.
. "$(dirname "$0")/bed.sh"
packages fio
need root fuse fio
room 6
COPY_GIB=${COPY_GIB:-2} NAMES=${NAMES:-100000}
PARTS=${PARTS:-death pressure files programs names bytes}
# The budget of the pool, and what the daemon may have beside it: threads, buffers of requests.
BUDGET_MIB=256 BESIDE_MIB=128
# The devices bound what is written: nothing here can take more.
make_bed 4 1200M
CROWD=$(program crowd)
told=""
APART=$MNT/set/apart

# group_make NAME MIB: a memory group with this limit in $GROUP; fails where none can be made.
group_make() {
    if [ -d /sys/fs/cgroup/memory ]; then
        GROUP=/sys/fs/cgroup/memory/larder-$NAME.$$.$1
        mkdir "$GROUP" && echo $(($2 << 20)) >"$GROUP/memory.limit_in_bytes"
    elif grep -qw memory /sys/fs/cgroup/cgroup.controllers; then
        GROUP=/sys/fs/cgroup/larder-$NAME.$$.$1
        mkdir "$GROUP" || return 1
        grep -qw memory /sys/fs/cgroup/cgroup.subtree_control || echo +memory >/sys/fs/cgroup/cgroup.subtree_control
        echo $(($2 << 20)) >"$GROUP/memory.max"
        [ ! -e "$GROUP/memory.swap.max" ] || echo 0 >"$GROUP/memory.swap.max"
    else
        return 1
    fi 2>/dev/null
}
# group_kills: how often its limit killed a process.
group_kills() { sed -n 's/^oom_kill //p' "$GROUP"/memory.{oom_control,events} 2>/dev/null; }
group_peak_mib() { echo $(($({ cat "$GROUP"/memory.{max_usage_in_bytes,peak}; echo 0; } 2>/dev/null | head -n 1) >> 20)); }
group_end() {
    local _
    for _ in $(seq 600); do rmdir "$GROUP" 2>/dev/null && break || sleep 0.1; done
    GROUP=
}
GROUP=
clear_more() {
    [ -n "$GROUP" ] || return 0
    timeout 60 "$LARDER" daemon stop >/dev/null 2>&1
    kill_daemon
    group_end
}

stale_mounts() { grep -c " $MNT\(/[^ ]*\)\? fuse" /proc/mounts || true; }

# --- The daemon is killed while programs hold files open.
part_death() {
    local round way how held
    "$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
    # With a mount of its own, which hangs on the other.
    "$LARDER" fs create -o mountpoint="$APART" tank/apart
    echo kept >"$APART/kept" && "$LARDER" pool sync tank
    for round in 1 2 3; do
        mounted
        mkfifo "$BED/out/go$round"
        (cd / && "$CROWD" hold "$APART/hold$round") <>"$BED/out/go$round" >"$BED/out/held$round" 2>&1 &
        held=$!
        sleep 900 <"$MNT" & # one that only stands there
        way=$!
        check "round $round: files are held" within 60 grep -q ready "$BED/out/held$round"
        kill_daemon
        # The kernel lets go of a process in steps.
        check "round $round: a new look says that the connection is gone" within 60 dead "$MNT" "$APART"
        # Before the mount is there again in one round, after it in the others.
        [ "$round" = 1 ] || check "round $round: import" "$LARDER" pool import -d "$DEVICES" tank
        echo go >"$BED/out/go$round"
        check "round $round: who held files goes on" timeout 60 tail --pid="$held" -f /dev/null
        wait "$held" || bad "round $round: the holder failed: $(tail -n 3 "$BED/out/held$round")"
        check "round $round: all it hears is ENOTCONN" test "$(grep -c ': ENOTCONN$' "$BED/out/held$round")" = 7
        [ "$(grep -c ': ENOTCONN$' "$BED/out/held$round")" = 7 ] || sed 's/^/    /' "$BED/out/held$round"
        [ "$round" != 1 ] || check "round $round: import" "$LARDER" pool import -d "$DEVICES" tank
        kill "$way" && wait "$way" 2>/dev/null || true
        mounted
        check "round $round: two mounts in /proc/mounts, none of them stale" test "$(stale_mounts)" = 2
        same "round $round: new opens work" <(echo kept) "$APART/kept"
        check "round $round: writes too" dd if=/dev/urandom of="$MNT/new$round" bs=1M count=8 conv=fsync
        healthy
    done
    # The commands that come first to a killed daemon clear what they must, whichever they are.
    kill_daemon
    check "the list of pools after a kill is empty" test "$("$LARDER" pool list -H 2>&1 | wc -l)" -le 1
    check "what can be imported names the pool" grep -q 'pool: tank' <("$LARDER" pool import -d "$DEVICES")
    "$LARDER" daemon stop
    check "import by the name that it remembers" "$LARDER" pool import tank
    check "again no stale mount" test "$(stale_mounts)" = 2
    # Killed while it exports: whatever it came to, an import brings everything back.
    for round in $(seq 8); do
        dd if=/dev/urandom of="$MNT/unsynced" bs=1M count=24 2>/dev/null
        "$LARDER" pool export tank >"$BED/out/export" 2>&1 &
        way=$!
        sleep "0.0$((round * 9))"
        kill_daemon
        how=0
        wait "$way" || how=$?
        if [ "$how" != 0 ]; then
            # Asked of a daemon that came after, it names the way back.
            check "export $round, killed, tells what to do" grep -qE 'what to do:|import' "$BED/out/export"
        fi
        check "export $round, killed: import" "$LARDER" pool import -d "$DEVICES" tank
        same "export $round, killed: all is there" <(echo kept) "$APART/kept"
    done
    "$LARDER" pool destroy --yes tank
    check "destroyed, it leaves no mount" test "$(stale_mounts)" = 0
    check "stop of the daemon" "$LARDER" daemon stop
}

# --- Little memory: the daemon in a group that has the pool's budget and little beside it.
part_pressure() {
    local limit=$((BUDGET_MIB + BESIDE_MIB)) pid peak way n source=$BED/source writers=()
    if ! group_make daemon "$limit"; then
        echo "  no memory group can be made here: only the peak is measured"
        GROUP=
    fi
    mkdir -p "$BED/run"
    chmod 700 "$BED/run"
    ( [ -z "$GROUP" ] || echo "$BASHPID" >"$GROUP/cgroup.procs"
        exec "$LARDER" daemon --no-import ) >>"$BED/run/daemon.log" 2>&1 3>&- &
    within 60 "$LARDER" daemon status >/dev/null 2>&1 || true
    pid=$(daemon_pid)
    [ -n "$pid" ] || { bad "the daemon does not start with $limit MiB"; return; }
    "$LARDER" pool create -o memory="${BUDGET_MIB}M" -m "$MNT" tank raidz1 $(devices)
    mounted
    # Half of it compresses, so that codecs have work.
    "$CROWD" names "$MNT/warm" 1000 >/dev/null
    head -c $((256 << 20)) /dev/urandom >"$source"
    head -c $((128 << 20)) /dev/zero | tr '\0' 'x' >>"$source"

    # Programs that change mapped files: more dirty pages than the daemon's limit. In the first half they are outside of
    # its group, in the second half within it, where the daemon's memory must be had from pages that wait for the daemon.
    local map="fio --directory=$MNT --ioengine=mmap --rw=randwrite --bs=4k --size=256m --numjobs=2 --norandommap=0
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 --output=$BED/out/fio"
    local half copied=0 round=0 started
    for half in outside within; do
        [ "$half" = outside ] || [ -n "$GROUP" ] || break
        if [ "$half" = within ]; then
            # Room for the writers themselves, not for their pages.
            echo $(((limit + 64) << 20)) >"$GROUP/memory.limit_in_bytes" 2>/dev/null ||
                echo $(((limit + 64) << 20)) >"$GROUP/memory.max"
        fi
        started=$SECONDS
        ( [ "$half" = outside ] || echo "$BASHPID" >"$GROUP/cgroup.procs"
            cd / && exec timeout 900 $map.$half --name="$half" ) >"$BED/out/fio.err" 2>&1 &
        way=$!
        copied=0
        while [ $((copied * 384)) -lt $((COPY_GIB * 512)) ]; do
            # Each file takes the place of the one three before it.
            n=$MNT/copy$((copied % 3))
            if ! timeout 300 cp "$source" "$n" 2>"$BED/out/cp"; then
                bad "a copy under pressure: $(cat "$BED/out/cp")"
                break
            fi
            timeout 300 cmp "$source" "$n" || { bad "what was copied under pressure"; break; }
            copied=$((copied + 1))
        done
        if wait "$way"; then ok "mapped writers $half the group"; else
            bad "mapped writers $half the group: $(tail -n 5 "$BED/out/fio.$half" "$BED/out/fio.err")"
        fi
        check "$half: the daemon lives" test "$(daemon_pid)" = "$pid"
        peak=$(($(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null || echo 0) >> 10))
        check "$half: its peak of $peak MiB is in the budget and $BESIDE_MIB MiB" \
            test "$peak" -gt 0 -a "$peak" -le "$limit"
        [ -z "$GROUP" ] || check "$half: nobody was killed for memory" test "$(group_kills)" = 0
        echo "  $half: $((copied * 384)) MiB copied and 512 MiB mapped in $((SECONDS - started)) s, peak $peak MiB" \
            "resident${GROUP:+, $(group_peak_mib) MiB in the group}"
        rm -f "$MNT"/copy* "$MNT/$half".*
    done
    rm "$source"
    healthy
    told="$told, peak $peak MiB under memory=${BUDGET_MIB}M"
    check "export after pressure" timeout 120 "$LARDER" pool export tank
    check "import after pressure" timeout 120 "$LARDER" pool import -d "$DEVICES" tank
    "$LARDER" pool destroy --yes tank
    "$LARDER" daemon stop
    [ -z "$GROUP" ] || group_end
}

# --- Crowds.
part_files() {
    ulimit -n 20000 2>/dev/null || { echo "  the limit of open files cannot be raised"; return; }
    check "10,000 files open at once" timeout 900 "$CROWD" open "$MNT/open" 10000
    sed 's/^/  /' "$BED/out/check"
}

part_programs() {
    local programs=64 ops=${WORK_OPS:-300} n pids=() before=$FAILED
    mkdir "$MNT/programs"
    for n in $(seq "$programs"); do
        timeout 900 "$CROWD" work "$MNT/programs" "$n" "$ops" 2>"$BED/out/work$n" &
        pids+=($!)
    done
    for n in $(seq "$programs"); do
        wait "${pids[n - 1]}" || bad "program $n: $(tail -n 3 "$BED/out/work$n")"
    done
    [ "$FAILED" != "$before" ] || ok "$programs programs at once"
    check "what they share adds up" "$CROWD" sums "$MNT/programs" "$programs" "$ops"
    check "their folders go" rm -r "$MNT/programs"
}

part_names() {
    check "$NAMES names in one folder" timeout 1800 "$CROWD" names "$MNT/names" "$NAMES"
    sed "s/^/  $NAMES names: /" "$BED/out/check"
}

part_bytes() {
    local folder=$MNT/bytes n=0 name names=($'\xff\xfe' $'caf\xe9' $'\x80\x81\x82' $'a\nb' $' ' $'-rf' $'\\' $'"' $'*'
        $'\x01\x1f\x7f' $'\xc3\x28' $'\xed\xa0\x80' $'e\xcc\x81' $'\xc3\xa9' $'A' $'a')
    mkdir "$folder"
    for name in "${names[@]}"; do echo "$name" >"$folder/./$name"; done
    check "each name is a file of its own" test "$(find "$folder" -type f -printf x | wc -c)" = ${#names[@]}
    for name in "${names[@]}"; do
        [ "$(cat "$folder/./$name")" = "$name" ] || { bad "the file of $(printf %q "$name")"; continue; }
        mv "$folder/./$name" "$folder/./$name"$'\xfe' && ln "$folder/./$name"$'\xfe' "$folder/./$name" &&
            ln -s -- "$name" "$folder/link$n" && [ "$(readlink "$folder/link$n")" = "$name" ] &&
            mkdir "$folder/$n" && mv "$folder/./$name" "$folder/$n/" && setfattr -n "user.x" -v "$n" "$folder/$n/$name" ||
            bad "mv, ln, ln -s, setfattr of $(printf %q "$name")"
        n=$((n + 1))
    done
    (cd "$folder" && find . -printf '%P|%y|%l\0' | LC_ALL=C sort -z) >"$BED/out/bytes.before"
    "$LARDER" pool export tank
    "$LARDER" pool import -d "$DEVICES" tank
    (cd "$folder" && find . -printf '%P|%y|%l\0' | LC_ALL=C sort -z) >"$BED/out/bytes.after"
    same "names that are not text, after import" "$BED/out/bytes.before" "$BED/out/bytes.after"
    check "they can be removed" rm -r "$folder"
}

for part in $PARTS; do
    case $part in
    death | pressure) ;;
    *) if ! mountpoint -q "$MNT"; then "$LARDER" pool create -m "$MNT" tank raidz1 $(devices) && mounted; fi ;;
    esac
    before=$SECONDS
    "part_$part"
    echo "  $part: $((SECONDS - before)) s"
done
mountpoint -q "$MNT" && healthy
finish "${told#, }"
