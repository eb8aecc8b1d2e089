#!/bin/bash
# replicate.sh: larder fs replicate, and fs send to a target, between two pools of two daemons that know of each other by
# ssh alone: a stand-in that a test can break, and a real one on a loopback port where there is one.
. "$(dirname "$0")/bed.sh"
need root fuse
make_bed 2 3G
OTHER=$BED/run2
devices=($(devices))
there() { LARDER_RUN_DIR=$OTHER "$LARDER" "$@"; }
here() { "$LARDER" "$@"; }
clear_more() {
    LARDER_RUN_DIR=$OTHER timeout 60 "$LARDER" daemon stop >/dev/null 2>&1
    [ -z "${SSHD:-}" ] || kill "$SSHD" 2>/dev/null
}
# As much of ssh as it takes. A file `break` has the number of bytes after which the next stream's connection breaks.
cat >"$BED/ssh" <<SSH
#!/bin/bash
echo "\$@" >>"$BED/ssh.log"
[ "\$1" = nas ] || { echo "ssh: Could not resolve hostname \$1" >&2; exit 255; }
shift
export LARDER_RUN_DIR=$OTHER
if [ -s "$BED/break" ] && [[ \$* == *"fs receive"* ]]; then
    count=\$(cat "$BED/break")
    rm "$BED/break"
    head -c "\$count" | sh -c "\$*"
    exit 255
fi
exec sh -c "\$*"
SSH
chmod +x "$BED/ssh"
export LARDER_SSH=$BED/ssh
here pool create -m "$MNT" tank "${devices[0]}"
there pool create -m "$BED/mnt2" attic "${devices[1]}"
here fs create tank/work
mounted
W=$MNT/work R=$BED/mnt2/work

# fails WORDS COMMAND...: the command fails with exit code 1, and says so.
fails() {
    local words=$1 code=0
    shift
    "$@" >"$BED/out/said" 2>&1 || code=$?
    grep -qF -- "$words" "$BED/out/said" && [ "$code" = 1 ] || { echo "exit code $code"; cat "$BED/out/said"; return 1; }
}
# says WORDS COMMAND...: the command succeeds, and says so.
says() {
    local words=$1
    shift
    "$@" >"$BED/out/said" 2>&1 && grep -qF -- "$words" "$BED/out/said" || { cat "$BED/out/said"; return 1; }
}
replicate() { here fs replicate --remote-larder "$LARDER" "$@"; }
send() { here fs send --remote-larder "$LARDER" "$@"; }
state() { (cd "$1" && find . -mindepth 1 -printf '%P %y %m %U %G %n %s %l\n' | LC_ALL=C sort; find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2); }
equal() { same "$1" <(state "$2") <(state "$3"); }
names() { fs_of "$1" list -Hrt snapshot -o name "$2" 2>/dev/null | sed 's/.*@//'; }
fs_of() { local side=$1; shift; "$side" fs "$@"; }
newest() { names here "$1" | tail -1; }
token() { there fs get -Hpo value receive_resume_token "$1"; }
noise() { head -c "$1" /dev/urandom; }

mkdir "$W/tree" && noise 3M >"$W/tree/a" && noise 20K >"$W/b" && ln "$W/b" "$W/c" && ln -s b "$W/d"

