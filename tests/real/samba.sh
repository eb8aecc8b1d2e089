#!/bin/bash
# samba.sh: a folder of the mount is served by Samba on a loopback port, with a configuration of its own that keeps
# attributes, and access lists and streams where its modules are there (samba-vfs-modules), in extended attributes;
# smbclient writes, reads, renames and removes there, and what either side sees is the same, at once and after an
# import. Snapshots are previous versions.
. "$(dirname "$0")/bed.sh"
need root fuse smbd smbclient smbpasswd sha256sum
make_bed 3 2G
export LC_ALL=C.UTF-8
S=$BED/out A=$BED/samba TREE=$(realpath "$HERE/../../crates")
SMBD= MODULES=
for module in shadow_copy2 acl_xattr streams_xattr; do
    if compgen -G "/usr/lib*/samba/vfs/$module.so" >/dev/null || compgen -G "/usr/lib/*/samba/vfs/$module.so" >/dev/null; then
        MODULES+=" $module"
    else
        echo "SKIPPED in $NAME: what needs Samba's module $module"
    fi
done

# smbd's own processes: the one that was started, and its children.
family() { [ -z "$SMBD" ] || { echo "$SMBD"; cat "/proc/$SMBD/task/$SMBD/children" 2>/dev/null; } | tr ' ' '\n' | sed '/^$/d'; }
runs() { grep -q '^State:.[^ZX]' "/proc/$1/status" 2>/dev/null; }
# stop_smbd: ends them, and returns when they are gone.
stop_smbd() {
    local pids pid i
    [ -n "$SMBD" ] || return 0
    pids=$(family)
    kill "$SMBD" 2>/dev/null || true
    wait "$SMBD" 2>/dev/null || true
    for pid in $pids; do
        for i in $(seq 600); do runs "$pid" || break; sleep 0.1; done
        ! runs "$pid" || kill -9 "$pid" || true
    done
    SMBD=
}
clear_more() { stop_smbd; }
# start_smbd: returns when it answers; ends the script when it does not.
start_smbd() {
    # A process group of its own, which it ends with itself.
    smbd --foreground -s "$A/smb.conf" -l "$A/log" >"$A/log/out" 2>&1 </dev/null &
    SMBD=$!
    local i
    for i in $(seq 300); do ! smb 'ls' >"$S/start" 2>&1 || return 0; sleep 0.2; done
    tail -n 20 "$S/start" "$A/log/"* | sed 's/^/    /'
    bad "smbd does not serve the folder"
    finish
}

"$LARDER" pool create -m "$MNT" tank raidz1 $(devices)
"$LARDER" fs create -o compression=zstd tank/share
mounted
W=$MNT/share

mkdir -p "$A"/{private,lock,state,cache,pid,ncalrpc,log}
configure() {
    cat >"$A/smb.conf" <<END
[global]
    server role = standalone server
    workgroup = LARDER
    netbios name = LARDER
    disable netbios = yes
    interfaces = lo
    bind interfaces only = yes
    smb ports = $1
    server min protocol = SMB2_10
    map to guest = Never
    passdb backend = tdbsam:$A/private/passdb.tdb
    private dir = $A/private
    lock directory = $A/lock
    state directory = $A/state
    cache directory = $A/cache
    pid directory = $A/pid
    ncalrpc dir = $A/ncalrpc
    log file = $A/log/smbd
    log level = 1
    load printers = no
    disable spoolss = yes
    printcap name = /dev/null
    usershare max shares = 0
    rpc start on demand helpers = no
[share]
    path = $W
    read only = no
    mangled names = no
    vfs objects =$MODULES
    shadow:snapdir = .zfs/snapshot
    shadow:format = GMT-%Y.%m.%d-%H.%M.%S
    shadow:snapdirseverywhere = yes
    shadow:sort = desc
    ea support = yes
    use sendfile = yes
    strict sync = yes
    posix locking = yes
END
}
listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
for _ in $(seq 20); do
    PORT=$((RANDOM % 20000 + 20000))
    listens || break
