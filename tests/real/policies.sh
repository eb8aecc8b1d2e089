#!/bin/bash
# policies.sh: snapshots by policy: set and inherited, taken by the daemon and by hand, destroyed when they are too many
# and nobody uses them, read in .zfs, taken over from a sanoid.conf; and all that after the daemon is killed.
. "$(dirname "$0")/bed.sh"
need root fuse
make_bed 3 1G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
for name in data data/mail data/swap other; do "$LARDER" fs create "tank/$name"; done
mounted
SNAPS=$MNT/data/.zfs/snapshot

# snapshots DATASET: their names without what differs from run to run.
snapshots() {
    "$LARDER" fs list -H -t snapshot -o name -s createtxg -s name -d 1 "$1" | sed -E 's/.*@//; s/[0-9-]{10}_[0-9:]{8}/TIME/' |
        tr '\n' ' '
}
count() { "$LARDER" fs list -H -t snapshot -o name -d 1 "$1" | wc -l; }
keeps() { "$LARDER" policy show -Hp "$1" | awk -v period="$2" '$2 == period { print $3, $4 }'; }
value() { "$LARDER" fs get -Hpo value "$1" "$2"; }

# An hour that ends meanwhile would be another hour.
while [ "$(date -u +%M)" = 59 ]; do sleep 5; done

# Before there is a policy to inherit: the daemon may take what is due at any moment.
check "one that is to have none" "$LARDER" fs set snapshots_hourly=none snapshots_daily=none tank/data/swap
check "set" "$LARDER" policy set tank/data hourly=2 daily=3
check "it is properties" test "$(value snapshots_hourly,snapshots_daily,snapshots_weekly tank/data | tr '\n' ' ')" = "2 3 none "
check "inherited" test "$("$LARDER" fs get -Ho source snapshots_daily tank/data/mail)" = "inherited from tank/data"
check "a count that is none" fails 2 "'snapshots_hourly' takes 0 to 100000 | none" "$LARDER" policy set tank/data hourly=many
check "a period that is none" fails 2 "there is no period 'minutely'" "$LARDER" policy set tank/data minutely=1
check "a dataset that is none" fails 1 "cannot open 'tank/gone': dataset does not exist" "$LARDER" policy run tank/gone

# The daemon may have been faster.
check "a run" "$LARDER" policy run -r tank/data
same "takes what is due" <(echo "autosnap_TIME_daily autosnap_TIME_hourly ") <(snapshots tank/data; echo)
check "of those below, too" test "$(count tank/data/mail)" = 2
check "and of no others" test "$(count tank/data/swap)$(count tank/other)$(count tank)" = 000
check "all of one moment" test "$("$LARDER" fs list -Hrpt snapshot -o createtxg tank | sort -u | wc -l)" = 1
check "again, nothing is due" test -z "$("$LARDER" policy run)$("$LARDER" policy run -n)"
check "they are read in .zfs" test "$(ls "$SNAPS" | wc -l)" = 2
check "and say what they are" test "$("$LARDER" fs get -Hro value -t snapshot larder:period tank/data/mail | sort | tr '\n' ' ')" = \
    "daily hourly "

# More than are kept: older ones, as if of earlier hours, one of them in use and one held.
echo was >"$MNT/data/file"
"$LARDER" policy set tank/data hourly=9
for name in open held old older; do "$LARDER" fs snapshot -o larder:period=hourly "tank/data@$name"; done
"$LARDER" fs snapshot tank/data@manual
"$LARDER" fs hold keep tank/data@held
exec 7<"$SNAPS/open/file"
same "the policy shows how many there are" <(echo "9 5") <(keeps tank/data hourly)
"$LARDER" policy set tank/data hourly=2
check "a run destroys what is too many" "$LARDER" policy run tank/data
same "what is in use or held stays, and keeps no other" <(echo "autosnap_TIME_daily open held old older manual ") \
    <(snapshots tank/data; echo)
check "who it is is told" grep -qF "kept tank/data@held: it is held by keep" <("$LARDER" policy run tank/data)
exec 7<&-
"$LARDER" fs release keep tank/data@held
check "a count of 0" "$LARDER" policy set tank/data hourly=0
check "takes all of them" "$LARDER" policy run tank/data
same "but none that was taken by hand" <(echo "autosnap_TIME_daily manual ") <(snapshots tank/data; echo)
check "without a policy" "$LARDER" policy clear -r tank/data
check "nothing is taken or destroyed" test -z "$("$LARDER" policy run)"
check "what is there is shown" test "$(keeps tank/data daily)" = "none 1"

# By itself, also after the daemon was killed.
"$LARDER" policy set tank/other frequently=1 format=gmt
kill_daemon
"$LARDER" pool import -d "$DEVICES" tank
for _ in $(seq 100); do [ "$(count tank/other)" = 0 ] || break; sleep 0.5; done
check "the daemon takes them by itself" grep -qE '^GMT-[0-9.]{10}-[0-9.]{8} $' <(snapshots tank/other)

# From a sanoid.conf.
cat >"$BED/sanoid.conf" <<'CONF'
[tank/data]
	use_template = production
	recursive = yes
	daily_hour = 3
[tank/data/swap]
	use_template = ignore
[gone/away]
	use_template = production
[template_production]
	frequently = 0
	hourly = 36
	daily = 30
	monthly = 3
	autosnap = yes
	autoprune = yes
[template_ignore]
	autosnap = no
	autoprune = no
CONF
check "a sanoid.conf, rehearsed" grep -q "^would set tank/data .*hourly=36 daily=30 weekly=0 monthly=3" \
    <("$LARDER" policy import -n "$BED/sanoid.conf" 2>/dev/null)
check "which sets nothing" test "$(value snapshots_hourly tank/data)" = none
check "names what it cannot honour" fails 0 "sanoid.conf:4: [tank/data] daily_hour = 3: not honoured" \
    "$LARDER" policy import "$BED/sanoid.conf"
check "and datasets that are not there" grep -qF "sanoid.conf:7: [gone/away] there is no dataset 'gone/away'" "$BED/out/said"
same "is inherited" <(echo 36) <(value snapshots_hourly tank/data/mail)
same "but where it is not to be" <(echo none) <(value snapshots_hourly tank/data/swap)
check "again, nothing is to be set" test -z "$("$LARDER" policy import -n "$BED/sanoid.conf" 2>/dev/null)"
echo "hourly 3" >>"$BED/sanoid.conf"
check "a line that is none" fails 2 "sanoid.conf:19: neither [SECTION] nor KEY = VALUE" "$LARDER" policy import "$BED/sanoid.conf"
check "JSON has numbers" grep -q '"keep": 36' <("$LARDER" policy show -rj tank)
healthy
check "export is not busy" "$LARDER" pool export tank
finish
