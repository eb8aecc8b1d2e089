#!/bin/bash
# trees.sh: whole trees by the tools that carry them. rsync and tar copy them with hard links, access lists,
# extended attributes and holes, and `rsync --checksum` finds no difference, neither at once nor after an import;
# git clones, searches and packs as on a local disk; cargo builds on the mount.
# TREES: folders that are copied ("/usr/include /usr/share/doc"). TREES_CARGO=1: cargo builds a part of this
# repository there, too.
. "$(dirname "$0")/bed.sh"
need root fuse rsync git tar setfacl setfattr cargo
TREES=${TREES:-/usr/include /usr/share/doc}
make_bed 3 64G
S=$BED/out EXTRA=$BED/extra
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e

# Everything is there twice at most, and parity; uncompressed, to be on the safe side.
trees=()
for tree in $TREES; do [ ! -d "$tree" ] || trees+=("$tree"); done
[ ${#trees[@]} -gt 0 ] || skip "needs one of the folders $TREES"
size=$(du -scxm "${trees[@]}" 2>/dev/null | tail -1 | cut -f1)
free=$(df -m --output=avail "$BED" | tail -1)
[ "$free" -gt $((size * 3 + 1000)) ] || skip "needs $((size * 3 + 1000)) MiB in $BED"

# What trees of packages lack.
extra() {
    mkdir -p "$EXTRA/default/below" "$EXTRA/links" && cd "$EXTRA"
    echo listed >listed && setfacl -m u:nobody:r,g:1234:rw,m::r listed || return
    setfacl -m u:nobody:rwx,d:u:nobody:rx,d:g:1234:rwx,d:o::- default || return
    for i in 1 2 3; do echo $i >links/$i && ln links/$i links/$i.linked && ln links/$i default/below/$i; done
    echo named >named && setfattr -n user.comment -v 'a comment' named &&
        setfattr -n user.empty named && setfattr -n user.bytes -v 0x00ff0a named &&
        setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' x)" named || return
    setfattr -n user.of-a-folder -v folder links || return
    truncate -s 300M sparse && echo middle | dd of=sparse bs=1M seek=150 conv=notrunc status=none
    truncate -s 1M only-a-hole
    cp /bin/true suid && chown nobody suid && chmod 6755 suid
    mkdir sticky && chmod 3777 sticky && chown nobody:1234 sticky
    echo bytes >"$(printf 'no\377t \001text\n')"
    ln -s nowhere dangling && ln -s ../extra/links/1 "$(printf 'link\376')" && chown -h nobody dangling
    touch -h -d '1999-12-31 23:59:59.987654321 UTC' dangling listed && touch -d '2300-01-01 UTC' suid
    mkfifo fifo
    # Not everywhere allowed, even to root.
    mknod null c 1 3 || true
    setfattr -n trusted.of-root -v secret named || true
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 named || true
}
extra 2>"$S/extra" || skip "needs access lists and user attributes in $BED: $(tail -n 1 "$S/extra")"
cd /

# alike WHAT FOLDER COPY: rsync would change nothing.
changes() { rsync -aHAXxc --dry-run --itemize-changes --delete "$1/" "$2/"; }
alike() {
    if changes "$2" "$3" >"$S/changes" 2>&1 && [ ! -s "$S/changes" ]; then ok "$1"; else
        bad "$1: $(wc -l <"$S/changes") differences"
        head -n 10 "$S/changes" | sed 's/^/    /'
    fi
}
# all_alike WHAT COPIES: all trees, and what they lack; access lists and attributes by a second pair of eyes, too.
all_alike() {
    local tree
    for tree in "${trees[@]}"; do alike "$1: $tree" "$tree" "$2$tree"; done
    alike "$1: links, lists, attributes, holes" "$EXTRA" "$2/extra"
    same "$1: getfacl" <(cd "$EXTRA" && getfacl -Rpn . | sort) <(cd "$2/extra" && getfacl -Rpn . | sort)
    same "$1: getfattr" <(cd "$EXTRA" && getfattr -Rhd -m - -e hex . | sort) \
        <(cd "$2/extra" && getfattr -Rhd -m - -e hex . | sort)
    check "$1: hard links are links" test "$2/extra/links/1" -ef "$2/extra/default/below/1"
    check "$1: holes are holes" test "$(du -ck "$2/extra/"{sparse,only-a-hole} | tail -1 | cut -f1)" -le 2048
}

"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create -o compression=zstd tank/trees
mounted
W=$MNT/trees
mkdir -p "$W/rsync/extra" "$W/tar"

# rsync.
for tree in "${trees[@]}"; do
    mkdir -p "$W/rsync$tree"
    check "rsync of $tree" rsync -aHAXxS "$tree/" "$W/rsync$tree/"
done
check "rsync of links, lists, attributes, holes" rsync -aHAXS "$EXTRA/" "$W/rsync/extra/"
all_alike "rsync" "$W/rsync"

# tar.
attributes=(--acls --xattrs --xattrs-include='*' --numeric-owner --sparse)
if [ "$(stat -c %Y "$W/rsync/extra/suid")" -lt 4294967296 ]; then bad "a time after 2106"; else ok "a time after 2106"; fi
carry() { tar -C "$W/rsync" "${attributes[@]}" -cf - . | tar -C "$W/tar" "${attributes[@]}" -xpf -; }
check "tar out and in" carry
all_alike "tar" "$W/tar"

check "export" "$LARDER" pool export tank
check "import" "$LARDER" pool import -d "$DEVICES" tank
mounted
all_alike "after an import" "$W/rsync"
for tree in "${trees[@]}"; do alike "after an import, by tar: $tree" "$tree" "$W/tar$tree"; done

# The comparison sees what it is here for.
sees() {
    local what=$1
    shift
    "$@"
    if [ "$(changes "$EXTRA" "$W/tar/extra" | wc -l)" = 1 ]; then ok "$what is seen"; else bad "$what is not seen"; fi
    rsync -aHAXc "$EXTRA/" "$W/tar/extra/"
}
sees "another entry in a list" setfacl -m u:nobody:rw "$W/tar/extra/listed"
sees "another default list" setfacl -m d:g:1234:r "$W/tar/extra/default"
sees "another attribute" setfattr -n user.comment -v another "$W/tar/extra/named"
sees "a byte" dd if=/dev/zero of="$W/tar/extra/sparse" bs=1 count=1 seek=157286400 conv=notrunc status=none
alike "and what was seen is set right" "$EXTRA" "$W/tar/extra"

# What is made below a default list has it.
for folder in "$EXTRA" "$W/rsync/extra"; do (umask 027 && echo new >"$folder/default/new" && mkdir "$folder/default/made"); done
same "what a default list gives" <(cd "$EXTRA/default" && getfacl -n new made) \
    <(cd "$W/rsync/extra/default" && getfacl -n new made)
# At once, by two, as at the end of a day.
check "rm -r of both copies" sh -c "rm -r '$W/rsync' & rm -r '$W/tar' && wait \$!"

# git.
repository() {
    git init -q "$S/repo" && cd "$S/repo" || return
    local i file
    for i in $(seq 36); do
        mkdir -p "part$((i % 6))" || return
        while read -r file; do cp "$file" "part$((i % 6))/"; done \
            < <(find -L "${trees[0]}" -type f -size -64k 2>/dev/null | sort | sed -n "$((i * 20)),$((i * 20 + 19))p")
        seq "$i" $((i * 50)) >numbers
        [ $((i % 9)) != 0 ] || git rm -q --cached "$(git ls-files | head -1)" || return
        git add -A && git commit -qm "change $i" || return
        [ $((i % 12)) != 0 ] || git tag -a -m "a tag" "v$i" || return
    done
}
check "git: a repository of a few dozen commits" repository
cd /
C=$W/clone
check "git clone" git clone -q --no-local "$S/repo" "$C"
check "git fsck" git -C "$C" fsck --full --strict
check "git status is clean" test -z "$(git -C "$C" status --porcelain)"
same "git grep" <(git -C "$S/repo" grep -n -e include -e define) <(git -C "$C" grep -n -e include -e define)
same "git grep in an old commit" <(git -C "$S/repo" grep -c e v12) <(git -C "$C" grep -c e v12)
same "git log -p" <(git -C "$S/repo" log -p | sha256sum) <(git -C "$C" log -p | sha256sum)
check "git gc" git -C "$C" gc -q --prune=now
check "git fsck after gc" git -C "$C" fsck --full --strict
work() {
    cd "$C" && git checkout -q -b other v12 && echo more >>numbers && git commit -qam more && git rebase -q -X theirs master &&
        git worktree add -q "$W/second" v24 && git -C "$W/second" fsck --full && git stash list && git repack -qadf
}
git -C "$S/repo" branch -q -f master HEAD 2>/dev/null || true
git -C "$C" branch -q -f master HEAD 2>/dev/null || true
check "git checkout, commit, rebase, worktree, repack" work
cd /
check "git fsck after a repack" git -C "$C" fsck --full --strict
check "git push from the mount" git -C "$C" push -q origin other
check "git fsck of what was pushed to" git -C "$S/repo" fsck --full

# cargo, from the folder whose toolchain is known to be there.
build() { cd "$HERE" && CARGO_TARGET_DIR=$W/target cargo "$@" --offline --manifest-path "$W/crate/Cargo.toml"; }
mkdir -p "$W/crate/src"
printf '[package]\nname = "onboard"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n' >"$W/crate/Cargo.toml"
printf 'pub fn twice(n: u32) -> u32 {\n    n * 2\n}\n#[test]\nfn doubles() {\n    assert_eq!(twice(2), 4);\n}\n' >"$W/crate/src/lib.rs"
printf 'fn main() {\n    println!("{}", onboard::twice(21));\n}\n' >"$W/crate/src/main.rs"
check "cargo build" build build -q
check "the program runs" test "$("$W/target/debug/onboard")" = 42
check "cargo test" build test -q
fresh() { build build --verbose >"$S/fresh" 2>&1 && cat "$S/fresh" && grep -q 'Fresh onboard' "$S/fresh" && ! grep -q 'Dirty' "$S/fresh"; }
check "cargo builds nothing twice" fresh
sed -i 's/n \* 2/n * 2 + 1/; s/4/5/' "$W/crate/src/lib.rs"
check "cargo build of a change" build build -q
check "the changed program runs" test "$("$W/target/debug/onboard")" = 43
if [ -n "${TREES_CARGO:-}" ]; then
    check "this repository is copied" rsync -a --exclude=target --exclude=.git "$HERE/../../" "$W/larder/"
    part() { cd "$W/larder" && CARGO_TARGET_DIR=$W/target cargo build --locked --offline -p larder-format; }
    check "cargo builds a part of it" part
fi
cd /
healthy
finish "$size MiB of trees"