done
configure "$PORT"
check "smbpasswd" sh -c "printf 'secret\nsecret\n' | smbpasswd -c '$A/smb.conf' -L -s -a root"
# smb COMMANDS: as smbclient takes them; from the folder $S.
smb() { (cd "$S" && smbclient -s "$A/smb.conf" -p "$PORT" -U root%secret "//127.0.0.1/share" -t 60 -c "$1"); }
# smb_check WHAT COMMANDS: passes when all of them do; smbclient's exit status is that of the last one.
smb_check() {
    check "$1" smb "$2"
    if grep -q NT_STATUS "$S/check"; then bad "$1: $(grep -m 1 NT_STATUS "$S/check")"; fi
}
# sums FOLDER: of all files in it, with their names.
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

start_smbd

# Single files, both ways.
echo hello >"$S/hello.txt"
head -c 67108864 /dev/urandom >"$S/large"
smb_check "put" 'put hello.txt'
same "put is what is there" "$S/hello.txt" "$W/hello.txt"
smb_check "put of 64 MiB" 'put large'
same "put of 64 MiB is what is there" <(sha256sum <"$S/large") <(sha256sum <"$W/large")
smb_check "get of 64 MiB" 'get large back'
same "get of 64 MiB is what was put" <(sha256sum <"$S/large") <(sha256sum <"$S/back")
head -c 1000003 /dev/urandom >"$W/from below"
smb_check "get of what was written below" 'get "from below"'
same "which is the same" "$W/from below" "$S/from below"
smb_check "put over a longer file" 'put hello.txt large'
same "which is as short as it should be" "$S/hello.txt" "$W/large"
smb_check "names regardless of their case" 'get HELLO.TXT case'
same "which is the same file" "$S/hello.txt" "$S/case"
smb_check "reput goes on where a put ended" 'put hello.txt part; reput hello.txt part'

# Names.
for name in 'with  two spaces' 'grüße' '日本語 ファイル' 'naïve 🦀.txt' "quote's & more" 'ÜBER'; do
    echo "$name" >"$S/$name"
    smb_check "put of $name" "put \"$name\""
    same "$name is there" "$S/$name" "$W/$name"
    smb_check "rename of $name" "rename \"$name\" \"$name moved\""
    check "$name is gone" test ! -e "$W/$name"
    smb_check "get of $name" "get \"$name moved\" back"
    same "$name came back" "$S/$name" "$S/back"
    smb "ls \"$name moved\"" >"$S/ls" 2>&1 || true
    check "ls of $name" grep -qF "$name moved" "$S/ls"
    smb_check "del of $name" "del \"$name moved\""
    check "$name moved is gone" test ! -e "$W/$name moved"
done

# Folders.
smb_check "mkdir" 'mkdir "a folder"; mkdir "a folder\\below"'
check "mkdir is there" test -d "$W/a folder/below"
smb_check "rename over folders" 'rename hello.txt "a folder\\below\\hello.txt"'
same "which is there" "$S/hello.txt" "$W/a folder/below/hello.txt"
smb_check "rename of a folder" 'rename "a folder" moved'
smb 'rmdir moved' >"$S/full" 2>&1 || true
check "rmdir of a folder that is not empty fails" test -d "$W/moved"
smb_check "del and rmdir" 'del moved\\below\\hello.txt; rmdir moved\\below; rmdir moved'
check "rmdir is there no more" test ! -e "$W/moved"

# A tree.
smb_check "mput of a tree" "mkdir tree; cd tree; lcd $TREE; recurse on; prompt off; mput *"
sums "$TREE" >"$S/tree.sums"
same "the tree is there" "$S/tree.sums" <(sums "$W/tree")
mkdir "$S/tree"
smb_check "mget of a tree" "cd tree; lcd $S/tree; recurse on; prompt off; mget *"
same "the tree came back" "$S/tree.sums" <(sums "$S/tree")
smb 'cd tree; recurse on; ls' >"$S/ls" 2>&1 || bad "ls of a tree"
same "ls sees each file once" <(find "$TREE" -type f -printf '%f\n' | sort) \
    <(sed -n 's/^  \(.*[^ ]\)  *[AN]  *[0-9]\+  [A-Z][a-z][a-z] .*/\1/p' "$S/ls" | sort)
