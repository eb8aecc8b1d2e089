#!/bin/bash
# everyday.sh: what people do with files, by the tools they do it with.
. "$(dirname "$0")/bed.sh"
need root fuse transport git cc tar
make_bed 3 2G
"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create -o compression=zstd tank/work
W=$MNT/work S=$BED/out
export HOME=$S GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null

# A source tree that every Debian with a compiler has.
SOURCE=/usr/include/linux
[ -d $SOURCE ] || SOURCE=/usr/include

repository() {
    git init -q "$S/repo" && cd "$S/repo" && cp -r $SOURCE/. . && git add -A &&
        git -c user.name=n -c user.email=e commit -qm one && git rm -q -r "$(git ls-files | head -1)" &&
        git -c user.name=n -c user.email=e commit -qm two
}
check "git: a repository to clone" repository
check "git clone" git clone -q --no-local "$S/repo" "$W/clone"
check "git fsck" git -C "$W/clone" fsck --full --strict
check "git status is clean" test -z "$(git -C "$W/clone" status --porcelain)"
check "git gc" git -C "$W/clone" gc -q
check "git fsck after gc" git -C "$W/clone" fsck --full
check "git checkout of the first commit" git -C "$W/clone" checkout -q HEAD~1
check "git grep" git -C "$W/clone" grep -q include

check "tar out" tar -C "$(dirname $SOURCE)" -cf "$W/in.tar" "$(basename $SOURCE)"
mkdir "$W/untar"
check "tar in" tar -C "$W/untar" -xpf "$W/in.tar"
check "tar compares" tar -C "$W/untar" -df "$W/in.tar"
check "the tree is equal" diff -r --no-dereference $SOURCE "$W/untar/$(basename $SOURCE)"
check "mv of a folder" mv "$W/untar" "$W/moved"
check "grep -r" grep -rq include "$W/moved"
check "rm -r" rm -r "$W/moved"

if command -v sqlite3 >/dev/null; then
    for journal in delete wal; do
        database=$W/$journal.db
        check "sqlite, journal_mode=$journal" sqlite3 "$database" "pragma journal_mode=$journal;
            create table t(a integer primary key, b text);
            with recursive n(i) as (select 1 union all select i+1 from n where i<20000)
            insert into t select i, hex(randomblob(20)) from n;
            create index ib on t(b); delete from t where a%3=0; vacuum;"
        same "sqlite finds it sound" <(echo ok) <(sqlite3 "$database" "pragma integrity_check")
        for n in $(seq 20); do echo "insert into t values($((30000 + n)), 'x');"; done | sqlite3 "$database"
        same "twenty transactions of one row" <(echo 20) <(sqlite3 "$database" "select count(*) from t where a>30000")
    done
fi

check "dd conv=fsync" dd if=/dev/urandom of="$W/random" bs=1M count=64 conv=fsync
check "dd oflag=direct" dd if="$W/random" of="$W/direct" bs=1M oflag=direct
check "dd oflag=dsync" dd if="$W/random" of="$W/dsync" bs=256K count=16 oflag=dsync
check "what was read is what was written" cmp "$W/random" "$W/direct"
check "cp --reflink=auto" cp --reflink=auto "$W/random" "$W/copied"
check "the copy is equal" cmp "$W/random" "$W/copied"
check "dd conv=notrunc into the middle" dd if=/dev/zero of="$W/copied" bs=1000 seek=12345 count=77 conv=notrunc
check "which leaves the source alone" cmp "$W/random" "$W/direct"
cp "$W/random" "$S/expected" && dd if=/dev/zero of="$S/expected" bs=1000 seek=12345 count=77 conv=notrunc status=none
check "and changes only that" cmp "$S/expected" "$W/copied"

truncate -s 10G "$W/sparse"
check "a sparse file takes little" test "$(du -k "$W/sparse" | cut -f1)" -le 64
printf 'at the end' | dd of="$W/sparse" bs=1 seek=$((9 << 30)) conv=notrunc status=none
check "data in the midst of nothing" test "$(tail -c +$(((9 << 30) + 1)) "$W/sparse" | head -c 10)" = "at the end"
check "cp keeps holes" cp --sparse=always "$W/sparse" "$W/sparse2"
check "cp of a sparse file takes little" test "$(du -k "$W/sparse2" | cut -f1)" -le 2048
check "fallocate punches" fallocate -p -o 4096 -l 1048576 "$W/copied"
check "what was punched is zero" cmp -n 1048576 -i 4096:0 "$W/copied" /dev/zero

# As gcc and ld map files, so do most programs.
printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' >"$W/hello.c"
check "cc" cc -O1 -o "$W/hello" "$W/hello.c"
check "the program runs" test "$("$W/hello")" = hello

many() { mkdir "$W/many" && cd "$W/many" && seq -f 'a name of some length %05g' 20000 | tr '\n' '\0' | xargs -0 touch; }
check "20,000 files in one folder" many
same "find sees each once" <(seq -f './a name of some length %05g' 20000) <(cd "$W/many" && find . -type f | sort)
check "ls -l" test "$(ls -l "$W/many" | wc -l)" = 20001
same "half of them removed while reading" <(echo 10000) \
    <(find "$W/many" -name '*[02468]' -delete && ls "$W/many" | wc -l)

long=$(printf 'n%.0s' $(seq 255))
check "a name of 255 bytes" touch "$W/$long"
check "names that are not text" touch "$W/$(printf 'a\001\377b')"
check "flock" flock -x "$W/random" true
check "touch -d to the nanosecond" touch -d '2001-02-03 04:05:06.123456789 UTC' "$W/hello.c"
same "stat says so" <(echo 981173106.123456789) <(find "$W/hello.c" -printf '%T@\n' | sed 's/0$//')
check "a file has its birth time" test "$(stat -c %W "$W/hello.c")" -ge "$(stat -c %W "$W")"
exec 7<"$W/random"
rm "$W/random"
check "a removed file that is open can be read" cmp "$W/direct" /dev/fd/7
exec 7<&-

cd /
(cd "$W" && find . ! -path './many/*' -printf '%P %y %m %s %T@ %l\n' | LC_ALL=C sort) >"$S/before"
(cd "$W" && find . -type f ! -name 'sparse*' -exec cksum {} + | LC_ALL=C sort) >"$S/before.sums"
check "export is not busy" "$LARDER" pool export tank
check "import" "$LARDER" pool import -d "$DEVICES" tank
(cd "$W" && find . ! -path './many/*' -printf '%P %y %m %s %T@ %l\n' | LC_ALL=C sort) >"$S/after"
(cd "$W" && find . -type f ! -name 'sparse*' -exec cksum {} + | LC_ALL=C sort) >"$S/after.sums"
same "names, modes, sizes, times after import" "$S/before" "$S/after"
same "contents after import" "$S/before.sums" "$S/after.sums"
healthy
finish
