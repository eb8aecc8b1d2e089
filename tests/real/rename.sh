#!/bin/bash
# rename.sh: a tree is equal after its pool's devices were renamed, moved to another folder and put in another order.
# FILES: how many files (30,000).
. "$(dirname "$0")/bed.sh"
need root fuse setfattr
FILES=${FILES:-30000}
make_bed 6 2G
WITNESS=$(program witness)

# What find(1) tells of a tree: modes, owners, links, sizes (a directory's is the filesystem's own affair),
# nanosecond times, targets.
manifest() {
    (cd "$1" && find . -mindepth 1 \( -type d -printf '%P %y %m %U %G %n - %T@\n' \) -o \
        -printf '%P %y %m %U %G %n %s %T@ %l\n' | LC_ALL=C sort)
}
# Which names are links to one file.
links() {
    (cd "$1" && find . -type f -links +1 -printf '%i %P\n' | LC_ALL=C sort -k 2 |
        awk '!($1 in first) { first[$1] = $2 } { print first[$1], $2 }')
}
attributes() { (cd "$1" && getfattr -R -h -d -m - . | LC_ALL=C sort); }
inodes() { (cd "$1" && find . -printf '%i %P\n' | LC_ALL=C sort -k 2); }

"$WITNESS" tree "$BED/source" "$FILES" 11
for n in $(seq 0 10 300); do
    file=$BED/source/0/$((n / 100))/f$n
    setfattr -n user.number -v "$n" "$file"
    setfattr -n user.long -v "$(printf '%0900d' "$n")" "$file"
done
manifest "$BED/source" >"$BED/out/source"

"$LARDER" pool create -m "$MNT" tank raidz2 $(devices)
mounted
cp -a "$BED/source" "$MNT/copy"
manifest "$MNT/copy" >"$BED/out/copy"
same "the copy shows what the source does" "$BED/out/source" "$BED/out/copy"
inodes "$MNT/copy" >"$BED/out/inodes"
"$LARDER" pool export tank

moved=$BED/elsewhere
mkdir "$moved"
number=9
for device in $(devices); do
    mv "$device" "$moved/renamed-$number"
    number=$((number - 1))
done

check "import from where they are now" "$LARDER" pool import -d "$moved" tank
check "contents" diff -r --no-dereference "$BED/source" "$MNT/copy"
for what in manifest links attributes; do
    $what "$BED/source" >"$BED/out/source"
    $what "$MNT/copy" >"$BED/out/copy"
    same "$what" "$BED/out/source" "$BED/out/copy"
done
inodes "$MNT/copy" >"$BED/out/inodes.after"
same "inode numbers stay" "$BED/out/inodes" "$BED/out/inodes.after"
healthy
finish "$FILES files"