many() { mkdir "$S/many" && cd "$S/many" && seq -f 'file %04g' 1000 | tr '\n' '\0' | xargs -0 touch; }
check "1,000 files to put" many
smb_check "mput of 1,000 files" "mkdir many; cd many; lcd $S/many; prompt off; mput *"
same "1,000 files are there" <(ls "$S/many") <(ls "$W/many")
smb_check "del by wildcards" 'cd many; del *2; del "file ???4"'
same "which leaves the others" <(ls "$S/many" | grep -v '[24]$') <(ls "$W/many")
smb_check "deltree" 'deltree many'
check "deltree is there no more" test ! -e "$W/many"

# What Samba keeps in attributes.
head -c 60000 /dev/urandom >"$S/stream" # an attribute has 64 KiB
smb_check "put of what has more than its bytes" 'put hello.txt kept'
[[ $MODULES != *streams* ]] || smb_check "a stream of a file" 'put stream "kept:second"; get "kept:second" back'
[[ $MODULES != *streams* ]] || same "the stream came back" "$S/stream" "$S/back"
smb_check "setmode" 'setmode kept +rhs'
smb 'allinfo kept' >"$S/before" || bad "allinfo"
check "allinfo has what was set" grep -q 'attributes: .*RHS' "$S/before"
[[ $MODULES != *streams* ]] || check "allinfo has the stream" grep -q 'second' "$S/before"

# Beside each other.
head -c 8000000 /dev/urandom >"$S/eight"
clients=()
for i in 1 2 3 4; do
    smb "put eight eight$i; get eight$i back$i; put back$i again$i" >"$S/client$i" 2>&1 &
    clients+=($!)
done
for client in "${clients[@]}"; do check "one of four clients" wait "$client"; done
same "four clients wrote the same" <(for _ in $(seq 8); do sha256sum <"$S/eight"; done) \
    <(for i in 1 2 3 4; do sha256sum <"$W/eight$i"; sha256sum <"$W/again$i"; done)

# Snapshots by policy are previous versions.
if [[ $MODULES == *shadow_copy2* ]]; then
    echo was >"$W/previous"
    "$LARDER" policy set tank/share hourly=3 daily=3 format=gmt
    "$LARDER" policy run tank/share >/dev/null
    for _ in $(seq 100); do [ -z "$(ls "$W/.zfs/snapshot")" ] || break; sleep 0.1; done
    echo is >"$W/previous"
    version=@$(ls "$W/.zfs/snapshot" | head -n 1)
    check "a snapshot by policy is a previous version" grep -qF "$version" <(smb 'allinfo previous')
    smb_check "which is read" "get $version/previous was"
    same "as it was" <(echo was) "$S/was"
    smb_check "beside the newest" 'get previous is'
    same "which is another" <(echo is) "$S/is"
    # From here on it shows them with what it shows of files.
    "$LARDER" policy clear tank/share
    smb 'allinfo kept' >"$S/before" || bad "allinfo"
fi

# Samba lets go, the pool goes and comes, and all of it is there.
sums "$W" >"$S/sums"
stop_smbd
check "export is not busy" "$LARDER" pool export tank
check "import" "$LARDER" pool import -d "$DEVICES" tank
mounted
same "contents after an import" "$S/sums" <(sums "$W")
start_smbd
smb 'allinfo kept' >"$S/after" || bad "Samba after an import"
same "what Samba keeps in attributes after an import" <(grep -v access_time "$S/before") <(grep -v access_time "$S/after")
stop_smbd
healthy
finish "$(smbd --version)"
