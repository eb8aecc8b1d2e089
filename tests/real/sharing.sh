#!/bin/bash
# sharing.sh: copies share their blocks, as cp(1) and `larder clone` make them: they take no time and no space, and each
# outlives the others.
. "$(dirname "$0")/bed.sh"
need root fuse strace
room 2
make_bed 3 2G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create tank/below
"$LARDER" fs create -o mountpoint="$BED/apart" tank/apart
mounted
mountpoint -q "$BED/apart"
clear_more() { umount -l "$BED/apart" 2>/dev/null; }

avail() { "$LARDER" fs list -Hp -o avail tank; }
# all_shared FILE: by the closing line of extents.
all_shared() { "$LARDER" extents -p "$1" | tail -1 | grep -Eq ' ([0-9]+) of data; [0-9]+ shared, \1$'; }
none_shared() { "$LARDER" extents -p "$1" | tail -1 | grep -q ' 0 shared, 0$'; }
# took COMMAND...: milliseconds.
took() {
    local begun
    begun=$(date +%s%N)
    "$@" || return 1
    MS=$((($(date +%s%N) - begun) / 1000000))
}
# says TEXT COMMAND...: what a command of larder prints.
says() { "$LARDER" "${@:2}" | grep -q -- "$1"; }

head -c 64M /dev/urandom >"$BED/out/noise"
cat "$BED/out/noise" "$BED/out/noise" "$BED/out/noise" >"$MNT/noise"
# What is shared is records, whatever they take.
head -c 1G >"$MNT/large" < <(yes 'a line of a large file')
"$LARDER" pool sync tank
check "nothing is shared at first" none_shared "$MNT/large"
before=$(avail)

took cp "$MNT/large" "$MNT/copy" && ok "cp of 1 GiB: $MS ms" || bad "cp"
cp_ms=$MS
took "$LARDER" clone "$MNT/large" "$BED/apart/clone" && ok "clone of 1 GiB to another mount: $MS ms" || bad "clone"
clone_ms=$MS
check "cp takes less than 500 ms" test "$cp_ms" -lt 500
check "clone takes less than 500 ms" test "$clone_ms" -lt 500
check "cp to another dataset" cp "$MNT/noise" "$MNT/below/noise"
strace -f -e trace=copy_file_range,read,write -o "$BED/out/trace" cp "$MNT/noise" "$MNT/traced"
check "cp asks for it by copy_file_range" grep -q 'copy_file_range(.*) = 201326592' "$BED/out/trace"
for file in "$MNT/large" "$MNT/copy" "$BED/apart/clone" "$MNT/below/noise" "$MNT/traced"; do
    check "all of ${file#"$BED/"} is shared" all_shared "$file"
done
"$LARDER" pool sync tank
check "the copies take next to no space" test $((before - $(avail))) -lt $((4 << 20))

# By folder.
mkdir -p "$MNT/vm/images/deep" "$MNT/films/old" && cp "$MNT/noise" "$MNT/vm/images/deep/noise"
head -c 40M /dev/urandom >"$MNT/films/old/film"
check "nothing is known by folder before a trace" says "folders: not known" pool dedup -n --folders tank
"$LARDER" fs set dedup=on tank
"$LARDER" pool dedup --folders -p tank >"$BED/out/folders" || bad "pool dedup --folders"
"$LARDER" fs set dedup=off tank
# The five that share them have a fifth of 192 MiB each, and save the rest.
check "a folder saves what it shares" awk -v want=$((192 << 20)) '
    $1 == "tank" && $2 == "/vm/images" && $3 == want && $6 > want / 2 && $6 < want { found = 1 }
    END { exit !found }' "$BED/out/folders"
check "what the folders save is what the dataset does" awk '
    $1 == "tank" && NF == 5 { all = $5 } $1 == "tank" && NF == 6 { sum += $6 } END { exit sum != all || !all }' "$BED/out/folders"
check "a folder that shares nothing is told" grep -q "^dedup pays nothing here: tank /films 4[0-9]*, 0.0 %" "$BED/out/folders"
check "as the last trace found it" says " /vm/images " pool dedup -n --folders tank
check "at one level as well" says "^tank */vm " pool dedup --folders -d 1 tank
"$LARDER" pool trace -w tank >/dev/null
check "another trace knows nothing of folders" says "folders: not known" pool dedup -n --folders tank
rm -r "$MNT/vm" "$MNT/films"

dd if="$BED/out/noise" of="$MNT/traced" bs=1000 seek=5000 count=3000 conv=notrunc status=none
check "what is written to a copy is not in the source" cmp "$MNT/noise" "$MNT/below/noise"
cp --sparse=never --reflink=never "$MNT/traced" "$BED/out/traced"
rm "$MNT/noise" "$MNT/large"
"$LARDER" pool trace -w tank >/dev/null
check "a copy outlives its source" cmp "$MNT/copy" "$BED/apart/clone"
check "also one of another dataset" cmp -n 64M "$MNT/below/noise" "$BED/out/noise"
check "also one that was changed" cmp "$MNT/traced" "$BED/out/traced"
"$LARDER" pool export tank
"$LARDER" pool import -d "$DEVICES" tank
check "after import, too" cmp "$MNT/traced" "$BED/out/traced"

rm -r "$MNT/copy" "$BED/apart/clone" "$MNT/below/noise" "$MNT/traced"
# What is still being removed is in use for a trace.
"$LARDER" pool wait -t free tank
"$LARDER" pool trace -w tank >/dev/null
"$LARDER" pool wait -t free tank
check "with the last copy the space comes back" test "$(avail)" -ge $((before + (180 << 20)))
healthy
finish "cp of 1 GiB $cp_ms ms, clone $clone_ms ms"
