#!/bin/bash
# tools.sh: what was written for ZFS works on Larder as it is, by our zfs and zpool: syncoid, sanoid through a month,
# zfs-autobackup, pyznap and httm where they are installed, restic and borg out of .zfs, and lines that others execute.
. "$(dirname "$0")/bed.sh"
packages sanoid mbuffer faketime restic borgbackup procps
need root fuse syncoid sanoid mbuffer restic borg pgrep
make_bed 5 2G
devices=($(devices))
"$LARDER" personalities "$BED/links"
PATH=$BED/links:$PATH
zpool create -m "$MNT" tank mirror "${devices[0]}" "${devices[1]}"
# syncoid looks among all processes for one that receives into its target: no other script has a pool of this name.
zpool create -m "$BED/mnt2" vault mirror "${devices[2]}" "${devices[3]}"
for name in work work/child work/child/deep; do zfs create tank/$name; done
mounted
W=$MNT/work R=$BED/mnt2/work

clear_more() { [ -z "${faked:-}" ] || LARDER_RUN_DIR=$faked timeout 60 "$LARDER" daemon stop >/dev/null 2>&1; }
# says WORDS COMMAND...: the command succeeds, and says so.
says() { fails 0 "$@"; }
# form PATTERN COMMAND...: the command succeeds; what it prints are lines, one at least, that all match; stderr is empty.
form() {
    local pattern=$1
    shift
    "$@" >"$BED/out/said" 2>"$BED/out/complained" || { cat "$BED/out/complained"; return 1; }
    [ -s "$BED/out/said" ] && ! grep -vqP "^$pattern\$" "$BED/out/said" && [ ! -s "$BED/out/complained" ] ||
        { cat "$BED/out/said" "$BED/out/complained"; return 1; }
}
# silent COMMAND...: the command succeeds and prints nothing.
silent() { "$@" >"$BED/out/said" 2>&1 && [ ! -s "$BED/out/said" ] || { cat "$BED/out/said"; return 1; }; }
# sync ARGUMENTS...: syncoid, in a second of its own, for its snapshots are named by seconds.
sync() {
    local second
    second=$(date +%s)
    while [ "$(date +%s)" = "$second" ]; do sleep 0.05; done
    syncoid "$@" 2>&1
}
# descendants PID: of a process.
descendants() {
    local child
    for child in $(pgrep -P "$1"); do
        echo "$child"
        descendants "$child"
    done
}
value() { zfs get -Hpo value "$1" "$2"; }
has_token() { [ "$(value receive_resume_token "$1")" != - ]; }
snapshots() { zfs list -Ht snapshot -o name -s createtxg -d 1 "$1" | sed 's/.*@//'; }
sums() { (cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2); }
equal() { same "$1" <(sums "$2") <(sums "$3"); }

# --- syncoid.
mkdir "$W/tree"
for n in $(seq 100); do head -c $((n * 997)) /dev/urandom >"$W/tree/file $n"; done
head -c 10M /dev/urandom >"$W/large"
echo 1 >"$W/child/file"; echo 1 >"$W/child/deep/file"
zfs snapshot tank/work@first
check "syncoid, initial" says "Sending oldest full snapshot tank/work@first" sync -r tank/work vault/work
check "it finds that receives can go on" bash -c "! grep -q 'resume feature not available' '$BED/out/said'"
equal "all of it is there" "$W" "$R"
check "intermediate snapshots, too" test "$(value guid tank/work@first)" = "$(value guid vault/work@first)"
echo 2 >>"$W/child/file"; rm "$W/tree/file 9"
ls -lR "$R" >/dev/null; cat "$R/tree/file 10" "$R/child/file" >/dev/null
check "incremental, over what was read meanwhile" says "Sending incremental tank/work/child@syncoid_" sync -r --no-rollback tank/work vault/work
equal "after that" "$W" "$R"
check "of its own snapshots one is left here" test "$(snapshots tank/work | grep -c ^syncoid_)" = 1
check "and there" test "$(snapshots vault/work | grep -c ^syncoid_)" = 1
zfs snapshot -r tank/work@monday; echo 3 >"$W/three"; zfs snapshot -r tank/work@tuesday
check "--no-sync-snap" says "NEWEST SNAPSHOT: tuesday" sync --no-sync-snap tank/work vault/work
check "has those between" test "$(snapshots vault/work | tail -2 | tr '\n' ' ')" = "monday tuesday "
check "again, nothing is to do" says "Nothing to do, not syncing" sync --no-sync-snap tank/work vault/work
check "its options go through" sync --no-sync-snap --sendoptions='Lce' --recvoptions='u o compression=zstd x atime' \
    --preserve-recordsize tank/work vault/options