# First, nothing, more.
check "a rehearsal" says "would send 1 snapshot up to @replicate_" replicate -n tank/work nas:attic/work
check "does nothing" test -z "$(newest tank/work)$(names there attic)"
check "first" says "in full" replicate tank/work nas:attic/work
equal "first: content" "$W" "$R"
first=$(newest tank/work)
check "it is held" fails "is held: larder fs release" here fs destroy "tank/work@$first"
began=$(date +%s%N)
check "nothing to do" says "up to date at @$first" replicate tank/work nas:attic/work
check "and that soon" test $((($(date +%s%N) - began) / 1000000)) -lt 3000
check "no snapshot for it" test "$(newest tank/work)" = "$first"
chmod 600 "$W/b"
check "attributes alone" says "from @$first" replicate tank/work nas:attic/work
equal "attributes: content" "$W" "$R"
check "old snapshots of its own go here" test "$(names here tank/work | wc -l)" = 1
check "and there" test "$(names there attic/work | wc -l)" = 1
for n in 1 2 3; do echo "$n" >"$W/n$n"; here fs snapshot "tank/work@n$n"; done
echo 4 >"$W/n4"
check "snapshots between" says "3 snapshots up to @n3" replicate tank/work nas:attic/work
check "all are there" test "$(names there attic/work | grep -c '^n')" = 3
equal "the second" "$W/.zfs/snapshot/n2" "$R/.zfs/snapshot/n2"
echo 5 >"$W/n5" && here fs snapshot tank/work@n5 && echo 6 >"$W/n6" && here fs snapshot tank/work@n6
check "only the newest" says "1 snapshot up to @n6" replicate --newest-only tank/work nas:attic/work
check "not the one before" test "$(names there attic/work | grep -c n5)" = 0
check "JSON" grep -q '"action": "up_to_date"' <(replicate -j tank/work nas:attic/work)
check "a pull" says "in full" replicate nas:attic/work tank/pulled
equal "a pull: content" "$R" "$MNT/pulled"
check "on one machine" says "in full" replicate tank/work tank/a/b/c
equal "on one machine: content" "$W/.zfs/snapshot/n6" "$MNT/a/b/c"
here fs destroy -r tank/a

# Refused by name, and never a command of a name.
check "no such host" fails "Could not resolve hostname elsewhere" replicate --retries 0 tank/work elsewhere:attic/x
check "no such pool" fails "nas:none/x: cannot open 'none': no such pool" replicate tank/work nas:none/x
check "no such source" fails "cannot open 'tank/none': dataset does not exist" replicate tank/none nas:attic/x
check "no larder there" fails "nas: there is no '/none/larder'" here fs replicate --remote-larder /none/larder tank/work nas:attic/x
for bad in '-oProxyCommand=touch:attic' 'nas:attic/$(touch x)' 'nas:attic/a;touch' 'nas:-x'; do
    code=0
    send tank/work@n6 "$bad" >/dev/null 2>&1 || code=$?
    check "'$bad' is bad usage" test "$code" = 2
done

check "a target within" test "$(replicate -r tank tank/work >/dev/null 2>&1 || echo $?)" = 2

# Diverged.
there fs snapshot attic/work@theirs
echo 7 >"$W/n7"
check "diverged" fails "diverged: it has @theirs" replicate tank/work nas:attic/work
check "and what to do" grep -q -- "--force drops" "$BED/out/said"
check "forced" replicate --force tank/work nas:attic/work
equal "forced: content" "$W" "$R"
check "theirs is gone" test "$(names there attic/work | grep -c theirs)" = 0
echo mine >"$R/mine" && echo 8 >"$W/n8"
check "changed there" fails "has been modified" replicate tank/work nas:attic/work
check "forced again" replicate --force tank/work nas:attic/work
equal "forced again: content" "$W" "$R"
there fs create attic/full && echo x >"$BED/mnt2/full/x"
check "a dataset that is there" fails "is there already, without a snapshot" replicate tank/work nas:attic/full
there fs snapshot attic/full@x
check "nothing in common" fails "no snapshot in common" replicate --force tank/work nas:attic/full
check "it is still there" test -e "$BED/mnt2/full/x"
check "a refused run keeps nothing from going" test "$(here fs get -Ho value larder:replicated:nas:3aattic::full tank/work)" = -
here fs create tank/other && noise 5M >"$MNT/other/a" && here fs snapshot tank/other@a
here fs send tank/other@a | head -c 3M | there fs receive -s attic/strange 2>/dev/null || true
check "a stranger's half stream" fails "has half of a stream of tank/other@a" replicate tank/work nas:attic/strange
check "is still there" test "$(token attic/strange)" != -
check "another machine that answers nothing" fails "no list of datasets came back" here fs replicate --remote-larder true tank/work nas:attic/work

# The base is gone.
base=$(newest tank/work)
tag=larder:replicated:nas:3aattic::work
here fs bookmark "tank/work@$base" "tank/work#base"
here fs release $tag "tank/work@$base" && here fs destroy "tank/work@$base"
echo 9 >"$W/n9"
check "from a bookmark" says "from #base" replicate tank/work nas:attic/work
equal "without its base: content" "$W" "$R"

