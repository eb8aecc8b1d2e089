#!/bin/bash
# versions.sh: which versions of a file snapshots have, and bringing one back: shared, whole, with all attributes, and
# over nothing that somebody may still want.
. "$(dirname "$0")/bed.sh"
need root fuse setfattr getfattr setfacl getfacl python3
make_bed 2 2G
"$LARDER" pool create -m "$MNT" tank mirror $(devices)
"$LARDER" fs create tank/work
mounted
W=$MNT/work SNAPS=$MNT/work/.zfs/snapshot
snap() { "$LARDER" fs snapshot "tank/work@$1"; }
fails() {
    local words=$1
    shift
    if "$@" >"$BED/out/said" 2>&1; then return 1; fi
    grep -qF -- "$words" "$BED/out/said" || { cat "$BED/out/said"; return 1; }
}
# says WORDS COMMAND...: the command succeeds, and says so.
says() { local words=$1; shift; "$@" >"$BED/out/said" 2>&1 && grep -qF -- "$words" "$BED/out/said"; }
# versions FILE: size, first, last, live of each.
versions() { "$LARDER" versions -Hp "$1" | cut -f 2,4- | tr '\t' ' '; }
used() { "$LARDER" pool list -Hpo alloc tank; }
inode() { stat -c %i "$1"; }

mkdir -p "$W/dir/sub" "$W/plain"
F=$W/dir/letter
head -c 5M /dev/urandom >"$F" && setfattr -n user.why -v because "$F" && chmod 4640 "$F" && chown 1:2 "$F"
touch -d '2001-02-03 04:05:06.789' "$F"
same "one that no snapshot has" <(echo "5242880 - - yes") <(versions "$F")
snap a && snap b
chmod 600 "$W/plain" && snap c
same "unchanged over three" <(echo "5242880 a c yes") <(versions "$F")
cp -p "$F" "$BED/out/first" && stat -c '%a %u %g %s %y' "$F" >"$BED/out/first.stat"
echo more >>"$F"
same "a line for each" <(printf '%s\n' "5242880 a c no" "5242885 - - yes") <(versions "$F")
snap d
same "that is in one, too" <(printf '%s\n' "5242880 a c no" "5242885 d d yes") <(versions "$F")
(cd "$W/dir" && echo short >letter~ && mv letter~ letter)
same "also when it was replaced" <(printf '%s\n' "5242880 a c no" "5242885 d d no" "6 - - yes") <(versions "$F")
check "as JSON" grep -q '"live": true' <("$LARDER" versions -j "$F")
check "by a path that is not absolute" bash -c "cd '$W/dir/sub' && '$LARDER' versions ../letter | grep -q '5M'"
check "a folder has none" fails "is a folder: files have versions" "$LARDER" versions "$W/dir"
check "nor what is in a snapshot" fails "is in a snapshot itself" "$LARDER" versions "$SNAPS/a/dir/letter"
check "nor what is elsewhere" fails "is not on a mount of larder" "$LARDER" versions "$BED/out/first"
check "nor what never was" fails "no snapshot of tank/work has it" "$LARDER" versions "$W/dir/never"

# Bringing one back.
check "what is there is not replaced" fails "exists and is another version" "$LARDER" restore "$F@b"
check "the way out is told" grep -qF "larder fs snapshot tank/work@NAME keeps it, then --replace" "$BED/out/said"
same "it is as it was" <(echo short) "$F"
"$LARDER" pool sync tank
before=$(used)
check "beside" "$LARDER" restore "$F@b" "$F.b"
same "content" "$BED/out/first" "$F.b"
same "attributes" "$BED/out/first.stat" <(stat -c '%a %u %g %s %y' "$F.b")
check "extended ones, too" test "$(getfattr --only-values -n user.why "$F.b" 2>/dev/null)" = because
"$LARDER" pool sync tank
check "takes no space" test $(($(used) - before)) -lt $((1 << 20))
check "shares" grep -qE '^.*; ([1-9][0-9]*) shared, 5M$' <("$LARDER" extents "$F.b")
check "nothing else is left" test "$(ls -A "$W/dir" | tr '\n' ' ')" = "letter letter.b sub "
check "over what no snapshot has" says "which was in no snapshot" "$LARDER" restore --replace "$F@b"
same "it is back" "$BED/out/first" "$F"
snap e
check "and where the other is kept" says "which is kept in tank/work@e" "$LARDER" restore --replace "$F@d"
same "of the other" <(tail -c 5 "$F") <(echo more)
rm "$F"
check "what was removed" "$LARDER" restore "$F@a"
same "comes back" "$BED/out/first" "$F"
check "to itself" "$LARDER" restore "$F@e" "$W/dir/sub"
same "into a folder" "$BED/out/first" "$W/dir/sub/letter"
snap f
check "what is there already is left alone" says "nothing was done" "$LARDER" restore "$F@f"
check "names with an @" bash -c "mv '$W/dir/sub/letter' '$W/dir/a@b' && '$LARDER' fs snapshot tank/work@g && rm '$W/dir/a@b'"
check "are parted at the last" "$LARDER" restore "$W/dir/a@b@g"
same "and come back" "$BED/out/first" "$W/dir/a@b"
check "one without a snapshot" fails "there is no snapshot tank/work@b2" "$LARDER" restore "$W/dir/a@b2"
check "a file of that name" fails "a version of it is $W/dir/a@b@SNAPSHOT" bash -c "rm '$W'/dir/letter.b; '$LARDER' fs destroy --now tank/work@b; '$LARDER' restore '$W/dir/a@b'"
check "a snapshot that has it not" fails "is not in tank/work@a" "$LARDER" restore "$W/dir/a@b@a"
rm -r "$W/dir"
check "its folder is gone" fails "mkdir -p" "$LARDER" restore "$F@a"
same "but its versions are known" <(echo "5242880 a c no") <(versions "$F" | head -1)
check "elsewhere" "$LARDER" restore "$F@a" "$W/back"
same "it is" "$BED/out/first" "$W/back"
check "on another file system" fails "is not on a mount of larder" "$LARDER" restore "$F@a" "$BED/out/back"
check "leaves nothing there" test -z "$(ls -A "$BED/out" | grep -F restore)"