check "properties are as told" test "$(value compression,recordsize,mounted vault/options | tr '\n' ' ')" = "zstd 131072 no "
check "--no-stream" says "sending newest full snapshot" sync --no-stream --no-sync-snap tank/work vault/newest
check "--identifier" sync --identifier=other tank/work vault/newest

# A target that was changed.
echo mine >"$R/mine"; echo 4 >"$W/four"
check "changed there, --no-rollback" fails 2 "has been modified" sync --no-rollback tank/work vault/work
check "what was changed is there" test "$(cat "$R/mine")" = mine
check "without, it goes back first" sync tank/work vault/work
check "and is as here" test ! -e "$R/mine" -a -e "$R/four"
zfs create vault/foreign; echo mine >"$BED/mnt2/foreign/mine"; zfs snapshot vault/foreign@mine
check "one that is another" fails 2 "Cowardly refusing to destroy your existing target" sync --no-sync-snap tank/work vault/foreign
check "it is as it was" test "$(cat "$BED/mnt2/foreign/mine"),$(snapshots vault/foreign)" = mine,mine
check "--force-delete" says "Removing vault/foreign" sync --force-delete --no-sync-snap tank/work vault/foreign
equal "it is ours now" "$W/tree" "$BED/mnt2/foreign/tree"
zfs create tank/marked; echo 1 >"$MNT/marked/file"; zfs snapshot tank/marked@one
check "--create-bookmark" sync --no-sync-snap --create-bookmark tank/marked vault/marked
zfs destroy tank/marked@one; echo 2 >>"$MNT/marked/file"; zfs snapshot tank/marked@two; zfs snapshot tank/marked@three
check "goes on from it when its snapshot is gone" says "Sending incremental tank/marked#'one' ... two" \
    sync --no-sync-snap --create-bookmark tank/marked vault/marked
equal "and all is there" "$MNT/marked" "$BED/mnt2/marked"
check "also what came between" test "$(snapshots vault/marked | xargs)" = "one two three"

# Clones of what goes along.
zfs create tank/set; zfs create tank/set/one; head -c 3M /dev/urandom >"$MNT/set/one/file"
zfs snapshot tank/set/one@s; zfs clone tank/set/one@s tank/set/two; echo own >"$MNT/set/two/own"
check "a clone" says "Clone is recreated on target vault/set/two" sync -r tank/set vault/set
check "is one there" test "$(value origin vault/set/two)" = vault/set/one@s
check "and takes little" test "$(value used vault/set/two)" -lt 1000000
check "incrementally" sync -r tank/set vault/set

# Broken off.
head -c 40M /dev/urandom >"$W/more"
zfs snapshot tank/work@more
zfs send -i "@$(snapshots vault/work | tail -1)" tank/work@more 2>/dev/null | head -c 15M | zfs receive -s -F vault/work 2>/dev/null || true
check "a token is left" has_token vault/work
check "syncoid goes on" says "Resuming interrupted zfs send/receive from tank/work to vault/work" sync tank/work vault/work
equal "and all is there" "$W/tree" "$R/tree"
same "what broke off, too" <(sha256sum <"$W/more") <(sha256sum <"$R/more")
: >"$BED/out/killed"
sync --source-bwlimit=8M tank/work vault/killed >"$BED/out/killed" 2>&1 &
syncoid=$!
within 30 grep -q "^INFO: Updating" "$BED/out/killed" || cat "$BED/out/killed"
sleep 2
check "who looks on is told of the receive" fails 1 "is already target of a zfs receive process" sync tank/work vault/killed
kill -9 $(descendants $syncoid)
wait $syncoid || true
check "killed, a token is left" within 10 has_token vault/killed
check "syncoid goes on with a new one" says "Resuming interrupted" sync tank/work vault/killed
equal "which is whole" "$W/tree" "$BED/mnt2/killed/tree"
zfs snapshot tank/work@base
sync --no-sync-snap tank/work vault/work >/dev/null
head -c 20M /dev/urandom >"$W/gone"; zfs snapshot tank/work@gone
zfs send -i @base tank/work@gone 2>/dev/null | head -c 9M | zfs receive -s -F vault/work 2>/dev/null || true
zfs destroy tank/work@gone
check "what it was of is gone" says "resetting partially receive state because the snapshot source no longer exists" \
    sync tank/work vault/work