# Connections that break, and kills; each goes on where it was.
noise 150M >"$W/large"
echo 60000000 >"$BED/break"
check "a broken connection is tried again" says "gone on with where it broke off" replicate tank/work nas:attic/work
check "and that is told" grep -q "trying again in 1 s" "$BED/out/said"
equal "after it broke: content" "$W" "$R"
# killed WHO: what is killed while a stream is half there.
killed() {
    noise 300M >"$W/large"
    rm -f "$BED/out/code"
    here fs replicate --retries 0 --remote-larder "$LARDER" tank/work nas:attic/work >"$BED/out/background" 2>&1 &
    local pid=$!
    begun() { [ "$(token attic/work)" != - ]; }
    check "before kill -9 of $1: half is there" within 60 begun
    case $1 in
    sender) kill -9 $pid ;;
    here) kill_daemon ;;
    there) (LARDER_RUN_DIR=$OTHER kill_daemon) ;;
    esac
    wait $pid 2>/dev/null || true
    case $1 in
    here) here pool import -d "$DEVICES" tank && mounted ;;
    there) there pool import -d "$DEVICES" attic ;;
    esac
    check "after kill -9 of $1: again" within 30 here fs replicate --remote-larder "$LARDER" tank/work nas:attic/work
    equal "after kill -9 of $1: content" "$W" "$R"
}
here pool sync tank && there pool sync attic
for who in sender here there; do killed $who; done
# The other side may not know yet that a connection broke.
noise 20M >"$W/large" && here fs snapshot tank/work@slow
here fs send -i "@$(names here tank/work | tail -2 | head -1)" tank/work@slow >"$BED/out/stream"
(head -c 10M "$BED/out/stream"; sleep 2.5) | there fs receive -s attic/work >/dev/null 2>&1 &
begun() { [ "$(token attic/work)" != - ]; }
check "a stream is still received" within 30 begun
check "it is waited for" says "trying again" replicate tank/work nas:attic/work
equal "after waiting: content" "$W" "$R"
# What cannot go on is given up.
noise 100M >"$W/large"
echo 30000000 >"$BED/break"
check "broken for good" fails "the connection broke off" replicate --retries 0 tank/work nas:attic/work
check "a part is there" test "$(token attic/work)" != -
gone=$(newest tank/work)
check "what is on its way is held" here fs release $tag "tank/work@$gone"
here fs destroy "tank/work@$gone"
check "what cannot go on is dropped" says "is dropped, since it cannot go on" replicate tank/work nas:attic/work
equal "after that: content" "$W" "$R"
rm "$W/large"

# Children, each on its own.
here fs create -p tank/home/a/deep && echo a >"$MNT/home/a/f" && echo deep >"$MNT/home/a/deep/f"
check "with children" replicate -r tank/home nas:attic/copies/home
equal "with children: content" "$MNT/home" "$BED/mnt2/copies/home"
here fs create tank/home/b && echo b >"$MNT/home/b/f"
check "a new one" says "attic/copies/home/b: 1 snapshot" replicate -r tank/home nas:attic/copies/home
check "and no other" test "$(grep -c 'up to date' "$BED/out/said")" = 3
equal "a new one: content" "$MNT/home" "$BED/mnt2/copies/home"
there fs create attic/copies/home/other
check "what is not here is told" says "copies/home/other: not at the source" replicate -r tank/home nas:attic/copies/home
there fs snapshot attic/copies/home/a@theirs && echo c >"$MNT/home/a/f" && echo c >"$MNT/home/b/f"
check "one that fails is told" fails "copies/home/a diverged" replicate -r tank/home nas:attic/copies/home
same "and keeps no other" "$MNT/home/b/f" "$BED/mnt2/copies/home/b/f"

