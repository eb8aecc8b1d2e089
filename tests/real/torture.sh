#!/bin/bash
# torture.sh: `larder torture` itself. Short runs of two layouts lose nothing and leave nothing; one goes beyond what
# the layout tolerates; a file that somebody else changes under it is found, with the command that does it again.
# SECS (20) is how long each run lasts, SEED (1000) the first one; the other runs have the next.
. "$(dirname "$0")/bed.sh"
need root fuse python3
room 3
SECS=${SECS:-20}
SEED=${SEED:-1000}
make_bed 0 0
DIR=$BED/torture
told=""

# torture NAME OPTIONS...: a run, with what it says in $BED/out/NAME.
torture() {
    local name=$1
    shift
    "$LARDER" torture --dir "$DIR" -j "$@" >"$BED/out/$name" 2>"$BED/out/$name.err"
}
# said NAME EXPRESSION: whether that holds of what it said.
said() { python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$BED/out/$1" "$2"; }
left() { [ -z "$(ls "$DIR" 2>/dev/null)" ] && ! grep -q "$DIR" /proc/mounts; }
# A failure is told with its seed and command; its folder is kept.
whole() {
    local name=$1
    shift
    check "$name" torture "$name" "$@"
    [ -s "$BED/out/$name" ] && said "$name" 'r["lost"] is None' || { cat "$BED/out/$name" "$BED/out/$name.err"; KEEP=1; }
    check "$name leaves nothing" left
    told+="$name: $(python3 -c 'import json, sys; d = json.load(open(sys.argv[1]))["done"]; print(d["operations"], "operations,", d["kills"], "kills,", d["faults"], "faults")' "$BED/out/$name"); "
}

whole raidz1 --seed "$SEED" --layout raidz1 --time "${SECS}s"
check "it did something" said raidz1 'r["done"]["operations"] > 50 and r["done"]["comparisons"] > 0'
whole mirror --seed $((SEED + 1)) --layout mirror --time "${SECS}s"
whole beyond --seed $((SEED + 2)) --layout raidz1 --pools 1 --beyond
check "files were hit, named, and others saved" said beyond 'r["done"]["saved_files"] > 0'

# Somebody else changes files.
"$LARDER" torture --dir "$DIR" --seed 7 --layout mirror --pools 1 >"$BED/out/wrong" 2>&1 &
run=$!
spoil() {
    for file in "$DIR"/larder-torture-7-mirror/mnt/lane*/d*/f*; do
        [ -f "$file" ] && printf wrong >>"$file" 2>/dev/null || true
    done
    ! kill -0 $run 2>/dev/null
}
check "a change behind its back ends it" within 300 spoil
status=0
wait $run || status=$?
check "with a failure" [ $status = 1 ]
check "it tells the command" grep -q 'again: larder torture --seed 7 --layout mirror --pools 1' "$BED/out/wrong"
check "it tells what" grep -qE 'what: .*lane' "$BED/out/wrong"
check "the evidence is left" test -s "$DIR/larder-torture-7-mirror/torture.log"
check "nothing is mounted" sh -c "! grep -q '$DIR' /proc/mounts"
check "not over what is left" fails 1 "is there already" "$LARDER" torture --dir "$DIR" --seed 7 --layout mirror --pools 1
check "nor with other files in the devices' place" test -e "$DIR/larder-torture-7-mirror/devices/device000"
rm -r "$DIR/larder-torture-7-mirror"

# Somebody ends it.
"$LARDER" torture --dir "$DIR" --seed 8 --layout mirror >"$BED/out/ended" 2>&1 &
run=$!
check "it has begun" within 60 mountpoint -q "$DIR/larder-torture-8-mirror/mnt"
kill -INT $run
status=0
wait $run || status=$?
check "it ends" [ $status = 3 ]
check "with a summary" grep -q 'nothing lost; seed 8, .* and was stopped' "$BED/out/ended"
check "and leaves nothing" left
check "a layout that is none" fails 2 "none of raidz1" "$LARDER" torture --layout raid7
finish "${told%; }"