same "and it began anew" <(sha256sum <"$W/gone") <(sha256sum <"$R/gone")

# --- Lines that others execute, and the form in which they want answers.
zfs create tank/lines; echo 1 >"$MNT/lines/file"; zfs create tank/lines/child
zfs snapshot -r tank/lines@a; echo 2 >>"$MNT/lines/file"; zfs snapshot -r tank/lines@b
zfs send tank/lines@a | zfs receive vault/lines
T=$'\t'
# zrepl
check "zrepl lists" form 'tank(/\S+)?' zfs list -H -p -o name -r -t filesystem,volume tank
check "and snapshots" form 'tank/lines@[ab]\t\d+\t\d+\t\d+\t0' zfs list -H -p -o name,guid,createtxg,creation,userrefs -r -d 1 \
    -t bookmark,snapshot -s createtxg tank/lines
check "and properties" form 'tank/lines\t(zrepl:placeholder\t-\t-|guid\t\d+\t-|receive_resume_token\t-\t-|encryption\toff\t(-|default))' \
    zfs get -Hp -o name,property,value,source zrepl:placeholder,guid,receive_resume_token,encryption tank/lines
check "plans" form '(incremental\ttank/lines@a\ttank/lines@b|size)\t\d+' zfs send -wLpbce -n -v -P -i @a tank/lines@b
check "receives" bash -c "zfs send -Lce -i @a tank/lines@b | zfs recv -F -s -x mountpoint -o org.x:y=z vault/lines@b"
check "makes placeholders" silent zfs create -o zrepl:placeholder=on -o mountpoint=none -o encryption=off vault/placeholder
check "holds" silent zfs hold zrepl_STEP_J_x tank/lines@a
check "tells of holds" form "tank/lines@a\tzrepl_STEP_J_x\t\S.*\d{4}" zfs holds -H tank/lines@a
check "twice" fails 1 "cannot hold snapshot 'tank/lines@a': tag already exists on this dataset" zfs hold zrepl_STEP_J_x tank/lines@a
check "what is held stays" fails 1 "cannot destroy snapshot tank/lines@a: dataset is busy" zfs destroy tank/lines@a,b
same "on a line of its own" <(echo "cannot destroy snapshot tank/lines@a: dataset is busy") "$BED/out/said"
check "releases" silent zfs release zrepl_STEP_J_x tank/lines@a
check "twice" fails 1 "cannot release hold from snapshot 'tank/lines@a': no such tag on this dataset" zfs release zrepl_STEP_J_x tank/lines@a
check "what is not there" fails 1 "could not find any snapshots to destroy; check snapshot names." zfs destroy tank/lines@none
check "usage of destroy" fails 2 '<filesystem|volume>@<snap>[%<snap>][,...]' zfs destroy
check "of send" fails 2 'receive_resume_token' zfs send
check "of receive" fails 2 '-A <filesystem|volume>' zfs receive
check "a token that is none" fails 1 'resume token is corrupt' zfs send -nvt 1-abc-10-def
# znapzend
check "znapzend lists" form 'tank/lines@[ab]' zfs list -H -o name -t snapshot -s creation -d 1 tank/lines
zfs set org.znapzend:enabled=on tank/lines; zfs set org.znapzend:dst_a_synced=1 tank/lines@a
check "its own properties" form 'tank/lines(/child)?\torg.znapzend:enabled\ton\t(local|inherited from tank/lines)' \
    zfs get -H -r -s local,inherited -t filesystem,volume -o name,property,value,source org.znapzend:enabled tank/lines