# Policies keep what was not replicated.
here fs create tank/kept
here policy set tank/kept hourly=0
take() { here fs snapshot -o larder:period=hourly "tank/kept@$1"; }
take p1
check "by policy" says "in full" replicate --policy tank/kept nas:attic/kept
take p2 && take p3 && take p4
here policy run tank/kept >"$BED/out/said"
check "what is not replicated stays" test "$(names here tank/kept | tr '\n' ' ')" = "p1 p2 p3 p4 "
check "and that is told" grep -q "nas:attic/kept lacks it" "$BED/out/said"
check "by policy again" says "3 snapshots up to @p4" replicate --policy tank/kept nas:attic/kept
here policy run tank/kept >/dev/null
check "then it goes" test "$(names here tank/kept | tr '\n' ' ')" = "p4 "
there fs snapshot attic/kept@theirs
check "force with nothing to send" fails "has nothing to send" replicate --policy --force tank/kept nas:attic/kept
there fs rollback --yes --drop-newer attic/kept@p4
take p5
check "forgetting another" fails "remembers nothing of nas:attic/nowhere" replicate --forget tank/kept nas:attic/nowhere
check "forgotten" says "nothing is held" replicate --forget tank/kept nas:attic/kept
here policy run tank/kept >/dev/null
check "and nothing stays" test "$(names here tank/kept | tr '\n' ' ')" = "p5 "
check "a copy of the properties has none of it" bash -c "'$LARDER' fs snapshot tank/work@props; '$LARDER' fs send -p tank/work@props | '$LARDER' fs receive tank/props"
check "none" test -z "$(here fs get -H -s local -o property all tank/props | grep replicated)"

# What was renamed out of a tree is told each time, with the command that lets go of it.
for name in "" /stays "/goes off" /ends; do here fs create "tank/tree$name"; done
check "a tree" says "in full" replicate -r tank/tree nas:attic/tree
here fs rename "tank/tree/goes off" "tank/gone off" && here fs rename tank/tree/ends tank/ends
for _ in 1 2; do
    replicate -r tank/tree nas:attic/tree >"$BED/out/said" 2>&1
    check "renamed is told" grep -q "^tank/gone off: renamed out of tank/tree, is not replicated any more" "$BED/out/said"
done
check "and in JSON" test "$(replicate -j -n -r tank/tree nas:attic/tree 2>/dev/null | python3 -c 'import json, sys; print(*json.load(sys.stdin)["moved_out"])')" = "tank/ends tank/gone off"
forget=$(sed -n "s/^  to let go of them: larder \(.*'tank\/gone off'.*\)/\1/p" "$BED/out/said")
held() { here fs holds -H "$1@$(names here "$1" | tail -1)" | wc -l; }
check "it is held" test "$(held "tank/gone off")" -gt 0
eval "here $forget" >/dev/null
check "the command lets go of it" test "$(held "tank/gone off")" = 0
check "the rest of the tree too" says "tank/ends -> nas:attic/tree/ends: nothing is held" replicate --forget -r tank/tree nas:attic/tree
check "nothing is left" test "$(held tank/ends),$(held tank/tree/stays)" = 0,0
check "and nothing is told" bash -c "! '$LARDER' fs replicate -n -r tank/tree tank/copy 2>&1 | grep renamed"

# Names that are too many for one command.
for n in $(seq 30); do here fs create "tank/tree/many$n"; done
lines() { replicate --line-max 300 --keep 0 -r tank/tree nas:attic/many; }
check "many at once" says "in full" lines
for _ in 1 2 3; do
    for n in $(seq 30); do echo "$RANDOM" >"$MNT/tree/many$n/f"; done
    lines >/dev/null
done
check "of one moment" test "$(here fs get -H -r -t snapshot -o value createtxg tank/tree | sort | uniq -c | sort -n | tail -1 | awk '{print $1}')" -ge 30
check "and the old ones go" test "$(names here tank/tree/many7 | wc -l)" = 1

# fs send to a target.
here fs create tank/sent && noise 40M >"$MNT/sent/f" && here fs snapshot tank/sent@1
check "send" send tank/sent@1 nas:attic/sent
echo 2 >"$MNT/sent/g" && here fs snapshot tank/sent@2 && noise 50M >"$MNT/sent/f" && here fs snapshot tank/sent@3
echo 20000000 >"$BED/break"
check "an increment that breaks" fails "the connection broke off" send -I @1 tank/sent@3 nas:attic/sent
check "the same goes on" says "going on with tank/sent@3" send -I @1 tank/sent@3 nas:attic/sent
equal "sent: content" "$MNT/sent" "$BED/mnt2/sent"
check "the other side's error by name" fails "nas: cannot restore to attic/sent@3: destination already exists" send -i @1 tank/sent@3 nas:attic/sent
check "this side's error by name" fails "cannot open 'tank/sent@none'" send tank/sent@none nas:attic/new
check "on one machine" send tank/sent@3 tank/sent2
equal "on one machine: content" "$MNT/sent" "$MNT/sent2"
here fs snapshot -r tank/home@all
check "a package" send -R tank/home@all nas:attic/package