# Space.
check "space" "$LARDER" fs space tank/work
check "of each" test "$("$LARDER" fs space -Hp tank/work | wc -l)" = "$(ls "$SNAPS" | wc -l)"
check "all of them" test "$("$LARDER" fs space -Hp tank/work | tail -1 | cut -f 5)" = \
    "$("$LARDER" fs destroy -nvp tank/work@% | sed -n 's/^reclaim\t//p')"
check "a command" says "larder fs destroy tank/work@%" "$LARDER" fs space --free 1M tank/work
check "that is not there" fails "all of them hold" "$LARDER" fs space --free 1T tank/work

# Folders.
mkdir -p "$W/tree/deep/er" && mkfifo "$W/tree/pipe" && ln -s ../tree "$W/tree/link" && echo x >"$W/tree/deep/x"
ln "$W/tree/deep/x" "$W/tree/twin" && chmod 711 "$W/tree/deep" && chown -h 3:4 "$W/tree/link" && truncate -s 9M "$W/tree/sparse"
for n in $(seq 50); do head -c $((n * 997)) /dev/urandom >"$W/tree/deep/file $n"; done
touch -d '2002-02-03 04:05:06.789' "$W/tree/deep" "$W/tree"
attributes() { (cd "$1" && find . -printf '%P %y %m %U %G %n %s %T@ %l\n' | LC_ALL=C sort); }
attributes "$W/tree" >"$BED/out/tree"
snap t
check "a folder that is there" fails "exists" "$LARDER" restore --replace "$W/tree@t"
check "a folder" "$LARDER" restore "$W/tree@t" "$W/tree.t"
same "has all that it had" "$BED/out/tree" <(attributes "$W/tree.t")
check "contents" diff -r "$W/tree/deep" "$W/tree.t/deep"
check "hard links" test "$(inode "$W/tree.t/twin")" = "$(inode "$W/tree.t/deep/x")"
rm -r "$W/tree"
check "one that was removed" "$LARDER" restore "$W/tree@t"
same "as it was" "$BED/out/tree" <(attributes "$W/tree")
kill_daemon
check "import after kill -9" "$LARDER" pool import -d "$DEVICES" tank
mounted
same "is there after that" "$BED/out/tree" <(attributes "$W/tree")
# Said to be kept only when it is: content that is in memory alone, behind a time that was set back.
L=$W/ledger && head -c 100K /dev/urandom >"$L" && touch -d '2003-02-03 04:05:06.789' "$L"
snap v
printf x | dd of="$L" bs=1 conv=notrunc status=none && touch -d '2003-02-03 04:05:06.789' "$L"
check "is no version of the snapshot" fails "what is there is in no snapshot" "$LARDER" restore "$L@v"
check "and is lost" says "which was in no snapshot" "$LARDER" restore --replace "$L@v"
setfattr -n user.later -v x "$L"
check "other attributes are not as it was" fails "exists and is another version" "$LARDER" restore "$L@v"
M=$W/mapped && head -c 100K /dev/urandom >"$M" && sync "$M"
snap w
check "nor what was written through mmap" python3 -c "
import mmap, subprocess, sys
f = open('$M', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[5000] ^= 1
r = subprocess.run(['$LARDER', 'restore', '$M@w'], capture_output=True, text=True)
print(r); sys.exit(not (r.returncode and 'what is there is in no snapshot' in r.stderr))"
# Lists of the folder are not those of the version.
mkdir "$W/shared" && setfacl -d -m u:1:rwx "$W/shared"
check "into a folder that hands down lists" "$LARDER" restore "$W/tree@t" "$W/shared/tree"
same "which it has none of" "$BED/out/tree" <(attributes "$W/shared/tree")
check "anywhere in it" test -z "$(getfacl -Rcs "$W/shared/tree" 2>/dev/null)"
check "a file, too" "$LARDER" restore "$L@v" "$W/shared/ledger"
check "has none" test -z "$(getfacl -cs "$W/shared/ledger" 2>/dev/null)"
check "nothing is left there" test "$(ls -A "$W/shared" | tr '\n' ' ')" = "ledger tree "

# Durable when it is said: nothing of the folder is only in memory, also when the last file is empty.
mkdir "$W/durable" && head -c 5M /dev/urandom >"$W/durable/A" && touch "$W/durable/z"{1..40}
cp -r "$W/durable" "$BED/out/durable"
snap u
"$LARDER" pool sync tank
check "a folder whose last file is empty" "$LARDER" restore "$W/durable@u" "$W/durable.u"
echo more >>"$L"
check "and one in the place of another" "$LARDER" restore --yes --replace "$L@v"
kill_daemon
check "import after kill -9 at once" "$LARDER" pool import -d "$DEVICES" tank
mounted
check "its contents are whole" diff -r "$BED/out/durable" "$W/durable.u"
same "and the other" "$W/shared/ledger" "$L"
check "and nothing else" test -z "$(ls -A "$W" | grep -F restore)"
healthy
check "export is not busy" "$LARDER" pool export tank
finish