check "local ones" form 'tank/lines\t\S+\t\S+\tlocal' zfs get -H -s local -t filesystem,volume -o name,property,value,source all tank/lines
check "those of snapshots" form 1 zfs get -H -o value org.znapzend:dst_a_synced tank/lines@a
silent zfs inherit org.znapzend:dst_a_synced tank/lines@a
check "are inherited" form - zfs get -H -o value org.znapzend:dst_a_synced tank/lines@a
check "space" form '\d[\d.]*[BKMG]?' zfs get -H -o value usedbysnapshots tank/lines
# zfs-auto-snapshot
check "zfs-auto-snapshot asks" form 'tank(/\S*)?\t(-|\S+)\t-' zfs list -H -t filesystem,volume -s name \
    -o name,com.sun:auto-snapshot,com.sun:auto-snapshot:daily -r tank
check "for snapshots, newest first" form '\S+@\S+' zfs list -H -t snapshot -S creation -o name
check "written" form '\d+' zfs get -Hp -o value written tank/lines
check "takes" silent zfs snapshot -o com.sun:auto-snapshot-desc=- -r tank/lines@zfs-auto-snap_daily-2026-11-23-0625
check "destroys" silent zfs destroy -d -r tank/lines@zfs-auto-snap_daily-2026-11-23-0625
check "looks whether pools are well" bash -c "zpool status | grep -q '^  *pool: tank$' && zpool status | grep -q '^ *state: ONLINE$'"
# zfs_exporter
check "zfs_exporter, pools" form 'tank\t(allocated|free|freeing|leaked|size|fragmentation|dedupratio|health|readonly)\t([\d.]+|ONLINE|off)' \
    zpool get -Hpo name,property,value allocated,dedupratio,fragmentation,free,freeing,health,leaked,readonly,size tank
check "nine of them" test "$(wc -l <"$BED/out/said")" = 9
check "datasets" form 'tank(/\S+)?\t[a-z]+\t(\d+|-)' zfs get -Hprt filesystem -o name,property,value \
    available,logicalused,quota,referenced,used,usedbydataset,volsize,written tank
check "snapshots" form '\S+@\S+\t[a-z]+\t(\d+|-)' zfs get -Hprt snapshot -o name,property,value logicalused,referenced,used,written tank
check "volumes there are none" silent zfs get -Hprt volume -o name,property,value available,volsize tank
# httm, pyznap, zfs-autobackup
check "httm asks for the version" form '\S.*\d+\.\d+.*' zfs -V
check "snapshots at once" silent zfs snapshot tank/lines@c tank/lines/child@c
check "of one moment" test "$(zfs list -Hpo createtxg -t snapshot tank/lines@c tank/lines/child@c | sort -u | wc -l)" = 1
check "differences" form '\d+\.\d+\tM\t\S+' zfs diff -H -t -h tank/lines@a tank/lines@b
check "mounts" form "\S+\t(yes|no)" zfs list -H -t filesystem -o mountpoint,mounted
check "what was written since" form '\d+' zfs get -H -ovalue -p written@a tank/lines
for flag in -L -e -c; do check "send $flag is tried" fails 1 cannot zfs send $flag zfs_autobackup_option_test; done
check "recv -s is tried" fails 1 "cannot " zfs recv -s zfs_autobackup_option_test </dev/null
check "recv -v tells" says "receiving full stream of tank/lines@c into vault/told@c" bash -c 'zfs send tank/lines@c | zfs recv -u -v vault/told'
check "destroy -v tells" says "will destroy tank/lines@c" zfs destroy -v tank/lines@c
check "all, four fields" form '[^\t]+\t[^\t]+\t[^\t]*\t[^\t]+' zfs get -H -p -d 0 all tank/lines

# --- zfs-autobackup and pyznap, which no distribution has.
passed_over=
if command -v zfs-autobackup >/dev/null; then
    zfs create tank/auto; zfs create tank/auto/child; echo 1 >"$MNT/auto/child/file"; zfs create vault/auto
    zfs set autobackup:offsite=true tank/auto
    check "zfs-autobackup" zfs-autobackup --allow-empty offsite vault/auto
    same "its replica" <(echo 1) "$BED/mnt2/auto/tank/auto/child/file"
    sleep 1; echo 2 >"$MNT/auto/child/file"
    check "incrementally" zfs-autobackup --allow-empty --keep-source 1 --keep-target 1 --clear-mountpoint --rollback offsite vault/auto
    check "thins out" test "$(snapshots tank/auto/child | wc -l),$(snapshots vault/auto/tank/auto/child | wc -l)" = 1,1
    same "the replica follows" <(echo 2) "$BED/mnt2/auto/tank/auto/child/.zfs/snapshot/$(snapshots tank/auto/child)/file"
    head -c 20M /dev/urandom >"$MNT/auto/more"; zfs snapshot tank/auto@offsite-20990101000000
    zfs send -i "@$(snapshots vault/auto/tank/auto | tail -1)" tank/auto@offsite-20990101000000 2>/dev/null | head -c 9M |
        zfs recv -s -F vault/auto/tank/auto 2>/dev/null || true
    check "goes on with what broke off" zfs-autobackup --no-snapshot --rollback --debug offsite vault/auto
    check "has it" test "$(value receive_resume_token vault/auto/tank/auto),$(snapshots vault/auto/tank/auto | tail -1)" = \
        -,offsite-20990101000000