# A real ssh. It lets nobody in whose account is locked.
if command -v sshd >/dev/null && command -v ssh-keygen >/dev/null && [[ $(getent shadow root) != root:!* ]]; then
    S=$BED/sshd
    mkdir -p "$S" /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$S/host" && ssh-keygen -q -t ed25519 -N '' -f "$S/key"
    cp "$S/key.pub" "$S/authorized"
    port=$((20000 + RANDOM % 10000))
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    cat >"$S/config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
HostKey $S/host
AuthorizedKeysFile $S/authorized
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
CONFIG
    "$(command -v sshd)" -D -e -f "$S/config" 2>"$S/log" &
    SSHD=$!
    real=(--ssh "ssh -F none -i $S/key -p $port -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes -o LogLevel=ERROR"
        --remote-larder "env LARDER_RUN_DIR=$OTHER $LARDER")
    check "a real ssh answers" within 10 bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
    check "replicate by it" says "in full" here fs replicate "${real[@]}" tank/sent root@127.0.0.1:attic/by-ssh
    equal "by ssh: content" "$MNT/sent" "$BED/mnt2/by-ssh"
    check "nothing to do by it" says "up to date" here fs replicate "${real[@]}" tank/sent root@127.0.0.1:attic/by-ssh
    check "send by it" here fs send "${real[@]}" tank/sent@1 "root@127.0.0.1:attic/a name"
    check "a key that is not known" fails "the connection broke off: root@127.0.0.1: " here fs replicate --retries 0 --ssh "ssh -F none -p $port -o IdentityFile=none -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes" tank/sent root@127.0.0.1:attic/by-ssh
else
    echo "  no sshd that lets root in: only the stand-in"
fi

# Rounds of changes, at random from a seed.
here fs create tank/rounds
SEED=${SEED:-7}
RANDOM=$SEED
C=$MNT/rounds
mkdir "$C/0"
bad=0
for round in $(seq "${ROUNDS:-25}"); do
    for step in $(seq $((RANDOM % 8))); do
        file=$C/$((RANDOM % 3))/$((RANDOM % 12))
        mkdir -p "$(dirname "$file")"
        case $((RANDOM % 9)) in
        0 | 1) noise $((RANDOM * 40)) >"$file" ;;
        2) rm -f "$file" ;;
        3) [ ! -e "$file" ] || truncate -s $((RANDOM * 20)) "$file" ;;
        4) [ ! -e "$file" ] || dd if=/dev/urandom of="$file" bs=4K count=$((RANDOM % 20 + 1)) seek=$((RANDOM % 50)) conv=notrunc status=none ;;
        5) mv "$file" "$C/0/moved$step" 2>/dev/null || true ;;
        6) cp --reflink=auto "$file" "$C/0/copy$step" 2>/dev/null || true ;;
        7) ln -f "$file" "$C/0/link$step" 2>/dev/null || true ;;
        8) here fs snapshot "tank/rounds@r$round.$step" ;;
        esac
    done
    [ $((RANDOM % 4)) -gt 0 ] || echo $((RANDOM * 30)) >"$BED/break"
    # What came after a snapshot of somebody's waits for the next one.
    replicate tank/rounds nas:attic/rounds >"$BED/out/said" 2>&1 &&
        diff <(state "$C/.zfs/snapshot/$(newest tank/rounds)") <(state "$BED/mnt2/rounds") >>"$BED/out/said" ||
        { bad=$((bad + 1)); echo "round $round of seed $SEED"; cat "$BED/out/said"; }
    rm -f "$BED/break"
done
check "rounds of changes" test $bad = 0
there pool sync attic
check "the other pool is sound" there pool scrub -w attic
healthy
finish