else passed_over+=" zfs-autobackup"; fi
if command -v pyznap >/dev/null; then
    zfs create tank/pyznap; zfs create tank/pyznap/child; echo 1 >"$MNT/pyznap/child/file"; zfs create vault/pyznap
    printf '%s\n' '[tank/pyznap]' 'frequent = 2' 'hourly = 1' 'snap = yes' 'clean = yes' 'dest = vault/pyznap' >"$BED/pyznap.conf"
    zfs snapshot -r tank/pyznap@pyznap_2026-01-01_00:00:00_frequent; zfs snapshot -r tank/pyznap@pyznap_2026-01-01_00:01:00_frequent
    silently() { "$@" >"$BED/out/said" 2>&1 && ! grep -E 'ERROR|Traceback' "$BED/out/said"; }
    check "pyznap takes and cleans" silently pyznap --config "$BED/pyznap.conf" snap
    check "as it is configured" test "$(snapshots tank/pyznap | grep -c frequent),$(snapshots tank/pyznap/child | grep -c hourly)" = 2,1
    check "pyznap sends" silently pyznap --config "$BED/pyznap.conf" send
    echo 2 >"$MNT/pyznap/child/file"; zfs snapshot -r tank/pyznap@pyznap_2099-01-01_00:00:00_hourly
    check "incrementally" silently pyznap --config "$BED/pyznap.conf" send
    zfs mount -a
    same "its replica" <(echo 2) "$BED/mnt2/pyznap/child/file"
else passed_over+=" pyznap"; fi

# --- Backup programs read snapshots.
# Of what is newest borg is not sure, and reads it again.
sleep 1; echo newest >"$W/newest"
zfs snapshot tank/work@backup
at=$W/.zfs/snapshot/backup
export RESTIC_PASSWORD=x RESTIC_CACHE_DIR=$BED/cache BORG_BASE_DIR=$BED/borg BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
check "restic" bash -c "restic -q -r '$BED/restic' init && cd '$at' && restic -q -r '$BED/restic' backup ."
check "gives it back" restic -q -r "$BED/restic" restore latest --target "$BED/restored"
equal "as it was" "$at" "$BED/restored"
rm -r "$BED/restored" "$BED/restic"; mkdir "$BED/restored"
check "borg" bash -c "borg init -e none '$BED/borg.repo' && cd '$at' && borg create '$BED/borg.repo::one' ."
check "gives it back" bash -c "cd '$BED/restored' && borg extract '$BED/borg.repo::one'"
equal "as it was" "$at" "$BED/restored"
check "unchanged, nothing is read again" bash -c "cd '$at' && borg create --list --filter AME '$BED/borg.repo::two' . 2>&1 | tee '$BED/out/again'; [ \"\$(cat '$BED/out/again')\" = 'A newest' ]"

# --- sanoid through a month, in which the daemon and all that is asked live by a clock of their own.
library=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null | head -1 || true)
if [ -n "$library" ]; then
    faked=$BED/run2
    at() { date -u -d "2026-12-01 00:05 UTC + $1 hours" '+%Y-%m-%d %H:%M:%S' >"$BED/now"; }
    then_() { # COMMAND...: runs it then
        LD_PRELOAD=$library FAKETIME_TIMESTAMP_FILE=$BED/now FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 TZ=UTC \
            LARDER_RUN_DIR=$faked "$@"
    }
    mkdir "$BED/sanoid"
    cat >"$BED/sanoid/sanoid.conf" <<'CONF'
[month/data]
	use_template = production
	recursive = yes
[month/zfs]
	use_template = production
	recursive = zfs
[template_production]
	hourly = 2
	daily = 5
	weekly = 2
	monthly = 1
	autosnap = yes
	autoprune = yes
CONF
    sanoid() { then_ "$(command -v /usr/sbin/sanoid || type -P sanoid)" --configdir "$BED/sanoid" --cache-dir "$BED/sanoid/cache" --run-dir "$BED/sanoid/run" "$@"; }
    # counts DATASET: of each period.
    counts() { then_ zfs list -Ht snapshot -o name -d 1 "$1" | sed 's/.*_//' | LC_ALL=C sort | uniq -c | awk '{ printf "%s=%s ", $2, $1 }'; }
    at 0
    then_ zpool create -m "$BED/mnt3" month "${devices[4]}"
    for name in data data/child zfs zfs/child; do then_ zfs create month/$name; done
    : >"$BED/out/sanoid"
    # Once a day, then every hour.
    for hour in $(seq 0 24 700) $(seq 709 712); do
        at "$hour"
        echo "$hour" >"$BED/mnt3/data/child/file"
        sanoid --cron --quiet >>"$BED/out/sanoid" 2>&1 || echo "exit $? at $hour" >>"$BED/out/sanoid"
    done
    # Nothing goes before it is older than it may be: three of the last two hours.
    at 712
    check "sanoid has nothing to complain of" test ! -s "$BED/out/sanoid"
    for name in data data/child zfs; do
        same "what sanoid keeps of $name" <(echo "daily=5 hourly=3 monthly=1 weekly=2 ") <(counts month/$name; echo)
    done
    check "zfs/child, by snapshot -r" test "$(counts month/zfs/child | tr ' ' '\n' | grep -c =)" = 4
    same "named by the hour" <(echo "autosnap_2026-12-30_16:05:00_hourly") \
        <(then_ zfs list -Ht snapshot -o name -s createtxg -d 1 month/data | grep hourly | tail -1 | sed 's/.*@//')
    check "--monitor-snapshots" says "OK" sanoid --monitor-snapshots
    check "--monitor-health" says "OK ZPOOL month : ONLINE {Size:" sanoid --monitor-health
    check "--monitor-capacity" says "OK ZPOOL month :" sanoid --monitor-capacity
    check "the month ends well" then_ zpool export month
else passed_over+=" sanoid's month"; fi

# --- httm: what it is shown for a list of mounts, and itself where it is installed.
httm_sees() { HTTM=$1 LARDER=$LARDER "$HERE/../../scripts/larder-httm" "${@:2}"; }
zfs create "tank/my docs"
echo old >"$MNT/my docs/a file"
zfs snapshot "tank/my docs@then"
echo newer >"$MNT/my docs/a file"
check "httm is shown each dataset as one of zfs" says "tank/my\\040docs $MNT/my\\040docs zfs rw 0 0" httm_sees cat /proc/self/mounts
check "nobody else is" bash -c "! grep -q ' zfs rw' /proc/mounts"
if command -v httm >/dev/null; then
    check "httm finds a version" says "$MNT/my docs/.zfs/snapshot/then/a file" httm_sees httm -n "$MNT/my docs/a file"
    check "httm takes a snapshot" says "tank/my docs@" httm_sees httm -S "$MNT/my docs/a file"
else passed_over+=" httm"; fi
# As httm prunes.
zfs snapshot "tank/my docs@p1"; zfs snapshot "tank/my docs@p2"
check "several are destroyed in one line" silent zfs destroy "tank/my docs@p1" "tank/my docs@p2"
check "each of them" fails 1 "could not find any snapshots to destroy" zfs destroy "tank/my docs@p2"
check "up to the first that fails" fails 1 "could not find any snapshots to destroy" \
    zfs destroy "tank/my docs@p1" "tank/my docs@then"
check "and none behind it" silent zfs destroy "tank/my docs@then"

[ -z "$passed_over" ] || echo "PASSED OVER $NAME, for want of the program:$passed_over"
healthy
check "the replicas are well" "$LARDER" pool check vault
finish "syncoid $(syncoid --version | sed -n 's/.*version //p' | head -1)${passed_over:+, passed over:$passed_over}"
